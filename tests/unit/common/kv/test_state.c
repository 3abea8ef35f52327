/*
 * The states of pool and prefix cache: a copy made of them answers as the original does, whatever comes
 * next, and bytes that are no state are refused. In both, all tokens are zero, as they are in a copy.
 */
#include <stdlib.h>
#include <string.h>

#include "common/base/fault.h"
#include "common/base/rng.h"
#include "common/kv/prefix.h"
#include "tests/support/seed.h"
#include "tests/support/test.h"

enum { BLOCK = 4, POOL = 24, KEYS = 40, HELD = 40, NOTES = 8192, STATE_MAX = 4096 };

static const uint32_t zeros[8 * BLOCK];

/* Keys are the nodes of a tree, each below half its number, some of them in one bucket; 0 is the root. */
static fg_digest128 key_of(uint32_t n)
{
    return (fg_digest128){ .low = n % 3 == 0 ? n * 1024u : n, .high = n };
}

typedef struct place {
    fg_pool *pool;
    fg_prefix *prefix;
    uint32_t held[HELD]; /* a reference each */
    uint32_t held_count;
    uint64_t notes[NOTES]; /* all that was answered or told since the last copy */
    uint32_t note_count;
} place;

static void note(place *p, uint64_t what)
{
    cr_assert(p->note_count < NOTES);
    p->notes[p->note_count++] = what;
}

static void note_evicted(void *ctx, const fg_prefix_entry *entry)
{
    note(ctx, entry->block_id);
    note(ctx, entry->key.high);
    note(ctx, entry->parent.high);
}

static void note_change(void *ctx, bool here, fg_digest128 parent, fg_digest128 key)
{
    note(ctx, here);
    note(ctx, parent.high);
    note(ctx, key.high);
}

static void place_open(place *p, uint32_t count)
{
    *p = (place){ 0 };
    cr_assert_eq(fg_pool_create(count, &p->pool, NULL), FG_OK);
    fg_prefix_options options = {
        .pool = p->pool,
        .block_count = count,
        .block_size = BLOCK,
        .on_evict = note_evicted,
        .on_change = note_change,
        .ctx = p,
    };
    cr_assert_eq(fg_prefix_create(&options, &p->prefix, NULL), FG_OK);
}

static void place_close(place *p)
{
    fg_prefix_destroy(p->prefix);
    fg_pool_destroy(p->pool, true);
}

static void check(const place *p)
{
    fg_pool_check(p->pool);
    fg_prefix_check(p->prefix);
}

/* ---- states ---- */

typedef struct state {
    size_t size_bytes;
    uint8_t bytes[STATE_MAX];
} state;

static void get_pool(const place *p, state *s)
{
    s->size_bytes = fg_pool_state_bytes(p->pool);
    cr_assert(s->size_bytes <= STATE_MAX && s->size_bytes % 8 == 0);
    memset(s->bytes, 0xEE, STATE_MAX);
    fg_pool_state_get(p->pool, s->bytes);
    cr_assert(s->size_bytes == STATE_MAX || s->bytes[s->size_bytes] == 0xEE, "one byte too many");
}

static void get_prefix(const place *p, state *s)
{
    s->size_bytes = fg_prefix_state_bytes(p->prefix);
    cr_assert(s->size_bytes <= STATE_MAX && s->size_bytes % 8 == 0);
    memset(s->bytes, 0xEE, STATE_MAX);
    fg_prefix_state_get(p->prefix, s->bytes);
    cr_assert(s->size_bytes == STATE_MAX || s->bytes[s->size_bytes] == 0xEE, "one byte too many");
}

static bool equal(const state *a, const state *b)
{
    return a->size_bytes == b->size_bytes && memcmp(a->bytes, b->bytes, a->size_bytes) == 0;
}

/* The bytes that they give are the same; each buffer was filled with something else before. */
static void compare(const place *a, const place *b)
{
    state of_a, of_b;
    get_pool(a, &of_a);
    get_pool(b, &of_b);
    cr_assert(equal(&of_a, &of_b), "the pools' states differ");
    get_prefix(a, &of_a);
    memset(of_b.bytes, 0x11, STATE_MAX);
    of_b.size_bytes = fg_prefix_state_bytes(b->prefix);
    fg_prefix_state_get(b->prefix, of_b.bytes);
    cr_assert(equal(&of_a, &of_b), "the prefix caches' states differ");
}

static void copy(const place *from, place *to)
{
    state s;
    place_open(to, POOL);
    get_pool(from, &s);
    fg_fault_arm(1);
    cr_assert(fg_pool_state_set(to->pool, s.bytes, s.size_bytes));
    get_prefix(from, &s);
    cr_assert(fg_prefix_state_set(to->prefix, s.bytes, s.size_bytes));
    cr_assert(!fg_fault_fired(), "nothing is allocated");
    fg_fault_arm(0);
    cr_assert_eq(to->note_count, 0u, "nobody is told");
    memcpy(to->held, from->held, sizeof to->held);
    to->held_count = from->held_count;
}

/* ---- traffic ---- */

static void take(place *p, fg_rng *rng)
{
    uint32_t ids[8], count = (uint32_t)fg_rng_below(rng, 8);
    if (p->held_count + count > HELD || fg_pool_take(p->pool, count, ids) != FG_OK) {
        note(p, 1);
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        note(p, ids[i]);
        p->held[p->held_count++] = ids[i];
    }
}

static void let_go(place *p, uint32_t at, bool pinned)
{
    uint32_t id = p->held[at];
    p->held[at] = p->held[--p->held_count];
    if (pinned) {
        fg_pool_pin(p->pool, id);
        fg_pool_unref(p->pool, id);
        fg_pool_unpin(p->pool, id);
    } else {
        fg_pool_unref(p->pool, id);
    }
}

static void match(place *p, uint32_t key, bool borrow)
{
    uint32_t chain[8], ids[8], count = 0;
    fg_digest128 keys[8];
    for (uint32_t n = key; n > 0; n /= 2) {
        chain[count++] = n;
    }
    for (uint32_t i = 0; i < count; i++) {
        keys[i] = key_of(chain[count - 1 - i]);
    }
    uint32_t found = fg_prefix_match(p->prefix, key_of(0), keys, zeros, count, ids);
    note(p, found);
    for (uint32_t i = 0; i < found; i++) {
        note(p, ids[i]);
        if (borrow && p->held_count < HELD && fg_pool_borrow(p->pool, ids[i]) == FG_OK) {
            p->held[p->held_count++] = ids[i];
        }
    }
}

static void step(place *p, fg_rng *rng)
{
    uint32_t what = (uint32_t)fg_rng_below(rng, 12), key = 1 + (uint32_t)fg_rng_below(rng, KEYS);
    uint32_t at = (uint32_t)fg_rng_below(rng, p->held_count);
    switch (what) {
    case 0:
        take(p, rng);
        break;
    case 1:
    case 2:
        match(p, key, fg_rng_below(rng, 2) == 0);
        break;
    case 3:
        if (fg_pool_promise(p->pool, 3) == FG_OK) {
            note(p, fg_pool_available(p->pool));
            fg_pool_unpromise(p->pool, 3);
        }
        break;
    case 4:
        if (fg_prefix_expect(p->prefix, key_of(key)) == FG_OK) {
            fg_prefix_unexpect(p->prefix, key_of(key));
        }
        break;
    case 5:
        if (fg_rng_below(rng, 60) == 0) {
            fg_prefix_clear(p->prefix);
        }
        break;
    case 6:
    case 7:
    case 8:
        if (p->held_count > 0 && !fg_pool_is_kept(p->pool, p->held[at])) {
            /* Rarely below another parent than the tree's: a collision, as a broken secret makes it. */
            uint32_t parent = fg_rng_below(rng, 20) == 0 ? 7 : key / 2;
            note(p, fg_prefix_publish(p->prefix, key_of(parent), key_of(key), zeros, p->held[at]));
        }
        break;
    default:
        if (p->held_count > 0) {
            let_go(p, at, what == 9);
        }
        break;
    }
}

static void note_all(place *p)
{
    fg_pool_stats pool;
    fg_prefix_stats prefix;
    fg_digest128 parent, key;
    fg_pool_stats_get(p->pool, &pool);
    fg_prefix_stats_get(p->prefix, &prefix);
    uint64_t numbers[] = {
        pool.total,       pool.free,         pool.cached,    pool.held,         pool.pinned,
        pool.quarantined, pool.promised,     pool.used_peak, pool.evictions,    prefix.entries,
        prefix.published, prefix.duplicates, prefix.evicted, prefix.collisions, prefix.cleared,
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        note(p, numbers[i]);
    }
    for (uint32_t id = 0; id < POOL; id++) {
        note(p, fg_pool_refs(p->pool, id));
        note(p, fg_pool_generation(p->pool, id));
        note(p, fg_pool_is_kept(p->pool, id));
        bool found = fg_prefix_at(p->prefix, id, &parent, &key);
        note(p, found ? parent.high : 0);
        note(p, found ? key.high : 0);
    }
}

static void compare_notes(const place *a, const place *b)
{
    cr_assert_eq(a->note_count, b->note_count);
    for (uint32_t i = 0; i < a->note_count; i++) {
        cr_assert_eq(a->notes[i], b->notes[i], "answer %u: %llu, the copy's is %llu", i,
                     (unsigned long long)a->notes[i], (unsigned long long)b->notes[i]);
    }
}

Test(kv_state, a_copy_of_pool_and_prefix_goes_on_as_the_original_does)
{
    static place one, two;
    place *a = &one, *b = &two;
    fg_rng rng = { .state = test_seed("kv_state") };
    fg_prefix_stats prefix;
    place_open(a, POOL);
    for (int round = 0; round < 400; round++) {
        a->note_count = 0;
        for (int i = 0; i < 60; i++) {
            step(a, &rng);
        }
        a->note_count = 0;
        copy(a, b);
        check(b);
        compare(a, b);
        fg_rng again = rng;
        for (int i = 0; i < 120; i++) {
            step(a, &rng);
            step(b, &again);
        }
        note_all(a);
        note_all(b);
        compare_notes(a, b);
        compare(a, b);
        check(b);
        place_close(a);
        place *swap = a; /* the copy's copy is copied next */
        a = b;
        b = swap;
    }
    fg_prefix_stats_get(a->prefix, &prefix);
    cr_assert(prefix.evicted > 100 && prefix.duplicates > 100 && prefix.collisions > 10 &&
                  prefix.cleared > 10,
              "too little happened: %llu, %llu, %llu, %llu", (unsigned long long)prefix.evicted,
              (unsigned long long)prefix.duplicates, (unsigned long long)prefix.collisions,
              (unsigned long long)prefix.cleared);
    place_close(a);
}

Test(kv_state, tokens_are_not_in_the_state)
{
    place a, b;
    uint32_t id, tokens[BLOCK] = { 5, 6, 7, 8 };
    place_open(&a, POOL);
    cr_assert_eq(fg_pool_take(a.pool, 1, &id), FG_OK);
    a.held[a.held_count++] = id;
    fg_prefix_publish(a.prefix, key_of(0), key_of(1), tokens, id);
    copy(&a, &b);
    cr_assert_eq(fg_prefix_find(b.prefix, key_of(0), key_of(1), tokens), UINT32_MAX);
    cr_assert_eq(fg_prefix_find(b.prefix, key_of(0), key_of(1), zeros), id);
    place_close(&a);
    place_close(&b);
}

Test(kv_state, the_states_of_many_blocks_are_small)
{
    enum { MANY = 28672 };
    static uint32_t ids[MANY];
    place p;
    place_open(&p, MANY);
    cr_assert_eq(fg_pool_take(p.pool, MANY, ids), FG_OK);
    for (uint32_t i = 0; i < MANY; i++) {
        p.note_count = 0;
        fg_prefix_publish(p.prefix, key_of(0), (fg_digest128){ i, 1 }, zeros, ids[i]);
    }
    size_t held = fg_pool_state_bytes(p.pool) + fg_prefix_state_bytes(p.prefix);
    for (uint32_t i = 0; i < MANY; i++) {
        fg_pool_unref(p.pool, ids[i]);
    }
    size_t cached = fg_pool_state_bytes(p.pool) + fg_prefix_state_bytes(p.prefix);
    cr_assert(cached < 1200000 && held < 1300000, "%zu and %zu bytes", cached, held);
    place_close(&p);
}

/* ---- refusals ---- */

/* Eight blocks: 1 and 7 free, 2, 0 and 3 cached, 4 held and kept, 5 held twice, 6 held: an odd number, so
 * that there is padding. */
static void make_small(place *p)
{
    uint32_t ids[8];
    place_open(p, 8);
    cr_assert_eq(fg_pool_take(p->pool, 7, ids), FG_OK);
    fg_prefix_publish(p->prefix, key_of(0), key_of(1), zeros, 0);
    fg_prefix_publish(p->prefix, key_of(1), key_of(2), zeros, 2);
    fg_prefix_publish(p->prefix, key_of(1), key_of(3), zeros, 3);
    fg_prefix_publish(p->prefix, key_of(2), key_of(4), zeros, 4);
    fg_pool_unref(p->pool, 2);
    fg_pool_unref(p->pool, 0);
    fg_pool_unref(p->pool, 3);
    fg_pool_ref(p->pool, 5);
    fg_pool_unref(p->pool, 1);
    check(p);
}

typedef struct wrong {
    const char *name;
    size_t at; /* of the number that is another one now */
    uint64_t value;
    size_t value_bytes;
} wrong;

/* Where the small pool's numbers lie. */
enum {
    GENERATIONS = 32,
    FREE = GENERATIONS + 8 * 4,
    CACHED = FREE + 2 * 4,
    HELD_ROWS = CACHED + 3 * 4,
    PADDING = HELD_ROWS + 3 * 8,
    POOL_END = PADDING + 4,
};

static const wrong wrong_pools[] = {
    { "fewer blocks", 0, 7, 4 },
    { "more blocks", 0, 9, 4 },
    { "one more free than there is", 4, 3, 4 },
    { "more free than blocks", 4, 9, 4 },
    { "so many free that sums wrap", 4, UINT32_MAX, 4 },
    { "one less cached", 8, 2, 4 },
    { "so many cached that sums wrap", 8, UINT32_MAX - 2, 4 },
    { "one more held", 12, 4, 4 },
    { "a peak below what is used", 16, 1, 4 },
    { "a peak beyond all blocks", 16, 9, 4 },
    { "a head that is not zero where it must be", 20, 1, 4 },
    { "a free id twice", FREE, 7, 4 },
    { "an id free and cached", FREE, 2, 4 },
    { "an id free and held", FREE, 4, 4 },
    { "a free id that there is not", FREE, 8, 4 },
    { "the end of a list as an id", FREE + 4, UINT32_MAX, 4 },
    { "a cached id twice", CACHED + 8, 2, 4 },
    { "a cached id that there is not", CACHED, 1u << 31, 4 },
    { "a held id twice", HELD_ROWS + 8, 4, 4 },
    { "a held id that there is not", HELD_ROWS + 8, 8, 4 },
    { "a held block without a reference", HELD_ROWS + 4, 1, 4 },
    { "padding that is not zero", PADDING, 1, 4 },
};

/* Where the small prefix cache's lie. */
enum { BITS = 48, ROWS = BITS + 8, ROW = 32 };

static const wrong wrong_prefixes[] = {
    { "fewer blocks", 0, 7, 4 },
    { "more blocks", 0, 9, 4 },
    { "one less entry", 4, 3, 4 },
    { "more entries than blocks", 4, 9, 4 },
    { "the largest number of entries", 4, UINT32_MAX, 4 },
    { "one more published", 8, 5, 8 },
    { "none published", 8, 0, 8 },
    { "evicted before it was published", 24, 5, 8 },
    { "sums that wrap", 24, UINT64_MAX, 8 },
    { "one cleared", 40, 1, 8 },
    { "cleared, with a sum that wraps", 40, UINT64_MAX, 8 },
    { "kept without an entry", BITS, 0x0D, 1 },
    { "an entry of a block that is not kept", BITS, 0x3D, 1 },
    { "an entry at another block", BITS, 0x2D, 1 },
    { "an entry beyond the last block", BITS + 1, 1, 1 },
    { "an entry beyond the last block's byte", BITS + 7, 0x80, 1 },
};

static void refuse_pool(const char *name, const uint8_t *bytes, size_t size_bytes,
                        const state *good)
{
    place p;
    place_open(&p, 8);
    cr_assert(!fg_pool_state_set(p.pool, bytes, size_bytes), "%s", name);
    check(&p);
    cr_assert_eq(fg_pool_available(p.pool), 8u, "%s: it is as it was", name);
    cr_assert(fg_pool_state_set(p.pool, good->bytes, good->size_bytes), "%s", name);
    place_close(&p);
}

static void refuse_prefix(const char *name, const uint8_t *bytes, size_t size_bytes,
                          const state *pool, const state *good)
{
    place p;
    place_open(&p, 8);
    cr_assert(fg_pool_state_set(p.pool, pool->bytes, pool->size_bytes));
    cr_assert(!fg_prefix_state_set(p.prefix, bytes, size_bytes), "%s", name);
    fg_prefix_stats stats;
    fg_prefix_stats_get(p.prefix, &stats);
    cr_assert(stats.entries == 0 && stats.published == 0, "%s: it is as it was", name);
    cr_assert(fg_prefix_state_set(p.prefix, good->bytes, good->size_bytes), "%s", name);
    check(&p);
    place_close(&p);
}

static void with(state *s, const wrong *w)
{
    cr_assert(w->at + w->value_bytes <= s->size_bytes, "%s", w->name);
    cr_assert(memcmp(s->bytes + w->at, &w->value, w->value_bytes) != 0, "%s: it was so", w->name);
    memcpy(s->bytes + w->at, &w->value, w->value_bytes);
}

Test(kv_state, refuses_what_is_no_state_of_a_pool)
{
    place p;
    state good;
    make_small(&p);
    get_pool(&p, &good);
    cr_assert_eq(good.size_bytes, (size_t)POOL_END);
    for (size_t i = 0; i < sizeof wrong_pools / sizeof *wrong_pools; i++) {
        state bad = good;
        with(&bad, &wrong_pools[i]);
        refuse_pool(wrong_pools[i].name, bad.bytes, bad.size_bytes, &good);
    }
    for (size_t size = 0; size < good.size_bytes; size++) {
        refuse_pool("cut short", good.bytes, size, &good);
    }
    refuse_pool("too long", good.bytes, good.size_bytes + 1, &good);
    refuse_pool("too long", good.bytes, good.size_bytes + 8, &good);
    state bad = good; /* held rows in another order */
    memcpy(bad.bytes + HELD_ROWS, good.bytes + HELD_ROWS + 8, 8);
    memcpy(bad.bytes + HELD_ROWS + 8, good.bytes + HELD_ROWS, 8);
    refuse_pool("held blocks in descending order", bad.bytes, bad.size_bytes, &good);
    place_close(&p);
}

Test(kv_state, refuses_what_is_no_state_of_the_pools_prefix_cache)
{
    place p;
    state pool, good, bad;
    make_small(&p);
    get_pool(&p, &pool);
    get_prefix(&p, &good);
    cr_assert_eq(good.size_bytes, (size_t)ROWS + 4 * ROW);
    for (size_t i = 0; i < sizeof wrong_prefixes / sizeof *wrong_prefixes; i++) {
        bad = good;
        with(&bad, &wrong_prefixes[i]);
        refuse_prefix(wrong_prefixes[i].name, bad.bytes, bad.size_bytes, &pool, &good);
    }
    for (size_t size = 0; size < good.size_bytes; size++) {
        refuse_prefix("cut short", good.bytes, size, &pool, &good);
    }
    refuse_prefix("too long", good.bytes, good.size_bytes + 1, &pool, &good);
    refuse_prefix("a row too many", good.bytes, good.size_bytes + ROW, &pool, &good);
    bad = good;
    bad.bytes[4] = bad.bytes[8] = 3;
    refuse_prefix("one less published and entered, and a row less", bad.bytes, bad.size_bytes - ROW,
                  &pool, &good);
    bad = good;
    memcpy(bad.bytes + ROWS + 3 * ROW, good.bytes + ROWS, 16);
    refuse_prefix("a key twice", bad.bytes, bad.size_bytes, &pool, &good);
    place_close(&p);
}

/* What is accepted after all gives the very same bytes, so no two of them mean the same. */
Test(kv_state, another_byte_somewhere_makes_another_state_or_none)
{
    place p;
    state pool, prefix, bad, back;
    fg_rng rng = { .state = test_seed("kv_state bytes") };
    uint32_t taken = 0, refused = 0;
    make_small(&p);
    get_pool(&p, &pool);
    get_prefix(&p, &prefix);
    for (uint32_t i = 0; i < 20000; i++) {
        place q;
        bool is_pool = i % 2 == 0;
        bad = is_pool ? pool : prefix;
        size_t at = fg_rng_below(&rng, bad.size_bytes);
        bad.bytes[at] ^= (uint8_t)(1 + fg_rng_below(&rng, 255));
        place_open(&q, 8);
        bool is_set = fg_pool_state_set(q.pool, is_pool ? bad.bytes : pool.bytes, pool.size_bytes);
        fg_pool_check(q.pool);
        if (!is_pool) {
            cr_assert(is_set);
            is_set = fg_prefix_state_set(q.prefix, bad.bytes, bad.size_bytes);
        }
        if (is_set) {
            (is_pool ? get_pool : get_prefix)(&q, &back);
            cr_assert(equal(&bad, &back), "byte %zu", at);
            is_pool ? fg_pool_check(q.pool) : fg_prefix_check(q.prefix);
        }
        taken += is_set;
        refused += !is_set;
        place_close(&q);
    }
    cr_assert(taken > 100 && refused > 100, "%u and %u", taken, refused);
    place_close(&p);
}
