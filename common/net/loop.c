#include "common/net/loop.h"

#include <signal.h>
#include <string.h>

#include <uv.h>

#include "common/base/fault.h"
#include "common/base/mem.h"

enum { SIGNAL_COUNT = 2 };

/* One signal, for whoever asked for it. */
typedef struct fg_caller {
    uv_signal_t uv;
    bool open;
    void (*fn)(void *ctx);
    void *ctx;
} fg_caller;

struct fg_loop {
    uv_loop_t uv;
    uv_signal_t signals[SIGNAL_COUNT];
    bool has_signals;
    void (*on_signal)(void *ctx, int signal);
    void *on_signal_ctx;
    fg_caller hangup, user;
};

/* Each object's handle is its first member, so that one close callback frees them all. */
struct fg_timer {
    uv_timer_t uv;
    void (*fn)(void *ctx);
    void *ctx;
};

struct fg_watch {
    uv_poll_t uv;
    void (*fn)(void *ctx);
    void *ctx;
};

struct fg_wake {
    uv_async_t uv;
    void (*fn)(void *ctx);
    void *ctx;
};

struct fg_hook {
    uv_prepare_t prepare;
    uv_idle_t idle; /* active while there is more work: the loop polls without sleeping */
    bool (*fn)(void *ctx);
    void *ctx;
    int open_count; /* handles not yet closed */
};

static fg_status uv_status(int rc, const char *what, fg_error *err)
{
    if (rc >= 0) {
        return FG_OK;
    }
    fg_status status = rc == UV_ENOMEM || rc == UV_EMFILE || rc == UV_ENFILE ? FG_AGAIN : FG_BROKEN;
    return fg_fail(err, status, "%s: %s", what, uv_strerror(rc));
}

fg_status fg_loop_create(fg_loop **loop_out, fg_error *err)
{
    fg_loop *loop = fg_mem_alloc(sizeof *loop);
    if (loop == NULL) {
        return fg_fail(err, FG_AGAIN, "loop: out of memory");
    }
    fg_status status =
        uv_status(fg_fault_hit() ? UV_ENOMEM : uv_loop_init(&loop->uv), "event loop", err);
    if (status != FG_OK) {
        fg_mem_free(loop);
        return status;
    }
    /* libuv writes with writev: a peer that has closed must be an error code, not a signal. */
    signal(SIGPIPE, SIG_IGN);
    *loop_out = loop;
    return FG_OK;
}

static void count_open(uv_handle_t *handle, void *ctx)
{
    if (!uv_is_closing(handle)) {
        ++*(int *)ctx;
    }
}

void fg_loop_destroy(fg_loop *loop)
{
    if (loop == NULL) {
        return;
    }
    if (loop->has_signals) {
        for (int i = 0; i < SIGNAL_COUNT; i++) {
            uv_close((uv_handle_t *)&loop->signals[i], NULL);
        }
    }
    if (loop->hangup.open) {
        uv_close((uv_handle_t *)&loop->hangup.uv, NULL);
    }
    if (loop->user.open) {
        uv_close((uv_handle_t *)&loop->user.uv, NULL);
    }
    int open_count = 0;
    uv_walk(&loop->uv, count_open, &open_count);
    FG_ASSERT(open_count == 0, "%d objects still open on the loop", open_count);
    while (uv_run(&loop->uv, UV_RUN_DEFAULT) != 0) {
    }
    int rc = uv_loop_close(&loop->uv);
    FG_ASSERT(rc == 0, "%s", uv_strerror(rc));
    fg_mem_free(loop);
}

void fg_loop_run(fg_loop *loop)
{
    uv_run(&loop->uv, UV_RUN_DEFAULT);
}

void fg_loop_stop(fg_loop *loop)
{
    uv_stop(&loop->uv);
}

bool fg_loop_run_once(fg_loop *loop, bool wait)
{
    return uv_run(&loop->uv, wait ? UV_RUN_ONCE : UV_RUN_NOWAIT) != 0;
}

void *fg_loop_native(fg_loop *loop)
{
    return &loop->uv;
}

static void free_handle(uv_handle_t *handle)
{
    fg_mem_free(handle);
}

static void timer_fired(uv_timer_t *handle)
{
    fg_timer *timer = (fg_timer *)handle;
    timer->fn(timer->ctx);
}

fg_status fg_timer_start(fg_loop *loop, uint64_t first_ms, uint64_t period_ms,
                         void (*fn)(void *ctx), void *ctx, fg_timer **timer_out)
{
    fg_timer *timer = fg_mem_alloc(sizeof *timer);
    if (timer == NULL) {
        return FG_AGAIN;
    }
    timer->fn = fn;
    timer->ctx = ctx;
    uv_timer_init(&loop->uv, &timer->uv);
    uv_timer_start(&timer->uv, timer_fired, first_ms, period_ms);
    *timer_out = timer;
    return FG_OK;
}

void fg_timer_close(fg_timer *timer)
{
    if (timer != NULL) {
        uv_close((uv_handle_t *)&timer->uv, free_handle);
    }
}

static void watch_fired(uv_poll_t *handle, int status, int events)
{
    fg_watch *watch = (fg_watch *)handle;
    watch->fn(watch->ctx);
}

fg_status fg_watch_start(fg_loop *loop, int fd, void (*fn)(void *ctx), void *ctx,
                         fg_watch **watch_out)
{
    fg_watch *watch = fg_mem_alloc(sizeof *watch);
    if (watch == NULL) {
        return FG_AGAIN;
    }
    fg_status status = uv_status(
        fg_fault_hit() ? UV_ENOMEM : uv_poll_init(&loop->uv, &watch->uv, fd), "watch", NULL);
    if (status != FG_OK) {
        fg_mem_free(watch);
        return status;
    }
    watch->fn = fn;
    watch->ctx = ctx;
    uv_poll_start(&watch->uv, UV_READABLE, watch_fired);
    *watch_out = watch;
    return FG_OK;
}

void fg_watch_close(fg_watch *watch)
{
    if (watch != NULL) {
        uv_close((uv_handle_t *)&watch->uv, free_handle);
    }
}

static void wake_fired(uv_async_t *handle)
{
    fg_wake *wake = (fg_wake *)handle;
    wake->fn(wake->ctx);
}

fg_status fg_wake_create(fg_loop *loop, void (*fn)(void *ctx), void *ctx, fg_wake **wake_out)
{
    fg_wake *wake = fg_mem_alloc(sizeof *wake);
    if (wake == NULL) {
        return FG_AGAIN;
    }
    wake->fn = fn;
    wake->ctx = ctx;
    fg_status status =
        uv_status(fg_fault_hit() ? UV_ENOMEM : uv_async_init(&loop->uv, &wake->uv, wake_fired),
                  "wake-up", NULL);
    if (status != FG_OK) {
        fg_mem_free(wake);
        return status;
    }
    *wake_out = wake;
    return FG_OK;
}

void fg_wake_send(fg_wake *wake)
{
    uv_async_send(&wake->uv);
}

void fg_wake_close(fg_wake *wake)
{
    if (wake != NULL) {
        uv_close((uv_handle_t *)&wake->uv, free_handle);
    }
}

static void idle_turn(uv_idle_t *handle)
{
}

/* uv_prepare runs last before the loop sleeps, so nothing can slip in between the look and the sleep:
 * an idle handle that is active at that moment turns the sleep into a poll. */
static void hook_turn(uv_prepare_t *handle)
{
    fg_hook *hook = handle->data;
    bool more = hook->fn(hook->ctx);
    if (uv_is_closing((uv_handle_t *)&hook->prepare)) {
        return;
    }
    if (more) {
        uv_idle_start(&hook->idle, idle_turn);
    } else {
        uv_idle_stop(&hook->idle);
    }
}

fg_status fg_hook_start(fg_loop *loop, bool (*fn)(void *ctx), void *ctx, fg_hook **hook_out)
{
    fg_hook *hook = fg_mem_alloc(sizeof *hook);
    if (hook == NULL) {
        return FG_AGAIN;
    }
    hook->fn = fn;
    hook->ctx = ctx;
    hook->open_count = 2;
    uv_prepare_init(&loop->uv, &hook->prepare);
    uv_idle_init(&loop->uv, &hook->idle);
    hook->prepare.data = hook;
    hook->idle.data = hook;
    uv_prepare_start(&hook->prepare, hook_turn);
    *hook_out = hook;
    return FG_OK;
}

static void hook_closed(uv_handle_t *handle)
{
    fg_hook *hook = handle->data;
    if (--hook->open_count == 0) {
        fg_mem_free(hook);
    }
}

void fg_hook_close(fg_hook *hook)
{
    if (hook != NULL) {
        uv_close((uv_handle_t *)&hook->prepare, hook_closed);
        uv_close((uv_handle_t *)&hook->idle, hook_closed);
    }
}

static void signal_arrived(uv_signal_t *handle, int number)
{
    fg_loop *loop = handle->data;
    loop->on_signal(loop->on_signal_ctx, number);
}

fg_status fg_loop_on_signal(fg_loop *loop, void (*fn)(void *ctx, int signal), void *ctx)
{
    static const int numbers[SIGNAL_COUNT] = { SIGINT, SIGTERM };
    FG_ASSERT(!loop->has_signals, "signals are handled already");
    loop->on_signal = fn;
    loop->on_signal_ctx = ctx;
    for (int i = 0; i < SIGNAL_COUNT; i++) {
        int rc = fg_fault_hit() ? UV_ENOMEM : uv_signal_init(&loop->uv, &loop->signals[i]);
        if (rc == 0) {
            loop->signals[i].data = loop;
            rc = fg_fault_hit() ? UV_ENOMEM
                                : uv_signal_start(&loop->signals[i], signal_arrived, numbers[i]);
            if (rc != 0) {
                uv_close((uv_handle_t *)&loop->signals[i], NULL);
            }
        }
        if (rc != 0) {
            while (i-- > 0) {
                uv_close((uv_handle_t *)&loop->signals[i], NULL);
            }
            return uv_status(rc, "signal", NULL);
        }
        /* Waiting for a signal alone does not keep a loop running. */
        uv_unref((uv_handle_t *)&loop->signals[i]);
    }
    loop->has_signals = true;
    return FG_OK;
}

static void caller_arrived(uv_signal_t *handle, int number)
{
    const fg_caller *caller = handle->data;
    caller->fn(caller->ctx);
}

static fg_status on_caller(fg_loop *loop, fg_caller *caller, int number, void (*fn)(void *ctx),
                           void *ctx)
{
    FG_ASSERT(!caller->open, "the signal is handled already");
    caller->fn = fn;
    caller->ctx = ctx;
    int rc = fg_fault_hit() ? UV_ENOMEM : uv_signal_init(&loop->uv, &caller->uv);
    if (rc != 0) {
        return uv_status(rc, "signal", NULL);
    }
    caller->uv.data = caller;
    caller->open = true; /* the handle is the loop's now */
    uv_unref((uv_handle_t *)&caller->uv);
    rc = fg_fault_hit() ? UV_ENOMEM : uv_signal_start(&caller->uv, caller_arrived, number);
    return rc == 0 ? FG_OK : uv_status(rc, "signal", NULL);
}

fg_status fg_loop_on_hangup(fg_loop *loop, void (*fn)(void *ctx), void *ctx)
{
    return on_caller(loop, &loop->hangup, SIGHUP, fn, ctx);
}

bool fg_loop_hangup_ignored(void)
{
    struct sigaction now;
    return sigaction(SIGHUP, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
}

fg_status fg_loop_on_user(fg_loop *loop, void (*fn)(void *ctx), void *ctx)
{
    return on_caller(loop, &loop->user, SIGUSR2, fn, ctx);
}
