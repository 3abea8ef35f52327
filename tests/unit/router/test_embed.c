/* Embeddings: how they are asked for, in lists that are longer than what workers take at a time, and how they are written. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/fault.h"
#include "common/base/hash.h"
#include "common/base/json.h"
#include "common/base/limits.h"
#include "tests/support/test.h"
#include "tests/unit/router/crowd.h"

enum { NUMBERS = CROWD_EMBEDDING };

static bool has(int exchange, const char *text)
{
    return strstr(crowd_body(exchange), text) != NULL;
}

/* A body with so many texts, each of ids that are its own. */
static char *list_of(uint32_t count, const char *more)
{
    fg_buf body = { 0 };
    fg_buf_puts(&body, "{\"input\":[");
    for (uint32_t i = 0; i < count; i++) {
        fg_buf_printf(&body, "%s[%u,%u,7]", i == 0 ? "" : ",", i % 250, i / 250);
    }
    fg_buf_printf(&body, "]%s}", more);
    return body.data;
}

/* What crowd_embedding gave, normed. */
static void expect(const uint32_t *tokens, uint32_t count, uint32_t dimensions, float *out)
{
    double squares = 0;
    crowd_embedding(tokens, count, out);
    for (uint32_t i = 0; i < dimensions; i++) {
        squares += (double)out[i] * out[i];
    }
    for (uint32_t i = 0; i < dimensions; i++) {
        out[i] = (float)(out[i] / sqrt(squares));
    }
}

/* The answer's data are those of list_of, in their order. */
static void check_list(int exchange, uint32_t count, uint32_t dimensions)
{
    fg_json *json;
    fg_error err = { 0 };
    const char *body = crowd_body(exchange);
    cr_assert_eq(fg_json_parse(body, strlen(body), &json, &err), FG_OK, "%s", err.text);
    const fg_json_node *data = fg_json_get(fg_json_root(json), "data");
    cr_assert_eq(fg_json_size(data), count);
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t tokens[] = { i % 250, i / 250, 7 };
        float want[NUMBERS];
        int64_t index = -1;
        const fg_json_node *one = fg_json_at(data, i);
        const fg_json_node *numbers = fg_json_get(one, "embedding");
        expect(tokens, 3, dimensions, want);
        cr_assert(fg_json_integer(fg_json_get(one, "index"), &index) && index == i);
        cr_assert_eq(fg_json_size(numbers), dimensions);
        for (uint32_t k = 0; k < dimensions; k++) {
            double number;
            cr_assert(fg_json_number(fg_json_at(numbers, k), &number) && (float)number == want[k],
                      "text %u, number %u", i, k);
        }
    }
    fg_json_destroy(json);
}

Test(embed, one_text_is_asked_for_its_state_alone)
{
    crowd_open();
    the_crowd.report.cached_tokens = 2;
    crowd_must_request(0, FG_API_EMBEDDING,
                       "{\"input\":\"hip\",\"cache_salt\":\"s\",\"priority\":1,\"model\":\"tiny\"}",
                       1);
    const fg_wire_params *params = &the_crowd.jobs[0].job.params;
    cr_assert(params->want_embedding && params->max_tokens == 1 && params->temperature == 0 &&
              params->salt_low != 0 && params->priority != 0 && params->family == 0);
    crowd_finish(0);
    fg_streams_flush(the_crowd.streams);
    cr_assert_eq(the_crowd.exchanges[0].status, 200);
    cr_assert(has(0, "{\"object\":\"list\",\"id\":\"id\",\"created\":5,\"model\":\"tiny\",\"data\":"
                     "[{\"object\":\"embedding\",\"index\":0,\"embedding\":["),
              "%s", crowd_body(0));
    cr_assert(has(0, "]}],\"usage\":{\"prompt_tokens\":3,\"total_tokens\":3,"
                     "\"prompt_tokens_details\":{\"cached_tokens\":2}}}"));
    crowd_close();
}

/* Whatever room there is, in whatever order they end. */
Test(embed, a_long_list_goes_in_parts_and_is_answered_in_order)
{
    static const uint32_t rooms[] = { CROWD_JOBS_MAX, 3, 1 };
    static const uint32_t counts[] = { 1, 2, 64, 65, 300, FG_LIMIT_EMBEDDINGS };
    for (size_t i = 0; i < sizeof rooms / sizeof rooms[0]; i++) {
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
            uint32_t most = 0, turns = 0;
            fg_rng rng = { .state = i * 7 + c };
            char *body = list_of(counts[c], ",\"dimensions\":5");
            crowd_open();
            the_crowd.room = rooms[i];
            crowd_must_request(0, FG_API_EMBEDDING, body, 1);
            while (the_crowd.exchanges[0].status == 0) {
                most = the_crowd.running > most ? the_crowd.running : most;
                for (uint32_t job = 0; job < the_crowd.job_count; job++) {
                    if (the_crowd.jobs[job].running && fg_rng_below(&rng, 3) == 0) {
                        crowd_finish(job);
                    }
                }
                crowd_turn(turns++ % 4 == 0); /* the oldest one too, now and then */
            }
            uint32_t allowed = rooms[i] < 64 ? rooms[i] : 64;
            cr_assert(most == (counts[c] < allowed ? counts[c] : allowed), "%u at once", most);
            cr_assert_eq(the_crowd.job_count, counts[c]);
            check_list(0, counts[c], 5);
            crowd_close();
            free(body);
        }
    }
}

/* Others have half of what room there is, and who comes later in the list has less time. */
Test(embed, a_list_leaves_room_and_keeps_its_deadline)
{
    enum { MS = 1000000 };
    static const struct {
        uint32_t at_once, most;
    } rooms[] = { { 0, 1 }, { 1, 1 }, { 2, 1 }, { 11, 5 }, { 128, 64 }, { 1000, 64 } };
    char *body = list_of(200, ",\"deadline_ms\":5000");
    for (size_t i = 0; i < sizeof rooms / sizeof rooms[0]; i++) {
        crowd_open();
        the_crowd.at_once = rooms[i].at_once;
        crowd_must_request(0, FG_API_EMBEDDING, body, 1);
        cr_assert_eq(the_crowd.running, rooms[i].most, "room for %u", rooms[i].at_once);
        cr_assert_eq(the_crowd.jobs[0].job.deadline_ns, 5000ull * MS);
        const uint64_t passes_ms[] = { 2000, 2999, 1, 1 }, left_ns[] = { 3000ull * MS, MS, 1, 1 };
        for (size_t k = 0; k < 4; k++) {
            the_crowd.now_ns += passes_ms[k] * MS;
            uint32_t next = the_crowd.job_count;
            crowd_turn(1);
            cr_assert(the_crowd.job_count == next + 1 &&
                          the_crowd.jobs[next].job.deadline_ns == left_ns[k],
                      "%zu: %" PRIu64 " ns are left", k, the_crowd.jobs[next].job.deadline_ns);
        }
        fg_stream_gone(the_crowd.streams, &the_crowd.exchanges[0]);
        crowd_close();
    }
    free(body);
}

/* Whoever comes next waits for few tokens. */
Test(embed, long_texts_run_few_at_a_time)
{
    fg_buf body = { 0 };
    fg_buf_puts(&body, "{\"input\":[");
    for (int text = 0; text < 20; text++) {
        fg_buf_puts(&body, text == 0 ? "[7" : ",[7");
        for (int i = 1; i < 500; i++) {
            fg_buf_puts(&body, ",1");
        }
        fg_buf_putc(&body, ']');
    }
    fg_buf_puts(&body, "]}");
    crowd_open();
    crowd_must_request(0, FG_API_EMBEDDING, body.data, 1);
    while (the_crowd.exchanges[0].status == 0) {
        cr_assert(the_crowd.running == 5 || the_crowd.job_count == 20, "%u", the_crowd.running);
        crowd_turn(1);
    }
    cr_assert_eq(the_crowd.exchanges[0].status, 200);
    fg_buf_deinit(&body);
    crowd_close();
}

Test(embed, without_room_at_all_it_is_refused_or_ends)
{
    fg_api_error error;
    crowd_open();
    the_crowd.room = 0;
    char *body = list_of(70, "");
    cr_assert_eq(crowd_request(0, FG_API_EMBEDDING, body, 1, &error), FG_AGAIN);
    cr_assert_eq(error.http_status, 429);
    the_crowd.room = 4;
    crowd_must_request(0, FG_API_EMBEDDING, body, 1);
    the_crowd.room = 0; /* somebody else has it */
    for (uint32_t job = 0; job < 4; job++) {
        cr_assert_eq(the_crowd.exchanges[0].status, 0);
        crowd_finish(job);
        fg_streams_flush(the_crowd.streams);
    }
    cr_assert_eq(the_crowd.exchanges[0].status, 429);
    cr_assert(has(0, "overloaded"));
    free(body);
    crowd_close();
}

/* Whole answers in the making have a bound together: by numbers, by what is told of prompts, by logprobs as they come. */
Test(embed, answers_in_the_making_leave_room_for_each_other)
{
    static const struct {
        fg_api_kind kind;
        const char *body;
        size_t room; /* for one of them, not for two */
        bool grows;  /* it is not known before */
    } rows[] = {
        { FG_API_EMBEDDING, "{\"input\":[\"hip\",\"hop\"]}", 250, false },
        { FG_API_EMBEDDING, "{\"input\":\"hip\",\"encoding_format\":\"base64\"}", 50, false },
        { FG_API_COMPLETION, "{\"prompt\":\"hip\",\"prompt_logprobs\":5}", 250, false },
        { FG_API_COMPLETION, "{\"prompt\":\"hip\",\"logprobs\":2}", sizeof(fg_logprobs), true },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        fg_api_error error;
        the_crowd.gathered_max = rows[i].room;
        crowd_open();
        crowd_must_request(0, rows[i].kind, rows[i].body, 1);
        if (rows[i].grows) {
            crowd_must_request(1, rows[i].kind, rows[i].body, 1);
            crowd_token(0, 'a');
            crowd_token(1, 'a');
        }
        cr_assert_eq(crowd_request(2, rows[i].kind, rows[i].body, 1, &error), FG_AGAIN, "row %zu",
                     i);
        cr_assert(error.http_status == 429 && error.wait_s == 1 &&
                  strstr(error.text, "being gathered") != NULL);
        crowd_must_request(3, FG_API_COMPLETION, "{\"prompt\":\"hip\",\"stream\":true}", 1);
        fg_stream_gone(the_crowd.streams, &the_crowd.exchanges[0]);
        fg_stream_gone(the_crowd.streams, &the_crowd.exchanges[1]);
        crowd_must_request(4, rows[i].kind, rows[i].body, 1);
        crowd_close();
        the_crowd.gathered_max = 1; /* alone each has room */
        crowd_open();
        crowd_must_request(0, rows[i].kind, rows[i].body, 1);
        crowd_close();
    }
    the_crowd.gathered_max = 0;
}

Test(embed, one_that_fails_takes_the_others_with_it)
{
    crowd_open();
    char *body = list_of(70, "");
    crowd_must_request(0, FG_API_EMBEDDING, body, 1);
    crowd_finish(0);
    crowd_end(5, FG_FINISH_ERROR, FG_PEER_LOST, "no worker is left");
    fg_streams_flush(the_crowd.streams);
    cr_assert(the_crowd.exchanges[0].status == 503 && the_crowd.running == 0 &&
              the_crowd.job_count == 64);
    /* A worker whose model is another one. */
    crowd_must_request(1, FG_API_EMBEDDING, "{\"input\":\"hip\"}", 1);
    static const float few[NUMBERS] = { 1 };
    const fg_dispatch_sink *sink = &the_crowd.jobs[64].job.sink;
    sink->on_embedding(sink->ctx, few, NUMBERS - 1);
    fg_streams_flush(the_crowd.streams);
    cr_assert(the_crowd.exchanges[1].status == 500 && the_crowd.running == 0);
    /* Nobody waits any more. */
    crowd_must_request(2, FG_API_EMBEDDING, body, 1);
    crowd_finish(65);
    fg_stream_gone(the_crowd.streams, &the_crowd.exchanges[2]);
    cr_assert_eq(the_crowd.running, 0u);
    free(body);
    crowd_close();
}

static const struct refused {
    const char *name, *body;
    int http_status;
    const char *param, *code;
} refused[] = {
    { "no input", "{}", 400, "input", "missing_required_parameter" },
    { "a prompt instead of it", "{\"prompt\":\"x\"}", 400, "input", "missing_required_parameter" },
    { "input number", "{\"input\":1}", 400, "input", "invalid_type" },
    { "input empty", "{\"input\":[]}", 400, "input", "invalid_value" },
    { "an empty text", "{\"input\":[\"a\",\"\"]}", 400, "input", "invalid_value" },
    { "dimensions -1", "{\"input\":\"x\",\"dimensions\":-1}", 400, "dimensions", "invalid_value" },
    { "an input of no ids", "{\"input\":[[1],[]]}", 400, "input", "invalid_value" },
    { "input id beyond", "{\"input\":[1,270]}", 400, "input", "invalid_value" },
    { "embeddings of another model", "{\"input\":\"x\",\"model\":\"big\"}", 404, "model",
      "model_not_found" },
    { "encoding number", "{\"input\":\"x\",\"encoding_format\":1}", 400, "encoding_format",
      "invalid_type" },
    { "encoding int8", "{\"input\":\"x\",\"encoding_format\":\"int8\"}", 400, "encoding_format",
      "invalid_value" },
    { "dimensions 0", "{\"input\":\"x\",\"dimensions\":0}", 400, "dimensions", "invalid_value" },
    { "dimensions beyond", "{\"input\":\"x\",\"dimensions\":7}", 400, "dimensions",
      "invalid_value" },
    { "dimensions text", "{\"input\":\"x\",\"dimensions\":\"6\"}", 400, "dimensions",
      "invalid_type" },
    { "not normed", "{\"input\":\"x\",\"normalize\":false}", 400, "normalize",
      "unsupported_parameter" },
    { "embeddings of messages",
      "{\"input\":\"x\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}", 400, "messages",
      "unsupported_parameter" },
};

Test(embed, what_cannot_be_is_refused)
{
    crowd_open();
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        const struct refused *row = &refused[i];
        fg_api_error error;
        cr_assert_eq(crowd_request(0, FG_API_EMBEDDING, row->body, 1, &error), FG_BAD_INPUT, "%s",
                     row->name);
        cr_assert_eq(error.http_status, row->http_status, "%s", row->name);
        cr_assert_str_eq(error.param, row->param, "%s", row->name);
        cr_assert_str_eq(error.code, row->code, "%s", row->name);
    }
    /* Numbers: of an answer, and of texts. */
    char *many = list_of(FG_LIMIT_EMBEDDINGS + 1, "");
    fg_api_error error;
    cr_assert_eq(crowd_request(0, FG_API_EMBEDDING, many, 1, &error), FG_BAD_INPUT);
    cr_assert_not_null(strstr(error.text, "2049 texts"), "%s", error.text);
    free(many);
    fg_buf ids = { 0 };
    fg_buf_puts(&ids, "{\"input\":[[1],[1");
    for (int i = 0; i < 100000; i++) {
        fg_buf_puts(&ids, ",1");
    }
    fg_buf_puts(&ids, "]]}");
    cr_assert_eq(crowd_request(0, FG_API_EMBEDDING, ids.data, 1, &error), FG_BAD_INPUT);
    cr_assert_str_eq(error.code, "context_length_exceeded");
    cr_assert_not_null(strstr(error.text, "a text of 'input' has 100001"), "%s", error.text);
    fg_buf_deinit(&ids);
    crowd_close();
}

/* Only the last token's state is given, and only embeddings need to know. */
Test(embed, how_a_model_pools_is_respected)
{
    static const char *const words[] = { NULL, "mean", "first token", NULL, "score", "else" };
    crowd_open();
    for (uint32_t i = 0; i < 6; i++) {
        fg_api_error error;
        the_crowd.pooling = i < 5 ? i : 77;
        fg_status status = crowd_request(i / 2, FG_API_EMBEDDING, "{\"input\":\"x\"}", 1, &error);
        cr_assert_eq(status, words[i] == NULL ? FG_OK : FG_BAD_INPUT, "%u", i);
        if (words[i] != NULL) {
            cr_assert_str_eq(error.code, "unsupported_model");
            cr_assert_not_null(strstr(error.text, words[i]), "%s", error.text);
        }
    }
    crowd_must_request(3, FG_API_COMPLETION, "{\"prompt\":\"x\"}", 1);
    crowd_turn(UINT32_MAX);
    crowd_close();
}

static int letter_value(char letter)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = strchr(letters, letter);
    return letter == '=' || at == NULL ? -1 : (int)(at - letters);
}

/* Reads what base64 is in quotes; the number of bytes. */
static size_t decode(const char *text, unsigned char *bytes)
{
    size_t count = 0;
    uint32_t bits = 0, held = 0;
    for (const char *at = text + 1; letter_value(*at) >= 0; at++) {
        bits = bits << 6 | (uint32_t)letter_value(*at);
        held += 6;
        if (held >= 8) {
            held -= 8;
            bytes[count++] = (unsigned char)(bits >> held);
        }
    }
    return count;
}

Test(embed, numbers_and_base64_are_the_same_floats)
{
    enum { MOST = 3000 };
    static float states[MOST];
    static unsigned char bytes[MOST * 4 + 4];
    static const uint32_t counts[] = { 1, 2, 3, 4, 5, 767, 768, 769, 1536, 1537, MOST };
    fg_rng rng = { .state = 5 };
    for (uint32_t i = 0; i < MOST; i++) {
        states[i] = (float)((int32_t)fg_rng_below(&rng, 20001) - 10000) / 777.0f;
    }
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        fg_request request = { .kind = FG_API_EMBEDDING, .dimensions = counts[c] };
        fg_buf text, coded;
        fg_buf_init(&text, fg_api_embedding_bytes(&request));
        fg_buf_init(&coded, fg_api_embedding_bytes(&request));
        fg_api_put_embedding(&text, &request, states);
        request.as_base64 = true;
        fg_api_put_embedding(&coded, &request, states);
        cr_assert(!text.failed && !coded.failed && coded.size % 4 == 2); /* and two quotes */
        cr_assert_eq(decode(coded.data, bytes), counts[c] * 4u, "%u numbers", counts[c]);
        const char *at = text.data + 1;
        double squares = 0;
        for (uint32_t i = 0; i < counts[c]; i++) {
            char *end;
            float number = strtof(at, &end), other;
            memcpy(&other, bytes + i * 4, sizeof other);
            cr_assert(number == other, "number %u of %u", i, counts[c]);
            squares += (double)number * number;
            at = end + 1;
        }
        cr_assert(fabs(squares - 1) < 1e-6);
        fg_buf_deinit(&text);
        fg_buf_deinit(&coded);
    }
    /* Nothing to divide by. */
    static const float zeros[3];
    fg_request request = { .kind = FG_API_EMBEDDING, .dimensions = 3 };
    fg_buf text;
    fg_buf_init(&text, 0);
    fg_api_put_embedding(&text, &request, zeros);
    cr_assert_str_eq(text.data, "[0,0,0]");
    fg_buf_deinit(&text);
}

Test(embed, a_batch_has_lines_of_them)
{
    crowd_open();
    fg_api_error error;
    fg_buf body = { 0 };
    char *many = list_of(400, "");
    fg_buf_printf(&body,
                  "[{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/embeddings\",\"body\":"
                  "%s},{\"custom_id\":\"b\",\"method\":\"POST\",\"url\":\"/v1/completions\","
                  "\"body\":{\"prompt\":\"x\"}}]",
                  many);
    cr_assert_eq(fg_batch_open(the_crowd.batches, &the_crowd.exchanges[0], "/forge/v1/batch", "n",
                               body.data, body.size, &error),
                 FG_OK, "%s", error.text);
    for (int turn = 0; turn < 100 && the_crowd.exchanges[0].status == 0; turn++) {
        crowd_turn(UINT32_MAX);
    }
    cr_assert(the_crowd.exchanges[0].status == 200 && the_crowd.job_count == 401, "%u jobs",
              the_crowd.job_count);
    cr_assert(has(0, "{\"object\":\"embedding\",\"index\":399,") &&
              has(0, "\"custom_id\":\"b\",\"response\":{\"status_code\":200"));
    free(many);
    fg_buf_deinit(&body);
    crowd_close();
}

static bool ask_under_faults(void *ctx)
{
    const char *body = ctx;
    fg_api_error error;
    the_crowd.exchanges[0] = (fg_http_exchange){ 0 };
    fg_status status = crowd_request(0, FG_API_EMBEDDING, body, 1, &error);
    for (int turn = 0; turn < 4 && status == FG_OK; turn++) {
        if (the_crowd.exchanges[0].status == 0) {
            crowd_turn(UINT32_MAX);
        }
    }
    bool kept = !the_crowd.exchanges[0].body.failed; /* what is played here allocates too */
    bool ok = status == FG_OK && the_crowd.exchanges[0].status == 200 && kept;
    fg_buf_deinit(&the_crowd.exchanges[0].headers);
    fg_buf_deinit(&the_crowd.exchanges[0].body);
    return ok;
}

Test(embed, every_failed_allocation_ends_the_request_alone)
{
    char *body = list_of(66, ",\"encoding_format\":\"base64\"");
    crowd_open();
    cr_assert(fg_fault_each(ask_under_faults, body) > 0);
    crowd_close();
    free(body);
}
