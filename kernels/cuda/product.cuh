/*
 * product - what the kernels of products share (linear.cu says who computes what).
 */
#ifndef FORGE_KERNELS_CUDA_PRODUCT_CUH
#define FORGE_KERNELS_CUDA_PRODUCT_CUH

#include "kernels/cuda/cuda.h"

enum { FG_GPU_PRODUCTS_MAX = 4 };

/* One product, or the gate and the up of a gated one. */
typedef struct fg_gpu_product {
    const uint8_t *weight;
    const uint8_t *up;
    float *out;
    uint32_t *pairs; /* of gated ones, in place of `out` */
    uint32_t outputs, stride;
    uint32_t pair_first,
        pair_columns;     /* of gated ones: where these outputs are in the whole matrix */
    uint32_t strip_first; /* of all strips of the launch */
    bool accumulate;
} fg_gpu_product;

typedef struct fg_gpu_products {
    fg_gpu_product each[FG_GPU_PRODUCTS_MAX];
    uint32_t count;
    const uint32_t *in;
    uint32_t columns, steps, part_steps, rows;
} fg_gpu_products;

static __device__ __forceinline__ uint32_t fg_gpu_part_count(const fg_gpu_products &set)
{
    return (set.steps + set.part_steps - 1) / set.part_steps;
}

/* x / (1 + e^-x), but for the last bits of a float; what becomes of it is rounded to bf16. */
static __device__ __forceinline__ float fg_gpu_silu(float x)
{
    return __fmul_rn(x, fg_reciprocal(__fadd_rn(1.0f, fg_exp2(__fmul_rn(x, -1.44269504f)))));
}

static __device__ __forceinline__ const fg_gpu_product &fg_gpu_find_product(
    const fg_gpu_products &set, uint32_t strip)
{
    uint32_t i = 0;
    while (i + 1 < set.count && strip >= set.each[i + 1].strip_first) {
        i++;
    }
    return set.each[i];
}

static __device__ __forceinline__ void fg_gpu_put_out(const fg_gpu_product &p, uint32_t rows,
                                                      uint32_t row, uint32_t output, float sum)
{
    if (row < rows && output < p.outputs) {
        float *out = p.out + (size_t)row * p.stride + output;
        *out = p.accumulate ? __fadd_rn(*out, sum) : sum;
    }
}

/* A gated pair of columns: neighbouring outputs are 4 lanes apart; lanes of even outputs write the first row's word,
 * the others the second row's. */
static __device__ __forceinline__ void fg_gpu_put_gated(const fg_gpu_product &p, uint32_t rows,
                                                        uint32_t row, uint32_t output, uint32_t g,
                                                        float first, float second)
{
    float first_other = __shfl_xor_sync(0xFFFFFFFFu, first, 4);
    float second_other = __shfl_xor_sync(0xFFFFFFFFu, second, 4);
    bool even = g % 2 == 0;
    uint32_t to_row = even ? row : row + 1;
    uint32_t k = even ? output : output - 1;
    if (to_row < rows && k < p.outputs) {
        p.pairs[fg_gpu_pair_at(to_row, p.pair_first + k, p.pair_columns)] =
            even ? fg_bf16_pair(first, first_other) : fg_bf16_pair(second_other, second);
    }
}

static inline uint32_t fg_gpu_strips(uint32_t outputs)
{
    return (outputs + FG_GPU_STRIP - 1) / FG_GPU_STRIP;
}

/* few.cu: up to so many rows. */
enum { FG_GPU_FEW_ROWS = 16 };
void fg_gpu_few(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips, bool gated);
void fg_gpu_few_prepare(const fg_device *device);

/* few_quant.cu: weights of one quantised type, up to so many rows. False, and nothing done, where a block of the device has
 * too little shared memory. */
enum { FG_GPU_FEW_QUANT_ROWS = 64 };
bool fg_gpu_few_quant(fg_device_stream *stream, uint32_t type, const fg_gpu_products &set,
                      uint32_t strips, bool gated);
void fg_gpu_few_quant_prepare(const fg_device *device);

/* expand.cu: strips first .. first + count - 1 of a quantised matrix as bf16. */
void fg_gpu_expand(fg_device_stream *stream, uint32_t type, const uint8_t *weight, uint32_t steps,
                   uint32_t first, uint32_t count, uint8_t *panels);

/* tall.cu: any number of rows. The strips of each product are rounded up to a multiple of 8; `may_split`: the stream's
 * work area is free. */
enum { FG_GPU_TALL_STRIPS = 8 };
void fg_gpu_tall(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips, bool gated,
                 bool may_split);
void fg_gpu_tall_prepare(const fg_device *device);
/* Adds the parts in the stream's work area, [part][row][output of all strips]. */
void fg_gpu_sum_parts(fg_device_stream *stream, const fg_gpu_products &set, uint32_t all_outputs);

/* wide.cu: false, and nothing done, where the device or the parts do not suit it. Strips as for fg_gpu_tall. */
bool fg_gpu_wide(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips, bool gated,
                 bool may_split);
/* Once per device: whether it has these kernels. */
bool fg_gpu_wide_prepare(void);

/* wide_quant.cu: likewise, of one quantised type. It is the quickest for more rows than the first number and up to the
 * second. */
enum { FG_GPU_WIDE_QUANT_ABOVE = 32, FG_GPU_WIDE_QUANT_ROWS = 1024 };
bool fg_gpu_wide_quant(fg_device_stream *stream, uint32_t type, const fg_gpu_products &set,
                       uint32_t strips, bool gated, bool may_split);
/* Once per device that has them. */
void fg_gpu_wide_quant_prepare(void);

#endif
