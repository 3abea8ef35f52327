/*
 * shape - what a request wants changed in a row of logits before a token is chosen from it, and what it wants to know of
 * the row. A pure function of (row, wishes, tokens so far), so no state travels with a sequence, and drafted rows, second
 * tries and batches cannot show.
 *
 *   bias        logit + bias
 *   min_tokens  end tokens are out until so many tokens were generated
 *   repetition  of each token of prompt or answer: logit / penalty, or * penalty where the logit is below 0
 *   frequency   logit - penalty * how often the answer has it
 *   presence    logit - penalty where the answer has it
 *   allowed     all tokens that a mask does not name are out
 *
 * In this order, each step one float operation; "out" is minus infinity.
 */
#ifndef FORGE_COMMON_MODEL_SHAPE_H
#define FORGE_COMMON_MODEL_SHAPE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/logits.h"

/* The wishes. All zero: none. */
typedef struct fg_shape {
    const fg_bias *biases; /* ids below the vocabulary's size; of a doubled one each counts */
    uint32_t bias_count;
    float repetition; /* 0 and 1: off */
    float frequency, presence;
    uint32_t min_tokens;
    const uint32_t *ends; /* the end tokens */
    uint32_t end_count;
} fg_shape;

/* The tokens up to the one that the row belongs to, in two pieces. */
typedef struct fg_history {
    const uint32_t *tokens;
    uint32_t count;
    const uint32_t *more;
    uint32_t more_count;
    uint32_t prompt_count; /* of all of them, the first ones */
} fg_history;

/* Scratch for one vocabulary; one owner (a thread of an engine). */
typedef struct fg_shaper fg_shaper;
fg_shaper *fg_shaper_create(uint32_t vocab_size); /* NULL: out of memory */
void fg_shaper_destroy(fg_shaper *shaper);

/* The row as it is to be chosen from; valid until the next call. `allowed`: NULL, or a bit for each token. */
const float *fg_shaper_apply(fg_shaper *shaper, const float *logits, const fg_shape *shape,
                             const fg_history *history, const uint64_t *allowed);

/* Natural logarithms of probabilities at temperature 1 over the row as the model gave it, of `chosen` and of the `count`
 * likeliest tokens. Sums in a fixed order; no libm. */
void fg_logprobs_of(const float *logits, uint32_t vocab_size, uint32_t chosen, uint32_t count,
                    fg_logprobs *out);
/* The same of a token that was given, as number `at` of `scores`. */
void fg_score_of(const float *logits, uint32_t vocab_size, uint32_t token, uint32_t at,
                 const fg_scores *scores);

#endif
