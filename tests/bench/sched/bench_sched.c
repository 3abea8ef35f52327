/*
 * bench_sched [ROUNDS] - the time to plan one step, by number of running requests: all of them decoding;
 * a tenth of them prefilling under a step target with a line of 1000 behind; and the worst case, no
 * block left and half of them preempted. Best of ROUNDS batches, since everything that disturbs only
 * adds. The goal for planning and bookkeeping together is 20 us + 0.3 us a request.
 */
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/sched/sched.h"

enum { SEQS_MAX = 4096, WAITS = 1000, BATCH_NS = 20000000, ROUNDS_MAX = 1000 };

enum { DECODING, MIXED, PRESSED, LOADS };

typedef struct bench {
    fg_sched_limits limits;
    fg_cost cost;
    fg_sched_seq *seqs;
    fg_sched_wait *waits;
    fg_sched_plan plan;
    fg_sched_input in;
} bench;

static void must(bool good, const char *what)
{
    if (!good) {
        fprintf(stderr, "bench_sched: %s failed\n", what);
        exit(1);
    }
}

static uint64_t now(void)
{
    fg_clock clock = fg_clock_real();
    return fg_clock_now_ns(&clock);
}

static void set_up(bench *b, int load, uint32_t count)
{
    b->limits = (fg_sched_limits){ .step_tokens_max = 2 * SEQS_MAX,
                                   .chunk_tokens_max = 512,
                                   .seqs_max = SEQS_MAX,
                                   .block_size = 16,
                                   .preemption = FG_PREEMPT_AUTO,
                                   .watermark_blocks = 16,
                                   .skip_max = load == MIXED ? 4 : 0,
                                   .step_target_ns = load == MIXED ? 50000000 : 0 };
    fg_cost_init(&b->cost, 368640);
    b->cost.weights[1] = 1e5;
    b->cost.weights[2] = 1e3;
    b->cost.weights[3] = 1;
    for (uint32_t i = 0; i < count; i++) {
        bool decodes = load != MIXED || i % 10 != 0;
        uint32_t blocks = 10 + i % 30;
        b->seqs[i] = (fg_sched_seq){ .arrival = (i * 2654435761u) % 100003,
                                     .tokens_left = decodes ? 1 : 1000,
                                     .decoding = decodes,
                                     .slots_used = 16 * blocks - (load == PRESSED ? 0 : i % 16),
                                     .blocks = blocks,
                                     .promised = decodes ? 0 : 63,
                                     .frees = load == PRESSED ? 1 : blocks,
                                     .output_tokens = (i * 40503u) % 977,
                                     .redo_tokens = 16 * blocks };
    }
    for (uint32_t i = 0; i < WAITS; i++) { /* none fits, so that the whole line is read */
        b->waits[i] = (fg_sched_wait){ .tokens_left = 500, .need = SEQS_MAX, .need_all = SEQS_MAX };
    }
    b->in = (fg_sched_input){ .limits = &b->limits,
                              .cost = &b->cost,
                              .seqs = b->seqs,
                              .seq_count = count,
                              .waits = b->waits,
                              .wait_count = load == DECODING ? 0 : WAITS,
                              .available = load == PRESSED ? 0 : SEQS_MAX,
                              .tier_available = 10000,
                              .may_preempt = true };
}

static double best_us(bench *b, int rounds)
{
    double best = 1e30;
    for (int r = 0; r < rounds; r++) {
        uint64_t plans = 0, start = now(), took = 0;
        for (; took < BATCH_NS; took = now() - start) {
            for (int i = 0; i < 16; i++, plans++) {
                fg_sched_plan_step(&b->in, &b->plan);
                __asm__ volatile("" ::"r"(b->plan.items) : "memory");
            }
        }
        double us = (double)took / (double)plans / 1e3;
        best = us < best ? us : best;
    }
    return best;
}

int main(int argc, char **argv)
{
    static const uint32_t counts[] = { 1, 16, 256, 1024, 4096 };
    static const char *const names[] = { "all decode", "10% prefill, 1000 wait", "no block left" };
    int rounds = argc > 1 ? atoi(argv[1]) : 5;
    must(rounds >= 1 && rounds <= ROUNDS_MAX, "reading ROUNDS (1 to 1000)");
    bench b = { .seqs = fg_mem_array(SEQS_MAX, sizeof *b.seqs),
                .waits = fg_mem_array(WAITS, sizeof *b.waits) };
    b.plan.items = fg_mem_array(SEQS_MAX, sizeof *b.plan.items);
    b.plan.victims = fg_mem_array(SEQS_MAX, sizeof *b.plan.victims);
    b.plan.admits = fg_mem_array(SEQS_MAX, sizeof *b.plan.admits);
    must(b.seqs != NULL && b.waits != NULL && b.plan.items != NULL && b.plan.victims != NULL &&
             b.plan.admits != NULL,
         "memory");
    printf("%-24s %8s %10s %10s %8s %8s %8s\n", "load", "running", "us/plan", "ns/request", "items",
           "victims", "goal us");
    for (int load = 0; load < LOADS; load++) {
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            set_up(&b, load, counts[i]);
            double us = best_us(&b, rounds);
            printf("%-24s %8u %10.2f %10.1f %8u %8u %8.1f\n", names[load], counts[i], us,
                   1e3 * us / counts[i], b.plan.item_count, b.plan.victim_count,
                   20 + 0.3 * counts[i]);
        }
    }
    fg_mem_free(b.seqs);
    fg_mem_free(b.waits);
    fg_mem_free(b.plan.items);
    fg_mem_free(b.plan.victims);
    fg_mem_free(b.plan.admits);
    return 0;
}
