/*
 * json - reads one JSON text (RFC 8259) strictly. The only code that knows jansson.
 *
 * Refused: duplicate keys, nesting deeper than FG_LIMIT_JSON_DEPTH, invalid UTF-8, lone surrogates,
 * \u0000, raw control characters, NaN and numbers out of range, text after the value. The document
 * owns its nodes: they stay valid until fg_json_destroy. Integers are signed 64-bit.
 * Writing JSON of one's own needs no tree: see fg_buf_json_escape.
 */
#ifndef FORGE_COMMON_BASE_JSON_H
#define FORGE_COMMON_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/status.h"

typedef struct fg_json fg_json;           /* a parsed document */
typedef struct fg_json_node fg_json_node; /* a value inside it, borrowed */

typedef enum fg_json_type {
    FG_JSON_ABSENT = 0, /* the type of a NULL node */
    FG_JSON_OBJECT,
    FG_JSON_ARRAY,
    FG_JSON_STRING,
    FG_JSON_INTEGER, /* a number without fraction and exponent */
    FG_JSON_REAL,
    FG_JSON_BOOL,
    FG_JSON_NULL,
} fg_json_type;

/* FG_BAD_INPUT says what is wrong and where (line, column, position); FG_AGAIN: out of memory. */
fg_status fg_json_parse(const char *text, size_t length, fg_json **json_out, fg_error *err);
/* Refuses more values than so many before they cost time; fg_json_parse takes FG_LIMIT_JSON_VALUES. */
fg_status fg_json_parse_up_to(const char *text, size_t length, size_t values_max,
                              fg_json **json_out, fg_error *err);
/* The same with limits of one's own, for files that the operator gave. */
typedef struct fg_json_limits {
    size_t values_max, groups_max; /* groups: arrays and objects */
} fg_json_limits;
fg_status fg_json_parse_within(const char *text, size_t length, const fg_json_limits *limits,
                               fg_json **json_out, fg_error *err);
/* Values of the array that is the outermost object's member `key`, counted in a text that has too many of them to be parsed; 0:
 * there is no such array. The text need not be JSON; of several such arrays, the first. */
size_t fg_json_count_list(const char *text, size_t length, const char *key);
void fg_json_destroy(fg_json *json);
const fg_json_node *fg_json_root(const fg_json *json);

/* All below accept NULL (an absent value), which has no type, no members and no value. */
fg_json_type fg_json_type_of(const fg_json_node *node);
/* "object", "array", ... for error texts. */
const char *fg_json_type_name(fg_json_type type);
static inline bool fg_json_is(const fg_json_node *node, fg_json_type type)
{
    return fg_json_type_of(node) == type;
}

/* The member named `key`; NULL when there is none or `object` is no object. */
const fg_json_node *fg_json_get(const fg_json_node *object, const char *key);
/* Elements of an array or members of an object; 0 for the rest. */
size_t fg_json_size(const fg_json_node *node);
/* NULL when out of range or no array. */
const fg_json_node *fg_json_at(const fg_json_node *array, size_t index);

/* Walks an object's members in the order of the text: *cursor starts as NULL; returns NULL at the
 * end. The key is NUL-terminated. */
const fg_json_node *fg_json_next(const fg_json_node *object, void **cursor, const char **key_out);

/* NUL-terminated text and its length; NULL when this is no string. `length_out` may be NULL. */
const char *fg_json_string(const fg_json_node *node, size_t *length_out);
/* The rest return false, and write nothing, when the value is of another type. */
bool fg_json_integer(const fg_json_node *node, int64_t *value_out);
/* Integers count as numbers too. */
bool fg_json_number(const fg_json_node *node, double *value_out);
bool fg_json_bool(const fg_json_node *node, bool *value_out);

/* Appends the value as JSON without white space, members in the order of the text. False: out of memory, or the buffer is
 * full. */
bool fg_json_write(const fg_json_node *node, fg_buf *out);

#endif
