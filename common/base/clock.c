#include "common/base/clock.h"

#include <stddef.h>
#include <time.h>

static uint64_t real_now_ns(void *ctx)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

fg_clock fg_clock_real(void)
{
    return (fg_clock){ .now_ns = real_now_ns, .ctx = NULL };
}

static uint64_t manual_now_ns(void *ctx)
{
    return *(const uint64_t *)ctx;
}

fg_clock fg_clock_manual(uint64_t *now_ns)
{
    return (fg_clock){ .now_ns = manual_now_ns, .ctx = now_ns };
}
