#include "common/kv/pool.h"

#include "common/base/limits.h"
#include "common/base/mem.h"

typedef struct block {
    uint32_t refs;
    uint32_t pins;
    uint32_t generation;
} block;

struct fg_pool {
    block *blocks;
    uint32_t *free_ids; /* a stack: the block freed last is warm in the caches */
    fg_pool_stats stats;
};

fg_status fg_pool_create(uint32_t block_count, fg_pool **pool_out, fg_error *err)
{
    if (block_count == 0 || block_count > FG_LIMIT_BLOCKS) {
        return fg_fail(err, FG_BAD_INPUT, "KV block count %u is not in 1..%u", block_count,
                       FG_LIMIT_BLOCKS);
    }
    fg_pool *pool = fg_mem_alloc(sizeof *pool);
    if (pool == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for the block pool");
    }
    pool->blocks = fg_mem_array(block_count, sizeof *pool->blocks);
    pool->free_ids = fg_mem_array(block_count, sizeof *pool->free_ids);
    if (pool->blocks == NULL || pool->free_ids == NULL) {
        fg_mem_free(pool->blocks);
        fg_mem_free(pool->free_ids);
        fg_mem_free(pool);
        return fg_fail(err, FG_AGAIN, "out of memory for %u KV block records", block_count);
    }
    for (uint32_t i = 0; i < block_count; i++) {
        pool->free_ids[i] = block_count - 1 - i; /* block 0 is taken first */
    }
    pool->stats.total = block_count;
    pool->stats.free = block_count;
    *pool_out = pool;
    return FG_OK;
}

void fg_pool_destroy(fg_pool *pool, bool abandon)
{
    if (pool == NULL) {
        return;
    }
    FG_ASSERT(abandon || pool->stats.free == pool->stats.total, "%u of %u KV blocks leaked",
              pool->stats.total - pool->stats.free, pool->stats.total);
    fg_mem_free(pool->blocks);
    fg_mem_free(pool->free_ids);
    fg_mem_free(pool);
}

/* The running counter that a block with these counts belongs to. */
static uint32_t *counter_of(fg_pool_stats *stats, const block *b)
{
    if (b->pins > 0) {
        return b->refs > 0 ? &stats->pinned : &stats->quarantined;
    }
    return b->refs > 0 ? &stats->held : &stats->free;
}

static block *block_at(const fg_pool *pool, uint32_t block_id)
{
    FG_ASSERT(block_id < pool->stats.total, "block %u of %u", block_id, pool->stats.total);
    return &pool->blocks[block_id];
}

/* Changes a block's counts and moves it between the counters; puts it on the free list when the last
 * count is gone. */
static void change(fg_pool *pool, uint32_t block_id, int refs, int pins)
{
    block *b = block_at(pool, block_id);
    FG_ASSERT(b->refs > 0 || b->pins > 0, "block %u is free", block_id);
    FG_ASSERT((int64_t)b->refs + refs >= 0 && (int64_t)b->pins + pins >= 0,
              "block %u: %u refs %+d, %u pins %+d", block_id, b->refs, refs, b->pins, pins);
    (*counter_of(&pool->stats, b))--;
    b->refs = (uint32_t)((int64_t)b->refs + refs);
    b->pins = (uint32_t)((int64_t)b->pins + pins);
    (*counter_of(&pool->stats, b))++;
    if (b->refs == 0 && b->pins == 0) {
        b->generation++;
        pool->free_ids[pool->stats.free - 1] = block_id;
    }
}

fg_status fg_pool_promise(fg_pool *pool, uint32_t count)
{
    if (pool->stats.free - pool->stats.promised < count) {
        return FG_AGAIN;
    }
    pool->stats.promised += count;
    return FG_OK;
}

void fg_pool_unpromise(fg_pool *pool, uint32_t count)
{
    FG_ASSERT(count <= pool->stats.promised, "unpromise %u of %u", count, pool->stats.promised);
    pool->stats.promised -= count;
}

fg_status fg_pool_take(fg_pool *pool, uint32_t count, uint32_t *block_ids_out)
{
    fg_status status = fg_pool_promise(pool, count);
    if (status == FG_OK) {
        fg_pool_take_promised(pool, count, block_ids_out);
    }
    return status;
}

void fg_pool_take_promised(fg_pool *pool, uint32_t count, uint32_t *block_ids_out)
{
    fg_pool_unpromise(pool, count);
    fg_pool_stats *stats = &pool->stats;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t block_id = pool->free_ids[stats->free - 1];
        FG_ASSERT(pool->blocks[block_id].refs == 0 && pool->blocks[block_id].pins == 0);
        pool->blocks[block_id].refs = 1;
        stats->free--;
        stats->held++;
        block_ids_out[i] = block_id;
    }
    uint32_t used = stats->total - stats->free;
    stats->used_peak = used > stats->used_peak ? used : stats->used_peak;
}

void fg_pool_ref(fg_pool *pool, uint32_t block_id)
{
    FG_ASSERT(block_at(pool, block_id)->refs > 0, "ref of block %u without an owner", block_id);
    change(pool, block_id, 1, 0);
}

void fg_pool_unref(fg_pool *pool, uint32_t block_id)
{
    change(pool, block_id, -1, 0);
}

void fg_pool_pin(fg_pool *pool, uint32_t block_id)
{
    change(pool, block_id, 0, 1);
}

void fg_pool_unpin(fg_pool *pool, uint32_t block_id)
{
    change(pool, block_id, 0, -1);
}

bool fg_pool_is_pinned(const fg_pool *pool, uint32_t block_id)
{
    return block_at(pool, block_id)->pins > 0;
}

uint32_t fg_pool_generation(const fg_pool *pool, uint32_t block_id)
{
    return block_at(pool, block_id)->generation;
}

void fg_pool_stats_get(const fg_pool *pool, fg_pool_stats *stats_out)
{
    *stats_out = pool->stats;
}

void fg_pool_check(const fg_pool *pool)
{
    fg_pool_stats count = { .total = pool->stats.total };
    for (uint32_t i = 0; i < pool->stats.total; i++) {
        (*counter_of(&count, &pool->blocks[i]))++;
    }
    FG_ASSERT(count.free == pool->stats.free && count.held == pool->stats.held &&
                  count.pinned == pool->stats.pinned &&
                  count.quarantined == pool->stats.quarantined,
              "pool counters are wrong");
    FG_ASSERT(pool->stats.promised <= pool->stats.free);
    for (uint32_t i = 0; i < pool->stats.free; i++) {
        const block *b = block_at(pool, pool->free_ids[i]);
        FG_ASSERT(b->refs == 0 && b->pins == 0, "block %u is in use and free", pool->free_ids[i]);
    }
}
