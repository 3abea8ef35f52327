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

/* The 6-bit scale and minimum of group `g` of a Q4_K or Q5_K block. */
static __device__ __forceinline__ void fg_gpu_k_scale(const uint8_t *s, uint32_t g,
                                                      uint32_t *scale_out, uint32_t *minimum_out)
{
    if (g < 4) {
        *scale_out = s[g] & 63u;
        *minimum_out = s[g + 4] & 63u;
    } else {
        *scale_out = (s[g + 4] & 15u) | (uint32_t)(s[g - 4] >> 6) << 4;
        *minimum_out = (uint32_t)(s[g + 4] >> 4) | (uint32_t)(s[g] >> 6) << 4;
    }
}

static __device__ __forceinline__ uint32_t fg_gpu_k_code(const uint8_t *block, uint32_t i,
                                                         bool five)
{
    uint32_t g = i / 32;
    uint32_t byte = block[(five ? 48 : 16) + 32 * (g / 2) + i % 32];
    uint32_t q = g % 2 == 0 ? byte & 15u : byte >> 4;
    if (five) {
        q |= (((uint32_t)block[16 + i % 32] >> g) & 1u) << 4;
    }
    return q;
}

static __device__ __forceinline__ float fg_gpu_k_at(const uint8_t *block, uint32_t i, bool five)
{
    uint32_t scale, minimum;
    fg_gpu_k_scale(block + 4, i / 32, &scale, &minimum);
    float value = __fmul_rn(__fmul_rn(fg_gpu_half(block), (float)scale),
                            (float)fg_gpu_k_code(block, i, five));
    return __fadd_rn(value, -__fmul_rn(fg_gpu_half(block + 2), (float)minimum));
}

/* 32 is added. */
static __device__ __forceinline__ uint32_t fg_gpu_q6_code(const uint8_t *block, uint32_t i)
{
    uint32_t half = i / 128, k = i / 32 % 4, j = i % 32;
    uint32_t low = block[64 * half + 32 * (k % 2) + j];
    uint32_t high = block[128 + 32 * half + j];
    return (k < 2 ? low & 15u : low >> 4) | ((high >> (2 * k)) & 3u) << 4;
}

static __device__ __forceinline__ float fg_gpu_q6_at(const uint8_t *block, uint32_t i)
{
    int q = (int)fg_gpu_q6_code(block, i) - 32;
    int scale = (int8_t)block[192 + i / 16];
    return __fmul_rn(__fmul_rn(fg_gpu_half(block + 208), (float)scale), (float)q);
}

static __host__ __device__ __forceinline__ uint32_t fg_gpu_small_bytes(uint32_t type)
{
    return type == FG_Q4_0   ? 18
           : type == FG_Q4_1 ? 20
           : type == FG_Q5_0 ? 22
           : type == FG_Q5_1 ? 24
                             : 34;
}

static __host__ __device__ __forceinline__ uint32_t fg_gpu_k_bytes(uint32_t type)
{
    return type == FG_Q4_K ? 144 : type == FG_Q5_K ? 176 : 210;
}

/* Q8_0: 128 is added. */
static __device__ __forceinline__ uint32_t fg_gpu_small_code(uint32_t type, const uint8_t *block,
                                                             uint32_t i)
{
    if (type == FG_Q8_0) {
        return block[2 + i] ^ 128u;
    }
    bool five = type == FG_Q5_0 || type == FG_Q5_1;
    const uint8_t *high = block + (type == FG_Q4_1 || type == FG_Q5_1 ? 4 : 2);
    const uint8_t *low = high + (five ? 4 : 0);
    uint32_t q = i < 16 ? low[i] & 15u : low[i - 16] >> 4;
    if (five) {
        q |= (((uint32_t)high[i / 8] >> (i % 8)) & 1u) << 4;
    }
    return q;
}

static __device__ __forceinline__ float fg_gpu_small_at(uint32_t type, const uint8_t *block,
                                                        uint32_t i)
{
    float d = fg_gpu_half(block);
    uint32_t q = fg_gpu_small_code(type, block, i);
    if (type == FG_Q8_0) {
        return __fmul_rn(d, (float)((int)q - 128));
    }
    float minimum = type == FG_Q4_1 || type == FG_Q5_1
                        ? fg_gpu_half(block + 2)
                        : __fmul_rn(type == FG_Q4_0 ? -8.0f : -16.0f, d);
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
    case FG_Q5_K:
        return fg_gpu_k_at(row + (size_t)(i / 256) * fg_gpu_k_bytes(type), i % 256,
                           type == FG_Q5_K);
    case FG_Q6_K:
        return fg_gpu_q6_at(row + (size_t)(i / 256) * fg_gpu_k_bytes(type), i % 256);
    default:
        return fg_gpu_small_at(type, row + (size_t)(i / 32) * fg_gpu_small_bytes(type), i % 32);
    }
}

#endif
