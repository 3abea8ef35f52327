/*
 * Prompts' attention on Hopper, for heads of 64, 96 and 128: as attend_prompts in attend.cu, but that four warps multiply
 * together (wgmma). A block has two groups of four warps with 64 (row, head)s each, a warp each that has tiles of K and of
 * V copied into shared memory ahead of them, and two that fetch the next item's q. There are as many blocks as multiprocessors; each takes one item
 * after the other, so that the next one's first tiles come while the last one ends.
 *
 * A group asks for the scores of the next tile before it asks for the outputs of this one, and makes weights of them
 * meanwhile, so that the tensor cores have something to do.
 */
#include "kernels/cuda/attend.cuh"

#ifdef FG_GPU_EMULATED

bool fg_gpu_attend_wide(fg_device_stream *stream, const attend_job &job)
{
    return false;
}

void fg_gpu_attend_wide_prepare(const fg_device *device)
{
}

#else

#include "kernels/cuda/attend_feed.cuh"

enum {
    WIDE_GROUPS = 2,
    WIDE_THREADS = (WIDE_GROUPS + 1) * 128,
    TILE_STEPS = FG_GPU_TILE / FG_GPU_STEP,
    SCORE_TILES = FG_GPU_TILE / 8,
};

template <int dims> struct wide_memory {
    static constexpr uint32_t stages = dims <= 64 ? 3 : 2;
    static constexpr uint32_t group_bytes = dims * 16; /* of 8 slots */
    /* Outputs are made so many dimensions at a time, so that registers suffice. */
    static constexpr int made_dims = dims == 128 ? 64 : dims;
    uint8_t q[2][FG_GPU_WARPS * 2][group_bytes]; /* of an item, and of the next one */
    uint8_t keys[stages][TILE_GROUPS][group_bytes];
    uint8_t values[stages][TILE_GROUPS][group_bytes];
    uint64_t keys_full[stages], keys_empty[stages], values_full[stages], values_empty[stages];
    uint64_t q_full[2], q_empty[2];
};

/* ---- tiles on their way ---- */

/* What a block does in a round: some rows of a prompt and the heads of a unit. The later rows, which have most to do,
 * come first, and every other round goes the other way, so that all blocks have about as much. */
typedef struct wide_item {
    unit all;
    uint32_t limit, tiles;
} wide_item;

static __device__ __forceinline__ bool find_item(const attend_job &job, uint32_t prompts,
                                                 uint32_t round, wide_item *item)
{
    uint32_t units = job.kv_head_count * job.units;
    uint32_t place = round % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x;
    uint32_t index = round * gridDim.x + place;
    if (index >= prompts * units) {
        return false;
    }
    fg_gpu_span span = job.prompts[prompts - 1 - index / units];
    item->all = find_unit(job, span, index % units);
    item->limit = job.rows[span.first + span.count - 1].position + 1;
    item->tiles = (item->limit + FG_GPU_TILE - 1) / FG_GPU_TILE;
    return true;
}

/* All tiles of K or of V of an item, by a warp of its own, so that neither waits for the other's places; `before`: tiles
 * of items before. */
template <int dims, bool is_values>
static __device__ __forceinline__ void feed_item(wide_memory<dims> *memory, const attend_job &job,
                                                 const wide_item &item, uint32_t before,
                                                 uint32_t lane)
{
    constexpr uint32_t stages = wide_memory<dims>::stages;
    const unit &u = item.all;
    uint32_t limit = item.limit, next = feed_block(job, u, 0, limit, lane);
    for (uint32_t tile = 0; tile < item.tiles; tile++) {
        uint32_t slot = (before + tile) % stages, parity = (before + tile) / stages % 2 ^ 1;
        uint32_t block = next;
        next = feed_block(job, u, (tile + 1) * FG_GPU_TILE, limit, lane);
        fg_barrier_wait(is_values ? &memory->values_empty[slot] : &memory->keys_empty[slot],
                        parity);
        feed_tile<dims, is_values>(
            is_values ? memory->values[slot][0] : memory->keys[slot][0], job, u, block,
            tile * FG_GPU_TILE, limit,
            is_values ? &memory->values_full[slot] : &memory->keys_full[slot], lane);
    }
}

template <int dims, bool is_values>
static __device__ __forceinline__ void feed(wide_memory<dims> *memory, const attend_job &job,
                                            uint32_t prompts, uint32_t lane)
{
    wide_item item;
    fg_bulk_fence();
    for (uint32_t round = 0, before = 0; find_item(job, prompts, round, &item); round++) {
        feed_item<dims, is_values>(memory, job, item, before, lane);
        before += item.tiles;
    }
}

/* ---- tiles in use ---- */

/* The unit of one warp, `index` of the block's. */
static __device__ __forceinline__ unit find_own(const attend_job &job, const wide_item &item,
                                                uint32_t index)
{
    uint32_t each = FG_GPU_GROUP_ROWS / job.unit_heads, rows = item.all.row_count;
    uint32_t skipped = index * each < rows ? index * each : rows;
    unit u = item.all;
    u.row += skipped;
    u.row_count = rows - skipped < each ? rows - skipped : each;
    return u;
}

/* A unit's q as bf16, scaled, in matrices of 8 (row, head)s x 8 dimensions. Fours of dimensions, `at_once` of a lane's
 * asked for before the first of them is used. */
template <int dims, uint32_t at_once>
static __device__ __forceinline__ void put_q(uint8_t *to, const attend_job &job, const unit &u,
                                             uint32_t lane)
{
    constexpr uint32_t fours = dims / 4, each = FG_GPU_GROUP_ROWS * fours / 32;
    static_assert(each % at_once == 0, "a lane's fours");
    uint32_t own = lane % FG_GPU_GROUP_ROWS, row = own / u.head_count;
    bool real = row < u.row_count;
    uint32_t first = real ? (u.row + row) * job.head_count + u.head + own % u.head_count : 0;
    uint32_t reals = __ballot_sync(0xFFFFFFFFu, real);
#pragma unroll 1
    for (uint32_t begin = 0; begin < each; begin += at_once) {
        float4 kept[at_once];
#pragma unroll
        for (uint32_t i = 0; i < at_once; i++) {
            uint32_t at = lane + (begin + i) * 32;
            size_t head = __shfl_sync(0xFFFFFFFFu, first, (int)(at / fours));
            kept[i] = *(const float4 *)(job.q + head * dims + at % fours * 4);
        }
#pragma unroll
        for (uint32_t i = 0; i < at_once; i++) {
            uint32_t at = lane + (begin + i) * 32, place = at / fours, four = at % fours;
            uint2 words = {
                fg_bf16_pair(__fmul_rn(kept[i].x, job.scale), __fmul_rn(kept[i].y, job.scale)),
                fg_bf16_pair(__fmul_rn(kept[i].z, job.scale), __fmul_rn(kept[i].w, job.scale))
            };
            *(uint2 *)(to + place / 8 * (dims * 16) + four / 2 * 128 + place % 8 * 16 +
                       four % 2 * 8) = reals >> place & 1 ? words : uint2{};
        }
    }
}

/* The q of all items but the first, by two warps: that of an item is there before it begins. */
template <int dims>
static __device__ __forceinline__ void feed_q(wide_memory<dims> *memory, const attend_job &job,
                                              uint32_t prompts, uint32_t half, uint32_t lane)
{
    wide_item item;
    for (uint32_t round = 1; find_item(job, prompts, round, &item); round++) {
        uint32_t place = round % 2;
        if (round > 1) {
            fg_barrier_wait(&memory->q_empty[place], (round / 2 - 1) % 2);
        }
        for (uint32_t index = half; index < FG_GPU_WARPS; index += 2) {
            put_q<dims, 2>(memory->q[place][index * 2], job, find_own(job, item, index), lane);
        }
        fg_shared_fence();
        __syncwarp();
        if (lane == 0) {
            fg_barrier_arrive(&memory->q_full[place]);
        }
    }
}

/* What a group of warps knows. */
typedef struct wide_group {
    uint32_t q; /* in shared memory */
    uint32_t lane;
    int32_t seen[2]; /* slots of the sequence that rows g and g + 8 see */
} wide_group;

/* Scores of a tile, begun. */
template <int dims>
static __device__ __forceinline__ void begin_scores(const wide_group &group, uint32_t keys,
                                                    float *scores)
{
    uint64_t q_at = fg_wgmma_place(group.q, 128, dims * 16);
    uint64_t keys_at = fg_wgmma_place(keys, 128, dims * 16);
#pragma unroll
    for (uint32_t step = 0; step < dims / FG_GPU_STEP; step++) {
        fg_wgmma_shared(scores, fg_wgmma_further(q_at, step * 256),
                        fg_wgmma_further(keys_at, step * 256), step > 0 ? 1 : 0);
    }
    fg_wgmma_commit();
}

/* `count` dimensions of a tile's outputs from `first` on, begun. */
template <int dims, int count>
static __device__ __forceinline__ void begin_outputs(const uint32_t (*weights)[2], uint32_t values,
                                                     uint32_t first, float *made)
{
    uint64_t at = fg_wgmma_place(values + first * 16, dims * 16, 128);
#pragma unroll
    for (uint32_t step = 0; step < TILE_STEPS; step++) {
        const uint32_t a[4] = { weights[2 * step][0], weights[2 * step][1],
                                weights[2 * step + 1][0], weights[2 * step + 1][1] };
        fg_wgmma_turned<count>(made, a, fg_wgmma_further(at, step * 2 * (dims * 16)),
                               step > 0 ? 1 : 0);
    }
    fg_wgmma_commit();
}

template <int count>
static __device__ __forceinline__ void merge_outputs(float *outputs, const float *made,
                                                     const float old_factors[2],
                                                     const float new_factors[2])
{
#pragma unroll
    for (int i = 0; i < count / 2; i++) {
        outputs[i] = merged(outputs[i], made[i], old_factors[i / 2 % 2], new_factors[i / 2 % 2]);
    }
}

/* Each branch finds the maxima itself, so that they are found before the wait for products that follows. */
static __device__ __forceinline__ void find_tops(const wide_group &group, uint32_t tile,
                                                 float (*scores)[4], float tops[2])
{
    int32_t first = (int32_t)(tile * FG_GPU_TILE);
    const int32_t seen[2] = { group.seen[0] - first, group.seen[1] - first };
    if (__all_sync(0xFFFFFFFFu, seen[0] >= FG_GPU_TILE && seen[1] >= FG_GPU_TILE)) {
        highest<SCORE_TILES>(scores, tops);
    } else {
        hide<SCORE_TILES>(scores, 0, group.lane, seen);
        highest<SCORE_TILES>(scores, tops);
    }
}

/* Scores become weights, and how much this tile and those before it count. They stay floats: the products that read the
 * weights of the tile before may still run, and ptxas takes no registers for the next ones' meanwhile. */
static __device__ __forceinline__ void make_weights(float (*scores)[4], const float tops[2],
                                                    row_state *state, float old_factors[2],
                                                    float new_factors[2])
{
    float slices[2][SLICES];
#pragma unroll
    for (int slice = 0; slice < SLICES; slice++) {
        float sums[2];
        weigh(scores + slice * SLICE_TILES, tops, sums);
        slices[0][slice] = sums[0];
        slices[1][slice] = sums[1];
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        merge(&state->tops[half], &state->sums[half], tops[half], sum_slices(slices[half]),
              &old_factors[half], &new_factors[half]);
    }
}

static __device__ __forceinline__ void give_back(uint64_t *empty, uint32_t lane)
{
    if (lane == 0) {
        fg_barrier_arrive(empty);
    }
}

/* The outputs of a tile, the first dimensions of which have been begun; `between` runs meanwhile. */
template <int dims, typename work>
static __device__ __forceinline__ void end_outputs(const uint32_t (*weights)[2], uint32_t values,
                                                   float *made, float *outputs,
                                                   const float old_factors[2],
                                                   const float new_factors[2], work between)
{
    constexpr int some = wide_memory<dims>::made_dims;
    if constexpr (some == dims) {
        between();
        fg_wgmma_wait<0>();
        merge_outputs<some>(outputs, made, old_factors, new_factors);
    } else {
        fg_wgmma_wait<0>();
        merge_outputs<some>(outputs, made, old_factors, new_factors);
        fg_wgmma_fence();
        begin_outputs<dims, some>(weights, values, some, made);
        between();
        fg_wgmma_wait<0>();
        merge_outputs<some>(outputs + some / 2, made, old_factors, new_factors);
    }
}

template <int dims>
static __device__ __forceinline__ void wait_for_keys(wide_memory<dims> *memory, uint32_t tile,
                                                     uint32_t end)
{
    if (tile < end) {
        fg_barrier_wait(&memory->keys_full[tile % wide_memory<dims>::stages],
                        tile / wide_memory<dims>::stages % 2);
    }
}

template <int dims>
static __device__ __forceinline__ void wait_for_values(wide_memory<dims> *memory, uint32_t tile)
{
    fg_barrier_wait(&memory->values_full[tile % wide_memory<dims>::stages],
                    tile / wide_memory<dims>::stages % 2);
}

/* An item's tiles, numbered over all items of the block: `first` to before `end`. */
template <int dims>
static __device__ __forceinline__ void consume(wide_memory<dims> *memory, const wide_group &group,
                                               uint32_t first, uint32_t end, row_state *state,
                                               float *outputs)
{
    constexpr uint32_t stages = wide_memory<dims>::stages;
    constexpr int some = wide_memory<dims>::made_dims;
    float scores[SCORE_TILES][4], made[some / 2], tops[2], old_factors[2], new_factors[2];
    uint32_t weights[SCORE_TILES][2];
    wait_for_keys(memory, first, end);
    fg_wgmma_fence();
    begin_scores<dims>(group, fg_shared_at(memory->keys[first % stages]), &scores[0][0]);
    fg_wgmma_wait<0>();
    give_back(&memory->keys_empty[first % stages], group.lane);
    find_tops(group, 0, scores, tops);
    make_weights(scores, tops, state, old_factors, new_factors);
    pack_weights<SCORE_TILES>(scores, weights);
    wait_for_keys(memory, first + 1, end);
    wait_for_values(memory, first);
    uint32_t tile = first;
    for (; tile + 1 < end; tile++) {
        uint32_t slot = tile % stages, next = (tile + 1) % stages;
        uint32_t values = fg_shared_at(memory->values[slot]);
        float later_old[2], later_new[2];
        fg_wgmma_fence();
        begin_scores<dims>(group, fg_shared_at(memory->keys[next]), &scores[0][0]);
        begin_outputs<dims, some>(weights, values, 0, made);
        fg_wgmma_wait<1>();
        give_back(&memory->keys_empty[next], group.lane);
        find_tops(group, tile + 1 - first, scores, tops);
        end_outputs<dims>(weights, values, made, outputs, old_factors, new_factors, [&]() {
            /* The loops within also keep ptxas from making weights before the products are asked for, or after they
             * were waited for. */
            wait_for_keys(memory, tile + 2, end);
            make_weights(scores, tops, state, later_old, later_new);
            wait_for_values(memory, tile + 1);
        });
        give_back(&memory->values_empty[slot], group.lane);
        pack_weights<SCORE_TILES>(scores, weights);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            old_factors[half] = later_old[half];
            new_factors[half] = later_new[half];
        }
    }
    uint32_t slot = tile % stages, values = fg_shared_at(memory->values[slot]);
    fg_wgmma_fence();
    begin_outputs<dims, some>(weights, values, 0, made);
    end_outputs<dims>(weights, values, made, outputs, old_factors, new_factors, []() {});
    give_back(&memory->values_empty[slot], group.lane);
}

template <int dims>
static __device__ __forceinline__ void put_rows(const attend_job &job, const unit &u, uint32_t lane,
                                                const row_state &state, const float *outputs)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t place = lane / 4 + 8 * half, row = place / u.head_count;
        if (row >= u.row_count) {
            continue;
        }
        float factor = __fdiv_rn(1.0f, state.sums[half]);
        uint32_t head = u.head + place % u.head_count;
#pragma unroll
        for (int i = 0; i < dims / 8; i++) {
            put_output(job, u.row + row, head, i * 8 + 2 * (lane % 4),
                       __fmul_rn(outputs[4 * i + 2 * half], factor),
                       __fmul_rn(outputs[4 * i + 2 * half + 1], factor));
        }
    }
}

/* Until all four warps of a group are here. */
static __device__ __forceinline__ void meet(uint32_t group)
{
    if (group == 0) {
        asm volatile("bar.sync 1, 128;" ::: "memory");
    } else {
        asm volatile("bar.sync 2, 128;" ::: "memory");
    }
}

/* An item's (row, head)s of one warp, `index` of the block's; the block's first item has its q brought by those who use
 * it. */
template <int dims>
static __device__ __forceinline__ void attend_item(wide_memory<dims> *memory, const attend_job &job,
                                                   const wide_item &item, uint32_t round,
                                                   uint32_t before, uint32_t index)
{
    constexpr uint32_t all = FG_GPU_GROUP_ROWS * dims / 4 / 32;
    uint32_t group = index / 4, lane = threadIdx.x % 32, place = round % 2;
    unit u = find_own(job, item, index);
    if (round == 0) {
        put_q<dims, all>(memory->q[0][index * 2], job, u, lane);
        fg_shared_fence();
        meet(group);
    } else {
        fg_barrier_wait(&memory->q_full[place], (round - 1) / 2 % 2);
    }
    wide_group what;
    what.q = fg_shared_at(memory->q[place][group * 8]);
    what.lane = lane;
    what.seen[0] = seen_of(job, u, lane / 4, 0);
    what.seen[1] = seen_of(job, u, lane / 4 + 8, 0);
    row_state state = { { MINUS_INFINITY, MINUS_INFINITY }, { 0.0f, 0.0f } };
    float outputs[dims / 2] = {};
    consume<dims>(memory, what, before, before + item.tiles, &state, outputs);
    give_back(&memory->q_empty[place], lane);
    put_rows<dims>(job, u, lane, state, outputs);
}

template <int dims>
static __global__ __launch_bounds__(WIDE_THREADS, 1) void attend_wide(attend_job job,
                                                                      uint32_t prompts)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    FG_SHARED_BYTES(shared);
    wide_memory<dims> *memory = (wide_memory<dims> *)shared;
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < wide_memory<dims>::stages; i++) {
            fg_barrier_init(&memory->keys_full[i], 1);
            fg_barrier_init(&memory->keys_empty[i], FG_GPU_WARPS);
            fg_barrier_init(&memory->values_full[i], 1);
            fg_barrier_init(&memory->values_empty[i], FG_GPU_WARPS);
        }
        for (uint32_t i = 0; i < 2; i++) {
            fg_barrier_init(&memory->q_full[i], 2);
            fg_barrier_init(&memory->q_empty[i], FG_GPU_WARPS);
        }
        fg_barrier_made();
    }
    __syncthreads();
    fg_gpu_let_next();
    fg_gpu_wait();
    uint32_t warp = threadIdx.x / 32;
    if (warp >= FG_GPU_WARPS) {
        fg_fewer_registers<40>();
        if (warp == FG_GPU_WARPS) {
            feed<dims, false>(memory, job, prompts, threadIdx.x % 32);
        } else if (warp == FG_GPU_WARPS + 1) {
            feed<dims, true>(memory, job, prompts, threadIdx.x % 32);
        } else {
            feed_q<dims>(memory, job, prompts, warp % 2, threadIdx.x % 32);
        }
    } else {
        fg_more_registers<232>();
        wide_item item;
        for (uint32_t round = 0, before = 0; find_item(job, prompts, round, &item); round++) {
            attend_item<dims>(memory, job, item, round, before, warp);
            before += item.tiles;
        }
    }
#endif
}

template <int dims> static void launch(fg_device_stream *stream, const attend_job &job)
{
    uint32_t items = stream->counts.prompts * job.kv_head_count * job.units;
    uint32_t most = (uint32_t)stream->device->multiprocessors;
    FG_LAUNCH(attend_wide<dims>, dim3(items < most ? items : most), dim3(WIDE_THREADS),
              sizeof(wide_memory<dims>), stream->stream, true, job, stream->counts.prompts);
}

bool fg_gpu_attend_wide(fg_device_stream *stream, const attend_job &job)
{
    if (!stream->device->wide) {
        return false;
    }
    switch (job.head_dim) {
    case 64:
        launch<64>(stream, job);
        return true;
    case 96:
        launch<96>(stream, job);
        return true;
    case 128:
        launch<128>(stream, job);
        return true;
    default:
        return false;
    }
}

template <int dims> static void prepare(void)
{
    fg_gpu_check(cudaFuncSetAttribute(attend_wide<dims>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      sizeof(wide_memory<dims>)),
                 "preparing kernels");
}

void fg_gpu_attend_wide_prepare(const fg_device *device)
{
    if (device->wide) {
        prepare<64>();
        prepare<96>();
        prepare<128>();
    }
}

#endif
