#include "tests/sim/fleet.h"

#include <stdio.h>
#include <string.h>

#include "common/base/dtype.h"
#include "common/base/limits.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/engine/engine_sim.h"
#include "common/link/link.h"
#include "common/net/bus.h"
#include "common/worker/worker.h"
#include "decode-worker/decode.h"
#include "prefill-worker/prefill.h"
#include "router/dispatch.h"
#include "tests/sim/timeline.h"

/* The beats are those of cli/host_worker.c, cli/host_router.c and cli/pulse.c. */
enum {
    VOCAB = 32000,
    TICK_BUSY_MS = 10,
    TICK_IDLE_MS = 100,
    ROUTER_TICK_MS = 20,
    QUIET_BEATS_MAX = 8,
    LEASE_MS = 2000,
    PROGRESS_EVERY = 64, /* ends */
    EVENTS_MAX = 1 << 24,
};
#define MS              1000000ull
#define JOIN_LIMIT_NS   (60000 * MS)
#define SAMPLE_FIRST_NS (250 * MS)

typedef struct fleet fleet;

typedef struct node {
    fleet *fleet;
    char name[16];
    fg_fleet_role role;
    uint32_t roles;
    bool fast, stepping;
    uint32_t quiet_beats;
    uint64_t beat; /* only the beat of this number counts */
    uint64_t wire_free_ns;
    uint64_t busy_seen_ns; /* by the last sample */
    fg_bus *bus;
    fg_link *link;
    fg_engine *engine;
    fg_worker *worker;
    fg_link_events link_events;
} node;

/* What a hub wants done later. */
typedef struct parcel {
    fleet *fleet;
    struct parcel *next; /* among the free ones */
    node *from, *to;     /* NULL: the router */
    void (*run)(void *arg);
    void (*end)(void *arg);
    void *arg;
} parcel;

typedef struct live {
    fleet *fleet;
    uint32_t index;
    uint64_t last_ns;
    uint32_t *tokens;
    struct live *next, **place; /* among all that are under way */
} live;

struct fleet {
    const fg_fleet_options *options;
    fg_fleet_setup setup;
    fg_timeline timeline;
    fg_rng rng;
    fg_bus_hub *bus_hub;
    fg_link_hub *link_hub;
    fg_bus *router_bus;
    fg_dispatch *dispatch;
    fg_kv_layout layout;
    node *nodes;
    uint32_t node_count;
    parcel *free_parcels;
    live *lives;
    uint64_t push_ns, message_ns;
    uint64_t zero_ns; /* when the first request comes */
    bool began;
    uint64_t sample_ns, busy_before[FG_FLEET_ROLES];
    uint32_t ended;
    uint64_t last_end_ns;
    fg_fleet_result *result;
    fg_status broken;
    fg_error *err;
};

/* ---- time ---- */

static void push(fleet *f, uint64_t at_ns, fg_timeline_fire *fire, uint64_t index)
{
    fg_timeline_event event = { .at_ns = at_ns, .fire = fire, .index = index };
    if (fg_timeline_push(&f->timeline, &event) != FG_OK && f->broken == FG_OK) {
        f->broken = fg_fail(f->err, FG_AGAIN, "out of memory for the simulated future");
    }
}

static void fire_engine(void *ctx, const fg_timeline_event *event);

/* Whatever has reached a worker may have moved its link and begun a step. */
static void settle(node *n)
{
    fleet *f = n->fleet;
    if (n->link != NULL) {
        fg_link_progress(n->link);
    }
    uint64_t due_ns = n->stepping ? UINT64_MAX : fg_engine_sim_due_ns(n->engine);
    if (due_ns != UINT64_MAX) {
        n->stepping = true;
        push(f, f->timeline.now_ns + due_ns, fire_engine, (uint64_t)(n - f->nodes));
    }
}

static void fire_engine(void *ctx, const fg_timeline_event *event)
{
    node *n = &((fleet *)ctx)->nodes[event->index];
    n->stepping = false;
    bool ended = fg_engine_sim_complete(n->engine);
    FG_ASSERT(ended);
    fg_worker_on_engine(n->worker);
    settle(n);
}

static bool has_work(node *n)
{
    fg_worker_stats stats;
    fg_worker_stats_get(n->worker, &stats);
    return stats.running + stats.waiting + stats.closing > 0;
}

static void fire_beat(void *ctx, const fg_timeline_event *event)
{
    fleet *f = ctx;
    node *n = &f->nodes[(uint32_t)event->index];
    if (event->index >> 32 != (uint32_t)n->beat) {
        return;
    }
    fg_worker_tick(n->worker);
    settle(n);
    n->quiet_beats = has_work(n) ? 0 : n->quiet_beats + 1;
    n->fast = n->quiet_beats <= QUIET_BEATS_MAX;
    push(f, f->timeline.now_ns + (n->fast ? TICK_BUSY_MS : TICK_IDLE_MS) * MS, fire_beat,
         event->index);
}

/* Something has arrived: beat fast from now on. */
static void quicken(node *n)
{
    fleet *f = n->fleet;
    n->quiet_beats = 0;
    if (!n->fast) {
        n->fast = true;
        n->beat++;
        push(f, f->timeline.now_ns + TICK_BUSY_MS * MS, fire_beat,
             (uint64_t)(n - f->nodes) | (uint64_t)(uint32_t)n->beat << 32);
    }
}

/* ---- hubs ---- */

static node *node_named(fleet *f, const char *name)
{
    /* "w17" or "w17#1"; the router's name is another. */
    uint32_t index = 0;
    if (name[0] != 'w') {
        return NULL;
    }
    for (name++; *name >= '0' && *name <= '9'; name++) {
        index = index * 10 + (uint32_t)(*name - '0');
    }
    return (*name == '\0' || *name == '#') && index < f->node_count ? &f->nodes[index] : NULL;
}

static void free_parcel(fleet *f, parcel *p)
{
    p->next = f->free_parcels;
    f->free_parcels = p;
}

static void fire_frame(void *ctx, const fg_timeline_event *event)
{
    parcel *p = event->arg;
    p->run(p->arg);
    p->end(p->arg);
    if (p->to != NULL) {
        quicken(p->to);
        settle(p->to);
    }
    free_parcel(ctx, p);
}

static void fire_item(void *ctx, const fg_timeline_event *event)
{
    parcel *p = event->arg;
    p->run(p->arg);
    if (p->to != NULL) {
        settle(p->to);
    }
    if (p->from != NULL && p->from != p->to) {
        settle(p->from);
    }
    free_parcel(ctx, p);
}

static void drop_parcel(void *arg)
{
    parcel *p = arg;
    p->end(p->arg);
    free_parcel(p->fleet, p);
}

static void send(fleet *f, uint64_t at_ns, fg_timeline_fire *fire, const parcel *given)
{
    parcel *p = f->free_parcels;
    if (p != NULL) {
        f->free_parcels = p->next;
    } else {
        p = fg_mem_alloc(sizeof *p);
    }
    if (p != NULL) {
        *p = *given;
        fg_timeline_event event = { .at_ns = at_ns, .fire = fire, .drop = drop_parcel, .arg = p };
        if (fg_timeline_push(&f->timeline, &event) == FG_OK) {
            return;
        }
        free_parcel(f, p);
    }
    f->broken = fg_fail(f->err, FG_AGAIN, "out of memory for the simulated network");
    given->end(given->arg);
}

/* One time for all: so frames between two ends stay in order. */
static void defer_frame(void *ctx, const char *from, const char *to, void (*run)(void *arg),
                        void (*free_arg)(void *arg), void *arg)
{
    fleet *f = ctx;
    parcel p = { .fleet = f, .to = node_named(f, to), .run = run, .end = free_arg, .arg = arg };
    send(f, f->timeline.now_ns + f->message_ns, fire_frame, &p);
}

/* Blocks leave a sender one after the other. A receiver sends nothing but words. */
static void defer_item(void *ctx, const char *from, const char *to, void (*run)(void *arg),
                       void (*drop)(void *arg), void *arg)
{
    fleet *f = ctx;
    parcel p = { .fleet = f,
                 .from = node_named(f, from),
                 .to = node_named(f, to),
                 .run = run,
                 .end = drop,
                 .arg = arg };
    uint64_t now = f->timeline.now_ns, at = now;
    if (p.from != NULL && (p.from->roles & FG_ROLE_PREFILL)) {
        uint64_t begin = p.from->wire_free_ns > now ? p.from->wire_free_ns : now;
        at = p.from->wire_free_ns = begin + f->push_ns;
    }
    send(f, at + f->message_ns, fire_item, &p);
}

/* ---- workers ---- */

static void link_commit(void *ctx, const fg_link_commit *commit)
{
    node *n = ctx;
    n->link_events.on_commit(n->link_events.ctx, commit);
}

static void link_fenced(void *ctx, uint64_t ticket)
{
    node *n = ctx;
    n->link_events.on_fenced(n->link_events.ctx, ticket);
}

static void link_answer(void *ctx, uint64_t ticket, const uint32_t *bad, uint32_t bad_count)
{
    node *n = ctx;
    n->link_events.on_answer(n->link_events.ctx, ticket, bad, bad_count);
}

static void link_drained(void *ctx, uint64_t ticket, fg_status why)
{
    node *n = ctx;
    n->link_events.on_drained(n->link_events.ctx, ticket, why);
}

static void bus_up(void *ctx, uint32_t peer, const char *identity)
{
    fg_worker_on_up(((node *)ctx)->worker);
}

static void bus_frame(void *ctx, uint32_t peer, const void *bytes, size_t size_bytes)
{
    fg_worker_on_frame(((node *)ctx)->worker, bytes, size_bytes);
}

static void bus_down(void *ctx, uint32_t peer)
{
    fg_worker_on_down(((node *)ctx)->worker);
}

static fg_status worker_send(void *ctx, const void *bytes, size_t size_bytes)
{
    return fg_bus_send(((node *)ctx)->bus, 0, bytes, size_bytes);
}

static fg_status connect_bus(node *n, uint64_t epoch, fg_error *err)
{
    char identity[48];
    snprintf(identity, sizeof identity, "%s#%llu", n->name, (unsigned long long)epoch);
    fg_bus_events events = {
        .on_up = bus_up, .on_frame = bus_frame, .on_down = bus_down, .ctx = n
    };
    return fg_bus_connect_mem(n->fleet->bus_hub, identity, &events, &n->bus, err);
}

static void worker_reconnect(void *ctx, uint64_t epoch)
{
    node *n = ctx;
    fg_bus_close(n->bus);
    n->bus = NULL;
    fg_status status = connect_bus(n, epoch, n->fleet->err);
    n->fleet->broken = status != FG_OK ? status : n->fleet->broken;
}

static bool worker_is_end(void *ctx, uint32_t token)
{
    return false; /* the trace says how long an answer is */
}

static uint64_t step_time(void *ctx, const fg_step *step)
{
    return fg_steptable_step_ns(((node *)ctx)->fleet->options->steps, step);
}

static fg_sched_limits limits_of(const fg_fleet_setup *setup)
{
    return (fg_sched_limits){ .step_tokens_max = setup->max_batch_tokens,
                              .chunk_tokens_max = setup->prefill_chunk_size,
                              .seqs_max = setup->max_seqs,
                              .block_size = setup->block_size,
                              .order = FG_DECODE_FIRST,
                              .victim = FG_VICTIM_FEWEST_OUTPUT,
                              .preemption = FG_PREEMPT_AUTO,
                              .admission = FG_ADMIT_WATERMARK,
                              .watermark_blocks = setup->kv_blocks / 100,
                              .step_target_ns = setup->step_ms * MS };
}

static uint32_t context_of(const fg_fleet_setup *setup)
{
    uint64_t slots = (uint64_t)setup->kv_blocks * setup->block_size;
    return slots < FG_LIMIT_CONTEXT_TOKENS ? (uint32_t)slots : FG_LIMIT_CONTEXT_TOKENS;
}

static fg_status open_link(node *n, fg_error *err)
{
    fleet *f = n->fleet;
    fg_link_options options = { .block_bytes = f->layout.block_bytes,
                                .block_count = f->setup.kv_blocks,
                                .transport = "auto",
                                .host = "",
                                .events = { .on_commit = link_commit,
                                            .on_fenced = link_fenced,
                                            .on_answer = link_answer,
                                            .on_drained = link_drained,
                                            .ctx = n } };
    return fg_link_open_mem(f->link_hub, n->name, 1, &options, &n->link, err);
}

static fg_status open_engine(node *n, fg_error *err)
{
    fleet *f = n->fleet;
    fg_engine_sim_options options = { .layout = f->layout,
                                      .arena = fg_link_arena(n->link),
                                      .block_count = f->setup.kv_blocks,
                                      .limits = { .step_tokens_max = f->setup.max_batch_tokens,
                                                  .step_seqs_max = f->setup.max_seqs,
                                                  .context_max = context_of(&f->setup) },
                                      .vocab_size = VOCAB,
                                      .eos_token = UINT32_MAX,
                                      .manual = true,
                                      .quick = true,
                                      .step_time_ns = step_time,
                                      .ctx = n };
    return fg_engine_open_sim(&options, &n->engine, err);
}

static fg_status open_worker(node *n, fg_error *err)
{
    fleet *f = n->fleet;
    fg_worker_options options = { .name = n->name,
                                  .epoch = 1,
                                  .roles = n->roles,
                                  .clock = fg_clock_manual(&f->timeline.now_ns),
                                  .engine = n->engine,
                                  .link = n->link,
                                  .layout = f->layout,
                                  .block_count = f->setup.kv_blocks,
                                  .context_max = context_of(&f->setup),
                                  .vocab_size = VOCAB,
                                  .limits = limits_of(&f->setup),
                                  .overlap = f->setup.overlap,
                                  .prefix_cache = f->setup.prefix_cache,
                                  .local_prefill_max = f->setup.local_prefill_tokens,
                                  .fingerprint = { 11, 22 },
                                  .pid = (uint64_t)(n - f->nodes) + 1,
                                  .prefill =
                                      n->roles & FG_ROLE_PREFILL ? fg_prefill_policy() : NULL,
                                  .decode = n->roles & FG_ROLE_DECODE ? fg_decode_policy() : NULL,
                                  .is_end = worker_is_end,
                                  .send = worker_send,
                                  .reconnect = worker_reconnect,
                                  .ctx = n };
    fg_status status = fg_worker_create(&options, &n->worker, err);
    if (status == FG_OK) {
        n->link_events = fg_worker_link_events(n->worker);
    }
    return status;
}

static fg_status open_node(fleet *f, uint32_t index, fg_fleet_role role, fg_error *err)
{
    static const uint32_t roles[FG_FLEET_ROLES] = { FG_ROLE_PREFILL, FG_ROLE_DECODE,
                                                    FG_ROLE_PREFILL | FG_ROLE_DECODE };
    node *n = &f->nodes[index];
    n->fleet = f;
    n->role = role;
    n->roles = roles[role];
    snprintf(n->name, sizeof n->name, "w%u", index);
    fg_status status = open_link(n, err);
    status = status != FG_OK ? status : open_engine(n, err);
    status = status != FG_OK ? status : open_worker(n, err);
    status = status != FG_OK ? status : connect_bus(n, 1, err);
    if (status == FG_OK) {
        push(f, fg_rng_below(&f->rng, TICK_IDLE_MS * MS), fire_beat, index);
    }
    return status;
}

static void close_node(fleet *f, node *n)
{
    if (n->bus != NULL) {
        fg_bus_close(n->bus);
    }
    if (n->engine != NULL) {
        fg_engine_close(n->engine);
    }
    fg_worker_destroy(n->worker);
    if (n->link != NULL) {
        fg_link_hub_kill(f->link_hub, n->name, 1);
        fg_link_close(n->link);
    }
}

/* ---- clients ---- */

static void note_end(fleet *f, uint32_t index, fg_fleet_outcome outcome)
{
    fg_fleet_row *row = &f->result->rows[index];
    uint64_t now = f->timeline.now_ns;
    row->outcome = outcome;
    f->result->counts[outcome]++;
    f->last_end_ns = now;
    f->ended++;
    if (outcome == FG_FLEET_FINISHED) {
        row->e2e_ns = now - f->zero_ns - row->arrival_ns;
    }
    if (f->options->on_progress != NULL && f->ended % PROGRESS_EVERY == 0) {
        f->options->on_progress(f->options->ctx, f->ended, f->result->row_count, now - f->zero_ns);
    }
}

static void free_live(live *l)
{
    *l->place = l->next;
    if (l->next != NULL) {
        l->next->place = l->place;
    }
    fg_mem_free(l->tokens);
    fg_mem_free(l);
}

static void on_token(void *ctx, uint32_t index, uint32_t id, uint64_t digest)
{
    live *l = ctx;
    fleet *f = l->fleet;
    fg_fleet_row *row = &f->result->rows[l->index];
    uint64_t now = f->timeline.now_ns;
    FG_ASSERT(index == row->output_tokens, "a token out of its order");
    row->output_tokens++;
    if (index == 0) {
        row->ttft_ns = now - f->zero_ns - row->arrival_ns;
    } else {
        uint64_t gap = now - l->last_ns;
        fg_tally_add(&f->result->gaps, gap);
        row->gap_sum_ns += gap;
        row->gap_max_ns = gap > row->gap_max_ns ? gap : row->gap_max_ns;
    }
    l->last_ns = now;
}

static void on_end(void *ctx, fg_finish finish, fg_status status, const char *text,
                   const fg_dispatch_report *report)
{
    live *l = ctx;
    fleet *f = l->fleet;
    fg_fleet_result *result = f->result;
    fg_fleet_row *row = &result->rows[l->index];
    row->cached_tokens = report->cached_tokens;
    row->preemptions = report->preemptions;
    row->queued_ns = report->queued_ns;
    bool finished = finish == FG_FINISH_LENGTH;
    if (finished) {
        FG_ASSERT(row->output_tokens == f->options->workload->requests[l->index].output_tokens);
        result->prompt_tokens += f->options->workload->requests[l->index].prompt_tokens;
        result->cached_tokens += row->cached_tokens;
        result->output_tokens += row->output_tokens;
    }
    note_end(f, l->index, finished ? FG_FLEET_FINISHED : FG_FLEET_FAILED);
    free_live(l);
}

static live *make_live(fleet *f, uint32_t index)
{
    const fg_workload_request *request = &f->options->workload->requests[index];
    live *l = fg_mem_alloc(sizeof *l);
    uint32_t *tokens = fg_mem_array(request->prompt_tokens, sizeof *tokens);
    if (l == NULL || tokens == NULL) {
        fg_mem_free(l);
        fg_mem_free(tokens);
        f->broken = fg_fail(f->err, FG_AGAIN, "out of memory for a request");
        return NULL;
    }
    fg_workload_tokens(f->options->workload, index, f->options->seed, VOCAB, tokens);
    *l = (live){
        .fleet = f, .index = index, .tokens = tokens, .next = f->lives, .place = &f->lives
    };
    if (f->lives != NULL) {
        f->lives->place = &l->next;
    }
    f->lives = l;
    return l;
}

static void start_request(fleet *f, uint32_t index)
{
    const fg_workload_request *request = &f->options->workload->requests[index];
    live *l = make_live(f, index);
    if (l == NULL) {
        return;
    }
    fg_dispatch_job job = { .tokens = l->tokens,
                            .token_count = request->prompt_tokens,
                            .params = { .top_p = 1.0f,
                                        .seed = index,
                                        .max_tokens = request->output_tokens,
                                        .ignore_eos = true },
                            .sink = { .on_token = on_token, .on_end = on_end, .ctx = l } };
    uint64_t id;
    fg_error why;
    fg_status status = fg_dispatch_start(f->dispatch, &job, &id, &why);
    f->result->rows[index].arrival_ns = f->timeline.now_ns - f->zero_ns;
    if (status != FG_OK) {
        free_live(l);
        note_end(f, index,
                 status == FG_AGAIN       ? FG_FLEET_FULL
                 : status == FG_BAD_INPUT ? FG_FLEET_TOO_LONG
                                          : FG_FLEET_NOBODY);
    }
    fg_dispatch_stats stats;
    fg_dispatch_stats_get(f->dispatch, &stats);
    if (stats.queued > f->result->queue_peak) {
        f->result->queue_peak = stats.queued;
    }
}

static uint64_t arrival_ns(const fleet *f, uint32_t index)
{
    return (uint64_t)((double)f->options->workload->requests[index].arrival_ns /
                      f->options->speedup);
}

static void fire_arrival(void *ctx, const fg_timeline_event *event)
{
    fleet *f = ctx;
    uint32_t next = (uint32_t)event->index + 1;
    if (next < f->result->row_count) {
        push(f, f->zero_ns + arrival_ns(f, next), fire_arrival, next);
    }
    start_request(f, (uint32_t)event->index);
}

/* ---- looking ---- */

/* Every other sample goes, and the next ones come half as often: a run of any length fits. */
static void thin_out(fleet *f)
{
    fg_fleet_result *result = f->result;
    f->sample_ns *= 2;
    for (uint32_t i = 0; i < FG_FLEET_SAMPLES_MAX / 2; i++) {
        fg_fleet_sample *kept = &result->samples[i];
        const fg_fleet_sample *first = &result->samples[2 * i];
        const fg_fleet_sample *second = &result->samples[2 * i + 1];
        float busy[FG_FLEET_ROLES];
        for (int role = 0; role < FG_FLEET_ROLES; role++) {
            busy[role] = (first->busy[role] + second->busy[role]) / 2;
        }
        *kept = *second;
        memcpy(kept->busy, busy, sizeof busy);
    }
    result->sample_count = FG_FLEET_SAMPLES_MAX / 2;
}

static void take_sample(fleet *f, uint64_t since_ns)
{
    fg_fleet_sample sample = { .at_ns = f->timeline.now_ns - f->zero_ns };
    uint64_t busy[FG_FLEET_ROLES] = { 0 }, used = 0, total = 0;
    for (uint32_t i = 0; i < f->node_count; i++) {
        fg_worker_stats stats;
        fg_worker_stats_get(f->nodes[i].worker, &stats);
        busy[f->nodes[i].role] += stats.busy_ns - f->nodes[i].busy_seen_ns;
        f->nodes[i].busy_seen_ns = stats.busy_ns;
        sample.running += stats.running;
        sample.waiting += stats.waiting;
        used += stats.pool.total - stats.pool.free - stats.pool.cached;
        total += stats.pool.total;
    }
    fg_dispatch_stats stats;
    fg_dispatch_stats_get(f->dispatch, &stats);
    sample.queued = stats.queued;
    sample.blocks_used = (float)((double)used / (double)total);
    for (int role = 0; role < FG_FLEET_ROLES; role++) {
        uint32_t count = f->setup.workers[role];
        f->result->busy[role] += (double)busy[role];
        if (count > 0 && since_ns > 0) {
            double share = (double)busy[role] / ((double)count * (double)since_ns);
            sample.busy[role] = (float)(share < 1.0 ? share : 1.0);
        }
    }
    if (f->result->sample_count == FG_FLEET_SAMPLES_MAX) {
        thin_out(f);
    }
    f->result->samples[f->result->sample_count++] = sample;
}

static void fire_sample(void *ctx, const fg_timeline_event *event)
{
    fleet *f = ctx;
    take_sample(f, f->sample_ns);
    push(f, f->timeline.now_ns + f->sample_ns, fire_sample, 0);
}

/* ---- the router ---- */

static fg_status router_send(void *ctx, uint32_t peer, const void *bytes, size_t size_bytes)
{
    return fg_bus_send(((fleet *)ctx)->router_bus, peer, bytes, size_bytes);
}

static void router_drop(void *ctx, uint32_t peer)
{
    fg_bus_drop(((fleet *)ctx)->router_bus, peer);
}

static void router_up(void *ctx, uint32_t peer, const char *identity)
{
    fg_dispatch_on_up(((fleet *)ctx)->dispatch, peer, identity);
}

static void router_frame(void *ctx, uint32_t peer, const void *bytes, size_t size_bytes)
{
    fg_dispatch_on_frame(((fleet *)ctx)->dispatch, peer, bytes, size_bytes);
}

static void router_down(void *ctx, uint32_t peer)
{
    fg_dispatch_on_down(((fleet *)ctx)->dispatch, peer);
}

/* Everybody has joined: the first request comes. */
static void begin(fleet *f)
{
    f->began = true;
    f->zero_ns = f->timeline.now_ns;
    f->sample_ns = SAMPLE_FIRST_NS;
    take_sample(f, 0);
    push(f, f->zero_ns, fire_arrival, 0);
    push(f, f->zero_ns + f->sample_ns, fire_sample, 0);
}

static void fire_router_tick(void *ctx, const fg_timeline_event *event)
{
    fleet *f = ctx;
    fg_dispatch_tick(f->dispatch);
    push(f, f->timeline.now_ns + ROUTER_TICK_MS * MS, fire_router_tick, 0);
    if (f->began) {
        return;
    }
    bool all = fg_registry_count(fg_dispatch_registry(f->dispatch)) == f->node_count;
    for (uint32_t i = 0; all && i < f->node_count; i++) {
        all = fg_worker_joined(f->nodes[i].worker);
    }
    if (all && fg_dispatch_ready(f->dispatch)) {
        begin(f);
    } else if (f->timeline.now_ns > JOIN_LIMIT_NS) {
        f->broken = fg_fail(f->err, FG_BROKEN, "the workers did not join within a minute");
    }
}

static fg_status open_router(fleet *f, fg_error *err)
{
    fg_bus_hub_options bus = { .defer = defer_frame, .ctx = f };
    fg_link_hub_options link = { .defer = defer_item, .ctx = f };
    fg_bus_events events = {
        .on_up = router_up, .on_frame = router_frame, .on_down = router_down, .ctx = f
    };
    fg_dispatch_options dispatch = {
        .clock = fg_clock_manual(&f->timeline.now_ns),
        .fingerprint = { 11, 22 },
        .router_epoch = f->options->seed,
        .cache_key = { f->options->seed, 77 },
        .lease_ms = LEASE_MS,
        .limits = { .queued_max = f->setup.queue_limit,
                    .queued_tokens_max = (uint64_t)f->setup.queue_limit * 65536,
                    .live_max = FG_LIMIT_LIVE_REQUESTS - 1 },
        .send = router_send,
        .drop = router_drop,
        .ctx = f,
    };
    fg_status status = fg_bus_hub_create(&bus, &f->bus_hub, err);
    if (status != FG_OK) {
        return status;
    }
    f->link_hub = fg_link_hub_create(&link);
    if (f->link_hub == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for the links");
    }
    status = fg_dispatch_create(&dispatch, &f->dispatch, err);
    return status != FG_OK ? status : fg_bus_listen_mem(f->bus_hub, &events, &f->router_bus, err);
}

/* ---- a whole run ---- */

fg_status fg_fleet_check(const fg_fleet_setup *setup, fg_error *err)
{
    const uint32_t *w = setup->workers;
    uint64_t count = (uint64_t)w[FG_FLEET_PREFILL] + w[FG_FLEET_DECODE] + w[FG_FLEET_BOTH];
    if (count > FG_LIMIT_WORKERS) {
        return fg_fail(err, FG_BAD_INPUT, "%llu workers; a router takes %u today",
                       (unsigned long long)count, FG_LIMIT_WORKERS);
    }
    if (w[FG_FLEET_BOTH] == 0 && (w[FG_FLEET_PREFILL] == 0 || w[FG_FLEET_DECODE] == 0)) {
        return fg_fail(err, FG_BAD_INPUT,
                       "a cluster needs --prefill and --decode workers, or --both");
    }
    if (setup->kv_blocks == 0 || setup->kv_blocks > FG_LIMIT_BLOCKS) {
        return fg_fail(err, FG_BAD_INPUT, "--kv-blocks must be 1 to %u", FG_LIMIT_BLOCKS);
    }
    fg_sched_limits limits = limits_of(setup);
    return fg_sched_check(&limits, err);
}

static fg_status open_fleet(fleet *f, fg_error *err)
{
    const fg_fleet_options *options = f->options;
    f->push_ns = fg_steptable_push_ns(options->steps, f->setup.block_size);
    f->message_ns = (uint64_t)options->steps->message;
    f->rng.state = options->seed;
    /* Eight bytes a slot, which is what the quick engine keeps there. */
    fg_status status = fg_kv_layout_init(&f->layout, 1, 1, 4, f->setup.block_size, FG_F16, err);
    status = status != FG_OK ? status : open_router(f, err);
    for (int role = 0; status == FG_OK && role < FG_FLEET_ROLES; role++) {
        f->node_count += f->setup.workers[role];
    }
    if (status != FG_OK) {
        return status;
    }
    f->nodes = fg_mem_array(f->node_count, sizeof *f->nodes);
    if (f->nodes == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for %u workers", f->node_count);
    }
    uint32_t index = 0;
    for (int role = 0; role < FG_FLEET_ROLES; role++) {
        for (uint32_t i = 0; status == FG_OK && i < f->setup.workers[role]; i++) {
            status = open_node(f, index++, (fg_fleet_role)role, err);
        }
    }
    push(f, 0, fire_router_tick, 0);
    return status != FG_OK ? status : f->broken;
}

static void close_fleet(fleet *f)
{
    for (uint32_t i = 0; f->nodes != NULL && i < f->node_count; i++) {
        close_node(f, &f->nodes[i]);
    }
    fg_dispatch_destroy(f->dispatch);
    if (f->router_bus != NULL) {
        fg_bus_close(f->router_bus);
    }
    fg_timeline_deinit(&f->timeline);
    fg_bus_hub_destroy(f->bus_hub);
    fg_link_hub_destroy(f->link_hub);
    while (f->lives != NULL) {
        free_live(f->lives);
    }
    while (f->free_parcels != NULL) {
        parcel *p = f->free_parcels;
        f->free_parcels = p->next;
        fg_mem_free(p);
    }
    fg_mem_free(f->nodes);
}

static void count_up(fleet *f)
{
    fg_fleet_result *result = f->result;
    take_sample(f,
                f->timeline.now_ns - f->zero_ns - result->samples[result->sample_count - 1].at_ns);
    result->span_ns = f->last_end_ns - f->zero_ns;
    result->events = f->timeline.fired;
    for (int role = 0; role < FG_FLEET_ROLES; role++) {
        double all = (double)f->setup.workers[role] * (double)result->span_ns;
        double share = all > 0 ? result->busy[role] / all : 0;
        result->busy[role] = share < 1.0 ? share : 1.0;
    }
    for (uint32_t i = 0; i < f->node_count; i++) {
        fg_worker_stats stats;
        fg_worker_stats_get(f->nodes[i].worker, &stats);
        result->preemptions += stats.preemptions;
        result->computed_tokens += stats.prompt_tokens;
        result->generated_tokens += stats.generated_tokens;
        result->evictions += stats.pool.evictions;
    }
    fg_dispatch_stats stats;
    fg_dispatch_stats_get(f->dispatch, &stats);
    result->pushed_blocks = stats.pushed_blocks;
    result->retried = stats.retried;
}

fg_status fg_fleet_run(const fg_fleet_options *options, fg_fleet_result **result_out, fg_error *err)
{
    fleet f = { .options = options, .setup = options->setup, .err = err };
    fg_status status = fg_fleet_check(&options->setup, err);
    if (status != FG_OK) {
        return status;
    }
    f.result = fg_mem_alloc(sizeof *f.result);
    if (f.result == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for the results");
    }
    f.result->setup = options->setup;
    f.result->row_count = options->workload->count;
    f.result->rows = fg_mem_array(options->workload->count, sizeof *f.result->rows);
    fg_timeline_init(&f.timeline, EVENTS_MAX, &f);
    status = f.result->rows == NULL ? fg_fail(err, FG_AGAIN, "out of memory for the results")
                                    : open_fleet(&f, err);
    while (status == FG_OK && f.ended < f.result->row_count) {
        bool any = fg_timeline_step(&f.timeline);
        FG_ASSERT(any, "the future is empty");
        status = f.broken;
    }
    if (status == FG_OK) {
        count_up(&f);
    }
    close_fleet(&f);
    if (status != FG_OK) {
        fg_fleet_result_free(f.result);
        return status;
    }
    *result_out = f.result;
    return FG_OK;
}

void fg_fleet_result_free(fg_fleet_result *result)
{
    if (result != NULL) {
        fg_mem_free(result->rows);
        fg_mem_free(result);
    }
}
