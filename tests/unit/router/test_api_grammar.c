/* What an answer is held to, in the words of several servers. */
#include <stdio.h>
#include <string.h>

#include "common/base/fault.h"
#include "common/base/limits.h"
#include "common/base/mem.h"
#include "common/grammar/grammar.h"
#include "router/api.h"
#include "tests/support/test.h"
#include "tests/unit/router/tiny_model.h"

typedef struct world {
    tiny_model model;
    fg_api_server server;
    fg_arena *arena;
    fg_request request;
    fg_api_error error;
} world;

static void open_world(world *w)
{
    *w = (world){ 0 };
    tiny_model_open(&w->model);
    w->server = (fg_api_server){ .tokenizer = w->model.tokenizer,
                                 .chat = w->model.chat,
                                 .model_name = "tiny",
                                 .context_max = 100,
                                 .max_tokens_default = 40 };
    w->arena = fg_arena_create(FG_API_ARENA_BYTES);
}

static void close_world(world *w)
{
    fg_arena_destroy(w->arena);
    tiny_model_close(&w->model);
}

/* A completion with `more` in its body. */
static fg_status parse(world *w, const char *more)
{
    static char body[FG_LIMIT_GRAMMAR_BYTES + 4096];
    snprintf(body, sizeof body, "{\"prompt\":\"hi\",%s}", more);
    fg_api_call call = { .id = "id-1" };
    fg_arena_reset(w->arena);
    return fg_api_parse(&w->server, FG_API_COMPLETION, body, strlen(body), &call, w->arena,
                        &w->request, &w->error);
}

static const struct accepted {
    const char *more;
    fg_grammar_kind kind;
    const char *text;
} accepted[] = {
    { "\"response_format\":{\"type\":\"text\"}", FG_GRAMMAR_NONE, "" },
    { "\"response_format\":null,\"regex\":null", FG_GRAMMAR_NONE, "" },
    { "\"response_format\":{\"type\":\"json_object\"}", FG_GRAMMAR_JSON, "" },
    { "\"response_format\":{\"type\":\"json_object\",\"schema\":{\"type\":\"null\"}}",
      FG_GRAMMAR_SCHEMA, "{\"type\":\"null\"}" },
    { "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\",\"strict\":"
      "true,"
      "\"schema\":{\"properties\":{\"b\":{\"const\":1},\"a\":{\"const\":2.5}}}}}",
      FG_GRAMMAR_SCHEMA, "{\"properties\":{\"b\":{\"const\":1},\"a\":{\"const\":2.5}}}" },
    { "\"structured_outputs\":{\"json\":\"{\\\"type\\\": \\\"null\\\"}\"}", FG_GRAMMAR_SCHEMA,
      "{\"type\": \"null\"}" },
    { "\"structured_outputs\":{\"regex\":\"a+\",\"json\":null}", FG_GRAMMAR_REGEX, "a+" },
    { "\"structured_outputs\":{\"choice\":[\"a\",\"b\"]}", FG_GRAMMAR_CHOICE, "[\"a\",\"b\"]" },
    { "\"structured_outputs\":{\"grammar\":\"root ::= [a]\"}", FG_GRAMMAR_GBNF, "root ::= [a]" },
    { "\"structured_outputs\":{\"json_object\":true}", FG_GRAMMAR_JSON, "" },
    { "\"guided_json\":true", FG_GRAMMAR_SCHEMA, "true" },
    { "\"guided_regex\":\"[0-9]\"", FG_GRAMMAR_REGEX, "[0-9]" },
    { "\"guided_choice\":[\"x\"]", FG_GRAMMAR_CHOICE, "[\"x\"]" },
    { "\"guided_grammar\":\"root ::= [a]\"", FG_GRAMMAR_GBNF, "root ::= [a]" },
    { "\"json_schema\":{\"enum\":[1]}", FG_GRAMMAR_SCHEMA, "{\"enum\":[1]}" },
    { "\"regex\":\"x\"", FG_GRAMMAR_REGEX, "x" },
    { "\"grammar\":\"root ::= [a]\"", FG_GRAMMAR_GBNF, "root ::= [a]" },
    { "\"ebnf\":\"root ::= [a]\"", FG_GRAMMAR_GBNF, "root ::= [a]" },
};

Test(api_grammar, each_way_to_say_it_arrives)
{
    world w;
    open_world(&w);
    for (size_t i = 0; i < sizeof accepted / sizeof accepted[0]; i++) {
        const struct accepted *it = &accepted[i];
        cr_assert_eq(parse(&w, it->more), FG_OK, "%s: %s", it->more, w.error.text);
        const fg_wire_params *params = &w.request.params;
        cr_assert_eq(params->grammar_kind, (uint32_t)it->kind, "%s", it->more);
        cr_assert(params->grammar_bytes == strlen(it->text) &&
                      (params->grammar_bytes == 0 ||
                       memcmp(params->grammar, it->text, params->grammar_bytes) == 0),
                  "%s: %.*s", it->more, (int)params->grammar_bytes, params->grammar);
    }
    close_world(&w);
}

static const struct refused {
    const char *more, *param, *code;
    const char *says; /* part of the text */
} refused[] = {
    { "\"response_format\":\"json\"", "response_format", "invalid_type", "an object" },
    { "\"response_format\":{}", "response_format", "invalid_value", "json_schema" },
    { "\"response_format\":{\"type\":\"xml\"}", "response_format", "invalid_value", "xml" },
    { "\"response_format\":{\"type\":\"json_schema\"}", "response_format.json_schema",
      "invalid_type", "an object" },
    { "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\"}}",
      "response_format.json_schema.schema", "invalid_type", "a schema" },
    { "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"properties\":{"
      "\"a\":"
      "{\"uniqueItems\":true,\"type\":\"array\"}}}}}",
      "response_format.json_schema.schema", "invalid_value", "#/properties/a" },
    { "\"structured_outputs\":[]", "structured_outputs", "invalid_type", "an object" },
    { "\"structured_outputs\":{}", "structured_outputs", "invalid_value", "one of" },
    { "\"structured_outputs\":{\"json_object\":false}", "structured_outputs", "invalid_value",
      "one of" },
    { "\"structured_outputs\":{\"json\":true,\"regex\":\"a\"}", "structured_outputs.regex",
      "invalid_value", "structured_outputs.json" },
    { "\"structured_outputs\":{\"regex\":5}", "structured_outputs.regex", "invalid_type",
      "a string" },
    { "\"structured_outputs\":{\"choice\":[]}", "structured_outputs.choice", "invalid_value", "" },
    { "\"structured_outputs\":{\"choice\":[1]}", "structured_outputs.choice", "invalid_value", "" },
    { "\"regex\":\"(\"", "regex", "invalid_value", "" },
    { "\"regex\":\"a\",\"ebnf\":\"root ::= [a]\"", "ebnf", "invalid_value", "'regex'" },
    { "\"grammar\":\"root ::= other\"", "grammar", "invalid_value", "other" },
    { "\"grammar\":\"root ::= root [a] | [b]\"", "grammar", "invalid_value", "root" },
    { "\"response_format\":{\"type\":\"json_object\"},\"regex\":\"a\"", "regex", "invalid_value",
      "'response_format'" },
    { "\"regex\":\"a\",\"ignore_eos\":true", "ignore_eos", "invalid_value", "'regex'" },
    { "\"regex\":\"a\",\"min_tokens\":2", "min_tokens", "invalid_value", "'regex'" },
};

Test(api_grammar, what_cannot_be_held_to_is_refused_with_its_place)
{
    world w;
    open_world(&w);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        const struct refused *it = &refused[i];
        cr_assert_eq(parse(&w, it->more), FG_BAD_INPUT, "%s", it->more);
        cr_assert_eq(w.error.http_status, 400);
        cr_assert_str_eq(w.error.param, it->param, "%s", it->more);
        cr_assert_str_eq(w.error.code, it->code, "%s", it->more);
        cr_assert(strstr(w.error.text, it->says) != NULL, "%s: %s", it->more, w.error.text);
    }
    close_world(&w);
}

Test(api_grammar, a_grammar_has_a_largest_size)
{
    static char more[FG_LIMIT_GRAMMAR_BYTES + 1024];
    world w;
    open_world(&w);
    for (int beyond = 0; beyond < 2; beyond++) {
        size_t length = FG_LIMIT_GRAMMAR_BYTES + (size_t)beyond;
        size_t at = (size_t)snprintf(more, sizeof more, "\"regex\":\"");
        memset(more + at, 'a', length);
        snprintf(more + at + length, sizeof more - at - length, "\"");
        cr_assert_eq(parse(&w, more), beyond ? FG_BAD_INPUT : FG_OK, "%s", w.error.text);
        /* A value is measured as it is written. */
        at = (size_t)snprintf(more, sizeof more, "\"json_schema\":{\"title\":\"");
        length -= strlen("{\"title\":\"\"}");
        memset(more + at, 'a', length);
        snprintf(more + at + length, sizeof more - at - length, "\"}");
        cr_assert_eq(parse(&w, more), beyond ? FG_BAD_INPUT : FG_OK, "%s", w.error.text);
        cr_assert(!beyond || strstr(w.error.text, "longer than") != NULL);
    }
    close_world(&w);
}

/* Each is a place of the first state, and there would be more than it can have. */
Test(api_grammar, too_many_ways_to_begin_are_refused)
{
    static char more[FG_LIMIT_GRAMMAR_BYTES];
    world w;
    open_world(&w);
    for (int count = 100; count <= 10000; count *= 10) {
        size_t at = (size_t)snprintf(more, sizeof more, "\"regex\":\"");
        for (int i = 0; i < count; i++) {
            at += (size_t)snprintf(more + at, sizeof more - at, "%sx%dy*", i == 0 ? "" : "|", i);
        }
        snprintf(more + at, sizeof more - at, "\"");
        cr_assert_eq(parse(&w, more), count < 10000 ? FG_OK : FG_BAD_INPUT, "%d: %s", count,
                     w.error.text);
        cr_assert(count < 10000 || strstr(w.error.text, "ways to begin") != NULL);
    }
    close_world(&w);
}

static bool parse_once(void *ctx)
{
    world *w = ctx;
    fg_arena *arena = w->arena;
    w->arena = fg_arena_create(FG_API_ARENA_BYTES);
    bool done =
        w->arena != NULL &&
        parse(w, "\"structured_outputs\":{\"json\":{\"properties\":{\"a\":{\"minimum\":3}}}}") ==
            FG_OK;
    cr_assert(done || w->arena == NULL || w->error.http_status == 503, "%s", w->error.text);
    fg_arena_destroy(w->arena);
    w->arena = arena;
    return done;
}

Test(api_grammar, every_failed_allocation_is_refused)
{
    world w;
    open_world(&w);
    cr_assert(fg_fault_each(parse_once, &w) > 0);
    close_world(&w);
}
