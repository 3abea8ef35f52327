#include "common/obs/trace.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/base/status.h"

enum {
    STEP_ROW = 1,
    FIRST_REQUEST_ROW = 100,
    TABLE_FACTOR = 2, /* the table of rows is at most half full */
};
/* A pause between two steps that is shown as one: the counters of the batch fall to zero. */
#define PAUSE_NS 1000000u

/* Which row of the picture belongs to a request. */
typedef struct row_entry {
    uint64_t request;
    uint32_t row; /* 0: the place is empty */
    bool at_worker;
} row_entry;

struct fg_trace {
    char *process;
    fg_trace_step *steps;
    fg_trace_span *spans;
    uint32_t step_max, span_max;
    uint64_t steps_added, spans_added; /* ever: the newest lies at (added - 1) % max */
    row_entry *rows;                   /* filled anew by each render */
    size_t row_mask;
};

/* A ring that nobody wants may have no places; memory of size zero is not asked for. */
static bool make_ring(uint32_t count, size_t item_bytes, void *ring_out)
{
    void *ring = count == 0 ? NULL : fg_mem_array(count, item_bytes);
    memcpy(ring_out, &ring, sizeof ring);
    return count == 0 || ring != NULL;
}

fg_trace *fg_trace_create(const char *process, uint32_t step_max, uint32_t span_max)
{
    fg_trace *trace = fg_mem_alloc(sizeof *trace);
    if (trace == NULL) {
        return NULL;
    }
    size_t places = 1;
    while (places < (size_t)span_max * TABLE_FACTOR) {
        places *= 2;
    }
    trace->step_max = step_max;
    trace->span_max = span_max;
    trace->row_mask = places - 1;
    trace->process = fg_mem_strdup(process);
    trace->rows = fg_mem_array(places, sizeof *trace->rows);
    if (trace->process == NULL || trace->rows == NULL ||
        !make_ring(step_max, sizeof *trace->steps, &trace->steps) ||
        !make_ring(span_max, sizeof *trace->spans, &trace->spans)) {
        fg_trace_destroy(trace);
        return NULL;
    }
    return trace;
}

void fg_trace_destroy(fg_trace *trace)
{
    if (trace == NULL) {
        return;
    }
    fg_mem_free(trace->rows);
    fg_mem_free(trace->spans);
    fg_mem_free(trace->steps);
    fg_mem_free(trace->process);
    fg_mem_free(trace);
}

void fg_trace_add_step(fg_trace *trace, const fg_trace_step *step)
{
    if (trace != NULL && trace->step_max > 0) {
        trace->steps[trace->steps_added++ % trace->step_max] = *step;
    }
}

void fg_trace_add_span(fg_trace *trace, const fg_trace_span *span)
{
    if (trace != NULL && trace->span_max > 0) {
        trace->spans[trace->spans_added++ % trace->span_max] = *span;
    }
}

/* ---- rendering ---- */

static uint64_t sub(uint64_t later, uint64_t earlier)
{
    return later > earlier ? later - earlier : 0;
}

/* The format counts in microseconds; the fraction keeps what the clock knows, exactly. */
static void put_time(fg_buf *out, const char *name, uint64_t ns)
{
    fg_buf_printf(out, ",\"%s\":%" PRIu64 ".%03u", name, ns / 1000, (unsigned)(ns % 1000));
}

/* Opens an event up to its arguments; the caller writes these and "}}". */
static void begin_event(fg_buf *out, char phase, uint32_t process_id, uint32_t row)
{
    fg_buf_printf(out, ",\n{\"ph\":\"%c\",\"pid\":%" PRIu32 ",\"tid\":%" PRIu32, phase, process_id,
                  row);
}

static void put_counter(fg_buf *out, uint32_t process_id, const char *name, uint64_t at_ns)
{
    begin_event(out, 'C', process_id, STEP_ROW);
    fg_buf_printf(out, ",\"name\":\"%s\"", name);
    put_time(out, "ts", at_ns);
}

static void put_row_name(fg_buf *out, uint32_t process_id, uint32_t row, const char *name)
{
    begin_event(out, 'M', process_id, row);
    fg_buf_printf(out, ",\"name\":\"thread_name\",\"args\":{\"name\":\"%s\"}}", name);
    begin_event(out, 'M', process_id, row);
    fg_buf_printf(out, ",\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":%" PRIu32 "}}",
                  row);
}

/* The oldest entry that is still there, and one past the newest, counted from the first ever. */
static uint64_t oldest(uint64_t added, uint32_t max)
{
    return added > max ? added - max : 0;
}

static void put_batch(fg_buf *out, uint32_t process_id, uint64_t at_ns, uint32_t decode_rows,
                      uint32_t prefill_tokens)
{
    put_counter(out, process_id, "batch", at_ns);
    fg_buf_printf(out, ",\"args\":{\"decode rows\":%" PRIu32 ",\"prefill tokens\":%" PRIu32 "}}",
                  decode_rows, prefill_tokens);
}

static void put_step_counters(fg_buf *out, uint32_t process_id, const fg_trace_step *step)
{
    uint64_t known = (uint64_t)step->blocks_free + step->blocks_cached + step->blocks_held;
    put_batch(out, process_id, step->began_ns, step->decode_rows, step->prefill_tokens);
    put_counter(out, process_id, "requests", step->ended_ns);
    fg_buf_printf(out, ",\"args\":{\"running\":%" PRIu32 ",\"waiting\":%" PRIu32 "}}",
                  step->running, step->waiting);
    put_counter(out, process_id, "KV blocks", step->ended_ns);
    /* "other" is what a writer or reader may still touch: the four add up to the pool. */
    fg_buf_printf(out,
                  ",\"args\":{\"held\":%" PRIu32 ",\"cached\":%" PRIu32 ",\"other\":%" PRIu64
                  ",\"free\":%" PRIu32 "}}",
                  step->blocks_held, step->blocks_cached, sub(step->blocks_total, known),
                  step->blocks_free);
}

static void put_step(fg_buf *out, uint32_t process_id, const fg_trace_step *step,
                     const fg_trace_step *next)
{
    /* The next step may compute already while this one is being booked. Slices of one row must not
     * overlap by halves, so this one is shown up to there; booked_us has the whole time. */
    uint64_t shown_until = step->ended_ns;
    if (next != NULL && next->began_ns < shown_until) {
        shown_until = next->began_ns;
    }
    begin_event(out, 'X', process_id, STEP_ROW);
    fg_buf_printf(out, ",\"cat\":\"step\",\"name\":\"%s\"",
                  step->chunks == 0        ? "decode"
                  : step->decode_rows == 0 ? "prefill"
                                           : "prefill+decode");
    put_time(out, "ts", step->began_ns);
    put_time(out, "dur", sub(shown_until, step->began_ns));
    fg_buf_printf(out, ",\"args\":{\"number\":%" PRIu64, step->number);
    put_time(out, "waited_us", sub(step->began_ns, step->planned_ns));
    put_time(out, "booked_us", sub(step->ended_ns, step->began_ns));
    const struct {
        const char *name;
        uint32_t value;
    } numbers[] = {
        { "decode_rows", step->decode_rows },
        { "chunks", step->chunks },
        { "prefill_tokens", step->prefill_tokens },
        { "copies", step->copies },
        { "drafted", step->drafted },
        { "accepted", step->accepted },
        { "asked", step->asked },
        { "draft_us", step->draft_us },
        { "running", step->running },
        { "waiting", step->waiting },
        { "admitted", step->admitted },
        { "preempted", step->preempted },
        { "swapped", step->swapped },
        { "resumed", step->resumed },
        { "finished", step->finished },
        { "blocks_total", step->blocks_total },
        { "blocks_free", step->blocks_free },
        { "blocks_cached", step->blocks_cached },
        { "blocks_held", step->blocks_held },
        { "unused_slots", step->unused_slots },
        { "saved_blocks", step->saved_blocks },
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        fg_buf_printf(out, ",\"%s\":%" PRIu32, numbers[i].name, numbers[i].value);
    }
    fg_buf_puts(out, "}}");
}

static void put_steps(const fg_trace *trace, uint32_t process_id, fg_buf *out)
{
    if (trace->steps_added > 0) {
        put_row_name(out, process_id, STEP_ROW, "steps");
    }
    for (uint64_t i = oldest(trace->steps_added, trace->step_max); i < trace->steps_added; i++) {
        const fg_trace_step *step = &trace->steps[i % trace->step_max];
        const fg_trace_step *next =
            i + 1 < trace->steps_added ? &trace->steps[(i + 1) % trace->step_max] : NULL;
        put_step(out, process_id, step, next);
        put_step_counters(out, process_id, step);
        if (next == NULL || sub(next->began_ns, step->ended_ns) > PAUSE_NS) {
            put_batch(out, process_id, step->ended_ns, 0, 0);
        }
    }
}

/* The request's row; a row that is new in this picture gets its name first. */
static uint32_t row_of(const fg_trace *trace, const fg_trace_span *span, uint32_t *row_count,
                       uint32_t process_id, fg_buf *out)
{
    uint64_t request = span->request;
    size_t at = (fg_hash_mix(request) + span->at_worker) & trace->row_mask;
    while (trace->rows[at].row != 0 &&
           (trace->rows[at].request != request || trace->rows[at].at_worker != span->at_worker)) {
        at = (at + 1) & trace->row_mask;
    }
    row_entry *entry = &trace->rows[at];
    if (entry->row == 0) {
        char name[32];
        *entry = (row_entry){ .request = request,
                              .row = FIRST_REQUEST_ROW + (*row_count)++,
                              .at_worker = span->at_worker };
        /* As log lines write it, so that one can be found with the other. */
        snprintf(name, sizeof name, "req=%016" PRIx64 "%s", request,
                 span->at_worker ? " worker" : "");
        put_row_name(out, process_id, entry->row, name);
    }
    return entry->row;
}

static void put_spans(const fg_trace *trace, uint32_t process_id, fg_buf *out)
{
    uint32_t row_count = 0;
    memset(trace->rows, 0, (trace->row_mask + 1) * sizeof *trace->rows);
    for (uint64_t i = oldest(trace->spans_added, trace->span_max); i < trace->spans_added; i++) {
        const fg_trace_span *span = &trace->spans[i % trace->span_max];
        uint32_t row = row_of(trace, span, &row_count, process_id, out);
        begin_event(out, 'X', process_id, row);
        fg_buf_puts(out, ",\"cat\":\"request\",\"name\":\"");
        fg_buf_json_escape(out, span->state, strlen(span->state));
        fg_buf_putc(out, '"');
        put_time(out, "ts", span->began_ns);
        put_time(out, "dur", sub(span->ended_ns, span->began_ns));
        fg_buf_printf(out,
                      ",\"args\":{\"request\":\"%016" PRIx64 "\",\"attempt\":%" PRIu32
                      ",\"tokens\":%" PRIu32 "}}",
                      span->request, span->attempt, span->tokens);
    }
}

bool fg_trace_render(const fg_trace *trace, uint32_t process_id, fg_buf *out)
{
    fg_buf_puts(out, "{\"traceEvents\":[");
    if (trace != NULL) {
        fg_buf_printf(out,
                      "\n{\"ph\":\"M\",\"pid\":%" PRIu32
                      ",\"tid\":0,\"name\":\"process_name\",\"args\":{\"name\":\"",
                      process_id);
        fg_buf_json_escape(out, trace->process, strlen(trace->process));
        fg_buf_puts(out, "\"}}");
        put_steps(trace, process_id, out);
        put_spans(trace, process_id, out);
    }
    fg_buf_puts(out, "\n]}\n");
    return !out->failed;
}
