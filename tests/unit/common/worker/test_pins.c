/* Prefixes that a request asks to keep for a while: they outlast the cache's own forgetting, up to a quarter
 * of the pool, until their time is over or somebody needs the room. */
#include "tests/support/test.h"
#include "tests/unit/common/worker/rig.h"

enum { BS = 4, BLOCKS = 32, KEPT = 12 /* prompt tokens whose blocks are kept */ };
#define S 1000000000ull

static const rig_options plain = { .blocks = BLOCKS, .block_size = BS };

static rig_request *ask_pinned(rig *r, uint64_t id, uint32_t first, uint32_t prompt_count,
                               uint32_t pin_ms)
{
    uint32_t prompt[RIG_TOKENS_MAX];
    for (uint32_t i = 0; i < prompt_count; i++) {
        prompt[i] = (first + i) % RIG_VOCAB;
    }
    fg_wire_params params = rig_greedy(1);
    params.pin_ms = pin_ms;
    rig_request *request = rig_send(r, id, prompt, prompt_count, &params);
    rig_run(r);
    return request;
}

/* Other prompts pass through and push everything out that is only cached. */
static void flush(rig *r, uint64_t id)
{
    for (uint32_t i = 0; i < 4; i++) {
        rig_ask(r, id + i, 20 + 7 * i, 60, 1);
        rig_run(r);
    }
}

static const struct {
    const char *name;
    uint32_t pin_ms, wait_s;
    uint32_t cached;
} cases[] = {
    { "not asked for", 0, 0, 0 },
    { "kept", 10000, 0, KEPT },
    { "its time is over", 10000, 11, 0 },
    { "its time is not over", 10000, 9, KEPT },
};

Test(worker_pins, a_pinned_prefix_outlasts_what_is_only_cached)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rig r;
        rig_open(&r, &plain);
        ask_pinned(&r, 1, 0, KEPT + 1, cases[i].pin_ms);
        r.now_ns += cases[i].wait_s * S;
        fg_worker_tick(r.worker);
        flush(&r, 2);
        rig_request *again = rig_ask(&r, 10, 0, KEPT + 1, 1);
        rig_run(&r);
        cr_assert_eq(again->cached_tokens, cases[i].cached, "%s: %u", cases[i].name,
                     again->cached_tokens);
        rig_clear(&r);
        cr_assert_eq(rig_stats(&r).pinned_blocks, 0u);
        rig_close(&r);
    }
}

Test(worker_pins, the_same_prefix_is_pinned_once_and_for_the_longer_time)
{
    rig r;
    rig_open(&r, &plain);
    ask_pinned(&r, 1, 0, KEPT + 1, 5000);
    ask_pinned(&r, 2, 0, KEPT + 1, 20000);
    ask_pinned(&r, 3, 0, KEPT + 1, 1000);
    cr_assert_eq(rig_stats(&r).pinned_prefixes, 1u);
    cr_assert_eq(rig_stats(&r).pinned_blocks, KEPT / BS);
    r.now_ns += 19 * S;
    fg_worker_tick(r.worker);
    cr_assert_eq(rig_stats(&r).pinned_prefixes, 1u);
    r.now_ns += 2 * S;
    fg_worker_tick(r.worker);
    cr_assert_eq(rig_stats(&r).pinned_prefixes, 0u);
    rig_close(&r);
}

Test(worker_pins, a_quarter_of_the_pool_is_the_most)
{
    rig r;
    rig_open(&r, &plain);
    ask_pinned(&r, 1, 0, 5 * BS, 60000);
    ask_pinned(&r, 2, 25, 4 * BS, 60000);
    fg_worker_stats stats = rig_stats(&r);
    cr_assert(stats.pinned_blocks == 5 && stats.pins_refused == 1, "%u, %llu", stats.pinned_blocks,
              (unsigned long long)stats.pins_refused);
    rig_clear(&r);
    rig_close(&r);
}

Test(worker_pins, who_needs_the_room_gets_it)
{
    rig r;
    rig_open(&r, &plain);
    ask_pinned(&r, 1, 0, 4 * BS, 60000);
    ask_pinned(&r, 2, 25, 4 * BS, 30000);
    cr_assert_eq(rig_stats(&r).pinned_prefixes, 2u);
    rig_request *large = rig_ask(&r, 3, 10, (BLOCKS - 5) * BS, 1);
    rig_run(&r);
    cr_assert(large->done);
    cr_assert_eq(rig_stats(&r).pinned_prefixes, 1u,
                 "the one that would have ended first is given up");
    rig_request *all = rig_ask(&r, 4, 10, (BLOCKS - 1) * BS, 40);
    rig_run(&r);
    cr_assert(all->done && all->finish == FG_FINISH_LENGTH);
    cr_assert(rig_stats(&r).pinned_prefixes == 0 && rig_stats(&r).pins_yielded == 2);
    rig_close(&r);
}

Test(worker_pins, waiting_for_a_place_ends_none)
{
    rig r;
    rig_options options = { .blocks = BLOCKS, .block_size = BS, .seqs = 2 };
    rig_open(&r, &options);
    ask_pinned(&r, 1, 0, 4 * BS, 60000);
    for (uint64_t i = 0; i < 3; i++) {
        rig_ask(&r, 2 + i, 10 * (uint32_t)i, BS, 2 * BS);
    }
    for (int i = 0; i < 3; i++) {
        rig_step(&r);
    }
    cr_assert_eq(rig_stats(&r).pinned_prefixes, 1u, "two run, one waits, blocks are free");
    rig_run(&r);
    cr_assert(rig_stats(&r).pinned_prefixes == 1 && rig_stats(&r).pins_yielded == 0);
    rig_clear(&r);
    rig_close(&r);
}

Test(worker_pins, a_lost_router_ends_them)
{
    rig r;
    rig_open(&r, &plain);
    ask_pinned(&r, 1, 0, 4 * BS, 60000);
    fg_worker_on_down(r.worker, 0);
    cr_assert_eq(rig_stats(&r).pinned_blocks, 0u);
    rig_close(&r);
}
