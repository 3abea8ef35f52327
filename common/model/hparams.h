/*
 * hparams - one row of numbers that configures the generic forward for a model. Pure values.
 */
#ifndef FORGE_COMMON_MODEL_HPARAMS_H
#define FORGE_COMMON_MODEL_HPARAMS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/model/weights.h"

/* More than published models have; kernels/ops.h says the same. */
enum { FG_HPARAMS_EXPERTS_MAX = 1024, FG_HPARAMS_EXPERTS_USED_MAX = 32 };

/* A context that is longer than the one that a model was first trained for: what turns slower, and by how much longer
 * rotated vectors become. */
typedef struct fg_rope_scaling {
    float factor; /* 1: none */
    bool yarn;
    float beta_fast, beta_slow; /* of YaRN */
    uint32_t original_context;
    float magnitude; /* YaRN's own comes on top of it */
} fg_rope_scaling;

typedef struct fg_hparams {
    char architecture[32];
    char name[96];
    uint32_t layer_count;
    uint32_t embedding_length;
    uint32_t pooling; /* fg_pooling: how a text's embedding comes from its tokens' states */
    uint32_t head_count;
    uint32_t kv_head_count;
    uint32_t head_dim;
    uint32_t ffn_length; /* of an expert, where there are experts */
    uint32_t vocab_size;
    uint32_t context_length; /* tokens the model was trained for */
    uint32_t rope_dims;      /* leading dims of a head that are rotated */
    bool rope_interleaved;   /* pairs (2i, 2i+1), GGUF's `llama`; false: halves */
    bool qkv_bias;           /* `qwen2`: added to q, k and v */
    bool qk_norm;            /* `qwen3`: each head of q and k is normalised before it is rotated */
    bool fused;              /* `phi3`: q, k and v are rows of one tensor, gate and up of another */
    bool gelu;               /* `gemma`: how gates open */
    bool post_norms; /* `gemma3`: what a layer's halves make is normalised before it is added */
    /* Slots that a layer's rows see, their own included; 0: all. Every `window_period`th layer sees all; 0: none does. */
    uint32_t window, window_period;
    uint32_t unturned_period; /* every so many layers one has no positions; 0: none */
    float rope_theta;
    float window_theta; /* of layers with a window, which stretch nothing; 0: as everywhere */
    fg_rope_scaling rope_scaling;
    float norm_epsilon;
    /* `granite` and `gemma`; elsewhere 1, 1 / sqrt(head_dim), 1. Where what a layer adds is scaled, the stream that it is added to is kept
     * divided by that scale: embedding_scale and norm_epsilon are that stream's. */
    float embedding_scale, attention_scale, logit_scale;
    /* Mixtures of experts; 0: each row passes the one feed-forward. */
    uint32_t expert_count, expert_used_count;
    /* Those of a row's experts add up to 1, before they are scaled. */
    bool expert_weights_normalised;
    float expert_weights_scale;
    uint32_t shared_ffn_length; /* of an expert that all rows pass as well; 0: there is none */
    bool shared_gate;           /* `qwen2moe`: how much of it a row takes is a sigmoid of its own */
    bool tied_output;           /* no output.weight: the embedding is the head */
    const float *rope_freqs;    /* rope_dims/2 divisors inside the mapping, or NULL */
    uint32_t kv_dtype; /* as precise as the weights that keys come from: FG_F16 or FG_BF16 */
} fg_hparams;

/* As GGUF numbers them. */
typedef enum fg_pooling {
    FG_POOLING_NONE = 0, /* the file does not say */
    FG_POOLING_MEAN,
    FG_POOLING_CLS,
    FG_POOLING_LAST,
    FG_POOLING_RANK, /* no embeddings: a text's score */
} fg_pooling;

/* What a layer's rows see, as `window` says. */
static inline uint32_t fg_hparams_window(const fg_hparams *hparams, uint32_t layer)
{
    uint32_t period = hparams->window_period;
    return period > 0 && (layer + 1) % period == 0 ? 0 : hparams->window;
}

/* Layers with a window have turns of their own. */
static inline bool fg_hparams_has_window_turns(const fg_hparams *hparams)
{
    return hparams->window_theta > 0.0f;
}

/* Whether a layer's rows have positions. */
static inline bool fg_hparams_is_turned(const fg_hparams *hparams, uint32_t layer)
{
    uint32_t period = hparams->unturned_period;
    return period == 0 || (layer + 1) % period != 0;
}

/* So many rows of ffn_length hold what a row becomes within its feed-forward. */
uint32_t fg_hparams_hidden_rows(const fg_hparams *hparams);

/* Reads and checks the metadata and every tensor's presence, type and shape for the architecture.
 * FG_BAD_INPUT names the key or tensor that does not fit. */
fg_status fg_hparams_read(const fg_weights *weights, fg_hparams *hparams_out, fg_error *err);

#endif
