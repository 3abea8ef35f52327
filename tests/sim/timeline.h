/*
 * timeline - simulated time: a clock, and what happens next. Owned by one thread.
 *
 * Events happen in the order of their times; those of one time in the order in which they were pushed.
 * So a run is a function of what is pushed, and pushing is the only way to be called. The clock moves
 * from event to event and never back; between two events it stands still.
 */
#ifndef FORGE_TESTS_SIM_TIMELINE_H
#define FORGE_TESTS_SIM_TIMELINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

typedef struct fg_timeline_event fg_timeline_event;

/* `ctx` is the timeline's; the event is a copy and valid for the call. */
typedef void fg_timeline_fire(void *ctx, const fg_timeline_event *event);

struct fg_timeline_event {
    uint64_t at_ns; /* not before now_ns; an earlier one happens now */
    uint64_t order; /* set by push: a serial number */
    fg_timeline_fire *fire;
    void (*drop)(void *arg); /* the event will never happen (deinit); may be NULL */
    void *arg;
    uint64_t index; /* for the caller: a process, a request */
};

typedef struct fg_timeline {
    uint64_t now_ns; /* read only; its address makes an fg_clock_manual */
    uint64_t fired;
    void *ctx;
    uint64_t next_order;
    fg_timeline_event *heap;
    size_t count, capacity, count_max;
} fg_timeline;

/* Takes no memory yet. At most `count_max` events wait at a time. */
void fg_timeline_init(fg_timeline *timeline, size_t count_max, void *ctx);

/* Makes room for `count` events, so that pushing them takes no memory. FG_AGAIN: out of memory. */
fg_status fg_timeline_reserve(fg_timeline *timeline, size_t count);

/* Drops what still waits, in its order. */
void fg_timeline_deinit(fg_timeline *timeline);

/* FG_AGAIN: out of memory, or count_max events wait already; the event is not taken. */
fg_status fg_timeline_push(fg_timeline *timeline, const fg_timeline_event *event);

/* When the next event happens; UINT64_MAX: nothing waits. */
uint64_t fg_timeline_next_ns(const fg_timeline *timeline);

/* Moves the clock to the next event and fires it. False: nothing waits. */
bool fg_timeline_step(fg_timeline *timeline);

#endif
