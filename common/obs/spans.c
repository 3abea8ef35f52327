#include "common/obs/spans.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/log.h"
#include "common/base/mem.h"

enum {
    TAIL_ROOM = 64,     /* kept for the end of a line */
    CLOSE_WRITES = 100, /* attempts to get rid of the rest at the end */
};

struct fg_spans {
    fg_spans_options options;
    fg_buf path, old_path;
    char *instance;
    fg_buf filling, writing; /* the line that grows; the one on its way out, from `written` on */
    uint32_t filled;         /* spans in the first */
    uint32_t leaving;        /* spans in the second */
    size_t written;
    uint64_t file_bytes;
    int file;     /* -1: none */
    bool regular; /* no pipe or device: it can be full */
    bool torn;    /* the file's last line was given up half way */
    bool warned;
    fg_spans_stats stats;
};

static bool is_folder(const char *path)
{
    struct stat found;
    size_t length = strlen(path);
    return (length > 0 && path[length - 1] == '/') ||
           (stat(path, &found) == 0 && S_ISDIR(found.st_mode));
}

static void name_files(fg_spans *spans, const char *path)
{
    fg_buf_puts(&spans->path, path);
    if (is_folder(path)) {
        size_t length = strlen(path);
        fg_buf_printf(&spans->path, "%s%s.jsonl", path[length - 1] == '/' ? "" : "/",
                      spans->instance);
    }
    fg_buf_printf(&spans->old_path, "%s.1", spans->path.failed ? "" : spans->path.data);
}

/* O_NONBLOCK matters to pipes only: a reader that stopped does not stop the server. */
static fg_status open_file(fg_spans *spans, fg_error *err)
{
    struct stat found = { 0 };
    spans->file =
        open(spans->path.data, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0644);
    if (spans->file < 0) {
        return fg_fail(err, FG_BAD_INPUT, "%s: %s", spans->path.data, strerror(errno));
    }
    fstat(spans->file, &found);
    spans->regular = S_ISREG(found.st_mode);
    spans->file_bytes = spans->regular ? (uint64_t)found.st_size : 0;
    return FG_OK;
}

fg_status fg_spans_open(const fg_spans_options *options, fg_spans **spans_out, fg_error *err)
{
    fg_spans *spans = fg_mem_alloc(sizeof *spans);
    if (spans == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for the spans");
    }
    spans->options = *options;
    spans->file = -1;
    fg_buf_init(&spans->path, 0);
    fg_buf_init(&spans->old_path, 0);
    fg_buf_init(&spans->filling, FG_SPANS_BYTES);
    fg_buf_init(&spans->writing, FG_SPANS_BYTES);
    spans->instance = fg_mem_strdup(options->process.instance);
    fg_status status = FG_OK;
    if (spans->instance == NULL || fg_buf_reserve(&spans->filling, FG_SPANS_BYTES - 1) == NULL ||
        fg_buf_reserve(&spans->writing, FG_SPANS_BYTES - 1) == NULL) {
        status = fg_fail(err, FG_AGAIN, "out of memory for the spans");
    } else {
        spans->options.process.instance = spans->instance;
        name_files(spans, options->path);
        status = spans->path.failed || spans->old_path.failed
                     ? fg_fail(err, FG_AGAIN, "out of memory for the spans")
                     : open_file(spans, err);
    }
    if (status != FG_OK) {
        fg_spans_close(spans);
        return status;
    }
    *spans_out = spans;
    return FG_OK;
}

void fg_spans_close(fg_spans *spans)
{
    if (spans == NULL) {
        return;
    }
    if (spans->file >= 0) {
        for (int i = 0; i < CLOSE_WRITES && spans->filled + spans->leaving > 0; i++) {
            fg_spans_flush(spans);
        }
        close(spans->file);
    }
    if (spans->stats.dropped > 0) {
        fg_warn("spans", "event=dropped count=%llu", (unsigned long long)spans->stats.dropped);
    }
    fg_buf_deinit(&spans->path);
    fg_buf_deinit(&spans->old_path);
    fg_buf_deinit(&spans->filling);
    fg_buf_deinit(&spans->writing);
    fg_mem_free(spans->instance);
    fg_mem_free(spans);
}

uint64_t fg_spans_draw(fg_spans *spans)
{
    uint64_t id = 0;
    while (spans != NULL && id == 0) {
        id = fg_rng_next(&spans->options.rng);
    }
    return id;
}

bool fg_spans_sample(fg_spans *spans)
{
    return spans != NULL &&
           (double)(fg_rng_next(&spans->options.rng) >> 11) * 0x1p-53 < spans->options.sample;
}

void fg_spans_add(fg_spans *spans, const fg_otlp_span *span)
{
    if (spans == NULL) {
        return;
    }
    FG_ASSERT((span->trace_high | span->trace_low) != 0 && span->id != 0, "%s", span->name);
    fg_buf *line = &spans->filling;
    if (spans->filled == 0) {
        fg_buf_clear(line);
        fg_otlp_begin_line(&spans->options.process, line);
    }
    size_t before = line->size;
    fg_otlp_put_span(span, spans->options.offset_ns, spans->filled == 0, line);
    if (line->failed || line->size + TAIL_ROOM > FG_SPANS_BYTES) {
        /* No room: the line is as it was, and its end still fits. */
        line->failed = false;
        line->size = before;
        line->data[before] = '\0';
        spans->stats.dropped++;
        return;
    }
    spans->filled++;
    spans->stats.added++;
}

/* The file is full: it becomes the old one, whose place it takes. */
static void rotate(fg_spans *spans)
{
    fg_error err;
    close(spans->file);
    spans->file = -1;
    spans->torn = false;
    spans->stats.rotations++;
    if (rename(spans->path.data, spans->old_path.data) != 0) {
        fg_warn("spans", "event=rotate_failed cause=\"%s\"", strerror(errno));
    }
    if (open_file(spans, &err) != FG_OK) {
        fg_warn("spans", "event=reopen_failed cause=\"%s\"", err.text);
    }
}

/* The grown line becomes the one that is written, into a file that has room for it. */
static void begin_writing(fg_spans *spans)
{
    fg_error err;
    fg_otlp_end_line(&spans->filling);
    fg_buf line = spans->filling;
    spans->filling = spans->writing;
    spans->writing = line;
    spans->leaving = spans->filled;
    spans->filled = 0;
    spans->written = 0;
    if (spans->file < 0) {
        open_file(spans, &err); /* it could not be opened after a rotation; said then */
    } else if (spans->regular && spans->file_bytes > 0 &&
               spans->file_bytes + line.size > spans->options.file_bytes_max) {
        rotate(spans);
    }
}

/* Gives up the line that is on its way out. */
static void drop_line(fg_spans *spans, const char *cause)
{
    if (!spans->warned) {
        fg_warn("spans", "event=write_failed cause=\"%s\"", cause);
    }
    spans->warned = true;
    spans->stats.failed_writes++;
    spans->stats.dropped += spans->leaving;
    spans->torn = spans->torn || spans->written > 0;
    spans->leaving = 0;
}

static void write_more(fg_spans *spans)
{
    if (spans->torn && write(spans->file, "\n", 1) != 1) {
        return;
    }
    spans->torn = false;
    ssize_t count = write(spans->file, spans->writing.data + spans->written,
                          spans->writing.size - spans->written);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    if (count < 0) {
        drop_line(spans, strerror(errno));
        return;
    }
    spans->written += (size_t)count;
    spans->file_bytes += (uint64_t)count;
    if (spans->written == spans->writing.size) {
        spans->leaving = 0;
        spans->warned = false;
        spans->stats.lines++;
    }
}

void fg_spans_flush(fg_spans *spans)
{
    if (spans == NULL || (spans->leaving == 0 && spans->filled == 0)) {
        return;
    }
    if (spans->leaving == 0) {
        begin_writing(spans);
    }
    if (spans->file < 0) {
        drop_line(spans, "there is no file");
        return;
    }
    write_more(spans);
}

void fg_spans_stats_get(const fg_spans *spans, fg_spans_stats *stats_out)
{
    *stats_out = spans == NULL ? (fg_spans_stats){ 0 } : spans->stats;
}
