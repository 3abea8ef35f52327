#include "common/obs/life.h"

#define BIT(state) (1u << FG_LIFE_##state)

/* Where a request may go from each state. */
static const uint32_t moves[FG_LIFE_STATE_COUNT] = {
    [FG_LIFE_QUEUED] = BIT(RESERVED) | BIT(PREFILLING) | BIT(CANCELLED) | BIT(FAILED),
    [FG_LIFE_RESERVED] = BIT(QUEUED) | BIT(PREFILLING) | BIT(CANCELLED) | BIT(FAILED),
    [FG_LIFE_PREFILLING] = BIT(QUEUED) | BIT(TRANSFERRING) | BIT(DECODING) | BIT(FINISHED) |
                           BIT(CANCELLED) | BIT(FAILED),
    [FG_LIFE_TRANSFERRING] =
        BIT(QUEUED) | BIT(DECODING) | BIT(FINISHED) | BIT(CANCELLED) | BIT(FAILED),
    [FG_LIFE_DECODING] = BIT(QUEUED) | BIT(FINISHED) | BIT(CANCELLED) | BIT(FAILED),
};

void fg_life_init(fg_life *life, uint64_t now_ns)
{
    *life = (fg_life){ .state = FG_LIFE_QUEUED, .started_at_ns = now_ns };
    life->entered_at_ns[FG_LIFE_QUEUED] = now_ns;
}

bool fg_life_can_move(fg_life_state from, fg_life_state to)
{
    return (unsigned)from < FG_LIFE_STATE_COUNT && (unsigned)to < FG_LIFE_STATE_COUNT &&
           (moves[from] >> to & 1u) != 0;
}

fg_status fg_life_move(fg_life *life, fg_life_state to, uint64_t now_ns, fg_error *err)
{
    fg_life_state from = life->state;
    if (!fg_life_can_move(from, to)) {
        return fg_fail(err, FG_BROKEN, "a request cannot go from %s to %s", fg_life_name(from),
                       fg_life_name(to));
    }
    life->spent_ns[from] += now_ns - life->entered_at_ns[from];
    life->attempts += from == FG_LIFE_QUEUED && to < FG_LIFE_FINISHED ? 1 : 0;
    life->entered_at_ns[to] = now_ns;
    life->state = to;
    return FG_OK;
}

void fg_life_mark(fg_life *life, fg_life_moment moment, uint64_t now_ns)
{
    FG_ASSERT((unsigned)moment < FG_LIFE_MOMENT_COUNT, "moment %d", (int)moment);
    if (life->moment_ns[moment] == 0 || moment == FG_LIFE_LAST_TOKEN) {
        life->moment_ns[moment] = now_ns;
    }
}

bool fg_life_ended(const fg_life *life)
{
    return life->state >= FG_LIFE_FINISHED;
}

uint64_t fg_life_spent_ns(const fg_life *life, fg_life_state state, uint64_t now_ns)
{
    uint64_t running = life->state == state ? now_ns - life->entered_at_ns[state] : 0;
    return life->spent_ns[state] + running;
}

const char *fg_life_name(fg_life_state state)
{
    static const char *const names[] = { "queued",   "reserved", "prefilling", "transferring",
                                         "decoding", "finished", "cancelled",  "failed" };
    return (unsigned)state < FG_LIFE_STATE_COUNT ? names[state] : "unknown";
}
