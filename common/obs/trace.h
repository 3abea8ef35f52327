/*
 * trace - what a process did lately, for people to look at: steps and the lives of requests, in rings of
 * fixed size, rendered as Chrome trace-event JSON (opens in Perfetto). Owned by the loop thread; no
 * allocation after create, the oldest entries are overwritten.
 */
#ifndef FORGE_COMMON_OBS_TRACE_H
#define FORGE_COMMON_OBS_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/buf.h"

typedef struct fg_trace fg_trace;

/* One engine step of a worker. */
typedef struct fg_trace_step {
    uint64_t number;
    uint64_t planned_ns, began_ns, ended_ns; /* handed to the engine; computing; booked */
    uint32_t decode_rows, chunks, prefill_tokens, copies;
    uint32_t drafted, accepted; /* guesses at tokens computed along; those that were right */
    uint32_t asked,
        draft_us; /* sequences that a draft model was asked about, and how long it took */
    uint32_t running, waiting;
    uint32_t admitted, preempted, swapped, resumed, finished;
    uint32_t blocks_total, blocks_free, blocks_cached, blocks_held; /* held: pinned ones too */
    uint32_t unused_slots; /* in the last blocks of sequences: internal fragmentation */
    uint32_t saved_blocks; /* references to blocks beyond the first: what sharing saves */
} fg_trace_step;

/* A stretch of a request's life. */
typedef struct fg_trace_span {
    uint64_t request;
    uint32_t attempt;
    bool
        at_worker; /* told by a worker; its states lie within the router's, in a row of their own */
    const char *state; /* a constant */
    uint64_t began_ns, ended_ns;
    uint32_t tokens; /* of this stretch: computed or generated; 0: none */
} fg_trace_span;

/* NULL when out of memory. `process` is copied: the name of this process in the picture. */
fg_trace *fg_trace_create(const char *process, uint32_t step_max, uint32_t span_max);
void fg_trace_destroy(fg_trace *trace);
/* NULL is allowed, and does nothing. */
void fg_trace_add_step(fg_trace *trace, const fg_trace_step *step);
void fg_trace_add_span(fg_trace *trace, const fg_trace_span *span);
/* Appends {"traceEvents":[...]}: steps as slices with their numbers as arguments, counters for blocks,
 * batch and queue, spans as slices of one row per request, and one more for a worker's part of it. False: out of memory. */
bool fg_trace_render(const fg_trace *trace, uint32_t process_id, fg_buf *out);

#endif
