/*
 * schema_internal - what is known of a value that must match some schemas at once.
 *
 * A shape is the intersection of the keywords of all its schemas, but for anyOf and oneOf, which stay in `choices` until the
 * shape is written once for each of their branches.
 */
#ifndef FORGE_COMMON_GRAMMAR_SCHEMA_INTERNAL_H
#define FORGE_COMMON_GRAMMAR_SCHEMA_INTERNAL_H

#include "common/grammar/grammar_internal.h"

enum {
    FG_TYPE_NULL = 1,
    FG_TYPE_BOOL = 2,
    FG_TYPE_OBJECT = 4,
    FG_TYPE_ARRAY = 8,
    FG_TYPE_STRING = 16,
    FG_TYPE_REAL = 32, /* numbers that need not be integers have this one too */
    FG_TYPE_INTEGER = 64,
    FG_TYPE_ALL = 127,
};

/* Longer limits than this are brought down to it, and lower ones above it refused. */
enum { FG_SCHEMA_COUNT_MAX = 16384 };

/* A schema and where it is, as a JSON pointer. */
typedef struct fg_source {
    const fg_json_node *node;
    const char *path;
} fg_source;

typedef struct fg_sources {
    fg_source *items;
    uint32_t count;
    uint32_t capacity;
} fg_sources;

typedef struct fg_shape {
    unsigned types;
    bool typed;        /* something said which types: nothing is to be guessed */
    unsigned families; /* types that keywords are about */
    uint32_t length_least;
    uint32_t length_most; /* FG_REPEAT_ENDLESS: any */
    fg_source pattern;
    fg_source format;
    fg_source limits; /* the last schema that limits numbers; node NULL: none */
    int64_t integer_least, integer_most;
    double real_least, real_most;
    bool above, below; /* the limit itself is none */
    uint32_t items_least, items_most;
    uint32_t members_least, members_most;
    fg_sources objects; /* schemas with keywords about members */
    fg_sources arrays;  /* ... about items */
    fg_sources values;  /* allowed ones; only with has_values */
    bool has_values;
    fg_sources choices; /* lists of branches */
} fg_shape;

typedef struct fg_memo fg_memo;

typedef struct fg_schema {
    fg_build *build;
    const fg_json_node *root;
    fg_memo **memos;  /* hash table of schemas that have a rule */
    fg_memo *waiting; /* rules whose schemas are not yet written */
    fg_memo *newest;
    uint32_t branches; /* shapes written because of choices, all together */
    struct {
        uint32_t least, most, rule;
    } strings[64]; /* rules of strings of such lengths */
    uint32_t string_count;
} fg_schema;

enum { FG_SCHEMA_MEMOS = 1024, FG_SCHEMA_BRANCHES_MAX = 4096, FG_SCHEMA_REFS_MAX = 64 };

/* A schema's path with one more step; long ones keep their end. */
const char *fg_schema_path(fg_schema *schema, const char *path, const char *step);
fg_source fg_schema_member(fg_schema *schema, fg_source source, const char *key);
fg_source fg_schema_element(fg_schema *schema, fg_source source, size_t index);
void fg_sources_add(fg_schema *schema, fg_sources *sources, fg_source source);
/* A shape that shares nothing that grows. */
fg_shape fg_shape_copy(const fg_shape *shape);
void fg_shape_init(fg_shape *shape);
/* Adds what a schema says. */
void fg_shape_collect(fg_schema *schema, fg_shape *shape, fg_source source);
/* Whether no value matches both; false where that is not seen. */
bool fg_shapes_apart(fg_schema *schema, const fg_shape *a, const fg_shape *b);
/* Follows a schema that is a $ref and nothing else. */
fg_source fg_schema_follow(fg_schema *schema, fg_source source);

/* A call of the rule for values that match all of these. */
fg_gnode *fg_schema_value(fg_schema *schema, const fg_sources *sources);
fg_gnode *fg_shape_object(fg_schema *schema, const fg_shape *shape);
fg_gnode *fg_shape_array(fg_schema *schema, const fg_shape *shape);

#endif
