#include "tests/sim/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/dtype.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/rng.h"
#include "common/engine/engine_sim.h"
#include "common/link/link.h"
#include "common/net/bus.h"
#include "common/worker/worker.h"
#include "decode-worker/decode.h"
#include "prefill-worker/prefill.h"
#include "router/dispatch.h"
#include "tests/sim/timeline.h"

enum {
    WORKERS_MAX = 5,
    REQUESTS_MAX = 48,
    EVENTS_MAX = 1 << 16,
    LINES_MAX = 256, /* (from, to) pairs ever seen */
    VOCAB = 997,
    EOS = 3,
    TICK_NS = 10 * 1000 * 1000,
    LEASE_MS = 300,
};
#define MS 1000000ull

struct world;

typedef fg_timeline_event event;

/* A frame of the bus or an operation of the link under way. */
typedef struct cargo {
    void (*run)(void *arg);
    void (*end)(void *arg); /* bus: frees; link: loses */
    void *arg;
    uint32_t copies; /* deliveries that are still to come */
    bool link;
} cargo;

typedef struct sim_worker {
    struct world *world;
    uint32_t index;
    char name[16];
    uint32_t roles, block_count;
    uint64_t life; /* grows with each crash; 0 is never used */
    bool alive;
    uint64_t frozen_until_ns;
    uint64_t epoch;
    fg_tier *tier; /* NULL: none */
    void *arena;
    fg_bus *bus;
    fg_link *link;
    fg_engine *engine;
    fg_worker *worker;
    fg_link_events link_events;
} sim_worker;

typedef struct sim_request {
    struct world *world;
    uint32_t index;
    uint32_t *tokens; /* prompt, then the answer */
    uint32_t prompt_count, count;
    fg_dispatch_job job;
    uint64_t id;
    bool started, ended, refused, cancelled;
    fg_finish finish;
} sim_request;

typedef struct line_time {
    char from[40], to[40];
    uint64_t last_ns;
} line_time;

typedef struct world {
    sim_options options;
    sim_report report;
    fg_rng rng;
    fg_timeline time;
    fg_bus_hub *bus_hub;
    fg_link_hub *link_hub;
    fg_bus *router_bus;
    fg_dispatch *dispatch;
    fg_kv_layout layout;
    sim_worker workers[WORKERS_MAX];
    uint32_t worker_count;
    sim_request requests[REQUESTS_MAX];
    uint32_t request_count;
    line_time lines[LINES_MAX];
    uint32_t line_count;
    bool quiet; /* no more faults */
} world;

/* With --verbose: every frame, as it is sent or arrives. */
static void trace(const world *w, const char *who, const char *what, const void *bytes,
                  size_t size_bytes)
{
    if (!w->options.verbose) {
        return;
    }
    fg_arena *arena = fg_arena_create(FG_LIMIT_FRAME_ARENA_BYTES);
    fg_msg msg = { 0 };
    fg_error err;
    if (arena != NULL && fg_wire_decode(bytes, size_bytes, arena, &msg, &err) == FG_OK) {
        fprintf(stderr, "%12.6f %s %s %s req=%016llx attempt=%u\n", (double)w->time.now_ns / 1e9,
                who, what, fg_msg_name(msg.kind), (unsigned long long)msg.request, msg.attempt);
    }
    fg_arena_destroy(arena);
}

static void push_event(world *w, event e)
{
    fg_status status = fg_timeline_push(&w->time, &e);
    FG_ASSERT(status == FG_OK, "too many events");
}

static uint64_t below(world *w, uint64_t bound)
{
    return fg_rng_below(&w->rng, bound);
}

static bool chance(world *w, uint32_t per_thousand)
{
    return below(w, 1000) < per_thousand;
}

/* ---- bus and link: time, order, doubles ---- */

static sim_worker *worker_named(world *w, const char *identity)
{
    for (uint32_t i = 0; i < w->worker_count; i++) {
        size_t length = strlen(w->workers[i].name);
        if (strncmp(identity, w->workers[i].name, length) == 0 &&
            (identity[length] == '#' || identity[length] == '\0')) {
            return &w->workers[i];
        }
    }
    return NULL;
}

/* When something sent now from one end arrives at the other: random, but never before what was sent
 * earlier on the same way. */
static uint64_t arrival(world *w, const char *from, const char *to, uint64_t delay_ns)
{
    uint32_t i = 0;
    while (i < w->line_count &&
           (strcmp(w->lines[i].from, from) != 0 || strcmp(w->lines[i].to, to) != 0)) {
        i++;
    }
    if (i == LINES_MAX) {
        i = (uint32_t)below(w, LINES_MAX); /* very old ways are forgotten */
        w->lines[i].last_ns = 0;
    } else if (i == w->line_count) {
        w->line_count++;
    }
    line_time *line = &w->lines[i];
    snprintf(line->from, sizeof line->from, "%s", from);
    snprintf(line->to, sizeof line->to, "%s", to);
    uint64_t at = w->time.now_ns + delay_ns;
    at = at > line->last_ns ? at : line->last_ns + 1;
    line->last_ns = at;
    return at;
}

/* Who must be awake for an event to happen; SIGSTOP holds it until the thaw. */
static bool postponed(world *w, const event *e)
{
    if (e->index >= w->worker_count || w->workers[e->index].frozen_until_ns <= w->time.now_ns) {
        return false;
    }
    event later = *e;
    later.at_ns = w->workers[e->index].frozen_until_ns + 1;
    push_event(w, later);
    return true;
}

static void end_cargo(cargo *c)
{
    if (--c->copies == 0) {
        free(c);
    }
}

/* The event never happens: the world ends. */
static void drop_cargo(void *arg)
{
    cargo *c = arg;
    if (c->copies == 1) {
        c->end(c->arg);
    }
    end_cargo(c);
}

static void fire_cargo(void *ctx, const event *e)
{
    if (postponed(ctx, e)) {
        return;
    }
    cargo *c = e->arg;
    c->run(c->arg);
    if (c->copies == 1 && !c->link) {
        c->end(c->arg);
    }
    end_cargo(c);
}

static cargo *make_cargo(void (*run)(void *arg), void (*end)(void *arg), void *arg, bool link)
{
    cargo *c = malloc(sizeof *c);
    FG_ASSERT(c != NULL);
    *c = (cargo){ .run = run, .end = end, .arg = arg, .copies = 1, .link = link };
    return c;
}

static void defer_frame(void *ctx, const char *from, const char *to, void (*run)(void *arg),
                        void (*free_arg)(void *arg), void *arg)
{
    world *w = ctx;
    sim_worker *target = worker_named(w, to);
    uint64_t delay = 50000 + below(w, 2 * MS);
    cargo *c = make_cargo(run, free_arg, arg, false);
    event e = { .at_ns = arrival(w, from, to, delay),
                .fire = fire_cargo,
                .drop = drop_cargo,
                .index = target != NULL ? target->index : UINT32_MAX,
                .arg = c };
    if (w->options.faults && !w->quiet && chance(w, 10)) {
        /* Doubled: once in its place, and once more late and out of order. */
        w->report.doubled++;
        c->copies++;
        push_event(w, e);
        e.at_ns += below(w, 400 * MS);
    }
    push_event(w, e);
}

static void defer_link(void *ctx, const char *from, const char *to, void (*run)(void *arg),
                       void (*drop)(void *arg), void *arg)
{
    world *w = ctx;
    sim_worker *source = worker_named(w, from);
    /* Mostly fast; now and then a writer that takes its time. */
    uint64_t delay = chance(w, 30) ? below(w, 200 * MS) : 20000 + below(w, 3 * MS);
    push_event(w, (event){ .at_ns = w->time.now_ns + delay,
                           .fire = fire_cargo,
                           .drop = drop_cargo,
                           .index = source != NULL ? source->index : UINT32_MAX,
                           .arg = make_cargo(run, drop, arg, true) });
}

/* ---- workers ---- */

static void link_commit(void *ctx, const fg_link_commit *commit)
{
    sim_worker *s = ctx;
    s->link_events.on_commit(s->link_events.ctx, commit);
}

static void link_fenced(void *ctx, uint64_t ticket)
{
    sim_worker *s = ctx;
    s->link_events.on_fenced(s->link_events.ctx, ticket);
}

static void link_answer(void *ctx, uint64_t ticket, const uint32_t *bad, uint32_t bad_count)
{
    sim_worker *s = ctx;
    s->link_events.on_answer(s->link_events.ctx, ticket, bad, bad_count);
}

static void link_drained(void *ctx, uint64_t ticket, fg_status why)
{
    sim_worker *s = ctx;
    s->link_events.on_drained(s->link_events.ctx, ticket, why);
}

static void bus_up(void *ctx, uint32_t peer, const char *identity)
{
    fg_worker_on_up(((sim_worker *)ctx)->worker);
}

static void bus_frame(void *ctx, uint32_t peer, const void *bytes, size_t size_bytes)
{
    sim_worker *s = ctx;
    trace(s->world, s->name, "got", bytes, size_bytes);
    fg_worker_on_frame(s->worker, bytes, size_bytes);
}

static void bus_down(void *ctx, uint32_t peer)
{
    fg_worker_on_down(((sim_worker *)ctx)->worker);
}

static fg_status worker_send(void *ctx, const void *bytes, size_t size_bytes)
{
    sim_worker *s = ctx;
    trace(s->world, s->name, "sends", bytes, size_bytes);
    return fg_bus_send(s->bus, 0, bytes, size_bytes);
}

static void connect_bus(sim_worker *s)
{
    char identity[40];
    snprintf(identity, sizeof identity, "%s#%llu", s->name, (unsigned long long)s->epoch);
    fg_bus_events events = {
        .on_up = bus_up, .on_frame = bus_frame, .on_down = bus_down, .ctx = s
    };
    fg_error err;
    fg_status status = fg_bus_connect_mem(s->world->bus_hub, identity, &events, &s->bus, &err);
    FG_ASSERT(status == FG_OK, "%s", err.text);
}

static void worker_reconnect(void *ctx, uint64_t epoch)
{
    sim_worker *s = ctx;
    fg_bus_close(s->bus);
    s->epoch = epoch;
    connect_bus(s);
}

static bool worker_is_end(void *ctx, uint32_t token)
{
    return token == EOS;
}

/* Any way of scheduling gives the same answers. */
static fg_sched_limits draw_limits(world *w, const sim_worker *s)
{
    return (fg_sched_limits){ .step_tokens_max = 8 + (uint32_t)below(w, 60),
                              .chunk_tokens_max = 1 + (uint32_t)below(w, 24),
                              .seqs_max = 2 + (uint32_t)below(w, 6),
                              .block_size = w->layout.block_size,
                              .order = (fg_sched_order)below(w, 2),
                              .victim = (fg_sched_victim)below(w, 3),
                              .preemption = (fg_sched_preemption)below(w, 3),
                              .admission = (fg_sched_admission)(below(w, 4) == 0),
                              .watermark_blocks = (uint32_t)below(w, 1 + s->block_count / 10),
                              .skip_max = (uint32_t)below(w, 3),
                              .step_target_ns = below(w, 2) * MS };
}

/* Half of the workers have a second tier, a small one. Returns its slots. */
static uint32_t open_tier(world *w, sim_worker *s)
{
    fg_error err;
    uint32_t slots = chance(w, 500) ? 0 : 1 + (uint32_t)below(w, 60);
    fg_tier_options tier = { .block_bytes = w->layout.block_bytes,
                             .block_count = slots,
                             .block_size = w->layout.block_size };
    fg_status status = slots == 0 ? FG_OK : fg_tier_open(&tier, &s->tier, &err);
    FG_ASSERT(status == FG_OK, "%s", err.text);
    return slots;
}

static void start_worker(world *w, sim_worker *s)
{
    fg_error err;
    s->life++;
    s->epoch = s->life * 1000;
    s->alive = true;
    s->frozen_until_ns = 0;
    bool linked = s->roles != (FG_ROLE_PREFILL | FG_ROLE_DECODE) || w->worker_count > 1;
    if (linked) {
        fg_link_options options = { .block_bytes = w->layout.block_bytes,
                                    .block_count = s->block_count,
                                    .transport = "auto",
                                    .host = "",
                                    .events = { .on_commit = link_commit,
                                                .on_fenced = link_fenced,
                                                .on_answer = link_answer,
                                                .on_drained = link_drained,
                                                .ctx = s } };
        fg_status status =
            fg_link_open_mem(w->link_hub, s->name, s->epoch, &options, &s->link, &err);
        FG_ASSERT(status == FG_OK, "%s", err.text);
        s->arena = fg_link_arena(s->link);
    } else {
        s->arena = calloc(s->block_count, w->layout.block_bytes);
        FG_ASSERT(s->arena != NULL);
    }
    fg_sched_limits limits = draw_limits(w, s);
    uint32_t slots = open_tier(w, s);
    fg_engine_sim_options engine = { .layout = w->layout,
                                     .arena = s->arena,
                                     .block_count = s->block_count,
                                     .tier_arena = slots == 0 ? NULL : fg_tier_arena(s->tier),
                                     .tier_block_count = slots,
                                     .limits = { .step_tokens_max = limits.step_tokens_max,
                                                 .step_seqs_max = limits.seqs_max,
                                                 .context_max = 512 },
                                     .vocab_size = VOCAB,
                                     .eos_token = EOS,
                                     .manual = true };
    fg_status status = fg_engine_open_sim(&engine, &s->engine, &err);
    FG_ASSERT(status == FG_OK, "%s", err.text);
    fg_worker_options options = { .name = s->name,
                                  .epoch = s->epoch,
                                  .roles = s->roles,
                                  .clock = fg_clock_manual(&w->time.now_ns),
                                  .engine = s->engine,
                                  .link = s->link,
                                  .layout = w->layout,
                                  .block_count = s->block_count,
                                  .context_max = 512,
                                  .vocab_size = VOCAB,
                                  .limits = limits,
                                  .overlap = chance(w, 500),
                                  .prefix_cache = !chance(w, 150),
                                  .local_prefill_max = chance(w, 400) ? 0 : (uint32_t)below(w, 40),
                                  .tier = s->tier,
                                  .fingerprint = { 11, 22 },
                                  .pid = s->life,
                                  .prefill = fg_prefill_policy(),
                                  .decode = fg_decode_policy(),
                                  .is_end = worker_is_end,
                                  .send = worker_send,
                                  .reconnect = worker_reconnect,
                                  .ctx = s };
    status = fg_worker_create(&options, &s->worker, &err);
    FG_ASSERT(status == FG_OK, "%s", err.text);
    s->link_events = fg_worker_link_events(s->worker);
    connect_bus(s);
}

static void stop_worker(world *w, sim_worker *s)
{
    s->alive = false;
    s->frozen_until_ns = 0;
    fg_bus_close(s->bus);
    fg_worker_stats stats;
    fg_worker_stats_get(s->worker, &stats);
    w->report.hit_tokens += stats.cache_hit_tokens;
    w->report.preemptions += stats.preemptions;
    w->report.swapped += stats.swapped_blocks;
    w->report.forks += stats.forks;
    w->report.remapped += stats.remapped_blocks;
    fg_engine_close(s->engine);
    fg_worker_destroy(s->worker);
    fg_tier_close(s->tier);
    s->tier = NULL;
    if (s->link != NULL) {
        fg_link_hub_kill(w->link_hub, s->name, s->life * 1000);
        fg_link_close(s->link);
        s->link = NULL;
    } else {
        free(s->arena);
    }
    s->bus = NULL;
    s->engine = NULL;
    s->worker = NULL;
}

static void fire_tick(void *ctx, const event *e)
{
    world *w = ctx;
    sim_worker *s = &w->workers[e->index];
    if (s->alive && s->frozen_until_ns <= w->time.now_ns) {
        if (s->link != NULL) {
            fg_link_progress(s->link);
        }
        fg_worker_tick(s->worker);
    }
    event next = *e;
    next.at_ns = w->time.now_ns + TICK_NS / 2 + below(w, TICK_NS);
    push_event(w, next);
}

static void fire_engine(void *ctx, const event *e)
{
    world *w = ctx;
    sim_worker *s = &w->workers[e->index];
    if (s->alive && s->frozen_until_ns <= w->time.now_ns && fg_engine_sim_complete(s->engine)) {
        fg_worker_on_engine(s->worker);
    }
    event next = *e;
    next.at_ns = w->time.now_ns + MS / 2 + below(w, 4 * MS);
    push_event(w, next);
}

/* ---- the router ---- */

static fg_status router_send(void *ctx, uint32_t peer, const void *bytes, size_t size_bytes)
{
    world *w = ctx;
    trace(w, "router", "sends", bytes, size_bytes);
    return fg_bus_send(w->router_bus, peer, bytes, size_bytes);
}

static void router_drop(void *ctx, uint32_t peer)
{
    fg_bus_drop(((world *)ctx)->router_bus, peer);
}

static void router_up(void *ctx, uint32_t peer, const char *identity)
{
    fg_dispatch_on_up(((world *)ctx)->dispatch, peer, identity);
}

static void router_frame(void *ctx, uint32_t peer, const void *bytes, size_t size_bytes)
{
    world *w = ctx;
    trace(w, "router", "got", bytes, size_bytes);
    fg_dispatch_on_frame(w->dispatch, peer, bytes, size_bytes);
}

static void router_down(void *ctx, uint32_t peer)
{
    fg_dispatch_on_down(((world *)ctx)->dispatch, peer);
}

static void fire_router_tick(void *ctx, const event *e)
{
    world *w = ctx;
    fg_dispatch_tick(w->dispatch);
    event next = *e;
    next.at_ns = w->time.now_ns + TICK_NS;
    push_event(w, next);
}

/* ---- clients ---- */

static void on_token(void *ctx, uint32_t index, uint32_t id, uint64_t digest)
{
    sim_request *r = ctx;
    FG_ASSERT(!r->ended && !r->cancelled, "a token after the end");
    FG_ASSERT(index == r->count - r->prompt_count, "token %u came as number %u", index,
              r->count - r->prompt_count);
    fg_sampling sampling = { .temperature = r->job.params.temperature,
                             .top_p = 1.0f,
                             .seed = r->job.params.seed };
    fg_engine_sim_answer want =
        fg_engine_sim_expected(r->tokens, r->count, VOCAB, EOS, &sampling, 0);
    FG_ASSERT(id == want.token && digest == want.digest,
              "request %u, token %u: another answer than alone (%u, not %u)", r->index, index, id,
              want.token);
    r->tokens[r->count++] = id;
    r->world->report.tokens++;
}

static void on_end(void *ctx, fg_finish finish, fg_status status, const char *text,
                   const fg_dispatch_report *report)
{
    sim_request *r = ctx;
    FG_ASSERT(!r->ended && !r->cancelled, "request %u ended twice", r->index);
    r->ended = true;
    r->finish = finish;
    uint32_t generated = r->count - r->prompt_count;
    if (finish == FG_FINISH_STOP) {
        FG_ASSERT(generated > 0 && r->tokens[r->count - 1] == EOS);
    } else if (finish == FG_FINISH_LENGTH) {
        FG_ASSERT(generated == r->job.params.max_tokens);
    } else {
        bool asked_for = r->job.params.cache_mode == FG_CACHE_FORCE && status == FG_BAD_INPUT;
        FG_ASSERT(finish == FG_FINISH_ERROR && (r->world->options.faults || asked_for),
                  "request %u failed without a fault: %s", r->index, text);
    }
}

static void fire_start(void *ctx, const event *e)
{
    world *w = ctx;
    sim_request *r = &w->requests[e->index];
    fg_error err;
    fg_status status = fg_dispatch_start(w->dispatch, &r->job, &r->id, &err);
    r->started = status == FG_OK;
    if (status == FG_AGAIN || status == FG_PEER_LOST) {
        event later = *e; /* an honest client comes again */
        later.at_ns = w->time.now_ns + 100 * MS + below(w, 200 * MS);
        push_event(w, later);
    } else if (status != FG_OK) {
        r->refused = true;
    }
}

static void fire_cancel(void *ctx, const event *e)
{
    world *w = ctx;
    sim_request *r = &w->requests[e->index];
    if (r->started && !r->ended && !r->cancelled) {
        r->cancelled = true;
        fg_dispatch_cancel(w->dispatch, r->id, FG_FINISH_CANCELLED, NULL);
    }
}

/* Most prompts begin like another one; some are the same. */
static void draw_prompt(world *w, sim_request *r)
{
    uint32_t shared = 0;
    if (r->index > 0 && chance(w, 600)) {
        const sim_request *other = &w->requests[below(w, r->index)];
        shared = chance(w, 300) ? other->prompt_count : (uint32_t)below(w, other->prompt_count + 1);
        shared = shared < r->prompt_count ? shared : r->prompt_count;
        memcpy(r->tokens, other->tokens, shared * sizeof *r->tokens);
        if (shared == other->prompt_count && chance(w, 500)) {
            r->prompt_count = shared;
        }
    }
    for (uint32_t i = shared; i < r->prompt_count; i++) {
        r->tokens[i] = (uint32_t)below(w, VOCAB);
    }
    r->count = r->prompt_count;
}

static void make_request(world *w, uint32_t index)
{
    sim_request *r = &w->requests[index];
    r->world = w;
    r->index = index;
    r->prompt_count = 1 + (uint32_t)below(w, chance(w, 200) ? 300 : 60);
    uint32_t max_tokens = 1 + (uint32_t)below(w, 40);
    r->tokens = calloc(r->prompt_count + max_tokens, sizeof *r->tokens);
    FG_ASSERT(r->tokens != NULL);
    draw_prompt(w, r);
    r->job = (fg_dispatch_job){
        .tokens = r->tokens,
        .token_count = r->prompt_count,
        .params = { .temperature = chance(w, 500) ? 0.0f : 1.0f,
                    .top_p = 1.0f,
                    .seed = fg_rng_next(&w->rng) >> 1,
                    .max_tokens = max_tokens,
                    .want_digests = true,
                    .priority = (int32_t)below(w, 3) - 1,
                    .cache_mode = chance(w, 100) ? (uint32_t)below(w, 3) : FG_CACHE_AUTO,
                    .salt_low = chance(w, 100) ? 1 + below(w, 2) : 0,
                    .family = chance(w, 300) ? 1 + below(w, 3) : 0 },
        .sink = { .on_token = on_token, .on_end = on_end, .ctx = r },
    };
    uint64_t at = below(w, 600 * MS);
    push_event(w, (event){ .at_ns = at, .fire = fire_start, .index = index });
    if (chance(w, 200)) {
        push_event(
            w, (event){ .at_ns = at + below(w, 500 * MS), .fire = fire_cancel, .index = index });
    }
}

static void fire_clear(void *ctx, const event *e)
{
    world *w = ctx;
    fg_dispatch_clear_cache(w->dispatch);
    if (!w->quiet) {
        event next = *e;
        next.at_ns = w->time.now_ns + below(w, 1000 * MS);
        push_event(w, next);
    }
}

/* ---- faults ---- */

static void fire_restart(void *ctx, const event *e)
{
    world *w = ctx;
    sim_worker *s = &w->workers[e->index];
    if (!s->alive) {
        start_worker(w, s);
    }
}

static void flip_a_bit(world *w, sim_worker *s)
{
    /* A pinned block of a receiver was not checked yet: damage there must be found. A sender's pinned
     * blocks are its kept copy, which nothing checks; leave those alone. */
    if (s->roles != FG_ROLE_DECODE) {
        return;
    }
    for (int tries = 0; tries < 16; tries++) {
        uint32_t block = (uint32_t)below(w, s->block_count);
        const fg_pool *pool = fg_worker_pool(s->worker);
        if (fg_pool_is_pinned(pool, block) && !fg_pool_is_kept(pool, block)) {
            unsigned char *bytes = (unsigned char *)s->arena + block * w->layout.block_bytes;
            bytes[below(w, w->layout.block_bytes)] ^= (unsigned char)(1u << below(w, 8));
            if (w->options.verbose) {
                fprintf(stderr, "%12.6f flip %s block %u\n", (double)w->time.now_ns / 1e9, s->name,
                        block);
            }
            w->report.flips++;
            return;
        }
    }
}

static void fire_fault(void *ctx, const event *e)
{
    world *w = ctx;
    if (w->quiet) {
        return;
    }
    sim_worker *s = &w->workers[below(w, w->worker_count)];
    char identity[40];
    if (s->alive && s->frozen_until_ns <= w->time.now_ns) {
        switch (below(w, 8)) {
        case 0:
            w->report.crashes++;
            stop_worker(w, s);
            push_event(w, (event){ .at_ns = w->time.now_ns + below(w, 400 * MS),
                                   .fire = fire_restart,
                                   .index = s->index });
            break;
        case 1:
            w->report.freezes++;
            s->frozen_until_ns = w->time.now_ns + below(w, 900 * MS);
            break;
        case 2:
            w->report.cuts++;
            snprintf(identity, sizeof identity, "%s#%llu", s->name, (unsigned long long)s->epoch);
            fg_bus_hub_cut(w->bus_hub, identity);
            break;
        default:
            flip_a_bit(w, s);
            break;
        }
    }
    event next = *e;
    next.at_ns = w->time.now_ns + 5 * MS + below(w, 150 * MS);
    push_event(w, next);
}

/* ---- a whole run ---- */

static void build_cluster(world *w)
{
    static const struct {
        uint32_t count;
        uint32_t roles[WORKERS_MAX];
    } shapes[] = {
        { 1, { FG_ROLE_PREFILL | FG_ROLE_DECODE } },
        { 2, { FG_ROLE_PREFILL, FG_ROLE_DECODE } },
        { 3, { FG_ROLE_PREFILL, FG_ROLE_DECODE, FG_ROLE_DECODE } },
        { 4, { FG_ROLE_PREFILL, FG_ROLE_PREFILL, FG_ROLE_DECODE, FG_ROLE_DECODE } },
        { 3, { FG_ROLE_PREFILL, FG_ROLE_PREFILL | FG_ROLE_DECODE, FG_ROLE_DECODE } },
    };
    size_t shape = below(w, sizeof shapes / sizeof *shapes);
    w->worker_count = shapes[shape].count;
    for (uint32_t i = 0; i < w->worker_count; i++) {
        sim_worker *s = &w->workers[i];
        s->world = w;
        s->index = i;
        s->roles = shapes[shape].roles[i];
        s->block_count = 30 + (uint32_t)below(w, 100);
        snprintf(s->name, sizeof s->name, "w%u", i);
        push_event(w, (event){ .at_ns = below(w, 100 * MS), .fire = fire_restart, .index = i });
        push_event(w, (event){ .at_ns = below(w, TICK_NS), .fire = fire_tick, .index = i });
        push_event(w, (event){ .at_ns = below(w, TICK_NS), .fire = fire_engine, .index = i });
    }
}

static void open_world(world *w, const sim_options *options)
{
    fg_error err;
    w->options = *options;
    w->rng.state = options->seed;
    fg_timeline_init(&w->time, EVENTS_MAX, w);
    fg_status status = fg_kv_layout_init(&w->layout, 2, 1, 8, 4, FG_F16, &err);
    FG_ASSERT(status == FG_OK, "%s", err.text);
    fg_bus_hub_options bus = { .defer = defer_frame, .ctx = w };
    fg_link_hub_options link = { .defer = defer_link, .ctx = w };
    status = fg_bus_hub_create(&bus, &w->bus_hub, &err);
    FG_ASSERT(status == FG_OK, "%s", err.text);
    w->link_hub = fg_link_hub_create(&link);
    FG_ASSERT(w->link_hub != NULL);
    fg_bus_events events = {
        .on_up = router_up, .on_frame = router_frame, .on_down = router_down, .ctx = w
    };
    status = fg_bus_listen_mem(w->bus_hub, &events, &w->router_bus, &err);
    FG_ASSERT(status == FG_OK, "%s", err.text);
    fg_place_options place = fg_place_defaults();
    place.policy = (fg_place_policy)below(w, FG_PLACE_TWO_CHOICES + 1);
    place.split = (fg_place_split)below(w, FG_PLACE_UNSPLIT + 1);
    fg_dispatch_options dispatch = {
        .place = place,
        .residency_bytes = 1 << 20,
        .clock = fg_clock_manual(&w->time.now_ns),
        .fingerprint = { 11, 22 },
        .router_epoch = options->seed,
        .cache_key = { options->seed, 77 },
        .lease_ms = LEASE_MS,
        .limits = { .queued_max = 24, .queued_tokens_max = 100000, .live_max = 1000 },
        .send = router_send,
        .drop = router_drop,
        .ctx = w,
    };
    status = fg_dispatch_create(&dispatch, &w->dispatch, &err);
    FG_ASSERT(status == FG_OK, "%s", err.text);
    push_event(w, (event){ .at_ns = 0, .fire = fire_router_tick, .index = UINT32_MAX });
    build_cluster(w);
    w->request_count = 4 + (uint32_t)below(w, REQUESTS_MAX - 4);
    for (uint32_t i = 0; i < w->request_count; i++) {
        make_request(w, i);
    }
    push_event(w, (event){ .at_ns = below(w, 2000 * MS), .fire = fire_clear, .index = UINT32_MAX });
    if (options->faults) {
        push_event(w, (event){ .at_ns = 50 * MS, .fire = fire_fault, .index = UINT32_MAX });
    }
}

static void check_books(const world *w)
{
    fg_dispatch_check(w->dispatch);
    if (w->report.events % 64 == 0) {
        fg_residency_check(fg_dispatch_residency(w->dispatch));
    }
    for (uint32_t i = 0; i < w->worker_count; i++) {
        if (w->workers[i].alive) {
            fg_worker_check(w->workers[i].worker);
            FG_ASSERT(fg_engine_sim_bad_slots(w->workers[i].engine) == 0,
                      "worker %u read KV that was never written", i);
        }
    }
}

/* Every request has ended, and every pool is as it was at first. */
static bool at_rest(const world *w)
{
    for (uint32_t i = 0; i < w->request_count; i++) {
        const sim_request *r = &w->requests[i];
        if (!r->ended && !r->cancelled && !r->refused) {
            return false;
        }
    }
    for (uint32_t i = 0; i < w->worker_count; i++) {
        fg_worker_stats stats;
        if (!w->workers[i].alive || !fg_worker_joined(w->workers[i].worker)) {
            return false;
        }
        fg_worker_stats_get(w->workers[i].worker, &stats);
        if (stats.pool.free + stats.pool.cached != stats.pool.total || stats.pool.promised != 0 ||
            stats.closing != 0) {
            return false;
        }
    }
    return true;
}

static void describe(const world *w)
{
    fg_buf state;
    fg_buf_init(&state, 0);
    fg_dispatch_render_state(w->dispatch, &state);
    fprintf(stderr, "%s\n", state.data);
    fg_buf_deinit(&state);
    for (uint32_t i = 0; i < w->worker_count; i++) {
        fg_worker_stats s;
        if (!w->workers[i].alive) {
            fprintf(stderr, "  %s: dead\n", w->workers[i].name);
            continue;
        }
        fg_worker_stats_get(w->workers[i].worker, &s);
        fprintf(stderr,
                "  %s: joined=%d free=%u cached=%u/%u held=%u pinned=%u quarantined=%u running=%u "
                "waiting=%u closing=%u\n",
                w->workers[i].name, fg_worker_joined(w->workers[i].worker), s.pool.free,
                s.pool.cached, s.pool.total, s.pool.held, s.pool.pinned, s.pool.quarantined,
                s.running, s.waiting, s.closing);
    }
    for (uint32_t i = 0; i < w->request_count; i++) {
        const sim_request *r = &w->requests[i];
        if (!r->ended && !r->cancelled && !r->refused) {
            fprintf(stderr, "  request %u: started=%d tokens=%u\n", i, r->started,
                    r->count - r->prompt_count);
        }
    }
}

static void close_world(world *w)
{
    for (uint32_t i = 0; i < w->worker_count; i++) {
        if (w->workers[i].alive) {
            stop_worker(w, &w->workers[i]);
        }
    }
    fg_dispatch_destroy(w->dispatch);
    fg_bus_close(w->router_bus);
    fg_timeline_deinit(&w->time);
    fg_bus_hub_destroy(w->bus_hub);
    fg_link_hub_destroy(w->link_hub);
    for (uint32_t i = 0; i < w->request_count; i++) {
        free(w->requests[i].tokens);
    }
}

static void count_up(world *w)
{
    fg_dispatch_stats stats;
    fg_dispatch_stats_get(w->dispatch, &stats);
    w->report.requests = w->request_count;
    for (uint32_t i = 0; i < w->request_count; i++) {
        const sim_request *r = &w->requests[i];
        w->report.refused += r->refused;
        w->report.cancelled += r->cancelled;
        w->report.failed += r->ended && r->finish == FG_FINISH_ERROR;
        w->report.finished += r->ended && r->finish != FG_FINISH_ERROR;
    }
    w->report.push_retries = stats.push_retries;
    w->report.stale_dropped = stats.stale_dropped;
    w->report.retried = stats.retried;
    w->report.simulated_s = (double)w->time.now_ns / 1e9;
}

void sim_run(const sim_options *options, sim_report *report_out)
{
    static world state; /* too large for a stack */
    world *w = &state;
    memset(w, 0, sizeof *w);
    open_world(w, options);
    uint64_t faults_until = 1500 * MS, limit = 30000 * MS;
    while (!(w->time.now_ns > faults_until && at_rest(w))) {
        w->quiet = fg_timeline_next_ns(&w->time) > faults_until;
        if (w->time.now_ns > limit) {
            describe(w);
            FG_ASSERT(false, "not at rest after %llu simulated seconds",
                      (unsigned long long)(limit / (1000 * MS)));
        }
        fg_timeline_step(&w->time);
        w->report.events++;
        check_books(w);
    }
    count_up(w);
    close_world(w);
    *report_out = w->report;
}
