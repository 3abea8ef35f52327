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
#include "common/base/hash.h"
#include "common/obs/flight.h"
#include "common/obs/spans.h"
#include "common/obs/trace.h"
#include "proto/wire.h"
#include "router/admit.h"
#include "router/placement.h"
#include "router/registry.h"
#include "router/residency.h"

typedef struct fg_dispatch fg_dispatch;

/* How a request went, for its owner; durations are sums over all visits of a state. */
typedef struct fg_dispatch_report {
    uint32_t prompt_tokens,
        cached_tokens; /* cached: found computed, on the worker that prefilled */
    uint32_t chunks;   /* steps that the prompt took */
    uint32_t preemptions, attempts;
    uint64_t queued_ns, reserved_ns, prefilling_ns, transferring_ns, decoding_ns;
    bool reserved, transferred; /* was in that state, if for no time: news of decode may overtake */
    uint64_t worker_queue_ns, worker_compute_ns; /* parts of prefilling, as the worker saw them */
    uint64_t first_token_ns, total_ns;           /* since its start; first 0: no token came */
    /* As its last placing predicted it: from there to the first token, and why it was placed so. */
    uint64_t predicted_ttft_ns;
    fg_place_why why;
    bool split;
} fg_dispatch_report;

/* What the owner of a request hears. After on_end the request id is dead. Never called from inside
 * fg_dispatch_start or fg_dispatch_cancel. */
typedef struct fg_dispatch_sink {
    /* `logprobs` for the call; NULL unless asked for, or where there was no memory for them. */
    void (*on_token)(void *ctx, uint32_t index, uint32_t id, uint64_t digest,
                     const fg_logprobs *logprobs);
    /* What the model said of tokens of the prompt, from number `first` on, for the call; each of them once and in order, all
     * before the first token. NULL in a sink that does not ask. It cancels nothing. */
    void (*on_scores)(void *ctx, uint32_t first, const fg_scores *scores);
    /* The prompt's embedding, for the call; once, before the first token, from a job that asks for it. Likewise. */
    void (*on_embedding)(void *ctx, const float *embedding, uint32_t count);
    /* finish is STOP, LENGTH, CANCELLED or ERROR; `text` says why for ERROR. */
    void (*on_end)(void *ctx, fg_finish finish, fg_status status, const char *text,
                   const fg_dispatch_report *report);
    void *ctx;
} fg_dispatch_sink;

typedef struct fg_dispatch_job {
    const uint32_t *tokens; /* borrowed until on_end */
    uint32_t token_count;
    fg_wire_params params;
    fg_dispatch_sink sink;
    uint64_t tenant;      /* whose share it is; 0: nobody in particular */
    fg_admit_slo slo;     /* what it was promised; 0: nothing */
    uint64_t deadline_ns; /* from now to its last token; 0: it has all the time */
} fg_dispatch_job;

/* FG_AGAIN: the queue is full (429). FG_PEER_LOST: no worker for a phase (503). FG_BAD_INPUT: can never
 * fit any worker (400). On FG_OK *id_out names the request. */
fg_status fg_dispatch_start(fg_dispatch *dispatch, const fg_dispatch_job *job, uint64_t *id_out,
                            fg_error *err);
/* Requests like this one that workers and line have room for at a time when nobody else is there: more of them than that
 * are refused however often they come. UINT64_MAX: unknown, as a worker that is waited for is away. */
uint64_t fg_dispatch_at_once(fg_dispatch *dispatch, const fg_dispatch_job *job);
/* The owner does not want it any more (client gone, or a stop string was found): no sink call follows.
 * `reason` is FG_FINISH_CANCELLED or FG_FINISH_STOP, for the books. True: the request was still alive, and
 * *report_out (or NULL) is filled. */
bool fg_dispatch_cancel(fg_dispatch *dispatch, uint64_t id, fg_finish reason,
                        fg_dispatch_report *report_out);

typedef struct fg_dispatch_options {
    fg_clock clock;
    fg_digest128 fingerprint; /* of the served model */
    uint64_t router_epoch;    /* random; request ids and attempts are unique under it */
    fg_digest128 cache_key;   /* random: the secret of this cluster's block hashes */
    fg_trace *trace;          /* gets the life of each request; NULL: nobody looks */
    fg_spans *spans;          /* gets the spans of traced ones; NULL: nobody looks */
    fg_flight *flight;        /* keeps what comes in (router/flight_records.h); NULL: nobody does */
    uint32_t lease_ms;        /* a worker silent for longer is lost */
    uint32_t stuck_ms;        /* so is one that works and ends no step for so long; 0: never */
    fg_admit_limits limits;
    fg_place_options place;
    size_t residency_bytes; /* what may be known about cached blocks; 0: 64 MiB */
    /* A tenant's weight; NULL: all have 1. */
    uint32_t (*weight_of)(void *ctx, uint64_t tenant);
    void *weight_ctx;
    uint32_t tenant_running_max; /* requests of one tenant that workers have; 0: no cap */
    uint32_t queue_ahead; /* requests past which smaller ones may be placed at a time; 0: nobody */
    const char *const
        *wait_for_prefill; /* names that must have joined once before ready; borrowed */
    uint32_t wait_for_prefill_count;
    const char *const *wait_for_decode;
    uint32_t wait_for_decode_count;
    /* Frames to workers; bus handles as given to on_up. */
    fg_status (*send)(void *ctx, uint32_t peer, const void *bytes, size_t size_bytes);
    void (*drop)(void *ctx, uint32_t peer);
    void *ctx;
} fg_dispatch_options;

fg_status fg_dispatch_create(const fg_dispatch_options *options, fg_dispatch **dispatch_out,
                             fg_error *err);
/* Requests in flight are dropped without a word to their sinks. */
void fg_dispatch_destroy(fg_dispatch *dispatch);

/* The bus's events. */
void fg_dispatch_on_up(fg_dispatch *dispatch, uint32_t peer, const char *identity);
void fg_dispatch_on_frame(fg_dispatch *dispatch, uint32_t peer, const void *bytes,
                          size_t size_bytes);
void fg_dispatch_on_down(fg_dispatch *dispatch, uint32_t peer);
/* Deadlines, leases, the queue: every 10..50 ms. */
void fg_dispatch_tick(fg_dispatch *dispatch);

/* True when a request would succeed now: every phase has a worker. */
bool fg_dispatch_ready(const fg_dispatch *dispatch);
/* Largest prompt + output, in tokens, that some worker pair can hold; 0 without workers. */
uint32_t fg_dispatch_context_max(const fg_dispatch *dispatch);
/* Seconds for Retry-After, by the present load: until a request of which nothing is known finds room. */
uint32_t fg_dispatch_retry_after(const fg_dispatch *dispatch);
/* The same for the request that fg_dispatch_start has just refused with FG_AGAIN; 0: it says nothing. */
uint32_t fg_dispatch_refused_s(const fg_dispatch *dispatch);
/* Ends every request with an error: the process is about to go. */
void fg_dispatch_abort_all(fg_dispatch *dispatch, const char *why);

typedef struct fg_dispatch_stats {
    uint32_t queued, live; /* live counts the queued ones too */
    uint64_t started, finished, failed, cancelled, retried;
    uint64_t said_again; /* tokens that a client had seen when their worker was lost, made again */
    uint64_t workers_lost, workers_stuck, frames_refused, stale_dropped, refused_joins;
    uint64_t pushed_blocks, pushed_bytes, push_retries;
    uint64_t refused[FG_ADMIT_REASONS]; /* at the door, by fg_admit_reason */
    uint64_t given_up, held;            /* who waited in vain; whose pair was asked later */
    uint64_t prefix_waits; /* placed later, because there was no room where their prefix is */
    uint64_t pulls, pulled_blocks; /* asked for; that came */
    uint64_t circles_avoided;      /* pairs that were not made because they could wait for ever */
    uint64_t decisions, hash_ns, lookup_ns,
        score_ns; /* times that a place was looked for, and how long */
    uint64_t placed, placed_split, resyncs;
    uint64_t hit_blocks_expected, hit_blocks_found; /* of prompts, where they were computed */
} fg_dispatch_stats;
void fg_dispatch_stats_get(const fg_dispatch *dispatch, fg_dispatch_stats *stats_out);
const fg_residency *fg_dispatch_residency(const fg_dispatch *dispatch);
const fg_registry *fg_dispatch_registry(const fg_dispatch *dispatch);
/* Recounts what is counted as it goes; aborts on a difference (simulator, tests). */
void fg_dispatch_check(const fg_dispatch *dispatch);

/* What a worker is used for from now on, FG_ROLE_*; what runs there goes on. FG_PEER_LOST: no such worker;
 * FG_BAD_INPUT: it cannot do that. *was_out (may be NULL) is what it was used for. */
fg_status fg_dispatch_set_role(fg_dispatch *dispatch, const char *name, uint32_t roles,
                               uint32_t *was_out, fg_error *err);
const char *fg_dispatch_role_name(uint32_t roles); /* "prefill", "decode" or "both" */
/* Tells every worker to forget its cached blocks; requests in flight are not touched. Returns how many
 * were told. A request started later finds nothing of before. */
uint32_t fg_dispatch_clear_cache(fg_dispatch *dispatch);
/* Appends the JSON object of GET /forge/v1/cache/stats: sums, and a row per worker. */
bool fg_dispatch_render_cache(const fg_dispatch *dispatch, fg_buf *out);
/* Appends the JSON object of GET /debug/state. */
bool fg_dispatch_render_state(const fg_dispatch *dispatch, fg_buf *out);

#endif
