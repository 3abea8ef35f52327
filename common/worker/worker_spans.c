/* A traced sequence leaves a state: what it did there, as spans beside those of the router. */
#include "common/worker/worker_internal.h"

static void add_span(fg_worker *worker, const fg_seq *seq, const char *name, uint64_t began_ns,
                     uint64_t ended_ns)
{
    fg_otlp_span span = { .trace_high = seq->params.trace_high,
                          .trace_low = seq->params.trace_low,
                          .id = fg_spans_draw(worker->options.spans),
                          .parent = seq->params.trace_span,
                          .name = name,
                          .kind = FG_OTLP_INTERNAL,
                          .began_ns = began_ns,
                          .ended_ns = ended_ns };
    fg_otlp_add_text(&span, "forge.worker", worker->options.name);
    fg_otlp_add_number(&span, "forge.attempt", seq->attempt);
    if (seq->side != FG_SIDE_NONE) {
        fg_otlp_add_number(&span, "forge.kv_blocks", seq->ticket_blocks);
        fg_otlp_add_number(&span, "forge.kv_bytes",
                           (uint64_t)seq->ticket_blocks * worker->options.layout.block_bytes);
    }
    if (seq->state == FG_SEQ_RUNNING) {
        fg_otlp_add_number(&span, "forge.prompt_tokens", seq->prompt_count);
        fg_otlp_add_number(&span, "forge.cached_tokens", seq->cached_tokens);
        fg_otlp_add_number(&span, "forge.generated_tokens", fg_seq_generated(seq));
    }
    if (seq->state == FG_SEQ_HANDING) {
        fg_otlp_add_text(&span, "forge.transport",
                         fg_link_transport(worker->options.link, seq->peer));
        fg_otlp_add_number(&span, "forge.push_retries", seq->retries);
    }
    fg_spans_add(worker->options.spans, &span);
}

/* Where one worker does both, RUNNING is the prompt up to the first token, then the answer. */
static void add_running(fg_worker *worker, const fg_seq *seq, uint64_t now)
{
    bool receiver = seq->side == FG_SIDE_RECEIVER;
    uint64_t first = receiver ? seq->since_ns : seq->computed_ns;
    bool only_prompt = seq->side == FG_SIDE_SENDER || (!receiver && fg_seq_generated(seq) < 2);
    if (only_prompt || first == 0 || first > now) {
        first = now;
    }
    if (first > seq->since_ns) {
        add_span(worker, seq, "worker.compute", seq->since_ns, first);
    }
    first = first > seq->since_ns ? first : seq->since_ns;
    if (now > first) {
        add_span(worker, seq, "worker.decode", first, now);
    }
}

void fg_worker_add_spans(fg_worker *worker, const fg_seq *seq, uint64_t now)
{
    static const char *const names[] = {
        [FG_SEQ_WAITING] = "worker.queue",     [FG_SEQ_PREEMPTED] = "worker.preempted",
        [FG_SEQ_RESTORING] = "worker.restore", [FG_SEQ_EXPECTING] = "worker.receive",
        [FG_SEQ_CHECKING] = "worker.check",    [FG_SEQ_HANDING] = "worker.push"
    };
    if (worker->options.spans == NULL || seq->params.trace_span == 0) {
        return;
    }
    if (seq->state == FG_SEQ_RUNNING) {
        add_running(worker, seq, now);
    } else if (seq->state != FG_SEQ_CLOSING) {
        add_span(worker, seq, names[seq->state], seq->since_ns, now);
    }
}
