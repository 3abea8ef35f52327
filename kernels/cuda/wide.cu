/*
 * Products of many rows on Hopper: a block makes 128 outputs of `width` rows, then those of the next tile that is its own.
 * Weights and rows come into shared memory by bulk copies, which four warps ask for some stages ahead, over the ends of
 * tiles too; a stage is 64 columns. Two groups of four warps have 64 outputs each: a warp reads its 16 outputs' weights
 * into registers, the rows are read from shared memory by the products.
 *
 * What a tile takes in for each product is what limits it, so tiles are as wide as registers allow.
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

enum {
    WIDE_GROUPS = 2,
    WIDE_FEEDERS = 4, /* warps that ask for copies */
    WIDE_THREADS = WIDE_GROUPS * 128 + WIDE_FEEDERS * 32,
    WIDE_STRIPS = WIDE_GROUPS * 4,
    WIDE_STEPS = FG_GPU_BLOCK / FG_GPU_STEP, /* of a stage */
    MIDDLE_WIDTH = 64,                       /* rows of a tile where there are not many more */
    MIDDLE_ROWS = 192,
    WIDTH = 128, /* where there are */
    WIDEST = 192,
    BLOCK_BYTES = FG_GPU_BLOCK_WORDS * 4, /* of rows */
    TILE_BYTES = BLOCK_BYTES / 8,         /* 8 rows of it */
    STRIP_BYTES = WIDE_STEPS * 512,       /* weights of 16 outputs */
    BAND = 16, /* tiles of rows that blocks go through together, so that they stay in the cache */
    CHUNK = 4, /* tiles of 8 rows whose outputs are written together */
    CHUNK_SUMS = CHUNK * 4, /* of a thread */
};

template <int width> constexpr uint32_t wide_stages = width == WIDTH ? 6 : 5;

template <int width> struct wide_stage {
    uint8_t rows[width / FG_GPU_BLOCK][BLOCK_BYTES];
    uint8_t weights[WIDE_STRIPS][STRIP_BYTES];
};

template <int width> struct wide_memory {
    wide_stage<width> stages[wide_stages<width>];
    float passed[2][WIDE_GROUPS][CHUNK_SUMS / 2][128]; /* from one group to the other */
    uint64_t full[wide_stages<width>], empty[wide_stages<width>];
};

/* A launch's tiles: blocks go through them in turn. */
typedef struct wide_tiles {
    uint32_t row_tiles, strip_tiles;
    uint32_t count;
} wide_tiles;

typedef struct wide_place {
    uint32_t strip; /* of the launch */
    uint32_t row;
    uint32_t stage_first, stage_end;
} wide_place;

/* The stage that is next: its slot, and how often all were used, odd or even. */
typedef struct wide_turn {
    uint32_t slot, lap;
} wide_turn;

/* Where the sums of parts go when several blocks share them: [part][row][output of all strips]. */
typedef struct wide_split {
    float *work;
    uint32_t all_outputs, parts_each;
} wide_split;

template <int width> static __device__ __forceinline__ void advance(wide_turn *turn)
{
    turn->slot++;
    if (turn->slot == wide_stages<width>) {
        turn->slot = 0;
        turn->lap ^= 1;
    }
}

template <int width, bool gated, bool shared_parts>
static __device__ __forceinline__ wide_place find_place(const fg_gpu_products &set,
                                                        const wide_split &split,
                                                        const wide_tiles &tiles, uint32_t tile)
{
    constexpr uint32_t strips_each = gated ? WIDE_STRIPS / 2 : WIDE_STRIPS;
    uint32_t band = tile / (BAND * tiles.strip_tiles);
    uint32_t first = band * BAND;
    uint32_t rows = tiles.row_tiles - first < BAND ? tiles.row_tiles - first : BAND;
    uint32_t inner = tile - band * BAND * tiles.strip_tiles;
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
                                                          const wide_place &place, uint32_t index)
{
    const fg_gpu_product &p = fg_gpu_find_product(set, place.strip);
    uint32_t strip = place.strip - p.strip_first + (gated ? index % 4 : index);
    const uint8_t *weight = gated && index >= 4 ? p.up : p.weight;
    return strip * FG_GPU_STRIP < p.outputs ? weight + (size_t)strip * set.steps * 512 : nullptr;
}

/* A tile's stages, by four warps, since a warp asks for one copy after the other. The first copies are the blocks of rows,
 * the others are the strips; each warp has every fourth. A stage is written when nobody reads it any more, and full when
 * each warp has said how much it asks for (nothing too: so none falls behind by a lap) and all of that is there. */
template <int width, bool gated>
static __device__ __forceinline__ void feed(wide_memory<width> *memory, const fg_gpu_products &set,
                                            const wide_place &place, uint32_t warp, uint32_t lane,
                                            wide_turn *turn)
{
    constexpr uint32_t row_blocks = width / FG_GPU_BLOCK;
    const uint8_t *from = nullptr;
    uint32_t bytes = 0, stage_bytes = 0, to = 0, index = lane * WIDE_FEEDERS + warp;
    if (index < row_blocks) {
        uint32_t row = place.row + index * FG_GPU_BLOCK;
        if (row < set.rows) {
            from = (const uint8_t *)(set.in + fg_gpu_pair_at(row, 0, set.columns));
            bytes = stage_bytes = BLOCK_BYTES;
        }
        to = index * BLOCK_BYTES;
    } else if (index < row_blocks + WIDE_STRIPS) {
        from = strip_at<gated>(set, place, index - row_blocks);
        bytes = from != nullptr ? STRIP_BYTES : 0;
        stage_bytes = STRIP_BYTES;
        to = row_blocks * BLOCK_BYTES + (index - row_blocks) * STRIP_BYTES;
    }
    from += (size_t)place.stage_first * stage_bytes;
    uint32_t all = bytes;
    for (int apart = 16; apart > 0; apart /= 2) {
        all += __shfl_xor_sync(0xFFFFFFFFu, all, apart);
    }
    for (uint32_t i = place.stage_first; i < place.stage_end; i++, from += stage_bytes) {
        uint64_t *full = &memory->full[turn->slot];
        uint8_t *there = (uint8_t *)&memory->stages[turn->slot] + to;
        fg_barrier_wait(&memory->empty[turn->slot], turn->lap ^ 1);
        if (lane == 0) {
            fg_barrier_expect(full, all);
        }
        __syncwarp();
        if (bytes > 0) {
            fg_bulk_copy(there, from, bytes, full);
        }
        advance<width>(turn);
    }
}

/* This warp has read the stage. */
template <int width>
static __device__ __forceinline__ void give_back(wide_memory<width> *memory, uint32_t slot,
                                                 uint32_t lane)
{
    if (lane == 0) {
        fg_barrier_arrive(&memory->empty[slot]);
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
                                               uint32_t lane, wide_turn *turn, float *totals)
{
    float sums[width / 2];
    uint32_t now[2][4], next[2][4], last = 0;
    uint32_t part_stages = set.part_steps / WIDE_STEPS;
    uint32_t part = place.stage_first / part_stages;
#pragma unroll
    for (int i = 0; i < width / 2; i++) {
        sums[i] = 0.0f;    /* not used: so it takes no register between tiles */
        totals[i] = -0.0f; /* added to anything it changes no bit */
    }
    fg_barrier_wait(&memory->full[turn->slot], turn->lap);
    load_weights<2>(now, memory->stages[turn->slot].weights[index], 0, lane);
    for (uint32_t first = place.stage_first; first < place.stage_end; first += part_stages) {
        uint32_t end =
            first + part_stages < place.stage_end ? first + part_stages : place.stage_end;
        for (uint32_t i = first; i < end; i++) {
            const wide_stage<width> *stage = &memory->stages[turn->slot];
            uint32_t rows = fg_shared_at(stage->rows);
            take_steps<width>(rows, sums, now, i > first ? 1 : 0);
            if (i > place.stage_first) {
                give_back<width>(memory, last, lane);
            }
            load_weights<2>(next, stage->weights[index], 2, lane);
            take_steps<width>(rows + 512, sums, next, 1);
            last = turn->slot;
            advance<width>(turn);
            if (i + 1 < place.stage_end) {
                fg_barrier_wait(&memory->full[turn->slot], turn->lap);
                load_weights<2>(now, memory->stages[turn->slot].weights[index], 0, lane);
            }
        }
        fg_wgmma_wait<0>();
        if constexpr (shared_parts) {
            put_part<width>(split, set, part++, place.row, (place.strip + index) * FG_GPU_STRIP,
                            lane, sums);
        } else {
#pragma unroll
            for (int i = 0; i < width / 2; i++) {
                totals[i] = __fadd_rn(totals[i], sums[i]);
            }
        }
    }
    give_back<width>(memory, last, lane);
}

/* A chunk of a thread's sums: of rows `row`, row + 1 and those 8, 16, .. further, outputs `output` and 8 further. What is
 * added to is read for the whole chunk at once. */
template <bool add>
static __device__ __forceinline__ void put_sums(const fg_gpu_product &p, uint32_t rows,
                                                uint32_t row, uint32_t output, const float *sums)
{
    uint8_t *out = (uint8_t *)(p.out + (size_t)row * p.stride + output);
    uint32_t row_bytes = p.stride * 4;
    if (row + (CHUNK - 1) * 8 + 1 < rows && output + 8 < p.outputs) {
        float before[CHUNK_SUMS];
#pragma unroll
        for (uint32_t i = 0; add && i < CHUNK_SUMS; i++) {
            before[i] = ((float *)(out + (size_t)(i / 4 * 8 + i % 2) * row_bytes))[i % 4 / 2 * 8];
        }
#pragma unroll
        for (uint32_t i = 0; i < CHUNK_SUMS; i++) {
            float *at = (float *)(out + (size_t)(i / 4 * 8 + i % 2) * row_bytes) + i % 4 / 2 * 8;
            *at = add ? __fadd_rn(before[i], sums[i]) : sums[i];
        }
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < CHUNK_SUMS; i++) {
        fg_gpu_put_out(p, rows, row + i / 4 * 8 + i % 2, output + i % 4 / 2 * 8, sums[i]);
    }
}

/* Gates are in the threads of the first group, ups in those of the second: each passes half of a chunk to the other. Memory
 * that a chunk used is written again two chunks later: by then both groups have met at the chunk between. */
template <int width>
static __device__ __forceinline__ void put_gates(wide_memory<width> *memory,
                                                 const fg_gpu_product &p, uint32_t rows,
                                                 uint32_t row, uint32_t output, uint32_t group,
                                                 uint32_t chunk, const float *sums)
{
    uint32_t thread = threadIdx.x % 128, g = threadIdx.x % 32 / 4;
    float(*to)[128] = memory->passed[chunk % 2][group];
    float(*from)[128] = memory->passed[chunk % 2][1 - group];
#pragma unroll
    for (int i = 0; i < CHUNK_SUMS / 2; i++) {
        to[i][thread] = group == 0 ? sums[CHUNK_SUMS / 2 + i] : sums[i];
    }
    asm volatile("bar.sync 1, 256;" ::: "memory");
    row += group * (CHUNK / 2) * 8;
#pragma unroll
    for (int tile = 0; tile < CHUNK / 2; tile++) {
        float made[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float other = from[4 * tile + i][thread];
            float gate = group == 0 ? sums[4 * tile + i] : other;
            float up = group == 0 ? other : sums[CHUNK_SUMS / 2 + 4 * tile + i];
            made[i] = __fmul_rn(fg_gpu_silu(gate), up);
        }
        fg_gpu_put_gated(p, rows, row + tile * 8, output, g, made[0], made[1]);
        fg_gpu_put_gated(p, rows, row + tile * 8, output + 8, g, made[2], made[3]);
    }
}

template <int width, bool gated>
static __device__ __forceinline__ void put_tile(wide_memory<width> *memory,
                                                const fg_gpu_products &set, const wide_place &place,
                                                uint32_t index, uint32_t lane, const float *totals)
{
    const fg_gpu_product &p = fg_gpu_find_product(set, place.strip);
    uint32_t strip = place.strip - p.strip_first + (gated ? index % 4 : index);
    uint32_t output = strip * FG_GPU_STRIP + lane / 4, row = place.row + lane % 4 * 2;
#pragma unroll
    for (int chunk = 0; chunk < width / 8 / CHUNK; chunk++, row += CHUNK * 8) {
        const float *sums = totals + chunk * CHUNK_SUMS;
        if constexpr (gated) {
            put_gates<width>(memory, p, set.rows, row, output, index / 4, chunk, sums);
        } else if (p.accumulate) {
            put_sums<true>(p, set.rows, row, output, sums);
        } else {
            put_sums<false>(p, set.rows, row, output, sums);
        }
    }
}

template <int width, bool gated, bool shared_parts>
static __global__ __launch_bounds__(WIDE_THREADS, 1) void wide_rows(fg_gpu_products set,
                                                                    wide_split split,
                                                                    wide_tiles tiles)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    FG_SHARED_BYTES(shared);
    wide_memory<width> *memory = (wide_memory<width> *)shared;
    uint32_t group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    wide_turn turn = {};
    if (threadIdx.x == 0) {
        for (int i = 0; i < wide_stages<width>; i++) {
            fg_barrier_init(&memory->full[i], WIDE_FEEDERS);
            fg_barrier_init(&memory->empty[i], WIDE_GROUPS * 4);
        }
        fg_barrier_made();
    }
    __syncthreads();
    fg_gpu_let_next();
    fg_gpu_wait();
    if (group == WIDE_GROUPS) {
        fg_fewer_registers<40>();
        fg_bulk_fence();
        for (uint32_t t = blockIdx.x; t < tiles.count; t += gridDim.x) {
            feed<width, gated>(memory, set,
                               find_place<width, gated, shared_parts>(set, split, tiles, t), warp,
                               lane, &turn);
        }
    } else {
        fg_more_registers<232>();
        uint32_t index = group * 4 + warp;
        for (uint32_t t = blockIdx.x; t < tiles.count; t += gridDim.x) {
            wide_place place = find_place<width, gated, shared_parts>(set, split, tiles, t);
            float totals[width / 2];
            consume<width, shared_parts>(memory, set, split, place, index, lane, &turn, totals);
            if constexpr (!shared_parts) { /* else another kernel adds them */
                put_tile<width, gated>(memory, set, place, index, lane, totals);
            }
        }
    }
#endif
}

static wide_tiles count_tiles(const fg_gpu_products &set, uint32_t strips, bool gated,
                              uint32_t width)
{
    uint32_t strips_each = gated ? WIDE_STRIPS / 2 : WIDE_STRIPS;
    uint32_t row_tiles = (set.rows + width - 1) / width;
    uint32_t strip_tiles = (strips + strips_each - 1) / strips_each;
    return { row_tiles, strip_tiles, row_tiles * strip_tiles };
}

template <int width, bool gated, bool shared_parts>
static void launch(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips,
                   const wide_split &split)
{
    wide_tiles tiles = count_tiles(set, strips, gated, width);
    uint32_t parts = (set.steps + set.part_steps - 1) / set.part_steps;
    uint32_t most = (uint32_t)stream->device->multiprocessors;
    dim3 grid(tiles.count < most ? tiles.count : most);
    if constexpr (shared_parts) {
        grid = dim3(tiles.count, (parts + split.parts_each - 1) / split.parts_each);
    }
    FG_LAUNCH((wide_rows<width, gated, shared_parts>), grid, dim3(WIDE_THREADS),
              sizeof(wide_memory<width>), stream->stream, true, set, split, tiles);
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

/* What the tiles that one block goes through take, about, in rows: each has a beginning and an end, and takes in more for a
 * product the fewer its rows are. */
static uint32_t time_of(const fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips,
                        bool gated, uint32_t width)
{
    enum { MORE = 64 };
    wide_tiles tiles = count_tiles(set, strips, gated, width);
    uint32_t blocks = (uint32_t)stream->device->multiprocessors;
    return (tiles.count + blocks - 1) / blocks * (width + MORE);
}

template <bool gated>
static void launch_widest(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips)
{
    wide_split none = {};
    if (time_of(stream, set, strips, gated, WIDTH) < time_of(stream, set, strips, gated, WIDEST)) {
        launch<WIDTH, gated, false>(stream, set, strips, none);
    } else {
        launch<WIDEST, gated, false>(stream, set, strips, none);
    }
}

bool fg_gpu_wide(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips, bool gated,
                 bool may_split)
{
    if (!stream->device->wide || set.part_steps % WIDE_STEPS != 0 || set.steps % WIDE_STEPS != 0) {
        return false;
    }
    wide_split none = {};
    if (set.rows > MIDDLE_ROWS) {
        gated ? launch_widest<true>(stream, set, strips)
              : launch_widest<false>(stream, set, strips);
    } else if (gated) {
        launch<MIDDLE_WIDTH, true, false>(stream, set, strips, none);
    } else if (may_split) {
        split_parts(stream, set, strips);
    } else {
        launch<MIDDLE_WIDTH, false, false>(stream, set, strips, none);
    }
    return true;
}

template <int width, bool gated, bool shared_parts> static void prepare(void)
{
    static_assert(sizeof(wide_memory<width>) <= 227 * 1024, "shared memory of a block");
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
    prepare<WIDEST, false, false>();
    prepare<WIDEST, true, false>();
    prepare<MIDDLE_WIDTH, false, false>();
    prepare<MIDDLE_WIDTH, true, false>();
    prepare<MIDDLE_WIDTH, false, true>();
    return true;
}

#endif
