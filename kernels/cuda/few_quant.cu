/*
 * Products of few rows with quantised weights: as few.cu, but that a warp makes bf16 of codes in its registers
 * (quant.cuh). It has a ring of units under way and refills a place as soon as it has used it.
 */
#include "kernels/cuda/few.cuh"
#include "kernels/cuda/quant.cuh"

/* A warp's part of the columns. */
typedef struct part_steps {
    uint32_t first, end;
} part_steps;

template <uint32_t type> struct quant_ring {
    fg_gpu_codes<type> codes[fg_gpu_quant<type>::ring];
    fg_gpu_raw_scales<type> raw;
};

/* Rings begin at multiples of their steps. */
template <uint32_t type>
static __device__ __forceinline__ uint32_t ring_first(const part_steps &part)
{
    constexpr uint32_t steps = fg_gpu_quant<type>::ring * FG_GPU_UNIT_STEPS;
    return part.first / steps * steps;
}

/* Whether some of the unit whose first step this is are the warp's. */
static __device__ __forceinline__ bool is_in(const part_steps &part, uint32_t step)
{
    return step + FG_GPU_UNIT_STEPS > part.first && step < part.end;
}

/* Scales of the ring from `step` on. */
template <uint32_t type>
static __device__ __forceinline__ void load_raw(fg_gpu_raw_scales<type> &raw, const uint8_t *at,
                                                const part_steps &part, uint32_t step,
                                                uint32_t lane)
{
    uint32_t place = lane % 4;
    bool real = place < fg_gpu_quant<type>::ring && is_in(part, step + place * FG_GPU_UNIT_STEPS);
    fg_gpu_load_scales<type>(raw, at, real, lane);
}

/* `at` is where the ring's first unit is, here and below. */
template <uint32_t type>
static __device__ __forceinline__ void fill_ring(quant_ring<type> &ring, const uint8_t *at,
                                                 const part_steps &part, uint32_t lane)
{
    uint32_t step = ring_first<type>(part);
    load_raw<type>(ring.raw, at, part, step, lane);
#pragma unroll
    for (uint32_t i = 0; i < fg_gpu_quant<type>::ring; i++) {
        if (is_in(part, step + i * FG_GPU_UNIT_STEPS)) {
            fg_gpu_load_codes<type>(ring.codes[i], at + i * fg_gpu_quant<type>::unit_bytes, lane);
        }
    }
}

/* Where a lane finds the rows. */
typedef struct few_in {
    const uint32_t *at; /* of the block of rows, the lane's word */
    uint32_t columns;
    uint32_t tile_first; /* of the block */
    uint32_t real_tiles; /* the lane's row is there in so many */
} few_in;

/* What the lane reads of a unit, whose columns are a block's: where its first tile is, and how far the next one. */
typedef struct unit_in {
    const uint32_t *at;
    uint32_t tile_words;
    uint32_t steps; /* that there are */
} unit_in;

/* `aligned`: units are whole. */
template <bool aligned>
static __device__ __forceinline__ unit_in find_unit(const few_in &in, uint32_t step)
{
    uint32_t first = step * FG_GPU_STEP, left = first < in.columns ? in.columns - first : 0;
    unit_in unit;
    unit.tile_words = (aligned || left >= FG_GPU_BLOCK ? FG_GPU_BLOCK : left) * 4;
    unit.steps = left / FG_GPU_STEP;
    unit.at = in.at + (size_t)first * (FG_GPU_BLOCK / 2) + in.tile_first * unit.tile_words;
    return unit;
}

/* The first tile's rows of a unit; where there is only one they are asked for one unit ahead. */
typedef struct ahead_rows {
    uint32_t each[FG_GPU_UNIT_STEPS][2];
} ahead_rows;

template <bool aligned>
static __device__ __forceinline__ void load_ahead(ahead_rows &rows, const few_in &in, uint32_t step)
{
    unit_in unit = find_unit<aligned>(in, step);
#pragma unroll
    for (uint32_t s = 0; s < FG_GPU_UNIT_STEPS; s++) {
        bool real = in.real_tiles > 0 && s < unit.steps;
        rows.each[s][0] = real ? unit.at[s * 64] : 0;
        rows.each[s][1] = real ? unit.at[s * 64 + 32] : 0;
    }
}

/* The unit at `place` of the ring, from `first` on; steps of other warps are left out; `aligned`: it has none. */
template <uint32_t type, int tiles, bool aligned>
static __device__ __forceinline__ void use_unit(const fg_gpu_codes<type> &codes,
                                                const fg_gpu_scales<type> &own, const few_in &in,
                                                const ahead_rows &ahead, const part_steps &part,
                                                uint32_t first, uint32_t place, float (*sums)[4])
{
    fg_gpu_step_scales<type> scales;
    unit_in unit = find_unit<aligned>(in, first);
#pragma unroll
    for (uint32_t s = 0; s < FG_GPU_UNIT_STEPS; s++) {
        if (!fg_gpu_same_scales<type>(s)) {
            fg_gpu_share_scales<type>(scales, own, place, s);
        }
        if (aligned || (first + s >= part.first && first + s < part.end)) {
            uint32_t a[4];
            fg_gpu_weights<type>(a, codes, scales, s);
#pragma unroll
            for (int tile = 0; tile < tiles; tile++) {
                if (tiles == 1) {
                    fg_mma(sums[0], a, ahead.each[s][0], ahead.each[s][1]);
                } else {
                    const uint32_t *at = unit.at + tile * unit.tile_words + s * 64;
                    bool real = tile < (int)in.real_tiles;
                    fg_mma(sums[tile], a, real ? at[0] : 0, real ? at[32] : 0);
                }
            }
        }
    }
}

/* A part of one strip, whose first ring is under way; after gate's that of up is. `at` is where the part's first ring is
 * in either matrix. */
template <uint32_t type, int tiles, bool gated, bool aligned>
static __device__ __forceinline__ void few_part(quant_ring<type> &ring, const fg_gpu_product &p,
                                                size_t at, bool is_up, const few_in &in,
                                                const part_steps &part, uint32_t lane,
                                                float (*sums)[4])
{
    typedef fg_gpu_quant<type> quant;
    const uint8_t *next_at = (gated && is_up ? p.up : p.weight) + at;
    uint32_t first = ring_first<type>(part);
    ahead_rows rows[2];
    if (tiles == 1) {
        load_ahead<aligned>(rows[0], in, first);
    }
    for (uint32_t step = first; step < part.end; step += quant::ring * FG_GPU_UNIT_STEPS) {
        fg_gpu_scales<type> own;
        fg_gpu_ready_scales<type>(own, ring.raw);
        uint32_t next = step + quant::ring * FG_GPU_UNIT_STEPS;
        next_at += quant::ring_bytes;
        if (gated && !is_up && next >= part.end) {
            next = first;
            next_at = p.up + at;
        }
        if (next < part.end) {
            load_raw<type>(ring.raw, next_at, part, next, lane);
        }
#pragma unroll
        for (uint32_t i = 0; i < quant::ring; i++) {
            uint32_t inner = i * FG_GPU_UNIT_STEPS;
            if (tiles == 1) {
                load_ahead<aligned>(rows[(i + 1) % 2], in, step + inner + FG_GPU_UNIT_STEPS);
            }
            if (is_in(part, step + inner)) {
                use_unit<type, tiles, aligned>(ring.codes[i], own, in, rows[i % 2], part,
                                               step + inner, i, sums);
            }
            if (is_in(part, next + inner)) {
                fg_gpu_load_codes<type>(ring.codes[i], next_at + i * quant::unit_bytes, lane);
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

/* As many as have registers enough. */
template <uint32_t type> static constexpr uint32_t blocks_at_once(int tiles, bool gated)
{
    typedef fg_gpu_quant<type> quant;
    bool large = quant::high_bits == 2 || (quant::high_bits == 1 && (gated || tiles <= 2)) ||
                 (quant::has_minima && gated && tiles == 1) ||
                 (quant::is_bytes && gated && tiles == 2) || (gated && tiles == 4);
    return (tiles == 1   ? 3
            : tiles == 2 ? 4
            : tiles <= 4 ? 3
                         : 2) -
           (large && tiles > 1 && tiles < 8 ? 1 : 0);
}

/* Blocks: x a tile of rows, y a strip, so that neighbours read the same weights. `aligned`: parts are whole units. */
template <uint32_t type, int tiles, bool gated, bool aligned>
static __global__ __launch_bounds__(
    FEW_THREADS, blocks_at_once<type>(tiles, gated)) void few_quant_rows(fg_gpu_products set)
{
    /* Gate and up of many rows take turns in shared memory. */
    constexpr bool turns = gated && tiles > 4;
    constexpr uint32_t part_floats = tiles * 8 * FG_GPU_STRIP;
    constexpr uint32_t up_at = gated && !turns ? FG_GPU_PARTS * part_floats : 0;
    __shared__ float parts[up_at + FG_GPU_PARTS * part_floats];
    __shared__ float gates[turns ? part_floats : 1];
    const fg_gpu_product &p = fg_gpu_find_product(set, blockIdx.y);
    uint32_t strip = blockIdx.y - p.strip_first, row_first = blockIdx.x * tiles * 8;
    uint32_t warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    uint32_t count = fg_gpu_part_count(set);
    part_steps part;
    part.first = warp * set.part_steps;
    part.end = part.first + set.part_steps < set.steps ? part.first + set.part_steps : set.steps;
    bool mine = part.first < part.end;
    size_t at = fg_gpu_unit_at<type>(fg_gpu_units(set.steps)) * strip +
                fg_gpu_unit_at<type>(ring_first<type>(part) / FG_GPU_UNIT_STEPS);
    /* What is read of rows that there are not would only be seen in sums that nobody takes. */
    uint32_t row = row_first + lane / 4;
    few_in in;
    in.at = set.in + (size_t)(row_first / FG_GPU_BLOCK) * (FG_GPU_BLOCK / 2) * set.columns + lane;
    in.columns = set.columns;
    in.tile_first = row_first % FG_GPU_BLOCK / 8;
    in.real_tiles = row < set.rows ? (set.rows - row + 7) / 8 : 0;
    quant_ring<type> ring;
    fg_gpu_let_next();
    if (mine) {
        fill_ring<type>(ring, p.weight + at, part, lane);
    }
    fg_gpu_wait();
    /* Gate, then up, by the same instructions. */
#pragma unroll 1
    for (uint32_t i = 0; i < (gated ? 2u : 1u); i++) {
        float sums[tiles][4] = {};
        if (mine) {
            few_part<type, tiles, gated, aligned>(ring, p, at, i == 1, in, part, lane, sums);
        }
        if (turns && i == 1) {
            __syncthreads();
            join_parts<tiles>(gates, parts, count);
            __syncthreads();
        }
        if (mine) {
            put_part<tiles>(parts + i * up_at, warp, lane, sums);
        }
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
    dim3 grid((set.rows + tiles * 8 - 1) / (tiles * 8), strips);
    /* With many rows what is saved is not much, and registers are short. */
    if constexpr (tiles <= 4) {
        if (set.part_steps % FG_GPU_UNIT_STEPS == 0 && set.steps % FG_GPU_UNIT_STEPS == 0) {
            FG_LAUNCH((few_quant_rows<type, tiles, gated, true>), grid, dim3(FEW_THREADS), 0,
                      stream->stream, true, set);
            return;
        }
    }
    FG_LAUNCH((few_quant_rows<type, tiles, gated, false>), grid, dim3(FEW_THREADS), 0,
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
