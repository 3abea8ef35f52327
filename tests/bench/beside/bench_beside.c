/*
 * bench_beside: what an instruction of 512 bits costs in a loop that multiplies as fast as it can, for whoever writes a
 * kernel. Some run where products do not, others take the place of one. Eight chains of products run, with one other
 * instruction for every eight of them or three; a cost of 1 is the time of one product. Nothing waits for the results of
 * the others, so their latency does not show. The best of many short runs counts.
 */
#include <stdio.h>

#if defined(__x86_64__)
#include <stdbool.h>
#include <stdint.h>

#include "common/base/clock.h"

enum { TURNS = 400, TURN_PRODUCTS = 64, RUNS = 200 };

/* What was in there could be denormal, and slow. */
#define CLEAR(at)                   "vpxord %%zmm" at ", %%zmm" at ", %%zmm" at "\n"
#define PRODUCT(op, to)             op " %%zmm31, %%zmm30, %%zmm" #to "\n"
#define THREE_PRODUCTS(op, a, b, c) PRODUCT(op, a) PRODUCT(op, b) PRODUCT(op, c)

/* Beside eight products one instruction, or three. */
#define EIGHT_WITH_1(op, other)                                                                    \
    THREE_PRODUCTS(op, 0, 1, 2)                                                                    \
    THREE_PRODUCTS(op, 3, 4, 5) PRODUCT(op, 6) PRODUCT(op, 7) other("16")
#define EIGHT_WITH_3(op, other)                                                                    \
    THREE_PRODUCTS(op, 0, 1, 2)                                                                    \
    other("16") THREE_PRODUCTS(op, 3, 4, 5) other("17") PRODUCT(op, 6) PRODUCT(op, 7) other("18")

#define TO(to, text)  text " %%zmm29, %%zmm28, %%zmm" to "\n"
#define NONE(to)      ""
#define FMA(to)       TO(to, "vfmadd231ps")
#define MULTIPLY(to)  TO(to, "vmulps")
#define ADD(to)       TO(to, "vaddps")
#define SCALE(to)     TO(to, "vscalefps")
#define MUL_INT(to)   TO(to, "vpmulld")
#define MUL_SHORT(to) TO(to, "vpmullw")
#define MUL_HIGH(to)  TO(to, "vpmulhrsw")
#define MUL_PAIRS(to) TO(to, "vpmaddwd")
#define DOT_PAIRS(to) TO(to, "vpdpwssd")
#define FROM_HALF(to) "vcvtph2ps %%ymm28, %%zmm" to "\n"
#define MAXIMUM(to)   TO(to, "vmaxps")
#define ADD_WORDS(to) TO(to, "vpaddw")
#define ADD_SHORT(to) TO(to, "vpaddusw")
#define AND(to)       TO(to, "vpandd")
#define ANY_OF_3(to)  TO(to, "vpternlogd $0xE4,")
#define SHIFT(to)     "vpsrlw $4, %%zmm28, %%zmm" to "\n"
#define SHIFT_BY(to)  TO(to, "vpsllvd")
#define SHIFT_ALL(to) "vpslld %%xmm29, %%zmm28, %%zmm" to "\n"
#define ROTATE(to)    "vprold $16, %%zmm28, %%zmm" to "\n"
#define SHUFFLE(to)   TO(to, "vpshufb")
#define PERMUTE(to)   TO(to, "vpermb")
#define PERMUTE_2(to) TO(to, "vpermt2b")
#define UNPACK(to)    TO(to, "vpunpcklbw")
#define COMPARE(to)   "vpcmpuw $5, %%zmm29, %%zmm28, %%k1\n"
#define COMPARE_F(to) "vcmpps $5, %%zmm29, %%zmm28, %%k1\n"
#define MASKED(to)    "vmovdqu16 %%zmm28, %%zmm" to "%{%%k2%}%{z%}\n"
#define TO_INT(to)    "vcvtps2dq %%zmm28, %%zmm" to "\n"
#define TO_FLOAT(to)  "vcvtdq2ps %%zmm28, %%zmm" to "\n"
#define TO_BF16(to)   "vcvtneps2bf16 %%zmm28, %%ymm" to "\n"
#define LOAD(to)      "vmovups (%1), %%zmm" to "\n"
#define SPREAD(to)    "vpbroadcastd (%1), %%zmm" to "\n"
#define STORE(to)     "vmovups %%zmm28, 64(%1)\n"
#define HALVES(to)    "vextracti64x4 $0, %%zmm28, 64(%1)\nvextracti64x4 $1, %%zmm28, 96(%1)\n"

/* X(function, what it is) of every other instruction. */
#define EACH_OTHER(X)                                                                              \
    X(NONE, "nothing")                                                                             \
    X(FMA, "vfmadd231ps")                                                                          \
    X(MULTIPLY, "vmulps")                                                                          \
    X(SCALE, "vscalefps")                                                                          \
    X(MUL_INT, "vpmulld")                                                                          \
    X(MUL_SHORT, "vpmullw")                                                                        \
    X(MUL_HIGH, "vpmulhrsw")                                                                       \
    X(MUL_PAIRS, "vpmaddwd")                                                                       \
    X(DOT_PAIRS, "vpdpwssd")                                                                       \
    X(FROM_HALF, "vcvtph2ps")                                                                      \
    X(ADD, "vaddps")                                                                               \
    X(MAXIMUM, "vmaxps")                                                                           \
    X(ADD_WORDS, "vpaddw")                                                                         \
    X(ADD_SHORT, "vpaddusw (saturates)")                                                           \
    X(AND, "vpandd")                                                                               \
    X(ANY_OF_3, "vpternlogd")                                                                      \
    X(SHIFT, "vpsrlw")                                                                             \
    X(SHIFT_BY, "vpsllvd")                                                                         \
    X(SHIFT_ALL, "vpslld, by a register")                                                          \
    X(ROTATE, "vprold")                                                                            \
    X(SHUFFLE, "vpshufb")                                                                          \
    X(PERMUTE, "vpermb")                                                                           \
    X(PERMUTE_2, "vpermt2b")                                                                       \
    X(UNPACK, "vpunpcklbw")                                                                        \
    X(COMPARE, "vpcmpuw, to a mask")                                                               \
    X(COMPARE_F, "vcmpps, to a mask")                                                              \
    X(MASKED, "vmovdqu16, with a mask")                                                            \
    X(TO_INT, "vcvtps2dq")                                                                         \
    X(TO_FLOAT, "vcvtdq2ps")                                                                       \
    X(TO_BF16, "vcvtneps2bf16")                                                                    \
    X(LOAD, "vmovups, load")                                                                       \
    X(SPREAD, "vpbroadcastd, load")                                                                \
    X(STORE, "vmovups, store of what was long there")                                              \
    X(HALVES, "the same as two vextracti64x4")

typedef void run_fn(uint64_t turns, void *memory);

#define DEFINE(name, text, eight, other)                                                           \
    static void name(uint64_t turns, void *memory)                                                 \
    {                                                                                              \
        __asm__ volatile(                                                                          \
            CLEAR("28") CLEAR("29") CLEAR("30")                                                    \
                CLEAR("31") "mov $0x55555555, %%eax\nkmovd %%eax, %%k2\n1:\n.rept 8\n" eight(      \
                    text, other) ".endr\ndec %0\njnz 1b"                                           \
            : "+r"(turns)                                                                          \
            : "r"(memory)                                                                          \
            : "eax", "cc", "memory", "k1", "k2", "zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5",   \
              "zmm6", "zmm7", "zmm16", "zmm17", "zmm18", "zmm28", "zmm29", "zmm30", "zmm31");      \
    }
#define DEFINE_BF16(other, what)                                                                   \
    DEFINE(bf16_1_##other, "vdpbf16ps", EIGHT_WITH_1, other)                                       \
    DEFINE(bf16_3_##other, "vdpbf16ps", EIGHT_WITH_3, other)
#define DEFINE_INT8(other, what)                                                                   \
    DEFINE(int8_1_##other, "vpdpbusd", EIGHT_WITH_1, other)                                        \
    DEFINE(int8_3_##other, "vpdpbusd", EIGHT_WITH_3, other)
#pragma GCC push_options
#pragma GCC target("avx512f")
EACH_OTHER(DEFINE_BF16)
EACH_OTHER(DEFINE_INT8)
#pragma GCC pop_options

typedef struct other {
    const char *name;
    run_fn *runs[4]; /* beside bf16: one for eight products, three; beside int8 */
} other;

#define ENTRY(other, what)                                                                         \
    { what, { bf16_1_##other, bf16_3_##other, int8_1_##other, int8_3_##other } },
static const other others[] = { EACH_OTHER(ENTRY) };
enum { OTHERS = sizeof others / sizeof others[0], PRODUCTS = 2, RATES = 2 };

static double best_ns(run_fn *run, void *memory)
{
    fg_clock clock = fg_clock_real();
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < RUNS; i++) {
        uint64_t began = fg_clock_now_ns(&clock);
        run(TURNS, memory);
        uint64_t took = fg_clock_now_ns(&clock) - began;
        best = took < best ? took : best;
    }
    return (double)best / TURNS;
}

int main(void)
{
    static _Alignas(64) uint8_t memory[256];
    bool has[PRODUCTS] = {
        __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi"),
        __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi")
    };
    if (!has[0] && !has[1]) {
        printf("this processor multiplies neither bf16 nor bytes with AVX-512\n");
        return 0;
    }
    printf("| beside | vdpbf16ps, 1 for 8 | 3 for 8 | vpdpbusd, 1 for 8 | 3 for 8 |\n"
           "| --- | --: | --: | --: | --: |\n");
    for (size_t i = 1; i < OTHERS; i++) {
        printf("| %s |", others[i].name);
        for (int column = 0; column < PRODUCTS * RATES; column++) {
            if (!has[column / RATES]) {
                printf(" |");
                continue;
            }
            double alone = best_ns(others[0].runs[column], memory);
            double with = best_ns(others[i].runs[column], memory);
            double count = TURN_PRODUCTS / 8 * (column % RATES == 0 ? 1 : 3);
            printf(" %.2f |", (with - alone) / (alone / TURN_PRODUCTS) / count);
        }
        printf("\n");
    }
    return 0;
}

#else

int main(void)
{
    printf("only x86-64 is measured here\n");
    return 0;
}

#endif
