/*
 * Rotary position embedding, and the step that puts K and V into their slots. One version for all
 * processors: it touches each number once.
 */
#include "kernels/ops.h"

#include <string.h>

#include "common/base/dtype.h"
#include "common/base/fmath.h"
#include "kernels/cpu/attend.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/op_clock.h"

static double double_from_bits(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* ln of a normal float, by ln m = 2 artanh((m - 1) / (m + 1)), m in [1, 2): 40 terms reach 1e-19. */
static double log_of(float x)
{
    uint32_t bits = fg_f32_bits(x);
    int exponent = (int)(bits >> 23) - 127;
    double m = (double)fg_f32_from_bits((bits & 0x007FFFFFu) | 0x3F800000u);
    double s = (m - 1.0) / (m + 1.0);
    double sum = 0.0;
    for (int k = 39; k >= 0; k--) {
        sum = sum * (s * s) + 1.0 / (2 * k + 1);
    }
    return 2.0 * s * sum + (double)exponent * 0x1.62e42fefa39efp-1;
}

/* e^-y for |y| <= 700: 2^-n times e^-r with |r| < ln 2, whose series of 22 terms ends below 1e-24. */
static double exp_minus(double y)
{
    int n = (int)(y * 0x1.71547652b82fep+0);
    double r = (y - n * 0x1.62e42feep-1) - n * 0x1.a39ef35793c76p-33;
    double sum = 1.0;
    for (int k = 22; k >= 1; k--) {
        sum = 1.0 - sum * r / k;
    }
    return sum * double_from_bits((uint64_t)(1023 - n) << 52);
}

void fg_rope_frequencies(float theta, const float *divisors, uint32_t pair_count,
                         double *frequencies_out)
{
    double log_theta = log_of(theta);
    for (uint32_t i = 0; i < pair_count; i++) {
        double frequency = exp_minus(log_theta * i / pair_count);
        frequencies_out[i] = divisors == NULL ? frequency : frequency / (double)divisors[i];
    }
}

void fg_op_rope_table(fg_device_stream *stream, const uint32_t *positions, uint32_t rows,
                      const double *frequencies, uint32_t pair_count, float *table)
{
    uint64_t began_ns = fg_op_clock_begin();
    for (uint32_t row = 0; row < rows; row++) {
        for (uint32_t pair = 0; pair < pair_count; pair++) {
            double sine;
            double cosine;
            fg_sincos((double)positions[row] * frequencies[pair], &sine, &cosine);
            *table++ = (float)cosine;
            *table++ = (float)sine;
        }
    }
    stream->sequence++;
    fg_op_clock_end(FG_OP_KIND_ROPE, began_ns);
}

static void rotate_heads(const fg_rope_store *args, uint32_t row, uint32_t head_count,
                         uint32_t head_dim, float *heads)
{
    const float *turns = args->table + (size_t)row * args->pair_count * 2;
    uint32_t step = args->interleaved ? 2 : 1;
    uint32_t other = args->interleaved ? 1 : args->pair_count;
    for (uint32_t head = 0; head < head_count; head++) {
        float *x = heads + ((size_t)row * head_count + head) * head_dim;
        for (uint32_t pair = 0; pair < args->pair_count; pair++) {
            float cosine = turns[2 * pair];
            float sine = turns[2 * pair + 1];
            float a = x[pair * step];
            float b = x[pair * step + other];
            x[pair * step] = a * cosine - b * sine;
            x[pair * step + other] = a * sine + b * cosine;
        }
    }
}

static void store_element(uint32_t dtype, uint8_t *region, size_t at, float value)
{
    uint16_t half;
    switch (dtype) {
    case FG_F32:
        memcpy(region + 4 * at, &value, sizeof value);
        return;
    case FG_F16:
        half = fg_f16_from_f32(value);
        break;
    default:
        half = fg_bf16_from_f32(value);
        break;
    }
    memcpy(region + 2 * at, &half, sizeof half);
}

/* What int8 multiplies by before it rounds; writes the slot's scale. */
static float quant_factor(const float *values, uint32_t count, float *scale_out)
{
    float peak = 0.0f;
    for (uint32_t d = 0; d < count; d++) {
        float magnitude = values[d] < 0.0f ? -values[d] : values[d];
        peak = magnitude > peak ? magnitude : peak;
    }
    bool nothing = peak < FG_CPU_QUANT_TINY;
    *scale_out = nothing ? 0.0f : peak / 127.0f;
    return nothing ? 0.0f : 127.0f / peak;
}

/* One head's K or V into its slot; neighbouring dimensions are `step` elements apart. */
static void store_head(const fg_paged_kv *kv, uint8_t *region, uint32_t slot, size_t at,
                       size_t step, const float *values)
{
    if (kv->dtype == FG_I8) {
        float factor = quant_factor(values, kv->head_dim, fg_cpu_kv_scale(kv, region, slot));
        for (uint32_t d = 0; d < kv->head_dim; d++) {
            region[at + d * step] = (uint8_t)fg_cpu_round(values[d] * factor);
        }
        return;
    }
    for (uint32_t d = 0; d < kv->head_dim; d++) {
        store_element(kv->dtype, region, at + d * step, values[d]);
    }
}

static void store_row(const fg_paged_kv *kv, const fg_kv_row *row, const float *k, const float *v)
{
    uint32_t slot = row->position;
    for (uint32_t head = 0; head < kv->kv_head_count; head++) {
        size_t first = (size_t)head * kv->head_dim;
        uint8_t *keys = fg_cpu_kv_region(kv, row->block_ids, kv->key_offset, head, slot);
        uint8_t *values = fg_cpu_kv_region(kv, row->block_ids, kv->value_offset, head, slot);
        store_head(kv, keys, slot, fg_cpu_key_at(kv, slot, 0), fg_cpu_kv_piece(kv), k + first);
        store_head(kv, values, slot, fg_cpu_value_at(kv, slot, 0), 1, v + first);
    }
}

/* Rows of one piece of work: as many as share a piece of keys, so that few cache lines have two
 * writers. */
enum { ROWS_PER_PIECE = FG_KV_PIECE };

typedef struct store_job {
    const fg_paged_kv *kv;
    const fg_rope_store *args;
    uint32_t rows;
} store_job;

static void store_piece(void *ctx, uint32_t piece, uint32_t member)
{
    const store_job *job = ctx;
    const fg_paged_kv *kv = job->kv;
    const fg_rope_store *args = job->args;
    size_t kv_columns = (size_t)kv->kv_head_count * kv->head_dim;
    uint32_t first = piece * ROWS_PER_PIECE;
    uint32_t left = job->rows - first;
    uint32_t end = first + (left < ROWS_PER_PIECE ? left : ROWS_PER_PIECE);
    for (uint32_t row = first; row < end; row++) {
        rotate_heads(args, row, args->head_count, kv->head_dim, args->q);
        rotate_heads(args, row, kv->kv_head_count, kv->head_dim, args->k);
        store_row(kv, &args->kv_rows[row], args->k + row * kv_columns, args->v + row * kv_columns);
    }
}

void fg_op_rope_store(fg_device_stream *stream, const fg_paged_kv *kv, const fg_rope_store *args,
                      uint32_t rows)
{
    uint64_t began_ns = fg_op_clock_begin();
    store_job job = { .kv = kv, .args = args, .rows = rows };
    uint32_t pieces = (rows + ROWS_PER_PIECE - 1) / ROWS_PER_PIECE;
    fg_team *team = stream->device->team;
    stream->sequence++;
    if (pieces > 1 && fg_team_size(team) > 1) {
        fg_team_for(team, pieces, store_piece, &job);
    } else {
        for (uint32_t piece = 0; piece < pieces; piece++) {
            store_piece(&job, piece, 0);
        }
    }
    fg_op_clock_end(FG_OP_KIND_ROPE, began_ns);
}
