/*
 * safetensors - the table at the head of a .safetensors file, checked. Pure; read-only once parsed.
 *
 * A file is a length of 8 bytes, so many bytes of JSON, and the data:
 *
 *   { "name": { "dtype": "BF16", "shape": [rows, columns], "data_offsets": [begin, end] }, ...,
 *     "__metadata__": { "key": "text" } }
 *
 * What holds after parsing: every tensor lies in the data, takes just the bytes that its type and shape ask for, and
 * the tensors fill the data without a hole and without an overlap, so nothing else can hide in the file.
 */
#ifndef FORGE_COMMON_MODEL_SAFETENSORS_H
#define FORGE_COMMON_MODEL_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

enum { FG_SAFETENSORS_DIMS_MAX = 8 };

typedef struct fg_safetensors fg_safetensors;

typedef struct fg_safetensor {
    const char *name;  /* printable, NUL-terminated */
    const char *dtype; /* "BF16", ...: one of the format's own */
    uint32_t dim_count;
    uint64_t dims[FG_SAFETENSORS_DIMS_MAX]; /* the last one is contiguous */
    const void *data;                       /* aligned to nothing */
    uint64_t size_bytes;
} fg_safetensor;

/* `bytes` is borrowed until close. FG_BAD_INPUT says in a clause what is wrong; FG_AGAIN: out of memory. */
fg_status fg_safetensors_parse(const void *bytes, size_t size_bytes, fg_safetensors **file_out,
                               fg_error *err);
void fg_safetensors_close(fg_safetensors *file);

uint32_t fg_safetensors_count(const fg_safetensors *file);
/* In the order of their data. */
const fg_safetensor *fg_safetensors_at(const fg_safetensors *file, uint32_t index);

#endif
