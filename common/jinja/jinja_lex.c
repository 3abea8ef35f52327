/* A template's tokens, with what its tags do to the white space around them. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/jinja/jinja_internal.h"

fg_jinja_name fg_jinja_name_of(const char *text, size_t length)
{
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < length; i++) {
        hash = (hash ^ (unsigned char)text[i]) * 16777619u;
    }
    return (fg_jinja_name){ .text = text, .length = (uint32_t)length, .hash = hash };
}

bool fg_jinja_name_equal(fg_jinja_name a, fg_jinja_name b)
{
    return a.hash == b.hash && a.length == b.length && memcmp(a.text, b.text, a.length) == 0;
}

bool fg_jinja_name_is(fg_jinja_name name, const char *text)
{
    return name.length == strlen(text) && memcmp(name.text, text, name.length) == 0;
}

void fg_jinja_refuse(fg_jinja_reader *reader, const char *format, ...)
{
    if (reader->status != FG_OK) {
        return;
    }
    char text[FG_ERROR_TEXT_MAX / 2];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    reader->status = fg_fail(&reader->error, FG_BAD_INPUT, "line %u: %s", reader->line, text);
    reader->token = (fg_jinja_token){ .kind = TOKEN_END };
}

bool fg_jinja_refused(const fg_jinja_reader *reader)
{
    return reader->status != FG_OK;
}

static void no_memory(fg_jinja_reader *reader)
{
    if (reader->status == FG_OK) {
        reader->status = fg_fail(&reader->error, FG_AGAIN, "out of memory for a chat template");
        reader->token = (fg_jinja_token){ .kind = TOKEN_END };
    }
}

fg_jinja_node *fg_jinja_node_new(fg_jinja_reader *reader, fg_jinja_node_kind kind)
{
    fg_jinja_node *node = fg_arena_alloc(reader->arena, sizeof *node);
    if (node == NULL) {
        no_memory(reader);
        return NULL;
    }
    node->kind = kind;
    node->line = reader->token.line;
    return node;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_' ||
           (unsigned char)c >= 0x80;
}

static char byte_at(const fg_jinja_reader *reader, size_t at)
{
    return at < reader->length ? reader->source[at] : '\0';
}

static void skip_space(fg_jinja_reader *reader)
{
    for (size_t step;
         reader->at < reader->length &&
         (step = fg_jinja_space(reader->source + reader->at, reader->length - reader->at)) > 0;) {
        reader->line += reader->source[reader->at] == '\n';
        reader->at += step;
    }
}

static void count_lines(fg_jinja_reader *reader, size_t from, size_t to)
{
    for (; from < to; from++) {
        reader->line += reader->source[from] == '\n';
    }
}

/* Behind the end of a tag at `at`, which strips all white space or, of blocks and comments, one line end. */
static void leave_tag(fg_jinja_reader *reader, char sign, bool block)
{
    if (sign == '-') {
        skip_space(reader);
    } else if (block && sign != '+' && byte_at(reader, reader->at) == '\n') {
        reader->at++;
        reader->line++;
    }
}

/* Where the text in front of the tag at `tag` ends. */
static size_t text_end(const fg_jinja_reader *reader, size_t begin, size_t tag)
{
    char sign = byte_at(reader, tag + 2);
    size_t end = tag;
    if (sign == '-') {
        /* From its beginning, because white space of several bytes cannot be seen from behind. */
        size_t last = begin;
        for (size_t at = begin; at < tag;) {
            size_t step = fg_jinja_space(reader->source + at, tag - at);
            at += step > 0 ? step : 1;
            last = step > 0 ? last : at;
        }
        return last;
    }
    if (sign == '+' || reader->source[tag + 1] == '{') {
        return tag;
    }
    while (end > begin && reader->source[end - 1] != '\n') {
        end--;
    }
    for (size_t step, at = end; at < tag; at += step) {
        step = fg_jinja_space(reader->source + at, tag - at);
        if (step == 0) {
            return tag;
        }
    }
    bool line_start = end == 0 || reader->source[end - 1] == '\n';
    return line_start ? end : tag;
}

/* The next tag's index, or the length. */
static size_t find_tag(const fg_jinja_reader *reader, size_t at)
{
    for (; at + 1 < reader->length; at++) {
        char c = reader->source[at + 1];
        if (reader->source[at] == '{' && (c == '{' || c == '%' || c == '#')) {
            return at;
        }
    }
    return reader->length;
}

/* A comment that begins at reader->at. */
static void skip_comment(fg_jinja_reader *reader)
{
    const char *end =
        memmem(reader->source + reader->at + 2, reader->length - reader->at - 2, "#}", 2);
    if (end == NULL) {
        fg_jinja_refuse(reader, "a comment does not end");
        return;
    }
    size_t close = (size_t)(end - reader->source);
    char sign = close > reader->at + 2 ? reader->source[close - 1] : '\0';
    count_lines(reader, reader->at, close);
    reader->at = close + 2;
    leave_tag(reader, sign, true);
}

/* Index behind `word` and white space, of the tag at `tag`, when that is all of it up to its end; else 0. */
static size_t whole_tag(const fg_jinja_reader *reader, size_t tag, const char *word, char *sign_out)
{
    size_t at = tag + 2;
    at += byte_at(reader, at) == '-' || byte_at(reader, at) == '+';
    while (at < reader->length && fg_jinja_space(reader->source + at, 1) > 0) {
        at++;
    }
    size_t length = strlen(word);
    if (reader->length - at < length || memcmp(reader->source + at, word, length) != 0) {
        return 0;
    }
    at += length;
    while (at < reader->length && fg_jinja_space(reader->source + at, 1) > 0) {
        at++;
    }
    *sign_out = byte_at(reader, at);
    at += *sign_out == '-' || *sign_out == '+';
    return byte_at(reader, at) == '%' && byte_at(reader, at + 1) == '}' ? at + 2 : 0;
}

/* What lies between {% raw %}, whose end is at `begin`, and {% endraw %} is data. */
static void read_raw(fg_jinja_reader *reader, size_t begin, char sign)
{
    char end_sign;
    count_lines(reader, reader->at, begin);
    reader->at = begin;
    leave_tag(reader, sign, true);
    for (size_t tag = reader->at; tag + 1 < reader->length; tag++) {
        if (reader->source[tag] != '{' || reader->source[tag + 1] != '%') {
            continue;
        }
        size_t end = whole_tag(reader, tag, "endraw", &end_sign);
        if (end > 0) {
            reader->token =
                (fg_jinja_token){ .kind = TOKEN_DATA,
                                  .line = reader->line,
                                  .text = reader->source + reader->at,
                                  .length = text_end(reader, reader->at, tag) - reader->at };
            count_lines(reader, reader->at, end);
            reader->at = end;
            leave_tag(reader, end_sign, true);
            return;
        }
    }
    fg_jinja_refuse(reader, "'raw' does not end");
}

/* Text up to the next tag, or the tag's begin. */
static void next_outside(fg_jinja_reader *reader)
{
    while (!fg_jinja_refused(reader)) {
        size_t tag = find_tag(reader, reader->at);
        size_t end = tag == reader->length ? tag : text_end(reader, reader->at, tag);
        if (end > reader->at) {
            reader->token = (fg_jinja_token){ .kind = TOKEN_DATA,
                                              .line = reader->line,
                                              .text = reader->source + reader->at,
                                              .length = end - reader->at };
            count_lines(reader, reader->at, tag);
            reader->at = tag;
            return;
        }
        count_lines(reader, reader->at, tag);
        reader->at = tag;
        if (tag == reader->length) {
            reader->token = (fg_jinja_token){ .kind = TOKEN_END, .line = reader->line };
            return;
        }
        char kind = reader->source[tag + 1];
        if (kind == '#') {
            skip_comment(reader);
            continue;
        }
        char sign;
        size_t raw = kind == '%' ? whole_tag(reader, tag, "raw", &sign) : 0;
        if (raw > 0) {
            read_raw(reader, raw, sign);
            return;
        }
        reader->at += 2;
        sign = byte_at(reader, reader->at);
        reader->at += sign == '-' || sign == '+';
        reader->close = kind == '{' ? '}' : '%';
        reader->braces = 0;
        reader->token =
            (fg_jinja_token){ .kind = kind == '{' ? TOKEN_OUTPUT_BEGIN : TOKEN_BLOCK_BEGIN,
                              .line = reader->line };
        return;
    }
}

static void put_code(fg_buf *out, uint32_t code)
{
    char bytes[4];
    size_t count = 1;
    if (code < 0x80) {
        bytes[0] = (char)code;
    } else if (code < 0x800) {
        bytes[0] = (char)(0xC0 | code >> 6);
        bytes[1] = (char)(0x80 | (code & 0x3F));
        count = 2;
    } else if (code < 0x10000) {
        bytes[0] = (char)(0xE0 | code >> 12);
        bytes[1] = (char)(0x80 | (code >> 6 & 0x3F));
        bytes[2] = (char)(0x80 | (code & 0x3F));
        count = 3;
    } else {
        bytes[0] = (char)(0xF0 | code >> 18);
        bytes[1] = (char)(0x80 | (code >> 12 & 0x3F));
        bytes[2] = (char)(0x80 | (code >> 6 & 0x3F));
        bytes[3] = (char)(0x80 | (code & 0x3F));
        count = 4;
    }
    fg_buf_append(out, bytes, count);
}

/* The digits behind the x, u or U at `at`, 2, 4 or 8 of them; their number, or 0. */
static size_t read_hex(const char *text, size_t length, size_t at, fg_buf *out)
{
    size_t digits = text[at] == 'x' ? 2 : text[at] == 'u' ? 4 : 8;
    uint32_t code = 0;
    if (length - at - 1 < digits) {
        return 0;
    }
    for (size_t i = 1; i <= digits; i++) {
        char c = text[at + i];
        int value = is_digit(c)              ? c - '0'
                    : (c >= 'a' && c <= 'f') ? c - 'a' + 10
                    : (c >= 'A' && c <= 'F') ? c - 'A' + 10
                                             : -1;
        if (value < 0) {
            return 0;
        }
        code = code << 4 | (uint32_t)value;
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
        return 0;
    }
    put_code(out, code);
    return digits;
}

/* The value of a literal's inside, as Python reads it. */
static bool unescape(const char *text, size_t length, fg_buf *out)
{
    static const char names[] = "nrtabfv\\'\"";
    static const char values[] = "\n\r\t\a\b\f\v\\'\"";
    for (size_t at = 0; at < length; at++) {
        if (text[at] != '\\' || at + 1 == length) {
            fg_buf_putc(out, text[at]);
            continue;
        }
        at++;
        const char *name = strchr(names, text[at]);
        if (name != NULL && *name != '\0') {
            fg_buf_putc(out, values[name - names]);
        } else if (text[at] == 'x' || text[at] == 'u' || text[at] == 'U') {
            size_t digits = read_hex(text, length, at, out);
            if (digits == 0) {
                return false;
            }
            at += digits;
        } else if (text[at] >= '0' && text[at] <= '7') {
            uint32_t code = 0;
            size_t count = 0;
            for (; count < 3 && at + count < length && text[at + count] >= '0' &&
                   text[at + count] <= '7';
                 count++) {
                code = code * 8 + (uint32_t)(text[at + count] - '0');
            }
            put_code(out, code);
            at += count - 1;
        } else if (text[at] != '\n') {
            fg_buf_putc(out, '\\');
            fg_buf_putc(out, text[at]);
        }
    }
    return true;
}

static void read_string(fg_jinja_reader *reader)
{
    char quote = reader->source[reader->at];
    size_t begin = reader->at + 1;
    size_t end = begin;
    while (end < reader->length && reader->source[end] != quote) {
        end += reader->source[end] == '\\' ? 2 : 1;
    }
    if (end >= reader->length) {
        fg_jinja_refuse(reader, "a string does not end");
        return;
    }
    fg_buf value;
    fg_buf_init(&value, 0);
    bool valid = unescape(reader->source + begin, end - begin, &value);
    char *kept = fg_arena_alloc(reader->arena, value.size + 1);
    if (!valid) {
        fg_jinja_refuse(reader, "a string has an escape that means nothing");
    } else if (value.failed || kept == NULL) {
        no_memory(reader);
    } else {
        if (value.size > 0) {
            memcpy(kept, value.data, value.size);
        }
        reader->token.kind = TOKEN_STRING;
        reader->token.text = kept;
        reader->token.length = value.size;
        count_lines(reader, reader->at, end);
        reader->at = end + 1;
    }
    fg_buf_deinit(&value);
}

static void read_number(fg_jinja_reader *reader)
{
    char digits[64];
    size_t used = 0;
    size_t at = reader->at;
    bool is_real = false;
    for (; used + 1 < sizeof digits; at++) {
        char c = byte_at(reader, at);
        char after = byte_at(reader, at + 1);
        bool exponent = (c == 'e' || c == 'E') &&
                        (is_digit(after) ||
                         ((after == '+' || after == '-') && is_digit(byte_at(reader, at + 2))));
        if (c == '_' && is_digit(after)) {
            continue;
        }
        if ((c == '.' && is_digit(after) && !is_real) || exponent) {
            is_real = true;
            digits[used++] = c;
            if (exponent && !is_digit(after)) {
                digits[used++] = after;
                at++;
            }
            continue;
        }
        if (!is_digit(c)) {
            break;
        }
        digits[used++] = c;
    }
    digits[used] = '\0';
    char *end;
    if (is_real) {
        reader->token.kind = TOKEN_REAL;
        reader->token.real = strtod(digits, &end);
        if (!isfinite(reader->token.real)) {
            fg_jinja_refuse(reader, "the number %s is too large", digits);
        }
    } else {
        reader->token.kind = TOKEN_INTEGER;
        reader->token.integer = strtoll(digits, &end, 10);
        if (used > 18) {
            fg_jinja_refuse(reader, "the number %s is too large", digits);
        }
    }
    if (!fg_jinja_refused(reader) && is_word(byte_at(reader, at))) {
        fg_jinja_refuse(reader, "'%c' behind a number", byte_at(reader, at));
    }
    reader->at = at;
}

/* True at the end of the tag, which is passed. */
static bool take_close(fg_jinja_reader *reader)
{
    char sign = byte_at(reader, reader->at);
    size_t at = reader->at + (sign == '-' || sign == '+');
    if (reader->braces > 0 || byte_at(reader, at) != reader->close ||
        byte_at(reader, at + 1) != '}') {
        return false;
    }
    bool block = reader->close == '%';
    reader->token.kind = block ? TOKEN_BLOCK_END : TOKEN_OUTPUT_END;
    reader->at = at + 2;
    reader->close = 0;
    leave_tag(reader, sign, block);
    return true;
}

static void read_sign(fg_jinja_reader *reader)
{
    static const char *const two[] = { "==", "!=", "<=", ">=", "//", "**" };
    static const char one[] = "+-*/%~[](){}<>=.:|,;";
    const char *at = reader->source + reader->at;
    size_t length = 0;
    for (size_t i = 0; i < sizeof two / sizeof two[0]; i++) {
        if (reader->length - reader->at >= 2 && memcmp(at, two[i], 2) == 0) {
            length = 2;
        }
    }
    if (length == 0 && *at != '\0' && strchr(one, *at) != NULL) {
        length = 1;
    }
    if (length == 0) {
        fg_jinja_refuse(reader, "the character 0x%02x means nothing here", (unsigned char)*at);
        return;
    }
    if (strchr("([{", *at) != NULL) {
        reader->braces++;
    } else if (strchr(")]}", *at) != NULL) {
        if (reader->braces == 0) {
            fg_jinja_refuse(reader, "'%c' closes nothing", *at);
            return;
        }
        reader->braces--;
    }
    reader->token.kind = TOKEN_SIGN;
    reader->token.text = at;
    reader->token.length = length;
    reader->at += length;
}

void fg_jinja_next(fg_jinja_reader *reader)
{
    if (fg_jinja_refused(reader)) {
        return;
    }
    if (reader->close == 0) {
        next_outside(reader);
        return;
    }
    skip_space(reader);
    reader->token = (fg_jinja_token){ .line = reader->line };
    if (reader->at == reader->length) {
        fg_jinja_refuse(reader, "a tag does not end");
        return;
    }
    char c = reader->source[reader->at];
    if (take_close(reader)) {
        return;
    }
    if (is_digit(c)) {
        read_number(reader);
    } else if (is_word(c)) {
        size_t begin = reader->at;
        while (is_word(byte_at(reader, reader->at))) {
            reader->at++;
        }
        reader->token.kind = TOKEN_NAME;
        reader->token.text = reader->source + begin;
        reader->token.length = reader->at - begin;
    } else if (c == '\'' || c == '"') {
        read_string(reader);
    } else {
        read_sign(reader);
    }
}

static bool token_is(const fg_jinja_reader *reader, fg_jinja_token_kind kind, const char *text)
{
    return reader->token.kind == kind && reader->token.length == strlen(text) &&
           memcmp(reader->token.text, text, reader->token.length) == 0;
}

bool fg_jinja_at_sign(const fg_jinja_reader *reader, const char *sign)
{
    return token_is(reader, TOKEN_SIGN, sign);
}

bool fg_jinja_at_name(const fg_jinja_reader *reader, const char *name)
{
    return token_is(reader, TOKEN_NAME, name);
}

bool fg_jinja_take_sign(fg_jinja_reader *reader, const char *sign)
{
    bool here = fg_jinja_at_sign(reader, sign);
    if (here) {
        fg_jinja_next(reader);
    }
    return here;
}

bool fg_jinja_take_name(fg_jinja_reader *reader, const char *name)
{
    bool here = fg_jinja_at_name(reader, name);
    if (here) {
        fg_jinja_next(reader);
    }
    return here;
}

void fg_jinja_want_sign(fg_jinja_reader *reader, const char *sign)
{
    if (!fg_jinja_take_sign(reader, sign)) {
        fg_jinja_refuse(reader, "'%s' is missing", sign);
    }
}

bool fg_jinja_enter(fg_jinja_reader *reader)
{
    if (reader->depth == FG_JINJA_DEPTH_MAX) {
        fg_jinja_refuse(reader, "nested deeper than %d", FG_JINJA_DEPTH_MAX);
        return false;
    }
    reader->depth++;
    return !fg_jinja_refused(reader);
}

void fg_jinja_leave(fg_jinja_reader *reader)
{
    reader->depth--;
}
