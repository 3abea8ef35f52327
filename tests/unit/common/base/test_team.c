#include "common/base/team.h"

#include <sched.h>
#include <string.h>

#include "common/base/fault.h"
#include "common/base/rng.h"
#include "tests/support/test.h"

enum { PIECES = 1000, THREADS_MAX = 8 };

typedef struct job {
    uint32_t done[PIECES]; /* plain on purpose: two members at one piece are a race */
    uint32_t busy[THREADS_MAX];
    uint32_t piece_count, thread_count;
    uint32_t yield_one_in; /* 0: never */
    uint64_t seed;
} job;

static void do_piece(void *ctx, uint32_t piece, uint32_t member)
{
    job *j = ctx;
    FG_ASSERT(piece < j->piece_count && member < j->thread_count, "a piece of another run");
    j->busy[member]++;
    uint64_t noise = fg_hash_mix(j->seed + piece);
    if (j->yield_one_in != 0 && noise % j->yield_one_in == 0) {
        sched_yield();
    }
    j->done[piece]++;
    j->busy[member]--;
}

/* The job lies on this stack frame, which the next call reuses: a late member would be seen. */
static void run_once(fg_team *team, uint32_t piece_count, uint32_t yield_one_in, uint64_t seed)
{
    job j = { .piece_count = piece_count,
              .thread_count = fg_team_size(team),
              .yield_one_in = yield_one_in,
              .seed = seed };
    fg_team_for(team, piece_count, do_piece, &j);
    for (uint32_t i = 0; i < PIECES; i++) {
        cr_assert_eq(j.done[i], i < piece_count, "threads %u pieces %u piece %u: %u",
                     j.thread_count, piece_count, i, j.done[i]);
    }
    memset(&j, 0xAB, sizeof j);
}

Test(team, every_piece_is_done_once)
{
    static const uint32_t counts[] = { 0, 1, 2, 3, 7, 8, 9, PIECES };
    for (uint32_t threads = 1; threads <= THREADS_MAX; threads++) {
        fg_team *team;
        cr_assert_eq(fg_team_create(threads, &team, NULL), FG_OK);
        cr_assert_eq(fg_team_size(team), threads);
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            run_once(team, counts[i], 0, 0);
        }
        fg_team_destroy(team);
    }
}

/* Gives the core away some times, so that others come late to the next run or fall asleep. */
static void pause_caller(uint64_t noise)
{
    static const uint32_t lengths[] = { 0, 0, 0, 1, 20 };
    uint32_t length = lengths[noise % (sizeof lengths / sizeof lengths[0])];
    for (uint32_t i = 0; i < length; i++) {
        sched_yield();
    }
}

Test(team, holds_under_random_runs_and_delays)
{
    for (uint32_t threads = 1; threads <= THREADS_MAX; threads++) {
        fg_team *team;
        cr_assert_eq(fg_team_create(threads, &team, NULL), FG_OK);
        fg_rng rng = { .state = threads };
        for (uint32_t run = 0; run < 400; run++) {
            static const uint32_t ranges[] = { 4, 12, 60 };
            uint32_t range = ranges[fg_rng_below(&rng, 3)];
            uint32_t yield_one_in = (uint32_t)fg_rng_below(&rng, 5);
            run_once(team, (uint32_t)fg_rng_below(&rng, range), yield_one_in, run);
            pause_caller(fg_rng_next(&rng));
        }
        fg_team_destroy(team);
    }
}

/* Nobody waits for a member that has not begun: with one piece held until all others are done, a run
 * ends only if those who are there take everything else. */
typedef struct held_job {
    uint32_t piece_count;
    _Atomic uint32_t done;
} held_job;

static void hold_first_piece(void *ctx, uint32_t piece, uint32_t member)
{
    held_job *j = ctx;
    while (piece == 0 && atomic_load(&j->done) != j->piece_count - 1) {
        sched_yield();
    }
    atomic_fetch_add(&j->done, 1);
}

Test(team, a_member_that_stands_still_holds_only_its_own_piece)
{
    fg_team *team;
    cr_assert_eq(fg_team_create(2, &team, NULL), FG_OK);
    for (int run = 0; run < 200; run++) {
        held_job j = { .piece_count = 64 };
        fg_team_for(team, j.piece_count, hold_first_piece, &j);
        cr_assert_eq(j.done, 64);
    }
    fg_team_destroy(team);
}

/* Makes the members outlast their spinning, so that sleeping and waking run too. */
static void dawdle(void *ctx, uint32_t piece, uint32_t member)
{
    volatile uint32_t work = 0;
    for (uint32_t i = 0; i < piece * 400000; i++) {
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
        fg_team_for(team, 3, dawdle, &calls);
        cr_assert_eq(calls, 3);
    }
    fg_team_destroy(team);
}

/* Members that have nothing to do, are asleep, or have only just been started all go home. */
Test(team, ends_at_any_moment)
{
    for (int round = 0; round < 100; round++) {
        fg_team *team;
        cr_assert_eq(fg_team_create(4, &team, NULL), FG_OK);
        if (round % 3 != 0) {
            run_once(team, (uint32_t)round, 3, (uint64_t)round);
        }
        pause_caller((uint64_t)round);
        fg_team_destroy(team);
    }
}

static void count_share(void *ctx, uint32_t member, uint32_t member_count)
{
    uint32_t *seen = ctx;
    FG_ASSERT(member < member_count);
    seen[member]++;
}

Test(team, every_share_runs_once)
{
    fg_team *team;
    cr_assert_eq(fg_team_create(5, &team, NULL), FG_OK);
    for (int run = 0; run < 50; run++) {
        uint32_t seen[5] = { 0 };
        fg_team_run(team, count_share, seen);
        for (int i = 0; i < 5; i++) {
            cr_assert_eq(seen[i], 1);
        }
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
