/*
 * emulated_types - CUDA's words and types as emulated.h knows them: what marks kernels and their variables, vectors,
 * errors, handles. Numbers of errors and flags are CUDA's.
 */
#ifndef FORGE_TESTS_GPU_EMULATED_TYPES_H
#define FORGE_TESTS_GPU_EMULATED_TYPES_H

#ifdef __cplusplus

#include <stddef.h>
#include <stdint.h>

#include <functional>
#include <vector>

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
    cudaErrorInvalidPitchValue = 12,
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
    const void *thread; /* that began the capture: the address of one of its variables */
    bool broken;        /* by a call that a capture forbids */
};

struct CUgraphExec_st {
    std::vector<std::function<void()>> work;
};

struct CUstream_st {
    CUgraph_st *capture; /* NULL unless it captures */
    bool origin;         /* the capture began in it */
    int device;          /* it is of */
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

#endif
#endif
