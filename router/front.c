#include "router/front.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/net/http_count.h"
#include "router/api.h"
#include "router/batch.h"
#include "router/meter.h"
#include "router/stream.h"
#include "router/tracing.h"

enum { MAX_TOKENS_DEFAULT = 512, RETRY_MS = 20 };

struct fg_front {
    fg_front_options options;
    char *model_name;
    char *fingerprint;
    int64_t started_s;
    bool draining;
    fg_http_server *http;
    fg_streams *streams;
    fg_batches *batches;
    fg_meter *meter;
    fg_wake *wake;      /* there is news: written once per turn, not from dispatch's callbacks */
    fg_timer *retry;    /* runs only while a reader is too slow, or a batch waits for room */
    fg_buf page;        /* bodies of the small routes */
    char id[48];        /* of the request that was drawn last */
    const char *caller; /* whose key the request showed that is looked at; "": nobody's of a name */
};

typedef void (*route_fn)(fg_front *front, fg_http_exchange *exchange,
                         const fg_http_request *request, const char *route);

static int64_t unix_time(const fg_front *front)
{
    return front->options.unix_time == NULL
               ? (int64_t)time(NULL)
               : front->options.unix_time(front->options.unix_time_ctx);
}

/* The context that a request may use now: the model's, or less where the workers hold less. */
static fg_api_server api_server(const fg_front *front)
{
    uint32_t held = fg_dispatch_context_max(front->options.dispatch);
    uint32_t context_max = front->options.context_max;
    return (fg_api_server){
        .tokenizer = front->options.tokenizer,
        .chat = front->options.chat,
        .model_name = front->model_name,
        .fingerprint = front->fingerprint,
        .context_max = held != 0 && held < context_max ? held : context_max,
        .max_tokens_default = front->options.max_tokens_default,
        .service = front->options.service,
        .reasoning = front->options.reasoning,
        .embedding_length = front->options.embedding_length,
        .pooling = front->options.pooling,
    };
}

static void reply_page(fg_front *front, fg_http_exchange *exchange, const char *route,
                       const char *content_type)
{
    if (front->page.failed) {
        fg_api_error error;
        fg_api_refuse(&error, FG_AGAIN, 503, NULL, NULL, "out of memory");
        fg_stream_reply_error(front->streams, exchange, route, &error);
        return;
    }
    fg_meter_http(front->meter, route, 200);
    fg_http_reply(exchange, 200, content_type, front->page.data == NULL ? "" : front->page.data,
                  front->page.size);
}

/* A missing content type is taken for JSON, as other servers do; another one is refused. */
static bool is_json(const fg_http_exchange *exchange)
{
    static const char json[] = "application/json";
    const char *type = fg_http_header(exchange, "content-type");
    if (type == NULL) {
        return true;
    }
    size_t length = strcspn(type, "; \t");
    return length == sizeof json - 1 && strncasecmp(type, json, length) == 0;
}

/* Draws a name: 128 random bits, so that no client can guess another's. */
static void draw_name(fg_front *front, const char *prefix, char *out, size_t capacity)
{
    uint64_t high = fg_rng_next(&front->options.rng);
    uint64_t low = fg_rng_next(&front->options.rng);
    snprintf(out, capacity, "%s%016" PRIx64 "%016" PRIx64, prefix, high, low);
}

/* What every request is measured against now, and what is drawn for this one. */
static void on_call(void *ctx, fg_api_kind kind, fg_api_server *server_out, fg_api_call *call_out)
{
    static const char *const begins[] = {
        [FG_API_CHAT] = "chatcmpl-", [FG_API_COMPLETION] = "cmpl-", [FG_API_EMBEDDING] = "embd-"
    };
    fg_front *front = ctx;
    draw_name(front, begins[kind], front->id, sizeof front->id);
    *server_out = api_server(front);
    *call_out = (fg_api_call){
        .id = front->id,
        .created_s = unix_time(front),
        .seed = fg_rng_next(&front->options.rng),
    };
}

/* The trace of a request, whose place in it the answer names. */
static void begin_trace(fg_front *front, fg_http_exchange *exchange, fg_request_trace *trace_out)
{
    char text[FG_TRACEPARENT_LENGTH + 1];
    fg_tracing_begin(front->options.spans, &front->options.rng,
                     fg_http_header(exchange, "traceparent"),
                     fg_http_header(exchange, "tracestate"), trace_out);
    if (trace_out->known) {
        fg_traceparent_format(&trace_out->own, text);
        fg_http_add_header(exchange, "traceparent", text);
    }
    if (trace_out->state != NULL) {
        fg_http_add_header(exchange, "tracestate", trace_out->state);
    }
}

/* Answers with an error, which the trace shows. */
static void refuse(fg_front *front, fg_http_exchange *exchange, const char *route,
                   const fg_request_trace *trace, const fg_api_error *error)
{
    uint64_t now = fg_clock_now_ns(&front->options.clock);
    fg_tracing_end end = {
        .route = route, .began_ns = now, .ended_ns = now, .http_status = error->http_status
    };
    fg_tracing_end_request(front->options.spans, trace, &end);
    fg_stream_reply_error(front->streams, exchange, route, error);
}

/* Whether a body is taken at all. */
static fg_status check_door(const fg_front *front, const fg_http_exchange *exchange,
                            fg_api_error *error_out)
{
    if (!is_json(exchange)) {
        return fg_api_refuse(error_out, FG_BAD_INPUT, 415, NULL, NULL,
                             "the content type must be application/json, not %.64s",
                             fg_http_header(exchange, "content-type"));
    }
    if (front->draining) {
        return fg_api_refuse(error_out, FG_PEER_LOST, 503, NULL, "no_worker",
                             "the server is shutting down");
    }
    return FG_OK;
}

/* A generation request on its way to its stream. */
typedef struct call {
    const char *route;
    fg_api_kind kind;
    fg_api_server server;
    fg_api_call api;
    fg_request_trace trace;
} call;

static fg_status open_stream(fg_front *front, fg_http_exchange *exchange,
                             const fg_http_request *http, const call *this, fg_api_error *error_out)
{
    fg_status status = check_door(front, exchange, error_out);
    if (status != FG_OK) {
        return status;
    }
    fg_arena *arena = fg_arena_create(FG_API_ARENA_BYTES);
    if (arena == NULL) {
        return fg_api_refuse(error_out, FG_AGAIN, 503, NULL, NULL, "out of memory");
    }
    fg_request request;
    status = fg_api_parse(&this->server, this->kind, http->body, http->body_bytes, &this->api,
                          arena, &request, error_out);
    if (status == FG_OK && fg_tracing_apply(&this->trace, &request) != FG_OK) {
        status = fg_api_refuse(error_out, FG_AGAIN, 503, NULL, NULL, "out of memory");
    }
    if (status == FG_OK) {
        status = fg_stream_open(front->streams, exchange, this->route, &request, error_out);
    }
    if (status != FG_OK) {
        fg_arena_destroy(arena);
    }
    return status;
}

static void complete(fg_front *front, fg_http_exchange *exchange, const fg_http_request *http,
                     const char *route, fg_api_kind kind)
{
    call this = { .route = route, .kind = kind };
    on_call(front, kind, &this.server, &this.api);
    this.api.caller = front->caller;
    fg_http_add_header(exchange, "x-request-id", this.api.id);
    begin_trace(front, exchange, &this.trace);
    fg_api_error error;
    fg_status status = open_stream(front, exchange, http, &this, &error);
    if (status != FG_OK) {
        fg_debug("front", "req=%s refused=%d param=%s cause=\"%s\"", this.api.id, error.http_status,
                 error.param, error.text);
        refuse(front, exchange, route, &this.trace, &error);
    }
}

static void batch(fg_front *front, fg_http_exchange *exchange, const fg_http_request *http,
                  const char *route)
{
    char name[40];
    draw_name(front, "", name, sizeof name);
    fg_http_add_header(exchange, "x-request-id", name);
    fg_api_error error;
    fg_request_trace trace;
    begin_trace(front, exchange, &trace);
    fg_status status = check_door(front, exchange, &error);
    if (status == FG_OK) {
        status = fg_batch_open(front->batches, exchange, route, name, http->body, http->body_bytes,
                               &error);
    }
    if (status == FG_OK) {
        fg_batch_trace(front->batches, exchange, &trace);
        fg_batch_caller(front->batches, exchange, front->caller);
    } else {
        refuse(front, exchange, route, &trace, &error);
    }
}

static void chat_completions(fg_front *front, fg_http_exchange *exchange,
                             const fg_http_request *request, const char *route)
{
    complete(front, exchange, request, route, FG_API_CHAT);
}

static void completions(fg_front *front, fg_http_exchange *exchange, const fg_http_request *request,
                        const char *route)
{
    complete(front, exchange, request, route, FG_API_COMPLETION);
}

static void embeddings(fg_front *front, fg_http_exchange *exchange, const fg_http_request *request,
                       const char *route)
{
    complete(front, exchange, request, route, FG_API_EMBEDDING);
}

static void answer_text(fg_front *front, fg_http_exchange *exchange, const fg_http_request *http,
                        const char *route, fg_api_text_kind kind)
{
    fg_api_error error;
    fg_api_server server = api_server(front);
    fg_buf_clear(&front->page);
    fg_status status = check_door(front, exchange, &error);
    if (status == FG_OK) {
        status = fg_api_answer_text(&server, kind, http->body, http->body_bytes, unix_time(front),
                                    &front->page, &error);
    }
    if (status != FG_OK) {
        fg_stream_reply_error(front->streams, exchange, route, &error);
        return;
    }
    reply_page(front, exchange, route, "application/json");
    fg_buf_deinit(&front->page); /* it may be far larger than other pages */
    fg_buf_init(&front->page, 0);
}

static void tokenize(fg_front *front, fg_http_exchange *exchange, const fg_http_request *request,
                     const char *route)
{
    answer_text(front, exchange, request, route, FG_API_TOKENIZE);
}

static void detokenize(fg_front *front, fg_http_exchange *exchange, const fg_http_request *request,
                       const char *route)
{
    answer_text(front, exchange, request, route, FG_API_DETOKENIZE);
}

static void models(fg_front *front, fg_http_exchange *exchange, const fg_http_request *request,
                   const char *route)
{
    fg_api_server server = api_server(front);
    fg_buf_clear(&front->page);
    fg_api_render_models(&front->page, &server, front->started_s);
    reply_page(front, exchange, route, "application/json");
}

static void one_model(fg_front *front, fg_http_exchange *exchange, const fg_http_request *request,
                      const char *route)
{
    const char *name = request->path + strlen(route);
    if (strcmp(name, front->model_name) != 0) {
        fg_api_error error;
        fg_api_refuse(&error, FG_BAD_INPUT, 404, "model", "model_not_found",
                      "the model '%.128s' does not exist", name);
        fg_stream_reply_error(front->streams, exchange, route, &error);
        return;
    }
    fg_api_server server = api_server(front);
    fg_buf_clear(&front->page);
    fg_api_render_model(&front->page, &server, front->started_s);
    reply_page(front, exchange, route, "application/json");
}

static void health(fg_front *front, fg_http_exchange *exchange, const fg_http_request *request,
                   const char *route)
{
    if (front->draining || !fg_dispatch_ready(front->options.dispatch)) {
        fg_api_error error;
        fg_api_refuse(&error, FG_PEER_LOST, 503, NULL, "no_worker",
                      front->draining ? "the server is shutting down"
                                      : "no worker is ready for every phase of a request");
        fg_stream_reply_error(front->streams, exchange, route, &error);
        return;
    }
    fg_buf_clear(&front->page);
    fg_buf_puts(&front->page, "{\"status\":\"ok\"}");
    reply_page(front, exchange, route, "application/json");
}

static void live(fg_front *front, fg_http_exchange *exchange, const fg_http_request *request,
                 const char *route)
{
    fg_buf_clear(&front->page);
    fg_buf_puts(&front->page, "{\"status\":\"ok\"}");
    reply_page(front, exchange, route, "application/json");
}

static void metrics(fg_front *front, fg_http_exchange *exchange, const fg_http_request *request,
                    const char *route)
{
    fg_buf_clear(&front->page);
    if (front->options.metrics != NULL) {
        fg_metrics_render(front->options.metrics, &front->page);
    }
    reply_page(front, exchange, route, "text/plain; version=0.0.4; charset=utf-8");
}

static void debug_state(fg_front *front, fg_http_exchange *exchange, const fg_http_request *request,
                        const char *route)
{
    fg_buf_clear(&front->page);
    fg_dispatch_render_state(front->options.dispatch, &front->page);
    reply_page(front, exchange, route, "application/json");
}

static void debug_trace(fg_front *front, fg_http_exchange *exchange, const fg_http_request *request,
                        const char *route)
{
    if (front->options.trace == NULL) {
        fg_api_error error;
        fg_api_refuse(&error, FG_BAD_INPUT, 404, NULL, NULL, "this process keeps no trace");
        fg_stream_reply_error(front->streams, exchange, route, &error);
        return;
    }
    fg_buf_clear(&front->page);
    fg_trace_render(front->options.trace, (uint32_t)getpid(), &front->page);
    reply_page(front, exchange, route, "application/json");
}

static void debug_flight(fg_front *front, fg_http_exchange *exchange,
                         const fg_http_request *request, const char *route)
{
    if (front->options.flight == NULL) {
        fg_api_error error;
        fg_api_refuse(&error, FG_BAD_INPUT, 404, NULL, NULL,
                      "this process keeps no flight record: see --flight-recorder-mb");
        fg_stream_reply_error(front->streams, exchange, route, &error);
        return;
    }
    fg_buf_clear(&front->page);
    fg_flight_render(front->options.flight, &front->page);
    fg_http_add_header(exchange, "content-disposition",
                       "attachment; filename=\"forge-flight.bin\"");
    reply_page(front, exchange, route, "application/octet-stream");
    fg_buf_deinit(&front->page); /* it is far larger than any other page */
    fg_buf_init(&front->page, 0);
}

static void cache_stats(fg_front *front, fg_http_exchange *exchange, const fg_http_request *request,
                        const char *route)
{
    fg_buf_clear(&front->page);
    fg_dispatch_render_cache(front->options.dispatch, &front->page);
    reply_page(front, exchange, route, "application/json");
}

/* Also under the names that other servers have for it. */
static void cache_clear(fg_front *front, fg_http_exchange *exchange, const fg_http_request *request,
                        const char *route)
{
    uint32_t cleared = fg_dispatch_clear_cache(front->options.dispatch);
    fg_info("front", "event=cache_cleared workers=%u", cleared);
    fg_buf_clear(&front->page);
    fg_buf_printf(&front->page, "{\"cleared_workers\":%u}", cleared);
    reply_page(front, exchange, route, "application/json");
}

static uint32_t role_of(const char *name)
{
    static const uint32_t all[] = { FG_ROLE_PREFILL, FG_ROLE_DECODE,
                                    FG_ROLE_PREFILL | FG_ROLE_DECODE };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (strcmp(name, fg_dispatch_role_name(all[i])) == 0) {
            return all[i];
        }
    }
    return 0;
}

/* {"worker": NAME, "role": "prefill" | "decode" | "both"} */
static fg_status set_role(fg_front *front, const fg_json_node *body, fg_api_error *error)
{
    const fg_json_node *worker = fg_json_get(body, "worker"), *role = fg_json_get(body, "role");
    if (!fg_json_is(worker, FG_JSON_STRING)) {
        return fg_api_refuse(error, FG_BAD_INPUT, 400, "worker", "invalid_type",
                             "`worker` must be the name of a worker");
    }
    const char *name = fg_json_string(worker, NULL);
    uint32_t roles = fg_json_is(role, FG_JSON_STRING) ? role_of(fg_json_string(role, NULL)) : 0;
    if (roles == 0) {
        return fg_api_refuse(error, FG_BAD_INPUT, 400, "role", "invalid_value",
                             "`role` must be \"prefill\", \"decode\" or \"both\"");
    }
    fg_error err;
    uint32_t was = 0;
    fg_status status = fg_dispatch_set_role(front->options.dispatch, name, roles, &was, &err);
    if (status != FG_OK) {
        return fg_api_refuse(error, status, status == FG_PEER_LOST ? 404 : 400,
                             status == FG_PEER_LOST ? "worker" : "role", NULL, "%s", err.text);
    }
    fg_buf_clear(&front->page);
    fg_buf_puts(&front->page, "{\"worker\":\"");
    fg_buf_json_escape(&front->page, name, strlen(name));
    fg_buf_printf(&front->page, "\",\"role\":\"%s\",\"was\":\"%s\"}", fg_dispatch_role_name(roles),
                  fg_dispatch_role_name(was));
    return FG_OK;
}

static void admin_role(fg_front *front, fg_http_exchange *exchange, const fg_http_request *request,
                       const char *route)
{
    fg_json *json = NULL;
    fg_api_error error;
    fg_status status =
        fg_api_parse_json(request->body, request->body_bytes, FG_LIMIT_JSON_VALUES, &json, &error);
    if (status == FG_OK && !fg_json_is(fg_json_root(json), FG_JSON_OBJECT)) {
        status = fg_api_refuse(&error, FG_BAD_INPUT, 400, NULL, "invalid_type",
                               "the body must be a JSON object");
    }
    status = status == FG_OK ? set_role(front, fg_json_root(json), &error) : status;
    fg_json_destroy(json);
    if (status != FG_OK) {
        fg_stream_reply_error(front->streams, exchange, route, &error);
        return;
    }
    reply_page(front, exchange, route, "application/json");
}

static const struct route {
    const char *path;
    bool prefix;        /* what follows is a name */
    bool post;          /* else GET and HEAD */
    fg_api_scope scope; /* what a key must open */
    route_fn fn;
} routes[] = {
    { "/v1/chat/completions", false, true, FG_API_INFER, chat_completions },
    { "/v1/completions", false, true, FG_API_INFER, completions },
    { "/v1/embeddings", false, true, FG_API_INFER, embeddings },
    { "/forge/v1/batch", false, true, FG_API_INFER, batch },
    { "/forge/v1/cache/stats", false, false, FG_API_METRICS, cache_stats },
    { "/forge/v1/cache/clear", false, true, FG_API_ADMIN, cache_clear },
    { "/forge/v1/admin/role", false, true, FG_API_ADMIN, admin_role },
    { "/reset_prefix_cache", false, true, FG_API_ADMIN, cache_clear },
    { "/flush_cache", false, true, FG_API_ADMIN, cache_clear },
    { "/tokenize", false, true, FG_API_INFER, tokenize },
    { "/detokenize", false, true, FG_API_INFER, detokenize },
    { "/v1/models", false, false, FG_API_INFER, models },
    { "/v1/models/", true, false, FG_API_INFER, one_model },
    { "/health", false, false, FG_API_ANYONE, health },
    { "/live", false, false, FG_API_ANYONE, live },
    { "/metrics", false, false, FG_API_METRICS, metrics },
    { "/debug/state", false, false, FG_API_METRICS, debug_state },
    { "/debug/trace", false, false, FG_API_ADMIN, debug_trace },
    { "/debug/flight", false, false, FG_API_ADMIN, debug_flight },
};

static const struct route *find_route(const char *path)
{
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        size_t length = strlen(routes[i].path);
        if (strncmp(path, routes[i].path, length) == 0 &&
            (routes[i].prefix ? path[length] != '\0' : path[length] == '\0')) {
            return &routes[i];
        }
    }
    return NULL;
}

/* A page of another site, open in a browser on this host, could otherwise post to a server that only this host
 * reaches. Browsers say so, pages cannot hide it, and whoever is no browser does not send it. */
static bool is_foreign_page(const fg_http_exchange *exchange)
{
    const char *site = fg_http_header(exchange, "sec-fetch-site");
    return site != NULL && strcmp(site, "cross-site") == 0;
}

/* Whoever has no key learns nothing of what is there: any key at all is asked for where no route is. */
static fg_api_verdict check_key(const fg_front *front, const struct route *route,
                                const char *authorization, const char **caller_out)
{
    const fg_api_keys *keys = front->options.api_keys;
    int64_t now_s = unix_time(front);
    if (route == NULL) {
        fg_api_verdict verdict =
            fg_api_keys_check(keys, authorization, FG_API_ALL, now_s, caller_out);
        return verdict == FG_API_NOT_FOR ? FG_API_FINE : verdict;
    }
    return fg_api_keys_check(keys, authorization, route->scope, now_s, caller_out);
}

static bool wants_body(void *ctx, const fg_http_request *request, const char *authorization)
{
    const char *caller;
    return check_key(ctx, find_route(request->path), authorization, &caller) == FG_API_FINE;
}

/* False: it has been answered. */
static bool is_let_in(fg_front *front, fg_http_exchange *exchange, const struct route *route)
{
    fg_api_error error;
    fg_api_verdict verdict =
        check_key(front, route, fg_http_header(exchange, "authorization"), &front->caller);
    if (verdict == FG_API_FINE) {
        return true;
    }
    if (verdict == FG_API_UNKNOWN) {
        fg_http_add_header(exchange, "www-authenticate", "Bearer");
        fg_api_refuse(&error, FG_BAD_INPUT, 401, NULL, "invalid_api_key", FG_API_KEY_WANTED);
    } else {
        fg_api_refuse(&error, FG_BAD_INPUT, 403, NULL, "insufficient_scope",
                      "this API key is not for %s", route->path);
    }
    fg_debug("front", "event=not_let_in status=%d key=%s", error.http_status, front->caller);
    fg_stream_reply_error(front->streams, exchange, route == NULL ? FG_HTTP_OTHER : route->path,
                          &error);
    return false;
}

static void on_request(void *ctx, fg_http_exchange *exchange, const fg_http_request *request)
{
    fg_front *front = ctx;
    const struct route *route = find_route(request->path);
    fg_api_error error;
    if (!is_let_in(front, exchange, route)) {
        return;
    }
    if (route == NULL) {
        fg_api_refuse(&error, FG_BAD_INPUT, 404, NULL, NULL, "no such route: %.16s %.128s",
                      request->method, request->path);
        fg_stream_reply_error(front->streams, exchange, FG_HTTP_OTHER, &error);
        return;
    }
    bool allowed =
        route->post ? strcmp(request->method, "POST") == 0
                    : strcmp(request->method, "GET") == 0 || strcmp(request->method, "HEAD") == 0;
    if (!allowed) {
        fg_http_add_header(exchange, "allow", route->post ? "POST" : "GET, HEAD");
        fg_api_refuse(&error, FG_BAD_INPUT, 405, NULL, NULL, "%.16s is not allowed here",
                      request->method);
        fg_stream_reply_error(front->streams, exchange, route->path, &error);
        return;
    }
    if (route->post && is_foreign_page(exchange)) {
        fg_api_refuse(&error, FG_BAD_INPUT, 403, NULL, "cross_site",
                      "this comes from another site's page in a browser");
        fg_stream_reply_error(front->streams, exchange, route->path, &error);
        return;
    }
    route->fn(front, exchange, request, route->path);
}

static void on_gone(void *ctx, fg_http_exchange *exchange)
{
    fg_front *front = ctx;
    if (!fg_batches_gone(front->batches, exchange)) {
        fg_stream_gone(front->streams, exchange);
    }
}

static void on_refused(void *ctx, int status)
{
    fg_front *front = ctx;
    fg_meter_http(front->meter, FG_HTTP_OTHER, status);
}

static bool something_waits(const fg_front *front)
{
    return fg_streams_blocked(front->streams) || fg_batches_blocked(front->batches);
}

static void on_retry(void *ctx)
{
    fg_front *front = ctx;
    fg_streams_retry(front->streams);
    fg_batches_pump(front->batches);
    if (!something_waits(front)) {
        fg_timer_close(front->retry);
        front->retry = NULL;
    }
}

/* The next turn of the loop after there was news. What a flush ends makes room in a batch. */
static void on_wake(void *ctx)
{
    fg_front *front = ctx;
    fg_streams_flush(front->streams);
    fg_batches_pump(front->batches);
    if (something_waits(front) && front->retry == NULL &&
        fg_timer_start(front->options.loop, RETRY_MS, RETRY_MS, on_retry, front, &front->retry) !=
            FG_OK) {
        fg_warn("front", "cause=\"no memory for the retry timer\"");
    }
}

static void on_news(void *ctx)
{
    fg_front *front = ctx;
    fg_wake_send(front->wake);
}

static fg_status start(fg_front *front, fg_error *err)
{
    front->model_name = fg_mem_strdup(front->options.served_model_name);
    if (front->options.system_fingerprint != NULL) {
        front->fingerprint = fg_mem_strdup(front->options.system_fingerprint);
    }
    if (front->model_name == NULL ||
        (front->options.system_fingerprint != NULL && front->fingerprint == NULL)) {
        return fg_fail(err, FG_AGAIN, "out of memory for the front");
    }
    fg_status status = FG_OK;
    if (front->options.metrics != NULL) {
        status = fg_meter_create(front->options.metrics, &front->meter, err);
    }
    if (status != FG_OK) {
        return status;
    }
    fg_streams_options stream_options = {
        .tokenizer = front->options.tokenizer,
        .dispatch = front->options.dispatch,
        .meter = front->meter,
        .spans = front->options.spans,
        .clock = front->options.clock,
        .on_news = on_news,
        .ctx = front,
    };
    status = fg_streams_create(&stream_options, &front->streams, err);
    if (status != FG_OK) {
        return status;
    }
    fg_batches_options batch_options = {
        .streams = front->streams,
        .meter = front->meter,
        .spans = front->options.spans,
        .clock = front->options.clock,
        .on_call = on_call,
        .on_news = on_news,
        .ctx = front,
    };
    status = fg_batches_create(&batch_options, &front->batches, err);
    if (status != FG_OK) {
        return status;
    }
    status = fg_wake_create(front->options.loop, on_wake, front, &front->wake);
    if (status != FG_OK) {
        return fg_fail(err, status, "out of memory for the front");
    }
    fg_http_handler handler = { .on_request = on_request,
                                .wants_body = front->options.api_keys != NULL ? wants_body : NULL,
                                .on_gone = on_gone,
                                .on_refused = on_refused,
                                .ctx = front };
    return fg_http_listen(front->options.loop, front->options.host, front->options.port,
                          front->options.http_limits, &handler, &front->http, err);
}

fg_status fg_front_create(const fg_front_options *options, fg_front **front_out, fg_error *err)
{
    fg_front *front = fg_mem_alloc(sizeof *front);
    if (front == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for the front");
    }
    front->options = *options;
    if (front->options.max_tokens_default == 0) {
        front->options.max_tokens_default = MAX_TOKENS_DEFAULT;
    }
    front->started_s = unix_time(front);
    fg_status status = start(front, err);
    if (status != FG_OK) {
        fg_front_destroy(front);
        return status;
    }
    *front_out = front;
    return FG_OK;
}

void fg_front_destroy(fg_front *front)
{
    if (front == NULL) {
        return;
    }
    if (front->http != NULL) {
        fg_http_close(front->http);
    }
    fg_timer_close(front->retry);
    if (front->wake != NULL) {
        fg_wake_close(front->wake);
    }
    fg_batches_destroy(front->batches);
    fg_streams_destroy(front->streams);
    fg_meter_destroy(front->meter);
    fg_buf_deinit(&front->page);
    fg_mem_free(front->model_name);
    fg_mem_free(front->fingerprint);
    fg_mem_free(front);
}

uint16_t fg_front_port(const fg_front *front)
{
    return fg_http_port(front->http);
}

void fg_front_drain(fg_front *front)
{
    /* The door stays open until the process ends: probes get their answer, requests a 503. */
    front->draining = true;
}

uint32_t fg_front_busy_count(const fg_front *front)
{
    return fg_http_exchange_count(front->http);
}

uint64_t fg_front_refused_count(const fg_front *front)
{
    return fg_http_refused_count(front->http);
}
