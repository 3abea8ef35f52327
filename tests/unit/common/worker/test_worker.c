#include "common/worker/worker.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/dtype.h"
#include "common/base/fault.h"
#include "common/engine/engine_sim.h"
#include "tests/support/test.h"

enum { BLOCKS = 8, BLOCK_SIZE = 4, VOCAB = 50, EOS = 3, SENT_MAX = 64 };

/* A worker with both roles and no link over a simulated engine; what it sends is kept decoded. */
typedef struct bench {
    uint64_t now_ns;
    fg_kv_layout layout;
    void *arena;
    fg_engine *engine;
    fg_worker *worker;
    fg_arena *inbox;
    fg_msg sent[SENT_MAX];
    uint32_t sent_count;
    uint64_t reconnected_as;
    uint32_t heard_by[SENT_MAX], reconnected_at;
    uint32_t routers; /* 0: one */
    fg_status send_answer;
} bench;

static fg_status keep(void *ctx, uint32_t router, const void *bytes, size_t size_bytes)
{
    bench *b = ctx;
    fg_error err = { 0 };
    cr_assert(b->sent_count < SENT_MAX);
    b->heard_by[b->sent_count] = router;
    cr_assert_eq(fg_wire_decode(bytes, size_bytes, b->inbox, &b->sent[b->sent_count++], &err),
                 FG_OK, "%s", err.text);
    return b->send_answer;
}

static void reconnect(void *ctx, uint32_t router, uint64_t epoch)
{
    ((bench *)ctx)->reconnected_as = epoch;
    ((bench *)ctx)->reconnected_at = router;
}

static bool is_end(void *ctx, uint32_t token)
{
    return token == EOS;
}

static fg_worker_options options_of(bench *b)
{
    return (fg_worker_options){ .name = "w",
                                .epoch = 5,
                                .router_count = b->routers,
                                .roles = FG_ROLE_PREFILL | FG_ROLE_DECODE,
                                .clock = fg_clock_manual(&b->now_ns),
                                .engine = b->engine,
                                .layout = b->layout,
                                .block_count = BLOCKS,
                                .context_max = 100,
                                .vocab_size = VOCAB,
                                .embedding_length = FG_ENGINE_SIM_EMBEDDING,
                                .limits = { .step_tokens_max = 8,
                                            .chunk_tokens_max = 4,
                                            .seqs_max = 2,
                                            .block_size = BLOCK_SIZE },
                                .is_end = is_end,
                                .send = keep,
                                .reconnect = reconnect,
                                .ctx = b };
}

static void open_bench_of(bench *b, uint32_t routers)
{
    *b = (bench){ .now_ns = 1000000000u, .routers = routers };
    fg_error err;
    cr_assert_eq(fg_kv_layout_init(&b->layout, 1, 1, 8, BLOCK_SIZE, FG_F16, &err), FG_OK);
    b->arena = calloc(BLOCKS, b->layout.block_bytes);
    b->inbox = fg_arena_create(1 << 20);
    fg_engine_sim_options engine = { .layout = b->layout,
                                     .arena = b->arena,
                                     .block_count = BLOCKS,
                                     .limits = { 8, 2, 100 },
                                     .vocab_size = VOCAB,
                                     .eos_token = EOS,
                                     .manual = true };
    cr_assert_eq(fg_engine_open_sim(&engine, &b->engine, &err), FG_OK);
    fg_worker_options options = options_of(b);
    cr_assert_eq(fg_worker_create(&options, &b->worker, &err), FG_OK);
}

static void open_bench(bench *b)
{
    open_bench_of(b, 0);
}

static void close_bench(bench *b)
{
    fg_worker_destroy(b->worker);
    fg_engine_close(b->engine);
    fg_arena_destroy(b->inbox);
    free(b->arena);
}

static void give_from(bench *b, uint32_t router, const fg_msg *msg)
{
    fg_buf frame;
    fg_buf_init(&frame, 0);
    cr_assert(fg_wire_encode(msg, &frame));
    fg_worker_on_frame(b->worker, router, frame.data, frame.size);
    fg_worker_check(b->worker);
    fg_buf_deinit(&frame);
}

static void give(bench *b, const fg_msg *msg)
{
    give_from(b, 0, msg);
}

static void join(bench *b)
{
    fg_worker_on_up(b->worker, 0);
    cr_assert_eq(b->sent[0].kind, FG_MSG_HELLO);
    give(b, &(fg_msg){ .kind = FG_MSG_WELCOME, .welcome = { .router_epoch = 1, .lease_ms = 800 } });
    cr_assert(fg_worker_joined(b->worker));
    b->sent_count = 0;
}

static void ask_from(bench *b, uint32_t router, uint64_t request, uint32_t prompt_count,
                     uint32_t max_tokens)
{
    static const uint32_t prompt[64] = { 7, 8, 9, 10, 11 };
    fg_msg msg = { .kind = FG_MSG_PREFILL, .request = request, .attempt = 1 };
    msg.prefill.tokens = prompt;
    msg.prefill.token_count = prompt_count;
    msg.prefill.sampling =
        (fg_wire_params){ .top_p = 1.0f, .max_tokens = max_tokens, .ignore_eos = true };
    give_from(b, router, &msg);
}

static void ask(bench *b, uint64_t request, uint32_t prompt_count, uint32_t max_tokens)
{
    ask_from(b, 0, request, prompt_count, max_tokens);
}

static bool step(bench *b)
{
    bool did = fg_engine_sim_complete(b->engine);
    fg_worker_on_engine(b->worker);
    fg_worker_check(b->worker);
    return did;
}

static const fg_msg *find_sent(const bench *b, fg_msg_kind kind, uint64_t request)
{
    for (uint32_t i = 0; i < b->sent_count; i++) {
        if (b->sent[i].kind == kind && b->sent[i].request == request) {
            return &b->sent[i];
        }
    }
    return NULL;
}

static uint32_t free_blocks(const bench *b)
{
    fg_worker_stats stats;
    fg_worker_stats_get(b->worker, &stats);
    return stats.pool.free + stats.pool.cached - stats.pool.promised;
}

Test(worker, runs_a_request_to_its_length_and_gives_everything_back)
{
    bench b;
    open_bench(&b);
    join(&b);
    ask(&b, 1, 5, 4);
    cr_assert_eq(free_blocks(&b), BLOCKS - 2u); /* 5 tokens: 2 blocks are taken or set aside */
    while (step(&b)) {
    }
    const fg_msg *first = find_sent(&b, FG_MSG_FIRST, 1);
    const fg_msg *done = find_sent(&b, FG_MSG_DONE, 1);
    cr_assert(first != NULL && done != NULL);
    cr_assert_eq(done->done.finish, FG_FINISH_LENGTH);
    cr_assert_eq(done->done.generated, 4u);
    uint32_t tokens[16] = { 7, 8, 9, 10, 11 };
    fg_sampling greedy = { .top_p = 1.0f };
    cr_assert_eq(first->first.id, fg_engine_sim_expected(tokens, 5, VOCAB, EOS, &greedy, 0).token);
    cr_assert_eq(free_blocks(&b), (uint32_t)BLOCKS);
    cr_assert(fg_worker_idle(b.worker));
    close_bench(&b);
}

Test(worker, the_third_waits_for_a_slot_and_is_admitted_when_one_is_free)
{
    bench b;
    open_bench(&b);
    join(&b);
    ask(&b, 1, 2, 2);
    ask(&b, 2, 2, 6);
    ask(&b, 3, 2, 2);
    fg_worker_stats stats;
    fg_worker_stats_get(b.worker, &stats);
    cr_assert_eq(stats.waiting, 2u); /* the first is in the step; the next plan takes the second */
    while (step(&b)) {
        fg_worker_stats_get(b.worker, &stats);
        cr_assert(stats.running <= 2);
    }
    cr_assert(find_sent(&b, FG_MSG_DONE, 1) != NULL && find_sent(&b, FG_MSG_DONE, 2) != NULL &&
              find_sent(&b, FG_MSG_DONE, 3) != NULL);
    close_bench(&b);
}

static const struct {
    const char *name;
    uint32_t prompt, max_tokens;
    const char *word;
} misfits[] = {
    { "longer than the context", 60, 60, "context" },
    { "more blocks than there are", 33, 13, "KV blocks" },
};

Test(worker, refuses_at_once_what_can_never_fit)
{
    for (size_t i = 0; i < sizeof misfits / sizeof *misfits; i++) {
        bench b;
        open_bench(&b);
        join(&b);
        ask(&b, 1, misfits[i].prompt, misfits[i].max_tokens);
        const fg_msg *done = find_sent(&b, FG_MSG_DONE, 1);
        cr_assert(done != NULL && done->done.finish == FG_FINISH_ERROR, "%s", misfits[i].name);
        cr_assert(strstr(done->done.text, misfits[i].word) != NULL, "%s", done->done.text);
        cr_assert_eq(free_blocks(&b), (uint32_t)BLOCKS);
        close_bench(&b);
    }
}

Test(worker, cancel_during_a_step_gives_the_blocks_back_after_it)
{
    bench b;
    open_bench(&b);
    join(&b);
    ask(&b, 1, 5, 4);
    give(&b, &(fg_msg){ .kind = FG_MSG_CANCEL, .request = 1, .attempt = 1 });
    cr_assert(free_blocks(&b) < BLOCKS, "the engine still writes there");
    step(&b);
    cr_assert_eq(free_blocks(&b), (uint32_t)BLOCKS);
    cr_assert_null(find_sent(&b, FG_MSG_FIRST, 1));
    cr_assert_null(find_sent(&b, FG_MSG_DONE, 1));
    close_bench(&b);
}

Test(worker, a_stale_cancel_and_a_doubled_prefill_change_nothing)
{
    bench b;
    open_bench(&b);
    join(&b);
    ask(&b, 1, 5, 4);
    ask(&b, 1, 5, 4);
    give(&b, &(fg_msg){ .kind = FG_MSG_CANCEL, .request = 1, .attempt = 2 });
    give(&b, &(fg_msg){ .kind = FG_MSG_CANCEL, .request = 99, .attempt = 1 });
    while (step(&b)) {
    }
    fg_worker_stats stats;
    fg_worker_stats_get(b.worker, &stats);
    cr_assert_eq(stats.stale_dropped, 3u);
    cr_assert_eq(find_sent(&b, FG_MSG_DONE, 1)->done.generated, 4u);
    close_bench(&b);
}

Test(worker, a_prefill_doubled_after_the_end_is_not_run_again)
{
    bench b;
    open_bench(&b);
    join(&b);
    ask(&b, 1, 5, 2);
    while (step(&b)) {
    }
    uint32_t sent = b.sent_count;
    ask(&b, 1, 5, 2);
    cr_assert(!step(&b), "nothing to compute");
    cr_assert_eq(b.sent_count, sent);
    close_bench(&b);
}

Test(worker, consecutive_requests_and_attempts_are_not_confused)
{
    /* Request 10 in attempt 2 and request 11 in attempt 1 once shared a key. */
    bench b;
    open_bench(&b);
    join(&b);
    ask(&b, 11, 2, 2);
    fg_msg msg = { .kind = FG_MSG_PREFILL, .request = 10, .attempt = 2 };
    msg.prefill.tokens = (const uint32_t[]){ 7, 8 };
    msg.prefill.token_count = 2;
    msg.prefill.sampling = (fg_wire_params){ .top_p = 1.0f, .max_tokens = 2, .ignore_eos = true };
    give(&b, &msg);
    while (step(&b)) {
    }
    cr_assert(find_sent(&b, FG_MSG_DONE, 10) != NULL && find_sent(&b, FG_MSG_DONE, 11) != NULL);
    close_bench(&b);
}

Test(worker, losing_the_router_ends_everything_and_comes_back_as_a_stranger)
{
    bench b;
    open_bench(&b);
    join(&b);
    ask(&b, 1, 5, 4);
    step(&b);
    fg_worker_on_down(b.worker, 0);
    step(&b);
    cr_assert_eq(free_blocks(&b), (uint32_t)BLOCKS);
    b.now_ns += 2000000000u;
    fg_worker_on_up(b.worker, 0); /* the old connection: ignored */
    cr_assert(!fg_worker_joined(b.worker));
    fg_worker_tick(b.worker);
    cr_assert_eq(b.reconnected_as, 6u);
    close_bench(&b);
}

Test(worker, a_router_that_reads_nothing_is_left)
{
    bench b;
    open_bench(&b);
    join(&b);
    b.send_answer = FG_AGAIN;
    ask(&b, 1, 5, 4);
    while (step(&b)) {
    }
    fg_worker_tick(b.worker);
    b.now_ns += 2000000000u;
    fg_worker_tick(b.worker);
    cr_assert_eq(b.reconnected_as, 6u);
    close_bench(&b);
}

Test(worker, a_router_that_does_not_answer_hello_is_left)
{
    bench b;
    open_bench(&b);
    fg_worker_on_up(b.worker, 0);
    b.now_ns += 2500000000u;
    fg_worker_tick(b.worker);
    cr_assert_eq(b.reconnected_as, 0u);
    b.now_ns += 1000000000u;
    fg_worker_tick(b.worker);
    cr_assert_eq(b.reconnected_as, 6u);
    close_bench(&b);
}

static void refuse(bench *b, int times)
{
    fg_msg msg = { .kind = FG_MSG_REFUSE };
    msg.refuse.reason = "not a member any more";
    for (int i = 0; i < times; i++) {
        give(b, &msg);
    }
}

/* A router answers every frame of a connection that it has given up; all that is one refusal. */
Test(worker, many_refusals_of_one_connection_do_not_lengthen_the_wait)
{
    bench b;
    open_bench(&b);
    join(&b);
    refuse(&b, 12);
    fg_worker_tick(b.worker);
    cr_assert(!fg_worker_joined(b.worker));
    refuse(&b, 12); /* under way when it left */
    b.now_ns += 600000000u;
    fg_worker_tick(b.worker);
    cr_assert_eq(b.reconnected_as, 6u);
    close_bench(&b);
}

Test(worker, nothing_is_sent_after_a_frame_that_was_lost)
{
    bench b;
    open_bench(&b);
    join(&b);
    b.send_answer = FG_AGAIN;
    b.now_ns += 200000000u;
    fg_worker_tick(b.worker); /* its LOAD is lost */
    b.send_answer = FG_OK;
    uint32_t sent = b.sent_count;
    uint32_t tokens[90] = { 0 };
    fg_msg msg = { .kind = FG_MSG_PREFILL, .request = 1, .attempt = 1 };
    msg.prefill.tokens = tokens;
    msg.prefill.token_count = 90; /* can never fit: DONE, if it could speak */
    msg.prefill.sampling.max_tokens = 5;
    give(&b, &msg);
    cr_assert_eq(b.sent_count, sent);
    close_bench(&b);
}

Test(worker, a_welcome_after_it_has_left_makes_no_member)
{
    bench b;
    open_bench(&b);
    join(&b);
    fg_worker_on_down(b.worker, 0);
    give(&b,
         &(fg_msg){ .kind = FG_MSG_WELCOME, .welcome = { .router_epoch = 1, .lease_ms = 800 } });
    cr_assert(!fg_worker_joined(b.worker));
    close_bench(&b);
}

Test(worker, one_that_drains_says_so_again_when_it_joins_again)
{
    bench b;
    open_bench(&b);
    join(&b);
    fg_worker_drain(b.worker);
    fg_worker_on_down(b.worker, 0);
    b.sent_count = 0;
    b.now_ns += 600000000u;
    fg_worker_tick(b.worker);
    fg_worker_on_up(b.worker, 0);
    give(&b,
         &(fg_msg){ .kind = FG_MSG_WELCOME, .welcome = { .router_epoch = 1, .lease_ms = 800 } });
    bool said = false;
    for (uint32_t i = 0; i < b.sent_count; i++) {
        said = said || b.sent[i].kind == FG_MSG_DRAIN;
    }
    cr_assert(said);
    close_bench(&b);
}

Test(worker, garbage_frames_are_counted_and_dropped)
{
    bench b;
    open_bench(&b);
    join(&b);
    fg_worker_on_frame(b.worker, 0, "garbage", 7);
    fg_worker_on_frame(b.worker, 0, "", 0);
    give(&b, &(fg_msg){ .kind = FG_MSG_DRAIN }); /* valid, but not for a worker */
    fg_worker_stats stats;
    fg_worker_stats_get(b.worker, &stats);
    cr_assert_eq(stats.frames_refused, 3u);
    close_bench(&b);
}

static bool create_once(void *ctx)
{
    bench *b = ctx;
    fg_worker_options options = options_of(b);
    fg_worker *worker = NULL;
    if (fg_worker_create(&options, &worker, NULL) != FG_OK) {
        return false;
    }
    fg_worker_destroy(worker);
    return true;
}

Test(worker, survives_each_failed_allocation)
{
    bench b;
    open_bench(&b);
    cr_assert(fg_fault_each(create_once, &b) > 10);
    close_bench(&b);
}

/* docs/SCHEDULING.md, "A few steps": what the page says happens. */
typedef struct seen_step {
    uint32_t decode_rows, prefill_tokens, held, cached, preempted, admitted;
} seen_step;

static seen_step seen_steps[32];
static uint32_t seen_count;

static void see_step(void *ctx, const fg_trace_step *step)
{
    if (seen_count < 32) {
        seen_steps[seen_count++] =
            (seen_step){ step->decode_rows,   step->prefill_tokens, step->blocks_held,
                         step->blocks_cached, step->preempted,      step->admitted };
    }
}

static void ask_tokens(bench *b, uint64_t request, const uint32_t *tokens, uint32_t count,
                       uint32_t max_tokens)
{
    fg_msg msg = { .kind = FG_MSG_PREFILL, .request = request, .attempt = 1 };
    msg.prefill.tokens = tokens;
    msg.prefill.token_count = count;
    msg.prefill.sampling =
        (fg_wire_params){ .top_p = 1.0f, .max_tokens = max_tokens, .ignore_eos = true };
    give(b, &msg);
}

Test(worker, does_what_the_page_on_scheduling_shows)
{
    static const uint32_t a[] = { 1, 2, 4, 5, 6, 7 };
    static const uint32_t x[] = { 1, 2, 4, 5, 20, 21, 22, 23, 24, 25, 26, 27, 28 };
    static const uint32_t c[] = { 40, 41, 42, 43 };
    static const seen_step want[] = {
        { 0, 6, 2, 0, 0, 1 }, { 1, 12, 5, 0, 0, 2 }, { 2, 1, 7, 0, 0, 0 }, { 3, 0, 8, 0, 0, 0 },
        { 3, 0, 8, 0, 0, 0 }, { 3, 0, 8, 0, 0, 0 },  { 2, 0, 6, 2, 1, 0 }, { 2, 0, 7, 1, 0, 0 },
        { 2, 0, 4, 3, 0, 0 }, { 1, 8, 7, 1, 0, 1 },  { 2, 0, 8, 0, 0, 0 },
    };
    bench b;
    open_bench(&b);
    fg_worker_destroy(b.worker);
    fg_engine_close(b.engine);
    fg_error err;
    fg_engine_sim_options engine = { .layout = b.layout,
                                     .arena = b.arena,
                                     .block_count = BLOCKS,
                                     .limits = { 24, 4, 100 },
                                     .vocab_size = VOCAB,
                                     .eos_token = EOS,
                                     .manual = true };
    cr_assert_eq(fg_engine_open_sim(&engine, &b.engine, &err), FG_OK);
    fg_worker_options options = options_of(&b);
    options.limits.step_tokens_max = 24;
    options.limits.chunk_tokens_max = 8;
    options.limits.seqs_max = 4;
    options.prefix_cache = true;
    options.on_step = see_step;
    seen_count = 0;
    cr_assert_eq(fg_worker_create(&options, &b.worker, &err), FG_OK, "%s", err.text);
    join(&b);
    ask_tokens(&b, 1, a, 6, 14);
    ask_tokens(&b, 2, x, 13, 10);
    ask_tokens(&b, 3, c, 4, 8);
    while (seen_count < sizeof want / sizeof *want && step(&b)) {
    }
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const seen_step *w = &want[i], *s = &seen_steps[i];
        cr_assert(memcmp(w, s, sizeof *w) == 0,
                  "step %zu: rows %u prompt %u held %u cached %u preempted %u admitted %u", i + 1,
                  s->decode_rows, s->prefill_tokens, s->held, s->cached, s->preempted, s->admitted);
    }
    close_bench(&b);
}

/* ---- several routers ---- */

static void join_at(bench *b, uint32_t router, uint64_t key)
{
    fg_worker_on_up(b->worker, router);
    give_from(b, router,
              &(fg_msg){ .kind = FG_MSG_WELCOME,
                         .welcome = { .router_epoch = 1, .lease_ms = 800, .cache_key_low = key } });
}

static uint32_t count_sent(const bench *b, uint32_t router, fg_msg_kind kind)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < b->sent_count; i++) {
        count += b->heard_by[i] == router && b->sent[i].kind == kind;
    }
    return count;
}

Test(routers, each_hears_of_its_own_requests_alone_though_they_have_one_number)
{
    bench b;
    open_bench_of(&b, 2);
    join_at(&b, 0, 7);
    join_at(&b, 1, 7);
    cr_assert_eq(b.sent[0].hello.self.epoch, 5u);
    cr_assert(count_sent(&b, 0, FG_MSG_HELLO) == 1 && count_sent(&b, 1, FG_MSG_HELLO) == 1);
    b.sent_count = 0;
    ask_from(&b, 0, 9, 3, 3);
    ask_from(&b, 1, 9, 3, 2);
    while (step(&b)) {
    }
    for (uint32_t router = 0; router < 2; router++) {
        cr_assert_eq(count_sent(&b, router, FG_MSG_FIRST), 1, "router %u", router);
        cr_assert_eq(count_sent(&b, router, FG_MSG_DONE), 1, "router %u", router);
        cr_assert_eq(count_sent(&b, router, FG_MSG_TOKENS), router == 0 ? 2 : 1, "router %u",
                     router);
    }
    for (uint32_t i = 0; i < b.sent_count; i++) {
        if (b.sent[i].kind == FG_MSG_DONE) {
            cr_assert_eq(b.sent[i].done.generated, b.heard_by[i] == 0 ? 3 : 2);
        }
    }
    close_bench(&b);
}

Test(routers, a_lost_one_takes_only_its_own_sequences_along)
{
    bench b;
    open_bench_of(&b, 2);
    join_at(&b, 0, 7);
    join_at(&b, 1, 7);
    b.sent_count = 0;
    ask_from(&b, 0, 1, 3, 3);
    ask_from(&b, 1, 1, 3, 3);
    step(&b);
    fg_worker_on_down(b.worker, 1);
    cr_assert(fg_worker_joined_at(b.worker, 0) && !fg_worker_joined_at(b.worker, 1));
    cr_assert(fg_worker_joined(b.worker));
    b.sent_count = 0;
    while (step(&b)) {
    }
    cr_assert_eq(count_sent(&b, 0, FG_MSG_DONE), 1);
    for (uint32_t i = 0; i < b.sent_count; i++) {
        cr_assert_eq(b.heard_by[i], 0, "%s went to who is gone", fg_msg_name(b.sent[i].kind));
    }
    /* It comes back under a number that nobody has had. */
    b.now_ns += 500000000u;
    fg_worker_tick(b.worker);
    cr_assert(b.reconnected_at == 1 && b.reconnected_as == 8u, "%llu",
              (unsigned long long)b.reconnected_as);
    fg_worker_stats stats;
    fg_worker_stats_get(b.worker, &stats);
    cr_assert_eq(stats.leaked_blocks, 0u);
    cr_assert_eq(stats.running + stats.waiting + stats.closing, 0u);
    close_bench(&b);
}

Test(routers, all_hear_of_load_and_drain_and_none_undoes_anothers_role)
{
    bench b;
    open_bench_of(&b, 2);
    join_at(&b, 0, 7);
    join_at(&b, 1, 7);
    give_from(&b, 1, &(fg_msg){ .kind = FG_MSG_ROLE, .role = { .roles = FG_ROLE_DECODE } });
    b.sent_count = 0;
    ask_from(&b, 0, 1, 3, 3);
    b.now_ns += 200000000u;
    fg_worker_tick(b.worker);
    fg_worker_drain(b.worker);
    for (uint32_t router = 0; router < 2; router++) {
        cr_assert_eq(count_sent(&b, router, FG_MSG_LOAD), 1, "router %u", router);
        cr_assert_eq(count_sent(&b, router, FG_MSG_DRAIN), 1, "router %u", router);
    }
    for (uint32_t i = 0; i < b.sent_count; i++) {
        cr_assert(b.sent[i].kind != FG_MSG_LOAD || b.sent[i].load.running == 1,
                  "router %u is not told what others have here", b.heard_by[i]);
    }
    for (uint32_t router = 0; router < 2; router++) {
        fg_worker_on_down(b.worker, router);
        b.now_ns += 500000000u;
        fg_worker_tick(b.worker);
        b.sent_count = 0;
        fg_worker_on_up(b.worker, router);
        cr_assert_eq(b.sent[0].hello.roles,
                     router == 1 ? FG_ROLE_DECODE : FG_ROLE_PREFILL | FG_ROLE_DECODE);
    }
    close_bench(&b);
}

Test(routers, one_with_another_cache_key_is_left_alone_while_others_are_there)
{
    bench b;
    open_bench_of(&b, 2);
    join_at(&b, 0, 7);
    join_at(&b, 1, 8);
    cr_assert(fg_worker_joined_at(b.worker, 0) && !fg_worker_joined_at(b.worker, 1));
    fg_worker_tick(b.worker);
    fg_worker_on_down(b.worker, 0);
    b.now_ns += 600000000u;
    fg_worker_tick(b.worker);
    join_at(&b, 1, 8); /* nobody else has it now */
    cr_assert(fg_worker_joined_at(b.worker, 1));
    close_bench(&b);
}

Test(routers, there_are_not_more_than_eight)
{
    bench b;
    open_bench_of(&b, FG_WORKER_ROUTERS_MAX);
    fg_worker_options options = options_of(&b);
    options.router_count = FG_WORKER_ROUTERS_MAX + 1;
    fg_worker *worker;
    fg_error err;
    cr_assert_eq(fg_worker_create(&options, &worker, &err), FG_BAD_INPUT);
    close_bench(&b);
}
