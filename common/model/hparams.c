#include "common/model/hparams.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/dtype.h"
#include "common/base/limits.h"
#include "common/base/utf8.h"
#include "common/model/weights_internal.h"

/* Above every published model of this kind; they keep later products far from overflow. */
enum {
    LAYERS_MAX = 1024,
    EMBEDDING_MAX = 1 << 17,
    HEADS_MAX = 4096,
    HEAD_DIM_MAX = 512,
    FFN_MAX = 1 << 20,
    VOCAB_MAX = 1 << 22,
};

/* What architectures differ in. */
typedef struct architecture {
    const char *name; /* and what its keys begin with */
    bool interleaved; /* fg_hparams.rope_interleaved */
    bool rope_freqs;  /* may have rope_freqs.weight */
    bool qkv_bias;
    bool qk_norm;
} architecture;

static const architecture architectures[] = {
    { .name = "llama", .interleaved = true, .rope_freqs = true },
    { .name = "qwen2", .qkv_bias = true },
    { .name = "qwen3", .qk_norm = true },
};
enum { ARCHITECTURES = sizeof architectures / sizeof architectures[0] };

/* A key of the architecture's own. */
typedef struct own_key {
    char text[96];
} own_key;

static own_key key_of(const architecture *arch, const char *name)
{
    own_key key;
    snprintf(key.text, sizeof key.text, "%s.%s", arch->name, name);
    return key;
}

static fg_status read_u32(const fg_weights *weights, const char *key, uint32_t value_max,
                          uint32_t *out, fg_error *err)
{
    uint32_t value;
    const fg_meta *meta = fg_weights_meta(weights, key);
    if (meta == NULL) {
        return fg_fail(err, FG_BAD_INPUT, "metadata '%s' is missing", key);
    }
    if (meta->type == FG_META_ARRAY) {
        return fg_fail(err, FG_BAD_INPUT, "metadata '%s' differs per layer, which is not supported",
                       key);
    }
    if (!fg_weights_get_u32(weights, key, &value)) {
        return fg_fail(err, FG_BAD_INPUT, "metadata '%s' is not a whole number", key);
    }
    if (value == 0 || value > value_max) {
        return fg_fail(err, FG_BAD_INPUT, "metadata '%s' is %u (1 to %u is supported)", key, value,
                       value_max);
    }
    *out = value;
    return FG_OK;
}

/* As read_u32; absent leaves *out as it is. */
static fg_status read_u32_optional(const fg_weights *weights, const char *key, uint32_t value_max,
                                   uint32_t *out, fg_error *err)
{
    return fg_weights_meta(weights, key) == NULL ? FG_OK
                                                 : read_u32(weights, key, value_max, out, err);
}

/* A float in (0, value_max). */
static fg_status read_f32(const fg_weights *weights, const char *key, float value_max, float *out,
                          fg_error *err)
{
    float value;
    if (fg_weights_meta(weights, key) == NULL) {
        return fg_fail(err, FG_BAD_INPUT, "metadata '%s' is missing", key);
    }
    if (!fg_weights_get_f32(weights, key, &value)) {
        return fg_fail(err, FG_BAD_INPUT, "metadata '%s' is not a float", key);
    }
    if (!(value > 0.0f && value < value_max)) {
        return fg_fail(err, FG_BAD_INPUT, "metadata '%s' is %g (above 0, below %g is supported)",
                       key, (double)value, (double)value_max);
    }
    *out = value;
    return FG_OK;
}

/* Copies whole printable characters; the name is only shown. */
static void copy_name(const fg_weights *weights, char *out, size_t capacity)
{
    const char *text;
    size_t length, used = 0;
    if (fg_weights_get_string(weights, "general.name", &text, &length)) {
        for (size_t at = 0; at < length;) {
            size_t step = fg_utf8_length(text + at, length - at);
            if (step == 0 || used + step >= capacity) {
                break;
            }
            memcpy(out + used, text + at, step);
            if ((unsigned char)out[used] < 0x20 || out[used] == 0x7F) {
                out[used] = ' ';
            }
            used += step;
            at += step;
        }
    }
    out[used] = '\0';
}

static fg_status refuse_architecture(const char *text, size_t length, fg_error *err)
{
    char shown[32];
    char known[64];
    size_t used = 0;
    for (; used < length && used + 1 < sizeof shown; used++) {
        shown[used] = text[used] > 0x20 && text[used] < 0x7F ? text[used] : '?';
    }
    shown[used] = '\0';
    used = 0;
    for (size_t i = 0; i < ARCHITECTURES; i++) {
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i == 0 ? "" : ", ",
                                 architectures[i].name);
        FG_ASSERT(used < sizeof known, "more names than fit");
    }
    return fg_fail(err, FG_BAD_INPUT, "model architecture '%s' is not supported (supported: %s)",
                   shown, known);
}

static fg_status find_architecture(const fg_weights *weights, const architecture **arch_out,
                                   fg_error *err)
{
    const char *text;
    size_t length;
    if (!fg_weights_get_string(weights, "general.architecture", &text, &length)) {
        return fg_fail(err, FG_BAD_INPUT, "metadata 'general.architecture' is missing");
    }
    for (size_t i = 0; i < ARCHITECTURES; i++) {
        const char *name = architectures[i].name;
        if (length == strlen(name) && memcmp(text, name, length) == 0) {
            *arch_out = &architectures[i];
            return FG_OK;
        }
    }
    return refuse_architecture(text, length, err);
}

static fg_status refuse_scaled_rope(const fg_weights *weights, const architecture *arch,
                                    fg_error *err)
{
    static const char *const factors[] = { "rope.scaling.factor", "rope.scale_linear" };
    own_key key = key_of(arch, "rope.scaling.type");
    const char *scaling;
    size_t length;
    bool is_named = fg_weights_get_string(weights, key.text, &scaling, &length);
    if (is_named && !(length == 4 && memcmp(scaling, "none", 4) == 0)) {
        return fg_fail(err, FG_BAD_INPUT,
                       "metadata '%s' asks for a scaled rotation, which is not supported%s",
                       key.text, arch->rope_freqs ? " (rope_freqs.weight is)" : "");
    }
    /* A factor alone asks for a linear one. */
    for (size_t i = is_named ? 1 : 0; i < sizeof factors / sizeof factors[0]; i++) {
        float scale = 1.0f;
        key = key_of(arch, factors[i]);
        fg_weights_get_f32(weights, key.text, &scale);
        if (scale != 1.0f) {
            return fg_fail(err, FG_BAD_INPUT, "metadata '%s' is %g (only 1 is supported)", key.text,
                           (double)scale);
        }
    }
    return FG_OK;
}

/* Things that a file may ask for and this forward does not do; to ignore one would give wrong answers
 * quietly. */
static fg_status refuse_variants(const fg_weights *weights, const architecture *arch, fg_error *err)
{
    uint32_t expert_count = 0;
    fg_weights_get_u32(weights, key_of(arch, "expert_count").text, &expert_count);
    if (expert_count > 0) {
        return fg_fail(err, FG_BAD_INPUT, "the model mixes %u experts, which is not supported",
                       expert_count);
    }
    own_key key = key_of(arch, "attention.causal");
    bool is_causal = true;
    fg_weights_get_bool(weights, key.text, &is_causal);
    if (!is_causal) {
        return fg_fail(err, FG_BAD_INPUT,
                       "metadata '%s' is false: attention to later tokens is not supported",
                       key.text);
    }
    return refuse_scaled_rope(weights, arch, err);
}

static fg_status refuse_window(const fg_weights *weights, const architecture *arch,
                               const fg_hparams *hp, fg_error *err)
{
    own_key key = key_of(arch, "attention.sliding_window");
    uint32_t window = 0;
    if (fg_weights_meta(weights, key.text) == NULL) {
        return FG_OK;
    }
    if (!fg_weights_get_u32(weights, key.text, &window)) {
        return fg_fail(err, FG_BAD_INPUT, "metadata '%s' is not a whole number", key.text);
    }
    if (window > 0 && window < hp->context_length) {
        return fg_fail(err, FG_BAD_INPUT,
                       "metadata '%s' is %u: a window smaller than the context of %u is not "
                       "supported",
                       key.text, window, hp->context_length);
    }
    return FG_OK;
}

static fg_status read_head_dim(const fg_weights *weights, const architecture *arch, fg_hparams *hp,
                               fg_error *err)
{
    hp->head_dim = 0;
    fg_status status = read_u32_optional(weights, key_of(arch, "attention.key_length").text,
                                         HEAD_DIM_MAX, &hp->head_dim, err);
    if (status != FG_OK) {
        return status;
    }
    if (hp->head_dim == 0) {
        if (hp->embedding_length % hp->head_count != 0) {
            return fg_fail(err, FG_BAD_INPUT, "an embedding of %u does not divide into %u heads",
                           hp->embedding_length, hp->head_count);
        }
        hp->head_dim = hp->embedding_length / hp->head_count;
    }
    if (hp->head_dim % 2 != 0 || hp->head_dim > HEAD_DIM_MAX) {
        return fg_fail(err, FG_BAD_INPUT, "heads of %u values are not supported (even, at most %d)",
                       hp->head_dim, HEAD_DIM_MAX);
    }
    uint32_t value_dim = hp->head_dim;
    status = read_u32_optional(weights, key_of(arch, "attention.value_length").text, HEAD_DIM_MAX,
                               &value_dim, err);
    if (status == FG_OK && value_dim != hp->head_dim) {
        return fg_fail(err, FG_BAD_INPUT,
                       "keys of %u and values of %u numbers are not supported (only equal ones)",
                       hp->head_dim, value_dim);
    }
    return status;
}

static fg_status read_heads(const fg_weights *weights, const architecture *arch, fg_hparams *hp,
                            fg_error *err)
{
    fg_status status = read_u32(weights, key_of(arch, "attention.head_count").text, HEADS_MAX,
                                &hp->head_count, err);
    if (status != FG_OK) {
        return status;
    }
    hp->kv_head_count = hp->head_count;
    status = read_u32_optional(weights, key_of(arch, "attention.head_count_kv").text, HEADS_MAX,
                               &hp->kv_head_count, err);
    if (status != FG_OK) {
        return status;
    }
    if (hp->head_count % hp->kv_head_count != 0) {
        return fg_fail(err, FG_BAD_INPUT, "%u heads cannot share %u KV heads evenly",
                       hp->head_count, hp->kv_head_count);
    }
    return read_head_dim(weights, arch, hp, err);
}

static fg_status read_rope(const fg_weights *weights, const architecture *arch, fg_hparams *hp,
                           fg_error *err)
{
    hp->rope_theta = 10000.0f;
    hp->rope_dims = hp->head_dim;
    own_key key = key_of(arch, "rope.dimension_count");
    fg_status status = read_u32_optional(weights, key.text, hp->head_dim, &hp->rope_dims, err);
    if (status != FG_OK) {
        return status;
    }
    if (hp->rope_dims % 2 != 0) {
        return fg_fail(err, FG_BAD_INPUT, "metadata '%s' is odd", key.text);
    }
    key = key_of(arch, "rope.freq_base");
    if (fg_weights_meta(weights, key.text) != NULL) {
        status = read_f32(weights, key.text, 1e30f, &hp->rope_theta, err);
    }
    return status;
}

static fg_status read_numbers(const fg_weights *weights, const architecture *arch, fg_hparams *hp,
                              fg_error *err)
{
    const struct {
        const char *name;
        uint32_t value_max;
        uint32_t *out;
    } required[] = {
        { "block_count", LAYERS_MAX, &hp->layer_count },
        { "embedding_length", EMBEDDING_MAX, &hp->embedding_length },
        { "feed_forward_length", FFN_MAX, &hp->ffn_length },
        { "context_length", FG_LIMIT_CONTEXT_TOKENS, &hp->context_length },
    };
    for (size_t i = 0; i < sizeof required / sizeof required[0]; i++) {
        fg_status status = read_u32(weights, key_of(arch, required[i].name).text,
                                    required[i].value_max, required[i].out, err);
        if (status != FG_OK) {
            return status;
        }
    }
    fg_status status = refuse_window(weights, arch, hp, err);
    if (status != FG_OK) {
        return status;
    }
    status = read_heads(weights, arch, hp, err);
    if (status != FG_OK) {
        return status;
    }
    status = read_rope(weights, arch, hp, err);
    if (status != FG_OK) {
        return status;
    }
    return read_f32(weights, key_of(arch, "attention.layer_norm_rms_epsilon").text, 1.0f,
                    &hp->norm_epsilon, err);
}

/* The vocabulary's size is the embedding's row count; everything else that names it must agree. */
static fg_status read_vocab(const fg_weights *weights, const architecture *arch, fg_hparams *hp,
                            fg_error *err)
{
    const fg_tensor *embedding = fg_weights_find(weights, "token_embd.weight");
    if (embedding == NULL) {
        return fg_fail(err, FG_BAD_INPUT, "tensor 'token_embd.weight' is missing");
    }
    if (embedding->dims[1] > VOCAB_MAX) {
        return fg_fail(err, FG_BAD_INPUT, "a vocabulary of %" PRIu64 " is not supported (up to %d)",
                       embedding->dims[1], VOCAB_MAX);
    }
    hp->vocab_size = (uint32_t)embedding->dims[1];
    uint32_t claimed = hp->vocab_size;
    fg_status status =
        read_u32_optional(weights, key_of(arch, "vocab_size").text, VOCAB_MAX, &claimed, err);
    if (status != FG_OK) {
        return status;
    }
    fg_meta_type type;
    uint64_t token_count = hp->vocab_size;
    fg_weights_get_array(weights, "tokenizer.ggml.tokens", &type, &token_count);
    if (claimed != hp->vocab_size || token_count != hp->vocab_size) {
        return fg_fail(err, FG_BAD_INPUT,
                       "the embedding has %u rows, but the vocabulary has %" PRIu64 " tokens",
                       hp->vocab_size, claimed != hp->vocab_size ? claimed : token_count);
    }
    return FG_OK;
}

/* One tensor of the architecture. Rows of a matrix are `rows` vectors of `columns`; a vector (rows 1)
 * is read as floats in place. columns 0: not in this architecture. */
typedef struct tensor_row {
    const char *name;
    uint64_t columns;
    uint64_t rows;
    bool is_vector;
    bool is_optional;
} tensor_row;

enum { LAYER_TENSORS = 14, MODEL_TENSORS = 4 };

static void layer_rows(const architecture *arch, const fg_hparams *hp,
                       tensor_row rows_out[LAYER_TENSORS])
{
    uint64_t embed = hp->embedding_length, ffn = hp->ffn_length;
    uint64_t q = (uint64_t)hp->head_count * hp->head_dim;
    uint64_t kv = (uint64_t)hp->kv_head_count * hp->head_dim;
    uint64_t q_bias = arch->qkv_bias ? q : 0, kv_bias = arch->qkv_bias ? kv : 0;
    uint64_t norm = arch->qk_norm ? hp->head_dim : 0;
    const tensor_row rows[LAYER_TENSORS] = {
        { "attn_norm.weight", embed, 1, true, false },
        { "attn_q.weight", embed, q, false, false },
        { "attn_k.weight", embed, kv, false, false },
        { "attn_v.weight", embed, kv, false, false },
        { "attn_output.weight", q, embed, false, false },
        { "ffn_norm.weight", embed, 1, true, false },
        { "ffn_gate.weight", embed, ffn, false, false },
        { "ffn_up.weight", embed, ffn, false, false },
        { "ffn_down.weight", ffn, embed, false, false },
        { "attn_q.bias", q_bias, 1, true, false },
        { "attn_k.bias", kv_bias, 1, true, false },
        { "attn_v.bias", kv_bias, 1, true, false },
        { "attn_q_norm.weight", norm, 1, true, false },
        { "attn_k_norm.weight", norm, 1, true, false },
    };
    memcpy(rows_out, rows, sizeof rows);
}

static void model_rows(const architecture *arch, const fg_hparams *hp,
                       tensor_row rows_out[MODEL_TENSORS])
{
    uint64_t embed = hp->embedding_length;
    const tensor_row rows[MODEL_TENSORS] = {
        { "token_embd.weight", embed, hp->vocab_size, false, false },
        { "output_norm.weight", embed, 1, true, false },
        { "output.weight", embed, hp->vocab_size, false, true },
        { "rope_freqs.weight", arch->rope_freqs ? hp->rope_dims / 2 : 0, 1, true, true },
    };
    memcpy(rows_out, rows, sizeof rows);
}

/* Checks one tensor; adds it to *found_count when it is there. */
static fg_status check_tensor(const fg_weights *weights, const char *name, const tensor_row *row,
                              uint32_t *found_count, fg_error *err)
{
    if (row->columns == 0) {
        return FG_OK;
    }
    const fg_tensor *tensor = fg_weights_find(weights, name);
    if (tensor == NULL) {
        return row->is_optional ? FG_OK
                                : fg_fail(err, FG_BAD_INPUT, "tensor '%s' is missing", name);
    }
    if (tensor->dims[0] != row->columns || tensor->dims[1] != row->rows || tensor->dims[2] != 1 ||
        tensor->dims[3] != 1) {
        return fg_fail(err, FG_BAD_INPUT,
                       "tensor '%s' is %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64
                       ", expected %" PRIu64 " x %" PRIu64,
                       name, tensor->dims[0], tensor->dims[1], tensor->dims[2], tensor->dims[3],
                       row->columns, row->rows);
    }
    if (row->is_vector && tensor->type != FG_F32) {
        return fg_fail(err, FG_BAD_INPUT, "tensor '%s' has type %s, expected f32", name,
                       fg_dtype_name(tensor->type));
    }
    (*found_count)++;
    return FG_OK;
}

static bool has_row(const tensor_row *rows, uint32_t count, const char *name)
{
    for (uint32_t i = 0; i < count; i++) {
        if (rows[i].columns > 0 && strcmp(rows[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

/* True for a tensor that check_tensors() has looked at. */
static bool is_known(const architecture *arch, const fg_hparams *hp, const char *name)
{
    tensor_row rows[LAYER_TENSORS];
    unsigned layer;
    int suffix_at = 0;
    if (sscanf(name, "blk.%5u.%n", &layer, &suffix_at) == 1 && suffix_at > 0) {
        char canonical[32];
        snprintf(canonical, sizeof canonical, "blk.%u.", layer);
        if (layer >= hp->layer_count || strncmp(name, canonical, strlen(canonical)) != 0) {
            return false;
        }
        layer_rows(arch, hp, rows);
        return has_row(rows, LAYER_TENSORS, name + suffix_at);
    }
    model_rows(arch, hp, rows);
    return has_row(rows, MODEL_TENSORS, name);
}

/* A tensor that the forward would not use (a bias, a norm of the heads) changes the model's answers. */
static fg_status refuse_stranger(const fg_weights *weights, const architecture *arch,
                                 const fg_hparams *hp, fg_error *err)
{
    for (uint64_t i = 0; i < fg_weights_tensor_count(weights); i++) {
        const char *name = fg_weights_tensor(weights, i)->name;
        size_t length = strlen(name);
        if (is_known(arch, hp, name)) {
            continue;
        }
        if (length > 5 && strcmp(name + length - 5, ".bias") == 0) {
            return fg_fail(
                err, FG_BAD_INPUT, "tensor '%s': %s not supported for architecture %s", name,
                arch->qkv_bias ? "biases but those of q, k and v are" : "biases are", arch->name);
        }
        return fg_fail(err, FG_BAD_INPUT, "tensor '%s' has no place in architecture %s", name,
                       arch->name);
    }
    return FG_OK;
}

static fg_status check_tensors(const fg_weights *weights, const architecture *arch,
                               const fg_hparams *hp, fg_error *err)
{
    uint32_t found_count = 0;
    tensor_row rows[LAYER_TENSORS];
    model_rows(arch, hp, rows);
    for (uint32_t i = 0; i < MODEL_TENSORS; i++) {
        fg_status status = check_tensor(weights, rows[i].name, &rows[i], &found_count, err);
        if (status != FG_OK) {
            return status;
        }
    }
    layer_rows(arch, hp, rows);
    for (uint32_t layer = 0; layer < hp->layer_count; layer++) {
        for (uint32_t i = 0; i < LAYER_TENSORS; i++) {
            char name[80];
            snprintf(name, sizeof name, "blk.%u.%s", layer, rows[i].name);
            fg_status status = check_tensor(weights, name, &rows[i], &found_count, err);
            if (status != FG_OK) {
                return status;
            }
        }
    }
    return found_count == fg_weights_tensor_count(weights)
               ? FG_OK
               : refuse_stranger(weights, arch, hp, err);
}

static fg_status read_rope_freqs(const fg_weights *weights, fg_hparams *hp, fg_error *err)
{
    const fg_tensor *tensor = fg_weights_find(weights, "rope_freqs.weight");
    if (tensor == NULL) {
        return FG_OK;
    }
    hp->rope_freqs = tensor->data;
    for (uint32_t i = 0; i < hp->rope_dims / 2; i++) {
        if (!(hp->rope_freqs[i] > 0.0f && hp->rope_freqs[i] < 1e30f)) {
            return fg_fail(err, FG_BAD_INPUT,
                           "tensor 'rope_freqs.weight' holds %g, which divides no angle",
                           (double)hp->rope_freqs[i]);
        }
    }
    return FG_OK;
}

/* Rounding keys to 8 bits adds nothing that could be seen to what rounding weights to so few has done
 * (docs/PERFORMANCE.md), and is quicker. */
static uint32_t suitable_kv_dtype(const fg_weights *weights)
{
    uint32_t type = fg_weights_find(weights, "blk.0.attn_k.weight")->type;
    return type == FG_F32 || type == FG_F16 ? FG_F16 : FG_BF16;
}

fg_status fg_hparams_read(const fg_weights *weights, fg_hparams *hparams_out, fg_error *err)
{
    const architecture *arch = NULL;
    fg_status status = find_architecture(weights, &arch, err);
    if (status != FG_OK) {
        return status;
    }
    fg_hparams hp = { .rope_interleaved = arch->interleaved,
                      .qkv_bias = arch->qkv_bias,
                      .qk_norm = arch->qk_norm };
    snprintf(hp.architecture, sizeof hp.architecture, "%s", arch->name);
    copy_name(weights, hp.name, sizeof hp.name);
    status = refuse_variants(weights, arch, err);
    if (status != FG_OK) {
        return status;
    }
    status = read_numbers(weights, arch, &hp, err);
    if (status != FG_OK) {
        return status;
    }
    status = read_vocab(weights, arch, &hp, err);
    if (status != FG_OK) {
        return status;
    }
    status = check_tensors(weights, arch, &hp, err);
    if (status != FG_OK) {
        return status;
    }
    hp.tied_output = fg_weights_find(weights, "output.weight") == NULL;
    hp.kv_dtype = suitable_kv_dtype(weights);
    status = read_rope_freqs(weights, &hp, err);
    if (status != FG_OK) {
        return status;
    }
    *hparams_out = hp;
    return FG_OK;
}
