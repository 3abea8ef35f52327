/*
 * avx2 - the parts of the AVX2 table that are not in one file.
 */
#ifndef FORGE_KERNELS_CPU_AVX2_H
#define FORGE_KERNELS_CPU_AVX2_H

#include "kernels/cpu/cpu.h"

void fg_cpu_avx2_linear(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                        uint32_t first, uint32_t count);
void fg_cpu_avx2_attend(const fg_cpu_attend *args);

#endif
