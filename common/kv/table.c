#include "common/kv/table.h"

#include <stddef.h>

#include "common/kv/layout.h"

void fg_table_init(fg_table *table, uint32_t *blocks, uint32_t block_max, uint32_t block_size)
{
    FG_ASSERT(block_size > 0);
    *table = (fg_table){ .blocks = blocks, .max = block_max, .block_size = block_size };
}

uint32_t fg_table_need(const fg_table *table, uint32_t token_count)
{
    uint32_t want = fg_kv_blocks_for(token_count, table->block_size);
    return want > table->count ? want - table->count : 0;
}

/* `count` blocks out of the table's promise, then from the pool; all or none. */
static fg_status take(fg_table *table, fg_pool *pool, uint32_t count, uint32_t *blocks_out,
                      fg_shortage *shortage_out)
{
    uint32_t from_promise = count < table->promised ? count : table->promised;
    uint32_t more = count - from_promise;
    if (fg_pool_promise(pool, more) != FG_OK) {
        if (shortage_out != NULL) {
            *shortage_out = (fg_shortage){ .needed = more, .available = fg_pool_available(pool) };
        }
        return FG_AGAIN;
    }
    fg_pool_take_promised(pool, count, blocks_out);
    table->promised -= from_promise;
    return FG_OK;
}

static void release(fg_pool *pool, const fg_table_ops *ops, uint32_t block_id)
{
    if (ops != NULL && ops->release != NULL) {
        ops->release(ops->ctx, block_id);
    } else {
        fg_pool_unref(pool, block_id);
    }
}

fg_status fg_table_grow(fg_table *table, fg_pool *pool, uint32_t token_count,
                        fg_shortage *shortage_out)
{
    uint32_t need = fg_table_need(table, token_count);
    if (need > table->max - table->count) {
        return FG_BAD_INPUT;
    }
    fg_status status = FG_OK;
    if (need > 0) {
        status = take(table, pool, need, table->blocks + table->count, shortage_out);
    }
    table->count += status == FG_OK ? need : 0;
    return status;
}

void fg_table_fork(fg_table *table, const fg_table *from, fg_pool *pool, uint32_t token_count)
{
    uint32_t count = fg_kv_blocks_for(token_count, from->block_size);
    FG_ASSERT(table->count == 0 && table->block_size == from->block_size);
    FG_ASSERT(count <= from->count && count <= table->max, "fork of %u blocks: %u held, room %u",
              count, from->count, table->max);
    for (uint32_t i = 0; i < count; i++) {
        fg_pool_ref(pool, from->blocks[i]);
        table->blocks[i] = from->blocks[i];
    }
    table->count = count;
}

void fg_table_adopt(fg_table *table, const uint32_t *block_ids, uint32_t count)
{
    FG_ASSERT(count <= table->max - table->count, "%u blocks more than %u of %u", count,
              table->count, table->max);
    for (uint32_t i = 0; i < count; i++) {
        table->blocks[table->count++] = block_ids[i];
    }
}

fg_status fg_table_writable(fg_table *table, fg_pool *pool, uint32_t index, const fg_table_ops *ops,
                            fg_shortage *shortage_out)
{
    FG_ASSERT(index < table->count, "block %u of %u", index, table->count);
    uint32_t shared = table->blocks[index], fresh;
    /* A kept block is shared with the cache, which would hand out what is written now as what the
     * block's key promises. */
    if (fg_pool_refs(pool, shared) == 1 && !fg_pool_is_kept(pool, shared)) {
        return FG_OK;
    }
    fg_status status = take(table, pool, 1, &fresh, shortage_out);
    if (status != FG_OK) {
        return status;
    }
    ops->copy(ops->ctx, shared, fresh);
    release(pool, ops, shared);
    table->blocks[index] = fresh;
    return FG_OK;
}

void fg_table_replace(fg_table *table, fg_pool *pool, uint32_t index, uint32_t block_id,
                      const fg_table_ops *ops)
{
    FG_ASSERT(index < table->count, "block %u of %u", index, table->count);
    uint32_t old = table->blocks[index];
    /* The table names the new block before the old one can be taken by anybody (trap: a duplicate that
     * is freed while a table still points to it). */
    table->blocks[index] = block_id;
    release(pool, ops, old);
}

void fg_table_truncate(fg_table *table, fg_pool *pool, uint32_t token_count,
                       const fg_table_ops *ops)
{
    uint32_t keep = fg_kv_blocks_for(token_count, table->block_size);
    while (table->count > keep) {
        table->count--;
        release(pool, ops, table->blocks[table->count]);
    }
}

void fg_table_clear(fg_table *table, fg_pool *pool, const fg_table_ops *ops)
{
    fg_table_truncate(table, pool, 0, ops);
    fg_pool_unpromise(pool, table->promised);
    table->promised = 0;
}
