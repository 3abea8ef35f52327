/*
 * Matrix products with BF16 weights, over panels of sixteen outputs: both columns of a pair are widened and
 * added by an fma each, to the chains of ops.h. A tile is R rows by one panel, or one row by four; what is widened of a
 * row serves both halves of a panel.
 */
#include "kernels/cpu/avx2.h"
#include "kernels/cpu/avx2_math.h"

enum { ROWS_MAX = 4, PANELS_MAX = 4, PAIR_BYTES = FG_PANEL_OUTPUTS * 4 };
enum { CHAIN = FG_CPU_CHAIN_PAIRS };

typedef struct tile {
    const uint8_t *panel; /* the first of P */
    size_t panel_bytes;
    const uint32_t *pairs; /* of the tile's first row */
    size_t stride;         /* from one row's pairs to the next */
    size_t count;          /* of pairs */
} tile;

FG_AVX2_INLINE __m256 first_of(__m256i pair)
{
    return _mm256_castsi256_ps(_mm256_and_si256(pair, _mm256_set1_epi32((int32_t)0xFFFF0000)));
}

FG_AVX2_INLINE __m256 second_of(__m256i pair)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16));
}

FG_AVX2_INLINE __m256 add_pair(__m256 sum, __m256i weights, __m256i pair)
{
    sum = _mm256_fmadd_ps(first_of(weights), first_of(pair), sum);
    return _mm256_fmadd_ps(second_of(weights), second_of(pair), sum);
}

/* The chains of pairs first .. first + count - 1: [panel * R + row][half]. */
FG_AVX2_INLINE void run_chains(int R, int P, const tile *t, size_t first, size_t count,
                               __m256 chains[ROWS_MAX][2])
{
#pragma GCC unroll 4
    for (int i = 0; i < R * P; i++) {
        chains[i][0] = _mm256_setzero_ps();
        chains[i][1] = _mm256_setzero_ps();
    }
    for (size_t j = first; j < first + count; j++) {
#pragma GCC unroll 4
        for (int p = 0; p < P; p++) {
            const uint8_t *at = t->panel + (size_t)p * t->panel_bytes + j * PAIR_BYTES;
            __m256i low = _mm256_loadu_si256((const __m256i *)at);
            __m256i high = _mm256_loadu_si256((const __m256i *)(at + 32));
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                __m256i pair = _mm256_set1_epi32((int32_t)t->pairs[(size_t)r * t->stride + j]);
                chains[p * R + r][0] = add_pair(chains[p * R + r][0], low, pair);
                chains[p * R + r][1] = add_pair(chains[p * R + r][1], high, pair);
            }
        }
    }
}

/* sums[panel * R + row][half] of the tile's rows and panels; like the first chain of a block they wait in memory. */
FG_AVX2_INLINE void run_tile(int R, int P, const tile *t, __m256 sums[ROWS_MAX][2])
{
    __m256 firsts[ROWS_MAX][2];
    __m256 chains[ROWS_MAX][2];
#pragma GCC unroll 4
    for (int i = 0; i < R * P; i++) {
        sums[i][0] = _mm256_setzero_ps();
        sums[i][1] = _mm256_setzero_ps();
    }
    for (size_t j = 0; j < t->count; j += 2 * CHAIN) {
        size_t left = t->count - j;
        size_t count = left < CHAIN ? left : CHAIN;
        run_chains(R, P, t, j, count, firsts);
        __asm__ volatile("" : : "r"(firsts) : "memory");
        left -= count;
        run_chains(R, P, t, j + count, left < CHAIN ? left : CHAIN, chains);
#pragma GCC unroll 4
        for (int i = 0; i < R * P; i++) {
            sums[i][0] = _mm256_add_ps(sums[i][0], _mm256_add_ps(firsts[i][0], chains[i][0]));
            sums[i][1] = _mm256_add_ps(sums[i][1], _mm256_add_ps(firsts[i][1], chains[i][1]));
        }
        __asm__ volatile("" : : "r"(sums) : "memory");
    }
}

static void choose_tile(uint32_t rows, uint32_t panels, const tile *t, __m256 out[ROWS_MAX][2])
{
    switch (panels == PANELS_MAX ? 0 : rows) {
    case 0:
        run_tile(1, PANELS_MAX, t, out);
        break;
    case 1:
        run_tile(1, 1, t, out);
        break;
    case 2:
        run_tile(2, 1, t, out);
        break;
    case 3:
        run_tile(3, 1, t, out);
        break;
    default:
        run_tile(ROWS_MAX, 1, t, out);
        break;
    }
}

void fg_cpu_avx2_linear_bf16(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                             uint32_t first, uint32_t count)
{
    const fg_panels *w = &linear->weight;
    tile t = { .panel_bytes = fg_panel_bytes(w->type, w->columns),
               .stride = fg_pair_stride(w->columns),
               .count = fg_panel_pairs(w->columns) };
    uint32_t panels;
    for (uint32_t panel = first; panel < first + count; panel += panels) {
        panels = rows == 1 && first + count - panel >= PANELS_MAX ? PANELS_MAX : 1;
        t.panel = (const uint8_t *)w->data + panel * t.panel_bytes;
        for (uint32_t row = 0; row < rows; row += ROWS_MAX) {
            uint32_t taken = rows - row < ROWS_MAX ? rows - row : ROWS_MAX;
            __m256 sums[ROWS_MAX][2];
            t.pairs = in->pairs + row * t.stride;
            choose_tile(taken, panels, &t, sums);
            for (uint32_t i = 0; i < taken * panels; i++) {
                fg_cpu_avx2_put_panel(linear, row + i % taken,
                                      (panel + i / taken) * FG_PANEL_OUTPUTS, sums[i]);
            }
        }
    }
}
