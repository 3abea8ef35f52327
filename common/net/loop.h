/*
 * loop - the one event loop of a process (libuv). Everything here runs on the loop's thread, except
 * fg_wake_send().
 */
#ifndef FORGE_COMMON_NET_LOOP_H
#define FORGE_COMMON_NET_LOOP_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

typedef struct fg_loop fg_loop;
typedef struct fg_timer fg_timer;
typedef struct fg_watch fg_watch;
typedef struct fg_wake fg_wake;
typedef struct fg_hook fg_hook;

fg_status fg_loop_create(fg_loop **loop_out, fg_error *err);
/* Every object made on the loop must be closed first. */
void fg_loop_destroy(fg_loop *loop);
void fg_loop_run(fg_loop *loop);                 /* until fg_loop_stop */
void fg_loop_stop(fg_loop *loop);                /* from a callback */
bool fg_loop_run_once(fg_loop *loop, bool wait); /* tests; false: nothing left alive */
/* libuv's own handle, for the other files of common/net only. */
void *fg_loop_native(fg_loop *loop);

/* Repeats every `period_ms` until closed (period 0: once after first_ms). */
fg_status fg_timer_start(fg_loop *loop, uint64_t first_ms, uint64_t period_ms,
                         void (*fn)(void *ctx), void *ctx, fg_timer **timer_out);
void fg_timer_close(fg_timer *timer); /* NULL is fine */

/* Calls fn when `fd` is readable (level triggered). */
fg_status fg_watch_start(fg_loop *loop, int fd, void (*fn)(void *ctx), void *ctx,
                         fg_watch **watch_out);
void fg_watch_close(fg_watch *watch);

/* fg_wake_send may be called from any thread; calls collapse into one fn on the loop. */
fg_status fg_wake_create(fg_loop *loop, void (*fn)(void *ctx), void *ctx, fg_wake **wake_out);
void fg_wake_send(fg_wake *wake);
void fg_wake_close(fg_wake *wake);

/* `fn` runs before the loop would sleep, every turn; while it returns true (more work) the loop does
 * not sleep. For ZeroMQ's edge-like descriptor and UCX's arm pattern. */
fg_status fg_hook_start(fg_loop *loop, bool (*fn)(void *ctx), void *ctx, fg_hook **hook_out);
void fg_hook_close(fg_hook *hook);

/* Calls fn once for each SIGINT or SIGTERM. */
fg_status fg_loop_on_signal(fg_loop *loop, void (*fn)(void *ctx, int signal), void *ctx);
/* Calls fn for each SIGHUP, which otherwise ends the process. */
fg_status fg_loop_on_hangup(fg_loop *loop, void (*fn)(void *ctx), void *ctx);
/* The same for SIGUSR2. */
fg_status fg_loop_on_user(fg_loop *loop, void (*fn)(void *ctx), void *ctx);
/* Whether this process was started so that it outlives its terminal, as by nohup: SIGHUP is ignored. To
 * be asked before anybody handles it. */
bool fg_loop_hangup_ignored(void);

#endif
