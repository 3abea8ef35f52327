/*
 * Products of many rows with bf16 weights on Hopper, as wide.cuh says: a warp reads its weights from shared memory.
 */
#include "kernels/cuda/product.cuh"

#ifdef FG_GPU_EMULATED

bool fg_gpu_wide(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips, bool gated,
                 bool may_split)
{
    return false;
}

bool fg_gpu_wide_prepare(void)
{
    return false;
}

#else

#include "kernels/cuda/wide.cuh"

enum {
    MIDDLE_WIDTH = 64, /* rows of a tile where there are not many more */
    MIDDLE_ROWS = 192,
    WIDTH = 128, /* where there are */
    WIDEST = 192,
};

template <int rows> struct brain_shape {
    static constexpr int width = rows;
    static constexpr uint32_t stages = rows == WIDTH ? 6 : 5;
    static constexpr uint32_t unit_bytes = WIDE_STEPS * 512, tail_bytes = 0;
    static constexpr uint32_t strip_bytes = unit_bytes;

    static __device__ __forceinline__ size_t unit_at(uint32_t stage)
    {
        return (size_t)stage * unit_bytes;
    }

    struct weights {
        uint32_t mine;
        const uint4 *at;

        __device__ __forceinline__ void find(uint32_t index, uint32_t lane)
        {
            mine = index * strip_bytes + lane * 16;
        }

        __device__ __forceinline__ void open(const uint8_t *strips)
        {
            at = (const uint4 *)(strips + mine);
        }

        template <int half> __device__ __forceinline__ void make(uint32_t (*a)[4]) const
        {
#pragma unroll
            for (int s = 0; s < 2; s++) {
                uint4 w = at[(2 * half + s) * 32];
                a[s][0] = w.x;
                a[s][1] = w.y;
                a[s][2] = w.z;
                a[s][3] = w.w;
            }
        }
    };
};

/* Few rows give few blocks: several share the parts of the same outputs, until there is one for each multiprocessor. */
static void split_parts(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips)
{
    typedef brain_shape<MIDDLE_WIDTH> shape;
    uint32_t blocks = count_tiles(set, strips, false, MIDDLE_WIDTH).count;
    uint32_t parts = (set.steps + set.part_steps - 1) / set.part_steps, shares = 1;
    while (shares < parts && blocks * shares * 2 <= (uint32_t)stream->device->multiprocessors) {
        shares *= 2;
    }
    wide_split split = make_split(stream, set, strips, (parts + shares - 1) / shares);
    if (shares == 1 || !has_room(stream, set, split)) {
        launch<shape, false, false>(stream, set, strips, split);
        return;
    }
    launch<shape, false, true>(stream, set, strips, split);
    fg_gpu_sum_parts(stream, set, split.all_outputs);
}

/* What the tiles that one block goes through take, about, in rows: each has a beginning and an end, and takes in more for a
 * product the fewer its rows are. */
static uint32_t time_of(const fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips,
                        bool gated, uint32_t width)
{
    enum { MORE = 64 };
    wide_tiles tiles = count_tiles(set, strips, gated, width);
    uint32_t blocks = (uint32_t)stream->device->multiprocessors;
    return (tiles.count + blocks - 1) / blocks * (width + MORE);
}

template <bool gated>
static void launch_widest(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips)
{
    wide_split none = {};
    if (time_of(stream, set, strips, gated, WIDTH) < time_of(stream, set, strips, gated, WIDEST)) {
        launch<brain_shape<WIDTH>, gated, false>(stream, set, strips, none);
    } else {
        launch<brain_shape<WIDEST>, gated, false>(stream, set, strips, none);
    }
}

bool fg_gpu_wide(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips, bool gated,
                 bool may_split)
{
    if (!fits_wide(stream, set)) {
        return false;
    }
    wide_split none = {};
    if (set.rows > MIDDLE_ROWS) {
        gated ? launch_widest<true>(stream, set, strips)
              : launch_widest<false>(stream, set, strips);
    } else if (gated) {
        launch<brain_shape<MIDDLE_WIDTH>, true, false>(stream, set, strips, none);
    } else if (may_split) {
        split_parts(stream, set, strips);
    } else {
        launch<brain_shape<MIDDLE_WIDTH>, false, false>(stream, set, strips, none);
    }
    return true;
}

/* Whether this file was compiled for the device's own instructions: for sm_90 alone its kernels are empty. */
static __global__ void tell_whether_compiled(uint32_t *answer)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    *answer = 1;
#else
    *answer = 0;
#endif
}

bool fg_gpu_wide_prepare(void)
{
    uint32_t answer = 0, *there = nullptr;
    fg_gpu_check(cudaMalloc((void **)&there, sizeof *there), "preparing kernels");
    FG_LAUNCH(tell_whether_compiled, dim3(1), dim3(1), 0, nullptr, false, there);
    fg_gpu_check(cudaMemcpy(&answer, there, sizeof answer, cudaMemcpyDeviceToHost),
                 "preparing kernels");
    fg_gpu_check(cudaFree(there), "preparing kernels");
    if (answer == 0) {
        return false;
    }
    prepare<brain_shape<WIDTH>, false, false>();
    prepare<brain_shape<WIDTH>, true, false>();
    prepare<brain_shape<WIDEST>, false, false>();
    prepare<brain_shape<WIDEST>, true, false>();
    prepare<brain_shape<MIDDLE_WIDTH>, false, false>();
    prepare<brain_shape<MIDDLE_WIDTH>, true, false>();
    prepare<brain_shape<MIDDLE_WIDTH>, false, true>();
    return true;
}

#endif
