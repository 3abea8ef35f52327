/*
 * tier - the second memory of a worker: blocks swapped out with their sequence, and cached blocks that
 * were evicted, in host memory or in a file on local disk. Owned by the loop thread; the bytes are moved
 * by the engine, as copies of a step.
 *
 *   free --take--> swapped --give--> free                       a preempted sequence's block
 *   free --store--> filling --filled--> stored --evict, drop--> free     an evicted cached block
 *
 * A slot that a copy may still read or write is locked, and neither reused nor found until unlocked.
 * Stored slots are given up least recently used first, to new ones and to swaps; swapped ones only by
 * their sequence. Each slot keeps the digest of the bytes that went in; what comes back is compared.
 */
#ifndef FORGE_COMMON_KV_TIER_H
#define FORGE_COMMON_KV_TIER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/hash.h"
#include "common/base/status.h"
#include "common/kv/block_key.h"

#define FG_TIER_NONE UINT32_MAX

typedef struct fg_tier fg_tier;

typedef struct fg_tier_options {
    size_t block_bytes;
    uint32_t block_count; /* slots */
    uint32_t block_size;  /* tokens */
    /* NULL: memory. Else a directory: the slots lie in a file there that has no name and vanishes with
     * the process; its room on disk is taken at open. */
    const char *directory;
} fg_tier_options;

typedef struct fg_tier_stats {
    uint32_t total, free, swapped, stored; /* stored: filling ones too */
    uint64_t stores, hits, evictions, damaged;
} fg_tier_stats;

/* FG_AGAIN: out of memory or disk; FG_BAD_INPUT: the directory cannot be used. */
fg_status fg_tier_open(const fg_tier_options *options, fg_tier **tier_out, fg_error *err);
void fg_tier_close(fg_tier *tier);
/* Slot s lies at arena + s * block_bytes. */
void *fg_tier_arena(const fg_tier *tier);

/* `count` slots for a sequence to be swapped out, or none: FG_AGAIN. */
fg_status fg_tier_take(fg_tier *tier, uint32_t count, uint32_t *slots_out);
void fg_tier_give(fg_tier *tier, uint32_t slot);
/* Slots that take could have. O(1). */
uint32_t fg_tier_available(const fg_tier *tier);

/* A slot for an evicted block, filling and locked; FG_TIER_NONE when there is none or the key is here
 * already. */
uint32_t fg_tier_store(fg_tier *tier, fg_digest128 parent, fg_digest128 key,
                       const uint32_t *tokens);
/* The bytes are there, and have this digest; unlocks. For swapped slots it only notes the digest. */
void fg_tier_filled(fg_tier *tier, uint32_t slot, uint64_t digest);
/* The stored slot of this key and content, now the most recently used; FG_TIER_NONE. */
uint32_t fg_tier_find(fg_tier *tier, fg_digest128 parent, fg_digest128 key, const uint32_t *tokens);
/* While a copy out of a slot is under way, or into one that a sequence took. Counted. A slot that is
 * given, found damaged or cleared meanwhile is free at the last unlock. Filling slots come locked. */
void fg_tier_lock(fg_tier *tier, uint32_t slot);
void fg_tier_unlock(fg_tier *tier, uint32_t slot);
/* Whether what went in has this digest. */
bool fg_tier_matches(const fg_tier *tier, uint32_t slot, uint64_t digest);
/* Likewise, of what came back. A damaged stored slot is not found any more. */
bool fg_tier_verify(fg_tier *tier, uint32_t slot, uint64_t digest);

/* Whom to tell when a stored slot comes or goes, fg_tier_clear's excepted; NULL: nobody. */
void fg_tier_watch(fg_tier *tier, fg_block_watch watch, void *ctx);
/* The block that this slot stores. False: none. */
bool fg_tier_at(const fg_tier *tier, uint32_t slot, fg_digest128 *parent_out,
                fg_digest128 *key_out);
/* Forgets every stored slot (locked ones when they are unlocked). */
void fg_tier_clear(fg_tier *tier);
void fg_tier_stats_get(const fg_tier *tier, fg_tier_stats *stats_out);
/* Full recount; aborts on a difference. */
void fg_tier_check(const fg_tier *tier);

/* The tier at rest, as bytes: nothing is swapped, filling or locked. Equal tiers give equal bytes; the size
 * is a multiple of 8 and goes with the stored slots. */
size_t fg_tier_state_bytes(const fg_tier *tier);
/* The order in which slots are given out and up, key and parent of the stored ones, and the stats, into
 * fg_tier_state_bytes bytes, each of which is written. Neither tokens nor content are among them, nor a
 * digest of the content, against which somebody could try guesses. */
void fg_tier_state_get(const fg_tier *tier, void *state_out);
/* Takes a state over that may come from anybody, in a tier that is as open made it. The tokens of all stored
 * slots and the digests of their bytes are zero then, and nobody is told. False: it is not the state of a
 * tier with this many slots, and this one is as it was. Allocates nothing. */
bool fg_tier_state_set(fg_tier *tier, const void *state, size_t size_bytes);

#endif
