/*
 * emulated_host - the part of CUDA that the host calls, for emulated.h: device memory, copies, streams, events, graphs.
 * One lock admits one call at a time. Work is done within the call that asks for it, unless its stream is captured:
 * then it is recorded with its arguments.
 *
 * Device memory is one region, out of reach but for the time of a kernel or a copy (fg_emu_reach).
 */
#ifndef FORGE_TESTS_GPU_EMULATED_HOST_H
#define FORGE_TESTS_GPU_EMULATED_HOST_H

#ifdef __cplusplus

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "tests/gpu/emulated_block.h"
#include "tests/gpu/emulated_types.h"

/* ---- Device memory ---- */

enum { FG_EMU_DEVICES = 16, FG_EMU_ALIGN = 256 };

struct fg_emu_piece {
    size_t size; /* as asked for */
    int device;
};

struct fg_emu_memory {
    std::recursive_mutex lock; /* of everything here */
    unsigned char *base;
    size_t reserved;
    size_t used; /* up to the end of the last piece, whole pages */
    int reach;   /* how many want it in reach */
    size_t taken[FG_EMU_DEVICES];
    std::map<size_t, fg_emu_piece> pieces; /* by offset */
    std::map<uintptr_t, size_t> registered;
    std::map<const void *, size_t> shared_max; /* of kernels */
    std::vector<CUgraph_st *> capturing;
};

/* Never destroyed: what ends last may still call. */
inline fg_emu_memory &fg_emu_memory_get(void)
{
    static fg_emu_memory *memory = new fg_emu_memory();
    return *memory;
}

inline thread_local cudaError_t fg_emu_error = cudaSuccess;
inline thread_local int fg_emu_device = 0;

static inline cudaError_t fg_emu_return(cudaError_t error)
{
    if (error != cudaSuccess && error != cudaErrorNotReady) {
        fg_emu_error = error;
    }
    return error;
}

static inline unsigned long fg_emu_env(const char *name, unsigned long otherwise)
{
    const char *text = getenv(name);
    return text != nullptr && *text != '\0' ? strtoul(text, nullptr, 10) : otherwise;
}

static inline int fg_emu_devices(void)
{
    unsigned long count = fg_emu_env("FORGE_EMULATED_DEVICES", 1);
    return count > FG_EMU_DEVICES ? (int)FG_EMU_DEVICES : (int)count;
}

/* What a block may have at most; 99 as of the smaller devices. */
static inline size_t fg_emu_shared_most(void)
{
    size_t most = (size_t)fg_emu_env("FORGE_EMULATED_SHARED_KIB", FG_EMU_SHARED >> 10) << 10;
    return most < FG_EMU_SHARED ? most : (size_t)FG_EMU_SHARED;
}

static inline size_t fg_emu_device_bytes(void)
{
    return (size_t)fg_emu_env("FORGE_EMULATED_MEMORY_MIB", 8192) << 20;
}

static inline bool fg_emu_is_open(void)
{
    static const bool open = fg_emu_env("FORGE_EMULATED_OPEN", 0) != 0;
    return open;
}

static inline void fg_emu_protect(fg_emu_memory &memory, int protection)
{
    protection = fg_emu_is_open() ? PROT_READ | PROT_WRITE : protection;
    if (memory.used != 0 && mprotect(memory.base, memory.used, protection) != 0) {
        fprintf(stderr, "emulated: mprotect of device memory: %s\n", strerror(errno));
        abort();
    }
}

/* The lock, and device memory in reach while it lives. */
struct fg_emu_reach {
    fg_emu_memory &memory;
    std::lock_guard<std::recursive_mutex> guard;
    fg_emu_reach() : memory(fg_emu_memory_get()), guard(memory.lock)
    {
        if (memory.reach++ == 0) {
            fg_emu_protect(memory, PROT_READ | PROT_WRITE);
        }
    }
    ~fg_emu_reach()
    {
        if (--memory.reach == 0) {
            fg_emu_protect(memory, PROT_NONE);
        }
    }
    fg_emu_reach(const fg_emu_reach &) = delete;
    fg_emu_reach &operator=(const fg_emu_reach &) = delete;
};

static inline bool fg_emu_reserve(fg_emu_memory &memory)
{
    const size_t huge = (size_t)2 << 20;
    for (size_t size = (size_t)64 << 30; memory.base == nullptr && size >= (size_t)1 << 30;
         size /= 2) {
        unsigned char *at = (unsigned char *)fg_emu_map(size + huge, PROT_NONE);
        if (at != nullptr) {
            memory.base = at + (huge - (uintptr_t)at % huge) % huge;
            memory.reserved = size;
            /* Large pages: far fewer entries to change with every launch. */
            madvise(memory.base, size, MADV_HUGEPAGE);
        }
    }
    return memory.base != nullptr;
}

static inline void fg_emu_set_used(fg_emu_memory &memory)
{
    size_t end = 0;
    if (!memory.pieces.empty()) {
        end = memory.pieces.rbegin()->first + memory.pieces.rbegin()->second.size;
    }
    const size_t huge = (size_t)2 << 20;
    memory.used = (end + huge - 1) / huge * huge;
}

/* The piece that these bytes lie in; false if they are no device memory. In it but not within one piece: *size_out
 * is 0. */
static inline bool fg_emu_find(const fg_emu_memory &memory, const void *at, size_t size,
                               size_t *size_out)
{
    uintptr_t address = (uintptr_t)at, base = (uintptr_t)memory.base;
    *size_out = 0;
    if (memory.base == nullptr || address < base || address >= base + memory.reserved) {
        return false;
    }
    size_t offset = address - base;
    auto after = memory.pieces.upper_bound(offset);
    if (after != memory.pieces.begin()) {
        --after;
        if (offset - after->first <= after->second.size &&
            size <= after->second.size - (offset - after->first)) {
            *size_out = after->second.size;
        }
    }
    return true;
}

static inline bool fg_emu_range_good(const fg_emu_memory &memory, const void *at, size_t size,
                                     bool device, bool any)
{
    size_t piece;
    bool is_device = fg_emu_find(memory, at, size, &piece);
    return at != nullptr && (any || is_device == device) && (!is_device || piece != 0);
}

/* A call that must not be made while something is captured; it ends the capture. */
static inline bool fg_emu_forbidden(fg_emu_memory &memory)
{
    bool forbidden = false;
    for (CUgraph_st *graph : memory.capturing) {
        if (graph->mode == cudaStreamCaptureModeGlobal ||
            (graph->mode == cudaStreamCaptureModeThreadLocal && graph->thread == &fg_emu_error)) {
            graph->broken = true;
            forbidden = true;
        }
    }
    return forbidden;
}

inline cudaError_t cudaGetLastError(void)
{
    cudaError_t error = fg_emu_error;
    fg_emu_error = cudaSuccess;
    return error;
}

inline cudaError_t cudaPeekAtLastError(void)
{
    return fg_emu_error;
}

inline const char *cudaGetErrorName(cudaError_t error)
{
    switch (error) {
    case cudaSuccess:
        return "cudaSuccess";
    case cudaErrorInvalidValue:
        return "cudaErrorInvalidValue";
    case cudaErrorInvalidPitchValue:
        return "cudaErrorInvalidPitchValue";
    case cudaErrorMemoryAllocation:
        return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
        return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidMemcpyDirection:
        return "cudaErrorInvalidMemcpyDirection";
    case cudaErrorNoDevice:
        return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice:
        return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle:
        return "cudaErrorInvalidResourceHandle";
    case cudaErrorIllegalState:
        return "cudaErrorIllegalState";
    case cudaErrorNotReady:
        return "cudaErrorNotReady";
    case cudaErrorHostMemoryAlreadyRegistered:
        return "cudaErrorHostMemoryAlreadyRegistered";
    case cudaErrorHostMemoryNotRegistered:
        return "cudaErrorHostMemoryNotRegistered";
    case cudaErrorNotSupported:
        return "cudaErrorNotSupported";
    case cudaErrorStreamCaptureUnsupported:
        return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureUnjoined:
        return "cudaErrorStreamCaptureUnjoined";
    case cudaErrorStreamCaptureImplicit:
        return "cudaErrorStreamCaptureImplicit";
    case cudaErrorCapturedEvent:
        return "cudaErrorCapturedEvent";
    case cudaErrorUnknown:
        break;
    }
    return "cudaErrorUnknown";
}

inline const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaSuccess ? "no error" : cudaGetErrorName(error);
}

inline cudaError_t cudaMalloc(void **out, size_t size)
{
    fg_emu_memory &memory = fg_emu_memory_get();
    std::lock_guard<std::recursive_mutex> guard(memory.lock);
    if (out == nullptr) {
        return fg_emu_return(cudaErrorInvalidValue);
    }
    *out = nullptr;
    if (fg_emu_devices() == 0) {
        return fg_emu_return(cudaErrorNoDevice);
    }
    if (fg_emu_forbidden(memory)) {
        return fg_emu_return(cudaErrorStreamCaptureUnsupported);
    }
    if (size == 0) {
        return cudaSuccess;
    }
    size_t total = fg_emu_device_bytes(), taken = memory.taken[fg_emu_device];
    if (!fg_emu_reserve(memory) || taken > total || size > total - taken) {
        return fg_emu_return(cudaErrorMemoryAllocation);
    }
    /* First fit; bytes that belong to no one lie behind each piece. */
    size_t offset = 0, need = (size + 2 * FG_EMU_ALIGN - 1) / FG_EMU_ALIGN * FG_EMU_ALIGN;
    for (const auto &piece : memory.pieces) {
        if (piece.first >= offset + need) {
            break;
        }
        offset =
            piece.first + (piece.second.size + 2 * FG_EMU_ALIGN - 1) / FG_EMU_ALIGN * FG_EMU_ALIGN;
    }
    if (need > memory.reserved || offset > memory.reserved - need) {
        return fg_emu_return(cudaErrorMemoryAllocation);
    }
    memory.pieces[offset] = { size, fg_emu_device };
    memory.taken[fg_emu_device] += size;
    fg_emu_set_used(memory);
    unsigned char *at = memory.base + offset;
#ifdef FG_EMU_ASAN
    __asan_unpoison_memory_region(at, size);
    __asan_poison_memory_region(at + (size + 7) / 8 * 8, need - (size + 7) / 8 * 8);
#endif
    /* What no one has written is no number; more than this would take memory that no one may ever use. */
    if (size <= (size_t)16 << 20) {
        fg_emu_reach reach;
        fg_emu_fill(at, size);
    }
    *out = at;
    return cudaSuccess;
}

template <typename T> inline cudaError_t cudaMalloc(T **out, size_t size)
{
    return cudaMalloc((void **)out, size);
}

inline cudaError_t cudaFree(void *at)
{
    fg_emu_memory &memory = fg_emu_memory_get();
    std::lock_guard<std::recursive_mutex> guard(memory.lock);
    if (at == nullptr) {
        return cudaSuccess;
    }
    if (fg_emu_forbidden(memory)) {
        return fg_emu_return(cudaErrorStreamCaptureUnsupported);
    }
    size_t offset = (size_t)((uintptr_t)at - (uintptr_t)memory.base);
    auto piece = memory.pieces.find(offset);
    if (memory.base == nullptr || piece == memory.pieces.end()) {
        return fg_emu_return(cudaErrorInvalidValue);
    }
    size_t size = piece->second.size;
    memory.taken[piece->second.device] -= size;
    memory.pieces.erase(piece);
    fg_emu_set_used(memory);
#ifdef FG_EMU_ASAN
    __asan_poison_memory_region(at, (size + 7) / 8 * 8);
#endif
    size_t first = (offset + FG_EMU_PAGE - 1) / FG_EMU_PAGE * FG_EMU_PAGE;
    size_t end = (offset + size) / FG_EMU_PAGE * FG_EMU_PAGE;
    if (end > first) {
        madvise(memory.base + first, end - first, MADV_DONTNEED);
    }
    return cudaSuccess;
}

inline cudaError_t cudaHostAlloc(void **out, size_t size, unsigned flags)
{
    (void)flags;
    *out = nullptr;
    if (fg_emu_devices() == 0) {
        return fg_emu_return(cudaErrorNoDevice);
    }
    if (size != 0 && posix_memalign(out, FG_EMU_PAGE, size) != 0) {
        *out = nullptr;
        return fg_emu_return(cudaErrorMemoryAllocation);
    }
    return cudaSuccess;
}

template <typename T> inline cudaError_t cudaHostAlloc(T **out, size_t size, unsigned flags)
{
    return cudaHostAlloc((void **)out, size, flags);
}

template <typename T> inline cudaError_t cudaMallocHost(T **out, size_t size)
{
    return cudaHostAlloc((void **)out, size, cudaHostAllocDefault);
}

inline cudaError_t cudaFreeHost(void *at)
{
    free(at);
    return cudaSuccess;
}

template <typename T>
inline cudaError_t cudaHostGetDevicePointer(T **out, void *host, unsigned flags)
{
    (void)flags;
    *out = (T *)host;
    return cudaSuccess;
}

inline cudaError_t cudaHostRegister(void *at, size_t size, unsigned flags)
{
    (void)flags;
    fg_emu_memory &memory = fg_emu_memory_get();
    std::lock_guard<std::recursive_mutex> guard(memory.lock);
    if (at == nullptr || size == 0) {
        return fg_emu_return(cudaErrorInvalidValue);
    }
    uintptr_t start = (uintptr_t)at;
    auto after = memory.registered.lower_bound(start);
    bool taken = after != memory.registered.end() && after->first < start + size;
    if (after != memory.registered.begin()) {
        --after;
        taken = taken || after->first + after->second > start;
    }
    if (taken) {
        return fg_emu_return(cudaErrorHostMemoryAlreadyRegistered);
    }
    memory.registered[start] = size;
    return cudaSuccess;
}

inline cudaError_t cudaHostUnregister(void *at)
{
    fg_emu_memory &memory = fg_emu_memory_get();
    std::lock_guard<std::recursive_mutex> guard(memory.lock);
    return fg_emu_return(memory.registered.erase((uintptr_t)at) != 0
                             ? cudaSuccess
                             : cudaErrorHostMemoryNotRegistered);
}

/* ---- Copies ---- */

static inline cudaError_t fg_emu_copy_check(const fg_emu_memory &memory, const void *target,
                                            const void *source, size_t size, cudaMemcpyKind kind)
{
    bool any = kind == cudaMemcpyDefault;
    if ((unsigned)kind > cudaMemcpyDefault) {
        return cudaErrorInvalidMemcpyDirection;
    }
    bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (!fg_emu_range_good(memory, target, size, to_device, any) ||
        !fg_emu_range_good(memory, source, size, from_device, any)) {
        return cudaErrorInvalidValue;
    }
    return cudaSuccess;
}

/* Does it now, or when the graph runs that the stream records. */
template <typename Work> static inline void fg_emu_do(cudaStream_t stream, Work work)
{
    if (stream != nullptr && stream->capture != nullptr) {
        stream->capture->work.emplace_back(work);
    } else {
        fg_emu_reach reach;
        work();
    }
}

/* In the default stream, which waits for all others: not while one captures. */
static inline cudaError_t fg_emu_implicit(fg_emu_memory &memory, cudaStream_t stream)
{
    return stream == nullptr && fg_emu_forbidden(memory) ? cudaErrorStreamCaptureImplicit
                                                         : cudaSuccess;
}

inline cudaError_t cudaMemcpyAsync(void *target, const void *source, size_t size,
                                   cudaMemcpyKind kind, cudaStream_t stream = nullptr)
{
    fg_emu_memory &memory = fg_emu_memory_get();
    std::lock_guard<std::recursive_mutex> guard(memory.lock);
    cudaError_t error = fg_emu_implicit(memory, stream);
    if (error == cudaSuccess && size != 0) {
        error = fg_emu_copy_check(memory, target, source, size, kind);
        if (error == cudaSuccess) {
            fg_emu_do(stream, [=]() { memmove(target, source, size); });
        }
    }
    return fg_emu_return(error);
}

inline cudaError_t cudaMemcpy2DAsync(void *target, size_t target_pitch, const void *source,
                                     size_t source_pitch, size_t width, size_t height,
                                     cudaMemcpyKind kind, cudaStream_t stream = nullptr)
{
    fg_emu_memory &memory = fg_emu_memory_get();
    std::lock_guard<std::recursive_mutex> guard(memory.lock);
    cudaError_t error = fg_emu_implicit(memory, stream);
    if (error == cudaSuccess && (width > target_pitch || width > source_pitch)) {
        error = cudaErrorInvalidPitchValue;
    }
    if (error == cudaSuccess && width != 0 && height != 0) {
        error = fg_emu_copy_check(memory, target, source, 1, kind);
        error = error != cudaSuccess
                    ? error
                    : fg_emu_copy_check(memory, (char *)target + (height - 1) * target_pitch,
                                        (const char *)source + (height - 1) * source_pitch, width,
                                        kind);
        if (error == cudaSuccess) {
            fg_emu_do(stream, [=]() {
                for (size_t row = 0; row < height; row++) {
                    memmove((char *)target + row * target_pitch,
                            (const char *)source + row * source_pitch, width);
                }
            });
        }
    }
    return fg_emu_return(error);
}

inline cudaError_t cudaMemcpy(void *target, const void *source, size_t size, cudaMemcpyKind kind)
{
    return cudaMemcpyAsync(target, source, size, kind, nullptr);
}

inline cudaError_t cudaMemsetAsync(void *target, int value, size_t size,
                                   cudaStream_t stream = nullptr)
{
    fg_emu_memory &memory = fg_emu_memory_get();
    std::lock_guard<std::recursive_mutex> guard(memory.lock);
    cudaError_t error = fg_emu_implicit(memory, stream);
    if (error == cudaSuccess && size != 0) {
        if (!fg_emu_range_good(memory, target, size, true, false)) {
            error = cudaErrorInvalidValue;
        } else {
            fg_emu_do(stream, [=]() { memset(target, value, size); });
        }
    }
    return fg_emu_return(error);
}

inline cudaError_t cudaMemset(void *target, int value, size_t size)
{
    return cudaMemsetAsync(target, value, size, nullptr);
}

inline cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t call, void *ctx)
{
    fg_emu_memory &memory = fg_emu_memory_get();
    std::lock_guard<std::recursive_mutex> guard(memory.lock);
    cudaError_t error = fg_emu_implicit(memory, stream);
    if (error == cudaSuccess) {
        fg_emu_do(stream, [=]() { call(ctx); });
    }
    return fg_emu_return(error);
}

/* ---- Devices ---- */

inline cudaError_t cudaGetDeviceCount(int *count_out)
{
    *count_out = fg_emu_devices();
    return fg_emu_return(*count_out == 0 ? cudaErrorNoDevice : cudaSuccess);
}

inline cudaError_t cudaSetDevice(int device)
{
    if (device < 0 || device >= fg_emu_devices()) {
        return fg_emu_return(cudaErrorInvalidDevice);
    }
    fg_emu_device = device;
    return cudaSuccess;
}

inline cudaError_t cudaGetDevice(int *device_out)
{
    *device_out = fg_emu_device;
    return fg_emu_return(fg_emu_devices() == 0 ? cudaErrorNoDevice : cudaSuccess);
}

inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp *out, int device)
{
    if (device < 0 || device >= fg_emu_devices()) {
        return fg_emu_return(cudaErrorInvalidDevice);
    }
    memset(out, 0, sizeof(*out));
    strcpy(out->name, "emulated");
    out->totalGlobalMem = fg_emu_device_bytes();
    out->sharedMemPerBlock = FG_EMU_SHARED_PLAIN;
    out->sharedMemPerBlockOptin = fg_emu_shared_most();
    out->sharedMemPerMultiprocessor = fg_emu_shared_most() + 1024;
    out->regsPerBlock = 65536;
    out->warpSize = warpSize;
    out->maxThreadsPerBlock = FG_EMU_THREADS;
    out->maxThreadsPerMultiProcessor = 2048;
    out->major = 9;
    out->multiProcessorCount = 16;
    out->l2CacheSize = 32 << 20;
    out->canMapHostMemory = 1;
    out->concurrentKernels = 1;
    out->asyncEngineCount = 1;
    out->unifiedAddressing = 1;
    out->hostRegisterSupported = 1;
    out->pciBusID = device + 1;
    return cudaSuccess;
}

inline cudaError_t cudaDeviceGetAttribute(int *out, cudaDeviceAttr attribute, int device)
{
    cudaDeviceProp properties;
    cudaError_t error = cudaGetDeviceProperties(&properties, device);
    if (error != cudaSuccess) {
        return error;
    }
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
        *out = properties.maxThreadsPerBlock;
        return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
        *out = properties.multiProcessorCount;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
        *out = properties.major;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
        *out = properties.minor;
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *out = (int)fg_emu_shared_most();
        return cudaSuccess;
    }
    return fg_emu_return(cudaErrorInvalidValue);
}

inline cudaError_t cudaDriverGetVersion(int *version_out)
{
    *version_out = 12080;
    return cudaSuccess;
}

inline cudaError_t cudaRuntimeGetVersion(int *version_out)
{
    *version_out = 12080;
    return cudaSuccess;
}

inline cudaError_t cudaMemGetInfo(size_t *free_out, size_t *total_out)
{
    fg_emu_memory &memory = fg_emu_memory_get();
    std::lock_guard<std::recursive_mutex> guard(memory.lock);
    if (fg_emu_devices() == 0) {
        return fg_emu_return(cudaErrorNoDevice);
    }
    *total_out = fg_emu_device_bytes();
    *free_out =
        memory.taken[fg_emu_device] < *total_out ? *total_out - memory.taken[fg_emu_device] : 0;
    return cudaSuccess;
}

inline cudaError_t cudaDeviceSynchronize(void)
{
    fg_emu_memory &memory = fg_emu_memory_get();
    std::lock_guard<std::recursive_mutex> guard(memory.lock);
    return fg_emu_return(fg_emu_forbidden(memory) ? cudaErrorStreamCaptureUnsupported
                                                  : cudaSuccess);
}

template <typename... Params>
inline cudaError_t cudaFuncSetAttribute(void (*kernel)(Params...), cudaFuncAttribute attribute,
                                        int value)
{
    fg_emu_memory &memory = fg_emu_memory_get();
    std::lock_guard<std::recursive_mutex> guard(memory.lock);
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
        if (value < 0 || (size_t)value > fg_emu_shared_most()) {
            return fg_emu_return(cudaErrorInvalidValue);
        }
        memory.shared_max[(const void *)kernel] = (size_t)value;
    }
    return cudaSuccess;
}

/* ---- Streams, events, graphs ---- */

inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    (void)flags;
    *out = nullptr;
    if (fg_emu_devices() == 0) {
        return fg_emu_return(cudaErrorNoDevice);
    }
    *out = new CUstream_st();
    (*out)->device = fg_emu_device;
    return cudaSuccess;
}

inline cudaError_t cudaStreamCreate(cudaStream_t *out)
{
    return cudaStreamCreateWithFlags(out, cudaStreamDefault);
}

/* A captured graph takes no more work from its streams. */
static inline void fg_emu_capture_end(fg_emu_memory &memory, CUgraph_st *graph)
{
    for (CUstream_st *stream : graph->streams) {
        stream->capture = nullptr;
        stream->origin = false;
    }
    graph->streams.clear();
    for (size_t i = 0; i < memory.capturing.size(); i++) {
        if (memory.capturing[i] == graph) {
            memory.capturing.erase(memory.capturing.begin() + (ptrdiff_t)i);
            break;
        }
    }
}

inline cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    fg_emu_memory &memory = fg_emu_memory_get();
    std::lock_guard<std::recursive_mutex> guard(memory.lock);
    if (stream == nullptr) {
        return fg_emu_return(cudaErrorInvalidResourceHandle);
    }
    if (stream->capture != nullptr) {
        CUgraph_st *graph = stream->capture;
        fg_emu_capture_end(memory, graph);
        delete graph;
    }
    delete stream;
    return cudaSuccess;
}

inline cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    fg_emu_memory &memory = fg_emu_memory_get();
    std::lock_guard<std::recursive_mutex> guard(memory.lock);
    if (stream != nullptr && stream->capture != nullptr) {
        stream->capture->broken = true;
        return fg_emu_return(cudaErrorStreamCaptureUnsupported);
    }
    return fg_emu_return(fg_emu_implicit(memory, stream));
}

inline cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    return cudaStreamSynchronize(stream);
}

inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    *out = nullptr;
    if (fg_emu_devices() == 0) {
        return fg_emu_return(cudaErrorNoDevice);
    }
    *out = new CUevent_st();
    (*out)->timed = (flags & cudaEventDisableTiming) == 0;
    return cudaSuccess;
}

inline cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    return cudaEventCreateWithFlags(out, cudaEventDefault);
}

inline cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    delete event;
    return cudaSuccess;
}

inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr)
{
    fg_emu_memory &memory = fg_emu_memory_get();
    std::lock_guard<std::recursive_mutex> guard(memory.lock);
    if (event == nullptr) {
        return fg_emu_return(cudaErrorInvalidResourceHandle);
    }
    cudaError_t error = fg_emu_implicit(memory, stream);
    if (error != cudaSuccess) {
        return fg_emu_return(error);
    }
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    event->ms = (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
    event->recorded = true;
    event->capture = stream != nullptr ? stream->capture : nullptr;
    return cudaSuccess;
}

static inline cudaError_t fg_emu_event_done(cudaEvent_t event)
{
    fg_emu_memory &memory = fg_emu_memory_get();
    std::lock_guard<std::recursive_mutex> guard(memory.lock);
    if (event == nullptr) {
        return cudaErrorInvalidResourceHandle;
    }
    if (event->capture != nullptr) {
        return cudaErrorCapturedEvent;
    }
    return cudaSuccess;
}

inline cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    return fg_emu_return(fg_emu_event_done(event));
}

inline cudaError_t cudaEventQuery(cudaEvent_t event)
{
    return fg_emu_return(fg_emu_event_done(event));
}

inline cudaError_t cudaEventElapsedTime(float *ms_out, cudaEvent_t start, cudaEvent_t end)
{
    cudaError_t error = fg_emu_event_done(start);
    error = error == cudaSuccess ? fg_emu_event_done(end) : error;
    if (error == cudaSuccess &&
        (!start->recorded || !end->recorded || !start->timed || !end->timed)) {
        error = cudaErrorInvalidResourceHandle;
    }
    if (error == cudaSuccess) {
        *ms_out = (float)(end->ms - start->ms);
    }
    return fg_emu_return(error);
}

/* A stream that waits for a captured event joins the capture. */
inline cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0)
{
    (void)flags;
    fg_emu_memory &memory = fg_emu_memory_get();
    std::lock_guard<std::recursive_mutex> guard(memory.lock);
    if (event == nullptr) {
        return fg_emu_return(cudaErrorInvalidResourceHandle);
    }
    bool live = false;
    for (CUgraph_st *graph : memory.capturing) {
        live = live || graph == event->capture;
    }
    if (event->capture == nullptr || !live) {
        return cudaSuccess;
    }
    if (stream == nullptr || (stream->capture != nullptr && stream->capture != event->capture)) {
        return fg_emu_return(cudaErrorStreamCaptureUnsupported);
    }
    if (stream->capture == nullptr) {
        stream->capture = event->capture;
        stream->capture->streams.push_back(stream);
    }
    return cudaSuccess;
}

inline cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode)
{
    fg_emu_memory &memory = fg_emu_memory_get();
    std::lock_guard<std::recursive_mutex> guard(memory.lock);
    if (stream == nullptr) {
        return fg_emu_return(cudaErrorStreamCaptureUnsupported);
    }
    if (stream->capture != nullptr) {
        return fg_emu_return(cudaErrorIllegalState);
    }
    CUgraph_st *graph = new CUgraph_st();
    graph->mode = mode;
    graph->thread = &fg_emu_error;
    graph->streams.push_back(stream);
    memory.capturing.push_back(graph);
    stream->capture = graph;
    stream->origin = true;
    return cudaSuccess;
}

inline cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out)
{
    fg_emu_memory &memory = fg_emu_memory_get();
    std::lock_guard<std::recursive_mutex> guard(memory.lock);
    *out = nullptr;
    if (stream == nullptr || stream->capture == nullptr || !stream->origin) {
        return fg_emu_return(cudaErrorIllegalState);
    }
    CUgraph_st *graph = stream->capture;
    fg_emu_capture_end(memory, graph);
    if (graph->broken) {
        delete graph;
        return fg_emu_return(cudaErrorStreamCaptureUnsupported);
    }
    *out = graph;
    return cudaSuccess;
}

inline cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *out)
{
    *out = stream == nullptr || stream->capture == nullptr ? cudaStreamCaptureStatusNone
           : stream->capture->broken                       ? cudaStreamCaptureStatusInvalidated
                                                           : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph,
                                        unsigned long long flags = 0)
{
    (void)flags;
    if (out == nullptr || graph == nullptr) {
        return fg_emu_return(cudaErrorInvalidValue);
    }
    *out = new CUgraphExec_st{ graph->work };
    return cudaSuccess;
}

inline cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream)
{
    (void)stream;
    return fg_emu_return(exec == nullptr ? cudaErrorInvalidValue : cudaSuccess);
}

inline cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    fg_emu_memory &memory = fg_emu_memory_get();
    std::lock_guard<std::recursive_mutex> guard(memory.lock);
    if (exec == nullptr) {
        return fg_emu_return(cudaErrorInvalidValue);
    }
    cudaError_t error = fg_emu_implicit(memory, stream);
    if (error == cudaSuccess) {
        const std::vector<std::function<void()>> &work = exec->work;
        if (stream != nullptr && stream->capture != nullptr) {
            stream->capture->work.insert(stream->capture->work.end(), work.begin(), work.end());
        } else {
            fg_emu_reach reach;
            for (const std::function<void()> &step : work) {
                step();
            }
        }
    }
    return fg_emu_return(error);
}

inline cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}

inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    delete exec;
    return cudaSuccess;
}

#endif
#endif
