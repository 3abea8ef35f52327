/*
 * jinja_internal - what the files of the room share: the tree of a template, values, and the state of a run.
 */
#ifndef FORGE_COMMON_JINJA_JINJA_INTERNAL_H
#define FORGE_COMMON_JINJA_JINJA_INTERNAL_H

#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/jinja/jinja.h"

/* A name or key, with a hash that tells most different ones apart. */
typedef struct fg_jinja_name {
    const char *text;
    uint32_t length;
    uint32_t hash;
} fg_jinja_name;

fg_jinja_name fg_jinja_name_of(const char *text, size_t length);
bool fg_jinja_name_equal(fg_jinja_name a, fg_jinja_name b);
bool fg_jinja_name_is(fg_jinja_name name, const char *text);

/* ---- values ---- */

typedef enum fg_jinja_kind {
    FG_JINJA_UNDEFINED = 0,
    FG_JINJA_NONE,
    FG_JINJA_BOOL,
    FG_JINJA_INTEGER,
    FG_JINJA_REAL,
    FG_JINJA_TEXT,
    FG_JINJA_LIST,
    FG_JINJA_MAP,
    FG_JINJA_NAMESPACE, /* a map that templates may change */
    FG_JINJA_LOOP,      /* what `loop` is inside of one */
    FG_JINJA_METHOD,    /* of a text or map, not yet called */
    FG_JINJA_MACRO,
    FG_JINJA_FUNCTION,
} fg_jinja_kind;

/* A text is pieces one behind the other; `flat` are its bytes side by side once somebody asked for them. */
typedef struct fg_jinja_string {
    size_t length;
    size_t count;
    const fg_jinja_piece *pieces;
    const char *flat;
    struct fg_jinja_output
        *store; /* whose first pieces these are, where more may be added; or NULL */
} fg_jinja_string;

typedef struct fg_jinja_items {
    fg_jinja_value *items;
    size_t count;
    size_t capacity;
    bool is_tuple;
} fg_jinja_items;

typedef struct fg_jinja_entry fg_jinja_entry;

/* Keys in the order in which they came. */
typedef struct fg_jinja_dict {
    fg_jinja_entry *entries;
    size_t count;
    size_t capacity;
} fg_jinja_dict;

typedef struct fg_jinja_scope fg_jinja_scope;
typedef struct fg_jinja_node fg_jinja_node;

typedef struct fg_jinja_macro {
    const fg_jinja_node *node; /* the macro, or the call whose body `caller` is */
    fg_jinja_scope *scope;     /* where it was met */
} fg_jinja_macro;

/* A loop at one of its items. */
typedef struct fg_jinja_loop {
    const fg_jinja_items *items;
    size_t index;
} fg_jinja_loop;

typedef struct fg_jinja_method {
    const fg_jinja_value *self;
    int index; /* of methods of its kind */
} fg_jinja_method;

struct fg_jinja_value {
    fg_jinja_kind kind;
    union {
        bool flag;
        int64_t integer;
        double real;
        fg_jinja_string *text;
        fg_jinja_items *list;
        fg_jinja_dict *map;
        const fg_jinja_method *method;
        const fg_jinja_macro *macro;
        const fg_jinja_loop *loop;
        int function;
        const fg_jinja_name *missing; /* undefined: what was asked for, or NULL */
    };
};

struct fg_jinja_entry {
    fg_jinja_name key;
    bool key_of_client;
    fg_jinja_value value;
};

/* ---- the tree ---- */

typedef enum fg_jinja_node_kind {
    /* Statements. */
    NODE_DATA, /* constant */
    NODE_OUTPUT,
    NODE_IF,    /* a, body, other */
    NODE_FOR,   /* targets, a in, b if, body, other */
    NODE_SET,   /* targets, a; or body, with filters around NODE_CAPTURED in a */
    NODE_MACRO, /* name, list of NODE_KEYWORD: parameters with defaults; body */
    NODE_CALL_BLOCK,
    NODE_FILTER_BLOCK,
    NODE_BREAK,
    NODE_CONTINUE,
    /* Expressions. */
    NODE_CONSTANT,
    NODE_NAME,
    NODE_LIST, /* list; flag: a tuple */
    NODE_DICT, /* list of NODE_PAIR */
    NODE_PAIR, /* a: b */
    NODE_ATTRIBUTE,
    NODE_ITEM,
    NODE_SLICE, /* of a: b, c, d */
    NODE_CALL,  /* a(list) */
    NODE_FILTER,
    NODE_TEST, /* flag: not */
    NODE_KEYWORD,
    NODE_SPREAD, /* *a among arguments */
    NODE_UNARY,
    NODE_BINARY,
    NODE_AND,
    NODE_OR,
    NODE_CHOICE, /* b if a else c */
    NODE_CAPTURED,
} fg_jinja_node_kind;

typedef enum fg_jinja_op {
    OP_ADD,
    OP_SUBTRACT,
    OP_MULTIPLY,
    OP_DIVIDE,
    OP_FLOOR_DIVIDE,
    OP_MODULO,
    OP_POWER,
    OP_CONCAT,
    OP_EQUAL,
    OP_NOT_EQUAL,
    OP_LESS,
    OP_LESS_EQUAL,
    OP_GREATER,
    OP_GREATER_EQUAL,
    OP_IN,
    OP_NOT_IN,
    OP_NOT,
    OP_NEGATE,
    OP_PLUS,
} fg_jinja_op;

struct fg_jinja_node {
    fg_jinja_node_kind kind;
    fg_jinja_op op;
    uint32_t line;
    int index; /* of a filter or a test */
    bool flag;
    fg_jinja_name name;
    fg_jinja_value constant;
    fg_jinja_node *a, *b, *c, *d;
    fg_jinja_node *list; /* arguments, items, targets, parameters: a chain by `next` */
    fg_jinja_node *body;
    fg_jinja_node *other;
    fg_jinja_node *next;
    const fg_jinja_node *name_before; /* NODE_NAME: the one that was read before it */
};

struct fg_jinja {
    fg_arena *arena;
    fg_jinja_node *body;
    const fg_jinja_node *names; /* the last one of those that are read */
};

/* ---- reading ---- */

typedef enum fg_jinja_token_kind {
    TOKEN_END, /* of the template */
    TOKEN_DATA,
    TOKEN_OUTPUT_BEGIN,
    TOKEN_OUTPUT_END,
    TOKEN_BLOCK_BEGIN,
    TOKEN_BLOCK_END,
    TOKEN_NAME,
    TOKEN_STRING,
    TOKEN_INTEGER,
    TOKEN_REAL,
    TOKEN_SIGN, /* text: the operator */
} fg_jinja_token_kind;

typedef struct fg_jinja_token {
    fg_jinja_token_kind kind;
    uint32_t line;
    const char *text; /* of strings: their value */
    size_t length;
    int64_t integer;
    double real;
} fg_jinja_token;

/* A template's tokens, one after the other; a parser sees `token` and, where it asks, the one behind it. */
typedef struct fg_jinja_reader {
    fg_arena *arena;
    const char *source;
    size_t length;
    size_t at;
    uint32_t line;
    uint32_t braces;            /* open brackets of a tag */
    char close;                 /* '%' or '}' inside a tag, else 0 */
    uint32_t depth;             /* of nested things */
    uint32_t loops;             /* around this place */
    const fg_jinja_node *names; /* of the tree: the last one */
    fg_jinja_token token;
    fg_status status; /* the first failure; then every token is the end */
    fg_error error;
} fg_jinja_reader;

/* Moves on to the next token. */
void fg_jinja_next(fg_jinja_reader *reader);
/* True when the token is this sign, or this name. */
bool fg_jinja_at_sign(const fg_jinja_reader *reader, const char *sign);
bool fg_jinja_at_name(const fg_jinja_reader *reader, const char *name);
/* The same, and moves on if so. */
bool fg_jinja_take_sign(fg_jinja_reader *reader, const char *sign);
bool fg_jinja_take_name(fg_jinja_reader *reader, const char *name);
/* The first failure is kept. */
void fg_jinja_refuse(fg_jinja_reader *reader, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
bool fg_jinja_refused(const fg_jinja_reader *reader);
/* Zeroed; NULL only once the reader has failed. */
fg_jinja_node *fg_jinja_node_new(fg_jinja_reader *reader, fg_jinja_node_kind kind);
/* A name that keywords do not have; NULL after a refusal. */
bool fg_jinja_read_name(fg_jinja_reader *reader, fg_jinja_name *name_out);
void fg_jinja_want_sign(fg_jinja_reader *reader, const char *sign);

/* Expressions. The tuple reader takes `a, b` without parentheses too; `choice`: with `x if y else z`. */
fg_jinja_node *fg_jinja_read_expression(fg_jinja_reader *reader);
fg_jinja_node *fg_jinja_read_tuple(fg_jinja_reader *reader, bool choice);
/* Names that a loop or a set assigns to: a chain; *is_list_out when there was a comma. */
fg_jinja_node *fg_jinja_read_targets(fg_jinja_reader *reader, bool *is_list_out);
/* `| filter` again and again behind `value`. */
fg_jinja_node *fg_jinja_read_filters(fg_jinja_reader *reader, fg_jinja_node *value);
fg_jinja_node *fg_jinja_read_arguments(fg_jinja_reader *reader);

/* Deeper templates than these are refused. */
enum { FG_JINJA_DEPTH_MAX = 96 };
bool fg_jinja_enter(fg_jinja_reader *reader);
void fg_jinja_leave(fg_jinja_reader *reader);

/* ---- running ---- */

typedef struct fg_jinja_variable {
    fg_jinja_name name;
    fg_jinja_value value;
} fg_jinja_variable;

struct fg_jinja_scope {
    fg_jinja_scope *outer;
    bool is_kept; /* a macro was met in it */
    fg_jinja_variable *variables;
    size_t count;
    size_t capacity;
};

typedef struct fg_jinja_output {
    fg_jinja_piece *pieces;
    size_t count;
    size_t capacity;
    size_t length;
} fg_jinja_output;

typedef enum fg_jinja_leaving { LEAVE_NOT, LEAVE_BREAK, LEAVE_CONTINUE } fg_jinja_leaving;

struct fg_jinja_run {
    fg_arena *arena;
    size_t bytes_left;
    uint64_t steps_left;
    int64_t now_s;
    const fg_jinja_dict *globals;
    fg_jinja_scope *scope;
    fg_jinja_output *output;
    fg_jinja_value captured; /* of the set or filter block at hand */
    fg_jinja_leaving leaving;
    uint32_t depth;
    uint32_t line; /* of the statement at hand */
    fg_status status;
    fg_error error;
};

/* A member of `loop`; false: it has none of this name. */
bool fg_jinja_loop_member(const fg_jinja_loop *loop, fg_jinja_name name, fg_jinja_value *value_out);

/* The call's arguments, evaluated. */
typedef struct fg_jinja_arguments {
    fg_jinja_value *values;
    size_t count;
    fg_jinja_variable *named;
    size_t named_count;
} fg_jinja_arguments;

/* Ends the run; the first failure is kept. */
void fg_jinja_fail(fg_jinja_run *run, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void fg_jinja_no_memory(fg_jinja_run *run);
static inline bool fg_jinja_failed(const fg_jinja_run *run)
{
    return run->status != FG_OK;
}
/* One level deeper in a tree or a value, for whatever calls itself; false when it is too deep, which fails the run. A
 * level that was entered is left. */
bool fg_jinja_deepen(fg_jinja_run *run);
static inline void fg_jinja_rise(fg_jinja_run *run)
{
    run->depth--;
}
/* Takes steps; false when there were not so many left, or the run has failed. */
bool fg_jinja_step(fg_jinja_run *run, size_t steps);
/* Zeroed memory of the run; NULL after a failure. */
void *fg_jinja_take(fg_jinja_run *run, size_t count, size_t item_bytes);

fg_jinja_value fg_jinja_evaluate(fg_jinja_run *run, const fg_jinja_node *node);
void fg_jinja_run_body(fg_jinja_run *run, const fg_jinja_node *body);
fg_jinja_value fg_jinja_call_macro(fg_jinja_run *run, const fg_jinja_macro *macro,
                                   const fg_jinja_arguments *arguments,
                                   const fg_jinja_value *caller);
void fg_jinja_assign(fg_jinja_run *run, fg_jinja_name name, fg_jinja_value value);
fg_jinja_arguments fg_jinja_evaluate_arguments(fg_jinja_run *run, const fg_jinja_node *list);
/* Argument `index`, or the one named so, or `otherwise`. */
fg_jinja_value fg_jinja_argument(const fg_jinja_arguments *arguments, size_t index,
                                 const char *name, fg_jinja_value otherwise);
/* object.name, without what is missing being an error. */
fg_jinja_value fg_jinja_attribute(fg_jinja_run *run, fg_jinja_value object, fg_jinja_name name);

/* ---- filters, tests, methods, functions: by index; below 0: there is none of this name ---- */

int fg_jinja_filter_find(fg_jinja_name name);
fg_jinja_value fg_jinja_filter(fg_jinja_run *run, int index, fg_jinja_value value,
                               const fg_jinja_arguments *arguments);
int fg_jinja_test_find(fg_jinja_name name);
bool fg_jinja_test(fg_jinja_run *run, int index, fg_jinja_value value,
                   const fg_jinja_arguments *arguments);
int fg_jinja_method_find(fg_jinja_kind kind, fg_jinja_name name);
fg_jinja_value fg_jinja_call_method(fg_jinja_run *run, const fg_jinja_method *method,
                                    const fg_jinja_arguments *arguments);
int fg_jinja_function_find(fg_jinja_name name);
fg_jinja_value fg_jinja_call_function(fg_jinja_run *run, int index,
                                      const fg_jinja_arguments *arguments);

/* ---- values ---- */

static inline fg_jinja_value fg_jinja_of_bool(bool flag)
{
    return (fg_jinja_value){ .kind = FG_JINJA_BOOL, .flag = flag };
}

static inline fg_jinja_value fg_jinja_of_integer(int64_t integer)
{
    return (fg_jinja_value){ .kind = FG_JINJA_INTEGER, .integer = integer };
}

static inline fg_jinja_value fg_jinja_none(void)
{
    return (fg_jinja_value){ .kind = FG_JINJA_NONE };
}

static inline fg_jinja_value fg_jinja_undefined(void)
{
    return (fg_jinja_value){ .kind = FG_JINJA_UNDEFINED };
}

const char *fg_jinja_kind_name(fg_jinja_value value);
bool fg_jinja_is_true(fg_jinja_value value);
bool fg_jinja_is_number(fg_jinja_value value);
double fg_jinja_number(fg_jinja_value value);
bool fg_jinja_equal(fg_jinja_run *run, fg_jinja_value a, fg_jinja_value b);
/* Below, equal, above 0; values that have no order fail the run. */
int fg_jinja_compare(fg_jinja_run *run, fg_jinja_value a, fg_jinja_value b);
bool fg_jinja_contains(fg_jinja_run *run, fg_jinja_value container, fg_jinja_value item);
/* Items, keys, characters, or nothing of an undefined value; others fail the run. */
fg_jinja_items *fg_jinja_iterate(fg_jinja_run *run, fg_jinja_value value);
/* As str() and as it is printed. */
fg_jinja_value fg_jinja_to_text(fg_jinja_run *run, fg_jinja_value value);

fg_jinja_value fg_jinja_list_new(fg_jinja_run *run, size_t capacity, bool is_tuple);
void fg_jinja_list_push(fg_jinja_run *run, fg_jinja_items *list, fg_jinja_value value);
fg_jinja_value fg_jinja_map_new(fg_jinja_run *run);
void fg_jinja_put(fg_jinja_run *run, fg_jinja_dict *map, fg_jinja_name key, bool key_of_client,
                  fg_jinja_value value);
const fg_jinja_value *fg_jinja_get(fg_jinja_run *run, const fg_jinja_dict *map, fg_jinja_name key);
fg_jinja_value fg_jinja_key(fg_jinja_run *run, const fg_jinja_entry *entry);
/* For qsort of pointers to entries of one array: by key, then by place. */
int fg_jinja_by_key(const void *a, const void *b);
/* The list of {key, value} of a map. */
fg_jinja_value fg_jinja_map_items(fg_jinja_run *run, const fg_jinja_dict *map);

/* JSON of a value: what json.dumps(value, ensure_ascii=False) gives. */
typedef struct fg_jinja_json_style {
    int64_t indent; /* below 0: all on one line */
    bool ascii;
    bool sorted;
    const char *comma; /* separators, NULL: the usual ones */
    const char *colon;
} fg_jinja_json_style;
fg_jinja_value fg_jinja_to_json(fg_jinja_run *run, fg_jinja_value value,
                                const fg_jinja_json_style *style);

/* ---- texts ---- */

fg_jinja_value fg_jinja_text_of(fg_jinja_run *run, const char *text, size_t length, bool of_client);
fg_jinja_value fg_jinja_text_of_output(fg_jinja_run *run, const fg_jinja_output *output);
/* The bytes of a text, side by side. */
const char *fg_jinja_flat(fg_jinja_run *run, fg_jinja_string *text);
fg_jinja_value fg_jinja_join(fg_jinja_run *run, const fg_jinja_string *a, const fg_jinja_string *b);
/* Whether a client wrote some of it. */
bool fg_jinja_is_of_client(const fg_jinja_string *text);
/* As str.splitlines. */
fg_jinja_value fg_jinja_split_lines(fg_jinja_run *run, fg_jinja_string *text, bool keep_ends);
/* Bytes start .. end - 1. */
fg_jinja_value fg_jinja_cut(fg_jinja_run *run, const fg_jinja_string *text, size_t start,
                            size_t end);
size_t fg_jinja_characters(fg_jinja_run *run, fg_jinja_string *text);
/* Where character `index` begins; the text's length behind the last. */
size_t fg_jinja_character_at(fg_jinja_run *run, fg_jinja_string *text, size_t index);
/* White space, or what `set` names (NULL: white space), taken off. */
fg_jinja_value fg_jinja_strip(fg_jinja_run *run, fg_jinja_string *text, fg_jinja_string *set,
                              bool left, bool right);
fg_jinja_value fg_jinja_replace(fg_jinja_run *run, fg_jinja_string *text, fg_jinja_string *from,
                                fg_jinja_string *to, int64_t count_max);
/* `by` NULL: at white space. */
fg_jinja_value fg_jinja_split(fg_jinja_run *run, fg_jinja_string *text, fg_jinja_string *by,
                              int64_t count_max, bool from_right);
typedef enum fg_jinja_case {
    CASE_LOWER,
    CASE_UPPER,
    CASE_TITLE, /* str.title */
    CASE_WORDS, /* the filter title: words end at white space and brackets */
    CASE_CAPITALIZE
} fg_jinja_case;
fg_jinja_value fg_jinja_change_case(fg_jinja_run *run, fg_jinja_string *text, fg_jinja_case into);
/* Index of `part` at or behind `from`; SIZE_MAX: nowhere. */
size_t fg_jinja_find(fg_jinja_run *run, fg_jinja_string *text, fg_jinja_string *part, size_t from);

void fg_jinja_emit(fg_jinja_run *run, fg_jinja_output *output, const char *text, size_t length,
                   bool of_client);
void fg_jinja_emit_text(fg_jinja_run *run, fg_jinja_output *output, const fg_jinja_string *text);
/* Length of the white space character at `text`, 0 when it is none: Python's idea of it. */
size_t fg_jinja_space(const char *text, size_t length);

#endif
