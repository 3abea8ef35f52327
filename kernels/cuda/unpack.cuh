/*
 * unpack - one element of a row of any weight type, as the float that the CPU's embedding reads
 * (kernels/cpu/unpack.h has the formats).
 */
#ifndef FORGE_KERNELS_CUDA_UNPACK_CUH
#define FORGE_KERNELS_CUDA_UNPACK_CUH

#include "kernels/cuda/cuda.h"

/* Model files know no alignment but that of bytes in their blocks. */
static __device__ __forceinline__ float fg_gpu_half(const uint8_t *bytes)
{
    uint32_t half = (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8;
    uint32_t sign = (half & 0x8000u) << 16;
    uint32_t exponent = (half >> 10) & 31u;
    uint32_t mantissa = half & 0x3FFu;
    if (exponent == 0) {
        return __uint_as_float(__float_as_uint((float)mantissa * 0x1p-24f) | sign);
    }
    return __uint_as_float(exponent == 31 ? sign | 0x7F800000u | mantissa << 13
                                          : sign | (exponent + 112) << 23 | mantissa << 13);
}

static __device__ __forceinline__ float fg_gpu_k_at(const uint8_t *block, uint32_t i, bool five)
{
    uint32_t g = i / 32;
    const uint8_t *s = block + 4;
    uint32_t scale, minimum;
    if (g < 4) {
        scale = s[g] & 63u;
        minimum = s[g + 4] & 63u;
    } else {
        scale = (s[g + 4] & 15u) | (uint32_t)(s[g - 4] >> 6) << 4;
        minimum = (uint32_t)(s[g + 4] >> 4) | (uint32_t)(s[g] >> 6) << 4;
    }
    uint32_t byte = block[(five ? 48 : 16) + 32 * (g / 2) + i % 32];
    uint32_t q = g % 2 == 0 ? byte & 15u : byte >> 4;
    if (five) {
        q |= (((uint32_t)block[16 + i % 32] >> g) & 1u) << 4;
    }
    float value = __fmul_rn(__fmul_rn(fg_gpu_half(block), (float)scale), (float)q);
    return __fadd_rn(value, -__fmul_rn(fg_gpu_half(block + 2), (float)minimum));
}

static __device__ __forceinline__ float fg_gpu_q6_at(const uint8_t *block, uint32_t i)
{
    uint32_t half = i / 128, k = i / 32 % 4, j = i % 32;
    uint32_t low = block[64 * half + 32 * (k % 2) + j];
    uint32_t high = block[128 + 32 * half + j];
    int q = (int)((k < 2 ? low & 15u : low >> 4) | ((high >> (2 * k)) & 3u) << 4) - 32;
    int scale = (int8_t)block[192 + 8 * half + 2 * k + j / 16];
    return __fmul_rn(__fmul_rn(fg_gpu_half(block + 208), (float)scale), (float)q);
}

static __device__ __forceinline__ float fg_gpu_small_at(uint32_t type, const uint8_t *block,
                                                        uint32_t i)
{
    float d = fg_gpu_half(block);
    if (type == FG_Q8_0) {
        return __fmul_rn(d, (float)(int8_t)block[2 + i]);
    }
    bool five = type == FG_Q5_0 || type == FG_Q5_1;
    bool offset = type == FG_Q4_1 || type == FG_Q5_1;
    const uint8_t *high = block + (offset ? 4 : 2);
    const uint8_t *low = high + (five ? 4 : 0);
    uint32_t q = i < 16 ? low[i] & 15u : low[i - 16] >> 4;
    if (five) {
        q |= (((uint32_t)high[i / 8] >> (i % 8)) & 1u) << 4;
    }
    float minimum =
        offset ? fg_gpu_half(block + 2) : __fmul_rn(type == FG_Q4_0 ? -8.0f : -16.0f, d);
    return __fadd_rn(__fmul_rn(d, (float)q), minimum);
}

static __device__ __forceinline__ float fg_gpu_unpack_at(uint32_t type, const uint8_t *row,
                                                         uint32_t i)
{
    switch (type) {
    case FG_F32: {
        const uint8_t *at = row + (size_t)4 * i;
        return __uint_as_float((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 |
                               (uint32_t)at[3] << 24);
    }
    case FG_F16:
        return fg_gpu_half(row + (size_t)2 * i);
    case FG_BF16:
        return __uint_as_float((uint32_t)row[(size_t)2 * i] << 16 | (uint32_t)row[(size_t)2 * i + 1]
                                                                        << 24);
    case FG_Q4_K:
        return fg_gpu_k_at(row + (size_t)(i / 256) * 144, i % 256, false);
    case FG_Q5_K:
        return fg_gpu_k_at(row + (size_t)(i / 256) * 176, i % 256, true);
    case FG_Q6_K:
        return fg_gpu_q6_at(row + (size_t)(i / 256) * 210, i % 256);
    default: {
        uint32_t bytes = type == FG_Q4_0   ? 18
                         : type == FG_Q4_1 ? 20
                         : type == FG_Q5_0 ? 22
                         : type == FG_Q5_1 ? 24
                                           : 34;
        return fg_gpu_small_at(type, row + (size_t)(i / 32) * bytes, i % 32);
    }
    }
}

#endif
