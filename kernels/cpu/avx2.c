#include "kernels/cpu/avx2.h"
#include "kernels/cpu/avx2_math.h"
#include "kernels/cpu/plain.h"

/* The largest of eight lanes. */
static int32_t largest(__m256i v)
{
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4E));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xB1));
    return _mm_cvtsi128_si32(m);
}

static int32_t sum_of(__m256i v)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1));
    return _mm_cvtsi128_si32(s);
}

static void avx2_quantize_row(const float *values, uint32_t columns, int8_t *quants,
                              fg_quant_group *groups)
{
    const __m256i magnitude = _mm256_set1_epi32(INT32_MAX);
    /* packs works inside each half of a register; this puts the eight words back in order. */
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (uint32_t g = 0; g < columns / FG_QUANT_GROUP; g++) {
        const float *x = values + (size_t)g * FG_QUANT_GROUP;
        __m256 v[4];
        __m256i peaks = _mm256_setzero_si256();
        for (int i = 0; i < 4; i++) {
            v[i] = _mm256_loadu_ps(x + 8 * i);
            peaks = _mm256_max_epi32(_mm256_and_si256(_mm256_castps_si256(v[i]), magnitude), peaks);
        }
        uint32_t peak_bits = (uint32_t)largest(peaks);
        if (fg_cpu_is_odd(peak_bits)) {
            groups[g] = fg_cpu_no_group(quants + (size_t)g * FG_QUANT_GROUP);
            continue;
        }
        float peak = fg_f32_from_bits(peak_bits);
        bool zero = !(peak >= FG_CPU_QUANT_TINY);
        float scale = zero ? 0.0f : peak / 127.0f;
        __m256 inverse = _mm256_set1_ps(zero ? 0.0f : 127.0f / peak);
        __m256i q[4];
        for (int i = 0; i < 4; i++) {
            q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
        }
        int32_t first = sum_of(_mm256_add_epi32(q[0], q[1]));
        int32_t second = sum_of(_mm256_add_epi32(q[2], q[3]));
        __m256i bytes =
            _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
        bytes = _mm256_permutevar8x32_epi32(bytes, order);
        _mm256_storeu_si256((__m256i *)(quants + (size_t)g * FG_QUANT_GROUP), bytes);
        groups[g] = fg_cpu_quant_group(scale, first, second);
    }
}

/* ---- super-groups ---- */

/* The largest magnitudes of the groups, as bits. */
static __m256i peaks_of_groups(const float *values)
{
    const __m256i magnitude = _mm256_set1_epi32(INT32_MAX);
    __m256i peaks[FG_QUANT_SUPER_GROUPS], fours[2];
    for (int g = 0; g < FG_QUANT_SUPER_GROUPS; g++) {
        peaks[g] = _mm256_setzero_si256();
        for (int i = 0; i < FG_QUANT_GROUP; i += 8) {
            __m256i x = _mm256_castps_si256(_mm256_loadu_ps(values + g * FG_QUANT_GROUP + i));
            peaks[g] = _mm256_max_epi32(peaks[g], _mm256_and_si256(x, magnitude));
        }
    }
    for (int i = 0; i < 2; i++) {
        const __m256i *p = peaks + (size_t)(4 * i);
        __m256i low =
            _mm256_max_epi32(_mm256_unpacklo_epi32(p[0], p[1]), _mm256_unpackhi_epi32(p[0], p[1]));
        __m256i high =
            _mm256_max_epi32(_mm256_unpacklo_epi32(p[2], p[3]), _mm256_unpackhi_epi32(p[2], p[3]));
        fours[i] =
            _mm256_max_epi32(_mm256_unpacklo_epi64(low, high), _mm256_unpackhi_epi64(low, high));
    }
    return _mm256_max_epi32(_mm256_permute2x128_si256(fours[0], fours[1], 0x20),
                            _mm256_permute2x128_si256(fours[0], fours[1], 0x31));
}

/* fg_cpu_super_shift of all groups. */
static __m256i shifts_of(__m256i peak_bits, float inverse)
{
    __m256 most = _mm256_mul_ps(_mm256_castsi256_ps(peak_bits), _mm256_set1_ps(inverse));
    __m256i shifts = _mm256_setzero_si256();
    for (int i = 0; i < FG_QUANT_SHIFT_MAX; i++) {
        __m256 above = _mm256_cmp_ps(most, _mm256_set1_ps((float)(127 << i)), _CMP_GT_OQ);
        shifts = _mm256_sub_epi32(shifts, _mm256_castps_si256(above));
    }
    return shifts;
}

/* A group's bytes; returns the sums of four each. */
static __m256i put_group(const float *x, __m256 inverse, int8_t *quants)
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i q[4];
    for (int i = 0; i < 4; i++) {
        q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), inverse));
    }
    __m256i bytes =
        _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    bytes = _mm256_permutevar8x32_epi32(bytes, order);
    _mm256_storeu_si256((__m256i *)(void *)quants, bytes);
    return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes),
                             _mm256_set1_epi16(1));
}

/* The sums of four groups from `g` on, 2^shift times. */
static void put_sums(const __m256i fours[4], __m128i shifts, fg_quant_super *super, int g)
{
    __m256i halves = _mm256_hadd_epi32(_mm256_hadd_epi32(fours[0], fours[1]),
                                       _mm256_hadd_epi32(fours[2], fours[3]));
    __m128i first = _mm_sllv_epi32(_mm256_castsi256_si128(halves), shifts);
    __m128i second = _mm_sllv_epi32(_mm256_extracti128_si256(halves, 1), shifts);
    __m128i sum = _mm_add_epi32(first, second);
    _mm_storeu_si128((__m128i *)(void *)super->halves[g],
                     _mm_blend_epi16(first, _mm_slli_epi32(second, 16), 0xAA));
    _mm_storel_epi64((__m128i *)(void *)(super->sums + g), _mm_packs_epi32(sum, sum));
}

static void quantize_super(const float *values, int8_t *quants, fg_quant_super *super)
{
    __m256i peaks = peaks_of_groups(values);
    uint32_t peak_bits = (uint32_t)largest(peaks);
    if (fg_cpu_is_odd(peak_bits)) {
        *super = fg_cpu_no_super(quants);
        return;
    }
    fg_cpu_super_scale with = fg_cpu_super_scale_of(fg_f32_from_bits(peak_bits));
    __m256i shifts = shifts_of(peaks, with.inverse);
    __m256i powers = _mm256_slli_epi32(_mm256_sub_epi32(_mm256_set1_epi32(127), shifts), 23);
    float inverses[FG_QUANT_SUPER_GROUPS];
    __m256i fours[FG_QUANT_SUPER_GROUPS];
    _mm256_storeu_ps(inverses,
                     _mm256_mul_ps(_mm256_set1_ps(with.inverse), _mm256_castsi256_ps(powers)));
    for (int g = 0; g < FG_QUANT_SUPER_GROUPS; g++) {
        size_t at = (size_t)g * FG_QUANT_GROUP;
        fours[g] = put_group(values + at, _mm256_set1_ps(inverses[g]), quants + at);
    }
    super->scale = with.scale;
    _mm256_storeu_si256((__m256i *)(void *)super->shifts, shifts);
    put_sums(fours, _mm256_castsi256_si128(shifts), super, 0);
    put_sums(fours + 4, _mm256_extracti128_si256(shifts, 1), super, 4);
}

static void avx2_quantize_supers(const float *values, uint32_t columns, int8_t *quants,
                                 fg_quant_super *supers)
{
    for (size_t s = 0; s < columns / FG_QUANT_SUPER; s++) {
        quantize_super(values + s * FG_QUANT_SUPER, quants + s * FG_QUANT_SUPER, &supers[s]);
    }
}

static void avx2_pair_row(const float *values, uint32_t columns, uint32_t *pairs)
{
    const __m256i upper = _mm256_set1_epi64x(0xFFFF0000);
    const __m256i even = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
    uint32_t k = 0;
    for (; k + 8 <= columns; k += 8) {
        /* Of two columns in 64 bits the first one's bits 16..31 stay, the second one's go below them. */
        __m256i x = fg_avx2_brain(_mm256_loadu_ps(values + k));
        x = _mm256_or_si256(_mm256_and_si256(x, upper), _mm256_srli_epi64(x, 48));
        x = _mm256_permutevar8x32_epi32(x, even);
        _mm_storeu_si128((__m128i *)(pairs + k / 2), _mm256_castsi256_si128(x));
    }
    for (; k < columns; k += 2) {
        pairs[k / 2] = fg_cpu_pair(values + k, columns - k);
    }
}

static void avx2_rmsnorm_row(const float *in, const float *weight, uint32_t columns, float epsilon,
                             float *out)
{
    if (columns % 8 != 0) {
        fg_cpu_plain_rmsnorm_row(in, weight, columns, epsilon, out);
        return;
    }
    __m256 lanes = _mm256_setzero_ps();
    for (uint32_t i = 0; i < columns; i += 8) {
        __m256 x = _mm256_loadu_ps(in + i);
        lanes = _mm256_fmadd_ps(x, x, lanes);
    }
    float mean = fg_avx2_fold(lanes) / (float)columns;
    __m256 factor = _mm256_set1_ps(1.0f / __builtin_sqrtf(mean + epsilon));
    for (uint32_t i = 0; i < columns; i += 8) {
        __m256 x = _mm256_mul_ps(_mm256_loadu_ps(in + i), factor);
        _mm256_storeu_ps(out + i, _mm256_mul_ps(x, _mm256_loadu_ps(weight + i)));
    }
}

static void avx2_swiglu(const float *gate, const float *up, size_t count, float *out)
{
    fg_cpu_swiglu(gate, up, count, out);
}

static void avx2_geglu(const float *gate, const float *up, size_t count, float *out)
{
    fg_cpu_geglu(gate, up, count, out);
}

void fg_cpu_avx2_rotate(float *x, const float *turns, uint32_t pair_count)
{
    if (pair_count % 8 != 0) {
        fg_cpu_plain_rotate(x, turns, pair_count);
        return;
    }
    for (uint32_t i = 0; i < pair_count; i += 8) {
        __m256 first = _mm256_loadu_ps(turns + (size_t)2 * i);
        __m256 second = _mm256_loadu_ps(turns + (size_t)2 * i + 8);
        /* {0, 1, 4, 5, 2, 3, 6, 7}, in twos. */
        __m256d mixed_cosines = _mm256_castps_pd(_mm256_shuffle_ps(first, second, 0x88));
        __m256d mixed_sines = _mm256_castps_pd(_mm256_shuffle_ps(first, second, 0xDD));
        __m256 cosine = _mm256_castpd_ps(_mm256_permute4x64_pd(mixed_cosines, 0xD8));
        __m256 sine = _mm256_castpd_ps(_mm256_permute4x64_pd(mixed_sines, 0xD8));
        __m256 a = _mm256_loadu_ps(x + i);
        __m256 b = _mm256_loadu_ps(x + i + pair_count);
        _mm256_storeu_ps(x + i, _mm256_sub_ps(_mm256_mul_ps(a, cosine), _mm256_mul_ps(b, sine)));
        _mm256_storeu_ps(x + i + pair_count,
                         _mm256_add_ps(_mm256_mul_ps(a, sine), _mm256_mul_ps(b, cosine)));
    }
}

void fg_cpu_avx2_rotate_neighbours(float *x, const float *turns, uint32_t pair_count)
{
    uint32_t whole = pair_count / 4 * 4;
    for (uint32_t i = 0; i < whole; i += 4) {
        __m256 turn = _mm256_loadu_ps(turns + (size_t)2 * i);
        __m256 pairs = _mm256_loadu_ps(x + (size_t)2 * i);
        __m256 swapped = _mm256_permute_ps(pairs, 0xB1);
        __m256 turned = _mm256_addsub_ps(_mm256_mul_ps(pairs, _mm256_moveldup_ps(turn)),
                                         _mm256_mul_ps(swapped, _mm256_movehdup_ps(turn)));
        _mm256_storeu_ps(x + (size_t)2 * i, turned);
    }
    fg_cpu_plain_rotate_neighbours(x + (size_t)2 * whole, turns + (size_t)2 * whole,
                                   pair_count - whole);
}

void fg_cpu_avx2_to_halves(const float *values, uint32_t count, uint16_t *halves)
{
    uint32_t whole = count / 8 * 8;
    for (uint32_t i = 0; i < whole; i += 8) {
        __m128i rounded = _mm256_cvtps_ph(_mm256_loadu_ps(values + i), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128((__m128i *)(void *)(halves + i), rounded);
    }
    fg_cpu_plain_to_halves(values + whole, count - whole, halves + whole);
}

/* What the tables have in common; products of bytes differ. */
#define AVX2_ROWS                                                                                  \
    .quantize_row = avx2_quantize_row, .quantize_supers = avx2_quantize_supers,                    \
    .pair_row = avx2_pair_row, .product_pairs = avx2_pair_row, .rmsnorm_row = avx2_rmsnorm_row,    \
    .swiglu = avx2_swiglu, .geglu = avx2_geglu, .attend = fg_cpu_avx2_attend,                      \
    .rotate = fg_cpu_avx2_rotate, .rotate_neighbours = fg_cpu_avx2_rotate_neighbours,              \
    .to_halves = fg_cpu_avx2_to_halves

const fg_cpu_kernels fg_cpu_avx2 = {
    AVX2_ROWS,
    .name = "avx2",
    .linear = fg_cpu_avx2_linear,
};

const fg_cpu_kernels fg_cpu_avx_vnni = {
    AVX2_ROWS,
    .name = "avx_vnni",
    .linear = fg_cpu_avx_vnni_linear,
};
