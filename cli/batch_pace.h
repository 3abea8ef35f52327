/*
 * batch_pace - how many requests may be in flight at a server that others use too: all of them until
 * it says "too many" (429); then as many as it has accepted, and one more after each round of answers.
 * So a full server stays full, and few requests come in vain. Pure: the caller brings the time.
 */
#ifndef FORGE_CLI_BATCH_PACE_H
#define FORGE_CLI_BATCH_PACE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct fg_pace {
    uint32_t max;           /* never more in flight */
    uint32_t window;        /* now; 1 to max */
    uint32_t inflight;      /* sent and not ended */
    uint32_t answered;      /* since the window last changed */
    uint64_t hold_until_ns; /* nothing is sent before: it had no room for even one */
} fg_pace;

void fg_pace_init(fg_pace *pace, uint32_t max);
bool fg_pace_may_send(const fg_pace *pace, uint64_t now_ns);
void fg_pace_sent(fg_pace *pace);
/* Each of the following ends what fg_pace_sent began. An answer: */
void fg_pace_answered(fg_pace *pace);
/* No answer, or one that says nothing about load. */
void fg_pace_lost(fg_pace *pace);
/* 429. `retry_after_s` is 0 where the server names none. Returns when this request may go again. */
uint64_t fg_pace_refused(fg_pace *pace, uint32_t retry_after_s, uint64_t now_ns);

/* The pause before a request is tried for the (tries + 1)-th time: doubles up to half a minute. */
uint64_t fg_pace_delay_ns(uint32_t tries);

#endif
