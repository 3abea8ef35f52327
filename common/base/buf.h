/*
 * buf - a growable byte string with a hard limit. Failure is sticky: after one append has failed
 * (`failed`), later appends do nothing, so a builder checks once at its end. One owner.
 */
#ifndef FORGE_COMMON_BASE_BUF_H
#define FORGE_COMMON_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct fg_buf {
    char *data; /* always NUL-terminated once anything was appended */
    size_t size;
    size_t capacity;
    size_t limit; /* 0: no limit of its own */
    bool failed;
} fg_buf;

void fg_buf_init(fg_buf *buf, size_t limit_bytes);
void fg_buf_deinit(fg_buf *buf);
/* Empties, keeps the memory, forgets a failure. */
void fg_buf_clear(fg_buf *buf);
bool fg_buf_append(fg_buf *buf, const void *bytes, size_t size_bytes);
bool fg_buf_puts(fg_buf *buf, const char *text);
bool fg_buf_putc(fg_buf *buf, char c);
bool fg_buf_printf(fg_buf *buf, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Appends `text` as the inside of a JSON string (no quotes): escapes ", \, controls; bytes that are
 * not valid UTF-8 become U+FFFD. */
bool fg_buf_json_escape(fg_buf *buf, const char *text, size_t length);
/* Drops the first `size_bytes`. */
void fg_buf_consume(fg_buf *buf, size_t size_bytes);
/* Makes room for `size_bytes` more and returns where they go; the caller then adds to `size`. */
char *fg_buf_reserve(fg_buf *buf, size_t size_bytes);

#endif
