#include "common/kv/pool.h"

#include "common/base/fault.h"
#include "common/base/rng.h"
#include "tests/support/test.h"

static fg_pool *make_pool(uint32_t total)
{
    fg_pool *pool = NULL;
    fg_error err;
    cr_assert_eq(fg_pool_create(total, &pool, &err), FG_OK);
    return pool;
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
    uint32_t total, take;
    fg_status want;
} take_cases[] = {
    { "exactly all", 4, 4, FG_OK },
    { "one too many", 4, 5, FG_AGAIN },
    { "none", 4, 0, FG_OK },
    { "the largest number", 4, UINT32_MAX, FG_AGAIN },
};

Test(pool, take_is_all_or_nothing)
{
    for (size_t i = 0; i < sizeof take_cases / sizeof *take_cases; i++) {
        fg_pool *pool = make_pool(take_cases[i].total);
        uint32_t ids[8];
        cr_assert_eq(fg_pool_take(pool, take_cases[i].take, ids), take_cases[i].want, "%s",
                     take_cases[i].name);
        uint32_t left = take_cases[i].want == FG_OK ? take_cases[i].total - take_cases[i].take
                                                    : take_cases[i].total;
        cr_assert_eq(stats_of(pool).free, left, "%s", take_cases[i].name);
        fg_pool_destroy(pool, true);
    }
}

Test(pool, refuses_sizes_out_of_range)
{
    fg_pool *pool = NULL;
    fg_error err;
    cr_assert_eq(fg_pool_create(0, &pool, &err), FG_BAD_INPUT);
    cr_assert_eq(fg_pool_create(UINT32_MAX, &pool, &err), FG_BAD_INPUT);
    cr_assert_null(pool);
}

Test(pool, freed_last_is_taken_first)
{
    fg_pool *pool = make_pool(4);
    uint32_t ids[4], again;
    fg_pool_take(pool, 4, ids);
    fg_pool_unref(pool, ids[1]);
    fg_pool_unref(pool, ids[2]);
    fg_pool_take(pool, 1, &again);
    cr_assert_eq(again, ids[2]);
    fg_pool_destroy(pool, true);
}

Test(pool, a_pinned_block_is_quarantined_until_its_writer_stopped)
{
    fg_pool *pool = make_pool(2);
    uint32_t id, other;
    fg_pool_take(pool, 1, &id);
    uint32_t generation = fg_pool_generation(pool, id);
    fg_pool_pin(pool, id);
    cr_assert_eq(stats_of(pool).pinned, 1u);
    fg_pool_unref(pool, id);
    cr_assert_eq(stats_of(pool).quarantined, 1u);
    cr_assert_eq(stats_of(pool).free, 1u);
    cr_assert_eq(fg_pool_take(pool, 2, (uint32_t[2]){ 0 }), FG_AGAIN);
    cr_assert_eq(fg_pool_take(pool, 1, &other), FG_OK);
    cr_assert_neq(other, id);
    fg_pool_unpin(pool, id);
    cr_assert_eq(stats_of(pool).free, 1u);
    cr_assert_eq(fg_pool_generation(pool, id), generation + 1);
    fg_pool_destroy(pool, true);
}

Test(pool, shared_blocks_are_free_after_the_last_reference)
{
    fg_pool *pool = make_pool(1);
    uint32_t id;
    fg_pool_take(pool, 1, &id);
    fg_pool_ref(pool, id);
    fg_pool_unref(pool, id);
    cr_assert_eq(stats_of(pool).held, 1u);
    fg_pool_unref(pool, id);
    cr_assert_eq(stats_of(pool).free, 1u);
    fg_pool_destroy(pool, false);
}

Test(pool, allocate_and_free_round_trips)
{
    fg_pool *pool = make_pool(8);
    uint32_t ids[8];
    for (int round = 0; round < 3; round++) {
        cr_assert_eq(fg_pool_take(pool, 8, ids), FG_OK);
        for (int i = 0; i < 8; i++) {
            for (int j = 0; j < i; j++) {
                cr_assert_neq(ids[i], ids[j], "block %u twice", ids[i]);
            }
            cr_assert_eq(fg_pool_refs(pool, ids[i]), 1u);
            cr_assert_eq(fg_pool_generation(pool, ids[i]), (uint32_t)round);
        }
        cr_assert_eq(stats_of(pool).free, 0u);
        for (int i = 0; i < 8; i++) {
            fg_pool_unref(pool, ids[i]);
        }
        cr_assert_eq(stats_of(pool).free, 8u);
    }
    fg_pool_destroy(pool, false);
}

Test(pool, peak_is_the_most_blocks_used_at_once)
{
    fg_pool *pool = make_pool(8);
    uint32_t ids[4], others[2];
    cr_assert_eq(fg_pool_take(pool, 4, ids), FG_OK);
    fg_pool_unref(pool, ids[3]);
    cr_assert_eq(stats_of(pool).used_peak, 4u);
    for (int i = 0; i < 3; i++) {
        fg_pool_keep(pool, ids[i]);
        fg_pool_unref(pool, ids[i]);
    }
    cr_assert_eq(fg_pool_take(pool, 2, others), FG_OK);
    cr_assert_eq(stats_of(pool).used_peak, 4u, "cached blocks are not used");
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(fg_pool_borrow(pool, ids[i]), FG_OK);
    }
    cr_assert_eq(stats_of(pool).used_peak, 5u, "borrowed ones are");
    fg_pool_destroy(pool, true);
}

Test(pool, a_promise_is_kept)
{
    fg_pool *pool = make_pool(4);
    uint32_t ids[4];
    cr_assert_eq(fg_pool_promise(pool, 3), FG_OK);
    cr_assert_eq(fg_pool_take(pool, 2, ids), FG_AGAIN);
    cr_assert_eq(fg_pool_take(pool, 1, ids), FG_OK);
    cr_assert_eq(fg_pool_promise(pool, 1), FG_AGAIN);
    fg_pool_take_promised(pool, 2, ids + 1);
    fg_pool_unpromise(pool, 1);
    cr_assert_eq(fg_pool_promise(pool, 1), FG_OK);
    cr_assert_eq(stats_of(pool).promised, 1u);
    fg_pool_destroy(pool, true);
}

static bool create_and_destroy(void *ctx)
{
    fg_pool *pool = NULL;
    if (fg_pool_create(16, &pool, NULL) != FG_OK) {
        return false;
    }
    fg_pool_destroy(pool, false);
    return true;
}

Test(pool, survives_each_failed_allocation)
{
    cr_assert_eq(fg_fault_each(create_and_destroy, NULL), 3); /* pool, records, links */
}

/* In whatever order blocks come back: the same ones are taken as ever, neighbours side by side. */
Test(pool, what_is_taken_together_comes_in_ascending_order)
{
    enum { TOTAL = 64 };
    fg_rng rng = { 5 };
    for (uint32_t round = 0; round < 300; round++) {
        fg_pool *pool = make_pool(TOTAL);
        uint32_t ids[TOTAL], freed[TOTAL], count = 1 + round % TOTAL;
        bool want[TOTAL] = { false };
        cr_assert_eq(fg_pool_take(pool, TOTAL, ids), FG_OK);
        for (uint32_t i = 0; i < TOTAL; i++) {
            uint32_t other = (uint32_t)fg_rng_below(&rng, i + 1);
            freed[i] = round % 3 == 0 ? i : round % 3 == 1 ? TOTAL - 1 - i : freed[other];
            freed[round % 3 == 2 ? other : i] = round % 3 == 1 ? TOTAL - 1 - i : i;
        }
        for (uint32_t i = 0; i < TOTAL; i++) {
            fg_pool_unref(pool, freed[i]);
            want[freed[i]] = i >= TOTAL - count; /* last freed, first taken */
        }
        cr_assert_eq(fg_pool_take(pool, count, ids), FG_OK);
        for (uint32_t i = 0; i < count; i++) {
            cr_assert(i == 0 || ids[i - 1] < ids[i], "round %u: %u before %u", round, ids[i - 1],
                      ids[i]);
            cr_assert(want[ids[i]], "round %u: block %u", round, ids[i]);
            fg_pool_unref(pool, ids[i]);
        }
        fg_pool_destroy(pool, false);
    }
}
