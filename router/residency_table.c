/* The table of keys, the pools, and the one mapping that all of them lie in. */
#include <string.h>

#include "common/base/mem.h"
#include "router/residency_internal.h"

/* ---- keys: open addressing, linear probing; an erased entry is filled by those behind it ---- */

static uint64_t next_entry(const fg_residency *tree, uint64_t entry)
{
    return entry + 1 == tree->table_count ? 0 : entry + 1;
}

static uint32_t place_bits(res_place place)
{
    return place.run * FG_RESIDENCY_RUN + place.at;
}

res_place res_find(const fg_residency *tree, uint64_t key, uint64_t *entry_out)
{
    uint32_t tag = res_tag(tree, key);
    uint64_t entry = res_home(tree, tag);
    for (; tree->table[entry] != 0; entry = next_entry(tree, entry)) {
        uint64_t value = tree->table[entry];
        if (value >> 32 != tag) {
            continue;
        }
        res_place place = { (uint32_t)value / FG_RESIDENCY_RUN,
                            (uint32_t)value % FG_RESIDENCY_RUN };
        if (*res_key(tree, &tree->runs[place.run], place.at) == key) {
            return place;
        }
    }
    if (entry_out != NULL) {
        *entry_out = entry;
    }
    return (res_place){ 0 };
}

void res_insert(fg_residency *tree, uint64_t entry, uint64_t key, res_place place)
{
    FG_ASSERT(tree->table[entry] == 0 && tree->block_count < tree->blocks_max);
    tree->table[entry] = (uint64_t)res_tag(tree, key) << 32 | place_bits(place);
    tree->block_count++;
}

/* Tag and place name an entry: the key itself need not be looked at. */
static uint64_t entry_of(const fg_residency *tree, uint64_t key, res_place place)
{
    uint32_t tag = res_tag(tree, key);
    uint64_t value = (uint64_t)tag << 32 | place_bits(place);
    uint64_t entry = res_home(tree, tag);
    while (tree->table[entry] != value) {
        FG_ASSERT(tree->table[entry] != 0, "a key of run %u is not in the table", place.run);
        entry = next_entry(tree, entry);
    }
    return entry;
}

void res_move(fg_residency *tree, uint64_t key, res_place from, res_place to)
{
    uint64_t entry = entry_of(tree, key, from);
    tree->table[entry] = tree->table[entry] >> 32 << 32 | place_bits(to);
}

void res_erase(fg_residency *tree, uint64_t key, res_place place)
{
    uint64_t hole = entry_of(tree, key, place);
    uint64_t entry = next_entry(tree, hole);
    for (; tree->table[entry] != 0; entry = next_entry(tree, entry)) {
        /* An entry may move back into the hole unless its search begins behind it. */
        uint64_t home = res_home(tree, (uint32_t)(tree->table[entry] >> 32));
        bool begins_behind =
            hole < entry ? hole < home && home <= entry : hole < home || home <= entry;
        if (!begins_behind) {
            tree->table[hole] = tree->table[entry];
            hole = entry;
        }
    }
    tree->table[hole] = 0;
    tree->block_count--;
}

/* ---- pools ---- */

/* An item, or 0; `next` is where a free item says which one is free after it. */
static uint32_t take(res_pool *pool)
{
    if (pool->used == pool->end) {
        return 0;
    }
    pool->taken++;
    return pool->used++;
}

uint32_t res_take_run(fg_residency *tree)
{
    res_pool *pool = &tree->run_pool;
    uint32_t run = pool->free;
    if (run == 0) {
        run = take(pool);
    } else {
        pool->free = tree->links[run].next;
        pool->taken++;
    }
    FG_ASSERT(run != 0, "no room was made for a run");
    tree->runs[run] = (res_run){ 0 };
    return run;
}

void res_give_run(fg_residency *tree, uint32_t run)
{
    tree->runs[run].length = 0;
    tree->links[run].next = tree->run_pool.free;
    tree->run_pool.free = run;
    tree->run_pool.taken--;
}

uint32_t res_take_chunk(fg_residency *tree)
{
    res_pool *pool = &tree->chunk_pool;
    uint32_t chunk = pool->free;
    if (chunk == 0) {
        chunk = take(pool);
    } else {
        pool->free = (uint32_t)tree->chunks[chunk][0];
        pool->taken++;
    }
    FG_ASSERT(chunk != 0, "no room was made for keys");
    return chunk;
}

void res_give_chunk(fg_residency *tree, uint32_t chunk)
{
    tree->chunks[chunk][0] = tree->chunk_pool.free;
    tree->chunk_pool.free = chunk;
    tree->chunk_pool.taken--;
}

uint32_t res_take_partial(fg_residency *tree)
{
    res_pool *pool = &tree->partial_pool;
    uint32_t partial = pool->free;
    if (partial == 0) {
        return take(pool);
    }
    pool->free = tree->partials[partial].next;
    pool->taken++;
    return partial;
}

void res_give_partial(fg_residency *tree, uint32_t partial)
{
    tree->partials[partial].next = tree->partial_pool.free;
    tree->partial_pool.free = partial;
    tree->partial_pool.taken--;
}

uint32_t res_take_prediction(fg_residency *tree)
{
    res_pool *pool = &tree->prediction_pool;
    uint32_t prediction = pool->free;
    if (prediction == 0) {
        return take(pool);
    }
    pool->free = tree->predictions[prediction].next;
    pool->taken++;
    return prediction;
}

void res_give_prediction(fg_residency *tree, uint32_t prediction)
{
    tree->predictions[prediction].next = tree->prediction_pool.free;
    tree->prediction_pool.free = prediction;
    tree->prediction_pool.taken--;
}

/* ---- creation ---- */

/* How the memory is divided when there are so many runs. Tuned for runs of 16 blocks: with longer ones
 * the blocks are used up first, with shorter ones the runs. */
typedef struct plan {
    uint64_t runs, chunks, blocks, entries, partials, predictions;
    uint64_t row_words, sum_words;
    size_t bytes;
} plan;

static plan plan_for(const fg_residency_options *options, uint64_t runs)
{
    uint64_t words = (options->slot_count + 63) / 64;
    plan p = { .runs = runs };
    p.blocks = runs * 16;
    p.chunks = runs * 5 / 2 + 64; /* a chunk in five is wasted at the ends of short runs */
    p.entries = p.blocks * 2;     /* half full at most: searches and erasures stay short */
    p.partials = runs + 1;
    p.predictions = runs / 8 < 64 ? 64 : runs / 8 > 16384 ? 16384 : runs / 8;
    p.row_words = (runs + 63) / 64;
    p.sum_words = (p.row_words + 63) / 64;
    p.bytes = p.entries * sizeof(uint64_t) +
              runs * (sizeof(res_run) + sizeof(res_link) + FG_TIERS * words * sizeof(uint64_t)) +
              options->slot_count * (p.row_words + p.sum_words) * sizeof(uint64_t) +
              p.chunks * sizeof(uint64_t[RES_CHUNK]) + p.partials * sizeof(res_partial) +
              p.predictions * (sizeof(res_prediction) + sizeof(uint32_t)) + 64 * 16;
    return p;
}

/* The most runs that fit. */
static plan plan_within(const fg_residency_options *options, size_t bytes)
{
    uint64_t fits = 64,
             too_many = (uint64_t)1 << 26; /* places are 32 bits: 64 places for each run */
    while (too_many - fits > 1) {
        uint64_t middle = fits + (too_many - fits) / 2;
        if (plan_for(options, middle).bytes <= bytes) {
            fits = middle;
        } else {
            too_many = middle;
        }
    }
    return plan_for(options, fits);
}

/* The next array in the mapping, at the start of a cache line. */
static void *carve(uint8_t **at, uint64_t count, size_t item_bytes)
{
    void *array = *at;
    *at += (count * item_bytes + 63) / 64 * 64;
    return array;
}

static void divide(fg_residency *tree, const plan *p)
{
    uint8_t *at = tree->memory;
    uint32_t slots = tree->options.slot_count;
    tree->table_count = p->entries;
    tree->blocks_max = p->blocks;
    tree->row_words = (uint32_t)p->row_words;
    tree->sum_words = (uint32_t)p->sum_words;
    tree->table = carve(&at, p->entries, sizeof *tree->table);
    tree->runs = carve(&at, p->runs, sizeof *tree->runs);
    tree->full = carve(&at, p->runs * FG_TIERS * tree->words, sizeof *tree->full);
    tree->chunks = carve(&at, p->chunks, sizeof *tree->chunks);
    tree->links = carve(&at, p->runs, sizeof *tree->links);
    tree->rows = carve(&at, slots * p->row_words, sizeof *tree->rows);
    tree->sums = carve(&at, slots * p->sum_words, sizeof *tree->sums);
    tree->partials = carve(&at, p->partials, sizeof *tree->partials);
    tree->predictions = carve(&at, p->predictions, sizeof *tree->predictions);
    tree->by_time = carve(&at, p->predictions, sizeof *tree->by_time); /* 0 of both is nobody's */
    FG_ASSERT(at <= (uint8_t *)tree->memory + tree->memory_bytes);
    tree->run_pool = (res_pool){ .used = 1, .end = (uint32_t)p->runs };
    tree->chunk_pool = (res_pool){ .used = 1, .end = (uint32_t)p->chunks };
    tree->partial_pool = (res_pool){ .used = 1, .end = (uint32_t)p->partials };
    tree->prediction_pool = (res_pool){ .used = 1, .end = (uint32_t)p->predictions };
}

fg_status fg_residency_create(const fg_residency_options *options, fg_residency **tree_out,
                              fg_error *err)
{
    if (options->slot_count == 0 || options->slot_count > FG_LIMIT_WORKERS) {
        return fg_fail(err, FG_BAD_INPUT, "residency for %u workers, at most %u",
                       options->slot_count, FG_LIMIT_WORKERS);
    }
    if (options->bytes_max < FG_RESIDENCY_BYTES_MIN) {
        return fg_fail(err, FG_BAD_INPUT, "residency in %zu bytes, at least %zu",
                       options->bytes_max, FG_RESIDENCY_BYTES_MIN);
    }
    fg_residency *tree = fg_mem_alloc(sizeof *tree);
    if (tree == NULL) {
        return fg_fail(err, FG_AGAIN, "no memory for residency");
    }
    plan p = plan_within(options, options->bytes_max - sizeof *tree);
    tree->options = *options;
    tree->words = (options->slot_count + 63) / 64;
    tree->memory_bytes = p.bytes;
    tree->memory = fg_mem_map(p.bytes);
    if (tree->memory == NULL) {
        fg_mem_free(tree);
        return fg_fail(err, FG_AGAIN, "no memory for residency: %zu bytes", p.bytes);
    }
    divide(tree, &p);
    *tree_out = tree;
    return FG_OK;
}

void fg_residency_destroy(fg_residency *tree)
{
    if (tree != NULL) {
        fg_mem_unmap(tree->memory, tree->memory_bytes);
        fg_mem_free(tree);
    }
}
