#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/model/folder_internal.h"

/* Layers that a list of config.json may speak of. */
enum { LAYERS_MAX = 1024 };

typedef struct folder_class {
    const char *class_name;
    const char *architecture;
    uint32_t traits;
    const char *act; /* how gates open */
    double epsilon, theta;
    uint32_t head_dim; /* where config.json is silent; 0: the embedding over the heads */
} folder_class;

enum {
    LLAMA_TRAITS = FG_TRAIT_PAIRS | FG_TRAIT_APART | FG_TRAIT_DENSE | FG_TRAIT_PLAIN_NORMS,
    QWEN_TRAITS = FG_TRAIT_APART | FG_TRAIT_PLAIN_NORMS,
    GEMMA_TRAITS = FG_TRAIT_APART | FG_TRAIT_DENSE | FG_TRAIT_NORM_1 | FG_TRAIT_TIED,
};

static const char SILU[] = "silu", GELU[] = "gelu_pytorch_tanh";

static const folder_class classes[] = {
    { "LlamaForCausalLM", "llama", LLAMA_TRAITS, SILU, 1e-6, 1e4, 0 },
    { "MistralForCausalLM", "llama", LLAMA_TRAITS | FG_TRAIT_WINDOWS, SILU, 1e-6, 1e4, 0 },
    { "MixtralForCausalLM", "llama",
      (LLAMA_TRAITS & ~(uint32_t)FG_TRAIT_DENSE) | FG_TRAIT_MIXTRAL | FG_TRAIT_WINDOWS, SILU, 1e-5,
      1e6, 0 },
    { "SmolLM3ForCausalLM", "smollm3", LLAMA_TRAITS | FG_TRAIT_TIED, SILU, 1e-6, 2e6, 0 },
    { "GraniteForCausalLM", "granite", LLAMA_TRAITS, SILU, 1e-6, 1e4, 0 },
    { "Qwen2ForCausalLM", "qwen2", QWEN_TRAITS | FG_TRAIT_DENSE | FG_TRAIT_BIAS, SILU, 1e-6, 1e4,
      0 },
    { "Qwen3ForCausalLM", "qwen3", QWEN_TRAITS | FG_TRAIT_DENSE | FG_TRAIT_QK_NORM, SILU, 1e-6, 1e4,
      128 },
    { "Qwen2MoeForCausalLM", "qwen2moe",
      QWEN_TRAITS | FG_TRAIT_MIXTURE | FG_TRAIT_BIAS | FG_TRAIT_SHARED, SILU, 1e-6, 1e4, 0 },
    { "Qwen3MoeForCausalLM", "qwen3moe", QWEN_TRAITS | FG_TRAIT_MIXTURE | FG_TRAIT_QK_NORM, SILU,
      1e-6, 1e4, 0 },
    { "Phi3ForCausalLM", "phi3",
      FG_TRAIT_FUSED | FG_TRAIT_DENSE | FG_TRAIT_PLAIN_NORMS | FG_TRAIT_WINDOWS | FG_TRAIT_LONGROPE,
      SILU, 1e-5, 1e4, 0 },
    { "GemmaForCausalLM", "gemma", GEMMA_TRAITS | FG_TRAIT_PLAIN_NORMS, GELU, 1e-6, 1e4, 256 },
    { "Gemma3ForCausalLM", "gemma3",
      GEMMA_TRAITS | FG_TRAIT_QK_NORM | FG_TRAIT_POST_NORMS | FG_TRAIT_WINDOWS, GELU, 1e-6, 1e6,
      256 },
};
enum { CLASSES = sizeof classes / sizeof classes[0] };

/* Reading under way. */
typedef struct reading {
    const fg_json_node *root;
    const folder_class *class;
    fg_meta_writer *out;
    fg_folder_config *config;
    uint32_t embedding, context;
    fg_error *err;
} reading;

/* ---- values ---- */

static fg_folder_key key_of(const reading *r, const char *name)
{
    return fg_folder_key_of(r->class->architecture, name);
}

static fg_status read_u32(const reading *r, const char *name, bool required, uint32_t *out)
{
    int64_t value;
    const fg_json_node *node = fg_folder_get(r->root, name);
    if (node == NULL) {
        return required ? fg_fail(r->err, FG_BAD_INPUT, "config.json: '%s' is missing", name)
                        : FG_OK;
    }
    if (!fg_json_integer(node, &value) || value < 0 || value > UINT32_MAX) {
        return fg_fail(r->err, FG_BAD_INPUT, "config.json: '%s' is not a whole number", name);
    }
    *out = (uint32_t)value;
    return FG_OK;
}

static fg_status read_number(const reading *r, const fg_json_node *object, const char *name,
                             double *out)
{
    const fg_json_node *node = fg_folder_get(object, name);
    if (node != NULL && !fg_json_number(node, out)) {
        return fg_fail(r->err, FG_BAD_INPUT, "config.json: '%s' is not a number", name);
    }
    return FG_OK;
}

static bool is_true(const fg_json_node *object, const char *name, bool otherwise)
{
    bool value = otherwise;
    (void)fg_json_bool(fg_folder_get(object, name), &value);
    return value;
}

/* ---- what is refused ---- */

static fg_status refuse_class(const fg_json_node *name, fg_error *err)
{
    char known[384];
    size_t used = 0;
    for (size_t i = 0; i < CLASSES; i++) {
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i == 0 ? "" : ", ",
                                 classes[i].class_name);
        FG_ASSERT(used < sizeof known, "more names than fit");
    }
    size_t length = 0;
    const char *text = fg_json_string(name, &length);
    if (text == NULL) {
        return fg_fail(err, FG_BAD_INPUT, "config.json: 'architectures' is not a list of one name");
    }
    return fg_fail(
        err, FG_BAD_INPUT,
        "config.json: %.*s is not read from a folder (read: %s); a GGUF file of it may be",
        (int)(length < 64 ? length : 64), text, known);
}

static fg_status find_class(reading *r)
{
    const fg_json_node *list = fg_json_get(r->root, "architectures");
    const fg_json_node *name = fg_json_size(list) == 1 ? fg_json_at(list, 0) : NULL;
    for (size_t i = 0; i < CLASSES; i++) {
        if (fg_folder_says(name, classes[i].class_name)) {
            r->class = &classes[i];
            return FG_OK;
        }
    }
    return refuse_class(name, r->err);
}

/* Things that a model may ask for and this forward does not do. */
static fg_status refuse_variants(const reading *r)
{
    const fg_json_node *quantised = fg_folder_get(r->root, "quantization_config");
    if (quantised == NULL) {
        quantised = fg_folder_get(r->root, "compression_config");
    }
    if (quantised != NULL) {
        const char *method = fg_json_string(fg_json_get(quantised, "quant_method"), NULL);
        return fg_fail(r->err, FG_BAD_INPUT,
                       "config.json: weights quantised by %.32s are not read: take the model in "
                       "BF16, or a GGUF file with Q4_K_M or Q8_0 weights",
                       method != NULL ? method : "another program");
    }
    static const char *const names[] = { "hidden_act", "hidden_activation" };
    for (size_t i = 0; i < 2; i++) {
        const fg_json_node *act = fg_folder_get(r->root, names[i]);
        /* Old Gemma files say "gelu" and mean the other; hidden_activation is what counts then. */
        bool known = act == NULL || fg_folder_says(act, r->class->act) ||
                     (i == 0 && r->class->act == GELU && fg_folder_says(act, "gelu"));
        if (!known) {
            return fg_fail(r->err, FG_BAD_INPUT, "config.json: '%s' is not %s, which %s needs here",
                           names[i], r->class->act, r->class->class_name);
        }
    }
    static const char *const others[] = { "use_bidirectional_attention", "is_encoder_decoder",
                                          "add_cross_attention", "use_mup" };
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (is_true(r->root, others[i], false)) {
            return fg_fail(r->err, FG_BAD_INPUT,
                           "config.json: '%s' is true, which is not supported", others[i]);
        }
    }
    return FG_OK;
}

/* Capped logits: the reader of hparams refuses them by these keys. */
static fg_status write_caps(const reading *r)
{
    static const char *const names[] = { "attn_logit_softcapping", "final_logit_softcapping" };
    for (size_t i = 0; i < 2; i++) {
        double cap = 0.0;
        fg_status status = read_number(r, r->root, names[i], &cap);
        if (status != FG_OK) {
            return status;
        }
        if (cap != 0.0) {
            fg_meta_f32(r->out, key_of(r, names[i]).text, (float)cap);
        }
    }
    return FG_OK;
}

/* ---- sizes ---- */

typedef struct size_row {
    const char *name;
    const char *key;
    bool required;
} size_row;

static fg_status write_sizes(reading *r)
{
    static const size_row rows[] = {
        { "num_hidden_layers", "block_count", true },
        { "hidden_size", "embedding_length", true },
        { "intermediate_size", "feed_forward_length", true },
        { "max_position_embeddings", "context_length", true },
        { "num_attention_heads", "attention.head_count", true },
        { "num_key_value_heads", "attention.head_count_kv", false },
        { "head_dim", "attention.key_length", false },
    };
    enum { ROWS = sizeof rows / sizeof rows[0] };
    uint32_t values[ROWS] = { 0 };
    for (size_t i = 0; i < ROWS; i++) {
        fg_status status = read_u32(r, rows[i].name, rows[i].required, &values[i]);
        if (status != FG_OK) {
            return status;
        }
    }
    if (values[0] > LAYERS_MAX || values[4] == 0) {
        return fg_fail(r->err, FG_BAD_INPUT, "config.json: %u layers of %u heads are not supported",
                       values[0], values[4]);
    }
    values[5] = values[5] == 0 ? values[4] : values[5];
    values[6] = values[6] == 0 ? r->class->head_dim : values[6];
    values[6] = values[6] == 0 ? values[1] / values[4] : values[6];
    for (size_t i = 0; i < ROWS; i++) {
        fg_meta_u32(r->out, key_of(r, rows[i].key).text, values[i]);
    }
    fg_meta_u32(r->out, key_of(r, "attention.value_length").text, values[6]);
    r->config->layers = values[0];
    r->config->heads = values[4];
    r->config->kv_heads = values[5];
    r->config->head_dim = values[6];
    r->embedding = values[1];
    r->context = values[3];
    double epsilon = r->class->epsilon;
    fg_status status = read_number(r, r->root, "rms_norm_eps", &epsilon);
    fg_meta_f32(r->out, key_of(r, "attention.layer_norm_rms_epsilon").text, (float)epsilon);
    return status;
}

static fg_status write_scales(const reading *r)
{
    static const size_row rows[] = {
        { "embedding_multiplier", "embedding_scale", false },
        { "residual_multiplier", "residual_scale", false },
        { "attention_multiplier", "attention.scale", false },
        { "logits_scaling", "logit_scale", false },
    };
    bool scales = strcmp(r->class->architecture, "granite") == 0;
    for (size_t i = 0; scales && i < sizeof rows / sizeof rows[0]; i++) {
        double value = 1.0;
        fg_status status = read_number(r, r->root, rows[i].name, &value);
        if (status != FG_OK) {
            return status;
        }
        fg_meta_f32(r->out, key_of(r, rows[i].key).text, (float)value);
    }
    double scalar = r->config->head_dim;
    fg_status status = read_number(r, r->root, "query_pre_attn_scalar", &scalar);
    /* Files of GGUF do not carry it: what this forward divides by follows from the sizes. */
    double wanted =
        r->config->layers == 62 ? (double)r->embedding / r->config->heads : r->config->head_dim;
    if (status == FG_OK && strcmp(r->class->architecture, "gemma3") == 0 && scalar != wanted) {
        return fg_fail(r->err, FG_BAD_INPUT,
                       "config.json: 'query_pre_attn_scalar' is %g (only %g is supported)", scalar,
                       wanted);
    }
    return status;
}

/* ---- experts ---- */

static fg_status write_experts(reading *r)
{
    bool mixtral = (r->class->traits & FG_TRAIT_MIXTRAL) != 0;
    if ((r->class->traits & (FG_TRAIT_MIXTURE | FG_TRAIT_MIXTRAL)) == 0) {
        return FG_OK;
    }
    uint32_t used = 0, ffn = 0, shared = 0, step = 1;
    fg_status status =
        read_u32(r, mixtral ? "num_local_experts" : "num_experts", true, &r->config->experts);
    if (status == FG_OK) {
        status = read_u32(r, "num_experts_per_tok", true, &used);
    }
    if (status == FG_OK && !mixtral) {
        status = read_u32(r, "moe_intermediate_size", true, &ffn);
    }
    if (status == FG_OK && (r->class->traits & FG_TRAIT_SHARED) != 0) {
        status = read_u32(r, "shared_expert_intermediate_size", true, &shared);
    }
    if (status == FG_OK) {
        status = read_u32(r, "decoder_sparse_step", false, &step);
    }
    if (status != FG_OK) {
        return status;
    }
    if (r->config->experts == 0) {
        return fg_fail(r->err, FG_BAD_INPUT, "config.json: %s without experts is not supported",
                       r->class->class_name);
    }
    if (step != 1 || fg_json_size(fg_folder_get(r->root, "mlp_only_layers")) > 0) {
        return fg_fail(
            r->err, FG_BAD_INPUT,
            "config.json: layers without experts among such with them are not supported");
    }
    fg_meta_u32(r->out, key_of(r, "expert_count").text, r->config->experts);
    fg_meta_u32(r->out, key_of(r, "expert_used_count").text, used);
    if (!mixtral) {
        fg_meta_u32(r->out, key_of(r, "expert_feed_forward_length").text, ffn);
        fg_meta_bool(r->out, key_of(r, "expert_weights_norm").text,
                     is_true(r->root, "norm_topk_prob", false));
    }
    if (shared > 0) {
        fg_meta_u32(r->out, key_of(r, "expert_shared_feed_forward_length").text, shared);
    }
    return FG_OK;
}

/* ---- what layers see ---- */

/* The period in which `list` names layers as `special`: every so-many-th one alone, counted from 1. 0: none is. UINT32_MAX: it
 * is no list of a name for each layer, or has no period. */
static uint32_t period_of(const fg_json_node *list, uint32_t layers, const char *special,
                          const char *other)
{
    uint32_t period = 0;
    if (fg_json_size(list) != layers) {
        return UINT32_MAX;
    }
    for (uint32_t i = 0; i < layers; i++) {
        int64_t number = -1;
        const fg_json_node *item = fg_json_at(list, i);
        bool is_special =
            fg_json_integer(item, &number) ? number == 0 : fg_folder_says(item, special);
        bool is_other = number >= 0 ? number == 1 : fg_folder_says(item, other);
        if (is_special && period == 0) {
            period = i + 1;
        }
        if ((!is_special && !is_other) || is_special != (period > 0 && (i + 1) % period == 0)) {
            return UINT32_MAX;
        }
    }
    return period;
}

static fg_status refuse_layers(const reading *r, const char *name)
{
    return fg_fail(r->err, FG_BAD_INPUT,
                   "config.json: '%s' has an order of layers that is not supported", name);
}

/* Gemma 3: all layers but every sixth have a window. */
static fg_status write_gemma_windows(const reading *r, uint32_t window)
{
    uint32_t period = 6;
    const char *name =
        fg_folder_get(r->root, "layer_types") != NULL ? "layer_types" : "sliding_window_pattern";
    fg_status status = read_u32(r, "sliding_window_pattern", false, &period);
    if (status == FG_OK && fg_folder_get(r->root, "layer_types") != NULL) {
        period = period_of(fg_folder_get(r->root, name), r->config->layers, "full_attention",
                           "sliding_attention");
        /* A model that ends before the first layer that sees all. */
        period = period == 0 && r->config->layers < 6 ? 6 : period;
    }
    if (status == FG_OK && (period == 0 || period == UINT32_MAX)) {
        return refuse_layers(r, name);
    }
    fg_meta_u32(r->out, key_of(r, "attention.sliding_window").text, window);
    if (period != 6) {
        fg_meta_u32(r->out, key_of(r, "attention.sliding_window_pattern").text, period);
    }
    return status;
}

static fg_status write_windows(const reading *r)
{
    uint32_t window = 0, interval = 4;
    bool is_gemma3 = (r->class->traits & FG_TRAIT_POST_NORMS) != 0;
    bool is_smollm3 = strcmp(r->class->architecture, "smollm3") == 0;
    fg_status status = read_u32(r, "sliding_window", is_gemma3, &window);
    if (status == FG_OK && is_smollm3) {
        const fg_json_node *list = fg_folder_get(r->root, "no_rope_layers");
        status = read_u32(r, "no_rope_layer_interval", false, &interval);
        uint32_t period = list == NULL ? interval : period_of(list, r->config->layers, "", "");
        bool fits = period == 4 || (period == 0 && r->config->layers < 4);
        status = status != FG_OK ? status : fits ? FG_OK : refuse_layers(r, "no_rope_layers");
    }
    if (status != FG_OK || is_gemma3) {
        return status != FG_OK ? status : write_gemma_windows(r, window);
    }
    const fg_json_node *types = fg_folder_get(r->root, "layer_types");
    bool windowed = (r->class->traits & FG_TRAIT_WINDOWS) != 0
                        ? window > 0
                        : window > 0 && is_true(r->root, "use_sliding_window", false);
    for (size_t i = 0; i < fg_json_size(types); i++) {
        if (!fg_folder_says(fg_json_at(types, i),
                            windowed ? "sliding_attention" : "full_attention")) {
            return refuse_layers(r, "layer_types");
        }
    }
    /* One that is shorter than the context is refused by who reads hparams, where it is not supported. */
    if (windowed) {
        fg_meta_u32(r->out, key_of(r, "attention.sliding_window").text, window);
    }
    return FG_OK;
}

/* ---- positions ---- */

static fg_status read_rope(reading *r)
{
    fg_folder_rope rope = { .root = r->root,
                            .architecture = r->class->architecture,
                            .traits = r->class->traits,
                            .theta = r->class->theta,
                            .context = r->context };
    return fg_folder_write_rope(&rope, r->config, r->out, r->err);
}

fg_status fg_folder_read_config(const fg_json_node *root, fg_meta_writer *out,
                                fg_folder_config *config_out, fg_error *err)
{
    *config_out = (fg_folder_config){ 0 };
    reading r = { .root = root, .out = out, .config = config_out, .err = err };
    fg_status status = find_class(&r);
    if (status != FG_OK) {
        return status;
    }
    config_out->architecture = r.class->architecture;
    config_out->class_name = r.class->class_name;
    config_out->traits = r.class->traits;
    config_out->tied = is_true(root, "tie_word_embeddings", (r.class->traits & FG_TRAIT_TIED) != 0);
    fg_meta_string(out, "general.architecture", r.class->architecture,
                   strlen(r.class->architecture));
    status = refuse_variants(&r);
    status = status != FG_OK ? status : write_sizes(&r);
    status = status != FG_OK ? status : write_caps(&r);
    status = status != FG_OK ? status : write_scales(&r);
    status = status != FG_OK ? status : write_experts(&r);
    status = status != FG_OK ? status : write_windows(&r);
    return status != FG_OK ? status : read_rope(&r);
}

void fg_folder_config_deinit(fg_folder_config *config)
{
    fg_mem_free(config->rope_freqs);
    fg_mem_free(config->rope_long);
    fg_mem_free(config->rope_short);
    *config = (fg_folder_config){ 0 };
}
