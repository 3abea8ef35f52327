/*
 * table - the block table of one sequence: which pool block holds its tokens 16i .. 16i+15 (for a block
 * size of 16). Embedded by value in its sequence; owned by the loop thread.
 *
 * It grows lazily: a block is taken when its first slot is needed. Every change is all or nothing: out
 * of blocks leaves table and pool as they were, and says how many were needed. Blocks may be shared with
 * other tables; a shared one is copied before the first write into it.
 */
#ifndef FORGE_COMMON_KV_TABLE_H
#define FORGE_COMMON_KV_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/kv/pool.h"

typedef struct fg_table {
    uint32_t *blocks;    /* the caller's array of block_max ids */
    uint32_t count, max; /* blocks held; room */
    uint32_t block_size;
    uint32_t promised; /* blocks set aside in the pool for this table: used first */
} fg_table;

typedef struct fg_shortage {
    uint32_t needed;    /* blocks beyond the table's own promise */
    uint32_t available; /* as fg_pool_available counts */
} fg_shortage;

/* What a table needs of its surroundings when blocks are copied or let go. */
typedef struct fg_table_ops {
    /* Copies a block's bytes; called before the old block is let go. Needed by fg_table_writable alone;
     * the other functions take no ops at all, too. */
    void (*copy)(void *ctx, uint32_t from_block, uint32_t to_block);
    /* Gives up one reference, now or when nothing that was launched reads the block any more. NULL:
     * fg_pool_unref at once. */
    void (*release)(void *ctx, uint32_t block_id);
    void *ctx;
} fg_table_ops;

void fg_table_init(fg_table *table, uint32_t *blocks, uint32_t block_max, uint32_t block_size);

/* Blocks still missing for `token_count` tokens: 0 while they fit into the slots of the blocks held,
 * else ceil of the rest. */
uint32_t fg_table_need(const fg_table *table, uint32_t token_count);
/* Makes room for `token_count` tokens in all: out of the table's promise first, then from the pool.
 * FG_AGAIN: fills *shortage_out (may be NULL), changes nothing. FG_BAD_INPUT: beyond `max`. */
fg_status fg_table_grow(fg_table *table, fg_pool *pool, uint32_t token_count,
                        fg_shortage *shortage_out);
/* An empty table gets references to the blocks of `from` that hold its first `token_count` tokens. */
void fg_table_fork(fg_table *table, const fg_table *from, fg_pool *pool, uint32_t token_count);
/* An empty (or grown) table gets `count` blocks, each with a reference that the caller already took. */
void fg_table_adopt(fg_table *table, const uint32_t *block_ids, uint32_t count);
/* Makes block `index` private. Nothing happens when it is: one reference, and no mark of the cache. Else
 * allocate (out of the promise first), copy, release the shared one, swap, in this order. FG_AGAIN: no
 * block to be had, nothing has changed. */
fg_status fg_table_writable(fg_table *table, fg_pool *pool, uint32_t index, const fg_table_ops *ops,
                            fg_shortage *shortage_out);
/* Puts another block, whose reference the caller took, in the place of block `index`, which is released:
 * two sequences computed the same tokens, and one copy is enough. */
void fg_table_replace(fg_table *table, fg_pool *pool, uint32_t index, uint32_t block_id,
                      const fg_table_ops *ops);
/* Rolls back to `token_count` tokens: blocks wholly beyond are released, the last ones first, so that in
 * the cache a prefix outlives what followed it. The promise stays. */
void fg_table_truncate(fg_table *table, fg_pool *pool, uint32_t token_count,
                       const fg_table_ops *ops);
/* Everything back to the pool, promise included. */
void fg_table_clear(fg_table *table, fg_pool *pool, const fg_table_ops *ops);

#endif
