/*
 * asking - how many guesses of a draft model are worth what they cost: its steps, which run behind the large model's, and
 * the rows that the next step computes them with. A value; owned by whoever plans. No clock, no memory.
 *
 * What a guess is worth comes from how many were right lately, of this sequence and, before it has shown any, of all. What
 * it costs is learned, as for the large model's steps (cost.h). While nothing is expected to pay, a hundredth of the time
 * goes into single guesses, which show whether that has changed: so a draft model that is of no use costs little more than
 * none.
 *
 * A sequence that the draft model has not computed is caught up with when that is likely to come back: an answer is
 * expected to go on for as long as it has been.
 */
#ifndef FORGE_COMMON_SCHED_ASKING_H
#define FORGE_COMMON_SCHED_ASKING_H

#include <stdbool.h>
#include <stdint.h>

#include "common/sched/cost.h"
#include "common/spec/lookahead.h"
#include "common/spec/odds.h"

/* Guesses that were compared with what was chosen, and those that were right. All zero: nothing is known. */
typedef struct fg_asking_record {
    uint16_t seen, right;
} fg_asking_record;

typedef struct fg_asking {
    fg_cost cost; /* of the draft model's steps: rows, and prompt tokens that it catches up with */
    fg_asking_record record; /* of all sequences */
    double credit_ns;        /* that may go into guesses that are not expected to pay */
    double quiet_ns;         /* since the last of these */
    uint32_t turn;           /* who is tried next */
} fg_asking;

/* A sequence that decodes in the step that is planned. */
typedef struct fg_asking_seq {
    fg_asking_record record;
    uint32_t limit;       /* guesses that it could have */
    uint32_t behind;      /* tokens that the draft model has not computed */
    uint32_t slots;       /* KV slots that a row of it attends to */
    uint32_t likely_left; /* tokens that are likely to come */
    uint32_t wanted;      /* filled in */
    double each, next;    /* scratch: the odds of one guess, and of all up to the next one */
} fg_asking_seq;

typedef struct fg_asking_plan {
    uint32_t catch_up_max; /* tokens, of all of them together */
    bool is_trial;         /* nothing in it is expected to pay */
} fg_asking_plan;

/* A sequence so far behind is caught up with in the step that guesses (drafter.h has the same). */
enum { FG_ASKING_NEAR = 16 };

void fg_asking_init(fg_asking *asking);

/* Of FG_ODDS_ONE, that a guess is right whose predecessors were. Less than FG_ODDS_ONE. */
uint32_t fg_asking_odds(const fg_asking *asking, fg_asking_record record);
/* A guess of a sequence was compared. */
void fg_asking_note(fg_asking *asking, fg_asking_record *record, bool right);

/* Fills in what is asked for each of `count` sequences at the end of a step of them. */
fg_asking_plan fg_asking_choose(fg_asking *asking, const fg_cost *target, fg_asking_seq *seqs,
                                uint32_t count);

/* A step has ended that took step_ns, with `steps` steps of the draft model for `rows` sequences in all that took ns, and
 * `caught` tokens that took catch_ns. */
typedef struct fg_asking_did {
    uint64_t step_ns, ns, catch_ns;
    uint32_t steps, rows, caught;
    bool was_trial;
} fg_asking_did;
void fg_asking_learn(fg_asking *asking, const fg_asking_did *did);

#endif
