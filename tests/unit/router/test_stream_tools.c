/* Calls of tools on their way from tokens to whoever waits. */
#include <stdio.h>
#include <string.h>

#include "common/base/fault.h"
#include "common/base/limits.h"
#include "tests/support/test.h"
#include "tests/unit/router/stream_talk.h"

static const char *const controls[] = { "<|tool_call|>", "<|/tool_call|>" };

#define HERMES                                                                                     \
    "{{ tools }}{% if false %}<tool_call>arguments{% endif %}{% for m in messages %}{{ m.content " \
    "}}{% endfor %}"
#define GRANITE                                                                                    \
    "{{ tools }}{% if false %}<|tool_call|>{% endif %}{% for m in messages %}{{ m.content }}{% "   \
    "endfor %}"
#define ASK(more)                                                                                  \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"type\":\"function\","     \
    "\"function\":"                                                                                \
    "{\"name\":\"f\"}},{\"type\":\"function\",\"function\":{\"name\":\"g\"}}]" more "}"
#define T    "<tool_call>"
#define E    "</tool_call>"
#define F(a) "{\"name\":\"f\",\"arguments\":" a "}"

static const struct {
    const char *name;
    const char *chat_template;
    const char *more;
    const char *text;
    fg_finish finish; /* NONE: the answer ends by itself */
    const char *want; /* ids left out */
} cases[] = {
    { "no call", HERMES, "", "Hello.", FG_FINISH_STOP, "Hello. stop" },
    { "a call", HERMES, "", T "\n" F("{\"a\": 1}") "\n" E, FG_FINISH_STOP,
      "[ f {\\\"a\\\": 1} tool_calls" },
    { "text and two calls", HERMES, "", "So: " T F("{}") E "\n" T "{\"name\":\"g\"}" E "!",
      FG_FINISH_STOP, "So: ![ f {}[ g {} tool_calls" },
    { "no JSON", HERMES, "", T "x" E, FG_FINISH_STOP, T "x" E " stop" },
    { "only the first", HERMES, ",\"parallel_tool_calls\":false", "a" T F("{}") E T F("{}") E "b",
      FG_FINISH_NONE, "a[ f {} tool_calls" },
    { "cut by its length", HERMES, "", T "{\"name\":\"f\",\"arguments\":{\"a\":\"\xC3\xBC",
      FG_FINISH_LENGTH, "[ f {\\\"a\\\":\\\"\xC3\xBC length" },
    { "cut before the name", HERMES, "", T "{\"na", FG_FINISH_LENGTH, T "{\\\"na length" },
    { "a call, then cut", HERMES, "", T F("{}") E T "{\"name\":\"g\",\"arguments\":{\"",
      FG_FINISH_LENGTH, "[ f {}[ g {\\\" length" },
    { "ended inside", HERMES, "", T "{\"name\":\"f\",\"arguments\":{\"a", FG_FINISH_STOP,
      "[ f {\\\"a stop" },
    { "a stop string inside", HERMES, ",\"stop\":\"END\"",
      T "{\"name\":\"f\",\"arguments\":{\"a\":\"xEND", FG_FINISH_NONE,
      "[ f {\\\"a\\\":\\\"x stop" },
    { "a stop string in what was held", HERMES, ",\"stop\":\"END\"", "a<tool_END", FG_FINISH_NONE,
      "a<tool_ stop" },
    { "a stop string behind", HERMES, ",\"stop\":\"" E "\"", T F("{}") E, FG_FINISH_NONE,
      "[ f {} tool_calls" },
    { "held by a stop string", HERMES, ",\"stop\":\"}}z\"", T F("{\"a\":{}}"), FG_FINISH_STOP,
      "[ f {\\\"a\\\":{}} tool_calls" },
    { "tools not to be used", HERMES, ",\"tool_choice\":\"none\"", T F("{}") E, FG_FINISH_STOP,
      T "{\\\"name\\\":\\\"f\\\",\\\"arguments\\\":{}}" E " stop" },
    { "a control token", GRANITE, "", "a\1[" F("{}") "]\2", FG_FINISH_STOP, "a[ f {} tool_calls" },
    { "a control token behind half a character", GRANITE, "", "\xC3\1[" F("{}") "]", FG_FINISH_STOP,
      "\xEF\xBF\xBD[ f {} tool_calls" },
    { "a control token behind half a stop string", GRANITE, ",\"stop\":\"EN[\"", "E\1[" F("{}") "]",
      FG_FINISH_STOP, "E[ f {} tool_calls" },
    { "a control token before no call", GRANITE, "", "a\1b", FG_FINISH_STOP, "ab stop" },
};

static void run(size_t index, bool stream, bool flush_each, fg_buf *told)
{
    stream_talk w;
    stream_talk_open(&w, cases[index].chat_template, controls);
    char body[512];
    snprintf(body, sizeof body, ASK("%s%s"), cases[index].more, stream ? ",\"stream\":true" : "");
    stream_talk_must_ask(&w, 0, body);
    stream_talk_answer(&w, cases[index].text, cases[index].finish, flush_each);
    cr_assert(w.exchanges[0].ended, "%s", cases[index].name);
    stream_talk_tell(stream_talk_body(&w, 0), told);
    stream_talk_close(&w);
}

Test(stream_tools, whole_answers_and_streams_say_the_same)
{
    fg_buf told = { 0 };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int way = 0; way < 3; way++) {
            run(i, way > 0, way > 1, &told);
            stream_talk_forget_ids(&told);
            cr_assert_str_eq(told.data, cases[i].want, "%s, %d: %s", cases[i].name, way, told.data);
        }
    }
    fg_buf_deinit(&told);
}

Test(stream_tools, text_before_a_call_is_told_before_it)
{
    stream_talk w;
    stream_talk_open(&w, HERMES, controls);
    stream_talk_must_ask(&w, 0, ASK(",\"stream\":true"));
    stream_talk_send(0, "So: " T F("{}") E);
    fg_streams_flush(w.streams);
    const char *call = strstr(stream_talk_body(&w, 0), "tool_calls");
    const char *text = strstr(stream_talk_body(&w, 0), "\"So: \"");
    cr_assert(text != NULL && text < call, "%s", stream_talk_body(&w, 0));
    fake_end(0, FG_FINISH_STOP, FG_OK, NULL);
    fg_streams_flush(w.streams);
    stream_talk_close(&w);
}

Test(stream_tools, each_choice_has_its_own_calls_and_ids)
{
    stream_talk w;
    fg_buf told = { 0 };
    stream_talk_open(&w, HERMES, controls);
    stream_talk_must_ask(&w, 0, ASK(",\"n\":2"));
    stream_talk_send(0, T F("{}") E T F("{}") E);
    stream_talk_send(1, "no");
    fake_end(1, FG_FINISH_STOP, FG_OK, NULL);
    fake_end(0, FG_FINISH_STOP, FG_OK, NULL);
    fg_streams_flush(w.streams);
    stream_talk_tell(stream_talk_body(&w, 0), &told);
    cr_assert(strncmp(told.data, "no[", 3) == 0 && strstr(told.data, " tool_callsstop") != NULL,
              "%s", told.data);
    const char *first = strstr(stream_talk_body(&w, 0), "call_");
    const char *second = strstr(first + 1, "call_");
    cr_assert(memcmp(first, second, 29) != 0, "two calls of one choice");
    char one[32] = { 0 };
    memcpy(one, first, 29);
    stream_talk_must_ask(&w, 1, ASK(",\"n\":2"));
    stream_talk_send(2, "no");
    stream_talk_send(3, T F("{}") E);
    fake_end(2, FG_FINISH_STOP, FG_OK, NULL);
    fake_end(3, FG_FINISH_STOP, FG_OK, NULL);
    fg_streams_flush(w.streams);
    cr_assert(strstr(stream_talk_body(&w, 1), "call_") != NULL &&
                  strstr(stream_talk_body(&w, 1), one) == NULL,
              "another choice's first call");
    fg_buf_deinit(&told);
    stream_talk_close(&w);
}

/* Arguments that are longer than a write, at every offset of a character to its end. */
Test(stream_tools, long_arguments_are_cut_between_characters)
{
    for (int offset = 0; offset < 3; offset++) {
        stream_talk w;
        fg_buf told = { 0 };
        fg_buf want = { 0 };
        stream_talk_open(&w, HERMES, controls);
        stream_talk_must_ask(&w, 0, ASK(",\"stream\":true"));
        stream_talk_send(0, T "{\"name\":\"f\",\"arguments\":{\"a\":\"");
        fg_buf_puts(&want, "[ f {\\\"a\\\":\\\"");
        for (int i = 0; i < offset; i++) {
            stream_talk_send(0, "x");
            fg_buf_putc(&want, 'x');
        }
        for (int i = 0; i < 3000; i++) {
            stream_talk_send(0, "\xE4\xB8\xAD");
            fg_buf_puts(&want, "\xE4\xB8\xAD");
        }
        stream_talk_send(0, "\"}}" E);
        fg_buf_puts(&want, "\\\"} tool_calls");
        fake_end(0, FG_FINISH_STOP, FG_OK, NULL);
        fg_streams_flush(w.streams);
        cr_assert_gt(w.exchanges[0].write_count, 3);
        cr_assert_null(strstr(stream_talk_body(&w, 0), "\xEF\xBF\xBD"));
        stream_talk_tell(stream_talk_body(&w, 0), &told);
        stream_talk_forget_ids(&told);
        cr_assert_str_eq(told.data, want.data);
        fg_buf_deinit(&want);
        fg_buf_deinit(&told);
        stream_talk_close(&w);
    }
}

/* A reader that is slow for a while misses nothing, wherever it begins to be slow. */
Test(stream_tools, a_slow_reader_gets_all_of_it)
{
    static const char text[] = "So. " T F("{\"a\":1}") E T F("{\"b\":2}") E;
    for (size_t slow_at = 0; slow_at < sizeof text - 1; slow_at++) {
        stream_talk w;
        fg_buf told = { 0 };
        stream_talk_open(&w, HERMES, controls);
        stream_talk_must_ask(&w, 0, ASK(",\"stream\":true,\"return_token_ids\":true"));
        for (size_t i = 0; i < sizeof text - 1; i++) {
            char one[2] = { text[i], '\0' };
            w.exchanges[0].write_status = i >= slow_at && i < slow_at + 20 ? FG_AGAIN : FG_OK;
            stream_talk_send(0, one);
            fg_streams_flush(w.streams);
            fg_streams_retry(w.streams);
        }
        w.exchanges[0].write_status = FG_OK;
        fake_end(0, FG_FINISH_STOP, FG_OK, NULL);
        fg_streams_flush(w.streams);
        fg_streams_retry(w.streams);
        stream_talk_tell(stream_talk_body(&w, 0), &told);
        stream_talk_forget_ids(&told);
        cr_assert_str_eq(told.data, "So. [ f {\\\"a\\\":1}[ f {\\\"b\\\":2} tool_calls", "%zu: %s",
                         slow_at, told.data);
        fg_buf_deinit(&told);
        stream_talk_close(&w);
    }
}

Test(stream_tools, a_reader_that_never_reads_is_cut_off)
{
    stream_talk w;
    stream_talk_open(&w, HERMES, controls);
    stream_talk_must_ask(&w, 0, ASK(",\"stream\":true"));
    w.exchanges[0].write_status = FG_AGAIN;
    stream_talk_send(0, T "{\"name\":\"f\",\"arguments\":{\"a\":\"");
    const char *more = "sixteen letters.";
    size_t given = 0;
    while (fake_dispatch_state.jobs[0].running && given < 2 * FG_LIMIT_STREAM_BYTES) {
        stream_talk_send(0, more);
        fg_streams_flush(w.streams);
        given += strlen(more);
    }
    cr_assert_leq(given, FG_LIMIT_STREAM_BYTES);
    cr_assert_eq(fake_dispatch_state.jobs[0].cancelled, FG_FINISH_CANCELLED);
    w.exchanges[0].write_status = FG_OK;
    fg_streams_retry(w.streams);
    cr_assert(w.exchanges[0].ended && strstr(stream_talk_body(&w, 0), "reads too slowly") != NULL);
    stream_talk_close(&w);
}

static bool try_open(void *ctx)
{
    stream_talk *w = ctx;
    fg_api_error error;
    if (stream_talk_ask(w, 0, ASK(",\"stream\":true"), &error) != FG_OK) {
        return false;
    }
    fg_stream_gone(w->streams, &w->exchanges[0]);
    return true;
}

Test(stream_tools, survives_every_failed_allocation)
{
    stream_talk w;
    stream_talk_open(&w, HERMES, controls);
    cr_assert(fg_fault_each(try_open, &w) >= 8);
    stream_talk_close(&w);
}
