#include "common/engine/staging.h"

#include <string.h>

#include "common/base/fault.h"
#include "tests/support/test.h"

enum { WIDTH = 4, MAX = 8, UNTOUCHED = 77 };

Test(staging, positions_of_ranges)
{
    static const struct {
        const char *name;
        fg_table_range ranges[3];
        uint32_t range_count, max;
        uint32_t want_count;
        uint32_t want[MAX];
    } cases[] = {
        { "the vector of issue 4, 3 x 4", { { 0, 1, 3 }, { 2, 0, 2 } }, 2, MAX, 4, { 1, 2, 8, 9 } },
        { "none", { { 0 } }, 0, MAX, 0, { 0 } },
        { "an empty range", { { 1, 2, 2 }, { 1, 3, 4 } }, 2, MAX, 1, { 7 } },
        { "whole rows, backwards",
          { { 1, 0, 4 }, { 0, 0, 4 } },
          2,
          MAX,
          8,
          { 4, 5, 6, 7, 0, 1, 2, 3 } },
        { "more than fit", { { 0, 0, 4 }, { 1, 0, 4 } }, 2, 3, 8, { 0, 1, 2 } },
        { "nothing fits", { { 0, 0, 4 } }, 1, 0, 4, { 0 } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t got[MAX];
        for (uint32_t j = 0; j < MAX; j++) {
            got[j] = UNTOUCHED;
        }
        cr_assert_eq(
            fg_staging_positions(WIDTH, cases[i].ranges, cases[i].range_count, got, cases[i].max),
            cases[i].want_count, "%s", cases[i].name);
        uint32_t written = cases[i].want_count < cases[i].max ? cases[i].want_count : cases[i].max;
        for (uint32_t j = 0; j < MAX; j++) {
            cr_assert_eq(got[j], j < written ? cases[i].want[j] : UNTOUCHED, "%s: %u",
                         cases[i].name, j);
        }
    }
}

Test(staging, copies_stay_until_their_area_comes_round)
{
    enum { AREAS = 3, COUNT = 5 };
    fg_staging *staging = fg_staging_create(AREAS, COUNT);
    cr_assert_not_null(staging);
    const uint32_t *held[AREAS] = { NULL };
    for (uint32_t turn = 0; turn < 20; turn++) {
        uint32_t source[COUNT] = { turn, turn + 1, turn + 2, turn + 3, turn + 4 };
        const uint32_t *first = fg_staging_copy(staging, source, 2);
        const uint32_t *second = fg_staging_copy(staging, source + 2, 3);
        cr_assert_not_null(first);
        cr_assert_not_null(second);
        cr_assert_null(fg_staging_copy(staging, source, 1), "the area is full");
        cr_assert_eq(fg_staging_room(staging), 0u);
        cr_assert_not_null(fg_staging_copy(staging, source, 0), "nothing fits always");
        memset(source, 0xFF, sizeof source);
        cr_assert_eq(first[1], turn + 1);
        held[turn % AREAS] = second;
        /* The turns before this one, as far as the ring reaches, are as they were. */
        for (uint32_t back = 0; back < AREAS && back <= turn; back++) {
            cr_assert_eq(held[(turn - back) % AREAS][2], turn - back + 4);
        }
        fg_staging_turn(staging);
    }
    cr_assert_null(fg_staging_copy(staging, (const uint32_t[6]){ 0 }, 6), "more than an area");
    cr_assert_not_null(fg_staging_copy(staging, (const uint32_t[5]){ 0 }, 5),
                       "what was refused took no room");
    fg_staging_destroy(staging);
    fg_staging_destroy(NULL);
}

static bool create_and_destroy(void *ctx)
{
    fg_staging *staging = fg_staging_create(3, 100);
    fg_staging_destroy(staging);
    return staging != NULL;
}

Test(staging, survives_failed_allocation)
{
    cr_assert_eq(fg_fault_each(create_and_destroy, NULL), 2);
}
