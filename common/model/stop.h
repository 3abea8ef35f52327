/*
 * stop - finds stop strings in a stream of text pieces. Holds back text that may be the beginning of
 * one, so that a stop string never leaks. One owner per instance.
 */
#ifndef FORGE_COMMON_MODEL_STOP_H
#define FORGE_COMMON_MODEL_STOP_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/buf.h"
#include "common/base/status.h"

typedef struct fg_stop fg_stop;

/* Strings are copied. No strings: everything passes at once. Empty strings are FG_BAD_INPUT. */
fg_status fg_stop_create(const char *const *strings, const size_t *lengths, size_t count,
                         fg_stop **stop_out, fg_error *err);
void fg_stop_destroy(fg_stop *stop);
/* Takes the next text; appends to `out` what is certain to be shown. Returns true once a stop string
 * was completed (earliest end wins): nothing after its beginning is ever appended. */
bool fg_stop_push(fg_stop *stop, const char *text, size_t length, fg_buf *out);
/* The end of the text without a stop: appends what was held back. */
void fg_stop_finish(fg_stop *stop, fg_buf *out);
/* Index of the string that matched, -1 before. */
int fg_stop_matched(const fg_stop *stop);

#endif
