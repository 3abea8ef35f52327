/*
 * speed - what the router knows about how fast one worker is. A value; owned by whoever keeps the
 * worker's record. Pure: no clock, nothing is allocated, every call takes the same few operations.
 *
 * It begins with what the worker measured at its start and claimed in HELLO, cut to what a machine can
 * be, and is fitted to what is seen: a prompt's time as base + tokens * a + attended pairs * b, a decode
 * step as base + rows * a + KV tokens * b, a hand-over as base + blocks * a. One observation moves a
 * prediction by a bounded factor, the first ones most, so neither a stall nor a lie does lasting harm.
 * What the terms do not explain goes into `correction`, the ratio of the seen to the predicted time to
 * first token, which is bounded as well.
 *
 * All weights are finite and above zero at any time, whatever was claimed or observed.
 */
#ifndef FORGE_ROUTER_SPEED_H
#define FORGE_ROUTER_SPEED_H

#include <stdbool.h>
#include <stdint.h>

#include "common/sched/cost.h"

enum { FG_SPEED_TERMS = 3 };

typedef struct fg_speed {
    double prefill[FG_SPEED_TERMS];   /* ns: base, per token, per attended pair of tokens */
    double step[FG_SPEED_TERMS];      /* ns: base, per row, per KV token */
    double push[FG_SPEED_TERMS];      /* ns: base, per block; the third is unused */
    double restore_ns_per_block;      /* from the host tier */
    double correction;                /* seen / predicted time to first token */
    uint32_t prefills, steps, pushes; /* observations; each stops at its maximum */
} fg_speed;

/* As in HELLO. Zero: not claimed. */
typedef struct fg_speed_claim {
    double prefill_ns_base, prefill_ns_per_token, prefill_ns_per_kv;
    double step_ns_base, step_ns_per_row;
    double push_ns_per_block;
} fg_speed_claim;

/* What FIRST says, and what the router saw itself. */
typedef struct fg_speed_first {
    uint32_t position, tokens;     /* found in the cache; computed after that */
    uint64_t ahead_tokens;         /* of prompts that were before it when it was placed */
    uint64_t queue_ns, compute_ns; /* the worker's word */
    uint64_t seen_ns;              /* placed -> FIRST, by the router's clock; 0: not known */
    uint64_t predicted_ns;         /* by fg_place_pick for the same span; 0: not predicted */
    double correction;             /* that was in this prediction; 0: the present one */
} fg_speed_first;

/* NULL: nothing is claimed. */
void fg_speed_init(fg_speed *speed, const fg_speed_claim *claim);

/* ns. A prompt's `tokens` behind `position` cached ones; 0 for none. */
static inline double fg_speed_prefill_ns(const fg_speed *speed, uint32_t position, uint32_t tokens)
{
    double pairs = (double)fg_cost_chunk_kv(position, tokens);
    return tokens == 0 ? 0
                       : speed->prefill[0] + speed->prefill[1] * tokens + speed->prefill[2] * pairs;
}

static inline double fg_speed_step_ns(const fg_speed *speed, uint32_t rows, uint64_t kv_tokens)
{
    return speed->step[0] + speed->step[1] * rows + speed->step[2] * (double)kv_tokens;
}

/* From the end of the last chunk to the receiver's acceptance, when `blocks` travel beside `compute_ns`
 * of prefill and the last chunk fills `last_blocks` of them. 0 blocks: 0. */
double fg_speed_exposed_ns(const fg_speed *speed, uint32_t blocks, uint32_t last_blocks,
                           double compute_ns);

/* A worker's word is believed as far as it fits into the time that the router saw. */
void fg_speed_learn_first(fg_speed *speed, const fg_speed_first *first);
/* A gap between two TOKENS messages. The caller leaves out gaps in which a prompt was computed or the
 * worker had nothing to do. */
void fg_speed_learn_step(fg_speed *speed, uint32_t rows, uint64_t kv_tokens, uint64_t gap_ns);
/* PUSHED; the arguments are those of fg_speed_exposed_ns. */
void fg_speed_learn_push(fg_speed *speed, uint32_t blocks, uint32_t last_blocks, double compute_ns,
                         uint64_t exposed_ns);
/* Enough prompts were seen for its prefill speed to be more than a claim. */
bool fg_speed_is_proven(const fg_speed *speed);

#endif
