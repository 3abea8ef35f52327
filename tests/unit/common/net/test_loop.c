/* Timers, descriptors, wake-ups from other threads, hooks and signals of the event loop. */
#include "tests/support/test.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "common/base/fault.h"
#include "common/net/loop.h"

typedef struct counter {
    fg_loop *loop;
    fg_timer *timer;
    fg_watch *watch;
    fg_hook *hook;
    fg_wake *wake;
    int count, stop_at;
    int fd;
    int last_signal;
} counter;

static fg_loop *make_loop(void)
{
    fg_loop *loop;
    fg_error err;
    cr_assert_eq(fg_loop_create(&loop, &err), FG_OK);
    return loop;
}

static void count_one(void *ctx)
{
    counter *c = ctx;
    if (++c->count == c->stop_at) {
        fg_loop_stop(c->loop);
    }
}

Test(loop, timer_repeats_until_closed)
{
    counter c = { .loop = make_loop(), .stop_at = 3 };
    cr_assert_eq(fg_timer_start(c.loop, 1, 1, count_one, &c, &c.timer), FG_OK);
    fg_loop_run(c.loop);
    cr_assert_eq(c.count, 3);
    fg_timer_close(c.timer);
    fg_timer_close(NULL);
    fg_loop_destroy(c.loop);
}

static void close_own_timer(void *ctx)
{
    counter *c = ctx;
    c->count++;
    fg_timer_close(c->timer);
}

Test(loop, one_shot_fires_once_and_may_close_itself)
{
    counter c = { .loop = make_loop() };
    cr_assert_eq(fg_timer_start(c.loop, 0, 0, close_own_timer, &c, &c.timer), FG_OK);
    fg_loop_run(c.loop); /* returns when nothing is left alive */
    cr_assert_eq(c.count, 1);
    cr_assert(!fg_loop_run_once(c.loop, true));
    fg_loop_destroy(c.loop);
}

static void read_one(void *ctx)
{
    counter *c = ctx;
    char byte;
    cr_assert_eq(read(c->fd, &byte, 1), 1);
    count_one(ctx);
}

Test(loop, watch_is_level_triggered)
{
    int ends[2];
    cr_assert_eq(pipe(ends), 0);
    counter c = { .loop = make_loop(), .stop_at = 3, .fd = ends[0] };
    cr_assert_eq(fg_watch_start(c.loop, ends[0], read_one, &c, &c.watch), FG_OK);
    cr_assert_eq(write(ends[1], "abc", 3), 3);
    fg_loop_run(c.loop); /* one byte a turn: an edge would have stopped after the first */
    cr_assert_eq(c.count, 3);
    fg_watch_close(c.watch);
    fg_loop_destroy(c.loop);
    close(ends[0]);
    close(ends[1]);
}

Test(loop, watch_refuses_what_cannot_be_watched)
{
    fg_loop *loop = make_loop();
    fg_watch *watch;
    cr_assert_neq(fg_watch_start(loop, -1, count_one, NULL, &watch), FG_OK);
    fg_loop_destroy(loop);
}

static void *wake_many(void *ctx)
{
    counter *c = ctx;
    for (int i = 0; i < 1000; i++) {
        fg_wake_send(c->wake);
    }
    return NULL;
}

static void woken(void *ctx)
{
    counter *c = ctx;
    c->count++;
    fg_loop_stop(c->loop);
}

Test(loop, wake_comes_from_another_thread_and_collapses)
{
    counter c = { .loop = make_loop() };
    pthread_t thread;
    cr_assert_eq(fg_wake_create(c.loop, woken, &c, &c.wake), FG_OK);
    cr_assert_eq(pthread_create(&thread, NULL, wake_many, &c), 0);
    fg_loop_run(c.loop);
    pthread_join(thread, NULL);
    fg_loop_run_once(c.loop, false);
    cr_assert(c.count >= 1 && c.count <= 1000);
    fg_wake_close(c.wake);
    fg_loop_destroy(c.loop);
}

static bool more_until_ten(void *ctx)
{
    counter *c = ctx;
    c->count++;
    if (c->count == 10) {
        fg_loop_stop(c->loop);
    }
    return c->count < 10;
}

Test(loop, hook_keeps_the_loop_awake_while_there_is_more)
{
    counter c = { .loop = make_loop() };
    /* No timer, no descriptor: only the hook's answer keeps the loop turning. */
    cr_assert_eq(fg_hook_start(c.loop, more_until_ten, &c, &c.hook), FG_OK);
    fg_loop_run(c.loop);
    cr_assert_eq(c.count, 10);
    fg_hook_close(c.hook);
    fg_loop_destroy(c.loop);
}

static bool close_own_hook(void *ctx)
{
    counter *c = ctx;
    c->count++;
    fg_hook_close(c->hook);
    return true;
}

Test(loop, hook_may_close_itself)
{
    counter c = { .loop = make_loop() };
    cr_assert_eq(fg_hook_start(c.loop, close_own_hook, &c, &c.hook), FG_OK);
    fg_loop_run(c.loop);
    cr_assert_eq(c.count, 1);
    fg_loop_destroy(c.loop);
}

static void on_signal(void *ctx, int number)
{
    counter *c = ctx;
    c->last_signal = number;
    fg_loop_stop(c->loop);
}

Test(loop, who_started_this_process_may_have_it_ignore_hangups)
{
    signal(SIGHUP, SIG_DFL);
    cr_assert(!fg_loop_hangup_ignored());
    signal(SIGHUP, SIG_IGN);
    cr_assert(fg_loop_hangup_ignored());
}

Test(loop, signals_arrive_on_the_loop)
{
    counter c = { .loop = make_loop() };
    static const int numbers[] = { SIGTERM, SIGINT };
    cr_assert_eq(fg_loop_on_signal(c.loop, on_signal, &c), FG_OK);
    /* The handler alone does not keep the loop alive. */
    cr_assert(!fg_loop_run_once(c.loop, true));
    cr_assert_eq(fg_timer_start(c.loop, 60000, 0, count_one, &c, &c.timer), FG_OK);
    for (int i = 0; i < 2; i++) {
        raise(numbers[i]);
        fg_loop_run(c.loop);
        cr_assert_eq(c.last_signal, numbers[i]);
    }
    fg_timer_close(c.timer);
    fg_loop_destroy(c.loop);
}

static bool try_everything(void *ctx)
{
    fg_loop *loop;
    fg_error err;
    fg_timer *timer = NULL;
    fg_watch *watch = NULL;
    fg_wake *wake = NULL;
    fg_hook *hook = NULL;
    if (fg_loop_create(&loop, &err) != FG_OK) {
        return false;
    }
    bool good = fg_timer_start(loop, 1, 0, count_one, NULL, &timer) == FG_OK &&
                fg_watch_start(loop, *(int *)ctx, count_one, NULL, &watch) == FG_OK &&
                fg_wake_create(loop, count_one, NULL, &wake) == FG_OK &&
                fg_hook_start(loop, close_own_hook, NULL, &hook) == FG_OK &&
                fg_loop_on_signal(loop, on_signal, NULL) == FG_OK;
    fg_timer_close(timer);
    fg_watch_close(watch);
    fg_wake_close(wake);
    fg_hook_close(hook);
    fg_loop_destroy(loop);
    return good;
}

Test(loop, constructors_survive_every_failure)
{
    int ends[2];
    cr_assert_eq(pipe(ends), 0);
    int faults = fg_fault_each(try_everything, &ends[0]);
    cr_assert(faults >= 10, "%d", faults);
    close(ends[0]);
    close(ends[1]);
}
