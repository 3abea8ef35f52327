#include "common/spec/residual.h"

#include <stddef.h>

#include "common/base/rng.h"

/* What a draw is for, in the place where the sampler's noise has a token id. Ids are below a vocabulary's
 * size, so these are nobody's. */
enum purpose {
    PURPOSE_DRAFT = 1,
    PURPOSE_ACCEPT,
    PURPOSE_RESIDUAL,
    PURPOSE_BONUS,
};

/* Uniform in [0, 1), of 53 bits. */
static double uniform(const fg_residual_key *key, enum purpose purpose)
{
    uint64_t bits =
        fg_rng_counter(key->seed, key->choice, key->position, UINT32_MAX - (uint32_t)purpose);
    return (double)(bits >> 11) * 0x1p-53;
}

/* p less what the draft had: the whole q row, or certainty about one token. `q` NULL and `certain` no
 * token: p itself. Nothing negative; NaN counts as nothing. */
static double weight(const float *p, const float *q, uint32_t certain, uint32_t id)
{
    double less = q != NULL ? (double)q[id] : (double)(id == certain);
    double rest = (double)p[id] - less;
    return rest > 0.0 ? rest : 0.0;
}

/* A token drawn by weight: never one that weighs nothing, unless all do; then UINT32_MAX. */
static uint32_t draw(const float *p, const float *q, uint32_t certain, uint32_t vocab_size,
                     double u)
{
    double total = 0.0;
    for (uint32_t id = 0; id < vocab_size; id++) {
        total += weight(p, q, certain, id);
    }
    double target = u * total, reached = 0.0;
    uint32_t last = UINT32_MAX;
    for (uint32_t id = 0; id < vocab_size; id++) {
        double w = weight(p, q, certain, id);
        reached += w;
        last = w > 0.0 ? id : last;
        if (w > 0.0 && reached > target) {
            break;
        }
    }
    return last;
}

static uint32_t draw_from(const float *p, uint32_t vocab_size, double u)
{
    uint32_t token = draw(p, NULL, UINT32_MAX, vocab_size, u);
    return token == UINT32_MAX ? 0 : token;
}

uint32_t fg_residual_draft(const float *q, uint32_t vocab_size, const fg_residual_key *key)
{
    return draw_from(q, vocab_size, uniform(key, PURPOSE_DRAFT));
}

bool fg_residual_accepts(float p, float q, const fg_residual_key *key)
{
    /* u < p / q without the division: false for p = 0, true for q = 0 beside p > 0. */
    return uniform(key, PURPOSE_ACCEPT) * (double)q < (double)p;
}

uint32_t fg_residual_resample(const float *p, const float *q, uint32_t drafted, uint32_t vocab_size,
                              const fg_residual_key *key)
{
    double u = uniform(key, PURPOSE_RESIDUAL);
    uint32_t token = draw(p, q, drafted, vocab_size, u);
    return token == UINT32_MAX ? draw_from(p, vocab_size, u) : token;
}

fg_verdict fg_residual_verdict(const fg_residual_round *round, const fg_ends *ends,
                               uint32_t *tokens_out)
{
    fg_verdict verdict = { .accepted = 0 };
    fg_residual_key key = round->key;
    while (verdict.emitted <= round->draft_count && !verdict.rejected && !verdict.ended) {
        uint32_t at = verdict.emitted, token;
        const float *p = round->p + (size_t)at * round->vocab_size;
        if (at == round->draft_count) {
            token = draw_from(p, round->vocab_size, uniform(&key, PURPOSE_BONUS));
        } else {
            const float *q = round->q == NULL ? NULL : round->q + (size_t)at * round->vocab_size;
            token = round->draft[at];
            verdict.rejected = !fg_residual_accepts(p[token], q == NULL ? 1.0f : q[token], &key);
            if (verdict.rejected) {
                token = fg_residual_resample(p, q, token, round->vocab_size, &key);
            }
            verdict.accepted += !verdict.rejected;
        }
        tokens_out[verdict.emitted++] = token;
        verdict.ended = fg_ends_has(ends, token);
        key.position++;
    }
    return verdict;
}
