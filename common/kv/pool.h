/*
 * pool - the fixed set of KV blocks of one worker. Owned by the loop thread.
 *
 * A block is in exactly one of these states, told by its two counters:
 *   free         no reference, no pin: on the free list (last freed, first taken)
 *   held         referenced by at least one sequence, not pinned
 *   pinned       referenced, and named in a live ticket
 *   quarantined  no sequence wants it any more, but its writer or reader may not have stopped: pins
 *                above zero. It becomes free only by the last unpin, never by time.
 *
 *   free --take--> held --pin--> pinned --unref--> quarantined --unpin--> free
 *                  held --unref--> free            pinned --unpin--> held
 *
 * A block's generation grows each time it becomes free, so that a stale name of it can be told.
 * Promises set free blocks aside without choosing them: what is promised cannot be taken by others.
 */
#ifndef FORGE_COMMON_KV_POOL_H
#define FORGE_COMMON_KV_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

typedef struct fg_pool fg_pool;

typedef struct fg_pool_stats {
    uint32_t total, free, cached, held, pinned, quarantined;
    uint32_t promised; /* part of free that is set aside */
    uint32_t used_peak;
} fg_pool_stats;

fg_status fg_pool_create(uint32_t block_count, fg_pool **pool_out, fg_error *err);
/* Every block must be free again: a block still in use here is a leak, which is a bug, except when
 * `abandon` says that the process is ending with work in flight. */
void fg_pool_destroy(fg_pool *pool, bool abandon);

/* Sets `count` free blocks aside, or none: FG_AGAIN. */
fg_status fg_pool_promise(fg_pool *pool, uint32_t count);
void fg_pool_unpromise(fg_pool *pool, uint32_t count);
/* Takes `count` blocks, one reference each, or none at all: FG_AGAIN when too few are free and not
 * promised. */
fg_status fg_pool_take(fg_pool *pool, uint32_t count, uint32_t *block_ids_out);
/* Takes blocks out of an earlier promise of the caller: cannot fail. */
void fg_pool_take_promised(fg_pool *pool, uint32_t count, uint32_t *block_ids_out);

void fg_pool_ref(fg_pool *pool, uint32_t block_id);
void fg_pool_unref(fg_pool *pool, uint32_t block_id);
void fg_pool_pin(fg_pool *pool, uint32_t block_id);
void fg_pool_unpin(fg_pool *pool, uint32_t block_id);

bool fg_pool_is_pinned(const fg_pool *pool, uint32_t block_id);
uint32_t fg_pool_generation(const fg_pool *pool, uint32_t block_id);
/* O(1). */
void fg_pool_stats_get(const fg_pool *pool, fg_pool_stats *stats_out);
/* Recounts everything and compares with the running counters; aborts on a difference. */
void fg_pool_check(const fg_pool *pool);

#endif
