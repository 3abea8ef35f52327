#include "router/tracing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/json.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "tests/support/test.h"
#include "tests/unit/router/dispatch_bench.h"

#define GOOD    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
#define QUIET   "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
#define HIGH    0x0af7651916cd43ddu
#define LOW     0x8448eb211c80319cu
#define CALLERS 0xb7ad6b7169203331u

typedef struct book {
    char path[40];
    fg_spans *spans;
    char *text;
    fg_json *lines[16];
    uint32_t line_count;
} book;

static void open_book(book *b, double sample)
{
    fg_error err = { 0 };
    *b = (book){ .path = "/tmp/forge-tracing-XXXXXX" };
    close(mkstemp(b->path));
    fg_log_set_level(FG_LOG_OFF);
    fg_spans_options options = { .path = b->path,
                                 .file_bytes_max = 1u << 24,
                                 .sample = sample,
                                 .process = { .instance = "r", .role = "router" },
                                 .rng = { .state = 5 } };
    cr_assert_eq(fg_spans_open(&options, &b->spans, &err), FG_OK, "%s", err.text);
}

/* Ends the writing and parses what was written. */
static void read_book(book *b)
{
    static char text[1 << 16];
    fg_spans_close(b->spans);
    FILE *file = fopen(b->path, "r");
    cr_assert_not_null(file);
    while (fgets(text, sizeof text, file) != NULL) {
        fg_error err = { 0 };
        cr_assert_eq(fg_json_parse(text, strlen(text), &b->lines[b->line_count++], &err), FG_OK,
                     "%s", err.text);
    }
    fclose(file);
    unlink(b->path);
}

static void close_book(book *b)
{
    for (uint32_t i = 0; i < b->line_count; i++) {
        fg_json_destroy(b->lines[i]);
    }
}

static const fg_json_node *spans_of(const book *b, uint32_t line)
{
    const fg_json_node *at = fg_json_get(fg_json_root(b->lines[line]), "resourceSpans");
    at = fg_json_get(fg_json_at(at, 0), "scopeSpans");
    return fg_json_get(fg_json_at(at, 0), "spans");
}

static const char *text_of(const fg_json_node *span, const char *key)
{
    const char *text = fg_json_string(fg_json_get(span, key), NULL);
    return text == NULL ? "" : text;
}

/* The index-th span of this name; NULL: there is none. */
static const fg_json_node *find(const book *b, const char *name, uint32_t index)
{
    for (uint32_t line = 0; line < b->line_count; line++) {
        const fg_json_node *spans = spans_of(b, line);
        for (size_t i = 0; i < fg_json_size(spans); i++) {
            const fg_json_node *span = fg_json_at(spans, i);
            if (strcmp(text_of(span, "name"), name) == 0 && index-- == 0) {
                return span;
            }
        }
    }
    return NULL;
}

/* An attribute as text; "" when it is absent. */
static const char *attr(const fg_json_node *span, const char *key)
{
    const fg_json_node *attrs = fg_json_get(span, "attributes");
    for (size_t i = 0; i < fg_json_size(attrs); i++) {
        const fg_json_node *value = fg_json_get(fg_json_at(attrs, i), "value");
        if (strcmp(text_of(fg_json_at(attrs, i), "key"), key) == 0) {
            const char *text = text_of(value, "stringValue");
            return text[0] != '\0' ? text : text_of(value, "intValue");
        }
    }
    return "";
}

static const struct {
    const char *name, *traceparent, *tracestate;
    double sample; /* below 0: nobody looks */
    bool known, recorded, callers, has_state;
} begin_cases[] = {
    { "nothing, nobody looks", NULL, NULL, -1, false, false, false, false },
    { "state alone", NULL, "a=b", -1, false, false, false, false },
    { "nothing", NULL, NULL, 1, true, true, false, false },
    { "nothing, not sampled", NULL, NULL, 0, true, false, false, false },
    { "a caller", GOOD, "a=b", 0, true, true, true, true },
    { "a caller that does not record", QUIET, "a=b", 1, true, false, true, true },
    { "a caller, nobody looks", GOOD, "a=b", -1, true, false, true, true },
    { "a bad header", "00-x", "a=b", 1, true, true, false, false },
    { "a bad header, nobody looks", "00-x", "a=b", -1, false, false, false, false },
    { "a bad state", GOOD, "a=\n", 1, true, true, true, false },
};

Test(tracing, a_request_goes_on_with_its_trace_or_begins_one)
{
    for (size_t i = 0; i < sizeof begin_cases / sizeof begin_cases[0]; i++) {
        book b;
        fg_rng rng = { .state = 1 };
        fg_request_trace trace;
        open_book(&b, begin_cases[i].sample < 0 ? 0 : begin_cases[i].sample);
        fg_spans *spans = begin_cases[i].sample < 0 ? NULL : b.spans;
        fg_tracing_begin(spans, &rng, begin_cases[i].traceparent, begin_cases[i].tracestate,
                         &trace);
        const char *name = begin_cases[i].name;
        cr_assert_eq(trace.known, begin_cases[i].known, "%s", name);
        cr_assert_eq(trace.recorded, begin_cases[i].recorded, "%s", name);
        cr_assert_eq(trace.own.trace_high == HIGH && trace.own.trace_low == LOW &&
                         trace.parent == CALLERS,
                     begin_cases[i].callers, "%s", name);
        cr_assert_eq(trace.state != NULL, begin_cases[i].has_state, "%s", name);
        cr_assert(!trace.known || (trace.own.span != 0 && trace.own.span != CALLERS &&
                                   (trace.own.trace_high | trace.own.trace_low) != 0),
                  "%s", name);
        read_book(&b);
        close_book(&b);
    }
}

Test(tracing, what_the_workers_are_told)
{
    static const struct {
        const char *name, *traceparent;
        bool looks, traced, under_caller;
    } cases[] = {
        { "recorded here", GOOD, true, true, false },
        { "passed on", GOOD, false, true, true },
        { "not recorded", QUIET, true, false, false },
        { "no trace", NULL, false, false, false },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        book b;
        fg_rng rng = { .state = 1 };
        fg_request_trace trace;
        fg_request request = { .arena = fg_arena_create(1 << 16) };
        char state[] = "a=b";
        open_book(&b, 1);
        fg_tracing_begin(cases[i].looks ? b.spans : NULL, &rng, cases[i].traceparent, state,
                         &trace);
        cr_assert_eq(fg_tracing_apply(&trace, &request), FG_OK);
        memset(state, 'x', sizeof state - 1); /* the head of the request may go */
        const fg_wire_params *params = &request.params;
        cr_assert_eq(params->trace_span != 0, cases[i].traced, "%s", cases[i].name);
        cr_assert_eq(params->trace_high, cases[i].traced ? HIGH : 0, "%s", cases[i].name);
        cr_assert_eq(params->trace_low, cases[i].traced ? LOW : 0, "%s", cases[i].name);
        cr_assert_eq(params->trace_span == CALLERS, cases[i].under_caller, "%s", cases[i].name);
        cr_assert(cases[i].traceparent == NULL || strcmp(request.trace.state, "a=b") == 0);
        fg_arena_destroy(request.arena);
        read_book(&b);
        close_book(&b);
    }
}

static void open_bench(bench *w, book *b)
{
    open_book(b, 1);
    fg_dispatch_options options = bench_options(w);
    options.spans = b->spans;
    bench_open_with(w, &options);
    bench_join_pair(w);
    w->params.trace_high = HIGH;
    w->params.trace_low = LOW;
    w->params.trace_span = CALLERS;
}

/* Runs a request to its end; 10 ms pass in each state. overtaken: decode's token is here before prefill says what it
 * sent. */
static void run(bench *w, uint64_t id, uint32_t attempt, bool overtaken)
{
    bench_pass(w, 10);
    bench_ticket(w, id, attempt);
    bench_pass(w, 10);
    fg_msg msg = { .kind = FG_MSG_FIRST, .request = id, .attempt = attempt };
    msg.first.id = 20;
    bench_give(w, P, &msg);
    bench_pass(w, 10);
    fg_msg pushed = { .kind = FG_MSG_PUSHED, .request = id, .attempt = attempt };
    pushed.pushed.blocks = 2;
    pushed.pushed.bytes = 4096;
    pushed.pushed.transport = "tcp/lo\"x";
    fg_wire_token token = { .request = id, .attempt = attempt, .index = 1, .id = 21 };
    fg_msg tokens = { .kind = FG_MSG_TOKENS, .tokens = { .tokens = &token, .count = 1 } };
    bench_give(w, overtaken ? D : P, overtaken ? &tokens : &pushed);
    bench_pass(w, 10);
    bench_give(w, overtaken ? P : D, overtaken ? &pushed : &tokens);
    msg = (fg_msg){ .kind = FG_MSG_DONE, .request = id, .attempt = attempt };
    msg.done.finish = FG_FINISH_LENGTH;
    msg.done.generated = 2;
    msg.done.text = "";
    bench_give(w, D, &msg);
}

Test(tracing, a_choice_is_a_span_with_its_states_inside)
{
    static const char *const states[] = { "queue", "reserve", "prefill", "transfer", "decode" };
    bench w;
    book b;
    uint64_t id;
    open_bench(&w, &b);
    cr_assert_eq(bench_start(&w, 5, 2, &id), FG_OK);
    const fg_msg *reserve = bench_sent(&w, D, FG_MSG_RESERVE);
    uint64_t span = reserve->reserve.sampling.trace_span;
    cr_assert(span != 0 && span != CALLERS && reserve->reserve.sampling.trace_high == HIGH);
    run(&w, id, 1, false);
    cr_assert_eq(bench_sent(&w, P, FG_MSG_PREFILL)->prefill.sampling.trace_span, span);
    cr_assert_eq(w.end_count, 1u);
    bench_close(&w);
    read_book(&b);
    char hex[20];
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)span);
    const fg_json_node *generate = find(&b, "generate", 0);
    cr_assert_str_eq(text_of(generate, "spanId"), hex);
    cr_assert_str_eq(text_of(generate, "parentSpanId"), "b7ad6b7169203331");
    cr_assert_str_eq(attr(generate, "forge.finish"), "length");
    cr_assert_str_eq(attr(generate, "gen_ai.usage.output_tokens"), "2");
    cr_assert_eq(fg_json_get(generate, "status"), NULL);
    const char *last = text_of(generate, "startTimeUnixNano");
    for (int i = 0; i < 5; i++) {
        const fg_json_node *state = find(&b, states[i], 0);
        cr_assert_not_null(state, "%s", states[i]);
        cr_assert_str_eq(text_of(state, "parentSpanId"), hex, "%s", states[i]);
        cr_assert_str_eq(text_of(state, "traceId"), "0af7651916cd43dd8448eb211c80319c");
        cr_assert_str_eq(text_of(state, "startTimeUnixNano"), last, "%s", states[i]);
        cr_assert_eq(find(&b, states[i], 1), NULL, "%s twice", states[i]);
        last = text_of(state, "endTimeUnixNano");
    }
    cr_assert_str_eq(text_of(generate, "endTimeUnixNano"), last);
    const fg_json_node *transfer = find(&b, "transfer", 0);
    cr_assert_str_eq(attr(transfer, "forge.transport"), "tcp/lo\"x");
    cr_assert_str_eq(attr(transfer, "forge.kv_bytes"), "4096");
    cr_assert_str_eq(attr(transfer, "forge.prefill_worker"), "p");
    cr_assert_str_eq(attr(find(&b, "decode", 0), "forge.tokens"), "1");
    close_book(&b);
}

/* The stretch is over by then; the request tells. */
Test(tracing, a_transfer_that_is_not_known_yet_is_not_called_empty)
{
    bench w;
    book b;
    uint64_t id;
    open_bench(&w, &b);
    cr_assert_eq(bench_start(&w, 5, 2, &id), FG_OK);
    run(&w, id, 1, true);
    bench_close(&w);
    read_book(&b);
    cr_assert_not_null(find(&b, "transfer", 0));
    cr_assert_str_eq(attr(find(&b, "transfer", 0), "forge.kv_blocks"), "");
    cr_assert_str_eq(attr(find(&b, "generate", 0), "forge.kv_blocks"), "2");
    cr_assert_str_eq(attr(find(&b, "generate", 0), "forge.transport"), "tcp/lo\"x");
    close_book(&b);
}

Test(tracing, another_attempt_has_spans_of_its_own)
{
    bench w;
    book b;
    uint64_t id;
    open_bench(&w, &b);
    cr_assert_eq(bench_start(&w, 5, 2, &id), FG_OK);
    bench_pass(&w, 10);
    fg_dispatch_on_down(w.dispatch, D);
    bench_join(&w, D, "d", FG_ROLE_DECODE);
    run(&w, id, 2, false);
    cr_assert_eq(w.end_count, 1u);
    bench_close(&w);
    read_book(&b);
    cr_assert_str_eq(attr(find(&b, "reserve", 0), "forge.attempt"), "1");
    cr_assert_str_eq(attr(find(&b, "reserve", 1), "forge.attempt"), "2");
    cr_assert_str_eq(attr(find(&b, "generate", 0), "forge.attempt"), "2");
    cr_assert_eq(find(&b, "generate", 1), NULL);
    close_book(&b);
}

Test(tracing, an_end_in_error_says_why_and_untraced_requests_say_nothing)
{
    bench w;
    book b;
    uint64_t id;
    open_bench(&w, &b);
    cr_assert_eq(bench_start(&w, 5, 2, &id), FG_OK);
    fg_dispatch_abort_all(w.dispatch, "the server is shutting down");
    cr_assert_eq(bench_start(&w, 5, 2, &id), FG_OK);
    cr_assert(fg_dispatch_cancel(w.dispatch, id, FG_FINISH_CANCELLED, NULL));
    w.params = (fg_wire_params){ .priority = 0 };
    cr_assert_eq(bench_start(&w, 5, 2, &id), FG_OK);
    fg_dispatch_abort_all(w.dispatch, "untraced");
    bench_close(&w);
    read_book(&b);
    const fg_json_node *generate = find(&b, "generate", 0);
    cr_assert_str_eq(text_of(fg_json_get(generate, "status"), "message"),
                     "the server is shutting down");
    cr_assert_str_eq(attr(generate, "forge.finish"), "error");
    cr_assert_str_eq(attr(find(&b, "generate", 1), "forge.finish"), "cancelled");
    cr_assert_eq(find(&b, "generate", 2), NULL);
    close_book(&b);
}
