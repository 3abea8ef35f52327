/* Requests of several choices, and what is told of how a request went. */
#include <stdio.h>
#include <string.h>

#include "common/base/fault.h"
#include "common/base/limits.h"
#include "common/base/rng.h"
#include "tests/support/seed.h"
#include "tests/support/test.h"
#include "tests/unit/router/crowd.h"

#define COMP(more) "{\"prompt\":\"hi\"" more "}"
#define CHAT(more) "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]" more "}"

static bool has(int exchange, const char *text)
{
    return strstr(crowd_body(exchange), text) != NULL;
}

static uint32_t count_of(int exchange, const char *text)
{
    uint32_t count = 0;
    for (const char *at = crowd_body(exchange); (at = strstr(at, text)) != NULL; at++) {
        count++;
    }
    return count;
}

/* The text of a whole answer's choice `index`, which has no escapes. */
static void text_of(int exchange, int index, char out[CROWD_TOKENS + 1])
{
    char key[48];
    snprintf(key, sizeof key, "{\"index\":%d,\"text\":\"", index);
    const char *at = strstr(crowd_body(exchange), key);
    cr_assert_not_null(at, "%s in %s", key, crowd_body(exchange));
    at += strlen(key);
    snprintf(out, CROWD_TOKENS + 1, "%.*s", (int)strcspn(at, "\""), at);
}

/* Joins what the events of an exchange say for one choice. */
static void streamed_text(int exchange, int index, fg_buf *out)
{
    char key[48];
    snprintf(key, sizeof key, "{\"index\":%d,\"text\":\"", index);
    fg_buf_clear(out);
    fg_buf_puts(out, "");
    for (const char *at = crowd_body(exchange); (at = strstr(at, key)) != NULL;) {
        at += strlen(key);
        fg_buf_append(out, at, strcspn(at, "\""));
    }
}

static void finish_all(void)
{
    crowd_turn(UINT32_MAX);
}

Test(choices, choice_i_is_the_single_request_with_seed_plus_i)
{
    static const char *const seeds[] = { "5", "-2", "9223372036854775807" };
    static const char *const next[] = { "6", "-1", "-9223372036854775808" };
    for (size_t s = 0; s < 3; s++) {
        char body[96];
        char several[CROWD_TOKENS + 1], alone[CROWD_TOKENS + 1], first[CROWD_TOKENS + 1];
        crowd_open();
        snprintf(body, sizeof body, "{\"prompt\":\"hi\",\"n\":3,\"seed\":%s}", seeds[s]);
        crowd_must_request(0, FG_API_COMPLETION, body, 1);
        snprintf(body, sizeof body, "{\"prompt\":\"hi\",\"seed\":%s}", next[s]);
        crowd_must_request(1, FG_API_COMPLETION, body, 1);
        snprintf(body, sizeof body, "{\"prompt\":\"hi\",\"n\":1,\"seed\":%s}", seeds[s]);
        crowd_must_request(2, FG_API_COMPLETION, body, 1);
        finish_all();
        text_of(0, 1, several);
        text_of(1, 0, alone);
        cr_assert_str_eq(several, alone);
        text_of(0, 0, first);
        text_of(2, 0, alone);
        cr_assert_str_eq(first, alone);
        cr_assert_neq(strcmp(first, several), 0);
        crowd_close();
    }
}

Test(choices, all_choices_are_one_family_and_no_other)
{
    crowd_open();
    crowd_must_request(0, FG_API_COMPLETION, COMP(",\"n\":3"), 77);
    crowd_must_request(1, FG_API_COMPLETION, COMP(",\"n\":2"), 78);
    crowd_must_request(2, FG_API_COMPLETION, COMP(""), 79);
    uint64_t family = the_crowd.jobs[0].job.params.family;
    cr_assert_neq(family, 0);
    for (uint32_t i = 0; i < 3; i++) {
        cr_assert_eq(the_crowd.jobs[i].job.params.family, family);
        cr_assert_eq(the_crowd.jobs[i].job.params.seed, 77 + i, "a drawn seed counts up too");
    }
    cr_assert_neq(the_crowd.jobs[3].job.params.family, family);
    cr_assert_neq(the_crowd.jobs[3].job.params.family, 0);
    cr_assert_eq(the_crowd.jobs[5].job.params.family, 0, "nobody to fork from");
    crowd_close();
}

Test(choices, a_whole_answer_lists_them_by_index_and_counts_the_prompt_once)
{
    crowd_open();
    crowd_must_request(0, FG_API_COMPLETION, COMP(",\"n\":3"), 1);
    crowd_finish(2);
    the_crowd.report.cached_tokens = 16;
    crowd_finish(0);
    fg_streams_flush(the_crowd.streams);
    cr_assert_eq(the_crowd.exchanges[0].status, 0);
    crowd_finish(1);
    fg_streams_flush(the_crowd.streams);
    cr_assert_eq(the_crowd.exchanges[0].status, 200);
    const char *at = crowd_body(0);
    for (int i = 0; i < 3; i++) {
        char key[32];
        snprintf(key, sizeof key, "{\"index\":%d,", i);
        at = strstr(at, key);
        cr_assert_not_null(at, "%s in %s", key, crowd_body(0));
    }
    cr_assert(has(0, "\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":18,\"total_tokens\":20,"
                     "\"prompt_tokens_details\":{\"cached_tokens\":0}}"),
              "%s", crowd_body(0));
    cr_assert_eq(count_of(0, "\"finish_reason\":\"length\""), 3);
    crowd_close();
}

Test(choices, usage_says_what_the_least_lucky_choice_found_cached)
{
    crowd_open();
    crowd_must_request(0, FG_API_COMPLETION, COMP(",\"n\":2"), 1);
    the_crowd.report.cached_tokens = 48;
    crowd_finish(0);
    the_crowd.report.cached_tokens = 32;
    crowd_finish(1);
    fg_streams_flush(the_crowd.streams);
    cr_assert(has(0, "\"cached_tokens\":32}"), "%s", crowd_body(0));
    fg_buf page = { 0 };
    fg_metrics_render(the_crowd.metrics, &page);
    cr_assert(strstr(page.data, "\nforge:prompt_tokens_cached_total 32\n") != NULL);
    cr_assert(strstr(page.data, "\nforge:request_params_n_sum 2\n") != NULL);
    cr_assert(strstr(page.data, "\nforge:request_params_n_count 1\n") != NULL);
    fg_buf_deinit(&page);
    crowd_close();
}

Test(choices, events_interleave_and_each_choice_has_its_role_and_finish)
{
    crowd_open();
    crowd_must_request(0, FG_API_CHAT,
                       CHAT(",\"n\":2,\"stream\":true,\"stream_options\":{\"include_usage\":true}"),
                       1);
    crowd_token(1, 'x');
    fg_streams_flush(the_crowd.streams);
    cr_assert(has(0, "{\"index\":1,\"delta\":{\"role\":\"assistant\""), "%s", crowd_body(0));
    cr_assert(!has(0, "{\"index\":0,"));
    crowd_token(0, 'y');
    crowd_token(1, 'z');
    fg_streams_flush(the_crowd.streams);
    cr_assert(has(0, "{\"index\":0,\"delta\":{\"content\":\"y\"}"));
    cr_assert(has(0, "{\"index\":1,\"delta\":{\"content\":\"z\"}"));
    crowd_end(0, FG_FINISH_STOP, FG_OK, NULL);
    fg_streams_flush(the_crowd.streams);
    cr_assert(has(0, "{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\""));
    cr_assert(!the_crowd.exchanges[0].ended && !has(0, "[DONE]"));
    crowd_end(1, FG_FINISH_LENGTH, FG_OK, NULL);
    fg_streams_flush(the_crowd.streams);
    const char *last = strstr(
        crowd_body(0), "{\"index\":1,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"length\"");
    const char *usage = strstr(crowd_body(0), "\"choices\":[],\"usage\":{\"prompt_tokens\":");
    const char *done = strstr(crowd_body(0), "data: [DONE]\n\n");
    cr_assert(last != NULL && usage > last && done > usage && done[14] == '\0', "%s",
              crowd_body(0));
    cr_assert(has(0, "\"completion_tokens\":3,"));
    cr_assert_eq(count_of(0, "\"role\":\"assistant\""), 2);
    cr_assert_eq(count_of(0, "\"finish_reason\":\"stop\""), 1);
    cr_assert(the_crowd.exchanges[0].ended);
    crowd_close();
}

Test(choices, streamed_and_whole_answers_say_the_same)
{
    fg_buf streamed = { 0 };
    crowd_open();
    crowd_must_request(0, FG_API_COMPLETION, COMP(",\"n\":64,\"seed\":3"), 1);
    crowd_must_request(1, FG_API_COMPLETION, COMP(",\"n\":64,\"seed\":3,\"stream\":true"), 1);
    finish_all();
    for (int i = 0; i < 64; i++) {
        char whole[CROWD_TOKENS + 1];
        text_of(0, i, whole);
        streamed_text(1, i, &streamed);
        cr_assert_str_eq(streamed.data, whole);
    }
    cr_assert_eq(count_of(1, "\"finish_reason\":\"length\""), 64);
    fg_buf_deinit(&streamed);
    crowd_close();
}

Test(choices, each_has_its_own_stop_string_and_characters)
{
    crowd_open();
    crowd_must_request(0, FG_API_COMPLETION, COMP(",\"n\":2,\"stop\":\"ab\""), 1);
    crowd_token(0, 'a');
    crowd_token(1, 'b'); /* "ab" only if the choices were one text */
    crowd_token(1, 0xC3);
    crowd_token(0, 0xA9);
    crowd_token(0, 'b');
    crowd_token(1, 'a');
    crowd_token(1, 'b');
    fg_streams_flush(the_crowd.streams);
    cr_assert_eq(the_crowd.jobs[1].cancelled, FG_FINISH_STOP);
    cr_assert(the_crowd.jobs[0].running, "the other goes on");
    crowd_end(0, FG_FINISH_LENGTH, FG_OK, NULL);
    fg_streams_flush(the_crowd.streams);
    cr_assert(has(0, "{\"index\":0,\"text\":\"a\xEF\xBF\xBD"
                     "b\",\"logprobs\":null,\"finish_reason\":\"length\""),
              "%s", crowd_body(0));
    cr_assert(has(0, "{\"index\":1,\"text\":\"b\xEF\xBF\xBD\",\"logprobs\":null,"
                     "\"finish_reason\":\"stop\""),
              "%s", crowd_body(0));
    crowd_close();
}

Test(choices, one_failure_ends_all_with_its_error)
{
    crowd_open();
    crowd_must_request(0, FG_API_COMPLETION, COMP(",\"n\":3"), 1);
    crowd_must_request(1, FG_API_COMPLETION, COMP(",\"n\":3,\"stream\":true"), 1);
    crowd_finish(0);
    crowd_token(3, 'x');
    fg_streams_flush(the_crowd.streams);
    crowd_token(5, 'y');
    crowd_end(1, FG_FINISH_ERROR, FG_PEER_LOST, "lost");
    crowd_end(4, FG_FINISH_ERROR, FG_PEER_LOST, "lost");
    fg_streams_flush(the_crowd.streams);
    cr_assert_eq(the_crowd.jobs[2].cancelled, FG_FINISH_CANCELLED);
    cr_assert_eq(the_crowd.jobs[3].cancelled, FG_FINISH_CANCELLED);
    cr_assert_eq(the_crowd.jobs[5].cancelled, FG_FINISH_CANCELLED);
    cr_assert_eq(the_crowd.exchanges[0].status, 503);
    cr_assert(!has(0, "choices"), "%s", crowd_body(0));
    const char *text = strstr(crowd_body(1), "{\"index\":2,\"text\":\"y\"");
    const char *error = strstr(crowd_body(1), "data: {\"error\":{\"message\":\"lost\"");
    const char *done = strstr(crowd_body(1), "data: [DONE]\n\n");
    cr_assert(text != NULL && error > text && done > error, "%s", crowd_body(1));
    cr_assert_eq(count_of(1, "data: {\"error\""), 1);
    cr_assert_eq(fg_streams_count(the_crowd.streams), 0);
    crowd_close();
}

Test(choices, two_failures_in_one_turn_are_one_error)
{
    crowd_open();
    crowd_must_request(0, FG_API_COMPLETION, COMP(",\"n\":2"), 1);
    crowd_end(1, FG_FINISH_ERROR, FG_TIMEOUT, "late");
    crowd_end(0, FG_FINISH_ERROR, FG_BROKEN, "broken");
    fg_streams_flush(the_crowd.streams);
    cr_assert_eq(the_crowd.exchanges[0].status, 503);
    cr_assert(has(0, "\"message\":\"late\""), "the first one tells: %s", crowd_body(0));
    crowd_close();
}

Test(choices, a_client_that_leaves_cancels_all)
{
    crowd_open();
    crowd_must_request(0, FG_API_COMPLETION, COMP(",\"n\":4,\"stream\":true"), 1);
    crowd_finish(2);
    fg_streams_flush(the_crowd.streams);
    fg_stream_gone(the_crowd.streams, &the_crowd.exchanges[0]);
    cr_assert_eq(the_crowd.running, 0);
    cr_assert_eq(the_crowd.jobs[2].cancelled, FG_FINISH_NONE);
    cr_assert_eq(the_crowd.jobs[3].cancelled, FG_FINISH_CANCELLED);
    crowd_close();
}

Test(choices, a_start_is_all_or_nothing)
{
    fg_api_error error;
    crowd_open();
    for (uint32_t room = 0; room < 4; room++) {
        the_crowd.room = room;
        uint32_t before = the_crowd.job_count;
        cr_assert_eq(crowd_request(0, FG_API_COMPLETION, COMP(",\"n\":4"), 1, &error), FG_AGAIN);
        cr_assert_eq(error.http_status, 429);
        cr_assert_eq(the_crowd.job_count - before, room, "that many were started");
        cr_assert_eq(the_crowd.running, 0, "and cancelled");
        cr_assert_null(the_crowd.exchanges[0].user);
        cr_assert_eq(fg_streams_count(the_crowd.streams), 0);
    }
    the_crowd.room = 4;
    crowd_must_request(0, FG_API_COMPLETION, COMP(",\"n\":4"), 1);
    crowd_close();
}

Test(choices, more_than_ever_fit_are_no_matter_of_time)
{
    fg_api_error error;
    crowd_open();
    the_crowd.room = 3;
    the_crowd.at_once = 4;
    cr_assert_eq(crowd_request(0, FG_API_COMPLETION, COMP(",\"n\":4"), 1, &error), FG_AGAIN);
    cr_assert_eq(error.http_status, 429);
    cr_assert_eq(crowd_request(0, FG_API_COMPLETION, COMP(",\"n\":5"), 1, &error), FG_BAD_INPUT);
    cr_assert(error.http_status == 400 && strcmp(error.param, "n") == 0, "%d %s", error.http_status,
              error.param);
    cr_assert_not_null(strstr(error.text, "room for 4"), "%s", error.text);
    cr_assert_eq(the_crowd.running, 0);
    crowd_close();
}

Test(choices, a_slow_reader_shares_one_limit_among_them)
{
    crowd_open();
    crowd_must_request(0, FG_API_COMPLETION,
                       "{\"prompt\":\"hi\",\"n\":64,\"stream\":true,\"max_tokens\":50000}", 1);
    the_crowd.exchanges[0].write_status = FG_AGAIN;
    for (uint32_t i = 0; i <= FG_LIMIT_STREAM_BYTES / 64; i++) {
        cr_assert_eq(the_crowd.running, 64, "%u", i);
        crowd_token(9, 'q');
    }
    fg_streams_flush(the_crowd.streams);
    cr_assert_eq(the_crowd.running, 0);
    the_crowd.exchanges[0].write_status = FG_OK;
    fg_streams_retry(the_crowd.streams);
    cr_assert(has(0, "data: {\"error\":{\"message\":\"the client reads too slowly\""));
    cr_assert(the_crowd.exchanges[0].ended);
    crowd_close();
}

Test(choices, a_reader_that_was_slow_hears_all_choices_in_turn)
{
    crowd_open();
    crowd_must_request(0, FG_API_COMPLETION, COMP(",\"n\":2,\"stream\":true"), 1);
    the_crowd.exchanges[0].write_status = FG_AGAIN;
    for (int i = 0; i < 6000; i++) {
        crowd_token(0, 'a');
        crowd_token(1, 'b');
    }
    fg_streams_flush(the_crowd.streams);
    the_crowd.exchanges[0].write_status = FG_OK;
    fg_streams_retry(the_crowd.streams);
    const char *second = strstr(crowd_body(0), "{\"index\":1,");
    const char *first_again = strstr(strstr(crowd_body(0), "{\"index\":0,") + 1, "{\"index\":0,");
    cr_assert(second != NULL && first_again > second, "pieces alternate");
    crowd_close();
}

/* Timings. */

static const fg_dispatch_report a_report = {
    .cached_tokens = 32,
    .chunks = 3,
    .preemptions = 2,
    .attempts = 1,
    .queued_ns = 1500000,
    .reserved_ns = 2000000,
    .prefilling_ns = 3000000,
    .transferring_ns = 4000000,
    .reserved = true,
    .transferred = true,
    .decoding_ns = 5000000,
    .worker_queue_ns = 250000,
    .worker_compute_ns = 2750000,
    .first_token_ns = 6500000,
    .total_ns = 15500000,
};
#define A_REPORT                                                                                   \
    "\"timings\":{\"queued_ms\":1.500,\"reserved_ms\":2.000,\"prefill_ms\":3.000,"                 \
    "\"transfer_ms\":4.000,\"decode_ms\":5.000,\"worker_queue_ms\":0.250,"                         \
    "\"worker_compute_ms\":2.750,\"first_token_ms\":6.500,\"total_ms\":15.500,"                    \
    "\"cached_tokens\":32,\"chunks\":3,\"preemptions\":2,\"attempts\":1}"

static const struct timing_case {
    const char *name, *body;
    const char *want;
    uint32_t count;
} timing_cases[] = {
    { "not asked for", COMP(""), "\"total_tokens\":8,", 0 },
    { "false", COMP(",\"return_timings\":false"), "\"total_tokens\":8,", 0 },
    { "whole", COMP(",\"return_timings\":true"), "\"cached_tokens\":32}}," A_REPORT "}", 1 },
    { "whole, two", COMP(",\"return_timings\":true,\"n\":2"),
      "\"finish_reason\":\"length\"," A_REPORT "},{\"index\":1", 2 },
    { "streamed", COMP(",\"return_timings\":true,\"stream\":true"),
      "\"finish_reason\":\"length\"}]," A_REPORT "}\n\ndata: [DONE]", 1 },
    { "streamed, with usage",
      COMP(",\"return_timings\":true,\"stream\":true,\"stream_options\":{\"include_usage\":true}"),
      "\"cached_tokens\":32}}," A_REPORT "}\n\ndata: [DONE]", 1 },
    { "streamed, two", COMP(",\"return_timings\":true,\"stream\":true,\"n\":2"),
      "\"finish_reason\":\"length\"," A_REPORT "}]}\n\ndata: [DONE]", 2 },
};

Test(choices, timings_come_where_they_were_asked_for)
{
    for (size_t i = 0; i < sizeof timing_cases / sizeof timing_cases[0]; i++) {
        const struct timing_case *it = &timing_cases[i];
        crowd_open();
        the_crowd.report = a_report;
        crowd_must_request(0, FG_API_COMPLETION, it->body, 1);
        finish_all();
        cr_assert(has(0, it->want), "%s: %s", it->name, crowd_body(0));
        cr_assert_eq(count_of(0, "\"timings\""), it->count, "%s: %s", it->name, crowd_body(0));
        crowd_close();
    }
}

Test(choices, a_stop_string_found_here_still_has_times)
{
    crowd_open();
    crowd_must_request(0, FG_API_COMPLETION, COMP(",\"return_timings\":true,\"stop\":\"b\""), 1);
    crowd_token(0, 'a');
    crowd_token(0, 'b');
    the_crowd.report.first_token_ns = 2000000; /* what dispatch tells when it is cancelled there */
    the_crowd.report.total_ns = 5000000;
    the_crowd.report.cached_tokens = 1;
    fg_streams_flush(the_crowd.streams);
    cr_assert(has(0, "\"first_token_ms\":2.000,\"total_ms\":5.000,"), "%s", crowd_body(0));
    cr_assert(has(0, "\"prompt_tokens_details\":{\"cached_tokens\":1}"), "%s", crowd_body(0));
    crowd_close();
}

/* The page of metrics has each of `lines` after two choices with that report. */
static void two_reports_show(const fg_dispatch_report *report, const char *const *lines,
                             size_t count)
{
    fg_buf page = { 0 };
    crowd_open();
    the_crowd.report = *report;
    crowd_must_request(0, FG_API_COMPLETION, COMP(",\"n\":2"), 1);
    finish_all();
    fg_metrics_render(the_crowd.metrics, &page);
    for (size_t i = 0; i < count; i++) {
        cr_assert(strstr(page.data, lines[i]) != NULL, "%s in %s", lines[i], page.data);
    }
    fg_buf_deinit(&page);
    crowd_close();
}

Test(choices, reports_are_counted)
{
    static const char *const lines[] = {
        "\nforge:request_preemptions_total 4\n",
        "\nforge:request_queue_time_seconds_count 2\n",
        "\nforge:request_queue_time_seconds_sum 0.003\n",
        "\nforge:request_prefill_time_seconds_sum 0.006\n",
        "\nforge:request_reserve_time_seconds_sum 0.004\n",
        "\nforge:request_transfer_time_seconds_sum 0.008\n",
        "\nforge:request_decode_time_seconds_sum 0.01\n",
    };
    two_reports_show(&a_report, lines, sizeof lines / sizeof lines[0]);
}

Test(choices, a_state_that_took_no_time_is_counted_too)
{
    static const char *const lines[] = {
        "\nforge:request_reserve_time_seconds_count 2\n",
        "\nforge:request_transfer_time_seconds_count 2\n",
        "\nforge:request_transfer_time_seconds_sum 0\n",
    };
    fg_dispatch_report overtaken = a_report;
    overtaken.transferring_ns = 0;
    two_reports_show(&overtaken, lines, sizeof lines / sizeof lines[0]);
}

Test(choices, one_worker_for_both_reserves_and_transfers_nothing)
{
    static const char *const lines[] = {
        "\nforge:request_prefill_time_seconds_count 2\n",
        "\nforge:request_reserve_time_seconds_count 0\n",
        "\nforge:request_transfer_time_seconds_count 0\n",
    };
    fg_dispatch_report whole = a_report;
    whole.reserved = whole.transferred = false;
    whole.reserved_ns = whole.transferring_ns = 0;
    two_reports_show(&whole, lines, sizeof lines / sizeof lines[0]);
}

Test(choices, nothing_cached_where_force_was_asked_is_409)
{
    crowd_open();
    crowd_must_request(0, FG_API_COMPLETION, COMP(",\"n\":2,\"prefix_cache\":\"force\""), 1);
    crowd_must_request(1, FG_API_COMPLETION, COMP(""), 1);
    cr_assert_eq(the_crowd.jobs[0].job.params.cache_mode, FG_CACHE_FORCE);
    crowd_end(0, FG_FINISH_ERROR, FG_BAD_INPUT, "prefix cache: nothing of this prompt is cached");
    crowd_end(2, FG_FINISH_ERROR, FG_BAD_INPUT, "too long");
    fg_streams_flush(the_crowd.streams);
    cr_assert_eq(the_crowd.exchanges[0].status, 409);
    cr_assert(has(0, "\"code\":\"prefix_cache_miss\""), "%s", crowd_body(0));
    cr_assert_eq(the_crowd.exchanges[1].status, 400);
    cr_assert(has(1, "\"code\":\"context_length_exceeded\""), "%s", crowd_body(1));
    crowd_close();
}

static bool request_under_faults(void *ctx)
{
    fg_api_error error;
    fg_status status =
        crowd_request(0, FG_API_COMPLETION, COMP(",\"n\":3,\"stop\":\"x\""), 1, &error);
    if (status == FG_OK) {
        fg_stream_gone(the_crowd.streams, &the_crowd.exchanges[0]);
        the_crowd.exchanges[0].user = NULL;
    }
    cr_assert_eq(fg_streams_count(the_crowd.streams), 0);
    return status == FG_OK;
}

Test(choices, every_failed_allocation_is_refused)
{
    crowd_open();
    cr_assert(fg_fault_each(request_under_faults, NULL) > 0);
    crowd_close();
}

/* Random orders of everything that can happen; the fakes abort on a second answer, a cancel of a dead
 * request or a touch of a dead exchange, and ASan finds what is freed twice or never. */
Test(choices, any_order_of_events_ends_each_choice_once)
{
    fg_rng rng = { .state = test_seed(__func__) };
    for (int round = 0; round < 200; round++) {
        bool gone[2] = { false };
        crowd_open();
        crowd_must_request(0, FG_API_COMPLETION, COMP(",\"n\":3,\"stream\":true,\"stop\":\"ab\""),
                           1);
        crowd_must_request(1, FG_API_CHAT, CHAT(",\"n\":3,\"return_timings\":true,\"stop\":\"a\""),
                           1);
        for (int step = 0; step < 60; step++) {
            uint32_t job = (uint32_t)fg_rng_below(&rng, 6);
            bool running = the_crowd.jobs[job].running;
            fg_http_exchange *exchange = &the_crowd.exchanges[job / 3];
            switch (fg_rng_below(&rng, 10)) {
            case 0:
                if (running) {
                    bool good = fg_rng_below(&rng, 3) != 0;
                    crowd_end(job, good ? FG_FINISH_LENGTH : FG_FINISH_ERROR,
                              good ? FG_OK : FG_BROKEN, "x");
                }
                break;
            case 1:
                if (!gone[job / 3] && !exchange->ended && fg_rng_below(&rng, 4) == 0) {
                    fg_stream_gone(the_crowd.streams, exchange);
                    gone[job / 3] = true;
                }
                break;
            case 2:
                exchange->write_status = fg_rng_below(&rng, 2) == 0 ? FG_OK : FG_AGAIN;
                break;
            case 3:
                fg_streams_retry(the_crowd.streams);
                break;
            case 4:
                fg_streams_flush(the_crowd.streams);
                break;
            default:
                if (running) {
                    crowd_token(job, 'a' + (uint32_t)fg_rng_below(&rng, 3));
                }
                break;
            }
        }
        crowd_close();
    }
}
