/*
 * traceparent - the header by which a request says which trace it belongs to (W3C Trace Context,
 * https://www.w3.org/TR/trace-context/). Pure.
 *
 * Only version 00 is read. Whatever is not exactly that is no trace, and the reader begins a new one, as
 * the standard wants it: a bad header never costs a request.
 */
#ifndef FORGE_COMMON_OBS_TRACEPARENT_H
#define FORGE_COMMON_OBS_TRACEPARENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    FG_TRACEPARENT_LENGTH = 55,
    FG_TRACEPARENT_SAMPLED = 1, /* the one flag of version 00 that is read */
    FG_TRACESTATE_MAX = 512,    /* bytes; a longer one is dropped whole */
};

typedef struct fg_traceparent {
    uint64_t trace_high, trace_low; /* never both 0 */
    uint64_t span;                  /* never 0: the caller's span, the parent of ours */
    uint8_t flags;
} fg_traceparent;

/* `text` may be NULL. False: it is no valid header, and nothing was written. */
bool fg_traceparent_parse(const char *text, fg_traceparent *out);
/* Writes FG_TRACEPARENT_LENGTH characters and a NUL. */
void fg_traceparent_format(const fg_traceparent *trace, char out[FG_TRACEPARENT_LENGTH + 1]);
/* Whether a tracestate header may be passed on: 1 to 512 printable characters. NULL may not. */
bool fg_tracestate_is_fine(const char *text);

#endif
