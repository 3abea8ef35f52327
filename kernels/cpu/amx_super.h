/*
 * amx_super - what products with AMX and super-groups (Q4_K, Q5_K, Q6_K) share, be they of many
 * rows (amx_super.c) or of few (amx_super_few.c): a super-group of a panel as tiles read it, and
 * how the tiles' sums become totals.
 *
 * A tile product is of one group of 32 columns, as shifts differ from row to row and from group to
 * group. Its sums are added to a row's integer sum of the super-group, which is in a register:
 *   Q4_K   Codes lose their middle, 8. So a sum is at most 32 * 127 * 8, which the lower word of
 *          its lane holds, and vpdpwssd multiplies it with the scale and adds it at once. What the
 *          middle lacks comes at the super-group's end, from the sums of quants that the minima
 *          read as well.
 *   Q5_K   The same would not fit: vpmulld, which is two operations, and an addition.
 *   Q6_K   Halves of a group have scales of their own. These are folded into the codes, which split
 *          into 64 * upper + lower: two products, whose sums are joined, shifted and added.
 * The scales of the first two are laid out once for each shift. A row's shift chooses what is
 * loaded, and nothing is shifted.
 *
 * Operations of 512 bits for a row's group, beside those that multiply and store tiles, and in
 * brackets how many of them may have to share one port: shifts, vpmulld, vpdpwssd and, while tiles
 * are about, whatever multiplies or converts floats.
 *                               before   now
 *   Q4_K                        5 (3)    1 + 14/8 (1 + 14/8)
 *   Q5_K                        5 (3)    3 + 10/8 (2 + 10/8)
 *   Q6_K                        7 (2)    4 + 3/8  (2 + 3/8)
 *   Q6_K, sixteen rows at most  8 (4)    4 + 3/8  (2 + 3/8)
 * "Before" groups had floats as scales; eighths are what a super-group costs at its end. Storing
 * and multiplying a tile takes three more for each row and product, now as before.
 */
#ifndef FORGE_KERNELS_CPU_AMX_SUPER_H
#define FORGE_KERNELS_CPU_AMX_SUPER_H

#include "kernels/cpu/amx.h"
#include "kernels/cpu/avx512_unpack.h"
#include "kernels/cpu/panel_group.h"

enum {
    FG_AMX_SHIFTS = FG_QUANT_SHIFT_MAX + 1,
    FG_AMX_PARTS = 2,
    FG_AMX_SUPER_PAIRS = FG_QUANT_SUPER_GROUPS / 2,
    FG_AMX_SUMS = FG_TILE_ROWS * FG_PANEL_OUTPUTS /* of a product */
};

/* A super-group of a panel. */
typedef struct fg_amx_super {
    /* Rows of four columns of sixteen outputs; of Q6_K lower and upper parts. */
    _Alignas(VECTOR) int8_t codes[FG_AMX_PARTS][FG_QUANT_SUPER_GROUPS][VECTORS][VECTOR];
    int32_t scales[FG_QUANT_SUPER_GROUPS][FG_AMX_SHIFTS][FG_PANEL_OUTPUTS]; /* times 2^shift */
    int32_t minima[FG_AMX_SUPER_PAIRS][FG_PANEL_OUTPUTS];  /* of two groups, in words */
    int32_t middles[FG_AMX_SUPER_PAIRS][FG_PANEL_OUTPUTS]; /* Q4_K: so are 8 times their scales */
    float d[FG_PANEL_OUTPUTS];
    float minimum[FG_PANEL_OUTPUTS]; /* minus the integer minima's float */
} fg_amx_super;

/* What is known of sixteen rows' super-group, from rows that lie far apart. */
typedef struct fg_amx_strip {
    /* Shifts; of types with laid out scales bytes to the ones that are shifted so. */
    _Alignas(VECTOR) int32_t steps[FG_TILE_ROWS][FG_QUANT_SUPER_GROUPS];
    int32_t sums[FG_TILE_ROWS][FG_AMX_SUPER_PAIRS]; /* of two groups, in words */
    float scales[FG_TILE_ROWS];
} fg_amx_strip;

#if defined(__AVX512F__) || defined(FG_AVX512_SMALL) /* 512-bit results need it, unless emulated */
/* ---- weights ---- */

FG_AVX512_INLINE bool fg_amx_is_split(uint32_t type)
{
    return type == FG_Q6_K;
}

/* Columns 4j .. 4j + 3 of a group as signed bytes. */
FG_AVX512_INLINE __m512i fg_amx_super_codes(uint32_t type, const uint8_t *at, int j)
{
    char middle = type == FG_Q4_K ? 8 : type == FG_Q6_K ? 32 : 0;
    __m512i codes = unpack(type, at, j);
    return middle == 0 ? codes : _mm512_sub_epi8(codes, _mm512_set1_epi8(middle));
}

/* Q6_K: signed codes times the scales of their lanes, 64 * upper + lower, both within a byte. */
FG_AVX512_INLINE void fg_amx_split_codes(__m512i codes, __m512i scales, int8_t *lower,
                                         int8_t *upper)
{
    __m512i twice = _mm512_or_si512(_mm512_slli_epi32(scales, 16),
                                    _mm512_and_si512(scales, _mm512_set1_epi32(0xFFFF)));
    __m512i even = _mm512_srai_epi16(_mm512_slli_epi16(codes, 8), 8);
    __m512i odd = _mm512_srai_epi16(codes, 8);
    even = _mm512_mullo_epi16(even, twice);
    odd = _mm512_mullo_epi16(odd, twice);
    const __m512i low = _mm512_set1_epi16(255);
    __m512i upper_even = _mm512_srai_epi16(even, 6);
    __m512i upper_odd = _mm512_srai_epi16(odd, 6);
    even = _mm512_and_si512(even, _mm512_set1_epi16(63));
    odd = _mm512_and_si512(odd, _mm512_set1_epi16(63));
    _mm512_store_si512(lower, _mm512_or_si512(even, _mm512_slli_epi16(odd, 8)));
    _mm512_store_si512(
        upper, _mm512_or_si512(_mm512_and_si512(upper_even, low), _mm512_slli_epi16(upper_odd, 8)));
}

/* Vector j of group g. */
FG_AVX512_INLINE void fg_amx_unpack_vector(uint32_t type, const uint8_t *scales,
                                           const uint8_t *codes, size_t g, int j, fg_amx_super *out)
{
    __m512i vector = fg_amx_super_codes(type, codes, j);
    if (fg_amx_is_split(type)) {
        __m512i scale = integer_scale(type, scales, g, j >= VECTORS / 2);
        fg_amx_split_codes(vector, scale, out->codes[0][g][j], out->codes[1][g][j]);
    } else {
        _mm512_store_si512(out->codes[0][g][j], vector);
    }
}

FG_AVX512_INLINE void fg_amx_unpack_scales(uint32_t type, const uint8_t *scales, fg_amx_super *out)
{
    _mm512_store_ps(out->d, halves(scales));
    if (fg_amx_is_split(type)) {
        return;
    }
    _mm512_store_ps(out->minimum, super_minimum(scales));
#pragma GCC unroll 4
    for (size_t i = 0; i < FG_AMX_SUPER_PAIRS; i++) {
        _mm512_store_si512(out->minima[i], minima_of_two(scales, 2 * i));
        if (type == FG_Q4_K) {
            const uint8_t *at = scales + 64 + 2 * i * 32;
            __m512i both = _mm512_cvtepi8_epi16(in_pairs(at, at + 32));
            _mm512_store_si512(out->middles[i], _mm512_slli_epi16(both, 3));
        }
    }
    for (size_t g = 0; g < FG_QUANT_SUPER_GROUPS; g++) {
        __m512i scale = integer_scale(type, scales, g, false);
#pragma GCC unroll 4
        for (size_t shift = 0; shift < FG_AMX_SHIFTS; shift++) {
            _mm512_store_si512(out->scales[g][shift], scale);
            scale = _mm512_add_epi32(scale, scale);
        }
    }
}

/* ---- rows ---- */

/* R rows, of which `rows` are there; others count as the last one. `supers` are those of the first
 * row, `stride` of them before those of the next. */
FG_AVX512_INLINE void fg_amx_bring_strip(uint32_t type, int R, const fg_quant_super *supers,
                                         size_t stride, uint32_t rows, fg_amx_strip *out)
{
#pragma GCC unroll 4
    for (uint32_t r = 0; r < (uint32_t)R; r++) {
        const fg_quant_super *super = supers + (r < rows ? r : rows - 1) * stride;
        __m256i shifts = _mm256_loadu_si256((const __m256i *)(const void *)super->shifts);
        if (!fg_amx_is_split(type)) {
            shifts = _mm256_slli_epi32(shifts, 6); /* of VECTOR bytes each */
        }
        _mm256_store_si256((__m256i *)(void *)out->steps[r], shifts);
        memcpy(out->sums[r], super->sums, sizeof out->sums[r]);
        out->scales[r] = super->scale;
    }
}
_Static_assert(sizeof(int32_t[FG_PANEL_OUTPUTS]) == 1 << 6, "steps between scales");
_Static_assert(sizeof(((fg_quant_super *)0)->sums) == sizeof(int32_t[FG_AMX_SUPER_PAIRS]),
               "sums in pairs");

/* ---- sums ---- */

/* Products of group g, of rows first .. end - 1, to their sums. */
FG_AVX512_INLINE void fg_amx_add_group(uint32_t type, int first, int end, const fg_amx_super *super,
                                       const fg_amx_strip *strip, size_t g, const int32_t *stored,
                                       __m512i *sums)
{
    const char *scales = (const char *)super->scales[g];
#pragma GCC unroll 16
    for (int r = first; r < end; r++) {
        __m512i sum = _mm512_load_si512(stored + r * FG_PANEL_OUTPUTS);
        int32_t step = strip->steps[r][g];
        if (fg_amx_is_split(type)) {
            __m512i upper = _mm512_load_si512(stored + FG_AMX_SUMS + r * FG_PANEL_OUTPUTS);
            sum = _mm512_add_epi32(_mm512_slli_epi32(upper, 6), sum);
            sum = _mm512_sllv_epi32(sum, _mm512_set1_epi32(step));
            sums[r] = _mm512_add_epi32(sums[r], sum);
        } else if (type == FG_Q4_K) {
            sums[r] = _mm512_dpwssd_epi32(sums[r], sum, _mm512_load_si512(scales + step));
        } else {
            sum = _mm512_mullo_epi32(sum, _mm512_load_si512(scales + step));
            sums[r] = _mm512_add_epi32(sums[r], sum);
        }
        FG_AVX512_HOLD(sums[r]);
    }
}

/* A whole super-group's sum of row r, to the row's total. */
FG_AVX512_INLINE __m512 fg_amx_end_super(uint32_t type, int r, const fg_amx_super *super,
                                         const fg_amx_strip *strip, __m512i sum, __m512 total)
{
    __m512 scale = _mm512_set1_ps(strip->scales[r]);
    if (fg_cpu_has_minimum(type)) {
        __m512i minima = _mm512_setzero_si512();
#pragma GCC unroll 4
        for (int i = 0; i < FG_AMX_SUPER_PAIRS; i++) {
            __m512i pair = _mm512_set1_epi32(strip->sums[r][i]);
            minima = _mm512_dpwssd_epi32(minima, _mm512_load_si512(super->minima[i]), pair);
            if (type == FG_Q4_K) {
                sum = _mm512_dpwssd_epi32(sum, _mm512_load_si512(super->middles[i]), pair);
            }
        }
        total = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_load_ps(super->minimum), scale),
                                _mm512_cvtepi32_ps(minima), total);
    }
    return _mm512_fmadd_ps(_mm512_mul_ps(_mm512_load_ps(super->d), scale), _mm512_cvtepi32_ps(sum),
                           total);
}

FG_AVX512_INLINE void fg_amx_begin_sums(int R, __m512i *sums)
{
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
        sums[r] = _mm512_setzero_si512();
    }
}
#endif

#endif
