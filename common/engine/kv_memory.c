#include "common/engine/kv_memory.h"

#include <string.h>

#include "common/base/hash.h"
#include "kernels/ops.h"

enum { DIGESTS_MAX = 1024 }; /* of one call */

#define LIST_BYTES (DIGESTS_MAX * (sizeof(uint64_t) + sizeof(uint32_t)))

/* The arena is the caller's, in the device's memory, and nothing of it is on the host. */
static fg_status open_lent(const fg_engine_options *options, fg_kv_memory *memory, fg_error *err)
{
    memory->arena = options->device_arena;
    memory->mirror = NULL;
    memory->digests = fg_device_alloc(memory->device, FG_MEMORY_SHARED, LIST_BYTES);
    if (memory->digests == NULL) {
        *memory = (fg_kv_memory){ .device = NULL };
        return fg_fail(err, FG_AGAIN, "the device has no memory for a list of digests");
    }
    memory->digest_ids = (uint32_t *)(memory->digests + DIGESTS_MAX);
    return FG_OK;
}

fg_status fg_kv_memory_open(const fg_engine_options *options, fg_device *device,
                            fg_device_stream *stream, fg_tp *tp, fg_tp_part part,
                            fg_kv_memory *memory, fg_error *err)
{
    const fg_kv_layout *layout = &options->layout;
    *memory = (fg_kv_memory){ .device = device,
                              .stream = stream,
                              .arena = options->arena,
                              .mirror = options->arena,
                              .tier = options->tier_arena,
                              .block_bytes = layout->block_bytes,
                              .own = *layout };
    if (fg_device_is_host(device)) {
        return FG_OK;
    }
    if (options->device_arena != NULL) {
        FG_ASSERT(tp == NULL, "each rank has its own heads");
        return open_lent(options, memory, err);
    }
    if (tp != NULL) {
        fg_status status =
            fg_kv_layout_init(&memory->own, layout->layer_count, part.count, layout->head_dim,
                              layout->block_size, layout->dtype, err);
        if (status != FG_OK) {
            return status;
        }
        memory->tp = tp;
        memory->own_bytes = part.count * layout->head_bytes;
        memory->mirror_bytes = layout->kv_head_count * layout->head_bytes;
        memory->mirror_first = part.first * layout->head_bytes;
    }
    size_t size_bytes;
    bool fits =
        !__builtin_mul_overflow((size_t)options->block_count, memory->own.block_bytes, &size_bytes);
    memory->arena = fits ? fg_device_alloc(device, FG_MEMORY_DEVICE, size_bytes) : NULL;
    if (memory->arena == NULL) {
        size_t block_bytes = memory->own.block_bytes;
        *memory = (fg_kv_memory){ .device = NULL };
        return fg_fail(err, FG_AGAIN,
                       "the device has no memory for %u KV blocks of %zu KiB: lower --kv-blocks",
                       options->block_count, block_bytes >> 10);
    }
    memory->size_bytes = size_bytes;
    /* Without it copies are only slower; with it all of the mirror takes memory, which nobody needs where no block comes
     * there. */
    bool used = options->arena_is_shared || options->tier_arena != NULL;
    size_t mirror_bytes = options->block_count * memory->block_bytes;
    memory->is_pinned = used && fg_device_pin(device, memory->mirror, mirror_bytes, NULL) == FG_OK;
    return FG_OK;
}

void fg_kv_memory_close(fg_kv_memory *memory)
{
    if (memory->is_pinned) {
        fg_device_unpin(memory->device, memory->mirror);
    }
    if (memory->digests != NULL) {
        fg_device_free(memory->device, FG_MEMORY_SHARED, memory->digests, LIST_BYTES);
    }
    if (memory->size_bytes > 0) {
        fg_device_free(memory->device, FG_MEMORY_DEVICE, memory->arena, memory->size_bytes);
    }
    *memory = (fg_kv_memory){ .device = NULL };
}

static bool is_same(const fg_kv_memory *memory)
{
    return memory->arena == memory->mirror;
}

/* A block in memory that is laid out as the host's. */
static uint8_t *block_at(const fg_kv_memory *memory, void *base, uint32_t index)
{
    return (uint8_t *)base + index * memory->block_bytes;
}

static uint8_t *own_at(const fg_kv_memory *memory, uint32_t index)
{
    return (uint8_t *)memory->arena + index * memory->own.block_bytes;
}

static void wait(const fg_kv_memory *memory)
{
    fg_device_event_wait(memory->stream, fg_device_event_record(memory->stream));
}

static uint64_t hash_of(const fg_kv_memory *memory, void *base, uint32_t index)
{
    return fg_hash64(block_at(memory, base, index), memory->block_bytes, 0);
}

/* What the arena has of a block to memory that is laid out as the host's. */
static void bring_out(const fg_kv_memory *memory, void *base, uint32_t to, uint32_t from)
{
    uint8_t *target = block_at(memory, base, to);
    if (memory->tp == NULL) {
        fg_device_copy(memory->stream, target, own_at(memory, from), memory->block_bytes);
        return;
    }
    const fg_copy_rows rows = { .target = target + memory->mirror_first,
                                .target_stride = memory->mirror_bytes,
                                .source = own_at(memory, from),
                                .source_stride = memory->own_bytes,
                                .row_bytes = memory->own_bytes,
                                .rows = 2 * (size_t)memory->own.layer_count };
    fg_device_copy_rows(memory->stream, &rows);
}

/* The other way. */
static void bring_in(const fg_kv_memory *memory, uint32_t to, void *base, uint32_t from)
{
    const uint8_t *source = block_at(memory, base, from);
    if (memory->tp == NULL) {
        fg_device_copy(memory->stream, own_at(memory, to), source, memory->block_bytes);
        return;
    }
    const fg_copy_rows rows = { .target = own_at(memory, to),
                                .target_stride = memory->own_bytes,
                                .source = source + memory->mirror_first,
                                .source_stride = memory->mirror_bytes,
                                .row_bytes = memory->own_bytes,
                                .rows = 2 * (size_t)memory->own.layer_count };
    fg_device_copy_rows(memory->stream, &rows);
}

/* The arena's side is what was to go out; where the host does not see it, what has come of it. */
static void copy_out(const fg_kv_memory *memory, fg_step_copy *copy)
{
    if (memory->tp == NULL) {
        bring_out(memory, memory->tier, copy->to, copy->from);
        wait(memory);
        copy->digest_out = is_same(memory) ? hash_of(memory, memory->arena, copy->from)
                                           : hash_of(memory, memory->tier, copy->to);
        return;
    }
    /* The tier is rank 0's alone: by way of the mirror. */
    bring_out(memory, memory->mirror, copy->from, copy->from);
    wait(memory);
    fg_tp_meet(memory->tp);
    if (memory->tier != NULL) {
        memcpy(block_at(memory, memory->tier, copy->to),
               block_at(memory, memory->mirror, copy->from), memory->block_bytes);
        copy->digest_out = hash_of(memory, memory->tier, copy->to);
    }
    fg_tp_meet(memory->tp); /* the mirror's block may be written again */
}

/* Digests by the device, of the `count` blocks that digest_ids names. */
static const uint64_t *digest_there(const fg_kv_memory *memory, uint32_t count)
{
    const fg_digest_blocks args = { .base = memory->arena,
                                    .block_bytes = memory->block_bytes,
                                    .ids = memory->digest_ids,
                                    .digests = memory->digests };
    fg_op_digest(memory->stream, &args, count);
    wait(memory);
    return memory->digests;
}

/* What is hashed is what the model reads, or is copied from there to it. */
static void copy_in(const fg_kv_memory *memory, fg_step_copy *copy)
{
    if (memory->mirror == NULL) {
        bring_in(memory, copy->to, memory->tier, copy->from);
        memory->digest_ids[0] = copy->to;
        copy->digest_out = digest_there(memory, 1)[0];
        return;
    }
    if (is_same(memory)) {
        bring_in(memory, copy->to, memory->tier, copy->from);
        wait(memory);
        copy->digest_out = hash_of(memory, memory->arena, copy->to);
        return;
    }
    if (memory->tier != NULL) {
        memcpy(block_at(memory, memory->mirror, copy->to),
               block_at(memory, memory->tier, copy->from), memory->block_bytes);
        copy->digest_out = hash_of(memory, memory->mirror, copy->to);
    }
    fg_tp_meet(memory->tp);
    bring_in(memory, copy->to, memory->mirror, copy->to);
    wait(memory);
}

void fg_kv_memory_copy(const fg_kv_memory *memory, fg_step_copy *copies, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        fg_step_copy *copy = &copies[i];
        switch (copy->kind) {
        case FG_COPY_BLOCK:
            fg_device_copy(memory->stream, own_at(memory, copy->to), own_at(memory, copy->from),
                           memory->own.block_bytes);
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
static void bring(const fg_kv_memory *memory, const fg_step_digest *digests, uint32_t count,
                  bool arrived)
{
    bool any = false;
    for (uint32_t i = 0; i < count && !is_same(memory); i++) {
        uint32_t block = digests[i].block_id;
        if (digests[i].arrived != arrived) {
            continue;
        }
        if (arrived) {
            bring_in(memory, block, memory->mirror, block);
        } else {
            bring_out(memory, memory->mirror, block, block);
        }
        any = true;
    }
    if (any) {
        wait(memory);
    }
}

/* Without a mirror whatever was computed or has arrived is in its place. */
static void digest_all_there(const fg_kv_memory *memory, fg_step_digest *digests, uint32_t count)
{
    for (uint32_t first = 0; first < count; first += DIGESTS_MAX) {
        uint32_t part = count - first < DIGESTS_MAX ? count - first : DIGESTS_MAX;
        for (uint32_t i = 0; i < part; i++) {
            memory->digest_ids[i] = digests[first + i].block_id;
        }
        const uint64_t *made = digest_there(memory, part);
        for (uint32_t i = 0; i < part; i++) {
            digests[first + i].digest_out = made[i];
        }
    }
}

void fg_kv_memory_digest(const fg_kv_memory *memory, fg_step_digest *digests, uint32_t count)
{
    if (memory->mirror == NULL) {
        digest_all_there(memory, digests, count);
        return;
    }
    bring(memory, digests, count, false);
    fg_tp_meet(memory->tp);
    for (uint32_t i = 0; i < count && fg_tp_rank(memory->tp) == 0; i++) {
        digests[i].digest_out = hash_of(memory, memory->mirror, digests[i].block_id);
    }
    bring(memory, digests, count, true);
}
