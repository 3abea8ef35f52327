#include "common/base/team_rescue.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/thread.h"

enum { HOLD_NS = 50000000, LOOK_NS = 4000 };

enum { FREE, MOVING, MOVED };

static uint64_t now_ns(void)
{
    fg_clock clock = fg_clock_real();
    return fg_clock_now_ns(&clock);
}

static void put(int32_t tid, uint32_t cpu)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(tid, sizeof one, &one);
}

void fg_team_sit(fg_team_seat *self, int cpu)
{
    atomic_store_explicit(&self->tid, gettid(), memory_order_relaxed);
    if (sched_getaffinity(0, sizeof self->before, &self->before) != 0) {
        memset(&self->before, 0xFF, sizeof self->before);
    }
    self->home = self->before;
    if (cpu >= 0 && cpu < CPU_SETSIZE) {
        put(0, (uint32_t)cpu);
        if (sched_getaffinity(0, sizeof self->home, &self->home) != 0) {
            self->home = self->before;
        }
    }
}

/* The kernel's name for the processor time of a thread (man clock_getcpuclockid); unlike a pthread_t, one
 * of a thread that has ended is refused and does no harm. */
static clockid_t clock_of(int32_t tid)
{
    return (clockid_t)(~(uint32_t)tid << 3 | 6u);
}

/* A thread whose own processor time stands still is not running, whatever the reason. */
static bool runs(int32_t tid)
{
    struct timespec before, after;
    if (clock_gettime(clock_of(tid), &before) != 0) {
        return true;
    }
    uint64_t until_ns = now_ns() + LOOK_NS;
    while (now_ns() < until_ns) {
        fg_thread_relax();
    }
    return clock_gettime(clock_of(tid), &after) != 0 || after.tv_nsec != before.tv_nsec ||
           after.tv_sec != before.tv_sec;
}

/* By the seat's own thread. */
static void hold(fg_team_seat *self, uint32_t cpu)
{
    self->held = true;
    self->held_until_ns = now_ns() + HOLD_NS;
    put(0, cpu);
}

bool fg_team_rescue(fg_team_seat *rescuer, fg_team_seat *stuck, bool keep)
{
    uint32_t here = (uint32_t)sched_getcpu();
    uint32_t there = atomic_load_explicit(&stuck->cpu, memory_order_relaxed);
    int32_t tid = atomic_load_explicit(&stuck->tid, memory_order_relaxed);
    uint32_t expected = FREE;
    if (!atomic_load(&stuck->working) || here == there || here >= CPU_SETSIZE ||
        there >= CPU_SETSIZE || runs(tid) ||
        !atomic_compare_exchange_strong(&stuck->state, &expected, MOVING)) {
        return false;
    }
    stuck->target_cpu = keep ? here : there;
    put(tid, here);
    atomic_store(&stuck->state, MOVED);
    hold(rescuer, keep ? there : here);
    return true;
}

void fg_team_settle(fg_team_seat *self)
{
    if (atomic_load(&self->state) == MOVED) {
        self->held = true;
        self->held_until_ns = now_ns() + HOLD_NS;
        put(0, self->target_cpu);
        atomic_store(&self->state, FREE);
    } else if (self->held && now_ns() > self->held_until_ns) {
        self->held = false;
        sched_setaffinity(0, sizeof self->home, &self->home);
    }
}

void fg_team_leave(fg_team_seat *self)
{
    bool elsewhere =
        self->held || atomic_load(&self->state) == MOVED || !CPU_EQUAL(&self->home, &self->before);
    if (atomic_load(&self->tid) == gettid() && elsewhere) {
        self->held = false;
        atomic_store(&self->state, FREE);
        sched_setaffinity(0, sizeof self->before, &self->before);
    }
}
