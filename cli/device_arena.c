#include "cli/device_arena.h"

/* Of one device any number may be open; all that are in a process have the same memory. */
fg_status fg_device_arena_open(const char *kind, fg_device_arena *arena, fg_error *err)
{
    const fg_device_options options = { .kind = kind, .thread_count = 1 };
    fg_device *device;
    fg_status status = fg_device_open(&options, &device, err);
    if (status == FG_OK) {
        fg_device_bind_thread(device);
        *arena = (fg_device_arena){ .device = device };
    }
    return status;
}

fg_status fg_device_arena_take(fg_device_arena *arena, size_t size_bytes, fg_error *err)
{
    arena->memory = fg_device_alloc(arena->device, FG_MEMORY_DEVICE, size_bytes);
    arena->size_bytes = size_bytes;
    return arena->memory != NULL ? FG_OK
                                 : fg_fail(err, FG_AGAIN,
                                           "the device has no memory for %zu MiB of KV blocks: "
                                           "lower --kv-blocks",
                                           size_bytes >> 20);
}

void fg_device_arena_close(fg_device_arena *arena)
{
    if (arena->memory != NULL) {
        fg_device_free(arena->device, FG_MEMORY_DEVICE, arena->memory, arena->size_bytes);
    }
    fg_device_close(arena->device);
    *arena = (fg_device_arena){ .device = NULL };
}
