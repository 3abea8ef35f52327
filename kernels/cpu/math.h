/*
 * math - small functions that every CPU kernel needs, the same on every machine: only IEEE operations
 * in a written order (see common/base/fmath.h). A loop here may become vector code of any width.
 */
#ifndef FORGE_KERNELS_CPU_MATH_H
#define FORGE_KERNELS_CPU_MATH_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/dtype.h"
#include "common/base/fmath.h"
#include "kernels/cpu/unpack.h"
#include "kernels/ops.h"

/* A group whose largest magnitude is below this quantises to zeros: 127 / peak must stay finite. */
#define FG_CPU_QUANT_TINY 1e-30f

/* What the groups of a super-group become bytes with. */
typedef struct fg_cpu_super_scale {
    float scale;
    float inverse; /* with shift 0 */
} fg_cpu_super_scale;

static inline fg_cpu_super_scale fg_cpu_super_scale_of(float peak)
{
    const float most = 127 << FG_QUANT_SHIFT_MAX;
    bool zero = !(peak >= FG_CPU_QUANT_TINY);
    return (fg_cpu_super_scale){ .scale = zero ? 0.0f : peak / most,
                                 .inverse = zero ? 0.0f : most / peak };
}

/* Of a group with this peak. */
static inline int32_t fg_cpu_super_shift(float peak, float inverse)
{
    float most = peak * inverse;
    return (most > 127.0f) + (most > 254.0f) + (most > 508.0f);
}

static inline float fg_cpu_power(int32_t exponent)
{
    return fg_f32_from_bits((uint32_t)(127 + exponent) << 23);
}

/* What is known of group g with these sums of quants. */
static inline void fg_cpu_put_super_group(fg_quant_super *super, int g, int32_t shift,
                                          int32_t first, int32_t second)
{
    super->shifts[g] = shift;
    super->halves[g][0] = (int16_t)(first * (1 << shift));
    super->halves[g][1] = (int16_t)(second * (1 << shift));
    super->sums[g] = (int16_t)((first + second) * (1 << shift));
}

/* Half to even, for |x| < 2^22: adding 1.5 * 2^23 leaves the integer in the low bits. */
static inline int32_t fg_cpu_round(float x)
{
    return (int32_t)(fg_f32_bits(x + 12582912.0f) - fg_f32_bits(12582912.0f));
}

/* What one head's numbers become int8 with; nothing where all are next to nothing. NaN counts as 0. */
typedef struct fg_cpu_byte_scale {
    float scale;
    float inverse;
} fg_cpu_byte_scale;

static inline fg_cpu_byte_scale fg_cpu_byte_scale_of(float peak)
{
    bool nothing = peak < FG_CPU_QUANT_TINY;
    return (fg_cpu_byte_scale){ .scale = nothing ? 0.0f : peak / 127.0f,
                                .inverse = nothing ? 0.0f : 127.0f / peak };
}

/* One head's numbers as int8; returns their scale. */
static inline float fg_cpu_quantize_head(const float *values, uint32_t count, int8_t *quants)
{
    float peak = 0.0f;
    for (uint32_t d = 0; d < count; d++) {
        float magnitude = values[d] < 0.0f ? -values[d] : values[d];
        peak = magnitude > peak ? magnitude : peak;
    }
    fg_cpu_byte_scale scale = fg_cpu_byte_scale_of(peak);
    for (uint32_t d = 0; d < count; d++) {
        float x = values[d] * scale.inverse;
        quants[d] = x == x ? (int8_t)fg_cpu_round(x) : (int8_t)0;
    }
    return scale.scale;
}

/* bf16 as it is multiplied: half to even, and what is then below 2^-50 is 0. So of two such factors no product
 * and no sum of products is a denormal, which bf16 instructions take for 0. */
static inline uint16_t fg_cpu_brain(float x)
{
    return fg_cpu_bf16_normal(fg_bf16_from_f32(x));
}

/* A pair of bf16 (FG_FORM_PAIRS) of the `left` columns at `values`. */
static inline uint32_t fg_cpu_pair(const float *values, uint32_t left)
{
    uint16_t first = fg_cpu_brain(values[0]);
    uint16_t second = left > 1 ? fg_cpu_brain(values[1]) : 0;
    return (uint32_t)first << 16 | second;
}

static inline float fg_cpu_pair_first(uint32_t pair)
{
    return fg_f32_from_bits(pair & 0xFFFF0000u);
}

static inline float fg_cpu_pair_second(uint32_t pair)
{
    return fg_f32_from_bits(pair << 16);
}

/* The fold of ops.h. */
static inline float fg_cpu_fold(const float lanes[8])
{
    float even = (lanes[0] + lanes[4]) + (lanes[2] + lanes[6]);
    float odd = (lanes[1] + lanes[5]) + (lanes[3] + lanes[7]);
    return even + odd;
}

static inline void fg_cpu_swiglu(const float *gate, const float *up, size_t count, float *out)
{
    for (size_t i = 0; i < count; i++) {
        out[i] = gate[i] / (1.0f + fg_expf(-gate[i])) * up[i];
    }
}

/* FG_GATE_GELU: t = g * (GELU_1 + GELU_3 * g^2). */
#define FG_CPU_GELU_1 0x1.988454p+0f
#define FG_CPU_GELU_3 0x1.2444f2p-4f

static inline void fg_cpu_geglu(const float *gate, const float *up, size_t count, float *out)
{
    for (size_t i = 0; i < count; i++) {
        float t = gate[i] * (FG_CPU_GELU_1 + FG_CPU_GELU_3 * (gate[i] * gate[i]));
        out[i] = gate[i] / (1.0f + fg_expf(-t)) * up[i];
    }
}

/* 2^x for x <= 0 within 2 ulp, 0 below -126; 2^0 is exactly 1. Coefficients fitted for the smallest
 * largest relative error on [-0.5, 0.5]: 9.4e-8. */
#define FG_CPU_EXP2_LEAST -126.0f
#define FG_CPU_EXP2_1     0x1.62e42ap-1f
#define FG_CPU_EXP2_2     0x1.ebf9c2p-3f
#define FG_CPU_EXP2_3     0x1.c6b6dap-5f
#define FG_CPU_EXP2_4     0x1.3ce8b2p-7f
#define FG_CPU_EXP2_5     0x1.5bd97cp-10f

static inline float fg_cpu_exp2(float x)
{
    float t = x < FG_CPU_EXP2_LEAST ? FG_CPU_EXP2_LEAST : x;
    /* The nearest integer: adding 1.5 * 2^23 leaves it in the low bits of the sum. */
    float shifted = t + 0x1.8p23f;
    float f = t - (shifted - 0x1.8p23f);
    float p = fmaf(FG_CPU_EXP2_5, f, FG_CPU_EXP2_4);
    p = fmaf(p, f, FG_CPU_EXP2_3);
    p = fmaf(p, f, FG_CPU_EXP2_2);
    p = fmaf(p, f, FG_CPU_EXP2_1);
    p = fmaf(p, f, 1.0f);
    float power = fg_f32_from_bits(fg_f32_bits(p) + (fg_f32_bits(shifted) << 23));
    return x < FG_CPU_EXP2_LEAST ? 0.0f : power;
}

/* What two records are multiplied by to become one: 2^(its maximum - the larger one), which is 1 for one of
 * them. Returns the larger one. */
static inline float fg_cpu_merge_factors(float before, float now, float *before_out, float *now_out)
{
    bool rises = now > before;
    float lesser = fg_cpu_exp2(rises ? before - now : now - before);
    *before_out = rises ? lesser : 1.0f;
    *now_out = rises ? 1.0f : lesser;
    return rises ? now : before;
}

/* 2^x for x <= 0, 0 below -50; 2^0 is exactly 1. The largest relative error is 1.02e-4. */
#define FG_CPU_BRAIN_LEAST -50.0f
#define FG_CPU_BRAIN_1     0x1.62f5fcp-1f
#define FG_CPU_BRAIN_2     0x1.f00c8p-3f
#define FG_CPU_BRAIN_3     0x1.c2a268p-5f

static inline float fg_cpu_brain_power(float x)
{
    if (x < FG_CPU_BRAIN_LEAST) {
        return 0.0f;
    }
    float shifted = x + 0x1.8p23f;
    float f = x - (shifted - 0x1.8p23f);
    float p = fmaf(FG_CPU_BRAIN_3, f, FG_CPU_BRAIN_2);
    p = fmaf(p, f, FG_CPU_BRAIN_1);
    p = fmaf(p, f, 1.0f);
    return fg_f32_from_bits(fg_f32_bits(p) + (fg_f32_bits(shifted) << 23));
}

/* Added and taken away again, it leaves the nearest multiple of 1/128, half to even. */
#define FG_CPU_BRAIN_STEPS 0x1.8p16f

/* As bf16, of the nearest multiple of 1/128. So there are 128 mantissas, which some kernels look up (avx512_brain.h). */
static inline uint16_t fg_cpu_brain_exp2(float x)
{
    float step = (x + FG_CPU_BRAIN_STEPS) - FG_CPU_BRAIN_STEPS;
    return fg_bf16_from_f32(fg_cpu_brain_power(step));
}

/* What bytes of weights are made with (ops.h). */
typedef struct fg_cpu_byte_weights {
    float inverse; /* 255 / the largest weight */
    float factor;  /* of a byte */
} fg_cpu_byte_weights;

static inline fg_cpu_byte_weights fg_cpu_byte_weights_of(float peak)
{
    return (fg_cpu_byte_weights){ .inverse = peak < FG_CPU_QUANT_TINY ? 0.0f : 255.0f / peak,
                                  .factor = peak * (1.0f / 255.0f) };
}

/* rounder(s) of ops.h, by s % 16. */
#define FG_CPU_ROUNDER(s) ((float)(2 * (9 * (s) % 16) + 1) / 32.0f)
static const float fg_cpu_rounders[16] = {
    FG_CPU_ROUNDER(0),  FG_CPU_ROUNDER(1),  FG_CPU_ROUNDER(2),  FG_CPU_ROUNDER(3),
    FG_CPU_ROUNDER(4),  FG_CPU_ROUNDER(5),  FG_CPU_ROUNDER(6),  FG_CPU_ROUNDER(7),
    FG_CPU_ROUNDER(8),  FG_CPU_ROUNDER(9),  FG_CPU_ROUNDER(10), FG_CPU_ROUNDER(11),
    FG_CPU_ROUNDER(12), FG_CPU_ROUNDER(13), FG_CPU_ROUNDER(14), FG_CPU_ROUNDER(15),
};

static inline uint8_t fg_cpu_byte_weight(fg_cpu_byte_weights with, float weight, uint32_t slot)
{
    float rounded = fmaf(weight, with.inverse, fg_cpu_rounders[slot % 16]);
    return rounded == rounded ? (uint8_t)rounded : 0;
}

#endif
