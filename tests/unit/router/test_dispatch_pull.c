/* Cached blocks go to a job's prefill worker before its prompt: what the dispatcher asks of both workers, and that whatever
 * happens nobody is left waiting. */
#include "common/kv/block_key.h"
#include "router/dispatch_internal.h"
#include "tests/support/test.h"
#include "tests/unit/router/dispatch_bench.h"

enum { PROMPT = 18, BLOCKS = 4 /* full ones of the prompt */, MISSING = 3 /* at P */ };
#define PULL (1 | FG_PULL_ATTEMPT)

/* D has the prompt's full blocks. */
static void tell_what_is_cached(bench *b)
{
    fg_digest128 fingerprint = { 1, 2 };
    fg_block_namer namer = { .secret = { 0xC0FFEE, 0xBEEF },
                             .identity = fg_block_identity(fingerprint, "c", 1),
                             .block_size = 4 };
    static const uint32_t tokens[PROMPT] = { 5 };
    uint64_t keys[BLOCKS];
    fg_digest128 parent = fg_block_root(&namer, 0, 0);
    fg_wire_news rows[2] = {
        { .change = FG_NEWS_RESET },
        { .change = FG_NEWS_STORED, .parent = parent.low, .keys = keys, .key_count = BLOCKS }
    };
    for (uint32_t i = 0; i < BLOCKS; i++) {
        parent = fg_block_key(&namer, parent, i, tokens + (size_t)i * 4);
        keys[i] = parent.low;
    }
    fg_msg msg = { .kind = FG_MSG_NEWS, .news = { .sequence = 1, .rows = rows, .count = 2 } };
    bench_give(b, D, &msg);
}

/* A request is on its way, and with it, unless `margin` is 0, a pull from D to P. */
static uint64_t begin(bench *b, double margin)
{
    uint64_t id;
    fg_dispatch_options options = bench_options(b);
    options.place.split = FG_PLACE_ALWAYS;
    options.place.pull = margin;
    bench_open_with(b, &options);
    bench_join_pair(b);
    tell_what_is_cached(b);
    b->sent_count = 0;
    cr_assert_eq(bench_start(b, PROMPT, 3, &id), FG_OK);
    cr_assert_null(bench_sent(b, P, FG_MSG_RESERVE), "decode may do it alone");
    return id;
}

static void give_ticket(bench *b, uint64_t id, bool granted)
{
    static const uint32_t blocks[MISSING] = { 4, 5, 6 };
    fg_msg msg = { .kind = FG_MSG_TICKET, .request = id, .attempt = PULL };
    msg.ticket.granted = granted;
    msg.ticket.ticket = 99;
    msg.ticket.first_block = granted ? BLOCKS - MISSING : 0;
    msg.ticket.blocks = granted ? blocks : NULL;
    msg.ticket.block_count = granted ? MISSING : 0;
    bench_give(b, P, &msg);
}

static void give_done(bench *b, uint32_t peer, uint64_t id, fg_finish finish)
{
    fg_msg msg = { .kind = FG_MSG_DONE, .request = id, .attempt = PULL };
    msg.done.finish = finish;
    msg.done.text = "gone";
    bench_give(b, peer, &msg);
}

/* CANCELs of the pull that this worker got. */
static uint32_t cancels(const bench *b, uint32_t peer)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < b->sent_count; i++) {
        count += b->sent[i].peer == peer && b->sent[i].msg.kind == FG_MSG_CANCEL &&
                 b->sent[i].msg.attempt == PULL;
    }
    return count;
}

static fg_dispatch_stats stats_of(const bench *b)
{
    fg_dispatch_stats stats;
    fg_dispatch_stats_get(b->dispatch, &stats);
    return stats;
}

Test(pull, blocks_are_sent_before_the_prompt)
{
    bench b;
    uint64_t id = begin(&b, 1e-9);
    bench_ticket(&b, id, 1);
    const fg_msg *reserve = bench_sent(&b, P, FG_MSG_RESERVE);
    cr_assert_not_null(reserve);
    cr_assert(reserve < bench_sent(&b, P, FG_MSG_PREFILL), "who comes later waits for it");
    cr_assert(reserve->request == id && reserve->attempt == PULL);
    cr_assert(reserve->reserve.sampling.pull && reserve->reserve.token_count == BLOCKS * 4);
    cr_assert_str_eq(reserve->reserve.writer.name, "d");
    const fg_msg *own = bench_sent(&b, D, FG_MSG_RESERVE);
    cr_assert(own != NULL && own->attempt == 1 && !own->reserve.sampling.pull,
              "the request itself goes its way");
    give_ticket(&b, id, true);
    const fg_msg *prefill = bench_sent(&b, D, FG_MSG_PREFILL);
    cr_assert_not_null(prefill);
    cr_assert(prefill->attempt == PULL && prefill->prefill.sampling.pull);
    cr_assert(prefill->prefill.ticket == 99 && prefill->prefill.block_count == MISSING &&
              prefill->prefill.token_count == BLOCKS * 4);
    cr_assert_str_eq(prefill->prefill.target.name, "p");
    give_done(&b, P, id, FG_FINISH_HANDED_OVER);
    give_done(&b, D, id, FG_FINISH_HANDED_OVER);
    cr_assert_eq(cancels(&b, P) + cancels(&b, D), 0u);
    cr_assert(stats_of(&b).pulls == 1 && stats_of(&b).pulled_blocks == MISSING);
    bench_first(&b, id, 7);
    bench_token(&b, id, 1, 8);
    bench_token(&b, id, 2, 9);
    bench_done(&b, D, id, FG_FINISH_LENGTH, 3);
    cr_assert(b.end_count == 1 && b.status == FG_OK);
    bench_close(&b);
}

/* ---- what may come instead ---- */

static void no_room(bench *b, uint64_t id)
{
    give_ticket(b, id, false);
}

static void not_cached(bench *b, uint64_t id)
{
    give_ticket(b, id, true);
    give_done(b, D, id, FG_FINISH_ERROR);
}

static void receiver_fails(bench *b, uint64_t id)
{
    give_ticket(b, id, true);
    give_done(b, P, id, FG_FINISH_ERROR);
}

static void client_goes(bench *b, uint64_t id)
{
    cr_assert(fg_dispatch_cancel(b->dispatch, id, FG_FINISH_CANCELLED, NULL));
}

static void computed_meanwhile(bench *b, uint64_t id)
{
    bench_first(b, id, 7);
}

static void sender_dies(bench *b, uint64_t id)
{
    fg_dispatch_on_down(b->dispatch, D);
}

static void receiver_dies(bench *b, uint64_t id)
{
    fg_dispatch_on_down(b->dispatch, P);
}

static void takes_too_long(bench *b, uint64_t id)
{
    for (uint64_t i = 1; i < 80; i++) { /* leases are short here */
        fg_msg load = { .kind = FG_MSG_LOAD, .load = { .sequence = i, .news_sequence = 1 } };
        bench_give(b, P, &(fg_msg){ .kind = FG_MSG_LOAD, .load = { .sequence = i } });
        bench_give(b, D, &load);
        bench_pass(b, 100);
    }
}

static void late_ticket(bench *b, uint64_t id)
{
    client_goes(b, id);
    b->sent_count = 0;
    give_ticket(b, id, true);
}

Test(pull, whatever_happens_nobody_is_left_waiting)
{
    static const struct {
        const char *name;
        void (*happens)(bench *b, uint64_t id);
        uint32_t cancels_p, cancels_d;
    } cases[] = {
        { "no room for it", no_room, 0, 0 },
        { "not cached any more", not_cached, 1, 0 },
        { "the receiver fails", receiver_fails, 0, 1 },
        { "the client goes", client_goes, 1, 1 },
        { "the prompt is computed meanwhile", computed_meanwhile, 1, 1 },
        { "the sender dies", sender_dies, 1, 0 },
        { "the receiver dies", receiver_dies, 0, 1 },
        { "it takes too long", takes_too_long, 1, 1 },
        { "its ticket comes late", late_ticket, 1, 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bench b;
        uint64_t id = begin(&b, 1e-9);
        bench_ticket(&b, id, 1);
        cases[i].happens(&b, id);
        cr_assert_eq(cancels(&b, P), cases[i].cancels_p, "%s: %u to p", cases[i].name,
                     cancels(&b, P));
        cr_assert_eq(cancels(&b, D), cases[i].cancels_d, "%s: %u to d", cases[i].name,
                     cancels(&b, D));
        b.sent_count = 0;
        fg_dispatch_abort_all(b.dispatch, "enough");
        cr_assert_eq(cancels(&b, P) + cancels(&b, D), 0u, "%s: cancelled twice", cases[i].name);
        cr_assert_eq(stats_of(&b).pulled_blocks, 0u);
        bench_close(&b);
    }
}

Test(pull, none_where_decode_does_all_of_it)
{
    bench b;
    uint64_t id = begin(&b, 1e-9);
    fg_msg msg = { .kind = FG_MSG_TICKET, .request = id, .attempt = 1 };
    msg.ticket.granted = true;
    msg.ticket.local = true;
    bench_give(&b, D, &msg);
    cr_assert_null(bench_sent(&b, P, FG_MSG_RESERVE));
    fg_dispatch_abort_all(b.dispatch, "enough");
    cr_assert_eq(cancels(&b, P) + cancels(&b, D), 0u);
    bench_close(&b);
}

Test(pull, none_where_it_is_off_or_no_quicker)
{
    static const double margins[] = { 0, 1e9 };
    for (size_t i = 0; i < 2; i++) {
        bench b;
        uint64_t id = begin(&b, margins[i]);
        bench_ticket(&b, id, 1);
        cr_assert_null(bench_sent(&b, P, FG_MSG_RESERVE));
        cr_assert_eq(stats_of(&b).pulls, 0u);
        bench_close(&b);
    }
}
