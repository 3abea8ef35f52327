#include "common/base/team.h"

#include <sched.h>
#include <stdatomic.h>
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
        cr_assert_eq(fg_team_create(threads, NULL, &team, NULL), FG_OK);
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
        cr_assert_eq(fg_team_create(threads, NULL, &team, NULL), FG_OK);
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

static void mark(void *ctx, uint32_t piece, uint32_t member)
{
    ((uint32_t *)ctx)[piece]++;
}

/* Four members on the nodes of each case. */
static const struct {
    const char *name;
    uint16_t nodes[4];
} node_cases[] = {
    { "two and two", { 0, 0, 1, 1 } },
    { "in turns, numbers with gaps", { 7, 3, 7, 3 } },
    { "one and three", { 1, 0, 0, 0 } },
    { "one each", { 0, 1, 2, 3 } },
};

Test(team, every_piece_is_done_once_on_several_nodes)
{
    for (size_t i = 0; i < sizeof node_cases / sizeof node_cases[0]; i++) {
        fg_team_place places[4] = { { 0 } };
        for (int member = 0; member < 4; member++) {
            places[member].node = node_cases[i].nodes[member];
        }
        fg_team *team;
        cr_assert_eq(fg_team_create(4, places, &team, NULL), FG_OK, "%s", node_cases[i].name);
        for (uint32_t run = 0; run < 200; run++) {
            run_once(team, run % 70, run % 4, run);
            pause_caller(run);
        }
        fg_team_destroy(team);
    }
}

enum { MANY = 40 };

static const struct {
    const char *name;
    uint32_t members, nodes;
    bool alone; /* the last one on a node of its own, the others on one */
} many_cases[] = {
    { "a node each", 24, 24, false },
    { "one node", MANY, 1, false },
    { "three nodes in turns", MANY, 3, false },
    { "one member beside many", MANY, 2, true },
};

Test(team, more_members_than_lanes_share)
{
    for (size_t c = 0; c < sizeof many_cases / sizeof many_cases[0]; c++) {
        uint32_t members = many_cases[c].members;
        fg_team_place places[MANY] = { { 0 } };
        for (uint32_t member = 0; member < members; member++) {
            places[member].node = (uint16_t)(many_cases[c].alone ? member + 1 == members
                                                                 : member % many_cases[c].nodes);
        }
        fg_team *team;
        cr_assert_eq(fg_team_create(members, places, &team, NULL), FG_OK);
        for (uint32_t run = 0; run < 20; run++) {
            uint32_t done[100] = { 0 };
            fg_team_for(team, 100, mark, done);
            for (int i = 0; i < 100; i++) {
                cr_assert_eq(done[i], 1, "%s: piece %d: %u", many_cases[c].name, i, done[i]);
            }
        }
        fg_team_destroy(team);
    }
}

/* The caller holds its first piece until member 1 has begun, so that both ranges are full when it does: it must
 * begin with the first piece of its own. */
enum { HALF = 32 };

typedef struct own_job {
    _Atomic bool begun;
    _Atomic uint32_t helped; /* 1 when member 1 began with a piece of the caller's */
} own_job;

static void prefer_own(void *ctx, uint32_t piece, uint32_t member)
{
    own_job *j = ctx;
    if (member == 1) {
        bool first = !atomic_exchange(&j->begun, true);
        atomic_fetch_add(&j->helped, first && piece != HALF);
    }
    while (!atomic_load(&j->begun)) {
        sched_yield();
    }
}

Test(team, a_member_does_its_own_pieces_first)
{
    for (uint16_t node = 0; node < 2; node++) {
        fg_team_place places[2] = { { .node = 0 }, { .node = node } };
        fg_team *team;
        cr_assert_eq(fg_team_create(2, places, &team, NULL), FG_OK);
        for (int run = 0; run < 50; run++) {
            own_job j = { .begun = false };
            fg_team_for(team, 2 * HALF, prefer_own, &j);
            cr_assert_eq(j.helped, 0, "node %u", node);
        }
        fg_team_destroy(team);
    }
}

/* ---- widths ---- */

typedef struct widths {
    uint64_t seed, calls;
    uint32_t one_in; /* calls between changes, about */
    uint32_t width;
} widths;

static uint32_t random_width(void *ctx)
{
    widths *w = ctx;
    uint64_t noise = fg_hash_mix(w->seed + w->calls++);
    if (noise % w->one_in == 0) {
        w->width = (uint32_t)(noise >> 32) % (THREADS_MAX + 2);
    }
    return w->width;
}

Test(team, every_piece_is_done_once_whatever_the_width_does)
{
    for (uint32_t threads = 1; threads <= THREADS_MAX; threads++) {
        fg_team *team;
        cr_assert_eq(fg_team_create(threads, NULL, &team, NULL), FG_OK);
        widths w = { .seed = threads };
        fg_team_follow(team, random_width, &w);
        for (uint32_t run = 0; run < 400; run++) {
            static const uint32_t changes[] = { 1, 3, 20, 200 };
            w.one_in = changes[run % 4];
            run_once(team, (uint32_t)fg_hash_mix(run) % 70, run % 5, run);
            pause_caller(fg_hash_mix(w.calls));
        }
        fg_team_follow(team, NULL, NULL);
        run_once(team, 100, 3, threads);
        fg_team_destroy(team);
    }
}

static uint32_t same_width(void *ctx)
{
    return *(const uint32_t *)ctx;
}

/* Bits of the members that did something. */
static void note_member(void *ctx, uint32_t piece, uint32_t member)
{
    sched_yield();
    atomic_fetch_or((_Atomic uint32_t *)ctx, 1u << member);
}

Test(team, only_members_within_the_width_take_part)
{
    static const uint32_t answers[] = { 4, 1, 2, 3, 0, 4, 2, 9 };
    fg_team *team;
    cr_assert_eq(fg_team_create(4, NULL, &team, NULL), FG_OK);
    uint32_t answer = 4;
    fg_team_follow(team, same_width, &answer);
    for (int round = 0; round < 50; round++) {
        for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++) {
            answer = answers[i];
            uint32_t width = answer == 0 ? 1 : answer > 4 ? 4 : answer;
            /* One that was about to claim may be late once. */
            _Atomic uint32_t members = 0;
            uint32_t runs = 0;
            do {
                members = 0;
                fg_team_for(team, 40, note_member, &members);
            } while (members >> width != 0 && ++runs < 5);
            cr_assert(runs < 5, "width %u: members %x", width, members);
            run_once(team, (uint32_t)round, 3, i);
        }
    }
    fg_team_destroy(team);
}

/* The width is `first` until the caller has asked `calls` times, and `second` from then on. */
typedef struct turning {
    uint32_t first, second, calls;
    bool turned;
    _Atomic bool acted;    /* the caller began a piece after the turn */
    _Atomic uint32_t late; /* pieces that member 1 began after that */
    _Atomic bool helped;
} turning;

static uint32_t turning_width(void *ctx)
{
    turning *t = ctx;
    t->turned = t->calls == 0;
    t->calls -= t->calls != 0;
    return t->turned ? t->second : t->first;
}

/* The caller goes no further than the turn while member 1 has done nothing. */
static void wait_for_help(void *ctx, uint32_t piece, uint32_t member)
{
    turning *t = ctx;
    if (member == 1) {
        atomic_store(&t->helped, true);
    }
    while (member == 0 && t->turned && !atomic_load(&t->helped)) {
        sched_yield();
    }
}

Test(team, a_member_is_let_in_during_a_run)
{
    fg_team *team;
    cr_assert_eq(fg_team_create(2, NULL, &team, NULL), FG_OK);
    for (uint32_t run = 0; run < 300; run++) {
        turning t = { .first = 1, .second = 2, .calls = 1 + run % 20 };
        fg_team_follow(team, turning_width, &t);
        fg_team_for(team, 40, wait_for_help, &t);
        cr_assert(t.helped);
        fg_team_follow(team, NULL, NULL);
        pause_caller(run); /* asleep in some runs, awake in others */
    }
    fg_team_destroy(team);
}

static void count_late(void *ctx, uint32_t piece, uint32_t member)
{
    turning *t = ctx;
    if (member == 0 && t->turned) {
        atomic_store(&t->acted, true);
    }
    atomic_fetch_add(&t->late, member == 1 && atomic_load(&t->acted));
    sched_yield();
}

Test(team, a_member_is_left_out_during_a_run)
{
    fg_team *team;
    cr_assert_eq(fg_team_create(2, NULL, &team, NULL), FG_OK);
    for (uint32_t run = 0; run < 300; run++) {
        turning t = { .first = 2, .second = 1, .calls = 1 + run % 20 };
        fg_team_follow(team, turning_width, &t);
        fg_team_for(team, 60, count_late, &t);
        cr_assert(t.late <= 1, "run %u: %u pieces after it was left out", run, t.late);
        fg_team_follow(team, NULL, NULL);
    }
    fg_team_destroy(team);
}

static void check_cpu(void *ctx, uint32_t piece, uint32_t member)
{
    sched_yield();
    FG_ASSERT(sched_getcpu() == *(const int *)ctx);
}

Test(team, pinned_members_stay_on_their_cpu)
{
    cpu_set_t before;
    cr_assert_eq(sched_getaffinity(0, sizeof before, &before), 0);
    int cpu = sched_getcpu();
    fg_team_place places[3];
    for (int i = 0; i < 3; i++) {
        places[i] = (fg_team_place){ .cpu = (uint16_t)cpu, .pinned = true };
    }
    fg_team *team;
    cr_assert_eq(fg_team_create(3, places, &team, NULL), FG_OK);
    for (int run = 0; run < 20; run++) {
        fg_team_for(team, 20, check_cpu, &cpu);
    }
    fg_team_destroy(team);
    cpu_set_t after;
    cr_assert_eq(sched_getaffinity(0, sizeof after, &after), 0);
    cr_assert(CPU_EQUAL(&before, &after));
}

Test(team, works_where_it_cannot_be_pinned)
{
    fg_team_place places[3];
    for (int i = 0; i < 3; i++) {
        places[i] = (fg_team_place){ .cpu = i == 1 ? UINT16_MAX : CPU_SETSIZE - 1, .pinned = true };
    }
    fg_team *team;
    cr_assert_eq(fg_team_create(3, places, &team, NULL), FG_OK);
    run_once(team, 100, 0, 0);
    fg_team_destroy(team);
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
    cr_assert_eq(fg_team_create(2, NULL, &team, NULL), FG_OK);
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
    cr_assert_eq(fg_team_create(3, NULL, &team, NULL), FG_OK);
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
        cr_assert_eq(fg_team_create(4, NULL, &team, NULL), FG_OK);
        if (round % 3 != 0) {
            run_once(team, (uint32_t)round, 3, (uint64_t)round);
        }
        pause_caller((uint64_t)round);
        fg_team_destroy(team);
    }
}

Test(team, refuses_silly_sizes)
{
    static const uint32_t sizes[] = { 0, FG_TEAM_THREADS_MAX + 1, UINT32_MAX };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        fg_team *team = NULL;
        cr_assert_eq(fg_team_create(sizes[i], NULL, &team, NULL), FG_BAD_INPUT);
        cr_assert_null(team);
    }
    fg_team_destroy(NULL);
}

static bool create_and_destroy(void *ctx)
{
    fg_team *team;
    if (fg_team_create(4, NULL, &team, NULL) != FG_OK) {
        return false;
    }
    fg_team_destroy(team);
    return true;
}

Test(team, survives_every_failure_while_starting)
{
    cr_assert_eq(fg_fault_each(create_and_destroy, NULL), 4);
}
