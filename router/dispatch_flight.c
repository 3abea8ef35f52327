/* What the flight recorder keeps of the dispatcher (router/flight_records.h): the calls' contents without
 * what is private, what the dispatcher is told and does, and all that it knows when it is at rest. */
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "router/dispatch_internal.h"
#include "router/flight_records.h"

enum { SECRET_MIN = 8 };

fg_flight_call fg_dispatch_call(const fg_dispatch *dispatch)
{
    return (fg_flight_call){ .now_ns = dispatch->entered_ns,
                             .depth = dispatch->depth - 1,
                             .sunken = dispatch->sunken };
}

/* ---- calls ---- */

static unsigned char *open_with(fg_dispatch *dispatch, fg_record_kind kind, const void *head,
                                size_t head_bytes, size_t more_bytes)
{
    unsigned char *data = fg_flight_open(dispatch->options.flight, kind, head_bytes + more_bytes);
    if (data == NULL) {
        return NULL;
    }
    memcpy(data, head, head_bytes);
    return data + head_bytes;
}

void fg_dispatch_note_text(fg_dispatch *dispatch, fg_record_kind kind, const fg_record_peer *head,
                           const char *text)
{
    fg_flight_note_with(dispatch->options.flight, kind, head, sizeof *head, text, strlen(text) + 1);
}

static void note_tokens(fg_dispatch *dispatch, uint32_t peer, const fg_msg *msg)
{
    fg_record_tokens head = { .call = fg_dispatch_call(dispatch),
                              .peer = peer,
                              .count = msg->tokens.count };
    unsigned char *more = open_with(dispatch, FG_RECORD_TOKENS, &head, sizeof head,
                                    head.count * sizeof(fg_record_token));
    if (more == NULL) {
        return;
    }
    for (uint32_t i = 0; i < head.count; i++) {
        const fg_wire_token *from = &msg->tokens.tokens[i];
        fg_record_token token = { from->request, from->attempt, from->index };
        memcpy(more + i * sizeof token, &token, sizeof token);
    }
    fg_flight_commit(dispatch->options.flight);
}

static void note_first(fg_dispatch *dispatch, uint32_t peer, const fg_msg *msg)
{
    fg_record_first first = { .call = fg_dispatch_call(dispatch),
                              .request = msg->request,
                              .queue_ns = msg->first.queue_ns,
                              .share_ns = msg->first.share_ns,
                              .compute_ns = msg->first.compute_ns,
                              .attempt = msg->attempt,
                              .peer = peer,
                              .cached_tokens = msg->first.cached_tokens,
                              .chunks = msg->first.chunks,
                              .embedding_count = msg->first.embedding_count };
    fg_flight_note(dispatch->options.flight, FG_RECORD_FIRST, &first, sizeof first);
}

static void note_scores(fg_dispatch *dispatch, uint32_t peer, const fg_msg *msg)
{
    fg_record_scores scores = { .call = fg_dispatch_call(dispatch),
                                .request = msg->request,
                                .attempt = msg->attempt,
                                .peer = peer,
                                .first = msg->scores.first,
                                .count = msg->scores.scores.count,
                                .likely_count = msg->scores.scores.likely_count };
    fg_flight_note(dispatch->options.flight, FG_RECORD_SCORES, &scores, sizeof scores);
}

static void note_ticket(fg_dispatch *dispatch, uint32_t peer, const fg_msg *msg)
{
    fg_record_ticket head = { .call = fg_dispatch_call(dispatch),
                              .request = msg->request,
                              .attempt = msg->attempt,
                              .peer = peer,
                              .granted = msg->ticket.granted,
                              .local = msg->ticket.local,
                              .first_block = msg->ticket.first_block,
                              .block_count = msg->ticket.block_count };
    fg_flight_note_with(dispatch->options.flight, FG_RECORD_TICKET, &head, sizeof head,
                        msg->ticket.blocks, head.block_count * sizeof *msg->ticket.blocks);
}

/* Overwrites each place where `secret` stands. A short one keeps no secret, and might stand anywhere. */
static void blot(unsigned char *bytes, size_t size_bytes, const void *secret, size_t secret_bytes,
                 int with)
{
    size_t at = 0;
    while (secret_bytes >= SECRET_MIN && at + secret_bytes <= size_bytes) {
        if (memcmp(bytes + at, secret, secret_bytes) == 0) {
            memset(bytes + at, with, secret_bytes);
            at += secret_bytes;
        } else {
            at++;
        }
    }
}

void fg_dispatch_note_frame(fg_dispatch *dispatch, const fg_dispatch_frame *frame)
{
    if (dispatch->options.flight == NULL) {
        return;
    }
    const fg_msg *msg = frame->msg;
    fg_record_peer head = { .call = fg_dispatch_call(dispatch), .peer = frame->peer };
    head.unread = msg == NULL;
    switch (msg == NULL ? 0 : (int)msg->kind) {
    case FG_MSG_TOKENS:
        note_tokens(dispatch, frame->peer, msg);
        return;
    case FG_MSG_FIRST:
        note_first(dispatch, frame->peer, msg);
        return;
    case FG_MSG_TICKET:
        note_ticket(dispatch, frame->peer, msg);
        return;
    case FG_MSG_SCORES:
        note_scores(dispatch, frame->peer, msg);
        return;
    case FG_MSG_HELLO:
    case FG_MSG_DONE:
    case FG_MSG_LOAD:
    case FG_MSG_PUSHED:
    case FG_MSG_DRAIN:
    case FG_MSG_NEWS:
        break;
    default:
        fg_flight_note(dispatch->options.flight, FG_RECORD_BAD_FRAME, &head, sizeof head);
        return;
    }
    unsigned char *more =
        open_with(dispatch, FG_RECORD_FRAME, &head, sizeof head, frame->size_bytes);
    if (more == NULL) {
        return;
    }
    memcpy(more, frame->bytes, frame->size_bytes);
    if (msg->kind == FG_MSG_HELLO) {
        blot(more, frame->size_bytes, msg->hello.link_record, msg->hello.link_record_bytes, 0);
    } else if (msg->kind == FG_MSG_DONE) {
        blot(more, frame->size_bytes, msg->done.text, strlen(msg->done.text), 'x');
    }
    fg_flight_commit(dispatch->options.flight);
}

/* Member by member, so that what lies between them is zero; what only the same user's prompts share, and what names
 * tokens, is left out. */
static fg_wire_params plain_params(const fg_wire_params *from)
{
    fg_wire_params to;
    memset(&to, 0, sizeof to);
    to.temperature = from->temperature;
    to.top_p = from->top_p;
    to.min_p = from->min_p;
    to.top_k = from->top_k;
    to.seed = from->seed;
    to.max_tokens = from->max_tokens;
    to.ignore_eos = from->ignore_eos;
    to.want_digests = from->want_digests;
    to.want_logprobs = from->want_logprobs;
    to.want_scores = from->want_scores;
    to.want_embedding = from->want_embedding;
    to.repetition_penalty = from->repetition_penalty;
    to.frequency_penalty = from->frequency_penalty;
    to.presence_penalty = from->presence_penalty;
    to.min_tokens = from->min_tokens;
    to.priority = from->priority;
    to.cache_mode = from->cache_mode;
    to.family = from->family;
    to.pin_ms = from->pin_ms;
    to.pull = from->pull;
    to.trace_high = from->trace_high;
    to.trace_low = from->trace_low;
    to.trace_span = from->trace_span;
    return to;
}

void fg_dispatch_note_start(fg_dispatch *dispatch, const fg_dispatch_job *job)
{
    if (dispatch->options.flight == NULL) {
        return;
    }
    fg_record_start start = { .call = fg_dispatch_call(dispatch),
                              .slo = job->slo,
                              .tenant = job->tenant,
                              .deadline_ns = job->deadline_ns,
                              .token_count = job->token_count };
    unsigned char *data = fg_flight_open(dispatch->options.flight, FG_RECORD_START, sizeof start);
    if (data != NULL) {
        fg_wire_params params = plain_params(&job->params);
        memcpy(data, &start, sizeof start);
        memcpy(data + offsetof(fg_record_start, params), &params, sizeof params);
        fg_flight_commit(dispatch->options.flight);
    }
}

/* ---- what it is told ---- */

void fg_dispatch_note_span(fg_dispatch *dispatch, fg_job *job)
{
    size_t bytes;
    uint64_t *span = &job->input.params.trace_span;
    const void *told = fg_flight_told(dispatch->options.flight, FG_RECORD_SPAN, &bytes);
    if (told != NULL && bytes == sizeof *span) {
        memcpy(span, told, bytes);
    }
    if (told != NULL || job->trace_parent != 0) {
        fg_flight_note(dispatch->options.flight, FG_RECORD_SPAN, span, sizeof *span);
    }
}

bool fg_dispatch_told_keys(fg_dispatch *dispatch, fg_job *job)
{
    size_t bytes;
    const void *told = fg_flight_told(dispatch->options.flight, FG_RECORD_KEYS, &bytes);
    if (told == NULL || bytes == 0 || bytes % sizeof *job->keys != 0) {
        return false;
    }
    job->keys = fg_mem_dup(told, bytes);
    if (job->keys == NULL) {
        return false;
    }
    job->key_count = (uint32_t)(bytes / sizeof *job->keys);
    fg_flight_note(dispatch->options.flight, FG_RECORD_KEYS, job->keys, bytes);
    return true;
}

uint64_t fg_dispatch_tell(fg_dispatch *dispatch, fg_record_kind kind, uint64_t value)
{
    fg_flight *flight = dispatch->options.flight;
    if (fg_flight_is_partial(flight)) {
        size_t bytes;
        const void *told = fg_flight_told(flight, kind, &bytes);
        value = 0;
        if (told != NULL && bytes == sizeof value) {
            memcpy(&value, told, bytes);
        }
    }
    if (value != 0 || kind == FG_RECORD_HEAT) {
        fg_flight_note(flight, kind, &value, sizeof value);
    }
    return value;
}

uint32_t fg_dispatch_tell_hits(fg_dispatch *dispatch, uint32_t found)
{
    fg_flight *flight = dispatch->options.flight;
    size_t bytes;
    if (fg_flight_is_partial(flight)) {
        const void *told = fg_flight_told(flight, FG_RECORD_HITS, &bytes);
        found = 0;
        if (told != NULL && bytes <= FG_LIMIT_WORKERS * sizeof *dispatch->found) {
            memcpy(dispatch->found, told, bytes);
            found = (uint32_t)(bytes / sizeof *dispatch->found);
        }
        for (uint32_t i = 0; i < found; i++) {
            found = dispatch->found[i].slot < FG_LIMIT_WORKERS ? found : i;
        }
    }
    /* Nothing found is noted too: a call may ask for several requests, and an answer is nobody else's. */
    fg_flight_note(flight, FG_RECORD_HITS, dispatch->found, found * sizeof *dispatch->found);
    return found;
}

/* ---- what it does ---- */

/* The same frame without what is private, or NULL: the frame itself may be hashed. */
static const fg_buf *without_secrets(fg_dispatch *dispatch, const fg_msg *msg, uint64_t *seed_out)
{
    static const uint32_t nothing[1] = { 0 };
    fg_msg plain = *msg;
    switch (msg->kind) {
    case FG_MSG_WELCOME:
        plain.welcome.cache_key_low = plain.welcome.cache_key_high = 0;
        break;
    case FG_MSG_PEER:
        plain.peer.link_record = nothing;
        plain.peer.link_record_bytes = sizeof nothing;
        break;
    case FG_MSG_RESERVE:
        *seed_out = plain.reserve.token_count;
        plain.reserve.token_count = 1;
        plain.reserve.tokens = nothing;
        plain.reserve.said_count = 0;
        plain.reserve.sampling = plain_params(&msg->reserve.sampling);
        break;
    case FG_MSG_PREFILL:
        *seed_out = plain.prefill.token_count;
        plain.prefill.token_count = 1;
        plain.prefill.tokens = nothing;
        plain.prefill.said_count = 0;
        plain.prefill.sampling = plain_params(&msg->prefill.sampling);
        plain.prefill.ticket = 0;
        break;
    default:
        return NULL;
    }
    fg_buf_clear(&dispatch->plain);
    return fg_wire_encode(&plain, &dispatch->plain) ? &dispatch->plain : NULL;
}

void fg_dispatch_note_sent(fg_dispatch *dispatch, uint32_t peer, const fg_msg *msg,
                           fg_status status)
{
    if (dispatch->options.flight == NULL) {
        return;
    }
    uint64_t seed = 0;
    const fg_buf *frame = without_secrets(dispatch, msg, &seed);
    frame = frame != NULL ? frame : &dispatch->out;
    fg_record_sent sent = { .hash = fg_hash64(frame->data, frame->size, seed),
                            .peer = peer,
                            .kind = (uint32_t)msg->kind,
                            .status = (uint32_t)status };
    fg_flight_note(dispatch->options.flight, FG_RECORD_SENT, &sent, sizeof sent);
}

void fg_dispatch_drop(fg_dispatch *dispatch, uint32_t peer)
{
    uint64_t number = peer;
    fg_flight_note(dispatch->options.flight, FG_RECORD_DROPPED, &number, sizeof number);
    dispatch->options.drop(dispatch->options.ctx, peer);
}

void fg_dispatch_note_end(fg_dispatch *dispatch, const fg_job *job, fg_finish finish,
                          fg_status status)
{
    fg_record_ended ended = { .id = job->id,
                              .finish = (uint32_t)finish,
                              .status = (uint32_t)status,
                              .tokens = fg_journal_count(job->journal),
                              .attempts = job->attempt };
    fg_flight_note(dispatch->options.flight, FG_RECORD_ENDED, &ended, sizeof ended);
}
