/*
 * bench_limit - the time that a step would take if only this machine's limits counted: each weight
 * multiplied once per row (but for what the last layer spares a prompt's rows) at the compute probe's
 * speed, each byte of the weights read once at the memory probe's, whichever takes longer. Of mixtures of
 * experts those that rows go to: of several rows as many as there are on average when each row chooses by
 * itself. Used by one thread.
 */
#ifndef FORGE_CLI_BENCH_LIMIT_H
#define FORGE_CLI_BENCH_LIMIT_H

#include "common/model/hparams.h"
#include "kernels/bench/peak.h"

/* Multiply-adds by how they are done: quantised weights in int8, BF16 in pairs, F16 and F32 as floats. */
typedef struct fg_bench_macs {
    double int8, bf16, floats;
} fg_bench_macs;

/* Where products with this weight type count. */
double *fg_bench_macs_of(fg_bench_macs *macs, uint32_t type);

/* What a model costs. */
typedef struct fg_bench_cost {
    fg_bench_macs layers; /* per row */
    fg_bench_macs head;   /* per row that needs logits */
    /* Per row of a prompt that needs none: all of the last layer but K and V. 0 where ranks share layers. */
    fg_bench_macs spared;
    double weight_bytes; /* read once per step: layers and head */
    double expert_bytes; /* of all experts */
    double expert_share; /* of the experts that a row goes to */
    uint64_t params;
} fg_bench_cost;

fg_bench_cost fg_bench_cost_of(const fg_weights *weights, const fg_hparams *hparams);

/* What the machine can do, of all threads together; 0 where it was not asked. Without an instruction for
 * bf16 its products are floats'. */
typedef struct fg_bench_rates {
    double int8, bf16, floats, read;
} fg_bench_rates;

/* Those that the cost asks for: the best of short runs in 0.1 s each, or the mean over `sustain_ms` each. */
fg_bench_rates fg_bench_rates_measure(fg_peaks *peaks, uint32_t thread_count,
                                      const fg_bench_cost *cost, uint32_t sustain_ms);
/* The larger of each: what the machine could do around a measurement. */
fg_bench_rates fg_bench_rates_max(fg_bench_rates a, fg_bench_rates b);

/* Goes `share` of the way towards others: 1 / n keeps the mean of n. */
void fg_bench_rates_lean(fg_bench_rates *rates, const fg_bench_rates *towards, double share);

/* A step, or several alike. */
typedef struct fg_bench_work {
    double rows;         /* tokens run through the layers */
    double head_rows;    /* rows that need logits */
    double weight_reads; /* how often all weights are read */
    double kv_bytes;     /* of the cache, read */
} fg_bench_work;

/* Seconds, and which probe they come from. */
double fg_bench_limit(const fg_bench_cost *cost, const fg_bench_work *work,
                      const fg_bench_rates *rates, const char **probe_out);

#endif
