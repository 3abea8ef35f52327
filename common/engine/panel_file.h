/*
 * panel_file - how packed weights lie in memory and in a sidecar file. Pure: no I/O, no clock. The plan
 * is read-only once made; any thread may fill pieces of it.
 *
 * The packed bytes of all matrices of a model follow each other in one range, the data, which is cut
 * into pieces of 2 MiB: a huge page, the unit of packing, of writing and of checking. What a piece holds
 * is a function of the model and the piece's number alone, so threads fill pieces in any order.
 *
 * A sidecar file is a header, a hole up to the next 2 MiB, the data. The header says which model state
 * the data was made of, which matrices lie where, and the digest of every piece:
 *
 *   fixed part | one entry per matrix | one digest per piece | digest of all this
 *
 * All of it but the digests is a function of the model, so it is never parsed: a reader makes the header
 * that it would write and compares. Nothing that a file claims is used as a size or an offset.
 */
#ifndef FORGE_COMMON_ENGINE_PANEL_FILE_H
#define FORGE_COMMON_ENGINE_PANEL_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/hash.h"
#include "common/base/status.h"
#include "common/model/weights.h"
#include "kernels/panel.h"

enum { FG_PIECE_BYTES = 2 * 1024 * 1024 };

/* A matrix to pack: rows as they are in the model file. Where that has them in another order (fg_tensor.rows), rows.data is
 * NULL, and the matrix begins with row `first` of `scattered`. */
typedef struct fg_panel_source {
    const char *name;
    fg_matrix rows;
    const fg_tensor *scattered; /* borrowed; else NULL */
    uint64_t first;
} fg_panel_source;

/* Leaves `count` rows of the source, from its row `first` on. */
void fg_panel_source_cut(fg_panel_source *source, uint32_t first, uint32_t count);

/* The state of a model file that packed bytes belong to. */
typedef struct fg_panel_model {
    uint64_t size_bytes;
    int64_t modified_ns;
    fg_digest128 fingerprint; /* fg_weights_fingerprint */
} fg_panel_model;

typedef struct fg_panel_plan {
    const fg_panel_source *sources; /* borrowed */
    uint32_t source_count;
    uint64_t *offsets; /* in the data, [source_count] */
    uint64_t data_bytes;
    uint32_t piece_count;
    size_t scratch_bytes; /* what fill needs: the largest panel, and the rows of one */
    size_t header_bytes;
    uint64_t data_offset; /* of the data in a file, a multiple of FG_PIECE_BYTES */
} fg_panel_plan;

/* `sources` stays valid while pieces are filled or headers made. FG_AGAIN when out of memory. */
fg_status fg_panel_plan_init(fg_panel_plan *plan, const fg_panel_source *sources, uint32_t count,
                             fg_error *err);
void fg_panel_plan_deinit(fg_panel_plan *plan);

/* Bytes of piece `piece`: FG_PIECE_BYTES, less for the last one. */
size_t fg_panel_piece_bytes(const fg_panel_plan *plan, uint32_t piece);
/* Packs what lies in the piece; every byte of it is written. `out` and `scratch` are 64-byte aligned. */
void fg_panel_plan_fill(const fg_panel_plan *plan, uint32_t piece, void *scratch, void *out);

/* Writes the header, plan->header_bytes long, over the digests (fg_hash64, seed 0) of all pieces. */
void fg_panel_header_make(const fg_panel_plan *plan, const fg_panel_model *model,
                          const uint64_t *digests, void *out);
/* FG_OK when these first bytes of a file (up to header_bytes, fewer when the file has fewer) are the header
 * of this plan and model: *digests_out points to the digests in it. FG_BAD_INPUT with a clause that says
 * what is wrong ("is truncated", "belongs to another model"). `bytes` is 8-byte aligned. */
fg_status fg_panel_header_check(const fg_panel_plan *plan, const fg_panel_model *model,
                                const void *bytes, size_t size_bytes, const uint64_t **digests_out,
                                fg_error *err);

#endif
