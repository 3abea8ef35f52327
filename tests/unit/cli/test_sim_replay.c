/* A dispatcher is played with, and what its flight recorder kept is run again: `forge sim --replay`. */
#include "router/flight_records.h"
#include "tests/support/test.h"
#include "tests/unit/cli/replay_bench.h"
#include "tests/unit/router/dispatch_bench.h"

static const char record_secret[] = "LINKRECORDSECRET0123456789";
static const char text_secret[] = "the prompt was: walrus";

static fg_flight *flight_for(const fg_dispatch_options *options, size_t bytes)
{
    fg_buf preface;
    fg_flight *flight;
    fg_buf_init(&preface, 0);
    cr_assert(fg_record_put_options(options, &preface));
    fg_flight_options with = { .bytes = bytes,
                               .shape = fg_record_shape(),
                               .process = "router",
                               .directory = "/tmp",
                               .preface = preface.data,
                               .preface_bytes = preface.size };
    cr_assert_eq(fg_flight_create(&with, &flight, NULL), FG_OK);
    fg_buf_deinit(&preface);
    return flight;
}

static void open_recorded(bench *b, size_t bytes, fg_flight **flight_out)
{
    static const char *const awaited[] = { "p", "d" };
    fg_dispatch_options options = bench_options(b);
    options.wait_for_prefill = awaited;
    options.wait_for_prefill_count = 1;
    options.wait_for_decode = awaited + 1;
    options.wait_for_decode_count = 1;
    options.flight = flight_for(&options, bytes);
    *flight_out = options.flight;
    bench_open_with(b, &options);
}

static void end(bench *b, uint64_t id)
{
    bench_first(b, id, 0xC0DE5EC7);
    bench_token(b, id, 1, 0xC0DE5EC7);
    bench_token(b, id, 2, 0xC0DE5EC7);
    bench_done(b, D, id, FG_FINISH_LENGTH, 3);
}

/* One of everything that comes in. */
static void live(bench *b)
{
    uint64_t id;
    bench_join_pair(b);
    bench_pass(b, 100); /* those who were awaited are there */
    fg_msg hello = { .kind = FG_MSG_HELLO, .hello = bench_hello("third", FG_ROLE_DECODE) };
    hello.hello.link_record = record_secret;
    hello.hello.link_record_bytes = sizeof record_secret;
    fg_dispatch_on_up(b->dispatch, 12, "third#1");
    bench_give(b, 12, &hello);
    cr_assert_eq(fg_dispatch_set_role(b->dispatch, "third", FG_ROLE_PREFILL, NULL, NULL), FG_OK);
    cr_assert_neq(fg_dispatch_set_role(b->dispatch, "nobody", FG_ROLE_PREFILL, NULL, NULL), FG_OK);
    b->params.salt_low = 0x5EC2E75A17;
    cr_assert_eq(bench_start(b, 9, 3, &id), FG_OK);
    bench_pass(b, 100);
    bench_ticket(b, id, 1);
    end(b, id);
    fg_msg news = { .kind = FG_MSG_NEWS, .news = { .sequence = 3 } }; /* 1 and 2 are missing */
    bench_give(b, P, &news);
    cr_assert_eq(bench_start(b, 9, 3, &id), FG_OK);
    bench_ticket(b, id, 1);
    b->token_count = 0;
    b->cancel_on_token = id; /* from inside the sink */
    bench_first(b, id, 5);
    b->cancel_on_token = 0;
    cr_assert_neq(bench_start(b, 150, 3, &id), FG_OK);
    b->refuse_peer = D; /* its queue is full */
    cr_assert_eq(bench_start(b, 9, 3, &id), FG_OK);
    b->refuse_peer = 0;
    fg_msg load = { .kind = FG_MSG_LOAD, .load = { .total = 10, .free = 10, .sequence = 1 } };
    bench_give(b, D, &load);
    fg_msg failed = { .kind = FG_MSG_DONE, .request = id, .attempt = 1 };
    failed.done.finish = FG_FINISH_ERROR;
    failed.done.text = text_secret;
    bench_give(b, D, &failed);
    fg_dispatch_on_frame(b->dispatch, P, "nonsense", 8);
    bench_give(b, P, &(fg_msg){ .kind = FG_MSG_CLEAR });
    fg_dispatch_on_frame(b->dispatch, 99, "nonsense", 8);
    fg_dispatch_clear_cache(b->dispatch);
    fg_dispatch_on_down(b->dispatch, 12);
    bench_pass(b, 500);
    fg_dispatch_abort_all(b->dispatch, "enough");
    bench_pass(b, 3000); /* leases run out */
}

Test(sim_replay, a_session_runs_the_same)
{
    bench b;
    fg_flight *flight;
    open_recorded(&b, 1 << 20, &flight);
    live(&b);
    fg_buf bytes = replay_kept(flight);
    fg_replay_progress progress = replay_run(&bytes);
    cr_assert(progress.ended && !progress.differs, "%s", progress.text);
    cr_assert_eq(progress.records, replay_parsed(&bytes).records);
    cr_assert_eq(progress.starts, 4u);
    cr_assert_eq(replay_code(&bytes), 0);
    bench_close(&b);
    fg_flight_destroy(flight);
    fg_buf_deinit(&bytes);
}

Test(sim_replay, each_prefix_of_a_session_runs_the_same)
{
    bench b;
    fg_flight *flight;
    open_recorded(&b, 1 << 20, &flight);
    live(&b);
    fg_buf bytes = replay_kept(flight);
    replay_each_prefix(&bytes);
    bench_close(&b);
    fg_flight_destroy(flight);
    fg_buf_deinit(&bytes);
}

Test(sim_replay, a_record_keeps_no_secret)
{
    bench b;
    fg_flight *flight;
    open_recorded(&b, 1 << 20, &flight);
    live(&b);
    fg_buf bytes = replay_kept(flight);
    const uint32_t token = 0xC0DE5EC7;
    const uint64_t salt = 0x5EC2E75A17, key_low = 0xC0FFEE, key_high = 0xBEEF;
    cr_assert(!replay_contains(&bytes, record_secret, 8), "a link record");
    cr_assert(!replay_contains(&bytes, text_secret, 8), "the text of an error");
    cr_assert(!replay_contains(&bytes, &token, sizeof token), "a token");
    cr_assert(!replay_contains(&bytes, &salt, sizeof salt), "a salt");
    cr_assert(!replay_contains(&bytes, &key_low, 8) && !replay_contains(&bytes, &key_high, 8),
              "the cache key");
    cr_assert(replay_contains(&bytes, "third#1", 7), "names are there");
    bench_close(&b);
    fg_flight_destroy(flight);
    fg_buf_deinit(&bytes);
}

Test(sim_replay, a_record_that_begins_at_rest_runs_the_same)
{
    bench b;
    fg_flight *flight;
    uint64_t id;
    open_recorded(&b, 32 << 10, &flight);
    bench_join_pair(&b);
    bench_pass(&b, 100);
    uint32_t rests = 0;
    for (uint32_t i = 0; i < 300; i++) {
        b.sent_count = b.token_count = 0;
        cr_assert_eq(bench_start(&b, 9, 3, &id), FG_OK);
        bench_ticket(&b, id, 1);
        end(&b, id);
        fg_msg load = { .kind = FG_MSG_LOAD, .load = { .total = 10, .free = 10, .sequence = i } };
        bench_give(&b, P, &load);
        bench_give(&b, D, &load);
        bench_pass(&b, 100);
        if (i % 20 == 19) {
            fg_buf bytes = replay_kept(flight);
            fg_flight_file file = replay_parsed(&bytes);
            cr_assert(file.can_run);
            rests += file.header->chunks[file.first].kind == FG_FLIGHT_REST;
            fg_replay_progress progress = replay_run(&bytes);
            cr_assert(progress.ended && progress.starts > 0, "%u: %s", i, progress.text);
            fg_buf_deinit(&bytes);
        }
    }
    cr_assert_gt(rests, 5u);
    bench_close(&b);
    fg_flight_destroy(flight);
}

/* ---- another life than then ---- */

static void longer_answer(fg_buf *bytes)
{
    ((fg_record_start *)replay_find(bytes, FG_RECORD_START))->params.max_tokens += 1;
}

static void other_frame(fg_buf *bytes)
{
    ((fg_record_sent *)replay_find(bytes, FG_RECORD_SENT))->hash ^= 1;
}

static void other_end(fg_buf *bytes)
{
    ((fg_record_ended *)replay_find(bytes, FG_RECORD_ENDED))->tokens++;
}

static void other_blocks(fg_buf *bytes)
{
    ((fg_record_ticket *)replay_find(bytes, FG_RECORD_TICKET))->granted = 0;
}

static void other_policy(fg_buf *bytes)
{
    ((fg_record_options *)(bytes->data + sizeof(fg_flight_header)))->place.split = FG_PLACE_UNSPLIT;
}

/* What no worker may say: encoding it is a bug of whoever does, and aborts. */
static void breaks_an_assertion(fg_buf *bytes)
{
    replay_end_inside(bytes);
    ((fg_record_first *)replay_find(bytes, FG_RECORD_FIRST))->cached_tokens = UINT32_MAX;
}

static void nonsense_size(fg_buf *bytes)
{
    ((fg_flight_record *)replay_find(bytes, FG_RECORD_DOWN) - 1)->kind = FG_RECORD_TICK;
}

static void nonsense_policy(fg_buf *bytes)
{
    ((fg_record_options *)(bytes->data + sizeof(fg_flight_header)))->place.policy = 77;
}

Test(sim_replay, what_is_not_as_then_is_told)
{
    static const replay_case cases[] = {
        { "a longer answer", longer_answer, 1 },
        { "another frame", other_frame, 1 },
        { "another end", other_end, 1 },
        { "a refused reservation", other_blocks, 1 },
        { "another policy", other_policy, 1 },
        { "then it crashed", replay_end_inside, 1 },
        { "it crashes now", breaks_an_assertion, 1 },
        { "a record of another size", nonsense_size, 2 },
        { "options that cannot be", nonsense_policy, 2 },
    };
    bench b;
    fg_flight *flight;
    open_recorded(&b, 1 << 20, &flight);
    live(&b);
    replay_check_cases(flight, cases, sizeof cases / sizeof *cases);
    bench_close(&b);
    fg_flight_destroy(flight);
}
