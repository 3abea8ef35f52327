#include "common/base/team_rescue.h"

#include <time.h>

#include "common/base/thread.h"
#include "tests/support/test.h"

/* A thread that sits down and then does what it is told, one thing at a time. To sleep is as good as to
 * have no core: its processor time stands still. */
typedef struct sleeper {
    fg_team_seat seat;
    pthread_t thread;
    fg_signal told, done;
    enum { SIT, SETTLE, SPIN, LEAVE_SEAT, LEAVE } what;
    _Atomic bool spinning;
} sleeper;

static void *sleeper_main(void *ctx)
{
    sleeper *s = ctx;
    fg_team_sit(&s->seat, -1);
    fg_team_begin(&s->seat);
    uint32_t seen = 0;
    for (;;) {
        fg_signal_raise(&s->done);
        seen = fg_signal_wait(&s->told, seen);
        if (s->what == LEAVE) {
            return NULL;
        }
        if (s->what == SETTLE) {
            fg_team_settle(&s->seat);
        }
        if (s->what == LEAVE_SEAT) {
            fg_team_leave(&s->seat);
        }
        while (s->what == SPIN && atomic_load(&s->spinning)) {
        }
    }
}

static void tell(sleeper *s, int what)
{
    uint32_t seen = fg_signal_count(&s->done);
    s->what = what;
    fg_signal_raise(&s->told);
    fg_signal_wait(&s->done, seen);
}

static void start(sleeper *s)
{
    cr_assert(fg_thread_start(&s->thread, sleeper_main, s));
    fg_signal_wait(&s->done, 0);
}

static void stop(sleeper *s)
{
    s->what = LEAVE;
    fg_signal_raise(&s->told);
    fg_thread_join(s->thread);
}

/* The one processor that a thread may use; -1 when there are several. */
static int only_cpu_of(int32_t tid)
{
    cpu_set_t set;
    if (sched_getaffinity(tid, sizeof set, &set) != 0 || CPU_COUNT(&set) != 1) {
        return -1;
    }
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET((size_t)cpu, &set)) {
            return cpu;
        }
    }
    return -1;
}

/* Two processors that this thread may use, itself held on the first. */
static bool take_two_cpus(fg_team_seat *self, uint32_t cpus[2])
{
    fg_team_sit(self, -1);
    uint32_t count = 0;
    for (uint32_t cpu = 0; cpu < CPU_SETSIZE && count < 2; cpu++) {
        if (CPU_ISSET(cpu, &self->home)) {
            cpus[count++] = cpu;
        }
    }
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpus[0], &one);
    return count == 2 && sched_setaffinity(0, sizeof one, &one) == 0;
}

Test(team_rescue, moves_who_has_no_core_and_brings_both_home)
{
    static const struct {
        const char *name;
        bool keep;
    } cases[] = { { "a member goes back to the shared core", false },
                  { "the caller of the run stays on the good one", true } };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sleeper s = { 0 };
        start(&s); /* before this thread is held, or it would inherit that */
        fg_team_seat self = { 0 };
        uint32_t cpus[2];
        if (!take_two_cpus(&self, cpus)) {
            cr_skip("needs two processors");
        }
        atomic_store(&s.seat.cpu, cpus[1]);
        cr_assert(fg_team_rescue(&self, &s.seat, cases[i].keep), "%s", cases[i].name);
        cr_assert_eq(only_cpu_of(s.seat.tid), (int)cpus[0], "%s", cases[i].name);
        cr_assert_eq(only_cpu_of(0), (int)cpus[cases[i].keep ? 1 : 0], "%s", cases[i].name);
        cr_assert(!fg_team_rescue(&self, &s.seat, false), "%s: not twice", cases[i].name);

        tell(&s, SETTLE);
        cr_assert_eq(only_cpu_of(s.seat.tid), (int)cpus[cases[i].keep ? 0 : 1], "%s",
                     cases[i].name);
        tell(&s, SETTLE);
        cr_assert(s.seat.held, "%s: stays for a while", cases[i].name);
        s.seat.held_until_ns = 0;
        tell(&s, SETTLE);
        self.held_until_ns = 0;
        fg_team_settle(&self);
        cr_assert(!s.seat.held && !self.held, "%s", cases[i].name);
        cr_assert_eq(only_cpu_of(s.seat.tid), -1, "%s", cases[i].name);
        cr_assert_eq(only_cpu_of(0), -1, "%s", cases[i].name);
        stop(&s);
    }
}

/* Both sides of a rescue, when the team ends before they are due home. */
Test(team_rescue, nobody_is_held_once_the_team_is_gone)
{
    for (int rescued = 0; rescued < 2; rescued++) {
        sleeper s = { 0 };
        start(&s);
        fg_team_seat self = { 0 };
        uint32_t cpus[2];
        if (!take_two_cpus(&self, cpus)) {
            cr_skip("needs two processors");
        }
        atomic_store(&s.seat.cpu, cpus[1]);
        cr_assert(fg_team_rescue(&self, &s.seat, false));
        fg_team_leave(&s.seat);
        cr_assert_eq(only_cpu_of(s.seat.tid), (int)cpus[0], "another thread's seat is left alone");
        tell(&s, rescued ? SETTLE : LEAVE_SEAT);
        tell(&s, LEAVE_SEAT);
        fg_team_leave(&self);
        cr_assert_eq(only_cpu_of(s.seat.tid), -1);
        cr_assert_eq(only_cpu_of(0), -1);
        stop(&s);
    }
}

Test(team_rescue, leaves_others_alone)
{
    sleeper s = { 0 };
    start(&s);
    fg_team_seat self = { 0 };
    uint32_t cpus[2];
    if (!take_two_cpus(&self, cpus)) {
        cr_skip("needs two processors");
    }
    atomic_store(&s.seat.cpu, cpus[0]);
    cr_assert(!fg_team_rescue(&self, &s.seat, false), "it waits for this very core");
    atomic_store(&s.seat.cpu, CPU_SETSIZE);
    cr_assert(!fg_team_rescue(&self, &s.seat, false), "no such processor");
    atomic_store(&s.seat.cpu, cpus[1]);
    fg_team_end(&s.seat);
    cr_assert(!fg_team_rescue(&self, &s.seat, false), "it has no piece");
    cr_assert_eq(only_cpu_of(s.seat.tid), -1);
    fg_team_begin(&s.seat);
    stop(&s);
    atomic_store(&s.seat.cpu, cpus[1]);
    cr_assert(!fg_team_rescue(&self, &s.seat, false), "the thread has ended");
    cr_assert(!self.held);
    sched_setaffinity(0, sizeof self.home, &self.home);
}

static uint64_t processor_time_ns(pthread_t thread)
{
    clockid_t clock;
    struct timespec time;
    cr_assert(pthread_getcpuclockid(thread, &clock) == 0 && clock_gettime(clock, &time) == 0);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

/* Whoever runs keeps its core. */
Test(team_rescue, leaves_a_running_thread_alone)
{
    sleeper s = { .spinning = true };
    start(&s);
    fg_team_seat self = { 0 };
    uint32_t cpus[2];
    if (!take_two_cpus(&self, cpus)) {
        cr_skip("needs two processors");
    }
    atomic_store(&s.seat.cpu, cpus[1]);
    cpu_set_t other;
    CPU_ZERO(&other);
    CPU_SET(cpus[1], &other);
    cr_assert_eq(sched_setaffinity(s.seat.tid, sizeof other, &other), 0);
    s.what = SPIN;
    fg_signal_raise(&s.told);
    /* It may wait for a core most of the time, on a busy machine; not in all looks while it runs for long. */
    enum { LONG_NS = 500000000 };
    bool left_alone = false;
    while (!left_alone && processor_time_ns(s.thread) < LONG_NS) {
        left_alone = !fg_team_rescue(&self, &s.seat, false);
        atomic_store(&s.seat.state, 0);
        sched_setaffinity(s.seat.tid, sizeof other, &other);
    }
    cr_assert(left_alone);
    atomic_store(&s.spinning, false);
    fg_signal_wait(&s.done, 1);
    stop(&s);
    sched_setaffinity(0, sizeof self.home, &self.home);
}
