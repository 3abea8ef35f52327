/*
 * Attention with NEON: the register tiles of strip.c, for up to six (row, head)s and 16 to 64 columns, that
 * widen K and V as they load them. int8 is multiplied in fours by the dot product instructions: K as it is
 * with q, both signed; V as bytes from 0 to 255 with weights, both unsigned, so that 128 times the sum of a
 * row's weights is too much: its sums begin below 0 by that.
 *
 * Tile sizes were chosen by counting registers and multiply-adds in flight, never by a clock.
 */
#include <string.h>

#include "kernels/cpu/math.h"
#include "kernels/cpu/neon.h"
#include "kernels/cpu/strip.h"

enum {
    STRIP = 6,
    LANES = 4,
    VECTORS = 16, /* of a tile's columns, at most */
    PIECE = FG_KV_PIECE,
    PIECE_VECTORS = PIECE / LANES,
    SCORES = FG_ATTEND_SCORES,
    UNROLL = 4,   /* steps; even, and divides a half of every head size that comes here */
    KEYS = 0x100, /* beside the types: int8 as K */
};

/* int8's are integers. */
typedef float32x4_t tile_sums[STRIP][VECTORS];

/* Vectors of a register tile with M rows: enough chains to hide a multiply-add's latency, and 24 at most, which
 * leaves 8 registers for what is multiplied. */
FG_NEON_INLINE int tile_vectors(int M)
{
    return M == 1 ? 16 : M < 4 ? 8 : 4;
}

/* Bytes of four elements, pairs or fours that one step reads. */
FG_NEON_INLINE uint32_t vector_bytes(uint32_t kind)
{
    return kind == FG_F16 ? 8 : 16;
}

/* Dimensions or slots that one step multiplies. */
FG_NEON_INLINE uint32_t together(uint32_t kind)
{
    return kind == FG_I8 || kind == KEYS ? 4 : 1;
}

/* Where the step of an index begins, in steps of that many bytes: both of a pair begin together. */
FG_NEON_INLINE size_t place(uint32_t kind, uint32_t index, size_t step_bytes)
{
    return (kind == FG_BF16 ? index / 2 : index) * step_bytes;
}

/* Four elements as floats, of bf16 pairs the first or (odd) the second ones; int8 in fours, V 128 more. */
FG_NEON_INLINE float32x4_t load_kv(uint32_t kind, bool odd, const uint8_t *at)
{
    if (kind == FG_F16) {
        return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(at)));
    }
    uint8x16_t bytes = vld1q_u8(at);
    uint32x4_t pairs = vreinterpretq_u32_u8(bytes);
    if (kind == FG_BF16) {
        return vreinterpretq_f32_u32(odd ? vshlq_n_u32(pairs, 16)
                                         : vandq_u32(pairs, vdupq_n_u32(0xFFFF0000)));
    }
    return vreinterpretq_f32_u8(kind == FG_I8 ? veorq_u8(bytes, vdupq_n_u8(0x80)) : bytes);
}

FG_NEON_INLINE float32x4_t multiply_add(uint32_t kind, float32x4_t x, float32x4_t b,
                                        float32x4_t sum)
{
    switch (kind) {
    case KEYS:
        return vreinterpretq_f32_s32(vdotq_s32(vreinterpretq_s32_f32(sum), vreinterpretq_s8_f32(b),
                                               vreinterpretq_s8_f32(x)));
    case FG_I8:
        return vreinterpretq_f32_u32(vdotq_u32(vreinterpretq_u32_f32(sum), vreinterpretq_u8_f32(b),
                                               vreinterpretq_u8_f32(x)));
    default:
        return vfmaq_f32(sum, b, x);
    }
}

/* One step of a product: sums[m][n] += a[m * a_step] * b[n], b[n] at bs[n]. What is fewer, a or b, is held
 * in registers, and the other passes through one. */
FG_NEON_INLINE void step(uint32_t kind, bool odd, int M, int N, const float *a, size_t a_step,
                         const uint8_t *const bs[VECTORS], tile_sums sums)
{
    if (M < N) {
        float32x4_t x[STRIP];
#pragma GCC unroll 16
        for (int m = 0; m < M; m++) {
            x[m] = vdupq_n_f32(a[(size_t)m * a_step]);
        }
#pragma GCC unroll 16
        for (int n = 0; n < N; n++) {
            float32x4_t b = load_kv(kind, odd, bs[n]);
#pragma GCC unroll 16
            for (int m = 0; m < M; m++) {
                sums[m][n] = multiply_add(kind, x[m], b, sums[m][n]);
            }
        }
        return;
    }
    float32x4_t b[VECTORS];
#pragma GCC unroll 16
    for (int n = 0; n < N; n++) {
        b[n] = load_kv(kind, odd, bs[n]);
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; m++) {
        float32x4_t x = vdupq_n_f32(a[(size_t)m * a_step]);
#pragma GCC unroll 16
        for (int n = 0; n < N; n++) {
            sums[m][n] = multiply_add(kind, x, b[n], sums[m][n]);
        }
    }
}

/* Small tiles wait for memory: they fetch what comes later as they go, into the second-level cache. */
FG_NEON_INLINE void fetch(int M, const uint8_t *at, size_t offset)
{
    if (M < 5 && offset % 64 == 0) {
        __builtin_prefetch(at + offset, 0, 2);
    }
}

/* bf16 is added in chains of FG_STRIP_CHAIN dimensions or slots, two of which are a block. */
FG_NEON_INLINE bool in_chains(uint32_t kind)
{
    return kind == FG_BF16;
}

FG_NEON_INLINE void clear(int M, int N, tile_sums sums)
{
#pragma GCC unroll 32
    for (int i = 0; i < M * N; i++) {
        sums[i / N][i % N] = vdupq_n_f32(0.0f);
    }
}

/* The first chains of a block wait in memory for the second ones. */
FG_NEON_INLINE void park(int M, int N, tile_sums sums, float firsts[STRIP * VECTORS * LANES])
{
#pragma GCC unroll 32
    for (int i = 0; i < M * N; i++) {
        vst1q_f32(firsts + i * LANES, sums[i / N][i % N]);
    }
}

/* To where they are kept: sums or, of a block's chains, both added to what is there, or to nothing. */
FG_NEON_INLINE void put(bool chains, bool adds, float32x4_t sum, const float *first, float *at)
{
    sum = chains ? vaddq_f32(vld1q_f32(first), sum) : sum;
    vst1q_f32(at, adds ? vaddq_f32(vld1q_f32(at), sum) : sum);
}

/* Sums of N / 4 pieces from `piece` on, over steps first .. end - 1. */
FG_NEON_INLINE void score_steps(uint32_t kind, int M, int N, const fg_strip *s, uint32_t piece,
                                uint32_t first, uint32_t end, tile_sums sums)
{
    size_t line = (size_t)PIECE_VECTORS * vector_bytes(kind);
    uint32_t unroll = UNROLL / (kind == KEYS ? 2 : 1);
    const float *q = s->q + first;
    for (uint32_t d = first; d < end; d += unroll) {
        size_t at = place(kind, d, line);
#pragma GCC unroll 4
        for (uint32_t u = 0; u < unroll; u++) {
            const uint8_t *bs[VECTORS];
#pragma GCC unroll 16
            for (int n = 0; n < N; n++) {
                uint32_t in = piece + (uint32_t)n / PIECE_VECTORS;
                size_t offset =
                    place(kind, u, line) + (size_t)n % PIECE_VECTORS * vector_bytes(kind);
                bs[n] = fg_strip_keys(s, in) + at + offset;
                fetch(M, fg_strip_after_keys(s, in) + at, offset);
            }
            step(kind, u % 2 == 1, M, N, q++, FG_STRIP_Q, bs, sums);
        }
    }
}

/* Scores of N / 4 pieces from `piece` on. */
FG_NEON_INLINE void score_pieces(uint32_t kind, int M, int N, const fg_strip *s, uint32_t piece)
{
    bool chains = in_chains(kind);
    uint32_t steps = s->args->kv->head_dim / together(kind);
    uint32_t most = chains ? (uint32_t)FG_STRIP_CHAIN : steps;
    float firsts[STRIP * VECTORS * LANES];
    tile_sums sums;
    clear(M, N, sums);
    park(M, N, sums, firsts);
    for (uint32_t first = 0; first < steps; first += most) {
        uint32_t end = steps - first < most ? steps : first + most;
        score_steps(kind, M, N, s, piece, first, end, sums);
        if (first / most % 2 == 0 && end < steps) {
            park(M, N, sums, firsts);
            clear(M, N, sums);
            continue;
        }
#pragma GCC unroll 32
        for (int i = 0; i < M * N; i++) {
            put(chains, first >= 2 * most, sums[i / N][i % N], firsts + i * LANES,
                s->scores + i / N * SCORES + piece * PIECE + i % N * LANES);
        }
        clear(M, N, sums);
        if (end < steps && steps - end <= most) { /* the last chain is alone */
            park(M, N, sums, firsts);
        }
    }
}

/* Scores of the pieces begin .. end - 1 that the strip sees. */
FG_NEON_INLINE void strip_scores(uint32_t kind, int M, const fg_strip *s, uint32_t begin,
                                 uint32_t end)
{
    fg_cpu_slots seen = fg_strip_seen(s, begin, end);
    for (uint32_t at = seen.begin; at < seen.end; at += (uint32_t)tile_vectors(M) / PIECE_VECTORS) {
        score_pieces(kind == FG_I8 ? KEYS : kind, M, tile_vectors(M), s, at);
    }
}

/* What a product with the values takes and gives. */
typedef struct value_product {
    const fg_strip *strip;
    const float *weights; /* of the first row; int8: bytes */
    float *outs[STRIP];
    int32_t firsts[STRIP]; /* int8: what the sums begin with beside outs */
    fg_cpu_slots slots;
} value_product;

/* Weights and values of one run of slots, on some columns. */
typedef struct value_run {
    const float *weights; /* of the first row, a word per step */
    const uint8_t *values;
    ptrdiff_t after;   /* from values to what is fetched */
    size_t step_bytes; /* of a pair in bf16 */
} value_run;

FG_NEON_INLINE void value_step(uint32_t kind, bool odd, int M, int N, const float *weights,
                               const uint8_t *value, ptrdiff_t after, tile_sums sums)
{
    const uint8_t *bs[VECTORS];
#pragma GCC unroll 16
    for (int n = 0; n < N; n++) {
        bs[n] = value + (size_t)n * vector_bytes(kind);
        fetch(M, value + after, (size_t)n * vector_bytes(kind));
    }
    step(kind, odd, M, N, weights, SCORES, bs, sums);
}

/* The slots begin .. end - 1 of a run, which begins at slot 0. */
FG_NEON_INLINE void run_values(uint32_t kind, int M, int N, const value_run *run, uint32_t begin,
                               uint32_t end, tile_sums sums)
{
    uint32_t at = begin / together(kind);
    uint32_t steps = end / together(kind);
    if (kind == FG_BF16 && at % 2 == 1) {
        value_step(kind, true, M, N, run->weights + at,
                   run->values + place(kind, at, run->step_bytes), run->after, sums);
        at++;
    }
    const uint8_t *value = run->values + place(kind, at, run->step_bytes);
    for (; at + UNROLL <= steps; at += UNROLL) {
#pragma GCC unroll 4
        for (uint32_t u = 0; u < UNROLL; u++) {
            value_step(kind, u % 2 == 1, M, N, run->weights + at + u,
                       value + place(kind, u, run->step_bytes), run->after, sums);
        }
        value += place(kind, UNROLL, run->step_bytes);
    }
#pragma GCC unroll 4
    for (uint32_t u = 0; u < UNROLL - 1; u++) {
        if (at + u < steps) {
            value_step(kind, u % 2 == 1, M, N, run->weights + at + u,
                       value + place(kind, u, run->step_bytes), run->after, sums);
        }
    }
}

FG_NEON_INLINE float32x4_t first_sum(uint32_t kind, const value_product *p, int m, uint32_t column)
{
    float32x4_t sum = vld1q_f32(p->outs[m] + column);
    if (kind == FG_I8) {
        int32x4_t words = vaddq_s32(vreinterpretq_s32_f32(sum), vdupq_n_s32(p->firsts[m]));
        return vreinterpretq_f32_s32(words);
    }
    return sum;
}

/* Adds weights times values to N * 4 columns of M outputs. */
FG_NEON_INLINE void add_columns(uint32_t kind, int M, int N, const value_product *p,
                                uint32_t column)
{
    const fg_strip *s = p->strip;
    bool chains = in_chains(kind);
    uint32_t most = chains ? (uint32_t)FG_STRIP_CHAIN : s->pieces->run;
    size_t columns = column / LANES * (size_t)vector_bytes(kind);
    size_t step_bytes = p->strip->args->kv->head_dim / LANES * (size_t)vector_bytes(kind);
    float firsts[STRIP * VECTORS * LANES];
    tile_sums sums;
    clear(M, N, sums);
    park(M, N, sums, firsts);
    if (!chains) {
#pragma GCC unroll 32
        for (int i = 0; i < M * N; i++) {
            sums[i / N][i % N] = first_sum(kind, p, i / N, column + (uint32_t)(i % N) * LANES);
        }
    }
    uint32_t end;
    for (uint32_t slot = p->slots.begin; slot < p->slots.end; slot = end) {
        uint32_t piece = slot / PIECE;
        uint32_t first = piece * PIECE;
        end = (slot / most + 1) * most;
        end = end < p->slots.end ? end : p->slots.end;
        value_run run = { .weights = p->weights + first / together(kind),
                          .values = fg_strip_values(s, piece) + columns,
                          .after = fg_strip_after_values(s, piece) - fg_strip_values(s, piece),
                          .step_bytes = step_bytes };
        run_values(kind, M, N, &run, slot - first, end - first, sums);
        if (chains && piece % 2 == 0 && end < p->slots.end) {
            park(M, N, sums, firsts);
            clear(M, N, sums);
        } else if (chains || end == p->slots.end) {
#pragma GCC unroll 32
            for (int i = 0; i < M * N; i++) {
                put(chains, chains, sums[i / N][i % N], firsts + i * LANES,
                    p->outs[i / N] + column + i % N * LANES);
            }
            clear(M, N, sums);
            park(M, N, sums, firsts);
        }
    }
}

FG_NEON_INLINE void add_values(uint32_t kind, int M, const value_product *p)
{
    uint32_t head_dim = p->strip->args->kv->head_dim;
    uint32_t column = 0;
    uint32_t wide = (uint32_t)tile_vectors(M) * LANES;
    if (p->slots.begin >= p->slots.end) {
        return;
    }
    for (; column + wide <= head_dim; column += wide) {
        add_columns(kind, M, tile_vectors(M), p, column);
    }
    for (; column < head_dim; column += 8) {
        add_columns(kind, M, 2, p, column);
    }
}

/* One row, where the others do not see what it sees. */
FG_NEON_INLINE void row_values(uint32_t kind, const fg_strip *s, int m, fg_cpu_slots slots)
{
    value_product p = { .strip = s,
                        .weights = s->scores + m * SCORES,
                        .outs = { s->targets[m] + FG_ATTEND_HEAD },
                        .slots = slots };
    add_values(kind, 1, &p);
}

/* -128 times the sum of a row's bytes of weights, whole pieces. */
FG_NEON_INLINE int32_t negated_weights(const float *weights, fg_cpu_slots slots)
{
    const uint8_t *bytes = (const uint8_t *)weights;
    uint32x4_t sums = vdupq_n_u32(0);
    for (uint32_t slot = slots.begin; slot < slots.end; slot += PIECE) {
        sums = vdotq_u32(sums, vld1q_u8(bytes + slot), vdupq_n_u8(1));
    }
    return -128 * (int32_t)vaddvq_u32(sums);
}

typedef void row_product(const fg_strip *s, int m, fg_cpu_slots slots);

/* Values of slots begin .. end - 1: what all rows see in one product, the rest row by row. */
FG_NEON_INLINE void strip_values(uint32_t kind, int M, const fg_strip *s, uint32_t begin,
                                 uint32_t end, row_product *row)
{
    value_product p = { .strip = s, .weights = s->scores };
    p.slots =
        kind == FG_I8 ? fg_strip_seen_slots(s, begin, end) : fg_strip_clip(s->all, begin, end);
    for (int m = 0; m < M; m++) {
        p.outs[m] = s->targets[m] + FG_ATTEND_HEAD;
        if (kind == FG_I8) { /* what a row does not see weighs nothing */
            p.firsts[m] = negated_weights(s->scores + m * SCORES, p.slots);
        } else {
            row(s, m, fg_strip_before(s, (uint32_t)m, begin, end));
        }
    }
    add_values(kind, M, &p);
    for (int m = 0; m < M && kind != FG_I8; m++) {
        row(s, m, fg_strip_after(s, (uint32_t)m, begin, end));
    }
}

/* ---- weights ---- */

/* The fold of ops.h. */
FG_NEON_INLINE float fold(float32x4_t low, float32x4_t high)
{
    float32x4_t sums = vaddq_f32(low, high);
    float32x2_t halves = vadd_f32(vget_low_f32(sums), vget_high_f32(sums));
    return vget_lane_f32(halves, 0) + vget_lane_f32(halves, 1);
}

/* 2^shifted times p, where `shifted` has its integer in the low bits; 0 where x is below the least. */
FG_NEON_INLINE float32x4_t raised(float32x4_t p, float32x4_t shifted, float32x4_t x, float least)
{
    uint32x4_t power = vshlq_n_u32(vreinterpretq_u32_f32(shifted), 23);
    power = vaddq_u32(power, vreinterpretq_u32_f32(p));
    return vreinterpretq_f32_u32(vbicq_u32(power, vcltq_f32(x, vdupq_n_f32(least))));
}

/* x without the integer next to it, which `shifted` has in its low bits. */
FG_NEON_INLINE float32x4_t fraction_of(float32x4_t x, float32x4_t *shifted)
{
    const float32x4_t magic = vdupq_n_f32(0x1.8p23f);
    *shifted = vaddq_f32(x, magic);
    return vsubq_f32(x, vsubq_f32(*shifted, magic));
}

/* fg_cpu_exp2 of four. What is below the least comes out as nonsense, and is masked. */
FG_NEON_INLINE float32x4_t exp2_of(float32x4_t x)
{
    float32x4_t shifted;
    float32x4_t f = fraction_of(x, &shifted);
    float32x4_t p = vdupq_n_f32(FG_CPU_EXP2_5);
    p = vfmaq_f32(vdupq_n_f32(FG_CPU_EXP2_4), p, f);
    p = vfmaq_f32(vdupq_n_f32(FG_CPU_EXP2_3), p, f);
    p = vfmaq_f32(vdupq_n_f32(FG_CPU_EXP2_2), p, f);
    p = vfmaq_f32(vdupq_n_f32(FG_CPU_EXP2_1), p, f);
    p = vfmaq_f32(vdupq_n_f32(1.0f), p, f);
    return raised(p, shifted, x, FG_CPU_EXP2_LEAST);
}

/* fg_cpu_brain_power of four. */
FG_NEON_INLINE float32x4_t brain_power_of(float32x4_t x)
{
    float32x4_t shifted;
    float32x4_t f = fraction_of(x, &shifted);
    float32x4_t p = vdupq_n_f32(FG_CPU_BRAIN_3);
    p = vfmaq_f32(vdupq_n_f32(FG_CPU_BRAIN_2), p, f);
    p = vfmaq_f32(vdupq_n_f32(FG_CPU_BRAIN_1), p, f);
    p = vfmaq_f32(vdupq_n_f32(1.0f), p, f);
    return raised(p, shifted, x, FG_CPU_BRAIN_LEAST);
}

/* fg_cpu_brain_exp2 of four, as floats. */
FG_NEON_INLINE float32x4_t brain_exp2_of(float32x4_t x)
{
    const float32x4_t steps = vdupq_n_f32(FG_CPU_BRAIN_STEPS);
    float32x4_t step = vsubq_f32(vaddq_f32(x, steps), steps);
    uint32x4_t bits = vreinterpretq_u32_f32(brain_power_of(step));
    uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    bits = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7FFF)));
    return vreinterpretq_f32_u32(vandq_u32(bits, vdupq_n_u32(0xFFFF0000)));
}

FG_NEON_INLINE float maximum_of(const float *x, uint32_t begin, uint32_t end)
{
    float32x4_t high = vdupq_n_f32(-__builtin_inff());
    for (uint32_t j = begin; j < end; j += PIECE) {
        float32x4_t low = vmaxnmq_f32(vld1q_f32(x + j), vld1q_f32(x + j + 4));
        high = vmaxnmq_f32(high, low);
        low = vmaxnmq_f32(vld1q_f32(x + j + 8), vld1q_f32(x + j + 12));
        high = vmaxnmq_f32(high, low);
    }
    return vmaxnmvq_f32(high);
}

static void weigh_floats(float *x, uint32_t begin, uint32_t end, float *record)
{
    record[0] = maximum_of(x, begin, end);
    float32x4_t maximum = vdupq_n_f32(record[0]);
    float32x4_t sums[2] = { vdupq_n_f32(0.0f), vdupq_n_f32(0.0f) };
    for (uint32_t j = begin; j < end; j += 8) {
        for (uint32_t i = 0; i < 2; i++) {
            float32x4_t weight = exp2_of(vsubq_f32(vld1q_f32(x + j + i * LANES), maximum));
            sums[i] = vaddq_f32(sums[i], weight);
            vst1q_f32(x + j + i * LANES, weight);
        }
    }
    record[FG_ATTEND_SUM] = fold(sums[0], sums[1]);
}

/* The sum's lanes are pairs of slots: to each first its first slot is added, then its second one. */
static void weigh_brain(float *x, uint32_t begin, uint32_t end, float *record)
{
    record[0] = maximum_of(x, begin, end);
    float32x4_t maximum = vdupq_n_f32(record[0]);
    float32x4_t sums[2][2] = { { vdupq_n_f32(0.0f), vdupq_n_f32(0.0f) },
                               { vdupq_n_f32(0.0f), vdupq_n_f32(0.0f) } };
    for (uint32_t j = begin; j < end; j += PIECE) {
        float32x4_t *of_piece = sums[j / PIECE % 2];
        for (uint32_t i = 0; i < 2; i++) {
            float *eight = x + j + i * 8;
            float32x4_t low = brain_exp2_of(vsubq_f32(vld1q_f32(eight), maximum));
            float32x4_t high = brain_exp2_of(vsubq_f32(vld1q_f32(eight + 4), maximum));
            of_piece[i] = vaddq_f32(of_piece[i], vuzp1q_f32(low, high));
            of_piece[i] = vaddq_f32(of_piece[i], vuzp2q_f32(low, high));
            vst1q_f32(eight, low);
            vst1q_f32(eight + 4, high);
        }
    }
    record[FG_ATTEND_SUM] =
        fold(vaddq_f32(sums[0][0], sums[1][0]), vaddq_f32(sums[0][1], sums[1][1]));
}

/* Weights times V's scales in place; where a slot is not seen its scale may be NaN, which does not count, as in
 * plain C: fmaxnm gives the other one. Returns the largest. */
static float weigh_scaled(float *x, const float *const *scales, uint32_t begin, uint32_t end,
                          float *record)
{
    float32x4_t maximum = vdupq_n_f32(record[0]);
    float32x4_t peaks = vdupq_n_f32(0.0f);
    float32x4_t sums[PIECE_VECTORS];
    for (uint32_t i = 0; i < PIECE_VECTORS; i++) {
        sums[i] = vdupq_n_f32(0.0f);
    }
    for (uint32_t j = begin; j < end; j += PIECE) {
#pragma GCC unroll 4
        for (uint32_t i = 0; i < PIECE_VECTORS; i++) {
            float *four = x + j + i * LANES;
            float32x4_t weight = brain_power_of(vsubq_f32(vld1q_f32(four), maximum));
            float32x4_t scaled = vmulq_f32(weight, vld1q_f32(scales[j / PIECE] + i * LANES));
            sums[i] = vaddq_f32(sums[i], weight);
            peaks = vmaxnmq_f32(peaks, scaled);
            vst1q_f32(four, scaled);
        }
    }
    record[FG_ATTEND_SUM] = fold(vaddq_f32(sums[0], sums[2]), vaddq_f32(sums[1], sums[3]));
    return vmaxnmvq_f32(peaks);
}

/* int8: weights become bytes, four to a word; NaN becomes 0. */
static void weigh_bytes(float *x, const float *const *scales, uint32_t begin, uint32_t end,
                        float *record)
{
    record[0] = maximum_of(x, begin, end);
    fg_cpu_byte_weights with = fg_cpu_byte_weights_of(weigh_scaled(x, scales, begin, end, record));
    record[FG_ATTEND_FACTOR] = with.factor;
    float32x4_t inverse = vdupq_n_f32(with.inverse);
    for (uint32_t j = begin; j < end; j += PIECE) {
        uint16x4_t words[PIECE_VECTORS];
#pragma GCC unroll 4
        for (uint32_t i = 0; i < PIECE_VECTORS; i++) {
            float32x4_t rounder = vld1q_f32(fg_cpu_rounders + i * LANES);
            float32x4_t weight = vld1q_f32(x + j + i * LANES);
            words[i] = vmovn_u32(vcvtq_u32_f32(vfmaq_f32(rounder, weight, inverse)));
        }
        uint8x8_t low = vmovn_u16(vcombine_u16(words[0], words[1]));
        uint8x8_t high = vmovn_u16(vcombine_u16(words[2], words[3]));
        vst1q_u8((uint8_t *)x + j, vcombine_u8(low, high));
    }
}

static void weigh(uint32_t dtype, const fg_strip_rows *rows, uint32_t begin, uint32_t end)
{
    for (uint32_t i = 0; i < rows->count; i++) {
        if (dtype == FG_I8) {
            weigh_bytes(rows->scores[i], rows->value_scales, begin, end, rows->records[i]);
        } else if (dtype == FG_BF16) {
            weigh_brain(rows->scores[i], begin, end, rows->records[i]);
        } else {
            weigh_floats(rows->scores[i], begin, end, rows->records[i]);
        }
    }
}

/* ---- the rest of a strip's way ---- */

static float32x4_t sums_as_floats(const float *x)
{
    return vcvtq_f32_s32(vreinterpretq_s32_f32(vld1q_f32(x)));
}

static void settle_scores(float *x, const float *const *scales, float factor, uint32_t begin,
                          uint32_t end)
{
    for (uint32_t j = begin; j < end; j += LANES) {
        float32x4_t scaled =
            vmulq_f32(sums_as_floats(x + j), vld1q_f32(scales[j / PIECE] + j % PIECE));
        vst1q_f32(x + j, vmulq_f32(scaled, vdupq_n_f32(factor)));
    }
}

static void settle_values(float *x, float factor, uint32_t count)
{
    for (uint32_t d = 0; d < count; d += LANES) {
        vst1q_f32(x + d, vmulq_f32(sums_as_floats(x + d), vdupq_n_f32(factor)));
    }
}

static void merge(const fg_strip_merge *m, uint32_t head_dim)
{
    for (uint32_t i = 0; i < m->count; i++) {
        float *state = m->states[i];
        const float *record = m->records[i];
        float32x4_t before = vdupq_n_f32(m->before[i]);
        float32x4_t now = vdupq_n_f32(m->now[i]);
        /* The sum with the vector that it lies in, whose other elements mean nothing. */
        for (uint32_t d = 0; d < FG_ATTEND_HEAD + head_dim; d += LANES) {
            float32x4_t old = vmulq_f32(vld1q_f32(state + d), before);
            vst1q_f32(state + d, vfmaq_f32(old, vld1q_f32(record + d), now));
        }
        state[0] = m->maxima[i];
    }
}

static void multiply(const float *x, float factor, uint32_t count, float *out)
{
    for (uint32_t d = 0; d < count; d += LANES) {
        vst1q_f32(out + d, vmulq_f32(vld1q_f32(x + d), vdupq_n_f32(factor)));
    }
}

/* int8: four to a word. NaN does not count and becomes 0. */
static void pack_bytes(const float *q, float factor, uint32_t head_dim, float *packed)
{
    float32x4_t peaks = vdupq_n_f32(0.0f);
    for (uint32_t d = 0; d < head_dim; d += LANES) {
        float32x4_t magnitude = vabsq_f32(vld1q_f32(q + d));
        peaks = vbslq_f32(vcgtq_f32(magnitude, peaks), magnitude, peaks);
    }
    fg_cpu_byte_scale scale = fg_cpu_byte_scale_of(vmaxvq_f32(peaks));
    for (uint32_t d = 0; d < head_dim; d += 8) {
        int32x4_t low = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(q + d), scale.inverse));
        int32x4_t high = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(q + d + 4), scale.inverse));
        int16x8_t words = vcombine_s16(vmovn_s32(low), vmovn_s32(high));
        vst1_s8((int8_t *)packed + d, vmovn_s16(words));
    }
    packed[FG_STRIP_Q_FACTOR] = scale.scale * factor;
}

static void pack_q(uint32_t dtype, const float *q, float factor, uint32_t head_dim, float *packed)
{
    if (dtype == FG_I8) {
        pack_bytes(q, factor, head_dim, packed);
        return;
    }
    for (uint32_t d = 0; d < head_dim; d += LANES) {
        float32x4_t scaled = vmulq_n_f32(vld1q_f32(q + d), factor);
        if (dtype == FG_BF16) {
            scaled = vreinterpretq_f32_u32(fg_neon_brain(vreinterpretq_u32_f32(scaled)));
        }
        vst1q_f32(packed + d, scaled);
    }
}

static void copy(uint32_t dtype, uint8_t *to, const uint8_t *from, size_t count)
{
    if (dtype != FG_F16) {
        memcpy(to, from, count * fg_dtype_kv_bytes(dtype));
        return;
    }
    for (size_t i = 0; i < count; i += LANES) {
        vst1q_f32((float *)(void *)to + i, load_kv(FG_F16, false, from + i * 2));
    }
}

#define ROW(kind)                                                                                  \
    static __attribute__((noinline)) void row_##kind(const fg_strip *s, int m, fg_cpu_slots slots) \
    {                                                                                              \
        row_values(kind, s, m, slots);                                                             \
    }

ROW(FG_F32)
ROW(FG_F16)
ROW(FG_BF16)
ROW(FG_I8)

#define values_with_row(kind, M, s, begin, end) strip_values(kind, M, s, begin, end, row_##kind)
FG_STRIP_SIX(FG_F32, strip_scores, values_with_row)
FG_STRIP_SIX(FG_F16, strip_scores, values_with_row)
FG_STRIP_SIX(FG_BF16, strip_scores, values_with_row)
FG_STRIP_SIX(FG_I8, strip_scores, values_with_row)

static const fg_strip_products *products_of(uint32_t dtype)
{
    return fg_strip_choose(dtype, products_FG_F32, products_FG_F16, products_FG_BF16,
                           products_FG_I8);
}

void fg_cpu_neon_attend(const fg_cpu_attend *args)
{
    static const fg_strip_kernels kernels = {
        .strip_max = STRIP,
        .dim_step = 8,
        .ahead = 8,
        .products = products_of,
        .pack_q = pack_q,
        .weigh = weigh,
        .settle_scores = settle_scores,
        .settle_values = settle_values,
        .find_factors = fg_strip_find_factors,
        .merge = merge,
        .multiply = multiply,
        .copy = copy,
    };
    fg_strip_attend(&kernels, args);
}
