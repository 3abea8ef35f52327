/*
 * Products of many rows on Hopper: a block makes 128 outputs of `width` rows. Weights and rows come into shared memory by
 * bulk copies, which one warp asks for some stages ahead; a stage is 64 columns. Two groups of four warps have 64 outputs
 * each: a warp reads its 16 outputs' weights into registers, the rows are read from shared memory by the products.
 *
 * A part's sums are added to the totals when the part ends. Parts must be whole stages: fg_gpu_wide says whether it can.
 * Where rows are few, several blocks share the parts of the same outputs, and a kernel of their own adds the sums.
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

#include "kernels/cuda/wgmma.cuh"

#ifndef FG_WIDE_WIDTH
#define FG_WIDE_WIDTH 128
#endif

enum {
    WIDE_GROUPS = 2,
    WIDE_THREADS = (WIDE_GROUPS + 1) * 128,
    WIDE_STRIPS = WIDE_GROUPS * 4,
    WIDE_STEPS = FG_GPU_BLOCK / FG_GPU_STEP, /* of a stage */
    WIDE_STAGES = 5,
    WIDTH = FG_WIDE_WIDTH, /* rows of a block */
    MIDDLE_WIDTH = 64,     /* the same where there are not many more */
    MIDDLE_ROWS = 192,
    BLOCK_BYTES = FG_GPU_BLOCK_WORDS * 4, /* of rows */
    TILE_BYTES = BLOCK_BYTES / 8,         /* 8 rows of it */
    STRIP_BYTES = WIDE_STEPS * 512,       /* weights of 16 outputs */
    BAND = 16, /* tiles of rows that blocks go through together, so that they stay in the cache */
};

template <int width> struct wide_stage {
    uint8_t rows[width / FG_GPU_BLOCK][BLOCK_BYTES];
    uint8_t weights[WIDE_STRIPS][STRIP_BYTES];
};

template <int width> struct wide_memory {
    wide_stage<width> stages[WIDE_STAGES];
    uint64_t full[WIDE_STAGES], empty[WIDE_STAGES];
};

typedef struct wide_place {
    uint32_t strip; /* of the launch */
    uint32_t row;
    uint32_t stage_first, stage_end;
} wide_place;

/* Where the sums of parts go when several blocks share them: [part][row][output of all strips]. */
typedef struct wide_split {
    float *work;
    uint32_t all_outputs, parts_each;
} wide_split;

template <int width, bool shared_parts>
static __device__ __forceinline__ wide_place find_place(const fg_gpu_products &set,
                                                        const wide_split &split, uint32_t row_tiles,
                                                        uint32_t strip_tiles, uint32_t strips_each)
{
    uint32_t band = blockIdx.x / (BAND * strip_tiles);
    uint32_t first = band * BAND;
    uint32_t rows = row_tiles - first < BAND ? row_tiles - first : BAND;
    uint32_t inner = blockIdx.x - band * BAND * strip_tiles;
    uint32_t part_stages = set.part_steps / WIDE_STEPS, stages = set.steps / WIDE_STEPS;
    wide_place place;
    place.row = (first + inner % rows) * width;
    place.strip = inner / rows * strips_each;
    place.stage_first = shared_parts ? blockIdx.y * split.parts_each * part_stages : 0;
    place.stage_end = shared_parts ? place.stage_first + split.parts_each * part_stages : stages;
    place.stage_end = place.stage_end < stages ? place.stage_end : stages;
    return place;
}

/* The weights of a block's strip; NULL: there is none. A gated product's block has 4 strips of gate, then the same 4 of
 * up. */
template <bool gated>
static __device__ __forceinline__ const uint8_t *strip_at(const fg_gpu_products &set,
                                                          const fg_gpu_product &p,
                                                          const wide_place &place, uint32_t index)
{
    uint32_t strip = place.strip - p.strip_first + (gated ? index % 4 : index);
    const uint8_t *weight = gated && index >= 4 ? p.up : p.weight;
    return strip * FG_GPU_STRIP < p.outputs ? weight + (size_t)strip * set.steps * 512 : nullptr;
}

/* The warp that fills stages: its first lanes have the blocks of rows, the others the strips. */
template <int width, bool gated>
static __device__ __forceinline__ void feed(wide_memory<width> *memory, const fg_gpu_products &set,
                                            const fg_gpu_product &p, const wide_place &place,
                                            uint32_t lane)
{
    constexpr uint32_t row_blocks = width / FG_GPU_BLOCK;
    const uint8_t *from = nullptr;
    uint32_t bytes = 0, stage_bytes = 0, to = 0;
    if (lane < row_blocks) {
        uint32_t row = place.row + lane * FG_GPU_BLOCK;
        if (row < set.rows) {
            from = (const uint8_t *)(set.in + fg_gpu_pair_at(row, 0, set.columns));
            bytes = stage_bytes = BLOCK_BYTES;
        }
        to = lane * BLOCK_BYTES;
    } else if (lane < row_blocks + WIDE_STRIPS) {
        uint32_t index = lane - row_blocks;
        from = strip_at<gated>(set, p, place, index);
        bytes = from != nullptr ? STRIP_BYTES : 0;
        stage_bytes = STRIP_BYTES;
        to = row_blocks * BLOCK_BYTES + index * STRIP_BYTES;
    }
    from += (size_t)place.stage_first * stage_bytes;
    uint32_t all = bytes;
    for (int apart = 16; apart > 0; apart /= 2) {
        all += __shfl_xor_sync(0xFFFFFFFFu, all, apart);
    }
    for (uint32_t i = 0; i < place.stage_end - place.stage_first; i++) {
        uint32_t slot = i % WIDE_STAGES;
        fg_barrier_wait(&memory->empty[slot], i / WIDE_STAGES % 2 ^ 1);
        if (lane == 0) {
            fg_barrier_expect(&memory->full[slot], all);
        }
        __syncwarp();
        if (bytes > 0) {
            fg_bulk_copy((uint8_t *)&memory->stages[slot] + to, from + (size_t)i * stage_bytes,
                         bytes, &memory->full[slot]);
        }
    }
}

/* Weights of some steps. */
template <int count>
static __device__ __forceinline__ void load_weights(uint32_t (*a)[4], const uint8_t *weights,
                                                    uint32_t step, uint32_t lane)
{
#pragma unroll
    for (int s = 0; s < count; s++) {
        uint4 w = ((const uint4 *)weights)[(step + s) * 32 + lane];
        a[s][0] = w.x;
        a[s][1] = w.y;
        a[s][2] = w.z;
        a[s][3] = w.w;
    }
}

/* Products of two steps, from where the rows are on, are begun; those before have ended when this returns. */
template <int width>
static __device__ __forceinline__ void take_steps(uint32_t rows, float *sums,
                                                  const uint32_t (*a)[4], uint32_t go_on)
{
    fg_wgmma_fence();
    fg_wgmma<width>(sums, a[0], fg_wgmma_place(rows, 128, TILE_BYTES), go_on);
    fg_wgmma<width>(sums, a[1], fg_wgmma_place(rows + 256, 128, TILE_BYTES), 1);
    fg_wgmma_commit();
    fg_wgmma_wait<1>();
}

template <int width>
static __device__ __forceinline__ void add_part(float *totals, const float *sums, bool first)
{
#pragma unroll
    for (int i = 0; i < width / 2; i++) {
        totals[i] = first ? sums[i] : __fadd_rn(totals[i], sums[i]);
    }
}

template <int width>
static __device__ __forceinline__ void put_part(const wide_split &split, const fg_gpu_products &set,
                                                uint32_t part, uint32_t row, uint32_t output,
                                                uint32_t lane, const float *sums)
{
    float *at = split.work + (size_t)part * set.rows * split.all_outputs + output + lane / 4;
#pragma unroll
    for (int tile = 0; tile < width / 8; tile++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t to = row + tile * 8 + lane % 4 * 2 + i % 2;
            if (to < set.rows) {
                at[(size_t)to * split.all_outputs + i / 2 * 8] = sums[4 * tile + i];
            }
        }
    }
}

/* The strip at `index` of the block. While the products of two steps run, the weights of the next two are read: those
 * whose registers they get have ended. */
template <int width, bool shared_parts>
static __device__ __forceinline__ void consume(wide_memory<width> *memory,
                                               const fg_gpu_products &set, const wide_split &split,
                                               const wide_place &place, uint32_t index,
                                               uint32_t lane, float *totals)
{
    float sums[width / 2];
    uint32_t now[2][4], next[2][4];
    uint32_t part_stages = set.part_steps / WIDE_STEPS;
    uint32_t stages = place.stage_end - place.stage_first, part = place.stage_first / part_stages;
    fg_barrier_wait(&memory->full[0], 0);
    load_weights<2>(now, memory->stages[0].weights[index], 0, lane);
    for (uint32_t first = 0; first < stages; first += part_stages, part++) {
        uint32_t end = first + part_stages < stages ? first + part_stages : stages;
        for (uint32_t i = first; i < end; i++) {
            const wide_stage<width> *stage = &memory->stages[i % WIDE_STAGES];
            uint32_t rows = fg_shared_at(stage->rows);
            take_steps<width>(rows, sums, now, i > first ? 1 : 0);
            if (i > 0 && lane == 0) {
                fg_barrier_arrive(&memory->empty[(i - 1) % WIDE_STAGES]);
            }
            load_weights<2>(next, stage->weights[index], 2, lane);
            take_steps<width>(rows + 512, sums, next, 1);
            if (i + 1 < stages) {
                uint32_t slot = (i + 1) % WIDE_STAGES;
                fg_barrier_wait(&memory->full[slot], (i + 1) / WIDE_STAGES % 2);
                load_weights<2>(now, memory->stages[slot].weights[index], 0, lane);
            }
        }
        fg_wgmma_wait<0>();
        if constexpr (shared_parts) {
            put_part<width>(split, set, part, place.row, (place.strip + index) * FG_GPU_STRIP, lane,
                            sums);
        } else {
            add_part<width>(totals, sums, first == 0);
        }
    }
}

/* Gates are in the threads of the first group, ups in those of the second: stages, which have all been used, carry them
 * over. */
template <int width>
static __device__ __forceinline__ void put_gates(wide_memory<width> *memory,
                                                 const fg_gpu_products &set,
                                                 const fg_gpu_product &p, const wide_place &place,
                                                 uint32_t group, uint32_t output, uint32_t lane,
                                                 const float *totals)
{
    float *ups = (float *)memory->stages;
    asm volatile("bar.sync 1, 256;" ::: "memory");
    if (group == 1) {
#pragma unroll
        for (int i = 0; i < width / 2; i++) {
            ups[i * 128 + threadIdx.x % 128] = totals[i];
        }
    }
    asm volatile("bar.sync 1, 256;" ::: "memory");
    if (group == 1) {
        return;
    }
#pragma unroll
    for (int tile = 0; tile < width / 8; tile++) {
        uint32_t row = place.row + tile * 8 + 2 * (lane % 4);
        float made[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            made[i] = __fmul_rn(fg_gpu_silu(totals[4 * tile + i]),
                                ups[(4 * tile + i) * 128 + threadIdx.x % 128]);
        }
        fg_gpu_put_gated(p, set.rows, row, output, lane / 4, made[0], made[1]);
        fg_gpu_put_gated(p, set.rows, row, output + 8, lane / 4, made[2], made[3]);
    }
}

template <int width, bool gated, bool shared_parts>
static __global__ __launch_bounds__(WIDE_THREADS,
                                    1) void wide_rows(fg_gpu_products set, wide_split split,
                                                      uint32_t row_tiles, uint32_t strip_tiles)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    FG_SHARED_BYTES(shared);
    wide_memory<width> *memory = (wide_memory<width> *)shared;
    wide_place place = find_place<width, shared_parts>(set, split, row_tiles, strip_tiles,
                                                       gated ? WIDE_STRIPS / 2 : WIDE_STRIPS);
    const fg_gpu_product &p = fg_gpu_find_product(set, place.strip);
    uint32_t group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int i = 0; i < WIDE_STAGES; i++) {
            fg_barrier_init(&memory->full[i], 1);
            fg_barrier_init(&memory->empty[i], WIDE_GROUPS * 4);
        }
        fg_barrier_made();
    }
    __syncthreads();
    fg_gpu_let_next();
    fg_gpu_wait();
    if (group == WIDE_GROUPS) {
        fg_fewer_registers<40>();
        if (warp == 0) {
            fg_bulk_fence();
            feed<width, gated>(memory, set, p, place, lane);
        }
        return;
    }
    fg_more_registers<232>();
    uint32_t index = group * 4 + warp;
    float totals[width / 2];
    consume<width, shared_parts>(memory, set, split, place, index, lane, totals);
    uint32_t strip = place.strip - p.strip_first + (gated ? warp : index);
    uint32_t output = strip * FG_GPU_STRIP + lane / 4;
    if constexpr (shared_parts) {
        /* Another kernel adds them. */
    } else if constexpr (gated) {
        put_gates<width>(memory, set, p, place, group, output, lane, totals);
    } else {
#pragma unroll
        for (int tile = 0; tile < width / 8; tile++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                fg_gpu_put_out(p, set.rows, place.row + tile * 8 + lane % 4 * 2 + i % 2,
                               output + i / 2 * 8, totals[4 * tile + i]);
            }
        }
    }
#endif
}

template <int width, bool gated, bool shared_parts>
static void launch(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips,
                   const wide_split &split)
{
    constexpr uint32_t strips_each = gated ? WIDE_STRIPS / 2 : WIDE_STRIPS;
    uint32_t row_tiles = (set.rows + width - 1) / width;
    uint32_t strip_tiles = (strips + strips_each - 1) / strips_each;
    uint32_t parts = (set.steps + set.part_steps - 1) / set.part_steps;
    uint32_t shares = shared_parts ? (parts + split.parts_each - 1) / split.parts_each : 1;
    FG_LAUNCH((wide_rows<width, gated, shared_parts>), dim3(row_tiles * strip_tiles, shares),
              dim3(WIDE_THREADS), sizeof(wide_memory<width>), stream->stream, true, set, split,
              row_tiles, strip_tiles);
}

/* Few rows give few blocks: several share the parts of the same outputs, until there is one for each multiprocessor. */
static void split_parts(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips)
{
    uint32_t strip_tiles = (strips + WIDE_STRIPS - 1) / WIDE_STRIPS;
    uint32_t blocks = (set.rows + MIDDLE_WIDTH - 1) / MIDDLE_WIDTH * strip_tiles;
    uint32_t parts = (set.steps + set.part_steps - 1) / set.part_steps, shares = 1;
    while (shares < parts && blocks * shares * 2 <= (uint32_t)stream->device->multiprocessors) {
        shares *= 2;
    }
    wide_split split = { stream->work, WIDE_STRIPS * strip_tiles * FG_GPU_STRIP,
                         (parts + shares - 1) / shares };
    if (shares == 1 || (size_t)parts * set.rows * split.all_outputs > stream->work_floats) {
        launch<MIDDLE_WIDTH, false, false>(stream, set, strips, split);
        return;
    }
    launch<MIDDLE_WIDTH, false, true>(stream, set, strips, split);
    fg_gpu_sum_parts(stream, set, split.all_outputs);
}

bool fg_gpu_wide(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips, bool gated,
                 bool may_split)
{
    if (!stream->device->wide || set.part_steps % WIDE_STEPS != 0 || set.steps % WIDE_STEPS != 0) {
        return false;
    }
    wide_split none = {};
    bool middle = set.rows <= MIDDLE_ROWS;
    if (gated) {
        middle ? launch<MIDDLE_WIDTH, true, false>(stream, set, strips, none)
               : launch<WIDTH, true, false>(stream, set, strips, none);
    } else if (middle && may_split) {
        split_parts(stream, set, strips);
    } else {
        middle ? launch<MIDDLE_WIDTH, false, false>(stream, set, strips, none)
               : launch<WIDTH, false, false>(stream, set, strips, none);
    }
    return true;
}

template <int width, bool gated, bool shared_parts> static void prepare(void)
{
    fg_gpu_check(cudaFuncSetAttribute(wide_rows<width, gated, shared_parts>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      sizeof(wide_memory<width>)),
                 "preparing kernels");
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
    prepare<WIDTH, false, false>();
    prepare<WIDTH, true, false>();
    prepare<MIDDLE_WIDTH, false, false>();
    prepare<MIDDLE_WIDTH, true, false>();
    prepare<MIDDLE_WIDTH, false, true>();
    return true;
}

#endif
