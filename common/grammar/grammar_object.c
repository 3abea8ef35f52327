/* Objects and arrays of which something is known. */
#include <string.h>

#include "common/grammar/schema_internal.h"

/* Members of one object: the named ones in their order, then others. */
typedef struct member {
    const char *name;
    fg_sources sources; /* what its value must match */
    bool required;
    uint32_t rule; /* key and value */
} member;

typedef struct object {
    fg_schema *schema;
    fg_build *build;
    const fg_shape *shape;
    member *members;
    uint32_t count;
    uint32_t capacity;
    bool open;         /* other members may follow */
    fg_sources others; /* what their values must match */
    uint32_t other_rule;
    uint32_t least, most;
    uint32_t counted; /* members are counted up to here; 0: not at all */
    uint32_t *tails;  /* rules: of the members from i on, when k are written; 0: not yet made */
} object;

enum { MEMBERS_MAX = 4096, TAILS_MAX = 1 << 16, PREFIX_MAX = 500 };

static member *member_named(object *o, const char *name)
{
    for (uint32_t i = 0; i < o->count; i++) {
        if (strcmp(o->members[i].name, name) == 0) {
            return &o->members[i];
        }
    }
    if (o->count == MEMBERS_MAX) {
        fg_build_fail(o->build, "%s: more than %d properties", o->shape->objects.items[0].path,
                      MEMBERS_MAX);
        return NULL;
    }
    if (o->count == o->capacity) {
        uint32_t larger = o->capacity == 0 ? 16 : o->capacity * 2;
        member *members = (member *)fg_build_alloc(o->build, larger, sizeof *members);
        if (members == NULL) {
            return NULL;
        }
        if (o->count > 0) {
            memcpy(members, o->members, o->count * sizeof *members);
        }
        o->members = members;
        o->capacity = larger;
    }
    o->members[o->count] = (member){ .name = name };
    return &o->members[o->count++];
}

static void find_members(object *o)
{
    const fg_sources *objects = &o->shape->objects;
    for (uint32_t i = 0; i < objects->count; i++) {
        fg_source properties = fg_schema_member(o->schema, objects->items[i], "properties");
        if (properties.node != NULL && !fg_json_is(properties.node, FG_JSON_OBJECT)) {
            fg_build_fail(o->build, "%s: not an object", properties.path);
        }
        void *cursor = NULL;
        const char *name;
        while (fg_build_ok(o->build) && fg_json_next(properties.node, &cursor, &name) != NULL) {
            member_named(o, name);
        }
    }
    for (uint32_t i = 0; i < objects->count; i++) {
        fg_source required = fg_schema_member(o->schema, objects->items[i], "required");
        if (required.node != NULL && !fg_json_is(required.node, FG_JSON_ARRAY)) {
            fg_build_fail(o->build, "%s: not a list of names", required.path);
        }
        for (size_t j = 0; j < fg_json_size(required.node) && fg_build_ok(o->build); j++) {
            const char *name = fg_json_string(fg_json_at(required.node, j), NULL);
            member *m = name == NULL ? NULL : member_named(o, name);
            if (name == NULL) {
                fg_build_fail(o->build, "%s: not a list of names", required.path);
            } else if (m != NULL) {
                m->required = true;
            }
        }
    }
}

/* What each schema says about a member: by its name, or about all that it does not name. */
static void find_sources(object *o)
{
    const fg_sources *objects = &o->shape->objects;
    o->open = true;
    for (uint32_t i = 0; i < objects->count && fg_build_ok(o->build); i++) {
        fg_source properties = fg_schema_member(o->schema, objects->items[i], "properties");
        fg_source others = fg_schema_member(o->schema, objects->items[i], "additionalProperties");
        bool yes = true;
        fg_json_bool(others.node, &yes);
        for (uint32_t j = 0; j < o->count; j++) {
            fg_source named = fg_schema_member(o->schema, properties, o->members[j].name);
            if (named.node != NULL || others.node != NULL) {
                fg_sources_add(o->schema, &o->members[j].sources,
                               named.node != NULL ? named : others);
            }
        }
        if (!yes || (properties.node != NULL && others.node == NULL)) {
            o->open = false;
        } else if (others.node != NULL) {
            fg_sources_add(o->schema, &o->others, others);
        }
    }
}

static void find_counts(object *o)
{
    uint32_t required = 0;
    for (uint32_t i = 0; i < o->count; i++) {
        required += o->members[i].required;
    }
    o->least = o->shape->members_least > required ? o->shape->members_least : 0;
    o->most = o->shape->members_most;
    if (!o->open && o->most >= o->count) {
        o->most = FG_REPEAT_ENDLESS;
    }
    if (o->open && o->least > 1) {
        fg_build_fail(
            o->build,
            "%s/minProperties: not supported where other properties may follow, which may "
            "be said twice",
            o->shape->objects.items[0].path);
    }
    o->counted = o->most != FG_REPEAT_ENDLESS ? o->most : o->least;
    size_t tails = ((size_t)o->count + 1) * ((size_t)o->counted + 1);
    if (tails > TAILS_MAX) {
        fg_build_fail(o->build, "%s: too many properties to count them",
                      o->shape->objects.items[0].path);
    } else {
        o->tails = (uint32_t *)fg_build_alloc(o->build, tails, sizeof *o->tails);
    }
}

static fg_gnode *after_comma(object *o, uint32_t rule)
{
    return fg_build_seq(o->build, 3, fg_build_text(o->build, ","), fg_json_space_node(o->build),
                        fg_build_call(o->build, rule));
}

/* More members that are not named, behind `written` members. */
static fg_gnode *other_members(object *o, uint32_t written)
{
    uint32_t least = o->least > written ? o->least - written : 0;
    if (!o->open) {
        return least == 0 ? fg_build_empty(o->build) : fg_build_never(o->build);
    }
    uint32_t most = o->most == FG_REPEAT_ENDLESS ? FG_REPEAT_ENDLESS : o->most - written;
    return fg_build_repeat(o->build, after_comma(o, o->other_rule), least, most);
}

static uint32_t one_more(const object *o, uint32_t written)
{
    return written < o->counted ? written + 1 : o->counted;
}

static uint32_t *tail_rule(object *o, uint32_t from, uint32_t written)
{
    return &o->tails[(size_t)from * (o->counted + 1) + written];
}

/* What follows members before `from`, of which `written` are there (or more, where they are not counted so far). */
static fg_gnode *tail_node(object *o, uint32_t from, uint32_t written)
{
    bool full = o->most != FG_REPEAT_ENDLESS && written >= o->most;
    if (from == o->count) {
        return other_members(o, written);
    }
    fg_gnode *without = fg_build_call(o->build, *tail_rule(o, from + 1, written));
    fg_gnode *with = fg_build_never(o->build);
    if (!full) {
        with = fg_build_seq(o->build, 2, after_comma(o, o->members[from].rule),
                            fg_build_call(o->build, *tail_rule(o, from + 1, one_more(o, written))));
    }
    return o->members[from].required ? with : fg_build_or(o->build, 2, with, without);
}

static void make_rules(object *o)
{
    for (uint32_t i = 0; i < o->count && fg_build_ok(o->build); i++) {
        member *m = &o->members[i];
        m->rule = fg_build_rule(o->build, m->name);
        fg_build_define(o->build, m->rule,
                        fg_build_seq(o->build, 2,
                                     fg_json_key_node(o->build, m->name, strlen(m->name)),
                                     fg_schema_value(o->schema, &m->sources)));
    }
    if (o->open) {
        fg_text *names = (fg_text *)fg_build_alloc(o->build, o->count, sizeof *names);
        for (uint32_t i = 0; names != NULL && i < o->count; i++) {
            names[i] = (fg_text){ o->members[i].name, strlen(o->members[i].name) };
        }
        o->other_rule = fg_build_rule(o->build, "another property");
        if (names != NULL) {
            fg_build_define(o->build, o->other_rule,
                            fg_build_seq(o->build, 4,
                                         fg_json_other_key_node(o->build, names, o->count),
                                         fg_build_text(o->build, ":"),
                                         fg_build_maybe(o->build, fg_build_text(o->build, " ")),
                                         fg_schema_value(o->schema, &o->others)));
        }
    }
    for (uint32_t i = 0; i <= o->count; i++) {
        for (uint32_t k = 0; k <= o->counted && fg_build_ok(o->build); k++) {
            *tail_rule(o, i, k) = fg_build_rule(o->build, "more properties");
        }
    }
    for (uint32_t i = 0; i <= o->count; i++) {
        for (uint32_t k = 0; k <= o->counted && fg_build_ok(o->build); k++) {
            fg_build_define(o->build, *tail_rule(o, i, k), tail_node(o, i, k));
        }
    }
}

/* Members from the first that is there. */
static fg_gnode *first_members(object *o)
{
    fg_glist list = { 0 };
    uint32_t i = 0;
    for (bool optional = true; i < o->count && optional && fg_build_ok(o->build); i++) {
        optional = !o->members[i].required;
        fg_list_add(o->build, &list,
                    fg_build_seq(o->build, 2, fg_build_call(o->build, o->members[i].rule),
                                 fg_build_call(o->build, *tail_rule(o, i + 1, one_more(o, 0)))));
        if (!optional) {
            return fg_build_ok(o->build) ? fg_build_alt(o->build, &list) : NULL;
        }
    }
    if (o->open) {
        fg_list_add(o->build, &list,
                    fg_build_seq(o->build, 2, fg_build_call(o->build, o->other_rule),
                                 fg_build_call(o->build, *tail_rule(o, o->count, one_more(o, 0)))));
    }
    return fg_build_ok(o->build) ? fg_build_alt(o->build, &list) : NULL;
}

static fg_gnode *in_brackets(fg_build *build, const char *open, fg_gnode *inside, bool may_be_empty,
                             const char *close)
{
    fg_gnode *space = fg_json_space_node(build);
    fg_gnode *filled = fg_build_seq(build, 2, inside, space);
    return fg_build_seq(build, 4, fg_build_text(build, open), space,
                        may_be_empty ? fg_build_maybe(build, filled) : filled,
                        fg_build_text(build, close));
}

fg_gnode *fg_shape_object(fg_schema *schema, const fg_shape *shape)
{
    object o = { .schema = schema, .build = schema->build, .shape = shape };
    find_members(&o);
    if (fg_build_ok(o.build)) {
        find_sources(&o);
        find_counts(&o);
    }
    if (!fg_build_ok(o.build)) {
        return NULL;
    }
    make_rules(&o);
    bool may_be_empty = shape->members_least == 0;
    for (uint32_t i = 0; i < o.count; i++) {
        may_be_empty = may_be_empty && !o.members[i].required;
    }
    if (!fg_build_ok(o.build)) {
        return NULL;
    }
    fg_gnode *inside = o.most == 0 ? fg_build_never(o.build) : first_members(&o);
    return in_brackets(o.build, "{", inside, may_be_empty, "}");
}

/* --- arrays ------------------------------------------------------------------------------------------------ */

typedef struct array {
    fg_schema *schema;
    fg_build *build;
    const fg_shape *shape;
    uint32_t prefix; /* items that have schemas of their own */
    bool open;       /* others may follow */
    fg_sources others;
} array;

/* The list of first items and the schema of the rest, in either way of writing them. */
static fg_source first_items(array *a, fg_source source)
{
    fg_source items = fg_schema_member(a->schema, source, "items");
    return fg_json_is(items.node, FG_JSON_ARRAY)
               ? items
               : fg_schema_member(a->schema, source, "prefixItems");
}

static fg_source rest_items(array *a, fg_source source)
{
    fg_source items = fg_schema_member(a->schema, source, "items");
    return fg_json_is(items.node, FG_JSON_ARRAY)
               ? fg_schema_member(a->schema, source, "additionalItems")
               : items;
}

static fg_gnode *item_node(array *a, uint32_t index)
{
    fg_sources sources = { 0 };
    for (uint32_t i = 0; i < a->shape->arrays.count; i++) {
        fg_source list = first_items(a, a->shape->arrays.items[i]);
        fg_source one = fg_schema_element(a->schema, list, index);
        if (one.node == NULL) {
            one = rest_items(a, a->shape->arrays.items[i]);
        }
        if (one.node != NULL) {
            fg_sources_add(a->schema, &sources, one);
        }
    }
    return fg_schema_value(a->schema, &sources);
}

static void find_items(array *a)
{
    a->open = true;
    for (uint32_t i = 0; i < a->shape->arrays.count && fg_build_ok(a->build); i++) {
        fg_source list = first_items(a, a->shape->arrays.items[i]);
        fg_source rest = rest_items(a, a->shape->arrays.items[i]);
        bool yes = true;
        if (list.node != NULL && !fg_json_is(list.node, FG_JSON_ARRAY)) {
            fg_build_fail(a->build, "%s: not a list of schemas", list.path);
        }
        uint32_t count = (uint32_t)fg_json_size(list.node);
        a->prefix = count > a->prefix ? count : a->prefix;
        fg_json_bool(rest.node, &yes);
        /* As with properties: where items are named and nothing is said of others, there are none but those that
         * minItems wants. */
        if (!yes || (count > 0 && rest.node == NULL && a->shape->items_least <= count)) {
            a->open = false;
        } else if (rest.node != NULL) {
            fg_sources_add(a->schema, &a->others, rest);
        }
    }
    if (a->prefix > PREFIX_MAX) {
        fg_build_fail(a->build, "%s: more than %d items with schemas of their own",
                      a->shape->arrays.items[0].path, PREFIX_MAX);
    }
}

/* Items behind the first `index`, of which there is one at least. */
static fg_gnode *more_items(array *a, uint32_t index)
{
    fg_build *build = a->build;
    uint32_t least = a->shape->items_least, most = a->shape->items_most;
    fg_gnode *comma = fg_build_text(build, ",");
    fg_gnode *space = fg_json_space_node(build);
    if (index >= a->prefix) {
        uint32_t more = least > index ? least - index : 0;
        if (!a->open) {
            return more == 0 ? fg_build_empty(build) : fg_build_never(build);
        }
        fg_gnode *item =
            fg_build_seq(build, 3, comma, space, fg_schema_value(a->schema, &a->others));
        return fg_build_repeat(build, item, more, most == FG_REPEAT_ENDLESS ? most : most - index);
    }
    fg_gnode *with = index < most ? fg_build_seq(build, 4, comma, space, item_node(a, index),
                                                 more_items(a, index + 1))
                                  : fg_build_never(build);
    return index >= least ? fg_build_or(build, 2, with, fg_build_empty(build)) : with;
}

fg_gnode *fg_shape_array(fg_schema *schema, const fg_shape *shape)
{
    array a = { .schema = schema, .build = schema->build, .shape = shape };
    find_items(&a);
    if (!fg_build_ok(a.build)) {
        return NULL;
    }
    fg_gnode *inside;
    if (shape->items_least > shape->items_most || shape->items_most == 0) {
        inside = fg_build_never(a.build);
    } else if (a.prefix > 0) {
        inside = fg_build_seq(a.build, 2, item_node(&a, 0), more_items(&a, 1));
    } else if (a.open) {
        inside = fg_build_seq(a.build, 2, fg_schema_value(schema, &a.others), more_items(&a, 1));
    } else {
        inside = fg_build_never(a.build);
    }
    return in_brackets(a.build, "[", inside, shape->items_least == 0, "]");
}
