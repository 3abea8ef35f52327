#include <stdio.h>

#include "common/base/dtype.h"
#include "common/base/limits.h"
#include "common/base/mem.h"
#include "common/engine/engine_sim.h"
#include "decode-worker/decode.h"
#include "prefill-worker/prefill.h"
#include "tests/sim/fleet_internal.h"

/* The beats are those of cli/host_worker.c and cli/pulse.c. */
enum { TICK_BUSY_MS = 10, QUIET_BEATS_MAX = 8 };

/* ---- time ---- */

void fg_fleet_push(fg_fleet *f, uint64_t at_ns, fg_timeline_fire *fire, uint64_t index)
{
    fg_timeline_event event = { .at_ns = at_ns, .fire = fire, .index = index };
    if (fg_timeline_push(&f->timeline, &event) != FG_OK && f->broken == FG_OK) {
        f->broken = fg_fail(f->err, FG_AGAIN, "out of memory for the simulated future");
    }
}

static void fire_engine(void *ctx, const fg_timeline_event *event);

/* Whatever has reached a worker may have moved its link and begun a step. */
static void settle(fg_fleet_node *n)
{
    fg_fleet *f = n->fleet;
    if (n->link != NULL) {
        fg_link_progress(n->link);
    }
    uint64_t due_ns = n->stepping ? UINT64_MAX : fg_engine_sim_due_ns(n->engine);
    if (due_ns != UINT64_MAX) {
        n->stepping = true;
        fg_fleet_push(f, f->timeline.now_ns + due_ns, fire_engine, (uint64_t)(n - f->nodes));
    }
}

static void fire_engine(void *ctx, const fg_timeline_event *event)
{
    fg_fleet_node *n = &((fg_fleet *)ctx)->nodes[event->index];
    n->stepping = false;
    bool ended = fg_engine_sim_complete(n->engine);
    FG_ASSERT(ended);
    fg_worker_on_engine(n->worker);
    settle(n);
}

static bool has_work(fg_fleet_node *n)
{
    fg_worker_stats stats;
    fg_worker_stats_get(n->worker, &stats);
    return stats.running + stats.waiting + stats.closing > 0;
}

static void fire_beat(void *ctx, const fg_timeline_event *event)
{
    fg_fleet *f = ctx;
    fg_fleet_node *n = &f->nodes[(uint32_t)event->index];
    if (event->index >> 32 != (uint32_t)n->beat) {
        return;
    }
    fg_worker_tick(n->worker);
    settle(n);
    n->quiet_beats = has_work(n) ? 0 : n->quiet_beats + 1;
    n->fast = n->quiet_beats <= QUIET_BEATS_MAX;
    fg_fleet_push(
        f, f->timeline.now_ns + (n->fast ? TICK_BUSY_MS : FG_FLEET_TICK_IDLE_MS) * FG_FLEET_MS,
        fire_beat, event->index);
}

/* Something has arrived: beat fast from now on. */
static void quicken(fg_fleet_node *n)
{
    fg_fleet *f = n->fleet;
    n->quiet_beats = 0;
    if (!n->fast) {
        n->fast = true;
        n->beat++;
        fg_fleet_push(f, f->timeline.now_ns + TICK_BUSY_MS * FG_FLEET_MS, fire_beat,
                      (uint64_t)(n - f->nodes) | (uint64_t)(uint32_t)n->beat << 32);
    }
}

/* ---- hubs ---- */

static fg_fleet_node *node_named(fg_fleet *f, const char *name)
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

static void free_parcel(fg_fleet *f, fg_fleet_parcel *p)
{
    p->next = f->free_parcels;
    f->free_parcels = p;
}

static void fire_frame(void *ctx, const fg_timeline_event *event)
{
    fg_fleet_parcel *p = event->arg;
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
    fg_fleet_parcel *p = event->arg;
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
    fg_fleet_parcel *p = arg;
    p->end(p->arg);
    free_parcel(p->fleet, p);
}

static void send_later(fg_fleet *f, uint64_t at_ns, fg_timeline_fire *fire,
                       const fg_fleet_parcel *given)
{
    if (f->closing && fire == fire_item) { /* frames hold the bus's lines until it is closed */
        given->end(given->arg);
        return;
    }
    fg_fleet_parcel *p = f->free_parcels;
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
void fg_fleet_defer_frame(void *ctx, const char *from, const char *to, void (*run)(void *arg),
                          void (*free_arg)(void *arg), void *arg)
{
    fg_fleet *f = ctx;
    fg_fleet_parcel p = {
        .fleet = f, .to = node_named(f, to), .run = run, .end = free_arg, .arg = arg
    };
    send_later(f, f->timeline.now_ns + f->message_ns, fire_frame, &p);
}

/* Blocks leave a sender one after the other. A receiver sends nothing but words. */
void fg_fleet_defer_item(void *ctx, const char *from, const char *to, void (*run)(void *arg),
                         void (*drop)(void *arg), void *arg)
{
    fg_fleet *f = ctx;
    fg_fleet_parcel p = { .fleet = f,
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
    send_later(f, at + f->message_ns, fire_item, &p);
}

/* ---- workers ---- */

static void link_commit(void *ctx, const fg_link_commit *commit)
{
    fg_fleet_node *n = ctx;
    n->link_events.on_commit(n->link_events.ctx, commit);
}

static void link_fenced(void *ctx, uint64_t ticket)
{
    fg_fleet_node *n = ctx;
    n->link_events.on_fenced(n->link_events.ctx, ticket);
}

static void link_answer(void *ctx, uint64_t ticket, const uint32_t *bad, uint32_t bad_count)
{
    fg_fleet_node *n = ctx;
    n->link_events.on_answer(n->link_events.ctx, ticket, bad, bad_count);
}

static void link_drained(void *ctx, uint64_t ticket, fg_status why)
{
    fg_fleet_node *n = ctx;
    n->link_events.on_drained(n->link_events.ctx, ticket, why);
}

static void bus_up(void *ctx, uint32_t peer, const char *identity)
{
    fg_worker_on_up(((fg_fleet_node *)ctx)->worker, 0);
}

static void bus_frame(void *ctx, uint32_t peer, const void *bytes, size_t size_bytes)
{
    fg_worker_on_frame(((fg_fleet_node *)ctx)->worker, 0, bytes, size_bytes);
}

static void bus_down(void *ctx, uint32_t peer)
{
    fg_worker_on_down(((fg_fleet_node *)ctx)->worker, 0);
}

static fg_status worker_send(void *ctx, uint32_t router, const void *bytes, size_t size_bytes)
{
    return fg_bus_send(((fg_fleet_node *)ctx)->bus, 0, bytes, size_bytes);
}

static fg_status connect_bus(fg_fleet_node *n, uint64_t epoch, fg_error *err)
{
    char identity[48];
    snprintf(identity, sizeof identity, "%s#%llu", n->name, (unsigned long long)epoch);
    fg_bus_events events = {
        .on_up = bus_up, .on_frame = bus_frame, .on_down = bus_down, .ctx = n
    };
    return fg_bus_connect_mem(n->fleet->bus_hub, identity, &events, &n->bus, err);
}

static void worker_reconnect(void *ctx, uint32_t router, uint64_t epoch)
{
    fg_fleet_node *n = ctx;
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
    const fg_fleet_node *n = ctx;
    uint64_t ns = fg_steptable_step_ns(n->fleet->options->steps, step);
    return n->slow == 1 ? ns : (uint64_t)((double)ns * n->slow);
}

fg_sched_limits fg_fleet_limits(const fg_fleet_setup *setup)
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
                              .step_target_ns = setup->step_ms * FG_FLEET_MS };
}

static uint32_t context_of(const fg_fleet_setup *setup)
{
    uint64_t slots = (uint64_t)setup->kv_blocks * setup->block_size;
    return slots < FG_LIMIT_CONTEXT_TOKENS ? (uint32_t)slots : FG_LIMIT_CONTEXT_TOKENS;
}

static fg_status open_link(fg_fleet_node *n, fg_error *err)
{
    fg_fleet *f = n->fleet;
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

static fg_status open_engine(fg_fleet_node *n, fg_error *err)
{
    fg_fleet *f = n->fleet;
    fg_engine_sim_options options = { .layout = f->layout,
                                      .arena = fg_link_arena(n->link),
                                      .block_count = f->setup.kv_blocks,
                                      .limits = { .step_tokens_max = f->setup.max_batch_tokens,
                                                  .step_seqs_max = f->setup.max_seqs,
                                                  .context_max = context_of(&f->setup) },
                                      .vocab_size = FG_FLEET_VOCAB,
                                      .eos_token = UINT32_MAX,
                                      .manual = true,
                                      .quick = true,
                                      .step_time_ns = step_time,
                                      .ctx = n };
    return fg_engine_open_sim(&options, &n->engine, err);
}

/* What a calibration at start would find (common/engine/calibrate.h). */
static fg_wire_speed claim_of(const fg_fleet *f)
{
    const fg_steptable *t = f->options->steps;
    return (fg_wire_speed){ .prefill_ns_base = (uint64_t)t->prefill_base,
                            .prefill_ns_per_token = (uint64_t)t->prefill_token,
                            .prefill_ps_per_kv = (uint64_t)(t->prefill_pair * 1000),
                            .step_ns_base = (uint64_t)t->decode_base,
                            .step_ns_per_row = (uint64_t)t->decode_row,
                            .push_ns_per_block = f->push_ns };
}

static fg_status open_worker(fg_fleet_node *n, fg_error *err)
{
    fg_fleet *f = n->fleet;
    fg_worker_options options = { .name = n->name,
                                  .epoch = 1,
                                  .roles = n->roles,
                                  .speed = claim_of(f),
                                  .clock = fg_clock_manual(&f->timeline.now_ns),
                                  .engine = n->engine,
                                  .link = n->link,
                                  .layout = f->layout,
                                  .block_count = f->setup.kv_blocks,
                                  .context_max = context_of(&f->setup),
                                  .vocab_size = FG_FLEET_VOCAB,
                                  .embedding_length = FG_ENGINE_SIM_EMBEDDING,
                                  .limits = fg_fleet_limits(&f->setup),
                                  .overlap = f->setup.overlap,
                                  .prefix_cache = f->setup.prefix_cache,
                                  .local_prefill_max = f->setup.local_prefill_tokens,
                                  .fingerprint = { 11, 22 },
                                  .pid = (uint64_t)(n - f->nodes) + 1,
                                  .prefill = fg_prefill_policy(),
                                  .decode = fg_decode_policy(),
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

fg_status fg_fleet_open_node(fg_fleet *f, uint32_t index, fg_fleet_role role, bool slow,
                             fg_error *err)
{
    static const uint32_t roles[FG_FLEET_ROLES] = { FG_ROLE_PREFILL, FG_ROLE_DECODE,
                                                    FG_ROLE_PREFILL | FG_ROLE_DECODE };
    fg_fleet_node *n = &f->nodes[index];
    n->fleet = f;
    n->role = role;
    n->roles = roles[role];
    n->slow = slow ? f->setup.slow_percent / 100.0 : 1;
    snprintf(n->name, sizeof n->name, "w%u", index);
    fg_status status = open_link(n, err);
    status = status != FG_OK ? status : open_engine(n, err);
    status = status != FG_OK ? status : open_worker(n, err);
    status = status != FG_OK ? status : connect_bus(n, 1, err);
    if (status == FG_OK) {
        fg_fleet_push(f, fg_rng_below(&f->rng, FG_FLEET_TICK_IDLE_MS * FG_FLEET_MS), fire_beat,
                      index);
    }
    return status;
}

void fg_fleet_close_node(fg_fleet *f, fg_fleet_node *n)
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
