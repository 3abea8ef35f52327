/* Guessed tokens in a worker's steps: nobody sees them (the rig compares every token with what the request alone would
 * have given), and what was computed in vain is given back. */
#include "common/kv/layout.h"
#include "tests/support/test.h"
#include "tests/unit/common/worker/rig.h"

#define FIXED  .draft = FG_DRAFT_FIXED
#define ADAPTS .draft = FG_DRAFT_ADAPTIVE

static const struct {
    const char *name;
    rig_options options;
} ways[] = {
    { "one token each", { .blocks = 200, .block_size = 4, .policies = { FIXED, .draft_max = 1 } } },
    { "eight", { .blocks = 200, .block_size = 4, .policies = { FIXED, .draft_max = 8 } } },
    { "adaptive", { .blocks = 200, .block_size = 4, .policies = { ADAPTS, .draft_max = 8 } } },
    { "where it pays", { .blocks = 200, .block_size = 4, .policies = { .draft_max = 8 } } },
    { "beside overlap",
      { .blocks = 200, .block_size = 4, .overlap = true, .policies = { FIXED, .draft_max = 5 } } },
    { "where it pays, beside overlap",
      { .blocks = 200, .block_size = 4, .overlap = true, .policies = { .draft_max = 5 } } },
    { "blocks of one",
      { .blocks = 800, .block_size = 1, .overlap = true, .policies = { FIXED, .draft_max = 7 } } },
    { "large blocks", { .blocks = 60, .block_size = 64, .policies = { FIXED, .draft_max = 8 } } },
    { "a pool that is too small",
      { .blocks = 30, .block_size = 4, .policies = { FIXED, .draft_max = 8 } } },
    { "too small, swapping",
      { .blocks = 30,
        .block_size = 4,
        .slots = 60,
        .overlap = true,
        .policies = { FIXED, .draft_max = 8, .preemption = FG_PREEMPT_SWAP } } },
    { "nobody evicted",
      { .blocks = 60,
        .block_size = 4,
        .policies = { FIXED, .draft_max = 8, .admission = FG_ADMIT_NO_EVICT } } },
    { "nobody evicted, with a tier",
      { .blocks = 34,
        .block_size = 4,
        .slots = 10,
        .overlap = true,
        .policies = { FIXED, .draft_max = 8, .admission = FG_ADMIT_NO_EVICT } } },
    { "a small budget",
      { .blocks = 200, .block_size = 4, .step_tokens = 8, .policies = { FIXED, .draft_max = 8 } } },
    { "small chunks",
      { .blocks = 200, .block_size = 4, .chunk = 3, .policies = { FIXED, .draft_max = 8 } } },
    { "no cache",
      { .blocks = 200, .block_size = 4, .no_cache = true, .policies = { FIXED, .draft_max = 8 } } },
    { "an end token now and then",
      { .blocks = 200, .block_size = 4, .eos = 1, .policies = { FIXED, .draft_max = 8 } } },
};

Test(worker_draft, answers_are_what_they_are_without)
{
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        static rig r;
        rig_options options = ways[i].options;
        options.vocab = 2;
        rig_open(&r, &options);
        for (uint32_t id = 1; id <= 8; id++) {
            uint32_t prompt[9];
            fg_wire_params params = rig_greedy(20 + 9 * id);
            for (uint32_t j = 0; j < 9; j++) {
                prompt[j] = (id >> j % 3 & 1) ^ (j & 1);
            }
            params.temperature = id % 2 == 0 ? 0.7f : 0.0f;
            params.seed = id;
            params.want_digests = id % 3 == 0;
            rig_send(&r, id, prompt, 2 + id % 7, &params);
        }
        rig_run(&r);
        fg_worker_stats stats = rig_stats(&r);
        for (uint32_t id = 1; id <= 8; id++) {
            const rig_request *q = &r.requests[id];
            cr_assert(q->done && (options.eos > 0 || q->count - q->prompt_count == 20 + 9 * id),
                      "%s: %u tokens", ways[i].name, q->count - q->prompt_count);
        }
        cr_assert(stats.accepted_tokens > 0, "%s: none was right", ways[i].name);
        cr_assert(stats.accepted_tokens < stats.drafted_tokens, "%s: none was wrong", ways[i].name);
        cr_assert(stats.drafts <= stats.drafted_tokens, "%s", ways[i].name);
        rig_close(&r);
    }
}

Test(worker_draft, nothing_is_guessed_where_that_is_off)
{
    static rig r;
    rig_open(&r, &(rig_options){ .blocks = 60, .block_size = 4, .vocab = 2 });
    rig_ask(&r, 1, 0, 6, 100);
    rig_run(&r);
    cr_assert_eq(rig_stats(&r).drafts, 0u);
    cr_assert_eq(rig_stats(&r).steps, 100u, "one for each token");
    rig_close(&r);
}

Test(worker_draft, several_tokens_of_a_step_are_told_at_once)
{
    static rig r;
    rig_open(
        &r, &(rig_options){
                .blocks = 60, .block_size = 4, .vocab = 2, .policies = { FIXED, .draft_max = 8 } });
    const rig_request *q = rig_ask(&r, 1, 0, 6, 150);
    rig_run_until_started(&r, 1);
    while (!q->done) {
        uint64_t heard = r.heard, before = q->count, right = rig_stats(&r).accepted_tokens;
        cr_assert(rig_step(&r));
        right = rig_stats(&r).accepted_tokens - right;
        cr_assert_eq(q->count - before, right + 1);
        cr_assert(r.heard - heard <= 3, "tokens, the end and a load: %lu messages",
                  (unsigned long)(r.heard - heard));
    }
    cr_assert(rig_stats(&r).steps < 140, "%lu", (unsigned long)rig_stats(&r).steps);
    rig_close(&r);
}

/* One with all that it may need set aside has as many blocks, held and promised together, after each step. */
Test(worker_draft, what_was_set_aside_for_it_stays_so)
{
    static rig r;
    rig_open(&r, &(rig_options){
                     .blocks = 40,
                     .block_size = 4,
                     .vocab = 2,
                     .no_cache = true,
                     .policies = { FIXED, .draft_max = 8, .admission = FG_ADMIT_NO_EVICT } });
    const rig_request *q = rig_ask(&r, 1, 0, 6, 94);
    rig_run_until_started(&r, 1);
    while (!q->done) {
        cr_assert_eq(rig_available(&r), 40u - 25u, "25 blocks are for 100 tokens");
        cr_assert(rig_step(&r));
    }
    cr_assert(rig_stats(&r).drafted_tokens > rig_stats(&r).accepted_tokens);
    rig_close(&r);
}

/* A guess may lead where the model's output is not a number, and the answer may never go there. */
Test(worker_draft, a_model_that_breaks_down_at_a_guess_breaks_nobodys_answer)
{
    for (uint32_t draft_max = 0; draft_max <= 8; draft_max += 4) {
        static rig r;
        rig_open(&r, &(rig_options){ .blocks = 60,
                                     .block_size = 4,
                                     .vocab = 2,
                                     .breaks_at = 60,
                                     .overlap = draft_max == 8,
                                     .policies = { FIXED, .draft_max = draft_max } });
        rig_request *fits = rig_ask(&r, 1, 0, 6, 54), *not = rig_ask(&r, 2, 1, 6, 55);
        rig_run(&r);
        cr_assert(fits->finish == FG_FINISH_LENGTH && fits->count == 60, "%u tokens", fits->count);
        cr_assert(not ->broken && not ->count == 60, "%u tokens", not ->count);
        cr_assert_eq(rig_stats(&r).broken, 1u);
        rig_close(&r);
    }
}

Test(worker_draft, a_request_that_is_cancelled_in_such_a_step_leaves_nothing)
{
    for (uint32_t steps = 1; steps < 30; steps++) {
        static rig r;
        rig_open(&r, &(rig_options){ .blocks = 60,
                                     .block_size = 4,
                                     .vocab = 2,
                                     .overlap = steps % 2 == 0,
                                     .policies = { FIXED, .draft_max = 8 } });
        rig_ask(&r, 1, 0, 6, 100);
        rig_ask(&r, 2, 1, 9, 40);
        for (uint32_t i = 0; i < steps; i++) {
            rig_step(&r);
        }
        rig_cancel(&r, 1);
        rig_run(&r);
        cr_assert(r.requests[2].done);
        rig_close(&r);
    }
}

/* What a lost worker had said is computed in few steps, and the rest as ever. */
static const struct {
    const char *name;
    uint32_t said, wrong_at; /* of the answer's 60, wrong from there on; UINT32_MAX: nowhere */
    uint32_t steps_most;
    rig_options options;
} again_cases[] = {
    { "all but nothing", 1, UINT32_MAX, 60, { .policies = { FIXED, .draft_max = 8 } } },
    { "half", 30, UINT32_MAX, 34, { .policies = { FIXED, .draft_max = 8 } } },
    { "all", 60, UINT32_MAX, 8, { .policies = { FIXED, .draft_max = 8 } } },
    { "where it pays", 60, UINT32_MAX, 30, { .policies = { .draft_max = 8 } } },
    { "adaptive", 60, UINT32_MAX, 8, { .policies = { ADAPTS, .draft_max = 8 } } },
    { "beside overlap",
      60,
      UINT32_MAX,
      25,
      { .overlap = true, .policies = { FIXED, .draft_max = 8 } } },
    { "two at a time", 60, UINT32_MAX, 31, { .policies = { FIXED, .draft_max = 1 } } },
    { "a wrong beginning", 60, 0, 60, { .policies = { FIXED, .draft_max = 8 } } },
    { "wrong half-way", 60, 30, 34, { .policies = { FIXED, .draft_max = 8 } } },
    { "a wrong end", 60, 59, 8, { .policies = { FIXED, .draft_max = 8 } } },
    { "guessing off", 60, UINT32_MAX, 60, { .policies = { FIXED } } },
};

Test(worker_draft, what_was_said_is_said_again_in_few_steps)
{
    for (size_t i = 0; i < sizeof again_cases / sizeof again_cases[0]; i++) {
        static rig r;
        const char *name = again_cases[i].name;
        rig_options options = again_cases[i].options;
        uint32_t answer[60];
        uint32_t prompt[5] = { 3, 1, 4, 1, 5 };
        fg_wire_params params = rig_greedy(60);
        params.want_digests = i % 2 == 0;
        options.blocks = 60;
        options.block_size = 4;
        options.vocab = 10000; /* hardly a token that could be guessed from the text */
        rig_open(&r, &options);
        rig_send(&r, 1, prompt, 5, &params);
        rig_alone(&r, &r.requests[1], answer, 60);
        rig_run(&r);
        rig_clear(&r);
        fg_worker_stats before = rig_stats(&r);
        for (uint32_t j = again_cases[i].wrong_at; j < 60; j++) {
            answer[j] ^= 1;
        }
        rig_send_said(&r, 1, prompt, 5, &params, answer, again_cases[i].said);
        rig_run(&r);
        fg_worker_stats stats = rig_stats(&r);
        uint64_t steps = stats.steps - before.steps;
        cr_assert(r.requests[1].done && r.requests[1].count == 65, "%s", name);
        cr_assert(steps <= again_cases[i].steps_most, "%s: %lu steps", name, (unsigned long)steps);
        if (again_cases[i].wrong_at < 60) {
            uint64_t vain = (stats.drafted_tokens - before.drafted_tokens) -
                            (stats.accepted_tokens - before.accepted_tokens);
            cr_assert(vain <= 16, "%s: %lu guesses in vain", name, (unsigned long)vain);
        }
        rig_close(&r);
    }
}
