/*
 * cost - what a step takes, learned from the steps that ran. A value; owned by whoever plans. No clock.
 *
 * A step's time is fitted as base + prefill tokens * a + decoding rows * b + attended KV tokens * c, by
 * recursive least squares with slow forgetting, all coefficients kept at or above zero. Copies to and
 * from the tier are fitted as bytes per second. Before the first steps it predicts from a guess that is
 * high, so that the first chunks are small rather than the first pauses long.
 */
#ifndef FORGE_COMMON_SCHED_COST_H
#define FORGE_COMMON_SCHED_COST_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

enum {
    FG_COST_TERMS = 4,
    FG_COST_ROWS = 257, /* decode rows, 0 to 256, whose steps are known by themselves */
};

typedef struct fg_cost {
    double weights[FG_COST_TERMS]; /* ns: base, per prefill token, row, KV token */
    double covariance[FG_COST_TERMS][FG_COST_TERMS]; /* of the fit */
    uint64_t steps;
    /* Steps of decode rows alone: what they took beside the fit, as kernels take rows in tiles and a row more
     * costs nothing here and much there; and the number of the last such step, 0: none. */
    float rows_ratio[FG_COST_ROWS];
    uint32_t rows_step[FG_COST_ROWS];
    double copy_bytes_per_ns; /* 0: never seen */
    double block_bytes;
    /* Hand-overs, by the blocks of the last chunk: weighted means and products of deviations. */
    double push_weight, push_blocks, push_ns, push_blocks2, push_cross;
    uint32_t odd_steps; /* in a row, that took far too long to be believed at once */
} fg_cost;

typedef struct fg_cost_step {
    uint32_t prefill_tokens;
    uint32_t decode_rows;
    uint64_t kv_tokens; /* KV slots that the step's rows attend to, summed over rows */
} fg_cost_step;

void fg_cost_init(fg_cost *cost, uint64_t block_bytes);
/* A step without rows teaches nothing. One that took twenty times the prediction is taken for a
 * disturbance, unless several of them come in a row. */
void fg_cost_learn(fg_cost *cost, const fg_cost_step *step, uint64_t took_ns);
void fg_cost_learn_copy(fg_cost *cost, uint64_t bytes, uint64_t took_ns);
/* ns. */
double fg_cost_predict(const fg_cost *cost, const fg_cost_step *step);
/* ns of a step of `plain` decode rows alone, and `more_rows` that attend to `more_kv` tokens. Where such a step was seen
 * lately, what those took; else as little as is possible after what was seen, by one deviation of the fit: nothing more
 * than `plain` while all steps had equally many rows. So more rows are tried, and are soon known. */
double fg_cost_rows_at_least(const fg_cost *cost, const fg_cost_step *plain, uint32_t more_rows,
                             uint64_t more_kv);
/* The largest chunk, at least 1 and at most chunk_max, whose step with these other parts stays within
 * target_ns. */
uint32_t fg_cost_chunk(const fg_cost *cost, const fg_cost_step *rest, uint64_t target_ns,
                       uint32_t chunk_max);
/* Likewise for a chunk that starts behind `position` tokens, all of which it attends to: rest->kv_tokens
 * does not hold its own share, which grows with its square. */
uint32_t fg_cost_chunk_at(const fg_cost *cost, const fg_cost_step *rest, uint32_t position,
                          uint64_t target_ns, uint32_t chunk_max);
/* KV slots that a chunk behind `position` tokens attends to. */
static inline uint64_t fg_cost_chunk_kv(uint32_t position, uint32_t tokens)
{
    return (uint64_t)position * tokens + (uint64_t)tokens * (tokens + 1ull) / 2;
}
/* A hand-over was accepted this long after its last chunk was computed, which had filled `blocks`. */
void fg_cost_learn_push(fg_cost *cost, uint32_t blocks, uint64_t exposed_ns);
/* ns that each more block of a last chunk adds to its hand-over. */
double fg_cost_push_block(const fg_cost *cost);
/* Whether handing over `blocks` more at the end takes longer than a step more before it. */
bool fg_cost_push_is_dearer(const fg_cost *cost, uint64_t blocks);
/* Whether moving `blocks` out and in again is cheaper than computing `redo_tokens` again. */
bool fg_cost_swap_is_cheaper(const fg_cost *cost, uint32_t blocks, uint32_t redo_tokens);

#endif
