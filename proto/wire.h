/*
 * wire - one control-plane message to bytes and back. The only code that knows protobuf-c. Pure.
 *
 * Decoding puts everything into the caller's arena, within limits: frame size first, then counts,
 * string lengths, enum values, numbers in range. A frame of another protocol version decodes to
 * FG_BAD_INPUT, except HELLO, whose version the receiver judges so that it can answer REFUSE.
 */
#ifndef FORGE_PROTO_WIRE_H
#define FORGE_PROTO_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/base/status.h"

#define FG_PROTOCOL_VERSION 1u

/* Roles are a bit set. */
enum { FG_ROLE_PREFILL = 1, FG_ROLE_DECODE = 2 };

typedef enum fg_msg_kind {
    FG_MSG_HELLO = 1, /* worker -> router, first on a connection */
    FG_MSG_WELCOME,   /* router -> worker */
    FG_MSG_REFUSE,    /* router -> worker: not joined; the reason is for people */
    FG_MSG_LOAD,      /* worker -> router: lease renewal, block counts, progress */
    FG_MSG_PEER,      /* router -> worker: another worker's link record, before it is first named */
    FG_MSG_PEER_LOST, /* router -> worker: that worker was declared dead */
    FG_MSG_RESERVE,   /* router -> decode */
    FG_MSG_TICKET,    /* decode -> router */
    FG_MSG_PREFILL,   /* router -> prefill (with a ticket), or to one worker for both (without) */
    FG_MSG_FIRST,     /* prefill -> router: the first token */
    FG_MSG_PUSHED,    /* prefill -> router: decode accepted the blocks; what the push cost */
    FG_MSG_TOKENS,    /* decode -> router: all tokens of one step */
    FG_MSG_DONE,      /* worker -> router: the request has ended there */
    FG_MSG_CANCEL,    /* router -> worker */
    FG_MSG_DRAIN,     /* worker -> router: place nothing new here */
} fg_msg_kind;

typedef enum fg_finish {
    FG_FINISH_NONE = 0,
    FG_FINISH_STOP,   /* end token (or stop string, in the router) */
    FG_FINISH_LENGTH, /* max_tokens, or the context is full */
    FG_FINISH_CANCELLED,
    FG_FINISH_ERROR,       /* `text` says why */
    FG_FINISH_HANDED_OVER, /* prefill only: decode goes on */
} fg_finish;

typedef struct fg_wire_sampling {
    float temperature, top_p, min_p;
    uint32_t top_k;
    uint64_t seed;
    uint32_t max_tokens;
    bool ignore_eos;
    bool want_digests;
} fg_wire_sampling;

typedef struct fg_wire_peer {
    const char *name;
    uint64_t epoch;
} fg_wire_peer;

typedef struct fg_wire_hello {
    uint32_t protocol;
    fg_wire_peer self;
    uint32_t roles;
    uint64_t pid;
    uint64_t fingerprint_low, fingerprint_high; /* of the model file */
    const char *numerics_class;
    uint32_t layer_count, kv_head_count, head_dim, block_size, kv_dtype; /* kv/layout */
    uint32_t block_count, max_seqs, context_max;
    const void *link_record; /* may be absent: size 0 */
    size_t link_record_bytes;
} fg_wire_hello;

typedef struct fg_wire_load {
    uint32_t total, free, cached, held, pinned,
        quarantined; /* blocks; free is what can be promised */
    uint32_t running, waiting;
    uint64_t steps;    /* progress counter */
    uint64_t busy_ns;  /* time spent in steps */
    uint64_t sequence; /* newest wins */
} fg_wire_load;

typedef struct fg_wire_token {
    uint64_t request;
    uint32_t attempt;
    uint32_t choice;
    uint32_t index; /* 0-based position among the generated tokens */
    uint32_t id;
    uint64_t digest; /* of the logits row; 0 unless asked for */
} fg_wire_token;

typedef struct fg_msg {
    fg_msg_kind kind;
    uint64_t request; /* RESERVE TICKET PREFILL FIRST PUSHED DONE CANCEL */
    uint32_t attempt;
    union {
        fg_wire_hello hello;
        struct {
            uint64_t router_epoch;
            uint32_t lease_ms;
        } welcome;
        struct {
            const char *reason;
        } refuse;
        fg_wire_load load;
        struct {
            fg_wire_peer peer;
            uint64_t pid;
            const void *link_record;
            size_t link_record_bytes;
        } peer;
        struct {
            fg_wire_peer peer;
        } peer_lost;
        struct {
            fg_wire_peer writer; /* the prefill worker that will push */
            const uint32_t *tokens;
            uint32_t token_count;
            fg_wire_sampling sampling;
        } reserve;
        struct {
            bool granted; /* false: no room now, ask again */
            uint64_t ticket;
            uint32_t
                first_block; /* first missing block of the prompt (0 until prefixes are shared) */
            const uint32_t *blocks;
            uint32_t block_count;
        } ticket;
        struct {
            const uint32_t *tokens;
            uint32_t token_count;
            fg_wire_sampling sampling;
            bool has_ticket;
            fg_wire_peer target; /* the decode worker */
            uint64_t ticket;
            uint32_t first_block;
            const uint32_t *blocks;
            uint32_t block_count;
        } prefill;
        struct {
            uint32_t choice, id;
            uint64_t digest;
            uint64_t queue_ns, compute_ns; /* waiting and computing on the prefill worker */
        } first;
        struct {
            uint32_t blocks;
            uint64_t bytes;
            const char *transport;
            uint64_t exposed_ns; /* last chunk computed -> accepted by decode */
            uint32_t retries;
        } pushed;
        struct {
            const fg_wire_token *tokens;
            uint32_t count;
        } tokens;
        struct {
            fg_finish finish;
            const char *text; /* for FG_FINISH_ERROR */
            uint32_t generated;
        } done;
    };
} fg_msg;

/* Appends the frame. False when `out` cannot grow (or a field breaks a limit: a bug, asserted). */
bool fg_wire_encode(const fg_msg *msg, fg_buf *out);
/* FG_BAD_INPUT names the field. Pointers in *msg_out live in `arena` or in `bytes`. */
fg_status fg_wire_decode(const void *bytes, size_t size_bytes, fg_arena *arena, fg_msg *msg_out,
                         fg_error *err);
const char *fg_msg_name(fg_msg_kind kind);

#endif
