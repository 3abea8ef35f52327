/* What workers are used for, and who is not let in or is stuck. */
#include <string.h>

#include "common/base/json.h"
#include "tests/support/test.h"
#include "tests/unit/router/dispatch_bench.h"

enum { BOTH = FG_ROLE_PREFILL | FG_ROLE_DECODE };

Test(roles, a_role_changes_while_requests_run)
{
    bench b;
    uint64_t first, second;
    uint32_t was = 0;
    bench_open(&b);
    bench_join_pair(&b);
    cr_assert_eq(bench_start(&b, 5, 3, &first), FG_OK);
    bench_ticket(&b, first, 1);
    /* They swap: what runs goes on where it is, what comes goes the other way round. */
    cr_assert_eq(fg_dispatch_set_role(b.dispatch, "p", BOTH, &was, NULL), FG_OK);
    cr_assert_eq(was, (uint32_t)FG_ROLE_PREFILL);
    cr_assert_eq(fg_dispatch_set_role(b.dispatch, "d", FG_ROLE_PREFILL, NULL, NULL), FG_OK);
    cr_assert_eq(fg_dispatch_set_role(b.dispatch, "p", FG_ROLE_DECODE, NULL, NULL), FG_OK);
    cr_assert(fg_dispatch_ready(b.dispatch));
    const fg_msg *told = bench_sent(&b, D, FG_MSG_ROLE);
    cr_assert(told != NULL && told->role.roles == FG_ROLE_PREFILL);
    b.sent_count = 0;
    cr_assert_eq(bench_start(&b, 5, 3, &second), FG_OK);
    /* D's reservation waits for P's prefill: one of P that waits for D's could close a circle. */
    cr_assert_null(bench_sent(&b, P, FG_MSG_RESERVE));
    bench_first(&b, first, 7);
    cr_assert_not_null(bench_sent(&b, P, FG_MSG_RESERVE), "p decodes now");
    fg_dispatch_stats stats;
    fg_dispatch_stats_get(b.dispatch, &stats);
    cr_assert_gt(stats.circles_avoided, 0u);
    bench_token(&b, first, 1, 8);
    bench_token(&b, first, 2, 9);
    bench_done(&b, D, first, FG_FINISH_LENGTH, 3);
    cr_assert_eq(b.token_count, 3u);
    cr_assert_eq(b.finish, FG_FINISH_LENGTH);
    bench_close(&b);
}

Test(roles, without_a_role_nobody_is_ready)
{
    bench b;
    bench_open(&b);
    bench_join_pair(&b);
    cr_assert_eq(fg_dispatch_set_role(b.dispatch, "d", FG_ROLE_PREFILL, NULL, NULL), FG_OK);
    cr_assert(!fg_dispatch_ready(b.dispatch), "nobody decodes");
    cr_assert_eq(fg_dispatch_set_role(b.dispatch, "d", BOTH, NULL, NULL), FG_OK);
    cr_assert(fg_dispatch_ready(b.dispatch));
    bench_close(&b);
}

Test(roles, nonsense_is_refused_and_changes_nothing)
{
    bench b;
    fg_error err;
    bench_open(&b);
    bench_join_pair(&b);
    fg_msg hello = { .kind = FG_MSG_HELLO, .hello = bench_hello("alone", FG_ROLE_PREFILL) };
    hello.hello.able = FG_ROLE_PREFILL;
    hello.hello.link_record_bytes = 0;
    fg_dispatch_on_up(b.dispatch, 12, "alone#1");
    bench_give(&b, 12, &hello);
    static const struct {
        const char *name;
        uint32_t roles;
        fg_status want;
    } cases[] = {
        { "nobody", BOTH, FG_PEER_LOST },
        { "", BOTH, FG_PEER_LOST },
        { "p", 0, FG_BAD_INPUT },
        { "p", 4, FG_BAD_INPUT },
        { "p", BOTH | 8, FG_BAD_INPUT },
        { "alone", FG_ROLE_DECODE, FG_BAD_INPUT },
        { "alone", FG_ROLE_PREFILL, FG_OK },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cr_assert_eq(fg_dispatch_set_role(b.dispatch, cases[i].name, cases[i].roles, NULL, &err),
                     cases[i].want, "case %zu", i);
    }
    const fg_registry *registry = fg_dispatch_registry(b.dispatch);
    cr_assert_eq(fg_registry_by_name(registry, "p")->roles, (uint32_t)FG_ROLE_PREFILL);
    bench_close(&b);
}

static void report(bench *b, uint32_t peer, uint64_t sequence, uint64_t steps, uint32_t running)
{
    fg_msg load = { .kind = FG_MSG_LOAD,
                    .load = { .sequence = sequence, .steps = steps, .running = running } };
    bench_give(b, peer, &load);
}

static const fg_reg_worker *named(const bench *b, const char *name)
{
    return fg_registry_by_name(fg_dispatch_registry(b->dispatch), name);
}

Test(roles, a_worker_that_reports_but_ends_no_step_is_stalled_and_then_lost)
{
    bench b;
    uint64_t id;
    fg_dispatch_options options = bench_options(&b);
    options.stuck_ms = 4000;
    bench_open_with(&b, &options);
    bench_join_pair(&b);
    cr_assert_eq(bench_start(&b, 5, 3, &id), FG_OK);
    bench_ticket(&b, id, 1);
    uint64_t sequence = 0;
    for (uint32_t ms = 0; ms < 900; ms += 300) { /* D idles, P works and moves */
        sequence++;
        report(&b, P, sequence, sequence, 1);
        report(&b, D, sequence, 0, 0);
        bench_pass(&b, 300);
        cr_assert(!named(&b, "p")->stalled && !named(&b, "d")->stalled);
    }
    for (uint32_t ms = 0; ms < 3000; ms += 300) {
        report(&b, P, ++sequence, 3, 1);
        report(&b, D, sequence, 0, 0);
        bench_pass(&b, 300);
    }
    cr_assert(named(&b, "p")->stalled && !named(&b, "d")->stalled);
    cr_assert_eq(b.end_count, 0u);
    report(&b, P, ++sequence, 4, 1); /* one step later it is well again */
    bench_pass(&b, 20);
    cr_assert(!named(&b, "p")->stalled);
    for (uint32_t ms = 0; ms < 4500; ms += 300) {
        if (named(&b, "p") != NULL) {
            report(&b, P, ++sequence, 4, 1);
        }
        report(&b, D, ++sequence, 0, 0);
        bench_pass(&b, 300);
    }
    cr_assert_null(named(&b, "p"));
    cr_assert_not_null(named(&b, "d"));
    fg_dispatch_stats stats;
    fg_dispatch_stats_get(b.dispatch, &stats);
    cr_assert(stats.workers_stuck == 1 && stats.workers_lost == 1);
    bench_close(&b);
}

Test(roles, the_operator_sees_who_was_refused_and_why)
{
    bench b;
    fg_buf out;
    bench_open(&b);
    bench_join_pair(&b);
    fg_buf_init(&out, 0);
    for (uint32_t i = 0; i < 40; i++) {
        fg_msg hello = { .kind = FG_MSG_HELLO, .hello = bench_hello("late", FG_ROLE_PREFILL) };
        hello.hello.block_size = 5 + i;
        fg_dispatch_on_up(b.dispatch, 12, "late#1");
        bench_give(&b, 12, &hello);
        fg_dispatch_on_down(b.dispatch, 12);
    }
    cr_assert(fg_dispatch_render_state(b.dispatch, &out));
    cr_assert_not_null(strstr(out.data, "\"refused_workers\":[{\"name\":\"late\",\"why\":\"block "
                                        "size 44, the workers that are here use 4\""),
                       "%s", out.data);
    cr_assert_not_null(strstr(out.data, "block size 29,"));
    cr_assert_null(strstr(out.data, "block size 28,"), "only the last 16 are kept");
    cr_assert_not_null(strstr(out.data, "\"refused_joins\":40"));
    fg_buf_deinit(&out);
    bench_close(&b);
}

Test(roles, what_a_worker_reports_never_makes_the_state_unreadable)
{
    bench b;
    fg_buf out;
    fg_json *json = NULL;
    fg_error err = { 0 };
    bench_open(&b);
    bench_join_pair(&b);
    fg_msg load = { .kind = FG_MSG_LOAD };
    memset(&load.load, 0xFF, sizeof load.load);
    load.load.total = load.load.free = load.load.cached = load.load.held = 1;
    load.load.pinned = load.load.quarantined = load.load.tier_blocks = 1;
    bench_give(&b, P, &load);
    fg_buf_init(&out, 0);
    cr_assert(fg_dispatch_render_state(b.dispatch, &out));
    cr_assert_eq(fg_json_parse(out.data, out.size, &json, &err), FG_OK, "%s: %s", err.text,
                 out.data);
    fg_json_destroy(json);
    fg_buf_clear(&out);
    cr_assert(fg_dispatch_render_cache(b.dispatch, &out));
    cr_assert_eq(fg_json_parse(out.data, out.size, &json, &err), FG_OK, "%s: %s", err.text,
                 out.data);
    fg_json_destroy(json);
    fg_buf_deinit(&out);
    bench_close(&b);
}
