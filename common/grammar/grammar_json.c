/* The parts of JSON. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/utf8.h"
#include "common/grammar/grammar_internal.h"

enum { INDENT_SPACES = 64, INDENT_TABS = 16, DIGITS_WHOLE = 18, DIGITS_FRACTION = 18 };

static fg_gnode *byte_range(fg_build *build, unsigned first, unsigned last)
{
    fg_byte_set set = { { 0 } };
    fg_byte_set_add(&set, first, last);
    return fg_build_set(build, &set);
}

static fg_gnode *any_of(fg_build *build, const char *bytes)
{
    fg_byte_set set = { { 0 } };
    for (; *bytes != '\0'; bytes++) {
        fg_byte_set_add(&set, (unsigned char)*bytes, (unsigned char)*bytes);
    }
    return fg_build_set(build, &set);
}

static fg_gnode *digits(fg_build *build, uint32_t least, uint32_t most)
{
    return fg_build_repeat(build, byte_range(build, '0', '9'), least, most);
}

/* A call of a rule that is made when it is first needed. */
static fg_gnode *shared(fg_build *build, uint32_t *rule, const char *name,
                        fg_gnode *(*make)(fg_build *build))
{
    if (*rule == 0) {
        *rule = fg_build_rule(build, name);
        fg_build_define(build, *rule, make(build));
    }
    return fg_build_call(build, *rule);
}

static fg_gnode *make_space(fg_build *build)
{
    fg_gnode *spaces = fg_build_repeat(build, fg_build_text(build, " "), 0, INDENT_SPACES);
    fg_gnode *tabs = fg_build_repeat(build, fg_build_text(build, "\t"), 1, INDENT_TABS);
    return fg_build_or(
        build, 3, fg_build_empty(build), fg_build_text(build, " "),
        fg_build_seq(build, 2, fg_build_text(build, "\n"), fg_build_or(build, 2, spaces, tabs)));
}

fg_gnode *fg_json_space_node(fg_build *build)
{
    return shared(build, &build->json_space, "white space", make_space);
}

static fg_gnode *plain_without(fg_build *build, const fg_chars *without)
{
    fg_chars chars = { 0 };
    fg_chars_add(build, &chars, 0x20, '"' - 1);
    fg_chars_add(build, &chars, '"' + 1, '\\' - 1);
    fg_chars_add(build, &chars, '\\' + 1, 0x10FFFF);
    fg_chars_remove(build, &chars, without);
    return fg_build_chars(build, &chars, FG_SPELL_PLAIN);
}

static fg_gnode *make_plain(fg_build *build)
{
    fg_chars none = { 0 };
    return plain_without(build, &none);
}

/* Four hexadecimal digits that are neither 0000 nor half of a pair, or two halves. */
static fg_gnode *unicode_escape(fg_build *build)
{
    static const char hex[] = "0123456789abcdefABCDEF";
    fg_gnode *digit = any_of(build, hex);
    fg_gnode *three = fg_build_repeat(build, digit, 3, 3);
    fg_gnode *two = fg_build_repeat(build, digit, 2, 2);
    fg_gnode *zero = fg_build_text(build, "0");
    fg_gnode *some = any_of(build, hex + 1);
    fg_gnode *d = any_of(build, "dD");
    fg_gnode *pair = fg_build_seq(build, 7, d, any_of(build, "89abAB"), two,
                                  fg_build_text(build, "\\u"), d, any_of(build, "cdefCDEF"), two);
    return fg_build_or(
        build, 6, fg_build_seq(build, 2, any_of(build, "123456789abcefABCEF"), three),
        fg_build_seq(build, 3, d, any_of(build, "01234567"), two),
        fg_build_seq(build, 3, zero, some, two), fg_build_seq(build, 4, zero, zero, some, digit),
        fg_build_seq(build, 4, zero, zero, zero, some), pair);
}

static fg_gnode *make_char(fg_build *build)
{
    fg_gnode *escape =
        fg_build_or(build, 2, any_of(build, "\"\\/bfnrt"),
                    fg_build_seq(build, 2, fg_build_text(build, "u"), unicode_escape(build)));
    return fg_build_or(build, 2, make_plain(build),
                       fg_build_seq(build, 2, fg_build_text(build, "\\"), escape));
}

fg_gnode *fg_json_char_node(fg_build *build)
{
    return shared(build, &build->json_char, "a character", make_char);
}

static fg_gnode *make_string(fg_build *build)
{
    fg_gnode *quote = fg_build_text(build, "\"");
    return fg_build_seq(build, 3, quote,
                        fg_build_repeat(build, fg_json_char_node(build), 0, FG_REPEAT_ENDLESS),
                        quote);
}

fg_gnode *fg_json_string_node(fg_build *build, uint32_t least, uint32_t most)
{
    if (least == 0 && most == FG_REPEAT_ENDLESS) {
        return shared(build, &build->json_string, "a string", make_string);
    }
    fg_gnode *quote = fg_build_text(build, "\"");
    return fg_build_seq(build, 3, quote,
                        fg_build_repeat(build, fg_json_char_node(build), least, most), quote);
}

static fg_gnode *make_number(fg_build *build)
{
    fg_gnode *whole = fg_build_or(
        build, 2, fg_build_text(build, "0"),
        fg_build_seq(build, 2, byte_range(build, '1', '9'), digits(build, 0, DIGITS_WHOLE - 1)));
    fg_gnode *fraction =
        fg_build_seq(build, 2, fg_build_text(build, "."), digits(build, 1, DIGITS_FRACTION));
    fg_gnode *exponent =
        fg_build_seq(build, 3, any_of(build, "eE"), fg_build_maybe(build, any_of(build, "+-")),
                     digits(build, 1, 2));
    return fg_build_seq(build, 4, fg_build_maybe(build, fg_build_text(build, "-")), whole,
                        fg_build_maybe(build, fraction), fg_build_maybe(build, exponent));
}

fg_gnode *fg_json_number_node(fg_build *build)
{
    return shared(build, &build->json_number, "a number", make_number);
}

/* Items between brackets, with commas. */
static fg_gnode *list_of(fg_build *build, const char *open, fg_gnode *item, const char *close)
{
    fg_gnode *space = fg_json_space_node(build);
    uint32_t rule = fg_build_rule(build, "an item");
    fg_build_define(build, rule, item);
    item = fg_build_call(build, rule);
    fg_gnode *more =
        fg_build_repeat(build, fg_build_seq(build, 3, fg_build_text(build, ","), space, item), 0,
                        FG_REPEAT_ENDLESS);
    return fg_build_seq(build, 4, fg_build_text(build, open), space,
                        fg_build_maybe(build, fg_build_seq(build, 3, item, more, space)),
                        fg_build_text(build, close));
}

static fg_gnode *object_of(fg_build *build, fg_gnode *value)
{
    fg_gnode *member = fg_build_seq(build, 4, fg_json_string_node(build, 0, FG_REPEAT_ENDLESS),
                                    fg_build_text(build, ":"),
                                    fg_build_maybe(build, fg_build_text(build, " ")), value);
    return list_of(build, "{", member, "}");
}

fg_gnode *fg_json_any_node(fg_build *build, uint32_t depth)
{
    if (build->json_any[depth] == 0 && fg_build_ok(build)) {
        build->json_any[depth] = fg_build_rule(build, "any value");
        fg_glist list = { 0 };
        fg_list_add(build, &list, fg_json_string_node(build, 0, FG_REPEAT_ENDLESS));
        fg_list_add(build, &list, fg_json_number_node(build));
        fg_list_add(build, &list, fg_build_text(build, "true"));
        fg_list_add(build, &list, fg_build_text(build, "false"));
        fg_list_add(build, &list, fg_build_text(build, "null"));
        if (depth > 0) {
            fg_gnode *below = fg_json_any_node(build, depth - 1);
            fg_list_add(build, &list, object_of(build, below));
            fg_list_add(build, &list, list_of(build, "[", below, "]"));
        }
        fg_build_define(build, build->json_any[depth], fg_build_alt(build, &list));
    }
    return fg_build_call(build, build->json_any[depth]);
}

fg_gnode *fg_json_object_node(fg_build *build)
{
    return object_of(build, fg_json_any_node(build, FG_JSON_DEPTH - 1));
}

fg_gnode *fg_json_array_node(fg_build *build)
{
    return list_of(build, "[", fg_json_any_node(build, FG_JSON_DEPTH - 1), "]");
}

/* The shortest way to write each character, as most programs do. */
static void escape(fg_buf *buf, const char *text, size_t length)
{
    size_t done = 0;
    for (size_t at = 0; at < length; at++) {
        if (text[at] == '\b' || text[at] == '\f') {
            fg_buf_json_escape(buf, text + done, at - done);
            fg_buf_puts(buf, text[at] == '\b' ? "\\b" : "\\f");
            done = at + 1;
        }
    }
    fg_buf_json_escape(buf, text + done, length - done);
}

/* --- given values -------------------------------------------------------------------------------------- */

static void write_number(fg_buf *buf, double value)
{
    char text[40];
    if (fabs(value) < 1e15 && value == floor(value)) { /* as the integer that it equals */
        snprintf(text, sizeof text, "%.0f", value == 0 ? 0.0 : value);
    } else {
        double back = 0;
        for (int precision = 1; precision <= 17; precision++) {
            snprintf(text, sizeof text, "%.*g", precision, value);
            if (sscanf(text, "%lf", &back) == 1 && back == value) {
                break;
            }
        }
    }
    fg_buf_puts(buf, text);
}

static void write_value(fg_buf *buf, const fg_json_node *value)
{
    size_t length;
    const char *text = fg_json_string(value, &length);
    int64_t integer = 0;
    double real = 0;
    bool yes = false;
    switch (fg_json_type_of(value)) {
    case FG_JSON_STRING:
        fg_buf_putc(buf, '"');
        escape(buf, text, length);
        fg_buf_putc(buf, '"');
        return;
    case FG_JSON_INTEGER:
        fg_json_integer(value, &integer);
        fg_buf_printf(buf, "%lld", (long long)integer);
        return;
    case FG_JSON_REAL:
        fg_json_number(value, &real);
        write_number(buf, real);
        return;
    case FG_JSON_BOOL:
        fg_json_bool(value, &yes);
        fg_buf_puts(buf, yes ? "true" : "false");
        return;
    case FG_JSON_ARRAY:
        for (size_t i = 0; i < fg_json_size(value); i++) {
            fg_buf_putc(buf, i == 0 ? '[' : ',');
            write_value(buf, fg_json_at(value, i));
        }
        fg_buf_puts(buf, fg_json_size(value) == 0 ? "[]" : "]");
        return;
    case FG_JSON_OBJECT:
        /* In the order of the text: equal objects in another order count as others. */
        fg_buf_putc(buf, '{');
        void *cursor = NULL;
        const char *key;
        bool first = true;
        for (const fg_json_node *member; (member = fg_json_next(value, &cursor, &key)) != NULL;
             first = false) {
            fg_buf_puts(buf, first ? "\"" : ",\"");
            escape(buf, key, strlen(key));
            fg_buf_puts(buf, "\":");
            write_value(buf, member);
        }
        fg_buf_putc(buf, '}');
        return;
    case FG_JSON_NULL:
    case FG_JSON_ABSENT:
        fg_buf_puts(buf, "null");
        return;
    }
}

const char *fg_json_canonical(fg_build *build, const fg_json_node *value)
{
    fg_buf buf;
    fg_buf_init(&buf, 2 * FG_GRAMMAR_TEXT_MAX * 6);
    write_value(&buf, value);
    char *copy = NULL;
    if (buf.failed) {
        build->status = fg_fail(build->err, FG_AGAIN, "no memory for a grammar");
    } else {
        copy = (char *)fg_build_alloc(build, buf.size + 1, 1);
    }
    if (copy != NULL) {
        memcpy(copy, buf.data, buf.size);
    }
    fg_buf_deinit(&buf);
    return copy;
}

static fg_gnode *quoted(fg_build *build, const char *text, size_t length, const char *behind)
{
    fg_buf buf;
    fg_buf_init(&buf, 0);
    fg_buf_putc(&buf, '"');
    escape(&buf, text, length);
    fg_buf_puts(&buf, behind);
    fg_gnode *node = NULL;
    if (!buf.failed) {
        node = fg_build_bytes(build, buf.data, buf.size);
    } else if (fg_build_ok(build)) {
        build->status = fg_fail(build->err, FG_AGAIN, "no memory for a grammar");
    }
    fg_buf_deinit(&buf);
    return node;
}

fg_gnode *fg_json_key_node(fg_build *build, const char *name, size_t length)
{
    return fg_build_seq(build, 2, quoted(build, name, length, "\":"),
                        fg_build_maybe(build, fg_build_text(build, " ")));
}

fg_gnode *fg_json_literal_node(fg_build *build, const fg_json_node *value)
{
    fg_json_type type = fg_json_type_of(value);
    fg_glist list = { 0 };
    if (type != FG_JSON_ARRAY && type != FG_JSON_OBJECT) {
        const char *text = fg_json_canonical(build, value);
        return text == NULL ? NULL : fg_build_text(build, text);
    }
    bool array = type == FG_JSON_ARRAY;
    fg_gnode *space = fg_json_space_node(build);
    fg_list_add(build, &list, fg_build_text(build, array ? "[" : "{"));
    fg_list_add(build, &list, space);
    void *cursor = NULL;
    const char *key = NULL;
    for (size_t i = 0; i < fg_json_size(value) && fg_build_ok(build); i++) {
        const fg_json_node *item =
            array ? fg_json_at(value, i) : fg_json_next(value, &cursor, &key);
        if (i > 0) {
            fg_list_add(build, &list, fg_build_text(build, ","));
            fg_list_add(build, &list, space);
        }
        if (!array) {
            fg_list_add(build, &list, fg_json_key_node(build, key, strlen(key)));
        }
        fg_list_add(build, &list, fg_json_literal_node(build, item));
    }
    if (fg_json_size(value) > 0) {
        fg_list_add(build, &list, space);
    }
    fg_list_add(build, &list, fg_build_text(build, array ? "]" : "}"));
    return fg_build_ok(build) ? fg_build_cat(build, &list) : NULL;
}

/* --- keys that are none of some ------------------------------------------------------------------------ */

/* What comes behind `at` bytes that `names` (sorted, all of which begin so) share. */
static fg_gnode *other_key(fg_build *build, const fg_text *names, size_t count, size_t at,
                           fg_gnode *rest, unsigned depth)
{
    fg_glist list = { 0 };
    fg_chars taken = { 0 };
    bool ends_here = false;
    if (depth > FG_KEY_CHARS_MAX) {
        return fg_build_fail(build,
                             "a name of a property is too long (%d characters) beside "
                             "other properties",
                             FG_KEY_CHARS_MAX);
    }
    for (size_t first = 0; first < count && fg_build_ok(build);) {
        if (names[first].length == at) {
            ends_here = true;
            first++;
            continue;
        }
        uint32_t code = 0;
        size_t taken_bytes =
            fg_utf8_decode(names[first].bytes + at, names[first].length - at, &code);
        size_t last = first + 1;
        while (last < count && names[last].length >= at + taken_bytes &&
               memcmp(names[last].bytes + at, names[first].bytes + at, taken_bytes) == 0) {
            last++;
        }
        fg_chars_add(build, &taken, code, code);
        if (code >= 0x20 && code != '"' && code != '\\') { /* the others are never written */
            fg_list_add(build, &list,
                        fg_build_seq(build, 2,
                                     fg_build_bytes(build, names[first].bytes + at, taken_bytes),
                                     other_key(build, names + first, last - first, at + taken_bytes,
                                               rest, depth + 1)));
        }
        first = last;
    }
    fg_chars_settle(&taken);
    fg_list_add(build, &list, fg_build_seq(build, 2, plain_without(build, &taken), rest));
    if (!ends_here) {
        fg_list_add(build, &list, fg_build_text(build, "\""));
    }
    return fg_build_ok(build) ? fg_build_alt(build, &list) : NULL;
}

fg_gnode *fg_json_other_key_node(fg_build *build, fg_text *names, size_t count)
{
    fg_texts_sort(names, count);
    fg_gnode *plain = shared(build, &build->json_plain, "a plain character", make_plain);
    uint32_t rule = fg_build_rule(build, "the rest of a key");
    fg_build_define(build, rule,
                    fg_build_seq(build, 2, fg_build_repeat(build, plain, 0, FG_REPEAT_ENDLESS),
                                 fg_build_text(build, "\"")));
    return fg_build_seq(build, 2, fg_build_text(build, "\""),
                        other_key(build, names, count, 0, fg_build_call(build, rule), 0));
}
