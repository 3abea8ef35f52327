/*
 * Products of more rows: a block makes 128 outputs of 64 or 128 rows; weights and rows pass through shared memory in a
 * ring of stages. Where that gives too few blocks, several share the parts: their sums go through memory and are added
 * in order by a kernel of their own.
 */
#include "kernels/cuda/product.cuh"

enum {
    TALL_THREADS = 256,
    TALL_STRIPS = FG_GPU_TALL_STRIPS,
    STAGE_STEPS = 2,
    STAGES = 4,
    SPLIT_ROWS_MAX = 128,
};

/* What a block of more rows makes: strips strip_first .. of one product, rows from row_first on, some of the parts. */
typedef struct tall_place {
    uint32_t strip; /* within the fg_gpu_product */
    uint32_t row;
    uint32_t part_first, part_end;
} tall_place;

/* Weights of 8 strips and rows of the block, STAGE_STEPS steps of each. */
template <int row_tiles> struct tall_stage {
    uint4 weights[TALL_STRIPS][STAGE_STEPS][32];
    uint32_t rows[row_tiles][STAGE_STEPS * 2][32];
};

/* A gated product's block has 4 strips of gate and the same 4 of up, in turns. */
template <bool gated>
static __device__ __forceinline__ const uint4 *strip_at(const fg_gpu_product &p,
                                                        const fg_gpu_products &set,
                                                        const tall_place &place, uint32_t index,
                                                        bool *real)
{
    uint32_t strip = place.strip + (gated ? index / 2 : index);
    *real = strip * FG_GPU_STRIP < p.outputs;
    const uint8_t *weight = gated && index % 2 != 0 ? p.up : p.weight;
    return (const uint4 *)weight + (size_t)strip * set.steps * 32;
}

template <int row_tiles, bool gated>
static __device__ __forceinline__ void load_weights(tall_stage<row_tiles> *stage,
                                                    const fg_gpu_product &p,
                                                    const fg_gpu_products &set,
                                                    const tall_place &place, uint32_t step)
{
#pragma unroll
    for (uint32_t i = threadIdx.x; i < TALL_STRIPS * STAGE_STEPS * 32; i += TALL_THREADS) {
        uint32_t strip = i / (STAGE_STEPS * 32), inner = i % (STAGE_STEPS * 32);
        bool real;
        const uint4 *from = strip_at<gated>(p, set, place, strip, &real);
        real = real && step + inner / 32 < set.steps;
        fg_copy16(&stage->weights[strip][0][0] + inner,
                  real ? from + (size_t)step * 32 + inner : (const uint4 *)p.weight, real);
    }
}

template <int row_tiles>
static __device__ __forceinline__ void load_rows(tall_stage<row_tiles> *stage,
                                                 const fg_gpu_products &set,
                                                 const tall_place &place, uint32_t step)
{
    constexpr uint32_t tile_pieces = STAGE_STEPS * 2 * 8; /* of 16 bytes */
#pragma unroll
    for (uint32_t i = threadIdx.x; i < row_tiles * tile_pieces; i += TALL_THREADS) {
        uint32_t tile = i / tile_pieces, inner = i % tile_pieces;
        uint32_t row = place.row + tile * 8;
        bool real = row < set.rows && step + inner / 16 < set.steps;
        const uint32_t *from = set.in +
                               fg_gpu_pair_at(row, (step + inner / 16) * FG_GPU_STEP, set.columns) +
                               inner % 16 * 4;
        fg_copy16(&stage->rows[tile][0][0] + inner * 4, real ? from : set.in, real);
    }
}

/* One step of a warp: 2 strips by row_tiles / 2 tiles of 8 rows. */
template <int row_tiles>
static __device__ __forceinline__ void tall_step(const tall_stage<row_tiles> *stage, uint32_t step,
                                                 uint32_t strip, uint32_t tile_first, uint32_t lane,
                                                 float (*sums)[row_tiles / 2][4])
{
    uint32_t a[2][4];
#pragma unroll
    for (int s = 0; s < 2; s++) {
        uint4 w = stage->weights[strip + s][step][lane];
        a[s][0] = w.x;
        a[s][1] = w.y;
        a[s][2] = w.z;
        a[s][3] = w.w;
    }
#pragma unroll
    for (int pair = 0; pair < row_tiles / 4; pair++) {
        uint32_t b[4];
        /* Matrices 0, 1: columns 0-7 and 8-15 of one tile; 2, 3: of the next one. */
        uint32_t tile = tile_first + 2 * pair + lane / 16;
        fg_load_matrices(b, &stage->rows[tile][step * 2 + lane / 8 % 2][lane % 8 * 4]);
#pragma unroll
        for (int s = 0; s < 2; s++) {
            fg_mma(sums[s][2 * pair], a[s], b[0], b[1]);
            fg_mma(sums[s][2 * pair + 1], a[s], b[2], b[3]);
        }
    }
}

template <int row_tiles>
static __device__ __forceinline__ void end_part(float (*sums)[row_tiles / 2][4],
                                                float (*totals)[row_tiles / 2][4], bool first)
{
#pragma unroll
    for (int s = 0; s < 2; s++) {
#pragma unroll
        for (int tile = 0; tile < row_tiles / 2; tile++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                totals[s][tile][i] =
                    first ? sums[s][tile][i] : __fadd_rn(totals[s][tile][i], sums[s][tile][i]);
                sums[s][tile][i] = 0.0f;
            }
        }
    }
}

/* Which of a block's outputs and rows a warp has: 2 strips and half of the tiles of rows, the first ones of each. */
typedef struct tall_warp {
    uint32_t strip, tile;
    uint32_t lane;
} tall_warp;

/* Where the sums of parts go when several blocks share them: [part][row][output of all strips of the launch]. */
typedef struct tall_split {
    float *work;
    uint32_t all_outputs;
} tall_split;

static __device__ __forceinline__ void put_sum(const tall_split &split, const fg_gpu_products &set,
                                               uint32_t part, uint32_t row, uint32_t output,
                                               float sum)
{
    if (row < set.rows && output < split.all_outputs) {
        split.work[((size_t)part * set.rows + row) * split.all_outputs + output] = sum;
    }
}

/* A warp's sums of a part go to memory, and begin again. */
template <int row_tiles, bool gated>
static __device__ __forceinline__ void put_part(const tall_split &split, const fg_gpu_products &set,
                                                const tall_place &place, const tall_warp &warp,
                                                uint32_t part, float (*sums)[row_tiles / 2][4])
{
    constexpr uint32_t block_strips = gated ? TALL_STRIPS / 2 : TALL_STRIPS;
    uint32_t g = warp.lane / 4, t = warp.lane % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int tile = 0; tile < row_tiles / 2; tile++) {
            uint32_t row = place.row + (warp.tile + tile) * 8 + 2 * t;
            uint32_t output = (blockIdx.y * block_strips + warp.strip + half) * FG_GPU_STRIP + g;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                put_sum(split, set, part, row + j % 2, output + j / 2 * 8, sums[half][tile][j]);
                sums[half][tile][j] = 0.0f;
            }
        }
    }
}

/* What a warp has made of all parts. */
template <int row_tiles, bool gated>
static __device__ __forceinline__ void put_totals(const fg_gpu_product &p,
                                                  const fg_gpu_products &set,
                                                  const tall_place &place, const tall_warp &warp,
                                                  const float (*totals)[row_tiles / 2][4])
{
    uint32_t g = warp.lane / 4, t = warp.lane % 4;
#pragma unroll
    for (int tile = 0; tile < row_tiles / 2; tile++) {
        uint32_t row = place.row + (warp.tile + tile) * 8 + 2 * t;
        if constexpr (gated) {
            uint32_t output = (place.strip + warp.strip / 2) * FG_GPU_STRIP + g;
            const float *gate = totals[0][tile], *up = totals[1][tile];
            fg_gpu_put_gated(p, set.rows, row, output, g, __fmul_rn(fg_gpu_silu(gate[0]), up[0]),
                             __fmul_rn(fg_gpu_silu(gate[1]), up[1]));
            fg_gpu_put_gated(p, set.rows, row, output + 8, g,
                             __fmul_rn(fg_gpu_silu(gate[2]), up[2]),
                             __fmul_rn(fg_gpu_silu(gate[3]), up[3]));
        } else {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint32_t output = (place.strip + warp.strip + half) * FG_GPU_STRIP + g;
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    fg_gpu_put_out(p, set.rows, row + j % 2, output + j / 2 * 8,
                                   totals[half][tile][j]);
                }
            }
        }
    }
}

/* Blocks: x a tile of rows, y a tile of strips, z a share of the parts. Neighbouring blocks have the same strips: weights
 * are read from memory once. */
template <int row_tiles>
static __device__ __forceinline__ tall_place find_place(const fg_gpu_product &p, uint32_t strip,
                                                        uint32_t parts_each)
{
    tall_place place;
    place.strip = strip - p.strip_first;
    place.row = blockIdx.x * row_tiles * 8;
    place.part_first = blockIdx.z * parts_each;
    place.part_end = place.part_first + parts_each;
    return place;
}

/* One stage of the ring is asked for; a commit without one keeps the count of what is under way. */
template <int row_tiles, bool gated>
static __device__ __forceinline__ void ask(tall_stage<row_tiles> *stage, const fg_gpu_product &p,
                                           const fg_gpu_products &set, const tall_place &place,
                                           uint32_t step, bool real)
{
    if (real) {
        load_weights<row_tiles, gated>(stage, p, set, place, step);
        load_rows<row_tiles>(stage, set, place, step);
    }
    fg_copy_commit();
}

/* `work` is NULL where one block has all parts. It and `all_outputs` are not passed as a tall_split: nvcc 13 then wanted a
 * quarter more registers for the whole loop. */
template <int row_tiles, bool gated>
static __global__ __launch_bounds__(TALL_THREADS) void more_rows(fg_gpu_products set, float *work,
                                                                 uint32_t all_outputs,
                                                                 uint32_t parts_each)
{
    FG_SHARED_BYTES(shared);
    tall_stage<row_tiles> *stages = (tall_stage<row_tiles> *)shared;
    constexpr int tiles = row_tiles / 2;
    uint32_t block_strip = blockIdx.y * (gated ? TALL_STRIPS / 2 : TALL_STRIPS);
    const fg_gpu_product &p = fg_gpu_find_product(set, block_strip);
    tall_split split = { work, all_outputs };
    tall_place place = find_place<row_tiles>(p, block_strip, parts_each);
    uint32_t step = place.part_first * set.part_steps;
    uint32_t end = place.part_end * set.part_steps;
    end = end < set.steps ? end : set.steps;
    tall_warp warp = { threadIdx.x / 32 % 4 * 2, threadIdx.x / 128 * tiles, threadIdx.x % 32 };
    float sums[2][tiles][4] = {}, totals[2][tiles][4];
    fg_gpu_let_next();
    fg_gpu_wait();
    uint32_t loads = step < end ? (end - step + STAGE_STEPS - 1) / STAGE_STEPS : 0;
#pragma unroll
    for (uint32_t i = 0; i < STAGES - 1; i++) {
        ask<row_tiles, gated>(&stages[i], p, set, place, step + i * STAGE_STEPS, i < loads);
    }
    uint32_t part = place.part_first, part_end = (part + 1) * set.part_steps;
    for (uint32_t i = 0; i < loads; i++) {
        fg_copy_wait<STAGES - 2>();
        __syncthreads();
        uint32_t next = i + STAGES - 1;
        ask<row_tiles, gated>(&stages[next % STAGES], p, set, place, step + next * STAGE_STEPS,
                              next < loads);
#pragma unroll
        for (uint32_t s = 0; s < STAGE_STEPS; s++) {
            uint32_t now = step + i * STAGE_STEPS + s;
            if (now >= end) {
                break;
            }
            tall_step<row_tiles>(&stages[i % STAGES], s, warp.strip, warp.tile, warp.lane, sums);
            if (now + 1 == part_end || now + 1 == end) {
                if (work != nullptr) {
                    put_part<row_tiles, gated>(split, set, place, warp, part, sums);
                } else {
                    end_part<row_tiles>(sums, totals, part == 0);
                }
                part++;
                part_end += set.part_steps;
            }
        }
    }
    fg_copy_wait<0>();
    if (work == nullptr) {
        put_totals<row_tiles, gated>(p, set, place, warp, totals);
    }
}

/* A thread per output and row. */
static __global__ void sum_parts(fg_gpu_products set, const float *work, uint32_t all_outputs)
{
    fg_gpu_let_next();
    fg_gpu_wait();
    uint32_t output = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
    if (output >= all_outputs) {
        return;
    }
    const fg_gpu_product &p = fg_gpu_find_product(set, output / FG_GPU_STRIP);
    const float *at = work + (size_t)row * all_outputs + output;
    float sum = at[0];
    for (uint32_t part = 1; part < fg_gpu_part_count(set); part++) {
        sum = __fadd_rn(sum, at[(size_t)part * set.rows * all_outputs]);
    }
    fg_gpu_put_out(p, set.rows, row, output - p.strip_first * FG_GPU_STRIP, sum);
}

void fg_gpu_sum_parts(fg_device_stream *stream, const fg_gpu_products &set, uint32_t all_outputs)
{
    FG_LAUNCH(sum_parts, dim3((all_outputs + 127) / 128, set.rows), dim3(128), 0, stream->stream,
              true, set, (const float *)stream->work, all_outputs);
}

template <int row_tiles, bool gated>
static void tall(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips,
                 bool may_split)
{
    constexpr uint32_t block_strips = gated ? TALL_STRIPS / 2 : TALL_STRIPS;
    dim3 grid((set.rows + row_tiles * 8 - 1) / (row_tiles * 8),
              (strips + block_strips - 1) / block_strips);
    uint32_t parts = (set.steps + set.part_steps - 1) / set.part_steps;
    uint32_t all_outputs = strips * FG_GPU_STRIP, split = 1;
    while (may_split && split < 8 &&
           grid.x * grid.y * split * 2 <= (uint32_t)stream->device->multiprocessors * 3 / 2 &&
           (size_t)parts * set.rows * all_outputs <= stream->work_floats) {
        split *= 2;
    }
    uint32_t each = (parts + split - 1) / split;
    grid.z = (parts + each - 1) / each;
    float *work = grid.z > 1 ? stream->work : nullptr;
    FG_LAUNCH((more_rows<row_tiles, gated>), grid, dim3(TALL_THREADS),
              sizeof(tall_stage<row_tiles>) * STAGES, stream->stream, true, set, work, all_outputs,
              each);
    if (work != nullptr) {
        fg_gpu_sum_parts(stream, set, all_outputs);
    }
}

void fg_gpu_tall(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips, bool gated,
                 bool may_split)
{
    if (gated) {
        set.rows <= 64 ? tall<8, true>(stream, set, strips, false)
                       : tall<16, true>(stream, set, strips, false);
    } else if (set.rows <= 64) {
        tall<8, false>(stream, set, strips, may_split);
    } else {
        tall<16, false>(stream, set, strips, may_split && set.rows <= SPLIT_ROWS_MAX);
    }
}

void fg_gpu_tall_prepare(const fg_device *device)
{
    fg_gpu_allow_shared(device, more_rows<8, false>, sizeof(tall_stage<8>) * STAGES);
    fg_gpu_allow_shared(device, more_rows<8, true>, sizeof(tall_stage<8>) * STAGES);
    static_assert(sizeof(tall_stage<16>) * STAGES <= 99 * 1024, "what any device has");
    fg_gpu_allow_shared(device, more_rows<16, false>, sizeof(tall_stage<16>) * STAGES);
    fg_gpu_allow_shared(device, more_rows<16, true>, sizeof(tall_stage<16>) * STAGES);
}
