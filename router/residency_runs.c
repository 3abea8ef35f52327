/* The shape of the tree: runs are made, grow, are cut, joined, reclaimed and freed. */
#include <string.h>

#include "router/residency_internal.h"

/* ---- time, recency, heat ---- */

void res_now(fg_residency *tree, uint64_t now_ns)
{
    if (now_ns > tree->now_ns) {
        tree->now_ns = now_ns;
        tree->now_tick = (uint32_t)(now_ns >> RES_TICK_BITS);
    }
}

static bool tick_is_over(uint32_t tick, uint32_t now_tick)
{
    return (int32_t)(now_tick - tick) >= 0;
}

static void list_remove(fg_residency *tree, res_list *list, uint32_t run)
{
    res_link link = tree->links[run];
    *(link.prev == 0 ? &list->head : &tree->links[link.prev].next) = link.next;
    *(link.next == 0 ? &list->tail : &tree->links[link.next].prev) = link.prev;
}

static void list_push_head(fg_residency *tree, res_list *list, uint32_t run)
{
    tree->links[run] = (res_link){ .next = list->head };
    *(list->head == 0 ? &list->tail : &tree->links[list->head].prev) = run;
    list->head = run;
}

static void list_push_tail(fg_residency *tree, res_list *list, uint32_t run)
{
    tree->links[run] = (res_link){ .prev = list->tail };
    *(list->tail == 0 ? &list->head : &tree->links[list->tail].next) = run;
    list->tail = run;
}

static res_list *list_of(fg_residency *tree, uint32_t run)
{
    return tree->runs[run].is_pinned ? &tree->pinned : &tree->leaves;
}

static void note_unpin(fg_residency *tree, uint32_t tick)
{
    if (!tree->any_unpin || tick_is_over(tick, tree->unpin_tick)) {
        tree->unpin_tick = tick;
        tree->any_unpin = true;
    }
}

/* A leaf that became one because its last child went: that child was the least recently used of all, so
 * its parent is next in turn unless it was asked for since. */
static void leaf_begin(fg_residency *tree, uint32_t run)
{
    res_run *r = &tree->runs[run];
    r->is_pinned = r->is_pinned && !tick_is_over(r->pinned_tick, tree->now_tick);
    if (r->is_pinned) {
        note_unpin(tree, r->pinned_tick);
    }
    res_list *list = list_of(tree, run);
    bool is_older =
        list->tail == 0 || tick_is_over(r->touched_tick, tree->runs[list->tail].touched_tick);
    (is_older ? list_push_tail : list_push_head)(tree, list, run);
}

void res_touch(fg_residency *tree, uint32_t run)
{
    res_run *r = &tree->runs[run];
    if (r->touched_tick == tree->now_tick) {
        return;
    }
    r->heat = res_heat(r, tree->now_tick);
    r->touched_tick = tree->now_tick;
    res_list *list = list_of(tree, run);
    if (r->children == 0 && list->head != run) {
        list_remove(tree, list, run);
        list_push_head(tree, list, run);
    }
}

uint32_t res_heat(const res_run *run, uint32_t tick)
{
    uint32_t half_life = (uint32_t)(FG_RESIDENCY_HALF_LIFE_NS >> RES_TICK_BITS);
    uint32_t passed = tick - run->touched_tick;
    uint32_t halves = passed / half_life;
    if (run->heat == 0 || halves >= 32) {
        return 0;
    }
    /* Between two halvings the heat falls in a straight line. */
    uint64_t heat = run->heat >> halves;
    return (uint32_t)(heat - heat * (passed % half_life) / (2 * half_life));
}

void res_pin_until(fg_residency *tree, uint32_t run, uint32_t tick)
{
    res_run *r = &tree->runs[run];
    if (r->is_pinned && tick_is_over(tick, r->pinned_tick)) {
        return; /* pinned for longer already */
    }
    bool moves = r->children == 0 && !r->is_pinned;
    if (moves) {
        list_remove(tree, &tree->leaves, run);
    }
    r->pinned_tick = tick;
    r->is_pinned = true;
    if (moves) {
        list_push_head(tree, &tree->pinned, run);
    }
    note_unpin(tree, tick);
}

/* Pins that have run out. Leaves alone are looked at, once for each moment that a pin ends at. */
static void unpin(fg_residency *tree)
{
    if (!tree->any_unpin || !tick_is_over(tree->unpin_tick, tree->now_tick)) {
        return;
    }
    tree->any_unpin = false;
    for (uint32_t run = tree->pinned.tail, next; run != 0; run = next) {
        next = tree->links[run].prev;
        uint32_t tick = tree->runs[run].pinned_tick;
        if (tick_is_over(tick, tree->now_tick)) {
            list_remove(tree, &tree->pinned, run);
            tree->runs[run].is_pinned = false;
            list_push_head(tree, &tree->leaves, run);
        } else {
            note_unpin(tree, tick);
        }
    }
}

/* ---- runs come and go ---- */

uint32_t res_run_new(fg_residency *tree, uint32_t parent)
{
    uint32_t run = res_take_run(tree);
    tree->runs[run].parent = parent;
    tree->runs[run].touched_tick = tree->now_tick;
    list_push_head(tree, &tree->leaves, run);
    if (parent != 0 && tree->runs[parent].children++ == 0) {
        list_remove(tree, list_of(tree, parent), parent);
    }
    return run;
}

static void push_key(fg_residency *tree, res_run *run, uint64_t key)
{
    if (run->length % RES_CHUNK == 0) {
        run->chunks[run->length / RES_CHUNK] = res_take_chunk(tree);
    }
    *res_key(tree, run, run->length) = key;
    run->length++;
}

void res_run_append(fg_residency *tree, uint32_t run, uint64_t entry, uint64_t key)
{
    res_run *r = &tree->runs[run];
    res_insert(tree, entry, key, (res_place){ run, r->length });
    push_key(tree, r, key);
}

static void give_chunks(fg_residency *tree, const res_run *run, uint32_t first)
{
    for (uint32_t at = first; at < (run->length + RES_CHUNK - 1u) / RES_CHUNK; at++) {
        res_give_chunk(tree, run->chunks[at]);
    }
}

static void free_run(fg_residency *tree, uint32_t run)
{
    res_run *r = &tree->runs[run];
    for (uint32_t at = 0; at < r->length; at++) {
        __builtin_prefetch(res_begin(tree, *res_key(tree, r, at)));
    }
    for (uint32_t at = 0; at < r->length; at++) { /* as they were fetched */
        res_erase(tree, *res_key(tree, r, at), (res_place){ run, at });
    }
    give_chunks(tree, r, 0);
    list_remove(tree, list_of(tree, run), run);
    uint32_t parent = r->parent;
    res_give_run(tree, run);
    if (parent != 0 && --tree->runs[parent].children == 0) {
        leaf_begin(tree, parent);
    }
}

void res_run_tidy(fg_residency *tree, uint32_t run)
{
    while (run != 0 && run != tree->guard && tree->runs[run].holders == 0 &&
           tree->runs[run].children == 0) {
        uint32_t parent = tree->runs[run].parent;
        free_run(tree, run);
        run = parent;
    }
}

/* ---- room ---- */

/* The runs that are reclaimed next, which nobody has looked at for long. Returns a link so that the
 * compiler does not take this for nothing (see res_begin). */
static uint32_t prefetch_next(const fg_residency *tree, uint32_t run)
{
    for (uint32_t at = 0; at < RES_CHUNKS; at++) {
        __builtin_prefetch(&tree->chunks[tree->runs[run].chunks[at]]);
    }
    uint32_t after = tree->links[run].prev;
    __builtin_prefetch(&tree->runs[after]);
    __builtin_prefetch(&tree->links[after]);
    __builtin_prefetch(res_full(tree, run, 0));
    return after;
}

/* Drops the least recently used leaf, a pinned one last; false: there is none but the guard. */
static bool reclaim(fg_residency *tree)
{
    unpin(tree);
    uint32_t run = tree->leaves.tail;
    run = run != 0 && run == tree->guard ? tree->links[run].prev : run;
    if (run == 0) {
        run = tree->pinned.tail;
        run = run != 0 && run == tree->guard ? tree->links[run].prev : run;
    }
    if (run == 0) {
        return false;
    }
    tree->next_victim = prefetch_next(tree, tree->links[run].prev);
    uint64_t holders[RES_WORDS];
    res_holders(tree, run, holders);
    for (uint32_t word = 0; word < tree->words; word++) {
        for (; holders[word] != 0; holders[word] &= holders[word] - 1) {
            res_drop(tree, run, word * 64 + (uint32_t)__builtin_ctzll(holders[word]));
        }
    }
    tree->stats.reclaimed += tree->runs[run].length;
    res_run_tidy(tree, run);
    return true;
}

bool res_make_room(fg_residency *tree)
{
    while (res_pool_left(&tree->run_pool) < 2 ||
           res_pool_left(&tree->chunk_pool) < 2 * RES_CHUNKS + 1 ||
           tree->blocks_max - tree->block_count < FG_RESIDENCY_RUN) {
        if (!reclaim(tree)) {
            return false;
        }
    }
    return true;
}

/* ---- split and merge ---- */

typedef struct held {
    res_masks masks;
    uint64_t predicted, until_ns;
    uint32_t slot;
} held;

/* Takes all that anybody has on a run off it, so that its length may change. */
static uint32_t take_holders(fg_residency *tree, uint32_t run, held held_out[FG_LIMIT_WORKERS])
{
    uint64_t holders[RES_WORDS];
    res_holders(tree, run, holders);
    uint32_t count = 0;
    for (uint32_t word = 0; word < tree->words; word++) {
        for (; holders[word] != 0; holders[word] &= holders[word] - 1) {
            held *h = &held_out[count++];
            h->slot = word * 64 + (uint32_t)__builtin_ctzll(holders[word]);
            h->masks = res_masks_get(tree, run, h->slot);
            h->predicted = res_predicted(tree, run, h->slot, &h->until_ns);
            res_drop(tree, run, h->slot);
        }
    }
    return count;
}

/* Puts back what a holder had on `count` blocks from `first` on. */
static void give_holder(fg_residency *tree, uint32_t run, const held *h, uint32_t first)
{
    uint64_t all = res_low(tree->runs[run].length);
    res_masks masks = { { h->masks.tier[0] >> first & all, h->masks.tier[1] >> first & all } };
    uint64_t predicted = h->predicted >> first & all;
    if (predicted != 0) {
        res_predicted_set(tree, run, h->slot, predicted, h->until_ns);
    }
    if ((masks.tier[0] | masks.tier[1]) != 0) {
        res_masks_set(tree, run, h->slot, masks);
    }
}

/* Keys of `from` go to the end of `to`. */
static void copy_keys(fg_residency *tree, uint32_t from, uint32_t first, uint32_t count,
                      uint32_t to)
{
    res_run *source = &tree->runs[from], *target = &tree->runs[to];
    for (uint32_t at = first; at < first + count; at++) {
        uint64_t key = *res_key(tree, source, at);
        res_move(tree, key, (res_place){ from, at }, (res_place){ to, target->length });
        push_key(tree, target, key);
    }
}

/* Moves the keys behind the first `head` to the front. */
static void drop_head(fg_residency *tree, uint32_t run, uint32_t head)
{
    res_run *r = &tree->runs[run];
    for (uint32_t at = head; at < r->length; at++) {
        uint64_t key = *res_key(tree, r, at);
        res_move(tree, key, (res_place){ run, at }, (res_place){ run, at - head });
        *res_key(tree, r, at - head) = key;
    }
    uint32_t left = r->length - head;
    give_chunks(tree, r, (left + RES_CHUNK - 1) / RES_CHUNK);
    r->length = (uint8_t)left;
}

/* The new run takes the head, because the children of the old one come behind its tail. */
uint32_t res_run_split(fg_residency *tree, uint32_t run, uint32_t head)
{
    held holders[FG_LIMIT_WORKERS];
    uint32_t holder_count = take_holders(tree, run, holders);
    res_run *r = &tree->runs[run];
    uint32_t new_run = res_take_run(tree);
    res_run *n = &tree->runs[new_run];
    n->parent = r->parent;
    n->children = 1;
    n->heat = r->heat;
    n->touched_tick = r->touched_tick;
    n->is_pinned = r->is_pinned;
    n->pinned_tick = r->pinned_tick;
    r->parent = new_run;
    copy_keys(tree, run, 0, head, new_run);
    drop_head(tree, run, head);
    for (uint32_t i = 0; i < holder_count; i++) {
        give_holder(tree, new_run, &holders[i], 0);
        give_holder(tree, run, &holders[i], head);
    }
    tree->stats.splits++;
    return new_run;
}

void res_run_refine(fg_residency *tree, uint32_t run, uint32_t slot)
{
    if (tree->runs[run].partials == 0 || res_alike(tree, run, slot) < RES_ALIKE) {
        return;
    }
    res_masks masks = res_masks_get(tree, run, slot);
    uint64_t all = res_low(tree->runs[run].length);
    bool is_device = masks.tier[0] != 0 && masks.tier[0] != all;
    uint64_t mask = masks.tier[is_device ? FG_TIER_DEVICE : FG_TIER_HOST];
    uint32_t head = (uint32_t)__builtin_ctzll((mask & 1) != 0 ? ~mask : mask);
    if (head < RES_PIECE || tree->runs[run].length < head + RES_PIECE) {
        return;
    }
    tree->guard = run;
    if (res_make_room(tree)) {
        res_run_split(tree, run, head);
    }
    tree->guard = 0;
    res_run_tidy(tree, run); /* perhaps nobody has the tail */
}

static bool same_marks(const fg_residency *tree, uint32_t a, uint32_t b)
{
    const res_run *ra = &tree->runs[a], *rb = &tree->runs[b];
    return (ra->partials | rb->partials | ra->predictions | rb->predictions) == 0 &&
           memcmp(res_full(tree, a, 0), res_full(tree, b, 0),
                  FG_TIERS * tree->words * sizeof(uint64_t)) == 0;
}

void res_run_merge(fg_residency *tree, uint32_t run)
{
    res_run *r = &tree->runs[run], *p = &tree->runs[r->parent];
    if (r->parent == 0 || r->children != 0 || p->children != 1 ||
        p->length + r->length > FG_RESIDENCY_RUN || r->is_pinned != p->is_pinned ||
        res_pool_left(&tree->chunk_pool) < RES_CHUNKS || !same_marks(tree, run, r->parent)) {
        return;
    }
    held holders[FG_LIMIT_WORKERS];
    uint32_t holder_count = take_holders(tree, run, holders), parent = r->parent;
    for (uint32_t i = 0; i < holder_count; i++) {
        for (uint32_t tier = 0; tier < FG_TIERS; tier++) {
            /* These blocks are full in the parent, too: only the count does not see it. */
            uint64_t count = (uint64_t)__builtin_popcountll(holders[i].masks.tier[tier]);
            tree->slots[holders[i].slot].blocks[tier] += count;
        }
    }
    copy_keys(tree, run, 0, r->length, parent);
    give_chunks(tree, r, 0);
    list_remove(tree, list_of(tree, run), run);
    if (r->is_pinned && tick_is_over(p->pinned_tick, r->pinned_tick)) {
        p->pinned_tick = r->pinned_tick;
    }
    if (tick_is_over(p->touched_tick, r->touched_tick)) {
        p->heat = res_heat(p, r->touched_tick);
        p->touched_tick = r->touched_tick;
    }
    p->children = 0;
    leaf_begin(tree, parent);
    res_give_run(tree, run);
    tree->stats.merges++;
}
