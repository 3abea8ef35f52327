#include "common/model/hparams.h"

#include <float.h>
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
/* Gemma 3's largest model is known by its layers: files do not say how its scores are scaled. */
enum { GEMMA_27B_LAYERS = 62 };
#define FACTOR_MAX 1e6f

/* What architectures differ in. */
typedef struct architecture {
    const char *name; /* and what its keys begin with */
    bool interleaved; /* fg_hparams.rope_interleaved */
    bool rope_freqs;  /* may have rope_freqs.weight */
    bool qkv_bias;
    bool qk_norm;
    bool fused;        /* q, k and v in one tensor, gate and up in another */
    bool rope_factors; /* may have rope_factors_long.weight and _short */
    bool scales;       /* of embedding, attention, what layers add, logits */
    bool is_gemma;     /* gates open as GELU, the embedding is scaled by the root of its length */
    bool post_norms;
    bool windows; /* layers may see a window alone, */
    /* but for every so many-th one, and then with turns of their own; 0: all layers do */
    uint32_t period;
    uint32_t unturned_period;
    bool may_mix;     /* may have experts */
    bool mixes;       /* has them */
    bool unevenly;    /* their weights for a row need not add up to 1 */
    bool may_share;   /* may have one more, for all rows */
    bool shared_gate; /* has one, which rows take as much of as they choose */
} architecture;

static const architecture architectures[] = {
    { .name = "llama", .interleaved = true, .rope_freqs = true, .may_mix = true },
    { .name = "qwen2", .qkv_bias = true },
    { .name = "qwen3", .qk_norm = true },
    { .name = "phi3", .fused = true, .rope_factors = true, .windows = true },
    { .name = "granite", .interleaved = true, .rope_freqs = true, .scales = true },
    { .name = "gemma", .is_gemma = true },
    { .name = "gemma3",
      .is_gemma = true,
      .qk_norm = true,
      .post_norms = true,
      .windows = true,
      .period = 6 },
    { .name = "smollm3", .interleaved = true, .unturned_period = 4 },
    { .name = "qwen3moe", .qk_norm = true, .mixes = true },
    { .name = "granitemoe",
      .interleaved = true,
      .rope_freqs = true,
      .scales = true,
      .mixes = true,
      .may_share = true },
    { .name = "qwen2moe",
      .qkv_bias = true,
      .mixes = true,
      .unevenly = true,
      .may_share = true,
      .shared_gate = true },
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

/* A file's word, as far as it may stand in a line. */
typedef struct shown_word {
    char text[32];
} shown_word;

static shown_word show(const char *text, size_t length)
{
    shown_word shown = { { 0 } };
    for (size_t i = 0; i < length && i + 1 < sizeof shown.text; i++) {
        shown.text[i] = text[i] > 0x20 && text[i] < 0x7F ? text[i] : '?';
    }
    return shown;
}

static fg_status refuse_architecture(const char *text, size_t length, fg_error *err)
{
    char known[192];
    size_t used = 0;
    for (size_t i = 0; i < ARCHITECTURES; i++) {
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i == 0 ? "" : ", ",
                                 architectures[i].name);
        FG_ASSERT(used < sizeof known, "more names than fit");
    }
    return fg_fail(err, FG_BAD_INPUT, "model architecture '%s' is not supported (supported: %s)",
                   show(text, length).text, known);
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

/* Things that a file may ask for and this forward does not do; to ignore one would give wrong answers
 * quietly. */
static fg_status refuse_variants(const fg_weights *weights, const architecture *arch, fg_error *err)
{
    uint32_t expert_count = 0;
    fg_weights_get_u32(weights, key_of(arch, "expert_count").text, &expert_count);
    if (expert_count > 0 && !arch->mixes && !arch->may_mix) {
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
    key = key_of(arch, "rope.scaling.finetuned");
    bool is_rotated = true;
    fg_weights_get_bool(weights, key.text, &is_rotated);
    if (arch->scales && !is_rotated) {
        return fg_fail(err, FG_BAD_INPUT,
                       "metadata '%s' is false: a model without positions is not supported",
                       key.text);
    }
    static const char *const caps[] = { "attn_logit_softcapping", "final_logit_softcapping" };
    for (size_t i = 0; i < sizeof caps / sizeof caps[0]; i++) {
        float cap = 0.0f;
        key = key_of(arch, caps[i]);
        if (fg_weights_meta(weights, key.text) != NULL &&
            !(fg_weights_get_f32(weights, key.text, &cap) && cap == 0.0f)) {
            return fg_fail(err, FG_BAD_INPUT, "metadata '%s': capped logits are not supported",
                           key.text);
        }
    }
    return FG_OK;
}

static fg_status read_window(const fg_weights *weights, const architecture *arch, fg_hparams *hp,
                             fg_error *err)
{
    own_key key = key_of(arch, "attention.sliding_window");
    uint32_t window = 0;
    if (fg_weights_meta(weights, key.text) == NULL) {
        return FG_OK;
    }
    if (!fg_weights_get_u32(weights, key.text, &window)) {
        return fg_fail(err, FG_BAD_INPUT, "metadata '%s' is not a whole number", key.text);
    }
    if (arch->windows && (window < hp->context_length || arch->period > 0)) {
        hp->window = window;
        hp->window_period = arch->period;
        key = key_of(arch, "attention.sliding_window_pattern");
        return arch->period == 0
                   ? FG_OK
                   : read_u32_optional(weights, key.text, LAYERS_MAX, &hp->window_period, err);
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

/* As read_f32; absent leaves *out as it is, and so does 0 where `zero_is_absent`. */
static fg_status read_f32_optional(const fg_weights *weights, const char *key, float value_max,
                                   bool zero_is_absent, float *out, fg_error *err)
{
    float value = 1.0f;
    const fg_meta *meta = fg_weights_meta(weights, key);
    if (meta == NULL ||
        (zero_is_absent && fg_weights_get_f32(weights, key, &value) && value == 0.0f)) {
        return FG_OK;
    }
    return read_f32(weights, key, value_max, out, err);
}

typedef struct float_key {
    const char *name;
    bool zero_is_absent;
    float *out;
} float_key;

static fg_status read_floats(const fg_weights *weights, const architecture *arch,
                             const float_key *keys, size_t count, fg_error *err)
{
    fg_status status = FG_OK;
    for (size_t i = 0; i < count && status == FG_OK; i++) {
        status = read_f32_optional(weights, key_of(arch, keys[i].name).text, FACTOR_MAX,
                                   keys[i].zero_is_absent, keys[i].out, err);
    }
    return status;
}

/* What files call their way of scaling; FG_BAD_INPUT for one that is not known. */
static fg_status read_scaling_type(const fg_weights *weights, const architecture *arch,
                                   fg_rope_scaling *scaling, bool *none_out, fg_error *err)
{
    own_key key = key_of(arch, "rope.scaling.type");
    const char *type = "linear"; /* a factor alone asks for that */
    size_t length = strlen(type);
    fg_weights_get_string(weights, key.text, &type, &length);
    bool is_longrope = length == 8 && memcmp(type, "longrope", 8) == 0;
    *none_out = length == 4 && memcmp(type, "none", 4) == 0;
    scaling->yarn = length == 4 && memcmp(type, "yarn", 4) == 0;
    bool is_linear = length == 6 && memcmp(type, "linear", 6) == 0;
    if (!*none_out && !scaling->yarn && !is_linear && !(is_longrope && arch->rope_factors)) {
        return fg_fail(err, FG_BAD_INPUT,
                       "metadata '%s' asks for '%s', which is not supported (none, linear, yarn%s)",
                       key.text, show(type, length).text, arch->rope_factors ? ", longrope" : "");
    }
    return FG_OK;
}

/* Keys that would change YaRN's shape in ways that nobody's files do. */
static fg_status refuse_other_yarn(const fg_weights *weights, const architecture *arch,
                                   fg_error *err)
{
    static const char *const names[] = { "rope.scaling.yarn_ext_factor",
                                         "rope.scaling.yarn_attn_factor" };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        own_key key = key_of(arch, names[i]);
        float value = 1.0f;
        fg_weights_get_f32(weights, key.text, &value);
        if (value != 1.0f) {
            return fg_fail(err, FG_BAD_INPUT, "metadata '%s' is %g (only 1 is supported)", key.text,
                           (double)value);
        }
    }
    own_key key = key_of(arch, "rope.scaling.yarn_log_multiplier");
    float multiplier = 0.0f;
    fg_weights_get_f32(weights, key.text, &multiplier);
    return multiplier == 0.0f
               ? FG_OK
               : fg_fail(err, FG_BAD_INPUT, "metadata '%s' is %g (only 0 is supported)", key.text,
                         (double)multiplier);
}

static fg_status read_rope_scaling(const fg_weights *weights, const architecture *arch,
                                   fg_hparams *hp, fg_error *err)
{
    fg_rope_scaling *scaling = &hp->rope_scaling;
    *scaling = (fg_rope_scaling){ .factor = 1.0f,
                                  .beta_fast = 32.0f,
                                  .beta_slow = 1.0f,
                                  .original_context = hp->context_length,
                                  .magnitude = 1.0f };
    bool is_none;
    fg_status status = read_scaling_type(weights, arch, scaling, &is_none, err);
    if (status != FG_OK) {
        return status;
    }
    bool is_named = fg_weights_meta(weights, key_of(arch, "rope.scaling.factor").text) != NULL;
    const float_key keys[] = {
        { is_named ? "rope.scaling.factor" : "rope.scale_linear", true, &scaling->factor },
        { "rope.scaling.attn_factor", false, &scaling->magnitude },
        { "rope.scaling.yarn_beta_fast", false, &scaling->beta_fast },
        { "rope.scaling.yarn_beta_slow", false, &scaling->beta_slow },
    };
    status = read_floats(weights, arch, keys, sizeof keys / sizeof keys[0], err);
    if (status == FG_OK) {
        status =
            read_u32_optional(weights, key_of(arch, "rope.scaling.original_context_length").text,
                              FG_LIMIT_CONTEXT_TOKENS, &scaling->original_context, err);
    }
    scaling->factor = is_none ? 1.0f : scaling->factor;
    if (status == FG_OK && scaling->factor < 1.0f) {
        return fg_fail(err, FG_BAD_INPUT, "metadata '%s' is %g (at least 1 is supported)",
                       key_of(arch, keys[0].name).text, (double)scaling->factor);
    }
    if (status == FG_OK && scaling->yarn && hp->rope_theta <= 1.0f) {
        return fg_fail(err, FG_BAD_INPUT, "metadata '%s' is %g (YaRN needs more than 1)",
                       key_of(arch, "rope.freq_base").text, (double)hp->rope_theta);
    }
    scaling->yarn = scaling->yarn && scaling->factor > 1.0f;
    return status == FG_OK && scaling->yarn ? refuse_other_yarn(weights, arch, err) : status;
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
    key = key_of(arch, "rope.freq_base_swa");
    if (status == FG_OK && hp->window > 0 && arch->period > 0) {
        hp->window_theta = 10000.0f;
        if (fg_weights_meta(weights, key.text) != NULL) {
            status = read_f32(weights, key.text, 1e30f, &hp->window_theta, err);
        }
    }
    return status == FG_OK ? read_rope_scaling(weights, arch, hp, err) : status;
}

/* After norm_epsilon and head_dim. */
static fg_status read_scales(const fg_weights *weights, const architecture *arch, fg_hparams *hp,
                             fg_error *err)
{
    float residual = 1.0f;
    hp->embedding_scale = hp->logit_scale = 1.0f;
    hp->attention_scale = 1.0f / __builtin_sqrtf((float)hp->head_dim);
    if (arch->is_gemma) {
        hp->embedding_scale = __builtin_sqrtf((float)hp->embedding_length);
    }
    if (arch->post_norms && hp->layer_count == GEMMA_27B_LAYERS) {
        hp->attention_scale =
            1.0f / __builtin_sqrtf((float)hp->embedding_length / (float)hp->head_count);
    }
    if (!arch->scales) {
        return FG_OK;
    }
    const float_key keys[] = {
        { "embedding_scale", true, &hp->embedding_scale },
        { "residual_scale", true, &residual },
        { "attention.scale", true, &hp->attention_scale },
        { "logit_scale", true, &hp->logit_scale },
    };
    fg_status status = read_floats(weights, arch, keys, sizeof keys / sizeof keys[0], err);
    hp->embedding_scale /= residual;
    hp->norm_epsilon /= residual * residual;
    if (status == FG_OK && !(hp->embedding_scale < FLT_MAX && hp->norm_epsilon < FLT_MAX)) {
        return fg_fail(err, FG_BAD_INPUT, "metadata '%s' is %g, too small for floats",
                       key_of(arch, "residual_scale").text, (double)residual);
    }
    return status;
}

/* Keys of mixtures that this forward does not do; each may be there when it asks for nothing. */
static fg_status refuse_other_mixtures(const fg_weights *weights, const architecture *arch,
                                       fg_error *err)
{
    const struct {
        const char *name;
        uint32_t most;
    } keys[] = { { "expert_shared_count", arch->may_share ? 1 : 0 },
                 { "expert_shared_feed_forward_length", arch->may_share ? FFN_MAX : 0 },
                 { "leading_dense_block_count", 0 },
                 { "nextn_predict_layers", 0 },
                 { "expert_group_count", 1 },
                 { "interleave_moe_layer_step", 1 },
                 { "expert_gating_func", 1 } };
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        own_key key = key_of(arch, keys[i].name);
        uint32_t value = 0;
        if (fg_weights_meta(weights, key.text) == NULL) {
            continue;
        }
        if (!fg_weights_get_u32(weights, key.text, &value)) {
            return fg_fail(err, FG_BAD_INPUT, "metadata '%s' is not a whole number", key.text);
        }
        if (value > keys[i].most) {
            return fg_fail(err, FG_BAD_INPUT, "metadata '%s' is %u (at most %u is supported)",
                           key.text, value, keys[i].most);
        }
    }
    return FG_OK;
}

static fg_status read_expert_weights(const fg_weights *weights, const architecture *arch,
                                     fg_hparams *hp, fg_error *err)
{
    own_key key = key_of(arch, "expert_weights_norm");
    hp->expert_weights_normalised = !arch->unevenly;
    hp->expert_weights_scale = 1.0f;
    if (fg_weights_meta(weights, key.text) != NULL &&
        !fg_weights_get_bool(weights, key.text, &hp->expert_weights_normalised)) {
        return fg_fail(err, FG_BAD_INPUT, "metadata '%s' is neither true nor false", key.text);
    }
    const float_key scale = { "expert_weights_scale", true, &hp->expert_weights_scale };
    return read_floats(weights, arch, &scale, 1, err);
}

/* After ffn_length of all, and what is refused. */
static fg_status read_shared_expert(const fg_weights *weights, const architecture *arch,
                                    fg_hparams *hp, fg_error *err)
{
    own_key key = key_of(arch, "expert_shared_feed_forward_length");
    uint32_t length = 0;
    if (arch->shared_gate) {
        hp->shared_gate = true;
        hp->shared_ffn_length = hp->ffn_length; /* where nobody says it */
        return read_u32_optional(weights, key.text, FFN_MAX, &hp->shared_ffn_length, err);
    }
    fg_weights_get_u32(weights, key.text, &length);
    hp->shared_ffn_length = length;
    return FG_OK;
}

uint32_t fg_hparams_hidden_rows(const fg_hparams *hparams)
{
    uint32_t rows = hparams->expert_count > 0 ? hparams->expert_used_count : 1;
    /* One row more, for what the forms of long rows have at their ends. */
    uint32_t shared = hparams->shared_ffn_length == 0
                          ? 0
                          : (hparams->shared_ffn_length - 1) / hparams->ffn_length + 2;
    return rows > shared ? rows : shared;
}

/* After ffn_length, which becomes an expert's. */
static fg_status read_experts(const fg_weights *weights, const architecture *arch, fg_hparams *hp,
                              fg_error *err)
{
    own_key key = key_of(arch, "expert_count"), used = key_of(arch, "expert_used_count");
    uint32_t count = 0;
    fg_weights_get_u32(weights, key.text, &count);
    if (count == 0 && !arch->mixes) {
        return FG_OK;
    }
    fg_status status = read_u32(weights, key.text, FG_HPARAMS_EXPERTS_MAX, &hp->expert_count, err);
    if (status == FG_OK) {
        status =
            read_u32(weights, used.text, FG_HPARAMS_EXPERTS_USED_MAX, &hp->expert_used_count, err);
    }
    if (status == FG_OK && hp->expert_used_count > hp->expert_count) {
        return fg_fail(err, FG_BAD_INPUT, "metadata '%s' is %u, more than the %u experts",
                       used.text, hp->expert_used_count, hp->expert_count);
    }
    if (status == FG_OK) {
        status = refuse_other_mixtures(weights, arch, err);
    }
    if (status == FG_OK) {
        status = read_shared_expert(weights, arch, hp, err);
    }
    if (status == FG_OK) {
        status = read_u32_optional(weights, key_of(arch, "expert_feed_forward_length").text,
                                   FFN_MAX, &hp->ffn_length, err);
    }
    return status == FG_OK ? read_expert_weights(weights, arch, hp, err) : status;
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
    /* Whatever it is, only embeddings need it. */
    (void)fg_weights_get_u32(weights, key_of(arch, "pooling_type").text, &hp->pooling);
    fg_status status = read_window(weights, arch, hp, err);
    if (status == FG_OK) {
        status = read_experts(weights, arch, hp, err);
    }
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
    status = read_f32(weights, key_of(arch, "attention.layer_norm_rms_epsilon").text, 1.0f,
                      &hp->norm_epsilon, err);
    return status == FG_OK ? read_scales(weights, arch, hp, err) : status;
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
    bool is_float;
    bool is_optional;
    uint32_t experts; /* that have such a matrix each, the tensor's third size; 0: it has one */
} tensor_row;

enum { LAYER_TENSORS = 25, MODEL_TENSORS = 6 };

static void layer_rows(const architecture *arch, const fg_hparams *hp,
                       tensor_row rows_out[LAYER_TENSORS])
{
    uint64_t embed = hp->embedding_length, ffn = hp->ffn_length;
    uint64_t q = (uint64_t)hp->head_count * hp->head_dim;
    uint64_t kv = (uint64_t)hp->kv_head_count * hp->head_dim;
    uint64_t q_bias = arch->qkv_bias ? q : 0, kv_bias = arch->qkv_bias ? kv : 0;
    uint64_t norm = arch->qk_norm ? hp->head_dim : 0;
    uint64_t post_norm = arch->post_norms ? embed : 0;
    uint64_t apart = arch->fused ? 0 : embed, fused = arch->fused ? embed : 0;
    uint32_t experts = hp->expert_count;
    uint64_t shared = hp->shared_ffn_length, shared_embed = shared > 0 ? embed : 0;
    uint64_t one = experts > 0 ? 0 : 1, mixed = experts > 0 ? 1 : 0;
    const tensor_row rows[LAYER_TENSORS] = {
        { "attn_norm.weight", embed, 1, true, false, 0 },
        { "attn_q.weight", apart, q, false, false, 0 },
        { "attn_k.weight", apart, kv, false, false, 0 },
        { "attn_v.weight", apart, kv, false, false, 0 },
        { "attn_qkv.weight", fused, q + 2 * kv, false, false, 0 },
        { "attn_output.weight", q, embed, false, false, 0 },
        { "ffn_norm.weight", embed, 1, true, false, 0 },
        { "ffn_gate.weight", one * apart, ffn, false, false, 0 },
        { "ffn_up.weight", one * embed, arch->fused ? 2 * ffn : ffn, false, false, 0 },
        { "ffn_down.weight", one * ffn, embed, false, false, 0 },
        { "ffn_gate_inp.weight", mixed * embed, experts, true, false, 0 },
        { "ffn_gate_exps.weight", mixed * embed, ffn, false, false, experts },
        { "ffn_up_exps.weight", mixed * embed, ffn, false, false, experts },
        { "ffn_down_exps.weight", mixed * ffn, embed, false, false, experts },
        { "ffn_gate_inp_shexp.weight", hp->shared_gate ? embed : 0, 1, true, false, 0 },
        { "ffn_gate_shexp.weight", shared_embed, shared, false, false, 0 },
        { "ffn_up_shexp.weight", shared_embed, shared, false, false, 0 },
        { "ffn_down_shexp.weight", shared, embed, false, false, 0 },
        { "attn_q.bias", q_bias, 1, true, false, 0 },
        { "attn_k.bias", kv_bias, 1, true, false, 0 },
        { "attn_v.bias", kv_bias, 1, true, false, 0 },
        { "attn_q_norm.weight", norm, 1, true, false, 0 },
        { "attn_k_norm.weight", norm, 1, true, false, 0 },
        { "post_attention_norm.weight", post_norm, 1, true, false, 0 },
        { "post_ffw_norm.weight", post_norm, 1, true, false, 0 },
    };
    memcpy(rows_out, rows, sizeof rows);
}

static void model_rows(const architecture *arch, const fg_hparams *hp,
                       tensor_row rows_out[MODEL_TENSORS])
{
    uint64_t embed = hp->embedding_length;
    const tensor_row rows[MODEL_TENSORS] = {
        { "token_embd.weight", embed, hp->vocab_size, false, false, 0 },
        { "output_norm.weight", embed, 1, true, false, 0 },
        { "output.weight", embed, hp->vocab_size, false, true, 0 },
        { "rope_freqs.weight", arch->rope_freqs ? hp->rope_dims / 2 : 0, 1, true, true, 0 },
        { "rope_factors_long.weight", arch->rope_factors ? hp->rope_dims / 2 : 0, 1, true, true,
          0 },
        { "rope_factors_short.weight", arch->rope_factors ? hp->rope_dims / 2 : 0, 1, true, true,
          0 },
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
    uint32_t depth = row->experts > 0 ? row->experts : 1; /* of 0 %.0u shows nothing */
    if (tensor->dims[0] != row->columns || tensor->dims[1] != row->rows ||
        tensor->dims[2] != depth || tensor->dims[3] != 1) {
        return fg_fail(err, FG_BAD_INPUT,
                       "tensor '%s' is %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64
                       ", expected %" PRIu64 " x %" PRIu64 "%s%.0u",
                       name, tensor->dims[0], tensor->dims[1], tensor->dims[2], tensor->dims[3],
                       row->columns, row->rows, row->experts > 0 ? " x " : "", row->experts);
    }
    if (row->is_float && tensor->type != FG_F32) {
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

/* A file has the divisors of the context that it is for: the long ones, where that is longer than the original one. All
 * of a model's requests have the same ones, however short they are: answers must not depend on what comes later. */
static fg_status read_rope_freqs(const fg_weights *weights, fg_hparams *hp, fg_error *err)
{
    bool is_long = hp->context_length > hp->rope_scaling.original_context;
    const char *const names[] = { "rope_freqs.weight", is_long ? "rope_factors_long.weight"
                                                               : "rope_factors_short.weight" };
    const fg_tensor *tensor = NULL;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && tensor == NULL; i++) {
        tensor = fg_weights_find(weights, names[i]);
    }
    if (tensor == NULL) {
        const char *other = is_long ? "rope_factors_short.weight" : "rope_factors_long.weight";
        return fg_weights_find(weights, other) == NULL
                   ? FG_OK
                   : fg_fail(err, FG_BAD_INPUT, "tensor '%s' is there, but '%s' is missing", other,
                             names[1]);
    }
    hp->rope_freqs = tensor->data;
    for (uint32_t i = 0; i < hp->rope_dims / 2; i++) {
        if (!(hp->rope_freqs[i] > 0.0f && hp->rope_freqs[i] < 1e30f)) {
            return fg_fail(err, FG_BAD_INPUT, "tensor '%s' holds %g, which divides no angle",
                           tensor->name, (double)hp->rope_freqs[i]);
        }
    }
    return FG_OK;
}

/* Rounding keys to 8 bits adds nothing that could be seen to what rounding weights to so few has done
 * (docs/PERFORMANCE.md), and is quicker. */
static uint32_t suitable_kv_dtype(const fg_weights *weights)
{
    const fg_tensor *keys = fg_weights_find(weights, "blk.0.attn_k.weight");
    uint32_t type = (keys != NULL ? keys : fg_weights_find(weights, "blk.0.attn_qkv.weight"))->type;
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
                      .qk_norm = arch->qk_norm,
                      .fused = arch->fused,
                      .gelu = arch->is_gemma,
                      .post_norms = arch->post_norms,
                      .unturned_period = arch->unturned_period };
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
