/*
 * neon - the parts of the NEON table that are not in one file. It needs the dot product instructions of
 * ARMv8.2.
 */
#ifndef FORGE_KERNELS_CPU_NEON_H
#define FORGE_KERNELS_CPU_NEON_H

#if defined(__aarch64__)
#include <arm_neon.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/math.h"

#define FG_NEON_INLINE static inline __attribute__((always_inline))

/* Four lanes. */
enum { FG_NEON_PANEL_QUARTERS = FG_PANEL_OUTPUTS / 4 };

void fg_cpu_neon_linear(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                        uint32_t first, uint32_t count);
void fg_cpu_neon_linear_float(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                              uint32_t first, uint32_t count);
void fg_cpu_neon_linear_bf16(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                             uint32_t first, uint32_t count);
void fg_cpu_neon_attend(const fg_cpu_attend *args);

/* fg_cpu_brain of four floats' bits: bf16 in the upper halves of their lanes, 0 in the lower ones. */
FG_NEON_INLINE uint32x4_t fg_neon_brain(uint32x4_t bits)
{
    const uint32x4_t magnitude = vdupq_n_u32(INT32_MAX);
    uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    uint32x4_t up = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7FFF)));
    uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    uint32x4_t is_nan = vcgtq_u32(vandq_u32(bits, magnitude), vdupq_n_u32(0x7F800000));
    uint32x4_t rounded = vandq_u32(vbslq_u32(is_nan, quiet, up), vdupq_n_u32(0xFFFF0000));
    uint32x4_t is_normal =
        vcgeq_u32(vandq_u32(rounded, magnitude), vdupq_n_u32(FG_CPU_BF16_LEAST << 16));
    return vandq_u32(rounded, is_normal);
}

/* Sixteen sums to the row's outputs `output` and on, as far as the product has them. */
FG_NEON_INLINE void fg_neon_put_panel(const fg_linear *linear, uint32_t row, uint32_t output,
                                      const float32x4_t sums[FG_NEON_PANEL_QUARTERS])
{
    uint32_t left = linear->weight.outputs - output;
    uint32_t count = left < FG_PANEL_OUTPUTS ? left : FG_PANEL_OUTPUTS;
    float *out = linear->out + (size_t)row * linear->out_stride + output;
    float values[FG_PANEL_OUTPUTS];
    for (int i = 0; i < FG_NEON_PANEL_QUARTERS; i++) {
        vst1q_f32(values + 4 * i, sums[i]);
    }
    for (uint32_t i = 0; i < count; i++) {
        out[i] = linear->accumulate ? out[i] + values[i] : values[i];
    }
}

#endif
#endif
