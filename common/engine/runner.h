/*
 * runner - a model file opened and run step by step by the calling thread: what `forge bench`, the
 * engine's tests and tools share. No server in it: no scheduler, no cache, no loop.
 */
#ifndef FORGE_COMMON_ENGINE_RUNNER_H
#define FORGE_COMMON_ENGINE_RUNNER_H

#include "common/base/shared.h"
#include "common/engine/engine.h"

typedef struct fg_runner_options {
    const char *path;  /* NULL: `bytes` */
    const void *bytes; /* a GGUF file in memory, borrowed */
    size_t size_bytes;
    uint32_t context_max;     /* tokens; 0: what the model was trained for */
    uint32_t seqs_max;        /* 0: 1 */
    uint32_t block_count;     /* 0: enough for seqs_max sequences of context_max */
    uint32_t step_tokens_max; /* 0: 512 */
    uint32_t thread_count;    /* 0: 1 */
    uint32_t block_size;      /* 0: 16 */
    uint32_t kv_dtype;        /* fg_dtype, or FG_DTYPE_AUTO; 0: FG_F32 */
    const char *cpu_isa;      /* NULL: "auto" */
    const char *device;       /* as in fg_engine_options */
    /* As in fg_engine_options. */
    struct fg_core_share *share;
    const struct fg_tp_options *tp;
    const fg_engine_draft *draft;
    bool reverse_blocks; /* sequence tables name the blocks from the last one down */
} fg_runner_options;

/* Sequence s owns blocks s * blocks_per_seq ...; all fields are the caller's to read. */
typedef struct fg_runner {
    fg_weights *weights;
    fg_hparams hparams;
    fg_kv_layout layout;
    void *arena;
    size_t arena_bytes;
    fg_shared shared;    /* the arena, where several ranks compute */
    uint32_t *block_ids; /* [seqs_max][blocks_per_seq] */
    uint32_t blocks_per_seq;
    uint32_t block_count;
    fg_engine *engine;
    struct fg_runner_signal *done;
} fg_runner;

fg_status fg_runner_open(const fg_runner_options *options, fg_runner *runner, fg_error *err);
void fg_runner_close(fg_runner *runner);

/* A step's part for sequence `seq`: `count` tokens from `position` on. */
fg_step_seq fg_runner_seq(const fg_runner *runner, uint32_t seq, const uint32_t *tokens,
                          uint32_t position, uint32_t count);
/* Begins the step and waits for its end. */
fg_status fg_runner_step(fg_runner *runner, fg_step *step, fg_error *err);
/* Waits for the oldest step that fg_engine_begin was given. */
fg_step *fg_runner_wait(fg_runner *runner);
/* Runs a prompt in chunks of at most `chunk` tokens; only the last chunk's step has `last`'s wishes
 * (sample, digest, logits), and `last` has their results. */
fg_status fg_runner_prompt(fg_runner *runner, uint32_t seq, const uint32_t *tokens, uint32_t count,
                           uint32_t chunk, fg_step_seq *last, fg_error *err);

#endif
