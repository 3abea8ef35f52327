/*
 * The answer is a pure function of the row and the parameters, so every step is defined exactly:
 *
 *   score     s = (logit - highest logit) / temperature; NaN counts as -inf, so the best s is 0
 *   top-k     the first k of the order (s descending, id ascending)
 *   top-p     weights e^s over what is left; the shortest beginning of that order whose weights reach
 *             top_p of their total (at least one token)
 *   min-p     keeps s >= ln(min_p)
 *   pick      the highest s + noise (Gumbel-max), ties to the lowest id
 *
 * A row without any finite or +inf logit gives token 0; a +inf logit wins outright, lowest id first.
 */
#include "common/model/sampler.h"

#include <stdbool.h>
#include <string.h>

#include "common/base/fmath.h"
#include "common/base/gumbel.h"
#include "common/base/highest.h"
#include "common/base/mem.h"
#include "common/base/rng.h"

enum {
    DIGIT_BITS = 11, /* three digits cover the 32 bits of a key */
    DIGITS = 3,
    DIGIT_VALUES = 1 << DIGIT_BITS,
    BLOCK = 64, /* tokens whose noise is looked at with one bar */
};

struct fg_sampler {
    uint32_t vocab_size;
    float *scores;   /* one per token */
    float *weights;  /* one per candidate, or block */
    uint32_t *ids;   /* candidates, in rising id until sorted */
    uint32_t *spare; /* the other half of the sort */
    uint32_t counts[DIGITS][DIGIT_VALUES];
};

fg_sampler *fg_sampler_create(uint32_t vocab_size)
{
    fg_sampler *sampler = fg_mem_alloc(sizeof *sampler);
    if (sampler == NULL) {
        return NULL;
    }
    sampler->vocab_size = vocab_size;
    sampler->scores = fg_mem_array(vocab_size, sizeof *sampler->scores);
    sampler->weights = fg_mem_array(vocab_size, sizeof *sampler->weights);
    sampler->ids = fg_mem_array(vocab_size, sizeof *sampler->ids);
    sampler->spare = fg_mem_array(vocab_size, sizeof *sampler->spare);
    if (sampler->scores == NULL || sampler->weights == NULL || sampler->ids == NULL ||
        sampler->spare == NULL) {
        fg_sampler_destroy(sampler);
        return NULL;
    }
    return sampler;
}

void fg_sampler_destroy(fg_sampler *sampler)
{
    if (sampler == NULL) {
        return;
    }
    fg_mem_free(sampler->scores);
    fg_mem_free(sampler->weights);
    fg_mem_free(sampler->ids);
    fg_mem_free(sampler->spare);
    fg_mem_free(sampler);
}

/* Where the block of tokens that begins at `first` ends. */
static uint32_t block_end(const fg_sampler *sampler, uint32_t first)
{
    return sampler->vocab_size - first < BLOCK ? sampler->vocab_size : first + BLOCK;
}

static float minus_infinity(void)
{
    return fg_fmath_float(0xFF800000u);
}

static void fill_scores(float *restrict scores, const float *restrict logits, uint32_t count,
                        float top, float temperature)
{
    for (uint32_t i = 0; i < count; i++) {
        float score = (logits[i] - top) / temperature;
        /* Adding 0 makes -0 a plain 0: the two are one score. */
        scores[i] = fg_fmath_select(score == score, score, minus_infinity()) + 0.0f;
    }
}

/* Rising keys are falling scores. */
static uint32_t key_of(float score)
{
    uint32_t bits = fg_fmath_bits(score);
    return ~(bits ^ ((bits >> 31) != 0 ? UINT32_MAX : 0x80000000u));
}

static float score_of(uint32_t key)
{
    uint32_t bits = ~key;
    return fg_fmath_float(bits ^ ((bits >> 31) != 0 ? 0x80000000u : UINT32_MAX));
}

static uint32_t digit_of(uint32_t key, uint32_t digit)
{
    return key >> (digit * DIGIT_BITS) & (DIGIT_VALUES - 1);
}

/* Where the first k of the order end: keys below `key` are in, and so many of those that equal it. */
typedef struct cut {
    uint32_t key;
    uint32_t equal;
} cut;

/* Finds the k-th smallest key, a digit at a time from the highest: at each step `key` holds the digits found, and
 * `k` counts within those that share them. */
static cut find_cut(fg_sampler *sampler, const float *scores, uint32_t count, uint32_t k)
{
    uint32_t key = 0, known = 0;
    uint32_t *counts = sampler->counts[0];
    for (uint32_t digit = DIGITS; digit-- > 0;) {
        memset(counts, 0, sizeof sampler->counts[0]);
        for (uint32_t i = 0; i < count; i++) {
            uint32_t other = key_of(scores[i]);
            counts[digit_of(other, digit)] += (other & known) == key;
        }
        uint32_t value = 0;
        while (counts[value] < k) {
            k -= counts[value++];
        }
        key |= value << (digit * DIGIT_BITS);
        known |= (uint32_t)(DIGIT_VALUES - 1) << (digit * DIGIT_BITS);
    }
    return (cut){ .key = key, .equal = k };
}

/* A score that at least k tokens reach: the k-th highest of the highest of all blocks. */
static float reached_by(fg_sampler *sampler, uint32_t k)
{
    uint32_t blocks = 0;
    float *tops = sampler->weights;
    for (uint32_t first = 0; first < sampler->vocab_size; first += BLOCK) {
        tops[blocks++] = fg_highest(sampler->scores + first, block_end(sampler, first) - first);
    }
    return k > blocks ? minus_infinity() : score_of(find_cut(sampler, tops, blocks, k).key);
}

/* Fills ids with the first `k` tokens of the order, in rising id. */
static uint32_t select_top_k(fg_sampler *sampler, uint32_t k)
{
    float bar = reached_by(sampler, k);
    uint32_t candidates = 0;
    for (uint32_t first = 0; first < sampler->vocab_size; first += BLOCK) {
        uint32_t end = block_end(sampler, first);
        if (fg_highest(sampler->scores + first, end - first) < bar) {
            continue; /* as most are */
        }
        for (uint32_t id = first; id < end; id++) {
            sampler->spare[candidates] = id;
            sampler->weights[candidates] = sampler->scores[id];
            candidates += sampler->scores[id] >= bar;
        }
    }
    cut last = find_cut(sampler, sampler->weights, candidates, k);
    uint32_t count = 0;
    for (uint32_t i = 0; i < candidates; i++) {
        uint32_t key = key_of(sampler->weights[i]);
        if (key < last.key || (key == last.key && last.equal > 0)) {
            last.equal -= key == last.key;
            sampler->ids[count++] = sampler->spare[i];
        }
    }
    return count;
}

/* Stable radix sort of ids[0 .. count) by score, falling. */
static void sort_ids(fg_sampler *sampler, uint32_t count)
{
    memset(sampler->counts, 0, sizeof sampler->counts);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t key = key_of(sampler->scores[sampler->ids[i]]);
        for (uint32_t digit = 0; digit < DIGITS; digit++) {
            sampler->counts[digit][digit_of(key, digit)]++;
        }
    }
    for (uint32_t digit = 0; digit < DIGITS; digit++) {
        uint32_t *starts = sampler->counts[digit];
        uint32_t start = 0;
        for (uint32_t value = 0; value < DIGIT_VALUES; value++) {
            uint32_t size = starts[value];
            starts[value] = start;
            start += size;
        }
        for (uint32_t i = 0; i < count; i++) {
            uint32_t id = sampler->ids[i];
            sampler->spare[starts[digit_of(key_of(sampler->scores[id]), digit)]++] = id;
        }
        uint32_t *sorted = sampler->spare;
        sampler->spare = sampler->ids;
        sampler->ids = sorted;
    }
}

/* Weights of the candidates, ids[0 .. count) or all tokens, and their total in four interleaved sums: a fixed
 * order. */
static double fill_weights(fg_sampler *sampler, uint32_t count, bool all)
{
    for (uint32_t i = 0; all && i < count; i++) {
        sampler->weights[i] = fg_expf(sampler->scores[i]);
    }
    for (uint32_t i = 0; !all && i < count; i++) {
        sampler->weights[i] = fg_expf(sampler->scores[sampler->ids[i]]);
    }
    double sums[4] = { 0, 0, 0, 0 };
    for (uint32_t i = 0; i < count; i++) {
        sums[i % 4] += (double)sampler->weights[i];
    }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/* Sorts ids[0 .. count) and returns how many of them reach `target`; 0 when all together do not. */
static uint32_t walk_top_p(fg_sampler *sampler, uint32_t count, double target)
{
    double reached = 0;
    sort_ids(sampler, count);
    for (uint32_t i = 0; i < count; i++) {
        reached += (double)fg_expf(sampler->scores[sampler->ids[i]]);
        if (reached >= target) {
            return i + 1;
        }
    }
    return 0;
}

/* Fills spare with the candidates that weigh no less than `share`, in rising id; returns how many. */
static uint32_t select_heavy(fg_sampler *sampler, uint32_t count, bool all, double share)
{
    uint32_t heavy_count = 0;
    for (uint32_t first = 0; first < count; first += BLOCK) {
        uint32_t end = count - first < BLOCK ? count : first + BLOCK;
        if ((double)fg_highest(sampler->weights + first, end - first) < share) {
            continue; /* as most are */
        }
        for (uint32_t i = first; i < end; i++) {
            sampler->spare[heavy_count] = all ? i : sampler->ids[i];
            heavy_count += (double)sampler->weights[i] >= share;
        }
    }
    return heavy_count;
}

/* Reduces the candidates, ids[0 .. count) or all tokens, to the top-p set, sorted. */
static uint32_t select_top_p(fg_sampler *sampler, uint32_t count, bool all, float top_p)
{
    double total = fill_weights(sampler, count, all);
    double target = (double)top_p * total;
    /* Tokens that weigh less than an equal share of what may be left out are left out together, so
     * only the others need sorting. Where rounding makes that fall short, all are sorted: the set is
     * then the same as if they had been from the start. */
    uint32_t heavy_count = select_heavy(sampler, count, all, (total - target) / count);
    uint32_t *candidates = (uint32_t *)(void *)sampler->weights; /* which are not needed any more */
    if (!all) {
        memcpy(candidates, sampler->ids, count * sizeof *candidates);
    }
    memcpy(sampler->ids, sampler->spare, heavy_count * sizeof *sampler->ids);
    uint32_t kept = walk_top_p(sampler, heavy_count, target);
    if (kept > 0) {
        return kept;
    }
    for (uint32_t i = 0; i < count; i++) {
        sampler->ids[i] = all ? i : candidates[i];
    }
    kept = walk_top_p(sampler, count, target);
    return kept == 0 ? count : kept;
}

/* Few tokens come this far, and the loop that calls it is faster without it inside. */
static __attribute__((noinline)) float gumbel(uint64_t bits)
{
    return fg_gumbel(bits);
}

typedef struct pick_state {
    uint32_t id;
    float score; /* with noise */
} pick_state;

static inline void offer(pick_state *best, uint32_t id, float score, const fg_sampling *sampling,
                         uint32_t choice, uint32_t position)
{
    uint64_t bits = fg_rng_counter(sampling->seed, choice, position, id);
    /* Most tokens cannot win whatever their noise; rounding of the sum keeps the order. */
    if (score + fg_gumbel_bound(bits) < best->score) {
        return;
    }
    float noisy = score + gumbel(bits);
    if (noisy > best->score || (noisy == best->score && id < best->id)) {
        *best = (pick_state){ .id = id, .score = noisy };
    }
}

/* Leading zeros that a token's bits need at least, or one or two fewer, to win with `score`: fewer are below
 * fg_gumbel_bound. More than 63: none can have them. */
static uint32_t zeros_to_win(float score, const pick_state *best)
{
    float needed = (best->score - score) * 1.442695f;
    return needed < 2.0f ? 0 : needed > 66.0f ? 64 : (uint32_t)needed - 2;
}

/* Offers the tokens first .. end - 1. What most of them lack is seen in the few leading bits of their noise. */
static void offer_block(const fg_sampler *sampler, pick_state *best, uint32_t first, uint32_t end,
                        float least, const fg_sampling *sampling, uint32_t choice,
                        uint32_t position)
{
    const float *scores = sampler->scores;
    uint32_t zeros = zeros_to_win(fg_highest(scores + first, end - first), best);
    uint64_t most = UINT64_MAX >> zeros % 64;
    for (uint32_t id = first; id < end && zeros < 64; id++) {
        if (fg_rng_counter(sampling->seed, choice, position, id) <= most && scores[id] >= least) {
            offer(best, id, scores[id], sampling, choice, position);
        }
    }
}

/* The winner among ids[0 .. count), or among all tokens where `all`. */
static uint32_t pick_noisy(const fg_sampler *sampler, uint32_t count, bool all, uint32_t top_id,
                           const fg_sampling *sampling, uint32_t choice, uint32_t position)
{
    float least = sampling->min_p > 0.0f ? fg_logf(sampling->min_p) : minus_infinity();
    const float *scores = sampler->scores;
    pick_state best = { .id = UINT32_MAX, .score = minus_infinity() };
    /* The likeliest token first: it makes the bar that most others cannot reach. It is in every set. */
    offer(&best, top_id, scores[top_id], sampling, choice, position);
    for (uint32_t first = 0; all && first < count; first += BLOCK) {
        offer_block(sampler, &best, first, block_end(sampler, first), least, sampling, choice,
                    position);
    }
    for (uint32_t i = 0; !all && i < count; i++) {
        uint32_t id = sampler->ids[i];
        if (scores[id] >= least) {
            offer(&best, id, scores[id], sampling, choice, position);
        }
    }
    return best.id;
}

uint32_t fg_sampler_pick(fg_sampler *sampler, const float *logits, const fg_sampling *sampling,
                         uint32_t choice, uint32_t position)
{
    uint32_t count = sampler->vocab_size;
    float top = fg_highest(logits, count);
    if (top == minus_infinity()) {
        return 0;
    }
    uint32_t top_id = fg_first_equal(logits, count, top);
    if (!(sampling->temperature > 0.0f) || top > 0x1.fffffep127f) {
        return top_id;
    }
    fill_scores(sampler->scores, logits, count, top, sampling->temperature);
    bool all = true;
    if (sampling->top_k > 0 && sampling->top_k < count) {
        count = select_top_k(sampler, sampling->top_k);
        all = false;
    }
    if (sampling->top_p < 1.0f) {
        count = select_top_p(sampler, count, all, sampling->top_p);
        all = false;
    }
    return pick_noisy(sampler, count, all, top_id, sampling, choice, position);
}
