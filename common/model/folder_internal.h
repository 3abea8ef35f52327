/*
 * folder_internal - what the files of a Hugging Face folder are read with. Private to the room.
 *
 * folder.c puts a model together: folder_config.c and folder_rope.c read config.json, folder_tensors.c the weights, folder_tokenizer.c and
 * folder_merges.c the tokenizer. folder_files.c is the only one that sees a disk.
 */
#ifndef FORGE_COMMON_MODEL_FOLDER_INTERNAL_H
#define FORGE_COMMON_MODEL_FOLDER_INTERNAL_H

#include <stdio.h>
#include <string.h>

#include "common/base/json.h"
#include "common/model/folder.h"
#include "common/model/meta_writer.h"
#include "common/model/safetensors.h"
#include "common/model/weights_internal.h"

/* More than published models have. */
enum { FG_FOLDER_WEIGHT_FILES_MAX = 1024 };

/* JSON's null is as good as nothing. */
static inline const fg_json_node *fg_folder_get(const fg_json_node *object, const char *name)
{
    const fg_json_node *node = fg_json_get(object, name);
    return fg_json_is(node, FG_JSON_NULL) ? NULL : node;
}

static inline bool fg_folder_says(const fg_json_node *node, const char *wanted)
{
    const char *text = fg_json_string(node, NULL);
    return text != NULL && strcmp(text, wanted) == 0;
}

/* `architecture`.`name`, written at once. */
typedef struct fg_folder_key {
    char text[96];
} fg_folder_key;

static inline fg_folder_key fg_folder_key_of(const char *architecture, const char *name)
{
    fg_folder_key key;
    snprintf(key.text, sizeof key.text, "%s.%s", architecture, name);
    return key;
}

/* What is known of architectures beyond their GGUF names; bits, since tensors belong to several. */
typedef enum fg_folder_trait {
    FG_TRAIT_PAIRS = 1 << 0,   /* GGUF has a rotated pair's rows of q and k side by side */
    FG_TRAIT_BIAS = 1 << 1,    /* of q, k and v */
    FG_TRAIT_QK_NORM = 1 << 2, /* of each head of q and k */
    FG_TRAIT_APART = 1 << 3,   /* q, k and v in three tensors, gate and up in two */
    FG_TRAIT_FUSED = 1 << 4,   /* in one each */
    FG_TRAIT_NORM_1 = 1 << 5,  /* norms are kept less 1 */
    FG_TRAIT_POST_NORMS = 1 << 6,
    FG_TRAIT_DENSE = 1 << 7,   /* one feed-forward */
    FG_TRAIT_MIXTURE = 1 << 8, /* experts, as Qwen names them */
    FG_TRAIT_MIXTRAL = 1 << 9, /* experts, as Mixtral does */
    FG_TRAIT_SHARED = 1 << 10, /* and one for all rows */
    FG_TRAIT_WINDOWS = 1 << 11,
    FG_TRAIT_TIED = 1 << 12, /* unless config.json says otherwise, the embedding is the head */
    FG_TRAIT_PLAIN_NORMS = 1 << 13,
    FG_TRAIT_LONGROPE = 1 << 14, /* may have factors for each frequency */
} fg_folder_trait;

/* What config.json says that others need. */
typedef struct fg_folder_config {
    const char *architecture; /* GGUF's name */
    const char *class_name;   /* Hugging Face's */
    uint32_t traits;
    uint32_t layers, heads, kv_heads, head_dim, experts;
    bool tied;
    /* Divisors of angles: of the rotated dims' halves, own memory, or NULL. */
    float *rope_freqs, *rope_long, *rope_short;
    uint32_t rope_count;
} fg_folder_config;

/* Reads config.json and writes its metadata. What config_out owns is fg_folder_config_deinit's, after failures too. */
fg_status fg_folder_read_config(const fg_json_node *root, fg_meta_writer *out,
                                fg_folder_config *config_out, fg_error *err);
void fg_folder_config_deinit(fg_folder_config *config);

/* Positions: their turns and what stretches them (folder_rope.c). */
typedef struct fg_folder_rope {
    const fg_json_node *root; /* of config.json */
    const char *architecture;
    uint32_t traits;
    double theta; /* where config.json is silent */
    uint32_t context;
} fg_folder_rope;

/* Uses config->head_dim; fills config's divisors. */
fg_status fg_folder_write_rope(const fg_folder_rope *rope, fg_folder_config *config,
                               fg_meta_writer *out, fg_error *err);

/* The tokenizer's files, as JSON; tokenizer_config and generation_config may be NULL. */
typedef struct fg_folder_texts {
    const fg_json_node *config, *tokenizer, *tokenizer_config, *generation_config;
    const fg_folder_file *chat_template;
    uint32_t vocab_size; /* rows of the embedding */
} fg_folder_texts;

fg_status fg_folder_read_tokenizer(const fg_folder_texts *texts, fg_meta_writer *out,
                                   fg_error *err);

/* A vocabulary under construction. */
typedef struct fg_folder_token {
    const char *text; /* NULL: no such id yet */
    uint32_t length;
    uint8_t kind;   /* fg_token_kind */
    uint8_t strips; /* FG_STRIP_* */
} fg_folder_token;

typedef struct fg_folder_vocab {
    fg_folder_token *tokens;
    uint32_t size;
    bool spm;
} fg_folder_vocab;

/* Writes the merges of byte-level BPE, or the scores that stand for them in SentencePiece's way of merging, after it was
 * checked that both ways give the same tokens. */
fg_status fg_folder_write_merges(const fg_folder_vocab *vocab, const fg_json_node *merges,
                                 fg_meta_writer *out, fg_error *err);

/* How text is cut: what pre_tokenizer and normalizer of tokenizer.json come to. */
typedef struct fg_folder_cuts {
    bool spm;
    bool space_prefix; /* of SPM */
    bool first_only;   /* and only at a text's beginning */
    const char *pre;   /* GGUF's name, else */
} fg_folder_cuts;

fg_status fg_folder_read_cuts(const fg_json_node *tokenizer, fg_folder_cuts *cuts_out,
                              fg_error *err);

/* All tensors of all files of weights, by name. */
typedef struct fg_folder_source {
    const fg_safetensor *tensor;
    uint32_t file;
    bool used;
} fg_folder_source;

typedef struct fg_folder_sources {
    fg_folder_source *items; /* sorted by name */
    uint32_t count;
} fg_folder_sources;

/* NULL: absent. */
fg_folder_source *fg_folder_find(const fg_folder_sources *sources, const char *name);

/* Memory of a folder's tensors: rows of pointers, floats. Freed with fg_weights. */
struct fg_folder {
    fg_safetensors **files;
    uint32_t file_count;
    /* What was mapped by us, to be unmapped. */
    fg_folder_file *maps;
    uint32_t map_count;
    void **blocks; /* of tensors' values, lists of rows */
    uint32_t block_count, block_capacity;
    fg_buf meta; /* weights->bytes */
    uint64_t size_bytes;
};

/* Fills weights->tensors in an order that does not depend on the files. */
fg_status fg_folder_place_tensors(fg_weights *weights, const fg_folder_config *config,
                                  const fg_folder_sources *sources, fg_error *err);

#endif
