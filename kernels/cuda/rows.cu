/*
 * Operations on rows one by one: norms, the bf16 form of activations, rotations, and K and V on their way to their
 * slots.
 */
#include "kernels/cuda/cuda.h"

enum { ROW_THREADS = 256, STORE_WARPS = 4, HEAD_DIM_MAX = 256, PAIRS_MAX = HEAD_DIM_MAX / 2 };

/* The sum over a warp, the same in all lanes. */
static __device__ __forceinline__ float warp_sum(float x)
{
    for (int apart = 16; apart > 0; apart /= 2) {
        x = __fadd_rn(x, __shfl_xor_sync(0xFFFFFFFFu, x, apart));
    }
    return x;
}

/* The sum over a block of ROW_THREADS, in all threads. */
static __device__ float block_sum(float x)
{
    __shared__ float sums[ROW_THREADS / 32];
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0) {
        sums[threadIdx.x / 32] = x;
    }
    __syncthreads();
    float sum = sums[0];
    for (int warp = 1; warp < ROW_THREADS / 32; warp++) {
        sum = __fadd_rn(sum, sums[warp]);
    }
    return sum;
}

static __device__ __forceinline__ float norm_factor(float squares, uint32_t columns, float epsilon)
{
    float mean = __fadd_rn(__fdiv_rn(squares, (float)columns), epsilon);
    return __fdiv_rn(1.0f, __fsqrt_rn(mean));
}

static __device__ __forceinline__ void norm_pair(float2 x, float factor, float2 w, uint32_t pair,
                                                 uint32_t row, uint32_t columns, float *out,
                                                 uint32_t *pairs)
{
    float2 made =
        make_float2(__fmul_rn(__fmul_rn(x.x, factor), w.x), __fmul_rn(__fmul_rn(x.y, factor), w.y));
    *(float2 *)(out + 2 * pair) = made;
    if (pairs != nullptr) {
        pairs[fg_gpu_pair_at(row, 2 * pair, fg_gpu_columns(columns))] =
            fg_bf16_pair(made.x, made.y);
    }
}

/* Pairs of columns that a thread of norm_rows keeps in registers; of longer rows the rest is read twice. */
enum { NORM_KEPT = 8 };

static __global__ __launch_bounds__(ROW_THREADS) void norm_rows(const float *in,
                                                                const uint32_t *row_ids,
                                                                const float *weight,
                                                                uint32_t columns, float epsilon,
                                                                float *values, uint32_t *pairs)
{
    fg_gpu_let_next();
    uint32_t row = blockIdx.x, count = columns / 2;
    const float *x = in + (size_t)(row_ids != nullptr ? row_ids[row] : row) * columns;
    float squares = 0.0f;
    float2 kept[NORM_KEPT], weights[NORM_KEPT];
#pragma unroll
    for (uint32_t i = 0; i < NORM_KEPT; i++) {
        uint32_t at = threadIdx.x + i * ROW_THREADS;
        weights[i] = at < count ? *(const float2 *)(weight + 2 * at) : make_float2(0.0f, 0.0f);
    }
    fg_gpu_wait();
#pragma unroll
    for (uint32_t i = 0; i < NORM_KEPT; i++) {
        uint32_t at = threadIdx.x + i * ROW_THREADS;
        kept[i] = at < count ? *(const float2 *)(x + 2 * at) : make_float2(0.0f, 0.0f);
    }
#pragma unroll
    for (uint32_t i = 0; i < NORM_KEPT; i++) {
        squares = __fmaf_rn(kept[i].y, kept[i].y, __fmaf_rn(kept[i].x, kept[i].x, squares));
    }
    for (uint32_t at = threadIdx.x + NORM_KEPT * ROW_THREADS; at < count; at += ROW_THREADS) {
        float2 both = *(const float2 *)(x + 2 * at);
        squares = __fmaf_rn(both.y, both.y, __fmaf_rn(both.x, both.x, squares));
    }
    float factor = norm_factor(block_sum(squares), columns, epsilon);
    float *out = values + (size_t)row * columns;
#pragma unroll
    for (uint32_t i = 0; i < NORM_KEPT; i++) {
        uint32_t at = threadIdx.x + i * ROW_THREADS;
        if (at < count) {
            norm_pair(kept[i], factor, weights[i], at, row, columns, out, pairs);
        }
    }
    for (uint32_t at = threadIdx.x + NORM_KEPT * ROW_THREADS; at < count; at += ROW_THREADS) {
        norm_pair(*(const float2 *)(x + 2 * at), factor, *(const float2 *)(weight + 2 * at), at,
                  row, columns, out, pairs);
    }
}

void fg_cuda_rmsnorm(fg_device_stream *stream, const fg_rmsnorm *args, uint32_t rows)
{
    const uint32_t *row_ids =
        fg_gpu_staged_at(args->row_ids, stream->rows.row_ids, stream->at.row_ids);
    uint32_t *pairs = (args->forms & FG_FORM_PAIRS) != 0 ? args->out.pairs : nullptr;
    stream->sequence++;
    FG_LAUNCH(norm_rows, dim3(rows), dim3(ROW_THREADS), 0, stream->stream, true, args->in, row_ids,
              args->weight, args->out.columns, args->epsilon, args->out.values, pairs);
}

static __global__ void pair_rows(const float *values, uint32_t columns, uint32_t *pairs)
{
    fg_gpu_let_next();
    fg_gpu_wait();
    uint32_t row = blockIdx.x;
    const float *x = values + (size_t)row * columns;
    for (uint32_t i = threadIdx.x; i < columns / 2; i += ROW_THREADS) {
        pairs[fg_gpu_pair_at(row, 2 * i, fg_gpu_columns(columns))] =
            fg_bf16_pair(x[2 * i], x[2 * i + 1]);
    }
}

void fg_cuda_prepare(fg_device_stream *stream, const fg_activations *activations, uint32_t forms,
                     uint32_t rows)
{
    stream->sequence++;
    if ((forms & FG_FORM_PAIRS) != 0) {
        FG_LAUNCH(pair_rows, dim3(rows), dim3(ROW_THREADS), 0, stream->stream, true,
                  (const float *)activations->values, activations->columns, activations->pairs);
    }
}

static __global__ void check_rows(const float *values, uint32_t columns, uint32_t *finite)
{
    fg_gpu_let_next();
    fg_gpu_wait();
    const float *x = values + (size_t)blockIdx.x * columns;
    /* The sum of differences from themselves is 0, or NaN. */
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < columns; i += ROW_THREADS) {
        sum = __fadd_rn(sum, __fadd_rn(x[i], -x[i]));
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        finite[blockIdx.x] = sum == 0.0f ? 1 : 0;
    }
}

void fg_cuda_finite(fg_device_stream *stream, const float *values, uint32_t columns, uint32_t rows,
                    uint32_t *finite)
{
    stream->sequence++;
    FG_LAUNCH(check_rows, dim3(rows), dim3(ROW_THREADS), 0, stream->stream, true, values, columns,
              finite);
}

/* Small enough to travel with the launch. */
typedef struct frequency_list {
    double each[PAIRS_MAX];
} frequency_list;

static __global__ void turn_table(const uint32_t *positions, frequency_list frequencies,
                                  uint32_t pair_count, double magnitude, float *table)
{
    fg_gpu_let_next();
    fg_gpu_wait();
    double position = (double)positions[blockIdx.x];
    for (uint32_t pair = threadIdx.x; pair < pair_count; pair += blockDim.x) {
        double sine, cosine;
        sincos(position * frequencies.each[pair], &sine, &cosine);
        float *at = table + ((size_t)blockIdx.x * pair_count + pair) * 2;
        at[0] = (float)(cosine * magnitude);
        at[1] = (float)(sine * magnitude);
    }
}

void fg_cuda_rope_table(fg_device_stream *stream, const uint32_t *positions, uint32_t rows,
                        const fg_rope_turns *turns, float *table)
{
    const uint32_t *staged =
        fg_gpu_staged_at(positions, stream->rows.positions, stream->at.positions);
    frequency_list list = {};
    for (uint32_t i = 0; i < turns->pair_count && i < PAIRS_MAX; i++) {
        list.each[i] = turns->frequencies[i];
    }
    stream->sequence++;
    FG_LAUNCH(turn_table, dim3(rows), dim3(64), 0, stream->stream, true, staged, list,
              turns->pair_count, turns->magnitude, table);
}

/* What a kernel needs of fg_rope_store and fg_paged_kv. */
typedef struct store_job {
    float *q;
    const float *k, *v;
    const float *q_bias, *k_bias, *v_bias, *q_norm, *k_norm;
    const float *table;
    const fg_gpu_row *rows;
    const uint32_t *tables;
    uint8_t *arena;
    size_t block_bytes, key_offset, value_offset, head_bytes;
    uint32_t block_size, head_count, kv_head_count, head_dim, pair_count;
    float epsilon;
    bool interleaved;
} store_job;

/* One head into `x`, with its bias, normalised. */
static __device__ void read_head(const float *from, const float *bias, const float *norm,
                                 const store_job *job, uint32_t lane, float *x)
{
    float squares = 0.0f;
    for (uint32_t d = lane; d < job->head_dim; d += 32) {
        float value = bias != nullptr ? __fadd_rn(from[d], bias[d]) : from[d];
        x[d] = value;
        squares = __fmaf_rn(value, value, squares);
    }
    if (norm != nullptr) {
        float factor = norm_factor(warp_sum(squares), job->head_dim, job->epsilon);
        for (uint32_t d = lane; d < job->head_dim; d += 32) {
            x[d] = __fmul_rn(__fmul_rn(x[d], factor), norm[d]);
        }
    }
    __syncwarp();
}

static __device__ void turn_head(const store_job *job, uint32_t row, uint32_t lane, float *x)
{
    const float *turns = job->table + (size_t)row * job->pair_count * 2;
    for (uint32_t pair = lane; pair < job->pair_count; pair += 32) {
        uint32_t i = job->interleaved ? 2 * pair : pair;
        uint32_t j = job->interleaved ? 2 * pair + 1 : pair + job->pair_count;
        float cosine = turns[2 * pair], sine = turns[2 * pair + 1];
        float first = x[i], second = x[j];
        x[i] = __fmaf_rn(first, cosine, -__fmul_rn(second, sine));
        x[j] = __fmaf_rn(first, sine, __fmul_rn(second, cosine));
    }
    __syncwarp();
}

/* One head's K or V of a slot. */
static __device__ void store_slot(const store_job *job, uint8_t *region, uint32_t slot,
                                  uint32_t lane, const float *x)
{
    for (uint32_t d = lane * 8; d < job->head_dim; d += 256) {
        const uint4 words = {
            fg_bf16_pair(x[d], x[d + 1]),
            fg_bf16_pair(x[d + 2], x[d + 3]),
            fg_bf16_pair(x[d + 4], x[d + 5]),
            fg_bf16_pair(x[d + 6], x[d + 7]),
        };
        *(uint4 *)(region + fg_gpu_slot_at(slot, d, job->head_dim)) = words;
    }
}

/* Blocks: x a row, y some of its heads: of q, then of k, then of v. A warp has one. */
static __global__ __launch_bounds__(STORE_WARPS * 32) void store_rows(store_job job)
{
    __shared__ float heads[STORE_WARPS][HEAD_DIM_MAX];
    fg_gpu_let_next();
    uint32_t row = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float *x = heads[warp];
    fg_gpu_row place = job.rows[row];
    bool pads = place.table == UINT32_MAX;
    uint32_t block = pads ? 0 : job.tables[place.table + place.position / job.block_size];
    uint32_t slot = place.position % job.block_size;
    uint8_t *base = job.arena + block * job.block_bytes;
    uint32_t index = blockIdx.y * STORE_WARPS + warp;
    fg_gpu_wait();
    if (index < job.head_count) {
        float *q = job.q + ((size_t)row * job.head_count + index) * job.head_dim;
        read_head(q, job.q_bias != nullptr ? job.q_bias + index * job.head_dim : nullptr,
                  job.q_norm, &job, lane, x);
        turn_head(&job, row, lane, x);
        for (uint32_t d = lane; d < job.head_dim; d += 32) {
            q[d] = x[d];
        }
    } else if (!pads && index < job.head_count + 2 * job.kv_head_count) {
        bool is_key = index < job.head_count + job.kv_head_count;
        uint32_t head = index - job.head_count - (is_key ? 0 : job.kv_head_count);
        const float *from = is_key ? job.k : job.v;
        const float *bias = is_key ? job.k_bias : job.v_bias;
        read_head(from + ((size_t)row * job.kv_head_count + head) * job.head_dim,
                  bias != nullptr ? bias + head * job.head_dim : nullptr,
                  is_key ? job.k_norm : nullptr, &job, lane, x);
        uint8_t *region =
            base + (is_key ? job.key_offset : job.value_offset) + head * job.head_bytes;
        if (is_key) {
            turn_head(&job, row, lane, x);
        }
        store_slot(&job, region, slot, lane, x);
    }
}

void fg_cuda_rope_store(fg_device_stream *stream, const fg_paged_kv *kv, const fg_rope_store *args,
                        uint32_t rows)
{
    store_job job = {};
    job.q = args->q;
    job.k = args->k;
    job.v = args->v;
    job.q_bias = args->q_bias;
    job.k_bias = args->k_bias;
    job.v_bias = args->v_bias;
    job.q_norm = args->q_norm;
    job.k_norm = args->k_norm;
    job.table = args->table;
    job.rows = stream->at.rows + (args->kv_rows - stream->rows.kv_rows);
    job.tables = stream->at.tables;
    job.arena = (uint8_t *)kv->arena;
    job.block_bytes = kv->block_bytes;
    job.key_offset = kv->key_offset;
    job.value_offset = kv->value_offset;
    job.head_bytes = kv->head_bytes;
    job.block_size = kv->block_size;
    job.head_count = args->head_count;
    job.kv_head_count = kv->kv_head_count;
    job.head_dim = kv->head_dim;
    job.pair_count = args->pair_count;
    job.epsilon = args->norm_epsilon;
    job.interleaved = args->interleaved;
    stream->sequence++;
    uint32_t heads = args->head_count + 2 * kv->kv_head_count;
    FG_LAUNCH(store_rows, dim3(rows, (heads + STORE_WARPS - 1) / STORE_WARPS),
              dim3(STORE_WARPS * 32), 0, stream->stream, true, job);
}
