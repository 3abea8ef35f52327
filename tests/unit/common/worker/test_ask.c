/* A draft model that is asked for guesses: nobody sees it (the rig compares every token with what the request alone would
 * have given), its KV is right whatever became of what it said, and it is asked no more where that does not pay. */
#include "common/base/rng.h"
#include "common/engine/drafter.h"
#include "common/kv/layout.h"
#include "tests/support/seed.h"
#include "tests/support/test.h"
#include "tests/unit/common/worker/rig.h"

#define FIXED .policies = { .draft = FG_DRAFT_FIXED, .draft_max = 4 }
#define PAYS  .policies = { .draft_max = 8 }

static const struct {
    const char *name;
    rig_options options;
} ways[] = {
    { "four each", { .blocks = 200, .block_size = 4, FIXED } },
    { "where it pays", { .blocks = 200, .block_size = 4, .draft_ns = 50000, PAYS } },
    { "by the formula",
      { .blocks = 200,
        .block_size = 4,
        .policies = { .draft = FG_DRAFT_ADAPTIVE, .draft_max = 8 } } },
    { "beside overlap", { .blocks = 200, .block_size = 4, .overlap = true, FIXED } },
    { "where it pays, beside overlap",
      { .blocks = 200, .block_size = 4, .overlap = true, .draft_ns = 50000, PAYS } },
    { "blocks of one", { .blocks = 800, .block_size = 1, FIXED } },
    { "few blocks of its own", { .blocks = 200, .block_size = 4, .draft_blocks = 30, FIXED } },
    { "hardly any", { .blocks = 200, .block_size = 4, .draft_blocks = 3, FIXED } },
    { "a short context", { .blocks = 200, .block_size = 4, .draft_context = 40, FIXED } },
    { "too few blocks", { .blocks = 40, .block_size = 4, FIXED } },
    { "too few, swapping",
      { .blocks = 40,
        .block_size = 4,
        .slots = 60,
        .overlap = true,
        .policies = { .draft = FG_DRAFT_FIXED, .draft_max = 8, .preemption = FG_PREEMPT_SWAP } } },
    { "the text is not looked up", { .blocks = 200, .block_size = 4, .draft_alone = true, FIXED } },
};

/* Eight requests in four places or eight; texts that repeat, so that both sources guess. */
static void send_all(rig *r, fg_rng *rng)
{
    for (uint32_t id = 1; id <= 8; id++) {
        uint32_t prompt[60];
        fg_wire_params params = rig_greedy(20 + (uint32_t)fg_rng_below(rng, 60));
        uint32_t count = 2 + (uint32_t)fg_rng_below(rng, 58);
        for (uint32_t j = 0; j < count; j++) {
            prompt[j] = (uint32_t)fg_rng_below(rng, r->options.vocab);
        }
        params.temperature = id % 2 == 0 ? 0.7f : 0.0f;
        params.seed = id;
        params.want_digests = id % 3 == 0;
        rig_send(r, id, prompt, count, &params);
    }
}

/* Steps to the end; the draft model's books are compared after each. */
static void run_checked(rig *r)
{
    fg_pool_stats stats;
    while (rig_step(r)) {
        fg_drafter_check(r->drafter, &stats);
        cr_assert(stats.held <= r->options.draft_blocks);
    }
}

Test(worker_ask, answers_are_what_they_are_without)
{
    uint64_t seed = test_seed("worker_ask");
    for (rig_drafts draft = RIG_DRAFT_RIGHT; draft <= RIG_DRAFT_MIXED; draft++) {
        for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
            static rig r;
            fg_rng rng = { .state = seed };
            rig_options options = ways[i].options;
            options.draft = draft;
            options.seqs = 4 + i % 2 * 4;
            options.vocab = i % 3 == 0 ? 3 : RIG_VOCAB;
            options.step_tokens = 128;
            rig_open(&r, &options);
            for (int turn = 0; turn < 3; turn++) { /* places change hands */
                send_all(&r, &rng);
                run_checked(&r);
            }
            fg_worker_stats stats = rig_stats(&r);
            for (uint32_t id = 1; id <= 8; id++) {
                cr_assert(r.requests[id].done, "%s", ways[i].name);
            }
            cr_assert(stats.model_accepted_tokens <= stats.model_drafted_tokens);
            /* With a cost it may never pay in what a seed makes. */
            bool may_be_idle = options.draft_blocks == 3 || options.draft_ns > 0;
            cr_assert(may_be_idle || stats.draft_steps > 0, "%s", ways[i].name);
            if (draft == RIG_DRAFT_RIGHT) {
                cr_assert_eq(stats.model_accepted_tokens, stats.model_drafted_tokens,
                             "%s: of %lu guesses %lu were right", ways[i].name,
                             (unsigned long)stats.model_drafted_tokens,
                             (unsigned long)stats.model_accepted_tokens);
            }
            cr_assert(draft != RIG_DRAFT_WRONG || stats.model_accepted_tokens == 0 ||
                          options.vocab == 3,
                      "%s", ways[i].name);
            rig_close(&r);
        }
    }
}

/* Five tokens come of a step: four that the draft model said, and the step's own. */
Test(worker_ask, a_good_draft_saves_four_steps_in_five)
{
    static rig r;
    rig_open(&r, &(rig_options){ .blocks = 200, .block_size = 4, .draft = RIG_DRAFT_RIGHT, FIXED });
    rig_ask(&r, 1, 0, 6, 101);
    rig_run(&r);
    fg_worker_stats stats = rig_stats(&r);
    cr_assert_eq(stats.steps, 22u, "the prompt, the first that is asked, twenty: %lu",
                 (unsigned long)stats.steps);
    cr_assert_eq(stats.model_accepted_tokens, 79u);
    rig_close(&r);
}

/* Of each step's guesses one is right: a step late is where a guess that was thrown away would show. */
Test(worker_ask, what_was_wrong_is_not_in_its_way)
{
    static rig r;
    fg_pool_stats pool;
    rig_open(&r, &(rig_options){ .blocks = 200, .block_size = 4, .draft = RIG_DRAFT_MIXED, FIXED });
    rig_ask(&r, 1, 0, 6, 200);
    run_checked(&r);
    fg_worker_stats stats = rig_stats(&r);
    double share = (double)stats.model_accepted_tokens / (double)stats.model_drafted_tokens;
    cr_assert(share > 0.3 && share < 0.7, "%.2f were right", share);
    fg_drafter_check(r.drafter, &pool);
    cr_assert(pool.held <= fg_kv_blocks_for(206, 4), "%u", pool.held);
    rig_close(&r);
}

static uint64_t time_of(rig_drafts draft, uint64_t draft_ns, fg_worker_stats *stats_out)
{
    static rig r;
    rig_open(&r, &(rig_options){ .blocks = 600,
                                 .block_size = 4,
                                 .draft = draft,
                                 .draft_ns = draft_ns,
                                 .draft_alone = true,
                                 PAYS });
    r.unchecked = true;
    for (int turn = 0; turn < 40; turn++) {
        for (uint64_t id = 1; id <= 4; id++) {
            rig_ask(&r, id, (uint32_t)(id * 7 + (uint64_t)turn), 6, 100);
        }
        rig_run(&r);
    }
    *stats_out = rig_stats(&r);
    rig_close(&r);
    return stats_out->busy_ns;
}

/* A row more costs a tenth of a step here, and a guess what the row says. */
Test(worker_ask, it_is_asked_where_that_pays)
{
    static const struct {
        const char *name;
        rig_drafts draft;
        uint64_t draft_ns;
        double least, most; /* of the time without it */
    } cases[] = {
        { "right and quick", RIG_DRAFT_RIGHT, 50000, 0, 0.6 },
        { "right, half as quick", RIG_DRAFT_RIGHT, 500000, 0, 0.9 },
        { "right, as slow as the model itself", RIG_DRAFT_RIGHT, 2000000, 0, 1.02 },
        { "wrong and quick", RIG_DRAFT_WRONG, 50000, 1, 1.03 },
        { "wrong and slow", RIG_DRAFT_WRONG, 1500000, 1, 1.05 },
        { "two of three right", RIG_DRAFT_MIXED, 50000, 0, 0.85 },
    };
    fg_worker_stats stats;
    double alone = (double)time_of(RIG_NO_DRAFT, 0, &stats);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double share = (double)time_of(cases[i].draft, cases[i].draft_ns, &stats) / alone;
        cr_assert(share >= cases[i].least && share <= cases[i].most,
                  "%s: %.3f of the time, %lu guesses, %lu right, %.3f s of the draft model",
                  cases[i].name, share, (unsigned long)stats.model_drafted_tokens,
                  (unsigned long)stats.model_accepted_tokens, (double)stats.draft_ns / 1e9);
    }
}

/* Places are given back, whatever ends a sequence, and when. */
Test(worker_ask, a_request_that_is_cancelled_in_such_a_step_leaves_nothing)
{
    for (uint32_t steps = 1; steps < 30; steps++) {
        static rig r;
        rig_open(&r, &(rig_options){ .blocks = 60,
                                     .block_size = 4,
                                     .overlap = steps % 2 == 0,
                                     .draft = RIG_DRAFT_MIXED,
                                     .seqs = 2,
                                     FIXED });
        rig_ask(&r, 1, 0, 6, 100);
        rig_ask(&r, 2, 1, 9, 40);
        for (uint32_t i = 0; i < steps; i++) {
            rig_step(&r);
        }
        rig_cancel(&r, 1);
        rig_ask(&r, 3, 5, 30, 20);
        run_checked(&r);
        cr_assert(r.requests[2].done && r.requests[3].done);
        rig_close(&r);
    }
}

/* A model that breaks down at a guess of the draft model's breaks nobody's answer. */
Test(worker_ask, a_model_that_breaks_down_at_a_guess_breaks_nobodys_answer)
{
    static rig r;
    rig_open(&r,
             &(rig_options){
                 .blocks = 60, .block_size = 4, .breaks_at = 60, .draft = RIG_DRAFT_RIGHT, FIXED });
    rig_request *fits = rig_ask(&r, 1, 0, 6, 54), *not = rig_ask(&r, 2, 1, 6, 55);
    rig_run(&r);
    cr_assert(fits->finish == FG_FINISH_LENGTH && fits->count == 60, "%u tokens", fits->count);
    cr_assert(not ->broken && not ->count == 60, "%u tokens", not ->count);
    rig_close(&r);
}
