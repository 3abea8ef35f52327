/*
 * Matrix products with AVX-512 and VNNI of many rows with Q4_K, Q5_K or Q6_K weights, over panels of sixteen outputs
 * (kernels/panel.h). What ops.h says of super-groups, bit for bit as avx512_linear.c does it for few rows.
 *
 * Beside the products of weights made ready (avx512_ready.h) there is nothing left that takes a product's place but the
 * multiplication with a group's scale.
 */
#include "kernels/cpu/avx512_ready.h"

/* Fewer rows are quicker with codes that each tile unpacks, which is dearest where they have six bits. */
enum { LEAST_ROWS = 24, LEAST_ROWS_SIX = 16 };
enum { GROUPS = FG_QUANT_SUPER_GROUPS, HALVES = 2, OFFSET_BITS = 5 };
enum { TILE_THIRDS = TILE_ROWS / 3, SLICE_SUPERS = SLICE_USUAL / GROUPS };

/* A super-group of two panels. Of Q4_K and Q5_K, scales and begins are of whole groups. */
typedef struct ready_super {
    __m512i codes[GROUPS][VECTORS][TILE_PANELS];
    __m512i scales[GROUPS][HALVES][TILE_PANELS];
    __m512i minima[GROUPS / 2][TILE_PANELS]; /* of two groups: 16 bits for each output */
    __m512 d[TILE_PANELS];
    __m512 minimum[TILE_PANELS]; /* what minima are multiplied with */
} ready_super;

struct ready {
    ready_super supers[SLICE_SUPERS];
};

/* What a tile's rows have of a super-group, next to each other: one register finds all of it. */
typedef struct row_parts {
    int32_t shifts[TILE_ROWS][GROUPS];
    int32_t begins[TILE_ROWS][GROUPS][HALVES]; /* of Q6_K, whose codes are 32 too large */
} row_parts;

static void make_panel(uint32_t type, const uint8_t *scales, uint32_t i, ready_super *out)
{
    const fg_panel_shape shape = fg_panel_shape_of(type, 256);
    const uint8_t *codes = scales + shape.scale_bytes;
    out->d[i] = halves(scales);
    for (size_t g = 0; g < GROUPS; g++, codes += shape.group_bytes) {
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; j++) {
            out->codes[g][j][i] = unpack(type, codes, j);
        }
        out->scales[g][0][i] = integer_scale(type, scales, g, false);
        if (type == FG_Q6_K) {
            out->scales[g][1][i] = integer_scale(type, scales, g, true);
        }
    }
    if (fg_cpu_has_minimum(type)) {
        out->minimum[i] = super_minimum(scales);
        for (size_t g = 0; g < GROUPS; g += 2) {
            out->minima[g / 2][i] = minima_of_two(scales, g);
        }
    }
}

#define MAKE_CASE(name, type)                                                                      \
    case type:                                                                                     \
        make_panel(type, scales, i, &out->supers[super]);                                          \
        break;

static void make_ready(uint32_t type, const uint8_t *scales, size_t groups, uint32_t i, ready *out)
{
    size_t unit_bytes = fg_panel_shape_of(type, FG_QUANT_SUPER).unit_bytes;
    for (size_t super = 0; super < groups / GROUPS; super++, scales += unit_bytes) {
        switch (type) {
            FG_CPU_EACH_SUPER(MAKE_CASE)
        default:
            break;
        }
    }
}

FG_AVX512_INLINE void bring_rows(bool six, int R, const tile *t, size_t super, row_parts *out)
{
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
        const fg_quant_super *row = super_of(t, super, r);
        __m256i shifts = _mm256_loadu_si256((const __m256i *)(const void *)row->shifts);
        _mm256_storeu_si256((__m256i *)(void *)out->shifts[r], shifts);
        for (int i = 0; six && i < 2; i++) { /* four groups at a time */
            const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
            __m256i places = _mm256_add_epi32(twice, _mm256_set1_epi32(4 * i));
            __m256i by = _mm256_permutevar8x32_epi32(shifts, places);
            __m256i sums = _mm256_cvtepi16_epi32(
                _mm_loadu_si128((const __m128i *)(const void *)row->halves[4 * i]));
            sums = _mm256_slli_epi32(_mm256_srav_epi32(sums, by), OFFSET_BITS);
            _mm256_storeu_si256((__m256i *)(void *)out->begins[r][4 * i],
                                _mm256_sub_epi32(_mm256_setzero_si256(), sums));
        }
    }
}

/* Vectors first .. end - 1 of a group, times their integer scale, which the rows' shifts go into. */
FG_AVX512_INLINE void add_columns(bool six, int R, const ready_super *w, const row_parts *rows,
                                  size_t g, const int8_t *const thirds[TILE_THIRDS],
                                  size_t row_bytes, int first, int end, int_sums totals)
{
    int half = first != 0;
    int_sums sums;
    __asm__ volatile("" : : : "memory"); /* gcc would begin sums before there is room for them */
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
        __m512i begin = six ? broadcast4(&rows->begins[r][g][half]) : _mm512_setzero_si512();
        sums[r][0] = begin;
        sums[r][1] = begin;
    }
#pragma GCC unroll 8
    for (int j = first; j < end; j++) {
        __m512i codes[TILE_PANELS] = { w->codes[g][j][0], w->codes[g][j][1] };
#pragma GCC unroll 6
        for (int r = 0; r < R; r++) {
            __m512i columns = broadcast_row(thirds[r / 3], row_bytes, r % 3, 4 * j);
#pragma GCC unroll 2
            for (int i = 0; i < TILE_PANELS; i++) {
                sums[r][i] = _mm512_dpbusd_epi32(sums[r][i], codes[i], columns);
            }
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
        __m512i shift = broadcast4(&rows->shifts[r][g]);
        FG_AVX512_HOLD(shift);
#pragma GCC unroll 2
        for (int i = 0; i < TILE_PANELS; i++) {
            __m512i scale = _mm512_sllv_epi32(w->scales[g][half][i], shift);
            totals[r][i] = _mm512_add_epi32(totals[r][i], _mm512_mullo_epi32(sums[r][i], scale));
            FG_AVX512_HOLD(totals[r][i]);
        }
    }
}

/* Integers become floats: first what minima come to, then the rest. */
FG_AVX512_INLINE void end_super(bool six, int R, const tile *t, size_t super, int_sums sums,
                                float_sums totals)
{
    const ready_super *w = &t->weights->supers[super];
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
        const fg_quant_super *row = super_of(t, super, r);
        __m512 scale = _mm512_set1_ps(row->scale);
        __m512i minima[TILE_PANELS];
        if (!six) {
            multiply_sums(row, w->minima, minima);
        }
#pragma GCC unroll 2
        for (int i = 0; i < TILE_PANELS; i++) {
            __m512 total = totals[r][i];
            if (!six) {
                total = _mm512_fmadd_ps(_mm512_mul_ps(w->minimum[i], scale),
                                        _mm512_cvtepi32_ps(minima[i]), total);
            }
            totals[r][i] = _mm512_fmadd_ps(_mm512_mul_ps(w->d[i], scale),
                                           _mm512_cvtepi32_ps(sums[r][i]), total);
        }
    }
}

/* R rows. `six`: codes have six bits, halves of groups scales of their own, and there are no minima. */
FG_AVX512_INLINE void run_tile(bool six, int R, const tile *t, float_sums totals)
{
    const int8_t *thirds[TILE_THIRDS];
    const uint8_t *ask = t->ask;
#pragma GCC unroll 2
    for (int i = 0; i < (R + 2) / 3; i++) {
        thirds[i] = t->quants + (size_t)i * 6 * t->row_bytes;
    }
    for (size_t super = 0; super < t->groups / GROUPS; super++) {
        row_parts rows;
        int_sums sums;
        ask = ask_lines(t, ask);
        bring_rows(six, R, t, super, &rows);
#pragma GCC unroll 6
        for (int r = 0; r < R; r++) {
            sums[r][0] = _mm512_setzero_si512();
            sums[r][1] = _mm512_setzero_si512();
        }
#pragma GCC unroll 1
        for (size_t g = 0; g < GROUPS; g++) {
            const ready_super *w = &t->weights->supers[super];
            if (six) {
                add_columns(six, R, w, &rows, g, thirds, t->row_bytes, 0, VECTORS / 2, sums);
                add_columns(six, R, w, &rows, g, thirds, t->row_bytes, VECTORS / 2, VECTORS, sums);
            } else {
                add_columns(six, R, w, &rows, g, thirds, t->row_bytes, 0, VECTORS, sums);
            }
#pragma GCC unroll 2
            for (int i = 0; i < (R + 2) / 3; i++) {
                thirds[i] += FG_QUANT_GROUP;
                __asm__("" : "+r"(thirds[i])); /* else they become one pointer again */
            }
        }
        end_super(six, R, t, super, sums, totals);
    }
}

#define DEFINE_TILE(six, R)                                                                        \
    static __attribute__((noinline)) void tile_##six##_##R(const tile *t, float_sums totals)       \
    {                                                                                              \
        run_tile(six, R, t, totals);                                                               \
    }
#define EACH_TILE(X, six) X(six, 1) X(six, 2) X(six, 3) X(six, 4) X(six, 5) X(six, 6)
EACH_TILE(DEFINE_TILE, 0)
EACH_TILE(DEFINE_TILE, 1)

#define TILE_ENTRY(six, R) tile_##six##_##R,
static void (*const tiles[2][TILE_ROWS])(const tile *t,
                                         float_sums totals) = { { EACH_TILE(TILE_ENTRY, 0) },
                                                                { EACH_TILE(TILE_ENTRY, 1) } };

static void run_rows(uint32_t type, uint32_t rows, const tile *t, float_sums totals)
{
    tiles[type == FG_Q6_K][rows - 1](t, totals);
}

bool fg_cpu_avx512_makes_ready(uint32_t type, uint32_t rows)
{
    return fg_cpu_is_super(type) && rows >= (type == FG_Q6_K ? LEAST_ROWS_SIX : LEAST_ROWS);
}

void fg_cpu_avx512_linear_super(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                                uint32_t first, uint32_t count)
{
    ready weights;
    multiply_ready(linear, in, rows, first, count, &weights);
}
