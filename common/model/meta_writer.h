/*
 * meta_writer - writes metadata as a GGUF file without tensors has it, so that the reader of such files reads what
 * another format says as well. One owner. Failure is the buffer's and sticky: looked at once, at the end.
 */
#ifndef FORGE_COMMON_MODEL_META_WRITER_H
#define FORGE_COMMON_MODEL_META_WRITER_H

#include "common/base/buf.h"
#include "common/model/weights.h"

typedef struct fg_meta_writer {
    fg_buf out;
    uint64_t count;
} fg_meta_writer;

void fg_meta_begin(fg_meta_writer *writer, size_t limit_bytes);
/* False: out of memory, or more than the limit. The bytes are writer->out's. */
bool fg_meta_end(fg_meta_writer *writer);

void fg_meta_u32(fg_meta_writer *writer, const char *key, uint32_t value);
void fg_meta_f32(fg_meta_writer *writer, const char *key, float value);
void fg_meta_bool(fg_meta_writer *writer, const char *key, bool value);
void fg_meta_string(fg_meta_writer *writer, const char *key, const char *text, size_t length);
/* Announces `count` items, which come next: by fg_meta_item for strings, by fg_buf_append for others. */
void fg_meta_array(fg_meta_writer *writer, const char *key, fg_meta_type type, uint64_t count);
void fg_meta_item(fg_meta_writer *writer, const char *text, size_t length);

#endif
