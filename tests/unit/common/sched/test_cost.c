#include "common/sched/cost.h"

#include <math.h>
#include <string.h>

#include "common/base/rng.h"
#include "tests/support/test.h"

static bool near(double got, double want, double share)
{
    return fabs(got - want) <= share * want;
}

static bool is_sane(const fg_cost *cost)
{
    bool sane = isfinite(cost->copy_bytes_per_ns) && cost->copy_bytes_per_ns >= 0;
    for (int i = 0; i < FG_COST_TERMS; i++) {
        sane = sane && isfinite(cost->weights[i]) && cost->weights[i] >= 0;
        for (int j = 0; j < FG_COST_TERMS; j++) {
            sane = sane && isfinite(cost->covariance[i][j]);
        }
    }
    return sane;
}

/* A machine that takes this long, give or take `noise`. */
typedef struct machine {
    double weights[FG_COST_TERMS];
    double noise;
    fg_rng rng;
} machine;

static fg_cost_step draw_step(machine *m)
{
    fg_cost_step step = { .decode_rows = (uint32_t)fg_rng_below(&m->rng, 33) };
    if (fg_rng_below(&m->rng, 2) == 0) {
        step.prefill_tokens = 1 + (uint32_t)fg_rng_below(&m->rng, 512);
        step.kv_tokens =
            fg_cost_chunk_kv((uint32_t)fg_rng_below(&m->rng, 3000), step.prefill_tokens);
    }
    for (uint32_t i = 0; i < step.decode_rows; i++) {
        step.kv_tokens += 1 + fg_rng_below(&m->rng, 4000);
    }
    step.decode_rows += step.prefill_tokens + step.decode_rows == 0;
    return step;
}

static uint64_t time_of(machine *m, const fg_cost_step *step)
{
    double exact = m->weights[0] + m->weights[1] * step->prefill_tokens +
                   m->weights[2] * step->decode_rows + m->weights[3] * (double)step->kv_tokens;
    double unit = (double)fg_rng_below(&m->rng, 20001) / 10000 - 1;
    return (uint64_t)(exact * (1 + m->noise * unit));
}

static void teach(fg_cost *cost, machine *m, int steps)
{
    for (int i = 0; i < steps; i++) {
        fg_cost_step step = draw_step(m);
        fg_cost_learn(cost, &step, time_of(m, &step));
        cr_assert(is_sane(cost), "after %d steps", i);
    }
}

static void knows(const fg_cost *cost, machine *m, double share, const char *name)
{
    double noise = m->noise;
    m->noise = 0;
    for (int i = 0; i < 200; i++) {
        fg_cost_step step = draw_step(m);
        double got = fg_cost_predict(cost, &step), want = (double)time_of(m, &step);
        cr_assert(near(got, want, share), "%s: %g instead of %g", name, got, want);
    }
    m->noise = noise;
}

static const struct {
    const char *name;
    double weights[FG_COST_TERMS];
    double noise, share;
} machines[] = {
    { "small model, CPU", { 2e5, 1.5e5, 2e5, 60 }, 0, 0.001 },
    { "small model, CPU, noisy", { 2e5, 1.5e5, 2e5, 60 }, 0.1, 0.05 },
    { "large model, GPU", { 8e6, 4e4, 3e4, 5 }, 0.05, 0.05 },
    { "stand-in: nothing but a base", { 1e4, 0, 0, 0 }, 0.05, 0.05 },
    { "no base", { 0, 1e5, 1e5, 0 }, 0.05, 0.05 },
    { "very slow", { 1e9, 1e9, 1e9, 1e5 }, 0.05, 0.05 },
    { "very fast", { 1e3, 10, 10, 0.01 }, 0.05, 0.1 },
};

Test(cost, fit_recovers_known_coefficients)
{
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
        fg_cost cost;
        machine m = { .noise = machines[i].noise, .rng = { 11 } };
        memcpy(m.weights, machines[i].weights, sizeof m.weights);
        fg_cost_init(&cost, 1 << 20);
        teach(&cost, &m, 2000);
        knows(&cost, &m, machines[i].share, machines[i].name);
        for (int w = 0; w < FG_COST_TERMS && m.noise == 0; w++) {
            cr_assert(near(cost.weights[w], m.weights[w], 0.01), "%s: weight %d is %g",
                      machines[i].name, w, cost.weights[w]);
        }
    }
}

Test(cost, a_few_steps_are_enough)
{
    fg_cost cost;
    machine m = { { 2e5, 1.5e5, 2e5, 60 }, 0.05, { 5 } };
    fg_cost_init(&cost, 1 << 20);
    teach(&cost, &m, 40);
    knows(&cost, &m, 0.2, "after 40 steps");
}

Test(cost, the_first_guess_makes_small_chunks)
{
    fg_cost cost;
    fg_cost_step rest = { .decode_rows = 4, .kv_tokens = 4000 };
    fg_cost_init(&cost, 1 << 20);
    cr_assert(fg_cost_chunk(&cost, &rest, 50000000, 512) <= 16);
}

Test(cost, follows_a_machine_that_changes)
{
    fg_cost cost;
    machine m = { { 2e5, 1.5e5, 2e5, 60 }, 0.05, { 5 } };
    fg_cost_init(&cost, 1 << 20);
    teach(&cost, &m, 1000);
    for (int w = 0; w < FG_COST_TERMS; w++) {
        m.weights[w] *= 3;
    }
    teach(&cost, &m, 3000);
    knows(&cost, &m, 0.1, "three times slower");
    for (int w = 0; w < FG_COST_TERMS; w++) {
        m.weights[w] /= 3;
    }
    teach(&cost, &m, 3000);
    knows(&cost, &m, 0.1, "fast again");
}

Test(cost, an_outlier_teaches_nothing_and_a_new_rule_is_learned)
{
    fg_cost cost;
    machine m = { { 2e5, 1.5e5, 2e5, 60 }, 0.05, { 5 } };
    fg_cost_init(&cost, 1 << 20);
    teach(&cost, &m, 300);
    for (int i = 0; i < 50; i++) {
        fg_cost before = cost;
        fg_cost_step step = draw_step(&m);
        fg_cost_learn(&cost, &step, 100 * time_of(&m, &step));
        cr_assert(memcmp(before.weights, cost.weights, sizeof cost.weights) == 0);
        teach(&cost, &m, 3);
    }
    knows(&cost, &m, 0.1, "after outliers");
    for (int w = 0; w < FG_COST_TERMS; w++) {
        m.weights[w] *= 100;
    }
    teach(&cost, &m, 200);
    knows(&cost, &m, 0.2, "a hundred times slower from now on");
}

/* While everybody only decodes, nothing is heard of prompts; what was known of them must not drift. */
Test(cost, a_term_that_is_not_seen_keeps_its_value)
{
    fg_cost cost;
    machine m = { { 2e5, 1.5e5, 2e5, 60 }, 0.05, { 5 } };
    fg_cost_init(&cost, 1 << 20);
    teach(&cost, &m, 500);
    for (uint32_t i = 0; i < 200000; i++) {
        fg_cost_step step = { .decode_rows = 8, .kv_tokens = 8000 + i % 4000 };
        fg_cost_learn(&cost, &step, time_of(&m, &step));
    }
    cr_assert(is_sane(&cost));
    cr_assert(near(cost.weights[1], m.weights[1], 0.3), "a prompt token is %g now",
              cost.weights[1]);
    teach(&cost, &m, 100);
    knows(&cost, &m, 0.15, "prompts again");
}

Test(cost, nothing_makes_it_lose_its_mind)
{
    static const uint64_t times[] = { 0, 1, 1000, 1000000000, UINT64_MAX };
    static const uint32_t counts[] = { 0, 1, 512, UINT32_MAX };
    static const uint64_t slots[] = { 0, 1, 1000000, UINT64_MAX };
    fg_cost cost, again;
    fg_rng rng = { 3 };
    fg_cost_init(&cost, UINT64_MAX);
    fg_cost_init(&again, UINT64_MAX);
    for (int i = 0; i < 50000; i++) {
        fg_cost_step step = { .prefill_tokens = counts[fg_rng_below(&rng, 4)],
                              .decode_rows = counts[fg_rng_below(&rng, 4)],
                              .kv_tokens = slots[fg_rng_below(&rng, 4)] };
        uint64_t took = times[fg_rng_below(&rng, 5)];
        fg_cost_learn(&cost, &step, took);
        fg_cost_learn(&again, &step, took);
        fg_cost_learn_copy(&cost, slots[fg_rng_below(&rng, 4)], took);
        cr_assert(is_sane(&cost), "after %d", i);
        double predicted = fg_cost_predict(&cost, &step);
        cr_assert(isfinite(predicted) && predicted >= 0);
        uint32_t most = counts[fg_rng_below(&rng, 4)];
        uint32_t chunk = fg_cost_chunk(&cost, &step, took, most);
        cr_assert(chunk >= 1 && (chunk <= most || most == 0));
        chunk = fg_cost_chunk_at(&cost, &step, most, took, most);
        cr_assert(chunk >= 1 && (chunk <= most || most == 0));
        fg_cost_swap_is_cheaper(&cost, counts[i % 4], counts[i / 4 % 4]);
    }
    cr_assert(memcmp(cost.weights, again.weights, sizeof cost.weights) == 0,
              "equal steps, equal fit");
}

Test(cost, steps_without_rows_and_copies_without_bytes_teach_nothing)
{
    fg_cost cost, before;
    fg_cost_init(&cost, 1 << 20);
    before = cost;
    fg_cost_learn(&cost, &(fg_cost_step){ .kv_tokens = 7 }, 1000);
    fg_cost_learn_copy(&cost, 0, 1000);
    cr_assert(memcmp(&before, &cost, sizeof cost) == 0);
}

Test(cost, the_chunk_is_the_largest_within_the_target)
{
    fg_cost cost;
    fg_rng rng = { 9 };
    for (int i = 0; i < 2000; i++) {
        fg_cost_init(&cost, 1);
        for (int w = 0; w < FG_COST_TERMS; w++) {
            cost.weights[w] = (double)fg_rng_below(&rng, w == 3 ? 100 : 100000);
        }
        fg_cost_step rest = { .prefill_tokens = (uint32_t)fg_rng_below(&rng, 100),
                              .decode_rows = (uint32_t)fg_rng_below(&rng, 100),
                              .kv_tokens = fg_rng_below(&rng, 100000) };
        uint64_t target = fg_rng_below(&rng, 100000000);
        uint32_t most = 1 + (uint32_t)fg_rng_below(&rng, 1000);
        uint32_t position = (uint32_t)fg_rng_below(&rng, 5000);
        for (int at = 0; at < 2; at++) {
            uint32_t chunk = at ? fg_cost_chunk_at(&cost, &rest, position, target, most)
                                : fg_cost_chunk(&cost, &rest, target, most);
            cr_assert(chunk >= 1 && chunk <= most);
            for (uint32_t extra = 0; extra < 2; extra++) {
                fg_cost_step step = rest;
                step.prefill_tokens += chunk + extra;
                step.kv_tokens += at ? fg_cost_chunk_kv(position, chunk + extra) : 0;
                bool within = fg_cost_predict(&cost, &step) <= (double)target;
                cr_assert(extra ? !within || chunk == most : within || chunk == 1,
                          "chunk %u + %u of %u", chunk, extra, most);
            }
        }
    }
}

static double of_rows(const fg_cost *cost, uint32_t rows)
{
    fg_cost_step one = { .decode_rows = 1 };
    return fg_cost_rows_at_least(cost, &one, rows - 1, 0);
}

/* While all steps had one row, nothing says that another one costs anything; then it is soon known. */
Test(cost, what_more_rows_take_at_least)
{
    fg_cost cost;
    fg_cost_init(&cost, 1 << 16);
    fg_rng rng = { 7 };
    for (uint32_t i = 0; i < 500; i++) {
        fg_cost_learn(&cost, &(fg_cost_step){ .decode_rows = 1, .kv_tokens = 100 + i }, 25000000);
    }
    cr_assert(near(of_rows(&cost, 1), 25000000, 0.1), "%g", of_rows(&cost, 1));
    cr_assert(of_rows(&cost, 9) < 1.3 * of_rows(&cost, 1), "%g", of_rows(&cost, 9));
    for (uint32_t i = 0; i < 6; i++) {
        uint32_t rows = 1 + (uint32_t)fg_rng_below(&rng, 9);
        fg_cost_step step = { .decode_rows = rows, .kv_tokens = 600 * rows };
        fg_cost_learn(&cost, &step, 20500000 + 4500000 * rows);
    }
    cr_assert(near(of_rows(&cost, 12), 20500000 + 4500000 * 12, 0.15), "%g", of_rows(&cost, 12));
    fg_cost_step one = { .decode_rows = 1 };
    cr_assert(fg_cost_rows_at_least(&cost, &one, 11, 1000000) >= of_rows(&cost, 12));
}

/* Nine rows take two tiles of eight: twice the time of eight, however well a line fits the others. */
Test(cost, a_number_of_rows_is_known_by_itself)
{
    fg_cost cost;
    fg_cost_init(&cost, 1 << 16);
    for (uint32_t round = 0; round < 40; round++) {
        for (uint32_t rows = 1; rows <= 9; rows++) {
            uint64_t took = rows == 9 ? 20000000 : 9000000 + 125000 * rows;
            fg_cost_learn(&cost, &(fg_cost_step){ .decode_rows = rows }, took);
        }
    }
    cr_assert(near(of_rows(&cost, 8), 10000000, 0.1), "%g", of_rows(&cost, 8));
    cr_assert(near(of_rows(&cost, 9), 20000000, 0.1), "%g", of_rows(&cost, 9));
    for (uint32_t round = 0; round < 2100; round++) { /* long ago */
        fg_cost_learn(&cost, &(fg_cost_step){ .decode_rows = 8 }, 10000000);
    }
    cr_assert(of_rows(&cost, 9) < 14000000, "worth another try: %g", of_rows(&cost, 9));
}

Test(cost, copies_are_averaged_by_time)
{
    fg_cost cost;
    fg_cost_init(&cost, 1 << 20);
    fg_cost_learn_copy(&cost, 4000, 1000);
    cr_assert(near(cost.copy_bytes_per_ns, 4, 1e-9), "the first one is taken as it is");
    fg_cost_learn_copy(&cost, 1u << 30, 0);
    cr_assert(cost.copy_bytes_per_ns < 5, "one that took no time is not believed");
    for (int i = 0; i < 100; i++) {
        fg_cost_learn_copy(&cost, 1u << 20, 1u << 19);
    }
    cr_assert(near(cost.copy_bytes_per_ns, 2, 0.01));
}

Test(cost, swaps_what_is_dearer_to_compute)
{
    fg_cost cost;
    fg_cost_init(&cost, 1000000);
    cost.weights[1] = 1e5;
    cost.weights[3] = 0;
    cr_assert(fg_cost_swap_is_cheaper(&cost, 4, 1000), "unknown, and worth a try");
    cost.copy_bytes_per_ns = 0.5; /* 4 MB out and in: 16 ms, 160 tokens */
    cr_assert(!fg_cost_swap_is_cheaper(&cost, 4, 159));
    cr_assert(fg_cost_swap_is_cheaper(&cost, 4, 161));
    cr_assert(!fg_cost_swap_is_cheaper(&cost, 4, 0), "all in the cache");
    cost.weights[3] = 1e3; /* and now what they attend to: 100 tokens, 5050 slots */
    cr_assert(fg_cost_swap_is_cheaper(&cost, 4, 120));
}

/* Steps that are all alike leave the fit free to trade its terms against each other; bounding them at 0
 * one after the other once made the prediction climb with every step, until chunks were one token. */
Test(cost, steps_that_are_alike_do_not_make_it_climb)
{
    fg_cost cost;
    fg_cost_init(&cost, 368640);
    fg_cost_learn(&cost, &(fg_cost_step){ 64, 0, 64 * 65 / 2 }, 237000000);
    for (uint32_t i = 0; i < 7; i++) {
        fg_cost_learn(&cost, &(fg_cost_step){ 0, 1, 65 + i }, 24000000);
    }
    fg_cost_learn(&cost, &(fg_cost_step){ 32, 0, 32 * 33 / 2 }, 188000000);
    for (uint32_t i = 0; i < 32; i++) {
        fg_cost_learn(&cost, &(fg_cost_step){ 1, 1, 34 + 2 * i }, 26000000 + i % 5 * 2000000);
    }
    for (uint32_t i = 0; i < 2000; i++) {
        fg_cost_step step = { 1, 2, 100 + i % 300 };
        fg_cost_learn(&cost, &step, 28000000 + i % 7 * 2000000);
        cr_assert(fg_cost_predict(&cost, &step) < 60e6, "step %u of 28 to 40 ms: %.0f ms predicted",
                  i, fg_cost_predict(&cost, &step) / 1e6);
    }
}

/* A hand-over takes 2 ms and so much for each block: what another block adds is found whatever else it
 * takes, and one length alone tells nothing. */
Test(cost, learns_what_a_block_more_adds_to_a_hand_over)
{
    const double block_bytes = 400000, guessed = block_bytes / 2;
    fg_cost cost;
    fg_cost_init(&cost, (uint64_t)block_bytes);
    cr_assert(near(fg_cost_push_block(&cost), guessed, 1e-9));
    for (uint32_t i = 0; i < 400; i++) {
        uint32_t blocks = 1 + i % 30;
        fg_cost_learn_push(&cost, blocks, 2000000 + blocks * 60000ull + i % 3 * 100000);
    }
    cr_assert(near(fg_cost_push_block(&cost), 60000, 0.05), "%.0f", fg_cost_push_block(&cost));
    cost.weights[0] = 600000;
    cr_assert(!fg_cost_push_is_dearer(&cost, 9));
    cr_assert(fg_cost_push_is_dearer(&cost, 11));
    for (uint32_t i = 0; i < 2000; i++) {
        fg_cost_learn_push(&cost, 5, 3000000);
    }
    cr_assert(isfinite(fg_cost_push_block(&cost)) && fg_cost_push_block(&cost) > 0);
    /* Nonsense is believed within bounds. */
    for (uint32_t i = 0; i < 500; i++) {
        fg_cost_learn_push(&cost, i % 2, i % 2 ? UINT64_MAX : 0);
    }
    cr_assert(near(fg_cost_push_block(&cost), 8 * guessed, 1e-9));
    for (uint32_t i = 0; i < 2000; i++) {
        fg_cost_learn_push(&cost, i % 2 ? UINT32_MAX : 0, i % 2 ? 0 : 1000);
    }
    cr_assert(near(fg_cost_push_block(&cost), guessed / 8, 1e-9));
}
