/*
 * pool - the fixed set of KV blocks of one worker. Owned by the loop thread.
 *
 * A block is in exactly one of these states, told by its counters and its mark:
 *   free         no reference, no pin, no mark: on the free stack (last freed, first taken)
 *   cached       no reference, no pin, but kept: its content can be borrowed again. On the LRU list
 *   held         referenced by at least one sequence, not pinned
 *   pinned       referenced, and named in a live ticket
 *   quarantined  no sequence wants it any more, but its writer or reader may not have stopped: pins
 *                above zero. It becomes free (or cached) only by the last unpin, never by time.
 *
 *   free --take--> held --pin--> pinned --unref--> quarantined --unpin--> free or cached
 *                  held --unref--> free, or cached when kept          pinned --unpin--> held
 *   cached --borrow--> held      cached --take, oldest first, when no free block is left--> held
 *
 * A block's generation grows each time its content is given up, so that a stale name of it can be told.
 * Promises set free and cached blocks aside without choosing them: what is promised cannot be taken or
 * borrowed by others.
 */
#ifndef FORGE_COMMON_KV_POOL_H
#define FORGE_COMMON_KV_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

typedef struct fg_pool fg_pool;

typedef struct fg_pool_stats {
    uint32_t total, free, cached, held, pinned, quarantined;
    uint32_t promised;  /* part of free + cached that is set aside */
    uint32_t used_peak; /* most blocks ever held, pinned or quarantined at once */
    uint64_t evictions; /* cached blocks taken for something else */
} fg_pool_stats;

fg_status fg_pool_create(uint32_t block_count, fg_pool **pool_out, fg_error *err);
/* Every block must be free or cached again: a block still in use here is a leak, which is a bug, except
 * when `abandon` says that the process is ending with work in flight. */
void fg_pool_destroy(fg_pool *pool, bool abandon);
/* Called from inside a take, for each cached block that it gives to somebody else: its content is still
 * there and its mark is gone. One listener; the callback must not call the pool. */
void fg_pool_on_evict(fg_pool *pool, void (*on_evict)(void *ctx, uint32_t block_id), void *ctx);

/* Blocks that a take, promise or borrow may still use: free + cached - promised. O(1). */
uint32_t fg_pool_available(const fg_pool *pool);
/* Sets `count` blocks aside, or none: FG_AGAIN. */
fg_status fg_pool_promise(fg_pool *pool, uint32_t count);
void fg_pool_unpromise(fg_pool *pool, uint32_t count);
/* Takes `count` blocks, one reference each, or none at all: FG_AGAIN when too few are available. Free
 * ones first, last freed first; then cached ones, least recently used first; given out in ascending order,
 * so that neighbours in memory are neighbours in the table. */
fg_status fg_pool_take(fg_pool *pool, uint32_t count, uint32_t *block_ids_out);
/* Takes blocks out of an earlier promise of the caller: cannot fail. */
void fg_pool_take_promised(fg_pool *pool, uint32_t count, uint32_t *block_ids_out);

/* One more reference to a block that has one. */
void fg_pool_ref(fg_pool *pool, uint32_t block_id);
/* One reference to a kept block, cached or in use. FG_AGAIN when it is cached and every block that is
 * not in use is promised: nothing has changed then. */
fg_status fg_pool_borrow(fg_pool *pool, uint32_t block_id);
void fg_pool_unref(fg_pool *pool, uint32_t block_id);
void fg_pool_pin(fg_pool *pool, uint32_t block_id);
void fg_pool_unpin(fg_pool *pool, uint32_t block_id);

/* Marks a block in use: when nobody uses it any more, it is cached rather than free. */
void fg_pool_keep(fg_pool *pool, uint32_t block_id);
/* Takes the mark away, in any state; a cached block becomes free. */
void fg_pool_forget(fg_pool *pool, uint32_t block_id);

uint32_t fg_pool_refs(const fg_pool *pool, uint32_t block_id);
bool fg_pool_is_pinned(const fg_pool *pool, uint32_t block_id);
bool fg_pool_is_kept(const fg_pool *pool, uint32_t block_id);
uint32_t fg_pool_generation(const fg_pool *pool, uint32_t block_id);
/* O(1). */
void fg_pool_stats_get(const fg_pool *pool, fg_pool_stats *stats_out);
/* Recounts everything and compares with the running counters and lists; aborts on a difference. */
void fg_pool_check(const fg_pool *pool);

/* The pool at rest, as bytes: nothing is pinned or promised, though blocks may be held. Equal pools give
 * equal bytes; the size is a multiple of 8 and goes with how many blocks are held. */
size_t fg_pool_state_bytes(const fg_pool *pool);
/* All that decides what the pool answers from now on (references, marks, generations, the order of both
 * lists, stats), into fg_pool_state_bytes bytes, each of which is written. The listener is not part of it. */
void fg_pool_state_get(const fg_pool *pool, void *state_out);
/* Takes a state over that may come from anybody, in a pool that is as create made it. False: it is not the
 * state of a pool with this many blocks, and this one is as it was. Allocates nothing. */
bool fg_pool_state_set(fg_pool *pool, const void *state, size_t size_bytes);

#endif
