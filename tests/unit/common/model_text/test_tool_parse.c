#include "common/model/tool_parse.h"

#include <string.h>

#include "common/base/buf.h"
#include "common/base/fault.h"
#include "common/base/json.h"
#include "common/base/limits.h"
#include "common/model/json_walk.h"
#include "tests/support/test.h"

/* What was told, as one text: [call f](arguments)[end], or [cut] where they are not whole. Neighbours of one kind join. */
typedef struct log {
    fg_buf text;
    char last; /* 'a': inside of arguments */
} log;

static void close_arguments(log *l)
{
    fg_buf_puts(&l->text, l->last == 'a' ? ")" : "");
    l->last = 0;
}

static void on_text(void *ctx, const char *text, size_t length)
{
    cr_assert_gt(length, 0);
    close_arguments(ctx);
    fg_buf_append(&((log *)ctx)->text, text, length);
}

static void on_call(void *ctx, const char *name, size_t length)
{
    log *l = ctx;
    close_arguments(l);
    fg_buf_printf(&l->text, "[call %.*s]", (int)length, name);
}

static void on_arguments(void *ctx, const char *text, size_t length)
{
    log *l = ctx;
    cr_assert_gt(length, 0);
    fg_buf_puts(&l->text, l->last == 'a' ? "" : "(");
    fg_buf_append(&l->text, text, length);
    l->last = 'a';
}

static void on_call_end(void *ctx, bool whole)
{
    close_arguments(ctx);
    fg_buf_puts(&((log *)ctx)->text, whole ? "[end]" : "[cut]");
}

static const fg_tool_name names[] = { { "f", 1 }, { "get_weather", 11 } };

static fg_tool_parse *make(fg_tool_dialect dialect, log *l)
{
    fg_tool_events events = { on_text, on_call, on_arguments, on_call_end, l };
    fg_tool_parse *parse = NULL;
    fg_error err;
    *l = (log){ 0 };
    fg_buf_init(&l->text, 0);
    fg_buf_puts(&l->text, "");
    cr_assert_eq(fg_tool_parse_create(dialect, false, names, 2, &events, &parse, &err), FG_OK);
    return parse;
}

/* A text in which \1...\2 is a control token's name. */
static void push(fg_tool_parse *parse, const char *text, size_t length)
{
    while (length > 0) {
        const char *token = memchr(text, '\1', length);
        size_t before = token == NULL ? length : (size_t)(token - text);
        fg_tool_parse_push(parse, text, before);
        text += before;
        length -= before;
        if (length > 0) {
            const char *end = memchr(text, '\2', length);
            size_t size = (size_t)(end - text);
            cr_assert(fg_tool_parse_knows(parse, text + 1, size - 1));
            fg_tool_parse_token(parse, text + 1, size - 1);
            text += size + 1;
            length -= size + 1;
        }
    }
}

static void push_all(fg_tool_parse *parse, const char *text)
{
    push(parse, text, strlen(text));
}

#define T          "<tool_call>"
#define E          "</tool_call>"
#define F(a)       "{\"name\": \"f\", \"arguments\": " a "}"
#define P(a)       "{\"name\": \"f\", \"parameters\": " a "}"
#define CALL(a)    "[call f](" a ")[end]"
#define TOKEN(t)   "\1" t "\2"
#define GRANITE    "<|tool_call|>"
#define PYTHON_TAG "<|python_tag|>"

static const struct {
    const char *name;
    fg_tool_dialect dialect;
    const char *text;
    const char *want;
} cases[] = {
    { "nothing", FG_TOOLS_HERMES, "", "" },
    { "a text", FG_TOOLS_HERMES, "Hello <b>you</b> <tool_cal <tool_callx {}",
      "Hello <b>you</b> <tool_cal <tool_callx {}" },
    { "white space alone", FG_TOOLS_HERMES, " \n", " \n" },
    { "a call", FG_TOOLS_HERMES, T "\n" F("{\"a\": 1}") "\n" E, CALL("{\"a\": 1}") },
    { "without white space", FG_TOOLS_HERMES, T F("{}") E, CALL("{}") },
    { "two calls", FG_TOOLS_HERMES,
      T "\n" F("{\"a\":1}") "\n" E "\n" T "\n" F("{\"b\":2}") "\n" E "\n",
      CALL("{\"a\":1}") CALL("{\"b\":2}") },
    { "text before", FG_TOOLS_HERMES, "Let me look.\n" T F("{}") E, "Let me look.\n" CALL("{}") },
    { "white space before", FG_TOOLS_HERMES, "\n\n" T F("{}") E, CALL("{}") },
    { "text behind", FG_TOOLS_HERMES, T F("{}") E "\nDone. <b>", CALL("{}") "\nDone. <b>" },
    { "text between", FG_TOOLS_HERMES, T F("{}") E " and " T F("{}") E,
      CALL("{}") " and " CALL("{}") },
    { "braces behind", FG_TOOLS_HERMES, T F("{}") E "\n{}", CALL("{}") "\n{}" },
    { "nested", FG_TOOLS_HERMES,
      T F("{\"a\":{\"b\":[1,-2.5e+3,{\"c\":null}],\"d\":\"}\\\"{\"},\"e\":true}") E,
      CALL("{\"a\":{\"b\":[1,-2.5e+3,{\"c\":null}],\"d\":\"}\\\"{\"},\"e\":true}") },
    { "a marker in an argument", FG_TOOLS_HERMES, T F("{\"a\":\"" E T "\"}") E,
      CALL("{\"a\":\"" E T "\"}") },
    { "UTF-8 and escapes", FG_TOOLS_HERMES,
      T F("{\"a\":\"Z\xC3\xBCrich \\u00e9 \xF0\x9F\x98\x80\"}") E,
      CALL("{\"a\":\"Z\xC3\xBCrich \\u00e9 \xF0\x9F\x98\x80\"}") },
    { "raw line ends in a string", FG_TOOLS_HERMES, T F("{\"a\":\"x\ny\t\",\n\"b\":1}") E,
      CALL("{\"a\":\"x\\ny\\t\",\n\"b\":1}") },
    { "arguments first", FG_TOOLS_HERMES, T "{\"arguments\":{\"a\":\"\n\"},\"name\":\"f\"}" E,
      CALL("{\"a\":\"\\n\"}") },
    { "no arguments", FG_TOOLS_HERMES, T "{\"name\":\"f\"}" E, CALL("{}") },
    { "null arguments", FG_TOOLS_HERMES, T F("null") E, CALL("{}") },
    { "arguments in a string", FG_TOOLS_HERMES, T F("\"{\\\"a\\\": 1}\"") E, CALL("{\"a\": 1}") },
    { "an empty string of arguments", FG_TOOLS_HERMES, T F("\"\"") E, T F("\"\"") E },
    { "a list of arguments", FG_TOOLS_HERMES, T F("[1]") E, T F("[1]") E },
    { "a number of arguments", FG_TOOLS_HERMES, T F("12") E, T F("12") E },
    { "parameters", FG_TOOLS_HERMES, T P("{\"a\":1}") E, CALL("{\"a\":1}") },
    { "more members", FG_TOOLS_HERMES,
      T "{\"type\":\"function\",\"name\":\"f\",\"x\":[1],\"arguments\":{},\"id\":\"1\",\"y\":{}}" E,
      CALL("{}") },
    { "arguments twice", FG_TOOLS_HERMES,
      T "{\"arguments\":{\"a\":1},\"parameters\":{\"b\":1},\"name\":\"f\"}" E, CALL("{\"a\":1}") },
    { "a name with escapes", FG_TOOLS_HERMES, T "{\"name\":\"\\u0066\",\"arguments\":{}}" E,
      CALL("{}") },
    { "a name of no tool", FG_TOOLS_HERMES, T "{\"name\":\"zzz\",\"arguments\":{}}" E,
      "[call zzz]({})[end]" },
    { "no name", FG_TOOLS_HERMES, T "{\"arguments\":{}}" E, T "{\"arguments\":{}}" E },
    { "an empty name", FG_TOOLS_HERMES, T "{\"name\":\"\",\"arguments\":{}}" E,
      T "{\"name\":\"\",\"arguments\":{}}" E },
    { "a name that is none", FG_TOOLS_HERMES, T "{\"name\":{},\"arguments\":{}}" E,
      T "{\"name\":{},\"arguments\":{}}" E },
    { "no JSON", FG_TOOLS_HERMES, T "\nf(1)\n" E, T "\nf(1)\n" E },
    { "no JSON, then a call", FG_TOOLS_HERMES, T "f" T F("{}") E, T "f" CALL("{}") },
    { "JSON of Python", FG_TOOLS_HERMES, T "{'name': 'f'}" E, T "{'name': 'f'}" E },
    { "a comma too many", FG_TOOLS_HERMES, T "{\"name\":\"f\",}" E, T "{\"name\":\"f\",}" E },
    { "a marker instead of JSON", FG_TOOLS_HERMES, T T F("{}") E, T CALL("{}") },
    { "an end marker alone", FG_TOOLS_HERMES, E "x", E "x" },
    { "empty tags", FG_TOOLS_HERMES, T E, T E },
    { "a mistake in arguments", FG_TOOLS_HERMES, T F("{\"a\":1,}") E,
      "[call f]({\"a\":1,)[cut]}}" E },
    { "an escape that is none", FG_TOOLS_HERMES, T F("{\"a\":\"\\d\"}") E,
      "[call f]({\"a\":\"\\)[cut]d\"}}" E },
    { "a brace too few", FG_TOOLS_HERMES, T "{\"name\":\"f\",\"arguments\":{}\n" E "\n" T F("{}") E,
      CALL("{}") CALL("{}") },
    { "a brace too many", FG_TOOLS_HERMES, T F("{}") "}\n" E, CALL("{}") "}\n" E },
    { "no end marker", FG_TOOLS_HERMES, T F("{}") "\n" T F("{}"), CALL("{}") CALL("{}") },
    { "a list in tags", FG_TOOLS_HERMES, T "[" F("{}") ", " F("{\"a\":1}") "]" E,
      CALL("{}") CALL("{\"a\":1}") },
    { "an empty list", FG_TOOLS_HERMES, T "[]" E, T "[]" E },
    { "a list in a list", FG_TOOLS_HERMES, T "[[", T "[[" },
    { "two objects in tags", FG_TOOLS_HERMES, T F("{}") "\n" F("{}") E, CALL("{}") CALL("{}") },
    { "cut in a marker", FG_TOOLS_HERMES, "a <tool_", "a <tool_" },
    { "cut before the name", FG_TOOLS_HERMES, T "\n{\"name\": \"f", T "\n{\"name\": \"f" },
    { "cut in arguments", FG_TOOLS_HERMES, T "\n{\"name\": \"f\", \"arguments\": {\"a\": \"b",
      "[call f]({\"a\": \"b)[cut]" },
    { "cut behind arguments", FG_TOOLS_HERMES, T "{\"name\":\"f\",\"arguments\":{}", CALL("{}") },
    { "cut behind a call", FG_TOOLS_HERMES, T F("{}") "\n", CALL("{}") },
    { "cut in the end marker", FG_TOOLS_HERMES, T F("{}") "\n</tool", CALL("{}") },
    { "cut in the next marker", FG_TOOLS_HERMES, T F("{}") E "\n<tool", CALL("{}") "\n<tool" },
    { "control tokens", FG_TOOLS_HERMES,
      "a" TOKEN(T) "\n" F("{}") "\n" TOKEN(E) "\n" TOKEN(T) F("{}") TOKEN(E) "b",
      "a" CALL("{}") CALL("{}") "b" },
    { "control tokens around no call", FG_TOOLS_HERMES, TOKEN(T) "abc" TOKEN(E) "d", "abcd" },
    { "a control token in arguments", FG_TOOLS_HERMES,
      TOKEN(T) "{\"name\":\"f\",\"arguments\":{\"a" TOKEN(E) "x", "[call f]({\"a)[cut]x" },
    { "a control token in a list", FG_TOOLS_HERMES, TOKEN(T) "[" F("{}") ", " TOKEN(E) "x",
      CALL("{}") "x" },
    { "a control token in JSON", FG_TOOLS_HERMES, TOKEN(T) "{\"na" TOKEN(T) F("{}"),
      "{\"na" CALL("{}") },
    { "a control token behind spaces", FG_TOOLS_HERMES, " " TOKEN(T) F("{}"), CALL("{}") },
    { "a stray end token", FG_TOOLS_HERMES, "a" TOKEN(E) "b", "ab" },

    { "an answer that is a call", FG_TOOLS_LLAMA, P("{\"a\":1}"), CALL("{\"a\":1}") },
    { "arguments too", FG_TOOLS_LLAMA, "\n" F("{\"a\":1}"), CALL("{\"a\":1}") },
    { "of a tool that was not shown", FG_TOOLS_LLAMA, "{\"name\":\"Bob\",\"parameters\":{}}",
      "{\"name\":\"Bob\",\"parameters\":{}}" },
    { "an answer in JSON", FG_TOOLS_LLAMA, "{\"a\":{\"name\":\"f\",\"parameters\":{}}}",
      "{\"a\":{\"name\":\"f\",\"parameters\":{}}}" },
    { "JSON behind text", FG_TOOLS_LLAMA, "Look: " P("{}"), "Look: " P("{}") },
    { "several", FG_TOOLS_LLAMA, P("{}") "; " P("{\"a\":2}") ";\n" P("{}"),
      CALL("{}") CALL("{\"a\":2}") CALL("{}") },
    { "a semicolon at the end", FG_TOOLS_LLAMA, P("{}") ";", CALL("{}") },
    { "text behind a bare call", FG_TOOLS_LLAMA, P("{}") "; so", CALL("{}") "; so" },
    { "behind the tag", FG_TOOLS_LLAMA, PYTHON_TAG P("{}"), CALL("{}") },
    { "behind the tag as a token", FG_TOOLS_LLAMA, TOKEN(PYTHON_TAG) P("{}") "; " P("{}"),
      CALL("{}") CALL("{}") },
    { "any name behind the tag", FG_TOOLS_LLAMA,
      TOKEN(PYTHON_TAG) "{\"name\":\"Bob\",\"parameters\":{}}", "[call Bob]({})[end]" },
    { "text, then the tag", FG_TOOLS_LLAMA, "Look. " TOKEN(PYTHON_TAG) P("{}"),
      "Look. " CALL("{}") },
    { "Python behind the tag", FG_TOOLS_LLAMA, TOKEN(PYTHON_TAG) "brave.call(query=\"x\")",
      "brave.call(query=\"x\")" },

    { "a list", FG_TOOLS_MISTRAL, "[TOOL_CALLS] [" F("{\"a\":1}") ", " F("{}") "]",
      CALL("{\"a\":1}") CALL("{}") },
    { "a list behind a token", FG_TOOLS_MISTRAL,
      TOKEN("[TOOL_CALLS]") "[{\"name\":\"f\",\"arguments\":{},\"id\":\"abcdefghi\"}]",
      CALL("{}") },
    { "brackets of a text", FG_TOOLS_MISTRAL, "a[1] [TOOL [TOOL_CALL[TOOL_CALLS]x",
      "a[1] [TOOL [TOOL_CALL[TOOL_CALLS]x" },
    { "text behind a list", FG_TOOLS_MISTRAL, "[TOOL_CALLS][" F("{}") "] x", CALL("{}") " x" },
    { "one object", FG_TOOLS_MISTRAL, "[TOOL_CALLS]" F("{}"), CALL("{}") },
    { "a cut list", FG_TOOLS_MISTRAL, "[TOOL_CALLS][" F("{}") ", ", CALL("{}") },
    { "no list", FG_TOOLS_MISTRAL, "[TOOL_CALLS][1]", "[TOOL_CALLS][1]" },

    { "granite's token", FG_TOOLS_GRANITE, TOKEN(GRANITE) "[" F("{}") "]", CALL("{}") },
    { "granite's text", FG_TOOLS_GRANITE, "<tool_call>[" F("{}") "]", CALL("{}") },
    { "Phi's end", FG_TOOLS_GRANITE,
      "a " TOKEN(GRANITE) "[" F("{}") "," F("{}") "]" TOKEN("<|/tool_call|>"),
      "a " CALL("{}") CALL("{}") },
    { "Phi's end as a text", FG_TOOLS_GRANITE, GRANITE "[" F("{}") "]<|/tool_call|>b",
      CALL("{}") "b" },
};

enum { CASE_COUNT = sizeof cases / sizeof cases[0] };

/* The case in pieces that end at the set bits of `cuts` (by index), or behind every byte. Tokens stay whole. */
static void expect(size_t index, size_t cut, bool every)
{
    log l;
    const char *text = cases[index].text;
    size_t length = strlen(text);
    fg_tool_parse *parse = make(cases[index].dialect, &l);
    size_t from = 0;
    bool token = false;
    for (size_t at = 0; at < length; at++) {
        token = text[at] == '\1' || (token && text[at] != '\2');
        if (!token && (every || at + 1 == cut || at + 1 == length)) {
            push(parse, text + from, at + 1 - from);
            from = at + 1;
        }
    }
    fg_tool_parse_finish(parse);
    close_arguments(&l);
    cr_assert(!fg_tool_parse_failed(parse));
    cr_assert_str_eq(l.text.data, cases[index].want, "%s, cut at %zu: %s\nwant %s",
                     cases[index].name, every ? 0 : cut, l.text.data, cases[index].want);
    fg_tool_parse_destroy(parse);
    fg_buf_deinit(&l.text);
}

Test(tool_parse, tells_the_same_wherever_the_text_is_cut)
{
    for (size_t i = 0; i < CASE_COUNT; i++) {
        for (size_t cut = 0; cut <= strlen(cases[i].text); cut++) {
            expect(i, cut, false);
        }
        expect(i, 0, true);
    }
}

Test(tool_parse, arguments_come_as_they_are_written)
{
    log l;
    fg_tool_parse *parse = make(FG_TOOLS_HERMES, &l);
    push_all(parse, T "\n{\"name\": \"f\", \"arguments\"");
    cr_assert_str_eq(l.text.data, "");
    push_all(parse, ": {\"a");
    cr_assert_str_eq(l.text.data, "[call f]({\"a");
    push_all(parse, "\": 1");
    cr_assert_str_eq(l.text.data, "[call f]({\"a\": 1");
    push_all(parse, "}");
    cr_assert_str_eq(l.text.data, "[call f]({\"a\": 1})[end]", "the end is told before the tag's");
    fg_tool_parse_destroy(parse);
    fg_buf_deinit(&l.text);
}

Test(tool_parse, holds_back_no_more_than_it_says)
{
    static const struct {
        fg_tool_dialect dialect;
        const char *begin;
        char filler;
    } floods[] = {
        { FG_TOOLS_HERMES, "", ' ' },
        { FG_TOOLS_HERMES, T, ' ' },
        { FG_TOOLS_HERMES, T "{\"name\":\"", 'x' },
        { FG_TOOLS_HERMES, T "{\"arguments\":\"", 'x' },
        { FG_TOOLS_MISTRAL, "[TOOL_CALLS][", ',' },
        { FG_TOOLS_LLAMA, "{\"a\":", '1' },
    };
    for (size_t i = 0; i < sizeof floods / sizeof floods[0]; i++) {
        log l;
        fg_tool_parse *parse = make(floods[i].dialect, &l);
        size_t given = strlen(floods[i].begin);
        push(parse, floods[i].begin, given);
        for (; given < 3 * FG_TOOL_HELD_MAX; given++) {
            push(parse, &floods[i].filler, 1);
            cr_assert_leq(given + 1 - l.text.size, FG_TOOL_HELD_MAX, "%zu", i);
        }
        fg_tool_parse_finish(parse);
        cr_assert_eq(l.text.size, given, "%zu", i);
        fg_tool_parse_destroy(parse);
        fg_buf_deinit(&l.text);
    }
}

Test(tool_parse, a_long_argument_is_not_held)
{
    log l;
    fg_tool_parse *parse = make(FG_TOOLS_HERMES, &l);
    push_all(parse, T "{\"name\":\"f\",\"arguments\":{\"a\":\"");
    size_t before = l.text.size;
    for (int i = 0; i < 2 * FG_TOOL_HELD_MAX; i++) {
        push_all(parse, "x");
    }
    cr_assert_eq(l.text.size, before + 2 * FG_TOOL_HELD_MAX);
    fg_tool_parse_destroy(parse);
    fg_buf_deinit(&l.text);
}

static const struct {
    const char *source;
    fg_tool_dialect dialect;
} sources[] = {
    { "{{ '<tool_call>\\n{\"name\": <function-name>, \\\"arguments\\\": ...' }}", FG_TOOLS_HERMES },
    { "<tool_call>\n<function=example>", FG_TOOLS_UNKNOWN },
    { "<tool_call>{name}\n<arg_key> arguments", FG_TOOLS_UNKNOWN },
    { "{{- \"[TOOL_CALLS][\" }}", FG_TOOLS_MISTRAL },
    { "[TOOL_CALLS]name[ARGS]{}", FG_TOOLS_UNKNOWN },
    { "respond only with <|tool_call|> followed by a JSON list", FG_TOOLS_GRANITE },
    { "<|python_tag|> {\"name\": x, \"parameters\": y}", FG_TOOLS_LLAMA },
    { "'Respond in the format {\"name\": function name, \"parameters\": dictionary'",
      FG_TOOLS_LLAMA },
    { "<|python_tag|>", FG_TOOLS_UNKNOWN },
    { "{{ tools | tojson }}", FG_TOOLS_UNKNOWN },
    { "", FG_TOOLS_UNKNOWN },
};

Test(tool_parse, the_template_says_how_calls_are_written)
{
    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++) {
        cr_assert_eq(fg_tool_dialect_of(sources[i].source, strlen(sources[i].source)),
                     sources[i].dialect, "%s", sources[i].source);
    }
}

/* Texts of an object that json takes, and others; what follows an object is not looked at. */
static const struct {
    const char *text;
    bool good;
} objects[] = {
    { "{}", true },
    { " {}", false },
    { "[]", false },
    { "1", false },
    { "{\"a\":1}", true },
    { "{ \"a\" : [ ] , \"b\" : { } }", true },
    { "{\"a\":[1,2,[3,[]]]}", true },
    { "{\"a\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00aF\"}", true },
    { "{\"a\":\"\\u00g0\"}", false },
    { "{\"a\":\"\\x\"}", false },
    { "{\"a\":true,\"b\":false,\"c\":null}", true },
    { "{\"a\":nul}", false },
    { "{\"a\":trueish}", false },
    { "{\"a\":True}", false },
    { "{\"a\":0,\"b\":-0,\"c\":10,\"d\":-1.50,\"e\":1e5,\"f\":1E-5,\"g\":0.1e+2}", true },
    { "{\"a\":01}", false },
    { "{\"a\":-}", false },
    { "{\"a\":-01}", false },
    { "{\"a\":1.}", false },
    { "{\"a\":.5}", false },
    { "{\"a\":1e}", false },
    { "{\"a\":1e+}", false },
    { "{\"a\":+1}", false },
    { "{\"a\":1 2}", false },
    { "{\"a\":NaN}", false },
    { "{\"a\"}", false },
    { "{\"a\":}", false },
    { "{\"a\" 1}", false },
    { "{a:1}", false },
    { "{,}", false },
    { "{\"a\":1,}", false },
    { "{\"a\":[1,]}", false },
    { "{\"a\":[,1]}", false },
    { "{\"a\":[1}", false },
    { "{\"a\":{]}", false },
    { "{\"a\":1", false },
    { "{\"a", false },
};

Test(json_walk, takes_what_json_takes)
{
    for (size_t i = 0; i < sizeof objects / sizeof objects[0]; i++) {
        fg_json_walk walk;
        fg_json_step step = FG_JSON_STEP_INSIDE;
        fg_json *json = NULL;
        fg_error err;
        fg_json_walk_init(&walk);
        for (const char *c = objects[i].text; *c != '\0' && step != FG_JSON_STEP_BAD; c++) {
            step = fg_json_walk_push(&walk, *c);
        }
        cr_assert_eq(step == FG_JSON_STEP_DONE, objects[i].good, "%s", objects[i].text);
        if (objects[i].good) {
            cr_assert_eq(fg_json_parse(objects[i].text, strlen(objects[i].text), &json, &err),
                         FG_OK, "%s", err.text);
        }
        fg_json_destroy(json);
    }
}

Test(json_walk, depth_has_a_limit)
{
    for (unsigned depth = FG_LIMIT_JSON_DEPTH - 1; depth <= FG_LIMIT_JSON_DEPTH + 1; depth++) {
        fg_json_walk walk;
        fg_json_step step = FG_JSON_STEP_INSIDE;
        fg_json_walk_init(&walk);
        for (unsigned i = 0; i < depth && step != FG_JSON_STEP_BAD; i++) {
            step = fg_json_walk_push(&walk, '{');
            for (const char *c = "\"a\":"; i + 1 < depth && *c != '\0' && step != FG_JSON_STEP_BAD;
                 c++) {
                step = fg_json_walk_push(&walk, *c);
            }
        }
        cr_assert_eq(step == FG_JSON_STEP_BAD, depth > FG_LIMIT_JSON_DEPTH, "%u", depth);
    }
}

/* Everything is told, or the parser says that it failed. */
static bool try_parse(void *ctx)
{
    fg_tool_events events = { on_text, on_call, on_arguments, on_call_end, ctx };
    fg_tool_parse *parse = NULL;
    fg_error err;
    if (fg_tool_parse_create(FG_TOOLS_HERMES, false, names, 2, &events, &parse, &err) != FG_OK) {
        return false;
    }
    static const char text[] =
        "a " T F("{\"a\":\"\n\"}") T F("\"{}\"") T "{\"arguments\":{},\"name\":\"f\"}";
    push(parse, text, sizeof text - 1);
    fg_tool_parse_finish(parse);
    bool good = !fg_tool_parse_failed(parse);
    fg_tool_parse_destroy(parse);
    return good;
}

Test(tool_parse, survives_every_failed_allocation)
{
    log l = { 0 };
    fg_buf_init(&l.text, 0);
    fg_buf_reserve(&l.text, 1 << 16);
    cr_assert(fg_fault_each(try_parse, &l) >= 6);
    fg_buf_deinit(&l.text);
}
