/* Tools in requests, and calls in messages and answers. */
#include "router/api.h"

#include <stdio.h>
#include <string.h>

#include "common/base/fault.h"
#include "common/base/json.h"
#include "common/base/rng.h"
#include "common/grammar/automaton.h"
#include "common/model/tool_parse.h"
#include "tests/support/test.h"
#include "tests/unit/router/tiny_model.h"

enum { CONTEXT_MAX = 2000 };

/* Shows everything that a message may have. */
static const char with_tools[] =
    "{# arguments #}{% if tools %}{% for t in tools %}{{ t | tojson }}{% endfor %}|{% endif %}"
    "{% for m in messages %}<|user|>{{ m.role }}:{{ m.name }}:{{ m.tool_call_id }}:"
    "{{ m.reasoning_content }}:{{ m.content }}"
    "{% if m.tool_calls is defined %}{% for c in m.tool_calls %}<tool_call>{{ c | tojson "
    "}}</tool_call>{% endfor %}"
    "{% endif %}{% endfor %}";
static const char unknown_form[] = "{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}";
static const char sets_tools[] =
    "{% set tools = 1 %}{% for m in messages %}{{ m.content }}{% endfor %}";
static const char short_ids[] =
    "{{ tools }}[TOOL_CALLS]{% for m in messages %}{% for c in m.tool_calls %}{{ c.id }}"
    "{% if c.id | length != 9 %}{{ raise_exception('nine') }}{% endif %},{% endfor %}{{ "
    "m.tool_call_id }}"
    "{% endfor %}";

typedef struct world {
    tiny_model model;
    fg_api_server server;
    fg_arena *arena;
    fg_request request;
    fg_api_error error;
} world;

static void open_world(world *w, const char *chat_template)
{
    *w = (world){ 0 };
    tiny_model_open_as(&w->model, chat_template, NULL, 0);
    w->server = (fg_api_server){ .tokenizer = w->model.tokenizer,
                                 .chat = w->model.chat,
                                 .model_name = "tiny",
                                 .context_max = CONTEXT_MAX,
                                 .max_tokens_default = 40 };
    w->arena = fg_arena_create(FG_API_ARENA_BYTES);
    cr_assert_not_null(w->arena);
}

static void close_world(world *w)
{
    fg_arena_destroy(w->arena);
    tiny_model_close(&w->model);
}

static fg_status parse(world *w, const char *body)
{
    fg_api_call call = { .id = "id-1", .created_s = 5, .seed = 77 };
    fg_arena_reset(w->arena);
    return fg_api_parse(&w->server, FG_API_CHAT, body, strlen(body), &call, w->arena, &w->request,
                        &w->error);
}

/* The prompt's text, special tokens by their names. */
static const char *prompt_of(const world *w, fg_buf *out)
{
    fg_buf_clear(out);
    for (uint32_t i = 0; i < w->request.token_count; i++) {
        size_t length;
        const char *piece =
            fg_tokenizer_piece(w->model.tokenizer, w->request.tokens[i], true, &length);
        fg_buf_append(out, piece, length);
    }
    return out->data;
}

#define USER       "{\"role\":\"user\",\"content\":\"hi\"}"
#define CHAT(more) "{\"messages\":[" USER "]" more "}"
#define TALK(more) "{\"messages\":[" USER "," more "]}"
#define TOOL(f)    "{\"type\":\"function\",\"function\":" f "}"
#define F          TOOL("{\"name\":\"f\"}")
#define G                                                                                          \
    TOOL("{\"name\":\"get_it-2.0\",\"description\":\"d\",\"parameters\":{\"b\":1,\"a\":[]},"       \
         "\"strict\":true}")
#define TOOLS    ",\"tools\":[" F "," G "]"
#define CALLS(c) "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[" c "]}"
#define CALL(f)  "{\"id\":\"1\",\"type\":\"function\",\"function\":" f "}"
#define NAMED(n) "{\"type\":\"function\",\"function\":{\"name\":\"" n "\"}}"
#define RESULT   "{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"42\"}"
#define K16      "kkkkkkkkkkkkkkkk"

static const struct {
    const char *name;
    const char *body;
    const char *param;
    const char *code;
} refused[] = {
    { "no list", CHAT(",\"tools\":{}"), "tools", "invalid_type" },
    { "a text", CHAT(",\"tools\":[\"f\"]"), "tools[0]", "invalid_type" },
    { "no type", CHAT(",\"tools\":[{\"function\":{\"name\":\"f\"}}]"), "tools[0].type",
      "invalid_value" },
    { "another type", CHAT(",\"tools\":[" F ",{\"type\":\"custom\",\"custom\":{}}]"),
      "tools[1].type", "invalid_value" },
    { "no function", CHAT(",\"tools\":[{\"type\":\"function\"}]"), "tools[0].function",
      "invalid_type" },
    { "no name", CHAT(",\"tools\":[" TOOL("{}") "]"), "tools[0].function.name", "invalid_type" },
    { "a number as a name", CHAT(",\"tools\":[" TOOL("{\"name\":1}") "]"), "tools[0].function.name",
      "invalid_type" },
    { "an empty name", CHAT(",\"tools\":[" TOOL("{\"name\":\"\"}") "]"), "tools[0].function.name",
      "invalid_value" },
    { "a name with a space", CHAT(",\"tools\":[" TOOL("{\"name\":\"a b\"}") "]"),
      "tools[0].function.name", "invalid_value" },
    { "a name of 65", CHAT(",\"tools\":[" TOOL("{\"name\":\"" K16 K16 K16 K16 "k\"}") "]"),
      "tools[0].function.name", "invalid_value" },
    { "a name twice", CHAT(",\"tools\":[" F "," G "," F "]"), "tools[2].function.name",
      "invalid_value" },
    { "description", CHAT(",\"tools\":[" TOOL("{\"name\":\"f\",\"description\":1}") "]"),
      "tools[0].function.description", "invalid_type" },
    { "parameters", CHAT(",\"tools\":[" TOOL("{\"name\":\"f\",\"parameters\":[]}") "]"),
      "tools[0].function.parameters", "invalid_type" },
    { "strict", CHAT(",\"tools\":[" TOOL("{\"name\":\"f\",\"strict\":1}") "]"),
      "tools[0].function.strict", "invalid_type" },
    { "choice word", CHAT(TOOLS ",\"tool_choice\":\"any\""), "tool_choice", "invalid_value" },
    { "choice number", CHAT(TOOLS ",\"tool_choice\":1"), "tool_choice", "invalid_type" },
    { "choice type", CHAT(TOOLS ",\"tool_choice\":{\"type\":\"custom\"}"), "tool_choice",
      "invalid_value" },
    { "choice without a name", CHAT(TOOLS ",\"tool_choice\":{\"type\":\"function\"}"),
      "tool_choice.function.name", "invalid_type" },
    { "choice of no tool", CHAT(TOOLS ",\"tool_choice\":" NAMED("h")), "tool_choice.function.name",
      "invalid_value" },
    { "a name without tools", CHAT(",\"tool_choice\":" NAMED("f")), "tool_choice.function.name",
      "invalid_value" },
    { "required without tools", CHAT(",\"tool_choice\":\"required\""), "tool_choice",
      "invalid_value" },
    { "required beside a schema",
      CHAT(TOOLS ",\"tool_choice\":\"required\",\"response_format\":{\"type\":\"json_object\"}"),
      "tool_choice", "invalid_value" },
    { "required without an end", CHAT(TOOLS ",\"tool_choice\":\"required\",\"ignore_eos\":true"),
      "ignore_eos", "invalid_value" },
    { "strict, and cannot be held to",
      CHAT(",\"tool_choice\":\"required\",\"tools\":[" TOOL("{\"name\":\"f\"}") "," TOOL(
          "{\"name\":\"g\",\"strict\":true,\"parameters\":{\"type\":\"object\",\"not\":{}}}") "]"),
      "tools[1].function.parameters", "invalid_value" },
    { "parallel", CHAT(TOOLS ",\"parallel_tool_calls\":1"), "parallel_tool_calls", "invalid_type" },
    { "old functions", CHAT(",\"functions\":[{\"name\":\"f\"}]"), "functions",
      "unsupported_parameter" },
    { "tools among variables", CHAT(",\"chat_template_kwargs\":{\"tools\":[]}"),
      "chat_template_kwargs", "invalid_value" },

    { "an old role", TALK("{\"role\":\"function\",\"name\":\"f\",\"content\":\"x\"}"),
      "messages[1].role", "invalid_value" },
    { "an old call", TALK("{\"role\":\"assistant\",\"function_call\":{\"name\":\"f\"}}"),
      "messages[1].function_call", "unsupported_parameter" },
    { "a result of no call", TALK("{\"role\":\"tool\",\"content\":\"x\"}"),
      "messages[1].tool_call_id", "invalid_type" },
    { "a result without content", TALK("{\"role\":\"tool\",\"tool_call_id\":\"1\"}"),
      "messages[1].content", "invalid_type" },
    { "neither content nor calls",
      TALK("{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[]}"), "messages[1].content",
      "invalid_type" },
    { "calls of a user",
      TALK("{\"role\":\"user\",\"content\":\"x\",\"tool_calls\":[" CALL("{\"name\":\"f\"}") "]}"),
      "messages[1].tool_calls", "invalid_value" },
    { "calls that are no list", TALK("{\"role\":\"assistant\",\"tool_calls\":\"x\"}"),
      "messages[1].tool_calls", "invalid_type" },
    { "a call that is a text", TALK(CALLS("\"f\"")), "messages[1].tool_calls[0]", "invalid_type" },
    { "a call without an id", TALK(CALLS("{\"function\":{\"name\":\"f\"}}")),
      "messages[1].tool_calls[0].id", "invalid_type" },
    { "a call of another type", TALK(CALLS("{\"id\":\"1\",\"type\":\"custom\"}")),
      "messages[1].tool_calls[0].type", "invalid_value" },
    { "a call of nothing", TALK(CALLS(CALL("null"))), "messages[1].tool_calls[0].function",
      "invalid_type" },
    { "a call without a name", TALK(CALLS(CALL("{}"))), "messages[1].tool_calls[0].function.name",
      "invalid_type" },
    { "arguments that are no JSON", TALK(CALLS(CALL("{\"name\":\"f\",\"arguments\":\"{\"}"))),
      "messages[1].tool_calls[0].function.arguments", "invalid_value" },
    { "arguments that are no object",
      TALK(CALLS(CALL("{\"name\":\"f\"}") "," CALL("{\"name\":\"f\",\"arguments\":\"[1]\"}"))),
      "messages[1].tool_calls[1].function.arguments", "invalid_type" },
    { "a number of arguments", TALK(CALLS(CALL("{\"name\":\"f\",\"arguments\":1}"))),
      "messages[1].tool_calls[0].function.arguments", "invalid_type" },
};

Test(api_tools, what_is_wrong_is_refused_with_its_path)
{
    world w;
    open_world(&w, with_tools);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        cr_assert_eq(parse(&w, refused[i].body), FG_BAD_INPUT, "%s", refused[i].name);
        cr_assert_eq(w.error.http_status, 400);
        cr_assert_str_eq(w.error.param, refused[i].param, "%s: %s", refused[i].name, w.error.param);
        cr_assert_str_eq(w.error.code, refused[i].code, "%s: %s: %s", refused[i].name, w.error.code,
                         w.error.text);
    }
    close_world(&w);
}

Test(api_tools, at_most_so_many)
{
    world w;
    fg_buf body = { 0 };
    open_world(&w, unknown_form);
    for (unsigned count = 128; count <= 129; count++) {
        fg_buf_clear(&body);
        fg_buf_puts(&body, "{\"messages\":[" USER "],\"tool_choice\":\"none\",\"tools\":[");
        for (unsigned i = 0; i < count; i++) {
            fg_buf_printf(&body, "%s{\"type\":\"function\",\"function\":{\"name\":\"f%u\"}}",
                          i > 0 ? "," : "", i);
        }
        fg_buf_puts(&body, "]}");
        cr_assert_eq(parse(&w, body.data), count == 128 ? FG_OK : FG_BAD_INPUT, "%s", w.error.text);
    }
    cr_assert_str_eq(w.error.param, "tools");
    fg_buf_deinit(&body);
    close_world(&w);
}

#define HI "<|user|>user::::hi"
/* The template's view of F and G, and of a call. */
#define SHOWN                                                                                      \
    "{\"type\": \"function\", \"function\": {\"name\": \"f\"}}"                                    \
    "{\"type\": \"function\", \"function\": {\"name\": \"get_it-2.0\", \"description\": \"d\", "   \
    "\"parameters\": {\"b\": 1, \"a\": []}, \"strict\": true}}|"
#define MADE(a)                                                                                    \
    "<tool_call>{\"id\": \"1\", \"type\": \"function\", \"function\": {\"name\": \"f\", "          \
    "\"arguments\": " a "}}</tool_call>"

static const struct {
    const char *name;
    const char *body;
    const char *prompt;
} prompts[] = {
    { "no tools", CHAT(""), HI },
    { "none of them", CHAT(",\"tools\":[],\"tool_choice\":\"auto\",\"parallel_tool_calls\":false"),
      HI },
    { "null", CHAT(",\"tools\":null,\"tool_choice\":null,\"parallel_tool_calls\":null"), HI },
    { "two", CHAT(TOOLS), SHOWN HI },
    { "on its own will", CHAT(TOOLS ",\"tool_choice\":\"auto\""), SHOWN HI },
    { "not to be used", CHAT(TOOLS ",\"tool_choice\":\"none\""), HI },
    { "a call",
      TALK(CALLS(
          CALL("{\"name\":\"f\",\"arguments\":\"{\\\"b\\\":1.5,\\\"a\\\":\\\"\xC3\xBC\\\"}\"}"))),
      HI "<|user|>assistant::::" MADE("{\"b\": 1.5, \"a\": \"\xC3\xBC\"}") },
    { "arguments first", TALK(CALLS(CALL("{\"arguments\":\"{}\",\"name\":\"f\"}"))),
      HI "<|user|>assistant::::" MADE("{}") },
    { "no arguments", TALK(CALLS(CALL("{\"name\":\"f\"}"))),
      HI "<|user|>assistant::::" MADE("{}") },
    { "empty arguments", TALK(CALLS(CALL("{\"name\":\"f\",\"arguments\":\"\"}"))),
      HI "<|user|>assistant::::" MADE("{}") },
    { "arguments as an object", TALK(CALLS(CALL("{\"name\":\"f\",\"arguments\":{\"a\":null}}"))),
      HI "<|user|>assistant::::" MADE("{\"a\": null}") },
    { "two calls and a text",
      TALK("{\"role\":\"assistant\",\"content\":\"so\",\"tool_calls\":[" CALL(
          "{\"name\":\"f\"}") "," CALL("{\"name\":\"f\"}") "]}"),
      HI "<|user|>assistant::::so" MADE("{}") MADE("{}") },
    { "no content", TALK("{\"role\":\"assistant\",\"tool_calls\":[" CALL("{\"name\":\"f\"}") "]}"),
      HI "<|user|>assistant::::" MADE("{}") },
    { "no calls",
      TALK("{\"role\":\"assistant\",\"content\":\"a\",\"tool_calls\":[],\"function_call\":null}"),
      HI "<|user|>assistant::::a" },
    { "a result", TALK(RESULT), HI "<|user|>tool::1::42" },
    { "a result of parts",
      TALK("{\"role\":\"tool\",\"tool_call_id\":\"1\",\"name\":\"f\",\"content\":[{\"type\":"
           "\"text\",\"text\":\"4\"},"
           "{\"type\":\"text\",\"text\":\"2\"}]}"),
      HI "<|user|>tool:f:1::4\n2" },
    { "names and thoughts",
      TALK("{\"role\":\"assistant\",\"name\":\"Ann\",\"reasoning_content\":\"hm\",\"content\":"
           "\"a\"}"),
      HI "<|user|>assistant:Ann::hm:a" },
    { "thoughts under their other name",
      TALK("{\"role\":\"assistant\",\"reasoning\":\"hm\",\"name\":1,\"content\":\"a\"}"),
      HI "<|user|>assistant:::hm:a" },
};

Test(api_tools, the_template_sees_tools_calls_and_results)
{
    world w;
    fg_buf text = { 0 };
    open_world(&w, with_tools);
    for (size_t i = 0; i < sizeof prompts / sizeof prompts[0]; i++) {
        cr_assert_eq(parse(&w, prompts[i].body), FG_OK, "%s: %s: %s", prompts[i].name,
                     w.error.param, w.error.text);
        cr_assert_str_eq(prompt_of(&w, &text), prompts[i].prompt, "%s: %s", prompts[i].name,
                         text.data);
    }
    fg_buf_deinit(&text);
    close_world(&w);
}

Test(api_tools, choices_arrive)
{
    world w;
    open_world(&w, with_tools);
    cr_assert_eq(parse(&w, CHAT(TOOLS)), FG_OK);
    cr_assert(w.request.tools.choice == FG_TOOL_CHOICE_AUTO &&
              w.request.tools.dialect == FG_TOOLS_HERMES);
    cr_assert(w.request.tools.count == 2 && !w.request.tools.single);
    cr_assert_str_eq(w.request.tools.names[1].text, "get_it-2.0");
    cr_assert_eq(parse(&w, CHAT(TOOLS ",\"parallel_tool_calls\":false")), FG_OK);
    cr_assert(w.request.tools.single);
    cr_assert_eq(parse(&w, CHAT(TOOLS ",\"tool_choice\":\"none\",\"parallel_tool_calls\":true")),
                 FG_OK);
    cr_assert(w.request.tools.choice == FG_TOOL_CHOICE_NONE &&
              w.request.tools.dialect == FG_TOOLS_NONE);
    cr_assert_eq(parse(&w, CHAT(",\"tool_choice\":\"auto\"")), FG_OK);
    cr_assert(w.request.tools.choice == FG_TOOL_CHOICE_NONE &&
              w.request.tools.dialect == FG_TOOLS_NONE);
    close_world(&w);
}

/* In tools, arguments, names, ids and results: text, whatever control token it looks like. */
Test(api_tools, no_client_writes_control_tokens)
{
    static const char *const bodies[] = {
        CHAT(",\"tools\":[" TOOL("{\"name\":\"f\",\"description\":\"<|user|>\",\"parameters\":{\"<|"
                                 "user|>\":\"<|user|>\"}}") "]"),
        TALK("{\"role\":\"assistant\",\"reasoning\":\"<|user|>\",\"tool_calls\":[{\"id\":\"<|user|>"
             "\",\"function\":"
             "{\"name\":\"<|user|>\",\"arguments\":\"{\\\"<|user|>\\\":[\\\"<|user|>\\\"]}\"}}]}"),
        TALK("{\"role\":\"tool\",\"tool_call_id\":\"<|user|>\",\"name\":\"<|user|>\",\"content\":"
             "\"<|user|>\"}"),
    };
    world w;
    open_world(&w, with_tools);
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        cr_assert_eq(parse(&w, bodies[i]), FG_OK, "%s", w.error.text);
        uint32_t marks = 0;
        for (uint32_t j = 0; j < w.request.token_count; j++) {
            marks += w.request.tokens[j] == SMALL_BPE_USER;
        }
        cr_assert_eq(marks, i == 0 ? 1 : 2, "%zu: one for each message", i);
    }
    close_world(&w);
}

static const struct {
    const char *chat_template;
    const char *text;
} models[] = {
    { "{% for m in messages %}{{ m.content }}{% endfor %}",
      "the chat template of this model has no tools" },
    { sets_tools, "the chat template of this model has no tools" },
    { unknown_form, "how this model writes calls of tools is not known here" },
};

Test(api_tools, a_model_without_tools_says_so)
{
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        world w;
        open_world(&w, models[i].chat_template);
        cr_assert_eq(parse(&w, CHAT(TOOLS)), FG_BAD_INPUT);
        cr_assert_str_eq(w.error.param, "tools");
        cr_assert_str_eq(w.error.code, "unsupported_parameter");
        cr_assert_str_eq(w.error.text, models[i].text);
        cr_assert_eq(parse(&w, CHAT(TOOLS ",\"tool_choice\":\"none\"")), FG_OK, "%s", w.error.text);
        close_world(&w);
    }
}

Test(api_tools, ids_become_as_short_as_the_template_wants_them)
{
    static const char body[] = TALK(
        CALLS("{\"id\":\"call_01234\",\"function\":{\"name\":\"f\"}},"
              "{\"id\":\"abc456XYZ\",\"function\":{\"name\":\"f\"}}") ","
                                                                      "{\"role\":\"tool\",\"tool_"
                                                                      "call_id\":\"call_01234\","
                                                                      "\"content\":\"\"}");
    world w;
    fg_buf text = { 0 };
    open_world(&w, short_ids);
    cr_assert_eq(parse(&w, body), FG_OK, "%s", w.error.text);
    const char *prompt = prompt_of(&w, &text);
    /* "None[TOOL_CALLS]" comes first. */
    cr_assert_eq(strlen(prompt), 16 + 10 + 10 + 9, "%s", prompt);
    cr_assert_eq(memcmp(prompt + 16 + 10, "abc456XYZ,", 10), 0, "one that fits stays");
    cr_assert_eq(memcmp(prompt + 16, prompt + 36, 9), 0, "call and result agree");
    fg_buf_deinit(&text);
    close_world(&w);
}

Test(api_tools, counting_takes_tools_too)
{
    static const char body[] = "{\"messages\":[" USER "]" TOOLS "}";
    world w;
    fg_buf out = { 0 };
    char count[32];
    open_world(&w, with_tools);
    cr_assert_eq(parse(&w, body), FG_OK);
    snprintf(count, sizeof count, "{\"count\":%u,", w.request.token_count);
    cr_assert_eq(
        fg_api_answer_text(&w.server, FG_API_TOKENIZE, body, sizeof body - 1, 5, &out, &w.error),
        FG_OK);
    fg_buf_putc(&out, '\0');
    cr_assert_eq(strncmp(out.data, count, strlen(count)), 0, "%s, not %s", out.data, count);
    static const char bad[] = "{\"messages\":[" USER "],\"tools\":[1]}";
    cr_assert_eq(
        fg_api_answer_text(&w.server, FG_API_TOKENIZE, bad, sizeof bad - 1, 5, &out, &w.error),
        FG_BAD_INPUT);
    cr_assert_str_eq(w.error.param, "tools[0]");
    fg_buf_deinit(&out);
    close_world(&w);
}

static bool try_parse(void *ctx)
{
    world *w = ctx;
    return parse(w, "{\"messages\":[" USER "," CALLS(CALL(
                        "{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}")) "," RESULT "]" TOOLS
                                                                             "}") == FG_OK;
}

Test(api_tools, survives_every_failed_allocation)
{
    world w;
    open_world(&w, with_tools);
    cr_assert(fg_fault_each(try_parse, &w) >= 8);
    close_world(&w);
}

/* ---- answers ---- */

Test(api_tools, calls_are_rendered_whole_and_in_events)
{
    static const fg_api_call_part parts[] = { { 0, 1, 8 }, { 1, 3, 2 } };
    fg_api_calls calls = { .parts = parts, .count = 2, .text = "f{\"a\":\"\"}get{}" };
    fg_request request = { .kind = FG_API_CHAT,
                           .choice_count = 1,
                           .id = "chatcmpl-1",
                           .model = "m",
                           .tools = { .dialect = FG_TOOLS_HERMES } };
    fg_api_choice choice = {
        .piece = { .text = "" }, .finish = FG_FINISH_STOP, .called = true, .calls = calls
    };
    fg_api_usage usage = { 0 };
    fg_buf out = { 0 };
    fg_api_render_answer(&out, &request, &choice, &usage);
    fg_buf_putc(&out, '\0');
    const char *first = strstr(
        out.data,
        "\"message\":{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"call_");
    cr_assert_not_null(first, "%s", out.data);
    char id[32] = { 0 };
    memcpy(id, strstr(first, "call_"), 29);
    cr_assert_eq(strspn(id + 5, "0123456789abcdef"), 24, "%s", id);
    cr_assert_not_null(strstr(first, "\",\"type\":\"function\",\"function\":{\"name\":\"f\","
                                     "\"arguments\":\"{\\\"a\\\":\\\"\\\"}\"}},{\"id\":\"call_"),
                       "%s", first);
    cr_assert_not_null(strstr(first, "\"name\":\"get\",\"arguments\":\"{}\"}}],\"refusal\":null},"
                                     "\"logprobs\":null,\"finish_reason\":\"tool_calls\"}"),
                       "%s", first);
    fg_buf_clear(&out);
    fg_api_event_calls(&out, &request, 0, &calls);
    fg_buf_putc(&out, '\0');
    const char *at = out.data;
    static const char *const deltas[] = {
        "\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"call_",
        "\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"\"}}]},",
        "\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"{\\\"a\\\":\\\"\\\"}"
        "\"}}]},",
        "\"delta\":{\"tool_calls\":[{\"index\":1,\"id\":\"call_",
        "\"type\":\"function\",\"function\":{\"name\":\"get\",\"arguments\":\"\"}}]},",
        "\"delta\":{\"tool_calls\":[{\"index\":1,\"function\":{\"arguments\":\"{}\"}}]},"
        "\"logprobs\":null,\"finish_reason\":null}]}\n\n",
    };
    for (size_t i = 0; i < sizeof deltas / sizeof deltas[0]; i++) {
        at = strstr(at, deltas[i]);
        cr_assert_not_null(at, "%zu: %s", i, out.data);
    }
    cr_assert_not_null(strstr(out.data, id), "the same id in both");
    fg_buf_deinit(&out);
}

/* ---- calls that have to be made ---- */

#define HERMES_MARKER "<tool_call>"
static const struct form {
    const char *name;
    const char *chat_template;
    const char *control; /* a control token of the model; NULL: none */
    const char *begins;  /* what answers begin with */
} forms[] = {
    { "Hermes", "{# <tool_call> arguments #}{{ tools }}", NULL, HERMES_MARKER "\n{\"name\": \"" },
    { "Hermes, its marker a control token", "{# <tool_call> arguments #}{{ tools }}", HERMES_MARKER,
      "{\"name\": \"" },
    { "Llama", "{# <|python_tag|> \"parameters\" #}{{ tools }}", "<|python_tag|>",
      "{\"name\": \"" },
    { "Mistral", "{# [TOOL_CALLS] #}{{ tools }}", "[TOOL_CALLS]", "[{\"name\": \"" },
    { "granite", "{# <|tool_call|> #}{{ tools }}", "<|tool_call|>", "[{\"name\": \"" },
};

#define FORCED                                                                                     \
    ",\"tools\":[" TOOL("{\"name\":\"look\"}") "," TOOL(                                           \
        "{\"name\":\"go\",\"parameters\":{\"type\":\"object\",\"required\":[\"to\"],"              \
        "\"properties\":"                                                                          \
        "{\"to\":{\"enum\":[\"a\",\"\u00fc\"]},\"n\":{\"type\":\"integer\",\"minimum\":1,"         \
        "\"maximum\":30}}},\"strict\":true}") "," TOOL("{\"name\":\"odd\",\"parameters\":{"        \
                                                       "\"type\":"                                 \
                                                       "\"object\",\"not\":{}}}") "]"

static const struct way {
    const char *body;
    const char *only; /* the tool that is called; NULL: any */
    bool one;
} forced_ways[] = {
    { CHAT(FORCED ",\"tool_choice\":\"required\""), NULL, false },
    { CHAT(FORCED ",\"tool_choice\":\"required\",\"parallel_tool_calls\":false"), NULL, true },
    { CHAT(FORCED ",\"tool_choice\":" NAMED("go")), "go", true },
};

typedef struct heard {
    uint32_t calls, whole;
    size_t text;
    char name[16];
    char arguments[4096];
    size_t length;
    const struct way *way;
} heard;

static void hear_text(void *ctx, const char *text, size_t length)
{
    ((heard *)ctx)->text += length;
}

static void hear_call(void *ctx, const char *name, size_t length)
{
    heard *h = ctx;
    h->calls++;
    h->length = 0;
    snprintf(h->name, sizeof h->name, "%.*s", (int)length, name);
}

static void hear_arguments(void *ctx, const char *text, size_t length)
{
    heard *h = ctx;
    cr_assert(h->length + length < sizeof h->arguments);
    memcpy(h->arguments + h->length, text, length);
    h->length += length;
}

static void hear_end(void *ctx, bool whole)
{
    heard *h = ctx;
    fg_json *json = NULL;
    fg_error err = { 0 };
    h->whole += whole;
    cr_assert_eq(fg_json_parse(h->arguments, h->length, &json, &err), FG_OK, "%s", err.text);
    const fg_json_node *root = fg_json_root(json);
    int64_t n = 1;
    cr_assert(fg_json_is(root, FG_JSON_OBJECT));
    cr_assert(h->way->only == NULL || strcmp(h->name, h->way->only) == 0);
    if (strcmp(h->name, "go") == 0) {
        const char *to = fg_json_string(fg_json_get(root, "to"), NULL);
        (void)fg_json_integer(fg_json_get(root, "n"), &n);
        cr_assert(to != NULL && (strcmp(to, "a") == 0 || strcmp(to, "\u00fc") == 0));
        cr_assert(n >= 1 && n <= 30 && fg_json_size(root) <= 2);
    } else {
        cr_assert(strcmp(h->name, "look") == 0 || strcmp(h->name, "odd") == 0, "%s", h->name);
    }
    fg_json_destroy(json);
}

static const char *byte_text(void *ctx, uint32_t id, size_t *length_out)
{
    static char bytes[256];
    bytes[id % 256] = (char)id;
    *length_out = id < 256;
    return &bytes[id % 256];
}

static bool is_last(void *ctx, uint32_t id)
{
    return id == 256;
}

/* Any answer that the grammar allows; its length. */
static size_t walk(fg_automaton *automaton, fg_rng *rng, char *text, size_t capacity)
{
    fg_state state = fg_automaton_start(automaton);
    for (size_t length = 0; length < capacity; length++) {
        const uint64_t *mask = fg_automaton_mask(automaton, state);
        uint32_t tokens[257], count = 0;
        for (uint32_t id = 0; id <= 256; id++) {
            if ((mask[id / 64] >> id % 64 & 1) != 0) {
                tokens[count++] = id;
            }
        }
        cr_assert_gt(count, 0u);
        /* Towards the end: what closes strings, objects and lists. */
        uint32_t id = tokens[fg_rng_below(rng, count)];
        for (uint32_t i = 0; i < count && length > 200; i++) {
            id = tokens[i] == 256 || tokens[i] == '"' || tokens[i] == '}' || tokens[i] == ']'
                     ? tokens[i]
                     : id;
        }
        if (id == 256) {
            return length;
        }
        text[length] = (char)id;
        state = fg_automaton_take(automaton, state, id);
    }
    return SIZE_MAX;
}

static void check_forced(const struct form *form, const struct way *way, uint64_t seed)
{
    world w = { 0 };
    fg_error err = { 0 };
    fg_rng rng = { seed };
    fg_grammar *grammar;
    fg_lexicon *lexicon;
    fg_automaton *automaton;
    tiny_model_open_as(&w.model, form->chat_template, &form->control, form->control != NULL);
    w.server = (fg_api_server){ .tokenizer = w.model.tokenizer,
                                .chat = w.model.chat,
                                .model_name = "tiny",
                                .context_max = CONTEXT_MAX,
                                .max_tokens_default = 40 };
    w.arena = fg_arena_create(FG_API_ARENA_BYTES);
    cr_assert_eq(parse(&w, way->body), FG_OK, "%s: %s", form->name, w.error.text);
    const fg_request_tools *tools = &w.request.tools;
    const fg_wire_params *params = &w.request.params;
    cr_assert_eq(params->grammar_kind, (uint32_t)FG_GRAMMAR_CALLS);
    cr_assert_eq(fg_grammar_compile(FG_GRAMMAR_CALLS, params->grammar, params->grammar_bytes,
                                    &grammar, &err),
                 FG_OK, "%s", err.text);
    cr_assert_eq(fg_lexicon_create(257, byte_text, is_last, NULL, &lexicon, &err), FG_OK);
    cr_assert_eq(fg_automaton_create(grammar, lexicon, 0, &automaton, &err), FG_OK);
    for (uint32_t turn = 0; turn < 20; turn++) {
        static char text[8192];
        size_t length = walk(automaton, &rng, text, sizeof text);
        if (length == SIZE_MAX) {
            continue; /* it would not end */
        }
        heard h = { .way = way };
        fg_tool_events events = { hear_text, hear_call, hear_arguments, hear_end, &h };
        fg_tool_parse *found;
        cr_assert(strncmp(text, form->begins, strlen(form->begins)) == 0, "%s: %.40s", form->name,
                  text);
        cr_assert_eq(fg_tool_parse_create(tools->dialect, tools->unmarked, tools->names,
                                          tools->count, &events, &found, &err),
                     FG_OK);
        fg_tool_parse_push(found, text, length);
        fg_tool_parse_finish(found);
        cr_assert(h.calls >= 1 && h.whole == h.calls && h.text == 0, "%s: %.*s", form->name,
                  (int)length, text);
        cr_assert(!way->one || h.calls == 1, "%s: %u calls", form->name, h.calls);
        fg_tool_parse_destroy(found);
    }
    fg_automaton_destroy(automaton);
    fg_lexicon_destroy(lexicon);
    fg_grammar_destroy(grammar);
    fg_arena_destroy(w.arena);
    tiny_model_close(&w.model);
}

Test(api_tools, what_has_to_be_called_is_found_in_whatever_is_written)
{
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        for (size_t j = 0; j < sizeof forced_ways / sizeof forced_ways[0]; j++) {
            check_forced(&forms[i], &forced_ways[j], 100 * i + j);
        }
    }
}

static bool try_forced(void *ctx)
{
    return parse(ctx, forced_ways[0].body) == FG_OK;
}

Test(api_tools, a_call_that_has_to_be_made_survives_every_failed_allocation)
{
    world w;
    open_world(&w, forms[0].chat_template);
    cr_assert(fg_fault_each(try_forced, &w) >= 8);
    close_world(&w);
}
