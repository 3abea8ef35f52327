#include "common/spec/odds.h"

#include "tests/support/test.h"

Test(odds, a_new_text_is_judged_by_the_run_alone)
{
    fg_odds odds = { 0 };
    uint32_t before = 0;
    static const uint32_t runs[] = { 1, 2, 3, 5, 9, 16 };
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        uint32_t now = fg_odds_of(&odds, runs[i]);
        cr_assert(now > before && now < FG_ODDS_ONE, "a run of %u: %u", runs[i], now);
        before = now;
    }
    cr_assert_eq(fg_odds_of(&odds, 1), FG_ODDS_ONE / 4);
    cr_assert_eq(fg_odds_of(&odds, 4), fg_odds_of(&odds, 3), "one class");
    cr_assert_eq(fg_odds_of(&odds, UINT32_MAX), before, "longer ones say no more");
}

Test(odds, a_text_is_learned_and_forgotten)
{
    fg_odds odds = { 0 };
    uint32_t other = fg_odds_of(&odds, 16);
    for (int i = 0; i < 100; i++) {
        fg_odds_note(&odds, 1, true);
    }
    uint32_t sure = fg_odds_of(&odds, 1);
    cr_assert(sure > FG_ODDS_ONE * 3 / 5 && sure < FG_ODDS_ONE, "%u", sure);
    cr_assert_eq(fg_odds_of(&odds, 16), other, "another class");
    for (int i = 0; i < 16; i++) {
        fg_odds_note(&odds, 1, false);
    }
    cr_assert(fg_odds_of(&odds, 1) < FG_ODDS_ONE / 3, "%u", fg_odds_of(&odds, 1));
    for (int i = 0; i < 1000; i++) {
        fg_odds_note(&odds, 1, false);
    }
    cr_assert(fg_odds_of(&odds, 1) > 0, "never given up");
}
