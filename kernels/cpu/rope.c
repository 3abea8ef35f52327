/*
 * Rotary position embedding, and the step that puts K and V into their slots: what comes between the products
 * of a row and its attention.
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

#define LOG_TWO_PI 0x1.d67f1c864beb5p+0

/* Of |x| below 2^52. */
static double floor_of(double x)
{
    double whole = (double)(int64_t)x;
    return whole > x ? whole - 1.0 : whole;
}

/* The pair, not a whole one, that turns `turns` times in the original context. */
static double pair_of_turns(const fg_rope_shape *shape, float turns)
{
    double log_turns = log_of((float)shape->original_context) - log_of(turns) - LOG_TWO_PI;
    return shape->pair_count * log_turns / log_of(shape->theta);
}

/* The first and the last pair of YaRN's ramp. */
static void find_ramp(const fg_rope_shape *shape, double *first_out, double *last_out)
{
    double first = floor_of(pair_of_turns(shape, shape->beta_fast));
    double last = -floor_of(-pair_of_turns(shape, shape->beta_slow));
    double last_dim = 2.0 * shape->pair_count - 1.0;
    *first_out = first > 0.0 ? first : 0.0;
    *last_out = last < last_dim ? last : last_dim;
}

void fg_rope_frequencies(const fg_rope_shape *shape, double *frequencies_out)
{
    double log_theta = log_of(shape->theta);
    double first = 0.0, last = 0.0;
    if (shape->yarn) {
        find_ramp(shape, &first, &last);
    }
    for (uint32_t i = 0; i < shape->pair_count; i++) {
        double frequency = exp_minus(log_theta * i / shape->pair_count);
        if (shape->divisors != NULL) {
            frequency /= (double)shape->divisors[i];
        }
        double kept = 0.0;
        if (shape->yarn) {
            double width = last - first > 0.001 ? last - first : 0.001;
            double along = (i - first) / width;
            kept = 1.0 - (along < 0.0 ? 0.0 : along > 1.0 ? 1.0 : along);
        }
        if (shape->factor != 1.0f) {
            frequency = frequency / (double)shape->factor * (1.0 - kept) + frequency * kept;
        }
        frequencies_out[i] = frequency;
    }
}

float fg_rope_yarn_magnitude(float factor)
{
    return (float)(1.0 + 0.1 * log_of(factor));
}

void fg_cpu_op_rope_table(fg_device_stream *stream, const uint32_t *positions, uint32_t rows,
                          const fg_rope_turns *turns, float *table)
{
    uint64_t began_ns = fg_op_clock_begin();
    for (uint32_t row = 0; row < rows; row++) {
        for (uint32_t pair = 0; pair < turns->pair_count; pair++) {
            double sine;
            double cosine;
            fg_sincos((double)positions[row] * turns->frequencies[pair], &sine, &cosine);
            *table++ = (float)(cosine * turns->magnitude);
            *table++ = (float)(sine * turns->magnitude);
        }
    }
    stream->sequence++;
    fg_op_clock_end(FG_OP_KIND_ROPE, began_ns);
}

static void add_bias(const float *bias, uint32_t count, float *x)
{
    for (uint32_t i = 0; i < count; i++) {
        x[i] += bias[i];
    }
}

/* The heads of one row of q or of k; bias and norm are NULL where there is none. */
typedef struct head_row {
    float *x;
    uint32_t head_count;
    uint32_t head_dim;
    const float *bias;
    const float *norm;
} head_row;

static void turn_heads(const fg_cpu_kernels *kernels, const fg_rope_store *args, const float *turns,
                       const head_row *row)
{
    if (row->bias != NULL) {
        add_bias(row->bias, row->head_count * row->head_dim, row->x);
    }
    for (uint32_t head = 0; head < row->head_count; head++) {
        float *x = row->x + (size_t)head * row->head_dim;
        if (row->norm != NULL) {
            kernels->rmsnorm_row(x, row->norm, row->head_dim, args->norm_epsilon, x);
        }
        (args->interleaved ? kernels->rotate_neighbours : kernels->rotate)(x, turns,
                                                                           args->pair_count);
    }
}

/* Where in a region a slot's dimensions lie, in elements: 2i at even + i * step, 2i + 1 at odd + i * step. */
typedef struct places {
    size_t even;
    size_t odd;
    size_t step;
} places;

static places key_places(const fg_paged_kv *kv, uint32_t slot)
{
    return (places){ .even = fg_cpu_key_at(kv, slot, 0),
                     .odd = fg_cpu_key_at(kv, slot, 1),
                     .step = (size_t)2 * fg_cpu_kv_piece(kv) };
}

static places value_places(const fg_paged_kv *kv, uint32_t slot)
{
    size_t even = fg_cpu_value_at(kv, slot, 0);
    size_t odd = fg_cpu_value_at(kv, slot, 1);
    return (places){ .even = even, .odd = odd, .step = 2 * (odd - even) };
}

/* Where dimension d lies. */
static size_t place(places at, uint32_t d)
{
    return (d % 2 == 0 ? at.even : at.odd) + d / 2 * at.step;
}

static void store_halves(const fg_cpu_kernels *kernels, const fg_paged_kv *kv, uint8_t *region,
                         places at, const float *values)
{
    uint16_t rounded[FG_ATTEND_DIMS];
    uint16_t *slots = (uint16_t *)(void *)region;
    kernels->to_halves(values, kv->head_dim, rounded);
    for (uint32_t d = 0; d < kv->head_dim; d++) {
        slots[place(at, d)] = rounded[d];
    }
}

/* bf16: dimensions 2i and 2i + 1 come in one word, the first in its upper half; of keys they lie so in the cache. */
static void store_brains(const fg_cpu_kernels *kernels, const fg_paged_kv *kv, uint8_t *region,
                         places at, const float *values)
{
    uint32_t pairs[FG_ATTEND_DIMS / 2];
    uint32_t count = kv->head_dim / 2;
    kernels->pair_row(values, kv->head_dim, pairs);
    if (at.even == at.odd + 1) {
        uint32_t *words = (uint32_t *)(void *)region + at.odd / 2;
        for (uint32_t i = 0; i < count; i++) {
            words[i * (at.step / 2)] = pairs[i];
        }
        return;
    }
    uint16_t *slots = (uint16_t *)(void *)region;
    for (uint32_t i = 0; i < count; i++) {
        slots[at.even + i * at.step] = (uint16_t)(pairs[i] >> 16);
        slots[at.odd + i * at.step] = (uint16_t)pairs[i];
    }
}

/* int8: four dimensions of a key lie together, of a value they are as far apart as the slots that share them. */
static void store_bytes(const fg_paged_kv *kv, uint8_t *region, uint32_t slot, bool is_key,
                        const float *values)
{
    int8_t rounded[FG_ATTEND_DIMS];
    *fg_cpu_kv_scale(kv, region, slot) = fg_cpu_quantize_head(values, kv->head_dim, rounded);
    if (is_key) {
        uint8_t *to = region + fg_cpu_key_at(kv, slot, 0);
        for (uint32_t d = 0; d < kv->head_dim; d += 4) {
            memcpy(to + (size_t)d * fg_cpu_kv_piece(kv), rounded + d, 4);
        }
        return;
    }
    uint8_t *to = region + fg_cpu_value_at(kv, slot, 0);
    size_t step = fg_cpu_value_at(kv, slot, 1) - fg_cpu_value_at(kv, slot, 0);
    for (uint32_t d = 0; d < kv->head_dim; d++) {
        to[d * step] = (uint8_t)rounded[d];
    }
}

/* One head's K or V into its places. */
static void store_head(const fg_cpu_kernels *kernels, const fg_paged_kv *kv, uint8_t *region,
                       places at, const float *values)
{
    if (kv->dtype == FG_F32) {
        for (uint32_t d = 0; d < kv->head_dim; d++) {
            ((float *)(void *)region)[place(at, d)] = values[d];
        }
    } else if (kv->dtype == FG_F16) {
        store_halves(kernels, kv, region, at, values);
    } else {
        store_brains(kernels, kv, region, at, values);
    }
}

static void store_slot(const fg_cpu_kernels *kernels, const fg_paged_kv *kv, uint8_t *block,
                       uint32_t slot, const float *k, const float *v)
{
    for (uint32_t head = 0; head < kv->kv_head_count; head++) {
        size_t first = (size_t)head * kv->head_dim;
        uint8_t *keys = block + kv->key_offset + head * kv->head_bytes;
        uint8_t *values = block + kv->value_offset + head * kv->head_bytes;
        if (kv->dtype == FG_I8) {
            store_bytes(kv, keys, slot, true, k + first);
            store_bytes(kv, values, slot, false, v + first);
        } else {
            store_head(kernels, kv, keys, key_places(kv, slot), k + first);
            store_head(kernels, kv, values, value_places(kv, slot), v + first);
        }
    }
}

static void store_row(const fg_cpu_kernels *kernels, const fg_paged_kv *kv, const fg_kv_row *row,
                      const float *k, const float *v)
{
    uint8_t *block = fg_cpu_kv_region(kv, row->block_ids, 0, 0, row->position);
    store_slot(kernels, kv, block, row->position, k, v);
    if (row->twin != NULL) {
        store_slot(kernels, kv, row->twin, row->position, k, v);
    }
}

enum {
    ROWS_PER_PIECE = FG_KV_PIECE, /* that share a piece of keys: few cache lines have two writers */
    ROWS_LEAST = 4, /* of sequences of their own, which share nothing; a fork costs about as much */
};

typedef struct store_job {
    const fg_cpu_kernels *kernels;
    const fg_paged_kv *kv;
    const fg_rope_store *args;
    uint32_t rows;
    uint32_t rows_per_piece;
} store_job;

static bool is_same_piece(const fg_kv_row *a, const fg_kv_row *b)
{
    return a->block_ids == b->block_ids && a->position / FG_KV_PIECE == b->position / FG_KV_PIECE;
}

static uint32_t rows_per_piece(const fg_rope_store *args, uint32_t rows, uint32_t member_count)
{
    for (uint32_t row = 1; row < rows; row++) {
        if (args->kv_rows[row].block_ids == args->kv_rows[row - 1].block_ids) {
            return ROWS_PER_PIECE;
        }
    }
    uint32_t share = (rows + member_count - 1) / member_count;
    return share < ROWS_LEAST ? ROWS_LEAST : share > ROWS_PER_PIECE ? ROWS_PER_PIECE : share;
}

/* Asks memory for what a row is going to write parts of, a little in each of many cache lines. */
static void fetch_row(const fg_paged_kv *kv, const fg_kv_row *row)
{
    size_t element_bytes = fg_dtype_kv_bytes(kv->dtype);
    size_t piece_bytes = (size_t)fg_cpu_kv_piece(kv) * kv->head_dim * element_bytes;
    uint32_t slot = row->position;
    for (uint32_t head = 0; head < kv->kv_head_count; head++) {
        const uint8_t *keys = fg_cpu_kv_region(kv, row->block_ids, kv->key_offset, head, slot);
        const uint8_t *values = fg_cpu_kv_region(kv, row->block_ids, kv->value_offset, head, slot);
        keys += slot % kv->block_size / fg_cpu_kv_piece(kv) * piece_bytes;
        for (size_t at = 0; at < piece_bytes; at += 64) {
            __builtin_prefetch(keys + at, 0, 2);
        }
        size_t end = fg_cpu_value_at(kv, slot, kv->head_dim - 1) * element_bytes;
        for (size_t at = fg_cpu_value_at(kv, slot, 0) * element_bytes; at <= end; at += 64) {
            __builtin_prefetch(values + at, 0, 2);
        }
    }
}

/* Of a row's products what attention reads. */
static void prepare_row(const store_job *job, uint32_t row)
{
    const fg_rope_store *args = job->args;
    uint32_t head_dim = job->kv->head_dim;
    uint32_t kv_columns = job->kv->kv_head_count * head_dim;
    const float *turns = args->table + (size_t)row * args->pair_count * 2;
    const head_row q = { .x = args->q == NULL ? NULL
                                              : args->q + (size_t)row * args->head_count * head_dim,
                         .head_count = args->head_count,
                         .head_dim = head_dim,
                         .bias = args->q_bias,
                         .norm = args->q_norm };
    const head_row k = { .x = args->k == NULL ? NULL : args->k + (size_t)row * kv_columns,
                         .head_count = job->kv->kv_head_count,
                         .head_dim = head_dim,
                         .bias = args->k_bias,
                         .norm = args->k_norm };
    turn_heads(job->kernels, args, turns, &q);
    if (args->k == NULL) {
        return;
    }
    turn_heads(job->kernels, args, turns, &k);
    if (args->v_bias != NULL) {
        add_bias(args->v_bias, kv_columns, args->v + (size_t)row * kv_columns);
    }
}

static void store_piece(void *ctx, uint32_t piece, uint32_t member)
{
    const store_job *job = ctx;
    const fg_paged_kv *kv = job->kv;
    const fg_rope_store *args = job->args;
    size_t kv_columns = (size_t)kv->kv_head_count * kv->head_dim;
    uint32_t first = piece * job->rows_per_piece;
    uint32_t left = job->rows - first;
    uint32_t end = first + (left < job->rows_per_piece ? left : job->rows_per_piece);
    if (args->k != NULL) {
        fetch_row(kv, &args->kv_rows[first]);
    }
    for (uint32_t row = first; row < end && args->k == NULL; row++) {
        prepare_row(job, row);
    }
    for (uint32_t row = first; row < end && args->k != NULL; row++) {
        if (row + 1 < end && !is_same_piece(&args->kv_rows[row], &args->kv_rows[row + 1])) {
            fetch_row(kv, &args->kv_rows[row + 1]);
        }
        prepare_row(job, row);
        store_row(job->kernels, kv, &args->kv_rows[row], args->k + row * kv_columns,
                  args->v + row * kv_columns);
    }
}

void fg_cpu_op_rope_store(fg_device_stream *stream, const fg_paged_kv *kv,
                          const fg_rope_store *args, uint32_t rows)
{
    uint64_t began_ns = fg_op_clock_begin();
    FG_ASSERT(kv->head_dim <= FG_ATTEND_DIMS, "head size beyond the KV layout's");
    fg_team *team = stream->device->team;
    store_job job = { .kernels = stream->device->kernels,
                      .kv = kv,
                      .args = args,
                      .rows = rows,
                      .rows_per_piece = rows_per_piece(args, rows, fg_team_size(team)) };
    uint32_t pieces = (rows + job.rows_per_piece - 1) / job.rows_per_piece;
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
