/*
 * Attention with AVX-512. F16 and bf16 are widened to floats as they are loaded, int8 is multiplied as it is;
 * where the processor multiplies bf16 (AVX512_BF16) and gains by it, so are pairs of a bf16 cache, in
 * avx512_attend_bf16.c.
 */
#include "kernels/cpu/avx512_attend.h"

#include <string.h>

#include "kernels/cpu/avx512_attend_bf16.h"

FG_AVX512_DEFINE(FG_F32)
FG_AVX512_DEFINE(FG_F16)
FG_AVX512_DEFINE(FG_BF16)
FG_AVX512_DEFINE(FG_I8)

static const fg_strip_products *products_of(uint32_t dtype)
{
    static const fg_strip_products f32[] = FG_AVX512_TABLE(FG_F32);
    static const fg_strip_products f16[] = FG_AVX512_TABLE(FG_F16);
    static const fg_strip_products bf16[] = FG_AVX512_TABLE(FG_BF16);
    static const fg_strip_products int8[] = FG_AVX512_TABLE(FG_I8);
    return fg_strip_choose(dtype, f32, f16, bf16, int8);
}

static const fg_strip_products *products_with_pairs(uint32_t dtype)
{
    return dtype == FG_BF16 ? fg_cpu_avx512_attend_pairs : products_of(dtype);
}

static const fg_strip_products *products_with_both(uint32_t dtype)
{
    return dtype == FG_BF16 ? fg_cpu_avx512_attend_both : products_of(dtype);
}

/* fg_cpu_exp2 of sixteen. What is below the least comes out as nonsense, and is masked. */
FG_AVX512_INLINE __m512 exp2_of(__m512 x)
{
    const __m512 magic = _mm512_set1_ps(0x1.8p23f);
    __m512 shifted = _mm512_add_ps(x, magic);
    __m512 f = _mm512_sub_ps(x, _mm512_sub_ps(shifted, magic));
    __m512 p = _mm512_set1_ps(FG_CPU_EXP2_5);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(FG_CPU_EXP2_4));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(FG_CPU_EXP2_3));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(FG_CPU_EXP2_2));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(FG_CPU_EXP2_1));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    __mmask16 there = _mm512_cmp_ps_mask(x, _mm512_set1_ps(FG_CPU_EXP2_LEAST), _CMP_NLT_UQ);
    __m512i power = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
    return _mm512_castsi512_ps(_mm512_maskz_add_epi32(there, power, _mm512_castps_si512(p)));
}

/* Half to even, to bf16 in the upper halves. */
FG_AVX512_INLINE __m512i round_brain(__m512 x)
{
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    bits = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    return _mm512_and_si512(bits, _mm512_set1_epi32((int32_t)0xFFFF0000));
}

/* Sixteen elements in eight pairs, the first of a pair in the upper half. */
FG_AVX512_INLINE void store_pairs(float *at, __m512i brains)
{
    /* Elements 2i come from the lower of two words, elements 2i + 1 go below them. */
    __m512i first = _mm512_and_si512(brains, _mm512_set1_epi64(0xFFFF0000));
    __m512i pairs = _mm512_or_si512(first, _mm512_srli_epi64(brains, 48));
    _mm256_store_si256((__m256i *)(void *)at, _mm512_cvtepi64_epi32(pairs));
}

/* The sum has eight lanes (ops.h): the halves are added in rising order. */
FG_AVX512_INLINE __m256 add_lanes(__m256 sum, __m512 weights)
{
    sum = _mm256_add_ps(sum, _mm512_castps512_ps256(weights));
    return _mm256_add_ps(sum, _mm512_extractf32x8_ps(weights, 1));
}

static void weigh_floats(float *x, uint32_t begin, uint32_t end, float *record)
{
    record[0] = fg_avx512_maximum(x, begin, end);
    __m512 maximum = _mm512_set1_ps(record[0]);
    __m256 sum = _mm256_setzero_ps();
    for (uint32_t j = begin; j < end; j += FG_AVX512_LANES) {
        __m512 weights = exp2_of(_mm512_sub_ps(_mm512_load_ps(x + j), maximum));
        sum = add_lanes(sum, weights);
        _mm512_store_ps(x + j, weights);
    }
    record[FG_ATTEND_SUM] = fg_avx512_fold(sum);
}

/* fg_cpu_brain_exp2 of sixteen, in the upper halves. */
FG_AVX512_INLINE __m512i brain_exp2_of(__m512 x)
{
    const __m512 steps = _mm512_set1_ps(FG_CPU_BRAIN_STEPS);
    __mmask16 there;
    return round_brain(
        fg_avx512_brain_power(_mm512_sub_ps(_mm512_add_ps(x, steps), steps), &there));
}

/* The lanes of a bf16 cache's sum are pairs of slots, which are the 64-bit elements here, of two pieces. */
static void weigh_brain(float *x, uint32_t begin, uint32_t end, float *record)
{
    record[0] = fg_avx512_maximum(x, begin, end);
    __m512 maximum = _mm512_set1_ps(record[0]);
    __m256 sum = _mm256_setzero_ps();
    __m256 other = sum; /* of every second piece: which ones does not matter where both are added */
    for (uint32_t j = begin; j < end; j += FG_AVX512_LANES) {
        __m256 now = other;
        __m512i weights = brain_exp2_of(_mm512_sub_ps(_mm512_load_ps(x + j), maximum));
        __m256i first = _mm512_cvtepi64_epi32(weights);
        __m256i second = _mm512_cvtepi64_epi32(_mm512_srli_epi64(weights, 32));
        now = _mm256_add_ps(now, _mm256_castsi256_ps(first));
        now = _mm256_add_ps(now, _mm256_castsi256_ps(second));
        other = sum;
        sum = now;
        _mm512_store_si512(x + j, weights);
    }
    record[FG_ATTEND_SUM] = fg_avx512_fold(_mm256_add_ps(sum, other));
}

/* Some rows of int8: the first pass leaves weights times V's scales, the second makes bytes of them, written
 * where the first quarter of earlier ones was read. */
FG_AVX512_INLINE void weigh_bytes(int R, const fg_strip_rows *rows, uint32_t first, uint32_t begin,
                                  uint32_t end)
{
    float *const *scores = rows->scores + first;
    __m512 maxima[FG_AVX512_TOGETHER];
    __m512 sums[FG_AVX512_TOGETHER];
    __m512 peaks[FG_AVX512_TOGETHER];
    fg_avx512_begin_weights(R, scores, begin, end, rows->records + first, maxima);
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
        sums[r] = peaks[r] = _mm512_setzero_ps();
    }
    for (uint32_t j = begin; j < end; j += FG_AVX512_LANES) {
        __m512 scales = _mm512_loadu_ps(rows->value_scales[j / FG_KV_PIECE]);
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            __m512 x = _mm512_sub_ps(_mm512_load_ps(scores[r] + j), maxima[r]);
            __mmask16 there; /* what is not seen may have any scale, even none */
            __m512 weights = fg_avx512_brain_power(x, &there);
            __m512 scaled = _mm512_maskz_mul_ps(there, weights, scales);
            sums[r] = _mm512_add_ps(sums[r], weights);
            peaks[r] = _mm512_max_ps(peaks[r], scaled);
            _mm512_store_ps(scores[r] + j, scaled);
        }
    }
    __m512 inverses[FG_AVX512_TOGETHER];
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
        float *record = rows->records[first + (uint32_t)r];
        fg_cpu_byte_weights with = fg_cpu_byte_weights_of(_mm512_reduce_max_ps(peaks[r]));
        record[FG_ATTEND_SUM] = fg_avx512_fold(add_lanes(_mm256_setzero_ps(), sums[r]));
        record[FG_ATTEND_FACTOR] = with.factor;
        inverses[r] = _mm512_set1_ps(with.inverse);
    }
    const __m512 rounders = _mm512_loadu_ps(fg_cpu_rounders);
    for (uint32_t j = begin; j < end; j += FG_AVX512_LANES) {
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            __m512 x = _mm512_fmadd_ps(_mm512_load_ps(scores[r] + j), inverses[r], rounders);
            __m128i bytes = _mm512_cvtepi32_epi8(_mm512_cvttps_epi32(x));
            _mm_store_si128((__m128i *)(void *)(scores[r] + j / 4), bytes);
        }
    }
}

static void weigh_all_bytes(const fg_strip_rows *rows, uint32_t begin, uint32_t end)
{
    uint32_t i = 0;
    for (; i + FG_AVX512_TOGETHER <= rows->count; i += FG_AVX512_TOGETHER) {
        weigh_bytes(FG_AVX512_TOGETHER, rows, i, begin, end);
    }
    for (; i < rows->count; i++) {
        weigh_bytes(1, rows, i, begin, end);
    }
}

static void weigh(uint32_t dtype, const fg_strip_rows *rows, uint32_t begin, uint32_t end)
{
    if (dtype == FG_I8) {
        weigh_all_bytes(rows, begin, end);
        return;
    }
    for (uint32_t i = 0; i < rows->count; i++) {
        if (dtype == FG_BF16) {
            weigh_brain(rows->scores[i], begin, end, rows->records[i]);
        } else {
            weigh_floats(rows->scores[i], begin, end, rows->records[i]);
        }
    }
}

static void weigh_pairs(uint32_t dtype, const fg_strip_rows *rows, uint32_t begin, uint32_t end)
{
    if (dtype == FG_BF16) {
        fg_cpu_avx512_weigh_pairs(rows, begin, end);
    } else {
        weigh(dtype, rows, begin, end);
    }
}

static void weigh_words(uint32_t dtype, const fg_strip_rows *rows, uint32_t begin, uint32_t end)
{
    (void)dtype;
    fg_cpu_avx512_weigh_words(rows, begin, end);
}

static void settle_scores(float *x, const float *const *scales, float factor, uint32_t begin,
                          uint32_t end)
{
    for (uint32_t j = begin; j < end; j += FG_AVX512_LANES) {
        __m512 sums = _mm512_cvtepi32_ps(_mm512_load_si512(x + j));
        __m512 scaled = _mm512_mul_ps(sums, _mm512_loadu_ps(scales[j / FG_KV_PIECE]));
        _mm512_store_ps(x + j, _mm512_mul_ps(scaled, _mm512_set1_ps(factor)));
    }
}

static void settle_values(float *x, float factor, uint32_t count)
{
    for (uint32_t d = 0; d < count; d += FG_AVX512_LANES) {
        __m512 sums = _mm512_cvtepi32_ps(_mm512_load_si512(x + d));
        _mm512_store_ps(x + d, _mm512_mul_ps(sums, _mm512_set1_ps(factor)));
    }
}

/* All pairs at once. */
static void find_factors(fg_strip_merge *m)
{
    _Static_assert((int)FG_STRIP_MAX == (int)FG_AVX512_LANES, "a lane for each pair");
    for (uint32_t i = 0; i < m->count; i++) {
        m->before[i] = m->states[i][0];
        m->now[i] = m->records[i][0];
    }
    __mmask16 pairs = (__mmask16)((1u << m->count) - 1);
    __m512 one = _mm512_set1_ps(1.0f);
    __m512 before = _mm512_maskz_loadu_ps(pairs, m->before);
    __m512 now = _mm512_maskz_loadu_ps(pairs, m->now);
    __mmask16 rises = _mm512_cmp_ps_mask(now, before, _CMP_GT_OQ);
    __m512 larger = _mm512_mask_blend_ps(rises, before, now);
    __m512 smaller = _mm512_mask_blend_ps(rises, now, before);
    __m512 lesser = exp2_of(_mm512_sub_ps(smaller, larger));
    _mm512_store_ps(m->before, _mm512_mask_blend_ps(rises, one, lesser));
    _mm512_store_ps(m->now, _mm512_mask_blend_ps(rises, lesser, one));
    _mm512_store_ps(m->maxima, larger);
}

static void merge(const fg_strip_merge *m, uint32_t head_dim)
{
    for (uint32_t i = 0; i < m->count; i++) {
        float *state = m->states[i];
        const float *record = m->records[i];
        __m512 before = _mm512_set1_ps(m->before[i]);
        __m512 now = _mm512_set1_ps(m->now[i]);
        /* The sum with the vector that it lies in, whose other elements mean nothing. */
        for (uint32_t d = 0; d < FG_ATTEND_HEAD + head_dim; d += FG_AVX512_LANES) {
            __m512 old = _mm512_mul_ps(_mm512_load_ps(state + d), before);
            _mm512_store_ps(state + d, _mm512_fmadd_ps(_mm512_load_ps(record + d), now, old));
        }
        state[0] = m->maxima[i];
    }
}

/* Maxima and sums of eight records. */
static inline void load_heads(float const *const *records, __m256 *maxima, __m256 *sums)
{
    __m128 two[4];
    for (int i = 0; i < 4; i++) {
        __m128 first = _mm_loadl_pi(_mm_setzero_ps(), (const __m64 *)(const void *)records[2 * i]);
        two[i] = _mm_loadh_pi(first, (const __m64 *)(const void *)records[2 * i + 1]);
    }
    __m256 low = _mm256_insertf128_ps(_mm256_castps128_ps256(two[0]), two[2], 1);
    __m256 high = _mm256_insertf128_ps(_mm256_castps128_ps256(two[1]), two[3], 1);
    *maxima = _mm256_shuffle_ps(low, high, 0x88);
    *sums = _mm256_shuffle_ps(low, high, 0xDD);
}

/* find_factors, and of maxima and sums merge, for a whole strip. */
static bool join(fg_strip_merge *m)
{
    _Static_assert((int)FG_ATTEND_SUM == 1 && (int)FG_AVX512_STRIP == 8, "eight pairs of floats");
    __m256 before, now, sums_before, sums_now;
    load_heads((float const *const *)m->states, &before, &sums_before);
    load_heads(m->records, &now, &sums_now);
    __m256 zero = _mm256_setzero_ps();
    __mmask8 there = _mm256_cmp_ps_mask(sums_before, zero, _CMP_NEQ_UQ) &
                     _mm256_cmp_ps_mask(sums_now, zero, _CMP_NEQ_UQ);
    if (there != 0xFF) {
        return false;
    }
    __m256 one = _mm256_set1_ps(1.0f);
    __mmask8 rises = _mm256_cmp_ps_mask(now, before, _CMP_GT_OQ);
    __m256 larger = _mm256_mask_blend_ps(rises, before, now);
    __m256 smaller = _mm256_mask_blend_ps(rises, now, before);
    __m512 lesser16 = exp2_of(_mm512_castps256_ps512(_mm256_sub_ps(smaller, larger)));
    __m256 lesser = _mm512_castps512_ps256(lesser16);
    __m256 with_before = _mm256_mask_blend_ps(rises, one, lesser);
    __m256 with_now = _mm256_mask_blend_ps(rises, lesser, one);
    __m256 sums = _mm256_fmadd_ps(sums_now, with_now, _mm256_mul_ps(sums_before, with_before));
    float heads[2][FG_AVX512_STRIP];
    _mm256_storeu_ps(heads[0], larger);
    _mm256_storeu_ps(heads[1], sums);
    _mm256_store_ps(m->before, with_before);
    _mm256_store_ps(m->now, with_now);
    for (int i = 0; i < FG_AVX512_STRIP; i++) {
        m->states[i][0] = heads[0][i];
        m->states[i][FG_ATTEND_SUM] = heads[1][i];
    }
    return true;
}

static void multiply(const float *x, float factor, uint32_t count, float *out)
{
    for (uint32_t d = 0; d < count; d += FG_AVX512_LANES) {
        __m512 product = _mm512_mul_ps(_mm512_load_ps(x + d), _mm512_set1_ps(factor));
        _mm512_storeu_ps(out + d, product);
    }
}

FG_AVX512_INLINE void pack_any(bool brain, bool pairs, const float *q, float factor,
                               uint32_t head_dim, float *packed)
{
    for (uint32_t d = 0; d < head_dim; d += FG_AVX512_LANES) {
        __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(q + d), _mm512_set1_ps(factor));
        if (brain) {
            scaled = _mm512_castsi512_ps(fg_avx512_brain(scaled));
        }
        if (pairs) {
            store_pairs(packed + d / 2, _mm512_castps_si512(scaled));
        } else {
            _mm512_store_ps(packed + d, scaled);
        }
    }
}

static void pack_bytes(const float *q, float factor, uint32_t head_dim, float *packed)
{
    __m512 peaks = _mm512_setzero_ps();
    __m512i sums = _mm512_setzero_si512();
    for (uint32_t d = 0; d < head_dim; d += FG_AVX512_LANES) {
        peaks = _mm512_max_ps(_mm512_abs_ps(_mm512_loadu_ps(q + d)), peaks);
    }
    fg_cpu_byte_scale scale = fg_cpu_byte_scale_of(_mm512_reduce_max_ps(peaks));
    for (uint32_t d = 0; d < head_dim; d += FG_AVX512_LANES) {
        __m512 x = _mm512_mul_ps(_mm512_loadu_ps(q + d), _mm512_set1_ps(scale.inverse));
        __mmask16 numbers = _mm512_cmp_ps_mask(x, x, _CMP_EQ_OQ);
        __m512i bytes = _mm512_maskz_mov_epi32(numbers, _mm512_cvtps_epi32(x));
        sums = _mm512_add_epi32(sums, bytes);
        _mm_store_si128((__m128i *)(void *)(packed + d / 4), _mm512_cvtepi32_epi8(bytes));
    }
    uint32_t negated = -128u * (uint32_t)_mm512_reduce_add_epi32(sums);
    packed[FG_STRIP_Q_FACTOR] = scale.scale * factor;
    memcpy(&packed[FG_STRIP_Q_NEGATED], &negated, sizeof negated);
}

static void pack_q(uint32_t dtype, const float *q, float factor, uint32_t head_dim, float *packed)
{
    if (dtype == FG_I8) {
        pack_bytes(q, factor, head_dim, packed);
        return;
    }
    pack_any(dtype == FG_BF16, false, q, factor, head_dim, packed);
}

static void pack_q_pairs(uint32_t dtype, const float *q, float factor, uint32_t head_dim,
                         float *packed)
{
    if (dtype == FG_BF16) {
        pack_any(true, true, q, factor, head_dim, packed);
    } else {
        pack_q(dtype, q, factor, head_dim, packed);
    }
}

static void copy(uint32_t dtype, uint8_t *to, const uint8_t *from, size_t count)
{
    if (dtype == FG_F16) {
        for (size_t i = 0; i < count; i += FG_AVX512_LANES) {
            _mm512_store_ps(to + i * sizeof(float), fg_avx512_load(FG_F16, false, from + i * 2));
        }
        return;
    }
    for (size_t at = 0; at < count * fg_dtype_kv_bytes(dtype); at += 64) {
        _mm512_store_si512(to + at, _mm512_loadu_si512(from + at));
    }
}

enum { DIM_STEP = FG_AVX512_LANES };

/* What both tables share. */
#define SHARED_KERNELS                                                                             \
    .strip_max = FG_AVX512_STRIP, .dim_step = DIM_STEP, .ahead = 8, .begins = true,                \
    .settle_scores = settle_scores, .settle_values = settle_values, .find_factors = find_factors,  \
    .merge = merge, .join = join, .multiply = multiply, .copy = copy

static void attend(const fg_strip_kernels *kernels, const fg_cpu_attend *args)
{
    if (args->kv->head_dim % DIM_STEP != 0) {
        fg_cpu_avx2_attend(args);
        return;
    }
    fg_strip_attend(kernels, args);
}

const fg_strip_kernels fg_cpu_avx512_strip = {
    .products = products_of, .pack_q = pack_q, .weigh = weigh, SHARED_KERNELS
};

/* Floats over copies, by weights made as it is said. */
#define WIDE(how)                                                                                  \
    {                                                                                              \
        .products = products_of, .widened = fg_cpu_avx512_attend_wide,                             \
        .lay_out = fg_cpu_avx512_lay_out_wide, .pack_q = pack_q, .weigh = (how), SHARED_KERNELS    \
    }

static bool attends_wide(const fg_cpu_attend *args)
{
    return args->kv->dtype == FG_BF16 && fg_avx512_shares_pipes();
}

void fg_cpu_avx512_attend(const fg_cpu_attend *args)
{
    static const fg_strip_kernels wide = WIDE(weigh);
    attend(attends_wide(args) ? &wide : &fg_cpu_avx512_strip, args);
}

#define WITH_PAIRS                                                                                 \
    .pack_q = pack_q_pairs, .weigh = weigh_pairs, .beside_dtype = FG_BF16, SHARED_KERNELS

void fg_cpu_avx512_attend_bf16(const fg_cpu_attend *args)
{
    static const fg_strip_kernels one = { .products = products_with_pairs,
                                          .scores_beside = fg_cpu_avx512_scores_beside,
                                          WITH_PAIRS };
    static const fg_strip_kernels both = { .products = products_with_both,
                                           .scores_beside = fg_cpu_avx512_scores_beside_both,
                                           WITH_PAIRS };
    static const fg_strip_kernels wide = WIDE(weigh_words);
    if (attends_wide(args)) {
        attend(&wide, args);
        return;
    }
    attend(fg_avx512_begins_two() ? &both : &one, args);
}
