/* Filters and tests, by name. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/jinja/jinja_internal.h"

typedef fg_jinja_value (*filter_fn)(fg_jinja_run *run, fg_jinja_value value,
                                    const fg_jinja_arguments *arguments);

/* str(value), a text in any case; an empty one once the run has failed. */
static fg_jinja_string *text_of(fg_jinja_run *run, fg_jinja_value value)
{
    static fg_jinja_string empty = { .flat = "" };
    fg_jinja_value text = fg_jinja_failed(run) ? value : fg_jinja_to_text(run, value);
    return text.kind == FG_JINJA_TEXT ? text.text : &empty;
}

static fg_jinja_value nothing(const fg_jinja_arguments *arguments, size_t index, const char *name)
{
    return fg_jinja_argument(arguments, index, name, fg_jinja_undefined());
}

static fg_jinja_value filter_default(fg_jinja_run *run, fg_jinja_value value,
                                     const fg_jinja_arguments *arguments)
{
    bool if_false =
        fg_jinja_is_true(fg_jinja_argument(arguments, 1, "boolean", fg_jinja_of_bool(false)));
    bool missing = value.kind == FG_JINJA_UNDEFINED || (if_false && !fg_jinja_is_true(value));
    return missing ? fg_jinja_argument(arguments, 0, "default_value",
                                       fg_jinja_text_of(run, "", 0, false))
                   : value;
}

static fg_jinja_value filter_length(fg_jinja_run *run, fg_jinja_value value,
                                    const fg_jinja_arguments *arguments)
{
    (void)arguments;
    switch (value.kind) {
    case FG_JINJA_UNDEFINED:
        return fg_jinja_of_integer(0);
    case FG_JINJA_TEXT:
        return fg_jinja_of_integer((int64_t)fg_jinja_characters(run, value.text));
    case FG_JINJA_LIST:
        return fg_jinja_of_integer((int64_t)value.list->count);
    case FG_JINJA_MAP:
        return fg_jinja_of_integer((int64_t)value.map->count);
    default:
        fg_jinja_fail(run, "%s has no length", fg_jinja_kind_name(value));
        return fg_jinja_undefined();
    }
}

static fg_jinja_value filter_first(fg_jinja_run *run, fg_jinja_value value,
                                   const fg_jinja_arguments *arguments)
{
    (void)arguments;
    const fg_jinja_items *items = fg_jinja_iterate(run, value);
    return items == NULL || items->count == 0 ? fg_jinja_undefined() : items->items[0];
}

static fg_jinja_value filter_last(fg_jinja_run *run, fg_jinja_value value,
                                  const fg_jinja_arguments *arguments)
{
    (void)arguments;
    const fg_jinja_items *items = fg_jinja_iterate(run, value);
    return items == NULL || items->count == 0 ? fg_jinja_undefined()
                                              : items->items[items->count - 1];
}

/* A new list of a value's items, the last first where `backwards`. */
static fg_jinja_value copied(fg_jinja_run *run, fg_jinja_value value, bool backwards)
{
    const fg_jinja_items *items = fg_jinja_iterate(run, value);
    fg_jinja_value list = fg_jinja_list_new(run, items == NULL ? 0 : items->count, false);
    for (size_t i = 0; !fg_jinja_failed(run) && i < items->count; i++) {
        fg_jinja_list_push(run, list.list, items->items[backwards ? items->count - 1 - i : i]);
    }
    return list;
}

static fg_jinja_value filter_list(fg_jinja_run *run, fg_jinja_value value,
                                  const fg_jinja_arguments *arguments)
{
    (void)arguments;
    return copied(run, value, false);
}

static fg_jinja_value filter_reverse(fg_jinja_run *run, fg_jinja_value value,
                                     const fg_jinja_arguments *arguments)
{
    (void)arguments;
    fg_jinja_value list = copied(run, value, true);
    if (value.kind != FG_JINJA_TEXT || fg_jinja_failed(run)) {
        return list;
    }
    fg_jinja_output output = { .count = 0 };
    for (size_t i = 0; i < list.list->count; i++) {
        fg_jinja_emit_text(run, &output, list.list->items[i].text);
    }
    return fg_jinja_text_of_output(run, &output);
}

static fg_jinja_value filter_items(fg_jinja_run *run, fg_jinja_value value,
                                   const fg_jinja_arguments *arguments)
{
    (void)arguments;
    if (value.kind == FG_JINJA_UNDEFINED) {
        return fg_jinja_list_new(run, 0, false);
    }
    if (value.kind != FG_JINJA_MAP) {
        fg_jinja_fail(run, "%s has no items of key and value", fg_jinja_kind_name(value));
        return fg_jinja_undefined();
    }
    return fg_jinja_map_items(run, value.map);
}

/* By key, whatever the case of letters unless asked to look at it. */
static fg_jinja_value filter_dictsort(fg_jinja_run *run, fg_jinja_value value,
                                      const fg_jinja_arguments *arguments)
{
    bool by_case = fg_jinja_is_true(nothing(arguments, 0, "case_sensitive"));
    bool backwards = fg_jinja_is_true(nothing(arguments, 2, "reverse"));
    fg_jinja_value by = nothing(arguments, 1, "by");
    const char *key_name = by.kind == FG_JINJA_TEXT ? fg_jinja_flat(run, by.text) : NULL;
    if (by.kind != FG_JINJA_UNDEFINED &&
        !(key_name != NULL && by.text->length == 3 && memcmp(key_name, "key", 3) == 0)) {
        fg_jinja_fail(run, "dictsort sorts by key alone here");
        return fg_jinja_undefined();
    }
    if (value.kind != FG_JINJA_MAP) {
        fg_jinja_fail(run, "%s has no keys to sort by", fg_jinja_kind_name(value));
        return fg_jinja_undefined();
    }
    const fg_jinja_dict *map = value.map;
    const fg_jinja_entry **order = fg_jinja_take(run, map->count, sizeof *order);
    fg_jinja_entry *lowered = fg_jinja_take(run, map->count, sizeof *lowered);
    fg_jinja_value sorted = fg_jinja_map_new(run);
    for (size_t i = 0; i < map->count && !fg_jinja_failed(run); i++) {
        lowered[i] = map->entries[i];
        order[i] = &lowered[i];
        fg_jinja_value key = fg_jinja_key(run, &map->entries[i]);
        fg_jinja_value low =
            fg_jinja_failed(run) || by_case ? key : fg_jinja_change_case(run, key.text, CASE_LOWER);
        const char *flat = fg_jinja_failed(run) ? NULL : fg_jinja_flat(run, low.text);
        if (flat != NULL) {
            lowered[i].key = fg_jinja_name_of(flat, low.text->length);
        }
    }
    if (fg_jinja_failed(run)) {
        return sorted;
    }
    qsort(order, map->count, sizeof *order, fg_jinja_by_key);
    for (size_t i = 0; i < map->count; i++) {
        size_t at = backwards ? map->count - 1 - i : i;
        const fg_jinja_entry *entry = &map->entries[order[at] - lowered];
        fg_jinja_put(run, sorted.map, entry->key, entry->key_of_client, entry->value);
    }
    return fg_jinja_failed(run) ? sorted : fg_jinja_map_items(run, sorted.map);
}

/* A few digits as a number; false: it is none. Texts have no NUL behind them. */
static bool place(const char *digits, size_t length, size_t *index_out)
{
    size_t index = 0;
    for (size_t i = 0; i < length; i++) {
        if (digits[i] < '0' || digits[i] > '9') {
            return false;
        }
        index = 10 * index + (size_t)(digits[i] - '0');
    }
    *index_out = index;
    return length > 0 && length < 9;
}

/* The member that a filter's argument `attribute` names: "a.b" is one of a member. */
static fg_jinja_value member(fg_jinja_run *run, fg_jinja_value item, fg_jinja_string *path)
{
    const char *flat = fg_jinja_flat(run, path);
    for (size_t at = 0; flat != NULL && at <= path->length && !fg_jinja_failed(run);) {
        if (item.kind == FG_JINJA_UNDEFINED) {
            fg_jinja_fail(run, "a member of what is undefined");
            break;
        }
        const char *dot = memchr(flat + at, '.', path->length - at);
        size_t length = dot == NULL ? path->length - at : (size_t)(dot - (flat + at));
        fg_jinja_name name = fg_jinja_name_of(flat + at, length);
        const fg_jinja_value *found = item.kind == FG_JINJA_MAP || item.kind == FG_JINJA_NAMESPACE
                                          ? fg_jinja_get(run, item.map, name)
                                          : NULL;
        size_t index;
        if (item.kind == FG_JINJA_LIST && place(flat + at, length, &index) &&
            index < item.list->count) {
            found = &item.list->items[index];
        }
        item = found == NULL ? fg_jinja_undefined() : *found;
        at += length + 1;
    }
    return item;
}

static fg_jinja_value filter_join(fg_jinja_run *run, fg_jinja_value value,
                                  const fg_jinja_arguments *arguments)
{
    const fg_jinja_items *items = fg_jinja_iterate(run, value);
    fg_jinja_string *between = text_of(run, nothing(arguments, 0, "d"));
    fg_jinja_value attribute = nothing(arguments, 1, "attribute");
    fg_jinja_output output = { .count = 0 };
    for (size_t i = 0; !fg_jinja_failed(run) && i < items->count; i++) {
        fg_jinja_value item = items->items[i];
        if (attribute.kind == FG_JINJA_TEXT) {
            item = member(run, item, attribute.text);
        }
        if (i > 0) {
            fg_jinja_emit_text(run, &output, between);
        }
        fg_jinja_emit_text(run, &output, text_of(run, item));
    }
    return fg_jinja_text_of_output(run, &output);
}

static fg_jinja_value filter_lower(fg_jinja_run *run, fg_jinja_value value,
                                   const fg_jinja_arguments *arguments)
{
    (void)arguments;
    return fg_jinja_change_case(run, text_of(run, value), CASE_LOWER);
}

static fg_jinja_value filter_upper(fg_jinja_run *run, fg_jinja_value value,
                                   const fg_jinja_arguments *arguments)
{
    (void)arguments;
    return fg_jinja_change_case(run, text_of(run, value), CASE_UPPER);
}

static fg_jinja_value filter_title(fg_jinja_run *run, fg_jinja_value value,
                                   const fg_jinja_arguments *arguments)
{
    (void)arguments;
    return fg_jinja_change_case(run, text_of(run, value), CASE_WORDS);
}

static fg_jinja_value filter_capitalize(fg_jinja_run *run, fg_jinja_value value,
                                        const fg_jinja_arguments *arguments)
{
    (void)arguments;
    return fg_jinja_change_case(run, text_of(run, value), CASE_CAPITALIZE);
}

static fg_jinja_value filter_trim(fg_jinja_run *run, fg_jinja_value value,
                                  const fg_jinja_arguments *arguments)
{
    fg_jinja_value set = nothing(arguments, 0, "chars");
    return fg_jinja_strip(run, text_of(run, value), set.kind == FG_JINJA_TEXT ? set.text : NULL,
                          true, true);
}

static fg_jinja_value filter_string(fg_jinja_run *run, fg_jinja_value value,
                                    const fg_jinja_arguments *arguments)
{
    (void)arguments;
    return fg_jinja_to_text(run, value);
}

static fg_jinja_value filter_safe(fg_jinja_run *run, fg_jinja_value value,
                                  const fg_jinja_arguments *arguments)
{
    (void)run;
    (void)arguments;
    return value;
}

static fg_jinja_value filter_replace(fg_jinja_run *run, fg_jinja_value value,
                                     const fg_jinja_arguments *arguments)
{
    fg_jinja_value count = nothing(arguments, 2, "count");
    return fg_jinja_replace(run, text_of(run, value), text_of(run, nothing(arguments, 0, "old")),
                            text_of(run, nothing(arguments, 1, "new")),
                            count.kind == FG_JINJA_INTEGER ? count.integer : -1);
}

/* The whole text as a number; false: it is none. A whole one that fits is an integer. */
static bool parse(fg_jinja_run *run, fg_jinja_value value, fg_jinja_value *number_out)
{
    fg_jinja_value stripped = fg_jinja_strip(run, text_of(run, value), NULL, true, true);
    const char *flat = stripped.kind == FG_JINJA_TEXT ? fg_jinja_flat(run, stripped.text) : NULL;
    char copy[64];
    char *end;
    if (flat == NULL || stripped.text->length == 0 || stripped.text->length >= sizeof copy) {
        return false;
    }
    memcpy(copy, flat, stripped.text->length);
    copy[stripped.text->length] = '\0';
    errno = 0;
    *number_out = fg_jinja_of_integer(strtoll(copy, &end, 10));
    if (*end == '\0' && errno == 0) {
        return true;
    }
    *number_out = (fg_jinja_value){ .kind = FG_JINJA_REAL, .real = strtod(copy, &end) };
    return *end == '\0' && strpbrk(copy, "xXpP") == NULL && isfinite(number_out->real);
}

static fg_jinja_value filter_int(fg_jinja_run *run, fg_jinja_value value,
                                 const fg_jinja_arguments *arguments)
{
    if (value.kind == FG_JINJA_UNDEFINED) {
        fg_jinja_fail(run, "what is undefined is no number");
        return value;
    }
    if (!fg_jinja_is_number(value) && (value.kind != FG_JINJA_TEXT || !parse(run, value, &value))) {
        return fg_jinja_argument(arguments, 0, "default", fg_jinja_of_integer(0));
    }
    if (value.kind == FG_JINJA_INTEGER) {
        return value;
    }
    double number = fg_jinja_number(value);
    if (!(number > -9e18 && number < 9e18)) {
        fg_jinja_fail(run, "an integer is too large");
        return fg_jinja_undefined();
    }
    return fg_jinja_of_integer((int64_t)number);
}

static fg_jinja_value filter_float(fg_jinja_run *run, fg_jinja_value value,
                                   const fg_jinja_arguments *arguments)
{
    if (value.kind == FG_JINJA_UNDEFINED) {
        fg_jinja_fail(run, "what is undefined is no number");
        return value;
    }
    if (!fg_jinja_is_number(value) && (value.kind != FG_JINJA_TEXT || !parse(run, value, &value))) {
        fg_jinja_value zero = { .kind = FG_JINJA_REAL };
        return fg_jinja_argument(arguments, 0, "default", zero);
    }
    return (fg_jinja_value){ .kind = FG_JINJA_REAL, .real = fg_jinja_number(value) };
}

static fg_jinja_value filter_abs(fg_jinja_run *run, fg_jinja_value value,
                                 const fg_jinja_arguments *arguments)
{
    (void)arguments;
    if (value.kind == FG_JINJA_REAL) {
        value.real = fabs(value.real);
    } else if (value.kind == FG_JINJA_BOOL) {
        return fg_jinja_of_integer(value.flag);
    } else if (value.kind == FG_JINJA_INTEGER && value.integer > INT64_MIN) {
        value.integer = value.integer < 0 ? -value.integer : value.integer;
    } else {
        fg_jinja_fail(run, "%s has no absolute value", fg_jinja_kind_name(value));
    }
    return value;
}

/* A separator's bytes with a NUL behind them. They count as the template's, so a client has none. */
static const char *separator(fg_jinja_run *run, fg_jinja_value value)
{
    fg_jinja_string *text = text_of(run, value);
    const char *flat = fg_jinja_flat(run, text);
    char *copy = fg_jinja_take(run, text->length + 1, 1);
    if (fg_jinja_is_of_client(text)) {
        fg_jinja_fail(run, "only a template's own text separates JSON");
    }
    if (flat != NULL && copy != NULL) {
        memcpy(copy, flat, text->length);
    }
    return copy;
}

static fg_jinja_value filter_tojson(fg_jinja_run *run, fg_jinja_value value,
                                    const fg_jinja_arguments *arguments)
{
    fg_jinja_json_style style = { .indent = -1 };
    fg_jinja_value indent = nothing(arguments, 1, "indent");
    if (indent.kind == FG_JINJA_INTEGER) {
        style.indent = indent.integer < 0 ? 0 : indent.integer > 64 ? 64 : indent.integer;
    } else if (indent.kind != FG_JINJA_UNDEFINED && indent.kind != FG_JINJA_NONE) {
        fg_jinja_fail(run, "tojson takes an integer as its indent, not %s",
                      fg_jinja_kind_name(indent));
    }
    style.ascii = fg_jinja_is_true(nothing(arguments, 0, "ensure_ascii"));
    style.sorted = fg_jinja_is_true(nothing(arguments, 3, "sort_keys"));
    fg_jinja_value separators = nothing(arguments, 2, "separators");
    if (separators.kind == FG_JINJA_LIST && separators.list->count == 2) {
        style.comma = separator(run, separators.list->items[0]);
        style.colon = separator(run, separators.list->items[1]);
    }
    return fg_jinja_to_json(run, value, &style);
}

/* Lines but the first, and those that are empty, get so many spaces in front. */
static fg_jinja_value filter_indent(fg_jinja_run *run, fg_jinja_value value,
                                    const fg_jinja_arguments *arguments)
{
    static const char spaces[] = "                                ";
    fg_jinja_value width = fg_jinja_argument(arguments, 0, "width", fg_jinja_of_integer(4));
    bool first = fg_jinja_is_true(nothing(arguments, 1, "first"));
    bool blank = fg_jinja_is_true(nothing(arguments, 2, "blank"));
    if (value.kind != FG_JINJA_TEXT) {
        fg_jinja_fail(run, "only a string can be indented, not %s", fg_jinja_kind_name(value));
        return fg_jinja_undefined();
    }
    fg_jinja_output output = { .count = 0 };
    fg_jinja_string *with = NULL;
    if (width.kind == FG_JINJA_TEXT) {
        with = width.text;
    } else if (width.kind == FG_JINJA_INTEGER && width.integer >= 0 &&
               width.integer < (int64_t)sizeof spaces) {
        with = text_of(run, fg_jinja_text_of(run, spaces, (size_t)width.integer, false));
    } else {
        fg_jinja_fail(run, "indent takes up to %zu spaces", sizeof spaces - 1);
        return fg_jinja_undefined();
    }
    /* A line end more, as Jinja2 adds it: so the text behind the last one is a line, were it empty. */
    fg_jinja_value more = fg_jinja_text_of(run, "\n", 1, false);
    fg_jinja_value whole = fg_jinja_failed(run) ? more : fg_jinja_join(run, value.text, more.text);
    fg_jinja_value lines =
        fg_jinja_failed(run) ? whole : fg_jinja_split_lines(run, whole.text, false);
    for (size_t i = 0; !fg_jinja_failed(run) && i < lines.list->count; i++) {
        fg_jinja_string *line = lines.list->items[i].text;
        if (i > 0) {
            fg_jinja_emit(run, &output, "\n", 1, false);
        }
        if (i == 0 ? first : blank || line->length > 0) {
            fg_jinja_emit_text(run, &output, with);
        }
        fg_jinja_emit_text(run, &output, line);
    }
    return fg_jinja_text_of_output(run, &output);
}

static fg_jinja_value filter_unique(fg_jinja_run *run, fg_jinja_value value,
                                    const fg_jinja_arguments *arguments)
{
    (void)arguments;
    const fg_jinja_items *items = fg_jinja_iterate(run, value);
    fg_jinja_value list = fg_jinja_list_new(run, 0, false);
    fg_jinja_value seen = fg_jinja_list_new(run, 0, false); /* in lower case: as Jinja2 compares */
    for (size_t i = 0; !fg_jinja_failed(run) && i < items->count; i++) {
        fg_jinja_value item = items->items[i];
        if (item.kind == FG_JINJA_TEXT) {
            item = fg_jinja_change_case(run, item.text, CASE_LOWER);
        }
        if (!fg_jinja_failed(run) && !fg_jinja_contains(run, seen, item)) {
            fg_jinja_list_push(run, seen.list, item);
            fg_jinja_list_push(run, list.list, items->items[i]);
        }
    }
    return list;
}

/* ---- filters that take a filter's or a test's name ---- */

/* The arguments from number `first` on. */
static fg_jinja_arguments rest_of(const fg_jinja_arguments *arguments, size_t first)
{
    fg_jinja_arguments rest = { .named = arguments->named, .named_count = arguments->named_count };
    if (arguments->count > first) {
        rest.values = arguments->values + first;
        rest.count = arguments->count - first;
    }
    return rest;
}

/* Items of a value; nothing of one that counts as false, whatever it is. */
static const fg_jinja_items *items_if_true(fg_jinja_run *run, fg_jinja_value value)
{
    return fg_jinja_iterate(run, fg_jinja_is_true(value) ? value : fg_jinja_undefined());
}

static fg_jinja_value filter_map(fg_jinja_run *run, fg_jinja_value value,
                                 const fg_jinja_arguments *arguments)
{
    const fg_jinja_items *items = items_if_true(run, value);
    fg_jinja_value list = fg_jinja_list_new(run, 0, false);
    fg_jinja_value attribute = nothing(arguments, SIZE_MAX, "attribute");
    fg_jinja_value otherwise = nothing(arguments, SIZE_MAX, "default");
    fg_jinja_value name = nothing(arguments, 0, "filter");
    int index = -1;
    if (attribute.kind != FG_JINJA_TEXT) {
        const char *flat = name.kind == FG_JINJA_TEXT ? fg_jinja_flat(run, name.text) : NULL;
        index = flat == NULL ? -1 : fg_jinja_filter_find(fg_jinja_name_of(flat, name.text->length));
        if (index < 0) {
            fg_jinja_fail(run, "map needs an attribute or the name of a filter");
        }
    }
    fg_jinja_arguments rest = rest_of(arguments, 1);
    for (size_t i = 0; !fg_jinja_failed(run) && i < items->count; i++) {
        fg_jinja_value item = index < 0 ? member(run, items->items[i], attribute.text)
                                        : fg_jinja_filter(run, index, items->items[i], &rest);
        if (index < 0 && item.kind == FG_JINJA_UNDEFINED && otherwise.kind != FG_JINJA_UNDEFINED) {
            item = otherwise;
        }
        fg_jinja_list_push(run, list.list, item);
    }
    return list;
}

/* Items whose value, or a member of it, passes a test, or does not. */
static fg_jinja_value choose(fg_jinja_run *run, fg_jinja_value value,
                             const fg_jinja_arguments *arguments, bool of_member, bool wanted)
{
    const fg_jinja_items *items = items_if_true(run, value);
    fg_jinja_value list = fg_jinja_list_new(run, 0, false);
    fg_jinja_value path = of_member ? nothing(arguments, 0, "attribute") : fg_jinja_undefined();
    fg_jinja_value name = nothing(arguments, of_member ? 1 : 0, "test");
    fg_jinja_arguments rest = rest_of(arguments, of_member ? 2 : 1);
    const char *flat = name.kind == FG_JINJA_TEXT ? fg_jinja_flat(run, name.text) : NULL;
    int test = flat == NULL ? -1 : fg_jinja_test_find(fg_jinja_name_of(flat, name.text->length));
    if ((of_member && path.kind != FG_JINJA_TEXT) || (flat != NULL && test < 0)) {
        fg_jinja_fail(run, "the name of an attribute or of a test is missing");
    }
    for (size_t i = 0; !fg_jinja_failed(run) && i < items->count; i++) {
        fg_jinja_value item = items->items[i];
        if (of_member) {
            item = member(run, item, path.text);
        }
        bool passes = test < 0 ? fg_jinja_is_true(item) : fg_jinja_test(run, test, item, &rest);
        if (passes == wanted) {
            fg_jinja_list_push(run, list.list, items->items[i]);
        }
    }
    return list;
}

static fg_jinja_value filter_select(fg_jinja_run *run, fg_jinja_value value,
                                    const fg_jinja_arguments *arguments)
{
    return choose(run, value, arguments, false, true);
}

static fg_jinja_value filter_reject(fg_jinja_run *run, fg_jinja_value value,
                                    const fg_jinja_arguments *arguments)
{
    return choose(run, value, arguments, false, false);
}

static fg_jinja_value filter_selectattr(fg_jinja_run *run, fg_jinja_value value,
                                        const fg_jinja_arguments *arguments)
{
    return choose(run, value, arguments, true, true);
}

static fg_jinja_value filter_rejectattr(fg_jinja_run *run, fg_jinja_value value,
                                        const fg_jinja_arguments *arguments)
{
    return choose(run, value, arguments, true, false);
}

static const struct {
    const char *name;
    filter_fn run;
} filters[] = {
    { "abs", filter_abs },
    { "capitalize", filter_capitalize },
    { "count", filter_length },
    { "d", filter_default },
    { "default", filter_default },
    { "dictsort", filter_dictsort },
    { "first", filter_first },
    { "float", filter_float },
    { "indent", filter_indent },
    { "int", filter_int },
    { "items", filter_items },
    { "join", filter_join },
    { "last", filter_last },
    { "length", filter_length },
    { "list", filter_list },
    { "lower", filter_lower },
    { "map", filter_map },
    { "reject", filter_reject },
    { "rejectattr", filter_rejectattr },
    { "replace", filter_replace },
    { "reverse", filter_reverse },
    { "safe", filter_safe },
    { "select", filter_select },
    { "selectattr", filter_selectattr },
    { "string", filter_string },
    { "title", filter_title },
    { "tojson", filter_tojson },
    { "trim", filter_trim },
    { "unique", filter_unique },
    { "upper", filter_upper },
};

int fg_jinja_filter_find(fg_jinja_name name)
{
    for (size_t i = 0; i < sizeof filters / sizeof filters[0]; i++) {
        if (fg_jinja_name_is(name, filters[i].name)) {
            return (int)i;
        }
    }
    return -1;
}

fg_jinja_value fg_jinja_filter(fg_jinja_run *run, int index, fg_jinja_value value,
                               const fg_jinja_arguments *arguments)
{
    if (!fg_jinja_step(run, 1) || !fg_jinja_deepen(run)) {
        return fg_jinja_undefined();
    }
    fg_jinja_value result = filters[index].run(run, value, arguments);
    fg_jinja_rise(run);
    return result;
}

/* ---- tests ---- */

typedef enum test_kind {
    TEST_DEFINED,
    TEST_UNDEFINED,
    TEST_NONE,
    TEST_BOOLEAN,
    TEST_TRUE,
    TEST_FALSE,
    TEST_STRING,
    TEST_NUMBER,
    TEST_INTEGER,
    TEST_FLOAT,
    TEST_MAPPING,
    TEST_ITERABLE,
    TEST_SEQUENCE,
    TEST_CALLABLE,
    TEST_ODD,
    TEST_EVEN,
    TEST_DIVISIBLE,
    TEST_EQUAL,
    TEST_SAME,
    TEST_NOT_EQUAL,
    TEST_LESS,
    TEST_LESS_EQUAL,
    TEST_GREATER,
    TEST_GREATER_EQUAL,
    TEST_IN,
    TEST_LOWER,
    TEST_UPPER,
} test_kind;

static const struct {
    const char *name;
    test_kind kind;
} tests[] = {
    { "defined", TEST_DEFINED },
    { "undefined", TEST_UNDEFINED },
    { "none", TEST_NONE },
    { "boolean", TEST_BOOLEAN },
    { "true", TEST_TRUE },
    { "false", TEST_FALSE },
    { "string", TEST_STRING },
    { "number", TEST_NUMBER },
    { "integer", TEST_INTEGER },
    { "float", TEST_FLOAT },
    { "mapping", TEST_MAPPING },
    { "iterable", TEST_ITERABLE },
    { "sequence", TEST_SEQUENCE },
    { "callable", TEST_CALLABLE },
    { "odd", TEST_ODD },
    { "even", TEST_EVEN },
    { "divisibleby", TEST_DIVISIBLE },
    { "equalto", TEST_EQUAL },
    { "eq", TEST_EQUAL },
    { "sameas", TEST_SAME },
    { "ne", TEST_NOT_EQUAL },
    { "lt", TEST_LESS },
    { "lessthan", TEST_LESS },
    { "le", TEST_LESS_EQUAL },
    { "gt", TEST_GREATER },
    { "greaterthan", TEST_GREATER },
    { "ge", TEST_GREATER_EQUAL },
    { "in", TEST_IN },
    { "lower", TEST_LOWER },
    { "upper", TEST_UPPER },
};

int fg_jinja_test_find(fg_jinja_name name)
{
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        if (fg_jinja_name_is(name, tests[i].name)) {
            return (int)i;
        }
    }
    return -1;
}

static bool is_divisible(fg_jinja_run *run, fg_jinja_value value, fg_jinja_value by)
{
    if (!fg_jinja_is_number(value) || !fg_jinja_is_number(by) || fg_jinja_number(by) == 0.0) {
        fg_jinja_fail(run, "%s cannot be divided so", fg_jinja_kind_name(value));
        return false;
    }
    if (value.kind == FG_JINJA_INTEGER && by.kind == FG_JINJA_INTEGER) {
        return by.integer == -1 || value.integer % by.integer == 0;
    }
    return fmod(fg_jinja_number(value), fg_jinja_number(by)) == 0.0;
}

static bool is_all(fg_jinja_run *run, fg_jinja_value value, fg_jinja_case in)
{
    fg_jinja_string *text = text_of(run, value);
    fg_jinja_value changed = fg_jinja_change_case(run, text, in);
    fg_jinja_value other =
        fg_jinja_change_case(run, text, in == CASE_LOWER ? CASE_UPPER : CASE_LOWER);
    fg_jinja_value same = { .kind = FG_JINJA_TEXT, .text = text };
    return !fg_jinja_failed(run) && fg_jinja_equal(run, changed, same) &&
           !fg_jinja_equal(run, other, same);
}

/* Tests that look at the kind alone. */
static bool has_kind(test_kind test, fg_jinja_value value)
{
    switch (test) {
    case TEST_DEFINED:
        return value.kind != FG_JINJA_UNDEFINED;
    case TEST_UNDEFINED:
        return value.kind == FG_JINJA_UNDEFINED;
    case TEST_NONE:
        return value.kind == FG_JINJA_NONE;
    case TEST_BOOLEAN:
        return value.kind == FG_JINJA_BOOL;
    case TEST_TRUE:
        return value.kind == FG_JINJA_BOOL && value.flag;
    case TEST_FALSE:
        return value.kind == FG_JINJA_BOOL && !value.flag;
    case TEST_STRING:
        return value.kind == FG_JINJA_TEXT;
    case TEST_NUMBER:
        return fg_jinja_is_number(value);
    case TEST_INTEGER:
        return value.kind == FG_JINJA_INTEGER;
    case TEST_FLOAT:
        return value.kind == FG_JINJA_REAL;
    case TEST_MAPPING:
        return value.kind == FG_JINJA_MAP;
    case TEST_CALLABLE:
        return value.kind == FG_JINJA_METHOD || value.kind == FG_JINJA_MACRO ||
               value.kind == FG_JINJA_FUNCTION;
    default: /* iterable, sequence: an undefined value is an empty one */
        return value.kind == FG_JINJA_TEXT || value.kind == FG_JINJA_LIST ||
               value.kind == FG_JINJA_MAP || value.kind == FG_JINJA_UNDEFINED;
    }
}

bool fg_jinja_test(fg_jinja_run *run, int index, fg_jinja_value value,
                   const fg_jinja_arguments *arguments)
{
    fg_jinja_value other = nothing(arguments, 0, "");
    if (!fg_jinja_step(run, 1)) {
        return false;
    }
    switch (tests[index].kind) {
    case TEST_ODD: /* value % 2 == 1 */
        return is_divisible(run, value, fg_jinja_of_integer(2)) == false &&
               (value.kind != FG_JINJA_REAL || fabs(fmod(value.real, 2.0)) == 1.0);
    case TEST_EVEN:
        return is_divisible(run, value, fg_jinja_of_integer(2));
    case TEST_DIVISIBLE:
        return is_divisible(run, value, other);
    case TEST_EQUAL:
        return fg_jinja_equal(run, value, other);
    case TEST_SAME:
        return value.kind == other.kind && fg_jinja_equal(run, value, other);
    case TEST_NOT_EQUAL:
        return !fg_jinja_equal(run, value, other);
    case TEST_LESS:
        return fg_jinja_compare(run, value, other) < 0;
    case TEST_LESS_EQUAL:
        return fg_jinja_compare(run, value, other) <= 0;
    case TEST_GREATER:
        return fg_jinja_compare(run, value, other) > 0;
    case TEST_GREATER_EQUAL:
        return fg_jinja_compare(run, value, other) >= 0;
    case TEST_IN:
        return fg_jinja_contains(run, other, value);
    case TEST_LOWER:
        return is_all(run, value, CASE_LOWER);
    case TEST_UPPER:
        return is_all(run, value, CASE_UPPER);
    default:
        return has_kind(tests[index].kind, value);
    }
}
