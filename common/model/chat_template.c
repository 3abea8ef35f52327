#include "common/model/chat_template.h"

#include <string.h>

typedef struct reader {
    const char *source;
    size_t length;
    size_t at;
    fg_buf *out;
} reader;

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static bool starts(const char *text, size_t length, const char *prefix)
{
    size_t size = strlen(prefix);
    return length >= size && memcmp(text, prefix, size) == 0;
}

/* Index just past the string literal that starts at `at`, or 0 when it does not end. */
static size_t literal_end(const char *text, size_t length, size_t at)
{
    char quote = text[at];
    for (size_t i = at + 1; i < length; i++) {
        if (text[i] == '\\') {
            i++;
        } else if (text[i] == quote) {
            return i + 1;
        }
    }
    return 0;
}

/* Appends the value of a literal (without its quotes); false on an escape outside of the usual. */
static bool append_literal(fg_buf *out, const char *text, size_t length)
{
    static const char names[] = "nt\\'\"";
    static const char values[] = "\n\t\\'\"";
    for (size_t i = 0; i < length; i++) {
        char c = text[i];
        if (c == '\\') {
            const char *name = i + 1 < length ? strchr(names, text[i + 1]) : NULL;
            if (name == NULL || *name == '\0') {
                return false;
            }
            c = values[name - names];
            i++;
        }
        fg_buf_putc(out, c);
    }
    return true;
}

/* Appends an expression with only the spaces that part words, x['y'] as x.y, and 'single' quotes. */
static bool append_squeezed(fg_buf *out, const char *text, size_t length)
{
    size_t begin = out->size;
    for (size_t at = 0; at < length;) {
        char c = text[at];
        if (is_space(c)) {
            size_t next = at;
            while (next < length && is_space(text[next])) {
                next++;
            }
            bool parts = out->size > begin && next < length && is_word(out->data[out->size - 1]) &&
                         is_word(text[next]);
            if (parts) {
                fg_buf_putc(out, ' ');
            }
            at = next;
        } else if (c == '\'' || c == '"') {
            size_t end = literal_end(text, length, at);
            if (end == 0) {
                return false;
            }
            size_t size = end - at - 2;
            bool subscript = out->size > begin && out->data[out->size - 1] == '[' && end < length &&
                             text[end] == ']';
            if (subscript) {
                out->data[out->size - 1] = '.';
                fg_buf_append(out, text + at + 1, size);
                end++;
            } else {
                fg_buf_putc(out, '\'');
                fg_buf_append(out, text + at + 1, size);
                fg_buf_putc(out, '\'');
            }
            at = end;
        } else {
            fg_buf_putc(out, c);
            at++;
        }
    }
    return !out->failed;
}

static bool append_term(fg_buf *out, const char *text, size_t length)
{
    while (length > 0 && is_space(text[0])) {
        text++;
        length--;
    }
    while (length > 0 && is_space(text[length - 1])) {
        length--;
    }
    if (length == 0) {
        return false;
    }
    if ((text[0] == '\'' || text[0] == '"') && literal_end(text, length, 0) == length) {
        return append_literal(out, text + 1, length - 2);
    }
    fg_buf_puts(out, "{{");
    bool done = append_squeezed(out, text, length);
    fg_buf_puts(out, "}}");
    return done;
}

/* The inside of {{ ... }}: terms joined by +. */
static bool append_output(fg_buf *out, const char *text, size_t length)
{
    size_t start = 0;
    for (size_t at = 0; at < length;) {
        if (text[at] == '\'' || text[at] == '"') {
            at = literal_end(text, length, at);
            if (at == 0) {
                return false;
            }
            continue;
        }
        if (text[at] == '(') {
            return false; /* a sum inside is not a sum of terms */
        }
        if (text[at] == '+') {
            if (!append_term(out, text + start, at - start)) {
                return false;
            }
            start = at + 1;
        }
        at++;
    }
    return append_term(out, text + start, length - start);
}

/* The text before the tag at `tag` (or the end), with what the tag strips taken away. */
static size_t text_end(const reader *r, size_t tag)
{
    size_t end = tag;
    if (tag + 2 < r->length && r->source[tag + 2] == '-') {
        while (end > r->at && is_space(r->source[end - 1])) {
            end--;
        }
        return end;
    }
    if (tag + 1 < r->length && r->source[tag + 1] != '{') {
        /* lstrip_blocks: a block at the beginning of a line takes the indentation with it. */
        while (end > r->at && (r->source[end - 1] == ' ' || r->source[end - 1] == '\t')) {
            end--;
        }
        bool line_start = end == 0 || r->source[end - 1] == '\n';
        end = line_start ? end : tag;
    }
    return end;
}

/* Index of the two bytes that close the tag opened at `tag`, skipping literals; 0: none. */
static size_t tag_close(const reader *r, size_t tag)
{
    char kind = r->source[tag + 1];
    char close = kind == '{' ? '}' : kind;
    for (size_t at = tag + 2; at + 1 < r->length;) {
        char c = r->source[at];
        if (kind != '#' && (c == '\'' || c == '"')) {
            at = literal_end(r->source, r->length, at);
            if (at == 0) {
                return 0;
            }
            continue;
        }
        if (c == close && r->source[at + 1] == '}') {
            return at;
        }
        at++;
    }
    return 0;
}

static bool read_tag(reader *r, size_t tag)
{
    size_t close = tag_close(r, tag);
    if (close == 0) {
        return false;
    }
    char kind = r->source[tag + 1];
    size_t start = tag + 2;
    size_t end = close;
    bool strips_after = end > start && r->source[end - 1] == '-';
    start += start < end && r->source[start] == '-';
    end -= end > start && strips_after;
    bool done = true;
    if (kind == '{') {
        done = append_output(r->out, r->source + start, end - start);
    } else if (kind == '%') {
        fg_buf_puts(r->out, "{%");
        done = append_squeezed(r->out, r->source + start, end - start);
        fg_buf_puts(r->out, "%}");
    }
    r->at = close + 2;
    if (strips_after) {
        while (r->at < r->length && is_space(r->source[r->at])) {
            r->at++;
        }
    } else if (kind != '{' && r->at < r->length && r->source[r->at] == '\n') {
        r->at++; /* trim_blocks */
    }
    return done;
}

bool fg_chat_template_plain(const char *source, size_t length, fg_buf *out)
{
    /* Jinja drops one line end at the end of a template. */
    length -= length > 0 && source[length - 1] == '\n';
    reader r = { .source = source, .length = length, .out = out };
    while (r.at < length && !out->failed) {
        size_t tag = r.at;
        while (tag + 1 < length && !(source[tag] == '{' && strchr("{%#", source[tag + 1]) != NULL &&
                                     source[tag + 1] != '\0')) {
            tag++;
        }
        bool has_tag = tag + 1 < length;
        size_t end = has_tag ? text_end(&r, tag) : length;
        fg_buf_append(out, source + r.at, end - r.at);
        if (!has_tag) {
            break;
        }
        if (!read_tag(&r, tag)) {
            return false;
        }
    }
    return !out->failed;
}

bool fg_chat_template_is_chatml(const char *plain, size_t length, const char **system_out,
                                size_t *system_length_out)
{
    static const char defined[] = "{%if not add_generation_prompt is defined%}"
                                  "{%set add_generation_prompt=false%}{%endif%}";
    static const char loop[] = "{%for message in messages%}";
    static const char body[] = "<|im_start|>{{message.role}}\n{{message.content}}<|im_end|>\n"
                               "{%endfor%}{%if add_generation_prompt%}<|im_start|>assistant\n"
                               "{%endif%}";
    static const char *const without_system[] = {
        "{%if loop.first and messages[0].role!='system'%}<|im_start|>system\n",
        "{%if loop.first and message.role!='system'%}<|im_start|>system\n",
    };
    static const char system_end[] = "<|im_end|>\n{%endif%}";
    if (starts(plain, length, defined)) {
        plain += sizeof(defined) - 1;
        length -= sizeof(defined) - 1;
    }
    size_t tail = sizeof(body) - 1;
    if (!starts(plain, length, loop) || length - (sizeof(loop) - 1) < tail ||
        memcmp(plain + length - tail, body, tail) != 0) {
        return false;
    }
    plain += sizeof(loop) - 1;
    length -= sizeof(loop) - 1 + tail;
    *system_out = NULL;
    *system_length_out = 0;
    if (length == 0) {
        return true;
    }
    for (size_t i = 0; i < sizeof(without_system) / sizeof(without_system[0]); i++) {
        size_t head = strlen(without_system[i]);
        size_t end = sizeof(system_end) - 1;
        if (!starts(plain, length, without_system[i]) || length - head < end ||
            memcmp(plain + length - end, system_end, end) != 0) {
            continue;
        }
        const char *text = plain + head;
        size_t size = length - head - end;
        if (memmem(text, size, "{{", 2) != NULL || memmem(text, size, "{%", 2) != NULL) {
            return false;
        }
        *system_out = text;
        *system_length_out = size;
        return true;
    }
    return false;
}
