#include "router/meter.h"

#include <string.h>

#include "common/base/mem.h"

/* The statuses that the front and its streams answer with. */
static const struct {
    int status;
    const char *text;
} codes[] = {
    { 200, "200" }, { 400, "400" }, { 404, "404" }, { 405, "405" }, { 415, "415" },
    { 429, "429" }, { 499, "499" }, { 500, "500" }, { 503, "503" },
};
enum { CODE_COUNT = sizeof codes / sizeof codes[0] };

/* A route's statuses, as bits of the table above. */
enum { ALL_CODES = 0x1FF, PAGE_CODES = 0x109, NAME_CODES = 0x10D, UNKNOWN_CODES = 0x004 };

static const struct {
    const char *route;
    unsigned codes;
} routes[] = {
    { "/v1/chat/completions", ALL_CODES },
    { "/v1/completions", ALL_CODES },
    { "/v1/models", PAGE_CODES },
    { "/v1/models/", NAME_CODES },
    { "/health", PAGE_CODES },
    { "/live", PAGE_CODES },
    { "/metrics", PAGE_CODES },
    { "/debug/state", PAGE_CODES },
    { "other", UNKNOWN_CODES },
};
enum { ROUTE_COUNT = sizeof routes / sizeof routes[0] };

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

struct fg_meter {
    fg_metric *http[ROUTE_COUNT][CODE_COUNT];
    fg_metric *ends[FINISH_COUNT];
    fg_metric *successes[FINISH_COUNT]; /* of the two good ends only */
    fg_metric *running;
    fg_metric *prompt_tokens;
    fg_metric *generation_tokens;
    fg_metric *first_token;
    fg_metric *inter_token;
    fg_metric *duration;
};

static void register_labelled(fg_meter *meter, fg_metrics *metrics)
{
    for (size_t r = 0; r < ROUTE_COUNT; r++) {
        for (size_t c = 0; c < CODE_COUNT; c++) {
            fg_metric_spec spec = {
                .name = "http_requests_total",
                .help = "HTTP requests answered, by route and status (499: the client left first).",
                .labels = { { "route", routes[r].route }, { "code", codes[c].text } },
            };
            if ((routes[r].codes & 1u << c) != 0) {
                meter->http[r][c] = fg_metrics_counter(metrics, &spec);
            }
        }
    }
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

fg_status fg_meter_create(fg_metrics *metrics, fg_meter **meter_out, fg_error *err)
{
    static const fg_metric_spec running = { "num_requests_running",
                                            "Completion requests accepted and not yet ended.",
                                            { { 0 } } };
    static const fg_metric_spec prompt = { "prompt_tokens_total",
                                           "Prompt tokens of accepted requests.",
                                           { { 0 } } };
    static const fg_metric_spec generation = { "generation_tokens_total",
                                               "Tokens generated for clients.",
                                               { { 0 } } };
    static const fg_metric_spec first = { "time_to_first_token_seconds",
                                          "From the accepted request to its first token.",
                                          { { 0 } } };
    static const fg_metric_spec inter = { "inter_token_latency_seconds",
                                          "From one token of a request to its next.",
                                          { { 0 } } };
    static const fg_metric_spec duration = { "e2e_request_latency_seconds",
                                             "From the accepted request to its end.",
                                             { { 0 } } };
    fg_meter *meter = fg_mem_alloc(sizeof *meter);
    if (meter == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for the meter");
    }
    fg_metric_bounds first_bounds = fg_metric_bounds_first_token();
    fg_metric_bounds inter_bounds = fg_metric_bounds_inter_token();
    fg_metric_bounds duration_bounds = fg_metric_bounds_request();
    register_labelled(meter, metrics);
    meter->running = fg_metrics_gauge(metrics, &running);
    meter->prompt_tokens = fg_metrics_counter(metrics, &prompt);
    meter->generation_tokens = fg_metrics_counter(metrics, &generation);
    meter->first_token =
        fg_metrics_histogram(metrics, &first, first_bounds.values, first_bounds.count);
    meter->inter_token =
        fg_metrics_histogram(metrics, &inter, inter_bounds.values, inter_bounds.count);
    meter->duration =
        fg_metrics_histogram(metrics, &duration, duration_bounds.values, duration_bounds.count);
    if (!fg_metrics_ok(metrics)) {
        fg_mem_free(meter);
        return fg_fail(err, FG_AGAIN, "no room for the router's metrics");
    }
    *meter_out = meter;
    return FG_OK;
}

void fg_meter_destroy(fg_meter *meter)
{
    fg_mem_free(meter);
}

void fg_meter_http(fg_meter *meter, const char *route, int http_status)
{
    for (size_t r = 0; meter != NULL && r < ROUTE_COUNT; r++) {
        if (strcmp(routes[r].route, route) != 0) {
            continue;
        }
        for (size_t c = 0; c < CODE_COUNT; c++) {
            if (codes[c].status == http_status) {
                FG_ASSERT_SLOW(meter->http[r][c] != NULL, "%s %d", route, http_status);
                fg_metric_add(meter->http[r][c], 1);
            }
        }
    }
}

void fg_meter_begin(fg_meter *meter, uint32_t prompt_tokens)
{
    if (meter != NULL) {
        fg_metric_add(meter->running, 1);
        fg_metric_add(meter->prompt_tokens, prompt_tokens);
    }
}

void fg_meter_end(fg_meter *meter, fg_finish finish, uint64_t duration_ns)
{
    if (meter == NULL) {
        return;
    }
    fg_metric_add(meter->running, -1);
    fg_metric_observe(meter->duration, (double)duration_ns / 1e9);
    for (size_t i = 0; i < FINISH_COUNT; i++) {
        if (finishes[i].finish == finish) {
            fg_metric_add(meter->ends[i], 1);
            fg_metric_add(meter->successes[i], 1);
        }
    }
}

void fg_meter_first_token(fg_meter *meter, uint64_t wait_ns)
{
    if (meter != NULL) {
        fg_metric_add(meter->generation_tokens, 1);
        fg_metric_observe(meter->first_token, (double)wait_ns / 1e9);
    }
}

void fg_meter_next_token(fg_meter *meter, uint64_t gap_ns)
{
    if (meter != NULL) {
        fg_metric_add(meter->generation_tokens, 1);
        fg_metric_observe(meter->inter_token, (double)gap_ns / 1e9);
    }
}
