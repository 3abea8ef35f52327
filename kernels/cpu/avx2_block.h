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

enum { FG_AVX2_BLOCK_ROWS = 3, FG_AVX2_TALL_ROWS = 4, FG_AVX2_BLOCK = 2 * FG_CPU_CHAIN_COLUMNS };

#if defined(__AVX2__) /* 256-bit results need it */

/* Where a step's sixteen bf16 are. */
typedef enum fg_avx2_step {
    FG_AVX2_UPPER,
    FG_AVX2_LOWER, /* read with the two bytes before them, as a mask can start on more ports than a shift */
    FG_AVX2_LOWER_WITHIN, /* without these bytes */
} fg_avx2_step;

/* A step, written out: sixteen registers are just enough for three rows, and compilers run out of them. */
FG_AVX2_INLINE void fg_avx2_block_step(fg_avx2_step step, int M, __m256i upper, const float *a,
                                       size_t a_step, const uint8_t *at,
                                       __m256 sums[FG_AVX2_BLOCK_ROWS][2])
{
    typedef uint8_t vector[32];
    const vector *b = (const vector *)(const void *)(at - (step == FG_AVX2_LOWER ? 2 : 0));
    __m256 b0, b1, x;
#define ROW(m)                                                                                     \
    "vbroadcastss %[x" #m "], %[x]\n\t"                                                            \
    "vfmadd231ps %[x], %[b0], %[s" #m "0]\n\t"                                                     \
    "vfmadd231ps %[x], %[b1], %[s" #m "1]\n\t"
#define STEP_1(load0, load1)                                                                       \
    __asm__ volatile(load0 load1 ROW(0)                                                            \
                     : [b0] "=&x"(b0), [b1] "=&x"(b1), [x] "=&x"(x), [s00] "+x"(sums[0][0]),       \
                       [s01] "+x"(sums[0][1])                                                      \
                     : [upper] "x"(upper), [m0] "m"(b[0]), [m1] "m"(b[1]), [x0] "m"(a[0]))
#define STEP_2(load0, load1)                                                                       \
    __asm__ volatile(                                                                              \
        load0 load1 ROW(0) ROW(1)                                                                  \
        : [b0] "=&x"(b0), [b1] "=&x"(b1), [x] "=&x"(x), [s00] "+x"(sums[0][0]),                    \
          [s01] "+x"(sums[0][1]), [s10] "+x"(sums[1][0]), [s11] "+x"(sums[1][1])                   \
        : [upper] "x"(upper), [m0] "m"(b[0]), [m1] "m"(b[1]), [x0] "m"(a[0]), [x1] "m"(a[a_step]))
#define STEP_3(load0, load1)                                                                       \
    __asm__ volatile(load0 load1 ROW(0) ROW(1) ROW(2)                                              \
                     : [b0] "=&x"(b0), [b1] "=&x"(b1), [x] "=&x"(x), [s00] "+x"(sums[0][0]),       \
                       [s01] "+x"(sums[0][1]), [s10] "+x"(sums[1][0]), [s11] "+x"(sums[1][1]),     \
                       [s20] "+x"(sums[2][0]), [s21] "+x"(sums[2][1])                              \
                     : [upper] "x"(upper), [m0] "m"(b[0]), [m1] "m"(b[1]), [x0] "m"(a[0]),         \
                       [x1] "m"(a[a_step]), [x2] "m"(a[2 * a_step]))
#define STEP(load0, load1)                                                                         \
    if (M == 1) {                                                                                  \
        STEP_1(load0, load1);                                                                      \
    } else if (M == 2) {                                                                           \
        STEP_2(load0, load1);                                                                      \
    } else {                                                                                       \
        STEP_3(load0, load1);                                                                      \
    }
    if (step == FG_AVX2_LOWER_WITHIN) {
        STEP("vmovups %[m0], %[b0]\n\tvpslld $16, %[b0], %[b0]\n\t",
             "vmovups %[m1], %[b1]\n\tvpslld $16, %[b1], %[b1]\n\t")
    } else {
        STEP("vandps %[m0], %[upper], %[b0]\n\t", "vandps %[m1], %[upper], %[b1]\n\t")
    }
#undef STEP
#undef STEP_3
#undef STEP_2
#undef STEP_1
#undef ROW
}

/* Rows that a block's columns are multiplied by: of pair i, x[m * row + i * pair] with what is in the upper halves, and
 * `lower` behind it with what is in the lower ones. */
typedef struct fg_avx2_rows {
    const float *x;
    size_t row;
    size_t pair;
    size_t lower;
} fg_avx2_rows;

/* Sixteen columns of a matrix for a block: their pairs of the first chain, those of the second, and the bytes from one
 * pair to the next. */
typedef struct fg_avx2_columns {
    const uint8_t *firsts;
    const uint8_t *seconds;
    size_t pair_bytes;
    /* Asked for meanwhile, line after line, one of each for each pair; NULL: nothing. */
    const uint8_t *after_firsts;
    const uint8_t *after_seconds;
} fg_avx2_columns;

FG_AVX2_INLINE void fg_avx2_block_fetch(const fg_avx2_columns *columns, int pair)
{
    if (columns->after_firsts != NULL) {
        size_t at = (size_t)pair * 64;
        _mm_prefetch((const char *)columns->after_firsts + at, _MM_HINT_T1);
        _mm_prefetch((const char *)columns->after_seconds + at, _MM_HINT_T1);
    }
}

/* A pair of a chain, upper halves and then lower ones, for four rows: as there are no registers for the sums of two
 * chains, there are some for what was read. */
FG_AVX2_INLINE void fg_avx2_tall_step(__m256i upper, const fg_avx2_rows *rows, const float *a,
                                      const uint8_t *at, __m256 sums[FG_AVX2_TALL_ROWS][2])
{
    typedef uint8_t vector[32];
    const vector *b = (const vector *)(const void *)at;
    const float *c = a + rows->lower;
    const size_t row = rows->row;
    __m256 pairs0, pairs1, b0, b1, x;
#define ROW(m)                                                                                     \
    "vbroadcastss %[x" #m "], %[x]\n\t"                                                            \
    "vfmadd231ps %[x], %[b0], %[s" #m "0]\n\t"                                                     \
    "vfmadd231ps %[x], %[b1], %[s" #m "1]\n\t"
    __asm__ volatile("vmovups %[m0], %[p0]\n\t"
                     "vmovups %[m1], %[p1]\n\t"
                     "vandps %[p0], %[upper], %[b0]\n\t"
                     "vandps %[p1], %[upper], %[b1]\n\t" ROW(0) ROW(1) ROW(2) ROW(3)
                     : [p0] "=&x"(pairs0), [p1] "=&x"(pairs1), [b0] "=&x"(b0), [b1] "=&x"(b1),
                       [x] "=&x"(x), [s00] "+x"(sums[0][0]), [s01] "+x"(sums[0][1]),
                       [s10] "+x"(sums[1][0]), [s11] "+x"(sums[1][1]), [s20] "+x"(sums[2][0]),
                       [s21] "+x"(sums[2][1]), [s30] "+x"(sums[3][0]), [s31] "+x"(sums[3][1])
                     : [upper] "x"(upper), [m0] "m"(b[0]), [m1] "m"(b[1]), [x0] "m"(a[0]),
                       [x1] "m"(a[row]), [x2] "m"(a[2 * row]), [x3] "m"(a[3 * row]));
    __asm__ volatile("vpslld $16, %[p0], %[b0]\n\t"
                     "vpslld $16, %[p1], %[b1]\n\t" ROW(0) ROW(1) ROW(2) ROW(3)
                     : [b0] "=&x"(b0), [b1] "=&x"(b1), [x] "=&x"(x), [s00] "+x"(sums[0][0]),
                       [s01] "+x"(sums[0][1]), [s10] "+x"(sums[1][0]), [s11] "+x"(sums[1][1]),
                       [s20] "+x"(sums[2][0]), [s21] "+x"(sums[2][1]), [s30] "+x"(sums[3][0]),
                       [s31] "+x"(sums[3][1])
                     : [p0] "x"(pairs0), [p1] "x"(pairs1), [x0] "m"(c[0]), [x1] "m"(c[row]),
                       [x2] "m"(c[2 * row]), [x3] "m"(c[3 * row]));
#undef ROW
}

/* The same for a chain of FG_CPU_CHAIN_PAIRS, from nothing. */
FG_AVX2_INLINE void fg_avx2_tall_chain(const fg_avx2_rows *rows, const float *a, const uint8_t *b,
                                       size_t pair_bytes, const uint8_t *after,
                                       __m256 sums[FG_AVX2_TALL_ROWS][2])
{
    const __m256i upper = _mm256_set1_epi32((int32_t)0xFFFF0000);
    for (int m = 0; m < FG_AVX2_TALL_ROWS; m++) {
        sums[m][0] = _mm256_setzero_ps();
        sums[m][1] = _mm256_setzero_ps();
    }
    for (int i = 0; i < FG_CPU_CHAIN_PAIRS; i++) {
        if (after != NULL) {
            _mm_prefetch((const char *)after + (size_t)i * 64, _MM_HINT_T1);
        }
        fg_avx2_tall_step(upper, rows, a, b, sums);
        a += rows->pair;
        b += pair_bytes;
    }
}

/* fg_avx2_add_block for four rows, one chain after the other. */
FG_AVX2_INLINE void fg_avx2_add_tall(bool adds, const fg_avx2_rows *rows,
                                     const fg_avx2_columns *columns, float *const *outs)
{
    __m256 sums[FG_AVX2_TALL_ROWS][2];
    _Alignas(32) float firsts[FG_AVX2_TALL_ROWS][16];
    fg_avx2_tall_chain(rows, rows->x, columns->firsts, columns->pair_bytes, columns->after_firsts,
                       sums);
    for (int m = 0; m < FG_AVX2_TALL_ROWS; m++) {
        _mm256_store_ps(firsts[m], sums[m][0]);
        _mm256_store_ps(firsts[m] + 8, sums[m][1]);
    }
    fg_avx2_tall_chain(rows, rows->x + FG_CPU_CHAIN_PAIRS * rows->pair, columns->seconds,
                       columns->pair_bytes, columns->after_seconds, sums);
    for (int m = 0; m < FG_AVX2_TALL_ROWS; m++) {
        for (int n = 0; n < 2; n++) {
            float *at = outs[m] + n * 8;
            __m256 sum = _mm256_add_ps(_mm256_load_ps(firsts[m] + n * 8), sums[m][n]);
            _mm256_store_ps(at, adds ? _mm256_add_ps(_mm256_load_ps(at), sum) : sum);
        }
    }
}

/* A block of a product: M rows times sixteen columns, added to what is at outs[m], or to nothing. `within`: two bytes
 * before the columns are not read either. */
FG_AVX2_INLINE void fg_avx2_add_block(int M, bool adds, bool within, const fg_avx2_rows *rows,
                                      const fg_avx2_columns *columns, float *const *outs)
{
    const __m256i upper = _mm256_set1_epi32((int32_t)0xFFFF0000);
    const fg_avx2_step lower = within ? FG_AVX2_LOWER_WITHIN : FG_AVX2_LOWER;
    const float *a = rows->x;
    const float *b = a + FG_CPU_CHAIN_PAIRS * rows->pair;
    const uint8_t *firsts = columns->firsts;
    const uint8_t *seconds = columns->seconds;
    __m256 one[FG_AVX2_BLOCK_ROWS][2];
    __m256 two[FG_AVX2_BLOCK_ROWS][2];
    for (int m = 0; m < M; m++) {
        for (int n = 0; n < 2; n++) {
            one[m][n] = _mm256_setzero_ps();
            two[m][n] = _mm256_setzero_ps();
        }
    }
    for (int i = 0; i < FG_CPU_CHAIN_PAIRS; i++) {
        fg_avx2_block_fetch(columns, i);
        fg_avx2_block_step(FG_AVX2_UPPER, M, upper, a, rows->row, firsts, one);
        fg_avx2_block_step(FG_AVX2_UPPER, M, upper, b, rows->row, seconds, two);
        fg_avx2_block_step(lower, M, upper, a + rows->lower, rows->row, firsts, one);
        fg_avx2_block_step(lower, M, upper, b + rows->lower, rows->row, seconds, two);
        a += rows->pair;
        b += rows->pair;
        firsts += columns->pair_bytes;
        seconds += columns->pair_bytes;
    }
    for (int m = 0; m < M; m++) {
        for (int n = 0; n < 2; n++) {
            float *at = outs[m] + n * 8;
            __m256 sum = _mm256_add_ps(one[m][n], two[m][n]);
            _mm256_store_ps(at, adds ? _mm256_add_ps(_mm256_load_ps(at), sum) : sum);
        }
    }
}

#endif

#endif
