/*
 * model - everything that the processes of a cluster read from one model file. Read-only once open.
 */
#ifndef FORGE_CLI_MODEL_H
#define FORGE_CLI_MODEL_H

#include "cli/start.h"
#include "common/base/hash.h"
#include "common/kv/layout.h"
#include "common/model/chat.h"
#include "common/model/hparams.h"
#include "common/model/tokenizer.h"
#include "common/model/weights.h"

typedef struct fg_loaded_model {
    fg_weights *weights;
    fg_hparams hparams;
    fg_tokenizer *tokenizer;
    fg_chat *chat;
    fg_digest128 fingerprint;
    fg_kv_layout layout;
} fg_loaded_model;

/* `start` may be NULL: nobody counts the time. */
fg_status fg_loaded_model_open(fg_loaded_model *model, const char *path, uint32_t kv_dtype,
                               uint32_t block_size, fg_start *start, fg_error *err);
void fg_loaded_model_close(fg_loaded_model *model);

#endif
