/*
 * Matrix products with NEON and weights of floats (F32, F16), over panels of sixteen outputs. A tile
 * is R rows by one panel; the sums stay in registers over all columns.
 */
#include "kernels/cpu/neon.h"

enum { ROWS_MAX = 4, QUARTERS = FG_NEON_PANEL_QUARTERS };

typedef struct tile {
    const uint8_t *panel;
    const float *values; /* of the tile's first row */
    size_t columns;
} tile;

/* Outputs 4 * quarter .. 4 * quarter + 3 of one column. */
FG_NEON_INLINE float32x4_t weights_at(uint32_t type, const uint8_t *column, int quarter)
{
    if (type == FG_F32) {
        return vreinterpretq_f32_u8(vld1q_u8(column + 16 * quarter));
    }
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(column + 8 * quarter)));
}

FG_NEON_INLINE void run_tile(uint32_t type, int R, const tile *t, float32x4_t out[][QUARTERS])
{
    size_t column_bytes = FG_PANEL_OUTPUTS * (size_t)(type == FG_F32 ? 4 : 2);
    float32x4_t sums[ROWS_MAX][QUARTERS];
#pragma GCC unroll 16
    for (int i = 0; i < R * QUARTERS; i++) {
        sums[i / QUARTERS][i % QUARTERS] = vdupq_n_f32(0.0f);
    }
    for (size_t k = 0; k < t->columns; k++) {
        const uint8_t *column = t->panel + k * column_bytes;
#pragma GCC unroll 16
        for (int i = 0; i < R * QUARTERS; i++) {
            float32x4_t w = weights_at(type, column, i % QUARTERS);
            float x = t->values[(size_t)(i / QUARTERS) * t->columns + k];
            float32x4_t *sum = &sums[i / QUARTERS][i % QUARTERS];
            *sum = vfmaq_f32(*sum, w, vdupq_n_f32(x));
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < R * QUARTERS; i++) {
        out[i / QUARTERS][i % QUARTERS] = sums[i / QUARTERS][i % QUARTERS];
    }
}

#define DEFINE_TILE(name, type)                                                                    \
    static void name##_tile(uint32_t rows, const tile *t, float32x4_t out[][QUARTERS])             \
    {                                                                                              \
        switch (rows) {                                                                            \
        case 1:                                                                                    \
            run_tile(type, 1, t, out);                                                             \
            break;                                                                                 \
        case 2:                                                                                    \
            run_tile(type, 2, t, out);                                                             \
            break;                                                                                 \
        case 3:                                                                                    \
            run_tile(type, 3, t, out);                                                             \
            break;                                                                                 \
        default:                                                                                   \
            run_tile(type, ROWS_MAX, t, out);                                                      \
            break;                                                                                 \
        }                                                                                          \
    }

DEFINE_TILE(f32, FG_F32)
DEFINE_TILE(f16, FG_F16)

void fg_cpu_neon_linear_float(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                              uint32_t first, uint32_t count)
{
    const fg_panels *w = &linear->weight;
    size_t panel_bytes = fg_panel_bytes(w->type, w->columns);
    tile t = { .columns = w->columns };
    for (uint32_t panel = first; panel < first + count; panel++) {
        t.panel = (const uint8_t *)w->data + panel * panel_bytes;
        for (uint32_t row = 0; row < rows; row += ROWS_MAX) {
            uint32_t taken = rows - row < ROWS_MAX ? rows - row : ROWS_MAX;
            float32x4_t sums[ROWS_MAX][QUARTERS];
            t.values = in->values + row * t.columns;
            if (w->type == FG_F32) {
                f32_tile(taken, &t, sums);
            } else {
                f16_tile(taken, &t, sums);
            }
            for (uint32_t i = 0; i < taken; i++) {
                fg_neon_put_panel(linear, row + i, panel * FG_PANEL_OUTPUTS, sums[i]);
            }
        }
    }
}
