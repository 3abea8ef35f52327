/*
 * backend - what a back end is: one table with every function of device.h, ops.h and comm.h. Those headers' functions
 * look their device's or stream's table up and call it. The CPU's is linked in; CUDA's comes from a plugin
 * (kernels/cuda), which is looked for when a device of its kind is opened: the program itself needs nothing of CUDA.
 *
 * A plugin exports one C function, FG_BACKEND_ENTRY, which answers its table. The program refuses a table of
 * another FG_BACKEND_ABI or size. Plugins use nothing of the program's but these headers, and what they need of
 * common/base as a copy of their own.
 */
#ifndef FORGE_KERNELS_BACKEND_H
#define FORGE_KERNELS_BACKEND_H

#include "kernels/comm.h"
#include "kernels/device.h"
#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Changes whenever this table, or a struct or a contract that it hands over, does. */
enum { FG_BACKEND_ABI = 9 };
#define FG_BACKEND_ENTRY "forge_backend"

typedef struct fg_backend {
    uint32_t abi;         /* FG_BACKEND_ABI */
    uint32_t table_bytes; /* sizeof(fg_backend) */
    const char *kind;     /* "cpu", "cuda" */
    /* The host and operations use the same memory: fg_device_load copies nothing, matrices of products come from
     * the weight store, fg_device_pack is never called. */
    bool host_memory;

    /* Devices of this kind that the machine has; 0, with the reason in err, when there are none. */
    uint32_t (*device_count)(fg_error *err);
    fg_status (*device_describe)(uint32_t index, fg_device_info *info_out, fg_error *err);

    fg_status (*open)(const fg_device_options *options, fg_device **device_out, fg_error *err);
    void (*close)(fg_device *device);
    const char *(*isa)(const fg_device *device);
    const char *(*numerics)(const fg_device *device);
    uint32_t (*thread_count)(const fg_device *device);
    fg_device_reach (*memory_reach)(const fg_device *device);
    void (*bind_thread)(const fg_device *device);
    void *(*alloc)(fg_device *device, fg_memory_kind kind, size_t size_bytes);
    void (*free)(fg_device *device, fg_memory_kind kind, void *memory, size_t size_bytes);
    fg_status (*pin)(fg_device *device, void *memory, size_t size_bytes, fg_error *err);
    void (*unpin)(fg_device *device, void *memory);
    fg_status (*load)(fg_device *device, const void *host, size_t size_bytes,
                      const void **device_out, fg_error *err);
    fg_status (*pack)(fg_device *device, const fg_matrix *rows, fg_panels *panels_out,
                      fg_error *err);
    fg_status (*stream_open)(fg_device *device, fg_device_stream **stream_out, fg_error *err);
    void (*stream_close)(fg_device_stream *stream);
    void (*copy)(fg_device_stream *stream, void *target, const void *source, size_t size_bytes);
    void (*copy_rows)(fg_device_stream *stream, const fg_copy_rows *copy);
    fg_device_event (*event_record)(fg_device_stream *stream);
    void (*event_wait)(fg_device_stream *stream, fg_device_event event);
    bool (*event_ended)(fg_device_stream *stream, fg_device_event event);
    void (*share_work)(fg_device_stream *stream, uint32_t pieces,
                       void (*work)(void *ctx, uint32_t piece, uint32_t member), void *ctx);
    bool (*replay_begin)(fg_device_stream *stream, uint64_t key);
    void (*replay_end)(fg_device_stream *stream);

    uint32_t (*linear_form)(uint32_t type);
    void (*stage)(fg_device_stream *stream, const fg_step_rows *rows);
    void (*prepare)(fg_device_stream *stream, const fg_activations *activations, uint32_t forms,
                    uint32_t rows);
    void (*linear)(fg_device_stream *stream, const fg_linear *linears, uint32_t linear_count,
                   const fg_activations *in, uint32_t rows);
    void (*gated)(fg_device_stream *stream, const fg_gated *gated, const fg_activations *in,
                  uint32_t rows);
    /* All three NULL where mixtures of experts are not computed. */
    void (*choose_experts)(fg_device_stream *stream, const fg_choose_experts *args, uint32_t rows);
    void (*gated_experts)(fg_device_stream *stream, const fg_gated_experts *args,
                          const fg_activations *in, uint32_t rows);
    void (*add_experts)(fg_device_stream *stream, const fg_add_experts *args,
                        const fg_activations *in, uint32_t rows);
    void (*highest)(fg_device_stream *stream, const fg_panels *weight, const fg_activations *in,
                    uint32_t rows, uint32_t *choices, float *tops);
    /* NULL where `host_memory`. */
    void (*choose)(fg_device_stream *stream, const fg_choose *args, uint32_t rows);
    void (*embed)(fg_device_stream *stream, const fg_matrix *table, const uint32_t *tokens,
                  uint32_t rows, float scale, float *out);
    void (*rmsnorm)(fg_device_stream *stream, const fg_rmsnorm *args, uint32_t rows);
    void (*finite)(fg_device_stream *stream, const float *values, uint32_t columns, uint32_t rows,
                   uint32_t *finite);
    void (*rope_table)(fg_device_stream *stream, const uint32_t *positions, uint32_t rows,
                       const fg_rope_turns *turns, float *table);
    void (*rope_store)(fg_device_stream *stream, const fg_paged_kv *kv, const fg_rope_store *args,
                       uint32_t rows);
    void (*attend)(fg_device_stream *stream, const fg_paged_kv *kv, const fg_attend *args,
                   uint32_t rows);

    /* NULL where `host_memory`, and where there are none. */
    fg_status (*comm_make_name)(fg_device *device, fg_comm_name *name_out, fg_error *err);
    fg_status (*comm_open)(fg_device_stream *stream, const fg_comm_options *options,
                           fg_comm **comm_out, fg_error *err);
    bool (*comm_is_open)(fg_comm *comm, fg_status *status_out, fg_error *err);
    const char *(*comm_way)(const fg_comm *comm);
    fg_status (*comm_check)(fg_comm *comm, fg_error *err);
    void (*comm_close)(fg_comm *comm);
    void (*comm_gather)(fg_comm *comm, const fg_comm_gather *gather, uint32_t rows);
    void (*digest)(fg_device_stream *stream, const fg_digest_blocks *args, uint32_t count);
} fg_backend;

/* The first member of every back end's struct fg_device, struct fg_device_stream and struct fg_comm. */
typedef struct fg_backend_object {
    const fg_backend *backend;
} fg_backend_object;

/* kernels/cpu. */
extern const fg_backend fg_cpu_backend;

#ifdef __cplusplus
}
#endif
#endif
