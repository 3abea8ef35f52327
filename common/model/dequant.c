/*
 * The reference dequantiser: one plain function per type, in the order of operations of ggml's
 * formats (ggml's ggml-quants.h lays the blocks out; the PyPI package `gguf` computes the same).
 */
#include <string.h>

#include "common/base/dtype.h"
#include "common/model/weights.h"

typedef unsigned char byte;

static float half_at(const byte *source)
{
    uint16_t half;
    memcpy(&half, source, sizeof half);
    return fg_f16_to_f32(half);
}

/* 16 bytes hold 32 values of 4 bits: low halves first. */
static uint32_t nibble(const byte *quants, uint32_t index)
{
    return index < 16 ? quants[index] & 0x0F : quants[index - 16] >> 4;
}

static uint32_t fifth_bit(const byte *high, uint32_t index)
{
    uint32_t bits;
    memcpy(&bits, high, sizeof bits);
    return (bits >> index & 1u) << 4;
}

/* Blocks: half d, 16 bytes. x = d (q - 8). */
static void block_q4_0(const byte *block, float *out)
{
    float d = half_at(block);
    for (uint32_t i = 0; i < 32; i++) {
        out[i] = d * (float)((int)nibble(block + 2, i) - 8);
    }
}

/* half d, half m, 16 bytes. x = d q + m. */
static void block_q4_1(const byte *block, float *out)
{
    float d = half_at(block), m = half_at(block + 2);
    for (uint32_t i = 0; i < 32; i++) {
        out[i] = d * (float)nibble(block + 4, i) + m;
    }
}

/* half d, 32 fifth bits, 16 bytes. x = d (q - 16). */
static void block_q5_0(const byte *block, float *out)
{
    float d = half_at(block);
    for (uint32_t i = 0; i < 32; i++) {
        uint32_t q = nibble(block + 6, i) | fifth_bit(block + 2, i);
        out[i] = d * (float)((int)q - 16);
    }
}

/* half d, half m, 32 fifth bits, 16 bytes. x = d q + m. */
static void block_q5_1(const byte *block, float *out)
{
    float d = half_at(block), m = half_at(block + 2);
    for (uint32_t i = 0; i < 32; i++) {
        out[i] = d * (float)(nibble(block + 8, i) | fifth_bit(block + 4, i)) + m;
    }
}

/* half d, 32 signed bytes. x = d q. */
static void block_q8_0(const byte *block, float *out)
{
    float d = half_at(block);
    for (uint32_t i = 0; i < 32; i++) {
        out[i] = d * (float)(int8_t)block[2 + i];
    }
}

/* Scale and minimum of sub-block 0..7, 6 bits each, packed into 12 bytes: the first four whole, the
 * last four as 4 low bits and 2 high bits borrowed from the first ones. */
static void scale_min_k(const byte *packed, uint32_t sub, float *scale_out, float *min_out)
{
    uint32_t scale, min;
    if (sub < 4) {
        scale = packed[sub] & 63;
        min = packed[sub + 4] & 63;
    } else {
        scale = (packed[sub + 4] & 0x0F) | (packed[sub - 4] >> 6) << 4;
        min = (packed[sub + 4] >> 4) | (packed[sub] >> 6) << 4;
    }
    *scale_out = (float)scale;
    *min_out = (float)min;
}

/* half d, half dmin, 12 bytes of scales, 128 bytes: 8 sub-blocks of 32. x = d scale q - dmin min. */
static void block_q4_k(const byte *block, float *out)
{
    float d = half_at(block), dmin = half_at(block + 2);
    for (uint32_t sub = 0; sub < 8; sub++) {
        /* Two sub-blocks share 32 bytes: one in the low halves, one in the high. */
        const byte *quants = block + 16 + sub / 2 * 32;
        float scale, min;
        scale_min_k(block + 4, sub, &scale, &min);
        float step = d * scale, base = dmin * min;
        for (uint32_t i = 0; i < 32; i++) {
            uint32_t q = quants[i] >> (sub % 2 * 4) & 0x0F;
            out[sub * 32 + i] = step * (float)q - base;
        }
    }
}

/* As q4_k with 32 bytes of fifth bits before the quants: bit `sub` of byte i. */
static void block_q5_k(const byte *block, float *out)
{
    float d = half_at(block), dmin = half_at(block + 2);
    const byte *high = block + 16;
    for (uint32_t sub = 0; sub < 8; sub++) {
        const byte *quants = block + 48 + sub / 2 * 32;
        float scale, min;
        scale_min_k(block + 4, sub, &scale, &min);
        float step = d * scale, base = dmin * min;
        for (uint32_t i = 0; i < 32; i++) {
            uint32_t q = (quants[i] >> (sub % 2 * 4) & 0x0F) | (high[i] >> sub & 1u) << 4;
            out[sub * 32 + i] = step * (float)q - base;
        }
    }
}

/* 128 bytes of 4 low bits, 64 bytes of 2 high bits, 16 signed scales, half d. x = d scale (q - 32).
 * Each half of 128 values uses 64 low bytes and 32 high bytes, a quarter of 32 values at a time. */
static void block_q6_k(const byte *block, float *out)
{
    float d = half_at(block + 208);
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t part = i / 128, quarter = i / 32 % 4, lane = i % 32;
        uint32_t low = block[part * 64 + quarter % 2 * 32 + lane] >> (quarter / 2 * 4) & 0x0F;
        uint32_t high = block[128 + part * 32 + lane] >> (quarter * 2) & 3u;
        float step = d * (float)(int8_t)block[192 + i / 16];
        out[i] = step * (float)((int)(low | high << 4) - 32);
    }
}

static void dequant_floats(uint32_t type, const void *source, float *out, uint64_t count)
{
    const uint16_t *halves = source;
    for (uint64_t i = 0; i < count; i++) {
        out[i] = type == FG_F16 ? fg_f16_to_f32(halves[i]) : fg_bf16_to_f32(halves[i]);
    }
}

void fg_dequant(uint32_t type, const void *source, float *out, uint64_t count)
{
    void (*block_fn)(const byte *block, float *out) = NULL;
    switch (type) {
    case FG_F32:
        memcpy(out, source, count * sizeof *out);
        return;
    case FG_F16:
    case FG_BF16:
        dequant_floats(type, source, out, count);
        return;
    case FG_Q4_0:
        block_fn = block_q4_0;
        break;
    case FG_Q4_1:
        block_fn = block_q4_1;
        break;
    case FG_Q5_0:
        block_fn = block_q5_0;
        break;
    case FG_Q5_1:
        block_fn = block_q5_1;
        break;
    case FG_Q8_0:
        block_fn = block_q8_0;
        break;
    case FG_Q4_K:
        block_fn = block_q4_k;
        break;
    case FG_Q5_K:
        block_fn = block_q5_k;
        break;
    case FG_Q6_K:
        block_fn = block_q6_k;
        break;
    default:
        break;
    }
    FG_ASSERT(block_fn != NULL, "no such tensor type");
    uint32_t block_count = fg_dtype_block_count(type);
    FG_ASSERT(count % block_count == 0, "not whole blocks");
    const byte *block = source;
    for (uint64_t i = 0; i < count; i += block_count) {
        block_fn(block, out + i);
        block += fg_dtype_block_bytes(type);
    }
}
