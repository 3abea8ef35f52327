/* How many guesses a draft model is asked for. */
#include "common/sched/asking.h"

#include "tests/support/test.h"

enum { SEQS_MAX = 16 };

/* A model whose steps take base and row, and a draft model likewise; both have been seen. */
typedef struct speeds {
    double base, row, draft_base, draft_row, draft_token;
} speeds;

static void learn(fg_cost *target, fg_asking *asking, const speeds *s)
{
    fg_cost_init(target, 0);
    fg_asking_init(asking);
    for (int turn = 0; turn < 20; turn++) {
        for (uint32_t rows = 1; rows <= 72; rows++) {
            fg_cost_learn(target, &(fg_cost_step){ .decode_rows = rows, .kv_tokens = rows * 100 },
                          (uint64_t)(s->base + s->row * rows));
            fg_asking_did did = { .ns = (uint64_t)(s->draft_base + s->draft_row * rows),
                                  .steps = 1,
                                  .rows = rows };
            fg_asking_learn(asking, &did);
            did = (fg_asking_did){ .ns = (uint64_t)(s->draft_base + s->draft_token * rows),
                                   .caught = rows };
            did.catch_ns = did.ns;
            fg_asking_learn(asking, &did);
        }
    }
}

static void show(fg_asking *asking, fg_asking_record *record, uint32_t seen, uint32_t right)
{
    for (uint32_t i = 0; i < seen; i++) {
        fg_asking_note(asking, record, i < right);
    }
}

Test(asking, as_many_as_make_a_token_cheapest)
{
    static const struct {
        const char *name;
        speeds s;
        uint32_t seqs, right; /* of 64 guesses of each */
        uint32_t least, most; /* for each of them */
    } cases[] = {
        { "all right, and nearly for nothing", { 10e6, 1e5, 1e5, 1e4, 1e4 }, 1, 64, 7, 8 },
        { "all right, a tenth as slow", { 10e6, 1e5, 1e6, 1e4, 1e4 }, 1, 64, 7, 8 },
        { "all right, as slow as the model", { 10e6, 1e5, 10e6, 1e5, 1e4 }, 1, 64, 0, 0 },
        { "half, and nearly for nothing", { 10e6, 1e5, 1e5, 1e4, 1e4 }, 1, 32, 2, 5 },
        { "half, a tenth as slow", { 10e6, 1e5, 1e6, 1e4, 1e4 }, 1, 32, 1, 3 },
        { "half, a third as slow", { 10e6, 1e5, 3.3e6, 1e4, 1e4 }, 1, 32, 1, 1 },
        { "half, three fifths as slow", { 10e6, 1e5, 6e6, 1e4, 1e4 }, 1, 32, 0, 0 },
        { "none", { 10e6, 1e5, 1e5, 1e4, 1e4 }, 1, 0, 0, 0 },
        { "all right, rows dear", { 10e6, 9e6, 1e6, 1e4, 1e4 }, 1, 64, 0, 8 },
        { "half, rows dear", { 1e6, 9e6, 1e6, 1e4, 1e4 }, 1, 32, 0, 0 },
        { "eight at once", { 10e6, 1e5, 1e6, 1e5, 1e4 }, 8, 64, 7, 8 },
        { "sixteen: no more than are weighed", { 10e6, 1e4, 1e5, 1e3, 1e4 }, 16, 64, 4, 4 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fg_cost target;
        fg_asking asking;
        fg_asking_seq seqs[SEQS_MAX] = { 0 };
        learn(&target, &asking, &cases[i].s);
        asking.credit_ns = 0; /* no trials */
        for (uint32_t j = 0; j < cases[i].seqs; j++) {
            show(&asking, &seqs[j].record, 64, cases[i].right);
            seqs[j].limit = 8;
            seqs[j].slots = 100;
        }
        fg_asking_plan plan = fg_asking_choose(&asking, &target, seqs, cases[i].seqs);
        cr_assert(!plan.is_trial && plan.catch_up_max == 0, "%s", cases[i].name);
        for (uint32_t j = 0; j < cases[i].seqs; j++) {
            cr_assert(seqs[j].wanted >= cases[i].least && seqs[j].wanted <= cases[i].most,
                      "%s: sequence %u wants %u", cases[i].name, j, seqs[j].wanted);
        }
    }
}

Test(asking, who_is_right_more_often_gets_more)
{
    fg_cost target;
    fg_asking asking;
    fg_asking_seq seqs[3] = { { .limit = 8, .slots = 100 },
                              { .limit = 8, .slots = 100 },
                              { .limit = 2, .slots = 100 } };
    learn(&target, &asking, &(speeds){ 10e6, 1e5, 5e5, 1e4, 1e4 });
    asking.credit_ns = 0;
    show(&asking, &seqs[0].record, 64, 60);
    show(&asking, &seqs[1].record, 64, 20);
    show(&asking, &seqs[2].record, 64, 64);
    fg_asking_choose(&asking, &target, seqs, 3);
    cr_assert(seqs[0].wanted > seqs[1].wanted + 2, "%u and %u", seqs[0].wanted, seqs[1].wanted);
    cr_assert_eq(seqs[2].wanted, 2u, "no more than it can have");
    cr_assert_eq(fg_asking_choose(&asking, &target, seqs, 0).catch_up_max, 0u, "nobody is there");
}

Test(asking, odds_come_from_all_before_one_has_shown_any)
{
    fg_asking asking;
    fg_asking_record good = { 0 }, bad = { 0 }, fresh = { 0 };
    fg_asking_init(&asking);
    uint32_t first = fg_asking_odds(&asking, fresh);
    cr_assert(first > FG_ODDS_ONE / 2 && first < FG_ODDS_ONE * 7 / 10, "%u", first);
    show(&asking, &bad, 300, 0);
    cr_assert(fg_asking_odds(&asking, fresh) < FG_ODDS_ONE / 20);
    for (uint32_t i = 0; i < 64; i++) {
        fg_asking_note(&asking, &good, true);
    }
    cr_assert(fg_asking_odds(&asking, good) > FG_ODDS_ONE * 9 / 10);
    cr_assert(fg_asking_odds(&asking, bad) < FG_ODDS_ONE / 10);
    for (uint32_t i = 0; i < 5000; i++) {
        fg_asking_note(&asking, &good, true);
        cr_assert(fg_asking_odds(&asking, good) < FG_ODDS_ONE, "certain after %u", i);
    }
}

/* What a hundredth of the time allows, and whose turn it is. */
Test(asking, it_is_tried_now_and_then_where_it_does_not_pay)
{
    fg_cost target;
    fg_asking asking;
    uint32_t asked[4] = { 0 };
    double draft_ns = 0, step_ns = 0;
    fg_asking_record record = { 0 };
    learn(&target, &asking, &(speeds){ 10e6, 1e5, 5e6, 1e4, 1e4 });
    show(&asking, &record, 64, 0);
    asking.credit_ns = 0;
    for (int step = 0; step < 20000; step++) {
        fg_asking_seq seqs[4] = { 0 };
        for (int i = 0; i < 4; i++) {
            seqs[i] = (fg_asking_seq){ .record = record, .limit = 8, .slots = 100 };
        }
        fg_asking_plan plan = fg_asking_choose(&asking, &target, seqs, 4);
        fg_asking_did did = { .step_ns = 10400000, .was_trial = plan.is_trial };
        for (int i = 0; i < 4; i++) {
            cr_assert(seqs[i].wanted <= 1);
            asked[i] += seqs[i].wanted;
            did.ns += seqs[i].wanted * 5010000u;
            did.rows = did.steps += seqs[i].wanted;
        }
        draft_ns += (double)did.ns;
        step_ns += (double)did.step_ns;
        fg_asking_learn(&asking, &did);
    }
    cr_assert(draft_ns / step_ns > 0.008 && draft_ns / step_ns < 0.012, "%.4f", draft_ns / step_ns);
    for (int i = 0; i < 4; i++) {
        cr_assert(asked[i] > 60, "sequence %d was tried %u times", i, asked[i]);
    }
}

Test(asking, it_is_asked_again_when_that_begins_to_pay)
{
    fg_cost target;
    fg_asking asking;
    fg_asking_record record = { 0 };
    uint32_t step = 0, wanted = 0;
    learn(&target, &asking, &(speeds){ 10e6, 1e5, 5e5, 1e4, 1e4 });
    show(&asking, &record, 300, 0);
    asking.credit_ns = 0;
    for (; step < 5000 && wanted < 4; step++) {
        fg_asking_seq seq = { .record = record, .limit = 8, .slots = 100 };
        fg_asking_plan plan = fg_asking_choose(&asking, &target, &seq, 1);
        wanted = seq.wanted;
        fg_asking_did did = { .step_ns = 10100000, .was_trial = plan.is_trial };
        for (uint32_t i = 0; i < wanted; i++) {
            fg_asking_note(&asking, &record, true);
            did.ns += 510000;
            did.rows = ++did.steps;
        }
        fg_asking_learn(&asking, &did);
    }
    cr_assert(step < 500, "after %u steps", step);
}

/* Whoever is far behind is caught up with when his answer has gone on for long enough. */
Test(asking, catching_up_is_to_come_back)
{
    static const struct {
        const char *name;
        uint32_t behind, likely_left;
        bool caught_up;
    } cases[] = {
        { "near", FG_ASKING_NEAR, 1, true },
        { "a short prompt, a short answer", 100, 16, true },
        { "a long prompt, a short answer", 8000, 16, false },
        { "a long prompt, a long answer", 8000, 400, true },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fg_cost target;
        fg_asking asking;
        learn(&target, &asking, &(speeds){ 10e6, 1e5, 5e5, 1e4, 1e5 });
        asking.credit_ns = 0;
        fg_asking_seq seq = {
            .limit = 8, .slots = 100, .behind = cases[i].behind, .likely_left = cases[i].likely_left
        };
        show(&asking, &seq.record, 64, 50);
        fg_asking_plan plan = fg_asking_choose(&asking, &target, &seq, 1);
        cr_assert_eq(seq.wanted > 0, cases[i].caught_up, "%s", cases[i].name);
        bool far = cases[i].behind > FG_ASKING_NEAR && cases[i].caught_up;
        /* Half of a step's 10 ms, at 0.1 ms a token. */
        cr_assert(!far || (plan.catch_up_max > 30 && plan.catch_up_max < 60), "%s: %u tokens",
                  cases[i].name, plan.catch_up_max);
    }
}

/* What is saved for trials is enough for a long text in the end, a piece at a time and not one after the other. */
Test(asking, a_long_text_is_tried_in_the_end)
{
    fg_cost target;
    fg_asking asking;
    fg_asking_record record = { 0 };
    uint32_t behind = 3000, pieces = 0, first = 0, last = 0;
    learn(&target, &asking, &(speeds){ 10e6, 1e5, 5e5, 1e4, 1e5 });
    show(&asking, &record, 300, 0);
    asking.credit_ns = 0;
    for (uint32_t step = 1; step < 20000 && behind > FG_ASKING_NEAR; step++) {
        fg_asking_seq seq = {
            .record = record, .limit = 8, .slots = 100, .behind = behind, .likely_left = 16
        };
        fg_asking_plan plan = fg_asking_choose(&asking, &target, &seq, 1);
        fg_asking_did did = { .step_ns = 10100000, .was_trial = plan.is_trial };
        if (seq.wanted > 0) {
            did.caught = plan.catch_up_max < behind ? plan.catch_up_max : behind;
            did.ns = did.catch_ns = 500000 + did.caught * 100000ull;
            behind -= did.caught;
            first = first == 0 ? step : first;
            cr_assert(pieces == 0 || step - last >= 5, "after %u steps", step - last);
            last = step;
            pieces++;
        }
        fg_asking_learn(&asking, &did);
    }
    cr_assert(behind <= FG_ASKING_NEAR && pieces > 50, "%u pieces, %u behind", pieces, behind);
    cr_assert(first > 2500, "0.3 s at a hundredth of the time: after %u steps", first);
}
