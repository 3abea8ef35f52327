#include "common/engine/kv_memory.h"

#include <string.h>

#include "common/base/hash.h"

fg_status fg_kv_memory_open(const fg_engine_options *options, fg_device *device,
                            fg_device_stream *stream, fg_kv_memory *memory, fg_error *err)
{
    *memory = (fg_kv_memory){ .device = device,
                              .stream = stream,
                              .arena = options->arena,
                              .mirror = options->arena,
                              .tier = options->tier_arena,
                              .block_bytes = options->layout.block_bytes };
    if (fg_device_is_host(device)) {
        return FG_OK;
    }
    size_t size_bytes;
    bool fits =
        !__builtin_mul_overflow((size_t)options->block_count, memory->block_bytes, &size_bytes);
    memory->arena = fits ? fg_device_alloc(device, FG_MEMORY_DEVICE, size_bytes) : NULL;
    if (memory->arena == NULL) {
        *memory = (fg_kv_memory){ .device = NULL };
        return fg_fail(err, FG_AGAIN,
                       "the device has no memory for %u KV blocks of %zu KiB: lower --kv-blocks",
                       options->block_count, options->layout.block_bytes >> 10);
    }
    memory->size_bytes = size_bytes;
    /* Without it copies are only slower; with it all of the mirror takes memory, which nobody needs where no block comes
     * there. */
    bool used = options->arena_is_shared || options->tier_arena != NULL;
    memory->is_pinned = used && fg_device_pin(device, memory->mirror, size_bytes, NULL) == FG_OK;
    return FG_OK;
}

void fg_kv_memory_close(fg_kv_memory *memory)
{
    if (memory->is_pinned) {
        fg_device_unpin(memory->device, memory->mirror);
    }
    if (memory->size_bytes > 0) {
        fg_device_free(memory->device, FG_MEMORY_DEVICE, memory->arena, memory->size_bytes);
    }
    *memory = (fg_kv_memory){ .device = NULL };
}

static uint8_t *block_at(const fg_kv_memory *memory, void *arena, uint32_t index)
{
    return (uint8_t *)arena + index * memory->block_bytes;
}

static void copy_block(const fg_kv_memory *memory, void *to_arena, uint32_t to, void *from_arena,
                       uint32_t from)
{
    fg_device_copy(memory->stream, block_at(memory, to_arena, to),
                   block_at(memory, from_arena, from), memory->block_bytes);
}

static void wait(const fg_kv_memory *memory)
{
    fg_device_event_wait(memory->stream, fg_device_event_record(memory->stream));
}

static uint64_t hash_of(const fg_kv_memory *memory, void *arena, uint32_t index)
{
    return fg_hash64(block_at(memory, arena, index), memory->block_bytes, 0);
}

static void copy_out(const fg_kv_memory *memory, fg_step_copy *copy)
{
    copy_block(memory, memory->tier, copy->to, memory->arena, copy->from);
    wait(memory);
    /* The arena's side is what was to go out; where the host does not see it, what has come of it. */
    copy->digest_out = memory->arena == memory->mirror ? hash_of(memory, memory->arena, copy->from)
                                                       : hash_of(memory, memory->tier, copy->to);
}

/* What is hashed is what the model reads, or is copied from there to it. */
static void copy_in(const fg_kv_memory *memory, fg_step_copy *copy)
{
    if (memory->arena == memory->mirror) {
        copy_block(memory, memory->arena, copy->to, memory->tier, copy->from);
        wait(memory);
        copy->digest_out = hash_of(memory, memory->arena, copy->to);
        return;
    }
    memcpy(block_at(memory, memory->mirror, copy->to), block_at(memory, memory->tier, copy->from),
           memory->block_bytes);
    copy->digest_out = hash_of(memory, memory->mirror, copy->to);
    copy_block(memory, memory->arena, copy->to, memory->mirror, copy->to);
    wait(memory);
}

void fg_kv_memory_copy(const fg_kv_memory *memory, fg_step *step)
{
    for (uint32_t i = 0; i < step->copy_count; i++) {
        fg_step_copy *copy = &step->copies[i];
        switch (copy->kind) {
        case FG_COPY_BLOCK:
            copy_block(memory, memory->arena, copy->to, memory->arena, copy->from);
            break;
        case FG_COPY_OUT:
            copy_out(memory, copy);
            break;
        case FG_COPY_IN:
            copy_in(memory, copy);
            break;
        }
    }
}

/* Blocks that were computed here to the mirror, or those that arrived there to where the model reads them. */
static void bring(const fg_kv_memory *memory, const fg_step *step, bool arrived)
{
    void *to = arrived ? memory->arena : memory->mirror;
    void *from = arrived ? memory->mirror : memory->arena;
    bool any = false;
    for (uint32_t i = 0; i < step->digest_count && to != from; i++) {
        const fg_step_digest *digest = &step->digests[i];
        if (digest->arrived == arrived) {
            copy_block(memory, to, digest->block_id, from, digest->block_id);
            any = true;
        }
    }
    if (any) {
        wait(memory);
    }
}

void fg_kv_memory_digest(const fg_kv_memory *memory, fg_step *step)
{
    bring(memory, step, false);
    for (uint32_t i = 0; i < step->digest_count; i++) {
        step->digests[i].digest_out = hash_of(memory, memory->mirror, step->digests[i].block_id);
    }
    bring(memory, step, true);
}
