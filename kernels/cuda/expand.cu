/*
 * Quantised weights as bf16 in the order of tall.cu, for products of many rows: a warp expands a ring's units.
 */
#include "kernels/cuda/product.cuh"
#include "kernels/cuda/quant.cuh"

enum { EXPAND_THREADS = 256 };

template <uint32_t type>
static __global__ __launch_bounds__(EXPAND_THREADS) void expand_strips(const uint8_t *weight,
                                                                       uint32_t steps,
                                                                       uint32_t rings,
                                                                       uint4 *panels)
{
    typedef fg_gpu_quant<type> quant;
    uint32_t warp = blockIdx.x * (EXPAND_THREADS / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t strip = blockIdx.y, units = fg_gpu_units(steps), first = warp * quant::ring;
    const uint8_t *in = weight + fg_gpu_unit_at<type>(units) * strip;
    const uint8_t *at = in + fg_gpu_unit_at<type>(first);
    __shared__ fg_gpu_shared_scales<type> shared[EXPAND_THREADS / 32];
    uint4 *out = panels + ((size_t)strip * steps + first * FG_GPU_UNIT_STEPS) * 32 + lane;
    fg_gpu_let_next();
    if (warp >= rings) {
        fg_gpu_wait();
        return;
    }
    fg_gpu_codes<type> codes[quant::ring];
    fg_gpu_raw_scales<type> raw = {};
    if (lane % 4 < quant::ring && first + lane % 4 < units) {
        fg_gpu_load_scales<type>(raw, in + fg_gpu_scales_at<type>(lane), first + lane % 4, lane);
    }
#pragma unroll
    for (uint32_t i = 0; i < quant::ring; i++) {
        if (first + i < units) {
            fg_gpu_load_codes<type>(codes[i], at + i * quant::unit_bytes + fg_gpu_codes_at(lane),
                                    lane);
        }
    }
    /* What was expanded before may be in use until now. */
    fg_gpu_wait();
    fg_gpu_shared_scales<type> &scales = shared[threadIdx.x / 32];
    fg_gpu_share_scales<type>(&scales.each[lane % 4 % quant::ring][0][lane / 4], raw, lane);
#pragma unroll
    for (uint32_t i = 0; i < quant::ring; i++) {
#pragma unroll
        for (uint32_t s = 0; s < FG_GPU_UNIT_STEPS; s++) {
            if ((first + i) * FG_GPU_UNIT_STEPS + s < steps) {
                uint32_t a[4];
                fg_gpu_weights<type>(a, codes[i], scales.each[i][s / 2][lane / 4], s);
                out[(i * FG_GPU_UNIT_STEPS + s) * 32] = make_uint4(a[0], a[1], a[2], a[3]);
            }
        }
    }
}

template <uint32_t type>
static void expand(fg_device_stream *stream, const uint8_t *weight, uint32_t steps, uint32_t first,
                   uint32_t count, uint8_t *panels)
{
    uint32_t units = fg_gpu_units(steps);
    uint32_t rings = (units + fg_gpu_quant<type>::ring - 1) / fg_gpu_quant<type>::ring;
    constexpr uint32_t warps = EXPAND_THREADS / 32;
    FG_LAUNCH(expand_strips<type>, dim3((rings + warps - 1) / warps, count), dim3(EXPAND_THREADS),
              0, stream->stream, true, weight + fg_gpu_unit_at<type>(units) * first, steps, rings,
              (uint4 *)panels);
}

void fg_gpu_expand(fg_device_stream *stream, uint32_t type, const uint8_t *weight, uint32_t steps,
                   uint32_t first, uint32_t count, uint8_t *panels)
{
    FG_GPU_QUANT_SWITCH(type, expand, stream, weight, steps, first, count, panels);
}
