/*
 * Matrix products with NEON and BF16 weights, over panels of sixteen outputs: both columns of a pair are
 * widened and added by an fma each, to the chains of ops.h. A tile is R rows by one panel.
 *
 * ARM's own bf16 instructions are not used: bfdot rounds otherwise, and not every processor has them.
 */
#include "kernels/cpu/neon.h"

enum { ROWS_MAX = 4, QUARTERS = FG_NEON_PANEL_QUARTERS, PAIR_BYTES = FG_PANEL_OUTPUTS * 4 };
enum { CHAIN = FG_CPU_CHAIN_PAIRS };

typedef struct tile {
    const uint8_t *panel;
    const uint32_t *pairs; /* of the tile's first row */
    size_t stride;         /* from one row's pairs to the next */
    size_t count;          /* of pairs */
} tile;

FG_NEON_INLINE float32x4_t first_of(uint32x4_t pair)
{
    return vreinterpretq_f32_u32(vandq_u32(pair, vdupq_n_u32(0xFFFF0000)));
}

FG_NEON_INLINE float32x4_t second_of(uint32x4_t pair)
{
    return vreinterpretq_f32_u32(vshlq_n_u32(pair, 16));
}

/* The chains of pairs first .. first + count - 1. */
FG_NEON_INLINE void run_chains(int R, const tile *t, size_t first, size_t count,
                               float32x4_t chains[ROWS_MAX][QUARTERS])
{
#pragma GCC unroll 16
    for (int i = 0; i < R * QUARTERS; i++) {
        chains[i / QUARTERS][i % QUARTERS] = vdupq_n_f32(0.0f);
    }
    for (size_t j = first; j < first + count; j++) {
        const uint8_t *at = t->panel + j * PAIR_BYTES;
#pragma GCC unroll 16
        for (int i = 0; i < R * QUARTERS; i++) {
            uint32x4_t w = vreinterpretq_u32_u8(vld1q_u8(at + (size_t)(i % QUARTERS) * 16));
            uint32x4_t x = vdupq_n_u32(t->pairs[(size_t)(i / QUARTERS) * t->stride + j]);
            float32x4_t *chain = &chains[i / QUARTERS][i % QUARTERS];
            *chain = vfmaq_f32(*chain, first_of(w), first_of(x));
            *chain = vfmaq_f32(*chain, second_of(w), second_of(x));
        }
    }
}

FG_NEON_INLINE void run_tile(int R, const tile *t, float32x4_t out[][QUARTERS])
{
    float32x4_t firsts[ROWS_MAX][QUARTERS];
    float32x4_t chains[ROWS_MAX][QUARTERS];
#pragma GCC unroll 16
    for (int i = 0; i < R * QUARTERS; i++) {
        out[i / QUARTERS][i % QUARTERS] = vdupq_n_f32(0.0f);
    }
    for (size_t j = 0; j < t->count; j += 2 * CHAIN) {
        size_t left = t->count - j;
        size_t count = left < CHAIN ? left : CHAIN;
        run_chains(R, t, j, count, firsts);
        left -= count;
        run_chains(R, t, j + count, left < CHAIN ? left : CHAIN, chains);
#pragma GCC unroll 16
        for (int i = 0; i < R * QUARTERS; i++) {
            float32x4_t *sum = &out[i / QUARTERS][i % QUARTERS];
            *sum = vaddq_f32(*sum, vaddq_f32(firsts[i / QUARTERS][i % QUARTERS],
                                             chains[i / QUARTERS][i % QUARTERS]));
        }
    }
}

static void choose_tile(uint32_t rows, const tile *t, float32x4_t out[][QUARTERS])
{
    switch (rows) {
    case 1:
        run_tile(1, t, out);
        break;
    case 2:
        run_tile(2, t, out);
        break;
    case 3:
        run_tile(3, t, out);
        break;
    default:
        run_tile(ROWS_MAX, t, out);
        break;
    }
}

void fg_cpu_neon_linear_bf16(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                             uint32_t first, uint32_t count)
{
    const fg_panels *w = &linear->weight;
    size_t panel_bytes = fg_panel_bytes(w->type, w->columns);
    tile t = { .stride = fg_pair_stride(w->columns), .count = fg_panel_pairs(w->columns) };
    for (uint32_t panel = first; panel < first + count; panel++) {
        t.panel = (const uint8_t *)w->data + panel * panel_bytes;
        for (uint32_t row = 0; row < rows; row += ROWS_MAX) {
            uint32_t taken = rows - row < ROWS_MAX ? rows - row : ROWS_MAX;
            float32x4_t sums[ROWS_MAX][QUARTERS];
            t.pairs = in->pairs + row * t.stride;
            choose_tile(taken, &t, sums);
            for (uint32_t i = 0; i < taken; i++) {
                fg_neon_put_panel(linear, row + i, panel * FG_PANEL_OUTPUTS, sums[i]);
            }
        }
    }
}
