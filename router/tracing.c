#include "router/tracing.h"

#include <stdio.h>
#include <string.h>

#include "router/dispatch_internal.h"

static uint64_t draw(fg_spans *spans, fg_rng *rng)
{
    uint64_t id = fg_spans_draw(spans);
    while (id == 0) {
        id = fg_rng_next(rng);
    }
    return id;
}

void fg_tracing_begin(fg_spans *spans, fg_rng *rng, const char *traceparent, const char *tracestate,
                      fg_request_trace *trace_out)
{
    fg_traceparent caller;
    *trace_out = (fg_request_trace){ 0 };
    if (fg_traceparent_parse(traceparent, &caller)) {
        trace_out->own = caller;
        trace_out->parent = caller.span;
        trace_out->state = fg_tracestate_is_fine(tracestate) ? tracestate : NULL;
        trace_out->recorded = spans != NULL && (caller.flags & FG_TRACEPARENT_SAMPLED) != 0;
    } else if (spans != NULL) {
        trace_out->own.trace_high = draw(spans, rng);
        trace_out->own.trace_low = draw(spans, rng);
        trace_out->recorded = fg_spans_sample(spans);
        trace_out->own.flags = trace_out->recorded ? FG_TRACEPARENT_SAMPLED : 0;
    } else {
        return;
    }
    trace_out->own.span = draw(spans, rng);
    trace_out->known = true;
}

void fg_tracing_begin_line(fg_spans *spans, const fg_request_trace *batch,
                           fg_request_trace *trace_out)
{
    *trace_out = *batch;
    if (batch->recorded) {
        trace_out->parent = batch->own.span;
        trace_out->own.span = fg_spans_draw(spans);
    }
}

fg_status fg_tracing_apply(const fg_request_trace *trace, fg_request *request)
{
    request->trace = *trace;
    if (trace->state != NULL) {
        request->trace.state = fg_arena_strndup(request->arena, trace->state, strlen(trace->state));
        if (request->trace.state == NULL) {
            return FG_AGAIN;
        }
    }
    /* Where this process writes nothing, the workers' spans hang from the caller's own. */
    if (trace->known && (trace->own.flags & FG_TRACEPARENT_SAMPLED) != 0) {
        request->params.trace_high = trace->own.trace_high;
        request->params.trace_low = trace->own.trace_low;
        request->params.trace_span = trace->recorded ? trace->own.span : trace->parent;
    }
    return FG_OK;
}

const char *fg_tracing_finish_name(fg_finish finish)
{
    return finish == FG_FINISH_STOP        ? "stop"
           : finish == FG_FINISH_LENGTH    ? "length"
           : finish == FG_FINISH_CANCELLED ? "cancelled"
                                           : "error";
}

/* An empty text says nothing. */
static void add_text(fg_otlp_span *span, const char *key, const char *text)
{
    if (text != NULL && text[0] != '\0') {
        fg_otlp_add_text(span, key, text);
    }
}

void fg_tracing_end_request(fg_spans *spans, const fg_request_trace *trace,
                            const fg_tracing_end *end)
{
    char name[64], problem[32];
    if (spans == NULL || !trace->recorded) {
        return;
    }
    snprintf(name, sizeof name, "POST %s", end->route == NULL ? "" : end->route);
    snprintf(problem, sizeof problem, "status %d", end->http_status);
    fg_otlp_span span = { .trace_high = trace->own.trace_high,
                          .trace_low = trace->own.trace_low,
                          .id = trace->own.span,
                          .parent = trace->parent,
                          .trace_state = trace->state,
                          .name = end->route == NULL ? "line" : name,
                          .kind = end->route == NULL ? FG_OTLP_INTERNAL : FG_OTLP_SERVER,
                          .began_ns = end->began_ns,
                          .ended_ns = end->ended_ns,
                          .problem = end->http_status >= 500 ? problem : NULL };
    if (end->route != NULL) {
        fg_otlp_add_text(&span, "http.request.method", "POST");
        fg_otlp_add_text(&span, "http.route", end->route);
    }
    fg_otlp_add_number(&span, "http.response.status_code", (uint64_t)end->http_status);
    add_text(&span, "forge.request_id", end->id);
    add_text(&span, "gen_ai.request.model", end->model);
    if (end->finish != NULL) {
        fg_otlp_add_number(&span, "gen_ai.usage.input_tokens", end->prompt_tokens);
        fg_otlp_add_number(&span, "gen_ai.usage.output_tokens", end->completion_tokens);
        fg_otlp_add_number(&span, "forge.cached_tokens", end->cached_tokens);
        fg_otlp_add_number(&span, "forge.choices", end->choices);
        fg_otlp_add_text(&span, "forge.finish", end->finish);
    }
    fg_spans_add(spans, &span);
}

/* ---- the choices, on the workers ---- */

void fg_tracing_start_job(fg_spans *spans, fg_job *job)
{
    if (spans != NULL && job->input.params.trace_span != 0) {
        job->trace_parent = job->input.params.trace_span;
        job->input.params.trace_span = fg_spans_draw(spans);
    }
}

static fg_otlp_span span_of(const fg_job *job, const char *name)
{
    fg_otlp_span span = { .trace_high = job->input.params.trace_high,
                          .trace_low = job->input.params.trace_low,
                          .name = name,
                          .kind = FG_OTLP_INTERNAL };
    fg_otlp_add_number(&span, "forge.attempt", job->attempt);
    return span;
}

/* Nothing was sent, or prefill has not said yet what: a token of decode may be here first. */
static void add_transfer(fg_otlp_span *span, const fg_job_record *record)
{
    if (record->kv_blocks == 0) {
        return;
    }
    add_text(span, "forge.transport", record->transport);
    fg_otlp_add_number(span, "forge.kv_blocks", record->kv_blocks);
    fg_otlp_add_number(span, "forge.kv_bytes", record->kv_bytes);
}

void fg_tracing_stretch(fg_spans *spans, const fg_job *job, uint64_t now_ns, uint32_t tokens)
{
    static const char *const names[FG_LIFE_STATE_COUNT] = { [FG_LIFE_QUEUED] = "queue",
                                                            [FG_LIFE_RESERVED] = "reserve",
                                                            [FG_LIFE_PREFILLING] = "prefill",
                                                            [FG_LIFE_TRANSFERRING] = "transfer",
                                                            [FG_LIFE_DECODING] = "decode" };
    fg_life_state state = job->life.state;
    if (spans == NULL || job->trace_parent == 0 || names[state] == NULL) {
        return;
    }
    fg_otlp_span span = span_of(job, names[state]);
    span.id = fg_spans_draw(spans);
    span.parent = job->input.params.trace_span;
    span.began_ns = job->life.entered_at_ns[state];
    span.ended_ns = now_ns;
    if (state == FG_LIFE_PREFILLING || state == FG_LIFE_TRANSFERRING) {
        add_text(&span, "forge.prefill_worker", job->record.prefill);
    }
    if (state != FG_LIFE_QUEUED && state != FG_LIFE_PREFILLING) {
        add_text(&span, "forge.decode_worker", job->record.decode);
    }
    if (state == FG_LIFE_PREFILLING) {
        fg_otlp_add_number(&span, "forge.cached_tokens", job->record.cached_tokens);
        fg_otlp_add_number(&span, "forge.chunks", job->record.chunks);
    }
    if (state == FG_LIFE_PREFILLING || state == FG_LIFE_DECODING) {
        fg_otlp_add_number(&span, "forge.tokens", tokens);
    }
    if (state == FG_LIFE_TRANSFERRING) {
        add_transfer(&span, &job->record);
    }
    fg_spans_add(spans, &span);
}

void fg_tracing_end_job(fg_spans *spans, const fg_job *job, uint64_t now_ns, const char *problem)
{
    char id[20];
    const fg_job_record *record = &job->record;
    if (spans == NULL || job->trace_parent == 0) {
        return;
    }
    snprintf(id, sizeof id, "%016llx", (unsigned long long)job->id);
    fg_otlp_span span = span_of(job, "generate");
    span.id = job->input.params.trace_span;
    span.parent = job->trace_parent;
    span.began_ns = record->created_ns;
    span.ended_ns = now_ns;
    span.problem = problem;
    fg_otlp_add_text(&span, "forge.req", id); /* as in logs and /debug/state */
    fg_otlp_add_number(&span, "gen_ai.usage.input_tokens", record->prompt_tokens);
    fg_otlp_add_number(&span, "gen_ai.usage.output_tokens", record->completion_tokens);
    fg_otlp_add_number(&span, "forge.cached_tokens", record->cached_tokens);
    fg_otlp_add_number(&span, "forge.preemptions", record->preemptions);
    add_text(&span, "forge.prefill_worker", record->prefill);
    add_text(&span, "forge.decode_worker", record->decode);
    fg_otlp_add_text(&span, "forge.finish", fg_tracing_finish_name(record->finish));
    add_transfer(&span, record);
    fg_spans_add(spans, &span);
}
