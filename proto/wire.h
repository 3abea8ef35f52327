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
#include "common/base/logits.h"
#include "common/base/status.h"

#define FG_PROTOCOL_VERSION 7u

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
    FG_MSG_CLEAR,     /* router -> worker: forget the prefix cache; blocks in use stay in use */
    FG_MSG_NEWS,      /* worker -> router: what changed in its prefix cache */
    FG_MSG_RESYNC,    /* router -> worker: news were missed, tell everything again */
    FG_MSG_ROLE,      /* router -> worker: what it is meant for from now on; for its next HELLO */
    FG_MSG_SCORES, /* worker -> router: what the model said of a part of the prompt; before FIRST */
} fg_msg_kind;

typedef enum fg_finish {
    FG_FINISH_NONE = 0,
    FG_FINISH_STOP,   /* end token (or stop string, in the router) */
    FG_FINISH_LENGTH, /* max_tokens, or the context is full */
    FG_FINISH_CANCELLED,
    FG_FINISH_ERROR,       /* `text` says why */
    FG_FINISH_HANDED_OVER, /* prefill only: decode goes on */
} fg_finish;

/* What a request may do with the prefix cache. */
typedef enum fg_cache_mode {
    FG_CACHE_AUTO = 0,
    FG_CACHE_FORCE, /* ends with an error when no block of its prompt is cached or being computed */
    FG_CACHE_DISABLE, /* computes everything and publishes nothing */
} fg_cache_mode;

/* Before whom a request goes; within a class, first come first served. Waiting makes up for class. */
enum { FG_PRIORITY_HIGH = -1, FG_PRIORITY_NORMAL = 0, FG_PRIORITY_LOW = 1 };

/* What a worker must know of a request besides its tokens: how to choose, when to stop, whom to let go
 * first, what to share. */
typedef struct fg_wire_params {
    float temperature, top_p, min_p;
    uint32_t top_k;
    uint64_t seed;
    /* What changes the logits first, see common/model/shape.h; all 0: nothing. */
    float repetition_penalty, frequency_penalty, presence_penalty;
    uint32_t min_tokens;
    const fg_bias *biases; /* as long as whoever gave the params says */
    uint32_t bias_count;
    /* What the answer's text is held to, as common/grammar reads it; kind 0: nothing. Likewise. */
    uint32_t grammar_kind;
    const char *grammar;
    size_t grammar_bytes;
    uint32_t max_tokens;
    bool ignore_eos;
    bool want_digests;
    uint32_t want_logprobs;       /* 0: none; else how many of the likeliest tokens, and one more */
    uint32_t want_scores;         /* likewise, of the prompt's tokens but the first */
    bool want_embedding;          /* FIRST brings the prompt's embedding; max_tokens is 1 then */
    int32_t priority;             /* FG_PRIORITY_* */
    uint32_t cache_mode;          /* fg_cache_mode */
    uint64_t salt_low, salt_high; /* of `cache_salt`: only equal salts share blocks; 0, 0: none */
    uint32_t
        pin_ms; /* the prompt's blocks are to stay cached for so long, if there is room; 0: no wish */
    /* RESERVE, PREFILL: nothing is computed. The prompt is whole blocks; whoever gets PREFILL has them cached and
     * pushes them, whoever got RESERVE has them in its cache then. Both end it with HANDED_OVER. */
    bool pull;
    uint64_t family; /* 0, or the same in all choices of one request: they fork from one another */
    /* W3C trace id, and the span that a worker's own spans are children of; span 0: not traced, and
     * the id is 0 too. */
    uint64_t trace_high, trace_low, trace_span;
} fg_wire_params;

typedef struct fg_wire_peer {
    const char *name;
    uint64_t epoch;
} fg_wire_peer;

/* How fast a worker is, as it measured itself at start; all 0: it did not. */
typedef struct fg_wire_speed {
    uint64_t prefill_ns_base, prefill_ns_per_token; /* a step with a prompt */
    uint64_t prefill_ps_per_kv; /* picoseconds for each pair of a token and an earlier one */
    uint64_t step_ns_base, step_ns_per_row; /* a decoding step */
    uint64_t push_ns_per_block;
} fg_wire_speed;

typedef struct fg_wire_hello {
    uint32_t protocol;
    fg_wire_peer self;
    uint32_t roles;
    uint64_t pid;
    uint64_t fingerprint_low, fingerprint_high; /* of the model file */
    const char *numerics_class;
    uint32_t layer_count, kv_head_count, head_dim, block_size, kv_dtype; /* kv/layout */
    uint32_t kv_layout;                                                  /* FG_KV_LAYOUT_VERSION */
    uint32_t block_count, max_seqs, context_max;
    uint32_t able; /* FG_ROLE_* that it could take; holds `roles` */
    fg_wire_speed speed;
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
    /* Counted since the worker started. */
    uint64_t cache_query_tokens, cache_hit_tokens; /* of admitted prompts */
    uint64_t evicted_blocks, preemptions, swapped_blocks, restored_blocks;
    uint32_t tier_blocks;   /* blocks in host memory: swapped or evicted */
    uint64_t news_sequence; /* of the last NEWS sent on this connection */
} fg_wire_load;

typedef enum fg_wire_change {
    FG_NEWS_RESET = 1, /* all that was told before is void; everything is told again from here on */
    FG_NEWS_STORED,    /* a run of blocks in chain order */
    FG_NEWS_REMOVED,   /* blocks, in any order */
    FG_NEWS_CLEARED,   /* nothing is left, in no tier */
} fg_wire_change;

/* A change in a worker's prefix cache. Keys are the low halves of block keys (common/kv/block_key). */
typedef struct fg_wire_news {
    fg_wire_change change;
    uint32_t tier; /* 0: the pool, 1: host memory */
    uint64_t
        parent; /* STORED: the key before the run's first; before a prompt's first block comes a
                        number that no block has */
    const uint64_t *keys;
    uint32_t key_count;
} fg_wire_news;

typedef struct fg_wire_token {
    uint64_t request;
    uint32_t attempt;
    uint32_t choice;
    uint32_t index; /* 0-based position among the generated tokens */
    uint32_t id;
    uint64_t digest;             /* of the logits row; 0 unless asked for */
    const fg_logprobs *logprobs; /* NULL unless asked for */
} fg_wire_token;

/* Numbers of one embedding. */
enum { FG_WIRE_EMBEDDING_MAX = 1 << 17 };
/* Tokens of one SCORES. */
enum { FG_WIRE_SCORES_MAX = 4096 };

typedef struct fg_msg {
    fg_msg_kind kind;
    uint64_t request; /* RESERVE TICKET PREFILL SCORES FIRST PUSHED DONE CANCEL */
    uint32_t attempt;
    union {
        fg_wire_hello hello;
        struct {
            uint64_t router_epoch;
            uint32_t lease_ms;
            uint64_t cache_key_low, cache_key_high; /* the cluster's secret for block hashes */
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
            const uint32_t *said; /* the answer's first tokens, by a worker that was lost */
            uint32_t said_count;
            fg_wire_params sampling;
        } reserve;
        struct {
            bool granted; /* false: no room now, ask again */
            bool local; /* granted, and needs no prefill worker: what is missing is computed here */
            uint64_t ticket;
            uint32_t first_block; /* of the prompt that is missing here: what is before is cached */
            const uint32_t *blocks; /* from first_block on */
            uint32_t block_count;
        } ticket;
        struct {
            const uint32_t *tokens;
            uint32_t token_count;
            const uint32_t *said; /* as of a RESERVE */
            uint32_t said_count;
            fg_wire_params sampling;
            bool has_ticket;
            fg_wire_peer target; /* the decode worker */
            uint64_t ticket;
            uint32_t first_block;   /* the target has what is before */
            const uint32_t *blocks; /* from first_block on */
            uint32_t block_count;
        } prefill;
        struct {
            uint32_t choice, id;
            uint64_t digest;
            const fg_logprobs *logprobs;   /* NULL unless asked for */
            uint64_t queue_ns, compute_ns; /* waiting and computing on the prefill worker */
            uint32_t cached_tokens;        /* of the prompt, found in the cache */
            uint32_t chunks;               /* steps that the rest took */
            uint64_t share_ns;             /* of these steps, by its share of their prompt tokens */
            /* Of the prompt, where it was asked for: at most FG_WIRE_EMBEDDING_MAX floats, none of them NaN or infinite. */
            const float *embedding;
            uint32_t embedding_count;
        } first;
        struct {
            uint32_t first;   /* place in the prompt of the first of them, 1 at least */
            fg_scores scores; /* 1 to FG_WIRE_SCORES_MAX; those who get it only read */
        } scores;
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
            uint32_t preemptions;
            bool refused; /* an ERROR that no other worker or attempt would change */
            bool broken;  /* likewise, for it is the model's: its output is NaN or infinite */
        } done;
        struct {
            uint64_t sequence; /* of this frame among the connection's, from 1 */
            const fg_wire_news *rows;
            uint32_t count;
        } news;
        struct {
            uint32_t roles;
        } role;
    };
} fg_msg;

/* Appends the frame. False when `out` cannot grow (or a field breaks a limit: a bug, asserted). */
bool fg_wire_encode(const fg_msg *msg, fg_buf *out);
/* FG_BAD_INPUT names the field. Pointers in *msg_out live in `arena` or in `bytes`. */
fg_status fg_wire_decode(const void *bytes, size_t size_bytes, fg_arena *arena, fg_msg *msg_out,
                         fg_error *err);
const char *fg_msg_name(fg_msg_kind kind);

#endif
