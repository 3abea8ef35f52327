/*
 * engine - executes one step value: forward, sampling, block digests. Knows no requests and decides
 * nothing. The loop thread calls every function here; the work happens on the engine's own thread,
 * which calls `on_done` (from that thread) when a step has ended, so that the loop wakes and polls.
 *
 * Up to FG_ENGINE_STEPS_MAX steps are in flight, run in the order of their beginning, without a pause
 * between them: a device with memory of its own may be given the second one while it runs the first.
 * What a step points to stays untouched by the caller until it was polled, and its items until the step
 * after it was polled too (that one may follow them).
 */
#ifndef FORGE_COMMON_ENGINE_ENGINE_H
#define FORGE_COMMON_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/engine/constraint.h"
#include "common/kv/layout.h"
#include "common/model/hparams.h"
#include "common/model/sampler.h"
#include "common/model/shape.h"
#include "common/model/weights.h"

typedef struct fg_engine fg_engine;

enum { FG_ENGINE_STEPS_MAX = 2 };

/* One sequence's part of a step: `token_count` tokens at positions first_position.. are run, their K
 * and V written to the slots that block_ids name, attending to everything before. */
typedef struct fg_step_seq {
    const uint32_t *tokens;
    /* NULL; or an item of the step begun just before this one that samples, sample_rows at most 1: its
     * token_out is this item's only token (token_count is 1), whatever `tokens` says. */
    const struct fg_step_seq *follows;
    uint32_t token_count;
    uint32_t first_position;
    const uint32_t *block_ids; /* covers first_position + token_count slots */
    uint32_t block_count;
    /* NULL, or memory of another worker, laid out as the arena: what goes into the sequence's blocks from
     * number twin_first on is written there too, into its blocks twin_ids[0], ... FG_BAD_INPUT on a device with
     * memory of its own. */
    void *twin_arena;
    const uint32_t *twin_ids;
    uint32_t twin_first;
    bool sample;      /* choose the token after the last one */
    bool want_digest; /* also the digest of that logits row */
    uint32_t choice;
    fg_sampling sampling;
    uint32_t token_out; /* filled when sample */
    /* The model's state, or the highest logit, is NaN or infinite after one of the tokens that something is chosen after, or
     * whose row says something. Nothing that was chosen means anything then, and it would be so again. */
    bool broken_out;
    uint64_t digest_out; /* filled when want_digest: fg_hash64 of the float row, seed 0 */
    /* NULL, or the caller's vocab_size floats: that row itself (tests, tools). With sample_rows, so many
     * rows, one after the other. */
    float *logits_out;
    /* 0; or, in an item that samples: choose after each of the last sample_rows tokens, as a step of one
     * token would have chosen there. So one forward verifies drafted tokens. The last of these choices
     * is token_out too. */
    uint32_t sample_rows;
    uint32_t *tokens_out;  /* the caller's array of sample_rows; not read or written for 0 */
    uint64_t *digests_out; /* NULL, or an array of sample_rows: the digests of these logits rows */
    /* NULL, or what is changed in the rows that it samples from, before each choice, and what the answer is held to. With
     * either, `history` has the sequence's tokens from position 0 on, those before first_position at least, the first
     * prompt_count of which are its prompt. */
    const fg_shape *shape;
    fg_constraint *constraint;
    const uint32_t *history;
    uint32_t prompt_count;
    /* NULL, or what these rows say of each choice and of the likely_count likeliest tokens: one, or sample_rows. */
    fg_logprobs *logprobs_out;
    uint32_t likely_count;
    /* The tokens behind scores_out.count of its rows, from row scores_first on, stand in `history`: what the model says of
     * them there is written into these columns. None of those rows is one of the last, which something is chosen after. */
    uint32_t scores_first;
    fg_scores scores_out;
    /* NULL, or the caller's embedding_length floats, in an item that samples with sample_rows at most 1: the model's state
     * after its last token, normed, as the head reads it. */
    float *embedding_out;
} fg_step_seq;

/* A block whose digest is wanted, computed after the step's sequences have run. On a device with memory of its own the
 * block is then the same there and in the host's arena, if there is one: so blocks are digested before others read them,
 * and after others have written them, before a sequence runs on them. */
typedef struct fg_step_digest {
    uint32_t block_id;
    bool arrived; /* where others see the blocks, from another worker; else it was computed here */
    uint64_t digest_out; /* fg_hash64(block bytes, seed 0) */
} fg_step_digest;

/* A block copied before the step's sequences run; in the order of the list. */
typedef enum fg_copy_kind {
    FG_COPY_BLOCK, /* within the arena */
    FG_COPY_OUT,   /* arena to tier */
    FG_COPY_IN,    /* tier to arena */
} fg_copy_kind;

typedef struct fg_step_copy {
    fg_copy_kind kind;
    uint32_t from, to; /* block ids, or slots of the tier */
    /* Of the bytes on the arena's side, as fg_step_digest's: what was to go out, what came in. Not for
     * FG_COPY_BLOCK. */
    uint64_t digest_out;
} fg_step_copy;

/* A draft model is asked what may follow an item's choices, when the step has run (drafter.h). */
typedef struct fg_step_ask {
    uint32_t item; /* which samples, and has its history */
    /* Where the draft model keeps this sequence: below step_seqs_max, in one ask of a step. */
    uint32_t place;
    uint32_t wanted;       /* tokens, 1 to FG_LOOKAHEAD_MAX */
    uint32_t *guesses_out; /* the caller's array of as many */
    uint32_t count_out;    /* how many there are; 0 while it has not caught up */
    uint32_t known_out;    /* leading tokens of the sequence that it has computed */
} fg_step_ask;

/* What the draft model did in a step. */
typedef struct fg_step_drafted {
    uint64_t ns;       /* all of it, beside compute_ns_out */
    uint64_t catch_ns; /* the part that computed `caught` tokens, which it was behind */
    uint32_t caught;
    uint32_t steps, rows; /* of the rest: steps of its own, and the sequences in them summed up */
} fg_step_drafted;

typedef struct fg_step {
    fg_step_copy *copies;
    uint32_t copy_count;
    fg_step_seq *seqs;
    uint32_t seq_count;
    fg_step_digest *digests;
    uint32_t digest_count;
    fg_step_ask *asks; /* only where there is a draft model */
    uint32_t ask_count;
    uint32_t catch_up_max; /* tokens that the draft model may be behind and compute in this step */
    uint64_t began_ns_out; /* when it began to run, monotonic; 0: not known (simulated) */
    uint64_t compute_ns_out; /* all of it but for asks */
    uint64_t copy_ns_out;    /* the part of the copies */
    fg_step_drafted drafted_out;
} fg_step;

typedef struct fg_engine_limits {
    uint32_t step_tokens_max; /* sum of token_count over a step */
    uint32_t step_seqs_max;
    uint32_t context_max; /* tokens of one sequence */
} fg_engine_limits;

/* A smaller model that guesses what the other one will choose. */
typedef struct fg_engine_draft {
    const fg_weights *weights;       /* borrowed until close */
    const fg_hparams *hparams;       /* copied */
    fg_kv_layout layout;             /* with the other one's block size */
    uint32_t block_count;            /* for all sequences */
    uint32_t context_max;            /* of a sequence, its guesses too */
    const fg_digest128 *fingerprint; /* as in fg_engine_options */
} fg_engine_draft;

typedef struct fg_engine_options {
    const fg_weights *weights; /* borrowed until close */
    const fg_hparams *hparams; /* copied */
    fg_kv_layout layout;
    /* KV blocks, block b at arena + b * layout.block_bytes; borrowed until close. On a device with memory of
     * its own it is the host's mirror of what is there (fg_step_digest), or NULL with device_arena. */
    void *arena;
    void *
        device_arena; /* NULL, or the blocks in FG_MEMORY_DEVICE of that device: others see them there */
    uint32_t block_count;
    bool arena_is_shared; /* other workers write blocks into it and read them from it */
    void *tier_arena;     /* NULL, or the tier's slots, laid out likewise; borrowed until close */
    uint32_t tier_block_count;
    fg_engine_limits limits;
    const char *device; /* as fg_device_options.kind: NULL or "cpu", "cuda", "cuda:N" */
    uint32_t thread_count;
    const struct fg_team_place *places; /* where each thread runs; NULL: anywhere. Not kept */
    struct fg_core_share *share;        /* NULL, or with whom the cores are shared; till close */
    const char *cpu_isa;                /* "auto", "plain", "avx2", ... */
    const fg_digest128 *fingerprint;    /* of the weights; NULL: computed where it is needed */
    const char *weights_cache;          /* fg_weight_store_options.cache; NULL: "off" */
    const struct fg_tp_options *tp;     /* NULL, or how many processes compute; for the call */
    const fg_engine_draft *draft;       /* NULL: nobody guesses; for the call */
    void (*on_done)(void *ctx);         /* called from the engine thread */
    void *ctx;
} fg_engine_options;

/* FG_DTYPE_AUTO: the KV type that a device takes for a model; any other type: itself. */
uint32_t fg_engine_kv_dtype(const char *device, uint32_t asked, const fg_hparams *hparams);
/* FG_BAD_INPUT, saying what to choose, where a device does not compute with that type or block size. */
fg_status fg_engine_check_kv(const char *device, uint32_t kv_dtype, uint32_t block_size,
                             fg_error *err);

/* The real thing: engine_model.c. */
fg_status fg_engine_open_model(const fg_engine_options *options, fg_engine **engine_out,
                               fg_error *err);
/* Waits for the step that runs, and for one that a device has begun behind it; one queued behind them is not started. */
void fg_engine_close(fg_engine *engine);

/* Starts a step, or queues it behind the one that runs; FG_AGAIN while FG_ENGINE_STEPS_MAX are in
 * flight, FG_BAD_INPUT when it breaks the limits, wants choices for which it has no tokens or no array,
 * asks a draft model that is not there, or names a token id, block id or slot that is out of range (checked here, before
 * anything is computed). */
fg_status fg_engine_begin(fg_engine *engine, fg_step *step, fg_error *err);
/* The oldest step in flight once it has ended, its *_out fields filled; NULL when none has. */
fg_step *fg_engine_poll(fg_engine *engine);

/* Now and then, also while no step runs: ends this process where another one that it computes with has ended. */
void fg_engine_look(fg_engine *engine);

/* "cpu/k7/kv-f16/tp1": backend, kernel revision, KV type, tensor-parallel degree. A request's bits are
 * equal inside one class; the CPU's instruction sets all give the same ones and are not named, and so does any
 * number of ranks, which all are tp1. */
const char *fg_engine_numerics_class(const fg_engine *engine);

/* What a real engine chose when it opened; isa and weights are NULL for a simulated one. Valid until
 * close. */
typedef struct fg_engine_start {
    const char *device; /* fg_engine_options.device; as long as that is valid */
    const char *isa;
    uint32_t thread_count; /* of each rank */
    uint32_t rank_count;   /* processes that compute */
    /* Operations use the host's memory, of this process alone, so that twin_arena may be given. */
    bool host_memory;
    const struct fg_weight_report *weights;
    const struct fg_weight_report *draft_weights; /* NULL: no draft model */
} fg_engine_start;
fg_engine_start fg_engine_started(const fg_engine *engine);

/* For back ends (engine_model.c, engine_sim.c): the first member of their struct. */
typedef struct fg_engine_ops {
    fg_status (*begin)(fg_engine *engine, fg_step *step, fg_error *err);
    fg_step *(*poll)(fg_engine *engine);
    void (*close)(fg_engine *engine);
    void (*look)(fg_engine *engine); /* NULL: there is nothing to look at */
} fg_engine_ops;
struct fg_engine {
    const fg_engine_ops *ops;
    char numerics_class[64];
    fg_engine_start start;
};

#endif
