#include "kernels/cpu/neon.h"
#include "kernels/cpu/attend.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/plain.h"

enum { VECTORS = FG_QUANT_GROUP / 4 };

static void neon_quantize_row(const float *values, uint32_t columns, int8_t *quants,
                              fg_quant_group *groups)
{
    for (uint32_t g = 0; g < columns / FG_QUANT_GROUP; g++) {
        const float *x = values + (size_t)g * FG_QUANT_GROUP;
        float32x4_t v[VECTORS];
        uint32x4_t peaks = vdupq_n_u32(0);
        for (int i = 0; i < VECTORS; i++) {
            v[i] = vld1q_f32(x + 4 * i);
            peaks = vmaxq_u32(peaks, vreinterpretq_u32_f32(vabsq_f32(v[i])));
        }
        uint32_t peak_bits = vmaxvq_u32(peaks);
        if (fg_cpu_is_odd(peak_bits)) {
            groups[g] = fg_cpu_no_group(quants + (size_t)g * FG_QUANT_GROUP);
            continue;
        }
        float peak = fg_f32_from_bits(peak_bits);
        bool zero = !(peak >= FG_CPU_QUANT_TINY);
        float scale = zero ? 0.0f : peak / 127.0f;
        float32x4_t inverse = vdupq_n_f32(zero ? 0.0f : 127.0f / peak);
        int32_t sums[2] = { 0, 0 };
        for (int i = 0; i < VECTORS; i += 2) {
            int32x4_t low = vcvtnq_s32_f32(vmulq_f32(v[i], inverse));
            int32x4_t high = vcvtnq_s32_f32(vmulq_f32(v[i + 1], inverse));
            int16x8_t words = vcombine_s16(vmovn_s32(low), vmovn_s32(high));
            vst1_s8(quants + (size_t)g * FG_QUANT_GROUP + 4 * (size_t)i, vmovn_s16(words));
            sums[i / (VECTORS / 2)] += vaddvq_s32(vaddq_s32(low, high));
        }
        groups[g] = fg_cpu_quant_group(scale, sums[0], sums[1]);
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
    .quantize_supers = fg_cpu_plain_quantize_supers,
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
