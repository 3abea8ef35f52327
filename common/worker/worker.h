/*
 * worker - what every worker does, whatever its role: joins a router and renews its lease, owns the
 * live sequences, the pool and the plans, feeds the engine one step after the other, and reports.
 * Owned by the loop thread. Time comes in through fg_worker_tick, messages through the on_* calls, so
 * the same code runs in a process and in the simulator.
 *
 * The hand-over hooks (prefill-worker, decode-worker) decide what happens to a sequence that came with a
 * ticket; a sequence without one is prefilled and decoded here. A role only says which of them the router
 * means to use: a worker with a link can do everything at any time.
 *
 * What always holds: a sequence ends exactly once; its blocks are given back when no step, no writer
 * and no reader uses them any more; a sequence is its router's, whom alone it is told about; after the
 * connection to a router was lost, nothing of the old connection lives on (its epoch grows and the worker
 * joins as a stranger), and what other routers have here goes on.
 */
#ifndef FORGE_COMMON_WORKER_WORKER_H
#define FORGE_COMMON_WORKER_WORKER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/engine/engine.h"
#include "common/kv/layout.h"
#include "common/kv/pool.h"
#include "common/kv/prefix.h"
#include "common/kv/tier.h"
#include "common/link/link.h"
#include "common/obs/flight.h"
#include "common/obs/spans.h"
#include "common/obs/trace.h"
#include "common/sched/sched.h"
#include "common/worker/seq.h"
#include "proto/wire.h"

typedef struct fg_worker fg_worker;

/* Routers that one worker joins, each for itself: a connection, epoch and lease of its own. */
enum { FG_WORKER_ROUTERS_MAX = 8 };

/* The two hand-over policies plug in here. */
typedef struct fg_handover {
    /* RESERVE has come in: hold blocks and answer with TICKET. */
    void (*on_reserve)(fg_worker *worker, const fg_msg *msg);
    /* A sender's sequence has advanced: blocks up to seq->digested are complete and digested. */
    void (*on_computed)(fg_worker *worker, fg_seq *seq);
    /* The link has room again, or time has passed: push on. */
    void (*on_pump)(fg_worker *worker, fg_seq *seq);
    /* All ticket blocks of a CHECKING sequence were digested; seq->bad lists those that differ. */
    void (*on_checked)(fg_worker *worker, fg_seq *seq);
    /* The link's news for the sequence of that ticket. */
    void (*on_commit)(fg_worker *worker, fg_seq *seq, const fg_link_commit *commit);
    void (*on_answer)(fg_worker *worker, fg_seq *seq, const uint32_t *bad, uint32_t bad_count);
} fg_handover;

typedef struct fg_worker_options {
    const char *name;
    /* Of the first router's first connection: the others' are the numbers after it, and a later connection's is as much
     * greater as there are routers, so no two are ever the same. */
    uint64_t epoch;
    uint32_t router_count; /* 1 to FG_WORKER_ROUTERS_MAX; 0: 1. Known by number from here on */
    uint32_t roles;        /* FG_ROLE_*: what it is meant for at first; the router may change it */
    fg_wire_speed speed;   /* as measured at start; 0: it was not */
    fg_clock clock;
    fg_engine *engine; /* borrowed */
    fg_link *link;     /* borrowed; NULL: sequences with tickets are refused */
    fg_kv_layout layout;
    bool blocks_in_device; /* the link's arena is a device's memory (FG_KV_LAYOUT_IN_DEVICE) */
    uint32_t block_count;
    uint32_t context_max; /* tokens of one sequence */
    uint32_t vocab_size;
    uint32_t embedding_length; /* numbers of the model's state */
    /* Of a sequence in the engine's draft model, its guesses too; 0: there is none. */
    uint32_t draft_context;
    bool draft_alone; /* and no text is looked up */
    fg_sched_limits limits;
    bool overlap;               /* plan the next step while one computes */
    bool prefix_cache;          /* share and keep blocks of equal prefixes */
    bool zero_copy;             /* compute what is handed over straight into the receiver's memory,
                                    where that is in reach */
    uint32_t local_prefill_max; /* a handed-over prompt whose missing tail is no longer than this is
                                    computed by the decode worker itself; 0: never */
    fg_tier *tier;              /* borrowed; NULL: no swapping, evicted blocks are gone */
    fg_trace *trace;            /* borrowed; NULL: nobody looks */
    fg_spans *spans;            /* borrowed; gets the spans of traced requests; NULL: likewise */
    fg_flight *flight;          /* borrowed; keeps recent calls (worker_records.h); NULL: none */
    bool link_recorded;         /* `flight` compares, and answers for a link that there was */
    fg_digest128 fingerprint;   /* of the model */
    uint64_t pid;
    const fg_handover *prefill; /* policies, borrowed; NULL: never sends, never receives */
    const fg_handover *decode;
    /* Not called before there is a request: who serves may still be reading its tokenizer. */
    bool (*is_end)(void *ctx, uint32_t token);
    /* The bytes that a token stands for, none for control tokens; NULL: requests with a grammar are refused. */
    const char *(*token_text)(void *ctx, uint32_t token, size_t *length_out);
    /* A step has ended; for metrics. NULL: nobody counts. */
    void (*on_step)(void *ctx, const fg_trace_step *step);
    /* One frame to a router. FG_AGAIN: its queue is full. */
    fg_status (*send)(void *ctx, uint32_t router, const void *bytes, size_t size_bytes);
    /* Connect to that router again, as identity name#epoch; called outside of any other call of this header's
     * except fg_worker_tick. */
    void (*reconnect)(void *ctx, uint32_t router, uint64_t epoch);
    void *ctx;
} fg_worker_options;

fg_status fg_worker_create(const fg_worker_options *options, fg_worker **worker_out, fg_error *err);
/* The engine must be idle or closed; sequences in flight are abandoned. */
void fg_worker_destroy(fg_worker *worker);

/* Who calls what: the bus, the engine's wake-up, a timer (every 10..50 ms), the link. */
void fg_worker_on_up(fg_worker *worker, uint32_t router);
void fg_worker_on_frame(fg_worker *worker, uint32_t router, const void *bytes, size_t size_bytes);
void fg_worker_on_down(fg_worker *worker, uint32_t router);
void fg_worker_on_engine(fg_worker *worker);
void fg_worker_tick(fg_worker *worker);
/* The link's callbacks, ctx being the worker; give these to the link's options. */
fg_link_events fg_worker_link_events(fg_worker *worker);

/* Tells every router to place nothing new here; fg_worker_idle is true when all has ended. */
void fg_worker_drain(fg_worker *worker);
bool fg_worker_idle(const fg_worker *worker);
/* At one router at least. */
bool fg_worker_joined(const fg_worker *worker);
bool fg_worker_joined_at(const fg_worker *worker, uint32_t router);
/* Every sequence that is not CLOSING ends with an error to the router (shutdown past its deadline). */
void fg_worker_abort_all(fg_worker *worker, const char *why);

typedef struct fg_worker_stats {
    fg_pool_stats pool;
    fg_prefix_stats prefix;
    fg_tier_stats tier;
    uint32_t running, waiting, preempted, closing; /* waiting: preempted ones and arrivals too */
    uint64_t steps, busy_ns, prompt_tokens, generated_tokens;
    uint64_t frames_refused, stale_dropped;
    uint64_t cache_query_tokens, cache_hit_tokens; /* of prompts when they were first admitted */
    uint64_t tier_hit_tokens;                      /* part of the hits that came from the tier */
    uint64_t preemptions, swapped_blocks, restored_blocks, copied_blocks;
    uint64_t chunks, deferrals, forks, remapped_blocks, damaged_blocks;
    uint64_t link_pushed_blocks, link_pushed_bytes, link_received_blocks, link_received_bytes;
    uint32_t pinned_prefixes, pinned_blocks;
    uint64_t pins_refused, pins_yielded;
    uint64_t link_descriptors; /* puts or messages that the pushed blocks went in */
    uint64_t direct_blocks;    /* computed straight into another worker's memory */
    uint64_t link_stale;       /* messages of the link for tickets that are closed */
    uint32_t leaked_blocks;    /* in use although no sequence lives here and no step runs: a bug */
    uint64_t broken;           /* requests at which the model broke down */
    uint64_t drafts;           /* items of steps that looked at guessed tokens */
    uint64_t drafted_tokens, accepted_tokens; /* guessed ones computed, and those that were right */
    uint64_t model_drafted_tokens, model_accepted_tokens; /* the draft model's of them */
    uint64_t draft_ns, draft_steps, draft_caught_tokens;  /* what that model did */
    uint64_t discarded_tokens; /* computed for a sequence that had already ended (overlap) */
} fg_worker_stats;
void fg_worker_stats_get(const fg_worker *worker, fg_worker_stats *stats_out);
/* Counters against a full recount: pool, references, promises, lists, tier. Aborts on a difference
 * (simulator, tests). */
void fg_worker_check(fg_worker *worker);
/* Another worker may write this block, or has, and it was not checked yet (simulator). */
bool fg_worker_is_arriving(const fg_worker *worker, uint32_t block_id);
/* Forgets every cached prefix, in the tier too; blocks in use stay with their sequences. */
void fg_worker_clear_cache(fg_worker *worker);

/* --- for the hand-over policies --- */

fg_pool *fg_worker_pool(fg_worker *worker);
const fg_worker_options *fg_worker_config(const fg_worker *worker);
uint64_t fg_worker_now_ns(const fg_worker *worker);
void fg_worker_send(fg_worker *worker, uint32_t router, const fg_msg *msg);
/* The link's operations on a sequence's ticket (link.h), by way of the flight recorder. */
fg_status fg_worker_link_expect(fg_worker *worker, const fg_seq *seq, fg_error *err);
/* With seq->bad. */
fg_status fg_worker_link_answer(fg_worker *worker, const fg_seq *seq);
/* `count` of the ticket's blocks, from `index` on. */
fg_status fg_worker_link_push(fg_worker *worker, const fg_seq *seq, uint32_t index, uint32_t count);
/* So many blocks need no push, for they were computed in the receiver's memory. */
void fg_worker_count_direct(fg_worker *worker, uint32_t blocks);
/* With its digests and its first token. */
fg_status fg_worker_link_commit(fg_worker *worker, const fg_seq *seq);
const char *fg_worker_link_transport(fg_worker *worker, uint32_t peer);
/* The link's index of a peer that PEER has introduced; FG_LINK_PEER_NONE when unknown. */
uint32_t fg_worker_find_peer(const fg_worker *worker, const char *name, uint64_t epoch);
/* A new sequence from a message's fields; NULL (and DONE with an error was sent) when it can never
 * fit or memory is short. */
fg_seq *fg_worker_add_seq(fg_worker *worker, const fg_msg *msg, const uint32_t *tokens,
                          uint32_t token_count, const fg_wire_params *params);
/* Blocks for a prompt that will arrive: what is cached is borrowed, the rest taken. FG_AGAIN: not now. */
fg_status fg_worker_hold_blocks(fg_worker *worker, fg_seq *seq);
/* Equal prompts do well to wait for the blocks from seq->planned on. */
void fg_worker_expect(fg_worker *worker, fg_seq *seq);
/* Leading blocks of a sequence's prompt that are cached here. */
uint32_t fg_worker_cached_blocks(fg_worker *worker, fg_seq *seq);
/* The KV up to seq->computed is complete: others may share its full blocks from now on. */
void fg_worker_publish(fg_worker *worker, fg_seq *seq);
/* Pins the blocks that the ticket names (not those before them) and makes the sequence findable by its ticket. False: no room for it. */
bool fg_worker_bind_ticket(fg_worker *worker, fg_seq *seq);
/* The link to a peer refuses work. If the router does not call the peer lost within seconds, only the
 * link is broken, and this worker joins again, which makes all of its links anew. */
void fg_worker_note_broken(fg_worker *worker, uint32_t peer);
/* The ticket is closed: unpins; the sequence is not found by it any more. */
void fg_worker_release_ticket(fg_worker *worker, fg_seq *seq);
void fg_worker_set_state(fg_worker *worker, fg_seq *seq, fg_seq_state state);
/* The last token of each of these (at most seqs_max) is new: guesses what follows it (worker_draft.c). */
void fg_worker_guess(fg_worker *worker, fg_seq *const *seqs, uint32_t count);
/* Ends a sequence: sends DONE (unless finish is CANCELLED), gives its blocks back as soon as nothing
 * uses them. */
void fg_worker_end(fg_worker *worker, fg_seq *seq, fg_finish finish, const char *text);
/* A ticket id that this worker never used before. */
uint64_t fg_worker_next_ticket(fg_worker *worker);
/* A hand-over was accepted: this long after its last chunk was computed, which had filled `blocks`. */
void fg_worker_learn_push(fg_worker *worker, uint32_t blocks, uint64_t exposed_ns);
/* Whether another sequence may arrive: a slot is free, and no block that a remote writer would get is
 * still being copied away. */
bool fg_worker_can_receive(const fg_worker *worker);
/* The answer to the RESERVE that is being read, which cannot be met now. */
void fg_worker_send_busy(fg_worker *worker, uint64_t request, uint32_t attempt);

#endif
