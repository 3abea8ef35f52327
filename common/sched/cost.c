#include "common/sched/cost.h"

#include <math.h>
#include <string.h>

/* A step counts half after some 350 more. */
#define FORGETTING 0.998
/* Of one step's time, relative to it: what the fit does not explain. */
#define NOISE_VARIANCE 0.0025
/* Prior deviations are this many times the guesses, so that a few steps outweigh them. */
#define PRIOR_SPREAD 1000.0
/* Shorter steps than this tell about the clock, not about the work. */
#define STEP_NS_MIN 1000.0
/* Copies are guessed at 1 GB/s until one was seen, so that one will be tried and measured. */
#define COPY_GUESS_BYTES_PER_NS 1.0
#define COPY_NEW_SHARE          0.125
/* A block handed over is written once and read twice, for its digests: guessed at 2 GB/s in all, until hand-overs
 * of several lengths were seen; what they say is believed within these bounds of the guess. */
#define PUSH_GUESS_BYTES_PER_NS 2.0
#define PUSH_GUESS_BLOCKS       32.0
#define PUSH_FORGETTING         0.97
#define PUSH_BOUND              8.0

enum {
    BASE,
    PREFILL,
    ROW,
    KV,
    ODD_FACTOR = 20, /* times the prediction */
    ODD_AFTER = 32,  /* steps seen before anything is called odd */
    ODD_IN_A_ROW = 4 /* then it is no disturbance but how things are now */
};

/* A slow processor with a model of some billion weights; anything faster shows itself at once. */
static const double guess[FG_COST_TERMS] = { 1e6, 5e6, 5e6, 2e3 };

static void forget_all(fg_cost *cost)
{
    memset(cost->covariance, 0, sizeof cost->covariance);
    for (int i = 0; i < FG_COST_TERMS; i++) {
        cost->covariance[i][i] = guess[i] * guess[i] * PRIOR_SPREAD * PRIOR_SPREAD;
    }
}

/* One more point of the line of time over blocks; older ones count less and less. */
static void add_push(fg_cost *cost, double blocks, double ns)
{
    double old = cost->push_weight * PUSH_FORGETTING, weight = old + 1;
    double off_blocks = blocks - cost->push_blocks, off_ns = ns - cost->push_ns;
    cost->push_weight = weight;
    cost->push_blocks += off_blocks / weight;
    cost->push_ns += off_ns / weight;
    cost->push_blocks2 =
        PUSH_FORGETTING * cost->push_blocks2 + off_blocks * off_blocks * old / weight;
    cost->push_cross = PUSH_FORGETTING * cost->push_cross + off_blocks * off_ns * old / weight;
}

void fg_cost_init(fg_cost *cost, uint64_t block_bytes)
{
    *cost = (fg_cost){ .block_bytes = (double)block_bytes };
    memcpy(cost->weights, guess, sizeof guess);
    forget_all(cost);
    double push_ns = PUSH_GUESS_BLOCKS * (double)block_bytes / PUSH_GUESS_BYTES_PER_NS;
    add_push(cost, 0, 0);
    add_push(cost, PUSH_GUESS_BLOCKS, push_ns);
}

static double predict(const fg_cost *cost, double prefill, double rows, double kv)
{
    return cost->weights[BASE] + cost->weights[PREFILL] * prefill + cost->weights[ROW] * rows +
           cost->weights[KV] * kv;
}

double fg_cost_predict(const fg_cost *cost, const fg_cost_step *step)
{
    return predict(cost, step->prefill_tokens, step->decode_rows, (double)step->kv_tokens);
}

/* The steps after which what was seen of a number of rows counts for nothing. */
#define ROWS_MEMORY    2000
#define ROWS_NEW_SHARE 0.25f

static bool knows_rows(const fg_cost *cost, uint32_t rows)
{
    return rows < FG_COST_ROWS && cost->rows_step[rows] != 0 &&
           (uint32_t)cost->steps - cost->rows_step[rows] < ROWS_MEMORY;
}

double fg_cost_rows_at_least(const fg_cost *cost, const fg_cost_step *plain, uint32_t more_rows,
                             uint64_t more_kv)
{
    uint32_t rows = plain->decode_rows + more_rows;
    double kv = (double)plain->kv_tokens + (double)more_kv;
    if (knows_rows(cost, rows)) {
        return cost->rows_ratio[rows] * predict(cost, 0, rows, kv);
    }
    double known = fg_cost_predict(cost, plain);
    known *= knows_rows(cost, plain->decode_rows) ? cost->rows_ratio[plain->decode_rows] : 1;
    double row = cost->weights[ROW] - sqrt(fmax(cost->covariance[ROW][ROW], 0));
    return known + fmax(row, 0) * more_rows + cost->weights[KV] * (double)more_kv;
}

static void learn_rows(fg_cost *cost, const fg_cost_step *step, double took)
{
    uint32_t rows = step->decode_rows;
    double fitted = fg_cost_predict(cost, step);
    if (step->prefill_tokens > 0 || rows >= FG_COST_ROWS || fitted < STEP_NS_MIN) {
        return;
    }
    float ratio = (float)(took / fitted);
    float *known = &cost->rows_ratio[rows];
    /* Who was disturbed when it was seen first would not be tried again for long: half of it is believed. */
    *known = knows_rows(cost, rows) ? *known + (ratio - *known) * ROWS_NEW_SHARE : (1 + ratio) / 2;
    cost->rows_step[rows] = (uint32_t)cost->steps + 1;
}

/* One step of recursive least squares for `took / scale = weights . x`. */
static void fit(fg_cost *cost, const double *x, double error)
{
    double px[FG_COST_TERMS], spread = NOISE_VARIANCE * FORGETTING;
    for (int i = 0; i < FG_COST_TERMS; i++) {
        px[i] = 0;
        for (int j = 0; j < FG_COST_TERMS; j++) {
            px[i] += cost->covariance[i][j] * x[j];
        }
        spread += x[i] * px[i];
    }
    for (int i = 0; i < FG_COST_TERMS; i++) {
        cost->weights[i] += px[i] / spread * error;
        for (int j = 0; j <= i; j++) {
            double value = (cost->covariance[i][j] - px[i] * px[j] / spread) / FORGETTING;
            cost->covariance[i][j] = value;
            cost->covariance[j][i] = value;
        }
    }
}

/* Forgetting lets the covariance of a term that is not seen for long (prompts, while everybody only
 * decodes) grow without end. No term may become less certain than it was before the first step; rows
 * and columns are scaled together, so the matrix stays one. */
static void bound_covariance(fg_cost *cost)
{
    for (int i = 0; i < FG_COST_TERMS; i++) {
        double most = guess[i] * guess[i] * PRIOR_SPREAD * PRIOR_SPREAD;
        if (cost->covariance[i][i] > most) {
            double scale = sqrt(most / cost->covariance[i][i]);
            for (int j = 0; j < FG_COST_TERMS; j++) {
                cost->covariance[i][j] *= scale;
                cost->covariance[j][i] *= scale;
            }
        }
    }
}

/* A negative weight becomes 0, and the others move as far as they are correlated with it, so that the
 * prediction for the steps seen stays what it was. */
static void bound_weights(fg_cost *cost)
{
    for (int i = 0; i < FG_COST_TERMS; i++) {
        double below = cost->weights[i], variance = cost->covariance[i][i];
        for (int j = 0; below < 0 && variance > 0 && j < FG_COST_TERMS; j++) {
            cost->weights[j] -= cost->covariance[j][i] / variance * below;
        }
        if (below < 0) {
            cost->weights[i] = 0;
        }
    }
    for (int i = 0; i < FG_COST_TERMS; i++) {
        cost->weights[i] = fmax(cost->weights[i], 0);
    }
}

/* Bounding one weight after the other can leave a prediction that is too high, and where steps are all
 * alike it would climb with each of them: what the fit says about this step holds. Terms that the step does
 * not have keep their weights. */
static void keep_prediction(fg_cost *cost, const fg_cost_step *step, const double *x, double fitted)
{
    double bounded = fg_cost_predict(cost, step);
    for (int i = 0; bounded > fitted && fitted > 0 && i < FG_COST_TERMS; i++) {
        cost->weights[i] *= x[i] > 0 ? fitted / bounded : 1;
    }
}

static bool is_sound(const fg_cost *cost)
{
    bool sound = true;
    for (int i = 0; i < FG_COST_TERMS; i++) {
        sound = sound && isfinite(cost->weights[i]) && cost->covariance[i][i] >= 0;
        for (int j = 0; j < FG_COST_TERMS; j++) {
            sound = sound && isfinite(cost->covariance[i][j]);
        }
    }
    return sound;
}

void fg_cost_learn(fg_cost *cost, const fg_cost_step *step, uint64_t took_ns)
{
    if (step->prefill_tokens == 0 && step->decode_rows == 0) {
        return;
    }
    double predicted = fg_cost_predict(cost, step), took = (double)took_ns;
    if (cost->steps > ODD_AFTER && took > ODD_FACTOR * fmax(predicted, STEP_NS_MIN)) {
        if (++cost->odd_steps < ODD_IN_A_ROW) {
            return;
        }
        forget_all(cost);
    }
    cost->odd_steps = 0;
    /* Errors count relative to the step, else chunks of seconds would hide steps of milliseconds. */
    double scale = fmax(fmax(took, predicted / 4), STEP_NS_MIN);
    const double x[FG_COST_TERMS] = { 1 / scale, step->prefill_tokens / scale,
                                      step->decode_rows / scale, (double)step->kv_tokens / scale };
    double weights_before[FG_COST_TERMS];
    memcpy(weights_before, cost->weights, sizeof weights_before);
    fit(cost, x, (took - predicted) / scale);
    bound_covariance(cost);
    double fitted = fg_cost_predict(cost, step);
    bound_weights(cost);
    keep_prediction(cost, step, x, fitted);
    if (!is_sound(cost)) { /* rounding: begin again from the last weights that were numbers */
        memcpy(cost->weights, weights_before, sizeof weights_before);
        forget_all(cost);
    }
    learn_rows(cost, step, took);
    cost->steps++;
}

void fg_cost_learn_copy(fg_cost *cost, uint64_t bytes, uint64_t took_ns)
{
    if (bytes == 0) {
        return;
    }
    double rate = (double)bytes / fmax((double)took_ns, 1);
    double known = cost->copy_bytes_per_ns;
    /* Times are averaged, not rates: one copy that looks instant must not count for many real ones. */
    cost->copy_bytes_per_ns =
        known == 0 ? rate : 1 / ((1 - COPY_NEW_SHARE) / known + COPY_NEW_SHARE / rate);
}

/* The largest chunk within the target; `own` says whether its own KV counts. Its time rises with it, so
 * halving finds it. */
static uint32_t largest_chunk(const fg_cost *cost, const fg_cost_step *rest, uint32_t position,
                              bool own, uint64_t target_ns, uint32_t chunk_max)
{
    uint32_t low = 1, high = chunk_max; /* low is taken whatever it costs */
    while (low < high) {
        uint32_t middle = high - (high - low) / 2;
        uint64_t kv = rest->kv_tokens + (own ? fg_cost_chunk_kv(position, middle) : 0);
        double took =
            predict(cost, (double)rest->prefill_tokens + middle, rest->decode_rows, (double)kv);
        if (took <= (double)target_ns) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

uint32_t fg_cost_chunk(const fg_cost *cost, const fg_cost_step *rest, uint64_t target_ns,
                       uint32_t chunk_max)
{
    return largest_chunk(cost, rest, 0, false, target_ns, chunk_max);
}

uint32_t fg_cost_chunk_at(const fg_cost *cost, const fg_cost_step *rest, uint32_t position,
                          uint64_t target_ns, uint32_t chunk_max)
{
    return largest_chunk(cost, rest, position, true, target_ns, chunk_max);
}

void fg_cost_learn_push(fg_cost *cost, uint32_t blocks, uint64_t exposed_ns)
{
    add_push(cost, blocks, (double)exposed_ns);
}

double fg_cost_push_block(const fg_cost *cost)
{
    double known = cost->block_bytes / PUSH_GUESS_BYTES_PER_NS;
    /* All of one length: they tell nothing about another block. */
    double slope = cost->push_blocks2 > 1 ? cost->push_cross / cost->push_blocks2 : known;
    return fmin(fmax(slope, known / PUSH_BOUND), known * PUSH_BOUND);
}

bool fg_cost_push_is_dearer(const fg_cost *cost, uint64_t blocks)
{
    return (double)blocks * fg_cost_push_block(cost) > cost->weights[BASE];
}

bool fg_cost_swap_is_cheaper(const fg_cost *cost, uint32_t blocks, uint32_t redo_tokens)
{
    double rate = cost->copy_bytes_per_ns > 0 ? cost->copy_bytes_per_ns : COPY_GUESS_BYTES_PER_NS;
    double move = 2.0 * blocks * cost->block_bytes / rate;
    double redo = cost->weights[PREFILL] * redo_tokens +
                  cost->weights[KV] * (double)fg_cost_chunk_kv(0, redo_tokens);
    return move < redo;
}
