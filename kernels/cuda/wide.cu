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

bool fg_gpu_wide(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips, bool gated,
                 bool may_split)
{
    return false;
}

void fg_gpu_wide_prepare(void)
{
}

#else

#include "kernels/cuda/wgmma.cuh"

#ifndef FG_WIDE_CLUSTER
#define FG_WIDE_CLUSTER 1
#endif

enum {
    WIDE_GROUPS = 2,
    WIDE_THREADS = (WIDE_GROUPS + 1) * 128,
    WIDE_STRIPS = WIDE_GROUPS * 4,
    WIDE_STEPS = 4, /* of a stage */
    WIDE_STAGES = 5,
    WIDTH = 128,       /* rows of a block */
    MIDDLE_WIDTH = 64, /* the same where there are not many more */
    MIDDLE_ROWS = 192,
    WIDE_CLUSTER =
        FG_WIDE_CLUSTER, /* blocks with the same rows, each of which reads a part for all */
    TILE_BYTES = WIDE_STEPS * 256, /* 8 rows of a stage */
    BAND = 16, /* tiles of rows that blocks go through together, so that they stay in the cache */
};

#if FG_WIDE_CLUSTER > 1
#define WIDE_CLUSTER_DIMS __cluster_dims__(FG_WIDE_CLUSTER, 1, 1)
#else
#define WIDE_CLUSTER_DIMS
#endif

template <int width> struct wide_memory {
    uint32_t rows[WIDE_STAGES][width / 8][TILE_BYTES / 4];
    uint64_t full[WIDE_STAGES], empty[WIDE_STAGES];
};

typedef struct wide_place {
    uint32_t strip; /* of the launch */
    uint32_t row;
    uint32_t part_first, part_end;
} wide_place;

static __device__ __forceinline__ wide_place find_place(uint32_t row_tiles, uint32_t strip_clusters,
                                                        uint32_t width, uint32_t strips_each)
{
    uint32_t cluster = blockIdx.x / WIDE_CLUSTER;
    uint32_t band = cluster / (BAND * strip_clusters);
    uint32_t first = band * BAND;
    uint32_t rows = row_tiles - first < BAND ? row_tiles - first : BAND;
    uint32_t inner = cluster - band * BAND * strip_clusters;
    wide_place place;
    place.row = (first + inner % rows) * width;
    place.strip = (inner / rows * WIDE_CLUSTER + blockIdx.x % WIDE_CLUSTER) * strips_each;
    return place;
}

static __device__ __forceinline__ void sync_blocks(void)
{
    if constexpr (WIDE_CLUSTER > 1) {
        fg_cluster_sync();
    } else {
        __syncthreads();
    }
}

/* The warp that fills stages: a part of each, for all blocks of the cluster. */
template <int width>
static __device__ __forceinline__ void feed(wide_memory<width> *memory, const fg_gpu_products &set,
                                            const wide_place &place, uint32_t lane)
{
    uint32_t part_stages = set.part_steps / WIDE_STEPS, last = set.steps / WIDE_STEPS;
    uint32_t first = place.part_first * part_stages, end = place.part_end * part_stages;
    uint32_t stages = (end < last ? end : last) - first;
    uint32_t tiles = (set.rows - place.row + 7) / 8;
    tiles = tiles < width / 8 ? tiles : width / 8;
    uint32_t tile = blockIdx.x % WIDE_CLUSTER + lane * WIDE_CLUSTER;
    const uint8_t *from = (const uint8_t *)set.in +
                          ((size_t)(place.row / 8) + tile) * set.columns * 16 +
                          (size_t)first * TILE_BYTES;
    for (uint32_t stage = 0; stage < stages; stage++) {
        uint32_t slot = stage % WIDE_STAGES;
        fg_barrier_wait(&memory->empty[slot], stage / WIDE_STAGES % 2 ^ 1);
        if (lane == 0) {
            fg_barrier_expect(&memory->full[slot], tiles * TILE_BYTES);
        }
        __syncwarp();
        if (tile < tiles) {
            const uint8_t *piece = from + (size_t)stage * TILE_BYTES;
            if constexpr (WIDE_CLUSTER > 1) {
                fg_bulk_copy_to(memory->rows[slot][tile], piece, TILE_BYTES, &memory->full[slot],
                                (1 << WIDE_CLUSTER) - 1);
            } else {
                fg_bulk_copy(memory->rows[slot][tile], piece, TILE_BYTES, &memory->full[slot]);
            }
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
    if (lane < WIDE_CLUSTER) {
        uint64_t *barrier = &memory->empty[stage % WIDE_STAGES];
        WIDE_CLUSTER > 1 ? fg_barrier_arrive_at(barrier, lane) : fg_barrier_arrive(barrier);
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

/* Where the sums of parts go when several blocks share them: [part][row][output of all strips]. */
typedef struct wide_split {
    float *work;
    uint32_t all_outputs, parts_each;
} wide_split;

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

/* Parts part_first .. part_end - 1. Some stages are taken together, in pieces with registers of their own for the weights. As
 * soon as the products that read a piece's registers have ended, which is when those of the next piece are begun, they
 * are loaded for the next pair. */
template <int width, int pieces, bool shared_parts>
static __device__ __forceinline__ void consume(wide_memory<width> *memory,
                                               const fg_gpu_products &set, const wide_split &split,
                                               const wide_place &place, uint32_t output,
                                               const uint4 *weights, uint32_t lane, float *totals)
{
    float sums[width / 2];
    uint32_t a[pieces][2][4];
    uint32_t part_stages = set.part_steps / WIDE_STEPS, last = set.steps / WIDE_STEPS;
    uint32_t from = place.part_first * part_stages, to = place.part_end * part_stages;
    to = to < last ? to : last;
    weights += (size_t)from * WIDE_STEPS * 32;
    uint32_t stages = to - from, part = place.part_first;
#pragma unroll
    for (int piece = 0; piece < pieces - 1; piece++) {
        load_weights(a[piece], weights, 2 * piece);
    }
    for (uint32_t first = 0; first < stages; first += part_stages, part++) {
        uint32_t end = first + part_stages < stages ? first + part_stages : stages;
        for (uint32_t stage = first; stage < end; stage += pieces / 2) {
            uint32_t step = stage * WIDE_STEPS;
            uint32_t next = stage + pieces / 2 < stages ? step + 2 * pieces : 0;
            uint32_t rows = 0;
#pragma unroll
            for (int piece = 0; piece < pieces; piece++) {
                uint32_t now = stage + piece / 2;
                if (piece % 2 == 0) {
                    rows = wait_for_stage<width>(memory, now);
                }
                take_steps<width>(rows + piece % 2 * 512, sums, a[piece],
                                  piece > 0 || stage > first ? 1 : 0);
                /* The products of the piece before have ended. */
                if (piece % 2 == 0 && now > 0) {
                    give_stage_back<width>(memory, now - 1, lane);
                }
                load_weights(a[(piece + pieces - 1) % pieces], weights,
                             piece == 0 ? step + 2 * (pieces - 1) : next + 2 * (piece - 1));
            }
        }
        fg_wgmma_wait<0>();
        if constexpr (shared_parts) {
            put_part<width>(split, set, part, place.row, output, lane, sums);
        } else {
            add_part<width>(totals, sums, first == 0);
        }
    }
}

template <int width, int pieces, bool gated, bool shared_parts>
static __global__ __launch_bounds__(WIDE_THREADS, 1) WIDE_CLUSTER_DIMS
    void wide_rows(fg_gpu_products set, wide_split split, uint32_t row_tiles,
                   uint32_t strip_clusters)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    FG_SHARED_BYTES(shared);
    wide_memory<width> *memory = (wide_memory<width> *)shared;
    constexpr uint32_t strips_each = gated ? WIDE_STRIPS / 2 : WIDE_STRIPS;
    wide_place place = find_place(row_tiles, strip_clusters, width, strips_each);
    uint32_t parts = fg_gpu_part_count(set);
    place.part_first = shared_parts ? blockIdx.y * split.parts_each : 0;
    place.part_end = shared_parts ? place.part_first + split.parts_each : parts;
    place.part_end = place.part_end < parts ? place.part_end : parts;
    const fg_gpu_product &p = fg_gpu_find_product(set, place.strip);
    uint32_t group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int i = 0; i < WIDE_STAGES; i++) {
            fg_barrier_init(&memory->full[i], 1);
            fg_barrier_init(&memory->empty[i], WIDE_CLUSTER * WIDE_GROUPS * 4);
        }
        fg_barrier_made();
    }
    sync_blocks();
    fg_gpu_let_next();
    fg_gpu_wait();
    if (group == WIDE_GROUPS) {
        fg_fewer_registers<40>();
        if (warp == 0) {
            fg_bulk_fence();
            feed<width>(memory, set, place, lane);
        }
    } else {
        fg_more_registers<232>();
        uint32_t strip = place.strip - p.strip_first + (gated ? warp : group * 4 + warp);
        bool real = strip * FG_GPU_STRIP < p.outputs;
        const uint8_t *weight = gated && group == 1 ? p.up : p.weight;
        const uint4 *weights =
            (const uint4 *)weight + (size_t)(real ? strip : 0) * set.steps * 32 + lane;
        float totals[width / 2];
        consume<width, pieces, shared_parts>(memory, set, split, place,
                                             (place.strip + group * 4 + warp) * FG_GPU_STRIP,
                                             weights, lane, totals);
        uint32_t g = lane / 4, t = lane % 4, output = strip * FG_GPU_STRIP + g;
        if constexpr (shared_parts) {
            /* Another kernel adds them. */
        } else if constexpr (gated) {
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

template <int width, int pieces, bool gated, bool shared_parts>
static void launch(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips,
                   const wide_split &split)
{
    constexpr uint32_t strips_each = (gated ? WIDE_STRIPS / 2 : WIDE_STRIPS) * WIDE_CLUSTER;
    uint32_t row_tiles = (set.rows + width - 1) / width;
    uint32_t strip_clusters = (strips + strips_each - 1) / strips_each;
    uint32_t parts = (set.steps + set.part_steps - 1) / set.part_steps;
    uint32_t shares = shared_parts ? (parts + split.parts_each - 1) / split.parts_each : 1;
    FG_LAUNCH((wide_rows<width, pieces, gated, shared_parts>),
              dim3(row_tiles * strip_clusters * WIDE_CLUSTER, shares), dim3(WIDE_THREADS),
              sizeof(wide_memory<width>), stream->stream, true, set, split, row_tiles,
              strip_clusters);
}

/* Few rows give few blocks: several share the parts of the same outputs, until there is one for each multiprocessor. */
template <int pieces>
static void split_parts(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips)
{
    constexpr uint32_t strips_each = WIDE_STRIPS * WIDE_CLUSTER;
    uint32_t clusters = (strips + strips_each - 1) / strips_each;
    uint32_t blocks = (set.rows + MIDDLE_WIDTH - 1) / MIDDLE_WIDTH * clusters * WIDE_CLUSTER;
    uint32_t parts = (set.steps + set.part_steps - 1) / set.part_steps, shares = 1;
    while (shares < parts && blocks * shares * 2 <= (uint32_t)stream->device->multiprocessors) {
        shares *= 2;
    }
    wide_split split = { stream->work, strips_each * clusters * FG_GPU_STRIP,
                         (parts + shares - 1) / shares };
    if (shares == 1 || (size_t)parts * set.rows * split.all_outputs > stream->work_floats) {
        launch<MIDDLE_WIDTH, pieces, false, false>(stream, set, strips, split);
        return;
    }
    launch<MIDDLE_WIDTH, pieces, false, true>(stream, set, strips, split);
    fg_gpu_sum_parts(stream, set, split.all_outputs);
}

template <int pieces>
static bool run(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips, bool gated,
                bool may_split)
{
    if (set.part_steps % (2 * pieces) != 0 || set.steps % (2 * pieces) != 0) {
        return false;
    }
    wide_split none = {};
    bool middle = set.rows <= MIDDLE_ROWS;
    if (gated) {
        middle ? launch<MIDDLE_WIDTH, pieces, true, false>(stream, set, strips, none)
               : launch<WIDTH, pieces, true, false>(stream, set, strips, none);
    } else if (middle && may_split) {
        split_parts<pieces>(stream, set, strips);
    } else {
        middle ? launch<MIDDLE_WIDTH, pieces, false, false>(stream, set, strips, none)
               : launch<WIDTH, pieces, false, false>(stream, set, strips, none);
    }
    return true;
}

bool fg_gpu_wide(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips, bool gated,
                 bool may_split)
{
    return stream->device->hopper && (run<8>(stream, set, strips, gated, may_split) ||
                                      run<4>(stream, set, strips, gated, may_split));
}

template <int width, int pieces, bool gated, bool shared_parts> static void prepare(void)
{
    fg_gpu_check(cudaFuncSetAttribute(wide_rows<width, pieces, gated, shared_parts>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      sizeof(wide_memory<width>)),
                 "preparing kernels");
}

template <int pieces> static void prepare_pieces(void)
{
    prepare<WIDTH, pieces, false, false>();
    prepare<WIDTH, pieces, true, false>();
    prepare<MIDDLE_WIDTH, pieces, false, false>();
    prepare<MIDDLE_WIDTH, pieces, true, false>();
    prepare<MIDDLE_WIDTH, pieces, false, true>();
}

void fg_gpu_wide_prepare(void)
{
    prepare_pieces<8>();
    prepare_pieces<4>();
}

#endif
