/*
 * attend - what the kernels of attention share: what they know of a call, who computes what, and the arithmetic between
 * products, which is the same in all of them.
 */
#ifndef FORGE_KERNELS_CUDA_ATTEND_CUH
#define FORGE_KERNELS_CUDA_ATTEND_CUH

#include "kernels/cuda/cuda.h"

enum {
    SLICES = 4, /* of a tile's slots: sums of weights are of slices, then of the tile */
    SLICE_TILES = FG_GPU_TILE / SLICES / 8,
};

#define MINUS_INFINITY __uint_as_float(0xFF800000u)

/* What the kernels know of a call. */
typedef struct attend_job {
    const float *q;
    float *out; /* NULL: only `pairs` are wanted */
    const fg_gpu_row *rows;
    const uint32_t *tables;
    const fg_gpu_span *groups;
    const uint32_t *ends;
    const fg_gpu_span *prompts;
    const fg_gpu_counts *counts;
    const uint8_t *arena;
    size_t block_bytes, key_offset, value_offset, head_bytes;
    uint32_t block_size, block_shift, head_count, kv_head_count, heads, unit_heads, units, head_dim;
    float scale;     /* and log2 e */
    uint32_t *pairs; /* NULL, or where `out` goes as bf16 too */
    float *records;
    /* Of this launch, where there are more groups than there is room for: those before `group_end`. UINT32_MAX: all. */
    uint32_t group_first, group_end;
    uint32_t group_blocks; /* that share the groups' tiles */
} attend_job;

/* A unit: which rows and heads. */
typedef struct unit {
    uint32_t row, row_count;   /* of the step */
    uint32_t head, head_count; /* query heads */
    uint32_t kv_head;
    uint32_t table;
} unit;

static __device__ __forceinline__ unit find_unit(const attend_job &job, fg_gpu_span span,
                                                 uint32_t index)
{
    unit u;
    uint32_t part = index % job.units;
    u.row = span.first;
    u.row_count = span.count;
    u.kv_head = index / job.units;
    u.head = u.kv_head * job.heads + part * job.unit_heads;
    uint32_t left = job.heads - part * job.unit_heads;
    u.head_count = left < job.unit_heads ? left : job.unit_heads;
    u.table = job.rows[span.first].table;
    return u;
}

/* Where K or V of a sequence's slot begins, the first of 8 that lie together. */
static __device__ __forceinline__ const uint8_t *slot_at(const attend_job &job, const unit &u,
                                                         uint32_t slot, size_t offset)
{
    uint32_t block = job.tables[u.table + (slot >> job.block_shift)];
    return job.arena + block * job.block_bytes + offset + u.kv_head * job.head_bytes +
           (size_t)(slot % job.block_size) * job.head_dim * 2;
}

/* Slots of the tile that begins at `first` that a row sees; 0 or less: none. */
static __device__ __forceinline__ int32_t seen_of(const attend_job &job, const unit &u,
                                                  uint32_t place, uint32_t first)
{
    uint32_t row = place / u.head_count;
    return row < u.row_count ? (int32_t)(job.rows[u.row + row].position + 1) - (int32_t)first : 0;
}

/* What a slot beyond a row's position scores. `seen`: slots of the tile that rows g and g + 8 see. */
template <int count>
static __device__ __forceinline__ void hide(float (*scores)[4], uint32_t tile, uint32_t lane,
                                            const int32_t seen[2])
{
    int32_t end = (int32_t)(tile + count) * 8;
    if (seen[0] >= end && seen[1] >= end) {
        return;
    }
#pragma unroll
    for (int i = 0; i < count; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int32_t slot = (int32_t)((tile + i) * 8 + lane % 4 * 2 + j % 2);
            scores[i][j] = slot < seen[j / 2] ? scores[i][j] : MINUS_INFINITY;
        }
    }
}

/* The highest of rows g and g + 8 over the four lanes that have a part of them: four chains each, which do not wait for
 * each other. */
template <int count>
static __device__ __forceinline__ void highest(const float (*scores)[4], float tops[2])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float chains[4] = { MINUS_INFINITY, MINUS_INFINITY, MINUS_INFINITY, MINUS_INFINITY };
#pragma unroll
        for (int i = 0; i < count; i++) {
            float both = fmaxf(scores[i][2 * half], scores[i][2 * half + 1]);
            chains[i % 4] = fmaxf(chains[i % 4], both);
        }
        float top = fmaxf(fmaxf(chains[0], chains[1]), fmaxf(chains[2], chains[3]));
        top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 1));
        tops[half] = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 2));
    }
}

/* What scores are taken down by: the maximum, or 0 where nothing is seen. */
static __device__ __forceinline__ float base_of(float top)
{
    return top == MINUS_INFINITY ? 0.0f : top;
}

/* Scores of a slice become weights, as yet no bf16, and this lane's part of their sums. */
static __device__ __forceinline__ void weigh(float (*scores)[4], const float tops[2], float sums[2])
{
    sums[0] = sums[1] = 0.0f;
#pragma unroll
    for (int i = 0; i < SLICE_TILES; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            scores[i][j] = fg_exp2(__fadd_rn(scores[i][j], -base_of(tops[j / 2])));
            sums[j / 2] = __fadd_rn(sums[j / 2], scores[i][j]);
        }
    }
}

/* Weights as pairs of slots for rows g and g + 8. */
template <int count>
static __device__ __forceinline__ void pack_weights(const float (*scores)[4],
                                                    uint32_t (*weights)[2])
{
#pragma unroll
    for (int i = 0; i < count; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            weights[i][half] = fg_bf16_pair(scores[i][2 * half], scores[i][2 * half + 1]);
        }
    }
}

/* The sum of a row's slices in this lane, then of the four lanes. */
static __device__ __forceinline__ float sum_slices(const float slices[SLICES])
{
    float sum = __fadd_rn(__fadd_rn(__fadd_rn(slices[0], slices[1]), slices[2]), slices[3]);
    sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, 1));
    return __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, 2));
}

/* How much a merged record and a new one count. */
static __device__ __forceinline__ void merge(float *top, float *sum, float new_top, float new_sum,
                                             float *old_factor, float *new_factor)
{
    float both = fmaxf(*top, new_top);
    float base = base_of(both);
    *old_factor = fg_exp2(__fadd_rn(*top, -base));
    *new_factor = fg_exp2(__fadd_rn(new_top, -base));
    *sum = __fmaf_rn(new_sum, *new_factor, __fmul_rn(*sum, *old_factor));
    *top = both;
}

static __device__ __forceinline__ float merged(float old_value, float new_value, float old_factor,
                                               float new_factor)
{
    return __fmaf_rn(new_value, new_factor, __fmul_rn(old_value, old_factor));
}

typedef struct row_state {
    float tops[2], sums[2];
} row_state;

/* Two neighbouring dimensions of a (row, head)'s output. */
static __device__ __forceinline__ void put_output(const attend_job &job, uint32_t row,
                                                  uint32_t head, uint32_t d, float first,
                                                  float second)
{
    uint32_t column = head * job.head_dim + d, columns = job.head_count * job.head_dim;
    if (job.out != nullptr) {
        *(float2 *)(job.out + (size_t)row * columns + column) = make_float2(first, second);
    }
    if (job.pairs != nullptr) {
        job.pairs[fg_gpu_pair_at(row, column, fg_gpu_columns(columns))] =
            fg_bf16_pair(first, second);
    }
}

/* attend_wide.cu: prompts by wgmma. False, and nothing done, where device or heads do not suit it. */
bool fg_gpu_attend_wide(fg_device_stream *stream, const attend_job &job);
void fg_gpu_attend_wide_prepare(const fg_device *device);

#endif
