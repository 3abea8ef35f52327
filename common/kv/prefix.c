#include "common/kv/prefix.h"

#include <string.h>

#include "common/base/mem.h"
#include "common/kv/index_internal.h"
#include "common/kv/layout.h"
#include "common/kv/state_internal.h"

struct fg_prefix {
    fg_prefix_options options;
    fg_block_namer namer;
    fg_index entries;        /* nodes are block ids */
    fg_digest128 *parents;   /* per block */
    uint32_t *tokens;        /* block_size per block */
    fg_index expected;       /* nodes come from the list below */
    uint32_t *expect_counts; /* per node */
    uint32_t *expect_free;   /* a stack of unlinked nodes */
    fg_prefix_stats stats;
};

static void forget_evicted(void *ctx, uint32_t block_id);

static void free_memory(fg_prefix *prefix)
{
    fg_index_deinit(&prefix->entries);
    fg_index_deinit(&prefix->expected);
    fg_mem_free(prefix->parents);
    fg_mem_free(prefix->tokens);
    fg_mem_free(prefix->expect_counts);
    fg_mem_free(prefix->expect_free);
    fg_mem_free(prefix);
}

fg_status fg_prefix_create(const fg_prefix_options *options, fg_prefix **prefix_out, fg_error *err)
{
    uint32_t count = options->block_count;
    fg_pool_stats pool;
    fg_pool_stats_get(options->pool, &pool);
    FG_ASSERT(count == pool.total, "prefix of %u blocks, pool of %u", count, pool.total);
    if (options->block_size == 0 || options->block_size > FG_KV_BLOCK_SIZE_MAX) {
        return fg_fail(err, FG_BAD_INPUT, "prefix cache: block size is %u (1 to %u)",
                       options->block_size, FG_KV_BLOCK_SIZE_MAX);
    }
    fg_prefix *prefix = fg_mem_alloc(sizeof *prefix);
    if (prefix == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for the prefix cache");
    }
    prefix->options = *options;
    prefix->namer =
        (fg_block_namer){ .identity = options->identity, .block_size = options->block_size };
    prefix->parents = fg_mem_array(count, sizeof *prefix->parents);
    prefix->tokens = fg_mem_array(count, options->block_size * sizeof *prefix->tokens);
    prefix->expect_counts = fg_mem_array(count, sizeof *prefix->expect_counts);
    prefix->expect_free = fg_mem_array(count, sizeof *prefix->expect_free);
    if (prefix->parents == NULL || prefix->tokens == NULL || prefix->expect_counts == NULL ||
        prefix->expect_free == NULL || !fg_index_init(&prefix->entries, count) ||
        !fg_index_init(&prefix->expected, count)) {
        free_memory(prefix);
        return fg_fail(err, FG_AGAIN, "out of memory for the prefix cache of %u blocks", count);
    }
    for (uint32_t i = 0; i < count; i++) {
        prefix->expect_free[i] = count - 1 - i;
    }
    fg_pool_on_evict(options->pool, forget_evicted, prefix);
    *prefix_out = prefix;
    return FG_OK;
}

void fg_prefix_destroy(fg_prefix *prefix)
{
    if (prefix == NULL) {
        return;
    }
    fg_prefix_clear(prefix);
    fg_pool_on_evict(prefix->options.pool, NULL, NULL);
    free_memory(prefix);
}

void fg_prefix_set_secret(fg_prefix *prefix, fg_digest128 secret)
{
    if (!fg_digest_same(prefix->namer.secret, secret)) {
        fg_prefix_clear(prefix);
        prefix->namer.secret = secret;
    }
}

fg_digest128 fg_prefix_root(const fg_prefix *prefix, uint64_t salt_low, uint64_t salt_high)
{
    return fg_block_root(&prefix->namer, salt_low, salt_high);
}

fg_digest128 fg_prefix_key(const fg_prefix *prefix, fg_digest128 parent, uint32_t depth,
                           const uint32_t *tokens)
{
    return fg_block_key(&prefix->namer, parent, depth, tokens);
}

/* ---- entries ---- */

static uint32_t *tokens_of(const fg_prefix *prefix, uint32_t block_id)
{
    return prefix->tokens + (size_t)block_id * prefix->options.block_size;
}

static bool holds(const fg_prefix *prefix, uint32_t block_id, fg_digest128 parent,
                  const uint32_t *tokens)
{
    return fg_digest_same(prefix->parents[block_id], parent) &&
           memcmp(tokens_of(prefix, block_id), tokens,
                  prefix->options.block_size * sizeof *tokens) == 0;
}

uint32_t fg_prefix_find(const fg_prefix *prefix, fg_digest128 parent, fg_digest128 key,
                        const uint32_t *tokens)
{
    uint32_t block_id = fg_index_find(&prefix->entries, key);
    return block_id != FG_INDEX_NONE && holds(prefix, block_id, parent, tokens) ? block_id
                                                                                : UINT32_MAX;
}

uint32_t fg_prefix_match(const fg_prefix *prefix, fg_digest128 root, const fg_digest128 *keys,
                         const uint32_t *tokens, uint32_t count, uint32_t *block_ids_out)
{
    fg_digest128 parent = root;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t block_id = fg_prefix_find(prefix, parent, keys[i],
                                           tokens + (size_t)i * prefix->options.block_size);
        if (block_id == UINT32_MAX) {
            return i;
        }
        block_ids_out[i] = block_id;
        parent = keys[i];
    }
    return count;
}

static void tell(const fg_prefix *prefix, bool here, fg_digest128 parent, fg_digest128 key)
{
    if (prefix->options.on_change != NULL) {
        prefix->options.on_change(prefix->options.ctx, here, parent, key);
    }
}

uint32_t fg_prefix_publish(fg_prefix *prefix, fg_digest128 parent, fg_digest128 key,
                           const uint32_t *tokens, uint32_t block_id)
{
    uint32_t known = fg_index_find(&prefix->entries, key);
    if (known != FG_INDEX_NONE) {
        bool is_same = holds(prefix, known, parent, tokens);
        prefix->stats.collisions += !is_same;
        prefix->stats.duplicates += is_same && known != block_id;
        return is_same ? known : block_id;
    }
    fg_pool_keep(prefix->options.pool, block_id);
    fg_index_link(&prefix->entries, block_id, key);
    prefix->parents[block_id] = parent;
    memcpy(tokens_of(prefix, block_id), tokens, prefix->options.block_size * sizeof *tokens);
    prefix->stats.published++;
    tell(prefix, true, parent, key);
    return block_id;
}

static void forget_evicted(void *ctx, uint32_t block_id)
{
    fg_prefix *prefix = ctx;
    fg_prefix_entry entry = {
        .key = prefix->entries.nodes[block_id].key,
        .parent = prefix->parents[block_id],
        .tokens = tokens_of(prefix, block_id),
        .block_id = block_id,
    };
    fg_index_unlink(&prefix->entries, block_id);
    prefix->stats.evicted++;
    tell(prefix, false, entry.parent, entry.key);
    if (prefix->options.on_evict != NULL) {
        prefix->options.on_evict(prefix->options.ctx, &entry);
    }
}

void fg_prefix_clear(fg_prefix *prefix)
{
    for (uint32_t id = 0; id < prefix->options.block_count && prefix->entries.linked > 0; id++) {
        if (prefix->entries.nodes[id].is_linked) {
            fg_index_unlink(&prefix->entries, id);
            fg_pool_forget(prefix->options.pool, id);
            prefix->stats.cleared++;
        }
    }
}

/* ---- expectations ---- */

fg_status fg_prefix_expect(fg_prefix *prefix, fg_digest128 key)
{
    uint32_t node = fg_index_find(&prefix->expected, key);
    if (node == FG_INDEX_NONE) {
        uint32_t linked = prefix->expected.linked;
        if (linked == prefix->expected.node_count) {
            return FG_AGAIN;
        }
        node = prefix->expect_free[prefix->expected.node_count - linked - 1];
        fg_index_link(&prefix->expected, node, key);
    }
    prefix->expect_counts[node]++;
    return FG_OK;
}

void fg_prefix_unexpect(fg_prefix *prefix, fg_digest128 key)
{
    uint32_t node = fg_index_find(&prefix->expected, key);
    FG_ASSERT(node != FG_INDEX_NONE, "a key that was not expected");
    if (--prefix->expect_counts[node] == 0) {
        fg_index_unlink(&prefix->expected, node);
        prefix->expect_free[prefix->expected.node_count - prefix->expected.linked - 1] = node;
    }
}

bool fg_prefix_is_expected(const fg_prefix *prefix, fg_digest128 key)
{
    return fg_index_find(&prefix->expected, key) != FG_INDEX_NONE;
}

/* ---- looking at it ---- */

bool fg_prefix_at(const fg_prefix *prefix, uint32_t block_id, fg_digest128 *parent_out,
                  fg_digest128 *key_out)
{
    if (block_id >= prefix->options.block_count || !prefix->entries.nodes[block_id].is_linked) {
        return false;
    }
    *parent_out = prefix->parents[block_id];
    *key_out = prefix->entries.nodes[block_id].key;
    return true;
}

void fg_prefix_stats_get(const fg_prefix *prefix, fg_prefix_stats *stats_out)
{
    *stats_out = prefix->stats;
    stats_out->entries = prefix->entries.linked;
}

void fg_prefix_check(const fg_prefix *prefix)
{
    uint32_t count = prefix->options.block_count;
    fg_index_check(&prefix->entries);
    fg_index_check(&prefix->expected);
    for (uint32_t id = 0; id < count; id++) {
        FG_ASSERT(prefix->entries.nodes[id].is_linked == fg_pool_is_kept(prefix->options.pool, id),
                  "block %u: kept without an entry, or the other way round", id);
        FG_ASSERT(prefix->expected.nodes[id].is_linked == (prefix->expect_counts[id] > 0));
    }
    for (uint32_t i = 0; i < count - prefix->expected.linked; i++) {
        FG_ASSERT(!prefix->expected.nodes[prefix->expect_free[i]].is_linked);
    }
    FG_ASSERT(prefix->entries.linked ==
              prefix->stats.published - prefix->stats.evicted - prefix->stats.cleared);
}

/* ---- the state ----
 *
 * The head; a bit per block, lowest first, that is set where the block has an entry; key and predecessor of
 * each of those, ascending by block. */

typedef struct state_head {
    uint32_t block_count, entries;
    uint64_t published, duplicates, evicted, collisions, cleared;
} state_head;

typedef struct state_row {
    fg_digest128 key, parent;
} state_row;

_Static_assert(sizeof(state_head) == 48 && sizeof(state_row) == 32, "no padding");

static size_t state_bytes(uint32_t block_count, uint32_t entries)
{
    return sizeof(state_head) + fg_state_round((block_count + 7) / 8) + entries * sizeof(state_row);
}

size_t fg_prefix_state_bytes(const fg_prefix *prefix)
{
    return state_bytes(prefix->options.block_count, prefix->entries.linked);
}

void fg_prefix_state_get(const fg_prefix *prefix, void *state_out)
{
    FG_ASSERT(prefix->expected.linked == 0, "%u keys are expected", prefix->expected.linked);
    const fg_prefix_stats *stats = &prefix->stats;
    uint32_t count = prefix->options.block_count;
    state_head head = {
        .block_count = count,
        .entries = prefix->entries.linked,
        .published = stats->published,
        .duplicates = stats->duplicates,
        .evicted = stats->evicted,
        .collisions = stats->collisions,
        .cleared = stats->cleared,
    };
    size_t bits_bytes = fg_state_round((count + 7) / 8);
    uint8_t *bits = fg_state_put(state_out, &head, sizeof head), *at = bits + bits_bytes;
    memset(bits, 0, bits_bytes);
    for (uint32_t id = 0; id < count; id++) {
        const fg_index_node *node = &prefix->entries.nodes[id];
        if (node->is_linked) {
            state_row row = { node->key, prefix->parents[id] };
            bits[id / 8] |= (uint8_t)(1u << id % 8);
            at = fg_state_put(at, &row, sizeof row);
        }
    }
}

static bool head_makes_sense(const state_head *head, uint32_t block_count)
{
    return head->block_count == block_count && head->entries <= block_count &&
           head->evicted <= head->published && head->cleared <= head->published - head->evicted &&
           head->entries == head->published - head->evicted - head->cleared;
}

/* Entries are where the pool keeps a block, nowhere else, and as many as the head says. */
static bool bits_make_sense(const fg_prefix *prefix, const uint8_t *bits, uint32_t entries)
{
    uint32_t count = prefix->options.block_count, found = 0;
    for (uint32_t id = 0; id < fg_state_round((count + 7) / 8) * 8; id++) {
        bool is_set = bits[id / 8] >> id % 8 & 1;
        if (is_set != (id < count && fg_pool_is_kept(prefix->options.pool, id))) {
            return false;
        }
        found += is_set;
    }
    return found == entries;
}

static void unlink_all(fg_prefix *prefix)
{
    for (uint32_t id = 0; prefix->entries.linked > 0; id++) {
        if (prefix->entries.nodes[id].is_linked) {
            fg_index_unlink(&prefix->entries, id);
        }
    }
}

/* False: a key comes twice. */
static bool read_rows(fg_prefix *prefix, const uint8_t *at)
{
    for (uint32_t id = 0; id < prefix->options.block_count; id++) {
        if (fg_pool_is_kept(prefix->options.pool, id)) {
            state_row row;
            at = fg_state_get(at, &row, sizeof row);
            if (fg_index_find(&prefix->entries, row.key) != FG_INDEX_NONE) {
                unlink_all(prefix);
                return false;
            }
            fg_index_link(&prefix->entries, id, row.key);
            prefix->parents[id] = row.parent;
            memset(tokens_of(prefix, id), 0, prefix->options.block_size * sizeof *prefix->tokens);
        }
    }
    return true;
}

bool fg_prefix_state_set(fg_prefix *prefix, const void *state, size_t size_bytes)
{
    uint32_t count = prefix->options.block_count;
    FG_ASSERT(prefix->entries.linked == 0 && prefix->expected.linked == 0,
              "the prefix cache is not fresh");
    state_head head;
    if (size_bytes < sizeof head) {
        return false;
    }
    const uint8_t *bits = fg_state_get(state, &head, sizeof head);
    if (!head_makes_sense(&head, count) || size_bytes != state_bytes(count, head.entries) ||
        !bits_make_sense(prefix, bits, head.entries) ||
        !read_rows(prefix, bits + fg_state_round((count + 7) / 8))) {
        return false;
    }
    prefix->stats = (fg_prefix_stats){
        .published = head.published,
        .duplicates = head.duplicates,
        .evicted = head.evicted,
        .collisions = head.collisions,
        .cleared = head.cleared,
    };
    return true;
}
