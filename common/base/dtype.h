/*
 * dtype - element types of tensors and KV, their sizes, and the 16-bit float conversions. Pure.
 */
#ifndef FORGE_COMMON_BASE_DTYPE_H
#define FORGE_COMMON_BASE_DTYPE_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* The numbers are GGUF's. */
typedef enum fg_dtype {
    FG_F32 = 0,
    FG_F16 = 1,
    FG_Q4_0 = 2,
    FG_Q4_1 = 3,
    FG_Q5_0 = 6,
    FG_Q5_1 = 7,
    FG_Q8_0 = 8,
    FG_Q4_K = 12,
    FG_Q5_K = 13,
    FG_Q6_K = 14,
    FG_I8 = 24, /* of the KV cache only, with a scale per token and head */
    FG_BF16 = 30,
} fg_dtype;

/* No type of anything: for the KV cache, whatever suits the model (fg_hparams.kv_dtype). */
#define FG_DTYPE_AUTO UINT32_MAX

/* Elements per block (1 for plain floats) and bytes per block; 0 for a type that Forge does not know. */
static inline uint32_t fg_dtype_block_count(uint32_t type)
{
    switch (type) {
    case FG_F32:
    case FG_F16:
    case FG_BF16:
        return 1;
    case FG_Q4_0:
    case FG_Q4_1:
    case FG_Q5_0:
    case FG_Q5_1:
    case FG_Q8_0:
        return 32;
    case FG_Q4_K:
    case FG_Q5_K:
    case FG_Q6_K:
        return 256;
    default:
        return 0;
    }
}

static inline uint32_t fg_dtype_block_bytes(uint32_t type)
{
    switch (type) {
    case FG_F32:
        return 4;
    case FG_F16:
    case FG_BF16:
        return 2;
    case FG_Q4_0:
        return 18;
    case FG_Q4_1:
        return 20;
    case FG_Q5_0:
        return 22;
    case FG_Q5_1:
        return 24;
    case FG_Q8_0:
        return 34;
    case FG_Q4_K:
        return 144;
    case FG_Q5_K:
        return 176;
    case FG_Q6_K:
        return 210;
    default:
        return 0;
    }
}

/* Bytes of one element of a type that the KV cache can store; 0 for any other. */
static inline uint32_t fg_dtype_kv_bytes(uint32_t type)
{
    return type == FG_I8 ? 1 : fg_dtype_block_count(type) == 1 ? fg_dtype_block_bytes(type) : 0;
}

static inline const char *fg_dtype_name(uint32_t type)
{
    switch (type) {
    case FG_F32:
        return "f32";
    case FG_F16:
        return "f16";
    case FG_BF16:
        return "bf16";
    case FG_Q4_0:
        return "q4_0";
    case FG_Q4_1:
        return "q4_1";
    case FG_Q5_0:
        return "q5_0";
    case FG_Q5_1:
        return "q5_1";
    case FG_Q8_0:
        return "q8_0";
    case FG_Q4_K:
        return "q4_k";
    case FG_Q5_K:
        return "q5_k";
    case FG_Q6_K:
        return "q6_k";
    case FG_I8:
        return "int8";
    default:
        return "unknown";
    }
}

/* A type of the KV cache by its name, or "auto". False: there is none. */
static inline bool fg_dtype_find_kv(const char *name, uint32_t *type_out)
{
    static const uint32_t types[] = { FG_F16, FG_BF16, FG_I8, FG_F32 };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(name, fg_dtype_name(types[i])) == 0) {
            *type_out = types[i];
            return true;
        }
    }
    *type_out = FG_DTYPE_AUTO;
    return strcmp(name, "auto") == 0;
}

static inline float fg_f32_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t fg_f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* IEEE half to float, exact; subnormals, infinities and NaN included. */
static inline float fg_f16_to_f32(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t exponent = (half >> 10) & 0x1Fu;
    uint32_t mantissa = half & 0x3FFu;
    if (exponent == 0) {
        /* Subnormal: mantissa * 2^-24, exact in float. */
        float value = (float)mantissa * 0x1p-24f;
        return fg_f32_from_bits(fg_f32_bits(value) | sign);
    }
    if (exponent == 31) {
        return fg_f32_from_bits(sign | 0x7F800000u | mantissa << 13);
    }
    return fg_f32_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

/* Float to IEEE half, round to nearest even: what F16C's VCVTPS2PH does. */
static inline uint16_t fg_f16_from_f32(float value)
{
    uint32_t bits = fg_f32_bits(value);
    uint32_t sign = (bits >> 16) & 0x8000u;
    bits &= 0x7FFFFFFFu;
    if (bits > 0x7F800000u) {
        return (uint16_t)(sign | 0x7E00u | ((bits >> 13) & 0x3FFu));
    }
    if (bits >= 0x477FF000u) { /* rounds to 65536 or more: infinity */
        return (uint16_t)(sign | 0x7C00u);
    }
    if (bits < 0x38800000u) { /* below the smallest normal half */
        /* Adding 0.5 puts the result's last place at 2^-24, with the hardware's own rounding. */
        float magic = fg_f32_from_bits(bits) + 0.5f;
        return (uint16_t)(sign | (fg_f32_bits(magic) - 0x3F000000u));
    }
    uint32_t odd = (bits >> 13) & 1u;
    bits += 0xC8000FFFu + odd;
    return (uint16_t)(sign | bits >> 13);
}

static inline float fg_bf16_to_f32(uint16_t brain)
{
    return fg_f32_from_bits((uint32_t)brain << 16);
}

/* Round to nearest even; NaN stays NaN. */
static inline uint16_t fg_bf16_from_f32(float value)
{
    uint32_t bits = fg_f32_bits(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {
        return (uint16_t)(bits >> 16 | 0x40u);
    }
    return (uint16_t)((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

#endif
