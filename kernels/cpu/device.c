#include "kernels/device.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "common/base/mem.h"
#include "kernels/cpu/attend.h"
#include "kernels/cpu/cpu.h"

#if defined(__x86_64__)
/* The compiler's own check covers the operating system's part; not every compiler knows F16C's name,
 * which is bit 29 of leaf 1's ECX. */
static bool has_avx2(void)
{
    unsigned eax;
    unsigned ebx;
    unsigned ecx;
    unsigned edx;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & 1u << 29) != 0;
}
#endif

/* A table that this machine can run; NULL when it lacks the instructions or the name is unknown. */
static const fg_cpu_kernels *find_kernels(const char *isa)
{
    bool automatic = strcmp(isa, "auto") == 0;
#if defined(__x86_64__)
    if (has_avx2() && (automatic || strcmp(isa, "avx2") == 0)) {
        return &fg_cpu_avx2;
    }
#endif
    return automatic || strcmp(isa, "plain") == 0 ? &fg_cpu_plain : NULL;
}

fg_status fg_device_open(const fg_device_options *options, fg_device **device_out, fg_error *err)
{
    if (strcmp(options->kind, "cpu") != 0) {
        return fg_fail(err, FG_BAD_INPUT, "unknown device kind \"%s\" (known: cpu)", options->kind);
    }
    const fg_cpu_kernels *kernels = find_kernels(options->isa);
    if (kernels == NULL) {
        bool known = strcmp(options->isa, "avx2") == 0;
        return fg_fail(err, FG_BAD_INPUT,
                       known
                           ? "this processor lacks the instructions for cpu-isa \"%s\" (AVX2, FMA "
                             "and F16C)"
                           : "unknown cpu-isa \"%s\" (known: auto, plain, avx2)",
                       options->isa);
    }
    fg_device *device = fg_mem_alloc(sizeof *device);
    if (device == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for a device");
    }
    fg_status status = fg_team_create(options->thread_count, options->places, &device->team, err);
    if (status != FG_OK) {
        fg_mem_free(device);
        return status;
    }
    device->kernels = kernels;
    *device_out = device;
    return FG_OK;
}

void fg_device_close(fg_device *device)
{
    if (device == NULL) {
        return;
    }
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
