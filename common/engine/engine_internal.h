/*
 * engine_internal - what the engine's back ends share.
 */
#ifndef FORGE_COMMON_ENGINE_ENGINE_INTERNAL_H
#define FORGE_COMMON_ENGINE_ENGINE_INTERNAL_H

#include "common/engine/engine.h"

/* What a step is checked against. */
typedef struct fg_engine_bounds {
    fg_engine_limits limits;
    uint32_t vocab_size;
    uint32_t block_size;
    uint32_t block_count;
    uint32_t tier_block_count; /* 0: no tier */
    bool no_twins;             /* operations do not reach other workers' memory */
    bool can_draft;            /* there is a draft model */
} fg_engine_bounds;

/* The items of the step begun last, which those of the next one may follow. A copy of what that step
 * said: the step value itself may be another one by then. */
typedef struct fg_engine_items {
    const fg_step_seq *seqs;
    uint32_t count;
} fg_engine_items;

/* FG_BAD_INPUT, naming what is wrong, when a step breaks the limits, names a token, block or slot that
 * does not exist, wants more choices than it has tokens or nowhere to put them, or follows what is not an
 * item of `before` with one choice. */
fg_status fg_engine_check_step(const fg_engine_bounds *bounds, const fg_engine_items *before,
                               const fg_step *step, fg_error *err);

/* Token `index` of an item; of one that follows, only once the step before has ended. */
static inline uint32_t fg_step_seq_token(const fg_step_seq *seq, uint32_t index)
{
    return seq->follows != NULL ? seq->follows->token_out : seq->tokens[index];
}

/* The block of the other worker that the slot at `position` is written to as well; NULL: none. */
static inline uint8_t *fg_step_seq_twin(const fg_step_seq *seq, const fg_kv_layout *layout,
                                        uint32_t position)
{
    uint32_t block = position / layout->block_size;
    return seq->twin_arena == NULL || block < seq->twin_first
               ? NULL
               : (uint8_t *)seq->twin_arena +
                     seq->twin_ids[block - seq->twin_first] * layout->block_bytes;
}

/* How many of the item's last tokens need a row of logits. */
static inline uint32_t fg_step_seq_head_rows(const fg_step_seq *seq)
{
    bool last = seq->sample || seq->want_digest || seq->logits_out != NULL;
    return seq->sample_rows > 0 ? seq->sample_rows : last;
}

/* Whether the row of the token at `position` says something of the one behind it. */
static inline bool fg_step_seq_is_scored(const fg_step_seq *seq, uint32_t position)
{
    return position - seq->first_position - seq->scores_first < seq->scores_out.count;
}

/* What the row of the token at `position` says. */
static inline void fg_step_seq_score(fg_step_seq *seq, uint32_t position, const float *logits,
                                     uint32_t vocab_size)
{
    fg_score_of(logits, vocab_size, seq->history[position + 1],
                position - seq->first_position - seq->scores_first, &seq->scores_out);
}

#endif
