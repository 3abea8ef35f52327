#include "common/kv/pool.h"

#include "common/base/limits.h"
#include "common/base/mem.h"
#include "common/kv/list_internal.h"
#include "common/kv/state_internal.h"

typedef struct block {
    uint32_t refs;
    uint32_t pins;
    uint32_t generation;
    bool is_kept;
} block;

struct fg_pool {
    block *blocks;
    fg_list_link *links;
    fg_list free;   /* a stack at its head: the block freed last is warm in the caches */
    fg_list cached; /* least recently used at the head */
    fg_pool_stats stats;
    void (*on_evict)(void *ctx, uint32_t block_id);
    void *on_evict_ctx;
};

static void make_fresh(fg_pool *pool, uint32_t block_count)
{
    fg_list_init(&pool->free);
    fg_list_init(&pool->cached);
    for (uint32_t i = 0; i < block_count; i++) {
        pool->blocks[i] = (block){ 0 };
        fg_list_push_tail(&pool->free, pool->links, i); /* block 0 is taken first */
    }
    pool->stats = (fg_pool_stats){ .total = block_count, .free = block_count };
}

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
    pool->links = fg_mem_array(block_count, sizeof *pool->links);
    if (pool->blocks == NULL || pool->links == NULL) {
        fg_mem_free(pool->blocks);
        fg_mem_free(pool->links);
        fg_mem_free(pool);
        return fg_fail(err, FG_AGAIN, "out of memory for %u KV block records", block_count);
    }
    make_fresh(pool, block_count);
    *pool_out = pool;
    return FG_OK;
}

void fg_pool_destroy(fg_pool *pool, bool abandon)
{
    if (pool == NULL) {
        return;
    }
    uint32_t used = pool->stats.total - pool->stats.free - pool->stats.cached;
    FG_ASSERT(abandon || used == 0, "%u of %u KV blocks leaked", used, pool->stats.total);
    fg_mem_free(pool->blocks);
    fg_mem_free(pool->links);
    fg_mem_free(pool);
}

void fg_pool_on_evict(fg_pool *pool, void (*on_evict)(void *ctx, uint32_t block_id), void *ctx)
{
    pool->on_evict = on_evict;
    pool->on_evict_ctx = ctx;
}

static bool is_in_use(const block *b)
{
    return b->refs > 0 || b->pins > 0;
}

/* The running counter that a block with these counts and this mark belongs to. */
static uint32_t *counter_of(fg_pool_stats *stats, const block *b)
{
    if (b->pins > 0) {
        return b->refs > 0 ? &stats->pinned : &stats->quarantined;
    }
    if (b->refs > 0) {
        return &stats->held;
    }
    return b->is_kept ? &stats->cached : &stats->free;
}

static block *block_at(const fg_pool *pool, uint32_t block_id)
{
    FG_ASSERT(block_id < pool->stats.total, "block %u of %u", block_id, pool->stats.total);
    return &pool->blocks[block_id];
}

/* The only place where a block changes its state: counts, mark, counters, list and generation move
 * together here. */
static void change(fg_pool *pool, uint32_t block_id, int refs, int pins, bool is_kept)
{
    block *b = block_at(pool, block_id);
    fg_pool_stats *stats = &pool->stats;
    FG_ASSERT((int64_t)b->refs + refs >= 0 && (int64_t)b->pins + pins >= 0,
              "block %u: %u refs %+d, %u pins %+d", block_id, b->refs, refs, b->pins, pins);
    (*counter_of(stats, b))--;
    if (!is_in_use(b)) {
        fg_list_remove(b->is_kept ? &pool->cached : &pool->free, pool->links, block_id);
    }
    b->refs = (uint32_t)((int64_t)b->refs + refs);
    b->pins = (uint32_t)((int64_t)b->pins + pins);
    b->is_kept = is_kept;
    (*counter_of(stats, b))++;
    if (is_in_use(b)) {
        uint32_t used = stats->total - stats->free - stats->cached;
        stats->used_peak = used > stats->used_peak ? used : stats->used_peak;
    } else if (is_kept) {
        fg_list_push_tail(&pool->cached, pool->links, block_id);
    } else {
        b->generation++;
        fg_list_push_head(&pool->free, pool->links, block_id);
    }
}

/* As change(), for a block that must be in use. */
static void change_used(fg_pool *pool, uint32_t block_id, int refs, int pins)
{
    const block *b = block_at(pool, block_id);
    FG_ASSERT(is_in_use(b), "block %u is not in use", block_id);
    change(pool, block_id, refs, pins, b->is_kept);
}

uint32_t fg_pool_available(const fg_pool *pool)
{
    return pool->stats.free + pool->stats.cached - pool->stats.promised;
}

fg_status fg_pool_promise(fg_pool *pool, uint32_t count)
{
    if (fg_pool_available(pool) < count) {
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

static uint32_t take_cached(fg_pool *pool)
{
    uint32_t block_id = pool->cached.head;
    FG_ASSERT(block_id != FG_LIST_END, "more blocks promised than there are");
    change(pool, block_id, 1, 0, false);
    pool->blocks[block_id].generation++;
    pool->stats.evictions++;
    if (pool->on_evict != NULL) {
        pool->on_evict(pool->on_evict_ctx, block_id);
    }
    return block_id;
}

/* Ascending: blocks that lie side by side in memory become neighbours in the table too, and travel to
 * another worker together. Mostly they come ascending, or descending from a table that was given back;
 * the rest is sorted in place, by gaps that shrink. */
static void sort_ids(uint32_t *ids, uint32_t count)
{
    bool ascending = true, descending = true;
    for (uint32_t i = 1; i < count && (ascending || descending); i++) {
        ascending = ascending && ids[i - 1] < ids[i];
        descending = descending && ids[i - 1] > ids[i];
    }
    if (ascending) {
        return;
    }
    for (uint32_t i = 0; descending && i < count / 2; i++) {
        uint32_t id = ids[i];
        ids[i] = ids[count - 1 - i];
        ids[count - 1 - i] = id;
    }
    for (uint32_t gap = count / 2; !descending && gap > 0; gap = gap == 2 ? 1 : gap * 5 / 11) {
        for (uint32_t i = gap; i < count; i++) {
            uint32_t id = ids[i], at = i;
            for (; at >= gap && ids[at - gap] > id; at -= gap) {
                ids[at] = ids[at - gap];
            }
            ids[at] = id;
        }
    }
}

void fg_pool_take_promised(fg_pool *pool, uint32_t count, uint32_t *block_ids_out)
{
    fg_pool_unpromise(pool, count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t block_id = pool->free.head;
        if (block_id != FG_LIST_END) {
            change(pool, block_id, 1, 0, false);
        } else {
            block_id = take_cached(pool);
        }
        block_ids_out[i] = block_id;
    }
    sort_ids(block_ids_out, count);
}

void fg_pool_ref(fg_pool *pool, uint32_t block_id)
{
    FG_ASSERT(block_at(pool, block_id)->refs > 0, "ref of block %u without an owner", block_id);
    change_used(pool, block_id, 1, 0);
}

fg_status fg_pool_borrow(fg_pool *pool, uint32_t block_id)
{
    const block *b = block_at(pool, block_id);
    FG_ASSERT(b->is_kept, "borrow of block %u, which is not kept", block_id);
    if (!is_in_use(b) && fg_pool_available(pool) == 0) {
        return FG_AGAIN;
    }
    change(pool, block_id, 1, 0, true);
    return FG_OK;
}

void fg_pool_unref(fg_pool *pool, uint32_t block_id)
{
    change_used(pool, block_id, -1, 0);
}

void fg_pool_pin(fg_pool *pool, uint32_t block_id)
{
    change_used(pool, block_id, 0, 1);
}

void fg_pool_unpin(fg_pool *pool, uint32_t block_id)
{
    change_used(pool, block_id, 0, -1);
}

void fg_pool_keep(fg_pool *pool, uint32_t block_id)
{
    FG_ASSERT(is_in_use(block_at(pool, block_id)), "keep of block %u, not in use", block_id);
    change(pool, block_id, 0, 0, true);
}

void fg_pool_forget(fg_pool *pool, uint32_t block_id)
{
    if (block_at(pool, block_id)->is_kept) {
        change(pool, block_id, 0, 0, false);
    }
}

uint32_t fg_pool_refs(const fg_pool *pool, uint32_t block_id)
{
    return block_at(pool, block_id)->refs;
}

bool fg_pool_is_pinned(const fg_pool *pool, uint32_t block_id)
{
    return block_at(pool, block_id)->pins > 0;
}

bool fg_pool_is_kept(const fg_pool *pool, uint32_t block_id)
{
    return block_at(pool, block_id)->is_kept;
}

uint32_t fg_pool_generation(const fg_pool *pool, uint32_t block_id)
{
    return block_at(pool, block_id)->generation;
}

void fg_pool_stats_get(const fg_pool *pool, fg_pool_stats *stats_out)
{
    *stats_out = pool->stats;
}

static bool is_free(const void *ctx, uint32_t block_id)
{
    const block *b = block_at(ctx, block_id);
    return !is_in_use(b) && !b->is_kept;
}

static bool is_cached(const void *ctx, uint32_t block_id)
{
    const block *b = block_at(ctx, block_id);
    return !is_in_use(b) && b->is_kept;
}

void fg_pool_check(const fg_pool *pool)
{
    const fg_pool_stats *stats = &pool->stats;
    fg_pool_stats count = { .total = stats->total };
    for (uint32_t i = 0; i < stats->total; i++) {
        (*counter_of(&count, &pool->blocks[i]))++;
    }
    FG_ASSERT(count.free == stats->free && count.cached == stats->cached &&
                  count.held == stats->held && count.pinned == stats->pinned &&
                  count.quarantined == stats->quarantined,
              "pool counters are wrong");
    FG_ASSERT(stats->promised <= stats->free + stats->cached, "%u promised of %u + %u",
              stats->promised, stats->free, stats->cached);
    FG_ASSERT(stats->total - stats->free - stats->cached <= stats->used_peak);
    FG_ASSERT(pool->free.count == stats->free && pool->cached.count == stats->cached);
    fg_list_check(&pool->free, pool->links, stats->total, is_free, pool);
    fg_list_check(&pool->cached, pool->links, stats->total, is_cached, pool);
}

/* ---- the state ----
 *
 * The head; every block's generation; the free list and the list of cached blocks, each from its head; a
 * pair per held block, ascending: its id, and its references with the mark as lowest bit. */

typedef struct state_head {
    uint32_t total, free, cached, held, used_peak, zero;
    uint64_t evictions;
} state_head;

_Static_assert(sizeof(state_head) == 32, "no padding");

enum { REFS_MAX = INT32_MAX };

static size_t state_bytes(const state_head *head)
{
    size_t words = (size_t)head->total + head->free + head->cached + 2 * (size_t)head->held;
    return fg_state_round(sizeof *head + words * sizeof(uint32_t));
}

static state_head head_of(const fg_pool *pool)
{
    const fg_pool_stats *stats = &pool->stats;
    FG_ASSERT(stats->pinned == 0 && stats->quarantined == 0 && stats->promised == 0,
              "the pool is not at rest: %u pinned, %u quarantined, %u promised", stats->pinned,
              stats->quarantined, stats->promised);
    return (state_head){
        .total = stats->total,
        .free = stats->free,
        .cached = stats->cached,
        .held = stats->held,
        .used_peak = stats->used_peak,
        .evictions = stats->evictions,
    };
}

size_t fg_pool_state_bytes(const fg_pool *pool)
{
    state_head head = head_of(pool);
    return state_bytes(&head);
}

void fg_pool_state_get(const fg_pool *pool, void *state_out)
{
    state_head head = head_of(pool);
    uint8_t *end = (uint8_t *)state_out + state_bytes(&head);
    uint8_t *at = fg_state_put(state_out, &head, sizeof head);
    for (uint32_t i = 0; i < head.total; i++) {
        at = fg_state_put_u32(at, pool->blocks[i].generation);
    }
    at = fg_state_put_list(at, &pool->free, pool->links);
    at = fg_state_put_list(at, &pool->cached, pool->links);
    for (uint32_t i = 0; i < head.total; i++) {
        const block *b = &pool->blocks[i];
        if (b->refs > 0) {
            FG_ASSERT(b->refs <= REFS_MAX, "block %u: %u refs", i, b->refs);
            at = fg_state_put_u32(at, i);
            at = fg_state_put_u32(at, b->refs << 1 | b->is_kept);
        }
    }
    memset(at, 0, (size_t)(end - at));
}

static bool head_makes_sense(const state_head *head, uint32_t total)
{
    return head->total == total && head->free <= total && head->cached <= total - head->free &&
           head->held == total - head->free - head->cached && head->used_peak >= head->held &&
           head->used_peak <= total && head->zero == 0;
}

/* A block that the state names for the first time; NULL: there is none of that id, or it was named before.
 * While a state is read, a pin stands for "not named yet". */
static block *name_block(fg_pool *pool, uint32_t block_id)
{
    block *b = block_id < pool->stats.total ? &pool->blocks[block_id] : NULL;
    if (b == NULL || b->pins == 0) {
        return NULL;
    }
    b->pins = 0;
    return b;
}

static bool read_list(fg_pool *pool, const uint8_t **at, uint32_t count, bool is_kept)
{
    fg_list *list = is_kept ? &pool->cached : &pool->free;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t id;
        *at = fg_state_get_u32(*at, &id);
        block *b = name_block(pool, id);
        if (b == NULL) {
            return false;
        }
        b->is_kept = is_kept;
        fg_list_push_tail(list, pool->links, id);
    }
    return true;
}

static bool read_held(fg_pool *pool, const uint8_t **at, uint32_t count)
{
    uint32_t first = 0; /* that may come: ids ascend */
    for (uint32_t i = 0; i < count; i++) {
        uint32_t id, use;
        *at = fg_state_get_u32(*at, &id);
        *at = fg_state_get_u32(*at, &use);
        block *b = id >= first ? name_block(pool, id) : NULL;
        if (b == NULL || use >> 1 == 0) {
            return false;
        }
        b->refs = use >> 1;
        b->is_kept = use & 1;
        first = id + 1;
    }
    return true;
}

bool fg_pool_state_set(fg_pool *pool, const void *state, size_t size_bytes)
{
    uint32_t total = pool->stats.total;
    FG_ASSERT(pool->stats.free == total && pool->stats.promised == 0, "the pool is not fresh");
    state_head head;
    if (size_bytes < sizeof head) {
        return false;
    }
    const uint8_t *at = fg_state_get(state, &head, sizeof head);
    const uint8_t *end = (const uint8_t *)state + size_bytes;
    if (!head_makes_sense(&head, total) || size_bytes != state_bytes(&head)) {
        return false;
    }
    fg_list_init(&pool->free);
    fg_list_init(&pool->cached);
    for (uint32_t i = 0; i < total; i++) {
        pool->blocks[i] = (block){ .pins = 1 };
        at = fg_state_get_u32(at, &pool->blocks[i].generation);
    }
    /* As many names as blocks, and none of them twice: every block is named. */
    if (!read_list(pool, &at, head.free, false) || !read_list(pool, &at, head.cached, true) ||
        !read_held(pool, &at, head.held) || !fg_state_is_zero(at, end)) {
        make_fresh(pool, total);
        return false;
    }
    pool->stats = (fg_pool_stats){
        .total = total,
        .free = head.free,
        .cached = head.cached,
        .held = head.held,
        .used_peak = head.used_peak,
        .evictions = head.evictions,
    };
    return true;
}
