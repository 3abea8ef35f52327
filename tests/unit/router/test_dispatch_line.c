/*
 * What a request meets since workers have lines and caches of their own: its place in the queue, how much
 * is placed on a worker, hand-overs of what is missing only, and what is told about it afterwards.
 */
#include <stdio.h>
#include <string.h>

#include "common/base/json.h"
#include "tests/support/test.h"
#include "tests/unit/router/dispatch_bench.h"

/* A bench with a longer queue. */
static void open_long(bench *b, fg_trace *trace)
{
    fg_dispatch_options options = bench_options(b);
    options.limits.queued_max = 20;
    options.trace = trace;
    bench_open_with(b, &options);
}

static void report_load(bench *b, uint32_t peer)
{
    static uint64_t sequence;
    bench_give(b, peer, &(fg_msg){ .kind = FG_MSG_LOAD, .load = { .sequence = ++sequence } });
}

/* Seconds in which the workers that are here report. */
static void wait_s(bench *b, uint32_t seconds)
{
    for (uint32_t i = 0; i < 2 * seconds; i++) {
        bench_pass(b, 500);
        fg_arena_reset(b->inbox); /* what was sent before is not looked at again */
        for (uint32_t w = 0; w < fg_registry_count(fg_dispatch_registry(b->dispatch)); w++) {
            report_load(b, fg_registry_at(fg_dispatch_registry(b->dispatch), w)->peer);
        }
    }
}

static const fg_reg_worker *worker_of(const bench *b, const char *name)
{
    return fg_registry_by_name(fg_dispatch_registry(b->dispatch), name);
}

static fg_msg done_of(uint64_t id, fg_finish finish, uint32_t generated)
{
    fg_msg msg = { .kind = FG_MSG_DONE, .request = id, .attempt = 1 };
    msg.done.finish = finish;
    msg.done.text = "";
    msg.done.generated = generated;
    return msg;
}

/* ---- the order of the queue ---- */

static const struct {
    const char *name;
    struct {
        uint32_t at_s;
        int32_t priority;
    } jobs[4];
    uint32_t count;
    uint32_t order[4];
} lines[] = {
    { "one class: first come, first served", { { 0, 0 }, { 0, 0 }, { 1, 0 } }, 3, { 0, 1, 2 } },
    { "one class of low ones", { { 0, 1 }, { 1, 1 }, { 2, 1 } }, 3, { 0, 1, 2 } },
    { "better classes go first", { { 0, 1 }, { 1, 0 }, { 2, -1 } }, 3, { 2, 1, 0 } },
    { "and into the middle", { { 0, -1 }, { 0, 1 }, { 1, 0 }, { 2, -1 } }, 4, { 0, 3, 2, 1 } },
    { "9 s do not make up for a class", { { 0, 1 }, { 9, 0 } }, 2, { 1, 0 } },
    { "11 s do", { { 0, 1 }, { 11, 0 } }, 2, { 0, 1 } },
    { "21 s make up for two", { { 0, 1 }, { 21, -1 } }, 2, { 0, 1 } },
    { "of equals the older", { { 0, 0 }, { 10, -1 } }, 2, { 0, 1 } },
};

static void run_line(size_t row)
{
    bench b;
    uint64_t first, ids[4];
    uint32_t now_s = 0;
    open_long(&b, NULL);
    bench_join_pair(&b);
    /* Each takes the whole decode worker, so that they leave the queue one by one. */
    cr_assert_eq(bench_start(&b, 37, 3, &first), FG_OK);
    for (uint32_t i = 0; i < lines[row].count; i++) {
        wait_s(&b, lines[row].jobs[i].at_s - now_s);
        now_s = lines[row].jobs[i].at_s;
        b.params.priority = lines[row].jobs[i].priority;
        cr_assert_eq(bench_start(&b, 37, 3, &ids[i]), FG_OK);
    }
    fg_dispatch_cancel(b.dispatch, first, FG_FINISH_CANCELLED, NULL);
    for (uint32_t i = 0; i < lines[row].count; i++) {
        uint64_t want = ids[lines[row].order[i]];
        b.sent_count = 0;
        fg_dispatch_tick(b.dispatch);
        fg_dispatch_check(b.dispatch);
        const fg_msg *reserve = bench_sent(&b, D, FG_MSG_RESERVE);
        cr_assert(reserve != NULL && reserve->request == want, "%s: place %u", lines[row].name, i);
        fg_dispatch_cancel(b.dispatch, want, FG_FINISH_CANCELLED, NULL);
    }
    bench_close(&b);
}

Test(dispatch_line, the_queue_is_in_order_of_class_and_waiting)
{
    for (size_t row = 0; row < sizeof lines / sizeof *lines; row++) {
        run_line(row);
    }
}

Test(dispatch_line, who_comes_back_takes_its_old_place)
{
    bench b;
    uint64_t a, behind, high;
    open_long(&b, NULL);
    bench_join_pair(&b);
    cr_assert_eq(bench_start(&b, 37, 3, &a), FG_OK);
    wait_s(&b, 1);
    cr_assert_eq(bench_start(&b, 37, 3, &behind), FG_OK);
    b.params.priority = FG_PRIORITY_HIGH;
    cr_assert_eq(bench_start(&b, 37, 3, &high), FG_OK);
    bench_give(&b, D, &(fg_msg){ .kind = FG_MSG_TICKET, .request = a, .attempt = 1 }); /* busy */
    const uint64_t order[] = { high, a, behind };
    for (uint32_t i = 0; i < 3; i++) {
        b.sent_count = 0;
        report_load(&b, D);
        fg_dispatch_tick(b.dispatch);
        const fg_msg *reserve = bench_sent(&b, D, FG_MSG_RESERVE);
        cr_assert(reserve != NULL && reserve->request == order[i], "place %u", i);
        cr_assert_eq(reserve->attempt, order[i] == a ? 2u : 1u);
        fg_dispatch_cancel(b.dispatch, order[i], FG_FINISH_CANCELLED, NULL);
    }
    bench_close(&b);
}

Test(dispatch_line, a_lost_workers_request_takes_its_old_place)
{
    bench b;
    uint64_t a, behind;
    open_long(&b, NULL);
    bench_join_pair(&b);
    cr_assert_eq(bench_start(&b, 37, 3, &a), FG_OK);
    bench_pass(&b, 100);
    cr_assert_eq(bench_start(&b, 37, 3, &behind), FG_OK);
    fg_dispatch_on_down(b.dispatch, D);
    b.sent_count = 0;
    bench_join(&b, 13, "d2", FG_ROLE_DECODE);
    const fg_msg *reserve = bench_sent(&b, 13, FG_MSG_RESERVE);
    cr_assert(reserve != NULL && reserve->request == a && reserve->attempt == 2);
    cr_assert_eq(bench_sent_count(&b, 13, FG_MSG_RESERVE), 1u);
    bench_close(&b);
}

/* Lets what is in the way go, and then one after the other; the order in which they reach D. */
static void expect_turns(bench *b, uint64_t in_the_way, const uint64_t *order, uint32_t count)
{
    fg_dispatch_cancel(b->dispatch, in_the_way, FG_FINISH_CANCELLED, NULL);
    for (uint32_t i = 0; i < count; i++) {
        b->sent_count = 0;
        fg_dispatch_tick(b->dispatch);
        fg_dispatch_check(b->dispatch);
        const fg_msg *reserve = bench_sent(b, D, FG_MSG_RESERVE);
        cr_assert(reserve != NULL && reserve->request == order[i], "place %u", i);
        fg_dispatch_cancel(b->dispatch, order[i], FG_FINISH_CANCELLED, NULL);
    }
}

Test(dispatch_line, tenants_take_turns)
{
    bench b;
    uint64_t first, ids[4];
    open_long(&b, NULL);
    bench_join_pair(&b);
    cr_assert_eq(bench_start(&b, 37, 3, &first), FG_OK);
    for (uint32_t i = 0; i < 4; i++) {
        b.tenant = i < 3 ? 1 : 2;
        cr_assert_eq(bench_start(&b, 37, 3, &ids[i]), FG_OK);
    }
    expect_turns(&b, first, (uint64_t[]){ ids[0], ids[3], ids[1], ids[2] }, 4);
    bench_close(&b);
}

Test(dispatch_line, a_tenant_has_no_more_in_the_queue_than_its_cap)
{
    bench b;
    uint64_t id;
    fg_dispatch_options options = bench_options(&b);
    options.limits.queued_max = 20;
    options.limits.tenant_queued_max = 2;
    bench_open_with(&b, &options);
    bench_join_pair(&b);
    cr_assert_eq(bench_start(&b, 37, 3, &id), FG_OK); /* runs */
    b.tenant = 1;
    cr_assert(bench_start(&b, 37, 3, &id) == FG_OK && bench_start(&b, 37, 3, &id) == FG_OK);
    cr_assert_eq(bench_start(&b, 37, 3, &id), FG_AGAIN);
    cr_assert(fg_dispatch_retry_after(b.dispatch) >= 1);
    b.tenant = 2;
    cr_assert_eq(bench_start(&b, 37, 3, &id), FG_OK);
    bench_close(&b);
}

Test(dispatch_line, a_small_one_is_placed_past_a_huge_one_where_it_may)
{
    for (uint32_t ahead = 0; ahead < 2; ahead++) {
        bench b;
        uint64_t half, huge, small;
        fg_dispatch_options options = bench_options(&b);
        options.queue_ahead = ahead;
        bench_open_with(&b, &options);
        bench_join_pair(&b);
        cr_assert_eq(bench_start(&b, 20, 3, &half), FG_OK);
        cr_assert_eq(bench_start(&b, 37, 3, &huge), FG_OK);
        cr_assert_eq(bench_start(&b, 5, 3, &small), FG_OK);
        cr_assert_eq(bench_sent_count(&b, D, FG_MSG_RESERVE), 1 + ahead);
        fg_dispatch_cancel(b.dispatch, half, FG_FINISH_CANCELLED, NULL);
        fg_dispatch_cancel(b.dispatch, small, FG_FINISH_CANCELLED, NULL);
        b.sent_count = 0;
        fg_dispatch_tick(b.dispatch);
        const fg_msg *reserve = bench_sent(&b, D, FG_MSG_RESERVE);
        cr_assert(reserve != NULL && reserve->request == huge);
        bench_close(&b);
    }
}

/* ---- how much is placed ---- */

Test(dispatch_line, a_decode_worker_gets_more_than_it_could_hold_at_the_end)
{
    bench b;
    uint64_t id;
    open_long(&b, NULL);
    bench_join_pair(&b);
    for (int i = 0; i < 4; i++) {
        /* 3 blocks of prompt, 10 in the end: the third begins in the last block of the 10. */
        cr_assert_eq(bench_start(&b, 9, 31, &id), FG_OK);
    }
    cr_assert_eq(bench_sent_count(&b, D, FG_MSG_RESERVE), 3u);
    bench_close(&b);
}

Test(dispatch_line, a_prompt_that_fills_the_worker_is_placed_when_it_is_empty)
{
    bench b;
    uint64_t id;
    open_long(&b, NULL);
    bench_join_pair(&b);
    cr_assert_eq(bench_start(&b, 39, 1, &id), FG_OK); /* 10 of 10 blocks, and none for an answer */
    cr_assert_eq(bench_sent_count(&b, D, FG_MSG_RESERVE), 1u);
    bench_close(&b);
}

Test(dispatch_line, one_worker_for_both_gets_a_batch_and_a_line_as_long)
{
    bench b;
    uint64_t ids[10];
    open_long(&b, NULL);
    bench_join(&b, D, "both", FG_ROLE_PREFILL | FG_ROLE_DECODE);
    for (int i = 0; i < 10; i++) {
        cr_assert_eq(bench_start(&b, 30, 10, &ids[i]), FG_OK);
    }
    cr_assert_eq(bench_sent_count(&b, D, FG_MSG_PREFILL), 8u);
    fg_msg done = done_of(ids[3], FG_FINISH_LENGTH, 0);
    bench_give(&b, D, &done);
    cr_assert(bench_sent_count(&b, D, FG_MSG_PREFILL) == 9u && b.end_count == 1);
    bench_close(&b);
}

Test(dispatch_line, a_busy_worker_is_asked_once_after_each_report)
{
    bench b;
    uint64_t id, last = 0;
    open_long(&b, NULL);
    bench_join_pair(&b);
    for (int i = 0; i < 5; i++) {
        cr_assert_eq(bench_start(&b, 37, 3, &id), FG_OK);
    }
    for (uint32_t round = 1; round <= 20; round++) {
        const fg_msg *reserve = bench_sent(&b, D, FG_MSG_RESERVE);
        cr_assert(bench_sent_count(&b, D, FG_MSG_RESERVE) == 1 && reserve->attempt == round);
        cr_assert(last == 0 || reserve->request == last, "the head of the queue stays the head");
        last = reserve->request;
        fg_msg busy = { .kind = FG_MSG_TICKET, .request = last, .attempt = round };
        b.sent_count = 0;
        bench_give(&b, D, &busy);
        for (int i = 0; i < 5; i++) { /* nothing but a report of that worker makes it ask again */
            bench_pass(&b, 100);
            report_load(&b, P);
            bench_give(&b, D, &busy);
        }
        cr_assert_eq(bench_sent_count(&b, D, FG_MSG_RESERVE), 0u, "round %u", round);
        report_load(&b, D);
    }
    bench_close(&b);
}

Test(dispatch_line, there_is_time_to_wait_in_a_workers_line_and_to_be_preempted)
{
    bench b;
    uint64_t id;
    open_long(&b, NULL);
    bench_join(&b, D, "both", FG_ROLE_PREFILL | FG_ROLE_DECODE);
    cr_assert_eq(bench_start(&b, 5, 10, &id), FG_OK);
    wait_s(&b, 590); /* prefilling, for all that the router knows */
    fg_msg first = { .kind = FG_MSG_FIRST, .request = id, .attempt = 1 };
    bench_give(&b, D, &first);
    wait_s(&b, 590);
    bench_token(&b, id, 1, 21);
    cr_assert(b.token_count == 2 && b.end_count == 0);
    wait_s(&b, 601);
    cr_assert(b.end_count == 1 && b.status == FG_TIMEOUT);
    bench_close(&b);
}

/* ---- hand-over of what is missing ---- */

Test(dispatch_line, parameters_and_missing_blocks_reach_the_workers)
{
    bench b;
    uint64_t id;
    bench_open(&b);
    bench_join_pair(&b);
    b.params = (fg_wire_params){ .top_p = 1.0f,
                                 .priority = FG_PRIORITY_LOW,
                                 .cache_mode = FG_CACHE_FORCE,
                                 .salt_low = 5,
                                 .salt_high = 6,
                                 .family = 7 };
    cr_assert_eq(bench_start(&b, 11, 3, &id), FG_OK);
    static const uint32_t blocks[] = { 8 };
    fg_msg ticket = { .kind = FG_MSG_TICKET, .request = id, .attempt = 1 };
    ticket.ticket.granted = true;
    ticket.ticket.ticket = 3;
    ticket.ticket.first_block = 2;
    ticket.ticket.blocks = blocks;
    ticket.ticket.block_count = 1;
    bench_give(&b, D, &ticket);
    const fg_msg *reserve = bench_sent(&b, D, FG_MSG_RESERVE);
    const fg_msg *prefill = bench_sent(&b, P, FG_MSG_PREFILL);
    cr_assert(reserve != NULL && prefill != NULL);
    cr_assert(prefill->prefill.token_count == 11, "the whole prompt goes there, for its own cache");
    cr_assert(prefill->prefill.first_block == 2 && prefill->prefill.block_count == 1);
    cr_assert_eq(prefill->prefill.blocks[0], 8u);
    const fg_wire_params *both[] = { &reserve->reserve.sampling, &prefill->prefill.sampling };
    for (int i = 0; i < 2; i++) {
        cr_assert(both[i]->priority == FG_PRIORITY_LOW && both[i]->cache_mode == FG_CACHE_FORCE);
        cr_assert(both[i]->salt_low == 5 && both[i]->salt_high == 6 && both[i]->family == 7);
    }
    bench_close(&b);
}

/* Placed on P and D, and D says that it needs nobody. */
static uint64_t start_local(bench *b)
{
    uint64_t id;
    bench_join_pair(b);
    cr_assert_eq(bench_start(b, 5, 3, &id), FG_OK);
    fg_msg ticket = { .kind = FG_MSG_TICKET, .request = id, .attempt = 1 };
    ticket.ticket.granted = true;
    ticket.ticket.local = true;
    ticket.ticket.first_block = 1;
    b->sent_count = 0;
    bench_give(b, D, &ticket);
    return id;
}

Test(dispatch_line, a_local_ticket_lets_the_prefill_worker_go)
{
    bench b;
    bench_open(&b);
    uint64_t id = start_local(&b);
    cr_assert_eq(b.sent_count, 0u, "nobody need hear of it");
    cr_assert(worker_of(&b, "p")->prefills == 0 && worker_of(&b, "p")->prefill_tokens == 0);
    bench_first(&b, id, 66); /* from P, whose business it is not any more */
    cr_assert_eq(b.token_count, 0u);
    fg_dispatch_on_down(b.dispatch, P);
    cr_assert_eq(b.end_count, 0u);
    fg_msg first = { .kind = FG_MSG_FIRST, .request = id, .attempt = 1 };
    first.first.id = 20;
    first.first.cached_tokens = 4;
    bench_give(&b, D, &first);
    fg_buf out;
    fg_buf_init(&out, 0);
    cr_assert(fg_dispatch_render_state(b.dispatch, &out));
    cr_assert_not_null(strstr(out.data, "\"state\":\"decoding\""), "%s", out.data);
    cr_assert_not_null(strstr(out.data, "\"prefill\":\"d\",\"decode\":\"d\""), "%s", out.data);
    fg_buf_deinit(&out);
    bench_token(&b, id, 1, 21);
    bench_done(&b, D, id, FG_FINISH_STOP, 2);
    cr_assert(b.token_count == 2 && b.end_count == 1 && b.finish == FG_FINISH_STOP);
    cr_assert_eq(b.report.cached_tokens, 4u);
    bench_close(&b);
}

Test(dispatch_line, a_local_request_is_retried_when_its_worker_goes)
{
    bench b;
    bench_open(&b);
    uint64_t id = start_local(&b);
    fg_dispatch_on_down(b.dispatch, D);
    b.sent_count = 0;
    bench_join(&b, 13, "d2", FG_ROLE_DECODE);
    const fg_msg *reserve = bench_sent(&b, 13, FG_MSG_RESERVE);
    cr_assert(reserve != NULL && reserve->request == id && reserve->attempt == 2);
    cr_assert_str_eq(reserve->reserve.writer.name, "p");
    bench_close(&b);
}

Test(dispatch_line, a_local_request_is_cancelled_at_one_place)
{
    bench b;
    bench_open(&b);
    uint64_t id = start_local(&b);
    fg_dispatch_cancel(b.dispatch, id, FG_FINISH_CANCELLED, NULL);
    cr_assert_eq(bench_sent_count(&b, D, FG_MSG_CANCEL), 1u);
    cr_assert_eq(bench_sent_count(&b, P, FG_MSG_CANCEL), 0u);
    bench_close(&b);
}

/* ---- the cache of the cluster ---- */

Test(dispatch_line, a_welcome_carries_the_key_of_the_caches)
{
    bench b;
    bench_open(&b);
    bench_join(&b, P, "p", FG_ROLE_PREFILL);
    const fg_msg *welcome = bench_sent(&b, P, FG_MSG_WELCOME);
    cr_assert(welcome != NULL && welcome->welcome.cache_key_low == 0xC0FFEE &&
              welcome->welcome.cache_key_high == 0xBEEF);
    cr_assert_null(bench_sent(&b, P, FG_MSG_CLEAR));
    bench_close(&b);
}

Test(dispatch_line, a_clear_reaches_everybody_and_who_was_away)
{
    bench b;
    uint64_t id;
    bench_open(&b);
    cr_assert_eq(fg_dispatch_clear_cache(b.dispatch), 0u);
    bench_join_pair(&b);
    cr_assert_eq(bench_start(&b, 5, 3, &id), FG_OK);
    cr_assert_eq(fg_dispatch_clear_cache(b.dispatch), 2u);
    cr_assert(bench_sent(&b, P, FG_MSG_CLEAR) != NULL && bench_sent(&b, D, FG_MSG_CLEAR) != NULL);
    cr_assert_eq(b.end_count, 0, "what runs is not touched");
    b.sent_count = 0;
    bench_join(&b, 13, "d2", FG_ROLE_DECODE);
    cr_assert(b.sent_count >= 2 && b.sent[0].msg.kind == FG_MSG_WELCOME &&
                  b.sent[1].msg.kind == FG_MSG_CLEAR,
              "it may have a cache from before");
    b.refuse_peer = P;
    cr_assert_eq(fg_dispatch_clear_cache(b.dispatch), 2u);
    fg_dispatch_tick(b.dispatch);
    cr_assert_null(worker_of(&b, "p"), "who cannot be told has to join again");
    bench_close(&b);
}

Test(dispatch_line, cache_numbers_are_rendered_by_worker_and_summed)
{
    bench b;
    fg_error err;
    bench_open(&b);
    bench_join_pair(&b);
    fg_msg load = { .kind = FG_MSG_LOAD };
    load.load = (fg_wire_load){ .total = 10,
                                .free = 4,
                                .cached = 3,
                                .held = 2,
                                .pinned = 1,
                                .sequence = 1,
                                .cache_query_tokens = 200,
                                .cache_hit_tokens = 50,
                                .evicted_blocks = 6,
                                .preemptions = 7,
                                .swapped_blocks = 8,
                                .restored_blocks = 9,
                                .tier_blocks = 5 };
    bench_give(&b, P, &load);
    fg_buf out;
    fg_buf_init(&out, 0);
    cr_assert(fg_dispatch_render_cache(b.dispatch, &out));
    fg_json *json = NULL;
    cr_assert_eq(fg_json_parse(out.data, out.size, &json, &err), FG_OK, "%s: %s", err.text,
                 out.data);
    fg_json_destroy(json);
    cr_assert_not_null(
        strstr(out.data,
               "{\"name\":\"p\",\"roles\":\"prefill\",\"blocks\":{\"total\":10,\"free\":4,"
               "\"cached\":3,\"held\":2,\"pinned\":1,\"quarantined\":0},\"query_tokens\":200,"
               "\"hit_tokens\":50,\"hit_rate\":0.2500,\"evicted_blocks\":6,\"preemptions\":7,"
               "\"swapped_blocks\":8,\"restored_blocks\":9,\"tier_blocks\":5}"),
        "%s", out.data);
    cr_assert_not_null(strstr(out.data, "\"query_tokens\":0,\"hit_tokens\":0,\"hit_rate\":0.0000"),
                       "%s", out.data);
    cr_assert_not_null(strstr(out.data, "\"total\":{\"blocks\":{\"total\":20,\"free\":14,"), "%s",
                       out.data);
    fg_buf_deinit(&out);
    bench_close(&b);
}

/* ---- what is told afterwards ---- */

/* Takes one request through both workers: 100 ms reserved, 200 prefilling, 300 transferring, 400
 * decoding. */
static void run_timed(bench *b, uint64_t id)
{
    bench_pass(b, 100);
    bench_ticket(b, id, 1);
    bench_pass(b, 200);
    fg_msg first = { .kind = FG_MSG_FIRST, .request = id, .attempt = 1 };
    first.first.id = 20;
    first.first.queue_ns = 11;
    first.first.compute_ns = 12;
    first.first.cached_tokens = 4;
    first.first.chunks = 2;
    bench_give(b, P, &first);
    bench_pass(b, 300);
    bench_give(b, P, &(fg_msg){ .kind = FG_MSG_PUSHED, .request = id, .attempt = 1 });
    fg_msg done = done_of(id, FG_FINISH_HANDED_OVER, 0);
    done.done.preemptions = 1;
    bench_give(b, P, &done);
    bench_pass(b, 400);
    bench_token(b, id, 1, 21);
    bench_token(b, id, 2, 22);
    done = done_of(id, FG_FINISH_LENGTH, 3);
    done.done.preemptions = 2;
    bench_give(b, D, &done);
}

static uint32_t occurrences(const char *text, const char *what)
{
    uint32_t count = 0;
    for (const char *at = text; (at = strstr(at, what)) != NULL; at += strlen(what)) {
        count++;
    }
    return count;
}

Test(dispatch_line, the_owner_hears_how_it_went)
{
    bench b;
    uint64_t id;
    open_long(&b, NULL);
    bench_join_pair(&b);
    cr_assert_eq(bench_start(&b, 5, 3, &id), FG_OK);
    run_timed(&b, id);
    const fg_dispatch_report *r = &b.report;
    cr_assert(b.end_count == 1 && b.finish == FG_FINISH_LENGTH);
    cr_assert(r->prompt_tokens == 5 && r->cached_tokens == 4 && r->chunks == 2);
    cr_assert(r->preemptions == 3 && r->attempts == 1);
    cr_assert(r->worker_queue_ns == 11 && r->worker_compute_ns == 12);
    cr_assert(r->queued_ns == 0 && r->reserved_ns == 100000000 && r->prefilling_ns == 200000000);
    cr_assert(r->reserved && r->transferred);
    cr_assert(r->transferring_ns == 300000000 && r->decoding_ns == 400000000);
    cr_assert(r->first_token_ns == 300000000 && r->total_ns == 1000000000);
    fg_buf out;
    fg_buf_init(&out, 0);
    cr_assert(fg_dispatch_render_state(b.dispatch, &out));
    cr_assert_not_null(
        strstr(out.data, "\"cached_tokens\":4,\"pulled_blocks\":0,\"chunks\":2,\"preemptions\":3"),
        "%s", out.data);
    fg_buf_deinit(&out);
    bench_close(&b);
}

Test(dispatch_line, a_request_that_never_ran_has_a_report_too)
{
    bench b;
    uint64_t id;
    open_long(&b, NULL);
    bench_join_pair(&b);
    cr_assert_eq(bench_start(&b, 37, 3, &id), FG_OK);
    cr_assert_eq(bench_start(&b, 37, 3, &id), FG_OK);
    bench_pass(&b, 100);
    fg_dispatch_abort_all(b.dispatch, "going");
    cr_assert(b.end_count == 2 && b.report.queued_ns == 100000000);
    cr_assert(b.report.first_token_ns == 0 && b.report.attempts == 1 && b.report.chunks == 0);
    bench_close(&b);
}

Test(dispatch_line, a_worker_cannot_claim_more_cached_tokens_than_the_prompt_has)
{
    bench b;
    uint64_t id;
    open_long(&b, NULL);
    bench_join_pair(&b);
    cr_assert_eq(bench_start(&b, 5, 1, &id), FG_OK);
    bench_ticket(&b, id, 1);
    fg_msg first = { .kind = FG_MSG_FIRST, .request = id, .attempt = 1 };
    first.first.cached_tokens = 1000;
    bench_give(&b, P, &first);
    bench_done(&b, P, id, FG_FINISH_LENGTH, 1);
    cr_assert(b.end_count == 1 && b.report.cached_tokens == 5);
    bench_close(&b);
}

Test(dispatch_line, every_stretch_of_a_life_is_in_the_trace)
{
    bench b;
    uint64_t id, again;
    fg_trace *trace = fg_trace_create("router", 4, 100);
    open_long(&b, trace);
    bench_join_pair(&b);
    cr_assert_eq(bench_start(&b, 5, 3, &id), FG_OK);
    run_timed(&b, id);
    fg_buf out;
    fg_buf_init(&out, 0);
    cr_assert(fg_trace_render(trace, 1, &out));
    static const char *const states[] = { "queued", "reserved", "prefilling", "transferring",
                                          "decoding" };
    for (size_t i = 0; i < sizeof states / sizeof *states; i++) {
        char name[40];
        snprintf(name, sizeof name, "\"name\":\"%s\"", states[i]);
        cr_assert_eq(occurrences(out.data, name), 1u, "%s in %s", name, out.data);
    }
    cr_assert_eq(occurrences(out.data, "\"tokens\":1}"), 2u, "5 less 4 computed; the first token");
    cr_assert_eq(occurrences(out.data, "\"tokens\":2}"), 1u, "two while decoding");
    cr_assert_eq(occurrences(out.data, "\"attempt\":2"), 0u);
    /* A second attempt has stretches of its own. */
    cr_assert_eq(bench_start(&b, 5, 3, &again), FG_OK);
    fg_dispatch_on_down(b.dispatch, D);
    bench_join(&b, 13, "d2", FG_ROLE_DECODE);
    fg_dispatch_cancel(b.dispatch, again, FG_FINISH_CANCELLED, NULL);
    fg_buf_clear(&out);
    cr_assert(fg_trace_render(trace, 1, &out));
    cr_assert_eq(occurrences(out.data, "\"name\":\"reserved\""), 3u, "%s", out.data);
    cr_assert_eq(occurrences(out.data, "\"attempt\":2"), 2u, "%s", out.data);
    fg_buf_deinit(&out);
    bench_close(&b);
    fg_trace_destroy(trace);
}

/* ---- ends ---- */

Test(dispatch_line, what_a_worker_refuses_is_not_tried_again)
{
    bench b;
    uint64_t id;
    bench_open(&b);
    bench_join_pair(&b);
    cr_assert_eq(bench_start(&b, 5, 3, &id), FG_OK);
    bench_ticket(&b, id, 1);
    b.sent_count = 0;
    fg_msg done = done_of(id, FG_FINISH_ERROR, 0);
    done.done.refused = true;
    done.done.text = "prefix cache: no block of this prompt is cached";
    bench_give(&b, P, &done);
    cr_assert(b.end_count == 1 && b.finish == FG_FINISH_ERROR && b.status == FG_BAD_INPUT);
    cr_assert_str_eq(b.text, done.done.text);
    cr_assert_null(bench_sent(&b, D, FG_MSG_RESERVE));
    cr_assert_not_null(bench_sent(&b, D, FG_MSG_CANCEL), "its ticket is of no use");
    bench_close(&b);
}

Test(dispatch_line, what_the_model_breaks_at_is_not_tried_again)
{
    for (uint32_t seen = 0; seen < 2; seen++) {
        bench b;
        uint64_t id;
        bench_open(&b);
        bench_join_pair(&b);
        cr_assert_eq(bench_start(&b, 5, 3, &id), FG_OK);
        bench_ticket(&b, id, 1);
        if (seen > 0) {
            bench_first(&b, id, 7);
        }
        b.sent_count = 0;
        fg_msg done = done_of(id, FG_FINISH_ERROR, 0);
        done.done.broken = true;
        done.done.text = "the model's output is not a number";
        bench_give(&b, seen > 0 ? D : P, &done);
        cr_assert(b.end_count == 1 && b.finish == FG_FINISH_ERROR && b.status == FG_BROKEN);
        cr_assert_str_eq(b.text, done.done.text);
        cr_assert_null(bench_sent(&b, D, FG_MSG_RESERVE));
        cr_assert_not_null(bench_sent(&b, seen > 0 ? P : D, FG_MSG_CANCEL), "the other one stops");
        bench_close(&b);
    }
}

Test(dispatch_line, a_refusal_may_be_the_answer_to_a_reserve)
{
    bench b;
    uint64_t id;
    bench_open(&b);
    bench_join_pair(&b);
    cr_assert_eq(bench_start(&b, 5, 3, &id), FG_OK);
    fg_msg done = done_of(id, FG_FINISH_ERROR, 0);
    done.done.refused = true;
    bench_give(&b, D, &done);
    cr_assert(b.end_count == 1 && b.status == FG_BAD_INPUT && b.text[0] != '\0');
    cr_assert_eq(b.report.attempts, 1u);
    bench_close(&b);
}

Test(dispatch_line, tokens_before_the_beginning_are_dropped)
{
    bench b;
    uint64_t id;
    bench_open(&b);
    bench_join_pair(&b);
    cr_assert_eq(bench_start(&b, 5, 3, &id), FG_OK);
    fg_wire_token tokens[] = { { .request = id, .attempt = 1, .index = 0, .id = 4 },
                               { .request = id, .attempt = 1, .index = 1, .id = 5 } };
    fg_msg msg = { .kind = FG_MSG_TOKENS };
    msg.tokens.tokens = tokens;
    msg.tokens.count = 2;
    bench_give(&b, D, &msg);
    cr_assert_eq(b.token_count, 0u, "a decode worker that only holds blocks has nothing to say");
    bench_done(&b, D, id, FG_FINISH_LENGTH, 2);
    cr_assert_eq(b.end_count, 0u);
    bench_close(&b);
}

Test(dispatch_line, an_end_before_the_beginning_is_a_failure_of_that_worker)
{
    static const fg_finish ends[] = { FG_FINISH_STOP, FG_FINISH_LENGTH, FG_FINISH_HANDED_OVER };
    for (size_t i = 0; i < 3; i++) {
        for (uint32_t peer = P; peer <= D; peer++) {
            bench b;
            uint64_t id;
            bench_open(&b);
            bench_join_pair(&b);
            cr_assert_eq(bench_start(&b, 5, 3, &id), FG_OK);
            b.sent_count = 0;
            bench_done(&b, peer, id, ends[i], 0);
            const fg_msg *reserve = bench_sent(&b, D, FG_MSG_RESERVE);
            cr_assert(reserve != NULL && reserve->attempt == 2 && b.end_count == 0);
            bench_close(&b);
        }
    }
}

/* A pair is asked late only where decode's room is short: what idles elsewhere is nobody's. */
Test(dispatch_line, requests_are_held_back_where_room_is_short)
{
    static const struct {
        const char *name;
        uint32_t max_seqs, block_count, reserved;
    } cases[] = { { "plenty", 64, 1000, 6 },
                  { "few places", 8, 1000, 6 },
                  { "fewer", 4, 1000, 3 },
                  { "few blocks", 64, 26, 4 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bench b;
        bench_open(&b);
        fg_dispatch_options options = bench_options(&b);
        options.place.split = FG_PLACE_ALWAYS;
        options.limits.queued_max = options.limits.live_max = 100;
        bench_close(&b);
        bench_open_with(&b, &options);
        for (uint32_t peer = P; peer == P || peer == D; peer = peer == P ? D : UINT32_MAX) {
            fg_msg msg = { .kind = FG_MSG_HELLO };
            msg.hello =
                bench_hello(peer == P ? "p" : "d", peer == P ? FG_ROLE_PREFILL : FG_ROLE_DECODE);
            msg.hello.max_seqs = peer == P ? 64 : cases[i].max_seqs;
            msg.hello.block_count = peer == P ? 1000 : cases[i].block_count;
            msg.hello.speed.prefill_ns_per_token = 100000000;
            fg_dispatch_on_up(b.dispatch, peer, peer == P ? "p#1" : "d#1");
            bench_give(&b, peer, &msg);
        }
        b.sent_count = 0;
        uint64_t ids[6];
        for (uint32_t k = 0; k < 6; k++) {
            cr_assert_eq(bench_start(&b, 16, 3, &ids[k]), FG_OK);
        }
        fg_dispatch_stats stats;
        fg_dispatch_stats_get(b.dispatch, &stats);
        cr_assert_eq(bench_sent_count(&b, D, FG_MSG_RESERVE), cases[i].reserved, "%s: %u",
                     cases[i].name, bench_sent_count(&b, D, FG_MSG_RESERVE));
        cr_assert_eq(stats.held > 0, cases[i].reserved < 6, "%s", cases[i].name);
        bench_close(&b);
    }
}
