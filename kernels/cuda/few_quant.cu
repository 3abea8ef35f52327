/*
 * Products of few rows with quantised weights: as few.cu, but that a warp makes bf16 of codes in its registers
 * (quant.cuh). It has a ring of units under way and refills a place as soon as it has used it. Of gate and up it takes
 * units in turns, for the same rows.
 */
#include "kernels/cuda/few.cuh"
#include "kernels/cuda/quant.cuh"

/* A warp's part of the columns; its units, of which the first and the last one may be other warps' as well. */
typedef struct part_steps {
    uint32_t first, end;
    uint32_t first_unit, end_unit;
} part_steps;

/* Units under way: [unit][matrix]. */
template <uint32_t type, bool gated> struct quant_ring {
    static constexpr uint32_t matrices = gated ? 2 : 1;
    static constexpr uint32_t span = fg_gpu_quant<type>::ring / matrices; /* units of each matrix */
    /* The strips, as the lane finds codes in them, and the one that it has scales of. */
    const uint8_t *codes_at[matrices];
    const uint8_t *scales_at;
    fg_gpu_codes<type> codes[span * matrices];
    fg_gpu_raw_scales<type> raw; /* of the lane's place: lane % 4 */
};

/* Of types of 256 columns a block they begin where a block does, or half of it. */
template <uint32_t type, bool gated>
static __device__ __forceinline__ uint32_t ring_first(const part_steps &part)
{
    constexpr uint32_t span = quant_ring<type, gated>::span;
    return fg_gpu_quant<type>::is_super ? part.first_unit / span * span : part.first_unit;
}

/* Whether unit `first` + `i` is the part's, of which there are `left` from `first` on. */
template <uint32_t type>
static __device__ __forceinline__ bool is_in(const part_steps &part, uint32_t first, uint32_t left,
                                             uint32_t i)
{
    return i < left && (!fg_gpu_quant<type>::is_super || first + i >= part.first_unit);
}

/* Scales of the ring from unit `first` on. */
template <uint32_t type, bool gated>
static __device__ __forceinline__ void load_raw(quant_ring<type, gated> &ring,
                                                const part_steps &part, uint32_t first,
                                                uint32_t left, uint32_t lane)
{
    uint32_t place = lane % 4, i = place / quant_ring<type, gated>::matrices;
    bool there = fg_gpu_quant<type>::ring == 4 || place < fg_gpu_quant<type>::ring;
    if (there && is_in<type>(part, first, left, i)) {
        fg_gpu_load_scales<type>(ring.raw, ring.scales_at, first + i, lane);
    }
}

template <uint32_t type, bool gated>
static __device__ __forceinline__ void load_codes(quant_ring<type, gated> &ring,
                                                  const part_steps &part, uint32_t first,
                                                  uint32_t left, uint32_t i, uint32_t lane)
{
    typedef quant_ring<type, gated> shape;
    if (is_in<type>(part, first, left, i)) {
#pragma unroll
        for (uint32_t m = 0; m < shape::matrices; m++) {
            const uint8_t *at = ring.codes_at[m] + fg_gpu_unit_at<type>(first);
            fg_gpu_load_codes<type>(ring.codes[i * shape::matrices + m],
                                    at + i * fg_gpu_quant<type>::unit_bytes, lane);
        }
    }
}

/* `at` is where the strip begins in a matrix. */
template <uint32_t type, bool gated>
static __device__ __forceinline__ void fill_ring(quant_ring<type, gated> &ring,
                                                 const fg_gpu_product &p, size_t at,
                                                 const part_steps &part, uint32_t lane)
{
    uint32_t first = ring_first<type, gated>(part);
    ring.codes_at[0] = fg_keep_global(p.weight + at + fg_gpu_codes_at(lane));
    ring.scales_at = p.weight;
    if constexpr (gated) {
        ring.codes_at[1] = fg_keep_global(p.up + at + fg_gpu_codes_at(lane));
        ring.scales_at = lane % 2 == 0 ? p.weight : p.up;
    }
    ring.scales_at = fg_keep_global(ring.scales_at + at + fg_gpu_scales_at<type>(lane));
    ring.raw = {};
    load_raw(ring, part, first, part.end_unit - first, lane);
#pragma unroll
    for (uint32_t i = 0; i < quant_ring<type, gated>::span; i++) {
        load_codes(ring, part, first, part.end_unit - first, i, lane);
    }
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

/* `resident`: or they are in shared memory. */
template <int tiles, bool aligned, bool resident> struct unit_rows {
    static constexpr bool ahead = aligned && !resident && tiles <= AHEAD_TILES;
    uint32_t each[FG_GPU_UNIT_STEPS][tiles][2];
    few_resident stay;
};

template <int tiles, bool aligned, bool resident>
static __device__ __forceinline__ void load_step(unit_rows<tiles, aligned, resident> &rows,
                                                 const few_in &in, const unit_in &unit,
                                                 uint32_t step)
{
    uint32_t s = step % FG_GPU_UNIT_STEPS;
    if (resident) {
        load_resident(rows.each[s][0], rows.stay, step);
    }
#pragma unroll
    for (int tile = 0; !resident && tile < tiles; tile++) {
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

/* Unit `from`, whose place in the ring begins at `place`; steps of other warps are left out; `aligned`: it has none.
 * `scales`: of the ring, as the lane finds them. */
template <uint32_t type, int tiles, bool gated, bool aligned, bool resident>
static __device__ __forceinline__ void use_unit(const quant_ring<type, gated> &ring,
                                                const uint4 *scales, const few_in &in,
                                                unit_rows<tiles, aligned, resident> &rows,
                                                const part_steps &part, uint32_t from,
                                                uint32_t place, float (*sums)[tiles][4])
{
    constexpr uint32_t matrices = quant_ring<type, gated>::matrices;
    uint32_t next = from + 1 < part.end_unit ? from + 1 : from;
    unit_in unit = find_unit<aligned>(in, rows.ahead ? next : from);
    uint4 own[matrices] = {};
#pragma unroll
    for (uint32_t s = 0; s < FG_GPU_UNIT_STEPS; s++) {
        uint32_t step = from * FG_GPU_UNIT_STEPS + s;
#pragma unroll
        for (uint32_t m = 0; m < matrices && s % 2 == 0; m++) {
            own[m] = scales[((place + m) * (FG_GPU_UNIT_STEPS / 2) + s / 2) * 8];
        }
        if (aligned || (step >= part.first && step < part.end)) {
            if (!rows.ahead) {
                load_step(rows, in, unit, step);
            }
#pragma unroll
            for (uint32_t m = 0; m < matrices; m++) {
                uint32_t a[4];
                fg_gpu_weights<type>(a, ring.codes[place + m], own[m], s);
                use_step<tiles>(a, rows.each[s], sums[m]);
            }
            if (rows.ahead) {
                load_step(rows, in, unit, s);
            }
        }
    }
}

/* A part of one strip, whose first ring is under way. */
template <uint32_t type, int tiles, bool gated, bool aligned, bool resident>
static __device__ __forceinline__ void few_part(quant_ring<type, gated> &ring,
                                                fg_gpu_shared_scales<type> &shared,
                                                const few_in &in, const few_resident &stay,
                                                const part_steps &part, uint32_t lane,
                                                float (*sums)[tiles][4])
{
    typedef quant_ring<type, gated> shape;
    uint4 *put = fg_keep_shared(&shared.each[lane % 4 % fg_gpu_quant<type>::ring][0][lane / 4]);
    const uint4 *scales = fg_keep_shared(&shared.each[0][0][lane / 4]);
    uint32_t first = ring_first<type, gated>(part), left = part.end_unit - first;
    unit_rows<tiles, aligned, resident> rows;
    rows.stay = stay;
    if (rows.ahead) {
        unit_in unit = find_unit<aligned>(in, part.first_unit);
#pragma unroll
        for (uint32_t s = 0; s < FG_GPU_UNIT_STEPS; s++) {
            load_step(rows, in, unit, s);
        }
    }
    for (;;) {
        uint32_t next = first + shape::span,
                 next_left = left > shape::span ? left - shape::span : 0;
        fg_gpu_share_scales<type>(put, ring.raw, lane);
        load_raw(ring, part, next, next_left, lane);
#pragma unroll
        for (uint32_t i = 0; i < shape::span; i++) {
            if (is_in<type>(part, first, left, i)) {
                use_unit<type, tiles, gated, aligned, resident>(
                    ring, scales, in, rows, part, first + i, i * shape::matrices, sums);
            }
            load_codes(ring, part, next, next_left, i, lane);
        }
        if (next_left == 0) {
            return;
        }
        first = next;
        left = next_left;
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

/* As many as have registers enough. */
template <uint32_t type> static constexpr uint32_t blocks_at_once(int tiles, bool gated)
{
    typedef fg_gpu_quant<type> quant;
    if (tiles == 1) {
        return quant::high_bits == 0 && (quant::is_pairs || !gated) ? 4 : 3;
    }
    return tiles == 2 || (tiles == 4 && !gated) ? 3 : 2;
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

/* In shared memory: scales, the parts of gate and of up, and rows that stay. */
template <uint32_t type, int tiles, bool gated> struct quant_memory {
    /* Gate and up of many rows take turns. */
    static constexpr bool turns = gated && tiles > 4;
    fg_gpu_shared_scales<type> scales[FG_GPU_PARTS];
    float gates[turns ? tiles * 8 * FG_GPU_STRIP : 4];
};

/* Floats of one matrix's parts. */
static constexpr __host__ __device__ __forceinline__ uint32_t part_floats(uint32_t rows)
{
    return FG_GPU_PARTS * rows * FG_GPU_STRIP;
}

template <uint32_t type, int tiles, bool gated>
static constexpr size_t memory_bytes(uint32_t rows, size_t resident_bytes)
{
    typedef quant_memory<type, tiles, gated> shape;
    return sizeof(shape) + part_floats(rows) * sizeof(float) * (gated && !shape::turns ? 2 : 1) +
           resident_bytes;
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

/* A strip a block. `aligned`: parts are whole units; `resident`: rows stay in shared memory. */
template <uint32_t type, int tiles, bool gated, bool aligned, bool resident>
static __global__ __launch_bounds__(
    FEW_THREADS, blocks_at_once<type>(tiles, gated)) void few_quant_rows(fg_gpu_products set)
{
    FG_SHARED_BYTES(shared);
    typedef quant_memory<type, tiles, gated> memory_type;
    memory_type *memory = (memory_type *)shared;
    const fg_gpu_product &p = fg_gpu_find_product(set, blockIdx.x);
    uint32_t strip = blockIdx.x - p.strip_first;
    uint32_t warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    part_steps part = find_part(set, warp);
    bool mine = part.first < part.end;
    size_t at = fg_gpu_unit_at<type>(fg_gpu_units(set.steps)) * strip;
    few_in in = find_rows<tiles, aligned>(set, lane);
    uint4 *area = (uint4 *)((float *)(memory + 1) + part_floats(set.rows) * (gated ? 2 : 1));
    few_resident stay = find_resident(area, set.rows, lane);
    quant_ring<type, gated> ring;
    float sums[ring.matrices][tiles][4] = {};
    few_before<tiles> before;
    fg_gpu_let_next();
    if (mine) {
        fill_ring(ring, p, at, part, lane);
    }
    fg_gpu_wait();
    if (resident && mine) {
        copy_resident(area, set, part.first, part.end, lane);
    }
    if constexpr (!gated) {
        load_before<tiles>(before, set, p, strip);
    }
    if (mine) {
        few_part<type, tiles, gated, aligned, resident>(ring, memory->scales[warp], in, stay, part,
                                                        lane, sums);
    }
    put_strip<type, tiles, gated>(memory, set, p, strip, warp, mine, lane, sums, before);
}

/* With many rows what is saved by whole units is not much, and registers are short. */
static constexpr bool may_align(int tiles)
{
    return tiles <= 4;
}

template <uint32_t type, int tiles, bool gated, bool resident>
static void launch(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips)
{
    size_t bytes =
        memory_bytes<type, tiles, gated>(set.rows, resident ? set.rows * set.columns * 2 : 0);
    if constexpr (may_align(tiles)) {
        if (set.part_steps % FG_GPU_UNIT_STEPS == 0 && set.steps % FG_GPU_UNIT_STEPS == 0) {
            FG_LAUNCH((few_quant_rows<type, tiles, gated, true, resident>), dim3(strips),
                      dim3(FEW_THREADS), bytes, stream->stream, true, set);
            return;
        }
    }
    FG_LAUNCH((few_quant_rows<type, tiles, gated, false, resident>), dim3(strips),
              dim3(FEW_THREADS), bytes, stream->stream, true, set);
}

/* Whether rows may stay in shared memory. */
enum { RESIDENT_BYTES = 32 << 10 };
static bool is_resident(const fg_gpu_products &set)
{
    return set.rows <= 8 && set.rows * set.columns * 2 <= RESIDENT_BYTES;
}

template <uint32_t type, bool gated>
static void few_gated(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips)
{
    if (is_resident(set)) {
        launch<type, 1, gated, true>(stream, set, strips);
    } else if (set.rows <= 8) {
        launch<type, 1, gated, false>(stream, set, strips);
    } else if (set.rows <= 16) {
        launch<type, 2, gated, false>(stream, set, strips);
    } else if (set.rows <= 32) {
        launch<type, 4, gated, false>(stream, set, strips);
    } else {
        launch<type, 8, gated, false>(stream, set, strips);
    }
}

template <uint32_t type>
static void few(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips, bool gated)
{
    gated ? few_gated<type, true>(stream, set, strips)
          : few_gated<type, false>(stream, set, strips);
}

void fg_gpu_few_quant(fg_device_stream *stream, uint32_t type, const fg_gpu_products &set,
                      uint32_t strips, bool gated)
{
    FG_GPU_QUANT_SWITCH(type, few, stream, set, strips, gated);
}

template <uint32_t type, int tiles, bool gated, bool aligned, bool resident>
static void prepare(void)
{
    constexpr size_t bytes =
        memory_bytes<type, tiles, gated>(tiles * 8, resident ? RESIDENT_BYTES : 0);
    static_assert(bytes <= 227 * 1024, "shared memory of a block");
    fg_gpu_check(cudaFuncSetAttribute(few_quant_rows<type, tiles, gated, aligned, resident>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
                 "preparing kernels");
}

template <uint32_t type, int tiles, bool resident> static void prepare_tiles(void)
{
    prepare<type, tiles, false, false, resident>();
    prepare<type, tiles, true, false, resident>();
    if constexpr (may_align(tiles)) {
        prepare<type, tiles, false, true, resident>();
        prepare<type, tiles, true, true, resident>();
    }
}

template <uint32_t type> static void prepare_type(void)
{
    prepare_tiles<type, 1, true>();
    prepare_tiles<type, 1, false>();
    prepare_tiles<type, 2, false>();
    prepare_tiles<type, 4, false>();
    prepare_tiles<type, 8, false>();
}

void fg_gpu_few_quant_prepare(void)
{
    for (uint32_t type :
         { FG_Q4_0, FG_Q4_1, FG_Q5_0, FG_Q5_1, FG_Q8_0, FG_Q4_K, FG_Q5_K, FG_Q6_K }) {
        [](uint32_t which) { FG_GPU_QUANT_SWITCH(which, prepare_type); }(type);
    }
}
