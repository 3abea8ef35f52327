#include "common/kv/prefix.h"

#include <string.h>

#include "common/base/fault.h"
#include "common/base/rng.h"
#include "tests/support/test.h"

enum { BLOCK = 4, CHAIN_MAX = 8 };

typedef struct place {
    fg_pool *pool;
    fg_prefix *prefix;
    fg_prefix_entry evicted[16];
    uint32_t evicted_tokens[16][BLOCK];
    uint32_t evicted_count;
} place;

/* Some blocks' worth of a prompt with its keys. */
typedef struct chain {
    fg_digest128 root;
    fg_digest128 keys[CHAIN_MAX];
    uint32_t tokens[CHAIN_MAX * BLOCK];
    uint32_t count;
} chain;

static bool same(fg_digest128 a, fg_digest128 b)
{
    return a.low == b.low && a.high == b.high;
}

static void note_evicted(void *ctx, const fg_prefix_entry *entry)
{
    place *p = ctx;
    cr_assert(p->evicted_count < 16);
    memcpy(p->evicted_tokens[p->evicted_count], entry->tokens, BLOCK * sizeof(uint32_t));
    p->evicted[p->evicted_count++] = *entry;
    cr_assert_eq(fg_prefix_find(p->prefix, entry->parent, entry->key, entry->tokens), UINT32_MAX,
                 "not found any more");
}

static fg_status place_open(place *p, uint32_t total, uint32_t block_size)
{
    fg_error err;
    *p = (place){ 0 };
    fg_status status = fg_pool_create(total, &p->pool, &err);
    if (status != FG_OK) {
        return status;
    }
    fg_prefix_options options = {
        .pool = p->pool,
        .block_count = total,
        .block_size = block_size,
        .identity = { 7, 8 },
        .on_evict = note_evicted,
        .ctx = p,
    };
    status = fg_prefix_create(&options, &p->prefix, &err);
    if (status != FG_OK) {
        fg_pool_destroy(p->pool, false);
    }
    return status;
}

static void place_init(place *p, uint32_t total)
{
    cr_assert_eq(place_open(p, total, BLOCK), FG_OK);
}

static void place_close(place *p)
{
    fg_prefix_destroy(p->prefix);
    fg_pool_check(p->pool);
    fg_pool_destroy(p->pool, false);
}

static fg_pool_stats pool_stats(const place *p)
{
    fg_pool_stats stats;
    fg_pool_check(p->pool);
    fg_prefix_check(p->prefix);
    fg_pool_stats_get(p->pool, &stats);
    return stats;
}

static fg_prefix_stats stats_of(const place *p)
{
    fg_prefix_stats stats;
    fg_prefix_check(p->prefix);
    fg_prefix_stats_get(p->prefix, &stats);
    return stats;
}

/* A prompt whose i-th block consists of the i-th character of `text`. */
static chain chain_of(const place *p, uint64_t salt, const char *text)
{
    chain c = { .root = fg_prefix_root(p->prefix, salt, 0), .count = (uint32_t)strlen(text) };
    fg_digest128 parent = c.root;
    for (uint32_t i = 0; i < c.count; i++) {
        for (uint32_t t = 0; t < BLOCK; t++) {
            c.tokens[i * BLOCK + t] = text[i] == '0' ? 0 : (uint32_t)text[i] + t;
        }
        parent = c.keys[i] = fg_prefix_key(p->prefix, parent, i, &c.tokens[i * BLOCK]);
    }
    return c;
}

static uint32_t match(const place *p, const chain *c, uint32_t *ids)
{
    return fg_prefix_match(p->prefix, c->root, c->keys, c->tokens, c->count, ids);
}

static uint32_t publish(place *p, const chain *c, uint32_t i, uint32_t id)
{
    return fg_prefix_publish(p->prefix, i == 0 ? c->root : c->keys[i - 1], c->keys[i],
                             &c->tokens[i * BLOCK], id);
}

/* Takes blocks for the whole chain and publishes them; they stay held. */
static void compute(place *p, const chain *c, uint32_t *ids)
{
    cr_assert_eq(fg_pool_take(p->pool, c->count, ids), FG_OK);
    for (uint32_t i = 0; i < c->count; i++) {
        cr_assert_eq(publish(p, c, i, ids[i]), ids[i]);
    }
}

static void let_go(place *p, const uint32_t *ids, uint32_t count)
{
    while (count > 0) {
        fg_pool_unref(p->pool, ids[--count]);
    }
}

Test(kv_prefix, a_published_chain_is_found_in_use_and_cached)
{
    place p;
    uint32_t ids[CHAIN_MAX], found[CHAIN_MAX];
    place_init(&p, 8);
    chain c = chain_of(&p, 0, "abc");
    cr_assert_eq(match(&p, &c, found), 0u);
    compute(&p, &c, ids);
    for (int round = 0; round < 2; round++) {
        cr_assert_eq(match(&p, &c, found), 3u);
        cr_assert_eq(memcmp(ids, found, 3 * sizeof *ids), 0);
        if (round == 0) {
            let_go(&p, ids, 3);
        }
    }
    cr_assert_eq(pool_stats(&p).cached, 3u, "a match takes no reference");
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(fg_pool_borrow(p.pool, found[i]), FG_OK);
    }
    cr_assert_eq(pool_stats(&p).held, 3u);
    cr_assert_eq(stats_of(&p).published, 3u);
    let_go(&p, found, 3);
    place_close(&p);
}

static const struct {
    const char *name, *text;
    uint32_t want;
} match_cases[] = {
    { "the same", "abcd", 4 },
    { "longer", "abcdef", 4 },
    { "shorter", "ab", 2 },
    { "other tail", "abxy", 2 },
    { "other start", "xbcd", 0 },
    { "its tail alone", "bcd", 0 },
    { "hole in the middle", "abxd", 2 },
    { "nothing", "", 0 },
};

Test(kv_prefix, match_ends_at_the_first_block_that_differs)
{
    place p;
    uint32_t ids[CHAIN_MAX], found[CHAIN_MAX];
    place_init(&p, 8);
    chain c = chain_of(&p, 0, "abcd");
    compute(&p, &c, ids);
    for (size_t i = 0; i < sizeof match_cases / sizeof *match_cases; i++) {
        chain other = chain_of(&p, 0, match_cases[i].text);
        cr_assert_eq(match(&p, &other, found), match_cases[i].want, "%s", match_cases[i].name);
        cr_assert_eq(memcmp(ids, found, match_cases[i].want * sizeof *ids), 0, "%s",
                     match_cases[i].name);
    }
    let_go(&p, ids, 4);
    place_close(&p);
}

Test(kv_prefix, a_chain_with_an_evicted_first_block_is_not_found)
{
    place p;
    uint32_t ids[CHAIN_MAX], found[CHAIN_MAX], taken;
    place_init(&p, 3);
    chain c = chain_of(&p, 0, "abc");
    compute(&p, &c, ids);
    fg_pool_unref(p.pool, ids[0]); /* in the wrong order: the start goes first */
    cr_assert_eq(fg_pool_take(p.pool, 1, &taken), FG_OK);
    cr_assert_eq(match(&p, &c, found), 0u);
    cr_assert_eq(fg_prefix_find(p.prefix, c.keys[0], c.keys[1], c.tokens + BLOCK), ids[1]);
    fg_pool_unref(p.pool, taken);
    let_go(&p, ids + 1, 2);
    place_close(&p);
}

/* T7: in a chain of equal blocks, and of zeros above all, every depth has its own key, and no key is
 * zero. */
Test(kv_prefix, equal_blocks_at_different_depths_have_different_keys)
{
    place p;
    static const char *const texts[] = { "00000000", "aaaaaaaa" };
    static const fg_digest128 zero = { 0, 0 };
    place_init(&p, 8);
    for (int t = 0; t < 2; t++) {
        chain c = chain_of(&p, 0, texts[t]);
        uint32_t ids[CHAIN_MAX], found[CHAIN_MAX];
        for (uint32_t i = 0; i < c.count; i++) {
            cr_assert(!same(c.keys[i], zero) && !same(c.root, zero) && !same(c.root, c.keys[i]));
            for (uint32_t j = 0; j < i; j++) {
                cr_assert(!same(c.keys[i], c.keys[j]), "%u and %u", i, j);
            }
        }
        /* The depth itself counts, not only the parent. */
        cr_assert(!same(fg_prefix_key(p.prefix, zero, 0, c.tokens),
                        fg_prefix_key(p.prefix, zero, 1, c.tokens)));
        compute(&p, &c, ids);
        cr_assert_eq(match(&p, &c, found), 8u);
        for (uint32_t i = 1; i < 8; i++) {
            cr_assert_neq(found[i], found[i - 1]);
        }
        let_go(&p, ids, 8);
        fg_prefix_clear(p.prefix);
    }
    place_close(&p);
}

Test(kv_prefix, salt_secret_and_identity_make_worlds_of_their_own)
{
    place p, other;
    uint32_t ids[CHAIN_MAX], found[CHAIN_MAX];
    place_init(&p, 8);
    place_init(&other, 8);
    chain plain = chain_of(&p, 0, "abc"), salted = chain_of(&p, 1, "abc");
    compute(&p, &plain, ids);
    cr_assert_eq(match(&p, &salted, found), 0u);
    cr_assert(!same(fg_prefix_root(p.prefix, 1, 2), fg_prefix_root(p.prefix, 2, 1)));
    let_go(&p, ids, 3);

    fg_prefix_set_secret(other.prefix, (fg_digest128){ 0, 1 });
    chain secret = chain_of(&other, 0, "abc");
    for (int i = 0; i < 3; i++) {
        cr_assert(!same(secret.keys[i], plain.keys[i]));
    }
    cr_assert(!same(fg_prefix_key(p.prefix, plain.root, 0, plain.tokens),
                    fg_prefix_key(other.prefix, plain.root, 0, plain.tokens)));
    fg_prefix_destroy(other.prefix);
    fg_prefix_options options = {
        .pool = other.pool, .block_count = 8, .block_size = BLOCK, .identity = { 7, 9 }
    };
    cr_assert_eq(fg_prefix_create(&options, &other.prefix, NULL), FG_OK);
    chain model = chain_of(&other, 0, "abc");
    cr_assert(!same(model.root, plain.root) && !same(model.keys[0], plain.keys[0]));
    place_close(&other);
    place_close(&p);
}

Test(kv_prefix, another_secret_forgets_everything_and_the_same_one_nothing)
{
    place p;
    uint32_t ids[CHAIN_MAX];
    place_init(&p, 8);
    fg_prefix_set_secret(p.prefix, (fg_digest128){ 3, 4 });
    chain c = chain_of(&p, 0, "ab");
    compute(&p, &c, ids);
    let_go(&p, ids, 2);
    fg_prefix_set_secret(p.prefix, (fg_digest128){ 3, 4 });
    cr_assert_eq(stats_of(&p).entries, 2u);
    fg_prefix_set_secret(p.prefix, (fg_digest128){ 3, 5 });
    cr_assert_eq(stats_of(&p).entries, 0u);
    cr_assert_eq(pool_stats(&p).free, 8u);
    place_close(&p);
}

/* T8: two equal prompts in flight. The second one's copy is not published; it is told the first one's. */
Test(kv_prefix, the_second_of_two_equal_blocks_is_told_the_first)
{
    place p;
    uint32_t first[CHAIN_MAX], second[CHAIN_MAX];
    place_init(&p, 8);
    chain c = chain_of(&p, 0, "ab");
    compute(&p, &c, first);
    cr_assert_eq(fg_pool_take(p.pool, 2, second), FG_OK);
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t canonical = publish(&p, &c, i, second[i]);
        cr_assert_eq(canonical, first[i]);
        cr_assert(!fg_pool_is_kept(p.pool, second[i]));
        cr_assert_eq(fg_pool_borrow(p.pool, canonical), FG_OK);
        fg_pool_unref(p.pool, second[i]);
    }
    cr_assert_eq(stats_of(&p).duplicates, 2u);
    cr_assert_eq(pool_stats(&p).held, 2u);
    cr_assert_eq(publish(&p, &c, 0, first[0]), first[0], "published twice: nothing happens");
    cr_assert_eq(stats_of(&p).duplicates, 2u);
    let_go(&p, first, 2);
    let_go(&p, first, 2);
    place_close(&p);
}

/* A hit is never a stranger's: a key that does not belong to parent and tokens finds nothing. */
Test(kv_prefix, a_forged_key_finds_nothing_and_publishes_nothing)
{
    place p;
    uint32_t ids[CHAIN_MAX], found[CHAIN_MAX], forged;
    place_init(&p, 8);
    chain c = chain_of(&p, 0, "ab"), other = chain_of(&p, 0, "xy");
    compute(&p, &c, ids);
    cr_assert_eq(fg_pool_take(p.pool, 1, &forged), FG_OK);

    memcpy(other.keys, c.keys, sizeof c.keys);
    cr_assert_eq(match(&p, &other, found), 0u, "other tokens");
    cr_assert_eq(publish(&p, &other, 0, forged), forged);
    cr_assert(!fg_pool_is_kept(p.pool, forged));
    cr_assert_eq(stats_of(&p).collisions, 1u);

    fg_digest128 stranger = { 1, 2 };
    cr_assert_eq(fg_prefix_find(p.prefix, stranger, c.keys[1], c.tokens + BLOCK), UINT32_MAX,
                 "other parent");
    cr_assert_eq(fg_prefix_publish(p.prefix, stranger, c.keys[1], c.tokens + BLOCK, forged),
                 forged);
    cr_assert_eq(stats_of(&p).collisions, 2u);
    cr_assert_eq(match(&p, &c, found), 2u, "what was there is found as before");
    cr_assert_eq(stats_of(&p).entries, 2u);
    fg_pool_unref(p.pool, forged);
    let_go(&p, ids, 2);
    place_close(&p);
}

Test(kv_prefix, keys_that_share_a_bucket_do_not_meet)
{
    place p;
    uint32_t ids[4];
    static const uint32_t tokens[4][BLOCK] = { { 1 }, { 2 }, { 3 }, { 4 } };
    place_init(&p, 8);
    cr_assert_eq(fg_pool_take(p.pool, 4, ids), FG_OK);
    for (uint32_t i = 0; i < 4; i++) { /* equal low halves */
        fg_digest128 key = { .low = 5, .high = i };
        cr_assert_eq(fg_prefix_publish(p.prefix, key, key, tokens[i], ids[i]), ids[i]);
    }
    cr_assert_eq(stats_of(&p).entries, 4u);
    static const uint32_t order[] = { 2, 0, 3, 1 };
    for (uint32_t i = 0; i < 4; i++) {
        fg_digest128 key = { .low = 5, .high = order[i] };
        cr_assert_eq(fg_prefix_find(p.prefix, key, key, tokens[order[i]]), ids[order[i]]);
        fg_pool_unref(p.pool, ids[order[i]]);
    }
    cr_assert_eq(fg_pool_take(p.pool, 6, (uint32_t[6]){ 0 }), FG_OK, "4 free ones and 2 cached");
    for (uint32_t i = 0; i < 4; i++) {
        fg_digest128 key = { .low = 5, .high = order[i] };
        cr_assert_eq(fg_prefix_find(p.prefix, key, key, tokens[order[i]]),
                     i < 2 ? UINT32_MAX : ids[order[i]]);
    }
    fg_prefix_check(p.prefix);
    fg_prefix_destroy(p.prefix);
    fg_pool_destroy(p.pool, true);
}

Test(kv_prefix, eviction_tells_key_parent_and_tokens_of_the_oldest)
{
    place p;
    uint32_t ids[CHAIN_MAX], taken[3], found[CHAIN_MAX];
    place_init(&p, 3);
    chain c = chain_of(&p, 0, "abc");
    compute(&p, &c, ids);
    let_go(&p, ids, 3);
    cr_assert_eq(fg_pool_take(p.pool, 2, taken), FG_OK);
    cr_assert_eq(p.evicted_count, 2u);
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t depth = 2 - i;
        cr_assert_eq(p.evicted[i].block_id, ids[depth]);
        cr_assert(same(p.evicted[i].key, c.keys[depth]));
        cr_assert(same(p.evicted[i].parent, c.keys[depth - 1]));
        cr_assert_eq(
            memcmp(p.evicted_tokens[i], &c.tokens[depth * BLOCK], sizeof p.evicted_tokens[i]), 0);
    }
    cr_assert_eq(match(&p, &c, found), 1u, "the start of the chain is still here");
    cr_assert_eq(stats_of(&p).evicted, 2u);
    let_go(&p, taken, 2);
    place_close(&p);
}

/* R46: blocks in use stay valid for those who use them. */
Test(kv_prefix, clear_while_in_use_leaves_blocks_with_their_sequences)
{
    place p;
    uint32_t used[CHAIN_MAX], idle[CHAIN_MAX], found[CHAIN_MAX];
    place_init(&p, 8);
    chain a = chain_of(&p, 0, "ab"), b = chain_of(&p, 0, "xyz");
    compute(&p, &a, used);
    compute(&p, &b, idle);
    let_go(&p, idle, 3);
    cr_assert_eq(fg_prefix_expect(p.prefix, a.keys[0]), FG_OK);
    fg_prefix_clear(p.prefix);
    fg_prefix_stats stats = stats_of(&p);
    cr_assert(stats.entries == 0 && stats.cleared == 5);
    fg_pool_stats pool = pool_stats(&p);
    cr_assert(pool.free == 6 && pool.cached == 0 && pool.held == 2);
    cr_assert(match(&p, &a, found) == 0 && match(&p, &b, found) == 0);
    cr_assert(fg_prefix_is_expected(p.prefix, a.keys[0]), "expectations stay");
    fg_prefix_unexpect(p.prefix, a.keys[0]);
    cr_assert_eq(publish(&p, &a, 0, used[0]), used[0], "and may be published again");
    let_go(&p, used, 2);
    pool = pool_stats(&p);
    cr_assert(pool.free == 7 && pool.cached == 1);
    place_close(&p);
}

Test(kv_prefix, expectations_are_counted_and_bounded)
{
    place p;
    place_init(&p, 4);
    for (uint64_t i = 0; i < 4; i++) {
        fg_digest128 key = { i, i };
        cr_assert(!fg_prefix_is_expected(p.prefix, key));
        cr_assert_eq(fg_prefix_expect(p.prefix, key), FG_OK);
        cr_assert_eq(fg_prefix_expect(p.prefix, key), FG_OK);
    }
    cr_assert_eq(fg_prefix_expect(p.prefix, (fg_digest128){ 9, 9 }), FG_AGAIN);
    cr_assert(!fg_prefix_is_expected(p.prefix, (fg_digest128){ 9, 9 }));
    cr_assert_eq(fg_prefix_expect(p.prefix, (fg_digest128){ 2, 2 }), FG_OK,
                 "known: no room needed");
    fg_prefix_unexpect(p.prefix, (fg_digest128){ 1, 1 });
    cr_assert(fg_prefix_is_expected(p.prefix, (fg_digest128){ 1, 1 }));
    fg_prefix_unexpect(p.prefix, (fg_digest128){ 1, 1 });
    cr_assert(!fg_prefix_is_expected(p.prefix, (fg_digest128){ 1, 1 }));
    fg_prefix_check(p.prefix);
    cr_assert_eq(fg_prefix_expect(p.prefix, (fg_digest128){ 9, 9 }), FG_OK, "room again");
    fg_prefix_check(p.prefix);
    place_close(&p);
}

Test(kv_prefix, refuses_block_sizes_out_of_range)
{
    place p;
    cr_assert_eq(place_open(&p, 4, 0), FG_BAD_INPUT);
    cr_assert_eq(place_open(&p, 4, 1025), FG_BAD_INPUT);
    cr_assert_eq(place_open(&p, 4, 1024), FG_OK);
    uint32_t tokens[1024] = { 0 };
    fg_digest128 a = fg_prefix_key(p.prefix, (fg_digest128){ 0, 0 }, 0, tokens);
    tokens[1023] = 1;
    cr_assert(!same(a, fg_prefix_key(p.prefix, (fg_digest128){ 0, 0 }, 0, tokens)),
              "the last token of the largest block counts");
    place_close(&p);
}

static bool create_and_destroy(void *ctx)
{
    (void)ctx;
    place p;
    if (place_open(&p, 16, BLOCK) != FG_OK) {
        return false;
    }
    place_close(&p);
    return true;
}

Test(kv_prefix, survives_each_failed_allocation)
{
    cr_assert_eq(fg_fault_each(create_and_destroy, NULL), 3 + 9); /* the pool's, its own */
}

Test(kv_prefix, nothing_is_allocated_once_it_is_made)
{
    place p;
    uint32_t ids[CHAIN_MAX], found[CHAIN_MAX];
    place_init(&p, 8);
    chain c = chain_of(&p, 0, "abcdefgh");
    fg_fault_arm(1);
    for (int round = 0; round < 3; round++) {
        compute(&p, &c, ids);
        match(&p, &c, found);
        fg_prefix_expect(p.prefix, c.keys[0]);
        fg_prefix_unexpect(p.prefix, c.keys[0]);
        let_go(&p, ids, 8);
        fg_prefix_clear(p.prefix);
    }
    cr_assert(!fg_fault_fired());
    fg_fault_arm(0);
    place_close(&p);
}
