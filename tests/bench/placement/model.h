/*
 * model - a queueing model of a cluster, to compare placement policies: no messages, no failures, just
 * workers that take steps of chunks and rows, prefix caches, and hand-overs that take time. Owned by the
 * bench; one run is a function of its load and its seed. The router's side of it calls the real
 * fg_place_pick and the real fg_speed, and knows nothing that a router would not be told.
 */
#ifndef FORGE_TESTS_BENCH_PLACEMENT_MODEL_H
#define FORGE_TESTS_BENCH_PLACEMENT_MODEL_H

#include "router/placement.h"

enum { MODEL_WORKERS_MAX = 32, MODEL_GROUPS_MAX = 512 };

typedef struct model_load {
    uint32_t workers,
        prefill_workers; /* the first are for prefill only, the others for decode only; */
    bool mixed;          /* or all for both */
    uint32_t requests;
    uint32_t concurrency;   /* closed loop: so many clients; 0: open loop at `rate` */
    double rate;            /* per second */
    uint32_t groups;        /* prefixes, equally likely; 0: nothing is shared */
    uint32_t prefix_tokens; /* shared in a group */
    uint32_t tail_tokens;   /* of each prompt alone; drawn from half to one and a half of it */
    uint32_t answer_tokens; /* likewise */
    uint32_t cache_groups;  /* prefixes that a worker's cache holds */
    uint32_t hot_percent;   /* of requests go to group 0 */
    double slow_last;       /* the last worker is so many times slower; 0: it is not */
    uint64_t seed;
} model_load;

typedef struct model_result {
    double seconds, requests_per_s, good_per_s;         /* good: both limits held */
    double ttft_mean, ttft_p99, itl_mean, latency_mean; /* s */
    double hit_share, whole_share;
    uint64_t tokens_computed;
} model_result;

model_result model_run(const model_load *load, const fg_place_options *options);
/* Prefill and one decode step of an idle worker, and the requests per second that `workers` can carry
 * when each does both: to choose rates by. */
double model_capacity(const model_load *load);

#endif
