/*
 * kv_memory - where the KV blocks of an engine are: the arena that operations use, and the one that the host sees,
 * which other workers push blocks into and read them from. On a device with the host's memory they are the same. Else
 * the host's is a mirror: a block is right there only after it was digested, copied to the tier, or has come in. Or there
 * is none: other workers reach the device's memory itself, where blocks are digested too. Owned by the engine thread
 * after open.
 *
 * Where several ranks compute on such devices, each has its own KV heads there, and all share the mirror: they do the same
 * copies and digests one after the other, each with its part of the blocks. Only rank 0 has the tier, and digests.
 */
#ifndef FORGE_COMMON_ENGINE_KV_MEMORY_H
#define FORGE_COMMON_ENGINE_KV_MEMORY_H

#include "common/engine/engine.h"
#include "common/engine/tp.h"
#include "kernels/device.h"

typedef struct fg_kv_memory {
    fg_device *device;
    fg_device_stream *stream;
    void *arena;       /* what operations use */
    void *mirror;      /* the host's; NULL: none */
    void *tier;        /* the host's; NULL: no tier */
    size_t size_bytes; /* of an arena of the device's own; else 0 */
    size_t block_bytes;
    bool is_pinned;
    fg_tp *tp; /* NULL: the arena has all heads */
    /* Of the blocks in the arena; a block in the mirror has more heads between two layers' K or V, and before them. */
    fg_kv_layout own;
    size_t own_bytes, mirror_bytes; /* from one of these to the next */
    size_t mirror_first;
    /* Without a mirror: blocks to digest, and their digests, which the device reads and writes. */
    uint32_t *digest_ids;
    uint64_t *digests;
} fg_kv_memory;

/* All that the options lend stays lent until close, which comes before the stream is closed. FG_AGAIN: no memory. `tp`
 * NULL, or whose heads `part` are. */
fg_status fg_kv_memory_open(const fg_engine_options *options, fg_device *device,
                            fg_device_stream *stream, fg_tp *tp, fg_tp_part part,
                            fg_kv_memory *memory, fg_error *err);
/* Of a struct of zeros too. */
void fg_kv_memory_close(fg_kv_memory *memory);

/* A step's copies, in order, with their digests. */
void fg_kv_memory_copy(const fg_kv_memory *memory, fg_step_copy *copies, uint32_t count);
/* A step's digests, after its sequences have run. */
void fg_kv_memory_digest(const fg_kv_memory *memory, fg_step_digest *digests, uint32_t count);

#endif
