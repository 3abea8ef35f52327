/* Statistics, and the proof of the books. */
#include "router/residency_internal.h"

/* A block's entry and the free one beside it. */
#define ENTRY_SHARE_BYTES (sizeof(uint64_t) * 2)

void fg_residency_stats_get(const fg_residency *tree, fg_residency_stats *stats_out)
{
    *stats_out = tree->stats;
    stats_out->blocks = tree->block_count;
    stats_out->runs = tree->run_pool.taken;
    stats_out->partials = tree->partial_pool.taken;
    stats_out->predictions = tree->prediction_pool.taken;
    for (uint32_t i = 0; i < tree->pin_count; i++) {
        stats_out->pins += tree->pins[i].until_ns > tree->now_ns;
    }
    size_t run_bytes = sizeof(res_run) + sizeof(res_link) +
                       FG_TIERS * tree->words * sizeof(uint64_t) + tree->options.slot_count / 8;
    stats_out->bytes = stats_out->blocks * ENTRY_SHARE_BYTES + stats_out->runs * run_bytes +
                       tree->chunk_pool.taken * sizeof(uint64_t[RES_CHUNK]) +
                       stats_out->partials * sizeof(res_partial) +
                       stats_out->predictions * (sizeof(res_prediction) + sizeof(uint32_t));
    stats_out->bytes_reserved = sizeof *tree + tree->memory_bytes;
}

typedef struct count {
    uint64_t runs, blocks, chunks, partials, predictions, leaves, children;
    uint64_t slot_blocks[FG_LIMIT_WORKERS][FG_TIERS];
    uint64_t slot_runs[FG_LIMIT_WORKERS];
} count;

static void check_keys(const fg_residency *tree, uint32_t run, count *c)
{
    const res_run *r = &tree->runs[run];
    for (uint32_t at = 0; at < r->length; at++) {
        uint64_t key = *res_key(tree, r, at);
        res_place place = res_find(tree, key, NULL);
        FG_ASSERT(key != 0 && place.run == run && place.at == at,
                  "block %u of run %u is found at block %u of run %u", at, run, place.at,
                  place.run);
    }
    c->blocks += r->length;
    c->chunks += (r->length + RES_CHUNK - 1u) / RES_CHUNK;
}

static void check_marks(const fg_residency *tree, uint32_t run, count *c)
{
    const res_run *r = &tree->runs[run];
    uint64_t all = res_low(r->length), holders[RES_WORDS];
    res_holders(tree, run, holders);
    uint32_t holder_count = 0;
    for (uint32_t slot = 0; slot < tree->options.slot_count; slot++) {
        bool holds = res_bit(holders, slot);
        FG_ASSERT(holds == res_row_bit(tree, slot, run), "run %u, slot %u: row", run, slot);
        if (!holds) {
            continue;
        }
        holder_count++;
        c->slot_runs[slot]++;
        FG_ASSERT(res_bit(tree->joined, slot), "run %u: marks of slot %u, unknown", run, slot);
        res_masks masks = res_masks_get(tree, run, slot);
        for (uint32_t tier = 0; tier < FG_TIERS; tier++) {
            FG_ASSERT((masks.tier[tier] & ~all) == 0, "run %u, slot %u: beyond the end", run, slot);
            FG_ASSERT((masks.tier[tier] == all) == res_bit(res_full(tree, run, tier), slot),
                      "run %u, slot %u: full", run, slot);
            c->slot_blocks[slot][tier] += (uint64_t)__builtin_popcountll(masks.tier[tier]);
        }
    }
    FG_ASSERT(holder_count == r->holders, "run %u: %u holders, %u counted", run, r->holders,
              holder_count);
    for (uint32_t at = r->partials; at != 0; at = tree->partials[at].next) {
        const uint64_t *masks = tree->partials[at].masks;
        FG_ASSERT((masks[0] != 0 && masks[0] != all) || (masks[1] != 0 && masks[1] != all),
                  "run %u: a record of no part", run);
        c->partials++;
    }
    for (uint32_t at = r->predictions; at != 0; at = tree->predictions[at].next) {
        const res_prediction *p = &tree->predictions[at];
        FG_ASSERT(p->run == run && p->mask != 0 && (p->mask & ~all) == 0, "run %u: prediction",
                  run);
        c->predictions++;
    }
}

static void check_list(const fg_residency *tree, const res_list *list, bool is_pinned, count *c)
{
    uint32_t prev = 0;
    for (uint32_t run = list->head; run != 0; run = tree->links[run].next) {
        const res_run *r = &tree->runs[run];
        FG_ASSERT(tree->links[run].prev == prev && r->length != 0 && r->children == 0 &&
                      r->is_pinned == is_pinned,
                  "run %u is on the wrong list", run);
        FG_ASSERT(++c->leaves <= tree->run_pool.taken, "the leaves go round in a ring");
        prev = run;
    }
    FG_ASSERT(list->tail == prev);
}

static void check_rows(const fg_residency *tree, const count *c)
{
    for (uint32_t slot = 0; slot < tree->options.slot_count; slot++) {
        const uint64_t *row = tree->rows + (size_t)slot * tree->row_words;
        const uint64_t *sums = tree->sums + (size_t)slot * tree->sum_words;
        uint64_t runs = 0;
        for (uint32_t word = 0; word < tree->row_words; word++) {
            runs += (uint64_t)__builtin_popcountll(row[word]);
            FG_ASSERT((row[word] != 0) == res_bit(sums, word), "slot %u: sums", slot);
        }
        FG_ASSERT(runs == c->slot_runs[slot], "slot %u: marks on runs that are not there", slot);
        for (uint32_t tier = 0; tier < FG_TIERS; tier++) {
            FG_ASSERT(tree->slots[slot].blocks[tier] == c->slot_blocks[slot][tier],
                      "slot %u: %llu blocks, %llu counted", slot,
                      (unsigned long long)tree->slots[slot].blocks[tier],
                      (unsigned long long)c->slot_blocks[slot][tier]);
        }
    }
}

static void check_time(const fg_residency *tree, const count *c)
{
    FG_ASSERT(tree->time_count == c->predictions);
    for (uint32_t at = 1; at <= tree->time_count; at++) {
        const res_prediction *p = &tree->predictions[tree->by_time[at]];
        FG_ASSERT(p->time_at == at && p->mask != 0, "prediction %u is elsewhere", at);
        FG_ASSERT(at == 1 || tree->predictions[tree->by_time[at / 2]].until_ns <= p->until_ns,
                  "prediction %u is out of order", at);
    }
}

void fg_residency_check(const fg_residency *tree)
{
    count c = { 0 };
    uint64_t leaves = 0, roots = 0;
    for (uint32_t run = 1; run < tree->run_pool.used; run++) {
        const res_run *r = &tree->runs[run];
        if (r->length == 0) {
            continue;
        }
        FG_ASSERT(r->length <= FG_RESIDENCY_RUN && (r->holders != 0 || r->children != 0),
                  "run %u: nobody holds it", run);
        FG_ASSERT(r->parent == 0 || tree->runs[r->parent].children != 0, "run %u: parent", run);
        c.runs++;
        c.children += r->children;
        leaves += r->children == 0;
        roots += r->parent == 0;
        check_keys(tree, run, &c);
        check_marks(tree, run, &c);
    }
    check_list(tree, &tree->leaves, false, &c);
    check_list(tree, &tree->pinned, true, &c);
    check_rows(tree, &c);
    check_time(tree, &c);
    FG_ASSERT(c.leaves == leaves && c.runs - roots == c.children);
    FG_ASSERT(c.runs == tree->run_pool.taken && c.blocks == tree->block_count);
    FG_ASSERT(c.chunks == tree->chunk_pool.taken && c.partials == tree->partial_pool.taken);
    FG_ASSERT(c.predictions == tree->prediction_pool.taken && tree->guard == 0);
    uint64_t entries = 0;
    for (uint64_t entry = 0; entry < tree->table_count; entry++) {
        entries += tree->table[entry] != 0;
    }
    FG_ASSERT(entries == tree->block_count, "%llu entries", (unsigned long long)entries);
}
