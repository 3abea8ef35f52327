/*
 * residual - the other way to judge a draft, a declared mode of its own: rejection sampling. Where
 * verdict.h keeps a drafted token only if the target's seeded choice is that very token, here it stays
 * with probability min(1, p / q), p and q what target and draft give it, and a rejected one is replaced
 * by a draw from max(0, p - q), normalised. Tokens are distributed exactly as the target's (a draw from p
 * itself would lean towards the draft), and more drafted ones stay; but the text is not that of plain
 * decoding with the same seed.
 *
 * All draws are counter hashes of (seed, choice, position, purpose): the same request gives the same
 * tokens again, as long as its rounds are of the same lengths. A draw that a rejection made void is made
 * again in the next round, for the same position; since nothing of it was seen, nothing leans.
 *
 * Rows of p and q are vocab_size probabilities that sum to 1 (nearly: the rows are not changed). Pure.
 */
#ifndef FORGE_COMMON_SPEC_RESIDUAL_H
#define FORGE_COMMON_SPEC_RESIDUAL_H

#include <stdbool.h>
#include <stdint.h>

#include "common/spec/verdict.h"

/* Whose randomness, and for which token. */
typedef struct fg_residual_key {
    uint64_t seed;
    uint32_t choice;
    uint32_t position; /* absolute, of the token being decided */
} fg_residual_key;

/* A token drawn from q: what a draft that samples must use, or other noise that is independent of the
 * draws below (the sampler's is). Never one of probability 0, unless all are; then 0. */
uint32_t fg_residual_draft(const float *q, uint32_t vocab_size, const fg_residual_key *key);

/* Whether a drafted token stays. p = 0 never does, whatever q is: a token that the target excludes
 * cannot come in through the draft. With p > 0, q = 0 stays: the limit of p / q. */
bool fg_residual_accepts(float p, float q, const fg_residual_key *key);

/* What replaces a rejected token. `q` NULL: the draft had been sure of `drafted`. Where p - q leaves
 * nothing (q is p, and the token came from elsewhere), a draw from p. */
uint32_t fg_residual_resample(const float *p, const float *q, uint32_t drafted, uint32_t vocab_size,
                              const fg_residual_key *key);

/* A round: k drafted tokens and the rows of the one forward over them. */
typedef struct fg_residual_round {
    const uint32_t *draft;
    uint32_t draft_count;
    const float *p; /* [draft_count + 1][vocab_size] */
    const float
        *q; /* [draft_count][vocab_size]; NULL: a draft without probabilities (ngram.h), each
                     * token of which counts as certain */
    uint32_t vocab_size;
    fg_residual_key key; /* of the first drafted token */
} fg_residual_round;

/* Fills the first `emitted` of tokens_out (room for draft_count + 1): the accepted ones, then the
 * replacement of the rejected one or, when all stay, a draw from the last row. */
fg_verdict fg_residual_verdict(const fg_residual_round *round, const fg_ends *ends,
                               uint32_t *tokens_out);

#endif
