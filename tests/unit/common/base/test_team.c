#include "common/base/team.h"

#include <string.h>

#include "common/base/fault.h"
#include "tests/support/test.h"

enum { PIECES = 1000 };

typedef struct job {
    fg_team_queue queue;
    uint32_t done[PIECES];
    _Atomic uint32_t calls;
    _Atomic uint32_t members_seen; /* one bit each */
} job;

static void take_all(void *ctx, uint32_t member, uint32_t member_count)
{
    job *j = ctx;
    atomic_fetch_add(&j->calls, 1);
    atomic_fetch_or(&j->members_seen, 1u << member);
    uint32_t piece;
    while ((piece = fg_team_take(&j->queue)) != UINT32_MAX) {
        j->done[piece]++;
    }
}

Test(team, every_member_runs_once_and_every_piece_is_done_once)
{
    for (uint32_t threads = 1; threads <= 5; threads++) {
        fg_team *team;
        cr_assert_eq(fg_team_create(threads, &team, NULL), FG_OK);
        cr_assert_eq(fg_team_size(team), threads);
        for (int run = 0; run < 50; run++) {
            job j;
            memset(&j, 0, sizeof j);
            j.queue.count = PIECES;
            fg_team_run(team, take_all, &j);
            cr_assert_eq(j.calls, threads);
            cr_assert_eq(j.members_seen, (1u << threads) - 1);
            for (int i = 0; i < PIECES; i++) {
                cr_assert_eq(j.done[i], 1, "threads %u run %d piece %d", threads, run, i);
            }
        }
        fg_team_destroy(team);
    }
}

/* Makes the members outlast their spinning, so that sleeping and waking run too. */
static void dawdle(void *ctx, uint32_t member, uint32_t member_count)
{
    volatile uint32_t work = 0;
    for (uint32_t i = 0; i < member * 400000; i++) {
        work++;
    }
    atomic_fetch_add((_Atomic uint32_t *)ctx, 1);
}

Test(team, sleeping_members_and_a_sleeping_caller_are_woken)
{
    fg_team *team;
    cr_assert_eq(fg_team_create(3, &team, NULL), FG_OK);
    _Atomic uint32_t calls = 0;
    for (int run = 0; run < 20; run++) {
        dawdle(&calls, 2, 0); /* the members fall asleep meanwhile */
        calls = 0;
        fg_team_run(team, dawdle, &calls);
        cr_assert_eq(calls, 3);
    }
    fg_team_destroy(team);
}

Test(team, refuses_silly_sizes)
{
    static const uint32_t sizes[] = { 0, FG_TEAM_THREADS_MAX + 1, UINT32_MAX };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        fg_team *team = NULL;
        cr_assert_eq(fg_team_create(sizes[i], &team, NULL), FG_BAD_INPUT);
        cr_assert_null(team);
    }
    fg_team_destroy(NULL);
}

static bool create_and_destroy(void *ctx)
{
    fg_team *team;
    if (fg_team_create(4, &team, NULL) != FG_OK) {
        return false;
    }
    fg_team_destroy(team);
    return true;
}

Test(team, survives_every_failure_while_starting)
{
    cr_assert_eq(fg_fault_each(create_and_destroy, NULL), 4);
}
