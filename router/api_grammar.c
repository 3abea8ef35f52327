/* What an answer is held to: OpenAI's `response_format`, and the names that vLLM, SGLang and llama.cpp have for a schema, an
 * expression, a list or a grammar. At most one of them. */
#include <stdio.h>
#include <string.h>

#include "common/base/limits.h"
#include "common/grammar/automaton.h"
#include "router/api_internal.h"

/* A wish as it was found: the text is of `kind`. */
typedef struct wish {
    const char *name; /* of the parameter, for errors */
    fg_grammar_kind kind;
    const fg_json_node
        *node; /* a JSON value, or a string that is the text; NULL: there is no text */
} wish;

/* How the names that say one thing say it. */
static const struct {
    fg_api_param id;
    fg_grammar_kind kind;
} plain_names[] = {
    { FG_PARAM_GUIDED_JSON, FG_GRAMMAR_SCHEMA },   { FG_PARAM_JSON_SCHEMA, FG_GRAMMAR_SCHEMA },
    { FG_PARAM_GUIDED_REGEX, FG_GRAMMAR_REGEX },   { FG_PARAM_REGEX, FG_GRAMMAR_REGEX },
    { FG_PARAM_GUIDED_CHOICE, FG_GRAMMAR_CHOICE }, { FG_PARAM_GUIDED_GRAMMAR, FG_GRAMMAR_GBNF },
    { FG_PARAM_GRAMMAR, FG_GRAMMAR_GBNF },         { FG_PARAM_EBNF, FG_GRAMMAR_GBNF },
};

static fg_status twice(fg_api_reading *r, const wish *first, const char *name)
{
    return fg_api_wrong_value(r, name, "'%s' and '%s' both say what the answer is to be: give one",
                              first->name, name);
}

static fg_status read_response_format(fg_api_reading *r, wish *found)
{
    static const char name[] = "response_format";
    const fg_json_node *node = fg_api_value(r, FG_PARAM_RESPONSE_FORMAT);
    const fg_json_node *type = fg_json_get(node, "type");
    if (node == NULL) {
        return FG_OK;
    }
    if (!fg_json_is(node, FG_JSON_OBJECT)) {
        return fg_api_wrong_type(r, name, "an object", node);
    }
    if (fg_api_string_is(type, "text")) {
        return FG_OK;
    }
    *found = (wish){ .name = name, .kind = FG_GRAMMAR_JSON };
    if (fg_api_string_is(type, "json_object")) {
        /* llama.cpp's way to give a schema along. */
        found->node = fg_json_get(node, "schema");
        found->kind = found->node != NULL ? FG_GRAMMAR_SCHEMA : FG_GRAMMAR_JSON;
        return FG_OK;
    }
    if (fg_api_string_is(type, "json_schema")) {
        const fg_json_node *outer = fg_json_get(node, "json_schema");
        if (!fg_json_is(outer, FG_JSON_OBJECT)) {
            return fg_api_wrong_type(r, "response_format.json_schema", "an object", outer);
        }
        found->name = "response_format.json_schema.schema";
        found->kind = FG_GRAMMAR_SCHEMA;
        found->node = fg_json_get(outer, "schema");
        return found->node != NULL ? FG_OK
                                   : fg_api_wrong_type(r, found->name, "a schema", found->node);
    }
    const char *given = fg_json_string(type, NULL);
    return fg_api_wrong_value(r, name,
                              "'%.32s' is not a type of answer: use 'text', 'json_object' or "
                              "'json_schema'",
                              given == NULL ? "" : given);
}

/* vLLM's object with one member. */
static fg_status read_structured(fg_api_reading *r, wish *found)
{
    static const struct {
        const char *member, *name;
        fg_grammar_kind kind;
    } members[] = { { "json", "structured_outputs.json", FG_GRAMMAR_SCHEMA },
                    { "regex", "structured_outputs.regex", FG_GRAMMAR_REGEX },
                    { "choice", "structured_outputs.choice", FG_GRAMMAR_CHOICE },
                    { "grammar", "structured_outputs.grammar", FG_GRAMMAR_GBNF } };
    static const char name[] = "structured_outputs";
    const fg_json_node *node = fg_api_value(r, FG_PARAM_STRUCTURED);
    bool any_json = false;
    if (node == NULL) {
        return FG_OK;
    }
    if (!fg_json_is(node, FG_JSON_OBJECT)) {
        return fg_api_wrong_type(r, name, "an object", node);
    }
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        const fg_json_node *value = fg_json_get(node, members[i].member);
        if (value == NULL || fg_json_is(value, FG_JSON_NULL)) {
            continue;
        }
        if (found->name != NULL) {
            return twice(r, found, members[i].name);
        }
        *found = (wish){ .name = members[i].name, .kind = members[i].kind, .node = value };
    }
    const fg_json_node *object = fg_json_get(node, "json_object");
    if (fg_json_bool(object, &any_json) && any_json) {
        if (found->name != NULL) {
            return twice(r, found, "structured_outputs.json_object");
        }
        *found = (wish){ .name = "structured_outputs.json_object", .kind = FG_GRAMMAR_JSON };
    }
    return found->name != NULL
               ? FG_OK
               : fg_api_wrong_value(
                     r, name, "'%s' needs one of json, json_object, regex, choice, grammar", name);
}

static fg_status find_wish(fg_api_reading *r, wish *found)
{
    wish structured = { 0 };
    fg_status status = read_response_format(r, found);
    if (status == FG_OK) {
        status = read_structured(r, &structured);
    }
    if (status == FG_OK && structured.name != NULL) {
        if (found->name != NULL) {
            return twice(r, found, structured.name);
        }
        *found = structured;
    }
    for (size_t i = 0; i < sizeof plain_names / sizeof plain_names[0] && status == FG_OK; i++) {
        const fg_json_node *node = fg_api_value(r, plain_names[i].id);
        if (node == NULL) {
            continue;
        }
        const char *name = fg_api_param_name(plain_names[i].id);
        if (found->name != NULL) {
            return twice(r, found, name);
        }
        *found = (wish){ .name = name, .kind = plain_names[i].kind, .node = node };
    }
    return status;
}

/* The grammar's text: a string as it is, but for lists; any other value as JSON. */
static fg_status text_of(fg_api_reading *r, const wish *found, const char **text_out,
                         size_t *length_out)
{
    bool is_json = found->kind == FG_GRAMMAR_SCHEMA || found->kind == FG_GRAMMAR_CHOICE;
    *text_out = "";
    *length_out = 0;
    if (found->node == NULL) {
        return FG_OK;
    }
    if (fg_json_is(found->node, FG_JSON_STRING)) {
        const char *text = fg_json_string(found->node, length_out);
        *text_out = fg_arena_strndup(r->arena, text, *length_out);
        return *text_out != NULL ? FG_OK : fg_api_no_memory(r);
    }
    if (!is_json) {
        return fg_api_wrong_type(r, found->name, "a string", found->node);
    }
    fg_buf out;
    fg_buf_init(&out, FG_LIMIT_GRAMMAR_BYTES + 1);
    bool written = fg_json_write(found->node, &out);
    *length_out = out.size;
    *text_out = written ? fg_arena_strndup(r->arena, out.data, out.size) : NULL;
    bool full = out.size >= FG_LIMIT_GRAMMAR_BYTES;
    fg_buf_deinit(&out);
    if (!written && full) {
        *length_out = FG_LIMIT_GRAMMAR_BYTES + 1; /* which is refused */
        *text_out = "";
    }
    return *text_out != NULL ? FG_OK : fg_api_no_memory(r);
}

/* What does not go together with a text that has its own end. */
static fg_status check_others(fg_api_reading *r, const wish *found)
{
    const fg_wire_params *params = &r->request->params;
    const char *other = params->ignore_eos       ? "ignore_eos"
                        : params->min_tokens > 0 ? "min_tokens"
                                                 : NULL;
    return other == NULL ? FG_OK
                         : fg_api_wrong_value(r, other,
                                              "'%s' does not go together with '%s', which says "
                                              "where an answer ends",
                                              other, found->name);
}

fg_status fg_api_hold_to(fg_api_reading *r, const char *name, fg_grammar_kind kind,
                         const char *text, size_t length)
{
    fg_error err = { 0 };
    fg_grammar *grammar;
    if (length > FG_LIMIT_GRAMMAR_BYTES) {
        return fg_api_wrong_value(r, name, "'%s' is longer than %u bytes", name,
                                  FG_LIMIT_GRAMMAR_BYTES);
    }
    /* Workers compile it for themselves: here only what is wrong with it is found out. */
    fg_status status = fg_grammar_compile(kind, text, length, &grammar, &err);
    if (status == FG_OK) {
        status = fg_automaton_check(grammar, &err);
        fg_grammar_destroy(grammar);
    }
    if (status != FG_OK) {
        return status == FG_BAD_INPUT ? fg_api_wrong_value(r, name, "%s", err.text)
                                      : fg_api_no_memory(r);
    }
    r->request->params.grammar_kind = (uint32_t)kind;
    r->request->params.grammar = text;
    r->request->params.grammar_bytes = length;
    return FG_OK;
}

fg_status fg_api_read_grammar(fg_api_reading *r)
{
    wish found = { 0 };
    const char *text;
    size_t length;
    fg_tool_choice calls = r->request->tools.choice;
    bool forced = calls == FG_TOOL_CHOICE_REQUIRED || calls == FG_TOOL_CHOICE_NAMED;
    fg_status status = find_wish(r, &found);
    if (status == FG_OK && forced) {
        if (found.name != NULL) {
            return twice(r, &found, "tool_choice");
        }
        found.name = "tool_choice";
    }
    if (status != FG_OK || found.name == NULL) {
        return status;
    }
    status = check_others(r, &found);
    if (status == FG_OK && forced) {
        return fg_api_force_calls(r);
    }
    if (status == FG_OK) {
        status = text_of(r, &found, &text, &length);
    }
    return status == FG_OK ? fg_api_hold_to(r, found.name, found.kind, text, length) : status;
}
