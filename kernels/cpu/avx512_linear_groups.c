/*
 * Matrix products with AVX-512 and VNNI of many rows with weights whose groups have float scales (Q4_0 to Q5_1), over panels
 * of sixteen outputs (kernels/panel.h), where everything takes a product's place (fg_avx512_shares_pipes). What ops.h says,
 * bit for bit as avx512_linear.c does it elsewhere and for few rows.
 *
 * Beside a group's eight products of a row and a panel three instructions are left: its sum becomes a float, both scales
 * are multiplied, and their product with the sum is added. Sums begin with what codes are too large by, and a row's columns
 * are the products' memory operands, for which nothing waits but a load.
 */
#include "kernels/cpu/avx512_ready.h"

/* Fewer rows are quicker with codes that each tile unpacks, which is dearest where they have five bits. */
enum { LEAST_ROWS = 32, LEAST_ROWS_FIVE = 16 };

/* A group of two panels. */
typedef struct ready_group {
    __m512i codes[VECTORS][TILE_PANELS];
    factors f[TILE_PANELS];
} ready_group;

struct ready {
    ready_group groups[SLICE_GROUPS];
};

/* What a tile's rows have of a slice's groups, next to each other: one register finds all of it. Each `negated` is times
 * what codes are too large by. */
typedef struct row_parts {
    fg_quant_group of[TILE_ROWS][SLICE_GROUPS];
} row_parts;

static void make_panel(uint32_t type, const uint8_t *scales, size_t groups, uint32_t i, ready *out)
{
    const fg_panel_shape shape = fg_panel_shape_of(type, 256);
    for (size_t g = 0; g < groups; g++) {
        const uint8_t *unit = scales + fg_panel_unit_offset(&shape, g);
        const uint8_t *codes = scales + fg_panel_codes_offset(&shape, g);
        ready_group *group = &out->groups[g];
        group->f[i] = scales_of(type, unit, g % shape.unit_groups);
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; j++) {
            group->codes[j][i] = unpack(type, codes, j);
        }
    }
}

#define MAKE_CASE(name, type)                                                                      \
    case type:                                                                                     \
        make_panel(type, scales, groups, i, out);                                                  \
        break;

static void make_ready(uint32_t type, const uint8_t *scales, size_t groups, uint32_t i, ready *out)
{
    switch (type) {
        FG_CPU_EACH_GROUPED(MAKE_CASE)
    default:
        break;
    }
}

/* Groups that fill a vector. */
enum { TOGETHER_GROUPS = VECTOR / sizeof(fg_quant_group) };

/* `bits`: codes are too large by so many. */
FG_AVX512_INLINE void bring_groups(unsigned bits, __m512i known, fg_quant_group *out)
{
    _Static_assert(offsetof(fg_quant_group, negated) == 12, "the last of four words");
    __m512i last = _mm512_set_epi32((int)bits, 0, 0, 0, (int)bits, 0, 0, 0, (int)bits, 0, 0, 0,
                                    (int)bits, 0, 0, 0);
    _mm512_storeu_si512(out, _mm512_sllv_epi32(known, last));
}

FG_AVX512_INLINE void bring_rows(unsigned bits, int R, const tile *t, row_parts *out)
{
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
        const char *row = t->known + (size_t)r * t->row_bytes;
        if (t->groups == SLICE_USUAL) {
#pragma GCC unroll 4
            for (size_t g = 0; g < SLICE_USUAL; g += TOGETHER_GROUPS) {
                bring_groups(bits, load64(row + g * sizeof(fg_quant_group)), &out->of[r][g]);
            }
            continue;
        }
        for (size_t g = 0; g < t->groups; g += TOGETHER_GROUPS) {
            size_t left = t->groups - g;
            __mmask16 there = left < TOGETHER_GROUPS ? (__mmask16)((1u << 4 * left) - 1) : 0xFFFF;
            const char *at = row + g * sizeof(fg_quant_group);
            __m512i known =
                _mm512_castps_si512(_mm512_maskz_loadu_ps(there, (const float *)(const void *)at));
            bring_groups(bits, known, &out->of[r][g]);
        }
    }
}

FG_AVX512_INLINE void add_group(bool minimum, int R, const ready_group *w, const row_parts *parts,
                                size_t g, const int8_t *const rows[TILE_ROWS], float_sums totals)
{
    int_sums sums;
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
        sums[r][0] = minimum ? _mm512_setzero_si512() : broadcast4(&parts->of[r][g].negated);
        sums[r][1] = sums[r][0];
    }
    add_products(R, w->codes, rows, sums);
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 2
        for (int i = 0; i < TILE_PANELS; i++) {
            if (minimum) {
                totals[r][i] = _mm512_fmadd_ps(
                    w->f[i].minimum, _mm512_set1_ps(parts->of[r][g].offset), totals[r][i]);
            }
            __m512 scale = _mm512_mul_ps(w->f[i].d, _mm512_set1_ps(parts->of[r][g].scale));
            totals[r][i] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(sums[r][i]), totals[r][i]);
            FG_AVX512_HOLD(totals[r][i]);
        }
    }
}

/* R rows; `minimum`: of types that have one. */
FG_AVX512_INLINE void run_tile(bool minimum, int R, unsigned bits, const tile *t,
                               float_sums totals_io)
{
    row_parts parts;
    const int8_t *rows[TILE_ROWS];
    const uint8_t *ask = t->ask;
    float_sums totals;
    bring_rows(bits, R, t, &parts);
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
        rows[r] = t->quants + (size_t)r * 2 * t->row_bytes;
        FG_AVX512_HOLD_POINTER(rows[r]);
        totals[r][0] = t->begins ? _mm512_setzero_ps() : totals_io[r][0];
        totals[r][1] = t->begins ? _mm512_setzero_ps() : totals_io[r][1];
    }
    for (size_t g = 0; g < t->groups; g++) {
        if (g % ASK_GROUPS == 0) {
            ask = ask_lines(t, ask);
        }
        add_group(minimum, R, &t->weights->groups[g], &parts, g, rows, totals);
#pragma GCC unroll 6
        for (int r = 0; r < R; r++) {
            rows[r] += FG_QUANT_GROUP;
            FG_AVX512_HOLD_POINTER(rows[r]); /* else they become one pointer again */
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
        totals_io[r][0] = totals[r][0];
        totals_io[r][1] = totals[r][1];
    }
}

#define DEFINE_TILE(minimum, R)                                                                    \
    static __attribute__((noinline)) void tile_##minimum##_##R(unsigned bits, const tile *t,       \
                                                               float_sums totals)                  \
    {                                                                                              \
        run_tile(minimum, R, bits, t, totals);                                                     \
    }
#define EACH_TILE(X, minimum)                                                                      \
    X(minimum, 1) X(minimum, 2) X(minimum, 3) X(minimum, 4) X(minimum, 5) X(minimum, 6)
EACH_TILE(DEFINE_TILE, 0)
EACH_TILE(DEFINE_TILE, 1)

#define TILE_ENTRY(minimum, R) tile_##minimum##_##R,
static void (*const tiles[2][TILE_ROWS])(unsigned bits, const tile *t,
                                         float_sums totals) = { { EACH_TILE(TILE_ENTRY, 0) },
                                                                { EACH_TILE(TILE_ENTRY, 1) } };

static void run_rows(uint32_t type, uint32_t rows, const tile *t, float_sums totals)
{
    tiles[fg_cpu_has_minimum(type)][rows - 1](offset_bits(type), t, totals);
}

/* Of Q8_0 there is little to make ready: no quicker. */
bool fg_cpu_avx512_makes_groups_ready(uint32_t type, uint32_t rows)
{
    bool five = type == FG_Q5_0 || type == FG_Q5_1;
    return !fg_cpu_is_super(type) && type != FG_Q8_0 && fg_avx512_shares_pipes() &&
           rows >= (five ? LEAST_ROWS_FIVE : LEAST_ROWS);
}

void fg_cpu_avx512_linear_groups(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                                 uint32_t first, uint32_t count)
{
    ready weights;
    multiply_ready(linear, in, rows, first, count, &weights);
}
