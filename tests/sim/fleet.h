/*
 * fleet - a cluster of many workers under the load of a trace, on simulated time and in one thread: the
 * dispatcher, workers, hand-over policies and scheduler of `forge serve`, over a clock, bus, link and
 * engine that are simulated. Nothing fails here; what is asked is how long everybody waits.
 *
 * What is simulated: a step takes what the table says, a message the table's time, a handed-over block its
 * time on the sender's wire, one after the other. What takes no time: the router and the workers' own
 * bookkeeping, tokenizing, HTTP. Answers have the trace's length; nobody cancels.
 *
 * Equal options give equal results, to the last bit.
 */
#ifndef FORGE_TESTS_SIM_FLEET_H
#define FORGE_TESTS_SIM_FLEET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "router/placement.h"
#include "tests/sim/steptable.h"
#include "tests/sim/tally.h"
#include "tests/sim/workload.h"

typedef enum fg_fleet_role {
    FG_FLEET_PREFILL,
    FG_FLEET_DECODE,
    FG_FLEET_BOTH,
    FG_FLEET_ROLES
} fg_fleet_role;

/* What differs between the set-ups of a comparison; the rest of the names are those of `forge serve`. */
typedef struct fg_fleet_setup {
    uint32_t workers[FG_FLEET_ROLES];
    uint32_t kv_blocks, block_size, max_seqs;
    uint32_t prefill_chunk_size, max_batch_tokens, step_ms;
    uint32_t local_prefill_tokens;
    uint32_t queue_limit;
    uint32_t routing, split; /* fg_place_policy, fg_place_split */
    uint32_t queue_ahead, residency_mb;
    /* The first `slow` workers of each role take slow_percent / 100 times as long for a step as they
     * claim when they join. */
    uint32_t slow, slow_percent;
    bool prefix_cache, overlap;
} fg_fleet_setup;

typedef struct fg_fleet_options {
    fg_fleet_setup setup;
    const fg_workload *workload; /* borrowed, as long as the result lives */
    const fg_steptable *steps;   /* borrowed during the run */
    double speedup;              /* arrivals come so many times faster; above 0 */
    uint64_t seed;
    /* Now and then; NULL: nobody looks. */
    void (*on_progress)(void *ctx, uint32_t ended, uint32_t count, uint64_t now_ns);
    void *ctx;
} fg_fleet_options;

typedef enum fg_fleet_outcome {
    FG_FLEET_OPEN = 0,
    FG_FLEET_FINISHED,
    FG_FLEET_FULL,     /* 429 */
    FG_FLEET_TOO_LONG, /* 400: no worker can ever hold it */
    FG_FLEET_NOBODY,   /* 503 */
    FG_FLEET_FAILED,
    FG_FLEET_OUTCOMES
} fg_fleet_outcome;

/* One request; times in nanoseconds since the first one came. */
typedef struct fg_fleet_row {
    uint64_t arrival_ns;
    uint64_t ttft_ns, e2e_ns; /* since its arrival; 0: never */
    uint64_t queued_ns;       /* in the router */
    uint64_t gap_sum_ns, gap_max_ns;
    uint64_t predicted_ns; /* from its placing to its first token */
    uint32_t output_tokens, cached_tokens, preemptions;
    uint32_t outcome; /* fg_fleet_outcome */
    bool split;
} fg_fleet_row;

/* The cluster at one moment; shares are of the time since the sample before. */
typedef struct fg_fleet_sample {
    uint64_t at_ns;
    uint32_t queued, running, waiting; /* in the router; in steps of workers; in lines of workers */
    float busy[FG_FLEET_ROLES];        /* 0 to 1 */
    float blocks_used;                 /* of all, 0 to 1; what is only cached is not in use */
} fg_fleet_sample;

enum { FG_FLEET_SAMPLES_MAX = 1024 };

typedef struct fg_fleet_result {
    fg_fleet_setup setup;
    fg_fleet_row *rows; /* one per request of the workload */
    uint32_t row_count;
    uint64_t counts[FG_FLEET_OUTCOMES];
    fg_tally gaps; /* between tokens of one answer */
    fg_fleet_sample samples[FG_FLEET_SAMPLES_MAX];
    uint32_t sample_count;
    uint64_t span_ns; /* from the first arrival to the last end */
    double busy[FG_FLEET_ROLES];
    uint64_t prompt_tokens, cached_tokens, output_tokens; /* of finished requests */
    uint64_t computed_tokens, generated_tokens;           /* by workers */
    uint64_t preemptions, pushed_blocks, retried;
    /* The router's: what it did, and what it knew. */
    uint64_t placed, placed_split, circles_avoided, held, given_up, resyncs;
    uint64_t hit_blocks_expected, hit_blocks_found;
    uint64_t known_blocks, known_wrong; /* of caches, at the end; blocks too many or too few */
    fg_place_why why;                   /* sums over finished requests */
    uint64_t evictions;
    uint32_t queue_peak;
    uint64_t events;
} fg_fleet_result;

/* FG_BAD_INPUT: no cluster can be so. */
fg_status fg_fleet_check(const fg_fleet_setup *setup, fg_error *err);
/* FG_BAD_INPUT: as fg_fleet_check. FG_AGAIN: out of memory. */
fg_status fg_fleet_run(const fg_fleet_options *options, fg_fleet_result **result_out,
                       fg_error *err);
void fg_fleet_result_free(fg_fleet_result *result);

#endif
