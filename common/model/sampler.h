/*
 * sampler - one row of logits to one token, a pure function of (row, parameters, choice, position).
 *
 * Greedy at temperature 0: the highest logit, ties to the lowest id. Otherwise the chain temperature
 * -> top-k -> top-p -> min-p leaves a set of tokens, and the answer is the maximum over it of
 * logit/temperature + Gumbel noise, the noise a counter hash of (seed, choice, position, token id),
 * ties to the lowest id. No libm.
 */
#ifndef FORGE_COMMON_MODEL_SAMPLER_H
#define FORGE_COMMON_MODEL_SAMPLER_H

#include <stdint.h>

#include "common/base/status.h"

typedef struct fg_sampling {
    float temperature; /* 0: greedy */
    float top_p;       /* (0, 1]; 1: off */
    float min_p;       /* [0, 1]; 0: off */
    uint32_t top_k;    /* 0: off */
    uint64_t seed;
} fg_sampling;

/* Scratch for one vocabulary; one owner (an engine). */
typedef struct fg_sampler fg_sampler;
fg_sampler *fg_sampler_create(uint32_t vocab_size); /* NULL: out of memory */
void fg_sampler_destroy(fg_sampler *sampler);

/* `position` is the absolute position of the token being chosen. NaN logits count as -inf. */
uint32_t fg_sampler_pick(fg_sampler *sampler, const float *logits, const fg_sampling *sampling,
                         uint32_t choice, uint32_t position);

#endif
