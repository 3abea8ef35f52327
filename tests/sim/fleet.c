#include "tests/sim/fleet.h"

#include <string.h>

#include "common/base/dtype.h"
#include "common/base/limits.h"
#include "common/base/mem.h"
#include "tests/sim/fleet_internal.h"

enum {
    ROUTER_TICK_MS = 20, /* as in cli/host_router.c */
    LEASE_MS = 2000,
    SETTLE_MS = 500,     /* a worker's news leave with its next beat */
    PROGRESS_EVERY = 64, /* ends */
    EVENTS_MAX = 1 << 24,
};
#define JOIN_LIMIT_NS   (60000 * FG_FLEET_MS)
#define SAMPLE_FIRST_NS (250 * FG_FLEET_MS)

/* ---- clients ---- */

static void note_end(fg_fleet *f, uint32_t index, fg_fleet_outcome outcome)
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

static void free_live(fg_fleet_live *l)
{
    *l->place = l->next;
    if (l->next != NULL) {
        l->next->place = l->place;
    }
    fg_mem_free(l->tokens);
    fg_mem_free(l);
}

static void on_token(void *ctx, uint32_t index, uint32_t id, uint64_t digest,
                     const fg_logprobs *logprobs)
{
    fg_fleet_live *l = ctx;
    fg_fleet *f = l->fleet;
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

static void add_why(fg_place_why *sum, const fg_place_why *why)
{
    sum->queue += why->queue;
    sum->prefill += why->prefill;
    sum->restore += why->restore;
    sum->exposed += why->exposed;
    sum->wait += why->wait;
    sum->answer += why->answer;
    sum->others += why->others;
    sum->cost += why->cost;
}

static void on_end(void *ctx, fg_finish finish, fg_status status, const char *text,
                   const fg_dispatch_report *report)
{
    fg_fleet_live *l = ctx;
    fg_fleet *f = l->fleet;
    fg_fleet_result *result = f->result;
    fg_fleet_row *row = &result->rows[l->index];
    row->cached_tokens = report->cached_tokens;
    row->preemptions = report->preemptions;
    row->queued_ns = report->queued_ns;
    row->predicted_ns = report->predicted_ttft_ns;
    row->split = report->split;
    bool finished = finish == FG_FINISH_LENGTH;
    if (finished) {
        FG_ASSERT(row->output_tokens == f->options->workload->requests[l->index].output_tokens);
        result->prompt_tokens += f->options->workload->requests[l->index].prompt_tokens;
        result->cached_tokens += row->cached_tokens;
        result->output_tokens += row->output_tokens;
        add_why(&result->why, &report->why);
    }
    note_end(f, l->index, finished ? FG_FLEET_FINISHED : FG_FLEET_FAILED);
    free_live(l);
}

static fg_fleet_live *make_live(fg_fleet *f, uint32_t index)
{
    const fg_workload_request *request = &f->options->workload->requests[index];
    fg_fleet_live *l = fg_mem_alloc(sizeof *l);
    uint32_t *tokens = fg_mem_array(request->prompt_tokens, sizeof *tokens);
    if (l == NULL || tokens == NULL) {
        fg_mem_free(l);
        fg_mem_free(tokens);
        f->broken = fg_fail(f->err, FG_AGAIN, "out of memory for a request");
        return NULL;
    }
    fg_workload_tokens(f->options->workload, index, f->options->seed, FG_FLEET_VOCAB, tokens);
    *l = (fg_fleet_live){
        .fleet = f, .index = index, .tokens = tokens, .next = f->lives, .place = &f->lives
    };
    if (f->lives != NULL) {
        f->lives->place = &l->next;
    }
    f->lives = l;
    return l;
}

static void start_request(fg_fleet *f, uint32_t index)
{
    const fg_workload_request *request = &f->options->workload->requests[index];
    fg_fleet_live *l = make_live(f, index);
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

static uint64_t arrival_ns(const fg_fleet *f, uint32_t index)
{
    return (uint64_t)((double)f->options->workload->requests[index].arrival_ns /
                      f->options->speedup);
}

static void fire_arrival(void *ctx, const fg_timeline_event *event)
{
    fg_fleet *f = ctx;
    uint32_t next = (uint32_t)event->index + 1;
    if (next < f->result->row_count) {
        fg_fleet_push(f, f->zero_ns + arrival_ns(f, next), fire_arrival, next);
    }
    start_request(f, (uint32_t)event->index);
}

/* ---- looking ---- */

/* Every other sample goes, and the next ones come half as often: a run of any length fits. */
static void thin_out(fg_fleet *f)
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

static void take_sample(fg_fleet *f, uint64_t since_ns)
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
    fg_fleet *f = ctx;
    take_sample(f, f->sample_ns);
    fg_fleet_push(f, f->timeline.now_ns + f->sample_ns, fire_sample, 0);
}

/* ---- the router ---- */

static fg_status router_send(void *ctx, uint32_t peer, const void *bytes, size_t size_bytes)
{
    return fg_bus_send(((fg_fleet *)ctx)->router_bus, peer, bytes, size_bytes);
}

static void router_drop(void *ctx, uint32_t peer)
{
    fg_bus_drop(((fg_fleet *)ctx)->router_bus, peer);
}

static void router_up(void *ctx, uint32_t peer, const char *identity)
{
    fg_dispatch_on_up(((fg_fleet *)ctx)->dispatch, peer, identity);
}

static void router_frame(void *ctx, uint32_t peer, const void *bytes, size_t size_bytes)
{
    fg_dispatch_on_frame(((fg_fleet *)ctx)->dispatch, peer, bytes, size_bytes);
}

static void router_down(void *ctx, uint32_t peer)
{
    fg_dispatch_on_down(((fg_fleet *)ctx)->dispatch, peer);
}

/* Everybody has joined: the first request comes. */
static void begin(fg_fleet *f)
{
    f->began = true;
    f->zero_ns = f->timeline.now_ns;
    f->sample_ns = SAMPLE_FIRST_NS;
    take_sample(f, 0);
    fg_fleet_push(f, f->zero_ns, fire_arrival, 0);
    fg_fleet_push(f, f->zero_ns + f->sample_ns, fire_sample, 0);
}

static void fire_router_tick(void *ctx, const fg_timeline_event *event)
{
    fg_fleet *f = ctx;
    fg_dispatch_tick(f->dispatch);
    fg_fleet_push(f, f->timeline.now_ns + ROUTER_TICK_MS * FG_FLEET_MS, fire_router_tick, 0);
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

static fg_status open_router(fg_fleet *f, fg_error *err)
{
    fg_bus_hub_options bus = { .defer = fg_fleet_defer_frame, .ctx = f };
    fg_link_hub_options link = { .defer = fg_fleet_defer_item, .ctx = f };
    fg_bus_events events = {
        .on_up = router_up, .on_frame = router_frame, .on_down = router_down, .ctx = f
    };
    fg_place_options place = fg_place_defaults();
    place.policy = (fg_place_policy)f->setup.routing;
    place.split = (fg_place_split)f->setup.split;
    fg_dispatch_options dispatch = {
        .place = place,
        .clock = fg_clock_manual(&f->timeline.now_ns),
        .fingerprint = { 11, 22 },
        .router_epoch = f->options->seed,
        .cache_key = { f->options->seed, 77 },
        .lease_ms = LEASE_MS,
        .queue_ahead = f->setup.queue_ahead,
        .residency_bytes = (size_t)f->setup.residency_mb << 20,
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
    if (setup->slow > 0 && setup->slow_percent < 1) {
        return fg_fail(err, FG_BAD_INPUT, "--slow-percent must be above 0");
    }
    fg_sched_limits limits = fg_fleet_limits(setup);
    return fg_sched_check(&limits, err);
}

static fg_status open_cluster(fg_fleet *f, fg_error *err)
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
            status = fg_fleet_open_node(f, index++, (fg_fleet_role)role, i < f->setup.slow, err);
        }
    }
    fg_fleet_push(f, 0, fire_router_tick, 0);
    return status != FG_OK ? status : f->broken;
}

void fg_fleet_close(fg_fleet *f)
{
    f->closing = true;
    for (uint32_t i = 0; f->nodes != NULL && i < f->node_count; i++) {
        fg_fleet_close_node(f, &f->nodes[i]);
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
        fg_fleet_parcel *p = f->free_parcels;
        f->free_parcels = p->next;
        fg_mem_free(p);
    }
    fg_mem_free(f->nodes);
    fg_fleet_result_free(f->result);
}

static void count_up(fg_fleet *f)
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
    result->placed = stats.placed;
    result->placed_split = stats.placed_split;
    result->circles_avoided = stats.circles_avoided;
    result->held = stats.held;
    result->given_up = stats.given_up;
    result->resyncs = stats.resyncs;
    result->hit_blocks_expected = stats.hit_blocks_expected;
    result->hit_blocks_found = stats.hit_blocks_found;
}

/* Once the last news have come, what the router knows is what the workers have: a worker's own books say
 * how much that is. Too little memory for it shows here. */
static void compare_caches(fg_fleet *f)
{
    const fg_registry *registry = fg_dispatch_registry(f->dispatch);
    for (uint32_t i = 0; i < f->node_count; i++) {
        const fg_reg_worker *worker = fg_registry_by_name(registry, f->nodes[i].name);
        fg_worker_stats stats;
        fg_worker_stats_get(f->nodes[i].worker, &stats);
        uint64_t known = worker == NULL
                             ? 0
                             : fg_residency_slot_blocks(fg_dispatch_residency(f->dispatch),
                                                        worker->peer, FG_TIER_DEVICE);
        uint64_t there = stats.prefix.entries;
        f->result->known_blocks += there;
        f->result->known_wrong += known > there ? known - there : there - known;
    }
}

fg_status fg_fleet_open(const fg_fleet_options *options, fg_fleet *fleet_out, fg_error *err)
{
    fg_fleet *f = fleet_out;
    *f = (fg_fleet){ .options = options, .setup = options->setup, .err = err };
    fg_status status = fg_fleet_check(&options->setup, err);
    if (status != FG_OK) {
        return status;
    }
    f->result = fg_mem_alloc(sizeof *f->result);
    if (f->result == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for the results");
    }
    f->result->setup = options->setup;
    f->result->row_count = options->workload->count;
    f->result->rows = fg_mem_array(options->workload->count, sizeof *f->result->rows);
    fg_timeline_init(&f->timeline, EVENTS_MAX, f);
    status = f->result->rows == NULL ? fg_fail(err, FG_AGAIN, "out of memory for the results")
                                     : open_cluster(f, err);
    if (status != FG_OK) {
        fg_fleet_close(f);
    }
    return status;
}

fg_status fg_fleet_run(const fg_fleet_options *options, fg_fleet_result **result_out, fg_error *err)
{
    fg_fleet f;
    fg_status status = fg_fleet_open(options, &f, err);
    if (status != FG_OK) {
        return status;
    }
    while (status == FG_OK && f.ended < f.result->row_count) {
        bool any = fg_timeline_step(&f.timeline);
        FG_ASSERT(any, "the future is empty");
        status = f.broken;
    }
    if (status == FG_OK) {
        count_up(&f);
        uint64_t until_ns = f.timeline.now_ns + SETTLE_MS * FG_FLEET_MS;
        while (f.timeline.now_ns < until_ns && fg_timeline_step(&f.timeline)) {
        }
        compare_caches(&f);
        *result_out = f.result;
        f.result = NULL;
    }
    fg_fleet_close(&f);
    return status;
}

void fg_fleet_result_free(fg_fleet_result *result)
{
    if (result != NULL) {
        fg_mem_free(result->rows);
        fg_mem_free(result);
    }
}
