/* Every way into the dispatcher. Time is read once for all that one call does, so that the call can be made
 * again; the flight recorder notes the call before it acts. */
#include <string.h>

#include "router/dispatch_internal.h"
#include "router/flight_records.h"

static void enter(fg_dispatch *dispatch)
{
    if (dispatch->depth++ == 0) {
        dispatch->entered_ns = fg_clock_now_ns(&dispatch->options.clock);
        dispatch->sunken = 0;
        fg_flight_inside(dispatch->options.flight, true);
    }
}

static void leave(fg_dispatch *dispatch)
{
    if (--dispatch->depth == 0) {
        fg_flight_inside(dispatch->options.flight, false);
    }
}

uint64_t fg_dispatch_now(const fg_dispatch *dispatch)
{
    return dispatch->depth > 0 ? dispatch->entered_ns : fg_clock_now_ns(&dispatch->options.clock);
}

static fg_record_peer a_call(const fg_dispatch *dispatch, uint32_t peer)
{
    return (fg_record_peer){ .call = fg_dispatch_call(dispatch), .peer = peer };
}

static void note_call(fg_dispatch *dispatch, fg_record_kind kind)
{
    fg_flight_call call = fg_dispatch_call(dispatch);
    fg_flight_note(dispatch->options.flight, kind, &call, sizeof call);
}

void fg_dispatch_on_up(fg_dispatch *dispatch, uint32_t peer, const char *identity)
{
    enter(dispatch);
    fg_record_peer record = a_call(dispatch, peer);
    fg_dispatch_note_text(dispatch, FG_RECORD_UP, &record, identity);
    fg_dispatch_do_up(dispatch, peer, identity);
    leave(dispatch);
}

void fg_dispatch_on_frame(fg_dispatch *dispatch, uint32_t peer, const void *bytes,
                          size_t size_bytes)
{
    enter(dispatch);
    fg_dispatch_do_frame(dispatch, peer, bytes, size_bytes); /* notes what it could read */
    leave(dispatch);
}

void fg_dispatch_on_down(fg_dispatch *dispatch, uint32_t peer)
{
    enter(dispatch);
    fg_record_peer record = a_call(dispatch, peer);
    fg_flight_note(dispatch->options.flight, FG_RECORD_DOWN, &record, sizeof record);
    fg_dispatch_do_down(dispatch, peer);
    leave(dispatch);
}

void fg_dispatch_tick(fg_dispatch *dispatch)
{
    enter(dispatch);
    if (dispatch->depth == 1 && dispatch->stats.live == 0 &&
        fg_flight_wants_rest(dispatch->options.flight)) {
        fg_dispatch_note_rest(dispatch);
    }
    note_call(dispatch, FG_RECORD_TICK);
    fg_dispatch_do_tick(dispatch);
    leave(dispatch);
}

fg_status fg_dispatch_start(fg_dispatch *dispatch, const fg_dispatch_job *job, uint64_t *id_out,
                            fg_error *err)
{
    enter(dispatch);
    fg_dispatch_note_start(dispatch, job);
    fg_status status = fg_dispatch_do_start(dispatch, job, id_out, err);
    fg_record_answered answered = { .id = status == FG_OK ? *id_out : 0,
                                    .status = (uint32_t)status };
    fg_flight_note(dispatch->options.flight, FG_RECORD_ANSWERED, &answered, sizeof answered);
    leave(dispatch);
    return status;
}

bool fg_dispatch_cancel(fg_dispatch *dispatch, uint64_t id, fg_finish reason,
                        fg_dispatch_report *report_out)
{
    enter(dispatch);
    fg_record_peer record = a_call(dispatch, (uint32_t)reason);
    record.id = id;
    fg_flight_note(dispatch->options.flight, FG_RECORD_CANCEL, &record, sizeof record);
    bool alive = fg_dispatch_do_cancel(dispatch, id, reason, report_out);
    fg_record_answered answered = { .id = id, .status = alive };
    fg_flight_note(dispatch->options.flight, FG_RECORD_ANSWERED, &answered, sizeof answered);
    leave(dispatch);
    return alive;
}

void fg_dispatch_abort_all(fg_dispatch *dispatch, const char *why)
{
    enter(dispatch);
    note_call(dispatch, FG_RECORD_ABORT);
    fg_dispatch_do_abort_all(dispatch, why);
    leave(dispatch);
}

fg_status fg_dispatch_set_role(fg_dispatch *dispatch, const char *name, uint32_t roles,
                               uint32_t *was_out, fg_error *err)
{
    enter(dispatch);
    fg_record_peer record = a_call(dispatch, roles);
    char known[FG_LIMIT_NAME_BYTES + 2]; /* a longer one is nobody's, so its end does not matter */
    strncpy(known, name, sizeof known - 1);
    known[sizeof known - 1] = '\0';
    fg_dispatch_note_text(dispatch, FG_RECORD_ROLE, &record, known);
    fg_status status = fg_dispatch_do_set_role(dispatch, name, roles, was_out, err);
    leave(dispatch);
    return status;
}

uint32_t fg_dispatch_clear_cache(fg_dispatch *dispatch)
{
    enter(dispatch);
    note_call(dispatch, FG_RECORD_CLEAR);
    uint32_t told = fg_dispatch_do_clear(dispatch);
    leave(dispatch);
    return told;
}
