/*
 * Reading a trace's file. The only code that knows liblzma.
 */
#include <errno.h>
#include <lzma.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "common/base/buf.h"
#include "tests/sim/workload.h"

enum { PIECE_BYTES = 1 << 16 };
#define UNPACK_BYTES (256ull * 1024 * 1024) /* what unpacking may take of memory */

static bool is_packed(const char *path)
{
    size_t length = strlen(path);
    return length > 3 && strcmp(path + length - 3, ".xz") == 0;
}

static fg_status add(fg_buf *text, const void *bytes, size_t size_bytes, fg_error *err)
{
    if (text->size + size_bytes > FG_WORKLOAD_TEXT_BYTES) {
        return fg_fail(err, FG_BAD_INPUT, "larger than %u MiB; cut it",
                       FG_WORKLOAD_TEXT_BYTES >> 20);
    }
    return fg_buf_append(text, bytes, size_bytes) ? FG_OK : fg_fail(err, FG_AGAIN, "out of memory");
}

static fg_status read_plain(FILE *file, fg_buf *text, fg_error *err)
{
    char piece[PIECE_BYTES];
    fg_status status = FG_OK;
    size_t got;
    while (status == FG_OK && (got = fread(piece, 1, sizeof piece, file)) > 0) {
        status = add(text, piece, got, err);
    }
    return status != FG_OK || !ferror(file) ? status
                                            : fg_fail(err, FG_BAD_INPUT, "%s", strerror(errno));
}

static fg_status unpack(FILE *file, lzma_stream *stream, fg_buf *text, fg_error *err)
{
    uint8_t in[PIECE_BYTES], out[PIECE_BYTES];
    lzma_ret code = LZMA_OK;
    fg_status status = FG_OK;
    while (status == FG_OK && code == LZMA_OK) {
        if (stream->avail_in == 0 && !feof(file)) {
            stream->next_in = in;
            stream->avail_in = fread(in, 1, sizeof in, file);
            if (ferror(file)) {
                return fg_fail(err, FG_BAD_INPUT, "%s", strerror(errno));
            }
        }
        stream->next_out = out;
        stream->avail_out = sizeof out;
        code = lzma_code(stream, feof(file) ? LZMA_FINISH : LZMA_RUN);
        status = add(text, out, sizeof out - stream->avail_out, err);
    }
    if (status != FG_OK || code == LZMA_STREAM_END) {
        return status;
    }
    return code == LZMA_MEM_ERROR
               ? fg_fail(err, FG_AGAIN, "out of memory")
               : fg_fail(err, FG_BAD_INPUT, "it is no whole .xz file (code %d)", (int)code);
}

static fg_status read_packed(FILE *file, fg_buf *text, fg_error *err)
{
    lzma_stream stream = LZMA_STREAM_INIT;
    if (lzma_stream_decoder(&stream, UNPACK_BYTES, LZMA_CONCATENATED) != LZMA_OK) {
        return fg_fail(err, FG_AGAIN, "out of memory");
    }
    fg_status status = unpack(file, &stream, text, err);
    lzma_end(&stream);
    return status;
}

fg_status fg_workload_read(const char *path, uint32_t count_max, fg_workload *workload_out,
                           fg_error *err)
{
    fg_error why;
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return fg_fail(err, FG_BAD_INPUT, "%s: %s", path, strerror(errno));
    }
    fg_buf text;
    fg_buf_init(&text, FG_WORKLOAD_TEXT_BYTES);
    fg_status status =
        is_packed(path) ? read_packed(file, &text, &why) : read_plain(file, &text, &why);
    fclose(file);
    if (status == FG_OK) {
        status = fg_workload_parse(text.data == NULL ? "" : text.data, text.size, count_max,
                                   workload_out, &why);
    }
    fg_buf_deinit(&text);
    return status == FG_OK ? FG_OK : fg_fail(err, status, "%s: %s", path, why.text);
}
