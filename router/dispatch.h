/*
 * dispatch - moves each request through its life on the workers; owns placement order, deadlines and
 * cancel. Owned by the loop thread. Time comes in through tick; messages through on_frame.
 *
 *   QUEUED -> RESERVED -> PREFILLING -> TRANSFERRING -> DECODING -> FINISHED     (split)
 *   QUEUED -> PREFILLING -> DECODING -> FINISHED                                 (one worker for both)
 *   any -> CANCELLED, FAILED
 */
#ifndef FORGE_ROUTER_DISPATCH_H
#define FORGE_ROUTER_DISPATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/net/bus.h"
#include "proto/wire.h"

typedef struct fg_dispatch fg_dispatch;
typedef struct fg_obs_metrics fg_obs_metrics;

/* What the owner of a request hears. After on_end the request id is dead. Never called from inside
 * fg_dispatch_start or fg_dispatch_cancel. */
typedef struct fg_dispatch_sink {
    void (*on_token)(void *ctx, uint32_t index, uint32_t id, uint64_t digest);
    /* finish is STOP, LENGTH, CANCELLED or ERROR; `text` says why for ERROR. */
    void (*on_end)(void *ctx, fg_finish finish, fg_status status, const char *text);
    void *ctx;
} fg_dispatch_sink;

typedef struct fg_dispatch_job {
    const uint32_t *tokens; /* borrowed until on_end */
    uint32_t token_count;
    fg_wire_sampling params;
    fg_dispatch_sink sink;
} fg_dispatch_job;

/* FG_AGAIN: the queue is full (429). FG_PEER_LOST: no worker for a phase (503). FG_BAD_INPUT: can never
 * fit any worker (400). On FG_OK *id_out names the request. */
fg_status fg_dispatch_start(fg_dispatch *dispatch, const fg_dispatch_job *job, uint64_t *id_out,
                            fg_error *err);
/* The owner does not want it any more (client gone, or a stop string was found): no sink call follows.
 * `reason` is FG_FINISH_CANCELLED or FG_FINISH_STOP, for the books. */
void fg_dispatch_cancel(fg_dispatch *dispatch, uint64_t id, fg_finish reason);

/* True when a request would succeed now: every phase has a worker. */
bool fg_dispatch_ready(const fg_dispatch *dispatch);
/* Largest prompt + output, in tokens, that some worker pair can hold; 0 without workers. */
uint32_t fg_dispatch_context_max(const fg_dispatch *dispatch);
/* Seconds for Retry-After when start answered FG_AGAIN. */
uint32_t fg_dispatch_retry_after(const fg_dispatch *dispatch);
/* Appends the JSON object of GET /debug/state. */
bool fg_dispatch_render_state(const fg_dispatch *dispatch, fg_buf *out);

#endif
