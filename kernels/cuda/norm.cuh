/*
 * norm - RMS norms of rows: what one block computes of one row, the same in the kernel of their own (rows.cu) and where
 * products of few rows begin with them (few.cuh).
 */
#ifndef FORGE_KERNELS_CUDA_NORM_CUH
#define FORGE_KERNELS_CUDA_NORM_CUH

#include "kernels/cuda/cuda.h"

enum {
    FG_GPU_NORM_THREADS = 256,
    FG_GPU_NORM_KEPT =
        8, /* pairs of columns that a thread keeps in registers; of longer rows the rest is read twice */
};

/* The sum over a warp, the same in all lanes. */
static __device__ __forceinline__ float fg_gpu_warp_sum(float x)
{
    for (int apart = 16; apart > 0; apart /= 2) {
        x = __fadd_rn(x, __shfl_xor_sync(0xFFFFFFFFu, x, apart));
    }
    return x;
}

/* The sum over a block of FG_GPU_NORM_THREADS, in all threads. They meet before it is called again. */
static __device__ __forceinline__ float fg_gpu_block_sum(float x)
{
    __shared__ float sums[FG_GPU_NORM_THREADS / 32];
    x = fg_gpu_warp_sum(x);
    if (threadIdx.x % 32 == 0) {
        sums[threadIdx.x / 32] = x;
    }
    __syncthreads();
    float sum = sums[0];
    for (int warp = 1; warp < FG_GPU_NORM_THREADS / 32; warp++) {
        sum = __fadd_rn(sum, sums[warp]);
    }
    return sum;
}

static __device__ __forceinline__ float fg_gpu_norm_factor(float squares, uint32_t columns,
                                                           float epsilon)
{
    float mean = __fadd_rn(__fdiv_rn(squares, (float)columns), epsilon);
    return __fdiv_rn(1.0f, __fsqrt_rn(mean));
}

/* A thread's pairs of a row, or of the weights. */
typedef struct fg_gpu_norm_kept {
    float2 each[FG_GPU_NORM_KEPT];
} fg_gpu_norm_kept;

static __device__ __forceinline__ void fg_gpu_norm_keep(fg_gpu_norm_kept *kept, const float *from,
                                                        uint32_t columns)
{
#pragma unroll
    for (uint32_t i = 0; i < FG_GPU_NORM_KEPT; i++) {
        uint32_t at = threadIdx.x + i * FG_GPU_NORM_THREADS;
        kept->each[i] =
            at < columns / 2 ? *(const float2 *)(from + 2 * at) : make_float2(0.0f, 0.0f);
    }
}

static __device__ __forceinline__ float2 fg_gpu_normed(float2 x, float factor, float2 w)
{
    return make_float2(__fmul_rn(__fmul_rn(x.x, factor), w.x),
                       __fmul_rn(__fmul_rn(x.y, factor), w.y));
}

/* Calls put(pair, two numbers) for each pair of a row's columns, by all threads of the block. `weights` are those kept of
 * `weight`. */
template <typename put_pair>
static __device__ __forceinline__ void fg_gpu_norm_row(const float *x, const float *weight,
                                                       const fg_gpu_norm_kept &weights,
                                                       uint32_t columns, float epsilon,
                                                       put_pair put)
{
    constexpr uint32_t step = FG_GPU_NORM_THREADS;
    uint32_t count = columns / 2;
    float squares = 0.0f;
    fg_gpu_norm_kept kept;
    fg_gpu_norm_keep(&kept, x, columns);
#pragma unroll
    for (uint32_t i = 0; i < FG_GPU_NORM_KEPT; i++) {
        float2 both = kept.each[i];
        squares = __fmaf_rn(both.y, both.y, __fmaf_rn(both.x, both.x, squares));
    }
    for (uint32_t at = threadIdx.x + FG_GPU_NORM_KEPT * step; at < count; at += step) {
        float2 both = *(const float2 *)(x + 2 * at);
        squares = __fmaf_rn(both.y, both.y, __fmaf_rn(both.x, both.x, squares));
    }
    float factor = fg_gpu_norm_factor(fg_gpu_block_sum(squares), columns, epsilon);
#pragma unroll
    for (uint32_t i = 0; i < FG_GPU_NORM_KEPT; i++) {
        uint32_t at = threadIdx.x + i * step;
        if (at < count) {
            put(at, fg_gpu_normed(kept.each[i], factor, weights.each[i]));
        }
    }
    for (uint32_t at = threadIdx.x + FG_GPU_NORM_KEPT * step; at < count; at += step) {
        put(at, fg_gpu_normed(*(const float2 *)(x + 2 * at), factor,
                              *(const float2 *)(weight + 2 * at)));
    }
}

#endif
