/*
 * gumbel - the sampler's noise, the same bits wherever a token is chosen. Pure.
 */
#ifndef FORGE_COMMON_BASE_GUMBEL_H
#define FORGE_COMMON_BASE_GUMBEL_H

#include "common/base/fmath.h"

/* Gumbel noise -ln(-ln u) from 64 uniform bits. With v = 1 - u, small v are what makes large noise:
 * they keep their digits, so the tail reaches to v = 2^-64. */
FG_ANYWHERE float fg_gumbel(uint64_t bits)
{
    float v = (float)(bits | 1) * 0x1p-64f;
    float exponential =
        v < 0.25f ? -fg_log1pf_core(-v, 0.0f) : -fg_logf((float)(~bits | 1) * 0x1p-64f);
    return -fg_logf(exponential);
}

/* No less than fg_gumbel(bits), found without a logarithm: v >= 2^-(zeros + 1) and -ln u >= v. The margin
 * is a thousand times the error of the logarithms. */
FG_ANYWHERE float fg_gumbel_bound(uint64_t bits)
{
#ifdef __CUDA_ARCH__
    int zeros = __clzll((long long)(bits | 1));
#else
    int zeros = __builtin_clzll(bits | 1);
#endif
    return (float)(zeros + 1) * 0.6931472f + 0.01f;
}

#endif
