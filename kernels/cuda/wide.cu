/*
 * Products of many rows on Hopper: a block makes 128 outputs of `width` rows. Two groups of four warps have 64 outputs
 * each; a warp reads the weights of its 16 outputs from memory into registers, nobody else needs them. The rows pass
 * through shared memory, which one more warp fills by bulk copies, some stages ahead.
 *
 * A part's sums are made by products that run while the next stage is waited for; they are added to the totals when the
 * part ends. Parts must be whole pairs of stages: fg_gpu_wide says whether it can.
 */
#include "kernels/cuda/product.cuh"

#ifdef FG_GPU_EMULATED

bool fg_gpu_wide(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips, bool gated)
{
    return false;
}

void fg_gpu_wide_prepare(void)
{
}

#else

#include "kernels/cuda/wgmma.cuh"

enum {
    WIDE_GROUPS = 2,
    WIDE_THREADS = (WIDE_GROUPS + 1) * 128,
    WIDE_STRIPS = WIDE_GROUPS * 4,
    WIDE_STEPS = 4, /* of a stage */
    WIDE_STAGES = 5,
    TILE_BYTES = WIDE_STEPS * 256, /* 8 rows of a stage */
    BAND = 16, /* tiles of rows that blocks go through together, so that they stay in the cache */
};

template <int width> struct wide_memory {
    uint32_t rows[WIDE_STAGES][width / 8][TILE_BYTES / 4];
    uint64_t full[WIDE_STAGES], empty[WIDE_STAGES];
};

typedef struct wide_place {
    uint32_t strip; /* of the launch */
    uint32_t row;
} wide_place;

static __device__ __forceinline__ wide_place find_place(uint32_t row_tiles, uint32_t strip_tiles,
                                                        uint32_t width, uint32_t strips_each)
{
    uint32_t band = blockIdx.x / (BAND * strip_tiles);
    uint32_t first = band * BAND;
    uint32_t rows = row_tiles - first < BAND ? row_tiles - first : BAND;
    uint32_t inner = blockIdx.x - band * BAND * strip_tiles;
    wide_place place;
    place.row = (first + inner % rows) * width;
    place.strip = inner / rows * strips_each;
    return place;
}

/* The warp that fills stages. */
template <int width>
static __device__ __forceinline__ void feed(wide_memory<width> *memory, const fg_gpu_products &set,
                                            uint32_t row, uint32_t stages, uint32_t lane)
{
    uint32_t tiles = (set.rows - row + 7) / 8;
    tiles = tiles < width / 8 ? tiles : width / 8;
    const uint8_t *from = (const uint8_t *)set.in + (size_t)(row / 8) * set.columns * 16;
    for (uint32_t stage = 0; stage < stages; stage++) {
        uint32_t slot = stage % WIDE_STAGES;
        fg_barrier_wait(&memory->empty[slot], stage / WIDE_STAGES % 2 ^ 1);
        if (lane == 0) {
            fg_barrier_expect(&memory->full[slot], tiles * TILE_BYTES);
        }
        __syncwarp();
        for (uint32_t tile = lane; tile < tiles; tile += 32) {
            fg_bulk_copy(memory->rows[slot][tile],
                         from + (size_t)tile * set.columns * 16 + (size_t)stage * TILE_BYTES,
                         TILE_BYTES, &memory->full[slot]);
        }
    }
}

/* Weights of two steps. */
static __device__ __forceinline__ void load_weights(uint32_t (*a)[4], const uint4 *weights,
                                                    uint32_t step)
{
#pragma unroll
    for (int s = 0; s < 2; s++) {
        uint4 w = __ldg(weights + (size_t)(step + s) * 32);
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
static __device__ __forceinline__ uint32_t wait_for_stage(wide_memory<width> *memory,
                                                          uint32_t stage)
{
    uint32_t slot = stage % WIDE_STAGES;
    fg_barrier_wait(&memory->full[slot], stage / WIDE_STAGES % 2);
    return fg_shared_at(memory->rows[slot]);
}

template <int width>
static __device__ __forceinline__ void give_stage_back(wide_memory<width> *memory, uint32_t stage,
                                                       uint32_t lane)
{
    if (lane == 0) {
        fg_barrier_arrive(&memory->empty[stage % WIDE_STAGES]);
    }
}

template <int width>
static __device__ __forceinline__ void add_part(float *totals, const float *sums, bool first)
{
#pragma unroll
    for (int i = 0; i < width / 2; i++) {
        totals[i] = first ? sums[i] : __fadd_rn(totals[i], sums[i]);
    }
}

/* Stages come in pairs, in four pieces with registers of their own for the weights. As soon as the products that read a
 * piece's registers have ended, which is when those of the next piece are begun, they are loaded for the next pair. */
template <int width>
static __device__ __forceinline__ void consume(wide_memory<width> *memory,
                                               const fg_gpu_products &set, const uint4 *weights,
                                               uint32_t lane, float *totals)
{
    float sums[width / 2];
    uint32_t a[4][2][4];
    uint32_t stages = set.steps / WIDE_STEPS, part_stages = set.part_steps / WIDE_STEPS;
    load_weights(a[0], weights, 0);
    load_weights(a[1], weights, 2);
    load_weights(a[2], weights, 4);
    for (uint32_t first = 0; first < stages; first += part_stages) {
        uint32_t end = first + part_stages < stages ? first + part_stages : stages;
        for (uint32_t stage = first; stage < end; stage += 2) {
            uint32_t step = stage * WIDE_STEPS, next = stage + 2 < stages ? step + 8 : 0;
            uint32_t rows = wait_for_stage<width>(memory, stage);
            take_steps<width>(rows, sums, a[0], stage > first ? 1 : 0);
            if (stage > 0) {
                give_stage_back<width>(memory, stage - 1, lane);
            }
            load_weights(a[3], weights, step + 6);
            take_steps<width>(rows + 512, sums, a[1], 1);
            load_weights(a[0], weights, next);
            rows = wait_for_stage<width>(memory, stage + 1);
            take_steps<width>(rows, sums, a[2], 1);
            give_stage_back<width>(memory, stage, lane);
            load_weights(a[1], weights, next + 2);
            take_steps<width>(rows + 512, sums, a[3], 1);
            load_weights(a[2], weights, next + 4);
        }
        fg_wgmma_wait<0>();
        add_part<width>(totals, sums, first == 0);
    }
}

template <int width, bool gated>
static __global__ __launch_bounds__(WIDE_THREADS, 1) void wide_rows(fg_gpu_products set,
                                                                    uint32_t row_tiles,
                                                                    uint32_t strip_tiles)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    FG_SHARED_BYTES(shared);
    wide_memory<width> *memory = (wide_memory<width> *)shared;
    constexpr uint32_t strips_each = gated ? WIDE_STRIPS / 2 : WIDE_STRIPS;
    wide_place place = find_place(row_tiles, strip_tiles, width, strips_each);
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
            feed<width>(memory, set, place.row, set.steps / WIDE_STEPS, lane);
        }
    } else {
        fg_more_registers<232>();
        uint32_t strip = place.strip - p.strip_first + (gated ? warp : group * 4 + warp);
        bool real = strip * FG_GPU_STRIP < p.outputs;
        const uint8_t *weight = gated && group == 1 ? p.up : p.weight;
        const uint4 *weights =
            (const uint4 *)weight + (size_t)(real ? strip : 0) * set.steps * 32 + lane;
        float totals[width / 2];
        consume<width>(memory, set, weights, lane, totals);
        uint32_t g = lane / 4, t = lane % 4, output = strip * FG_GPU_STRIP + g;
        if constexpr (gated) {
            /* All stages have been used: their memory carries the ups to the threads that have the gates. */
            float *ups = (float *)memory->rows;
            asm volatile("bar.sync 1, 256;" ::: "memory");
            if (group == 1) {
#pragma unroll
                for (int i = 0; i < width / 2; i++) {
                    ups[i * 128 + threadIdx.x % 128] = totals[i];
                }
            }
            asm volatile("bar.sync 1, 256;" ::: "memory");
            if (group == 0) {
#pragma unroll
                for (int tile = 0; tile < width / 8; tile++) {
                    uint32_t row = place.row + tile * 8 + 2 * t;
                    float made[4];
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        made[i] = __fmul_rn(fg_gpu_silu(totals[4 * tile + i]),
                                            ups[(4 * tile + i) * 128 + threadIdx.x % 128]);
                    }
                    fg_gpu_put_gated(p, set.rows, row, output, g, made[0], made[1]);
                    fg_gpu_put_gated(p, set.rows, row, output + 8, g, made[2], made[3]);
                }
            }
        } else {
#pragma unroll
            for (int tile = 0; tile < width / 8; tile++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    fg_gpu_put_out(p, set.rows, place.row + tile * 8 + 2 * t + i % 2,
                                   output + i / 2 * 8, totals[4 * tile + i]);
                }
            }
        }
    }
#endif
}

template <int width, bool gated>
static void launch(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips)
{
    constexpr uint32_t strips_each = gated ? WIDE_STRIPS / 2 : WIDE_STRIPS;
    uint32_t row_tiles = (set.rows + width - 1) / width,
             strip_tiles = (strips + strips_each - 1) / strips_each;
    FG_LAUNCH((wide_rows<width, gated>), dim3(row_tiles * strip_tiles), dim3(WIDE_THREADS),
              sizeof(wide_memory<width>), stream->stream, true, set, row_tiles, strip_tiles);
}

bool fg_gpu_wide(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips, bool gated)
{
    if (!stream->device->hopper || set.part_steps % (2 * WIDE_STEPS) != 0 ||
        set.steps % (2 * WIDE_STEPS) != 0) {
        return false;
    }
    gated ? launch<128, true>(stream, set, strips) : launch<128, false>(stream, set, strips);
    return true;
}

template <int width, bool gated> static void prepare(void)
{
    fg_gpu_check(cudaFuncSetAttribute(wide_rows<width, gated>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      sizeof(wide_memory<width>)),
                 "preparing kernels");
}

void fg_gpu_wide_prepare(void)
{
    prepare<128, false>();
    prepare<128, true>();
}

#endif
