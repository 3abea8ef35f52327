/*
 * ngram - drafts tokens by looking them up: what followed, earlier in the same sequence, the tokens that
 * it ends with now. Costs no forward pass, and is good where an answer copies its prompt or repeats
 * itself. Pure, no memory.
 */
#ifndef FORGE_COMMON_SPEC_NGRAM_H
#define FORGE_COMMON_SPEC_NGRAM_H

#include <stdint.h>

enum { FG_NGRAM_MAX = 16 };

/* Runs of at least `min` tokens (1 or more) and at most `max` (0 .. FG_NGRAM_MAX) count. */
typedef struct fg_ngram_runs {
    uint32_t min, max;
} fg_ngram_runs;

/* Looks for the longest run that the sequence ends with and that it holds before too, the latest of
 * equals, and writes `draft_max` tokens as they followed there. Where the sequence ends before that many
 * followed, what followed repeats (the run and the end overlap, or nearly). Returns the number written:
 * draft_max, or 0 when there is no such run. O(token_count). `draft_out` may lie right behind the tokens;
 * `run_out`, NULL or not, gets the length of the run, 0 when there is none. */
uint32_t fg_ngram_draft(const uint32_t *tokens, uint32_t token_count, fg_ngram_runs runs,
                        uint32_t draft_max, uint32_t *draft_out, uint32_t *run_out);

#endif
