/*
 * plain - the reference kernels that vector ones fall back on for shapes they do not take.
 */
#ifndef FORGE_KERNELS_CPU_PLAIN_H
#define FORGE_KERNELS_CPU_PLAIN_H

#include "kernels/cpu/cpu.h"

void fg_cpu_plain_rmsnorm_row(const float *in, const float *weight, uint32_t columns, float epsilon,
                              float *out);
void fg_cpu_plain_quantize_supers(const float *values, uint32_t columns, int8_t *quants,
                                  fg_quant_super *supers);
void fg_cpu_plain_linear(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                         uint32_t first, uint32_t count);
void fg_cpu_plain_attend(const fg_cpu_attend *args);
void fg_cpu_plain_rotate(float *x, const float *turns, uint32_t pair_count);
void fg_cpu_plain_rotate_neighbours(float *x, const float *turns, uint32_t pair_count);
void fg_cpu_plain_to_halves(const float *values, uint32_t count, uint16_t *halves);

#endif
