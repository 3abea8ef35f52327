/* GBNF, as llama.cpp's users write it. */
#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/utf8.h"
#include "common/grammar/grammar_internal.h"

typedef struct reader {
    fg_build *build;
    const char *text;
    size_t length;
    size_t at;
    unsigned depth;
    uint32_t buckets[256]; /* rule + 1 */
    struct named *named;
    uint32_t named_count;
} reader;

/* A rule by its name, defined or only called so far. */
typedef struct named {
    const char *name;
    size_t length;
    uint32_t rule;
    uint32_t next;    /* with the same hash, + 1 */
    size_t called_at; /* the first call */
} named;

enum { RULES_MAX = 16384, NAME_MAX_BYTES = 128, CODE_MOST = 0x10FFFF };

static unsigned line_of(const reader *r, size_t at)
{
    unsigned line = 1;
    for (size_t i = 0; i < at && i < r->length; i++) {
        line += r->text[i] == '\n';
    }
    return line;
}

static fg_gnode *fail(reader *r, size_t at, const char *what)
{
    return fg_build_fail(r->build, "GBNF: %s in line %u", what, line_of(r, at));
}

static bool next_is(const reader *r, const char *text)
{
    size_t length = strlen(text);
    return r->length - r->at >= length && memcmp(r->text + r->at, text, length) == 0;
}

static bool take(reader *r, const char *text)
{
    bool is = next_is(r, text);
    r->at += is ? strlen(text) : 0;
    return is;
}

static bool more(const reader *r)
{
    return r->at < r->length && fg_build_ok(r->build);
}

static void skip_space(reader *r)
{
    while (r->at < r->length) {
        char c = r->text[r->at];
        if (c == '#') {
            while (r->at < r->length && r->text[r->at] != '\n') {
                r->at++;
            }
        } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
            r->at++;
        } else {
            return;
        }
    }
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

static size_t name_length(const reader *r)
{
    size_t length = 0;
    while (r->at + length < r->length && is_name(r->text[r->at + length])) {
        length++;
    }
    return length;
}

/* Whether a rule begins here: a name and "::=". */
static bool rule_begins(const reader *r)
{
    reader ahead = { .text = r->text, .length = r->length, .at = r->at };
    size_t length = name_length(&ahead);
    ahead.at += length;
    skip_space(&ahead);
    return length > 0 && next_is(&ahead, "::=");
}

/* The rule of a name, made when it is first met. 0 fails the build. */
static uint32_t rule_named(reader *r, const char *name, size_t length)
{
    uint32_t *bucket = &r->buckets[fg_hash64(name, length, 0) % 256];
    for (uint32_t i = *bucket; i != 0; i = r->named[i - 1].next) {
        if (r->named[i - 1].length == length && memcmp(r->named[i - 1].name, name, length) == 0) {
            return r->named[i - 1].rule;
        }
    }
    if (length > NAME_MAX_BYTES || r->named_count == RULES_MAX) {
        fail(r, r->at, "too many rules, or too long a name");
        return 0;
    }
    char *copy = (char *)fg_build_alloc(r->build, length + 1, 1);
    if (copy == NULL) {
        return 0;
    }
    memcpy(copy, name, length);
    uint32_t rule = fg_build_rule(r->build, copy);
    r->named[r->named_count] = (named){ copy, length, rule, *bucket, r->at };
    *bucket = ++r->named_count;
    return rule;
}

static bool take_hex(reader *r, unsigned digits, uint32_t *code_out)
{
    uint32_t code = 0;
    if (r->length - r->at < digits) {
        return false;
    }
    for (unsigned i = 0; i < digits; i++) {
        unsigned char c = (unsigned char)r->text[r->at + i];
        if (c >= '0' && c <= '9') {
            code = code << 4 | (uint32_t)(c - '0');
        } else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') {
            code = code << 4 | (uint32_t)((c | 0x20) - 'a' + 10);
        } else {
            return false;
        }
    }
    r->at += digits;
    *code_out = code;
    return code <= CODE_MOST && (code < 0xD800 || code > 0xDFFF);
}

/* One character of a literal or a class. */
static uint32_t take_char(reader *r)
{
    size_t began = r->at;
    uint32_t code = 0;
    if (!take(r, "\\")) {
        r->at += fg_utf8_decode(r->text + r->at, r->length - r->at, &code);
        return code;
    }
    char c = r->at < r->length ? r->text[r->at++] : '\0';
    switch (c) {
    case 'n':
        return '\n';
    case 'r':
        return '\r';
    case 't':
        return '\t';
    case '"':
    case '\\':
    case '[':
    case ']':
    case '-':
    case '/':
    case '^':
        return (unsigned char)c;
    case 'x':
    case 'u':
    case 'U':
        if (take_hex(r, c == 'x' ? 2 : c == 'u' ? 4 : 8, &code)) {
            return code;
        }
        break;
    default:
        break;
    }
    fail(r, began, "an escape that is not known");
    return 0;
}

static fg_gnode *char_node(reader *r, uint32_t code)
{
    fg_chars one = { 0 };
    fg_chars_add(r->build, &one, code, code);
    return fg_build_chars(r->build, &one, FG_SPELL_PLAIN);
}

static fg_gnode *read_literal(reader *r)
{
    size_t began = r->at;
    fg_glist list = { 0 };
    while (more(r) && !next_is(r, "\"")) {
        if (next_is(r, "\n")) {
            return fail(r, began, "a literal without its end");
        }
        fg_list_add(r->build, &list, char_node(r, take_char(r)));
    }
    if (fg_build_ok(r->build) && !take(r, "\"")) {
        return fail(r, began, "a literal without its end");
    }
    return fg_build_ok(r->build) ? fg_build_cat(r->build, &list) : NULL;
}

static fg_gnode *read_class(reader *r)
{
    size_t began = r->at;
    fg_chars chars = { 0 };
    bool inverted = take(r, "^");
    while (more(r) && !next_is(r, "]")) {
        uint32_t low = take_char(r);
        uint32_t high = low;
        if (next_is(r, "-") && r->at + 1 < r->length && r->text[r->at + 1] != ']') {
            r->at++;
            high = take_char(r);
        }
        if (high < low) {
            return fail(r, began, "a range that ends before it begins");
        }
        fg_chars_add(r->build, &chars, low, high);
    }
    if (fg_build_ok(r->build) && !take(r, "]")) {
        return fail(r, began, "a class without its end");
    }
    if (inverted) {
        fg_chars_invert(r->build, &chars);
    }
    return fg_build_ok(r->build) ? fg_build_chars(r->build, &chars, FG_SPELL_PLAIN) : NULL;
}

static fg_gnode *read_alternatives(reader *r);

static fg_gnode *read_atom(reader *r)
{
    size_t began = r->at;
    if (take(r, "\"")) {
        return read_literal(r);
    }
    if (take(r, "[")) {
        return read_class(r);
    }
    if (take(r, ".")) {
        fg_chars all = { 0 };
        fg_chars_add(r->build, &all, 0, CODE_MOST);
        return fg_build_chars(r->build, &all, FG_SPELL_PLAIN);
    }
    if (take(r, "(")) {
        if (++r->depth > FG_GRAMMAR_NESTING_MAX) {
            return fail(r, began, "groups nest too deeply");
        }
        fg_gnode *node = read_alternatives(r);
        r->depth--;
        skip_space(r);
        if (fg_build_ok(r->build) && !take(r, ")")) {
            return fail(r, began, "a group without its end");
        }
        return node;
    }
    size_t length = name_length(r);
    if (length == 0) {
        return fail(r, began, "something that is no part of a rule");
    }
    uint32_t rule = rule_named(r, r->text + r->at, length);
    r->at += length;
    return fg_build_call(r->build, rule);
}

static bool take_number(reader *r, uint32_t *number_out)
{
    return fg_repeat_number(r->text, r->length, &r->at, number_out);
}

/* Behind a brace: "3}", "3,}", "3,5}". */
static void take_braces(reader *r, uint32_t *least, uint32_t *most)
{
    size_t began = r->at;
    skip_space(r);
    bool good = take_number(r, least);
    *most = *least;
    skip_space(r);
    if (take(r, ",")) {
        skip_space(r);
        if (!take_number(r, most)) {
            *most = FG_REPEAT_ENDLESS;
        }
        skip_space(r);
    }
    if (!take(r, "}") || !good || *most < *least) {
        fail(r, began, "a repetition is {n}, {n,} or {n,m}");
    } else if (*least > FG_GRAMMAR_REPEAT_MAX ||
               (*most != FG_REPEAT_ENDLESS && *most > FG_GRAMMAR_REPEAT_MAX)) {
        fail(r, began, "too many repetitions");
    }
}

static fg_gnode *read_repeated(reader *r)
{
    fg_gnode *node = read_atom(r);
    for (unsigned times = 0; more(r); times++) {
        uint32_t least = 0, most = FG_REPEAT_ENDLESS;
        reader ahead = { .text = r->text, .length = r->length, .at = r->at };
        skip_space(&ahead);
        if (take(&ahead, "+")) {
            least = 1;
        } else if (take(&ahead, "?")) {
            most = 1;
        } else if (!take(&ahead, "*") && !next_is(&ahead, "{")) {
            break;
        }
        r->at = ahead.at;
        if (take(r, "{")) {
            take_braces(r, &least, &most);
        }
        if (times > FG_GRAMMAR_NESTING_MAX) {
            return fail(r, r->at, "too many repetitions of a repetition");
        }
        node = fg_build_repeat(r->build, node, least, most);
    }
    return node;
}

static fg_gnode *read_sequence(reader *r)
{
    fg_glist list = { 0 };
    for (skip_space(r); more(r) && !next_is(r, "|") && !next_is(r, ")") && !rule_begins(r);
         skip_space(r)) {
        fg_list_add(r->build, &list, read_repeated(r));
    }
    return fg_build_ok(r->build) ? fg_build_cat(r->build, &list) : NULL;
}

static fg_gnode *read_alternatives(reader *r)
{
    fg_glist list = { 0 };
    do {
        fg_list_add(r->build, &list, read_sequence(r));
    } while (fg_build_ok(r->build) && take(r, "|"));
    return fg_build_ok(r->build) ? fg_build_alt(r->build, &list) : NULL;
}

static void read_rule(reader *r)
{
    size_t began = r->at;
    size_t length = name_length(r);
    if (!rule_begins(r)) {
        fail(r, began, "no rule (a name and ::=) begins");
        return;
    }
    uint32_t rule = rule_named(r, r->text + r->at, length);
    r->at += length;
    skip_space(r);
    take(r, "::=");
    if (rule != 0 && r->build->rules[rule] != NULL) {
        fail(r, began, "a rule that was defined before");
        return;
    }
    fg_build_define(r->build, rule, read_alternatives(r));
}

uint32_t fg_gbnf_build(fg_build *build, const char *text, size_t length)
{
    reader *r = (reader *)fg_build_alloc(build, 1, sizeof *r);
    named *names = (named *)fg_build_alloc(build, RULES_MAX, sizeof *names);
    if (r == NULL || names == NULL) {
        return 0;
    }
    *r = (reader){ .build = build, .text = text, .length = length, .named = names };
    for (skip_space(r); more(r); skip_space(r)) {
        read_rule(r);
    }
    for (uint32_t i = 0; i < r->named_count && fg_build_ok(build); i++) {
        if (build->rules[names[i].rule] == NULL) {
            fg_build_fail(build, "GBNF: rule \"%s\", which line %u calls, is not defined",
                          names[i].name, line_of(r, names[i].called_at));
        }
    }
    uint32_t root = rule_named(r, "root", 4);
    if (fg_build_ok(build) && build->rules[root] == NULL) {
        fg_build_fail(build, "GBNF: there is no rule \"root\"");
    }
    return root;
}
