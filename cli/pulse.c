#include "cli/pulse.h"

#include <stddef.h>

enum { QUIET_BEATS_MAX = 8 };

static void on_fast(void *ctx)
{
    fg_pulse *pulse = ctx;
    pulse->beat(pulse->ctx);
    pulse->quiet_beats = pulse->busy(pulse->ctx) ? 0 : pulse->quiet_beats + 1;
    if (pulse->quiet_beats > QUIET_BEATS_MAX) {
        fg_timer_close(pulse->fast);
        pulse->fast = NULL;
    }
}

static void on_slow(void *ctx)
{
    fg_pulse *pulse = ctx;
    if (pulse->fast == NULL) {
        pulse->beat(pulse->ctx);
        if (pulse->busy(pulse->ctx)) {
            fg_pulse_quicken(pulse);
        }
    }
}

fg_status fg_pulse_start(fg_pulse *pulse, fg_loop *loop, uint64_t fast_ms, uint64_t slow_ms,
                         void (*beat)(void *ctx), bool (*busy)(void *ctx), void *ctx)
{
    *pulse = (fg_pulse){ .loop = loop, .fast_ms = fast_ms, .beat = beat, .busy = busy, .ctx = ctx };
    return fg_timer_start(loop, slow_ms, slow_ms, on_slow, pulse, &pulse->slow);
}

void fg_pulse_quicken(fg_pulse *pulse)
{
    pulse->quiet_beats = 0;
    if (pulse->fast == NULL && pulse->slow != NULL) {
        /* Out of memory for a timer: the slow one goes on, late but right. */
        fg_status status = fg_timer_start(pulse->loop, pulse->fast_ms, pulse->fast_ms, on_fast,
                                          pulse, &pulse->fast);
        if (status != FG_OK) {
            pulse->fast = NULL;
        }
    }
}

void fg_pulse_stop(fg_pulse *pulse)
{
    fg_timer_close(pulse->fast);
    fg_timer_close(pulse->slow);
    pulse->fast = NULL;
    pulse->slow = NULL;
}
