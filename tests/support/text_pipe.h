/*
 * text_pipe - texts between a tool and a test program in another language: a 32-bit little-endian length and
 * its bytes, on both sides.
 */
#ifndef FORGE_TESTS_SUPPORT_TEXT_PIPE_H
#define FORGE_TESTS_SUPPORT_TEXT_PIPE_H

#include <stdio.h>
#include <stdlib.h>

#include "common/base/mem.h"

enum { FG_PIPE_TEXT_MAX = 1 << 26 };

/* Ends the tool with status 2. */
__attribute__((noreturn)) static inline void fg_pipe_die(const char *tool, const char *what)
{
    fprintf(stderr, "%s: %s\n", tool, what);
    exit(2);
}

/* The next text from standard input, or NULL at its end. Caller owns. */
static inline char *fg_pipe_read(const char *tool, size_t *length_out)
{
    unsigned char head[4];
    if (fread(head, 1, 4, stdin) != 4) {
        return NULL;
    }
    size_t length =
        (size_t)head[0] | (size_t)head[1] << 8 | (size_t)head[2] << 16 | (size_t)head[3] << 24;
    char *text = length > FG_PIPE_TEXT_MAX ? NULL : (char *)fg_mem_alloc(length + 1);
    if (text == NULL || fread(text, 1, length, stdin) != length) {
        fg_pipe_die(tool, "cut-off input");
    }
    *length_out = length;
    return text;
}

static inline void fg_pipe_write(const char *text, size_t length)
{
    unsigned char head[4] = { (unsigned char)length, (unsigned char)(length >> 8),
                              (unsigned char)(length >> 16), (unsigned char)(length >> 24) };
    fwrite(head, 1, 4, stdout);
    fwrite(text, 1, length, stdout);
}

#endif
