/*
 * bench_steps MODEL [THREADS] [ROUNDS]: measures six steps and prints, as a table for
 * `forge sim --step-table`, the line that goes through them. The best of ROUNDS each, and processor time
 * over threads rather than wall time, because other work on the machine only ever slows it. Prompts that are attended to are not computed first: what a slot
 * holds does not change how long reading it takes. The push is bench_link's to measure.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "common/base/dtype.h"
#include "common/sched/cost.h"
#include "common/engine/runner.h"

enum { CHUNK = 512, SHORT_CHUNK = 64, FAR = 1536, ROWS = 16, NEAR = 16 };

typedef struct shape {
    uint32_t seqs, tokens, position;
} shape;

static const shape shapes[] = {
    { 1, SHORT_CHUNK, 0 }, { 1, CHUNK, 0 },   { 1, CHUNK, FAR },
    { 1, 1, NEAR },        { ROWS, 1, NEAR }, { ROWS, 1, FAR },
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static uint32_t argument(int argc, char **argv, int index, uint32_t fallback)
{
    return argc > index ? (uint32_t)strtoul(argv[index], NULL, 10) : fallback;
}

/* Of all threads of this process. */
static double cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* Nanoseconds of one step, the best of all rounds. */
static fg_status measure(fg_runner *runner, const shape *what, uint32_t rounds, double *ns_out,
                         fg_error *err)
{
    static uint32_t tokens[CHUNK];
    fg_step_seq seqs[ROWS];
    fg_status status = FG_OK;
    *ns_out = 1e18;
    for (uint32_t i = 0; i < CHUNK; i++) {
        tokens[i] = 100 + i * 7 % 1000;
    }
    for (uint32_t round = 0; status == FG_OK && round < rounds; round++) {
        for (uint32_t i = 0; i < what->seqs; i++) {
            seqs[i] = fg_runner_seq(runner, i, tokens, what->position, what->tokens);
            seqs[i].sample = true;
            seqs[i].sampling.top_p = 1.0f;
        }
        fg_step step = { .seqs = seqs, .seq_count = what->seqs };
        double from_ns = cpu_ns();
        status = fg_runner_step(runner, &step, err);
        double ns = (cpu_ns() - from_ns);
        *ns_out = ns < *ns_out ? ns : *ns_out;
    }
    return status;
}

static double above_zero(double value)
{
    return value > 0 ? value : 0;
}

static void print_table(const double *ns, const fg_runner *runner)
{
    double pair = above_zero((ns[2] - ns[1]) / ((double)CHUNK * FAR));
    double near_pairs = (double)fg_cost_chunk_kv(0, SHORT_CHUNK);
    double far_pairs = (double)fg_cost_chunk_kv(0, CHUNK);
    double token = (ns[1] - ns[0] - pair * (far_pairs - near_pairs)) / (CHUNK - SHORT_CHUNK);
    double kv = above_zero((ns[5] - ns[4]) / ((double)ROWS * (FAR - NEAR)));
    double row = above_zero((ns[4] - ns[3]) / (ROWS - 1) - kv * (NEAR + 1));
    for (int i = 0; i < SHAPES; i++) {
        printf("# %u x %u tokens behind %u: %.2f ms\n", shapes[i].seqs, shapes[i].tokens,
               shapes[i].position, ns[i] / 1e6);
    }
    printf("prefill-base-ns  %.0f\n", above_zero(ns[0] - SHORT_CHUNK * token - pair * near_pairs));
    printf("prefill-token-ns %.0f\nprefill-pair-ns  %.1f\n", token, pair);
    printf("decode-base-ns   %.0f\n", above_zero(ns[3] - row - kv * (NEAR + 1)));
    printf("decode-row-ns    %.0f\ndecode-kv-ns     %.1f\n", row, kv);
    printf("kv-token-bytes   %zu\n", runner->layout.block_bytes / runner->layout.block_size);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: bench_steps MODEL [THREADS] [ROUNDS]\n");
        return 2;
    }
    fg_runner_options options = { .path = argv[1],
                                  .context_max = FAR + CHUNK,
                                  .seqs_max = ROWS,
                                  .step_tokens_max = CHUNK,
                                  .kv_dtype = FG_F16,
                                  .thread_count = argument(argc, argv, 2, 1) };
    fg_runner runner;
    fg_error err = { 0 };
    double ns[SHAPES];
    fg_status status = fg_runner_open(&options, &runner, &err);
    if (status == FG_OK) {
        for (int i = 0; status == FG_OK && i < SHAPES; i++) {
            status = measure(&runner, &shapes[i], argument(argc, argv, 3, 5), &ns[i], &err);
            ns[i] /= options.thread_count;
        }
        if (status == FG_OK) {
            print_table(ns, &runner);
        }
        fg_runner_close(&runner);
    }
    if (status != FG_OK) {
        fprintf(stderr, "bench_steps: %s\n", err.text);
    }
    return status == FG_OK ? 0 : 1;
}
