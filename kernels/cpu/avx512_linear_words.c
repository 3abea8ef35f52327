/*
 * Matrix products with AVX-512 and VNNI of many rows with Q4_K weights, over panels of sixteen outputs (kernels/panel.h),
 * where everything takes a product's place (fg_avx512_shares_pipes). What ops.h says of super-groups, bit for bit as
 * avx512_linear_super.c does it elsewhere.
 *
 * A multiplication of 32 bits takes the place of two products, its addition and the shift of a scale that of two more. But
 * where sums begin with what centres codes about 0, a group's is less than 2^15: it is multiplied with its scale, and
 * added, as 16 bits by one vpdpwssd. Scales are made ready with every shift. What the centre takes away too much is
 * products of scales with sums of quants, two groups at once, as minima are. (Of five bits half a group, and of six a
 * quarter, is less than 2^15: no quicker.)
 */
#include "kernels/cpu/avx512_ready.h"

/* Fewer rows are quicker with codes that each tile unpacks. */
enum { LEAST_ROWS = 24 };
enum { GROUPS = FG_QUANT_SUPER_GROUPS, SHIFTS = FG_QUANT_SHIFT_MAX + 1 };
enum { SLICE_SUPERS = SLICE_USUAL / GROUPS };
enum { CENTRE_BITS = 3 };

/* A super-group of two panels. */
typedef struct ready_super {
    __m512i codes[GROUPS][VECTORS][TILE_PANELS];
    __m512i scales[GROUPS][SHIFTS][TILE_PANELS]; /* shifted so far; the upper 16 bits are 0 */
    /* Of two groups, 16 bits for each output: scales times the centre, and minima. */
    __m512i centres[GROUPS / 2][TILE_PANELS];
    __m512i minima[GROUPS / 2][TILE_PANELS];
    __m512 d[TILE_PANELS];
    __m512 minimum[TILE_PANELS]; /* what minima are multiplied with */
} ready_super;

struct ready {
    ready_super supers[SLICE_SUPERS];
};

/* What a tile's rows have of a super-group, next to each other: one register finds all of it. */
typedef struct row_parts {
    uint32_t scales_at[TILE_ROWS][GROUPS]; /* bytes from a group's scales to those of its shift */
    int32_t begins[TILE_ROWS][GROUPS];
} row_parts;

static void make_panel(const uint8_t *scales, uint32_t i, ready_super *out)
{
    const fg_panel_shape shape = fg_panel_shape_of(FG_Q4_K, FG_QUANT_SUPER);
    const uint8_t *codes = scales + shape.scale_bytes;
    out->d[i] = halves(scales);
    out->minimum[i] = super_minimum(scales);
    for (size_t g = 0; g < GROUPS; g++, codes += shape.group_bytes) {
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; j++) {
            out->codes[g][j][i] = unpack(FG_Q4_K, codes, j);
        }
        __m512i scale = integer_scale(FG_Q4_K, scales, g, false);
#pragma GCC unroll 4
        for (unsigned shift = 0; shift < SHIFTS; shift++) {
            out->scales[g][shift][i] = _mm512_slli_epi32(scale, shift);
        }
    }
    for (size_t g = 0; g < GROUPS; g += 2) {
        out->minima[g / 2][i] = minima_of_two(scales, g);
        out->centres[g / 2][i] = _mm512_slli_epi16(scales_of_two(scales, g), CENTRE_BITS);
    }
}

static void make_ready(uint32_t type, const uint8_t *scales, size_t groups, uint32_t i, ready *out)
{
    size_t unit_bytes = fg_panel_shape_of(type, FG_QUANT_SUPER).unit_bytes;
    for (size_t super = 0; super < groups / GROUPS; super++, scales += unit_bytes) {
        make_panel(scales, i, &out->supers[super]);
    }
}

FG_AVX512_INLINE void bring_rows(int R, const tile *t, size_t super, row_parts *out)
{
    _Static_assert(TILE_PANELS * sizeof(__m512i) == 1 << 7, "from a shift's scales to the next");
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
        const fg_quant_super *row = super_of(t, super, r);
        const void *known = row->sums;
        __m256i shifts = _mm256_loadu_si256((const __m256i *)(const void *)row->shifts);
        __m256i sums = _mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *)known));
        sums = _mm256_slli_epi32(_mm256_srav_epi32(sums, shifts), CENTRE_BITS);
        sums = _mm256_sub_epi32(_mm256_setzero_si256(), sums);
        _mm256_storeu_si256((__m256i *)(void *)out->begins[r], sums);
        _mm256_storeu_si256((__m256i *)(void *)out->scales_at[r], _mm256_slli_epi32(shifts, 7));
    }
}

/* A group, times its scale. */
FG_AVX512_INLINE void add_group(int R, const ready_super *w, const row_parts *parts, size_t g,
                                const int8_t *const rows[TILE_ROWS], int_sums totals)
{
    int_sums sums;
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
        sums[r][0] = broadcast4(&parts->begins[r][g]);
        sums[r][1] = sums[r][0];
    }
    add_products(R, w->codes[g], rows, sums);
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
        const char *scales = (const char *)w->scales[g] + parts->scales_at[r][g];
#pragma GCC unroll 2
        for (int i = 0; i < TILE_PANELS; i++) {
            totals[r][i] =
                _mm512_dpwssd_epi32(totals[r][i], sums[r][i], load64(scales + (size_t)i * VECTOR));
            FG_AVX512_HOLD(totals[r][i]);
        }
    }
}

/* Integers become floats: first what minima come to, then the rest. */
FG_AVX512_INLINE void end_super(int R, const tile *t, size_t super, int_sums sums,
                                float_sums totals)
{
    const ready_super *w = &t->weights->supers[super];
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
        const fg_quant_super *row = super_of(t, super, r);
        __m512 scale = _mm512_set1_ps(row->scale);
        __m512i minima[TILE_PANELS];
        multiply_sums(row, w->minima, minima);
#pragma GCC unroll 2
        for (int i = 0; i < TILE_PANELS; i++) {
            __m512 total = _mm512_fmadd_ps(_mm512_mul_ps(w->minimum[i], scale),
                                           _mm512_cvtepi32_ps(minima[i]), totals[r][i]);
            totals[r][i] = _mm512_fmadd_ps(_mm512_mul_ps(w->d[i], scale),
                                           _mm512_cvtepi32_ps(sums[r][i]), total);
        }
    }
}

FG_AVX512_INLINE void run_tile(int R, const tile *t, float_sums totals)
{
    const int8_t *rows[TILE_ROWS];
    const uint8_t *ask = t->ask;
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
        rows[r] = t->quants + (size_t)r * 2 * t->row_bytes;
        FG_AVX512_HOLD_POINTER(rows[r]);
    }
    for (size_t super = 0; super < t->groups / GROUPS; super++) {
        const ready_super *w = &t->weights->supers[super];
        row_parts parts;
        int_sums sums;
        ask = ask_lines(t, ask);
        bring_rows(R, t, super, &parts);
#pragma GCC unroll 6
        for (int r = 0; r < R; r++) {
            multiply_sums(super_of(t, super, r), w->centres, sums[r]);
        }
#pragma GCC unroll 1
        for (size_t g = 0; g < GROUPS; g++) {
            add_group(R, w, &parts, g, rows, sums);
#pragma GCC unroll 6
            for (int r = 0; r < R; r++) {
                rows[r] += FG_QUANT_GROUP;
                FG_AVX512_HOLD_POINTER(rows[r]); /* else they become one pointer again */
            }
        }
        end_super(R, t, super, sums, totals);
    }
}

#define DEFINE_TILE(R)                                                                             \
    static __attribute__((noinline)) void tile_##R(const tile *t, float_sums totals)               \
    {                                                                                              \
        run_tile(R, t, totals);                                                                    \
    }
#define EACH_TILE(X) X(1) X(2) X(3) X(4) X(5) X(6)
EACH_TILE(DEFINE_TILE)

#define TILE_ENTRY(R) tile_##R,
static void (*const tiles[TILE_ROWS])(const tile *t, float_sums totals) = { EACH_TILE(TILE_ENTRY) };

static void run_rows(uint32_t type, uint32_t rows, const tile *t, float_sums totals)
{
    (void)type;
    tiles[rows - 1](t, totals);
}

bool fg_cpu_avx512_makes_words_ready(uint32_t type, uint32_t rows)
{
    return type == FG_Q4_K && rows >= LEAST_ROWS && fg_avx512_shares_pipes();
}

void fg_cpu_avx512_linear_words(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                                uint32_t first, uint32_t count)
{
    ready weights;
    multiply_ready(linear, in, rows, first, count, &weights);
}
