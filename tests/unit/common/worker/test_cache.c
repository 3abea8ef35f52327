/* What a worker shares between requests: the prefix cache, forks of one prompt, and the tier. */
#include <string.h>

#include "tests/support/test.h"
#include "tests/unit/common/worker/rig.h"

enum { BS = 4 };

static const rig_options plain = { .blocks = 32, .block_size = BS };

Test(worker_cache, second_identical_prompt_prefills_only_the_tail)
{
    rig r;
    rig_open(&r, &plain);
    rig_request *one = rig_ask(&r, 1, 0, 22, 3);
    rig_run(&r);
    cr_assert_eq(one->cached_tokens, 0u);
    cr_assert_eq(rig_stats(&r).prompt_tokens, 22u);
    rig_request *two = rig_ask(&r, 2, 0, 22, 3);
    rig_run(&r);
    cr_assert_eq(two->cached_tokens, 20u); /* five blocks of four */
    fg_worker_stats stats = rig_stats(&r);
    cr_assert_eq(stats.prompt_tokens, 24u);
    cr_assert_eq(stats.cache_query_tokens, 44u);
    cr_assert_eq(stats.cache_hit_tokens, 20u);
    rig_close(&r);
}

static const struct {
    const char *name;
    uint32_t block_size, prompt, cached;
} caps[] = {
    { "whole blocks: down to the boundary before the last token", 4, 16, 12 },
    { "one token over", 4, 17, 16 },
    { "one token short", 4, 15, 12 },
    { "a single block", 4, 4, 0 },
    { "a single token", 4, 1, 0 },
    { "blocks of one token: all but the last", 1, 9, 8 },
};

Test(worker_cache, one_token_is_always_left_to_compute)
{
    for (size_t i = 0; i < sizeof caps / sizeof *caps; i++) {
        rig r;
        rig_open(&r, &(rig_options){ .blocks = 32, .block_size = caps[i].block_size });
        rig_ask(&r, 1, 0, caps[i].prompt, 2);
        rig_run(&r);
        rig_request *two = rig_ask(&r, 2, 0, caps[i].prompt, 2);
        rig_run(&r);
        cr_assert_eq(two->cached_tokens, caps[i].cached, "%s: %u", caps[i].name,
                     two->cached_tokens);
        cr_assert(two->done);
        rig_close(&r);
    }
}

Test(worker_cache, a_longer_prompt_shares_what_it_has_in_common)
{
    rig r;
    rig_open(&r, &plain);
    uint32_t prompt[20];
    for (uint32_t i = 0; i < 20; i++) {
        prompt[i] = i;
    }
    fg_wire_params params = rig_greedy(2);
    rig_send(&r, 1, prompt, 20, &params);
    rig_run(&r);
    prompt[9] = 49; /* in the third block */
    rig_request *two = rig_send(&r, 2, prompt, 20, &params);
    rig_run(&r);
    cr_assert_eq(two->cached_tokens, 8u);
    rig_close(&r);
}

Test(worker_cache, disable_computes_everything_and_leaves_nothing)
{
    rig r;
    rig_open(&r, &plain);
    rig_ask(&r, 1, 0, 16, 2);
    rig_run(&r);
    fg_worker_stats before = rig_stats(&r);
    uint32_t other[16];
    for (uint32_t i = 0; i < 16; i++) {
        other[i] = 20 + i;
    }
    fg_wire_params params = rig_greedy(2);
    params.cache_mode = FG_CACHE_DISABLE;
    rig_request *two = rig_send(&r, 2, r.requests[1].tokens, 16, &params);
    rig_request *three = rig_send(&r, 3, other, 16, &params);
    rig_run(&r);
    cr_assert_eq(two->cached_tokens, 0u);
    cr_assert_eq(three->cached_tokens, 0u);
    fg_worker_stats after = rig_stats(&r);
    cr_assert_eq(after.prefix.entries, before.prefix.entries, "nothing new was published");
    cr_assert_eq(after.prompt_tokens, before.prompt_tokens + 32);
    rig_close(&r);
}

Test(worker_cache, a_worker_without_a_cache_keeps_no_block)
{
    rig r;
    rig_open(&r, &(rig_options){ .blocks = 32, .block_size = BS, .no_cache = true });
    rig_ask(&r, 1, 0, 16, 2);
    rig_run(&r);
    rig_request *two = rig_ask(&r, 2, 0, 16, 2);
    rig_run(&r);
    cr_assert_eq(two->cached_tokens, 0u);
    cr_assert_eq(rig_stats(&r).pool.cached, 0u);
    rig_close(&r);
}

Test(worker_cache, force_is_refused_without_a_hit_and_served_with_one)
{
    rig r;
    rig_open(&r, &plain);
    uint32_t prompt[10] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 };
    fg_wire_params force = rig_greedy(2), any = rig_greedy(2);
    force.cache_mode = FG_CACHE_FORCE;
    rig_request *one = rig_send(&r, 1, prompt, 10, &force);
    cr_assert(one->done && one->refused);
    cr_assert_eq(one->finish, FG_FINISH_ERROR);
    cr_assert(!one->started);
    cr_assert_eq(rig_available(&r), 32u);
    rig_send(&r, 2, prompt, 10, &any);
    /* Being computed counts: it waits for the blocks. */
    rig_request *three = rig_send(&r, 3, prompt, 10, &force);
    cr_assert(!three->done);
    rig_run(&r);
    cr_assert_eq(three->cached_tokens, 8u);
    cr_assert_eq(three->finish, FG_FINISH_LENGTH);
    rig_close(&r);
}

Test(worker_cache, force_without_a_cache_is_refused)
{
    rig r;
    rig_open(&r, &(rig_options){ .blocks = 8, .block_size = BS, .no_cache = true });
    uint32_t prompt[5] = { 1, 2, 3, 4, 5 };
    fg_wire_params force = rig_greedy(2);
    force.cache_mode = FG_CACHE_FORCE;
    cr_assert(rig_send(&r, 1, prompt, 5, &force)->refused);
    rig_close(&r);
}

Test(worker_cache, salts_do_not_share)
{
    rig r;
    rig_open(&r, &plain);
    uint32_t prompt[9] = { 1, 2, 3, 4, 5, 6, 7, 8, 9 };
    static const uint64_t salts[][2] = { { 0, 0 }, { 1, 0 }, { 0, 1 }, { 1, 0 } };
    for (uint32_t i = 0; i < 4; i++) {
        fg_wire_params params = rig_greedy(2);
        params.salt_low = salts[i][0];
        params.salt_high = salts[i][1];
        rig_request *request = rig_send(&r, i + 1, prompt, 9, &params);
        rig_run(&r);
        cr_assert_eq(request->cached_tokens, i == 3 ? 8u : 0u, "salt %u", i);
    }
    rig_close(&r);
}

Test(worker_cache, another_secret_of_the_cluster_forgets_everything)
{
    rig r;
    rig_open(&r, &plain);
    rig_ask(&r, 1, 0, 9, 2);
    rig_run(&r);
    cr_assert(rig_stats(&r).pool.cached > 0);
    rig_give(&r,
             &(fg_msg){ .kind = FG_MSG_WELCOME,
                        .welcome = { .router_epoch = 1, .lease_ms = 800, .cache_key_low = 77 } });
    cr_assert_eq(rig_stats(&r).pool.cached, 0u);
    rig_request *two = rig_ask(&r, 2, 0, 9, 2);
    rig_run(&r);
    cr_assert_eq(two->cached_tokens, 0u);
    rig_close(&r);
}

/* T13: what is half computed is nobody's yet; whoever needs it waits until it is whole. */
Test(worker_cache, the_second_of_two_equal_prompts_in_flight_waits_and_hits)
{
    for (int overlap = 0; overlap < 2; overlap++) {
        rig r;
        rig_open(&r, &(rig_options){
                         .blocks = 32, .block_size = BS, .chunk = 6, .overlap = overlap > 0 });
        rig_ask(&r, 1, 0, 22, 6);
        rig_request *two = rig_ask(&r, 2, 0, 22, 6);
        rig_request *half = rig_ask(&r, 3, 0, 9, 6); /* needs only the first two blocks of it */
        cr_assert_eq(rig_stats(&r).running, 1u, "both others wait");
        rig_run(&r);
        cr_assert_eq(two->cached_tokens, 20u);
        cr_assert_eq(half->cached_tokens, 8u);
        cr_assert_eq(rig_stats(&r).deferrals, 2u);
        cr_assert_eq(rig_stats(&r).prompt_tokens, 22u + 2 + 1);
        rig_close(&r);
    }
}

Test(worker_cache, nobody_waits_for_a_prefix_that_was_cancelled)
{
    rig r;
    rig_open(&r, &(rig_options){ .blocks = 32, .block_size = BS, .chunk = 4 });
    rig_ask(&r, 1, 0, 22, 6);
    rig_request *two = rig_ask(&r, 2, 0, 22, 6);
    rig_step(&r);
    rig_cancel(&r, 1);
    rig_run(&r);
    cr_assert(two->done);
    cr_assert_eq(two->cached_tokens, 4u, "%u", two->cached_tokens); /* the chunk that was booked */
    rig_request *three = rig_ask(&r, 3, 0, 22, 6);
    cr_assert_eq(rig_stats(&r).deferrals, 1u, "nothing is expected any more");
    rig_run(&r);
    cr_assert(three->done);
    rig_close(&r);
}

Test(worker_cache, nobody_waits_longer_than_half_a_minute_for_a_prefix)
{
    rig r;
    rig_open(&r, &(rig_options){ .blocks = 32, .block_size = BS, .overlap = true });
    rig_ask(&r, 1, 0, 22, 6);
    rig_request *two = rig_ask(&r, 2, 0, 22, 6);
    cr_assert_eq(rig_stats(&r).running, 1u);
    r.now_ns += 29ull * 1000 * 1000 * 1000;
    fg_worker_tick(r.worker);
    cr_assert_eq(rig_stats(&r).running, 1u, "still waiting");
    r.now_ns += 2ull * 1000 * 1000 * 1000;
    fg_worker_tick(r.worker); /* the step of the first one has not even ended yet */
    rig_step(&r);
    rig_run(&r);
    cr_assert(two->done);
    rig_close(&r);
}

/* T8: both compute the same block of generated tokens, which nobody could know before. The later one goes
 * on with the block of the first, and its own comes back when no step reads it any more. */
Test(worker_cache, equal_generated_tokens_end_in_one_block)
{
    for (int overlap = 0; overlap < 2; overlap++) {
        rig r;
        rig_open(&r, &(rig_options){ .blocks = 32, .block_size = BS, .overlap = overlap > 0 });
        rig_request *one = rig_ask(&r, 1, 5, 4, 16);
        rig_run_until_started(&r, 1);
        uint32_t prompt[5];
        memcpy(prompt, one->tokens, 4 * sizeof *prompt);
        rig_alone(&r, one, prompt + 4, 1);
        fg_wire_params params = rig_greedy(15);
        rig_request *two = rig_send(&r, 2, prompt, 5, &params);
        rig_run(&r);
        cr_assert_eq(memcmp(one->tokens, two->tokens, 20 * sizeof *one->tokens), 0);
        cr_assert(rig_stats(&r).remapped_blocks >= 2, "%llu",
                  (unsigned long long)rig_stats(&r).remapped_blocks);
        cr_assert_eq(rig_stats(&r).pool.cached, 4u, "20 tokens, the last without KV: once");
        rig_close(&r);
    }
}

Test(worker_cache, the_second_turn_of_a_chat_finds_the_first_ones_answer)
{
    rig r;
    rig_open(&r, &plain);
    rig_request *one = rig_ask(&r, 1, 0, 10, 11);
    rig_run(&r);
    uint32_t next[30];
    memcpy(next, one->tokens, one->count * sizeof *next);
    next[21] = 3;
    next[22] = 4;
    fg_wire_params params = rig_greedy(3);
    rig_request *two = rig_send(&r, 2, next, 23, &params);
    rig_run(&r);
    cr_assert_eq(two->cached_tokens, 20u); /* ten of the prompt, and ten of the eleven generated */
    rig_close(&r);
}

Test(worker_cache, clear_forgets_what_nobody_uses_and_hurts_nobody)
{
    for (int overlap = 0; overlap < 2; overlap++) {
        rig r;
        rig_open(
            &r,
            &(rig_options){
                .blocks = 32, .block_size = BS, .slots = 16, .chunk = 4, .overlap = overlap > 0 });
        rig_ask(&r, 1, 0, 18, 4);
        rig_run(&r);
        rig_request *two = rig_ask(&r, 2, 0, 18, 12);    /* borrows, runs */
        rig_request *three = rig_ask(&r, 3, 30, 18, 12); /* half prefilled */
        rig_request *four = rig_ask(&r, 4, 30, 18, 12);  /* waits for the third */
        rig_step(&r);
        rig_clear(&r);
        cr_assert_eq(rig_stats(&r).prefix.entries, 0u);
        cr_assert_eq(rig_stats(&r).pool.cached, 0u);
        rig_run(&r);
        cr_assert(two->done && three->done && four->done);
        rig_clear(&r);
        cr_assert_eq(rig_stats(&r).pool.free, 32u);
        rig_request *five = rig_ask(&r, 5, 0, 18, 2);
        rig_run(&r);
        cr_assert_eq(five->cached_tokens, 0u);
        rig_close(&r);
    }
}

/* R42, n > 1: the prompt is computed once, its full blocks are shared, its partial one is copied. */
Test(worker_cache, choices_of_one_request_fork_its_partial_block)
{
    for (int overlap = 0; overlap < 2; overlap++) {
        rig r;
        rig_open(&r, &(rig_options){ .blocks = 32, .block_size = BS, .overlap = overlap > 0 });
        uint32_t prompt[11] = { 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 11 };
        for (uint32_t i = 1; i <= 4; i++) {
            fg_wire_params params = rig_greedy(8);
            params.temperature = 0.9f;
            params.seed =
                100 + i; /* so each answer is its own; the rig compares with a single run */
            params.family = 77;
            rig_send(&r, i, prompt, 11, &params);
        }
        rig_run(&r);
        fg_worker_stats stats = rig_stats(&r);
        cr_assert_eq(stats.forks, 3u);
        cr_assert_eq(stats.copied_blocks, 3u);
        cr_assert_eq(stats.prompt_tokens, 11u + 3, "the last token of each, for its own choice");
        for (uint32_t i = 2; i <= 4; i++) {
            cr_assert(r.requests[i].done);
            cr_assert_eq(r.requests[i].cached_tokens, 10u);
        }
        rig_close(&r);
    }
}

/* A prompt shorter than a block has no key of its own to keep salts apart. */
Test(worker_cache, no_fork_crosses_a_salt)
{
    for (uint32_t same = 0; same < 2; same++) {
        rig r;
        rig_open(&r, &(rig_options){ .blocks = 32, .block_size = BS });
        uint32_t prompt[BS - 1] = { 9, 8, 7 };
        for (uint32_t i = 1; i <= 2; i++) {
            fg_wire_params params = rig_greedy(8);
            params.family = 77;
            params.salt_low = same > 0 ? 1 : i;
            rig_send(&r, i, prompt, BS - 1, &params);
        }
        rig_run(&r);
        cr_assert_eq(rig_stats(&r).forks, same);
        rig_close(&r);
    }
}

/* R43: where no block is to be had for the copy, nobody forks, and nothing is lost. */
Test(worker_cache, a_fork_without_a_block_for_its_copy_waits)
{
    rig r;
    rig_open(&r, &(rig_options){ .blocks = 4, .block_size = BS });
    uint32_t prompt[7] = { 1, 2, 3, 4, 5, 6, 7 };
    for (uint32_t i = 1; i <= 4; i++) {
        fg_wire_params params = rig_greedy(9);
        params.temperature = 0.9f;
        params.seed = i;
        params.family = 5;
        rig_send(&r, i, prompt, 7, &params);
    }
    rig_run(&r);
    for (uint32_t i = 1; i <= 4; i++) {
        cr_assert(r.requests[i].done);
        cr_assert_eq(r.requests[i].count, 16u);
    }
    rig_close(&r);
}

/* ---- the tier ---- */

/* Fills the pool with a prompt, drives all but its first block out with another, and asks for it again. */
static rig_request *ask_for_evicted(rig *r, bool damaged)
{
    rig_open(r, &(rig_options){ .blocks = 8, .block_size = BS, .slots = 16 });
    rig_ask(r, 1, 0, 22, 3);
    rig_run(r);
    rig_ask(r, 2, 25, 25, 3);
    rig_run(r);
    cr_assert(rig_stats(r).tier.stored >= 4, "%u", rig_stats(r).tier.stored);
    uint8_t *slots = fg_tier_arena(r->tier);
    for (size_t i = 0; damaged && i < 16 * r->layout.block_bytes; i += r->layout.block_bytes) {
        slots[i + r->layout.block_bytes / 2] ^= 0x10;
    }
    return rig_ask(r, 3, 0, 22, 3);
}

Test(worker_cache, an_evicted_block_comes_back_from_the_tier_bit_for_bit)
{
    rig r;
    rig_request *request = ask_for_evicted(&r, false);
    rig_run(&r); /* the simulated engine reads every byte of what came back */
    fg_worker_stats stats = rig_stats(&r);
    cr_assert_eq(request->cached_tokens, 20u);
    cr_assert_eq(stats.tier_hit_tokens, 16u, "%llu", (unsigned long long)stats.tier_hit_tokens);
    cr_assert_eq(stats.damaged_blocks, 0u);
    cr_assert_eq(stats.prompt_tokens, 22u + 25 + 2);
    rig_close(&r);
}

Test(worker_cache, a_damaged_block_of_the_tier_is_computed_again)
{
    rig r;
    rig_request *request = ask_for_evicted(&r, true);
    rig_run(&r);
    fg_worker_stats stats = rig_stats(&r);
    cr_assert(request->done);
    cr_assert_eq(stats.damaged_blocks, 4u, "%llu", (unsigned long long)stats.damaged_blocks);
    cr_assert_eq(stats.prompt_tokens, 22u + 25 + 18);
    /* And nobody finds the damaged ones again. */
    rig_request *again = rig_ask(&r, 4, 0, 22, 3);
    rig_run(&r);
    cr_assert_eq(again->cached_tokens, 20u);
    cr_assert_eq(rig_stats(&r).damaged_blocks, 4u);
    rig_close(&r);
}

enum { PREFIX = 60, FETCHERS = 20 };

/* A long prefix, a block of its own, and one token to compute. */
static void ask_behind_prefix(rig *r, uint64_t id, uint32_t own)
{
    uint32_t tokens[PREFIX * BS + BS + 1];
    for (uint32_t i = 0; i < PREFIX * BS + BS + 1; i++) {
        tokens[i] = i < PREFIX * BS ? i * 7 % RIG_VOCAB : own;
    }
    fg_wire_params params = rig_greedy(2);
    rig_send(r, id, tokens, PREFIX * BS + BS + 1, &params);
}

/* Fills the pool, but for the prefix, which request 1 holds; what follows it goes to the tier. */
static void evict_what_follows(rig *r)
{
    uint32_t tokens[PREFIX * BS];
    for (uint32_t i = 0; i < FETCHERS; i++) {
        ask_behind_prefix(r, 20 + i, i);
        rig_run(r);
    }
    for (uint32_t i = 0; i < PREFIX * BS; i++) {
        tokens[i] = i * 7 % RIG_VOCAB;
    }
    fg_wire_params params = rig_greedy(200);
    rig_send(r, 1, tokens, PREFIX * BS, &params);
    rig_run_until_started(r, 1);
    params = rig_greedy(1);
    params.cache_mode = FG_CACHE_DISABLE;
    tokens[0] = 49;
    rig_send(r, 2, tokens, PREFIX * BS, &params);
    rig_run_until_started(r, 2);
}

/* All of them hold the prefix, which is in the pool, and wait for a block that comes back damaged: together they let go
 * seven times as many blocks as there are, while another step is under way. */
Test(worker_cache, damaged_blocks_of_many_with_one_prefix_are_computed_again)
{
    static rig r;
    rig_open(&r, &(rig_options){ .blocks = PREFIX * 2 + 6,
                                 .block_size = BS,
                                 .slots = 2 * FETCHERS,
                                 .seqs = FETCHERS + 2,
                                 .step_tokens = 256,
                                 .chunk = 256,
                                 .overlap = true });
    evict_what_follows(&r);
    cr_assert_geq(rig_stats(&r).tier.stored, 15u);
    uint8_t *slots = fg_tier_arena(r.tier);
    for (uint32_t i = 0; i < 2 * FETCHERS; i++) {
        slots[i * r.layout.block_bytes] ^= 1;
    }
    for (uint32_t i = 0; i < FETCHERS; i++) {
        ask_behind_prefix(&r, 20 + i, i);
    }
    uint64_t before, damaged = 0;
    do {
        before = damaged;
        cr_assert(rig_step(&r));
        damaged = rig_stats(&r).damaged_blocks;
    } while (damaged - before < 14);
    rig_run(&r);
    rig_close(&r);
}
