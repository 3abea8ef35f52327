/*
 * bench_linear [THREADS] [ISA] [OUTPUTS] [COLUMNS]: what the matrix products reach, per weight type
 * and number of rows: 10^9 multiply-adds per second, % of this machine's peak, and GB/s of weights
 * read. The peaks are measured in the same minute: for quantised types the three instructions of an
 * int8 dot product on registers, for float types fused multiply-adds. Best of many short runs.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/dtype.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "kernels/bench/peak.h"
#include "kernels/ops.h"

/* Many short runs: on a busy machine the best one has the core for itself. */
enum { RUNS = 40, RUN_NS = 1000 * 1000 };

static const uint32_t types[] = { FG_Q4_0, FG_Q4_1, FG_Q5_0, FG_Q5_1, FG_Q8_0, FG_Q4_K,
                                  FG_Q5_K, FG_Q6_K, FG_F16,  FG_BF16, FG_F32 };
static const uint32_t row_counts[] = { 1, 4, 32, 128 };
enum { ROWS_MAX = 128 };

typedef struct bench {
    fg_device_stream *stream;
    fg_linear linear;
    fg_activations in;
    size_t weight_bytes;
} bench;

static double seconds_per_run(const bench *b, uint32_t rows)
{
    fg_clock clock = fg_clock_real();
    double best = 1e9;
    for (int run = 0; run < RUNS; run++) {
        uint64_t started_at_ns = fg_clock_now_ns(&clock);
        uint32_t repeats = 0;
        uint64_t spent_ns;
        do {
            fg_op_linear(b->stream, &b->linear, 1, &b->in, rows);
            repeats++;
            spent_ns = fg_clock_now_ns(&clock) - started_at_ns;
        } while (spent_ns < RUN_NS);
        double seconds = (double)spent_ns * 1e-9 / repeats;
        best = seconds < best ? seconds : best;
    }
    return best;
}

/* Finite weights whatever the type: every scale is the half 0x2c2c = 0.065, every float about 3e-12. */
static void bench_type(bench *b, uint32_t type, uint32_t outputs, uint32_t columns,
                       uint32_t thread_count)
{
    columns = (columns + 255) / 256 * 256;
    b->weight_bytes = fg_panel_count(outputs) * fg_panel_bytes(type, columns);
    void *weights = fg_mem_map(b->weight_bytes);
    if (weights == NULL) {
        printf("%-5s out of memory\n", fg_dtype_name(type));
        return;
    }
    memset(weights, 0x2C, b->weight_bytes);
    b->linear.weight =
        (fg_panels){ .data = weights, .type = type, .outputs = outputs, .columns = columns };
    b->linear.out_stride = outputs;
    b->in.columns = columns;
    fg_op_quantize(b->stream, &b->in, ROWS_MAX);
    double peak = fg_op_linear_is_quantized(type) ? fg_peak_int8_macs() : fg_peak_f32_macs();
    for (size_t i = 0; i < sizeof row_counts / sizeof row_counts[0]; i++) {
        uint32_t rows = row_counts[i];
        double seconds = seconds_per_run(b, rows);
        double macs = (double)outputs * columns * rows / seconds;
        printf("%-5s M=%-4u %8.1f Gmac/s %5.1f %% of peak %7.2f GB/s weights\n",
               fg_dtype_name(type), rows, macs * 1e-9,
               peak == 0.0 ? 0.0 : 100.0 * macs / (peak * thread_count),
               (double)b->weight_bytes / seconds * 1e-9);
    }
    fg_mem_unmap(weights, b->weight_bytes);
}

static uint32_t argument(int argc, char **argv, int index, uint32_t fallback)
{
    return argc > index ? (uint32_t)strtoul(argv[index], NULL, 10) : fallback;
}

int main(int argc, char **argv)
{
    uint32_t thread_count = argument(argc, argv, 1, 1);
    uint32_t outputs = argument(argc, argv, 3, 1536);
    uint32_t columns = (argument(argc, argv, 4, 768) + 255) / 256 * 256;
    fg_device_options options = { .kind = "cpu",
                                  .isa = argc > 2 ? argv[2] : "auto",
                                  .thread_count = thread_count };
    fg_device *device;
    bench b = { 0 };
    fg_error err;
    if (fg_device_open(&options, &device, &err) != FG_OK) {
        fprintf(stderr, "bench_linear: %s\n", err.text);
        return 2;
    }
    b.in.values = fg_mem_array((size_t)ROWS_MAX * columns, sizeof(float));
    b.in.quants = fg_mem_array((size_t)ROWS_MAX * columns, 1);
    b.in.groups = fg_mem_array((size_t)ROWS_MAX * columns / FG_QUANT_GROUP, sizeof(fg_quant_group));
    b.linear.out = fg_mem_array((size_t)ROWS_MAX * outputs, sizeof(float));
    if (fg_device_stream_open(device, &b.stream, &err) != FG_OK || b.in.values == NULL ||
        b.in.quants == NULL || b.in.groups == NULL || b.linear.out == NULL) {
        fprintf(stderr, "bench_linear: out of memory\n");
        return 1;
    }
    fg_rng rng = { .state = 1 };
    for (size_t i = 0; i < (size_t)ROWS_MAX * columns; i++) {
        b.in.values[i] = (float)fg_rng_below(&rng, 2001) * 1e-3f - 1.0f;
    }
    printf("isa %s, %u threads, %u outputs x %u columns; peak per thread: int8 %.1f, f32 %.1f "
           "Gmac/s\n",
           fg_device_isa(device), thread_count, outputs, columns, fg_peak_int8_macs() * 1e-9,
           fg_peak_f32_macs() * 1e-9);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        bench_type(&b, types[i], outputs, columns, thread_count);
    }
    fg_mem_free(b.in.values);
    fg_mem_free(b.in.quants);
    fg_mem_free(b.in.groups);
    fg_mem_free(b.linear.out);
    fg_device_stream_close(b.stream);
    fg_device_close(device);
    return 0;
}
