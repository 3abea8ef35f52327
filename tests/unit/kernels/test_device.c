#include <string.h>

#include "common/base/fault.h"
#include "kernels/cpu/isa.h"
#include "kernels/device.h"
#include "tests/support/test.h"

Test(device, refuses_what_it_does_not_know)
{
    static const struct {
        const char *name;
        fg_device_options options;
        const char *want; /* part of the message */
    } cases[] = {
        { "kind", { .kind = "abacus", .isa = "auto", .thread_count = 1 }, "abacus" },
        { "isa", { .kind = "cpu", .isa = "mmx", .thread_count = 1 }, "mmx" },
        { "empty isa", { .kind = "cpu", .isa = "", .thread_count = 1 }, "unknown cpu-isa" },
        { "no threads", { .kind = "cpu", .isa = "auto", .thread_count = 0 }, "threads" },
        { "many threads", { .kind = "cpu", .isa = "auto", .thread_count = 100000 }, "threads" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fg_device *device = NULL;
        fg_error err = { 0 };
        cr_assert_eq(fg_device_open(&cases[i].options, &device, &err), FG_BAD_INPUT, "%s",
                     cases[i].name);
        cr_assert_not_null(strstr(err.text, cases[i].want), "%s: %s", cases[i].name, err.text);
        cr_assert_null(device);
    }
}

#if defined(__x86_64__)
/* What the x86 levels read, all present. */
#define LEAF1    (1u << 12 | 1u << 29)
#define AVX2     (1u << 5)
#define AVX512   (AVX2 | 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31)
#define VNNI     (1u << 11)
#define VBMI     (1u << 1)
#define BF16     (1u << 5)
#define AVX_VNNI (1u << 4)
#define YMM      0x07
#define ZMM      0xE7
#define AMX      (1u << 22 | 1u << 24 | 1u << 25)
#define TILES    (0x60000 | ZMM)

Test(device, the_instruction_set_follows_the_processor_and_the_system)
{
    static const struct {
        const char *name;
        fg_cpu_facts facts;
        const char *isa;
        const char *want; /* the table, or part of the message */
        bool refused;
    } cases[] = {
        { "nothing", { { 0 } }, "auto", "plain", false },
        { "nothing", { { 0 } }, "avx2", "AVX2, FMA, F16C, 256-bit", true },
        { "avx2", { { LEAF1, AVX2, 0, 0, 0, YMM } }, "auto", "avx2", false },
        { "avx2", { { LEAF1, AVX2, 0, 0, 0, YMM } }, "avx512", "AVX512F, AVX512DQ", true },
        { "avx2", { { LEAF1, AVX2, 0, 0, 0, YMM } }, "neon", "another kind of processor", true },
        { "avx2", { { LEAF1, AVX2, 0, 0, 0, YMM } }, "avx_vnni", "lacks AVX_VNNI;", true },
        { "avx-vnni", { { LEAF1, AVX2, 0, 0, AVX_VNNI, YMM } }, "auto", "avx_vnni", false },
        { "avx-vnni", { { LEAF1, AVX2, 0, 0, AVX_VNNI, YMM } }, "avx2", "avx2", false },
        { "avx-vnni, no ymm state",
          { { LEAF1, AVX2, 0, 0, AVX_VNNI, 0x03 } },
          "auto",
          "plain",
          false },
        { "avx-vnni, avx512",
          { { LEAF1, AVX512, VNNI, 0, AVX_VNNI, ZMM } },
          "auto",
          "avx512",
          false },
        { "avx-vnni, avx512 without vnni",
          { { LEAF1, AVX512, 0, 0, AVX_VNNI, ZMM } },
          "auto",
          "avx_vnni",
          false },
        { "no ymm state", { { LEAF1, AVX2, 0, 0, 0, 0x03 } }, "auto", "plain", false },
        { "no fma", { { 1u << 29, AVX2, 0, 0, 0, YMM } }, "avx2", "lacks FMA;", true },
        { "avx512", { { LEAF1, AVX512, VNNI, 0, 0, ZMM } }, "auto", "avx512", false },
        { "avx512", { { LEAF1, AVX512, VNNI, 0, 0, ZMM } }, "avx2", "avx2", false },
        { "bf16", { { LEAF1, AVX512, VNNI | VBMI, 0, BF16, ZMM } }, "auto", "avx512_bf16", false },
        { "bf16", { { LEAF1, AVX512, VNNI | VBMI, 0, BF16, ZMM } }, "avx512", "avx512", false },
        { "no vbmi", { { LEAF1, AVX512, VNNI, 0, BF16, ZMM } }, "auto", "avx512", false },
        { "no vbmi",
          { { LEAF1, AVX512, VNNI, 0, BF16, ZMM } },
          "avx512_bf16",
          "AVX512_VBMI;",
          true },
        { "no bf16",
          { { LEAF1, AVX512, VNNI | VBMI, 0, 0, ZMM } },
          "avx512_bf16",
          "AVX512_BF16;",
          true },
        { "no vnni", { { LEAF1, AVX512, 0, 0, 0, ZMM } }, "auto", "avx2", false },
        { "no vnni", { { LEAF1, AVX512, 0, 0, 0, ZMM } }, "avx512", "lacks AVX512_VNNI;", true },
        { "no zmm state", { { LEAF1, AVX512, VNNI, 0, 0, YMM } }, "auto", "avx2", false },
        { "no zmm state", { { LEAF1, AVX512, VNNI, 0, 0, YMM } }, "avx512", "lacks 512-bit", true },
        { "amx", { { LEAF1, AVX512, VNNI | VBMI, AMX, BF16, TILES, 1 } }, "auto", "amx", false },
        { "amx", { { LEAF1, AVX512, VNNI | VBMI, AMX, BF16, TILES, 1 } }, "avx2", "avx2", false },
        { "no int8",
          { { LEAF1, AVX512, VNNI | VBMI, 1u << 24, BF16, TILES, 1 } },
          "amx",
          "AMX_INT8, AMX_BF16;",
          true },
        { "no bf16 tiles",
          { { LEAF1, AVX512, VNNI | VBMI, 1u << 24 | 1u << 25, BF16, TILES, 1 } },
          "auto",
          "avx512_bf16",
          false },
        { "no tile state",
          { { LEAF1, AVX512, VNNI | VBMI, AMX, BF16, ZMM, 0 } },
          "amx",
          "lacks tiles",
          true },
        { "no leave",
          { { LEAF1, AVX512, VNNI | VBMI, AMX, BF16, TILES, 0 } },
          "auto",
          "avx512_bf16",
          false },
        { "no leave",
          { { LEAF1, AVX512, VNNI | VBMI, AMX, BF16, TILES, 0 } },
          "amx",
          "lacks the kernel's leave",
          true },
        { "half of it",
          { { LEAF1, AVX2 | 1u << 16, VNNI, 0, 0, ZMM } },
          "avx512",
          "AVX512DQ,",
          true },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const fg_cpu_kernels *kernels = NULL;
        fg_error err = { 0 };
        fg_status status = fg_cpu_find_kernels(cases[i].isa, &cases[i].facts, &kernels, &err);
        cr_assert_eq(status, cases[i].refused ? FG_BAD_INPUT : FG_OK, "%s: %s", cases[i].name,
                     cases[i].isa);
        const char *got = cases[i].refused ? err.text : kernels->name;
        bool right =
            cases[i].refused ? strstr(got, cases[i].want) != NULL : strcmp(got, cases[i].want) == 0;
        cr_assert(right, "%s, %s: %s", cases[i].name, cases[i].isa, got);
    }
}
#endif

Test(device, processors_are_told_apart_by_maker_and_family)
{
    static const struct {
        const char *vendor;
        uint32_t family;
        fg_cpu_maker want;
    } cases[] = {
        { "GenuineIntel", 6, FG_CPU_MAKER_INTEL },  { "GenuineIntel", 26, FG_CPU_MAKER_INTEL },
        { "AuthenticAMD", 23, FG_CPU_MAKER_AMD },   { "AuthenticAMD", 25, FG_CPU_MAKER_AMD },
        { "AuthenticAMD", 26, FG_CPU_MAKER_ZEN_5 }, { "AuthenticAMD", 27, FG_CPU_MAKER_ZEN_5 },
        { "HygonGenuine", 26, FG_CPU_MAKER_OTHER }, { "            ", 0, FG_CPU_MAKER_OTHER },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cr_assert_eq(fg_cpu_maker_of(cases[i].vendor, cases[i].family), cases[i].want, "%s %u",
                     cases[i].vendor, cases[i].family);
    }
    cr_assert_eq(fg_cpu_maker_here(), fg_cpu_maker_here());
}

Test(device, plain_can_always_be_forced)
{
    fg_device_options options = { .kind = "cpu", .isa = "plain", .thread_count = 2 };
    fg_device *device;
    cr_assert_eq(fg_device_open(&options, &device, NULL), FG_OK);
    cr_assert_str_eq(fg_device_isa(device), "plain");
    cr_assert_eq(fg_device_thread_count(device), 2);
    fg_device_close(device);
}

Test(device, memory_is_zeroed_aligned_and_copied_in_order)
{
    fg_device_options options = { .kind = "cpu", .isa = "auto", .thread_count = 1 };
    fg_device *device;
    fg_device_stream *stream;
    cr_assert_eq(fg_device_open(&options, &device, NULL), FG_OK);
    cr_assert_eq(fg_device_stream_open(device, &stream, NULL), FG_OK);
    char *memory = fg_device_alloc(device, FG_MEMORY_DEVICE, 1000);
    cr_assert_not_null(memory);
    cr_assert_eq((uintptr_t)memory % 64, 0);
    for (int i = 0; i < 1000; i++) {
        cr_assert_eq(memory[i], 0);
    }
    char back[6];
    fg_device_copy(stream, memory + 10, "forge", 6);
    fg_device_copy(stream, back, memory + 10, 6);
    fg_device_event_wait(stream, fg_device_event_record(stream));
    cr_assert_str_eq(back, "forge");
    const void *loaded;
    cr_assert_eq(fg_device_load(device, back, sizeof back, &loaded, NULL), FG_OK);
    cr_assert_eq(loaded, (const void *)back, "mapped weights are shared, not copied");
    fg_device_free(device, FG_MEMORY_DEVICE, memory, 1000);
    fg_device_stream_close(stream);
    fg_device_close(device);
}

static bool open_and_close(void *ctx)
{
    fg_device_options options = { .kind = "cpu", .isa = "auto", .thread_count = 3 };
    fg_device *device;
    fg_device_stream *stream;
    if (fg_device_open(&options, &device, NULL) != FG_OK) {
        return false;
    }
    fg_status status = fg_device_stream_open(device, &stream, NULL);
    if (status == FG_OK) {
        fg_device_stream_close(stream);
    }
    fg_device_close(device);
    return status == FG_OK;
}

Test(device, survives_every_failure_while_opening)
{
    /* Device, team, two threads, scratch, stream, its plan for attention with two mappings. */
    cr_assert_eq(fg_fault_each(open_and_close, NULL), 9);
}
