/*
 * Pool, prefix cache and tables together, as a worker uses them: random prompts that share their
 * starts, borrowed, computed, published, forked, rolled back and dropped in a small pool, with a full
 * check after every operation. Each block's content is known here (the tokens written into it), so that
 * what a table reads is compared with what its sequence wrote. Bugs that were planted one at a time and
 * found by this: the shared block released before its copy; a kept block written in place; no swap after
 * the copy; a fork without references; a promise not given back, or used twice; a promised block
 * borrowed; a mark or an entry that survives eviction; marks that survive a clear; a duplicate whose
 * table is not told; a token left out of the key; a hash bucket cut short.
 */
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "common/kv/prefix.h"
#include "common/kv/table.h"
#include "tests/support/test.h"

enum { BLOCK = 4, POOL = 20, SEQS = 6, ROOM = 12, TOKENS = ROOM * BLOCK, STEPS = 30000 };

typedef struct seq {
    fg_table table;
    uint32_t ids[ROOM];
    uint32_t tokens[TOKENS];
    fg_digest128 keys[ROOM];
    uint32_t count;     /* tokens written */
    uint32_t published; /* full blocks */
    bool is_alive;
} seq;

typedef struct place {
    fg_pool *pool;
    fg_prefix *prefix;
    fg_table_ops ops;
    fg_digest128 root;
    uint32_t content[POOL][BLOCK];
    seq seqs[SEQS];
    uint32_t later[64]; /* references that a launched step may still use */
    uint32_t later_count;
    uint64_t hits, copies, duplicates;
    fg_rng rng;
} place;

static uint32_t below(place *p, uint32_t bound)
{
    return (uint32_t)fg_rng_below(&p->rng, bound);
}

static void on_copy(void *ctx, uint32_t from_block, uint32_t to_block)
{
    place *p = ctx;
    cr_assert(fg_pool_refs(p->pool, from_block) > 0 && fg_pool_refs(p->pool, to_block) == 1);
    memcpy(p->content[to_block], p->content[from_block], sizeof p->content[0]);
    p->copies++;
}

static void on_release(void *ctx, uint32_t block_id)
{
    place *p = ctx;
    if (p->later_count < 64 && below(p, 2) == 0) {
        p->later[p->later_count++] = block_id;
    } else {
        fg_pool_unref(p->pool, block_id);
    }
}

static void flush(place *p)
{
    while (p->later_count > 0) {
        fg_pool_unref(p->pool, p->later[--p->later_count]);
    }
}

static void publish_full(place *p, seq *s)
{
    while (s->published < s->count / BLOCK) {
        uint32_t i = s->published++, id = s->ids[i];
        const uint32_t *tokens = &s->tokens[i * BLOCK];
        fg_digest128 parent = i == 0 ? p->root : s->keys[i - 1];
        s->keys[i] = fg_prefix_key(p->prefix, parent, i, tokens);
        uint32_t canonical = fg_prefix_publish(p->prefix, parent, s->keys[i], tokens, id);
        if (canonical != id && fg_pool_borrow(p->pool, canonical) == FG_OK) {
            fg_table_replace(&s->table, p->pool, i, canonical, &p->ops);
            p->duplicates++;
        }
    }
}

/* Writes tokens behind those that are there, as far as there are blocks. */
static void append(place *p, seq *s, const uint32_t *tokens, uint32_t count)
{
    for (uint32_t i = 0; i < count && s->count < TOKENS; i++) {
        uint32_t at = s->count / BLOCK;
        if (fg_table_grow(&s->table, p->pool, s->count + 1, NULL) != FG_OK ||
            fg_table_writable(&s->table, p->pool, at, &p->ops, NULL) != FG_OK) {
            return;
        }
        cr_assert(fg_pool_refs(p->pool, s->ids[at]) == 1 && !fg_pool_is_kept(p->pool, s->ids[at]),
                  "nobody else has what is written");
        p->content[s->ids[at]][s->count % BLOCK] = tokens[i];
        s->tokens[s->count++] = tokens[i];
        publish_full(p, s);
    }
}

static void arrive(place *p, seq *s)
{
    uint32_t prompt[TOKENS], ids[ROOM], length = 1 + below(p, TOKENS - 1);
    fg_digest128 keys[ROOM], parent = p->root;
    for (uint32_t i = 0; i < length; i++) {
        prompt[i] = i / BLOCK < 3 ? 0 : below(p, 2); /* much in common, zeros above all */
    }
    prompt[0] = below(p, 2);
    *s = (seq){ .is_alive = true };
    fg_table_init(&s->table, s->ids, ROOM, BLOCK);
    uint32_t full = (length - 1) / BLOCK; /* one token is left to compute */
    for (uint32_t i = 0; i < full; i++) {
        parent = keys[i] = fg_prefix_key(p->prefix, parent, i, &prompt[i * BLOCK]);
    }
    uint32_t hit = fg_prefix_match(p->prefix, p->root, keys, prompt, full, ids);
    for (uint32_t i = 0; i < hit; i++) {
        if (fg_pool_borrow(p->pool, ids[i]) != FG_OK) {
            hit = i;
        }
    }
    fg_table_adopt(&s->table, ids, hit);
    memcpy(s->tokens, prompt, hit * BLOCK * sizeof *prompt);
    memcpy(s->keys, keys, hit * sizeof *keys);
    s->count = hit * BLOCK;
    s->published = hit;
    p->hits += hit;
    uint32_t promise = below(p, 3);
    if (fg_pool_promise(p->pool, promise) == FG_OK) {
        s->table.promised = promise;
    }
    append(p, s, prompt + s->count, length - s->count);
}

static void fork_into(place *p, seq *s, const seq *from)
{
    *s = *from;
    fg_table_init(&s->table, s->ids, ROOM, BLOCK);
    s->count = below(p, from->count + 1);
    fg_table_fork(&s->table, &from->table, p->pool, s->count);
    s->published = s->published < s->count / BLOCK ? s->published : s->count / BLOCK;
}

static void step(place *p)
{
    seq *s = &p->seqs[below(p, SEQS)], *other = &p->seqs[below(p, SEQS)];
    uint32_t token = below(p, 2);
    if (!s->is_alive) {
        if (other->is_alive && below(p, 2) == 0) {
            fork_into(p, s, other);
        } else {
            arrive(p, s);
        }
        return;
    }
    switch (below(p, 16)) {
    case 0:
    case 1:
        fg_table_clear(&s->table, p->pool, &p->ops);
        s->is_alive = false;
        break;
    case 2:
        s->count = below(p, s->count + 1);
        fg_table_truncate(&s->table, p->pool, s->count, &p->ops);
        s->published = s->published < s->count / BLOCK ? s->published : s->count / BLOCK;
        break;
    case 3:
    case 4:
        flush(p);
        break;
    case 5:
        if (below(p, 20) == 0) {
            fg_prefix_clear(p->prefix);
        }
        break;
    default:
        append(p, s, &token, 1);
        break;
    }
}

static void check(place *p)
{
    fg_pool_check(p->pool);
    fg_prefix_check(p->prefix);
    uint32_t promised = 0, refs[POOL] = { 0 };
    for (uint32_t i = 0; i < p->later_count; i++) {
        refs[p->later[i]]++;
    }
    for (int i = 0; i < SEQS; i++) {
        const seq *s = &p->seqs[i];
        if (!s->is_alive) {
            continue;
        }
        promised += s->table.promised;
        cr_assert(s->table.count * BLOCK >= s->count);
        for (uint32_t t = 0; t < s->count; t++) {
            cr_assert_eq(p->content[s->ids[t / BLOCK]][t % BLOCK], s->tokens[t],
                         "sequence %d reads token %u as written", i, t);
        }
        for (uint32_t b = 0; b < s->table.count; b++) {
            refs[s->ids[b]]++;
        }
    }
    for (uint32_t id = 0; id < POOL; id++) {
        cr_assert_eq(fg_pool_refs(p->pool, id), refs[id], "block %u", id);
    }
    fg_pool_stats stats;
    fg_pool_stats_get(p->pool, &stats);
    cr_assert_eq(stats.promised, promised);
}

static void run(uint64_t seed)
{
    static place p;
    p = (place){ .rng = { .state = seed } };
    p.ops = (fg_table_ops){ .copy = on_copy, .release = on_release, .ctx = &p };
    cr_assert_eq(fg_pool_create(POOL, &p.pool, NULL), FG_OK);
    fg_prefix_options options = { .pool = p.pool, .block_count = POOL, .block_size = BLOCK };
    cr_assert_eq(fg_prefix_create(&options, &p.prefix, NULL), FG_OK);
    p.root = fg_prefix_root(p.prefix, 0, 0);
    for (int i = 0; i < STEPS; i++) {
        step(&p);
        check(&p);
    }
    fg_prefix_stats prefix;
    fg_prefix_stats_get(p.prefix, &prefix);
    cr_assert(p.hits > 100 && p.copies > 100 && p.duplicates > 100 && prefix.evicted > 100,
              "too little happened: %llu hits, %llu copies, %llu duplicates, %llu evictions",
              (unsigned long long)p.hits, (unsigned long long)p.copies,
              (unsigned long long)p.duplicates, (unsigned long long)prefix.evicted);
    cr_assert_eq(prefix.collisions, 0u);
    for (int i = 0; i < SEQS; i++) {
        if (p.seqs[i].is_alive) {
            fg_table_clear(&p.seqs[i].table, p.pool, &p.ops);
        }
    }
    flush(&p);
    fg_prefix_destroy(p.prefix);
    fg_pool_destroy(p.pool, false);
}

/* FORGE_SEED asks for another run. */
Test(kv_together, sequences_read_what_they_wrote_under_any_sequence_of_operations)
{
    const char *text = getenv("FORGE_SEED");
    uint64_t seed = text != NULL ? strtoull(text, NULL, 10) : 20270301;
    for (uint64_t i = 0; i < 4; i++) {
        cr_log_info("seed %llu", (unsigned long long)(seed + i));
        run(seed + i);
    }
}
