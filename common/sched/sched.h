/*
 * sched - what the next step of a worker computes. Pure: a snapshot goes in, a plan comes out; no
 * clock, no I/O, no allocation.
 *
 * Iteration-level continuous batching: every sequence that decodes gets one token per step, first;
 * what is left of the token budget goes to prompt chunks, half-prefilled sequences before fresh ones.
 * Waiting sequences are admitted first come, first served; the first that does not fit stops the line.
 */
#ifndef FORGE_COMMON_SCHED_SCHED_H
#define FORGE_COMMON_SCHED_SCHED_H

#include <stdbool.h>
#include <stdint.h>

typedef struct fg_sched_limits {
    uint32_t step_tokens_max;  /* --max-batch-tokens */
    uint32_t chunk_tokens_max; /* --prefill-chunk-size */
    uint32_t seqs_max;         /* --max-seqs */
} fg_sched_limits;

/* One admitted sequence, in order of admission. */
typedef struct fg_sched_seq {
    uint32_t
        prompt_left; /* prompt tokens whose KV is not computed; 0: decoding, one token a step */
} fg_sched_seq;

typedef struct fg_plan_item {
    uint32_t seq; /* index into the snapshot's sequences */
    uint32_t token_count;
    bool sample; /* the step ends at the sequence's last token */
} fg_plan_item;

/* How many waiting sequences enter now, in their order. `needs[i]` is the blocks that the i-th must be
 * promised; `free_blocks` what can be promised. */
uint32_t fg_sched_admit(const fg_sched_limits *limits, uint32_t running_count, uint32_t free_blocks,
                        const uint32_t *needs, uint32_t waiting_count);

/* Plans one step over the admitted sequences; returns the number of items (at most seq_count).
 * Nothing to do: 0. */
uint32_t fg_sched_plan(const fg_sched_limits *limits, const fg_sched_seq *seqs, uint32_t seq_count,
                       fg_plan_item *items_out);

#endif
