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

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "kernels/panel.h"

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
    const char *kind;      /* "cpu"; "cuda" or "cuda:N", NULL is "cpu" */
    const char *isa;       /* CPU: "auto", "plain", "avx2", "avx_vnni", "avx512", ... (isa.c) */
    uint32_t thread_count; /* CPU: compute threads, the caller's included */
    const struct fg_team_place *places; /* CPU: where each of them runs; NULL: anywhere. Not kept */
    struct fg_core_share *share;        /* CPU: NULL, or who says how many of them compute */
    /* What one step can have at most, for what a device keeps of it: rows, sequences, slots of one sequence, and
     * the heads of a row. Devices with memory of their own need them; 0: no steps are run. */
    uint32_t step_rows_max, step_seqs_max, context_max;
    uint32_t head_count, kv_head_count, head_dim, block_size;
} fg_device_options;

typedef struct fg_device_info {
    char name[128];
    char isa[32]; /* "sm_90" */
    uint64_t memory_bytes, free_bytes;
} fg_device_info;

/* A point in a stream; stored by the caller. */
typedef struct fg_device_event {
    uint64_t sequence;
} fg_device_event;

/* What machines have of a kind, "cpu" or "cuda": at most `max` are described. 0, with the reason in err: none. */
uint32_t fg_device_list(const char *kind, fg_device_info *infos_out, uint32_t max, fg_error *err);
/* One device as fg_device_options names it, without opening it. FG_BAD_INPUT as for open. */
fg_status fg_device_describe(const char *kind, fg_device_info *info_out, fg_error *err);
/* As fg_device_is_host, of what is not open yet; NULL is "cpu". */
bool fg_device_kind_is_host(const char *kind);

/* FG_BAD_INPUT when the kind or instruction set is unknown or this machine lacks it, or the kind's back end. */
fg_status fg_device_open(const fg_device_options *options, fg_device **device_out, fg_error *err);
/* Everything allocated from the device is freed before. */
void fg_device_close(fg_device *device);

/* Whether operations use the host's memory. If not, they get what fg_device_alloc, _load and _pack gave; rows of a
 * step are handed over by fg_op_stage, and what operations tell the host goes to FG_MEMORY_SHARED. */
bool fg_device_is_host(const fg_device *device);
/* Whether it has the operations of mixtures of experts (ops.h). */
bool fg_device_mixes_experts(const fg_device *device);
/* Who gets at FG_MEMORY_DEVICE beside the device's own operations and copies. */
typedef enum fg_device_reach {
    FG_REACH_HOST, /* the host, as at its own memory */
    FG_REACH_CUDA, /* whoever speaks CUDA, on a thread that has the device's context */
} fg_device_reach;
fg_device_reach fg_device_memory_reach(const fg_device *device);
/* Gives the calling thread the device's context, for libraries that it calls with such memory. */
void fg_device_bind_thread(const fg_device *device);
/* "cpu/k7": back end and revision; two devices with the same name give the same bits. Until close. */
const char *fg_device_numerics(const fg_device *device);

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

/* Has the device copy memory of the host faster, where that is possible; undone by unpin, before it is freed. */
fg_status fg_device_pin(fg_device *device, void *memory, size_t size_bytes, fg_error *err);
void fg_device_unpin(fg_device *device, void *memory);

/* A matrix of products in the device's own order, in its memory until it is closed. Only where operations do not use
 * the host's memory: there the weight store packs. The panels may be of another type than the rows (CUDA keeps F32 and
 * F16 as BF16). FG_BAD_INPUT for a shape or type that is not computed. */
fg_status fg_device_pack(fg_device *device, const fg_matrix *rows, fg_panels *panels_out,
                         fg_error *err);

fg_status fg_device_stream_open(fg_device *device, fg_device_stream **stream_out, fg_error *err);
void fg_device_stream_close(fg_device_stream *stream);

/* Copies between any two kinds of memory, in stream order. */
void fg_device_copy(fg_device_stream *stream, void *target, const void *source, size_t size_bytes);

/* The same of `rows` pieces, whose beginnings are so many bytes apart. */
typedef struct fg_copy_rows {
    void *target;
    const void *source;
    size_t target_stride, source_stride;
    size_t row_bytes, rows;
} fg_copy_rows;
void fg_device_copy_rows(fg_device_stream *stream, const fg_copy_rows *copy);

fg_device_event fg_device_event_record(fg_device_stream *stream);
/* Returns when everything given to the stream before the event has ended. */
void fg_device_event_wait(fg_device_stream *stream, fg_device_event event);
/* Whether the wait would return at once. Of a stream's newest four events both are exact; instead of an older one a newer
 * one may be meant. */
bool fg_device_event_ended(fg_device_stream *stream, fg_device_event event);

/* Operations that come again and again with the same arguments, but for what fg_op_stage hands over: true: those given
 * between begin and end under this key before were all started again, and the caller gives none of them. False: the
 * caller gives them now, and calls end after the last (not after true). Keys are the caller's to choose; a stage goes
 * before begin. */
bool fg_device_replay_begin(fg_device_stream *stream, uint64_t key);
void fg_device_replay_end(fg_device_stream *stream);

/* The host's own work in pieces, which the device's threads take as they become free, the caller's among them;
 * returns when all have ended. `member` is below fg_device_thread_count. On a device with the host's memory no operation is
 * in flight. */
void fg_device_share_work(fg_device_stream *stream, uint32_t pieces,
                          void (*work)(void *ctx, uint32_t piece, uint32_t member), void *ctx);

#ifdef __cplusplus
}
#endif
#endif
