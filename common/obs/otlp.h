/*
 * otlp - spans as OTLP JSON (OpenTelemetry protocol, the JSON form of ExportTraceServiceRequest). Pure.
 *
 * A line is begun with the process that speaks, takes spans, and is ended; it then is one request object,
 * as collectors read them from a file, one per line. Text is escaped; bytes that are not UTF-8 become
 * U+FFFD; a text beyond FG_OTLP_TEXT_MAX bytes is cut between characters.
 */
#ifndef FORGE_COMMON_OBS_OTLP_H
#define FORGE_COMMON_OBS_OTLP_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/buf.h"

enum { FG_OTLP_ATTRS_MAX = 16, FG_OTLP_TEXT_MAX = 512 };

typedef enum fg_otlp_kind { FG_OTLP_INTERNAL = 1, FG_OTLP_SERVER = 2 } fg_otlp_kind;

/* A text, or (where `text` is NULL) a number. */
typedef struct fg_otlp_attr {
    const char *key;
    const char *text;
    int64_t number;
} fg_otlp_attr;

typedef struct fg_otlp_span {
    uint64_t trace_high, trace_low, id;
    uint64_t parent;         /* 0: the trace begins here */
    const char *trace_state; /* NULL or "": none */
    const char *name;
    fg_otlp_kind kind;
    uint64_t began_ns, ended_ns;
    const char *problem; /* NULL: it went well */
    fg_otlp_attr attrs[FG_OTLP_ATTRS_MAX];
    uint32_t attr_count;
} fg_otlp_span;

/* The process whose spans these are. */
typedef struct fg_otlp_process {
    const char *instance; /* service.instance.id: the worker's name */
    const char *role;
    uint64_t pid;
} fg_otlp_process;

/* One more attribute; beyond FG_OTLP_ATTRS_MAX it is left out. */
void fg_otlp_add_text(fg_otlp_span *span, const char *key, const char *text);
void fg_otlp_add_number(fg_otlp_span *span, const char *key, uint64_t number);

/* Each appends to `out`, whose `failed` says when it did not fit. */
void fg_otlp_begin_line(const fg_otlp_process *process, fg_buf *out);
/* `offset_ns` is added to the times: from the clock that they were taken with to nanoseconds since 1970. */
void fg_otlp_put_span(const fg_otlp_span *span, int64_t offset_ns, bool first, fg_buf *out);
void fg_otlp_end_line(fg_buf *out);

#endif
