#include "common/grammar/grammar.h"

#include "common/base/mem.h"
#include "common/base/utf8.h"
#include "common/grammar/grammar_internal.h"

void fg_grammar_destroy(fg_grammar *grammar)
{
    if (grammar != NULL) {
        fg_mem_free(grammar->positions);
        fg_mem_free(grammar->sets);
        fg_mem_free(grammar);
    }
}

size_t fg_grammar_bytes(const fg_grammar *grammar)
{
    return sizeof *grammar + grammar->count * sizeof *grammar->positions +
           grammar->set_count * sizeof *grammar->sets;
}

static uint32_t rule_with(fg_build *build, fg_gnode *node)
{
    uint32_t rule = fg_build_rule(build, "root");
    fg_build_define(build, rule, node);
    return rule;
}

static fg_gnode *choice_node(fg_build *build, const fg_json_node *root)
{
    size_t count = fg_json_size(root);
    fg_text *texts = (fg_text *)fg_build_alloc(build, count, sizeof *texts);
    if (!fg_json_is(root, FG_JSON_ARRAY) || count == 0) {
        return fg_build_fail(build, "a choice is an array of strings with at least one of them");
    }
    for (size_t i = 0; texts != NULL && i < count; i++) {
        texts[i].bytes = fg_json_string(fg_json_at(root, i), &texts[i].length);
        if (texts[i].bytes == NULL) {
            return fg_build_fail(build, "[%zu]: a choice is a string", i);
        }
    }
    return texts == NULL ? NULL : fg_build_texts(build, texts, count);
}

static fg_gnode *member_text(fg_build *build, const fg_json_node *object, const char *name)
{
    size_t length = 0;
    const char *text = fg_json_string(fg_json_get(object, name), &length);
    return text != NULL ? fg_build_bytes(build, text, length)
                        : fg_build_fail(build, "calls need a text \"%s\"", name);
}

static fg_gnode *calls_node(fg_build *build, const fg_json_node *root)
{
    const fg_json_node *calls = fg_json_get(root, "calls");
    size_t count = fg_json_size(calls);
    bool many = false;
    fg_glist list = { 0 };
    if (!fg_json_is(calls, FG_JSON_ARRAY) || count == 0 ||
        !fg_json_bool(fg_json_get(root, "many"), &many)) {
        return fg_build_fail(build, "calls need a boolean \"many\" and at least one of \"calls\"");
    }
    for (size_t i = 0; i < count && fg_build_ok(build); i++) {
        const fg_json_node *call = fg_json_at(calls, i);
        const fg_json_node *schema = fg_json_get(call, "schema");
        if (schema == NULL) {
            return fg_build_fail(build, "calls need a \"schema\"");
        }
        fg_list_add(build, &list,
                    fg_build_seq(build, 3, member_text(build, call, "before"),
                                 fg_build_call(build, fg_schema_build(build, schema)),
                                 member_text(build, call, "after")));
    }
    uint32_t one = rule_with(build, fg_build_alt(build, &list));
    fg_gnode *more =
        fg_build_seq(build, 2, member_text(build, root, "between"), fg_build_call(build, one));
    return fg_build_seq(build, 4, member_text(build, root, "open"), fg_build_call(build, one),
                        fg_build_repeat(build, more, 0, many ? FG_REPEAT_ENDLESS : 0),
                        member_text(build, root, "close"));
}

/* What is read from JSON; their document lives as long as the build does. */
static uint32_t root_of_json(fg_build *build, fg_grammar_kind kind, const fg_json *json)
{
    const fg_json_node *root = fg_json_root(json);
    switch (kind) {
    case FG_GRAMMAR_SCHEMA:
        return fg_schema_build(build, root);
    case FG_GRAMMAR_CALLS:
        return rule_with(build, calls_node(build, root));
    default:
        return rule_with(build, choice_node(build, root));
    }
}

static bool is_utf8(const char *text, size_t length)
{
    while (length > 0) {
        size_t taken = fg_utf8_length(text, length);
        if (taken == 0) {
            return false;
        }
        text += taken;
        length -= taken;
    }
    return true;
}

fg_status fg_grammar_compile(fg_grammar_kind kind, const char *text, size_t length,
                             fg_grammar **grammar_out, fg_error *err)
{
    if (kind != FG_GRAMMAR_JSON && length > FG_GRAMMAR_TEXT_MAX) {
        return fg_fail(err, FG_BAD_INPUT, "more than %d bytes", FG_GRAMMAR_TEXT_MAX);
    }
    if ((kind == FG_GRAMMAR_REGEX || kind == FG_GRAMMAR_GBNF) && !is_utf8(text, length)) {
        return fg_fail(err, FG_BAD_INPUT, "not valid UTF-8");
    }
    fg_json *json = NULL;
    if (kind == FG_GRAMMAR_SCHEMA || kind == FG_GRAMMAR_CHOICE || kind == FG_GRAMMAR_CALLS) {
        fg_status status = fg_json_parse(text, length, &json, err);
        if (status != FG_OK) {
            return status;
        }
    }
    fg_build build;
    fg_status status = fg_build_init(&build, err);
    if (status == FG_OK) {
        uint32_t root = 0;
        switch (kind) {
        case FG_GRAMMAR_NONE:
            fg_build_fail(&build, "no kind of grammar");
            break;
        case FG_GRAMMAR_JSON:
            root = rule_with(&build, fg_json_object_node(&build));
            break;
        case FG_GRAMMAR_SCHEMA:
        case FG_GRAMMAR_CHOICE:
        case FG_GRAMMAR_CALLS:
            root = root_of_json(&build, kind, json);
            break;
        case FG_GRAMMAR_REGEX:
            root = rule_with(&build,
                             fg_regex_build(&build, text, length, FG_SPELL_PLAIN, false, "regex"));
            break;
        case FG_GRAMMAR_GBNF:
            root = fg_gbnf_build(&build, text, length);
            break;
        }
        status = fg_build_link(&build, root, grammar_out);
        fg_build_deinit(&build);
    }
    fg_json_destroy(json);
    return status;
}
