/*
 * Products of few rows with quantised weights: as few.cu, but that a warp makes bf16 of codes in its registers
 * (quant.cuh). It has a ring of units under way and refills a place as soon as it has used it.
 */
#include "kernels/cuda/few.cuh"
#include "kernels/cuda/quant.cuh"

/* A warp's part of the columns: steps first .. end - 1, which lie in units unit_first .. unit_end - 1. */
typedef struct part_range {
    uint32_t first, end;
    uint32_t unit_first, unit_end;
} part_range;

template <uint32_t type> struct quant_ring {
    fg_gpu_codes<type> codes[fg_gpu_quant<type>::ring];
    fg_gpu_raw_scales<type> raw;
};

/* Rings begin at multiples of their units. */
template <uint32_t type>
static __device__ __forceinline__ uint32_t ring_first(const part_range &part)
{
    return part.unit_first / fg_gpu_quant<type>::ring * fg_gpu_quant<type>::ring;
}

static __device__ __forceinline__ bool is_in(const part_range &part, uint32_t unit)
{
    return unit >= part.unit_first && unit < part.unit_end;
}

/* What of the ring from `unit` on is the warp's: places first .. end - 1. */
template <uint32_t type>
static __device__ __forceinline__ void load_raw(fg_gpu_raw_scales<type> &raw, const uint8_t *at,
                                                const part_range &part, uint32_t unit,
                                                uint32_t lane)
{
    constexpr uint32_t units = fg_gpu_quant<type>::ring;
    uint32_t first = part.unit_first > unit ? part.unit_first - unit : 0;
    uint32_t end = part.unit_end - unit < units ? part.unit_end - unit : units;
    fg_gpu_load_scales<type>(raw, at, first, end, lane);
}

template <uint32_t type>
static __device__ __forceinline__ void fill_ring(quant_ring<type> &ring, const uint8_t *strip,
                                                 const part_range &part, uint32_t lane)
{
    uint32_t first = ring_first<type>(part);
    const uint8_t *at = strip + fg_gpu_unit_at<type>(first);
    load_raw<type>(ring.raw, at, part, first, lane);
#pragma unroll
    for (uint32_t i = 0; i < fg_gpu_quant<type>::ring; i++) {
        if (is_in(part, first + i)) {
            fg_gpu_load_codes<type>(ring.codes[i], at + i * fg_gpu_quant<type>::unit_bytes, lane);
        }
    }
}

/* Where a lane finds the rows. */
typedef struct few_in {
    const uint32_t *at; /* word of the first tile, at the unit's first step */
    uint32_t tile_words;
    uint32_t real_tiles; /* the lane's row is there in so many */
} few_in;

/* `whole`: all steps of the unit are the warp's. */
template <uint32_t type, int tiles, bool whole>
static __device__ __forceinline__ void use_unit(const fg_gpu_codes<type> &codes,
                                                const fg_gpu_scales<type> &scales, few_in in,
                                                const part_range &part, uint32_t unit,
                                                float (*sums)[4])
{
#pragma unroll
    for (uint32_t s = 0; s < FG_GPU_UNIT_STEPS; s++) {
        uint32_t step = unit * FG_GPU_UNIT_STEPS + s;
        if (whole || (step >= part.first && step < part.end)) {
            uint32_t a[4];
            fg_gpu_weights<type>(a, codes, scales, s);
            const uint32_t *at = in.at;
#pragma unroll
            for (int tile = 0; tile < tiles; tile++) {
                bool real = tile < (int)in.real_tiles;
                uint32_t b0 = real ? at[s * 64] : 0;
                uint32_t b1 = real ? at[s * 64 + 32] : 0;
                fg_mma(sums[tile], a, b0, b1);
                at += in.tile_words;
            }
        }
    }
}

/* A part of one strip, whose first ring is under way; at the end that of `next` is, unless it is NULL. */
template <uint32_t type, int tiles>
static __device__ __forceinline__ void few_part(quant_ring<type> &ring, const uint8_t *strip,
                                                const uint8_t *next, few_in in,
                                                const part_range &part, uint32_t lane,
                                                float (*sums)[4])
{
    constexpr uint32_t units = fg_gpu_quant<type>::ring;
    constexpr uint32_t unit_words = FG_GPU_UNIT_STEPS * 64;
    uint32_t first = ring_first<type>(part);
    in.at += (size_t)first * unit_words;
    const uint8_t *then_at = strip + fg_gpu_unit_at<type>(first);
    for (uint32_t unit = first; unit < part.unit_end; unit += units) {
        fg_gpu_scales<type> own;
        fg_gpu_ready_scales<type>(own, ring.raw);
        uint32_t then = unit + units;
        then_at += fg_gpu_quant<type>::ring_bytes;
        if (next != nullptr && then >= part.unit_end) {
            then = first;
            then_at = next + fg_gpu_unit_at<type>(first);
        }
        if (then < part.unit_end) {
            load_raw<type>(ring.raw, then_at, part, then, lane);
        }
#pragma unroll
        for (uint32_t i = 0; i < units; i++) {
            fg_gpu_scales<type> scales;
            fg_gpu_share_scales<type>(scales, own, i);
            uint32_t step = (unit + i) * FG_GPU_UNIT_STEPS;
            if (step >= part.first && step + FG_GPU_UNIT_STEPS <= part.end) {
                use_unit<type, tiles, true>(ring.codes[i], scales, in, part, unit + i, sums);
            } else if (is_in(part, unit + i)) {
                use_unit<type, tiles, false>(ring.codes[i], scales, in, part, unit + i, sums);
            }
            in.at += unit_words;
            if (is_in(part, then + i)) {
                fg_gpu_load_codes<type>(ring.codes[i], then_at + i * fg_gpu_quant<type>::unit_bytes,
                                        lane);
            }
        }
    }
}

/* The sums of all parts, in the place of one. */
template <int tiles>
static __device__ __forceinline__ void join_parts(float *out, const float *parts, uint32_t count)
{
    for (uint32_t i = threadIdx.x; i < tiles * 8 * FG_GPU_STRIP; i += FEW_THREADS) {
        out[i] = add_parts<tiles>(parts, count, i / FG_GPU_STRIP, i % FG_GPU_STRIP);
    }
}

static constexpr uint32_t blocks_at_once(int tiles)
{
    return tiles <= 2 ? 4 : tiles <= 4 ? 3 : 2;
}

/* Blocks: x a tile of rows, y a strip, so that neighbours read the same weights. */
template <uint32_t type, int tiles, bool gated>
static __global__ __launch_bounds__(FEW_THREADS,
                                    blocks_at_once(tiles)) void few_quant_rows(fg_gpu_products set)
{
    /* Gate and up of many rows take turns in shared memory. */
    constexpr bool turns = gated && tiles > 4;
    constexpr uint32_t part_floats = tiles * 8 * FG_GPU_STRIP;
    constexpr uint32_t up_at = gated && !turns ? FG_GPU_PARTS * part_floats : 0;
    __shared__ float parts[up_at + FG_GPU_PARTS * part_floats];
    __shared__ float gates[turns ? part_floats : 1];
    const fg_gpu_product &p = fg_gpu_find_product(set, blockIdx.y);
    uint32_t strip = blockIdx.y - p.strip_first, row_first = blockIdx.x * tiles * 8;
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t count = fg_gpu_part_count(set);
    part_range part;
    part.first = warp * set.part_steps;
    part.end = part.first + set.part_steps < set.steps ? part.first + set.part_steps : set.steps;
    part.unit_first = part.first / FG_GPU_UNIT_STEPS;
    part.unit_end = fg_gpu_units(part.end);
    bool mine = part.first < part.end;
    size_t at = fg_gpu_unit_at<type>(fg_gpu_units(set.steps)) * strip;
    /* What is read of rows that there are not would only be seen in sums that nobody takes. */
    uint32_t row = row_first + lane / 4;
    few_in in;
    in.at = set.in + fg_gpu_pair_at(row_first, 0, set.columns) + lane;
    in.tile_words = set.columns / 8 * 32;
    in.real_tiles = row < set.rows ? (set.rows - row + 7) / 8 : 0;
    quant_ring<type> ring;
    fg_gpu_let_next();
    if (mine) {
        fill_ring<type>(ring, p.weight + at, part, lane);
    }
    fg_gpu_wait();
    /* Gate, then up, by the same instructions. */
    const uint8_t *strip_at = p.weight + at, *next = gated ? p.up + at : nullptr;
#pragma unroll 1
    for (uint32_t i = 0; i < (gated ? 2u : 1u); i++) {
        float sums[tiles][4] = {};
        if (mine) {
            few_part<type, tiles>(ring, strip_at, next, in, part, lane, sums);
        }
        if (turns && i == 1) {
            __syncthreads();
            join_parts<tiles>(gates, parts, count);
            __syncthreads();
        }
        if (mine) {
            put_part<tiles>(parts + i * up_at, warp, lane, sums);
        }
        strip_at = next;
        next = nullptr;
    }
    __syncthreads();
    if constexpr (gated) {
        put_few_gated<tiles>(set, p, strip, row_first, turns ? gates : parts, turns ? 1 : count,
                             parts + up_at);
    } else {
        put_few<tiles>(set, p, strip, row_first, parts);
    }
}

template <uint32_t type, int tiles, bool gated>
static void launch(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips)
{
    FG_LAUNCH((few_quant_rows<type, tiles, gated>),
              dim3((set.rows + tiles * 8 - 1) / (tiles * 8), strips), dim3(FEW_THREADS), 0,
              stream->stream, true, set);
}

template <uint32_t type, bool gated>
static void few_gated(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips)
{
    if (set.rows <= 8) {
        launch<type, 1, gated>(stream, set, strips);
    } else if (set.rows <= 16) {
        launch<type, 2, gated>(stream, set, strips);
    } else if (set.rows <= 32) {
        launch<type, 4, gated>(stream, set, strips);
    } else {
        launch<type, 8, gated>(stream, set, strips);
    }
}

template <uint32_t type>
static void few(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips, bool gated)
{
    gated ? few_gated<type, true>(stream, set, strips)
          : few_gated<type, false>(stream, set, strips);
}

void fg_gpu_few_quant(fg_device_stream *stream, uint32_t type, const fg_gpu_products &set,
                      uint32_t strips, bool gated)
{
    FG_GPU_QUANT_SWITCH(type, few, stream, set, strips, gated);
}
