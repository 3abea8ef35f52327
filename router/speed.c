#include "router/speed.h"

#include <math.h>
#include <stddef.h>

/* One observation counts as at most this many times too fast or too slow. */
#define RATIO_MAX 8.0
/* Share of a new observation once there are many of them. */
#define RATE_MIN 0.1
/* The first ones scale all terms: they say how fast a worker is, not yet why. */
#define SCALE_FIRST 4
/* Of the time that the router saw, the part that a worker's report may leave unexplained is 1 - 1/4. */
#define BELIEF 4.0
/* The correction is a slow integral of the errors that remain. */
#define CORRECTION_RATE 0.1
#define CORRECTION_MIN  0.25
#define CORRECTION_MAX  16.0

typedef struct bounds {
    double low, guess, high;
} bounds;

/* From faster than any accelerator to slower than anything worth using; the guess is a small model on a
 * processor. */
static const bounds prefill_bounds[FG_SPEED_TERMS] = { { 1e3, 1e6, 1e10 },
                                                       { 200, 1e6, 1e9 },
                                                       { 1e-4, 100, 1e6 } };
static const bounds step_bounds[FG_SPEED_TERMS] = { { 1e4, 2e7, 1e10 },
                                                    { 100, 2e6, 1e9 },
                                                    { 1e-4, 100, 1e6 } };
static const bounds push_bounds[FG_SPEED_TERMS] = { { 1e4, 1e6, 1e9 },
                                                    { 100, 1e5, 1e9 },
                                                    { 1e-4, 1e-4, 1e-4 } };

static double bounded(double value, double low, double high)
{
    return value > low ? (value < high ? value : high) : low;
}

/* A claim of zero, below zero or of no number at all is none. */
static double claimed(double value, const bounds *b)
{
    return value > 0 ? bounded(value, b->low, b->high) : b->guess;
}

void fg_speed_init(fg_speed *speed, const fg_speed_claim *claim)
{
    static const fg_speed_claim nothing;
    const fg_speed_claim *c = claim != NULL ? claim : &nothing;
    *speed = (fg_speed){
        .prefill = { claimed(c->prefill_ns_base, &prefill_bounds[0]),
                     claimed(c->prefill_ns_per_token, &prefill_bounds[1]),
                     claimed(c->prefill_ns_per_kv, &prefill_bounds[2]) },
        .step = { claimed(c->step_ns_base, &step_bounds[0]),
                  claimed(c->step_ns_per_row, &step_bounds[1]), step_bounds[2].guess },
        .push = { push_bounds[0].guess, claimed(c->push_ns_per_block, &push_bounds[1]),
                  push_bounds[2].guess },
        .correction = 1,
    };
    /* A row of a step attends to its KV tokens as a row of a prompt does. */
    speed->step[2] = speed->prefill[2];
    /* A copy within one host; the two directions cost about the same. */
    speed->restore_ns_per_block = speed->push[1];
}

static double sum(const double *weights, const double *x)
{
    return weights[0] * x[0] + weights[1] * x[1] + weights[2] * x[2];
}

/* Blocks whose time is seen: those of the last chunk, or what the prompt's computing did not cover. */
static double exposed_blocks(const fg_speed *speed, uint32_t blocks, uint32_t last_blocks,
                             double compute_ns)
{
    double last = blocks < last_blocks ? blocks : last_blocks;
    double late = blocks - compute_ns / speed->push[1];
    return late > last ? late : last;
}

double fg_speed_exposed_ns(const fg_speed *speed, uint32_t blocks, uint32_t last_blocks,
                           double compute_ns)
{
    if (blocks == 0) {
        return 0;
    }
    return speed->push[0] + speed->push[1] * exposed_blocks(speed, blocks, last_blocks, compute_ns);
}

static double log_ratio(double seen, double predicted)
{
    return bounded(log(seen / predicted), -log(RATIO_MAX), log(RATIO_MAX));
}

/* Moves each term by a factor, in proportion to its share in the prediction, so that the prediction
 * itself moves by `rate` of the error, counted in logarithms. Factors keep the terms above zero. */
static void fit(double *weights, const bounds *limits, const double *x, double seen,
                uint32_t *count)
{
    double predicted = sum(weights, x), shares[FG_SPEED_TERMS], squares = 0;
    double rate = fmax(RATE_MIN, 1.0 / (*count + 1.0));
    double move = rate * log_ratio(fmax(seen, 1), predicted);
    for (int i = 0; i < FG_SPEED_TERMS; i++) {
        shares[i] = weights[i] * x[i] / predicted;
        squares += shares[i] * shares[i];
    }
    for (int i = 0; i < FG_SPEED_TERMS; i++) {
        double part = *count < SCALE_FIRST ? 1 : shares[i] / squares;
        weights[i] = bounded(weights[i] * exp(move * part), limits[i].low, limits[i].high);
    }
    *count += *count < UINT32_MAX;
}

/* The share of the seen time that is surely this prompt's own bounds the report from below, the whole of
 * it from above. */
static double believed(const fg_speed_first *first)
{
    double seen = (double)first->seen_ns, said = (double)first->compute_ns;
    if (first->seen_ns == 0) {
        return said;
    }
    double own = first->tokens / (first->tokens + (double)first->ahead_tokens);
    return bounded(said, seen * own / BELIEF, seen);
}

void fg_speed_learn_first(fg_speed *speed, const fg_speed_first *first)
{
    if (first->tokens > 0 && (first->compute_ns > 0 || first->seen_ns > 0)) {
        const double x[FG_SPEED_TERMS] = {
            1, first->tokens, (double)fg_cost_chunk_kv(first->position, first->tokens)
        };
        fit(speed->prefill, prefill_bounds, x, believed(first), &speed->prefills);
    }
    if (first->seen_ns > 0 && first->predicted_ns > 0) {
        double error = log_ratio((double)first->seen_ns, (double)first->predicted_ns);
        /* What it should have been then. Many prompts may be under way, all predicted before anything
         * was learned from the first of them: to add up their errors would overshoot. */
        error += first->correction > 0 ? log(first->correction / speed->correction) : 0;
        speed->correction = bounded(speed->correction * exp(CORRECTION_RATE * error),
                                    CORRECTION_MIN, CORRECTION_MAX);
    }
}

void fg_speed_learn_step(fg_speed *speed, uint32_t rows, uint64_t kv_tokens, uint64_t gap_ns)
{
    if (rows > 0 && gap_ns > 0) {
        const double x[FG_SPEED_TERMS] = { 1, rows, (double)kv_tokens };
        fit(speed->step, step_bounds, x, (double)gap_ns, &speed->steps);
    }
}

void fg_speed_learn_push(fg_speed *speed, uint32_t blocks, uint32_t last_blocks, double compute_ns,
                         uint64_t exposed_ns)
{
    if (blocks > 0 && exposed_ns > 0) {
        const double x[FG_SPEED_TERMS] = { 1,
                                           exposed_blocks(speed, blocks, last_blocks, compute_ns),
                                           0 };
        fit(speed->push, push_bounds, x, (double)exposed_ns, &speed->pushes);
    }
}

bool fg_speed_is_proven(const fg_speed *speed)
{
    return speed->prefills >= SCALE_FIRST;
}
