/*
 * few - how a product of few rows ends, in few.cu and few_quant.cu: the sums of parts meet in shared memory.
 */
#ifndef FORGE_KERNELS_CUDA_FEW_CUH
#define FORGE_KERNELS_CUDA_FEW_CUH

#include "kernels/cuda/product.cuh"

enum { FEW_THREADS = 256 };

/* Parts in shared memory: [part][row][output], of so many `rows`. */
template <int tiles>
static __device__ __forceinline__ void put_part(float *parts, uint32_t part, uint32_t rows,
                                                uint32_t lane, const float (*sums)[4])
{
    float *at = parts + (size_t)part * rows * FG_GPU_STRIP + lane / 4;
#pragma unroll
    for (int tile = 0; tile < tiles; tile++) {
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            uint32_t row = tile * 8 + lane % 4 * 2 + i;
            if (row < rows) {
                at[row * FG_GPU_STRIP] = sums[tile][i];
                at[row * FG_GPU_STRIP + 8] = sums[tile][i + 2];
            }
        }
    }
}

static __device__ __forceinline__ float add_parts(const float *parts, uint32_t count, uint32_t rows,
                                                  uint32_t row, uint32_t output)
{
    const float *at = parts + row * FG_GPU_STRIP + output;
    float sum = at[0];
    for (uint32_t part = 1; part < count; part++) {
        sum = __fadd_rn(sum, at[(size_t)part * rows * FG_GPU_STRIP]);
    }
    return sum;
}

/* What a thread's outputs are added to, read before the sums are there. */
template <int tiles> struct few_before {
    static constexpr uint32_t count = (tiles * 8 * FG_GPU_STRIP + FEW_THREADS - 1) / FEW_THREADS;
    float each[count];
};

template <int tiles>
static __device__ __forceinline__ void load_before(few_before<tiles> &before,
                                                   const fg_gpu_products &set,
                                                   const fg_gpu_product &p, uint32_t strip)
{
#pragma unroll
    for (uint32_t j = 0; j < before.count; j++) {
        uint32_t i = j * FEW_THREADS + threadIdx.x;
        uint32_t row = i / FG_GPU_STRIP, output = strip * FG_GPU_STRIP + i % FG_GPU_STRIP;
        bool real =
            p.accumulate && i < tiles * 8 * FG_GPU_STRIP && row < set.rows && output < p.outputs;
        before.each[j] = real ? p.out[(size_t)row * p.stride + output] : 0.0f;
    }
}

/* The outputs of a block's strip; `rows` of the parts. */
template <int tiles>
static __device__ __forceinline__ void put_few(const fg_gpu_products &set, const fg_gpu_product &p,
                                               uint32_t strip, uint32_t rows, const float *parts,
                                               const few_before<tiles> &before)
{
    uint32_t count = fg_gpu_part_count(set);
#pragma unroll
    for (uint32_t j = 0; j < before.count; j++) {
        uint32_t i = j * FEW_THREADS + threadIdx.x;
        uint32_t row = i / FG_GPU_STRIP, to = strip * FG_GPU_STRIP + i % FG_GPU_STRIP;
        if (i < tiles * 8 * FG_GPU_STRIP && row < set.rows && to < p.outputs) {
            float sum = add_parts(parts, count, rows, row, i % FG_GPU_STRIP);
            p.out[(size_t)row * p.stride + to] =
                p.accumulate ? __fadd_rn(before.each[j], sum) : sum;
        }
    }
}

template <int tiles>
static __device__ __forceinline__ void put_few_gated(const fg_gpu_products &set,
                                                     const fg_gpu_product &p, uint32_t strip,
                                                     uint32_t rows, const float *gate,
                                                     uint32_t gate_parts, const float *up)
{
    uint32_t count = fg_gpu_part_count(set);
    for (uint32_t i = threadIdx.x; i < tiles * 8 * (FG_GPU_STRIP / 2); i += FEW_THREADS) {
        uint32_t row = i / (FG_GPU_STRIP / 2), output = i % (FG_GPU_STRIP / 2) * 2;
        uint32_t to = strip * FG_GPU_STRIP + output;
        if (row >= set.rows || to >= p.outputs) {
            continue;
        }
        float values[2];
#pragma unroll
        for (uint32_t j = 0; j < 2; j++) {
            values[j] = __fmul_rn(fg_gpu_silu(add_parts(gate, gate_parts, rows, row, output + j)),
                                  add_parts(up, count, rows, row, output + j));
        }
        p.pairs[fg_gpu_pair_at(row, p.pair_first + to, p.pair_columns)] =
            fg_bf16_pair(values[0], values[1]);
    }
}

#endif
