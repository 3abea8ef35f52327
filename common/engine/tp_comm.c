#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/thread.h"
#include "common/engine/tp_region.h"

/* Less than the minute after which a rank counts as lost. */
enum { SECONDS = 30, SECONDS_MAX = 50 };
#define SECONDS_VARIABLE "FORGE_NCCL_SECONDS"

enum { OPEN_LOOK_US = 500, WAIT_LOOKS = 16 };

/* --- opening --- */

static uint32_t seconds_to_open(void)
{
    const char *text = getenv(SECONDS_VARIABLE);
    unsigned long named = text != NULL ? strtoul(text, NULL, 10) : 0;
    return named == 0 ? SECONDS : named < SECONDS_MAX ? (uint32_t)named : SECONDS_MAX;
}

/* Where one cannot, it is no use to wait for it. */
static bool another_failed(const fg_tp *tp)
{
    for (uint32_t rank = 0; rank < tp->size; rank++) {
        if (rank != tp->rank && atomic_load(&tp->region->slots[rank].opened) == FG_TP_NOT_OPENED) {
            return true;
        }
    }
    return false;
}

static fg_status open_own(fg_tp *tp, fg_device_stream *stream, size_t row_max, fg_error *err)
{
    const fg_comm_options options = {
        .name = tp->region->comm_name, .rank = tp->rank, .ranks = tp->size, .row_max = row_max
    };
    uint32_t seconds = tp->region->comm_seconds;
    fg_status status = fg_comm_open(stream, &options, &tp->comm, err);
    if (status != FG_OK) {
        return status;
    }
    fg_clock clock = fg_clock_real();
    uint64_t until_ns = fg_clock_now_ns(&clock) + seconds * 1000000000ull;
    while (!fg_comm_is_open(tp->comm, &status, err)) {
        if (another_failed(tp)) {
            return fg_fail(err, FG_PEER_LOST, "another rank cannot");
        }
        if (fg_clock_now_ns(&clock) > until_ns) {
            return fg_fail(err, FG_TIMEOUT, "the ranks had not met after %u s (%s)", seconds,
                           SECONDS_VARIABLE);
        }
        if (tp->rank == 0) {
            fg_tp_look(tp);
        }
        usleep(OPEN_LOOK_US);
    }
    return status;
}

/* All ranks see the same: who has none, and why; one that only gave up for another's sake comes last. NULL: all have one. */
static const fg_tp_slot *failed_slot(const fg_tp *tp)
{
    const fg_tp_slot *failed = NULL;
    for (uint32_t rank = 0; rank < tp->size; rank++) {
        const fg_tp_slot *slot = &tp->region->slots[rank];
        bool better = failed == NULL || failed->status == FG_PEER_LOST;
        if (atomic_load(&slot->opened) != FG_TP_OPENED && better) {
            failed = slot;
        }
    }
    return failed;
}

/* What becomes of a way that is not there. */
static fg_status do_without(fg_tp_way way, fg_status status, const char *why, fg_error *err)
{
    if (way == FG_TP_WAY_NCCL) {
        return fg_fail(err, status == FG_AGAIN ? FG_AGAIN : FG_BAD_INPUT, "--tp-gather nccl: %s",
                       why);
    }
    fg_warn("engine", "event=gather way=host why=\"%s\"", why);
    return FG_OK;
}

/* Every rank's part of it. */
static fg_status open_together(fg_tp *tp, fg_tp_way way, fg_device_stream *stream, size_t row_max,
                               fg_error *err)
{
    fg_error own = { 0 };
    fg_tp_slot *slot = &tp->region->slots[tp->rank];
    fg_status status = open_own(tp, stream, row_max, &own);
    slot->status = (uint32_t)status;
    snprintf(slot->why, sizeof slot->why, "%s", own.text);
    atomic_store(&slot->opened, status == FG_OK ? FG_TP_OPENED : FG_TP_NOT_OPENED);
    fg_tp_meet(tp);
    const fg_tp_slot *failed = failed_slot(tp);
    if (failed != NULL) {
        fg_tp_close_comm(tp);
        char why[FG_ERROR_TEXT_MAX + 32];
        snprintf(why, sizeof why, "rank %d: %.*s", (int)(failed - tp->region->slots),
                 FG_ERROR_TEXT_MAX - 1, failed->why);
        return tp->rank == 0 ? do_without(way, (fg_status)failed->status, why, err) : FG_OK;
    }
    if (tp->rank == 0) {
        fg_info("engine", "event=gather way=nccl by=\"%s\"", fg_comm_way(tp->comm));
    }
    return FG_OK;
}

fg_status fg_tp_open_comm(fg_tp *tp, fg_tp_way way, fg_device_stream *stream, fg_device *device,
                          size_t row_max, fg_error *err)
{
    if (tp->rank == 0) {
        fg_error why = { 0 };
        if (fg_device_is_host(device) || way == FG_TP_WAY_HOST) {
            return FG_OK;
        }
        fg_status status = fg_comm_make_name(device, &tp->region->comm_name, &why);
        if (status != FG_OK) {
            return do_without(way, status, why.text, err);
        }
        tp->region->comm_seconds = seconds_to_open();
        fg_tp_begin(tp, (fg_tp_step){ .opens_comm = true });
    }
    return open_together(tp, way, stream, row_max, err);
}

void fg_tp_close_comm(fg_tp *tp)
{
    fg_comm_close(tp->comm);
    tp->comm = NULL;
}

bool fg_tp_has_comm(const fg_tp *tp)
{
    return tp != NULL && tp->comm != NULL;
}

/* --- waiting --- */

static _Noreturn void give_up(const char *why)
{
    fg_err("engine", "event=gather_failed why=\"%s: this worker ends\"", why);
    _exit(1);
}

/* Rank 0 looks whether the others still live, since its device does not: there a gathering just never ends. */
static void check_gathering(fg_tp *tp, uint32_t looks)
{
    fg_error err;
    fg_tp_look(tp);
    if (fg_comm_check(tp->comm, &err) != FG_OK) {
        give_up(err.text);
    }
    if (looks >= FG_TP_LOOKS_MAX) {
        give_up("a step has not ended on the device for a minute");
    }
}

void fg_tp_wait_device(fg_tp *tp, fg_device_stream *stream, fg_device_event event)
{
    if (!fg_tp_has_comm(tp) || tp->rank != 0) {
        fg_device_event_wait(stream, event);
        return;
    }
    fg_clock clock = fg_clock_real();
    uint64_t look_ns = fg_clock_now_ns(&clock) + FG_TP_LOOK_NS;
    for (uint32_t looks = 0; !fg_device_event_ended(stream, event);) {
        for (int i = 0; i < WAIT_LOOKS; i++) {
            fg_thread_relax();
        }
        if (fg_clock_now_ns(&clock) >= look_ns) {
            check_gathering(tp, looks++);
            look_ns = fg_clock_now_ns(&clock) + FG_TP_LOOK_NS;
        }
    }
}
