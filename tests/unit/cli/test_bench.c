#include "cli/bench.h"

#include <math.h>
#include <stdlib.h>

#include "cli/bench_limit.h"
#include "common/base/dtype.h"
#include "common/base/fault.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/test.h"

Test(bench, lists_are_read_or_refused)
{
    static const struct {
        const char *text;
        int count; /* -1: refused */
        uint32_t last;
    } cases[] = {
        { NULL, 0, 0 },
        { "", 0, 0 },
        { "0", 0, 0 },
        { "1", 1, 1 },
        { "1,8,16", 3, 16 },
        { "100", 1, 100 },
        { "101", -1, 0 },
        { "1,", -1, 0 },
        { ",1", -1, 0 },
        { "1,,2", -1, 0 },
        { "1 2", -1, 0 },
        { "-1", -1, 0 },
        { "1,0", -1, 0 },
        { "0x1", -1, 0 },
        { "9999999999", -1, 0 },
        { "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1", 32, 1 },
        { "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1", -1, 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fg_bench_list list = { .count = 77 };
        fg_error err;
        fg_status status = fg_bench_list_parse("--batch", cases[i].text, 100, &list, &err);
        const char *text = cases[i].text == NULL ? "NULL" : cases[i].text;
        if (cases[i].count < 0) {
            cr_assert_eq(status, FG_BAD_INPUT, "%s", text);
            cr_assert_eq(list.count, 77u, "%s", text);
            continue;
        }
        cr_assert_eq(status, FG_OK, "%s", text);
        cr_assert_eq(list.count, (uint32_t)cases[i].count, "%s", text);
        cr_assert(list.count == 0 || list.items[list.count - 1] == cases[i].last, "%s", text);
    }
}

Test(bench, statistics)
{
    const double samples[] = { 2, 4, 4, 6 };
    fg_bench_stats stats = fg_bench_stats_of(samples, 4);
    cr_assert_eq(stats.mean, 4.0);
    cr_assert_eq(stats.best, 6.0);
    cr_assert(fabs(stats.deviation - sqrt(8.0 / 3.0)) < 1e-12);
    stats = fg_bench_stats_of(samples, 1);
    cr_assert_eq(stats.deviation, 0.0);
}

/* A model of 2 layers, 64 wide, 4 heads on 2 of 16, ffn 128. */
static fg_bench_cost cost_of_model(const fg_tiny_llama *options, double *vocab_out)
{
    size_t size_bytes;
    void *bytes = fg_gguf_build_tiny_llama(options, &size_bytes);
    fg_weights *weights;
    fg_hparams hparams;
    cr_assert_eq(fg_weights_open_memory(bytes, size_bytes, &weights, NULL), FG_OK);
    cr_assert_eq(fg_hparams_read(weights, &hparams, NULL), FG_OK);
    fg_bench_cost cost = fg_bench_cost_of(weights, &hparams);
    *vocab_out = hparams.vocab_size;
    fg_weights_close(weights);
    free(bytes);
    return cost;
}

static fg_bench_cost cost_of(uint32_t type, bool separate_output, double *vocab_out)
{
    fg_tiny_llama options = { .weight_type = type, .separate_output = separate_output };
    return cost_of_model(&options, vocab_out);
}

/* 4 experts, 2 of them for a row. */
Test(bench, of_experts_those_count_that_rows_go_to)
{
    const double experts = 2 * 4 * 3.0 * 64 * 128, routers = 2 * 64.0 * 4;
    const double others = 2 * (2.0 * 64 * 64 + 2.0 * 64 * 32);
    double vocab;
    const fg_tiny_llama options = { .weight_type = FG_Q8_0, .arch = FG_TINY_MIXTRAL };
    fg_bench_cost cost = cost_of_model(&options, &vocab);
    cr_assert_eq(cost.layers.int8, others + experts / 2);
    cr_assert_eq(cost.layers.floats, routers);
    cr_assert_eq(cost.spared.int8, 2 * 64.0 * 64 + experts / 4); /* the last layer's but K and V */
    cr_assert_eq(cost.spared.floats, routers / 2);
    cr_assert_eq(cost.weight_bytes, (others + vocab * 64) / 32 * 34 + routers * 4);
    cr_assert_eq(cost.expert_bytes, experts / 32 * 34);
    const fg_bench_rates rates = { .int8 = 1e30, .floats = 1e30, .read = 1.0 };
    static const struct {
        double rows, steps, share;
    } works[] = { { 1, 1, 0.5 }, { 2, 1, 0.75 }, { 30, 10, 0.875 }, { 4000, 1, 1 } };
    for (size_t i = 0; i < sizeof works / sizeof works[0]; i++) {
        const fg_bench_work work = { .rows = works[i].rows, .weight_reads = works[i].steps };
        const char *probe;
        double bytes = fg_bench_limit(&cost, &work, &rates, &probe) / works[i].steps;
        double want = cost.weight_bytes + works[i].share * cost.expert_bytes;
        cr_assert(fabs(bytes / want - 1) < 1e-6, "%g rows: %g, not %g", works[i].rows, bytes, want);
    }
}

Test(bench, costs_count_each_weight_once)
{
    const double layers = 2 * (2.0 * 64 * 64 + 2.0 * 64 * 32 + 3.0 * 64 * 128);
    double vocab;
    fg_bench_cost cost = cost_of(FG_Q8_0, false, &vocab);
    cr_assert_eq(cost.layers.int8, layers);
    cr_assert_eq(cost.layers.bf16, 0.0);
    cr_assert_eq(cost.head.int8, vocab * 64);
    cr_assert_eq(cost.spared.int8, 2.0 * 64 * 64 + 3.0 * 64 * 128);
    cr_assert_eq(cost.weight_bytes, (layers + vocab * 64) / 32 * 34);
    double tied_params = (double)cost.params;
    /* With a head of its own the embedding is a look-up, and no step reads all of it. */
    cost = cost_of(FG_BF16, true, &vocab);
    cr_assert_eq(cost.layers.int8, 0.0);
    cr_assert_eq(cost.layers.bf16, layers);
    cr_assert_eq(cost.head.bf16, vocab * 64);
    cr_assert_eq(cost.weight_bytes, (layers + vocab * 64) * 2);
    cr_assert_eq((double)cost.params, tied_params + vocab * 64);
}

Test(bench, the_slower_limit_counts)
{
    const fg_bench_cost cost = { .layers.int8 = 1000,
                                 .head = { .int8 = 50, .bf16 = 50 },
                                 .spared.int8 = 200,
                                 .weight_bytes = 500 };
    const fg_bench_rates rates = { .int8 = 1e3, .bf16 = 1e3, .read = 1e3 };
    static const struct {
        const char *name;
        fg_bench_work work;
        double seconds;
        const char *probe;
    } cases[] = {
        { "one row reads", { 0.25, 0.25, 1, 0 }, 0.5, "read" },
        { "many rows multiply", { 8, 8, 1, 0 }, 8.8, "int8" },
        { "most end in the last layer", { 8, 1, 1, 0 }, 8.1 - 7 * 0.2, "int8" },
        { "so do half of them", { 8, 4, 1, 0 }, 8.4 - 4 * 0.2, "int8" },
        { "fewer do not", { 8, 5, 1, 0 }, 8.5, "int8" },
        { "heads of a few rows multiply", { 0, 60, 1, 0 }, 6.0, "int8" },
        { "a long context reads", { 1, 1, 1, 2500 }, 3.0, "read" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *probe = NULL;
        double seconds = fg_bench_limit(&cost, &cases[i].work, &rates, &probe);
        cr_assert(fabs(seconds - cases[i].seconds) < 1e-12, "%s: %g", cases[i].name, seconds);
        cr_assert_str_eq(probe, cases[i].probe, "%s", cases[i].name);
    }
}

Test(bench, a_mean_of_rates_is_kept)
{
    const fg_bench_rates seen[] = { { 1, 20, 300, 4000 }, { 2, 10, 900, 0 }, { 6, 0, 300, 2000 } };
    fg_bench_rates mean = { 0 };
    for (int i = 0; i < 3; i++) {
        fg_bench_rates_lean(&mean, &seen[i], 1.0 / (i + 1));
    }
    cr_assert(fabs(mean.int8 - 3) < 1e-9);
    cr_assert(fabs(mean.bf16 - 10) < 1e-9);
    cr_assert(fabs(mean.floats - 500) < 1e-9);
    cr_assert(fabs(mean.read - 2000) < 1e-9);
}

/* Of the same order: a share of the memory, or a thread's, that is counted wrong is off by 64, or by the number of
 * threads and the parts of a share. How fast a busy machine is, is no test. */
Test(bench, what_is_sustained_is_not_more_than_the_best)
{
    fg_peaks *peaks;
    cr_assert_eq(fg_peaks_open(2, &peaks, NULL), FG_OK);
    for (uint32_t threads = 1; threads <= 2; threads++) {
        for (uint32_t kind = 0; kind < FG_PEAK_COUNT; kind++) {
            double best = fg_peaks_measure(peaks, kind, threads, 5);
            double mean = fg_peaks_sustain(peaks, kind, threads, 5);
            cr_assert_eq(mean > 0.0, best > 0.0, "%s", fg_peak_name(kind));
            cr_assert(mean <= 8.0 * best, "%s, %u threads: %g, %g", fg_peak_name(kind), threads,
                      mean, best);
        }
    }
    fg_peaks_close(peaks);
}

Test(bench, memory_is_read_beyond_every_cache)
{
    static const struct {
        const char *what;
        uint64_t cache_mib, cache_count, available_mib, area_mib;
    } cases[] = {
        { "no word of a cache", 0, 1, 16384, 256 },
        { "a small one", 32, 1, 16384, 256 },
        { "a large one", 480, 1, 16384, 1024 },
        { "many", 32, 12, 65536, 768 },
        { "just twice a window", 128, 1, 16384, 256 },
        { "a little more, in whole windows", 129, 1, 16384, 512 },
        { "little memory", 480, 1, 2048, 512 },
        { "hardly any", 480, 1, 100, 256 },
        { "memory of which nothing is known", 480, 1, UINT64_MAX >> 20, 1024 },
        { "nonsense", UINT64_MAX >> 20, 3, 16384, 256 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cr_assert_eq(fg_peak_area_bytes((size_t)cases[i].cache_mib << 20,
                                        (uint32_t)cases[i].cache_count,
                                        cases[i].available_mib << 20),
                     cases[i].area_mib << 20, "%s", cases[i].what);
    }
}

static bool open_peaks(void *ctx)
{
    (void)ctx;
    fg_peaks *peaks = NULL;
    fg_status status = fg_peaks_open(2, &peaks, NULL);
    fg_peaks_close(peaks);
    return status == FG_OK;
}

Test(bench, probes_survive_every_failed_allocation)
{
    cr_assert_geq(fg_fault_each(open_peaks, NULL), 4);
}
