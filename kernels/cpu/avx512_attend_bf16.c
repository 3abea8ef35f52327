/*
 * vdpbf16ps gives fma(a0, b0, fma(a1, b1, sum)) in each lane, 1 being the upper half, but takes denormals for
 * zeros: with no denormals (ops.h) and a pair's first element in the upper half, that is one fma chain in
 * rising order, and the bits are those of kernels that widen.
 */
#include "kernels/cpu/avx512_attend_bf16.h"

#define FG_AVX512_DOT(sum, x, b) _mm512_dpbf16_ps(sum, (__m512bh)(x), (__m512bh)(b))

#if defined(FG_AVX512_SMALL)
#define FG_AVX512_WORDS 0
#else
#define FG_AVX512_WORDS 1
#define FG_AVX512_DOT_WORD(sum, word, b)                                                           \
    __asm__("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(b), "m"(word))
#endif

#include "kernels/cpu/avx512_attend.h"

FG_AVX512_DEFINE(FG_AVX512_PAIRS)

const fg_strip_products fg_cpu_avx512_attend_pairs[] = FG_AVX512_TABLE(FG_AVX512_PAIRS);

/* In place: the pairs of sixteen scores are written where the first eight of earlier ones were read. */
FG_AVX512_INLINE void weigh_rows(int R, float *const *scores, uint32_t begin, uint32_t end,
                                 float *const *records)
{
    const __m256bh ones = (__m256bh)_mm256_set1_epi32(0x3F803F80);
    __m512 maxima[FG_AVX512_TOGETHER];
    __m256 sums[FG_AVX512_TOGETHER];
    fg_avx512_begin_weights(R, scores, begin, end, records, maxima);
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
        sums[r] = _mm256_setzero_ps();
    }
    for (uint32_t j = begin; j < end; j += FG_AVX512_LANES) {
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            float *x = scores[r];
            __m512 exact = fg_avx512_brain_exp2(_mm512_sub_ps(_mm512_load_ps(x + j), maxima[r]));
            /* Rounded, the first slot of a pair is in its lower half. */
            __m256i weights = _mm256_rol_epi32((__m256i)_mm512_cvtneps_pbh(exact), 16);
            sums[r] = _mm256_dpbf16_ps(sums[r], (__m256bh)weights, ones);
            _mm256_store_si256((__m256i *)(void *)(x + j / 2), weights);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
        records[r][FG_ATTEND_SUM] = fg_avx512_fold(sums[r]);
    }
}

void fg_cpu_avx512_weigh_pairs(const fg_strip_rows *rows, uint32_t begin, uint32_t end)
{
    uint32_t i = 0;
    for (; i + FG_AVX512_TOGETHER <= rows->count; i += FG_AVX512_TOGETHER) {
        weigh_rows(FG_AVX512_TOGETHER, &rows->scores[i], begin, end, &rows->records[i]);
    }
    for (; i < rows->count; i++) {
        weigh_rows(1, &rows->scores[i], begin, end, &rows->records[i]);
    }
}
