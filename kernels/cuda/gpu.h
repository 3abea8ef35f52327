/*
 * gpu - the few things of a GPU that the kernels here use beyond plain CUDA C++: tensor-core products, asynchronous
 * copies into shared memory, launches that begin before the kernel ahead of them has ended. With FG_GPU_EMULATED all
 * of CUDA comes from the header that it names instead (tests/gpu/emulated.h), which runs the same kernels on the CPU,
 * slowly, for tests.
 */
#ifndef FORGE_KERNELS_CUDA_GPU_H
#define FORGE_KERNELS_CUDA_GPU_H

#include <stddef.h>
#include <stdint.h>

#ifdef FG_GPU_EMULATED
#include FG_GPU_EMULATED
#else

#include <cuda_runtime.h>

/* fg_device_memory_reach. */
#define FG_GPU_REACH          FG_REACH_CUDA

/* Dynamic shared memory of a block. */
#define FG_SHARED_BYTES(name) extern __shared__ __align__(128) unsigned char name[]

/* The device has launches that begin early: sm_90 and newer. */
extern bool fg_gpu_early;

/* Starts a kernel. `early`: it may begin while the kernel before it ends, and calls fg_gpu_wait before it reads what
 * that one wrote (and every kernel of such a chain does). All kernels want all shared memory there is, since a
 * multiprocessor must be empty before it is cut otherwise. */
#define FG_LAUNCH(kernel, grid, block, shared_bytes, queue, early, ...)                            \
    do {                                                                                           \
        cudaLaunchConfig_t config_ = {};                                                           \
        cudaLaunchAttribute attributes_[2] = {};                                                   \
        config_.gridDim = (grid);                                                                  \
        config_.blockDim = (block);                                                                \
        config_.dynamicSmemBytes = (shared_bytes);                                                 \
        config_.stream = (queue);                                                                  \
        attributes_[0].id = cudaLaunchAttributePreferredSharedMemoryCarveout;                      \
        attributes_[0].val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;                     \
        attributes_[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;                    \
        attributes_[1].val.programmaticStreamSerializationAllowed = 1;                             \
        config_.attrs = attributes_;                                                               \
        config_.numAttrs = (early) && fg_gpu_early ? 2 : 1;                                        \
        fg_gpu_check(cudaLaunchKernelEx(&config_, kernel, __VA_ARGS__), #kernel);                  \
    } while (0)

static __device__ __forceinline__ void fg_gpu_wait(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* The kernel after this one may begin, as far as it goes without what this one writes. */
static __device__ __forceinline__ void fg_gpu_let_next(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* sums += a b: 16 x 16 by 16 x 8 numbers of bf16 over a warp. Lane 4g + t holds of a: rows g, g + 8, g, g + 8 at columns
 * 2t, 2t, 2t + 8, 2t + 8, and the next one in the upper half; of b: rows 2t, 2t + 8 of column g, likewise; of the
 * sums: rows g, g, g + 8, g + 8 at columns 2t, 2t + 1, 2t, 2t + 1. */
static __device__ __forceinline__ void fg_mma(float sums[4], const uint32_t a[4], uint32_t b0,
                                              uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Four 8 x 8 matrices of 16-bit numbers from shared memory: lane 8i + j names row j (16 bytes) of matrix i; lane
 * 4g + t gets columns 2t and 2t + 1 of row g of each. */
static __device__ __forceinline__ void fg_load_matrices(uint32_t out[4], const void *shared)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(at)
                 : "memory");
}

/* The same, but that lane 4g + t gets rows 2t and 2t + 1 of column g. */
static __device__ __forceinline__ void fg_load_matrices_turned(uint32_t out[4], const void *shared)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(at)
                 : "memory");
}

/* 16 bytes into shared memory, or zeros; in the thread's current group of copies. */
static __device__ __forceinline__ void fg_copy16(void *shared, const void *global, bool real)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(shared);
    int bytes = real ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(global), "r"(bytes)
                 : "memory");
}

/* 16 bytes that are read once. */
static __device__ __forceinline__ void fg_copy16_once(void *shared, const void *global)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(at), "l"(global)
                 : "memory");
}

static __device__ __forceinline__ void fg_copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Until at most `left` of this thread's groups are under way. */
template <int left> static __device__ __forceinline__ void fg_copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

/* 16 bytes that are read once. */
static __device__ __forceinline__ uint4 fg_load16_once(const void *global)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(global));
    return v;
}

/* 8 and 4 bytes that are read once. */
static __device__ __forceinline__ uint2 fg_load8_once(const void *global)
{
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v2.u32 {%0,%1}, [%2];"
                 : "=r"(v.x), "=r"(v.y)
                 : "l"(global));
    return v;
}

static __device__ __forceinline__ uint32_t fg_load4_once(const void *global)
{
    uint32_t v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.u32 %0, [%1];" : "=r"(v) : "l"(global));
    return v;
}

/* The half in the lower 16 bits, exactly. */
static __device__ __forceinline__ float fg_half_to_float(uint32_t bits)
{
    float value;
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low;}"
        : "=f"(value)
        : "r"(bits));
    return value;
}

/* 2^x: of a NaN NaN, of -inf 0. */
static __device__ __forceinline__ float fg_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* 1 / x, a bit or so off: of inf 0. */
static __device__ __forceinline__ float fg_reciprocal(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Two numbers as bf16, half to even. */
static __device__ __forceinline__ uint32_t fg_bf16_pair(float low, float high)
{
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

/* a b + c of two bf16 each, rounded once, half to even. */
static __device__ __forceinline__ uint32_t fg_bf16_fma2(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t out;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
    return out;
}

/* A number, addresses in global and in shared memory that the compiler is to keep rather than compute again. */
static __device__ __forceinline__ uint32_t fg_keep(uint32_t value)
{
    asm volatile("" : "+r"(value));
    return value;
}

template <typename T> static __device__ __forceinline__ T *fg_keep_global(T *at)
{
    asm volatile("" : "+l"(at));
    __builtin_assume(__isGlobal(at));
    return at;
}

template <typename T> static __device__ __forceinline__ T *fg_keep_shared(T *at)
{
    asm volatile("" : "+l"(at));
    __builtin_assume(__isShared(at));
    return at;
}

/* (word & mask) | bits as one instruction: of two constants the compiler makes two. */
static __device__ __forceinline__ uint32_t fg_pick_bits(uint32_t word, uint32_t mask, uint32_t bits)
{
    uint32_t out;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(out) : "r"(word), "r"(mask), "r"(bits));
    return out;
}

#endif
#endif
