/*
 * quant - quantised weights as they lie in device memory, and their way into fragments of tensor-core products. A
 * weight becomes the bf16 of the float that unpack.cuh reads: only how it is computed differs.
 *
 * [strip][unit]: a unit is 16 outputs by 64 columns, that is 4 steps, the last one of a strip padded with zeros. Lane
 * 4g + t has the 8 codes of a step that fg_mma wants of it: code 2w + h is that of fg_mma's word w, low half (h = 0) or
 * high. A unit is
 *   4 bits    per lane 4 words, one a step: code 2w + h in 4 bits from 4w + 16h on, so that a word's two are 16 apart
 *   8 bits    per lane 4 words of the first two steps, then 4 words of the others: code j in byte j, 128 added
 *   5th bits  per lane a word: of step s and code 2w + h bit 4w + 16h + s
 *   and 6th   per lane two words, of two steps each: of step s and code 2w + h bits 4w + 16h + 2 (s % 2) and the next
 *   scales    per g, of outputs g and g + 8 in turns: of each 32 columns the half d, then (Q4_1, Q5_1) the half m;
 *             Q4_K, Q5_K: of each 32 columns the scale, then the minimum, bytes; Q6_K: of each step the scale, a byte
 * Types of 256 columns a block have after each 4 units per g the halves d of both outputs, then (not Q6_K) dmin.
 *
 * A code that is put into the mantissa of 2^n is the number 2^n + code, with no conversion. What follows is exact but
 * for the last rounding, which is that of the reference: d has 11 bits, scales and minima of the K types 6 (Q6_K: 7).
 *   Q4_0, Q5_0   two weights at a time, in bf16, which has 8 bits: d = d_high + d_low, its upper 8 bits and the rest.
 *                2^7 + q has 8 bits; less 2^7 + 8 (Q5_0: 16) it is q - 8, at most 3 (4) bits; times d_low 7. One
 *                rounding, of (q - 8) d_high + (q - 8) d_low
 *   Q4_1, Q5_1   d * q has 16 bits; one rounding, of the sum
 *   Q8_0         d * (2^15 + q) - (2^15 + 128) d: the second product has 9 + 11 bits, the result 19
 *   Q4_K, Q5_K   d * scale has 17 bits, times q 22, dmin * minimum 17; one rounding, of the sum
 *   Q6_K         d * scale has 18 bits, times q - 32 at most 24
 * If d is infinite or no number no weight of Q4_0 and Q5_0 is a number, as in the reference, and none of Q8_0 (the
 * reference has infinite ones). A weight of 0 is +0 with these three.
 */
#ifndef FORGE_KERNELS_CUDA_QUANT_CUH
#define FORGE_KERNELS_CUDA_QUANT_CUH

#include "kernels/cuda/cuda.h"

enum {
    FG_GPU_UNIT_STEPS = 4,
    FG_GPU_UNIT_COLUMNS = FG_GPU_UNIT_STEPS * FG_GPU_STEP,
};

/* What a type is made of. */
template <uint32_t type> struct fg_gpu_quant {
    static constexpr bool is_super = type == FG_Q4_K || type == FG_Q5_K || type == FG_Q6_K;
    static constexpr bool is_bytes = type == FG_Q8_0;
    static constexpr bool has_minima =
        type == FG_Q4_1 || type == FG_Q5_1 || type == FG_Q4_K || type == FG_Q5_K;
    static constexpr bool is_pairs = type == FG_Q4_0 || type == FG_Q5_0;
    static constexpr uint32_t high_bits = type == FG_Q6_K ? 2
                                          : type == FG_Q5_0 || type == FG_Q5_1 || type == FG_Q5_K
                                              ? 1
                                              : 0;
    /* What is taken from a code. */
    static constexpr float offset = type == FG_Q4_0   ? 8.0f
                                    : type == FG_Q5_0 ? 16.0f
                                    : type == FG_Q6_K ? 32.0f
                                    : type == FG_Q8_0 ? 128.0f
                                                      : 0.0f;
    /* Bytes, and where things are in a unit. */
    static constexpr uint32_t high_at = is_bytes ? 1024 : 512;
    static constexpr uint32_t scales_at = high_at + 128 * high_bits;
    static constexpr uint32_t scale_bytes = has_minima && !is_super ? 16 : 8; /* of a g */
    static constexpr uint32_t unit_bytes = scales_at + 8 * scale_bytes;
    static constexpr uint32_t tail_at = 4 * unit_bytes;
    static constexpr uint32_t super_bytes = tail_at + (has_minima ? 64 : 32);
    /* Units that a warp has under way; of 256 columns all. */
    static constexpr uint32_t ring = is_bytes ? 2 : 4;
    static constexpr uint32_t ring_bytes = is_super ? super_bytes : ring * unit_bytes;
};

/* Returns what f<type>(...) does. */
#define FG_GPU_QUANT_SWITCH(type, f, ...)                                                          \
    switch (type) {                                                                                \
    case FG_Q4_0:                                                                                  \
        return f<FG_Q4_0>(__VA_ARGS__);                                                            \
    case FG_Q4_1:                                                                                  \
        return f<FG_Q4_1>(__VA_ARGS__);                                                            \
    case FG_Q5_0:                                                                                  \
        return f<FG_Q5_0>(__VA_ARGS__);                                                            \
    case FG_Q5_1:                                                                                  \
        return f<FG_Q5_1>(__VA_ARGS__);                                                            \
    case FG_Q8_0:                                                                                  \
        return f<FG_Q8_0>(__VA_ARGS__);                                                            \
    case FG_Q4_K:                                                                                  \
        return f<FG_Q4_K>(__VA_ARGS__);                                                            \
    case FG_Q5_K:                                                                                  \
        return f<FG_Q5_K>(__VA_ARGS__);                                                            \
    default:                                                                                       \
        return f<FG_Q6_K>(__VA_ARGS__);                                                            \
    }

static __host__ __device__ __forceinline__ uint32_t fg_gpu_units(uint32_t steps)
{
    return (steps + FG_GPU_UNIT_STEPS - 1) / FG_GPU_UNIT_STEPS;
}

/* From a strip's begin to a unit, or to the next strip. */
template <uint32_t type>
static __host__ __device__ __forceinline__ size_t fg_gpu_unit_at(uint32_t unit)
{
    if (fg_gpu_quant<type>::is_super) {
        return (size_t)(unit / 4) * fg_gpu_quant<type>::super_bytes +
               unit % 4 * fg_gpu_quant<type>::unit_bytes;
    }
    return (size_t)unit * fg_gpu_quant<type>::unit_bytes;
}

/* ---- from memory ---- */

/* A lane's codes of a unit. */
template <uint32_t type> struct fg_gpu_codes {
    uint4 low[fg_gpu_quant<type>::is_bytes ? 2 : 1];
    uint32_t high[fg_gpu_quant<type>::high_bits == 0 ? 1 : fg_gpu_quant<type>::high_bits];
};

/* Of outputs g and g + 8 and a unit, as they lie in memory. */
template <uint32_t type> struct fg_gpu_raw_scales {
    uint32_t words[2];
    uint32_t more[2]; /* the second half of Q4_1's and Q5_1's; K types: d and dmin */
};

/* The same as weights are made of them, [two steps], of both outputs each:
 *   Q4_0, Q5_0   d_high, d_high, d_low, d_low, each twice, as bf16
 *   with minima  d, d, minimum, minimum
 *   Q8_0         d, d, -d * (2^15 + 128), likewise
 *   Q6_K         d, d of the first step, then of the second */
typedef struct fg_gpu_scales {
    uint4 each[FG_GPU_UNIT_STEPS / 2];
} fg_gpu_scales;

/* What a lane adds to where a strip or a unit begins, here and below. */
static __device__ __forceinline__ uint32_t fg_gpu_codes_at(uint32_t lane)
{
    return lane * 16;
}

/* A unit may lie in shared memory. */
template <bool shared> static __device__ __forceinline__ uint4 fg_gpu_read16(const void *at)
{
    return shared ? *(const uint4 *)at : fg_load16_once(at);
}

template <bool shared> static __device__ __forceinline__ uint2 fg_gpu_read8(const void *at)
{
    return shared ? *(const uint2 *)at : fg_load8_once(at);
}

template <bool shared> static __device__ __forceinline__ uint32_t fg_gpu_read4(const void *at)
{
    return shared ? *(const uint32_t *)at : fg_load4_once(at);
}

template <uint32_t type, bool shared = false>
static __device__ __forceinline__ void fg_gpu_load_codes(fg_gpu_codes<type> &codes,
                                                         const uint8_t *at, uint32_t lane)
{
    typedef fg_gpu_quant<type> quant;
    codes.low[0] = fg_gpu_read16<shared>(at);
    if constexpr (quant::is_bytes) {
        codes.low[1] = fg_gpu_read16<shared>(at + 512);
    }
    const uint8_t *high_at = at + quant::high_at - lane * (16 - 4 * quant::high_bits);
    if constexpr (quant::high_bits == 1) {
        codes.high[0] = fg_gpu_read4<shared>(high_at);
    } else if constexpr (quant::high_bits == 2) {
        uint2 high = fg_gpu_read8<shared>(high_at);
        codes.high[0] = high.x;
        codes.high[1] = high.y;
    }
}

template <uint32_t type> static __device__ __forceinline__ uint32_t fg_gpu_scales_at(uint32_t lane)
{
    return lane / 4 * fg_gpu_quant<type>::scale_bytes;
}

/* `unit` and `tail`, the end of its block of 256 columns, are where they begin, with what the lane adds. */
template <uint32_t type, bool shared>
static __device__ __forceinline__ void fg_gpu_read_scales(fg_gpu_raw_scales<type> &raw,
                                                          const uint8_t *unit, const uint8_t *tail,
                                                          uint32_t lane)
{
    typedef fg_gpu_quant<type> quant;
    const uint8_t *at = unit + quant::scales_at;
    if constexpr (quant::scale_bytes == 16) {
        uint4 words = fg_gpu_read16<shared>(at);
        raw.words[0] = words.x;
        raw.words[1] = words.y;
        raw.more[0] = words.z;
        raw.more[1] = words.w;
        return;
    }
    uint2 words = fg_gpu_read8<shared>(at);
    raw.words[0] = words.x;
    raw.words[1] = words.y;
    if constexpr (quant::is_super && quant::has_minima) {
        uint2 more = fg_gpu_read8<shared>(tail);
        raw.more[0] = more.x;
        raw.more[1] = more.y;
    } else if constexpr (quant::is_super) {
        raw.more[0] = fg_gpu_read4<shared>(tail - lane / 4 * 4);
    }
}

/* `strip`: with what the lane adds. */
template <uint32_t type>
static __device__ __forceinline__ void fg_gpu_load_scales(fg_gpu_raw_scales<type> &raw,
                                                          const uint8_t *strip, uint32_t unit,
                                                          uint32_t lane)
{
    fg_gpu_read_scales<type, false>(
        raw, strip + fg_gpu_unit_at<type>(unit),
        strip + fg_gpu_unit_at<type>(unit / 4 * 4) + fg_gpu_quant<type>::tail_at, lane);
}

/* ---- scales ---- */

/* Byte `i` of a word as a float. */
static __device__ __forceinline__ float fg_gpu_byte(uint32_t word, uint32_t i)
{
    return __fadd_rn(__uint_as_float(__byte_perm(word, 0x4B000000u, 0x7540u | i)), -8388608.0f);
}

/* The upper 16 bits twice. */
static __device__ __forceinline__ uint32_t fg_gpu_twice(uint32_t bits)
{
    return __byte_perm(bits, 0, 0x3232u);
}

/* Of 32 columns, `i` = 0 or 1. */
template <uint32_t type>
static __device__ __forceinline__ uint4 fg_gpu_small_scales(const fg_gpu_raw_scales<type> &raw,
                                                            uint32_t i)
{
    typedef fg_gpu_quant<type> quant;
    uint32_t first[2], second[2];
#pragma unroll
    for (uint32_t j = 0; j < 2; j++) {
        float d = fg_half_to_float(raw.words[i] >> (16 * j));
        first[j] = __float_as_uint(d);
        if constexpr (quant::is_pairs) {
            float high = __uint_as_float(first[j] & 0xFFFF0000u);
            first[j] = fg_gpu_twice(first[j]);
            second[j] = fg_gpu_twice(__float_as_uint(__fadd_rn(d, -high)));
        } else if constexpr (quant::is_bytes) {
            second[j] = __float_as_uint(__fmul_rn(d, -(32768.0f + quant::offset)));
        } else {
            second[j] = __float_as_uint(fg_half_to_float(raw.more[i] >> (16 * j)));
        }
    }
    return make_uint4(first[0], first[1], second[0], second[1]);
}

/* Likewise; d is a float of outputs g and g + 8, then dmin. */
template <uint32_t type>
static __device__ __forceinline__ uint4 fg_gpu_super_scales(const fg_gpu_raw_scales<type> &raw,
                                                            const float d[4], uint32_t i)
{
    uint32_t out[4];
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
        float scale;
        if constexpr (fg_gpu_quant<type>::has_minima) {
            scale = fg_gpu_byte(raw.words[j / 2], i * 2 + j % 2);
            out[j] = __float_as_uint(__fmul_rn(j < 2 ? d[j] : -d[j], scale));
        } else {
            scale = __fadd_rn(fg_gpu_byte(raw.words[i] ^ 0x80808080u, j), -128.0f);
            out[j] = __float_as_uint(__fmul_rn(d[j % 2], scale));
        }
    }
    return make_uint4(out[0], out[1], out[2], out[3]);
}

/* Of two steps, as fg_gpu_scales has them. */
template <uint32_t type>
static __device__ __forceinline__ uint4 fg_gpu_step_scales(const fg_gpu_raw_scales<type> &raw,
                                                           uint32_t i)
{
    if constexpr (fg_gpu_quant<type>::is_super) {
        const float d[4] = { fg_half_to_float(raw.more[0]), fg_half_to_float(raw.more[0] >> 16),
                             fg_half_to_float(raw.more[1]), fg_half_to_float(raw.more[1] >> 16) };
        return fg_gpu_super_scales<type>(raw, d, i);
    } else {
        return fg_gpu_small_scales<type>(raw, i);
    }
}

template <uint32_t type>
static __device__ __forceinline__ void fg_gpu_ready_scales(fg_gpu_scales &out,
                                                           const fg_gpu_raw_scales<type> &raw)
{
    out.each[0] = fg_gpu_step_scales<type>(raw, 0);
    out.each[1] = fg_gpu_step_scales<type>(raw, 1);
}

/* A warp's, in shared memory: of a ring's units. */
template <uint32_t type> struct fg_gpu_shared_scales {
    uint4 each[fg_gpu_quant<type>::ring][FG_GPU_UNIT_STEPS / 2][8];
};

/* All of a warp; lane 4g + t has scales of the ring's unit t and puts them at `at`. */
template <uint32_t type>
static __device__ __forceinline__ void fg_gpu_share_scales(uint4 *at,
                                                           const fg_gpu_raw_scales<type> &raw,
                                                           uint32_t lane)
{
    fg_gpu_scales own;
    fg_gpu_ready_scales<type>(own, raw);
    __syncwarp();
    if (fg_gpu_quant<type>::ring == 4 || lane % 4 < fg_gpu_quant<type>::ring) {
        at[0] = own.each[0];
        at[8] = own.each[1];
    }
    __syncwarp();
}

/* ---- weights ---- */

/* Where code j of a step is. */
static __host__ __device__ __forceinline__ constexpr uint32_t fg_gpu_code_bit(uint32_t j)
{
    return 4 * (j / 2) + 16 * (j % 2);
}

/* Code j as the float 2^n + code, n = 23 - place, where the code lies in the mantissa: some after a shift by 12. */
static __device__ __forceinline__ constexpr uint32_t fg_gpu_code_place(uint32_t j)
{
    return fg_gpu_code_bit(j) <= 16 ? fg_gpu_code_bit(j) : fg_gpu_code_bit(j) - 12;
}

/* A step's codes below their high bits. */
template <uint32_t type>
static __device__ __forceinline__ uint32_t fg_gpu_low_codes(const fg_gpu_codes<type> &codes,
                                                            uint32_t step)
{
    const uint4 &low = codes.low[0];
    return step == 0 ? low.x : step == 1 ? low.y : step == 2 ? low.z : low.w;
}

template <uint32_t type>
static __device__ __forceinline__ float fg_gpu_code(const fg_gpu_codes<type> &codes, uint32_t step,
                                                    uint32_t j)
{
    typedef fg_gpu_quant<type> quant;
    if constexpr (quant::is_bytes) {
        const uint4 &low = codes.low[step / 2];
        uint32_t first = step % 2 == 0 ? low.x : low.z, second = step % 2 == 0 ? low.y : low.w;
        return __uint_as_float(
            __byte_perm(j < 4 ? first : second, 0x47000000u, 0x7404u | j % 4 << 4));
    } else {
        uint32_t word = fg_gpu_low_codes<type>(codes, step);
        uint32_t place = fg_gpu_code_place(j);
        bool in_place = fg_gpu_code_bit(j) == place;
        uint32_t bits =
            fg_pick_bits(in_place ? word : word >> 12, 15u << place, (150 - place) << 23);
        if constexpr (quant::high_bits != 0) {
            uint32_t shift = quant::high_bits == 1 ? step : step % 2 * 2;
            uint32_t high = codes.high[quant::high_bits == 1 ? 0 : step / 2];
            high = in_place ? high << (4 - shift) : high >> (8 + shift);
            bits = fg_pick_bits(high, (quant::high_bits == 1 ? 16u : 48u) << place, bits);
        }
        return __uint_as_float(bits);
    }
}

/* Word `word` of a step, where weights are made in pairs; d_high and d_low are twice in their words. */
template <uint32_t type>
static __device__ __forceinline__ uint32_t fg_gpu_pair(const fg_gpu_codes<type> &codes,
                                                       uint32_t d_high, uint32_t d_low,
                                                       uint32_t step, uint32_t word)
{
    /* Twice 2^7, 1 and -(2^7 + offset). */
    constexpr uint32_t base = 0x43004300u, one = 0x3F803F80u;
    constexpr uint32_t less = type == FG_Q4_0 ? 0xC308C308u : 0xC310C310u;
    uint32_t pair =
        fg_pick_bits(fg_gpu_low_codes<type>(codes, step) >> (4 * word), 0x000F000Fu, base);
    if constexpr (fg_gpu_quant<type>::high_bits == 1) {
        uint32_t bit = 4 * word + step;
        uint32_t high = bit < 4 ? codes.high[0] << (4 - bit) : codes.high[0] >> (bit - 4);
        pair = fg_pick_bits(high, 0x00100010u, pair);
    }
    pair = fg_bf16_fma2(pair, one, less);
    return fg_bf16_fma2(pair, d_high, fg_bf16_fma2(pair, d_low, 0));
}

/* Step `step` of a unit: fg_mma's words. `scales` are those of the step and its neighbour. */
template <uint32_t type>
static __device__ __forceinline__ void fg_gpu_weights(uint32_t a[4],
                                                      const fg_gpu_codes<type> &codes,
                                                      const uint4 &scales, uint32_t step)
{
    typedef fg_gpu_quant<type> quant;
    const uint32_t first[2] = { scales.x, scales.y }, second[2] = { scales.z, scales.w };
#pragma unroll
    for (uint32_t word = 0; word < 4; word++) {
        uint32_t i = word % 2;
        if constexpr (quant::is_pairs) {
            a[word] = fg_gpu_pair<type>(codes, first[i], second[i], step, word);
            continue;
        }
        float d = __uint_as_float(type == FG_Q6_K && step % 2 != 0 ? second[i] : first[i]);
        float pair[2];
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            uint32_t j = word * 2 + half;
            float code = fg_gpu_code<type>(codes, step, j);
            float base = (float)(1u << (23 - fg_gpu_code_place(j)));
            if constexpr (quant::is_bytes) {
                pair[half] = __fmaf_rn(d, code, __uint_as_float(second[i]));
            } else if constexpr (quant::has_minima) {
                pair[half] = __fmaf_rn(d, __fadd_rn(code, -base), __uint_as_float(second[i]));
            } else {
                pair[half] = __fmul_rn(d, __fadd_rn(code, -(base + quant::offset)));
            }
        }
        a[word] = fg_bf16_pair(pair[0], pair[1]);
    }
}

#endif
