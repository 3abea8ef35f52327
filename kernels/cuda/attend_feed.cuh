/*
 * attend_feed - tiles of K and V on their way into shared memory by bulk copies, which one warp asks for (sm_90 and
 * newer), for heads that fill their tiles' rows.
 */
#ifndef FORGE_KERNELS_CUDA_ATTEND_FEED_CUH
#define FORGE_KERNELS_CUDA_ATTEND_FEED_CUH

#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/wgmma.cuh"

enum { TILE_GROUPS = FG_GPU_TILE / 8 /* of 8 slots, whose matrices follow each other */ };

/* Groups of 8 slots of a tile that a lane asks for: they lie together in a block. */
static __device__ __forceinline__ uint32_t feed_groups(const attend_job &job)
{
    return (job.block_size < FG_GPU_TILE ? job.block_size : FG_GPU_TILE) / 8;
}

/* The block with the lane's slots of the tile from `first` on; asked for early, since the copies wait for it. */
static __device__ __forceinline__ uint32_t feed_block(const attend_job &job, const unit &u,
                                                      uint32_t first, uint32_t limit, uint32_t lane)
{
    uint32_t own = lane * feed_groups(job), slot = first + own * 8;
    return own < TILE_GROUPS && slot < limit ? job.tables[u.table + (slot >> job.block_shift)] : 0;
}

/* V behind the sequence's last slot, which may be anything: 0 times that need not be 0. `left` slots are there. */
template <int dims>
static __device__ __forceinline__ void clear_end(uint8_t *to, const attend_job &job, const unit &u,
                                                 uint32_t first, uint32_t left, uint32_t lane)
{
    uint32_t group = left / 8, rest = left % 8;
    const uint8_t *from =
        rest > 0 ? slot_at(job, u, first + group * 8, job.value_offset) : job.arena;
    for (uint32_t i = group * dims + lane; i < TILE_GROUPS * dims; i += 32) {
        uint32_t across = i % dims;
        bool real = i / dims == group && across % 8 < rest;
        *(uint4 *)(to + i * 16) = real ? *(const uint4 *)(from + across * 16) : uint4{};
    }
    fg_shared_fence();
}

/* Asks for a tile of K or V; `block` is feed_block's answer for it. All of it counts for `full`, whose phase may end
 * only now. */
template <int dims, bool is_values>
static __device__ __forceinline__ void feed_tile(uint8_t *to, const attend_job &job, const unit &u,
                                                 uint32_t block, uint32_t first, uint32_t limit,
                                                 uint64_t *full, uint32_t lane)
{
    constexpr uint32_t group_bytes = dims * 16;
    uint32_t left = limit - first < FG_GPU_TILE ? limit - first : FG_GPU_TILE;
    uint32_t groups = is_values ? left / 8 : (left + 7) / 8;
    uint32_t each = feed_groups(job), own = lane * each;
    uint32_t mine = own < groups ? (groups - own < each ? groups - own : each) : 0;
    const uint8_t *from =
        job.arena + block * job.block_bytes + (is_values ? job.value_offset : job.key_offset) +
        u.kv_head * job.head_bytes + (first + own * 8) % job.block_size / 8 * group_bytes;
    if (is_values && left < FG_GPU_TILE) {
        clear_end<dims>(to, job, u, first, left, lane);
    }
    __syncwarp();
    if (lane == 0) {
        fg_barrier_expect(full, groups * group_bytes);
    }
    __syncwarp();
    if (mine > 0) {
        fg_bulk_copy(to + own * group_bytes, from, mine * group_bytes, full);
    }
}

#endif
