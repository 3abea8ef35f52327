#include "kernels/device.h"

#include <string.h>
#include <unistd.h>

#include "common/base/core_share.h"
#include "common/base/mem.h"
#include "kernels/cpu/attend.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa.h"

/* The larger part of a core's second-level cache is left to weights and sums. */
static size_t block_bytes(void)
{
    enum { LEAST = 192 << 10, MOST = 768 << 10 };
    long cache = sysconf(_SC_LEVEL2_CACHE_SIZE);
    size_t part = cache > 0 ? (size_t)cache / 8 * 3 : 0;
    return part < LEAST ? LEAST : part < MOST ? part : MOST;
}

static size_t scratch_bytes_of(const fg_device *device)
{
    return fg_team_size(device->team) * FG_CPU_SCRATCH_FLOATS * sizeof(float);
}

fg_status fg_device_open(const fg_device_options *options, fg_device **device_out, fg_error *err)
{
    if (strcmp(options->kind, "cpu") != 0) {
        return fg_fail(err, FG_BAD_INPUT, "unknown device kind \"%s\" (known: cpu)", options->kind);
    }
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
    device->kernels = kernels;
    device->block_bytes = block_bytes();
    *device_out = device;
    return FG_OK;
}

void fg_device_close(fg_device *device)
{
    if (device == NULL) {
        return;
    }
    fg_mem_unmap(device->scratch, scratch_bytes_of(device));
    fg_team_destroy(device->team);
    fg_mem_free(device);
}

const char *fg_device_isa(const fg_device *device)
{
    return device->kernels->name;
}

uint32_t fg_device_thread_count(const fg_device *device)
{
    return fg_team_size(device->team);
}

void *fg_device_alloc(fg_device *device, fg_memory_kind kind, size_t size_bytes)
{
    /* Both kinds are ordinary memory on the CPU; whole pages give the alignment. */
    return fg_mem_map(size_bytes == 0 ? 1 : size_bytes);
}

void fg_device_free(fg_device *device, fg_memory_kind kind, void *memory, size_t size_bytes)
{
    fg_mem_unmap(memory, size_bytes == 0 ? 1 : size_bytes);
}

fg_status fg_device_load(fg_device *device, const void *host, size_t size_bytes,
                         const void **device_out, fg_error *err)
{
    *device_out = host;
    return FG_OK;
}

fg_status fg_device_stream_open(fg_device *device, fg_device_stream **stream_out, fg_error *err)
{
    fg_device_stream *stream = fg_mem_alloc(sizeof *stream);
    if (stream == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for a device stream");
    }
    stream->device = device;
    stream->attend_plan = fg_cpu_attend_plan_create(fg_team_size(device->team));
    if (stream->attend_plan == NULL) {
        fg_mem_free(stream);
        return fg_fail(err, FG_AGAIN, "out of memory for a device stream");
    }
    *stream_out = stream;
    return FG_OK;
}

void fg_device_stream_close(fg_device_stream *stream)
{
    if (stream == NULL) {
        return;
    }
    fg_cpu_attend_plan_destroy(stream->attend_plan);
    fg_mem_free(stream);
}

void fg_device_copy(fg_device_stream *stream, void *target, const void *source, size_t size_bytes)
{
    memcpy(target, source, size_bytes);
    stream->sequence++;
}

fg_device_event fg_device_event_record(fg_device_stream *stream)
{
    return (fg_device_event){ .sequence = stream->sequence };
}

void fg_device_event_wait(fg_device_stream *stream, fg_device_event event)
{
    FG_ASSERT(event.sequence <= stream->sequence, "event of another stream");
}

void fg_device_share_work(fg_device_stream *stream, uint32_t pieces,
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
