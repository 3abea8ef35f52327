/*
 * Products of few rows: a block makes 16 outputs of all rows, then those of its next strip. Warp p has part p of the
 * columns: its weights, each byte once, and its rows come into shared memory in batches of 64 columns that it asks for
 * some ahead, over the ends of parts and strips, so that the memory never rests. The first weights are asked for before
 * the kernel ahead has ended.
 */
#include "kernels/cuda/few.cuh"

enum {
    BATCH = FG_GPU_BLOCK / FG_GPU_STEP, /* steps that are asked for together */
    BATCH_WORDS = BATCH * 32,           /* weights, of 16 bytes */
    TILE_WORDS = BATCH * 16,            /* 8 rows, likewise */
    WARPS = FEW_THREADS / 32,
    BLOCKS = 2, /* of a multiprocessor */
};

/* How many batches a warp has: one is in use, the others are under way. */
enum few_size {
    FEW_SMALL,  /* for devices with little shared memory */
    FEW_PAIRED, /* two blocks a multiprocessor */
    FEW_ALONE,  /* where there is one only; that leaves room for some of the next launch's */
};

static constexpr __host__ __device__ int slots_of(int tiles, few_size size)
{
    return size == FEW_SMALL ? 2 : size == FEW_ALONE ? 6 : tiles == 1 ? 4 : 3;
}

template <int tiles> struct few_batch {
    uint4 weights[BATCH_WORDS];
    uint4 rows[tiles][TILE_WORDS]; /* matrices of 8 rows x 8 columns */
};

template <int tiles, int slots, bool gated> struct few_memory {
    few_batch<tiles> ring[WARPS][slots];
    float parts[gated ? 2 : 1][FG_GPU_PARTS * tiles * 8 * FG_GPU_STRIP];
};

/* A warp's part of the columns, in steps. */
typedef struct few_span {
    uint32_t first, end;
} few_span;

/* What a warp asks for next: a batch of its part, of a strip's gate, then of its up, then of the block's next strip. */
typedef struct few_ask {
    const uint4 *at; /* of the matrix: the lane's words of the strip */
    uint32_t strip, step;
    bool is_up;
    uint32_t slot;
} few_ask;

static __device__ __forceinline__ void find_matrix(few_ask &ask, const fg_gpu_products &set,
                                                   uint32_t lane)
{
    const fg_gpu_product &p = fg_gpu_find_product(set, ask.strip);
    const uint4 *matrix = (const uint4 *)(ask.is_up ? p.up : p.weight);
    ask.at = matrix + (size_t)(ask.strip - p.strip_first) * set.steps * 32 + lane;
}

/* A batch's weights. `to`: the lane's place. */
template <int tiles, bool whole>
static __device__ __forceinline__ void ask_weights(few_batch<tiles> *to, const uint4 *from,
                                                   uint32_t steps)
{
#pragma unroll
    for (uint32_t i = 0; i < BATCH; i++) {
        if (whole || i < steps) {
            fg_copy16_once(to->weights + i * 32, from + i * 32);
        }
    }
}

/* A batch's rows, those that there are; lane 8i + j has row j of matrices i, i + 4, ... */
template <int tiles, bool whole>
static __device__ __forceinline__ void ask_rows(few_batch<tiles> *to, const fg_gpu_products &set,
                                                uint32_t step, uint32_t steps, uint32_t lane)
{
#pragma unroll
    for (int tile = 0; tile < tiles; tile++) {
        if (tile * 8 + lane % 8 < set.rows) {
            const uint4 *from = (const uint4 *)set.in + lane;
            if (whole) {
                from += (size_t)step / BATCH * (FG_GPU_BLOCK_WORDS / 4) + tile * TILE_WORDS;
            } else {
                from += fg_gpu_pair_at(tile * 8, step * FG_GPU_STEP, set.columns) / 4;
            }
#pragma unroll
            for (uint32_t i = 0; i < TILE_WORDS / 32; i++) {
                if (whole || i * 4 + lane / 8 < 2 * steps) {
                    fg_copy16(to->rows[tile] + i * 32, from + i * 32, true);
                }
            }
        }
    }
}

/* Steps of the batch at `step`: they lie in one block of columns. */
static __device__ __forceinline__ uint32_t batch_steps(uint32_t step, uint32_t end)
{
    uint32_t block_end = step / BATCH * BATCH + BATCH;
    return (block_end < end ? block_end : end) - step;
}

/* The next batch's weights, and its rows when the kernel ahead has ended. Each time is a group of copies, also where there
 * is nothing to ask for. `ring`: the lane's. */
template <int tiles, int slots, bool gated, bool whole>
static __device__ __forceinline__ void ask_next(few_ask &ask, few_batch<tiles> *ring,
                                                const fg_gpu_products &set, uint32_t strips,
                                                const few_span &span, bool with_rows, uint32_t lane)
{
    if (ask.strip < strips) {
        few_batch<tiles> *to = fg_keep_shared(ring + ask.slot);
        uint32_t steps = whole ? BATCH : batch_steps(ask.step, span.end);
        ask_weights<tiles, whole>(to, fg_keep_global(ask.at + (size_t)ask.step * 32), steps);
        if (with_rows) {
            ask_rows<tiles, whole>(to, set, ask.step, steps, lane);
        }
        ask.step += steps;
        if (ask.step >= span.end) {
            ask.step = span.first;
            if (gated && !ask.is_up) {
                ask.is_up = true;
            } else {
                ask.is_up = false;
                ask.strip += gridDim.x;
            }
            if (ask.strip < strips) {
                find_matrix(ask, set, lane);
            }
        }
    }
    fg_copy_commit();
    ask.slot = ask.slot + 1 == slots ? 0 : ask.slot + 1;
}

/* Rows of the batches whose weights are under way. */
template <int tiles, int slots, bool gated, bool whole>
static __device__ __forceinline__ void ask_first_rows(few_batch<tiles> *ring,
                                                      const fg_gpu_products &set, uint32_t strips,
                                                      const few_span &span, uint32_t lane)
{
    uint32_t step = span.first, left = (strips - 1 - blockIdx.x) / gridDim.x + 1;
    left *= gated ? 2 : 1;
    for (int i = 0; i < slots - 1; i++) {
        if (left > 0) {
            uint32_t steps = whole ? BATCH : batch_steps(step, span.end);
            ask_rows<tiles, whole>(ring + i, set, step, steps, lane);
            step += steps;
            if (step >= span.end) {
                step = span.first;
                left--;
            }
        }
        fg_copy_commit();
    }
}

/* A part of one strip for all rows. What was used before is asked for again as soon as all lanes are done with it. */
template <int tiles, int slots, bool gated, bool whole>
static __device__ __forceinline__ void few_part(few_ask &ask, uint32_t &slot,
                                                few_batch<tiles> *ring, const fg_gpu_products &set,
                                                uint32_t strips, const few_span &span,
                                                uint32_t lane, float (*sums)[4])
{
    for (uint32_t step = span.first; step < span.end;) {
        uint32_t steps = whole ? BATCH : batch_steps(step, span.end);
        const few_batch<tiles> *batch = fg_keep_shared(ring + slot);
        fg_copy_wait<slots - 2>();
        __syncwarp();
        ask_next<tiles, slots, gated, whole>(ask, ring, set, strips, span, true, lane);
#pragma unroll
        for (uint32_t i = 0; i < BATCH; i += 2) {
            uint32_t rows[tiles][4];
#pragma unroll
            for (int tile = 0; tile < tiles; tile++) {
                fg_load_matrices(rows[tile], batch->rows[tile] + i * 16);
            }
#pragma unroll
            for (uint32_t j = 0; j < 2; j++) {
                if (whole || i + j < steps) {
                    uint4 w = batch->weights[(i + j) * 32];
                    const uint32_t a[4] = { w.x, w.y, w.z, w.w };
#pragma unroll
                    for (int tile = 0; tile < tiles; tile++) {
                        fg_mma(sums[tile], a, rows[tile][2 * j], rows[tile][2 * j + 1]);
                    }
                }
            }
        }
        slot = slot + 1 == slots ? 0 : slot + 1;
        step += steps;
    }
}

/* Blocks go through the strips in turns. `whole`: parts are whole batches. */
template <int tiles, int slots, bool gated, bool whole>
static __global__ __launch_bounds__(FEW_THREADS, BLOCKS) void few_rows(fg_gpu_products set,
                                                                       uint32_t strips)
{
    FG_SHARED_BYTES(shared);
    few_memory<tiles, slots, gated> *memory = (few_memory<tiles, slots, gated> *)shared;
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    few_span span;
    span.first = warp * set.part_steps;
    span.end = span.first + set.part_steps < set.steps ? span.first + set.part_steps : set.steps;
    bool mine = span.first < span.end;
    few_batch<tiles> *ring =
        fg_keep_shared((few_batch<tiles> *)((uint4 *)memory->ring[warp] + lane));
    few_ask ask = { nullptr, blockIdx.x, span.first, false, 0 };
    uint32_t slot = 0;
    fg_gpu_let_next();
    if (mine) {
        find_matrix(ask, set, lane);
        for (int i = 0; i < slots - 1; i++) {
            ask_next<tiles, slots, gated, whole>(ask, ring, set, strips, span, false, lane);
        }
    }
    fg_gpu_wait();
    if (mine) {
        ask_first_rows<tiles, slots, gated, whole>(ring, set, strips, span, lane);
    }
    for (uint32_t strip = blockIdx.x; strip < strips; strip += gridDim.x) {
        const fg_gpu_product &p = fg_gpu_find_product(set, strip);
        uint32_t own = strip - p.strip_first;
        few_before<tiles> before;
        if constexpr (!gated) {
            load_before<tiles>(before, set, p, own);
        }
#pragma unroll
        for (int m = 0; m < (gated ? 2 : 1) && mine; m++) {
            float sums[tiles][4] = {};
            few_part<tiles, slots, gated, whole>(ask, slot, ring, set, strips, span, lane, sums);
            put_part<tiles>(memory->parts[m], warp, tiles * 8, lane, sums);
        }
        __syncthreads();
        if constexpr (gated) {
            put_few_gated<tiles>(set, p, own, tiles * 8, memory->parts[0], fg_gpu_part_count(set),
                                 memory->parts[1]);
        } else {
            put_few<tiles>(set, p, own, tiles * 8, memory->parts[0], before);
        }
        if (strip + gridDim.x < strips) {
            __syncthreads();
        }
    }
}

template <int tiles, int slots, bool gated>
static void launch_few(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips)
{
    uint32_t most = (uint32_t)stream->device->multiprocessors * BLOCKS;
    dim3 grid(strips < most ? strips : most);
    constexpr size_t bytes = sizeof(few_memory<tiles, slots, gated>);
    if (set.part_steps % BATCH == 0 && set.steps % BATCH == 0) {
        FG_LAUNCH((few_rows<tiles, slots, gated, true>), grid, dim3(FEW_THREADS), bytes,
                  stream->stream, true, set, strips);
    } else {
        FG_LAUNCH((few_rows<tiles, slots, gated, false>), grid, dim3(FEW_THREADS), bytes,
                  stream->stream, true, set, strips);
    }
}

template <int tiles, bool gated, few_size size> static bool has_room(const fg_device *device)
{
    return fg_gpu_has_room(device, sizeof(few_memory<tiles, slots_of(tiles, size), gated>));
}

/* Where a multiprocessor has one block only, that block must keep the bus busy alone. */
template <int tiles, bool gated>
static void choose_size(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips)
{
    const fg_device *device = stream->device;
    if (strips <= (uint32_t)device->multiprocessors && has_room<tiles, gated, FEW_ALONE>(device)) {
        launch_few<tiles, slots_of(tiles, FEW_ALONE), gated>(stream, set, strips);
    } else if (has_room<tiles, gated, FEW_PAIRED>(device)) {
        launch_few<tiles, slots_of(tiles, FEW_PAIRED), gated>(stream, set, strips);
    } else {
        launch_few<tiles, slots_of(tiles, FEW_SMALL), gated>(stream, set, strips);
    }
}

template <bool gated>
static void few(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips)
{
    if (set.rows <= 8) {
        choose_size<1, gated>(stream, set, strips);
    } else {
        choose_size<2, gated>(stream, set, strips);
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

template <int tiles, bool gated, few_size size> static void prepare(const fg_device *device)
{
    constexpr int slots = slots_of(tiles, size);
    constexpr size_t bytes = sizeof(few_memory<tiles, slots, gated>);
    static_assert(bytes <= (size == FEW_SMALL ? 99 : 227) * 1024, "shared memory of a block");
    fg_gpu_allow_shared(device, few_rows<tiles, slots, gated, false>, bytes);
    fg_gpu_allow_shared(device, few_rows<tiles, slots, gated, true>, bytes);
}

template <int tiles, bool gated> static void prepare_sizes(const fg_device *device)
{
    prepare<tiles, gated, FEW_SMALL>(device);
    prepare<tiles, gated, FEW_PAIRED>(device);
    prepare<tiles, gated, FEW_ALONE>(device);
}

void fg_gpu_few_prepare(const fg_device *device)
{
    prepare_sizes<1, false>(device);
    prepare_sizes<1, true>(device);
    prepare_sizes<2, false>(device);
    prepare_sizes<2, true>(device);
}
