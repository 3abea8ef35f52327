/*
 * emulated - the part of CUDA that the kernels here use, on the CPU: with FG_GPU_EMULATED a C++ compiler builds the
 * .cu files and tests run them where there is no GPU. Included by gpu.h alone. Any thread may call; one lock admits
 * one kernel or copy at a time.
 *
 * Kernels run within the call that launches them (emulated_block.h); in a capturing stream they are only recorded
 * (emulated_host.h). Words and types are in emulated_types.h.
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
 * unset. FORGE_EMULATED_OPEN=1: device memory is in the host's reach at any time, for tests of whoever is to read and
 * write it there beside the kernels.
 */
#ifndef FORGE_TESTS_GPU_EMULATED_H
#define FORGE_TESTS_GPU_EMULATED_H

#ifdef __cplusplus

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <atomic>
#include <mutex>
#include <tuple>
#include <type_traits>

#include "tests/gpu/emulated_block.h"
#include "tests/gpu/emulated_host.h"
#include "tests/gpu/emulated_types.h"

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
    if (error == cudaSuccess && stream != nullptr && stream->device != fg_emu_device) {
        error = cudaErrorInvalidResourceHandle; /* as CUDA: the thread's device is another one */
    }
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

#define FG_GPU_REACH          (fg_emu_is_open() ? FG_REACH_HOST : FG_REACH_CUDA)

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

static inline void fg_emu_load_matrices(uint32_t out[4], const void *shared, bool turned)
{
    fg_emu_matrices_args args = { out, shared, turned };
    if (!fg_emu_is_shared(shared)) {
        fg_emu_abort("fg_load_matrices: a row is not in shared memory or not at 16 bytes");
    }
    fg_emu_fiber *self = fg_emu.now;
    self->warp->args[self->lane] = &args;
    fg_emu_warp_wait(self, FG_EMU_MATRICES, 0xFFFFFFFFU);
}

static inline void fg_load_matrices(uint32_t out[4], const void *shared)
{
    fg_emu_load_matrices(out, shared, false);
}

static inline void fg_load_matrices_turned(uint32_t out[4], const void *shared)
{
    fg_emu_load_matrices(out, shared, true);
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

static inline void fg_copy16_once(void *shared, const void *global)
{
    fg_copy16(shared, global, true);
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

static inline uint2 fg_load8_once(const void *global)
{
    if (((uintptr_t)global & 7) != 0) {
        fg_emu_abort("fg_load8_once: the source is not at 8 bytes");
    }
    uint2 v;
    __builtin_memcpy(&v, global, sizeof(v));
    return v;
}

static inline uint32_t fg_load4_once(const void *global)
{
    if (((uintptr_t)global & 3) != 0) {
        fg_emu_abort("fg_load4_once: the source is not at 4 bytes");
    }
    uint32_t v;
    __builtin_memcpy(&v, global, sizeof(v));
    return v;
}

static inline float fg_half_to_float(uint32_t bits)
{
    uint32_t sign = (bits & 0x8000U) << 16, exponent = bits >> 10 & 31, mantissa = bits & 0x3FF;
    if (exponent == 0) {
        return fg_emu_float(fg_emu_bits((float)mantissa * 0x1p-24F) | sign);
    }
    return fg_emu_float(sign | (exponent == 31 ? 0x7F800000U : (exponent + 112) << 23) |
                        mantissa << 13);
}

static inline float fg_exp2(float x)
{
    float y = exp2f(x);
    return y < 0x1p-126F ? 0.0F : y;
}

static inline float fg_reciprocal(float x)
{
    float y = 1.0F / x;
    return fabsf(y) < 0x1p-126F ? copysignf(0.0F, y) : y;
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

/* a b + c, whose product is exact: rounded to odd on the way, so that the last rounding is that of the exact sum. */
static inline uint32_t fg_emu_bf16_fma(uint32_t a, uint32_t b, uint32_t c)
{
    double product = (double)fg_emu_float(a << 16) * (double)fg_emu_float(b << 16);
    double addend = (double)fg_emu_float(c << 16);
    double sum = product + addend, other = sum - product;
    double rest = (product - (sum - other)) + (addend - other);
    uint64_t bits;
    __builtin_memcpy(&bits, &sum, sizeof(bits));
    if ((rest < 0.0 || rest > 0.0) && (bits & 1) == 0) {
        bits += (rest > 0.0) == (sum > 0.0) ? 1 : UINT64_MAX;
        __builtin_memcpy(&sum, &bits, sizeof(sum));
    }
    float out = (float)sum;
    uint32_t word = fg_emu_bits(out);
    if ((double)out != sum && (word & 1) == 0 && sum == sum) {
        out = fg_emu_float(fabs((double)out) > fabs(sum) ? word - 1 : word + 1);
    }
    return fg_emu_bf16(out);
}

static inline uint32_t fg_bf16_fma2(uint32_t a, uint32_t b, uint32_t c)
{
    return fg_emu_bf16_fma(a >> 16, b >> 16, c >> 16) << 16 |
           fg_emu_bf16_fma(a & 0xFFFF, b & 0xFFFF, c & 0xFFFF);
}

static inline uint32_t fg_keep(uint32_t value)
{
    return value;
}

template <typename T> static inline T *fg_keep_global(T *at)
{
    return at;
}

template <typename T> static inline T *fg_keep_shared(T *at)
{
    return at;
}

static inline uint32_t fg_pick_bits(uint32_t word, uint32_t mask, uint32_t bits)
{
    return (word & mask) | bits;
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

static inline uint64_t __umul64hi(uint64_t a, uint64_t b)
{
    return (uint64_t)((unsigned __int128)a * b >> 64);
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
#endif
