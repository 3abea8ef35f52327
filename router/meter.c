#include "router/meter.h"

#include <string.h>

#include "common/base/mem.h"
#include "common/net/http_count.h"

/* A route's statuses; others are in the lines of a batch, or refused before there is a route. */
enum {
    OPEN_CODES = FG_HTTP_200 | FG_HTTP_405 | FG_HTTP_503,
    PAGE_CODES = OPEN_CODES | FG_HTTP_401 | FG_HTTP_403,
    NAME_CODES = PAGE_CODES | FG_HTTP_404,
    ADMIN_CODES = PAGE_CODES | FG_HTTP_400 | FG_HTTP_404,
    TEXT_CODES = PAGE_CODES | FG_HTTP_400 | FG_HTTP_404 | FG_HTTP_415,
    BATCH_CODES = PAGE_CODES | FG_HTTP_400 | FG_HTTP_415 | FG_HTTP_429 | FG_HTTP_499,
    COMPLETION_CODES = BATCH_CODES | FG_HTTP_404 | FG_HTTP_409 | FG_HTTP_500,
};

static const fg_http_route routes[] = {
    { "/v1/chat/completions", COMPLETION_CODES },
    { "/v1/completions", COMPLETION_CODES },
    { "/v1/embeddings", COMPLETION_CODES },
    { "/forge/v1/batch", BATCH_CODES },
    { "/forge/v1/cache/stats", PAGE_CODES },
    { "/forge/v1/cache/clear", PAGE_CODES },
    { "/forge/v1/admin/role", ADMIN_CODES },
    { "/reset_prefix_cache", PAGE_CODES },
    { "/flush_cache", PAGE_CODES },
    { "/tokenize", TEXT_CODES },
    { "/detokenize", TEXT_CODES },
    { "/v1/models", PAGE_CODES },
    { "/v1/models/", NAME_CODES },
    { "/health", OPEN_CODES },
    { "/live", OPEN_CODES },
    { "/metrics", PAGE_CODES },
    { "/debug/state", PAGE_CODES },
    { "/debug/trace", NAME_CODES },
    { "/debug/flight", NAME_CODES },
};

static const struct {
    fg_finish finish;
    const char *name;
} finishes[] = {
    { FG_FINISH_STOP, "stop" },
    { FG_FINISH_LENGTH, "length" },
    { FG_FINISH_CANCELLED, "cancelled" },
    { FG_FINISH_ERROR, "error" },
};
enum { FINISH_COUNT = sizeof finishes / sizeof finishes[0] };

/* Series without labels. */
typedef enum one {
    RUNNING,
    PROMPT_TOKENS,
    CACHED_TOKENS,
    GENERATION_TOKENS,
    PREEMPTIONS,
    FIRST_TOKEN,
    INTER_TOKEN,
    DURATION,
    QUEUE_TIME,
    RESERVE_TIME,
    PREFILL_TIME,
    TRANSFER_TIME,
    DECODE_TIME,
    CHOICES,
    ONE_COUNT,
} one;

typedef enum shape {
    GAUGE,
    COUNTER,
    FIRST_TOKEN_TIMES,
    INTER_TOKEN_TIMES,
    REQUEST_TIMES,
    SMALL
} shape;

static const struct {
    const char *name;
    const char *help;
    shape shape;
} ones[ONE_COUNT] = {
    [RUNNING] = { "num_requests_running", "Completion requests accepted and not yet ended.",
                  GAUGE },
    [PROMPT_TOKENS] = { "prompt_tokens_total", "Prompt tokens of accepted requests.", COUNTER },
    [CACHED_TOKENS] = { "prompt_tokens_cached_total",
                        "Prompt tokens of ended requests that were found in the prefix cache.",
                        COUNTER },
    [GENERATION_TOKENS] = { "generation_tokens_total", "Tokens generated for clients.", COUNTER },
    [PREEMPTIONS] = { "request_preemptions_total",
                      "Times that a running choice had to give its blocks back.", COUNTER },
    [FIRST_TOKEN] = { "time_to_first_token_seconds",
                      "From the accepted request to the first token of a choice.",
                      FIRST_TOKEN_TIMES },
    [INTER_TOKEN] = { "inter_token_latency_seconds", "From one token of a choice to its next.",
                      INTER_TOKEN_TIMES },
    [DURATION] = { "e2e_request_latency_seconds", "From the accepted request to its end.",
                   REQUEST_TIMES },
    [QUEUE_TIME] = { "request_queue_time_seconds",
                     "Time of a choice in the router's queue, over all of its visits there.",
                     REQUEST_TIMES },
    [RESERVE_TIME] = { "request_reserve_time_seconds",
                       "Time until a decode worker had blocks for a choice that is handed over.",
                       FIRST_TOKEN_TIMES },
    [PREFILL_TIME] = { "request_prefill_time_seconds",
                       "Time of a choice with its prefill worker, waiting there included.",
                       REQUEST_TIMES },
    [TRANSFER_TIME] = { "request_transfer_time_seconds",
                        "Time from the first token of a choice that is handed over until its "
                        "decode worker has its blocks.",
                        FIRST_TOKEN_TIMES },
    [DECODE_TIME] = { "request_decode_time_seconds",
                      "Time of a choice between its first token and its end.", REQUEST_TIMES },
    [CHOICES] = { "request_params_n", "The parameter n of accepted requests.", SMALL },
};

struct fg_meter {
    fg_http_count *http;
    fg_metric *ends[FINISH_COUNT];
    fg_metric *successes[FINISH_COUNT]; /* of the two good ends only */
    fg_metric *ones[ONE_COUNT];
};

static void register_labelled(fg_meter *meter, fg_metrics *metrics)
{
    for (size_t i = 0; i < FINISH_COUNT; i++) {
        fg_metric_spec end = {
            .name = "request_end_total",
            .help = "Completion requests that ended, by how.",
            .labels = { { "reason", finishes[i].name } },
        };
        meter->ends[i] = fg_metrics_counter(metrics, &end);
        if (finishes[i].finish == FG_FINISH_STOP || finishes[i].finish == FG_FINISH_LENGTH) {
            fg_metric_spec success = {
                .name = "request_success_total",
                .help = "Completion requests answered to their end, by finish reason.",
                .labels = { { "finish_reason", finishes[i].name } },
            };
            meter->successes[i] = fg_metrics_counter(metrics, &success);
        }
    }
}

static fg_metric *register_one(fg_metrics *metrics, one which)
{
    static const double small[] = { 1, 2, 4, 8, 16, 32, 64 };
    const fg_metric_spec spec = { .name = ones[which].name, .help = ones[which].help };
    fg_metric_bounds bounds = { small, sizeof small / sizeof small[0] };
    switch (ones[which].shape) {
    case GAUGE:
        return fg_metrics_gauge(metrics, &spec);
    case COUNTER:
        return fg_metrics_counter(metrics, &spec);
    case FIRST_TOKEN_TIMES:
        bounds = fg_metric_bounds_first_token();
        break;
    case INTER_TOKEN_TIMES:
        bounds = fg_metric_bounds_inter_token();
        break;
    case REQUEST_TIMES:
        bounds = fg_metric_bounds_request();
        break;
    case SMALL:
        break;
    }
    return fg_metrics_histogram(metrics, &spec, bounds.values, bounds.count);
}

fg_status fg_meter_create(fg_metrics *metrics, fg_meter **meter_out, fg_error *err)
{
    fg_meter *meter = fg_mem_alloc(sizeof *meter);
    if (meter == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for the meter");
    }
    fg_status status =
        fg_http_count_create(metrics, routes, sizeof routes / sizeof routes[0], &meter->http, err);
    if (status != FG_OK) {
        fg_meter_destroy(meter);
        return status;
    }
    register_labelled(meter, metrics);
    for (one which = 0; which < ONE_COUNT; which++) {
        meter->ones[which] = register_one(metrics, which);
    }
    if (!fg_metrics_ok(metrics)) {
        fg_meter_destroy(meter);
        return fg_fail(err, FG_AGAIN, "no room for the router's metrics");
    }
    *meter_out = meter;
    return FG_OK;
}

void fg_meter_destroy(fg_meter *meter)
{
    if (meter != NULL) {
        fg_http_count_destroy(meter->http);
        fg_mem_free(meter);
    }
}

void fg_meter_http(fg_meter *meter, const char *route, int http_status)
{
    if (meter != NULL) {
        fg_http_count_add(meter->http, route, http_status);
    }
}

static void add(fg_meter *meter, one which, double amount)
{
    fg_metric_add(meter->ones[which], amount);
}

static void observe_ns(fg_meter *meter, one which, uint64_t time_ns)
{
    fg_metric_observe(meter->ones[which], (double)time_ns / 1e9);
}

void fg_meter_begin(fg_meter *meter, uint32_t prompt_tokens, uint32_t choices)
{
    if (meter != NULL) {
        add(meter, RUNNING, 1);
        add(meter, PROMPT_TOKENS, prompt_tokens);
        fg_metric_observe(meter->ones[CHOICES], choices);
    }
}

void fg_meter_end(fg_meter *meter, fg_finish finish, uint64_t duration_ns, uint32_t cached_tokens)
{
    if (meter == NULL) {
        return;
    }
    add(meter, RUNNING, -1);
    add(meter, CACHED_TOKENS, cached_tokens);
    observe_ns(meter, DURATION, duration_ns);
    for (size_t i = 0; i < FINISH_COUNT; i++) {
        if (finishes[i].finish == finish) {
            fg_metric_add(meter->ends[i], 1);
            fg_metric_add(meter->successes[i], 1);
        }
    }
}

void fg_meter_report(fg_meter *meter, const fg_dispatch_report *report)
{
    if (meter != NULL) {
        observe_ns(meter, QUEUE_TIME, report->queued_ns);
        /* One worker for both has neither of these two. */
        if (report->reserved) {
            observe_ns(meter, RESERVE_TIME, report->reserved_ns);
        }
        if (report->transferred) {
            observe_ns(meter, TRANSFER_TIME, report->transferring_ns);
        }
        observe_ns(meter, PREFILL_TIME, report->prefilling_ns);
        observe_ns(meter, DECODE_TIME, report->decoding_ns);
        add(meter, PREEMPTIONS, report->preemptions);
    }
}

void fg_meter_first_token(fg_meter *meter, uint64_t wait_ns)
{
    if (meter != NULL) {
        add(meter, GENERATION_TOKENS, 1);
        observe_ns(meter, FIRST_TOKEN, wait_ns);
    }
}

void fg_meter_next_token(fg_meter *meter, uint64_t gap_ns)
{
    if (meter != NULL) {
        add(meter, GENERATION_TOKENS, 1);
        observe_ns(meter, INTER_TOKEN, gap_ns);
    }
}
