#include "common/model/meta_writer.h"

#include <string.h>

enum { VERSION = 3, COUNT_AT = 4 + 4 + 8 };

void fg_meta_begin(fg_meta_writer *writer, size_t limit_bytes)
{
    *writer = (fg_meta_writer){ 0 };
    fg_buf_init(&writer->out, limit_bytes);
    const uint32_t version = VERSION;
    const uint64_t tensors = 0;
    fg_buf_append(&writer->out, "GGUF", 4);
    fg_buf_append(&writer->out, &version, sizeof version);
    fg_buf_append(&writer->out, &tensors, sizeof tensors);
    fg_buf_append(&writer->out, &writer->count, sizeof writer->count);
}

bool fg_meta_end(fg_meta_writer *writer)
{
    if (writer->out.failed) {
        return false;
    }
    memcpy(writer->out.data + COUNT_AT, &writer->count, sizeof writer->count);
    return true;
}

static void put_key(fg_meta_writer *writer, const char *key, fg_meta_type type)
{
    const uint32_t number = type;
    fg_meta_item(writer, key, strlen(key));
    fg_buf_append(&writer->out, &number, sizeof number);
    writer->count++;
}

void fg_meta_u32(fg_meta_writer *writer, const char *key, uint32_t value)
{
    put_key(writer, key, FG_META_U32);
    fg_buf_append(&writer->out, &value, sizeof value);
}

void fg_meta_f32(fg_meta_writer *writer, const char *key, float value)
{
    put_key(writer, key, FG_META_F32);
    fg_buf_append(&writer->out, &value, sizeof value);
}

void fg_meta_bool(fg_meta_writer *writer, const char *key, bool value)
{
    put_key(writer, key, FG_META_BOOL);
    fg_buf_putc(&writer->out, value ? 1 : 0);
}

void fg_meta_string(fg_meta_writer *writer, const char *key, const char *text, size_t length)
{
    put_key(writer, key, FG_META_STRING);
    fg_meta_item(writer, text, length);
}

void fg_meta_array(fg_meta_writer *writer, const char *key, fg_meta_type type, uint64_t count)
{
    const uint32_t number = type;
    put_key(writer, key, FG_META_ARRAY);
    fg_buf_append(&writer->out, &number, sizeof number);
    fg_buf_append(&writer->out, &count, sizeof count);
}

void fg_meta_item(fg_meta_writer *writer, const char *text, size_t length)
{
    const uint64_t bytes = length;
    fg_buf_append(&writer->out, &bytes, sizeof bytes);
    fg_buf_append(&writer->out, text, length);
}
