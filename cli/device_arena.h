/*
 * device_arena - KV blocks in a device's memory that the engine computes in and the link reaches, so that both borrow
 * them. Owned by the loop thread.
 */
#ifndef FORGE_CLI_DEVICE_ARENA_H
#define FORGE_CLI_DEVICE_ARENA_H

#include <stddef.h>

#include "common/base/status.h"
#include "kernels/device.h"

typedef struct fg_device_arena {
    fg_device *device; /* NULL: not open */
    void *memory;
    size_t size_bytes;
} fg_device_arena;

/* The device alone. The calling thread has its context from then on. */
fg_status fg_device_arena_open(const char *kind, fg_device_arena *arena, fg_error *err);
/* The memory, once. FG_AGAIN: the device has not so much. */
fg_status fg_device_arena_take(fg_device_arena *arena, size_t size_bytes, fg_error *err);
/* Of a struct of zeros too. */
void fg_device_arena_close(fg_device_arena *arena);

#endif
