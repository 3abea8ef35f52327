/*
 * world - plans applied to counters: requests, blocks and a clock of steps, with no model behind. It
 * plays the worker's part as simply as can be, checks every plan (plan_check.h) and recounts every block
 * after every step; a fault ends the test with the step's number.
 */
#ifndef FORGE_TESTS_UNIT_COMMON_SCHED_WORLD_H
#define FORGE_TESTS_UNIT_COMMON_SCHED_WORLD_H

#include "common/sched/sched.h"

enum { WORLD_REQUESTS_MAX = 10000, WORLD_SEQS_MAX = 64, WORLD_WAITS_MAX = 128 };

typedef enum world_state { ABSENT = 0, WAITING, RUNNING, ENDED } world_state;

typedef struct world_request {
    uint32_t prompt, output_max;
    uint32_t stop_after; /* an end token is chosen as this output token; 0: never */
    int32_t priority;
    world_state state;
    uint32_t output, computed, blocks, promised;
    bool preempted, swapped, at_capacity;
    uint64_t rank;
    uint32_t admits, preemptions, swaps, computed_total; /* how often; tokens */
    uint64_t admitted_step, ended_step, preempted_step;  /* 1: the first */
} world_request;

typedef struct world {
    fg_sched_limits limits;
    const fg_cost *cost;
    uint32_t blocks, free, tier_free;
    bool cache_keeps; /* what a preempted one had is found again, but for its last token */
    uint64_t step, now_ns, hash; /* the hash covers every plan */
    uint32_t request_count, running_count, waiting_count, ended_count;
    uint32_t running[WORLD_SEQS_MAX], waiting[WORLD_REQUESTS_MAX];
    world_request requests[WORLD_REQUESTS_MAX]; /* a request's index is its arrival */
    /* The last step. */
    fg_sched_seq seqs[WORLD_SEQS_MAX];
    fg_sched_wait waits[WORLD_WAITS_MAX];
    fg_plan_item items[WORLD_SEQS_MAX];
    fg_plan_victim victims[WORLD_SEQS_MAX];
    uint32_t admits[WORLD_SEQS_MAX];
    uint32_t item_of[WORLD_SEQS_MAX]; /* request of each item */
    fg_sched_plan plan;
} world;

/* A world with generous limits: budget and chunk 4096, 16 sequences, no watermark. */
void world_init(world *w, uint32_t blocks, uint32_t block_size);
/* The new request's index; UINT32_MAX: refused, because it could never fit. */
uint32_t world_add(world *w, uint32_t prompt, uint32_t output_max);
uint32_t world_add_with(world *w, uint32_t prompt, uint32_t output_max, int32_t priority);
/* One step, of a second. False: there was nothing to do. */
bool world_step(world *w);
/* Steps until nothing is left to do; more than `steps_max` fail the test, and so does work left over. */
void world_run(world *w, uint64_t steps_max);
/* Tokens that the request got in the last step. */
uint32_t world_tokens_of(const world *w, uint32_t request);

#endif
