/*
 * residency_internal - the parts of the tree, shared by residency*.c.
 *
 * All arrays lie in one mapping and have fixed sizes. Items are named by their index; 0 is nobody, so that
 * zeroed memory is an empty tree and pages that were never needed are never touched. Free items are
 * chained; behind them lie those that were never used.
 *
 * A run's keys lie in chunks of 8, a cache line each. `parent` is the run whose last block comes before
 * this run's first one, as its worker said; a run with children is never freed, so the link is always
 * good. Only runs without children (leaves) are on a list for reclaim: pinned ones on one, the rest on
 * the other.
 *
 * A worker's marks on a run are two masks, one per tier, with a bit for each block. A mask of all blocks
 * is a bit in `full`; a record is there when one of the masks is neither full nor empty, and holds both.
 * `rows` says the same the other way round: which runs a worker has marks or predictions on.
 */
#ifndef FORGE_ROUTER_RESIDENCY_INTERNAL_H
#define FORGE_ROUTER_RESIDENCY_INTERNAL_H

#include "common/base/hash.h"
#include "router/residency.h"

enum {
    RES_CHUNK = 8, /* keys */
    RES_CHUNKS = FG_RESIDENCY_RUN / RES_CHUNK,
    RES_WORDS = FG_LIMIT_WORKERS / 64,
    RES_AHEAD = 8,                 /* events ahead */
    RES_ALIKE = 4,                 /* records of the same part that are worth a cut, ... */
    RES_PIECE = 4,                 /* ... which leaves no piece shorter than that */
    RES_TICK_BITS = 20,            /* a tick is 2^20 ns; 32 bits of them wrap after 52 days */
    RES_TICKS_AHEAD_MAX = 1 << 30, /* the farthest future that a tick can name */
    RES_PREFETCH = 16,             /* keys ahead */
};

typedef struct res_run {
    uint32_t chunks[RES_CHUNKS];
    uint32_t parent, children;
    uint32_t partials, predictions; /* heads of lists */
    uint32_t heat, touched_tick;
    uint32_t pinned_tick; /* until */
    uint16_t holders;     /* workers with a mark or a prediction */
    uint8_t length;       /* 0: free */
    bool is_pinned;       /* pinned_tick counts */
} res_run;

typedef struct res_link {
    uint32_t prev, next; /* a free run: next is the next free one */
} res_link;

typedef struct res_list {
    uint32_t head, tail; /* most and least recently used */
} res_list;

typedef struct res_partial {
    uint64_t masks[FG_TIERS];
    uint32_t next, slot;
} res_partial;

typedef struct res_prediction {
    uint64_t mask, until_ns;
    uint32_t next, slot; /* of this run */
    uint32_t run;
    uint32_t time_at; /* its place in by_time */
} res_prediction;

typedef struct res_pin {
    uint64_t key, until_ns;
} res_pin;

/* Items that are free or were never used. */
typedef struct res_pool {
    uint32_t free, used, end; /* free: head of the chain; used .. end-1 were never used */
    uint32_t taken;
} res_pool;

typedef struct res_slot {
    uint64_t epoch, expected;
    uint64_t blocks[FG_TIERS];
    bool is_joined, is_lost;
} res_slot;

typedef struct res_place {
    uint32_t run, at; /* run 0: nowhere */
} res_place;

typedef struct res_masks {
    uint64_t tier[FG_TIERS];
} res_masks;

struct fg_residency {
    fg_residency_options options;
    uint32_t words; /* of 64 slots */
    uint64_t now_ns;
    uint32_t now_tick;
    uint32_t guard; /* a run that stays, whatever is reclaimed */

    uint64_t *table; /* 0, or the high half of a key's hash << 32 | run * 64 + place in it */
    uint64_t table_count;
    uint64_t block_count, blocks_max;
    res_run *runs;
    res_link *links;
    uint64_t *full; /* [run][tier][words] */
    uint64_t *rows; /* [slot][row_words], a bit for each run */
    uint64_t *sums; /* [slot][sum_words], a bit for each word of the row that is not 0 */
    uint32_t row_words, sum_words;
    uint64_t (*chunks)[RES_CHUNK]; /* a free one: its first key is the next free one */
    res_partial *partials;
    res_prediction *predictions;
    res_pool run_pool, chunk_pool, partial_pool, prediction_pool;
    res_list leaves, pinned;
    uint32_t next_victim; /* a guess, for prefetching */
    uint32_t *by_time;    /* predictions: a binary heap, the soonest to end at 1 */
    uint32_t time_count;  /* predictions in it */
    uint32_t unpin_tick;  /* some pinned leaf's pin runs out then */
    bool any_unpin;

    res_slot slots[FG_LIMIT_WORKERS];
    uint64_t joined[RES_WORDS];
    res_pin pins[FG_RESIDENCY_PINS];
    uint32_t pin_count;
    fg_residency_stats stats;
    void *memory;
    size_t memory_bytes;
};

/* ---- small things ---- */

static inline uint64_t res_low(uint32_t bits)
{
    return bits >= 64 ? UINT64_MAX : ((uint64_t)1 << bits) - 1;
}

static inline uint64_t *res_full(const fg_residency *tree, uint32_t run, uint32_t tier)
{
    return tree->full + ((size_t)run * FG_TIERS + tier) * tree->words;
}

static inline bool res_bit(const uint64_t *words, uint32_t bit)
{
    return words[bit / 64] >> bit % 64 & 1;
}

static inline uint64_t *res_key(const fg_residency *tree, const res_run *run, uint32_t at)
{
    return &tree->chunks[run->chunks[at / RES_CHUNK]][at % RES_CHUNK];
}

static inline bool res_row_bit(const fg_residency *tree, uint32_t slot, uint32_t run)
{
    return res_bit(tree->rows + (size_t)slot * tree->row_words, run);
}

/* The high half of a key's hash: it says where in the table the search begins. */
static inline uint32_t res_tag(const fg_residency *tree, uint64_t key)
{
    return (uint32_t)(fg_hash_mix(key ^ tree->options.seed) >> 32);
}

static inline uint64_t res_home(const fg_residency *tree, uint32_t tag)
{
    return tag * tree->table_count >> 32;
}

/* Where the search for a key begins. Callers prefetch it themselves: a function that did nothing else
 * would count as doing nothing, and the compiler drops its calls. */
static inline const uint64_t *res_begin(const fg_residency *tree, uint64_t key)
{
    return &tree->table[res_home(tree, res_tag(tree, key))];
}

/* Most keys are found where their search begins: the run of what lies there, or 0. */
static inline uint32_t res_guess(const fg_residency *tree, uint64_t key)
{
    return (uint32_t)*res_begin(tree, key) / FG_RESIDENCY_RUN;
}

/* ---- residency_table.c: keys, and where memory comes from ---- */

/* The place of a key; run 0 when it is not here, and then *entry_out (may be NULL) is where it goes. */
res_place res_find(const fg_residency *tree, uint64_t key, uint64_t *entry_out);
void res_insert(fg_residency *tree, uint64_t entry, uint64_t key, res_place place);
/* The key is here, and lies elsewhere from now on. */
void res_move(fg_residency *tree, uint64_t key, res_place from, res_place to);
void res_erase(fg_residency *tree, uint64_t key, res_place place);

uint32_t res_take_run(fg_residency *tree);
uint32_t res_take_chunk(fg_residency *tree);
uint32_t res_take_partial(fg_residency *tree);    /* 0: none left */
uint32_t res_take_prediction(fg_residency *tree); /* 0: none left */
void res_give_run(fg_residency *tree, uint32_t run);
void res_give_chunk(fg_residency *tree, uint32_t chunk);
void res_give_partial(fg_residency *tree, uint32_t partial);
void res_give_prediction(fg_residency *tree, uint32_t prediction);
static inline uint32_t res_pool_left(const res_pool *pool)
{
    return pool->end - 1 - pool->taken;
}

/* How many keys lie in the tree as they do here, from this place on in its run. */
static inline uint32_t res_along(const fg_residency *tree, res_place place, const uint64_t *keys,
                                 uint32_t count)
{
    const res_run *run = &tree->runs[place.run];
    uint32_t left = run->length - place.at, same = 0;
    count = count < left ? count : left;
    while (same < count && *res_key(tree, run, place.at + same) == keys[same]) {
        same++;
    }
    return same;
}

/* ---- residency_marks.c: who holds what of a run ---- */

res_masks res_masks_get(const fg_residency *tree, uint32_t run, uint32_t slot);
/* Without a record to write a part in, the worker's marks on this run are dropped. */
void res_masks_set(fg_residency *tree, uint32_t run, uint32_t slot, res_masks masks);
/* All workers with marks or predictions on this run, as a set. */
void res_holders(const fg_residency *tree, uint32_t run, uint64_t set_out[RES_WORDS]);
uint64_t res_predicted(const fg_residency *tree, uint32_t run, uint32_t slot, uint64_t *until_out);
/* Replaces this worker's prediction on this run; mask 0: there is none any more. */
void res_predicted_set(fg_residency *tree, uint32_t run, uint32_t slot, uint64_t mask,
                       uint64_t until_ns);
/* Workers that hold the very part of this run that this one does, itself included; 0: it holds no part. */
uint32_t res_alike(const fg_residency *tree, uint32_t run, uint32_t slot);
/* Drops all that a worker has on a run. */
void res_drop(fg_residency *tree, uint32_t run, uint32_t slot);

/* ---- residency_runs.c: the shape of the tree ---- */

/* A new run of no keys yet, behind `parent` (0: nobody knows). */
uint32_t res_run_new(fg_residency *tree, uint32_t parent);
/* One more key at the end of a run that has room; `entry` is from res_find. */
void res_run_append(fg_residency *tree, uint32_t run, uint64_t entry, uint64_t key);
/* Cuts a run in two behind its first `head` blocks. Returns the new run, which is the head. */
uint32_t res_run_split(fg_residency *tree, uint32_t run, uint32_t head);
/* Cuts a run where the part of it that this worker and some others hold begins or ends. */
void res_run_refine(fg_residency *tree, uint32_t run, uint32_t slot);
/* Joins a leaf to its parent where both have the same marks and together fit. */
void res_run_merge(fg_residency *tree, uint32_t run);
/* Frees a run that nobody holds and no run continues, and then its parent, likewise. */
void res_run_tidy(fg_residency *tree, uint32_t run);
void res_touch(fg_residency *tree, uint32_t run);
void res_pin_until(fg_residency *tree, uint32_t run, uint32_t tick);
/* Room for the next run and one chunk more than it can fill, so that what follows cannot fail. False:
 * there is nothing left to reclaim. */
bool res_make_room(fg_residency *tree);
/* Predictions whose time is over. */
void res_expire(fg_residency *tree);
void res_now(fg_residency *tree, uint64_t now_ns);

/* The heat of a run at this tick. */
uint32_t res_heat(const res_run *run, uint32_t tick);

#endif
