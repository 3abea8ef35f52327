/*
 * avx2_super - super-groups of Q4_K, Q5_K and Q6_K (kernels/ops.h) in registers of 256 bits: what products have to do
 * once for each, be they of AVX2 or of AVX-VNNI.
 */
#ifndef FORGE_KERNELS_CPU_AVX2_SUPER_H
#define FORGE_KERNELS_CPU_AVX2_SUPER_H

#include "kernels/cpu/avx2_unpack.h"

enum { GROUPS = FG_QUANT_SUPER_GROUPS, HALVES = 2, SUPER_ROWS_MOST = 8 };

#if defined(__AVX2__) /* 256-bit results need it */
/* Some rows against a super-group of a panel; of each with outputs 0..7 and 8..15. */
typedef struct super_rows {
    const fg_quant_super *supers; /* of the first row */
    size_t stride;                /* from one row's to the next */
    __m256i (*sums)[HALVES];      /* of codes and quants, times scales */
    __m256 (*totals)[HALVES];
    const int16_t (*pairs)[HALVES][16]; /* pair_of, where that is ready */
} super_rows;

/* Compilers add up in the order in which it is written. Free to make trees of it, they run out of registers. */
FG_AVX2_INLINE void finish_first(__m256i *sum)
{
    __asm__("" : "+x"(*sum));
}

/* Two bytes of each of eight outputs side by side: of Q6_K the scales of group i, else the minima of groups 2i and
 * 2i + 1. */
FG_AVX2_INLINE __m256i pair_of(uint32_t type, const uint8_t *scales, size_t i, int h)
{
    const uint8_t *at = scales + (type == FG_Q6_K ? 32 + i * 32 : 64 + i * 64 + 16);
    __m128i first = load8(at + 8 * h);
    __m128i second = load8(at + 8 * h + (type == FG_Q6_K ? 16 : 32));
    return _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(first, second));
}

/* Of R rows with half h: what the integer minima come to, or Q6_K's scales without their codes. */
FG_AVX2_INLINE void sum_pairs(uint32_t type, int R, bool ready, const super_rows *rows,
                              const uint8_t *scales, int h, __m256i *out)
{
    const int count = type == FG_Q6_K ? GROUPS : GROUPS / 2;
    __m256i pairs[GROUPS];
#pragma GCC unroll 8
    for (int i = 0; i < count; i++) {
        pairs[i] = ready ? load32(rows->pairs[i][h]) : pair_of(type, scales, (size_t)i, h);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        const fg_quant_super *super = rows->supers + (size_t)r * rows->stride;
        const int16_t *x = type == FG_Q6_K ? super->halves[0] : super->sums;
        __m256i sum = _mm256_madd_epi16(pairs[0], broadcast4(x));
#pragma GCC unroll 7
        for (int i = 1; i < count; i++) {
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs[i], broadcast4(x + 2 * i)));
            finish_first(&sum);
        }
        out[r] = sum;
    }
}

/* Totals grow by the super-group. */
FG_AVX2_INLINE void end_super(uint32_t type, int R, bool ready, const super_rows *rows,
                              const uint8_t *scales)
{
#pragma GCC unroll 2
    for (int h = 0; h < HALVES; h++) {
        __m256i pairs[SUPER_ROWS_MOST];
        sum_pairs(type, R, ready, rows, scales, h, pairs);
        __m256 d = halves(scales + h * 16);
        __m256 minimum = _mm256_xor_ps(halves(scales + 32 + h * 16), _mm256_set1_ps(-0.0f));
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            __m256 scale = _mm256_set1_ps(rows->supers[(size_t)r * rows->stride].scale);
            __m256 total = rows->totals[r][h];
            __m256i sum = rows->sums[r][h];
            if (type == FG_Q6_K) {
                sum = _mm256_sub_epi32(sum, _mm256_slli_epi32(pairs[r], 5));
            } else {
                total = _mm256_fmadd_ps(_mm256_mul_ps(minimum, scale), _mm256_cvtepi32_ps(pairs[r]),
                                        total);
            }
            rows->totals[r][h] =
                _mm256_fmadd_ps(_mm256_mul_ps(d, scale), _mm256_cvtepi32_ps(sum), total);
        }
    }
}

#endif

#endif
