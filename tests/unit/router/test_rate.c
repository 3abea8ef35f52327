/* How quickly something comes, by totals that are looked at now and then. */
#include "router/rate.h"
#include "tests/support/test.h"

#define S 1000000000ull

/* Looks, one after the other, at one rate. */
static const struct {
    const char *name;
    uint64_t total, at_ns;
    double want;
} looks[] = {
    { "nothing yet", 0, S, 0.0 },
    { "too short to tell", 5, S / 2, 0.0 },
    { "the first measurement is all that is known", 20, 2 * S, 10.0 },
    { "too soon", 50, 2 * S + S / 2, 10.0 },
    { "twice as many: a fifth of what is new", 40, 3 * S, 12.0 },
    { "nothing came, for the time being", 40, 10 * S, 12.0 },
    { "one in eight seconds", 41, 11 * S, 0.8 * 12.0 + 0.2 / 8.0 },
    { "a minute without", 41, 71 * S, 0.8 * (0.8 * 12.0 + 0.2 / 8.0) },
};

Test(rate, what_is_seen_in_seconds_with_news_and_minutes_without)
{
    fg_rate rate = { 0 };
    for (size_t i = 0; i < sizeof looks / sizeof *looks; i++) {
        fg_rate_look(&rate, looks[i].total, looks[i].at_ns);
        double off = rate.per_second - looks[i].want;
        cr_assert(off < 1e-9 && off > -1e-9, "%s: %g, wanted %g", looks[i].name, rate.per_second,
                  looks[i].want);
    }
}
