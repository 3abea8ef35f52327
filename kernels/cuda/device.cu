/*
 * The CUDA back end's table, and its device: memory, one stream, graphs.
 *
 * A stream runs what it is given in order. The engine may give it a step before it waits for the one before, so there is
 * a ring of events: in each place the newest event is never before the one that is asked for. Steps of few rows are
 * recorded as a graph when they come for the first time, and started as a whole afterwards (fg_device_replay_begin):
 * all their addresses are fixed, what differs between steps is staged.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda.h"

/* One piece of device memory that lives as long as the device. */
struct fg_gpu_memory {
    fg_gpu_memory *next;
    void *memory;
};

bool fg_gpu_early;

void fg_gpu_check(cudaError_t error, const char *what)
{
    if (error != cudaSuccess) {
        fprintf(stderr,
                "forge: cuda: %s: %s. The device can't be used any more; this process ends so that "
                "its requests "
                "move on.\n",
                what, cudaGetErrorString(error));
        abort();
    }
}

/* Which device this thread works on. */
static thread_local int used_index = -1;

static cudaError_t use_index(int index)
{
    cudaError_t error = used_index == index ? cudaSuccess : cudaSetDevice(index);
    used_index = error == cudaSuccess ? index : -1;
    return error;
}

void fg_gpu_use(const fg_device *device)
{
    fg_gpu_check(use_index(device->index), "choosing a device");
}

__attribute__((format(printf, 3, 4))) static fg_status fail(fg_error *err, fg_status status,
                                                            const char *format, ...)
{
    if (err != nullptr) {
        va_list list;
        va_start(list, format);
        err->status = status;
        vsnprintf(err->text, sizeof err->text, format, list);
        va_end(list);
    }
    return status;
}

static uint32_t device_count(fg_error *err)
{
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        (void)cudaGetLastError();
        fail(err, FG_BAD_INPUT, "CUDA finds no device: %s",
             error != cudaSuccess ? cudaGetErrorString(error) : "the driver lists none");
        return 0;
    }
    return (uint32_t)count;
}

static fg_status device_describe(uint32_t index, fg_device_info *info_out, fg_error *err)
{
    cudaDeviceProp facts;
    size_t free_bytes = 0, all_bytes = 0;
    cudaError_t error = cudaGetDeviceProperties(&facts, (int)index);
    error = error != cudaSuccess ? error : use_index((int)index);
    error = error != cudaSuccess ? error : cudaMemGetInfo(&free_bytes, &all_bytes);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        return fail(err, FG_BAD_INPUT, "cuda:%u: %s", index, cudaGetErrorString(error));
    }
    *info_out = {};
    snprintf(info_out->name, sizeof info_out->name, "%s", facts.name);
    snprintf(info_out->isa, sizeof info_out->isa, "sm_%d%d", facts.major, facts.minor);
    info_out->memory_bytes = all_bytes;
    info_out->free_bytes = free_bytes;
    return FG_OK;
}

/* How the heads of a row are cut into units of at most 16 (row, head)s. */
static void cut_heads(fg_device *device)
{
    const fg_device_options *limits = &device->limits;
    uint32_t heads = limits->kv_head_count > 0 ? limits->head_count / limits->kv_head_count : 1;
    device->units = (heads + FG_GPU_GROUP_ROWS - 1) / FG_GPU_GROUP_ROWS;
    device->units = device->units == 0 ? 1 : device->units;
    device->unit_heads = (heads + device->units - 1) / device->units;
    device->row_tokens =
        device->unit_heads > 0 ? FG_GPU_GROUP_ROWS / device->unit_heads : FG_GPU_GROUP_ROWS;
}

static const char *find_index(const char *kind, uint32_t *index_out)
{
    const char *colon = strchr(kind, ':');
    *index_out = 0;
    if (colon == nullptr) {
        return nullptr;
    }
    char *end = nullptr;
    unsigned long index = strtoul(colon + 1, &end, 10);
    if (colon[1] < '0' || colon[1] > '9' || *end != '\0' || index > 1024) {
        return colon + 1;
    }
    *index_out = (uint32_t)index;
    return nullptr;
}

static fg_status check_limits(const fg_device_options *limits, fg_error *err)
{
    if (limits->step_rows_max > 0 &&
        (limits->kv_head_count == 0 || limits->head_count % limits->kv_head_count != 0)) {
        return fail(err, FG_BAD_INPUT, "cuda: %u heads do not share %u KV heads",
                    limits->head_count, limits->kv_head_count);
    }
    if (limits->head_dim % 8 != 0 || limits->head_dim > 256) {
        return fail(err, FG_BAD_INPUT,
                    "cuda: heads of %u dimensions are not computed (multiples of 8 up to 256)",
                    limits->head_dim);
    }
    if (limits->block_size != 0 && limits->block_size < FG_KV_PIECE) {
        return fail(err, FG_BAD_INPUT, "cuda: --block-size %u is too small: %d or more",
                    limits->block_size, FG_KV_PIECE);
    }
    return FG_OK;
}

extern const fg_backend backend;

static fg_status device_open(const fg_device_options *options, fg_device **device_out,
                             fg_error *err)
{
    uint32_t index;
    const char *bad = find_index(options->kind, &index);
    if (bad != nullptr) {
        return fail(err, FG_BAD_INPUT, "\"%s\" is no number of a CUDA device", bad);
    }
    uint32_t count = device_count(err);
    if (count == 0) {
        return FG_BAD_INPUT;
    }
    if (index >= count) {
        return fail(err, FG_BAD_INPUT,
                    "there is no cuda:%u: this machine has %u CUDA device%s, from cuda:0 on", index,
                    count, count == 1 ? "" : "s");
    }
    cudaDeviceProp facts;
    cudaError_t error = cudaGetDeviceProperties(&facts, (int)index);
    error = error != cudaSuccess ? error : use_index((int)index);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        return fail(err, FG_BAD_INPUT, "cuda:%u: %s", index, cudaGetErrorString(error));
    }
    if (facts.major < 8) {
        return fail(err, FG_BAD_INPUT, "cuda:%u (%s) is sm_%d%d: Forge needs sm_80 or newer", index,
                    facts.name, facts.major, facts.minor);
    }
    fg_status status = check_limits(options, err);
    if (status != FG_OK) {
        return status;
    }
    fg_device *device = (fg_device *)calloc(1, sizeof *device);
    if (device == nullptr) {
        return fail(err, FG_AGAIN, "out of memory for a device");
    }
    device->backend = &backend;
    device->index = (int)index;
    device->multiprocessors = facts.multiProcessorCount;
    device->shared_bytes = facts.sharedMemPerMultiprocessor;
    device->block_bytes = facts.sharedMemPerBlockOptin;
    device->limits = *options;
    snprintf(device->isa, sizeof device->isa, "sm_%d%d", facts.major, facts.minor);
    /* Tensor cores of different generations may round sums differently. */
    snprintf(device->numerics, sizeof device->numerics, "cuda-sm%d%d/g4", facts.major, facts.minor);
    size_t needed = fg_cuda_attend_bytes(device);
    if (!fg_gpu_has_room(device, needed)) {
        size_t there = device->block_bytes;
        free(device);
        return fail(err, FG_BAD_INPUT,
                    "cuda:%u (%s): attention over heads of %u dimensions takes %zu KiB of shared "
                    "memory, a block has %zu there: use --device cpu",
                    index, facts.name, options->head_dim, (needed + 1023) >> 10, there >> 10);
    }
    cut_heads(device);
    fg_gpu_early = facts.major >= 9;
    fg_cuda_linear_prepare(device);
    fg_cuda_attend_prepare(device);
    *device_out = device;
    return FG_OK;
}

static void device_close(fg_device *device)
{
    if (device == nullptr) {
        return;
    }
    fg_gpu_use(device);
    while (device->loaded != nullptr) {
        fg_gpu_memory *next = device->loaded->next;
        (void)cudaFree(device->loaded->memory);
        free(device->loaded);
        device->loaded = next;
    }
    free(device);
}

static const char *device_isa(const fg_device *device)
{
    return device->isa;
}

static const char *device_numerics(const fg_device *device)
{
    return device->numerics;
}

static uint32_t device_thread_count(const fg_device *device)
{
    return 1; /* of the host's */
}

static fg_device_reach device_memory_reach(const fg_device *device)
{
    return FG_GPU_REACH;
}

/* Also where this thread has had it before: other libraries may have changed it. */
static void device_bind_thread(const fg_device *device)
{
    used_index = -1;
    fg_gpu_use(device);
}

static void *device_alloc(fg_device *device, fg_memory_kind kind, size_t size_bytes)
{
    fg_gpu_use(device);
    void *memory = nullptr;
    size_t size = size_bytes == 0 ? 1 : size_bytes;
    if (kind == FG_MEMORY_SHARED) {
        if (cudaHostAlloc(&memory, size, cudaHostAllocDefault) != cudaSuccess) {
            (void)cudaGetLastError();
            return nullptr;
        }
        memset(memory, 0, size);
        return memory;
    }
    if (cudaMalloc(&memory, size) != cudaSuccess) {
        (void)cudaGetLastError();
        return nullptr;
    }
    fg_gpu_check(cudaMemset(memory, 0, size), "zeroing memory");
    fg_gpu_check(cudaDeviceSynchronize(), "zeroing memory");
    return memory;
}

static void device_free(fg_device *device, fg_memory_kind kind, void *memory, size_t size_bytes)
{
    if (memory == nullptr) {
        return;
    }
    fg_gpu_use(device);
    (void)(kind == FG_MEMORY_SHARED ? cudaFreeHost(memory) : cudaFree(memory));
}

static fg_status device_pin(fg_device *device, void *memory, size_t size_bytes, fg_error *err)
{
    fg_gpu_use(device);
    cudaError_t error = cudaHostRegister(memory, size_bytes, cudaHostRegisterDefault);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        return fail(err, FG_AGAIN, "the host's memory could not be pinned: %s",
                    cudaGetErrorString(error));
    }
    return FG_OK;
}

static void device_unpin(fg_device *device, void *memory)
{
    fg_gpu_use(device);
    if (cudaHostUnregister(memory) != cudaSuccess) {
        (void)cudaGetLastError();
    }
}

void *fg_cuda_keep(fg_device *device, size_t size_bytes)
{
    fg_gpu_use(device);
    fg_gpu_memory *kept = (fg_gpu_memory *)calloc(1, sizeof *kept);
    if (kept == nullptr) {
        return nullptr;
    }
    if (cudaMalloc(&kept->memory, size_bytes == 0 ? 1 : size_bytes) != cudaSuccess) {
        (void)cudaGetLastError();
        free(kept);
        return nullptr;
    }
    kept->next = device->loaded;
    device->loaded = kept;
    return kept->memory;
}

static fg_status device_load(fg_device *device, const void *host, size_t size_bytes,
                             const void **device_out, fg_error *err)
{
    void *memory = fg_cuda_keep(device, size_bytes);
    if (memory == nullptr) {
        return fail(err, FG_AGAIN, "cuda:%d has no memory for %zu MiB of the model", device->index,
                    size_bytes >> 20);
    }
    fg_gpu_check(cudaMemcpy(memory, host, size_bytes, cudaMemcpyHostToDevice), "loading weights");
    *device_out = memory;
    return FG_OK;
}

/* What is left of the device's memory bounds nothing here: work areas have one size, whatever the model. */
enum { WORK_BYTES = 96 << 20, RECORDS_BYTES = 256 << 20 };

void fg_cuda_drop_graphs(fg_device_stream *stream)
{
    for (uint32_t i = 0; i < stream->graph_count; i++) {
        (void)cudaGraphExecDestroy(stream->graphs[i].run);
    }
    stream->graph_count = 0;
}

static void stream_close(fg_device_stream *stream)
{
    if (stream == nullptr) {
        return;
    }
    fg_gpu_use(stream->device);
    fg_cuda_drop_graphs(stream);
    fg_cuda_stage_close(stream);
    (void)cudaFree(stream->chosen);
    (void)cudaFree(stream->work);
    (void)cudaFree(stream->records);
    (void)cudaFree(stream->expanded);
    if (stream->staged != nullptr) {
        (void)cudaEventDestroy(stream->staged);
    }
    for (cudaEvent_t event : stream->events) {
        if (event != nullptr) {
            (void)cudaEventDestroy(event);
        }
    }
    if (stream->stream != nullptr) {
        (void)cudaStreamDestroy(stream->stream);
    }
    free(stream);
}

/* Floats of one record: the maxima and sums of 16 (row, head)s, and their outputs. */
static size_t record_floats(const fg_device_options *limits)
{
    return (size_t)FG_GPU_GROUP_ROWS * (limits->head_dim + 2);
}

static fg_status take_work(fg_device_stream *stream, fg_error *err)
{
    const fg_device *device = stream->device;
    const fg_device_options *limits = &device->limits;
    size_t tiles = (limits->context_max + FG_GPU_TILE - 1) / FG_GPU_TILE;
    /* At least what one sequence of the longest context needs. */
    size_t records = tiles * limits->kv_head_count * device->units * record_floats(limits);
    stream->record_floats = RECORDS_BYTES / sizeof(float);
    stream->record_floats = records > stream->record_floats ? records : stream->record_floats;
    stream->work_floats = WORK_BYTES / sizeof(float);
    if (limits->step_rows_max == 0) {
        stream->record_floats = 1;
    }
    if (cudaMalloc((void **)&stream->chosen, FG_CHOSEN_ROWS * sizeof(uint32_t)) != cudaSuccess ||
        cudaMalloc((void **)&stream->work, stream->work_floats * sizeof(float)) != cudaSuccess ||
        cudaMalloc((void **)&stream->records, stream->record_floats * sizeof(float)) !=
            cudaSuccess ||
        cudaMalloc((void **)&stream->expanded, FG_GPU_EXPANDED_BYTES) != cudaSuccess) {
        (void)cudaGetLastError();
        return fail(err, FG_AGAIN, "cuda:%d has no memory for %zu MiB of work areas", device->index,
                    ((stream->work_floats + stream->record_floats) * sizeof(float) +
                     FG_GPU_EXPANDED_BYTES) >>
                        20);
    }
    return FG_OK;
}

static fg_status stream_open(fg_device *device, fg_device_stream **stream_out, fg_error *err)
{
    fg_gpu_use(device);
    fg_device_stream *stream = (fg_device_stream *)calloc(1, sizeof *stream);
    if (stream == nullptr) {
        return fail(err, FG_AGAIN, "out of memory for a device stream");
    }
    stream->backend = &backend;
    stream->device = device;
    cudaError_t error = cudaStreamCreateWithFlags(&stream->stream, cudaStreamNonBlocking);
    for (cudaEvent_t &event : stream->events) {
        error =
            error != cudaSuccess ? error : cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    }
    error = error != cudaSuccess
                ? error
                : cudaEventCreateWithFlags(&stream->staged, cudaEventDisableTiming);
    fg_status status = error == cudaSuccess ? FG_OK
                                            : fail(err, FG_AGAIN, "cuda:%d: no stream: %s",
                                                   device->index, cudaGetErrorString(error));
    status = status != FG_OK ? status : take_work(stream, err);
    status = status != FG_OK ? status : fg_cuda_stage_open(stream, err);
    if (status != FG_OK) {
        stream_close(stream);
        return status;
    }
    *stream_out = stream;
    return FG_OK;
}

static void stream_copy(fg_device_stream *stream, void *target, const void *source,
                        size_t size_bytes)
{
    fg_gpu_use(stream->device);
    stream->sequence++;
    fg_gpu_check(cudaMemcpyAsync(target, source, size_bytes, cudaMemcpyDefault, stream->stream),
                 "copying");
}

static void stream_copy_rows(fg_device_stream *stream, const fg_copy_rows *copy)
{
    fg_gpu_use(stream->device);
    stream->sequence++;
    fg_gpu_check(cudaMemcpy2DAsync(copy->target, copy->target_stride, copy->source,
                                   copy->source_stride, copy->row_bytes, copy->rows,
                                   cudaMemcpyDefault, stream->stream),
                 "copying rows");
}

static cudaEvent_t event_at(const fg_device_stream *stream, fg_device_event event)
{
    return stream->events[event.sequence % FG_GPU_EVENTS];
}

static fg_device_event event_record(fg_device_stream *stream)
{
    fg_gpu_use(stream->device);
    fg_device_event event = { ++stream->event_count };
    fg_gpu_check(cudaEventRecord(event_at(stream, event), stream->stream), "recording an event");
    return event;
}

static void event_wait(fg_device_stream *stream, fg_device_event event)
{
    fg_gpu_use(stream->device);
    fg_gpu_check(cudaEventSynchronize(event_at(stream, event)), "waiting for the device");
}

static bool event_ended(fg_device_stream *stream, fg_device_event event)
{
    fg_gpu_use(stream->device);
    cudaError_t error = cudaEventQuery(event_at(stream, event));
    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return false;
    }
    fg_gpu_check(error, "asking for the device");
    return true;
}

static void share_work(fg_device_stream *stream, uint32_t pieces,
                       void (*work)(void *ctx, uint32_t piece, uint32_t member), void *ctx)
{
    for (uint32_t piece = 0; piece < pieces; piece++) {
        work(ctx, piece, 0);
    }
}

static bool replay_begin(fg_device_stream *stream, uint64_t key)
{
    fg_gpu_use(stream->device);
    if (!stream->small || stream->passes) {
        return false;
    }
    for (uint32_t i = 0; i < stream->graph_count; i++) {
        if (stream->graphs[i].key == key) {
            fg_gpu_check(cudaGraphLaunch(stream->graphs[i].run, stream->stream),
                         "starting a graph");
            stream->sequence++;
            return true;
        }
    }
    if (stream->graph_count == FG_GPU_GRAPHS) {
        return false;
    }
    fg_gpu_check(cudaStreamBeginCapture(stream->stream, cudaStreamCaptureModeThreadLocal),
                 "recording a graph");
    stream->capturing = true;
    stream->capture_key = key;
    return false;
}

static void replay_end(fg_device_stream *stream)
{
    if (!stream->capturing) {
        return;
    }
    cudaGraph_t graph;
    fg_gpu_graph *made = &stream->graphs[stream->graph_count];
    stream->capturing = false;
    fg_gpu_check(cudaStreamEndCapture(stream->stream, &graph), "recording a graph");
    fg_gpu_check(cudaGraphInstantiate(&made->run, graph, 0), "making a graph");
    fg_gpu_check(cudaGraphDestroy(graph), "making a graph");
    made->key = stream->capture_key;
    stream->graph_count++;
    fg_gpu_check(cudaGraphLaunch(made->run, stream->stream), "starting a graph");
}

const fg_backend backend = {
    .abi = FG_BACKEND_ABI,
    .table_bytes = sizeof(fg_backend),
    .kind = "cuda",
    .host_memory = false,
    .device_count = device_count,
    .device_describe = device_describe,
    .open = device_open,
    .close = device_close,
    .isa = device_isa,
    .numerics = device_numerics,
    .thread_count = device_thread_count,
    .memory_reach = device_memory_reach,
    .bind_thread = device_bind_thread,
    .alloc = device_alloc,
    .free = device_free,
    .pin = device_pin,
    .unpin = device_unpin,
    .load = device_load,
    .pack = fg_cuda_pack,
    .stream_open = stream_open,
    .stream_close = stream_close,
    .copy = stream_copy,
    .copy_rows = stream_copy_rows,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_ended = event_ended,
    .share_work = share_work,
    .replay_begin = replay_begin,
    .replay_end = replay_end,
    .linear_form = fg_cuda_linear_form,
    .stage = fg_cuda_stage,
    .prepare = fg_cuda_prepare,
    .linear = fg_cuda_linear,
    .gated = fg_cuda_gated,
    .highest = fg_cuda_highest,
    .choose = fg_cuda_choose,
    .embed = fg_cuda_embed,
    .rmsnorm = fg_cuda_rmsnorm,
    .finite = fg_cuda_finite,
    .rope_table = fg_cuda_rope_table,
    .rope_store = fg_cuda_rope_store,
    .attend = fg_cuda_attend,
    .comm_make_name = fg_cuda_comm_make_name,
    .comm_open = fg_cuda_comm_open,
    .comm_is_open = fg_cuda_comm_is_open,
    .comm_way = fg_cuda_comm_way,
    .comm_check = fg_cuda_comm_check,
    .comm_close = fg_cuda_comm_close,
    .comm_gather = fg_cuda_comm_gather,
    .digest = fg_cuda_digest,
};

extern "C" __attribute__((visibility("default"))) const fg_backend *forge_backend(void)
{
    return &backend;
}
