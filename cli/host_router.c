#include "cli/host_router.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cli/pulse.h"
#include "cli/recorder.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "router/flight_records.h"
#include "router/front.h"

enum { TICK_BUSY_MS = 20, TICK_IDLE_MS = 100 };
/* What is predicted may be wrong, and the sender has other work. */
#define PULL_MARGIN 1.5

struct fg_host_router {
    fg_bus *bus;
    fg_keys *keys;               /* NULL: none */
    const fg_api_keys *api_keys; /* likewise */
    fg_dispatch *dispatch;
    fg_flight *flight; /* NULL: nothing is kept */
    fg_front *front;
    fg_pulse pulse;
    fg_metrics *metrics;
    fg_trace *trace;
    fg_spans *spans;
    fg_metric *workers_gauge[2];
    fg_metric *turned_away[3]; /* by the keys */
    fg_bus_refusals refusals;
    fg_metric *queued, *kv_usage, *kv_total, *lost, *pushed_bytes, *pushed_blocks, *push_retries;
    fg_metric *stuck, *retried, *said_again;
    fg_metric *refused, *placed_whole, *placed_split, *resyncs, *hits_expected, *hits_found;
    fg_metric *known_blocks, *known_bytes;
    fg_metric *turned_down[FG_ADMIT_REASONS], *given_up, *held, *prefix_waits, *circles;
    fg_metric *pulls, *pulled_blocks;
    fg_metric *connections_refused;
    uint64_t connections_counted;
    fg_metric *decisions, *decision_s[3];
    fg_service service;
    fg_dispatch_stats counted; /* what the counters show already */
    const char *prefill_names[FG_LIMIT_WORKERS];
    const char *decode_names[FG_LIMIT_WORKERS];
    char model_name[128];
    char fingerprint[32];
};

static fg_status send_frame(void *ctx, uint32_t peer, const void *bytes, size_t size_bytes)
{
    return fg_bus_send(((fg_host_router *)ctx)->bus, peer, bytes, size_bytes);
}

static void drop_peer(void *ctx, uint32_t peer)
{
    fg_bus_drop(((fg_host_router *)ctx)->bus, peer);
}

static void on_up(void *ctx, uint32_t peer, const char *identity)
{
    fg_dispatch_on_up(((fg_host_router *)ctx)->dispatch, peer, identity);
}

static void on_frame(void *ctx, uint32_t peer, const void *bytes, size_t size_bytes)
{
    fg_dispatch_on_frame(((fg_host_router *)ctx)->dispatch, peer, bytes, size_bytes);
}

static void on_down(void *ctx, uint32_t peer)
{
    fg_dispatch_on_down(((fg_host_router *)ctx)->dispatch, peer);
}

static void register_metrics(fg_host_router *router, fg_metrics *metrics)
{
    static const char *const roles[] = { "prefill", "decode" };
    for (int i = 0; i < 2; i++) {
        router->workers_gauge[i] =
            fg_metrics_gauge(metrics, &(fg_metric_spec){ .name = "workers",
                                                         .help = "Workers that are alive, by role",
                                                         .labels = { { "role", roles[i] } } });
    }
    static const char *const phases[] = { "hash", "lookup", "score" };
    router->decisions = fg_metrics_counter(
        metrics, &(fg_metric_spec){ .name = "router_decisions_total",
                                    .help = "Times that a place was looked for" });
    for (int i = 0; i < 3; i++) {
        fg_metric_spec spec = { .name = "router_decision_seconds_total",
                                .help =
                                    "Time spent on looking, by phase: naming the prompt's blocks, "
                                    "looking up who has them, weighing the workers",
                                .labels = { { "phase", phases[i] } } };
        router->decision_s[i] = fg_metrics_counter(metrics, &spec);
    }
    static const char *const reasons[] = { "unknown_key", "other_name", "handshake" };
    for (int i = 0; i < 3; i++) {
        router->turned_away[i] = fg_metrics_counter(
            metrics,
            &(fg_metric_spec){ .name = "bus_refused_total",
                               .help = "Attempts to reach the bus that were refused, by reason",
                               .labels = { { "reason", reasons[i] } } });
    }
    router->connections_refused = fg_metrics_counter(
        metrics, &(fg_metric_spec){ .name = "http_connections_refused_total",
                                    .help = "Connections turned away: there were too many" });
    router->queued =
        fg_metrics_gauge(metrics, &(fg_metric_spec){ .name = "num_requests_waiting",
                                                     .help = "Requests that no worker has yet" });
    router->kv_usage = fg_metrics_gauge(
        metrics, &(fg_metric_spec){ .name = "kv_cache_usage_perc",
                                    .help = "Share of KV blocks in use over all workers, 0 to 1" });
    router->kv_total = fg_metrics_gauge(
        metrics, &(fg_metric_spec){ .name = "kv_blocks", .help = "KV blocks of all workers" });
    router->lost = fg_metrics_counter(
        metrics, &(fg_metric_spec){ .name = "workers_lost_total",
                                    .help = "Workers that died or fell silent" });
    router->pushed_bytes = fg_metrics_counter(
        metrics, &(fg_metric_spec){ .name = "kv_pushed_bytes_total",
                                    .help = "KV bytes handed from prefill to decode" });
    router->pushed_blocks = fg_metrics_counter(
        metrics, &(fg_metric_spec){ .name = "kv_pushed_blocks_total",
                                    .help = "KV blocks handed from prefill to decode" });
    router->push_retries = fg_metrics_counter(
        metrics, &(fg_metric_spec){ .name = "kv_push_retries_total",
                                    .help = "Times that damaged KV blocks were pushed again" });
}

static void register_refusals(fg_host_router *router, fg_metrics *metrics)
{
    static const char *const reasons[] = { [FG_ADMIT_QUEUE_FULL] = "queue_full",
                                           [FG_ADMIT_TENANT_CAP] = "tenant_cap",
                                           [FG_ADMIT_TTFT] = "ttft",
                                           [FG_ADMIT_ITL] = "itl",
                                           [FG_ADMIT_DEADLINE] = "deadline" };
    for (int i = FG_ADMIT_OK + 1; i < FG_ADMIT_REASONS; i++) {
        fg_metric_spec spec = { .name = "requests_refused_total",
                                .help = "Requests answered 429 at the door, by reason",
                                .labels = { { "reason", reasons[i] } } };
        router->turned_down[i] = fg_metrics_counter(metrics, &spec);
    }
}

static void register_routing(fg_host_router *router, fg_metrics *metrics)
{
    const struct {
        fg_metric **metric;
        fg_metric_spec spec;
    } counters[] = {
        { &router->stuck,
          { .name = "workers_stuck_total",
            .help = "Of the lost workers, those that ended no step" } },
        { &router->retried,
          { .name = "requests_retried_total",
            .help = "Times that a request was given to workers anew, as its own were lost or had "
                    "failed" } },
        { &router->said_again,
          { .name = "tokens_said_again_total",
            .help = "Tokens that a client had when their worker was lost, computed again" } },
        { &router->refused,
          { .name = "workers_refused_total", .help = "Workers that were not let in" } },
        { &router->placed_whole,
          { .name = "placements_total",
            .help = "Times that a request was placed, by whether two workers share it",
            .labels = { { "kind", "whole" } } } },
        { &router->placed_split,
          { .name = "placements_total",
            .help = "Times that a request was placed, by whether two workers share it",
            .labels = { { "kind", "split" } } } },
        { &router->resyncs,
          { .name = "residency_resyncs_total",
            .help = "Times that a worker had to tell again what it has cached" } },
        { &router->given_up,
          { .name = "requests_given_up_total",
            .help =
                "Waiting requests ended because they would have missed what they were promised" } },
        { &router->held,
          { .name = "placements_held_total",
            .help = "Requests whose decode worker was asked later, as prefill was not free yet" } },
        { &router->prefix_waits,
          { .name = "placements_prefix_waits_total",
            .help = "Requests that waited for room where their prefix is" } },
        { &router->pulls,
          { .name = "prefix_pulls_total",
            .help =
                "Times that a prefill worker was sent cached blocks by another worker first" } },
        { &router->pulled_blocks,
          { .name = "prefix_pulled_blocks_total", .help = "Blocks that it got so" } },
        { &router->circles,
          { .name = "placements_circles_avoided_total",
            .help =
                "Pairs of workers that were not chosen because they could have waited for ever" } },
        { &router->hits_expected,
          { .name = "residency_hit_blocks_expected_total",
            .help =
                "Cached blocks of prompts, as the router expected them where it placed them" } },
        { &router->hits_found,
          { .name = "residency_hit_blocks_found_total",
            .help = "Cached blocks of prompts, as the workers found them" } },
    };
    for (size_t i = 0; i < sizeof counters / sizeof *counters; i++) {
        *counters[i].metric = fg_metrics_counter(metrics, &counters[i].spec);
    }
    register_refusals(router, metrics);
    router->known_blocks = fg_metrics_gauge(
        metrics,
        &(fg_metric_spec){ .name = "residency_blocks",
                           .help = "Blocks that the router knows some worker to have cached" });
    router->known_bytes =
        fg_metrics_gauge(metrics, &(fg_metric_spec){ .name = "residency_bytes",
                                                     .help = "Memory that this knowledge takes" });
}

static void update_routing(fg_host_router *router, const fg_dispatch_stats *stats)
{
    const fg_dispatch_stats *old = &router->counted;
    fg_residency_stats known;
    fg_residency_stats_get(fg_dispatch_residency(router->dispatch), &known);
    fg_metric_set(router->known_blocks, (double)known.blocks);
    fg_metric_set(router->known_bytes, (double)known.bytes);
    uint64_t split = stats->placed_split - old->placed_split;
    fg_metric_add(router->placed_split, (double)split);
    fg_metric_add(router->placed_whole, (double)(stats->placed - old->placed - split));
    fg_metric_add(router->stuck, (double)(stats->workers_stuck - old->workers_stuck));
    fg_metric_add(router->retried, (double)(stats->retried - old->retried));
    fg_metric_add(router->said_again, (double)(stats->said_again - old->said_again));
    fg_metric_add(router->refused, (double)(stats->refused_joins - old->refused_joins));
    for (int i = FG_ADMIT_OK + 1; i < FG_ADMIT_REASONS; i++) {
        fg_metric_add(router->turned_down[i], (double)(stats->refused[i] - old->refused[i]));
    }
    fg_metric_add(router->decisions, (double)(stats->decisions - old->decisions));
    fg_metric_add(router->decision_s[0], (double)(stats->hash_ns - old->hash_ns) / 1e9);
    fg_metric_add(router->decision_s[1], (double)(stats->lookup_ns - old->lookup_ns) / 1e9);
    fg_metric_add(router->decision_s[2], (double)(stats->score_ns - old->score_ns) / 1e9);
    fg_metric_add(router->given_up, (double)(stats->given_up - old->given_up));
    fg_metric_add(router->held, (double)(stats->held - old->held));
    fg_metric_add(router->prefix_waits, (double)(stats->prefix_waits - old->prefix_waits));
    fg_metric_add(router->pulls, (double)(stats->pulls - old->pulls));
    fg_metric_add(router->pulled_blocks, (double)(stats->pulled_blocks - old->pulled_blocks));
    fg_metric_add(router->circles, (double)(stats->circles_avoided - old->circles_avoided));
    fg_metric_add(router->resyncs, (double)(stats->resyncs - old->resyncs));
    fg_metric_add(router->hits_expected,
                  (double)(stats->hit_blocks_expected - old->hit_blocks_expected));
    fg_metric_add(router->hits_found, (double)(stats->hit_blocks_found - old->hit_blocks_found));
}

static void update_metrics(fg_host_router *router)
{
    const fg_registry *registry = fg_dispatch_registry(router->dispatch);
    double roles[2] = { 0, 0 }, total = 0, used = 0;
    for (uint32_t i = 0; i < fg_registry_count(registry); i++) {
        const fg_reg_worker *w = fg_registry_at(registry, i);
        roles[0] += (w->roles & FG_ROLE_PREFILL) != 0;
        roles[1] += (w->roles & FG_ROLE_DECODE) != 0;
        total += w->load.total;
        used += w->load.total - w->load.free - w->load.cached;
    }
    fg_dispatch_stats stats;
    fg_dispatch_stats_get(router->dispatch, &stats);
    fg_metric_set(router->workers_gauge[0], roles[0]);
    fg_metric_set(router->workers_gauge[1], roles[1]);
    fg_metric_set(router->queued, stats.queued);
    fg_metric_set(router->kv_total, total);
    fg_metric_set(router->kv_usage, total > 0 ? used / total : 0);
    const fg_dispatch_stats *old = &router->counted;
    fg_metric_add(router->lost, (double)(stats.workers_lost - old->workers_lost));
    fg_metric_add(router->pushed_bytes, (double)(stats.pushed_bytes - old->pushed_bytes));
    fg_metric_add(router->pushed_blocks, (double)(stats.pushed_blocks - old->pushed_blocks));
    fg_metric_add(router->push_retries, (double)(stats.push_retries - old->push_retries));
    update_routing(router, &stats);
    router->counted = stats;
    fg_bus_refusals now, *before = &router->refusals;
    fg_bus_zmq_refusals(router->bus, &now);
    fg_metric_add(router->turned_away[0], (double)(now.unknown_key - before->unknown_key));
    fg_metric_add(router->turned_away[1], (double)(now.other_name - before->other_name));
    fg_metric_add(router->turned_away[2], (double)(now.handshake - before->handshake));
    *before = now;
    uint64_t refused = fg_front_refused_count(router->front);
    fg_metric_add(router->connections_refused, (double)(refused - router->connections_counted));
    router->connections_counted = refused;
}

static bool busy(void *ctx)
{
    fg_dispatch_stats stats;
    fg_dispatch_stats_get(((fg_host_router *)ctx)->dispatch, &stats);
    return stats.live > 0;
}

static void on_tick(void *ctx)
{
    fg_host_router *router = ctx;
    fg_dispatch_tick(router->dispatch);
    fg_spans_flush(router->spans);
    update_metrics(router);
}

static uint32_t weight_of(void *ctx, uint64_t tenant)
{
    return fg_service_weight(ctx, tenant);
}

static fg_status open_flight(fg_host_router *router, const fg_serve_config *config,
                             const fg_dispatch_options *options, fg_error *err)
{
    fg_buf preface;
    fg_buf_init(&preface, 0);
    fg_status status = fg_fail(err, FG_AGAIN, "no room for the options in the flight record");
    if (fg_record_put_options(options, &preface)) {
        status = fg_recorder_open(config, config->name, fg_record_shape(), preface.data,
                                  preface.size, &router->flight, err);
    }
    fg_buf_deinit(&preface);
    return status;
}

void fg_host_router_write_flight(fg_host_router *router)
{
    fg_recorder_write(router->flight, "router");
}

enum { CACHE_KEY_BYTES_MIN = 16, CACHE_KEY_BYTES_MAX = 4096 };

/* The same for all routers of a cluster, or one of its own. */
static fg_status read_cache_key(const char *path, fg_digest128 *key_out, fg_error *err)
{
    unsigned char bytes[CACHE_KEY_BYTES_MAX + 1];
    *key_out = (fg_digest128){ .low = fg_rng_entropy(), .high = fg_rng_entropy() };
    if (path == NULL) {
        return FG_OK;
    }
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return fg_fail(err, FG_BAD_INPUT, "--cache-key-file %s: %s", path, strerror(errno));
    }
    size_t size = fread(bytes, 1, sizeof bytes, file);
    bool broken = ferror(file) != 0;
    fclose(file);
    if (broken || size < CACHE_KEY_BYTES_MIN || size > CACHE_KEY_BYTES_MAX) {
        return fg_fail(err, FG_BAD_INPUT, "--cache-key-file %s: it must have %d to %d bytes", path,
                       CACHE_KEY_BYTES_MIN, CACHE_KEY_BYTES_MAX);
    }
    *key_out = fg_hash128(bytes, size, 0);
    return FG_OK;
}

static fg_status open_dispatch(fg_host_router *router, const fg_serve_config *config,
                               const fg_loaded_model *model, fg_error *err)
{
    for (uint32_t i = 0; i < config->prefill.count; i++) {
        router->prefill_names[i] = config->prefill.items[i];
    }
    for (uint32_t i = 0; i < config->decode.count; i++) {
        router->decode_names[i] = config->decode.items[i];
    }
    fg_place_options place = fg_place_defaults();
    place.policy = (fg_place_policy)config->routing;
    place.split = (fg_place_split)config->split;
    place.pull = config->kv_pull == FG_ON ? PULL_MARGIN : 0;
    fg_digest128 cache_key;
    fg_status status = read_cache_key(config->cache_key_file, &cache_key, err);
    status = status != FG_OK ? status
                             : fg_service_init(&router->service, config->slo,
                                               config->tenant_weights, fg_rng_entropy(), err);
    if (status != FG_OK) {
        return status;
    }
    fg_dispatch_options options = {
        .clock = fg_clock_real(),
        .fingerprint = model->fingerprint,
        .router_epoch = fg_rng_entropy(),
        .cache_key = cache_key,
        .trace = router->trace,
        .spans = router->spans,
        .lease_ms = config->lease_ms,
        .stuck_ms = config->stuck_ms,
        .place = place,
        .residency_bytes = (size_t)config->residency_mb << 20,
        .limits = { .queued_max = config->queue_limit,
                    .queued_tokens_max = (uint64_t)config->queue_limit * 65536,
                    .live_max = FG_LIMIT_LIVE_REQUESTS - 1,
                    .tenant_queued_max = config->tenant_queue_limit },
        .weight_of = weight_of,
        .weight_ctx = &router->service,
        .tenant_running_max = config->tenant_running_limit,
        .queue_ahead = config->queue_ahead,
        .wait_for_prefill = router->prefill_names,
        .wait_for_prefill_count = config->prefill.count,
        .wait_for_decode = router->decode_names,
        .wait_for_decode_count = config->decode.count,
        .send = send_frame,
        .drop = drop_peer,
        .ctx = router,
    };
    status = open_flight(router, config, &options, err);
    options.flight = router->flight;
    return status != FG_OK ? status : fg_dispatch_create(&options, &router->dispatch, err);
}

/* The name that clients ask for: as configured, else the file's name without its extension. */
static void name_model(fg_host_router *router, const fg_serve_config *config)
{
    size_t length = strlen(config->model);
    while (length > 1 && config->model[length - 1] == '/') {
        length--; /* of a folder */
    }
    const char *slash = memrchr(config->model, '/', length);
    const char *base = slash != NULL ? slash + 1 : config->model;
    length -= (size_t)(base - config->model);
    if (length > 5 && strcmp(base + length - 5, ".gguf") == 0) {
        length -= 5;
    }
    if (config->served_model_name != NULL) {
        base = config->served_model_name;
        length = strlen(base);
    }
    snprintf(router->model_name, sizeof router->model_name, "%.*s", (int)length, base);
}

static fg_status open_front(fg_host_router *router, fg_loop *loop, const fg_serve_config *config,
                            const fg_loaded_model *model, fg_error *err)
{
    name_model(router, config);
    snprintf(router->fingerprint, sizeof router->fingerprint, "fp_%012llx",
             (unsigned long long)(model->fingerprint.low & 0xFFFFFFFFFFFFu));
    uint32_t context = model->hparams.context_length;
    if (config->context_max != 0 && config->context_max < context) {
        context = config->context_max;
    }
    fg_front_options options = { .loop = loop,
                                 .host = config->host,
                                 .port = (uint16_t)config->port,
                                 .api_keys = router->api_keys,
                                 .tokenizer = model->tokenizer,
                                 .chat = model->chat,
                                 .dispatch = router->dispatch,
                                 .metrics = router->metrics,
                                 .trace = router->trace,
                                 .spans = router->spans,
                                 .flight = router->flight,
                                 .served_model_name = router->model_name,
                                 .system_fingerprint = router->fingerprint,
                                 .context_max = context,
                                 .embedding_length = model->hparams.embedding_length,
                                 .pooling = model->hparams.pooling,
                                 .max_tokens_default = config->max_tokens_default,
                                 .reasoning = (fg_reasoning_format)config->reasoning_format,
                                 .service = &router->service,
                                 .rng = { .state = fg_rng_entropy() },
                                 .clock = fg_clock_real() };
    return fg_front_create(&options, &router->front, err);
}

fg_status fg_host_router_open(fg_loop *loop, const fg_serve_config *config,
                              const fg_loaded_model *model, const fg_host_router_place *place,
                              fg_host_router **router_out, fg_error *err)
{
    fg_metrics *metrics = place->metrics;
    fg_bus_hub *hub = place->hub;
    fg_host_router *router = fg_mem_alloc(sizeof *router);
    if (router == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for the router");
    }
    router->metrics = metrics;
    router->trace = place->trace;
    router->spans = place->spans;
    router->keys = place->keys;
    router->api_keys = place->api_keys;
    register_metrics(router, metrics);
    register_routing(router, metrics);
    fg_bus_events events = {
        .on_up = on_up, .on_frame = on_frame, .on_down = on_down, .ctx = router
    };
    fg_status status = open_dispatch(router, config, model, err);
    if (status == FG_OK && hub != NULL) {
        status = fg_bus_listen_mem(hub, &events, &router->bus, err);
    } else if (status == FG_OK) {
        char endpoint[FG_CONF_HOST_MAX + 32], port[8] = "*";
        if (config->control.port != 0) {
            snprintf(port, sizeof port, "%u", config->control.port);
        }
        snprintf(endpoint, sizeof endpoint, "tcp://%s:%s", config->control.host, port);
        fg_bus_zmq_options options = { .endpoint = endpoint, .keys = place->keys };
        status = fg_bus_open_zmq(loop, &options, &events, &router->bus, err);
    }
    if (status == FG_OK) {
        status = open_front(router, loop, config, model, err);
    }
    if (status == FG_OK) {
        status =
            fg_pulse_start(&router->pulse, loop, TICK_BUSY_MS, TICK_IDLE_MS, on_tick, busy, router);
    }
    if (status == FG_OK && !fg_metrics_ok(metrics)) {
        status = fg_fail(err, FG_AGAIN, "no room for the metrics");
    }
    if (status != FG_OK) {
        fg_host_router_close(router);
        return status;
    }
    *router_out = router;
    return FG_OK;
}

void fg_host_router_close(fg_host_router *router)
{
    if (router == NULL) {
        return;
    }
    fg_pulse_stop(&router->pulse);
    if (router->front != NULL) {
        fg_front_destroy(router->front);
    }
    if (router->bus != NULL) {
        fg_bus_close(router->bus);
    }
    fg_dispatch_destroy(router->dispatch);
    fg_recorder_close(router->flight);
    fg_mem_free(router);
}

uint16_t fg_host_router_port(const fg_host_router *router)
{
    return fg_front_port(router->front);
}

bool fg_host_router_ready(const fg_host_router *router)
{
    return fg_dispatch_ready(router->dispatch);
}

const char *fg_host_router_control(const fg_host_router *router)
{
    const char *endpoint = fg_bus_endpoint(router->bus);
    return endpoint != NULL && strncmp(endpoint, "tcp://", 6) == 0 ? endpoint : "";
}

void fg_host_router_reload_keys(fg_host_router *router)
{
    fg_error err = { 0 };
    if (fg_keys_reload(router->keys, &err) != FG_OK) {
        fg_err("router", "event=keys_not_reloaded why=\"%s\" kept=%u", err.text,
               fg_keys_allowed_count(router->keys));
    } else {
        fg_info("router", "event=keys_reloaded allowed=%u", fg_keys_allowed_count(router->keys));
        fg_bus_zmq_rekey(router->bus);
    }
}

void fg_host_router_drain(fg_host_router *router)
{
    fg_front_drain(router->front);
}

void fg_host_router_abort(fg_host_router *router)
{
    fg_dispatch_abort_all(router->dispatch, "the server is shutting down");
}

bool fg_host_router_idle(const fg_host_router *router)
{
    return fg_front_busy_count(router->front) == 0;
}
