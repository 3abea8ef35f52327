/* Texts of a run: pieces one behind the other, each with its writer. */
#include <string.h>

#include "common/base/utf8.h"
#include "common/jinja/jinja_internal.h"

size_t fg_jinja_space(const char *text, size_t length)
{
    unsigned char c = length == 0 ? 0 : (unsigned char)text[0];
    if (c < 0x80) {
        return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1C && c <= 0x1F);
    }
    uint32_t code;
    size_t step = fg_utf8_decode(text, length, &code);
    bool space = step > 0 && (code == 0x85 || code == 0xA0 || code == 0x1680 ||
                              (code >= 0x2000 && code <= 0x200A) || code == 0x2028 ||
                              code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000);
    return space ? step : 0;
}

void fg_jinja_emit(fg_jinja_run *run, fg_jinja_output *output, const char *text, size_t length,
                   bool of_client)
{
    if (length == 0 || fg_jinja_failed(run)) {
        return;
    }
    if (output->count == output->capacity) {
        size_t capacity = output->capacity == 0   ? 1
                          : output->capacity == 1 ? 4
                                                  : 2 * output->capacity;
        fg_jinja_piece *pieces = fg_jinja_take(run, capacity, sizeof *pieces);
        if (pieces == NULL) {
            return;
        }
        if (output->count > 0) {
            memcpy(pieces, output->pieces, output->count * sizeof *pieces);
        }
        output->pieces = pieces;
        output->capacity = capacity;
    }
    output->pieces[output->count++] =
        (fg_jinja_piece){ .text = text, .length = length, .of_client = of_client };
    output->length += length;
}

void fg_jinja_emit_text(fg_jinja_run *run, fg_jinja_output *output, const fg_jinja_string *text)
{
    if (!fg_jinja_step(run, text->count / 8)) {
        return;
    }
    for (size_t i = 0; i < text->count; i++) {
        fg_jinja_emit(run, output, text->pieces[i].text, text->pieces[i].length,
                      text->pieces[i].of_client);
    }
}

fg_jinja_value fg_jinja_text_of_output(fg_jinja_run *run, const fg_jinja_output *output)
{
    fg_jinja_string *text = fg_jinja_take(run, 1, sizeof *text);
    if (text == NULL) {
        return fg_jinja_undefined();
    }
    *text = (fg_jinja_string){ .length = output->length,
                               .count = output->count,
                               .pieces = output->pieces };
    return (fg_jinja_value){ .kind = FG_JINJA_TEXT, .text = text };
}

fg_jinja_value fg_jinja_text_of(fg_jinja_run *run, const char *text, size_t length, bool of_client)
{
    fg_jinja_output output = { .count = 0 };
    fg_jinja_emit(run, &output, text, length, of_client);
    return fg_jinja_text_of_output(run, &output);
}

const char *fg_jinja_flat(fg_jinja_run *run, fg_jinja_string *text)
{
    if (text->flat != NULL) {
        return text->flat;
    }
    if (text->count == 1) {
        text->flat = text->pieces[0].text;
        return text->flat;
    }
    char *flat = fg_jinja_step(run, text->length / 64)
                     ? fg_jinja_take(run, text->length + 1, sizeof *flat)
                     : NULL;
    if (flat == NULL) {
        return NULL;
    }
    size_t at = 0;
    for (size_t i = 0; i < text->count; i++) {
        memcpy(flat + at, text->pieces[i].text, text->pieces[i].length);
        at += text->pieces[i].length;
    }
    text->flat = flat;
    return flat;
}

/* A text that grows at its end again and again does so in one place: what was there before keeps its first pieces. */
fg_jinja_value fg_jinja_join(fg_jinja_run *run, const fg_jinja_string *a, const fg_jinja_string *b)
{
    fg_jinja_output *store = a->store;
    if (store == NULL || store->count != a->count) {
        store = fg_jinja_take(run, 1, sizeof *store);
        if (store == NULL) {
            return fg_jinja_undefined();
        }
        fg_jinja_emit_text(run, store, a);
    }
    fg_jinja_emit_text(run, store, b);
    fg_jinja_value value = fg_jinja_text_of_output(run, store);
    if (value.kind == FG_JINJA_TEXT) {
        value.text->store = store;
    }
    return value;
}

bool fg_jinja_is_of_client(const fg_jinja_string *text)
{
    for (size_t i = 0; i < text->count; i++) {
        if (text->pieces[i].of_client) {
            return true;
        }
    }
    return false;
}

/* Bytes start .. end - 1, to an output. */
static void emit_part(fg_jinja_run *run, fg_jinja_output *output, const fg_jinja_string *text,
                      size_t start, size_t end)
{
    size_t at = 0;
    if (!fg_jinja_step(run, text->count / 8)) {
        return;
    }
    for (size_t i = 0; i < text->count && at < end; i++) {
        const fg_jinja_piece *piece = &text->pieces[i];
        size_t from = start > at ? start - at : 0;
        size_t to = end - at < piece->length ? end - at : piece->length;
        if (from < to) {
            fg_jinja_emit(run, output, piece->text + from, to - from, piece->of_client);
        }
        at += piece->length;
    }
}

fg_jinja_value fg_jinja_cut(fg_jinja_run *run, const fg_jinja_string *text, size_t start,
                            size_t end)
{
    fg_jinja_output output = { .count = 0 };
    emit_part(run, &output, text, start, end);
    return fg_jinja_text_of_output(run, &output);
}

/* Bytes of the character at `at`; one of what is no UTF-8. */
static size_t character(const char *flat, size_t length, size_t at)
{
    size_t step = (unsigned char)flat[at] < 0x80 ? 1 : fg_utf8_length(flat + at, length - at);
    return step == 0 ? 1 : step;
}

size_t fg_jinja_character_at(fg_jinja_run *run, fg_jinja_string *text, size_t index)
{
    const char *flat = fg_jinja_flat(run, text);
    size_t at = 0;
    if (flat == NULL || !fg_jinja_step(run, text->length / 64)) {
        return 0;
    }
    for (; index > 0 && at < text->length; index--) {
        at += character(flat, text->length, at);
    }
    return at;
}

size_t fg_jinja_characters(fg_jinja_run *run, fg_jinja_string *text)
{
    const char *flat = fg_jinja_flat(run, text);
    size_t count = 0;
    if (flat == NULL || !fg_jinja_step(run, text->length / 64)) {
        return 0;
    }
    for (size_t at = 0; at < text->length; count++) {
        at += character(flat, text->length, at);
    }
    return count;
}

/* Length of the character at `at` when it is to go, else 0. */
static size_t strippable(const char *flat, size_t length, size_t at, const char *set,
                         size_t set_length)
{
    if (set == NULL) {
        return fg_jinja_space(flat + at, length - at);
    }
    size_t step = character(flat, length, at);
    for (size_t i = 0; i < set_length;) {
        size_t one = character(set, set_length, i);
        if (one == step && memcmp(set + i, flat + at, step) == 0) {
            return step;
        }
        i += one;
    }
    return 0;
}

fg_jinja_value fg_jinja_strip(fg_jinja_run *run, fg_jinja_string *text, fg_jinja_string *set,
                              bool left, bool right)
{
    const char *flat = fg_jinja_flat(run, text);
    const char *chars = set == NULL ? NULL : fg_jinja_flat(run, set);
    size_t set_length = set == NULL ? 0 : set->length;
    if (flat == NULL || (set != NULL && chars == NULL) ||
        !fg_jinja_step(run, text->length / 64 * (1 + set_length))) {
        return fg_jinja_undefined();
    }
    size_t start = 0;
    size_t end = text->length;
    for (size_t step; left && start < end; start += step) {
        step = strippable(flat, end, start, chars, set_length);
        if (step == 0) {
            break;
        }
    }
    while (right && end > start) {
        size_t last = end - 1;
        while (last > start && ((unsigned char)flat[last] & 0xC0) == 0x80 && end - last < 4) {
            last--;
        }
        if (last + character(flat, end, last) != end) {
            last = end - 1; /* no UTF-8 */
        }
        if (strippable(flat, end, last, chars, set_length) != end - last) {
            break;
        }
        end = last;
    }
    return fg_jinja_cut(run, text, start, end);
}

size_t fg_jinja_find(fg_jinja_run *run, fg_jinja_string *text, fg_jinja_string *part, size_t from)
{
    const char *flat = fg_jinja_flat(run, text);
    const char *wanted = fg_jinja_flat(run, part);
    if (flat == NULL || wanted == NULL || from > text->length) {
        return SIZE_MAX;
    }
    const char *found = memmem(flat + from, text->length - from, wanted, part->length);
    size_t at = found == NULL ? SIZE_MAX : (size_t)(found - flat);
    size_t seen = (found == NULL ? text->length : at) - from;
    return fg_jinja_step(run, 1 + seen / 64) ? at : SIZE_MAX;
}

fg_jinja_value fg_jinja_replace(fg_jinja_run *run, fg_jinja_string *text, fg_jinja_string *from,
                                fg_jinja_string *to, int64_t count_max)
{
    fg_jinja_output output = { .count = 0 };
    if (from->length == 0) {
        fg_jinja_fail(run, "replacing an empty text is not supported");
    }
    size_t done = 0;
    while (count_max != 0 && !fg_jinja_failed(run)) {
        size_t at = fg_jinja_find(run, text, from, done);
        if (at == SIZE_MAX) {
            break;
        }
        emit_part(run, &output, text, done, at);
        fg_jinja_emit_text(run, &output, to);
        done = at + from->length;
        count_max -= count_max > 0;
    }
    emit_part(run, &output, text, done, text->length);
    return fg_jinja_text_of_output(run, &output);
}

/* At white space: no empty parts. */
static void split_words(fg_jinja_run *run, fg_jinja_string *text, int64_t count_max,
                        fg_jinja_items *parts)
{
    const char *flat = fg_jinja_flat(run, text);
    if (flat == NULL || !fg_jinja_step(run, text->length / 64)) {
        return;
    }
    size_t at = 0;
    while (!fg_jinja_failed(run)) {
        for (size_t step;
             at < text->length && (step = fg_jinja_space(flat + at, text->length - at)) > 0;) {
            at += step;
        }
        if (at == text->length) {
            return;
        }
        size_t end = at;
        bool last = count_max >= 0 && parts->count == (size_t)count_max;
        while (end < text->length &&
               (last || fg_jinja_space(flat + end, text->length - end) == 0)) {
            end += character(flat, text->length, end);
        }
        fg_jinja_list_push(run, parts, fg_jinja_cut(run, text, at, end));
        at = end;
    }
}

/* Index of the last `part` that ends at or before `end`. */
static size_t find_last(fg_jinja_run *run, fg_jinja_string *text, fg_jinja_string *part, size_t end)
{
    size_t last = SIZE_MAX;
    for (size_t at = 0; (at = fg_jinja_find(run, text, part, at)) != SIZE_MAX; at++) {
        if (at + part->length > end) {
            break;
        }
        last = at;
    }
    return last;
}

static void reverse(fg_jinja_items *list)
{
    for (size_t i = 0; i < list->count / 2; i++) {
        fg_jinja_value kept = list->items[i];
        list->items[i] = list->items[list->count - 1 - i];
        list->items[list->count - 1 - i] = kept;
    }
}

fg_jinja_value fg_jinja_split(fg_jinja_run *run, fg_jinja_string *text, fg_jinja_string *by,
                              int64_t count_max, bool from_right)
{
    fg_jinja_value value = fg_jinja_list_new(run, 4, false);
    if (fg_jinja_failed(run)) {
        return value;
    }
    fg_jinja_items *parts = value.list;
    if (by == NULL) {
        if (from_right && count_max >= 0) {
            fg_jinja_fail(run, "rsplit needs a text to split at");
        }
        split_words(run, text, count_max, parts);
        return value;
    }
    if (by->length == 0) {
        fg_jinja_fail(run, "a text cannot be split at an empty one");
        return value;
    }
    size_t start = 0;
    size_t end = text->length;
    bool backwards = from_right && count_max >= 0;
    while (count_max < 0 || parts->count < (size_t)count_max) {
        size_t at = backwards ? find_last(run, text, by, end) : fg_jinja_find(run, text, by, start);
        if (at == SIZE_MAX || fg_jinja_failed(run)) {
            break;
        }
        if (backwards) {
            fg_jinja_list_push(run, parts, fg_jinja_cut(run, text, at + by->length, end));
            end = at;
        } else {
            fg_jinja_list_push(run, parts, fg_jinja_cut(run, text, start, at));
            start = at + by->length;
        }
    }
    fg_jinja_list_push(run, parts, fg_jinja_cut(run, text, start, end));
    if (backwards) {
        reverse(parts);
    }
    return value;
}

/* Length of the line end at `text`, 0 when there is none: Python's idea of it. */
static size_t line_end(const char *text, size_t length)
{
    uint32_t code;
    size_t step = fg_utf8_decode(text, length, &code);
    if (step == 0) {
        return 0;
    }
    if (code == '\r' && length > 1 && text[1] == '\n') {
        return 2;
    }
    bool ends = (code >= '\n' && code <= '\r') || (code >= 0x1C && code <= 0x1E) || code == 0x85 ||
                code == 0x2028 || code == 0x2029;
    return ends ? step : 0;
}

fg_jinja_value fg_jinja_split_lines(fg_jinja_run *run, fg_jinja_string *text, bool keep_ends)
{
    fg_jinja_value list = fg_jinja_list_new(run, 0, false);
    const char *flat = fg_jinja_flat(run, text);
    if (flat == NULL || !fg_jinja_step(run, text->length / 16)) {
        return list;
    }
    for (size_t at = 0; at < text->length && !fg_jinja_failed(run);) {
        size_t end = at;
        size_t step = 0;
        while (end < text->length && (step = line_end(flat + end, text->length - end)) == 0) {
            end++;
        }
        fg_jinja_list_push(run, list.list,
                           fg_jinja_cut(run, text, at, end + (keep_ends ? step : 0)));
        at = end + step;
    }
    return list;
}

static bool is_lower(char c)
{
    return c >= 'a' && c <= 'z';
}

static bool is_upper(char c)
{
    return c >= 'A' && c <= 'Z';
}

/* Whether the next letter begins a word, once `c` has passed. */
static bool begins_word(fg_jinja_case into, char c)
{
    switch (into) {
    case CASE_TITLE:
        return !(is_lower(c) || is_upper(c) || (unsigned char)c >= 0x80);
    case CASE_WORDS:
        return fg_jinja_space(&c, 1) > 0 || c == '-' || c == '(' || c == '{' || c == '[' ||
               c == '<';
    default:
        return false;
    }
}

/* Letters of ASCII; others stay as they are. */
fg_jinja_value fg_jinja_change_case(fg_jinja_run *run, fg_jinja_string *text, fg_jinja_case into)
{
    fg_jinja_output output = { .count = 0 };
    bool first = into != CASE_LOWER;
    for (size_t i = 0; i < text->count && fg_jinja_step(run, 1 + text->pieces[i].length / 64);
         i++) {
        const fg_jinja_piece *piece = &text->pieces[i];
        char *changed = fg_jinja_take(run, piece->length, 1);
        for (size_t k = 0; changed != NULL && k < piece->length; k++) {
            char c = piece->text[k];
            bool raise = into == CASE_UPPER || first;
            changed[k] = (char)(raise && is_lower(c) ? c - 32 : !raise && is_upper(c) ? c + 32 : c);
            first = begins_word(into, c);
        }
        fg_jinja_emit(run, &output, changed, changed == NULL ? 0 : piece->length, piece->of_client);
    }
    return fg_jinja_text_of_output(run, &output);
}
