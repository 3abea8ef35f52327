/*
 * Matrix products with weights of floats (F32, F16), over panels of sixteen outputs. A tile is R
 * rows by P panels; the sums stay in registers over all columns. One row takes four panels at a time,
 * because a single chain of sums would wait for itself.
 */
#include "kernels/cpu/avx2.h"
#include "kernels/cpu/avx2_math.h"

enum { ROWS_MAX = 6, PANELS_MAX = 4 };

typedef struct tile {
    const uint8_t *panel; /* the first of P */
    size_t panel_bytes;
    const float *values; /* of the tile's first row */
    size_t columns;
} tile;

/* Outputs 8 * half .. 8 * half + 7 of one column. */
FG_AVX2_INLINE __m256 weights_at(uint32_t type, const uint8_t *column, int half)
{
    if (type == FG_F32) {
        return _mm256_loadu_ps((const float *)(const void *)(column + 32 * half));
    }
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(column + 16 * half)));
}

/* sums[panel][row][half] of the tile's rows and panels. */
FG_AVX2_INLINE void run_tile(uint32_t type, int R, int P, const tile *t,
                             __m256 out[PANELS_MAX][ROWS_MAX][2])
{
    size_t column_bytes = FG_PANEL_OUTPUTS * (size_t)(type == FG_F32 ? 4 : 2);
    __m256 sums[PANELS_MAX][ROWS_MAX][2];
#pragma GCC unroll 8
    for (int i = 0; i < R * P; i++) {
        sums[i / R][i % R][0] = _mm256_setzero_ps();
        sums[i / R][i % R][1] = _mm256_setzero_ps();
    }
    for (size_t k = 0; k < t->columns; k++) {
#pragma GCC unroll 8
        for (int p = 0; p < P; p++) {
            const uint8_t *column = t->panel + (size_t)p * t->panel_bytes + k * column_bytes;
            __m256 low = weights_at(type, column, 0);
            __m256 high = weights_at(type, column, 1);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) {
                __m256 x = _mm256_set1_ps(t->values[(size_t)r * t->columns + k]);
                sums[p][r][0] = _mm256_fmadd_ps(low, x, sums[p][r][0]);
                sums[p][r][1] = _mm256_fmadd_ps(high, x, sums[p][r][1]);
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < R * P; i++) {
        out[i / R][i % R][0] = sums[i / R][i % R][0];
        out[i / R][i % R][1] = sums[i / R][i % R][1];
    }
}

/* A tile of at most ROWS_MAX rows and one panel, or one row and PANELS_MAX panels. */
FG_AVX2_INLINE void choose_tile(uint32_t type, uint32_t rows, uint32_t panels, const tile *t,
                                __m256 out[PANELS_MAX][ROWS_MAX][2])
{
    switch (panels == PANELS_MAX ? 0 : rows) {
    case 0:
        run_tile(type, 1, PANELS_MAX, t, out);
        break;
    case 1:
        run_tile(type, 1, 1, t, out);
        break;
    case 2:
        run_tile(type, 2, 1, t, out);
        break;
    case 3:
        run_tile(type, 3, 1, t, out);
        break;
    case 4:
        run_tile(type, 4, 1, t, out);
        break;
    case 5:
        run_tile(type, 5, 1, t, out);
        break;
    default:
        run_tile(type, ROWS_MAX, 1, t, out);
        break;
    }
}

#define DEFINE_TILE(name, type)                                                                    \
    static void name##_tile(uint32_t rows, uint32_t panels, const tile *t,                         \
                            __m256 out[PANELS_MAX][ROWS_MAX][2])                                   \
    {                                                                                              \
        choose_tile(type, rows, panels, t, out);                                                   \
    }

DEFINE_TILE(f32, FG_F32)
DEFINE_TILE(f16, FG_F16)

static void any_tile(uint32_t type, uint32_t rows, uint32_t panels, const tile *t,
                     __m256 out[PANELS_MAX][ROWS_MAX][2])
{
    if (type == FG_F32) {
        f32_tile(rows, panels, t, out);
    } else {
        f16_tile(rows, panels, t, out);
    }
}

void fg_cpu_avx2_linear_float(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                              uint32_t first, uint32_t count)
{
    const fg_panels *w = &linear->weight;
    tile t = { .panel_bytes = fg_panel_bytes(w->type, w->columns), .columns = w->columns };
    uint32_t panels;
    for (uint32_t panel = first; panel < first + count; panel += panels) {
        panels = rows == 1 && first + count - panel >= PANELS_MAX ? PANELS_MAX : 1;
        t.panel = (const uint8_t *)w->data + panel * t.panel_bytes;
        for (uint32_t row = 0; row < rows; row += ROWS_MAX) {
            uint32_t taken = rows - row < ROWS_MAX ? rows - row : ROWS_MAX;
            __m256 sums[PANELS_MAX][ROWS_MAX][2];
            t.values = in->values + row * t.columns;
            any_tile(w->type, taken, panels, &t, sums);
            for (uint32_t i = 0; i < taken * panels; i++) {
                fg_cpu_avx2_put_panel(linear, row + i % taken,
                                      (panel + i / taken) * FG_PANEL_OUTPUTS,
                                      sums[i / taken][i % taken]);
            }
        }
    }
}
