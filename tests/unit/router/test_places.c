#include "router/places.h"

#include "common/base/limits.h"
#include "common/base/rng.h"
#include "tests/support/test.h"

enum { HOLDERS = 5, ANSWER = 100 };

static const struct {
    const char *name;
    uint32_t left[HOLDERS]; /* up to the first 0 */
    uint64_t ends;
    double steps;
} cases[] = {
    { "nobody is there", { 0 }, 3, 0 },
    { "nobody needs to end", { 7 }, 0, 0 },
    { "one", { 7 }, 1, 7 },
    { "equals end together", { 300, 300, 300 }, 1, 300 },
    { "the last of them as well", { 300, 300, 300 }, 3, 300 },
    { "the shortest first", { 1000, 3, 70 }, 1, 3 },
    { "then the next", { 1000, 3, 70 }, 2, 70 },
    { "of one class: their mean", { 40, 60, 5 }, 2, 50 },
    { "who follows takes its own answer", { 30 }, 2, ANSWER + 30 },
    { "and the next one too", { 30, 500 }, 6, 2 * ANSWER + 500 },
    { "the longest answer", { FG_LIMIT_CONTEXT_TOKENS }, 1, FG_LIMIT_CONTEXT_TOKENS },
};

Test(places, come_free_when_their_holders_end)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fg_places places = { 0 };
        for (uint32_t h = 0; h < HOLDERS && cases[i].left[h] > 0; h++) {
            fg_places_take(&places, cases[i].left[h]);
        }
        double steps = fg_places_steps(&places, cases[i].ends, ANSWER);
        cr_assert(steps == cases[i].steps, "%s: %g steps", cases[i].name, steps);
    }
}

/* Against a list of holders that is looked through: the same class, whatever came, went and moved. */
Test(places, are_told_as_by_a_list)
{
    enum { MOST = 40 };
    uint32_t left[MOST] = { 0 };
    fg_places places = { 0 };
    fg_rng rng = { 11 };
    for (uint32_t round = 0; round < 20000; round++) {
        uint32_t *one = &left[fg_rng_below(&rng, MOST)];
        uint32_t fresh = 1 + (uint32_t)fg_rng_below(&rng, 1u << fg_rng_below(&rng, 14));
        if (*one == 0) {
            fg_places_take(&places, *one = fresh);
        } else if (*one == 1 || fg_rng_below(&rng, 50) == 0) {
            fg_places_give(&places, *one);
            *one = 0;
        } else {
            fg_places_move(&places, *one, *one - 1);
            --*one;
        }
        uint32_t there = 0, sooner = 0, sooner_class = 0;
        for (uint32_t i = 0; i < MOST; i++) {
            there += left[i] > 0;
        }
        cr_assert_eq(places.holders, there);
        if (there == 0) {
            continue;
        }
        uint64_t ends = 1 + fg_rng_below(&rng, there);
        double steps = fg_places_steps(&places, ends, 1);
        for (uint32_t i = 0; i < MOST; i++) {
            sooner += left[i] > 0 && left[i] <= steps / 2;
            sooner_class += left[i] > 0 && left[i] <= steps * 2;
        }
        cr_assert(sooner < ends && sooner_class >= ends, "%llu of %u end in %g steps",
                  (unsigned long long)ends, there, steps);
    }
}
