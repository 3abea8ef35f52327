/*
 * dispatch_internal - what dispatch.c (requests), dispatch_queue.c (who is placed next, and where),
 * dispatch_workers.c (workers and their messages) and dispatch_state.c (what people see) share. Private to
 * router.
 */
#ifndef FORGE_ROUTER_DISPATCH_INTERNAL_H
#define FORGE_ROUTER_DISPATCH_INTERNAL_H

#include "common/base/arena.h"
#include "common/base/map.h"
#include "common/obs/life.h"
#include "router/dispatch.h"
#include "router/journal.h"
#include "router/placement.h"
#include "router/queue.h"

enum { FG_RECENT_MAX = 64, FG_TRANSPORT_BYTES = 32, FG_IDENTITY_BYTES = FG_LIMIT_NAME_BYTES + 32 };

/* What happened to a request, kept after its end for GET /debug/state. */
typedef struct fg_job_record {
    uint64_t id;
    char prefill[FG_LIMIT_NAME_BYTES + 1];
    char decode[FG_LIMIT_NAME_BYTES + 1];
    char transport[FG_TRANSPORT_BYTES];
    uint32_t kv_blocks, push_retries;
    uint64_t kv_bytes;
    uint32_t prompt_tokens, completion_tokens;
    uint64_t created_ns, placed_ns, first_ns, second_ns, last_ns;
    uint64_t prefill_queue_ns, prefill_compute_ns, push_exposed_ns;
    uint32_t cached_tokens, chunks; /* of the prompt, on the worker that prefilled */
    uint32_t preemptions;           /* on all workers, in all attempts */
    uint32_t attempts;
    fg_finish finish;
} fg_job_record;

typedef struct fg_job {
    struct fg_job *next, *previous; /* in dispatch->jobs, oldest first */
    fg_queue_item item;             /* its place in the queue; RUNNING while workers have it */
    uint64_t id;
    uint32_t attempt;  /* of placement, from 1 */
    uint32_t failures; /* placements that a worker's failure or loss has ended */
    fg_life life;
    fg_dispatch_job input;
    fg_journal *journal;
    fg_reg_worker *prefill, *decode; /* NULL: not (or no longer) working on it; equal: unsplit */
    uint32_t need_blocks;            /* booked at `decode`: of the prompt */
    uint32_t computed_tokens; /* of the prompt, in this attempt; known with the first token */
    uint32_t state_tokens;    /* tokens delivered when it entered its state */
    bool done_known;          /* the last worker has ended it; tokens may still be missing */
    fg_finish done_finish;
    uint32_t done_generated;
    uint64_t deadline_ns; /* of the present state */
    fg_job_record record;
} fg_job;

struct fg_dispatch {
    fg_dispatch_options options;
    fg_registry *registry;
    fg_map *by_id;
    char (*identities)[FG_IDENTITY_BYTES]; /* of the bus, by its handles; "": nobody */
    fg_job *jobs, *jobs_last;
    fg_queue *queue;
    uint32_t retry_after_s; /* of the last refusal; 0: none yet */
    uint64_t next_id;
    bool was_complete; /* every awaited worker has joined once */
    bool was_cleared;  /* caches were: whoever joins may have missed it */
    fg_buf out;
    fg_arena *inbox;
    fg_dispatch_stats stats;
    fg_job_record recent[FG_RECENT_MAX];
    uint32_t recent_count; /* ever; the newest is at (recent_count - 1) % FG_RECENT_MAX */
    fg_place_worker *snapshot;
    double ended_rate,
        prompt_rate; /* requests, and tokens of prompts computed, per second; smoothed */
    uint64_t ended_seen, prompt_tokens, prompt_seen, rate_at_ns;
    uint64_t ticked_ns;       /* the last fg_dispatch_tick */
    uint64_t nobody_since_ns; /* since when no worker could take the queue's head; 0: one can */
};

/* dispatch_queue.c */
/* The queue for these options. */
fg_status fg_dispatch_create_queue(fg_dispatch *dispatch, fg_error *err);
/* A new one, which admit has let in, or one that comes back to its old place. */
void fg_dispatch_enqueue(fg_dispatch *dispatch, fg_job *job);
/* It ends: the queue forgets it, and its tenant has had what was computed for it. */
void fg_dispatch_dequeue(fg_dispatch *dispatch, fg_job *job);
bool fg_dispatch_waits(const fg_job *job);
/* The first in line that may go, or NULL. */
fg_job *fg_dispatch_head(fg_dispatch *dispatch);
/* Whether a request may wait; else FG_AGAIN, and when it may. */
fg_status fg_dispatch_admit(fg_dispatch *dispatch, const fg_dispatch_job *input, fg_error *err);
fg_place_verdict fg_dispatch_place(const fg_dispatch *dispatch, uint32_t prompt_tokens,
                                   uint32_t total_tokens, fg_place_choice *choice_out);
/* Places what can be placed, from the queue's head; with queue_ahead, past some that cannot. */
void fg_dispatch_pump(fg_dispatch *dispatch);
/* Back to its old place in the queue, not counted as a failure: the worker was full after all. */
void fg_dispatch_requeue(fg_dispatch *dispatch, fg_job *job);
/* The decode worker does all of it: the prefill worker, which was not told yet, is let go. */
void fg_dispatch_make_local(fg_job *job);
void fg_dispatch_release_prefill(fg_job *job);
void fg_dispatch_release_decode(fg_job *job);
void fg_dispatch_check_queue(const fg_dispatch *dispatch);

/* dispatch.c */
uint64_t fg_dispatch_now(const fg_dispatch *dispatch);
void fg_dispatch_set_state(fg_dispatch *dispatch, fg_job *job, fg_life_state state);
/* The request is over: tells workers still on it, the books, and its owner. */
void fg_dispatch_end(fg_dispatch *dispatch, fg_job *job, fg_finish finish, fg_status status,
                     const char *text);
/* Takes the job from its workers (they are told to drop it) and puts it back into the queue, at its old
 * place, for another attempt; ends it when tokens were seen or attempts are used up. */
void fg_dispatch_retry(fg_dispatch *dispatch, fg_job *job, fg_status status, const char *text);
/* Gives tokens that are in order to the owner; ends the job when all have come. */
void fg_dispatch_deliver(fg_dispatch *dispatch, fg_job *job);

/* dispatch_workers.c */
fg_status fg_dispatch_send(fg_dispatch *dispatch, fg_reg_worker *worker, const fg_msg *msg);
void fg_dispatch_lose(fg_dispatch *dispatch, fg_reg_worker *worker, const char *why);

/* dispatch_state.c */
const char *fg_dispatch_role_name(uint32_t roles); /* "prefill", "decode" or "both" */

#endif
