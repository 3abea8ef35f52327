/*
 * avx2_block - products of bf16 in blocks of two chains (ops.h), of which both run at once: three rows by sixteen columns.
 * So neither chain waits in memory, and a store and an addition are left for each sum of a block. Attention and products
 * with BF16 weights share it: keys, values and panels all hold pairs, a row of the matrix in the upper and the next one in
 * the lower halves.
 */
#ifndef FORGE_KERNELS_CPU_AVX2_BLOCK_H
#define FORGE_KERNELS_CPU_AVX2_BLOCK_H

#include "kernels/cpu/avx2_math.h"
#include "kernels/cpu/cpu.h"

enum { FG_AVX2_BLOCK_ROWS = 3, FG_AVX2_BLOCK = 2 * FG_CPU_CHAIN_COLUMNS };

#if defined(__AVX2__) /* 256-bit results need it */

/* Where a step's sixteen bf16 are. */
typedef enum fg_avx2_step {
    FG_AVX2_UPPER,
    FG_AVX2_LOWER, /* read with the two bytes before them, as a mask can start on more ports than a shift */
    FG_AVX2_LOWER_FIRST, /* the same where there may be nothing to read */
} fg_avx2_step;

/* A step, written out: sixteen registers are just enough, and compilers run out of them. */
FG_AVX2_INLINE void fg_avx2_block_step(fg_avx2_step step, __m256i upper, const float *a,
                                       size_t a_step, const uint8_t *at,
                                       __m256 sums[FG_AVX2_BLOCK_ROWS][2])
{
    typedef uint8_t vector[32];
    const vector *b = (const vector *)(const void *)(at - (step == FG_AVX2_LOWER ? 2 : 0));
    __m256 b0, b1, x;
#define STEP(load0, load1)                                                                         \
    __asm__ volatile(load0 load1 "vbroadcastss %[x0], %[x]\n\t"                                    \
                                 "vfmadd231ps %[x], %[b0], %[s00]\n\t"                             \
                                 "vfmadd231ps %[x], %[b1], %[s01]\n\t"                             \
                                 "vbroadcastss %[x1], %[x]\n\t"                                    \
                                 "vfmadd231ps %[x], %[b0], %[s10]\n\t"                             \
                                 "vfmadd231ps %[x], %[b1], %[s11]\n\t"                             \
                                 "vbroadcastss %[x2], %[x]\n\t"                                    \
                                 "vfmadd231ps %[x], %[b0], %[s20]\n\t"                             \
                                 "vfmadd231ps %[x], %[b1], %[s21]"                                 \
                     : [b0] "=&x"(b0), [b1] "=&x"(b1), [x] "=&x"(x), [s00] "+x"(sums[0][0]),       \
                       [s01] "+x"(sums[0][1]), [s10] "+x"(sums[1][0]), [s11] "+x"(sums[1][1]),     \
                       [s20] "+x"(sums[2][0]), [s21] "+x"(sums[2][1])                              \
                     : [upper] "x"(upper), [m0] "m"(b[0]), [m1] "m"(b[1]), [x0] "m"(a[0]),         \
                       [x1] "m"(a[a_step]), [x2] "m"(a[2 * a_step]))
    if (step == FG_AVX2_LOWER_FIRST) {
        STEP("vmovups %[m0], %[b0]\n\tvpslld $16, %[b0], %[b0]\n\t",
             "vmovups %[m1], %[b1]\n\tvpslld $16, %[b1], %[b1]\n\t");
    } else {
        STEP("vandps %[m0], %[upper], %[b0]\n\t", "vandps %[m1], %[upper], %[b1]\n\t");
    }
#undef STEP
}

/* Rows that a block's columns are multiplied by: of pair i, x[m * row + i * pair] with what is in the upper halves, and
 * `lower` behind it with what is in the lower ones. */
typedef struct fg_avx2_rows {
    const float *x;
    size_t row;
    size_t pair;
    size_t lower;
} fg_avx2_rows;

/* A block of a product: rows times sixteen columns, whose pairs of the first chain are at `firsts`, of the second at
 * `seconds`, so many bytes from one to the next; added to what is at outs[m], or to nothing. `first`: two bytes before
 * `firsts` may not be read. */
FG_AVX2_INLINE void fg_avx2_add_block(bool adds, bool first, const fg_avx2_rows *rows,
                                      const uint8_t *firsts, const uint8_t *seconds,
                                      size_t pair_bytes, float *const *outs)
{
    const __m256i upper = _mm256_set1_epi32((int32_t)0xFFFF0000);
    const fg_avx2_step lower = first ? FG_AVX2_LOWER_FIRST : FG_AVX2_LOWER;
    const float *a = rows->x;
    const float *b = a + FG_CPU_CHAIN_PAIRS * rows->pair;
    __m256 one[FG_AVX2_BLOCK_ROWS][2];
    __m256 two[FG_AVX2_BLOCK_ROWS][2];
    for (int m = 0; m < FG_AVX2_BLOCK_ROWS; m++) {
        for (int n = 0; n < 2; n++) {
            one[m][n] = _mm256_setzero_ps();
            two[m][n] = _mm256_setzero_ps();
        }
    }
    for (int i = 0; i < FG_CPU_CHAIN_PAIRS; i++) {
        fg_avx2_block_step(FG_AVX2_UPPER, upper, a, rows->row, firsts, one);
        fg_avx2_block_step(FG_AVX2_UPPER, upper, b, rows->row, seconds, two);
        fg_avx2_block_step(lower, upper, a + rows->lower, rows->row, firsts, one);
        fg_avx2_block_step(FG_AVX2_LOWER, upper, b + rows->lower, rows->row, seconds, two);
        a += rows->pair;
        b += rows->pair;
        firsts += pair_bytes;
        seconds += pair_bytes;
    }
    for (int m = 0; m < FG_AVX2_BLOCK_ROWS; m++) {
        for (int n = 0; n < 2; n++) {
            float *at = outs[m] + n * 8;
            __m256 sum = _mm256_add_ps(one[m][n], two[m][n]);
            _mm256_store_ps(at, adds ? _mm256_add_ps(_mm256_load_ps(at), sum) : sum);
        }
    }
}

#endif

#endif
