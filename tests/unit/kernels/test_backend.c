#include "kernels/backend.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/device.h"
#include "tests/support/test.h"

Test(backend, kinds_and_plugins_that_do_not_fit_are_refused_with_what_to_do)
{
    static const struct {
        const char *name, *plugin, *kind;
        const char *want[2]; /* parts of the message */
    } cases[] = {
        { "an unknown kind", NULL, "abacus", { "abacus", "known: cpu, cuda" } },
        { "no index", NULL, "cuda:", { "cuda:", "known: cpu, cuda" } },
        { "a word for an index", NULL, "cuda:x", { "cuda:x", "known: cpu, cuda" } },
        { "much for an index", NULL, "cuda:99999999999999999999", { "cuda:9999", "known: cpu" } },
        { "more than the kind", NULL, "cudax", { "cudax", "known: cpu, cuda" } },
        { "an index of the CPU", NULL, "cpu:0", { "cpu:0", "known: cpu, cuda" } },
        { "nothing", NULL, "", { "unknown device", "known: cpu, cuda" } },
        { "no plugin", NULL, "cuda", { "forge_cuda.so is neither beside", "--device cpu" } },
        { "no file", "/nowhere/plugin.so", "cuda", { "/nowhere/plugin.so", "build it again" } },
        { "no entry", PLUGIN_NO_ENTRY, "cuda", { "forge_backend", "build it again" } },
        { "another version", PLUGIN_WRONG_ABI, "cuda", { "another version", "same source" } },
        { "no device", PLUGIN_NO_DEVICES, "cuda", { "the driver sees nothing", "--device cpu" } },
        { "no third one",
          PLUGIN_NO_DEVICES,
          "cuda:2",
          { "the driver sees nothing", "--device cpu" } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (cases[i].plugin != NULL) {
            setenv("FORGE_CUDA_PLUGIN", cases[i].plugin, 1);
        } else {
            unsetenv("FORGE_CUDA_PLUGIN");
        }
        fg_device_options options = { .kind = cases[i].kind, .isa = "auto", .thread_count = 1 };
        fg_device *device = NULL;
        fg_device_info info;
        fg_error err = { 0 };
        cr_assert_eq(fg_device_open(&options, &device, &err), FG_BAD_INPUT, "%s", cases[i].name);
        cr_assert_null(device);
        for (size_t w = 0; w < 2; w++) {
            cr_assert_not_null(strstr(err.text, cases[i].want[w]), "%s: %s", cases[i].name,
                               err.text);
        }
        cr_assert_eq(fg_device_describe(cases[i].kind, &info, &err), FG_BAD_INPUT);
        cr_assert_eq(fg_device_list(cases[i].kind, &info, 1, &err), 0);
        cr_assert_not_null(strstr(err.text, cases[i].want[0]), "%s: %s", cases[i].name, err.text);
    }
}

Test(backend, the_cpu_is_there_without_a_name_too)
{
    static const char *const kinds[] = { NULL, "cpu" };
    for (size_t i = 0; i < 2; i++) {
        fg_device_options options = { .kind = kinds[i], .isa = "auto", .thread_count = 1 };
        fg_device *device;
        fg_device_info info;
        fg_error err = { 0 };
        cr_assert(fg_device_kind_is_host(kinds[i]));
        cr_assert_eq(fg_device_list(kinds[i], &info, 1, &err), 1, "%s", err.text);
        cr_assert_eq(fg_device_describe(kinds[i], &info, &err), FG_OK, "%s", err.text);
        cr_assert_eq(fg_device_open(&options, &device, &err), FG_OK, "%s", err.text);
        cr_assert(fg_device_is_host(device));
        cr_assert_str_eq(fg_device_numerics(device), "cpu/k7");
        cr_assert_str_eq(fg_device_isa(device), info.isa);
        cr_assert_gt(info.memory_bytes, 0);
        fg_device_close(device);
    }
    fg_device_close(NULL);
    fg_device_stream_close(NULL);
}

Test(backend, the_cpu_has_no_communicators)
{
    fg_device_options options = { .kind = "cpu", .isa = "auto", .thread_count = 1 };
    fg_device *device;
    fg_comm_name name;
    fg_error err = { 0 };
    cr_assert_eq(fg_device_open(&options, &device, &err), FG_OK, "%s", err.text);
    cr_assert_eq(fg_comm_make_name(device, &name, &err), FG_BAD_INPUT);
    cr_assert_not_null(strstr(err.text, "cpu devices have no way to each other"), "%s", err.text);
    fg_device_close(device);
    fg_comm_close(NULL);
}
