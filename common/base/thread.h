/*
 * thread - starting threads, and a signal that one thread sleeps on until another raises it. The only
 * place, with team and ring, that knows how threads wait; everything above exchanges messages.
 *
 * A signal is a counter that only grows: a waiter names the value it has already seen, so a raise
 * between its last look and its sleep is never lost.
 */
#ifndef FORGE_COMMON_BASE_THREAD_H
#define FORGE_COMMON_BASE_THREAD_H

#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "common/base/fault.h"

/* Starts `run(ctx)`; false when the system has no thread to give. The starter joins it. */
static inline bool fg_thread_start(pthread_t *thread_out, void *(*run)(void *ctx), void *ctx)
{
    return !fg_fault_hit() && pthread_create(thread_out, NULL, run, ctx) == 0;
}

static inline void fg_thread_join(pthread_t thread)
{
    pthread_join(thread, NULL);
}

/* Tells the processor that this is a spin-wait. */
static inline void fg_thread_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Sleeps while *word == value; may also return for no reason, so the caller looks again. */
static inline void fg_thread_sleep_while(_Atomic uint32_t *word, uint32_t value)
{
    syscall(SYS_futex, (void *)word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

/* The same, for `wait_ns` at most; under a second. */
static inline void fg_thread_sleep_while_for(_Atomic uint32_t *word, uint32_t value, long wait_ns)
{
    struct timespec wait = { .tv_nsec = wait_ns };
    syscall(SYS_futex, (void *)word, FUTEX_WAIT_PRIVATE, value, &wait, NULL, 0);
}

static inline void fg_thread_wake_one(_Atomic uint32_t *word)
{
    syscall(SYS_futex, (void *)word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static inline void fg_thread_wake_all(_Atomic uint32_t *word)
{
    syscall(SYS_futex, (void *)word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

typedef struct fg_signal {
    _Atomic uint32_t count;
} fg_signal;

static inline uint32_t fg_signal_count(fg_signal *signal)
{
    return atomic_load_explicit(&signal->count, memory_order_acquire);
}

/* What the raiser wrote before is visible to a waiter that has seen the new count. */
static inline void fg_signal_raise(fg_signal *signal)
{
    atomic_fetch_add_explicit(&signal->count, 1, memory_order_release);
    fg_thread_wake_all(&signal->count);
}

/* Returns once the count differs from `seen`. */
static inline uint32_t fg_signal_wait(fg_signal *signal, uint32_t seen)
{
    uint32_t count = fg_signal_count(signal);
    while (count == seen) {
        fg_thread_sleep_while(&signal->count, seen);
        count = fg_signal_count(signal);
    }
    return count;
}

#endif
