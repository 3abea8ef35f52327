/*
 * key_file - what all files of keys share: how they are read, and what their lines are. Inside of net.
 *
 * Words of a line stand apart by spaces and tabs. Lines that begin with '#' and empty lines are skipped. A file ends with a
 * newline, so that one that was cut short is noticed.
 */
#ifndef FORGE_COMMON_NET_KEY_FILE_H
#define FORGE_COMMON_NET_KEY_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

enum { FG_KEY_WORDS_MAX = 8 };

/* At least one word. */
typedef struct fg_key_line {
    const char *start[FG_KEY_WORDS_MAX];
    size_t length[FG_KEY_WORDS_MAX];
    uint32_t count; /* FG_KEY_WORDS_MAX: so many or more */
    uint32_t number;
} fg_key_line;

bool fg_key_word_is(const fg_key_line *line, uint32_t index, const char *word);

/* What is wrong with a line, NULL for a good one; it never shows what it read. */
typedef const char *(*fg_key_line_fn)(void *ctx, const fg_key_line *line);

/* Every line in order, until one is wrong: FG_BAD_INPUT, "LABEL:LINE: why". */
fg_status fg_key_lines(const char *label, const char *text, size_t size_bytes,
                       fg_key_line_fn on_line, void *ctx, fg_error *err);

/* The whole file, up to FG_LIMIT_KEY_FILE_BYTES; whoever takes it gives it to fg_key_file_drop. FG_BAD_INPUT when it
 * is missing, which `hint` follows, or no plain file, or one that others may write, or of which others may read a
 * secret. */
fg_status fg_key_file_read(const char *path, bool secret, const char *hint, char **text_out,
                           size_t *size_out, fg_error *err);
void fg_key_file_drop(char *text); /* wiped; NULL is fine */

#endif
