/* A router's record: the calls are made on a dispatcher. */
#include <inttypes.h>
#include <string.h>

#include "common/base/mem.h"
#include "router/flight_records.h"
#include "tests/sim/replay_show.h"

/* Room for any prompt that a dispatcher takes: nobody looks at the tokens, but they are there. */
#define TOKENS (FG_LIMIT_CONTEXT_TOKENS + 1)

typedef struct subject {
    fg_replay *r;
    fg_dispatch *dispatch;
    uint32_t sunken; /* sink calls of the outermost call */
    uint32_t *tokens;
    fg_buf frame;
    const char *prefill_names[FG_LIMIT_WORKERS], *decode_names[FG_LIMIT_WORKERS];
} subject;

static void make_call(subject *s, const fg_flight_record *record);

/* Calls that were made at this moment from inside the one that is under way. */
static void make_inner_calls(subject *s)
{
    const fg_flight_record *record;
    while ((record = fg_replay_next(s->r)) != NULL && record->kind < FG_FLIGHT_KNOWN) {
        const fg_flight_call *call = fg_flight_bytes(record);
        if (call->depth == 0 || call->sunken != s->sunken) {
            return;
        }
        uint64_t before = fg_flight_index(s->r->flight);
        make_call(s, record);
        if (fg_flight_index(s->r->flight) == before) {
            return; /* a difference */
        }
    }
}

/* ---- around the dispatcher ---- */

static fg_status on_send(void *ctx, uint32_t peer, const void *bytes, size_t size_bytes)
{
    subject *s = ctx;
    const fg_flight_record *record = fg_replay_next(s->r);
    if (record == NULL || record->kind != FG_RECORD_SENT) {
        return FG_OK; /* the note that follows finds the difference */
    }
    s->r->options->progress->sent++;
    return (fg_status)((const fg_record_sent *)fg_flight_bytes(record))->status;
}

static void on_drop(void *ctx, uint32_t peer)
{
    make_inner_calls(ctx);
}

static void on_token(void *ctx, uint32_t index, uint32_t id, uint64_t digest,
                     const fg_logprobs *logprobs)
{
    subject *s = ctx;
    s->sunken++;
    make_inner_calls(s);
}

static void on_end(void *ctx, fg_finish finish, fg_status status, const char *text,
                   const fg_dispatch_report *report)
{
    subject *s = ctx;
    s->sunken++;
    make_inner_calls(s);
}

/* ---- the calls ---- */

static void give(subject *s, uint32_t peer, const fg_msg *msg)
{
    fg_buf_clear(&s->frame);
    if (!fg_wire_encode(msg, &s->frame)) {
        s->r->status = fg_fail(&s->r->err, FG_AGAIN, "out of memory for a frame");
        return;
    }
    fg_dispatch_on_frame(s->dispatch, peer, s->frame.data, s->frame.size);
}

static void give_tokens(subject *s, const fg_record_tokens *tokens)
{
    const fg_record_token *from = (const fg_record_token *)(tokens + 1);
    fg_wire_token *rows = fg_mem_array(tokens->count + 1u, sizeof *rows);
    if (rows == NULL) {
        s->r->status = fg_fail(&s->r->err, FG_AGAIN, "out of memory for a frame");
        return;
    }
    for (uint32_t i = 0; i < tokens->count; i++) {
        rows[i] = (fg_wire_token){ .request = from[i].request,
                                   .attempt = from[i].attempt,
                                   .index = from[i].index };
    }
    fg_msg msg = { .kind = FG_MSG_TOKENS, .tokens = { .tokens = rows, .count = tokens->count } };
    give(s, tokens->peer, &msg);
    fg_mem_free(rows);
}

static void give_first(subject *s, const fg_record_first *first)
{
    static const float nothing[FG_WIRE_EMBEDDING_MAX]; /* what was said is nobody's business here */
    fg_msg msg = { .kind = FG_MSG_FIRST,
                   .request = first->request,
                   .attempt = first->attempt,
                   .first = { .queue_ns = first->queue_ns,
                              .share_ns = first->share_ns,
                              .compute_ns = first->compute_ns,
                              .cached_tokens = first->cached_tokens,
                              .chunks = first->chunks,
                              .embedding = nothing,
                              .embedding_count = first->embedding_count } };
    if (first->embedding_count > FG_WIRE_EMBEDDING_MAX) {
        s->r->status = fg_fail(&s->r->err, FG_BAD_INPUT, "it is damaged: no embedding is so long");
        return;
    }
    give(s, first->peer, &msg);
}

/* What was said is nobody's business here; a damaged record may say of how many tokens it likes. */
static void give_scores(subject *s, const fg_record_scores *record)
{
    fg_scores scores = { .count = record->count, .likely_count = record->likely_count };
    bool sound = record->count > 0 && record->count <= FG_WIRE_SCORES_MAX && record->first > 0 &&
                 record->first < FG_LIMIT_CONTEXT_TOKENS && record->likely_count <= FG_LOGPROBS_MAX;
    if (!sound) {
        s->r->status = fg_fail(&s->r->err, FG_BAD_INPUT, "it is damaged: scores that none sends");
        return;
    }
    scores.chosen = fg_mem_array(scores.count, sizeof *scores.chosen);
    scores.ranks = fg_mem_array(scores.count, sizeof *scores.ranks);
    scores.likely =
        fg_mem_array((size_t)scores.count * (scores.likely_count + 1), sizeof *scores.likely);
    fg_msg msg = { .kind = FG_MSG_SCORES,
                   .request = record->request,
                   .attempt = record->attempt,
                   .scores = { .first = record->first, .scores = scores } };
    if (scores.chosen != NULL && scores.ranks != NULL && scores.likely != NULL) {
        give(s, record->peer, &msg);
    } else {
        s->r->status = fg_fail(&s->r->err, FG_AGAIN, "out of memory for a frame");
    }
    fg_mem_free(scores.chosen);
    fg_mem_free(scores.ranks);
    fg_mem_free(scores.likely);
}

static void give_ticket(subject *s, const fg_record_ticket *ticket)
{
    fg_msg msg = { .kind = FG_MSG_TICKET,
                   .request = ticket->request,
                   .attempt = ticket->attempt,
                   .ticket = { .granted = ticket->granted != 0,
                               .local = ticket->local != 0,
                               .first_block = ticket->first_block,
                               .blocks = (const uint32_t *)(ticket + 1),
                               .block_count = ticket->block_count } };
    give(s, ticket->peer, &msg);
}

static void start(subject *s, const fg_record_start *record)
{
    uint64_t id;
    fg_dispatch_job job = { .tokens = s->tokens,
                            .token_count = record->token_count,
                            .params = record->params,
                            .sink = { .on_token = on_token, .on_end = on_end, .ctx = s },
                            .tenant = record->tenant,
                            .slo = record->slo,
                            .deadline_ns = record->deadline_ns };
    s->r->options->progress->starts++;
    fg_dispatch_start(s->dispatch, &job, &id, NULL);
}

static void give_frame(subject *s, const fg_flight_record *record)
{
    const void *bytes = fg_flight_bytes(record);
    const fg_record_peer *head = bytes;
    switch (record->kind) {
    case FG_RECORD_TOKENS:
        give_tokens(s, bytes);
        break;
    case FG_RECORD_FIRST:
        give_first(s, bytes);
        break;
    case FG_RECORD_TICKET:
        give_ticket(s, bytes);
        break;
    case FG_RECORD_SCORES:
        give_scores(s, bytes);
        break;
    case FG_RECORD_FRAME:
        fg_dispatch_on_frame(s->dispatch, head->peer, head + 1, record->bytes - sizeof *head);
        break;
    default:
        if (head->unread != 0) {
            fg_dispatch_on_frame(s->dispatch, head->peer, "\xFF", 1);
        } else {
            give(s, head->peer, &(fg_msg){ .kind = FG_MSG_RESYNC });
        }
        break;
    }
}

static void make_call(subject *s, const fg_flight_record *record)
{
    const fg_record_peer *head = fg_flight_bytes(record);
    const char *text = (const char *)(head + 1);
    switch (record->kind) {
    case FG_RECORD_UP:
        fg_dispatch_on_up(s->dispatch, head->peer, text);
        break;
    case FG_RECORD_DOWN:
        fg_dispatch_on_down(s->dispatch, head->peer);
        break;
    case FG_RECORD_TICK:
        fg_dispatch_tick(s->dispatch);
        break;
    case FG_RECORD_START:
        start(s, fg_flight_bytes(record));
        break;
    case FG_RECORD_CANCEL:
        fg_dispatch_cancel(s->dispatch, head->id, (fg_finish)head->peer, NULL);
        break;
    case FG_RECORD_ROLE:
        fg_dispatch_set_role(s->dispatch, text, head->peer, NULL, NULL);
        break;
    case FG_RECORD_CLEAR:
        fg_dispatch_clear_cache(s->dispatch);
        break;
    case FG_RECORD_ABORT:
        fg_dispatch_abort_all(s->dispatch, "the server is shutting down");
        break;
    default:
        give_frame(s, record);
        break;
    }
}

/* ---- its life ---- */

static void call(fg_replay *r, const fg_flight_record *record)
{
    subject *s = r->subject;
    s->sunken = 0;
    make_call(s, record);
}

static fg_status restore(fg_replay *r, const fg_flight_record *record, fg_error *err)
{
    return fg_dispatch_restore(((subject *)r->subject)->dispatch, record, err);
}

static fg_status ready(fg_replay *r, fg_error *err)
{
    return FG_OK;
}

static bool is_quiet(uint32_t kind)
{
    return kind == FG_RECORD_TICK;
}

static fg_status open_dispatch(fg_replay *r, const fg_flight_file *file, fg_error *err)
{
    fg_dispatch_options options;
    subject *s = fg_mem_alloc(sizeof *s);
    if (s == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory");
    }
    s->r = r;
    r->subject = s;
    fg_buf_init(&s->frame, FG_LIMIT_FRAME_BYTES);
    fg_status status = fg_record_get_options(file->preface, file->header->preface_bytes,
                                             s->prefill_names, s->decode_names, &options, err);
    if (status != FG_OK) {
        return status;
    }
    s->tokens = fg_mem_array(TOKENS, sizeof *s->tokens);
    if (s->tokens == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory");
    }
    options.clock = fg_clock_manual(&r->now_ns);
    options.flight = r->flight;
    options.send = on_send;
    options.drop = on_drop;
    options.ctx = s;
    return fg_dispatch_create(&options, &s->dispatch, err);
}

static void close_dispatch(fg_replay *r)
{
    subject *s = r->subject;
    if (s != NULL) {
        fg_dispatch_destroy(s->dispatch);
        fg_buf_deinit(&s->frame);
        fg_mem_free(s->tokens);
        fg_mem_free(s);
    }
}

const fg_replay_ops fg_replay_router = { .shape = fg_record_shape,
                                         .name = fg_record_name,
                                         .is_sound = fg_replay_router_is_sound,
                                         .describe = fg_replay_router_describe,
                                         .is_quiet = is_quiet,
                                         .open = open_dispatch,
                                         .restore = restore,
                                         .ready = ready,
                                         .call = call,
                                         .close = close_dispatch };
