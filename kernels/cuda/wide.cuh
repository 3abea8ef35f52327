/*
 * wide - what products of many rows on Hopper are, in wide.cu and wide_quant.cu: a block makes 128 outputs of some rows,
 * then those of the next tile that is its own. Weights and rows come into shared memory by bulk copies, which four warps
 * ask for some stages ahead, over the ends of tiles too; a stage is 64 columns. Two groups of four warps have 64 outputs
 * each: a warp takes its 16 outputs' weights into registers, the rows are read from shared memory by the products.
 *
 * What a tile takes in for each product is what limits it, so tiles are as wide as registers allow.
 *
 * A part's sums are added to the totals when the part ends. Parts must be whole stages: fits_wide says whether they are.
 * Where rows are few, several blocks share the parts of the same outputs, and a kernel of their own adds the sums.
 *
 * `shape` is what a kernel of these has of its own:
 *   width                     rows of a tile
 *   stages                    in shared memory
 *   unit_bytes, tail_bytes    of a strip and stage, where they follow each other; a tail, 0 or so many, after each fourth
 *   strip_bytes               of both in shared memory: each stage has its tail
 *   unit_at(stage)            from a strip's begin to a stage, or to the next strip
 *   weights                   find: which strip of a stage is the warp's; open: a stage is there, with strips from here on;
 *                             make<half>: the weights of two of its four steps
 */
#ifndef FORGE_KERNELS_CUDA_WIDE_CUH
#define FORGE_KERNELS_CUDA_WIDE_CUH

#include "kernels/cuda/product.cuh"
#include "kernels/cuda/wgmma.cuh"

enum {
    WIDE_GROUPS = 2,
    WIDE_FEEDERS = 4, /* warps that ask for copies */
    WIDE_THREADS = WIDE_GROUPS * 128 + WIDE_FEEDERS * 32,
    WIDE_STRIPS = WIDE_GROUPS * 4,
    WIDE_STEPS = FG_GPU_BLOCK / FG_GPU_STEP, /* of a stage */
    WIDE_MEMORY = 227 * 1024,                /* of a block */
    BLOCK_BYTES = FG_GPU_BLOCK_WORDS * 4,    /* of rows */
    TILE_BYTES = BLOCK_BYTES / 8,            /* 8 rows of it */
    STEP_BYTES = TILE_BYTES / WIDE_STEPS,    /* of a step of those */
    TAIL_STAGES = 4,
    BAND = 8,  /* tiles of rows that blocks go through together, so that they stay in the cache */
    CHUNK = 4, /* tiles of 8 rows whose outputs are written together */
    CHUNK_SUMS = CHUNK * 4, /* of a thread */
};

template <typename shape> struct wide_stage {
    uint8_t rows[shape::width / FG_GPU_BLOCK][BLOCK_BYTES];
    uint8_t weights[WIDE_STRIPS][shape::strip_bytes];
};

/* What there is beside the stages. */
typedef struct wide_passed {
    float sums[2][WIDE_GROUPS][CHUNK_SUMS / 2][128]; /* from one group to the other */
} wide_passed;

template <typename shape> struct wide_memory {
    wide_stage<shape> stages[shape::stages];
    wide_passed passed;
    uint64_t full[shape::stages], empty[shape::stages];
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
    uint32_t all_outputs;
    uint32_t parts_each, shares; /* of a tile */
} wide_split;

template <typename shape> static __device__ __forceinline__ void advance(wide_turn *turn)
{
    turn->slot++;
    if (turn->slot == shape::stages) {
        turn->slot = 0;
        turn->lap ^= 1;
    }
}

template <typename shape, bool gated, bool shared_parts>
static __device__ __forceinline__ wide_place find_place(const fg_gpu_products &set,
                                                        const wide_split &split,
                                                        const wide_tiles &tiles, uint32_t turn)
{
    constexpr uint32_t strips_each = gated ? WIDE_STRIPS / 2 : WIDE_STRIPS;
    uint32_t tile = shared_parts ? turn % tiles.count : turn;
    uint32_t band = tile / (BAND * tiles.strip_tiles);
    uint32_t first = band * BAND;
    uint32_t rows = tiles.row_tiles - first < BAND ? tiles.row_tiles - first : BAND;
    uint32_t inner = tile - band * BAND * tiles.strip_tiles;
    uint32_t part_stages = set.part_steps / WIDE_STEPS, stages = set.steps / WIDE_STEPS;
    wide_place place;
    place.row = (first + inner % rows) * shape::width;
    place.strip = inner / rows * strips_each;
    place.stage_first = shared_parts ? turn / tiles.count * split.parts_each * part_stages : 0;
    place.stage_end = shared_parts ? place.stage_first + split.parts_each * part_stages : stages;
    place.stage_end = place.stage_end < stages ? place.stage_end : stages;
    return place;
}

/* The weights of a block's strip; NULL: there is none. A gated product's block has 4 strips of gate, then the same 4 of
 * up. */
template <typename shape, bool gated>
static __device__ __forceinline__ const uint8_t *strip_at(const fg_gpu_products &set,
                                                          const wide_place &place, uint32_t index)
{
    const fg_gpu_product &p = fg_gpu_find_product(set, place.strip);
    uint32_t strip = place.strip - p.strip_first + (gated ? index % 4 : index);
    const uint8_t *weight = gated && index >= 4 ? p.up : p.weight;
    return strip * FG_GPU_STRIP < p.outputs
               ? weight + strip * shape::unit_at(set.steps / WIDE_STEPS)
               : nullptr;
}

/* What a lane of a feeder asks for in each stage of a tile. */
typedef struct wide_copy {
    const uint8_t *from;
    uint32_t to, bytes; /* 0: nothing */
    uint32_t each;      /* from a stage to the next one */
    uint32_t fourth;    /* more, after each fourth stage of a strip */
} wide_copy;

/* The first copies are the blocks of rows, then there are the strips, then their tails. */
template <typename shape, bool gated>
static __device__ __forceinline__ wide_copy find_copy(const fg_gpu_products &set,
                                                      const wide_place &place, uint32_t index)
{
    constexpr uint32_t row_blocks = shape::width / FG_GPU_BLOCK;
    wide_copy copy = {};
    if (index < row_blocks) {
        uint32_t row = place.row + index * FG_GPU_BLOCK;
        if (row < set.rows) {
            copy.from = (const uint8_t *)(set.in + fg_gpu_pair_at(row, 0, set.columns)) +
                        (size_t)place.stage_first * BLOCK_BYTES;
            copy.bytes = copy.each = BLOCK_BYTES;
        }
        copy.to = index * BLOCK_BYTES;
        return copy;
    }
    index -= row_blocks;
    bool is_tail = shape::tail_bytes > 0 && index >= WIDE_STRIPS;
    index = is_tail ? index - WIDE_STRIPS : index;
    const uint8_t *strip =
        index < WIDE_STRIPS ? strip_at<shape, gated>(set, place, index) : nullptr;
    if (strip == nullptr) {
        return copy;
    }
    copy.to = row_blocks * BLOCK_BYTES + index * shape::strip_bytes;
    if (is_tail) {
        copy.from = strip + shape::unit_at(place.stage_first / TAIL_STAGES * TAIL_STAGES) +
                    TAIL_STAGES * shape::unit_bytes;
        copy.to += shape::unit_bytes;
        copy.bytes = shape::tail_bytes;
        copy.fourth = TAIL_STAGES * shape::unit_bytes + shape::tail_bytes;
    } else {
        copy.from = strip + shape::unit_at(place.stage_first);
        copy.bytes = copy.each = shape::unit_bytes;
        copy.fourth = shape::tail_bytes;
    }
    return copy;
}

/* A tile's stages, by four warps, since a warp asks for one copy after the other: each has every fourth. A stage is written
 * when nobody reads it any more, and full when each warp has said how much it asks for (nothing too: so none falls behind
 * by a lap) and all of that is there. */
template <typename shape, bool gated>
static __device__ __forceinline__ void feed(wide_memory<shape> *memory, const fg_gpu_products &set,
                                            const wide_place &place, uint32_t warp, uint32_t lane,
                                            wide_turn *turn)
{
    wide_copy copy = find_copy<shape, gated>(set, place, lane * WIDE_FEEDERS + warp);
    uint32_t all = copy.bytes;
    for (int apart = 16; apart > 0; apart /= 2) {
        all += __shfl_xor_sync(0xFFFFFFFFu, all, apart);
    }
    for (uint32_t i = place.stage_first; i < place.stage_end; i++) {
        uint64_t *full = &memory->full[turn->slot];
        uint8_t *there = (uint8_t *)&memory->stages[turn->slot] + copy.to;
        fg_barrier_wait(&memory->empty[turn->slot], turn->lap ^ 1);
        if (lane == 0) {
            fg_barrier_expect(full, all);
        }
        __syncwarp();
        if (copy.bytes > 0) {
            fg_bulk_copy(there, copy.from, copy.bytes, full);
        }
        copy.from += copy.each;
        if (shape::tail_bytes > 0 && i % TAIL_STAGES == TAIL_STAGES - 1) {
            copy.from += copy.fourth;
        }
        advance<shape>(turn);
    }
}

/* This warp has read the stage. */
template <typename shape>
static __device__ __forceinline__ void give_back(wide_memory<shape> *memory, uint32_t slot,
                                                 uint32_t lane)
{
    if (lane == 0) {
        fg_barrier_arrive(&memory->empty[slot]);
    }
}

/* Products of two steps, from where the rows are on, are begun; those before may run until fg_wgmma_wait<1>. */
template <int width>
static __device__ __forceinline__ void begin_steps(uint64_t rows, float *sums,
                                                   const uint32_t (*a)[4], uint32_t go_on)
{
    fg_wgmma_fence();
    fg_wgmma<width>(sums, a[0], rows, go_on);
    fg_wgmma<width>(sums, a[1], fg_wgmma_further(rows, STEP_BYTES), 1);
    fg_wgmma_commit();
}

/* From a stage's rows to those of the next turn, which is given. */
template <typename shape>
static __device__ __forceinline__ uint64_t next_rows(uint64_t rows, const wide_turn &turn)
{
    constexpr int32_t each = sizeof(wide_stage<shape>), all = each * (int32_t)shape::stages;
    return fg_wgmma_further(rows, turn.slot == 0 ? each - all : each);
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

/* The strip at `index` of the block. While the products of two steps run, the weights of the next two are made: those
 * whose registers they get have ended. */
template <typename shape, bool shared_parts>
static __device__ __forceinline__ void consume(wide_memory<shape> *shared,
                                               const fg_gpu_products &set, const wide_split &split,
                                               const wide_place &place, uint32_t index,
                                               uint32_t lane, wide_turn *turn, float *totals)
{
    constexpr int width = shape::width;
    float sums[width / 2];
    uint32_t now[2][4], next[2][4], last = 0;
    uint32_t part_stages = set.part_steps / WIDE_STEPS;
    uint32_t part = place.stage_first / part_stages;
    typename shape::weights weights;
    /* Or its address would be made anew, and slowly, in each turn. */
    wide_memory<shape> *memory = (wide_memory<shape> *)fg_keep_shared((uint8_t *)shared);
#pragma unroll
    for (int i = 0; i < width / 2; i++) {
        sums[i] = 0.0f;    /* not used: so it takes no register between tiles */
        totals[i] = -0.0f; /* added to anything it changes no bit */
    }
    weights.find(index, lane);
    uint64_t rows = fg_wgmma_place(fg_shared_at(shared->stages[turn->slot].rows), 128, TILE_BYTES);
    fg_barrier_wait(&memory->full[turn->slot], turn->lap);
    weights.open(memory->stages[turn->slot].weights[0]);
    weights.template make<0>(now);
    for (uint32_t first = place.stage_first; first < place.stage_end; first += part_stages) {
        uint32_t end =
            first + part_stages < place.stage_end ? first + part_stages : place.stage_end;
        for (uint32_t i = first; i < end; i++) {
            begin_steps<width>(rows, sums, now, i > first ? 1 : 0);
            fg_wgmma_wait<1>();
            if (i > place.stage_first) {
                give_back(memory, last, lane);
            }
            weights.template make<1>(next);
            begin_steps<width>(fg_wgmma_further(rows, 2 * STEP_BYTES), sums, next, 1);
            last = turn->slot;
            advance<shape>(turn);
            rows = next_rows<shape>(rows, *turn);
            bool more = i + 1 < place.stage_end;
            if (more) {
                fg_barrier_wait(&memory->full[turn->slot], turn->lap);
                weights.open(memory->stages[turn->slot].weights[0]);
            }
            fg_wgmma_wait<1>();
            if (more) {
                weights.template make<0>(now);
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
    give_back(memory, last, lane);
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
static __device__ __forceinline__ void put_gates(wide_passed *passed, const fg_gpu_product &p,
                                                 uint32_t rows, uint32_t row, uint32_t output,
                                                 uint32_t group, uint32_t chunk, const float *sums)
{
    uint32_t thread = threadIdx.x % 128, g = threadIdx.x % 32 / 4;
    float(*to)[128] = passed->sums[chunk % 2][group];
    float(*from)[128] = passed->sums[chunk % 2][1 - group];
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
static __device__ __forceinline__ void put_tile(wide_passed *passed, const fg_gpu_products &set,
                                                const wide_place &place, uint32_t index,
                                                uint32_t lane, const float *totals)
{
    const fg_gpu_product &p = fg_gpu_find_product(set, place.strip);
    uint32_t strip = place.strip - p.strip_first + (gated ? index % 4 : index);
    uint32_t output = strip * FG_GPU_STRIP + lane / 4, row = place.row + lane % 4 * 2;
#pragma unroll
    for (int chunk = 0; chunk < width / 8 / CHUNK; chunk++, row += CHUNK * 8) {
        const float *sums = totals + chunk * CHUNK_SUMS;
        if constexpr (gated) {
            put_gates(passed, p, set.rows, row, output, index / 4, chunk, sums);
        } else if (p.accumulate) {
            put_sums<true>(p, set.rows, row, output, sums);
        } else {
            put_sums<false>(p, set.rows, row, output, sums);
        }
    }
}

template <typename shape, bool gated, bool shared_parts>
static __global__ __launch_bounds__(WIDE_THREADS, 1) void wide_rows(fg_gpu_products set,
                                                                    wide_split split,
                                                                    wide_tiles tiles)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    FG_SHARED_BYTES(shared);
    wide_memory<shape> *memory = (wide_memory<shape> *)shared;
    uint32_t group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    uint32_t turns = shared_parts ? tiles.count * split.shares : tiles.count;
    wide_turn turn = {};
    if (threadIdx.x == 0) {
        for (int i = 0; i < (int)shape::stages; i++) {
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
        for (uint32_t t = blockIdx.x; t < turns; t += gridDim.x) {
            feed<shape, gated>(memory, set,
                               find_place<shape, gated, shared_parts>(set, split, tiles, t), warp,
                               lane, &turn);
        }
    } else {
        fg_more_registers<232>();
        uint32_t index = group * 4 + warp;
        for (uint32_t t = blockIdx.x; t < turns; t += gridDim.x) {
            wide_place place = find_place<shape, gated, shared_parts>(set, split, tiles, t);
            float totals[shape::width / 2];
            consume<shape, shared_parts>(memory, set, split, place, index, lane, &turn, totals);
            if constexpr (!shared_parts) { /* else another kernel adds them */
                put_tile<shape::width, gated>(&memory->passed, set, place, index, lane, totals);
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

template <typename shape, bool gated, bool shared_parts>
static void launch(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips,
                   const wide_split &split)
{
    wide_tiles tiles = count_tiles(set, strips, gated, shape::width);
    uint32_t turns = shared_parts ? tiles.count * split.shares : tiles.count;
    uint32_t most = (uint32_t)stream->device->multiprocessors;
    FG_LAUNCH((wide_rows<shape, gated, shared_parts>), dim3(turns < most ? turns : most),
              dim3(WIDE_THREADS), sizeof(wide_memory<shape>), stream->stream, true, set, split,
              tiles);
}

/* Once per device. */
template <typename shape, bool gated, bool shared_parts> static void prepare(void)
{
    static_assert(sizeof(wide_memory<shape>) <= WIDE_MEMORY, "shared memory of a block");
    fg_gpu_check(cudaFuncSetAttribute(wide_rows<shape, gated, shared_parts>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      sizeof(wide_memory<shape>)),
                 "preparing kernels");
}

/* How parts are shared, so many by a block. */
static wide_split make_split(const fg_device_stream *stream, const fg_gpu_products &set,
                             uint32_t strips, uint32_t parts_each)
{
    uint32_t strip_tiles = (strips + WIDE_STRIPS - 1) / WIDE_STRIPS;
    uint32_t parts = (set.steps + set.part_steps - 1) / set.part_steps;
    return { stream->work, WIDE_STRIPS * strip_tiles * FG_GPU_STRIP, parts_each,
             (parts + parts_each - 1) / parts_each };
}

/* Whether there is room for the sums of all parts. */
static bool has_room(const fg_device_stream *stream, const fg_gpu_products &set,
                     const wide_split &split)
{
    size_t parts = (set.steps + set.part_steps - 1) / set.part_steps;
    return parts * set.rows * split.all_outputs <= stream->work_floats;
}

static bool fits_wide(const fg_device_stream *stream, const fg_gpu_products &set)
{
    return stream->device->wide && set.part_steps % WIDE_STEPS == 0 && set.steps % WIDE_STEPS == 0;
}

#endif
