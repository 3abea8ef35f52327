/*
 * avx2_fours - products of an int8 cache with rows of 16-bit numbers, in pairs: up to four rows by sixteen columns. Of
 * four bytes that lie together the first and third are multiplied by one pair, then the second and fourth by the next.
 * Sums are exact, so any order gives the same; this one is written out, as the processor gives ports in the order of
 * instructions.
 */
#ifndef FORGE_KERNELS_CPU_AVX2_FOURS_H
#define FORGE_KERNELS_CPU_AVX2_FOURS_H

#include "kernels/cpu/avx2_math.h"

enum { FG_AVX2_FOURS_ROWS = 4 };

#if defined(__AVX2__) /* 256-bit results need it */

/* Pairs of M rows, a[m * a_step], times sixteen columns. */
FG_AVX2_INLINE void fg_avx2_fours_pairs(int M, const float *a, size_t a_step, __m256i b0,
                                        __m256i b1, __m256i sums[FG_AVX2_FOURS_ROWS][2])
{
    __m256i x, y;
#define ROW(m)                                                                                     \
    "vpbroadcastd %[x" #m "], %[x]\n\t"                                                            \
    "vpmaddwd %[b0], %[x], %[y]\n\t"                                                               \
    "vpaddd %[y], %[s" #m "0], %[s" #m "0]\n\t"                                                    \
    "vpmaddwd %[b1], %[x], %[y]\n\t"                                                               \
    "vpaddd %[y], %[s" #m "1], %[s" #m "1]\n\t"
    switch (M) {
    case 1:
        __asm__ volatile(
            ROW(0)
            : [x] "=&x"(x), [y] "=&x"(y), [s00] "+x"(sums[0][0]), [s01] "+x"(sums[0][1])
            : [b0] "x"(b0), [b1] "x"(b1), [x0] "m"(a[0]));
        break;
    case 2:
        __asm__ volatile(ROW(0) ROW(1)
                         : [x] "=&x"(x), [y] "=&x"(y), [s00] "+x"(sums[0][0]),
                           [s01] "+x"(sums[0][1]), [s10] "+x"(sums[1][0]), [s11] "+x"(sums[1][1])
                         : [b0] "x"(b0), [b1] "x"(b1), [x0] "m"(a[0]), [x1] "m"(a[a_step]));
        break;
    case 3:
        __asm__ volatile(ROW(0) ROW(1) ROW(2)
                         : [x] "=&x"(x), [y] "=&x"(y), [s00] "+x"(sums[0][0]),
                           [s01] "+x"(sums[0][1]), [s10] "+x"(sums[1][0]), [s11] "+x"(sums[1][1]),
                           [s20] "+x"(sums[2][0]), [s21] "+x"(sums[2][1])
                         : [b0] "x"(b0), [b1] "x"(b1), [x0] "m"(a[0]), [x1] "m"(a[a_step]),
                           [x2] "m"(a[2 * a_step]));
        break;
    default:
        __asm__ volatile(
            ROW(0) ROW(1) ROW(2) ROW(3)
            : [x] "=&x"(x), [y] "=&x"(y), [s00] "+x"(sums[0][0]), [s01] "+x"(sums[0][1]),
              [s10] "+x"(sums[1][0]), [s11] "+x"(sums[1][1]), [s20] "+x"(sums[2][0]),
              [s21] "+x"(sums[2][1]), [s30] "+x"(sums[3][0]), [s31] "+x"(sums[3][1])
            : [b0] "x"(b0), [b1] "x"(b1), [x0] "m"(a[0]), [x1] "m"(a[a_step]),
              [x2] "m"(a[2 * a_step]), [x3] "m"(a[3 * a_step]));
    }
#undef ROW
}

/* Adds M rows times so many fours of sixteen columns, four_bytes from one to the next; from `after` on as many lines are
 * asked for meanwhile, unless it is NULL. */
FG_AVX2_INLINE void fg_avx2_add_fours(int M, const float *a, size_t a_step, const uint8_t *fours,
                                      size_t four_bytes, uint32_t count, const uint8_t *after,
                                      __m256i sums[FG_AVX2_FOURS_ROWS][2])
{
    for (uint32_t i = 0; i < count; i++) {
        const __m256i *at = (const __m256i *)(const void *)(fours + i * four_bytes);
        __m256i b0 = _mm256_loadu_si256(at);
        __m256i b1 = _mm256_loadu_si256(at + 1);
        if (after != NULL) {
            _mm_prefetch((const char *)after + (size_t)i * 64, _MM_HINT_T1);
        }
        fg_avx2_fours_pairs(M, a + 2 * i, a_step, _mm256_srai_epi16(_mm256_slli_epi16(b0, 8), 8),
                            _mm256_srai_epi16(_mm256_slli_epi16(b1, 8), 8), sums);
        fg_avx2_fours_pairs(M, a + 2 * i + 1, a_step, _mm256_srai_epi16(b0, 8),
                            _mm256_srai_epi16(b1, 8), sums);
    }
}

#endif

#endif
