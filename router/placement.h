/*
 * placement - where a request goes. Pure: a snapshot of the workers goes in, a choice comes out.
 *
 * Among the prefill workers the one with the fewest prompt tokens ahead; among the decode workers that
 * have room the one with the fewest live sequences; equals take turns. Split when two different workers
 * are chosen; one worker for both when it has both roles and no pair of others is there.
 *
 * Workers are over-committed on purpose: blocks for the answer are the worker's own affair, which lets
 * its sequences share and preempt. So a decode worker has room when the prompt fits beside the prompts
 * that were placed there, with one block to begin the answer in, and says "busy" when that was too
 * much. A worker that does both keeps a waiting line of its own, as long as its batch, and its blocks
 * are not counted at all. What can never fit is judged by prompt and longest answer, as ever.
 */
#ifndef FORGE_ROUTER_PLACEMENT_H
#define FORGE_ROUTER_PLACEMENT_H

#include <stdbool.h>
#include <stdint.h>

/* A worker that does both has its batch and as many again in its own waiting line. */
enum { FG_PLACE_LINE = 2 };

typedef struct fg_place_worker {
    uint32_t roles; /* FG_ROLE_*; 0: place nothing here */
    uint32_t block_count, block_size, context_max, max_seqs;
    uint32_t prefills, decodes; /* placed there and not ended */
    uint64_t prefill_tokens;
    uint64_t placed;      /* requests ever placed there: equals take turns */
    uint32_t blocks_used; /* of placed requests' prompts, or in quarantine */
    bool full;            /* it said so: nothing is placed there */
} fg_place_worker;

typedef struct fg_place_request {
    uint32_t prompt_tokens;
    uint32_t total_tokens; /* prompt and the longest answer */
} fg_place_request;

typedef enum fg_place_verdict {
    FG_PLACE_OK,
    FG_PLACE_WAIT,   /* no room now */
    FG_PLACE_NEVER,  /* no worker could ever hold it */
    FG_PLACE_NOBODY, /* a phase has no worker */
} fg_place_verdict;

typedef struct fg_place_choice {
    uint32_t prefill, decode; /* indices into the snapshot; equal: one worker for both */
} fg_place_choice;

fg_place_verdict fg_place_pick(const fg_place_worker *workers, uint32_t count,
                               const fg_place_request *request, fg_place_choice *choice_out);

#endif
