/*
 * spans - what a process did for traced requests, written to a file as OTLP JSON, a line per batch of
 * spans. Owned by the loop thread.
 *
 *   add -> filling -> flush: a line -> the file; full file -> FILE.1, and a new FILE
 *
 * What always holds: adding allocates nothing and writes nothing; what finds no room is dropped and
 * counted; one flush writes at most FG_SPANS_BYTES, and never waits for a reader (of a pipe). A line is
 * never spread over two files.
 */
#ifndef FORGE_COMMON_OBS_SPANS_H
#define FORGE_COMMON_OBS_SPANS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/rng.h"
#include "common/base/status.h"
#include "common/obs/otlp.h"

typedef struct fg_spans fg_spans;

enum { FG_SPANS_BYTES = 256 * 1024 };

typedef struct fg_spans_options {
    const char *path; /* a file; a folder (existing, or with a '/' at its end) gets one for each
                                process, named after it: INSTANCE.jsonl */
    uint64_t file_bytes_max; /* of one file; with the one before it, twice that are kept */
    double sample;           /* share of the requests that bring no trace of their own, 0 to 1 */
    fg_otlp_process process; /* its texts are copied */
    int64_t offset_ns;       /* from the times of spans to nanoseconds since 1970 */
    fg_rng rng;              /* ids are drawn from it */
} fg_spans_options;

/* FG_BAD_INPUT: the file cannot be opened; FG_AGAIN: out of memory. */
fg_status fg_spans_open(const fg_spans_options *options, fg_spans **spans_out, fg_error *err);
/* Writes what is there. NULL is fine. */
void fg_spans_close(fg_spans *spans);

/* All below take NULL: nobody looks. */

/* An id of a span, never 0. With NULL it is 0. */
uint64_t fg_spans_draw(fg_spans *spans);
/* Whether a request that begins a trace here is recorded. */
bool fg_spans_sample(fg_spans *spans);
/* A span that has ended; its texts are not kept. Its trace id and id are not 0. */
void fg_spans_add(fg_spans *spans, const fg_otlp_span *span);
/* Writes what has come since; every 10..100 ms. */
void fg_spans_flush(fg_spans *spans);

typedef struct fg_spans_stats {
    uint64_t added, dropped, lines, rotations, failed_writes;
} fg_spans_stats;
void fg_spans_stats_get(const fg_spans *spans, fg_spans_stats *stats_out);

#endif
