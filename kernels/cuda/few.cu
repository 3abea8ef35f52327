/*
 * Products of few rows: a block makes 16 outputs of all rows. Warp p has part p of the columns, reads its weights
 * straight from memory, each byte once, and a block's 8 warps keep enough of them under way to fill the bus. Weights
 * are asked for before the kernel ahead has ended.
 */
#include "kernels/cuda/few.cuh"

/* Of a batch of steps a warp has the weights and the rows under way, twice. */
template <int tiles, int batch_steps> struct few_batch {
    uint4 weights[batch_steps];
    uint32_t rows[batch_steps][tiles][2];
};

template <int tiles, int batch_steps>
static __device__ __forceinline__ void load_weights(few_batch<tiles, batch_steps> &batch,
                                                    const uint4 *weights, uint32_t step,
                                                    uint32_t end)
{
#pragma unroll
    for (uint32_t i = 0; i < batch_steps; i++) {
        if (step + i < end) {
            batch.weights[i] = fg_load16_once(weights + (size_t)(step + i) * 32);
        }
    }
}

template <int tiles, int batch_steps>
static __device__ __forceinline__ void load_rows(few_batch<tiles, batch_steps> &batch,
                                                 const fg_gpu_products &set, uint32_t step,
                                                 uint32_t end, uint32_t lane)
{
#pragma unroll
    for (uint32_t i = 0; i < batch_steps; i++) {
#pragma unroll
        for (int tile = 0; tile < tiles; tile++) {
            const uint32_t *in =
                set.in + fg_gpu_pair_at(tile * 8, (step + i) * FG_GPU_STEP, set.columns) + lane;
            /* What is read of rows that there are not would only be seen in sums that nobody takes. */
            bool real = step + i < end && tile * 8 + lane / 4 < set.rows;
            batch.rows[i][tile][0] = real ? in[0] : 0;
            batch.rows[i][tile][1] = real ? in[32] : 0;
        }
    }
}

template <int tiles, int batch_steps>
static __device__ __forceinline__ void use_batch(const few_batch<tiles, batch_steps> &batch,
                                                 uint32_t step, uint32_t end, float (*sums)[4])
{
#pragma unroll
    for (uint32_t i = 0; i < batch_steps; i++) {
        if (step + i < end) {
            const uint4 &w = batch.weights[i];
            const uint32_t a[4] = { w.x, w.y, w.z, w.w };
#pragma unroll
            for (int tile = 0; tile < tiles; tile++) {
                fg_mma(sums[tile], a, batch.rows[i][tile][0], batch.rows[i][tile][1]);
            }
        }
    }
}

/* A part of one strip for all rows. Before rows are read the kernel before this one has ended. */
template <int tiles, int batch_steps>
static __device__ __forceinline__ void few_part(const fg_gpu_products &set, const uint4 *weights,
                                                uint32_t first, uint32_t end, uint32_t lane,
                                                float (*sums)[4])
{
    few_batch<tiles, batch_steps> one, two;
    load_weights(one, weights, first, end);
    load_weights(two, weights, first + batch_steps, end);
    fg_gpu_wait();
    load_rows(one, set, first, end, lane);
    for (uint32_t step = first; step < end; step += 2 * batch_steps) {
        load_rows(two, set, step + batch_steps, end, lane);
        use_batch(one, step, end, sums);
        load_weights(one, weights, step + 2 * batch_steps, end);
        load_rows(one, set, step + 2 * batch_steps, end, lane);
        use_batch(two, step + batch_steps, end, sums);
        load_weights(two, weights, step + 3 * batch_steps, end);
    }
}

template <int tiles, int batch_steps, bool gated>
static __global__ __launch_bounds__(FEW_THREADS) void few_rows(fg_gpu_products set)
{
    __shared__ float parts[(gated ? 2 : 1) * FG_GPU_PARTS * tiles * 8 * FG_GPU_STRIP];
    float *up_parts = parts + (gated ? FG_GPU_PARTS * tiles * 8 * FG_GPU_STRIP : 0);
    const fg_gpu_product &p = fg_gpu_find_product(set, blockIdx.x);
    uint32_t strip = blockIdx.x - p.strip_first;
    uint32_t part = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t first = part * set.part_steps;
    uint32_t end = first + set.part_steps < set.steps ? first + set.part_steps : set.steps;
    size_t at = (size_t)strip * set.steps * 32 + lane;
    fg_gpu_let_next();
    if (first < end) {
        float sums[tiles][4] = {};
        few_part<tiles, batch_steps>(set, (const uint4 *)p.weight + at, first, end, lane, sums);
        put_part<tiles>(parts, part, lane, sums);
    }
    if constexpr (gated) {
        if (first < end) {
            float sums[tiles][4] = {};
            few_part<tiles, batch_steps>(set, (const uint4 *)p.up + at, first, end, lane, sums);
            put_part<tiles>(up_parts, part, lane, sums);
        }
    }
    if (first >= end) {
        fg_gpu_wait();
    }
    __syncthreads();
    if constexpr (gated) {
        put_few_gated<tiles>(set, p, strip, 0, parts, fg_gpu_part_count(set), up_parts);
    } else {
        put_few<tiles>(set, p, strip, 0, parts);
    }
}

template <int tiles, int batch_steps, bool gated>
static void launch_few(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips)
{
    FG_LAUNCH((few_rows<tiles, batch_steps, gated>), dim3(strips), dim3(FEW_THREADS), 0,
              stream->stream, true, set);
}

/* Where a multiprocessor has one block only, that block must keep the bus busy alone; where it has several, small
 * batches leave registers for more of them. */
template <int tiles, bool gated>
static void choose_batch(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips)
{
    if (strips <= (uint32_t)stream->device->multiprocessors) {
        launch_few<tiles, 8, gated>(stream, set, strips);
    } else {
        launch_few<tiles, 4, gated>(stream, set, strips);
    }
}

template <bool gated>
static void few(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips)
{
    if (set.rows <= 8) {
        choose_batch<1, gated>(stream, set, strips);
    } else {
        choose_batch<2, gated>(stream, set, strips);
    }
}

void fg_gpu_few(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips, bool gated)
{
    if (gated) {
        few<true>(stream, set, strips);
    } else {
        few<false>(stream, set, strips);
    }
}
