/*
 * weight_cache - sidecar files of packed weights on disk: where they are looked for, who may have written
 * them, and how one is written so that it is whole or absent under its name. No state of its own.
 *
 * A writer holds a lock (flock) on FILE.tmp beside FILE and renames it when all is written and on the
 * disk. Who comes meanwhile waits for the lock, and then finds the file. A writer that died leaves
 * FILE.tmp without a lock: the next one writes over it.
 */
#ifndef FORGE_COMMON_ENGINE_WEIGHT_CACHE_H
#define FORGE_COMMON_ENGINE_WEIGHT_CACHE_H

#include <stdbool.h>

#include "common/engine/panel_file.h"
#include "common/model/weights.h"

enum { FG_CACHE_PLACES_MAX = 2, FG_CACHE_PATH_MAX = 1024 };

typedef struct fg_cache_places {
    char paths[FG_CACHE_PLACES_MAX][FG_CACHE_PATH_MAX];
    uint32_t count;
} fg_cache_places;

/* Where the sidecar of this model may be, the best first: in `directory`; or, for NULL, beside the model
 * and in the user's cache directory (forge/weights in $XDG_CACHE_HOME or ~/.cache). Writing there makes
 * directories that are missing. */
void fg_cache_places_find(const fg_weights_file *file, const fg_panel_model *model,
                          const char *directory, fg_cache_places *places_out);

/* Opens the sidecar at `path` and compares its header. FG_AGAIN: there is none. FG_BAD_INPUT, with a
 * clause about the file: it is of no use. On FG_OK the caller owns *fd_out, and *header_out, which holds
 * the digests (fg_mem_free). */
fg_status fg_cache_open(const char *path, const fg_panel_plan *plan, const fg_panel_model *model,
                        uint32_t model_owner, int *fd_out, void **header_out,
                        const uint64_t **digests_out, fg_error *err);

typedef struct fg_cache_writer {
    int fd; /* -1: not open */
    const char *path;
    char temporary[FG_CACHE_PATH_MAX + 8];
    bool waited; /* for another writer, who may have written the file */
} fg_cache_writer;

/* Takes the right to write the sidecar at `path` (borrowed until the end), with room on the disk.
 * FG_BAD_INPUT with the reason when that cannot be; FG_TIMEOUT when another holds it for wait_ms. */
fg_status fg_cache_begin(const char *path, const fg_panel_plan *plan, uint32_t mode,
                         uint32_t wait_ms, fg_cache_writer *writer_out, fg_error *err);
/* Writes all of the bytes at `offset`. Any thread. */
fg_status fg_cache_write(const fg_cache_writer *writer, uint64_t offset, const void *bytes,
                         size_t size_bytes, fg_error *err);
/* Puts what was written under its name, durably. The writer stays open, to map from, until end. */
fg_status fg_cache_publish(fg_cache_writer *writer, fg_error *err);
/* Gives the right back; nothing remains of what was not published. */
void fg_cache_end(fg_cache_writer *writer, bool published);

#endif
