/*
 * The seeds' named scheduler tests and the traps that were found in them, as whole stories: plans are
 * applied to counters (world.h), step by step. In Forge a prompt's step comes first and chooses the
 * first token; "decode step 1" is the step after it.
 */
#include <string.h>

#include "common/base/rng.h"
#include "tests/support/test.h"
#include "tests/unit/common/sched/world.h"

static world w;

static void steps(int count)
{
    for (int i = 0; i < count; i++) {
        world_step(&w);
    }
}

/* The seeds' own example: six blocks of one slot, two prompts of two tokens. */
static void six_blocks(uint32_t output_max)
{
    world_init(&w, 6, 1);
    world_add(&w, 2, output_max);
    world_add(&w, 2, output_max);
}

Test(sched_world, preempts_when_blocks_run_out)
{
    six_blocks(4);
    steps(1);
    cr_assert_eq(w.running_count, 2u, "both prompts fit");
    steps(1); /* decode step 1 takes the last two blocks */
    cr_assert(w.free == 0 && w.plan.victim_count == 0);
    steps(1); /* decode step 2 */
    cr_assert(w.plan.victim_count == 1 && w.requests[1].preempted, "the second one is evicted");
    cr_assert(w.plan.item_count == 1 && world_tokens_of(&w, 0) == 1, "the first one goes on");
    cr_assert_eq(w.requests[1].output, 2u, "it keeps its output");
}

Test(sched_world, preempted_sequence_resumes_later)
{
    six_blocks(4);
    uint32_t fresh = 0;
    for (int i = 0; i < 3; i++) {
        steps(1);
    }
    fresh = world_add(&w, 1, 1); /* would fit at any time, and arrives after the eviction */
    world_run(&w, 100);
    const world_request *evicted = &w.requests[1];
    cr_assert(evicted->preemptions == 1 && evicted->admits == 2 && evicted->output == 4);
    cr_assert(evicted->admitted_step <= w.requests[fresh].admitted_step, "it resumes first");
    cr_assert(!w.requests[0].at_capacity && !evicted->at_capacity);
    /* 2 prompt tokens and 1 of output; then those and the next again; its last one is never stored. */
    cr_assert_eq(evicted->computed_total, 3u + 5u);
}

/* R57, R59: the same pressure, and each policy takes another one. */
Test(sched_world, victim_policies_differ)
{
    static const struct {
        fg_sched_victim victim;
        uint32_t want;
    } cases[] = { { FG_VICTIM_FEWEST_OUTPUT, 0 },
                  { FG_VICTIM_LAST_ADMITTED, 2 },
                  { FG_VICTIM_CHEAPEST, 1 } };
    for (int i = 0; i < 3; i++) {
        world_init(&w, 20, 1);
        w.limits.victim = cases[i].victim;
        w.limits.chunk_tokens_max = 4; /* the first one chooses its first token two steps later */
        world_add(&w, 10, 20);
        world_add(&w, 1, 20);
        world_add(&w, 2, 20);
        for (int s = 0; s < 20 && w.plan.victim_count == 0; s++) {
            steps(1);
        }
        cr_assert(w.plan.victim_count > 0 && w.requests[cases[i].want].preemptions > 0, "policy %d",
                  i);
        world_run(&w, 1000);
    }
}

Test(sched_world, admission_blocks_when_prompt_does_not_fit)
{
    world_init(&w, 4, 4);
    cr_assert_eq(world_add(&w, 17, 1), UINT32_MAX, "never: refused at once");
    world_add(&w, 12, 4);
    world_add(&w, 5, 1); /* two blocks, one is left */
    world_add(&w, 1, 1); /* would fit */
    steps(1);
    cr_assert(w.running_count == 1 && w.waiting_count == 2, "the line stops, R53");
    world_run(&w, 20);
    cr_assert(w.requests[1].admitted_step <= w.requests[2].admitted_step, "first come, R54");
    cr_assert(w.requests[1].admitted_step > w.requests[0].admitted_step);
    cr_assert_eq(w.requests[1].preemptions, 0u);
}

Test(sched_world, eos_retires_a_sequence_early)
{
    world_init(&w, 8, 4);
    uint32_t early = world_add(&w, 4, 20), late = world_add(&w, 4, 8);
    w.requests[early].stop_after = 3;
    steps(2);
    uint32_t before = w.free;
    steps(1);
    cr_assert(w.requests[early].state == ENDED && w.requests[early].output == 3);
    cr_assert_eq(w.free, before + 2, "its blocks are free at once");
    world_run(&w, 20);
    cr_assert_eq(w.requests[late].output, 8u);
}

Test(sched_world, admits_up_to_batch_size)
{
    world_init(&w, 64, 4);
    w.limits.seqs_max = 4;
    for (int i = 0; i < 7; i++) {
        world_add(&w, 4, 3);
    }
    steps(1);
    cr_assert(w.running_count == 4 && w.waiting_count == 3);
    world_run(&w, 30);
}

Test(sched_world, batches_decode_across_sequences)
{
    world_init(&w, 64, 4);
    for (int i = 0; i < 5; i++) {
        world_add(&w, 4, 6);
    }
    steps(1);
    for (int s = 0; s < 4; s++) {
        steps(1);
        cr_assert_eq(w.plan.item_count, 5u, "all decode in one step");
    }
    world_run(&w, 3);
}

Test(sched_world, finished_sequences_retire_and_free_blocks)
{
    world_init(&w, 3, 4);
    for (int i = 0; i < 9; i++) {
        world_add(&w, 8, 3);
    }
    world_run(&w, 100);
    cr_assert_eq(w.free, w.blocks);
}

Test(sched_world, idle_when_no_work)
{
    world_init(&w, 8, 4);
    cr_assert(!world_step(&w));
    world_add(&w, 4, 1);
    cr_assert(world_step(&w));
    cr_assert(!world_step(&w), "and again when all is done");
}

/* R52: who arrives during step n is in step n + 1, and all that decode are in it too. */
Test(sched_world, a_new_request_joins_the_very_next_step)
{
    world_init(&w, 64, 4);
    world_add(&w, 4, 20);
    steps(5);
    uint32_t fresh = world_add(&w, 7, 4);
    steps(1);
    cr_assert(w.plan.item_count == 2 && world_tokens_of(&w, fresh) == 7);
    steps(1);
    cr_assert_eq(world_tokens_of(&w, fresh), 1u, "and decodes in the step after that");
    world_run(&w, 30);
}

/* T3 a: an answer longer than the pool must end at capacity, not evict itself for ever, and the second
 * one must not starve behind it. */
Test(sched_world, an_answer_longer_than_the_pool_ends_at_capacity)
{
    for (int victim = FG_VICTIM_FEWEST_OUTPUT; victim <= FG_VICTIM_CHEAPEST; victim++) {
        six_blocks(50);
        w.limits.victim = (fg_sched_victim)victim;
        world_run(&w, 60);
        for (int i = 0; i < 2; i++) {
            cr_assert(w.requests[i].at_capacity, "policy %d, request %d", victim, i);
            cr_assert_eq(w.requests[i].output, 5u, "six slots: two, and all of its output but one");
        }
        cr_assert(w.requests[0].preemptions + w.requests[1].preemptions <= 4, "policy %d", victim);
    }
}

/* T3 b: in eight blocks of one slot, a third request is not let in only to be thrown out. */
Test(sched_world, nobody_is_admitted_and_evicted_in_one_step)
{
    world_init(&w, 8, 1);
    world_add(&w, 2, 6);
    world_add(&w, 2, 6);
    steps(2);
    world_add(&w, 2, 6); /* two blocks are free, and the other two ask for them now */
    steps(1);
    cr_assert(w.plan.admit_count == 0 && w.plan.item_count == 2 && w.free == 0);
    while (w.ended_count < 3) {
        world_step(&w);
        cr_assert(w.plan.victim_count == 0 || w.plan.admit_count == 0);
        for (uint32_t k = 0; k < w.plan.admit_count; k++) {
            cr_assert(w.plan.item_count > 0, "who is admitted runs");
        }
        cr_assert(w.step < 60, "it ends");
    }
    for (int i = 0; i < 3; i++) {
        const world_request *r = &w.requests[i];
        cr_assert(r->output == 6 && r->preemptions <= 2, "request %d: %u preemptions", i,
                  r->preemptions);
    }
}

static const struct {
    const char *name;
    uint32_t prompt, budget, chunk, want[8];
} chunk_cases[] = {
    { "budget of 512", 2000, 512, 4096, { 512, 1024, 1536, 2000 } },
    { "chunk of 512", 2000, 4096, 512, { 512, 1024, 1536, 2000 } },
    { "one shot", 2000, 4096, 4096, { 2000 } },
    { "exactly two", 1024, 4096, 512, { 512, 1024 } },
};

/* R64. */
Test(sched_world, a_long_prompt_is_computed_in_chunks)
{
    for (size_t i = 0; i < sizeof chunk_cases / sizeof *chunk_cases; i++) {
        world_init(&w, 256, 16);
        w.limits.step_tokens_max = chunk_cases[i].budget;
        w.limits.chunk_tokens_max = chunk_cases[i].chunk;
        uint32_t request = world_add(&w, chunk_cases[i].prompt, 2);
        for (int s = 0; chunk_cases[i].want[s] > 0; s++) {
            bool last = chunk_cases[i].want[s] == chunk_cases[i].prompt;
            steps(1);
            cr_assert_eq(w.requests[request].computed, chunk_cases[i].want[s], "%s, step %d",
                         chunk_cases[i].name, s);
            cr_assert_eq(w.requests[request].output, last ? 1u : 0u,
                         "in the middle of a prompt "
                         "no token is chosen");
        }
        world_run(&w, 3);
    }
}

/* R63: those that decode get their token in every step of a prompt of 4096. */
Test(sched_world, decoding_ones_never_wait_for_a_prompt)
{
    world_init(&w, 512, 16);
    w.limits.step_tokens_max = 516;
    w.limits.chunk_tokens_max = 512;
    for (int i = 0; i < 8; i++) {
        world_add(&w, 4, 30);
    }
    steps(3);
    uint32_t big = world_add(&w, 4096, 2);
    for (int s = 0; w.requests[big].output == 0; s++) {
        steps(1);
        for (uint32_t i = 0; i < 8; i++) {
            cr_assert_eq(world_tokens_of(&w, i), 1u, "step %d, request %u", s, i);
        }
        cr_assert(w.requests[big].output > 0 || world_tokens_of(&w, big) == 508);
    }
    world_run(&w, 60);
}

/* R65, R67: short prompts without end do not starve a half-prefilled one. */
Test(sched_world, a_half_prefilled_one_comes_before_fresh_ones)
{
    world_init(&w, 512, 16);
    w.limits.step_tokens_max = 64;
    uint32_t big = world_add(&w, 1000, 1);
    for (int s = 0; s < 16; s++) {
        world_add(&w, 40, 1);
        steps(1);
        cr_assert_eq(world_tokens_of(&w, big), s < 15 ? 64u : 40u, "step %d", s);
    }
    cr_assert_eq(w.requests[big].state, ENDED);
    cr_assert(w.requests[1].state == RUNNING, "what is left of the budget goes to the next one");
    world_run(&w, 60);
}

/* P1: the whole batch of prompts first, then everybody decodes together. */
Test(sched_world, prefill_first_computes_prompts_before_answers)
{
    world_init(&w, 512, 16);
    w.limits.order = FG_PREFILL_FIRST;
    w.limits.step_tokens_max = 64;
    world_add(&w, 64, 4);
    world_add(&w, 128, 4);
    steps(1);
    cr_assert_eq(w.requests[0].output, 1u);
    for (int s = 0; s < 2; s++) {
        steps(1);
        cr_assert(world_tokens_of(&w, 0) == 0 && world_tokens_of(&w, 1) == 64);
    }
    steps(1);
    cr_assert(world_tokens_of(&w, 0) == 1 && world_tokens_of(&w, 1) == 1);
    world_run(&w, 10);
}

/* R68, R72: a low one gets in although better ones arrive for ever. */
Test(sched_world, aging_lets_everybody_in)
{
    world_init(&w, 64, 16);
    w.limits.seqs_max = 1;
    world_add_with(&w, 4, 2, -1);
    steps(1);
    uint32_t low = world_add_with(&w, 4, 1, 1), normal = world_add_with(&w, 4, 1, 0);
    for (int s = 0; s < 100; s++) {
        world_add_with(&w, 4, 1, -1); /* one a second, and one a second is served */
        steps(1);
    }
    cr_assert(w.requests[normal].state == ENDED && w.requests[low].state == ENDED);
    cr_assert(w.requests[normal].ended_step < w.requests[low].ended_step);
    cr_assert(w.requests[normal].ended_step > 5 && w.requests[low].ended_step < 60,
              "better ones went first, for a while: step %llu and %llu",
              (unsigned long long)w.requests[normal].ended_step,
              (unsigned long long)w.requests[low].ended_step);
}

Test(sched_world, no_evict_never_preempts)
{
    fg_rng rng = { 21 };
    world_init(&w, 40, 4);
    w.limits.admission = FG_ADMIT_NO_EVICT;
    cr_assert_eq(world_add(&w, 100, 62), UINT32_MAX, "can never end: refused");
    cr_assert_neq(world_add(&w, 100, 61), UINT32_MAX, "exactly the pool");
    for (int i = 0; i < 500; i++) {
        world_add(&w, 1 + (uint32_t)fg_rng_below(&rng, 60), 1 + (uint32_t)fg_rng_below(&rng, 60));
    }
    world_run(&w, 100000);
    for (uint32_t i = 0; i < w.request_count; i++) {
        const world_request *r = &w.requests[i];
        cr_assert(r->preemptions == 0 && r->output == r->output_max && r->admits == 1, "request %u",
                  i);
    }
}

/* R60: a swapped one computes nothing again. */
Test(sched_world, swapped_ones_go_on_where_they_were)
{
    six_blocks(4);
    w.limits.preemption = FG_PREEMPT_SWAP;
    w.tier_free = 16;
    world_run(&w, 100);
    const world_request *r = &w.requests[1];
    cr_assert(r->swaps == 1 && r->preemptions == 1 && r->output == 4);
    cr_assert_eq(r->computed_total, 5u, "each of its tokens once");
    cr_assert_eq(w.tier_free, 16u);
}

static uint64_t run_random(uint64_t seed, uint32_t count, const fg_sched_limits *limits,
                           const fg_cost *cost, uint32_t blocks, uint32_t tier, bool cache_keeps)
{
    fg_rng rng = { seed };
    world_init(&w, blocks, limits->block_size);
    w.limits = *limits;
    w.cost = cost;
    w.tier_free = tier;
    w.cache_keeps = cache_keeps;
    uint32_t most = blocks * limits->block_size;
    for (uint32_t i = 0; w.ended_count < count; i++) {
        for (uint64_t n = fg_rng_below(&rng, 3); n > 0 && w.request_count < count; n--) {
            uint32_t prompt = 1 + (uint32_t)fg_rng_below(&rng, most < 60 ? most : 60);
            uint32_t output = 1 + (uint32_t)fg_rng_below(&rng, 40);
            if (limits->admission == FG_ADMIT_NO_EVICT && prompt + output > most) {
                continue;
            }
            uint32_t at = world_add_with(&w, prompt, output, (int32_t)fg_rng_below(&rng, 3) - 1);
            cr_assert_neq(at, UINT32_MAX);
            w.requests[at].stop_after = (uint32_t)fg_rng_below(&rng, 80);
        }
        world_step(&w);
        cr_assert(i < 100 * count, "seed %llu: no end", (unsigned long long)seed);
    }
    cr_assert_eq(w.free, w.blocks);
    cr_assert_eq(w.tier_free, tier);
    for (uint32_t i = 0; i < count; i++) {
        const world_request *r = &w.requests[i];
        uint32_t all =
            r->stop_after > 0 && r->stop_after < r->output_max ? r->stop_after : r->output_max;
        cr_assert(r->state == ENDED && (r->output == all || r->at_capacity), "request %u", i);
        cr_assert(!r->at_capacity || r->prompt + r->output > most, "request %u is cut short", i);
    }
    return w.hash;
}

static const fg_sched_limits pressed = { .step_tokens_max = 64,
                                         .chunk_tokens_max = 16,
                                         .seqs_max = 16,
                                         .block_size = 4,
                                         .watermark_blocks = 2 };

/* R72. */
Test(sched_world, many_requests_all_complete_under_pressure)
{
    run_random(1, 10000, &pressed, NULL, 40, 0, false);
    uint32_t preemptions = 0;
    for (uint32_t i = 0; i < w.request_count; i++) {
        preemptions += w.requests[i].preemptions;
    }
    cr_assert(preemptions > 1000, "there was pressure: %u preemptions", preemptions);
    cr_log_info("10000 requests, %u preemptions, %llu steps", preemptions,
                (unsigned long long)w.step);
}

/* Every policy with every other, in pools down to two blocks. */
Test(sched_world, every_combination_completes_under_pressure)
{
    uint64_t seed = 100;
    fg_cost cost;
    fg_cost_init(&cost, 1 << 16);
    for (unsigned bits = 0; bits < 2 * 3 * 3 * 2 * 4; bits++, seed++) {
        static const uint32_t pools[] = { 2, 5, 17, 40 };
        fg_sched_limits limits = pressed;
        limits.order = bits % 2 ? FG_PREFILL_FIRST : FG_DECODE_FIRST;
        limits.victim = (fg_sched_victim)(bits / 2 % 3);
        limits.preemption = (fg_sched_preemption)(bits / 6 % 3);
        limits.admission = bits / 18 % 2 ? FG_ADMIT_NO_EVICT : FG_ADMIT_WATERMARK;
        limits.skip_max = bits % 5 == 0 ? 2 : 0;
        limits.block_size = bits % 7 == 0 ? 1 : 4;
        limits.watermark_blocks = bits % 3;
        limits.step_target_ns = bits % 4 == 1 ? 30000000 : 0;
        run_random(seed, 250, &limits, &cost, pools[bits / 36], bits % 8 * 4, bits % 3 == 1);
    }
}

Test(sched_world, deterministic_across_runs)
{
    uint64_t first = run_random(5, 500, &pressed, NULL, 30, 8, false);
    uint64_t again = run_random(5, 500, &pressed, NULL, 30, 8, false);
    uint64_t other = run_random(6, 500, &pressed, NULL, 30, 8, false);
    cr_assert_eq(first, again);
    cr_assert_neq(first, other);
}

/* FCFS within a class (R54), when nobody is preempted and none may pass. */
Test(sched_world, a_class_is_served_in_order_of_arrival)
{
    fg_sched_limits limits = pressed;
    limits.admission = FG_ADMIT_NO_EVICT;
    run_random(8, 2000, &limits, NULL, 60, 0, false);
    uint64_t last[3] = { 0 };
    for (uint32_t i = 0; i < w.request_count; i++) {
        const world_request *r = &w.requests[i];
        uint64_t *of_class = &last[r->priority + 1];
        cr_assert(r->admitted_step >= *of_class, "request %u was overtaken", i);
        *of_class = r->admitted_step;
    }
}
