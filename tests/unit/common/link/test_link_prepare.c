/* What a link does before a first push, over every back end. */
#include "tests/unit/common/link/both.h"

#include <sys/resource.h>

static long faults(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
}

/* Page faults of a push of COUNT blocks and its commit, over a link that has just been made. */
static long faults_of_push(const char *kind, bool prepared)
{
    rig r;
    fg_error err;
    open_rig(&r, kind, NULL, 368640);
    for (uint32_t i = 0; i < COUNT; i++) {
        fill_block(&r.a, source_blocks[i], (uint8_t)(i + 1));
    }
    cr_assert_eq(fg_link_expect(r.b.link, r.b.peer, 3, target_blocks, COUNT, &err), FG_OK);
    if (prepared) {
        fg_link_prepare(r.a.link, r.a.peer, target_blocks, COUNT);
    }
    turn_both(&r.a, &r.b, 200);
    long before = faults();
    cr_assert_eq(fg_link_push(r.a.link, r.a.peer, 3, 0, source_blocks, target_blocks, COUNT),
                 FG_OK);
    long took = faults() - before;
    cr_assert_eq(commit_of(&r, 3, source_blocks, COUNT), FG_OK);
    cr_assert(wait_for(&r.a, &r.b, &r.b.commits, 1), "%s", kind);
    check_arrived(&r, "prepared or not");
    cr_assert_eq(fg_link_answer(r.b.link, 3, NULL, 0), FG_OK);
    cr_assert(wait_for(&r.a, &r.b, &r.a.answers, 1), "%s", kind);
    cr_assert_eq(stale_count(&r.a) + stale_count(&r.b), 0, "%s: a greeting is no message", kind);
    close_rig(&r);
    return took;
}

Test(link_prepare, a_prepared_push_meets_no_page_for_the_first_time)
{
    long cold = faults_of_push("shm", false), warm = faults_of_push("shm", true);
    long pages = COUNT * 368640 / 4096;
    /* A sanitizer has faults of its own, the same in both. */
    cr_assert(cold - warm >= pages / 2, "%ld faults, %ld unprepared", warm, cold);
    faults_of_push("tcp", true);
    faults_of_push("lent shm", true);
    faults_of_push("mem", true);
}

Test(link_prepare, preparing_is_a_hint_only)
{
    for (size_t k = 0; k < KIND_COUNT; k++) {
        rig r;
        open_rig(&r, kinds[k], NULL, 4096);
        const uint32_t beyond[] = { RIG_BLOCKS - 1, RIG_BLOCKS, RIG_BLOCKS + 1, UINT32_MAX, 0 };
        for (int i = 0; i < 5000; i++) { /* more than the queue holds */
            fg_link_prepare(r.a.link, r.a.peer, beyond, 5);
        }
        fg_link_prepare(r.a.link, FG_LINK_PEER_NONE, beyond, 5);
        fg_link_prepare(r.a.link, 7, beyond, 5);
        fg_link_prepare(r.a.link, r.a.peer, beyond, 0);
        turn_both(&r.a, &r.b, 10);
        fg_link_prepare(r.a.link, r.a.peer, beyond, 5);
        fg_link_lose_peer(r.a.link, r.a.peer); /* with blocks still in the queue */
        fg_link_prepare(r.a.link, r.a.peer, beyond, 5);
        turn_both(&r.a, &r.b, 100);
        cr_assert_eq(tickets_open(&r.a) + tickets_open(&r.b), 0);
        close_rig(&r);
    }
}

Test(link_prepare, what_is_put_beforehand_is_nobodys)
{
    for (size_t k = 0; k < KIND_COUNT; k++) {
        rig r;
        open_rig(&r, kinds[k], NULL, 4096);
        fill_block(&r.a, 0, 1);
        memset(fg_link_arena(r.b.link), 0x5A, 4096 * RIG_BLOCKS);
        fg_link_prepare(r.a.link, r.a.peer, target_blocks, COUNT);
        turn_both(&r.a, &r.b, 2000);
        const uint8_t *there = fg_link_arena(r.b.link);
        for (size_t i = 0; i < 4096 * RIG_BLOCKS; i++) {
            cr_assert_eq(there[i], 0x5A, "%s: byte %zu", r.kind, i);
        }
        close_rig(&r);
    }
}
