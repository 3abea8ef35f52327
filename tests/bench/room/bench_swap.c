/*
 * bench_swap MODEL [DIRECTORY] [THREADS] [ROUNDS] - what it takes to bring back a preempted sequence of so
 * many tokens: copying its blocks out to host memory, or to a file in DIRECTORY (--kv-disk), and in
 * again, by the engine, digests included; or computing it again, in chunks of 512. Medians; the ways
 * take turns. Processor caches are swept before each copy. "cold" is a file whose pages were pushed out
 * of memory between out and in, where the kernel does that.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/clock.h"
#include "common/base/dtype.h"
#include "common/base/mem.h"
#include "common/base/thread.h"
#include "common/kv/tier.h"
#include "common/engine/runner.h"

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif

enum { CONTEXT = 2048, CHUNK = 512, ROUNDS_MAX = 100, CACHE_BYTES = 64 << 20 };

typedef enum way { MEMORY, FILE_WARM, FILE_COLD, WAYS } way;
static const char *const way_names[] = { "memory", "file", "file, cold" };

typedef struct place {
    fg_tier *tier;
    fg_engine *engine;
    fg_signal signal;
} place;

typedef struct bench {
    fg_runner runner;
    place memory, file;
    fg_step_copy copies[CONTEXT];
    uint32_t tokens[CONTEXT];
    uint8_t *sweep;
    uint64_t out_ns[WAYS][ROUNDS_MAX], in_ns[WAYS][ROUNDS_MAX], redo_ns[ROUNDS_MAX];
} bench;

static void must(bool good, const char *what)
{
    if (!good) {
        fprintf(stderr, "bench_swap: %s failed\n", what);
        exit(1);
    }
}

static uint64_t now(void)
{
    fg_clock clock = fg_clock_real();
    return fg_clock_now_ns(&clock);
}

static void on_done(void *ctx)
{
    fg_signal_raise(&((place *)ctx)->signal);
}

static void open_place(bench *b, place *p, const char *directory)
{
    fg_error err = { 0 };
    const fg_runner *r = &b->runner;
    fg_tier_options tier = { .block_bytes = r->layout.block_bytes,
                             .block_count = r->block_count,
                             .block_size = r->layout.block_size,
                             .directory = directory };
    if (fg_tier_open(&tier, &p->tier, &err) != FG_OK) {
        fprintf(stderr, "bench_swap: %s\n", err.text);
        exit(1);
    }
    fg_engine_options engine = { .weights = r->weights,
                                 .hparams = &r->hparams,
                                 .layout = r->layout,
                                 .arena = r->arena,
                                 .block_count = r->block_count,
                                 .tier_arena = fg_tier_arena(p->tier),
                                 .tier_block_count = r->block_count,
                                 .limits = { CHUNK, 1, CONTEXT },
                                 .thread_count = 1,
                                 .cpu_isa = "auto",
                                 .on_done = on_done,
                                 .ctx = p };
    must(fg_engine_open_model(&engine, &p->engine, &err) == FG_OK, "opening an engine");
}

static void close_place(place *p)
{
    fg_engine_close(p->engine);
    fg_tier_close(p->tier);
}

static uint64_t copy(bench *b, place *p, fg_copy_kind kind, uint32_t blocks)
{
    for (size_t i = 0; i < CACHE_BYTES; i += 64) {
        b->sweep[i]++;
    }
    for (uint32_t i = 0; i < blocks; i++) {
        b->copies[i] = (fg_step_copy){ .kind = kind, .from = i, .to = i };
    }
    fg_step step = { .copies = b->copies, .copy_count = blocks };
    fg_error err = { 0 };
    uint32_t seen = fg_signal_count(&p->signal);
    must(fg_engine_begin(p->engine, &step, &err) == FG_OK, "copying");
    fg_signal_wait(&p->signal, seen);
    must(fg_engine_poll(p->engine) == &step, "a step that has ended");
    return step.copy_ns_out;
}

/* Best effort: what stays in memory makes the cold line warmer. */
static void push_out(const bench *b, const place *p, uint32_t blocks)
{
    size_t page = 4096, bytes = blocks * b->runner.layout.block_bytes;
    uint8_t *arena = fg_tier_arena(p->tier);
    must(msync(arena, (bytes + page - 1) / page * page, MS_SYNC) == 0, "writing the file");
    madvise(arena, (bytes + page - 1) / page * page, MADV_PAGEOUT);
}

static void one_round(bench *b, uint32_t tokens, uint32_t round)
{
    uint32_t blocks = fg_kv_blocks_for(tokens, b->runner.layout.block_size);
    fg_step_seq last = { .sampling = { .top_p = 1.0f } };
    fg_error err = { 0 };
    uint64_t at = now();
    must(fg_runner_prompt(&b->runner, 0, b->tokens, tokens, CHUNK, &last, &err) == FG_OK,
         "computing");
    b->redo_ns[round] = now() - at;
    for (int w = 0; w < WAYS; w++) {
        place *p = w == MEMORY ? &b->memory : &b->file;
        if (p->tier == NULL) {
            continue;
        }
        b->out_ns[w][round] = copy(b, p, FG_COPY_OUT, blocks);
        if (w == FILE_COLD) {
            push_out(b, p, blocks);
        }
        b->in_ns[w][round] = copy(b, p, FG_COPY_IN, blocks);
    }
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static double median_ms(uint64_t *values, uint32_t count)
{
    qsort(values, count, sizeof *values, by_value);
    return (double)values[count / 2] * 1e-6;
}

static void measure(bench *b, uint32_t tokens, uint32_t rounds)
{
    uint32_t blocks = fg_kv_blocks_for(tokens, b->runner.layout.block_size);
    double bytes = (double)blocks * (double)b->runner.layout.block_bytes;
    for (uint32_t i = 0; i < rounds; i++) {
        one_round(b, tokens, i);
    }
    double redo = median_ms(b->redo_ns, rounds);
    for (int w = 0; w < WAYS; w++) {
        if (b->in_ns[w][0] == 0) {
            continue;
        }
        double out = median_ms(b->out_ns[w], rounds), in = median_ms(b->in_ns[w], rounds);
        printf("%8u %8.1f %-10s %9.2f %9.2f %9.2f %9.2f %12.1f %14.4f\n", tokens, bytes / 1e6,
               way_names[w], out, in, bytes / out * 1e-6, bytes / in * 1e-6, redo,
               (out + in) / redo);
    }
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static const uint32_t lengths[] = { 16, 64, 256, 1024, 2048 };
    if (argc < 2) {
        fprintf(stderr, "usage: bench_swap MODEL [DIRECTORY] [THREADS] [ROUNDS]\n");
        return 2;
    }
    uint32_t rounds = argc > 4 ? (uint32_t)strtoul(argv[4], NULL, 10) : 5;
    must(rounds >= 1 && rounds <= ROUNDS_MAX, "reading ROUNDS (1 to 100)");
    bench *b = fg_mem_alloc(sizeof *b);
    must(b != NULL, "memory");
    b->sweep = fg_mem_array(CACHE_BYTES, 1);
    must(b->sweep != NULL, "memory");
    fg_runner_options options = { .path = argv[1],
                                  .kv_dtype = FG_F16,
                                  .context_max = CONTEXT,
                                  .thread_count =
                                      argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 1 };
    fg_error err = { 0 };
    if (fg_runner_open(&options, &b->runner, &err) != FG_OK) {
        fprintf(stderr, "bench_swap: %s\n", err.text);
        return 2;
    }
    for (uint32_t i = 0; i < CONTEXT; i++) {
        b->tokens[i] = (i * 7919u + 17u) % b->runner.hparams.vocab_size;
    }
    open_place(b, &b->memory, NULL);
    if (argc > 2 && argv[2][0] != '\0') {
        open_place(b, &b->file, argv[2]);
    }
    printf("%8s %8s %-10s %9s %9s %9s %9s %12s %14s\n", "tokens", "MB", "to", "out ms", "in ms",
           "out GB/s", "in GB/s", "compute ms", "swap / compute");
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        measure(b, lengths[i], rounds);
    }
    close_place(&b->memory);
    close_place(&b->file);
    fg_runner_close(&b->runner);
    fg_mem_free(b->sweep);
    fg_mem_free(b);
    return 0;
}
