#include "common/obs/life.h"

#include <string.h>

#include "common/base/rng.h"
#include "tests/support/test.h"

#define Q FG_LIFE_QUEUED
#define R FG_LIFE_RESERVED
#define P FG_LIFE_PREFILLING
#define T FG_LIFE_TRANSFERRING
#define D FG_LIFE_DECODING
#define F FG_LIFE_FINISHED
#define C FG_LIFE_CANCELLED
#define X FG_LIFE_FAILED

/* The table of ARCHITECTURE, row by row: whatever is not here is refused. */
static const struct {
    fg_life_state from, to;
} allowed[] = {
    { Q, R }, { Q, P }, { Q, C }, { Q, X }, { R, P }, { R, Q }, { R, C }, { R, X },
    { P, T }, { P, D }, { P, F }, { P, Q }, { P, C }, { P, X }, { T, D }, { T, F },
    { T, Q }, { T, C }, { T, X }, { D, F }, { D, Q }, { D, C }, { D, X },
};

static bool is_allowed(int from, int to)
{
    for (size_t i = 0; i < sizeof allowed / sizeof allowed[0]; i++) {
        if ((int)allowed[i].from == from && (int)allowed[i].to == to) {
            return true;
        }
    }
    return false;
}

Test(life, makes_the_moves_of_the_table_and_no_other)
{
    for (int from = 0; from < FG_LIFE_STATE_COUNT; from++) {
        for (int to = 0; to < FG_LIFE_STATE_COUNT + 1; to++) {
            fg_life life;
            fg_error err = { 0 };
            fg_life_init(&life, 1);
            life.state = (fg_life_state)from;
            fg_life before = life;
            fg_status status = fg_life_move(&life, (fg_life_state)to, 5, &err);
            cr_assert_eq(status, is_allowed(from, to) ? FG_OK : FG_BROKEN, "%s to %s",
                         fg_life_name((fg_life_state)from), fg_life_name((fg_life_state)to));
            cr_assert_eq(fg_life_can_move((fg_life_state)from, (fg_life_state)to), status == FG_OK);
            if (status != FG_OK) {
                cr_assert_eq(memcmp(&before, &life, sizeof life), 0, "a refused move changed it");
                cr_assert_not_null(strstr(err.text, "cannot go"));
            }
        }
    }
}

Test(life, keeps_the_time_of_every_state)
{
    fg_life life;
    fg_life_init(&life, 100);
    cr_assert_eq(fg_life_move(&life, R, 110, NULL), FG_OK);
    cr_assert_eq(fg_life_move(&life, P, 115, NULL), FG_OK);
    cr_assert_eq(fg_life_move(&life, Q, 145, NULL), FG_OK); /* the prefill worker died */
    cr_assert_eq(fg_life_move(&life, P, 150, NULL), FG_OK);
    cr_assert_eq(fg_life_move(&life, D, 250, NULL), FG_OK);
    cr_assert_eq(fg_life_spent_ns(&life, Q, 300), 15);
    cr_assert_eq(fg_life_spent_ns(&life, R, 300), 5);
    cr_assert_eq(fg_life_spent_ns(&life, P, 300), 130);
    cr_assert_eq(fg_life_spent_ns(&life, T, 300), 0);
    cr_assert_eq(fg_life_spent_ns(&life, D, 300), 50);
    cr_assert_eq(life.entered_at_ns[P], 150);
    cr_assert_eq(life.attempts, 2);
    cr_assert(!fg_life_ended(&life));
    cr_assert_eq(fg_life_move(&life, F, 310, NULL), FG_OK);
    cr_assert(fg_life_ended(&life));
    uint64_t sum = 0;
    for (int state = Q; state <= D; state++) {
        sum += fg_life_spent_ns(&life, (fg_life_state)state, 999);
    }
    cr_assert_eq(sum, 210, "the states cover the whole life");
}

Test(life, marks_the_first_time_of_a_moment_and_the_last_token)
{
    fg_life life;
    fg_life_init(&life, 1);
    cr_assert_eq(life.moment_ns[FG_LIFE_FIRST_TOKEN], 0);
    for (uint64_t now = 10; now < 13; now++) {
        for (int moment = 0; moment < FG_LIFE_MOMENT_COUNT; moment++) {
            fg_life_mark(&life, (fg_life_moment)moment, now);
        }
    }
    cr_assert_eq(life.moment_ns[FG_LIFE_FIRST_TOKEN], 10);
    cr_assert_eq(life.moment_ns[FG_LIFE_SECOND_TOKEN], 10);
    cr_assert_eq(life.moment_ns[FG_LIFE_LAST_TOKEN], 12);
}

Test(life, random_walks_always_reach_an_end_and_stay_there)
{
    uint64_t seed = 20261121;
    cr_log_info("seed %llu", (unsigned long long)seed);
    fg_rng rng = { seed };
    for (int walk = 0; walk < 2000; walk++) {
        fg_life life;
        uint64_t now = 1;
        fg_life_init(&life, now);
        while (!fg_life_ended(&life)) {
            fg_life_move(&life, (fg_life_state)fg_rng_below(&rng, FG_LIFE_STATE_COUNT), ++now,
                         NULL);
            cr_assert(now < 100000, "walk %d never ends", walk);
        }
        for (int to = 0; to < FG_LIFE_STATE_COUNT; to++) {
            cr_assert_eq(fg_life_move(&life, (fg_life_state)to, now, NULL), FG_BROKEN);
        }
    }
}

Test(life, names_are_all_different)
{
    for (int a = 0; a < FG_LIFE_STATE_COUNT; a++) {
        for (int b = 0; b < a; b++) {
            cr_assert(strcmp(fg_life_name((fg_life_state)a), fg_life_name((fg_life_state)b)) != 0);
        }
    }
    cr_assert_str_eq(fg_life_name(Q), "queued");
    cr_assert_str_eq(fg_life_name((fg_life_state)99), "unknown");
}
