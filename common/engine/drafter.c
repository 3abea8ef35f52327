#include "common/engine/drafter.h"

#include <string.h>

#include "common/base/mem.h"
#include "common/kv/layout.h"
#include "common/kv/table.h"
#include "common/spec/lookahead.h"
#include "common/spec/verdict.h"

typedef struct place {
    uint32_t *tokens;  /* context_max of them */
    uint32_t computed; /* leading ones whose KV is in the blocks */
    uint32_t count;    /* known ones, and guesses of this round */
    fg_table table;
    uint64_t round; /* in which it was asked last */
} place;

/* A sequence of the round that goes on. */
typedef struct active {
    place *place;
    fg_step_ask *ask;
    const fg_step_seq *item; /* of the large model's step */
} active;

struct fg_drafter {
    fg_drafter_options options;
    fg_pool *pool;
    place *places;
    active *active; /* place_count of them, as of the next */
    fg_step_seq *items;
    uint32_t *blocks; /* the places' tables, block_max each */
    uint32_t *tokens; /* their texts, context_max each */
    uint32_t block_max;
    uint64_t round;
};

fg_status fg_drafter_create(const fg_drafter_options *options, fg_drafter **drafter_out,
                            fg_error *err)
{
    if (options->place_count == 0 || options->context_max < 2 || options->block_size == 0 ||
        options->block_count == 0 || options->vocab_size == 0) {
        return fg_fail(err, FG_BAD_INPUT, "a draft model needs places, a context and blocks");
    }
    fg_drafter *drafter = fg_mem_alloc(sizeof *drafter);
    if (drafter == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for the draft model");
    }
    drafter->options = *options;
    drafter->block_max = fg_kv_blocks_for(options->context_max, options->block_size);
    drafter->places = fg_mem_array(options->place_count, sizeof *drafter->places);
    drafter->active = fg_mem_array(options->place_count, sizeof *drafter->active);
    drafter->items = fg_mem_array(options->place_count, sizeof *drafter->items);
    drafter->blocks =
        fg_mem_array((size_t)options->place_count * drafter->block_max, sizeof *drafter->blocks);
    drafter->tokens =
        fg_mem_array((size_t)options->place_count * options->context_max, sizeof *drafter->tokens);
    fg_status status = fg_pool_create(options->block_count, &drafter->pool, err);
    if (status == FG_OK &&
        (drafter->places == NULL || drafter->active == NULL || drafter->items == NULL ||
         drafter->blocks == NULL || drafter->tokens == NULL)) {
        status = fg_fail(err, FG_AGAIN, "out of memory for the draft model's places");
    }
    if (status != FG_OK) {
        fg_drafter_destroy(drafter);
        return status;
    }
    for (uint32_t i = 0; i < options->place_count; i++) {
        place *p = &drafter->places[i];
        p->tokens = drafter->tokens + (size_t)i * options->context_max;
        fg_table_init(&p->table, drafter->blocks + (size_t)i * drafter->block_max,
                      drafter->block_max, options->block_size);
    }
    *drafter_out = drafter;
    return FG_OK;
}

void fg_drafter_destroy(fg_drafter *drafter)
{
    if (drafter == NULL) {
        return;
    }
    fg_pool_destroy(drafter->pool, true);
    fg_mem_free(drafter->places);
    fg_mem_free(drafter->active);
    fg_mem_free(drafter->items);
    fg_mem_free(drafter->blocks);
    fg_mem_free(drafter->tokens);
    fg_mem_free(drafter);
}

/* ---- places ---- */

/* The place that was asked for longest gives its blocks up, unless all are of this round. */
static bool evict(fg_drafter *drafter)
{
    place *oldest = NULL;
    for (uint32_t i = 0; i < drafter->options.place_count; i++) {
        place *p = &drafter->places[i];
        if (p->table.count > 0 && p->round != drafter->round &&
            (oldest == NULL || p->round < oldest->round)) {
            oldest = p;
        }
    }
    if (oldest != NULL) {
        fg_table_clear(&oldest->table, drafter->pool, NULL);
        oldest->computed = 0;
    }
    return oldest != NULL;
}

static bool grow(fg_drafter *drafter, place *p, uint32_t token_count)
{
    fg_status status;
    do {
        status = fg_table_grow(&p->table, drafter->pool, token_count, NULL);
    } while (status == FG_AGAIN && evict(drafter));
    return status == FG_OK;
}

/* What of it is not `tokens` is not computed. */
static void take_tokens(place *p, uint32_t at, const uint32_t *tokens, uint32_t count)
{
    uint32_t both = p->computed > at ? p->computed - at : 0;
    both = both < count ? both : count;
    if (both > 0 && memcmp(p->tokens + at, tokens, both * sizeof *tokens) != 0) {
        uint32_t same = 0;
        while (p->tokens[at + same] == tokens[same]) {
            same++;
        }
        p->computed = at + same;
    }
    memcpy(p->tokens + at, tokens, count * sizeof *tokens);
}

/* Whether the draft model has every token of the text; those that it has computed it has. */
static bool knows_tokens(const fg_drafter *drafter, const place *p)
{
    uint32_t vocab_size = drafter->options.vocab_size;
    for (uint32_t i = p->computed; i < p->count; i++) {
        if (p->tokens[i] >= vocab_size) {
            return false;
        }
    }
    return true;
}

static bool knows_shape(const fg_drafter *drafter, const fg_shape *shape)
{
    uint32_t vocab_size = drafter->options.vocab_size;
    for (uint32_t i = 0; shape != NULL && i < shape->bias_count; i++) {
        if (shape->biases[i].id >= vocab_size) {
            return false;
        }
    }
    for (uint32_t i = 0; shape != NULL && i < shape->end_count; i++) {
        if (shape->ends[i] >= vocab_size) {
            return false;
        }
    }
    return true;
}

/* Whether the place knows the item's text now, its choices too, and has room for guesses behind it. */
static bool take_text(fg_drafter *drafter, place *p, const fg_step_seq *item, uint32_t wanted)
{
    static const fg_ends none = { .is_end = NULL }; /* whoever books the step knows */
    uint32_t drafts = item->sample_rows > 0 ? item->sample_rows - 1 : 0;
    uint32_t said = item->token_count - drafts;
    const uint32_t *choices = item->sample_rows > 0 ? item->tokens_out : &item->token_out;
    uint32_t accepted = fg_verdict_exact(item->tokens + said, drafts, choices, &none).accepted;
    uint64_t count = (uint64_t)item->first_position + said + accepted + 1;
    if (item->broken_out || count + wanted > drafter->options.context_max) {
        return false;
    }
    take_tokens(p, 0, item->history, item->first_position);
    const uint32_t *tokens = item->follows != NULL ? &item->follows->token_out : item->tokens;
    take_tokens(p, item->first_position, tokens, said);
    take_tokens(p, item->first_position + said, choices, accepted + 1);
    p->count = (uint32_t)count;
    p->computed = p->computed < p->count ? p->computed : p->count - 1;
    fg_table_truncate(&p->table, drafter->pool, p->computed, NULL);
    return knows_tokens(drafter, p) && knows_shape(drafter, item->shape);
}

/* ---- steps of the draft model ---- */

static fg_step_seq *add_item(fg_drafter *drafter, uint32_t index, const active *a, uint32_t count)
{
    place *p = a->place;
    drafter->items[index] = (fg_step_seq){ .tokens = p->tokens + p->computed,
                                           .token_count = count,
                                           .first_position = p->computed,
                                           .block_ids = p->table.blocks,
                                           .block_count = p->table.count,
                                           .history = p->tokens,
                                           .prompt_count = a->item->prompt_count };
    return &drafter->items[index];
}

static uint64_t run(fg_drafter *drafter, uint32_t item_count)
{
    fg_step step = { .seqs = drafter->items, .seq_count = item_count };
    return drafter->options.run(drafter->options.ctx, &step);
}

/* Computes what the place is behind, but for what goes with the first guess. */
static void catch_up(fg_drafter *drafter, const active *a, fg_step *step)
{
    place *p = a->place;
    fg_step_drafted *did = &step->drafted_out;
    while (p->count - p->computed > FG_DRAFTER_NEAR && did->caught < step->catch_up_max) {
        uint32_t count = p->count - p->computed - 1, left = step->catch_up_max - did->caught;
        count = count < left ? count : left;
        count = count < FG_DRAFTER_CHUNK ? count : FG_DRAFTER_CHUNK;
        if (!grow(drafter, p, p->computed + count)) {
            return;
        }
        add_item(drafter, 0, a, count);
        did->catch_ns += run(drafter, 1);
        did->caught += count;
        p->computed += count;
    }
}

/* One more guess of each that wants one. Those that go on come first then. */
static uint32_t guess(fg_drafter *drafter, uint32_t active_count, fg_step_drafted *did)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < active_count; i++) {
        active a = drafter->active[i];
        if (a.ask->count_out == a.ask->wanted || !grow(drafter, a.place, a.place->count)) {
            continue;
        }
        fg_step_seq *item = add_item(drafter, count, &a, a.place->count - a.place->computed);
        item->sample = true;
        item->sampling = a.item->sampling;
        item->choice = a.item->choice;
        item->shape = a.item->shape;
        drafter->active[count++] = a;
    }
    if (count == 0) {
        return 0;
    }
    did->ns += run(drafter, count);
    did->steps++;
    did->rows += count;
    uint32_t left = 0;
    for (uint32_t i = 0; i < count; i++) {
        active a = drafter->active[i];
        a.place->computed = a.place->count;
        uint32_t token = drafter->items[i].token_out;
        if (!drafter->items[i].broken_out && token < drafter->options.vocab_size) {
            a.place->tokens[a.place->count++] = token;
            a.ask->guesses_out[a.ask->count_out++] = token;
            drafter->active[left++] = a;
        }
    }
    return left;
}

void fg_drafter_round(fg_drafter *drafter, fg_step *step)
{
    uint32_t asked = 0, near = 0;
    drafter->round++;
    step->drafted_out = (fg_step_drafted){ 0 };
    for (uint32_t i = 0; i < step->ask_count; i++) {
        fg_step_ask *ask = &step->asks[i];
        place *p = &drafter->places[ask->place];
        const fg_step_seq *item = &step->seqs[ask->item];
        FG_ASSERT(p->round != drafter->round, "place %u is asked twice", ask->place);
        ask->count_out = 0;
        p->round = drafter->round;
        if (take_text(drafter, p, item, ask->wanted)) {
            drafter->active[asked++] = (active){ .place = p, .ask = ask, .item = item };
        }
    }
    for (uint32_t i = 0; i < asked; i++) {
        active a = drafter->active[i];
        catch_up(drafter, &a, step);
        if (a.place->count - a.place->computed <= FG_DRAFTER_NEAR) {
            drafter->active[near++] = a;
        }
    }
    while (near > 0) {
        near = guess(drafter, near, &step->drafted_out);
    }
    step->drafted_out.ns += step->drafted_out.catch_ns;
    for (uint32_t i = 0; i < step->ask_count; i++) {
        step->asks[i].known_out = drafter->places[step->asks[i].place].computed;
    }
}

void fg_drafter_check(const fg_drafter *drafter, fg_pool_stats *stats_out)
{
    uint32_t held = 0;
    for (uint32_t i = 0; i < drafter->options.place_count; i++) {
        const place *p = &drafter->places[i];
        uint32_t needed = fg_kv_blocks_for(p->computed, drafter->options.block_size);
        FG_ASSERT(p->table.count == needed, "place %u has %u blocks for %u tokens", i,
                  p->table.count, p->computed);
        held += needed;
    }
    fg_pool_check(drafter->pool);
    fg_pool_stats_get(drafter->pool, stats_out);
    FG_ASSERT(stats_out->held == held, "%u blocks are held, places explain %u", stats_out->held,
              held);
}
