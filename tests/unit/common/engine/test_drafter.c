/* A draft model's places: whatever a sequence has become, its guesses are those of the draft model after exactly that text,
 * and its blocks are those that the text needs. The draft model is a simulated engine, which sees every stale slot. */
#include "common/engine/drafter.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/dtype.h"
#include "common/base/fault.h"
#include "common/base/mem.h"
#include "common/engine/engine_sim.h"
#include "tests/support/seed.h"
#include "tests/support/test.h"

enum { VOCAB = 500, CONTEXT = 600, PLACES = 6, BLOCK = 4, WANTED_MAX = 8 };

typedef struct bench {
    fg_engine *engine;
    fg_kv_layout layout;
    void *arena;
    fg_drafter *drafter;
    uint32_t block_count, steps, tokens_most;
} bench;

static uint64_t run(void *ctx, fg_step *step)
{
    bench *b = ctx;
    fg_error err = { 0 };
    uint32_t tokens = 0;
    cr_assert_eq(fg_engine_begin(b->engine, step, &err), FG_OK, "%s", err.text);
    cr_assert(fg_engine_poll(b->engine) == step);
    for (uint32_t i = 0; i < step->seq_count; i++) {
        tokens += step->seqs[i].token_count;
    }
    b->tokens_most = tokens > b->tokens_most ? tokens : b->tokens_most;
    b->steps++;
    return 1000 + tokens;
}

/* `known`: tokens that the large model has too. */
static void open_bench_of(bench *b, uint32_t block_count, uint32_t known)
{
    fg_error err = { 0 };
    *b = (bench){ .block_count = block_count };
    cr_assert_eq(fg_kv_layout_init(&b->layout, 1, 1, 8, BLOCK, FG_F16, &err), FG_OK);
    b->arena = calloc(block_count, b->layout.block_bytes);
    fg_engine_sim_options engine = { .layout = b->layout,
                                     .arena = b->arena,
                                     .block_count = block_count,
                                     .limits = { FG_DRAFTER_CHUNK, PLACES, CONTEXT },
                                     .vocab_size = VOCAB,
                                     .eos_token = UINT32_MAX };
    cr_assert_eq(fg_engine_open_sim(&engine, &b->engine, &err), FG_OK, "%s", err.text);
    fg_drafter_options options = { .place_count = PLACES,
                                   .context_max = CONTEXT,
                                   .block_size = BLOCK,
                                   .block_count = block_count,
                                   .vocab_size = known,
                                   .run = run,
                                   .ctx = b };
    cr_assert_eq(fg_drafter_create(&options, &b->drafter, &err), FG_OK, "%s", err.text);
}

static void open_bench(bench *b, uint32_t block_count)
{
    open_bench_of(b, block_count, VOCAB);
}

static void close_bench(bench *b)
{
    cr_assert_eq(fg_engine_sim_bad_slots(b->engine), 0u);
    fg_drafter_destroy(b->drafter);
    fg_engine_close(b->engine);
    free(b->arena);
}

/* One sequence of the large model: its text, and a step that has chosen something. */
typedef struct text {
    uint32_t tokens[CONTEXT], count;
    uint32_t guesses[WANTED_MAX], guess_count;
    uint32_t choices[WANTED_MAX + 1];
    fg_sampling sampling;
    fg_step_seq item;
} text;

static void draw_text(text *t, uint32_t count, fg_rng *rng)
{
    *t = (text){ .count = count };
    t->sampling.temperature = fg_rng_below(rng, 2) == 0 ? 0.0f : 0.8f;
    t->sampling.seed = fg_rng_next(rng);
    for (uint32_t i = 0; i < count; i++) {
        t->tokens[i] = (uint32_t)fg_rng_below(rng, VOCAB);
    }
}

/* Its last token goes into a step with its guesses, `right` of which are what is chosen. */
static void choose(text *t, uint32_t right, fg_rng *rng)
{
    uint32_t drafts = t->guess_count;
    memcpy(t->tokens + t->count, t->guesses, drafts * sizeof *t->guesses);
    for (uint32_t i = 0; i <= drafts; i++) {
        t->choices[i] = (uint32_t)fg_rng_below(rng, VOCAB);
        if (i < drafts) {
            t->choices[i] = i < right ? t->guesses[i] : (t->guesses[i] + 1) % VOCAB;
        }
    }
    t->item = (fg_step_seq){ .tokens = t->tokens + t->count - 1,
                             .token_count = 1 + drafts,
                             .first_position = t->count - 1,
                             .sample = true,
                             .sampling = t->sampling,
                             .sample_rows = drafts > 0 ? drafts + 1 : 0,
                             .tokens_out = t->choices,
                             .token_out = t->choices[drafts],
                             .history = t->tokens,
                             .prompt_count = 1 };
}

static void book(text *t, uint32_t right)
{
    memcpy(t->tokens + t->count, t->choices, (right + 1) * sizeof *t->choices);
    t->count += right + 1;
    t->guess_count = 0;
}

/* The guesses of a text are what the draft model alone would say. */
static void check_guesses(const text *t, const fg_step_ask *ask)
{
    static uint32_t tokens[CONTEXT];
    memcpy(tokens, t->tokens, t->count * sizeof *tokens);
    for (uint32_t i = 0; i < ask->count_out; i++) {
        uint32_t want =
            fg_engine_sim_expected(tokens, t->count + i, VOCAB, UINT32_MAX, &t->sampling, 0).token;
        cr_assert_eq(ask->guesses_out[i], want, "guess %u behind %u tokens is %u instead of %u", i,
                     t->count, ask->guesses_out[i], want);
        tokens[t->count + i] = want;
    }
}

static void ask_one(bench *b, text *t, uint32_t place, uint32_t wanted, uint32_t catch_up,
                    fg_step *step, fg_step_ask *ask)
{
    *ask = (fg_step_ask){ .place = place, .wanted = wanted, .guesses_out = t->guesses };
    *step = (fg_step){
        .seqs = &t->item, .seq_count = 1, .asks = ask, .ask_count = 1, .catch_up_max = catch_up
    };
    fg_drafter_round(b->drafter, step);
}

/* Rounds of any sequences in any places, with any number of right guesses; texts end, places change hands, blocks are too
 * few now and then. */
static void play(uint32_t block_count, fg_rng *rng, uint64_t *given_out)
{
    static text texts[PLACES];
    static bench b;
    open_bench(&b, block_count);
    for (uint32_t i = 0; i < PLACES; i++) {
        draw_text(&texts[i], 1 + (uint32_t)fg_rng_below(rng, 200), rng);
    }
    for (uint32_t round = 0; round < 150; round++) {
        fg_step_seq items[PLACES];
        fg_step_ask asks[PLACES];
        uint32_t right[PLACES], count = 0;
        fg_step step = { .seqs = items,
                         .asks = asks,
                         .catch_up_max = (uint32_t)fg_rng_below(rng, 120) };
        for (uint32_t i = 0; i < PLACES; i++) {
            text *t = &texts[i];
            if (fg_rng_below(rng, 40) == 0 || t->count + 2 * WANTED_MAX + 2 > CONTEXT) {
                draw_text(t, 1 + (uint32_t)fg_rng_below(rng, 300), rng);
            }
            right[i] = (uint32_t)fg_rng_below(rng, t->guess_count + 1u);
            choose(t, right[i], rng);
            if (fg_rng_below(rng, 4) > 0) {
                items[count] = t->item;
                asks[count] = (fg_step_ask){ .item = count,
                                             .place = i,
                                             .wanted = 1 + (uint32_t)fg_rng_below(rng, WANTED_MAX),
                                             .guesses_out = t->guesses };
                count++;
            }
        }
        step.seq_count = step.ask_count = count;
        uint64_t taken = fg_mem_count();
        fg_drafter_round(b.drafter, &step);
        cr_assert_eq(fg_mem_count(), taken, "a round takes no memory");
        cr_assert(step.drafted_out.caught <= step.catch_up_max);
        for (uint32_t i = 0; i < PLACES; i++) {
            book(&texts[i], right[i]);
        }
        for (uint32_t i = 0; i < count; i++) {
            check_guesses(&texts[asks[i].place], &asks[i]);
            cr_assert(asks[i].count_out == 0 || asks[i].count_out == asks[i].wanted ||
                      block_count < 300);
            texts[asks[i].place].guess_count = asks[i].count_out;
            *given_out += asks[i].count_out;
        }
        fg_pool_stats stats;
        fg_drafter_check(b.drafter, &stats);
        cr_assert(stats.held <= block_count);
    }
    cr_assert(b.tokens_most <= FG_DRAFTER_CHUNK, "%u tokens in a step", b.tokens_most);
    close_bench(&b);
}

Test(drafter, guesses_are_what_the_draft_model_says_of_the_text_as_it_is_now)
{
    static const uint32_t blocks[] = { 1, 5, 20, 60, 150, PLACES * CONTEXT / BLOCK };
    fg_rng rng = { .state = test_seed("drafter") };
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        uint64_t given = 0;
        play(blocks[i], &rng, &given);
        cr_assert(given > 0 || blocks[i] < 20, "%u blocks: nothing was ever guessed", blocks[i]);
    }
}

Test(drafter, a_long_text_is_caught_up_with_in_pieces)
{
    static bench b;
    static text t;
    fg_step step;
    fg_step_ask ask;
    fg_rng rng = { .state = 5 };
    open_bench(&b, 300);
    draw_text(&t, 300, &rng);
    for (uint32_t round = 0; round < 4; round++) {
        choose(&t, 0, &rng);
        ask_one(&b, &t, 2, 3, 90, &step, &ask);
        book(&t, 0);
        bool caught_up = round == 3; /* 90 a time, of 304 */
        cr_assert_eq(ask.count_out, caught_up ? 3u : 0u, "round %u: %u guesses", round,
                     ask.count_out);
        cr_assert_eq(step.drafted_out.caught, caught_up ? 33u : 90u, "round %u: %u tokens", round,
                     step.drafted_out.caught);
        cr_assert(caught_up || ask.known_out == 90 * (round + 1));
    }
    check_guesses(&t, &ask);
    cr_assert_eq(step.drafted_out.steps, 3u);
    cr_assert_eq(step.drafted_out.rows, 3u);
    cr_assert(step.drafted_out.ns > step.drafted_out.catch_ns && step.drafted_out.catch_ns > 1000);
    close_bench(&b);
}

/* The next turn of a talk begins with the one before. */
Test(drafter, what_a_place_knows_already_is_not_computed_again)
{
    static bench b;
    static text t;
    fg_step step;
    fg_step_ask ask;
    fg_rng rng = { .state = 6 };
    open_bench(&b, 300);
    draw_text(&t, 200, &rng);
    choose(&t, 0, &rng);
    ask_one(&b, &t, 0, 2, 1000, &step, &ask);
    cr_assert_eq(step.drafted_out.caught, 200u);
    book(&t, 0);
    t.count += 40; /* tokens that follow without having been asked about */
    choose(&t, 0, &rng);
    ask_one(&b, &t, 0, 2, 1000, &step, &ask);
    cr_assert_eq(step.drafted_out.caught, 40u, "%u", step.drafted_out.caught);
    cr_assert_eq(ask.count_out, 2u);
    close_bench(&b);
}

Test(drafter, blocks_come_from_those_who_were_not_asked_for_longest)
{
    static bench b;
    static text texts[3];
    fg_step step;
    fg_step_ask ask;
    fg_pool_stats stats;
    fg_rng rng = { .state = 7 };
    open_bench(&b, 30); /* 120 tokens: two of these */
    for (uint32_t i = 0; i < 3; i++) {
        draw_text(&texts[i], 50, &rng);
        choose(&texts[i], 0, &rng);
        ask_one(&b, &texts[i], i, 1, 100, &step, &ask);
        cr_assert_eq(ask.count_out, 1u, "text %u", i);
        book(&texts[i], 0);
        fg_drafter_check(b.drafter, &stats);
        cr_assert_eq(stats.held, (i == 0 ? 1 : 2) * fg_kv_blocks_for(51, BLOCK));
    }
    choose(&texts[1], 0, &rng);
    ask_one(&b, &texts[1], 1, 1, 100, &step, &ask);
    cr_assert_eq(step.drafted_out.caught, 0u, "the second is still there");
    choose(&texts[0], 0, &rng);
    ask_one(&b, &texts[0], 0, 1, 100, &step, &ask);
    cr_assert(step.drafted_out.caught > 40, "the first had to go");
    close_bench(&b);
}

/* No guesses, and nothing of the place is lost or kept that should not be. */
Test(drafter, there_is_nothing_to_say_where_there_is_no_room)
{
    static bench b;
    static text t;
    fg_step step;
    fg_step_ask ask;
    fg_pool_stats stats;
    fg_rng rng = { .state = 8 };
    open_bench(&b, 300);
    draw_text(&t, CONTEXT - 6, &rng);
    choose(&t, 0, &rng);
    ask_one(&b, &t, 0, 5, 1000, &step, &ask); /* to the end of the context, just */
    cr_assert_eq(ask.count_out, 5u);
    ask_one(&b, &t, 1, 6, 1000, &step, &ask);
    cr_assert_eq(ask.count_out, 0u);
    t.item.broken_out = true;
    ask_one(&b, &t, 1, 1, 1000, &step, &ask);
    cr_assert_eq(ask.count_out, 0u, "nothing was chosen");
    fg_drafter_check(b.drafter, &stats);
    cr_assert_eq(stats.held, fg_kv_blocks_for(CONTEXT - 1, BLOCK), "%u", stats.held);
    close_bench(&b);
}

/* Of two models one may have tokens that the other lacks. */
Test(drafter, what_the_other_model_does_not_know_is_neither_told_nor_asked)
{
    enum { FEWER = VOCAB - 50 };
    static const struct {
        const char *name;
        bool in_text, as_bias, as_end, is_told; /* where a token stands that only one of them has */
    } cases[] = { { "nowhere", false, false, false, true },
                  { "in the text", true, false, false, false },
                  { "as a wish", false, true, false, false },
                  { "as an end", false, false, true, false } };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        static bench b;
        static text t;
        fg_step step;
        fg_step_ask ask;
        fg_rng rng = { .state = 10 + c };
        const fg_bias bias = { .id = FEWER, .bias = 1.0f };
        const uint32_t end = FEWER;
        const fg_shape shape = { .biases = &bias,
                                 .bias_count = cases[c].as_bias,
                                 .ends = &end,
                                 .end_count = cases[c].as_end };
        uint32_t told = 0, high = 0;
        open_bench_of(&b, 300, FEWER);
        for (uint32_t turn = 0; turn < 40; turn++) {
            draw_text(&t, 9, &rng);
            for (uint32_t i = 0; i < t.count; i++) {
                t.tokens[i] %= FEWER;
            }
            t.tokens[4] = cases[c].in_text ? FEWER : t.tokens[4];
            choose(&t, 0, &rng);
            t.choices[0] %= FEWER;
            t.item.token_out = t.choices[0];
            t.item.shape = &shape;
            ask_one(&b, &t, 0, 4, 1000, &step, &ask);
            told += ask.count_out;
            for (uint32_t i = 0; i < ask.count_out; i++) {
                high += ask.guesses_out[i] >= FEWER;
            }
        }
        cr_assert_eq(told > 0, cases[c].is_told, "%s: %u guesses", cases[c].name, told);
        cr_assert(told < 160 && high == 0, "%s: %u guesses, %u of them unknown", cases[c].name,
                  told, high);
        close_bench(&b);
    }
}

static bool create_once(void *ctx)
{
    fg_drafter *drafter;
    if (fg_drafter_create(ctx, &drafter, NULL) != FG_OK) {
        return false;
    }
    fg_drafter_destroy(drafter);
    return true;
}

Test(drafter, it_can_fail_at_each_allocation)
{
    fg_drafter_options options = { .place_count = PLACES,
                                   .context_max = CONTEXT,
                                   .block_size = BLOCK,
                                   .block_count = 20,
                                   .vocab_size = VOCAB,
                                   .run = run };
    cr_assert(fg_fault_each(create_once, &options) >= 7);
}

Test(drafter, sizes_of_nothing_are_refused)
{
    const fg_drafter_options good = { .place_count = 1,
                                      .context_max = 2,
                                      .block_size = 1,
                                      .block_count = 1,
                                      .vocab_size = 1,
                                      .run = run };
    for (int i = 0; i < 5; i++) {
        fg_drafter_options bad = good;
        uint32_t *sizes[] = { &bad.place_count, &bad.context_max, &bad.block_size, &bad.block_count,
                              &bad.vocab_size };
        fg_drafter *drafter;
        *sizes[i] = i == 1;
        cr_assert_eq(fg_drafter_create(&bad, &drafter, NULL), FG_BAD_INPUT, "size %d", i);
    }
}

/* What an engine checks before it computes anything. */
Test(drafter, an_engine_refuses_asks_that_it_cannot_answer)
{
    static bench b;
    static text t;
    fg_error err = { 0 };
    fg_rng rng = { .state = 9 };
    uint32_t blocks[8] = { 0, 1, 2, 3, 4, 5, 6, 7 };
    open_bench(&b, 300);
    fg_engine_sim_options options = { .layout = b.layout,
                                      .arena = b.arena,
                                      .block_count = 300,
                                      .limits = { 64, PLACES, CONTEXT },
                                      .vocab_size = VOCAB,
                                      .eos_token = UINT32_MAX,
                                      .drafter = b.drafter };
    static const struct {
        const char *name, *says;
        bool none, blind, unsampled, nowhere;
        uint32_t item, place, wanted;
    } cases[] = {
        { .name = "there is no draft model", .says = "there is none", .none = true, .wanted = 1 },
        { .name = "no such item", .says = "no item", .item = 1, .wanted = 1 },
        { .name = "an item that chooses nothing",
          .says = "no item",
          .unsampled = true,
          .wanted = 1 },
        { .name = "an item without a history", .says = "no item", .blind = true, .wanted = 1 },
        { .name = "no such place", .says = "place", .place = PLACES, .wanted = 1 },
        { .name = "no guess", .says = "wants 0", .wanted = 0 },
        { .name = "too many", .says = "wants 9", .wanted = 9 },
        { .name = "no array", .says = "no array", .nowhere = true, .wanted = 1 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fg_engine *engine;
        options.drafter = cases[i].none ? NULL : b.drafter;
        cr_assert_eq(fg_engine_open_sim(&options, &engine, &err), FG_OK);
        draw_text(&t, 1, &rng);
        choose(&t, 0, &rng);
        t.item.block_ids = blocks;
        t.item.block_count = 8;
        t.item.sample = !cases[i].unsampled;
        t.item.history = cases[i].blind ? NULL : t.tokens;
        fg_step_ask ask = { .item = cases[i].item,
                            .place = cases[i].place,
                            .wanted = cases[i].wanted,
                            .guesses_out = cases[i].nowhere ? NULL : t.guesses };
        fg_step step = { .seqs = &t.item, .seq_count = 1, .asks = &ask, .ask_count = 1 };
        cr_assert_eq(fg_engine_begin(engine, &step, &err), FG_BAD_INPUT, "%s", cases[i].name);
        cr_assert(strstr(err.text, cases[i].says) != NULL, "%s: %s", cases[i].name, err.text);
        fg_engine_close(engine);
    }
    close_bench(&b);
}
