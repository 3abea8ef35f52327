/*
 * emulated - the part of CUDA that the kernels here use, on the CPU: with FG_GPU_EMULATED a C++ compiler builds the
 * .cu files and tests run them where there is no GPU. Included by gpu.h alone. Any thread may call; one lock admits
 * one kernel or copy at a time.
 *
 * Kernels run within the call that launches them; in a capturing stream they are only recorded. Blocks run one after
 * the other. Each thread of a block is a fiber with a stack of its own, all on the calling thread: it runs until it
 * waits at a barrier or for the other lanes of its warp, then the next one does.
 *
 *   runnable -> waits for the block (__syncthreads) -> runnable: fg_emu_block_release
 *   runnable -> waits for its warp (shuffles, votes, products, __syncwarp) -> runnable: fg_emu_warp_release
 *   runnable -> ended: fg_emu_end; who waits does not wait for it, as on the hardware
 *
 * What is wrong on a GPU should show here: device memory is out of the host's reach outside of kernels and copies,
 * shared memory begins as NaNs and ends at a page that cannot be read, asynchronous copies arrive no earlier than
 * their wait, and misuse aborts with the kernel's name. What does not show: races between threads of a block (one
 * order of many is tried), and a host that does not wait for its stream. A kernel that spins on memory until another
 * thread writes to it never ends.
 *
 * Compile with -fno-strict-aliasing: CUDA code reads memory through pointers of other types.
 *
 * FORGE_EMULATED_DEVICES: how many devices there are, 1 if unset. FORGE_EMULATED_MEMORY_MIB: memory of each, 8192 if
 * unset.
 */
#ifndef FORGE_KERNELS_CUDA_EMULATED_H
#define FORGE_KERNELS_CUDA_EMULATED_H

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define FG_EMU_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FG_EMU_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define FG_EMU_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define FG_EMU_TSAN 1
#endif
#endif

#ifdef FG_EMU_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef FG_EMU_TSAN
#include <sanitizer/tsan_interface.h>
#endif

#if !defined(__x86_64__) && !defined(FG_EMU_UCONTEXT)
#define FG_EMU_UCONTEXT 1
#endif
#ifdef FG_EMU_UCONTEXT
#include <ucontext.h>
#endif

#ifndef __clang__
/* #pragma unroll */
#pragma GCC diagnostic ignored "-Wunknown-pragmas"
#endif

/* ---- The language ---- */

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))
#ifndef __restrict__
#define __restrict__ __restrict
#endif

/* Static shared variables lie in one section, which is filled before each block. GCC wants one section for variables
 * of inline functions and another one for others: the names differ for it, what the assembler reads of them does not.
 * In templates GCC forgets the section: there a block begins with what the last one left (clang does not forget). */
#define FG_EMU_TEXT_(x) #x
#define FG_EMU_TEXT(x)  FG_EMU_TEXT_(x)
#if defined(__clang__)
#define __shared__ static __attribute__((used, section("fg_emu_shared")))
#elif defined(__x86_64__)
#define __shared__                                                                                 \
    static                                                                                         \
        __attribute__((used, section("fg_emu_shared,\"aw\",@progbits#" FG_EMU_TEXT(__COUNTER__))))
#else
#define __shared__                                                                                 \
    static __attribute__((used,                                                                    \
                          section("fg_emu_shared,\"aw\",%progbits//" FG_EMU_TEXT(__COUNTER__))))
#endif

/* Accesses through the vector types may alias any other, as kernels load 16 bytes of whatever there is. */
#define FG_EMU_VECTOR(bytes) __attribute__((aligned(bytes), may_alias))

struct FG_EMU_VECTOR(8) int2 {
    int x, y;
};
struct FG_EMU_VECTOR(16) int4 {
    int x, y, z, w;
};
struct FG_EMU_VECTOR(8) uint2 {
    unsigned x, y;
};
struct uint3 {
    unsigned x, y, z;
};
struct FG_EMU_VECTOR(16) uint4 {
    unsigned x, y, z, w;
};
struct FG_EMU_VECTOR(8) float2 {
    float x, y;
};
struct float3 {
    float x, y, z;
};
struct FG_EMU_VECTOR(16) float4 {
    float x, y, z, w;
};
struct FG_EMU_VECTOR(16) double2 {
    double x, y;
};

static inline int2 make_int2(int x, int y)
{
    return { x, y };
}
static inline int4 make_int4(int x, int y, int z, int w)
{
    return { x, y, z, w };
}
static inline uint2 make_uint2(unsigned x, unsigned y)
{
    return { x, y };
}
static inline uint3 make_uint3(unsigned x, unsigned y, unsigned z)
{
    return { x, y, z };
}
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return { x, y, z, w };
}
static inline float2 make_float2(float x, float y)
{
    return { x, y };
}
static inline float3 make_float3(float x, float y, float z)
{
    return { x, y, z };
}
static inline float4 make_float4(float x, float y, float z, float w)
{
    return { x, y, z, w };
}
static inline double2 make_double2(double x, double y)
{
    return { x, y };
}

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};

/* Of the fiber that runs. */
inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;
constexpr int warpSize = 32;

/* ---- The host's side: types ---- */

typedef enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInvalidMemcpyDirection = 21,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorIllegalState = 401,
    cudaErrorNotReady = 600,
    cudaErrorHostMemoryAlreadyRegistered = 712,
    cudaErrorHostMemoryNotRegistered = 713,
    cudaErrorNotSupported = 801,
    cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorStreamCaptureUnjoined = 904,
    cudaErrorStreamCaptureImplicit = 906,
    cudaErrorCapturedEvent = 907,
    cudaErrorUnknown = 999
} cudaError_t;

enum cudaMemcpyKind {
    cudaMemcpyHostToHost = 0,
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3,
    cudaMemcpyDefault = 4
};

enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal = 0,
    cudaStreamCaptureModeThreadLocal = 1,
    cudaStreamCaptureModeRelaxed = 2
};

enum cudaStreamCaptureStatus {
    cudaStreamCaptureStatusNone = 0,
    cudaStreamCaptureStatusActive = 1,
    cudaStreamCaptureStatusInvalidated = 2
};

enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaFuncAttributePreferredSharedMemoryCarveout = 9
};

enum cudaDeviceAttr {
    cudaDevAttrMaxThreadsPerBlock = 1,
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76,
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
};

enum {
    cudaStreamDefault = 0,
    cudaStreamNonBlocking = 1,
    cudaEventDefault = 0,
    cudaEventBlockingSync = 1,
    cudaEventDisableTiming = 2,
    cudaEventInterprocess = 4,
    cudaEventWaitDefault = 0,
    cudaHostAllocDefault = 0,
    cudaHostAllocPortable = 1,
    cudaHostAllocMapped = 2,
    cudaHostAllocWriteCombined = 4,
    cudaHostRegisterDefault = 0,
    cudaHostRegisterPortable = 1,
    cudaHostRegisterMapped = 2,
    cudaHostRegisterReadOnly = 8
};

struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem;
    size_t sharedMemPerBlock;
    size_t sharedMemPerBlockOptin;
    size_t sharedMemPerMultiprocessor;
    int regsPerBlock;
    int warpSize;
    int maxThreadsPerBlock;
    int maxThreadsPerMultiProcessor;
    int major;
    int minor;
    int multiProcessorCount;
    int l2CacheSize;
    int persistingL2CacheMaxSize;
    int memoryBusWidth;
    int integrated;
    int canMapHostMemory;
    int concurrentKernels;
    int asyncEngineCount;
    int unifiedAddressing;
    int managedMemory;
    int cooperativeLaunch;
    int hostRegisterSupported;
    int ECCEnabled;
    int pciBusID;
    int pciDeviceID;
    int pciDomainID;
};

struct CUgraph_st {
    std::vector<std::function<void()>> work;
    std::vector<struct CUstream_st *> streams; /* that record into it while it is captured */
    cudaStreamCaptureMode mode;
    bool broken; /* by a call that a capture forbids */
};

struct CUgraphExec_st {
    std::vector<std::function<void()>> work;
};

struct CUstream_st {
    CUgraph_st *capture; /* NULL unless it captures */
    bool origin;         /* the capture began in it */
};

struct CUevent_st {
    CUgraph_st *capture; /* last recorded in this capture */
    double ms;
    bool recorded;
    bool timed;
};

typedef struct CUgraph_st *cudaGraph_t;
typedef struct CUgraphExec_st *cudaGraphExec_t;
typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef void (*cudaHostFn_t)(void *ctx);

/* ---- Fibers ---- */

enum {
    FG_EMU_THREADS = 1024, /* of a block */
    FG_EMU_WARPS = FG_EMU_THREADS / 32,
    FG_EMU_SHARED = 227 * 1024,
    FG_EMU_SHARED_PLAIN = 48 * 1024, /* without cudaFuncSetAttribute */
    FG_EMU_PAGE = 4096,
#if defined(FG_EMU_ASAN) || defined(FG_EMU_TSAN)
    FG_EMU_STACK = 256 * 1024
#else
    FG_EMU_STACK = 64 * 1024
#endif
};

/* What a lane waits for. */
enum fg_emu_wait {
    FG_EMU_RUNS,
    FG_EMU_BLOCK,
    FG_EMU_SYNC,
    FG_EMU_SHUFFLE,
    FG_EMU_VOTE,
    FG_EMU_MMA,
    FG_EMU_MATRICES,
    FG_EMU_ENDED
};

static const char *const fg_emu_wait_names[] = {
    "run",    "__syncthreads", "__syncwarp",       "a shuffle",
    "a vote", "fg_mma",        "fg_load_matrices", "ended"
};

#ifdef FG_EMU_UCONTEXT
typedef ucontext_t fg_emu_context;

static inline void fg_emu_context_switch(fg_emu_context *from, fg_emu_context *to)
{
    swapcontext(from, to);
}

static inline void fg_emu_context_make(fg_emu_context *context, unsigned char *stack, size_t size,
                                       void (*entry)(void))
{
    getcontext(context);
    context->uc_stack.ss_sp = stack;
    context->uc_stack.ss_size = size;
    context->uc_link = nullptr;
    makecontext(context, entry, 0);
}
#else
typedef void *fg_emu_context; /* its stack pointer */

/* Goes on with the other stack, from where it was left. Within the function that switches, so that no return goes
 * elsewhere than the processor foresees. The red zone below the stack stays as it is. */
static __forceinline__ void fg_emu_context_switch(fg_emu_context *from, fg_emu_context *to)
{
    asm volatile("leaq -128(%%rsp), %%rsp\n\t"
                 "pushq %%rbp\n\t"
                 "pushq %%rbx\n\t"
                 "leaq 1f(%%rip), %%rax\n\t"
                 "pushq %%rax\n\t"
                 "movq %%rsp, (%0)\n\t"
                 "movq (%1), %%rsp\n\t"
                 "popq %%rax\n\t"
                 "jmp *%%rax\n"
                 "1:\n\t"
                 "popq %%rbx\n\t"
                 "popq %%rbp\n\t"
                 "leaq 128(%%rsp), %%rsp"
                 : "+D"(from), "+S"(to)
                 :
                 : "rax", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
                   "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
                   "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15",
#ifdef __AVX512F__
                   "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24",
                   "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", "xmm30", "xmm31", "k1", "k2", "k3",
                   "k4", "k5", "k6", "k7",
#endif
                   "memory", "cc");
}

static inline void fg_emu_context_make(fg_emu_context *context, unsigned char *stack, size_t size,
                                       void (*entry)(void))
{
    /* The entry, and where it would return to: there the stack is 8 beside 16 bytes. */
    uint64_t *top = (uint64_t *)(stack + size) - 4;
    memset(top, 0, 4 * sizeof(*top));
    top[0] = (uint64_t)(uintptr_t)entry;
    *context = top;
}
#endif

struct fg_emu_copy {
    unsigned char *shared;
    const unsigned char *global; /* NULL: zeros */
};

struct fg_emu_fiber {
    fg_emu_context context;
    uint3 thread;
    uint32_t lane;
    struct fg_emu_warp *warp;
    /* Asynchronous copies under way, in the order of issue, and the ends of their groups. */
    std::vector<fg_emu_copy> copies;
    std::vector<uint32_t> group_ends;
#ifdef FG_EMU_ASAN
    void *fake_stack;
    const void *stack;
    size_t stack_bytes;
#endif
#ifdef FG_EMU_TSAN
    void *tsan;
#endif
};

struct fg_emu_warp {
    uint32_t index;
    uint32_t exists;   /* lanes */
    uint32_t runnable; /* lanes */
    uint32_t ended;    /* lanes, and those that do not exist */
    uint32_t waits;    /* lanes, for lanes of the warp */
    bool uniform;      /* all of these wait for the same as the first one that came */
    uint8_t first;     /* lane */
    uint32_t mask[32]; /* which lanes each waits for */
    uint8_t wait[32];  /* fg_emu_wait */
    uint8_t source[32];
    uint64_t in[32];
    uint64_t out[32];
    void *args
        [32]; /* of products and matrices: on the lane's stack, which stays as it is while the lane waits */
};

struct fg_emu_mma_args {
    float *sums;
    const uint32_t *a;
    uint32_t b0, b1;
};

struct fg_emu_matrices_args {
    uint32_t *out;
    const void *shared;
};

/* The block that runs; one per process, under the lock. */
struct fg_emu_block {
    const char *kernel;
    void (*body)(void *args);
    void *args;
    uint32_t threads;
    uint32_t warps;
    uint32_t ended;
    uint32_t at_barrier;
    uint32_t warps_runnable;
    fg_emu_fiber *now;
    unsigned char *shared;
    size_t shared_bytes;
    unsigned char *shared_area; /* ends at the guard page */
    unsigned char *stacks;
    fg_emu_fiber main;
    fg_emu_warp warp[FG_EMU_WARPS];
    fg_emu_fiber fibers[FG_EMU_THREADS];
};

inline fg_emu_block fg_emu;

extern "C" {
extern unsigned char __start_fg_emu_shared[] __attribute__((weak, visibility("hidden")));
extern unsigned char __stop_fg_emu_shared[] __attribute__((weak, visibility("hidden")));
}

[[noreturn]] __attribute__((noinline, cold)) inline void fg_emu_abort(const char *what)
{
    fprintf(stderr, "emulated: kernel %s, block (%u, %u, %u), thread (%u, %u, %u): %s\n",
            fg_emu.kernel != nullptr ? fg_emu.kernel : "none", blockIdx.x, blockIdx.y, blockIdx.z,
            threadIdx.x, threadIdx.y, threadIdx.z, what);
    abort();
}

[[noreturn]] __attribute__((noinline, cold)) inline void fg_emu_deadlock(void)
{
    fprintf(stderr, "emulated: kernel %s, block (%u, %u, %u): deadlock: every thread waits\n",
            fg_emu.kernel, blockIdx.x, blockIdx.y, blockIdx.z);
    for (uint32_t w = 0; w < fg_emu.warps; w++) {
        const fg_emu_warp *warp = &fg_emu.warp[w];
        uint32_t seen = 0;
        for (uint32_t lane = 0; lane < 32; lane++) {
            if ((seen | ~warp->exists) >> lane & 1) {
                continue;
            }
            uint32_t same = 0;
            for (uint32_t other = 0; other < 32; other++) {
                if ((warp->exists >> other & 1) && warp->wait[other] == warp->wait[lane] &&
                    warp->mask[other] == warp->mask[lane]) {
                    same |= 1U << other;
                }
            }
            seen |= same;
            fprintf(stderr, "emulated:   warp %u, lanes %08x: ", w, same);
            if (warp->wait[lane] == FG_EMU_ENDED) {
                fprintf(stderr, "ended\n");
            } else if (warp->wait[lane] == FG_EMU_BLOCK) {
                fprintf(stderr, "wait at __syncthreads\n");
            } else {
                fprintf(stderr, "wait in %s for lanes %08x\n", fg_emu_wait_names[warp->wait[lane]],
                        warp->mask[lane]);
            }
        }
    }
    abort();
}

static __forceinline__ void fg_emu_switch(fg_emu_fiber *from, fg_emu_fiber *to, bool ended)
{
    (void)ended;
    fg_emu.now = to;
    threadIdx = to->thread;
#ifdef FG_EMU_ASAN
    __sanitizer_start_switch_fiber(ended ? nullptr : &from->fake_stack, to->stack, to->stack_bytes);
#endif
#ifdef FG_EMU_TSAN
    __tsan_switch_to_fiber(to->tsan, 0);
#endif
    fg_emu_context_switch(&from->context, &to->context);
#ifdef FG_EMU_ASAN
    __sanitizer_finish_switch_fiber(fg_emu.now->fake_stack, nullptr, nullptr);
#endif
}

/* A lane of the next warp that has one. */
__attribute__((noinline)) inline fg_emu_fiber *fg_emu_next_warp(uint32_t warp)
{
    uint32_t warps = fg_emu.warps_runnable &= ~(1U << warp);
    if (warps == 0) {
        fg_emu_deadlock();
    }
    uint32_t later = warps & ~(((uint32_t)2 << warp) - 1);
    warp = (uint32_t)__builtin_ctz(later != 0 ? later : warps);
    return &fg_emu.fibers[warp * 32 + (uint32_t)__builtin_ctz(fg_emu.warp[warp].runnable)];
}

/* The next fiber: of the lanes of the same warp the one after this one, or the first, or another warp's. */
static __forceinline__ fg_emu_fiber *fg_emu_next(const fg_emu_fiber *self)
{
    uint32_t lanes = self->warp->runnable;
    if (lanes == 0) {
        return fg_emu_next_warp(self->warp->index);
    }
    uint32_t later = lanes & ~(((uint32_t)2 << self->lane) - 1);
    return &fg_emu.fibers[self->warp->index * 32 +
                          (uint32_t)__builtin_ctz(later != 0 ? later : lanes)];
}

/* This fiber waits until someone makes it runnable. */
static __forceinline__ void fg_emu_pause(fg_emu_fiber *self)
{
    self->warp->runnable &= ~(1U << self->lane);
    fg_emu_switch(self, fg_emu_next(self), false);
}

static inline void fg_emu_block_release(void)
{
    for (uint32_t w = 0; w < fg_emu.warps; w++) {
        fg_emu_warp *warp = &fg_emu.warp[w];
        warp->runnable = warp->exists & ~warp->ended;
        if (warp->runnable != 0) {
            fg_emu.warps_runnable |= 1U << w;
        }
    }
    fg_emu.at_barrier = 0;
}

static inline float fg_emu_float(uint32_t bits)
{
    float value;
    __builtin_memcpy(&value, &bits, sizeof(value));
    return value;
}

static inline uint32_t fg_emu_bits(float value)
{
    uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* Each product of two bf16 is exact in double; they are added to the sum in double, in rising order of k, and the
 * total is rounded to float once. Tensor cores add in an order and with a rounding of their own. */
static __forceinline__ void fg_emu_mma_body(const fg_emu_warp *warp)
{
    typedef double four __attribute__((vector_size(32)));
    typedef float four_floats __attribute__((vector_size(16)));
    /* a, b and c, as floats and as doubles, row after row. */
    enum { A = 16 * 16, B = 16 * 8, C = 16 * 8 };
    alignas(32) uint32_t bits[A + B + C];
    alignas(32) double values[A + B + C];
    for (uint32_t lane = 0; lane < 32; lane++) {
        const fg_emu_mma_args *args = (const fg_emu_mma_args *)warp->args[lane];
        uint32_t g = lane / 4, t = lane % 4;
        uint32_t *a = bits + g * 16 + t * 2, *b = bits + A + t * 2 * 8 + g,
                 *c = bits + A + B + g * 8 + t * 2;
        a[0] = args->a[0] << 16;
        a[1] = args->a[0] & 0xFFFF0000U;
        a[8 * 16] = args->a[1] << 16;
        a[8 * 16 + 1] = args->a[1] & 0xFFFF0000U;
        a[8] = args->a[2] << 16;
        a[9] = args->a[2] & 0xFFFF0000U;
        a[8 * 16 + 8] = args->a[3] << 16;
        a[8 * 16 + 9] = args->a[3] & 0xFFFF0000U;
        b[0] = args->b0 << 16;
        b[8] = args->b0 & 0xFFFF0000U;
        b[8 * 8] = args->b1 << 16;
        b[9 * 8] = args->b1 & 0xFFFF0000U;
        __builtin_memcpy(c, args->sums, 2 * sizeof(float));
        __builtin_memcpy(c + 8 * 8, args->sums + 2, 2 * sizeof(float));
    }
    for (uint32_t i = 0; i < A + B + C; i += 4) {
        four_floats narrow;
        __builtin_memcpy(&narrow, bits + i, sizeof(narrow));
        four wide = __builtin_convertvector(narrow, four);
        __builtin_memcpy(values + i, &wide, sizeof(wide));
    }
    for (uint32_t row = 0; row < 16; row += 4) {
        const double *a = values + row * 16;
        four s[8];
        __builtin_memcpy(s, values + A + B + row * 8, sizeof(s));
        four s0 = s[0], s1 = s[1], s2 = s[2], s3 = s[3], s4 = s[4], s5 = s[5], s6 = s[6], s7 = s[7];
        for (uint32_t k = 0; k < 16; k++) {
            four low, high;
            __builtin_memcpy(&low, values + A + k * 8, sizeof(low));
            __builtin_memcpy(&high, values + A + k * 8 + 4, sizeof(high));
            s0 += a[k] * low;
            s1 += a[k] * high;
            s2 += a[16 + k] * low;
            s3 += a[16 + k] * high;
            s4 += a[32 + k] * low;
            s5 += a[32 + k] * high;
            s6 += a[48 + k] * low;
            s7 += a[48 + k] * high;
        }
        const four sums[8] = { s0, s1, s2, s3, s4, s5, s6, s7 };
        for (uint32_t i = 0; i < 8; i++) {
            four_floats narrow = __builtin_convertvector(sums[i], four_floats);
            __builtin_memcpy(bits + A + B + row * 8 + i * 4, &narrow, sizeof(narrow));
        }
    }
    for (uint32_t lane = 0; lane < 32; lane++) {
        float *sums = ((const fg_emu_mma_args *)warp->args[lane])->sums;
        const uint32_t *c = bits + A + B + lane / 4 * 8 + lane % 4 * 2;
        __builtin_memcpy(sums, c, 2 * sizeof(float));
        __builtin_memcpy(sums + 2, c + 8 * 8, 2 * sizeof(float));
    }
}

/* The same bits with and without: no product is rounded. */
#ifdef __x86_64__
__attribute__((noinline, target("avx2,fma"))) inline void fg_emu_mma_avx2(const fg_emu_warp *warp)
{
    fg_emu_mma_body(warp);
}
#endif

__attribute__((noinline)) inline void fg_emu_mma_plain(const fg_emu_warp *warp)
{
    fg_emu_mma_body(warp);
}

static inline void fg_emu_mma(const fg_emu_warp *warp)
{
#ifdef __x86_64__
    static const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (avx2) {
        fg_emu_mma_avx2(warp);
        return;
    }
#endif
    fg_emu_mma_plain(warp);
}

inline void fg_emu_matrices(const fg_emu_warp *warp)
{
    for (uint32_t i = 0; i < 4; i++) {
        for (uint32_t row = 0; row < 8; row++) {
            const void *shared = ((const fg_emu_matrices_args *)warp->args[i * 8 + row])->shared;
            uint32_t words[4];
            memcpy(words, shared, sizeof(words));
            for (uint32_t t = 0; t < 4; t++) {
                ((const fg_emu_matrices_args *)warp->args[row * 4 + t])->out[i] = words[t];
            }
        }
    }
}

static inline void fg_emu_exchange(fg_emu_warp *warp, uint32_t present)
{
    if (present == UINT32_MAX) {
        for (uint32_t lane = 0; lane < 32; lane++) {
            warp->out[lane] = warp->in[warp->source[lane]];
        }
        return;
    }
    for (uint32_t lane = 0; lane < 32; lane++) {
        if (present >> lane & 1) {
            /* Of a lane that does not take part there is no value. */
            uint32_t source = warp->source[lane];
            warp->out[lane] = (present >> source & 1) ? warp->in[source] : UINT64_MAX;
        }
    }
}

static inline void fg_emu_count_votes(fg_emu_warp *warp, uint32_t present)
{
    uint32_t votes = 0;
    for (uint32_t lane = 0; lane < 32; lane++) {
        votes |= (warp->in[lane] != 0 ? 1U : 0U) << lane;
    }
    for (uint32_t lane = 0; lane < 32; lane++) {
        if (present >> lane & 1) {
            warp->out[lane] = (uint64_t)present << 32 | (votes & present);
        }
    }
}

/* Whether all of these lanes wait for the same as this one. */
static inline bool fg_emu_same(const fg_emu_warp *warp, uint32_t lane, uint32_t present)
{
    for (uint32_t other = 0; other < 32; other++) {
        if ((present >> other & 1) &&
            (warp->mask[other] != warp->mask[lane] || warp->wait[other] != warp->wait[lane])) {
            return false;
        }
    }
    return true;
}

/* If the lanes that `lane` waits for are all there, does what they came for and makes them runnable. */
__attribute__((noinline)) inline bool fg_emu_warp_release(fg_emu_warp *warp, uint32_t lane)
{
    uint32_t present = warp->mask[lane] & ~warp->ended;
    if ((warp->waits & present) != present ||
        (!warp->uniform && !fg_emu_same(warp, lane, present))) {
        return false;
    }
    uint8_t wait = warp->wait[lane];
    if (wait == FG_EMU_SHUFFLE) {
        fg_emu_exchange(warp, present);
    } else if (wait == FG_EMU_VOTE) {
        fg_emu_count_votes(warp, present);
    } else if (wait == FG_EMU_MMA || wait == FG_EMU_MATRICES) {
        if (present != UINT32_MAX) {
            fg_emu_abort("fg_mma and fg_load_matrices want all 32 lanes of a warp");
        }
        if (wait == FG_EMU_MMA) {
            fg_emu_mma(warp);
        } else {
            fg_emu_matrices(warp);
        }
    }
    warp->waits &= ~present;
    warp->runnable |= present;
    fg_emu.warps_runnable |= 1U << warp->index;
    return true;
}

/* What the lane brings is in `in`, `source` and `args`, and what it gets in `out` or where `args` says. */
static __forceinline__ void fg_emu_warp_wait(fg_emu_fiber *self, fg_emu_wait wait, uint32_t mask)
{
    fg_emu_warp *warp = self->warp;
    uint32_t lane = self->lane;
    if (!(mask >> lane & 1)) {
        fg_emu_abort("the mask lacks the lane that calls");
    }
    warp->wait[lane] = (uint8_t)wait;
    warp->mask[lane] = mask;
    if (warp->waits == 0) {
        warp->uniform = true;
        warp->first = (uint8_t)lane;
    } else if (warp->wait[warp->first] != wait || warp->mask[warp->first] != mask) {
        warp->uniform = false;
    }
    warp->waits |= 1U << lane;
    if ((mask & ~(warp->waits | warp->ended)) != 0 || !fg_emu_warp_release(warp, lane)) {
        fg_emu_pause(self);
    }
}

/* The kernel has returned in this fiber. */
[[noreturn]] __attribute__((noinline)) inline void fg_emu_end(void)
{
    fg_emu_fiber *self = fg_emu.now;
    fg_emu_warp *warp = self->warp;
    warp->ended |= 1U << self->lane;
    warp->runnable &= ~(1U << self->lane);
    warp->wait[self->lane] = FG_EMU_ENDED;
    fg_emu.ended++;
    if (fg_emu.ended == fg_emu.threads) {
        fg_emu_switch(self, &fg_emu.main, true);
    }
    for (uint32_t lane = 0; lane < 32 && warp->waits != 0; lane++) {
        if (warp->waits >> lane & 1) {
            fg_emu_warp_release(warp, lane);
        }
    }
    if (fg_emu.at_barrier != 0 && fg_emu.at_barrier + fg_emu.ended == fg_emu.threads) {
        fg_emu_block_release();
    }
    fg_emu_switch(self, fg_emu_next(self), true);
    abort();
}

inline void fg_emu_entry(void)
{
#ifdef FG_EMU_ASAN
    const void *stack;
    size_t stack_bytes;
    __sanitizer_finish_switch_fiber(nullptr, &stack, &stack_bytes);
    if (fg_emu.main.stack == nullptr) {
        /* The first fiber of a block is entered from the thread that launches. */
        fg_emu.main.stack = stack;
        fg_emu.main.stack_bytes = stack_bytes;
    }
#endif
    fg_emu.body(fg_emu.args);
    fg_emu_end();
}

/* ---- A block, a kernel ---- */

inline void *fg_emu_map(size_t size, int protection)
{
    void *at = mmap(nullptr, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? nullptr : at;
}

/* No sanitizer looks: gaps between static shared variables are no variables. */
static inline void fg_emu_fill(unsigned char *at, size_t size)
{
#ifdef __x86_64__
    asm volatile("rep stosb" : "+D"(at), "+c"(size) : "a"(0xFF) : "memory");
#else
    memset(at, 0xFF, size);
#endif
}

inline void fg_emu_prepare(void)
{
    if (fg_emu.stacks != nullptr) {
        return;
    }
    size_t shared = (FG_EMU_SHARED + FG_EMU_PAGE - 1) / FG_EMU_PAGE * FG_EMU_PAGE;
    unsigned char *stacks =
        (unsigned char *)fg_emu_map((size_t)FG_EMU_THREADS * FG_EMU_STACK, PROT_READ | PROT_WRITE);
    fg_emu.shared_area = (unsigned char *)fg_emu_map(shared + FG_EMU_PAGE, PROT_READ | PROT_WRITE);
    if (stacks == nullptr || fg_emu.shared_area == nullptr) {
        fg_emu_abort("no memory for stacks");
    }
    fg_emu.shared_area += shared;
    mprotect(fg_emu.shared_area, FG_EMU_PAGE, PROT_NONE);
    for (uint32_t i = 0; i < FG_EMU_THREADS; i++) {
        mprotect(stacks + (size_t)i * FG_EMU_STACK, FG_EMU_PAGE, PROT_NONE);
#ifdef FG_EMU_TSAN
        fg_emu.fibers[i].tsan = __tsan_create_fiber(0);
#endif
    }
    fg_emu.stacks = stacks;
}

static inline void fg_emu_fiber_prepare(uint32_t index)
{
    fg_emu_fiber *fiber = &fg_emu.fibers[index];
    fiber->warp = &fg_emu.warp[index / 32];
    fiber->lane = index % 32;
    fiber->thread.x = index % blockDim.x;
    fiber->thread.y = index / blockDim.x % blockDim.y;
    fiber->thread.z = index / blockDim.x / blockDim.y;
    fiber->copies.clear();
    fiber->group_ends.clear();
    /* Stacks begin at different cache lines: a first-level cache could not hold the same lines of many pages. */
    unsigned char *stack = fg_emu.stacks + (size_t)index * FG_EMU_STACK + FG_EMU_PAGE;
    size_t size = FG_EMU_STACK - FG_EMU_PAGE - index % 64 * 64;
#ifdef FG_EMU_ASAN
    fiber->stack = stack;
    fiber->stack_bytes = size;
    __asan_unpoison_memory_region(stack + size - 8192, 8192);
#endif
    fg_emu_context_make(&fiber->context, stack, size, fg_emu_entry);
}

inline void fg_emu_run_block(void)
{
    fg_emu.warps = (fg_emu.threads + 31) / 32;
    fg_emu.warps_runnable = fg_emu.warps == 32 ? UINT32_MAX : (1U << fg_emu.warps) - 1;
    fg_emu.ended = 0;
    fg_emu.at_barrier = 0;
    for (uint32_t w = 0; w < fg_emu.warps; w++) {
        fg_emu_warp *warp = &fg_emu.warp[w];
        uint32_t lanes = fg_emu.threads - w * 32;
        warp->index = w;
        warp->exists = lanes >= 32 ? UINT32_MAX : (1U << lanes) - 1;
        warp->runnable = warp->exists;
        warp->ended = ~warp->exists;
        warp->waits = 0;
        memset(warp->wait, FG_EMU_RUNS, sizeof(warp->wait));
    }
    for (uint32_t i = 0; i < fg_emu.threads; i++) {
        fg_emu_fiber_prepare(i);
    }
    fg_emu_fill(fg_emu.shared, fg_emu.shared_bytes);
    if (__start_fg_emu_shared != nullptr) {
        fg_emu_fill(__start_fg_emu_shared, (size_t)(__stop_fg_emu_shared - __start_fg_emu_shared));
    }
#ifdef FG_EMU_ASAN
    fg_emu.main.stack = nullptr;
#endif
#ifdef FG_EMU_TSAN
    fg_emu.main.tsan = __tsan_get_current_fiber();
#endif
    fg_emu_switch(&fg_emu.main, &fg_emu.fibers[0], false);
}

struct fg_emu_shape {
    const char *kernel;
    dim3 grid, block;
    size_t shared_bytes;
};

/* Under the lock, with device memory in reach. */
inline void fg_emu_run(const fg_emu_shape &shape, void (*body)(void *args), void *args)
{
    fg_emu_prepare();
    fg_emu.kernel = shape.kernel;
    fg_emu.body = body;
    fg_emu.args = args;
    fg_emu.threads = shape.block.x * shape.block.y * shape.block.z;
    fg_emu.shared_bytes = (shape.shared_bytes + 127) / 128 * 128;
    fg_emu.shared = fg_emu.shared_area - fg_emu.shared_bytes;
    gridDim = shape.grid;
    blockDim = shape.block;
    for (blockIdx.z = 0; blockIdx.z < gridDim.z; blockIdx.z++) {
        for (blockIdx.y = 0; blockIdx.y < gridDim.y; blockIdx.y++) {
            for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++) {
                fg_emu_run_block();
            }
        }
    }
    fg_emu.kernel = nullptr;
}

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
    uint32_t captures;                         /* that forbid unsafe calls of every thread */
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

static inline size_t fg_emu_device_bytes(void)
{
    return (size_t)fg_emu_env("FORGE_EMULATED_MEMORY_MIB", 8192) << 20;
}

static inline void fg_emu_protect(fg_emu_memory &memory, int protection)
{
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
        if (graph->mode != cudaStreamCaptureModeRelaxed) {
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
    out->sharedMemPerBlockOptin = FG_EMU_SHARED;
    out->sharedMemPerMultiprocessor = FG_EMU_SHARED + 1024;
    out->regsPerBlock = 65536;
    out->warpSize = warpSize;
    out->maxThreadsPerBlock = FG_EMU_THREADS;
    out->maxThreadsPerMultiProcessor = 2048;
    out->major = 9;
    out->multiProcessorCount = 4;
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
        *out = FG_EMU_SHARED;
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
        if (value < 0 || value > FG_EMU_SHARED) {
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

/* ---- Launches ---- */

static inline cudaError_t fg_emu_launch_check(const fg_emu_memory &memory,
                                              const fg_emu_shape &shape, const void *kernel)
{
    const dim3 &grid = shape.grid, &block = shape.block;
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > INT32_MAX || grid.y > 65535 ||
        grid.z > 65535) {
        return cudaErrorInvalidConfiguration;
    }
    if (block.x == 0 || block.y == 0 || block.z == 0 || block.x > 1024 || block.y > 1024 ||
        block.z > 64 || (uint64_t)block.x * block.y * block.z > FG_EMU_THREADS) {
        return cudaErrorInvalidConfiguration;
    }
    auto set = memory.shared_max.find(kernel);
    size_t most = FG_EMU_SHARED_PLAIN;
    if (set != memory.shared_max.end() && set->second > most) {
        most = set->second;
    }
    return shape.shared_bytes > most ? cudaErrorInvalidValue : cudaSuccess;
}

template <typename... Params, typename... Args>
static inline cudaError_t fg_emu_launch(const char *name, dim3 grid, dim3 block,
                                        size_t shared_bytes, cudaStream_t stream,
                                        void (*kernel)(Params...), Args... args)
{
    typedef std::tuple<Params...> tuple;
    struct launch {
        void (*kernel)(Params...);
        tuple params;
        static void body(void *self)
        {
            std::apply(((launch *)self)->kernel, ((launch *)self)->params);
        }
    };
    fg_emu_memory &memory = fg_emu_memory_get();
    std::lock_guard<std::recursive_mutex> guard(memory.lock);
    fg_emu_shape shape = { name, grid, block, shared_bytes };
    cudaError_t error = fg_emu_devices() == 0 ? cudaErrorNoDevice : fg_emu_implicit(memory, stream);
    error = error == cudaSuccess ? fg_emu_launch_check(memory, shape, (const void *)kernel) : error;
    if (error == cudaSuccess) {
        launch own = { kernel, tuple(static_cast<Params>(args)...) };
        fg_emu_do(stream, [shape, own]() mutable { fg_emu_run(shape, launch::body, &own); });
    }
    return fg_emu_return(error);
}

#define FG_LAUNCH(kernel, grid, block, shared_bytes, stream, early, ...)                           \
    do {                                                                                           \
        (void)(early);                                                                             \
        fg_gpu_check(fg_emu_launch(#kernel, (grid), (block), (shared_bytes), (stream), kernel,     \
                                   __VA_ARGS__),                                                   \
                     #kernel);                                                                     \
    } while (0)

#define FG_SHARED_BYTES(name) unsigned char *const name = fg_emu.shared

static __forceinline__ void fg_gpu_wait(void)
{
}

static __forceinline__ void fg_gpu_let_next(void)
{
}

/* ---- Barriers, shuffles, votes ---- */

inline void __syncthreads(void)
{
    fg_emu_fiber *self = fg_emu.now;
    fg_emu.at_barrier++;
    if (fg_emu.at_barrier + fg_emu.ended == fg_emu.threads) {
        fg_emu_block_release();
        return;
    }
    self->warp->wait[self->lane] = FG_EMU_BLOCK;
    fg_emu_pause(self);
}

inline void __syncwarp(unsigned mask = 0xFFFFFFFFU)
{
    fg_emu_warp_wait(fg_emu.now, FG_EMU_SYNC, mask);
}

static inline uint64_t fg_emu_shuffle(unsigned mask, uint64_t value, uint32_t source)
{
    fg_emu_fiber *self = fg_emu.now;
    fg_emu_warp *warp = self->warp;
    warp->in[self->lane] = value;
    warp->source[self->lane] = (uint8_t)source;
    fg_emu_warp_wait(self, FG_EMU_SHUFFLE, mask);
    return warp->out[self->lane];
}

template <typename T> static inline T fg_emu_shuffle_of(unsigned mask, T value, uint32_t source)
{
    static_assert(std::is_arithmetic<T>::value && sizeof(T) >= 4 && sizeof(T) <= 8,
                  "of 4 or 8 bytes");
    uint64_t bits = 0;
    __builtin_memcpy(&bits, &value, sizeof(value));
    bits = fg_emu_shuffle(mask, bits, source);
    __builtin_memcpy(&value, &bits, sizeof(value));
    return value;
}

/* Lanes work in segments of `width`, a power of two; beyond its segment's ends a lane gets its own value. */
template <typename T> static inline T __shfl_sync(unsigned mask, T value, int from, int width = 32)
{
    uint32_t lane = fg_emu.now->lane, size = (uint32_t)width;
    return fg_emu_shuffle_of(mask, value, (lane & ~(size - 1)) | ((uint32_t)from & (size - 1)));
}

template <typename T>
static inline T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32)
{
    uint32_t lane = fg_emu.now->lane, source = lane ^ (uint32_t)lanes, size = (uint32_t)width;
    return fg_emu_shuffle_of(mask, value,
                             source >= (lane & ~(size - 1)) + size ? lane : source & 31);
}

template <typename T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned lanes, int width = 32)
{
    uint32_t lane = fg_emu.now->lane, size = (uint32_t)width;
    return fg_emu_shuffle_of(mask, value,
                             (lane & (size - 1)) + lanes >= size ? lane : lane + lanes);
}

template <typename T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned lanes, int width = 32)
{
    uint32_t lane = fg_emu.now->lane, size = (uint32_t)width;
    return fg_emu_shuffle_of(mask, value, (lane & (size - 1)) < lanes ? lane : lane - lanes);
}

/* Who votes in the upper half, who of them says yes in the lower one. */
static inline uint64_t fg_emu_vote(unsigned mask, int yes)
{
    fg_emu_fiber *self = fg_emu.now;
    fg_emu_warp *warp = self->warp;
    warp->in[self->lane] = yes != 0;
    fg_emu_warp_wait(self, FG_EMU_VOTE, mask);
    return warp->out[self->lane];
}

inline unsigned __ballot_sync(unsigned mask, int yes)
{
    return (unsigned)fg_emu_vote(mask, yes);
}

inline int __any_sync(unsigned mask, int yes)
{
    return (unsigned)fg_emu_vote(mask, yes) != 0;
}

inline int __all_sync(unsigned mask, int yes)
{
    uint64_t votes = fg_emu_vote(mask, yes);
    return (uint32_t)votes == (uint32_t)(votes >> 32);
}

static inline void __threadfence_block(void)
{
    std::atomic_thread_fence(std::memory_order_seq_cst);
}

static inline void __threadfence(void)
{
    std::atomic_thread_fence(std::memory_order_seq_cst);
}

static inline void __threadfence_system(void)
{
    std::atomic_thread_fence(std::memory_order_seq_cst);
}

[[noreturn]] static inline void __trap(void)
{
    fg_emu_abort("__trap");
}

/* ---- Atomics: real ones, as host threads may look at the same memory ---- */

#define FG_EMU_ATOMIC(name, type, result)                                                          \
    static inline type name(type *at, type value)                                                  \
    {                                                                                              \
        type old, next;                                                                            \
        __atomic_load(at, &old, __ATOMIC_RELAXED);                                                 \
        do {                                                                                       \
            next = (result);                                                                       \
        } while (!__atomic_compare_exchange(at, &old, &next, false, __ATOMIC_RELAXED,              \
                                            __ATOMIC_RELAXED));                                    \
        return old;                                                                                \
    }
#define FG_EMU_ATOMICS(type)                                                                       \
    FG_EMU_ATOMIC(atomicAdd, type, old + value)                                                    \
    FG_EMU_ATOMIC(atomicMax, type, old > value ? old : value)                                      \
    FG_EMU_ATOMIC(atomicMin, type, old < value ? old : value)                                      \
    FG_EMU_ATOMIC(atomicExch, type, value)
#define FG_EMU_ATOMIC_BITS(type)                                                                   \
    FG_EMU_ATOMIC(atomicAnd, type, old &value)                                                     \
    FG_EMU_ATOMIC(atomicOr, type, old | value)                                                     \
    FG_EMU_ATOMIC(atomicXor, type, old ^ value)                                                    \
    static inline type atomicCAS(type *at, type expected, type value)                              \
    {                                                                                              \
        __atomic_compare_exchange(at, &expected, &value, false, __ATOMIC_RELAXED,                  \
                                  __ATOMIC_RELAXED);                                               \
        return expected;                                                                           \
    }
FG_EMU_ATOMICS(int)
FG_EMU_ATOMICS(unsigned)
FG_EMU_ATOMICS(unsigned long long)
FG_EMU_ATOMIC_BITS(int)
FG_EMU_ATOMIC_BITS(unsigned)
FG_EMU_ATOMIC_BITS(unsigned long long)
FG_EMU_ATOMIC(atomicAdd, float, old + value)
FG_EMU_ATOMIC(atomicAdd, double, old + value)
FG_EMU_ATOMIC(atomicExch, float, value)
FG_EMU_ATOMIC(atomicSub, int, old - value)
FG_EMU_ATOMIC(atomicSub, unsigned, old - value)
FG_EMU_ATOMIC(atomicInc, unsigned, old >= value ? 0 : old + 1)
FG_EMU_ATOMIC(atomicDec, unsigned, old == 0 || old > value ? value : old - 1)

/* ---- Tensor cores, copies into shared memory ---- */

/* At 16 bytes, and neither device memory nor a variable of a thread. Static shared variables may be anywhere else. */
static inline bool fg_emu_is_shared(const void *at)
{
    const fg_emu_memory &memory = fg_emu_memory_get();
    const uintptr_t address = (uintptr_t)at;
    return address % 16 == 0 && address - (uintptr_t)memory.base >= memory.reserved &&
           address - (uintptr_t)fg_emu.stacks >= (size_t)FG_EMU_THREADS * FG_EMU_STACK;
}

static inline void fg_mma(float sums[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    fg_emu_mma_args args = { sums, a, b0, b1 };
    fg_emu_fiber *self = fg_emu.now;
    self->warp->args[self->lane] = &args;
    fg_emu_warp_wait(self, FG_EMU_MMA, 0xFFFFFFFFU);
}

static inline void fg_load_matrices(uint32_t out[4], const void *shared)
{
    fg_emu_matrices_args args = { out, shared };
    if (!fg_emu_is_shared(shared)) {
        fg_emu_abort("fg_load_matrices: a row is not in shared memory or not at 16 bytes");
    }
    fg_emu_fiber *self = fg_emu.now;
    self->warp->args[self->lane] = &args;
    fg_emu_warp_wait(self, FG_EMU_MATRICES, 0xFFFFFFFFU);
}

static inline void fg_copy16(void *shared, const void *global, bool real)
{
    if (!fg_emu_is_shared(shared)) {
        fg_emu_abort("fg_copy16: the target is not in shared memory or not at 16 bytes");
    }
    if (real && ((uintptr_t)global & 15) != 0) {
        fg_emu_abort("fg_copy16: the source is not at 16 bytes");
    }
    fg_emu.now->copies.push_back(
        { (unsigned char *)shared, real ? (const unsigned char *)global : nullptr });
}

static inline void fg_copy_commit(void)
{
    fg_emu.now->group_ends.push_back((uint32_t)fg_emu.now->copies.size());
}

/* Copies are made here and only here, so that without a wait their target is still full of NaNs. */
inline void fg_emu_copy_arrive(fg_emu_fiber *self, uint32_t left)
{
    uint32_t groups = (uint32_t)self->group_ends.size();
    if (groups <= left) {
        return;
    }
    uint32_t end = self->group_ends[groups - left - 1];
    for (uint32_t i = 0; i < end; i++) {
        const fg_emu_copy *copy = &self->copies[i];
        if (copy->global != nullptr) {
            memcpy(copy->shared, copy->global, 16);
        } else {
            memset(copy->shared, 0, 16);
        }
    }
    self->copies.erase(self->copies.begin(), self->copies.begin() + end);
    self->group_ends.erase(self->group_ends.begin(), self->group_ends.begin() + (groups - left));
    for (uint32_t &group_end : self->group_ends) {
        group_end -= end;
    }
}

template <int left> static inline void fg_copy_wait(void)
{
    static_assert(left >= 0, "a number of groups");
    fg_emu_copy_arrive(fg_emu.now, (uint32_t)left);
}

static inline uint4 fg_load16_once(const void *global)
{
    if (((uintptr_t)global & 15) != 0) {
        fg_emu_abort("fg_load16_once: the source is not at 16 bytes");
    }
    uint4 v;
    __builtin_memcpy(&v, global, sizeof(v));
    return v;
}

static inline float fg_exp2(float x)
{
    float y = exp2f(x);
    return y < 0x1p-126F ? 0.0F : y;
}

static inline uint32_t fg_emu_bf16(float x)
{
    uint32_t bits = fg_emu_bits(x);
    return x != x ? 0x7FFFU : (bits + 0x7FFFU + (bits >> 16 & 1)) >> 16;
}

static inline uint32_t fg_bf16_pair(float low, float high)
{
    return fg_emu_bf16(high) << 16 | fg_emu_bf16(low);
}

/* ---- Numbers ---- */

static inline unsigned __float_as_uint(float x)
{
    return fg_emu_bits(x);
}

static inline float __uint_as_float(unsigned x)
{
    return fg_emu_float(x);
}

static inline int __float_as_int(float x)
{
    return (int)fg_emu_bits(x);
}

static inline float __int_as_float(int x)
{
    return fg_emu_float((uint32_t)x);
}

/* The compiler must not see through these and fuse a product with a sum. */
static inline float fg_emu_opaque(float x)
{
#ifdef __x86_64__
    asm("" : "+x"(x));
    return x;
#else
    volatile float rounded = x;
    return rounded;
#endif
}

static inline float __fmul_rn(float a, float b)
{
    return fg_emu_opaque(a * b);
}

static inline float __fadd_rn(float a, float b)
{
    return fg_emu_opaque(fg_emu_opaque(a) + fg_emu_opaque(b));
}

static inline float __fsub_rn(float a, float b)
{
    return fg_emu_opaque(fg_emu_opaque(a) - fg_emu_opaque(b));
}

static inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}

static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}

static inline float __frcp_rn(float x)
{
    return 1.0F / x;
}

static inline float __fsqrt_rn(float x)
{
    return sqrtf(x);
}

static inline float rsqrtf(float x)
{
    return (float)(1.0 / sqrt((double)x));
}

static inline float __double2float_rn(double x)
{
    return (float)x;
}

static inline float __int2float_rn(int x)
{
    return (float)x;
}

static inline float __uint2float_rn(unsigned x)
{
    return (float)x;
}

/* To the nearest, to even on ties, within the type's bounds; NaN becomes 0. */
static inline int __float2int_rn(float x)
{
    if (x != x) {
        return 0;
    }
    return x >= 0x1p31F ? INT32_MAX : x <= -0x1p31F ? INT32_MIN : (int)rintf(x);
}

static inline int __float2int_rz(float x)
{
    return __float2int_rn(truncf(x));
}

static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}

static inline int __clz(int x)
{
    return x == 0 ? 32 : __builtin_clz((unsigned)x);
}

static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}

static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((uint64_t)a * b >> 32);
}

/* Byte i of the result is byte s[4i + 2 .. 4i] of the eight of x, then y. */
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned s)
{
    uint64_t bytes = (uint64_t)y << 32 | x;
    unsigned out = 0;
    for (unsigned i = 0; i < 4; i++) {
        out |= (unsigned)(bytes >> (s >> (4 * i) & 7) * 8 & 0xFF) << (8 * i);
    }
    return out;
}

template <typename T> static inline T __ldg(const T *at)
{
    return *at;
}

#define FG_EMU_MIN_MAX(type, a_type, b_type)                                                       \
    static inline type min(a_type a, b_type b)                                                     \
    {                                                                                              \
        return (type)a < (type)b ? (type)a : (type)b;                                              \
    }                                                                                              \
    static inline type max(a_type a, b_type b)                                                     \
    {                                                                                              \
        return (type)a > (type)b ? (type)a : (type)b;                                              \
    }
FG_EMU_MIN_MAX(int, int, int)
FG_EMU_MIN_MAX(unsigned, unsigned, unsigned)
FG_EMU_MIN_MAX(unsigned, int, unsigned)
FG_EMU_MIN_MAX(unsigned, unsigned, int)
FG_EMU_MIN_MAX(long, long, long)
FG_EMU_MIN_MAX(unsigned long, unsigned long, unsigned long)
FG_EMU_MIN_MAX(unsigned long, long, unsigned long)
FG_EMU_MIN_MAX(unsigned long, unsigned long, long)
FG_EMU_MIN_MAX(long long, long long, long long)
FG_EMU_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)

static inline float min(float a, float b)
{
    return fminf(a, b);
}

static inline float max(float a, float b)
{
    return fmaxf(a, b);
}

static inline double min(double a, double b)
{
    return fmin(a, b);
}

static inline double max(double a, double b)
{
    return fmax(a, b);
}

#endif
