/* Every way into the worker. Time is read once for all that one call does, so that the call can be made again; the
 * flight recorder notes the call before it acts. */
#include <string.h>

#include "common/worker/worker_internal.h"
#include "common/worker/worker_records.h"

static void enter(fg_worker *worker)
{
    if (worker->depth++ == 0) {
        worker->entered_ns = fg_clock_now_ns(&worker->options.clock);
        fg_flight_inside(worker->options.flight, true);
    }
}

static void leave(fg_worker *worker)
{
    if (--worker->depth == 0) {
        fg_flight_inside(worker->options.flight, false);
    }
}

uint64_t fg_worker_now_ns(const fg_worker *worker)
{
    return worker->depth > 0 ? worker->entered_ns : fg_clock_now_ns(&worker->options.clock);
}

static void note_call(fg_worker *worker, fg_work_kind kind, uint32_t router)
{
    fg_flight_call call = fg_worker_call(worker, router);
    fg_flight_note(worker->options.flight, kind, &call, sizeof call);
}

/* ---- bus, engine, time ---- */

void fg_worker_on_up(fg_worker *worker, uint32_t router)
{
    enter(worker);
    note_call(worker, FG_WORK_UP, router);
    fg_worker_do_up(worker, router);
    leave(worker);
}

void fg_worker_on_frame(fg_worker *worker, uint32_t router, const void *bytes, size_t size_bytes)
{
    enter(worker);
    fg_worker_do_frame(worker, router, bytes, size_bytes); /* notes what it could read */
    leave(worker);
}

void fg_worker_on_down(fg_worker *worker, uint32_t router)
{
    enter(worker);
    note_call(worker, FG_WORK_DOWN, router);
    fg_worker_do_down(worker, router);
    leave(worker);
}

void fg_worker_on_engine(fg_worker *worker)
{
    enter(worker);
    note_call(worker, FG_WORK_ENGINE, 0);
    fg_worker_do_engine(worker);
    leave(worker);
}

void fg_worker_tick(fg_worker *worker)
{
    enter(worker);
    if (worker->depth == 1 && fg_flight_wants_rest(worker->options.flight)) {
        fg_worker_note_rest(worker);
    }
    note_call(worker, FG_WORK_TICK, 0);
    fg_worker_do_tick(worker);
    leave(worker);
}

void fg_worker_drain(fg_worker *worker)
{
    enter(worker);
    note_call(worker, FG_WORK_DRAIN, 0);
    fg_worker_do_drain(worker);
    leave(worker);
}

void fg_worker_abort_all(fg_worker *worker, const char *why)
{
    enter(worker);
    fg_flight_call call = fg_worker_call(worker, 0);
    fg_flight_note_with(worker->options.flight, FG_WORK_ABORT, &call, sizeof call, why,
                        strlen(why) + 1);
    fg_worker_end_all(worker, FG_FINISH_ERROR, why);
    leave(worker);
}

void fg_worker_clear_cache(fg_worker *worker)
{
    enter(worker);
    note_call(worker, FG_WORK_CLEAR, 0);
    fg_worker_do_clear(worker);
    leave(worker);
}

/* ---- the link ---- */

static fg_work_news a_news(const fg_worker *worker, uint64_t ticket, uint32_t count)
{
    return (fg_work_news){ .call = fg_worker_call(worker, 0), .ticket = ticket, .count = count };
}

static void on_commit(void *ctx, const fg_link_commit *commit)
{
    fg_worker *worker = ctx;
    enter(worker);
    fg_work_news record =
        a_news(worker, fg_worker_own_ticket(worker, commit->ticket), commit->block_count);
    record.bad_token = commit->first_token >= worker->options.vocab_size;
    fg_flight_note(worker->options.flight, FG_WORK_COMMIT, &record, sizeof record);
    fg_worker_do_commit(worker, commit);
    leave(worker);
}

static void on_fenced(void *ctx, uint64_t ticket)
{
    fg_worker *worker = ctx;
    enter(worker);
    fg_work_news record = a_news(worker, fg_worker_own_ticket(worker, ticket), 0);
    fg_flight_note(worker->options.flight, FG_WORK_FENCED, &record, sizeof record);
    fg_worker_do_fenced(worker, ticket);
    leave(worker);
}

static void on_answer(void *ctx, uint64_t ticket, const uint32_t *bad, uint32_t bad_count)
{
    fg_worker *worker = ctx;
    enter(worker);
    fg_work_news record = a_news(worker, fg_worker_peer_ticket(worker, ticket), bad_count);
    fg_flight_note_with(worker->options.flight, FG_WORK_ANSWER, &record, sizeof record, bad,
                        bad_count * sizeof *bad);
    fg_worker_do_answer(worker, ticket, bad, bad_count);
    leave(worker);
}

static void on_drained(void *ctx, uint64_t ticket, fg_status why)
{
    fg_worker *worker = ctx;
    enter(worker);
    fg_work_news record = a_news(worker, fg_worker_peer_ticket(worker, ticket), 0);
    fg_flight_note(worker->options.flight, FG_WORK_DRAINED, &record, sizeof record);
    fg_worker_do_drained(worker, ticket);
    leave(worker);
}

fg_link_events fg_worker_link_events(fg_worker *worker)
{
    return (fg_link_events){ .on_commit = on_commit,
                             .on_fenced = on_fenced,
                             .on_answer = on_answer,
                             .on_drained = on_drained,
                             .ctx = worker };
}
