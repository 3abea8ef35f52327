/*
 * sched - what the next step of a worker does: who is preempted, who is admitted, how many tokens of
 * whom are computed. Pure: a snapshot goes in, a plan comes out; no clock, no I/O, no allocation.
 *
 * Iteration-level continuous batching over two levels, waiting and running. One plan is made in this
 * order, so that nobody is admitted and preempted in one step:
 *   1. Slots for every running sequence that decodes are reserved. When blocks are short, victims are
 *      preempted, by policy, until the rest fits; with nobody left to preempt, sequences stand still for
 *      this step (blocks will come back from others), and the last one of all ends at capacity.
 *   2. Waiting ones are admitted, in their order, while they fit beside that (none in a step that had to
 *      preempt); the first that does not fit stops the line, unless skip_max lets some pass.
 *   3. The token budget is given out: decoding ones first, one token each and what was guessed to follow
 *      it, then prompt chunks, half-prefilled ones before fresh ones (or, prefill-first, chunks before
 *      decoding ones). Guesses never take a block that anybody else wants in this step.
 *
 * Equal snapshots give equal plans: everything is an array with an order, nothing is a set.
 */
#ifndef FORGE_COMMON_SCHED_SCHED_H
#define FORGE_COMMON_SCHED_SCHED_H

#include <stdbool.h>
#include <stdint.h>

#include "common/sched/cost.h"
#include "common/spec/lookahead.h"
#include "common/spec/odds.h"

typedef enum fg_sched_order { FG_DECODE_FIRST = 0, FG_PREFILL_FIRST } fg_sched_order;
typedef enum fg_sched_victim {
    FG_VICTIM_FEWEST_OUTPUT = 0, /* fewest generated tokens; ties: the later arrival */
    FG_VICTIM_LAST_ADMITTED,     /* the last in the snapshot */
    FG_VICTIM_CHEAPEST,          /* least to compute again; ties: the later arrival */
} fg_sched_victim;
typedef enum fg_sched_preemption {
    FG_PREEMPT_RECOMPUTE = 0,
    FG_PREEMPT_SWAP, /* recompute where the tier has no room */
    FG_PREEMPT_AUTO, /* per victim, what the cost model says is cheaper */
} fg_sched_preemption;
typedef enum fg_sched_admission {
    /* What is computed now, beside a reserve (the watermark) and a block for each running sequence that
     * decodes and has no slot left after this step. Alone, a sequence may have the reserve too. */
    FG_ADMIT_WATERMARK = 0,
    FG_ADMIT_NO_EVICT, /* all that it may ever need: nobody is preempted for want of blocks */
} fg_sched_admission;

/* Tokens that were guessed to follow a sequence's last one (common/spec) can be computed beside it in one step, which tells
 * which of them are right. */
typedef enum fg_sched_draft {
    FG_DRAFT_PAYS = 0, /* as many as make a token cheaper, by odds and cost model */
    FG_DRAFT_ADAPTIVE, /* all that the snapshot offers: as many as lookahead.h says */
    FG_DRAFT_FIXED,    /* likewise: draft_max */
} fg_sched_draft;

/* How a prompt ends whose blocks will be handed over: what its last chunk computes travels after it,
 * exposed. */
typedef enum fg_sched_last_chunk {
    FG_LAST_CHUNK_AUTO = 0, /* short where the blocks that travel earlier are worth another step */
    FG_LAST_CHUNK_SHORT,
    FG_LAST_CHUNK_WHOLE,
} fg_sched_last_chunk;
/* Blocks that a short last chunk fills, the last one perhaps in part. */
enum { FG_SCHED_LAST_BLOCKS = 2 };

typedef struct fg_sched_limits {
    uint32_t step_tokens_max;  /* --max-batch-tokens */
    uint32_t chunk_tokens_max; /* --prefill-chunk-size */
    uint32_t seqs_max;         /* --max-seqs */
    uint32_t block_size;
    fg_sched_order order;
    fg_sched_victim victim;
    fg_sched_preemption preemption;
    fg_sched_admission admission;
    fg_sched_last_chunk last_chunk;
    fg_sched_draft draft;
    uint32_t draft_max;        /* --draft-max: of one sequence in a step; 0: nothing is guessed */
    uint32_t watermark_blocks; /* stay free when somebody is admitted beside others */
    uint32_t skip_max;         /* how many may be admitted past one that does not fit; 0: strict */
    uint64_t
        step_target_ns; /* --step-ms: chunks beside decoding ones are cut to it; 0: they are not */
} fg_sched_limits;

/* FG_BAD_INPUT, naming the option, when limits contradict themselves: sizes of 0, a block size that is
 * no power of two, fewer step tokens than sequences, enums out of range. */
fg_status fg_sched_check(const fg_sched_limits *limits, fg_error *err);

/* One running sequence, in order of admission. */
typedef struct fg_sched_seq {
    uint64_t arrival; /* order of arrival: greater is later */
    uint32_t
        tokens_left; /* tokens whose KV is not computed and not in a step under way; never 0 in a
                               sequence that can run */
    bool decoding;   /* tokens_left is the one token chosen last: it decodes */
    bool fixed;      /* in a step under way, or in a ticket: cannot be preempted now */
    bool stopped;    /* cannot be part of this step at all; still counts, may still be a victim */
    bool leaves;     /* its blocks are handed over when its prompt is computed */
    bool unsaid;     /* it decodes, and its last token is being chosen by a step under way */
    /* Tokens guessed to follow its last one: may be computed with it, once that is said; and the odds that
     * all of them up to each are right, of FG_ODDS_ONE. */
    uint32_t drafts;
    uint16_t odds[FG_LOOKAHEAD_MAX];
    uint32_t slots_used; /* tokens in its blocks, those of a step under way too */
    uint32_t blocks;     /* blocks in its table */
    uint32_t promised;   /* blocks set aside for it */
    uint32_t frees; /* blocks that come back when it is preempted: unshared ones and promised */
    uint32_t output_tokens; /* generated so far */
    uint32_t redo_tokens;   /* tokens to compute again after a recompute: those not in the cache */
} fg_sched_seq;

/* One waiting sequence; preempted ones come first, in order of arrival, then by rank. */
typedef struct fg_sched_wait {
    uint32_t tokens_left; /* to compute after its hit in the cache */
    uint32_t need; /* blocks out of the available ones: new ones, and cached ones that it borrows */
    uint32_t need_all; /* likewise up to its longest possible end */
    bool decoding;     /* resumes with nothing but its last token missing */
    bool leaves;       /* its blocks are handed over when its prompt is computed */
    bool restores;     /* comes back from the tier: admitted, but runs from the next step on */
    bool deferred;     /* waits for a prefix that somebody computes: passed over, stops nobody */
} fg_sched_wait;

typedef struct fg_sched_input {
    const fg_sched_limits *limits;
    const fg_cost
        *cost; /* NULL: step_target_ns and the cheaper of swap and recompute are unknown */
    const fg_sched_seq *seqs;
    uint32_t seq_count;
    const fg_sched_wait *waits;
    uint32_t wait_count;
    uint32_t slots_reserved; /* places under seqs_max that arriving hand-overs hold */
    uint32_t available;      /* blocks: free + cached - promised */
    uint32_t tier_available; /* slots of host memory */
    uint32_t elsewhere; /* blocks in use outside of `seqs`, which will come back by themselves */
    bool may_preempt;   /* false while a step is under way: plan only what needs no victim */
} fg_sched_input;

typedef struct fg_plan_item {
    uint32_t seq;         /* index into seqs; seq_count + i: the i-th admitted */
    uint32_t token_count; /* drafts, which come last, are counted */
    bool sample;          /* the step ends at the sequence's last token, or its drafts */
    uint32_t draft_count;
} fg_plan_item;

typedef struct fg_plan_victim {
    uint32_t seq;
    bool swap; /* its blocks go to the tier; false: they are computed again */
} fg_plan_victim;

typedef struct fg_sched_plan {
    fg_plan_item *items; /* room for seqs_max, as in the next two */
    uint32_t item_count;
    fg_plan_victim *victims;
    uint32_t victim_count;
    uint32_t *admits; /* indices into waits, in order */
    uint32_t admit_count;
    /* This one ends now with what it has: no block will ever come; or UINT32_MAX. Never in a plan with
     * victims: the next plan knows what really came back, so plan again at once when such a plan has no
     * items. */
    uint32_t at_capacity;
    bool short_of_blocks; /* somebody stands still; with may_preempt it might not have */
    bool kept_out;        /* somebody who waits found a place, but not the blocks */
    bool drafts_wait;     /* once the step under way has ended, drafts would be worth computing */
} fg_sched_plan;

/* Fills the plan, whose arrays are the caller's. seq_count is at most seqs_max. */
void fg_sched_plan_step(const fg_sched_input *input, fg_sched_plan *plan);

/* The place of a request in the waiting line, smaller first: a class is worth `age_ns` of waiting, so
 * that nobody waits for ever behind a stream of better classes. Static, so a line sorted once stays so. */
#define FG_SCHED_AGE_NS (10ull * 1000 * 1000 * 1000)
static inline uint64_t fg_sched_rank(uint64_t queued_ns, int32_t priority)
{
    return queued_ns + (uint64_t)(priority + 1) * FG_SCHED_AGE_NS;
}

#endif
