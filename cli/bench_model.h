/*
 * bench_model - a model opened to be measured: runner, costs, made-up token ids. Used by one thread.
 */
#ifndef FORGE_CLI_BENCH_MODEL_H
#define FORGE_CLI_BENCH_MODEL_H

#include "cli/bench_limit.h"
#include "common/engine/runner.h"
#include "common/engine/tp.h"

typedef struct fg_bench_model_options {
    const char *path; /* NULL is refused */
    const char *device, *cpu_isa, *kv_dtype;
    uint32_t threads;     /* of all ranks; 0: all cores */
    uint32_t ranks;       /* processes that compute; 0: 1 */
    fg_tp_way way;        /* that their devices gather rows */
    uint32_t step_tokens; /* of one step, at most */
    uint32_t seqs;        /* at once, at most */
    uint32_t prompt;      /* tokens of one sequence alone, at most */
    uint32_t context;     /* tokens of each of `seqs`, at most */
} fg_bench_model_options;

typedef struct fg_bench_model {
    fg_runner runner;
    fg_bench_cost cost;
    fg_peaks *peaks; /* NULL on a device that the host's speed says nothing about */
    uint32_t threads;
    bool is_host;                  /* operations use the host's memory */
    char device[FG_TP_DEVICE_MAX]; /* the first process's */
    char isa[32];                  /* the name behind "auto" */
    uint32_t *ids;                 /* for any sequence: (7919 i + 17) mod the vocabulary's size */
    uint32_t id_count;
} fg_bench_model;

/* FG_BAD_INPUT says which flag or file is wrong. Close it in any case. */
fg_status fg_bench_model_open(fg_bench_model *model, const fg_bench_model_options *options,
                              fg_error *err);
void fg_bench_model_close(fg_bench_model *model);

/* The part of a step for sequence `seq` of `count`, among whom all blocks are shared out. */
fg_step_seq fg_bench_model_item(const fg_bench_model *model, uint32_t seq, uint32_t count,
                                uint32_t position, uint32_t token_count);
/* Runs the first `tokens` ids in chunks, and samples after the last. */
fg_status fg_bench_model_prompt(fg_bench_model *model, uint32_t seq, uint32_t count,
                                uint32_t tokens, uint32_t chunk, fg_error *err);

#endif
