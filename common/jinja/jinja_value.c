/* Values of a run: lists, maps, what is equal, what comes first, and how values are written. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/utf8.h"
#include "common/jinja/jinja_internal.h"

enum { WRITE_DEPTH_MAX = 64 };

const char *fg_jinja_kind_name(fg_jinja_value value)
{
    static const char *const names[] = { "undefined",   "none",     "a bool",   "an integer",
                                         "a float",     "a string", "a list",   "a mapping",
                                         "a namespace", "a loop",   "a method", "a macro",
                                         "a function" };
    return names[value.kind];
}

bool fg_jinja_is_true(fg_jinja_value value)
{
    switch (value.kind) {
    case FG_JINJA_UNDEFINED:
    case FG_JINJA_NONE:
        return false;
    case FG_JINJA_BOOL:
        return value.flag;
    case FG_JINJA_INTEGER:
        return value.integer != 0;
    case FG_JINJA_REAL:
        return value.real != 0.0;
    case FG_JINJA_TEXT:
        return value.text->length > 0;
    case FG_JINJA_LIST:
        return value.list->count > 0;
    case FG_JINJA_MAP:
        return value.map->count > 0;
    default:
        return true;
    }
}

bool fg_jinja_is_number(fg_jinja_value value)
{
    return value.kind == FG_JINJA_BOOL || value.kind == FG_JINJA_INTEGER ||
           value.kind == FG_JINJA_REAL;
}

double fg_jinja_number(fg_jinja_value value)
{
    return value.kind == FG_JINJA_REAL      ? value.real
           : value.kind == FG_JINJA_INTEGER ? (double)value.integer
                                            : (double)value.flag;
}

fg_jinja_value fg_jinja_list_new(fg_jinja_run *run, size_t capacity, bool is_tuple)
{
    fg_jinja_items *list = fg_jinja_take(run, 1, sizeof *list);
    if (list == NULL) {
        return fg_jinja_undefined();
    }
    list->items = capacity == 0 ? NULL : fg_jinja_take(run, capacity, sizeof *list->items);
    list->capacity = list->items == NULL ? 0 : capacity;
    list->is_tuple = is_tuple;
    return (fg_jinja_value){ .kind = FG_JINJA_LIST, .list = list };
}

void fg_jinja_list_push(fg_jinja_run *run, fg_jinja_items *list, fg_jinja_value value)
{
    if (!fg_jinja_step(run, 1)) {
        return;
    }
    if (list->count == list->capacity) {
        size_t capacity = list->capacity == 0 ? 4 : 2 * list->capacity;
        fg_jinja_value *items = fg_jinja_take(run, capacity, sizeof *items);
        if (items == NULL) {
            return;
        }
        if (list->count > 0) {
            memcpy(items, list->items, list->count * sizeof *items);
        }
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->count++] = value;
}

fg_jinja_value fg_jinja_map_new(fg_jinja_run *run)
{
    fg_jinja_dict *map = fg_jinja_take(run, 1, sizeof *map);
    return map == NULL ? fg_jinja_undefined()
                       : (fg_jinja_value){ .kind = FG_JINJA_MAP, .map = map };
}

/* NULL: there is none. */
static fg_jinja_entry *find_entry(fg_jinja_run *run, const fg_jinja_dict *map, fg_jinja_name key)
{
    if (!fg_jinja_step(run, map->count / 16)) {
        return NULL;
    }
    for (size_t i = 0; i < map->count; i++) {
        const fg_jinja_name *name = &map->entries[i].key;
        if (name->hash == key.hash && name->length == key.length) {
            /* Many keys of one hash are made in a moment, and take as long as they are. */
            if (!fg_jinja_step(run, key.length / 64)) {
                return NULL;
            }
            if (memcmp(name->text, key.text, key.length) == 0) {
                return &map->entries[i];
            }
        }
    }
    return NULL;
}

const fg_jinja_value *fg_jinja_get(fg_jinja_run *run, const fg_jinja_dict *map, fg_jinja_name key)
{
    const fg_jinja_entry *entry = find_entry(run, map, key);
    return entry == NULL ? NULL : &entry->value;
}

void fg_jinja_put(fg_jinja_run *run, fg_jinja_dict *map, fg_jinja_name key, bool key_of_client,
                  fg_jinja_value value)
{
    fg_jinja_entry *entry = find_entry(run, map, key);
    if (fg_jinja_failed(run)) {
        return;
    }
    if (entry != NULL) {
        entry->value = value;
        return;
    }
    if (map->count == map->capacity) {
        size_t capacity = map->capacity == 0 ? 4 : 2 * map->capacity;
        fg_jinja_entry *entries = fg_jinja_take(run, capacity, sizeof *entries);
        if (entries == NULL) {
            return;
        }
        if (map->count > 0) {
            memcpy(entries, map->entries, map->count * sizeof *entries);
        }
        map->entries = entries;
        map->capacity = capacity;
    }
    map->entries[map->count++] =
        (fg_jinja_entry){ .key = key, .key_of_client = key_of_client, .value = value };
}

fg_jinja_value fg_jinja_key(fg_jinja_run *run, const fg_jinja_entry *entry)
{
    return fg_jinja_text_of(run, entry->key.text, entry->key.length, entry->key_of_client);
}

fg_jinja_value fg_jinja_map_items(fg_jinja_run *run, const fg_jinja_dict *map)
{
    fg_jinja_value all = fg_jinja_list_new(run, map->count, false);
    for (size_t i = 0; i < map->count && !fg_jinja_failed(run); i++) {
        fg_jinja_value pair = fg_jinja_list_new(run, 2, true);
        if (!fg_jinja_failed(run)) {
            fg_jinja_list_push(run, pair.list, fg_jinja_key(run, &map->entries[i]));
            fg_jinja_list_push(run, pair.list, map->entries[i].value);
            fg_jinja_list_push(run, all.list, pair);
        }
    }
    return all;
}

static bool equal_items(fg_jinja_run *run, const fg_jinja_items *a, const fg_jinja_items *b)
{
    bool equal = a->count == b->count && a->is_tuple == b->is_tuple;
    for (size_t i = 0; equal && i < a->count; i++) {
        equal = fg_jinja_equal(run, a->items[i], b->items[i]);
    }
    return equal;
}

static bool equal_maps(fg_jinja_run *run, const fg_jinja_dict *a, const fg_jinja_dict *b)
{
    bool equal = a->count == b->count;
    for (size_t i = 0; equal && i < a->count; i++) {
        const fg_jinja_value *other = fg_jinja_get(run, b, a->entries[i].key);
        equal = other != NULL && fg_jinja_equal(run, a->entries[i].value, *other);
    }
    return equal;
}

static bool equal(fg_jinja_run *run, fg_jinja_value a, fg_jinja_value b)
{
    if (fg_jinja_is_number(a) && fg_jinja_is_number(b)) {
        return a.kind == FG_JINJA_INTEGER && b.kind == FG_JINJA_INTEGER
                   ? a.integer == b.integer
                   : fg_jinja_number(a) == fg_jinja_number(b);
    }
    if (a.kind != b.kind) {
        return false;
    }
    switch (a.kind) {
    case FG_JINJA_TEXT: {
        if (a.text->length != b.text->length) {
            return false;
        }
        const char *one = fg_jinja_flat(run, a.text);
        const char *other = fg_jinja_flat(run, b.text);
        return one != NULL && other != NULL && fg_jinja_step(run, a.text->length / 64) &&
               memcmp(one, other, a.text->length) == 0;
    }
    case FG_JINJA_LIST:
        return equal_items(run, a.list, b.list);
    case FG_JINJA_MAP:
        return equal_maps(run, a.map, b.map);
    case FG_JINJA_UNDEFINED:
    case FG_JINJA_NONE:
        return true;
    case FG_JINJA_FUNCTION:
        return a.function == b.function;
    default:
        return a.macro == b.macro;
    }
}

bool fg_jinja_equal(fg_jinja_run *run, fg_jinja_value a, fg_jinja_value b)
{
    if (!fg_jinja_step(run, 1) || !fg_jinja_deepen(run)) {
        return false;
    }
    bool same = equal(run, a, b);
    fg_jinja_rise(run);
    return same;
}

/* By the first items that differ, else by length. */
static int compare_items(fg_jinja_run *run, const fg_jinja_items *a, const fg_jinja_items *b)
{
    for (size_t i = 0; i < a->count && i < b->count && !fg_jinja_failed(run); i++) {
        if (!fg_jinja_equal(run, a->items[i], b->items[i])) {
            int order = 0;
            if (fg_jinja_deepen(run)) {
                order = fg_jinja_compare(run, a->items[i], b->items[i]);
                fg_jinja_rise(run);
            }
            return order;
        }
    }
    return (a->count > b->count) - (a->count < b->count);
}

int fg_jinja_compare(fg_jinja_run *run, fg_jinja_value a, fg_jinja_value b)
{
    if (fg_jinja_is_number(a) && fg_jinja_is_number(b)) {
        if (a.kind == FG_JINJA_INTEGER && b.kind == FG_JINJA_INTEGER) {
            return (a.integer > b.integer) - (a.integer < b.integer);
        }
        double x = fg_jinja_number(a);
        double y = fg_jinja_number(b);
        return (x > y) - (x < y);
    }
    if (a.kind == FG_JINJA_TEXT && b.kind == FG_JINJA_TEXT) {
        const char *one = fg_jinja_flat(run, a.text);
        const char *other = fg_jinja_flat(run, b.text);
        size_t shared = a.text->length < b.text->length ? a.text->length : b.text->length;
        if (one == NULL || other == NULL || !fg_jinja_step(run, shared / 64)) {
            return 0;
        }
        int order = memcmp(one, other, shared); /* UTF-8 has the order of its characters */
        return order != 0 ? order
                          : (a.text->length > b.text->length) - (a.text->length < b.text->length);
    }
    if (a.kind == FG_JINJA_LIST && b.kind == FG_JINJA_LIST &&
        a.list->is_tuple == b.list->is_tuple) {
        return compare_items(run, a.list, b.list);
    }
    fg_jinja_fail(run, "%s and %s have no order", fg_jinja_kind_name(a), fg_jinja_kind_name(b));
    return 0;
}

bool fg_jinja_contains(fg_jinja_run *run, fg_jinja_value container, fg_jinja_value item)
{
    switch (container.kind) {
    case FG_JINJA_TEXT:
        if (item.kind != FG_JINJA_TEXT) {
            fg_jinja_fail(run, "only a string can be in a string, not %s",
                          fg_jinja_kind_name(item));
            return false;
        }
        return fg_jinja_find(run, container.text, item.text, 0) != SIZE_MAX;
    case FG_JINJA_LIST:
        for (size_t i = 0; i < container.list->count && !fg_jinja_failed(run); i++) {
            if (fg_jinja_equal(run, container.list->items[i], item)) {
                return true;
            }
        }
        return false;
    case FG_JINJA_MAP: {
        if (item.kind == FG_JINJA_MAP || (item.kind == FG_JINJA_LIST && !item.list->is_tuple)) {
            fg_jinja_fail(run, "%s is no key", fg_jinja_kind_name(item));
            return false;
        }
        const char *key = item.kind == FG_JINJA_TEXT ? fg_jinja_flat(run, item.text) : NULL;
        return key != NULL &&
               fg_jinja_get(run, container.map, fg_jinja_name_of(key, item.text->length)) != NULL;
    }
    case FG_JINJA_UNDEFINED:
        return false;
    default:
        fg_jinja_fail(run, "nothing can be in %s", fg_jinja_kind_name(container));
        return false;
    }
}

fg_jinja_items *fg_jinja_iterate(fg_jinja_run *run, fg_jinja_value value)
{
    if (value.kind == FG_JINJA_LIST) {
        return value.list;
    }
    fg_jinja_value all = fg_jinja_list_new(run, 0, false);
    if (fg_jinja_failed(run)) {
        return NULL;
    }
    switch (value.kind) {
    case FG_JINJA_UNDEFINED:
        break;
    case FG_JINJA_MAP:
        for (size_t i = 0; i < value.map->count && !fg_jinja_failed(run); i++) {
            fg_jinja_list_push(run, all.list, fg_jinja_key(run, &value.map->entries[i]));
        }
        break;
    case FG_JINJA_TEXT: {
        const char *flat = fg_jinja_flat(run, value.text);
        for (size_t at = 0; flat != NULL && at < value.text->length && !fg_jinja_failed(run);) {
            size_t step = fg_utf8_length(flat + at, value.text->length - at);
            step = step == 0 ? 1 : step;
            fg_jinja_list_push(run, all.list, fg_jinja_cut(run, value.text, at, at + step));
            at += step;
        }
        break;
    }
    default:
        fg_jinja_fail(run, "%s has no items", fg_jinja_kind_name(value));
        break;
    }
    return all.list;
}

/* ---- written ---- */

typedef struct writer {
    fg_jinja_run *run;
    fg_jinja_output output;
    const fg_jinja_json_style *json; /* NULL: as Python shows values */
    uint32_t depth;
} writer;

static void put(writer *w, const char *text)
{
    fg_jinja_emit(w->run, &w->output, text, strlen(text), false);
}

/* A copy of formatted text. */
static void put_copy(writer *w, const char *text, size_t length, bool of_client)
{
    char *copy = fg_jinja_take(w->run, length, 1);
    if (copy != NULL && fg_jinja_step(w->run, length / 64)) {
        memcpy(copy, text, length);
        fg_jinja_emit(w->run, &w->output, copy, length, of_client);
    }
}

/* As Python's repr: the fewest digits that give the same number. */
static void put_real(writer *w, double real)
{
    char text[40];
    if (!isfinite(real)) {
        const char *name = isnan(real) ? "nan" : real > 0 ? "inf" : "-inf";
        const char *in_json = isnan(real) ? "NaN" : real > 0 ? "Infinity" : "-Infinity";
        put(w, w->json != NULL ? in_json : name);
        return;
    }
    int digits = 1;
    do {
        snprintf(text, sizeof text, "%.*e", digits - 1, real);
    } while (strtod(text, NULL) != real && digits++ < 17);
    int exponent = atoi(strchr(text, 'e') + 1);
    if (exponent >= -4 && exponent < 16) {
        int decimals = digits - 1 - exponent;
        snprintf(text, sizeof text, "%.*f", decimals > 1 ? decimals : 1, real);
    } else {
        char *e = strchr(text, 'e');
        int power = atoi(e + 1);
        snprintf(e, (size_t)(text + sizeof text - e), "e%c%02d", power < 0 ? '-' : '+', abs(power));
    }
    put_copy(w, text, strlen(text), false);
}

/* What Python's repr does not show as it is, beyond ASCII's first 32. */
static bool is_hidden(uint32_t code)
{
    static const uint32_t ranges[][2] = {
        { 0x7F, 0xA0 },     { 0xAD, 0xAD },     { 0x1680, 0x1680 }, { 0x180E, 0x180E },
        { 0x2000, 0x200F }, { 0x2028, 0x202F }, { 0x205F, 0x206F }, { 0x3000, 0x3000 },
        { 0xE000, 0xF8FF }, { 0xFEFF, 0xFEFF },
    };
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        if (code >= ranges[i][0] && code <= ranges[i][1]) {
            return true;
        }
    }
    return false;
}

/* The inside of a string in quotes, of one writer. */
static void put_escaped(writer *w, const char *text, size_t length, char quote, bool of_client)
{
    if (!fg_jinja_step(w->run, length / 8)) {
        return;
    }
    fg_buf buf;
    fg_buf_init(&buf, 0);
    for (size_t at = 0; at < length;) {
        uint32_t code;
        size_t step = fg_utf8_decode(text + at, length - at, &code);
        if (step == 0) {
            step = 1;
            code = 0xFFFD;
        }
        if (code == '\\' || code == (uint32_t)quote) {
            fg_buf_putc(&buf, '\\');
            fg_buf_putc(&buf, (char)code);
        } else if (code == '\n' || code == '\r' || code == '\t') {
            fg_buf_puts(&buf, code == '\n' ? "\\n" : code == '\r' ? "\\r" : "\\t");
        } else if (w->json != NULL && (code == '\b' || code == '\f')) {
            fg_buf_puts(&buf, code == '\b' ? "\\b" : "\\f");
        } else if (code < 0x20) {
            fg_buf_printf(&buf, w->json != NULL ? "\\u%04x" : "\\x%02x", code);
        } else if (w->json == NULL && is_hidden(code)) {
            fg_buf_printf(&buf, code < 0x100 ? "\\x%02x" : "\\u%04x", code);
        } else if (code >= 0x7F && w->json != NULL && w->json->ascii) {
            if (code >= 0x10000) {
                fg_buf_printf(&buf, "\\u%04x\\u%04x", 0xD800 + ((code - 0x10000) >> 10),
                              0xDC00 + ((code - 0x10000) & 0x3FF));
            } else {
                fg_buf_printf(&buf, "\\u%04x", code);
            }
        } else {
            fg_buf_append(&buf, text + at, step);
        }
        at += step;
    }
    if (buf.failed) {
        fg_jinja_no_memory(w->run);
    } else {
        put_copy(w, buf.data, buf.size, of_client);
    }
    fg_buf_deinit(&buf);
}

static void put_quoted(writer *w, fg_jinja_string *text)
{
    char quote = '"';
    if (w->json == NULL) {
        const char *flat = fg_jinja_flat(w->run, text);
        bool apostrophe = flat != NULL && memchr(flat, '\'', text->length) != NULL;
        bool quotes = flat != NULL && memchr(flat, '"', text->length) != NULL;
        quote = apostrophe && !quotes ? '"' : '\'';
    }
    const char quoted[2] = { quote, '\0' };
    put(w, quote == '"' ? "\"" : "'");
    for (size_t i = 0; i < text->count && !fg_jinja_failed(w->run); i++) {
        put_escaped(w, text->pieces[i].text, text->pieces[i].length, quoted[0],
                    text->pieces[i].of_client);
    }
    put(w, quote == '"' ? "\"" : "'");
}

static void put_value(writer *w, fg_jinja_value value);

/* In front of an item, or behind the last. */
static void put_break(writer *w, bool first, bool last)
{
    const fg_jinja_json_style *json = w->json;
    if (!first && !last) {
        put(w, json != NULL && json->comma != NULL ? json->comma
               : json != NULL && json->indent >= 0 ? ","
                                                   : ", ");
    }
    if (json != NULL && json->indent >= 0 && !(first && last)) {
        put(w, "\n");
        static const char spaces[] =
            "                                                                ";
        size_t left = (size_t)json->indent * w->depth;
        for (size_t part; left > 0 && fg_jinja_step(w->run, 1); left -= part) {
            part = left < sizeof spaces - 1 ? left : sizeof spaces - 1;
            fg_jinja_emit(w->run, &w->output, spaces, part, false);
        }
    }
}

static void put_list(writer *w, const fg_jinja_items *list)
{
    bool tuple = list->is_tuple && w->json == NULL;
    put(w, tuple ? "(" : "[");
    w->depth++;
    for (size_t i = 0; i < list->count && !fg_jinja_failed(w->run); i++) {
        put_break(w, i == 0, false);
        put_value(w, list->items[i]);
    }
    w->depth--;
    if (list->count > 0) {
        put_break(w, false, true);
    }
    put(w, tuple ? list->count == 1 ? ",)" : ")" : "]");
}

int fg_jinja_by_key(const void *a, const void *b)
{
    const fg_jinja_entry *one = *(const fg_jinja_entry *const *)a;
    const fg_jinja_entry *other = *(const fg_jinja_entry *const *)b;
    size_t length = one->key.length < other->key.length ? one->key.length : other->key.length;
    int order = memcmp(one->key.text, other->key.text, length);
    if (order == 0) {
        order = (one->key.length > other->key.length) - (one->key.length < other->key.length);
    }
    return order != 0 ? order : (one > other) - (one < other);
}

static void put_map(writer *w, const fg_jinja_dict *map)
{
    const fg_jinja_entry **order = fg_jinja_take(w->run, map->count + 1, sizeof *order);
    if (order == NULL) {
        return;
    }
    for (size_t i = 0; i < map->count; i++) {
        order[i] = &map->entries[i];
    }
    if (w->json != NULL && w->json->sorted) {
        qsort(order, map->count, sizeof *order, fg_jinja_by_key);
    }
    put(w, "{");
    w->depth++;
    for (size_t i = 0; i < map->count && !fg_jinja_failed(w->run); i++) {
        put_break(w, i == 0, false);
        fg_jinja_value key = fg_jinja_key(w->run, order[i]);
        if (key.kind == FG_JINJA_TEXT) {
            put_quoted(w, key.text);
        }
        put(w, w->json != NULL && w->json->colon != NULL ? w->json->colon : ": ");
        put_value(w, order[i]->value);
    }
    w->depth--;
    if (map->count > 0) {
        put_break(w, false, true);
    }
    put(w, "}");
}

static void put_value(writer *w, fg_jinja_value value)
{
    bool json = w->json != NULL;
    char number[24];
    if (!fg_jinja_step(w->run, 1)) {
        return;
    }
    if (w->depth > WRITE_DEPTH_MAX) {
        fg_jinja_fail(w->run, "a value is nested deeper than %d", WRITE_DEPTH_MAX);
        return;
    }
    switch (value.kind) {
    case FG_JINJA_NONE:
        put(w, json ? "null" : "None");
        break;
    case FG_JINJA_BOOL:
        put(w, value.flag ? json ? "true" : "True" : json ? "false" : "False");
        break;
    case FG_JINJA_INTEGER:
        snprintf(number, sizeof number, "%lld", (long long)value.integer);
        put_copy(w, number, strlen(number), false);
        break;
    case FG_JINJA_REAL:
        put_real(w, value.real);
        break;
    case FG_JINJA_TEXT:
        put_quoted(w, value.text);
        break;
    case FG_JINJA_LIST:
        put_list(w, value.list);
        break;
    case FG_JINJA_MAP:
        put_map(w, value.map);
        break;
    default:
        if (!json && value.kind == FG_JINJA_UNDEFINED) {
            put(w, "Undefined");
            break;
        }
        fg_jinja_fail(w->run, "%s cannot be written", fg_jinja_kind_name(value));
        break;
    }
}

fg_jinja_value fg_jinja_to_json(fg_jinja_run *run, fg_jinja_value value,
                                const fg_jinja_json_style *style)
{
    writer w = { .run = run, .json = style };
    put_value(&w, value);
    return fg_jinja_text_of_output(run, &w.output);
}

fg_jinja_value fg_jinja_to_text(fg_jinja_run *run, fg_jinja_value value)
{
    if (value.kind == FG_JINJA_TEXT) {
        return value;
    }
    writer w = { .run = run };
    if (value.kind != FG_JINJA_UNDEFINED) {
        put_value(&w, value);
    }
    return fg_jinja_text_of_output(run, &w.output);
}
