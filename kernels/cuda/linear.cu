/*
 * Products of rows with weight matrices, as cuda.h says what they are. Kernels are chosen by the number of rows;
 * the sums are the same: few.cu, wide.cu, tall.cu; of quantised weights few_quant.cu, of more rows wide_quant.cu, and of
 * still more, or where that has no kernel, wide.cu or tall.cu after expand.cu has made bf16 of them. F32 and F16
 * weights have become BF16 when they were packed.
 */
#include "kernels/cuda/product.cuh"

/* Joins gate and up that were computed apart. */
static __global__ void gate_floats(const float *gate, const float *up, uint32_t columns,
                                   float *values, uint32_t *pairs)
{
    fg_gpu_let_next();
    fg_gpu_wait();
    for (uint32_t i = 2 * threadIdx.x; i < columns; i += 2 * blockDim.x) {
        size_t at = (size_t)blockIdx.x * columns + i;
        bool two = i + 1 < columns;
        float first = __fmul_rn(fg_gpu_silu(gate[at]), up[at]);
        float second = two ? __fmul_rn(fg_gpu_silu(gate[at + 1]), up[at + 1]) : 0.0f;
        if (pairs != nullptr) {
            pairs[fg_gpu_pair_at(blockIdx.x, i, fg_gpu_columns(columns))] =
                fg_bf16_pair(first, second);
        } else {
            values[at] = first;
            if (two) {
                values[at + 1] = second;
            }
        }
    }
}

/* ---- who computes what ---- */

uint32_t fg_cuda_linear_form(uint32_t type)
{
    return FG_FORM_PAIRS;
}

static fg_gpu_products make_set(const fg_activations *in, uint32_t columns, uint32_t rows)
{
    fg_gpu_products set = {};
    set.in = in->pairs;
    set.columns = fg_gpu_columns(columns);
    set.steps = fg_gpu_steps(columns);
    set.part_steps = (set.steps + FG_GPU_PARTS - 1) / FG_GPU_PARTS;
    set.rows = rows;
    return set;
}

/* A launch's strips; blocks of more rows begin at multiples of theirs, so each product's strips are rounded up. */
static uint32_t add_product(fg_gpu_products *set, uint32_t strips, const fg_gpu_product &made,
                            bool aligned)
{
    fg_gpu_product *p = &set->each[set->count++];
    *p = made;
    p->strip_first = strips;
    uint32_t count = fg_gpu_strips(made.outputs);
    return strips +
           (aligned ? (count + FG_GPU_TALL_STRIPS - 1) / FG_GPU_TALL_STRIPS * FG_GPU_TALL_STRIPS
                    : count);
}

/* Strips as add_product aligns them; `may_split`: the work area is free. */
static void run_many(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips,
                     bool gated, bool may_split)
{
    if (!fg_gpu_wide(stream, set, strips, gated, may_split)) {
        fg_gpu_tall(stream, set, strips, gated, may_split && !gated);
    }
}

/* Products of quantised weights of one type with many rows: as many strips at a time as there is room for. */
static void run_expanded(fg_device_stream *stream, uint32_t type, const fg_gpu_products &all,
                         bool gated, bool may_split)
{
    fg_gpu_products set = all;
    size_t strip_bytes = fg_gpu_panel_bytes(FG_GPU_STRIP, all.columns), used = 0;
    uint32_t strips = 0;
    set.count = 0;
    for (uint32_t i = 0; i < all.count; i++) {
        const fg_gpu_product &p = all.each[i];
        uint32_t left = fg_gpu_strips(p.outputs);
        for (uint32_t first = 0; left > 0;) {
            uint32_t room = (uint32_t)((FG_GPU_EXPANDED_BYTES - used) / strip_bytes);
            room = (gated ? room / 2 : room) / FG_GPU_TALL_STRIPS * FG_GPU_TALL_STRIPS;
            if (set.count == FG_GPU_PRODUCTS_MAX || (left > room && set.count > 0)) {
                run_many(stream, set, strips, gated, may_split);
                set.count = strips = 0;
                used = 0;
                continue;
            }
            uint32_t count = left < room ? left : room;
            uint32_t outputs = p.outputs - first * FG_GPU_STRIP;
            fg_gpu_product piece = p;
            piece.outputs = outputs < count * FG_GPU_STRIP ? outputs : count * FG_GPU_STRIP;
            piece.weight = stream->expanded + used;
            fg_gpu_expand(stream, type, p.weight, all.steps, first, count, stream->expanded + used);
            used += count * strip_bytes;
            if (gated) {
                piece.up = stream->expanded + used;
                piece.pair_first = first * FG_GPU_STRIP;
                fg_gpu_expand(stream, type, p.up, all.steps, first, count, stream->expanded + used);
                used += count * strip_bytes;
            } else {
                piece.out += first * FG_GPU_STRIP;
            }
            strips = add_product(&set, strips, piece, true);
            first += count;
            left -= count;
        }
    }
    run_many(stream, set, strips, gated, may_split);
}

/* The strips of a launch: add_product for each. */
static uint32_t add_products(fg_gpu_products *set, const fg_gpu_products &all, bool aligned)
{
    uint32_t strips = 0;
    *set = all;
    set->count = 0;
    for (uint32_t i = 0; i < all.count; i++) {
        strips = add_product(set, strips, all.each[i], aligned);
    }
    return strips;
}

static void run_quantised(fg_device_stream *stream, uint32_t type, const fg_gpu_products &all,
                          bool gated, bool may_split)
{
    fg_gpu_products set;
    if (all.rows > FG_GPU_WIDE_QUANT_ABOVE && all.rows <= FG_GPU_WIDE_QUANT_ROWS) {
        uint32_t strips = add_products(&set, all, true);
        if (fg_gpu_wide_quant(stream, type, set, strips, gated, may_split)) {
            return;
        }
    }
    if (all.rows <= FG_GPU_FEW_QUANT_ROWS) {
        uint32_t strips = add_products(&set, all, false);
        if (fg_gpu_few_quant(stream, type, set, strips, gated)) {
            return;
        }
    }
    run_expanded(stream, type, all, gated, may_split);
}

/* Products whose weights are all of one type. */
static void run_products(fg_device_stream *stream, uint32_t type, const fg_gpu_products &all,
                         bool gated, bool may_split)
{
    if (fg_gpu_is_quant(type)) {
        run_quantised(stream, type, all, gated, may_split);
        return;
    }
    fg_gpu_products set;
    bool is_few = all.rows <= FG_GPU_FEW_ROWS;
    uint32_t strips = add_products(&set, all, !is_few);
    if (is_few) {
        fg_gpu_few(stream, set, strips, gated);
    } else {
        run_many(stream, set, strips, gated, may_split);
    }
}

static void tensor_linears(fg_device_stream *stream, const fg_linear *linears, uint32_t count,
                           const fg_activations *in, uint32_t rows, bool may_split)
{
    fg_gpu_products set = make_set(in, linears[0].weight.columns, rows);
    for (uint32_t i = 0; i < count; i++) {
        fg_gpu_product *p = &set.each[set.count++];
        p->weight = (const uint8_t *)linears[i].weight.data;
        p->out = linears[i].out;
        p->outputs = linears[i].weight.outputs;
        p->stride = linears[i].out_stride;
        p->accumulate = linears[i].accumulate;
    }
    run_products(stream, linears[0].weight.type, set, false, may_split);
}

void fg_cuda_linear(fg_device_stream *stream, const fg_linear *linears, uint32_t linear_count,
                    const fg_activations *in, uint32_t rows)
{
    stream->sequence++;
    for (uint32_t i = 0; i < linear_count;) {
        uint32_t count = 1;
        while (i + count < linear_count && count < FG_GPU_PRODUCTS_MAX &&
               linears[i + count].weight.type == linears[i].weight.type) {
            count++;
        }
        tensor_linears(stream, &linears[i], count, in, rows, true);
        i += count;
    }
}

/* Gate and up of different types, or wanted as floats: as two products and what joins them, some rows at a time. */
static void gated_apart(fg_device_stream *stream, const fg_gated *gated, const fg_activations *in,
                        uint32_t rows)
{
    uint32_t outputs = gated->gate.outputs;
    size_t each = (size_t)2 * outputs;
    uint32_t most = (uint32_t)(stream->work_floats / each) / FG_GPU_BLOCK * FG_GPU_BLOCK;
    for (uint32_t first = 0; first < rows; first += most) {
        uint32_t count = rows - first < most ? rows - first : most;
        fg_activations part = *in;
        part.pairs += fg_gpu_pair_at(first, 0, fg_gpu_columns(in->columns));
        float *gate = stream->work, *up = stream->work + (size_t)count * outputs;
        fg_linear both[2] = { { gated->gate, gate, outputs, false },
                              { gated->up, up, outputs, false } };
        for (const fg_linear &linear : both) {
            /* Not split: the work area is in use. */
            tensor_linears(stream, &linear, 1, &part, count, false);
        }
        bool pairs = (gated->forms & FG_FORM_PAIRS) != 0;
        FG_LAUNCH(gate_floats, dim3(count), dim3(256), 0, stream->stream, true, (const float *)gate,
                  (const float *)up, outputs, gated->out.values + (size_t)first * outputs,
                  pairs ? gated->out.pairs + fg_gpu_pair_at(first, 0, fg_gpu_columns(outputs))
                        : (uint32_t *)nullptr);
    }
}

void fg_cuda_gated(fg_device_stream *stream, const fg_gated *gated, const fg_activations *in,
                   uint32_t rows)
{
    stream->sequence++;
    bool joined = gated->gate.type == gated->up.type && gated->forms == FG_FORM_PAIRS;
    if (!joined) {
        gated_apart(stream, gated, in, rows);
        return;
    }
    fg_gpu_products set = make_set(in, gated->gate.columns, rows);
    fg_gpu_product *p = &set.each[set.count++];
    p->weight = (const uint8_t *)gated->gate.data;
    p->up = (const uint8_t *)gated->up.data;
    p->pairs = gated->out.pairs;
    p->outputs = gated->gate.outputs;
    p->pair_columns = fg_gpu_columns(gated->gate.outputs);
    run_products(stream, gated->gate.type, set, true, false);
}

/* ---- the highest output ---- */

enum { HIGHEST_THREADS = 1024, HIGHEST_AHEAD = 8 /* numbers that a thread asks for at once */ };

static __device__ __forceinline__ bool is_better(float value, uint32_t at, float best,
                                                 uint32_t best_at)
{
    return value > best || (value == best && at < best_at);
}

static __global__ __launch_bounds__(HIGHEST_THREADS) void find_highest(
    const float *values, uint32_t count, uint32_t *choices, float *tops, uint32_t *chosen)
{
    __shared__ float best_of[HIGHEST_THREADS];
    __shared__ uint32_t at_of[HIGHEST_THREADS];
    fg_gpu_let_next();
    fg_gpu_wait();
    const float *x = values + (size_t)blockIdx.x * count;
    float best = __uint_as_float(0xFF800000u);
    uint32_t best_at = UINT32_MAX;
    for (uint32_t first = threadIdx.x; first < count; first += HIGHEST_AHEAD * HIGHEST_THREADS) {
        float kept[HIGHEST_AHEAD];
#pragma unroll
        for (uint32_t i = 0; i < HIGHEST_AHEAD; i++) {
            uint32_t at = first + i * HIGHEST_THREADS;
            kept[i] = at < count ? x[at] : __uint_as_float(0xFF800000u);
        }
#pragma unroll
        for (uint32_t i = 0; i < HIGHEST_AHEAD; i++) {
            /* -inf is never chosen: nothing is higher than where the search begins. */
            if (kept[i] > best) {
                best = kept[i];
                best_at = first + i * HIGHEST_THREADS;
            }
        }
    }
    best_of[threadIdx.x] = best;
    at_of[threadIdx.x] = best_at;
    __syncthreads();
    for (uint32_t apart = HIGHEST_THREADS / 2; apart > 0; apart /= 2) {
        if (threadIdx.x < apart &&
            is_better(best_of[threadIdx.x + apart], at_of[threadIdx.x + apart],
                      best_of[threadIdx.x], at_of[threadIdx.x])) {
            best_of[threadIdx.x] = best_of[threadIdx.x + apart];
            at_of[threadIdx.x] = at_of[threadIdx.x + apart];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        uint32_t choice = at_of[0] == UINT32_MAX ? 0 : at_of[0];
        choices[blockIdx.x] = choice;
        tops[blockIdx.x] = best_of[0];
        if (chosen != nullptr && blockIdx.x < FG_CHOSEN_ROWS) {
            chosen[blockIdx.x] = choice;
        }
    }
}

void fg_cuda_highest(fg_device_stream *stream, const fg_panels *weight, const fg_activations *in,
                     uint32_t rows, uint32_t *choices, float *tops)
{
    stream->sequence++;
    uint32_t most = (uint32_t)(stream->work_floats / weight->outputs) / FG_GPU_BLOCK * FG_GPU_BLOCK;
    for (uint32_t first = 0; first < rows; first += most) {
        uint32_t count = rows - first < most ? rows - first : most;
        fg_activations part = *in;
        part.pairs += fg_gpu_pair_at(first, 0, fg_gpu_columns(in->columns));
        fg_linear linear = { *weight, stream->work, weight->outputs, false };
        tensor_linears(stream, &linear, 1, &part, count, false);
        FG_LAUNCH(find_highest, dim3(count), dim3(HIGHEST_THREADS), 0, stream->stream, true,
                  (const float *)stream->work, weight->outputs, choices + first, tops + first,
                  first == 0 ? stream->chosen : (uint32_t *)nullptr);
    }
}

void fg_cuda_linear_prepare(fg_device *device)
{
    fg_gpu_few_prepare(device);
    fg_gpu_few_quant_prepare(device);
    fg_gpu_tall_prepare(device);
    device->wide = fg_gpu_wide_prepare();
    if (device->wide) {
        fg_gpu_wide_quant_prepare();
    }
}
