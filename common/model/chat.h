/*
 * chat - a list of messages becomes the prompt text that the model was trained on. Pure.
 */
#ifndef FORGE_COMMON_MODEL_CHAT_H
#define FORGE_COMMON_MODEL_CHAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/status.h"
#include "common/model/tokenizer.h"
#include "common/model/weights.h"

typedef struct fg_chat fg_chat;

typedef struct fg_chat_message {
    const char *role;
    size_t role_length;
    const char *content;
    size_t content_length;
} fg_chat_message;

/* Looks at the model's chat_template. ChatML templates are rendered, with the default system message
 * that the template itself carries (SmolLM2, Qwen2); a model with no template gets ChatML where its
 * vocabulary has <|im_start|>. For any other model opening succeeds and rendering is refused with a
 * clear FG_BAD_INPUT. FG_AGAIN: out of memory. */
fg_status fg_chat_open(const fg_weights *weights, fg_chat **chat_out, fg_error *err);
void fg_chat_close(fg_chat *chat);

/* Appends the prompt's text, special tokens by their names: what Jinja makes of the template. For
 * people to read; do not encode it, a message could name special tokens. FG_AGAIN: `out` is full. */
fg_status fg_chat_render(const fg_chat *chat, const fg_chat_message *messages, size_t count,
                         bool add_generation_prompt, fg_buf *out, fg_error *err);

/* Renders and encodes. Only what the template wrote becomes control tokens: "<|im_end|>" in a role
 * or a message stays ordinary text. The ids are otherwise those of the whole rendered text. BOS as
 * fg_tokenizer_encode adds it. Writes at most `capacity` ids; FG_BAD_INPUT when more are needed, or surely
 * `refuse_at` (0: no such number). */
fg_status fg_chat_encode(const fg_chat *chat, const fg_tokenizer *tokenizer,
                         const fg_chat_message *messages, size_t count, bool add_generation_prompt,
                         uint32_t *ids_out, size_t capacity, size_t refuse_at, size_t *count_out,
                         fg_error *err);

#endif
