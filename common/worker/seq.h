/*
 * seq - one live sequence of a worker: its tokens, its blocks, where it stands. Owned by the loop
 * thread; made by worker_seq.c, moved along by the worker and the two hand-over policies.
 *
 *   WAITING -> RUNNING -> gone                          one worker for both
 *   WAITING -> RUNNING -> HANDING -> gone               prefill: computed, pushed, accepted by decode
 *   EXPECTING -> CHECKING -> RUNNING -> gone            decode: reserved, arrived, digests right
 *   WAITING -> RESTORING -> RUNNING                     part of its prefix lies in the tier
 *   RUNNING -> PREEMPTED -> RUNNING                     its blocks were needed; computed again
 *   RUNNING -> PREEMPTED -> RESTORING -> RUNNING        likewise; its blocks come back from the tier
 *   any -> CLOSING -> gone                              ended, but a step, writer or reader goes on
 *
 * Moves: worker_plan.c admits (WAITING, PREEMPTED to RUNNING or RESTORING) and preempts; worker_book.c
 * ends a restore; prefill_on_computed (to HANDING); decode_on_commit (to CHECKING); decode_on_checked
 * (to RUNNING, or back to EXPECTING after a NACK); fg_worker_end (to CLOSING or gone).
 */
#ifndef FORGE_COMMON_WORKER_SEQ_H
#define FORGE_COMMON_WORKER_SEQ_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/hash.h"
#include "common/engine/constraint.h"
#include "common/kv/table.h"
#include "common/model/shape.h"
#include "common/sched/asking.h"
#include "common/spec/lookahead.h"
#include "common/spec/ngram.h"
#include "common/spec/odds.h"
#include "proto/wire.h"

typedef enum fg_seq_state {
    FG_SEQ_WAITING,
    FG_SEQ_RUNNING,
    FG_SEQ_PREEMPTED,
    FG_SEQ_RESTORING,
    FG_SEQ_EXPECTING,
    FG_SEQ_CHECKING,
    FG_SEQ_HANDING,
    FG_SEQ_CLOSING,
} fg_seq_state;

typedef struct fg_worker_grammar fg_worker_grammar;

/* Where guesses come from that no run of a text says. */
enum {
    FG_RUN_SAID = FG_NGRAM_MAX + 1, /* an earlier worker: they are right, as answers are exact */
    FG_RUN_DRAFT,                   /* the draft model */
};

/* Which end of a ticket this sequence is. */
typedef enum fg_seq_side { FG_SIDE_NONE, FG_SIDE_SENDER, FG_SIDE_RECEIVER } fg_seq_side;

/* What a draft model says of it (worker_ask.c). */
typedef struct fg_seq_draft {
    uint32_t place; /* where that keeps it, from 1; 0: nowhere */
    uint32_t known; /* tokens that it had computed when it was asked last */
    /* Behind the choices of the step that has just ended. */
    uint32_t guesses[FG_LOOKAHEAD_MAX], count;
    fg_asking_record record;
} fg_seq_draft;

typedef struct fg_seq {
    struct fg_seq *next, *previous; /* in one of the worker's lists */
    struct fg_seq_list *list;
    fg_arena *arena; /* this struct and its arrays */

    uint64_t request;
    uint32_t attempt;
    uint32_t router; /* that it came from, and that hears of it */
    fg_seq_state state;
    uint32_t steps;   /* steps in flight that work on it: its blocks stay */
    fg_finish finish; /* set when the last token was chosen; the sequence ends with the step */
    bool broken; /* the model broke down where the next token was to be chosen: finish is ERROR */
    fg_wire_params params;
    uint64_t arrival; /* order of arrival at this worker */
    uint64_t rank;    /* place in the waiting line */

    uint32_t *tokens; /* prompt, then what was generated; room for token_max */
    uint32_t prompt_count, token_count, token_max;
    uint32_t computed;              /* leading tokens whose KV is in the blocks */
    uint32_t planned;               /* likewise once the steps in flight have run */
    uint32_t pending;               /* 1: a step in flight chooses the token after the known ones */
    const struct fg_step_seq *item; /* of the newest step that it is in */
    /* What may follow the known tokens lies behind them in `tokens`, and is computed with the last of them where that
     * pays (worker_draft.c). */
    uint32_t guess_count;
    /* The tokens before them that stand somewhere else too; more than are looked for: FG_RUN_SAID, FG_RUN_DRAFT. */
    uint32_t guess_run;
    fg_seq_draft draft;
    uint32_t drafted; /* of the guesses, in a step under way */
    bool plain;       /* the model broke down at a guess: no more of them */
    /* The answer's first tokens by a worker that was lost: what comes is guessed to be them. */
    uint32_t *said;
    uint32_t said_count;
    fg_lookahead lookahead;
    fg_odds odds;
    /* That step's: after the last token, and after each guess. */
    uint32_t choices[FG_LOOKAHEAD_MAX + 1];
    uint64_t choice_digests[FG_LOOKAHEAD_MAX + 1];
    /* As it asked for; NULL: it did not. Rows of logprobs for two steps: one may be booked while the other runs. */
    fg_shape *shape;
    fg_logprobs *logprobs;
    uint32_t logprobs_turn; /* 0 or 1 */
    float *embedding;       /* where the prompt's goes; NULL: nobody asks */
    /* Leading tokens of the prompt whose rows have said what they say of the token behind them, to the router; and likewise
     * once the steps in flight have run. All of them where nobody asks. */
    uint32_t scored, scores_planned;
    /* What its answer is held to (worker_grammar.c); NULL: nothing. */
    fg_worker_grammar *grammar;
    fg_constraint constraint;
    fg_table table;
    bool given; /* its references are gone; only the ticket's pins may be left */

    /* The prefix cache: keys of its leading full blocks. */
    fg_digest128 root;
    fg_digest128 *keys;
    uint32_t key_count, key_max;
    uint64_t prompt_name; /* equal prompts have the same; 0: nobody asked for it */
    uint32_t published;   /* leading blocks that are published, or adopted as such */
    uint32_t expected_from, expected_until; /* keys that others may wait for */
    bool prefix_pinned;                     /* as it asked for, once */
    bool deferred;                          /* has waited for somebody else's prefix */
    uint64_t deferred_ns;   /* since when it waits for the block that somebody computes; 0 */
    uint32_t deferred_next; /* the block that it waited for then */
    uint64_t match_again;   /* the plan that looks its prompt up anew; until then: */
    uint32_t matched_blocks, matched_idle, matched_tier;
    uint32_t cached_tokens, chunks, preemptions;
    /* The tier: where its blocks are while it is PREEMPTED by swap. */
    uint32_t *slots;
    uint32_t slot_count;
    uint32_t restored; /* tokens that a restore under way brings back */
    bool damaged;      /* a restored block was not what had gone out */

    fg_seq_side side;
    bool ticket_open; /* the link may still write or read the pinned blocks */
    bool aborting;    /* sender: on_drained is on its way; receiver: on_fenced is */
    uint64_t ticket;
    uint32_t peer;           /* the link's index */
    uint32_t ticket_first;   /* index of the ticket's first block in the table */
    uint32_t ticket_blocks;  /* how many blocks from there on the ticket names */
    uint32_t *target_blocks; /* sender: where they go */
    uint64_t *digests;       /* one per ticket block: computed (sender), announced (receiver) */
    uint32_t
        digested; /* leading ticket blocks whose digest is known (sender), checked (receiver) */
    uint32_t digest_planned; /* likewise once the steps in flight have run */
    uint32_t pushed;         /* sender: leading blocks handed to the link */
    /* Sender: from this ticket block on those that get full are computed straight into the receiver's; UINT32_MAX: none
     * are. */
    uint32_t direct_from;
    uint32_t last_blocks; /* sender: those that were not, when its prompt was computed */
    uint32_t *bad;        /* indices of blocks that arrived damaged, or must be pushed again */
    uint32_t bad_count;
    bool committed; /* sender: commit sent, verdict awaited */
    uint32_t retries;
    uint32_t first_token; /* sender and receiver: chosen by the last prompt row */
    uint64_t first_digest;

    uint64_t queued_ns, started_ns, computed_ns;
    uint64_t share_ns; /* of its prompt's steps, by its share of their tokens */
    uint64_t since_ns; /* of the present state, for the trace */
    uint64_t fence_begun_ns, fence_asked_ns; /* first and last time */
} fg_seq;

typedef struct fg_seq_list {
    fg_seq *first, *last;
    uint32_t count;
} fg_seq_list;

void fg_seq_append(fg_seq_list *list, fg_seq *seq);
/* Into a list that is sorted by rank (by arrival), behind its equals; from the end, where it mostly
 * belongs. */
void fg_seq_insert_by_rank(fg_seq_list *list, fg_seq *seq);
void fg_seq_insert_by_arrival(fg_seq_list *list, fg_seq *seq);
void fg_seq_unlink(fg_seq *seq);

/* A sequence for `prompt_count` tokens and room for max_tokens more; NULL when out of memory. */
fg_seq *fg_seq_create(uint64_t request, uint32_t attempt, const uint32_t *prompt,
                      uint32_t prompt_count, const fg_wire_params *params, uint32_t block_size);
void fg_seq_destroy(fg_seq *seq);
/* What its params ask of logits, `ends` being the model's end tokens, which stay as they are. False: out of memory. */
bool fg_seq_shape(fg_seq *seq, const uint32_t *ends, uint32_t end_count);
/* Where the choices of its next item go, if somebody asked about them. */
fg_logprobs *fg_seq_next_logprobs(fg_seq *seq);
/* What is known of its answer. Without memory for it nothing is. */
void fg_seq_foretell(fg_seq *seq, const uint32_t *said, uint32_t count);
typedef struct fg_seq_ticket {
    fg_seq_side side;
    uint32_t peer; /* the link's index */
    uint64_t ticket;
    uint32_t first_block, block_count; /* of the sequence's table */
} fg_seq_ticket;

/* Gives a sequence that will travel (or arrive) room for the ticket's arrays. False: out of memory. */
bool fg_seq_open_ticket(fg_seq *seq, const fg_seq_ticket *ticket);
const char *fg_seq_state_name(fg_seq_state state);

/* The prompt's tokens whose rows say something that the router has yet to hear: none of the last one's. */
static inline uint32_t fg_seq_unscored(const fg_seq *seq)
{
    uint32_t rows = seq->params.want_scores > 0 ? seq->prompt_count - 1 : 0;
    return rows > seq->scored ? rows - seq->scored : 0;
}

static inline uint32_t fg_seq_generated(const fg_seq *seq)
{
    return seq->token_count - seq->prompt_count;
}

#endif
