/* One suite of behaviours over every back end, both ends in one process. */
#include "tests/unit/common/link/both.h"

#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>

#include "common/base/fault.h"
#include "common/base/mem.h"
#include "common/net/loop.h"

static const struct {
    const char *name;
    size_t block_bytes;
} sizes[] = { { "tiny", 192 }, { "odd", 20480 + 8 }, { "large", 368640 } };

Test(link, signals_are_as_the_process_was_started_with_them)
{
    struct sigaction now;
    fg_link_give_back_signals();
    cr_assert_eq(sigaction(SIGHUP, NULL, &now), 0);
    cr_assert(now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN);
}

Test(link, pushes_commits_and_is_acknowledged)
{
    for (size_t k = 0; k < KIND_COUNT * 3; k++) {
        rig r;
        open_rig(&r, kinds[k / 3], NULL, sizes[k % 3].block_bytes);
        for (uint32_t i = 0; i < COUNT; i++) {
            fill_block(&r.a, source_blocks[i], (uint8_t)(i + 1));
        }
        fg_error err;
        cr_assert_eq(fg_link_expect(r.b.link, r.b.peer, 7, target_blocks, COUNT, &err), FG_OK);
        cr_assert_eq(fg_link_push(r.a.link, r.a.peer, 7, 0, source_blocks, target_blocks, 5),
                     FG_OK);
        cr_assert_eq(
            fg_link_push(r.a.link, r.a.peer, 7, 5, source_blocks + 5, target_blocks + 5, 3), FG_OK);
        cr_assert_eq(commit_of(&r, 7, source_blocks, COUNT), FG_OK);
        cr_assert(wait_for(&r.a, &r.b, &r.b.commits, 1), "%s: no commit", r.kind);
        cr_assert_eq(r.b.last_ticket, 7);
        cr_assert_eq(r.b.first_token, 4711);
        cr_assert_eq(r.b.first_digest, 0x0123456789ABCDEFu);
        cr_assert_eq(r.b.commit_blocks, COUNT);
        check_arrived(&r, sizes[k % 3].name);
        cr_assert_eq(fg_link_answer(r.b.link, 7, NULL, 0), FG_OK);
        cr_assert(wait_for(&r.a, &r.b, &r.a.answers, 1), "%s: no answer", r.kind);
        cr_assert_eq(r.a.bad_count, 0);
        cr_assert_eq(tickets_open(&r.a) + tickets_open(&r.b), 0);
        cr_assert_eq(stale_count(&r.a) + stale_count(&r.b), 0);
        cr_assert_eq(r.a.drained + r.b.fenced, 0);
        fg_link_stats sent, got;
        fg_link_stats_get(r.a.link, &sent);
        fg_link_stats_get(r.b.link, &got);
        cr_assert_eq(sent.pushed_blocks, COUNT);
        /* 0 to 2 touch on both sides; 8 and 9 do as well, but go with different pushes. */
        cr_assert_eq(sent.pushed_runs, k / 3 == 0 ? COUNT : RUNS);
        cr_assert_eq(sent.pushed_bytes, COUNT * sizes[k % 3].block_bytes);
        cr_assert_eq(got.received_bytes, sent.pushed_bytes);
        const char *transport = fg_link_transport(r.a.link, r.a.peer);
        const char *want = k / 3 == 0 ? "mem" : is_tcp(r.kind) ? "tcp/lo" : "posix/memory";
        if (is_lent(r.kind) && strcmp(transport, "sysv/memory") == 0) {
            want = "sysv/memory"; /* of messages UCX has the choice */
        }
        cr_assert_str_eq(transport, want);
        close_rig(&r);
    }
}

Test(link, refused_blocks_are_pushed_again)
{
    for (size_t k = 0; k < KIND_COUNT; k++) {
        rig r;
        fg_error err;
        open_rig(&r, kinds[k], NULL, 4096);
        cr_assert_eq(fg_link_expect(r.b.link, r.b.peer, 9, target_blocks, COUNT, &err), FG_OK);
        cr_assert_eq(fg_link_push(r.a.link, r.a.peer, 9, 0, source_blocks, target_blocks, COUNT),
                     FG_OK);
        cr_assert_eq(commit_of(&r, 9, source_blocks, COUNT), FG_OK);
        cr_assert(wait_for(&r.a, &r.b, &r.b.commits, 1));
        /* The sender is silent until it is answered. */
        cr_assert_eq(fg_link_push(r.a.link, r.a.peer, 9, 0, source_blocks, target_blocks, 1),
                     FG_BAD_INPUT);
        const uint32_t bad[] = { 2, 7 };
        cr_assert_eq(fg_link_answer(r.b.link, 9, bad, 2), FG_OK);
        cr_assert(wait_for(&r.a, &r.b, &r.a.answers, 1));
        cr_assert_eq(r.a.bad_count, 2);
        cr_assert(r.a.bad[0] == 2 && r.a.bad[1] == 7);
        for (uint32_t i = 0; i < COUNT; i++) {
            fill_block(&r.a, source_blocks[i], (uint8_t)(i + 100));
        }
        cr_assert_eq(fg_link_push(r.a.link, r.a.peer, 9, 0, source_blocks, target_blocks, COUNT),
                     FG_OK);
        cr_assert_eq(commit_of(&r, 9, source_blocks, COUNT), FG_OK);
        cr_assert(wait_for(&r.a, &r.b, &r.b.commits, 2));
        check_arrived(&r, "again");
        cr_assert_eq(fg_link_answer(r.b.link, 9, NULL, 0), FG_OK);
        cr_assert(wait_for(&r.a, &r.b, &r.a.answers, 2));
        cr_assert_eq(tickets_open(&r.a) + tickets_open(&r.b), 0);
        cr_assert_eq(fg_link_answer(r.b.link, 9, NULL, 0), FG_CANCELLED);
        close_rig(&r);
    }
}

/* The last of so many blocks come; the others, which nobody looks at here, are the same few. */
static void hand_over_many(rig *r, uint32_t count)
{
    fg_error err = { 0 };
    uint32_t *blocks = fg_mem_array(count, sizeof *blocks);
    uint64_t *digests = fg_mem_array(count, sizeof *digests);
    const uint32_t bad[] = { 0, count - 1 };
    for (uint32_t i = 0; i < count; i++) {
        blocks[i] = target_blocks[i % COUNT];
    }
    fg_link_commit commit = { .ticket = 5, .block_count = count, .digests = digests };
    cr_assert_eq(fg_link_expect(r->b.link, r->b.peer, 5, blocks, count, &err), FG_OK, "%s",
                 err.text);
    for (int tries = 0; tries < 2; tries++) {
        cr_assert_eq(fg_link_push(r->a.link, r->a.peer, 5, count - COUNT, source_blocks,
                                  blocks + count - COUNT, COUNT),
                     FG_OK);
        cr_assert_eq(fg_link_commit_ticket(r->a.link, r->a.peer, &commit), FG_OK);
        cr_assert(wait_for(&r->a, &r->b, &r->b.commits, tries + 1), "%s: %u", r->kind, count);
        cr_assert_eq(r->b.commit_blocks, count);
        cr_assert_eq(fg_link_answer(r->b.link, 5, bad, tries == 0 ? 2 : 0), FG_OK);
        cr_assert(wait_for(&r->a, &r->b, &r->a.answers, tries + 1), "%s: %u", r->kind, count);
        cr_assert(r->a.bad_count == (tries == 0 ? 2 : 0) && r->a.bad[1] == count - 1);
    }
    fg_mem_free(digests);
    fg_mem_free(blocks);
}

Test(link, a_ticket_may_name_a_block_for_each_token_of_the_longest_context)
{
    static const uint32_t counts[] = { 65536, 65537, FG_LIMIT_CONTEXT_TOKENS };
    for (size_t k = 0; k < KIND_COUNT * 3; k++) {
        rig r;
        open_rig(&r, kinds[k / 3], NULL, 64);
        hand_over_many(&r, counts[k % 3]);
        cr_assert_eq(tickets_open(&r.a) + tickets_open(&r.b), 0);
        close_rig(&r);
    }
}

/* Where in a ticket's life the receiver asks for certainty. */
typedef enum moment { BEFORE_PUSH, AFTER_PUSH, AFTER_COMMIT_SENT, WHILE_CHECKING } moment;

Test(link, fence_ends_a_ticket_at_any_moment)
{
    for (size_t k = 0; k < KIND_COUNT * 4; k++) {
        rig r;
        fg_error err;
        moment at = (moment)(k % 4);
        open_rig(&r, kinds[k / 4], NULL, 65536);
        cr_assert_eq(fg_link_expect(r.b.link, r.b.peer, 5, target_blocks, COUNT, &err), FG_OK);
        if (at > BEFORE_PUSH) {
            cr_assert_eq(
                fg_link_push(r.a.link, r.a.peer, 5, 0, source_blocks, target_blocks, COUNT), FG_OK);
        }
        if (at > AFTER_PUSH) {
            cr_assert_eq(commit_of(&r, 5, source_blocks, COUNT), FG_OK);
        }
        if (at == WHILE_CHECKING) {
            cr_assert(wait_for(&r.a, &r.b, &r.b.commits, 1));
        }
        fg_link_fence(r.b.link, 5);
        fg_link_fence(r.b.link, 5); /* asking twice changes nothing */
        cr_assert_eq(r.b.fenced, 0, "a callback from inside a call");
        cr_assert(wait_for(&r.a, &r.b, &r.b.fenced, 1), "%s moment %d", r.kind, (int)at);
        cr_assert_eq(r.b.last_ticket, 5);
        if (at > BEFORE_PUSH) {
            cr_assert(wait_for(&r.a, &r.b, &r.a.drained, 1), "%s moment %d", r.kind, (int)at);
            cr_assert_eq(r.a.why, FG_CANCELLED);
        } else {
            turn_both(&r.a, &r.b, 1000);
            while (!fg_book_remembers(r.a.link->book, r.b.link->id, 5)) {
                turn_both(&r.a, &r.b, 1);
            }
        }
        /* The blocks are somebody else's now: a late push is refused by the sender itself. */
        cr_assert_eq(fg_link_push(r.a.link, r.a.peer, 5, 0, source_blocks, target_blocks, 1),
                     FG_CANCELLED);
        cr_assert_eq(commit_of(&r, 5, source_blocks, COUNT), FG_CANCELLED);
        turn_both(&r.a, &r.b, 100);
        cr_assert_eq(r.b.fenced, 1);
        cr_assert_eq(tickets_open(&r.a) + tickets_open(&r.b), 0);
        close_rig(&r);
    }
}

Test(link, abort_drains_and_refuses_later_pushes)
{
    for (size_t k = 0; k < KIND_COUNT * 2; k++) {
        rig r;
        fg_error err;
        bool pushed = k % 2 == 1;
        open_rig(&r, kinds[k / 2], NULL, 65536);
        cr_assert_eq(fg_link_expect(r.b.link, r.b.peer, 6, target_blocks, COUNT, &err), FG_OK);
        if (pushed) {
            cr_assert_eq(
                fg_link_push(r.a.link, r.a.peer, 6, 0, source_blocks, target_blocks, COUNT), FG_OK);
        }
        fg_link_abort(r.a.link, r.a.peer, 6);
        fg_link_abort(r.a.link, r.a.peer, 6);
        cr_assert_eq(r.a.drained, 0, "a callback from inside a call");
        cr_assert(wait_for(&r.a, &r.b, &r.a.drained, 1));
        cr_assert_eq(r.a.why, FG_CANCELLED);
        fg_link_abort(r.a.link, r.a.peer, 6);
        turn_both(&r.a, &r.b, 100);
        cr_assert_eq(r.a.drained, 1);
        cr_assert_eq(fg_link_push(r.a.link, r.a.peer, 6, 0, source_blocks, target_blocks, 1),
                     FG_CANCELLED);
        fg_link_fence(r.b.link, 6);
        cr_assert(wait_for(&r.a, &r.b, &r.b.fenced, 1));
        cr_assert_eq(tickets_open(&r.a) + tickets_open(&r.b), 0);
        close_rig(&r);
    }
}

Test(link, a_closing_sender_fences_what_it_wrote)
{
    for (size_t k = 0; k < KIND_COUNT; k++) {
        rig r;
        fg_error err;
        open_rig(&r, kinds[k], NULL, 65536);
        cr_assert_eq(fg_link_expect(r.b.link, r.b.peer, 1, target_blocks, COUNT, &err), FG_OK);
        cr_assert_eq(fg_link_expect(r.b.link, r.b.peer, 2, target_blocks, 1, &err), FG_OK);
        cr_assert_eq(fg_link_push(r.a.link, r.a.peer, 1, 0, source_blocks, target_blocks, 4),
                     FG_OK);
        turn_both(&r.a, &r.b, 50);
        fg_link_close(r.a.link);
        r.a.link = NULL;
        cr_assert(wait_for(NULL, &r.b, &r.b.fenced, 2), "%s", r.kind);
        cr_assert_eq(fg_link_expect(r.b.link, r.b.peer, 3, target_blocks, 1, &err), FG_PEER_LOST);
        fg_link_lose_peer(r.b.link, r.b.peer);
        turn_both(NULL, &r.b, 100);
        cr_assert_eq(r.b.fenced, 2);
        cr_assert_eq(tickets_open(&r.b), 0);
        close_rig(&r);
    }
}

Test(link, a_commit_outlives_its_sender)
{
    for (size_t k = 0; k < KIND_COUNT * 2; k++) {
        rig r;
        fg_error err;
        bool accept = k % 2 == 0;
        open_rig(&r, kinds[k / 2], NULL, 65536);
        cr_assert_eq(fg_link_expect(r.b.link, r.b.peer, 1, target_blocks, COUNT, &err), FG_OK);
        cr_assert_eq(fg_link_push(r.a.link, r.a.peer, 1, 0, source_blocks, target_blocks, COUNT),
                     FG_OK);
        cr_assert_eq(commit_of(&r, 1, source_blocks, COUNT), FG_OK);
        cr_assert(wait_for(&r.a, &r.b, &r.b.commits, 1));
        fg_link_close(r.a.link);
        r.a.link = NULL;
        fg_link_lose_peer(r.b.link, r.b.peer);
        turn_both(NULL, &r.b, 200);
        cr_assert_eq(r.b.fenced, 0);
        const uint32_t bad = 3;
        cr_assert_eq(fg_link_answer(r.b.link, 1, &bad, accept ? 0 : 1), FG_OK);
        if (!accept) {
            cr_assert(wait_for(NULL, &r.b, &r.b.fenced, 1), "%s: nobody pushes again", r.kind);
        }
        turn_both(NULL, &r.b, 100);
        cr_assert_eq(r.b.fenced, accept ? 0 : 1);
        cr_assert_eq(tickets_open(&r.b), 0);
        close_rig(&r);
    }
}

Test(link, a_closing_receiver_drains_the_sender)
{
    for (size_t k = 0; k < KIND_COUNT; k++) {
        rig r;
        fg_error err;
        open_rig(&r, kinds[k], NULL, 65536);
        cr_assert_eq(fg_link_expect(r.b.link, r.b.peer, 1, target_blocks, COUNT, &err), FG_OK);
        cr_assert_eq(fg_link_push(r.a.link, r.a.peer, 1, 0, source_blocks, target_blocks, 4),
                     FG_OK);
        cr_assert_eq(fg_link_push(r.a.link, r.a.peer, 2, 0, source_blocks, target_blocks, 4),
                     FG_OK);
        fg_link_close(r.b.link);
        r.b.link = NULL;
        cr_assert(wait_for(&r.a, NULL, &r.a.drained, 2), "%s", r.kind);
        cr_assert_eq(r.a.why, FG_PEER_LOST);
        cr_assert_eq(fg_link_push(r.a.link, r.a.peer, 3, 0, source_blocks, target_blocks, 1),
                     FG_PEER_LOST);
        cr_assert_eq(tickets_open(&r.a), 0);
        close_rig(&r);
    }
}

Test(link, a_lost_peer_can_be_learned_again)
{
    for (size_t k = 0; k < KIND_COUNT; k++) {
        rig r;
        fg_error err;
        open_rig(&r, kinds[k], NULL, 65536);
        for (int round = 0; round < 3; round++) {
            uint64_t ticket = 10 + (uint64_t)round;
            cr_assert_eq(fg_link_expect(r.b.link, r.b.peer, ticket, target_blocks, COUNT, &err),
                         FG_OK);
            cr_assert_eq(
                fg_link_push(r.a.link, r.a.peer, ticket, 0, source_blocks, target_blocks, COUNT),
                FG_OK);
            fg_link_lose_peer(r.a.link, r.a.peer);
            fg_link_lose_peer(r.b.link, r.b.peer);
            cr_assert(wait_for(&r.a, &r.b, &r.a.drained, round + 1), "%s %d", r.kind, round);
            cr_assert(wait_for(&r.a, &r.b, &r.b.fenced, round + 1), "%s %d", r.kind, round);
            cr_assert_eq(r.a.why, FG_PEER_LOST);
            cr_assert_eq(fg_link_push(r.a.link, r.a.peer, 99, 0, source_blocks, target_blocks, 1),
                         FG_PEER_LOST);
            while (r.a.link->peers[r.a.peer] != NULL || r.b.link->peers[r.b.peer] != NULL) {
                turn_both(&r.a, &r.b, 1);
            }
            introduce(&r.a, "a", &r.b, "b");
        }
        cr_assert_eq(fg_link_expect(r.b.link, r.b.peer, 50, target_blocks, COUNT, &err), FG_OK);
        cr_assert_eq(fg_link_push(r.a.link, r.a.peer, 50, 0, source_blocks, target_blocks, COUNT),
                     FG_OK);
        cr_assert_eq(commit_of(&r, 50, source_blocks, COUNT), FG_OK);
        cr_assert(wait_for(&r.a, &r.b, &r.b.commits, 1), "%s", r.kind);
        check_arrived(&r, "after loss");
        close_rig(&r);
    }
}

/* ---- holds: the caller writes by itself ---- */

static const char *const near[] = { "mem", "shm", "auto" };
enum { NEAR_COUNT = sizeof near / sizeof near[0] };

static fg_status hold(rig *r, uint64_t ticket, void **arena_out)
{
    return fg_link_hold(r->a.link, r->a.peer, ticket, target_blocks, COUNT, arena_out);
}

static void write_there(rig *r, void *arena, uint32_t from, uint32_t count)
{
    size_t size = r->a.block_bytes;
    for (uint32_t i = from; i < from + count; i++) {
        fill_block(&r->a, source_blocks[i], (uint8_t)(i + 1));
        memcpy((uint8_t *)arena + target_blocks[i] * size,
               (uint8_t *)fg_link_arena(r->a.link) + source_blocks[i] * size, size);
    }
}

Test(link, what_is_written_by_a_hold_needs_no_push)
{
    for (size_t k = 0; k < NEAR_COUNT; k++) {
        rig r;
        fg_error err;
        void *arena, *again;
        open_rig(&r, near[k], NULL, 20480 + 8);
        cr_assert_eq(fg_link_expect(r.b.link, r.b.peer, 7, target_blocks, COUNT, &err), FG_OK);
        cr_assert_eq(hold(&r, 7, &arena), FG_OK);
        cr_assert_eq(hold(&r, 7, &again), FG_OK); /* two steps in flight */
        cr_assert_eq(arena, again);
        write_there(&r, arena, 0, 5);
        fg_link_release(r.a.link, r.a.peer, 7);
        write_there(&r, arena, 5, 2);
        fg_link_release(r.a.link, r.a.peer, 7);
        fill_block(&r.a, source_blocks[7], 8); /* and one is pushed */
        cr_assert_eq(
            fg_link_push(r.a.link, r.a.peer, 7, 7, source_blocks + 7, target_blocks + 7, 1), FG_OK);
        cr_assert_eq(commit_of(&r, 7, source_blocks, COUNT), FG_OK);
        cr_assert(wait_for(&r.a, &r.b, &r.b.commits, 1), "%s: no commit", r.kind);
        check_arrived(&r, "by a hold");
        cr_assert_eq(fg_link_answer(r.b.link, 7, NULL, 0), FG_OK);
        cr_assert(wait_for(&r.a, &r.b, &r.a.answers, 1));
        cr_assert_eq(tickets_open(&r.a) + tickets_open(&r.b), 0);
        fg_link_stats stats;
        fg_link_stats_get(r.a.link, &stats);
        cr_assert_eq(stats.pushed_blocks, 1u);
        close_rig(&r);
    }
}

Test(link, a_fence_waits_for_a_hold)
{
    for (size_t k = 0; k < NEAR_COUNT * 2; k++) {
        rig r;
        fg_error err;
        void *arena;
        bool abort = k % 2 == 1; /* by the sender itself */
        open_rig(&r, near[k / 2], NULL, 4096);
        cr_assert_eq(fg_link_expect(r.b.link, r.b.peer, 5, target_blocks, COUNT, &err), FG_OK);
        cr_assert_eq(hold(&r, 5, &arena), FG_OK);
        if (abort) {
            fg_link_abort(r.a.link, r.a.peer, 5);
        }
        fg_link_fence(r.b.link, 5);
        turn_both(&r.a, &r.b, 300);
        cr_assert_eq(r.a.drained + r.b.fenced, 0, "%s: somebody still writes", r.kind);
        write_there(&r, arena, 0, COUNT);
        fg_link_release(r.a.link, r.a.peer, 5);
        cr_assert(wait_for(&r.a, &r.b, &r.b.fenced, 1), "%s", r.kind);
        cr_assert(wait_for(&r.a, &r.b, &r.a.drained, 1), "%s", r.kind);
        cr_assert_eq(hold(&r, 5, &arena), FG_CANCELLED);
        cr_assert_eq(tickets_open(&r.a) + tickets_open(&r.b), 0);
        close_rig(&r);
    }
}

Test(link, held_memory_outlives_its_owner)
{
    for (size_t k = 0; k < NEAR_COUNT; k++) {
        rig r;
        fg_error err;
        void *arena;
        open_rig(&r, near[k], NULL, 65536);
        cr_assert_eq(fg_link_expect(r.b.link, r.b.peer, 3, target_blocks, COUNT, &err), FG_OK);
        cr_assert_eq(hold(&r, 3, &arena), FG_OK);
        fg_link_close(r.b.link);
        r.b.link = NULL;
        turn_both(&r.a, NULL, 100);
        fg_link_lose_peer(r.a.link, r.a.peer);
        turn_both(&r.a, NULL, 100);
        cr_assert_eq(r.a.drained, 0);
        write_there(&r, arena, 0, COUNT); /* the step in flight goes on */
        fg_link_release(r.a.link, r.a.peer, 3);
        cr_assert(wait_for(&r.a, NULL, &r.a.drained, 1), "%s", r.kind);
        cr_assert_eq(r.a.why, FG_PEER_LOST);
        while (r.a.link->peers[r.a.peer] != NULL) {
            turn_both(&r.a, NULL, 1);
        }
        close_rig(&r);
    }
}

/* Another router has introduced the two as well, or the same one again: what the writer says when it turns away from one
 * introduction may come late, and is no word about the other. */
Test(link, a_writer_turns_away_from_one_introduction_alone)
{
    for (size_t k = 0; k < NEAR_COUNT; k++) {
        rig r;
        fg_error err;
        void *arena;
        uint32_t first, second;
        const uint32_t others[] = { 7, 8 };
        fg_buf record;
        open_rig(&r, near[k], NULL, 4096);
        fg_buf_init(&record, 0);
        cr_assert(fg_link_describe(r.b.link, &record));
        cr_assert_eq(fg_link_add_peer(r.a.link, "b", 3, 2, record.data, record.size, &first, &err),
                     FG_OK);
        fg_buf_clear(&record);
        cr_assert(fg_link_describe(r.a.link, &record));
        cr_assert_eq(fg_link_add_peer(r.b.link, "a", 2, 3, record.data, record.size, &second, &err),
                     FG_OK);
        fg_buf_deinit(&record);
        cr_assert(first != r.a.peer && second != r.b.peer);
        cr_assert_eq(fg_link_expect(r.b.link, second, 3, target_blocks, COUNT, &err), FG_OK);
        cr_assert_eq(fg_link_expect(r.b.link, r.b.peer, 4, others, 2, &err), FG_OK);
        cr_assert_eq(fg_link_hold(r.a.link, first, 3, target_blocks, COUNT, &arena), FG_OK);
        fg_link_lose_peer(r.a.link, r.a.peer);
        cr_assert(wait_for(&r.a, &r.b, &r.b.fenced, 1), "%s", r.kind);
        cr_assert_eq(r.b.last_ticket, 4);
        turn_both(&r.a, &r.b, 50);
        cr_assert(r.b.fenced == 1 && fg_link_usable(r.b.link, second), "%s", r.kind);
        fg_link_release(r.a.link, first, 3);
        close_rig(&r);
    }
}

Test(link, closing_ends_holds)
{
    for (size_t k = 0; k < NEAR_COUNT; k++) {
        rig r;
        fg_error err;
        void *arena;
        open_rig(&r, near[k], NULL, 4096);
        cr_assert_eq(fg_link_expect(r.b.link, r.b.peer, 3, target_blocks, COUNT, &err), FG_OK);
        cr_assert_eq(hold(&r, 3, &arena), FG_OK);
        fg_link_close(r.a.link); /* whoever wrote has stopped */
        r.a.link = NULL;
        cr_assert(wait_for(NULL, &r.b, &r.b.fenced, 1), "%s", r.kind);
        close_rig(&r);
    }
}

Test(link, refuses_holds_that_cannot_be)
{
    static const uint32_t beyond[] = { 1, RIG_BLOCKS };
    for (size_t k = 0; k < KIND_COUNT; k++) {
        rig r;
        void *arena;
        open_rig(&r, kinds[k], NULL, 4096);
        bool far = is_tcp(kinds[k]) || is_lent(kinds[k]);
        cr_assert_eq(hold(&r, 1, &arena), far ? FG_BAD_INPUT : FG_OK, "%s", r.kind);
        cr_assert_eq(fg_link_hold(r.a.link, r.a.peer, 2, beyond, 2, &arena), FG_BAD_INPUT);
        cr_assert_eq(fg_link_hold(r.a.link, r.a.peer, 2, beyond, 0, &arena), FG_BAD_INPUT);
        cr_assert_eq(fg_link_hold(r.a.link, 77, 2, beyond, 1, &arena), FG_PEER_LOST);
        if (!far) {
            fg_link_release(r.a.link, r.a.peer, 1);
        }
        close_rig(&r);
    }
}

Test(link, stale_messages_are_dropped_and_counted)
{
    for (size_t k = 0; k < KIND_COUNT; k++) {
        rig r;
        open_rig(&r, kinds[k], NULL, 4096);
        bool data_by_message = is_tcp(kinds[k]);
        memset(fg_link_arena(r.b.link), 0x5A, 4096 * RIG_BLOCKS);
        /* The receiver never issued ticket 40. */
        if (data_by_message) {
            fill_block(&r.a, 0, 1);
            cr_assert_eq(fg_link_push(r.a.link, r.a.peer, 40, 0, source_blocks, target_blocks, 1),
                         FG_OK);
        }
        cr_assert_eq(commit_of(&r, 40, source_blocks, 1), FG_OK);
        uint64_t want = data_by_message ? 2 : 1;
        for (int i = 0; i < 100000 && stale_count(&r.b) < want; i++) {
            turn_both(&r.a, &r.b, 10);
        }
        cr_assert_eq(stale_count(&r.b), want, "%s", r.kind);
        cr_assert_eq(r.b.commits, 0);
        for (size_t i = 0; i < 4096 * RIG_BLOCKS; i++) {
            cr_assert_eq(((uint8_t *)fg_link_arena(r.b.link))[i], 0x5A);
        }
        fg_link_abort(r.a.link, r.a.peer, 40);
        cr_assert(wait_for(&r.a, &r.b, &r.a.drained, 1));
        close_rig(&r);
    }
}

Test(link, messages_are_checked_at_the_receiver)
{
    rig r;
    fg_error err;
    open_rig(&r, "mem", NULL, 4096);
    const uint32_t blocks[] = { 3, 4, 9 };
    cr_assert_eq(fg_link_expect(r.b.link, r.b.peer, 8, blocks, 3, &err), FG_OK);
    const fg_link_wire good = {
        .kind = FG_LINK_DATA,
        .from = r.a.link->id,
        .to = r.b.link->id,
        .ticket = 8,
        .count = 2,
        .first = 0,
        .first_block = 3,
    };
    struct {
        const char *name;
        fg_link_wire wire;
        size_t length;
        bool taken;
    } cases[] = {
        { "two blocks that touch", good, 8192, true },
        { "one byte short", good, 8191, false },
        { "one byte long", good, 8193, false },
        { "a block too many for the bytes", good, 4096, false },
        { "another ticket", good, 8192, false },
        { "another sender", good, 8192, false },
        { "another receiver", good, 8192, false },
        { "another block", good, 8192, false },
        { "blocks that do not touch", good, 8192, false },
        { "beyond the ticket", good, 8192, false },
        { "index at its maximum", good, 8192, false },
        { "no block", good, 0, false },
        { "a commit", good, 8192, false },
    };
    cases[4].wire.ticket = 9;
    cases[5].wire.from ^= 1;
    cases[6].wire.to ^= 1;
    cases[7].wire.first_block = 4;
    cases[8].wire.first = 1;
    cases[8].wire.first_block = 4;
    cases[9].wire.first = 2;
    cases[9].wire.first_block = 9;
    cases[10].wire.first = UINT32_MAX;
    cases[11].wire.count = 0;
    cases[12].wire.kind = FG_LINK_COMMIT;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint8_t header[FG_LINK_HEADER_BYTES];
        uint8_t *target = NULL;
        fg_link_wire_header(&cases[i].wire, header);
        uint64_t stale = stale_count(&r.b);
        fg_ticket *ticket =
            fg_link_got_data(r.b.link, header, sizeof header, cases[i].length, &target);
        cr_assert_eq(ticket != NULL, cases[i].taken, "%s", cases[i].name);
        cr_assert_eq(stale_count(&r.b), stale + (cases[i].taken ? 0 : 1), "%s", cases[i].name);
        if (ticket != NULL) {
            cr_assert(target == block_at(&r.b, 3));
            fg_link_op_done(r.b.link, ticket, 0);
        }
    }
    close_rig(&r);
}

Test(link, a_push_waits_when_too_much_is_in_flight)
{
    for (size_t k = 0; k < KIND_COUNT; k++) {
        rig r;
        fg_error err;
        open_rig(&r, kinds[k], NULL, 65536);
        cr_assert_eq(fg_link_expect(r.b.link, r.b.peer, 3, target_blocks, COUNT, &err), FG_OK);
        fg_status status = FG_OK;
        uint64_t pushed = 0;
        for (int i = 0; i < 64 && status == FG_OK; i++) {
            status = fg_link_push(r.a.link, r.a.peer, 3, 0, source_blocks, target_blocks, COUNT);
            pushed += status == FG_OK ? COUNT : 0;
        }
        cr_assert(pushed <= FG_LINK_FLIGHT_BLOCKS || r.a.link->peers[r.a.peer]->flight_blocks == 0);
        for (int i = 0; i < 1000000 && status == FG_AGAIN; i++) {
            turn_both(&r.a, &r.b, 1);
            status = fg_link_push(r.a.link, r.a.peer, 3, 0, source_blocks, target_blocks, COUNT);
        }
        cr_assert_eq(status, FG_OK, "%s", r.kind);
        cr_assert_eq(commit_of(&r, 3, source_blocks, COUNT), FG_OK);
        cr_assert(wait_for(&r.a, &r.b, &r.b.commits, 1));
        close_rig(&r);
    }
}

Test(link, refuses_what_cannot_be)
{
    rig r;
    fg_error err;
    open_rig(&r, "mem", NULL, 4096);
    const uint32_t beyond[] = { RIG_BLOCKS }, fine[] = { 1 };
    cr_assert_eq(fg_link_expect(r.b.link, r.b.peer, 1, beyond, 1, &err), FG_BAD_INPUT);
    cr_assert_eq(fg_link_expect(r.b.link, r.b.peer, 1, fine, 0, &err), FG_BAD_INPUT);
    cr_assert_eq(fg_link_expect(r.b.link, r.b.peer, 1, fine, FG_TICKET_BLOCKS_MAX + 1, &err),
                 FG_BAD_INPUT);
    cr_assert_eq(fg_link_expect(r.b.link, 17, 1, fine, 1, &err), FG_PEER_LOST);
    cr_assert_eq(fg_link_expect(r.b.link, FG_LINK_PEER_NONE, 1, fine, 1, &err), FG_PEER_LOST);
    cr_assert_eq(fg_link_expect(r.b.link, r.b.peer, 1, fine, 1, &err), FG_OK);
    cr_assert_eq(fg_link_expect(r.b.link, r.b.peer, 1, fine, 1, &err), FG_BAD_INPUT);
    cr_assert_eq(fg_link_answer(r.b.link, 1, NULL, 0), FG_CANCELLED, "nothing to answer yet");
    cr_assert_eq(fg_link_push(r.a.link, r.a.peer, 1, 0, beyond, fine, 1), FG_BAD_INPUT);
    cr_assert_eq(fg_link_push(r.a.link, r.a.peer, 1, 0, fine, beyond, 1), FG_BAD_INPUT);
    cr_assert_eq(fg_link_push(r.a.link, r.a.peer, 1, 0, fine, fine, 0), FG_BAD_INPUT);
    cr_assert_eq(fg_link_push(r.a.link, r.a.peer, 1, UINT32_MAX, fine, fine, 1), FG_BAD_INPUT);
    cr_assert_eq(fg_link_push(r.a.link, 9, 1, 0, fine, fine, 1), FG_PEER_LOST);
    fg_link_commit commit = { .ticket = 1, .block_count = 0 };
    cr_assert_eq(fg_link_commit_ticket(r.a.link, r.a.peer, &commit), FG_BAD_INPUT);
    cr_assert_eq(fg_link_commit_ticket(r.a.link, 9, &commit), FG_PEER_LOST);
    /* A full book is an answer, not a crash. */
    fg_status status = FG_OK;
    uint64_t opened = 1;
    while (status == FG_OK && opened < 2 * FG_TICKET_SIDE_MAX) {
        status = fg_link_expect(r.b.link, r.b.peer, 100 + opened, fine, 1, &err);
        opened += status == FG_OK ? 1 : 0;
    }
    cr_assert_eq(status, FG_AGAIN);
    cr_assert_eq(opened, FG_TICKET_SIDE_MAX);
    close_rig(&r);

    static const char *const bad_transports[] = { "", "rdma", "SHM" };
    end e = { 0 };
    fg_link *link;
    for (size_t i = 0; i < 3; i++) {
        fg_link_options options = rig_options(&e, bad_transports[i], 64);
        cr_assert_eq(fg_link_open_ucx(&options, &link, &err), FG_BAD_INPUT);
    }
    fg_link_options huge = rig_options(&e, "shm", SIZE_MAX / 4);
    cr_assert_eq(fg_link_open_ucx(&huge, &link, &err), FG_BAD_INPUT);
    huge.block_bytes = (size_t)1 << 38;
    cr_assert_eq(fg_link_open_ucx(&huge, &link, &err), FG_AGAIN);
    cr_assert_not_null(strstr(err.text, "does not fit into shared memory"), "%s", err.text);
}

Test(link, refuses_records_that_are_not_its_kind)
{
    for (size_t k = 0; k < KIND_COUNT; k++) {
        rig r;
        fg_error err;
        uint32_t peer;
        open_rig(&r, kinds[k], NULL, 4096);
        fg_buf record;
        fg_buf_init(&record, 0);
        cr_assert(fg_link_describe(r.b.link, &record));
        for (size_t size = 0; size < record.size; size++) {
            cr_assert_eq(fg_link_add_peer(r.a.link, "x", 1, 1, record.data, size, &peer, &err),
                         FG_BAD_INPUT, "cut to %zu", size);
        }
        for (size_t at = 0; at < record.size; at++) {
            record.data[at] ^= 0x41;
            cr_assert_eq(
                fg_link_add_peer(r.a.link, "x", 1, 1, record.data, record.size, &peer, &err),
                FG_BAD_INPUT, "byte %zu changed", at);
            record.data[at] ^= 0x41;
        }
        char long_name[FG_LIMIT_NAME_BYTES + 2];
        memset(long_name, 'n', sizeof long_name - 1);
        long_name[sizeof long_name - 1] = '\0';
        cr_assert_eq(
            fg_link_add_peer(r.a.link, long_name, 1, 1, record.data, record.size, &peer, &err),
            FG_BAD_INPUT);
        /* The same again is the same peer. */
        cr_assert_eq(fg_link_add_peer(r.a.link, "b", 1, 1, record.data, record.size, &peer, &err),
                     FG_OK);
        cr_assert_eq(peer, r.a.peer);
        fg_buf_deinit(&record);

        end c = { 0 };
        open_end(&r, &c, "c", NULL, 8192);
        fg_buf_init(&record, 0);
        cr_assert(fg_link_describe(c.link, &record));
        cr_assert_eq(fg_link_add_peer(r.a.link, "c", 1, 1, record.data, record.size, &peer, &err),
                     FG_BAD_INPUT, "another layout");
        fg_buf_deinit(&record);
        fg_link_close(c.link);
        rig_give_memory(&c);
        close_rig(&r);
    }
}

Test(link, may_be_closed_by_its_own_callback)
{
    for (size_t k = 0; k < KIND_COUNT; k++) {
        rig r;
        fg_error err;
        open_rig(&r, kinds[k], NULL, 4096);
        cr_assert_eq(fg_link_expect(r.b.link, r.b.peer, 1, target_blocks, 1, &err), FG_OK);
        cr_assert_eq(fg_link_push(r.a.link, r.a.peer, 1, 0, source_blocks, target_blocks, 1),
                     FG_OK);
        cr_assert_eq(commit_of(&r, 1, source_blocks, 1), FG_OK);
        r.b.close_in_callback = true;
        cr_assert(wait_for(&r.a, &r.b, &r.b.commits, 1));
        cr_assert_null(r.b.link);
        cr_assert(wait_for(&r.a, NULL, &r.a.drained, 1), "%s", r.kind);
        close_rig(&r);
    }
}

/* --- on a loop --- */

static void stop_loop(void *ctx)
{
    fg_loop_stop(ctx);
}

static double cpu_seconds(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

static void run_for(fg_loop *loop, uint64_t ms)
{
    fg_timer *timer;
    cr_assert_eq(fg_timer_start(loop, ms, 0, stop_loop, loop, &timer), FG_OK);
    fg_loop_run(loop);
    fg_timer_close(timer);
}

Test(link, moves_on_a_loop_and_sleeps_when_idle)
{
    for (size_t k = 0; k < KIND_COUNT; k++) {
        rig r;
        fg_error err;
        fg_loop *loop;
        cr_assert_eq(fg_loop_create(&loop, &err), FG_OK);
        open_rig(&r, kinds[k], loop, 368640);
        for (uint64_t ticket = 1; ticket <= 3; ticket++) {
            cr_assert_eq(fg_link_expect(r.b.link, r.b.peer, ticket, target_blocks, COUNT, &err),
                         FG_OK);
            cr_assert_eq(
                fg_link_push(r.a.link, r.a.peer, ticket, 0, source_blocks, target_blocks, COUNT),
                FG_OK);
            cr_assert_eq(commit_of(&r, ticket, source_blocks, COUNT), FG_OK);
            fg_timer *guard;
            cr_assert_eq(fg_timer_start(loop, 10000, 0, stop_loop, loop, &guard), FG_OK);
            fg_clock clock = fg_clock_real();
            uint64_t end_ms = fg_clock_now_ms(&clock) + 9000;
            while (r.b.commits < (int)ticket && fg_clock_now_ms(&clock) < end_ms) {
                fg_loop_run_once(loop, true);
            }
            cr_assert_eq(r.b.commits, (int)ticket, "%s", r.kind);
            cr_assert_eq(fg_link_answer(r.b.link, ticket, NULL, 0), FG_OK);
            while (r.a.answers < (int)ticket && fg_clock_now_ms(&clock) < end_ms) {
                fg_loop_run_once(loop, true);
            }
            cr_assert_eq(r.a.answers, (int)ticket, "%s", r.kind);
            fg_timer_close(guard);
        }
        run_for(loop, 50);
        double before = cpu_seconds();
        run_for(loop, 400);
        double used = cpu_seconds() - before;
        cr_log_info("%s: %.1f ms of CPU in 400 idle ms", r.kind, 1e3 * used);
        cr_assert(used < 0.1, "%s: %.3f s of CPU in 0.4 idle s", r.kind, used);
        close_rig(&r);
        fg_loop_destroy(loop);
    }
}

/* --- constructors --- */

static bool try_mem(void *ctx)
{
    end e = { 0 };
    fg_error err;
    fg_link *link;
    fg_loop *loop = ctx;
    fg_link_options options = rig_options(&e, "shm", 4096);
    options.loop = loop;
    fg_link_hub *hub = fg_link_hub_create(NULL);
    if (hub == NULL) {
        return false;
    }
    fg_status status = fg_link_open_mem(hub, "a", 1, &options, &link, &err);
    if (status == FG_OK) {
        fg_link_close(link);
    }
    fg_link_hub_destroy(hub);
    return status == FG_OK;
}

static uint8_t lent_blocks[(RIG_BLOCKS + FG_LINK_SPARE_BLOCKS) * 4096];

static bool try_ucx_on(fg_loop *loop, fg_link_memory kind)
{
    end e = { 0 };
    fg_error err;
    fg_link *link;
    fg_link_options options = rig_options(&e, "tcp", 4096);
    options.loop = loop;
    options.memory_kind = kind;
    options.memory = kind == FG_LINK_LENT ? lent_blocks : NULL;
    fg_status status = fg_link_open_ucx(&options, &link, &err);
    if (status != FG_OK) {
        return false;
    }
    fg_buf record;
    uint32_t peer;
    fg_buf_init(&record, 0);
    bool good =
        fg_link_describe(link, &record) &&
        fg_link_add_peer(link, "self", 1, 1, record.data, record.size, &peer, &err) == FG_OK;
    fg_buf_deinit(&record);
    fg_link_close(link); /* takes its leave with a message, which may be what fails */
    return good && !fg_fault_fired();
}

static bool try_ucx(void *ctx)
{
    return try_ucx_on(ctx, FG_LINK_OWN);
}

static bool try_ucx_lent(void *ctx)
{
    return try_ucx_on(ctx, FG_LINK_LENT);
}

Test(link, refuses_memory_that_it_does_not_reach)
{
    static const struct {
        const char *name;
        fg_link_memory kind;
        void *memory;
        const char *want;
    } cases[] = { { "nothing lent", FG_LINK_LENT, NULL, "blocks" },
                  { "no device's", FG_LINK_DEVICE, NULL, "blocks" },
                  { "its own and another's", FG_LINK_OWN, lent_blocks, "blocks" },
                  { "the host's as a device's", FG_LINK_DEVICE, lent_blocks, "UCX" } };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        end e = { 0 };
        fg_link *link = NULL;
        fg_error err = { 0 };
        fg_link_options options = rig_options(&e, "auto", 4096);
        options.memory_kind = cases[i].kind;
        options.memory = cases[i].memory;
        cr_assert_eq(fg_link_open_ucx(&options, &link, &err), FG_BAD_INPUT, "%s", cases[i].name);
        cr_assert_not_null(strstr(err.text, cases[i].want), "%s: %s", cases[i].name, err.text);
    }
}

Test(link, opening_survives_every_failed_allocation)
{
    fg_loop *loop;
    fg_error err;
    cr_assert_eq(fg_loop_create(&loop, &err), FG_OK);
    cr_assert(fg_fault_each(try_mem, loop) > 5);
    cr_assert(fg_fault_each(try_ucx, loop) > 5);
    cr_assert(fg_fault_each(try_ucx_lent, loop) > 5);
    fg_loop_destroy(loop);
}
