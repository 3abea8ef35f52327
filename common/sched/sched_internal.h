/*
 * sched_internal - a plan in the making, shared by the files of this room.
 */
#ifndef FORGE_COMMON_SCHED_SCHED_INTERNAL_H
#define FORGE_COMMON_SCHED_SCHED_INTERNAL_H

#include <stddef.h>

#include "common/sched/sched.h"

/* What becomes of a running sequence when blocks are short. */
enum { FG_DRAFT_RUNS = 0, FG_DRAFT_VICTIM, FG_DRAFT_STANDS };

typedef struct fg_draft {
    const fg_sched_input *in;
    fg_sched_plan *plan;
    uint32_t available; /* blocks that nobody of this plan has yet */
    uint32_t soon;      /* decoding ones that will ask for a block in the step after this one */
    /* Per running sequence, when blocks are short; NULL: all run. It lies in the plan's `admits`, which
     * are not needed then, for nobody is admitted in such a step. */
    uint32_t *marks;
    uint32_t tokens_left; /* of the step's budget */
    bool timed;           /* chunks are cut to the step target */
    uint64_t time_ns;     /* what the step may take; known with its first chunk */
    bool chunks_full;     /* no more chunks: their time is used up */
    bool chunked;         /* the first chunk is there */
    fg_cost_step cost;    /* of the items so far */
} fg_draft;

static inline bool fg_draft_can_run(const fg_sched_seq *seq)
{
    return !seq->stopped && seq->tokens_left > 0;
}

/* Slots that the sequence may fill without asking. */
static inline uint64_t fg_draft_room(const fg_sched_limits *limits, const fg_sched_seq *seq)
{
    return ((uint64_t)seq->blocks + seq->promised) * limits->block_size;
}

/* Whether it needs a block that it was not promised: its next token finds no slot (a block has many
 * slots, so this is rarer than a step). */
static inline bool fg_draft_asks(const fg_sched_limits *limits, const fg_sched_seq *seq)
{
    return fg_draft_can_run(seq) && seq->decoding &&
           seq->slots_used + 1ull > fg_draft_room(limits, seq);
}

/* sched_room.c: chooses victims, and who stands still, so that the `asked` blocks that decoding ones need
 * are no more than there are. Called only when they are more. */
void fg_draft_make_room(fg_draft *draft, uint32_t asked);

#endif
