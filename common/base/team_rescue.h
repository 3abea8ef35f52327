/*
 * team_rescue - for team alone: a thread that lost its core in the middle of a piece holds up a whole
 * run for a time slice (3 ms), while the core of whoever waits for it idles: the scheduler takes a thread
 * that ran a moment ago for cache-hot and does not move it. So the one who waits moves it to its own
 * core, and sleeps.
 *
 * For HOLD_NS afterwards both stay where they are put, the caller of the run on the good core and the
 * other on the one that is shared: left alone, the scheduler puts both on the good one, and the team
 * gets 1 core of the 1.5 that are its share.
 *
 * Refused system calls are ignored: everything still works, at the scheduler's pace.
 */
#ifndef FORGE_COMMON_BASE_TEAM_RESCUE_H
#define FORGE_COMMON_BASE_TEAM_RESCUE_H

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Where one thread of a team runs. */
typedef struct fg_team_seat {
    _Atomic int32_t tid;
    _Atomic bool working;   /* has claimed a piece and not reported it */
    _Atomic uint32_t cpu;   /* where it began its present pieces */
    _Atomic uint32_t state; /* FREE, MOVING, MOVED */
    uint32_t target_cpu;    /* where it goes when the piece that it was rescued with is done */
    bool held;              /* the thread's own: it may use one core of `home` alone */
    uint64_t held_until_ns;
    cpu_set_t home;   /* what the thread may use otherwise */
    cpu_set_t before; /* what it could use before it sat down */
} fg_team_seat;

/* Called by the thread that takes the seat; `cpu` is the only one it may use, -1 for all it has. */
void fg_team_sit(fg_team_seat *self, int cpu);

/* Moves `stuck` to the rescuer's core if it works but does not run; true when it did. `keep` says that
 * it stays there, and that the rescuer goes to its core instead. */
bool fg_team_rescue(fg_team_seat *rescuer, fg_team_seat *stuck, bool keep);
/* Called by the seat's own thread between pieces: goes where it was told, or home when it is time. */
void fg_team_settle(fg_team_seat *self);
/* Called by the seat's own thread when its team ends, and by others for nothing: it may run where it could
 * before, or the thread and all that it starts would keep to one core. Nobody else of the team is left. */
void fg_team_leave(fg_team_seat *self);

static inline void fg_team_begin(fg_team_seat *self)
{
    atomic_store_explicit(&self->cpu, (uint32_t)sched_getcpu(), memory_order_relaxed);
    atomic_store_explicit(&self->working, true, memory_order_release);
}

static inline void fg_team_end(fg_team_seat *self)
{
    atomic_store_explicit(&self->working, false, memory_order_relaxed);
    if (self->held || atomic_load_explicit(&self->state, memory_order_relaxed) != 0) {
        fg_team_settle(self);
    }
}

/* By the seat's own thread: where it was put makes no sense any more, others have come or gone. */
static inline void fg_team_unhold(fg_team_seat *self)
{
    self->held_until_ns = 0;
}

#endif
