/* Who holds the leading blocks of a chain. */
#include "router/residency_internal.h"

/* Workers that held every block so far, and how far the others got. */
typedef struct match {
    uint64_t alive[2][RES_WORDS];        /* on the device; in any tier */
    uint32_t reach[2][FG_LIMIT_WORKERS]; /* of those that were alive once */
    uint64_t parts[2][FG_LIMIT_WORKERS]; /* scratch: masks of those that hold a part of this run */
    uint64_t has_part[RES_WORDS];
} match;

static void add_part(match *m, uint32_t slot, uint64_t device, uint64_t any)
{
    uint64_t bit = (uint64_t)1 << slot % 64;
    bool is_new = (m->has_part[slot / 64] & bit) == 0;
    m->has_part[slot / 64] |= bit;
    m->parts[0][slot] = device | (is_new ? 0 : m->parts[0][slot]);
    m->parts[1][slot] = any | (is_new ? 0 : m->parts[1][slot]);
}

static void collect_parts(const fg_residency *tree, const res_run *run, match *m)
{
    for (uint32_t word = 0; word < tree->words; word++) {
        m->has_part[word] = 0;
    }
    for (uint32_t at = run->partials; at != 0; at = tree->partials[at].next) {
        const res_partial *p = &tree->partials[at];
        add_part(m, p->slot, p->masks[FG_TIER_DEVICE],
                 p->masks[FG_TIER_DEVICE] | p->masks[FG_TIER_HOST]);
    }
    for (uint32_t at = run->predictions; at != 0; at = tree->predictions[at].next) {
        const res_prediction *p = &tree->predictions[at];
        if (p->until_ns > tree->now_ns) {
            add_part(m, p->slot, p->mask, p->mask);
        }
    }
}

/* These workers are alive and do not hold all of the run: whoever has no `count` blocks from `first` on
 * stays behind. `done` blocks of the chain lie before this run. */
static void drop_behind(match *m, uint32_t kind, uint32_t word, uint64_t slots, res_place first,
                        uint32_t count, uint32_t done)
{
    for (; slots != 0; slots &= slots - 1) {
        uint32_t slot = word * 64 + (uint32_t)__builtin_ctzll(slots);
        uint64_t mask = res_bit(m->has_part, slot) ? m->parts[kind][slot] >> first.at : 0;
        uint64_t missing = ~mask & res_low(count);
        if (missing != 0) {
            m->reach[kind][slot] = done + (uint32_t)__builtin_ctzll(missing);
            m->alive[kind][word] &= ~((uint64_t)1 << slot % 64);
        }
    }
}

/* Goes along `count` blocks of a run. Returns whether anybody still holds them all. */
static bool pass(const fg_residency *tree, res_place first, uint32_t count, uint32_t done, match *m)
{
    const res_run *run = &tree->runs[first.run];
    const uint64_t *device = res_full(tree, first.run, FG_TIER_DEVICE);
    const uint64_t *host = res_full(tree, first.run, FG_TIER_HOST);
    bool is_collected = false;
    uint64_t alive = 0;
    for (uint32_t word = 0; word < tree->words; word++) {
        uint64_t no_device = m->alive[0][word] & ~device[word];
        uint64_t nothing = m->alive[1][word] & ~(device[word] | host[word]);
        if ((no_device | nothing) != 0) {
            if (!is_collected) {
                collect_parts(tree, run, m);
                is_collected = true;
            }
            drop_behind(m, 0, word, no_device, first, count, done);
            /* Who is full on the host has a record only for the device, or none. */
            drop_behind(m, 1, word, nothing, first, count, done);
        }
        alive |= m->alive[1][word];
    }
    return alive != 0;
}

static uint32_t gather(const fg_residency *tree, const uint64_t candidates[RES_WORDS],
                       uint32_t done, const match *m, fg_residency_hit *hits_out)
{
    uint32_t hits = 0;
    for (uint32_t word = 0; word < tree->words; word++) {
        for (uint64_t slots = candidates[word]; slots != 0; slots &= slots - 1) {
            uint32_t slot = word * 64 + (uint32_t)__builtin_ctzll(slots);
            uint32_t device = res_bit(m->alive[0], slot) ? done : m->reach[0][slot];
            uint32_t total = res_bit(m->alive[1], slot) ? done : m->reach[1][slot];
            if (total != 0) {
                hits_out[hits++] = (fg_residency_hit){ slot, device, total };
            }
        }
    }
    return hits;
}

uint32_t fg_residency_match(fg_residency *tree, const uint64_t *keys, uint32_t count,
                            uint64_t now_ns, fg_residency_hit *hits_out)
{
    res_now(tree, now_ns);
    res_expire(tree);
    res_place place = count == 0 || keys[0] == 0 ? (res_place){ 0 } : res_find(tree, keys[0], NULL);
    if (place.run == 0) {
        return 0;
    }
    match m;
    uint64_t candidates[RES_WORDS];
    res_holders(tree, place.run, candidates);
    for (uint32_t word = 0; word < tree->words; word++) {
        m.alive[0][word] = m.alive[1][word] = candidates[word];
    }
    uint32_t done = 0;
    bool goes_on = true;
    while (goes_on && place.run != 0) {
        uint32_t next = done + tree->runs[place.run].length - place.at;
        if (next < count) { /* likely the first key of the run behind this one */
            uint32_t guess = res_guess(tree, keys[next]);
            __builtin_prefetch(&tree->runs[guess]);
            __builtin_prefetch(res_full(tree, guess, 0));
        }
        if (next + FG_RESIDENCY_RUN < count) { /* and of the one behind that, if both are long */
            __builtin_prefetch(res_begin(tree, keys[next + FG_RESIDENCY_RUN]));
        }
        uint32_t same = res_along(tree, place, keys + done, count - done);
        res_touch(tree, place.run);
        tree->runs[place.run].heat += FG_RESIDENCY_HEAT;
        goes_on = pass(tree, place, same, done, &m) && done + same < count;
        done += same;
        place = goes_on && keys[done] != 0 ? res_find(tree, keys[done], NULL) : (res_place){ 0 };
    }
    return gather(tree, candidates, done, &m, hits_out);
}
