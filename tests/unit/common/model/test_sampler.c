#include "common/model/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/fault.h"
#include "common/base/fmath.h"
#include "common/base/rng.h"
#include "tests/support/test.h"

enum { VOCAB_MAX = 49152 };

static float row[VOCAB_MAX];

static float random_unit(fg_rng *rng)
{
    return (float)(fg_rng_next(rng) >> 40) * 0x1p-24f;
}

/* Roughly the spread of a real row: a normal body and some likely tokens. */
static void fill_row(fg_rng *rng, uint32_t count, float spread)
{
    for (uint32_t i = 0; i < count; i++) {
        float sum = 0;
        for (int n = 0; n < 4; n++) {
            sum += random_unit(rng) - 0.5f;
        }
        row[i] = spread * sum;
    }
}

/* --- A plain reference: sorts everything, walks, keeps, then looks at every token's noise. ------- */

typedef struct entry {
    float score;
    uint32_t id;
} entry;

static int by_rank(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->score != y->score) {
        return x->score < y->score ? 1 : -1;
    }
    return (x->id > y->id) - (x->id < y->id);
}

static float reference_gumbel(uint64_t bits)
{
    float v = (float)(bits | 1) * 0x1p-64f;
    float e = v < 0.25f ? -fg_log1pf_core(-v, 0) : -fg_logf((float)(~bits | 1) * 0x1p-64f);
    return -fg_logf(e);
}

static entry ranked[VOCAB_MAX];

static uint32_t reference_pick(uint32_t count, const fg_sampling *s, uint32_t choice,
                               uint32_t position)
{
    float top = -(float)INFINITY;
    for (uint32_t i = 0; i < count; i++) {
        top = row[i] > top ? row[i] : top;
    }
    for (uint32_t i = 0; i < count; i++) {
        float score = (row[i] - top) / s->temperature;
        ranked[i] = (entry){ isnan(score) ? -(float)INFINITY : score + 0.0f, i };
    }
    /* The total is summed in rising id over what top-k left. */
    double sums[4] = { 0, 0, 0, 0 }, total, reached = 0;
    uint32_t kept = s->top_k > 0 && s->top_k < count ? s->top_k : count, seen = 0;
    static entry by_id[VOCAB_MAX];
    memcpy(by_id, ranked, count * sizeof *ranked);
    qsort(ranked, count, sizeof *ranked, by_rank);
    entry last = ranked[kept - 1];
    for (uint32_t i = 0; i < count; i++) {
        if (by_rank(&by_id[i], &last) <= 0) {
            sums[seen++ % 4] += (double)fg_expf(by_id[i].score);
        }
    }
    total = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    if (s->top_p < 1) {
        double target = (double)s->top_p * total;
        for (uint32_t i = 0; i < kept; i++) {
            reached += (double)fg_expf(ranked[i].score);
            if (reached >= target) {
                kept = i + 1;
            }
        }
    }
    uint32_t best = UINT32_MAX;
    float best_score = -(float)INFINITY;
    for (uint32_t i = 0; i < kept; i++) {
        if (s->min_p > 0 && i > 0 && !(ranked[i].score >= fg_logf(s->min_p))) {
            continue;
        }
        uint64_t bits = fg_rng_counter(s->seed, choice, position, ranked[i].id);
        float score = ranked[i].score + reference_gumbel(bits);
        if (score > best_score || (score == best_score && ranked[i].id < best)) {
            best = ranked[i].id;
            best_score = score;
        }
    }
    return best;
}

Test(sampler, equals_the_plain_reference)
{
    static const float temperatures[] = { 0.05f, 0.7f, 1.0f, 2.0f };
    static const float top_ps[] = { 1.0f, 0.95f, 0.5f, 0.01f, 0.999f };
    static const float min_ps[] = { 0.0f, 0.05f, 1.0f };
    static const uint32_t vocabs[] = { 1, 2, 31, 300, 4099, 9000 };
    fg_rng rng = { .state = 11 };
    for (uint32_t round = 0; round < 2000; round++) {
        uint32_t count = vocabs[fg_rng_below(&rng, 6)];
        fill_row(&rng, count, (float[]){ 0.0f, 1.0f, 8.0f, 40.0f }[fg_rng_below(&rng, 4)]);
        /* Equal logits, NaN and -inf in between. */
        for (uint32_t n = 0; n < count / 4; n++) {
            row[fg_rng_below(&rng, count)] = row[fg_rng_below(&rng, count)];
            if (round % 3 == 0 && n % 5 == 0) {
                row[1 + fg_rng_below(&rng, count - 1)] = n % 2 ? (float)NAN : -(float)INFINITY;
            }
        }
        fg_sampling s = { .temperature = temperatures[fg_rng_below(&rng, 4)],
                          .top_p = top_ps[fg_rng_below(&rng, 5)],
                          .min_p = min_ps[fg_rng_below(&rng, 3)],
                          .top_k =
                              (uint32_t)fg_rng_below(&rng, 3) * (uint32_t)fg_rng_below(&rng, 60),
                          .seed = fg_rng_next(&rng) };
        fg_sampler *sampler = fg_sampler_create(count);
        cr_assert_not_null(sampler);
        uint32_t got = fg_sampler_pick(sampler, row, &s, round % 3, round);
        uint32_t want = reference_pick(count, &s, round % 3, round);
        cr_assert_eq(
            got, want, "seed 11 round %u: %u instead of %u (vocab %u t %g k %u p %g min %g)", round,
            got, want, count, (double)s.temperature, s.top_k, (double)s.top_p, (double)s.min_p);
        fg_sampler_destroy(sampler);
    }
}

static const float nan_value = (float)NAN, inf = (float)INFINITY;

Test(sampler, greedy_takes_the_highest_and_the_lowest_id_of_equals)
{
    static const struct {
        const char *name;
        float logits[5];
        uint32_t want;
    } cases[] = {
        { "plain", { 1, 3, 2, 0, -1 }, 1 },
        { "tie", { 1, 3, 3, 3, 1 }, 1 },
        { "last", { 1, 2, 3, 4, 5 }, 4 },
        { "all negative", { -9, -8, -7, -8, -9 }, 2 },
        { "zeros of both signs", { -1, -0.0f, 0.0f, -1, -1 }, 1 },
        { "NaN is no winner", { NAN, 1, NAN, 2, NAN }, 3 },
        { "infinite", { 1, INFINITY, 2, INFINITY, 3 }, 1 },
        { "all -inf", { -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY }, 0 },
        { "all NaN", { NAN, NAN, NAN, NAN, NAN }, 0 },
        { "NaN, then -inf", { NAN, -INFINITY, NAN, -INFINITY, NAN }, 0 },
    };
    fg_sampler *sampler = fg_sampler_create(5);
    fg_sampling greedy = { .temperature = 0, .top_p = 1, .seed = 5 };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t got = fg_sampler_pick(sampler, cases[i].logits, &greedy, 0, 0);
        cr_assert_eq(got, cases[i].want, "%s: %u", cases[i].name, got);
    }
    fg_sampler_destroy(sampler);
}

Test(sampler, tiny_sets_are_greedy_whatever_the_seed)
{
    static const fg_sampling cases[] = {
        { .temperature = 1, .top_p = 1, .top_k = 1 }, { .temperature = 1, .top_p = 1e-6f },
        { .temperature = 1, .top_p = 1, .min_p = 1 }, { .temperature = 1e-30f, .top_p = 1 },
        { .temperature = 1e-45f, .top_p = 1 },
    };
    fg_rng rng = { .state = 3 };
    fg_sampler *sampler = fg_sampler_create(1000);
    for (uint32_t round = 0; round < 200; round++) {
        fill_row(&rng, 1000, 5.0f);
        fg_sampling s = cases[round % 5], greedy = { .temperature = 0, .top_p = 1 };
        s.seed = round;
        cr_assert_eq(fg_sampler_pick(sampler, row, &s, 0, round),
                     fg_sampler_pick(sampler, row, &greedy, 0, 0), "case %u", round % 5);
    }
    fg_sampler_destroy(sampler);
}

Test(sampler, impossible_tokens_are_never_chosen)
{
    fg_sampler *sampler = fg_sampler_create(64);
    for (uint32_t i = 0; i < 64; i++) {
        row[i] = i % 2 == 0 ? -inf : i % 4 == 1 ? nan_value : 0.0f;
    }
    for (uint32_t position = 0; position < 2000; position++) {
        fg_sampling s = { .temperature = 2,
                          .top_p = position % 2 ? 1.0f : 0.9999f,
                          .top_k = position % 3 ? 0 : 50,
                          .seed = 9 };
        cr_assert_eq(fg_sampler_pick(sampler, row, &s, 0, position) % 4, 3);
    }
    for (uint32_t i = 0; i < 64; i++) {
        row[i] = i % 2 == 0 ? -inf : nan_value;
    }
    cr_assert_eq(
        fg_sampler_pick(sampler, row, &(fg_sampling){ .temperature = 1, .top_p = 0.5f }, 0, 0), 0);
    row[40] = inf;
    row[30] = inf;
    cr_assert_eq(
        fg_sampler_pick(sampler, row, &(fg_sampling){ .temperature = 1, .top_p = 1 }, 0, 0), 30);
    fg_sampler_destroy(sampler);
}

Test(sampler, answers_depend_on_seed_choice_and_position_alone)
{
    fg_rng rng = { .state = 4 };
    fill_row(&rng, 300, 1.0f);
    fg_sampler *a = fg_sampler_create(300), *b = fg_sampler_create(300);
    fg_sampling s = { .temperature = 1, .top_p = 1, .seed = 77 };
    uint32_t differ_position = 0, differ_choice = 0, differ_seed = 0;
    for (uint32_t position = 0; position < 200; position++) {
        uint32_t first = fg_sampler_pick(a, row, &s, 0, position);
        cr_assert_eq(fg_sampler_pick(b, row, &s, 0, position), first);
        differ_position += fg_sampler_pick(a, row, &s, 0, position + 1) != first;
        differ_choice += fg_sampler_pick(a, row, &s, 1, position) != first;
        fg_sampling other = s;
        other.seed = 78;
        differ_seed += fg_sampler_pick(b, row, &other, 0, position) != first;
    }
    cr_assert(differ_position > 190 && differ_choice > 190 && differ_seed > 190);
    fg_sampler_destroy(a);
    fg_sampler_destroy(b);
}

/* Pearson's statistic of `draws` picks against the softmax probabilities of the tokens in the set. */
static double chi_square(uint32_t count, const bool *in_set, const fg_sampling *s, uint32_t draws,
                         bool over_seeds)
{
    double weights[64], total = 0, statistic = 0;
    uint32_t hits[64] = { 0 };
    fg_sampler *sampler = fg_sampler_create(count);
    for (uint32_t i = 0; i < count; i++) {
        weights[i] = in_set[i] ? exp((double)row[i] / (double)s->temperature) : 0;
        total += weights[i];
    }
    for (uint32_t n = 0; n < draws; n++) {
        fg_sampling one = *s;
        one.seed = over_seeds ? n : s->seed;
        hits[fg_sampler_pick(sampler, row, &one, 0, over_seeds ? 17 : n)]++;
    }
    for (uint32_t i = 0; i < count; i++) {
        double expected = weights[i] / total * draws;
        cr_assert(in_set[i] || hits[i] == 0, "token %u is not in the set", i);
        statistic += in_set[i] ? (hits[i] - expected) * (hits[i] - expected) / expected : 0;
    }
    fg_sampler_destroy(sampler);
    return statistic;
}

Test(sampler, frequencies_follow_the_softmax)
{
    bool all[20], top_five[20], top_three[20];
    for (uint32_t i = 0; i < 20; i++) {
        row[i] = 0.15f * (float)(i * 7 % 20);
    }
    for (uint32_t i = 0; i < 20; i++) {
        uint32_t rank = 19 - i * 7 % 20;
        all[i] = true;
        top_five[i] = rank < 5;
        top_three[i] = rank < 3;
    }
    /* Weights fall by exp(-0.15) from rank to rank: three tokens hold 0.381 of the whole, two 0.273. */
    const struct {
        const char *name;
        fg_sampling sampling;
        const bool *set;
        double bound; /* 99.9 % quantile of chi-square at set size - 1 degrees of freedom */
    } cases[] = {
        { "temperature 1", { .temperature = 1, .top_p = 1 }, all, 43.82 },
        { "temperature 0.7", { .temperature = 0.7f, .top_p = 1 }, all, 43.82 },
        { "top-k 5", { .temperature = 1, .top_p = 1, .top_k = 5 }, top_five, 18.47 },
        { "top-p", { .temperature = 1, .top_p = 0.35f }, top_three, 13.82 },
        { "min-p", { .temperature = 1, .top_p = 1, .min_p = 0.52f }, top_five, 18.47 },
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        for (int over_seeds = 0; over_seeds < 2; over_seeds++) {
            double got = chi_square(20, cases[c].set, &cases[c].sampling, 20000, over_seeds);
            cr_assert(got < cases[c].bound, "%s, over %s: chi-square %g", cases[c].name,
                      over_seeds ? "seeds" : "positions", got);
        }
    }
}

/* The noise reaches far enough for tokens of one in a hundred thousand. */
Test(sampler, rare_tokens_appear_as_often_as_they_should)
{
    enum { RARE = 100, DRAWS = 60000 };
    fg_sampler *sampler = fg_sampler_create(RARE + 1);
    uint32_t rare_hits = 0;
    row[0] = 0;
    for (uint32_t i = 1; i <= RARE; i++) {
        row[i] = -11.512925f; /* 1e-5 each, 1e-3 together */
    }
    for (uint32_t n = 0; n < DRAWS; n++) {
        fg_sampling s = { .temperature = 1, .top_p = 1, .seed = 1 };
        rare_hits += fg_sampler_pick(sampler, row, &s, 0, n) != 0;
    }
    /* 60 expected, 4 standard deviations. */
    cr_assert(rare_hits > 29 && rare_hits < 91, "%u", rare_hits);
    fg_sampler_destroy(sampler);
}

/* Noise that occurs once in millions of draws is right to three digits: it is what lets an unlikely
 * token win. Each is found by search, then set against a rival just below and just above it. */
Test(sampler, noise_is_exact_far_into_the_tail)
{
    fg_sampler *sampler = fg_sampler_create(2);
    fg_sampling s = { .temperature = 1, .top_p = 1, .seed = 6 };
    uint32_t found = 0;
    for (uint32_t position = 0; position < 1u << 24; position++) {
        uint64_t bits = fg_rng_counter(s.seed, 0, position, 1);
        if (bits >> 42 != 0) { /* v < 2^-22 */
            continue;
        }
        double v = ldexp((double)bits, -64);
        double rival = ldexp((double)fg_rng_counter(s.seed, 0, position, 0), -64);
        double even = -log(-log1p(-v)) + log(-log1p(-rival));
        for (uint32_t wins = 0; wins < 2; wins++) {
            row[0] = (float)(wins == 1 ? even - 0.001 : even + 0.001);
            row[1] = 0;
            cr_assert_eq(fg_sampler_pick(sampler, row, &s, 0, position), wins, "at %u", position);
        }
        found++;
    }
    cr_assert(found > 0);
    fg_sampler_destroy(sampler);
}

/* Stored answers: a change of any bit of the noise or the order of the chain shows here. */
Test(sampler, picks_are_the_stored_ones)
{
    static const struct {
        fg_sampling sampling;
        uint32_t want[6];
    } cases[] = {
        { { .temperature = 1, .top_p = 1, .seed = 42 },
          { 15765, 27516, 4234, 38027, 23616, 1645 } },
        { { .temperature = 0.8f, .top_p = 0.9f, .seed = 42 },
          { 15765, 27516, 4234, 38027, 27754, 45179 } },
        { { .temperature = 0.8f, .top_p = 1, .top_k = 40, .seed = 42 },
          { 7834, 30262, 4234, 21902, 27754, 15409 } },
        { { .temperature = 1.5f, .top_p = 0.95f, .min_p = 0.02f, .top_k = 100, .seed = 1 },
          { 11757, 24128, 11926, 1161, 34363, 31637 } },
    };
    fg_rng rng = { .state = 99 };
    fill_row(&rng, VOCAB_MAX, 6.0f);
    fg_sampler *sampler = fg_sampler_create(VOCAB_MAX);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        for (uint32_t position = 0; position < 6; position++) {
            uint32_t got = fg_sampler_pick(sampler, row, &cases[c].sampling, 0, position);
            cr_assert_eq(got, cases[c].want[position], "case %zu position %u: got %u", c, position,
                         got);
        }
    }
    fg_sampler_destroy(sampler);
}

static bool create_once(void *ctx)
{
    fg_sampler *sampler = fg_sampler_create(*(uint32_t *)ctx);
    fg_sampler_destroy(sampler);
    return sampler != NULL;
}

Test(sampler, create_survives_each_failed_allocation)
{
    cr_assert_eq(fg_fault_each(create_once, &(uint32_t){ 300 }), 5);
}
