/*
 * attend_merge - records of groups' tiles (attend.cu): where they are, which of them a block has joined to one, and the
 * kernel that merges those of a unit, in rising order of tiles.
 */
#ifndef FORGE_KERNELS_CUDA_ATTEND_MERGE_CUH
#define FORGE_KERNELS_CUDA_ATTEND_MERGE_CUH

#include "kernels/cuda/attend.cuh"

/* Records: [tile][unit], of each the maxima, the sums, and the outputs [row][dim]; `rows` of them. Even numbers of
 * floats, so that pairs of outputs are read at once. */
static __device__ __forceinline__ float *record_at(const attend_job &job, uint32_t tile,
                                                   uint32_t index, uint32_t rows)
{
    size_t floats = (size_t)rows * (job.head_dim + 2);
    return job.records + ((size_t)tile * job.kv_head_count * job.units + index) * floats;
}

/* The pieces of work of a launch, numbered over all its groups, and where those of one of its blocks begin. */
typedef struct group_pieces {
    uint32_t all_units, first_tile, first, count;
} group_pieces;

static __device__ __forceinline__ group_pieces find_pieces(const attend_job &job,
                                                           const fg_gpu_counts &counts)
{
    group_pieces pieces;
    uint32_t from = job.group_first == 0 ? 0 : job.ends[job.group_first - 1];
    uint32_t to = job.group_end < counts.groups ? job.ends[job.group_end - 1] : counts.tiles;
    pieces.all_units = job.kv_head_count * job.units;
    pieces.first_tile = from;
    pieces.first = from * pieces.all_units;
    pieces.count = (to - from) * pieces.all_units;
    return pieces;
}

static __device__ __forceinline__ uint32_t share_begins(const attend_job &job,
                                                        const group_pieces &pieces, uint32_t block)
{
    return pieces.first + (uint32_t)((uint64_t)pieces.count * block / job.group_blocks);
}

/* How many of the `count` pieces from `number` on are of the block that has the first of them. */
static __device__ __forceinline__ uint32_t joined_pieces(const attend_job &job,
                                                         const group_pieces &pieces,
                                                         uint32_t number, uint32_t count)
{
    uint64_t next = number - pieces.first + 1;
    uint32_t block = (uint32_t)((next * job.group_blocks - 1) / pieces.count);
    uint32_t left = share_begins(job, pieces, block + 1) - number;
    return left < count ? left : count;
}

/* Dimensions of a warp: two of each lane. */
enum { MERGE_DIMS = 64 };

template <int dims> struct merge_shape {
    static constexpr uint32_t parts = (dims + MERGE_DIMS - 1) / MERGE_DIMS;
    static constexpr uint32_t warps = 4 * parts;
};

/* What a warp merges of a unit's records: one (row, head), two dimensions a lane. */
typedef struct merge_state {
    float top, sum;
    float2 outputs;
} merge_state;

/* `count` records, up to 32, join: a lane knows how much one of them counts, which does not depend on those after it. */
static __device__ __forceinline__ void merge_records(const float *record, size_t record_floats,
                                                     uint32_t count, uint32_t place, uint32_t rows,
                                                     size_t values, bool real, uint32_t lane,
                                                     merge_state *state)
{
    enum { AT_ONCE = 16 };
    float own_top = MINUS_INFINITY, own_sum = 0.0f;
    if (lane < count) {
        own_top = record[lane * record_floats + place];
        own_sum = record[lane * record_floats + rows + place];
    }
    float2 next[AT_ONCE];
#pragma unroll
    for (uint32_t i = 0; i < AT_ONCE; i++) {
        next[i] = i < count && real ? *(const float2 *)(record + i * record_floats + values)
                                    : make_float2(0.0f, 0.0f);
    }
    float top = fmaxf(own_top, state->top);
#pragma unroll
    for (int apart = 1; apart < 32; apart *= 2) {
        float before = __shfl_up_sync(0xFFFFFFFFu, top, apart);
        top = (int)lane >= apart ? fmaxf(top, before) : top;
    }
    float before = __shfl_up_sync(0xFFFFFFFFu, top, 1);
    before = lane == 0 ? state->top : before;
    float base = base_of(top);
    float old_own = fg_exp2(__fadd_rn(before, -base)), new_own = fg_exp2(__fadd_rn(own_top, -base));
    for (uint32_t first = 0; first < count; first += AT_ONCE) {
        float2 now[AT_ONCE];
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            uint32_t later = first + AT_ONCE + i;
            now[i] = next[i];
            next[i] = later < count && real
                          ? *(const float2 *)(record + later * record_floats + values)
                          : make_float2(0.0f, 0.0f);
        }
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            float old_factor = __shfl_sync(0xFFFFFFFFu, old_own, (int)(first + i));
            float new_factor = __shfl_sync(0xFFFFFFFFu, new_own, (int)(first + i));
            float new_sum = __shfl_sync(0xFFFFFFFFu, own_sum, (int)(first + i));
            if (first + i < count) {
                state->sum = merged(state->sum, new_sum, old_factor, new_factor);
                state->outputs.x = merged(state->outputs.x, now[i].x, old_factor, new_factor);
                state->outputs.y = merged(state->outputs.y, now[i].y, old_factor, new_factor);
            }
        }
    }
    state->top = __shfl_sync(0xFFFFFFFFu, top, 31);
}

/* Blocks: x a group, y a unit. The first of a unit's records is what attend_groups has joined already. */
template <int dims>
static __global__ __launch_bounds__(32 * merge_shape<dims>::warps) void merge_groups(attend_job job)
{
    constexpr uint32_t parts = merge_shape<dims>::parts, warps = merge_shape<dims>::warps;
    fg_gpu_let_next();
    fg_gpu_counts counts = *job.counts;
    uint32_t group = job.group_first + blockIdx.x, lane = threadIdx.x % 32;
    if (group >= counts.groups || group >= job.group_end) {
        fg_gpu_wait();
        return;
    }
    group_pieces pieces = find_pieces(job, counts);
    uint32_t before = group == 0 ? 0 : job.ends[group - 1], tiles = job.ends[group] - before;
    uint32_t joined =
        joined_pieces(job, pieces, before * pieces.all_units + blockIdx.y * tiles, tiles);
    unit u = find_unit(job, job.groups[group], blockIdx.y);
    uint32_t rows = counts.record_rows;
    size_t record_floats = (size_t)pieces.all_units * rows * (job.head_dim + 2);
    const float *first = record_at(job, before + joined - 1 - pieces.first_tile, blockIdx.y, rows);
    fg_gpu_wait();
    for (uint32_t work = threadIdx.x / 32; work < u.row_count * u.head_count * parts;
         work += warps) {
        uint32_t place = work / parts, d = work % parts * MERGE_DIMS + 2 * lane;
        bool real = d < job.head_dim;
        size_t values = 2 * rows + (size_t)place * job.head_dim + d;
        merge_state state = { first[place], first[rows + place],
                              real ? *(const float2 *)(first + values) : make_float2(0.0f, 0.0f) };
        for (uint32_t tile = joined; tile < tiles; tile += 32) {
            uint32_t count = tiles - tile < 32 ? tiles - tile : 32;
            merge_records(first + (tile + 1 - joined) * record_floats, record_floats, count, place,
                          rows, values, real, lane, &state);
        }
        float factor = __fdiv_rn(1.0f, state.sum);
        if (real) {
            put_output(job, u.row + place / u.head_count, u.head + place % u.head_count, d,
                       __fmul_rn(state.outputs.x, factor), __fmul_rn(state.outputs.y, factor));
        }
    }
}

#endif
