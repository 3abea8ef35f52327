#include <string.h>

#include "common/base/fault.h"
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
    /* Device, team, two threads, stream, its plan for attention with two mappings. */
    cr_assert_eq(fg_fault_each(open_and_close, NULL), 8);
}
