/*
 * small_folder - Hugging Face folders in memory, of each architecture that is read: one layer of few numbers and a
 * vocabulary of which tests know every token.
 */
#ifndef FORGE_TESTS_SUPPORT_SMALL_FOLDER_H
#define FORGE_TESTS_SUPPORT_SMALL_FOLDER_H

#include "common/base/buf.h"
#include "common/model/folder.h"

enum {
    SMALL_FOLDER_EMBEDDING = 8,
    SMALL_FOLDER_HEADS = 2,
    SMALL_FOLDER_KV_HEADS = 1,
    SMALL_FOLDER_HEAD_DIM = 4,
    SMALL_FOLDER_FFN = 16,
    SMALL_FOLDER_EXPERTS = 3,
    /* Byte-level BPE: the bytes 0 .. 255, then these. */
    SMALL_FOLDER_HE = 256,
    SMALL_FOLDER_LL,
    SMALL_FOLDER_HELL,
    SMALL_FOLDER_BEGIN,       /* special, BOS */
    SMALL_FOLDER_END,         /* special, EOS */
    SMALL_FOLDER_TURN,        /* special, ends an answer as well */
    SMALL_FOLDER_TOOL,        /* not special */
    SMALL_FOLDER_VOCAB = 266, /* rows of the embedding: three have no token */
};

typedef struct small_folder {
    fg_buf config, tokenizer, tokenizer_config, generation_config, weights;
    fg_folder_file weight_file;
    fg_folder_files files; /* borrows from all of these */
} small_folder;

/* Classes of config.json; NULL ends the list. */
extern const char *const small_folder_classes[];

void small_folder_make(small_folder *folder, const char *class_name);
void small_folder_free(small_folder *folder);
/* Puts `to` where `from` is in a text, which must be there; of weights, in the header. */
void small_folder_replace(small_folder *folder, fg_buf *text, const char *from, const char *to);
/* SentencePiece's kind of tokenizer.json instead: <unk> 0, <s> 1, </s> 2, the bytes from 3 on, then U+2581, a, b, ab,
 * U+2581 and a, U+2581 and ab. */
void small_folder_make_spm(small_folder *folder);
/* The header's length grows by so many spaces, so that the data begins elsewhere. */
void small_folder_shift_weights(small_folder *folder, size_t bytes);

#endif
