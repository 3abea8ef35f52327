/*
 * math - small functions that every CPU kernel needs, the same on every machine: only IEEE operations
 * in a written order (see common/base/fmath.h). A loop here may become vector code of any width.
 */
#ifndef FORGE_KERNELS_CPU_MATH_H
#define FORGE_KERNELS_CPU_MATH_H

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

/* x[i] = e^(x[i] - maximum) for the slots of one piece of attention. */
static inline void fg_cpu_exp_piece(float *x, float maximum)
{
    for (int i = 0; i < 16; i++) {
        x[i] = fg_expf(x[i] - maximum);
    }
}

#endif
