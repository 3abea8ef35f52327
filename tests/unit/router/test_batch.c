#include "router/batch.h"

#include <stdio.h>
#include <string.h>

#include "common/base/fault.h"
#include "common/base/json.h"
#include "common/base/limits.h"
#include "common/base/rng.h"
#include "tests/support/seed.h"
#include "tests/support/test.h"
#include "tests/unit/router/crowd.h"

static fg_status open_batch(int exchange, const char *body, size_t length, fg_api_error *error_out)
{
    return fg_batch_open(the_crowd.batches, &the_crowd.exchanges[exchange], "/forge/v1/batch", "b",
                         body, length, error_out);
}

static void must_open(int exchange, const fg_buf *body)
{
    fg_api_error error = { 0 };
    cr_assert_eq(open_batch(exchange, body->data, body->size, &error), FG_OK, "%s", error.text);
}

/* A line of a batch; `more` follows the prompt. */
static void add_line(fg_buf *out, int index, const char *url, const char *more)
{
    fg_buf_printf(
        out,
        "%s{\"custom_id\":\"c%d\",\"method\":\"POST\",\"url\":\"%s\",\"body\":{\"prompt\":"
        "\"p%d\"%s}}",
        index == 0 ? "[" : ",", index, url, index, more);
}

static void add_lines(fg_buf *out, int count)
{
    for (int i = 0; i < count; i++) {
        add_line(out, i, "/v1/completions", "");
    }
    fg_buf_putc(out, ']');
}

/* Turns until the exchange is answered; each finishes up to `speed` jobs. */
static void run(int exchange, uint32_t speed)
{
    for (int turn = 0; turn < 100000 && !the_crowd.exchanges[exchange].ended; turn++) {
        crowd_turn(speed);
        the_crowd.now_ns += 60000000;
    }
    cr_assert(the_crowd.exchanges[exchange].ended, "never answered");
}

static fg_json *answer_of(int exchange)
{
    fg_json *json;
    fg_error err;
    const fg_buf *body = &the_crowd.exchanges[exchange].body;
    cr_assert_eq(fg_json_parse(body->data, body->size, &json, &err), FG_OK, "%s", err.text);
    return json;
}

static const fg_json_node *line_of(const fg_json *json, size_t index)
{
    return fg_json_at(fg_json_get(fg_json_root(json), "data"), index);
}

static int status_of(const fg_json_node *line)
{
    int64_t status = 0;
    fg_json_integer(fg_json_get(fg_json_get(line, "response"), "status_code"), &status);
    return (int)status;
}

/* "param/code" of a line's error. */
static const char *error_of(const fg_json_node *line, char out[128])
{
    const fg_json_node *error =
        fg_json_get(fg_json_get(fg_json_get(line, "response"), "body"), "error");
    const char *param = fg_json_string(fg_json_get(error, "param"), NULL);
    const char *code = fg_json_string(fg_json_get(error, "code"), NULL);
    snprintf(out, 128, "%s/%s", param == NULL ? "" : param, code == NULL ? "" : code);
    return out;
}

Test(batch, every_line_gets_what_it_would_get_alone)
{
    static const char *const mores[] = { "",          ",\"seed\":7",
                                         ",\"n\":3",  ",\"stop\":\"e\",\"return_token_ids\":true",
                                         ",\"n\":65", ",\"prompt\":1" };
    enum { COUNT = sizeof mores / sizeof mores[0] };
    fg_buf body = { 0 };
    crowd_open();
    for (int i = 0; i < COUNT; i++) {
        add_line(&body, i, "/v1/completions", i == 5 ? ",\"echo\":true" : mores[i]);
    }
    fg_buf_puts(&body, "]");
    must_open(0, &body);
    run(0, 100);
    cr_assert_eq(the_crowd.exchanges[0].status, 200);
    for (int i = 0; i < COUNT; i++) {
        char alone[128], want[64];
        fg_api_error error;
        fg_http_exchange *exchange = &the_crowd.exchanges[1];
        fg_buf_deinit(&exchange->body);
        fg_buf_deinit(&exchange->headers);
        *exchange = (fg_http_exchange){ 0 };
        snprintf(alone, sizeof alone, "{\"prompt\":\"p%d\"%s}", i,
                 i == 5 ? ",\"echo\":true" : mores[i]);
        if (crowd_request(1, FG_API_COMPLETION, alone, 1000, &error) == FG_OK) {
            crowd_turn(100);
        } else {
            fg_stream_reply_error(the_crowd.streams, exchange, "/v1/completions", &error);
        }
        fg_buf expected = { 0 };
        snprintf(want, sizeof want, "{\"id\":\"batch_req_b_%d\",\"custom_id\":\"c%d\",", i, i);
        fg_buf_printf(&expected,
                      "%s\"response\":{\"status_code\":%d,\"request_id\":\"id\",\"body\":%s},"
                      "\"error\":null}",
                      want, exchange->status, exchange->body.data);
        cr_assert(strstr(crowd_body(0), expected.data) != NULL, "%s\nin %s", expected.data,
                  crowd_body(0));
        fg_buf_deinit(&expected);
    }
    fg_buf_deinit(&body);
    crowd_close();
}

Test(batch, answers_come_in_the_order_of_the_lines)
{
    fg_buf body = { 0 };
    char want[16];
    crowd_open();
    add_lines(&body, 5);
    must_open(0, &body);
    crowd_turn(0);
    cr_assert_eq(the_crowd.running, 5);
    for (uint32_t i = 5; i-- > 0;) {
        cr_assert(!the_crowd.exchanges[0].ended);
        crowd_finish(i);
        crowd_turn(0);
    }
    cr_assert(the_crowd.exchanges[0].ended);
    fg_json *json = answer_of(0);
    cr_assert_str_eq(fg_json_string(fg_json_get(fg_json_root(json), "object"), NULL), "list");
    cr_assert_eq(fg_json_size(fg_json_get(fg_json_root(json), "data")), 5);
    for (size_t i = 0; i < 5; i++) {
        snprintf(want, sizeof want, "c%zu", i);
        cr_assert_str_eq(fg_json_string(fg_json_get(line_of(json, i), "custom_id"), NULL), want);
        cr_assert_eq(status_of(line_of(json, i)), 200);
        cr_assert(fg_json_is(fg_json_get(line_of(json, i), "error"), FG_JSON_NULL));
    }
    fg_json_destroy(json);
    fg_buf_deinit(&body);
    crowd_close();
}

Test(batch, one_longer_than_the_queue_is_done_completely)
{
    static const uint32_t rooms[] = { 1, 3, 1000 };
    for (size_t r = 0; r < 3; r++) {
        fg_buf body = { 0 };
        crowd_open();
        the_crowd.room = rooms[r];
        fg_buf_puts(&body, "{\"requests\":");
        add_lines(&body, 700);
        fg_buf_puts(&body, "}");
        must_open(0, &body);
        run(0, 50);
        fg_json *json = answer_of(0);
        for (size_t i = 0; i < 700; i++) {
            cr_assert_eq(status_of(line_of(json, i)), 200, "line %zu", i);
        }
        cr_assert_eq(the_crowd.job_count, 700, "each was started once");
        cr_assert_eq(the_crowd.calls, 700, "each was read once, however often it waited");
        fg_json_destroy(json);
        fg_buf_deinit(&body);
        crowd_close();
    }
}

Test(batch, one_pump_starts_a_few_and_asks_to_be_called_again)
{
    fg_buf body = { 0 };
    crowd_open();
    add_lines(&body, 100);
    must_open(0, &body);
    for (uint32_t started = 0; started < 100;) {
        uint32_t news = the_crowd.news;
        cr_assert(news > 0);
        crowd_turn(0);
        cr_assert(the_crowd.running > started && the_crowd.running - started <= 16);
        started = the_crowd.running;
        cr_assert(started == 100 || the_crowd.news > news);
    }
    fg_buf_deinit(&body);
    crowd_close();
}

Test(batch, only_so_many_of_its_choices_run_at_a_time)
{
    fg_buf body = { 0 };
    crowd_open();
    add_lines(&body, 600);
    must_open(0, &body);
    for (int turn = 0; turn < 40; turn++) {
        crowd_turn(0);
    }
    cr_assert_eq(the_crowd.running, FG_LIMIT_BATCH_RUNNING);
    cr_assert(!fg_batches_blocked(the_crowd.batches), "its own ends call it back");
    crowd_turn(1);
    cr_assert_eq(the_crowd.running, FG_LIMIT_BATCH_RUNNING, "one ended, one started");
    run(0, 50);
    cr_assert_eq(the_crowd.job_count, 600);
    fg_buf_deinit(&body);
    crowd_close();
}

Test(batch, a_full_queue_is_asked_again_when_a_line_ends_or_later)
{
    fg_buf body = { 0 };
    crowd_open();
    crowd_must_request(1, FG_API_COMPLETION, "{\"prompt\":\"x\"}", 1);
    the_crowd.room = 2;
    add_lines(&body, 3);
    must_open(0, &body);
    crowd_turn(0);
    cr_assert_eq(the_crowd.running, 2);
    cr_assert(fg_batches_blocked(the_crowd.batches));
    cr_assert_eq(the_crowd.refused, 1);
    crowd_turn(0);
    cr_assert_eq(the_crowd.refused, 1, "not at once");
    the_crowd.now_ns += 60000000;
    crowd_turn(0);
    cr_assert_eq(the_crowd.refused, 2, "but later");
    crowd_finish(1);
    crowd_turn(0);
    cr_assert_eq(the_crowd.running, 2, "and when a line of its own ends");
    crowd_finish(0);
    the_crowd.now_ns += 60000000;
    crowd_turn(0);
    cr_assert(!fg_batches_blocked(the_crowd.batches));
    run(0, 9);
    fg_buf_deinit(&body);
    crowd_close();
}

Test(batch, a_line_with_more_choices_than_ever_fit_does_not_wait)
{
    fg_buf body = { 0 };
    crowd_open();
    the_crowd.room = the_crowd.at_once = 3;
    crowd_must_request(1, FG_API_COMPLETION, "{\"prompt\":\"x\"}", 1);
    add_line(&body, 0, "/v1/completions", ",\"n\":4");
    fg_buf_puts(&body, "]");
    must_open(0, &body);
    crowd_turn(0);
    fg_json *json = answer_of(0);
    cr_assert_eq(status_of(line_of(json, 0)), 400);
    fg_json_destroy(json);
    fg_buf_deinit(&body);
    crowd_finish(0);
    crowd_turn(0);
    crowd_close();
}

Test(batch, a_line_that_can_never_have_room_is_429)
{
    fg_buf body = { 0 };
    char error[128];
    crowd_open();
    the_crowd.room = 3;
    add_line(&body, 0, "/v1/completions", "");
    add_line(&body, 1, "/v1/completions", ",\"n\":4");
    add_line(&body, 2, "/v1/completions", ",\"n\":3");
    fg_buf_puts(&body, "]");
    must_open(0, &body);
    run(0, 9);
    fg_json *json = answer_of(0);
    cr_assert_eq(status_of(line_of(json, 0)), 200);
    cr_assert_eq(status_of(line_of(json, 1)), 429);
    cr_assert_str_eq(error_of(line_of(json, 1), error), "/overloaded");
    cr_assert_eq(status_of(line_of(json, 2)), 200);
    fg_json_destroy(json);
    fg_buf_deinit(&body);
    crowd_close();
}

Test(batch, a_queue_that_others_keep_full_is_given_up_in_the_end)
{
    fg_buf body = { 0 };
    crowd_open();
    crowd_must_request(1, FG_API_COMPLETION, "{\"prompt\":\"x\"}", 1);
    the_crowd.room = 1;
    add_lines(&body, 40);
    must_open(0, &body);
    crowd_turn(0);
    the_crowd.now_ns += 599000000000;
    crowd_turn(0);
    cr_assert(fg_batches_blocked(the_crowd.batches) && !the_crowd.exchanges[0].ended);
    the_crowd.now_ns += 2000000000;
    for (int turn = 0; turn < 10; turn++) {
        crowd_turn(0);
    }
    fg_json *json = answer_of(0);
    for (size_t i = 0; i < 40; i++) {
        cr_assert_eq(status_of(line_of(json, i)), 429);
    }
    fg_json_destroy(json);
    fg_buf_deinit(&body);
    crowd_close();
}

Test(batch, without_workers_every_line_says_so)
{
    fg_buf body = { 0 };
    char error[128];
    crowd_open();
    the_crowd.start_status = FG_PEER_LOST;
    add_lines(&body, 20);
    must_open(0, &body);
    run(0, 1);
    fg_json *json = answer_of(0);
    for (size_t i = 0; i < 20; i++) {
        cr_assert_eq(status_of(line_of(json, i)), 503);
        cr_assert_str_eq(error_of(line_of(json, i), error), "/no_worker");
    }
    fg_json_destroy(json);
    fg_buf_deinit(&body);
    crowd_close();
}

#define GOOD(id)                                                                                   \
    "{\"custom_id\":\"" id                                                                         \
    "\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"x\"}}"

static const struct bad_line {
    const char *name, *line;
    int status;
    const char *error;
} bad_lines[] = {
    { "a number", "1", 400, "/invalid_type" },
    { "null", "null", 400, "/invalid_type" },
    { "an array", "[]", 400, "/invalid_type" },
    { "nothing", "{}", 400, "custom_id/invalid_value" },
    { "an empty id", "{\"custom_id\":\"\"}", 400, "custom_id/invalid_value" },
    { "a number as id", "{\"custom_id\":1}", 400, "custom_id/invalid_value" },
    { "no method", "{\"custom_id\":\"x\"}", 405, "method/invalid_value" },
    { "GET", "{\"custom_id\":\"x\",\"method\":\"GET\"}", 405, "method/invalid_value" },
    { "no url", "{\"custom_id\":\"x\",\"method\":\"POST\"}", 404, "url/invalid_value" },
    { "another url", "{\"custom_id\":\"x\",\"method\":\"POST\",\"url\":\"/v1/rerank\",\"body\":{}}",
      404, "url/invalid_value" },
    { "no input",
      "{\"custom_id\":\"x\",\"method\":\"POST\",\"url\":\"/v1/embeddings\",\"body\":{}}", 400,
      "input/missing_required_parameter" },
    { "a batch in a batch",
      "{\"custom_id\":\"x\",\"method\":\"POST\",\"url\":\"/forge/v1/batch\",\"body\":[]}", 404,
      "url/invalid_value" },
    { "no body", "{\"custom_id\":\"x\",\"method\":\"POST\",\"url\":\"/v1/completions\"}", 400,
      "body/missing_required_parameter" },
    { "body null",
      "{\"custom_id\":\"x\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":null}", 400,
      "/invalid_type" },
    { "body text",
      "{\"custom_id\":\"x\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":\"{}\"}", 400,
      "/invalid_type" },
    { "no prompt",
      "{\"custom_id\":\"x\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{}}", 400,
      "prompt/missing_required_parameter" },
    { "a prompt for a chat",
      "{\"custom_id\":\"x\",\"method\":\"POST\",\"url\":\"/v1/chat/completions\",\"body\":{"
      "\"prompt\":\"x\"}}",
      400, "messages/missing_required_parameter" },
    { "another model",
      "{\"custom_id\":\"x\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":"
      "\"x\",\"model\":\"y\"}}",
      404, "model/model_not_found" },
    { "a stream",
      "{\"custom_id\":\"x\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":"
      "\"x\",\"stream\":true}}",
      400, "stream/invalid_value" },
};

Test(batch, a_bad_line_has_its_own_error_and_hurts_no_other)
{
    for (size_t i = 0; i < sizeof bad_lines / sizeof bad_lines[0]; i++) {
        const struct bad_line *it = &bad_lines[i];
        fg_buf body = { 0 };
        char error[128];
        crowd_open();
        fg_buf_printf(&body, "[%s,%s,%s]", GOOD("a"), it->line, GOOD("b"));
        must_open(0, &body);
        run(0, 9);
        fg_json *json = answer_of(0);
        cr_assert_eq(status_of(line_of(json, 0)), 200, "%s", it->name);
        cr_assert_eq(status_of(line_of(json, 1)), it->status, "%s: %s", it->name, crowd_body(0));
        cr_assert_str_eq(error_of(line_of(json, 1), error), it->error, "%s: %s", it->name, error);
        cr_assert_eq(status_of(line_of(json, 2)), 200, "%s", it->name);
        fg_json_destroy(json);
        fg_buf_deinit(&body);
        crowd_close();
    }
}

static const struct refused {
    const char *name, *body;
    const char *param, *code;
} refused[] = {
    { "no JSON", "[", "", "invalid_json" },
    { "JSON lines", GOOD("a") "\n" GOOD("b"), "", "invalid_json" },
    { "a number", "1", "requests", "invalid_type" },
    { "an object without requests", "{}", "requests", "invalid_type" },
    { "requests null", "{\"requests\":null}", "requests", "invalid_type" },
    { "requests object", "{\"requests\":{}}", "requests", "invalid_type" },
    { "empty", "[]", "requests", "invalid_value" },
    { "requests empty", "{\"requests\":[]}", "requests", "invalid_value" },
    { "a double id", "[" GOOD("a") "," GOOD("b") "," GOOD("a") "]", "custom_id", "invalid_value" },
    { "a double id in a bad line", "[" GOOD("a") ",{\"custom_id\":\"a\"}]", "custom_id",
      "invalid_value" },
    { "a double id of other spelling", "[" GOOD("a") "," GOOD("\\u0061") "]", "custom_id",
      "invalid_value" },
};

Test(batch, a_body_that_is_no_batch_is_refused_whole)
{
    crowd_open();
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        fg_api_error error = { 0 };
        cr_assert_eq(open_batch(0, refused[i].body, strlen(refused[i].body), &error), FG_BAD_INPUT,
                     "%s", refused[i].name);
        cr_assert_eq(error.http_status, 400);
        cr_assert_str_eq(error.param, refused[i].param, "%s: %s", refused[i].name, error.text);
        cr_assert_str_eq(error.code, refused[i].code, "%s: %s", refused[i].name, error.text);
        cr_assert_eq(fg_batches_count(the_crowd.batches), 0);
    }
    crowd_close();
}

Test(batch, too_many_lines_and_too_many_batches_are_refused)
{
    fg_api_error error = { 0 };
    fg_buf body = { 0 };
    crowd_open();
    for (uint32_t i = 0; i <= FG_LIMIT_BATCH_ITEMS; i++) {
        fg_buf_puts(&body, i == 0 ? "[1" : ",1");
    }
    fg_buf_puts(&body, "]");
    cr_assert_eq(open_batch(0, body.data, body.size, &error), FG_BAD_INPUT);
    cr_assert(strstr(error.text, "1 to 10000 lines, not 10001") != NULL, "%s", error.text);
    fg_buf_clear(&body);
    add_lines(&body, 1);
    for (int i = 0; i < (int)FG_LIMIT_BATCHES; i++) {
        must_open(i, &body);
    }
    cr_assert_eq(open_batch(5, body.data, body.size, &error), FG_AGAIN);
    cr_assert_eq(error.http_status, 429);
    fg_buf_deinit(&body);
    crowd_close();
}

Test(batch, ten_thousand_bad_lines_are_answered)
{
    fg_buf body = { 0 };
    crowd_open();
    for (uint32_t i = 0; i < FG_LIMIT_BATCH_ITEMS; i++) {
        fg_buf_puts(&body, i == 0 ? "[1" : ",1");
    }
    fg_buf_puts(&body, "]");
    must_open(0, &body);
    run(0, 1);
    fg_json *json = answer_of(0);
    cr_assert_eq(fg_json_size(fg_json_get(fg_json_root(json), "data")), FG_LIMIT_BATCH_ITEMS);
    cr_assert_eq(status_of(line_of(json, FG_LIMIT_BATCH_ITEMS - 1)), 400);
    fg_json_destroy(json);
    fg_buf_deinit(&body);
    crowd_close();
}

Test(batch, an_id_may_have_512_bytes_and_any_characters)
{
    fg_buf body = { 0 };
    crowd_open();
    fg_buf_puts(&body, "[{\"custom_id\":\"\\\"\\n\\u20ac\xE2\x82\xAC\"},{\"custom_id\":\"");
    for (int i = 0; i < 512; i++) {
        fg_buf_putc(&body, 'i');
    }
    fg_buf_puts(&body, "\"},{\"custom_id\":\"");
    for (int i = 0; i < 513; i++) {
        fg_buf_putc(&body, 'i');
    }
    fg_buf_puts(&body, "\"}]");
    must_open(0, &body);
    run(0, 1);
    fg_json *json = answer_of(0);
    cr_assert_str_eq(fg_json_string(fg_json_get(line_of(json, 0), "custom_id"), NULL),
                     "\"\n\xE2\x82\xAC\xE2\x82\xAC");
    cr_assert_eq(strlen(fg_json_string(fg_json_get(line_of(json, 1), "custom_id"), NULL)), 512);
    cr_assert(fg_json_is(fg_json_get(line_of(json, 2), "custom_id"), FG_JSON_NULL));
    fg_json_destroy(json);
    fg_buf_deinit(&body);
    crowd_close();
}

Test(batch, answers_beyond_the_limit_are_413_each)
{
    fg_buf body = { 0 };
    char error[128];
    uint32_t good = 0, cut = 0;
    the_crowd.answer_max = 4000; /* about ten answers */
    crowd_open();
    add_lines(&body, 40);
    must_open(0, &body);
    run(0, 9);
    fg_json *json = answer_of(0);
    for (size_t i = 0; i < 40; i++) {
        int status = status_of(line_of(json, i));
        good += status == 200;
        cut += status == 413;
        if (status == 413) {
            cr_assert_str_eq(error_of(line_of(json, i), error), "/batch_answer_too_large");
        }
    }
    cr_assert(good >= 5 && good <= 20 && good + cut == 40, "%u and %u", good, cut);
    fg_json_destroy(json);
    fg_buf_deinit(&body);
    crowd_close();
    the_crowd.answer_max = 0;
}

Test(batch, a_client_that_leaves_cancels_all_of_its_lines_and_no_other)
{
    fg_buf body = { 0 };
    crowd_open();
    add_lines(&body, 50);
    must_open(0, &body);
    must_open(1, &body);
    crowd_turn(0);
    crowd_turn(2);
    uint32_t running = the_crowd.running;
    cr_assert(fg_batches_gone(the_crowd.batches, &the_crowd.exchanges[0]));
    cr_assert(the_crowd.running < running && the_crowd.running > 0);
    cr_assert(!fg_batches_gone(the_crowd.batches, &the_crowd.exchanges[0]));
    cr_assert(!fg_batches_gone(the_crowd.batches, &the_crowd.exchanges[2]));
    run(1, 9);
    cr_assert_eq(the_crowd.exchanges[0].status, 0);
    fg_buf page = { 0 };
    fg_metrics_render(the_crowd.metrics, &page);
    cr_assert(strstr(page.data, "{route=\"/forge/v1/batch\",code=\"499\"} 1\n") != NULL);
    cr_assert(strstr(page.data, "{route=\"/forge/v1/batch\",code=\"200\"} 1\n") != NULL);
    cr_assert(strstr(page.data, "{route=\"/v1/completions\",code=\"200\"} 0\n") != NULL,
              "a line is no HTTP answer");
    cr_assert(strstr(page.data, "forge:num_requests_running 0\n") != NULL);
    fg_buf_deinit(&page);
    fg_buf_deinit(&body);
    crowd_close();
}

Test(batch, a_failed_line_is_an_error_of_its_own)
{
    fg_buf body = { 0 };
    char error[128];
    crowd_open();
    add_lines(&body, 3);
    must_open(0, &body);
    crowd_turn(0);
    crowd_end(1, FG_FINISH_ERROR, FG_BAD_INPUT, "prefix cache: nothing is cached");
    run(0, 9);
    fg_json *json = answer_of(0);
    cr_assert_eq(status_of(line_of(json, 0)), 200);
    cr_assert_eq(status_of(line_of(json, 1)), 409);
    cr_assert_str_eq(error_of(line_of(json, 1), error), "prefix_cache/prefix_cache_miss");
    cr_assert_eq(status_of(line_of(json, 2)), 200);
    fg_json_destroy(json);
    fg_buf_deinit(&body);
    crowd_close();
}

static bool open_under_faults(void *ctx)
{
    const fg_buf *body = ctx;
    fg_api_error error;
    fg_error err;
    fg_batches *kept = the_crowd.batches;
    fg_batches_options options = {
        .streams = the_crowd.streams,
        .clock = fg_clock_manual(&the_crowd.now_ns),
    };
    if (fg_batches_create(&options, &the_crowd.batches, &err) != FG_OK) {
        the_crowd.batches = kept;
        return false;
    }
    fg_batches_destroy(the_crowd.batches);
    the_crowd.batches = kept;
    bool ok = open_batch(0, body->data, body->size, &error) == FG_OK;
    if (ok) {
        cr_assert(fg_batches_gone(the_crowd.batches, &the_crowd.exchanges[0]));
    }
    cr_assert_eq(fg_batches_count(the_crowd.batches), 0);
    return ok;
}

Test(batch, every_failed_allocation_is_refused)
{
    fg_buf body = { 0 };
    crowd_open();
    add_lines(&body, 3);
    cr_assert(fg_fault_each(open_under_faults, &body) > 0);
    fg_buf_deinit(&body);
    crowd_close();
}

Test(batch, whatever_allocation_fails_later_each_line_is_answered_or_all_say_503)
{
    fg_buf body = { 0 };
    add_lines(&body, 3);
    uint32_t bad = 0;
    for (uint64_t nth = 1; nth < 400; nth++) {
        crowd_open();
        must_open(0, &body);
        fg_fault_arm(nth);
        for (int turn = 0; turn < 20 && !the_crowd.exchanges[0].ended; turn++) {
            crowd_turn(9);
        }
        bool fired = fg_fault_fired();
        fg_fault_arm(0);
        cr_assert(the_crowd.exchanges[0].ended, "fault %llu", (unsigned long long)nth);
        bad += the_crowd.exchanges[0].status != 200 ||
               strstr(crowd_body(0), "\"status_code\":200") == NULL ||
               strstr(crowd_body(0), "\"status_code\":4") != NULL ||
               strstr(crowd_body(0), "\"status_code\":5") != NULL;
        crowd_close();
        if (!fired) {
            break;
        }
    }
    cr_assert(bad > 0);
    fg_buf_deinit(&body);
}

/* Lines of all kinds, little room, ends and failures in any order, clients that leave: every batch that
 * still has a client is answered completely, and nothing stays behind. */
Test(batch, any_order_of_events_answers_each_line_once)
{
    fg_rng rng = { .state = test_seed(__func__) };
    for (int round = 0; round < 60; round++) {
        fg_buf body = { 0 };
        bool gone[3] = { false };
        crowd_open();
        the_crowd.room = 1 + (uint32_t)fg_rng_below(&rng, 20);
        for (int i = 0; i < 40; i++) {
            static const char *const mores[] = { "", ",\"n\":3", ",\"n\":0", ",\"stop\":\"a\"" };
            add_line(&body, i, fg_rng_below(&rng, 9) == 0 ? "/x" : "/v1/completions",
                     mores[fg_rng_below(&rng, 4)]);
        }
        fg_buf_puts(&body, "]");
        for (int e = 0; e < 3; e++) {
            must_open(e, &body);
        }
        for (int step = 0; step < 150; step++) {
            uint32_t e = (uint32_t)fg_rng_below(&rng, 3);
            uint32_t job =
                the_crowd.job_count == 0 ? 0 : (uint32_t)fg_rng_below(&rng, the_crowd.job_count);
            the_crowd.now_ns += 20000000;
            switch (fg_rng_below(&rng, 12)) {
            case 0:
                if (!gone[e] && !the_crowd.exchanges[e].ended && fg_rng_below(&rng, 10) == 0) {
                    gone[e] = true;
                    cr_assert(fg_batches_gone(the_crowd.batches, &the_crowd.exchanges[e]));
                }
                break;
            case 1:
                if (the_crowd.job_count > 0 && the_crowd.jobs[job].running) {
                    crowd_end(job, FG_FINISH_ERROR, FG_TIMEOUT, "late");
                }
                break;
            default:
                crowd_turn((uint32_t)fg_rng_below(&rng, 4));
                break;
            }
        }
        for (int e = 0; e < 3; e++) {
            if (!gone[e]) {
                run(e, 9);
                fg_json *json = answer_of(e);
                cr_assert_eq(fg_json_size(fg_json_get(fg_json_root(json), "data")), 40);
                fg_json_destroy(json);
            }
        }
        cr_assert_eq(fg_batches_count(the_crowd.batches), 0);
        fg_buf_deinit(&body);
        crowd_close();
    }
}
