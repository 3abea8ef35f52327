/*
 * Matrix products with AVX-512 and BF16 weights where the processor lacks AVX512_BF16: both columns of a pair
 * are widened, and added by an fma each.
 */
#include "kernels/cpu/avx512_pairs.h"

FG_AVX512_INLINE __m512 first_of(__m512i pair)
{
    return _mm512_castsi512_ps(fg_avx512_upper(pair));
}

FG_AVX512_INLINE __m512 second_of(__m512i pair)
{
    return _mm512_castsi512_ps(fg_avx512_lower(pair));
}

FG_AVX512_INLINE __m512 add_pair(__m512 sum, __m512i weights, __m512i pair)
{
    sum = _mm512_fmadd_ps(first_of(weights), first_of(pair), sum);
    return _mm512_fmadd_ps(second_of(weights), second_of(pair), sum);
}

void fg_cpu_avx512_linear_bf16(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                               uint32_t first, uint32_t count)
{
    if (fg_cpu_avx512_is_wide(rows)) {
        fg_cpu_avx512_linear_wide(linear, in, rows, first, count);
    } else {
        multiply_pairs(linear, in, rows, first, count);
    }
}
