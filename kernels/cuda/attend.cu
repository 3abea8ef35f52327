/*
 * Attention over the paged KV, as cuda.h says what it is. A unit is up to 16 (row, head)s: rows of one sequence, query
 * heads of one KV head, so that K and V are read once for all of them.
 *
 *   groups    few rows of a sequence, as in decode: each tile of 128 slots is a piece of work of its own. A block of 4
 *             warps shares the slots of the scores, then the dimensions of the outputs, and writes a record: maxima,
 *             sums, outputs. Another kernel merges a group's records.
 *   prompts   many rows of a sequence: a block has up to 8 units, one a warp, and walks through the tiles; while one
 *             is computed the next one is on its way. On Hopper attend_wide.cu has the usual sizes of heads.
 *
 * All do the same operations on the same numbers in the same order. A tile of K or V lies in shared memory as in the
 * cache (cuda.h): in matrices of 8 slots x 8 dimensions, 128 bytes each, which tensor cores read without meeting in a
 * bank.
 */
#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/attend_merge.cuh"
#ifndef FG_GPU_EMULATED
#include "kernels/cuda/attend_feed.cuh"
#endif

enum {
    GROUP_WARPS = 4,
    GROUP_THREADS = GROUP_WARPS * 32,
    PROMPT_THREADS = FG_GPU_WARPS * 32,
    SLOT_PAIRS = FG_GPU_TILE / 2,
};

/* The memory of a tile. Heads have `dims` dimensions here, the last ones perhaps zeros. */
template <int dims> struct tile_memory {
    uint32_t keys[FG_GPU_TILE * dims / 2];
    uint32_t values[FG_GPU_TILE * dims / 2];
};

/* Asks for K or V of slots `first` .. of a tile, `limit` of the sequence at most; what there is not becomes zeros. A
 * piece of 16 slots is in one block, and in two rows of matrices. */
template <int dims, int threads>
static __device__ __forceinline__ void load_slots(uint32_t *to, const attend_job &job,
                                                  const unit &u, size_t offset, uint32_t first,
                                                  uint32_t limit)
{
    constexpr uint32_t parts = dims * FG_KV_PIECE / 8; /* of 16 bytes: 8 dimensions of a slot */
#pragma unroll
    for (uint32_t piece = 0; piece < FG_GPU_TILE / FG_KV_PIECE; piece++) {
        uint32_t slot = first + piece * FG_KV_PIECE;
        const uint8_t *from = slot < limit ? slot_at(job, u, slot, offset) : job.arena;
#pragma unroll
        for (uint32_t i = 0; i < parts; i += threads) {
            uint32_t part = i + threadIdx.x;
            if (parts % threads == 0 || part < parts) {
                uint32_t down = part / dims, across = part % dims;
                bool copy = across < job.head_dim && slot + down * 8 + across % 8 < limit;
                const uint8_t *source = from + (down * job.head_dim + across) * 16;
                fg_copy16(to + (piece * parts + part) * 4, copy ? source : job.arena, copy);
            }
        }
    }
}

/* Words from one (row, head)'s q to the next: banks of 8 rows differ. */
template <int dims> static constexpr __host__ __device__ uint32_t q_stride()
{
    return dims / 2 + 4;
}

/* q of a unit as bf16, scaled; (row, head)s that there are not are zeros. `threads` of a block or a warp, this one is
 * `index`. Fours of dimensions, all asked for before the first is used. */
template <int dims, int threads>
static __device__ __forceinline__ void load_q(uint32_t *to, const attend_job &job, const unit &u,
                                              uint32_t index)
{
    constexpr uint32_t fours = dims / 4, count = FG_GPU_GROUP_ROWS * fours;
    constexpr uint32_t each = (count + threads - 1) / threads;
    float4 kept[each];
#pragma unroll
    for (uint32_t i = 0; i < each; i++) {
        uint32_t at = index + i * threads, place = at / fours, d = at % fours * 4;
        uint32_t row = place / u.head_count, head = place % u.head_count;
        kept[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (row < u.row_count && d < job.head_dim) {
            kept[i] = *(const float4 *)(job.q +
                                        ((size_t)(u.row + row) * job.head_count + u.head + head) *
                                            job.head_dim +
                                        d);
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < each; i++) {
        uint32_t at = index + i * threads;
        if (count % threads == 0 || at < count) {
            uint32_t *words = to + at / fours * q_stride<dims>() + at % fours * 2;
            words[0] =
                fg_bf16_pair(__fmul_rn(kept[i].x, job.scale), __fmul_rn(kept[i].y, job.scale));
            words[1] =
                fg_bf16_pair(__fmul_rn(kept[i].z, job.scale), __fmul_rn(kept[i].w, job.scale));
        }
    }
}

/* Scores of `count` tiles of 8 slots, from slot 8 * tile of the tile on. */
template <int dims, int count>
static __device__ __forceinline__ void score(const tile_memory<dims> *memory, const uint32_t *q,
                                             uint32_t tile, uint32_t lane, float (*scores)[4])
{
    uint32_t g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < count; i++) {
        scores[i][0] = scores[i][1] = scores[i][2] = scores[i][3] = 0.0f;
    }
#pragma unroll
    for (uint32_t step = 0; step < dims / FG_GPU_STEP; step++) {
        const uint32_t *rows = q + g * q_stride<dims>() + step * 8 + t;
        const uint32_t a[4] = { rows[0], rows[8 * q_stride<dims>()], rows[4],
                                rows[8 * q_stride<dims>() + 4] };
#pragma unroll
        for (int i = 0; i < count; i += 2) {
            /* Of two tiles the matrices of both halves of the step. */
            uint32_t b[4], down = tile + i + lane / 16, across = 2 * step + lane / 8 % 2;
            fg_load_matrices(b, memory->keys + (down * (dims / 8) + across) * 32 + lane % 8 * 4);
            fg_mma(scores[i], a, b[0], b[1]);
            fg_mma(scores[i + 1], a, b[2], b[3]);
        }
    }
}

/* One step of outputs: 16 slots of `count` tiles of 8 dimensions, from dimension 8 * tile on. */
template <int dims, int count>
static __device__ __forceinline__ void mix(const tile_memory<dims> *memory, const uint32_t a[4],
                                           uint32_t step, uint32_t tile, uint32_t lane,
                                           float (*outputs)[4])
{
    uint32_t down = 2 * step + lane / 8 % 2, second = lane / 16;
#pragma unroll
    for (int i = 0; i < count; i += 2) {
        /* Of two tiles the matrices of both halves of the step; the last of an odd number is read twice. */
        uint32_t b[4], across = tile + i + (i + 1 < count ? second : 0);
        fg_load_matrices_turned(b,
                                memory->values + (down * (dims / 8) + across) * 32 + lane % 8 * 4);
        fg_mma(outputs[i], a, b[0], b[1]);
        if (i + 1 < count) {
            fg_mma(outputs[i + 1], a, b[2], b[3]);
        }
    }
}

/* ---- groups ---- */

template <int dims> struct group_memory {
    tile_memory<dims> tile;
    uint32_t q[FG_GPU_GROUP_ROWS * (dims / 2 + 4)];
    uint32_t weights[FG_GPU_GROUP_ROWS][SLOT_PAIRS + 4];
    float tops[GROUP_WARPS][FG_GPU_GROUP_ROWS];
    float sums[GROUP_WARPS][FG_GPU_GROUP_ROWS][4];
    uint64_t keys_full, values_full; /* of bulk copies */
};

/* How a block's tiles come: asked for by all threads, where there are no bulk copies or they do not fit. */
template <int dims> struct group_copies {
    __device__ __forceinline__ void open(group_memory<dims> *memory)
    {
    }

    /* The kernels before have ended. */
    __device__ __forceinline__ void begin(void)
    {
    }

    /* The tile that keys and values are asked of next. */
    __device__ __forceinline__ void look(const attend_job &job, const unit &u, uint32_t first,
                                         uint32_t limit)
    {
    }

    __device__ __forceinline__ void ask_keys(group_memory<dims> *memory, const attend_job &job,
                                             const unit &u, uint32_t first, uint32_t limit)
    {
        load_slots<dims, GROUP_THREADS>(memory->tile.keys, job, u, job.key_offset, first, limit);
    }

    __device__ __forceinline__ void ask_values(group_memory<dims> *memory, const attend_job &job,
                                               const unit &u, uint32_t first, uint32_t limit)
    {
        load_slots<dims, GROUP_THREADS>(memory->tile.values, job, u, job.value_offset, first,
                                        limit);
    }

    /* Keys and values are asked for in turns, and each time this follows. */
    __device__ __forceinline__ void asked(void)
    {
        fg_copy_commit();
    }

    __device__ __forceinline__ void wait_keys(group_memory<dims> *memory)
    {
        fg_copy_wait<1>();
        __syncthreads();
    }

    __device__ __forceinline__ void wait_values(group_memory<dims> *memory)
    {
        fg_copy_wait<1>();
        __syncthreads();
    }
};

#ifndef FG_GPU_EMULATED
/* Asked for by the first warp. */
template <int dims> struct group_bulk {
    uint32_t block, keys_parity, values_parity;

    __device__ __forceinline__ void open(group_memory<dims> *memory)
    {
#if __CUDA_ARCH__ >= 900
        keys_parity = values_parity = 0;
        if (threadIdx.x == 0) {
            fg_barrier_init(&memory->keys_full, 1);
            fg_barrier_init(&memory->values_full, 1);
            fg_barrier_made();
        }
        __syncthreads();
#endif
    }

    /* The newest slots were stored in the usual way. */
    __device__ __forceinline__ void begin(void)
    {
#if __CUDA_ARCH__ >= 900
        if (threadIdx.x < 32) {
            fg_bulk_fence();
        }
#endif
    }

    __device__ __forceinline__ void look(const attend_job &job, const unit &u, uint32_t first,
                                         uint32_t limit)
    {
        if (threadIdx.x < 32) {
            block = feed_block(job, u, first, limit, threadIdx.x);
        }
    }

    __device__ __forceinline__ void ask_keys(group_memory<dims> *memory, const attend_job &job,
                                             const unit &u, uint32_t first, uint32_t limit)
    {
#if __CUDA_ARCH__ >= 900
        if (threadIdx.x < 32) {
            feed_tile<dims, false>((uint8_t *)memory->tile.keys, job, u, block, first, limit,
                                   &memory->keys_full, threadIdx.x);
        }
#endif
    }

    __device__ __forceinline__ void ask_values(group_memory<dims> *memory, const attend_job &job,
                                               const unit &u, uint32_t first, uint32_t limit)
    {
#if __CUDA_ARCH__ >= 900
        if (threadIdx.x < 32) {
            feed_tile<dims, true>((uint8_t *)memory->tile.values, job, u, block, first, limit,
                                  &memory->values_full, threadIdx.x);
        }
#endif
    }

    __device__ __forceinline__ void asked(void)
    {
    }

    __device__ __forceinline__ void wait_keys(group_memory<dims> *memory)
    {
#if __CUDA_ARCH__ >= 900
        fg_barrier_wait(&memory->keys_full, keys_parity);
        keys_parity ^= 1;
#endif
    }

    __device__ __forceinline__ void wait_values(group_memory<dims> *memory)
    {
#if __CUDA_ARCH__ >= 900
        fg_barrier_wait(&memory->values_full, values_parity);
        values_parity ^= 1;
#endif
    }
};
#endif

/* A piece of work: a tile of a unit of a group. Work is numbered by group, then unit, then tile, so that a block's next
 * piece mostly has the same q. */
typedef struct group_work {
    uint32_t group, index;  /* of the unit */
    uint32_t tile;          /* of the group */
    uint32_t before, tiles; /* tiles of groups before, and of this one */
} group_work;

static __device__ __forceinline__ group_work find_work(const attend_job &job, uint32_t number,
                                                       uint32_t all_units, uint32_t groups)
{
    uint32_t low = 0, high = groups - 1;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (number < job.ends[middle] * all_units) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    group_work work;
    work.group = low;
    work.before = low == 0 ? 0 : job.ends[low - 1];
    work.tiles = job.ends[low] - work.before;
    uint32_t inner = number - work.before * all_units;
    work.index = inner / work.tiles;
    work.tile = inner % work.tiles;
    return work;
}

/* The work after this one; only asked for when there is one. */
static __device__ __forceinline__ group_work next_work(const attend_job &job, group_work work,
                                                       uint32_t all_units)
{
    if (++work.tile == work.tiles) {
        work.tile = 0;
        if (++work.index == all_units) {
            work.index = 0;
            work.group++;
            work.before += work.tiles;
            work.tiles = job.ends[work.group] - work.before;
        }
    }
    return work;
}

/* Scores of a tile as weights in shared memory, and what the record says of them but its outputs. */
template <int dims>
static __device__ __forceinline__ void group_scores(group_memory<dims> *memory,
                                                    const int32_t seen[2])
{
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float scores[SLICE_TILES][4], tops[2], sums[2];
    uint32_t weights[SLICE_TILES][2];
    score<dims, SLICE_TILES>(&memory->tile, memory->q, warp * SLICE_TILES, lane, scores);
    hide<SLICE_TILES>(scores, warp * SLICE_TILES, lane, seen);
    highest<SLICE_TILES>(scores, tops);
    if (t == 0) {
        memory->tops[warp][g] = tops[0];
        memory->tops[warp][g + 8] = tops[1];
    }
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = memory->tops[0][g + 8 * half];
        for (int w = 1; w < GROUP_WARPS; w++) {
            top = fmaxf(top, memory->tops[w][g + 8 * half]);
        }
        tops[half] = top;
    }
    weigh(scores, tops, sums);
    pack_weights<SLICE_TILES>(scores, weights);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        memory->sums[warp][g + 8 * half][t] = sums[half];
#pragma unroll
        for (int i = 0; i < SLICE_TILES; i++) {
            memory->weights[g + 8 * half][(warp * SLICE_TILES + i) * 4 + t] = weights[i][half];
        }
    }
}

/* A record as the threads of a block have it: each has some dimensions of rows g and g + 8. */
template <int dims> struct group_state {
    static constexpr int mine = dims / 8 >= GROUP_WARPS ? dims / 8 / GROUP_WARPS : 1;
    float tops[2], sums[2];
    float outputs[mine][4];

    __device__ __forceinline__ void clear(void)
    {
        tops[0] = tops[1] = MINUS_INFINITY;
        sums[0] = sums[1] = 0.0f;
#pragma unroll
        for (int i = 0; i < mine; i++) {
            outputs[i][0] = outputs[i][1] = outputs[i][2] = outputs[i][3] = 0.0f;
        }
    }
};

/* The tile joins those before it, or is all there is. */
template <int dims>
static __device__ __forceinline__ void group_outputs(group_memory<dims> *memory, bool joins,
                                                     group_state<dims> *state)
{
    constexpr int mine = group_state<dims>::mine;
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float outputs[mine][4] = {};
    if (warp * mine < dims / 8) {
#pragma unroll 2
        for (uint32_t step = 0; step < FG_GPU_TILE / FG_GPU_STEP; step++) {
            const uint32_t *low = &memory->weights[g][step * 8 + t],
                           *high = &memory->weights[g + 8][step * 8 + t];
            const uint32_t a[4] = { low[0], high[0], low[4], high[4] };
            mix<dims, mine>(&memory->tile, a, step, warp * mine, lane, outputs);
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t place = g + 8 * half;
        float slices[SLICES], top = memory->tops[0][place], old_factor, new_factor;
        for (int w = 1; w < GROUP_WARPS; w++) {
            top = fmaxf(top, memory->tops[w][place]);
        }
        for (int w = 0; w < SLICES; w++) {
            slices[w] = memory->sums[w][place][t];
        }
        float sum = sum_slices(slices);
        if (!joins) {
            state->tops[half] = top;
            state->sums[half] = sum;
        } else {
            merge(&state->tops[half], &state->sums[half], top, sum, &old_factor, &new_factor);
        }
#pragma unroll
        for (int i = 0; i < mine; i++) {
            for (int j = 2 * half; j < 2 * half + 2; j++) {
                state->outputs[i][j] =
                    joins ? merged(state->outputs[i][j], outputs[i][j], old_factor, new_factor)
                          : outputs[i][j];
            }
        }
    }
}

template <int dims>
static __device__ __forceinline__ void put_record(const attend_job &job, float *record,
                                                  uint32_t record_rows,
                                                  const group_state<dims> &state)
{
    constexpr int mine = group_state<dims>::mine;
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t place = g + 8 * half;
        if (place >= record_rows) {
            continue;
        }
        if (warp == 0 && t == 0) {
            record[place] = state.tops[half];
            record[record_rows + place] = state.sums[half];
        }
        float *to = record + 2 * record_rows + (size_t)place * job.head_dim;
#pragma unroll
        for (int i = 0; i < mine; i++) {
            uint32_t d = (warp * mine + i) * 8 + 2 * t;
            if (d < job.head_dim && warp * mine < dims / 8) {
                *(float2 *)(to + d) =
                    make_float2(state.outputs[i][2 * half], state.outputs[i][2 * half + 1]);
            }
        }
    }
}

/* What a block knows of the unit it works on; of its lane's rows g and g + 8 the slots that they see. */
typedef struct group_unit {
    unit u;
    uint32_t limit;
    int32_t seen[2];
} group_unit;

static __device__ __forceinline__ group_unit find_group_unit(const attend_job &job,
                                                             const group_work &work)
{
    group_unit unit;
    uint32_t g = threadIdx.x % 32 / 4;
    unit.u = find_unit(job, job.groups[work.group], work.index);
    unit.limit = job.rows[unit.u.row + unit.u.row_count - 1].position + 1;
    unit.seen[0] = seen_of(job, unit.u, g, 0);
    unit.seen[1] = seen_of(job, unit.u, g + 8, 0);
    return unit;
}

/* A block has some pieces of work that follow each other. A unit's tiles from the first one on join as they come, and what
 * has come of them is one record; those of a unit that another block has begun are a record each. While scores are made the tile's V is on its way, and while
 * outputs are made the next one's K: the memory never rests. What is staged was there before the step's first kernel;
 * what kernels made is not read before the wait. */
template <int dims, template <int> class feeds>
static __global__ __launch_bounds__(GROUP_THREADS) void attend_groups(attend_job job)
{
    FG_SHARED_BYTES(shared);
    group_memory<dims> *memory = (group_memory<dims> *)shared;
    fg_gpu_let_next();
    fg_gpu_counts counts = *job.counts;
    group_pieces pieces = {};
    uint32_t number = 0, end = 0;
    if (counts.groups > 0) {
        pieces = find_pieces(job, counts);
        number = share_begins(job, pieces, blockIdx.x);
        end = share_begins(job, pieces, blockIdx.x + 1);
    }
    if (number == end) {
        fg_gpu_wait();
        return;
    }
    group_work work = find_work(job, number, pieces.all_units, counts.groups);
    group_unit now = find_group_unit(job, work);
    feeds<dims> feed;
    feed.open(memory);
    feed.look(job, now.u, work.tile * FG_GPU_TILE, now.limit);
    fg_gpu_wait();
    feed.begin();
    feed.ask_keys(memory, job, now.u, work.tile * FG_GPU_TILE, now.limit);
    feed.asked();
    feed.ask_values(memory, job, now.u, work.tile * FG_GPU_TILE, now.limit);
    feed.asked();
    load_q<dims, GROUP_THREADS>(memory->q, job, now.u, threadIdx.x);
    __syncthreads();
    group_state<dims> state;
    state.clear();
    bool joins = work.tile == 0;
    for (; number < end; number++) {
        bool more = number + 1 < end;
        group_work next = more ? next_work(job, work, pieces.all_units) : work;
        bool same = next.group == work.group && next.index == work.index;
        group_unit later = same ? now : find_group_unit(job, next);
        uint32_t next_first = next.tile * FG_GPU_TILE;
        int32_t first = (int32_t)(work.tile * FG_GPU_TILE);
        const int32_t seen[2] = { now.seen[0] - first, now.seen[1] - first };
        if (more) {
            feed.look(job, later.u, next_first, later.limit);
        }
        feed.wait_keys(memory);
        group_scores<dims>(memory, seen);
        __syncthreads();
        if (more) {
            feed.ask_keys(memory, job, later.u, next_first, later.limit);
        }
        feed.asked();
        if (!same) {
            load_q<dims, GROUP_THREADS>(memory->q, job, later.u, threadIdx.x);
        }
        feed.wait_values(memory);
        group_outputs<dims>(memory, joins, &state);
        __syncthreads();
        if (more) {
            feed.ask_values(memory, job, later.u, next_first, later.limit);
        }
        feed.asked();
        if (!joins || !more || !same) {
            put_record<dims>(job,
                             record_at(job, work.before + work.tile - pieces.first_tile, work.index,
                                       counts.record_rows),
                             counts.record_rows, state);
        }
        if (!same) {
            state.clear();
            joins = true;
        }
        work = next;
        now = later;
    }
}

/* ---- prompts ---- */

/* Two tiles of heads up to 128, where a block has room for them: one is on its way while the other is computed. */
template <int dims, uint32_t tile_count> struct prompt_memory {
    tile_memory<dims> tiles[tile_count];
    uint32_t q[FG_GPU_WARPS][FG_GPU_GROUP_ROWS * (dims / 2 + 4)];
};

/* Large heads: outputs of a tile are made and merged some dimensions at a time, so that registers suffice. */
template <int dims> static constexpr __host__ __device__ int mix_tiles()
{
    return dims / 8 < 8 ? dims / 8 : 8;
}

template <int dims>
static __device__ __forceinline__ void prompt_tile(const tile_memory<dims> *tile, const uint32_t *q,
                                                   uint32_t lane, const int32_t seen[2],
                                                   row_state *state, float (*outputs)[4])
{
    constexpr int all = FG_GPU_TILE / 8;
    float scores[all][4], tops[2], slices[2][SLICES], old_factors[2], new_factors[2];
    uint32_t weights[all][2];
    score<dims, all>(tile, q, 0, lane, scores);
    hide<all>(scores, 0, lane, seen);
    highest<all>(scores, tops);
#pragma unroll
    for (int slice = 0; slice < SLICES; slice++) {
        float sums[2];
        weigh(scores + slice * SLICE_TILES, tops, sums);
        slices[0][slice] = sums[0];
        slices[1][slice] = sums[1];
    }
    pack_weights<all>(scores, weights);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        merge(&state->tops[half], &state->sums[half], tops[half], sum_slices(slices[half]),
              &old_factors[half], &new_factors[half]);
    }
    constexpr int some = mix_tiles<dims>();
#pragma unroll
    for (int first = 0; first < dims / 8; first += some) {
        float made[some][4] = {};
#pragma unroll
        for (int step = 0; step < FG_GPU_TILE / FG_GPU_STEP; step++) {
            const uint32_t a[4] = { weights[2 * step][0], weights[2 * step][1],
                                    weights[2 * step + 1][0], weights[2 * step + 1][1] };
            mix<dims, some>(tile, a, step, first, lane, made);
        }
#pragma unroll
        for (int i = 0; i < some; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                outputs[first + i][j] = merged(outputs[first + i][j], made[i][j],
                                               old_factors[j / 2], new_factors[j / 2]);
            }
        }
    }
}

/* Blocks: x a prompt's piece, the later ones, which have most to do, first; y a unit of heads. */
template <int dims, uint32_t tile_count>
static __global__ __launch_bounds__(PROMPT_THREADS, 1) void attend_prompts(attend_job job)
{
    FG_SHARED_BYTES(shared);
    typedef prompt_memory<dims, tile_count> memory_type;
    memory_type *memory = (memory_type *)shared;
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    fg_gpu_let_next();
    fg_gpu_wait();
    fg_gpu_span span = job.prompts[gridDim.x - 1 - blockIdx.x];
    unit all = find_unit(job, span, blockIdx.y), u = all;
    uint32_t each = FG_GPU_GROUP_ROWS / job.unit_heads;
    uint32_t skipped = warp * each < span.count ? warp * each : span.count;
    u.row += skipped;
    u.row_count = span.count - skipped < each ? span.count - skipped : each;
    load_q<dims, 32>(memory->q[warp], job, u, lane);
    __syncwarp();
    uint32_t limit = job.rows[span.first + span.count - 1].position + 1;
    uint32_t mine = u.row_count > 0 ? job.rows[u.row + u.row_count - 1].position + 1 : 0;
    row_state state = { { MINUS_INFINITY, MINUS_INFINITY }, { 0.0f, 0.0f } };
    float outputs[dims / 8][4] = {};
    uint32_t count = (limit + FG_GPU_TILE - 1) / FG_GPU_TILE;
    constexpr uint32_t ahead = tile_count - 1;
    if constexpr (ahead > 0) {
        load_slots<dims, PROMPT_THREADS>(memory->tiles[0].keys, job, all, job.key_offset, 0, limit);
        load_slots<dims, PROMPT_THREADS>(memory->tiles[0].values, job, all, job.value_offset, 0,
                                         limit);
        fg_copy_commit();
    }
    for (uint32_t tile = 0; tile < count; tile++) {
        uint32_t first = tile * FG_GPU_TILE;
        if (tile + ahead < count) {
            tile_memory<dims> *next = &memory->tiles[(tile + ahead) % (ahead + 1)];
            load_slots<dims, PROMPT_THREADS>(next->keys, job, all, job.key_offset,
                                             first + ahead * FG_GPU_TILE, limit);
            load_slots<dims, PROMPT_THREADS>(next->values, job, all, job.value_offset,
                                             first + ahead * FG_GPU_TILE, limit);
        }
        fg_copy_commit();
        fg_copy_wait<ahead>();
        __syncthreads();
        tile_memory<dims> *here = &memory->tiles[tile % (ahead + 1)];
        if (first < mine) {
            const int32_t seen[2] = { seen_of(job, u, g, first), seen_of(job, u, g + 8, first) };
            prompt_tile<dims>(here, memory->q[warp], lane, seen, &state, outputs);
        }
        __syncthreads();
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t place = g + 8 * half, row = place / u.head_count;
        if (row >= u.row_count) {
            continue;
        }
        float factor = __fdiv_rn(1.0f, state.sums[half]);
        uint32_t head = u.head + place % u.head_count;
#pragma unroll
        for (int i = 0; i < dims / 8; i++) {
            uint32_t d = i * 8 + 2 * t;
            if (d < job.head_dim) {
                put_output(job, u.row + row, head, d, __fmul_rn(outputs[i][2 * half], factor),
                           __fmul_rn(outputs[i][2 * half + 1], factor));
            }
        }
    }
}

/* ---- starting them ---- */

/* Groups from `first` on whose records there is room for. */
static uint32_t groups_that_fit(const fg_device_stream *stream, const attend_job &job,
                                uint32_t first)
{
    const uint32_t *ends = stream->host_at.ends;
    uint32_t before = first == 0 ? 0 : ends[first - 1], end = first + 1;
    size_t each =
        (size_t)job.kv_head_count * job.units * stream->counts.record_rows * (job.head_dim + 2);
    while (end < stream->counts.groups && (ends[end] - before) * each <= stream->record_floats) {
        end++;
    }
    return end;
}

template <int dims> static void start_groups(fg_device_stream *stream, const attend_job &job)
{
    constexpr size_t bytes = sizeof(group_memory<dims>);
#ifndef FG_GPU_EMULATED
    if (fg_gpu_early && job.head_dim == dims) {
        FG_LAUNCH((attend_groups<dims, group_bulk>), dim3(job.group_blocks), dim3(GROUP_THREADS),
                  bytes, stream->stream, true, job);
        return;
    }
#endif
    FG_LAUNCH((attend_groups<dims, group_copies>), dim3(job.group_blocks), dim3(GROUP_THREADS),
              bytes, stream->stream, true, job);
}

template <int dims>
static void launch_groups(fg_device_stream *stream, attend_job &job, uint32_t rows)
{
    /* A block takes 1 KiB more than it asks for, and a multiprocessor has 2048 threads. */
    size_t each = stream->device->shared_bytes / (sizeof(group_memory<dims>) + 1024);
    each = each < 1 ? 1 : each < 2048 / GROUP_THREADS ? each : 2048 / GROUP_THREADS;
    job.group_blocks = (uint32_t)(stream->device->multiprocessors * each);
    dim3 merge_grid(stream->passes ? stream->counts.groups : rows, job.kv_head_count * job.units);
    job.group_first = 0;
    job.group_end = UINT32_MAX;
    do {
        if (stream->passes) {
            job.group_end = groups_that_fit(stream, job, job.group_first);
        }
        start_groups<dims>(stream, job);
        FG_LAUNCH(merge_groups<dims>, merge_grid, dim3(32 * merge_shape<dims>::warps), 0,
                  stream->stream, true, job);
        job.group_first = job.group_end;
    } while (job.group_end < stream->counts.groups);
}

template <int dims> static constexpr uint32_t tiles_of(void)
{
    return dims <= 128 ? 2 : 1;
}

template <int dims, uint32_t tile_count>
static void launch_prompts(fg_device_stream *stream, const attend_job &job)
{
    FG_LAUNCH((attend_prompts<dims, tile_count>),
              dim3(stream->counts.prompts, job.kv_head_count * job.units), dim3(PROMPT_THREADS),
              sizeof(prompt_memory<dims, tile_count>), stream->stream, true, job);
}

template <int dims> static void launch(fg_device_stream *stream, attend_job &job, uint32_t rows)
{
    /* A step without prompts may be recorded: the next one has other groups, so these kernels look at what is staged. */
    if (stream->counts.groups > 0 || stream->counts.prompts == 0) {
        launch_groups<dims>(stream, job, rows);
    }
    constexpr uint32_t tiles = tiles_of<dims>();
    if (stream->counts.prompts == 0 || fg_gpu_attend_wide(stream, job)) {
        return;
    }
    if (fg_gpu_has_room(stream->device, sizeof(prompt_memory<dims, tiles>))) {
        launch_prompts<dims, tiles>(stream, job);
    } else {
        launch_prompts<dims, 1>(stream, job);
    }
}

void fg_cuda_attend(fg_device_stream *stream, const fg_paged_kv *kv, const fg_attend *args,
                    uint32_t rows)
{
    const fg_device *device = stream->device;
    if (rows != stream->rows.rows || args->kv_rows != stream->rows.kv_rows || args->window != 0) {
        fg_gpu_check(cudaErrorInvalidValue,
                     "attention over a part of a step's rows, or with a window");
    }
    attend_job job = {};
    job.q = args->q;
    job.out = args->out;
    job.rows = stream->at.rows;
    job.tables = stream->at.tables;
    job.groups = stream->at.groups;
    job.ends = stream->at.ends;
    job.prompts = stream->at.prompts;
    job.counts = stream->at.counts;
    job.arena = (const uint8_t *)kv->arena;
    job.block_bytes = kv->block_bytes;
    job.key_offset = kv->key_offset;
    job.value_offset = kv->value_offset;
    job.head_bytes = kv->head_bytes;
    job.block_size = kv->block_size;
    job.block_shift = (uint32_t)__builtin_ctz(kv->block_size);
    job.pairs = args->pairs;
    job.head_count = args->head_count;
    job.kv_head_count = kv->kv_head_count;
    job.heads = args->head_count / kv->kv_head_count;
    job.unit_heads = device->unit_heads;
    job.units = device->units;
    job.head_dim = kv->head_dim;
    job.scale = args->scale * 1.44269504f;
    job.records = stream->records;
    stream->sequence++;
    if (kv->head_dim <= 16) {
        launch<16>(stream, job, rows);
    } else if (kv->head_dim <= 32) {
        launch<32>(stream, job, rows);
    } else if (kv->head_dim <= 64) {
        launch<64>(stream, job, rows);
    } else if (kv->head_dim <= 96) {
        launch<96>(stream, job, rows);
    } else if (kv->head_dim <= 128) {
        launch<128>(stream, job, rows);
    } else {
        launch<256>(stream, job, rows);
    }
}

template <int dims> static void prepare_dims(const fg_device *device)
{
    constexpr uint32_t tiles = tiles_of<dims>();
    fg_gpu_allow_shared(device, attend_groups<dims, group_copies>, sizeof(group_memory<dims>));
#ifndef FG_GPU_EMULATED
    fg_gpu_allow_shared(device, attend_groups<dims, group_bulk>, sizeof(group_memory<dims>));
#endif
    fg_gpu_allow_shared(device, attend_prompts<dims, 1>, sizeof(prompt_memory<dims, 1>));
    fg_gpu_allow_shared(device, attend_prompts<dims, tiles>, sizeof(prompt_memory<dims, tiles>));
}

void fg_cuda_attend_prepare(const fg_device *device)
{
    fg_gpu_attend_wide_prepare(device);
    prepare_dims<16>(device);
    prepare_dims<32>(device);
    prepare_dims<64>(device);
    prepare_dims<96>(device);
    prepare_dims<128>(device);
    prepare_dims<256>(device);
}

template <int dims> static size_t bytes_of(void)
{
    size_t groups = sizeof(group_memory<dims>), prompts = sizeof(prompt_memory<dims, 1>);
    return groups > prompts ? groups : prompts;
}

size_t fg_cuda_attend_bytes(const fg_device *device)
{
    uint32_t dims = device->limits.head_dim;
    return dims <= 64    ? bytes_of<64>()
           : dims <= 96  ? bytes_of<96>()
           : dims <= 128 ? bytes_of<128>()
                         : bytes_of<256>();
}
