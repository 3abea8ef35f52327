/*
 * avx2 - the parts of the tables avx2 and avx_vnni that are not in one file.
 */
#ifndef FORGE_KERNELS_CPU_AVX2_H
#define FORGE_KERNELS_CPU_AVX2_H

#include <immintrin.h>

#include "kernels/cpu/cpu.h"

void fg_cpu_avx2_linear(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                        uint32_t first, uint32_t count);
void fg_cpu_avx2_linear_float(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                              uint32_t first, uint32_t count);
void fg_cpu_avx2_linear_bf16(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                             uint32_t first, uint32_t count);
/* Q8_0, many rows. */
void fg_cpu_avx2_linear_q8(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                           uint32_t first, uint32_t count);
/* Q4_K, Q5_K and Q6_K. */
void fg_cpu_avx2_linear_super(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                              uint32_t first, uint32_t count);
/* With AVX-VNNI: quantised types; others as fg_cpu_avx2_linear. */
void fg_cpu_avx_vnni_linear(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                            uint32_t first, uint32_t count);
/* Sixteen sums to the row's outputs `output` and on, as far as the product has them. */
void fg_cpu_avx2_put_panel(const fg_linear *linear, uint32_t row, uint32_t output,
                           const __m256 sums[2]);
void fg_cpu_avx2_attend(const fg_cpu_attend *args);
void fg_cpu_avx2_rotate(float *x, const float *turns, uint32_t pair_count);
void fg_cpu_avx2_rotate_neighbours(float *x, const float *turns, uint32_t pair_count);
void fg_cpu_avx2_to_halves(const float *values, uint32_t count, uint16_t *halves);

#endif
