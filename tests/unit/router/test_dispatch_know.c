/* What the dispatcher knows of its workers: what they have cached, whether they have told all of it, how
 * fast they are; and that it places accordingly. */
#include <stdio.h>
#include <string.h>

#include "common/base/rng.h"
#include "common/kv/block_key.h"
#include "router/dispatch_internal.h"
#include "tests/support/test.h"
#include "tests/unit/router/dispatch_bench.h"

enum { P2 = 12, PROMPT = 18, BLOCKS = 4 /* full ones of the prompt */ };

/* The keys of bench_start's prompt, as its workers would make them. */
static void name(uint64_t *keys, uint64_t *root)
{
    fg_digest128 fingerprint = { 1, 2 };
    fg_block_namer namer = { .secret = { 0xC0FFEE, 0xBEEF },
                             .identity = fg_block_identity(fingerprint, "c", 1),
                             .block_size = 4 };
    static const uint32_t tokens[PROMPT] = { 5 };
    fg_digest128 parent = fg_block_root(&namer, 0, 0);
    *root = parent.low;
    for (uint32_t i = 0; i < BLOCKS; i++) {
        parent = fg_block_key(&namer, parent, i, tokens + (size_t)i * 4);
        keys[i] = parent.low;
    }
}

static void tell(bench *b, uint32_t peer, uint64_t sequence, fg_wire_change change)
{
    uint64_t keys[BLOCKS], root;
    name(keys, &root);
    bool has_keys = change == FG_NEWS_STORED || change == FG_NEWS_REMOVED;
    fg_wire_news row = { .change = change,
                         .parent = root,
                         .keys = has_keys ? keys : NULL,
                         .key_count = has_keys ? BLOCKS : 0 };
    fg_msg msg = { .kind = FG_MSG_NEWS };
    msg.news.sequence = sequence;
    msg.news.rows = &row;
    msg.news.count = 1;
    bench_give(b, peer, &msg);
}

static void open_three(bench *b)
{
    bench_open(b);
    bench_join_pair(b);
    bench_join(b, P2, "p2", FG_ROLE_PREFILL);
    tell(b, P, 1, FG_NEWS_RESET);
    tell(b, P2, 1, FG_NEWS_RESET);
    b->sent_count = 0;
}

/* Who is to prefill the next request, which is cancelled at once. */
static const char *next_prefill(bench *b)
{
    static char writer[80];
    uint64_t id;
    b->sent_count = 0;
    cr_assert_eq(bench_start(b, PROMPT, 3, &id), FG_OK);
    const fg_msg *reserve = bench_sent(b, D, FG_MSG_RESERVE);
    cr_assert_not_null(reserve);
    snprintf(writer, sizeof writer, "%s", reserve->reserve.writer.name);
    cr_assert(fg_dispatch_cancel(b->dispatch, id, FG_FINISH_CANCELLED, NULL));
    return writer;
}

/* Leases are short in these tests. */
static void keep_alive(bench *b, uint64_t sequence, uint64_t news)
{
    static const uint32_t peers[] = { P, D, P2 };
    for (size_t i = 0; i < 3; i++) {
        fg_msg load = { .kind = FG_MSG_LOAD, .load = { .sequence = sequence } };
        load.load.news_sequence = peers[i] == P2 ? news : 0;
        bench_give(b, peers[i], &load);
    }
}

Test(know, a_prompt_goes_where_its_beginning_is)
{
    static const struct {
        const char *name;
        uint32_t peer;
        const char *want;
    } cases[] = { { "p has it", P, "p" }, { "p2 has it", P2, "p2" } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bench b;
        uint64_t id;
        open_three(&b);
        tell(&b, cases[i].peer, 2, FG_NEWS_STORED);
        for (int round = 0; round < 3; round++) {
            b.sent_count = 0;
            cr_assert_eq(bench_start(&b, PROMPT, 3, &id), FG_OK);
            const fg_msg *reserve = bench_sent(&b, D, FG_MSG_RESERVE);
            cr_assert_not_null(reserve);
            cr_assert_str_eq(reserve->reserve.writer.name, cases[i].want, "%s", cases[i].name);
            cr_assert(fg_dispatch_cancel(b.dispatch, id, FG_FINISH_CANCELLED, NULL));
        }
        bench_close(&b);
    }
}

Test(know, what_was_removed_cleared_or_lost_attracts_nobody)
{
    bench b;
    open_three(&b);
    const fg_residency *tree = fg_dispatch_residency(b.dispatch);
    tell(&b, P2, 2, FG_NEWS_STORED);
    cr_assert_eq(fg_residency_slot_blocks(tree, P2, FG_TIER_DEVICE), (uint64_t)BLOCKS);
    tell(&b, P2, 3, FG_NEWS_REMOVED);
    cr_assert_eq(fg_residency_slot_blocks(tree, P2, FG_TIER_DEVICE), 0u);
    tell(&b, P2, 4, FG_NEWS_STORED);
    tell(&b, P2, 5, FG_NEWS_CLEARED);
    cr_assert_eq(fg_residency_slot_blocks(tree, P2, FG_TIER_DEVICE), 0u);
    tell(&b, P2, 6, FG_NEWS_STORED);
    fg_dispatch_on_down(b.dispatch, P2);
    cr_assert_eq(fg_residency_slot_blocks(tree, P2, FG_TIER_DEVICE), 0u);
    bench_join(&b, P2, "p2", FG_ROLE_PREFILL);
    tell(&b, P2, 1, FG_NEWS_RESET);
    cr_assert_eq(fg_residency_slot_blocks(tree, P2, FG_TIER_DEVICE), 0u);
    bench_close(&b);
}

Test(know, a_missing_report_is_asked_for_again_but_not_all_the_time)
{
    bench b;
    open_three(&b);
    tell(&b, P2, 2, FG_NEWS_STORED);
    tell(&b, P2, 4, FG_NEWS_STORED);
    cr_assert_eq(bench_sent_count(&b, P2, FG_MSG_RESYNC), 1u);
    tell(&b, P2, 5, FG_NEWS_STORED);
    tell(&b, P2, 6, FG_NEWS_STORED);
    keep_alive(&b, 1, 6);
    cr_assert_eq(bench_sent_count(&b, P2, FG_MSG_RESYNC), 1u, "it was asked a moment ago");
    bench_pass(&b, 900);
    keep_alive(&b, 2, 6);
    bench_pass(&b, 300);
    keep_alive(&b, 3, 6);
    cr_assert_eq(bench_sent_count(&b, P2, FG_MSG_RESYNC), 2u, "no answer came");
    tell(&b, P2, 7, FG_NEWS_RESET);
    bench_pass(&b, 900);
    keep_alive(&b, 4, 7);
    bench_pass(&b, 900);
    keep_alive(&b, 5, 7);
    cr_assert_eq(bench_sent_count(&b, P2, FG_MSG_RESYNC), 2u, "all is well");
    keep_alive(&b, 6, 8);
    cr_assert_eq(bench_sent_count(&b, P2, FG_MSG_RESYNC), 3u, "the last report never came");
    cr_assert_eq(bench_sent_count(&b, P, FG_MSG_RESYNC), 0u);
    bench_close(&b);
}

Test(know, what_was_just_placed_counts_as_there_for_its_siblings)
{
    bench b;
    uint64_t id[3];
    open_three(&b);
    cr_assert_eq(bench_start(&b, PROMPT, 3, &id[0]), FG_OK);
    char first[80];
    snprintf(first, sizeof first, "%s", bench_sent(&b, D, FG_MSG_RESERVE)->reserve.writer.name);
    cr_assert(fg_dispatch_cancel(b.dispatch, id[0], FG_FINISH_CANCELLED, NULL));
    b.sent_count = 0;
    cr_assert_eq(bench_start(&b, PROMPT, 3, &id[1]), FG_OK);
    cr_assert_str_eq(bench_sent(&b, D, FG_MSG_RESERVE)->reserve.writer.name, first,
                     "equals take turns, but this one's blocks are on their way there");
    cr_assert(fg_dispatch_cancel(b.dispatch, id[1], FG_FINISH_CANCELLED, NULL));
    fg_residency_stats stats;
    fg_residency_stats_get(fg_dispatch_residency(b.dispatch), &stats);
    cr_assert_gt(stats.predictions, 0u);
    bench_close(&b);
}

/* 50 ms for each token of a prompt; 2 slots, and more blocks than all prompts here need. */
static void join_slow(bench *b, uint32_t peer, const char *name, uint32_t roles)
{
    char identity[40];
    snprintf(identity, sizeof identity, "%s#1", name);
    fg_dispatch_on_up(b->dispatch, peer, identity);
    fg_msg msg = { .kind = FG_MSG_HELLO, .hello = bench_hello(name, roles) };
    msg.hello.block_count = 100;
    msg.hello.max_seqs = 2;
    msg.hello.speed.prefill_ns_per_token = 50ull * 1000 * 1000;
    bench_give(b, peer, &msg);
}

Test(know, who_waits_for_its_prefill_stops_nobody_who_goes_elsewhere)
{
    bench b;
    uint64_t id[3];
    bench_open(&b);
    join_slow(&b, P, "p", FG_ROLE_PREFILL);
    join_slow(&b, D, "d", FG_ROLE_DECODE);
    tell(&b, P, 1, FG_NEWS_RESET);
    tell(&b, P, 2, FG_NEWS_STORED);
    b.params.cache_mode = FG_CACHE_DISABLE;
    cr_assert_eq(bench_start(&b, 8, 3, &id[0]), FG_OK); /* 400 ms at P */
    join_slow(&b, P2, "p2", FG_ROLE_PREFILL);
    tell(&b, P2, 1, FG_NEWS_RESET);
    b.sent_count = 0;
    b.params.cache_mode = FG_CACHE_AUTO;
    cr_assert_eq(bench_start(&b, PROMPT, 3, &id[1]), FG_OK);
    cr_assert_eq(bench_sent_count(&b, D, FG_MSG_RESERVE), 0u, "P has its beginning, and is busy");
    b.params.cache_mode = FG_CACHE_DISABLE;
    cr_assert_eq(bench_start(&b, PROMPT, 3, &id[2]), FG_OK);
    const fg_msg *reserve = bench_sent(&b, D, FG_MSG_RESERVE);
    cr_assert_not_null(reserve, "P2 has nothing to do");
    cr_assert_str_eq(reserve->reserve.writer.name, "p2");
    cr_assert_eq(reserve->request, id[2]);
    bench_close(&b);
}

/* ---- waiting for a prefix ---- */

enum { LINE = 4 /* of a worker with 2 slots that does both */ };

static uint64_t start(bench *b, uint32_t cache_mode, uint32_t prompt)
{
    uint64_t id;
    b->params.cache_mode = cache_mode;
    cr_assert_eq(bench_start(b, prompt, 3, &id), FG_OK);
    return id;
}

/* Two for both: P has the prompt's beginning and no room, P2 has `busy` others in line, each of so many tokens. */
static void open_full(bench *b, uint32_t busy, uint32_t tokens, uint64_t *at_holder)
{
    fg_dispatch_options options = bench_options(b);
    options.lease_ms = 60000;
    options.limits.queued_max = 100;
    bench_open_with(b, &options);
    join_slow(b, P, "p", FG_ROLE_PREFILL | FG_ROLE_DECODE);
    tell(b, P, 1, FG_NEWS_RESET);
    tell(b, P, 2, FG_NEWS_STORED);
    for (uint32_t i = 0; i < LINE; i++) {
        at_holder[i] = start(b, FG_CACHE_AUTO, PROMPT);
    }
    cr_assert_eq(bench_sent_count(b, P, FG_MSG_PREFILL), (uint32_t)LINE);
    join_slow(b, P2, "p2", FG_ROLE_PREFILL | FG_ROLE_DECODE);
    tell(b, P2, 1, FG_NEWS_RESET);
    for (uint32_t i = 0; i < busy; i++) {
        start(b, FG_CACHE_DISABLE, tokens);
    }
    cr_assert_eq(bench_sent_count(b, P2, FG_MSG_PREFILL), busy);
    b->sent_count = 0;
}

Test(know, a_prefix_is_waited_for_where_that_costs_no_idle_worker)
{
    static const struct {
        const char *name;
        uint32_t busy, tokens, cache_mode, prompt;
        bool waits;
    } cases[] = {
        { "others wait there", 2, PROMPT, FG_CACHE_AUTO, PROMPT, true },
        { "a quarter of it is cached", 3, 40, FG_CACHE_AUTO, 64, true },
        { "less than a quarter", 3, 40, FG_CACHE_AUTO, 65, false },
        { "one, which takes a little longer", 1, PROMPT + 1, FG_CACHE_AUTO, PROMPT, true },
        { "one, which takes as long as itself", 1, PROMPT, FG_CACHE_AUTO, PROMPT, false },
        { "idle", 0, 0, FG_CACHE_AUTO, PROMPT, false },
        { "wants no cache", 2, PROMPT, FG_CACHE_DISABLE, PROMPT, false },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bench b;
        uint64_t at_holder[LINE];
        open_full(&b, cases[i].busy, cases[i].tokens, at_holder);
        start(&b, cases[i].cache_mode, cases[i].prompt);
        cr_assert_eq(bench_sent_count(&b, P2, FG_MSG_PREFILL), cases[i].waits ? 0u : 1u, "%s",
                     cases[i].name);
        bench_close(&b);
    }
}

Test(know, who_waits_for_a_prefix_is_passed_and_goes_when_its_holder_has_room)
{
    bench b;
    uint64_t at_holder[LINE];
    open_full(&b, 2, PROMPT, at_holder);
    uint64_t held = start(&b, FG_CACHE_AUTO, PROMPT), passes = start(&b, FG_CACHE_DISABLE, PROMPT);
    const fg_msg *sent = bench_sent(&b, P2, FG_MSG_PREFILL);
    cr_assert(sent != NULL && sent->request == passes);
    fg_dispatch_cancel(b.dispatch, at_holder[1], FG_FINISH_CANCELLED, NULL);
    bench_pass(&b, 100);
    sent = bench_sent(&b, P, FG_MSG_PREFILL);
    cr_assert(sent != NULL && sent->request == held);
    fg_dispatch_stats stats;
    fg_dispatch_stats_get(b.dispatch, &stats);
    cr_assert_eq(stats.prefix_waits, 1u);
    bench_close(&b);
}

Test(know, who_was_promised_a_time_waits_for_a_prefix_only_while_there_is_some)
{
    static const struct {
        uint64_t deadline_ms;
        bool waits;
    } cases[] = { { 0, true }, { 60000, true }, { 4000, false } };
    static const uint32_t tokens[PROMPT] = { 5 };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bench b;
        uint64_t at_holder[LINE], id;
        open_full(&b, 3, PROMPT, at_holder); /* 2.7 s before it would begin there */
        fg_dispatch_job job = { .tokens = tokens,
                                .token_count = PROMPT,
                                .params = { .max_tokens = 3, .top_p = 1.0f },
                                .deadline_ns = cases[i].deadline_ms * 1000000u,
                                .sink = bench_sink(&b) };
        fg_error err;
        cr_assert_eq(fg_dispatch_start(b.dispatch, &job, &id, &err), FG_OK, "%s", err.text);
        cr_assert_eq(bench_sent_count(&b, P2, FG_MSG_PREFILL), cases[i].waits ? 0u : 1u, "%llu ms",
                     (unsigned long long)cases[i].deadline_ms);
        bench_close(&b);
    }
}

/* A place at a worker that would soon have nothing to compute is for whoever comes next and loses nothing there. */
Test(know, a_place_without_the_prefix_is_offered_to_those_behind_first)
{
    enum { SHORT = 4 };
    bench b;
    uint64_t at_holder[LINE], others[LINE];
    open_full(&b, 0, 0, at_holder);
    for (uint32_t i = 0; i < LINE; i++) {
        others[i] = start(&b, FG_CACHE_DISABLE, SHORT);
    }
    uint64_t first = start(&b, FG_CACHE_AUTO, PROMPT), second = start(&b, FG_CACHE_DISABLE, PROMPT);
    const uint64_t turns[] = { second, first };
    for (uint32_t i = 0; i < 2; i++) {
        b.sent_count = 0;
        fg_dispatch_cancel(b.dispatch, others[i], FG_FINISH_CANCELLED, NULL);
        fg_dispatch_tick(b.dispatch);
        cr_assert_eq(bench_sent_count(&b, P2, FG_MSG_PREFILL), 1u, "turn %u", i);
        cr_assert_eq(bench_sent(&b, P2, FG_MSG_PREFILL)->request, turns[i], "turn %u", i);
        fg_dispatch_cancel(b.dispatch, i == 0 ? second : first, FG_FINISH_CANCELLED, NULL);
    }
    bench_close(&b);
}

Test(know, nobody_waits_for_a_prefix_for_ever)
{
    enum { PASSES = 48, PATIENCE_MS = 4 * 900 };
    bench b;
    uint64_t at_holder[LINE];
    open_full(&b, 3, PROMPT, at_holder);
    start(&b, FG_CACHE_AUTO, PROMPT);
    bench_pass(&b, PATIENCE_MS - 100);
    cr_assert_eq(bench_sent_count(&b, P2, FG_MSG_PREFILL), 0u);
    bench_pass(&b, 200);
    cr_assert_eq(bench_sent_count(&b, P2, FG_MSG_PREFILL), 1u,
                 "not longer than computing it four times");
    bench_close(&b);

    open_full(&b, 3, PROMPT, at_holder);
    uint64_t held = start(&b, FG_CACHE_AUTO, PROMPT);
    for (uint32_t i = 0; i < PASSES; i++) {
        b.sent_count = 0;
        uint64_t other = start(&b, FG_CACHE_DISABLE, PROMPT);
        const fg_msg *sent = bench_sent(&b, P2, FG_MSG_PREFILL);
        cr_assert(sent != NULL && sent->request == other, "pass %u", i);
        fg_dispatch_cancel(b.dispatch, other, FG_FINISH_CANCELLED, NULL);
    }
    b.sent_count = 0;
    fg_dispatch_tick(b.dispatch);
    const fg_msg *sent = bench_sent(&b, P2, FG_MSG_PREFILL);
    cr_assert(sent != NULL && sent->request == held, "so many have passed");
    bench_close(&b);
}

Test(know, a_request_without_cache_is_placed_as_if_nobody_had_anything)
{
    bench b;
    uint64_t id;
    fg_residency_stats stats;
    open_three(&b);
    b.params.cache_mode = FG_CACHE_DISABLE;
    cr_assert_eq(bench_start(&b, PROMPT, 3, &id), FG_OK);
    fg_residency_stats_get(fg_dispatch_residency(b.dispatch), &stats);
    cr_assert_eq(stats.predictions, 0u);
    bench_close(&b);
}

Test(know, salts_share_nothing)
{
    bench b;
    open_three(&b);
    tell(&b, P2, 2, FG_NEWS_STORED);
    cr_assert_str_eq(next_prefill(&b), "p2");
    bench_close(&b);
    open_three(&b);
    tell(&b, P2, 2, FG_NEWS_STORED);
    b.params.salt_low = 5;
    uint64_t id;
    cr_assert_eq(bench_start(&b, PROMPT, 3, &id), FG_OK);
    cr_assert_str_eq(bench_sent(&b, D, FG_MSG_RESERVE)->reserve.writer.name, "p",
                     "nobody has this salt's blocks: the first of equals");
    bench_close(&b);
}

Test(know, news_of_a_hostile_worker_cost_a_bounded_room)
{
    enum { KEYS = 4000, ROUNDS = 100 };
    bench b;
    fg_rng rng = { 7 };
    static uint64_t keys[KEYS];
    open_three(&b);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < KEYS; i++) {
            keys[i] = fg_rng_next(&rng);
        }
        fg_wire_news row = {
            .change = FG_NEWS_STORED, .parent = 9, .keys = keys, .key_count = KEYS
        };
        fg_msg msg = { .kind = FG_MSG_NEWS };
        msg.news.sequence = round + 2;
        msg.news.rows = &row;
        msg.news.count = 1;
        bench_give(&b, P2, &msg);
    }
    fg_residency_stats stats;
    fg_residency_check(fg_dispatch_residency(b.dispatch));
    fg_residency_stats_get(fg_dispatch_residency(b.dispatch), &stats);
    cr_assert_leq(stats.bytes, stats.bytes_reserved);
    cr_assert_gt(stats.reclaimed, 0u);
    bench_close(&b);
}

/* Its second prompt would wait for 10^20 ns: a liar is asked last, but here there is nobody else. */
Test(know, a_liars_times_stay_numbers)
{
    bench b;
    uint64_t id;
    fg_msg msg = { .kind = FG_MSG_HELLO };
    fg_dispatch_options options = bench_options(&b);
    options.place.split = FG_PLACE_UNSPLIT;
    bench_open_with(&b, &options);
    for (uint32_t i = 0; i < 2; i++) {
        static const char *const names[] = { "liar", "slow" };
        static const fg_wire_speed speeds[] = {
            { UINT64_MAX, 1, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX },
            { UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX }
        };
        msg.hello =
            bench_hello(names[i], i == 0 ? FG_ROLE_PREFILL | FG_ROLE_DECODE : FG_ROLE_DECODE);
        msg.hello.able = msg.hello.roles;
        msg.hello.speed = speeds[i];
        fg_dispatch_on_up(b.dispatch, P + i, i == 0 ? "liar#1" : "slow#1");
        bench_give(&b, P + i, &msg);
    }
    b.sent_count = 0;
    for (uint32_t i = 0; i < 3; i++) {
        cr_assert_eq(bench_start(&b, 30, 3, &id), FG_OK);
    }
    cr_assert_eq(bench_sent_count(&b, P, FG_MSG_PREFILL), 3u);
    bench_close(&b);
}

Test(know, the_share_of_prompts_fades)
{
    static const struct {
        double prompt_ns;
        uint64_t later_ns;
        double want;
    } cases[] = { { 8e9, 0, 0.5 },
                  { 8e9, 16000000000, 0.1839 },
                  { 8e9, 1000000000000, 0.01 },
                  { 0, 0, 0.01 },
                  { 1e12, 0, 1 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fg_reg_worker worker = { .prompt_ns = cases[i].prompt_ns, .prompt_at_ns = 5 };
        double share = fg_dispatch_prompt_share(&worker, 5 + cases[i].later_ns);
        cr_assert(share > cases[i].want - 1e-4 && share < cases[i].want + 1e-4, "%zu: %g", i,
                  share);
    }
}

/* A step that brings four tokens in 240 ms: to whoever waits for them it is one of 60. */
Test(dispatch_know, a_step_that_brings_several_tokens_is_no_slow_one)
{
    enum { EACH = 4 };
    bench b;
    uint64_t id;
    bench_open(&b);
    bench_join_pair(&b);
    cr_assert_eq(bench_start(&b, 5, 34, &id), FG_OK);
    bench_ticket(&b, id, 1);
    bench_first(&b, id, 4);
    for (uint32_t index = 1; index + EACH <= 33;) {
        fg_wire_token tokens[EACH];
        fg_msg msg = { .kind = FG_MSG_TOKENS };
        msg.tokens.tokens = tokens;
        for (; msg.tokens.count < EACH; msg.tokens.count++) {
            tokens[msg.tokens.count] =
                (fg_wire_token){ .request = id, .attempt = 1, .index = index++, .id = 7 };
        }
        bench_pass(&b, 60 * EACH);
        bench_give(&b, D, &msg);
    }
    const fg_reg_worker *d = fg_registry_by_peer(b.dispatch->registry, D);
    double learned = fg_speed_step_ns(&d->pace, 1, 0);
    cr_assert(learned > 30e6 && learned < 90e6, "%g", learned);
    bench_done(&b, D, id, FG_FINISH_STOP, 33);
    bench_close(&b);
}
