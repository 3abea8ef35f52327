/*
 * Products of few rows: a block makes 16 outputs of all rows. Warp p has part p of the columns, reads its weights
 * straight from memory, each byte once, and a block's 8 warps keep enough of them under way to fill the bus. Weights
 * are asked for before the kernel ahead has ended.
 */
#include "kernels/cuda/few.cuh"

/* Of a batch of steps a warp has the weights under way, twice. */
template <int batch_steps> struct few_batch {
    uint4 weights[batch_steps];
};

template <int batch_steps>
static __device__ __forceinline__ void load_batch(few_batch<batch_steps> &batch,
                                                  const uint4 *weights, uint32_t step, uint32_t end)
{
#pragma unroll
    for (uint32_t i = 0; i < batch_steps; i++) {
        if (step + i < end) {
            batch.weights[i] = fg_load16_once(weights + (size_t)(step + i) * 32);
        }
    }
}

template <int tiles, int batch_steps>
static __device__ __forceinline__ void use_batch(const few_batch<batch_steps> &batch,
                                                 const fg_gpu_products &set, uint32_t step,
                                                 uint32_t end, uint32_t lane, float (*sums)[4])
{
    size_t tile_words = (size_t)set.columns / 8 * 32;
#pragma unroll
    for (uint32_t i = 0; i < batch_steps; i++) {
        if (step + i < end) {
            const uint4 &w = batch.weights[i];
            const uint32_t a[4] = { w.x, w.y, w.z, w.w };
            const uint32_t *in = set.in + (size_t)(step + i) * 64 + lane;
#pragma unroll
            for (int tile = 0; tile < tiles; tile++) {
                /* What is read of rows that there are not would only be seen in sums that nobody takes. */
                bool real = tile * 8 + lane / 4 < set.rows;
                uint32_t b0 = real ? in[tile * tile_words] : 0;
                uint32_t b1 = real ? in[tile * tile_words + 32] : 0;
                fg_mma(sums[tile], a, b0, b1);
            }
        }
    }
}

/* A part of one strip for all rows. Before the first batch is used the kernel before this one has ended. */
template <int tiles, int batch_steps>
static __device__ __forceinline__ void few_part(const fg_gpu_products &set, const uint4 *weights,
                                                uint32_t first, uint32_t end, uint32_t lane,
                                                float (*sums)[4])
{
    few_batch<batch_steps> one, two;
    load_batch(one, weights, first, end);
    fg_gpu_wait();
    for (uint32_t step = first; step < end; step += 2 * batch_steps) {
        load_batch(two, weights, step + batch_steps, end);
        use_batch<tiles>(one, set, step, end, lane, sums);
        load_batch(one, weights, step + 2 * batch_steps, end);
        use_batch<tiles>(two, set, step + batch_steps, end, lane, sums);
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
        launch_few<tiles, 16, gated>(stream, set, strips);
    } else if (tiles > 2) {
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
    } else if (set.rows <= 16) {
        choose_batch<2, gated>(stream, set, strips);
    } else if (gated || set.rows <= 24) {
        choose_batch<3, gated>(stream, set, strips);
    } else {
        choose_batch<4, gated>(stream, set, strips);
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
