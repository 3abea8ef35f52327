#include "kernels/cpu/avx512.h"

#include "kernels/cpu/amx.h"
#include "kernels/cpu/avx2.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/plain.h"

static void avx512_quantize_row(const float *values, uint32_t columns, int8_t *quants,
                                fg_quant_group *groups)
{
    const __m512i magnitude = _mm512_set1_epi32(INT32_MAX);
    for (uint32_t g = 0; g < columns / FG_QUANT_GROUP; g++) {
        const float *x = values + (size_t)g * FG_QUANT_GROUP;
        int8_t *q = quants + (size_t)g * FG_QUANT_GROUP;
        __m512 a = _mm512_loadu_ps(x);
        __m512 b = _mm512_loadu_ps(x + 16);
        __m512i peaks = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(a), magnitude),
                                         _mm512_and_si512(_mm512_castps_si512(b), magnitude));
        uint32_t peak_bits = (uint32_t)_mm512_reduce_max_epi32(peaks);
        if (fg_cpu_is_odd(peak_bits)) {
            groups[g] = fg_cpu_no_group(q);
            continue;
        }
        float peak = fg_f32_from_bits(peak_bits);
        bool zero = !(peak >= FG_CPU_QUANT_TINY);
        float scale = zero ? 0.0f : peak / 127.0f;
        __m512 inverse = _mm512_set1_ps(zero ? 0.0f : 127.0f / peak);
        __m512i first = _mm512_cvtps_epi32(_mm512_mul_ps(a, inverse));
        __m512i second = _mm512_cvtps_epi32(_mm512_mul_ps(b, inverse));
        _mm_storeu_si128((__m128i *)q, _mm512_cvtepi32_epi8(first));
        _mm_storeu_si128((__m128i *)(q + 16), _mm512_cvtepi32_epi8(second));
        int32_t sums[2] = { _mm512_reduce_add_epi32(first), _mm512_reduce_add_epi32(second) };
        groups[g] = fg_cpu_quant_group(scale, sums[0], sums[1]);
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
    .pair_columns = FG_AMX_PAIR_COLUMNS,
    .linear = fg_cpu_amx_linear,
    .attend = fg_cpu_amx_attend,
};
