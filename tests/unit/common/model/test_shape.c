#include "common/model/shape.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/fault.h"
#include "common/base/rng.h"
#include "tests/support/test.h"

enum { VOCAB = 200, HISTORY_MAX = 300 };

static float random_unit(fg_rng *rng)
{
    return (float)(fg_rng_next(rng) >> 40) * 0x1p-24f;
}

static const float minus_infinity = -(float)INFINITY;

/* Eight tokens, of which the prompt has 1 and 2, the answer 2, 2 and 3. */
static const float plain[8] = { 1, 2, -2, 3, 0, -0.5f, 7, 8 };
static const uint32_t so_far[] = { 1, 2, 2, 2, 3 };
static const fg_bias biases[] = { { 4, 2.5f }, { 6, -100 }, { 4, 0.5f } };
static const uint32_t ends[] = { 7, 0 };

static const struct shaping {
    const char *name;
    fg_shape shape;
    uint64_t allowed; /* 0: no mask */
    float want[8];
} shapings[] = {
    { "nothing", { .repetition = 1 }, 0, { 1, 2, -2, 3, 0, -0.5f, 7, 8 } },
    { "a bias, a doubled one twice",
      { .biases = biases, .bias_count = 3 },
      0,
      { 1, 2, -2, 3, 3, -0.5f, -93, 8 } },
    { "presence: the answer alone",
      { .presence = 0.5f },
      0,
      { 1, 2, -2.5f, 2.5f, 0, -0.5f, 7, 8 } },
    { "frequency: each time", { .frequency = 0.5f }, 0, { 1, 2, -3, 2.5f, 0, -0.5f, 7, 8 } },
    { "presence below 0 favours", { .presence = -1 }, 0, { 1, 2, -1, 4, 0, -0.5f, 7, 8 } },
    { "repetition: the prompt too", { .repetition = 2 }, 0, { 1, 1, -4, 1.5f, 0, -0.5f, 7, 8 } },
    { "repetition before the others",
      { .repetition = 2, .frequency = 1, .presence = 0.25f },
      0,
      { 1, 1, -6.25f, 0.25f, 0, -0.5f, 7, 8 } },
    { "two of four: no end",
      { .min_tokens = 4, .ends = ends, .end_count = 2 },
      0,
      { -INFINITY, 2, -2, 3, 0, -0.5f, 7, -INFINITY } },
    { "three of three: ends",
      { .min_tokens = 3, .ends = ends, .end_count = 2 },
      0,
      { 1, 2, -2, 3, 0, -0.5f, 7, 8 } },
    { "a mask",
      { .repetition = 0 },
      0x15,
      { 1, -INFINITY, -2, -INFINITY, 0, -INFINITY, -INFINITY, -INFINITY } },
    { "a mask after a bias",
      { .biases = biases, .bias_count = 1 },
      0x30,
      { -INFINITY, -INFINITY, -INFINITY, -INFINITY, 2.5f, -0.5f, -INFINITY, -INFINITY } },
};

Test(shape, each_wish_changes_what_it_says)
{
    fg_shaper *shaper = fg_shaper_create(8);
    for (size_t i = 0; i < sizeof shapings / sizeof shapings[0]; i++) {
        const struct shaping *it = &shapings[i];
        for (uint32_t cut = 0; cut <= 5; cut++) { /* wherever the history's pieces meet */
            fg_history history = { .tokens = so_far,
                                   .count = cut,
                                   .more = so_far + cut,
                                   .more_count = 5 - cut,
                                   .prompt_count = 2 };
            const float *row = fg_shaper_apply(shaper, plain, &it->shape, &history,
                                               it->allowed == 0 ? NULL : &it->allowed);
            for (uint32_t id = 0; id < 8; id++) {
                cr_assert(row[id] == it->want[id], "%s: token %u is %g, not %g", it->name, id,
                          (double)row[id], (double)it->want[id]);
            }
        }
    }
    fg_shaper_destroy(shaper);
}

/* Straight from the formulas, counting anew for every token. */
static float reference(const float *logits, uint32_t id, const fg_shape *shape,
                       const uint32_t *tokens, uint32_t count, uint32_t prompt_count,
                       const uint64_t *allowed)
{
    float logit = logits[id];
    uint32_t said = 0, seen = 0;
    for (uint32_t i = 0; i < shape->bias_count; i++) {
        logit = shape->biases[i].id == id ? logit + shape->biases[i].bias : logit;
    }
    for (uint32_t i = 0; i < shape->end_count; i++) {
        bool early = count - prompt_count < shape->min_tokens;
        logit = early && shape->ends[i] == id ? minus_infinity : logit;
    }
    for (uint32_t i = 0; i < count; i++) {
        seen += tokens[i] == id;
        said += tokens[i] == id && i >= prompt_count;
    }
    if (seen > 0 && shape->repetition != 0) {
        logit = logit > 0 ? logit / shape->repetition : logit * shape->repetition;
    }
    if (said > 0) {
        logit = logit - shape->frequency * (float)said;
        logit = logit - shape->presence;
    }
    return allowed != NULL && (allowed[id / 64] >> id % 64 & 1) == 0 ? minus_infinity : logit;
}

Test(shape, is_what_the_formulas_say_and_forgets_the_call_before)
{
    fg_rng rng = { 11 };
    fg_shaper *shaper = fg_shaper_create(VOCAB);
    for (uint32_t turn = 0; turn < 300; turn++) {
        float logits[VOCAB];
        uint32_t tokens[HISTORY_MAX];
        fg_bias some[3];
        uint64_t allowed[(VOCAB + 63) / 64];
        for (uint32_t i = 0; i < VOCAB; i++) {
            logits[i] = 8 * random_unit(&rng) - 4;
        }
        uint32_t count = (uint32_t)fg_rng_below(&rng, HISTORY_MAX + 1);
        for (uint32_t i = 0; i < count; i++) {
            tokens[i] = (uint32_t)fg_rng_below(&rng, 1 + fg_rng_below(&rng, VOCAB));
        }
        for (uint32_t i = 0; i < 3; i++) {
            some[i] = (fg_bias){ (uint32_t)fg_rng_below(&rng, VOCAB), random_unit(&rng) };
        }
        for (uint32_t i = 0; i < sizeof allowed / sizeof allowed[0]; i++) {
            allowed[i] = fg_rng_below(&rng, 3) == 0 ? UINT64_MAX : fg_rng_next(&rng);
        }
        fg_shape shape = { .biases = some,
                           .bias_count = (uint32_t)fg_rng_below(&rng, 4),
                           .repetition = fg_rng_below(&rng, 2) == 0 ? 0 : 0.5f + random_unit(&rng),
                           .frequency = fg_rng_below(&rng, 2) == 0 ? 0 : random_unit(&rng) - 0.5f,
                           .presence = fg_rng_below(&rng, 2) == 0 ? 0 : random_unit(&rng) - 0.5f,
                           .min_tokens = (uint32_t)fg_rng_below(&rng, HISTORY_MAX),
                           .ends = ends,
                           .end_count = 2 };
        uint32_t cut = (uint32_t)fg_rng_below(&rng, count + 1);
        uint32_t prompt_count = (uint32_t)fg_rng_below(&rng, count + 1);
        fg_history history = { .tokens = tokens,
                               .count = cut,
                               .more = tokens + cut,
                               .more_count = count - cut,
                               .prompt_count = prompt_count };
        const uint64_t *mask = fg_rng_below(&rng, 2) == 0 ? NULL : allowed;
        const float *row = fg_shaper_apply(shaper, logits, &shape, &history, mask);
        for (uint32_t id = 0; id < VOCAB; id++) {
            float want = reference(logits, id, &shape, tokens, count, prompt_count, mask);
            cr_assert(row[id] == want, "turn %u, token %u: %g, not %g", turn, id, (double)row[id],
                      (double)want);
        }
    }
    fg_shaper_destroy(shaper);
}

Test(shape, logprobs_are_those_of_the_plain_softmax)
{
    fg_rng rng = { 12 };
    float logits[VOCAB];
    for (uint32_t turn = 0; turn < 100; turn++) {
        for (uint32_t i = 0; i < VOCAB; i++) {
            /* Some are equal. */
            logits[i] = (float)fg_rng_below(&rng, 60) / 4 - 7;
        }
        double total = 0;
        for (uint32_t i = 0; i < VOCAB; i++) {
            total += exp((double)logits[i]);
        }
        uint32_t chosen = (uint32_t)fg_rng_below(&rng, VOCAB), count = turn % (FG_LOGPROBS_MAX + 1);
        fg_logprobs got;
        fg_logprobs_of(logits, VOCAB, chosen, count, &got);
        cr_assert(fabs((double)got.chosen - ((double)logits[chosen] - log(total))) < 2e-6);
        cr_assert_eq(got.count, count);
        bool taken[VOCAB] = { false };
        for (uint32_t k = 0; k < count; k++) {
            uint32_t best = 0;
            for (uint32_t i = 1; i < VOCAB; i++) {
                best = !taken[i] && (taken[best] || logits[i] > logits[best]) ? i : best;
            }
            taken[best] = true;
            cr_assert_eq(got.likely[k].id, best, "turn %u: number %u", turn, k);
            cr_assert(fabs((double)got.likely[k].logprob - ((double)logits[best] - log(total))) <
                      2e-6);
        }
    }
}

Test(shape, logprobs_of_a_short_or_broken_row_say_what_there_is)
{
    fg_logprobs got;
    const float few[] = { 0, (float)NAN, 0 };
    fg_logprobs_of((const float[]){ 0, 0 }, 2, 1, 5, &got);
    cr_assert(got.count == 2 && got.likely[0].id == 0 && got.likely[1].id == 1);
    cr_assert(fabs((double)got.chosen - log(0.5)) < 1e-6);
    fg_logprobs_of(few, 3, 0, 3, &got);
    cr_assert_eq(got.count, 2u, "NaN is no likely token");
}

static bool create_once(void *ctx)
{
    fg_shaper *shaper = fg_shaper_create(100);
    fg_shaper_destroy(shaper);
    return shaper != NULL;
}

Test(shape, create_survives_each_failed_allocation)
{
    cr_assert_eq(fg_fault_each(create_once, NULL), 4);
}
