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

typedef struct fg_engine_sim_options {
    fg_kv_layout layout; /* a slot's head has at least 8 bytes */
    void *arena;         /* borrowed until close */
    uint32_t block_count;
    fg_engine_limits limits;
    uint32_t vocab_size;
    uint32_t eos_token; /* chosen now and then; UINT32_MAX: never */
    /* Steps end when fg_engine_sim_complete is called; false: they have ended when begin returns. */
    bool manual;
    void (*on_done)(void *ctx); /* may be NULL; called from begin, or from complete */
    void *ctx;
} fg_engine_sim_options;

fg_status fg_engine_open_sim(const fg_engine_sim_options *options, fg_engine **engine_out,
                             fg_error *err);

/* Computes the step in flight now; false when there is none. Only for `manual`. */
bool fg_engine_sim_complete(fg_engine *engine);

/* Slots that were read and did not hold one whole hash: torn or never written. */
uint64_t fg_engine_sim_bad_slots(const fg_engine *engine);

/* What a run of `tokens` alone must choose next, computed without any KV. */
typedef struct fg_engine_sim_answer {
    uint32_t token;
    uint64_t digest; /* what digest_out must be */
} fg_engine_sim_answer;
fg_engine_sim_answer fg_engine_sim_expected(const uint32_t *tokens, uint32_t token_count,
                                            uint32_t vocab_size, uint32_t eos_token,
                                            const fg_sampling *sampling, uint32_t choice);

#endif
