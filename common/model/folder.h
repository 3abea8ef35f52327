/*
 * folder - a model as Hugging Face keeps it, read as the GGUF file that it would become. Read-only after open.
 *
 *   config.json              which architecture, and its numbers            -> metadata
 *   *.safetensors            the weights, in one file or in several         -> tensors
 *   tokenizer.json           vocabulary, merges, how text is cut            -> tokenizer.ggml.*
 *   tokenizer_config.json    which tokens begin and end, the chat template  -> the same
 *   generation_config.json   which tokens end an answer
 *   chat_template.jinja      the chat template, where it has a file of its own
 *   1_Pooling/config.json    how sentence-transformers make an embedding
 *
 * What comes out has GGUF's names and conventions (weights.h), so nobody else knows of folders. Matrices stay where they
 * are in the mapping, also where their rows lie in another order than GGUF's; vectors become floats in memory of their own.
 */
#ifndef FORGE_COMMON_MODEL_FOLDER_H
#define FORGE_COMMON_MODEL_FOLDER_H

#include "common/model/weights.h"

/* A file of the folder; bytes NULL: there is none. */
typedef struct fg_folder_file {
    const char *name; /* shown in errors; of weights, what the index calls it */
    const void *bytes;
    size_t size_bytes;
} fg_folder_file;

typedef struct fg_folder_files {
    const char *name; /* the model's, to be shown */
    fg_folder_file config, tokenizer, tokenizer_config, generation_config, chat_template, pooling;
    fg_folder_file index; /* of several files of weights */
    const fg_folder_file *weights;
    uint32_t weight_count;
} fg_folder_files;

/* Bytes in memory, those of weights borrowed until close. FG_BAD_INPUT with one clear line when they are refused. */
fg_status fg_folder_open_memory(const fg_folder_files *files, fg_weights **weights_out,
                                fg_error *err);

#endif
