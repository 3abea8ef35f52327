/*
 * model - everything that the processes of a cluster read from one model file. Read-only once finished:
 * the tokenizer and the chat template are read by a thread of their own, while others check the weights.
 */
#ifndef FORGE_CLI_MODEL_H
#define FORGE_CLI_MODEL_H

#include "cli/start.h"
#include "common/base/hash.h"
#include "common/base/thread.h"
#include "common/kv/layout.h"
#include "common/model/chat.h"
#include "common/model/hparams.h"
#include "common/model/tokenizer.h"
#include "common/model/weights.h"

typedef struct fg_loaded_model {
    fg_weights *weights;
    fg_hparams hparams;
    fg_tokenizer *tokenizer; /* this and `chat` once finished */
    fg_chat *chat;
    fg_digest128 fingerprint;
    fg_kv_layout layout;
    const char *path;
    bool is_reading;
    pthread_t reader;
    fg_status text_status; /* of the reader, once it is joined */
    fg_error text_error;
} fg_loaded_model;

typedef struct fg_loaded_model_options {
    const char *path;   /* kept */
    const char *device; /* what will compute with it: fg_device_options.kind */
    uint32_t kv_dtype;  /* FG_DTYPE_AUTO: what suits model and device */
    uint32_t block_size;
} fg_loaded_model_options;

/* `start` may be NULL, here and below: nobody counts the time. The caller then calls
 * fg_loaded_model_finish, and fg_loaded_model_close in any case. */
fg_status fg_loaded_model_open(fg_loaded_model *model, const fg_loaded_model_options *options,
                               fg_start *start, fg_error *err);
/* Waits for what is still being read. */
fg_status fg_loaded_model_finish(fg_loaded_model *model, fg_start *start, fg_error *err);
void fg_loaded_model_close(fg_loaded_model *model);

#endif
