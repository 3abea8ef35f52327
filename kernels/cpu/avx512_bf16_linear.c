/*
 * Matrix products with AVX512_BF16: vdpbf16ps adds the pair's upper halves and then its lower ones, each as
 * an fma does, but that it takes denormals for zeros; the pairs of ops.h lead to none.
 */
#include "kernels/cpu/avx512_pairs.h"

FG_AVX512_INLINE __m512 add_pair(__m512 sum, __m512i weights, __m512i pair)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)weights, (__m512bh)pair);
}

void fg_cpu_avx512_bf16_linear(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                               uint32_t first, uint32_t count)
{
    if (linear->weight.type == FG_BF16 && fg_cpu_avx512_is_wide(rows)) {
        fg_cpu_avx512_linear_wide(linear, in, rows, first, count);
    } else if (linear->weight.type == FG_BF16) {
        multiply_pairs(linear, in, rows, first, count);
    } else {
        fg_cpu_avx512_linear(linear, in, rows, first, count);
    }
}
