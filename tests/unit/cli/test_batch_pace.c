#include "cli/batch_pace.h"

#include "tests/support/test.h"

#define S 1000000000ull

/* Sends all that may be sent; returns how many are in flight then. */
static uint32_t fill(fg_pace *pace, uint64_t now_ns)
{
    while (fg_pace_may_send(pace, now_ns)) {
        fg_pace_sent(pace);
    }
    return pace->inflight;
}

Test(pace, sends_as_many_as_allowed)
{
    fg_pace pace;
    fg_pace_init(&pace, 5);
    cr_assert_eq(fill(&pace, 0), 5u);
    fg_pace_answered(&pace);
    cr_assert_eq(pace.inflight, 4u);
    cr_assert_eq(fill(&pace, 0), 5u);
    fg_pace_lost(&pace);
    cr_assert_eq(fill(&pace, 0), 5u, "a lost connection says nothing about load");
}

Test(pace, after_refusals_as_many_as_were_accepted)
{
    fg_pace pace;
    fg_pace_init(&pace, 64);
    fill(&pace, 0);
    for (int i = 0; i < 60; i++) {
        cr_assert_eq(fg_pace_refused(&pace, 2, 1 * S), 3 * S);
    }
    cr_assert_eq(pace.window, 4u);
    cr_assert_eq(fill(&pace, 1 * S), 4u);
    fg_pace_answered(&pace);
    cr_assert(fg_pace_may_send(&pace, 1 * S), "its place is taken at once");
    fg_pace_sent(&pace);
    cr_assert(!fg_pace_may_send(&pace, 1 * S));
}

Test(pace, grows_by_one_a_round_up_to_the_limit)
{
    fg_pace pace;
    fg_pace_init(&pace, 4);
    fill(&pace, 0);
    for (int i = 0; i < 3; i++) {
        fg_pace_refused(&pace, 1, 0);
    }
    cr_assert_eq(pace.window, 1u);
    static const uint32_t windows[] = { 2, 2, 3, 3, 3, 4, 4, 4, 4, 4, 4 };
    for (size_t i = 0; i < sizeof windows / sizeof *windows; i++) {
        fg_pace_answered(&pace);
        cr_assert_eq(pace.window, windows[i], "after %zu answers", i + 1);
        fg_pace_sent(&pace);
    }
}

Test(pace, waits_where_there_is_room_for_none)
{
    static const struct {
        uint32_t retry_after_s;
        uint64_t held_s;
    } rows[] = { { 0, 1 }, { 1, 1 }, { 7, 7 }, { 60, 60 }, { 3600, 60 }, { UINT32_MAX, 60 } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fg_pace pace;
        fg_pace_init(&pace, 1);
        fg_pace_sent(&pace);
        uint64_t now = 5 * S;
        cr_assert_eq(fg_pace_refused(&pace, rows[i].retry_after_s, now), now + rows[i].held_s * S);
        cr_assert(!fg_pace_may_send(&pace, now + rows[i].held_s * S - 1));
        cr_assert(fg_pace_may_send(&pace, now + rows[i].held_s * S));
        cr_assert_eq(pace.window, 1u);
    }
}

Test(pace, delays_double_up_to_half_a_minute)
{
    static const struct {
        uint32_t tries;
        uint64_t ms;
    } rows[] = { { 0, 250 },   { 1, 250 },   { 2, 500 },    { 3, 1000 },
                 { 7, 16000 }, { 8, 30000 }, { 50, 30000 }, { UINT32_MAX, 30000 } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cr_assert_eq(fg_pace_delay_ns(rows[i].tries), rows[i].ms * 1000000u, "%u", rows[i].tries);
    }
}
