/*
 * emulated_block - runs a kernel's blocks, one after the other, under the lock of emulated_host.h. Each thread of a
 * block is a fiber with a stack of its own, all on the calling thread: it runs until it waits at a barrier or for
 * other lanes of its warp, then the next one does.
 *
 *   runnable -> waits for the block (__syncthreads) -> runnable: fg_emu_block_release
 *   runnable -> waits for its warp (shuffles, votes, products, __syncwarp) -> runnable: fg_emu_warp_release
 *   runnable -> ended: fg_emu_end; who waits does not wait for it, as on the hardware
 *
 * The lane that comes last does what all lanes of its warp came for.
 */
#ifndef FORGE_TESTS_GPU_EMULATED_BLOCK_H
#define FORGE_TESTS_GPU_EMULATED_BLOCK_H

#ifdef __cplusplus

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <vector>

#include "tests/gpu/emulated_types.h"

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
    bool turned;
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
        uint16_t numbers[8][8];
        for (uint32_t row = 0; row < 8; row++) {
            memcpy(numbers[row], ((const fg_emu_matrices_args *)warp->args[i * 8 + row])->shared,
                   sizeof numbers[row]);
        }
        for (uint32_t lane = 0; lane < 32; lane++) {
            const fg_emu_matrices_args *args = (const fg_emu_matrices_args *)warp->args[lane];
            uint32_t g = lane / 4, first = lane % 4 * 2, second = first + 1;
            args->out[i] = args->turned ? numbers[first][g] | (uint32_t)numbers[second][g] << 16
                                        : numbers[g][first] | (uint32_t)numbers[g][second] << 16;
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

#endif
#endif
