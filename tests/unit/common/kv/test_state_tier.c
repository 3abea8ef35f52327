/*
 * The state of a tier: a copy answers as the original does, whatever comes next, and bytes that are no
 * state are refused. All tokens and digests are zero, as they are in a copy.
 */
#include <string.h>

#include "common/base/fault.h"
#include "common/base/rng.h"
#include "common/kv/tier.h"
#include "tests/support/seed.h"
#include "tests/support/test.h"

enum { BLOCK = 4, SLOTS = 9, KEYS = 20, NOTES = 8192, STATE_MAX = 1024 };

static const uint32_t zeros[BLOCK];

static fg_digest128 key_of(uint32_t n)
{
    return (fg_digest128){ .low = n % 3 == 0 ? n * 1024u : n, .high = n };
}

typedef struct place {
    fg_tier *tier;
    uint64_t notes[NOTES]; /* all that was answered or told since the last copy */
    uint32_t note_count;
} place;

static void note(place *p, uint64_t what)
{
    cr_assert(p->note_count < NOTES);
    p->notes[p->note_count++] = what;
}

static void note_change(void *ctx, bool here, fg_digest128 parent, fg_digest128 key)
{
    note(ctx, here);
    note(ctx, parent.high);
    note(ctx, key.high);
}

static void place_open(place *p, uint32_t slots)
{
    fg_tier_options options = { .block_bytes = 64, .block_count = slots, .block_size = BLOCK };
    *p = (place){ 0 };
    cr_assert_eq(fg_tier_open(&options, &p->tier, NULL), FG_OK);
    fg_tier_watch(p->tier, note_change, p);
}

typedef struct state {
    size_t size_bytes;
    uint8_t bytes[STATE_MAX];
} state;

static void get(const place *p, uint8_t filler, state *s)
{
    s->size_bytes = fg_tier_state_bytes(p->tier);
    cr_assert(s->size_bytes < STATE_MAX && s->size_bytes % 8 == 0);
    memset(s->bytes, filler, STATE_MAX);
    fg_tier_state_get(p->tier, s->bytes);
    cr_assert_eq(s->bytes[s->size_bytes], filler, "one byte too many");
}

static bool equal(const state *a, const state *b)
{
    return a->size_bytes == b->size_bytes && memcmp(a->bytes, b->bytes, a->size_bytes) == 0;
}

static void copy(const place *from, place *to)
{
    state s;
    place_open(to, SLOTS);
    get(from, 0xEE, &s);
    fg_fault_arm(1);
    cr_assert(fg_tier_state_set(to->tier, s.bytes, s.size_bytes));
    cr_assert(!fg_fault_fired(), "nothing is allocated");
    fg_fault_arm(0);
    cr_assert_eq(to->note_count, 0u, "nobody is told");
}

static void compare(const place *a, const place *b)
{
    state of_a, of_b;
    get(a, 0xEE, &of_a);
    get(b, 0x11, &of_b);
    cr_assert(equal(&of_a, &of_b), "the states differ");
    cr_assert_eq(a->note_count, b->note_count);
    for (uint32_t i = 0; i < a->note_count; i++) {
        cr_assert_eq(a->notes[i], b->notes[i], "answer %u: %llu, the copy's is %llu", i,
                     (unsigned long long)a->notes[i], (unsigned long long)b->notes[i]);
    }
}

/* Stores and fills, maybe another one in between, so that they come idle in another order. */
static void store(place *p, uint32_t key, uint32_t other)
{
    uint32_t slot = fg_tier_store(p->tier, key_of(key / 2), key_of(key), zeros);
    uint32_t next = fg_tier_store(p->tier, key_of(other / 2), key_of(other), zeros);
    note(p, slot);
    note(p, next);
    if (next != FG_TIER_NONE) {
        fg_tier_filled(p->tier, next, 0);
    }
    if (slot != FG_TIER_NONE) {
        fg_tier_filled(p->tier, slot, 0);
    }
}

static void swap_out_and_in(place *p, uint32_t count, uint32_t first)
{
    uint32_t slots[SLOTS];
    fg_status status = fg_tier_take(p->tier, count, slots);
    note(p, status);
    for (uint32_t i = 0; i < count && status == FG_OK; i++) {
        uint32_t slot = slots[(first + i) % count];
        note(p, slot);
        fg_tier_filled(p->tier, slot, 7);
        note(p, fg_tier_verify(p->tier, slot, 7));
        fg_tier_give(p->tier, slot);
    }
}

/* Leaves the tier at rest. */
static void step(place *p, fg_rng *rng)
{
    uint32_t key = 1 + (uint32_t)fg_rng_below(rng, KEYS);
    uint32_t other = 1 + (uint32_t)fg_rng_below(rng, KEYS), slot;
    switch (fg_rng_below(rng, 8)) {
    case 0:
    case 1:
    case 2:
        store(p, key, other);
        break;
    case 3:
    case 4:
    case 5:
        slot = fg_tier_find(p->tier, key_of(key / 2), key_of(key), zeros);
        note(p, slot);
        if (slot != FG_TIER_NONE && fg_rng_below(rng, 2) == 0) {
            fg_tier_lock(p->tier, slot);
            note(p, fg_tier_verify(p->tier, slot, fg_rng_below(rng, 6) == 0));
            fg_tier_unlock(p->tier, slot);
        }
        break;
    case 6:
        swap_out_and_in(p, 1 + (uint32_t)fg_rng_below(rng, 3), other);
        break;
    default:
        if (fg_rng_below(rng, 40) == 0) {
            fg_tier_clear(p->tier);
        }
        break;
    }
}

static void note_all(place *p)
{
    fg_tier_stats stats;
    fg_digest128 parent, key;
    fg_tier_check(p->tier);
    fg_tier_stats_get(p->tier, &stats);
    uint64_t numbers[] = {
        stats.total,  stats.free, stats.swapped,   stats.stored,
        stats.stores, stats.hits, stats.evictions, stats.damaged,
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        note(p, numbers[i]);
    }
    note(p, fg_tier_available(p->tier));
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        bool found = fg_tier_at(p->tier, slot, &parent, &key);
        note(p, found ? parent.high : 0);
        note(p, found ? key.high : 0);
    }
}

Test(kv_state_tier, a_copy_of_a_tier_goes_on_as_the_original_does)
{
    static place one, two;
    place *a = &one, *b = &two;
    fg_rng rng = { .state = test_seed("kv_state_tier") };
    place_open(a, SLOTS);
    for (int round = 0; round < 500; round++) {
        for (uint64_t left = fg_rng_below(&rng, 60); left > 0; left--) {
            step(a, &rng);
        }
        a->note_count = 0;
        copy(a, b);
        fg_tier_check(b->tier);
        compare(a, b);
        fg_rng again = rng;
        for (int i = 0; i < 100; i++) {
            step(a, &rng);
            step(b, &again);
        }
        note_all(a);
        note_all(b);
        compare(a, b);
        fg_tier_close(a->tier);
        place *swap = a; /* the copy is copied next */
        a = b;
        b = swap;
        a->note_count = 0;
    }
    fg_tier_stats stats;
    fg_tier_stats_get(a->tier, &stats);
    cr_assert(stats.evictions > 100 && stats.hits > 100 && stats.damaged > 100);
    fg_tier_close(a->tier);
}

Test(kv_state_tier, tokens_and_digests_are_not_in_the_state)
{
    place a, b;
    uint32_t tokens[BLOCK] = { 5, 6, 7, 8 };
    place_open(&a, SLOTS);
    uint32_t slot = fg_tier_store(a.tier, key_of(0), key_of(1), tokens);
    fg_tier_filled(a.tier, slot, 12345);
    copy(&a, &b);
    cr_assert_eq(fg_tier_find(b.tier, key_of(0), key_of(1), tokens), FG_TIER_NONE);
    cr_assert_eq(fg_tier_find(b.tier, key_of(0), key_of(1), zeros), slot);
    cr_assert(fg_tier_verify(b.tier, slot, 0));
    fg_tier_close(a.tier);
    fg_tier_close(b.tier);
}

/* ---- refusals ---- */

/* Five slots, so that the lists are padded: 3 and 4 free, 0, 2 and 1 idle. */
static void make_small(place *p)
{
    place_open(p, 5);
    store(p, 1, 2);
    store(p, 3, 1);
    cr_assert_eq(fg_tier_find(p->tier, key_of(0), key_of(1), zeros), 0u);
    cr_assert_eq(fg_tier_find(p->tier, key_of(1), key_of(3), zeros), 2u);
    cr_assert_eq(fg_tier_find(p->tier, key_of(1), key_of(2), zeros), 1u);
    p->note_count = 0;
}

/* Where the small tier's numbers lie. */
enum { FREE = 40, IDLE = FREE + 2 * 4, PADDING = IDLE + 3 * 4, ROWS = PADDING + 4, ROW = 32 };

static const struct {
    const char *name;
    size_t at; /* of the number that is another one now */
    uint64_t value;
    size_t value_bytes;
} wrong[] = {
    { "fewer slots", 0, 4, 4 },
    { "more slots", 0, 6, 4 },
    { "one less stored", 4, 2, 4 },
    { "more stored than slots", 4, 6, 4 },
    { "the largest number stored", 4, UINT32_MAX, 4 },
    { "more stored than ever were", 8, 2, 8 },
    { "more evicted than were stored", 24, 1, 8 },
    { "evictions with a sum that wraps", 24, UINT64_MAX, 8 },
    { "a free slot twice", FREE, 4, 4 },
    { "a slot free and stored", FREE, 0, 4 },
    { "a free slot that there is not", FREE, 5, 4 },
    { "the end of a list as a slot", FREE + 4, UINT32_MAX, 4 },
    { "a stored slot twice", IDLE + 4, 0, 4 },
    { "a stored slot that there is not", IDLE, 1u << 31, 4 },
    { "padding that is not zero", PADDING, 1, 4 },
};

static void refuse(const char *name, const uint8_t *bytes, size_t size_bytes, const state *good)
{
    place p;
    place_open(&p, 5);
    cr_assert(!fg_tier_state_set(p.tier, bytes, size_bytes), "%s", name);
    fg_tier_check(p.tier);
    fg_tier_stats stats;
    fg_tier_stats_get(p.tier, &stats);
    cr_assert(stats.free == 5 && stats.stores == 0, "%s: it is as it was", name);
    cr_assert(fg_tier_state_set(p.tier, good->bytes, good->size_bytes), "%s", name);
    fg_tier_check(p.tier);
    fg_tier_close(p.tier);
}

Test(kv_state_tier, refuses_what_is_no_state_of_a_tier)
{
    place p;
    state good, bad;
    make_small(&p);
    get(&p, 0, &good);
    cr_assert_eq(good.size_bytes, (size_t)ROWS + 3 * ROW);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        bad = good;
        cr_assert(memcmp(bad.bytes + wrong[i].at, &wrong[i].value, wrong[i].value_bytes) != 0, "%s",
                  wrong[i].name);
        memcpy(bad.bytes + wrong[i].at, &wrong[i].value, wrong[i].value_bytes);
        refuse(wrong[i].name, bad.bytes, bad.size_bytes, &good);
    }
    for (size_t size = 0; size < good.size_bytes; size++) {
        refuse("cut short", good.bytes, size, &good);
    }
    refuse("too long", good.bytes, good.size_bytes + 1, &good);
    refuse("a row too many", good.bytes, good.size_bytes + ROW, &good);
    bad = good;
    memcpy(bad.bytes + ROWS + 2 * ROW, good.bytes + ROWS, 16);
    refuse("a key twice", bad.bytes, bad.size_bytes, &good);
    fg_tier_close(p.tier);
}

/* What is accepted after all gives the very same bytes, so no two of them mean the same. */
Test(kv_state_tier, another_byte_somewhere_makes_another_state_or_none)
{
    place p;
    state good, back;
    fg_rng rng = { .state = test_seed("kv_state_tier bytes") };
    uint32_t taken = 0, refused = 0;
    make_small(&p);
    get(&p, 0, &good);
    for (uint32_t i = 0; i < 10000; i++) {
        place q;
        state bad = good;
        size_t at = fg_rng_below(&rng, bad.size_bytes);
        bad.bytes[at] ^= (uint8_t)(1 + fg_rng_below(&rng, 255));
        place_open(&q, 5);
        bool is_set = fg_tier_state_set(q.tier, bad.bytes, bad.size_bytes);
        fg_tier_check(q.tier);
        if (is_set) {
            get(&q, 0, &back);
            cr_assert(equal(&bad, &back), "byte %zu", at);
        }
        taken += is_set;
        refused += !is_set;
        fg_tier_close(q.tier);
    }
    cr_assert(taken > 100 && refused > 100, "%u and %u", taken, refused);
    fg_tier_close(p.tier);
}
