/* What only the hub can show: copies and messages at moments that the test chooses. */
#include "common/base/rng.h"
#include "tests/unit/common/link/rig.h"

#include <stdio.h>

enum { HELD_MAX = 4096 };

typedef struct held {
    void (*run)(void *arg);
    void (*drop)(void *arg);
    void *arg;
} held;

typedef struct world {
    fg_link_hub *hub;
    end a, b;
    held queue[HELD_MAX];
    int count;
} world;

static void hold(void *ctx, const char *from, const char *to, void (*run)(void *arg),
                 void (*drop)(void *arg), void *arg)
{
    world *w = ctx;
    cr_assert(w->count < HELD_MAX);
    w->queue[w->count++] = (held){ run, drop, arg };
}

static held take(world *w, int at)
{
    held item = w->queue[at];
    memmove(&w->queue[at], &w->queue[at + 1], (size_t)(w->count - at - 1) * sizeof item);
    w->count--;
    return item;
}

static void run_at(world *w, int at)
{
    held item = take(w, at);
    item.run(item.arg);
    turn_both(&w->a, &w->b, 1);
}

static void run_all(world *w)
{
    turn_both(&w->a, &w->b, 1);
    while (w->count > 0) {
        run_at(w, 0);
    }
}

static void open_end_of(world *w, end *e, const char *name, uint64_t epoch)
{
    fg_error err;
    fg_link_options options = rig_options(e, "shm", 64);
    cr_assert_eq(fg_link_open_mem(w->hub, name, epoch, &options, &e->link, &err), FG_OK);
}

static void open_world(world *w)
{
    memset(w, 0, sizeof *w);
    fg_link_hub_options options = { hold, w };
    w->hub = fg_link_hub_create(&options);
    open_end_of(w, &w->a, "a", 1);
    open_end_of(w, &w->b, "b", 1);
    introduce(&w->a, "a", &w->b, "b");
}

static void close_world(world *w)
{
    fg_link_close(w->a.link);
    fg_link_close(w->b.link);
    while (w->count > 0) {
        held item = take(w, 0);
        item.run(item.arg);
    }
    fg_link_hub_destroy(w->hub);
}

static const uint32_t blocks[] = { 1, 2, 3 };

static void expect_and_push(world *w, uint64_t ticket)
{
    fg_error err;
    cr_assert_eq(fg_link_expect(w->b.link, w->b.peer, ticket, blocks, 3, &err), FG_OK);
    cr_assert_eq(fg_link_push(w->a.link, w->a.peer, ticket, 0, blocks, blocks, 3), FG_OK);
}

Test(link_mem, a_fence_waits_for_a_late_copy)
{
    world w;
    open_world(&w);
    fill_block(&w.a, 1, 9);
    expect_and_push(&w, 5);
    cr_assert_eq(w.count, 3);
    fg_link_fence(w.b.link, 5);
    cr_assert_eq(w.count, 4);
    run_at(&w, 3); /* the question arrives while all copies are still on their way */
    cr_assert_eq(w.b.fenced, 0);
    run_at(&w, 0);
    run_at(&w, 0);
    cr_assert_eq(w.b.fenced + w.a.drained, 0, "one copy can still land");
    cr_assert_eq(w.count, 1);
    run_all(&w);
    cr_assert(w.b.fenced == 1 && w.a.drained == 1);
    cr_assert_eq(block_digest(&w.a, 1), block_digest(&w.b, 1));
    close_world(&w);
}

Test(link_mem, a_copy_reads_its_source_when_it_happens)
{
    world w;
    open_world(&w);
    expect_and_push(&w, 5);
    fill_block(&w.a, 1, 77); /* a sender that reuses blocks before on_drained corrupts, as really */
    run_all(&w);
    cr_assert_eq(block_digest(&w.a, 1), block_digest(&w.b, 1));
    close_world(&w);
}

Test(link_mem, what_runs_early_waits_for_what_is_ahead_of_it)
{
    world w;
    uint64_t digests[3] = { 0 };
    open_world(&w);
    fill_block(&w.a, 1, 1);
    expect_and_push(&w, 5);
    run_at(&w, 2);
    run_at(&w, 1);
    cr_assert(block_digest(&w.a, 1) != block_digest(&w.b, 1));
    fg_link_commit commit = { .ticket = 5, .block_count = 3, .digests = digests };
    cr_assert_eq(fg_link_commit_ticket(w.a.link, w.a.peer, &commit), FG_OK);
    cr_assert_eq(w.count, 1, "no announcement before the last copy");
    run_all(&w);
    cr_assert_eq(w.b.commits, 1);
    close_world(&w);
}

Test(link_mem, copies_of_a_killed_link_never_happen)
{
    world w;
    open_world(&w);
    fill_block(&w.a, 1, 5);
    expect_and_push(&w, 5);
    run_at(&w, 0);
    memset(fg_link_arena(w.b.link), 0, 64 * RIG_BLOCKS);
    fg_link_hub_kill(w.hub, "a", 1);
    cr_assert_eq(fg_link_push(w.a.link, w.a.peer, 6, 0, blocks, blocks, 1), FG_PEER_LOST);
    fg_link_abort(w.a.link, w.a.peer, 5);
    cr_assert_eq(w.b.fenced, 0);
    run_all(&w);
    cr_assert_eq(w.b.fenced, 1);
    cr_assert_eq(w.a.drained, 0, "the dead hear nothing");
    for (size_t i = 0; i < 64 * RIG_BLOCKS; i++) {
        cr_assert_eq(((uint8_t *)fg_link_arena(w.b.link))[i], 0);
    }
    close_world(&w);
}

Test(link_mem, a_lost_but_living_peer_keeps_its_tickets_quarantined)
{
    world w;
    open_world(&w);
    expect_and_push(&w, 5);
    fg_link_lose_peer(w.b.link, w.b.peer);
    turn_both(&w.a, &w.b, 100);
    cr_assert_eq(w.b.fenced, 0);
    cr_assert_eq(tickets_open(&w.b), 1);
    uint32_t old_peer = w.b.peer;
    introduce(&w.a, "a", &w.b, "b"); /* it comes back under a new index before it has answered */
    cr_assert(w.b.peer != old_peer);
    run_all(&w);
    cr_assert_eq(w.b.fenced, 1);
    cr_assert_null(w.b.link->peers[old_peer]);
    expect_and_push(&w, 6);
    run_all(&w);
    fg_link_fence(w.b.link, 6);
    run_all(&w);
    cr_assert_eq(w.b.fenced, 2);
    close_world(&w);
}

Test(link_mem, what_is_dropped_breaks_the_connection)
{
    world w;
    open_world(&w);
    expect_and_push(&w, 5);
    held first = take(&w, 0);
    first.drop(first.arg);
    run_all(&w);
    cr_assert_eq(w.a.drained, 1);
    cr_assert_eq(w.a.why, FG_PEER_LOST);
    cr_assert_eq(fg_link_push(w.a.link, w.a.peer, 6, 0, blocks, blocks, 1), FG_PEER_LOST);
    close_world(&w);
}

Test(link_mem, the_same_name_and_epoch_cannot_be_open_twice)
{
    world w;
    fg_error err;
    end e = { 0 };
    open_world(&w);
    fg_link_options options = rig_options(&e, "shm", 64);
    cr_assert_eq(fg_link_open_mem(w.hub, "a", 1, &options, &e.link, &err), FG_BAD_INPUT);
    cr_assert_eq(fg_link_open_mem(w.hub, "a", 2, &options, &e.link, &err), FG_OK);
    fg_link_close(e.link);
    close_world(&w);
}

/* Random order, random calls, a random end: no crash, no leak, and every ticket ends. */
Test(link_mem, holds_in_any_order)
{
    for (uint64_t seed = 1; seed <= 300; seed++) {
        fg_rng rng = { .state = seed };
        world w;
        open_world(&w);
        for (uint64_t step = 0; step < 60; step++) {
            uint64_t ticket = 1 + fg_rng_below(&rng, 4);
            uint64_t digests[3] = { 0 };
            fg_error err;
            fg_link_commit commit = { .ticket = ticket, .block_count = 3, .digests = digests };
            switch (fg_rng_below(&rng, 8)) {
            case 0:
                fg_link_expect(w.b.link, w.b.peer, ticket, blocks, 3, &err);
                break;
            case 1:
                fg_link_push(w.a.link, w.a.peer, ticket, 0, blocks, blocks, 3);
                break;
            case 2:
                fg_link_commit_ticket(w.a.link, w.a.peer, &commit);
                break;
            case 3:
                fg_link_fence(w.b.link, ticket);
                break;
            case 4:
                fg_link_abort(w.a.link, w.a.peer, ticket);
                break;
            case 5:
                fg_link_answer(w.b.link, ticket, blocks, (uint32_t)fg_rng_below(&rng, 2));
                break;
            default:
                if (w.count > 0) {
                    run_at(&w, (int)fg_rng_below(&rng, (uint64_t)w.count));
                }
                break;
            }
        }
        switch (fg_rng_below(&rng, 3)) {
        case 0:
            fg_link_hub_kill(w.hub, "a", 1);
            run_all(&w);
            for (uint64_t ticket = 1; ticket <= 4; ticket++) { /* committed ones await an answer */
                fg_link_answer(w.b.link, ticket, NULL, 0);
            }
            run_all(&w);
            cr_assert_eq(tickets_open(&w.b), 0, "seed %llu", (unsigned long long)seed);
            break;
        case 1:
            for (uint64_t ticket = 1; ticket <= 4; ticket++) {
                fg_link_fence(w.b.link, ticket);
                fg_link_abort(w.a.link, w.a.peer, ticket);
            }
            run_all(&w);
            cr_assert_eq(tickets_open(&w.a) + tickets_open(&w.b), 0, "seed %llu",
                         (unsigned long long)seed);
            break;
        default:
            break; /* closed with everything on its way */
        }
        close_world(&w);
    }
}
