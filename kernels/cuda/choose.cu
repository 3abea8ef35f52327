/*
 * What a row of logits chooses: the sampler's arithmetic (common/model/sampler.c) on the device, the same bits.
 *
 * Rows are cut into parts of some columns, a block each. A first kernel finds each part's highest logit, a second one
 * draws: the highest of a part of score + noise, where the row's highest logit, with its own noise, is the bar that most
 * tokens do not come near. The third takes the best part. The answer is a maximum with ties to the lowest id, so no
 * order of finding it shows.
 */
#include "common/base/gumbel.h"
#include "common/base/rng.h"
#include "kernels/cuda/cuda.h"

enum { CHOOSE_THREADS = 256, PART_COLUMNS = 4096 };

/* A value and where it is: the first of equal ones. UINT32_MAX: nowhere, all are -inf or NaN. */
typedef struct place {
    float value;
    uint32_t at;
} place;

/* In the work area: the parameters as this step has them, and what parts have found. */
typedef struct choose_job {
    fg_choose args;
    fg_choice_row *wanted;
    place *tops;  /* [row][part] */
    place *draws; /* [row][part] */
    uint32_t parts;
} choose_job;

static __device__ __forceinline__ place nowhere(void)
{
    return place{ __uint_as_float(0xFF800000u), UINT32_MAX };
}

static __device__ __forceinline__ place better(place a, place b)
{
    return b.value > a.value || (b.value == a.value && b.at < a.at) ? b : a;
}

/* The best of a warp, in all lanes. */
static __device__ __forceinline__ place warp_best(place mine)
{
    for (int apart = 16; apart > 0; apart /= 2) {
        place other;
        other.value = __shfl_xor_sync(0xFFFFFFFFu, mine.value, apart);
        other.at = __shfl_xor_sync(0xFFFFFFFFu, mine.at, apart);
        mine = better(mine, other);
    }
    return mine;
}

/* The best of a block, written by one of its threads. */
static __device__ void write_best(place mine, place *out)
{
    __shared__ place bests[CHOOSE_THREADS / 32];
    mine = warp_best(mine);
    if (threadIdx.x % 32 == 0) {
        bests[threadIdx.x / 32] = mine;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int warp = 1; warp < CHOOSE_THREADS / 32; warp++) {
            mine = better(mine, bests[warp]);
        }
        *out = mine;
    }
}

/* The best of a row's parts, in all lanes of the warp that asks. */
static __device__ place best_part(const place *parts, uint32_t count)
{
    place mine = nowhere();
    for (uint32_t part = threadIdx.x % 32; part < count; part += 32) {
        mine = better(mine, parts[part]);
    }
    return warp_best(mine);
}

/* Whether there is more to do than to take the highest logit. */
static __device__ __forceinline__ bool is_drawn(const fg_choice_row *row, place top)
{
    return row->wanted != 0 && top.at != UINT32_MAX && row->temperature > 0.0f &&
           !(top.value > 0x1.fffffep127f);
}

static __global__ __launch_bounds__(CHOOSE_THREADS) void find_tops(choose_job job)
{
    fg_gpu_wait();
    fg_gpu_let_next();
    uint32_t row = blockIdx.y, part = blockIdx.x, columns = job.args.columns;
    const float *logits = job.args.logits + (size_t)row * columns;
    if (part == 0 && threadIdx.x == 0) {
        /* Once over the bus. */
        job.wanted[row] = job.args.wanted[row];
    }
    uint32_t first = part * PART_COLUMNS;
    uint32_t end = columns - first < PART_COLUMNS ? columns : first + PART_COLUMNS;
    place mine = nowhere();
#pragma unroll 4
    for (uint32_t id = first + threadIdx.x; id < end; id += CHOOSE_THREADS) {
        float logit = logits[id];
        if (logit > mine.value) {
            mine.value = logit;
            mine.at = id;
        }
    }
    write_best(mine, &job.tops[(size_t)row * job.parts + part]);
}

/* NaN counts as -inf, -0 as 0. */
static __device__ __forceinline__ float score_of(float logit, float top, float temperature)
{
    float score = (logit - top) / temperature;
    return (score == score ? score : __uint_as_float(0xFF800000u)) + 0.0f;
}

static __global__ __launch_bounds__(CHOOSE_THREADS) void draw(choose_job job)
{
    fg_gpu_wait();
    fg_gpu_let_next();
    uint32_t row = blockIdx.y, part = blockIdx.x, columns = job.args.columns;
    const float *logits = job.args.logits + (size_t)row * columns;
    fg_choice_row want = job.wanted[row];
    place top = best_part(job.tops + (size_t)row * job.parts, job.parts);
    if (!is_drawn(&want, top)) {
        return;
    }
    float least = want.min_p > 0.0f ? fg_logf(want.min_p) : __uint_as_float(0xFF800000u);
    place mine;
    mine.at = top.at;
    mine.value = score_of(top.value, top.value, want.temperature) +
                 fg_gumbel(fg_rng_counter(want.seed, want.choice, want.position, top.at));
    uint32_t first = part * PART_COLUMNS;
    uint32_t end = columns - first < PART_COLUMNS ? columns : first + PART_COLUMNS;
#pragma unroll 4
    for (uint32_t id = first + threadIdx.x; id < end; id += CHOOSE_THREADS) {
        float score = score_of(logits[id], top.value, want.temperature);
        uint64_t bits = fg_rng_counter(want.seed, want.choice, want.position, id);
        if (score >= least && !(score + fg_gumbel_bound(bits) < mine.value)) {
            mine = better(mine, place{ score + fg_gumbel(bits), id });
        }
    }
    write_best(mine, &job.draws[(size_t)row * job.parts + part]);
}

static __global__ __launch_bounds__(32) void take_best(choose_job job)
{
    fg_gpu_wait();
    fg_gpu_let_next();
    uint32_t row = blockIdx.x;
    const fg_choice_row *want = &job.wanted[row];
    place best = best_part(job.tops + (size_t)row * job.parts, job.parts);
    if (is_drawn(want, best)) {
        best = best_part(job.draws + (size_t)row * job.parts, job.parts);
    }
    if (want->wanted != 0 && threadIdx.x == 0) {
        uint32_t id = best.at == UINT32_MAX ? 0 : best.at;
        job.args.choices[row] = id;
        job.args.tops[row] = job.args.logits[(size_t)row * job.args.columns + id];
    }
}

void fg_cuda_choose(fg_device_stream *stream, const fg_choose *args, uint32_t rows)
{
    choose_job job = {};
    job.args = *args;
    job.parts = (args->columns + PART_COLUMNS - 1) / PART_COLUMNS;
    job.wanted = (fg_choice_row *)stream->work;
    job.tops = (place *)(job.wanted + rows);
    job.draws = job.tops + (size_t)rows * job.parts;
    stream->sequence++;
    dim3 grid(job.parts, rows);
    FG_LAUNCH(find_tops, grid, dim3(CHOOSE_THREADS), 0, stream->stream, true, job);
    FG_LAUNCH(draw, grid, dim3(CHOOSE_THREADS), 0, stream->stream, true, job);
    FG_LAUNCH(take_best, dim3(rows), dim3(32), 0, stream->stream, true, job);
}
