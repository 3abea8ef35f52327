/*
 * weights - a model file, or a folder of files (folder.h), mapped and checked. Read-only after open; any thread may read.
 *
 * Everything that a file claims (counts, sizes, offsets, types) is checked against the file's real
 * size before use; a file that does not fit is refused with one line.
 */
#ifndef FORGE_COMMON_MODEL_WEIGHTS_H
#define FORGE_COMMON_MODEL_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/hash.h"
#include "common/base/status.h"

typedef struct fg_weights fg_weights;

/* Where the rows of a matrix are that a file does not have side by side, in order, and aligned. */
typedef struct fg_tensor_rows {
    const void *const *matrices; /* dims[2] of them, of dims[1] rows each */
    /* Above 0: of each head's so many rows the first half and the second half take turns in the tensor, but not in the
     * file: its row 2i is the file's i, its row 2i + 1 the file's head_rows / 2 + i. */
    uint32_t head_rows;
} fg_tensor_rows;

typedef struct fg_tensor {
    const char *name;
    uint32_t type; /* fg_dtype */
    uint32_t dim_count;
    uint64_t dims[4]; /* dims[0] is contiguous; unused ones are 1 */
    const void *data; /* into the mapping; NULL where there are `rows` */
    const fg_tensor_rows
        *rows; /* of matrices of folders alone, never of the embedding; else NULL */
    uint64_t size_bytes;
} fg_tensor;

typedef enum fg_meta_type {
    FG_META_U8,
    FG_META_I8,
    FG_META_U16,
    FG_META_I16,
    FG_META_U32,
    FG_META_I32,
    FG_META_F32,
    FG_META_BOOL,
    FG_META_STRING,
    FG_META_ARRAY,
    FG_META_U64,
    FG_META_I64,
    FG_META_F64
} fg_meta_type; /* GGUF's numbers */

/* Maps the file at `path` (GGUF v3), or a folder's files. FG_BAD_INPUT with one clear line when it is refused. */
fg_status fg_weights_open(const char *path, fg_weights **weights_out, fg_error *err);
/* The same over bytes in memory, borrowed until close (tests, fuzzing). */
fg_status fg_weights_open_memory(const void *bytes, size_t size_bytes, fg_weights **weights_out,
                                 fg_error *err);
void fg_weights_close(fg_weights *weights);

const fg_tensor *fg_weights_find(const fg_weights *weights, const char *name); /* NULL: absent */
uint64_t fg_weights_tensor_count(const fg_weights *weights);
const fg_tensor *fg_weights_tensor(const fg_weights *weights, uint64_t index);
uint64_t fg_weights_size_bytes(const fg_weights *weights);
/* Writes rows first .. first + count - 1 of a tensor to `out`, one behind the other. */
void fg_tensor_copy_rows(const fg_tensor *tensor, uint64_t first, uint64_t count, void *out);
/* The rows of a tensor leave this process's page tables (the page cache keeps what it wants to): they were
 * packed and are not read again. */
void fg_weights_release(const fg_weights *weights, const fg_tensor *tensor);
/* The rows of a tensor are read from the disk in the background, where they are not in memory yet. */
void fg_weights_prefetch(const fg_weights *weights, const fg_tensor *tensor);

/* The file's state when it was mapped; of a folder, all of its files' together: their sizes added, the newest change. NULL for
 * bytes in memory; valid until close. */
typedef struct fg_weights_file {
    const char *path;
    uint64_t size_bytes;
    int64_t modified_ns; /* since 1970 */
    uint32_t owner;      /* user id */
    uint32_t mode;       /* permission bits */
} fg_weights_file;
const fg_weights_file *fg_weights_file_of(const fg_weights *weights);

/* Typed metadata. False (and *out untouched) when absent or of another kind; integers of any width
 * are accepted where the value fits. */
bool fg_weights_get_u32(const fg_weights *weights, const char *key, uint32_t *out);
bool fg_weights_get_f32(const fg_weights *weights, const char *key, float *out);
bool fg_weights_get_bool(const fg_weights *weights, const char *key, bool *out);
/* Strings are not NUL-terminated; valid until close. */
bool fg_weights_get_string(const fg_weights *weights, const char *key, const char **text_out,
                           size_t *length_out);
/* Arrays of strings, and of integers or floats (read one item at a time, O(1)). */
bool fg_weights_get_array(const fg_weights *weights, const char *key, fg_meta_type *type_out,
                          uint64_t *count_out);
bool fg_weights_array_string(const fg_weights *weights, const char *key, uint64_t index,
                             const char **text_out, size_t *length_out);
bool fg_weights_array_i64(const fg_weights *weights, const char *key, uint64_t index, int64_t *out);
bool fg_weights_array_f32(const fg_weights *weights, const char *key, uint64_t index, float *out);

/* Digest of what a request's answer depends on: hyper-parameters, tensor table and contents (sampled
 * pages of large tensors, so that opening stays fast). Equal files give equal fingerprints. */
fg_digest128 fg_weights_fingerprint(const fg_weights *weights);

/* Reference dequantiser: `count` elements (a multiple of the type's block) of `type` to floats. */
void fg_dequant(uint32_t type, const void *source, float *out, uint64_t count);

#endif
