/*
 * tiny_model - the small byte-level vocabulary of tests/support, opened: token b is byte b.
 */
#ifndef FORGE_TESTS_UNIT_ROUTER_TINY_MODEL_H
#define FORGE_TESTS_UNIT_ROUTER_TINY_MODEL_H

#include "common/base/buf.h"
#include "common/model/chat.h"
#include "common/model/tokenizer.h"
#include "common/model/weights.h"
#include "tests/support/small_vocab.h"

typedef struct tiny_model {
    fg_buf file;
    fg_weights *weights;
    fg_tokenizer *tokenizer;
    fg_chat *chat;
} tiny_model;

/* Aborts with the reason when the model cannot be made. */
void tiny_model_open(tiny_model *model);
/* With another template, and control tokens of these names behind the others. */
void tiny_model_open_as(tiny_model *model, const char *chat_template, const char *const *controls,
                        size_t control_count);
void tiny_model_close(tiny_model *model);

#endif
