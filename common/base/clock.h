/*
 * clock - monotonic time as an object, so that tests and the simulator can turn it by hand.
 */
#ifndef FORGE_COMMON_BASE_CLOCK_H
#define FORGE_COMMON_BASE_CLOCK_H

#include <stdint.h>

typedef struct fg_clock {
    uint64_t (*now_ns)(void *ctx);
    void *ctx;
} fg_clock;

/* The machine's monotonic clock. */
fg_clock fg_clock_real(void);
/* A clock that shows *now_ns, which the caller owns and advances. */
fg_clock fg_clock_manual(uint64_t *now_ns);

static inline uint64_t fg_clock_now_ns(const fg_clock *clock)
{
    return clock->now_ns(clock->ctx);
}

static inline uint64_t fg_clock_now_ms(const fg_clock *clock)
{
    return clock->now_ns(clock->ctx) / 1000000u;
}

#endif
