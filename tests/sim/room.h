/*
 * room - one worker alone: the real scheduler, pool, prefix cache, tier and books over the simulated
 * engine, with neither bus nor cluster, driven by one seed through fg_worker's own entry points.
 *
 * A seed draws a worker (block size, pool from two blocks up, chunk, budget, policies, tier, overlap) and
 * a stream of requests (shared system prompts, second turns, families of choices, priorities, salts,
 * cache modes, answers longer than the pool), and throws cancels, cache clears, lost routers, damaged
 * tier slots and jumps of the clock at them. Every token is compared with what the request alone would
 * have given; the books are recounted while it goes; room.c says what else must hold.
 */
#ifndef FORGE_TESTS_SIM_ROOM_H
#define FORGE_TESTS_SIM_ROOM_H

#include <stdbool.h>
#include <stdint.h>

#include "common/worker/worker.h"

typedef struct room_options {
    uint64_t seed;
    uint32_t requests; /* 0: the seed draws it */
    bool pressure;     /* a quick engine, far more work than blocks, nothing thrown at it */
    bool verbose;
} room_options;

/* What happened. One for each run; room_add makes a sum. */
typedef struct room_report {
    uint64_t events, steps, steps_ahead, tokens;
    uint64_t requests, finished, at_capacity, refused, cancelled, lost, aborted;
    uint64_t clears, losses, flips, orders_checked, recounts;
    /* Cancels by the state that the request was in, as far as the outside can tell. */
    uint64_t cancelled_waiting, cancelled_running;
    uint64_t hit_tokens, tier_hit_tokens, forks, copied, remapped, deferrals, evictions;
    uint64_t preemptions, swapped, restored, damaged, discarded;
    uint64_t drafted, accepted;             /* guessed tokens */
    uint64_t model_drafted, model_accepted; /* the draft model's of them */
    uint64_t news_blocks, news_checked;
} room_report;

/* Runs one room to its end. Aborts when a rule is broken. */
void room_run(const room_options *options, room_report *report_out);
void room_add(room_report *sum, const room_report *report);

#endif
