/* What a model thinks, on its way from tokens to whoever waits. */
#include <stdio.h>
#include <string.h>

#include "common/base/fault.h"
#include "common/base/limits.h"
#include "tests/support/test.h"
#include "tests/unit/router/stream_talk.h"

static const char *const controls[] = { "<think>", "</think>" };

#define MESSAGES "{% for m in messages %}{{ m.content }}{% endfor %}"
#define KNOWS    "{% if false %}</think>{% endif %}"
#define THINKS   KNOWS MESSAGES
#define OPENS    MESSAGES "<|think:<think>\n"
#define CLOSES   MESSAGES "<think>\n\n</think>\n\n"
#define TOOLS    "{{ tools }}{% if false %}<tool_call>arguments{% endif %}" THINKS
#define PLAIN    MESSAGES
#define FUNCTION ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"
#define CALL     "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>"
#define T        "<think>"
#define E        "</think>"

static const struct {
    const char *name;
    const char *chat_template;
    const char *more;
    const char *text;
    fg_finish finish; /* NONE: the answer ends by itself */
    const char *want;
    int tokens; /* that reasoning took; -1: usage does not say */
} cases[] = {
    { "no thought", THINKS, "", "Hello.", FG_FINISH_STOP, "Hello. stop", 0 },
    { "a thought", THINKS, "", T "\nHm.\n" E "\n\nHello.", FG_FINISH_STOP, "(Hm.)Hello. stop", 20 },
    { "the prompt begins it", OPENS, "", "Hm." E "Hello.", FG_FINISH_STOP, "(Hm.)Hello. stop", 11 },
    { "the prompt ends it", CLOSES, "", "Hello.", FG_FINISH_STOP, "Hello. stop", 0 },
    { "nothing but the marks", THINKS, "", T "\n\n" E "\n\nHello.", FG_FINISH_STOP, "Hello. stop",
      17 },
    { "cut in the thought", THINKS, "", T "Hm, \xC3\xBC", FG_FINISH_LENGTH, "(Hm, \xC3\xBC) length",
      13 },
    { "cut in the end mark", OPENS, "", "Hm.\n</thi", FG_FINISH_LENGTH, "(Hm.\\n</thi) length", 9 },
    { "cut in a character", OPENS, "", "Hm\xC3", FG_FINISH_LENGTH, "(Hm\xEF\xBF\xBD) length", 3 },
    { "cut behind it", THINKS, "", T "Hm." E, FG_FINISH_LENGTH, "(Hm.) length", 18 },
    { "the end mark alone", THINKS, "", "Hm." E "Hello.", FG_FINISH_STOP, "Hm." E "Hello. stop",
      0 },
    { "marks in the answer", THINKS, "", T "a" E "Use " T "b" E ".", FG_FINISH_STOP,
      "(a)Use " T "b" E ". stop", 16 },
    { "a model that does not think", PLAIN, "", T "a" E "b", FG_FINISH_STOP, T "a" E "b stop", -1 },
    { "which is asked for it", PLAIN, ",\"reasoning_format\":\"deepseek\"", T "a" E "b",
      FG_FINISH_STOP, "(a)b stop", 16 },
    { "not to be split", OPENS, ",\"reasoning_format\":\"none\"", "a" E "b", FG_FINISH_STOP,
      "a" E "b stop", -1 },
    { "as the server says", THINKS, ",\"reasoning_format\":\"auto\"", T "a" E "b", FG_FINISH_STOP,
      "(a)b stop", 16 },
    { "not to be shown", THINKS, ",\"include_reasoning\":false", T "a" E "b", FG_FINISH_STOP,
      "b stop", 16 },
    { "to be shown", THINKS, ",\"include_reasoning\":true", T "a" E "b", FG_FINISH_STOP,
      "(a)b stop", 16 },
    { "not to be shown, and cut", OPENS, ",\"include_reasoning\":false", "a", FG_FINISH_LENGTH,
      " length", 1 },
    { "a stop string in the thought", THINKS, ",\"stop\":\"END\"", T "aEND", FG_FINISH_NONE,
      "(a) stop", 11 },
    { "a stop string over the mark", THINKS, ",\"stop\":\"a</\"", T "xa</", FG_FINISH_NONE,
      "(x) stop", 11 },
    { "a stop string that is the mark", THINKS, ",\"stop\":\"" E "\"", T "a" E, FG_FINISH_NONE,
      "(a) stop", 16 },
    { "a stop string behind", THINKS, ",\"stop\":\"END\"", T "a" E "bEND", FG_FINISH_NONE,
      "(a)b stop", 16 },
    { "held by a stop string", THINKS, ",\"stop\":\">b\"", T "a" E "c", FG_FINISH_STOP, "(a)c stop",
      17 },
    { "a stop string that is shown", THINKS, ",\"stop\":\"E.\",\"include_stop_str_in_output\":true",
      T "a" E "bE.", FG_FINISH_NONE, "(a)bE. stop", 16 },
    { "shown, over the mark", THINKS, ",\"stop\":\"k>b\",\"include_stop_str_in_output\":true",
      T "a" E "b", FG_FINISH_NONE, "(a)b stop", 17 },
    { "a stop token", THINKS, ",\"stop_token_ids\":[7,33]", T "a" E "b!", FG_FINISH_NONE,
      "(a)b stop", 16 },
    { "a stop token in the thought", OPENS, ",\"stop_token_ids\":[33]", "a b!", FG_FINISH_NONE,
      "(a b) stop", 4 },
    { "a stop token behind half a mark", OPENS, ",\"stop_token_ids\":[33]", "a </thi!",
      FG_FINISH_NONE, "(a </thi) stop", 8 },
    { "a stop token behind half a stop string", PLAIN, ",\"stop\":\"bc\",\"stop_token_ids\":[33]",
      "ab!", FG_FINISH_NONE, "ab stop", -1 },
    { "a stop token behind half a character", PLAIN, ",\"stop_token_ids\":[33]", "a\xC3!",
      FG_FINISH_NONE, "a\xEF\xBF\xBD stop", -1 },
    { "a stop token that is shown", PLAIN,
      ",\"stop_token_ids\":[33],\"include_stop_str_in_output\":true", "ab!", FG_FINISH_NONE,
      "ab! stop", -1 },
    { "a stop token too early", PLAIN, ",\"stop_token_ids\":[33],\"min_tokens\":2", "!!!",
      FG_FINISH_NONE, "!! stop", -1 },
    { "no stop token", PLAIN, ",\"stop_token_ids\":[]", "ab!", FG_FINISH_STOP, "ab! stop", -1 },
    { "a stop token behind a call", TOOLS, FUNCTION ",\"stop_token_ids\":[33]", CALL "!",
      FG_FINISH_NONE, "[ f {} tool_calls", 0 },
    { "held to a format", OPENS, ",\"regex\":\"<think>a</think>b\"", T "a" E "b", FG_FINISH_STOP,
      T "a" E "b stop", -1 },
    { "a call behind", TOOLS, FUNCTION, T "a" E "\n\n" CALL, FG_FINISH_STOP, "(a)[ f {} tool_calls",
      16 },
    { "a call in the thought", TOOLS, FUNCTION, T CALL E "b", FG_FINISH_STOP,
      "(<tool_call>{\\\"name\\\":\\\"f\\\",\\\"arguments\\\":{}}</tool_call>)b stop", 65 },
    { "a call without a thought", TOOLS, FUNCTION, CALL, FG_FINISH_STOP, "[ f {} tool_calls", 0 },
    { "a thought, text and a call", TOOLS, FUNCTION, T "a" E "So: " CALL, FG_FINISH_STOP,
      "(a)So: [ f {} tool_calls", 16 },
    { "a call that has to be made", TOOLS, FUNCTION ",\"tool_choice\":\"required\"", CALL,
      FG_FINISH_STOP, "[ f {} tool_calls", -1 },
    { "control tokens", THINKS, "", "\1\na\n\2\n\nb", FG_FINISH_STOP, "(a)b stop", 5 },
    { "control tokens behind half a character", THINKS, "",
      "\1\xC3\2"
      "b",
      FG_FINISH_STOP, "(\xEF\xBF\xBD)b stop", 3 },
    { "control tokens behind half a stop string", THINKS, ",\"stop\":\"ENDE\"",
      "\1"
      "END\2"
      "E",
      FG_FINISH_STOP, "(END)E stop", 5 },
    { "control tokens later", THINKS, "",
      "a\1"
      "b\2"
      "c",
      FG_FINISH_STOP, "abc stop", 0 },
    { "control tokens, not to be split", THINKS, ",\"reasoning_format\":\"none\"",
      "\1"
      "a\2"
      "b",
      FG_FINISH_STOP, "ab stop", -1 },
    { "control tokens and a call", TOOLS, FUNCTION,
      "\1"
      "a\2" CALL,
      FG_FINISH_STOP, "(a)[ f {} tool_calls", 3 },
};

#define ASK "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]%s%s}"

static void check_usage(const char *body, const char *name, int tokens)
{
    char want[64];
    snprintf(want, sizeof want, "\"completion_tokens_details\":{\"reasoning_tokens\":%d}}", tokens);
    cr_assert_eq(strstr(body, "completion_tokens_details") == NULL, tokens < 0, "%s: %s", name,
                 body);
    cr_assert(tokens < 0 || strstr(body, want) != NULL, "%s: %s", name, body);
}

static void run(size_t index, bool stream, bool flush_each, fg_buf *told)
{
    stream_talk w;
    char body[512];
    stream_talk_open(&w, cases[index].chat_template, controls);
    snprintf(body, sizeof body, ASK, cases[index].more,
             stream ? ",\"stream\":true,\"stream_options\":{\"include_usage\":true}" : "");
    stream_talk_must_ask(&w, 0, body);
    stream_talk_answer(&w, cases[index].text, cases[index].finish, flush_each);
    cr_assert(w.exchanges[0].ended, "%s", cases[index].name);
    check_usage(stream_talk_body(&w, 0), cases[index].name, cases[index].tokens);
    stream_talk_tell(stream_talk_body(&w, 0), told);
    stream_talk_close(&w);
}

Test(stream_think, whole_answers_and_streams_say_the_same)
{
    fg_buf told = { 0 };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int way = 0; way < 3; way++) {
            run(i, way > 0, way > 1, &told);
            if (told.data[strcspn(told.data, "[")] == '[') {
                stream_talk_forget_ids(&told);
            }
            cr_assert_str_eq(told.data, cases[i].want, "%s, %d: %s", cases[i].name, way, told.data);
        }
    }
    fg_buf_deinit(&told);
}

/* What stands between the braces behind `"message":` or `"delta":`, by the bytes. */
static const struct {
    const char *chat_template, *text, *whole;
    const char *deltas[5];
} shapes[] = {
    { THINKS,
      T "a" E "b",
      "{\"role\":\"assistant\",\"content\":\"b\",\"reasoning_content\":\"a\",\"refusal\":null}",
      { "{\"role\":\"assistant\",\"content\":null}", "{\"reasoning_content\":\"a\"}",
        "{\"content\":\"b\"}", "{}" } },
    { OPENS,
      "a",
      "{\"role\":\"assistant\",\"content\":null,\"reasoning_content\":\"a\",\"refusal\":null}",
      { "{\"role\":\"assistant\",\"content\":null}", "{\"reasoning_content\":\"a\"}", "{}" } },
    { THINKS,
      "b",
      "{\"role\":\"assistant\",\"content\":\"b\",\"refusal\":null}",
      { "{\"role\":\"assistant\",\"content\":null}", "{\"content\":\"b\"}", "{}" } },
    { THINKS,
      T E,
      "{\"role\":\"assistant\",\"content\":null,\"refusal\":null}",
      { "{\"role\":\"assistant\",\"content\":null}", "{}" } },
    { PLAIN,
      "b",
      "{\"role\":\"assistant\",\"content\":\"b\",\"refusal\":null}",
      { "{\"role\":\"assistant\",\"content\":\"\"}", "{\"content\":\"b\"}", "{}" } },
};

Test(stream_think, messages_and_deltas_have_this_form)
{
    for (size_t i = 0; i < 2 * sizeof shapes / sizeof shapes[0]; i++) {
        stream_talk w;
        char body[256];
        bool stream = i % 2 == 1;
        stream_talk_open(&w, shapes[i / 2].chat_template, controls);
        snprintf(body, sizeof body, ASK, "", stream ? ",\"stream\":true" : "");
        stream_talk_must_ask(&w, 0, body);
        stream_talk_send(0, shapes[i / 2].text);
        fg_streams_flush(w.streams);
        fake_end(0, FG_FINISH_STOP, FG_OK, NULL);
        fg_streams_flush(w.streams);
        const char *at = stream_talk_body(&w, 0);
        const char *key = stream ? "\"delta\":" : "\"message\":";
        for (size_t j = 0; stream ? shapes[i / 2].deltas[j] != NULL : j == 0; j++) {
            const char *want = stream ? shapes[i / 2].deltas[j] : shapes[i / 2].whole;
            at = strstr(at, key);
            cr_assert_not_null(at, "%s", stream_talk_body(&w, 0));
            at += strlen(key);
            cr_assert(strncmp(at, want, strlen(want)) == 0, "%zu: %s, not %s", i, at, want);
        }
        cr_assert_null(strstr(at, key), "%zu: %s", i, at);
        stream_talk_close(&w);
    }
}

Test(stream_think, the_server_says_what_holds_for_requests_that_do_not)
{
    static const struct {
        const char *more;
        fg_reasoning_format server;
        bool split;
    } wishes[] = {
        { "", FG_REASONING_AUTO, true },
        { "", FG_REASONING_NONE, false },
        { ",\"reasoning_format\":null", FG_REASONING_NONE, false },
        { ",\"reasoning_format\":\"auto\"", FG_REASONING_NONE, true },
        { ",\"reasoning_format\":\"none\"", FG_REASONING_AUTO, false },
    };
    stream_talk w;
    stream_talk_open(&w, THINKS, controls);
    for (size_t i = 0; i < sizeof wishes / sizeof wishes[0]; i++) {
        char body[256];
        fg_request request;
        fg_api_error error;
        fg_api_call call = { .id = "id", .seed = 1 };
        fg_api_server server = { .tokenizer = w.model.tokenizer,
                                 .chat = w.model.chat,
                                 .model_name = "tiny",
                                 .context_max = 1000,
                                 .max_tokens_default = 10,
                                 .reasoning = wishes[i].server };
        fg_arena *arena = fg_arena_create(FG_API_ARENA_BYTES);
        snprintf(body, sizeof body, ASK, wishes[i].more, "");
        cr_assert_eq(
            fg_api_parse(&server, FG_API_CHAT, body, strlen(body), &call, arena, &request, &error),
            FG_OK);
        cr_assert_eq(request.thoughts.split, wishes[i].split, "%zu", i);
        fg_arena_destroy(arena);
    }
    stream_talk_close(&w);
}

Test(stream_think, refuses_formats_that_are_none)
{
    static const char *const bodies[] = {
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"reasoning_format\":\"hidden\"}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"reasoning_format\":\"\"}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"reasoning_format\":true}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"include_reasoning\":\"no\"}",
    };
    stream_talk w;
    stream_talk_open(&w, PLAIN, controls);
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        fg_api_error error = { 0 };
        cr_assert_eq(stream_talk_ask(&w, 0, bodies[i], &error), FG_BAD_INPUT, "%s", bodies[i]);
        cr_assert_eq(error.http_status, 400);
        cr_assert_str_eq(error.param, i == 3 ? "include_reasoning" : "reasoning_format");
    }
    stream_talk_close(&w);
}

Test(stream_think, each_choice_thinks_for_itself)
{
    stream_talk w;
    fg_buf told = { 0 };
    char body[256];
    stream_talk_open(&w, THINKS, controls);
    snprintf(body, sizeof body, ASK, ",\"n\":3", "");
    stream_talk_must_ask(&w, 0, body);
    stream_talk_send(0, T "a" E "b");
    stream_talk_send(2, T "c");
    stream_talk_send(1, "d");
    for (uint32_t i = 0; i < 3; i++) {
        fake_end(i, i == 2 ? FG_FINISH_LENGTH : FG_FINISH_STOP, FG_OK, NULL);
    }
    fg_streams_flush(w.streams);
    stream_talk_tell(stream_talk_body(&w, 0), &told);
    cr_assert_str_eq(told.data, "(ac)bd stopstoplength");
    check_usage(stream_talk_body(&w, 0), "choices", 16 + 8);
    fg_buf_deinit(&told);
    stream_talk_close(&w);
}

/* What a client may ask of tokens is told of all of them, as generated. */
Test(stream_think, tokens_of_the_thought_are_told_too)
{
    for (int stream = 0; stream < 2; stream++) {
        stream_talk w;
        char body[256];
        fg_buf ids = { 0 };
        static const char text[] = T "a" E "b";
        stream_talk_open(&w, THINKS, controls);
        snprintf(body, sizeof body, ASK, ",\"return_token_ids\":true,\"include_reasoning\":false",
                 stream ? ",\"stream\":true" : "");
        stream_talk_must_ask(&w, 0, body);
        stream_talk_send(0, text);
        fake_end(0, FG_FINISH_STOP, FG_OK, NULL);
        fg_streams_flush(w.streams);
        fg_buf_puts(&ids, "\"token_ids\":[");
        for (const char *c = text; *c != '\0'; c++) {
            fg_buf_printf(&ids, c == text ? "%d" : ",%d", *c);
        }
        fg_buf_puts(&ids, "]");
        cr_assert_not_null(strstr(stream_talk_body(&w, 0), ids.data), "%s",
                           stream_talk_body(&w, 0));
        fg_buf_deinit(&ids);
        stream_talk_close(&w);
    }
}

/* Thoughts that are longer than a write, at every offset of a character to its end. */
Test(stream_think, long_thoughts_are_cut_between_characters)
{
    for (int way = 0; way < 6; way++) {
        int offset = way % 3;
        bool closed = way < 3;
        stream_talk w;
        fg_buf told = { 0 };
        fg_buf want = { 0 };
        char body[256];
        stream_talk_open(&w, OPENS, controls);
        snprintf(body, sizeof body, ASK, "", ",\"stream\":true");
        stream_talk_must_ask(&w, 0, body);
        fg_buf_puts(&want, "(");
        for (int i = 0; i < 3000 + offset; i++) {
            const char *character = i < offset ? "x" : "\xE4\xB8\xAD";
            stream_talk_send(0, character);
            fg_buf_puts(&want, character);
        }
        stream_talk_send(0, closed ? E "b" : "");
        fg_buf_puts(&want, closed ? ")b stop" : ") stop");
        fake_end(0, FG_FINISH_STOP, FG_OK, NULL);
        fg_streams_flush(w.streams);
        cr_assert_geq(w.exchanges[0].write_count, 3);
        cr_assert_null(strstr(stream_talk_body(&w, 0), "\xEF\xBF\xBD"));
        const char *finish = strstr(stream_talk_body(&w, 0), "\"stop\"");
        cr_assert(finish != NULL && strstr(finish, "_content") == NULL, "told behind the finish");
        stream_talk_tell(stream_talk_body(&w, 0), &told);
        cr_assert_str_eq(told.data, want.data);
        fg_buf_deinit(&want);
        fg_buf_deinit(&told);
        stream_talk_close(&w);
    }
}

/* A reader that is slow for a while misses nothing, wherever it begins to be slow, and hears the thought first. */
Test(stream_think, a_slow_reader_gets_all_of_it)
{
    static const char text[] = T "Let me see." E "\nSo. " CALL;
    for (size_t slow_at = 0; slow_at < sizeof text - 1; slow_at++) {
        stream_talk w;
        fg_buf told = { 0 };
        char body[256];
        stream_talk_open(&w, TOOLS, controls);
        snprintf(body, sizeof body, ASK, FUNCTION, ",\"stream\":true,\"return_token_ids\":true");
        stream_talk_must_ask(&w, 0, body);
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
        cr_assert_str_eq(told.data, "(Let me see.)So. [ f {} tool_calls", "%zu: %s", slow_at,
                         told.data);
        const char *content = strstr(stream_talk_body(&w, 0), "\"content\":\"");
        const char *thought = strstr(stream_talk_body(&w, 0), "\"reasoning_content\":\"");
        cr_assert(thought < content && strstr(content, "\"reasoning_content\":\"") == NULL);
        fg_buf_deinit(&told);
        stream_talk_close(&w);
    }
}

Test(stream_think, a_reader_that_never_reads_is_cut_off)
{
    stream_talk w;
    char body[256];
    stream_talk_open(&w, OPENS, controls);
    snprintf(body, sizeof body, ASK, "", ",\"stream\":true");
    stream_talk_must_ask(&w, 0, body);
    w.exchanges[0].write_status = FG_AGAIN;
    const char *more = "sixteen letters.";
    size_t given = 0;
    while (fake_dispatch_state.jobs[0].running && given < 2 * FG_LIMIT_STREAM_BYTES) {
        stream_talk_send(0, more);
        fg_streams_flush(w.streams);
        given += strlen(more);
    }
    cr_assert_leq(given, FG_LIMIT_STREAM_BYTES + strlen(more));
    cr_assert_eq(fake_dispatch_state.jobs[0].cancelled, FG_FINISH_CANCELLED);
    w.exchanges[0].write_status = FG_OK;
    fg_streams_retry(w.streams);
    cr_assert(w.exchanges[0].ended && strstr(stream_talk_body(&w, 0), "reads too slowly") != NULL);
    stream_talk_close(&w);
}

/* All of it comes, or an error says that it does not. */
static bool try_answer(void *ctx)
{
    stream_talk *w = ctx;
    fg_api_error error;
    fg_buf told = { 0 };
    char body[256];
    snprintf(body, sizeof body, ASK, FUNCTION, "");
    if (stream_talk_ask(w, 0, body, &error) != FG_OK) {
        return false;
    }
    stream_talk_send(0, T "a b" E "c " CALL);
    fake_end(0, FG_FINISH_STOP, FG_OK, NULL);
    uint64_t left = fg_fault_hold();
    fg_streams_flush(w->streams);
    cr_assert(w->exchanges[0].ended);
    stream_talk_tell(stream_talk_body(w, 0), &told);
    bool good = strncmp(told.data, "(a b)c [", 8) == 0;
    cr_assert(good || w->exchanges[0].status == 503, "%s", told.data);
    fg_buf_deinit(&told);
    fake_exchange_deinit(&w->exchanges[0]);
    fake_exchange_init(&w->exchanges[0]);
    fake_dispatch_reset();
    fg_fault_resume(left);
    return good;
}

Test(stream_think, survives_every_failed_allocation)
{
    stream_talk w;
    stream_talk_open(&w, TOOLS, controls);
    cr_assert(fg_fault_each(try_answer, &w) >= 12);
    stream_talk_close(&w);
}
