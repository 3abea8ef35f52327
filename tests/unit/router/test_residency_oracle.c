/*
 * Random events, right and wrong ones, against a naive oracle: for each worker a set of keys. While there
 * is memory the tree answers the same; without it, it may know less and never more.
 *
 * Bugs that were planted one at a time, all found. By this oracle: a gap is ignored; forget leaves the
 * marks; a split gives the tail the head's marks; a prediction counts after its end; a removed block stays
 * predicted; a run keeps its full marks when it grows; a run of several holders grows; a merge does not
 * compare marks; erasing a key leaves a hole in the table. By test_residency.c: a pinned run is reclaimed
 * first; pins never end; the newest run is reclaimed; frames of another epoch are taken.
 */
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "router/residency.h"
#include "tests/support/test.h"

enum {
    NODES = 3000,
    SLOTS = 8,
    SLOT_COUNT = 130,
    ROUNDS = 20000,
    SEEDS = 4,
    FILLER = 100,
    FILLER_KEYS = 200
};
static const uint32_t slot_ids[SLOTS] = { 0, 1, 2, 63, 64, 65, 127, 129 };
#define MS_NS 1000000ull

/* Blocks of prompts: node i continues node parents[i]; parent 0 begins a prompt. Node 0 is nobody. */
typedef struct world {
    fg_residency *tree;
    fg_rng rng;
    uint64_t now_ns;
    bool is_short; /* of memory: the tree may know less */
    uint32_t parents[NODES];
    uint64_t keys[NODES];
    uint8_t held[SLOTS][NODES]; /* a bit for each tier */
    /* A prediction about a block ends no sooner than that, and no later than this. */
    uint64_t sooner_ns[SLOTS][NODES], later_ns[SLOTS][NODES];
    bool is_joined[SLOTS], is_lost[SLOTS];
    uint64_t epoch[SLOTS], number[SLOTS];
    uint64_t hits, fillers;
} world;

static uint32_t below(world *w, uint32_t bound)
{
    return (uint32_t)fg_rng_below(&w->rng, bound);
}

static void make_world(world *w, uint64_t seed, size_t bytes_max)
{
    *w = (world){ .rng = { .state = seed }, .is_short = bytes_max <= FG_RESIDENCY_BYTES_MIN };
    for (uint32_t node = 1; node < NODES; node++) {
        bool is_branch = below(w, 100) < 3;
        w->parents[node] = is_branch ? below(w, node) : node - 1;
        w->keys[node] = fg_rng_next(&w->rng) | 1;
    }
    fg_residency_options options = { .bytes_max = bytes_max,
                                     .slot_count = SLOT_COUNT,
                                     .seed = seed };
    cr_assert_eq(fg_residency_create(&options, &w->tree, NULL), FG_OK);
    fg_residency_join(w->tree, FILLER, 1);
}

/* The nodes from the first block of a prompt to this one; returns how many. */
static uint32_t path_to(const world *w, uint32_t node, uint32_t nodes_out[NODES])
{
    uint32_t count = 0;
    for (uint32_t at = node; at != 0; at = w->parents[at]) {
        count++;
    }
    for (uint32_t at = node, i = count; at != 0; at = w->parents[at]) {
        nodes_out[--i] = at;
    }
    return count;
}

typedef struct keys {
    uint32_t nodes[NODES], count;
    uint64_t keys[NODES], parent;
} keys;

static void shuffle(world *w, keys *k)
{
    for (uint32_t i = k->count; i > 1; i--) {
        uint32_t other = below(w, i), node = k->nodes[i - 1];
        k->nodes[i - 1] = k->nodes[other];
        k->nodes[other] = node;
    }
}

/* A piece of a prompt, mostly in order, sometimes backwards, shuffled or with a wrong parent. */
static void pick_keys(world *w, bool from_start, keys *k)
{
    uint32_t path[NODES];
    uint32_t count = path_to(w, 1 + below(w, NODES - 1), path);
    uint32_t first = from_start ? 0 : below(w, count), left = count - first;
    uint32_t most = below(w, 3) == 0 ? 3 : below(w, 4) == 0 ? left : 150;
    k->count = 1 + below(w, left < most ? left : most);
    k->parent = first == 0 ? 0 : w->keys[path[first - 1]];
    memcpy(k->nodes, path + first, k->count * sizeof *path);
    uint32_t kind = from_start ? 99 : below(w, 100);
    if (kind < 2) {
        shuffle(w, k);
    } else if (kind < 4) {
        k->parent = fg_rng_next(&w->rng);
    } else if (kind < 6) {
        k->parent = w->keys[1 + below(w, NODES - 1)];
    } else if (kind < 20) {
        for (uint32_t i = 0; i < k->count / 2; i++) {
            uint32_t node = k->nodes[i];
            k->nodes[i] = k->nodes[k->count - 1 - i];
            k->nodes[k->count - 1 - i] = node;
        }
    }
    for (uint32_t i = 0; i < k->count; i++) {
        k->keys[i] = w->keys[k->nodes[i]];
    }
}

/* ---- the oracle ---- */

static void forget(world *w, uint32_t slot)
{
    memset(w->held[slot], 0, sizeof w->held[slot]);
    memset(w->sooner_ns[slot], 0, sizeof w->sooner_ns[slot]);
    memset(w->later_ns[slot], 0, sizeof w->later_ns[slot]);
}

static void note(world *w, uint32_t slot, const fg_residency_event *event, const keys *k)
{
    if (event->kind == FG_RESIDENCY_RESET || event->kind == FG_RESIDENCY_CLEARED) {
        forget(w, slot);
        return;
    }
    for (uint32_t i = 0; i < event->count; i++) {
        uint32_t node = k->nodes[i];
        uint8_t bit = (uint8_t)(1 << event->tier);
        bool stored = event->kind == FG_RESIDENCY_STORED;
        w->held[slot][node] =
            (uint8_t)(stored ? w->held[slot][node] | bit : w->held[slot][node] & ~bit);
        if (event->tier == FG_TIER_DEVICE) {
            w->sooner_ns[slot][node] = w->later_ns[slot][node] = 0;
        }
    }
}

static uint32_t leading(const world *w, uint32_t slot, const keys *k, uint8_t tiers,
                        const uint64_t until_ns[NODES])
{
    uint32_t at = 0;
    while (at < k->count &&
           ((w->held[slot][k->nodes[at]] & tiers) != 0 || until_ns[k->nodes[at]] > w->now_ns)) {
        at++;
    }
    return at;
}

/* ---- what may happen ---- */

static void send(world *w, uint32_t slot)
{
    static keys k;
    pick_keys(w, false, &k);
    uint32_t kind = below(w, 1000);
    fg_residency_event event = { .kind = kind < 3     ? FG_RESIDENCY_RESET
                                         : kind < 5   ? FG_RESIDENCY_CLEARED
                                         : kind < 560 ? FG_RESIDENCY_STORED
                                                      : FG_RESIDENCY_REMOVED,
                                 .tier = below(w, 3) == 0,
                                 .parent = k.parent,
                                 .keys = k.keys,
                                 .count = k.count };
    bool is_missing = below(w, 500) == 0;
    w->number[slot] += 1 + is_missing;
    w->is_lost[slot] |= is_missing && w->is_joined[slot];
    bool is_reset = event.kind == FG_RESIDENCY_RESET;
    fg_residency_frame frame = { w->epoch[slot], w->number[slot], &event, 1 };
    fg_status want = FG_OK;
    if (!w->is_joined[slot]) {
        want = FG_CANCELLED;
    } else if (w->is_lost[slot] && !is_reset && below(w, 10) != 0) {
        want = FG_AGAIN;
    } else if (w->is_lost[slot]) {
        w->is_lost[slot] = false;
        event.kind = FG_RESIDENCY_RESET;
    }
    cr_assert_eq(fg_residency_apply(w->tree, slot_ids[slot], &frame, w->now_ns), want);
    if (want == FG_OK) {
        note(w, slot, &event, &k);
        frame.number -= below(w, 2); /* the same again, or an older one */
        if (frame.number != 0) {
            cr_assert_eq(fg_residency_apply(w->tree, slot_ids[slot], &frame, w->now_ns),
                         FG_CANCELLED);
        }
    }
}

static void come_or_go(world *w, uint32_t slot)
{
    forget(w, slot);
    w->is_lost[slot] = false;
    w->is_joined[slot] = !w->is_joined[slot] || below(w, 2) == 0;
    if (w->is_joined[slot]) {
        w->number[slot] = 0;
        fg_residency_join(w->tree, slot_ids[slot], ++w->epoch[slot]);
    } else {
        fg_residency_forget(w->tree, slot_ids[slot]);
    }
}

static void predict(world *w, uint32_t slot)
{
    static keys k;
    pick_keys(w, true, &k);
    uint64_t until_ns = w->now_ns + below(w, 50) * MS_NS;
    fg_residency_event blocks = { .parent = k.parent, .keys = k.keys, .count = k.count };
    fg_status status = fg_residency_predict(w->tree, slot_ids[slot], &blocks, until_ns, w->now_ns);
    if (!w->is_joined[slot]) {
        cr_assert_eq(status, FG_AGAIN);
        return;
    }
    uint64_t latest_ns = until_ns; /* predictions on one run share the latest time */
    for (uint32_t node = 1; node < NODES; node++) {
        uint64_t *later_ns = &w->later_ns[slot][node];
        latest_ns = *later_ns > latest_ns ? *later_ns : latest_ns;
    }
    for (uint32_t node = 1; node < NODES; node++) {
        uint64_t *later_ns = &w->later_ns[slot][node];
        *later_ns = *later_ns > w->now_ns ? latest_ns : *later_ns;
    }
    for (uint32_t i = 0; i < k.count && until_ns > w->now_ns; i++) {
        uint32_t node = k.nodes[i];
        if ((w->held[slot][node] & 1) == 0 || w->is_short) {
            uint64_t *sooner_ns = &w->sooner_ns[slot][node];
            *sooner_ns = *sooner_ns > until_ns || status != FG_OK ? *sooner_ns : until_ns;
            w->later_ns[slot][node] = latest_ns;
        }
    }
}

static void look(world *w)
{
    static keys k;
    pick_keys(w, true, &k);
    fg_residency_hit hits[SLOT_COUNT];
    uint32_t hit_count = fg_residency_match(w->tree, k.keys, k.count, w->now_ns, hits);
    uint32_t at = 0;
    w->hits += hit_count;
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        fg_residency_hit hit = { 0 };
        if (at < hit_count && hits[at].slot == slot_ids[slot]) {
            hit = hits[at++];
            cr_assert(hit.total != 0 && hit.device <= hit.total);
        }
        cr_assert(hit.device <= leading(w, slot, &k, 1, w->later_ns[slot]));
        cr_assert(hit.total <= leading(w, slot, &k, 3, w->later_ns[slot]));
        if (!w->is_short) {
            cr_assert(hit.device >= leading(w, slot, &k, 1, w->sooner_ns[slot]));
            cr_assert(hit.total >= leading(w, slot, &k, 3, w->sooner_ns[slot]));
        }
    }
    cr_assert_eq(at, hit_count, "a hit of nobody");
}

static void pin(world *w)
{
    static keys k;
    pick_keys(w, true, &k);
    fg_residency_pin(w->tree, k.keys, k.count, w->now_ns + below(w, 100) * MS_NS, w->now_ns);
}

/* Prompts of a worker that nobody asks about push everything else out. */
static void fill(world *w)
{
    uint64_t fresh[FILLER_KEYS];
    for (uint32_t i = 0; i < FILLER_KEYS; i++) {
        fresh[i] = fg_rng_next(&w->rng);
    }
    fg_residency_event event = { .kind = FG_RESIDENCY_STORED, .keys = fresh, .count = FILLER_KEYS };
    fg_residency_frame frame = { .epoch = 1, .number = ++w->fillers, .events = &event, .count = 1 };
    cr_assert_eq(fg_residency_apply(w->tree, FILLER, &frame, w->now_ns), FG_OK);
}

static void check(const world *w)
{
    fg_residency_check(w->tree);
    fg_residency_stats stats;
    fg_residency_stats_get(w->tree, &stats);
    cr_assert(stats.bytes <= stats.bytes_reserved);
    if (w->is_short) {
        return;
    }
    cr_assert(stats.reclaimed == 0 && stats.dropped == 0);
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        uint64_t counts[FG_TIERS] = { 0 };
        for (uint32_t node = 1; node < NODES; node++) {
            counts[0] += w->held[slot][node] & 1;
            counts[1] += w->held[slot][node] >> 1;
        }
        for (uint32_t tier = 0; tier < FG_TIERS; tier++) {
            cr_assert_eq(fg_residency_slot_blocks(w->tree, slot_ids[slot], tier), counts[tier]);
        }
    }
}

static void live(uint64_t seed, size_t bytes_max)
{
    world *w = fg_mem_alloc(sizeof *w);
    cr_assert_not_null(w);
    make_world(w, seed, bytes_max);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint32_t slot = below(w, SLOTS), kind = below(w, 1000);
        w->now_ns += below(w, 2) * MS_NS;
        if (kind < 3 || (!w->is_joined[slot] && kind < 100)) {
            come_or_go(w, slot);
        } else if (kind < 50) {
            predict(w, slot);
        } else if (kind < 60) {
            pin(w);
        } else if (kind < 500) {
            look(w);
        } else {
            send(w, slot);
        }
        if (w->is_short && kind % 4 == 0) {
            fill(w);
        }
        if (round % 500 == 0) {
            check(w);
        }
    }
    check(w);
    fg_residency_forget(w->tree, FILLER);
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        fg_residency_forget(w->tree, slot_ids[slot]);
    }
    fg_residency_stats stats;
    fg_residency_stats_get(w->tree, &stats);
    cr_assert(stats.blocks == 0 && stats.runs == 0 && stats.predictions == 0);
    cr_assert(!w->is_short || stats.reclaimed > 300000);
    cr_log_info("seed %llu: %llu hits, %llu splits, %llu merges, %llu reclaimed",
                (unsigned long long)seed, (unsigned long long)w->hits,
                (unsigned long long)stats.splits, (unsigned long long)stats.merges,
                (unsigned long long)stats.reclaimed);
    fg_residency_check(w->tree);
    fg_residency_destroy(w->tree);
    fg_mem_free(w);
}

Test(residency_oracle, any_events_leave_what_the_oracle_knows)
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        cr_log_info("seed %llu", (unsigned long long)seed);
        live(seed, 8 << 20);
    }
}

Test(residency_oracle, without_memory_the_tree_knows_less_and_never_more)
{
    for (uint64_t seed = 11; seed <= 12; seed++) {
        cr_log_info("seed %llu", (unsigned long long)seed);
        live(seed, FG_RESIDENCY_BYTES_MIN);
    }
}
