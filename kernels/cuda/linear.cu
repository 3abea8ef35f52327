/*
 * Products of rows with weight matrices, as cuda.h says what they are. Three kernels, chosen by the number of rows; the
 * sums are the same.
 *
 *   few rows    a block makes 16 outputs of all rows: warp p has part p of the columns, reads its weights straight from
 *               memory, each byte once, and a block's 8 warps keep enough of them under way to fill the bus.
 *   more rows   a block makes 128 outputs of 64 or 128 rows; weights and rows pass through shared memory in a ring of
 *               stages. Where that gives too few blocks, several share the parts: their sums go through memory and are
 *               added in order by a kernel of their own.
 *   floats      F32 and F16 weights: a thread per output and row. Slow; such models are small.
 */
#include "kernels/cuda/cuda.h"

enum {
    LINEARS_MAX = 4,
    FEW_THREADS = 256,
    FEW_BATCH = 8, /* steps whose weights a warp has under way, twice */
    FEW_ROWS_MAX = 32,
    TALL_THREADS = 256,
    TALL_STRIPS = 8,
    STAGE_STEPS = 2,
    STAGES = 4,
    SPLIT_ROWS_MAX = 128,
};

/* One product, or the gate and the up of a gated one. */
typedef struct product {
    const uint8_t *weight;
    const uint8_t *up;
    float *out;
    uint32_t *pairs; /* of gated ones, in place of `out` */
    uint32_t outputs, stride;
    uint32_t strip_first; /* of all strips of the launch */
    bool accumulate;
} product;

typedef struct product_set {
    product each[LINEARS_MAX];
    uint32_t count;
    const uint32_t *in;
    uint32_t columns, steps, part_steps, rows;
} product_set;

static __device__ __forceinline__ uint32_t part_count(const product_set &set)
{
    return (set.steps + set.part_steps - 1) / set.part_steps;
}

/* Exact; the bits of a half's exponent and mantissa are moved, subnormals scaled. */
static __device__ __forceinline__ float half_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t exponent = (half >> 10) & 31u, mantissa = half & 0x3FFu;
    if (exponent == 0) {
        return __uint_as_float(__float_as_uint((float)mantissa * 0x1p-24f) | sign);
    }
    return __uint_as_float(exponent == 31 ? sign | 0x7F800000u | mantissa << 13
                                          : sign | (exponent + 112) << 23 | mantissa << 13);
}

static __device__ __forceinline__ float silu(float x)
{
    return __fdiv_rn(x, __fadd_rn(1.0f, fg_exp2(__fmul_rn(x, -1.44269504f))));
}

static __device__ __forceinline__ const product &find_product(const product_set &set, uint32_t strip)
{
    uint32_t i = 0;
    while (i + 1 < set.count && strip >= set.each[i + 1].strip_first) {
        i++;
    }
    return set.each[i];
}

/* ---- few rows ---- */

typedef struct few_batch {
    uint4 weights[FEW_BATCH];
} few_batch;

static __device__ __forceinline__ void load_batch(few_batch &batch, const uint4 *weights, uint32_t step, uint32_t end)
{
#pragma unroll
    for (uint32_t i = 0; i < FEW_BATCH; i++) {
        if (step + i < end) {
            batch.weights[i] = fg_load16_once(weights + (size_t)(step + i) * 32);
        }
    }
}

template <int tiles>
static __device__ __forceinline__ void use_batch(const few_batch &batch, const product_set &set, uint32_t step,
                                                 uint32_t end, uint32_t lane, float (*sums)[4])
{
    size_t tile_words = (size_t)set.columns / 8 * 32;
#pragma unroll
    for (uint32_t i = 0; i < FEW_BATCH; i++) {
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
template <int tiles>
static __device__ __forceinline__ void few_part(const product_set &set, const uint4 *weights, uint32_t first,
                                                uint32_t end, uint32_t lane, float (*sums)[4])
{
    few_batch one, two;
    load_batch(one, weights, first, end);
    fg_gpu_wait();
    for (uint32_t step = first; step < end; step += 2 * FEW_BATCH) {
        load_batch(two, weights, step + FEW_BATCH, end);
        use_batch<tiles>(one, set, step, end, lane, sums);
        load_batch(one, weights, step + 2 * FEW_BATCH, end);
        use_batch<tiles>(two, set, step + FEW_BATCH, end, lane, sums);
    }
}

/* Parts in shared memory: [part][row][output]. */
template <int tiles>
static __device__ __forceinline__ void put_part(float *parts, uint32_t part, uint32_t lane, const float (*sums)[4])
{
    float *at = parts + (size_t)part * tiles * 8 * FG_GPU_STRIP;
    uint32_t g = lane / 4, t = lane % 4;
#pragma unroll
    for (int tile = 0; tile < tiles; tile++) {
        float *rows = at + (tile * 8 + 2 * t) * FG_GPU_STRIP;
        rows[g] = sums[tile][0];
        rows[FG_GPU_STRIP + g] = sums[tile][1];
        rows[g + 8] = sums[tile][2];
        rows[FG_GPU_STRIP + g + 8] = sums[tile][3];
    }
}

template <int tiles>
static __device__ __forceinline__ float add_parts(const float *parts, uint32_t count, uint32_t row, uint32_t output)
{
    const float *at = parts + row * FG_GPU_STRIP + output;
    float sum = at[0];
    for (uint32_t part = 1; part < count; part++) {
        sum = __fadd_rn(sum, at[(size_t)part * tiles * 8 * FG_GPU_STRIP]);
    }
    return sum;
}

template <int tiles, bool gated> static __global__ __launch_bounds__(FEW_THREADS) void few_rows(product_set set)
{
    __shared__ float parts[(gated ? 2 : 1) * FG_GPU_PARTS * tiles * 8 * FG_GPU_STRIP];
    float *up_parts = parts + (gated ? FG_GPU_PARTS * tiles * 8 * FG_GPU_STRIP : 0);
    const product &p = find_product(set, blockIdx.x);
    uint32_t strip = blockIdx.x - p.strip_first;
    uint32_t part = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t first = part * set.part_steps;
    uint32_t end = first + set.part_steps < set.steps ? first + set.part_steps : set.steps;
    size_t at = (size_t)strip * set.steps * 32 + lane;
    fg_gpu_let_next();
    if (first < end) {
        float sums[tiles][4] = {};
        few_part<tiles>(set, (const uint4 *)p.weight + at, first, end, lane, sums);
        put_part<tiles>(parts, part, lane, sums);
    }
    if constexpr (gated) {
      if (first < end) {
        float sums[tiles][4] = {};
        few_part<tiles>(set, (const uint4 *)p.up + at, first, end, lane, sums);
        put_part<tiles>(up_parts, part, lane, sums);
      }
    }
    if (first >= end) {
        fg_gpu_wait();
    }
    __syncthreads();
    uint32_t count = part_count(set);
    if constexpr (gated) {
        for (uint32_t i = threadIdx.x; i < tiles * 8 * (FG_GPU_STRIP / 2); i += FEW_THREADS) {
            uint32_t row = i / (FG_GPU_STRIP / 2), output = i % (FG_GPU_STRIP / 2) * 2;
            float first_value = __fmul_rn(silu(add_parts<tiles>(parts, count, row, output)),
                                          add_parts<tiles>(up_parts, count, row, output));
            float second_value = __fmul_rn(silu(add_parts<tiles>(parts, count, row, output + 1)),
                                           add_parts<tiles>(up_parts, count, row, output + 1));
            uint32_t to = strip * FG_GPU_STRIP + output;
            if (row < set.rows && to < p.outputs) {
                p.pairs[fg_gpu_pair_at(row, to, p.outputs)] = fg_bf16_pair(first_value, second_value);
            }
        }
    } else {
        for (uint32_t i = threadIdx.x; i < tiles * 8 * FG_GPU_STRIP; i += FEW_THREADS) {
            uint32_t row = i / FG_GPU_STRIP, output = i % FG_GPU_STRIP;
            uint32_t to = strip * FG_GPU_STRIP + output;
            if (row < set.rows && to < p.outputs) {
                float sum = add_parts<tiles>(parts, count, row, output);
                float *out = p.out + (size_t)row * p.stride + to;
                *out = p.accumulate ? __fadd_rn(*out, sum) : sum;
            }
        }
    }
}

/* ---- more rows ---- */

/* What a block of more rows makes: strips strip_first .. of one product, rows from row_first on, some of the parts. */
typedef struct tall_place {
    uint32_t strip; /* within the product */
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
static __device__ __forceinline__ const uint4 *strip_at(const product &p, const product_set &set,
                                                        const tall_place &place, uint32_t index, bool *real)
{
    uint32_t strip = place.strip + (gated ? index / 2 : index);
    *real = strip * FG_GPU_STRIP < p.outputs;
    const uint8_t *weight = gated && index % 2 != 0 ? p.up : p.weight;
    return (const uint4 *)weight + (size_t)strip * set.steps * 32;
}

template <int row_tiles, bool gated>
static __device__ __forceinline__ void load_weights(tall_stage<row_tiles> *stage, const product &p,
                                                    const product_set &set, const tall_place &place, uint32_t step)
{
#pragma unroll
    for (uint32_t i = threadIdx.x; i < TALL_STRIPS * STAGE_STEPS * 32; i += TALL_THREADS) {
        uint32_t strip = i / (STAGE_STEPS * 32), inner = i % (STAGE_STEPS * 32);
        bool real;
        const uint4 *from = strip_at<gated>(p, set, place, strip, &real);
        real = real && step + inner / 32 < set.steps;
        fg_copy16(&stage->weights[strip][0][0] + inner, real ? from + (size_t)step * 32 + inner : (const uint4 *)p.weight,
                  real);
    }
}

template <int row_tiles>
static __device__ __forceinline__ void load_rows(tall_stage<row_tiles> *stage, const product_set &set,
                                                 const tall_place &place, uint32_t step)
{
    constexpr uint32_t tile_pieces = STAGE_STEPS * 2 * 8; /* of 16 bytes */
#pragma unroll
    for (uint32_t i = threadIdx.x; i < row_tiles * tile_pieces; i += TALL_THREADS) {
        uint32_t tile = i / tile_pieces, inner = i % tile_pieces;
        uint32_t row = place.row + tile * 8;
        bool real = row < set.rows && step + inner / 16 < set.steps;
        const uint32_t *from = set.in + ((size_t)(row / 8) * (set.columns / 8) + (size_t)step * 2) * 32 + inner * 4;
        fg_copy16(&stage->rows[tile][0][0] + inner * 4, real ? from : set.in, real);
    }
}

/* One step of a warp: 2 strips by row_tiles / 2 tiles of 8 rows. */
template <int row_tiles>
static __device__ __forceinline__ void tall_step(const tall_stage<row_tiles> *stage, uint32_t step, uint32_t strip,
                                                 uint32_t tile_first, uint32_t lane, float (*sums)[row_tiles / 2][4])
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
static __device__ __forceinline__ void end_part(float (*sums)[row_tiles / 2][4], float (*totals)[row_tiles / 2][4],
                                                bool first)
{
#pragma unroll
    for (int s = 0; s < 2; s++) {
#pragma unroll
        for (int tile = 0; tile < row_tiles / 2; tile++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                totals[s][tile][i] = first ? sums[s][tile][i] : __fadd_rn(totals[s][tile][i], sums[s][tile][i]);
                sums[s][tile][i] = 0.0f;
            }
        }
    }
}

static __device__ __forceinline__ void put_out(const product &p, uint32_t rows, uint32_t row, uint32_t output, float sum)
{
    if (row < rows && output < p.outputs) {
        float *out = p.out + (size_t)row * p.stride + output;
        *out = p.accumulate ? __fadd_rn(*out, sum) : sum;
    }
}

/* A gated pair of columns: neighbouring outputs are 4 lanes apart; lanes of even outputs write the first row's word,
 * the others the second row's. */
static __device__ __forceinline__ void put_gated(const product &p, uint32_t rows, uint32_t row, uint32_t output,
                                                 uint32_t g, float first, float second)
{
    float first_other = __shfl_xor_sync(0xFFFFFFFFu, first, 4);
    float second_other = __shfl_xor_sync(0xFFFFFFFFu, second, 4);
    bool even = g % 2 == 0;
    uint32_t to_row = even ? row : row + 1;
    uint32_t k = even ? output : output - 1;
    if (to_row < rows && k < p.outputs) {
        p.pairs[fg_gpu_pair_at(to_row, k, p.outputs)] =
            even ? fg_bf16_pair(first, first_other) : fg_bf16_pair(second_other, second);
    }
}

/* Sums of a part in memory: [part][row][output of all strips of the launch]. */
static __device__ __forceinline__ void put_sums(float *work, const product_set &set, uint32_t all_outputs, uint32_t part,
                                                uint32_t row, uint32_t output, float sum)
{
    if (row < set.rows && output < all_outputs) {
        work[((size_t)part * set.rows + row) * all_outputs + output] = sum;
    }
}

/* Blocks: x a tile of strips, y a tile of rows, z a share of the parts. `work` is NULL where one block has them all. */
template <int row_tiles, bool gated>
static __global__ __launch_bounds__(TALL_THREADS) void more_rows(product_set set, float *work, uint32_t all_outputs,
                                                                 uint32_t parts_each)
{
    FG_SHARED_BYTES(shared);
    tall_stage<row_tiles> *stages = (tall_stage<row_tiles> *)shared;
    constexpr int tiles = row_tiles / 2;
    constexpr uint32_t block_strips = gated ? TALL_STRIPS / 2 : TALL_STRIPS;
    /* Neighbouring blocks have the same strips: weights are read from memory once. */
    const product &p = find_product(set, blockIdx.y * block_strips);
    tall_place place;
    place.strip = blockIdx.y * block_strips - p.strip_first;
    place.row = blockIdx.x * row_tiles * 8;
    place.part_first = blockIdx.z * parts_each;
    place.part_end = place.part_first + parts_each;
    uint32_t step = place.part_first * set.part_steps;
    uint32_t end = place.part_end * set.part_steps;
    end = end < set.steps ? end : set.steps;
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t strip = warp % 4 * 2, tile_first = warp / 4 * tiles;
    float sums[2][tiles][4] = {}, totals[2][tiles][4];
    fg_gpu_let_next();
    fg_gpu_wait();
    uint32_t loads = step < end ? (end - step + STAGE_STEPS - 1) / STAGE_STEPS : 0;
#pragma unroll
    for (uint32_t i = 0; i < STAGES - 1; i++) {
        if (i < loads) {
            load_weights<row_tiles, gated>(&stages[i], p, set, place, step + i * STAGE_STEPS);
            load_rows<row_tiles>(&stages[i], set, place, step + i * STAGE_STEPS);
        }
        fg_copy_commit();
    }
    uint32_t part = place.part_first, part_end = (part + 1) * set.part_steps;
    uint32_t g = lane / 4, t = lane % 4;
    for (uint32_t i = 0; i < loads; i++) {
        fg_copy_wait<STAGES - 2>();
        __syncthreads();
        uint32_t next = i + STAGES - 1;
        if (next < loads) {
            load_weights<row_tiles, gated>(&stages[next % STAGES], p, set, place, step + next * STAGE_STEPS);
            load_rows<row_tiles>(&stages[next % STAGES], set, place, step + next * STAGE_STEPS);
        }
        fg_copy_commit();
#pragma unroll
        for (uint32_t s = 0; s < STAGE_STEPS; s++) {
            uint32_t now = step + i * STAGE_STEPS + s;
            if (now < end) {
                tall_step<row_tiles>(&stages[i % STAGES], s, strip, tile_first, lane, sums);
            }
            if (now + 1 == part_end || now + 1 == end) {
                if (work != nullptr) {
#pragma unroll
                    for (int half = 0; half < 2; half++) {
#pragma unroll
                        for (int tile = 0; tile < tiles; tile++) {
                            uint32_t row = place.row + (tile_first + tile) * 8 + 2 * t;
                            uint32_t output = (blockIdx.y * block_strips + strip + half) * FG_GPU_STRIP + g;
#pragma unroll
                            for (int j = 0; j < 4; j++) {
                                put_sums(work, set, all_outputs, part, row + j % 2, output + j / 2 * 8,
                                         sums[half][tile][j]);
                                sums[half][tile][j] = 0.0f;
                            }
                        }
                    }
                } else {
                    end_part<row_tiles>(sums, totals, part == 0);
                }
                part++;
                part_end += set.part_steps;
            }
        }
    }
    fg_copy_wait<0>();
    if (work != nullptr) {
        return;
    }
#pragma unroll
    for (int tile = 0; tile < tiles; tile++) {
        uint32_t row = place.row + (tile_first + tile) * 8 + 2 * t;
        if constexpr (gated) {
            uint32_t output = (place.strip + strip / 2) * FG_GPU_STRIP + g;
            const float *gate = totals[0][tile], *up = totals[1][tile];
            put_gated(p, set.rows, row, output, g, __fmul_rn(silu(gate[0]), up[0]), __fmul_rn(silu(gate[1]), up[1]));
            put_gated(p, set.rows, row, output + 8, g, __fmul_rn(silu(gate[2]), up[2]),
                      __fmul_rn(silu(gate[3]), up[3]));
        } else {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint32_t output = (place.strip + strip + half) * FG_GPU_STRIP + g;
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    put_out(p, set.rows, row + j % 2, output + j / 2 * 8, totals[half][tile][j]);
                }
            }
        }
    }
}

/* A thread per output and row. */
static __global__ void sum_parts(product_set set, const float *work, uint32_t all_outputs)
{
    fg_gpu_wait();
    fg_gpu_let_next();
    uint32_t output = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
    if (output >= all_outputs) {
        return;
    }
    const product &p = find_product(set, output / FG_GPU_STRIP);
    const float *at = work + (size_t)row * all_outputs + output;
    float sum = at[0];
    for (uint32_t part = 1; part < part_count(set); part++) {
        sum = __fadd_rn(sum, at[(size_t)part * set.rows * all_outputs]);
    }
    put_out(p, set.rows, row, output - p.strip_first * FG_GPU_STRIP, sum);
}

/* ---- weights that are floats ---- */

enum { FLOAT_OUTPUTS = 32, FLOAT_ROWS = 8, FLOAT_COLUMNS = 32 };

static __global__ __launch_bounds__(FLOAT_OUTPUTS *FLOAT_ROWS) void float_products(
    uint32_t type, const uint8_t *weight, const float *in, uint32_t columns, uint32_t outputs, uint32_t rows, float *out,
    uint32_t stride, bool accumulate)
{
    __shared__ float tile[FLOAT_OUTPUTS][FLOAT_COLUMNS + 1];
    fg_gpu_wait();
    fg_gpu_let_next();
    uint32_t lane = threadIdx.x % FLOAT_OUTPUTS, line = threadIdx.x / FLOAT_OUTPUTS;
    uint32_t output = blockIdx.x * FLOAT_OUTPUTS + lane, row = blockIdx.y * FLOAT_ROWS + line;
    float sum = 0.0f;
    for (uint32_t first = 0; first < columns; first += FLOAT_COLUMNS) {
        for (uint32_t i = line; i < FLOAT_OUTPUTS; i += FLOAT_ROWS) {
            uint32_t from = blockIdx.x * FLOAT_OUTPUTS + i, k = first + lane;
            float value = 0.0f;
            if (from < outputs && k < columns) {
                size_t at = (size_t)from * columns + k;
                value = type == FG_F32 ? ((const float *)weight)[at] : half_to_float(((const uint16_t *)weight)[at]);
            }
            tile[i][lane] = value;
        }
        __syncthreads();
        uint32_t here = columns - first < FLOAT_COLUMNS ? columns - first : FLOAT_COLUMNS;
        if (row < rows) {
            for (uint32_t k = 0; k < here; k++) {
                sum = __fmaf_rn(tile[lane][k], in[(size_t)row * columns + first + k], sum);
            }
        }
        __syncthreads();
    }
    if (row < rows && output < outputs) {
        float *to = out + (size_t)row * stride + output;
        *to = accumulate ? __fadd_rn(*to, sum) : sum;
    }
}

static __global__ void gate_floats(const float *gate, const float *up, uint32_t columns, float *values, uint32_t *pairs)
{
    fg_gpu_wait();
    fg_gpu_let_next();
    for (uint32_t i = 2 * threadIdx.x; i < columns; i += 2 * blockDim.x) {
        size_t at = (size_t)blockIdx.x * columns + i;
        bool two = i + 1 < columns;
        float first = __fmul_rn(silu(gate[at]), up[at]);
        float second = two ? __fmul_rn(silu(gate[at + 1]), up[at + 1]) : 0.0f;
        if (pairs != nullptr) {
            pairs[fg_gpu_pair_at(blockIdx.x, i, columns)] = fg_bf16_pair(first, second);
        } else {
            values[at] = first;
            if (two) {
                values[at + 1] = second;
            }
        }
    }
}

static void float_linear(fg_device_stream *stream, const fg_linear *linear, const fg_activations *in, uint32_t rows)
{
    dim3 grid((linear->weight.outputs + FLOAT_OUTPUTS - 1) / FLOAT_OUTPUTS, (rows + FLOAT_ROWS - 1) / FLOAT_ROWS);
    FG_LAUNCH(float_products, grid, dim3(FLOAT_OUTPUTS * FLOAT_ROWS), 0, stream->stream, true, linear->weight.type,
              (const uint8_t *)linear->weight.data, (const float *)in->values, linear->weight.columns,
              linear->weight.outputs, rows, linear->out, linear->out_stride, linear->accumulate);
}

/* ---- who computes what ---- */

uint32_t fg_cuda_linear_form(uint32_t type)
{
    return fg_gpu_is_tensor(type) ? FG_FORM_PAIRS : 0;
}

static uint32_t strips_of(uint32_t outputs)
{
    return (outputs + FG_GPU_STRIP - 1) / FG_GPU_STRIP;
}

static product_set make_set(const fg_activations *in, uint32_t columns, uint32_t rows)
{
    product_set set = {};
    set.in = in->pairs;
    set.columns = columns;
    set.steps = columns / FG_GPU_STEP;
    set.part_steps = (set.steps + FG_GPU_PARTS - 1) / FG_GPU_PARTS;
    set.rows = rows;
    return set;
}

template <int tiles, bool gated> static void launch_few(fg_device_stream *stream, const product_set &set, uint32_t strips)
{
    FG_LAUNCH((few_rows<tiles, gated>), dim3(strips), dim3(FEW_THREADS), 0, stream->stream, true, set);
}

template <bool gated> static void few(fg_device_stream *stream, const product_set &set, uint32_t strips)
{
    if (set.rows <= 8) {
        launch_few<1, gated>(stream, set, strips);
    } else if (set.rows <= 16) {
        launch_few<2, gated>(stream, set, strips);
    } else if (gated || set.rows <= 24) {
        launch_few<3, gated>(stream, set, strips);
    } else {
        launch_few<4, gated>(stream, set, strips);
    }
}

template <int row_tiles, bool gated>
static void tall(fg_device_stream *stream, const product_set &set, uint32_t strips, bool may_split)
{
    constexpr uint32_t block_strips = gated ? TALL_STRIPS / 2 : TALL_STRIPS;
    dim3 grid((set.rows + row_tiles * 8 - 1) / (row_tiles * 8), (strips + block_strips - 1) / block_strips);
    uint32_t parts = (set.steps + set.part_steps - 1) / set.part_steps;
    uint32_t all_outputs = strips * FG_GPU_STRIP, split = 1;
    while (may_split && split < 8 && grid.x * grid.y * split * 2 <= (uint32_t)stream->device->multiprocessors * 3 / 2 &&
           (size_t)parts * set.rows * all_outputs <= stream->work_floats) {
        split *= 2;
    }
    uint32_t each = (parts + split - 1) / split;
    grid.z = (parts + each - 1) / each;
    float *work = grid.z > 1 ? stream->work : nullptr;
    FG_LAUNCH((more_rows<row_tiles, gated>), grid, dim3(TALL_THREADS), sizeof(tall_stage<row_tiles>) * STAGES,
              stream->stream, true, set, work, all_outputs, each);
    if (work != nullptr) {
        FG_LAUNCH(sum_parts, dim3((all_outputs + 127) / 128, set.rows), dim3(128), 0, stream->stream, true, set,
                  (const float *)work, all_outputs);
    }
}

/* A launch's strips; blocks of more rows begin at multiples of theirs, so each product's strips are rounded up. */
static uint32_t add_product(product_set *set, uint32_t strips, const product &made, bool aligned)
{
    product *p = &set->each[set->count++];
    *p = made;
    p->strip_first = strips;
    uint32_t count = strips_of(made.outputs);
    return strips + (aligned ? (count + TALL_STRIPS - 1) / TALL_STRIPS * TALL_STRIPS : count);
}

static void tensor_linears(fg_device_stream *stream, const fg_linear *linears, uint32_t count, const fg_activations *in,
                           uint32_t rows)
{
    product_set set = make_set(in, linears[0].weight.columns, rows);
    uint32_t strips = 0;
    bool is_few = rows <= FEW_ROWS_MAX;
    for (uint32_t i = 0; i < count; i++) {
        product p = {};
        p.weight = (const uint8_t *)linears[i].weight.data;
        p.out = linears[i].out;
        p.outputs = linears[i].weight.outputs;
        p.stride = linears[i].out_stride;
        p.accumulate = linears[i].accumulate;
        strips = add_product(&set, strips, p, !is_few);
    }
    if (is_few) {
        few<false>(stream, set, strips);
    } else if (rows <= 64) {
        tall<8, false>(stream, set, strips, true);
    } else {
        tall<16, false>(stream, set, strips, rows <= SPLIT_ROWS_MAX);
    }
}

void fg_cuda_linear(fg_device_stream *stream, const fg_linear *linears, uint32_t linear_count, const fg_activations *in,
                    uint32_t rows)
{
    stream->sequence++;
    for (uint32_t i = 0; i < linear_count;) {
        if (!fg_gpu_is_tensor(linears[i].weight.type)) {
            float_linear(stream, &linears[i++], in, rows);
            continue;
        }
        uint32_t count = 1;
        while (i + count < linear_count && count < LINEARS_MAX && fg_gpu_is_tensor(linears[i + count].weight.type)) {
            count++;
        }
        tensor_linears(stream, &linears[i], count, in, rows);
        i += count;
    }
}

/* Gate and up of different kinds, or floats: as two products and what joins them, some rows at a time. */
static void gated_apart(fg_device_stream *stream, const fg_gated *gated, const fg_activations *in, uint32_t rows)
{
    uint32_t outputs = gated->gate.outputs;
    size_t each = (size_t)2 * outputs;
    uint32_t most = (uint32_t)(stream->work_floats / each) / 8 * 8;
    most = most == 0 ? 8 : most;
    for (uint32_t first = 0; first < rows; first += most) {
        uint32_t count = rows - first < most ? rows - first : most;
        fg_activations part = *in;
        part.values += (size_t)first * in->columns;
        part.pairs += fg_gpu_pair_at(first, 0, in->columns);
        float *gate = stream->work, *up = stream->work + (size_t)count * outputs;
        fg_linear both[2] = { { gated->gate, gate, outputs, false }, { gated->up, up, outputs, false } };
        for (const fg_linear &linear : both) {
            if (fg_gpu_is_tensor(linear.weight.type)) {
                product_set set = make_set(&part, linear.weight.columns, count);
                product p = {};
                p.weight = (const uint8_t *)linear.weight.data;
                p.out = linear.out;
                p.outputs = outputs;
                p.stride = outputs;
                uint32_t strips = add_product(&set, 0, p, true);
                /* Not split: the work area is in use. */
                tall<8, false>(stream, set, strips, false);
            } else {
                float_linear(stream, &linear, &part, count);
            }
        }
        bool pairs = (gated->forms & FG_FORM_PAIRS) != 0;
        FG_LAUNCH(gate_floats, dim3(count), dim3(256), 0, stream->stream, true, (const float *)gate, (const float *)up,
                  outputs, gated->out.values + (size_t)first * outputs,
                  pairs ? gated->out.pairs + fg_gpu_pair_at(first, 0, outputs) : (uint32_t *)nullptr);
    }
}

void fg_cuda_gated(fg_device_stream *stream, const fg_gated *gated, const fg_activations *in, uint32_t rows)
{
    stream->sequence++;
    bool joined = fg_gpu_is_tensor(gated->gate.type) && fg_gpu_is_tensor(gated->up.type) &&
                  gated->forms == FG_FORM_PAIRS;
    if (!joined) {
        gated_apart(stream, gated, in, rows);
        return;
    }
    product_set set = make_set(in, gated->gate.columns, rows);
    product p = {};
    p.weight = (const uint8_t *)gated->gate.data;
    p.up = (const uint8_t *)gated->up.data;
    p.pairs = gated->out.pairs;
    p.outputs = gated->gate.outputs;
    uint32_t strips = add_product(&set, 0, p, false);
    if (rows <= 24) {
        few<true>(stream, set, strips);
    } else if (rows <= 64) {
        tall<8, true>(stream, set, strips, false);
    } else {
        tall<16, true>(stream, set, strips, false);
    }
}

/* ---- the highest output ---- */

enum { HIGHEST_THREADS = 512 };

static __device__ __forceinline__ bool is_better(float value, uint32_t at, float best, uint32_t best_at)
{
    return value > best || (value == best && at < best_at);
}

static __global__ __launch_bounds__(HIGHEST_THREADS) void find_highest(const float *values, uint32_t count,
                                                                       uint32_t *choices, float *tops)
{
    __shared__ float best_of[HIGHEST_THREADS];
    __shared__ uint32_t at_of[HIGHEST_THREADS];
    fg_gpu_wait();
    fg_gpu_let_next();
    const float *x = values + (size_t)blockIdx.x * count;
    float best = __uint_as_float(0xFF800000u);
    uint32_t best_at = UINT32_MAX;
    for (uint32_t i = threadIdx.x; i < count; i += HIGHEST_THREADS) {
        /* -inf is never chosen: nothing is higher than where the search begins. */
        if (x[i] > best) {
            best = x[i];
            best_at = i;
        }
    }
    best_of[threadIdx.x] = best;
    at_of[threadIdx.x] = best_at;
    __syncthreads();
    for (uint32_t apart = HIGHEST_THREADS / 2; apart > 0; apart /= 2) {
        if (threadIdx.x < apart && is_better(best_of[threadIdx.x + apart], at_of[threadIdx.x + apart],
                                             best_of[threadIdx.x], at_of[threadIdx.x])) {
            best_of[threadIdx.x] = best_of[threadIdx.x + apart];
            at_of[threadIdx.x] = at_of[threadIdx.x + apart];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        choices[blockIdx.x] = at_of[0] == UINT32_MAX ? 0 : at_of[0];
        tops[blockIdx.x] = best_of[0];
    }
}

void fg_cuda_highest(fg_device_stream *stream, const fg_panels *weight, const fg_activations *in, uint32_t rows,
                     uint32_t *choices, float *tops)
{
    stream->sequence++;
    uint32_t most = (uint32_t)(stream->work_floats / weight->outputs) / 8 * 8;
    for (uint32_t first = 0; first < rows; first += most) {
        uint32_t count = rows - first < most ? rows - first : most;
        fg_activations part = *in;
        part.values += (size_t)first * in->columns;
        part.pairs += fg_gpu_pair_at(first, 0, in->columns);
        fg_linear linear = { *weight, stream->work, weight->outputs, false };
        if (fg_gpu_is_tensor(weight->type)) {
            product_set set = make_set(&part, weight->columns, count);
            product p = {};
            p.weight = (const uint8_t *)weight->data;
            p.out = stream->work;
            p.outputs = weight->outputs;
            p.stride = weight->outputs;
            bool is_few = count <= FEW_ROWS_MAX;
            uint32_t strips = add_product(&set, 0, p, !is_few);
            if (is_few) {
                few<false>(stream, set, strips);
            } else {
                tall<8, false>(stream, set, strips, false);
            }
        } else {
            float_linear(stream, &linear, &part, count);
        }
        FG_LAUNCH(find_highest, dim3(count), dim3(HIGHEST_THREADS), 0, stream->stream, true,
                  (const float *)stream->work, weight->outputs, choices + first, tops + first);
    }
}

void fg_cuda_linear_prepare(void)
{
    fg_gpu_check(cudaFuncSetAttribute(more_rows<8, false>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      sizeof(tall_stage<8>) * STAGES),
                 "preparing kernels");
    fg_gpu_check(cudaFuncSetAttribute(more_rows<8, true>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      sizeof(tall_stage<8>) * STAGES),
                 "preparing kernels");
    fg_gpu_check(cudaFuncSetAttribute(more_rows<16, false>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      sizeof(tall_stage<16>) * STAGES),
                 "preparing kernels");
    fg_gpu_check(cudaFuncSetAttribute(more_rows<16, true>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      sizeof(tall_stage<16>) * STAGES),
                 "preparing kernels");
}
