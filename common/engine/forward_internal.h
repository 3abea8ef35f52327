/*
 * forward_internal - what the parts of a forward pass share: forward.c runs it, forward_load.c brings its
 * weights, forward_experts.c computes layers that mix experts, forward_ranks.c is what several ranks tell each other.
 */
#ifndef FORGE_COMMON_ENGINE_FORWARD_INTERNAL_H
#define FORGE_COMMON_ENGINE_FORWARD_INTERNAL_H

#include "common/engine/forward.h"
#include "common/engine/head.h"
#include "common/engine/kv_memory.h"
#include "common/engine/tp.h"
#include "common/engine/weight_store.h"
#include "kernels/ops.h"

typedef struct layer_weights {
    const float *attn_norm;
    const float *ffn_norm;
    const float *attn_post_norm, *ffn_post_norm; /* NULL: what is added is not normalised */
    const float *q_bias, *k_bias, *v_bias;       /* NULL: the architecture has none */
    const float *q_norm, *k_norm;                /* of each head, the same */
    fg_panels q, k, v, output;
    fg_panels gate, up, down; /* of experts, of all of them */
    fg_panels router;
    fg_panels shared_gate, shared_up, shared_down, shared_router; /* of the expert for all rows */
} layer_weights;

/* How far positions turn: in most layers, and in those with a window where these have turns of their own. */
enum { TURNS_ALL, TURNS_WINDOW, TURN_KINDS };
/* What mixtures of experts need beside: forward_experts.c. */
typedef struct fg_forward_experts {
    void *memory; /* NULL: the model has none */
    size_t memory_bytes;
    /* Per row of a tile. */
    float *logits; /* [expert_count] */
    fg_expert_slots slots;
    fg_activations room; /* per slot */
} fg_forward_experts;

/* What a rank has of the outputs of matrices; of one rank, all. */
typedef struct rank_parts {
    fg_tp_part kv_heads;
    fg_tp_part heads; /* that read these */
    fg_tp_part q, kv; /* columns of them */
    uint32_t q_unit;  /* columns of a KV head's queries */
    fg_tp_part embedding, ffn, vocab;
} rank_parts;

/* Scratch that the host reads or writes, and the rest. On a device with the host's memory all is of the first kind. */
enum { SCRATCH_SHARED, SCRATCH_DEVICE, SCRATCH_KINDS };

/* Where the rows of a step in flight lie. */
typedef struct fg_step_place {
    uint32_t *tokens;
    uint32_t *positions;
    fg_kv_row *kv_rows;
    fg_head head;
} fg_step_place;

/* A step whose operations the device has been given and that was not waited for. */
typedef struct fg_step_run {
    fg_step *step; /* NULL: none */
    fg_step_place *place;
    uint32_t rows, head_count;
    fg_head_part part;
    fg_device_event end;
} fg_step_run;

struct fg_forward {
    fg_hparams hparams;
    fg_kv_layout layout;
    uint32_t kv_first; /* of this rank's KV heads in the arena, */
    fg_kv_memory kv;   /* whose layout is kv.own */
    fg_engine_limits limits;
    fg_device *device;
    bool is_host; /* operations use the host's memory */
    fg_device_stream *stream;
    double *frequencies; /* [TURN_KINDS][rope_dims / 2] */
    fg_rope_turns turns[TURN_KINDS];
    fg_tp *tp;         /* NULL: the only rank */
    bool has_pinned;   /* what the ranks share */
    bool ranks_replay; /* rank 0's: operations between two meetings of the host may be replayed */
    rank_parts parts;

    fg_matrix embedding;
    fg_panels head_weight;
    fg_weight_store *store;         /* every product's panels; NULL: the device has them */
    fg_weight_report device_report; /* what became of them there */
    const float *output_norm;
    float *scaled_norm; /* on the host, where logits are scaled: it makes them so; else NULL */
    layer_weights *layers;

    void *scratch[SCRATCH_KINDS];
    size_t scratch_bytes[SCRATCH_KINDS];
    uint32_t tile_rows; /* that should pass a layer together */
    uint32_t tile_rows_max;
    /* Of some tiles, whose attention is one operation (fg_forward_is_alone). */
    uint32_t attend_rows_max;
    uint32_t replay_rows; /* most of a step that is started again (can_replay) */
    /* Any step lies in the first place. The second one is for a step that begins while the one in the first is in
     * flight, and the other way round: only where steps are started again (can_replay). */
    bool goes_ahead; /* steps may be begun behind one in flight: there are two places */
    fg_step_place places[2];
    fg_step_place *place;  /* of the step that operations are given for */
    fg_step_run run, next; /* in flight, and the one begun behind it */
    fg_forward_ahead ahead;
    /* Per row of a step. */
    float *rope_tables[TURN_KINDS]; /* the second only where the model has such layers */
    float *residual;
    /* Per row of a tile; of attended the values, and q, for attend_rows_max. */
    fg_activations normed;   /* columns: embedding_length */
    fg_activations attended; /* columns: head_count * head_dim */
    fg_activations hidden;   /* columns: ffn_length; of experts, per slot */
    fg_forward_experts experts;
    float *q, *k, *v;
    fg_activations added; /* only where it is normalised before it is added: values alone */
    /* This rank's columns of attended and hidden, values alone, and on devices of the residual; NULL of the only rank. Rows are
     * dense, with room for as many columns as the widest rank has. */
    fg_activations own_attended, own_hidden;
    float *own_residual;
};

/* FG_BAD_INPUT: the model mixes experts in a way, or the device is one, that this is not made for. */
fg_status fg_forward_experts_check(const fg_forward *forward, fg_error *err);
/* Takes their scratch, once weights and all other scratch are there; nothing where the model has no experts. */
fg_status fg_forward_experts_open(fg_forward *forward, fg_error *err);
void fg_forward_experts_close(fg_forward *forward);
/* In place of a layer's feed-forward. */
void fg_forward_mix(fg_forward *forward, uint32_t index, float *residual, uint32_t rows);

/* What is written between operations: forward_scratch.c. */

/* Rows that a step's buffers have: a device with memory of its own may be given rows that pad a step. */
uint32_t fg_forward_step_rows(const fg_engine_limits *limits);
/* Nobody else sees rows: other ranks see those of one tile, and a device has them and what says where they lie in copies
 * of its own. */
static inline bool fg_forward_is_alone(const fg_forward *forward)
{
    return forward->is_host && forward->tp == NULL;
}
/* The smallest step that is replayed which has room for so many rows, at most replay_rows. */
uint32_t fg_forward_replay_size(uint32_t rows);
fg_status fg_forward_take_scratch(fg_forward *forward, fg_error *err);
void fg_forward_give_scratch(fg_forward *forward);

/* A product that is added to the residual: this rank's columns of it. */
fg_linear fg_forward_add_to(const fg_forward *forward, const fg_panels *weight, float *residual);

/* What is between ranks: forward_ranks.c. */

/* Where all ranks meet with what each has of attention's rows, of the hidden ones and of what is added; NULL: there is one
 * rank. */
float *fg_forward_common_attended(const fg_forward *forward);
float *fg_forward_common_hidden(const fg_forward *forward);
float *fg_forward_common_added(const fg_forward *forward);
/* This rank's columns of the residual where they lie apart, ready to be sent; NULL: they lie in it. */
float *fg_forward_own_residual(const fg_forward *forward, const float *residual);
/* Those that embedding has made. */
void fg_forward_take_own_residual(const fg_forward *forward, uint32_t rows);
/* Everybody's columns of rows, where there are other ranks; they are cut in units of `unit`. */
void fg_forward_gather(fg_forward *forward, const fg_activations *all, float *common,
                       fg_tp_part part, uint32_t unit, const float *own, uint32_t rows);
void fg_forward_gather_residual(fg_forward *forward, float *residual, uint32_t rows);
/* Tells the other ranks what their rows are, and has them begin; `padded` as in fg_tp_step. */
void fg_forward_begin_ranks(fg_forward *forward, fg_step *step, uint32_t rows, uint32_t padded,
                            uint32_t head_count);
/* A step's digests, when its operations have ended. */
void fg_forward_digest(fg_forward *forward, fg_step *step);

/* All weights that this rank needs, packed or found packed. */
fg_status fg_forward_load(fg_forward *forward, const fg_engine_options *options, fg_error *err);

#endif
