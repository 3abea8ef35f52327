/*
 * engine_sim - a stand-in for the model, for simulation and tests: no threads, no weights, and an
 * answer that shows every mistake in the paged KV.
 *
 * The KV of a slot is a 64-bit hash of (all slots before, token, position), expanded over the slot's
 * bytes in every layer, K and V, and head. A step reads every slot before its first token through the
 * block table and checks each byte; the sampled token is a pure function of what all slots hold, the
 * seed and the choice. A foreign, stale, torn or missing block thus changes the answer (and a torn one
 * is counted), as it would change a model's.
 */
#ifndef FORGE_COMMON_ENGINE_ENGINE_SIM_H
#define FORGE_COMMON_ENGINE_ENGINE_SIM_H

#include "common/engine/engine.h"

/* What a step takes on the simulated clock, in nanoseconds: the sum of its parts. An item of one token
 * is a decoding row, the tokens of the others are prefill. */
typedef struct fg_engine_sim_ns {
    uint64_t base;
    uint64_t prefill_token;
    uint64_t decode_row;
    uint64_t copied_block;
} fg_engine_sim_ns;

typedef struct fg_engine_sim_options {
    fg_kv_layout layout; /* a slot's head has at least 8 bytes */
    void *arena;         /* borrowed until close */
    uint32_t block_count;
    void *tier_arena; /* NULL, or the tier's slots; borrowed until close */
    uint32_t tier_block_count;
    fg_engine_limits limits;
    uint32_t vocab_size;
    uint32_t eos_token; /* chosen now and then; UINT32_MAX: never */
    /* Steps end when fg_engine_sim_complete is called; false: they have ended when begin returns. */
    bool manual;
    /* A slot holds only what is known after it, in its first 8 bytes, and a step reads only the slot
     * before its first token: O(1) per token, the same answers. A wrong block is still seen where it
     * is the one that is read; torn slots are not. */
    bool quick;
    /* Whether the model breaks down in an item that samples (its broken_out); pure. NULL: never. */
    bool (*is_broken)(void *ctx, const fg_step_seq *seq);
    /* NULL, or who answers a step's asks when it has run: borrowed until close. On the simulated clock a guess takes
     * draft_ns, as many as the ask with the most of them wants. */
    struct fg_drafter *drafter;
    uint64_t draft_ns;
    fg_engine_sim_ns step_ns; /* for compute_ns_out and fg_engine_sim_due_ns */
    /* What a step takes, instead of step_ns; pure. NULL: step_ns says it. */
    uint64_t (*step_time_ns)(void *ctx, const fg_step *step);
    void (*on_done)(void *ctx); /* may be NULL; called from begin, or from complete */
    void *ctx;
} fg_engine_sim_options;

fg_status fg_engine_open_sim(const fg_engine_sim_options *options, fg_engine **engine_out,
                             fg_error *err);

/* Computes the oldest step in flight that has not ended; false when there is none. Only for `manual`. */
bool fg_engine_sim_complete(fg_engine *engine);

/* How long that step takes on the simulated clock, counted from when the one before it ended (or from
 * its own begin, when the engine was idle then); UINT64_MAX when there is none. */
uint64_t fg_engine_sim_due_ns(const fg_engine *engine);

/* Slots that were read and did not hold one whole hash: torn or never written. 0 when `quick`. */
uint64_t fg_engine_sim_bad_slots(const fg_engine *engine);

/* What a run of `tokens` alone must choose next, computed without any KV. */
typedef struct fg_engine_sim_answer {
    uint32_t token;
    uint64_t digest; /* what digest_out must be */
} fg_engine_sim_answer;
fg_engine_sim_answer fg_engine_sim_expected(const uint32_t *tokens, uint32_t token_count,
                                            uint32_t vocab_size, uint32_t eos_token,
                                            const fg_sampling *sampling, uint32_t choice);
/* The token that it takes instead of `token` where not all are allowed: the next one, after the last comes the first. */
uint32_t fg_engine_sim_held(uint32_t token, const uint64_t *allowed, uint32_t vocab_size);
/* What it says of a token that was given where it would have answered so (greedily), as number `at` of the scores. */
void fg_engine_sim_score(fg_engine_sim_answer answer, uint32_t vocab_size, uint32_t token,
                         uint32_t at, const fg_scores *scores);
/* Numbers of an embedding. */
enum { FG_ENGINE_SIM_EMBEDDING = 6 };
/* What the embedding is of tokens after which it answers so. */
void fg_engine_sim_embedding(fg_engine_sim_answer answer, float *embedding);
/* What it says of that answer and of the `count` likeliest tokens. */
fg_logprobs fg_engine_sim_logprobs(fg_engine_sim_answer answer, uint32_t vocab_size,
                                   uint32_t count);

#endif
