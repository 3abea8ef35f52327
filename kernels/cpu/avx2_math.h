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

#if defined(__AVX2__) /* 256-bit results need it */
/* fg_cpu_brain of eight: bf16 in the upper halves of their lanes. */
FG_AVX2_INLINE __m256i fg_avx2_brain(__m256 x)
{
    const __m256i magnitude = _mm256_set1_epi32(INT32_MAX);
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i up = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF));
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256i is_nan =
        _mm256_cmpgt_epi32(_mm256_and_si256(bits, magnitude), _mm256_set1_epi32(0x7F800000));
    __m256i rounded = _mm256_blendv_epi8(_mm256_add_epi32(bits, up), quiet, is_nan);
    __m256i is_normal = _mm256_cmpgt_epi32(_mm256_and_si256(rounded, magnitude),
                                           _mm256_set1_epi32((FG_CPU_BF16_LEAST << 16) - 1));
    rounded = _mm256_and_si256(rounded, _mm256_set1_epi32((int32_t)0xFFFF0000));
    return _mm256_and_si256(rounded, is_normal);
}
#endif

#endif
