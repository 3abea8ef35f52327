#include "common/kv/table.h"

#include <string.h>

#include "common/base/rng.h"
#include "tests/support/test.h"

enum { BLOCK = 16, POOL = 64, ROOM = 64 };

/* A pool, and one byte per block that stands for its content. `events` tells in which order the table
 * acts on its surroundings. */
typedef struct place {
    fg_pool *pool;
    char content[POOL];
    char events[256];
    const fg_table *watched;
} place;

static void on_copy(void *ctx, uint32_t from_block, uint32_t to_block)
{
    place *p = ctx;
    cr_assert_eq(fg_pool_refs(p->pool, to_block), 1u, "allocated before the copy");
    cr_assert(fg_pool_refs(p->pool, from_block) > 0, "the source is still held");
    p->content[to_block] = p->content[from_block];
    strcat(p->events, "copy ");
}

static void on_release(void *ctx, uint32_t block_id)
{
    place *p = ctx;
    bool is_named = false;
    for (uint32_t i = 0; p->watched != NULL && i < p->watched->count; i++) {
        is_named |= p->watched->blocks[i] == block_id;
    }
    strcat(p->events, is_named ? "release(before swap) " : "release ");
    fg_pool_unref(p->pool, block_id);
}

static void place_init(place *p, uint32_t total)
{
    *p = (place){ 0 };
    cr_assert_eq(fg_pool_create(total, &p->pool, NULL), FG_OK);
}

static fg_table_ops ops_of(place *p)
{
    return (fg_table_ops){ .copy = on_copy, .release = on_release, .ctx = p };
}

static fg_pool_stats stats_of(const fg_pool *pool)
{
    fg_pool_stats stats;
    fg_pool_check(pool);
    fg_pool_stats_get(pool, &stats);
    return stats;
}

static const struct {
    const char *name;
    uint32_t held, tokens, want;
} need_cases[] = {
    { "nothing for nothing", 0, 0, 0 },
    { "the first token pulls a block", 0, 1, 1 },
    { "a full block", 0, 16, 1 },
    { "one more than a block", 0, 17, 2 },
    { "fits into the slack", 1, 16, 0 },
    { "one beyond the slack", 1, 17, 1 },
    { "less than held", 3, 20, 0 },
    { "the rest, rounded up", 3, 81, 3 },
    { "as many tokens as can be named", 0, UINT32_MAX, 1u << 28 },
};

Test(kv_table, blocks_needed_accounts_for_slack)
{
    uint32_t ids[ROOM];
    for (size_t i = 0; i < sizeof need_cases / sizeof *need_cases; i++) {
        fg_table table;
        fg_table_init(&table, ids, ROOM, BLOCK);
        table.count = need_cases[i].held;
        cr_assert_eq(fg_table_need(&table, need_cases[i].tokens), need_cases[i].want, "%s",
                     need_cases[i].name);
    }
}

Test(kv_table, lazy_growth_only_allocates_when_a_block_fills)
{
    place p;
    uint32_t ids[ROOM];
    fg_table table;
    place_init(&p, POOL);
    fg_table_init(&table, ids, ROOM, BLOCK);
    for (uint32_t tokens = 1; tokens <= 40; tokens++) {
        cr_assert_eq(fg_table_grow(&table, p.pool, tokens, NULL), FG_OK);
        uint32_t want = tokens <= 16 ? 1 : tokens <= 32 ? 2 : 3;
        cr_assert_eq(table.count, want, "token %u", tokens);
        cr_assert_eq(stats_of(p.pool).held, want, "token %u", tokens);
    }
    fg_table_clear(&table, p.pool, NULL);
    fg_pool_destroy(p.pool, false);
}

Test(kv_table, allocate_and_free_round_trips)
{
    place p;
    uint32_t ids[ROOM];
    fg_table table;
    place_init(&p, 8);
    for (int round = 0; round < 3; round++) {
        fg_table_init(&table, ids, ROOM, BLOCK);
        cr_assert_eq(fg_pool_promise(p.pool, 3), FG_OK);
        table.promised = 3;
        cr_assert_eq(fg_table_grow(&table, p.pool, 5 * BLOCK, NULL), FG_OK);
        cr_assert_eq(table.promised, 0u, "the promise is used first");
        cr_assert_eq(stats_of(p.pool).promised, 0u);
        cr_assert_eq(stats_of(p.pool).held, 5u);
        fg_table_clear(&table, p.pool, NULL);
        cr_assert_eq(stats_of(p.pool).free, 8u);
        cr_assert_eq(table.count, 0u);
    }
    fg_pool_destroy(p.pool, false);
}

Test(kv_table, clear_gives_the_promise_back)
{
    place p;
    uint32_t ids[ROOM];
    fg_table table;
    place_init(&p, 8);
    fg_table_init(&table, ids, ROOM, BLOCK);
    cr_assert_eq(fg_pool_promise(p.pool, 6), FG_OK);
    table.promised = 6;
    cr_assert_eq(fg_table_grow(&table, p.pool, 2 * BLOCK, NULL), FG_OK);
    cr_assert_eq(table.promised, 4u);
    fg_table_truncate(&table, p.pool, 0, NULL);
    cr_assert_eq(stats_of(p.pool).promised, 4u, "a rollback keeps it");
    fg_table_clear(&table, p.pool, NULL);
    cr_assert_eq(stats_of(p.pool).promised, 0u);
    cr_assert_eq(table.promised, 0u);
    fg_pool_destroy(p.pool, false);
}

static const struct {
    const char *name;
    uint32_t promised, tokens;
    fg_status want;
    fg_shortage shortage;
} out_cases[] = {
    { "one too many", 0, 5 * BLOCK + 1, FG_AGAIN, { 4, 3 } },
    { "one too many in spite of a promise", 2, 5 * BLOCK + 1, FG_AGAIN, { 2, 1 } },
    { "far too many", 0, ROOM *BLOCK, FG_AGAIN, { 62, 3 } },
    { "beyond its room", 0, ROOM *BLOCK + 1, FG_BAD_INPUT, { 77, 77 } },
    { "beyond anything", 0, UINT32_MAX, FG_BAD_INPUT, { 77, 77 } },
};

Test(kv_table, out_of_blocks_is_reported_and_leaves_state_intact)
{
    for (size_t i = 0; i < sizeof out_cases / sizeof *out_cases; i++) {
        const char *name = out_cases[i].name;
        place p;
        uint32_t ids[ROOM], before[ROOM];
        fg_table table;
        fg_shortage shortage = { 77, 77 };
        place_init(&p, 5);
        fg_table_init(&table, ids, ROOM, BLOCK);
        cr_assert_eq(fg_table_grow(&table, p.pool, 20, NULL), FG_OK);
        cr_assert_eq(fg_pool_promise(p.pool, out_cases[i].promised), FG_OK);
        table.promised = out_cases[i].promised;
        memcpy(before, ids, 2 * sizeof *ids);
        fg_pool_stats stats = stats_of(p.pool);
        fg_status status = fg_table_grow(&table, p.pool, out_cases[i].tokens, &shortage);
        cr_assert_eq(status, out_cases[i].want, "%s", name);
        cr_assert_eq(shortage.needed, out_cases[i].shortage.needed, "%s: %u", name,
                     shortage.needed);
        cr_assert_eq(shortage.available, out_cases[i].shortage.available, "%s", name);
        cr_assert_eq(fg_table_grow(&table, p.pool, out_cases[i].tokens, NULL), status, "%s", name);
        fg_pool_stats after = stats_of(p.pool);
        cr_assert_eq(memcmp(&stats, &after, sizeof stats), 0, "%s: pool as before", name);
        cr_assert(table.count == 2 && table.promised == out_cases[i].promised, "%s", name);
        cr_assert_eq(memcmp(before, ids, 2 * sizeof *ids), 0, "%s: blocks as before", name);
        cr_assert_eq(fg_table_grow(&table, p.pool, 5 * BLOCK, NULL), FG_OK, "%s: fits", name);
        fg_table_clear(&table, p.pool, NULL);
        fg_pool_destroy(p.pool, false);
    }
}

Test(kv_table, internal_fragmentation_is_bounded_by_block_size)
{
    enum { TABLES = 8 };
    fg_rng rng = { .state = 4711 };
    cr_log_info("seed %llu", (unsigned long long)rng.state);
    place p;
    static uint32_t ids[TABLES][ROOM];
    fg_table tables[TABLES];
    uint32_t tokens[TABLES] = { 0 };
    place_init(&p, POOL);
    for (int i = 0; i < TABLES; i++) {
        fg_table_init(&tables[i], ids[i], ROOM, BLOCK);
    }
    for (int step = 0; step < 5000; step++) {
        uint32_t at = (uint32_t)fg_rng_below(&rng, TABLES);
        uint32_t more = 1 + (uint32_t)fg_rng_below(&rng, 60), held = 0;
        if (fg_rng_below(&rng, 8) == 0) {
            fg_table_clear(&tables[at], p.pool, NULL);
            tokens[at] = 0;
        } else if (fg_rng_below(&rng, 4) == 0) {
            tokens[at] = (uint32_t)fg_rng_below(&rng, tokens[at] + 1);
            fg_table_truncate(&tables[at], p.pool, tokens[at], NULL);
        } else if (fg_table_grow(&tables[at], p.pool, tokens[at] + more, NULL) == FG_OK) {
            tokens[at] += more;
        }
        for (int i = 0; i < TABLES; i++) {
            uint32_t slots = tables[i].count * BLOCK;
            cr_assert(slots >= tokens[i] && slots - tokens[i] < BLOCK, "%u slots, %u tokens", slots,
                      tokens[i]);
            held += tables[i].count;
        }
        cr_assert_eq(stats_of(p.pool).held, held);
    }
    fg_pool_destroy(p.pool, true);
}

Test(kv_table, no_external_fragmentation_after_interleaved_free)
{
    place p;
    static uint32_t ids[POOL][1];
    uint32_t large_ids[ROOM];
    fg_table small[POOL], large;
    place_init(&p, POOL);
    for (int i = 0; i < POOL; i++) {
        fg_table_init(&small[i], ids[i], 1, BLOCK);
        cr_assert_eq(fg_table_grow(&small[i], p.pool, 1, NULL), FG_OK);
    }
    for (int i = 0; i < POOL; i += 2) {
        fg_table_clear(&small[i], p.pool, NULL);
    }
    fg_table_init(&large, large_ids, ROOM, BLOCK);
    cr_assert_eq(fg_table_grow(&large, p.pool, POOL / 2 * BLOCK, NULL), FG_OK,
                 "every second block is free: half of the pool serves one sequence");
    cr_assert_eq(stats_of(p.pool).free, 0u);
    fg_pool_destroy(p.pool, true);
}

/* R29. */
Test(kv_table, rolls_back_to_the_middle_of_a_block)
{
    place p;
    uint32_t ids[ROOM], before[4];
    fg_table table;
    place_init(&p, 8);
    fg_table_init(&table, ids, ROOM, BLOCK);
    cr_assert_eq(fg_table_grow(&table, p.pool, 4 * BLOCK, NULL), FG_OK);
    memcpy(before, ids, sizeof before);
    static const uint32_t cases[][2] = { { 64, 4 }, { 200, 4 }, { 49, 4 }, { 48, 3 },
                                         { 20, 2 }, { 17, 2 },  { 1, 1 },  { 0, 0 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fg_table_truncate(&table, p.pool, cases[i][0], NULL);
        cr_assert_eq(table.count, cases[i][1], "to %u", cases[i][0]);
        cr_assert_eq(memcmp(ids, before, table.count * sizeof *ids), 0);
        cr_assert_eq(stats_of(p.pool).held, table.count);
    }
    cr_assert_eq(fg_table_grow(&table, p.pool, BLOCK, NULL), FG_OK);
    cr_assert_eq(ids[0], before[0], "the first block was released last: it is taken first");
    fg_pool_destroy(p.pool, true);
}

Test(kv_table, a_prefix_outlives_in_the_cache_what_followed_it)
{
    place p;
    uint32_t ids[ROOM], chain[3], taken[3];
    fg_table table;
    place_init(&p, 3);
    fg_table_init(&table, ids, ROOM, BLOCK);
    cr_assert_eq(fg_table_grow(&table, p.pool, 3 * BLOCK, NULL), FG_OK);
    for (int i = 0; i < 3; i++) {
        chain[i] = ids[i];
        fg_pool_keep(p.pool, ids[i]);
    }
    fg_table_clear(&table, p.pool, NULL);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(fg_pool_take(p.pool, 1, taken + i), FG_OK);
        cr_assert_eq(taken[i], chain[2 - i]);
    }
    fg_pool_destroy(p.pool, true);
}

Test(kv_table, fork_shares_the_blocks_of_the_first_tokens)
{
    place p;
    uint32_t ids[3][ROOM];
    fg_table a, b, c;
    place_init(&p, 8);
    fg_table_init(&a, ids[0], ROOM, BLOCK);
    fg_table_init(&b, ids[1], ROOM, BLOCK);
    fg_table_init(&c, ids[2], ROOM, BLOCK);
    cr_assert_eq(fg_table_grow(&a, p.pool, 4 * BLOCK, NULL), FG_OK);
    fg_table_fork(&b, &a, p.pool, 2 * BLOCK + 1);
    fg_table_fork(&c, &a, p.pool, 0);
    cr_assert(b.count == 3 && c.count == 0);
    cr_assert_eq(memcmp(ids[0], ids[1], 3 * sizeof ids[0][0]), 0);
    cr_assert_eq(stats_of(p.pool).held, 4u, "sharing takes no block");
    fg_table_clear(&a, p.pool, NULL);
    cr_assert_eq(stats_of(p.pool).held, 3u);
    fg_table_clear(&b, p.pool, NULL);
    cr_assert_eq(stats_of(p.pool).free, 8u);
    fg_pool_destroy(p.pool, false);
}

Test(kv_table, adopts_blocks_behind_those_that_it_has)
{
    place p;
    uint32_t ids[ROOM], given[3];
    fg_table table;
    place_init(&p, 8);
    fg_table_init(&table, ids, ROOM, BLOCK);
    cr_assert_eq(fg_pool_take(p.pool, 3, given), FG_OK);
    fg_table_adopt(&table, given, 2);
    fg_table_adopt(&table, given + 2, 1);
    cr_assert(table.count == 3 && memcmp(ids, given, sizeof given) == 0);
    cr_assert_eq(fg_table_grow(&table, p.pool, 4 * BLOCK, NULL), FG_OK);
    fg_table_clear(&table, p.pool, NULL);
    fg_pool_destroy(p.pool, false);
}

/* R43: allocate, copy, release, swap; what the sharer sees stays. */
Test(kv_table, a_shared_block_is_copied_before_the_first_write)
{
    place p;
    uint32_t ids[2][ROOM];
    fg_table a, b;
    place_init(&p, 8);
    fg_table_ops ops = ops_of(&p);
    fg_table_init(&a, ids[0], ROOM, BLOCK);
    fg_table_init(&b, ids[1], ROOM, BLOCK);
    cr_assert_eq(fg_table_grow(&a, p.pool, BLOCK + 3, NULL), FG_OK);
    p.content[ids[0][1]] = 'a';
    fg_table_fork(&b, &a, p.pool, BLOCK + 3);
    p.watched = &b;
    uint32_t shared = ids[1][1];
    cr_assert_eq(fg_table_writable(&b, p.pool, 1, &ops, NULL), FG_OK);
    cr_assert_str_eq(p.events, "copy release(before swap) ");
    cr_assert(ids[1][1] != shared && ids[0][1] == shared && ids[1][0] == ids[0][0]);
    p.content[ids[1][1]] = 'b';
    cr_assert_eq(p.content[ids[0][1]], 'a');
    cr_assert(fg_pool_refs(p.pool, shared) == 1 && fg_pool_refs(p.pool, ids[1][1]) == 1);
    p.events[0] = 0;
    uint32_t own = ids[1][1];
    cr_assert_eq(fg_table_writable(&b, p.pool, 1, &ops, NULL), FG_OK);
    cr_assert_eq(fg_table_writable(&a, p.pool, 1, &ops, NULL), FG_OK);
    cr_assert(ids[1][1] == own && ids[0][1] == shared && p.events[0] == 0, "private: in place");
    fg_table_clear(&a, p.pool, NULL);
    fg_table_clear(&b, p.pool, NULL);
    fg_pool_destroy(p.pool, false);
}

Test(kv_table, without_a_block_for_the_copy_nothing_changes)
{
    place p;
    uint32_t ids[2][ROOM];
    fg_table a, b;
    fg_shortage shortage = { 0 };
    place_init(&p, 4);
    fg_table_ops ops = ops_of(&p);
    fg_table_init(&a, ids[0], ROOM, BLOCK);
    fg_table_init(&b, ids[1], ROOM, BLOCK);
    cr_assert_eq(fg_table_grow(&a, p.pool, 2 * BLOCK, NULL), FG_OK);
    p.content[ids[0][1]] = 'a';
    fg_table_fork(&b, &a, p.pool, 2 * BLOCK);
    cr_assert_eq(fg_pool_promise(p.pool, 2), FG_OK); /* somebody else's: the allocation fails */
    fg_pool_stats before = stats_of(p.pool);
    cr_assert_eq(fg_table_writable(&b, p.pool, 1, &ops, &shortage), FG_AGAIN);
    cr_assert_eq(fg_table_writable(&b, p.pool, 1, &ops, NULL), FG_AGAIN);
    fg_pool_stats after = stats_of(p.pool);
    cr_assert_eq(memcmp(&before, &after, sizeof before), 0);
    cr_assert(shortage.needed == 1 && shortage.available == 0);
    cr_assert_eq(p.events[0], 0, "neither copied nor released: %s", p.events);
    cr_assert(ids[1][1] == ids[0][1] && fg_pool_refs(p.pool, ids[0][1]) == 2);
    cr_assert_eq(p.content[ids[0][1]], 'a');
    fg_pool_unpromise(p.pool, 1);
    cr_assert_eq(fg_pool_promise(p.pool, 1), FG_OK);
    b.promised = 1; /* one of the two is its own after all */
    cr_assert_eq(fg_table_writable(&b, p.pool, 1, &ops, NULL), FG_OK);
    cr_assert_eq(b.promised, 0u);
    cr_assert_eq(stats_of(p.pool).promised, 1u);
    fg_pool_destroy(p.pool, true);
}

Test(kv_table, a_published_block_is_never_written_in_place)
{
    place p;
    uint32_t ids[ROOM];
    fg_table table;
    place_init(&p, 4);
    fg_table_ops ops = ops_of(&p);
    fg_table_init(&table, ids, ROOM, BLOCK);
    cr_assert_eq(fg_table_grow(&table, p.pool, BLOCK, NULL), FG_OK);
    uint32_t published = ids[0];
    fg_pool_keep(p.pool, published);
    fg_table_truncate(&table, p.pool, 5, NULL);
    cr_assert_eq(fg_table_writable(&table, p.pool, 0, &ops, NULL), FG_OK);
    cr_assert_neq(ids[0], published);
    cr_assert_eq(stats_of(p.pool).cached, 1u);
    fg_table_clear(&table, p.pool, NULL);
    fg_pool_destroy(p.pool, false);
}

/* T8: the table names the block that stays before its own copy can be anybody's. */
Test(kv_table, replace_points_to_the_other_block_before_its_own_is_released)
{
    place p;
    uint32_t ids[2][ROOM];
    fg_table a, b;
    place_init(&p, 8);
    fg_table_ops ops = ops_of(&p);
    fg_table_init(&a, ids[0], ROOM, BLOCK);
    fg_table_init(&b, ids[1], ROOM, BLOCK);
    cr_assert_eq(fg_table_grow(&a, p.pool, 2 * BLOCK, NULL), FG_OK);
    cr_assert_eq(fg_table_grow(&b, p.pool, 2 * BLOCK, NULL), FG_OK);
    fg_pool_keep(p.pool, ids[0][0]);
    uint32_t duplicate = ids[1][0];
    p.watched = &b;
    cr_assert_eq(fg_pool_borrow(p.pool, ids[0][0]), FG_OK);
    fg_table_replace(&b, p.pool, 0, ids[0][0], &ops);
    cr_assert_str_eq(p.events, "release ");
    cr_assert_eq(ids[1][0], ids[0][0]);
    cr_assert(fg_pool_refs(p.pool, duplicate) == 0 && fg_pool_refs(p.pool, ids[0][0]) == 2);
    cr_assert_eq(stats_of(p.pool).held, 3u);
    fg_table_clear(&a, p.pool, NULL);
    cr_assert_eq(fg_pool_refs(p.pool, ids[1][0]), 1u, "one's end does not take it from the other");
    fg_table_clear(&b, p.pool, NULL);
    cr_assert_eq(stats_of(p.pool).cached, 1u);
    fg_pool_destroy(p.pool, false);
}

/* A release may be put off until nothing that was launched reads the block. */
static void put_off(void *ctx, uint32_t block_id)
{
    uint32_t *later = ctx;
    later[++later[0]] = block_id;
}

Test(kv_table, blocks_released_later_stay_held_until_then)
{
    place p;
    uint32_t ids[ROOM], later[8] = { 0 };
    fg_table table;
    fg_table_ops ops = { .release = put_off, .ctx = later };
    place_init(&p, 4);
    fg_table_init(&table, ids, ROOM, BLOCK);
    cr_assert_eq(fg_table_grow(&table, p.pool, 3 * BLOCK, NULL), FG_OK);
    fg_table_clear(&table, p.pool, &ops);
    cr_assert(table.count == 0 && later[0] == 3);
    cr_assert_eq(stats_of(p.pool).held, 3u);
    for (uint32_t i = 1; i <= 3; i++) {
        cr_assert_eq(later[i], 3 - i, "the last block first");
        fg_pool_unref(p.pool, later[i]);
    }
    fg_pool_destroy(p.pool, false);
}
