/*
 * grammar_internal - the compiled form that automata walk, and the builder that all front ends write with.
 *
 * A front end makes nodes (expressions over bytes) and gives them to rules; fg_build_link writes the rules out as
 * positions. Failure is sticky: after one call has failed, nodes are NULL, every call accepts NULL, and the front end
 * looks at `status` when it likes. Everything lives in the builder's arena.
 */
#ifndef FORGE_COMMON_GRAMMAR_GRAMMAR_INTERNAL_H
#define FORGE_COMMON_GRAMMAR_GRAMMAR_INTERNAL_H

#include <stdbool.h>

#include "common/base/arena.h"
#include "common/base/json.h"
#include "common/grammar/grammar.h"

/* --- what is compiled ---------------------------------------------------------------------------- */

typedef enum fg_op {
    FG_OP_DEAD = 0, /* leads nowhere */
    FG_OP_SET,      /* a byte of set a, then b */
    FG_OP_SPLIT,    /* a or b */
    FG_OP_CALL,     /* the rule at a, then b */
    FG_OP_TAIL,     /* the rule at a, then return */
    FG_OP_RETURN,
    FG_OP_ACCEPT,
} fg_op;

typedef struct fg_position {
    uint32_t op;
    uint32_t a;
    uint32_t b;
} fg_position;

/* Positions that every grammar has. */
enum { FG_AT_DEAD = 0, FG_AT_ACCEPT = 1, FG_AT_RETURN = 2, FG_AT_FIRST = 3 };

typedef struct fg_byte_set {
    uint64_t bits[4];
} fg_byte_set;

static inline bool fg_byte_set_has(const fg_byte_set *set, unsigned byte)
{
    return set->bits[byte >> 6] >> (byte & 63) & 1;
}

static inline void fg_byte_set_add(fg_byte_set *set, unsigned first, unsigned last)
{
    for (unsigned byte = first; byte <= last; byte++) {
        set->bits[byte >> 6] |= (uint64_t)1 << (byte & 63);
    }
}

struct fg_grammar {
    fg_position *positions;
    uint32_t count;
    uint32_t start; /* of the root rule */
    fg_byte_set *sets;
    uint32_t set_count;
    /* Bytes that no set tells apart are one class. */
    uint32_t class_count;
    uint8_t class_of[256];
    uint8_t member[256]; /* of each class, one byte */
};

/* --- nodes ---------------------------------------------------------------------------------------- */

typedef struct fg_gnode fg_gnode;
typedef struct fg_build fg_build;

#define FG_REPEAT_ENDLESS UINT32_MAX

enum { FG_JSON_DEPTH = 32 }; /* of values of which nothing is known */

typedef struct fg_glist {
    fg_gnode **items;
    uint32_t count;
    uint32_t capacity;
} fg_glist;

/* Ranges of code points; kept sorted and apart by fg_chars_settle. */
typedef struct fg_char_range {
    uint32_t first;
    uint32_t last;
} fg_char_range;

typedef struct fg_chars {
    fg_char_range *ranges;
    uint32_t count;
    uint32_t capacity;
} fg_chars;

/* How a character of a pattern is written. */
typedef enum fg_spelling {
    FG_SPELL_PLAIN, /* UTF-8 */
    FG_SPELL_JSON,  /* inside a JSON string */
} fg_spelling;

typedef enum fg_gnode_kind {
    FG_NODE_EMPTY,
    FG_NODE_NEVER,
    FG_NODE_SET,    /* number: of the set */
    FG_NODE_BYTES,  /* bytes, number of them */
    FG_NODE_CAT,    /* items, number of them */
    FG_NODE_ALT,    /* items, number of them */
    FG_NODE_REPEAT, /* items[0], number .. most times */
    FG_NODE_CALL,   /* number: of the rule */
} fg_gnode_kind;

struct fg_gnode {
    fg_gnode_kind kind;
    uint32_t number;
    uint32_t most;
    uint64_t size; /* positions that it takes at most */
    const char *bytes;
    fg_gnode **items;
};

struct fg_build {
    fg_arena *arena;
    fg_error *err;
    fg_status status;
    fg_gnode **rules; /* what each rule is; NULL: not yet defined */
    const char **rule_names;
    uint32_t rule_count;
    uint32_t rule_capacity;
    fg_byte_set *sets;
    uint32_t set_count;
    uint32_t set_capacity;
    uint32_t set_buckets[1024]; /* index + 1 of the newest set with this hash */
    uint32_t *set_chain;
    /* Rules that JSON shares; 0: not yet made. */
    uint32_t json_char, json_plain, json_space, json_string, json_number,
        json_any[FG_JSON_DEPTH + 1];
};

fg_status fg_build_init(fg_build *build, fg_error *err);
void fg_build_deinit(fg_build *build);
bool fg_build_ok(const fg_build *build);
fg_gnode *fg_build_fail(fg_build *build, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Zeroed memory of the arena; NULL after it has run out, which fails the build. */
void *fg_build_alloc(fg_build *build, size_t count, size_t item_bytes);

fg_gnode *fg_build_empty(fg_build *build);
fg_gnode *fg_build_never(fg_build *build);
fg_gnode *fg_build_set(fg_build *build, const fg_byte_set *set);
/* Copies the bytes. */
fg_gnode *fg_build_bytes(fg_build *build, const char *bytes, size_t length);
fg_gnode *fg_build_text(fg_build *build, const char *text);
void fg_list_add(fg_build *build, fg_glist *list, fg_gnode *node);
fg_gnode *fg_build_cat(fg_build *build, const fg_glist *list);
fg_gnode *fg_build_alt(fg_build *build, const fg_glist *list);
/* Of `count` nodes. */
fg_gnode *fg_build_seq(fg_build *build, uint32_t count, ...);
fg_gnode *fg_build_or(fg_build *build, uint32_t count, ...);
fg_gnode *fg_build_repeat(fg_build *build, fg_gnode *node, uint32_t least, uint32_t most);
fg_gnode *fg_build_maybe(fg_build *build, fg_gnode *node);

/* A rule without a meaning yet; `name` is for error texts, borrowed as long as the build. 0 is never a rule. */
uint32_t fg_build_rule(fg_build *build, const char *name);
void fg_build_define(fg_build *build, uint32_t rule, fg_gnode *node);
fg_gnode *fg_build_call(fg_build *build, uint32_t rule);

/* One of these strings, as a tree of what they begin with alike. */
typedef struct fg_text {
    const char *bytes;
    size_t length;
} fg_text;
void fg_texts_sort(fg_text *texts, size_t count);
/* Sorts `texts`. */
fg_gnode *fg_build_texts(fg_build *build, fg_text *texts, size_t count);

void fg_chars_add(fg_build *build, fg_chars *chars, uint32_t first, uint32_t last);
/* Sorts and joins; leaves surrogates out. */
void fg_chars_settle(fg_chars *chars);
/* All other characters. */
void fg_chars_invert(fg_build *build, fg_chars *chars);
/* Characters of `chars` that are none of `without`, both settled. */
void fg_chars_remove(fg_build *build, fg_chars *chars, const fg_chars *without);
fg_gnode *fg_build_chars(fg_build *build, fg_chars *chars, fg_spelling spelling);

/* Writes out the rules. FG_BAD_INPUT: left recursion, too large, or nothing can match. */
fg_status fg_build_link(fg_build *build, uint32_t root, fg_grammar **grammar_out);

/* --- front ends ------------------------------------------------------------------------------------ */

/* Reads a number of repetitions at *at, more than FG_GRAMMAR_REPEAT_MAX as one more than that. False: there is none. */
bool fg_repeat_number(const char *text, size_t length, size_t *at, uint32_t *number_out);
/* `search`: the expression may match anywhere in the text. `where` precedes error texts. */
fg_gnode *fg_regex_build(fg_build *build, const char *text, size_t length, fg_spelling spelling,
                         bool search, const char *where);
uint32_t fg_gbnf_build(fg_build *build, const char *text, size_t length);

/* After { [ , and before } ]. */
fg_gnode *fg_json_space_node(fg_build *build);
/* One character inside a string, and a whole string of so many. */
fg_gnode *fg_json_char_node(fg_build *build);
fg_gnode *fg_json_string_node(fg_build *build, uint32_t least, uint32_t most);
/* A key that is none of these (UTF-8), with its quotes. */
/* Sorts `names`. */
fg_gnode *fg_json_other_key_node(fg_build *build, fg_text *names, size_t count);
enum { FG_KEY_CHARS_MAX = 256 };
fg_gnode *fg_json_number_node(fg_build *build);
/* A value that can nest so deep. */
fg_gnode *fg_json_any_node(fg_build *build, uint32_t depth);
fg_gnode *fg_json_object_node(fg_build *build);
fg_gnode *fg_json_array_node(fg_build *build);
/* '"name":' and the space behind it. */
fg_gnode *fg_json_key_node(fg_build *build, const char *name, size_t length);
/* Exactly this value; its white space is free. */
fg_gnode *fg_json_literal_node(fg_build *build, const fg_json_node *value);
/* The one way that a value is written; NULL: out of memory. For comparing. */
const char *fg_json_canonical(fg_build *build, const fg_json_node *value);

/* Integers from `least` to `most`, within +-(10^18 - 1). */
fg_gnode *fg_integer_node(fg_build *build, int64_t least, int64_t most);
enum { FG_DECIMAL_WHOLE = 9, FG_DECIMAL_FRACTION = 6, FG_DECIMAL_UNIT = 1000000 };
/* Numbers between two limits in millionths. */
fg_gnode *fg_decimal_node(fg_build *build, int64_t least, bool above, int64_t most, bool below);
#define FG_INTEGER_MOST 999999999999999999
#define FG_DECIMAL_MOST 999999999999999

/* A string of this format, with its quotes; NULL and a build that is still ok: not known. */
fg_gnode *fg_format_node(fg_build *build, const char *format);

uint32_t fg_schema_build(fg_build *build, const fg_json_node *schema);

#endif
