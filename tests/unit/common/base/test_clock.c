#include "common/base/clock.h"

#include "tests/support/test.h"

Test(clock, manual_shows_what_its_owner_sets)
{
    uint64_t now_ns = 5;
    fg_clock clock = fg_clock_manual(&now_ns);
    cr_assert_eq(fg_clock_now_ns(&clock), 5);
    now_ns = 7000001;
    cr_assert_eq(fg_clock_now_ns(&clock), 7000001);
    cr_assert_eq(fg_clock_now_ms(&clock), 7);
}

Test(clock, real_never_goes_back)
{
    fg_clock clock = fg_clock_real();
    uint64_t before = fg_clock_now_ns(&clock);
    for (int i = 0; i < 1000; i++) {
        uint64_t now = fg_clock_now_ns(&clock);
        cr_assert(now >= before);
        before = now;
    }
}
