/* What the dispatcher promises and what it refuses, by the times that it predicts. */
#include <stdio.h>
#include <string.h>

#include "tests/support/test.h"
#include "tests/unit/router/dispatch_bench.h"

enum { PROMPT = 18 };
#define MS 1000000ull

/* P computes a token in `prefill_ns`, and says so; so does D. */
static void join_sized(bench *b, uint64_t prefill_ns, uint32_t block_count, uint32_t prefills,
                       uint32_t decodes)
{
    static const struct {
        uint32_t peer, roles;
        const char *name;
    } workers[] = { { P, FG_ROLE_PREFILL, "p" }, { D, FG_ROLE_DECODE, "d" } };
    for (size_t i = 0; i < 2; i++) {
        fg_msg msg = { .kind = FG_MSG_HELLO,
                       .hello = bench_hello(workers[i].name, workers[i].roles) };
        msg.hello.block_count = block_count;
        msg.hello.max_seqs = workers[i].peer == P ? prefills : decodes;
        msg.hello.context_max = 1000;
        msg.hello.speed = (fg_wire_speed){ .prefill_ns_base = 1000,
                                           .prefill_ns_per_token = prefill_ns,
                                           .step_ns_base = 10 * MS,
                                           .step_ns_per_row = 1000 };
        char identity[40];
        snprintf(identity, sizeof identity, "%s#1", workers[i].name);
        fg_dispatch_on_up(b->dispatch, workers[i].peer, identity);
        bench_give(b, workers[i].peer, &msg);
    }
    fg_dispatch_tick(b->dispatch);
    b->sent_count = 0;
}

static void join_measured(bench *b, uint64_t prefill_ns)
{
    join_sized(b, prefill_ns, 12, 4, 4); /* no ample room behind one prompt */
}

static fg_status start(bench *b, const fg_admit_slo *slo, uint64_t deadline_ns, uint64_t *id,
                       fg_error *err)
{
    static const uint32_t tokens[PROMPT] = { 5 };
    fg_dispatch_job job = { .tokens = tokens,
                            .token_count = PROMPT,
                            .params = { .top_p = 1, .max_tokens = 10 },
                            .slo = *slo,
                            .deadline_ns = deadline_ns,
                            .sink = bench_sink(b) };
    return fg_dispatch_start(b->dispatch, &job, id, err);
}

static const struct {
    const char *name;
    fg_admit_slo slo;
    uint64_t deadline_ns;
    fg_status want;
    fg_admit_reason reason;
} cases[] = {
    { "nothing is promised", { 0, 0 }, 0, FG_OK, FG_ADMIT_OK },
    { "a second is enough", { 1000 * MS, 0 }, 0, FG_OK, FG_ADMIT_OK },
    { "18 tokens take 36 ms", { 20 * MS, 0 }, 0, FG_AGAIN, FG_ADMIT_TTFT },
    { "a step takes 10 ms", { 0, 5 * MS }, 0, FG_AGAIN, FG_ADMIT_ITL },
    { "50 ms for a step", { 0, 50 * MS }, 0, FG_OK, FG_ADMIT_OK },
    { "ten tokens in 60 ms", { 0, 0 }, 60 * MS, FG_AGAIN, FG_ADMIT_DEADLINE },
    { "ten tokens in a second", { 0, 0 }, 1000 * MS, FG_OK, FG_ADMIT_OK },
};

Test(admission, what_would_be_missed_is_refused_before_anything_is_sent)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bench b;
        uint64_t id;
        fg_error err = { 0 };
        fg_dispatch_stats stats;
        bench_open(&b);
        join_measured(&b, 2 * MS);
        cr_assert_eq(start(&b, &cases[i].slo, cases[i].deadline_ns, &id, &err), cases[i].want,
                     "%s: %s", cases[i].name, err.text);
        fg_dispatch_stats_get(b.dispatch, &stats);
        if (cases[i].want == FG_AGAIN) {
            cr_assert_eq(stats.refused[cases[i].reason], 1u, "%s: %s", cases[i].name, err.text);
            cr_assert(b.sent_count == 0 && stats.live == 0 && stats.started == 0);
            cr_assert_geq(fg_dispatch_retry_after(b.dispatch), 1u);
        } else {
            cr_assert_not_null(bench_sent(&b, D, FG_MSG_RESERVE), "%s", cases[i].name);
        }
        bench_close(&b);
    }
}

/* What cannot be kept at all is told once, and not to those who are refused later for another reason. */
Test(admission, a_refused_promise_is_not_held_against_others)
{
    bench b;
    uint64_t id;
    fg_error err = { 0 };
    fg_admit_slo none = { 0, 0 }, hopeless = { 20 * MS, 0 };
    bench_open(&b);
    join_measured(&b, 2 * MS);
    cr_assert_eq(start(&b, &hopeless, 0, &id, &err), FG_AGAIN);
    cr_assert_eq(fg_dispatch_refused_s(b.dispatch), 60u);
    cr_assert_eq(fg_dispatch_retry_after(b.dispatch), 1u, "the line is empty");
    cr_assert_eq(start(&b, &none, 0, &id, &err), FG_OK);
    cr_assert_eq(fg_dispatch_refused_s(b.dispatch), 0u);
    bench_close(&b);
}

/* ---- all places are taken ---- */

enum { HELD = 200 }; /* tokens that whoever has a place asked for; a step takes 10 ms */

static void ignore_token(void *ctx, uint32_t index, uint32_t id, uint64_t digest,
                         const fg_logprobs *logprobs)
{
}

/* Both places of D are taken by requests of which `come` tokens have come. */
static void take_all(bench *b, uint32_t come, bool ignore_eos)
{
    static const uint32_t tokens[PROMPT] = { 5 };
    fg_dispatch_job job = { .tokens = tokens,
                            .token_count = PROMPT,
                            .params = { .top_p = 1, .max_tokens = HELD, .ignore_eos = ignore_eos },
                            .sink = bench_sink(b) };
    job.sink.on_token = ignore_token;
    for (uint32_t i = 0; i < 2; i++) {
        uint64_t id;
        cr_assert_eq(fg_dispatch_start(b->dispatch, &job, &id, NULL), FG_OK);
        bench_ticket(b, id, 1);
        bench_first(b, id, 7);
        for (uint32_t t = 1; t < come; t++) {
            bench_token(b, id, t, 7);
        }
    }
    b->sent_count = 0;
}

static const struct {
    const char *name;
    uint32_t come, waiting;
    fg_admit_slo slo;
    uint64_t deadline_ns;
    fg_status want;
    uint32_t retry_least, retry_most;
} full_cases[] = {
    { "nothing is promised", 1, 0, { 0, 0 }, 0, FG_OK, 0, 0 },
    { "a place comes free in 2 s", 1, 0, { 0, 0 }, 1000 * MS, FG_AGAIN, 1, 2 },
    { "three seconds are enough", 1, 0, { 0, 0 }, 3000 * MS, FG_OK, 0, 0 },
    { "a place comes free in 0.5 s", 150, 0, { 0, 0 }, 1000 * MS, FG_OK, 0, 0 },
    { "the first token within 1 s", 1, 0, { 1000 * MS, 0 }, 0, FG_AGAIN, 1, 2 },
    { "nobody is before it", 1, 0, { 2050 * MS, 0 }, 0, FG_OK, 0, 0 },
    { "two have gone before, and their answers", 1, 2, { 2050 * MS, 0 }, 0, FG_AGAIN, 1, 1 },
    { "but that is soon enough", 1, 2, { 2150 * MS, 0 }, 0, FG_OK, 0, 0 },
    { "no wait is short enough", 1, 0, { 0, 0 }, 50 * MS, FG_AGAIN, 60, 60 },
};

Test(admission, who_waits_for_a_place_is_judged_by_those_who_have_them)
{
    for (size_t i = 0; i < sizeof full_cases / sizeof *full_cases; i++) {
        bench b;
        uint64_t id;
        fg_error err = { 0 };
        fg_admit_slo none = { 0, 0 };
        fg_dispatch_options options = bench_options(&b);
        options.limits.queued_max = 10;
        bench_open_with(&b, &options);
        join_sized(&b, MS, 200, 2, 2);
        take_all(&b, full_cases[i].come, false);
        for (uint32_t waiting = 0; waiting < full_cases[i].waiting; waiting++) {
            cr_assert_eq(start(&b, &none, 0, &id, &err), FG_OK, "%s", err.text);
        }
        cr_assert_eq(start(&b, &full_cases[i].slo, full_cases[i].deadline_ns, &id, &err),
                     full_cases[i].want, "%s: %s", full_cases[i].name, err.text);
        uint32_t retry_s = fg_dispatch_refused_s(b.dispatch);
        cr_assert(retry_s >= full_cases[i].retry_least && retry_s <= full_cases[i].retry_most,
                  "%s: again in %u s", full_cases[i].name, retry_s);
        bench_close(&b);
    }
}

/* No place for prompts is free, so the line is as long as its prompts take, whatever places decode has. */
Test(admission, who_waits_for_prefill_waits_for_the_line)
{
    bench b;
    uint64_t id;
    fg_error err = { 0 };
    fg_admit_slo none = { 0, 0 }, half_s = { 500 * MS, 0 }, two_s = { 2000 * MS, 0 };
    fg_dispatch_options options = bench_options(&b);
    options.limits.queued_max = 10;
    options.lease_ms = 100000;
    bench_open_with(&b, &options);
    join_sized(&b, MS, 200, 1, 4);
    cr_assert_eq(start(&b, &none, 0, &id, &err), FG_OK);
    bench_ticket(&b, id, 1);
    bench_first(&b, id, 7); /* 18 tokens of prompts in a second */
    bench_pass(&b, 1000);
    bench_done(&b, P, id, FG_FINISH_LENGTH, 1);
    cr_assert_eq(start(&b, &none, 0, &id, &err), FG_OK, "it has the place");
    cr_assert_eq(start(&b, &none, 0, &id, &err), FG_OK, "it waits");
    cr_assert_eq(start(&b, &half_s, 0, &id, &err), FG_AGAIN);
    cr_assert_eq(start(&b, &two_s, 0, &id, &err), FG_OK, "%s", err.text);
    bench_close(&b);
}

/* Nobody asked for a minute. That tells nothing of how long a full line takes. */
Test(admission, an_idle_minute_does_not_make_the_line_slow)
{
    for (int idle = 0; idle < 2; idle++) {
        bench b;
        uint64_t id;
        fg_error err = { 0 };
        fg_admit_slo none = { 0, 0 };
        fg_dispatch_options options = bench_options(&b);
        options.limits.queued_max = 2;
        options.lease_ms = 100000;
        bench_open_with(&b, &options);
        join_sized(&b, MS, 200, 1, 4);
        for (uint32_t i = 0; i < 40; i++) { /* ten in a second */
            cr_assert_eq(start(&b, &none, 0, &id, &err), FG_OK);
            bench_ticket(&b, id, 1);
            bench_first(&b, id, 7);
            bench_pass(&b, 100);
            bench_done(&b, P, id, FG_FINISH_LENGTH, 1);
            b.sent_count = b.token_count = 0;
        }
        bench_pass(&b, idle == 1 ? 60000 : 0);
        uint32_t taken = 0;
        while (start(&b, &none, 0, &id, &err) == FG_OK) {
            taken++;
        }
        cr_assert_eq(taken, 3u, "%s", err.text);
        cr_assert_eq(fg_dispatch_refused_s(b.dispatch), 1u, "idle %d", idle);
        bench_close(&b);
    }
}

/* Answers were short lately; one that goes on behind its end token is not. */
Test(admission, an_answer_that_ignores_its_end_is_as_long_as_it_may_be)
{
    for (int ignores = 0; ignores < 2; ignores++) {
        bench b;
        uint64_t id;
        fg_error err = { 0 };
        fg_admit_slo none = { 0, 0 };
        bench_open(&b);
        join_sized(&b, MS, 200, 2, 2);
        cr_assert_eq(bench_start(&b, PROMPT, 9, &id), FG_OK);
        bench_ticket(&b, id, 1);
        bench_first(&b, id, 7);
        bench_done(&b, P, id, FG_FINISH_LENGTH, 1);
        cr_assert_eq(b.end_count, 1u);
        take_all(&b, 1, ignores == 1);
        cr_assert_eq(start(&b, &none, 1000 * MS, &id, &err), ignores == 1 ? FG_AGAIN : FG_OK, "%d",
                     ignores);
        bench_close(&b);
    }
}

/* ---- what never fits ---- */

static const struct {
    const char *name;
    uint32_t roles; /* of a second worker; 0: a pair */
    uint32_t blocks, prompt, queued_max, tokens_max, running_max, tenant_max;
    uint32_t want; /* of 4 slots and an answer of 3 */
} fill_cases[] = {
    { "slots and the line", 0, 100, 5, 2, 1000, 0, 0, 6 },
    { "blocks and the line", 0, 10, 13, 2, 1000, 0, 0, 4 },
    { "one may run at a time", 0, 100, 5, 2, 1000, 1, 0, 3 },
    { "one of a tenant may wait", 0, 100, 5, 2, 1000, 0, 1, 5 },
    { "the line's tokens", 0, 100, 5, 9, 10, 0, 0, 6 },
    { "none in the line", 0, 100, 5, 9, 4, 0, 0, 0 },
    { "one that does both has a line of its own", FG_ROLE_PREFILL | FG_ROLE_DECODE, 10, 5, 2, 1000,
      0, 0, 10 },
};

Test(admission, what_workers_and_line_take_at_once_is_known)
{
    static const uint32_t tokens[PROMPT] = { 5 };
    for (size_t i = 0; i < sizeof fill_cases / sizeof *fill_cases; i++) {
        bench b;
        uint64_t id;
        uint32_t taken = 0;
        fg_error err = { 0 };
        fg_dispatch_options options = bench_options(&b);
        options.limits.queued_max = fill_cases[i].queued_max;
        options.limits.queued_tokens_max = fill_cases[i].tokens_max;
        options.limits.tenant_queued_max = fill_cases[i].tenant_max;
        options.tenant_running_max = fill_cases[i].running_max;
        bench_open_with(&b, &options);
        if (fill_cases[i].roles != 0) {
            bench_join(&b, P, "p", fill_cases[i].roles);
            fg_dispatch_tick(b.dispatch);
        } else {
            join_sized(&b, 1000, fill_cases[i].blocks, 4, 4);
        }
        fg_dispatch_job job = { .tokens = tokens,
                                .token_count = fill_cases[i].prompt,
                                .params = { .top_p = 1, .max_tokens = 3 },
                                .sink = bench_sink(&b) };
        while (fg_dispatch_start(b.dispatch, &job, &id, &err) == FG_OK) {
            taken++;
        }
        cr_assert_eq(taken, fill_cases[i].want, "%s: %u, %s", fill_cases[i].name, taken, err.text);
        cr_assert_eq(fg_dispatch_at_once(b.dispatch, &job), taken, "%s: %llu", fill_cases[i].name,
                     (unsigned long long)fg_dispatch_at_once(b.dispatch, &job));
        bench_close(&b);
    }
}

Test(admission, a_prompt_beyond_what_may_wait_is_no_matter_of_time)
{
    bench b;
    uint64_t id;
    fg_dispatch_options options = bench_options(&b);
    options.limits.queued_tokens_max = 10;
    bench_open_with(&b, &options);
    bench_join_pair(&b);
    cr_assert_eq(bench_start(&b, 11, 3, &id), FG_BAD_INPUT);
    cr_assert_eq(bench_start(&b, 10, 3, &id), FG_OK);
    bench_close(&b);
}

Test(admission, decode_is_asked_when_prefill_is_about_to_be_free)
{
    bench b;
    uint64_t first, second;
    fg_admit_slo none = { 0, 0 };
    fg_dispatch_stats stats;
    bench_open(&b);
    join_measured(&b, 100 * MS); /* a prompt takes 1.8 s */
    cr_assert_eq(start(&b, &none, 0, &first, NULL), FG_OK);
    cr_assert_eq(bench_sent_count(&b, D, FG_MSG_RESERVE), 1u);
    cr_assert_eq(start(&b, &none, 0, &second, NULL), FG_OK);
    cr_assert_eq(bench_sent_count(&b, D, FG_MSG_RESERVE), 1u, "its blocks would idle until then");
    fg_dispatch_stats_get(b.dispatch, &stats);
    cr_assert(stats.held == 1 && stats.queued == 1);
    bench_ticket(&b, first, 1);
    bench_first(&b, first, 7);
    cr_assert_eq(bench_sent_count(&b, D, FG_MSG_RESERVE), 2u, "prefill is free");
    bench_close(&b);
}

Test(admission, a_wrong_prediction_holds_nobody_for_long)
{
    bench b;
    uint64_t first, second;
    fg_admit_slo none = { 0, 0 };
    fg_dispatch_options options = bench_options(&b);
    options.lease_ms = 100000;
    bench_open_with(&b, &options);
    join_measured(&b, 1000 * MS);
    cr_assert_eq(start(&b, &none, 0, &first, NULL), FG_OK);
    cr_assert_eq(start(&b, &none, 0, &second, NULL), FG_OK);
    bench_pass(&b, 1500);
    cr_assert_eq(bench_sent_count(&b, D, FG_MSG_RESERVE), 1u);
    bench_pass(&b, 1000);
    cr_assert_eq(bench_sent_count(&b, D, FG_MSG_RESERVE), 2u);
    bench_close(&b);
}

/* The first token came in time: what was promised is kept, whoever dies later. */
Test(admission, a_kept_promise_is_not_broken_by_a_worker_that_dies)
{
    bench b;
    uint64_t id;
    fg_error err = { 0 };
    fg_admit_slo one_s = { 1000 * MS, 0 };
    fg_dispatch_options options = bench_options(&b);
    options.lease_ms = 100000;
    bench_open_with(&b, &options);
    join_measured(&b, 2 * MS);
    cr_assert_eq(start(&b, &one_s, 0, &id, &err), FG_OK, "%s", err.text);
    bench_ticket(&b, id, 1);
    bench_first(&b, id, 7);
    fg_dispatch_on_down(b.dispatch, D);
    bench_pass(&b, 2000);
    cr_assert_eq(b.end_count, 0u, "%s", b.text);
    bench_join(&b, D, "d", FG_ROLE_DECODE);
    cr_assert_eq(bench_sent_count(&b, D, FG_MSG_RESERVE), 2u);
    bench_close(&b);
}

Test(admission, who_waits_in_vain_is_told)
{
    bench b;
    uint64_t first, second;
    fg_admit_slo none = { 0, 0 };
    fg_dispatch_stats stats;
    fg_dispatch_options options = bench_options(&b);
    options.lease_ms = 100000;
    bench_open_with(&b, &options);
    join_measured(&b, 2 * MS);
    cr_assert_eq(start(&b, &none, 0, &first, NULL), FG_OK);
    bench_give(&b, D, &(fg_msg){ .kind = FG_MSG_TICKET, .request = first, .attempt = 1 });
    cr_assert_eq(start(&b, &none, 3000 * MS, &second, NULL), FG_OK,
                 "D is full, nobody knows for how long");
    bench_pass(&b, 2500);
    cr_assert_eq(b.end_count, 0u);
    bench_pass(&b, 600);
    fg_dispatch_stats_get(b.dispatch, &stats);
    cr_assert(b.end_count == 1 && b.status == FG_AGAIN && stats.given_up == 1, "%u %s", b.end_count,
              b.text);
    cr_assert_eq(stats.queued, 1u, "the other one has all the time");
    bench_close(&b);
}
