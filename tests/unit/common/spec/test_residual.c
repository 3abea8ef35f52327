#include "common/spec/residual.h"

#include <math.h>
#include <string.h>

#include "common/base/rng.h"
#include "tests/support/test.h"

enum { VOCAB = 4, AHEAD = 3, DRAWS = 200000 };

static const uint64_t seed = 20240607;

static fg_residual_key key_of(uint64_t draw, uint32_t position)
{
    return (fg_residual_key){ .seed = fg_hash_mix(seed + draw), .position = position };
}

/* Six standard deviations above what is to be expected: about once in 10^8 by chance. */
static void check_chi_square(const char *name, const uint32_t *counts, const double *want,
                             uint32_t cells, uint32_t draws)
{
    double chi_square = 0;
    uint32_t freedom = 0;
    for (uint32_t i = 0; i < cells; i++) {
        double expected = want[i] * draws;
        if (expected == 0) {
            cr_assert_eq(counts[i], 0, "%s: cell %u has probability 0", name, i);
            continue;
        }
        chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
        freedom++;
    }
    freedom--;
    double bound = freedom + 6 * sqrt(2.0 * freedom) + 12;
    cr_log_info("%s: chi-square %.1f of %u, bound %.1f, seed %llu", name, chi_square, freedom,
                bound, (unsigned long long)seed);
    cr_assert(chi_square < bound, "%s: %.1f above %.1f, seed %llu", name, chi_square, bound,
              (unsigned long long)seed);
}

static const struct {
    const char *name;
    float p[VOCAB], q[VOCAB];
    bool certain; /* the draft has no probabilities: always token 1 */
} pairs[] = {
    { "p = (.5, .5), q = (.9, .1)", { .5f, .5f }, { .9f, .1f }, false },
    { "equal", { .1f, .2f, .3f, .4f }, { .1f, .2f, .3f, .4f }, false },
    { "no token in common", { .5f, .5f }, { 0, 0, .3f, .7f }, false },
    { "the draft wants what the target excludes", { 0, .5f, .5f, 0 }, { .9f, 0, .1f, 0 }, false },
    { "a sure target", { 0, 1, 0, 0 }, { .25f, .25f, .25f, .25f }, false },
    { "a sure draft", { .25f, .25f, .25f, .25f }, { 0, 0, 1, 0 }, false },
    { "an n-gram draft", { .4f, .3f, .2f, .1f }, { 0 }, true },
    { "an n-gram draft that the target excludes", { .7f, 0, .2f, .1f }, { 0 }, true },
};

Test(residual, tokens_are_distributed_as_the_targets_whatever_the_draft)
{
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        const float *p = pairs[i].p, *q = pairs[i].certain ? NULL : pairs[i].q;
        uint32_t counts[VOCAB] = { 0 }, accepted = 0;
        float rows[2][VOCAB];
        memcpy(rows[0], p, sizeof rows[0]);
        memcpy(rows[1], p, sizeof rows[1]);
        for (uint32_t n = 0; n < DRAWS; n++) {
            fg_residual_key key = key_of(n, 17);
            uint32_t draft = q == NULL ? 1 : fg_residual_draft(q, VOCAB, &key);
            fg_residual_round round = { .draft = &draft,
                                        .draft_count = 1,
                                        .p = rows[0],
                                        .q = q,
                                        .vocab_size = VOCAB,
                                        .key = key };
            uint32_t out[2];
            fg_verdict verdict = fg_residual_verdict(&round, &(fg_ends){ 0 }, out);
            counts[out[0]]++;
            accepted += verdict.accepted;
        }
        double want[VOCAB], overlap = 0;
        for (uint32_t t = 0; t < VOCAB; t++) {
            want[t] = (double)p[t];
            float q_t = q == NULL ? (float)(t == 1) : q[t];
            overlap += (double)(p[t] < q_t ? p[t] : q_t);
        }
        check_chi_square(pairs[i].name, counts, want, VOCAB, DRAWS);
        cr_assert(fabs((double)accepted / DRAWS - overlap) < 0.01,
                  "%s: %.3f accepted, the overlap of p and q is %.3f", pairs[i].name,
                  (double)accepted / DRAWS, overlap);
    }
}

/* What is not done here: a draw from p, not from the residual, after a rejection. */
Test(residual, a_draw_from_the_target_would_lean_towards_the_draft)
{
    const float p[VOCAB] = { .5f, .5f }, q[VOCAB] = { .9f, .1f };
    uint32_t zeros = 0, residual_zeros = 0;
    for (uint32_t n = 0; n < DRAWS; n++) {
        fg_residual_key key = key_of(n, 3);
        uint32_t token = fg_residual_draft(q, VOCAB, &key), leaning = token;
        if (!fg_residual_accepts(p[token], q[token], &key)) {
            const float nothing[VOCAB] = { 0 };
            leaning = fg_residual_resample(p, nothing, token, VOCAB, &key);
            token = fg_residual_resample(p, q, token, VOCAB, &key);
        }
        zeros += leaning == 0;
        residual_zeros += token == 0;
    }
    cr_assert(fabs((double)zeros / DRAWS - 0.7) < 0.01, "%.3f", (double)zeros / DRAWS);
    cr_assert(fabs((double)residual_zeros / DRAWS - 0.5) < 0.01, "%.3f",
              (double)residual_zeros / DRAWS);
}

/* Each row of target and draft depends on the token before. */
static const float target_rows[VOCAB][VOCAB] = {
    { .4f, .3f, .2f, .1f }, { .1f, .1f, .7f, .1f }, { .25f, .25f, .5f, 0 }, { 0, .5f, 0, .5f }
};
static const float draft_rows[VOCAB][VOCAB] = { { .1f, .4f, .4f, .1f },
                                                { .5f, .1f, .2f, .2f },
                                                { .25f, .25f, .25f, .25f },
                                                { .3f, .3f, .3f, .1f } };

enum { LENGTH = 3, CELLS = VOCAB * VOCAB * VOCAB };

/* Emits LENGTH tokens in rounds of `ahead` drafts; returns them as one number. */
static uint32_t emit(uint64_t draw, uint32_t ahead)
{
    uint32_t tokens[LENGTH + AHEAD + 1] = { 0 };
    uint32_t count = 1; /* token 0 is the prompt */
    while (count <= LENGTH) {
        uint32_t draft[AHEAD], before = tokens[count - 1];
        float p[AHEAD + 1][VOCAB], q[AHEAD][VOCAB];
        for (uint32_t i = 0; i < ahead; i++) {
            fg_residual_key key = key_of(draw, count + i);
            memcpy(p[i], target_rows[before], sizeof p[i]);
            memcpy(q[i], draft_rows[before], sizeof q[i]);
            draft[i] = fg_residual_draft(q[i], VOCAB, &key);
            before = draft[i];
        }
        memcpy(p[ahead], target_rows[before], sizeof p[ahead]);
        fg_residual_round round = { .draft = draft,
                                    .draft_count = ahead,
                                    .p = p[0],
                                    .q = q[0],
                                    .vocab_size = VOCAB,
                                    .key = key_of(draw, count) };
        fg_verdict verdict = fg_residual_verdict(&round, &(fg_ends){ 0 }, tokens + count);
        cr_assert_eq(verdict.emitted, verdict.accepted + 1);
        count += verdict.emitted;
    }
    return (tokens[1] * VOCAB + tokens[2]) * VOCAB + tokens[3];
}

Test(residual, texts_are_distributed_as_the_targets_over_several_rounds)
{
    double want[CELLS];
    for (uint32_t cell = 0; cell < CELLS; cell++) {
        uint32_t a = cell / VOCAB / VOCAB, b = cell / VOCAB % VOCAB, c = cell % VOCAB;
        want[cell] =
            (double)target_rows[0][a] * (double)target_rows[a][b] * (double)target_rows[b][c];
    }
    for (uint32_t ahead = 0; ahead <= AHEAD; ahead++) {
        uint32_t counts[CELLS] = { 0 };
        for (uint32_t n = 0; n < DRAWS; n++) {
            counts[emit(n, ahead)]++;
        }
        char name[] = "three tokens, 0 drafted at a time";
        name[14] = (char)('0' + ahead);
        check_chi_square(name, counts, want, CELLS, DRAWS);
    }
}

Test(residual, draws_are_functions_of_seed_choice_position_and_purpose)
{
    uint32_t texts_differ = 0, choices_differ = 0, positions_differ = 0, purposes_differ = 0;
    const float even[VOCAB] = { .25f, .25f, .25f, .25f };
    const float nothing[VOCAB] = { 0 };
    for (uint32_t n = 0; n < 1000; n++) {
        cr_assert_eq(emit(n, 2), emit(n, 2), "the same again");
        texts_differ += emit(n, 2) != emit(n + 1, 2);
        fg_residual_key key = key_of(n, 5), other = key;
        uint32_t token = fg_residual_draft(even, VOCAB, &key);
        other.choice = 1;
        choices_differ += fg_residual_draft(even, VOCAB, &other) != token;
        other = (fg_residual_key){ .seed = key.seed, .position = 6 };
        positions_differ += fg_residual_draft(even, VOCAB, &other) != token;
        purposes_differ += fg_residual_resample(even, nothing, 0, VOCAB, &key) != token;
    }
    cr_assert(texts_differ > 800, "%u", texts_differ);
    /* Three of four independent draws differ. */
    cr_assert(choices_differ > 650 && choices_differ < 850, "%u", choices_differ);
    cr_assert(positions_differ > 650 && positions_differ < 850, "%u", positions_differ);
    cr_assert(purposes_differ > 650 && purposes_differ < 850, "%u", purposes_differ);
}

Test(residual, probability_zero_is_never_emitted)
{
    static const struct {
        const char *name;
        float p, q;
        int want; /* 1 always, 0 never */
    } cases[] = {
        { "p = 0", 0, .5f, 0 },
        { "p = 0, q = 0", 0, 0, 0 },
        { "q = 0, p > 0", 1e-30f, 0, 1 },
        { "p = q", .3f, .3f, 1 },
        { "p > q", .31f, .3f, 1 },
        { "both tiny", 1e-40f, 1e-40f, 1 },
        { "p is not a number", NAN, .5f, 0 },
        { "q is not a number", .5f, NAN, 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (uint32_t n = 0; n < 2000; n++) {
            fg_residual_key key = key_of(n, 1);
            cr_assert_eq(fg_residual_accepts(cases[i].p, cases[i].q, &key), cases[i].want, "%s",
                         cases[i].name);
        }
    }
}

Test(residual, rows_that_leave_nothing)
{
    const float p[VOCAB] = { 0, .5f, .5f, 0 }, zero[VOCAB] = { 0 };
    const float nan_row[VOCAB] = { NAN, .5f, NAN, .5f };
    uint32_t seen = 0;
    for (uint32_t n = 0; n < 1000; n++) {
        fg_residual_key key = key_of(n, 1);
        uint32_t token = fg_residual_resample(p, p, 0, VOCAB, &key);
        cr_assert(token == 1 || token == 2, "the draft came from elsewhere: a draw from p");
        seen |= 1u << token;
        cr_assert_eq(fg_residual_resample(zero, zero, 2, VOCAB, &key), 0);
        cr_assert_eq(fg_residual_draft(zero, VOCAB, &key), 0);
        token = fg_residual_draft(nan_row, VOCAB, &key);
        cr_assert(token == 1 || token == 3);
    }
    cr_assert_eq(seen, 6);
}

static bool is_two(void *ctx, uint32_t token)
{
    return token == 2;
}

Test(residual, an_end_token_cuts_the_round)
{
    const float sure[3][VOCAB] = { { 0, 1, 0, 0 }, { 0, 0, 1, 0 }, { 1, 0, 0, 0 } };
    const fg_ends ends = { .is_end = is_two };
    static const struct {
        const char *name;
        uint32_t draft[2], draft_count, accepted, emitted;
        bool rejected;
    } cases[] = {
        { "inside the accepted run", { 1, 2 }, 2, 2, 2, false },
        { "as replacement", { 1, 3 }, 2, 1, 2, true },
        { "as bonus", { 1 }, 1, 1, 2, false },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fg_residual_round round = { .draft = cases[i].draft,
                                    .draft_count = cases[i].draft_count,
                                    .p = sure[0],
                                    .vocab_size = VOCAB,
                                    .key = key_of(1, 1) };
        uint32_t out[3] = { 9, 9, 9 };
        fg_verdict verdict = fg_residual_verdict(&round, &ends, out);
        cr_assert_eq(verdict.accepted, cases[i].accepted, "%s", cases[i].name);
        cr_assert_eq(verdict.emitted, cases[i].emitted, "%s", cases[i].name);
        cr_assert_eq(verdict.rejected, cases[i].rejected, "%s", cases[i].name);
        cr_assert(verdict.ended, "%s", cases[i].name);
        cr_assert(out[0] == 1 && out[1] == 2 && out[2] == 9, "%s", cases[i].name);
    }
}
