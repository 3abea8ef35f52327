/*
 * isa - which instruction set's kernels a device uses: what this processor and its operating system
 * offer, and what each table of kernels needs. Facts are data, so that tests can make machines up.
 */
#ifndef FORGE_KERNELS_CPU_ISA_H
#define FORGE_KERNELS_CPU_ISA_H

#include "kernels/cpu/cpu.h"

typedef enum fg_cpu_word {
    FG_CPU_LEAF1_ECX, /* x86: cpuid */
    FG_CPU_LEAF7_EBX,
    FG_CPU_LEAF7_ECX,
    FG_CPU_LEAF7_EDX,
    FG_CPU_LEAF7_1_EAX, /* of its subleaf 1 */
    FG_CPU_XCR0,        /* x86: the registers that the operating system keeps for a thread */
    FG_CPU_GRANTED,     /* x86: 1 when the kernel lets this process use AMX tiles */
    FG_CPU_HWCAP,       /* ARM64: what the kernel says */
    FG_CPU_WORDS
} fg_cpu_word;

typedef struct fg_cpu_facts {
    uint64_t words[FG_CPU_WORDS];
} fg_cpu_facts;

/* Asks the kernel for AMX tiles, where there are such. */
fg_cpu_facts fg_cpu_facts_read(void);

/* The table called `isa`, or the best one that the facts allow for "auto". FG_BAD_INPUT with what is
 * missing when it cannot run here, or with the known names. */
fg_status fg_cpu_find_kernels(const char *isa, const fg_cpu_facts *facts,
                              const fg_cpu_kernels **kernels_out, fg_error *err);

/* x86: how processors with the same instructions differ. Only what is asked for and how large tiles are may depend on it. */
typedef enum fg_cpu_maker {
    FG_CPU_MAKER_INTEL = 1,
    FG_CPU_MAKER_AMD,   /* to Zen 4: a product of 512 bits begins in a cycle, */
    FG_CPU_MAKER_ZEN_5, /* from family 26 on two do */
    FG_CPU_MAKER_OTHER
} fg_cpu_maker;

fg_cpu_maker fg_cpu_maker_of(const char vendor[12], uint32_t family);
fg_cpu_maker fg_cpu_maker_here(void);

/* The tables of this build, the best first; NULL beyond the last. */
const char *fg_cpu_kernels_name(size_t index);

#endif
