/*
 * avx512_brain - weights of a bf16 cache, 32 at a time, for processors with AVX512_BF16 and AVX512_VBMI. Their mantissas
 * are looked up: on a Zen 4 neither a byte shuffle nor an addition takes the place of a product, as an fma does.
 */
#ifndef FORGE_KERNELS_CPU_AVX512_BRAIN_H
#define FORGE_KERNELS_CPU_AVX512_BRAIN_H

#include "kernels/cpu/avx512_attend.h"

#if defined(__AVX512F__) || defined(FG_AVX512_SMALL)

enum { FG_AVX512_WEIGHED = 2 * FG_AVX512_LANES }; /* slots at a time */

/* Read from memory each time: products beside need the registers. */
typedef struct fg_avx512_brain_constants {
    _Alignas(64) uint8_t below[128]; /* how far the mantissa of 2^(j / 128) lies below j */
    /* The lower words of two vectors, two slots' in turn, the first one in the upper half. */
    _Alignas(64) uint16_t pairs[32];
    /* Added to a score less the maximum, it leaves that in steps of 1/128 in the lower word, less `offset`, half to even. */
    float base;
    float least; /* base - 51 */
    /* What NaN, whose lower word is 0, becomes a NaN of bf16 with, and 2^0 becomes 0x3F80. */
    uint16_t offset;
    uint16_t smallest; /* 2^-50 as bf16 */
} fg_avx512_brain_constants;

static const fg_avx512_brain_constants fg_avx512_brains = {
    .below = { 0,  0,  1,  1,  1,  1,  2,  2,  2,  3,  3,  3,  3,  4,  4,  4,  4,  5,  5,
               5,  5,  6,  6,  6,  6,  6,  7,  7,  7,  7,  7,  8,  8,  8,  8,  8,  8,  9,
               9,  9,  9,  9,  9,  9,  10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 11, 11, 11,
               11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11,
               11, 11, 11, 11, 11, 11, 10, 10, 10, 10, 10, 10, 10, 10, 10, 9,  9,  9,  9,
               9,  9,  9,  8,  8,  8,  8,  8,  7,  7,  7,  7,  7,  6,  6,  6,  6,  5,  5,
               5,  4,  4,  4,  3,  3,  3,  3,  2,  2,  1,  1,  1,  0 },
    .pairs = { 2,  0,  6,  4,  10, 8,  14, 12, 18, 16, 22, 20, 26, 24, 30, 28,
               34, 32, 38, 36, 42, 40, 46, 44, 50, 48, 54, 52, 58, 56, 62, 60 },
    .base = FG_CPU_BRAIN_STEPS + (0x3F80 - 0x7FC0) / 128.0f,
    .least = FG_CPU_BRAIN_STEPS + (0x3F80 - 0x7FC0) / 128.0f - 51.0f,
    .offset = 0x7FC0,
    .smallest = (127 - 50) << 7,
};

/* fg_cpu_brain_exp2 of 32 scores less the maximum, in pairs, the first slot of each in the upper half. A comparison into a
 * mask, or an instruction that saturates, would take the place of a product; signs do not. */
FG_AVX512_INLINE __m512i fg_avx512_weigh(__m512 low, __m512 high, __m512 maximum,
                                         const fg_avx512_brain_constants *c)
{
    __m512 base = _mm512_set1_ps(c->base);
    __m512 least = _mm512_set1_ps(c->least);
    low = _mm512_add_ps(_mm512_sub_ps(low, maximum), base);
    high = _mm512_add_ps(_mm512_sub_ps(high, maximum), base);
    low = _mm512_max_ps(least, low); /* NaN stays */
    high = _mm512_max_ps(least, high);
    __m512i steps = _mm512_permutex2var_epi16(_mm512_castps_si512(low), _mm512_load_si512(c->pairs),
                                              _mm512_castps_si512(high));
    steps = _mm512_add_epi16(steps, _mm512_set1_epi16((int16_t)c->offset));
    __m512i below = _mm512_maskz_permutex2var_epi8(0x5555555555555555, /* lower bytes */
                                                   _mm512_load_si512(c->below), steps,
                                                   _mm512_load_si512(c->below + 64));
    __m512i above = _mm512_sub_epi16(steps, _mm512_set1_epi16((int16_t)c->smallest));
    return _mm512_andnot_si512(_mm512_srai_epi16(above, 15), _mm512_sub_epi16(steps, below));
}

/* Adds weights to their row's sum, the first slot of a pair first. */
FG_AVX512_INLINE __m512 fg_avx512_add_weights(__m512 sum, __m512i weights)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)weights, (__m512bh)_mm512_set1_epi32(0x3F803F80));
}

FG_AVX512_INLINE float fg_avx512_fold_weights(__m512 sum)
{
    return fg_avx512_fold(
        _mm256_add_ps(_mm512_castps512_ps256(sum), _mm512_extractf32x8_ps(sum, 1)));
}

/* Scores of a piece; of one that is not among begin .. end - 1 such as weigh nothing. */
FG_AVX512_INLINE __m512 fg_avx512_piece(const float *scores, uint32_t at, uint32_t begin,
                                        uint32_t end)
{
    return at >= begin && at < end ? _mm512_load_ps(scores + at)
                                   : _mm512_set1_ps(-__builtin_inff());
}

/* How 32 weights are written. */
typedef enum fg_avx512_written {
    FG_AVX512_IN_PAIRS, /* neighbours in a word, the first one in its upper half */
    FG_AVX512_APART,    /* slot i above slot i + 16 */
    FG_AVX512_IN_WORDS, /* each in the upper half of a word */
} fg_avx512_written;

/* Which of the 32 a vector of them then holds, lower halves first. */
static const uint16_t fg_avx512_apart[FG_AVX512_WEIGHED] = { 17, 1,  16, 0,  19, 3,  18, 2,
                                                             21, 5,  20, 4,  23, 7,  22, 6,
                                                             25, 9,  24, 8,  27, 11, 26, 10,
                                                             29, 13, 28, 12, 31, 15, 30, 14 };
static const uint16_t fg_avx512_first_words[FG_AVX512_WEIGHED] = { 0, 1,  0, 0,  0, 3,  0, 2,
                                                                   0, 5,  0, 4,  0, 7,  0, 6,
                                                                   0, 9,  0, 8,  0, 11, 0, 10,
                                                                   0, 13, 0, 12, 0, 15, 0, 14 };

/* Weights of a row's slots `at` .. `at` + 31, in the place of scores that were read. */
FG_AVX512_INLINE void fg_avx512_put_weights(fg_avx512_written written, __m512i weights,
                                            float *scores, uint32_t at)
{
    const __mmask32 upper = 0xAAAAAAAA;
    if (written == FG_AVX512_IN_WORDS) {
        __m512i first = _mm512_loadu_si512(fg_avx512_first_words);
        __m512i second = _mm512_add_epi16(first, _mm512_set1_epi16(FG_AVX512_LANES));
        _mm512_store_si512(scores + at, _mm512_maskz_permutexvar_epi16(upper, first, weights));
        _mm512_store_si512(scores + at + FG_AVX512_LANES,
                           _mm512_maskz_permutexvar_epi16(upper, second, weights));
        return;
    }
    if (written == FG_AVX512_APART) {
        weights = _mm512_permutexvar_epi16(_mm512_loadu_si512(fg_avx512_apart), weights);
    }
    _mm512_store_si512(scores + at / 2, weights);
}

/* Weights of R rows, written where earlier scores, or the first half of them, were read. */
FG_AVX512_INLINE void fg_avx512_weigh_rows(int R, fg_avx512_written written, float *const *scores,
                                           uint32_t begin, uint32_t end, float *const *records)
{
    __m512 maxima[FG_AVX512_TOGETHER];
    __m512 sums[FG_AVX512_TOGETHER];
    fg_avx512_begin_weights(R, scores, begin, end, records, maxima);
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
        sums[r] = _mm512_setzero_ps();
    }
    for (uint32_t j = begin / FG_AVX512_WEIGHED * FG_AVX512_WEIGHED; j < end;
         j += FG_AVX512_WEIGHED) {
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            __m512 low = fg_avx512_piece(scores[r], j, begin, end);
            __m512 high = fg_avx512_piece(scores[r], j + FG_AVX512_LANES, begin, end);
            __m512i weights = fg_avx512_weigh(low, high, maxima[r], &fg_avx512_brains);
            sums[r] = fg_avx512_add_weights(sums[r], weights);
            fg_avx512_put_weights(written, weights, scores[r], j);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
        records[r][FG_ATTEND_SUM] = fg_avx512_fold_weights(sums[r]);
    }
}

/* The same for all rows. */
FG_AVX512_INLINE void fg_avx512_weigh_brains(fg_avx512_written written, const fg_strip_rows *rows,
                                             uint32_t begin, uint32_t end)
{
    _Static_assert((int)FG_AVX512_TOGETHER == 4, "a case for each number of rows");
    for (uint32_t i = 0; i < rows->count; i += FG_AVX512_TOGETHER) {
        float *const *scores = &rows->scores[i];
        float *const *records = &rows->records[i];
        switch (rows->count - i) {
        case 1:
            fg_avx512_weigh_rows(1, written, scores, begin, end, records);
            break;
        case 2:
            fg_avx512_weigh_rows(2, written, scores, begin, end, records);
            break;
        case 3:
            fg_avx512_weigh_rows(3, written, scores, begin, end, records);
            break;
        default:
            fg_avx512_weigh_rows(FG_AVX512_TOGETHER, written, scores, begin, end, records);
        }
    }
}

#endif
#endif
