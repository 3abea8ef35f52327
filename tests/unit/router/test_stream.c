#include "router/stream.h"

#include <stdio.h>
#include <string.h>

#include "common/base/fault.h"
#include "common/base/limits.h"
#include "common/base/rng.h"
#include "tests/support/seed.h"
#include "tests/support/test.h"
#include "tests/unit/router/fakes.h"
#include "tests/unit/router/tiny_model.h"

enum { EXCHANGES = 4 };

typedef struct world {
    tiny_model model;
    fg_metrics *metrics;
    fg_meter *meter;
    fg_streams *streams;
    uint64_t now_ns;
    uint32_t news; /* calls of on_news */
    fg_http_exchange exchanges[EXCHANGES];
} world;

static void on_news(void *ctx)
{
    world *w = ctx;
    w->news++;
}

static void open_world(world *w)
{
    fg_error err = { 0 };
    *w = (world){ .now_ns = 1 };
    tiny_model_open(&w->model);
    fake_dispatch_reset();
    w->metrics = fg_metrics_create(FG_METER_SERIES_MAX);
    cr_assert_eq(fg_meter_create(w->metrics, &w->meter, &err), FG_OK, "%s", err.text);
    fg_streams_options options = {
        .tokenizer = w->model.tokenizer,
        .dispatch = fake_dispatch_handle(),
        .meter = w->meter,
        .clock = fg_clock_manual(&w->now_ns),
        .on_news = on_news,
        .ctx = w,
    };
    cr_assert_eq(fg_streams_create(&options, &w->streams, &err), FG_OK, "%s", err.text);
    for (int i = 0; i < EXCHANGES; i++) {
        fake_exchange_init(&w->exchanges[i]);
    }
}

static void close_world(world *w)
{
    fg_streams_destroy(w->streams);
    cr_assert_eq(fake_running_count(), 0);
    for (int i = 0; i < EXCHANGES; i++) {
        fake_exchange_deinit(&w->exchanges[i]);
    }
    fg_meter_destroy(w->meter);
    fg_metrics_destroy(w->metrics);
    tiny_model_close(&w->model);
}

/* Parses `body` as the front would and opens its stream on exchange `index`. */
static fg_status open_stream(world *w, int index, fg_api_kind kind, const char *body,
                             fg_api_error *error_out)
{
    fg_api_server server = {
        .tokenizer = w->model.tokenizer,
        .chat = w->model.chat,
        .model_name = "tiny",
        .context_max = 200000,
        .max_tokens_default = 100000,
    };
    fg_api_call call = { .id = "id", .seed = 1 };
    fg_arena *arena = fg_arena_create(FG_API_ARENA_BYTES);
    if (arena == NULL) {
        return FG_AGAIN;
    }
    fg_request request;
    fg_status status =
        fg_api_parse(&server, kind, body, strlen(body), &call, arena, &request, error_out);
    if (status == FG_OK) {
        status = fg_stream_open(w->streams, &w->exchanges[index], "/v1/completions", &request,
                                error_out);
    }
    if (status != FG_OK) {
        fg_arena_destroy(arena);
    }
    return status;
}

static void must_open(world *w, int index, fg_api_kind kind, const char *body)
{
    fg_api_error error;
    cr_assert_eq(open_stream(w, index, kind, body, &error), FG_OK, "%s", error.text);
}

static void tokens(uint32_t job, const char *text)
{
    for (; *text != '\0'; text++) {
        fake_token(job, (unsigned char)*text, 0);
    }
}

static const char *body_of(const world *w, int index)
{
    return w->exchanges[index].body.data == NULL ? "" : w->exchanges[index].body.data;
}

static bool has(const world *w, int index, const char *text)
{
    return strstr(body_of(w, index), text) != NULL;
}

static uint32_t count_of(const world *w, int index, const char *text)
{
    uint32_t count = 0;
    for (const char *at = body_of(w, index); (at = strstr(at, text)) != NULL; at++) {
        count++;
    }
    return count;
}

/* Joins what the completion chunks of an exchange say; no escapes but \n are expected. */
static void shown_text(const world *w, int index, fg_buf *out)
{
    fg_buf_clear(out);
    fg_buf_puts(out, "");
    static const char key[] = "\"text\":\"";
    for (const char *at = body_of(w, index); (at = strstr(at, key)) != NULL;) {
        at += sizeof key - 1;
        const char *end = strchr(at, '"');
        fg_buf_append(out, at, (size_t)(end - at));
    }
}

#define COMP(more) "{\"prompt\":\"hi\"" more "}"

Test(stream, a_whole_answer_is_sent_once_at_the_end)
{
    world w;
    open_world(&w);
    must_open(&w, 0, FG_API_COMPLETION, COMP(""));
    tokens(0, "ok!");
    fg_streams_flush(w.streams);
    cr_assert_eq(w.exchanges[0].status, 0);
    fake_token(0, SMALL_BPE_END_OF_TEXT, 0);
    fake_end(0, FG_FINISH_STOP, FG_OK, NULL);
    fg_streams_flush(w.streams);
    cr_assert_eq(w.exchanges[0].status, 200);
    cr_assert(w.exchanges[0].ended);
    cr_assert(has(&w, 0, "\"text\":\"ok!\""), "%s", body_of(&w, 0));
    cr_assert(has(&w, 0, "\"finish_reason\":\"stop\""));
    cr_assert(has(&w, 0, "\"completion_tokens\":4"), "the end token counts");
    cr_assert_eq(fg_streams_count(w.streams), 0);
    close_world(&w);
}

Test(stream, a_chat_streams_role_deltas_finish_usage_and_done)
{
    world w;
    open_world(&w);
    must_open(&w, 0, FG_API_CHAT,
              "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"stream\":true,"
              "\"stream_options\":{\"include_usage\":true}}");
    tokens(0, "a");
    fg_streams_flush(w.streams);
    cr_assert_eq(w.exchanges[0].write_count, 1);
    cr_assert(has(&w, 0, "\"delta\":{\"role\":\"assistant\",\"content\":\"\"}"));
    cr_assert(has(&w, 0, "\"delta\":{\"content\":\"a\"}"));
    tokens(0, "b");
    fake_end(0, FG_FINISH_LENGTH, FG_OK, NULL);
    fg_streams_flush(w.streams);
    const char *text = body_of(&w, 0);
    const char *last = strstr(text, "\"delta\":{\"content\":\"b\"},\"logprobs\":null,"
                                    "\"finish_reason\":\"length\"");
    const char *usage = strstr(text, "\"choices\":[],\"usage\":{\"prompt_tokens\":");
    const char *done = strstr(text, "data: [DONE]\n\n");
    cr_assert(last != NULL && usage > last && done > usage && done[14] == '\0', "%s", text);
    cr_assert_eq(count_of(&w, 0, "\"usage\":null"), 3);
    cr_assert(w.exchanges[0].ended);
    close_world(&w);
}

Test(stream, usage_is_not_named_where_it_was_not_asked_for)
{
    world w;
    open_world(&w);
    must_open(&w, 0, FG_API_COMPLETION, COMP(",\"stream\":true"));
    tokens(0, "a");
    fake_end(0, FG_FINISH_STOP, FG_OK, NULL);
    fg_streams_flush(w.streams);
    cr_assert(!has(&w, 0, "usage"));
    close_world(&w);
}

Test(stream, tokens_of_one_turn_travel_in_one_chunk)
{
    world w;
    open_world(&w);
    must_open(&w, 0, FG_API_COMPLETION, COMP(",\"stream\":true"));
    must_open(&w, 1, FG_API_COMPLETION, COMP(",\"stream\":true"));
    tokens(0, "abc");
    tokens(1, "xyz");
    cr_assert_eq(w.news, 1, "one wake-up for all streams of a turn");
    fg_streams_flush(w.streams);
    cr_assert_eq(w.exchanges[0].write_count, 1);
    cr_assert(has(&w, 0, "\"text\":\"abc\"") && has(&w, 1, "\"text\":\"xyz\""));
    fg_streams_flush(w.streams);
    cr_assert_eq(w.exchanges[0].write_count, 1);
    close_world(&w);
}

Test(stream, characters_are_never_cut)
{
    world w;
    open_world(&w);
    must_open(&w, 0, FG_API_COMPLETION, COMP(",\"stream\":true"));
    fake_token(0, 0xC3, 0);
    fg_streams_flush(w.streams);
    cr_assert(!has(&w, 0, "\"text\""));
    fake_token(0, 0xA9, 0);
    fg_streams_flush(w.streams);
    cr_assert(has(&w, 0, "\"text\":\"\xC3\xA9\""));
    fake_token(0, 0xE2, 0);
    fake_end(0, FG_FINISH_LENGTH, FG_OK, NULL);
    fg_streams_flush(w.streams);
    cr_assert(has(&w, 0, "\"text\":\"\xEF\xBF\xBD\""));
    close_world(&w);
}

Test(stream, a_stop_string_is_held_back_and_ends_the_request)
{
    world w;
    fg_buf shown = { 0 };
    open_world(&w);
    must_open(&w, 0, FG_API_COMPLETION, COMP(",\"stream\":true,\"stop\":\"END\""));
    tokens(0, "aEN");
    fg_streams_flush(w.streams);
    tokens(0, "TbEN");
    fg_streams_flush(w.streams);
    cr_assert_eq(fake_running_count(), 1);
    tokens(0, "Dxy");
    fg_streams_flush(w.streams);
    cr_assert_eq(fake_dispatch_state.jobs[0].cancelled, FG_FINISH_STOP);
    shown_text(&w, 0, &shown);
    cr_assert_str_eq(shown.data, "aENTb");
    cr_assert(has(&w, 0, "\"finish_reason\":\"stop\"") && w.exchanges[0].ended);
    fg_buf_deinit(&shown);
    close_world(&w);
}

Test(stream, a_stop_string_that_ends_with_the_request_cancels_nothing)
{
    world w;
    open_world(&w);
    must_open(&w, 0, FG_API_COMPLETION, COMP(",\"stop\":\"b\""));
    tokens(0, "ab");
    fake_end(0, FG_FINISH_LENGTH, FG_OK, NULL);
    fg_streams_flush(w.streams);
    cr_assert_eq(fake_dispatch_state.jobs[0].cancelled, FG_FINISH_NONE);
    cr_assert(has(&w, 0, "\"text\":\"a\"") && has(&w, 0, "\"finish_reason\":\"stop\""));
    close_world(&w);
}

Test(stream, what_was_held_back_is_shown_when_no_stop_string_came)
{
    world w;
    open_world(&w);
    must_open(&w, 0, FG_API_COMPLETION, COMP(",\"stop\":\"END\""));
    tokens(0, "aEN");
    fake_end(0, FG_FINISH_LENGTH, FG_OK, NULL);
    fg_streams_flush(w.streams);
    cr_assert(has(&w, 0, "\"text\":\"aEN\"") && has(&w, 0, "\"finish_reason\":\"length\""));
    close_world(&w);
}

static const struct failure {
    const char *name;
    fg_status status;
    int http_status;
    const char *type;
} failures[] = {
    { "worker lost", FG_PEER_LOST, 503, "server_error" },
    { "broken", FG_BROKEN, 500, "server_error" },
    { "late", FG_TIMEOUT, 503, "server_error" },
    { "full", FG_AGAIN, 429, "rate_limit_error" },
    { "too long after all", FG_BAD_INPUT, 400, "invalid_request_error" },
};

Test(stream, a_failure_before_the_first_token_has_its_own_status)
{
    for (size_t i = 0; i < sizeof failures / sizeof failures[0]; i++) {
        world w;
        open_world(&w);
        must_open(&w, 0, FG_API_COMPLETION, COMP(""));
        must_open(&w, 1, FG_API_COMPLETION, COMP(",\"stream\":true"));
        fake_end(0, FG_FINISH_ERROR, failures[i].status, "why");
        fake_end(1, FG_FINISH_ERROR, failures[i].status, "why");
        fg_streams_flush(w.streams);
        for (int e = 0; e < 2; e++) {
            cr_assert_eq(w.exchanges[e].status, failures[i].http_status, "%s", failures[i].name);
            cr_assert(has(&w, e, "\"message\":\"why\"") && has(&w, e, failures[i].type), "%s",
                      body_of(&w, e));
            bool wait = failures[i].http_status == 429 || failures[i].http_status == 503;
            cr_assert_eq(wait, w.exchanges[e].headers.data != NULL &&
                                   strstr(w.exchanges[e].headers.data, "retry-after: 7") != NULL);
        }
        close_world(&w);
    }
}

Test(stream, a_failure_in_the_middle_is_an_error_event_after_the_text)
{
    world w;
    open_world(&w);
    must_open(&w, 0, FG_API_COMPLETION, COMP(",\"stream\":true"));
    tokens(0, "ab");
    fg_streams_flush(w.streams);
    tokens(0, "c");
    fake_end(0, FG_FINISH_ERROR, FG_PEER_LOST, "decode worker d1 was lost");
    fg_streams_flush(w.streams);
    const char *text = body_of(&w, 0);
    const char *piece = strstr(text, "\"text\":\"c\"");
    const char *error = strstr(text, "data: {\"error\":{\"message\":\"decode worker d1 was lost\"");
    const char *done = strstr(text, "data: [DONE]\n\n");
    cr_assert(piece != NULL && error > piece && done > error, "%s", text);
    cr_assert(!has(&w, 0, "\"finish_reason\":\"") && w.exchanges[0].ended);
    close_world(&w);
}

/* A refusal's own time is told to whoever was refused, and to nobody else. */
Test(stream, a_refused_start_says_when_it_would_be_let_in)
{
    world w;
    fg_api_error error;
    open_world(&w);
    fake_dispatch_state.start_status = FG_AGAIN;
    fake_dispatch_state.start_text = "no";
    fake_dispatch_state.refused_s = 33;
    cr_assert_eq(open_stream(&w, 0, FG_API_COMPLETION, COMP(""), &error), FG_AGAIN);
    fg_stream_reply_error(w.streams, &w.exchanges[0], "/v1/completions", &error);
    cr_assert_not_null(strstr(w.exchanges[0].headers.data, "retry-after: 33\n"));
    fg_stream_explain(FG_PEER_LOST, "no worker", &error);
    fg_stream_reply_error(w.streams, &w.exchanges[1], "/v1/completions", &error);
    cr_assert_not_null(strstr(w.exchanges[1].headers.data, "retry-after: 7\n"));
    close_world(&w);
}

Test(stream, a_refused_start_leaves_nothing)
{
    world w;
    fg_api_error error;
    open_world(&w);
    for (size_t i = 0; i < sizeof failures / sizeof failures[0]; i++) {
        fake_dispatch_state.start_status = failures[i].status;
        fake_dispatch_state.start_text = "no";
        cr_assert_eq(open_stream(&w, 0, FG_API_COMPLETION, COMP(""), &error), failures[i].status);
        cr_assert_eq(error.http_status, failures[i].http_status, "%s", failures[i].name);
        cr_assert_eq(w.exchanges[0].status, 0, "the front answers");
        cr_assert_null(w.exchanges[0].user);
    }
    cr_assert_eq(fg_streams_count(w.streams), 0);
    close_world(&w);
}

Test(stream, a_client_that_leaves_cancels_its_request_only)
{
    world w;
    open_world(&w);
    must_open(&w, 0, FG_API_COMPLETION, COMP(",\"stream\":true"));
    must_open(&w, 1, FG_API_COMPLETION, COMP(""));
    must_open(&w, 2, FG_API_COMPLETION, COMP(",\"stream\":true"));
    tokens(0, "a");
    tokens(2, "c");
    fg_stream_gone(w.streams, &w.exchanges[0]);
    fg_stream_gone(w.streams, &w.exchanges[1]);
    cr_assert_eq(fake_dispatch_state.jobs[0].cancelled, FG_FINISH_CANCELLED);
    cr_assert_eq(fake_dispatch_state.jobs[1].cancelled, FG_FINISH_CANCELLED);
    fg_streams_flush(w.streams);
    cr_assert(has(&w, 2, "\"text\":\"c\""));
    cr_assert_eq(w.exchanges[0].status, 0);
    cr_assert_eq(fg_streams_count(w.streams), 1);
    fg_stream_gone(w.streams, &w.exchanges[3]);
    close_world(&w);
}

Test(stream, a_client_that_leaves_after_the_end_cancels_nothing)
{
    world w;
    open_world(&w);
    must_open(&w, 0, FG_API_COMPLETION, COMP(",\"stream\":true"));
    tokens(0, "a");
    w.exchanges[0].write_status = FG_AGAIN;
    fake_end(0, FG_FINISH_STOP, FG_OK, NULL);
    fg_streams_flush(w.streams);
    fg_stream_gone(w.streams, &w.exchanges[0]);
    cr_assert_eq(fake_dispatch_state.jobs[0].cancelled, FG_FINISH_NONE);
    cr_assert_eq(fg_streams_count(w.streams), 0);
    close_world(&w);
}

Test(stream, a_write_to_a_dead_client_waits_for_on_gone)
{
    world w;
    open_world(&w);
    must_open(&w, 0, FG_API_COMPLETION, COMP(",\"stream\":true"));
    w.exchanges[0].write_status = FG_CANCELLED;
    tokens(0, "a");
    fg_streams_flush(w.streams);
    cr_assert_eq(fake_dispatch_state.jobs[0].cancelled, FG_FINISH_CANCELLED);
    cr_assert_eq(fg_streams_count(w.streams), 1);
    fg_stream_gone(w.streams, &w.exchanges[0]);
    cr_assert_eq(fg_streams_count(w.streams), 0);
    close_world(&w);
}

Test(stream, a_slow_reader_gets_its_text_later_and_stops_nobody)
{
    world w;
    open_world(&w);
    must_open(&w, 0, FG_API_COMPLETION, COMP(",\"stream\":true"));
    must_open(&w, 1, FG_API_COMPLETION, COMP(",\"stream\":true"));
    w.exchanges[0].write_status = FG_AGAIN;
    tokens(0, "ab");
    tokens(1, "xy");
    fg_streams_flush(w.streams);
    cr_assert(fg_streams_blocked(w.streams));
    cr_assert(has(&w, 1, "\"text\":\"xy\"") && !has(&w, 0, "text"));
    tokens(0, "cd");
    fake_end(0, FG_FINISH_LENGTH, FG_OK, NULL);
    fg_streams_flush(w.streams);
    fg_streams_retry(w.streams);
    cr_assert(fg_streams_blocked(w.streams) && !w.exchanges[0].ended);
    w.exchanges[0].write_status = FG_OK;
    fg_streams_retry(w.streams);
    cr_assert(!fg_streams_blocked(w.streams) && w.exchanges[0].ended);
    cr_assert(has(&w, 0, "\"text\":\"abcd\""), "%s", body_of(&w, 0));
    close_world(&w);
}

Test(stream, a_reader_that_never_reads_is_cancelled_at_the_limit)
{
    world w;
    fg_buf shown = { 0 };
    open_world(&w);
    must_open(&w, 0, FG_API_COMPLETION, COMP(",\"stream\":true"));
    w.exchanges[0].write_status = FG_AGAIN;
    for (uint32_t i = 0; i < FG_LIMIT_STREAM_BYTES / 5 + 1; i++) {
        cr_assert_eq(fake_running_count(), 1, "%u", i);
        fake_token(0, SMALL_BPE_HELLO, 0);
    }
    fg_streams_flush(w.streams);
    cr_assert_eq(fake_dispatch_state.jobs[0].cancelled, FG_FINISH_CANCELLED);
    w.exchanges[0].write_status = FG_OK;
    fg_streams_retry(w.streams);
    shown_text(&w, 0, &shown);
    cr_assert_eq(shown.size, FG_LIMIT_STREAM_BYTES / 5 * 5);
    cr_assert(w.exchanges[0].write_count > 10, "many bounded writes");
    cr_assert(has(&w, 0, "data: {\"error\":{\"message\":\"the client reads too slowly\""));
    cr_assert(w.exchanges[0].ended);
    fg_buf_deinit(&shown);
    close_world(&w);
}

Test(stream, long_pending_text_is_cut_between_characters)
{
    world w;
    fg_buf shown = { 0 };
    open_world(&w);
    must_open(&w, 0, FG_API_COMPLETION, COMP(",\"stream\":true"));
    w.exchanges[0].write_status = FG_AGAIN;
    fake_token(0, 'a', 0);
    for (int i = 0; i < 10000; i++) {
        fake_token(0, 0xC3, 0);
        fake_token(0, 0xA9, 0);
    }
    w.exchanges[0].write_status = FG_OK;
    fg_streams_flush(w.streams);
    shown_text(&w, 0, &shown);
    cr_assert_eq(shown.size, 20001);
    cr_assert(!has(&w, 0, "\xEF\xBF\xBD"));
    cr_assert(count_of(&w, 0, "\"text\":\"") >= 5);
    fg_buf_deinit(&shown);
    close_world(&w);
}

Test(stream, token_ids_and_digests_travel_with_their_text)
{
    world w;
    char want[128];
    open_world(&w);
    must_open(&w, 0, FG_API_COMPLETION,
              COMP(",\"stream\":true,\"logits_digest\":true,\"return_token_ids\":true"));
    fake_token(0, 'a', 10);
    fg_streams_flush(w.streams);
    cr_assert(has(&w, 0,
                  "\"token_ids\":[97],\"forge\":{\"token_ids\":[97],\"digests\":["
                  "\"000000000000000a\"]"),
              "%s", body_of(&w, 0));
    fake_token(0, 'b', 11);
    fake_token(0, 0xC3, 12); /* no text yet, but an id */
    fg_streams_flush(w.streams);
    uint64_t rolling = fg_api_roll_digest(0, 10);
    rolling = fg_api_roll_digest(rolling, 11);
    rolling = fg_api_roll_digest(rolling, 12);
    snprintf(want, sizeof want,
             "\"token_ids\":[98,195],\"digests\":[\"000000000000000b\","
             "\"000000000000000c\"],\"rolling\":\"%016llx\"",
             (unsigned long long)rolling);
    cr_assert(has(&w, 0, want), "%s\n%s", want, body_of(&w, 0));
    cr_assert(fake_dispatch_state.jobs[0].job.params.want_digests);
    close_world(&w);
}

Test(stream, an_end_token_is_shown_only_when_it_is_ignored)
{
    world w;
    open_world(&w);
    must_open(&w, 0, FG_API_COMPLETION, COMP(""));
    fake_token(0, 'a', 0);
    fake_token(0, SMALL_BPE_IM_END, 0);
    fake_end(0, FG_FINISH_STOP, FG_OK, NULL);
    fg_streams_flush(w.streams);
    cr_assert(has(&w, 0, "\"text\":\"a\""), "%s", body_of(&w, 0));
    close_world(&w);
}

Test(stream, everything_is_counted)
{
    world w;
    fg_buf page;
    open_world(&w);
    fake_dispatch_state.report.cached_tokens = 1;
    fake_dispatch_state.report.queued_ns = 250000000;
    must_open(&w, 0, FG_API_COMPLETION, COMP(""));
    must_open(&w, 1, FG_API_COMPLETION, COMP(""));
    w.now_ns += 2000000000;
    tokens(0, "a");
    w.now_ns += 500000000;
    tokens(0, "b");
    fake_end(0, FG_FINISH_LENGTH, FG_OK, NULL);
    fg_streams_flush(w.streams);
    fg_stream_gone(w.streams, &w.exchanges[1]);
    fg_buf_init(&page, 0);
    fg_metrics_render(w.metrics, &page);
    static const char *const lines[] = {
        "\nforge:http_requests_total{route=\"/v1/completions\",code=\"200\"} 1\n",
        "\nforge:http_requests_total{route=\"/v1/completions\",code=\"499\"} 1\n",
        "\nforge:request_success_total{finish_reason=\"length\"} 1\n",
        "\nforge:request_end_total{reason=\"cancelled\"} 1\n",
        "\nforge:num_requests_running 0\n",
        "\nforge:prompt_tokens_total 4\n",
        "\nforge:prompt_tokens_cached_total 1\n",
        "\nforge:request_params_n_count 2\n",
        "\nforge:request_queue_time_seconds_sum 0.25\n",
        "\nforge:generation_tokens_total 2\n",
        "\nforge:time_to_first_token_seconds_sum 2\n",
        "\nforge:inter_token_latency_seconds_sum 0.5\n",
        "\nforge:e2e_request_latency_seconds_count 2\n",
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        cr_assert(strstr(page.data, lines[i]) != NULL, "%s in %s", lines[i], page.data);
    }
    fg_buf_deinit(&page);
    close_world(&w);
}

static bool open_under_faults(void *ctx)
{
    world *w = ctx;
    fg_api_error error;
    fg_error err;
    fg_streams *streams;
    fg_streams_options options = {
        .tokenizer = w->model.tokenizer,
        .dispatch = fake_dispatch_handle(),
        .clock = fg_clock_manual(&w->now_ns),
        .on_news = on_news,
        .ctx = w,
    };
    if (fg_streams_create(&options, &streams, &err) != FG_OK) {
        return false;
    }
    fg_streams *kept = w->streams;
    w->streams = streams;
    fake_dispatch_reset();
    bool ok = open_stream(w, 0, FG_API_COMPLETION, COMP(",\"stop\":\"a\""), &error) == FG_OK;
    fg_streams_destroy(streams);
    w->streams = kept;
    return ok;
}

Test(stream, every_failed_allocation_is_refused)
{
    world w;
    open_world(&w);
    cr_assert(fg_fault_each(open_under_faults, &w) > 0);
    close_world(&w);
}

/* Random orders of everything that can happen; the fakes abort on a second answer, a cancel of a dead
 * request or a touch of a dead exchange, and ASan finds what is freed twice or never. */
Test(stream, any_order_of_events_ends_each_stream_once)
{
    fg_rng rng = { .state = test_seed(__func__) };
    for (int round = 0; round < 300; round++) {
        world w;
        bool gone[EXCHANGES] = { false };
        open_world(&w);
        for (int i = 0; i < EXCHANGES; i++) {
            must_open(&w, i, FG_API_COMPLETION,
                      i % 2 == 0 ? COMP(",\"stream\":true,\"stop\":\"ab\"")
                                 : COMP(",\"stop\":\"ab\",\"return_token_ids\":true"));
        }
        for (int step = 0; step < 60; step++) {
            uint32_t i = (uint32_t)fg_rng_below(&rng, EXCHANGES);
            bool running = fake_dispatch_state.jobs[i].running;
            bool dead = gone[i] || w.exchanges[i].ended;
            switch (fg_rng_below(&rng, 8)) {
            case 0:
                if (running) {
                    bool good = fg_rng_below(&rng, 2) == 0;
                    fake_end(i, good ? FG_FINISH_LENGTH : FG_FINISH_ERROR, good ? FG_OK : FG_BROKEN,
                             "x");
                }
                break;
            case 1:
                if (!dead) {
                    fg_stream_gone(w.streams, &w.exchanges[i]);
                    gone[i] = true;
                }
                break;
            case 2:
                w.exchanges[i].write_status = fg_rng_below(&rng, 2) == 0 ? FG_OK : FG_AGAIN;
                break;
            case 3:
                fg_streams_retry(w.streams);
                break;
            case 4:
                fg_streams_flush(w.streams);
                break;
            default:
                if (running) {
                    fake_token(i, 'a' + (uint32_t)fg_rng_below(&rng, 3), 1);
                }
                break;
            }
        }
        close_world(&w);
    }
}
