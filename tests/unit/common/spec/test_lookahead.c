#include "common/spec/lookahead.h"

#include "tests/support/test.h"

Test(lookahead, formula_on_counts)
{
    static const struct {
        uint32_t accepted, rejected, want;
    } cases[] = {
        { 0, 0, FG_LOOKAHEAD_DEFAULT }, /* no history */
        { 0, 1, 1 },
        { 0, 64, 1 },
        { 1, 1, 2 },
        { 52, 48, 3 },
        { 13, 12, 3 },
        { 2, 1, 3 },
        { 3, 1, 4 },
        { 4, 1, 5 }, /* 0.8: floating point would give 6 */
        { 8, 2, 5 },
        { 5, 1, 6 },
        { 7, 1, 8 },
        { 9, 1, 8 }, /* 0.9: 10 before the limit */
        { 63, 1, 8 },
        { 1, 0, 8 },
        { 64, 0, 8 },
        { UINT32_MAX, UINT32_MAX, 2 },
        { UINT32_MAX, 1, 8 },
        { 0, UINT32_MAX, 1 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t got = fg_lookahead_for(cases[i].accepted, cases[i].rejected);
        cr_assert_eq(got, cases[i].want, "%u accepted, %u rejected: %u", cases[i].accepted,
                     cases[i].rejected, got);
    }
}

static void note(fg_lookahead *l, uint32_t rounds, uint32_t accepted, bool rejected)
{
    fg_verdict verdict = { .accepted = accepted, .emitted = accepted + 1, .rejected = rejected };
    for (uint32_t i = 0; i < rounds; i++) {
        fg_lookahead_note(l, &verdict);
    }
}

Test(lookahead, counts_what_was_looked_at_in_a_sliding_window)
{
    fg_lookahead l = { 0 };
    cr_assert_eq(fg_lookahead_next(&l, 100), FG_LOOKAHEAD_DEFAULT);
    note(&l, 10, 0, false);
    cr_assert_eq(fg_lookahead_next(&l, 100), FG_LOOKAHEAD_DEFAULT, "rounds without drafts");
    note(&l, 1, 0, true);
    cr_assert_eq(fg_lookahead_next(&l, 100), 1);
    note(&l, 1, 1, false);
    cr_assert_eq(fg_lookahead_next(&l, 100), 2, "1 of 2");
    note(&l, 2, 3, true);
    cr_assert_eq(fg_lookahead_next(&l, 100), 4, "7 of 10: 10/3 rounded up");
    note(&l, 8, 8, false);
    cr_assert_eq(fg_lookahead_next(&l, 100), 8, "64 of the last 64");
    note(&l, 32, 0, true);
    cr_assert_eq(fg_lookahead_next(&l, 100), 2, "32 of the last 64");
    note(&l, 13, 0, true);
    cr_assert_eq(fg_lookahead_next(&l, 100), 2, "19 of 64: 64/45");
    note(&l, 19, 0, true);
    cr_assert_eq(fg_lookahead_next(&l, 100), 1, "none of 64");
    note(&l, 1000, 3, true);
    cr_assert_eq(fg_lookahead_next(&l, 100), 4, "3 of 4, for long");
    for (uint32_t i = 0; i < 64; i++) {
        fg_lookahead_note_seen(&l, i % 2 == 0);
    }
    cr_assert_eq(fg_lookahead_next(&l, 100), 2, "half of those that were only seen");
}

Test(lookahead, drafts_no_more_than_may_still_be_emitted)
{
    fg_lookahead l = { 0 };
    static const uint32_t want[] = { 0, 0, 1, 2, 3, 4, 4, 4 };
    for (uint32_t left = 0; left < sizeof want / sizeof want[0]; left++) {
        cr_assert_eq(fg_lookahead_next(&l, left), want[left], "%u left", left);
    }
    for (uint32_t fixed = 1; fixed <= FG_LOOKAHEAD_MAX; fixed++) {
        l = (fg_lookahead){ .fixed = fixed };
        note(&l, 5, 0, true);
        cr_assert_eq(fg_lookahead_next(&l, 100), fixed, "fixed");
        cr_assert_eq(fg_lookahead_next(&l, 1), 0);
    }
}
