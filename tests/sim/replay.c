#include "tests/sim/replay.h"

#include <inttypes.h>
#include <string.h>

#include "common/base/mem.h"
#include "tests/sim/replay_internal.h"

/* Room for any prompt that a dispatcher takes: nobody looks at the tokens, but they are there. */
#define TOKENS (FG_LIMIT_CONTEXT_TOKENS + 1)

typedef struct replay {
    const fg_replay_options *options;
    fg_flight *flight; /* compares */
    fg_flight *shown;  /* the same file, as far as the history shows it */
    fg_dispatch *dispatch;
    uint64_t now_ns;
    uint32_t sunken; /* sink calls of the outermost call */
    uint32_t *tokens;
    fg_buf frame;
    uint64_t last; /* index of the last call from outside */
    const char *prefill_names[FG_LIMIT_WORKERS], *decode_names[FG_LIMIT_WORKERS];
    fg_status status; /* of the first record that is nonsense */
    fg_error err;
} replay;

static void make_call(replay *r, const fg_flight_record *record);

static const fg_flight_record *next_record(replay *r)
{
    const fg_flight_record *record = fg_flight_peek(r->flight);
    if (record == NULL || r->status != FG_OK) {
        return NULL;
    }
    if (!fg_replay_is_sound(record)) {
        r->status = fg_fail(&r->err, FG_BAD_INPUT, "record %" PRIu64 " (%s) is damaged",
                            fg_flight_index(r->flight), fg_record_name(record->kind));
        return NULL;
    }
    return record;
}

/* Calls that were made at this moment from inside the one that is under way. */
static void make_inner_calls(replay *r)
{
    const fg_flight_record *record;
    while ((record = next_record(r)) != NULL && record->kind < FG_RECORD_CALLS) {
        const fg_record_call *call = fg_flight_bytes(record);
        if (call->depth == 0 || call->sunken != r->sunken) {
            return;
        }
        uint64_t before = fg_flight_index(r->flight);
        make_call(r, record);
        if (fg_flight_index(r->flight) == before) {
            return; /* a difference */
        }
    }
}

/* ---- around the dispatcher ---- */

static fg_status on_send(void *ctx, uint32_t peer, const void *bytes, size_t size_bytes)
{
    replay *r = ctx;
    const fg_flight_record *record = next_record(r);
    if (record == NULL || record->kind != FG_RECORD_SENT) {
        return FG_OK; /* the note that follows finds the difference */
    }
    r->options->progress->sent++;
    return (fg_status)((const fg_record_sent *)fg_flight_bytes(record))->status;
}

static void on_drop(void *ctx, uint32_t peer)
{
    make_inner_calls(ctx);
}

static void on_token(void *ctx, uint32_t index, uint32_t id, uint64_t digest)
{
    replay *r = ctx;
    r->sunken++;
    make_inner_calls(r);
}

static void on_end(void *ctx, fg_finish finish, fg_status status, const char *text,
                   const fg_dispatch_report *report)
{
    replay *r = ctx;
    r->sunken++;
    make_inner_calls(r);
}

/* ---- the calls ---- */

static void give(replay *r, uint32_t peer, const fg_msg *msg)
{
    fg_buf_clear(&r->frame);
    if (!fg_wire_encode(msg, &r->frame)) {
        r->status = fg_fail(&r->err, FG_AGAIN, "out of memory for a frame");
        return;
    }
    fg_dispatch_on_frame(r->dispatch, peer, r->frame.data, r->frame.size);
}

static void give_tokens(replay *r, const fg_record_tokens *tokens)
{
    const fg_record_token *from = (const fg_record_token *)(tokens + 1);
    fg_wire_token *rows = fg_mem_array(tokens->count + 1u, sizeof *rows);
    if (rows == NULL) {
        r->status = fg_fail(&r->err, FG_AGAIN, "out of memory for a frame");
        return;
    }
    for (uint32_t i = 0; i < tokens->count; i++) {
        rows[i] = (fg_wire_token){ .request = from[i].request,
                                   .attempt = from[i].attempt,
                                   .index = from[i].index };
    }
    fg_msg msg = { .kind = FG_MSG_TOKENS, .tokens = { .tokens = rows, .count = tokens->count } };
    give(r, tokens->peer, &msg);
    fg_mem_free(rows);
}

static void give_first(replay *r, const fg_record_first *first)
{
    fg_msg msg = { .kind = FG_MSG_FIRST,
                   .request = first->request,
                   .attempt = first->attempt,
                   .first = { .queue_ns = first->queue_ns,
                              .share_ns = first->share_ns,
                              .compute_ns = first->compute_ns,
                              .cached_tokens = first->cached_tokens,
                              .chunks = first->chunks } };
    give(r, first->peer, &msg);
}

static void give_ticket(replay *r, const fg_record_ticket *ticket)
{
    fg_msg msg = { .kind = FG_MSG_TICKET,
                   .request = ticket->request,
                   .attempt = ticket->attempt,
                   .ticket = { .granted = ticket->granted != 0,
                               .local = ticket->local != 0,
                               .first_block = ticket->first_block,
                               .blocks = (const uint32_t *)(ticket + 1),
                               .block_count = ticket->block_count } };
    give(r, ticket->peer, &msg);
}

static void start(replay *r, const fg_record_start *record)
{
    uint64_t id;
    fg_dispatch_job job = { .tokens = r->tokens,
                            .token_count = record->token_count,
                            .params = record->params,
                            .sink = { .on_token = on_token, .on_end = on_end, .ctx = r },
                            .tenant = record->tenant,
                            .slo = record->slo,
                            .deadline_ns = record->deadline_ns };
    r->options->progress->starts++;
    fg_dispatch_start(r->dispatch, &job, &id, NULL);
}

static void give_frame(replay *r, const fg_flight_record *record)
{
    const void *bytes = fg_flight_bytes(record);
    const fg_record_peer *head = bytes;
    switch (record->kind) {
    case FG_RECORD_TOKENS:
        give_tokens(r, bytes);
        break;
    case FG_RECORD_FIRST:
        give_first(r, bytes);
        break;
    case FG_RECORD_TICKET:
        give_ticket(r, bytes);
        break;
    case FG_RECORD_FRAME:
        fg_dispatch_on_frame(r->dispatch, head->peer, head + 1, record->bytes - sizeof *head);
        break;
    default:
        if (head->unread != 0) {
            fg_dispatch_on_frame(r->dispatch, head->peer, "\xFF", 1);
        } else {
            give(r, head->peer, &(fg_msg){ .kind = FG_MSG_RESYNC });
        }
        break;
    }
}

static void make_call(replay *r, const fg_flight_record *record)
{
    const fg_record_peer *head = fg_flight_bytes(record);
    const char *text = (const char *)(head + 1);
    switch (record->kind) {
    case FG_RECORD_UP:
        fg_dispatch_on_up(r->dispatch, head->peer, text);
        break;
    case FG_RECORD_DOWN:
        fg_dispatch_on_down(r->dispatch, head->peer);
        break;
    case FG_RECORD_TICK:
        fg_dispatch_tick(r->dispatch);
        break;
    case FG_RECORD_START:
        start(r, fg_flight_bytes(record));
        break;
    case FG_RECORD_CANCEL:
        fg_dispatch_cancel(r->dispatch, head->id, (fg_finish)head->peer, NULL);
        break;
    case FG_RECORD_ROLE:
        fg_dispatch_set_role(r->dispatch, text, head->peer, NULL, NULL);
        break;
    case FG_RECORD_CLEAR:
        fg_dispatch_clear_cache(r->dispatch);
        break;
    case FG_RECORD_ABORT:
        fg_dispatch_abort_all(r->dispatch, "the server is shutting down");
        break;
    default:
        give_frame(r, record);
        break;
    }
}

/* ---- telling ---- */

/* The history up to what was compared so far. */
static void show(replay *r)
{
    const fg_flight_record *record, *tick = NULL;
    FILE *out = r->options->history;
    /* What a tick did is shown below it; one that did nothing is not shown. */
    while (out != NULL && fg_flight_index(r->shown) < fg_flight_index(r->flight) &&
           (record = fg_flight_peek(r->shown)) != NULL) {
        if (tick != NULL) {
            fg_replay_show(out, tick, r->options->progress->began_ns);
            tick = NULL;
        }
        if (record->kind == FG_RECORD_TICK) {
            tick = record;
        } else {
            fg_replay_show(out, record, r->options->progress->began_ns);
        }
        fg_flight_skip(r->shown);
    }
}

static void tell_difference(replay *r, const fg_flight_record *wanted, const char *now)
{
    fg_replay_progress *progress = r->options->progress;
    char then[160] = "nothing";
    if (wanted != NULL && fg_replay_is_sound(wanted)) {
        fg_replay_describe(wanted->kind, fg_flight_bytes(wanted), wanted->bytes, then, sizeof then);
    }
    snprintf(progress->text, sizeof progress->text, "then: %.150s; now: %.150s", then, now);
    progress->differs = true;
}

static void look_for_difference(replay *r)
{
    const fg_flight_difference *difference = fg_flight_differs(r->flight);
    if (difference->found) {
        char now[160];
        fg_replay_describe(difference->kind, difference->now, difference->bytes, now, sizeof now);
        tell_difference(r, difference->wanted, now);
        return;
    }
    const fg_flight_record *record = next_record(r);
    if (record == NULL) {
        return;
    }
    bool outer = record->kind < FG_RECORD_CALLS &&
                 ((const fg_record_call *)fg_flight_bytes(record))->depth == 0;
    bool known = record->kind >= FG_RECORD_REST && record->kind <= FG_RECORD_DEBT;
    if (!outer && !known) {
        tell_difference(r, record, "nothing");
    }
}

/* ---- from the beginning to the end ---- */

static void run_call(replay *r, const fg_flight_record *record)
{
    fg_replay_progress *progress = r->options->progress;
    const fg_record_call *call = fg_flight_bytes(record);
    if (progress->calls++ == 0) {
        progress->began_ns = call->now_ns;
    }
    progress->now_ns = r->now_ns = call->now_ns;
    r->sunken = 0;
    progress->last = fg_flight_index(r->flight) == r->last;
    progress->kind = record->kind;
    if (r->options->history != NULL && record->kind != FG_RECORD_TICK) {
        /* Before it is made: it may end this process. */
        fg_replay_show(r->options->history, record, progress->began_ns);
        fg_flight_skip(r->shown);
        fflush(r->options->history);
    }
    make_call(r, record);
    progress->records = fg_flight_index(r->flight);
    look_for_difference(r);
    show(r);
}

static fg_status find_last(replay *r, const fg_flight_file *file, fg_error *err)
{
    fg_flight *scan;
    const fg_flight_record *record;
    fg_status status = fg_flight_check(file, &scan, err);
    while (status == FG_OK && (record = fg_flight_peek(scan)) != NULL) {
        const fg_record_call *call = fg_flight_bytes(record);
        if (record->kind < FG_RECORD_CALLS && record->bytes >= sizeof *call && call->depth == 0) {
            r->last = fg_flight_index(scan);
        }
        fg_flight_skip(scan);
    }
    if (status == FG_OK) {
        fg_flight_destroy(scan);
    }
    return status;
}

static void run_all(replay *r)
{
    fg_replay_progress *progress = r->options->progress;
    bool knows = !fg_flight_is_partial(r->flight); /* or it has to be told first */
    const fg_flight_record *record;
    while (!progress->differs && (record = next_record(r)) != NULL) {
        if (record->kind >= FG_RECORD_CALLS) {
            if (!knows) {
                r->status = fg_dispatch_restore(r->dispatch, record, &r->err);
            }
            fg_flight_skip(r->flight);
            show(r);
            continue;
        }
        knows = true;
        run_call(r, record);
    }
    progress->ended = r->status == FG_OK && !progress->differs;
}

static fg_status open_all(replay *r, const fg_flight_file *file, fg_error *err)
{
    fg_dispatch_options options;
    fg_status status = fg_record_get_options(file->preface, file->header->preface_bytes,
                                             r->prefill_names, r->decode_names, &options, err);
    status = status != FG_OK ? status : fg_flight_check(file, &r->flight, err);
    status = status != FG_OK ? status : fg_flight_check(file, &r->shown, err);
    status = status != FG_OK ? status : find_last(r, file, err);
    r->tokens = fg_mem_array(TOKENS, sizeof *r->tokens);
    if (status == FG_OK && r->tokens == NULL) {
        status = fg_fail(err, FG_AGAIN, "out of memory");
    }
    if (status != FG_OK) {
        return status;
    }
    options.clock = fg_clock_manual(&r->now_ns);
    options.flight = r->flight;
    options.send = on_send;
    options.drop = on_drop;
    options.ctx = r;
    return fg_dispatch_create(&options, &r->dispatch, err);
}

fg_status fg_replay_run(const fg_flight_file *file, const fg_replay_options *options, fg_error *err)
{
    replay *r = fg_mem_alloc(sizeof *r);
    if (r == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory");
    }
    r->options = options;
    fg_buf_init(&r->frame, FG_LIMIT_FRAME_BYTES);
    fg_status status = open_all(r, file, err);
    if (status == FG_OK) {
        run_all(r);
        status = r->status;
        if (status != FG_OK) {
            fg_fail(err, status, "%s", r->err.text);
        }
    }
    fg_dispatch_destroy(r->dispatch);
    fg_flight_destroy(r->flight);
    fg_flight_destroy(r->shown);
    fg_buf_deinit(&r->frame);
    fg_mem_free(r->tokens);
    fg_mem_free(r);
    return status;
}
