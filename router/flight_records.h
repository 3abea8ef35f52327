/*
 * flight_records - what a router's flight recorder keeps: each call into the dispatcher with its time, what
 * the dispatcher was told in return, and what it did. tests/sim/replay.c makes the same calls again.
 *
 * What always holds: no prompt, no answer and no secret is in a record. Tokens are left out (a prompt is the names
 * of its blocks, which only the cluster's secret could make), as are salts, tickets, link records, the cache key
 * and the texts of errors. What is sent is kept as a hash of the frame without them.
 *
 * Calls made from inside a sink say after how many sink calls of the outermost call they came.
 */
#ifndef FORGE_ROUTER_FLIGHT_RECORDS_H
#define FORGE_ROUTER_FLIGHT_RECORDS_H

#include "common/obs/flight.h"
#include "router/dispatch.h"

typedef enum fg_record_kind {
    /* Calls. */
    FG_RECORD_UP = 1,
    FG_RECORD_FRAME,     /* as it came, but for what is left out */
    FG_RECORD_TOKENS,    /* a frame, taken apart */
    FG_RECORD_FIRST,     /* likewise */
    FG_RECORD_TICKET,    /* likewise */
    FG_RECORD_SCORES,    /* likewise */
    FG_RECORD_BAD_FRAME, /* could not be read, or is none that a worker sends */
    FG_RECORD_DOWN,
    FG_RECORD_TICK,
    FG_RECORD_START,
    FG_RECORD_CANCEL,
    FG_RECORD_ROLE,
    FG_RECORD_CLEAR,
    FG_RECORD_ABORT,
    FG_RECORD_CALLS, /* how many numbers calls take */
    /* What the dispatcher knew when a part of the record begins. */
    FG_RECORD_REST = FG_FLIGHT_KNOWN,
    FG_RECORD_IDENTITY,
    FG_RECORD_MEMBER,
    FG_RECORD_DEBT, /* fg_queue_debt */
    /* What it was told. */
    FG_RECORD_KEYS = FG_FLIGHT_TOLD, /* uint64_t each */
    FG_RECORD_SPAN,                  /* a drawn number */
    FG_RECORD_HITS, /* fg_residency_hit each; each time that the residency tree is asked */
    FG_RECORD_HEAT, /* uint64_t; likewise */
    FG_RECORD_NEWS, /* uint64_t, an fg_status; absent: FG_OK. Once in a call at most */
    FG_RECORD_LOST, /* uint64_t; absent: no. Likewise */
    /* What it did. */
    FG_RECORD_SENT = FG_FLIGHT_DID,
    FG_RECORD_DROPPED,
    FG_RECORD_ENDED,
    FG_RECORD_ANSWERED, /* what start and cancel gave back */
} fg_record_kind;

/* UP (the identity follows, with its NUL), FRAME (the bytes follow), DOWN, BAD_FRAME, CANCEL, ROLE (the name
 * follows, with its NUL). */
typedef struct fg_record_peer {
    fg_flight_call call;
    uint64_t id;     /* CANCEL: of the request */
    uint32_t peer;   /* ROLE: the roles; CANCEL: the reason */
    uint32_t unread; /* BAD_FRAME: 1 when it could not be read */
} fg_record_peer;

typedef struct fg_record_token {
    uint64_t request;
    uint32_t attempt, index;
} fg_record_token;

typedef struct fg_record_tokens { /* fg_record_token each follow */
    fg_flight_call call;
    uint32_t peer, count;
} fg_record_tokens;

typedef struct fg_record_first {
    fg_flight_call call;
    uint64_t request, queue_ns, compute_ns, share_ns;
    uint32_t attempt, peer, cached_tokens, chunks;
    uint32_t embedding_count, pad;
} fg_record_first;

typedef struct fg_record_ticket { /* block ids follow, uint32_t each */
    fg_flight_call call;
    uint64_t request;
    uint32_t attempt, peer, granted, local, first_block, block_count;
} fg_record_ticket;

typedef struct fg_record_scores {
    fg_flight_call call;
    uint64_t request;
    uint32_t attempt, peer, first, count, likely_count, pad;
} fg_record_scores;

typedef struct fg_record_start {
    fg_flight_call call;
    fg_wire_params params;
    fg_admit_slo slo;
    uint64_t tenant, deadline_ns;
    uint32_t token_count, pad;
} fg_record_start;

typedef struct fg_record_sent {
    uint64_t hash;
    uint32_t peer, kind; /* fg_msg_kind */
    uint32_t status;     /* fg_status of the bus */
    uint32_t pad;
} fg_record_sent;

typedef struct fg_record_ended {
    uint64_t id;
    uint32_t finish, status, tokens, attempts;
} fg_record_ended;

typedef struct fg_record_answered {
    uint64_t id;          /* start: of the request, 0 when refused */
    uint32_t status, pad; /* start: fg_status; cancel: whether it was alive */
} fg_record_answered;

/* What must be equal for a dispatcher to be made again. Its awaited names follow in the preface, each with its
 * NUL, first those of prefill. */
typedef struct fg_record_options {
    fg_digest128 fingerprint;
    uint64_t router_epoch;
    fg_admit_limits limits;
    fg_place_options place;
    uint64_t residency_bytes;
    uint32_t lease_ms, stuck_ms, queue_ahead, tenant_running_max;
    uint32_t wait_for_prefill_count, wait_for_decode_count;
} fg_record_options;

/* Of the records' layout. */
uint64_t fg_record_shape(void);
const char *fg_record_name(uint32_t kind);
/* Appends the preface for these options. False: it does not fit. */
bool fg_record_put_options(const fg_dispatch_options *options, fg_buf *out);
/* The reverse; names point into `preface`, and into the two arrays of FG_LIMIT_WORKERS. FG_BAD_INPUT: it is
 * damaged. */
fg_status fg_record_get_options(const void *preface, size_t size_bytes, const char **prefill_names,
                                const char **decode_names, fg_dispatch_options *options_out,
                                fg_error *err);
/* The dispatcher takes over what a record of REST to DEBT says; it is fresh, and these come in the
 * order of the file. FG_BAD_INPUT: nonsense. */
fg_status fg_dispatch_restore(fg_dispatch *dispatch, const fg_flight_record *record, fg_error *err);

#endif
