#include "router/dispatch.h"

#include <string.h>

#include "common/base/fault.h"
#include "common/base/json.h"
#include "tests/support/test.h"
#include "tests/unit/router/dispatch_bench.h"

Test(dispatch, is_ready_only_with_a_worker_for_each_phase)
{
    bench b;
    uint64_t id;
    bench_open(&b);
    cr_assert(!fg_dispatch_ready(b.dispatch));
    cr_assert_eq(bench_start(&b, 5, 3, &id), FG_PEER_LOST);
    bench_join(&b, P, "p", FG_ROLE_PREFILL);
    cr_assert(!fg_dispatch_ready(b.dispatch));
    bench_join(&b, D, "d", FG_ROLE_DECODE);
    cr_assert(fg_dispatch_ready(b.dispatch));
    bench_give(&b, D, &(fg_msg){ .kind = FG_MSG_DRAIN });
    cr_assert(!fg_dispatch_ready(b.dispatch));
    bench_close(&b);
}

Test(dispatch, nobody_joins_under_a_name_that_is_not_its_connections)
{
    bench b;
    bench_open(&b);
    bench_join_pair(&b);
    fg_dispatch_on_up(b.dispatch, 12, "thief#1");
    fg_msg msg = { .kind = FG_MSG_HELLO };
    msg.hello = bench_hello("d2", FG_ROLE_DECODE);
    bench_give(&b, 12, &msg);
    cr_assert_not_null(bench_sent(&b, 12, FG_MSG_REFUSE));
    cr_assert_eq(fg_registry_count(fg_dispatch_registry(b.dispatch)), 2u);
    bench_close(&b);
}

Test(dispatch, waits_for_the_named_workers_once)
{
    bench b;
    const char *const names[] = { "p", "p2" };
    fg_dispatch_options options = bench_options(&b);
    options.wait_for_prefill = names;
    options.wait_for_prefill_count = 2;
    bench_open_with(&b, &options);
    bench_join_pair(&b);
    fg_dispatch_tick(b.dispatch);
    cr_assert(!fg_dispatch_ready(b.dispatch));
    bench_join(&b, 12, "p2", FG_ROLE_PREFILL);
    cr_assert(fg_dispatch_ready(b.dispatch), "from the moment that the last one has joined");
    fg_dispatch_on_down(b.dispatch, 12);
    fg_dispatch_tick(b.dispatch);
    cr_assert(fg_dispatch_ready(b.dispatch), "one prefill worker is enough later on");
    bench_close(&b);
}

Test(dispatch, nobody_knows_how_many_fit_while_a_worker_that_is_waited_for_is_away)
{
    bench b;
    const char *const names[] = { "p" };
    static const uint32_t tokens[5] = { 1, 2, 3, 4, 5 };
    const fg_dispatch_job job = { .tokens = tokens, .token_count = 5 };
    fg_dispatch_options options = bench_options(&b);
    options.wait_for_prefill = names;
    options.wait_for_prefill_count = 1;
    bench_open_with(&b, &options);
    cr_assert_eq(fg_dispatch_at_once(b.dispatch, &job), UINT64_MAX);
    bench_join_pair(&b);
    uint64_t most = fg_dispatch_at_once(b.dispatch, &job);
    cr_assert(most > 0 && most < UINT64_MAX);
    fg_dispatch_on_down(b.dispatch, P);
    fg_dispatch_tick(b.dispatch);
    cr_assert_eq(fg_dispatch_at_once(b.dispatch, &job), UINT64_MAX);
    bench_close(&b);
}

Test(dispatch, takes_a_request_through_both_workers)
{
    bench b;
    uint64_t id;
    bench_open(&b);
    bench_join_pair(&b);
    cr_assert_eq(bench_start(&b, 5, 3, &id), FG_OK);
    cr_assert_not_null(bench_sent(&b, D, FG_MSG_RESERVE));
    cr_assert_null(bench_sent(&b, P, FG_MSG_PREFILL));
    bench_ticket(&b, id, 1);
    const fg_msg *prefill = bench_sent(&b, P, FG_MSG_PREFILL);
    cr_assert(prefill != NULL && prefill->prefill.has_ticket && prefill->prefill.ticket == 99);
    cr_assert_str_eq(prefill->prefill.target.name, "d");
    /* Decode's second token and its end overtake prefill's first. */
    bench_token(&b, id, 1, 21);
    bench_token(&b, id, 2, 22);
    bench_done(&b, D, id, FG_FINISH_LENGTH, 3);
    cr_assert_eq(b.token_count, 0u);
    bench_first(&b, id, 20);
    cr_assert(b.token_count == 3 && b.tokens[0] == 20 && b.tokens[2] == 22);
    cr_assert(b.end_count == 1 && b.finish == FG_FINISH_LENGTH);
    cr_assert(b.report.reserved && b.report.transferred && b.report.transferring_ns == 0);
    bench_close(&b);
}

Test(dispatch, drops_doubles_strangers_and_old_attempts)
{
    bench b;
    uint64_t id;
    bench_open(&b);
    bench_join_pair(&b);
    bench_join(&b, 12, "other", FG_ROLE_DECODE);
    cr_assert_eq(bench_start(&b, 5, 3, &id), FG_OK);
    bench_ticket(&b, id, 2); /* another attempt */
    cr_assert_null(bench_sent(&b, P, FG_MSG_PREFILL));
    bench_ticket(&b, id, 1);
    bench_first(&b, id, 20);
    bench_first(&b, id, 66);
    bench_token(&b, id, 1, 21);
    bench_token(&b, id, 1, 66);
    bench_token(&b, id, 0, 66);
    fg_wire_token foreign = { .request = id, .attempt = 1, .index = 2, .id = 66 };
    fg_msg msg = { .kind = FG_MSG_TOKENS, .tokens = { .tokens = &foreign, .count = 1 } };
    bench_give(&b, 12, &msg); /* not its request */
    cr_assert(b.token_count == 2 && b.tokens[0] == 20 && b.tokens[1] == 21);
    bench_close(&b);
}

/* Decode dies with a request of which two tokens, 20 and 21, were seen; one of the same name comes, and is
 * asked for it again. */
static uint64_t lose_decode(bench *b)
{
    uint64_t id;
    bench_open(b);
    bench_join_pair(b);
    cr_assert_eq(bench_start(b, 5, 4, &id), FG_OK);
    bench_ticket(b, id, 1);
    bench_first_of(b, id, 1, 20, 120);
    bench_token_of(b, id, 1, 1, 21, 121);
    bench_token_of(b, id, 1, 3, 77, 177); /* never seen: one is missing before it */
    fg_dispatch_on_down(b->dispatch, D);
    cr_assert(b->end_count == 0 && b->token_count == 2, "%s", b->text);
    cr_assert_not_null(bench_sent(b, P, FG_MSG_PEER_LOST));
    cr_assert_not_null(bench_sent(b, P, FG_MSG_CANCEL));
    b->sent_count = 0;
    bench_join(b, D, "d", FG_ROLE_DECODE);
    const fg_msg *reserve = bench_sent(b, D, FG_MSG_RESERVE);
    cr_assert(reserve != NULL && reserve->request == id && reserve->attempt == 2);
    cr_assert(reserve->reserve.said_count == 2 && reserve->reserve.said[0] == 20 &&
                  reserve->reserve.said[1] == 21,
              "what was seen goes along");
    bench_ticket(b, id, 2);
    return id;
}

static const struct {
    const char *name;
    uint32_t second; /* what the second attempt says of the tokens that were seen */
    uint64_t first_digest;
    bool same;
} again_cases[] = {
    { "the same", 21, 120, true },
    { "another token", 22, 120, false },
    { "the same by another computation", 21, 999, false },
};

Test(dispatch, what_was_seen_is_said_again_and_must_be_the_same)
{
    for (size_t i = 0; i < sizeof again_cases / sizeof *again_cases; i++) {
        bench b;
        fg_dispatch_stats stats;
        const char *name = again_cases[i].name;
        uint64_t id = lose_decode(&b);
        bench_token_of(&b, id, 1, 2, 55, 155); /* of the first attempt */
        bench_first_of(&b, id, 2, 20, again_cases[i].first_digest);
        bench_token_of(&b, id, 2, 1, again_cases[i].second, 121);
        bench_token_of(&b, id, 2, 1, again_cases[i].second, 121); /* a double */
        if (!again_cases[i].same) {
            cr_assert(b.end_count == 1 && b.status == FG_BROKEN && b.token_count == 2, "%s", name);
            bench_close(&b);
            continue;
        }
        cr_assert(b.end_count == 0 && b.token_count == 2, "%s: %s", name, b.text);
        bench_token_of(&b, id, 2, 2, 22, 122);
        bench_token_of(&b, id, 2, 3, 23, 123);
        bench_done_of(&b, D, id, 2, FG_FINISH_LENGTH, 4);
        cr_assert(b.end_count == 1 && b.finish == FG_FINISH_LENGTH && b.token_count == 4);
        cr_assert(b.tokens[2] == 22 && b.tokens[3] == 23 && b.report.attempts == 2);
        fg_dispatch_stats_get(b.dispatch, &stats);
        cr_assert(stats.said_again == 2 && stats.retried == 1);
        bench_close(&b);
    }
}

/* Nobody waits for what was seen when all that is new has come. */
Test(dispatch, an_end_may_overtake_what_is_said_again)
{
    bench b;
    uint64_t id = lose_decode(&b);
    bench_token_of(&b, id, 2, 1, 21, 121);
    bench_token_of(&b, id, 2, 2, 22, 122);
    bench_done_of(&b, D, id, 2, FG_FINISH_LENGTH, 3);
    cr_assert(b.end_count == 1 && b.finish == FG_FINISH_LENGTH && b.token_count == 3);
    bench_first_of(&b, id, 2, 20, 120);
    bench_close(&b);
}

Test(dispatch, the_third_loss_ends_a_request)
{
    bench b;
    uint64_t id = lose_decode(&b);
    fg_dispatch_on_down(b.dispatch, D);
    b.sent_count = 0;
    bench_join(&b, D, "d", FG_ROLE_DECODE);
    bench_pass(&b, 200);
    cr_assert_null(bench_sent(&b, D, FG_MSG_RESERVE), "not at once after the second one");
    bench_pass(&b, 100);
    cr_assert_not_null(bench_sent(&b, D, FG_MSG_RESERVE));
    bench_ticket(&b, id, 3);
    cr_assert_eq(b.end_count, 0u, "%s", b.text);
    fg_dispatch_on_down(b.dispatch, D);
    cr_assert(b.end_count == 1 && b.finish == FG_FINISH_ERROR && b.status == FG_PEER_LOST);
    cr_assert(strstr(b.text, "worker d was lost") != NULL, "%s", b.text);
    bench_close(&b);
}

/* Workers that live say that they cannot, for instance because the link between them is broken. */
Test(dispatch, a_request_outlives_failures_that_pass)
{
    bench b;
    uint64_t id;
    fg_dispatch_options options = bench_options(&b);
    options.lease_ms = 100000;
    bench_open_with(&b, &options);
    bench_join_pair(&b);
    cr_assert_eq(bench_start(&b, 5, 4, &id), FG_OK);
    for (uint32_t attempt = 1; attempt < 10; attempt++) {
        uint32_t pause_ms = attempt == 1 ? 0 : attempt == 2 ? 250 : 1000;
        b.sent_count = 0;
        bench_done_of(&b, D, id, attempt, FG_FINISH_ERROR, 0);
        if (pause_ms > 0) {
            bench_pass(&b, pause_ms - 50);
            cr_assert_null(bench_sent(&b, D, FG_MSG_RESERVE), "failure %u: too soon", attempt);
            bench_pass(&b, 100);
        }
        cr_assert_not_null(bench_sent(&b, D, FG_MSG_RESERVE), "failure %u: %s", attempt, b.text);
    }
    bench_done(&b, D, id, FG_FINISH_ERROR, 0); /* of the first attempt: an old one */
    cr_assert_eq(b.end_count, 0u);
    bench_done_of(&b, D, id, 10, FG_FINISH_ERROR, 0);
    cr_assert(b.end_count == 1 && b.finish == FG_FINISH_ERROR && b.status == FG_PEER_LOST);
    bench_close(&b);
}

/* What becomes of the prefill worker of a request for which decode has chosen a token, before it could say
 * that its blocks have arrived. */
static void prefill_dies(bench *b, uint64_t id)
{
    fg_dispatch_on_down(b->dispatch, P);
}

static void prefill_fails(bench *b, uint64_t id)
{
    bench_done(b, P, id, FG_FINISH_ERROR, 0);
}

static const struct {
    const char *name;
    void (*happens)(bench *b, uint64_t id);
    const char *news; /* before that: F of prefill's first token, T of decode's */
    bool goes_on;
} handed_over_cases[] = {
    { "dies", prefill_dies, "FT", true },
    { "fails", prefill_fails, "FT", true },
    { "dies, overtaken", prefill_dies, "TF", true },
    { "fails, overtaken", prefill_fails, "TF", true },
    { "dies too early", prefill_dies, "F", false },
    { "fails too early", prefill_fails, "F", false },
};

Test(dispatch, what_decode_goes_on_with_needs_no_prefill_worker)
{
    for (size_t i = 0; i < sizeof handed_over_cases / sizeof *handed_over_cases; i++) {
        bench b;
        uint64_t id;
        const char *name = handed_over_cases[i].name;
        bench_open(&b);
        bench_join_pair(&b);
        cr_assert_eq(bench_start(&b, 5, 3, &id), FG_OK);
        bench_ticket(&b, id, 1);
        for (const char *news = handed_over_cases[i].news; *news != '\0'; news++) {
            if (*news == 'F') {
                bench_first(&b, id, 20);
            } else {
                bench_token(&b, id, 1, 21);
            }
        }
        handed_over_cases[i].happens(&b, id);
        if (!handed_over_cases[i].goes_on) {
            cr_assert_eq(b.end_count, 0u, "%s: %s", name, b.text);
            cr_assert_not_null(bench_sent(&b, D, FG_MSG_CANCEL), "%s: another attempt", name);
            bench_close(&b);
            continue;
        }
        cr_assert_eq(b.end_count, 0u, "%s: %s", name, b.text);
        cr_assert_null(bench_sent(&b, D, FG_MSG_CANCEL), "%s", name);
        bench_token(&b, id, 2, 22);
        bench_done(&b, D, id, FG_FINISH_LENGTH, 3);
        cr_assert(b.end_count == 1 && b.finish == FG_FINISH_LENGTH && b.token_count == 3, "%s",
                  name);
        bench_close(&b);
    }
}

Test(dispatch, a_drained_worker_leaves_and_is_not_counted_as_lost)
{
    bench b;
    fg_dispatch_stats stats;
    bench_open(&b);
    bench_join_pair(&b);
    bench_give(&b, D, &(fg_msg){ .kind = FG_MSG_DRAIN });
    fg_dispatch_on_down(b.dispatch, D);
    fg_dispatch_stats_get(b.dispatch, &stats);
    cr_assert_eq(stats.workers_lost, 0u);
    cr_assert_not_null(bench_sent(&b, P, FG_MSG_PEER_LOST),
                       "its peers close their ends all the same");
    fg_dispatch_on_down(b.dispatch, P);
    fg_dispatch_stats_get(b.dispatch, &stats);
    cr_assert_eq(stats.workers_lost, 1u);
    bench_close(&b);
}

Test(dispatch, a_silent_worker_is_lost_when_its_lease_runs_out)
{
    bench b;
    bench_open(&b);
    bench_join_pair(&b);
    bench_pass(&b, 900);
    bench_give(&b, P, &(fg_msg){ .kind = FG_MSG_LOAD, .load = { .sequence = 1 } });
    bench_pass(&b, 900);
    fg_dispatch_tick(b.dispatch);
    cr_assert_eq(fg_registry_count(fg_dispatch_registry(b.dispatch)), 1u);
    b.sent_count = 0;
    bench_give(&b, D, &(fg_msg){ .kind = FG_MSG_LOAD, .load = { .sequence = 1 } });
    cr_assert_not_null(bench_sent(&b, D, FG_MSG_REFUSE), "it must join again as a stranger");
    bench_close(&b);
}

Test(dispatch, its_own_pause_is_not_held_against_the_workers)
{
    bench b;
    bench_open(&b);
    bench_join_pair(&b);
    bench_pass(&b, 300);
    b.now_ns += 5000000000u; /* stopped, and on again: the reports of the workers wait unread */
    fg_dispatch_tick(b.dispatch);
    cr_assert_eq(fg_registry_count(fg_dispatch_registry(b.dispatch)), 2u);
    bench_pass(&b, 1200); /* but silence after it counts */
    cr_assert_eq(fg_registry_count(fg_dispatch_registry(b.dispatch)), 0u);
    bench_close(&b);
}

Test(dispatch, a_busy_decode_worker_is_asked_again_after_its_next_report)
{
    bench b;
    uint64_t id;
    bench_open(&b);
    bench_join_pair(&b);
    cr_assert_eq(bench_start(&b, 5, 3, &id), FG_OK);
    b.sent_count = 0;
    bench_give(&b, D, &(fg_msg){ .kind = FG_MSG_TICKET, .request = id, .attempt = 1 });
    fg_dispatch_tick(b.dispatch);
    cr_assert_null(bench_sent(&b, D, FG_MSG_RESERVE));
    bench_give(&b, D, &(fg_msg){ .kind = FG_MSG_LOAD, .load = { .sequence = 1 } });
    cr_assert_not_null(bench_sent(&b, D, FG_MSG_RESERVE));
    bench_close(&b);
}

Test(dispatch, refuses_beyond_the_queue_and_what_can_never_fit)
{
    bench b;
    uint64_t id;
    bench_open(&b);
    bench_join_pair(&b);
    cr_assert_eq(bench_start(&b, 30, 11, &id), FG_BAD_INPUT, "41 tokens need 11 of 10 blocks");
    cr_assert_eq(bench_start(&b, 0, 3, &id), FG_BAD_INPUT);
    cr_assert_eq(bench_start(&b, 5, 0, &id), FG_BAD_INPUT);
    cr_assert_eq(bench_start(&b, 37, 3, &id), FG_OK); /* takes all of the decode worker */
    cr_assert_eq(bench_start(&b, 5, 3, &id), FG_OK);
    cr_assert_eq(bench_start(&b, 5, 3, &id), FG_OK);
    cr_assert_eq(bench_start(&b, 5, 3, &id), FG_AGAIN, "two wait already");
    cr_assert(fg_dispatch_retry_after(b.dispatch) >= 1);
    bench_close(&b);
}

Test(dispatch, a_queue_that_nobody_can_take_is_answered_after_a_grace)
{
    bench b;
    uint64_t id;
    bench_open(&b);
    bench_join_pair(&b);
    cr_assert_eq(bench_start(&b, 37, 3, &id), FG_OK); /* takes all of the decode worker */
    cr_assert_eq(bench_start(&b, 5, 3, &id), FG_OK);  /* waits */
    fg_dispatch_on_down(b.dispatch, D);
    fg_dispatch_tick(b.dispatch);
    bench_pass(&b, 900);
    bench_give(&b, P, &(fg_msg){ .kind = FG_MSG_LOAD, .load = { .sequence = 1 } });
    fg_dispatch_tick(b.dispatch);
    cr_assert_eq(b.end_count, 0, "a worker may come back");
    for (int i = 0; i < 3; i++) {
        bench_pass(&b, 900);
        bench_give(&b, P,
                   &(fg_msg){ .kind = FG_MSG_LOAD, .load = { .sequence = 2 + (uint64_t)i } });
        fg_dispatch_tick(b.dispatch);
    }
    cr_assert(b.end_count == 2 && b.status == FG_PEER_LOST);
    bench_close(&b);
}

Test(dispatch, being_placed_again_does_not_renew_the_time_in_the_queue)
{
    bench b;
    uint64_t id;
    bench_open(&b);
    bench_join_pair(&b);
    cr_assert_eq(bench_start(&b, 5, 3, &id), FG_OK);
    for (uint32_t i = 1; i < 2000 && b.end_count == 0; i++) {
        b.sent_count = 0;
        fg_arena_reset(b.inbox);
        bench_give(&b, D, &(fg_msg){ .kind = FG_MSG_TICKET, .request = id, .attempt = i });
        bench_pass(&b, 500);
        bench_give(&b, P, &(fg_msg){ .kind = FG_MSG_LOAD, .load = { .sequence = i } });
        bench_give(&b, D, &(fg_msg){ .kind = FG_MSG_LOAD, .load = { .sequence = i } });
        fg_dispatch_tick(b.dispatch);
    }
    cr_assert(b.end_count == 1 && b.status == FG_TIMEOUT, "%d ends", b.end_count);
    bench_close(&b);
}

/* It was served for longer than anybody may wait: that is no time in the queue. */
Test(dispatch, a_long_answer_that_loses_its_worker_waits_anew)
{
    bench b;
    uint64_t id;
    fg_dispatch_options options = bench_options(&b);
    options.lease_ms = 600000;
    bench_open_with(&b, &options);
    bench_join_pair(&b);
    cr_assert_eq(bench_start(&b, 5, 4, &id), FG_OK);
    bench_ticket(&b, id, 1);
    bench_first(&b, id, 20);
    bench_token(&b, id, 1, 21);
    bench_pass(&b, 400000);
    bench_token(&b, id, 2, 22);
    bench_give(&b, P, &(fg_msg){ .kind = FG_MSG_LOAD, .load = { .sequence = 1 } });
    bench_pass(&b, 300000);
    fg_dispatch_on_down(b.dispatch, D);
    bench_pass(&b, 1000);
    cr_assert_eq(b.end_count, 0u, "%s", b.text);
    b.sent_count = 0;
    bench_join(&b, D, "d", FG_ROLE_DECODE);
    cr_assert_not_null(bench_sent(&b, D, FG_MSG_RESERVE));
    bench_close(&b);
}

Test(dispatch, a_worker_that_a_frame_cannot_reach_is_lost)
{
    bench b;
    uint64_t id;
    bench_open(&b);
    bench_join_pair(&b);
    cr_assert_eq(bench_start(&b, 5, 3, &id), FG_OK);
    b.refuse_peer = D;
    fg_dispatch_cancel(b.dispatch, id, FG_FINISH_CANCELLED, NULL);
    fg_dispatch_tick(b.dispatch);
    cr_assert_eq(fg_registry_count(fg_dispatch_registry(b.dispatch)), 1u);
    bench_close(&b);
}

Test(dispatch, cancel_tells_both_workers_and_nobody_else_hears_of_it)
{
    bench b;
    uint64_t id;
    bench_open(&b);
    bench_join_pair(&b);
    cr_assert_eq(bench_start(&b, 5, 3, &id), FG_OK);
    bench_ticket(&b, id, 1);
    bench_first(&b, id, 20);
    fg_dispatch_cancel(b.dispatch, id, FG_FINISH_CANCELLED, NULL);
    fg_dispatch_cancel(b.dispatch, id, FG_FINISH_CANCELLED, NULL);
    cr_assert(bench_sent(&b, P, FG_MSG_CANCEL) != NULL && bench_sent(&b, D, FG_MSG_CANCEL) != NULL);
    bench_token(&b, id, 1, 21);
    cr_assert(b.end_count == 0 && b.token_count == 1);
    bench_close(&b);
}

Test(dispatch, a_stop_string_may_cancel_from_inside_a_token)
{
    bench b;
    uint64_t id;
    bench_open(&b);
    bench_join_pair(&b);
    cr_assert_eq(bench_start(&b, 5, 3, &id), FG_OK);
    bench_ticket(&b, id, 1);
    bench_token(&b, id, 1, 21);
    b.cancel_on_token = id;
    bench_first(&b, id, 20);
    cr_assert(b.token_count == 1 && b.end_count == 0);
    bench_close(&b);
}

Test(dispatch, garbage_is_counted_and_a_stranger_is_dropped)
{
    bench b;
    bench_open(&b);
    bench_join_pair(&b);
    fg_dispatch_on_frame(b.dispatch, P, "garbage", 7);
    fg_dispatch_on_frame(b.dispatch, 40, "garbage", 7);
    fg_dispatch_stats stats;
    fg_dispatch_stats_get(b.dispatch, &stats);
    cr_assert_eq(stats.frames_refused, 2u);
    cr_assert(b.dropped_count == 1 && b.dropped[0] == 40);
    cr_assert_eq(fg_registry_count(fg_dispatch_registry(b.dispatch)), 2u);
    bench_close(&b);
}

Test(dispatch, state_is_valid_json_with_blocks_that_add_up)
{
    bench b;
    uint64_t id;
    bench_open(&b);
    bench_join_pair(&b);
    bench_start(&b, 5, 3, &id);
    fg_buf out;
    fg_buf_init(&out, 0);
    cr_assert(fg_dispatch_render_state(b.dispatch, &out));
    cr_assert(strstr(out.data, "\"state\":\"reserved\"") != NULL, "%s", out.data);
    cr_assert(strstr(out.data, "\"total\":10,\"free\":10") != NULL, "%s", out.data);
    fg_buf_deinit(&out);
    bench_close(&b);
}

static bool create_once(void *ctx)
{
    fg_dispatch_options options = bench_options(ctx);
    fg_dispatch *dispatch = NULL;
    if (fg_dispatch_create(&options, &dispatch, NULL) != FG_OK) {
        return false;
    }
    fg_dispatch_destroy(dispatch);
    return true;
}

Test(dispatch, survives_each_failed_allocation)
{
    bench b = { .now_ns = 1 };
    cr_assert(fg_fault_each(create_once, &b) >= 5);
}

/* A RESERVE that came twice, the second time after its request was gone: nobody else would free them. */
Test(dispatch, blocks_that_a_worker_holds_for_nobody_are_cancelled)
{
    bench b;
    uint64_t id;
    bench_open(&b);
    bench_join_pair(&b);
    cr_assert_eq(bench_start(&b, 5, 3, &id), FG_OK);
    fg_dispatch_cancel(b.dispatch, id, FG_FINISH_CANCELLED, NULL);
    b.sent_count = 0;
    bench_ticket(&b, id, 1);
    const fg_msg *cancel = bench_sent(&b, D, FG_MSG_CANCEL);
    cr_assert(cancel != NULL && cancel->request == id && cancel->attempt == 1);
    b.sent_count = 0;
    bench_give(&b, D, &(fg_msg){ .kind = FG_MSG_TICKET, .request = id, .attempt = 1 });
    cr_assert_null(bench_sent(&b, D, FG_MSG_CANCEL)); /* it holds none */
    bench_close(&b);
}

Test(dispatch, names_with_quotes_break_no_json)
{
    static const char *const name = "q\"\\,\"x\":1";
    bench b;
    uint64_t id;
    fg_buf text;
    fg_json *json = NULL;
    bench_open(&b);
    bench_join(&b, P, "p", FG_ROLE_PREFILL);
    bench_join(&b, D, name, FG_ROLE_DECODE);
    fg_buf_init(&text, 0);
    cr_assert_eq(bench_start(&b, 5, 3, &id), FG_OK);
    cr_assert_eq(bench_start(&b, 5, 3, &id), FG_OK);
    fg_dispatch_cancel(b.dispatch, id, FG_FINISH_CANCELLED, NULL);
    cr_assert(fg_dispatch_render_state(b.dispatch, &text));
    cr_assert_eq(fg_json_parse(text.data, text.size, &json, NULL), FG_OK, "%s", text.data);
    static const char *const lists[] = { "requests", "recent" };
    for (size_t i = 0; i < 2; i++) {
        const fg_json_node *row = fg_json_at(fg_json_get(fg_json_root(json), lists[i]), 0);
        cr_assert_str_eq(fg_json_string(fg_json_get(row, "decode"), NULL), name);
    }
    fg_json_destroy(json);
    fg_buf_deinit(&text);
    bench_close(&b);
}

Test(dispatch, another_attempt_begins_without_the_tokens_of_a_failed_one)
{
    bench b;
    uint64_t id;
    bench_open(&b);
    bench_join_pair(&b);
    cr_assert_eq(bench_start(&b, 5, 3, &id), FG_OK);
    bench_ticket(&b, id, 1);
    bench_token(&b, id, 1, 66); /* before the first one, and then it fails */
    bench_token(&b, id, 2, 66);
    bench_done(&b, D, id, FG_FINISH_ERROR, 0);
    bench_ticket(&b, id, 2);
    for (uint32_t i = 0; i < 3; i++) {
        fg_wire_token one = { .request = id, .attempt = 2, .index = i, .id = 20 + i };
        bench_give(&b, D, &(fg_msg){ .kind = FG_MSG_TOKENS, .tokens = { &one, 1 } });
    }
    cr_assert(b.token_count == 3 && b.tokens[1] == 21 && b.tokens[2] == 22, "%u", b.tokens[1]);
    bench_close(&b);
}

/* Who says that a request is over, or is not its business any more, is not waited for. */
Test(dispatch, a_request_that_its_workers_have_left_goes_elsewhere)
{
    static const struct {
        const char *name;
        uint32_t first, peer;
        fg_finish finish;
        uint32_t generated;
    } cases[] = {
        { "decode hands over", 0, D, FG_FINISH_HANDED_OVER, 0 },
        { "decode hands over later", 1, D, FG_FINISH_HANDED_OVER, 0 },
        { "decode cancels", 1, D, FG_FINISH_CANCELLED, 0 },
        { "prefill hands over what it has not begun", 0, P, FG_FINISH_HANDED_OVER, 0 },
        { "decode counts tokens that never came", 2, D, FG_FINISH_LENGTH, 1000 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bench b;
        uint64_t id;
        bench_open(&b);
        bench_join_pair(&b);
        cr_assert_eq(bench_start(&b, 5, 3, &id), FG_OK);
        bench_ticket(&b, id, 1);
        if (cases[i].first > 0) {
            bench_first(&b, id, 20);
        }
        if (cases[i].first > 1) {
            bench_done(&b, P, id, FG_FINISH_HANDED_OVER, 1);
        }
        b.sent_count = 0;
        bench_done(&b, cases[i].peer, id, cases[i].finish, cases[i].generated);
        cr_assert_eq(b.end_count, 0u, "%s: %s", cases[i].name, b.text);
        cr_assert_not_null(bench_sent(&b, D, FG_MSG_RESERVE), "%s", cases[i].name);
        bench_close(&b);
    }
}
