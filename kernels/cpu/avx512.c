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

/* What four groups are multiplied with to become bytes, and what the bytes stand for. */
typedef struct group_scales {
    __m128 scale;
    __m128 inverse;
    __m128i odd; /* a NaN or an infinity is among them (fg_cpu_is_odd) */
} group_scales;

FG_AVX512_INLINE group_scales scales_of(const __m512 x[GROUPS * GROUP_VECTORS])
{
    __m128i bits = peaks_of(x);
    __m128 peaks = _mm_castsi128_ps(bits);
    const __m128 most = _mm_set1_ps(127.0f);
    __m128 there = _mm_cmpge_ps(peaks, _mm_set1_ps(FG_CPU_QUANT_TINY));
    return (group_scales){ .scale = _mm_and_ps(there, _mm_div_ps(peaks, most)),
                           .inverse = _mm_and_ps(there, _mm_div_ps(most, peaks)),
                           .odd = _mm_cmpgt_epi32(bits, _mm_set1_epi32(0x7F7FFFFF)) };
}

/* Two groups' bytes, four columns of each half in a part of 128 bits. */
FG_AVX512_INLINE __m512i quantize_two(const __m512 x[2 * GROUP_VECTORS], __m512 first,
                                      __m512 second)
{
    return _mm512_packs_epi16(_mm512_packs_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(x[0], first)),
                                                 _mm512_cvtps_epi32(_mm512_mul_ps(x[1], first))),
                              _mm512_packs_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(x[2], second)),
                                                 _mm512_cvtps_epi32(_mm512_mul_ps(x[3], second))));
}

/* Four groups' bytes, two in each. */
FG_AVX512_INLINE void quantize_four(const __m512 x[GROUPS * GROUP_VECTORS], __m128 inverse,
                                    __m512i bytes[2])
{
    bytes[0] = quantize_two(x, _mm512_broadcastss_ps(inverse),
                            _mm512_broadcastss_ps(_mm_permute_ps(inverse, 0x55)));
    bytes[1] = quantize_two(x + 4, _mm512_broadcastss_ps(_mm_permute_ps(inverse, 0xAA)),
                            _mm512_broadcastss_ps(_mm_permute_ps(inverse, 0xFF)));
}

FG_AVX512_INLINE __m512i in_order(__m512i bytes)
{
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_epi32(order, bytes);
}

/* The sums of four bytes each. */
FG_AVX512_INLINE __m512i sums_of_fours(__m512i bytes)
{
    return _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), bytes);
}

/* Where groups lie that are quantised together: so much apart. */
typedef struct group_strides {
    size_t values;
    size_t quants;
    size_t groups;
} group_strides;

/* Neighbours in a row. */
static const group_strides in_row = { FG_QUANT_GROUP, FG_QUANT_GROUP, 1 };

/* fg_cpu_quant_group of four. */
FG_AVX512_INLINE void put_groups(__m128 scale, __m128i low, __m128i high, uint32_t count,
                                 fg_quant_group *out, size_t stride)
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
            _mm_storeu_ps((float *)(void *)(out + g * stride), rows[g]);
        }
    }
}

/* The first `count` of four groups' bytes, two in each. */
FG_AVX512_INLINE void put_bytes(const __m512i bytes[2], uint32_t count, int8_t *quants,
                                size_t stride)
{
    __m512i two = in_order(bytes[0]), more = in_order(bytes[1]);
    if (count == GROUPS && stride == FG_QUANT_GROUP) {
        _mm512_storeu_si512(quants, two);
        _mm512_storeu_si512(quants + 2 * FG_QUANT_GROUP, more);
        return;
    }
    __m256i groups[GROUPS] = { _mm512_castsi512_si256(two), _mm512_extracti64x4_epi64(two, 1),
                               _mm512_castsi512_si256(more), _mm512_extracti64x4_epi64(more, 1) };
#pragma GCC unroll 4
    for (uint32_t g = 0; g < GROUPS; g++) {
        if (g < count) {
            _mm256_storeu_si256((__m256i *)(void *)(quants + g * stride), groups[g]);
        }
    }
}

/* The first `count` of four groups; what is not there is 0. */
FG_AVX512_INLINE void load_groups(const float *values, size_t stride, uint32_t count,
                                  __m512 x[GROUPS * GROUP_VECTORS])
{
#pragma GCC unroll 8
    for (uint32_t i = 0; i < GROUPS * GROUP_VECTORS; i++) {
        uint32_t group = i / GROUP_VECTORS;
        x[i] = group < count
                   ? _mm512_loadu_ps(values + group * stride + (size_t)(i % GROUP_VECTORS * 16))
                   : _mm512_setzero_ps();
    }
}

/* One to four groups; false, and nothing done: one of them has a NaN or an infinity (fg_cpu_is_odd). */
FG_AVX512_INLINE bool quantize_groups(const float *values, uint32_t count, int8_t *quants,
                                      fg_quant_group *groups, group_strides apart)
{
    __m512 x[GROUPS * GROUP_VECTORS];
    load_groups(values, apart.values, count, x);
    group_scales with = scales_of(x);
    if (__builtin_expect(_mm_movemask_epi8(with.odd) != 0, 0)) {
        return false;
    }
    __m512i bytes[2];
    quantize_four(x, with.inverse, bytes);
    put_groups(with.scale, sum_of_parts(sums_of_fours(bytes[0])),
               sum_of_parts(sums_of_fours(bytes[1])), count, groups, apart.groups);
    put_bytes(bytes, count, quants, apart.quants);
    return true;
}

static void quantize_group(const float *x, int8_t *quants, fg_quant_group *group)
{
    if (!quantize_groups(x, 1, quants, group, in_row)) {
        *group = fg_cpu_no_group(quants);
    }
}

/* One to four groups, whatever is in them. */
FG_AVX512_INLINE void quantize(const float *values, uint32_t count, int8_t *quants,
                               fg_quant_group *groups, group_strides apart)
{
    if (quantize_groups(values, count, quants, groups, apart)) {
        return;
    }
    for (uint32_t g = 0; g < count; g++) {
        quantize_group(values + g * apart.values, quants + g * apart.quants,
                       groups + g * apart.groups);
    }
}

static void avx512_quantize_row(const float *values, uint32_t columns, int8_t *quants,
                                fg_quant_group *groups)
{
    uint32_t count = columns / FG_QUANT_GROUP;
    for (uint32_t g = 0; g < count; g += GROUPS) {
        const float *x = values + (size_t)g * FG_QUANT_GROUP;
        int8_t *q = quants + (size_t)g * FG_QUANT_GROUP;
        if (count - g >= GROUPS) {
            quantize(x, GROUPS, q, groups + g, in_row);
        } else {
            quantize(x, count - g, q, groups + g, in_row);
        }
    }
}

/* Short rows: the same group of four rows together. */
static void avx512_quantize_rows(const float *values, size_t stride, uint32_t rows,
                                 uint32_t columns, int8_t *quants, fg_quant_group *groups,
                                 size_t out_columns)
{
    uint32_t count = columns / FG_QUANT_GROUP;
    size_t row_groups = out_columns / FG_QUANT_GROUP;
    uint32_t fours = count < GROUPS ? rows / GROUPS * GROUPS : 0;
    const group_strides apart = { stride, out_columns, row_groups };
    for (uint32_t row = 0; row < fours; row += GROUPS) {
        for (size_t g = 0; g < count; g++) {
            quantize(values + row * stride + g * FG_QUANT_GROUP, GROUPS,
                     quants + row * out_columns + g * FG_QUANT_GROUP, groups + row * row_groups + g,
                     apart);
        }
    }
    for (uint32_t row = fours; row < rows; row++) {
        avx512_quantize_row(values + row * stride, columns, quants + row * out_columns,
                            groups + row * row_groups);
    }
}

/* ---- super-groups ---- */

/* The sums of a half of the super-group's groups, 2^shift times. */
FG_AVX512_INLINE void put_sums(__m128i low, __m128i high, __m128i shifts, fg_quant_super *super,
                               int first_group)
{
    __m128 lows = _mm_castsi128_ps(low), highs = _mm_castsi128_ps(high);
    __m128i first = _mm_castps_si128(_mm_shuffle_ps(lows, highs, 0x88));
    __m128i second = _mm_castps_si128(_mm_shuffle_ps(lows, highs, 0xDD));
    first = _mm_sllv_epi32(first, shifts);
    second = _mm_sllv_epi32(second, shifts);
    __m128i sum = _mm_add_epi32(first, second);
    _mm_storeu_si128((__m128i *)(void *)super->halves[first_group],
                     _mm_blend_epi16(first, _mm_slli_epi32(second, 16), 0xAA));
    _mm_storel_epi64((__m128i *)(void *)(super->sums + first_group), _mm_packs_epi32(sum, sum));
    _mm_storeu_si128((__m128i *)(void *)(super->shifts + first_group), shifts);
}

/* fg_cpu_super_shift of four groups. */
FG_AVX512_INLINE __m128i shifts_of(__m128i peak_bits, float inverse)
{
    __m128 most = _mm_mul_ps(_mm_castsi128_ps(peak_bits), _mm_set1_ps(inverse));
    __m128i shifts = _mm_setzero_si128();
#pragma GCC unroll 3
    for (int i = 0; i < FG_QUANT_SHIFT_MAX; i++) {
        __m128 above = _mm_cmpgt_ps(most, _mm_set1_ps((float)(127 << i)));
        shifts = _mm_sub_epi32(shifts, _mm_castps_si128(above));
    }
    return shifts;
}

/* Half of a super-group's groups. */
FG_AVX512_INLINE void quantize_half(const __m512 x[GROUPS * GROUP_VECTORS], __m128i peak_bits,
                                    float inverse, int first_group, int8_t *quants,
                                    fg_quant_super *super)
{
    __m128i shifts = shifts_of(peak_bits, inverse);
    __m128i powers = _mm_slli_epi32(_mm_sub_epi32(_mm_set1_epi32(127), shifts), 23);
    __m512i bytes[2];
    quantize_four(x, _mm_mul_ps(_mm_set1_ps(inverse), _mm_castsi128_ps(powers)), bytes);
    put_sums(sum_of_parts(sums_of_fours(bytes[0])), sum_of_parts(sums_of_fours(bytes[1])), shifts,
             super, first_group);
    put_bytes(bytes, GROUPS, quants + (size_t)first_group * FG_QUANT_GROUP, FG_QUANT_GROUP);
}

static void quantize_super(const float *values, int8_t *quants, fg_quant_super *super)
{
    __m512 low[GROUPS * GROUP_VECTORS], high[GROUPS * GROUP_VECTORS];
    load_groups(values, FG_QUANT_GROUP, GROUPS, low);
    load_groups(values + (size_t)GROUPS * FG_QUANT_GROUP, FG_QUANT_GROUP, GROUPS, high);
    __m128i low_peaks = peaks_of(low), high_peaks = peaks_of(high);
    __m128i most = _mm_max_epi32(low_peaks, high_peaks);
    most = _mm_max_epi32(most, _mm_shuffle_epi32(most, 0x4E));
    most = _mm_max_epi32(most, _mm_shuffle_epi32(most, 0xB1));
    uint32_t bits = (uint32_t)_mm_cvtsi128_si32(most);
    if (fg_cpu_is_odd(bits)) {
        *super = fg_cpu_no_super(quants);
        return;
    }
    fg_cpu_super_scale with = fg_cpu_super_scale_of(fg_f32_from_bits(bits));
    super->scale = with.scale;
    quantize_half(low, low_peaks, with.inverse, 0, quants, super);
    quantize_half(high, high_peaks, with.inverse, GROUPS, quants, super);
}

static void avx512_quantize_supers(const float *values, uint32_t columns, int8_t *quants,
                                   fg_quant_super *supers)
{
    for (size_t s = 0; s < columns / FG_QUANT_SUPER; s++) {
        quantize_super(values + s * FG_QUANT_SUPER, quants + s * FG_QUANT_SUPER, &supers[s]);
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

/* The sums of four groups' bytes. */
FG_AVX512_INLINE __m128i sums_of_groups(const __m512i bytes[2])
{
    __m512 two = _mm512_castsi512_ps(sums_of_fours(bytes[0]));
    __m512 more = _mm512_castsi512_ps(sums_of_fours(bytes[1]));
    __m512i first = _mm512_castps_si512(_mm512_shuffle_ps(two, more, 0x88));
    __m512i second = _mm512_castps_si512(_mm512_shuffle_ps(two, more, 0xDD));
    return sum_of_parts(_mm512_add_epi32(first, second));
}

/* Row by row. */
static __attribute__((noinline)) void quantize_tile_rows(const float *values, size_t stride,
                                                         uint32_t rows, uint32_t place,
                                                         fg_quant_tile *tile)
{
    for (uint32_t row = place; row < place + rows; row++, values += stride) {
        fg_quant_group group;
        quantize_group(values, tile->quants[row], &group);
        tile->halves[row / FG_TILE_HALF].scales[row % FG_TILE_HALF] = group.scale;
        tile->halves[row / FG_TILE_HALF].offsets[row % FG_TILE_HALF] = group.offset;
    }
}

/* The same group of one to four rows, to rows `place` and on of a tile; those of a half. */
FG_AVX512_INLINE void quantize_tile(const float *values, size_t stride, uint32_t rows,
                                    uint32_t place, fg_quant_tile *tile)
{
    __m512 x[GROUPS * GROUP_VECTORS];
    load_groups(values, stride, rows, x);
    group_scales with = scales_of(x);
    __m512i bytes[2];
    quantize_four(x, with.inverse, bytes);
    __m128 offset = _mm_mul_ps(with.scale, _mm_cvtepi32_ps(sums_of_groups(bytes)));
    size_t half = place / FG_TILE_HALF, at = place % FG_TILE_HALF;
    memcpy(&tile->halves[half].scales[at], &with.scale, rows * sizeof(float));
    memcpy(&tile->halves[half].offsets[at], &offset, rows * sizeof(float));
    put_bytes(bytes, rows, tile->quants[place], FG_QUANT_GROUP);
    if (__builtin_expect(_mm_movemask_epi8(with.odd) != 0, 0)) {
        quantize_tile_rows(values, stride, rows, place, tile);
    }
}

/* Four rows together, or what there is of them. */
static void avx512_quantize_tiles(const float *values, size_t stride, uint32_t rows,
                                  uint32_t group_count, uint32_t place, fg_quant_tile *tiles)
{
    for (uint32_t done = 0, count; done < rows; done += count) {
        uint32_t at = place + done;
        uint32_t room = GROUPS - at % GROUPS;
        count = rows - done < room ? rows - done : room;
        const float *x = values + done * stride;
        for (uint32_t g = 0; g < group_count; g++, x += FG_QUANT_GROUP) {
            if (count == GROUPS) {
                quantize_tile(x, stride, GROUPS, at, &tiles[g]);
            } else {
                quantize_tile(x, stride, count, at, &tiles[g]);
            }
        }
    }
}

/* What a row is multiplied with. */
static float norm_factor(__m256 squares, uint32_t columns, float epsilon)
{
    float lanes[8];
    _mm256_storeu_ps(lanes, squares);
    float mean = fg_cpu_fold(lanes) / (float)columns;
    return 1.0f / __builtin_sqrtf(mean + epsilon);
}

/* The sums have eight lanes (ops.h), whatever the width of a register: several rows are summed at a time, since one
 * alone waits for its own additions. */
FG_AVX512_INLINE void norm_rows(uint32_t rows, const float *const *in, const float *weight,
                                uint32_t columns, float epsilon, float *out, size_t stride)
{
    __m256 sums[FG_CPU_NORM_ROWS];
#pragma GCC unroll 4
    for (uint32_t r = 0; r < rows; r++) {
        sums[r] = _mm256_setzero_ps();
    }
    for (uint32_t i = 0; i < columns; i += 8) {
#pragma GCC unroll 4
        for (uint32_t r = 0; r < rows; r++) {
            __m256 x = _mm256_loadu_ps(in[r] + i);
            sums[r] = _mm256_fmadd_ps(x, x, sums[r]);
        }
    }
    for (uint32_t r = 0; r < rows; r++) {
        float factor = norm_factor(sums[r], columns, epsilon);
        for (uint32_t i = 0; i < columns; i++) {
            out[r * stride + i] = in[r][i] * factor * weight[i];
        }
    }
}

static void avx512_rmsnorm_row(const float *in, const float *weight, uint32_t columns,
                               float epsilon, float *out)
{
    if (columns % 8 != 0) {
        fg_cpu_plain_rmsnorm_row(in, weight, columns, epsilon, out);
        return;
    }
    norm_rows(1, &in, weight, columns, epsilon, out, columns);
}

static void avx512_rmsnorm_rows(const float *const in[FG_CPU_NORM_ROWS], const float *weight,
                                uint32_t columns, float epsilon, float *out, size_t stride)
{
    if (columns % 8 == 0) {
        norm_rows(FG_CPU_NORM_ROWS, in, weight, columns, epsilon, out, stride);
        return;
    }
    for (uint32_t r = 0; r < FG_CPU_NORM_ROWS; r++) {
        avx512_rmsnorm_row(in[r], weight, columns, epsilon, out + r * stride);
    }
}

#if !defined(FG_AVX512_SMALL)
/* fg_expf of sixteen. Its last two products are one: the first of them is exact. */
FG_AVX512_INLINE __m512 exp_of(__m512 x)
{
    const __m512 magic = _mm512_set1_ps(0x1.8p23f);
    /* With NaN, minima and maxima are their second operands. */
    x = _mm512_max_ps(_mm512_set1_ps(-104.0f), _mm512_min_ps(_mm512_set1_ps(89.0f), x));
    __m512 shifted = _mm512_add_ps(_mm512_mul_ps(x, _mm512_set1_ps(0x1.715476p+0f)), magic);
    __m512 n = _mm512_sub_ps(shifted, magic);
    __m512 r = _mm512_sub_ps(x, _mm512_mul_ps(n, _mm512_set1_ps(0x1.63p-1f)));
    r = _mm512_sub_ps(r, _mm512_mul_ps(n, _mm512_set1_ps(-0x1.bd0106p-13f)));
    __m512 p = _mm512_set1_ps(0x1.6b67aap-10f);
    p = _mm512_add_ps(_mm512_mul_ps(p, r), _mm512_set1_ps(0x1.122f2ep-7f));
    p = _mm512_add_ps(_mm512_mul_ps(p, r), _mm512_set1_ps(0x1.55568ep-5f));
    p = _mm512_add_ps(_mm512_mul_ps(p, r), _mm512_set1_ps(0x1.5554a4p-3f));
    p = _mm512_add_ps(_mm512_mul_ps(p, r), _mm512_set1_ps(0.5f));
    p = _mm512_add_ps(_mm512_mul_ps(p, _mm512_mul_ps(r, r)), r);
    return _mm512_scalef_ps(_mm512_add_ps(p, _mm512_set1_ps(1.0f)), n);
}
#endif

static void avx512_swiglu(const float *gate, const float *up, size_t count, float *out)
{
    size_t i = 0;
#if !defined(FG_AVX512_SMALL)
    for (; i + 16 <= count; i += 16) {
        __m512 x = _mm512_loadu_ps(gate + i);
        __m512 exp = exp_of(_mm512_xor_ps(x, _mm512_set1_ps(-0.0f)));
        __m512 silu = _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), exp));
        _mm512_storeu_ps(out + i, _mm512_mul_ps(silu, _mm512_loadu_ps(up + i)));
    }
#endif
    fg_cpu_swiglu(gate + i, up + i, count - i, out + i);
}

static void avx512_geglu(const float *gate, const float *up, size_t count, float *out)
{
    size_t i = 0;
#if !defined(FG_AVX512_SMALL)
    for (; i + 16 <= count; i += 16) {
        __m512 x = _mm512_loadu_ps(gate + i);
        __m512 cube = _mm512_mul_ps(_mm512_set1_ps(FG_CPU_GELU_3), _mm512_mul_ps(x, x));
        __m512 t = _mm512_mul_ps(x, _mm512_add_ps(_mm512_set1_ps(FG_CPU_GELU_1), cube));
        __m512 exp = exp_of(_mm512_xor_ps(t, _mm512_set1_ps(-0.0f)));
        __m512 gelu = _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), exp));
        _mm512_storeu_ps(out + i, _mm512_mul_ps(gelu, _mm512_loadu_ps(up + i)));
    }
#endif
    fg_cpu_geglu(gate + i, up + i, count - i, out + i);
}

/* What the tables have in common; products and attention differ. */
#define AVX512_ROWS                                                                                \
    .quantize_supers = avx512_quantize_supers, .quantize_row = avx512_quantize_row,                \
    .quantize_rows = avx512_quantize_rows, .pair_row = avx512_pair_row,                            \
    .rmsnorm_row = avx512_rmsnorm_row, .rmsnorm_rows = avx512_rmsnorm_rows,                        \
    .swiglu = avx512_swiglu, .geglu = avx512_geglu, .rotate = fg_cpu_avx2_rotate,                  \
    .rotate_neighbours = fg_cpu_avx2_rotate_neighbours, .to_halves = fg_cpu_avx2_to_halves

const fg_cpu_kernels fg_cpu_avx512 = {
    AVX512_ROWS,
    .name = "avx512",
    .product_pairs = avx512_pair_row,
    .sliced_columns = fg_cpu_avx512_sliced_columns,
    .widens_pairs = fg_cpu_avx512_is_wide,
    .linear = fg_cpu_avx512_linear,
    .attend = fg_cpu_avx512_attend,
};

const fg_cpu_kernels fg_cpu_avx512_bf16 = {
    AVX512_ROWS,
    .name = "avx512_bf16",
    .product_pairs = avx512_pair_row,
    .sliced_columns = fg_cpu_avx512_sliced_columns,
    .widens_pairs = fg_cpu_avx512_is_wide,
    .linear = fg_cpu_avx512_bf16_linear,
    .attend = fg_cpu_avx512_attend_bf16,
    .tall_tiles = true,
};

static uint32_t amx_sliced_columns(uint32_t type, uint32_t rows)
{
    (void)rows;
    return type == FG_BF16 ? FG_AMX_PAIR_COLUMNS : 0;
}

const fg_cpu_kernels fg_cpu_amx = {
    AVX512_ROWS,
    .name = "amx",
    .product_pairs = apart_pair_row,
    .tile_rows_least = FG_AMX_TILE_ROWS_LEAST,
    .tiles_alone = fg_cpu_amx_tiles_alone,
    .quantize_tiles = avx512_quantize_tiles,
    .sliced_columns = amx_sliced_columns,
    .linear = fg_cpu_amx_linear,
    .attend = fg_cpu_amx_attend,
};
