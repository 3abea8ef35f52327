/*
 * bench_kv [MILLISECONDS] - what the bookkeeping of the KV cache costs on one core: each operation over a
 * pool of 65536 blocks of 16 tokens, repeated for about so long (300 ms). One line per operation:
 * operations per second and nanoseconds each. A match finds a chain of 256 blocks, a prompt of 4096
 * tokens; its line counts blocks.
 */
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/kv/prefix.h"
#include "common/kv/table.h"

enum { POOL = 65536, BLOCK = 16, CHAIN = 256, CHAINS = POOL / CHAIN };

typedef struct bench {
    fg_pool *pool;
    fg_prefix *prefix;
    uint32_t *tokens; /* of all chains */
    fg_digest128 *keys;
    fg_digest128 root;
    uint32_t *ids;
    uint32_t chain; /* the next one's turn */
    uint64_t sum;   /* keeps the compiler from leaving work out */
} bench;

static void must(bool good, const char *what)
{
    if (!good) {
        fprintf(stderr, "bench_kv: %s failed\n", what);
        exit(1);
    }
}

static double now(void)
{
    fg_clock clock = fg_clock_real();
    return 1e-9 * (double)fg_clock_now_ns(&clock);
}

static uint32_t next_chain(bench *b)
{
    b->chain = (b->chain + 97) % CHAINS; /* scattered, as prompts arrive */
    return b->chain * CHAIN;
}

/* Each round does CHAIN operations of its kind. */

static void round_key(bench *b)
{
    uint32_t at = next_chain(b);
    fg_digest128 parent = b->root;
    for (uint32_t i = 0; i < CHAIN; i++) {
        parent = fg_prefix_key(b->prefix, parent, i, b->tokens + (size_t)(at + i) * BLOCK);
    }
    b->sum += parent.low;
}

static void round_match(bench *b)
{
    uint32_t at = next_chain(b), ids[CHAIN];
    uint32_t count = fg_prefix_match(b->prefix, b->root, b->keys + at,
                                     b->tokens + (size_t)at * BLOCK, CHAIN, ids);
    must(count == CHAIN, "match");
    b->sum += ids[CHAIN - 1];
}

static void round_borrow(bench *b)
{
    uint32_t at = next_chain(b);
    for (uint32_t i = 0; i < CHAIN; i++) {
        must(fg_pool_borrow(b->pool, b->ids[at + i]) == FG_OK, "borrow");
    }
    for (uint32_t i = CHAIN; i > 0; i--) {
        fg_pool_unref(b->pool, b->ids[at + i - 1]);
    }
}

static void publish_chain(bench *b, uint32_t at, const uint32_t *ids)
{
    fg_digest128 parent = b->root;
    for (uint32_t i = 0; i < CHAIN; i++) {
        uint32_t id = fg_prefix_publish(b->prefix, parent, b->keys[at + i],
                                        b->tokens + (size_t)(at + i) * BLOCK, ids[i]);
        b->ids[at + i] = id;
        parent = b->keys[at + i];
    }
}

/* The pool is full of cached blocks: each take evicts, each publish makes an entry again. */
static void round_evict_publish(bench *b)
{
    uint32_t ids[CHAIN];
    uint32_t at = b->chain * CHAIN;
    b->chain = (b->chain + 1) % CHAINS; /* the oldest, which the take has just evicted */
    must(fg_pool_take(b->pool, CHAIN, ids) == FG_OK, "take");
    publish_chain(b, at, ids);
    for (uint32_t i = CHAIN; i > 0; i--) {
        fg_pool_unref(b->pool, ids[i - 1]);
    }
}

static void round_take(bench *b)
{
    uint32_t ids[CHAIN];
    must(fg_pool_take(b->pool, CHAIN, ids) == FG_OK, "take");
    for (uint32_t i = CHAIN; i > 0; i--) {
        fg_pool_unref(b->pool, ids[i - 1]);
    }
    b->sum += ids[0];
}

static void round_grow(bench *b)
{
    uint32_t ids[CHAIN / BLOCK];
    fg_table table;
    fg_table_init(&table, ids, CHAIN / BLOCK, BLOCK);
    for (uint32_t tokens = 1; tokens <= CHAIN; tokens++) {
        must(fg_table_grow(&table, b->pool, tokens, NULL) == FG_OK, "grow");
    }
    fg_table_clear(&table, b->pool, NULL);
}

static void measure(bench *b, double seconds, const char *what, void (*round)(bench *b))
{
    uint64_t rounds = 0;
    double start = now(), passed;
    do {
        round(b);
        rounds++;
        passed = now() - start;
    } while (passed < seconds);
    double each = passed / (double)(rounds * CHAIN);
    printf("%-44s %8.2f M/s %8.1f ns\n", what, 1e-6 / each, 1e9 * each);
}

static void fill(bench *b)
{
    fg_rng rng = { .state = 1 };
    for (size_t i = 0; i < (size_t)POOL * BLOCK; i++) {
        b->tokens[i] = (uint32_t)fg_rng_below(&rng, 49152);
    }
    for (uint32_t at = 0; at < POOL; at += CHAIN) {
        fg_digest128 parent = b->root;
        for (uint32_t i = at; i < at + CHAIN; i++) {
            parent = fg_prefix_key(b->prefix, parent, i - at, b->tokens + (size_t)i * BLOCK);
            b->keys[i] = parent;
        }
    }
}

int main(int argc, char **argv)
{
    double seconds = (argc > 1 ? atof(argv[1]) : 300) / 1e3;
    bench b = { 0 };
    must(fg_pool_create(POOL, &b.pool, NULL) == FG_OK, "pool");
    fg_prefix_options options = { .pool = b.pool, .block_count = POOL, .block_size = BLOCK };
    must(fg_prefix_create(&options, &b.prefix, NULL) == FG_OK, "prefix");
    b.tokens = fg_mem_array((size_t)POOL * BLOCK, sizeof *b.tokens);
    b.keys = fg_mem_array(POOL, sizeof *b.keys);
    b.ids = fg_mem_array(POOL, sizeof *b.ids);
    must(b.tokens != NULL && b.keys != NULL && b.ids != NULL, "memory");
    b.root = fg_prefix_root(b.prefix, 0, 0);
    fill(&b);

    measure(&b, seconds, "take and unref of a free block", round_take);
    measure(&b, seconds, "grow a table by a token", round_grow);
    measure(&b, seconds, "key of a block", round_key);
    b.chain = 0;
    for (uint32_t i = 0; i < CHAINS; i++) {
        round_evict_publish(&b); /* nothing to evict yet */
    }
    measure(&b, seconds, "take with eviction, publish, unref", round_evict_publish);
    for (uint32_t i = 0; i < CHAINS; i++) {
        round_evict_publish(&b);
    }
    measure(&b, seconds, "match, per block of a chain of 256", round_match);
    measure(&b, seconds, "borrow and unref of a cached block", round_borrow);
    fprintf(stderr, "sum %llx\n", (unsigned long long)b.sum);

    fg_prefix_destroy(b.prefix);
    fg_pool_destroy(b.pool, false);
    fg_mem_free(b.tokens);
    fg_mem_free(b.keys);
    fg_mem_free(b.ids);
    return 0;
}
