/*
 * bench_forward MODEL [THREADS] [PROMPT_TOKENS] [DECODE_TOKENS] [ISA]: tokens per second of prefill and
 * of decode for one sequence. Best of three, because other work on the machine only ever slows it.
 */
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/dtype.h"
#include "common/base/mem.h"
#include "common/engine/runner.h"

static uint32_t argument(int argc, char **argv, int index, uint32_t fallback)
{
    return argc > index ? (uint32_t)strtoul(argv[index], NULL, 10) : fallback;
}

/* Seconds of one prefill and of the greedy steps after it. */
static fg_status measure(fg_runner *runner, const uint32_t *prompt, uint32_t prompt_count,
                         uint32_t decode_count, double seconds_out[2], fg_error *err)
{
    fg_clock clock = fg_clock_real();
    fg_step_seq last = { .sample = true, .sampling = { .top_p = 1.0f } };
    uint64_t started_at_ns = fg_clock_now_ns(&clock);
    fg_status status = fg_runner_prompt(runner, 0, prompt, prompt_count, 512, &last, err);
    uint64_t prefilled_at_ns = fg_clock_now_ns(&clock);
    for (uint32_t i = 0; status == FG_OK && i < decode_count; i++) {
        uint32_t token = last.token_out;
        last = fg_runner_seq(runner, 0, &token, prompt_count + i, 1);
        last.sample = true;
        fg_step step = { .seqs = &last, .seq_count = 1 };
        status = fg_runner_step(runner, &step, err);
    }
    seconds_out[0] = (double)(prefilled_at_ns - started_at_ns) * 1e-9;
    seconds_out[1] = (double)(fg_clock_now_ns(&clock) - prefilled_at_ns) * 1e-9;
    return status;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr,
                "usage: bench_forward MODEL [THREADS] [PROMPT_TOKENS] [DECODE_TOKENS] [ISA]\n");
        return 2;
    }
    uint32_t prompt_count = argument(argc, argv, 3, 256);
    uint32_t decode_count = argument(argc, argv, 4, 64);
    fg_runner_options options = { .path = argv[1],
                                  .kv_dtype = FG_F16,
                                  .thread_count = argument(argc, argv, 2, 1),
                                  .context_max = prompt_count + decode_count,
                                  .cpu_isa = argc > 5 ? argv[5] : "auto" };
    fg_runner runner;
    fg_error err = { 0 };
    if (fg_runner_open(&options, &runner, &err) != FG_OK) {
        fprintf(stderr, "bench_forward: %s\n", err.text);
        return 2;
    }
    uint32_t *prompt = fg_mem_array(prompt_count, sizeof(uint32_t));
    for (uint32_t i = 0; prompt != NULL && i < prompt_count; i++) {
        prompt[i] = (i * 7919u + 17u) % runner.hparams.vocab_size;
    }
    double best[2] = { 1e9, 1e9 };
    fg_status status = prompt == NULL ? FG_AGAIN : FG_OK;
    for (int run = 0; run < 3 && status == FG_OK; run++) {
        double seconds[2];
        status = measure(&runner, prompt, prompt_count, decode_count, seconds, &err);
        best[0] = seconds[0] < best[0] ? seconds[0] : best[0];
        best[1] = seconds[1] < best[1] ? seconds[1] : best[1];
    }
    if (status == FG_OK) {
        printf("threads=%u isa=%s prefill_tokens=%u prefill_tok_s=%.1f decode_tok_s=%.1f\n",
               options.thread_count, options.cpu_isa, prompt_count, prompt_count / best[0],
               decode_count / best[1]);
    } else {
        fprintf(stderr, "bench_forward: %s\n", err.text);
    }
    fg_mem_free(prompt);
    fg_runner_close(&runner);
    return status == FG_OK ? 0 : 1;
}
