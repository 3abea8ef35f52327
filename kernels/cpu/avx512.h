/*
 * avx512 - the parts of the AVX-512 table that are not in one file. It needs F, BW, DQ, VL and VNNI,
 * and all that the AVX2 table needs.
 */
#ifndef FORGE_KERNELS_CPU_AVX512_H
#define FORGE_KERNELS_CPU_AVX512_H

#include <immintrin.h>

#include "kernels/cpu/cpu.h"

/* A function for every type and number of rows takes compilers long with sanitizers or emulation (tests). */
#if defined(FORGE_SANITIZED) || defined(FG_AVX512_SMALL)
#define FG_AVX512_INLINE static __attribute__((noinline, unused))
#else
#define FG_AVX512_INLINE static inline __attribute__((always_inline))
#endif

/* The attention of the AVX2 table. */
void fg_cpu_avx2_attend(const fg_cpu_attend *args);

void fg_cpu_avx512_linear(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                          uint32_t first, uint32_t count);
void fg_cpu_avx512_linear_float(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                                uint32_t first, uint32_t count);

/* Sixteen sums to the row's outputs `output` and on, as far as the product has them. */
FG_AVX512_INLINE void fg_avx512_put_panel(const fg_linear *linear, uint32_t row, uint32_t output,
                                          __m512 sums)
{
    uint32_t left = linear->weight.outputs - output;
    float *out = linear->out + (size_t)row * linear->out_stride + output;
    __mmask16 mask = (__mmask16)(left >= 16 ? 0xFFFF : (1u << left) - 1);
    if (linear->accumulate) {
        sums = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, out), sums);
    }
    _mm512_mask_storeu_ps(out, mask, sums);
}

#endif
