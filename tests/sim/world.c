#include "tests/sim/world_internal.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/dtype.h"
#include "common/base/fault.h"
#include "common/base/limits.h"
#include "common/engine/engine_sim.h"

/* STUCK: for so long a live request may wait for nothing but a timer. The longest wait that heals itself: a link
 * that broke is made anew after 5 s, twice in a row when the other side's broke too. RELEASE: likewise, and a
 * lease and fences that are asked again. */
#define STUCK_NS   (12000 * SIM_MS)
#define RELEASE_NS (15000 * SIM_MS)
#define LIMIT_NS   (60000 * SIM_MS)

enum { EVENTS_MAX = 1 << 14, ALL_CHECKED_EVERY = 256, RESIDENCY_CHECKED_EVERY = 64 };

fg_sim_options fg_sim_options_default(uint64_t seed)
{
    return (fg_sim_options){ .seed = seed,
                             .faults = FG_SIM_FAULTS_ALL,
                             .requests = UINT64_MAX,
                             .workers_max = FG_SIM_WORKERS_MAX,
                             .routers_max = FG_SIM_ROUTERS_MAX,
                             .prompt_max = UINT32_MAX,
                             .answer_max = UINT32_MAX,
                             .faults_until_ms = 1500 };
}

void fg_sim_report_add(fg_sim_report *sum, const fg_sim_report *report)
{
    uint64_t *to = (uint64_t *)sum;
    const uint64_t *from = (const uint64_t *)report;
    for (size_t i = 0; i < sizeof *sum / sizeof *to; i++) {
        to[i] += from[i];
    }
}

/* ---- events and processes ---- */

void sim_push(sim_world *w, const sim_event *event)
{
    uint64_t left = fg_fault_hold();
    fg_status status = fg_timeline_push(&w->time, event);
    FG_ASSERT(status == FG_OK, "too many events wait");
    fg_fault_resume(left);
}

sim_process *sim_process_at(sim_world *w, uint64_t index)
{
    return index < SIM_ROUTER ? &w->workers[index].process
                              : &w->routers[index - SIM_ROUTER].process;
}

void sim_enter(sim_world *w, sim_process *process)
{
    if (process->halted_until_ns <= sim_now(w)) {
        process->clock_ns = sim_now(w);
    }
    for (uint32_t i = 0; i < SIM_ROUTER + w->router_count; i++) {
        w->touched |= sim_process_at(w, i) == process ? 1u << i : 0;
    }
    fg_fault_arm(w->quiet ? 0 : process->fail_nth);
}

void sim_leave(sim_world *w, sim_process *process)
{
    bool fired = fg_fault_fired();
    fg_fault_arm(0);
    if (fired) {
        process->fail_nth = 0;
        sim_count_fault(w, FG_SIM_ALLOC, process->name, "");
    }
}

bool sim_postponed(sim_world *w, const sim_event *event)
{
    uint64_t thaw = sim_process_at(w, event->index)->frozen_until_ns;
    if (thaw <= sim_now(w)) {
        return false;
    }
    sim_event later = *event;
    later.at_ns = thaw + 1;
    sim_push(w, &later);
    return true;
}

static void fire_router_tick(void *ctx, const sim_event *e)
{
    sim_world *w = ctx;
    if (sim_postponed(w, e)) {
        return;
    }
    sim_router *router = &w->routers[e->index - SIM_ROUTER];
    if (router->dispatch != NULL) {
        sim_enter(w, &router->process);
        fg_dispatch_tick(router->dispatch);
        sim_leave(w, &router->process);
    }
    sim_event next = *e;
    next.at_ns = sim_now(w) + SIM_TICK_NS;
    sim_push(w, &next);
}

static void fire_clear(void *ctx, const sim_event *e)
{
    sim_world *w = ctx;
    sim_router *router = &w->routers[sim_now(w) % w->router_count];
    if (sim_router_hears(router)) {
        sim_note(w, "client", "clear", "%s", router->process.name);
        sim_enter(w, &router->process);
        fg_dispatch_clear_cache(router->dispatch);
        sim_leave(w, &router->process);
    }
    if (!w->quiet) {
        sim_event next = *e;
        fg_rng rng = sim_rng(w, SIM_STREAM_SHAPE, 2, sim_now(w));
        next.at_ns = sim_now(w) + sim_below(&rng, 1000 * SIM_MS);
        sim_push(w, &next);
    }
}

/* Roles change all the time; in the end every worker is for everything, so that nobody waits in vain. */
static void fire_roles(void *ctx, const sim_event *e)
{
    sim_world *w = ctx;
    fg_rng rng = sim_rng(w, SIM_STREAM_SHAPE, 4, sim_now(w));
    uint32_t both = FG_ROLE_PREFILL | FG_ROLE_DECODE;
    for (uint32_t r = 0; r < w->router_count; r++) {
        sim_router *router = &w->routers[r];
        for (uint32_t i = 0; sim_router_hears(router) && i < w->worker_count; i++) {
            uint32_t roles = w->quiet ? both : 1 + (uint32_t)sim_below(&rng, 3);
            sim_enter(w, &router->process);
            fg_status status = fg_dispatch_set_role(router->dispatch, w->workers[i].process.name,
                                                    roles, NULL, NULL);
            sim_leave(w, &router->process);
            w->report->role_changes += status == FG_OK;
        }
    }
    sim_note(w, "client", "roles", "%s", w->quiet ? "all" : "drawn");
    sim_event next = *e;
    next.at_ns = sim_now(w) + 100 * SIM_MS + sim_below(&rng, 500 * SIM_MS);
    sim_push(w, &next);
}

/* ---- what must hold ---- */

static void check_touched(sim_world *w)
{
    if (w->report->events % ALL_CHECKED_EVERY == 0) {
        w->touched = UINT32_MAX;
    }
    for (uint32_t i = 0; i < w->router_count; i++) {
        const sim_router *router = &w->routers[i];
        if ((w->touched >> (SIM_ROUTER + i) & 1) && router->dispatch != NULL) {
            fg_dispatch_check(router->dispatch);
            if (w->report->events % RESIDENCY_CHECKED_EVERY == 0) {
                fg_residency_check(fg_dispatch_residency(router->dispatch));
            }
        }
    }
    for (uint32_t i = 0; i < w->worker_count; i++) {
        const sim_worker *s = &w->workers[i];
        if ((w->touched >> i & 1) && s->alive) {
            fg_worker_check(s->worker);
            FG_ASSERT(fg_engine_sim_bad_slots(s->engine) == 0, "%s read KV that was never written",
                      s->process.name);
        }
    }
    w->touched = 0;
}

static bool any_live(const sim_world *w)
{
    bool any = false;
    for (uint32_t i = 0; i < w->request_count; i++) {
        any = any || sim_request_live(&w->requests[i]);
    }
    return any;
}

/* Somebody can always move: if a request lives and only timers fire, processes wait for each other. */
static void check_stuck(const sim_world *w)
{
    if (sim_now(w) - w->progress_ns > STUCK_NS && any_live(w)) {
        sim_describe(w, stderr);
        FG_ASSERT(false, "stuck: requests live, and nothing but timers for %llu ms",
                  (unsigned long long)(STUCK_NS / SIM_MS));
    }
}

/* What a router knows of a worker's cache is what is in it. */
static bool is_known(const sim_router *router, const char *name, uint32_t entries)
{
    const fg_dispatch *dispatch = router->dispatch;
    const fg_reg_worker *worker =
        dispatch == NULL ? NULL : fg_registry_by_name(fg_dispatch_registry(dispatch), name);
    return worker != NULL && fg_residency_slot_blocks(fg_dispatch_residency(dispatch), worker->peer,
                                                      FG_TIER_DEVICE) == entries;
}

static bool worker_at_rest(const sim_world *w, const sim_worker *s)
{
    fg_worker_stats stats;
    if (!s->alive) {
        return false;
    }
    fg_worker_stats_get(s->worker, &stats);
    for (uint32_t i = 0; i < w->router_count; i++) {
        if (!fg_worker_joined_at(s->worker, i) ||
            !is_known(&w->routers[i], s->process.name, stats.prefix.entries)) {
            return false;
        }
    }
    return stats.pool.free + stats.pool.cached == stats.pool.total && stats.pool.promised == 0 &&
           stats.closing == 0 && stats.running == 0 && stats.waiting == 0;
}

/* Every request has ended, and every pool is as it was at first. */
static bool at_rest(const sim_world *w)
{
    for (uint32_t i = 0; i < w->request_count; i++) {
        if (sim_request_open(&w->requests[i])) {
            return false;
        }
    }
    for (uint32_t i = 0; i < w->worker_count; i++) {
        if (!worker_at_rest(w, &w->workers[i])) {
            uint64_t since = w->settled_ns > w->options.faults_until_ms * SIM_MS
                                 ? w->settled_ns
                                 : w->options.faults_until_ms * SIM_MS;
            if (sim_now(w) > since + RELEASE_NS) {
                sim_describe(w, stderr);
                FG_ASSERT(false,
                          "%s holds blocks, is away, or has others than a router knows, %llu ms "
                          "after the last request ended",
                          w->workers[i].process.name, (unsigned long long)(RELEASE_NS / SIM_MS));
            }
            return false;
        }
    }
    for (uint32_t i = 0; i < w->router_count; i++) {
        if (w->routers[i].dispatch == NULL) {
            return false;
        }
    }
    return true;
}

/* The clients' counts, which the routers' have to be. */
static void count_up(sim_world *w)
{
    fg_sim_report *report = w->report;
    for (uint32_t i = 0; i < w->request_count; i++) {
        const sim_request *r = &w->requests[i];
        report->requests += !r->left_out;
        report->refused += r->refused;
        report->cancelled += r->cancelled;
        report->failed += r->ended && r->finish == FG_FINISH_ERROR;
        report->finished += r->ended && r->finish != FG_FINISH_ERROR;
    }
    for (uint32_t i = 0; i < w->router_count; i++) {
        sim_close_router(&w->routers[i]);
    }
    const fg_dispatch_stats *stats = &w->router_stats;
    FG_ASSERT(stats->finished == report->finished && stats->failed == report->failed &&
                  stats->cancelled == report->cancelled,
              "the routers count other ends than their clients");
    report->push_retries = stats->push_retries;
    report->stale_dropped = stats->stale_dropped;
    report->retried = stats->retried;
}

/* ---- a whole run ---- */

static void open_world(sim_world *w, const fg_sim_options *options, fg_sim_report *report)
{
    fg_error err;
    *report = (fg_sim_report){ .worlds = 1 };
    w->options = *options;
    w->report = report;
    fg_timeline_init(&w->time, EVENTS_MAX, w);
    fg_status status = fg_timeline_reserve(&w->time, EVENTS_MAX);
    FG_ASSERT(status == FG_OK);
    w->inbox = options->history != NULL ? fg_arena_create(FG_LIMIT_FRAME_ARENA_BYTES) : NULL;
    FG_ASSERT(options->history == NULL || w->inbox != NULL);
    status = fg_kv_layout_init(&w->layout, 2, 1, 8, 4, FG_F16, &err);
    FG_ASSERT(status == FG_OK, "%s", err.text);
    fg_rng vocab = sim_rng(w, SIM_STREAM_SHAPE, 5, 0);
    w->vocab_size = sim_chance(&vocab, 500) ? 6 : 997;
    fg_link_hub_options link = { .defer = sim_defer_link, .ctx = w };
    w->link_hub = fg_link_hub_create(&link);
    FG_ASSERT(w->link_hub != NULL);
    sim_build_routers(w);
    for (uint32_t i = 0; i < w->router_count; i++) {
        sim_push(w, &(sim_event){ .fire = fire_router_tick, .index = SIM_ROUTER + i });
    }
    sim_build_cluster(w);
    sim_make_requests(w);
    fg_rng rng = sim_rng(w, SIM_STREAM_SHAPE, 3, 0);
    sim_push(w, &(sim_event){ .at_ns = sim_below(&rng, 2000 * SIM_MS), .fire = fire_clear });
    if (sim_chance(&rng, 300)) {
        sim_push(w, &(sim_event){ .at_ns = sim_below(&rng, 500 * SIM_MS), .fire = fire_roles });
    }
    sim_plan_faults(w);
}

static void close_world(sim_world *w)
{
    for (uint32_t i = 0; i < w->worker_count; i++) {
        if (w->workers[i].alive) {
            sim_stop_worker(w, &w->workers[i]);
        }
    }
    for (uint32_t i = 0; i < w->router_count; i++) {
        sim_close_router(&w->routers[i]);
    }
    fg_timeline_deinit(&w->time);
    for (uint32_t i = 0; i < w->router_count; i++) {
        fg_bus_hub_destroy(w->routers[i].hub);
    }
    fg_link_hub_destroy(w->link_hub);
    for (uint32_t i = 0; i < w->request_count; i++) {
        free(w->requests[i].tokens);
    }
    fg_arena_destroy(w->inbox);
}

void fg_sim_run(const fg_sim_options *options, fg_sim_report *report)
{
    static sim_world state; /* too large for a stack */
    sim_world *w = &state;
    memset(w, 0, sizeof *w);
    open_world(w, options, report);
    uint64_t faults_until = options->faults_until_ms * SIM_MS;
    bool early = false;
    while (!early && !(sim_now(w) > faults_until && at_rest(w))) {
        w->quiet = fg_timeline_next_ns(&w->time) > faults_until;
        fg_timeline_step(&w->time);
        report->events++;
        report->simulated_ns = sim_now(w);
        sim_note_states(w);
        check_touched(w);
        check_stuck(w);
        FG_ASSERT(sim_now(w) <= LIMIT_NS, "not at rest after %llu simulated seconds",
                  (unsigned long long)(LIMIT_NS / (1000 * SIM_MS)));
        early = options->until != 0 && report->events >= options->until;
    }
    if (!early) {
        count_up(w);
    }
    close_world(w);
}
