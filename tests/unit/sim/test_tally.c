#include "tests/sim/tally.h"

#include <string.h>

#include "tests/support/test.h"

Test(tally, quantiles_are_true_within_a_column)
{
    static fg_tally t;
    memset(&t, 0, sizeof t);
    cr_assert_eq(fg_tally_quantile(&t, 0.5), 0);
    for (uint64_t i = 1; i <= 100000; i++) {
        fg_tally_add(&t, i * 1000);
    }
    static const double quantiles[] = { 0.01, 0.5, 0.9, 0.99, 1.0 };
    for (int i = 0; i < 5; i++) {
        double want = quantiles[i] * 1e8;
        double got = (double)fg_tally_quantile(&t, quantiles[i]);
        cr_assert(got >= want && got <= want * (1 + 1.0 / 64), "%f: %f", quantiles[i], got);
    }
    cr_assert_eq(t.count, 100000);
    cr_assert(t.low == 1000 && t.high == 100000000);
}

Test(tally, any_value_has_a_column_that_ends_at_or_after_it)
{
    for (int bit = 0; bit < 64; bit++) {
        for (int off = -1; off <= 1; off++) {
            static fg_tally t;
            memset(&t, 0, sizeof t);
            uint64_t value = (1ull << bit) + (uint64_t)off;
            fg_tally_add(&t, value);
            cr_assert_eq(fg_tally_quantile(&t, 0.5), value);
            uint32_t column = 0;
            while (t.columns[column] == 0) {
                column++;
            }
            cr_assert(column < FG_TALLY_COLUMNS && fg_tally_column_end(column) >= value);
            cr_assert(column == 0 || fg_tally_column_end(column - 1) < value, "%d %d", bit, off);
        }
    }
}
