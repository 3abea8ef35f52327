/* A template's expressions become trees, with the precedence that Jinja2's parser gives them. */
#include <string.h>

#include "common/jinja/jinja_internal.h"

static bool at_any_name(const fg_jinja_reader *reader, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (fg_jinja_at_name(reader, names[i])) {
            return true;
        }
    }
    return false;
}

bool fg_jinja_read_name(fg_jinja_reader *reader, fg_jinja_name *name_out)
{
    static const char *const taken[] = { "true", "false", "none", "True",   "False", "None",
                                         "and",  "or",    "not",  "if",     "else",  "elif",
                                         "is",   "in",    "for",  "endfor", "endif" };
    if (reader->token.kind != TOKEN_NAME ||
        at_any_name(reader, taken, sizeof taken / sizeof taken[0])) {
        fg_jinja_refuse(reader, "a name is missing");
        return false;
    }
    *name_out = fg_jinja_name_of(reader->token.text, reader->token.length);
    fg_jinja_next(reader);
    return true;
}

static fg_jinja_node *constant(fg_jinja_reader *reader, fg_jinja_value value)
{
    fg_jinja_node *node = fg_jinja_node_new(reader, NODE_CONSTANT);
    if (node != NULL) {
        node->constant = value;
    }
    fg_jinja_next(reader);
    return node;
}

/* A text of the template: one piece. */
static fg_jinja_value text_value(fg_jinja_reader *reader, const char *text, size_t length)
{
    fg_jinja_string *string = fg_arena_alloc(reader->arena, sizeof *string);
    fg_jinja_piece *piece = fg_arena_alloc(reader->arena, sizeof *piece);
    if (string == NULL || piece == NULL) {
        reader->status = fg_fail(&reader->error, FG_AGAIN, "out of memory for a chat template");
        reader->token = (fg_jinja_token){ .kind = TOKEN_END };
        return fg_jinja_none();
    }
    *piece = (fg_jinja_piece){ .text = text, .length = length };
    *string =
        (fg_jinja_string){ .length = length, .count = length > 0, .pieces = piece, .flat = text };
    return (fg_jinja_value){ .kind = FG_JINJA_TEXT, .text = string };
}

/* Strings side by side are one. */
static fg_jinja_node *read_strings(fg_jinja_reader *reader)
{
    const char *text = reader->token.text;
    size_t length = reader->token.length;
    fg_jinja_node *node = fg_jinja_node_new(reader, NODE_CONSTANT);
    fg_jinja_next(reader);
    while (reader->token.kind == TOKEN_STRING) {
        char *both = fg_arena_alloc(reader->arena, length + reader->token.length + 1);
        if (both == NULL) {
            fg_jinja_refuse(reader, "a string is too long");
            return NULL;
        }
        memcpy(both, text, length);
        memcpy(both + length, reader->token.text, reader->token.length);
        text = both;
        length += reader->token.length;
        fg_jinja_next(reader);
    }
    if (node != NULL) {
        node->constant = text_value(reader, text, length);
    }
    return node;
}

/* Appends to a chain of nodes. */
static void chain(fg_jinja_node ***end, fg_jinja_node *node)
{
    if (node != NULL) {
        **end = node;
        *end = &node->next;
    }
}

/* Expressions up to the sign `close`, which is passed. */
static fg_jinja_node *read_items(fg_jinja_reader *reader, const char *close)
{
    fg_jinja_node *first = NULL;
    fg_jinja_node **end = &first;
    while (!fg_jinja_refused(reader) && !fg_jinja_take_sign(reader, close)) {
        chain(&end, fg_jinja_read_expression(reader));
        if (!fg_jinja_at_sign(reader, close)) {
            fg_jinja_want_sign(reader, ",");
        }
    }
    return first;
}

static fg_jinja_node *read_dict(fg_jinja_reader *reader)
{
    fg_jinja_node *node = fg_jinja_node_new(reader, NODE_DICT);
    fg_jinja_node *first = NULL;
    fg_jinja_node **end = &first;
    fg_jinja_next(reader);
    while (!fg_jinja_refused(reader) && !fg_jinja_take_sign(reader, "}")) {
        fg_jinja_node *pair = fg_jinja_node_new(reader, NODE_PAIR);
        fg_jinja_node *key = fg_jinja_read_expression(reader);
        fg_jinja_want_sign(reader, ":");
        fg_jinja_node *value = fg_jinja_read_expression(reader);
        if (pair != NULL) {
            pair->a = key;
            pair->b = value;
            chain(&end, pair);
        }
        if (!fg_jinja_at_sign(reader, "}")) {
            fg_jinja_want_sign(reader, ",");
        }
    }
    if (node != NULL) {
        node->list = first;
    }
    return node;
}

static fg_jinja_node *read_parentheses(fg_jinja_reader *reader)
{
    fg_jinja_next(reader);
    if (fg_jinja_at_sign(reader, ")")) {
        fg_jinja_node *empty = fg_jinja_node_new(reader, NODE_LIST);
        if (empty != NULL) {
            empty->flag = true;
        }
        fg_jinja_next(reader);
        return empty;
    }
    fg_jinja_node *node = fg_jinja_read_tuple(reader, true);
    fg_jinja_want_sign(reader, ")");
    return node;
}

static fg_jinja_node *read_primary(fg_jinja_reader *reader)
{
    static const struct {
        const char *name;
        fg_jinja_value value;
    } constants[] = {
        { "true", { .kind = FG_JINJA_BOOL, .flag = true } },
        { "True", { .kind = FG_JINJA_BOOL, .flag = true } },
        { "false", { .kind = FG_JINJA_BOOL } },
        { "False", { .kind = FG_JINJA_BOOL } },
        { "none", { .kind = FG_JINJA_NONE } },
        { "None", { .kind = FG_JINJA_NONE } },
    };
    const fg_jinja_token *token = &reader->token;
    switch (token->kind) {
    case TOKEN_STRING:
        return read_strings(reader);
    case TOKEN_INTEGER:
        return constant(reader, fg_jinja_of_integer(token->integer));
    case TOKEN_REAL:
        return constant(reader, (fg_jinja_value){ .kind = FG_JINJA_REAL, .real = token->real });
    case TOKEN_NAME:
        break;
    default:
        if (fg_jinja_at_sign(reader, "(")) {
            return read_parentheses(reader);
        }
        if (fg_jinja_at_sign(reader, "{")) {
            return read_dict(reader);
        }
        if (fg_jinja_at_sign(reader, "[")) {
            fg_jinja_node *list = fg_jinja_node_new(reader, NODE_LIST);
            fg_jinja_next(reader);
            fg_jinja_node *items = read_items(reader, "]");
            if (list != NULL) {
                list->list = items;
            }
            return list;
        }
        fg_jinja_refuse(reader, "an expression is missing");
        return NULL;
    }
    for (size_t i = 0; i < sizeof constants / sizeof constants[0]; i++) {
        if (fg_jinja_at_name(reader, constants[i].name)) {
            return constant(reader, constants[i].value);
        }
    }
    fg_jinja_node *node = fg_jinja_node_new(reader, NODE_NAME);
    if (node != NULL) {
        fg_jinja_read_name(reader, &node->name);
        node->name_before = reader->names;
        reader->names = node;
    }
    return node;
}

/* Arguments behind an open parenthesis, up to the one that closes it. */
fg_jinja_node *fg_jinja_read_arguments(fg_jinja_reader *reader)
{
    fg_jinja_node *first = NULL;
    fg_jinja_node **end = &first;
    bool named = false;
    while (!fg_jinja_refused(reader) && !fg_jinja_take_sign(reader, ")")) {
        bool spread = fg_jinja_take_sign(reader, "*");
        fg_jinja_node *item = fg_jinja_read_expression(reader);
        if (spread) {
            fg_jinja_node *list = fg_jinja_node_new(reader, NODE_SPREAD);
            if (list != NULL) {
                list->a = item;
            }
            item = list;
        } else if (item != NULL && item->kind == NODE_NAME && fg_jinja_take_sign(reader, "=")) {
            named = true;
            item->kind = NODE_KEYWORD;
            item->a = fg_jinja_read_expression(reader);
        } else if (named) {
            fg_jinja_refuse(reader, "an argument without a name behind one that has one");
        }
        chain(&end, item);
        if (!fg_jinja_at_sign(reader, ")")) {
            fg_jinja_want_sign(reader, ",");
        }
    }
    return first;
}

static fg_jinja_node *read_call(fg_jinja_reader *reader, fg_jinja_node *callee)
{
    fg_jinja_node *node = fg_jinja_node_new(reader, NODE_CALL);
    fg_jinja_next(reader);
    fg_jinja_node *arguments = fg_jinja_read_arguments(reader);
    if (node != NULL) {
        node->a = callee;
        node->list = arguments;
    }
    return node;
}

/* One bound of a slice, or NULL where there is none. */
static fg_jinja_node *read_bound(fg_jinja_reader *reader)
{
    bool none = fg_jinja_at_sign(reader, ":") || fg_jinja_at_sign(reader, "]");
    return none ? NULL : fg_jinja_read_expression(reader);
}

static fg_jinja_node *read_subscript(fg_jinja_reader *reader, fg_jinja_node *object)
{
    fg_jinja_node *node = fg_jinja_node_new(reader, NODE_ITEM);
    fg_jinja_next(reader);
    fg_jinja_node *first = read_bound(reader);
    if (node == NULL) {
        return NULL;
    }
    node->a = object;
    node->b = first;
    if (fg_jinja_take_sign(reader, ":")) {
        node->kind = NODE_SLICE;
        node->c = read_bound(reader);
        node->d = fg_jinja_take_sign(reader, ":") ? read_bound(reader) : NULL;
    } else if (first == NULL) {
        fg_jinja_refuse(reader, "an index is missing");
    }
    fg_jinja_want_sign(reader, "]");
    return node;
}

static fg_jinja_node *read_dot(fg_jinja_reader *reader, fg_jinja_node *object)
{
    fg_jinja_node *node = fg_jinja_node_new(reader, NODE_ATTRIBUTE);
    fg_jinja_next(reader);
    if (node == NULL) {
        return NULL;
    }
    node->a = object;
    if (reader->token.kind == TOKEN_INTEGER) {
        node->kind = NODE_ITEM;
        node->b = constant(reader, fg_jinja_of_integer(reader->token.integer));
        return node;
    }
    if (reader->token.kind != TOKEN_NAME) {
        fg_jinja_refuse(reader, "a name is missing behind the dot");
        return NULL;
    }
    node->name = fg_jinja_name_of(reader->token.text, reader->token.length);
    fg_jinja_next(reader);
    return node;
}

static fg_jinja_node *read_postfix(fg_jinja_reader *reader, fg_jinja_node *node)
{
    while (!fg_jinja_refused(reader)) {
        if (fg_jinja_at_sign(reader, ".")) {
            node = read_dot(reader, node);
        } else if (fg_jinja_at_sign(reader, "[")) {
            node = read_subscript(reader, node);
        } else if (fg_jinja_at_sign(reader, "(")) {
            node = read_call(reader, node);
        } else {
            break;
        }
    }
    return node;
}

static fg_jinja_node *read_filter(fg_jinja_reader *reader, fg_jinja_node *value)
{
    fg_jinja_node *node = fg_jinja_node_new(reader, NODE_FILTER);
    if (node == NULL || !fg_jinja_read_name(reader, &node->name)) {
        return NULL;
    }
    node->index = fg_jinja_filter_find(node->name);
    if (node->index < 0) {
        fg_jinja_refuse(reader, "there is no filter '%.*s' here", (int)node->name.length,
                        node->name.text);
    }
    node->a = value;
    if (fg_jinja_take_sign(reader, "(")) {
        node->list = fg_jinja_read_arguments(reader);
    }
    return node;
}

fg_jinja_node *fg_jinja_read_filters(fg_jinja_reader *reader, fg_jinja_node *value)
{
    while (!fg_jinja_refused(reader) && fg_jinja_take_sign(reader, "|")) {
        value = read_filter(reader, value);
    }
    return value;
}

/* Whether an argument without parentheses follows, as in `is divisibleby 3`. */
static bool at_argument(const fg_jinja_reader *reader)
{
    static const char *const words[] = { "else", "or", "and", "is", "if", "in", "not" };
    switch (reader->token.kind) {
    case TOKEN_NAME:
        return !at_any_name(reader, words, sizeof words / sizeof words[0]);
    case TOKEN_STRING:
    case TOKEN_INTEGER:
    case TOKEN_REAL:
        return true;
    default:
        return fg_jinja_at_sign(reader, "[") || fg_jinja_at_sign(reader, "{");
    }
}

static fg_jinja_node *read_test(fg_jinja_reader *reader, fg_jinja_node *value)
{
    fg_jinja_node *node = fg_jinja_node_new(reader, NODE_TEST);
    if (node == NULL) {
        return NULL;
    }
    node->flag = fg_jinja_take_name(reader, "not");
    /* `none`, `true` and `in` are tests too. */
    if (reader->token.kind != TOKEN_NAME) {
        fg_jinja_refuse(reader, "the name of a test is missing");
        return NULL;
    }
    node->name = fg_jinja_name_of(reader->token.text, reader->token.length);
    fg_jinja_next(reader);
    node->index = fg_jinja_test_find(node->name);
    if (node->index < 0) {
        fg_jinja_refuse(reader, "there is no test '%.*s' here", (int)node->name.length,
                        node->name.text);
    }
    node->a = value;
    if (fg_jinja_take_sign(reader, "(")) {
        node->list = fg_jinja_read_arguments(reader);
    } else if (at_argument(reader)) {
        node->list = read_postfix(reader, read_primary(reader));
    }
    return node;
}

static fg_jinja_node *read_unary(fg_jinja_reader *reader, bool with_filters)
{
    if (!fg_jinja_enter(reader)) {
        return NULL;
    }
    fg_jinja_node *node;
    bool negate = fg_jinja_at_sign(reader, "-");
    if (negate || fg_jinja_at_sign(reader, "+")) {
        node = fg_jinja_node_new(reader, NODE_UNARY);
        fg_jinja_next(reader);
        fg_jinja_node *value = read_unary(reader, false);
        if (node != NULL) {
            node->op = negate ? OP_NEGATE : OP_PLUS;
            node->a = value;
        }
    } else {
        node = read_primary(reader);
    }
    node = read_postfix(reader, node);
    while (with_filters && !fg_jinja_refused(reader)) {
        if (fg_jinja_take_sign(reader, "|")) {
            node = read_filter(reader, node);
        } else if (fg_jinja_take_name(reader, "is")) {
            node = read_test(reader, node);
        } else if (fg_jinja_at_sign(reader, "(")) {
            node = read_call(reader, node);
        } else {
            break;
        }
    }
    fg_jinja_leave(reader);
    return node;
}

static const struct {
    const char *sign;
    fg_jinja_op op;
    int level;
} operators[] = {
    { "+", OP_ADD, 0 },      { "-", OP_SUBTRACT, 0 }, { "~", OP_CONCAT, 1 },
    { "*", OP_MULTIPLY, 2 }, { "/", OP_DIVIDE, 2 },   { "//", OP_FLOOR_DIVIDE, 2 },
    { "%", OP_MODULO, 2 },   { "**", OP_POWER, 3 },
};

enum { LEVEL_COUNT = 4 };

/* Operators of this level and tighter ones; all of them are read from left to right. */
static fg_jinja_node *read_level(fg_jinja_reader *reader, int level)
{
    if (level == LEVEL_COUNT) {
        return read_unary(reader, true);
    }
    fg_jinja_node *left = read_level(reader, level + 1);
    for (size_t i = 0; i < sizeof operators / sizeof operators[0] && !fg_jinja_refused(reader);) {
        if (operators[i].level != level || !fg_jinja_at_sign(reader, operators[i].sign)) {
            i++;
            continue;
        }
        fg_jinja_node *node = fg_jinja_node_new(reader, NODE_BINARY);
        fg_jinja_next(reader);
        fg_jinja_node *right = read_level(reader, level + 1);
        if (node != NULL) {
            node->op = operators[i].op;
            node->a = left;
            node->b = right;
        }
        left = node;
        i = 0;
    }
    return left;
}

/* The comparison at hand, which is passed; false: there is none. */
static bool take_comparison(fg_jinja_reader *reader, fg_jinja_op *op_out)
{
    static const struct {
        const char *sign;
        fg_jinja_op op;
    } signs[] = {
        { "==", OP_EQUAL },  { "!=", OP_NOT_EQUAL },  { "<", OP_LESS },
        { ">", OP_GREATER }, { "<=", OP_LESS_EQUAL }, { ">=", OP_GREATER_EQUAL },
    };
    for (size_t i = 0; i < sizeof signs / sizeof signs[0]; i++) {
        if (fg_jinja_take_sign(reader, signs[i].sign)) {
            *op_out = signs[i].op;
            return true;
        }
    }
    if (fg_jinja_take_name(reader, "in")) {
        *op_out = OP_IN;
        return true;
    }
    if (fg_jinja_take_name(reader, "not")) {
        if (!fg_jinja_take_name(reader, "in")) {
            fg_jinja_refuse(reader, "'in' is missing behind 'not'");
        }
        *op_out = OP_NOT_IN;
        return true;
    }
    return false;
}

static fg_jinja_node *both(fg_jinja_reader *reader, fg_jinja_node_kind kind, fg_jinja_node *a,
                           fg_jinja_node *b)
{
    fg_jinja_node *node = fg_jinja_node_new(reader, kind);
    if (node != NULL) {
        node->a = a;
        node->b = b;
    }
    return node;
}

/* a < b < c is a < b and b < c; values have no side effects, so b may be computed twice. */
static fg_jinja_node *read_comparison(fg_jinja_reader *reader)
{
    fg_jinja_node *left = read_level(reader, 0);
    fg_jinja_node *all = NULL;
    fg_jinja_op op;
    while (!fg_jinja_refused(reader) && take_comparison(reader, &op)) {
        fg_jinja_node *right = read_level(reader, 0);
        fg_jinja_node *one = both(reader, NODE_BINARY, left, right);
        if (one == NULL) {
            return NULL;
        }
        one->op = op;
        all = all == NULL ? one : both(reader, NODE_AND, all, one);
        left = right;
    }
    return all == NULL ? left : all;
}

static fg_jinja_node *read_not(fg_jinja_reader *reader)
{
    if (!fg_jinja_at_name(reader, "not")) {
        return read_comparison(reader);
    }
    if (!fg_jinja_enter(reader)) {
        return NULL;
    }
    fg_jinja_node *node = fg_jinja_node_new(reader, NODE_UNARY);
    fg_jinja_next(reader);
    fg_jinja_node *value = read_not(reader);
    if (node != NULL) {
        node->op = OP_NOT;
        node->a = value;
    }
    fg_jinja_leave(reader);
    return node;
}

static fg_jinja_node *read_and(fg_jinja_reader *reader)
{
    fg_jinja_node *left = read_not(reader);
    while (!fg_jinja_refused(reader) && fg_jinja_take_name(reader, "and")) {
        left = both(reader, NODE_AND, left, read_not(reader));
    }
    return left;
}

static fg_jinja_node *read_or(fg_jinja_reader *reader)
{
    fg_jinja_node *left = read_and(reader);
    while (!fg_jinja_refused(reader) && fg_jinja_take_name(reader, "or")) {
        left = both(reader, NODE_OR, left, read_and(reader));
    }
    return left;
}

fg_jinja_node *fg_jinja_read_expression(fg_jinja_reader *reader)
{
    if (!fg_jinja_enter(reader)) {
        return NULL;
    }
    fg_jinja_node *value = read_or(reader);
    while (!fg_jinja_refused(reader) && fg_jinja_take_name(reader, "if")) {
        fg_jinja_node *node = fg_jinja_node_new(reader, NODE_CHOICE);
        fg_jinja_node *condition = read_or(reader);
        fg_jinja_node *otherwise =
            fg_jinja_take_name(reader, "else") ? fg_jinja_read_expression(reader) : NULL;
        if (node != NULL) {
            node->a = condition;
            node->b = value;
            node->c = otherwise;
        }
        value = node;
    }
    fg_jinja_leave(reader);
    return value;
}

fg_jinja_node *fg_jinja_read_tuple(fg_jinja_reader *reader, bool choice)
{
    fg_jinja_node *first = choice ? fg_jinja_read_expression(reader) : read_or(reader);
    if (!fg_jinja_at_sign(reader, ",")) {
        return first;
    }
    fg_jinja_node *node = fg_jinja_node_new(reader, NODE_LIST);
    if (node == NULL || first == NULL) {
        return NULL;
    }
    node->flag = true;
    fg_jinja_node **end = &node->list;
    chain(&end, first);
    while (fg_jinja_take_sign(reader, ",")) {
        bool over = reader->token.kind == TOKEN_BLOCK_END ||
                    reader->token.kind == TOKEN_OUTPUT_END || fg_jinja_at_sign(reader, ")") ||
                    fg_jinja_at_sign(reader, "=") || fg_jinja_at_name(reader, "in");
        if (!over) {
            chain(&end, choice ? fg_jinja_read_expression(reader) : read_or(reader));
        }
    }
    return node;
}

fg_jinja_node *fg_jinja_read_targets(fg_jinja_reader *reader, bool *is_list_out)
{
    fg_jinja_node *first = NULL;
    fg_jinja_node **end = &first;
    bool parentheses = fg_jinja_take_sign(reader, "(");
    *is_list_out = false;
    do {
        if (first != NULL) {
            *is_list_out = true;
        }
        if (first != NULL && reader->token.kind != TOKEN_NAME) {
            break; /* a comma at the end */
        }
        fg_jinja_node *node = fg_jinja_node_new(reader, NODE_NAME);
        if (node == NULL || !fg_jinja_read_name(reader, &node->name)) {
            return NULL;
        }
        chain(&end, node);
    } while (fg_jinja_take_sign(reader, ","));
    if (parentheses) {
        fg_jinja_want_sign(reader, ")");
    }
    return first;
}
