#include "kernels/cpu/neon.h"
#include "kernels/cpu/attend.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/plain.h"

enum { VECTORS = FG_QUANT_GROUP / 4 };

FG_NEON_INLINE void load_group(const float *x, float32x4_t v[VECTORS])
{
#pragma GCC unroll 8
    for (int i = 0; i < VECTORS; i++) {
        v[i] = vld1q_f32(x + 4 * i);
    }
}

/* The largest magnitude of a group, as bits (fg_cpu_is_odd). */
FG_NEON_INLINE uint32_t peak_bits_of(const float32x4_t v[VECTORS])
{
    uint32x4_t peaks = vdupq_n_u32(0);
#pragma GCC unroll 8
    for (int i = 0; i < VECTORS; i++) {
        peaks = vmaxq_u32(peaks, vreinterpretq_u32_f32(vabsq_f32(v[i])));
    }
    return vmaxvq_u32(peaks);
}

/* A group as bytes; their sums in columns 0..15 and 16..31. */
FG_NEON_INLINE void quantize_group(const float32x4_t v[VECTORS], float inverse, int8_t *quants,
                                   int32_t sums[2])
{
    int32x4_t halves[2] = { vdupq_n_s32(0), vdupq_n_s32(0) };
#pragma GCC unroll 4
    for (int i = 0; i < VECTORS; i += 2) {
        int32x4_t low = vcvtnq_s32_f32(vmulq_n_f32(v[i], inverse));
        int32x4_t high = vcvtnq_s32_f32(vmulq_n_f32(v[i + 1], inverse));
        int16x8_t words = vcombine_s16(vmovn_s32(low), vmovn_s32(high));
        int32x4_t *half = &halves[i / (VECTORS / 2)];
        vst1_s8(quants + 4 * (size_t)i, vmovn_s16(words));
        *half = vaddq_s32(*half, vaddq_s32(low, high));
    }
    sums[0] = vaddvq_s32(halves[0]);
    sums[1] = vaddvq_s32(halves[1]);
}

static void neon_quantize_row(const float *values, uint32_t columns, int8_t *quants,
                              fg_quant_group *groups)
{
    for (size_t g = 0; g < columns / FG_QUANT_GROUP; g++) {
        int8_t *q = quants + g * FG_QUANT_GROUP;
        float32x4_t v[VECTORS];
        load_group(values + g * FG_QUANT_GROUP, v);
        uint32_t peak_bits = peak_bits_of(v);
        if (fg_cpu_is_odd(peak_bits)) {
            groups[g] = fg_cpu_no_group(q);
            continue;
        }
        float peak = fg_f32_from_bits(peak_bits);
        bool zero = !(peak >= FG_CPU_QUANT_TINY);
        int32_t sums[2];
        quantize_group(v, zero ? 0.0f : 127.0f / peak, q, sums);
        groups[g] = fg_cpu_quant_group(zero ? 0.0f : peak / 127.0f, sums[0], sums[1]);
    }
}

/* fg_cpu_super_shift of four groups. */
FG_NEON_INLINE int32x4_t shifts_of(uint32x4_t peak_bits, float inverse)
{
    float32x4_t most = vmulq_n_f32(vreinterpretq_f32_u32(peak_bits), inverse);
    uint32x4_t shifts = vdupq_n_u32(0);
#pragma GCC unroll 3
    for (int i = 0; i < FG_QUANT_SHIFT_MAX; i++) {
        shifts = vsubq_u32(shifts, vcgtq_f32(most, vdupq_n_f32((float)(127 << i))));
    }
    return vreinterpretq_s32_u32(shifts);
}

/* Four groups of a super-group, the first of which is group `first`. */
static void quantize_four(const float *x, const uint32_t peak_bits[4], float inverse, int first,
                          int8_t *quants, fg_quant_super *super)
{
    int32x4_t shifts = shifts_of(vld1q_u32(peak_bits), inverse);
    int32x4_t powers = vshlq_n_s32(vsubq_s32(vdupq_n_s32(127), shifts), 23);
    float inverses[4];
    int32_t sums[4 * 2];
    vst1q_f32(inverses, vmulq_n_f32(vreinterpretq_f32_s32(powers), inverse));
    for (size_t i = 0; i < 4; i++) {
        float32x4_t v[VECTORS];
        load_group(x + i * FG_QUANT_GROUP, v);
        quantize_group(v, inverses[i], quants + i * FG_QUANT_GROUP, sums + 2 * i);
    }
    int32x4x2_t both = vld2q_s32(sums);
    int16x4x2_t halves = { { vmovn_s32(vshlq_s32(both.val[0], shifts)),
                             vmovn_s32(vshlq_s32(both.val[1], shifts)) } };
    vst2_s16(super->halves[first], halves);
    vst1_s16(super->sums + first, vadd_s16(halves.val[0], halves.val[1]));
    vst1q_s32(super->shifts + first, shifts);
}

static void quantize_super(const float *x, int8_t *quants, fg_quant_super *super)
{
    enum { FOUR = 4 * FG_QUANT_GROUP };
    uint32_t peak_bits[FG_QUANT_SUPER_GROUPS];
    for (size_t g = 0; g < FG_QUANT_SUPER_GROUPS; g++) {
        float32x4_t v[VECTORS];
        load_group(x + g * FG_QUANT_GROUP, v);
        peak_bits[g] = peak_bits_of(v);
    }
    uint32_t most = vmaxvq_u32(vmaxq_u32(vld1q_u32(peak_bits), vld1q_u32(peak_bits + 4)));
    if (fg_cpu_is_odd(most)) {
        *super = fg_cpu_no_super(quants);
        return;
    }
    fg_cpu_super_scale with = fg_cpu_super_scale_of(fg_f32_from_bits(most));
    super->scale = with.scale;
    quantize_four(x, peak_bits, with.inverse, 0, quants, super);
    quantize_four(x + FOUR, peak_bits + 4, with.inverse, 4, quants + FOUR, super);
}

static void neon_quantize_supers(const float *values, uint32_t columns, int8_t *quants,
                                 fg_quant_super *supers)
{
    for (size_t s = 0; s < columns / FG_QUANT_SUPER; s++) {
        quantize_super(values + s * FG_QUANT_SUPER, quants + s * FG_QUANT_SUPER, &supers[s]);
    }
}

static void neon_pair_row(const float *values, uint32_t columns, uint32_t *pairs)
{
    uint32_t k = 0;
    for (; k + 8 <= columns; k += 8) {
        uint32x4x2_t x = vuzpq_u32(vreinterpretq_u32_f32(vld1q_f32(values + k)),
                                   vreinterpretq_u32_f32(vld1q_f32(values + k + 4)));
        uint32x4_t second = fg_neon_brain(x.val[1]);
        vst1q_u32(pairs + k / 2, vsriq_n_u32(fg_neon_brain(x.val[0]), second, 16));
    }
    for (; k < columns; k += 2) {
        pairs[k / 2] = fg_cpu_pair(values + k, columns - k);
    }
}

static void neon_rmsnorm_row(const float *in, const float *weight, uint32_t columns, float epsilon,
                             float *out)
{
    if (columns % 8 != 0) {
        fg_cpu_plain_rmsnorm_row(in, weight, columns, epsilon, out);
        return;
    }
    float32x4_t low = vdupq_n_f32(0.0f);
    float32x4_t high = vdupq_n_f32(0.0f);
    for (uint32_t i = 0; i < columns; i += 8) {
        float32x4_t a = vld1q_f32(in + i);
        float32x4_t b = vld1q_f32(in + i + 4);
        low = vfmaq_f32(low, a, a);
        high = vfmaq_f32(high, b, b);
    }
    float lanes[8];
    vst1q_f32(lanes, low);
    vst1q_f32(lanes + 4, high);
    float mean = fg_cpu_fold(lanes) / (float)columns;
    float factor = 1.0f / __builtin_sqrtf(mean + epsilon);
    for (uint32_t i = 0; i < columns; i++) {
        out[i] = in[i] * factor * weight[i];
    }
}

static void neon_swiglu(const float *gate, const float *up, size_t count, float *out)
{
    fg_cpu_swiglu(gate, up, count, out);
}

static void neon_geglu(const float *gate, const float *up, size_t count, float *out)
{
    fg_cpu_geglu(gate, up, count, out);
}

static void neon_rotate(float *x, const float *turns, uint32_t pair_count)
{
    if (pair_count % 4 != 0) {
        fg_cpu_plain_rotate(x, turns, pair_count);
        return;
    }
    for (uint32_t i = 0; i < pair_count; i += 4) {
        float32x4x2_t turn = vld2q_f32(turns + (size_t)2 * i); /* cosines, sines */
        float32x4_t a = vld1q_f32(x + i);
        float32x4_t b = vld1q_f32(x + i + pair_count);
        vst1q_f32(x + i, vsubq_f32(vmulq_f32(a, turn.val[0]), vmulq_f32(b, turn.val[1])));
        vst1q_f32(x + i + pair_count,
                  vaddq_f32(vmulq_f32(a, turn.val[1]), vmulq_f32(b, turn.val[0])));
    }
}

static void neon_rotate_neighbours(float *x, const float *turns, uint32_t pair_count)
{
    uint32_t whole = pair_count / 4 * 4;
    for (uint32_t i = 0; i < whole; i += 4) {
        float32x4x2_t turn = vld2q_f32(turns + (size_t)2 * i);
        float32x4x2_t pairs = vld2q_f32(x + (size_t)2 * i);
        float32x4x2_t turned = { { vsubq_f32(vmulq_f32(pairs.val[0], turn.val[0]),
                                             vmulq_f32(pairs.val[1], turn.val[1])),
                                   vaddq_f32(vmulq_f32(pairs.val[0], turn.val[1]),
                                             vmulq_f32(pairs.val[1], turn.val[0])) } };
        vst2q_f32(x + (size_t)2 * i, turned);
    }
    fg_cpu_plain_rotate_neighbours(x + (size_t)2 * whole, turns + (size_t)2 * whole,
                                   pair_count - whole);
}

static void neon_to_halves(const float *values, uint32_t count, uint16_t *halves)
{
    uint32_t whole = count / 4 * 4;
    for (uint32_t i = 0; i < whole; i += 4) {
        vst1_u16(halves + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(values + i))));
    }
    fg_cpu_plain_to_halves(values + whole, count - whole, halves + whole);
}

const fg_cpu_kernels fg_cpu_neon = {
    .name = "neon",
    .quantize_row = neon_quantize_row,
    .quantize_supers = neon_quantize_supers,
    .pair_row = neon_pair_row,
    .product_pairs = neon_pair_row,
    .linear = fg_cpu_neon_linear,
    .rmsnorm_row = neon_rmsnorm_row,
    .swiglu = neon_swiglu,
    .geglu = neon_geglu,
    .attend = fg_cpu_neon_attend,
    .rotate = neon_rotate,
    .rotate_neighbours = neon_rotate_neighbours,
    .to_halves = neon_to_halves,
};
