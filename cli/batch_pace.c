#include "cli/batch_pace.h"

#include "common/base/status.h"

#define SECOND_NS      1000000000ull
#define FIRST_DELAY_NS 250000000ull
#define DELAY_MAX_NS   (30 * SECOND_NS)

enum {
    HOLD_S = 1,
    HOLD_MAX_S = 60, /* a server that asks for more is asked again all the same */
};

void fg_pace_init(fg_pace *pace, uint32_t max)
{
    *pace = (fg_pace){ .max = max, .window = max };
}

bool fg_pace_may_send(const fg_pace *pace, uint64_t now_ns)
{
    return pace->inflight < pace->window && now_ns >= pace->hold_until_ns;
}

void fg_pace_sent(fg_pace *pace)
{
    pace->inflight++;
}

void fg_pace_lost(fg_pace *pace)
{
    FG_ASSERT(pace->inflight > 0);
    pace->inflight--;
}

void fg_pace_answered(fg_pace *pace)
{
    fg_pace_lost(pace);
    pace->answered++;
    if (pace->answered >= pace->window && pace->window < pace->max) {
        pace->window++;
        pace->answered = 0;
    }
}

uint64_t fg_pace_refused(fg_pace *pace, uint32_t retry_after_s, uint64_t now_ns)
{
    fg_pace_lost(pace);
    uint64_t wait_s = retry_after_s == 0           ? HOLD_S
                      : retry_after_s > HOLD_MAX_S ? HOLD_MAX_S
                                                   : retry_after_s;
    uint64_t until = now_ns + wait_s * SECOND_NS;
    if (pace->inflight == 0) {
        pace->hold_until_ns = until;
    }
    if (pace->inflight < pace->window) {
        pace->window = pace->inflight > 0 ? pace->inflight : 1;
    }
    pace->answered = 0;
    return until;
}

uint64_t fg_pace_delay_ns(uint32_t tries)
{
    uint64_t delay = FIRST_DELAY_NS;
    for (uint32_t i = 1; i < tries && delay < DELAY_MAX_NS; i++) {
        delay *= 2;
    }
    return delay < DELAY_MAX_NS ? delay : DELAY_MAX_NS;
}
