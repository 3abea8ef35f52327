#include "cli/host_worker.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/device_arena.h"
#include "cli/draft.h"
#include "cli/kv_room.h"
#include "cli/pulse.h"
#include "cli/recorder.h"
#include "common/base/core_share.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/team.h"
#include "common/base/topology.h"
#include "common/engine/calibrate.h"
#include "common/engine/engine.h"
#include "common/engine/tp.h"
#include "common/link/link.h"
#include "common/worker/worker.h"
#include "common/worker/worker_records.h"
#include "decode-worker/decode.h"
#include "kernels/device.h"
#include "prefill-worker/prefill.h"

#define CALIBRATE_NS (150ull * 1000 * 1000)

enum { TICK_BUSY_MS = 10, TICK_IDLE_MS = 100 };
#define NOTICE_FIRST_NS (2000ull * 1000 * 1000)
#define NOTICE_AGAIN_NS (30000ull * 1000 * 1000)

/* What is counted: a number of fg_worker_stats, or of its parts. */
typedef struct counter {
    const char *name, *help;
    size_t offset; /* in fg_worker_stats: of a uint64_t; of a gauge, a uint32_t */
    double unit;   /* what one count is worth */
} counter;

#define STAT(member) offsetof(fg_worker_stats, member)
static const counter counters[] = {
    { "engine_steps_total", "Engine steps run", STAT(steps), 1 },
    { "engine_busy_seconds_total", "Time that the engine spent in steps", STAT(busy_ns), 1e-9 },
    { "engine_prompt_tokens_total", "Prompt tokens computed by this worker", STAT(prompt_tokens),
      1 },
    { "engine_generated_tokens_total", "Tokens chosen by this worker", STAT(generated_tokens), 1 },
    { "engine_discarded_tokens_total", "Tokens computed for requests that had already ended",
      STAT(discarded_tokens), 1 },
    { "spec_decode_num_drafts_total", "Times that guesses at the next tokens were computed along",
      STAT(drafts), 1 },
    { "spec_decode_num_draft_tokens_total", "Guessed tokens computed along", STAT(drafted_tokens),
      1 },
    { "spec_decode_num_accepted_tokens_total", "Those of them that were right",
      STAT(accepted_tokens), 1 },
    { "spec_decode_model_draft_tokens_total", "Of the guessed tokens, the draft model's",
      STAT(model_drafted_tokens), 1 },
    { "spec_decode_model_accepted_tokens_total", "Those of them that were right",
      STAT(model_accepted_tokens), 1 },
    { "spec_decode_model_steps_total", "Steps of the draft model that guessed a token",
      STAT(draft_steps), 1 },
    { "spec_decode_model_seconds_total", "Time that the draft model took", STAT(draft_ns), 1e-9 },
    { "engine_broken_total", "Requests that ended because the model's output was NaN or infinite",
      STAT(broken), 1 },
    { "prefill_chunks_total", "Pieces that prompts were computed in", STAT(chunks), 1 },
    { "prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache",
      STAT(cache_query_tokens), 1 },
    { "prefix_cache_hits_total", "Prompt tokens found in the prefix cache", STAT(cache_hit_tokens),
      1 },
    { "prefix_cache_tier_hits_total", "Those of them that came from the second tier",
      STAT(tier_hit_tokens), 1 },
    { "prefix_deferrals_total", "Requests that waited for a prefix computed by another",
      STAT(deferrals), 1 },
    { "prefix_forks_total", "Choices that began with a copy of another's last block", STAT(forks),
      1 },
    { "prefix_remapped_blocks_total", "Blocks given up for an equal one of another request",
      STAT(remapped_blocks), 1 },
    { "kv_evicted_blocks_total", "Cached blocks taken for something else", STAT(pool.evictions),
      1 },
    { "num_preemptions_total", "Requests preempted for want of KV blocks", STAT(preemptions), 1 },
    { "kv_swapped_blocks_total", "Blocks moved to the second tier", STAT(swapped_blocks), 1 },
    { "kv_restored_blocks_total", "Blocks that came back from the second tier",
      STAT(restored_blocks), 1 },
    { "kv_link_pushed_blocks_total", "Blocks that this worker pushed, repeated ones too",
      STAT(link_pushed_blocks), 1 },
    { "kv_link_pushed_bytes_total", "KV bytes that this worker pushed", STAT(link_pushed_bytes),
      1 },
    { "kv_link_descriptors_total", "Transfers that they went in: neighbouring blocks travel as one",
      STAT(link_descriptors), 1 },
    { "kv_link_direct_blocks_total",
      "Blocks that this worker computed in a decode worker's memory, so that they needed no push",
      STAT(direct_blocks), 1 },
    { "kv_link_received_blocks_total", "Blocks that were pushed to this worker",
      STAT(link_received_blocks), 1 },
    { "kv_link_received_bytes_total", "KV bytes that were pushed to this worker",
      STAT(link_received_bytes), 1 },
    { "kv_link_stale_total", "Messages for tickets that were closed already", STAT(link_stale), 1 },
    { "prefix_pins_yielded_total", "Pinned prefixes given up because blocks were short",
      STAT(pins_yielded), 1 },
    { "prefix_pins_refused_total", "Wishes for a pinned prefix for which there was no room",
      STAT(pins_refused), 1 },
    { "kv_damaged_blocks_total", "Blocks that came back from the second tier changed",
      STAT(damaged_blocks), 1 },
};
static const counter gauges[] = {
    { "engine_sequences_running", "Sequences in the running batch", STAT(running), 1 },
    { "engine_sequences_waiting", "Sequences that wait, arrive or leave", STAT(waiting), 1 },
    { "engine_sequences_preempted", "Those of them that were preempted", STAT(preempted), 1 },
    { "kv_tier_swapped_blocks", "Blocks of preempted requests in the second tier",
      STAT(tier.swapped), 1 },
    { "kv_tier_stored_blocks", "Evicted cached blocks in the second tier", STAT(tier.stored), 1 },
    { "kv_leaked_blocks",
      "Blocks in use although no sequence lives here (counted at rest): anything but 0 is a bug",
      STAT(leaked_blocks), 1 },
    { "kv_blocks_peak", "Most KV blocks ever in use at once", STAT(pool.used_peak), 1 },
};
enum {
    WORKER_COUNTERS = sizeof counters / sizeof counters[0],
    WORKER_GAUGES = sizeof gauges / sizeof gauges[0],
};

/* One router: a connection of its own. */
typedef struct router_door {
    fg_host_worker *host;
    uint32_t index;
    fg_bus *bus;
    char endpoint[FG_CONF_HOST_MAX + 32];
    fg_metric *joined;
    uint64_t notice_at_ns; /* when to say (again) that it is awaited */
} router_door;

struct fg_host_worker {
    fg_loop *loop;
    router_door routers[FG_WORKER_ROUTERS_MAX];
    uint32_t router_count;
    fg_bus_hub *hub;
    const fg_keys *keys;
    fg_link *link;
    fg_engine *engine;
    fg_core_share *share; /* NULL: the cores are not shared */
    fg_worker *worker;
    fg_link_events link_events; /* the worker's; the link is opened before the worker exists */
    fg_wake *wake;
    fg_pulse pulse;
    bool blocks_in_device;        /* of another kind than the host's, to the link too */
    fg_device_arena device_arena; /* open where the link reaches the device's memory; */
    void *arena;                  /* else the link's, or where there is none our own: */
    size_t arena_bytes;
    fg_shared shared; /* where several ranks compute */
    fg_tier *tier;    /* NULL: none was asked for */
    const fg_loaded_model *model;
    fg_loaded_draft draft; /* what guesses for it; maybe nothing */
    char name[FG_LIMIT_NAME_BYTES + 1];
    uint32_t block_count;
    fg_metric *counters[WORKER_COUNTERS], *gauges[WORKER_GAUGES], *blocks[5];
    fg_metric *step_tokens, *step_rows;
    fg_metric *threads, *shared_steps, *in_device;
    uint64_t counted_shared_steps;
    fg_worker_stats counted;
    fg_clock clock;
    fg_spans *spans;
    fg_flight *flight; /* NULL: nothing is kept */
};

/* ---- the worker's surroundings ---- */

static bool is_end(void *ctx, uint32_t token)
{
    return fg_tokenizer_is_end(((fg_host_worker *)ctx)->model->tokenizer, token);
}

static const char *token_text(void *ctx, uint32_t token, size_t *length_out)
{
    const fg_tokenizer *tokenizer = ((fg_host_worker *)ctx)->model->tokenizer;
    return fg_tokenizer_piece(tokenizer, token, false, length_out);
}

static fg_status send_frame(void *ctx, uint32_t router, const void *bytes, size_t size_bytes)
{
    fg_bus *bus = ((fg_host_worker *)ctx)->routers[router].bus;
    return bus == NULL ? FG_PEER_LOST : fg_bus_send(bus, 0, bytes, size_bytes);
}

/* Sequences that end still wait for their fences: closing counts too. */
static bool busy(void *ctx)
{
    fg_worker_stats stats;
    fg_worker_stats_get(((fg_host_worker *)ctx)->worker, &stats);
    return stats.running + stats.waiting + stats.closing > 0;
}

static void on_up(void *ctx, uint32_t peer, const char *identity)
{
    const router_door *door = ctx;
    fg_worker_on_up(door->host->worker, door->index);
}

static void on_frame(void *ctx, uint32_t peer, const void *bytes, size_t size_bytes)
{
    const router_door *door = ctx;
    fg_host_worker *host = door->host;
    fg_worker_on_frame(host->worker, door->index, bytes, size_bytes);
    if (busy(host)) {
        fg_pulse_quicken(&host->pulse);
    }
}

static void on_down(void *ctx, uint32_t peer)
{
    const router_door *door = ctx;
    fg_worker_on_down(door->host->worker, door->index);
}

static fg_status connect_bus(router_door *door, uint64_t epoch, fg_error *err)
{
    fg_host_worker *host = door->host;
    char identity[FG_LIMIT_NAME_BYTES + 32];
    snprintf(identity, sizeof identity, "%s#%llu", host->name, (unsigned long long)epoch);
    fg_bus_events events = {
        .on_up = on_up, .on_frame = on_frame, .on_down = on_down, .ctx = door
    };
    fg_bus_zmq_options options = { .endpoint = door->endpoint,
                                   .identity = identity,
                                   .keys = host->keys };
    return host->hub != NULL ? fg_bus_connect_mem(host->hub, identity, &events, &door->bus, err)
                             : fg_bus_open_zmq(host->loop, &options, &events, &door->bus, err);
}

static void reconnect(void *ctx, uint32_t router, uint64_t epoch)
{
    router_door *door = &((fg_host_worker *)ctx)->routers[router];
    fg_error err;
    fg_bus_close(door->bus);
    door->bus = NULL;
    if (connect_bus(door, epoch, &err) != FG_OK) {
        fg_err("worker", "event=reconnect_failed why=\"%s\"", err.text);
        FG_ASSERT(false, "a worker that cannot reach its router is of no use");
    }
}

static void engine_done(void *ctx)
{
    fg_wake_send(((fg_host_worker *)ctx)->wake); /* called from the engine's thread */
}

static void on_wake(void *ctx)
{
    fg_host_worker *host = ctx;
    if (host->worker != NULL) { /* calibration, before there is a worker, wakes too */
        fg_worker_on_engine(host->worker);
    }
}

static void on_commit(void *ctx, const fg_link_commit *commit)
{
    fg_host_worker *host = ctx;
    host->link_events.on_commit(host->link_events.ctx, commit);
}

static void on_fenced(void *ctx, uint64_t ticket)
{
    fg_host_worker *host = ctx;
    host->link_events.on_fenced(host->link_events.ctx, ticket);
}

static void on_answer(void *ctx, uint64_t ticket, const uint32_t *bad, uint32_t bad_count)
{
    fg_host_worker *host = ctx;
    host->link_events.on_answer(host->link_events.ctx, ticket, bad, bad_count);
}

static void on_drained(void *ctx, uint64_t ticket, fg_status why)
{
    fg_host_worker *host = ctx;
    host->link_events.on_drained(host->link_events.ctx, ticket, why);
}

/* ---- metrics ---- */

static const double step_bounds[] = {
    1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192
};

static void on_step(void *ctx, const fg_trace_step *step)
{
    fg_host_worker *host = ctx;
    fg_metric_observe(host->step_tokens, step->prefill_tokens + step->decode_rows + step->drafted);
    fg_metric_observe(host->step_rows, step->decode_rows);
}

static double read_counter(const fg_worker_stats *stats, const counter *c)
{
    uint64_t value;
    memcpy(&value, (const char *)stats + c->offset, sizeof value);
    return (double)value * c->unit;
}

static double read_gauge(const fg_worker_stats *stats, const counter *c)
{
    uint32_t value;
    memcpy(&value, (const char *)stats + c->offset, sizeof value);
    return value;
}

static void register_metrics(fg_host_worker *host, fg_metrics *metrics)
{
    static const char *const states[] = { "free", "cached", "held", "pinned", "quarantined" };
    for (int i = 0; i < WORKER_COUNTERS; i++) {
        host->counters[i] = fg_metrics_counter(
            metrics, &(fg_metric_spec){ .name = counters[i].name, .help = counters[i].help });
    }
    for (int i = 0; i < WORKER_GAUGES; i++) {
        host->gauges[i] = fg_metrics_gauge(
            metrics, &(fg_metric_spec){ .name = gauges[i].name, .help = gauges[i].help });
    }
    size_t bounds = sizeof step_bounds / sizeof *step_bounds;
    host->step_tokens = fg_metrics_histogram(
        metrics,
        &(fg_metric_spec){ .name = "iteration_tokens_total", .help = "Tokens computed by a step" },
        step_bounds, bounds);
    host->step_rows =
        fg_metrics_histogram(metrics,
                             &(fg_metric_spec){ .name = "iteration_decode_rows",
                                                .help = "Answers that a step brought forward" },
                             step_bounds, bounds);
    for (int i = 0; i < 5; i++) {
        host->blocks[i] = fg_metrics_gauge(
            metrics, &(fg_metric_spec){ .name = "engine_kv_blocks",
                                        .help = "KV blocks of this worker, by state",
                                        .labels = { { "state", states[i] } } });
    }
}

static void register_thread_metrics(fg_host_worker *host, fg_metrics *metrics)
{
    host->threads = fg_metrics_gauge(
        metrics,
        &(fg_metric_spec){ .name = "compute_threads",
                           .help = "Threads that computed last: fewer than this worker has while "
                                   "other processes compute on the same cores" });
    host->shared_steps = fg_metrics_counter(
        metrics,
        &(fg_metric_spec){ .name = "engine_shared_steps_total",
                           .help = "Engine steps that left cores to other processes, at least for "
                                   "a part of their time" });
}

/* Known before the metrics are asked for the first time. */
static void register_memory_metric(fg_host_worker *host, fg_metrics *metrics)
{
    host->in_device = fg_metrics_gauge(
        metrics, &(fg_metric_spec){ .name = "kv_link_device_memory",
                                    .help = "1 where other workers reach the KV blocks in the "
                                            "device's memory, 0 where they are in the host's" });
}

static void count_threads(fg_host_worker *host)
{
    fg_engine_start started = fg_engine_started(host->engine);
    if (host->share == NULL) {
        fg_metric_set(host->threads, started.thread_count * started.rank_count);
        return;
    }
    /* Other ranks share the cores as this one does. */
    fg_metric_set(host->threads, fg_core_share_last_width(host->share) * started.rank_count);
    uint64_t shared_steps = fg_core_share_shared_steps(host->share);
    fg_metric_add(host->shared_steps, (double)(shared_steps - host->counted_shared_steps));
    host->counted_shared_steps = shared_steps;
}

static void look_for_routers(fg_host_worker *host)
{
    uint64_t now_ns = fg_clock_now_ns(&host->clock);
    for (uint32_t i = 0; i < host->router_count; i++) {
        router_door *door = &host->routers[i];
        bool joined = fg_worker_joined_at(host->worker, i);
        if (door->joined != NULL) {
            fg_metric_set(door->joined, joined);
        }
        if (joined) {
            door->notice_at_ns = now_ns + NOTICE_FIRST_NS;
        } else if (now_ns >= door->notice_at_ns) {
            door->notice_at_ns = now_ns + NOTICE_AGAIN_NS;
            fg_info("worker", "event=waiting_for_router address=%s", door->endpoint);
        }
    }
}

static void on_tick(void *ctx)
{
    fg_host_worker *host = ctx;
    fg_worker_tick(host->worker);
    fg_engine_look(host->engine);
    fg_spans_flush(host->spans);
    look_for_routers(host);
    fg_worker_stats now;
    fg_worker_stats_get(host->worker, &now);
    for (int i = 0; i < WORKER_COUNTERS; i++) {
        double before = read_counter(&host->counted, &counters[i]);
        fg_metric_add(host->counters[i], read_counter(&now, &counters[i]) - before);
    }
    for (int i = 0; i < WORKER_GAUGES; i++) {
        fg_metric_set(host->gauges[i], read_gauge(&now, &gauges[i]));
    }
    const uint32_t counts[] = { now.pool.free, now.pool.cached, now.pool.held, now.pool.pinned,
                                now.pool.quarantined };
    for (int i = 0; i < 5; i++) {
        fg_metric_set(host->blocks[i], counts[i]);
    }
    host->counted = now;
    fg_metric_set(host->in_device, host->device_arena.device != NULL);
    count_threads(host);
}

/* ---- sizes ---- */

static uint32_t context_of(const fg_serve_config *config, const fg_loaded_model *model)
{
    uint32_t context = model->hparams.context_length;
    return config->context_max != 0 && config->context_max < context ? config->context_max
                                                                     : context;
}

static fg_status pick_block_count(const fg_serve_config *config, const fg_loaded_model *model,
                                  bool has_link, bool no_mirror, uint32_t *count_out, fg_error *err)
{
    fg_device_info info = { .free_bytes = 0 };
    if (config->kv_blocks != 0) {
        *count_out = config->kv_blocks;
        return FG_OK;
    }
    bool apart = !fg_device_kind_is_host(config->device);
    fg_status status = apart ? fg_device_describe(config->device, &info, err) : FG_OK;
    if (status != FG_OK) {
        return status;
    }
    uint32_t each = fg_kv_blocks_for(context_of(config, model), model->layout.block_size);
    fg_kv_room room = { .host_free_bytes = fg_mem_available_bytes(),
                        .device_free_bytes =
                            info.free_bytes *
                            fg_tp_device_count(config->devices, config->tensor_parallel_size),
                        .device_apart = apart,
                        .mirror_used = has_link || config->kv_host_blocks > 0,
                        .no_mirror = no_mirror,
                        .block_bytes = model->layout.block_bytes,
                        .useful_blocks = (uint64_t)config->max_seqs * each };
    *count_out = fg_kv_room_blocks(&room);
    return FG_OK;
}

static const char *isa_name(int isa)
{
    static const char *const names[] = { "auto",   "plain",       "avx2", "avx_vnni",
                                         "avx512", "avx512_bf16", "amx",  "neon" };
    return names[isa];
}

static const char *transport_name(int transport)
{
    return transport == FG_KV_SHM ? "shm" : transport == FG_KV_TCP ? "tcp" : "auto";
}

/* ---- opening ---- */

/* The blocks of a worker that has no link to other processes. */
static fg_status take_arena(fg_host_worker *host, const fg_serve_config *config, fg_error *err)
{
    if (config->tensor_parallel_size > 1) {
        (void)fg_shared_create(host->arena_bytes, true, &host->shared, err);
        host->arena = host->shared.memory;
    } else {
        host->arena = fg_mem_map(host->arena_bytes);
    }
    return host->arena != NULL ? FG_OK
                               : fg_fail(err, FG_AGAIN,
                                         "no memory for %u KV blocks (%zu MiB): "
                                         "lower --kv-blocks",
                                         host->block_count, host->arena_bytes >> 20);
}

static void give_arena(fg_host_worker *host)
{
    if (host->shared.memory != NULL) {
        fg_shared_close(&host->shared);
    } else {
        fg_mem_unmap(host->arena, host->arena_bytes);
    }
}

static fg_status pick_size(fg_host_worker *host, const fg_serve_config *config,
                           const fg_loaded_model *model, bool no_mirror, fg_error *err)
{
    fg_status status =
        pick_block_count(config, model, host->hub == NULL, no_mirror, &host->block_count, err);
    if (status == FG_OK && __builtin_mul_overflow((size_t)host->block_count,
                                                  model->layout.block_bytes, &host->arena_bytes)) {
        return fg_fail(err, FG_BAD_INPUT, "--kv-blocks %u is too many", host->block_count);
    }
    return status;
}

static fg_status open_link(fg_host_worker *host, const fg_serve_config *config,
                           const fg_loaded_model *model, fg_link_memory kind, fg_error *err)
{
    fg_link_options options = { .block_bytes = model->layout.block_bytes,
                                .block_count = host->block_count,
                                .memory_kind = kind,
                                .memory = host->device_arena.memory,
                                .transport = transport_name(config->kv_transport),
                                .host = config->link_host,
                                .shared = config->tensor_parallel_size > 1,
                                .loop = host->loop,
                                .events = { .on_commit = on_commit,
                                            .on_fenced = on_fenced,
                                            .on_answer = on_answer,
                                            .on_drained = on_drained,
                                            .ctx = host } };
    return fg_link_open_ucx(&options, &host->link, err);
}

/* Why KV blocks are not to be reached in the device's memory; NULL: they might be. */
static const char *against_device_memory(const fg_serve_config *config)
{
    return fg_device_kind_is_host(config->device) ? "--device cpu has no memory of its own"
           : config->tensor_parallel_size > 1
               ? "each of several processes has a part of every block"
               : NULL;
}

/* Blocks that the link reaches where the engine computes them. What fails is undone. */
static fg_status open_device_memory(fg_host_worker *host, const fg_serve_config *config,
                                    const fg_loaded_model *model, fg_error *err)
{
    fg_device_arena *arena = &host->device_arena;
    fg_status status = pick_size(host, config, model, true, err);
    status = status != FG_OK ? status : fg_device_arena_open(config->device, arena, err);
    if (status != FG_OK) {
        return status;
    }
    fg_link_memory kind = FG_LINK_LENT; /* an emulated device's memory is the host's */
    host->blocks_in_device = fg_device_memory_reach(arena->device) == FG_REACH_CUDA;
    if (host->blocks_in_device) {
        kind = FG_LINK_DEVICE;
        status = fg_link_reaches_devices(err);
    }
    size_t size_bytes = host->arena_bytes + FG_LINK_SPARE_BLOCKS * model->layout.block_bytes;
    status = status != FG_OK ? status : fg_device_arena_take(arena, size_bytes, err);
    status = status != FG_OK ? status : open_link(host, config, model, kind, err);
    if (status != FG_OK) {
        fg_device_arena_close(arena);
        host->blocks_in_device = false;
    }
    return status;
}

/* Tries the device's memory, where that may be; FG_CANCELLED: the blocks are to be in the host's. */
static fg_status try_device_memory(fg_host_worker *host, const fg_serve_config *config,
                                   const fg_loaded_model *model, fg_error *err)
{
    bool must = config->kv_device_memory == FG_KV_DEVICE_ON;
    const char *against = against_device_memory(config);
    if (config->kv_device_memory == FG_KV_DEVICE_OFF) {
        against = "--kv-device-memory off";
    } else if (against == NULL && !must && config->kv_transport == FG_KV_TCP) {
        against = "--kv-transport tcp";
    }
    fg_error why = { .status = FG_BAD_INPUT };
    if (against != NULL) {
        snprintf(why.text, sizeof why.text, "%s", against);
    } else if (open_device_memory(host, config, model, &why) == FG_OK) {
        fg_info("worker", "event=kv_memory mirror=no why=\"other workers reach the device's\"");
        return FG_OK;
    }
    if (must) {
        return fg_fail(err, FG_BAD_INPUT, "--kv-device-memory on: %s", why.text);
    }
    if (!fg_device_kind_is_host(config->device)) {
        fg_info("worker", "event=kv_memory mirror=yes why=\"%s\"", why.text);
    }
    return FG_CANCELLED;
}

static fg_status open_memory(fg_host_worker *host, const fg_serve_config *config,
                             const fg_loaded_model *model, fg_error *err)
{
    if (host->hub == NULL) {
        fg_status tried = try_device_memory(host, config, model, err);
        if (tried != FG_CANCELLED) {
            return tried;
        }
    }
    fg_status status = pick_size(host, config, model, false, err);
    if (status != FG_OK) {
        return status;
    }
    if (host->hub != NULL) {
        return take_arena(host, config, err);
    }
    status = open_link(host, config, model, FG_LINK_OWN, err);
    if (status == FG_OK) {
        host->arena = fg_link_arena(host->link);
    }
    return status;
}

static fg_status open_tier(fg_host_worker *host, const fg_serve_config *config,
                           const fg_loaded_model *model, fg_error *err)
{
    if (config->kv_host_blocks == 0) {
        return FG_OK;
    }
    fg_tier_options options = { .block_bytes = model->layout.block_bytes,
                                .block_count = config->kv_host_blocks,
                                .block_size = model->layout.block_size,
                                .directory = config->kv_disk };
    return fg_tier_open(&options, &host->tier, err);
}

/* How many compute threads, and where. */
typedef struct thread_plan {
    fg_topology topology;
    uint32_t count; /* of all ranks */
    uint32_t each;  /* of one */
    bool pinned;
    fg_team_place places[FG_TEAM_THREADS_MAX]; /* rank by rank */
} thread_plan;

/* Beside a device with memory of its own only the engine's thread works: more would be counted as computing by those who
 * share the cores. */
static void plan_threads(const fg_serve_config *config, thread_plan *plan)
{
    const fg_topology *topology = &plan->topology;
    fg_topology_read("", NULL, &plan->topology);
    bool host = fg_device_kind_is_host(config->device);
    uint32_t threads = !host                  ? 1
                       : config->threads != 0 ? config->threads
                                              : fg_topology_thread_count(topology);
    uint32_t ranks = config->tensor_parallel_size;
    threads = threads < FG_TEAM_THREADS_MAX ? threads : FG_TEAM_THREADS_MAX;
    plan->each = threads < ranks ? 1 : threads / ranks;
    plan->count = plan->each * ranks;
    bool several = topology->node_count > 1 && plan->count <= topology->cpu_count;
    plan->pinned =
        host && (config->cpu_pin == FG_PIN_ON || (config->cpu_pin == FG_PIN_AUTO && several));
    for (uint32_t i = 0; i < plan->count; i++) {
        const fg_topology_cpu *cpu = &topology->cpus[i % topology->cpu_count];
        plan->places[i] = (fg_team_place){ .cpu = cpu->cpu,
                                           .node = plan->pinned ? cpu->node : 0,
                                           .pinned = plan->pinned };
    }
}

static void log_threads(const thread_plan *plan, bool shared)
{
    fg_buf machine;
    fg_buf_init(&machine, 0);
    if (fg_topology_describe(&plan->topology, &machine)) {
        fg_info("worker", "event=threads count=%u pinned=%s shared=%s machine=\"%s\"", plan->count,
                plan->pinned ? "yes" : "no", shared ? "yes" : "no", machine.data);
    }
    fg_buf_deinit(&machine);
}

/* How each rank shares the cores with other processes; `cpus` is filled in for it. */
static fg_core_share_options share_options(const fg_serve_config *config,
                                           const fg_host_worker_place *place,
                                           const thread_plan *plan, cpu_set_t *cpus)
{
    bool standard = strcmp(config->share_cores, "auto") == 0;
    CPU_ZERO(cpus);
    for (uint32_t i = 0; i < plan->topology.cpu_count; i++) {
        CPU_SET(plan->topology.cpus[i].cpu, cpus);
    }
    /* A client notices a late token; a prompt takes its time anyway. */
    return (fg_core_share_options){ .directory = standard ? NULL : config->share_cores,
                                    .cpus = cpus,
                                    .cores = fg_topology_thread_count(&plan->topology),
                                    .threads = plan->each,
                                    .rank = (place->roles & FG_ROLE_DECODE) != 0 ? 0 : 1 };
}

/* Without it everything works as well, but for the speed of several processes on the same cores. */
static void open_share(fg_host_worker *host, const fg_core_share_options *options)
{
    fg_error err;
    if (fg_core_share_open(options, &host->share, &err) != FG_OK) {
        fg_warn("worker", "event=cores_not_shared why=\"%s\"", err.text);
    }
}

static fg_status open_engine(fg_host_worker *host, const fg_serve_config *config,
                             const fg_loaded_model *model, const fg_host_worker_place *place,
                             fg_error *err)
{
    thread_plan plan = { .count = 0 };
    fg_status status = fg_loaded_draft_open(&host->draft, config, model, host->block_count,
                                            context_of(config, model), err);
    if (status != FG_OK) {
        return status;
    }
    plan_threads(config, &plan);
    cpu_set_t cpus;
    fg_core_share_options share = share_options(config, place, &plan, &cpus);
    if (strcmp(config->share_cores, "off") != 0 && !plan.pinned) {
        open_share(host, &share);
    }
    fg_tp_options tp = { .size = config->tensor_parallel_size,
                         .devices = config->devices,
                         .way = (fg_tp_way)config->tp_gather,
                         .share = host->share != NULL ? &share : NULL };
    log_threads(&plan, host->share != NULL);
    fg_engine_options options = { .weights = model->weights,
                                  .hparams = &model->hparams,
                                  .layout = model->layout,
                                  .arena = host->arena,
                                  .device_arena = host->device_arena.memory,
                                  .block_count = host->block_count,
                                  .arena_is_shared = host->link != NULL,
                                  .tier_arena =
                                      host->tier != NULL ? fg_tier_arena(host->tier) : NULL,
                                  .tier_block_count = config->kv_host_blocks,
                                  .limits = { .step_tokens_max = config->max_batch_tokens,
                                              .step_seqs_max = config->max_seqs,
                                              .context_max = context_of(config, model) },
                                  .device = config->device,
                                  .thread_count = plan.each,
                                  .places = plan.places,
                                  .share = host->share,
                                  .tp = &tp,
                                  .draft = host->draft.weights != NULL ? &host->draft.engine : NULL,
                                  .cpu_isa = isa_name(config->cpu_isa),
                                  .fingerprint = &model->fingerprint,
                                  .weights_cache = config->weights_cache,
                                  .on_done = engine_done,
                                  .ctx = host };
    return fg_engine_open_model(&options, &host->engine, err);
}

/* One block in a hundred stays free when a request is admitted beside others, as in vLLM. */
static fg_sched_limits limits_of(const fg_serve_config *config, uint32_t block_count)
{
    return (fg_sched_limits){ .step_tokens_max = config->max_batch_tokens,
                              .chunk_tokens_max = config->prefill_chunk_size,
                              .seqs_max = config->max_seqs,
                              .block_size = config->block_size,
                              .order = (fg_sched_order)config->schedule,
                              .victim = (fg_sched_victim)config->victim,
                              .preemption = (fg_sched_preemption)config->preemption,
                              .admission = (fg_sched_admission)config->admission,
                              .last_chunk = (fg_sched_last_chunk)config->last_chunk,
                              .draft = (fg_sched_draft)config->draft_length,
                              .draft_max =
                                  config->speculate == FG_SPECULATE_OFF ? 0 : config->draft_max,
                              .watermark_blocks = block_count / 100,
                              .skip_max = config->queue_skip,
                              .step_target_ns = (uint64_t)config->step_ms * 1000000u };
}

/* What the router is told to begin with; it learns the rest from what it sees. */
static fg_status calibrate(fg_host_worker *host, fg_worker_options *worker, fg_error *err)
{
    fg_calibration c;
    fg_calibrate_options options = { .engine = host->engine,
                                     .layout = worker->layout,
                                     .arena = host->arena,
                                     .block_count = worker->block_count,
                                     .limits = { .step_tokens_max = worker->limits.step_tokens_max,
                                                 .step_seqs_max = worker->limits.seqs_max,
                                                 .context_max = worker->context_max },
                                     .vocab_size = worker->vocab_size,
                                     .budget_ns = CALIBRATE_NS,
                                     .is_alone = host->hub != NULL };
    fg_status status = fg_engine_calibrate(&options, &c, err);
    if (status != FG_OK) {
        return status;
    }
    worker->speed = (fg_wire_speed){ .prefill_ns_base = c.prefill_ns_base,
                                     .prefill_ns_per_token = c.prefill_ns_per_token,
                                     .prefill_ps_per_kv = c.prefill_ps_per_kv,
                                     .step_ns_base = c.step_ns_base,
                                     .step_ns_per_row = c.step_ns_per_row,
                                     .push_ns_per_block = c.copy_ns_per_block };
    fg_info("worker",
            "event=calibrated prefill_us_per_token=%.1f step_us=%.1f step_us_per_row=%.1f",
            (double)c.prefill_ns_per_token / 1e3, (double)c.step_ns_base / 1e3,
            (double)c.step_ns_per_row / 1e3);
    return FG_OK;
}

/* Beside a router in one process it is another part of it, with a file of its own. */
static fg_status open_flight(fg_host_worker *host, const fg_serve_config *config,
                             fg_worker_options *options, fg_error *err)
{
    char process[FG_FLIGHT_PROCESS_BYTES];
    snprintf(process, sizeof process, host->hub != NULL ? "%s-worker" : "%s", host->name);
    fg_work_options preface = fg_work_put_options(options);
    fg_status status = fg_recorder_open(config, process, fg_work_shape(), &preface, sizeof preface,
                                        &host->flight, err);
    options->flight = host->flight;
    return status;
}

static fg_status open_worker(fg_host_worker *host, const fg_serve_config *config,
                             const fg_loaded_model *model, const fg_host_worker_place *place,
                             uint64_t epoch, fg_error *err)
{
    fg_worker_options options = { .name = host->name,
                                  .epoch = epoch,
                                  .router_count = host->router_count,
                                  .roles = place->roles,
                                  .clock = fg_clock_real(),
                                  .engine = host->engine,
                                  .link = host->link,
                                  .layout = model->layout,
                                  .blocks_in_device = host->blocks_in_device,
                                  .block_count = host->block_count,
                                  .context_max = context_of(config, model),
                                  .vocab_size = model->hparams.vocab_size,
                                  .embedding_length = model->hparams.embedding_length,
                                  .draft_context = host->draft.engine.context_max,
                                  .draft_alone = config->speculate == FG_SPECULATE_MODEL,
                                  .limits = limits_of(config, host->block_count),
                                  .zero_copy = config->kv_zero_copy == FG_ON &&
                                               fg_engine_started(host->engine).host_memory,
                                  .overlap = config->overlap == FG_ON,
                                  .prefix_cache = config->prefix_cache == FG_ON,
                                  .local_prefill_max = config->local_prefill_tokens,
                                  .tier = host->tier,
                                  .trace = place->trace,
                                  .spans = place->spans,
                                  .fingerprint = model->fingerprint,
                                  .pid = (uint64_t)getpid(),
                                  .prefill = fg_prefill_policy(),
                                  .decode = fg_decode_policy(),
                                  .is_end = is_end,
                                  .token_text = token_text,
                                  .on_step = on_step,
                                  .send = send_frame,
                                  .reconnect = reconnect,
                                  .ctx = host };
    fg_status status = calibrate(host, &options, err);
    status = status != FG_OK ? status : open_flight(host, config, &options, err);
    status = status != FG_OK ? status : fg_worker_create(&options, &host->worker, err);
    if (status == FG_OK) {
        host->link_events = fg_worker_link_events(host->worker);
    }
    return status;
}

static void name_routers(fg_host_worker *host, const fg_serve_config *config, fg_metrics *metrics)
{
    host->router_count = host->hub != NULL ? 1 : config->router.count;
    for (uint32_t i = 0; i < host->router_count; i++) {
        router_door *door = &host->routers[i];
        door->host = host;
        door->index = i;
        door->notice_at_ns = fg_clock_now_ns(&host->clock) + NOTICE_FIRST_NS;
        const fg_conf_address *address = &config->router.items[i];
        snprintf(door->endpoint, sizeof door->endpoint, "tcp://%s:%u", address->host,
                 address->port);
        if (host->hub == NULL) {
            door->joined = fg_metrics_gauge(
                metrics,
                &(fg_metric_spec){ .name = "worker_router_joined",
                                   .help = "1 while this worker is a member of that router",
                                   .labels = { { "router", door->endpoint } } });
        }
    }
}

static fg_status connect_buses(fg_host_worker *host, uint64_t epoch, fg_error *err)
{
    fg_status status = FG_OK;
    for (uint32_t i = 0; status == FG_OK && i < host->router_count; i++) {
        status = connect_bus(&host->routers[i], epoch + i, err);
    }
    return status;
}

fg_status fg_host_worker_open(fg_loop *loop, const fg_serve_config *config,
                              const fg_loaded_model *model, const fg_host_worker_place *place,
                              fg_host_worker **worker_out, fg_error *err)
{
    fg_host_worker *host = fg_mem_alloc(sizeof *host);
    if (host == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for the worker");
    }
    host->loop = loop;
    host->hub = place->hub;
    host->spans = place->spans;
    host->keys = place->keys;
    host->model = model;
    snprintf(host->name, sizeof host->name, "%s", config->name);
    host->clock = fg_clock_real();
    name_routers(host, config, place->metrics);
    register_metrics(host, place->metrics);
    register_thread_metrics(host, place->metrics);
    register_memory_metric(host, place->metrics);
    /* Wall time in us: unique among the lives of one name, growing, and exact in a JSON number. */
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t epoch = (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;

    fg_status status = fg_wake_create(loop, on_wake, host, &host->wake);
    status = status != FG_OK ? status : open_memory(host, config, model, err);
    status = status != FG_OK ? status : open_tier(host, config, model, err);
    fg_start_lap(place->start, FG_START_KV);
    status = status != FG_OK ? status : open_engine(host, config, model, place, err);
    fg_start_lap(place->start, FG_START_WEIGHTS);
    status = status != FG_OK ? status : open_worker(host, config, model, place, epoch, err);
    fg_start_lap(place->start, FG_START_CALIBRATE);
    status = status != FG_OK ? status : connect_buses(host, epoch, err);
    status = status != FG_OK ? status
                             : fg_pulse_start(&host->pulse, loop, TICK_BUSY_MS, TICK_IDLE_MS,
                                              on_tick, busy, host);
    if (status == FG_OK && !fg_metrics_ok(place->metrics)) {
        status = fg_fail(err, FG_AGAIN, "no room for the metrics");
    }
    if (status != FG_OK) {
        fg_host_worker_close(host);
        return status;
    }
    *worker_out = host;
    return FG_OK;
}

void fg_host_worker_close(fg_host_worker *host)
{
    if (host == NULL) {
        return;
    }
    fg_pulse_stop(&host->pulse);
    for (uint32_t i = 0; i < host->router_count; i++) {
        if (host->routers[i].bus != NULL) {
            fg_bus_close(host->routers[i].bus);
        }
    }
    if (host->engine != NULL) {
        fg_engine_close(host->engine); /* waits for the step in flight */
    }
    fg_loaded_draft_close(&host->draft);
    fg_core_share_close(host->share);
    fg_wake_close(host->wake);
    if (host->link != NULL) {
        fg_link_close(host->link);
    } else {
        give_arena(host);
    }
    fg_device_arena_close(&host->device_arena);
    fg_worker_destroy(host->worker);
    fg_recorder_close(host->flight);
    fg_tier_close(host->tier);
    fg_mem_free(host);
}

void fg_host_worker_drain(fg_host_worker *host)
{
    fg_worker_drain(host->worker);
}

void fg_host_worker_abort(fg_host_worker *host)
{
    fg_worker_abort_all(host->worker, "the worker is shutting down");
}

void fg_host_worker_write_flight(fg_host_worker *host)
{
    fg_recorder_write(host->flight, "worker");
}

const fg_flight *fg_host_worker_flight(const fg_host_worker *host)
{
    return host->flight;
}

bool fg_host_worker_idle(const fg_host_worker *host)
{
    return fg_worker_idle(host->worker);
}

bool fg_host_worker_joined(const fg_host_worker *host)
{
    return fg_worker_joined(host->worker);
}

uint32_t fg_host_worker_blocks(const fg_host_worker *host)
{
    return host->block_count;
}

const fg_engine *fg_host_worker_engine(const fg_host_worker *host)
{
    return host->engine;
}

const char *fg_host_worker_class(const fg_host_worker *host)
{
    return fg_engine_numerics_class(host->engine);
}
