#include "common/model/shape.h"

#include <string.h>

#include "common/base/fmath.h"
#include "common/base/highest.h"
#include "common/base/mem.h"

/* Tokens that are looked at together. */
enum { BLOCK = 64 };
/* How often a token has come: of the answer, and whether the prompt has it. */
static const uint32_t IN_PROMPT = 1u << 31;

struct fg_shaper {
    uint32_t vocab_size;
    float *row;
    uint32_t *counts; /* all zero between calls */
    uint32_t *met;    /* tokens whose count is not */
};

fg_shaper *fg_shaper_create(uint32_t vocab_size)
{
    fg_shaper *shaper = fg_mem_alloc(sizeof *shaper);
    if (shaper == NULL) {
        return NULL;
    }
    shaper->vocab_size = vocab_size;
    shaper->row = fg_mem_array(vocab_size, sizeof *shaper->row);
    shaper->counts = fg_mem_array(vocab_size, sizeof *shaper->counts);
    shaper->met = fg_mem_array(vocab_size, sizeof *shaper->met);
    if (shaper->row == NULL || shaper->counts == NULL || shaper->met == NULL) {
        fg_shaper_destroy(shaper);
        return NULL;
    }
    return shaper;
}

void fg_shaper_destroy(fg_shaper *shaper)
{
    if (shaper == NULL) {
        return;
    }
    fg_mem_free(shaper->row);
    fg_mem_free(shaper->counts);
    fg_mem_free(shaper->met);
    fg_mem_free(shaper);
}

static float minus_infinity(void)
{
    return fg_fmath_float(0xFF800000u);
}

static uint32_t token_at(const fg_history *history, uint32_t index)
{
    return index < history->count ? history->tokens[index] : history->more[index - history->count];
}

/* Counts the tokens of the history from `first` on; returns how many were met. */
static uint32_t count_tokens(fg_shaper *shaper, const fg_history *history, uint32_t first)
{
    uint32_t met = 0, total = history->count + history->more_count;
    for (uint32_t i = first; i < total; i++) {
        uint32_t id = token_at(history, i);
        if (shaper->counts[id] == 0) {
            shaper->met[met++] = id;
        }
        shaper->counts[id] = i < history->prompt_count ? IN_PROMPT : shaper->counts[id] + 1;
    }
    return met;
}

static void punish(fg_shaper *shaper, const fg_shape *shape, const fg_history *history)
{
    bool repeats = shape->repetition != 0.0f && shape->repetition != 1.0f;
    if (!repeats && shape->frequency == 0.0f && shape->presence == 0.0f) {
        return;
    }
    /* The prompt counts for repetition only. */
    uint32_t met = count_tokens(shaper, history, repeats ? 0 : history->prompt_count);
    for (uint32_t i = 0; i < met; i++) {
        uint32_t id = shaper->met[i];
        uint32_t answered = shaper->counts[id] & ~IN_PROMPT;
        float logit = shaper->row[id];
        if (repeats) {
            logit = logit > 0.0f ? logit / shape->repetition : logit * shape->repetition;
        }
        if (answered > 0) {
            logit = logit - shape->frequency * (float)answered;
            logit = logit - shape->presence;
        }
        shaper->row[id] = logit;
        shaper->counts[id] = 0;
    }
}

static void keep_allowed(fg_shaper *shaper, const uint64_t *allowed)
{
    for (uint32_t first = 0; first < shaper->vocab_size; first += 64) {
        uint32_t left = shaper->vocab_size - first < 64 ? shaper->vocab_size - first : 64;
        uint64_t word = allowed[first / 64];
        for (uint32_t i = 0; i < left && word != UINT64_MAX; i++) {
            if ((word >> i & 1) == 0) {
                shaper->row[first + i] = minus_infinity();
            }
        }
    }
}

const float *fg_shaper_apply(fg_shaper *shaper, const float *logits, const fg_shape *shape,
                             const fg_history *history, const uint64_t *allowed)
{
    float *row = shaper->row;
    memcpy(row, logits, shaper->vocab_size * sizeof *row);
    for (uint32_t i = 0; i < shape->bias_count; i++) {
        row[shape->biases[i].id] += shape->biases[i].bias;
    }
    uint32_t total = history->count + history->more_count;
    if (total - history->prompt_count < shape->min_tokens) {
        for (uint32_t i = 0; i < shape->end_count; i++) {
            row[shape->ends[i]] = minus_infinity();
        }
    }
    punish(shaper, shape, history);
    if (allowed != NULL) {
        keep_allowed(shaper, allowed);
    }
    return row;
}

/* e^(logit - top) over all tokens, in four interleaved sums. A block at a time, so that the powers become vector code. */
static double total_weight(const float *logits, uint32_t vocab_size, float top)
{
    double sums[4] = { 0, 0, 0, 0 };
    float weights[BLOCK];
    for (uint32_t first = 0; first < vocab_size; first += BLOCK) {
        uint32_t count = vocab_size - first < BLOCK ? vocab_size - first : BLOCK;
        for (uint32_t i = 0; i < count; i++) {
            weights[i] = fg_expf(logits[first + i] - top);
        }
        for (uint32_t i = 0; i < count; i++) {
            sums[i % 4] += (double)weights[i];
        }
    }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/* A token moves up past those that are lower. NaN is never among them. */
static uint32_t offer_likely(uint32_t id, float logit, uint32_t found, uint32_t count,
                             fg_likely *likely)
{
    if (!(logit == logit) || (found == count && !(logit > likely[found - 1].logprob))) {
        return found;
    }
    uint32_t at = found < count ? found++ : found - 1;
    for (; at > 0 && logit > likely[at - 1].logprob; at--) {
        likely[at] = likely[at - 1];
    }
    likely[at] = (fg_likely){ .id = id, .logprob = logit };
    return found;
}

/* The `count` highest logits in falling order. */
static uint32_t find_likely(const float *logits, uint32_t vocab_size, uint32_t count,
                            fg_likely *likely)
{
    uint32_t found = 0;
    for (uint32_t first = 0; first < vocab_size && count > 0; first += BLOCK) {
        uint32_t end = vocab_size - first < BLOCK ? vocab_size : first + BLOCK;
        if (found == count &&
            !(fg_highest(logits + first, end - first) > likely[found - 1].logprob)) {
            continue; /* as most are */
        }
        for (uint32_t id = first; id < end; id++) {
            found = offer_likely(id, logits[id], found, count, likely);
        }
    }
    return found;
}

void fg_logprobs_of(const float *logits, uint32_t vocab_size, uint32_t chosen, uint32_t count,
                    fg_logprobs *out)
{
    float top = fg_highest(logits, vocab_size);
    float norm = fg_logf((float)total_weight(logits, vocab_size, top));
    *out = (fg_logprobs){ .chosen = (logits[chosen] - top) - norm };
    out->count = find_likely(logits, vocab_size, count < FG_LOGPROBS_MAX ? count : FG_LOGPROBS_MAX,
                             out->likely);
    for (uint32_t i = 0; i < out->count; i++) {
        out->likely[i].logprob = (out->likely[i].logprob - top) - norm;
    }
}

/* Tokens that come before it in the order of likely ones, and itself. */
static uint32_t rank_of(const float *logits, uint32_t vocab_size, uint32_t token)
{
    float own = logits[token];
    uint32_t rank = 1;
    for (uint32_t id = 0; id < token; id++) {
        rank += logits[id] >= own;
    }
    for (uint32_t id = token + 1; id < vocab_size; id++) {
        rank += logits[id] > own;
    }
    return rank;
}

void fg_score_of(const float *logits, uint32_t vocab_size, uint32_t token, uint32_t at,
                 const fg_scores *scores)
{
    fg_logprobs row;
    fg_logprobs_of(logits, vocab_size, token, scores->likely_count, &row);
    scores->chosen[at] = row.chosen;
    scores->ranks[at] = rank_of(logits, vocab_size, token);
    fg_likely *likely = scores->likely + (size_t)at * scores->likely_count;
    for (uint32_t i = 0; i < scores->likely_count; i++) {
        likely[i] = i < row.count ? row.likely[i] : (fg_likely){ .id = FG_LIKELY_NONE };
    }
}
