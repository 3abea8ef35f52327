/* A template's statements become a tree. */
#include <string.h>

#include "common/base/mem.h"
#include "common/jinja/jinja_internal.h"

/* The tree of a template of so many bytes is smaller than this by far. */
enum { TREE_BYTES_PER_BYTE = 256, TREE_BYTES_MORE = 64 * 1024 };

static fg_jinja_node *read_body(fg_jinja_reader *reader, const char *const *ends, size_t count);

static void end_block(fg_jinja_reader *reader)
{
    if (reader->token.kind != TOKEN_BLOCK_END) {
        fg_jinja_refuse(reader, "'%%}' is missing");
    }
    fg_jinja_next(reader);
}

/* The body up to the tag `end`, which is passed. */
static fg_jinja_node *read_until(fg_jinja_reader *reader, const char *end)
{
    fg_jinja_node *body = read_body(reader, &end, 1);
    fg_jinja_next(reader);
    /* {% endmacro name %} may repeat the name. */
    if (reader->token.kind == TOKEN_NAME && strcmp(end, "endmacro") == 0) {
        fg_jinja_next(reader);
    }
    end_block(reader);
    return body;
}

static void read_if(fg_jinja_reader *reader, fg_jinja_node *node)
{
    static const char *const ends[] = { "elif", "else", "endif" };
    node->a = fg_jinja_read_tuple(reader, false);
    if (fg_jinja_at_name(reader, "if")) { /* a choice as a condition */
        fg_jinja_refuse(reader, "a condition with 'if' in it needs parentheses");
    }
    end_block(reader);
    node->body = read_body(reader, ends, 3);
    if (fg_jinja_take_name(reader, "endif")) {
        end_block(reader);
        return;
    }
    if (fg_jinja_take_name(reader, "else")) {
        end_block(reader);
        node->other = read_until(reader, "endif");
        return;
    }
    if (fg_jinja_refused(reader) || !fg_jinja_enter(reader)) {
        return;
    }
    fg_jinja_next(reader);
    node->other = fg_jinja_node_new(reader, NODE_IF);
    if (node->other != NULL) {
        read_if(reader, node->other);
    }
    fg_jinja_leave(reader);
}

static void read_for(fg_jinja_reader *reader, fg_jinja_node *node)
{
    static const char *const ends[] = { "else", "endfor" };
    node->list = fg_jinja_read_targets(reader, &node->flag);
    if (!fg_jinja_take_name(reader, "in")) {
        fg_jinja_refuse(reader, "'in' is missing");
    }
    node->a = fg_jinja_read_tuple(reader, false);
    if (fg_jinja_take_name(reader, "if")) {
        node->b = fg_jinja_read_expression(reader);
    }
    if (fg_jinja_at_name(reader, "recursive")) {
        fg_jinja_refuse(reader, "recursive loops are not supported");
    }
    end_block(reader);
    reader->loops++;
    node->body = read_body(reader, ends, 2);
    reader->loops--;
    if (fg_jinja_take_name(reader, "else")) {
        end_block(reader);
        node->other = read_until(reader, "endfor");
    } else {
        fg_jinja_next(reader);
        end_block(reader);
    }
}

static fg_jinja_node *captured(fg_jinja_reader *reader)
{
    return fg_jinja_node_new(reader, NODE_CAPTURED);
}

static void read_set(fg_jinja_reader *reader, fg_jinja_node *node)
{
    node->list = fg_jinja_read_targets(reader, &node->flag);
    if (node->list != NULL && fg_jinja_take_sign(reader, ".")) {
        /* namespace.member: the target's `a`. */
        fg_jinja_node *member = fg_jinja_node_new(reader, NODE_NAME);
        if (member == NULL || !fg_jinja_read_name(reader, &member->name)) {
            return;
        }
        node->list->a = member;
    }
    if (fg_jinja_take_sign(reader, "=")) {
        node->a = fg_jinja_read_tuple(reader, true);
        end_block(reader);
        return;
    }
    node->a = fg_jinja_read_filters(reader, captured(reader));
    end_block(reader);
    node->body = read_until(reader, "endset");
    if (node->body == NULL) {
        node->body = fg_jinja_node_new(reader, NODE_DATA);
    }
}

/* Parameters of a macro or of a call's body, behind an open parenthesis. */
static fg_jinja_node *read_parameters(fg_jinja_reader *reader)
{
    fg_jinja_node *first = NULL;
    fg_jinja_node **end = &first;
    while (!fg_jinja_refused(reader) && !fg_jinja_take_sign(reader, ")")) {
        fg_jinja_node *node = fg_jinja_node_new(reader, NODE_KEYWORD);
        if (node == NULL || !fg_jinja_read_name(reader, &node->name)) {
            return NULL;
        }
        if (fg_jinja_take_sign(reader, "=")) {
            node->a = fg_jinja_read_expression(reader);
        }
        *end = node;
        end = &node->next;
        if (!fg_jinja_at_sign(reader, ")")) {
            fg_jinja_want_sign(reader, ",");
        }
    }
    return first;
}

static void read_macro(fg_jinja_reader *reader, fg_jinja_node *node)
{
    fg_jinja_read_name(reader, &node->name);
    fg_jinja_want_sign(reader, "(");
    node->list = read_parameters(reader);
    end_block(reader);
    uint32_t loops = reader->loops;
    reader->loops = 0;
    node->body = read_until(reader, "endmacro");
    reader->loops = loops;
}

static void read_call_block(fg_jinja_reader *reader, fg_jinja_node *node)
{
    node->list = fg_jinja_take_sign(reader, "(") ? read_parameters(reader) : NULL;
    node->a = fg_jinja_read_expression(reader);
    if (node->a != NULL && node->a->kind != NODE_CALL) {
        fg_jinja_refuse(reader, "'call' needs a call");
    }
    end_block(reader);
    uint32_t loops = reader->loops;
    reader->loops = 0;
    node->body = read_until(reader, "endcall");
    reader->loops = loops;
}

static void read_filter_block(fg_jinja_reader *reader, fg_jinja_node *node)
{
    /* {% filter a | b %}: what `| a | b` would be. */
    fg_jinja_token name = reader->token;
    fg_jinja_node *filter = fg_jinja_node_new(reader, NODE_FILTER);
    if (filter == NULL || !fg_jinja_read_name(reader, &filter->name)) {
        return;
    }
    filter->index = fg_jinja_filter_find(filter->name);
    if (filter->index < 0) {
        fg_jinja_refuse(reader, "there is no filter '%.*s' here", (int)name.length, name.text);
    }
    filter->a = captured(reader);
    filter->list = fg_jinja_take_sign(reader, "(") ? fg_jinja_read_arguments(reader) : NULL;
    node->a = fg_jinja_read_filters(reader, filter);
    end_block(reader);
    node->body = read_until(reader, "endfilter");
}

static void read_leaving(fg_jinja_reader *reader, fg_jinja_node *node)
{
    (void)node;
    if (reader->loops == 0) {
        fg_jinja_refuse(reader, "'break' and 'continue' need a loop around them");
    }
    end_block(reader);
}

/* {% generation %} marks answers for training, and changes nothing. */
static void read_generation(fg_jinja_reader *reader, fg_jinja_node *node)
{
    static const fg_jinja_value yes = { .kind = FG_JINJA_BOOL, .flag = true };
    end_block(reader);
    node->a = fg_jinja_node_new(reader, NODE_CONSTANT);
    if (node->a != NULL) {
        node->a->constant = yes;
    }
    node->body = read_until(reader, "endgeneration");
}

static const struct {
    const char *name;
    fg_jinja_node_kind kind;
    void (*read)(fg_jinja_reader *reader, fg_jinja_node *node);
} statements[] = {
    { "if", NODE_IF, read_if },
    { "for", NODE_FOR, read_for },
    { "set", NODE_SET, read_set },
    { "macro", NODE_MACRO, read_macro },
    { "call", NODE_CALL_BLOCK, read_call_block },
    { "filter", NODE_FILTER_BLOCK, read_filter_block },
    { "break", NODE_BREAK, read_leaving },
    { "continue", NODE_CONTINUE, read_leaving },
    { "generation", NODE_IF, read_generation },
};

static fg_jinja_node *read_statement(fg_jinja_reader *reader)
{
    for (size_t i = 0; i < sizeof statements / sizeof statements[0]; i++) {
        if (!fg_jinja_at_name(reader, statements[i].name)) {
            continue;
        }
        fg_jinja_node *node = fg_jinja_node_new(reader, statements[i].kind);
        fg_jinja_next(reader);
        if (node != NULL && fg_jinja_enter(reader)) {
            statements[i].read(reader, node);
            fg_jinja_leave(reader);
        }
        return node;
    }
    if (reader->token.kind == TOKEN_NAME) {
        fg_jinja_refuse(reader, "there is no tag '%.*s' here", (int)reader->token.length,
                        reader->token.text);
    } else {
        fg_jinja_refuse(reader, "the name of a tag is missing");
    }
    return NULL;
}

static fg_jinja_node *read_output(fg_jinja_reader *reader)
{
    fg_jinja_node *node = fg_jinja_node_new(reader, NODE_OUTPUT);
    fg_jinja_next(reader);
    fg_jinja_node *value = fg_jinja_read_tuple(reader, true);
    if (reader->token.kind != TOKEN_OUTPUT_END) {
        fg_jinja_refuse(reader, "'}}' is missing");
    }
    fg_jinja_next(reader);
    if (node != NULL) {
        node->a = value;
    }
    return node;
}

static fg_jinja_node *read_data(fg_jinja_reader *reader)
{
    fg_jinja_node *node = fg_jinja_node_new(reader, NODE_DATA);
    fg_jinja_string *text = fg_arena_alloc(reader->arena, sizeof *text);
    if (node != NULL && text != NULL) {
        *text = (fg_jinja_string){ .length = reader->token.length, .flat = reader->token.text };
        node->constant = (fg_jinja_value){ .kind = FG_JINJA_TEXT, .text = text };
    } else {
        fg_jinja_refuse(reader, "the template is too long");
    }
    fg_jinja_next(reader);
    return node;
}

/* Statements up to a tag with one of these names, which is the token then; without names up to the end. */
static fg_jinja_node *read_body(fg_jinja_reader *reader, const char *const *ends, size_t count)
{
    fg_jinja_node *first = NULL;
    fg_jinja_node **last = &first;
    while (!fg_jinja_refused(reader)) {
        fg_jinja_node *node = NULL;
        switch (reader->token.kind) {
        case TOKEN_DATA:
            node = read_data(reader);
            break;
        case TOKEN_OUTPUT_BEGIN:
            node = read_output(reader);
            break;
        case TOKEN_BLOCK_BEGIN:
            fg_jinja_next(reader);
            for (size_t i = 0; i < count; i++) {
                if (fg_jinja_at_name(reader, ends[i])) {
                    return first;
                }
            }
            node = read_statement(reader);
            break;
        default:
            if (count > 0) {
                fg_jinja_refuse(reader, "'%s' is missing", ends[count - 1]);
            }
            return first;
        }
        if (node != NULL) {
            *last = node;
            last = &node->next;
        }
    }
    return first;
}

/* The source with every line end as one character, and without the last one. */
static char *copy_source(fg_arena *arena, const char *source, size_t *length)
{
    char *copy = fg_arena_alloc(arena, *length + 1);
    size_t used = 0;
    for (size_t at = 0; copy != NULL && at < *length; at++) {
        char c = source[at];
        if (c == '\r') {
            at += at + 1 < *length && source[at + 1] == '\n';
            c = '\n';
        }
        copy[used++] = c;
    }
    *length = used - (used > 0 && copy[used - 1] == '\n');
    return copy;
}

fg_status fg_jinja_compile(const char *source, size_t length, fg_jinja **template_out,
                           fg_error *err)
{
    if (length > FG_JINJA_SOURCE_MAX) {
        return fg_fail(err, FG_BAD_INPUT, "the chat template has %zu bytes, more than %d", length,
                       FG_JINJA_SOURCE_MAX);
    }
    fg_jinja *template = fg_mem_alloc(sizeof *template);
    if (template == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for a chat template");
    }
    fg_status status = FG_OK;
    template->arena = fg_arena_create(length * TREE_BYTES_PER_BYTE + TREE_BYTES_MORE);
    fg_jinja_reader reader = { .arena = template->arena, .length = length, .line = 1 };
    reader.source =
        template->arena == NULL ? NULL : copy_source(template->arena, source, &reader.length);
    if (reader.source == NULL) {
        status = fg_fail(err, FG_AGAIN, "out of memory for a chat template");
    } else {
        fg_jinja_next(&reader);
        template->body = read_body(&reader, NULL, 0);
        template->names = reader.names;
        status = reader.status;
        if (status != FG_OK && err != NULL) {
            *err = reader.error;
        }
    }
    if (status != FG_OK) {
        fg_jinja_destroy(template);
        return status;
    }
    *template_out = template;
    return FG_OK;
}

bool fg_jinja_reads(const fg_jinja *template, const char *name)
{
    const fg_jinja_node *node = template->names;
    /* What turned out to be the keyword of an argument is no NODE_NAME any more. */
    while (node != NULL && (node->kind != NODE_NAME || !fg_jinja_name_is(node->name, name))) {
        node = node->name_before;
    }
    return node != NULL;
}

void fg_jinja_destroy(fg_jinja *template)
{
    if (template == NULL) {
        return;
    }
    fg_arena_destroy(template->arena);
    fg_mem_free(template);
}
