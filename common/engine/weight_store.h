/*
 * weight_store - the packed weights of a model, read-only once open; any thread may read.
 *
 * Packed once per model and host, where a file can be kept: a sidecar beside the model, or in a directory
 * of its own, is mapped by every process that serves the model, so the page cache holds one copy for all
 * of them. What is on the disk is checked before it is used (every byte), refused when it is not this
 * model's, and made again. Where no file can be kept, each process packs into memory of its own. Either
 * way the bytes are the same.
 */
#ifndef FORGE_COMMON_ENGINE_WEIGHT_STORE_H
#define FORGE_COMMON_ENGINE_WEIGHT_STORE_H

#include "common/engine/panel_file.h"
#include "common/model/weights.h"

typedef struct fg_weight_store fg_weight_store;

typedef struct fg_weight_store_options {
    const fg_weights *weights; /* borrowed for the call; NULL: the sources are of no file */
    /* "auto": beside the model, else the user's cache directory, for models worth it. "off": no file. Else
     * a directory, made when missing. */
    const char *cache;
    const fg_digest128
        *fingerprint; /* fg_weights_fingerprint, for who has it; NULL: it is computed */
    uint32_t thread_count;
    uint32_t wait_ms; /* for another process that packs the same; 0: as long as is sensible */
    bool only_file;   /* FG_CANCELLED where none is kept, instead of packing into memory */
    /* NULL, or told on the caller's thread how far packing is. */
    void (*on_progress)(void *ctx, uint64_t done_bytes, uint64_t total_bytes);
    void *ctx;
} fg_weight_store_options;

typedef enum fg_weight_origin {
    FG_WEIGHTS_PACKED, /* into this process's own memory */
    FG_WEIGHTS_MADE,   /* into a sidecar, which is mapped */
    FG_WEIGHTS_MAPPED, /* from a sidecar that was there */
    FG_WEIGHTS_DEVICE, /* into the device's own memory: no store has them */
} fg_weight_origin;

/* What happened at open. */
typedef struct fg_weight_report {
    fg_weight_origin origin;
    uint64_t bytes;
    uint64_t huge_bytes; /* of them, mapped by huge pages */
    uint64_t check_ns;   /* opening, mapping, verifying */
    uint64_t pack_ns;    /* writing included */
    uint64_t sync_ns;    /* until the disk had it */
    char path[256];      /* of the sidecar, cut when longer; "" for none */
    char warning[512];   /* why a sidecar was refused, or none could be kept; "" when all is well */
} fg_weight_report;

/* FG_AGAIN when out of memory or threads, FG_BAD_INPUT for a bad thread count; a sidecar that cannot be
 * used is no error (it is in the report, and logged once). `sources` is borrowed for the call. */
fg_status fg_weight_store_open(const fg_weight_store_options *options,
                               const fg_panel_source *sources, uint32_t count,
                               fg_weight_store **store_out, fg_error *err);
void fg_weight_store_close(fg_weight_store *store);

/* The panels of sources[index], 64-byte aligned; valid until close. */
const void *fg_weight_store_panels(const fg_weight_store *store, uint32_t index);
const fg_weight_report *fg_weight_store_report(const fg_weight_store *store);

#endif
