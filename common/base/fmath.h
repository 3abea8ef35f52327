/*
 * fmath - exp, log, sin and cos with the same bits on every machine, for forward and sampler (the
 * numerics contract: libm's results depend on the processor). Pure.
 *
 * Only +, -, *, / and integer operations in a fixed order, no table and no branch, so that a compiler
 * may turn a loop over fg_expf or fg_logf into vector code without changing a bit. Callers compile
 * with -ffp-contract=off, as all of Forge does. NaN in gives NaN out, of no particular payload.
 */
#ifndef FORGE_COMMON_BASE_FMATH_H
#define FORGE_COMMON_BASE_FMATH_H

#include <stdint.h>
#include <string.h>

#include "common/base/anywhere.h"

FG_ANYWHERE uint32_t fg_fmath_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

FG_ANYWHERE float fg_fmath_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* a where `condition`, else b. A mask and not `?:`, which gcc may turn into jumps that keep a loop from
 * becoming vector code. */
FG_ANYWHERE float fg_fmath_select(int condition, float a, float b)
{
    uint32_t mask = 0u - (uint32_t)condition;
    return fg_fmath_float((fg_fmath_bits(a) & mask) | (fg_fmath_bits(b) & ~mask));
}

/* e^x within 1 ulp; overflows to +inf above 88.7229, and to 0 below -103.98 through subnormals. */
FG_ANYWHERE float fg_expf(float x)
{
    /* NaN fails both comparisons and passes through. */
    x = fg_fmath_select(x > 89.0f, 89.0f, x);
    x = fg_fmath_select(x < -104.0f, -104.0f, x);
    /* n = x / ln 2 to the nearest: adding 1.5 * 2^23 leaves n in the low bits of the sum. */
    float shifted = x * 0x1.715476p+0f + 0x1.8p23f;
    float n = shifted - 0x1.8p23f;
    /* r = x - n ln 2 in [-0.347, 0.347]; ln 2 = 355/512 + rest, and n * 355/512 is exact. */
    float r = (x - n * 0x1.63p-1f) - n * -0x1.bd0106p-13f;
    /* e^r = 1 + r + r^2 p(r), p fitted for the smallest largest error on that interval. */
    float p = 0x1.6b67aap-10f;
    p = p * r + 0x1.122f2ep-7f;
    p = p * r + 0x1.55568ep-5f;
    p = p * r + 0x1.5554a4p-3f;
    p = p * r + 0.5f;
    float e = (p * (r * r) + r) + 1.0f;
    /* Times 2^n in two exact halves, since 2^n alone may lie outside the normal floats; only the
     * second product may round (to a subnormal). */
    int32_t exponent = (int32_t)(fg_fmath_bits(shifted) - 0x4B400000u);
    int32_t half = exponent >> 1;
    float scale_a = fg_fmath_float((uint32_t)(half + 127) << 23);
    float scale_b = fg_fmath_float((uint32_t)(exponent - half + 127) << 23);
    return e * scale_a * scale_b;
}

/* ln(1 + f) + exponent ln 2, for f in [-0.2929, 0.4143]; within 1 ulp of f's own precision, so
 * a small f keeps all its digits. */
FG_ANYWHERE float fg_log1pf_core(float f, float exponent)
{
    /* ln(1 + f) = 2 artanh(s), s = f / (2 + f): a short series, arranged around f - f^2/2 so that the
     * large terms are exact. */
    float s = f / (2.0f + f);
    float z = s * s;
    float series =
        z * (0x1.555556p-1f + z * (0x1.99999ap-2f + z * (0x1.24924ap-2f + z * 0x1.d0d6acp-3f)));
    float half_square = 0.5f * f * f;
    float low = s * (half_square + series) + exponent * -0x1.bd0106p-13f;
    return exponent * 0x1.63p-1f + (f - (half_square - low));
}

/* ln x within 1 ulp; -inf for 0, NaN below 0. */
FG_ANYWHERE float fg_logf(float x)
{
    /* A subnormal is made normal first. */
    int tiny = x < 0x1p-126f;
    float normal = x * fg_fmath_select(tiny, 0x1p23f, 1.0f);
    /* x = 2^exponent * m with m in [sqrt(1/2), sqrt(2)). */
    uint32_t bits = fg_fmath_bits(normal) - 0x3F3504F3u;
    float exponent = (float)((int32_t)bits >> 23) - fg_fmath_select(tiny, 23.0f, 0.0f);
    float m = fg_fmath_float((bits & 0x007FFFFFu) + 0x3F3504F3u);
    float result = fg_log1pf_core(m - 1.0f, exponent);
    result = fg_fmath_select(x > 0x1.fffffep127f, x, result);
    result = fg_fmath_select(x == 0.0f, fg_fmath_float(0xFF800000u), result);
    return fg_fmath_select(x >= 0.0f, result, fg_fmath_float(0x7FC00000u));
}

/* sin x and cos x with an absolute error below 1e-15 for |x| <= 2^20 (rotary angles). */
static inline void fg_sincos(double x, double *sin_out, double *cos_out)
{
    /* x = n pi/2 + r, r in [-pi/4, pi/4]. pi/2 is split in two parts of 33 bits and a rest, so that
     * both products with n (at most 20 bits) are exact. */
    double shifted = x * 0x1.45f306dc9c883p-1 + 0x1.8p52;
    double n = shifted - 0x1.8p52;
    double r = ((x - n * 0x1.921fb544p+0) - n * 0x1.0b4611a6p-34) - n * 0x1.3198a2e037073p-69;
    double z = r * r;
    /* Taylor series: the terms left out are below 2e-18 on the interval. */
    double s =
        -1.0 / 6 +
        z * (1.0 / 120 +
             z * (-1.0 / 5040 +
                  z * (1.0 / 362880 + z * (-1.0 / 39916800 + z * (1.0 / 6227020800.0 +
                                                                  z * (-1.0 / 1307674368000.0))))));
    s = r + r * z * s;
    double c =
        1.0 / 24 +
        z * (-1.0 / 720 +
             z * (1.0 / 40320 + z * (-1.0 / 3628800 +
                                     z * (1.0 / 479001600 + z * (-1.0 / 87178291200.0 +
                                                                 z * (1.0 / 20922789888000.0))))));
    c = (1.0 - 0.5 * z) + z * z * c;
    uint64_t quadrant;
    memcpy(&quadrant, &shifted, sizeof quadrant);
    double sine = (quadrant & 1) != 0 ? c : s;
    double cosine = (quadrant & 1) != 0 ? s : c;
    *sin_out = (quadrant & 2) != 0 ? -sine : sine;
    *cos_out = ((quadrant + 1) & 2) != 0 ? -cosine : cosine;
}

#endif
