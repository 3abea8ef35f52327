/*
 * admit - whether a request may wait, and how long the next one should stay away. Pure.
 */
#ifndef FORGE_ROUTER_ADMIT_H
#define FORGE_ROUTER_ADMIT_H

#include <stdint.h>

#include "common/base/status.h"

typedef struct fg_admit_load {
    uint32_t queued; /* requests that no worker has yet */
    uint64_t queued_tokens;
    uint32_t live;           /* queued and running */
    double ended_per_second; /* recent rate of requests that ended; 0 when unknown */
} fg_admit_load;

typedef struct fg_admit_limits {
    uint32_t queued_max;
    uint64_t queued_tokens_max;
    uint32_t live_max;
} fg_admit_limits;

/* FG_AGAIN: refuse it now (429). */
fg_status fg_admit_offer(const fg_admit_load *load, const fg_admit_limits *limits,
                         uint32_t prompt_tokens);
/* Seconds after which a place in the queue is likely, 1..60. */
uint32_t fg_admit_retry_after(const fg_admit_load *load);

#endif
