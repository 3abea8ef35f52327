/*
 * unpack - the quantised weight formats of GGUF, one group of 32 elements at a time, in plain C: the
 * reference that products and the embedding read.
 *
 * Every format becomes: element i = d * scale[i / 16] * q[i] + minimum_factor * minimum, where q and
 * scale are integers. The unsigned formats keep q unsigned, and their fixed offset (8 or 16) is a
 * minimum like the others.
 */
#ifndef FORGE_KERNELS_CPU_UNPACK_H
#define FORGE_KERNELS_CPU_UNPACK_H

#include <stdint.h>
#include <string.h>

#include "common/base/dtype.h"

typedef struct fg_cpu_group {
    int8_t q[32];
    int32_t scale[2]; /* of elements 0..15 and 16..31 */
    float d;
    float minimum;
} fg_cpu_group;

/* What the sum of minima is multiplied with at the end; 0: the type has none. */
static inline float fg_cpu_minimum_factor(uint32_t type)
{
    switch (type) {
    case FG_Q4_0:
        return -8.0f;
    case FG_Q5_0:
        return -16.0f;
    case FG_Q4_1:
    case FG_Q5_1:
        return 1.0f;
    case FG_Q4_K:
    case FG_Q5_K:
        return -1.0f;
    default:
        return 0.0f;
    }
}

static inline float fg_cpu_half(const uint8_t *bytes)
{
    uint16_t half;
    memcpy(&half, bytes, sizeof half);
    return fg_f16_to_f32(half);
}

/* The 6-bit scale and minimum of group `g` of a Q4_K or Q5_K super-block. */
static inline void fg_cpu_k_scale(const uint8_t *s, uint32_t g, uint32_t *scale_out,
                                  uint32_t *minimum_out)
{
    if (g < 4) {
        *scale_out = s[g] & 63u;
        *minimum_out = s[g + 4] & 63u;
    } else {
        *scale_out = (s[g + 4] & 15u) | (uint32_t)(s[g - 4] >> 6) << 4;
        *minimum_out = (uint32_t)(s[g + 4] >> 4) | (uint32_t)(s[g] >> 6) << 4;
    }
}

/* Low nibbles are elements 0..15, high nibbles 16..31. */
static inline void fg_cpu_nibbles(const uint8_t *bytes, int8_t *q)
{
    for (int i = 0; i < 16; i++) {
        q[i] = (int8_t)(bytes[i] & 15);
        q[i + 16] = (int8_t)(bytes[i] >> 4);
    }
}

static inline void fg_cpu_fifth_bits(const uint8_t *bytes, int8_t *q)
{
    for (int i = 0; i < 32; i++) {
        q[i] = (int8_t)(q[i] | ((bytes[i / 8] >> (i % 8)) & 1) << 4);
    }
}

static inline void fg_cpu_unpack_k(uint32_t type, const uint8_t *block, uint32_t g,
                                   fg_cpu_group *out)
{
    uint32_t scale;
    uint32_t minimum;
    fg_cpu_k_scale(block + 4, g, &scale, &minimum);
    const uint8_t *qs = block + (type == FG_Q5_K ? 48 : 16) + 32 * (g / 2);
    const uint8_t *qh = block + 16;
    for (int i = 0; i < 32; i++) {
        int q = g % 2 == 0 ? qs[i] & 15 : qs[i] >> 4;
        if (type == FG_Q5_K) {
            q |= ((qh[i] >> g) & 1) << 4;
        }
        out->q[i] = (int8_t)q;
    }
    out->scale[0] = (int32_t)scale;
    out->scale[1] = (int32_t)scale;
    out->d = fg_cpu_half(block);
    out->minimum = fg_cpu_half(block + 2) * (float)minimum;
}

static inline void fg_cpu_unpack_q6_k(const uint8_t *block, uint32_t g, fg_cpu_group *out)
{
    uint32_t k = g % 4;
    const uint8_t *ql = block + 64 * (g / 4) + 32 * (k % 2);
    const uint8_t *qh = block + 128 + 32 * (g / 4);
    const uint8_t *scales = block + 192 + 8 * (g / 4) + 2 * k;
    for (int i = 0; i < 32; i++) {
        int low = k < 2 ? ql[i] & 15 : ql[i] >> 4;
        out->q[i] = (int8_t)((low | ((qh[i] >> (2 * k)) & 3) << 4) - 32);
    }
    out->scale[0] = (int8_t)scales[0];
    out->scale[1] = (int8_t)scales[1];
    out->d = fg_cpu_half(block + 208);
    out->minimum = 0.0f;
}

/* Group `g` (32 elements) of a weight row. */
static inline void fg_cpu_unpack(uint32_t type, const uint8_t *row, uint32_t g, fg_cpu_group *out)
{
    uint32_t block_bytes = fg_dtype_block_bytes(type);
    if (fg_dtype_block_count(type) == 256) {
        const uint8_t *block = row + (size_t)(g / 8) * block_bytes;
        if (type == FG_Q6_K) {
            fg_cpu_unpack_q6_k(block, g % 8, out);
        } else {
            fg_cpu_unpack_k(type, block, g % 8, out);
        }
        return;
    }
    const uint8_t *block = row + (size_t)g * block_bytes;
    out->scale[0] = 1;
    out->scale[1] = 1;
    out->d = fg_cpu_half(block);
    out->minimum = type == FG_Q4_1 || type == FG_Q5_1 ? fg_cpu_half(block + 2) : out->d;
    switch (type) {
    case FG_Q4_0:
        fg_cpu_nibbles(block + 2, out->q);
        break;
    case FG_Q4_1:
        fg_cpu_nibbles(block + 4, out->q);
        break;
    case FG_Q5_0:
        fg_cpu_nibbles(block + 6, out->q);
        fg_cpu_fifth_bits(block + 2, out->q);
        break;
    case FG_Q5_1:
        fg_cpu_nibbles(block + 8, out->q);
        fg_cpu_fifth_bits(block + 4, out->q);
        break;
    default: /* FG_Q8_0 */
        memcpy(out->q, block + 2, 32);
        break;
    }
}

/* A bf16 whose magnitude is below 2^-50 becomes 0 (ops.h: products with BF16 weights). */
enum { FG_CPU_BF16_LEAST = (127 - 50) << 7 };

static inline uint16_t fg_cpu_bf16_normal(uint16_t brain)
{
    return (brain & 0x7FFF) < FG_CPU_BF16_LEAST ? 0 : brain;
}

/* One element of a row of plain floats. */
static inline float fg_cpu_float_at(uint32_t type, const uint8_t *row, size_t index)
{
    if (type == FG_F32) {
        float value;
        memcpy(&value, row + 4 * index, sizeof value);
        return value;
    }
    uint16_t half;
    memcpy(&half, row + 2 * index, sizeof half);
    return type == FG_F16 ? fg_f16_to_f32(half) : fg_bf16_to_f32(half);
}

#endif
