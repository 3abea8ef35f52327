/*
 * Any bytes as the state of a pool, a tier, or a prefix cache. What is refused leaves a fresh one; what is taken
 * over gives the same bytes again, passes its check, and lives on. Input: which of the three, the blocks that a
 * prefix cache's pool keeps (a bit each), and the state.
 */
#include <stdlib.h>
#include <string.h>

#include "common/kv/prefix.h"
#include "common/kv/tier.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes);

enum { COUNT = 8, BLOCK = 2 };

static const uint32_t tokens[BLOCK];

static void same(const void *a, const void *b, size_t size_bytes)
{
    FG_ASSERT(memcmp(a, b, size_bytes) == 0, "two states mean the same");
}

/* All that can be had is taken, which evicts what was cached. */
static void take_all(fg_pool *pool)
{
    uint32_t ids[COUNT], count = fg_pool_available(pool);
    FG_ASSERT(fg_pool_take(pool, count, ids) == FG_OK);
    fg_pool_check(pool);
    for (uint32_t i = 0; i < count; i++) {
        fg_pool_unref(pool, ids[i]);
    }
    fg_pool_check(pool);
}

static void read_pool(const uint8_t *bytes, size_t size_bytes)
{
    fg_pool *pool = NULL;
    FG_ASSERT(fg_pool_create(COUNT, &pool, NULL) == FG_OK);
    bool is_set = fg_pool_state_set(pool, bytes, size_bytes);
    fg_pool_check(pool);
    FG_ASSERT(is_set || fg_pool_available(pool) == COUNT);
    if (is_set) {
        FG_ASSERT(fg_pool_state_bytes(pool) == size_bytes);
        void *again = malloc(size_bytes);
        fg_pool_state_get(pool, again);
        same(bytes, again, size_bytes);
        free(again);
        take_all(pool);
    }
    fg_pool_destroy(pool, true);
}

static void read_prefix(uint8_t kept, const uint8_t *bytes, size_t size_bytes)
{
    fg_pool *pool = NULL;
    fg_prefix *prefix = NULL;
    uint32_t ids[COUNT];
    FG_ASSERT(fg_pool_create(COUNT, &pool, NULL) == FG_OK);
    fg_prefix_options options = { .pool = pool, .block_count = COUNT, .block_size = BLOCK };
    FG_ASSERT(fg_prefix_create(&options, &prefix, NULL) == FG_OK);
    FG_ASSERT(fg_pool_take(pool, COUNT, ids) == FG_OK);
    for (uint32_t id = 0; id < COUNT; id++) {
        if (kept >> id & 1) {
            fg_pool_keep(pool, id);
        }
        fg_pool_unref(pool, id);
    }
    if (fg_prefix_state_set(prefix, bytes, size_bytes)) {
        fg_prefix_check(prefix);
        FG_ASSERT(fg_prefix_state_bytes(prefix) == size_bytes);
        void *again = malloc(size_bytes);
        fg_prefix_state_get(prefix, again);
        same(bytes, again, size_bytes);
        free(again);
        take_all(pool);
        fg_prefix_check(prefix);
    }
    fg_prefix_destroy(prefix);
    fg_pool_destroy(pool, true);
}

static void read_tier(const uint8_t *bytes, size_t size_bytes)
{
    fg_tier *tier = NULL;
    fg_tier_options options = { .block_bytes = 8, .block_count = COUNT, .block_size = BLOCK };
    FG_ASSERT(fg_tier_open(&options, &tier, NULL) == FG_OK);
    bool is_set = fg_tier_state_set(tier, bytes, size_bytes);
    fg_tier_check(tier);
    FG_ASSERT(is_set || fg_tier_available(tier) == COUNT);
    if (is_set) {
        FG_ASSERT(fg_tier_state_bytes(tier) == size_bytes);
        void *again = malloc(size_bytes);
        fg_tier_state_get(tier, again);
        same(bytes, again, size_bytes);
        free(again);
        fg_digest128 parent, key;
        uint32_t slots[COUNT];
        for (uint32_t slot = 0; slot < COUNT; slot++) {
            if (fg_tier_at(tier, slot, &parent, &key)) {
                FG_ASSERT(fg_tier_find(tier, parent, key, tokens) == slot);
                FG_ASSERT(fg_tier_verify(tier, slot, 0));
            }
        }
        FG_ASSERT(fg_tier_take(tier, COUNT, slots) == FG_OK);
        fg_tier_check(tier);
    }
    fg_tier_close(tier);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    if (size_bytes < 2) {
        return 0;
    }
    /* In memory of just that size, so that a read beyond it shows. */
    size_t state_bytes = size_bytes - 2;
    uint8_t *state = malloc(state_bytes + (state_bytes == 0));
    memcpy(state, bytes + 2, state_bytes);
    switch (bytes[0] % 3) {
    case 0:
        read_pool(state, state_bytes);
        break;
    case 1:
        read_tier(state, state_bytes);
        break;
    default:
        read_prefix(bytes[1], state, state_bytes);
        break;
    }
    free(state);
    return 0;
}
