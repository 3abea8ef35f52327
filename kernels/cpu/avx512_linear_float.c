/*
 * Matrix products with AVX-512 and weights of floats (F32, F16), over panels of sixteen outputs. A
 * tile is R rows by P panels; the sums stay in registers over all columns. Small tiles take several
 * panels at a time, because few chains of sums would wait for themselves.
 */
#include "kernels/cpu/avx512.h"

enum { ROWS_MAX = 8, PANELS_MAX = 4 };
/* Bytes that a tile of F16 asks for ahead of its walk, into the second-level cache: what arrives meanwhile from
 * memory. One row, and F32, are what the processor foresees better by itself. */
enum { AHEAD = 4096 };

typedef struct tile {
    const uint8_t *panel; /* the first of P */
    size_t panel_bytes;
    const float *values; /* of the tile's first row */
    size_t columns;
} tile;

FG_AVX512_INLINE __m512 weights_at(uint32_t type, const uint8_t *column)
{
    if (type == FG_F32) {
        return _mm512_loadu_ps(column);
    }
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)column));
}

/* out[p * R + r]: sums of row r and panel p. */
FG_AVX512_INLINE void run_tile(uint32_t type, int R, int P, const tile *t, __m512 out[2 * ROWS_MAX])
{
    size_t column_bytes = FG_PANEL_OUTPUTS * (size_t)(type == FG_F32 ? 4 : 2);
    __m512 sums[2 * ROWS_MAX];
#pragma GCC unroll 16
    for (int i = 0; i < R * P; i++) {
        sums[i] = _mm512_setzero_ps();
    }
    for (size_t k = 0; k < t->columns; k++) {
        __m512 w[PANELS_MAX];
#pragma GCC unroll 4
        for (int p = 0; p < P; p++) {
            const uint8_t *column = t->panel + (size_t)p * t->panel_bytes + k * column_bytes;
            w[p] = weights_at(type, column);
            if (type == FG_F16 && R > 1) {
                _mm_prefetch((const char *)column + AHEAD, _MM_HINT_T1);
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            __m512 x = _mm512_set1_ps(t->values[(size_t)r * t->columns + k]);
#pragma GCC unroll 4
            for (int p = 0; p < P; p++) {
                sums[p * R + r] = _mm512_fmadd_ps(w[p], x, sums[p * R + r]);
            }
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < R * P; i++) {
        out[i] = sums[i];
    }
}

/* Panels of a tile of so many rows, when so many are left: 4 of one row, 2 of more. */
static uint32_t tile_panels(uint32_t rows, uint32_t left)
{
    uint32_t want = rows == 1 ? PANELS_MAX : 2;
    return left >= want ? want : 1;
}

#define RUN(R, P)                                                                                  \
    case (R)*8 + (P):                                                                              \
        run_tile(type, R, P, t, out);                                                              \
        break;

FG_AVX512_INLINE void choose_tile(uint32_t type, uint32_t rows, uint32_t panels, const tile *t,
                                  __m512 out[2 * ROWS_MAX])
{
    switch (rows * 8 + panels) {
        RUN(1, 1)
        RUN(1, 2)
        RUN(1, PANELS_MAX)
        RUN(2, 1)
        RUN(2, 2)
        RUN(3, 1)
        RUN(3, 2)
        RUN(4, 1)
        RUN(4, 2)
        RUN(5, 1)
        RUN(5, 2)
        RUN(6, 1)
        RUN(6, 2)
        RUN(7, 1)
        RUN(7, 2)
        RUN(ROWS_MAX, 1)
        RUN(ROWS_MAX, 2)
    default:
        break;
    }
}

#define DEFINE_TILE(name, type)                                                                    \
    static void name##_tile(uint32_t rows, uint32_t panels, const tile *t,                         \
                            __m512 out[2 * ROWS_MAX])                                              \
    {                                                                                              \
        choose_tile(type, rows, panels, t, out);                                                   \
    }

DEFINE_TILE(f32, FG_F32)
DEFINE_TILE(f16, FG_F16)

static void any_tile(uint32_t type, uint32_t rows, uint32_t panels, const tile *t,
                     __m512 out[2 * ROWS_MAX])
{
    if (type == FG_F32) {
        f32_tile(rows, panels, t, out);
    } else {
        f16_tile(rows, panels, t, out);
    }
}

void fg_cpu_avx512_linear_float(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                                uint32_t first, uint32_t count)
{
    const fg_panels *w = &linear->weight;
    tile t = { .panel_bytes = fg_panel_bytes(w->type, w->columns), .columns = w->columns };
    uint32_t panels;
    for (uint32_t panel = first; panel < first + count; panel += panels) {
        panels = tile_panels(rows, first + count - panel);
        t.panel = (const uint8_t *)w->data + panel * t.panel_bytes;
        for (uint32_t row = 0; row < rows; row += ROWS_MAX) {
            uint32_t taken = rows - row < ROWS_MAX ? rows - row : ROWS_MAX;
            __m512 sums[2 * ROWS_MAX];
            t.values = in->values + row * t.columns;
            any_tile(w->type, taken, panels, &t, sums);
            for (uint32_t i = 0; i < taken * panels; i++) {
                fg_avx512_put_panel(linear, row + i % taken, (panel + i / taken) * FG_PANEL_OUTPUTS,
                                    sums[i]);
            }
        }
    }
}
