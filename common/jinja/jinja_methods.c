/* Methods of texts and mappings, and the functions that every template has. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/jinja/jinja_internal.h"

enum { DATE_BYTES_MAX = 256, RANGE_MAX = 100000 };

typedef enum method_id {
    METHOD_GET,
    METHOD_ITEMS,
    METHOD_KEYS,
    METHOD_VALUES,
    METHOD_STARTSWITH,
    METHOD_ENDSWITH,
    METHOD_STRIP,
    METHOD_LSTRIP,
    METHOD_RSTRIP,
    METHOD_SPLIT,
    METHOD_RSPLIT,
    METHOD_SPLITLINES,
    METHOD_REPLACE,
    METHOD_LOWER,
    METHOD_UPPER,
    METHOD_TITLE,
    METHOD_CAPITALIZE,
    METHOD_FIND,
    METHOD_COUNT,
    METHOD_JOIN,
    METHOD_ISDIGIT,
    METHOD_REMOVEPREFIX,
    METHOD_REMOVESUFFIX,
    METHOD_LIST_COUNT,
    METHOD_LIST_INDEX,
} method_id;

static const struct {
    const char *name;
    fg_jinja_kind kind;
    method_id id;
} methods[] = {
    { "get", FG_JINJA_MAP, METHOD_GET },
    { "items", FG_JINJA_MAP, METHOD_ITEMS },
    { "keys", FG_JINJA_MAP, METHOD_KEYS },
    { "values", FG_JINJA_MAP, METHOD_VALUES },
    { "count", FG_JINJA_LIST, METHOD_LIST_COUNT },
    { "index", FG_JINJA_LIST, METHOD_LIST_INDEX },
    { "startswith", FG_JINJA_TEXT, METHOD_STARTSWITH },
    { "endswith", FG_JINJA_TEXT, METHOD_ENDSWITH },
    { "strip", FG_JINJA_TEXT, METHOD_STRIP },
    { "lstrip", FG_JINJA_TEXT, METHOD_LSTRIP },
    { "rstrip", FG_JINJA_TEXT, METHOD_RSTRIP },
    { "split", FG_JINJA_TEXT, METHOD_SPLIT },
    { "rsplit", FG_JINJA_TEXT, METHOD_RSPLIT },
    { "splitlines", FG_JINJA_TEXT, METHOD_SPLITLINES },
    { "replace", FG_JINJA_TEXT, METHOD_REPLACE },
    { "lower", FG_JINJA_TEXT, METHOD_LOWER },
    { "upper", FG_JINJA_TEXT, METHOD_UPPER },
    { "title", FG_JINJA_TEXT, METHOD_TITLE },
    { "capitalize", FG_JINJA_TEXT, METHOD_CAPITALIZE },
    { "find", FG_JINJA_TEXT, METHOD_FIND },
    { "count", FG_JINJA_TEXT, METHOD_COUNT },
    { "join", FG_JINJA_TEXT, METHOD_JOIN },
    { "isdigit", FG_JINJA_TEXT, METHOD_ISDIGIT },
    { "removeprefix", FG_JINJA_TEXT, METHOD_REMOVEPREFIX },
    { "removesuffix", FG_JINJA_TEXT, METHOD_REMOVESUFFIX },
};

int fg_jinja_method_find(fg_jinja_kind kind, fg_jinja_name name)
{
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        if (methods[i].kind == kind && fg_jinja_name_is(name, methods[i].name)) {
            return (int)i;
        }
    }
    return -1;
}

/* Argument `index` as a text; NULL when it is missing or None. */
static fg_jinja_string *text_argument(fg_jinja_run *run, const fg_jinja_arguments *arguments,
                                      size_t index, const char *name)
{
    fg_jinja_value value = fg_jinja_argument(arguments, index, name, fg_jinja_none());
    if (value.kind == FG_JINJA_NONE) {
        return NULL;
    }
    if (value.kind != FG_JINJA_TEXT) {
        fg_jinja_fail(run, "a method of a string needs a string, not %s",
                      fg_jinja_kind_name(value));
        return NULL;
    }
    return value.text;
}

static fg_jinja_string *needed_text(fg_jinja_run *run, const fg_jinja_arguments *arguments,
                                    size_t index)
{
    fg_jinja_string *text = text_argument(run, arguments, index, "");
    if (text == NULL) {
        fg_jinja_fail(run, "a method of a string lacks an argument");
    }
    return text;
}

static int64_t count_argument(const fg_jinja_arguments *arguments, size_t index, const char *name)
{
    fg_jinja_value value = fg_jinja_argument(arguments, index, name, fg_jinja_of_integer(-1));
    return value.kind == FG_JINJA_INTEGER ? value.integer : -1;
}

static fg_jinja_value map_method(fg_jinja_run *run, method_id id, const fg_jinja_dict *map,
                                 const fg_jinja_arguments *arguments)
{
    if (id == METHOD_ITEMS) {
        return fg_jinja_map_items(run, map);
    }
    if (id == METHOD_GET) {
        fg_jinja_value key = fg_jinja_argument(arguments, 0, "key", fg_jinja_none());
        const char *flat = key.kind == FG_JINJA_TEXT ? fg_jinja_flat(run, key.text) : NULL;
        const fg_jinja_value *found =
            flat == NULL ? NULL : fg_jinja_get(run, map, fg_jinja_name_of(flat, key.text->length));
        return found != NULL ? *found : fg_jinja_argument(arguments, 1, "default", fg_jinja_none());
    }
    fg_jinja_value list = fg_jinja_list_new(run, map->count, false);
    for (size_t i = 0; i < map->count && !fg_jinja_failed(run); i++) {
        fg_jinja_list_push(run, list.list,
                           id == METHOD_KEYS ? fg_jinja_key(run, &map->entries[i])
                                             : map->entries[i].value);
    }
    return list;
}

/* How many items are equal to the argument, or where the first of them is. */
static fg_jinja_value list_method(fg_jinja_run *run, method_id id, const fg_jinja_items *list,
                                  const fg_jinja_arguments *arguments)
{
    fg_jinja_value wanted = fg_jinja_argument(arguments, 0, "", fg_jinja_none());
    int64_t found = 0;
    for (size_t i = 0; i < list->count && !fg_jinja_failed(run); i++) {
        if (fg_jinja_equal(run, list->items[i], wanted)) {
            if (id == METHOD_LIST_INDEX) {
                return fg_jinja_of_integer((int64_t)i);
            }
            found++;
        }
    }
    if (id == METHOD_LIST_INDEX) {
        fg_jinja_fail(run, "%s is not in the list", fg_jinja_kind_name(wanted));
    }
    return fg_jinja_of_integer(found);
}

/* Whether the text has one of the affixes, a text or a list of them, at its begin or end. */
static bool has_affix(fg_jinja_run *run, fg_jinja_string *text, fg_jinja_value affix, bool at_end)
{
    if (affix.kind == FG_JINJA_LIST) {
        bool has = false;
        if (fg_jinja_deepen(run)) {
            for (size_t i = 0; i < affix.list->count && !has; i++) {
                has = has_affix(run, text, affix.list->items[i], at_end);
            }
            fg_jinja_rise(run);
        }
        return has;
    }
    if (affix.kind != FG_JINJA_TEXT) {
        fg_jinja_fail(run, "a string does not begin or end with %s", fg_jinja_kind_name(affix));
        return false;
    }
    const char *flat = fg_jinja_flat(run, text);
    const char *wanted = fg_jinja_flat(run, affix.text);
    size_t length = affix.text->length;
    return flat != NULL && wanted != NULL && length <= text->length &&
           fg_jinja_step(run, 1 + length / 64) &&
           memcmp(flat + (at_end ? text->length - length : 0), wanted, length) == 0;
}

static fg_jinja_value without_affix(fg_jinja_run *run, fg_jinja_string *text,
                                    fg_jinja_string *affix, bool at_end)
{
    if (affix == NULL) {
        return fg_jinja_undefined();
    }
    fg_jinja_value value = { .kind = FG_JINJA_TEXT, .text = affix };
    size_t cut = has_affix(run, text, value, at_end) ? affix->length : 0;
    return fg_jinja_cut(run, text, at_end ? 0 : cut, at_end ? text->length - cut : text->length);
}

static fg_jinja_value joined(fg_jinja_run *run, const fg_jinja_string *between,
                             const fg_jinja_arguments *arguments)
{
    const fg_jinja_items *items =
        fg_jinja_iterate(run, fg_jinja_argument(arguments, 0, "", fg_jinja_none()));
    fg_jinja_output output = { .count = 0 };
    for (size_t i = 0; !fg_jinja_failed(run) && i < items->count; i++) {
        if (items->items[i].kind != FG_JINJA_TEXT) {
            fg_jinja_fail(run, "join needs strings, not %s", fg_jinja_kind_name(items->items[i]));
            break;
        }
        if (i > 0) {
            fg_jinja_emit_text(run, &output, between);
        }
        fg_jinja_emit_text(run, &output, items->items[i].text);
    }
    return fg_jinja_text_of_output(run, &output);
}

/* Where a text is, as characters; or how often, without overlap. */
static fg_jinja_value sought(fg_jinja_run *run, fg_jinja_string *text, fg_jinja_string *part,
                             bool count)
{
    if (part == NULL || part->length == 0) {
        fg_jinja_fail(run, "an empty string is not looked for");
        return fg_jinja_undefined();
    }
    size_t at = fg_jinja_find(run, text, part, 0);
    if (!count) {
        fg_jinja_value front =
            at == SIZE_MAX ? fg_jinja_undefined() : fg_jinja_cut(run, text, 0, at);
        return fg_jinja_of_integer(
            front.kind == FG_JINJA_TEXT ? (int64_t)fg_jinja_characters(run, front.text) : -1);
    }
    int64_t found = 0;
    for (; at != SIZE_MAX && !fg_jinja_failed(run); found++) {
        at = fg_jinja_find(run, text, part, at + part->length);
    }
    return fg_jinja_of_integer(found);
}

static bool all_digits(fg_jinja_run *run, fg_jinja_string *text)
{
    const char *flat = fg_jinja_flat(run, text);
    for (size_t i = 0; flat != NULL && i < text->length; i++) {
        if (flat[i] < '0' || flat[i] > '9') {
            return false;
        }
    }
    return text->length > 0 && fg_jinja_step(run, text->length / 64);
}

static fg_jinja_value text_method(fg_jinja_run *run, method_id id, fg_jinja_string *text,
                                  const fg_jinja_arguments *arguments)
{
    switch (id) {
    case METHOD_STARTSWITH:
    case METHOD_ENDSWITH:
        return fg_jinja_of_bool(has_affix(run, text,
                                          fg_jinja_argument(arguments, 0, "", fg_jinja_none()),
                                          id == METHOD_ENDSWITH));
    case METHOD_STRIP:
    case METHOD_LSTRIP:
    case METHOD_RSTRIP:
        return fg_jinja_strip(run, text, text_argument(run, arguments, 0, "chars"),
                              id != METHOD_RSTRIP, id != METHOD_LSTRIP);
    case METHOD_SPLIT:
    case METHOD_RSPLIT:
        return fg_jinja_split(run, text, text_argument(run, arguments, 0, "sep"),
                              count_argument(arguments, 1, "maxsplit"), id == METHOD_RSPLIT);
    case METHOD_SPLITLINES:
        return fg_jinja_split_lines(
            run, text,
            fg_jinja_is_true(fg_jinja_argument(arguments, 0, "keepends", fg_jinja_undefined())));
    case METHOD_REPLACE: {
        fg_jinja_string *from = needed_text(run, arguments, 0);
        fg_jinja_string *to = needed_text(run, arguments, 1);
        return fg_jinja_failed(run)
                   ? fg_jinja_undefined()
                   : fg_jinja_replace(run, text, from, to, count_argument(arguments, 2, "count"));
    }
    case METHOD_LOWER:
        return fg_jinja_change_case(run, text, CASE_LOWER);
    case METHOD_UPPER:
        return fg_jinja_change_case(run, text, CASE_UPPER);
    case METHOD_TITLE:
        return fg_jinja_change_case(run, text, CASE_TITLE);
    case METHOD_CAPITALIZE:
        return fg_jinja_change_case(run, text, CASE_CAPITALIZE);
    case METHOD_FIND:
    case METHOD_COUNT:
        return sought(run, text, needed_text(run, arguments, 0), id == METHOD_COUNT);
    case METHOD_JOIN:
        return joined(run, text, arguments);
    case METHOD_ISDIGIT:
        return fg_jinja_of_bool(all_digits(run, text));
    default:
        return without_affix(run, text, needed_text(run, arguments, 0), id == METHOD_REMOVESUFFIX);
    }
}

fg_jinja_value fg_jinja_call_method(fg_jinja_run *run, const fg_jinja_method *method,
                                    const fg_jinja_arguments *arguments)
{
    method_id id = methods[method->index].id;
    if (method->self->kind == FG_JINJA_LIST) {
        return list_method(run, id, method->self->list, arguments);
    }
    return method->self->kind == FG_JINJA_MAP ? map_method(run, id, method->self->map, arguments)
                                              : text_method(run, id, method->self->text, arguments);
}

/* ---- functions ---- */

static fg_jinja_value function_dict(fg_jinja_run *run, const fg_jinja_arguments *arguments)
{
    fg_jinja_value map = fg_jinja_map_new(run);
    for (size_t i = 0; i < arguments->count && !fg_jinja_failed(run); i++) {
        fg_jinja_value from = arguments->values[i];
        if (from.kind != FG_JINJA_MAP) {
            fg_jinja_fail(run, "%s is no mapping", fg_jinja_kind_name(from));
        }
        for (size_t k = 0; !fg_jinja_failed(run) && k < from.map->count; k++) {
            fg_jinja_put(run, map.map, from.map->entries[k].key, from.map->entries[k].key_of_client,
                         from.map->entries[k].value);
        }
    }
    for (size_t i = 0; i < arguments->named_count && !fg_jinja_failed(run); i++) {
        fg_jinja_put(run, map.map, arguments->named[i].name, false, arguments->named[i].value);
    }
    return map;
}

static fg_jinja_value function_range(fg_jinja_run *run, const fg_jinja_arguments *arguments)
{
    int64_t bounds[3] = { 0, 0, 1 };
    for (size_t i = 0; i < arguments->count && i < 3; i++) {
        if (arguments->values[i].kind != FG_JINJA_INTEGER) {
            fg_jinja_fail(run, "range needs integers");
            return fg_jinja_undefined();
        }
        bounds[arguments->count == 1 ? 1 : i] = arguments->values[i].integer;
    }
    fg_jinja_value list = fg_jinja_list_new(run, 0, false);
    if (arguments->count == 0 || bounds[2] == 0) {
        fg_jinja_fail(run, "range needs a bound, and a step that is not 0");
    }
    int64_t at = bounds[0];
    while (!fg_jinja_failed(run) && (bounds[2] > 0 ? at < bounds[1] : at > bounds[1])) {
        if (list.list->count == RANGE_MAX) {
            fg_jinja_fail(run, "a range of more than %d", RANGE_MAX);
        }
        fg_jinja_list_push(run, list.list, fg_jinja_of_integer(at));
        if (__builtin_add_overflow(at, bounds[2], &at)) {
            break;
        }
    }
    return list;
}

static fg_jinja_value function_raise(fg_jinja_run *run, const fg_jinja_arguments *arguments)
{
    fg_jinja_value text =
        fg_jinja_to_text(run, fg_jinja_argument(arguments, 0, "message", fg_jinja_undefined()));
    const char *flat = text.kind == FG_JINJA_TEXT ? fg_jinja_flat(run, text.text) : NULL;
    if (flat != NULL) {
        fg_jinja_fail(run, "%.*s", (int)(text.text->length < 240 ? text.text->length : 240), flat);
    }
    return fg_jinja_undefined();
}

static fg_jinja_value function_now(fg_jinja_run *run, const fg_jinja_arguments *arguments)
{
    fg_jinja_value format = fg_jinja_argument(arguments, 0, "format", fg_jinja_none());
    const char *flat = format.kind == FG_JINJA_TEXT ? fg_jinja_flat(run, format.text) : NULL;
    char pattern[DATE_BYTES_MAX / 8];
    char *shown = fg_jinja_take(run, DATE_BYTES_MAX, 1);
    time_t now = (time_t)run->now_s;
    struct tm parts;
    if (flat == NULL || shown == NULL || format.text->length >= sizeof pattern ||
        gmtime_r(&now, &parts) == NULL) {
        fg_jinja_fail(run, "strftime_now needs a short format");
        return fg_jinja_undefined();
    }
    memcpy(pattern, flat, format.text->length);
    pattern[format.text->length] = '\0';
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    size_t length = strftime(shown, DATE_BYTES_MAX, pattern, &parts);
#pragma GCC diagnostic pop
    return fg_jinja_text_of(run, shown, length, fg_jinja_is_of_client(format.text));
}

static fg_jinja_value function_namespace(fg_jinja_run *run, const fg_jinja_arguments *arguments)
{
    fg_jinja_value map = function_dict(run, arguments);
    if (map.kind == FG_JINJA_MAP) {
        map.kind = FG_JINJA_NAMESPACE;
    }
    return map;
}

static const struct {
    const char *name;
    fg_jinja_value (*run)(fg_jinja_run *run, const fg_jinja_arguments *arguments);
} functions[] = {
    { "namespace", function_namespace }, { "dict", function_dict },
    { "range", function_range },         { "raise_exception", function_raise },
    { "strftime_now", function_now },
};

int fg_jinja_function_find(fg_jinja_name name)
{
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        if (fg_jinja_name_is(name, functions[i].name)) {
            return (int)i;
        }
    }
    return -1;
}

fg_jinja_value fg_jinja_call_function(fg_jinja_run *run, int index,
                                      const fg_jinja_arguments *arguments)
{
    return functions[index].run(run, arguments);
}
