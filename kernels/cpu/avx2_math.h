/*
 * avx2_math - reductions of one register. Only for files compiled with AVX2, FMA and F16C.
 */
#ifndef FORGE_KERNELS_CPU_AVX2_MATH_H
#define FORGE_KERNELS_CPU_AVX2_MATH_H

#include <immintrin.h>

#include "kernels/cpu/math.h"

#define FG_AVX2_INLINE static inline __attribute__((always_inline))

/* The fold of ops.h. */
FG_AVX2_INLINE float fg_avx2_fold(__m256 v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    s = _mm_add_ss(s, _mm_movehdup_ps(s));
    return _mm_cvtss_f32(s);
}

#endif
