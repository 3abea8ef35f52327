/*
 * worker_internal - what worker.c (joining, messages, the life of sequences) and worker_step.c (plans
 * and steps) share. Private to common/worker.
 */
#ifndef FORGE_COMMON_WORKER_WORKER_INTERNAL_H
#define FORGE_COMMON_WORKER_WORKER_INTERNAL_H

#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/base/limits.h"
#include "common/base/map.h"
#include "common/worker/worker.h"

typedef struct fg_worker_peer {
    char name[FG_LIMIT_NAME_BYTES + 1];
    uint64_t epoch;
    uint32_t index;     /* the link's */
    uint64_t broken_ns; /* since when its link refuses work; 0: it does not */
} fg_worker_peer;

/* Which block of which sequence a digest of the step in flight belongs to. */
typedef struct fg_worker_digest {
    fg_seq *seq;
    uint32_t index;
    bool receiver; /* senders are moved on with their items, and may be gone before their digests */
} fg_worker_digest;

/* Ended requests whose doubled messages are still recognised as such. */
enum { FG_WORKER_ENDED_MAX = 512 };

struct fg_worker {
    fg_worker_options options;
    char name[FG_LIMIT_NAME_BYTES + 1];
    fg_pool *pool;
    fg_seq_list waiting, running, others, closing;
    fg_map *by_request;                  /* (request, attempt) mixed -> fg_seq, not CLOSING */
    fg_map *by_ticket;                   /* ticket -> fg_seq while the ticket is open */
    uint64_t ended[FG_WORKER_ENDED_MAX]; /* keys of by_request, the oldest overwritten first */
    uint32_t ended_next;
    fg_worker_peer *peers;
    uint32_t peer_count;
    uint64_t next_ticket;

    bool joined, up, stalled, draining;
    uint64_t epoch;
    uint64_t up_ns;           /* since when the connection stands */
    uint32_t refusals;        /* in a row */
    uint64_t reconnect_at_ns; /* 0: no reconnection pending */
    uint64_t load_sequence, load_sent_ns, load_period_ns;
    bool load_dirty;

    /* The step in flight and the arrays that plans are made in; all of fixed size. */
    bool stepping;
    fg_step step;
    fg_step_seq *items;
    fg_seq **item_seqs;
    uint32_t item_max;
    fg_step_digest *digests;
    fg_worker_digest *digest_owners;
    uint32_t digest_max;
    fg_sched_seq *snapshot;
    fg_seq **snapshot_seqs;
    fg_plan_item *plan;
    uint32_t *needs;
    fg_wire_token *tokens_out;
    uint32_t tokens_out_count;

    fg_buf out;
    fg_arena *inbox;
    fg_worker_stats stats;
};

/* worker_step.c */
fg_status fg_worker_step_create(fg_worker *worker, fg_error *err);
void fg_worker_step_destroy(fg_worker *worker);
/* Admits what fits and starts a step when the engine is idle and there is work. */
void fg_worker_run(fg_worker *worker);

/* worker.c */
/* Blocks that admission must set aside for a sequence. */
uint32_t fg_worker_need(const fg_worker *worker, const fg_seq *seq);
/* Frees a CLOSING sequence when nothing uses it any more. */
void fg_worker_settle(fg_worker *worker, fg_seq *seq);

#endif
