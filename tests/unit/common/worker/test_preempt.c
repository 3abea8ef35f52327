/* What a worker does when blocks, slots or requests come and go: preemption, joining, ending, cancelling,
 * and all of that without allocating memory. */
#include <string.h>

#include "common/base/mem.h"
#include "tests/support/test.h"
#include "tests/unit/common/worker/rig.h"

/* ---- preempting ---- */

static const struct {
    const char *name;
    fg_sched_preemption preemption;
    fg_sched_victim victim;
    bool overlap, cache;
} ways[] = {
    { "recompute, fewest output", FG_PREEMPT_RECOMPUTE, FG_VICTIM_FEWEST_OUTPUT, false, false },
    { "recompute, last admitted", FG_PREEMPT_RECOMPUTE, FG_VICTIM_LAST_ADMITTED, false, false },
    { "recompute, cheapest", FG_PREEMPT_RECOMPUTE, FG_VICTIM_CHEAPEST, false, false },
    { "recompute from the cache", FG_PREEMPT_RECOMPUTE, FG_VICTIM_CHEAPEST, false, true },
    { "recompute, overlapped", FG_PREEMPT_RECOMPUTE, FG_VICTIM_FEWEST_OUTPUT, true, false },
    { "swap, fewest output", FG_PREEMPT_SWAP, FG_VICTIM_FEWEST_OUTPUT, false, false },
    { "swap, last admitted", FG_PREEMPT_SWAP, FG_VICTIM_LAST_ADMITTED, false, false },
    { "swap, cheapest", FG_PREEMPT_SWAP, FG_VICTIM_CHEAPEST, false, false },
    { "swap with a cache", FG_PREEMPT_SWAP, FG_VICTIM_CHEAPEST, false, true },
    { "swap, overlapped", FG_PREEMPT_SWAP, FG_VICTIM_LAST_ADMITTED, true, false },
    { "swap, overlapped, with a cache", FG_PREEMPT_SWAP, FG_VICTIM_FEWEST_OUTPUT, true, true },
    { "auto", FG_PREEMPT_AUTO, FG_VICTIM_CHEAPEST, true, true },
};
enum { WAYS = sizeof ways / sizeof *ways };

static rig_options small_pool(size_t way, uint32_t slots)
{
    /* With a step planned ahead, the first request is a token further when the second one comes. */
    return (rig_options){ .blocks = ways[way].overlap ? 7 : 6,
                          .block_size = 1,
                          .slots = slots,
                          .overlap = ways[way].overlap,
                          .no_cache = !ways[way].cache,
                          .policies = { .preemption = ways[way].preemption,
                                        .victim = ways[way].victim } };
}

/* R57, R58: six blocks of one token, two prompts of two tokens. When blocks run out, the later request
 * gives way, and comes back with what it had. The rig compares every token with an undisturbed run. */
Test(worker_preempt, preempted_sequence_resumes_later)
{
    for (size_t way = 0; way < WAYS; way++) {
        rig r;
        rig_options options = small_pool(way, 8);
        rig_open(&r, &options);
        rig_request *one = rig_ask(&r, 1, 1, 2, 4);
        rig_request *two = rig_ask(&r, 2, 21, 2, 4);
        rig_run(&r);
        fg_worker_stats stats = rig_stats(&r);
        cr_assert_eq(one->finish, FG_FINISH_LENGTH, "%s", ways[way].name);
        cr_assert_eq(two->finish, FG_FINISH_LENGTH, "%s", ways[way].name);
        cr_assert_eq(one->count, 6u);
        cr_assert_eq(two->count, 6u);
        cr_assert_eq(one->preemptions, 0u, "%s", ways[way].name);
        cr_assert(two->preemptions >= 1, "%s", ways[way].name);
        cr_assert_eq(stats.preemptions, two->preemptions);
        bool swap = ways[way].preemption == FG_PREEMPT_SWAP;
        cr_assert(
            !swap || (stats.swapped_blocks > 0 && stats.restored_blocks == stats.swapped_blocks),
            "%s: %llu out, %llu back", ways[way].name, (unsigned long long)stats.swapped_blocks,
            (unsigned long long)stats.restored_blocks);
        cr_assert(ways[way].preemption != FG_PREEMPT_RECOMPUTE || stats.swapped_blocks == 0);
        rig_close(&r);
    }
}

Test(worker_preempt, a_swap_without_room_in_the_tier_is_a_recompute)
{
    rig r;
    rig_options options = small_pool(5, 1);
    rig_open(&r, &options);
    rig_ask(&r, 1, 1, 2, 4);
    rig_request *two = rig_ask(&r, 2, 21, 2, 4);
    rig_run(&r);
    cr_assert(two->preemptions >= 1);
    cr_assert_eq(rig_stats(&r).swapped_blocks, 0u);
    rig_close(&r);
}

Test(worker_preempt, a_damaged_swap_is_computed_again)
{
    rig r;
    rig_options options = small_pool(5, 8);
    rig_open(&r, &options);
    rig_request *one = rig_ask(&r, 1, 1, 2, 4);
    rig_request *two = rig_ask(&r, 2, 21, 2, 4);
    while (rig_stats(&r).swapped_blocks == 0) {
        cr_assert(rig_step(&r));
    }
    rig_step(&r); /* the copies run */
    uint8_t *slots = fg_tier_arena(r.tier);
    for (uint32_t i = 0; i < 8; i++) {
        slots[i * r.layout.block_bytes] ^= 1;
    }
    rig_run(&r);
    cr_assert(one->done && two->done);
    cr_assert(rig_stats(&r).damaged_blocks > 0);
    rig_close(&r);
}

/* P13, R58: preempted ones come back before fresh ones, in the order in which they arrived. */
Test(worker_preempt, preempted_ones_come_before_fresh_ones)
{
    rig r;
    rig_options options = small_pool(0, 0);
    options.blocks = 9;
    rig_open(&r, &options);
    rig_ask(&r, 1, 1, 2, 7);
    rig_request *two = rig_ask(&r, 2, 21, 2, 6);
    rig_request *three = rig_ask(&r, 3, 31, 2, 5);
    while (rig_stats(&r).preempted < 2) {
        cr_assert(rig_step(&r));
    }
    rig_request *four = rig_ask(&r, 4, 41, 1, 1); /* would fit, were it its turn */
    cr_assert(two->count > 2 && three->count > 2);
    fg_worker_stats stats;
    do { /* stats.waiting counts the preempted ones, too */
        cr_assert(rig_step(&r));
        stats = rig_stats(&r);
    } while (stats.waiting > stats.preempted);
    cr_assert_eq(stats.preempted, 0u, "the fresh one was admitted before a preempted one");
    cr_assert(!four->done);
    rig_run(&r);
    rig_close(&r);
}

/* T3 a, P5: nothing can be preempted for the last one; it ends with what it has. */
Test(worker_preempt, the_last_one_at_capacity_ends_with_length)
{
    static const fg_sched_admission admissions[] = { FG_ADMIT_WATERMARK, FG_ADMIT_NO_EVICT };
    for (size_t way = 0; way < WAYS; way++) {
        for (int i = 0; i < 2; i++) {
            rig r;
            rig_options options = small_pool(way, 8);
            options.policies.admission = admissions[i];
            rig_open(&r, &options);
            rig_request *one = rig_ask(&r, 1, 1, 2, 50);
            rig_request *two = rig_ask(&r, 2, 21, 2, 50);
            rig_run(&r);
            cr_assert_eq(one->finish, FG_FINISH_LENGTH);
            cr_assert_eq(two->finish, FG_FINISH_LENGTH);
            cr_assert_eq(one->count, options.blocks + 1, "the last token needs no slot");
            cr_assert_eq(two->count, options.blocks + 1);
            cr_assert(admissions[i] == FG_ADMIT_WATERMARK || rig_stats(&r).preemptions == 0);
            rig_close(&r);
        }
    }
}

/* Two equal requests share what they compute, up to the end of the pool; whoever gives way there comes
 * back and gets as far. */
Test(worker_preempt, two_that_share_their_blocks_both_reach_capacity)
{
    for (size_t way = 0; way < WAYS; way++) {
        for (uint32_t prompt = 2; prompt < 7; prompt++) {
            for (uint32_t lead = 0; lead < 3; lead++) {
                rig r;
                rig_options options = small_pool(way, 8);
                rig_open(&r, &options);
                rig_request *one = rig_ask(&r, 1, 1, 2, 50);
                for (uint32_t i = 0; i < lead; i++) {
                    rig_step(&r);
                }
                uint32_t tokens[8];
                memcpy(tokens, one->tokens, 2 * sizeof *tokens);
                rig_alone(&r, one, tokens + 2, prompt - 2);
                fg_wire_params params = rig_greedy(50);
                rig_request *two = rig_send(&r, 2, tokens, prompt, &params);
                rig_run(&r);
                cr_assert_eq(one->count, options.blocks + 1);
                cr_assert_eq(two->count, options.blocks + 1);
                rig_close(&r);
            }
        }
    }
}

/* ---- joining and ending ---- */

/* R52: who arrives while step n computes is in step n + 1. */
Test(worker_preempt, an_arrival_joins_the_next_step)
{
    rig r;
    rig_open(&r, &(rig_options){ .blocks = 32, .block_size = 4 });
    rig_request *one = rig_ask(&r, 1, 1, 4, 20);
    rig_run_until_started(&r, 1);
    for (uint32_t i = 2; i < 5; i++) {
        uint32_t before = one->count;
        rig_request *other = rig_ask(&r, i, 10 * i, 4, 3); /* one step is in flight */
        rig_step(&r);                                      /* that one ends; the next begins */
        cr_assert(!other->started);
        rig_step(&r);
        cr_assert(other->started, "request %u missed the step after its arrival", i);
        cr_assert_eq(one->count, before + 2, "and the other one went on in both");
    }
    rig_run(&r);
    rig_close(&r);
}

/* R61, T9, P18: with a step planned ahead, the end token is found while the step after it computes. That
 * token is thrown away, the end is told once, and the blocks come back once, when that step has ended. */
Test(worker_preempt, eos_found_one_step_late_frees_once)
{
    for (int overlap = 0; overlap < 2; overlap++) {
        rig probe, r;
        rig_open(&probe, &(rig_options){ .blocks = 8, .block_size = 2 });
        rig_request *whole = rig_ask(&probe, 1, 5, 3, 6);
        rig_run(&probe);
        uint32_t eos = whole->tokens[3 + 3];
        for (uint32_t i = 0; i < 3; i++) {
            cr_assert(whole->tokens[3 + i] != eos, "choose another prompt");
        }
        rig_close(&probe);

        rig_open(&r, &(rig_options){
                         .blocks = 8, .block_size = 2, .overlap = overlap > 0, .no_cache = true });
        r.ends_at = eos;
        rig_request *request = rig_ask(&r, 1, 5, 3, 6);
        while (!request->done) {
            cr_assert(rig_step(&r));
        }
        cr_assert_eq(request->finish, FG_FINISH_STOP);
        cr_assert_eq(request->count, 3u + 4);
        fg_worker_stats stats = rig_stats(&r);
        cr_assert_eq(stats.discarded_tokens, 0u, "not yet booked");
        cr_assert_eq(stats.closing, overlap > 0 ? 1u : 0u);
        cr_assert_eq(stats.pool.held > 0, overlap > 0, "a step still writes there");
        uint64_t heard = r.heard;
        rig_run(&r);
        cr_assert_eq(r.heard, heard, "nothing more is said about it");
        cr_assert_eq(rig_stats(&r).discarded_tokens, overlap > 0 ? 1u : 0u);
        cr_assert_eq(rig_stats(&r).pool.free, 8u);
        rig_close(&r);
    }
}

/* ---- R50: a cancel in every state gives everything back ---- */

static void to_waiting(rig *r)
{
    rig_ask(r, 1, 21, 4, 8); /* in flight; the next one stands in line until it has been booked */
    rig_ask(r, 2, 1, 6, 8);
    cr_assert_eq(rig_stats(r).waiting, 1u);
}

static void to_deferred(rig *r)
{
    rig_ask(r, 1, 1, 6, 8);
    rig_step(r);
    rig_ask(r, 3, 11, 4, 8);
    rig_ask(r, 2, 11, 4, 8);
    rig_step(r);
    cr_assert_eq(rig_stats(r).deferrals, 1u);
    cr_assert(!r->requests[2].started);
}

static void to_half_prefilled(rig *r)
{
    rig_ask(r, 2, 1, 9, 3);
    rig_step(r);
    rig_step(r);
    cr_assert(!r->requests[2].started);
    cr_assert(rig_stats(r).prompt_tokens > 0);
}

static void to_decoding(rig *r)
{
    rig_ask(r, 2, 1, 3, 8);
    rig_run_until_started(r, 2);
    rig_step(r);
}

/* Two that do not fit together, until the second has given way. */
static void to_preempted(rig *r)
{
    rig_ask(r, 1, 21, 2, 12);
    rig_ask(r, 2, 1, 2, 9);
    while (rig_stats(r).preempted == 0) {
        cr_assert(rig_step(r));
    }
    cr_assert_eq(rig_stats(r).tier.swapped > 0, r->options.slots > 0);
}

static void to_swapped_out(rig *r)
{
    to_preempted(r);
    rig_step(r); /* the copies have run */
}

static void to_restoring(rig *r)
{
    to_preempted(r);
    while (rig_stats(r).restored_blocks == 0) {
        cr_assert(rig_step(r));
    }
    cr_assert_eq(rig_stats(r).preempted, 0u);
    cr_assert_eq(rig_stats(r).running, 0u, "its copies are under way");
}

static const struct {
    const char *name;
    void (*lead)(rig *r);
    uint32_t slots;
} states[] = {
    { "waiting", to_waiting, 0 },
    { "deferred", to_deferred, 0 },
    { "half prefilled", to_half_prefilled, 0 },
    { "decoding", to_decoding, 0 },
    { "preempted", to_preempted, 0 },
    { "preempted, copies under way", to_preempted, 16 },
    { "preempted, swapped out", to_swapped_out, 16 },
    { "restoring", to_restoring, 16 },
};

Test(worker_preempt, cancel_in_every_state_frees_everything)
{
    for (size_t i = 0; i < sizeof states / sizeof *states; i++) {
        for (int overlap = 0; overlap < 2; overlap++) {
            rig r;
            rig_open(&r, &(rig_options){ .blocks = 12,
                                         .block_size = 1,
                                         .slots = states[i].slots,
                                         .chunk = 4,
                                         .overlap = overlap > 0,
                                         .policies = { .preemption = FG_PREEMPT_SWAP } });
            states[i].lead(&r);
            rig_cancel(&r, 2);
            rig_give(&r, &(fg_msg){ .kind = FG_MSG_CANCEL, .request = 2, .attempt = 1 });
            rig_run(&r); /* the rig refuses any word about request 2 from here on */
            for (uint32_t j = 0; j < RIG_REQUESTS_MAX; j++) {
                cr_assert(!r.requests[j].sent || r.requests[j].done || j == 2, "%s",
                          states[i].name);
            }
            rig_close(&r); /* every block, promise and slot is back */
        }
    }
}

Test(worker_preempt, losing_the_router_in_every_state_frees_everything)
{
    for (size_t i = 0; i < sizeof states / sizeof *states; i++) {
        rig r;
        rig_open(&r, &(rig_options){ .blocks = 12,
                                     .block_size = 1,
                                     .slots = states[i].slots,
                                     .chunk = 4,
                                     .overlap = true,
                                     .policies = { .preemption = FG_PREEMPT_SWAP } });
        states[i].lead(&r);
        fg_worker_on_down(r.worker, 0);
        fg_worker_check(r.worker);
        rig_run(&r);
        rig_close(&r);
    }
}

/* ---- R87: no allocation per step ---- */

/* The linker sends this program's calls here (see CMakeLists.txt). */
static bool counting;
static uint64_t allocations;

void *__real_malloc(size_t size_bytes);
void *__real_calloc(size_t count, size_t item_bytes);
void *__real_realloc(void *memory, size_t size_bytes);
void *__wrap_malloc(size_t size_bytes);
void *__wrap_calloc(size_t count, size_t item_bytes);
void *__wrap_realloc(void *memory, size_t size_bytes);

void *__wrap_malloc(size_t size_bytes)
{
    allocations += counting;
    return __real_malloc(size_bytes);
}

void *__wrap_calloc(size_t count, size_t item_bytes)
{
    allocations += counting;
    return __real_calloc(count, item_bytes);
}

void *__wrap_realloc(void *memory, size_t size_bytes)
{
    allocations += counting;
    return __real_realloc(memory, size_bytes);
}

/* An arrival may allocate (its sequence is one arena). Steps may not: neither planning nor booking,
 * neither preempting, swapping and copying, nor an end. */
static void count_steps(bool overlap)
{
    enum { STEPS = 10000, LIVE = 12 };
    rig r;
    rig_open(
        &r, &(rig_options){ .blocks = 40,
                            .block_size = 2,
                            .slots = 30,
                            .seqs = 8,
                            .chunk = 8,
                            .overlap = overlap,
                            .policies = { .preemption = FG_PREEMPT_SWAP, .watermark_blocks = 1 } });
    r.unchecked = true;
    uint64_t arrivals = 0, after_warming = 0;
    for (uint32_t step = 0; step < STEPS; step++) {
        for (uint64_t id = 1; id <= LIVE; id++) {
            rig_request *request = &r.requests[id];
            if (!request->sent || request->done) {
                arrivals++;
                rig_ask(&r, id, (uint32_t)(arrivals % 23), 1 + (uint32_t)(arrivals * 7 % 20),
                        1 + (uint32_t)(arrivals * 5 % 30));
            }
        }
        counting = true;
        rig_step(&r);
        counting = false;
        after_warming = step < 1000 ? allocations : after_warming; /* buffers reach their size */
    }
    fg_worker_stats stats = rig_stats(&r);
    cr_assert_eq(allocations, after_warming, "%llu allocations in %d steps",
                 (unsigned long long)(allocations - after_warming), STEPS);
    cr_assert(arrivals > 1000 && stats.preemptions > 100 && stats.restored_blocks > 100,
              "%llu arrivals, %llu preemptions", (unsigned long long)arrivals,
              (unsigned long long)stats.preemptions);
    rig_run(&r);
    rig_close(&r);
}

Test(worker_preempt, ten_thousand_steps_allocate_nothing)
{
    counting = true;
    fg_mem_free(fg_mem_alloc(1));
    counting = false;
    cr_assert_eq(allocations, 1u, "allocations are not counted here");
    allocations = 0;
    count_steps(false);
    count_steps(true);
}
