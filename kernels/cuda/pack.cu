/*
 * Weights on their way to the device: rows as the model file has them go through a buffer, kernels write them in the
 * order of tensor-core fragments: BF16 as it is, F32 and F16 as the nearest BF16, quantised types as quant.cuh has them.
 */
#include <stdio.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/quant.cuh"
#include "kernels/cuda/unpack.cuh"

/* Bytes of a model file on the device at a time. */
enum { BUFFER_BYTES = 64 << 20, PACK_THREADS = 256 };

static size_t row_bytes_of(uint32_t type, uint32_t columns)
{
    return (size_t)(columns / fg_dtype_block_count(type)) * fg_dtype_block_bytes(type);
}

/* A word of the packed matrix a thread. Strips from `strip` on; `rows` holds outputs 16 * strip .. , `outputs` of them. */
static __global__ void pack_words(uint32_t type, const uint8_t *rows, size_t row_bytes,
                                  uint32_t outputs, uint32_t columns, uint32_t *words, size_t count)
{
    size_t at = (size_t)blockIdx.x * PACK_THREADS + threadIdx.x;
    if (at >= count) {
        return;
    }
    uint32_t steps = fg_gpu_steps(columns);
    uint32_t word = (uint32_t)(at % 4), lane = (uint32_t)(at / 4 % 32);
    uint32_t step = (uint32_t)(at / 128 % steps), strip = (uint32_t)(at / 128 / steps);
    uint32_t output = strip * FG_GPU_STRIP + lane / 4 + word % 2 * 8;
    uint32_t k = step * FG_GPU_STEP + lane % 4 * 2 + word / 2 * 8;
    uint32_t pair = 0;
    if (output < outputs && k < columns) {
        const uint8_t *row = rows + output * row_bytes;
        pair = fg_bf16_pair(fg_gpu_unpack_at(type, row, k), fg_gpu_unpack_at(type, row, k + 1));
    }
    words[at] = pair;
}

/* A code as it is packed. */
static __device__ __forceinline__ uint32_t code_at(uint32_t type, const uint8_t *row, uint32_t k)
{
    if (type == FG_Q6_K) {
        return fg_gpu_q6_code(row + (size_t)(k / 256) * fg_gpu_k_bytes(type), k % 256);
    }
    if (type == FG_Q4_K || type == FG_Q5_K) {
        return fg_gpu_k_code(row + (size_t)(k / 256) * fg_gpu_k_bytes(type), k % 256,
                             type == FG_Q5_K);
    }
    return fg_gpu_small_code(type, row + (size_t)(k / 32) * fg_gpu_small_bytes(type), k % 32);
}

static __device__ __forceinline__ uint32_t two_bytes(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8;
}

/* Rows of some strips as the file has them. */
typedef struct pack_rows {
    const uint8_t *data;
    size_t row_bytes;
    uint32_t outputs, columns;
} pack_rows;

/* A lane's codes of a unit. */
template <uint32_t type>
static __device__ __forceinline__ void pack_codes(const pack_rows &rows, uint32_t strip,
                                                  uint32_t unit, uint32_t lane, uint8_t *out)
{
    typedef fg_gpu_quant<type> quant;
    uint32_t low[8] = {}, high[2] = {};
    for (uint32_t i = 0; i < FG_GPU_UNIT_STEPS * 8; i++) {
        uint32_t step = i / 8, j = i % 8;
        uint32_t output = strip * FG_GPU_STRIP + lane / 4 + j / 2 % 2 * 8;
        uint32_t k =
            unit * FG_GPU_UNIT_COLUMNS + step * FG_GPU_STEP + lane % 4 * 2 + j / 4 * 8 + j % 2;
        if (output >= rows.outputs || k >= rows.columns) {
            continue;
        }
        uint32_t code = code_at(type, rows.data + output * rows.row_bytes, k);
        if (quant::is_bytes) {
            low[step * 2 + j / 4] |= code << j % 4 * 8;
            continue;
        }
        uint32_t bit = fg_gpu_code_bit(j);
        low[step] |= (code & 15u) << bit;
        if (quant::high_bits == 1) {
            high[0] |= code >> 4 << (bit + step);
        } else if (quant::high_bits == 2) {
            high[step / 2] |= code >> 4 << (bit + step % 2 * 2);
        }
    }
    uint4 *at = (uint4 *)out;
    at[lane] = make_uint4(low[0], low[1], low[2], low[3]);
    if (quant::is_bytes) {
        at[32 + lane] = make_uint4(low[4], low[5], low[6], low[7]);
    }
    uint32_t *high_at = (uint32_t *)(out + quant::high_at) + lane * quant::high_bits;
    if constexpr (quant::high_bits > 0) {
        high_at[0] = high[0];
    }
    if constexpr (quant::high_bits > 1) {
        high_at[1] = high[1];
    }
}

/* The scales of outputs g and g + 8 of types with 32 columns a block. */
template <uint32_t type>
static __device__ __forceinline__ void pack_small_scales(const pack_rows &rows, uint32_t strip,
                                                         uint32_t unit, uint32_t g, uint8_t *out)
{
    typedef fg_gpu_quant<type> quant;
    uint16_t *at = (uint16_t *)(out + quant::scales_at) + g * (quant::has_minima ? 8 : 4);
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t output = strip * FG_GPU_STRIP + g + i % 2 * 8, block = unit * 2 + i / 2;
        bool real = output < rows.outputs && block * 32 < rows.columns;
        const uint8_t *from =
            rows.data + output * rows.row_bytes + (size_t)block * fg_gpu_small_bytes(type);
        at[i] = (uint16_t)(real ? two_bytes(from) : 0);
        if (quant::has_minima) {
            at[4 + i] = (uint16_t)(real ? two_bytes(from + 2) : 0);
        }
    }
}

/* Likewise of the K types; with a block's first unit its halves. */
template <uint32_t type>
static __device__ __forceinline__ void pack_super_scales(const pack_rows &rows, uint32_t strip,
                                                         uint32_t unit, uint32_t g, uint8_t *out)
{
    typedef fg_gpu_quant<type> quant;
    uint8_t *at = out + quant::scales_at + g * 8;
    uint16_t *tail = (uint16_t *)(out + quant::tail_at) + g * (quant::has_minima ? 4 : 2);
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t output = strip * FG_GPU_STRIP + g + i * 8;
        bool real = output < rows.outputs;
        const uint8_t *block =
            rows.data + output * rows.row_bytes + (size_t)(unit / 4) * fg_gpu_k_bytes(type);
        for (uint32_t j = 0; j < (quant::has_minima ? 2u : 4u); j++) {
            uint32_t scale = 0, minimum = 0;
            if (real && quant::has_minima) {
                fg_gpu_k_scale(block + 4, unit % 4 * 2 + j, &scale, &minimum);
            } else if (real) {
                scale = block[192 + unit % 4 * 4 + j];
            }
            at[j * 2 + i] = (uint8_t)scale;
            if (quant::has_minima) {
                at[4 + j * 2 + i] = (uint8_t)minimum;
            }
        }
        if (unit % 4 == 0) {
            tail[i] = (uint16_t)(real ? two_bytes(block + (quant::has_minima ? 0 : 208)) : 0);
            if (quant::has_minima) {
                tail[2 + i] = (uint16_t)(real ? two_bytes(block + 2) : 0);
            }
        }
    }
}

/* A warp per unit. */
template <uint32_t type>
static __global__ void pack_units(pack_rows rows, uint8_t *strips, uint32_t units, size_t count)
{
    size_t at = (size_t)blockIdx.x * (PACK_THREADS / 32) + threadIdx.x / 32;
    if (at >= count) {
        return;
    }
    uint32_t lane = threadIdx.x % 32;
    uint32_t unit = (uint32_t)(at % units), strip = (uint32_t)(at / units);
    uint8_t *out = strips + fg_gpu_unit_at<type>(units) * strip + fg_gpu_unit_at<type>(unit);
    pack_codes<type>(rows, strip, unit, lane, out);
    if (lane < 8) {
        if constexpr (fg_gpu_quant<type>::is_super) {
            pack_super_scales<type>(rows, strip, unit, lane, out);
        } else {
            pack_small_scales<type>(rows, strip, unit, lane, out);
        }
    }
}

template <uint32_t type> static void pack_quant(const pack_rows &rows, uint8_t *strips)
{
    uint32_t units = fg_gpu_units(rows.columns / FG_GPU_STEP);
    size_t count = (size_t)units * ((rows.outputs + FG_GPU_STRIP - 1) / FG_GPU_STRIP);
    constexpr size_t warps = PACK_THREADS / 32;
    FG_LAUNCH(pack_units<type>, dim3((uint32_t)((count + warps - 1) / warps)), dim3(PACK_THREADS),
              0, nullptr, false, rows, strips, units, count);
}

template <uint32_t type> static size_t quant_strip_bytes(uint32_t columns)
{
    return fg_gpu_unit_at<type>(fg_gpu_units(columns / FG_GPU_STEP));
}

static size_t strip_bytes_of(uint32_t type, uint32_t columns)
{
    if (!fg_gpu_is_quant(type)) {
        return fg_gpu_panel_bytes(FG_GPU_STRIP, columns);
    }
    FG_GPU_QUANT_SWITCH(type, quant_strip_bytes, columns);
}

static void pack_rows_of(uint32_t type, const pack_rows &rows, uint8_t *strips)
{
    if (fg_gpu_is_quant(type)) {
        FG_GPU_QUANT_SWITCH(type, pack_quant, rows, strips);
    }
    size_t count = fg_gpu_panel_bytes(rows.outputs, rows.columns) / 4;
    FG_LAUNCH(pack_words, dim3((uint32_t)((count + PACK_THREADS - 1) / PACK_THREADS)),
              dim3(PACK_THREADS), 0, nullptr, false, type, rows.data, rows.row_bytes, rows.outputs,
              rows.columns, (uint32_t *)strips, count);
}

static fg_status pack_strips(fg_device *device, const fg_matrix *rows, uint8_t *panels,
                             fg_error *err)
{
    size_t row_bytes = row_bytes_of(rows->type, rows->columns);
    size_t strip_bytes = FG_GPU_STRIP * row_bytes;
    uint32_t strips_at_once =
        strip_bytes < BUFFER_BYTES ? (uint32_t)(BUFFER_BYTES / strip_bytes) : 1;
    void *buffer = nullptr;
    if (cudaMalloc(&buffer, strips_at_once * strip_bytes) != cudaSuccess) {
        (void)cudaGetLastError();
        if (err != nullptr) {
            err->status = FG_AGAIN;
            snprintf(err->text, sizeof err->text,
                     "cuda:%d has no memory for %zu MiB of the model file", device->index,
                     strips_at_once * strip_bytes >> 20);
        }
        return FG_AGAIN;
    }
    uint32_t strips = (rows->outputs + FG_GPU_STRIP - 1) / FG_GPU_STRIP;
    for (uint32_t strip = 0; strip < strips; strip += strips_at_once) {
        uint32_t first = strip * FG_GPU_STRIP;
        uint32_t left = rows->outputs - first;
        uint32_t outputs =
            left < strips_at_once * FG_GPU_STRIP ? left : strips_at_once * FG_GPU_STRIP;
        fg_gpu_check(cudaMemcpy(buffer, (const uint8_t *)rows->data + first * row_bytes,
                                outputs * row_bytes, cudaMemcpyHostToDevice),
                     "loading weights");
        const pack_rows part = { (const uint8_t *)buffer, row_bytes, outputs, rows->columns };
        pack_rows_of(rows->type, part, panels + strip * strip_bytes_of(rows->type, rows->columns));
        fg_gpu_check(cudaDeviceSynchronize(), "packing weights");
    }
    fg_gpu_check(cudaFree(buffer), "packing weights");
    return FG_OK;
}

static fg_status no_memory(const fg_device *device, size_t bytes, fg_error *err)
{
    if (err != nullptr) {
        err->status = FG_AGAIN;
        snprintf(
            err->text, sizeof err->text,
            "cuda:%d has no memory for a matrix of %zu MiB: a smaller model, or a larger device",
            device->index, bytes >> 20);
    }
    return FG_AGAIN;
}

static fg_status not_computed(const char *kind, uint32_t columns, const char *limit, fg_error *err)
{
    if (err != nullptr) {
        err->status = FG_BAD_INPUT;
        snprintf(err->text, sizeof err->text,
                 "cuda: %smatrices of %u columns are not computed%s: use --device cpu", kind,
                 columns, limit);
    }
    return FG_BAD_INPUT;
}

fg_status fg_cuda_pack(fg_device *device, const fg_matrix *rows, fg_panels *panels_out,
                       fg_error *err)
{
    bool quant = fg_gpu_is_quant(rows->type);
    if (rows->columns % 2 != 0) {
        return not_computed("", rows->columns, " (even numbers are)", err);
    }
    if (quant && fg_gpu_panel_bytes(FG_GPU_EXPANDED_STRIPS * FG_GPU_STRIP, rows->columns) >
                     FG_GPU_EXPANDED_BYTES) {
        return not_computed("quantised ", rows->columns, "", err);
    }
    size_t bytes = strip_bytes_of(rows->type, rows->columns) *
                   ((rows->outputs + FG_GPU_STRIP - 1) / FG_GPU_STRIP);
    void *memory = fg_cuda_keep(device, bytes);
    if (memory == nullptr) {
        return no_memory(device, bytes, err);
    }
    fg_status status = pack_strips(device, rows, (uint8_t *)memory, err);
    if (status == FG_OK) {
        uint32_t type = quant ? rows->type : (uint32_t)FG_BF16;
        *panels_out = fg_panels{ memory, type, rows->outputs, rows->columns };
    }
    return status;
}

static __global__ void embed_rows(uint32_t type, const uint8_t *table, size_t row_bytes,
                                  uint32_t outputs, uint32_t columns, const uint32_t *tokens,
                                  const uint32_t *chosen, float scale, float *out)
{
    fg_gpu_let_next();
    fg_gpu_wait();
    uint32_t token = tokens[blockIdx.x];
    if ((token & FG_TOKEN_CHOSEN) != 0) {
        token = chosen[token & ~FG_TOKEN_CHOSEN];
        token = token < outputs ? token : 0; /* FG_CHOICE_NONE: the caller will know */
    }
    const uint8_t *row = table + token * row_bytes;
    for (uint32_t i = threadIdx.x; i < columns; i += blockDim.x) {
        out[(size_t)blockIdx.x * columns + i] = fg_gpu_unpack_at(type, row, i) * scale;
    }
}

void fg_cuda_embed(fg_device_stream *stream, const fg_matrix *table, const uint32_t *tokens,
                   uint32_t rows, float scale, float *out)
{
    const uint32_t *staged = fg_gpu_staged_at(tokens, stream->rows.tokens, stream->at.tokens);
    stream->sequence++;
    FG_LAUNCH(embed_rows, dim3(rows), dim3(128), 0, stream->stream, true, table->type,
              (const uint8_t *)table->data, row_bytes_of(table->type, table->columns),
              table->outputs, table->columns, staged, (const uint32_t *)stream->chosen, scale, out);
}
