/*
 * bench_attend [THREADS] [CONTEXT] [ISA]: what paging costs attention. The same rows over the same KV,
 * three ways: one block as long as the context (contiguous), blocks of 16 in rising order, and blocks
 * of 16 in an order drawn from a fixed seed. Each time is the best of nine, because other work on the
 * machine only ever slows it; the ratio is to contiguous. The outputs of all three must be equal.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/dtype.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/kv/layout.h"
#include "kernels/ops.h"

enum { RUNS = 9, BLOCK_SIZE = 16, ROWS_MAX = 64 };

/* Layers are walked one after the other, as a forward pass does, so that the KV read is larger than the
 * caches. */
typedef struct shape {
    const char *name;
    uint32_t layer_count, head_count, kv_head_count, head_dim;
    uint32_t seq_count, rows_per_seq; /* one row: decode; more: the end of a prompt */
} shape;

static const shape shapes[] = {
    { "135M decode, 1 sequence", 30, 9, 3, 64, 1, 1 },
    { "135M decode, 8 sequences", 30, 9, 3, 64, 8, 1 },
    { "135M prefill, 64 rows", 8, 9, 3, 64, 1, 64 },
    { "8B decode, 1 sequence", 8, 32, 8, 128, 1, 1 },
    { "8B decode, 4 sequences", 8, 32, 8, 128, 4, 1 },
    { "8B prefill, 32 rows", 2, 32, 8, 128, 1, 32 },
};

typedef enum order { CONTIGUOUS, IN_ORDER, SHUFFLED, ORDER_COUNT } order;

typedef struct bench {
    const shape *shape;
    fg_device_stream *stream;
    uint32_t context;
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

static bool bench_open(bench *b, order how)
{
    const shape *s = b->shape;
    if (fg_kv_layout_init(&b->layout, s->layer_count, s->kv_head_count, s->head_dim, BLOCK_SIZE,
                          FG_F16, NULL) != FG_OK) {
        return false;
    }
    if (how == CONTIGUOUS) {
        /* Blocks longer than a pool would have; all sizes grow alike. */
        uint32_t factor = b->context / BLOCK_SIZE;
        b->layout.block_size *= factor;
        b->layout.head_bytes *= factor;
        b->layout.layer_bytes *= factor;
        b->layout.block_bytes *= factor;
    }
    b->blocks_per_seq = b->context / b->layout.block_size;
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

/* Small numbers in every slot, the same for a token however its slot is found. */
static void fill(bench *b)
{
    const fg_kv_layout *layout = &b->layout;
    for (uint32_t seq = 0; seq < b->shape->seq_count; seq++) {
        for (uint32_t at = 0; at < b->context; at++) {
            uint32_t id = b->block_ids[seq * b->blocks_per_seq + at / layout->block_size];
            uint8_t *block = (uint8_t *)b->arena + id * layout->block_bytes;
            for (uint32_t part = 0; part < layout->layer_count * 2 * layout->kv_head_count;
                 part++) {
                uint16_t *slot = (uint16_t *)(void *)(block + part * layout->head_bytes) +
                                 (size_t)(at % layout->block_size) * layout->head_dim;
                uint64_t noise = fg_hash_mix((uint64_t)seq << 48 | (uint64_t)at << 16 | part);
                for (uint32_t i = 0; i < layout->head_dim; i++) {
                    /* 1/32 to 1/8 with either sign. */
                    slot[i] = (uint16_t)(0x2800u + (noise >> (i % 48) & 0x87FFu));
                }
            }
        }
    }
    for (size_t i = 0; i < ROWS_MAX * row_floats(b->shape); i++) {
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
                             .position = b->context - s->rows_per_seq + i };
        }
    }
    fg_clock clock = fg_clock_real();
    uint64_t started_at_ns = fg_clock_now_ns(&clock);
    for (uint32_t layer = 0; layer < s->layer_count; layer++) {
        fg_paged_kv kv = { .arena = b->arena,
                           .block_bytes = b->layout.block_bytes,
                           .key_offset = fg_kv_layout_offset(&b->layout, layer, 0, 0),
                           .value_offset = fg_kv_layout_offset(&b->layout, layer, 1, 0),
                           .head_bytes = b->layout.head_bytes,
                           .block_size = b->layout.block_size,
                           .dtype = FG_F16,
                           .kv_head_count = s->kv_head_count,
                           .head_dim = s->head_dim };
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
static bool measure(const shape *s, fg_device_stream *stream, uint32_t context,
                    uint64_t best_ns[ORDER_COUNT])
{
    bench benches[ORDER_COUNT];
    bool fine = true;
    uint32_t opened = 0;
    for (; opened < ORDER_COUNT; opened++) {
        bench *b = &benches[opened];
        *b = (bench){ .shape = s, .stream = stream, .context = context };
        if (!bench_open(b, (order)opened)) {
            fprintf(stderr, "bench_attend: no memory for \"%s\"\n", s->name);
            fine = false;
            break;
        }
        fill(b);
        best_ns[opened] = UINT64_MAX;
    }
    for (uint32_t run = 0; run < RUNS && fine; run++) {
        for (uint32_t how = 0; how < ORDER_COUNT; how++) {
            uint64_t ns = attend_once(&benches[how]);
            best_ns[how] = ns < best_ns[how] ? ns : best_ns[how];
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

int main(int argc, char **argv)
{
    uint32_t context = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 2048;
    fg_device_options options = { .kind = "cpu",
                                  .isa = argc > 3 ? argv[3] : "auto",
                                  .thread_count =
                                      argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 1 };
    if (context < ROWS_MAX || (context & (context - 1)) != 0) {
        fprintf(stderr, "usage: bench_attend [THREADS] [CONTEXT, a power of two] [ISA]\n");
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
    printf("threads=%u isa=%s context=%u block_size=%d\n", options.thread_count,
           fg_device_isa(device), context, BLOCK_SIZE);
    bool fine = true;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0] && fine; i++) {
        uint64_t ns[ORDER_COUNT];
        fine = measure(&shapes[i], stream, context, ns);
        if (fine) {
            printf("%-26s contiguous_us=%.0f in_order_us=%.0f ratio=%.3f shuffled_us=%.0f "
                   "ratio=%.3f\n",
                   shapes[i].name, (double)ns[CONTIGUOUS] * 1e-3, (double)ns[IN_ORDER] * 1e-3,
                   (double)ns[IN_ORDER] / (double)ns[CONTIGUOUS], (double)ns[SHUFFLED] * 1e-3,
                   (double)ns[SHUFFLED] / (double)ns[CONTIGUOUS]);
        }
    }
    fg_device_stream_close(stream);
    fg_device_close(device);
    return fine ? 0 : 1;
}
