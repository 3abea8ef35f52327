/*
 * constraint - what a sequence's answer is held to: a grammar's automaton, and how far the answer has come in it. The loop
 * makes it with the sequence; while a step with the sequence is in flight it is the engine's, as the automaton is, which
 * several sequences share.
 */
#ifndef FORGE_COMMON_ENGINE_CONSTRAINT_H
#define FORGE_COMMON_ENGINE_CONSTRAINT_H

#include "common/grammar/automaton.h"

struct fg_step_seq;

typedef struct fg_constraint {
    fg_automaton *automaton; /* borrowed */
    fg_tracker tracker;
} fg_constraint;

/* Writes which tokens may follow the one at `position` of the item, a bit each, as many words as the vocabulary has. Where
 * nothing can follow, because the vocabulary has no token for what must come, or the tokens so far are none of the
 * grammar's (guesses may not be, and then nobody sees what is chosen), the end tokens may. */
void fg_constraint_mask(fg_constraint *constraint, const struct fg_step_seq *seq, uint32_t position,
                        uint64_t *allowed);

#endif
