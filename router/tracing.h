/*
 * tracing - which trace a request belongs to, and the spans that the router writes of it. Owned by the
 * loop thread.
 *
 *   POST /v1/completions     the request (or "line" inside the span of a batch)
 *     generate               one of its choices, on the workers
 *       queue, reserve, prefill, transfer, decode     each visit of a state; workers put theirs beside
 *
 * Every call takes spans NULL, which records nothing; the trace of the caller then still travels to the
 * workers.
 */
#ifndef FORGE_ROUTER_TRACING_H
#define FORGE_ROUTER_TRACING_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/rng.h"
#include "common/obs/life.h"
#include "common/obs/spans.h"
#include "common/obs/traceparent.h"
#include "router/request.h"

/* Reads the two headers (NULL: absent) of a request. A valid one goes on, another begins a trace where
 * somebody looks. The caller's wish whether to record is respected; ids come from `rng` where there are no
 * spans. *trace_out keeps `tracestate`, which has to live as long, or until fg_tracing_apply. */
void fg_tracing_begin(fg_spans *spans, fg_rng *rng, const char *traceparent, const char *tracestate,
                      fg_request_trace *trace_out);
/* A line of a batch, inside the batch's own span. */
void fg_tracing_begin_line(fg_spans *spans, const fg_request_trace *batch,
                           fg_request_trace *trace_out);
/* Hands the trace to a request that was read, whose arena then keeps it. FG_AGAIN: out of memory. */
fg_status fg_tracing_apply(const fg_request_trace *trace, fg_request *request);

/* "stop", "length", "cancelled" or "error". */
const char *fg_tracing_finish_name(fg_finish finish);

/* How a request went, for its own span. */
typedef struct fg_tracing_end {
    const char *route;      /* NULL: a line of a batch */
    const char *id, *model; /* NULL: it was refused before it had them */
    uint64_t began_ns, ended_ns;
    uint32_t prompt_tokens, cached_tokens, choices;
    uint64_t completion_tokens;
    const char *finish; /* NULL: it was refused */
    int http_status;
} fg_tracing_end;
void fg_tracing_end_request(fg_spans *spans, const fg_request_trace *trace,
                            const fg_tracing_end *end);

struct fg_job;
/* A choice starts: its own span lies inside the request's, and its workers' inside of it. */
void fg_tracing_start_job(fg_spans *spans, struct fg_job *job);
/* The job leaves its state. */
void fg_tracing_stretch(fg_spans *spans, const struct fg_job *job, uint64_t now_ns,
                        uint32_t tokens);
/* The job is over; `problem` is NULL where it went well. */
void fg_tracing_end_job(fg_spans *spans, const struct fg_job *job, uint64_t now_ns,
                        const char *problem);

#endif
