#include <stdio.h>
#include <stdlib.h>

#include "common/base/hash.h"
#include "common/base/fault.h"
#include "common/engine/engine_sim.h"
#include "decode-worker/decode.h"
#include "prefill-worker/prefill.h"
#include "tests/sim/world_internal.h"

enum { CONTEXT_MAX = 512 };

static void fire_engine(void *ctx, const sim_event *e);

/* The engine was given work: it ends some time later. */
static void watch_engine(sim_worker *s)
{
    if (s->alive && !s->engine_due && fg_engine_sim_due_ns(s->engine) != UINT64_MAX) {
        s->engine_due = true;
        sim_push(s->world, &(sim_event){ .at_ns = sim_now(s->world) + SIM_MS / 2 +
                                                  sim_below(&s->ticks, s->step_ns),
                                         .fire = fire_engine,
                                         .arg = (void *)(uintptr_t)s->life,
                                         .index = s->index });
    }
}

static void enter(sim_worker *s)
{
    sim_enter(s->world, &s->process);
}

static void leave(sim_worker *s)
{
    sim_leave(s->world, &s->process);
    watch_engine(s);
}

/* ---- what a worker hears ---- */

static void link_commit(void *ctx, const fg_link_commit *commit)
{
    sim_worker *s = ctx;
    sim_note(s->world, s->process.name, "commit", "ticket=%llu blocks=%u",
             (unsigned long long)commit->ticket, commit->block_count);
    enter(s);
    s->link_events.on_commit(s->link_events.ctx, commit);
    leave(s);
}

static void link_fenced(void *ctx, uint64_t ticket)
{
    sim_worker *s = ctx;
    sim_note(s->world, s->process.name, "fenced", "ticket=%llu", (unsigned long long)ticket);
    enter(s);
    s->link_events.on_fenced(s->link_events.ctx, ticket);
    leave(s);
}

static void link_answer(void *ctx, uint64_t ticket, const uint32_t *bad, uint32_t bad_count)
{
    sim_worker *s = ctx;
    sim_note(s->world, s->process.name, "answer", "ticket=%llu bad=%u", (unsigned long long)ticket,
             bad_count);
    enter(s);
    s->link_events.on_answer(s->link_events.ctx, ticket, bad, bad_count);
    leave(s);
}

static void link_drained(void *ctx, uint64_t ticket, fg_status why)
{
    sim_worker *s = ctx;
    sim_note(s->world, s->process.name, "drained", "ticket=%llu why=%s", (unsigned long long)ticket,
             fg_status_name(why));
    enter(s);
    s->link_events.on_drained(s->link_events.ctx, ticket, why);
    leave(s);
}

static void bus_up(void *ctx, uint32_t peer, const char *identity)
{
    const sim_door *door = ctx;
    sim_worker *s = door->worker;
    sim_note(s->world, s->process.name, "up", "epoch=%llu", (unsigned long long)door->epoch);
    enter(s);
    fg_worker_on_up(s->worker, door->router);
    leave(s);
}

static void bus_frame(void *ctx, uint32_t peer, const void *bytes, size_t size_bytes)
{
    const sim_door *door = ctx;
    sim_worker *s = door->worker;
    sim_note_frame(s->world, s->process.name, "got", s->world->routers[door->router].process.name,
                   bytes, size_bytes);
    enter(s);
    fg_worker_on_frame(s->worker, door->router, bytes, size_bytes);
    leave(s);
}

static void bus_down(void *ctx, uint32_t peer)
{
    const sim_door *door = ctx;
    sim_worker *s = door->worker;
    sim_note(s->world, s->process.name, "down", "epoch=%llu", (unsigned long long)door->epoch);
    enter(s);
    fg_worker_on_down(s->worker, door->router);
    leave(s);
}

static fg_status worker_send(void *ctx, uint32_t router, const void *bytes, size_t size_bytes)
{
    sim_worker *s = ctx;
    sim_note_frame(s->world, s->process.name, "sends", s->world->routers[router].process.name,
                   bytes, size_bytes);
    return sim_queue_full(s->world, s, SIM_TO_SERVER)
               ? FG_AGAIN
               : fg_bus_send(s->doors[router].bus, 0, bytes, size_bytes);
}

static void connect_bus(sim_door *door)
{
    sim_worker *s = door->worker;
    char identity[40];
    snprintf(identity, sizeof identity, "%s#%llu", s->process.name,
             (unsigned long long)door->epoch);
    fg_bus_events events = {
        .on_up = bus_up, .on_frame = bus_frame, .on_down = bus_down, .ctx = door
    };
    fg_error err;
    fg_status status = fg_bus_connect_mem(s->world->routers[door->router].hub, identity, &events,
                                          &door->bus, &err);
    FG_ASSERT(status == FG_OK, "%s", err.text);
}

static void worker_reconnect(void *ctx, uint32_t router, uint64_t epoch)
{
    sim_door *door = &((sim_worker *)ctx)->doors[router];
    uint64_t left = fg_fault_hold(); /* the network's memory is not the worker's */
    fg_bus_close(door->bus);
    door->epoch = epoch;
    connect_bus(door);
    fg_fault_resume(left);
}

static bool worker_is_end(void *ctx, uint32_t token)
{
    return token == SIM_EOS;
}

/* ---- a process ---- */

/* Any way of scheduling gives the same answers. */
static fg_sched_limits draw_limits(fg_rng *rng, const sim_worker *s)
{
    return (fg_sched_limits){ .step_tokens_max = 8 + (uint32_t)sim_below(rng, 60),
                              .chunk_tokens_max = 1 + (uint32_t)sim_below(rng, 24),
                              .seqs_max = 2 + (uint32_t)sim_below(rng, 6),
                              .block_size = s->world->layout.block_size,
                              .order = (fg_sched_order)sim_below(rng, 2),
                              .victim = (fg_sched_victim)sim_below(rng, 3),
                              .preemption = (fg_sched_preemption)sim_below(rng, 3),
                              .admission = (fg_sched_admission)(sim_below(rng, 4) == 0),
                              .watermark_blocks = (uint32_t)sim_below(rng, 1 + s->block_count / 10),
                              .skip_max = (uint32_t)sim_below(rng, 3),
                              .draft = (fg_sched_draft)sim_below(rng, 3),
                              .draft_max = (uint32_t)sim_below(rng, 1 + FG_LOOKAHEAD_MAX),
                              .step_target_ns = sim_below(rng, 2) * SIM_MS };
}

/* Half of the workers have a second tier, a small one. Returns its slots. */
static uint32_t open_tier(sim_worker *s, fg_rng *rng)
{
    fg_error err;
    uint32_t slots = sim_chance(rng, 500) ? 0 : 1 + (uint32_t)sim_below(rng, 60);
    fg_tier_options tier = { .block_bytes = s->world->layout.block_bytes,
                             .block_count = slots,
                             .block_size = s->world->layout.block_size };
    fg_status status = slots == 0 ? FG_OK : fg_tier_open(&tier, &s->tier, &err);
    FG_ASSERT(status == FG_OK, "%s", err.text);
    return slots;
}

static void open_arena(sim_worker *s)
{
    sim_world *w = s->world;
    bool linked = s->roles != (FG_ROLE_PREFILL | FG_ROLE_DECODE) || w->worker_count > 1;
    if (!linked) {
        s->arena = calloc(s->block_count, w->layout.block_bytes);
        FG_ASSERT(s->arena != NULL);
        return;
    }
    fg_error err;
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
        fg_link_open_mem(w->link_hub, s->process.name, s->life * 1000, &options, &s->link, &err);
    FG_ASSERT(status == FG_OK, "%s", err.text);
    s->arena = fg_link_arena(s->link);
}

static void open_engine(sim_worker *s, const fg_sched_limits *limits, uint32_t slots)
{
    fg_error err;
    fg_engine_sim_options engine = { .layout = s->world->layout,
                                     .arena = s->arena,
                                     .block_count = s->block_count,
                                     .tier_arena = slots == 0 ? NULL : fg_tier_arena(s->tier),
                                     .tier_block_count = slots,
                                     .limits = { .step_tokens_max = limits->step_tokens_max,
                                                 .step_seqs_max = limits->seqs_max,
                                                 .context_max = CONTEXT_MAX },
                                     .vocab_size = s->world->vocab_size,
                                     .eos_token = SIM_EOS,
                                     .draft_ns = 20000,
                                     .manual = true };
    /* Beside what a life draws otherwise, so that old seeds are the same worlds. */
    uint64_t drawn = fg_hash_mix(s->world->options.seed ^ s->index ^ (s->life * 1000) << 8);
    s->draft = drawn % 5 < 2 ? fg_sim_draft_open(&engine, drawn) : NULL;
    engine.drafter = fg_sim_draft_drafter(s->draft);
    fg_status status = fg_engine_open_sim(&engine, &s->engine, &err);
    FG_ASSERT(status == FG_OK, "%s", err.text);
}

void sim_start_worker(sim_world *w, sim_worker *s)
{
    s->life++;
    s->alive = true;
    s->draining = false;
    s->engine_due = false;
    s->process.clock_ns = sim_now(w);
    s->process.frozen_until_ns = 0;
    s->process.halted_until_ns = 0;
    s->process.fail_nth = 0;
    fg_rng rng = sim_rng(w, SIM_STREAM_WORKER, s->index, s->life);
    open_arena(s);
    fg_sched_limits limits = draw_limits(&rng, s);
    uint32_t slots = open_tier(s, &rng);
    open_engine(s, &limits, slots);
    fg_worker_options options = { .name = s->process.name,
                                  .epoch = s->life * 1000,
                                  .router_count = w->router_count,
                                  .roles = s->roles,
                                  .clock = fg_clock_manual(&s->process.clock_ns),
                                  .engine = s->engine,
                                  .link = s->link,
                                  .layout = w->layout,
                                  .block_count = s->block_count,
                                  .context_max = CONTEXT_MAX,
                                  .vocab_size = s->world->vocab_size,
                                  .embedding_length = FG_ENGINE_SIM_EMBEDDING,
                                  .draft_context = fg_sim_draft_context(s->draft),
                                  .draft_alone = s->index % 2 == 0,
                                  .limits = limits,
                                  .overlap = sim_chance(&rng, 500),
                                  .prefix_cache = !sim_chance(&rng, 150),
                                  .local_prefill_max =
                                      sim_chance(&rng, 400) ? 0 : (uint32_t)sim_below(&rng, 40),
                                  .tier = s->tier,
                                  .fingerprint = { 11, 22 },
                                  .pid = s->life,
                                  .prefill = fg_prefill_policy(),
                                  .decode = fg_decode_policy(),
                                  .is_end = worker_is_end,
                                  .send = worker_send,
                                  .reconnect = worker_reconnect,
                                  .ctx = s };
    fg_error err;
    options.zero_copy = sim_chance(&rng, 500);
    s->step_ns = sim_chance(&rng, 250) ? 60 * SIM_MS : 4 * SIM_MS;
    options.flight = s->flight = sim_open_worker_flight(w, &options);
    fg_status status = fg_worker_create(&options, &s->worker, &err);
    FG_ASSERT(status == FG_OK, "%s", err.text);
    s->link_events = fg_worker_link_events(s->worker);
    for (uint32_t i = 0; i < w->router_count; i++) {
        s->doors[i] = (sim_door){ .worker = s, .router = i, .epoch = s->life * 1000 + i };
        connect_bus(&s->doors[i]);
    }
    sim_note(w, s->process.name, "starts",
             "roles=%u blocks=%u slots=%u seqs=%u overlap=%d cache=%d", s->roles, s->block_count,
             slots, limits.seqs_max, options.overlap, options.prefix_cache);
}

void sim_stop_worker(sim_world *w, sim_worker *s)
{
    s->alive = false;
    s->process.frozen_until_ns = 0;
    for (uint32_t i = 0; i < w->router_count; i++) {
        fg_bus_close(s->doors[i].bus);
        s->doors[i].bus = NULL;
    }
    fg_worker_stats stats;
    fg_worker_stats_get(s->worker, &stats);
    w->report->hit_tokens += stats.cache_hit_tokens;
    w->report->preemptions += stats.preemptions;
    w->report->swapped += stats.swapped_blocks;
    w->report->forks += stats.forks;
    w->report->drafted += stats.drafted_tokens;
    w->report->accepted += stats.accepted_tokens;
    w->report->remapped += stats.remapped_blocks;
    w->report->direct += stats.direct_blocks;
    fg_engine_close(s->engine);
    fg_sim_draft_close(s->draft);
    s->draft = NULL;
    fg_worker_destroy(s->worker);
    sim_close_flight(w, s->flight);
    s->flight = NULL;
    fg_tier_close(s->tier);
    s->tier = NULL;
    if (s->link != NULL) {
        fg_link_hub_kill(w->link_hub, s->process.name, s->life * 1000);
        fg_link_close(s->link);
        s->link = NULL;
    } else {
        free(s->arena);
    }
    s->engine = NULL;
    s->worker = NULL;
    sim_note(w, s->process.name, "gone", "life=%llu", (unsigned long long)s->life);
}

/* ---- its turns ---- */

static void fire_tick(void *ctx, const sim_event *e)
{
    sim_world *w = ctx;
    sim_worker *s = &w->workers[e->index];
    if (s->alive && s->process.frozen_until_ns <= sim_now(w)) {
        enter(s);
        if (s->link != NULL) {
            fg_link_progress(s->link);
        }
        fg_worker_tick(s->worker);
        leave(s);
    }
    sim_event next = *e;
    next.at_ns = sim_now(w) + SIM_TICK_NS / 2 + sim_below(&s->ticks, SIM_TICK_NS);
    sim_push(w, &next);
}

static void fire_engine(void *ctx, const sim_event *e)
{
    sim_world *w = ctx;
    sim_worker *s = &w->workers[e->index];
    if (!s->alive || s->life != (uintptr_t)e->arg || sim_postponed(w, e)) {
        return;
    }
    s->engine_due = false;
    bool ended = fg_engine_sim_complete(s->engine);
    FG_ASSERT(ended);
    w->progress_ns = sim_now(w);
    sim_note(w, s->process.name, "step", "%s", "");
    enter(s);
    fg_worker_on_engine(s->worker);
    leave(s);
}

static void fire_start(void *ctx, const sim_event *e)
{
    sim_world *w = ctx;
    if (!w->workers[e->index].alive) {
        sim_start_worker(w, &w->workers[e->index]);
    }
}

/* Without some of its workers a cluster still has both phases: the last one left takes the missing. */
static void cut_down(sim_world *w, uint32_t count)
{
    uint32_t both = FG_ROLE_PREFILL | FG_ROLE_DECODE, have = 0;
    for (uint32_t i = 0; i < count; i++) {
        have |= w->workers[i].roles;
    }
    if (have != both) {
        sim_worker *last = &w->workers[count - 1];
        last->roles = count == 1 ? both : both & ~have;
    }
    w->worker_count = count;
}

void sim_build_cluster(sim_world *w)
{
    static const struct {
        uint32_t count;
        uint32_t roles[FG_SIM_WORKERS_MAX];
    } shapes[] = {
        { 1, { FG_ROLE_PREFILL | FG_ROLE_DECODE } },
        { 2, { FG_ROLE_PREFILL, FG_ROLE_DECODE } },
        { 3, { FG_ROLE_PREFILL, FG_ROLE_DECODE, FG_ROLE_DECODE } },
        { 4, { FG_ROLE_PREFILL, FG_ROLE_PREFILL, FG_ROLE_DECODE, FG_ROLE_DECODE } },
        { 3, { FG_ROLE_PREFILL, FG_ROLE_PREFILL | FG_ROLE_DECODE, FG_ROLE_DECODE } },
        { 2, { FG_ROLE_PREFILL | FG_ROLE_DECODE, FG_ROLE_PREFILL | FG_ROLE_DECODE } },
        { 3,
          { FG_ROLE_PREFILL | FG_ROLE_DECODE, FG_ROLE_PREFILL | FG_ROLE_DECODE,
            FG_ROLE_PREFILL | FG_ROLE_DECODE } },
    };
    fg_rng rng = sim_rng(w, SIM_STREAM_SHAPE, 0, 0);
    size_t shape = sim_below(&rng, sizeof shapes / sizeof *shapes);
    w->worker_count = shapes[shape].count;
    w->burst = sim_chance(&rng, 200);
    for (uint32_t i = 0; i < w->worker_count; i++) {
        sim_worker *s = &w->workers[i];
        s->world = w;
        s->index = i;
        s->roles = shapes[shape].roles[i];
        s->block_count = 30 + (uint32_t)sim_below(&rng, w->burst ? 15 : 100);
        snprintf(s->process.name, sizeof s->process.name, "w%u", i);
        s->ticks = sim_rng(w, SIM_STREAM_TICKS, i, 0);
        s->copies = sim_rng(w, SIM_STREAM_COPIES, i, 0);
        for (uint32_t way = 0; way < SIM_WAYS; way++) {
            s->frames[way] = sim_rng(w, (sim_stream)(SIM_STREAM_FRAMES + way), i, 0);
        }
    }
    if (w->options.workers_max < w->worker_count) {
        cut_down(w, w->options.workers_max);
    }
    for (uint32_t i = 0; i < w->worker_count; i++) {
        fg_rng *ticks = &w->workers[i].ticks;
        uint64_t at = sim_below(ticks, 100 * SIM_MS);
        sim_push(w, &(sim_event){ .at_ns = at, .fire = fire_start, .index = i });
        at = sim_below(ticks, SIM_TICK_NS);
        sim_push(w, &(sim_event){ .at_ns = at, .fire = fire_tick, .index = i });
    }
}
