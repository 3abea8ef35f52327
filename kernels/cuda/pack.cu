/*
 * Weights on their way to the device: rows as the model file has them go through a buffer, kernels write them in the
 * order of tensor-core fragments.
 */
#include <stdio.h>

#include "kernels/cuda/cuda.h"
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
    uint32_t steps = columns / FG_GPU_STEP;
    uint32_t word = (uint32_t)(at % 4), lane = (uint32_t)(at / 4 % 32);
    uint32_t step = (uint32_t)(at / 128 % steps), strip = (uint32_t)(at / 128 / steps);
    uint32_t output = strip * FG_GPU_STRIP + lane / 4 + word % 2 * 8;
    uint32_t k = step * FG_GPU_STEP + lane % 4 * 2 + word / 2 * 8;
    uint32_t pair = 0;
    if (output < outputs) {
        const uint8_t *row = rows + output * row_bytes;
        pair = fg_bf16_pair(fg_gpu_unpack_at(type, row, k), fg_gpu_unpack_at(type, row, k + 1));
    }
    words[at] = pair;
}

static fg_status pack_tensor(fg_device *device, const fg_matrix *rows, uint8_t *panels,
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
        size_t count = fg_gpu_panel_bytes(outputs, rows->columns) / 4;
        fg_gpu_check(cudaMemcpy(buffer, (const uint8_t *)rows->data + first * row_bytes,
                                outputs * row_bytes, cudaMemcpyHostToDevice),
                     "loading weights");
        FG_LAUNCH(pack_words, dim3((uint32_t)((count + PACK_THREADS - 1) / PACK_THREADS)),
                  dim3(PACK_THREADS), 0, nullptr, false, rows->type, (const uint8_t *)buffer,
                  row_bytes, outputs, rows->columns,
                  (uint32_t *)(panels + fg_gpu_panel_bytes(first, rows->columns)), count);
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

fg_status fg_cuda_pack(fg_device *device, const fg_matrix *rows, fg_panels *panels_out,
                       fg_error *err)
{
    fg_panels panels = { nullptr, rows->type, rows->outputs, rows->columns };
    bool tensor = fg_gpu_is_tensor(rows->type);
    if (tensor && rows->columns % FG_GPU_STEP != 0) {
        if (err != nullptr) {
            err->status = FG_BAD_INPUT;
            snprintf(
                err->text, sizeof err->text,
                "cuda: matrices of %u columns are not computed (multiples of %d): use --device cpu",
                rows->columns, FG_GPU_STEP);
        }
        return FG_BAD_INPUT;
    }
    size_t bytes = tensor ? fg_gpu_panel_bytes(rows->outputs, rows->columns)
                          : rows->outputs * row_bytes_of(rows->type, rows->columns);
    void *memory = fg_cuda_keep(device, bytes);
    if (memory == nullptr) {
        return no_memory(device, bytes, err);
    }
    panels.data = memory;
    if (tensor) {
        fg_status status = pack_tensor(device, rows, (uint8_t *)memory, err);
        if (status != FG_OK) {
            return status;
        }
    } else {
        fg_gpu_check(cudaMemcpy(memory, rows->data, bytes, cudaMemcpyHostToDevice),
                     "loading weights");
    }
    *panels_out = panels;
    return FG_OK;
}

static __global__ void embed_rows(uint32_t type, const uint8_t *table, size_t row_bytes,
                                  uint32_t columns, const uint32_t *tokens, float *out)
{
    fg_gpu_wait();
    fg_gpu_let_next();
    const uint8_t *row = table + tokens[blockIdx.x] * row_bytes;
    for (uint32_t i = threadIdx.x; i < columns; i += blockDim.x) {
        out[(size_t)blockIdx.x * columns + i] = fg_gpu_unpack_at(type, row, i);
    }
}

void fg_cuda_embed(fg_device_stream *stream, const fg_matrix *table, const uint32_t *tokens,
                   uint32_t rows, float *out)
{
    const uint32_t *staged = fg_gpu_staged_at(tokens, stream->rows.tokens, stream->at.tokens);
    stream->sequence++;
    FG_LAUNCH(embed_rows, dim3(rows), dim3(128), 0, stream->stream, true, table->type,
              (const uint8_t *)table->data, row_bytes_of(table->type, table->columns),
              table->columns, staged, out);
}
