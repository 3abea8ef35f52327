/*
 * life - names every moment of one request and refuses an impossible move. Pure; embedded by value
 * in whatever keeps a request's books, owned by its thread.
 *
 *   QUEUED -> RESERVED -> PREFILLING -> TRANSFERRING -> DECODING -> FINISHED   two workers
 *   QUEUED -> PREFILLING -> DECODING -> FINISHED                one worker for both
 *   PREFILLING, TRANSFERRING -> FINISHED                        the first token ends it
 *   PREFILLING -> DECODING                                      decode's news overtook prefill's
 *   RESERVED, PREFILLING, TRANSFERRING, DECODING -> QUEUED      a worker or link was lost: again
 *   any but an end -> CANCELLED, FAILED                         client gone, deadline; error
 *
 * fg_life_move makes every move; FINISHED, CANCELLED and FAILED are left by none.
 */
#ifndef FORGE_COMMON_OBS_LIFE_H
#define FORGE_COMMON_OBS_LIFE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

typedef enum fg_life_state {
    FG_LIFE_QUEUED = 0,
    FG_LIFE_RESERVED,
    FG_LIFE_PREFILLING,
    FG_LIFE_TRANSFERRING,
    FG_LIFE_DECODING,
    FG_LIFE_FINISHED,
    FG_LIFE_CANCELLED,
    FG_LIFE_FAILED,
    FG_LIFE_STATE_COUNT,
} fg_life_state;

/* Moments that are no change of state. The first time counts; a repeated attempt keeps it. */
typedef enum fg_life_moment {
    FG_LIFE_FIRST_TOKEN = 0, /* known to the router: time to first token ends here */
    FG_LIFE_SECOND_TOKEN,    /* the gap from first to second shows what the hand-over cost */
    FG_LIFE_LAST_TOKEN,      /* the latest so far: this one moves */
    FG_LIFE_MOMENT_COUNT,
} fg_life_moment;

typedef struct fg_life {
    fg_life_state state;
    uint32_t attempts; /* times it left QUEUED */
    uint64_t started_at_ns;
    uint64_t entered_at_ns[FG_LIFE_STATE_COUNT]; /* the latest entry; 0: never */
    uint64_t spent_ns[FG_LIFE_STATE_COUNT];      /* in all visits that have ended */
    uint64_t moment_ns[FG_LIFE_MOMENT_COUNT];    /* 0: not yet */
} fg_life;

/* Begins in QUEUED. Times are of one monotonic clock. */
void fg_life_init(fg_life *life, uint64_t now_ns);
/* FG_BROKEN for a move that is not in the picture above: a bug in Forge, for the caller to end the
 * request (or the process) over; nothing has changed then. */
fg_status fg_life_move(fg_life *life, fg_life_state to, uint64_t now_ns, fg_error *err);
bool fg_life_can_move(fg_life_state from, fg_life_state to);
void fg_life_mark(fg_life *life, fg_life_moment moment, uint64_t now_ns);

/* FINISHED, CANCELLED or FAILED. */
bool fg_life_ended(const fg_life *life);
/* Time in `state` over all visits, the running one included. */
uint64_t fg_life_spent_ns(const fg_life *life, fg_life_state state, uint64_t now_ns);
/* "queued", "reserved", ...: the words of GET /debug/state and of log lines. */
const char *fg_life_name(fg_life_state state);

#endif
