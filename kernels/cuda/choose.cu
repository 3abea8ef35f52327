/*
 * What a row of logits chooses: the sampler's arithmetic (common/model/sampler.c) on the device, the same bits.
 *
 * Rows are cut into parts of some columns, a block each. A first kernel finds each part's highest logit, a second one
 * draws: the highest of a part of score + noise, where the row's highest logit, with its own noise, is the bar that most
 * tokens do not come near. The last one takes the best part. The answer is a maximum with ties to the lowest id, so no
 * order of finding it shows.
 *
 * Rows with top-k or top-p have one block each (narrow): it collects a beginning of the sampler's order (score falling,
 * id rising) of some thousand tokens, sorts it, and sums weights in the sampler's order. Where that beginning is not
 * enough, or more than there is room for, the row is the caller's (FG_CHOICE_NONE).
 */
#include "common/base/gumbel.h"
#include "common/base/rng.h"
#include "kernels/cuda/cuda.h"

enum { CHOOSE_THREADS = 256, PART_COLUMNS = 4096 };
/* Of narrow: threads, the tokens that it sorts, and which of the threads' highest scores these reach without top-k:
 * some 2800 tokens do, if the highest are spread evenly. */
enum { NARROW_THREADS = 1024, SORTED_MAX = 4096, REACHED = 960 };

/* A value and where it is: the first of equal ones. UINT32_MAX: nowhere, all are -inf or NaN. */
typedef struct place {
    float value;
    uint32_t at;
} place;

/* In the work area: the parameters as this step has them, and what parts have found. */
typedef struct choose_job {
    fg_choose args;
    fg_choice_row *wanted;
    place *tops;      /* [row][part] */
    place *draws;     /* [row][part] */
    uint32_t *chosen; /* the stream's */
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
template <int threads> static __device__ void write_best(place mine, place *out)
{
    __shared__ place bests[threads / 32];
    mine = warp_best(mine);
    if (threadIdx.x % 32 == 0) {
        bests[threadIdx.x / 32] = mine;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int warp = 1; warp < threads / 32; warp++) {
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

/* Whether not all tokens may be drawn, whatever their scores. */
static __device__ __forceinline__ bool is_narrow(const fg_choice_row *row, uint32_t columns)
{
    return (row->top_k > 0 && row->top_k < columns) || row->top_p < 1.0f;
}

static __global__ __launch_bounds__(CHOOSE_THREADS) void find_tops(choose_job job)
{
    fg_gpu_let_next();
    fg_gpu_wait();
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
    write_best<CHOOSE_THREADS>(mine, &job.tops[(size_t)row * job.parts + part]);
}

/* NaN counts as -inf, -0 as 0. */
static __device__ __forceinline__ float score_of(float logit, float top, float temperature)
{
    float score = (logit - top) / temperature;
    return (score == score ? score : __uint_as_float(0xFF800000u)) + 0.0f;
}

static __device__ __forceinline__ float least_score(const fg_choice_row *want)
{
    return want->min_p > 0.0f ? fg_logf(want->min_p) : __uint_as_float(0xFF800000u);
}

static __device__ __forceinline__ place offer(place best, const fg_choice_row *want, float score,
                                              uint32_t id)
{
    uint64_t bits = fg_rng_counter(want->seed, want->choice, want->position, id);
    if (score + fg_gumbel_bound(bits) < best.value) {
        return best; /* as most are */
    }
    return better(best, place{ score + fg_gumbel(bits), id });
}

/* The token with the highest logit, which is in every set, and its noise. */
static __device__ __forceinline__ place likeliest(const fg_choice_row *want, place top)
{
    return offer(nowhere(), want, score_of(top.value, top.value, want->temperature), top.at);
}

static __global__ __launch_bounds__(CHOOSE_THREADS) void draw(choose_job job)
{
    fg_gpu_let_next();
    fg_gpu_wait();
    uint32_t row = blockIdx.y, part = blockIdx.x, columns = job.args.columns;
    const float *logits = job.args.logits + (size_t)row * columns;
    fg_choice_row want = job.wanted[row];
    place top = best_part(job.tops + (size_t)row * job.parts, job.parts);
    if (!is_drawn(&want, top) || is_narrow(&want, columns)) {
        return;
    }
    float least = least_score(&want);
    place mine = likeliest(&want, top);
    uint32_t first = part * PART_COLUMNS;
    uint32_t end = columns - first < PART_COLUMNS ? columns : first + PART_COLUMNS;
#pragma unroll 4
    for (uint32_t id = first + threadIdx.x; id < end; id += CHOOSE_THREADS) {
        float score = score_of(logits[id], top.value, want.temperature);
        if (score >= least) {
            mine = offer(mine, &want, score, id);
        }
    }
    write_best<CHOOSE_THREADS>(mine, &job.draws[(size_t)row * job.parts + part]);
}

/* ---- top-k and top-p ---- */

/* Rising keys are falling scores. */
static __device__ __forceinline__ uint32_t key_of(float score)
{
    uint32_t bits = fg_fmath_bits(score);
    return ~(bits ^ ((bits >> 31) != 0 ? UINT32_MAX : 0x80000000u));
}

static __device__ __forceinline__ float score_of_key(uint32_t key)
{
    uint32_t bits = ~key;
    return fg_fmath_float(bits ^ ((bits >> 31) != 0 ? 0x80000000u : UINT32_MAX));
}

/* Of one row's block. `sorted`: key and id of tokens, then UINT64_MAX. */
typedef struct narrow_shared {
    uint64_t sorted[SORTED_MAX];
    double sums[4];
    uint32_t count;
    uint32_t kept;
    bool heavy_only;
} narrow_shared;

typedef struct narrow_row {
    const float *logits;
    uint32_t columns;
    fg_choice_row want;
    place top;
} narrow_row;

static __device__ __forceinline__ float score_at(const narrow_row *row, uint32_t id)
{
    return score_of(row->logits[id], row->top.value, row->want.temperature);
}

/* Sorts sorted[0 .. size), a power of two; all of the block. */
static __device__ void sort_all(narrow_shared *shared, uint32_t size)
{
    for (uint32_t length = 2; length <= size; length *= 2) {
        for (uint32_t apart = length / 2; apart > 0; apart /= 2) {
            __syncthreads();
            for (uint32_t i = threadIdx.x; i < size / 2; i += NARROW_THREADS) {
                uint32_t low = i / apart * apart * 2 + i % apart, high = low + apart;
                uint64_t a = shared->sorted[low], b = shared->sorted[high];
                if ((a > b) == ((low & length) == 0)) {
                    shared->sorted[low] = b;
                    shared->sorted[high] = a;
                }
            }
        }
    }
    __syncthreads();
}

static __device__ __forceinline__ uint32_t power_of_two(uint32_t count)
{
    uint32_t size = 2;
    while (size < count) {
        size *= 2;
    }
    return size;
}

/* The key of the nth of the highest scores that threads see: so many tokens reach it at least. */
static __device__ uint32_t find_bar(narrow_shared *shared, const narrow_row *row, uint32_t nth)
{
    uint32_t key = UINT32_MAX;
    for (uint32_t id = threadIdx.x; id < row->columns; id += NARROW_THREADS) {
        uint32_t other = key_of(score_at(row, id));
        key = other < key ? other : key;
    }
    shared->sorted[threadIdx.x] = key;
    sort_all(shared, NARROW_THREADS);
    uint32_t bar = (uint32_t)shared->sorted[nth - 1];
    __syncthreads();
    return bar;
}

/* Sorts all tokens that reach the bar, and returns how many they are; UINT32_MAX: there is no room for them. */
static __device__ uint32_t collect(narrow_shared *shared, const narrow_row *row, uint32_t bar)
{
    if (threadIdx.x == 0) {
        shared->count = 0;
    }
    __syncthreads();
    for (uint32_t id = threadIdx.x; id < row->columns; id += NARROW_THREADS) {
        uint32_t key = key_of(score_at(row, id));
        if (key <= bar) {
            uint32_t at = atomicAdd(&shared->count, 1u);
            if (at < SORTED_MAX) {
                shared->sorted[at] = (uint64_t)key << 32 | id;
            }
        }
    }
    __syncthreads();
    uint32_t count = shared->count;
    if (count > SORTED_MAX) {
        return UINT32_MAX;
    }
    uint32_t size = power_of_two(count);
    for (uint32_t i = count + threadIdx.x; i < size; i += NARROW_THREADS) {
        shared->sorted[i] = UINT64_MAX;
    }
    sort_all(shared, size);
    return count;
}

/* The sampler's four sums, of which the first four threads have one each. */
static __device__ double add_sums(narrow_shared *shared, double sum)
{
    if (threadIdx.x < 4) {
        shared->sums[threadIdx.x] = sum;
    }
    __syncthreads();
    return (shared->sums[0] + shared->sums[1]) + (shared->sums[2] + shared->sums[3]);
}

/* The weights of all tokens. While some threads add a tile, all make the next one. */
static __device__ double weigh_all(narrow_shared *shared, const narrow_row *row)
{
    float *tiles[2] = { (float *)shared->sorted, (float *)shared->sorted + NARROW_THREADS };
    double sum = 0.0;
    uint32_t count = (row->columns + NARROW_THREADS - 1) / NARROW_THREADS, id = threadIdx.x;
    float logit = id < row->columns ? row->logits[id] : __uint_as_float(0xFF800000u);
    for (uint32_t tile = 0; tile <= count; tile++) {
        /* -inf weighs 0, and adding that changes no sum. */
        tiles[tile % 2][threadIdx.x] =
            fg_expf(score_of(logit, row->top.value, row->want.temperature));
        id += NARROW_THREADS;
        logit = id < row->columns ? row->logits[id] : __uint_as_float(0xFF800000u);
        if (tile > 0 && threadIdx.x < 4) {
            const float *weights = tiles[1 - tile % 2];
#pragma unroll 16
            for (uint32_t i = threadIdx.x; i < NARROW_THREADS; i += 4) {
                sum += (double)weights[i];
            }
        }
        __syncthreads();
    }
    double total = add_sums(shared, sum);
    __syncthreads();
    return total;
}

/* Those of the first `count` sorted tokens, in the order of their ids. */
static __device__ double weigh_sorted(narrow_shared *shared, uint32_t count)
{
    uint32_t size = power_of_two(count);
    double sum = 0.0;
    for (int turn = 0; turn < 2; turn++) {
        for (uint32_t i = threadIdx.x; i < size; i += NARROW_THREADS) {
            uint64_t both = shared->sorted[i];
            shared->sorted[i] = i < count ? both << 32 | both >> 32 : UINT64_MAX;
        }
        sort_all(shared, size);
        if (turn == 0 && threadIdx.x < 4) {
            for (uint32_t i = threadIdx.x; i < count; i += 4) {
                sum += (double)fg_expf(score_of_key((uint32_t)shared->sorted[i]));
            }
        }
        __syncthreads();
    }
    return add_sums(shared, sum);
}

/* How many of the sorted tokens reach `target`, counting those that weigh `share` at least; 0: all do not. A warp. */
static __device__ uint32_t walk(const narrow_shared *shared, uint32_t count, double target,
                                double share)
{
    double reached = 0.0;
    for (uint32_t first = 0; first < count; first += 32) {
        uint32_t at = first + threadIdx.x % 32;
        float mine =
            at < count ? fg_expf(score_of_key((uint32_t)(shared->sorted[at] >> 32))) : 0.0f;
        for (uint32_t lane = 0; lane < 32; lane++) {
            double weight = (double)__shfl_sync(0xFFFFFFFFu, mine, (int)lane);
            if (first + lane < count && weight >= share) {
                reached += weight;
                if (reached >= target) {
                    return first + lane + 1;
                }
            }
        }
    }
    return 0;
}

/* Leaves in `kept` how many of the sorted tokens may be drawn; UINT32_MAX: those that are sorted do not tell. */
static __device__ void narrow_by_share(narrow_shared *shared, const narrow_row *row, uint32_t count,
                                       uint32_t all, double total, double share)
{
    if (threadIdx.x < 32) {
        double target = (double)row->want.top_p * total;
        uint32_t kept = walk(shared, count, target, share);
        bool heavy_only = kept > 0;
        if (kept == 0 && count == all) {
            kept = walk(shared, count, target, 0.0);
            kept = kept == 0 ? count : kept;
        }
        if (threadIdx.x == 0) {
            shared->kept = kept == 0 ? UINT32_MAX : kept;
            shared->heavy_only = heavy_only;
        }
    }
    __syncthreads();
}

static __device__ void draw_kept(const narrow_shared *shared, const narrow_row *row, uint32_t kept,
                                 bool heavy_only, double share, place *out)
{
    place mine = likeliest(&row->want, row->top);
    float least = least_score(&row->want);
    for (uint32_t i = threadIdx.x; i < kept; i += NARROW_THREADS) {
        float score = score_of_key((uint32_t)(shared->sorted[i] >> 32));
        bool in = !heavy_only || (double)fg_expf(score) >= share;
        if (in && score >= least) {
            mine = offer(mine, &row->want, score, (uint32_t)shared->sorted[i]);
        }
    }
    write_best<NARROW_THREADS>(mine, out);
}

static __global__ __launch_bounds__(NARROW_THREADS, 1) void narrow(choose_job job)
{
    __shared__ narrow_shared shared;
    fg_gpu_let_next();
    fg_gpu_wait();
    narrow_row row;
    row.columns = job.args.columns;
    row.logits = job.args.logits + (size_t)blockIdx.x * row.columns;
    row.want = job.wanted[blockIdx.x];
    row.top = best_part(job.tops + (size_t)blockIdx.x * job.parts, job.parts);
    place *out = job.draws + (size_t)blockIdx.x * job.parts;
    if (!is_drawn(&row.want, row.top) || !is_narrow(&row.want, row.columns)) {
        return;
    }
    bool by_rank = row.want.top_k > 0 && row.want.top_k < row.columns;
    bool by_share = row.want.top_p < 1.0f;
    uint32_t nth = by_rank ? row.want.top_k : (uint32_t)REACHED;
    uint32_t count = UINT32_MAX, all = by_rank ? row.want.top_k : row.columns;
    double total = 0.0, share = 0.0;
    bool has_room = row.columns <= SORTED_MAX;
    if (has_room || nth <= NARROW_THREADS) {
        if (!by_rank) {
            total = weigh_all(&shared, &row);
        }
        uint32_t bar = has_room ? UINT32_MAX : find_bar(&shared, &row, nth);
        count = collect(&shared, &row, bar);
    }
    if (count != UINT32_MAX) {
        count = count < all ? count : all;
        if (by_share) {
            total = by_rank ? weigh_sorted(&shared, count) : total;
            share = (total - (double)row.want.top_p * total) / all;
            narrow_by_share(&shared, &row, count, all, total, share);
            count = shared.kept;
        }
    }
    if (count == UINT32_MAX) {
        if (threadIdx.x == 0) {
            *out = nowhere();
        }
        return;
    }
    draw_kept(&shared, &row, count, by_share && shared.heavy_only, share, out);
}

static __global__ __launch_bounds__(32) void take_best(choose_job job)
{
    fg_gpu_let_next();
    fg_gpu_wait();
    uint32_t row = blockIdx.x;
    const fg_choice_row *want = &job.wanted[row];
    place best = best_part(job.tops + (size_t)row * job.parts, job.parts);
    uint32_t id = best.at == UINT32_MAX ? 0 : best.at;
    if (is_drawn(want, best)) {
        uint32_t parts = is_narrow(want, job.args.columns) ? 1 : job.parts;
        id = best_part(job.draws + (size_t)row * job.parts, parts).at;
    }
    if (want->wanted == 0 || threadIdx.x != 0) {
        return;
    }
    job.args.choices[row] = id;
    if (row < FG_CHOSEN_ROWS) {
        job.chosen[row] = id;
    }
    if (id != FG_CHOICE_NONE) {
        job.args.tops[row] = job.args.logits[(size_t)row * job.args.columns + id];
    }
}

void fg_cuda_choose(fg_device_stream *stream, const fg_choose *args, uint32_t rows)
{
    choose_job job = {};
    job.args = *args;
    job.parts = (args->columns + PART_COLUMNS - 1) / PART_COLUMNS;
    job.chosen = stream->chosen;
    job.wanted = (fg_choice_row *)stream->work;
    job.tops = (place *)(job.wanted + rows);
    job.draws = job.tops + (size_t)rows * job.parts;
    stream->sequence++;
    dim3 grid(job.parts, rows);
    FG_LAUNCH(find_tops, grid, dim3(CHOOSE_THREADS), 0, stream->stream, true, job);
    FG_LAUNCH(draw, grid, dim3(CHOOSE_THREADS), 0, stream->stream, true, job);
    FG_LAUNCH(narrow, dim3(rows), dim3(NARROW_THREADS), 0, stream->stream, true, job);
    FG_LAUNCH(take_best, dim3(rows), dim3(32), 0, stream->stream, true, job);
}
