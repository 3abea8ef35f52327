/*
 * gguf_builder - writes GGUF files in memory for tests: any metadata, any tensors, and a complete tiny
 * model of the llama family with random weights. Out of memory aborts: these are tests.
 */
#ifndef FORGE_TESTS_SUPPORT_GGUF_BUILDER_H
#define FORGE_TESTS_SUPPORT_GGUF_BUILDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/rng.h"
#include "common/model/weights.h"

typedef struct fg_gguf_builder fg_gguf_builder;

fg_gguf_builder *fg_gguf_builder_create(void);
void fg_gguf_builder_destroy(fg_gguf_builder *builder);

/* Metadata, in file order. Keys and tensor names are written as they are, good or bad. */
void fg_gguf_add_u32(fg_gguf_builder *builder, const char *key, uint32_t value);
void fg_gguf_add_f32(fg_gguf_builder *builder, const char *key, float value);
void fg_gguf_add_bool(fg_gguf_builder *builder, const char *key, bool value);
void fg_gguf_add_string(fg_gguf_builder *builder, const char *key, const char *text);
/* Any fixed-width type (a number's bytes), or a value written by hand. */
void fg_gguf_add_value(fg_gguf_builder *builder, const char *key, uint32_t type, const void *value,
                       size_t size_bytes);
void fg_gguf_add_strings(fg_gguf_builder *builder, const char *key, const char *const *texts,
                         size_t count);
/* An array of a fixed-width type. */
void fg_gguf_add_array(fg_gguf_builder *builder, const char *key, fg_meta_type item_type,
                       const void *items, size_t count);

/* Copies the tensor's data, or fills random values (fg_gguf_fill_random) when `data` is NULL. */
void fg_gguf_add_tensor(fg_gguf_builder *builder, const char *name, uint32_t type,
                        uint32_t dim_count, const uint64_t *dims, const void *data);

/* A tensor whose data the caller writes itself behind the finished file, for files larger than memory:
 * padding up to a multiple of 32 bytes, then the data, in the order of announcing. No other tensor may
 * be added after that. */
void fg_gguf_announce_tensor(fg_gguf_builder *builder, const char *name, uint32_t type,
                             uint32_t dim_count, const uint64_t *dims);

/* The whole file, to be given to free(). The builder may be added to and finished again. */
void *fg_gguf_finish(fg_gguf_builder *builder, size_t *size_bytes_out);

/* Where the last finished file holds its numbers: every count, length, type, dim and offset. */
typedef struct fg_gguf_field {
    const char *what; /* "tensor count", "key length", ... */
    size_t at;
    uint32_t size_bytes; /* 4 or 8 */
} fg_gguf_field;

const fg_gguf_field *fg_gguf_fields(const fg_gguf_builder *builder, size_t *count_out);

/* Random blocks of a tensor type, whose values spread about +-`scale` around 0. */
void fg_gguf_fill_random(uint32_t type, void *out, uint64_t count, float scale, fg_rng *rng);

typedef enum fg_tiny_vocab {
    FG_TINY_GPT2, /* 256 byte tokens, <|endoftext|>, <|im_start|>, <|im_end|>, a few merges; smollm */
    FG_TINY_BARE, /* no tokenizer at all, 8 tokens: for tests of the file alone */
    FG_TINY_MANY, /* no tokenizer either, 5000 tokens: more than a device sorts */
    FG_TINY_SPM,  /* <unk> <s> </s>, 256 byte tokens, letters, a few pairs with scores */
} fg_tiny_vocab;

/* What is random of a qwen2's biases and of a qwen3's head norms is large enough to be seen, and so are a granite's four scales,
 * and a phi3's divisors for positions beyond the 64th. */
typedef enum fg_tiny_arch {
    FG_TINY_LLAMA,
    FG_TINY_QWEN2,
    FG_TINY_QWEN3,
    FG_TINY_PHI3,
    FG_TINY_GRANITE,
    FG_TINY_GEMMA3,   /* every other layer sees a window of 24 slots */
    FG_TINY_QWEN3MOE, /* 8 experts, 3 of them for a row */
    FG_TINY_MIXTRAL,  /* llama with 4 experts, 2 of them for a row */
    FG_TINY_GRANITEMOE,
    FG_TINY_QWEN2MOE, /* and one more for all rows, longer than a row's others together */
} fg_tiny_arch;

/* A model. Zero means: llama, 2 layers, 64 wide, 4 heads on 2 KV heads of 16, ffn 128, context 512; for
 * K types, whose blocks are 256, 256 wide, heads of 64, ffn 256. */
typedef struct fg_tiny_llama {
    uint64_t seed;
    fg_tiny_vocab vocab;
    fg_tiny_arch arch;
    uint32_t weight_type; /* of the matrices, the embedding included; FG_F32 is 0 */
    uint32_t mixed_type;  /* of k, v, up and the shared expert's gate; 0: the same */
    uint32_t layer_count;
    uint32_t embedding_length;
    uint32_t head_count;
    uint32_t kv_head_count;
    uint32_t head_dim;
    uint32_t ffn_length; /* of experts, each one's */
    uint32_t context_length;
    bool separate_output; /* output.weight; else the embedding is the head */
    bool rope_freqs;
    const char *chat_template; /* NULL: none */
} fg_tiny_llama;

/* Adds metadata, vocabulary and tensors of a model; a test may add more, then finish. */
void fg_gguf_add_tiny_llama(fg_gguf_builder *builder, const fg_tiny_llama *options);
/* All at once: the file's bytes, to be given to free(). */
void *fg_gguf_build_tiny_llama(const fg_tiny_llama *options, size_t *size_bytes_out);

#endif
