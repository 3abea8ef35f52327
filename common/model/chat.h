/*
 * chat - a list of messages becomes the prompt text that the model was trained on. Pure.
 */
#ifndef FORGE_COMMON_MODEL_CHAT_H
#define FORGE_COMMON_MODEL_CHAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/json.h"
#include "common/base/status.h"
#include "common/model/tokenizer.h"
#include "common/model/tool_parse.h"
#include "common/model/weights.h"

typedef struct fg_chat fg_chat;

/* A text that may be absent: NULL. */
typedef struct fg_chat_text {
    const char *text;
    size_t length;
} fg_chat_text;

/* A call that an assistant's message made. */
typedef struct fg_chat_call {
    fg_chat_text id; /* may be absent */
    fg_chat_text name;
    const fg_json_node *arguments; /* an object, not large: templates write it as JSON themselves */
} fg_chat_call;

typedef struct fg_chat_message {
    const char *role;
    size_t role_length;
    const char *content;
    size_t content_length;
    fg_chat_text name, tool_call_id, reasoning; /* may be absent */
    const fg_chat_call *calls;
    size_t call_count; /* 0: the message has no member tool_calls */
} fg_chat_message;

typedef struct fg_chat_options {
    bool add_generation_prompt;
    int64_t now_s; /* what the template takes for today, seconds since 1970 */
    const fg_json_node
        *variables;            /* an object whose members the template sees, or NULL; not large */
    const fg_json_node *tools; /* a list, as a client sent it, or NULL; not large */
    bool *opened_out; /* of fg_chat_encode: the template's last words open a thought; may be NULL */
} fg_chat_options;

/* Compiles the model's chat_template, and chat_template.tool_use where there is one: it renders what has tools; a model with none gets ChatML where its vocabulary has <|im_start|>. For any
 * other model, or a template that asks for more than common/jinja knows, opening succeeds and rendering is refused
 * with a clear FG_BAD_INPUT. FG_AGAIN: out of memory. */
fg_status fg_chat_open(const fg_weights *weights, fg_chat **chat_out, fg_error *err);
void fg_chat_close(fg_chat *chat);
/* Why this model's conversations cannot be rendered; NULL: they can. */
const char *fg_chat_refusal(const fg_chat *chat);
/* How the model writes calls of tools, by its template. FG_TOOLS_NONE: tools would not be seen. */
fg_tool_dialect fg_chat_tools(const fg_chat *chat);
/* Whether the model writes what it thinks between marks, by its template (think_parse). */
bool fg_chat_thinks(const fg_chat *chat);
/* The number of letters and digits that the template wants in the id of a call; 0: it takes any id. */
size_t fg_chat_call_id_length(const fg_chat *chat);

/* Appends the prompt's text, special tokens by their names: what Jinja2 makes of the template. For
 * people to read; do not encode it, a message could name special tokens. FG_BAD_INPUT: what the template raised; FG_AGAIN: `out` is full, or no
 * memory. */
fg_status fg_chat_render(const fg_chat *chat, const fg_chat_message *messages, size_t count,
                         const fg_chat_options *options, fg_buf *out, fg_error *err);

/* Renders and encodes. Only what the template wrote becomes control tokens: "<|im_end|>" in a role
 * or a message stays ordinary text. The ids are otherwise those of the whole rendered text. BOS as
 * fg_tokenizer_encode adds it. Writes at most `capacity` ids; FG_BAD_INPUT when more are needed, or surely
 * `refuse_at` (0: no such number): *count_out says how many. Of another FG_BAD_INPUT it is 0. */
fg_status fg_chat_encode(const fg_chat *chat, const fg_tokenizer *tokenizer,
                         const fg_chat_message *messages, size_t count,
                         const fg_chat_options *options, uint32_t *ids_out, size_t capacity,
                         size_t refuse_at, size_t *count_out, fg_error *err);

#endif
