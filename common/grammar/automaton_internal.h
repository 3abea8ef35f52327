/*
 * automaton_internal - how states lie in memory.
 *
 * A place set is a sorted list of (position, what lies below it), where what lies below is a place set again: the
 * returns of the rules that are under way. So a place set stands for a set of stacks, written as a tree whose equal
 * parts are shared. Equal sets have one address ("interned"). A state is a place set whose positions take a byte,
 * or are the end.
 *
 * Everything is in one region, addressed in words of 8 bytes, and taken from its front only.
 */
#ifndef FORGE_COMMON_GRAMMAR_AUTOMATON_INTERNAL_H
#define FORGE_COMMON_GRAMMAR_AUTOMATON_INTERNAL_H

#include "common/grammar/automaton.h"
#include "common/grammar/grammar_internal.h"
#include "common/grammar/lexicon_internal.h"

/* A place: position, and the number of the set below it. */
typedef struct fg_place {
    uint32_t position;
    uint32_t below;
} fg_place;

typedef struct fg_place_set {
    uint32_t count;
    uint32_t depth; /* sets below each other, with this one */
    uint32_t next;  /* set with the same hash */
    uint32_t steps; /* of a state: where its fg_step are; 0: nowhere yet */
    uint32_t mask;  /* of a state: where its mask is */
    uint32_t run;   /* of a state: where its fg_run is */
    fg_place places[];
} fg_place_set;

/* Where a class of bytes leads. */
typedef struct fg_step {
    uint32_t to;
    uint32_t work; /* what finding it took; 0: not yet known */
} fg_step;

/* The bytes below 0x80 that lead from a state to the same state, and whether all characters of more bytes lead there
 * too. */
typedef struct fg_run {
    uint32_t to;
    uint32_t whole;
    fg_ascii_set same;
} fg_run;

/* A position of the set that is being made. */
typedef struct fg_mark {
    uint32_t stamp; /* of the step that reached it */
    uint32_t below;
    bool waiting; /* in the queue */
} fg_mark;

enum { FG_JOINS = 4096 }; /* slots; a power of two */

typedef struct fg_join {
    uint32_t stamp;
    uint32_t a;
    uint32_t b;
    uint32_t result;
} fg_join;

struct fg_automaton {
    const fg_grammar *grammar;
    const fg_lexicon *lexicon;
    uint64_t *words; /* the region */
    size_t mapped_bytes;
    uint32_t word_count;
    uint32_t word_used;
    uint32_t *buckets; /* of the hash table of sets */
    uint32_t bucket_count;
    bool full; /* something did not fit */
    uint64_t generation;
    uint64_t base; /* a state's number is base + its word */
    fg_state kept; /* the one number that outlived the newest forgetting ... */
    uint32_t kept_at;
    uint32_t start;
    /* The step under way. */
    uint32_t stamp;
    uint32_t work;
    bool overdone;
    fg_mark *marks;   /* one for each position */
    uint32_t *queue;  /* positions, a ring of as many */
    uint32_t *listed; /* positions of the set being made */
    uint32_t queue_first;
    uint32_t queue_count;
    uint32_t listed_count;
    fg_place *scratch; /* for joins under way, and results */
    uint32_t scratch_used;
    fg_join *joins;
    uint32_t joins_used;
    /* The walk under way: states from its first node down, the nodes between them, and where what is below those ends. */
    uint32_t *path;
    uint32_t *path_nodes;
    uint64_t *mask;
    uint64_t *copy; /* what outlives a forgetting, meanwhile */
    uint32_t copy_used;
    uint32_t copy_count;
};

enum { FG_SCRATCH_PLACES = 1 << 17, FG_COPY_WORDS = 1 << 17 };

static inline fg_place_set *fg_set_at(const fg_automaton *automaton, uint32_t at)
{
    return (fg_place_set *)(void *)(automaton->words + at);
}

/* Words from the front, zeroed; 0: full. */
uint32_t fg_region_take(fg_automaton *automaton, size_t words);
/* The set of these places, sorted, none twice; 0 for none, and when full. */
uint32_t fg_set_intern(fg_automaton *automaton, const fg_place *places, uint32_t count);
/* Before anything is in the region: the state at the start of a text. 0: full. */
uint32_t fg_set_start(fg_automaton *automaton);
/* Where a byte leads; 0: nowhere, or full. */
uint32_t fg_set_step(fg_automaton *automaton, uint32_t at, uint8_t byte, uint32_t *work_out);
/* Forgets everything but the state at *state (0: nothing), which has another place afterwards; 0 where it does not fit. */
void fg_automaton_forget(fg_automaton *automaton, uint32_t *state);
/* Fills automaton->mask. Forgets what it must; *state is where the state is then. */
void fg_mask_compute(fg_automaton *automaton, uint32_t *state);

#endif
