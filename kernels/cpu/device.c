#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/core_share.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "kernels/cpu/attend.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa.h"

/* The larger part of a core's second-level cache is left to weights and sums. */
static size_t block_bytes(long cache)
{
    enum { LEAST = 192 << 10, MOST = 768 << 10 };
    size_t part = cache > 0 ? (size_t)cache / 8 * 3 : 0;
    return part < LEAST ? LEAST : part < MOST ? part : MOST;
}

static size_t scratch_floats(const fg_cpu_kernels *kernels, long cache)
{
    enum { LARGE = 2 << 20 };
    bool large = cache >= LARGE && kernels->tile_rows_least == 0;
    return large ? FG_CPU_LARGE_SCRATCH_FLOATS : FG_CPU_SCRATCH_FLOATS;
}

static size_t scratch_bytes_of(const fg_device *device)
{
    return fg_team_size(device->team) * device->scratch_floats * sizeof(float);
}

static uint32_t device_count(fg_error *err)
{
    return 1;
}

static fg_status device_describe(uint32_t index, fg_device_info *info_out, fg_error *err)
{
    fg_cpu_facts facts = fg_cpu_facts_read();
    const fg_cpu_kernels *kernels;
    fg_status status = fg_cpu_find_kernels("auto", &facts, &kernels, err);
    if (status != FG_OK) {
        return status;
    }
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    *info_out = (fg_device_info){ .name = "this machine's processor",
                                  .memory_bytes = pages > 0 && page_bytes > 0
                                                      ? (uint64_t)pages * (uint64_t)page_bytes
                                                      : 0,
                                  .free_bytes = fg_mem_available_bytes() };
    snprintf(info_out->isa, sizeof info_out->isa, "%s", kernels->name);
    return FG_OK;
}

static fg_status device_open(const fg_device_options *options, fg_device **device_out,
                             fg_error *err)
{
    fg_cpu_facts facts = fg_cpu_facts_read();
    const fg_cpu_kernels *kernels;
    fg_status status = fg_cpu_find_kernels(options->isa, &facts, &kernels, err);
    if (status != FG_OK) {
        return status;
    }
    fg_device *device = fg_mem_alloc(sizeof *device);
    if (device == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for a device");
    }
    status = fg_team_create(options->thread_count, options->places, &device->team, err);
    if (status != FG_OK) {
        fg_mem_free(device);
        return status;
    }
    long cache = sysconf(_SC_LEVEL2_CACHE_SIZE);
    device->kernels = kernels;
    device->block_bytes = block_bytes(cache);
    device->scratch_floats = scratch_floats(kernels, cache);
    size_t scratch_bytes = scratch_bytes_of(device);
    device->scratch = fg_mem_map(scratch_bytes);
    if (device->scratch == NULL) {
        fg_team_destroy(device->team);
        fg_mem_free(device);
        return fg_fail(err, FG_AGAIN, "out of memory for a device's %zu bytes", scratch_bytes);
    }
    if (options->share != NULL) {
        fg_team_follow(device->team, fg_core_share_width, options->share);
    }
    device->backend = &fg_cpu_backend;
    *device_out = device;
    return FG_OK;
}

static void device_close(fg_device *device)
{
    if (device == NULL) {
        return;
    }
    fg_mem_unmap(device->scratch, scratch_bytes_of(device));
    fg_team_destroy(device->team);
    fg_mem_free(device);
}

static const char *device_isa(const fg_device *device)
{
    return device->kernels->name;
}

/* k7: the revision of what the operations compute. */
static const char *device_numerics(const fg_device *device)
{
    return "cpu/k7";
}

static uint32_t device_thread_count(const fg_device *device)
{
    return fg_team_size(device->team);
}

static void *device_alloc(fg_device *device, fg_memory_kind kind, size_t size_bytes)
{
    /* Both kinds are ordinary memory on the CPU; whole pages give the alignment. */
    return fg_mem_map(size_bytes == 0 ? 1 : size_bytes);
}

static void device_free(fg_device *device, fg_memory_kind kind, void *memory, size_t size_bytes)
{
    fg_mem_unmap(memory, size_bytes == 0 ? 1 : size_bytes);
}

static fg_status device_load(fg_device *device, const void *host, size_t size_bytes,
                             const void **device_out, fg_error *err)
{
    *device_out = host;
    return FG_OK;
}

/* Operations read the host's memory themselves. */
static fg_status device_pin(fg_device *device, void *memory, size_t size_bytes, fg_error *err)
{
    return FG_OK;
}

static void device_unpin(fg_device *device, void *memory)
{
}

static fg_status device_stream_open(fg_device *device, fg_device_stream **stream_out, fg_error *err)
{
    fg_device_stream *stream = fg_mem_alloc(sizeof *stream);
    if (stream == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for a device stream");
    }
    stream->backend = device->backend;
    stream->device = device;
    stream->attend_plan = fg_cpu_attend_plan_create(fg_team_size(device->team));
    if (stream->attend_plan == NULL) {
        fg_mem_free(stream);
        return fg_fail(err, FG_AGAIN, "out of memory for a device stream");
    }
    *stream_out = stream;
    return FG_OK;
}

static void device_stream_close(fg_device_stream *stream)
{
    if (stream == NULL) {
        return;
    }
    fg_cpu_attend_plan_destroy(stream->attend_plan);
    fg_mem_free(stream);
}

static void device_copy(fg_device_stream *stream, void *target, const void *source,
                        size_t size_bytes)
{
    memcpy(target, source, size_bytes);
    stream->sequence++;
}

static void device_copy_rows(fg_device_stream *stream, const fg_copy_rows *copy)
{
    for (size_t row = 0; row < copy->rows; row++) {
        memcpy((uint8_t *)copy->target + row * copy->target_stride,
               (const uint8_t *)copy->source + row * copy->source_stride, copy->row_bytes);
    }
    stream->sequence++;
}

static fg_device_event device_event_record(fg_device_stream *stream)
{
    return (fg_device_event){ .sequence = stream->sequence };
}

static void device_event_wait(fg_device_stream *stream, fg_device_event event)
{
    FG_ASSERT(event.sequence <= stream->sequence, "event of another stream");
}

static bool device_event_ended(fg_device_stream *stream, fg_device_event event)
{
    FG_ASSERT(event.sequence <= stream->sequence, "event of another stream");
    return true;
}

static void device_share_work(fg_device_stream *stream, uint32_t pieces,
                              void (*work)(void *ctx, uint32_t piece, uint32_t member), void *ctx)
{
    fg_team *team = stream->device->team;
    if (pieces > 1 && fg_team_size(team) > 1) {
        fg_team_for(team, pieces, work, ctx);
        return;
    }
    for (uint32_t piece = 0; piece < pieces; piece++) {
        work(ctx, piece, 0);
    }
}

/* What has been given has run: there is nothing to start again. */
static bool device_replay_begin(fg_device_stream *stream, uint64_t key)
{
    return false;
}

static void device_replay_end(fg_device_stream *stream)
{
}

static fg_device_reach device_memory_reach(const fg_device *device)
{
    return FG_REACH_HOST;
}

static void device_bind_thread(const fg_device *device)
{
}

static void device_digest(fg_device_stream *stream, const fg_digest_blocks *args, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *block = (const uint8_t *)args->base + args->ids[i] * args->block_bytes;
        args->digests[i] = fg_hash64(block, args->block_bytes, 0);
    }
}

const fg_backend fg_cpu_backend = {
    .abi = FG_BACKEND_ABI,
    .table_bytes = sizeof(fg_backend),
    .kind = "cpu",
    .host_memory = true,
    .device_count = device_count,
    .device_describe = device_describe,
    .open = device_open,
    .close = device_close,
    .isa = device_isa,
    .numerics = device_numerics,
    .thread_count = device_thread_count,
    .memory_reach = device_memory_reach,
    .bind_thread = device_bind_thread,
    .alloc = device_alloc,
    .free = device_free,
    .pin = device_pin,
    .unpin = device_unpin,
    .load = device_load,
    .stream_open = device_stream_open,
    .stream_close = device_stream_close,
    .copy = device_copy,
    .copy_rows = device_copy_rows,
    .event_record = device_event_record,
    .event_wait = device_event_wait,
    .event_ended = device_event_ended,
    .share_work = device_share_work,
    .replay_begin = device_replay_begin,
    .replay_end = device_replay_end,
    .linear_form = fg_cpu_op_linear_form,
    .stage = fg_cpu_op_stage,
    .prepare = fg_cpu_op_prepare,
    .linear = fg_cpu_op_linear,
    .gated = fg_cpu_op_gated,
    .choose_experts = fg_cpu_op_choose_experts,
    .gated_experts = fg_cpu_op_gated_experts,
    .add_experts = fg_cpu_op_add_experts,
    .highest = fg_cpu_op_highest,
    .embed = fg_cpu_op_embed,
    .rmsnorm = fg_cpu_op_rmsnorm,
    .finite = fg_cpu_op_finite,
    .rope_table = fg_cpu_op_rope_table,
    .rope_store = fg_cpu_op_rope_store,
    .attend = fg_cpu_op_attend,
    .digest = device_digest,
};
