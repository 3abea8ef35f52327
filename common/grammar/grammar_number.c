/* Numbers between limits, digit by digit. */
#include <stdio.h>
#include <string.h>

#include "common/grammar/grammar_internal.h"

static fg_gnode *digit(fg_build *build, char first, char last)
{
    fg_byte_set set = { { 0 } };
    fg_byte_set_add(&set, (unsigned char)first, (unsigned char)last);
    return fg_build_set(build, &set);
}

/* Digits of numbers from `low` to `high`, which have `length` of them. At each place the number is still the beginning of
 * `low` (from_low), of `high` (to_high), of both, or free. */
static fg_gnode *same_length(fg_build *build, const char *low, const char *high, unsigned length,
                             bool from_low, bool to_high)
{
    if (length == 0) {
        return fg_build_empty(build);
    }
    if (!from_low && !to_high) {
        return fg_build_repeat(build, digit(build, '0', '9'), length, length);
    }
    char first = from_low ? *low : '0';
    char last = to_high ? *high : '9';
    if (from_low && to_high && first == last) {
        return fg_build_seq(build, 2, digit(build, first, first),
                            same_length(build, low + 1, high + 1, length - 1, true, true));
    }
    fg_glist list = { 0 };
    if (from_low) {
        fg_list_add(build, &list,
                    fg_build_seq(build, 2, digit(build, first, first),
                                 same_length(build, low + 1, high + 1, length - 1, true, false)));
        first++;
    }
    if (to_high) {
        fg_list_add(build, &list,
                    fg_build_seq(build, 2, digit(build, last, last),
                                 same_length(build, low + 1, high + 1, length - 1, false, true)));
        last--;
    }
    if (first <= last) {
        fg_list_add(build, &list,
                    fg_build_seq(build, 2, digit(build, first, last),
                                 same_length(build, low + 1, high + 1, length - 1, false, false)));
    }
    return fg_build_ok(build) ? fg_build_alt(build, &list) : NULL;
}

static uint64_t power_of_ten(unsigned exponent)
{
    uint64_t power = 1;
    while (exponent-- > 0) {
        power *= 10;
    }
    return power;
}

static fg_gnode *natural(fg_build *build, uint64_t least, uint64_t most)
{
    fg_glist list = { 0 };
    unsigned whole_from = 0, whole_to = 0; /* lengths of which every number is between the limits */
    if (least == 0) {
        fg_list_add(build, &list, fg_build_text(build, "0"));
        least = 1;
    }
    for (unsigned length = 1; length <= 18 && fg_build_ok(build); length++) {
        uint64_t first = power_of_ten(length - 1);
        uint64_t last = power_of_ten(length) - 1;
        if (first > most || last < least) {
            continue;
        }
        if (first >= least && last <= most) {
            whole_from = whole_from == 0 ? length : whole_from;
            whole_to = length;
            continue;
        }
        char low[24], high[24];
        snprintf(low, sizeof low, "%llu", (unsigned long long)(first > least ? first : least));
        snprintf(high, sizeof high, "%llu", (unsigned long long)(last < most ? last : most));
        fg_list_add(build, &list, same_length(build, low, high, length, true, true));
    }
    if (whole_from > 0) {
        fg_list_add(build, &list,
                    fg_build_seq(build, 2, digit(build, '1', '9'),
                                 fg_build_repeat(build, digit(build, '0', '9'), whole_from - 1,
                                                 whole_to - 1)));
    }
    return fg_build_ok(build) ? fg_build_alt(build, &list) : NULL;
}

fg_gnode *fg_integer_node(fg_build *build, int64_t least, int64_t most)
{
    fg_glist list = { 0 };
    least = least < -FG_INTEGER_MOST ? -FG_INTEGER_MOST : least;
    most = most > FG_INTEGER_MOST ? FG_INTEGER_MOST : most;
    if (least > most) {
        return fg_build_never(build);
    }
    if (least < 0) {
        fg_list_add(build, &list,
                    fg_build_seq(build, 2, fg_build_text(build, "-"),
                                 natural(build, most < 0 ? (uint64_t)-most : 1, (uint64_t)-least)));
    }
    if (most >= 0) {
        fg_list_add(build, &list, natural(build, least < 0 ? 0 : (uint64_t)least, (uint64_t)most));
    }
    return fg_build_ok(build) ? fg_build_alt(build, &list) : NULL;
}

/* --- numbers with a fraction ----------------------------------------------------------------------------- */

/* Limits of a fraction: digits that it may not be below and above; NULL: none. */
typedef struct limits {
    const char *low;
    bool above;
    const char *high;
    bool below;
} limits;

static bool zeros(const char *digits)
{
    return digits[strspn(digits, "0")] == '\0';
}

/* Whether a fraction may end where `l` is still to come: what is left of it counts as zeros. */
static bool may_stop(const limits *l)
{
    return (l->low == NULL || (zeros(l->low) && !l->above)) &&
           (l->high == NULL || !zeros(l->high) || !l->below);
}

static fg_gnode *fraction_digits(fg_build *build, limits l, unsigned left)
{
    fg_glist list = { 0 };
    if (left == 0) {
        return may_stop(&l) ? fg_build_empty(build) : fg_build_never(build);
    }
    if (l.low == NULL && l.high == NULL) {
        return fg_build_repeat(build, digit(build, '0', '9'), 0, left);
    }
    if (may_stop(&l) && left < FG_DECIMAL_FRACTION) {
        fg_list_add(build, &list, fg_build_empty(build));
    }
    char first = l.low != NULL ? *l.low : '0';
    char last = l.high != NULL ? *l.high : '9';
    for (char c = first; c <= last && fg_build_ok(build); c++) {
        limits next = l;
        next.low = l.low != NULL && c == first ? l.low + 1 : NULL;
        next.high = l.high != NULL && c == last ? l.high + 1 : NULL;
        fg_list_add(
            build, &list,
            fg_build_seq(build, 2, digit(build, c, c), fraction_digits(build, next, left - 1)));
    }
    return fg_build_ok(build) ? fg_build_alt(build, &list) : NULL;
}

static fg_gnode *fraction(fg_build *build, limits l)
{
    fg_gnode *digits;
    if (l.low == NULL && l.high == NULL) {
        digits = fg_build_repeat(build, digit(build, '0', '9'), 1, FG_DECIMAL_FRACTION);
    } else {
        digits = fraction_digits(build, l, FG_DECIMAL_FRACTION);
    }
    fg_gnode *written = fg_build_seq(build, 2, fg_build_text(build, "."), digits);
    return may_stop(&l) ? fg_build_maybe(build, written) : written;
}

/* Numbers without a sign. */
static fg_gnode *positive(fg_build *build, uint64_t least, bool above, uint64_t most, bool below)
{
    char low[16], high[16];
    uint64_t whole_low = least / FG_DECIMAL_UNIT, whole_high = most / FG_DECIMAL_UNIT;
    snprintf(low, sizeof low, "%06u", (unsigned)(least % FG_DECIMAL_UNIT));
    snprintf(high, sizeof high, "%06u", (unsigned)(most % FG_DECIMAL_UNIT));
    limits from_low = { low, above, NULL, false };
    limits to_high = { NULL, false, high, below };
    limits both = { low, above, high, below };
    limits none = { NULL, false, NULL, false };
    if (whole_low == whole_high) {
        return fg_build_seq(build, 2, natural(build, whole_low, whole_low), fraction(build, both));
    }
    fg_glist list = { 0 };
    fg_list_add(
        build, &list,
        fg_build_seq(build, 2, natural(build, whole_low, whole_low), fraction(build, from_low)));
    fg_list_add(
        build, &list,
        fg_build_seq(build, 2, natural(build, whole_high, whole_high), fraction(build, to_high)));
    if (whole_low + 1 < whole_high) {
        fg_list_add(build, &list,
                    fg_build_seq(build, 2, natural(build, whole_low + 1, whole_high - 1),
                                 fraction(build, none)));
    }
    return fg_build_ok(build) ? fg_build_alt(build, &list) : NULL;
}

fg_gnode *fg_decimal_node(fg_build *build, int64_t least, bool above, int64_t most, bool below)
{
    fg_glist list = { 0 };
    if (least > most || (least == most && (above || below))) {
        return fg_build_never(build);
    }
    if (least <
        0) { /* the sign turns the limits round; zero has one only where it is between them */
        bool has_zero = most > 0 || (most == 0 && !below);
        fg_list_add(build, &list,
                    fg_build_seq(build, 2, fg_build_text(build, "-"),
                                 positive(build, most < 0 ? (uint64_t)-most : 0,
                                          most < 0 ? below : !has_zero, (uint64_t)-least, above)));
    }
    if (most >= 0) {
        fg_list_add(build, &list,
                    positive(build, least < 0 ? 0 : (uint64_t)least, least < 0 ? false : above,
                             (uint64_t)most, below));
    }
    return fg_build_ok(build) ? fg_build_alt(build, &list) : NULL;
}
