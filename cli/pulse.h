/*
 * pulse - a timer that beats fast while there is work and slowly when there is none, so that an idle
 * process sleeps. Owned by the loop thread.
 */
#ifndef FORGE_CLI_PULSE_H
#define FORGE_CLI_PULSE_H

#include "common/net/loop.h"

typedef struct fg_pulse {
    fg_loop *loop;
    fg_timer *slow, *fast;
    uint64_t fast_ms;
    uint32_t quiet_beats; /* fast beats since there was work */
    void (*beat)(void *ctx);
    bool (*busy)(void *ctx);
    void *ctx;
} fg_pulse;

/* `beat` every fast_ms while `busy` says so (and a few times after), else every slow_ms. */
fg_status fg_pulse_start(fg_pulse *pulse, fg_loop *loop, uint64_t fast_ms, uint64_t slow_ms,
                         void (*beat)(void *ctx), bool (*busy)(void *ctx), void *ctx);
/* Something has arrived: beat fast from now on. */
void fg_pulse_quicken(fg_pulse *pulse);
void fg_pulse_stop(fg_pulse *pulse);

#endif
