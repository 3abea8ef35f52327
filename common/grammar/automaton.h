/*
 * automaton - a grammar walked over a vocabulary: which tokens may come next.
 *
 * A state is the set of all ways in which the grammar can have taken the bytes so far: places in it, each with the
 * rules that it has been called from. Equal sets are one state, so a state is a number, and steps and masks are
 * kept where they were computed once. What an answer may go on with is a function of grammar, vocabulary and bytes so
 * far; what is kept, and what was forgotten, changes times only.
 *
 *      text ----> fg_tracker_state ----> state ----> fg_automaton_mask ----> bits of tokens
 *                                          |-------> fg_automaton_may_end, _must_end, _only
 *
 * Memory is one mapping of `memory_max_bytes`, of which the system gives what is used. When it is full all states are
 * forgotten: `fg_automaton_generation` rises. A state number is good for the calls that are made with it until another call
 * has made or taken another state; whoever keeps one for longer compares generations, or lets a tracker do so.
 *
 * One owner. Grammar and lexicon are borrowed until destroy; others may read them meanwhile.
 *
 * Bounded: states have at most FG_STATE_PLACES_MAX places, one step takes FG_STEP_WORK_MAX pieces of work, one
 * mask FG_MASK_WORK_MAX. What would need more is not allowed. So a hostile grammar makes answers poorer, not slow.
 */
#ifndef FORGE_COMMON_GRAMMAR_AUTOMATON_H
#define FORGE_COMMON_GRAMMAR_AUTOMATON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/grammar/grammar.h"
#include "common/grammar/lexicon.h"

typedef struct fg_automaton fg_automaton;
typedef uint64_t fg_state;

#define FG_STATE_DEAD ((fg_state)0) /* no text goes on from here */

enum {
    FG_STATE_PLACES_MAX = 8192,
    FG_STEP_WORK_MAX = 1 << 16,
    FG_MASK_WORK_MAX = 1 << 25,
    FG_TRACKER_BACK = 32,
};
#define FG_AUTOMATON_BYTES_MIN ((size_t)8 << 20)
#define FG_AUTOMATON_BYTES_MAX ((size_t)8 << 30)

/* `memory_max_bytes` is brought between the two above. FG_AGAIN: out of memory. */
fg_status fg_automaton_create(const fg_grammar *grammar, const fg_lexicon *lexicon,
                              size_t memory_max_bytes, fg_automaton **automaton_out, fg_error *err);
void fg_automaton_destroy(fg_automaton *automaton);

/* FG_BAD_INPUT where a grammar has more ways to begin than a state has places: no text could be held to it. */
fg_status fg_automaton_check(const fg_grammar *grammar, fg_error *err);

const fg_lexicon *fg_automaton_lexicon(const fg_automaton *automaton);

/* Starts at 1. */
uint64_t fg_automaton_generation(const fg_automaton *automaton);
/* Of the mapping, what has been used in this generation. */
size_t fg_automaton_used_bytes(const fg_automaton *automaton);

fg_state fg_automaton_start(fg_automaton *automaton);
/* All functions below take FG_STATE_DEAD, and take a state that was forgotten for it. */
fg_state fg_automaton_feed(fg_automaton *automaton, fg_state state, const char *bytes,
                           size_t length);
/* FG_STATE_DEAD after end tokens and tokens without text too. */
fg_state fg_automaton_take(fg_automaton *automaton, fg_state state, uint32_t token);
/* The text so far is complete: end tokens are allowed. */
bool fg_automaton_may_end(const fg_automaton *automaton, fg_state state);
/* ... and nothing but the end may follow. */
bool fg_automaton_must_end(const fg_automaton *automaton, fg_state state);
/* A bit for each token id, in fg_lexicon_words words; bits behind the last id are 0. Valid until the next call with this
 * automaton. NULL for FG_STATE_DEAD. No bit is set where the vocabulary has no token for what must come. */
const uint64_t *fg_automaton_mask(fg_automaton *automaton, fg_state state);
/* Whether exactly one token is allowed; then which. */
bool fg_automaton_only(fg_automaton *automaton, fg_state state, uint32_t *id_out);

/* Where a growing list of tokens has come to. Starts as zeros. Plain memory: copies are good. */
typedef struct fg_tracker {
    uint64_t generation;
    size_t count; /* tokens taken */
    size_t kept;  /* of them, the newest whose states are below; and the state before them */
    uint32_t tokens[FG_TRACKER_BACK];     /* token i at i % FG_TRACKER_BACK */
    fg_state states[FG_TRACKER_BACK + 1]; /* after i tokens at i % (FG_TRACKER_BACK + 1) */
} fg_tracker;

/* The state after tokens[0 .. count). Goes on from what it knows: the newest FG_TRACKER_BACK tokens that it was told
 * may be others now, or be gone; the rest the caller keeps as they were. */
fg_state fg_tracker_state(fg_tracker *tracker, fg_automaton *automaton, const uint32_t *tokens,
                          size_t count);

#endif
