#include "cli/serve.h"

#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/draft.h"
#include "cli/host_router.h"
#include "cli/host_worker.h"
#include "cli/model.h"
#include "common/base/descriptors.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/base/topology.h"
#include "common/engine/tp.h"
#include "common/net/api_keys.h"
#include "common/net/http.h"
#include "common/net/http_count.h"
#include "common/net/keys.h"
#include "common/obs/metrics.h"
#include "common/obs/trace.h"
#include "common/sched/sched.h"
#include "kernels/device.h"
#include "proto/wire.h"

enum {
    SERIES_MAX = 512,
    TRACE_STEPS = 4096,
    TRACE_SPANS = 16384,
    DRAIN_CHECK_MS = 50,
    IDLE_CHECKS = 2, /* so that the last bytes of the last answer leave too */
};
#define ABORT_NS       (1000ull * 1000 * 1000)
#define SAME_SIGNAL_NS (1000ull * 1000 * 1000)

typedef struct serve {
    fg_serve_config config;
    char device[FG_TP_DEVICE_MAX]; /* the first process's */
    fg_loaded_model model;
    fg_keys *keys;         /* NULL: none */
    fg_api_keys *api_keys; /* NULL: none */
    fg_loop *loop;
    fg_metrics *metrics;
    fg_trace *trace;
    fg_spans *spans; /* NULL: nobody asked for them */
    fg_bus_hub *hub;
    fg_host_router *router;
    fg_host_worker *worker;
    fg_http_server *status_server;
    fg_http_count *status_count;
    fg_timer *drain_timer;
    fg_clock clock;
    fg_start start;
    uint64_t signalled_ns, drain_until_ns;
    bool draining, aborted;
    uint32_t idle_checks;
} serve;

/* ---- what the flags allow ---- */

static bool is_loopback(const char *host)
{
    /* By value: a name may begin with "127." too. */
    struct in_addr v4;
    struct in6_addr v6;
    return (inet_pton(AF_INET, host, &v4) == 1 && ntohl(v4.s_addr) >> 24 == 127) ||
           (inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6)) ||
           strcmp(host, "localhost") == 0;
}

static bool is_good_name(const char *name)
{
    size_t length = strlen(name);
    return length > 0 && length <= FG_LIMIT_NAME_BYTES &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") ==
               length;
}

static bool is_worker(const fg_serve_config *config)
{
    return config->mode == FG_MODE_PREFILL || config->mode == FG_MODE_DECODE;
}

static bool has_api_keys(const fg_serve_config *config)
{
    return config->api_key != NULL || config->api_key_file != NULL;
}

/* The first router that is not on this host, else the first. */
static const char *far_router(const fg_serve_config *config)
{
    for (uint32_t i = 0; i < config->router.count; i++) {
        if (!is_loopback(config->router.items[i].host)) {
            return config->router.items[i].host;
        }
    }
    return config->router.items[0].host;
}

/* Beyond loopback HTTP and the bus need keys. The link's addresses travel only over the bus; what passes over the
 * link itself nobody protects but the network. */
static fg_status check_network(const fg_serve_config *config, fg_error *err)
{
    bool worker = is_worker(config);
    if (config->keys != NULL && config->mode == FG_MODE_STANDALONE) {
        return fg_fail(err, FG_BAD_INPUT,
                       "--keys is for --mode router, prefill and decode: one process alone has no "
                       "bus to protect");
    }
    const struct {
        const char *flag, *host;
        bool used, keys_do;
    } places[] = { { "--host", config->host, !worker || config->status_port >= 0, false },
                   { "--control", config->control.host, config->mode == FG_MODE_ROUTER, true },
                   { "--router", far_router(config), worker, true },
                   { "--link-host", config->link_host, worker, true } };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        bool keyed = places[i].keys_do ? config->keys != NULL : has_api_keys(config);
        bool safe = is_loopback(places[i].host) || keyed;
        if (!places[i].used || safe || config->insecure_network) {
            continue;
        }
        return places[i].keys_do
                   ? fg_fail(err, FG_BAD_INPUT,
                             "%s %s is beyond this host: give --keys DIR (`forge keygen` makes "
                             "them), or say --insecure-network on a network that you trust",
                             places[i].flag, places[i].host)
                   : fg_fail(err, FG_BAD_INPUT,
                             "%s %s is reachable from outside, and clients need no key: give "
                             "--api-key-file FILE (`forge keygen --api` makes it), use 127.0.0.1, "
                             "or say --insecure-network on a network that you trust",
                             places[i].flag, places[i].host);
    }
    return FG_OK;
}

static void warn_of_network(const fg_serve_config *config)
{
    bool worker = is_worker(config);
    bool beyond = worker ? !is_loopback(far_router(config)) || !is_loopback(config->link_host)
                         : config->mode == FG_MODE_ROUTER && !is_loopback(config->control.host);
    if (beyond && config->keys == NULL) {
        fg_warn("serve", "event=insecure_network why=\"whoever reaches the bus can join it, read "
                         "prompts and answer requests: see --keys\"");
    }
    if (!is_loopback(config->host) && (!worker || config->status_port >= 0)) {
        fg_warn("serve", "event=plain_http host=%s why=\"%s\"", config->host,
                has_api_keys(config)
                    ? "keys, prompts and answers cross the network unencrypted: let a proxy speak "
                      "TLS in front"
                    : "whoever reaches this port is served, unencrypted: see --api-key-file");
    }
}

/* Whoever gives a flag expects something of it. None of these contradicts a device with memory of its own, so the process
 * serves all the same. */
static void warn_of_unused(const fg_serve_config *config)
{
    if (config->mode == FG_MODE_ROUTER) {
        return;
    }
    if (fg_device_kind_is_host(config->device)) {
        if (config->kv_zero_copy == FG_ON && config->tensor_parallel_size > 1) {
            fg_warn("serve",
                    "event=flag_without_effect flag=--kv-zero-copy why=\"several processes "
                    "compute here, which do not reach into another worker's memory\"");
        }
        return;
    }
    bool cache =
        strcmp(config->weights_cache, "auto") != 0 && strcmp(config->weights_cache, "off") != 0;
    const struct {
        const char *flag;
        bool given;
        const char *why;
    } flags[] = {
        { "--threads", config->threads > 1, "the host has one thread of work beside it" },
        { "--cpu-isa", config->cpu_isa != FG_ISA_AUTO, "its kernels are not the processor's" },
        { "--cpu-pin", config->cpu_pin == FG_PIN_ON, "it has no compute threads to hold" },
        { "--kv-zero-copy", config->kv_zero_copy == FG_ON,
          "no worker reaches into the memory of another one's device" },
        { "--weights-cache", cache, "it packs the weights into its own memory at each start" },
    };
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        if (flags[i].given) {
            fg_warn("serve", "event=flag_without_effect flag=%s device=%s why=\"%s\"",
                    flags[i].flag, config->device, flags[i].why);
        }
    }
}

/* The first process's device, which must be there; the others look for theirs. */
static fg_status check_devices(serve *s, fg_error *err)
{
    fg_serve_config *config = &s->config;
    fg_device_info info;
    config->devices = config->device;
    fg_status status =
        fg_tp_device(config->devices, config->tensor_parallel_size, 0, s->device, err);
    config->device = s->device;
    if (status != FG_OK || config->mode == FG_MODE_ROUTER ||
        fg_device_kind_is_host(config->device)) {
        return status;
    }
    return fg_device_describe(config->device, &info, err);
}

static fg_status check_config(serve *s, fg_error *err)
{
    fg_serve_config *config = &s->config;
    bool worker = is_worker(config);
    if (config->model == NULL) {
        return fg_fail(err, FG_BAD_INPUT,
                       "--model FILE is missing: `deploy/get-model` fetches one");
    }
    if (worker && config->router.count == 0) {
        return fg_fail(err, FG_BAD_INPUT,
                       "--router ADDR is missing: the router's control address, "
                       "as it prints it at start");
    }
    if (config->name != NULL && !is_good_name(config->name)) {
        return fg_fail(err, FG_BAD_INPUT, "--name takes 1 to %u letters, digits, '.', '_' or '-'",
                       FG_LIMIT_NAME_BYTES);
    }
    for (uint32_t i = 0; worker && i < config->router.count; i++) {
        if (config->router.items[i].port == 0) {
            return fg_fail(err, FG_BAD_INPUT,
                           "--router %s:0 is no address: give the port that the "
                           "router prints as control=",
                           config->router.items[i].host);
        }
    }
    if ((config->block_size & (config->block_size - 1)) != 0) {
        return fg_fail(err, FG_BAD_INPUT, "--block-size %u must be a power of two",
                       config->block_size);
    }
    if (config->kv_disk != NULL && config->kv_disk[0] == '\0') {
        return fg_fail(err, FG_BAD_INPUT, "--kv-disk needs a directory");
    }
    if (config->kv_disk != NULL && config->kv_host_blocks == 0) {
        return fg_fail(err, FG_BAD_INPUT,
                       "--kv-disk %s needs --kv-host-blocks N: how many blocks to keep there",
                       config->kv_disk);
    }
    if (config->preemption == FG_PREEMPT_SWAP && config->kv_host_blocks == 0) {
        return fg_fail(err, FG_BAD_INPUT,
                       "--preemption swap needs --kv-host-blocks N: where to swap to");
    }
    fg_status status = fg_draft_check(config, err);
    status = status != FG_OK ? status : check_devices(s, err);
    if (status != FG_OK) {
        return status;
    }
    if (config->max_batch_tokens < config->max_seqs) {
        return fg_fail(err, FG_BAD_INPUT, "--max-batch-tokens %u must be at least --max-seqs %u",
                       config->max_batch_tokens, config->max_seqs);
    }
    return check_network(config, err);
}

/* The keys may know the name of their worker, and allow no other. */
static fg_status open_keys(serve *s, fg_error *err)
{
    fg_serve_config *config = &s->config;
    bool router = config->mode == FG_MODE_ROUTER;
    if (config->keys == NULL) {
        return FG_OK;
    }
    fg_keys_options options = { .directory = config->keys,
                                .name = router ? "router" : config->name,
                                .server = router };
    fg_status status = fg_keys_open(&options, &s->keys, err);
    if (status != FG_OK || router) {
        return status;
    }
    const char *name = fg_keys_name(s->keys);
    if (config->name == NULL && name[0] != '\0') {
        config->name = name;
    }
    if (name[0] != '\0' && strcmp(config->name, name) != 0) {
        return fg_fail(err, FG_BAD_INPUT, "--name %s: the keys in --keys %s are for %s",
                       config->name, config->keys, name);
    }
    return FG_OK;
}

static fg_status open_api_keys(serve *s, fg_error *err)
{
    fg_api_keys_options options = { .file = s->config.api_key_file, .key = s->config.api_key };
    return has_api_keys(&s->config) ? fg_api_keys_open(&options, &s->api_keys, err) : FG_OK;
}

static const char *mode_name(int mode)
{
    static const char *const names[] = { "standalone", "router", "prefill", "decode" };
    return names[mode];
}

/* Who has closed the output, or has no room for it, does not miss the line: the process serves all the same. */
static void end_line(void)
{
    putchar('\n');
    if (fflush(stdout) != 0) {
        fg_warn("serve", "event=output_lost why=\"%s\"", strerror(errno));
        clearerr(stdout);
    }
}

/* ---- status pages of a worker ---- */

enum { KEY_CODES = FG_HTTP_401 | FG_HTTP_403 };

static const fg_http_route status_routes[] = {
    { "/live", FG_HTTP_200 | FG_HTTP_405 },
    { "/health", FG_HTTP_200 | FG_HTTP_405 | FG_HTTP_503 },
    { "/metrics", KEY_CODES | FG_HTTP_200 | FG_HTTP_405 | FG_HTTP_503 },
    { "/debug/trace", KEY_CODES | FG_HTTP_200 | FG_HTTP_405 | FG_HTTP_503 },
    { "/debug/flight", KEY_CODES | FG_HTTP_200 | FG_HTTP_404 | FG_HTTP_405 | FG_HTTP_503 },
};

/* The route of a path, as it is counted. */
static const char *status_route(const char *path)
{
    for (size_t i = 0; i < sizeof status_routes / sizeof status_routes[0]; i++) {
        if (strcmp(path, status_routes[i].route) == 0) {
            return status_routes[i].route;
        }
    }
    return FG_HTTP_OTHER;
}

/* One answer of a status page; `out` is what was rendered of it, or failed. */
typedef struct status_page {
    int status;
    const char *type;
    fg_buf out;
} status_page;

static void say(status_page *page, int status, const char *text)
{
    page->status = status;
    fg_buf_puts(&page->out, text);
}

static void say_error(status_page *page, int status, const char *code, const char *text)
{
    page->status = status;
    fg_buf_printf(&page->out,
                  "{\"error\":{\"message\":\"%s\",\"type\":\"invalid_request_error\","
                  "\"param\":null,\"code\":%s}}",
                  text, code);
}

static void render_flight(const serve *s, fg_http_exchange *exchange, status_page *page)
{
    const fg_flight *flight = fg_host_worker_flight(s->worker);
    if (flight == NULL) {
        say_error(page, 404, "\"not_found\"",
                  "this process keeps no flight record: see --flight-recorder-mb");
    } else if (fg_flight_render(flight, &page->out)) {
        page->type = "application/octet-stream";
        fg_http_add_header(exchange, "content-disposition",
                           "attachment; filename=\"forge-flight.bin\"");
    }
}

static uint32_t scope_of(const char *route)
{
    if (strcmp(route, "/live") == 0 || strcmp(route, "/health") == 0) {
        return FG_API_ANYONE;
    }
    return strcmp(route, "/metrics") == 0 ? FG_API_METRICS : FG_API_ADMIN;
}

static fg_api_verdict check_key(const serve *s, const char *authorization, const char *route)
{
    const char *name;
    return fg_api_keys_check(s->api_keys, authorization, scope_of(route), (int64_t)time(NULL),
                             &name);
}

static bool wants_status_body(void *ctx, const fg_http_request *request, const char *authorization)
{
    return check_key(ctx, authorization, status_route(request->path)) == FG_API_FINE;
}

/* False: the page says why. */
static bool is_let_in(const serve *s, fg_http_exchange *exchange, const char *route,
                      status_page *page)
{
    fg_api_verdict verdict = check_key(s, fg_http_header(exchange, "authorization"), route);
    if (verdict == FG_API_UNKNOWN) {
        fg_http_add_header(exchange, "www-authenticate", "Bearer");
        say_error(page, 401, "\"invalid_api_key\"", FG_API_KEY_WANTED);
    } else if (verdict == FG_API_NOT_FOR) {
        say_error(page, 403, "\"insufficient_scope\"", "this API key is not for that");
    }
    return verdict == FG_API_FINE;
}

static void render_status(const serve *s, fg_http_exchange *exchange,
                          const fg_http_request *request, const char *route, status_page *page)
{
    if (!is_let_in(s, exchange, route, page)) {
        return;
    }
    if (strcmp(route, FG_HTTP_OTHER) == 0) {
        say_error(page, 404, "\"not_found\"",
                  "not found: try /live, /health, /metrics, /debug/trace or /debug/flight");
    } else if (strcmp(request->method, "GET") != 0 && strcmp(request->method, "HEAD") != 0) {
        fg_http_add_header(exchange, "allow", "GET, HEAD");
        say_error(page, 405, "null", "use GET");
    } else if (strcmp(route, "/live") == 0) {
        say(page, 200, "{\"status\":\"ok\"}");
    } else if (strcmp(route, "/health") == 0) {
        bool ok = fg_host_worker_joined(s->worker) && !s->draining;
        say(page, ok ? 200 : 503, ok ? "{\"status\":\"ok\"}" : "{\"status\":\"not joined\"}");
    } else if (strcmp(route, "/debug/trace") == 0) {
        fg_trace_render(s->trace, (uint32_t)getpid(), &page->out);
    } else if (strcmp(route, "/debug/flight") == 0) {
        render_flight(s, exchange, page);
    } else {
        page->type = "text/plain; version=0.0.4; charset=utf-8";
        fg_metrics_render(s->metrics, &page->out);
    }
}

static void on_status_request(void *ctx, fg_http_exchange *exchange, const fg_http_request *request)
{
    serve *s = ctx;
    const char *route = status_route(request->path);
    status_page page = { .status = 200, .type = "application/json" };
    fg_buf_init(&page.out, 0);
    render_status(s, exchange, request, route, &page);
    if (page.out.failed) {
        page.status = 503;
        page.type = "application/json";
    }
    fg_http_count_add(s->status_count, route, page.status);
    fg_http_reply(exchange, page.status, page.type, page.out.failed ? "{}" : page.out.data,
                  page.out.failed ? 2 : page.out.size);
    fg_buf_deinit(&page.out);
}

static void on_status_refused(void *ctx, int status)
{
    fg_http_count_add(((serve *)ctx)->status_count, FG_HTTP_OTHER, status);
}

static void on_status_gone(void *ctx, fg_http_exchange *exchange)
{
    /* Every answer above is given at once; nothing waits for this client. */
}

/* "http://HOST:PORT", an IPv6 address in brackets. */
static void print_url(const serve *s, uint16_t port)
{
    bool bare = strchr(s->config.host, ':') != NULL;
    printf("http://%s%s%s:%u", bare ? "[" : "", s->config.host, bare ? "]" : "", port);
}

static fg_status open_status(serve *s, fg_error *err)
{
    if (s->config.status_port < 0) {
        return FG_OK;
    }
    fg_http_handler handler = { .on_request = on_status_request,
                                .wants_body = wants_status_body,
                                .on_gone = on_status_gone,
                                .on_refused = on_status_refused,
                                .ctx = s };
    fg_status status =
        fg_http_count_create(s->metrics, status_routes,
                             sizeof status_routes / sizeof status_routes[0], &s->status_count, err);
    if (status == FG_OK) {
        status = fg_http_listen(s->loop, s->config.host, (uint16_t)s->config.status_port, NULL,
                                &handler, &s->status_server, err);
    }
    if (status == FG_OK) {
        fputs("status http=", stdout);
        print_url(s, fg_http_port(s->status_server));
        end_line();
    }
    return status;
}

/* ---- start, run, end ---- */

/* One process alone says that it listens when it can answer: its worker joins in the loop's first turns. */
static void wait_until_ready(serve *s)
{
    while (s->hub != NULL && !s->draining && !fg_host_router_ready(s->router)) {
        (void)fg_loop_run_once(s->loop, true);
    }
}

static void report_start(serve *s)
{
    double ms = (double)(fg_clock_now_ns(&s->clock) - s->start.began_ns) / 1e6;
    fg_info("serve", "event=started mode=%s model=\"%s\" layers=%u vocab=%u start_ms=%.0f",
            mode_name(s->config.mode), s->model.hparams.name, s->model.hparams.layer_count,
            s->model.hparams.vocab_size, ms);
    fg_start_tell(&s->start, s->worker != NULL ? fg_host_worker_engine(s->worker) : NULL,
                  s->model.layout.dtype, s->metrics);
    if (s->worker != NULL) {
        uint32_t blocks = fg_host_worker_blocks(s->worker);
        fg_info("serve", "event=kv blocks=%u block_size=%u block_bytes=%zu mib=%zu class=%s",
                blocks, s->model.layout.block_size, s->model.layout.block_bytes,
                (blocks * s->model.layout.block_bytes) >> 20, fg_host_worker_class(s->worker));
    }
    if (s->router != NULL) {
        const char *control = fg_host_router_control(s->router);
        fputs("listening http=", stdout);
        print_url(s, fg_host_router_port(s->router));
        printf("%s%s", control[0] != '\0' ? " control=" : "", control);
        end_line();
    }
}

static void drain_check(void *ctx)
{
    serve *s = ctx;
    bool idle = (s->router == NULL || fg_host_router_idle(s->router)) &&
                (s->worker == NULL || fg_host_worker_idle(s->worker));
    bool late = fg_clock_now_ns(&s->clock) >= s->drain_until_ns;
    s->idle_checks = idle ? s->idle_checks + 1 : 0;
    if (late && !idle && !s->aborted) {
        /* Nobody is left without a word: what still runs ends with an error, which gets a second to
         * leave this process. */
        s->aborted = true;
        s->drain_until_ns = fg_clock_now_ns(&s->clock) + ABORT_NS;
        if (s->router != NULL) {
            fg_host_router_abort(s->router);
        } else if (s->worker != NULL) {
            fg_host_worker_abort(s->worker);
        }
    } else if (s->idle_checks > IDLE_CHECKS || late) {
        fg_info("serve", "event=ending finished_all=%s", s->aborted || !idle ? "no" : "yes");
        fg_loop_stop(s->loop);
    }
}

static void on_signal(void *ctx, int signal)
{
    serve *s = ctx;
    uint64_t now = fg_clock_now_ns(&s->clock);
    if (s->draining && now - s->signalled_ns < SAME_SIGNAL_NS) {
        return; /* Ctrl-C reaches a whole process group, and a supervisor adds its own */
    }
    if (s->draining) {
        fg_warn("serve", "event=second_signal");
        s->drain_until_ns = now;
        return;
    }
    s->signalled_ns = now;
    s->draining = true;
    s->drain_until_ns =
        fg_clock_now_ns(&s->clock) + (uint64_t)s->config.drain_seconds * 1000000000u;
    fg_info("serve", "event=draining signal=%d limit_s=%u", signal, s->config.drain_seconds);
    if (s->router != NULL) {
        fg_host_router_drain(s->router);
    } else if (s->worker != NULL) {
        fg_host_worker_drain(s->worker);
    }
    if (fg_timer_start(s->loop, DRAIN_CHECK_MS, DRAIN_CHECK_MS, drain_check, s, &s->drain_timer) !=
        FG_OK) {
        fg_loop_stop(s->loop);
    }
}

/* Spans are timed by the clock that never jumps; what is to be added to it is taken once. */
static fg_status open_spans(serve *s, fg_error *err)
{
    if (s->config.otlp_file == NULL) {
        return FG_OK;
    }
    if (s->config.otlp_file[0] == '\0') {
        return fg_fail(err, FG_BAD_INPUT, "--otlp-file needs a file or a folder");
    }
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    int64_t wall_ns = (int64_t)wall.tv_sec * 1000000000 + wall.tv_nsec;
    fg_spans_options options = { .path = s->config.otlp_file,
                                 .file_bytes_max = (uint64_t)s->config.otlp_file_mb << 20,
                                 .sample = s->config.otlp_sample,
                                 .process = { .instance = s->config.name,
                                              .role = mode_name(s->config.mode),
                                              .pid = (uint64_t)getpid() },
                                 .offset_ns = wall_ns - (int64_t)fg_clock_now_ns(&s->clock),
                                 .rng = { .state = fg_rng_entropy() } };
    return fg_spans_open(&options, &s->spans, err);
}

static bool has_key_lists(const serve *s)
{
    return s->keys != NULL || fg_api_keys_have_file(s->api_keys);
}

static void reload_api_keys(serve *s)
{
    fg_error err;
    if (fg_api_keys_reload(s->api_keys, &err) != FG_OK) {
        fg_err("serve", "event=api_keys_not_reloaded why=\"%s\" kept=%u", err.text,
               fg_api_keys_count(s->api_keys));
    } else {
        fg_info("serve", "event=api_keys_reloaded count=%u", fg_api_keys_count(s->api_keys));
    }
}

/* With keys SIGHUP says that a list of them has changed; without, that the terminal is gone. */
static void on_hangup(void *ctx)
{
    serve *s = ctx;
    if (!has_key_lists(s)) {
        on_signal(s, SIGHUP);
        return;
    }
    if (fg_api_keys_have_file(s->api_keys)) {
        reload_api_keys(s);
    }
    if (s->keys != NULL && s->router != NULL) {
        fg_host_router_reload_keys(s->router);
    } else if (s->keys != NULL) {
        fg_info("serve", "event=hangup ignored=yes why=\"a worker reads its keys at start\"");
    }
}

static void on_user(void *ctx)
{
    serve *s = ctx;
    if (s->router != NULL) {
        fg_host_router_write_flight(s->router);
    }
    if (s->worker != NULL) {
        fg_host_worker_write_flight(s->worker);
    }
}

static fg_status open_router(serve *s, fg_error *err)
{
    if (s->config.mode > FG_MODE_ROUTER) {
        return FG_OK;
    }
    fg_host_router_place place = { .metrics = s->metrics,
                                   .trace = s->trace,
                                   .spans = s->spans,
                                   .keys = s->keys,
                                   .api_keys = s->api_keys,
                                   .hub = s->hub };
    return fg_host_router_open(s->loop, &s->config, &s->model, &place, &s->router, err);
}

static fg_status open_worker(serve *s, fg_error *err)
{
    if (s->config.mode == FG_MODE_ROUTER) {
        return FG_OK;
    }
    uint32_t roles = s->config.mode == FG_MODE_PREFILL  ? FG_ROLE_PREFILL
                     : s->config.mode == FG_MODE_DECODE ? FG_ROLE_DECODE
                                                        : FG_ROLE_PREFILL | FG_ROLE_DECODE;
    fg_host_worker_place place = { .roles =
                                       s->config.roles != 0 ? (uint32_t)s->config.roles : roles,
                                   .metrics = s->metrics,
                                   .trace = s->trace,
                                   .spans = s->spans,
                                   .start = &s->start,
                                   .keys = s->keys,
                                   .hub = s->hub };
    return fg_host_worker_open(s->loop, &s->config, &s->model, &place, &s->worker, err);
}

static fg_status open_parts(serve *s, fg_error *err)
{
    fg_status status = fg_loop_create(&s->loop, err);
    status = status != FG_OK ? status : fg_loop_on_signal(s->loop, on_signal, s);
    status = status != FG_OK ? status : fg_loop_on_user(s->loop, on_user, s);
    if (status == FG_OK && (has_key_lists(s) || !fg_loop_hangup_ignored())) {
        status = fg_loop_on_hangup(s->loop, on_hangup, s);
    }
    s->metrics = fg_metrics_create(SERIES_MAX);
    s->trace = fg_trace_create(s->config.name, TRACE_STEPS, TRACE_SPANS);
    status = status != FG_OK ? status : open_spans(s, err);
    if (status == FG_OK && (s->metrics == NULL || s->trace == NULL)) {
        status = fg_fail(err, FG_AGAIN, "out of memory for metrics and trace");
    }
    if (status != FG_OK) {
        return status;
    }
    fg_start_lap(&s->start, FG_START_OTHER);
    fg_loaded_model_options model = { .path = s->config.model,
                                      .device = s->config.device,
                                      .kv_dtype = (uint32_t)s->config.kv_dtype,
                                      .block_size = s->config.block_size };
    status = fg_loaded_model_open(&s->model, &model, &s->start, err);
    if (status == FG_OK && s->config.mode == FG_MODE_STANDALONE) {
        fg_bus_hub_options options = { .loop = s->loop };
        status = fg_bus_hub_create(&options, &s->hub, err);
    }
    /* The worker first: its weights are checked while the tokenizer is read. */
    status = status != FG_OK ? status : open_worker(s, err);
    status = status != FG_OK ? status : fg_loaded_model_finish(&s->model, &s->start, err);
    status = status != FG_OK ? status : open_router(s, err);
    fg_start_lap(&s->start, FG_START_ROUTER);
    return status != FG_OK || s->router != NULL ? status : open_status(s, err);
}

static void close_parts(serve *s)
{
    fg_timer_close(s->drain_timer);
    if (s->status_server != NULL) {
        fg_http_close(s->status_server);
    }
    fg_host_worker_close(s->worker);
    fg_host_router_close(s->router);
    if (s->hub != NULL) {
        fg_bus_hub_destroy(s->hub);
    }
    fg_loaded_model_close(&s->model);
    if (s->loop != NULL) {
        fg_loop_destroy(s->loop);
    }
    fg_http_count_destroy(s->status_count);
    fg_metrics_destroy(s->metrics);
    fg_trace_destroy(s->trace);
    fg_spans_close(s->spans);
}

static int bad_start(const fg_error *err)
{
    fprintf(stderr, "forge serve: %s\n", err->text);
    return 2;
}

static int print_help(const char *word)
{
    fg_buf out;
    fg_buf_init(&out, 0);
    size_t shown = fg_conf_render_help(&fg_serve_spec, word, &out);
    fwrite(out.data, 1, out.size, stdout);
    fg_buf_deinit(&out);
    return shown > 0 ? 0 : 2;
}

static void print_device(const char *name, const fg_device_info *info, const char *more)
{
    printf("%-8s %-40s %-12s %8.1f GiB, %.1f free%s\n", name, info->name, info->isa,
           (double)info->memory_bytes / 0x1p30, (double)info->free_bytes / 0x1p30, more);
}

/* What --device can be here. */
static int print_devices(void)
{
    enum { DEVICES_MAX = 64 };
    fg_device_info infos[DEVICES_MAX];
    fg_error err = { 0 };
    char text[40];
    fg_topology topology;
    fg_topology_read("", NULL, &topology);
    snprintf(text, sizeof text, ", %u threads", fg_topology_thread_count(&topology));
    if (fg_device_list("cpu", infos, 1, &err) == 1) {
        print_device("cpu", &infos[0], text);
    }
    uint32_t count = fg_device_list("cuda", infos, DEVICES_MAX, &err);
    for (uint32_t i = 0; i < count; i++) {
        snprintf(text, sizeof text, "cuda:%u", i);
        print_device(text, &infos[i], "");
    }
    if (count == 0) {
        printf("cuda     none: %s\n", err.text);
    }
    return 0;
}

int fg_serve_main(int argc, const char *const *argv, const char *const *environment)
{
    serve *s = fg_mem_alloc(sizeof *s);
    fg_error err = { 0 };
    if (s == NULL) {
        return bad_start(&(fg_error){ .text = "out of memory" });
    }
    fg_descriptors_raise(FG_LIMIT_DESCRIPTORS);
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is a full disk, not our end */
    s->clock = fg_clock_real();
    s->start = fg_start_now();
    fg_conf_input input = { .argc = argc, .argv = argv, .environment = environment };
    fg_conf_asked asked = { 0 };
    int code = 0;
    fg_status status = fg_conf_parse(&fg_serve_spec, &input, &s->config, &asked, &err);
    if (status == FG_OK && asked.help) {
        code = print_help(asked.help_word);
        fg_mem_free(s);
        return code;
    }
    if (status == FG_OK && s->config.list_devices) {
        fg_mem_free(s);
        return print_devices();
    }
    status = status != FG_OK ? status : check_config(s, &err);
    status = status != FG_OK ? status : open_keys(s, &err);
    status = status != FG_OK ? status : open_api_keys(s, &err);
    if (status == FG_OK) {
        char name[FG_LIMIT_NAME_BYTES + 1];
        snprintf(name, sizeof name, "%s-%d", mode_name(s->config.mode), (int)getpid());
        if (s->config.name == NULL) {
            s->config.name = name;
        }
        fg_log_set_process(s->config.name);
        fg_log_set_level((fg_log_level)s->config.log_level);
        warn_of_network(&s->config);
        warn_of_unused(&s->config);
        status = open_parts(s, &err);
        if (status == FG_OK) {
            wait_until_ready(s);
            report_start(s);
            fg_loop_run(s->loop);
        }
        close_parts(s);
    }
    if (status != FG_OK) {
        code = bad_start(&err);
    }
    fg_keys_close(s->keys);
    fg_api_keys_close(s->api_keys);
    fg_mem_free(s);
    return code;
}
