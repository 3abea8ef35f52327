/*
 * The tree against a naive oracle that knows, for each worker, a set of keys: any events, right or
 * wrong, leave both with the same answer, as long as there is memory; without it the tree knows less and
 * never more.
 */
#include "router/residency.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/fault.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/support/test.h"

#define SECOND_NS 1000000000ull

static fg_residency *make_tree(size_t bytes_max, uint32_t slot_count)
{
    fg_residency_options options = { .bytes_max = bytes_max, .slot_count = slot_count, .seed = 7 };
    fg_residency *tree = NULL;
    cr_assert_eq(fg_residency_create(&options, &tree, NULL), FG_OK);
    return tree;
}

/* Frames of one event, numbered rightly. */
typedef struct peer {
    fg_residency *tree;
    uint32_t slot;
    uint64_t number;
} peer;

static peer join(fg_residency *tree, uint32_t slot)
{
    fg_residency_join(tree, slot, 1);
    return (peer){ .tree = tree, .slot = slot };
}

static fg_status send(peer *p, fg_residency_event event, uint64_t now_ns)
{
    fg_residency_frame frame = { .epoch = 1, .number = ++p->number, .events = &event, .count = 1 };
    return fg_residency_apply(p->tree, p->slot, &frame, now_ns);
}

static void store(peer *p, uint64_t parent, const uint64_t *keys, uint32_t count)
{
    fg_residency_event event = { FG_RESIDENCY_STORED, FG_TIER_DEVICE, parent, keys, count };
    cr_assert_eq(send(p, event, 0), FG_OK);
}

static void remove_keys(peer *p, const uint64_t *keys, uint32_t count)
{
    fg_residency_event event = { FG_RESIDENCY_REMOVED, FG_TIER_DEVICE, 0, keys, count };
    cr_assert_eq(send(p, event, 0), FG_OK);
}

/* count keys, first, first + 1, ... mixed, so that they look like keys */
static const uint64_t *chain(uint64_t first, uint32_t count)
{
    static uint64_t keys[8192];
    for (uint32_t i = 0; i < count; i++) {
        keys[i] = fg_hash_mix(first + i);
    }
    return keys;
}

static uint32_t device_of(fg_residency *tree, uint32_t slot, const uint64_t *keys, uint32_t count,
                          uint64_t now_ns)
{
    fg_residency_hit hits[FG_LIMIT_WORKERS];
    uint32_t hit_count = fg_residency_match(tree, keys, count, now_ns, hits);
    for (uint32_t i = 0; i < hit_count; i++) {
        if (hits[i].slot == slot) {
            return hits[i].device;
        }
    }
    return 0;
}

/* ---- creation ---- */

static bool create_once(void *ctx)
{
    (void)ctx;
    fg_residency_options options = { .bytes_max = FG_RESIDENCY_BYTES_MIN, .slot_count = 4 };
    fg_residency *tree = NULL;
    if (fg_residency_create(&options, &tree, NULL) != FG_OK) {
        return false;
    }
    fg_residency_destroy(tree);
    return true;
}

Test(residency, survives_every_failed_allocation)
{
    cr_assert_eq(fg_fault_each(create_once, NULL), 2);
}

Test(residency, refuses_options_out_of_bounds)
{
    static const fg_residency_options bad[] = {
        { .bytes_max = 1 << 20, .slot_count = 0 },
        { .bytes_max = 1 << 20, .slot_count = FG_LIMIT_WORKERS + 1 },
        { .bytes_max = FG_RESIDENCY_BYTES_MIN - 1, .slot_count = 4 },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        fg_residency *tree = NULL;
        cr_assert_eq(fg_residency_create(&bad[i], &tree, NULL), FG_BAD_INPUT);
        cr_assert_null(tree);
    }
}

/* ---- frames ---- */

Test(residency, a_gap_keeps_hints_and_waits_for_a_reset)
{
    fg_residency *tree = make_tree(1 << 20, 4);
    peer p = join(tree, 3);
    store(&p, 0, chain(1, 10), 10);
    p.number++; /* one is missing */
    fg_residency_event more = { FG_RESIDENCY_STORED, 0, fg_hash_mix(10), chain(11, 1), 1 };
    cr_assert_eq(send(&p, more, 0), FG_AGAIN);
    cr_assert(fg_residency_is_lost(tree, 3));
    cr_assert_eq(send(&p, more, 0), FG_AGAIN);
    cr_assert_eq(device_of(tree, 3, chain(1, 11), 11, 0), 10);

    fg_residency_event page[] = { { FG_RESIDENCY_CLEARED, 0, 0, NULL, 0 },
                                  { FG_RESIDENCY_RESET, 0, 0, NULL, 0 },
                                  { FG_RESIDENCY_STORED, 0, 0, chain(1, 4), 4 } };
    fg_residency_frame frame = { .epoch = 1, .number = ++p.number, .events = page, .count = 3 };
    cr_assert_eq(fg_residency_apply(tree, 3, &frame, 0), FG_OK);
    cr_assert(!fg_residency_is_lost(tree, 3));
    cr_assert_eq(device_of(tree, 3, chain(1, 11), 11, 0), 4);
    store(&p, fg_hash_mix(4), chain(5, 2), 2);
    cr_assert_eq(device_of(tree, 3, chain(1, 11), 11, 0), 6);
    fg_residency_stats stats;
    fg_residency_stats_get(tree, &stats);
    cr_assert(stats.gaps == 1 && stats.ignored == 2 && stats.frames == 3);
    fg_residency_check(tree);
    fg_residency_destroy(tree);
}

Test(residency, drops_frames_of_other_lives)
{
    fg_residency *tree = make_tree(1 << 20, 4);
    peer p = join(tree, 0);
    store(&p, 0, chain(1, 3), 3);
    fg_residency_event clear = { .kind = FG_RESIDENCY_CLEARED };
    static const struct {
        const char *name;
        uint32_t slot;
        uint64_t epoch, number;
        fg_status want;
    } cases[] = {
        { "other epoch", 0, 2, 2, FG_CANCELLED },      { "had before", 0, 1, 1, FG_CANCELLED },
        { "unknown slot", 1, 1, 1, FG_CANCELLED },     { "no such slot", 4, 1, 1, FG_CANCELLED },
        { "far beyond", 1 << 30, 1, 1, FG_CANCELLED }, { "number 0", 0, 1, 0, FG_BAD_INPUT },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fg_residency_frame frame = { cases[i].epoch, cases[i].number, &clear, 1 };
        cr_assert_eq(fg_residency_apply(tree, cases[i].slot, &frame, 0), cases[i].want, "%s",
                     cases[i].name);
        cr_assert_eq(device_of(tree, 0, chain(1, 3), 3, 0), 3, "%s", cases[i].name);
    }
    fg_residency_destroy(tree);
}

Test(residency, refuses_events_that_make_no_sense)
{
    uint64_t key = 5;
    fg_residency_event bad[] = { { .kind = 4 },
                                 { .kind = UINT32_MAX },
                                 { FG_RESIDENCY_STORED, 2, 0, &key, 1 },
                                 { FG_RESIDENCY_REMOVED, UINT32_MAX, 0, &key, 1 },
                                 { FG_RESIDENCY_STORED, 0, 0, NULL, 1 } };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        fg_residency *tree = make_tree(1 << 20, 4);
        peer p = join(tree, 0);
        store(&p, 0, chain(1, 3), 3);
        cr_assert_eq(send(&p, bad[i], 0), FG_BAD_INPUT, "%zu", i);
        cr_assert(fg_residency_is_lost(tree, 0));
        cr_assert_eq(device_of(tree, 0, chain(1, 3), 3, 0), 3);
        cr_assert_eq(send(&p, (fg_residency_event){ .kind = FG_RESIDENCY_RESET }, 0), FG_OK);
        cr_assert_eq(device_of(tree, 0, chain(1, 3), 3, 0), 0);
        fg_residency_destroy(tree);
    }
}

/* ---- shape ---- */

Test(residency, workers_share_runs_and_part_where_prompts_do)
{
    fg_residency *tree = make_tree(1 << 20, 256);
    uint64_t tail[20];
    for (uint32_t w = 0; w < 100; w++) {
        peer p = join(tree, w);
        store(&p, 0, chain(1, 40), 40);
        memcpy(tail, chain(1000 * (w + 1), 20), sizeof tail);
        store(&p, fg_hash_mix(40), tail, 20);
    }
    fg_residency_stats stats;
    fg_residency_stats_get(tree, &stats);
    cr_assert(stats.blocks == 40 + 100 * 20 && stats.runs == 101, "%llu runs",
              (unsigned long long)stats.runs);
    cr_assert_eq(stats.partials, 0);
    fg_residency_hit hits[FG_LIMIT_WORKERS];
    uint64_t keys[60];
    memcpy(keys, chain(1, 40), 40 * sizeof *keys);
    memcpy(keys + 40, chain(1000 * 8, 20), sizeof tail);
    cr_assert_eq(fg_residency_match(tree, keys, 60, 0, hits), 100);
    for (uint32_t w = 0; w < 100; w++) {
        cr_assert(hits[w].slot == w && hits[w].device == (w == 7 ? 60u : 40u));
    }
    fg_residency_check(tree);
    fg_residency_destroy(tree);
}

Test(residency, blocks_of_several_holders_grow_into_one_run)
{
    fg_residency *tree = make_tree(1 << 20, 4);
    peer a = join(tree, 0), b = join(tree, 1);
    for (uint32_t i = 0; i < 60; i++) {
        store(&a, i == 0 ? 0 : fg_hash_mix(i), chain(i + 1, 1), 1);
        store(&b, i == 0 ? 0 : fg_hash_mix(i), chain(i + 1, 1), 1);
        fg_residency_check(tree);
    }
    fg_residency_stats stats;
    fg_residency_stats_get(tree, &stats);
    cr_assert(stats.runs == 1 && stats.merges == 59);
    cr_assert(fg_residency_slot_blocks(tree, 1, FG_TIER_DEVICE) == 60);
    fg_residency_destroy(tree);
}

Test(residency, a_middle_block_ends_the_match_until_it_returns)
{
    fg_residency *tree = make_tree(1 << 20, 4);
    peer a = join(tree, 0), b = join(tree, 1);
    store(&a, 0, chain(1, 200), 200);
    store(&b, 0, chain(1, 200), 200);
    remove_keys(&a, chain(101, 1), 1);
    cr_assert_eq(device_of(tree, 0, chain(1, 200), 200, 0), 100);
    cr_assert_eq(device_of(tree, 1, chain(1, 200), 200, 0), 200);
    store(&a, fg_hash_mix(100), chain(101, 1), 1);
    cr_assert_eq(device_of(tree, 0, chain(1, 200), 200, 0), 200);
    fg_residency_stats stats;
    fg_residency_stats_get(tree, &stats);
    cr_assert(stats.partials == 0 && stats.splits == 0);
    fg_residency_check(tree);
    fg_residency_destroy(tree);
}

Test(residency, a_run_is_cut_where_several_holders_stop)
{
    fg_residency *tree = make_tree(1 << 20, 64);
    peer first = join(tree, 63);
    store(&first, 0, chain(1, 64), 64);
    for (uint32_t w = 0; w < 63; w++) {
        peer p = join(tree, w);
        store(&p, 0, chain(1, 16 * (1 + w % 3)), 16 * (1 + w % 3));
        fg_residency_check(tree);
    }
    fg_residency_stats stats;
    fg_residency_stats_get(tree, &stats);
    cr_assert(stats.runs == 4 && stats.splits == 3 && stats.partials == 0, "%llu runs, %llu parts",
              (unsigned long long)stats.runs, (unsigned long long)stats.partials);
    for (uint32_t w = 0; w < 63; w++) {
        cr_assert_eq(device_of(tree, w, chain(1, 64), 64, 0), 16 * (1 + w % 3));
    }
    fg_residency_destroy(tree);
}

Test(residency, children_may_come_before_their_parents)
{
    fg_residency *tree = make_tree(1 << 20, 4);
    peer a = join(tree, 0);
    store(&a, fg_hash_mix(10), chain(11, 10), 10);
    cr_assert_eq(device_of(tree, 0, chain(1, 20), 20, 0), 0);
    store(&a, 0, chain(1, 10), 10);
    cr_assert_eq(device_of(tree, 0, chain(1, 20), 20, 0), 20);
    fg_residency_stats stats;
    fg_residency_stats_get(tree, &stats);
    cr_assert_eq(stats.unknown, 1);
    fg_residency_check(tree);
    fg_residency_destroy(tree);
}

Test(residency, forget_leaves_nothing)
{
    fg_residency *tree = make_tree(1 << 20, 4);
    peer a = join(tree, 0), b = join(tree, 1);
    store(&a, 0, chain(1, 100), 100);
    store(&b, 0, chain(1, 50), 50);
    fg_residency_forget(tree, 0);
    cr_assert_eq(device_of(tree, 0, chain(1, 100), 100, 0), 0);
    cr_assert_eq(device_of(tree, 1, chain(1, 100), 100, 0), 50);
    fg_residency_forget(tree, 1);
    fg_residency_stats stats;
    fg_residency_stats_get(tree, &stats);
    cr_assert(stats.blocks == 0 && stats.runs == 0 && stats.bytes == 0);
    fg_residency_check(tree);
    fg_residency_destroy(tree);
}

/* ---- tiers, predictions, pins, heat ---- */

Test(residency, host_blocks_count_beside_those_on_the_device)
{
    fg_residency *tree = make_tree(1 << 20, 4);
    peer a = join(tree, 2);
    store(&a, 0, chain(1, 5), 5);
    fg_residency_event host = { FG_RESIDENCY_STORED, FG_TIER_HOST, fg_hash_mix(4), chain(5, 4), 4 };
    cr_assert_eq(send(&a, host, 0), FG_OK);
    fg_residency_hit hits[4];
    cr_assert_eq(fg_residency_match(tree, chain(1, 10), 10, 0, hits), 1);
    cr_assert(hits[0].slot == 2 && hits[0].device == 5 && hits[0].total == 8);
    remove_keys(&a, chain(1, 1), 1);
    cr_assert_eq(fg_residency_match(tree, chain(1, 10), 10, 0, hits), 0);
    fg_residency_destroy(tree);
}

Test(residency, predictions_end_by_time_or_by_the_worker)
{
    fg_residency *tree = make_tree(1 << 20, 4);
    peer a = join(tree, 0);
    fg_residency_event blocks = { .keys = chain(1, 100), .count = 100 };
    cr_assert_eq(fg_residency_predict(tree, 0, &blocks, 20, 10), FG_OK);
    cr_assert_eq(fg_residency_predict(tree, 1, &blocks, 20, 10), FG_AGAIN); /* nobody is there */
    cr_assert_eq(device_of(tree, 0, chain(1, 100), 100, 19), 100);
    store(&a, 0, chain(1, 70), 70);
    fg_residency_stats stats;
    fg_residency_stats_get(tree, &stats);
    cr_assert_eq(stats.predictions, 1);
    fg_residency_check(tree);
    cr_assert_eq(device_of(tree, 0, chain(1, 100), 100, 19), 100);
    cr_assert_eq(device_of(tree, 0, chain(1, 100), 100, 20), 70);
    remove_keys(&a, chain(1, 70), 70);
    fg_residency_stats_get(tree, &stats);
    cr_assert(stats.blocks == 0 && stats.predictions == 0);
    fg_residency_check(tree);
    fg_residency_destroy(tree);
}

Test(residency, predictions_are_bounded)
{
    fg_residency *tree = make_tree(1 << 20, 4);
    join(tree, 0);
    uint64_t refused = 0;
    for (uint32_t i = 0; i < 2000; i++) {
        fg_residency_event blocks = { .keys = chain(1 + i * 10, 2), .count = 2 };
        refused += fg_residency_predict(tree, 0, &blocks, 20 + i, 10) != FG_OK;
    }
    fg_residency_check(tree);
    fg_residency_stats stats;
    fg_residency_stats_get(tree, &stats);
    cr_assert(stats.predictions + refused == 2000 && refused > 0 &&
              stats.runs == stats.predictions);
    cr_assert_eq(device_of(tree, 0, chain(1, 2), 2, 5000), 0);
    fg_residency_stats_get(tree, &stats);
    cr_assert(stats.predictions == 0 && stats.blocks == 0);
    fg_residency_destroy(tree);
}

static void churn(peer *p, uint64_t first, uint32_t chains, uint64_t now_ns)
{
    for (uint32_t i = 0; i < chains; i++) {
        fg_residency_event event = { FG_RESIDENCY_STORED, 0, 0, chain(first + i * 100, 100), 100 };
        cr_assert_eq(send(p, event, now_ns), FG_OK);
    }
}

Test(residency, a_pinned_prefix_outlives_a_churn_until_its_time)
{
    fg_residency *tree = make_tree(1 << 20, 4);
    peer a = join(tree, 0);
    store(&a, 0, chain(1, 100), 100);
    cr_assert_eq(fg_residency_pin(tree, chain(1, 100), 100, 10 * SECOND_NS, SECOND_NS), FG_OK);
    churn(&a, 1000, 3000, 5 * SECOND_NS);
    cr_assert_eq(device_of(tree, 0, chain(1, 100), 100, 5 * SECOND_NS), 100);
    fg_residency_check(tree);
    churn(&a, 1000000, 3000, 11 * SECOND_NS);
    cr_assert_eq(device_of(tree, 0, chain(1, 100), 100, 11 * SECOND_NS), 0);
    fg_residency_stats stats;
    fg_residency_stats_get(tree, &stats);
    cr_assert(stats.reclaimed > 500000 && stats.bytes <= 1 << 20 && stats.pins == 0);
    fg_residency_check(tree);
    fg_residency_destroy(tree);
}

Test(residency, pins_are_bounded_and_give_way_at_last)
{
    fg_residency *tree = make_tree(1 << 20, 4);
    peer a = join(tree, 0);
    for (uint32_t i = 0; i <= FG_RESIDENCY_PINS; i++) {
        const uint64_t *keys = chain(1 + i * 100, 100);
        store(&a, 0, keys, 100);
        cr_assert_eq(fg_residency_pin(tree, keys, 100, SECOND_NS, 0),
                     i < FG_RESIDENCY_PINS ? FG_OK : FG_AGAIN);
    }
    cr_assert_eq(fg_residency_pin(tree, chain(1, 100), 100, 2 * SECOND_NS, 0), FG_OK); /* again */
    churn(&a, 1000000, 3000, 0); /* all is pinned, and still the cap holds */
    fg_residency_check(tree);
    fg_residency_stats stats;
    fg_residency_stats_get(tree, &stats);
    cr_assert(stats.pins == FG_RESIDENCY_PINS && stats.bytes <= 1 << 20 && stats.dropped == 0);
    cr_assert_eq(fg_residency_pin(tree, chain(5, 1), 1, 3 * SECOND_NS, SECOND_NS), FG_OK);
    fg_residency_destroy(tree);
}

Test(residency, the_least_recently_matched_goes_first)
{
    fg_residency *tree = make_tree(1 << 20, 4);
    peer a = join(tree, 0);
    churn(&a, 1, 2, SECOND_NS); /* 1.. and 101.. */
    for (uint32_t round = 2; round < 200; round++) {
        cr_assert_eq(device_of(tree, 0, chain(1, 100), 100, round * SECOND_NS), 100);
        churn(&a, 1000 * round * 10, 20, round * SECOND_NS);
    }
    cr_assert_eq(device_of(tree, 0, chain(101, 100), 100, 200 * SECOND_NS), 0);
    fg_residency_destroy(tree);
}

Test(residency, heat_grows_with_matches_and_halves_with_time)
{
    fg_residency *tree = make_tree(1 << 20, 4);
    peer a = join(tree, 0);
    store(&a, 0, chain(1, 100), 100);
    uint64_t now = SECOND_NS;
    cr_assert_eq(fg_residency_heat(tree, chain(1, 100), 100, now), 0);
    for (uint32_t i = 0; i < 10; i++) {
        device_of(tree, 0, chain(1, 30), 30, now);
    }
    cr_assert_eq(fg_residency_heat(tree, chain(1, 30), 30, now), 10 * FG_RESIDENCY_HEAT);
    cr_assert_eq(fg_residency_heat(tree, chain(1, 100), 100, now), 0);
    uint32_t half = fg_residency_heat(tree, chain(1, 30), 30, now + FG_RESIDENCY_HALF_LIFE_NS);
    cr_assert(half >= 5 * FG_RESIDENCY_HEAT - 2 && half <= 5 * FG_RESIDENCY_HEAT + 2, "%u", half);
    cr_assert_eq(fg_residency_heat(tree, chain(1, 30), 30, now + 40 * FG_RESIDENCY_HALF_LIFE_NS),
                 0);
    cr_assert_eq(fg_residency_heat(tree, chain(7777, 3), 3, now), 0);
    fg_residency_destroy(tree);
}
