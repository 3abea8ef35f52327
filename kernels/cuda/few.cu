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
#ifndef FG_FEW_ALONE
#define FG_FEW_ALONE 6
#endif

enum {
    BATCH = FG_GPU_BLOCK / FG_GPU_STEP, /* steps that are asked for together */
    WEIGHT_BYTES = BATCH * 512,
    MATRICES = BATCH * 2, /* of a batch: 8 columns of all rows, 16 bytes a row */
    WARPS = FEW_THREADS / 32,
    BLOCKS = 2, /* of a multiprocessor */
};

/* Batches that a warp has: one is in use, the others are under way. As many as leave room for a multiprocessor's other
 * block, or, where it has one only, for some of the next launch's. */
static constexpr __host__ __device__ int slots_of(int tiles, bool alone)
{
    return alone ? FG_FEW_ALONE : tiles == 1 ? FG_FEW_SLOTS : 3;
}

/* Shared memory has [warp][slot], of each a batch's weights, then its rows; then the parts. */
static constexpr __host__ __device__ uint32_t slot_bytes(uint32_t rows)
{
    return WEIGHT_BYTES + MATRICES * rows * 16;
}

static constexpr __host__ __device__ uint32_t part_floats(uint32_t rows)
{
    return FG_GPU_PARTS * rows * FG_GPU_STRIP;
}

static constexpr size_t memory_bytes(int slots, bool gated, uint32_t rows)
{
    return WARPS * slots * slot_bytes(rows) + part_floats(rows) * (gated ? 8 : 4);
}

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

/* A warp's ring, and how its lane copies and reads. */
template <int tiles> struct few_ring {
    static constexpr int pieces = tiles * 2; /* 16 bytes of rows that a lane copies, at most */
    uint8_t *at;                             /* the first slot; the lane's weights */
    uint32_t bytes;                          /* of a slot */
    uint32_t rows;
    uint32_t from[pieces]; /* in a block of rows, of 16 bytes */
    uint32_t read[tiles];  /* in a slot: the lane's word of each tile's rows */
};

/* Piece j of a lane is 16 bytes lane + 32 j of the batch's rows. Where there is no such row, a lane reads the last one: sums
 * of rows that there are not are taken by nobody. */
template <int tiles>
static __device__ __forceinline__ few_ring<tiles> find_ring(uint8_t *at, uint32_t rows,
                                                            uint32_t lane)
{
    few_ring<tiles> ring;
    ring.at = fg_keep_shared(at + lane * 16);
    ring.bytes = slot_bytes(rows);
    ring.rows = rows;
#pragma unroll
    for (uint32_t j = 0; j < ring.pieces; j++) {
        uint32_t i = lane + 32 * j, row = i % rows;
        ring.from[j] = i / rows * 8 + row / 8 * FG_GPU_BLOCK + row % 8;
    }
#pragma unroll
    for (int tile = 0; tile < tiles; tile++) {
        uint32_t row = tile * 8 + lane / 4;
        row = row < rows ? row : rows - 1;
        ring.read[tile] = WEIGHT_BYTES + row * 16 + lane % 4 * 4 - lane * 16;
    }
    return ring;
}

/* Steps of the batch at `step`: they lie in one block of columns. */
static __device__ __forceinline__ uint32_t batch_steps(uint32_t step, uint32_t end)
{
    uint32_t block_end = step / BATCH * BATCH + BATCH;
    return (block_end < end ? block_end : end) - step;
}

/* A batch's weights. `to`: the lane's place in a slot. */
template <bool whole>
static __device__ __forceinline__ void ask_weights(uint8_t *to, const uint4 *from, uint32_t steps)
{
#pragma unroll
    for (uint32_t i = 0; i < BATCH; i++) {
        if (whole || i < steps) {
            fg_copy16_once(to + i * 512, from + i * 32);
        }
    }
}

/* A batch's rows. */
template <int tiles, bool whole>
static __device__ __forceinline__ void ask_rows(uint8_t *to, const few_ring<tiles> &ring,
                                                const fg_gpu_products &set, uint32_t step,
                                                uint32_t steps, uint32_t lane)
{
    const uint4 *in = (const uint4 *)set.in;
    uint32_t count = (whole ? MATRICES : 2 * steps) * ring.rows;
    if (whole) {
        in += (size_t)(step / BATCH) * (FG_GPU_BLOCK_WORDS / 4);
    }
#pragma unroll
    for (uint32_t j = 0; j < ring.pieces; j++) {
        uint32_t i = lane + 32 * j;
        if (i < count) {
            size_t from =
                whole ? ring.from[j]
                      : fg_gpu_pair_at(i % ring.rows, step * FG_GPU_STEP + i / ring.rows * 8,
                                       set.columns) /
                            4;
            fg_copy16(to + WEIGHT_BYTES + j * 512, in + from, true);
        }
    }
}

/* The next batch's weights, and its rows when the kernel ahead has ended. Each time is a group of copies, also where there
 * is nothing to ask for. */
template <int tiles, int slots, bool gated, bool whole>
static __device__ __forceinline__ void ask_next(few_ask &ask, const few_ring<tiles> &ring,
                                                const fg_gpu_products &set, uint32_t strips,
                                                const few_span &span, bool with_rows, uint32_t lane)
{
    if (ask.strip < strips) {
        uint8_t *to = fg_keep_shared(ring.at + ask.slot * ring.bytes);
        uint32_t steps = whole ? BATCH : batch_steps(ask.step, span.end);
        ask_weights<whole>(to, fg_keep_global(ask.at + (size_t)ask.step * 32), steps);
        if (with_rows) {
            ask_rows<tiles, whole>(to, ring, set, ask.step, steps, lane);
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
static __device__ __forceinline__ void ask_first_rows(const few_ring<tiles> &ring,
                                                      const fg_gpu_products &set, uint32_t strips,
                                                      const few_span &span, uint32_t lane)
{
    uint32_t step = span.first, left = (strips - 1 - blockIdx.x) / gridDim.x + 1;
    left *= gated ? 2 : 1;
    for (int i = 0; i < slots - 1; i++) {
        if (left > 0) {
            uint32_t steps = whole ? BATCH : batch_steps(step, span.end);
            ask_rows<tiles, whole>(ring.at + i * ring.bytes, ring, set, step, steps, lane);
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
                                                const few_ring<tiles> &ring,
                                                const fg_gpu_products &set, uint32_t strips,
                                                const few_span &span, uint32_t lane,
                                                float (*sums)[4])
{
    for (uint32_t step = span.first; step < span.end;) {
        uint32_t steps = whole ? BATCH : batch_steps(step, span.end);
        const uint8_t *batch = fg_keep_shared(ring.at + slot * ring.bytes);
        fg_copy_wait<slots - 2>();
        __syncwarp();
        ask_next<tiles, slots, gated, whole>(ask, ring, set, strips, span, true, lane);
#pragma unroll
        for (uint32_t i = 0; i < BATCH; i++) {
            if (whole || i < steps) {
                uint4 w = *(const uint4 *)(batch + i * 512);
                const uint32_t a[4] = { w.x, w.y, w.z, w.w };
#pragma unroll
                for (int tile = 0; tile < tiles; tile++) {
                    const uint8_t *rows = batch + (int32_t)ring.read[tile] + i * ring.rows * 32;
                    fg_mma(sums[tile], a, *(const uint32_t *)rows,
                           *(const uint32_t *)(rows + ring.rows * 16));
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
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    few_span span;
    span.first = warp * set.part_steps;
    span.end = span.first + set.part_steps < set.steps ? span.first + set.part_steps : set.steps;
    bool mine = span.first < span.end;
    few_ring<tiles> ring =
        find_ring<tiles>(shared + warp * slots * slot_bytes(set.rows), set.rows, lane);
    float *parts = (float *)(shared + WARPS * slots * ring.bytes);
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
        uint32_t own = strip - p.strip_first, up = part_floats(set.rows);
        few_before<tiles> before;
        if constexpr (!gated) {
            load_before<tiles>(before, set, p, own);
        }
#pragma unroll
        for (int m = 0; m < (gated ? 2 : 1) && mine; m++) {
            float sums[tiles][4] = {};
            few_part<tiles, slots, gated, whole>(ask, slot, ring, set, strips, span, lane, sums);
            put_part<tiles>(parts + m * up, warp, set.rows, lane, sums);
        }
        __syncthreads();
        if constexpr (gated) {
            put_few_gated<tiles>(set, p, own, set.rows, parts, fg_gpu_part_count(set), parts + up);
        } else {
            put_few<tiles>(set, p, own, set.rows, parts, before);
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
    size_t bytes = memory_bytes(slots, gated, set.rows);
    if (set.part_steps % BATCH == 0 && set.steps % BATCH == 0) {
        FG_LAUNCH((few_rows<tiles, slots, gated, true>), grid, dim3(FEW_THREADS), bytes,
                  stream->stream, true, set, strips);
    } else {
        FG_LAUNCH((few_rows<tiles, slots, gated, false>), grid, dim3(FEW_THREADS), bytes,
                  stream->stream, true, set, strips);
    }
}

/* Where a multiprocessor has one block only, that block must keep the bus busy alone. */
template <int tiles, bool gated>
static void choose_slots(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips)
{
    if (strips <= (uint32_t)stream->device->multiprocessors) {
        launch_few<tiles, slots_of(tiles, true), gated>(stream, set, strips);
    } else {
        launch_few<tiles, slots_of(tiles, false), gated>(stream, set, strips);
    }
}

template <bool gated>
static void few(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips)
{
    if (set.rows <= 8) {
        choose_slots<1, gated>(stream, set, strips);
    } else {
        choose_slots<2, gated>(stream, set, strips);
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

template <int tiles, int slots, bool gated, bool whole> static void prepare(void)
{
    constexpr size_t bytes = memory_bytes(slots, gated, tiles * 8);
    static_assert(bytes <= 227 * 1024, "shared memory of a block");
    fg_gpu_check(cudaFuncSetAttribute(few_rows<tiles, slots, gated, whole>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
                 "preparing kernels");
}

template <int tiles, bool gated> static void prepare_slots(void)
{
    prepare<tiles, slots_of(tiles, true), gated, false>();
    prepare<tiles, slots_of(tiles, true), gated, true>();
    prepare<tiles, slots_of(tiles, false), gated, false>();
    prepare<tiles, slots_of(tiles, false), gated, true>();
}

void fg_gpu_few_prepare(void)
{
    prepare_slots<1, false>();
    prepare_slots<1, true>();
    prepare_slots<2, false>();
    prepare_slots<2, true>();
}
