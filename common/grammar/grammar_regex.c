/* Regular expressions as ECMA-262 and Python write them, as far as they are regular. */
#include <string.h>

#include "common/base/utf8.h"
#include "common/grammar/grammar_internal.h"

typedef struct reader {
    fg_build *build;
    const char *text;
    size_t length;
    size_t at;
    fg_spelling spelling;
    bool search;
    const char *where;
    unsigned depth;
} reader;

enum { CODE_MOST = 0x10FFFF };

static fg_gnode *fail(reader *r, size_t at, const char *what)
{
    return fg_build_fail(r->build, "%s: %s at byte %zu", r->where, what, at);
}

static bool more(const reader *r)
{
    return r->at < r->length && fg_build_ok(r->build);
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

/* The text is valid UTF-8. */
static uint32_t take_char(reader *r)
{
    uint32_t code = 0;
    size_t taken = fg_utf8_decode(r->text + r->at, r->length - r->at, &code);
    r->at += taken == 0 ? 1 : taken;
    return code;
}

/* So many hexadecimal digits. */
static bool take_hex(reader *r, unsigned digits, uint32_t *code_out)
{
    uint32_t code = 0;
    for (unsigned i = 0; i < digits; i++) {
        char c = r->at + i < r->length ? r->text[r->at + i] : '\0';
        uint32_t digit = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                         : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
                         : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10)
                                                : 16;
        if (digit == 16) {
            return false;
        }
        code = code << 4 | digit;
    }
    r->at += digits;
    *code_out = code;
    return true;
}

/* Behind "\u": four digits, two halves of a pair, or digits in braces. */
static uint32_t take_unicode(reader *r)
{
    size_t began = r->at;
    uint32_t code = 0;
    if (take(r, "{")) {
        size_t digits = 0;
        while (digits < 7 && r->at + digits < r->length && r->text[r->at + digits] != '}') {
            digits++;
        }
        if (digits == 0 || digits == 7 || !take_hex(r, (unsigned)digits, &code) || !take(r, "}")) {
            fail(r, began, "\\u{} takes one to six hexadecimal digits");
        }
    } else if (!take_hex(r, 4, &code)) {
        fail(r, began, "\\u takes four hexadecimal digits");
    } else if (code >= 0xD800 && code <= 0xDBFF) {
        uint32_t low = 0;
        if (!take(r, "\\u") || !take_hex(r, 4, &low) || low < 0xDC00 || low > 0xDFFF) {
            fail(r, began, "half of a surrogate pair");
        }
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else if (code >= 0xDC00 && code <= 0xDFFF) {
        fail(r, began, "half of a surrogate pair");
    }
    if (code > CODE_MOST) {
        fail(r, began, "no character has this number");
    }
    return code;
}

static void add_word(fg_build *build, fg_chars *chars)
{
    fg_chars_add(build, chars, '0', '9');
    fg_chars_add(build, chars, 'A', 'Z');
    fg_chars_add(build, chars, '_', '_');
    fg_chars_add(build, chars, 'a', 'z');
}

/* What either ECMA-262 or Python takes for white space beyond ASCII's. */
static void add_more_space(fg_build *build, fg_chars *chars)
{
    static const fg_char_range ranges[] = {
        { 0x1C, 0x1F },     { 0x85, 0x85 },     { 0xA0, 0xA0 },     { 0x1680, 0x1680 },
        { 0x2000, 0x200A }, { 0x2028, 0x2029 }, { 0x202F, 0x202F }, { 0x205F, 0x205F },
        { 0x3000, 0x3000 }, { 0xFEFF, 0xFEFF },
    };
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        fg_chars_add(build, chars, ranges[i].first, ranges[i].last);
    }
}

/* \d \w \s and their opposites. `inverted`: what is added is what the class does not have. What is no space is none to
 * anybody who checks the text later. */
static bool add_class(fg_build *build, char letter, bool inverted, fg_chars *chars)
{
    fg_chars some = { 0 };
    switch (letter) {
    case 'd':
    case 'D':
        fg_chars_add(build, &some, '0', '9');
        break;
    case 'w':
    case 'W':
        add_word(build, &some);
        break;
    case 's':
    case 'S':
        fg_chars_add(build, &some, '\t', '\r');
        fg_chars_add(build, &some, ' ', ' ');
        if (inverted != (letter == 'S')) {
            add_more_space(build, &some);
        }
        break;
    default:
        return false;
    }
    if (letter < 'a') {
        fg_chars_invert(build, &some);
    }
    for (uint32_t i = 0; i < some.count && fg_build_ok(build); i++) {
        fg_chars_add(build, chars, some.ranges[i].first, some.ranges[i].last);
    }
    return true;
}

/* Behind a backslash. True: a class, added to `chars`; false: one character. */
static bool take_escape(reader *r, bool in_class, bool inverted, fg_chars *chars,
                        uint32_t *code_out)
{
    size_t began = r->at - 1;
    if (!more(r)) {
        fail(r, began, "a lone backslash");
        return false;
    }
    char c = r->text[r->at];
    if (add_class(r->build, c, inverted, chars)) {
        r->at++;
        return true;
    }
    *code_out = take_char(r);
    static const char letters[] = "n\nr\rt\tf\fv\v";
    for (size_t i = 0; i + 1 < sizeof letters; i += 2) {
        if (letters[i] == c) {
            *code_out = (uint32_t)letters[i + 1];
            return false;
        }
    }
    bool digit_next = r->at < r->length && r->text[r->at] >= '0' && r->text[r->at] <= '9';
    if (c == 'u') {
        *code_out = take_unicode(r);
    } else if (c == 'x') {
        if (!take_hex(r, 2, code_out)) {
            fail(r, began, "\\x takes two hexadecimal digits");
        }
    } else if (c == '0' && !digit_next) {
        *code_out = 0;
    } else if (c == 'b' && in_class) {
        *code_out = '\b';
    } else if (c >= '0' && c <= '9') {
        fail(r, began, "references to groups are not supported");
    } else if (c == 'b' || c == 'B' || c == 'A' || c == 'Z' || c == 'z' || c == 'G') {
        fail(r, began, "assertions such as \\b are not supported");
    } else if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
        fail(r, began, "an escape that is not supported");
    }
    return false;
}

/* One end of a range, or a class. */
static bool take_member(reader *r, bool inverted, fg_chars *chars, uint32_t *code_out)
{
    if (take(r, "\\")) {
        return take_escape(r, true, inverted, chars, code_out);
    }
    *code_out = take_char(r);
    return false;
}

static fg_gnode *read_class(reader *r)
{
    size_t began = r->at - 1;
    fg_chars chars = { 0 };
    bool inverted = take(r, "^");
    bool first = true;
    if (next_is(r, "[:")) {
        return fail(r, began, "classes such as [:alpha:] are not supported");
    }
    /* A bracket right at the beginning is Python's own member, and ECMA-262's end: neither is meant often. */
    while (more(r) && !next_is(r, "]")) {
        uint32_t low = 0, high = 0;
        bool is_class = take_member(r, inverted, &chars, &low);
        first = false;
        bool range = next_is(r, "-") && r->at + 1 < r->length && r->text[r->at + 1] != ']';
        if (!range) {
            if (!is_class) {
                fg_chars_add(r->build, &chars, low, low);
            }
            continue;
        }
        r->at++;
        if (is_class || take_member(r, inverted, &chars, &high)) {
            return fail(r, began, "a class is no end of a range");
        }
        if (high < low) {
            return fail(r, began, "a range that ends before it begins");
        }
        fg_chars_add(r->build, &chars, low, high);
    }
    if (!fg_build_ok(r->build)) {
        return NULL;
    }
    if (!take(r, "]")) {
        return fail(r, began, "a class without its end");
    }
    if (first) {
        return fail(r, began, "an empty class (write \\] for a bracket)");
    }
    if (inverted) {
        fg_chars_invert(r->build, &chars);
    }
    return fg_build_chars(r->build, &chars, r->spelling);
}

static fg_gnode *read_alternatives(reader *r);

static fg_gnode *read_group(reader *r)
{
    size_t began = r->at - 1;
    if (take(r, "?")) {
        if (take(r, "P<") || (next_is(r, "<") && !next_is(r, "<=") && !next_is(r, "<!"))) {
            while (more(r) && !take(r, ">")) {
                r->at++;
            }
        } else if (!take(r, ":")) {
            return fail(r, began, "groups such as (?= are not supported");
        }
    }
    if (++r->depth > FG_GRAMMAR_NESTING_MAX) {
        return fail(r, began, "groups nest too deeply");
    }
    fg_gnode *node = read_alternatives(r);
    r->depth--;
    if (fg_build_ok(r->build) && !take(r, ")")) {
        return fail(r, began, "a group without its end");
    }
    return node;
}

static fg_gnode *read_dot(reader *r)
{
    fg_chars chars = { 0 };
    fg_chars_add(r->build, &chars, '\n', '\n');
    fg_chars_add(r->build, &chars, '\r', '\r');
    fg_chars_add(r->build, &chars, 0x2028, 0x2029);
    fg_chars_invert(r->build, &chars);
    return fg_build_chars(r->build, &chars, r->spelling);
}

static fg_gnode *read_atom(reader *r)
{
    size_t began = r->at;
    fg_chars chars = { 0 };
    uint32_t code = 0;
    if (take(r, "(")) {
        return read_group(r);
    }
    if (take(r, "[")) {
        return read_class(r);
    }
    if (take(r, ".")) {
        return read_dot(r);
    }
    if (take(r, "\\")) {
        if (!take_escape(r, false, false, &chars, &code)) {
            fg_chars_add(r->build, &chars, code, code);
        }
        return fg_build_chars(r->build, &chars, r->spelling);
    }
    code = take_char(r);
    if (code == '*' || code == '+' || code == '?') {
        return fail(r, began, "nothing to repeat");
    }
    if (code == '^' || code == '$') {
        return fail(r, began, "^ and $ are supported at the ends only");
    }
    fg_chars_add(r->build, &chars, code, code);
    return fg_build_chars(r->build, &chars, r->spelling);
}

static bool take_number(reader *r, uint32_t *number_out)
{
    return fg_repeat_number(r->text, r->length, &r->at, number_out);
}

/* {n} {n,} {n,m}; anything else that begins with a brace stands for itself. */
static bool take_braces(reader *r, uint32_t *least, uint32_t *most)
{
    size_t began = r->at;
    if (take(r, "{") && take_number(r, least)) {
        *most = *least;
        if (take(r, ",") && !take_number(r, most)) {
            *most = FG_REPEAT_ENDLESS;
        }
        if (take(r, "}")) {
            return true;
        }
    }
    r->at = began;
    return false;
}

static bool take_quantifier(reader *r, uint32_t *least, uint32_t *most)
{
    *least = 0;
    *most = FG_REPEAT_ENDLESS;
    if (take(r, "*")) {
        return true;
    }
    if (take(r, "+")) {
        *least = 1;
        return true;
    }
    if (take(r, "?")) {
        *most = 1;
        return true;
    }
    return take_braces(r, least, most);
}

static fg_gnode *read_repeated(reader *r)
{
    size_t began = r->at;
    uint32_t least, most;
    fg_gnode *atom = read_atom(r);
    if (!fg_build_ok(r->build) || !take_quantifier(r, &least, &most)) {
        return atom;
    }
    if (least > FG_GRAMMAR_REPEAT_MAX ||
        (most != FG_REPEAT_ENDLESS && most > FG_GRAMMAR_REPEAT_MAX)) {
        return fail(r, began, "too many repetitions");
    }
    if (most < least) {
        return fail(r, began, "a repetition whose most is below its least");
    }
    take(r, "?"); /* lazy: which texts match is the same */
    size_t behind = r->at;
    uint32_t ignored;
    if (next_is(r, "+") || take_quantifier(r, &ignored, &ignored)) {
        return fail(r, behind, "a repetition of a repetition");
    }
    return fg_build_repeat(r->build, atom, least, most);
}

/* Any characters, for where a search may begin and end. */
static fg_gnode *anything(reader *r)
{
    if (r->spelling == FG_SPELL_JSON) {
        return fg_build_repeat(r->build, fg_json_char_node(r->build), 0, FG_REPEAT_ENDLESS);
    }
    fg_chars all = { 0 };
    fg_chars_add(r->build, &all, 0, CODE_MOST);
    return fg_build_repeat(r->build, fg_build_chars(r->build, &all, r->spelling), 0,
                           FG_REPEAT_ENDLESS);
}

/* One alternative. Only those outside of all groups have ends. */
static fg_gnode *read_sequence(reader *r)
{
    fg_glist list = { 0 };
    bool outermost = r->depth == 0;
    bool from_begin = outermost && take(r, "^");
    bool to_end = false;
    if (outermost && r->search && !from_begin) {
        fg_list_add(r->build, &list, anything(r));
    }
    while (more(r) && !next_is(r, "|") && !next_is(r, ")")) {
        if (outermost && next_is(r, "$") && (r->at + 1 == r->length || r->text[r->at + 1] == '|')) {
            to_end = true;
            r->at++;
            break;
        }
        fg_list_add(r->build, &list, read_repeated(r));
    }
    if (outermost && r->search && !to_end) {
        fg_list_add(r->build, &list, anything(r));
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

fg_gnode *fg_regex_build(fg_build *build, const char *text, size_t length, fg_spelling spelling,
                         bool search, const char *where)
{
    reader r = { .build = build,
                 .text = text,
                 .length = length,
                 .spelling = spelling,
                 .search = search,
                 .where = where };
    fg_gnode *node = read_alternatives(&r);
    if (fg_build_ok(build) && r.at < r.length) {
        return fail(&r, r.at, "a bracket that closes nothing");
    }
    return node;
}
