/* From shapes to rules. */
#include <math.h>
#include <string.h>

#include "common/base/utf8.h"
#include "common/grammar/schema_internal.h"

/* Schemas that have a rule. */
struct fg_memo {
    fg_memo *next;    /* with the same hash */
    fg_memo *waiting; /* to be written after this one */
    fg_sources sources;
    uint32_t rule;
};

static bool same_sources(const fg_sources *a, const fg_sources *b)
{
    bool same = a->count == b->count;
    for (uint32_t i = 0; same && i < a->count; i++) {
        same = a->items[i].node == b->items[i].node;
    }
    return same;
}

/* Written later, so that schemas that name each other in long chains take no stack. */
fg_gnode *fg_schema_value(fg_schema *schema, const fg_sources *given)
{
    fg_sources sources = { 0 };
    uint64_t hash = 0;
    for (uint32_t i = 0; i < given->count; i++) {
        fg_source source = fg_schema_follow(schema, given->items[i]);
        hash = hash * 31 + (uintptr_t)source.node / 16;
        fg_sources_add(schema, &sources, source);
    }
    if (!fg_build_ok(schema->build)) {
        return NULL;
    }
    fg_memo **bucket = &schema->memos[hash % FG_SCHEMA_MEMOS];
    fg_memo *memo = *bucket;
    while (memo != NULL && !same_sources(&memo->sources, &sources)) {
        memo = memo->next;
    }
    if (memo == NULL) {
        memo = (fg_memo *)fg_build_alloc(schema->build, 1, sizeof *memo);
        if (memo == NULL) {
            return NULL;
        }
        *memo = (fg_memo){ .next = *bucket, .sources = sources };
        memo->rule =
            fg_build_rule(schema->build, sources.count == 0 ? "any value" : sources.items[0].path);
        *bucket = memo;
        if (schema->newest == NULL) {
            schema->waiting = memo;
        } else {
            schema->newest->waiting = memo;
        }
        schema->newest = memo;
    }
    return fg_build_call(schema->build, memo->rule);
}

/* --- one type -------------------------------------------------------------------------------------------- */

static fg_gnode *string_of_length(fg_schema *schema, uint32_t least, uint32_t most)
{
    fg_build *build = schema->build;
    for (uint32_t i = 0; i < schema->string_count; i++) {
        if (schema->strings[i].least == least && schema->strings[i].most == most) {
            return fg_build_call(build, schema->strings[i].rule);
        }
    }
    fg_gnode *node = least > most ? fg_build_never(build) : fg_json_string_node(build, least, most);
    if (schema->string_count == sizeof schema->strings / sizeof schema->strings[0]) {
        return node;
    }
    uint32_t rule = fg_build_rule(build, "a string");
    fg_build_define(build, rule, node);
    schema->strings[schema->string_count].least = least;
    schema->strings[schema->string_count].most = most;
    schema->strings[schema->string_count++].rule = rule;
    return fg_build_call(build, rule);
}

static fg_gnode *string_node(fg_schema *schema, const fg_shape *shape)
{
    fg_build *build = schema->build;
    bool has_length = shape->length_least > 0 || shape->length_most != FG_REPEAT_ENDLESS;
    const fg_source *pattern = &shape->pattern;
    const fg_source *format = &shape->format;
    if ((pattern->node != NULL) + (format->node != NULL) + has_length > 1) {
        return fg_build_fail(build,
                             "%s: a pattern, a format and lengths are not supported together",
                             pattern->node != NULL ? pattern->path : format->path);
    }
    if (pattern->node != NULL) {
        size_t length;
        const char *text = fg_json_string(pattern->node, &length);
        fg_gnode *quote = fg_build_text(build, "\"");
        return fg_build_seq(build, 3, quote,
                            fg_regex_build(build, text, length, FG_SPELL_JSON, true, pattern->path),
                            quote);
    }
    if (format->node != NULL) {
        const char *name = fg_json_string(format->node, NULL);
        fg_gnode *node = fg_format_node(build, name);
        return node != NULL || !fg_build_ok(build)
                   ? node
                   : fg_build_fail(build, "%s: format \"%.60s\" is not supported", format->path,
                                   name);
    }
    return string_of_length(schema, shape->length_least, shape->length_most);
}

/* A limit in millionths; false where it is none that can be said exactly. */
static bool millionths(double value, int64_t *out)
{
    double scaled = round(value * FG_DECIMAL_UNIT);
    if (fabs(scaled) > (double)FG_DECIMAL_MOST || scaled / FG_DECIMAL_UNIT != value) {
        return false;
    }
    *out = (int64_t)scaled;
    return true;
}

static fg_gnode *number_node(fg_schema *schema, const fg_shape *shape)
{
    fg_build *build = schema->build;
    int64_t least = -FG_DECIMAL_MOST, most = FG_DECIMAL_MOST;
    if ((shape->types & FG_TYPE_REAL) == 0) {
        return fg_integer_node(build, shape->integer_least, shape->integer_most);
    }
    if (shape->limits.node == NULL) {
        return fg_json_number_node(build);
    }
    if ((isfinite(shape->real_least) && !millionths(shape->real_least, &least)) ||
        (isfinite(shape->real_most) && !millionths(shape->real_most, &most))) {
        return fg_build_fail(build,
                             "%s: limits of numbers are supported up to 999999999 and with at most "
                             "6 digits behind the point",
                             shape->limits.path);
    }
    return fg_decimal_node(build, least, shape->above, most, shape->below);
}

static fg_gnode *type_node(fg_schema *schema, const fg_shape *shape, unsigned type)
{
    fg_build *build = schema->build;
    switch (type) {
    case FG_TYPE_NULL:
        return fg_build_text(build, "null");
    case FG_TYPE_BOOL:
        return fg_build_or(build, 2, fg_build_text(build, "true"), fg_build_text(build, "false"));
    case FG_TYPE_OBJECT:
        return shape->objects.count == 0 ? fg_json_object_node(build)
                                         : fg_shape_object(schema, shape);
    case FG_TYPE_ARRAY:
        return shape->arrays.count == 0 ? fg_json_array_node(build) : fg_shape_array(schema, shape);
    case FG_TYPE_STRING:
        return string_node(schema, shape);
    default:
        return number_node(schema, shape);
    }
}

/* --- given values ------------------------------------------------------------------------------------------ */

static uint32_t characters_of(const char *text, size_t length)
{
    uint32_t count = 0;
    for (size_t at = 0; at < length; count++) {
        size_t taken = fg_utf8_length(text + at, length - at);
        at += taken == 0 ? 1 : taken;
    }
    return count;
}

/* Whether a value is within the shape, as far as that can be said of it here. */
static bool fits(fg_schema *schema, const fg_shape *shape, fg_source value)
{
    double number;
    size_t length;
    const char *text = fg_json_string(value.node, &length);
    if (text != NULL) {
        if (shape->pattern.node != NULL || shape->format.node != NULL) {
            fg_build_fail(schema->build,
                          "%s: given values beside a pattern or a format are not "
                          "supported",
                          value.path);
        }
        uint32_t characters = characters_of(text, length);
        return (shape->types & FG_TYPE_STRING) != 0 && characters >= shape->length_least &&
               characters <= shape->length_most;
    }
    if (fg_json_number(value.node, &number)) {
        unsigned bit = number == floor(number) ? FG_TYPE_INTEGER : FG_TYPE_REAL;
        return (shape->types & bit) != 0 &&
               (shape->above ? number > shape->real_least : number >= shape->real_least) &&
               (shape->below ? number < shape->real_most : number <= shape->real_most);
    }
    bool is_object = fg_json_is(value.node, FG_JSON_OBJECT);
    bool is_array = fg_json_is(value.node, FG_JSON_ARRAY);
    if ((is_object && shape->objects.count > 0) || (is_array && shape->arrays.count > 0)) {
        fg_build_fail(schema->build,
                      "%s: given values beside keywords about what is in them are "
                      "not supported",
                      value.path);
    }
    unsigned bit = is_object                              ? FG_TYPE_OBJECT
                   : is_array                             ? FG_TYPE_ARRAY
                   : fg_json_is(value.node, FG_JSON_BOOL) ? FG_TYPE_BOOL
                                                          : FG_TYPE_NULL;
    return (shape->types & bit) != 0;
}

/* Values that are one text become a tree of texts; objects and arrays have white space that is free. */
static fg_gnode *values_node(fg_schema *schema, const fg_shape *shape)
{
    fg_build *build = schema->build;
    fg_glist list = { 0 };
    size_t count = 0;
    fg_text *texts = (fg_text *)fg_build_alloc(build, shape->values.count, sizeof *texts);
    for (uint32_t i = 0; i < shape->values.count && fg_build_ok(build); i++) {
        fg_source value = shape->values.items[i];
        if (!fits(schema, shape, value)) {
            continue;
        }
        if (fg_json_size(value.node) > 0) {
            fg_list_add(build, &list, fg_json_literal_node(build, value.node));
            continue;
        }
        const char *text = fg_json_canonical(build, value.node);
        if (text != NULL) {
            texts[count++] = (fg_text){ text, strlen(text) };
        }
    }
    if (!fg_build_ok(build)) {
        return NULL;
    }
    fg_list_add(build, &list, fg_build_texts(build, texts, count));
    return fg_build_ok(build) ? fg_build_alt(build, &list) : NULL;
}

/* --- shapes -------------------------------------------------------------------------------------------- */

static fg_gnode *plain_shape_node(fg_schema *schema, const fg_shape *shape)
{
    fg_build *build = schema->build;
    if (shape->has_values) {
        return values_node(schema, shape);
    }
    fg_shape guessed = *shape;
    if (!shape->typed && shape->families != 0) {
        guessed.types &= shape->families;
    }
    if (guessed.types == FG_TYPE_ALL && shape->families == 0) {
        return fg_json_any_node(build, FG_JSON_DEPTH);
    }
    fg_glist list = { 0 };
    for (unsigned type = 1; type <= FG_TYPE_INTEGER && fg_build_ok(build); type *= 2) {
        bool said = type == FG_TYPE_INTEGER && (guessed.types & FG_TYPE_REAL) != 0;
        if ((guessed.types & type) != 0 && !said) {
            fg_list_add(build, &list, type_node(schema, &guessed, type));
        }
    }
    return fg_build_ok(build) ? fg_build_alt(build, &list) : NULL;
}

/* Nothing but a choice: each branch is a schema of its own. */
static bool is_bare_choice(const fg_shape *shape)
{
    return shape->choices.count == 1 && !shape->typed && shape->types == FG_TYPE_ALL &&
           shape->families == 0;
}

static fg_gnode *shape_node(fg_schema *schema, const fg_shape *shape)
{
    fg_build *build = schema->build;
    if (shape->choices.count == 0) {
        return plain_shape_node(schema, shape);
    }
    fg_glist list = { 0 };
    fg_source choice = shape->choices.items[shape->choices.count - 1];
    for (size_t i = 0; i < fg_json_size(choice.node) && fg_build_ok(build); i++) {
        fg_source branch = fg_schema_element(schema, choice, i);
        if (++schema->branches > FG_SCHEMA_BRANCHES_MAX) {
            return fg_build_fail(build, "%s: too many combinations of branches", choice.path);
        }
        if (is_bare_choice(shape)) {
            fg_sources one = { &branch, 1, 1 };
            fg_list_add(build, &list, fg_schema_value(schema, &one));
            continue;
        }
        fg_shape with = fg_shape_copy(shape);
        with.choices.count = --with.choices.capacity;
        fg_shape_collect(schema, &with, branch);
        fg_list_add(build, &list, shape_node(schema, &with));
    }
    return fg_build_ok(build) ? fg_build_alt(build, &list) : NULL;
}

uint32_t fg_schema_build(fg_build *build, const fg_json_node *root)
{
    fg_schema *schema = (fg_schema *)fg_build_alloc(build, 1, sizeof *schema);
    if (schema == NULL) {
        return 0;
    }
    schema->build = build;
    schema->root = root;
    schema->memos = (fg_memo **)fg_build_alloc(build, FG_SCHEMA_MEMOS, sizeof(fg_memo *));
    fg_source first = { root, "#" };
    fg_sources one = { &first, 1, 1 };
    fg_gnode *call = schema->memos == NULL ? NULL : fg_schema_value(schema, &one);
    for (fg_memo *memo = schema->waiting; memo != NULL && fg_build_ok(build);
         memo = memo->waiting) {
        fg_shape shape;
        fg_shape_init(&shape);
        for (uint32_t i = 0; i < memo->sources.count; i++) {
            fg_shape_collect(schema, &shape, memo->sources.items[i]);
        }
        if (fg_build_ok(build)) {
            fg_build_define(build, memo->rule, shape_node(schema, &shape));
        }
    }
    uint32_t rule = fg_build_rule(build, "#");
    fg_build_define(build, rule, call);
    return rule;
}
