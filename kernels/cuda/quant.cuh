/*
 * quant - quantised weights as they lie in device memory, and their way into fragments of tensor-core products. A
 * weight becomes the bf16 of the float that unpack.cuh reads: only how it is computed differs.
 *
 * [strip][unit]: a unit is 16 outputs by 64 columns, that is 4 steps, the last one of a strip padded with zeros. Lane
 * 4g + t has the 8 codes of a step that fg_mma wants of it, in the order of fg_mma's words, low half first. A unit is
 *   4 bits    per lane 4 words, one a step: code j in bits 4j .. 4j + 3
 *   8 bits    per lane 4 words of the first two steps, then 4 words of the others: code j in byte j, 128 added
 *   5th bits  per lane a word: of step s and code j bit 4j + s
 *   and 6th   per lane two words, of two steps each: of step s and code j bits 4j + 2 (s % 2) and the next
 *   scales    per g, of outputs g and g + 8 in turns: of each 32 columns the half d, then (Q4_1, Q5_1) the half m;
 *             Q4_K, Q5_K: of each 32 columns the scale, then the minimum, bytes; Q6_K: of each step the scale, a byte
 * Types of 256 columns a block have after each 4 units per g the halves d of both outputs, then (not Q6_K) dmin.
 *
 * A code that is put into the mantissa of 2^n is the float 2^n + code, with no conversion. What follows is exact but for
 * the last rounding, which is that of the reference: d has 11 bits, scales and minima of the K types 6 (Q6_K: 7).
 *   Q4_0, Q5_0   d * (2^n + q) - (2^n + 8) d: the second product has at most 11 + 13 bits, the result 11 + 5
 *   Q4_1, Q5_1   d * q has 16 bits; one rounding, of the sum
 *   Q8_0         d * (q - 128) has 19 bits
 *   Q4_K, Q5_K   d * scale has 17 bits, times q 22, dmin * minimum 17; one rounding, of the sum
 *   Q6_K         d * scale has 18 bits, times q - 32 at most 24
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
    static constexpr uint32_t unit_bytes = scales_at + (has_minima && !is_super ? 128 : 64);
    static constexpr uint32_t tail_at = 4 * unit_bytes;
    static constexpr uint32_t super_bytes = tail_at + (has_minima ? 64 : 32);
    /* Units that a warp has under way; of 256 columns all. */
    static constexpr uint32_t ring = is_bytes ? 2 : 4;
    static constexpr uint32_t ring_bytes = is_super ? super_bytes : ring * unit_bytes;
    static constexpr uint32_t scales = type == FG_Q6_K ? 8 : 4;
    static constexpr uint32_t minima = has_minima ? 4 : 1;
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

/* Of a row pair and a unit; lane 4g + t has those of unit t of a ring. */
template <uint32_t type> struct fg_gpu_raw_scales {
    uint32_t words[2];
    uint32_t more[2]; /* the second half of Q4_1's and Q5_1's; K types: d and dmin */
};

template <uint32_t type> struct fg_gpu_scales {
    float d[fg_gpu_quant<type>::scales];
    float minimum[fg_gpu_quant<type>::minima];
};

template <uint32_t type>
static __device__ __forceinline__ void fg_gpu_load_codes(fg_gpu_codes<type> &codes,
                                                         const uint8_t *unit, uint32_t lane)
{
    typedef fg_gpu_quant<type> quant;
    codes.low[0] = fg_load16_once(unit + lane * 16);
    if constexpr (quant::is_bytes) {
        codes.low[1] = fg_load16_once(unit + 512 + lane * 16);
    }
    if constexpr (quant::high_bits == 1) {
        codes.high[0] = fg_load4_once(unit + quant::high_at + lane * 4);
    } else if constexpr (quant::high_bits == 2) {
        uint2 high = fg_load8_once(unit + quant::high_at + lane * 8);
        codes.high[0] = high.x;
        codes.high[1] = high.y;
    }
}

/* `ring` is where the ring's first unit is; `real`: the lane's unit is wanted. */
template <uint32_t type>
static __device__ __forceinline__ void fg_gpu_load_scales(fg_gpu_raw_scales<type> &raw,
                                                          const uint8_t *ring, bool real,
                                                          uint32_t lane)
{
    typedef fg_gpu_quant<type> quant;
    uint32_t g = lane / 4, t = lane % 4;
    raw = {};
    if (!real) {
        return;
    }
    const uint8_t *at = ring + t * quant::unit_bytes + quant::scales_at;
    if constexpr (quant::has_minima && !quant::is_super) {
        uint4 words = fg_load16_once(at + g * 16);
        raw.words[0] = words.x;
        raw.words[1] = words.y;
        raw.more[0] = words.z;
        raw.more[1] = words.w;
        return;
    }
    uint2 words = fg_load8_once(at + g * 8);
    raw.words[0] = words.x;
    raw.words[1] = words.y;
    if constexpr (quant::is_super && quant::has_minima) {
        uint2 more = fg_load8_once(ring + quant::tail_at + g * 8);
        raw.more[0] = more.x;
        raw.more[1] = more.y;
    } else if constexpr (quant::is_super) {
        raw.more[0] = fg_load4_once(ring + quant::tail_at + g * 4);
    }
}

/* ---- scales ---- */

/* Byte `i` of a word as a float. */
static __device__ __forceinline__ float fg_gpu_byte(uint32_t word, uint32_t i)
{
    return __fadd_rn(__uint_as_float(__byte_perm(word, 0x4B000000u, 0x7540u | i)), -8388608.0f);
}

/* The lane's raw scales as floats. */
template <uint32_t type>
static __device__ __forceinline__ void fg_gpu_ready_scales(fg_gpu_scales<type> &out,
                                                           const fg_gpu_raw_scales<type> &raw)
{
    typedef fg_gpu_quant<type> quant;
    if constexpr (!quant::is_super) {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            out.d[i] = fg_half_to_float(raw.words[i / 2] >> (i % 2 * 16));
            if constexpr (quant::has_minima) {
                out.minimum[i] = fg_half_to_float(raw.more[i / 2] >> (i % 2 * 16));
            }
        }
    } else {
        const float d[2] = { fg_half_to_float(raw.more[0]), fg_half_to_float(raw.more[0] >> 16) };
        if constexpr (quant::has_minima) {
            const float dmin[2] = { fg_half_to_float(raw.more[1]),
                                    fg_half_to_float(raw.more[1] >> 16) };
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                out.d[i] = __fmul_rn(d[i % 2], fg_gpu_byte(raw.words[0], i));
                out.minimum[i] = -__fmul_rn(dmin[i % 2], fg_gpu_byte(raw.words[1], i));
            }
        } else {
#pragma unroll
            for (uint32_t i = 0; i < 8; i++) {
                float scale =
                    __fadd_rn(fg_gpu_byte(raw.words[i / 4] ^ 0x80808080u, i % 4), -128.0f);
                out.d[i] = __fmul_rn(d[i % 2], scale);
            }
        }
    }
}

/* Of a step's 16 columns, outputs g and g + 8. */
template <uint32_t type> struct fg_gpu_step_scales {
    float d[2];
    float minimum[2];
    float offset[2][3]; /* Q4_0, Q5_0: -d * (2^n + offset) for n = 15, 11 and 7 */
};

/* Those of step `step` of the ring's unit `unit`, from the lane that has them. */
template <uint32_t type>
static __device__ __forceinline__ void fg_gpu_share_scales(fg_gpu_step_scales<type> &out,
                                                           const fg_gpu_scales<type> &own,
                                                           uint32_t unit, uint32_t step)
{
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t at = (type == FG_Q6_K ? step : step / 2) * 2 + i;
        out.d[i] = __shfl_sync(0xFFFFFFFFu, own.d[at], (int)unit, 4);
        if constexpr (fg_gpu_quant<type>::has_minima) {
            out.minimum[i] = __shfl_sync(0xFFFFFFFFu, own.minimum[at], (int)unit, 4);
        }
        if constexpr (type == FG_Q4_0 || type == FG_Q5_0) {
#pragma unroll
            for (uint32_t j = 0; j < 3; j++) {
                float base = (float)(1u << (15 - 4 * j));
                out.offset[i][j] = __fmul_rn(out.d[i], -(base + fg_gpu_quant<type>::offset));
            }
        }
    }
}

/* Whether a step has the scales of the step before it. */
template <uint32_t type>
static __device__ __forceinline__ constexpr bool fg_gpu_same_scales(uint32_t step)
{
    return type != FG_Q6_K && step % 2 != 0;
}

/* ---- weights ---- */

/* Code j as the float 2^n + code, n = 23 - place, where the code lies in the mantissa. Three nibbles fit in one: codes 2,
 * 3 and 4 where they are, the others after a shift. */
static __device__ __forceinline__ constexpr uint32_t fg_gpu_code_place(uint32_t j)
{
    return j < 2 ? 8 + 4 * j : j < 5 ? 4 * j : 4 * j - 12;
}

template <uint32_t type>
static __device__ __forceinline__ float fg_gpu_code(const fg_gpu_codes<type> &codes, uint32_t step,
                                                    uint32_t j)
{
    typedef fg_gpu_quant<type> quant;
    const uint4 &low = codes.low[quant::is_bytes ? step / 2 : 0];
    if constexpr (quant::is_bytes) {
        uint32_t first = step % 2 == 0 ? low.x : low.z, second = step % 2 == 0 ? low.y : low.w;
        return __uint_as_float(
            __byte_perm(j < 4 ? first : second, 0x47000000u, 0x7404u | j % 4 << 4));
    } else {
        uint32_t word = step == 0 ? low.x : step == 1 ? low.y : step == 2 ? low.z : low.w;
        uint32_t place = fg_gpu_code_place(j);
        word = j < 2 ? word << 8 : j < 5 ? word : word >> 12;
        uint32_t bits = (word & 15u << place) | (150 - place) << 23;
        if constexpr (quant::high_bits != 0) {
            uint32_t shift = quant::high_bits == 1 ? step : step % 2 * 2;
            uint32_t high = codes.high[quant::high_bits == 1 ? 0 : step / 2];
            high = j < 2 ? high << (12 - shift) : j < 5 ? high << (4 - shift) : high >> (8 + shift);
            bits |= high & (quant::high_bits == 1 ? 16u : 48u) << place;
        }
        return __uint_as_float(bits);
    }
}

/* Step `step` of a unit: fg_mma's words. */
template <uint32_t type>
static __device__ __forceinline__ void fg_gpu_weights(uint32_t a[4],
                                                      const fg_gpu_codes<type> &codes,
                                                      const fg_gpu_step_scales<type> &scales,
                                                      uint32_t step)
{
    typedef fg_gpu_quant<type> quant;
#pragma unroll
    for (uint32_t word = 0; word < 4; word++) {
        float pair[2];
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            uint32_t j = word * 2 + half;
            float code = fg_gpu_code<type>(codes, step, j);
            float base = (float)(1u << (23 - (quant::is_bytes ? 8 : fg_gpu_code_place(j))));
            float d = scales.d[word % 2];
            if constexpr (quant::has_minima) {
                pair[half] = __fmaf_rn(d, __fadd_rn(code, -base), scales.minimum[word % 2]);
            } else if constexpr (type == FG_Q4_0 || type == FG_Q5_0) {
                pair[half] =
                    __fmaf_rn(d, code, scales.offset[word % 2][fg_gpu_code_place(j) / 4 - 2]);
            } else {
                pair[half] = __fmul_rn(d, __fadd_rn(code, -(base + quant::offset)));
            }
        }
        a[word] = fg_bf16_pair(pair[0], pair[1]);
    }
}

#endif
