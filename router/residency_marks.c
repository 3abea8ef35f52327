/* Who holds what of a run: masks, records of parts, rows, predictions. */
#include "router/residency_internal.h"

/* ---- rows: the runs of a worker ---- */

static void row_set(fg_residency *tree, uint32_t slot, uint32_t run, bool on)
{
    uint64_t *row = tree->rows + (size_t)slot * tree->row_words;
    uint64_t *sum = tree->sums + (size_t)slot * tree->sum_words;
    uint32_t word = run / 64;
    if (on) {
        row[word] |= (uint64_t)1 << run % 64;
        sum[word / 64] |= (uint64_t)1 << word % 64;
        tree->runs[run].holders++;
        return;
    }
    row[word] &= ~((uint64_t)1 << run % 64);
    if (row[word] == 0) {
        sum[word / 64] &= ~((uint64_t)1 << word % 64);
    }
    tree->runs[run].holders--;
}

static res_prediction *find_prediction(const fg_residency *tree, uint32_t run, uint32_t slot)
{
    uint32_t at = tree->runs[run].predictions;
    while (at != 0 && tree->predictions[at].slot != slot) {
        at = tree->predictions[at].next;
    }
    return at == 0 ? NULL : &tree->predictions[at];
}

static void row_refresh(fg_residency *tree, uint32_t slot, uint32_t run, bool has_marks)
{
    bool on = has_marks || find_prediction(tree, run, slot) != NULL;
    if (on != res_row_bit(tree, slot, run)) {
        row_set(tree, slot, run, on);
    }
}

/* ---- marks ---- */

/* The link that names this worker's record on the run, or the one at the end of the list. */
static uint32_t *find_partial(const fg_residency *tree, uint32_t run, uint32_t slot)
{
    uint32_t *link = &tree->runs[run].partials;
    while (*link != 0 && tree->partials[*link].slot != slot) {
        link = &tree->partials[*link].next;
    }
    return link;
}

res_masks res_masks_get(const fg_residency *tree, uint32_t run, uint32_t slot)
{
    uint32_t partial = *find_partial(tree, run, slot);
    if (partial != 0) {
        const res_partial *p = &tree->partials[partial];
        return (res_masks){ { p->masks[FG_TIER_DEVICE], p->masks[FG_TIER_HOST] } };
    }
    uint64_t all = res_low(tree->runs[run].length);
    res_masks masks = { 0 };
    for (uint32_t tier = 0; tier < FG_TIERS; tier++) {
        masks.tier[tier] = res_bit(res_full(tree, run, tier), slot) ? all : 0;
    }
    return masks;
}

static bool is_part(uint64_t mask, uint64_t all)
{
    return mask != 0 && mask != all;
}

/* Writes, takes or gives back the worker's record. False: none was left to take. */
static bool write_partial(fg_residency *tree, uint32_t run, uint32_t slot, res_masks masks)
{
    uint64_t all = res_low(tree->runs[run].length);
    bool is_needed = is_part(masks.tier[0], all) || is_part(masks.tier[1], all);
    uint32_t *link = find_partial(tree, run, slot);
    uint32_t partial = *link;
    if (partial == 0 && is_needed) {
        partial = res_take_partial(tree);
        if (partial == 0) {
            return false;
        }
        tree->partials[partial].slot = slot;
        tree->partials[partial].next = tree->runs[run].partials;
        tree->runs[run].partials = partial;
    } else if (partial != 0 && !is_needed) {
        *link = tree->partials[partial].next;
        res_give_partial(tree, partial);
    }
    if (is_needed) {
        tree->partials[partial].masks[0] = masks.tier[0];
        tree->partials[partial].masks[1] = masks.tier[1];
    }
    return true;
}

/* Nearly every mask is full or empty; counting bits without an instruction for it takes a while. */
static uint64_t mask_count(const fg_residency *tree, uint32_t run, uint64_t mask)
{
    uint32_t length = tree->runs[run].length;
    return mask == 0 ? 0 : mask == res_low(length) ? length : (uint64_t)__builtin_popcountll(mask);
}

void res_masks_set(fg_residency *tree, uint32_t run, uint32_t slot, res_masks masks)
{
    uint64_t all = res_low(tree->runs[run].length);
    res_masks old = res_masks_get(tree, run, slot);
    if (!write_partial(tree, run, slot, masks)) {
        tree->stats.dropped += (uint64_t)__builtin_popcountll(masks.tier[0] | masks.tier[1]);
        masks = (res_masks){ 0 };
    }
    for (uint32_t tier = 0; tier < FG_TIERS; tier++) {
        uint64_t *word = res_full(tree, run, tier) + slot / 64;
        uint64_t bit = (uint64_t)1 << slot % 64;
        *word = all != 0 && masks.tier[tier] == all ? *word | bit : *word & ~bit;
        tree->slots[slot].blocks[tier] +=
            mask_count(tree, run, masks.tier[tier]) - mask_count(tree, run, old.tier[tier]);
    }
    row_refresh(tree, slot, run, (masks.tier[0] | masks.tier[1]) != 0);
}

void res_holders(const fg_residency *tree, uint32_t run, uint64_t set_out[RES_WORDS])
{
    for (uint32_t word = 0; word < tree->words; word++) {
        set_out[word] =
            res_full(tree, run, FG_TIER_DEVICE)[word] | res_full(tree, run, FG_TIER_HOST)[word];
    }
    for (uint32_t at = tree->runs[run].partials; at != 0; at = tree->partials[at].next) {
        set_out[tree->partials[at].slot / 64] |= (uint64_t)1 << tree->partials[at].slot % 64;
    }
    for (uint32_t at = tree->runs[run].predictions; at != 0; at = tree->predictions[at].next) {
        set_out[tree->predictions[at].slot / 64] |= (uint64_t)1 << tree->predictions[at].slot % 64;
    }
}

uint32_t res_alike(const fg_residency *tree, uint32_t run, uint32_t slot)
{
    uint32_t own = *find_partial(tree, run, slot), alike = 0;
    if (own == 0) {
        return 0;
    }
    const uint64_t *masks = tree->partials[own].masks;
    for (uint32_t at = tree->runs[run].partials; at != 0; at = tree->partials[at].next) {
        const uint64_t *other = tree->partials[at].masks;
        alike += other[0] == masks[0] && other[1] == masks[1];
    }
    return alike;
}

void res_drop(fg_residency *tree, uint32_t run, uint32_t slot)
{
    if (tree->runs[run].predictions != 0) {
        res_predicted_set(tree, run, slot, 0, 0);
    }
    res_masks_set(tree, run, slot, (res_masks){ 0 });
}

/* ---- predictions ---- */

static void put_time(fg_residency *tree, uint32_t at, uint32_t prediction)
{
    tree->by_time[at] = prediction;
    tree->predictions[prediction].time_at = at;
}

/* Puts a prediction where the order wants it, from a place in the heap whose own one has gone. Lives differ
 * by the predicted time of their requests, so a list in order would be searched far on every placing. */
static void settle_time(fg_residency *tree, uint32_t at, uint32_t prediction)
{
    const res_prediction *all = tree->predictions;
    uint64_t until_ns = all[prediction].until_ns;
    while (at > 1 && all[tree->by_time[at / 2]].until_ns > until_ns) {
        put_time(tree, at, tree->by_time[at / 2]);
        at /= 2;
    }
    for (uint32_t child; (child = 2 * at) <= tree->time_count; at = child) {
        child += child < tree->time_count &&
                 all[tree->by_time[child + 1]].until_ns < all[tree->by_time[child]].until_ns;
        if (all[tree->by_time[child]].until_ns >= until_ns) {
            break;
        }
        put_time(tree, at, tree->by_time[child]);
    }
    put_time(tree, at, prediction);
}

static void unlink_time(fg_residency *tree, const res_prediction *p)
{
    uint32_t last = tree->by_time[tree->time_count--];
    if (p->time_at <= tree->time_count) {
        settle_time(tree, p->time_at, last);
    }
}

uint64_t res_predicted(const fg_residency *tree, uint32_t run, uint32_t slot, uint64_t *until_out)
{
    const res_prediction *p = find_prediction(tree, run, slot);
    *until_out = p == NULL ? 0 : p->until_ns;
    return p == NULL ? 0 : p->mask;
}

static void remove_prediction(fg_residency *tree, uint32_t run, uint32_t slot)
{
    uint32_t *link = &tree->runs[run].predictions;
    while (*link != 0 && tree->predictions[*link].slot != slot) {
        link = &tree->predictions[*link].next;
    }
    uint32_t at = *link;
    if (at == 0) {
        return;
    }
    *link = tree->predictions[at].next;
    unlink_time(tree, &tree->predictions[at]);
    res_give_prediction(tree, at);
}

void res_predicted_set(fg_residency *tree, uint32_t run, uint32_t slot, uint64_t mask,
                       uint64_t until_ns)
{
    remove_prediction(tree, run, slot);
    uint32_t at = mask == 0 ? 0 : res_take_prediction(tree);
    if (at != 0) {
        tree->predictions[at] = (res_prediction){ .mask = mask,
                                                  .until_ns = until_ns,
                                                  .next = tree->runs[run].predictions,
                                                  .slot = slot,
                                                  .run = run };
        tree->runs[run].predictions = at;
        settle_time(tree, ++tree->time_count, at);
    } else if (mask != 0) {
        tree->stats.dropped += (uint64_t)__builtin_popcountll(mask);
    }
    res_masks masks = res_masks_get(tree, run, slot);
    row_refresh(tree, slot, run, (masks.tier[0] | masks.tier[1]) != 0);
}

void res_expire(fg_residency *tree)
{
    while (tree->time_count != 0 && tree->predictions[tree->by_time[1]].until_ns <= tree->now_ns) {
        res_prediction p = tree->predictions[tree->by_time[1]];
        res_predicted_set(tree, p.run, p.slot, 0, 0);
        res_run_tidy(tree, p.run);
    }
}
