/*
 * Products of few rows: a block makes 16 outputs of all rows, then those of its next strip. Warp p has part p of the
 * columns: its weights, each byte once, and its rows come into shared memory in batches of 64 columns that it asks for
 * some ahead, over the ends of parts and strips, so that the memory never rests. The first weights are asked for before
 * the kernel ahead has ended.
 */
#include "kernels/cuda/few.cuh"

#ifndef FG_FEW_SLOTS
#define FG_FEW_SLOTS 4
#endif
#ifndef FG_FEW_ALONE_SLOTS
#define FG_FEW_ALONE_SLOTS 7
#endif

enum {
    BATCH = FG_GPU_BLOCK / FG_GPU_STEP, /* steps that are asked for together */
    BATCH_WORDS = BATCH * 32,           /* weights, of 16 bytes */
    TILE_WORDS = BATCH * 16,            /* 8 rows, likewise */
    WARPS = FEW_THREADS / 32,
    BLOCKS = 2, /* of a multiprocessor */
};

/* Batches that a warp has: one is in use, the others are under way. As many as leave room for another block, or, where a
 * multiprocessor has one only, for one of the next launch. */
static constexpr __host__ __device__ int slots_of(int tiles, bool resident, bool alone)
{
    return !alone ? tiles == 1 ? FG_FEW_SLOTS : 3 : resident ? FG_FEW_ALONE_SLOTS : 6;
}

/* What a kernel is made for. `whole`: parts are whole batches; `resident`: rows stay in shared memory. */
template <int tile_count, bool is_gated, bool is_alone, bool is_whole, bool is_resident>
struct few_shape {
    static constexpr int tiles = tile_count, slots = slots_of(tile_count, is_resident, is_alone);
    static constexpr bool gated = is_gated, whole = is_whole, resident = is_resident;
};

template <class shape> struct few_batch {
    uint4 weights[BATCH_WORDS];
    /* Matrices of 8 rows x 8 columns. */
    uint4 rows[shape::resident ? 1 : shape::tiles][shape::resident ? 1 : TILE_WORDS];
};

/* Behind it are rows that stay. */
template <class shape> struct few_memory {
    few_batch<shape> ring[WARPS][shape::slots];
    float parts[shape::gated ? 2 : 1][FG_GPU_PARTS * shape::tiles * 8 * FG_GPU_STRIP];
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
template <class shape>
static __device__ __forceinline__ void ask_weights(few_batch<shape> *to, const uint4 *from,
                                                   uint32_t steps)
{
#pragma unroll
    for (uint32_t i = 0; i < BATCH; i++) {
        if (shape::whole || i < steps) {
            fg_copy16_once(to->weights + i * 32, from + i * 32);
        }
    }
}

/* A batch's rows, those that there are; lane 8i + j has row j of matrices i, i + 4, ... */
template <class shape>
static __device__ __forceinline__ void ask_rows(few_batch<shape> *to, const fg_gpu_products &set,
                                                uint32_t step, uint32_t steps, uint32_t lane)
{
#pragma unroll
    for (int tile = 0; tile < shape::tiles; tile++) {
        if (tile * 8 + lane % 8 < set.rows) {
            const uint4 *from = (const uint4 *)set.in + lane;
            if (shape::whole) {
                from += (size_t)step / BATCH * (FG_GPU_BLOCK_WORDS / 4) + tile * TILE_WORDS;
            } else {
                from += fg_gpu_pair_at(tile * 8, step * FG_GPU_STEP, set.columns) / 4;
            }
#pragma unroll
            for (uint32_t i = 0; i < TILE_WORDS / 32; i++) {
                if (shape::whole || i * 4 + lane / 8 < 2 * steps) {
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
template <class shape>
static __device__ __forceinline__ void ask_next(few_ask &ask, few_batch<shape> *ring,
                                                const fg_gpu_products &set, uint32_t strips,
                                                const few_span &span, bool with_rows, uint32_t lane)
{
    if (ask.strip < strips) {
        few_batch<shape> *to = fg_keep_shared(ring + ask.slot);
        uint32_t steps = shape::whole ? BATCH : batch_steps(ask.step, span.end);
        ask_weights<shape>(to, fg_keep_global(ask.at + (size_t)ask.step * 32), steps);
        if (!shape::resident && with_rows) {
            ask_rows<shape>(to, set, ask.step, steps, lane);
        }
        ask.step += steps;
        if (ask.step >= span.end) {
            ask.step = span.first;
            if (shape::gated && !ask.is_up) {
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
    ask.slot = ask.slot + 1 == shape::slots ? 0 : ask.slot + 1;
}

/* Rows of the batches whose weights are under way. */
template <class shape>
static __device__ __forceinline__ void ask_first_rows(few_batch<shape> *ring,
                                                      const fg_gpu_products &set, uint32_t strips,
                                                      const few_span &span, uint32_t lane)
{
    uint32_t step = span.first, left = (strips - 1 - blockIdx.x) / gridDim.x + 1;
    left *= shape::gated ? 2 : 1;
    for (int i = 0; i < shape::slots - 1; i++) {
        if (left > 0) {
            uint32_t steps = shape::whole ? BATCH : batch_steps(step, span.end);
            ask_rows<shape>(ring + i, set, step, steps, lane);
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
template <class shape>
static __device__ __forceinline__ void few_part(few_ask &ask, uint32_t &slot,
                                                few_batch<shape> *ring, const few_resident &stay,
                                                const fg_gpu_products &set, uint32_t strips,
                                                const few_span &span, uint32_t lane,
                                                float (*sums)[4])
{
    for (uint32_t step = span.first; step < span.end;) {
        uint32_t steps = shape::whole ? BATCH : batch_steps(step, span.end);
        const few_batch<shape> *batch = fg_keep_shared(ring + slot);
        fg_copy_wait<shape::slots - 2>();
        __syncwarp();
        ask_next<shape>(ask, ring, set, strips, span, true, lane);
#pragma unroll
        for (uint32_t i = 0; i < BATCH; i += 2) {
            uint32_t rows[shape::tiles][4];
#pragma unroll
            for (int tile = 0; tile < shape::tiles; tile++) {
                if constexpr (!shape::resident) {
                    fg_load_matrices(rows[tile], batch->rows[tile] + i * 16);
                }
            }
#pragma unroll
            for (uint32_t j = 0; j < 2; j++) {
                if (shape::whole || i + j < steps) {
                    uint4 w = batch->weights[(i + j) * 32];
                    if constexpr (shape::resident) {
                        load_resident(rows[0] + 2 * j, stay, step + i + j);
                    }
                    const uint32_t a[4] = { w.x, w.y, w.z, w.w };
#pragma unroll
                    for (int tile = 0; tile < shape::tiles; tile++) {
                        fg_mma(sums[tile], a, rows[tile][2 * j], rows[tile][2 * j + 1]);
                    }
                }
            }
        }
        slot = slot + 1 == shape::slots ? 0 : slot + 1;
        step += steps;
    }
}

/* Blocks go through the strips in turns. `whole`: parts are shape::whole batches. */
template <class shape>
static __global__ __launch_bounds__(FEW_THREADS, BLOCKS) void few_rows(fg_gpu_products set,
                                                                       uint32_t strips)
{
    FG_SHARED_BYTES(shared);
    few_memory<shape> *memory = (few_memory<shape> *)shared;
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    few_span span;
    span.first = warp * set.part_steps;
    span.end = span.first + set.part_steps < set.steps ? span.first + set.part_steps : set.steps;
    bool mine = span.first < span.end;
    few_batch<shape> *ring =
        fg_keep_shared((few_batch<shape> *)((uint4 *)memory->ring[warp] + lane));
    few_ask ask = { nullptr, blockIdx.x, span.first, false, 0 };
    uint32_t slot = 0;
    uint4 *area = (uint4 *)(memory + 1);
    few_resident stay = find_resident(area, set.rows, lane);
    fg_gpu_norm_kept norm_weights;
    fg_gpu_let_next();
    if (mine) {
        find_matrix(ask, set, lane);
        for (int i = 0; i < shape::slots - 1; i++) {
            ask_next<shape>(ask, ring, set, strips, span, false, lane);
        }
    }
    if (shape::resident && set.norm.in != nullptr) {
        fg_gpu_norm_keep(&norm_weights, set.norm.weight, set.norm_columns);
    }
    fg_gpu_wait();
    if (shape::resident && set.norm.in != nullptr) {
        norm_resident((uint32_t *)area, set, norm_weights);
    } else if (shape::resident && mine) {
        copy_resident(area, set, span.first, span.end, lane);
    } else if (mine) {
        ask_first_rows<shape>(ring, set, strips, span, lane);
    }
    for (uint32_t strip = blockIdx.x; strip < strips; strip += gridDim.x) {
        const fg_gpu_product &p = fg_gpu_find_product(set, strip);
        uint32_t own = strip - p.strip_first;
        few_before<shape::tiles> before;
        if constexpr (!shape::gated) {
            load_before<shape::tiles>(before, set, p, own);
        }
#pragma unroll
        for (int m = 0; m < (shape::gated ? 2 : 1) && mine; m++) {
            float sums[shape::tiles][4] = {};
            few_part<shape>(ask, slot, ring, stay, set, strips, span, lane, sums);
            put_part<shape::tiles>(memory->parts[m], warp, lane, sums);
        }
        __syncthreads();
        if constexpr (shape::gated) {
            put_few_gated<shape::tiles>(set, p, own, memory->parts[0], fg_gpu_part_count(set),
                                        memory->parts[1]);
        } else {
            put_few<shape::tiles>(set, p, own, memory->parts[0], before);
        }
        if (strip + gridDim.x < strips) {
            __syncthreads();
        }
    }
}

template <int tiles, bool gated, bool alone, bool resident>
static void launch_few(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips)
{
    typedef few_shape<tiles, gated, alone, true, resident> whole;
    typedef few_shape<tiles, gated, alone, false, resident> other;
    uint32_t most = (uint32_t)stream->device->multiprocessors * BLOCKS;
    dim3 grid(strips < most ? strips : most);
    size_t bytes = sizeof(few_memory<whole>) + (resident ? set.rows * set.columns * 2 : 0);
    if (set.part_steps % BATCH == 0 && set.steps % BATCH == 0) {
        FG_LAUNCH(few_rows<whole>, grid, dim3(FEW_THREADS), bytes, stream->stream, true, set,
                  strips);
    } else {
        FG_LAUNCH(few_rows<other>, grid, dim3(FEW_THREADS), bytes, stream->stream, true, set,
                  strips);
    }
}

/* Where a multiprocessor has one block only, that block must keep the bus busy alone. */
template <int tiles, bool gated, bool resident>
static void choose_slots(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips)
{
    if (strips <= (uint32_t)stream->device->multiprocessors) {
        launch_few<tiles, gated, true, resident>(stream, set, strips);
    } else {
        launch_few<tiles, gated, false, resident>(stream, set, strips);
    }
}

template <bool gated>
static void few(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips)
{
    if (fg_gpu_is_resident(set)) {
        choose_slots<1, gated, true>(stream, set, strips);
    } else if (set.rows <= 8) {
        choose_slots<1, gated, false>(stream, set, strips);
    } else {
        choose_slots<2, gated, false>(stream, set, strips);
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

template <class shape> static void prepare(void)
{
    constexpr size_t bytes =
        sizeof(few_memory<shape>) + (shape::resident ? FG_GPU_RESIDENT_BYTES : 0);
    static_assert(bytes <= 227 * 1024, "shared memory of a block");
    fg_gpu_check(cudaFuncSetAttribute(few_rows<shape>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)bytes),
                 "preparing kernels");
}

template <int tiles, bool gated, bool resident> static void prepare_all(void)
{
    prepare<few_shape<tiles, gated, false, false, resident>>();
    prepare<few_shape<tiles, gated, false, true, resident>>();
    prepare<few_shape<tiles, gated, true, false, resident>>();
    prepare<few_shape<tiles, gated, true, true, resident>>();
}

void fg_gpu_few_prepare(void)
{
    prepare_all<1, false, true>();
    prepare_all<1, true, true>();
    prepare_all<1, false, false>();
    prepare_all<1, true, false>();
    prepare_all<2, false, false>();
    prepare_all<2, true, false>();
}
