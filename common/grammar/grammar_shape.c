/* Reads schemas into shapes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/grammar/schema_internal.h"

enum { PATH_MAX_BYTES = 160 };

const char *fg_schema_path(fg_schema *schema, const char *path, const char *step)
{
    size_t before = strlen(path), after = strlen(step);
    const char *cut = "";
    if (after > PATH_MAX_BYTES / 2) {
        step += after - PATH_MAX_BYTES / 2;
        after = PATH_MAX_BYTES / 2;
    }
    if (before + after > PATH_MAX_BYTES) {
        path += before + after - PATH_MAX_BYTES;
        before = strlen(path);
        cut = "...";
    }
    char *joined = (char *)fg_build_alloc(schema->build, before + after + 8, 1);
    if (joined == NULL) {
        return "#";
    }
    snprintf(joined, before + after + 8, "%s%s/%s", cut, path, step);
    return joined;
}

fg_source fg_schema_member(fg_schema *schema, fg_source source, const char *key)
{
    const fg_json_node *node = fg_json_get(source.node, key);
    return (fg_source){ node, node == NULL ? "" : fg_schema_path(schema, source.path, key) };
}

fg_source fg_schema_element(fg_schema *schema, fg_source source, size_t index)
{
    char step[24];
    snprintf(step, sizeof step, "%zu", index);
    return (fg_source){ fg_json_at(source.node, index), fg_schema_path(schema, source.path, step) };
}

void fg_sources_add(fg_schema *schema, fg_sources *sources, fg_source source)
{
    if (sources->count == sources->capacity) {
        uint32_t larger = sources->capacity == 0 ? 2 : sources->capacity * 2;
        fg_source *items = (fg_source *)fg_build_alloc(schema->build, larger, sizeof *items);
        if (items == NULL) {
            return;
        }
        if (sources->count > 0) {
            memcpy(items, sources->items, sources->count * sizeof *items);
        }
        sources->items = items;
        sources->capacity = larger;
    }
    sources->items[sources->count++] = source;
}

fg_shape fg_shape_copy(const fg_shape *shape)
{
    fg_shape copy = *shape;
    /* What is added to the copy goes elsewhere. */
    copy.objects.capacity = copy.objects.count;
    copy.arrays.capacity = copy.arrays.count;
    copy.values.capacity = copy.values.count;
    copy.choices.capacity = copy.choices.count;
    return copy;
}

void fg_shape_init(fg_shape *shape)
{
    *shape = (fg_shape){ .types = FG_TYPE_ALL,
                         .length_most = FG_REPEAT_ENDLESS,
                         .integer_least = INT64_MIN,
                         .integer_most = INT64_MAX,
                         .real_least = -INFINITY,
                         .real_most = INFINITY,
                         .items_most = FG_REPEAT_ENDLESS,
                         .members_most = FG_REPEAT_ENDLESS };
}

/* --- $ref ---------------------------------------------------------------------------------------------- */

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* One step of a JSON pointer in a URI, up to the next slash; returns what is behind it. */
static const char *pointer_step(const char *at, char *step)
{
    while (*at != '\0' && *at != '/') {
        char c = *at++;
        if (c == '%' && hex_digit(at[0]) >= 0 && hex_digit(at[1]) >= 0) {
            c = (char)(hex_digit(at[0]) * 16 + hex_digit(at[1]));
            at += 2;
        }
        if (c == '~' && (*at == '0' || *at == '1')) {
            c = *at++ == '0' ? '~' : '/';
        }
        *step++ = c;
    }
    *step = '\0';
    return at;
}

static fg_source resolve(fg_schema *schema, fg_source ref)
{
    const char *text = fg_json_string(ref.node, NULL);
    fg_source target = { schema->root, text };
    if (text == NULL || text[0] != '#' || (text[1] != '\0' && text[1] != '/')) {
        fg_build_fail(schema->build, "%s: only references inside the schema are supported (#/...)",
                      ref.path);
        return (fg_source){ NULL, "" };
    }
    char *step = (char *)fg_build_alloc(schema->build, strlen(text) + 1, 1);
    for (const char *at = text + 1; step != NULL && *at == '/' && target.node != NULL;) {
        at = pointer_step(at + 1, step);
        if (fg_json_is(target.node, FG_JSON_ARRAY)) {
            char *end;
            unsigned long index = strtoul(step, &end, 10);
            target.node = *step >= '0' && *step <= '9' && *end == '\0'
                              ? fg_json_at(target.node, index)
                              : NULL;
        } else {
            target.node = fg_json_get(target.node, step);
        }
    }
    if (target.node == NULL) {
        fg_build_fail(schema->build, "%s: there is nothing at \"%.100s\"", ref.path, text);
    }
    target.path = strlen(text) > PATH_MAX_BYTES ? ref.path : text;
    return target;
}

/* Keywords that say nothing about which values match. */
static bool says_nothing(const char *key)
{
    static const char *const names[] = {
        "title",         "description",  "default",         "examples",         "example",
        "$schema",       "$comment",     "deprecated",      "readOnly",         "writeOnly",
        "$defs",         "definitions",  "$anchor",         "$dynamicAnchor",   "$vocabulary",
        "contentSchema", "externalDocs", "contentEncoding", "contentMediaType", "discriminator",
        "xml",
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(names[i], key) == 0) {
            return true;
        }
    }
    return strncmp(key, "x-", 2) == 0;
}

fg_source fg_schema_follow(fg_schema *schema, fg_source source)
{
    for (int hops = 0; fg_build_ok(schema->build); hops++) {
        fg_source ref = fg_schema_member(schema, source, "$ref");
        void *cursor = NULL;
        const char *key;
        bool alone = ref.node != NULL;
        while (alone && fg_json_next(source.node, &cursor, &key) != NULL) {
            alone = strcmp(key, "$ref") == 0 || says_nothing(key) ||
                    (strcmp(key, "$id") == 0 && source.node == schema->root);
        }
        if (!alone) {
            break;
        }
        if (hops == FG_SCHEMA_REFS_MAX) {
            fg_build_fail(schema->build, "%s: references that lead to each other", ref.path);
            break;
        }
        source = resolve(schema, ref);
    }
    return source;
}

/* --- keywords ------------------------------------------------------------------------------------------ */

static void refuse(fg_schema *schema, fg_source source, const char *what)
{
    fg_build_fail(schema->build, "%s: %s", source.path, what);
}

static unsigned type_bits(const char *name)
{
    static const struct {
        const char *name;
        unsigned bits;
    } types[] = {
        { "null", FG_TYPE_NULL },       { "boolean", FG_TYPE_BOOL },
        { "object", FG_TYPE_OBJECT },   { "array", FG_TYPE_ARRAY },
        { "string", FG_TYPE_STRING },   { "number", FG_TYPE_REAL | FG_TYPE_INTEGER },
        { "integer", FG_TYPE_INTEGER },
    };
    for (size_t i = 0; name != NULL && i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(types[i].name, name) == 0) {
            return types[i].bits;
        }
    }
    return 0;
}

static unsigned bits_of_value(const fg_json_node *value)
{
    double real;
    switch (fg_json_type_of(value)) {
    case FG_JSON_OBJECT:
        return FG_TYPE_OBJECT;
    case FG_JSON_ARRAY:
        return FG_TYPE_ARRAY;
    case FG_JSON_STRING:
        return FG_TYPE_STRING;
    case FG_JSON_INTEGER:
        return FG_TYPE_INTEGER;
    case FG_JSON_REAL: /* 1.0 is an integer too */
        return fg_json_number(value, &real) && real == floor(real) ? FG_TYPE_INTEGER : FG_TYPE_REAL;
    case FG_JSON_BOOL:
        return FG_TYPE_BOOL;
    default:
        return FG_TYPE_NULL;
    }
}

static void read_type(fg_schema *schema, fg_shape *shape, fg_source parent, fg_source value)
{
    unsigned bits = 0;
    size_t count = fg_json_is(value.node, FG_JSON_ARRAY) ? fg_json_size(value.node) : 1;
    for (size_t i = 0; i < count; i++) {
        const fg_json_node *name =
            fg_json_is(value.node, FG_JSON_ARRAY) ? fg_json_at(value.node, i) : value.node;
        unsigned more = type_bits(fg_json_string(name, NULL));
        if (more == 0) {
            refuse(schema, value, "not a type");
        }
        bits |= more;
    }
    bool nullable = false;
    fg_json_bool(fg_json_get(parent.node, "nullable"), &nullable);
    shape->types &= nullable ? bits | FG_TYPE_NULL : bits;
    shape->typed = true;
}

/* A count such as minLength. */
static uint32_t read_count(fg_schema *schema, fg_source value, bool is_least)
{
    double number = -1;
    if (!fg_json_number(value.node, &number) || number < 0 || number != floor(number)) {
        refuse(schema, value, "not a count");
        return 0;
    }
    if (number > FG_SCHEMA_COUNT_MAX) {
        if (is_least) {
            refuse(schema, value, "too large");
        }
        return FG_SCHEMA_COUNT_MAX;
    }
    return (uint32_t)number;
}

static void at_least(fg_schema *schema, uint32_t *least, fg_source value)
{
    uint32_t count = read_count(schema, value, true);
    *least = count > *least ? count : *least;
}

static void at_most(fg_schema *schema, uint32_t *most, fg_source value)
{
    uint32_t count = read_count(schema, value, false);
    *most = count < *most ? count : *most;
}

/* --- limits of numbers */

static void lower_limit(fg_schema *schema, fg_shape *shape, fg_source value, bool above)
{
    double number;
    int64_t integer;
    if (!fg_json_number(value.node, &number)) {
        refuse(schema, value, "not a number");
        return;
    }
    if (fg_json_integer(value.node, &integer)) {
        integer = above && integer < INT64_MAX ? integer + 1 : integer;
    } else {
        double next = above ? floor(number) + 1 : ceil(number);
        integer = next <= -1e18 ? INT64_MIN : next >= 1e18 ? INT64_MAX : (int64_t)next;
    }
    shape->integer_least = integer > shape->integer_least ? integer : shape->integer_least;
    if (number > shape->real_least) {
        shape->real_least = number;
        shape->above = above;
    } else if (number == shape->real_least) {
        shape->above |= above;
    }
    shape->limits = value;
}

static void upper_limit(fg_schema *schema, fg_shape *shape, fg_source value, bool below)
{
    double number;
    int64_t integer;
    if (!fg_json_number(value.node, &number)) {
        refuse(schema, value, "not a number");
        return;
    }
    if (fg_json_integer(value.node, &integer)) {
        integer = below && integer > INT64_MIN ? integer - 1 : integer;
    } else {
        double next = below ? ceil(number) - 1 : floor(number);
        integer = next <= -1e18 ? INT64_MIN : next >= 1e18 ? INT64_MAX : (int64_t)next;
    }
    shape->integer_most = integer < shape->integer_most ? integer : shape->integer_most;
    if (number < shape->real_most) {
        shape->real_most = number;
        shape->below = below;
    } else if (number == shape->real_most) {
        shape->below |= below;
    }
    shape->limits = value;
}

/* --- values */

static bool among(fg_schema *schema, const fg_sources *values, const fg_json_node *value)
{
    const char *text = fg_json_canonical(schema->build, value);
    for (uint32_t i = 0; text != NULL && i < values->count; i++) {
        const char *other = fg_json_canonical(schema->build, values->items[i].node);
        if (other != NULL && strcmp(other, text) == 0) {
            return true;
        }
    }
    return false;
}

static void keep_values(fg_schema *schema, fg_shape *shape, const fg_sources *values)
{
    fg_sources kept = { 0 };
    for (uint32_t i = 0; i < values->count && fg_build_ok(schema->build); i++) {
        if (!shape->has_values || among(schema, &shape->values, values->items[i].node)) {
            fg_sources_add(schema, &kept, values->items[i]);
        }
    }
    shape->values = kept;
    shape->has_values = shape->typed = true;
}

static void read_values(fg_schema *schema, fg_shape *shape, fg_source value, bool many)
{
    fg_sources values = { 0 };
    if (!many) {
        fg_sources_add(schema, &values, value);
    } else if (fg_json_size(value.node) == 0 || !fg_json_is(value.node, FG_JSON_ARRAY)) {
        refuse(schema, value, "not a list of values");
    }
    for (size_t i = 0; many && i < fg_json_size(value.node); i++) {
        fg_sources_add(schema, &values, (fg_source){ fg_json_at(value.node, i), value.path });
    }
    keep_values(schema, shape, &values);
}

/* --- the rest */

static void collect(fg_schema *schema, fg_shape *shape, fg_source source, unsigned depth);

static bool list_of_schemas(fg_schema *schema, fg_source value)
{
    if (!fg_json_is(value.node, FG_JSON_ARRAY) || fg_json_size(value.node) == 0) {
        refuse(schema, value, "not a list of schemas");
        return false;
    }
    return true;
}

static void read_one_of(fg_schema *schema, fg_shape *shape, fg_source value)
{
    size_t count = fg_json_size(value.node);
    fg_shape *shapes = NULL;
    if (count > 64) {
        refuse(schema, value, "more than 64 branches");
    } else {
        shapes = (fg_shape *)fg_build_alloc(schema->build, count, sizeof *shapes);
    }
    for (size_t i = 0; shapes != NULL && i < count && fg_build_ok(schema->build); i++) {
        fg_shape_init(&shapes[i]);
        collect(schema, &shapes[i], fg_schema_element(schema, value, i), 1);
        for (size_t j = 0; j < i && fg_build_ok(schema->build); j++) {
            if (!fg_shapes_apart(schema, &shapes[i], &shapes[j])) {
                fg_build_fail(schema->build,
                              "%s: branches %zu and %zu may both match; use anyOf, or give them "
                              "other types, values or a required property with other values",
                              value.path, j, i);
            }
        }
    }
    fg_sources_add(schema, &shape->choices, value);
}

static bool read_string_keyword(fg_schema *schema, fg_shape *shape, const char *key,
                                fg_source value)
{
    if (strcmp(key, "minLength") == 0) {
        at_least(schema, &shape->length_least, value);
    } else if (strcmp(key, "maxLength") == 0) {
        at_most(schema, &shape->length_most, value);
    } else if (strcmp(key, "pattern") == 0 || strcmp(key, "format") == 0) {
        fg_source *kept = *key == 'p' ? &shape->pattern : &shape->format;
        const char *text = fg_json_string(value.node, NULL);
        static const char *const of_others[] = { "int32", "int64", "float", "double", "password" };
        for (size_t i = 0; text != NULL && *key == 'f' && i < 5; i++) {
            if (strcmp(text, of_others[i]) == 0) {
                return true; /* says nothing about a text */
            }
        }
        if (text == NULL) {
            refuse(schema, value, "not a string");
        } else if (kept->node != NULL && strcmp(fg_json_string(kept->node, NULL), text) != 0) {
            refuse(schema, value, "two of these at once are not supported");
        }
        *kept = value;
    } else {
        return false;
    }
    shape->families |= FG_TYPE_STRING;
    return true;
}

static bool read_number_keyword(fg_schema *schema, fg_shape *shape, const char *key,
                                fg_source value)
{
    if (strcmp(key, "minimum") == 0) {
        lower_limit(schema, shape, value, false);
    } else if (strcmp(key, "exclusiveMinimum") == 0) {
        lower_limit(schema, shape, value, true);
    } else if (strcmp(key, "maximum") == 0) {
        upper_limit(schema, shape, value, false);
    } else if (strcmp(key, "exclusiveMaximum") == 0) {
        upper_limit(schema, shape, value, true);
    } else {
        return false;
    }
    shape->families |= FG_TYPE_REAL | FG_TYPE_INTEGER;
    return true;
}

/* Keywords about members and items: whoever writes objects and arrays looks them up in the schema. */
static bool read_group_keyword(fg_schema *schema, fg_shape *shape, const char *key,
                               fg_source parent, fg_source value)
{
    if (strcmp(key, "minItems") == 0) {
        at_least(schema, &shape->items_least, value);
    } else if (strcmp(key, "maxItems") == 0) {
        at_most(schema, &shape->items_most, value);
    } else if (strcmp(key, "minProperties") == 0) {
        at_least(schema, &shape->members_least, value);
    } else if (strcmp(key, "maxProperties") == 0) {
        at_most(schema, &shape->members_most, value);
    } else if (strcmp(key, "items") != 0 && strcmp(key, "prefixItems") != 0 &&
               strcmp(key, "additionalItems") != 0 && strcmp(key, "properties") != 0 &&
               strcmp(key, "required") != 0 && strcmp(key, "additionalProperties") != 0) {
        return false;
    }
    bool of_array = strstr(key, "tems") != NULL;
    fg_sources *sources = of_array ? &shape->arrays : &shape->objects;
    shape->families |= of_array ? FG_TYPE_ARRAY : FG_TYPE_OBJECT;
    if (sources->count == 0 || sources->items[sources->count - 1].node != parent.node) {
        fg_sources_add(schema, sources, parent);
    }
    return true;
}

static void read_keyword(fg_schema *schema, fg_shape *shape, const char *key, fg_source parent,
                         unsigned depth)
{
    if (says_nothing(key) || (strcmp(key, "$id") == 0 && parent.node == schema->root)) {
        return;
    }
    fg_source value = fg_schema_member(schema, parent, key);
    bool said = true;
    if (strcmp(key, "type") == 0) {
        read_type(schema, shape, parent, value);
    } else if (strcmp(key, "nullable") == 0) {
        bool ignored;
        if (!fg_json_bool(value.node, &ignored)) {
            refuse(schema, value, "not true or false");
        }
    } else if (strcmp(key, "enum") == 0 || strcmp(key, "const") == 0) {
        read_values(schema, shape, value, *key == 'e');
    } else if (strcmp(key, "$ref") == 0) {
        fg_source target = resolve(schema, value);
        if (target.node != NULL) {
            collect(schema, shape, target, depth + 1);
        }
    } else if (strcmp(key, "allOf") == 0) {
        for (size_t i = 0; list_of_schemas(schema, value) && i < fg_json_size(value.node); i++) {
            collect(schema, shape, fg_schema_element(schema, value, i), depth + 1);
        }
    } else if (strcmp(key, "anyOf") == 0) {
        if (list_of_schemas(schema, value)) {
            fg_sources_add(schema, &shape->choices, value);
        }
    } else if (strcmp(key, "oneOf") == 0) {
        if (list_of_schemas(schema, value)) {
            read_one_of(schema, shape, value);
        }
    } else if (strcmp(key, "uniqueItems") == 0 && fg_json_bool(value.node, &said) && !said) {
        return; /* which is so without it */
    } else if (!read_string_keyword(schema, shape, key, value) &&
               !read_number_keyword(schema, shape, key, value) &&
               !read_group_keyword(schema, shape, key, parent, value)) {
        fg_build_fail(schema->build, "%s: \"%.60s\" is not supported", value.path, key);
    }
}

static void collect(fg_schema *schema, fg_shape *shape, fg_source source, unsigned depth)
{
    bool yes;
    if (!fg_build_ok(schema->build)) {
        return;
    }
    if (depth > FG_SCHEMA_REFS_MAX) {
        refuse(schema, source, "references or allOf that lead to each other, or nest too deeply");
    } else if (fg_json_bool(source.node, &yes)) {
        shape->types = yes ? shape->types : 0;
        shape->typed |= !yes;
    } else if (!fg_json_is(source.node, FG_JSON_OBJECT)) {
        refuse(schema, source, "not a schema");
    } else {
        void *cursor = NULL;
        const char *key;
        while (fg_build_ok(schema->build) && fg_json_next(source.node, &cursor, &key) != NULL) {
            read_keyword(schema, shape, key, source, depth);
        }
    }
}

void fg_shape_collect(fg_schema *schema, fg_shape *shape, fg_source source)
{
    collect(schema, shape, source, 0);
}

/* --- apart --------------------------------------------------------------------------------------------- */

static unsigned types_of(const fg_shape *shape)
{
    unsigned bits = 0;
    for (uint32_t i = 0; i < shape->values.count; i++) {
        bits |= bits_of_value(shape->values.items[i].node);
    }
    return shape->has_values ? bits & shape->types : shape->types;
}

static bool no_common_value(fg_schema *schema, const fg_shape *a, const fg_shape *b)
{
    if ((types_of(a) & types_of(b)) == 0) {
        return true;
    }
    if (!a->has_values || !b->has_values) {
        return false;
    }
    for (uint32_t i = 0; i < a->values.count; i++) {
        if (among(schema, &b->values, a->values.items[i].node)) {
            return false;
        }
    }
    return true;
}

static bool requires(const fg_shape *shape, const char *name)
{
    for (uint32_t i = 0; i < shape->objects.count; i++) {
        const fg_json_node *list = fg_json_get(shape->objects.items[i].node, "required");
        for (size_t j = 0; j < fg_json_size(list); j++) {
            const char *other = fg_json_string(fg_json_at(list, j), NULL);
            if (other != NULL && strcmp(other, name) == 0) {
                return true;
            }
        }
    }
    return false;
}

/* What a shape says about one of its properties. */
static void property_shape(fg_schema *schema, const fg_shape *shape, const char *name,
                           fg_shape *property)
{
    fg_shape_init(property);
    for (uint32_t i = 0; i < shape->objects.count; i++) {
        fg_source properties = fg_schema_member(schema, shape->objects.items[i], "properties");
        fg_source one = fg_schema_member(schema, properties, name);
        fg_source others =
            fg_schema_member(schema, shape->objects.items[i], "additionalProperties");
        if (one.node != NULL || others.node != NULL) {
            collect(schema, property, one.node != NULL ? one : others, 1);
        }
    }
}

bool fg_shapes_apart(fg_schema *schema, const fg_shape *a, const fg_shape *b)
{
    if (no_common_value(schema, a, b)) {
        return true;
    }
    if ((types_of(a) & types_of(b)) != FG_TYPE_OBJECT) {
        return false;
    }
    for (int side = 0; side < 2; side++) {
        const fg_shape *one = side == 0 ? a : b;
        const fg_shape *other = side == 0 ? b : a;
        for (uint32_t i = 0; i < one->objects.count; i++) {
            const fg_json_node *list = fg_json_get(one->objects.items[i].node, "required");
            for (size_t j = 0; j < fg_json_size(list) && fg_build_ok(schema->build); j++) {
                const char *name = fg_json_string(fg_json_at(list, j), NULL);
                fg_shape here, there;
                if (name == NULL) {
                    continue;
                }
                property_shape(schema, one, name, &here);
                property_shape(schema, other, name, &there);
                /* One that must be there and cannot; or must be there in both, and differ. */
                if (types_of(&there) == 0 ||
                    (requires(other, name) && no_common_value(schema, &here, &there))) {
                    return true;
                }
            }
        }
    }
    return false;
}
