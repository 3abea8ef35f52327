#include "kernels/cpu/isa.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

/* Bits of one word of facts, all of them needed. */
typedef struct need {
    fg_cpu_word word;
    uint64_t bits;
    const char *name;
} need;

enum { NEEDS_MAX = 16 };

typedef struct level {
    const fg_cpu_kernels *kernels;
    need needs[NEEDS_MAX]; /* to the first without a name */
} level;

#if defined(__x86_64__)
enum { OSXSAVE = 1u << 27, YMM_STATE = 0x06, ZMM_STATE = 0xE6, TILE_STATE = 0x60000 };
/* Leaf 7, edx. */
enum { AMX_BF16 = 1u << 22, AMX_TILE = 1u << 24, AMX_INT8 = 1u << 25 };

static uint64_t register_state(void)
{
    uint32_t low;
    uint32_t high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

/* Linux keeps a process's signal frames small until it asks for tiles; from then on all its threads have them. */
static bool ask_for_tiles(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}
#endif

#if defined(__x86_64__)
/* What the tables with registers of 256 bits need. */
#define AVX2_NEEDS                                                                                 \
    { FG_CPU_LEAF7_EBX, 1u << 5, "AVX2" }, { FG_CPU_LEAF1_ECX, 1u << 12, "FMA" },                  \
        { FG_CPU_LEAF1_ECX, 1u << 29, "F16C" },                                                    \
    {                                                                                              \
        FG_CPU_XCR0, YMM_STATE, "256-bit registers switched on by the operating system"            \
    }
/* What all tables with AVX-512 need. */
#define AVX512_NEEDS                                                                               \
    { FG_CPU_LEAF7_EBX, 1u << 5, "AVX2" }, { FG_CPU_LEAF1_ECX, 1u << 12, "FMA" },                  \
        { FG_CPU_LEAF1_ECX, 1u << 29, "F16C" }, { FG_CPU_LEAF7_EBX, 1u << 16, "AVX512F" },         \
        { FG_CPU_LEAF7_EBX, 1u << 17, "AVX512DQ" }, { FG_CPU_LEAF7_EBX, 1u << 30, "AVX512BW" },    \
        { FG_CPU_LEAF7_EBX, 1u << 31, "AVX512VL" }, { FG_CPU_LEAF7_ECX, 1u << 11, "AVX512_VNNI" }, \
    {                                                                                              \
        FG_CPU_XCR0, ZMM_STATE, "512-bit registers switched on by the operating system"            \
    }
#endif

/* The best first. */
static const level levels[] = {
#if defined(__x86_64__)
    { &fg_cpu_amx,
      { AVX512_NEEDS,
        { FG_CPU_LEAF7_1_EAX, 1u << 5, "AVX512_BF16" },
        { FG_CPU_LEAF7_ECX, 1u << 1, "AVX512_VBMI" },
        { FG_CPU_LEAF7_EDX, AMX_TILE, "AMX_TILE" },
        { FG_CPU_LEAF7_EDX, AMX_INT8, "AMX_INT8" },
        { FG_CPU_LEAF7_EDX, AMX_BF16, "AMX_BF16" },
        { FG_CPU_XCR0, TILE_STATE, "tiles switched on by the operating system" },
        { FG_CPU_GRANTED, 1, "the kernel's leave to use tiles (Linux 5.16)" } } },
    { &fg_cpu_avx512_bf16,
      { AVX512_NEEDS,
        { FG_CPU_LEAF7_1_EAX, 1u << 5, "AVX512_BF16" },
        { FG_CPU_LEAF7_ECX, 1u << 1, "AVX512_VBMI" } } },
    { &fg_cpu_avx512, { AVX512_NEEDS } },
    { &fg_cpu_avx_vnni, { AVX2_NEEDS, { FG_CPU_LEAF7_1_EAX, 1u << 4, "AVX_VNNI" } } },
    { &fg_cpu_avx2, { AVX2_NEEDS } },
#elif defined(__aarch64__)
    { &fg_cpu_neon, { { FG_CPU_HWCAP, HWCAP_ASIMDDP, "NEON's dot products (asimddp)" } } },
#endif
    { &fg_cpu_plain, { { FG_CPU_LEAF1_ECX, 0, NULL } } },
};
enum { LEVEL_COUNT = sizeof levels / sizeof levels[0] };

fg_cpu_facts fg_cpu_facts_read(void)
{
    fg_cpu_facts facts = { { 0 } };
#if defined(__x86_64__)
    unsigned eax;
    unsigned ebx;
    unsigned ecx;
    unsigned edx;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0) {
        facts.words[FG_CPU_LEAF1_ECX] = ecx;
        facts.words[FG_CPU_XCR0] = (ecx & OSXSAVE) != 0 ? register_state() : 0;
    }
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0) {
        facts.words[FG_CPU_LEAF7_EBX] = ebx;
        facts.words[FG_CPU_LEAF7_ECX] = ecx;
        facts.words[FG_CPU_LEAF7_EDX] = edx;
        bool has_tiles =
            (edx & AMX_TILE) != 0 && (facts.words[FG_CPU_XCR0] & TILE_STATE) == TILE_STATE;
        facts.words[FG_CPU_GRANTED] = has_tiles && ask_for_tiles();
        uint32_t subleaf_max = eax;
        if (subleaf_max >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0) {
            facts.words[FG_CPU_LEAF7_1_EAX] = eax;
        }
    }
#elif defined(__aarch64__)
    facts.words[FG_CPU_HWCAP] = getauxval(AT_HWCAP);
#endif
    return facts;
}

/* Writes the names of what is missing; true when nothing is. */
static bool can_run(const level *l, const fg_cpu_facts *facts, char *missing, size_t size)
{
    size_t length = 0;
    missing[0] = '\0';
    for (const need *n = l->needs; n < l->needs + NEEDS_MAX && n->name != NULL; n++) {
        if ((facts->words[n->word] & n->bits) != n->bits && length < size) {
            int written =
                snprintf(missing + length, size - length, "%s%s", length == 0 ? "" : ", ", n->name);
            length += written > 0 ? (size_t)written : 0;
        }
    }
    return length == 0;
}

fg_status fg_cpu_find_kernels(const char *isa, const fg_cpu_facts *facts,
                              const fg_cpu_kernels **kernels_out, fg_error *err)
{
    char missing[300];
    bool automatic = strcmp(isa, "auto") == 0;
    for (size_t i = 0; i < LEVEL_COUNT; i++) {
        const char *name = levels[i].kernels->name;
        if (!automatic && strcmp(isa, name) != 0) {
            continue;
        }
        if (can_run(&levels[i], facts, missing, sizeof missing)) {
            *kernels_out = levels[i].kernels;
            return FG_OK;
        }
        if (!automatic) {
            return fg_fail(err, FG_BAD_INPUT,
                           "cpu-isa \"%s\" cannot run here: this processor lacks %s; use auto", isa,
                           missing);
        }
    }
    static const char *const known[] = {
        "avx2", "avx_vnni", "avx512", "avx512_bf16", "amx", "neon"
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(isa, known[i]) == 0) {
            return fg_fail(
                err, FG_BAD_INPUT,
                "cpu-isa \"%s\" is for another kind of processor than this one; use auto", isa);
        }
    }
    return fg_fail(err, FG_BAD_INPUT,
                   "unknown cpu-isa \"%s\" (known: auto, plain, avx2, avx_vnni, avx512, "
                   "avx512_bf16, amx, neon)",
                   isa);
}

fg_cpu_maker fg_cpu_maker_of(const char vendor[12], uint32_t family)
{
    enum { ZEN_5_FAMILY = 26 };
    if (memcmp(vendor, "GenuineIntel", 12) == 0) {
        return FG_CPU_MAKER_INTEL;
    }
    if (memcmp(vendor, "AuthenticAMD", 12) == 0) {
        return family >= ZEN_5_FAMILY ? FG_CPU_MAKER_ZEN_5 : FG_CPU_MAKER_AMD;
    }
    return FG_CPU_MAKER_OTHER;
}

#if defined(__x86_64__)
static fg_cpu_maker read_maker(void)
{
    char vendor[12] = "";
    uint32_t family = 0;
    unsigned eax;
    unsigned ebx;
    unsigned ecx;
    unsigned edx;
    if (__get_cpuid(0, &eax, &ebx, &ecx, &edx) != 0) {
        memcpy(vendor, &ebx, 4);
        memcpy(vendor + 4, &edx, 4);
        memcpy(vendor + 8, &ecx, 4);
    }
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0) {
        family = (eax >> 8 & 15) + (eax >> 20 & 255); /* AMD's: the first part is 15 */
    }
    return fg_cpu_maker_of(vendor, family);
}
#else
static fg_cpu_maker read_maker(void)
{
    return FG_CPU_MAKER_OTHER;
}
#endif

/* Kept, because a virtual machine answers cpuid by leaving the guest: 16 us on one. */
fg_cpu_maker fg_cpu_maker_here(void)
{
    static atomic_int known;
    int maker = atomic_load_explicit(&known, memory_order_relaxed);
    if (maker == 0) {
        maker = (int)read_maker();
        atomic_store_explicit(&known, maker, memory_order_relaxed);
    }
    return (fg_cpu_maker)maker;
}

const char *fg_cpu_kernels_name(size_t index)
{
    return index < LEVEL_COUNT ? levels[index].kernels->name : NULL;
}
