#include "router/speed.h"

#include <math.h>

#include "common/base/rng.h"
#include "tests/support/test.h"

static bool near(double got, double want, double share)
{
    return fabs(got - want) <= share * want;
}

static bool is_sound(const fg_speed *s)
{
    bool sound = isfinite(s->correction) && s->correction >= 0.25 && s->correction <= 16 &&
                 isfinite(s->restore_ns_per_block) && s->restore_ns_per_block > 0;
    for (int i = 0; i < FG_SPEED_TERMS; i++) {
        sound = sound && isfinite(s->prefill[i]) && s->prefill[i] > 0 && isfinite(s->step[i]) &&
                s->step[i] > 0 && isfinite(s->push[i]) && s->push[i] > 0;
    }
    return sound;
}

static const fg_speed_claim truth = { .prefill_ns_base = 5e6,
                                      .prefill_ns_per_token = 60e3,
                                      .prefill_ns_per_kv = 4,
                                      .step_ns_base = 12e6,
                                      .step_ns_per_row = 3e5,
                                      .push_ns_per_block = 2e5 };

static fg_speed machine(void)
{
    fg_speed speed;
    fg_speed_init(&speed, &truth);
    return speed;
}

/* Random prompts of a machine, `factor` times slower than it says, seen as they are. */
static void teach(fg_speed *speed, const fg_speed *real, fg_rng *rng, int count)
{
    for (int i = 0; i < count; i++) {
        fg_speed_first first = { .position = (uint32_t)fg_rng_below(rng, 4000),
                                 .tokens = 1 + (uint32_t)fg_rng_below(rng, 8000) };
        double exact = fg_speed_prefill_ns(real, first.position, first.tokens);
        exact *= 0.95 + (double)fg_rng_below(rng, 1000) / 10000;
        first.compute_ns = first.seen_ns = (uint64_t)exact;
        first.predicted_ns = (uint64_t)(speed->correction *
                                        fg_speed_prefill_ns(speed, first.position, first.tokens));
        fg_speed_learn_first(speed, &first);
        uint32_t rows = 1 + (uint32_t)fg_rng_below(rng, 32);
        uint64_t kv = rows * fg_rng_below(rng, 4000);
        fg_speed_learn_step(speed, rows, kv, (uint64_t)fg_speed_step_ns(real, rows, kv));
        uint32_t blocks = 1 + (uint32_t)fg_rng_below(rng, 200);
        fg_speed_learn_push(speed, blocks, 33, 1e9,
                            (uint64_t)fg_speed_exposed_ns(real, blocks, 33, 1e9));
    }
}

Test(speed, believes_a_sane_claim)
{
    fg_speed s = machine();
    cr_assert(near(fg_speed_prefill_ns(&s, 0, 1000), 5e6 + 60e6 + 4 * 500500.0, 1e-9));
    cr_assert(near(fg_speed_prefill_ns(&s, 100, 2), 5e6 + 120e3 + 4 * 203.0, 1e-9));
    cr_assert_eq(fg_speed_prefill_ns(&s, 100, 0), 0.0);
    cr_assert(near(fg_speed_step_ns(&s, 10, 1000), 12e6 + 3e6 + 4000, 1e-9));
    cr_assert(!fg_speed_is_proven(&s));
}

static const struct {
    const char *name;
    double value;
} claims[] = {
    { "nothing", 0 },        { "below zero", -1e9 },         { "no number", NAN },
    { "endless", INFINITY }, { "endless below", -INFINITY }, { "next to nothing", 1e-300 },
    { "absurd", 1e300 }
};

Test(speed, cuts_absurd_claims)
{
    for (size_t i = 0; i < sizeof claims / sizeof *claims; i++) {
        double v = claims[i].value;
        fg_speed_claim claim = { v, v, v, v, v, v };
        fg_speed s;
        fg_speed_init(&s, &claim);
        cr_assert(is_sound(&s), "%s", claims[i].name);
        double ns = fg_speed_prefill_ns(&s, 0, 1000);
        cr_assert(ns >= 2e5 && ns <= 1e13, "%s: %g", claims[i].name, ns);
    }
    fg_speed unknown, zeros;
    fg_speed_claim zero = { 0 };
    fg_speed_init(&unknown, NULL);
    fg_speed_init(&zeros, &zero);
    cr_assert_eq(fg_speed_prefill_ns(&zeros, 0, 1000), fg_speed_prefill_ns(&unknown, 0, 1000),
                 "zero is no claim");
}

Test(speed, exposes_only_what_computing_does_not_cover)
{
    fg_speed s = machine();
    double base = s.push[0];
    static const struct {
        const char *name;
        uint32_t blocks, last;
        double compute_ns, want_blocks;
    } cases[] = { { "all hidden but the last chunk", 100, 32, 1e9, 32 },
                  { "fewer than a chunk", 5, 32, 1e9, 5 },
                  { "nothing to hide behind", 100, 32, 0, 100 },
                  { "half hidden", 100, 32, 50 * 2e5, 50 },
                  { "longer than its computing", 1000, 32, 100 * 2e5, 900 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double got = fg_speed_exposed_ns(&s, cases[i].blocks, cases[i].last, cases[i].compute_ns);
        cr_assert(near(got, base + cases[i].want_blocks * 2e5, 1e-9), "%s: %g", cases[i].name, got);
    }
    cr_assert_eq(fg_speed_exposed_ns(&s, 0, 32, 0), 0.0);
}

static const struct {
    const char *name;
    double factor; /* of the truth, in what was claimed */
} starts[] = { { "right from the start", 1 },
               { "claimed ten times faster", 0.1 },
               { "claimed ten times slower", 10 },
               { "claimed a thousand times faster", 0.001 } };

Test(speed, comes_to_know_a_machine)
{
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        double f = starts[i].factor;
        fg_speed_claim claim = { truth.prefill_ns_base * f,   truth.prefill_ns_per_token * f,
                                 truth.prefill_ns_per_kv * f, truth.step_ns_base * f,
                                 truth.step_ns_per_row * f,   truth.push_ns_per_block * f };
        fg_speed s, real = machine();
        fg_speed_init(&s, &claim);
        fg_rng rng = { 11 + i };
        teach(&s, &real, &rng, 12);
        double ratio = fg_speed_prefill_ns(&s, 0, 4000) / fg_speed_prefill_ns(&real, 0, 4000);
        cr_assert(ratio > 0.4 && ratio < 2.5, "%s: %g after a dozen", starts[i].name, ratio);
        teach(&s, &real, &rng, 1500);
        cr_assert(is_sound(&s) && fg_speed_is_proven(&s));
        static const uint32_t lengths[] = { 200, 1000, 8000 };
        for (int k = 0; k < 3; k++) {
            ratio = s.correction * fg_speed_prefill_ns(&s, 0, lengths[k]) /
                    fg_speed_prefill_ns(&real, 0, lengths[k]);
            cr_assert(ratio > 0.7 && ratio < 1.4, "%s: %u tokens: %g", starts[i].name, lengths[k],
                      ratio);
        }
        ratio = fg_speed_step_ns(&s, 16, 32000) / fg_speed_step_ns(&real, 16, 32000);
        cr_assert(ratio > 0.85 && ratio < 1.15, "%s: step %g", starts[i].name, ratio);
        ratio = fg_speed_exposed_ns(&s, 20, 33, 1e9) / fg_speed_exposed_ns(&real, 20, 33, 1e9);
        /* Nearly all pushes show a whole chunk, so base and blocks are hard to tell apart. */
        cr_assert(ratio > 0.6 && ratio < 1.6, "%s: push %g", starts[i].name, ratio);
    }
}

Test(speed, one_outlier_moves_it_little)
{
    fg_speed s = machine(), real = machine();
    fg_rng rng = { 5 };
    teach(&s, &real, &rng, 200);
    double before = fg_speed_prefill_ns(&s, 0, 1000), step = fg_speed_step_ns(&s, 8, 1000);
    fg_speed_first stall = { .tokens = 1000, .compute_ns = UINT64_MAX, .seen_ns = UINT64_MAX };
    fg_speed_learn_first(&s, &stall);
    fg_speed_learn_step(&s, 8, 1000, UINT64_MAX);
    fg_speed_learn_push(&s, 10, 32, 0, UINT64_MAX);
    cr_assert(fg_speed_prefill_ns(&s, 0, 1000) < 1.35 * before);
    cr_assert(fg_speed_step_ns(&s, 8, 1000) < 1.35 * step);
    fg_speed_first blink = { .tokens = 1000, .compute_ns = 1 };
    fg_speed_learn_first(&s, &blink);
    fg_speed_learn_first(&s, &blink);
    cr_assert(fg_speed_prefill_ns(&s, 0, 1000) > before / 1.35);
    cr_assert(is_sound(&s));
}

Test(speed, follows_a_machine_that_has_become_slower)
{
    fg_speed s = machine(), real = machine();
    fg_rng rng = { 6 };
    teach(&s, &real, &rng, 500);
    for (int i = 0; i < FG_SPEED_TERMS; i++) {
        real.prefill[i] *= 5;
    }
    teach(&s, &real, &rng, 60);
    double ratio = fg_speed_prefill_ns(&s, 0, 4000) / fg_speed_prefill_ns(&real, 0, 4000);
    cr_assert(ratio > 0.7 && ratio < 1.4, "%g", ratio);
}

/* What is short in a long prompt's time is not blamed for it. */
Test(speed, moves_the_term_that_matters)
{
    fg_speed s = machine();
    s.prefills = 100;
    double real = 4 * fg_speed_prefill_ns(&s, 0, 8000);
    for (int i = 0; i < 60; i++) {
        fg_speed_first first = { .tokens = 8000, .compute_ns = (uint64_t)real };
        fg_speed_learn_first(&s, &first);
    }
    cr_assert(near(fg_speed_prefill_ns(&s, 0, 8000), real, 0.05));
    cr_assert(s.prefill[0] < 1.5 * truth.prefill_ns_base, "%g", s.prefill[0]);
}

Test(speed, stays_within_what_a_machine_can_be)
{
    static const uint64_t ends[] = { 1, UINT64_MAX };
    for (int end = 0; end < 2; end++) {
        fg_speed s = machine();
        for (int i = 0; i < 20000; i++) {
            fg_speed_learn_first(&s, &(fg_speed_first){ .tokens = 100, .compute_ns = ends[end] });
            fg_speed_learn_step(&s, 4, 100, ends[end]);
            fg_speed_learn_push(&s, 4, 32, 0, ends[end]);
        }
        cr_assert(is_sound(&s));
        double ns = fg_speed_prefill_ns(&s, 0, 100);
        cr_assert(ns >= 20000 && ns <= 2e11, "%g", ns);
        fg_speed real = machine();
        fg_rng rng = { 8 };
        teach(&s, &real, &rng, 300);
        double ratio = fg_speed_prefill_ns(&s, 0, 4000) / fg_speed_prefill_ns(&real, 0, 4000);
        cr_assert(ratio > 0.5 && ratio < 2, "%g", ratio);
    }
}

Test(speed, a_report_is_believed_as_far_as_it_fits_what_was_seen)
{
    fg_speed s = machine();
    /* It says that computing takes no time at all; the router waits a second for each thousand. */
    for (int i = 0; i < 100; i++) {
        fg_speed_first lie = { .tokens = 1000, .compute_ns = 0, .seen_ns = 1000000000 };
        lie.predicted_ns = (uint64_t)(s.correction * fg_speed_prefill_ns(&s, 0, 1000));
        fg_speed_learn_first(&s, &lie);
    }
    double ns = s.correction * fg_speed_prefill_ns(&s, 0, 1000);
    cr_assert(ns > 0.6e9 && ns < 1.6e9, "%g", ns);
    /* Behind others, only its own part of the time is surely its own. */
    fg_speed queued = machine();
    fg_speed_first first = {
        .tokens = 1000, .ahead_tokens = 9000, .compute_ns = 66000000, .seen_ns = 660000000
    };
    double before = fg_speed_prefill_ns(&queued, 0, 1000);
    fg_speed_learn_first(&queued, &first);
    cr_assert(near(fg_speed_prefill_ns(&queued, 0, 1000), before, 0.05));
    /* It cannot have computed for longer than the router waited. */
    fg_speed slow = machine();
    first = (fg_speed_first){ .tokens = 1000, .compute_ns = UINT64_MAX, .seen_ns = 66000000 };
    fg_speed_learn_first(&slow, &first);
    cr_assert(near(fg_speed_prefill_ns(&slow, 0, 1000), 66e6, 0.05));
}

Test(speed, nothing_seen_teaches_nothing)
{
    fg_speed s = machine(), before = s;
    fg_speed_learn_first(&s, &(fg_speed_first){ .tokens = 0, .compute_ns = 1000000 });
    fg_speed_learn_first(&s, &(fg_speed_first){ .tokens = 1000 });
    fg_speed_learn_first(&s, &(fg_speed_first){ .seen_ns = 1000 });
    fg_speed_learn_first(&s, &(fg_speed_first){ .predicted_ns = 1000 });
    fg_speed_learn_step(&s, 0, 0, 1000000);
    fg_speed_learn_step(&s, 4, 0, 0);
    fg_speed_learn_push(&s, 0, 32, 0, 1000000);
    fg_speed_learn_push(&s, 4, 32, 0, 0);
    for (int i = 0; i < FG_SPEED_TERMS; i++) {
        cr_assert(s.prefill[i] == before.prefill[i] && s.step[i] == before.step[i] &&
                  s.push[i] == before.push[i]);
    }
    cr_assert(s.correction == before.correction && s.prefills == 0 && s.steps == 0 &&
              s.pushes == 0);
}

Test(speed, stays_sound_whatever_is_seen)
{
    static const uint64_t odd[] = { 0, 1, 1000, 1000000000, UINT64_MAX / 2, UINT64_MAX };
    for (uint64_t seed = 1; seed <= 40; seed++) {
        fg_rng rng = { seed };
        fg_speed s = machine();
        for (int i = 0; i < 400; i++) {
            fg_speed_first first = { .position = (uint32_t)fg_rng_next(&rng),
                                     .tokens =
                                         (uint32_t)(fg_rng_next(&rng) >> fg_rng_below(&rng, 64)),
                                     .ahead_tokens = odd[fg_rng_below(&rng, 6)],
                                     .queue_ns = odd[fg_rng_below(&rng, 6)],
                                     .compute_ns = odd[fg_rng_below(&rng, 6)],
                                     .seen_ns = odd[fg_rng_below(&rng, 6)],
                                     .predicted_ns = odd[fg_rng_below(&rng, 6)] };
            fg_speed_learn_first(&s, &first);
            fg_speed_learn_step(&s, (uint32_t)odd[fg_rng_below(&rng, 6)],
                                odd[fg_rng_below(&rng, 6)], odd[fg_rng_below(&rng, 6)]);
            fg_speed_learn_push(&s, (uint32_t)odd[fg_rng_below(&rng, 6)], 32,
                                (double)odd[fg_rng_below(&rng, 6)], odd[fg_rng_below(&rng, 6)]);
            cr_assert(is_sound(&s), "seed %llu, step %d", (unsigned long long)seed, i);
        }
    }
}

/* A worker with a long line: a hundred prompts are predicted before the first of them is seen. */
Test(speed, what_was_predicted_long_ago_is_corrected_once)
{
    fg_speed s = machine();
    for (int round = 0; round < 5; round++) {
        double then = s.correction;
        for (int i = 0; i < 100; i++) {
            fg_speed_learn_first(&s, &(fg_speed_first){ .seen_ns = 20000000,
                                                        .predicted_ns = (uint64_t)(1e7 * then),
                                                        .correction = then });
        }
        cr_assert(near(s.correction, 2, 0.01), "%d: %g", round, s.correction);
    }
}
