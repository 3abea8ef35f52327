#include "cli/promtext.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBER_MAX = 48 }; /* characters of a value; the longest that anyone writes has 25 */

typedef struct text {
    const char *at, *end;
} text;

fg_prom_reader fg_prom_open(const char *bytes, size_t length)
{
    return (fg_prom_reader){ .at = bytes, .end = bytes + length };
}

static bool is_name_char(char c, bool first, bool colons)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (colons && c == ':') ||
           (!first && c >= '0' && c <= '9');
}

static size_t skip_name(text *in, bool colons)
{
    const char *from = in->at;
    while (in->at < in->end && is_name_char(*in->at, in->at == from, colons)) {
        in->at++;
    }
    return (size_t)(in->at - from);
}

static void skip_blanks(text *in)
{
    while (in->at < in->end && (*in->at == ' ' || *in->at == '\t')) {
        in->at++;
    }
}

static bool take(text *in, char c)
{
    if (in->at == in->end || *in->at != c) {
        return false;
    }
    in->at++;
    return true;
}

/* name="value", with backslash before a backslash, a quote or an n. `value_out` is what lies between the
 * quotes. */
static bool read_label(text *in, text *name_out, text *value_out)
{
    skip_blanks(in);
    name_out->at = in->at;
    if (skip_name(in, false) == 0) {
        return false;
    }
    name_out->end = in->at;
    skip_blanks(in);
    if (!take(in, '=')) {
        return false;
    }
    skip_blanks(in);
    if (!take(in, '"')) {
        return false;
    }
    value_out->at = in->at;
    while (in->at < in->end && *in->at != '"') {
        if (*in->at == '\\' && ++in->at == in->end) {
            return false;
        }
        in->at++;
    }
    value_out->end = in->at;
    return take(in, '"');
}

/* Behind the opening brace, up to and with the closing one; a comma may follow the last label. */
static bool skip_labels(text *in)
{
    text name, value;
    for (;;) {
        skip_blanks(in);
        if (take(in, '}')) {
            return true;
        }
        if (!read_label(in, &name, &value)) {
            return false;
        }
        skip_blanks(in);
        if (!take(in, ',')) {
            return take(in, '}');
        }
    }
}

static bool read_value(text *in, double *value_out)
{
    char word[NUMBER_MAX + 1];
    size_t length = 0;
    while (in->at < in->end && *in->at != ' ' && *in->at != '\t') {
        if (length == NUMBER_MAX) {
            return false;
        }
        word[length++] = *in->at++;
    }
    word[length] = '\0';
    const char *bare = word + (word[0] == '+' || word[0] == '-');
    if (strcmp(word, "NaN") == 0) {
        *value_out = NAN;
        return true;
    }
    if (strcmp(bare, "Inf") == 0) {
        *value_out = word[0] == '-' ? -INFINITY : INFINITY;
        return true;
    }
    /* strtod knows more than this format: hexadecimal numbers and words. */
    if (length == 0 || word[strspn(word, "0123456789+-.eE")] != '\0') {
        return false;
    }
    char *end;
    *value_out = strtod(word, &end);
    return *end == '\0';
}

static bool read_sample(text in, fg_prom_sample *out)
{
    skip_blanks(&in);
    *out = (fg_prom_sample){ .name = in.at };
    out->name_length = skip_name(&in, true);
    if (out->name_length == 0) {
        return false;
    }
    skip_blanks(&in);
    if (take(&in, '{')) {
        out->labels = in.at;
        if (!skip_labels(&in)) {
            return false;
        }
        out->labels_length = (size_t)(in.at - 1 - out->labels);
    } else if (in.at == out->name + out->name_length) {
        return false; /* no blank before the value */
    }
    skip_blanks(&in);
    if (!read_value(&in, &out->value)) {
        return false;
    }
    skip_blanks(&in);
    double when;
    return in.at == in.end || (read_value(&in, &when) && (skip_blanks(&in), in.at == in.end));
}

bool fg_prom_next(fg_prom_reader *reader, fg_prom_sample *sample_out)
{
    while (reader->at < reader->end) {
        const char *stop = memchr(reader->at, '\n', (size_t)(reader->end - reader->at));
        text line = { reader->at, stop == NULL ? reader->end : stop };
        reader->at = stop == NULL ? reader->end : stop + 1;
        if (line.end > line.at && line.end[-1] == '\r') {
            line.end--;
        }
        skip_blanks(&line);
        if (line.at == line.end || *line.at == '#') {
            continue;
        }
        if (read_sample(line, sample_out)) {
            return true;
        }
        reader->refused++;
    }
    return false;
}

bool fg_prom_is(const fg_prom_sample *sample, const char *name)
{
    return strlen(name) == sample->name_length &&
           memcmp(sample->name, name, sample->name_length) == 0;
}

bool fg_prom_label(const fg_prom_sample *sample, const char *wanted, char *out, size_t capacity)
{
    if (sample->labels_length == 0) {
        return false;
    }
    text in = { sample->labels, sample->labels + sample->labels_length };
    text name, value;
    while (read_label(&in, &name, &value)) {
        size_t used = 0;
        if ((size_t)(name.end - name.at) == strlen(wanted) &&
            memcmp(name.at, wanted, strlen(wanted)) == 0) {
            for (; value.at < value.end && used + 1 < capacity; value.at++) {
                bool escaped = *value.at == '\\';
                value.at += escaped;
                out[used++] = escaped && *value.at == 'n' ? '\n' : *value.at;
            }
            out[used] = '\0';
            return true;
        }
        skip_blanks(&in);
        if (!take(&in, ',')) {
            break;
        }
    }
    return false;
}
