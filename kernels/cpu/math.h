/*
 * math - small functions that every CPU kernel needs, the same on every machine: only IEEE operations
 * in a written order (see common/base/fmath.h). A loop here may become vector code of any width.
 */
#ifndef FORGE_KERNELS_CPU_MATH_H
#define FORGE_KERNELS_CPU_MATH_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/dtype.h"
#include "common/base/fmath.h"

/* A group whose largest magnitude is below this quantises to zeros: 127 / peak must stay finite. */
#define FG_CPU_QUANT_TINY 1e-30f

/* Half to even, for |x| < 2^22: adding 1.5 * 2^23 leaves the integer in the low bits. */
static inline int32_t fg_cpu_round(float x)
{
    return (int32_t)(fg_f32_bits(x + 12582912.0f) - fg_f32_bits(12582912.0f));
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

#endif
