/* What happens to the tree: workers come and go, their events, predictions and pins arrive. */
#include "router/residency.h"

#include "router/residency_internal.h"

/* ---- workers ---- */

static void drop_all(fg_residency *tree, uint32_t slot)
{
    const uint64_t *row = tree->rows + (size_t)slot * tree->row_words;
    const uint64_t *sums = tree->sums + (size_t)slot * tree->sum_words;
    for (uint32_t at = 0; at < tree->sum_words; at++) {
        for (uint64_t words = sums[at]; words != 0; words &= words - 1) {
            uint32_t word = at * 64 + (uint32_t)__builtin_ctzll(words);
            for (uint64_t runs = row[word]; runs != 0; runs &= runs - 1) {
                uint32_t run = word * 64 + (uint32_t)__builtin_ctzll(runs);
                res_drop(tree, run, slot);
                res_run_tidy(tree, run);
            }
        }
    }
}

static bool is_joined(const fg_residency *tree, uint32_t slot)
{
    return slot < tree->options.slot_count && tree->slots[slot].is_joined;
}

void fg_residency_join(fg_residency *tree, uint32_t slot, uint64_t epoch)
{
    FG_ASSERT(slot < tree->options.slot_count, "slot %u", slot);
    fg_residency_forget(tree, slot);
    tree->slots[slot] = (res_slot){ .epoch = epoch, .expected = 1, .is_joined = true };
    tree->joined[slot / 64] |= (uint64_t)1 << slot % 64;
}

void fg_residency_forget(fg_residency *tree, uint32_t slot)
{
    FG_ASSERT(slot < tree->options.slot_count, "slot %u", slot);
    drop_all(tree, slot);
    tree->slots[slot].is_joined = false;
    tree->joined[slot / 64] &= ~((uint64_t)1 << slot % 64);
}

bool fg_residency_is_lost(const fg_residency *tree, uint32_t slot)
{
    return is_joined(tree, slot) && tree->slots[slot].is_lost;
}

uint64_t fg_residency_slot_blocks(const fg_residency *tree, uint32_t slot, fg_residency_tier tier)
{
    return slot < tree->options.slot_count ? tree->slots[slot].blocks[tier] : 0;
}

/* ---- blocks come ---- */

typedef struct mark {
    uint32_t slot, tier;
    bool is_prediction;
    uint64_t until_ns;
} mark;

static void predict_bits(fg_residency *tree, uint32_t run, const mark *m, uint64_t bits)
{
    uint64_t until_ns;
    uint64_t old = res_predicted(tree, run, m->slot, &until_ns);
    bits &= ~res_masks_get(tree, run, m->slot).tier[FG_TIER_DEVICE];
    if (bits != 0) {
        until_ns = until_ns > m->until_ns ? until_ns : m->until_ns;
        res_predicted_set(tree, run, m->slot, old | bits, until_ns);
    }
}

/* What a worker says about blocks on its device ends a prediction about them. */
static void end_predicted(fg_residency *tree, uint32_t run, uint32_t slot, uint64_t bits)
{
    uint64_t until_ns;
    uint64_t old = tree->runs[run].predictions == 0 ? 0 : res_predicted(tree, run, slot, &until_ns);
    if ((old & bits) != 0) {
        res_predicted_set(tree, run, slot, old & ~bits, until_ns);
    }
}

static void mark_bits(fg_residency *tree, uint32_t run, const mark *m, uint64_t bits)
{
    res_touch(tree, run);
    if (m->is_prediction) {
        predict_bits(tree, run, m, bits);
        return;
    }
    res_masks masks = res_masks_get(tree, run, m->slot);
    if ((bits & ~masks.tier[m->tier]) != 0) {
        masks.tier[m->tier] |= bits;
        res_masks_set(tree, run, m->slot, masks);
    }
    if (m->tier == FG_TIER_DEVICE) {
        end_predicted(tree, run, m->slot, bits);
    }
}

/* A run whose blocks all have the same marks grows only while nobody else has any on it. */
static bool may_grow(const fg_residency *tree, uint32_t run, uint32_t slot)
{
    const res_run *r = &tree->runs[run];
    return r->length < FG_RESIDENCY_RUN && r->children == 0 &&
           (r->holders == 0 || (r->holders == 1 && res_row_bit(tree, slot, run)));
}

/* Puts new keys behind `*last`, as many as one run takes; the first is not in the tree and goes to
 * `entry`. Returns how many. There is room. */
static uint32_t grow(fg_residency *tree, const mark *m, const uint64_t *keys, uint32_t count,
                     uint64_t entry, res_place *last)
{
    uint32_t run = last->run;
    if (run != 0 && last->at + 1u < tree->runs[run].length) {
        run = res_run_split(tree, run, last->at + 1);
    }
    if (run == 0 || !may_grow(tree, run, m->slot)) {
        run = res_run_new(tree, run);
    }
    const res_run *r = &tree->runs[run];
    uint32_t first = r->length, added = 0;
    res_masks masks = { 0 };
    if (r->holders != 0) { /* a mask that was full no longer is, so it is written anew */
        masks = res_masks_get(tree, run, m->slot);
        res_masks_set(tree, run, m->slot, (res_masks){ 0 });
    }
    do {
        res_run_append(tree, run, entry, keys[added]);
        added++;
        if (added + RES_PREFETCH < count) {
            __builtin_prefetch(res_begin(tree, keys[added + RES_PREFETCH]));
        }
    } while (added < count && r->length < FG_RESIDENCY_RUN && keys[added] != 0 &&
             res_find(tree, keys[added], &entry).run == 0);
    if ((masks.tier[0] | masks.tier[1]) != 0) {
        res_masks_set(tree, run, m->slot, masks);
    }
    mark_bits(tree, run, m, res_low(added) << first);
    *last = (res_place){ run, r->length - 1u };
    return added;
}

/* Where this key is, right behind `last` or anywhere. Run 0: nowhere, and `*entry_out` is its place in
 * the table, in a tree that has room for it. False: it has no room. */
static bool place_of(fg_residency *tree, uint64_t key, res_place last, res_place *place_out,
                     uint64_t *entry_out)
{
    const res_run *run = &tree->runs[last.run];
    if (last.run != 0 && last.at + 1u < run->length && *res_key(tree, run, last.at + 1) == key) {
        *place_out = (res_place){ last.run, last.at + 1 };
        return true;
    }
    if (!res_make_room(tree)) {
        return false;
    }
    *place_out = res_find(tree, key, entry_out);
    return true;
}

/* Marks this chain of blocks, and makes those that are not known. False: not all had room. */
static bool place_blocks(fg_residency *tree, const mark *m, const fg_residency_event *event)
{
    res_place last = event->parent == 0 ? (res_place){ 0 } : res_find(tree, event->parent, NULL);
    tree->stats.unknown += event->parent != 0 && last.run == 0;
    uint32_t at = 0;
    for (uint32_t i = 0; i < event->count && i < RES_PREFETCH; i++) {
        __builtin_prefetch(res_begin(tree, event->keys[i]));
    }
    while (at < event->count) {
        const uint64_t *keys = event->keys + at;
        uint64_t entry = 0;
        uint32_t before = last.run, added = 1;
        res_place place;
        tree->guard = last.run;
        if (keys[0] == 0) { /* no key: the chain is torn here */
            tree->stats.unknown++;
            last = (res_place){ 0 };
        } else if (!place_of(tree, keys[0], last, &place, &entry)) {
            tree->stats.dropped += event->count - at;
            break;
        } else if (place.run == 0) {
            added = grow(tree, m, keys, event->count - at, entry, &last);
        } else {
            added = res_along(tree, place, keys, event->count - at);
            mark_bits(tree, place.run, m, res_low(added) << place.at);
            last = (res_place){ place.run, place.at + added - 1 };
        }
        tree->guard = last.run;
        if (before != last.run) {
            res_run_tidy(tree, before); /* a tail that was cut off, or marks that had no room */
        }
        at += added;
    }
    tree->guard = 0;
    if (last.run != 0 && tree->runs[last.run].holders == 0) {
        res_run_tidy(tree, last.run);
    } else if (last.run != 0) {
        res_run_merge(tree, last.run);
        if (tree->runs[last.run].length != 0) { /* it has not gone into its parent */
            res_run_refine(tree, last.run, m->slot);
        }
    }
    return at == event->count;
}

/* ---- blocks go ---- */

static void remove_blocks(fg_residency *tree, uint32_t slot, const fg_residency_event *event)
{
    const uint64_t *keys = event->keys;
    uint32_t at = 0;
    while (at < event->count) {
        if (at + RES_PREFETCH < event->count) {
            __builtin_prefetch(res_begin(tree, keys[at + RES_PREFETCH]));
        }
        res_place place = keys[at] == 0 ? (res_place){ 0 } : res_find(tree, keys[at], NULL);
        at++;
        if (place.run == 0) {
            tree->stats.unknown++;
            continue;
        }
        /* Neighbours in the run, in either direction, go in one stroke. */
        const res_run *run = &tree->runs[place.run];
        uint32_t low = place.at, high = place.at;
        for (; at < event->count; at++) {
            if (high + 1u < run->length && *res_key(tree, run, high + 1) == keys[at]) {
                high++;
            } else if (low > 0 && *res_key(tree, run, low - 1) == keys[at]) {
                low--;
            } else {
                break;
            }
        }
        uint64_t bits = res_low(high - low + 1) << low;
        res_masks masks = res_masks_get(tree, place.run, slot);
        uint64_t held = masks.tier[event->tier] & bits;
        tree->stats.unknown += (uint64_t)__builtin_popcountll(bits ^ held);
        if (event->tier == FG_TIER_DEVICE) {
            end_predicted(tree, place.run, slot, bits);
        }
        if (held != 0) {
            masks.tier[event->tier] &= ~bits;
            res_masks_set(tree, place.run, slot, masks);
        }
        if (tree->runs[place.run].holders != 0) {
            res_run_refine(tree, place.run, slot);
        } else {
            res_run_tidy(tree, place.run);
        }
    }
}

/* ---- frames ---- */

static bool is_sane(const fg_residency_frame *frame)
{
    bool is_sane = frame->number != 0 && (frame->count == 0 || frame->events != NULL);
    for (uint32_t i = 0; is_sane && i < frame->count; i++) {
        const fg_residency_event *event = &frame->events[i];
        is_sane = event->kind <= FG_RESIDENCY_CLEARED && event->tier < FG_TIERS &&
                  (event->count == 0 || event->keys != NULL);
    }
    return is_sane;
}

static uint32_t first_reset(const fg_residency_frame *frame)
{
    uint32_t at = 0;
    while (at < frame->count && frame->events[at].kind != FG_RESIDENCY_RESET) {
        at++;
    }
    return at;
}

static void apply_event(fg_residency *tree, uint32_t slot, const fg_residency_event *event)
{
    mark m = { .slot = slot, .tier = event->tier };
    tree->stats.events++;
    switch ((fg_residency_kind)event->kind) {
    case FG_RESIDENCY_RESET:
    case FG_RESIDENCY_CLEARED:
        drop_all(tree, slot);
        break;
    case FG_RESIDENCY_STORED:
        place_blocks(tree, &m, event);
        break;
    case FG_RESIDENCY_REMOVED:
        remove_blocks(tree, slot, event);
        break;
    }
}

/* What the events look for first is fetched ahead: the table, and half as far ahead the runs. */
static void apply_events(fg_residency *tree, uint32_t slot, const fg_residency_event *events,
                         uint32_t count)
{
    for (uint32_t ahead = 0; ahead < count + RES_AHEAD; ahead++) {
        if (ahead < count) {
            __builtin_prefetch(res_begin(tree, events[ahead].parent));
            if (events[ahead].count != 0) {
                __builtin_prefetch(res_begin(tree, events[ahead].keys[0]));
            }
        }
        uint32_t half = ahead - RES_AHEAD / 2;
        if (ahead >= RES_AHEAD / 2 && half < count) {
            __builtin_prefetch(&tree->runs[res_guess(tree, events[half].parent)]);
            if (events[half].count != 0) {
                __builtin_prefetch(&tree->runs[res_guess(tree, events[half].keys[0])]);
            }
        }
        if (ahead >= RES_AHEAD) {
            apply_event(tree, slot, &events[ahead - RES_AHEAD]);
        }
    }
}

fg_status fg_residency_apply(fg_residency *tree, uint32_t slot, const fg_residency_frame *frame,
                             uint64_t now_ns)
{
    if (!is_joined(tree, slot) || tree->slots[slot].epoch != frame->epoch) {
        tree->stats.stale++;
        return FG_CANCELLED;
    }
    res_slot *s = &tree->slots[slot];
    if (frame->number != 0 && frame->number < s->expected) {
        tree->stats.repeated++;
        return FG_CANCELLED;
    }
    if (!is_sane(frame)) {
        tree->stats.refused++;
        s->is_lost = true;
        return FG_BAD_INPUT;
    }
    res_now(tree, now_ns);
    res_expire(tree);
    uint32_t first = 0;
    if (frame->number != s->expected) {
        tree->stats.gaps += !s->is_lost;
        s->is_lost = true;
    }
    s->expected = frame->number + 1;
    if (s->is_lost) {
        first = first_reset(frame);
        if (first == frame->count) {
            tree->stats.ignored++;
            return FG_AGAIN;
        }
        s->is_lost = false;
    }
    tree->stats.frames++;
    apply_events(tree, slot, frame->events + first, frame->count - first);
    return FG_OK;
}

/* ---- predictions, pins, heat ---- */

fg_status fg_residency_predict(fg_residency *tree, uint32_t slot, const fg_residency_event *blocks,
                               uint64_t until_ns, uint64_t now_ns)
{
    res_now(tree, now_ns);
    res_expire(tree);
    if (!is_joined(tree, slot)) {
        return FG_AGAIN;
    }
    if (until_ns <= tree->now_ns) {
        return FG_OK;
    }
    mark m = { .slot = slot, .is_prediction = true, .until_ns = until_ns };
    uint64_t dropped = tree->stats.dropped;
    bool is_whole = place_blocks(tree, &m, blocks);
    return is_whole && dropped == tree->stats.dropped ? FG_OK : FG_AGAIN;
}

/* Finds the place of this pin among all pins, or takes one that is free or has run out. */
static bool note_pin(fg_residency *tree, uint64_t key, uint64_t until_ns)
{
    uint32_t found = tree->pin_count;
    for (uint32_t i = 0; i < tree->pin_count; i++) {
        if (tree->pins[i].key == key) {
            found = i;
            break;
        }
        if (tree->pins[i].until_ns <= tree->now_ns) {
            found = i;
        }
    }
    if (found == FG_RESIDENCY_PINS) {
        return false;
    }
    tree->pin_count += found == tree->pin_count;
    res_pin *pin = &tree->pins[found];
    bool is_later = pin->key == key && pin->until_ns > until_ns;
    *pin = (res_pin){ key, is_later ? pin->until_ns : until_ns };
    return true;
}

fg_status fg_residency_pin(fg_residency *tree, const uint64_t *keys, uint32_t count,
                           uint64_t until_ns, uint64_t now_ns)
{
    res_now(tree, now_ns);
    if (count == 0 || until_ns <= tree->now_ns) {
        return FG_OK;
    }
    if (!note_pin(tree, keys[count - 1], until_ns)) {
        return FG_AGAIN;
    }
    uint64_t ticks = (until_ns - tree->now_ns) >> RES_TICK_BITS;
    uint32_t ahead = ticks < RES_TICKS_AHEAD_MAX ? (uint32_t)ticks + 1 : RES_TICKS_AHEAD_MAX;
    for (uint32_t at = 0; at < count;) {
        res_place place = res_find(tree, keys[at], NULL);
        if (place.run == 0 || keys[at] == 0) {
            break;
        }
        res_pin_until(tree, place.run, tree->now_tick + ahead);
        at += res_along(tree, place, keys + at, count - at);
    }
    return FG_OK;
}

uint32_t fg_residency_heat(const fg_residency *tree, const uint64_t *keys, uint32_t count,
                           uint64_t now_ns)
{
    if (count == 0 || keys[count - 1] == 0) {
        return 0;
    }
    uint64_t later_ns = now_ns > tree->now_ns ? now_ns : tree->now_ns;
    res_place place = res_find(tree, keys[count - 1], NULL);
    return place.run == 0 ? 0
                          : res_heat(&tree->runs[place.run], (uint32_t)(later_ns >> RES_TICK_BITS));
}
