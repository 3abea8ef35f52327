#include "common/base/json.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "common/base/limits.h"
#include "common/base/mem.h"

struct fg_json {
    json_t *root;
};

static pthread_once_t alloc_once = PTHREAD_ONCE_INIT;

/* jansson reports many a failed allocation as a syntax error, and overlooks others: kept here. */
static _Thread_local bool alloc_failed;

static void *alloc(size_t size_bytes)
{
    void *memory = fg_mem_alloc(size_bytes);
    alloc_failed = alloc_failed || memory == NULL;
    return memory;
}

static void set_allocator(void)
{
    json_set_alloc_funcs(alloc, fg_mem_free);
}

static const json_t *value_of(const fg_json_node *node)
{
    return (const json_t *)node;
}

/* Nesting and values are counted before parsing: jansson's own limit of nesting (2048, recursive) is not
 * ours, and an empty object of two characters takes it two hundred bytes. Brackets are balanced by the
 * parser later; here only their depth and number matter. */
static fg_status check_shape(const char *text, size_t length, const fg_json_limits *limits,
                             fg_error *err)
{
    size_t depth = 0, groups = 0, values = 0;
    bool in_string = false;
    for (size_t at = 0; at < length; at++) {
        char c = text[at];
        if (in_string) {
            if (c == '\\') {
                at++;
            } else if (c == '"') {
                in_string = false;
            }
        } else if (c == '"') {
            in_string = true;
        } else if (c == ',') {
            values++;
        } else if (c == '[' || c == '{') {
            depth++;
            groups++;
            if (depth > FG_LIMIT_JSON_DEPTH) {
                return fg_fail(err, FG_BAD_INPUT,
                               "JSON nested deeper than %u levels at position %zu",
                               FG_LIMIT_JSON_DEPTH, at);
            }
        } else if ((c == ']' || c == '}') && depth > 0) {
            depth--;
        }
    }
    if (groups > limits->groups_max || values > limits->values_max) {
        return fg_fail(err, FG_BAD_INPUT,
                       "JSON with more than %zu arrays and objects, or %zu values",
                       limits->groups_max, limits->values_max);
    }
    return FG_OK;
}

static size_t skip_space(const char *text, size_t length, size_t at)
{
    while (at < length && strchr(" \t\r\n", text[at]) != NULL && text[at] != '\0') {
        at++;
    }
    return at;
}

/* Behind the string whose opening quote is at `at`. */
static size_t skip_string(const char *text, size_t length, size_t at)
{
    for (at++; at < length && text[at] != '"'; at++) {
        at += text[at] == '\\';
    }
    return at < length ? at + 1 : length;
}

/* Whether a string, from its quote on, is `key` and names an array; *at_out is behind its bracket then. */
static bool names_list(const char *text, size_t length, size_t at, const char *key, size_t *at_out)
{
    size_t bytes = strlen(key);
    if (length - at < bytes + 2 || memcmp(text + at + 1, key, bytes) != 0 ||
        text[at + 1 + bytes] != '"') {
        return false;
    }
    at = skip_space(text, length, at + bytes + 2);
    if (at == length || text[at] != ':') {
        return false;
    }
    at = skip_space(text, length, at + 1);
    if (at == length || text[at] != '[') {
        return false;
    }
    *at_out = at + 1;
    return true;
}

size_t fg_json_count_list(const char *text, size_t length, const char *key)
{
    size_t depth = 0, values = 0;
    for (size_t at = 0; at < length; at++) {
        char c = text[at];
        if (c == '"') {
            if (values == 0 && depth == 1 && names_list(text, length, at, key, &at)) {
                values = 1;
                depth++;
                at--;
            } else {
                at = skip_string(text, length, at) - 1;
            }
        } else if (c == '[' || c == '{') {
            depth++;
        } else if ((c == ']' || c == '}') && depth > 0) {
            depth--;
            if (values > 0 && depth == 1) {
                return values;
            }
        } else {
            values += c == ',' && values > 0;
        }
    }
    return values;
}

fg_status fg_json_parse(const char *text, size_t length, fg_json **json_out, fg_error *err)
{
    return fg_json_parse_up_to(text, length, FG_LIMIT_JSON_VALUES, json_out, err);
}

fg_status fg_json_parse_up_to(const char *text, size_t length, size_t values_max,
                              fg_json **json_out, fg_error *err)
{
    const fg_json_limits limits = { .values_max = values_max, .groups_max = FG_LIMIT_JSON_GROUPS };
    return fg_json_parse_within(text, length, &limits, json_out, err);
}

fg_status fg_json_parse_within(const char *text, size_t length, const fg_json_limits *limits,
                               fg_json **json_out, fg_error *err)
{
    pthread_once(&alloc_once, set_allocator);
    const char *nul = length > 0 ? memchr(text, '\0', length) : NULL;
    if (nul != NULL) {
        return fg_fail(err, FG_BAD_INPUT, "a NUL byte at position %zu", (size_t)(nul - text));
    }
    fg_status status = check_shape(text, length, limits, err);
    if (status != FG_OK) {
        return status;
    }
    fg_json *json = fg_mem_alloc(sizeof *json);
    if (json == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for JSON");
    }
    json_error_t error = { .line = -1 };
    alloc_failed = false;
    json->root = json_loadb(text, length, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    if (json->root != NULL && !alloc_failed) {
        *json_out = json;
        return FG_OK;
    }
    fg_json_destroy(json);
    if (alloc_failed) {
        return fg_fail(err, FG_AGAIN, "out of memory for JSON");
    }
    if (strstr(error.text, "JSON_ALLOW_NUL") != NULL) {
        snprintf(error.text, sizeof error.text, "\\u0000 is not allowed in a string");
    }
    if (strstr(error.text, "too big") != NULL) {
        snprintf(error.text, sizeof error.text, "a number is too large");
    }
    /* The piece of the text that jansson quotes may hold line ends and other controls. */
    for (char *c = error.text; *c != '\0'; c++) {
        if ((unsigned char)*c < ' ' || *c == 0x7F) {
            *c = '.';
        }
    }
    return fg_fail(err, FG_BAD_INPUT, "%s at line %d column %d (position %d)", error.text,
                   error.line, error.column, error.position);
}

void fg_json_destroy(fg_json *json)
{
    if (json != NULL) {
        json_decref(json->root);
        fg_mem_free(json);
    }
}

const fg_json_node *fg_json_root(const fg_json *json)
{
    return (const fg_json_node *)json->root;
}

fg_json_type fg_json_type_of(const fg_json_node *node)
{
    if (node == NULL) {
        return FG_JSON_ABSENT;
    }
    switch (json_typeof(value_of(node))) {
    case JSON_OBJECT:
        return FG_JSON_OBJECT;
    case JSON_ARRAY:
        return FG_JSON_ARRAY;
    case JSON_STRING:
        return FG_JSON_STRING;
    case JSON_INTEGER:
        return FG_JSON_INTEGER;
    case JSON_REAL:
        return FG_JSON_REAL;
    case JSON_TRUE:
    case JSON_FALSE:
        return FG_JSON_BOOL;
    case JSON_NULL:
        return FG_JSON_NULL;
    }
    return FG_JSON_ABSENT;
}

const char *fg_json_type_name(fg_json_type type)
{
    static const char *const names[] = { "absent",  "object", "array",   "string",
                                         "integer", "number", "boolean", "null" };
    return names[type];
}

const fg_json_node *fg_json_get(const fg_json_node *object, const char *key)
{
    return (const fg_json_node *)json_object_get(value_of(object), key);
}

size_t fg_json_size(const fg_json_node *node)
{
    if (fg_json_is(node, FG_JSON_ARRAY)) {
        return json_array_size(value_of(node));
    }
    return json_object_size(value_of(node));
}

const fg_json_node *fg_json_at(const fg_json_node *array, size_t index)
{
    return (const fg_json_node *)json_array_get(value_of(array), index);
}

const fg_json_node *fg_json_next(const fg_json_node *object, void **cursor, const char **key_out)
{
    if (!fg_json_is(object, FG_JSON_OBJECT)) {
        return NULL;
    }
    /* jansson takes a mutable object although walking changes nothing. */
    json_t *mutable = (json_t *)(uintptr_t)object;
    *cursor = *cursor == NULL ? json_object_iter(mutable) : json_object_iter_next(mutable, *cursor);
    if (*cursor == NULL) {
        return NULL;
    }
    *key_out = json_object_iter_key(*cursor);
    return (const fg_json_node *)json_object_iter_value(*cursor);
}

const char *fg_json_string(const fg_json_node *node, size_t *length_out)
{
    const char *text = json_string_value(value_of(node));
    if (text != NULL && length_out != NULL) {
        *length_out = json_string_length(value_of(node));
    }
    return text;
}

bool fg_json_integer(const fg_json_node *node, int64_t *value_out)
{
    if (!fg_json_is(node, FG_JSON_INTEGER)) {
        return false;
    }
    *value_out = (int64_t)json_integer_value(value_of(node));
    return true;
}

bool fg_json_number(const fg_json_node *node, double *value_out)
{
    if (!fg_json_is(node, FG_JSON_INTEGER) && !fg_json_is(node, FG_JSON_REAL)) {
        return false;
    }
    *value_out = json_number_value(value_of(node));
    return true;
}

bool fg_json_bool(const fg_json_node *node, bool *value_out)
{
    if (!fg_json_is(node, FG_JSON_BOOL)) {
        return false;
    }
    *value_out = json_typeof(value_of(node)) == JSON_TRUE;
    return true;
}

static int write_part(const char *bytes, size_t size_bytes, void *ctx)
{
    return fg_buf_append(ctx, bytes, size_bytes) ? 0 : -1;
}

bool fg_json_write(const fg_json_node *node, fg_buf *out)
{
    return json_dump_callback(value_of(node), write_part, out, JSON_COMPACT | JSON_ENCODE_ANY) == 0;
}
