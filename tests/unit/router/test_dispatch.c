#include "router/dispatch.h"

#include <stdio.h>
#include <string.h>

#include "common/base/fault.h"
#include "common/base/log.h"
#include "tests/support/test.h"

enum { SENT_MAX = 128, P = 10, D = 11 }; /* bus handles of a prefill and a decode worker */

/* A dispatcher whose workers are played by the test. */
typedef struct bench {
    uint64_t now_ns;
    fg_dispatch *dispatch;
    fg_arena *inbox;
    struct {
        uint32_t peer;
        fg_msg msg;
    } sent[SENT_MAX];
    uint32_t sent_count;
    uint32_t dropped[16], dropped_count;
    uint32_t tokens[64], token_count, end_count;
    fg_finish finish;
    fg_status status;
    char text[200];
    uint32_t refuse_peer;     /* its queue of frames is full */
    uint64_t cancel_on_token; /* a request to cancel from inside on_token */
} bench;

static fg_status keep(void *ctx, uint32_t peer, const void *bytes, size_t size_bytes)
{
    bench *b = ctx;
    fg_error err = { 0 };
    if (peer == b->refuse_peer) {
        return FG_AGAIN;
    }
    cr_assert(b->sent_count < SENT_MAX);
    b->sent[b->sent_count].peer = peer;
    cr_assert_eq(fg_wire_decode(bytes, size_bytes, b->inbox, &b->sent[b->sent_count++].msg, &err),
                 FG_OK, "%s", err.text);
    return FG_OK;
}

static void drop(void *ctx, uint32_t peer)
{
    bench *b = ctx;
    b->dropped[b->dropped_count++ % 16] = peer;
}

static void on_token(void *ctx, uint32_t index, uint32_t id, uint64_t digest)
{
    bench *b = ctx;
    cr_assert_eq(index, b->token_count);
    b->tokens[b->token_count++] = id;
    if (b->cancel_on_token != 0) {
        fg_dispatch_cancel(b->dispatch, b->cancel_on_token, FG_FINISH_STOP);
    }
}

static void on_end(void *ctx, fg_finish finish, fg_status status, const char *text)
{
    bench *b = ctx;
    b->end_count++;
    b->finish = finish;
    b->status = status;
    snprintf(b->text, sizeof b->text, "%s", text);
}

static fg_dispatch_options options_of(bench *b)
{
    return (fg_dispatch_options){
        .clock = fg_clock_manual(&b->now_ns),
        .fingerprint = { 1, 2 },
        .router_epoch = 77,
        .lease_ms = 1000,
        .limits = { .queued_max = 2, .queued_tokens_max = 1000, .live_max = 100 },
        .send = keep,
        .drop = drop,
        .ctx = b
    };
}

static void open_bench(bench *b)
{
    fg_log_set_level(FG_LOG_OFF);
    *b = (bench){ .now_ns = 1000000000u };
    b->inbox = fg_arena_create(1 << 20);
    fg_dispatch_options options = options_of(b);
    cr_assert_eq(fg_dispatch_create(&options, &b->dispatch, NULL), FG_OK);
    fg_dispatch_tick(b->dispatch);
}

static void close_bench(bench *b)
{
    fg_dispatch_check(b->dispatch);
    fg_dispatch_destroy(b->dispatch);
    fg_arena_destroy(b->inbox);
}

static void give(bench *b, uint32_t peer, const fg_msg *msg)
{
    fg_buf frame;
    fg_buf_init(&frame, 0);
    cr_assert(fg_wire_encode(msg, &frame));
    fg_dispatch_on_frame(b->dispatch, peer, frame.data, frame.size);
    fg_dispatch_check(b->dispatch);
    fg_buf_deinit(&frame);
}

static void join(bench *b, uint32_t peer, const char *name, uint32_t roles)
{
    fg_msg msg = { .kind = FG_MSG_HELLO };
    msg.hello = (fg_wire_hello){ .protocol = FG_PROTOCOL_VERSION,
                                 .self = { .name = name, .epoch = 1 },
                                 .roles = roles,
                                 .fingerprint_low = 1,
                                 .fingerprint_high = 2,
                                 .numerics_class = "c",
                                 .layer_count = 1,
                                 .kv_head_count = 1,
                                 .head_dim = 8,
                                 .block_size = 4,
                                 .kv_dtype = 1,
                                 .block_count = 10,
                                 .max_seqs = 4,
                                 .context_max = 100,
                                 .link_record = "r",
                                 .link_record_bytes = 1 };
    char identity[40];
    snprintf(identity, sizeof identity, "%s#1", name);
    fg_dispatch_on_up(b->dispatch, peer, identity);
    give(b, peer, &msg);
}

static void join_pair(bench *b)
{
    join(b, P, "p", FG_ROLE_PREFILL);
    join(b, D, "d", FG_ROLE_DECODE);
    b->sent_count = 0;
}

static fg_status start(bench *b, uint32_t prompt, uint32_t max_tokens, uint64_t *id)
{
    static const uint32_t tokens[200] = { 5 };
    fg_dispatch_job job = { .tokens = tokens,
                            .token_count = prompt,
                            .params = { .top_p = 1.0f, .max_tokens = max_tokens },
                            .sink = { .on_token = on_token, .on_end = on_end, .ctx = b } };
    fg_error err;
    return fg_dispatch_start(b->dispatch, &job, id, &err);
}

/* Time goes by as in a process: with a tick now and then. */
static void pass(bench *b, uint32_t ms)
{
    for (uint32_t i = 0; i < ms / 100; i++) {
        b->now_ns += 100000000u;
        fg_dispatch_tick(b->dispatch);
    }
}

static const fg_msg *sent_to(const bench *b, uint32_t peer, fg_msg_kind kind)
{
    for (uint32_t i = 0; i < b->sent_count; i++) {
        if (b->sent[i].peer == peer && b->sent[i].msg.kind == kind) {
            return &b->sent[i].msg;
        }
    }
    return NULL;
}

static void ticket(bench *b, uint64_t id, uint32_t attempt)
{
    fg_msg msg = { .kind = FG_MSG_TICKET, .request = id, .attempt = attempt };
    static const uint32_t blocks[] = { 3, 1 };
    msg.ticket.granted = true;
    msg.ticket.ticket = 99;
    msg.ticket.blocks = blocks;
    msg.ticket.block_count = 2;
    give(b, D, &msg);
}

static void first(bench *b, uint64_t id, uint32_t token)
{
    fg_msg msg = { .kind = FG_MSG_FIRST, .request = id, .attempt = 1 };
    msg.first.id = token;
    give(b, P, &msg);
}

static void token(bench *b, uint64_t id, uint32_t index, uint32_t value)
{
    fg_wire_token one = { .request = id, .attempt = 1, .index = index, .id = value };
    fg_msg msg = { .kind = FG_MSG_TOKENS };
    msg.tokens.tokens = &one;
    msg.tokens.count = 1;
    give(b, D, &msg);
}

static void done(bench *b, uint32_t peer, uint64_t id, fg_finish finish, uint32_t generated)
{
    fg_msg msg = { .kind = FG_MSG_DONE, .request = id, .attempt = 1 };
    msg.done.finish = finish;
    msg.done.text = finish == FG_FINISH_ERROR ? "broken" : "";
    msg.done.generated = generated;
    give(b, peer, &msg);
}

Test(dispatch, is_ready_only_with_a_worker_for_each_phase)
{
    bench b;
    uint64_t id;
    open_bench(&b);
    cr_assert(!fg_dispatch_ready(b.dispatch));
    cr_assert_eq(start(&b, 5, 3, &id), FG_PEER_LOST);
    join(&b, P, "p", FG_ROLE_PREFILL);
    cr_assert(!fg_dispatch_ready(b.dispatch));
    join(&b, D, "d", FG_ROLE_DECODE);
    cr_assert(fg_dispatch_ready(b.dispatch));
    give(&b, D, &(fg_msg){ .kind = FG_MSG_DRAIN });
    cr_assert(!fg_dispatch_ready(b.dispatch));
    close_bench(&b);
}

Test(dispatch, nobody_joins_under_a_name_that_is_not_its_connections)
{
    bench b;
    open_bench(&b);
    join_pair(&b);
    fg_dispatch_on_up(b.dispatch, 12, "thief#1");
    fg_msg msg = { .kind = FG_MSG_HELLO };
    msg.hello = (fg_wire_hello){ .protocol = FG_PROTOCOL_VERSION,
                                 .self = { .name = "d2", .epoch = 1 },
                                 .roles = FG_ROLE_DECODE,
                                 .fingerprint_low = 1,
                                 .fingerprint_high = 2,
                                 .numerics_class = "c",
                                 .layer_count = 1,
                                 .kv_head_count = 1,
                                 .head_dim = 8,
                                 .block_size = 4,
                                 .kv_dtype = 1,
                                 .block_count = 10,
                                 .max_seqs = 4,
                                 .context_max = 100,
                                 .link_record = "r",
                                 .link_record_bytes = 1 };
    give(&b, 12, &msg);
    cr_assert_not_null(sent_to(&b, 12, FG_MSG_REFUSE));
    cr_assert_eq(fg_registry_count(fg_dispatch_registry(b.dispatch)), 2u);
    close_bench(&b);
}

Test(dispatch, waits_for_the_named_workers_once)
{
    bench b;
    const char *const names[] = { "p", "p2" };
    open_bench(&b);
    fg_dispatch_destroy(b.dispatch);
    fg_dispatch_options options = options_of(&b);
    options.wait_for_prefill = names;
    options.wait_for_prefill_count = 2;
    cr_assert_eq(fg_dispatch_create(&options, &b.dispatch, NULL), FG_OK);
    join_pair(&b);
    fg_dispatch_tick(b.dispatch);
    cr_assert(!fg_dispatch_ready(b.dispatch));
    join(&b, 12, "p2", FG_ROLE_PREFILL);
    fg_dispatch_tick(b.dispatch);
    cr_assert(fg_dispatch_ready(b.dispatch));
    fg_dispatch_on_down(b.dispatch, 12);
    fg_dispatch_tick(b.dispatch);
    cr_assert(fg_dispatch_ready(b.dispatch), "one prefill worker is enough later on");
    close_bench(&b);
}

Test(dispatch, takes_a_request_through_both_workers)
{
    bench b;
    uint64_t id;
    open_bench(&b);
    join_pair(&b);
    cr_assert_eq(start(&b, 5, 3, &id), FG_OK);
    cr_assert_not_null(sent_to(&b, D, FG_MSG_RESERVE));
    cr_assert_null(sent_to(&b, P, FG_MSG_PREFILL));
    ticket(&b, id, 1);
    const fg_msg *prefill = sent_to(&b, P, FG_MSG_PREFILL);
    cr_assert(prefill != NULL && prefill->prefill.has_ticket && prefill->prefill.ticket == 99);
    cr_assert_str_eq(prefill->prefill.target.name, "d");
    /* Decode's second token and its end overtake prefill's first. */
    token(&b, id, 1, 21);
    token(&b, id, 2, 22);
    done(&b, D, id, FG_FINISH_LENGTH, 3);
    cr_assert_eq(b.token_count, 0u);
    first(&b, id, 20);
    cr_assert(b.token_count == 3 && b.tokens[0] == 20 && b.tokens[2] == 22);
    cr_assert(b.end_count == 1 && b.finish == FG_FINISH_LENGTH);
    close_bench(&b);
}

Test(dispatch, drops_doubles_strangers_and_old_attempts)
{
    bench b;
    uint64_t id;
    open_bench(&b);
    join_pair(&b);
    join(&b, 12, "other", FG_ROLE_DECODE);
    cr_assert_eq(start(&b, 5, 3, &id), FG_OK);
    ticket(&b, id, 2); /* another attempt */
    cr_assert_null(sent_to(&b, P, FG_MSG_PREFILL));
    ticket(&b, id, 1);
    first(&b, id, 20);
    first(&b, id, 66);
    token(&b, id, 1, 21);
    token(&b, id, 1, 66);
    token(&b, id, 0, 66);
    fg_wire_token foreign = { .request = id, .attempt = 1, .index = 2, .id = 66 };
    fg_msg msg = { .kind = FG_MSG_TOKENS, .tokens = { .tokens = &foreign, .count = 1 } };
    give(&b, 12, &msg); /* not its request */
    cr_assert(b.token_count == 2 && b.tokens[0] == 20 && b.tokens[1] == 21);
    close_bench(&b);
}

Test(dispatch, a_lost_worker_fails_what_was_seen_and_retries_what_was_not)
{
    bench b;
    uint64_t seen, unseen;
    open_bench(&b);
    join_pair(&b);
    cr_assert_eq(start(&b, 5, 3, &seen), FG_OK);
    ticket(&b, seen, 1);
    first(&b, seen, 20);
    cr_assert_eq(start(&b, 5, 3, &unseen), FG_OK);
    b.sent_count = 0;
    fg_dispatch_on_down(b.dispatch, D);
    cr_assert(b.end_count == 1 && b.finish == FG_FINISH_ERROR && b.status == FG_PEER_LOST);
    cr_assert(strstr(b.text, "worker d was lost") != NULL, "%s", b.text);
    cr_assert_not_null(sent_to(&b, P, FG_MSG_PEER_LOST));
    cr_assert_not_null(sent_to(&b, P, FG_MSG_CANCEL));
    b.sent_count = 0;
    join(&b, 13, "d2", FG_ROLE_DECODE);
    const fg_msg *reserve = sent_to(&b, 13, FG_MSG_RESERVE);
    cr_assert(reserve != NULL && reserve->request == unseen && reserve->attempt == 2);
    close_bench(&b);
}

Test(dispatch, a_drained_worker_leaves_and_is_not_counted_as_lost)
{
    bench b;
    fg_dispatch_stats stats;
    open_bench(&b);
    join_pair(&b);
    give(&b, D, &(fg_msg){ .kind = FG_MSG_DRAIN });
    fg_dispatch_on_down(b.dispatch, D);
    fg_dispatch_stats_get(b.dispatch, &stats);
    cr_assert_eq(stats.workers_lost, 0u);
    cr_assert_not_null(sent_to(&b, P, FG_MSG_PEER_LOST), "its peers close their ends all the same");
    fg_dispatch_on_down(b.dispatch, P);
    fg_dispatch_stats_get(b.dispatch, &stats);
    cr_assert_eq(stats.workers_lost, 1u);
    close_bench(&b);
}

Test(dispatch, a_silent_worker_is_lost_when_its_lease_runs_out)
{
    bench b;
    open_bench(&b);
    join_pair(&b);
    pass(&b, 900);
    give(&b, P, &(fg_msg){ .kind = FG_MSG_LOAD, .load = { .sequence = 1 } });
    pass(&b, 900);
    fg_dispatch_tick(b.dispatch);
    cr_assert_eq(fg_registry_count(fg_dispatch_registry(b.dispatch)), 1u);
    b.sent_count = 0;
    give(&b, D, &(fg_msg){ .kind = FG_MSG_LOAD, .load = { .sequence = 1 } });
    cr_assert_not_null(sent_to(&b, D, FG_MSG_REFUSE), "it must join again as a stranger");
    close_bench(&b);
}

Test(dispatch, its_own_pause_is_not_held_against_the_workers)
{
    bench b;
    open_bench(&b);
    join_pair(&b);
    pass(&b, 300);
    b.now_ns += 5000000000u; /* stopped, and on again: the reports of the workers wait unread */
    fg_dispatch_tick(b.dispatch);
    cr_assert_eq(fg_registry_count(fg_dispatch_registry(b.dispatch)), 2u);
    pass(&b, 1200); /* but silence after it counts */
    cr_assert_eq(fg_registry_count(fg_dispatch_registry(b.dispatch)), 0u);
    close_bench(&b);
}

Test(dispatch, a_busy_decode_worker_is_asked_again_after_its_next_report)
{
    bench b;
    uint64_t id;
    open_bench(&b);
    join_pair(&b);
    cr_assert_eq(start(&b, 5, 3, &id), FG_OK);
    b.sent_count = 0;
    give(&b, D, &(fg_msg){ .kind = FG_MSG_TICKET, .request = id, .attempt = 1 });
    fg_dispatch_tick(b.dispatch);
    cr_assert_null(sent_to(&b, D, FG_MSG_RESERVE));
    give(&b, D, &(fg_msg){ .kind = FG_MSG_LOAD, .load = { .sequence = 1 } });
    cr_assert_not_null(sent_to(&b, D, FG_MSG_RESERVE));
    close_bench(&b);
}

Test(dispatch, refuses_beyond_the_queue_and_what_can_never_fit)
{
    bench b;
    uint64_t id;
    open_bench(&b);
    join_pair(&b);
    cr_assert_eq(start(&b, 30, 11, &id), FG_BAD_INPUT, "41 tokens need 11 of 10 blocks");
    cr_assert_eq(start(&b, 0, 3, &id), FG_BAD_INPUT);
    cr_assert_eq(start(&b, 5, 0, &id), FG_BAD_INPUT);
    cr_assert_eq(start(&b, 30, 10, &id), FG_OK); /* takes all of the decode worker */
    cr_assert_eq(start(&b, 5, 3, &id), FG_OK);
    cr_assert_eq(start(&b, 5, 3, &id), FG_OK);
    cr_assert_eq(start(&b, 5, 3, &id), FG_AGAIN, "two wait already");
    cr_assert(fg_dispatch_retry_after(b.dispatch) >= 1);
    close_bench(&b);
}

Test(dispatch, a_queue_that_nobody_can_take_is_answered_after_a_grace)
{
    bench b;
    uint64_t id;
    open_bench(&b);
    join_pair(&b);
    cr_assert_eq(start(&b, 30, 10, &id), FG_OK); /* takes all of the decode worker */
    cr_assert_eq(start(&b, 5, 3, &id), FG_OK);   /* waits */
    fg_dispatch_on_down(b.dispatch, D);
    fg_dispatch_tick(b.dispatch);
    pass(&b, 900);
    give(&b, P, &(fg_msg){ .kind = FG_MSG_LOAD, .load = { .sequence = 1 } });
    fg_dispatch_tick(b.dispatch);
    cr_assert_eq(b.end_count, 0, "a worker may come back");
    for (int i = 0; i < 3; i++) {
        pass(&b, 900);
        give(&b, P, &(fg_msg){ .kind = FG_MSG_LOAD, .load = { .sequence = 2 + (uint64_t)i } });
        fg_dispatch_tick(b.dispatch);
    }
    cr_assert(b.end_count == 2 && b.status == FG_PEER_LOST);
    close_bench(&b);
}

Test(dispatch, being_placed_again_does_not_renew_the_time_in_the_queue)
{
    bench b;
    uint64_t id;
    open_bench(&b);
    join_pair(&b);
    cr_assert_eq(start(&b, 5, 3, &id), FG_OK);
    for (uint32_t i = 1; i < 2000 && b.end_count == 0; i++) {
        b.sent_count = 0;
        fg_arena_reset(b.inbox);
        give(&b, D, &(fg_msg){ .kind = FG_MSG_TICKET, .request = id, .attempt = i });
        pass(&b, 500);
        give(&b, P, &(fg_msg){ .kind = FG_MSG_LOAD, .load = { .sequence = i } });
        give(&b, D, &(fg_msg){ .kind = FG_MSG_LOAD, .load = { .sequence = i } });
        fg_dispatch_tick(b.dispatch);
    }
    cr_assert(b.end_count == 1 && b.status == FG_TIMEOUT, "%d ends", b.end_count);
    close_bench(&b);
}

Test(dispatch, a_worker_that_a_frame_cannot_reach_is_lost)
{
    bench b;
    uint64_t id;
    open_bench(&b);
    join_pair(&b);
    cr_assert_eq(start(&b, 5, 3, &id), FG_OK);
    b.refuse_peer = D;
    fg_dispatch_cancel(b.dispatch, id, FG_FINISH_CANCELLED);
    fg_dispatch_tick(b.dispatch);
    cr_assert_eq(fg_registry_count(fg_dispatch_registry(b.dispatch)), 1u);
    close_bench(&b);
}

Test(dispatch, cancel_tells_both_workers_and_nobody_else_hears_of_it)
{
    bench b;
    uint64_t id;
    open_bench(&b);
    join_pair(&b);
    cr_assert_eq(start(&b, 5, 3, &id), FG_OK);
    ticket(&b, id, 1);
    first(&b, id, 20);
    fg_dispatch_cancel(b.dispatch, id, FG_FINISH_CANCELLED);
    fg_dispatch_cancel(b.dispatch, id, FG_FINISH_CANCELLED);
    cr_assert(sent_to(&b, P, FG_MSG_CANCEL) != NULL && sent_to(&b, D, FG_MSG_CANCEL) != NULL);
    token(&b, id, 1, 21);
    cr_assert(b.end_count == 0 && b.token_count == 1);
    close_bench(&b);
}

Test(dispatch, a_stop_string_may_cancel_from_inside_a_token)
{
    bench b;
    uint64_t id;
    open_bench(&b);
    join_pair(&b);
    cr_assert_eq(start(&b, 5, 3, &id), FG_OK);
    ticket(&b, id, 1);
    token(&b, id, 1, 21);
    b.cancel_on_token = id;
    first(&b, id, 20);
    cr_assert(b.token_count == 1 && b.end_count == 0);
    close_bench(&b);
}

Test(dispatch, garbage_is_counted_and_a_stranger_is_dropped)
{
    bench b;
    open_bench(&b);
    join_pair(&b);
    fg_dispatch_on_frame(b.dispatch, P, "garbage", 7);
    fg_dispatch_on_frame(b.dispatch, 40, "garbage", 7);
    fg_dispatch_stats stats;
    fg_dispatch_stats_get(b.dispatch, &stats);
    cr_assert_eq(stats.frames_refused, 2u);
    cr_assert(b.dropped_count == 1 && b.dropped[0] == 40);
    cr_assert_eq(fg_registry_count(fg_dispatch_registry(b.dispatch)), 2u);
    close_bench(&b);
}

Test(dispatch, state_is_valid_json_with_blocks_that_add_up)
{
    bench b;
    uint64_t id;
    open_bench(&b);
    join_pair(&b);
    start(&b, 5, 3, &id);
    fg_buf out;
    fg_buf_init(&out, 0);
    cr_assert(fg_dispatch_render_state(b.dispatch, &out));
    cr_assert(strstr(out.data, "\"state\":\"reserved\"") != NULL, "%s", out.data);
    cr_assert(strstr(out.data, "\"total\":10,\"free\":10") != NULL, "%s", out.data);
    fg_buf_deinit(&out);
    close_bench(&b);
}

static bool create_once(void *ctx)
{
    fg_dispatch_options options = options_of(ctx);
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
