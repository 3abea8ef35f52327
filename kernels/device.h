/*
 * device - where tensors live and operations run: memory of several kinds, streams that run
 * operations in order, events that tell when a stream has come so far. The engine owns its device
 * and calls it from one thread at a time.
 *
 * An operation given to a stream may still be running when the call returns; its inputs and outputs
 * belong to the stream until an event recorded after it has been waited for. The CPU back end runs
 * every operation before it returns, on the device's own team of threads, so its events are complete
 * as soon as they are recorded.
 */
#ifndef FORGE_KERNELS_DEVICE_H
#define FORGE_KERNELS_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fg_device fg_device;
typedef struct fg_device_stream fg_device_stream;

typedef enum fg_memory_kind {
    FG_MEMORY_DEVICE, /* fastest for operations; the host reads it through a copy only */
    FG_MEMORY_SHARED, /* operations and the host may both use it: page-locked on a GPU */
} fg_memory_kind;

typedef struct fg_device_options {
    const char *kind;      /* "cpu" */
    const char *isa;       /* CPU: "auto", "plain", "avx2", "avx_vnni", "avx512", ... (isa.c) */
    uint32_t thread_count; /* CPU: compute threads, the caller's included */
    const struct fg_team_place *places; /* CPU: where each of them runs; NULL: anywhere. Not kept */
    struct fg_core_share *share;        /* CPU: NULL, or who says how many of them compute */
} fg_device_options;

/* A point in a stream; stored by the caller. */
typedef struct fg_device_event {
    uint64_t sequence;
} fg_device_event;

/* FG_BAD_INPUT when the kind or instruction set is unknown or this machine lacks it. */
fg_status fg_device_open(const fg_device_options *options, fg_device **device_out, fg_error *err);
/* Everything allocated from the device is freed before. */
void fg_device_close(fg_device *device);

/* The name of the instruction set in use, never "auto". Every set gives the same bits. */
const char *fg_device_isa(const fg_device *device);
uint32_t fg_device_thread_count(const fg_device *device);

/* Zeroed, 64-byte aligned. NULL when out of memory. Free with the same size and kind. */
void *fg_device_alloc(fg_device *device, fg_memory_kind kind, size_t size_bytes);
void fg_device_free(fg_device *device, fg_memory_kind kind, void *memory, size_t size_bytes);

/* Makes read-only host bytes (mapped weights) usable by operations, until the device is closed. The
 * CPU answers the same pointer, so that processes on one host share one copy in the page cache. */
fg_status fg_device_load(fg_device *device, const void *host, size_t size_bytes,
                         const void **device_out, fg_error *err);

fg_status fg_device_stream_open(fg_device *device, fg_device_stream **stream_out, fg_error *err);
void fg_device_stream_close(fg_device_stream *stream);

/* Copies between any two kinds of memory, in stream order. */
void fg_device_copy(fg_device_stream *stream, void *target, const void *source, size_t size_bytes);

fg_device_event fg_device_event_record(fg_device_stream *stream);
/* Returns when everything given to the stream before the event has ended. */
void fg_device_event_wait(fg_device_stream *stream, fg_device_event event);

/* The host's own work in pieces, which the device's threads take as they become free, the caller's among them;
 * returns when all have ended. `member` is below fg_device_thread_count. No operation is in flight. */
void fg_device_share_work(fg_device_stream *stream, uint32_t pieces,
                          void (*work)(void *ctx, uint32_t piece, uint32_t member), void *ctx);

#ifdef __cplusplus
}
#endif
#endif
