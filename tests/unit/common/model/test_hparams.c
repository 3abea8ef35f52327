#include "common/model/hparams.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/dtype.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/test.h"

typedef enum value_kind { ABSENT, WHOLE, REAL, TEXT, ARRAY } value_kind;

typedef struct meta_row {
    const char *key;
    value_kind kind;
    double number;
    const char *text;
} meta_row;

typedef struct tensor_row {
    const char *name;
    uint32_t type;
    uint64_t columns, rows; /* columns 0: absent; rows 0: a vector */
} tensor_row;

/* 1 layer, 32 wide, 4 heads on 2 KV heads of 8, ffn 64, 8 tokens. */
static const meta_row base_meta[] = {
    { "general.architecture", TEXT, 0, "llama" },
    { "llama.block_count", WHOLE, 1, NULL },
    { "llama.context_length", WHOLE, 128, NULL },
    { "llama.embedding_length", WHOLE, 32, NULL },
    { "llama.feed_forward_length", WHOLE, 64, NULL },
    { "llama.attention.head_count", WHOLE, 4, NULL },
    { "llama.attention.head_count_kv", WHOLE, 2, NULL },
    { "llama.attention.layer_norm_rms_epsilon", REAL, 1e-5, NULL },
};

static const tensor_row base_tensors[] = {
    { "token_embd.weight", FG_Q4_0, 32, 8 },        { "output_norm.weight", FG_F32, 32, 0 },
    { "blk.0.attn_norm.weight", FG_F32, 32, 0 },    { "blk.0.attn_q.weight", FG_Q8_0, 32, 32 },
    { "blk.0.attn_k.weight", FG_F16, 32, 16 },      { "blk.0.attn_v.weight", FG_F16, 32, 16 },
    { "blk.0.attn_output.weight", FG_F32, 32, 32 }, { "blk.0.ffn_norm.weight", FG_F32, 32, 0 },
    { "blk.0.ffn_gate.weight", FG_BF16, 32, 64 },   { "blk.0.ffn_up.weight", FG_Q5_1, 32, 64 },
    { "blk.0.ffn_down.weight", FG_Q4_1, 64, 32 },
};

/* What the others have besides. */
static const tensor_row qwen2_tensors[] = { { "blk.0.attn_q.bias", FG_F32, 32, 0 },
                                            { "blk.0.attn_k.bias", FG_F32, 16, 0 },
                                            { "blk.0.attn_v.bias", FG_F32, 16, 0 } };
static const tensor_row qwen3_tensors[] = { { "blk.0.attn_q_norm.weight", FG_F32, 8, 0 },
                                            { "blk.0.attn_k_norm.weight", FG_F32, 8, 0 } };

static const tensor_row gemma3_tensors[] = { { "blk.0.post_attention_norm.weight", FG_F32, 32, 0 },
                                             { "blk.0.post_ffw_norm.weight", FG_F32, 32, 0 } };

/* All of it: some of the base's are rows of one tensor. */
static const tensor_row phi3_tensors[] = {
    { "token_embd.weight", FG_Q4_0, 32, 8 },        { "output_norm.weight", FG_F32, 32, 0 },
    { "blk.0.attn_norm.weight", FG_F32, 32, 0 },    { "blk.0.attn_qkv.weight", FG_Q8_0, 32, 64 },
    { "blk.0.attn_output.weight", FG_F32, 32, 32 }, { "blk.0.ffn_norm.weight", FG_F32, 32, 0 },
    { "blk.0.ffn_up.weight", FG_BF16, 32, 128 },    { "blk.0.ffn_down.weight", FG_Q4_1, 64, 32 },
};

/* One change to the base: a row with a known name replaces it, another is added. */
typedef struct change {
    const char *name;
    const char *want; /* in the error line; NULL: accepted */
    meta_row meta[2];
    tensor_row tensor;
} change;

static void add_meta(fg_gguf_builder *builder, const meta_row *row)
{
    switch (row->kind) {
    case ABSENT:
        break;
    case WHOLE:
        fg_gguf_add_u32(builder, row->key, (uint32_t)row->number);
        break;
    case REAL:
        fg_gguf_add_f32(builder, row->key, (float)row->number);
        break;
    case TEXT:
        fg_gguf_add_string(builder, row->key, row->text);
        break;
    case ARRAY:
        fg_gguf_add_array(builder, row->key, FG_META_U32, (const uint32_t[]){ 1, 2 }, 2);
        break;
    }
}

static void add_tensor(fg_gguf_builder *builder, const tensor_row *row)
{
    if (row->columns > 0) {
        uint64_t dims[2] = { row->columns, row->rows };
        fg_gguf_add_tensor(builder, row->name, row->type, row->rows == 0 ? 1 : 2, dims, NULL);
    }
}

static bool changes(const meta_row *row, const char *key)
{
    return row->key != NULL && strcmp(row->key, key) == 0;
}

/* The base's metadata, under this architecture's keys, but for what is changed. */
static void add_base_meta(fg_gguf_builder *builder, const change *c, const char *arch)
{
    for (size_t i = 0; i < sizeof base_meta / sizeof base_meta[0]; i++) {
        meta_row row = base_meta[i];
        char key[64];
        if (strncmp(row.key, "llama.", 6) == 0) {
            snprintf(key, sizeof key, "%s.%s", arch, row.key + 6);
            row.key = key;
        } else {
            row.text = arch;
        }
        if (!changes(&c->meta[0], row.key) && !changes(&c->meta[1], row.key)) {
            add_meta(builder, &row);
        }
    }
}

static void add_base_tensors(fg_gguf_builder *builder, const change *c, const tensor_row *rows,
                             size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (c->tensor.name == NULL || strcmp(c->tensor.name, rows[i].name) != 0) {
            add_tensor(builder, &rows[i]);
        }
    }
}

static void add_all_tensors(fg_gguf_builder *builder, const change *c, const char *arch)
{
    if (strcmp(arch, "phi3") == 0) {
        add_base_tensors(builder, c, phi3_tensors, sizeof phi3_tensors / sizeof phi3_tensors[0]);
        return;
    }
    add_base_tensors(builder, c, base_tensors, sizeof base_tensors / sizeof base_tensors[0]);
    if (strcmp(arch, "qwen2") == 0) {
        add_base_tensors(builder, c, qwen2_tensors, 3);
    } else if (strcmp(arch, "qwen3") == 0) {
        add_base_tensors(builder, c, qwen3_tensors, 2);
    } else if (strcmp(arch, "gemma3") == 0) {
        add_base_tensors(builder, c, qwen3_tensors, 2);
        add_base_tensors(builder, c, gemma3_tensors, 2);
    }
}

static void *build(const change *c, const char *arch, size_t *size_bytes_out)
{
    fg_gguf_builder *builder = fg_gguf_builder_create();
    add_base_meta(builder, c, arch);
    for (int i = 0; i < 2; i++) {
        add_meta(builder, &c->meta[i]);
    }
    add_all_tensors(builder, c, arch);
    if (c->tensor.name != NULL) {
        add_tensor(builder, &c->tensor);
    }
    void *bytes = fg_gguf_finish(builder, size_bytes_out);
    fg_gguf_builder_destroy(builder);
    return bytes;
}

#define WHOLE_OF(key_, value_)                                                                     \
    {                                                                                              \
        {                                                                                          \
            key_, WHOLE, value_, NULL                                                              \
        }                                                                                          \
    }
#define REAL_OF(key_, value_)                                                                      \
    {                                                                                              \
        {                                                                                          \
            key_, REAL, value_, NULL                                                               \
        }                                                                                          \
    }
#define NONE_OF(key_)                                                                              \
    {                                                                                              \
        {                                                                                          \
            key_, ABSENT, 0, NULL                                                                  \
        }                                                                                          \
    }
#define TENSOR(...) .tensor = { __VA_ARGS__ }

static const change cases[] = {
    { "the base", NULL, { { 0 } }, { 0 } },
    { "no architecture", "architecture' is missing", NONE_OF("general.architecture"), { 0 } },
    { "another architecture",
      "'gemma2' is not supported (supported: llama, qwen2, qwen3, phi3, granite, gemma, gemma3, "
      "smollm3, qwen3moe, granitemoe, qwen2moe)",
      { { "general.architecture", TEXT, 0, "gemma2" } },
      { 0 } },
    { "llama4",
      "'llama4' is not supported",
      { { "general.architecture", TEXT, 0, "llama4" } },
      { 0 } },
    { "experts of another architecture",
      "'deepseek2' is not supported",
      { { "general.architecture", TEXT, 0, "deepseek2" } },
      { 0 } },
    { "the other's keys",
      "'qwen2.block_count' is missing",
      { { "general.architecture", TEXT, 0, "qwen2" } },
      { 0 } },
    { "no layers key", "'llama.block_count' is missing", NONE_OF("llama.block_count"), { 0 } },
    { "zero layers", "'llama.block_count' is 0", WHOLE_OF("llama.block_count", 0), { 0 } },
    { "too many layers",
      "'llama.block_count' is 2000",
      WHOLE_OF("llama.block_count", 2000),
      { 0 } },
    { "a layer that is not there",
      "'blk.1.attn_norm.weight' is missing",
      WHOLE_OF("llama.block_count", 2),
      { 0 } },
    { "layers as text", "not a whole number", { { "llama.block_count", TEXT, 0, "1" } }, { 0 } },
    { "zero context", "'llama.context_length' is 0", WHOLE_OF("llama.context_length", 0), { 0 } },
    { "huge context", "'llama.context_length'", WHOLE_OF("llama.context_length", 4e9), { 0 } },
    { "zero width", "'llama.embedding_length' is 0", WHOLE_OF("llama.embedding_length", 0), { 0 } },
    { "another width", "expected 64 x", WHOLE_OF("llama.embedding_length", 64), { 0 } },
    { "huge width", "supported", WHOLE_OF("llama.embedding_length", 4294967295.0), { 0 } },
    { "another ffn", "'blk.0.ffn_gate.weight'", WHOLE_OF("llama.feed_forward_length", 96), { 0 } },
    { "ffn per layer",
      "differs per layer",
      { { "llama.feed_forward_length", ARRAY, 0, NULL } },
      { 0 } },
    { "zero heads", "head_count' is 0", WHOLE_OF("llama.attention.head_count", 0), { 0 } },
    { "heads that do not divide",
      "does not divide",
      WHOLE_OF("llama.attention.head_count", 6),
      { 0 } },
    { "KV heads that do not divide",
      "4 heads cannot share 3",
      WHOLE_OF("llama.attention.head_count_kv", 3),
      { 0 } },
    { "more KV heads than heads",
      "cannot share",
      WHOLE_OF("llama.attention.head_count_kv", 8),
      { 0 } },
    { "zero KV heads", "head_count_kv' is 0", WHOLE_OF("llama.attention.head_count_kv", 0), { 0 } },
    { "KV heads per layer",
      "per layer",
      { { "llama.attention.head_count_kv", ARRAY, 0, NULL } },
      { 0 } },
    { "KV heads default to heads",
      "'blk.0.attn_k.weight'",
      NONE_OF("llama.attention.head_count_kv"),
      { 0 } },
    { "explicit head size", NULL, WHOLE_OF("llama.attention.key_length", 8), { 0 } },
    { "another head size",
      "'blk.0.attn_q.weight'",
      WHOLE_OF("llama.attention.key_length", 16),
      { 0 } },
    { "odd head size", "heads of 7", WHOLE_OF("llama.attention.key_length", 7), { 0 } },
    { "huge head size",
      "key_length' is 1024",
      WHOLE_OF("llama.attention.key_length", 1024),
      { 0 } },
    { "other values than keys", "only equal", WHOLE_OF("llama.attention.value_length", 4), { 0 } },
    { "no epsilon",
      "epsilon' is missing",
      NONE_OF("llama.attention.layer_norm_rms_epsilon"),
      { 0 } },
    { "zero epsilon",
      "epsilon' is 0",
      REAL_OF("llama.attention.layer_norm_rms_epsilon", 0),
      { 0 } },
    { "NaN epsilon", "epsilon' is", REAL_OF("llama.attention.layer_norm_rms_epsilon", NAN), { 0 } },
    { "theta", NULL, REAL_OF("llama.rope.freq_base", 500000), { 0 } },
    { "negative theta", "freq_base' is -1", REAL_OF("llama.rope.freq_base", -1), { 0 } },
    { "infinite theta", "freq_base' is inf", REAL_OF("llama.rope.freq_base", INFINITY), { 0 } },
    { "fewer rotated dims", NULL, WHOLE_OF("llama.rope.dimension_count", 4), { 0 } },
    { "odd rotated dims", "odd", WHOLE_OF("llama.rope.dimension_count", 3), { 0 } },
    { "too many rotated dims",
      "dimension_count' is 10",
      WHOLE_OF("llama.rope.dimension_count", 10),
      { 0 } },
    { "linear scaling", NULL, { { "llama.rope.scaling.type", TEXT, 0, "linear" } }, { 0 } },
    { "a scaling that nobody knows",
      "'llama.rope.scaling.type' asks for 'dynamic', which is not supported (none, linear, yarn)",
      { { "llama.rope.scaling.type", TEXT, 0, "dynamic" } },
      { 0 } },
    { "a scaling that would break a line",
      "asks for 'a?b'",
      { { "llama.rope.scaling.type", TEXT, 0, "a\nb" } },
      { 0 } },
    { "another architecture's scaling",
      "'llama.rope.scaling.type' asks for 'longrope'",
      { { "llama.rope.scaling.type", TEXT, 0, "longrope" } },
      { 0 } },
    { "a factor that shortens",
      "'llama.rope.scaling.factor' is 0.5 (at least 1 is supported)",
      REAL_OF("llama.rope.scaling.factor", 0.5),
      { 0 } },
    { "a negative factor",
      "'llama.rope.scaling.factor' is -4",
      REAL_OF("llama.rope.scaling.factor", -4),
      { 0 } },
    { "a factor as text",
      "'llama.rope.scaling.factor' is not a float",
      { { "llama.rope.scaling.factor", TEXT, 0, "4" } },
      { 0 } },
    { "YaRN of a negative beta",
      "'llama.rope.scaling.yarn_beta_fast' is -1",
      { { "llama.rope.scaling.type", TEXT, 0, "yarn" },
        { "llama.rope.scaling.yarn_beta_fast", REAL, -1, NULL } },
      { 0 } },
    { "YaRN of turns that are all the same",
      "'llama.rope.freq_base' is 1 (YaRN needs more than 1)",
      { { "llama.rope.scaling.type", TEXT, 0, "yarn" }, { "llama.rope.freq_base", REAL, 1, NULL } },
      { 0 } },
    { "an original context of nothing",
      "'llama.rope.scaling.original_context_length' is 0",
      WHOLE_OF("llama.rope.scaling.original_context_length", 0),
      { 0 } },
    { "no scaling", NULL, { { "llama.rope.scaling.type", TEXT, 0, "none" } }, { 0 } },
    { "old linear scaling", NULL, REAL_OF("llama.rope.scale_linear", 2), { 0 } },
    { "a factor alone", NULL, REAL_OF("llama.rope.scaling.factor", 4), { 0 } },
    { "a factor of one", NULL, REAL_OF("llama.rope.scaling.factor", 1), { 0 } },
    { "a factor of nothing",
      NULL,
      { { "llama.rope.scaling.type", TEXT, 0, "none" },
        { "llama.rope.scaling.factor", REAL, 4, NULL } },
      { 0 } },
    { "a sliding window",
      "'llama.attention.sliding_window' is 127",
      WHOLE_OF("llama.attention.sliding_window", 127),
      { 0 } },
    { "a window over all", NULL, WHOLE_OF("llama.attention.sliding_window", 128), { 0 } },
    { "no window", NULL, WHOLE_OF("llama.attention.sliding_window", 0), { 0 } },
    { "a window as text",
      "not a whole number",
      { { "llama.attention.sliding_window", TEXT, 0, "9" } },
      { 0 } },
    { "experts", "'llama.expert_used_count' is missing", WHOLE_OF("llama.expert_count", 8), { 0 } },
    { "vocabulary agrees", NULL, WHOLE_OF("llama.vocab_size", 8), { 0 } },
    { "vocabulary disagrees",
      "8 rows, but the vocabulary has 9",
      WHOLE_OF("llama.vocab_size", 9),
      { 0 } },
    { "tokens disagree",
      "8 rows, but the vocabulary has 2",
      { { "tokenizer.ggml.tokens", ARRAY, 0, NULL } },
      { 0 } },
    { "no embedding",
      "'token_embd.weight' is missing",
      { { 0 } },
      TENSOR("token_embd.weight", 0, 0, 0) },
    { "no final norm",
      "'output_norm.weight' is missing",
      { { 0 } },
      TENSOR("output_norm.weight", 0, 0, 0) },
    { "no k",
      "'blk.0.attn_k.weight' is missing",
      { { 0 } },
      TENSOR("blk.0.attn_k.weight", 0, 0, 0) },
    { "k transposed",
      "'blk.0.attn_k.weight' is 16 x 32",
      { { 0 } },
      TENSOR("blk.0.attn_k.weight", FG_F16, 16, 32) },
    { "norm in f16",
      "has type f16, expected f32",
      { { 0 } },
      TENSOR("blk.0.ffn_norm.weight", FG_F16, 32, 0) },
    { "norm too short",
      "'blk.0.ffn_norm.weight' is 16",
      { { 0 } },
      TENSOR("blk.0.ffn_norm.weight", FG_F32, 16, 0) },
    { "own output", NULL, { { 0 } }, TENSOR("output.weight", FG_Q8_0, 32, 8) },
    { "own output of another size",
      "'output.weight'",
      { { 0 } },
      TENSOR("output.weight", FG_Q8_0, 32, 7) },
    { "a bias", "biases are not supported", { { 0 } }, TENSOR("blk.0.attn_q.bias", FG_F32, 32, 0) },
    { "head norms",
      "'blk.0.attn_q_norm.weight' has no place",
      { { 0 } },
      TENSOR("blk.0.attn_q_norm.weight", FG_F32, 8, 0) },
    { "a layer too many",
      "'blk.1.attn_q.weight' has no place",
      { { 0 } },
      TENSOR("blk.1.attn_q.weight", FG_F32, 32, 32) },
    { "a layer spelled twice",
      "'blk.00.attn_q.weight' has no place",
      { { 0 } },
      TENSOR("blk.00.attn_q.weight", FG_F32, 32, 32) },
    { "frequencies of another size",
      "'rope_freqs.weight' is 5",
      { { 0 } },
      TENSOR("rope_freqs.weight", FG_F32, 5, 0) },
};

static const change qwen2_cases[] = {
    { "qwen2", NULL, { { 0 } }, { 0 } },
    { "no bias of q",
      "'blk.0.attn_q.bias' is missing",
      { { 0 } },
      TENSOR("blk.0.attn_q.bias", 0, 0, 0) },
    { "no bias of k",
      "'blk.0.attn_k.bias' is missing",
      { { 0 } },
      TENSOR("blk.0.attn_k.bias", 0, 0, 0) },
    { "no bias of v",
      "'blk.0.attn_v.bias' is missing",
      { { 0 } },
      TENSOR("blk.0.attn_v.bias", 0, 0, 0) },
    { "a bias too long",
      "'blk.0.attn_v.bias' is 32 x 1 x 1 x 1, expected 16 x 1",
      { { 0 } },
      TENSOR("blk.0.attn_v.bias", FG_F32, 32, 0) },
    { "a bias in f16",
      "'blk.0.attn_k.bias' has type f16, expected f32",
      { { 0 } },
      TENSOR("blk.0.attn_k.bias", FG_F16, 16, 0) },
    { "a bias of another product",
      "'blk.0.attn_output.bias': biases but those of q, k and v are not supported for architecture "
      "qwen2",
      { { 0 } },
      TENSOR("blk.0.attn_output.bias", FG_F32, 32, 0) },
    { "head norms beside biases",
      "'blk.0.attn_q_norm.weight' has no place in architecture qwen2",
      { { 0 } },
      TENSOR("blk.0.attn_q_norm.weight", FG_F32, 8, 0) },
    { "frequencies",
      "'rope_freqs.weight' has no place in architecture qwen2",
      { { 0 } },
      TENSOR("rope_freqs.weight", FG_F32, 4, 0) },
    { "no layers key", "'qwen2.block_count' is missing", NONE_OF("qwen2.block_count"), { 0 } },
    { "YaRN",
      NULL,
      { { "qwen2.rope.scaling.type", TEXT, 0, "yarn" },
        { "qwen2.rope.scaling.factor", REAL, 4, NULL } },
      { 0 } },
    { "experts", "mixes 4 experts", WHOLE_OF("qwen2.expert_count", 4), { 0 } },
    { "a sliding window",
      "'qwen2.attention.sliding_window' is 64",
      WHOLE_OF("qwen2.attention.sliding_window", 64),
      { 0 } },
};

static const change qwen3_cases[] = {
    { "qwen3", NULL, { { 0 } }, { 0 } },
    { "no norm of q",
      "'blk.0.attn_q_norm.weight' is missing",
      { { 0 } },
      TENSOR("blk.0.attn_q_norm.weight", 0, 0, 0) },
    { "no norm of k",
      "'blk.0.attn_k_norm.weight' is missing",
      { { 0 } },
      TENSOR("blk.0.attn_k_norm.weight", 0, 0, 0) },
    { "a norm of all heads at once",
      "'blk.0.attn_q_norm.weight' is 32 x 1 x 1 x 1, expected 8 x 1",
      { { 0 } },
      TENSOR("blk.0.attn_q_norm.weight", FG_F32, 32, 0) },
    { "a head norm in bf16",
      "'blk.0.attn_k_norm.weight' has type bf16, expected f32",
      { { 0 } },
      TENSOR("blk.0.attn_k_norm.weight", FG_BF16, 8, 0) },
    { "biases beside head norms",
      "'blk.0.attn_q.bias': biases are not supported for architecture qwen3",
      { { 0 } },
      TENSOR("blk.0.attn_q.bias", FG_F32, 32, 0) },
    { "a head norm of a layer too many",
      "'blk.1.attn_k_norm.weight' has no place in architecture qwen3",
      { { 0 } },
      TENSOR("blk.1.attn_k_norm.weight", FG_F32, 8, 0) },
    { "keys of llama count for nothing", NULL, WHOLE_OF("llama.block_count", 7), { 0 } },
    { "heads of a size of their own",
      "'blk.0.attn_q.weight'",
      WHOLE_OF("qwen3.attention.key_length", 16),
      { 0 } },
    { "no epsilon",
      "'qwen3.attention.layer_norm_rms_epsilon' is missing",
      NONE_OF("qwen3.attention.layer_norm_rms_epsilon"),
      { 0 } },
    { "old linear scaling",
      "'qwen3.rope.scale_linear' is 0.25",
      REAL_OF("qwen3.rope.scale_linear", 0.25),
      { 0 } },
    { "parts of one tensor",
      "'blk.0.attn_qkv.weight' has no place in architecture qwen3",
      { { 0 } },
      TENSOR("blk.0.attn_qkv.weight", FG_F16, 32, 64) },
};

static const change phi3_cases[] = {
    { "phi3", NULL, { { 0 } }, { 0 } },
    { "a tensor of q alone",
      "'blk.0.attn_q.weight' has no place in architecture phi3",
      { { 0 } },
      TENSOR("blk.0.attn_q.weight", FG_F16, 32, 32) },
    { "no q, k and v",
      "'blk.0.attn_qkv.weight' is missing",
      { { 0 } },
      TENSOR("blk.0.attn_qkv.weight", 0, 0, 0) },
    { "too few rows for q, k and v",
      "'blk.0.attn_qkv.weight' is 32 x 48 x 1 x 1, expected 32 x 64",
      { { 0 } },
      TENSOR("blk.0.attn_qkv.weight", FG_F16, 32, 48) },
    { "no gate before up",
      "'blk.0.ffn_up.weight' is 32 x 64 x 1 x 1, expected 32 x 128",
      { { 0 } },
      TENSOR("blk.0.ffn_up.weight", FG_F16, 32, 64) },
    { "random divisors of a long context",
      "'rope_factors_long.weight' holds",
      { { "phi3.rope.scaling.original_context_length", WHOLE, 64, NULL } },
      TENSOR("rope_factors_long.weight", FG_F32, 4, 0) },
    { "divisors of short contexts alone",
      "'rope_factors_short.weight' is there, but 'rope_factors_long.weight' is missing",
      { { "phi3.rope.scaling.original_context_length", WHOLE, 64, NULL } },
      TENSOR("rope_factors_short.weight", FG_F32, 4, 0) },
    { "divisors of long contexts alone",
      "'rope_factors_long.weight' is there, but 'rope_factors_short.weight' is missing",
      { { 0 } },
      TENSOR("rope_factors_long.weight", FG_F32, 4, 0) },
    { "too many divisors",
      "'rope_factors_short.weight' is 8 x 1",
      { { 0 } },
      TENSOR("rope_factors_short.weight", FG_F32, 8, 0) },
    { "named so", NULL, { { "phi3.rope.scaling.type", TEXT, 0, "longrope" } }, { 0 } },
    { "a window of half the context", NULL, WHOLE_OF("phi3.attention.sliding_window", 64), { 0 } },
    { "a window as text",
      "'phi3.attention.sliding_window' is not a whole number",
      { { "phi3.attention.sliding_window", TEXT, 0, "64" } },
      { 0 } },
};

static const change gemma3_cases[] = {
    { "gemma3", NULL, { { 0 } }, { 0 } },
    { "a window", NULL, WHOLE_OF("gemma3.attention.sliding_window", 16), { 0 } },
    { "capped logits",
      "'gemma3.final_logit_softcapping': capped logits are not supported",
      REAL_OF("gemma3.final_logit_softcapping", 30),
      { 0 } },
    { "capped scores",
      "'gemma3.attn_logit_softcapping': capped logits are not supported",
      REAL_OF("gemma3.attn_logit_softcapping", 50),
      { 0 } },
    { "a cap that is no number",
      "'gemma3.attn_logit_softcapping': capped logits are not supported",
      { { "gemma3.attn_logit_softcapping", TEXT, 0, "none" } },
      { 0 } },
    { "a cap of 0: none", NULL, REAL_OF("gemma3.final_logit_softcapping", 0), { 0 } },
    { "a pattern for each layer",
      "'gemma3.attention.sliding_window_pattern' differs per layer",
      { { "gemma3.attention.sliding_window", WHOLE, 16, NULL },
        { "gemma3.attention.sliding_window_pattern", ARRAY, 0, NULL } },
      { 0 } },
    { "a pattern of nothing",
      "'gemma3.attention.sliding_window_pattern' is 0",
      { { "gemma3.attention.sliding_window", WHOLE, 16, NULL },
        { "gemma3.attention.sliding_window_pattern", WHOLE, 0, NULL } },
      { 0 } },
    { "turns of windows that go backwards",
      "'gemma3.rope.freq_base_swa' is -1",
      { { "gemma3.attention.sliding_window", WHOLE, 16, NULL },
        { "gemma3.rope.freq_base_swa", REAL, -1, NULL } },
      { 0 } },
    { "no norm behind attention",
      "'blk.0.post_attention_norm.weight' is missing",
      { { 0 } },
      TENSOR("blk.0.post_attention_norm.weight", 0, 0, 0) },
    { "a narrow norm behind the layer",
      "'blk.0.post_ffw_norm.weight' is 16 x 1 x 1 x 1, expected 32 x 1",
      { { 0 } },
      TENSOR("blk.0.post_ffw_norm.weight", FG_F32, 16, 0) },
};

static const change granite_cases[] = {
    { "granite", NULL, { { 0 } }, { 0 } },
    { "a negative scale",
      "'granite.residual_scale' is -1",
      REAL_OF("granite.residual_scale", -1),
      { 0 } },
    { "a scale whose square is none",
      "'granite.residual_scale' is 1e-30, too small for floats",
      REAL_OF("granite.residual_scale", 1e-30),
      { 0 } },
    { "a scale that is none",
      "'granite.logit_scale' is inf",
      REAL_OF("granite.logit_scale", INFINITY),
      { 0 } },
    { "a scale as text",
      "'granite.embedding_scale' is not a float",
      { { "granite.embedding_scale", TEXT, 0, "12" } },
      { 0 } },
    { "experts", "mixes 4 experts", WHOLE_OF("granite.expert_count", 4), { 0 } },
    { "biases",
      "biases are not supported for architecture granite",
      { { 0 } },
      TENSOR("blk.0.attn_q.bias", FG_F32, 32, 0) },
};

static void check_case(const char *arch, const change *c)
{
    size_t size_bytes;
    void *bytes = build(c, arch, &size_bytes);
    fg_weights *weights;
    fg_error err = { 0 };
    fg_hparams hp = { .layer_count = 4242 };
    cr_assert_eq(fg_weights_open_memory(bytes, size_bytes, &weights, &err), FG_OK, "%s: %s",
                 c->name, err.text);
    fg_status status = fg_hparams_read(weights, &hp, &err);
    cr_assert_eq(status, c->want == NULL ? FG_OK : FG_BAD_INPUT, "%s: %s", c->name, err.text);
    if (c->want != NULL) {
        cr_assert_not_null(strstr(err.text, c->want), "%s: got \"%s\"", c->name, err.text);
        cr_assert_eq(hp.layer_count, 4242, "%s: output kept", c->name);
    }
    fg_weights_close(weights);
    free(bytes);
}

Test(hparams, accepts_what_fits_and_names_what_does_not)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        check_case("llama", &cases[i]);
    }
    for (size_t i = 0; i < sizeof qwen2_cases / sizeof qwen2_cases[0]; i++) {
        check_case("qwen2", &qwen2_cases[i]);
    }
    for (size_t i = 0; i < sizeof qwen3_cases / sizeof qwen3_cases[0]; i++) {
        check_case("qwen3", &qwen3_cases[i]);
    }
    for (size_t i = 0; i < sizeof phi3_cases / sizeof phi3_cases[0]; i++) {
        check_case("phi3", &phi3_cases[i]);
    }
    for (size_t i = 0; i < sizeof granite_cases / sizeof granite_cases[0]; i++) {
        check_case("granite", &granite_cases[i]);
    }
    for (size_t i = 0; i < sizeof gemma3_cases / sizeof gemma3_cases[0]; i++) {
        check_case("gemma3", &gemma3_cases[i]);
    }
    check_case("gemma", &(change){ .name = "gemma" });
    check_case("smollm3", &(change){ .name = "smollm3" });
}

/* What a base with these keys reads as. */
static fg_hparams read_with(const char *arch, const change *c)
{
    size_t size_bytes;
    void *bytes = build(c, arch, &size_bytes);
    fg_weights *weights;
    fg_error err = { 0 };
    fg_hparams hp;
    cr_assert_eq(fg_weights_open_memory(bytes, size_bytes, &weights, &err), FG_OK);
    cr_assert_eq(fg_hparams_read(weights, &hp, &err), FG_OK, "%s: %s", c->name, err.text);
    fg_weights_close(weights);
    free(bytes);
    return hp;
}

Test(hparams, knows_how_positions_are_stretched)
{
    static const struct {
        change c;
        fg_rope_scaling want;
    } stretched[] = {
        { { .name = "not" }, { 1.0f, false, 32, 1, 128, 1 } },
        { { "by a factor", NULL, REAL_OF("qwen2.rope.scaling.factor", 4), { 0 } },
          { 4, false, 32, 1, 128, 1 } },
        { { "by a factor of nothing",
            NULL,
            { { "qwen2.rope.scaling.type", TEXT, 0, "none" },
              { "qwen2.rope.scaling.factor", REAL, 4, NULL } },
            { 0 } },
          { 1, false, 32, 1, 128, 1 } },
        { { "the old way", NULL, REAL_OF("qwen2.rope.scale_linear", 2), { 0 } },
          { 2, false, 32, 1, 128, 1 } },
        { { "a factor of 0",
            NULL,
            { { "qwen2.rope.scaling.factor", REAL, 0, NULL },
              { "qwen2.rope.scale_linear", REAL, 3, NULL } },
            { 0 } },
          { 1, false, 32, 1, 128, 1 } },
        { { "YaRN",
            NULL,
            { { "qwen2.rope.scaling.type", TEXT, 0, "yarn" },
              { "qwen2.rope.scaling.factor", REAL, 8, NULL } },
            { 0 } },
          { 8, true, 32, 1, 128, 1 } },
        { { "YaRN by one",
            NULL,
            { { "qwen2.rope.scaling.type", TEXT, 0, "yarn" },
              { "qwen2.rope.scaling.original_context_length", WHOLE, 64, NULL } },
            { 0 } },
          { 1, false, 32, 1, 64, 1 } },
        { { "longer vectors alone", NULL, REAL_OF("qwen2.rope.scaling.attn_factor", 1.25), { 0 } },
          { 1, false, 32, 1, 128, 1.25f } },
    };
    for (size_t i = 0; i < sizeof stretched / sizeof stretched[0]; i++) {
        fg_rope_scaling got = read_with("qwen2", &stretched[i].c).rope_scaling;
        const fg_rope_scaling *want = &stretched[i].want;
        cr_assert(got.factor == want->factor && got.yarn == want->yarn &&
                      got.beta_fast == want->beta_fast && got.beta_slow == want->beta_slow &&
                      got.original_context == want->original_context &&
                      got.magnitude == want->magnitude,
                  "%s: factor %g, yarn %d, %g to %g of %u, %g", stretched[i].c.name,
                  (double)got.factor, got.yarn, (double)got.beta_fast, (double)got.beta_slow,
                  got.original_context, (double)got.magnitude);
    }
}

#define WINDOW(arch) arch ".attention.sliding_window"

Test(hparams, knows_which_layers_see_a_window)
{
    static const struct {
        const char *arch;
        change c;
        uint32_t window, seen_by_sixth; /* of 128 tokens in all */
        float theta;                    /* 0: no turns of its own */
    } rows[] = {
        { "gemma3", { .name = "a window", .meta = WHOLE_OF(WINDOW("gemma3"), 16) }, 16, 0, 1e4f },
        { "gemma3",
          { .name = "another pattern",
            .meta = { { WINDOW("gemma3"), WHOLE, 16, NULL },
                      { WINDOW("gemma3") "_pattern", WHOLE, 4, NULL } } },
          16,
          16,
          1e4f },
        { "gemma3",
          { .name = "other turns",
            .meta = { { WINDOW("gemma3"), WHOLE, 16, NULL },
                      { "gemma3.rope.freq_base_swa", REAL, 500, NULL } } },
          16,
          0,
          500.0f },
        { "gemma3",
          { .name = "wider than all", .meta = WHOLE_OF(WINDOW("gemma3"), 999) },
          999,
          0,
          1e4f },
        { "gemma3", { .name = "none" }, 0, 0, 0.0f },
        { "phi3", { .name = "everywhere", .meta = WHOLE_OF(WINDOW("phi3"), 64) }, 64, 64, 0.0f },
        { "phi3", { .name = "everything", .meta = WHOLE_OF(WINDOW("phi3"), 128) }, 0, 0, 0.0f },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        fg_hparams hp = read_with(rows[i].arch, &rows[i].c);
        cr_assert(fg_hparams_window(&hp, 0) == rows[i].window &&
                      fg_hparams_window(&hp, 5) == rows[i].seen_by_sixth &&
                      hp.window_theta == rows[i].theta,
                  "%s, %s: %u, %u, %g", rows[i].arch, rows[i].c.name, fg_hparams_window(&hp, 0),
                  fg_hparams_window(&hp, 5), (double)hp.window_theta);
    }
}

Test(hparams, gemma_scales_by_its_sizes_and_smollm3_leaves_layers_unturned)
{
    change c = { .name = "gemma" };
    fg_hparams hp = read_with("gemma", &c);
    cr_assert(hp.gelu && !hp.post_norms && hp.embedding_scale == sqrtf(32.0f));
    hp = read_with("gemma3", &c);
    cr_assert(hp.gelu && hp.post_norms && hp.qk_norm && hp.attention_scale == 1.0f / sqrtf(8.0f));
    hp = read_with("smollm3", &c);
    cr_assert(!hp.gelu && hp.embedding_scale == 1.0f && hp.rope_interleaved);
    cr_assert(fg_hparams_is_turned(&hp, 2) && !fg_hparams_is_turned(&hp, 3) &&
              fg_hparams_is_turned(&hp, 4) && !fg_hparams_is_turned(&hp, 7));
}

Test(hparams, the_stream_is_divided_by_what_layers_are_scaled_by)
{
    change c = { .name = "scales",
                 .meta = { { "granite.embedding_scale", REAL, 12, NULL },
                           { "granite.residual_scale", REAL, 0.25, NULL } } };
    fg_hparams hp = read_with("granite", &c);
    cr_assert(hp.embedding_scale == 48.0f && hp.norm_epsilon == 1e-5f * 16.0f);
    cr_assert(hp.attention_scale == 1.0f / sqrtf(8.0f) && hp.logit_scale == 1.0f);
    c.meta[0] = (meta_row){ "granite.attention.scale", REAL, 0.5, NULL };
    c.meta[1] = (meta_row){ "granite.logit_scale", REAL, 8, NULL };
    hp = read_with("granite", &c);
    cr_assert(hp.embedding_scale == 1.0f && hp.norm_epsilon == 1e-5f);
    cr_assert(hp.attention_scale == 0.5f && hp.logit_scale == 8.0f && hp.rope_interleaved);
    c.meta[0].key = "qwen2.attention.scale";
    c.meta[1].key = "qwen2.logit_scale";
    hp = read_with("qwen2", &c);
    cr_assert(hp.attention_scale == 1.0f / sqrtf(8.0f) && hp.logit_scale == 1.0f);
}

/* Divisors are chosen by the model's context, never by a request's length. */
Test(hparams, long_contexts_have_divisors_of_their_own)
{
    static const struct {
        uint32_t original;
        float first;
    } contexts[] = { { 64, 7.0f }, { 128, 3.0f }, { 0, 3.0f } };
    for (size_t i = 0; i < sizeof contexts / sizeof contexts[0]; i++) {
        const float longer[4] = { 7, 7, 7, 7 }, shorter[4] = { 3, 3, 3, 3 };
        change c = { .name = "phi3" };
        fg_gguf_builder *builder = fg_gguf_builder_create();
        add_base_meta(builder, &c, "phi3");
        if (contexts[i].original > 0) {
            fg_gguf_add_u32(builder, "phi3.rope.scaling.original_context_length",
                            contexts[i].original);
        }
        add_all_tensors(builder, &c, "phi3");
        fg_gguf_add_tensor(builder, "rope_factors_long.weight", FG_F32, 1, &(uint64_t){ 4 },
                           longer);
        fg_gguf_add_tensor(builder, "rope_factors_short.weight", FG_F32, 1, &(uint64_t){ 4 },
                           shorter);
        size_t size_bytes;
        void *bytes = fg_gguf_finish(builder, &size_bytes);
        fg_weights *weights;
        fg_hparams hp;
        fg_error err = { 0 };
        cr_assert_eq(fg_weights_open_memory(bytes, size_bytes, &weights, &err), FG_OK);
        cr_assert_eq(fg_hparams_read(weights, &hp, &err), FG_OK, "%s", err.text);
        cr_assert(hp.fused && !hp.rope_interleaved);
        cr_assert_eq(hp.rope_freqs[0], contexts[i].first, "%u", contexts[i].original);
        fg_weights_close(weights);
        fg_gguf_builder_destroy(builder);
        free(bytes);
    }
}

Test(hparams, refuses_attention_to_later_tokens)
{
    for (int causal = 0; causal < 2; causal++) {
        size_t size_bytes;
        fg_weights *weights;
        fg_hparams hp;
        fg_error err = { 0 };
        fg_gguf_builder *builder = fg_gguf_builder_create();
        fg_gguf_add_tiny_llama(builder,
                               &(fg_tiny_llama){ .vocab = FG_TINY_BARE, .arch = FG_TINY_QWEN2 });
        fg_gguf_add_bool(builder, "qwen2.attention.causal", causal != 0);
        void *bytes = fg_gguf_finish(builder, &size_bytes);
        cr_assert_eq(fg_weights_open_memory(bytes, size_bytes, &weights, &err), FG_OK);
        cr_assert_eq(fg_hparams_read(weights, &hp, &err), causal ? FG_OK : FG_BAD_INPUT);
        cr_assert(causal || strstr(err.text, "'qwen2.attention.causal' is false") != NULL);
        fg_weights_close(weights);
        fg_gguf_builder_destroy(builder);
        free(bytes);
    }
}

Test(hparams, refuses_frequencies_that_divide_nothing)
{
    static const float bad[] = { 0.0f, -1.0f, (float)INFINITY, (float)NAN };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        float freqs[8] = { 1, 1, 1, 1, 1, 1, 1, bad[i] };
        size_t size_bytes;
        fg_weights *weights;
        fg_hparams hp;
        fg_error err;
        fg_gguf_builder *builder = fg_gguf_builder_create();
        fg_gguf_add_tiny_llama(builder, &(fg_tiny_llama){ .vocab = FG_TINY_BARE });
        fg_gguf_add_tensor(builder, "rope_freqs.weight", FG_F32, 1, &(uint64_t){ 8 }, freqs);
        void *bytes = fg_gguf_finish(builder, &size_bytes);
        cr_assert_eq(fg_weights_open_memory(bytes, size_bytes, &weights, &err), FG_OK);
        cr_assert_eq(fg_hparams_read(weights, &hp, &err), FG_BAD_INPUT);
        cr_assert_not_null(strstr(err.text, "divides no angle"));
        fg_weights_close(weights);
        fg_gguf_builder_destroy(builder);
        free(bytes);
    }
}

Test(hparams, reads_every_number_of_a_tiny_model)
{
    size_t size_bytes;
    fg_weights *weights;
    fg_hparams hp;
    fg_error err;
    void *bytes = fg_gguf_build_tiny_llama(&(fg_tiny_llama){ .vocab = FG_TINY_SPM,
                                                             .weight_type = FG_Q6_K,
                                                             .rope_freqs = true,
                                                             .separate_output = true },
                                           &size_bytes);
    cr_assert_eq(fg_weights_open_memory(bytes, size_bytes, &weights, &err), FG_OK, "%s", err.text);
    cr_assert_eq(fg_hparams_read(weights, &hp, &err), FG_OK, "%s", err.text);
    cr_assert_str_eq(hp.architecture, "llama");
    cr_assert_str_eq(hp.name, "tiny random llama");
    cr_assert(hp.layer_count == 2 && hp.embedding_length == 256 && hp.ffn_length == 256);
    cr_assert(hp.head_count == 4 && hp.kv_head_count == 2 && hp.head_dim == 64);
    cr_assert(hp.vocab_size == 316 && hp.context_length == 512 && hp.rope_dims == 64);
    cr_assert(hp.rope_interleaved && !hp.tied_output && hp.rope_theta == 10000.0f);
    cr_assert_eq(hp.norm_epsilon, 1e-5f);
    cr_assert_eq((const void *)hp.rope_freqs, fg_weights_find(weights, "rope_freqs.weight")->data);
    fg_weights_close(weights);
    free(bytes);
}

Test(hparams, knows_what_architectures_differ_in)
{
    static const struct {
        fg_tiny_arch arch;
        const char *name;
        bool interleaved, qkv_bias, qk_norm;
    } wanted[] = { { FG_TINY_LLAMA, "llama", true, false, false },
                   { FG_TINY_QWEN2, "qwen2", false, true, false },
                   { FG_TINY_QWEN3, "qwen3", false, false, true },
                   { FG_TINY_PHI3, "phi3", false, false, false },
                   { FG_TINY_GRANITE, "granite", true, false, false },
                   { FG_TINY_QWEN3MOE, "qwen3moe", false, false, true },
                   { FG_TINY_MIXTRAL, "llama", true, false, false },
                   { FG_TINY_GRANITEMOE, "granitemoe", true, false, false },
                   { FG_TINY_QWEN2MOE, "qwen2moe", false, true, false },
                   { FG_TINY_GEMMA3, "gemma3", false, false, true } };
    enum { WANTED = sizeof wanted / sizeof wanted[0] };
    fg_digest128 prints[WANTED];
    for (size_t i = 0; i < WANTED; i++) {
        size_t size_bytes;
        fg_weights *weights;
        fg_hparams hp;
        fg_error err;
        fg_tiny_llama tiny = {
            .vocab = FG_TINY_BARE, .arch = wanted[i].arch, .head_dim = 24, .embedding_length = 32
        };
        void *bytes = fg_gguf_build_tiny_llama(&tiny, &size_bytes);
        cr_assert_eq(fg_weights_open_memory(bytes, size_bytes, &weights, &err), FG_OK);
        cr_assert_eq(fg_hparams_read(weights, &hp, &err), FG_OK, "%s", err.text);
        cr_assert_str_eq(hp.architecture, wanted[i].name);
        cr_assert(hp.rope_interleaved == wanted[i].interleaved);
        cr_assert(hp.qkv_bias == wanted[i].qkv_bias && hp.qk_norm == wanted[i].qk_norm);
        cr_assert(hp.embedding_length == 32 && hp.head_count == 4 && hp.head_dim == 24,
                  "heads of a size of their own");
        cr_assert(hp.rope_dims == 24 && hp.rope_theta == 10000.0f && hp.tied_output);
        prints[i] = fg_weights_fingerprint(weights);
        fg_weights_close(weights);
        free(bytes);
    }
    cr_assert(prints[0].low != prints[1].low && prints[1].low != prints[2].low &&
              prints[0].low != prints[2].low);
}

/* Nobody may take KV blocks of the same weights read as another architecture. */
Test(hparams, the_architecture_is_part_of_the_fingerprint)
{
    static const change names[2] = {
        { .meta = { { "general.architecture", TEXT, 0, "llama" } } },
        { .meta = { { "general.architecture", TEXT, 0, "qwen3" } } },
    };
    fg_digest128 prints[2];
    for (int i = 0; i < 2; i++) {
        size_t size_bytes;
        fg_weights *weights;
        void *bytes = build(&names[i], "llama", &size_bytes);
        cr_assert_eq(fg_weights_open_memory(bytes, size_bytes, &weights, NULL), FG_OK);
        prints[i] = fg_weights_fingerprint(weights);
        fg_weights_close(weights);
        free(bytes);
    }
    cr_assert(prints[0].low != prints[1].low);
}

Test(hparams, keys_are_kept_as_precisely_as_their_weights)
{
    static const struct {
        uint32_t weights, kv;
    } pairs[] = { { FG_F32, FG_F16 },   { FG_F16, FG_F16 },   { FG_BF16, FG_BF16 },
                  { FG_Q8_0, FG_BF16 }, { FG_Q4_1, FG_BF16 }, { FG_Q6_K, FG_BF16 } };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        size_t size_bytes;
        fg_weights *weights;
        fg_hparams hp;
        fg_error err;
        fg_tiny_llama tiny = { .vocab = FG_TINY_BARE, .weight_type = pairs[i].weights };
        void *bytes = fg_gguf_build_tiny_llama(&tiny, &size_bytes);
        cr_assert_eq(fg_weights_open_memory(bytes, size_bytes, &weights, &err), FG_OK);
        cr_assert_eq(fg_hparams_read(weights, &hp, &err), FG_OK, "%s", err.text);
        cr_assert_eq(hp.kv_dtype, pairs[i].kv, "%s", fg_dtype_name(pairs[i].weights));
        fg_weights_close(weights);
        free(bytes);
    }
}

Test(hparams, shows_a_name_without_control_characters_or_half_letters)
{
    size_t size_bytes;
    fg_weights *weights;
    fg_hparams hp;
    fg_error err;
    change c = { .meta = { { "general.name", TEXT, 0, "a\nb\x7F\xC3\xA9\xFFrest" } } };
    void *bytes = build(&c, "llama", &size_bytes);
    cr_assert_eq(fg_weights_open_memory(bytes, size_bytes, &weights, &err), FG_OK, "%s", err.text);
    cr_assert_eq(fg_hparams_read(weights, &hp, &err), FG_OK, "%s", err.text);
    cr_assert_str_eq(hp.name, "a b \xC3\xA9");
    fg_weights_close(weights);
    free(bytes);
}
