/*
 * Products of few rows with quantised weights: as few.cu, but that a warp makes bf16 of codes in its registers
 * (quant.cuh). Of gate and up it takes units in turns, for the same rows.
 */
#include "kernels/cuda/few.cuh"
#include "kernels/cuda/quant.cuh"

enum {
    WARPS = FEW_THREADS / 32,
    SLOTS = 3,      /* groups of units of a warp: one is in use, others are under way */
    FEW_BLOCKS = 3, /* of a multiprocessor */
};

/* A warp's part of the columns; its units, of which the first and the last one may be other warps' as well. */
typedef struct part_steps {
    uint32_t first, end;
    uint32_t first_unit, end_unit;
} part_steps;

/* Units whose scales a warp makes ready together, of each matrix, and how a group of them lies in shared memory. Of types
 * of 256 columns a block they are a block, or half of it, and its tail follows. */
template <uint32_t type, bool gated> struct quant_group {
    typedef fg_gpu_quant<type> quant;
    static constexpr uint32_t matrices = gated ? 2 : 1;
    static constexpr uint32_t span = quant::ring / matrices;
    static constexpr uint32_t tail_at = span * quant::unit_bytes;
    static constexpr uint32_t tail_bytes = quant::super_bytes - quant::tail_at;
    static constexpr uint32_t bytes = tail_at + (quant::is_super ? tail_bytes : 0);
    uint8_t each[matrices][bytes];
};

/* Behind it are the parts, of gate, then of up. */
template <uint32_t type, int tiles, bool gated> struct quant_memory {
    /* Gate and up of many rows take turns. */
    static constexpr bool turns = gated && tiles > 4;
    quant_group<type, gated> ring[WARPS][SLOTS];
    fg_gpu_shared_scales<type> scales[WARPS];
    float gates[turns ? tiles * 8 * FG_GPU_STRIP : 4];
};

/* Floats of one matrix's parts. */
static __host__ __device__ __forceinline__ uint32_t part_floats(uint32_t rows)
{
    return FG_GPU_PARTS * rows * FG_GPU_STRIP;
}

/* For as many rows as the tiles have: with less, blocks of the next launches come to a multiprocessor that has not got all
 * of its own (PERFORMANCE, "What was tried on the GPU"). */
template <uint32_t type, int tiles, bool gated> static constexpr size_t memory_bytes(void)
{
    typedef quant_memory<type, tiles, gated> shape;
    return sizeof(shape) + FG_GPU_PARTS * tiles * 8 * FG_GPU_STRIP * sizeof(float) *
                               (gated && !shape::turns ? 2 : 1);
}

/* Where a group begins that has the part's first unit. */
template <uint32_t type, bool gated>
static __device__ __forceinline__ uint32_t group_first(const part_steps &part)
{
    constexpr uint32_t span = quant_group<type, gated>::span;
    return fg_gpu_quant<type>::is_super ? part.first_unit / span * span : part.first_unit;
}

/* What a warp asks for next: a group of its part, then of the block's next strip. */
template <uint32_t type, bool gated> struct quant_ask {
    const uint8_t *at[quant_group<type, gated>::matrices]; /* the strip, as the lane copies it */
    uint32_t strip, unit, slot;
};

template <uint32_t type, bool gated>
static __device__ __forceinline__ void find_matrices(quant_ask<type, gated> &ask,
                                                     const fg_gpu_products &set, uint32_t lane)
{
    const fg_gpu_product &p = fg_gpu_find_product(set, ask.strip);
    size_t at = fg_gpu_unit_at<type>(fg_gpu_units(set.steps)) * (ask.strip - p.strip_first);
    ask.at[0] = p.weight + at + lane * 16;
    if constexpr (gated) {
        ask.at[1] = p.up + at + lane * 16;
    }
}

/* Units of one matrix, 16 bytes a lane at a time. */
template <uint32_t type, bool gated>
static __device__ __forceinline__ void ask_units(uint8_t *to, const uint8_t *strip, uint32_t unit,
                                                 uint32_t count, uint32_t lane)
{
    typedef quant_group<type, gated> group;
    typedef fg_gpu_quant<type> quant;
    const uint8_t *from = fg_keep_global(strip + fg_gpu_unit_at<type>(unit));
    int32_t bytes = (int32_t)(count * quant::unit_bytes - lane * 16);
#pragma unroll
    for (int32_t i = 0; i < (int32_t)group::tail_at; i += 512) {
        if (i < bytes) {
            fg_copy16_once(to + i, from + i);
        }
    }
    if constexpr (quant::is_super) {
        if (lane * 16 < group::tail_bytes) {
            fg_copy16_once(to + group::tail_at,
                           strip + fg_gpu_unit_at<type>(unit / 4 * 4) + quant::tail_at);
        }
    }
}

/* Each time is a group of copies, also where there is nothing to ask for. `ring`: as the lane copies into it. */
template <uint32_t type, bool gated>
static __device__ __forceinline__ void ask_next(quant_ask<type, gated> &ask, uint8_t *ring,
                                                const fg_gpu_products &set, uint32_t strips,
                                                const part_steps &part, uint32_t lane)
{
    typedef quant_group<type, gated> group;
    if (ask.strip < strips) {
        uint32_t left = part.end_unit - ask.unit;
        uint8_t *to = fg_keep_shared(ring + ask.slot * sizeof(group));
#pragma unroll
        for (uint32_t m = 0; m < group::matrices; m++) {
            ask_units<type, gated>(to + m * group::bytes, ask.at[m], ask.unit,
                                   left < group::span ? left : group::span, lane);
        }
        ask.unit += group::span;
        if (ask.unit >= part.end_unit) {
            ask.unit = group_first<type, gated>(part);
            ask.strip += gridDim.x;
            if (ask.strip < strips) {
                find_matrices(ask, set, lane);
            }
        }
    }
    fg_copy_commit();
    ask.slot = ask.slot + 1 == SLOTS ? 0 : ask.slot + 1;
}

/* The group's scales, made ready: of unit i of matrix m by the lanes whose place is i * matrices + m. `from` is where such
 * a lane finds them, `to` where it puts them. */
template <uint32_t type, bool gated>
static __device__ __forceinline__ uint32_t scales_from(uint32_t lane)
{
    typedef quant_group<type, gated> shape;
    uint32_t place = lane % 4 % fg_gpu_quant<type>::ring;
    return place % shape::matrices * shape::bytes +
           place / shape::matrices * fg_gpu_quant<type>::unit_bytes + fg_gpu_scales_at<type>(lane);
}

template <uint32_t type, bool gated>
static __device__ __forceinline__ void share_scales(uint4 *to, const uint8_t *group, uint32_t from,
                                                    uint32_t lane)
{
    typedef quant_group<type, gated> shape;
    uint32_t place = lane % 4 % fg_gpu_quant<type>::ring;
    fg_gpu_raw_scales<type> raw = {};
    fg_gpu_read_scales<type, true>(raw, group + from,
                                   group + place % shape::matrices * shape::bytes +
                                       fg_gpu_scales_at<type>(lane) + shape::tail_at,
                                   lane);
    fg_gpu_share_scales<type>(to, raw, lane);
}

/* Where a lane finds the rows. */
typedef struct few_in {
    /* The lane's word in the block of rows; of whole units in its first tile; `last` in the last of few tiles. */
    const uint32_t *at, *last;
    uint32_t columns;
    uint32_t real_tiles; /* the lane's row is there in so many */
} few_in;

/* What the lane reads of a unit, whose columns are a block's: where its first tile is, and how far the next one. */
typedef struct unit_in {
    const uint32_t *at, *last;
    uint32_t tile_words;
    uint32_t steps; /* that there are */
} unit_in;

/* `aligned`: units are whole. */
template <bool aligned>
static __device__ __forceinline__ unit_in find_unit(const few_in &in, uint32_t from)
{
    if (aligned) {
        constexpr uint32_t unit_words = FG_GPU_UNIT_COLUMNS * FG_GPU_BLOCK / 2;
        size_t at = (size_t)from * unit_words;
        return { in.at + at, in.last + at, FG_GPU_BLOCK * 4, FG_GPU_UNIT_STEPS };
    }
    uint32_t first = from * FG_GPU_UNIT_COLUMNS;
    uint32_t left = first < in.columns ? in.columns - first : 0;
    unit_in unit;
    unit.tile_words = (left >= FG_GPU_BLOCK ? FG_GPU_BLOCK : left) * 4;
    unit.steps = left / FG_GPU_STEP;
    unit.at = in.at + (size_t)first * (FG_GPU_BLOCK / 2);
    unit.last = nullptr;
    return unit;
}

/* Of so few tiles, and of whole units, a step's rows are asked for one unit ahead. */
enum { AHEAD_TILES = 2 };

template <int tiles, bool aligned> struct unit_rows {
    static constexpr bool ahead = aligned && tiles <= AHEAD_TILES;
    uint32_t each[FG_GPU_UNIT_STEPS][tiles][2];
};

template <int tiles, bool aligned>
static __device__ __forceinline__ void load_step(unit_rows<tiles, aligned> &rows, const few_in &in,
                                                 const unit_in &unit, uint32_t step)
{
    uint32_t s = step % FG_GPU_UNIT_STEPS;
#pragma unroll
    for (int tile = 0; tile < tiles; tile++) {
        const uint32_t *at = (rows.ahead && tile > 0 ? unit.last : unit.at) + s * 64;
        if constexpr (rows.ahead) {
            rows.each[s][tile][0] = at[0];
            rows.each[s][tile][1] = at[32];
        } else {
            bool real = tile < (int)in.real_tiles && (aligned || s < unit.steps);
            at += tile * unit.tile_words;
            rows.each[s][tile][0] = real ? at[0] : 0;
            rows.each[s][tile][1] = real ? at[32] : 0;
        }
    }
}

/* A step's product with all tiles of rows. */
template <int tiles>
static __device__ __forceinline__ void use_step(const uint32_t a[4], const uint32_t (*b)[2],
                                                float (*sums)[4])
{
#pragma unroll
    for (int tile = 0; tile < tiles; tile++) {
        fg_mma(sums[tile], a, b[tile][0], b[tile][1]);
    }
}

/* Unit `from`, unit i of a group; steps of other warps are left out; `aligned`: it has none. `scales`: of the group, as
 * the lane finds them. */
template <uint32_t type, int tiles, bool gated, bool aligned>
static __device__ __forceinline__ void use_unit(const uint8_t *group, const uint4 *scales,
                                                const few_in &in, unit_rows<tiles, aligned> &rows,
                                                const part_steps &part, uint32_t from, uint32_t i,
                                                uint32_t lane, float (*sums)[tiles][4])
{
    constexpr uint32_t matrices = quant_group<type, gated>::matrices;
    uint32_t next = from + 1 < part.end_unit ? from + 1 : part.first_unit;
    unit_in unit = find_unit<aligned>(in, rows.ahead ? next : from);
    fg_gpu_codes<type> codes[matrices];
    uint4 own[matrices] = {};
#pragma unroll
    for (uint32_t m = 0; m < matrices; m++) {
        fg_gpu_load_codes<type, true>(codes[m],
                                      group + m * quant_group<type, gated>::bytes +
                                          i * fg_gpu_quant<type>::unit_bytes +
                                          fg_gpu_codes_at(lane),
                                      lane);
    }
#pragma unroll
    for (uint32_t s = 0; s < FG_GPU_UNIT_STEPS; s++) {
        uint32_t step = from * FG_GPU_UNIT_STEPS + s;
#pragma unroll
        for (uint32_t m = 0; m < matrices && s % 2 == 0; m++) {
            own[m] = scales[((i * matrices + m) * (FG_GPU_UNIT_STEPS / 2) + s / 2) * 8];
        }
        if (aligned || (step >= part.first && step < part.end)) {
            if (!rows.ahead) {
                load_step(rows, in, unit, step);
            }
#pragma unroll
            for (uint32_t m = 0; m < matrices; m++) {
                uint32_t a[4];
                fg_gpu_weights<type>(a, codes[m], own[m], s);
                use_step<tiles>(a, rows.each[s], sums[m]);
            }
            if (rows.ahead) {
                load_step(rows, in, unit, s);
            }
        }
    }
}

/* Rows of the part's first unit, where they are asked for ahead. */
template <int tiles, bool aligned>
static __device__ __forceinline__ void load_first(unit_rows<tiles, aligned> &rows, const few_in &in,
                                                  const part_steps &part)
{
    if (rows.ahead) {
        unit_in unit = find_unit<aligned>(in, part.first_unit);
#pragma unroll
        for (uint32_t s = 0; s < FG_GPU_UNIT_STEPS; s++) {
            load_step(rows, in, unit, s);
        }
    }
}

/* A part of one strip. What was used before is asked for again as soon as all lanes are done with it. */
template <uint32_t type, int tiles, bool gated, bool aligned>
static __device__ __forceinline__ void few_part(quant_ask<type, gated> &ask, uint32_t &slot,
                                                uint8_t *ring, fg_gpu_shared_scales<type> &shared,
                                                const fg_gpu_products &set, uint32_t strips,
                                                const few_in &in, unit_rows<tiles, aligned> &rows,
                                                const part_steps &part, uint32_t lane,
                                                float (*sums)[tiles][4])
{
    typedef quant_group<type, gated> shape;
    const uint4 *scales = fg_keep_shared(&shared.each[0][0][lane / 4]);
    uint4 *put = fg_keep_shared(&shared.each[lane % 4 % fg_gpu_quant<type>::ring][0][lane / 4]);
    uint32_t from = fg_keep(scales_from<type, gated>(lane));
    for (uint32_t first = group_first<type, gated>(part); first < part.end_unit;
         first += shape::span) {
        const uint8_t *group = fg_keep_shared(ring - lane * 16 + slot * sizeof(shape));
        fg_copy_wait<SLOTS - 2>();
        __syncwarp();
        ask_next(ask, ring, set, strips, part, lane);
        share_scales<type, gated>(put, group, from, lane);
#pragma unroll
        for (uint32_t i = 0; i < shape::span; i++) {
            if (first + i < part.end_unit &&
                (!fg_gpu_quant<type>::is_super || first + i >= part.first_unit)) {
                use_unit<type, tiles, gated, aligned>(group, scales, in, rows, part, first + i, i,
                                                      lane, sums);
            }
        }
        slot = slot + 1 == SLOTS ? 0 : slot + 1;
    }
}

/* The sums of all parts, in the place of one. */
static __device__ __forceinline__ void join_parts(float *out, const float *parts, uint32_t count,
                                                  uint32_t rows)
{
    for (uint32_t i = threadIdx.x; i < rows * FG_GPU_STRIP; i += FEW_THREADS) {
        out[i] = add_parts(parts, count, rows, i / FG_GPU_STRIP, i % FG_GPU_STRIP);
    }
}

/* Blocks of a multiprocessor: as many as have registers and shared memory enough. */
static constexpr __host__ __device__ uint32_t blocks_at_once(int tiles)
{
    return tiles <= 2 ? FEW_BLOCKS : 2;
}

static __device__ __forceinline__ part_steps find_part(const fg_gpu_products &set, uint32_t warp)
{
    part_steps part;
    part.first = warp * set.part_steps;
    part.end = part.first + set.part_steps < set.steps ? part.first + set.part_steps : set.steps;
    part.first_unit = part.first / FG_GPU_UNIT_STEPS;
    part.end_unit = fg_keep(fg_gpu_units(part.end));
    return part;
}

template <int tiles, bool aligned>
static __device__ __forceinline__ few_in find_rows(const fg_gpu_products &set, uint32_t lane)
{
    uint32_t row = lane / 4;
    few_in in;
    in.at = set.in + lane;
    in.columns = set.columns;
    /* What is read of rows that there are not would only be seen in sums that nobody takes. */
    in.real_tiles = row < set.rows ? (set.rows - row + 7) / 8 : 0;
    /* In the last of few tiles it is the last row. */
    uint32_t last_row = (tiles - 1) * 8 + lane / 4;
    uint32_t beyond = last_row < set.rows ? 0 : (last_row - (set.rows - 1)) * 4;
    in.last = fg_keep_global(in.at + (tiles - 1) * FG_GPU_BLOCK * 4 - beyond);
    in.at = tiles == 1 && aligned ? in.last : fg_keep_global(in.at);
    return in;
}

/* A strip's sums of parts meet, and its outputs go where they belong. */
template <uint32_t type, int tiles, bool gated>
static __device__ __forceinline__ void put_strip(quant_memory<type, tiles, gated> *memory,
                                                 const fg_gpu_products &set,
                                                 const fg_gpu_product &p, uint32_t strip,
                                                 uint32_t warp, bool mine, uint32_t lane,
                                                 const float (*sums)[tiles][4],
                                                 const few_before<tiles> &before)
{
    typedef quant_memory<type, tiles, gated> shape;
    uint32_t count = fg_gpu_part_count(set), rows = set.rows;
    float *parts = (float *)(memory + 1), *up = parts + (shape::turns ? 0 : part_floats(rows));
    if (mine) {
        put_part<tiles>(parts, warp, rows, lane, sums[0]);
    }
    if constexpr (gated) {
        if (shape::turns) {
            __syncthreads();
            join_parts(memory->gates, parts, count, rows);
            __syncthreads();
        }
        if (mine) {
            put_part<tiles>(up, warp, rows, lane, sums[1]);
        }
    }
    __syncthreads();
    if constexpr (gated) {
        put_few_gated<tiles>(set, p, strip, rows, shape::turns ? memory->gates : parts,
                             shape::turns ? 1 : count, up);
    } else {
        put_few<tiles>(set, p, strip, rows, parts, before);
    }
}

/* Blocks go through the strips in turns. `aligned`: parts are whole units. */
template <uint32_t type, int tiles, bool gated, bool aligned>
static __global__ __launch_bounds__(FEW_THREADS,
                                    blocks_at_once(tiles)) void few_quant_rows(fg_gpu_products set,
                                                                               uint32_t strips)
{
    FG_SHARED_BYTES(shared);
    typedef quant_memory<type, tiles, gated> memory_type;
    memory_type *memory = (memory_type *)shared;
    uint32_t warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    part_steps part = find_part(set, warp);
    bool mine = part.first < part.end;
    few_in in = find_rows<tiles, aligned>(set, lane);
    uint8_t *ring = fg_keep_shared((uint8_t *)memory->ring[warp] + lane * 16);
    quant_ask<type, gated> ask = { {}, blockIdx.x, group_first<type, gated>(part), 0 };
    unit_rows<tiles, aligned> rows;
    uint32_t slot = 0;
    fg_gpu_let_next();
    if (mine) {
        find_matrices(ask, set, lane);
        for (int i = 0; i < SLOTS - 1; i++) {
            ask_next(ask, ring, set, strips, part, lane);
        }
    }
    fg_gpu_wait();
    if (mine) {
        load_first(rows, in, part);
    }
    for (uint32_t strip = blockIdx.x; strip < strips; strip += gridDim.x) {
        const fg_gpu_product &p = fg_gpu_find_product(set, strip);
        float sums[gated ? 2 : 1][tiles][4] = {};
        few_before<tiles> before;
        if constexpr (!gated) {
            load_before<tiles>(before, set, p, strip - p.strip_first);
        }
        if (mine) {
            few_part<type, tiles, gated, aligned>(ask, slot, ring, memory->scales[warp], set,
                                                  strips, in, rows, part, lane, sums);
        }
        put_strip<type, tiles, gated>(memory, set, p, strip - p.strip_first, warp, mine, lane, sums,
                                      before);
        if (strip + gridDim.x < strips) {
            __syncthreads();
        }
    }
}

/* With many rows what is saved by whole units is not much, and registers are short. */
static constexpr bool may_align(int tiles)
{
    return tiles <= 4;
}

template <uint32_t type, int tiles, bool gated>
static bool launch(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips)
{
    uint32_t most = (uint32_t)stream->device->multiprocessors * blocks_at_once(tiles);
    dim3 grid(strips < most ? strips : most);
    constexpr size_t bytes = memory_bytes<type, tiles, gated>();
    if (!fg_gpu_has_room(stream->device, bytes)) {
        return false;
    }
    if constexpr (may_align(tiles)) {
        if (set.part_steps % FG_GPU_UNIT_STEPS == 0 && set.steps % FG_GPU_UNIT_STEPS == 0) {
            FG_LAUNCH((few_quant_rows<type, tiles, gated, true>), grid, dim3(FEW_THREADS), bytes,
                      stream->stream, true, set, strips);
            return true;
        }
    }
    FG_LAUNCH((few_quant_rows<type, tiles, gated, false>), grid, dim3(FEW_THREADS), bytes,
              stream->stream, true, set, strips);
    return true;
}

template <uint32_t type, bool gated>
static bool few_gated(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips)
{
    if (set.rows <= 8) {
        return launch<type, 1, gated>(stream, set, strips);
    }
    if (set.rows <= 16) {
        return launch<type, 2, gated>(stream, set, strips);
    }
    return set.rows <= 32 ? launch<type, 4, gated>(stream, set, strips)
                          : launch<type, 8, gated>(stream, set, strips);
}

template <uint32_t type>
static bool few(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips, bool gated)
{
    return gated ? few_gated<type, true>(stream, set, strips)
                 : few_gated<type, false>(stream, set, strips);
}

bool fg_gpu_few_quant(fg_device_stream *stream, uint32_t type, const fg_gpu_products &set,
                      uint32_t strips, bool gated)
{
    FG_GPU_QUANT_SWITCH(type, few, stream, set, strips, gated);
}

template <uint32_t type, int tiles, bool gated> static void prepare(const fg_device *device)
{
    constexpr size_t bytes = memory_bytes<type, tiles, gated>();
    static_assert(bytes <= 227 * 1024, "shared memory of a block");
    fg_gpu_allow_shared(device, few_quant_rows<type, tiles, gated, false>, bytes);
    if constexpr (may_align(tiles)) {
        fg_gpu_allow_shared(device, few_quant_rows<type, tiles, gated, true>, bytes);
    }
}

template <uint32_t type, int tiles> static void prepare_tiles(const fg_device *device)
{
    prepare<type, tiles, false>(device);
    prepare<type, tiles, true>(device);
}

template <uint32_t type> static void prepare_type(const fg_device *device)
{
    prepare_tiles<type, 1>(device);
    prepare_tiles<type, 2>(device);
    prepare_tiles<type, 4>(device);
    prepare_tiles<type, 8>(device);
}

void fg_gpu_few_quant_prepare(const fg_device *device)
{
    prepare_type<FG_Q4_0>(device);
    prepare_type<FG_Q4_1>(device);
    prepare_type<FG_Q5_0>(device);
    prepare_type<FG_Q5_1>(device);
    prepare_type<FG_Q8_0>(device);
    prepare_type<FG_Q4_K>(device);
    prepare_type<FG_Q5_K>(device);
    prepare_type<FG_Q6_K>(device);
}
