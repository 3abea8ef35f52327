/* Prompts that are told of: echoed in front of answers, with what the model says of them; and several in one request. */
#include <stdio.h>
#include <string.h>

#include "common/base/fault.h"
#include "tests/support/test.h"
#include "tests/unit/router/crowd.h"

#define COMP(more) "{\"prompt\":\"hip\"" more "}"

static bool has(int exchange, const char *text)
{
    return strstr(crowd_body(exchange), text) != NULL;
}

static void finish_all(void)
{
    crowd_turn(UINT32_MAX);
}

/* What the events of an exchange say for one choice, joined. */
static const char *streamed(int exchange, int index)
{
    static char text[512];
    char key[48];
    size_t length = 0;
    snprintf(key, sizeof key, "{\"index\":%d,\"text\":\"", index);
    for (const char *at = crowd_body(exchange); (at = strstr(at, key)) != NULL;) {
        at += strlen(key);
        size_t count = strcspn(at, "\"");
        length += (size_t)snprintf(text + length, sizeof text - length, "%.*s", (int)count, at);
    }
    return text;
}

Test(echo, a_prompt_stands_in_front_of_every_choice)
{
    crowd_open();
    crowd_must_request(0, FG_API_COMPLETION, COMP(",\"echo\":true,\"n\":2,\"stop\":\"hip\""), 1);
    cr_assert_eq(the_crowd.jobs[0].job.params.want_scores, 0u);
    for (uint32_t job = 0; job < 2; job++) {
        crowd_token(job, 'p' + job);
        crowd_end(job, FG_FINISH_LENGTH, FG_OK, NULL);
    }
    fg_streams_flush(the_crowd.streams);
    cr_assert(
        has(0, "{\"index\":0,\"text\":\"hipp\",\"logprobs\":null,\"finish_reason\":\"length\"}"),
        "%s", crowd_body(0));
    cr_assert(has(0, "{\"index\":1,\"text\":\"hipq\""), "no stop string is looked for in it");
    cr_assert(has(0, "\"prompt_tokens\":3,\"completion_tokens\":2,"));
    crowd_close();
}

/* The first choice asks for all of them. */
Test(echo, what_is_said_of_a_prompt_is_asked_for_once)
{
    crowd_open();
    crowd_must_request(0, FG_API_COMPLETION,
                       COMP(",\"echo\":true,\"logprobs\":1,\"n\":3,\"prompt_logprobs\":2,"
                            "\"return_token_ids\":true"),
                       1);
    cr_assert(the_crowd.jobs[0].job.params.want_scores == 3 &&
              the_crowd.jobs[1].job.params.want_scores == 0 &&
              the_crowd.jobs[2].job.params.want_scores == 0);
    crowd_scores(0, 1, 3);
    finish_all();
    const char *at = crowd_body(0);
    for (int i = 0; i < 3; i++) {
        char key[48];
        snprintf(key, sizeof key, "{\"index\":%d,\"text\":\"hip", i);
        at = strstr(at, key);
        cr_assert_not_null(at, "%s in %s", key, crowd_body(0));
        cr_assert_not_null(strstr(at,
                                  "\"text_offset\":[0,1,2,3,4,5,6,7,8],\"token_logprobs\":[null,-1,"
                                  "-2,-0.5,-0.5,-0.5,-0.5,-0.5,-0.5],\"tokens\":[\"h\",\"i\","
                                  "\"p\","));
        cr_assert_not_null(strstr(at, "\"top_logprobs\":[null,{\"x\":-1},{\"x\":-1},{\"x\":-1}"));
        cr_assert_not_null(strstr(at,
                                  "\"prompt_logprobs\":[null,{\"105\":{\"logprob\":-1,\"rank\":1,"
                                  "\"decoded_token\":\"i\"},\"120\":"));
        cr_assert_not_null(strstr(at, "\"prompt_token_ids\":[104,105,112]"));
    }
    crowd_close();
}

/* A token is chosen, since workers work for one; nobody sees it. */
Test(echo, no_tokens_are_none)
{
    static const fg_finish ends[] = { FG_FINISH_LENGTH, FG_FINISH_STOP };
    for (int stream = 0; stream <= 1; stream++) {
        for (int i = 0; i < 2; i++) {
            char body[160];
            crowd_open();
            snprintf(
                body, sizeof body,
                COMP(",\"echo\":true,\"logprobs\":0,\"max_tokens\":0,\"return_token_ids\":true,"
                     "\"stream\":%s"),
                stream ? "true" : "false");
            crowd_must_request(0, FG_API_COMPLETION, body, 1);
            cr_assert_eq(the_crowd.jobs[0].job.params.max_tokens, 1u);
            crowd_scores(0, 1, 3);
            crowd_token(0, 'z');
            fg_streams_flush(the_crowd.streams);
            crowd_end(0, ends[i], FG_OK, NULL);
            fg_streams_flush(the_crowd.streams);
            cr_assert(!has(0, "z"), "%s", crowd_body(0));
            cr_assert(has(0, "\"text\":\"hip\"") && has(0, "\"token_logprobs\":[null,-1,-2]") &&
                          has(0, "\"finish_reason\":\"length\"") && has(0, "\"token_ids\":[]"),
                      "%s", crowd_body(0));
            cr_assert(stream || has(0, "\"completion_tokens\":0,\"total_tokens\":3"));
            crowd_close();
        }
    }
}

/* Prompts of a stream come first, however the choices hurry: the one that asks may be the last to begin. */
Test(echo, a_stream_waits_until_its_prompt_is_known)
{
    crowd_open();
    crowd_must_request(0, FG_API_COMPLETION,
                       COMP(",\"echo\":true,\"logprobs\":0,\"n\":2,\"stream\":true"), 1);
    crowd_token(1, 'b');
    fg_streams_flush(the_crowd.streams);
    cr_assert_str_eq(crowd_body(0), "");
    crowd_scores(0, 1, 2);
    crowd_token(1, 'c');
    fg_streams_flush(the_crowd.streams);
    cr_assert_str_eq(crowd_body(0), "");
    crowd_scores(0, 2, 3);
    crowd_token(0, 'a');
    fg_streams_flush(the_crowd.streams);
    cr_assert_str_eq(streamed(0, 0), "hipa");
    cr_assert_str_eq(streamed(0, 1), "hipbc");
    for (uint32_t job = 0; job < 2; job++) {
        crowd_end(job, FG_FINISH_LENGTH, FG_OK, NULL);
    }
    fg_streams_flush(the_crowd.streams);
    cr_assert(the_crowd.exchanges[0].ended && has(0, "[DONE]"));
    crowd_close();
}

/* Many chunks: the text of some thousand bytes each, the logprobs of some tokens each. */
Test(echo, a_long_prompt_comes_in_pieces_and_all_of_it)
{
    enum { LENGTH = 9000 };
    static char body[LENGTH + 100];
    crowd_open();
    int at = snprintf(body, sizeof body, "{\"prompt\":\"");
    for (int i = 0; i < LENGTH; i++) {
        body[at++] = (char)('a' + i % 7);
    }
    snprintf(body + at, sizeof body - (size_t)at,
             "\",\"echo\":true,\"logprobs\":0,\"stream\":true,\"max_tokens\":1}");
    crowd_must_request(0, FG_API_COMPLETION, body, 1);
    uint32_t count = the_crowd.jobs[0].job.token_count;
    crowd_scores(0, 1, count);
    crowd_token(0, 'z');
    crowd_end(0, FG_FINISH_LENGTH, FG_OK, NULL);
    fg_streams_flush(the_crowd.streams);
    uint32_t bytes = 0, tokens = 0;
    for (const char *piece = crowd_body(0); (piece = strstr(piece, "\"text\":\"")) != NULL;) {
        piece += strlen("\"text\":\"");
        bytes += (uint32_t)strcspn(piece, "\"");
    }
    for (const char *piece = crowd_body(0);
         (piece = strstr(piece, "\"token_logprobs\":[")) != NULL;) {
        const char *end = strchr(piece, ']');
        for (tokens++; piece < end; piece++) {
            tokens += *piece == ',';
        }
    }
    cr_assert(bytes == LENGTH + 1 && tokens == count + 1, "%u bytes, %u tokens of %u", bytes,
              tokens, count);
    cr_assert(the_crowd.exchanges[0].write_count > count / 40);
    crowd_close();
}

Test(echo, prompts_of_a_list_are_answered_one_by_one)
{
    crowd_open();
    the_crowd.report.cached_tokens = 2;
    crowd_must_request(
        0, FG_API_COMPLETION,
        "{\"prompt\":[\"hip\",[97,98]],\"n\":2,\"seed\":5,\"echo\":true,\"logprobs\":0}", 1);
    cr_assert_eq(the_crowd.job_count, 4u);
    for (uint32_t job = 0; job < 4; job++) {
        const fg_dispatch_job *it = &the_crowd.jobs[job].job;
        cr_assert(it->token_count == (job < 2 ? 3u : 2u) && it->params.seed == 5 + job % 2 &&
                      it->params.want_scores == (job % 2 == 0 ? 1u : 0u),
                  "job %u", job);
    }
    const fg_wire_params *a = &the_crowd.jobs[0].job.params, *b = &the_crowd.jobs[2].job.params;
    cr_assert(a->family != b->family && a->family == the_crowd.jobs[1].job.params.family);
    crowd_scores(2, 1, 2);
    crowd_scores(0, 1, 3);
    for (uint32_t job = 0; job < 4; job++) {
        crowd_token(job, 'p' + job);
        crowd_end(job, FG_FINISH_LENGTH, FG_OK, NULL);
    }
    fg_streams_flush(the_crowd.streams);
    cr_assert(
        has(0, "{\"index\":0,\"text\":\"hipp\"") && has(0, "{\"index\":1,\"text\":\"hipq\"") &&
            has(0, "{\"index\":2,\"text\":\"abr\"") && has(0, "{\"index\":3,\"text\":\"abs\""),
        "%s", crowd_body(0));
    cr_assert(has(0, "\"text_offset\":[0,1,2],\"token_logprobs\":[null,-1,-0.5]"));
    /* Of each prompt two tokens were cached, in each of its choices. */
    cr_assert(has(0, "\"prompt_tokens\":5,\"completion_tokens\":4,\"total_tokens\":9,"
                     "\"prompt_tokens_details\":{\"cached_tokens\":4}"));
    crowd_close();
}

static bool ask_under_faults(void *ctx)
{
    fg_api_error error;
    uint32_t job = the_crowd.job_count;
    the_crowd.exchanges[0] = (fg_http_exchange){ 0 };
    fg_status status = crowd_request(
        0, FG_API_COMPLETION,
        "{\"prompt\":[\"hip\",[97,98]],\"echo\":true,\"logprobs\":1,\"prompt_logprobs\":1}", 1,
        &error);
    if (status == FG_OK) {
        crowd_scores(job, 1, 3);
        crowd_scores(job + 1, 1, 2);
        finish_all();
    }
    bool ok = status == FG_OK && the_crowd.exchanges[0].status == 200;
    fg_buf_deinit(&the_crowd.exchanges[0].headers);
    fg_buf_deinit(&the_crowd.exchanges[0].body);
    return ok;
}

Test(echo, every_failed_allocation_ends_the_request_alone)
{
    crowd_open();
    cr_assert(fg_fault_each(ask_under_faults, NULL) > 0);
    crowd_close();
}
