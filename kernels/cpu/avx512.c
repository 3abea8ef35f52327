#include "kernels/cpu/avx512.h"

#include "kernels/cpu/amx.h"
#include "kernels/cpu/avx2.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/plain.h"

/* Groups that are quantised together, so that a lane of what is known of them is a group. */
enum { GROUPS = 4, GROUP_VECTORS = FG_QUANT_GROUP / 16 };

/* The largest of each word of the four parts of 128 bits. */
FG_AVX512_INLINE __m128i largest_of_parts(__m512i x)
{
    __m256i y = _mm256_max_epi32(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
    return _mm_max_epi32(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
}

FG_AVX512_INLINE __m128i sum_of_parts(__m512i x)
{
    __m256i y = _mm256_add_epi32(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
    return _mm_add_epi32(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
}

/* The largest magnitudes of four groups, as bits. */
FG_AVX512_INLINE __m128i peaks_of(const __m512 x[GROUPS * GROUP_VECTORS])
{
    const __m512i magnitude = _mm512_set1_epi32(INT32_MAX);
    __m512i peaks[GROUPS];
#pragma GCC unroll 4
    for (int g = 0; g < GROUPS; g++) {
        peaks[g] = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(x[2 * g]), magnitude),
                                    _mm512_and_si512(_mm512_castps_si512(x[2 * g + 1]), magnitude));
    }
    __m512i low = _mm512_max_epi32(_mm512_unpacklo_epi32(peaks[0], peaks[1]),
                                   _mm512_unpackhi_epi32(peaks[0], peaks[1]));
    __m512i high = _mm512_max_epi32(_mm512_unpacklo_epi32(peaks[2], peaks[3]),
                                    _mm512_unpackhi_epi32(peaks[2], peaks[3]));
    __m512i all =
        _mm512_max_epi32(_mm512_unpacklo_epi64(low, high), _mm512_unpackhi_epi64(low, high));
    return largest_of_parts(all);
}

/* Two groups' bytes, and the sums of their halves. */
FG_AVX512_INLINE __m512i quantize_two(const __m512 x[2 * GROUP_VECTORS], __m512 first,
                                      __m512 second, __m128i *sums_out)
{
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512i bytes =
        _mm512_packs_epi16(_mm512_packs_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(x[0], first)),
                                              _mm512_cvtps_epi32(_mm512_mul_ps(x[1], first))),
                           _mm512_packs_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(x[2], second)),
                                              _mm512_cvtps_epi32(_mm512_mul_ps(x[3], second))));
    /* Packed, a word of each part of 128 bits is four columns of a half. */
    __m512i sums = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), bytes);
    *sums_out = sum_of_parts(sums);
    return _mm512_permutexvar_epi32(order, bytes);
}

/* fg_cpu_quant_group of four. */
FG_AVX512_INLINE void put_groups(__m128 scale, __m128i low, __m128i high, uint32_t count,
                                 fg_quant_group *out)
{
    __m128 lows = _mm_castsi128_ps(low), highs = _mm_castsi128_ps(high);
    __m128i first = _mm_castps_si128(_mm_shuffle_ps(lows, highs, 0x88));
    __m128i second = _mm_castps_si128(_mm_shuffle_ps(lows, highs, 0xDD));
    __m128i sum = _mm_add_epi32(first, second);
    __m128i halves = _mm_blend_epi16(first, _mm_slli_epi32(second, 16), 0xAA);
    __m128i negated = _mm_sub_epi32(_mm_setzero_si128(), sum);
    __m128 rows[GROUPS] = { scale, _mm_mul_ps(scale, _mm_cvtepi32_ps(sum)),
                            _mm_castsi128_ps(halves), _mm_castsi128_ps(negated) };
    _MM_TRANSPOSE4_PS(rows[0], rows[1], rows[2], rows[3]);
#pragma GCC unroll 4
    for (uint32_t g = 0; g < GROUPS; g++) {
        if (g < count) {
            _mm_storeu_ps((float *)(void *)(out + g), rows[g]);
        }
    }
}

/* One to four groups; false, and nothing done: one of them has a NaN or an infinity (fg_cpu_is_odd). */
FG_AVX512_INLINE bool quantize_groups(const float *values, uint32_t count, int8_t *quants,
                                      fg_quant_group *groups)
{
    __m512 x[GROUPS * GROUP_VECTORS];
#pragma GCC unroll 8
    for (uint32_t i = 0; i < GROUPS * GROUP_VECTORS; i++) {
        x[i] = i < GROUP_VECTORS * count ? _mm512_loadu_ps(values + 16 * (size_t)i)
                                         : _mm512_setzero_ps();
    }
    __m128i bits = peaks_of(x);
    __m128 peaks = _mm_castsi128_ps(bits);
    if (__builtin_expect(_mm_movemask_epi8(_mm_cmpgt_epi32(bits, _mm_set1_epi32(0x7F7FFFFF))) != 0,
                         0)) {
        return false;
    }
    const __m128 most = _mm_set1_ps(127.0f);
    __m128 there = _mm_cmpge_ps(peaks, _mm_set1_ps(FG_CPU_QUANT_TINY));
    __m128 scale = _mm_and_ps(there, _mm_div_ps(peaks, most));
    __m128 inverse = _mm_and_ps(there, _mm_div_ps(most, peaks));
    __m128i low, high;
    __m512i bytes = quantize_two(x, _mm512_broadcastss_ps(inverse),
                                 _mm512_broadcastss_ps(_mm_permute_ps(inverse, 0x55)), &low);
    __m512i more = quantize_two(x + 4, _mm512_broadcastss_ps(_mm_permute_ps(inverse, 0xAA)),
                                _mm512_broadcastss_ps(_mm_permute_ps(inverse, 0xFF)), &high);
    put_groups(scale, low, high, count, groups);
    if (count == GROUPS) {
        _mm512_storeu_si512(quants, bytes);
        _mm512_storeu_si512(quants + 2 * FG_QUANT_GROUP, more);
        return true;
    }
    __m512i parts[2] = { bytes, more };
    memcpy(quants, parts, (size_t)count * FG_QUANT_GROUP);
    return true;
}

static void quantize_group(const float *x, int8_t *quants, fg_quant_group *group)
{
    if (!quantize_groups(x, 1, quants, group)) {
        *group = fg_cpu_no_group(quants);
    }
}

static void avx512_quantize_row(const float *values, uint32_t columns, int8_t *quants,
                                fg_quant_group *groups)
{
    uint32_t count = columns / FG_QUANT_GROUP;
    for (uint32_t g = 0; g < count; g += GROUPS) {
        uint32_t left = count - g < GROUPS ? count - g : GROUPS;
        const float *x = values + (size_t)g * FG_QUANT_GROUP;
        int8_t *q = quants + (size_t)g * FG_QUANT_GROUP;
        bool done = left == GROUPS ? quantize_groups(x, GROUPS, q, groups + g)
                                   : quantize_groups(x, left, q, groups + g);
        for (uint32_t i = 0; !done && i < left; i++) {
            quantize_group(x + (size_t)i * FG_QUANT_GROUP, q + (size_t)i * FG_QUANT_GROUP,
                           groups + g + i);
        }
    }
}

static void avx512_pair_row(const float *values, uint32_t columns, uint32_t *pairs)
{
    const __m512i upper = _mm512_set1_epi64(0xFFFF0000);
    uint32_t k = 0;
    for (; k + 16 <= columns; k += 16) {
        /* Of two columns in 64 bits the first one's bits 16..31 stay, the second one's go below them. */
        __m512i x = fg_avx512_brain(_mm512_loadu_ps(values + k));
        x = _mm512_or_si512(_mm512_and_si512(x, upper), _mm512_srli_epi64(x, 48));
        _mm256_storeu_si256((__m256i *)(pairs + k / 2), _mm512_cvtepi64_epi32(x));
    }
    for (; k < columns; k += 2) {
        pairs[k / 2] = fg_cpu_pair(values + k, columns - k);
    }
}

/* Sixteen columns, or as many as there are. */
static __m512 columns_of(const float *values, uint32_t first, uint32_t columns)
{
    uint32_t left = columns > first ? columns - first : 0;
    __mmask16 mask = (__mmask16)(left >= 16 ? 0xFFFF : (1u << left) - 1);
    return _mm512_maskz_loadu_ps(mask, values + (left == 0 ? 0 : first));
}

/* A pair is columns 16 apart: whole blocks of 32, as tiles read them. */
static void apart_pair_row(const float *values, uint32_t columns, uint32_t *pairs)
{
    for (uint32_t k = 0; k < columns; k += 32) {
        __m512i first = fg_avx512_brain(columns_of(values, k, columns));
        __m512i second = fg_avx512_brain(columns_of(values, k + 16, columns));
        _mm512_storeu_si512(pairs + k / 2, _mm512_or_si512(first, _mm512_srli_epi32(second, 16)));
    }
}

static void avx512_quant_tiles(const int8_t *quants, const fg_quant_group *groups,
                               uint32_t group_count, uint32_t place, fg_quant_tile *tiles)
{
    for (uint32_t g = 0; g < group_count; g++, quants += FG_QUANT_GROUP) {
        memcpy(tiles[g].quants[place], quants, FG_QUANT_GROUP);
        tiles[g].halves[place / FG_TILE_HALF].scales[place % FG_TILE_HALF] = groups[g].scale;
        tiles[g].halves[place / FG_TILE_HALF].offsets[place % FG_TILE_HALF] = groups[g].offset;
    }
}

/* The sum has eight lanes (ops.h), whatever the width of a register. */
static void avx512_rmsnorm_row(const float *in, const float *weight, uint32_t columns,
                               float epsilon, float *out)
{
    if (columns % 8 != 0) {
        fg_cpu_plain_rmsnorm_row(in, weight, columns, epsilon, out);
        return;
    }
    __m256 sums = _mm256_setzero_ps();
    for (uint32_t i = 0; i < columns; i += 8) {
        __m256 x = _mm256_loadu_ps(in + i);
        sums = _mm256_fmadd_ps(x, x, sums);
    }
    float lanes[8];
    _mm256_storeu_ps(lanes, sums);
    float mean = fg_cpu_fold(lanes) / (float)columns;
    float factor = 1.0f / __builtin_sqrtf(mean + epsilon);
    for (uint32_t i = 0; i < columns; i++) {
        out[i] = in[i] * factor * weight[i];
    }
}

static void avx512_swiglu(const float *gate, const float *up, size_t count, float *out)
{
    fg_cpu_swiglu(gate, up, count, out);
}

/* What the tables have in common; products and attention differ. */
#define AVX512_ROWS                                                                                \
    .quantize_row = avx512_quantize_row, .pair_row = avx512_pair_row,                              \
    .rmsnorm_row = avx512_rmsnorm_row, .swiglu = avx512_swiglu, .rotate = fg_cpu_avx2_rotate,      \
    .rotate_neighbours = fg_cpu_avx2_rotate_neighbours, .to_halves = fg_cpu_avx2_to_halves

const fg_cpu_kernels fg_cpu_avx512 = {
    AVX512_ROWS,
    .name = "avx512",
    .product_pairs = avx512_pair_row,
    .linear = fg_cpu_avx512_linear,
    .attend = fg_cpu_avx512_attend,
};

const fg_cpu_kernels fg_cpu_avx512_bf16 = {
    AVX512_ROWS,
    .name = "avx512_bf16",
    .product_pairs = avx512_pair_row,
    .linear = fg_cpu_avx512_bf16_linear,
    .attend = fg_cpu_avx512_attend_bf16,
};

const fg_cpu_kernels fg_cpu_amx = {
    AVX512_ROWS,
    .name = "amx",
    .product_pairs = apart_pair_row,
    .tile_rows_least = FG_AMX_TILE_ROWS_LEAST,
    .quant_tiles = avx512_quant_tiles,
    .pair_columns = FG_AMX_PAIR_COLUMNS,
    .linear = fg_cpu_amx_linear,
    .attend = fg_cpu_amx_attend,
};
