/*
 * dispatch_internal - what dispatch.c (requests), dispatch_doors.c (who
 * calls, and when), dispatch_flight.c (what is kept of that), dispatch_queue.c (who is placed next), dispatch_place.c
 * (where), dispatch_pull.c (what is sent there first), dispatch_know.c (what is known about the workers), dispatch_workers.c (workers and their
 * messages) and dispatch_state.c (what people see) share. Private to router.
 */
#ifndef FORGE_ROUTER_DISPATCH_INTERNAL_H
#define FORGE_ROUTER_DISPATCH_INTERNAL_H

#include "common/base/arena.h"
#include "common/base/map.h"
#include "common/base/rng.h"
#include "common/obs/life.h"
#include "router/dispatch.h"
#include "router/flight_records.h"
#include "router/journal.h"
#include "router/placement.h"
#include "router/queue.h"
#include "router/rate.h"

enum {
    FG_RECENT_MAX = 64,
    FG_REFUSALS_MAX = 16,
    FG_TRANSPORT_BYTES = 32,
    FG_IDENTITY_BYTES = FG_LIMIT_NAME_BYTES + 32
};

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
    uint64_t predicted_ttft_ns; /* from its last placing */
    fg_place_why why;           /* likewise */
    bool split;                 /* likewise */
    double correction;          /* of its prefill worker's predictions, likewise */
    uint32_t predicted_hit_blocks;
    uint32_t pulled_blocks; /* that came to its prefill worker from another one */
    fg_finish finish;
} fg_job_record;

/* A worker that was not let in, kept for GET /debug/state. */
typedef struct fg_refusal {
    char name[FG_LIMIT_NAME_BYTES + 1];
    char why[FG_ERROR_TEXT_MAX];
    uint64_t at_ns;
} fg_refusal;

/* Blocks that go to a job's prefill worker from another one: planned (`to` is NULL, attempt 0), then asked for. Its messages
 * have the job's number, and the attempt's with FG_PULL_ATTEMPT. */
typedef struct fg_pull {
    fg_reg_worker *from, *to; /* NULL: not (or no longer) at work on it */
    uint32_t attempt, blocks; /* blocks: leading ones that are to be there in the end */
    uint32_t missing;         /* of these, as the receiver said */
    uint64_t predicted_ns, until_ns;
} fg_pull;
#define FG_PULL_ATTEMPT 0x80000000u

typedef struct fg_job {
    struct fg_job *next, *previous; /* in dispatch->jobs, oldest first */
    fg_queue_item item;             /* its place in the queue; RUNNING while workers have it */
    uint64_t id;
    uint32_t attempt;  /* of placement, from 1 */
    uint32_t failures; /* placements that a worker's failure or loss has ended */
    uint32_t losses;   /* of these, losses: it may be what kills them */
    fg_life life;
    fg_dispatch_job input;
    fg_journal *journal;
    fg_reg_worker *prefill, *decode; /* NULL: not (or no longer) working on it; equal: unsplit */
    fg_pull pull;
    uint32_t cost;       /* to its tenant, as expected */
    uint64_t give_up_ns; /* from then on waiting is in vain; 0: never */
    uint64_t
        waits_from_ns; /* in the queue: since it came, or lost a worker when a part of it was seen */
    uint64_t pause_until_ns; /* it has failed more than once: the next try makes more sense later */
    uint64_t held_since_ns;  /* it could be placed, but prefill comes to it later; 0: not held */
    uint64_t elsewhere_since_ns; /* it could be placed, but not where its prefix is; 0: not held */
    bool waits; /* booked: the reservation of one peer waits for the prefill of the other */
    uint32_t waits_by, waits_for;
    uint64_t *keys; /* of its prompt's full blocks; NULL: not named */
    uint64_t root;
    uint32_t key_count;
    uint32_t ahead_tokens;    /* booked at `prefill`: of the prompt, still to be computed */
    double ahead_ns;          /* predicted for them */
    uint64_t before_tokens;   /* that were ahead of them */
    uint32_t need_blocks;     /* booked at `decode`: of the prompt */
    uint32_t context_tokens;  /* booked at `decode` */
    uint32_t left_tokens;     /* likewise: that are expected to come */
    uint32_t computed_tokens; /* of the prompt, in this attempt; known with the first token */
    uint64_t trace_parent;    /* of its own span, params.trace_span; 0: this router writes none */
    uint32_t
        scored; /* leading tokens of the prompt of which all that was asked is told; see fg_job_unscored */
    bool embedded;         /* its prompt's embedding is told, where that was asked for */
    uint32_t state_tokens; /* tokens delivered when it entered its state */
    bool done_known;       /* the last worker has ended it; tokens may still be missing */
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
    uint32_t refused_s; /* until the newest request would be let in; 0: it was, or nobody knows */
    uint64_t next_id;
    bool was_complete; /* every awaited worker has joined once */
    bool was_cleared;  /* caches were: whoever joins may have missed it */
    fg_buf out;
    fg_buf said;         /* tokens that go along with a further try */
    fg_buf plain;        /* a frame without its secrets, for the flight recorder */
    uint32_t depth;      /* calls from outside that are under way: one, or more from inside sinks */
    uint32_t sunken;     /* sink calls of the outermost one so far */
    uint64_t entered_ns; /* its time, for all that it does */
    fg_arena *inbox;
    fg_dispatch_stats stats;
    fg_job_record recent[FG_RECENT_MAX];
    uint32_t recent_count; /* ever; the newest is at (recent_count - 1) % FG_RECENT_MAX */
    fg_refusal refusals[FG_REFUSALS_MAX]; /* stats.refused_joins ever, kept like recent */
    fg_residency *residency;
    fg_place_worker *snapshot;
    fg_place_request asked;  /* of the newest decision, which the snapshot was made for */
    fg_residency_hit *found; /* by the tree; as many as there are slots */
    fg_place_hit *hits;      /* like snapshot */
    uint32_t index_of[FG_LIMIT_WORKERS]; /* in the snapshot, by peer */
    /* Live splits, by peers: how many reservations of one worker wait for the prefill of another. */
    uint16_t (*waits)[FG_LIMIT_WORKERS];
    fg_rng dice;
    double mean_answer; /* tokens, of recent requests; 0: none has ended */
    fg_rate ended_rate,
        prompt_rate; /* requests, and tokens of prompts computed, while anybody was served */
    uint64_t prompt_tokens;
    uint64_t served_ns;      /* how long there were live requests, up to served_from_ns */
    uint64_t served_from_ns; /* counted up to here; with live requests only */
    uint64_t created_ns;
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
/* Whether a request may wait; else FG_AGAIN, and when it may. `choice`: where it would go now; NULL:
 * nowhere yet. */
fg_status fg_dispatch_admit(fg_dispatch *dispatch, fg_job *job, const fg_place_choice *choice,
                            fg_error *err);
/* What the line has to bear now; what concerns one request is left out. */
fg_admit_load fg_dispatch_load(const fg_dispatch *dispatch);
/* Prompt tokens that a request of this tenant may have at most to wait at all. */
uint64_t fg_dispatch_tokens_max(const fg_dispatch *dispatch);
/* Those who wait in vain: even started now, they would miss what they were promised. */
void fg_dispatch_end_late(fg_dispatch *dispatch);
/* A newcomer goes where it was found to fit, if nobody is before it. */
void fg_dispatch_first_try(fg_dispatch *dispatch, fg_job *job, const fg_place_choice *choice);
/* Places what can be placed, from the queue's head; with queue_ahead, past some that cannot. */
void fg_dispatch_pump(fg_dispatch *dispatch);
/* Back to its old place in the queue, not counted as a failure: the worker was full after all. */
void fg_dispatch_requeue(fg_dispatch *dispatch, fg_job *job);
void fg_dispatch_check_queue(const fg_dispatch *dispatch);

/* dispatch_place.c */
/* An answer is as long as the recent ones were, but no longer than this one may be. */
uint32_t fg_dispatch_expected_answer(const fg_dispatch *dispatch, uint32_t max_tokens);
/* The same for promises: one that goes on behind its end token is as long as it may be. */
uint32_t fg_dispatch_sure_answer(const fg_dispatch *dispatch, const fg_wire_params *params);
fg_place_verdict fg_dispatch_choose(fg_dispatch *dispatch, fg_job *job,
                                    fg_place_choice *choice_out);
/* After fg_dispatch_choose has found no room: what is predicted for when there is some, behind `ahead` others. False: nobody
 * knows. */
bool fg_dispatch_foretell(fg_dispatch *dispatch, uint32_t ahead, fg_place_choice *choice_out);
/* Requests like this one that idle workers have room for. */
uint64_t fg_dispatch_capacity(fg_dispatch *dispatch, const fg_dispatch_job *job);
/* Books the job, which is in no queue, and tells its worker. False: that could not be told. */
bool fg_dispatch_send_off(fg_dispatch *dispatch, fg_job *job, const fg_place_choice *choice);
/* The decode worker does all of it: the prefill worker, which was not told yet, is let go. */
void fg_dispatch_make_local(fg_dispatch *dispatch, fg_job *job);
/* Its prompt is computed, or will not be. */
void fg_dispatch_release_ahead(fg_dispatch *dispatch, fg_job *job);
void fg_dispatch_release_prefill(fg_dispatch *dispatch, fg_job *job);
void fg_dispatch_release_decode(fg_dispatch *dispatch, fg_job *job);

/* dispatch_pull.c */
/* What the choice says is done when the prompt is about to be sent to its worker: decode may do all of it alone. */
void fg_dispatch_plan_pull(fg_dispatch *dispatch, fg_job *job, const fg_place_choice *choice);
/* Asks the job's prefill worker, which was not told of the job yet, for room for what was planned, if anything was. */
void fg_dispatch_begin_pull(fg_dispatch *dispatch, fg_job *job);
/* Nobody waits for it any more. */
void fg_dispatch_end_pull(fg_dispatch *dispatch, fg_job *job);
/* A message with FG_PULL_ATTEMPT. */
void fg_dispatch_on_pull(fg_dispatch *dispatch, fg_reg_worker *worker, const fg_msg *msg);
/* The worker is lost. */
void fg_dispatch_lose_pulls(fg_dispatch *dispatch, const fg_reg_worker *worker);

/* dispatch_know.c */
void fg_dispatch_know_worker(fg_dispatch *dispatch, fg_reg_worker *worker);
void fg_dispatch_forget_worker(fg_dispatch *dispatch, const fg_reg_worker *worker);
void fg_dispatch_name_blocks(fg_dispatch *dispatch, fg_job *job);
/* One per worker of the snapshot, or NULL: nobody has anything of it. */
const fg_place_hit *fg_dispatch_hits(fg_dispatch *dispatch, fg_job *job, uint32_t worker_count);
/* Other requests that lately shared its beginning. */
double fg_dispatch_heat(fg_dispatch *dispatch, const fg_job *job);
/* It was placed: its blocks are expected on its workers. */
void fg_dispatch_foresee(fg_dispatch *dispatch, const fg_job *job);
void fg_dispatch_on_news(fg_dispatch *dispatch, fg_reg_worker *worker, const fg_msg *msg);
void fg_dispatch_check_news(fg_dispatch *dispatch, fg_reg_worker *worker);
/* The share of its time that computing prompts took lately, 0 to 1 and never 0. */
double fg_dispatch_prompt_share(const fg_reg_worker *worker, uint64_t now);
void fg_dispatch_learn_first(fg_dispatch *dispatch, fg_job *job, const fg_msg *msg);
void fg_dispatch_learn_push(fg_job *job, const fg_msg *msg);
void fg_dispatch_learn_step(fg_dispatch *dispatch, fg_reg_worker *worker, const fg_msg *msg);

/* dispatch_doors.c: the time of the call that is under way. */
uint64_t fg_dispatch_now(const fg_dispatch *dispatch);

/* What its worker is to be told; what an earlier attempt has said of the prompt is not asked again. */
fg_wire_params fg_dispatch_params(const fg_job *job);
/* Tokens of the prompt of which the model has yet to say something. */
static inline uint32_t fg_job_unscored(const fg_job *job)
{
    uint32_t known = job->scored > 0 ? job->scored : 1; /* nothing is said of the first one */
    return job->input.params.want_scores > 0 ? job->input.token_count - known : 0;
}

/* What the doors lead to: dispatch.c, dispatch_workers.c */
fg_status fg_dispatch_do_start(fg_dispatch *dispatch, const fg_dispatch_job *job, uint64_t *id_out,
                               fg_error *err);
bool fg_dispatch_do_cancel(fg_dispatch *dispatch, uint64_t id, fg_finish reason,
                           fg_dispatch_report *report_out);
void fg_dispatch_do_up(fg_dispatch *dispatch, uint32_t peer, const char *identity);
void fg_dispatch_do_frame(fg_dispatch *dispatch, uint32_t peer, const void *bytes,
                          size_t size_bytes);
void fg_dispatch_do_down(fg_dispatch *dispatch, uint32_t peer);
void fg_dispatch_do_tick(fg_dispatch *dispatch);
void fg_dispatch_do_abort_all(fg_dispatch *dispatch, const char *why);
fg_status fg_dispatch_do_set_role(fg_dispatch *dispatch, const char *name, uint32_t roles,
                                  uint32_t *was_out, fg_error *err);
uint32_t fg_dispatch_do_clear(fg_dispatch *dispatch);

/* dispatch_flight.c */
fg_flight_call fg_dispatch_call(const fg_dispatch *dispatch);
void fg_dispatch_note_text(fg_dispatch *dispatch, fg_record_kind kind, const fg_record_peer *head,
                           const char *text);
typedef struct fg_dispatch_frame {
    uint32_t peer;
    const void *bytes;
    size_t size_bytes;
    const fg_msg *msg; /* NULL: it could not be read */
} fg_dispatch_frame;
void fg_dispatch_note_frame(fg_dispatch *dispatch, const fg_dispatch_frame *frame);
void fg_dispatch_note_start(fg_dispatch *dispatch, const fg_dispatch_job *job);
/* The span that was drawn for it; when a record is run again, the one that was drawn then. */
void fg_dispatch_note_span(fg_dispatch *dispatch, fg_job *job);
/* The record that is run again names its blocks. */
bool fg_dispatch_told_keys(fg_dispatch *dispatch, fg_job *job);
/* An answer of the residency tree; when a record is run again from a rest, the answer then. */
uint64_t fg_dispatch_tell(fg_dispatch *dispatch, fg_record_kind kind, uint64_t value);
uint32_t fg_dispatch_tell_hits(fg_dispatch *dispatch, uint32_t found); /* in dispatch->found */
void fg_dispatch_note_sent(fg_dispatch *dispatch, uint32_t peer, const fg_msg *msg,
                           fg_status status);
void fg_dispatch_drop(fg_dispatch *dispatch, uint32_t peer);
void fg_dispatch_note_end(fg_dispatch *dispatch, const fg_job *job, fg_finish finish,
                          fg_status status);

/* flight_records.c */
void fg_dispatch_note_rest(fg_dispatch *dispatch);

/* dispatch.c */
void fg_dispatch_set_state(fg_dispatch *dispatch, fg_job *job, fg_life_state state);
/* The request is over: tells workers still on it, the books, and its owner. */
void fg_dispatch_end(fg_dispatch *dispatch, fg_job *job, fg_finish finish, fg_status status,
                     const char *text);
/* Takes the job from its workers (they are told to drop it) and puts it back into the queue, at its old
 * place, for another attempt; ends it when tokens were seen or attempts are used up. */
void fg_dispatch_retry(fg_dispatch *dispatch, fg_job *job, fg_status status, const char *text);
/* Gives tokens that are in order to the owner; ends the job when all have come. */
void fg_dispatch_deliver(fg_dispatch *dispatch, fg_job *job);
/* Its worker goes on with its prompt. */
void fg_dispatch_said_more(fg_dispatch *dispatch, fg_job *job);
/* Its worker has come to a token that was delivered in an earlier attempt. */
void fg_dispatch_say_again(fg_dispatch *dispatch, fg_job *job, uint32_t index);

/* dispatch_workers.c */
fg_status fg_dispatch_send(fg_dispatch *dispatch, fg_reg_worker *worker, const fg_msg *msg);
void fg_dispatch_lose(fg_dispatch *dispatch, fg_reg_worker *worker, const char *why);
/* Whether every worker that is waited for is here now. */
bool fg_dispatch_all_joined(const fg_dispatch *dispatch);

#endif
