/*
 * drafter - asks a small model what a large one will choose next (a second source of guesses beside ngram.h), for many
 * sequences at once. Owned by the thread that runs the large one's steps, after create.
 *
 * Each sequence has a place: the tokens that the draft model has computed for it, and the blocks of a KV arena of its own
 * that they fill. Between two rounds a sequence may have become any other text: what is kept is the part that both begin
 * with, so a guess that was wrong, a sequence that came from elsewhere, and a place that has changed hands are one case.
 *
 *   known tokens   |---- the same as computed ----|-- behind --|
 *   a round        catches up in chunks, as many tokens as the step allows; with no more than FG_DRAFTER_NEAR behind:
 *                  a step over these for all sequences, then one token of each a step
 *
 * What always holds after a round: a place has blocks for what is computed and no more; blocks are taken from places that
 * were not asked for longest, when there are none. A guess is chosen as the item's sampling says, with the noise of its
 * position, so that a draft model that is nearly as good guesses drawn tokens nearly as well as greedy ones.
 */
#ifndef FORGE_COMMON_ENGINE_DRAFTER_H
#define FORGE_COMMON_ENGINE_DRAFTER_H

#include "common/engine/engine.h"
#include "common/kv/pool.h"

typedef struct fg_drafter fg_drafter;

enum {
    FG_DRAFTER_NEAR = 16,   /* tokens behind that are computed along with the first guess */
    FG_DRAFTER_CHUNK = 256, /* tokens of a step that catches up */
};

typedef struct fg_drafter_options {
    uint32_t place_count;
    uint32_t context_max; /* tokens of a sequence, guesses too */
    uint32_t block_size, block_count;
    uint32_t
        vocab_size; /* tokens that both models have: a text with others, or wishes for others, gets no guesses */
    /* Runs a step of the draft model; it has at most FG_DRAFTER_CHUNK tokens, or FG_DRAFTER_NEAR for each place. Returns the
     * ns that it took. */
    uint64_t (*run)(void *ctx, fg_step *step);
    void *ctx;
} fg_drafter_options;

/* FG_BAD_INPUT for sizes of 0, FG_AGAIN when out of memory. */
fg_status fg_drafter_create(const fg_drafter_options *options, fg_drafter **drafter_out,
                            fg_error *err);
void fg_drafter_destroy(fg_drafter *drafter);

/* Answers the asks of a step that has run, all *_out fields of its items being filled. Without blocks or room in the
 * context a sequence gets no guesses. Takes no memory. */
void fg_drafter_round(fg_drafter *drafter, fg_step *step);

/* Counts what all places hold, and compares it with the pool; aborts on a difference (tests). */
void fg_drafter_check(const fg_drafter *drafter, fg_pool_stats *stats_out);

#endif
