/*
 * make-gguf OUT [--shape S] [--type T] [--layers N] [--vocab N] [--seed N]
 *
 * Writes a model with random weights that has the exact shapes, architecture, metadata and mix of types
 * of a real file: speed needs no real ones. The vocabulary is made up (byte-level BPE over the letters),
 * of the right size, with merges and Llama 3's special tokens, so that every engine loads the file.
 * Biases and norms of heads are large enough to be missed in an answer. The tiny-... shapes are no real
 * ones: each shows one more thing that an architecture does, at positions up to 256.
 *
 * The types follow what llama.cpp's quantiser does with such a model: in Q4_K_M and Q5_K_M some
 * attn_v and ffn_down are Q6_K; the embedding of a model that has it as its head too is Q6_K, or
 * Q8_0 in Q8_0; rows that are no multiple of 256 get the legacy type next to it.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/dtype.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "tests/support/gguf_builder.h"

typedef enum architecture {
    LLAMA,
    QWEN2,
    QWEN3,
    PHI3,
    GRANITE,
    GEMMA,
    GEMMA3,
    SMOLLM3,
    QWEN3MOE,
    GRANITEMOE,
    QWEN2MOE
} architecture;

static const struct {
    const char *name;
    const char *pre;  /* its tokenizer's cuts */
    uint32_t eos;     /* of the special tokens */
    bool head_dim;    /* files say it */
    bool rotated_dim; /* and how much of it is rotated, and the vocabulary's size */
} architectures[] = {
    [LLAMA] = { "llama", "llama-bpe", 9, true, true },
    [QWEN2] = { "qwen2", "qwen2", 11, false, false },
    [QWEN3] = { "qwen3", "qwen2", 11, true, false },
    [PHI3] = { "phi3", "gpt-2", 11, false, true },
    [GRANITE] = { "granite", "gpt-2", 11, false, true },
    [GEMMA] = { "gemma", "gpt-2", 11, true, false },
    [GEMMA3] = { "gemma3", "gpt-2", 11, true, false },
    [SMOLLM3] = { "smollm3", "llama-bpe", 9, false, true },
    [QWEN3MOE] = { "qwen3moe", "qwen2", 11, true, false },
    [GRANITEMOE] = { "granitemoe", "gpt-2", 11, false, true },
    [QWEN2MOE] = { "qwen2moe", "qwen2", 11, false, false },
};

typedef struct shape {
    const char *name;
    architecture arch;
    uint32_t layers, embedding, ffn, heads, kv_heads, head_dim, vocab, context;
    float theta, epsilon;
    bool rope_freqs;
    uint32_t rotated; /* of a head; 0: all of it */
    /* How positions beyond the first `original` are made to fit, and by how much; NULL: not at all. */
    const char *scaling;
    uint32_t original;
    float factor, attention_factor; /* 0: not written */
    uint32_t window;                /* 0: not written */
    uint32_t experts, used;         /* 0: none */
    uint32_t expert_ffn;            /* 0: ffn is an expert's */
    uint32_t shared_ffn;            /* of an expert for all rows; 0: there is none */
} shape;

/* What an architecture does to positions and sums shows in two small layers as well. */
#define TINY_LAYERS(architecture, size, count)                                                     \
    .arch = (architecture), .layers = (count), .embedding = 4 * (size), .ffn = 512, .heads = 4,    \
    .kv_heads = 2, .head_dim = (size), .vocab = 2000, .context = 256, .theta = 1e4f,               \
    .epsilon = 1e-5f
#define TINY_SIZES(architecture, size) TINY_LAYERS(architecture, size, 2)

static const shape shapes[] = {
    { "llama-3.2-1b", LLAMA, 16, 2048, 8192, 32, 8, 64, 128256, 131072, 5e5f, 1e-5f,
      .rope_freqs = true },
    { "llama-3.2-3b", LLAMA, 28, 3072, 8192, 24, 8, 128, 128256, 131072, 5e5f, 1e-5f,
      .rope_freqs = true },
    { "llama-3.1-8b", LLAMA, 32, 4096, 14336, 32, 8, 128, 128256, 131072, 5e5f, 1e-5f,
      .rope_freqs = true },
    { "smollm2-135m", LLAMA, 30, 576, 1536, 9, 3, 64, 49152, 8192, 1e5f, 1e-5f,
      .rope_freqs = false },
    { "qwen2.5-0.5b", QWEN2, 24, 896, 4864, 14, 2, 64, 151936, 32768, 1e6f, 1e-6f,
      .rope_freqs = false },
    { "qwen2.5-1.5b", QWEN2, 28, 1536, 8960, 12, 2, 128, 151936, 32768, 1e6f, 1e-6f,
      .rope_freqs = false },
    { "qwen3-0.6b", QWEN3, 28, 1024, 3072, 16, 8, 128, 151936, 40960, 1e6f, 1e-6f,
      .rope_freqs = false },
    { "gemma3-270m", GEMMA3, 18, 640, 2048, 4, 1, 256, 262144, 32768, 1e6f, 1e-6f, .window = 512 },
    { "gemma3-1b", GEMMA3, 26, 1152, 6912, 4, 1, 256, 262144, 32768, 1e6f, 1e-6f, .window = 512 },
    { "qwen3-30b-a3b", QWEN3MOE, 48, 2048, 6144, 32, 4, 128, 151936, 40960, 1e6f, 1e-6f,
      .experts = 128, .used = 8, .expert_ffn = 768 },
    { .name = "tiny-linear",
      TINY_SIZES(LLAMA, 64),
      .scaling = "linear",
      .factor = 2.5f,
      .attention_factor = 1.125f },
    { .name = "tiny-yarn",
      TINY_SIZES(QWEN2, 64),
      .scaling = "yarn",
      .original = 64,
      .factor = 4.0f },
    { .name = "tiny-phi4", TINY_SIZES(PHI3, 64) },
    { .name = "tiny-longrope",
      TINY_SIZES(PHI3, 64),
      .rotated = 48,
      .scaling = "longrope",
      .original = 64,
      .attention_factor = 1.1547f },
    { .name = "tiny-shortrope",
      TINY_SIZES(PHI3, 96),
      .scaling = "longrope",
      .original = 256,
      .attention_factor = 1.1547f },
    { .name = "tiny-granite", TINY_SIZES(GRANITE, 64) },
    { .name = "tiny-gemma", TINY_SIZES(GEMMA, 128) },
    /* Its sixth layer sees all. */
    { .name = "tiny-gemma3",
      TINY_LAYERS(GEMMA3, 64, 7),
      .window = 24,
      .scaling = "linear",
      .factor = 8.0f },
    { .name = "tiny-smollm3", TINY_LAYERS(SMOLLM3, 64, 5) },
    { .name = "tiny-phi3-window", TINY_SIZES(PHI3, 96), .window = 37 },
    { .name = "tiny-moe", TINY_SIZES(QWEN3MOE, 64), .experts = 16, .used = 4, .expert_ffn = 256 },
    { .name = "tiny-mixtral", TINY_SIZES(LLAMA, 64), .experts = 4, .used = 2 },
    { .name = "tiny-granitemoe",
      TINY_SIZES(GRANITEMOE, 64),
      .experts = 8,
      .used = 3,
      .shared_ffn = 768 },
    { .name = "tiny-qwen2moe",
      TINY_SIZES(QWEN2MOE, 64),
      .experts = 8,
      .used = 3,
      .expert_ffn = 256,
      .shared_ffn = 1024 },
};

/* `most` of the matrices, `more` of those that a mix treats better, `head` of the embedding. */
typedef struct mix {
    const char *name;
    uint32_t most, more, head;
    uint32_t file_type; /* llama.cpp's number, general.file_type */
} mix;

static const mix mixes[] = {
    { "q4_k_m", FG_Q4_K, FG_Q6_K, FG_Q6_K, 15 }, { "q5_k_m", FG_Q5_K, FG_Q6_K, FG_Q6_K, 17 },
    { "q6_k", FG_Q6_K, FG_Q6_K, FG_Q6_K, 18 },   { "q4_0", FG_Q4_0, FG_Q4_0, FG_Q6_K, 2 },
    { "q4_1", FG_Q4_1, FG_Q4_1, FG_Q6_K, 3 },    { "q5_0", FG_Q5_0, FG_Q5_0, FG_Q6_K, 8 },
    { "q5_1", FG_Q5_1, FG_Q5_1, FG_Q6_K, 9 },    { "q8_0", FG_Q8_0, FG_Q8_0, FG_Q8_0, 7 },
    { "bf16", FG_BF16, FG_BF16, FG_BF16, 32 },   { "f16", FG_F16, FG_F16, FG_F16, 1 },
    { "f32", FG_F32, FG_F32, FG_F32, 0 },
};

enum { SPECIAL_COUNT = 256, TENSORS_MAX = 3 + 19 * 128, CHUNK = 1 << 20 };

typedef struct tensor {
    char name[64];
    uint32_t type;
    uint32_t columns, rows; /* rows 0: a vector */
    uint32_t experts;       /* that have such a matrix each; 0: there is one */
    float low, high;        /* what a vector holds */
} tensor;

typedef struct making {
    shape shape;
    const mix *mix;
    uint64_t seed;
    tensor tensors[TENSORS_MAX];
    uint32_t tensor_count;
    fg_gguf_builder *builder;
} making;

/* A type whose blocks divide a row, as llama.cpp falls back. */
static uint32_t fitting(uint32_t type, uint32_t columns)
{
    if (columns % fg_dtype_block_count(type) == 0) {
        return type;
    }
    return type == FG_Q4_K ? FG_Q5_0 : type == FG_Q5_K ? FG_Q5_1 : FG_Q8_0;
}

/* The layers whose attn_v and ffn_down a _M mix keeps in the better type: the first and the last
 * eighth, and every third between. */
static bool has_more_bits(uint32_t layer, uint32_t layers)
{
    uint32_t eighth = layers / 8;
    return layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2;
}

static tensor *want_many(making *m, const char *name, uint32_t type, uint32_t columns,
                         uint32_t rows, uint32_t experts)
{
    FG_ASSERT(m->tensor_count < TENSORS_MAX, "too many tensors");
    tensor *t = &m->tensors[m->tensor_count++];
    snprintf(t->name, sizeof t->name, "%s", name);
    t->type = fitting(type, columns);
    t->columns = columns;
    t->rows = rows;
    t->experts = experts;
    uint64_t dims[3] = { columns, rows, experts };
    fg_gguf_announce_tensor(m->builder, t->name, t->type,
                            experts > 0 ? 3
                            : rows == 0 ? 1
                                        : 2,
                            dims);
    return t;
}

static tensor *want(making *m, const char *name, uint32_t type, uint32_t columns, uint32_t rows)
{
    return want_many(m, name, type, columns, rows, 0);
}

static void want_vector(making *m, const char *name, uint32_t count, float low, float high)
{
    tensor *t = want(m, name, FG_F32, count, 0);
    t->low = low;
    t->high = high;
}

/* 0: there are no experts. */
static uint32_t expert_ffn_of(const shape *s)
{
    return s->experts == 0 ? 0 : s->expert_ffn > 0 ? s->expert_ffn : s->ffn;
}

static void want_matrices(making *m, uint32_t layer)
{
    const shape *s = &m->shape;
    uint32_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    uint32_t most = m->mix->most;
    uint32_t more = has_more_bits(layer, s->layers) ? m->mix->more : most;
    bool fused = s->arch == PHI3;
    uint32_t ffn = s->experts > 0 ? 0 : s->ffn, expert_ffn = expert_ffn_of(s);
    const struct {
        const char *name;
        uint32_t type, columns, rows; /* rows 0: not of this architecture */
        uint32_t experts;
    } list[] = {
        { "ffn_down", more, ffn, ffn > 0 ? s->embedding : 0, 0 },
        { "ffn_gate", most, s->embedding, fused ? 0 : ffn, 0 },
        { "ffn_up", most, s->embedding, fused ? 2 * ffn : ffn, 0 },
        { "attn_k", most, s->embedding, fused ? 0 : kv, 0 },
        { "attn_output", most, q, s->embedding, 0 },
        { "attn_q", most, s->embedding, fused ? 0 : q, 0 },
        { "attn_v", more, s->embedding, fused ? 0 : kv, 0 },
        { "attn_qkv", most, s->embedding, fused ? q + 2 * kv : 0, 0 },
        { "ffn_gate_inp", FG_F32, s->embedding, s->experts, 0 },
        { "ffn_down_exps", more, expert_ffn, expert_ffn > 0 ? s->embedding : 0, s->experts },
        { "ffn_gate_exps", most, s->embedding, expert_ffn, s->experts },
        { "ffn_down_shexp", more, s->shared_ffn, s->shared_ffn > 0 ? s->embedding : 0, 0 },
        { "ffn_gate_shexp", most, s->embedding, s->shared_ffn, 0 },
        { "ffn_up_shexp", most, s->embedding, s->shared_ffn, 0 },
        { "ffn_up_exps", most, s->embedding, expert_ffn, s->experts },
    };
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        if (list[i].rows > 0) {
            char name[64];
            snprintf(name, sizeof name, "blk.%u.%s.weight", layer, list[i].name);
            want_many(m, name, list[i].type, list[i].columns, list[i].rows, list[i].experts);
        }
    }
}

static void want_vectors(making *m, uint32_t layer)
{
    const shape *s = &m->shape;
    uint32_t q = s->arch == QWEN2 || s->arch == QWEN2MOE ? s->heads * s->head_dim : 0;
    uint32_t kv = s->arch == QWEN2 || s->arch == QWEN2MOE ? s->kv_heads * s->head_dim : 0;
    uint32_t norm = s->arch == QWEN3 || s->arch == QWEN3MOE || s->arch == GEMMA3 ? s->head_dim : 0;
    uint32_t post_norm = s->arch == GEMMA3 ? s->embedding : 0;
    const struct {
        const char *name;
        uint32_t count; /* 0: not of this architecture */
        float low, high;
    } list[] = {
        { "attn_norm.weight", s->embedding, 0.9f, 1.1f },
        { "ffn_norm.weight", s->embedding, 0.9f, 1.1f },
        { "attn_q.bias", q, -1.0f, 1.0f },
        { "attn_k.bias", kv, -4.0f, 4.0f },
        { "attn_v.bias", kv, -0.5f, 0.5f },
        { "attn_q_norm.weight", norm, 0.5f, 2.0f },
        { "attn_k_norm.weight", norm, 0.5f, 2.0f },
        { "post_attention_norm.weight", post_norm, 0.2f, 1.0f },
        { "post_ffw_norm.weight", post_norm, 0.2f, 1.0f },
        { "ffn_gate_inp_shexp.weight", s->arch == QWEN2MOE ? s->embedding : 0, -0.25f, 0.25f },
    };
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        if (list[i].count > 0) {
            char name[64];
            snprintf(name, sizeof name, "blk.%u.%s", layer, list[i].name);
            want_vector(m, name, list[i].count, list[i].low, list[i].high);
        }
    }
}

static uint32_t rotated_of(const shape *s)
{
    return s->rotated > 0 ? s->rotated : s->head_dim;
}

static bool is_longrope(const shape *s)
{
    return s->scaling != NULL && strcmp(s->scaling, "longrope") == 0;
}

static void want_all(making *m)
{
    const shape *s = &m->shape;
    want_vector(m, "output_norm.weight", s->embedding, 0.9f, 1.1f);
    want(m, "token_embd.weight", m->mix->head, s->embedding, s->vocab);
    if (s->arch == QWEN2MOE) { /* llama.cpp wants it */
        want(m, "output.weight", m->mix->head, s->embedding, s->vocab);
    }
    if (s->rope_freqs) {
        want_vector(m, "rope_freqs.weight", s->head_dim / 2, 0.9f, 1.1f);
    }
    if (is_longrope(s)) {
        want_vector(m, "rope_factors_short.weight", rotated_of(s) / 2, 1.0f, 1.5f);
        want_vector(m, "rope_factors_long.weight", rotated_of(s) / 2, 1.0f, 8.0f);
    }
    for (uint32_t layer = 0; layer < s->layers; layer++) {
        want_matrices(m, layer);
        want_vectors(m, layer);
    }
}

/* ---- metadata ---- */

/* 0 is not written. */
static void add_number(making *m, const char *name, uint32_t value)
{
    char key[64];
    snprintf(key, sizeof key, "%s.%s", architectures[m->shape.arch].name, name);
    if (value > 0) {
        fg_gguf_add_u32(m->builder, key, value);
    }
}

/* 0 is not written. */
static void add_real(making *m, const char *name, float value)
{
    char key[64];
    snprintf(key, sizeof key, "%s.%s", architectures[m->shape.arch].name, name);
    if (value > 0.0f) {
        fg_gguf_add_f32(m->builder, key, value);
    }
}

static void add_scaling(making *m)
{
    const shape *s = &m->shape;
    char key[64];
    snprintf(key, sizeof key, "%s.rope.scaling.type", architectures[s->arch].name);
    if (s->scaling != NULL) {
        fg_gguf_add_string(m->builder, key, s->scaling);
    }
    add_real(m, "rope.scaling.factor", s->factor);
    add_real(m, "rope.scaling.attn_factor", s->attention_factor);
    add_number(m, "rope.scaling.original_context_length", s->original);
    if (s->arch == GRANITE || s->arch == GRANITEMOE) {
        add_real(m, "embedding_scale", 12.0f);
        add_real(m, "residual_scale", 0.22f);
        add_real(m, "logit_scale", 8.0f);
        /* Real ones are smaller than 1 / sqrt(head_dim); with random weights a larger one shows more. */
        add_real(m, "attention.scale", 0.25f);
    }
}

static void add_hparams(making *m)
{
    const shape *s = &m->shape;
    bool says_head = architectures[s->arch].head_dim,
         says_rotated = architectures[s->arch].rotated_dim;
    fg_gguf_builder *b = m->builder;
    char name[64];
    snprintf(name, sizeof name, "random %s %s", s->name, m->mix->name);
    fg_gguf_add_string(b, "general.architecture", architectures[s->arch].name);
    fg_gguf_add_string(b, "general.name", name);
    fg_gguf_add_u32(b, "general.file_type", m->mix->file_type);
    fg_gguf_add_u32(b, "general.quantization_version", 2);
    add_number(m, "block_count", s->layers);
    add_number(m, "context_length", s->context);
    add_number(m, "embedding_length", s->embedding);
    add_number(m, "feed_forward_length", s->ffn);
    add_number(m, "attention.head_count", s->heads);
    add_number(m, "attention.head_count_kv", s->kv_heads);
    add_number(m, "attention.key_length", says_head ? s->head_dim : 0);
    add_number(m, "attention.value_length", says_head ? s->head_dim : 0);
    add_real(m, "attention.layer_norm_rms_epsilon", s->epsilon);
    add_real(m, "rope.freq_base", s->theta);
    add_number(m, "rope.dimension_count", says_rotated ? rotated_of(s) : 0);
    add_number(m, "vocab_size", says_rotated ? s->vocab : 0);
    add_number(m, "attention.sliding_window", s->window);
    add_number(m, "expert_count", s->experts);
    add_number(m, "expert_used_count", s->used);
    add_number(m, "expert_feed_forward_length", s->expert_ffn);
    add_number(m, "expert_shared_feed_forward_length", s->shared_ffn);
    add_scaling(m);
}

enum { TEXT_BYTES = 32 };
typedef char text[TEXT_BYTES];

/* The byte alphabet of byte-level BPE: printable bytes as themselves, the others from U+0100 on. */
static void spell_byte(uint32_t byte, uint32_t *next, char *out)
{
    bool is_shown = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
    uint32_t code = is_shown ? byte : 256 + (*next)++;
    if (code < 0x80) {
        snprintf(out, TEXT_BYTES, "%c", (int)code);
    } else {
        snprintf(out, TEXT_BYTES, "%c%c", (int)(0xC0 | code >> 6), (int)(0x80 | (code & 0x3F)));
    }
}

/* Word `index` of aa, ab, ..., zz, aaa, ...: each is an earlier word, or a letter, and one letter more. */
static void spell_word(uint32_t index, char *out)
{
    uint32_t length = 2;
    for (uint32_t words = 26 * 26; index >= words; words *= 26) {
        index -= words;
        length++;
    }
    out[length] = '\0';
    for (uint32_t i = length; i-- > 0; index /= 26) {
        out[i] = (char)('a' + index % 26);
    }
}

static void spell_special(uint32_t index, char *out)
{
    static const struct {
        uint32_t index;
        const char *name;
    } known[] = { { 0, "begin_of_text" }, { 1, "end_of_text" }, { 6, "start_header_id" },
                  { 7, "end_header_id" }, { 8, "eom_id" },      { 9, "eot_id" },
                  { 10, "im_start" },     { 11, "im_end" } };
    snprintf(out, TEXT_BYTES, "<|reserved_special_token_%u|>", index);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (known[i].index == index) {
            snprintf(out, TEXT_BYTES, "<|%s|>", known[i].name);
        }
    }
}

static void add_vocab(making *m)
{
    enum { NORMAL = 1, CONTROL = 3 };
    fg_gguf_builder *b = m->builder;
    uint32_t count = m->shape.vocab, first_special = count - SPECIAL_COUNT, next = 0;
    uint32_t merge_count = first_special - 256;
    text *texts = fg_mem_array(count, sizeof *texts);
    text *merges = fg_mem_array(merge_count + 1, sizeof *merges);
    const char **lines = fg_mem_array(count, sizeof *lines);
    int32_t *kinds = fg_mem_array(count, sizeof *kinds);
    FG_ASSERT(texts != NULL && merges != NULL && lines != NULL && kinds != NULL, "out of memory");
    for (uint32_t i = 0; i < count; i++) {
        if (i < 256) {
            spell_byte(i, &next, texts[i]);
        } else if (i < first_special) {
            spell_word(i - 256, texts[i]);
            size_t last = strlen(texts[i]) - 1;
            snprintf(merges[i - 256], TEXT_BYTES, "%.*s %c", (int)last, texts[i], texts[i][last]);
        } else {
            spell_special(i - first_special, texts[i]);
        }
        kinds[i] = i < first_special ? NORMAL : CONTROL;
        lines[i] = texts[i];
    }
    fg_gguf_add_string(b, "tokenizer.ggml.model", "gpt2");
    fg_gguf_add_string(b, "tokenizer.ggml.pre", architectures[m->shape.arch].pre);
    fg_gguf_add_strings(b, "tokenizer.ggml.tokens", lines, count);
    fg_gguf_add_array(b, "tokenizer.ggml.token_type", FG_META_I32, kinds, count);
    for (uint32_t i = 0; i < merge_count; i++) {
        lines[i] = merges[i];
    }
    fg_gguf_add_strings(b, "tokenizer.ggml.merges", lines, merge_count);
    fg_gguf_add_u32(b, "tokenizer.ggml.bos_token_id", first_special);
    fg_gguf_add_u32(b, "tokenizer.ggml.eos_token_id",
                    first_special + architectures[m->shape.arch].eos);
    if (m->shape.arch != LLAMA) {
        fg_gguf_add_bool(b, "tokenizer.ggml.add_bos_token", false);
    }
    fg_gguf_add_string(b, "tokenizer.chat_template",
                       "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
                       "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if "
                       "add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}");
    fg_mem_free(texts);
    fg_mem_free(merges);
    fg_mem_free(lines);
    fg_mem_free(kinds);
}

/* ---- data ---- */

static void fill_vector(const tensor *t, float *out, uint32_t count, fg_rng *rng)
{
    for (uint32_t i = 0; i < count; i++) {
        out[i] = t->low + (t->high - t->low) * (float)fg_rng_below(rng, 1024) / 1024.0f;
    }
}

/* About 1/sqrt(columns): activations keep their size from layer to layer. */
static float scale_for(uint32_t columns)
{
    uint32_t root = 1;
    while (root * root < columns) {
        root++;
    }
    return 1.7f / (float)root;
}

static bool write_tensor(const tensor *t, uint64_t seed, void *buffer, FILE *out)
{
    static const char zeros[32];
    fg_rng rng = { .state = fg_hash64(t->name, strlen(t->name), seed) };
    uint64_t left = (uint64_t)t->columns * (t->rows == 0 ? 1 : t->rows), written = 0;
    left *= t->experts == 0 ? 1 : t->experts;
    while (left > 0) {
        uint64_t count = left < CHUNK ? left : CHUNK;
        if (t->rows == 0) {
            fill_vector(t, buffer, (uint32_t)count, &rng);
        } else {
            fg_gguf_fill_random(t->type, buffer, count, scale_for(t->columns), &rng);
        }
        size_t size_bytes = count / fg_dtype_block_count(t->type) * fg_dtype_block_bytes(t->type);
        if (fwrite(buffer, 1, size_bytes, out) != size_bytes) {
            return false;
        }
        left -= count;
        written += size_bytes;
    }
    size_t padding = (32 - written % 32) % 32;
    return fwrite(zeros, 1, padding, out) == padding;
}

static int write_file(making *m, const char *path)
{
    size_t head_bytes;
    void *head = fg_gguf_finish(m->builder, &head_bytes);
    void *buffer = fg_mem_alloc(CHUNK * sizeof(float));
    FILE *out = fopen(path, "wb");
    bool fine = out != NULL && buffer != NULL && fwrite(head, 1, head_bytes, out) == head_bytes;
    for (uint32_t i = 0; fine && i < m->tensor_count; i++) {
        fine = write_tensor(&m->tensors[i], m->seed, buffer, out);
    }
    fine = (out == NULL || fclose(out) == 0) && fine;
    if (!fine) {
        fprintf(stderr, "make-gguf: %s: %s\n", path, strerror(errno));
        if (out != NULL) {
            remove(path);
        }
    }
    fg_mem_free(buffer);
    free(head);
    return fine ? 0 : 1;
}

/* ---- the command ---- */

static int usage(void)
{
    fprintf(stderr, "usage: make-gguf OUT [--shape SHAPE] [--type TYPE] [--layers N] [--vocab N] "
                    "[--seed N]\n  SHAPE:");
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        fprintf(stderr, " %s", shapes[i].name);
    }
    fprintf(stderr, "\n  TYPE: ");
    for (size_t i = 0; i < sizeof mixes / sizeof mixes[0]; i++) {
        fprintf(stderr, " %s", mixes[i].name);
    }
    fprintf(stderr, "\n  --layers 1 to 128, --vocab 1024 to 262144: smaller ones, for tests\n");
    return 2;
}

static bool take_number(const char *word, uint64_t low, uint64_t high, uint64_t *out)
{
    char *end;
    *out = strtoull(word, &end, 10);
    return *word != '\0' && *end == '\0' && *out >= low && *out <= high;
}

static bool take_option(making *m, const char *name, const char *word)
{
    uint64_t number = 0;
    bool known = false;
    if (strcmp(name, "--shape") == 0) {
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            if (strcmp(word, shapes[i].name) == 0) {
                m->shape = shapes[i];
                known = true;
            }
        }
    } else if (strcmp(name, "--type") == 0) {
        for (size_t i = 0; i < sizeof mixes / sizeof mixes[0]; i++) {
            if (strcmp(word, mixes[i].name) == 0) {
                m->mix = &mixes[i];
                known = true;
            }
        }
    } else if (strcmp(name, "--layers") == 0) {
        known = take_number(word, 1, 128, &number);
        m->shape.layers = (uint32_t)number;
    } else if (strcmp(name, "--vocab") == 0) {
        known = take_number(word, 1024, 262144, &number);
        m->shape.vocab = (uint32_t)number;
    } else if (strcmp(name, "--seed") == 0) {
        known = take_number(word, 0, UINT64_MAX, &m->seed);
    }
    return known;
}

int main(int argc, char **argv)
{
    static making m = { .mix = &mixes[0], .seed = 1 };
    m.shape = shapes[0];
    if (argc % 2 != 0 || argc < 2 || argv[1][0] == '-') {
        return usage();
    }
    /* The shape first: the other options change it. */
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 2; i + 1 < argc; i += 2) {
            bool is_shape = strcmp(argv[i], "--shape") == 0;
            if (is_shape == (pass == 0) && !take_option(&m, argv[i], argv[i + 1])) {
                fprintf(stderr, "make-gguf: %s %s is not known\n", argv[i], argv[i + 1]);
                return usage();
            }
        }
    }
    m.builder = fg_gguf_builder_create();
    add_hparams(&m);
    add_vocab(&m);
    want_all(&m);
    int code = write_file(&m, argv[1]);
    fg_gguf_builder_destroy(m.builder);
    return code;
}
