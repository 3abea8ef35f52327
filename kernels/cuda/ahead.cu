/*
 * Weights on their way to the second-level cache while kernels between products run, which read next to nothing. In a
 * recorded step (a graph) a branch of its own asks for them: for those of a product it begins when the product before
 * has ended. Where that one is so small that it was all asked for itself, it begins with it, one product earlier.
 */
#include "kernels/cuda/product.cuh"
#include "kernels/cuda/quant.cuh"

#ifdef FG_GPU_EMULATED

cudaError_t fg_gpu_ahead_open(fg_device_stream *stream)
{
    return cudaSuccess;
}

void fg_gpu_ahead_close(fg_device_stream *stream)
{
}

void fg_gpu_ahead_begin(fg_device_stream *stream)
{
}

void fg_gpu_ahead_end(fg_device_stream *stream)
{
}

void fg_gpu_ahead_ask(fg_device_stream *stream, uint32_t type, const fg_gpu_products &set)
{
}

void fg_gpu_ahead_started(fg_device_stream *stream)
{
}

#else

enum { AHEAD_PIECES = 2 * FG_GPU_PRODUCTS_MAX, AHEAD_BLOCKS = 16, AHEAD_THREADS = 64 };
enum : size_t { AHEAD_CHUNK = 4096 };

typedef struct ahead_list {
    const uint8_t *at[AHEAD_PIECES];
    size_t bytes[AHEAD_PIECES];
    uint32_t count;
} ahead_list;

static __global__ __launch_bounds__(AHEAD_THREADS) void ask_ahead(ahead_list list)
{
#if __CUDA_ARCH__ >= 900
    size_t first = ((size_t)blockIdx.x * AHEAD_THREADS + threadIdx.x) * AHEAD_CHUNK;
    for (uint32_t i = 0; i < list.count; i++) {
        for (size_t at = first; at < list.bytes[i];
             at += AHEAD_BLOCKS * AHEAD_THREADS * AHEAD_CHUNK) {
            size_t left = list.bytes[i] - at;
            uint32_t bytes = (uint32_t)(left < AHEAD_CHUNK ? left : AHEAD_CHUNK);
            asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(list.at[i] + at),
                         "r"(bytes)
                         : "memory");
        }
    }
#endif
}

cudaError_t fg_gpu_ahead_open(fg_device_stream *stream)
{
    fg_gpu_ahead *ahead = &stream->ahead;
    int cache = 0;
    cudaError_t error =
        cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, stream->device->index);
    /* What is asked for must still be there when it is used, beside all that is read meanwhile. */
    ahead->most = fg_gpu_early ? (size_t)cache / 3 : 0;
    error = error != cudaSuccess ? error
                                 : cudaStreamCreateWithFlags(&ahead->branch, cudaStreamNonBlocking);
    for (cudaEvent_t *event : { &ahead->ended[0], &ahead->ended[1], &ahead->joined }) {
        error =
            error != cudaSuccess ? error : cudaEventCreateWithFlags(event, cudaEventDisableTiming);
    }
    return error;
}

void fg_gpu_ahead_close(fg_device_stream *stream)
{
    fg_gpu_ahead *ahead = &stream->ahead;
    for (cudaEvent_t event : { ahead->ended[0], ahead->ended[1], ahead->joined }) {
        if (event != nullptr) {
            (void)cudaEventDestroy(event);
        }
    }
    if (ahead->branch != nullptr) {
        (void)cudaStreamDestroy(ahead->branch);
    }
}

void fg_gpu_ahead_begin(fg_device_stream *stream)
{
    stream->ahead.products = 0;
    stream->ahead.asked = false;
}

void fg_gpu_ahead_end(fg_device_stream *stream)
{
    fg_gpu_ahead *ahead = &stream->ahead;
    if (ahead->asked) {
        fg_gpu_check(cudaEventRecord(ahead->joined, ahead->branch), "recording a graph");
        fg_gpu_check(cudaStreamWaitEvent(stream->stream, ahead->joined, 0), "recording a graph");
    }
}

template <uint32_t type> static size_t quant_strip_bytes(uint32_t steps)
{
    return fg_gpu_unit_at<type>(fg_gpu_units(steps));
}

static size_t strip_bytes_of(uint32_t type, uint32_t steps)
{
    if (type == FG_BF16) {
        return (size_t)steps * 512;
    }
    FG_GPU_QUANT_SWITCH(type, quant_strip_bytes, steps);
}

/* The matrices of a launch; returns their bytes. */
static size_t list_pieces(uint32_t type, const fg_gpu_products &set, ahead_list *list)
{
    size_t strip_bytes = strip_bytes_of(type, set.steps), all = 0;
    for (uint32_t i = 0; i < set.count; i++) {
        for (const uint8_t *matrix : { set.each[i].weight, set.each[i].up }) {
            if (matrix != nullptr) {
                list->at[list->count] = matrix;
                list->bytes[list->count] = fg_gpu_strips(set.each[i].outputs) * strip_bytes;
                all += list->bytes[list->count++];
            }
        }
    }
    return all;
}

void fg_gpu_ahead_ask(fg_device_stream *stream, uint32_t type, const fg_gpu_products &set)
{
    fg_gpu_ahead *ahead = &stream->ahead;
    if (!stream->capturing || ahead->most == 0) {
        return;
    }
    ahead_list list = {};
    size_t all = list_pieces(type, set, &list);
    uint32_t before = (ahead->products + 1) % 2;
    /* Nothing lies between two products that follow each other. */
    bool apart = ahead->products > 0 && stream->sequence > ahead->sequence + 1;
    if (apart && ahead->products > 1 && ahead->bytes[before] <= ahead->most / 2) {
        before = 1 - before;
    }
    ahead->bytes[ahead->products % 2] = all;
    if (!apart) {
        return;
    }
    if (all > ahead->most) {
        for (uint32_t i = 0; i < list.count; i++) {
            list.bytes[i] = (size_t)((double)list.bytes[i] * (double)ahead->most / (double)all) /
                            AHEAD_CHUNK * AHEAD_CHUNK;
        }
    }
    fg_gpu_check(cudaStreamWaitEvent(ahead->branch, ahead->ended[before], 0), "recording a graph");
    FG_LAUNCH(ask_ahead, dim3(AHEAD_BLOCKS), dim3(AHEAD_THREADS), 0, ahead->branch, false, list);
    ahead->asked = true;
}

void fg_gpu_ahead_started(fg_device_stream *stream)
{
    fg_gpu_ahead *ahead = &stream->ahead;
    if (!stream->capturing || ahead->most == 0) {
        return;
    }
    fg_gpu_check(cudaEventRecord(ahead->ended[ahead->products % 2], stream->stream),
                 "recording a graph");
    ahead->products++;
    ahead->sequence = stream->sequence;
}

#endif
