/*
 * chat - a list of messages becomes the prompt text that the model was trained on. Pure.
 */
#ifndef FORGE_COMMON_MODEL_CHAT_H
#define FORGE_COMMON_MODEL_CHAT_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/buf.h"
#include "common/base/status.h"
#include "common/model/weights.h"

typedef struct fg_chat fg_chat;

typedef struct fg_chat_message {
    const char *role;
    size_t role_length;
    const char *content;
    size_t content_length;
} fg_chat_message;

/* Looks at the model's chat_template. ChatML templates (with SmolLM2's default system message when
 * the template has it) are rendered; a model with none gets ChatML where its vocabulary has
 * <|im_start|>, otherwise chat is refused with a clear FG_BAD_INPUT at render time. */
fg_status fg_chat_open(const fg_weights *weights, fg_chat **chat_out, fg_error *err);
void fg_chat_close(fg_chat *chat);
/* Appends the prompt (special tokens as text; encode it with parse_special). Message texts that
 * contain special-token text are the caller's to guard: see fg_chat_render_parts in chat.c. */
fg_status fg_chat_render(const fg_chat *chat, const fg_chat_message *messages, size_t count,
                         bool add_generation_prompt, fg_buf *out, fg_error *err);

#endif
