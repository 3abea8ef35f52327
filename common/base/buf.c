#include "common/base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/utf8.h"

void fg_buf_init(fg_buf *buf, size_t limit_bytes)
{
    *buf = (fg_buf){ .limit = limit_bytes };
}

void fg_buf_deinit(fg_buf *buf)
{
    fg_mem_free(buf->data);
    *buf = (fg_buf){ 0 };
}

void fg_buf_clear(fg_buf *buf)
{
    buf->size = 0;
    buf->failed = false;
    if (buf->data != NULL) {
        buf->data[0] = '\0';
    }
}

char *fg_buf_reserve(fg_buf *buf, size_t size_bytes)
{
    size_t need;
    if (buf->failed || __builtin_add_overflow(buf->size, size_bytes, &need) || need == SIZE_MAX ||
        (buf->limit != 0 && need > buf->limit)) {
        buf->failed = true;
        return NULL;
    }
    if (need + 1 > buf->capacity) {
        size_t capacity = buf->capacity < 64 ? 64 : buf->capacity;
        while (capacity < need + 1) {
            capacity = capacity > SIZE_MAX / 2 ? need + 1 : capacity * 2;
        }
        char *grown = fg_mem_resize(buf->data, capacity, 1);
        if (grown == NULL) {
            buf->failed = true;
            return NULL;
        }
        buf->data = grown;
        buf->capacity = capacity;
    }
    return buf->data + buf->size;
}

bool fg_buf_append(fg_buf *buf, const void *bytes, size_t size_bytes)
{
    char *place = fg_buf_reserve(buf, size_bytes);
    if (place == NULL) {
        return false;
    }
    if (size_bytes > 0) {
        memcpy(place, bytes, size_bytes);
    }
    buf->size += size_bytes;
    buf->data[buf->size] = '\0';
    return true;
}

bool fg_buf_puts(fg_buf *buf, const char *text)
{
    return fg_buf_append(buf, text, strlen(text));
}

bool fg_buf_putc(fg_buf *buf, char c)
{
    return fg_buf_append(buf, &c, 1);
}

bool fg_buf_printf(fg_buf *buf, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    va_list again;
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *place = length < 0 ? NULL : fg_buf_reserve(buf, (size_t)length);
    if (place != NULL) {
        vsnprintf(place, (size_t)length + 1, format, again);
        buf->size += (size_t)length;
    }
    va_end(again);
    buf->failed = buf->failed || length < 0;
    return place != NULL;
}

bool fg_buf_json_escape(fg_buf *buf, const char *text, size_t length)
{
    size_t at = 0;
    while (at < length) {
        unsigned char c = (unsigned char)text[at];
        if (c >= 0x80) {
            size_t step = fg_utf8_length(text + at, length - at);
            if (step == 0) {
                fg_buf_append(buf, "\xEF\xBF\xBD", 3);
                at++;
            } else {
                fg_buf_append(buf, text + at, step);
                at += step;
            }
            continue;
        }
        size_t plain = at;
        while (plain < length && (unsigned char)text[plain] >= 0x20 &&
               (unsigned char)text[plain] < 0x80 && text[plain] != '"' && text[plain] != '\\') {
            plain++;
        }
        if (plain > at) {
            fg_buf_append(buf, text + at, plain - at);
            at = plain;
            continue;
        }
        switch (c) {
        case '"':
            fg_buf_append(buf, "\\\"", 2);
            break;
        case '\\':
            fg_buf_append(buf, "\\\\", 2);
            break;
        case '\n':
            fg_buf_append(buf, "\\n", 2);
            break;
        case '\r':
            fg_buf_append(buf, "\\r", 2);
            break;
        case '\t':
            fg_buf_append(buf, "\\t", 2);
            break;
        default:
            fg_buf_printf(buf, "\\u%04x", c);
            break;
        }
        at++;
    }
    return !buf->failed;
}

void fg_buf_consume(fg_buf *buf, size_t size_bytes)
{
    if (size_bytes >= buf->size) {
        buf->size = 0;
    } else {
        memmove(buf->data, buf->data + size_bytes, buf->size - size_bytes);
        buf->size -= size_bytes;
    }
    if (buf->data != NULL) {
        buf->data[buf->size] = '\0';
    }
}
