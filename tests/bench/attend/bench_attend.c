/*
 * bench_attend [THREADS] [DTYPE] [ISA] [PART]: attention alone, over shapes of a 135M, a 1B and an 8B
 * model, prefill and decode, short and long contexts (cached: one layer, which stays in the third level).
 * Speed as a share of what the machine multiplies in registers (kernels/bench/peak; floats, or bytes for an
 * int8 cache) in the same minute, and the bytes of K and V a second; PART: only shapes whose name contains it.
 *
 * Then what paging costs: the same rows over the same KV in one block as long as the context
 * (contiguous), in blocks of 16 in rising order, and in blocks of 16 in an order drawn from a fixed seed.
 * Each time is the best of nine or, of short ones, of more, because other work on the machine only ever
 * slows it. The outputs of all three must be equal.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/dtype.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/kv/layout.h"
#include "kernels/bench/peak.h"
#include "kernels/ops.h"

enum { RUNS = 9, RUNS_NS = 300000000, BLOCK_SIZE = 16, ROWS_MAX = 128 };

/* Layers are walked one after the other, as a forward pass does, so that the KV read is larger than the
 * caches. */
typedef struct shape {
    const char *name;
    uint32_t layer_count, head_count, kv_head_count, head_dim;
    uint32_t seq_count, rows_per_seq; /* one row: decode; more: the end of a prompt */
    uint32_t context;
} shape;

static const shape shapes[] = {
    { "135M prefill to 512", 30, 9, 3, 64, 1, 128, 512 },
    { "135M prefill to 8k", 4, 9, 3, 64, 1, 128, 8192 },
    { "135M decode at 1k", 30, 9, 3, 64, 1, 1, 1024 },
    { "135M decode at 8k", 30, 9, 3, 64, 1, 1, 8192 },
    { "135M decode at 1k, 16 seqs", 10, 9, 3, 64, 16, 1, 1024 },
    { "1B prefill to 512", 16, 32, 8, 64, 1, 128, 512 },
    { "1B prefill to 4k", 4, 32, 8, 64, 1, 128, 4096 },
    { "1B prefill to 8k", 2, 32, 8, 64, 1, 128, 8192 },
    { "1B decode at 1k", 16, 32, 8, 64, 1, 1, 1024 },
    { "1B decode at 8k", 16, 32, 8, 64, 1, 1, 8192 },
    { "135M cached decode at 1k", 1, 9, 3, 64, 1, 1, 1024 },
    { "1B cached decode at 1k", 1, 32, 8, 64, 1, 1, 1024 },
    { "8B cached decode at 1k", 1, 32, 8, 128, 1, 1, 1024 },
    { "8B prefill to 512", 8, 32, 8, 128, 1, 128, 512 },
    { "8B prefill to 8k", 1, 32, 8, 128, 1, 128, 8192 },
    { "8B decode at 1k", 16, 32, 8, 128, 1, 1, 1024 },
    { "8B decode at 8k", 8, 32, 8, 128, 1, 1, 8192 },
    { "7B decode at 4k", 8, 28, 4, 128, 1, 1, 4096 },
    { "70B decode at 4k", 4, 64, 8, 128, 1, 1, 4096 },
};

typedef enum order { CONTIGUOUS, IN_ORDER, SHUFFLED, ORDER_COUNT } order;

typedef struct bench {
    const shape *shape;
    fg_device_stream *stream;
    fg_kv_layout layout;
    void *arena;
    size_t arena_bytes;
    uint32_t *block_ids; /* of all sequences, one after the other */
    uint32_t blocks_per_seq;
    float *q;
    float *out;
} bench;

static size_t row_floats(const shape *s)
{
    return (size_t)s->head_count * s->head_dim;
}

static void bench_close(bench *b)
{
    fg_mem_unmap(b->arena, b->arena_bytes);
    fg_mem_free(b->block_ids);
    fg_mem_free(b->q);
    fg_mem_free(b->out);
}

static bool bench_open(bench *b, uint32_t dtype, order how)
{
    const shape *s = b->shape;
    if (fg_kv_layout_init(&b->layout, s->layer_count, s->kv_head_count, s->head_dim, BLOCK_SIZE,
                          dtype, NULL) != FG_OK) {
        return false;
    }
    if (how == CONTIGUOUS) {
        /* Blocks longer than a pool would have; all sizes grow alike. */
        uint32_t factor = s->context / BLOCK_SIZE;
        b->layout.block_size *= factor;
        b->layout.scale_offset *= factor;
        b->layout.head_bytes *= factor;
        b->layout.layer_bytes *= factor;
        b->layout.block_bytes *= factor;
    }
    b->blocks_per_seq = s->context / b->layout.block_size;
    uint32_t block_count = b->blocks_per_seq * s->seq_count;
    b->arena_bytes = block_count * b->layout.block_bytes;
    b->arena = fg_mem_map(b->arena_bytes);
    b->block_ids = fg_mem_array(block_count, sizeof(uint32_t));
    b->q = fg_mem_array(ROWS_MAX, row_floats(s) * sizeof(float));
    b->out = fg_mem_array(ROWS_MAX, row_floats(s) * sizeof(float));
    if (b->arena == NULL || b->block_ids == NULL || b->q == NULL || b->out == NULL) {
        bench_close(b);
        return false;
    }
    fg_rng rng = { .state = 1 };
    for (uint32_t i = 0; i < block_count; i++) {
        uint32_t other = how == SHUFFLED ? (uint32_t)fg_rng_below(&rng, i + 1) : i;
        b->block_ids[i] = b->block_ids[other];
        b->block_ids[other] = i;
    }
    return true;
}

static fg_paged_kv layer_kv(const bench *b, uint32_t layer)
{
    return (fg_paged_kv){ .arena = b->arena,
                          .block_bytes = b->layout.block_bytes,
                          .key_offset = fg_kv_layout_offset(&b->layout, layer, 0, 0),
                          .value_offset = fg_kv_layout_offset(&b->layout, layer, 1, 0),
                          .head_bytes = b->layout.head_bytes,
                          .scale_offset = b->layout.scale_offset,
                          .block_size = b->layout.block_size,
                          .dtype = b->layout.dtype,
                          .kv_head_count = b->layout.kv_head_count,
                          .head_dim = b->layout.head_dim };
}

/* Small numbers in every slot, the same for a token however its slot is found. */
static void fill(bench *b)
{
    enum { KV_MAX = 8 * 128 };
    const shape *s = b->shape;
    float k[KV_MAX];
    float v[KV_MAX];
    for (uint32_t seq = 0; seq < s->seq_count; seq++) {
        for (uint32_t at = 0; at < s->context; at++) {
            fg_kv_row row = { .block_ids = b->block_ids + (size_t)seq * b->blocks_per_seq,
                              .position = at };
            for (uint32_t i = 0; i < s->kv_head_count * s->head_dim; i++) {
                uint64_t noise = fg_hash_mix((uint64_t)seq << 48 | (uint64_t)at << 16 | i);
                k[i] = (float)(noise & 0xFFFF) * 0x1p-17f - 0.25f;
                v[i] = (float)(noise >> 48) * 0x1p-17f - 0.25f;
            }
            fg_rope_store store = { .q = b->q, .k = k, .v = v, .kv_rows = &row };
            for (uint32_t layer = 0; layer < s->layer_count; layer++) {
                fg_paged_kv kv = layer_kv(b, layer);
                fg_op_rope_store(b->stream, &kv, &store, 1);
            }
        }
    }
    for (size_t i = 0; i < ROWS_MAX * row_floats(s); i++) {
        b->q[i] = (float)(fg_hash_mix(i) >> 40) * 0x1p-24f - 0.5f;
    }
}

/* Nanoseconds of attention over all layers. */
static uint64_t attend_once(bench *b)
{
    const shape *s = b->shape;
    fg_kv_row rows[ROWS_MAX];
    uint32_t row_count = 0;
    for (uint32_t seq = 0; seq < s->seq_count; seq++) {
        for (uint32_t i = 0; i < s->rows_per_seq; i++) {
            rows[row_count++] =
                (fg_kv_row){ .block_ids = b->block_ids + (size_t)seq * b->blocks_per_seq,
                             .position = s->context - s->rows_per_seq + i };
        }
    }
    fg_clock clock = fg_clock_real();
    uint64_t started_at_ns = fg_clock_now_ns(&clock);
    for (uint32_t layer = 0; layer < s->layer_count; layer++) {
        fg_paged_kv kv = layer_kv(b, layer);
        fg_attend attend = { .q = b->q,
                             .kv_rows = rows,
                             .head_count = s->head_count,
                             .scale = 1.0f / __builtin_sqrtf((float)s->head_dim),
                             .out = b->out };
        fg_op_attend(b->stream, &kv, &attend, row_count);
    }
    fg_device_event_wait(b->stream, fg_device_event_record(b->stream));
    return fg_clock_now_ns(&clock) - started_at_ns;
}

/* Fills the best time of each order; false when the outputs differ or memory is short. The orders take
 * turns, so that a slow moment of the machine does not fall on one of them alone. */
static bool measure(const shape *s, fg_device_stream *stream, uint32_t dtype,
                    uint64_t best_ns[ORDER_COUNT])
{
    bench benches[ORDER_COUNT];
    bool fine = true;
    uint32_t opened = 0;
    for (; opened < ORDER_COUNT; opened++) {
        bench *b = &benches[opened];
        *b = (bench){ .shape = s, .stream = stream };
        if (!bench_open(b, dtype, (order)opened)) {
            fprintf(stderr, "bench_attend: no memory for \"%s\"\n", s->name);
            fine = false;
            break;
        }
        fill(b);
        best_ns[opened] = UINT64_MAX;
    }
    uint64_t taken_ns = 0;
    for (uint32_t run = 0; (run < RUNS || taken_ns < RUNS_NS) && fine; run++) {
        for (uint32_t how = 0; how < ORDER_COUNT; how++) {
            uint64_t ns = attend_once(&benches[how]);
            best_ns[how] = ns < best_ns[how] ? ns : best_ns[how];
            taken_ns += ns;
        }
    }
    size_t out_bytes = (size_t)s->seq_count * s->rows_per_seq * row_floats(s) * sizeof(float);
    for (uint32_t how = 1; how < ORDER_COUNT && fine; how++) {
        if (memcmp(benches[how].out, benches[0].out, out_bytes) != 0) {
            fprintf(stderr, "bench_attend: \"%s\" gives other bits when paged\n", s->name);
            fine = false;
        }
    }
    for (uint32_t i = 0; i < opened; i++) {
        bench_close(&benches[i]);
    }
    return fine;
}

static void report(const shape *s, uint32_t dtype, double peak, const uint64_t ns[ORDER_COUNT])
{
    double rows = (double)s->seq_count * s->rows_per_seq;
    double slots = s->context - (s->rows_per_seq - 1) / 2.0;
    double macs = rows * slots * (double)row_floats(s) * 2 * s->layer_count;
    double bytes = (double)s->seq_count * s->context * s->kv_head_count * s->head_dim * 2 *
                   fg_dtype_kv_bytes(dtype) * s->layer_count;
    printf("%-26s %8.0f %8.1f %5.1f %6.1f %12.3f %9.3f\n", s->name, (double)ns[IN_ORDER] * 1e-3,
           macs / (double)ns[IN_ORDER],
           peak > 0 ? 100.0 * macs / ((double)ns[IN_ORDER] * 1e-9) / peak : 0.0,
           bytes / (double)ns[IN_ORDER], (double)ns[IN_ORDER] / (double)ns[CONTIGUOUS],
           (double)ns[SHUFFLED] / (double)ns[CONTIGUOUS]);
}

/* FG_F32 .. FG_I8 by name; UINT32_MAX: not a type of the KV cache. */
static uint32_t dtype_of(const char *name)
{
    static const uint32_t types[] = { FG_F16, FG_F32, FG_BF16, FG_I8 };
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(name, fg_dtype_name(types[i])) == 0) {
            return types[i];
        }
    }
    return UINT32_MAX;
}

static bool run_all(fg_device_stream *stream, uint32_t dtype, uint32_t threads, const char *part,
                    fg_peaks *peaks)
{
    printf("%-26s %8s %8s %5s %6s %12s %9s\n", "", "us", "Gmac/s", "peak%", "GB/s", "/contiguous",
           "shuffled");
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        uint64_t ns[ORDER_COUNT];
        if (strstr(shapes[i].name, part) == NULL) {
            continue;
        }
        fg_peak_kind kind = dtype == FG_I8 ? FG_PEAK_INT8 : FG_PEAK_F32;
        double peak = fg_peaks_measure(peaks, kind, threads, 50);
        if (!measure(&shapes[i], stream, dtype, ns)) {
            return false;
        }
        double after = fg_peaks_measure(peaks, kind, threads, 50);
        report(&shapes[i], dtype, after > peak ? after : peak, ns);
    }
    return true;
}

int main(int argc, char **argv)
{
    uint32_t threads = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 1;
    uint32_t dtype = dtype_of(argc > 2 ? argv[2] : "f16");
    fg_device_options options = { .kind = "cpu",
                                  .isa = argc > 3 ? argv[3] : "auto",
                                  .thread_count = threads };
    if (threads == 0 || dtype == UINT32_MAX) {
        fprintf(stderr, "usage: bench_attend [THREADS] [f16, bf16, int8 or f32] [ISA] [PART]\n");
        return 2;
    }
    fg_device *device;
    fg_device_stream *stream;
    fg_error err = { 0 };
    if (fg_device_open(&options, &device, &err) != FG_OK) {
        fprintf(stderr, "bench_attend: %s\n", err.text);
        return 2;
    }
    if (fg_device_stream_open(device, &stream, &err) != FG_OK) {
        fprintf(stderr, "bench_attend: %s\n", err.text);
        fg_device_close(device);
        return 2;
    }
    fg_peaks *peaks;
    if (fg_peaks_open(threads, &peaks, &err) != FG_OK) {
        fprintf(stderr, "bench_attend: %s\n", err.text);
        fg_device_stream_close(stream);
        fg_device_close(device);
        return 2;
    }
    printf("threads=%u isa=%s kv=%s block_size=%d\n", threads, fg_device_isa(device),
           fg_dtype_name(dtype), BLOCK_SIZE);
    bool fine = run_all(stream, dtype, threads, argc > 4 ? argv[4] : "", peaks);
    fg_peaks_close(peaks);
    fg_device_stream_close(stream);
    fg_device_close(device);
    return fine ? 0 : 1;
}
