#include "common/base/rng.h"

#include <math.h>

#include "tests/support/test.h"

Test(rng, counter_is_a_function_of_each_argument)
{
    uint64_t value = fg_rng_counter(1, 2, 3, 4);
    cr_assert_eq(value, fg_rng_counter(1, 2, 3, 4));
    cr_assert_neq(value, fg_rng_counter(2, 2, 3, 4));
    cr_assert_neq(value, fg_rng_counter(1, 3, 3, 4));
    cr_assert_neq(value, fg_rng_counter(1, 2, 4, 4));
    cr_assert_neq(value, fg_rng_counter(1, 2, 3, 5));
    cr_assert_neq(fg_rng_counter(1, 2, 3, 4), fg_rng_counter(1, 3, 2, 4));
}

Test(rng, counter_is_uniform_over_items)
{
    /* Every bit is set about half the time: 5 sigma of a fair coin. */
    enum { DRAWS = 100000 };
    int set[64] = { 0 };
    for (uint32_t item = 0; item < DRAWS; item++) {
        uint64_t value = fg_rng_counter(42, 0, 17, item);
        for (int bit = 0; bit < 64; bit++) {
            set[bit] += (int)(value >> bit & 1);
        }
    }
    for (int bit = 0; bit < 64; bit++) {
        double sigmas = (set[bit] - DRAWS / 2.0) / sqrt(DRAWS / 4.0);
        cr_assert(fabs(sigmas) < 5, "bit %d is off by %.1f sigma", bit, sigmas);
    }
}

Test(rng, below_stays_below_and_reaches_everything)
{
    fg_rng rng = { 3 };
    int seen[7] = { 0 };
    for (int i = 0; i < 7000; i++) {
        uint64_t value = fg_rng_below(&rng, 7);
        cr_assert(value < 7);
        seen[value]++;
    }
    for (int i = 0; i < 7; i++) {
        cr_assert(seen[i] > 700, "%d came %d times", i, seen[i]);
    }
    cr_assert_eq(fg_rng_below(&rng, 0), 0);
    cr_assert_eq(fg_rng_below(&rng, 1), 0);
}

Test(rng, streams_repeat_from_their_seed)
{
    fg_rng a = { 9 }, b = { 9 }, c = { 10 };
    uint64_t first = fg_rng_next(&a);
    cr_assert_eq(first, fg_rng_next(&b));
    cr_assert_neq(first, fg_rng_next(&c));
    cr_assert_neq(first, fg_rng_next(&a));
}

Test(rng, entropy_differs)
{
    cr_assert_neq(fg_rng_entropy(), fg_rng_entropy());
}
