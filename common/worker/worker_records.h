/*
 * worker_records - what a worker's flight recorder keeps: each call into the worker with its time, what engine and
 * link answered, and what the worker did. tests/sim/replay_worker.c makes the same calls again.
 *
 * What always holds: no prompt, no answer and no secret is in a record. Tokens and salts are left out: a prompt is the
 * keys of its blocks, which only the cluster's secret could make. So are link records, digests of blocks (only whether
 * they were the expected ones is kept) and logits, tickets (they have other numbers here) and the secret itself (a hash
 * under a number that dies with the process). What is sent and asked is kept as a hash without them.
 */
#ifndef FORGE_COMMON_WORKER_WORKER_RECORDS_H
#define FORGE_COMMON_WORKER_WORKER_RECORDS_H

#include "common/base/limits.h"
#include "common/obs/flight.h"
#include "common/worker/worker.h"

typedef enum fg_work_kind {
    /* Calls. */
    FG_WORK_UP = 1,    /* fg_flight_call alone, as where nothing else is said */
    FG_WORK_FRAME,     /* fg_work_frame; the bytes follow, without what is left out */
    FG_WORK_BAD_FRAME, /* could not be read */
    FG_WORK_DOWN,
    FG_WORK_ENGINE,
    FG_WORK_TICK,
    FG_WORK_COMMIT,  /* fg_work_news */
    FG_WORK_FENCED,  /* likewise */
    FG_WORK_ANSWER,  /* likewise; indices of damaged blocks follow, uint32_t each */
    FG_WORK_DRAINED, /* likewise */
    FG_WORK_DRAIN,
    FG_WORK_ABORT, /* the reason follows, with its NUL */
    FG_WORK_CLEAR,
    FG_WORK_CALLS, /* how many numbers calls take */
    /* What the worker knew when a part of the record begins (worker_rest.c). */
    FG_WORK_REST = FG_FLIGHT_KNOWN,
    FG_WORK_PEER,
    FG_WORK_PIN,
    FG_WORK_POOL,
    FG_WORK_PREFIX,
    FG_WORK_TIER,
    /* What it was told. */
    FG_WORK_PROMPT = FG_FLIGHT_TOLD, /* fg_work_prompt; the keys of its full blocks follow */
    FG_WORK_KEYS,                    /* fg_digest128 each: of blocks that an answer has filled */
    FG_WORK_STEP, /* fg_work_step; fg_work_ask each, then a byte each for items, digests, copies */
    FG_WORK_TRANSPORT, /* its name, with the NUL */
    FG_WORK_GUESS,     /* fg_work_guess each: of those whose last token a step chose, or a hand-over
                          brought; left out where there were none */
    /* What it did. */
    FG_WORK_SENT = FG_FLIGHT_DID, /* fg_work_sent */
    FG_WORK_BEGAN,                /* fg_work_began */
    FG_WORK_LINKED,               /* fg_work_linked: asked of the link, with its answer */
    FG_WORK_RECONNECT,            /* uint64_t: the epoch */
} fg_work_kind;

typedef struct fg_work_frame {
    fg_flight_call call;
    uint32_t token_count; /* of the prompt, whose tokens are left out; 0: none in this frame */
    uint32_t bad_token;   /* 1: one of them is outside of the vocabulary */
} fg_work_frame;

typedef struct fg_work_news {
    fg_flight_call call;
    uint64_t ticket;
    uint32_t count;     /* COMMIT: blocks; ANSWER: damaged ones */
    uint32_t bad_token; /* COMMIT: 1 when the first token is outside of the vocabulary */
} fg_work_news;

typedef struct fg_work_prompt {
    fg_digest128 root;
    uint64_t name, pad; /* of a family's member: equal prompts have the same */
} fg_work_prompt;

/* Tokens guessed to follow a sequence's last one, and the run before them that stands elsewhere too: one more than the
 * longest that is looked for where a lost worker had said them. */
typedef struct fg_work_guess {
    uint8_t count, run;
} fg_work_guess;

/* What an item's byte says; 0: nothing of these. */
enum {
    FG_WORK_ENDED = 1, /* an end token was chosen */
    FG_WORK_BROKE = 2, /* the model broke down */
    FG_WORK_RIGHT = 4, /* the token chosen was the first guess, which was not in the step */
    FG_WORK_ACCEPTED_SHIFT = 4, /* and from this bit on, how many guesses in the step were right */
};

/* A step has ended. What each ask says follows, then bytes. A byte of an item: as above; of a digest: 1 when it is not the announced one;
 * of a copy: 1 when what came from the tier is not what went there. */
typedef struct fg_work_step {
    uint64_t compute_ns, copy_ns;
    fg_step_drafted drafted;
    uint32_t item_count, digest_count, copy_count, ask_count;
} fg_work_step;

/* How far the draft model is with a sequence. */
typedef struct fg_work_ask {
    uint32_t known;
} fg_work_ask;

typedef struct fg_work_sent {
    uint64_t hash;
    uint32_t kind;   /* fg_msg_kind */
    uint32_t status; /* fg_status of the bus */
} fg_work_sent;

typedef struct fg_work_began {
    uint64_t hash; /* of all that the step says, but for tokens */
    uint32_t items, tokens, digests, copies;
} fg_work_began;

typedef enum fg_work_asked {
    FG_ASKED_RECORD = 1, /* fg_link_describe; the answer is 1 or 0 */
    FG_ASKED_ADD_PEER,   /* an fg_status; `value` is the index */
    FG_ASKED_LOSE_PEER,
    FG_ASKED_USABLE, /* only where the answer was no */
    FG_ASKED_EXPECT, /* an fg_status */
    FG_ASKED_ANSWER, /* likewise */
    FG_ASKED_FENCE,
    FG_ASKED_PREPARE,
    FG_ASKED_PUSH,   /* an fg_status */
    FG_ASKED_COMMIT, /* likewise */
    FG_ASKED_ABORT,
    FG_ASKED_HOLD, /* an fg_status */
    FG_ASKED_RELEASE,
    FG_ASKED_COUNT,
} fg_work_asked;

typedef struct fg_work_linked {
    uint64_t hash; /* of the call's other arguments */
    uint32_t asked, answer, peer, value;
} fg_work_linked;

/* What must be equal for a worker to be made again. */
typedef struct fg_work_options {
    fg_digest128 fingerprint;
    uint64_t epoch, pid;
    fg_wire_speed speed;
    fg_kv_layout layout;
    fg_sched_limits limits;
    uint32_t roles, block_count, context_max, vocab_size, local_prefill_max;
    uint32_t tier_slots; /* 0: no tier */
    uint32_t overlap, prefix_cache, linked, hands_over, zero_copy;
    uint32_t draft_context; /* 0: no draft model */
    uint32_t router_count;  /* a call's `sunken` says which of them it is about */
    uint32_t embedding_length;
    char name[FG_LIMIT_NAME_BYTES + 8];
    char numerics_class[64];
} fg_work_options;

/* Larger ones are taken for damage. */
enum { FG_WORK_SEQS_MAX = 1 << 16, FG_WORK_STEP_TOKENS_MAX = 1 << 24 };

/* Of the records' layout. */
uint64_t fg_work_shape(void);
const char *fg_work_name(uint32_t kind);
const char *fg_work_asked_name(uint32_t asked);
fg_work_options fg_work_put_options(const fg_worker_options *options);
/* The reverse, as far as a worker's options are plain values: name and numerics class stay in `record`. FG_BAD_INPUT:
 * it is damaged. */
fg_status fg_work_get_options(const void *preface, size_t size_bytes,
                              const fg_work_options **record_out, fg_worker_options *options_out,
                              fg_error *err);
/* The worker takes over what a record of REST to TIER says; it is fresh, and these come in the order of the file.
 * FG_BAD_INPUT: nonsense. */
fg_status fg_worker_restore(fg_worker *worker, const fg_flight_record *record, fg_error *err);

#endif
