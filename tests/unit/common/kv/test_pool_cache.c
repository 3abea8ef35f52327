/* What the pool does with blocks whose content is kept: borrow, least recently used first, eviction. */
#include "common/base/rng.h"
#include "common/kv/pool.h"
#include "tests/support/test.h"

enum { TOTAL = 24, NONE = -1 };

typedef struct evicted {
    const fg_pool *pool;
    uint32_t ids[64];
    uint32_t count;
} evicted;

static void note_evicted(void *ctx, uint32_t block_id)
{
    evicted *seen = ctx;
    cr_assert(!fg_pool_is_kept(seen->pool, block_id), "the mark is gone before the news");
    if (seen->count < 64) {
        seen->ids[seen->count] = block_id;
    }
    seen->count++;
}

static fg_pool *make_pool(uint32_t total, evicted *seen)
{
    fg_pool *pool = NULL;
    cr_assert_eq(fg_pool_create(total, &pool, NULL), FG_OK);
    *seen = (evicted){ .pool = pool };
    fg_pool_on_evict(pool, note_evicted, seen);
    return pool;
}

static fg_pool_stats stats_of(const fg_pool *pool)
{
    fg_pool_stats stats;
    fg_pool_check(pool);
    fg_pool_stats_get(pool, &stats);
    return stats;
}

/* Takes `count` blocks and caches them in order: ids[0] is the least recently used one. */
static void cache(fg_pool *pool, uint32_t count, uint32_t *ids)
{
    cr_assert_eq(fg_pool_take(pool, count, ids), FG_OK);
    for (uint32_t i = 0; i < count; i++) {
        fg_pool_keep(pool, ids[i]);
        fg_pool_unref(pool, ids[i]);
    }
}

Test(pool_cache, least_recently_used_goes_first_and_never_one_in_use)
{
    evicted seen;
    fg_pool *pool = make_pool(6, &seen);
    uint32_t ids[6], taken[6];
    cache(pool, 6, ids);
    /* 1 is in use, 0 was touched last: 2 3 4 5 0 is the order. */
    cr_assert_eq(fg_pool_borrow(pool, ids[1]), FG_OK);
    cr_assert_eq(fg_pool_borrow(pool, ids[0]), FG_OK);
    fg_pool_unref(pool, ids[0]);
    cr_assert_eq(fg_pool_available(pool), 5u);
    cr_assert_eq(fg_pool_take(pool, 6, taken), FG_AGAIN);
    static const int want[] = { 2, 3, 4, 5, 0 };
    for (int i = 0; i < 5; i++) {
        cr_assert_eq(fg_pool_take(pool, 1, taken + i), FG_OK);
        cr_assert_eq(taken[i], ids[want[i]], "taken %d", i);
        cr_assert_eq(seen.ids[i], ids[want[i]], "evicted %d", i);
        cr_assert_eq(fg_pool_generation(pool, taken[i]), 1u);
    }
    cr_assert_eq(seen.count, 5u);
    cr_assert_eq(stats_of(pool).evictions, 5u);
    fg_pool_destroy(pool, true);
}

/* P14. */
Test(pool_cache, free_blocks_last_freed_first_are_taken_before_any_cached_one)
{
    evicted seen;
    fg_pool *pool = make_pool(6, &seen);
    uint32_t all[6], taken[6];
    cr_assert_eq(fg_pool_take(pool, 6, all), FG_OK);
    fg_pool_keep(pool, all[0]);
    fg_pool_keep(pool, all[3]);
    static const int order[] = { 3, 1, 0, 4 };
    for (int i = 0; i < 4; i++) {
        fg_pool_unref(pool, all[order[i]]);
    }
    cr_assert_eq(stats_of(pool).cached, 2u);
    static const int want[] = { 4, 1, 3, 0 };
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(fg_pool_take(pool, 1, taken + i), FG_OK);
        cr_assert_eq(taken[i], all[want[i]], "taken %d", i);
    }
    cr_assert_eq(seen.count, 2u);
    fg_pool_destroy(pool, true);
}

Test(pool_cache, generation_grows_when_content_is_given_up_and_not_before)
{
    evicted seen;
    fg_pool *pool = make_pool(2, &seen);
    uint32_t id;
    cache(pool, 1, &id);
    cr_assert_eq(fg_pool_generation(pool, id), 0u, "cached is not given up");
    cr_assert_eq(fg_pool_borrow(pool, id), FG_OK);
    fg_pool_unref(pool, id);
    cr_assert_eq(fg_pool_generation(pool, id), 0u);
    fg_pool_forget(pool, id);
    cr_assert_eq(fg_pool_generation(pool, id), 1u, "forgotten");
    cr_assert_eq(stats_of(pool).free, 2u);
    fg_pool_forget(pool, id);
    cr_assert_eq(fg_pool_generation(pool, id), 1u, "there was no mark to take");
    fg_pool_destroy(pool, false);
}

Test(pool_cache, forget_in_use_frees_the_block_later)
{
    evicted seen;
    fg_pool *pool = make_pool(2, &seen);
    uint32_t id;
    cache(pool, 1, &id);
    cr_assert_eq(fg_pool_borrow(pool, id), FG_OK);
    fg_pool_forget(pool, id);
    cr_assert_eq(stats_of(pool).held, 1u);
    fg_pool_unref(pool, id);
    cr_assert_eq(stats_of(pool).free, 2u);
    cr_assert_eq(seen.count, 0u);
    fg_pool_destroy(pool, false);
}

Test(pool_cache, quarantine_ends_in_the_cache_and_can_be_borrowed)
{
    evicted seen;
    fg_pool *pool = make_pool(1, &seen);
    uint32_t id;
    cr_assert_eq(fg_pool_take(pool, 1, &id), FG_OK);
    fg_pool_keep(pool, id);
    fg_pool_pin(pool, id);
    fg_pool_unref(pool, id);
    cr_assert_eq(stats_of(pool).quarantined, 1u);
    cr_assert_eq(fg_pool_available(pool), 0u);
    cr_assert_eq(fg_pool_borrow(pool, id), FG_OK, "in use: no block is needed");
    cr_assert_eq(stats_of(pool).pinned, 1u);
    fg_pool_unref(pool, id);
    fg_pool_unpin(pool, id);
    cr_assert_eq(stats_of(pool).cached, 1u);
    fg_pool_destroy(pool, false);
}

Test(pool_cache, what_is_promised_can_be_neither_borrowed_nor_taken)
{
    evicted seen;
    fg_pool *pool = make_pool(3, &seen);
    uint32_t ids[3], taken[3];
    cache(pool, 3, ids);
    cr_assert_eq(fg_pool_promise(pool, 4), FG_AGAIN);
    cr_assert_eq(fg_pool_promise(pool, 3), FG_OK);
    cr_assert_eq(fg_pool_available(pool), 0u);
    cr_assert_eq(fg_pool_borrow(pool, ids[0]), FG_AGAIN);
    cr_assert_eq(fg_pool_take(pool, 1, taken), FG_AGAIN);
    cr_assert_eq(stats_of(pool).cached, 3u);
    fg_pool_take_promised(pool, 3, taken);
    cr_assert_eq(seen.count, 3u);
    cr_assert_eq(stats_of(pool).promised, 0u);
    fg_pool_destroy(pool, true);
}

/* ---- random operations against a plain model ---- */

typedef struct model {
    uint32_t refs[TOTAL], pins[TOTAL], generation[TOTAL];
    bool kept[TOTAL];
    uint64_t used_at[TOTAL]; /* when it was cached or freed last: tells both orders */
    uint64_t now;
    uint32_t promised;
    evicted seen;
    fg_pool *pool;
} model;

static bool is_idle(const model *m, uint32_t id, bool kept)
{
    return m->refs[id] == 0 && m->pins[id] == 0 && m->kept[id] == kept;
}

static uint32_t count_idle(const model *m, bool kept)
{
    uint32_t count = 0;
    for (uint32_t id = 0; id < TOTAL; id++) {
        count += is_idle(m, id, kept);
    }
    return count;
}

/* The block that a take must choose: the free one freed last, else the cached one used first. */
static int choose(const model *m, bool *evicts_out)
{
    int best = NONE;
    *evicts_out = count_idle(m, false) == 0;
    for (uint32_t id = 0; id < TOTAL; id++) {
        if (is_idle(m, id, *evicts_out) &&
            (best == NONE || (m->used_at[id] > m->used_at[best]) != *evicts_out)) {
            best = (int)id;
        }
    }
    return best;
}

static void model_take(model *m, bool from_promise)
{
    bool evicts;
    int want = choose(m, &evicts);
    uint32_t id, evicted_before = m->seen.count;
    uint32_t idle = count_idle(m, false) + count_idle(m, true);
    if (from_promise) {
        if (m->promised == 0) {
            return;
        }
        fg_pool_take_promised(m->pool, 1, &id);
        m->promised--;
    } else {
        fg_status status = fg_pool_take(m->pool, 1, &id);
        cr_assert_eq(status, idle > m->promised ? FG_OK : FG_AGAIN);
        if (status != FG_OK) {
            return;
        }
    }
    cr_assert_eq((int)id, want, "took %u, not %d", id, want);
    cr_assert_eq(m->seen.count - evicted_before, (uint32_t)evicts);
    m->refs[id] = 1;
    m->generation[id] += evicts;
    m->kept[id] = false;
}

static void model_let_go(model *m, uint32_t id)
{
    m->used_at[id] = ++m->now;
    m->generation[id] += !m->kept[id];
}

static void model_change(model *m, uint64_t what, uint32_t id)
{
    bool was_idle = m->refs[id] == 0 && m->pins[id] == 0;
    uint32_t idle = count_idle(m, false) + count_idle(m, true);
    switch (what) {
    case 0:
        if (m->refs[id] > 0) {
            fg_pool_ref(m->pool, id);
            m->refs[id]++;
        }
        return;
    case 1:
        if (m->kept[id]) {
            bool can = !was_idle || idle > m->promised;
            cr_assert_eq(fg_pool_borrow(m->pool, id), can ? FG_OK : FG_AGAIN);
            m->refs[id] += can;
        }
        return;
    case 2:
        if (!was_idle) {
            fg_pool_pin(m->pool, id);
            m->pins[id]++;
        }
        return;
    case 3:
        if (!was_idle) {
            fg_pool_keep(m->pool, id);
            m->kept[id] = true;
        }
        return;
    case 4:
        fg_pool_forget(m->pool, id);
        if (m->kept[id]) {
            m->kept[id] = false;
            if (was_idle) {
                model_let_go(m, id);
            }
        }
        return;
    default:
        break;
    }
    if (what <= 7 ? m->refs[id] > 0 : m->pins[id] > 0) {
        (what <= 7 ? fg_pool_unref : fg_pool_unpin)(m->pool, id);
        (what <= 7 ? m->refs : m->pins)[id]--;
        if (m->refs[id] == 0 && m->pins[id] == 0) {
            model_let_go(m, id);
        }
    }
}

static void model_step(model *m, fg_rng *rng)
{
    uint64_t what = fg_rng_below(rng, 16);
    if (what < 10) {
        model_change(m, what, (uint32_t)fg_rng_below(rng, TOTAL));
    } else if (what < 13) {
        model_take(m, false);
    } else if (what < 14) {
        model_take(m, true);
    } else if (what < 15) {
        uint32_t idle = count_idle(m, false) + count_idle(m, true);
        fg_status status = fg_pool_promise(m->pool, 2);
        cr_assert_eq(status, idle >= m->promised + 2 ? FG_OK : FG_AGAIN);
        m->promised += status == FG_OK ? 2 : 0;
    } else if (m->promised > 0) {
        fg_pool_unpromise(m->pool, 1);
        m->promised--;
    }
}

/* R26, R27, R28: counters, orders and generations against a model, with a full recount each time. */
Test(pool_cache, counters_equal_a_recount_after_any_sequence_of_operations)
{
    fg_rng rng = { .state = 20261121 };
    cr_log_info("seed %llu", (unsigned long long)rng.state);
    static model m;
    m.pool = make_pool(TOTAL, &m.seen);
    for (uint32_t id = 0; id < TOTAL; id++) {
        m.used_at[id] = TOTAL - id; /* block 0 is taken first */
    }
    m.now = TOTAL;
    for (int step = 0; step < 40000; step++) {
        model_step(&m, &rng);
        fg_pool_stats stats = stats_of(m.pool);
        cr_assert_eq(stats.free + stats.cached + stats.held + stats.pinned + stats.quarantined,
                     stats.total);
        cr_assert_eq(stats.free, count_idle(&m, false));
        cr_assert_eq(stats.cached, count_idle(&m, true));
        cr_assert_eq(stats.promised, m.promised);
        cr_assert_eq(fg_pool_available(m.pool), stats.free + stats.cached - m.promised);
        for (uint32_t id = 0; id < TOTAL; id++) {
            cr_assert_eq(fg_pool_refs(m.pool, id), m.refs[id]);
            cr_assert_eq(fg_pool_is_pinned(m.pool, id), m.pins[id] > 0);
            cr_assert_eq(fg_pool_is_kept(m.pool, id), m.kept[id]);
            cr_assert_eq(fg_pool_generation(m.pool, id), m.generation[id], "block %u", id);
        }
    }
    cr_assert(m.seen.count > 100, "%u evictions: too few to mean anything", m.seen.count);
    fg_pool_destroy(m.pool, true);
}
