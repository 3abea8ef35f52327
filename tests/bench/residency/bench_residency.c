/*
 * bench_residency [MILLION_BLOCKS] [PART] - the router's index on one core, with 128 workers.
 *
 *   events   blocks stored and removed per second: each worker stores prompts and drops its oldest ones.
 *            "own": all prompts differ. "shared": the first half of each is one of 32 system prompts.
 *            "single": a worker of 32 sequences that each get a block in a step: an event for each block, 32 in
 *            a frame; removed likewise.
 *            Completion-correct: every event is applied when it counts, and the books are checked after.
 *   match    microseconds for a chain that all 128 workers hold, and for one that 127 of them hold half of;
 *            chains are taken in turns from a million blocks, so that they lie in no cache
 *   bytes    of the tree per block that is held by 1, 8 or 128 workers, by length of the prompts
 *   churn    10 million blocks (or so many) through a tree of 64 MiB
 *
 * PART: only own, shared, single or churn, for a profiler.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "router/residency.h"

enum {
    WORKERS = 128,
    CHAIN = 256,
    HELD = 32,                   /* chains that a worker keeps */
    PROMPTS = 4096,              /* own ones, made beforehand */
    SYSTEMS = PROMPTS / WORKERS, /* no worker has one twice */
    STEPS = 8,
    ROUNDS = 3,
    SAMPLES = 4000,
};

typedef struct bench {
    fg_residency *tree;
    uint64_t numbers[WORKERS];
    uint64_t now_ns;
    uint64_t sum;
} bench;

static void must(bool good, const char *what)
{
    if (!good) {
        fprintf(stderr, "bench_residency: %s failed\n", what);
        exit(1);
    }
}

static uint64_t cpu_ns(void)
{
    struct timespec at;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
    return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}

static void open_bench(bench *b, size_t bytes_max)
{
    *b = (bench){ 0 };
    fg_residency_options options = { .bytes_max = bytes_max, .slot_count = WORKERS, .seed = 3 };
    must(fg_residency_create(&options, &b->tree, NULL) == FG_OK, "create");
    for (uint32_t slot = 0; slot < WORKERS; slot++) {
        fg_residency_join(b->tree, slot, 1);
    }
}

static void close_bench(bench *b)
{
    fg_residency_check(b->tree);
    fg_residency_destroy(b->tree);
}

static void tell(bench *b, uint32_t slot, uint32_t kind, uint64_t parent, const uint64_t *keys,
                 uint32_t count)
{
    fg_residency_event event = { kind, FG_TIER_DEVICE, parent, keys, count };
    fg_residency_frame frame = { 1, ++b->numbers[slot], &event, 1 };
    b->now_ns += 20000;
    must(fg_residency_apply(b->tree, slot, &frame, b->now_ns) == FG_OK, "apply");
}

static uint64_t *make_keys(size_t count, uint64_t seed)
{
    uint64_t *keys = fg_mem_array(count, sizeof *keys);
    must(keys != NULL, "memory");
    fg_rng rng = { .state = seed };
    for (size_t i = 0; i < count; i++) {
        keys[i] = fg_rng_next(&rng);
    }
    return keys;
}

/* ---- events ---- */

typedef enum load_kind { OWN, SHARED, SINGLE, LOADS } load_kind;
static const char *const load_names[] = { "own", "shared", "single" };

/* `count` events in a frame. */
static void tell_all(bench *b, uint32_t slot, const fg_residency_event *events, uint32_t count)
{
    fg_residency_frame frame = { 1, ++b->numbers[slot], events, count };
    b->now_ns += 20000;
    must(fg_residency_apply(b->tree, slot, &frame, b->now_ns) == FG_OK, "apply");
}

/* The chain as 32 sequences of 8 blocks: each frame has the next block of every sequence. */
static void tell_steps(bench *b, uint32_t slot, uint32_t kind, const uint64_t *keys)
{
    fg_residency_event events[CHAIN / STEPS];
    for (uint32_t step = 0; step < STEPS; step++) {
        for (uint32_t i = 0; i < CHAIN / STEPS; i++) {
            uint32_t at = i * STEPS + (kind == FG_RESIDENCY_STORED ? step : STEPS - 1 - step);
            uint64_t parent = kind == FG_RESIDENCY_STORED && step != 0 ? keys[at - 1] : 0;
            events[i] = (fg_residency_event){ kind, FG_TIER_DEVICE, parent, keys + at, 1 };
        }
        tell_all(b, slot, events, CHAIN / STEPS);
    }
}

static void store_chain(bench *b, uint32_t slot, const uint64_t *keys, load_kind load)
{
    if (load == SINGLE) {
        tell_steps(b, slot, FG_RESIDENCY_STORED, keys);
    } else {
        tell(b, slot, FG_RESIDENCY_STORED, 0, keys, CHAIN);
    }
}

/* Workers evict the end of a prompt first; the keys arrive in that order. */
static void remove_chain(bench *b, uint32_t slot, const uint64_t *keys, load_kind load)
{
    uint64_t back[CHAIN];
    if (load == SINGLE) {
        tell_steps(b, slot, FG_RESIDENCY_REMOVED, keys);
        return;
    }
    for (uint32_t i = 0; i < CHAIN; i++) {
        back[i] = keys[CHAIN - 1 - i];
    }
    tell(b, slot, FG_RESIDENCY_REMOVED, 0, back, CHAIN);
}

/* Chains of a round: the worker and its keys. A worker stores its next one and drops its oldest. */
static double events_round(bench *b, const uint64_t *keys, load_kind load)
{
    uint64_t blocks = 0, start = cpu_ns();
    for (uint32_t i = 0; i < 2 * PROMPTS; i++) {
        uint32_t slot = i % WORKERS;
        if (i >= PROMPTS) {
            remove_chain(b, slot, keys + (size_t)((i - PROMPTS) % PROMPTS) * CHAIN, load);
            blocks += CHAIN;
        }
        if (i < PROMPTS) {
            store_chain(b, slot, keys + (size_t)i * CHAIN, load);
            blocks += CHAIN;
        }
    }
    return (double)blocks / (double)(cpu_ns() - start) * 1e3;
}

/* The same with the tree full all the time. */
static double steady_round(bench *b, const uint64_t *keys, load_kind load)
{
    uint64_t start;
    for (uint32_t i = 0; i < PROMPTS / 2; i++) {
        store_chain(b, i % WORKERS, keys + (size_t)i * CHAIN, load);
    }
    start = cpu_ns();
    uint32_t turns = PROMPTS;
    for (uint32_t i = 0; i < turns; i++) {
        uint32_t next = (i + PROMPTS / 2) % PROMPTS, old = i % PROMPTS;
        store_chain(b, next % WORKERS, keys + (size_t)next * CHAIN, load);
        remove_chain(b, old % WORKERS, keys + (size_t)old * CHAIN, load);
    }
    uint64_t passed = cpu_ns() - start;
    for (uint32_t i = 0; i < PROMPTS / 2; i++) {
        remove_chain(b, i % WORKERS, keys + (size_t)i * CHAIN, load);
    }
    return 2.0 * turns * CHAIN / (double)passed * 1e3;
}

static void bench_events(load_kind load)
{
    bench b;
    open_bench(&b, (size_t)256 << 20);
    uint64_t *keys = make_keys((size_t)PROMPTS * CHAIN, 1);
    uint64_t *systems = make_keys((size_t)SYSTEMS * CHAIN, 2);
    for (uint32_t i = 0; load == SHARED && i < PROMPTS; i++) {
        memcpy(keys + (size_t)i * CHAIN, systems + (size_t)(i / WORKERS) * CHAIN,
               CHAIN / 2 * sizeof *keys);
    }
    double best = 0, steady = 0;
    for (int round = 0; round < ROUNDS; round++) {
        double now = events_round(&b, keys, load);
        best = now > best ? now : best;
        now = steady_round(&b, keys, load);
        steady = now > steady ? now : steady;
    }
    fg_residency_stats stats;
    fg_residency_stats_get(b.tree, &stats);
    must(stats.blocks == 0 && stats.unknown == 0 && stats.dropped == 0, "an empty tree at the end");
    printf("events %-8s fill and empty %7.2f M block-ops/s   steady %7.2f M block-ops/s\n",
           load_names[load], best, steady);
    close_bench(&b);
    fg_mem_free(keys);
    fg_mem_free(systems);
}

/* ---- match ---- */

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void bench_match(uint32_t count, bool half)
{
    bench b;
    open_bench(&b, (size_t)256 << 20);
    uint32_t chains = (1 << 20) / count;
    uint64_t *keys = make_keys((size_t)chains * count, 4);
    for (uint32_t i = 0; i < chains; i++) {
        for (uint32_t slot = 0; slot < WORKERS; slot++) {
            uint32_t held = half && slot != 0 ? count / 2 - slot % 4 * 8 : count;
            tell(&b, slot, FG_RESIDENCY_STORED, 0, keys + (size_t)i * count, held);
        }
    }
    fg_residency_hit hits[WORKERS];
    uint64_t *times = fg_mem_array(SAMPLES, sizeof *times);
    for (uint32_t i = 0; i < SAMPLES; i++) {
        const uint64_t *chain = keys + (size_t)((uint64_t)i * 7919 % chains) * count;
        for (uint32_t at = 0; at < count; at += 8) { /* a prompt's keys have just been made */
            b.sum += chain[at];
        }
        fg_clock clock = fg_clock_real();
        uint64_t start = fg_clock_now_ns(&clock);
        must(fg_residency_match(b.tree, chain, count, b.now_ns, hits) == WORKERS, "match");
        times[i] = fg_clock_now_ns(&clock) - start;
        must(hits[0].device == count, "the longest match");
    }
    qsort(times, SAMPLES, sizeof *times, compare);
    printf("match %4u blocks, %-22s p50 %7.2f us   p99 %7.2f us\n", count,
           half ? "127 workers hold half:" : "128 workers hold all:",
           1e-3 * (double)times[SAMPLES / 2], 1e-3 * (double)times[SAMPLES * 99 / 100]);
    close_bench(&b);
    fg_mem_free(keys);
    fg_mem_free(times);
}

/* ---- memory ---- */

static void bench_bytes(uint32_t length, uint32_t slot_count)
{
    static const uint32_t holders[] = { 1, 8, 128 };
    printf("bytes per block, prompts of %4u, %3u slots:", length, slot_count);
    for (size_t i = 0; i < 3 && holders[i] <= slot_count; i++) {
        bench b = { 0 };
        fg_residency_options options = { .bytes_max = (size_t)256 << 20, .slot_count = slot_count };
        must(fg_residency_create(&options, &b.tree, NULL) == FG_OK, "create");
        uint32_t prompts = 200000 / length;
        uint64_t *keys = make_keys((size_t)prompts * length, 5);
        for (uint32_t slot = 0; slot < holders[i]; slot++) {
            fg_residency_join(b.tree, slot, 1);
            for (uint32_t p = 0; p < prompts; p++) {
                tell(&b, slot, FG_RESIDENCY_STORED, 0, keys + (size_t)p * length, length);
            }
        }
        fg_residency_stats stats;
        fg_residency_stats_get(b.tree, &stats);
        must(stats.blocks == (uint64_t)prompts * length, "holding all");
        printf("  %5.1f (%u)", (double)stats.bytes / (double)stats.blocks, holders[i]);
        fg_residency_destroy(b.tree);
        fg_mem_free(keys);
    }
    printf("\n");
}

static void bench_churn(uint64_t blocks)
{
    bench b;
    open_bench(&b, (size_t)64 << 20);
    fg_rng rng = { .state = 6 };
    uint64_t stored = 0, bytes = 0, passed = 0;
    while (stored < blocks) {
        uint64_t keys[512];
        uint32_t count = 1 + (uint32_t)fg_rng_below(&rng, 512);
        for (uint32_t i = 0; i < count; i++) {
            keys[i] = fg_rng_next(&rng);
        }
        uint64_t start = cpu_ns();
        tell(&b, (uint32_t)fg_rng_below(&rng, WORKERS), FG_RESIDENCY_STORED, 0, keys, count);
        passed += cpu_ns() - start;
        stored += count;
        fg_residency_stats stats;
        fg_residency_stats_get(b.tree, &stats);
        bytes = stats.bytes > bytes ? stats.bytes : bytes;
    }
    fg_residency_stats stats;
    fg_residency_stats_get(b.tree, &stats);
    must(stats.blocks + stats.reclaimed == stored && stats.dropped == 0, "the sum");
    printf("churn %llu blocks through 64 MiB: at most %.1f MiB used, %.1f MiB reserved, %llu "
           "blocks at "
           "the end, %llu reclaimed, %.2f M stored/s\n",
           (unsigned long long)stored, (double)bytes / 1048576,
           (double)stats.bytes_reserved / 1048576, (unsigned long long)stats.blocks,
           (unsigned long long)stats.reclaimed, (double)stored / (double)passed * 1e3);
    close_bench(&b);
}

int main(int argc, char **argv)
{
    uint64_t churn = (uint64_t)((argc > 1 ? atof(argv[1]) : 10) * 1e6);
    const char *part = argc > 2 ? argv[2] : "";
    for (load_kind load = OWN; load < LOADS; load++) {
        if (strcmp(part, "") == 0 || strcmp(part, load_names[load]) == 0) {
            bench_events(load);
        }
    }
    if (strcmp(part, "churn") == 0) {
        bench_churn(churn);
    }
    if (strcmp(part, "") != 0) {
        return 0;
    }
    static const uint32_t counts[] = { 64, 512, 4096 };
    for (size_t i = 0; i < 3; i++) {
        bench_match(counts[i], false);
        bench_match(counts[i], true);
    }
    bench_bytes(8, 128);
    bench_bytes(60, 128);
    bench_bytes(500, 128);
    bench_bytes(500, 8);
    bench_churn(churn);
    return 0;
}
