/* Blocks for decoding ones, and who gives way when there are too few. */
#include "common/sched/sched.h"

#include <string.h>

#include "tests/support/test.h"
#include "tests/unit/common/sched/plan_check.h"

enum { MANY = 6, NOBODY = -1 };

/* A sequence that decodes. Its last block is full when `asks`, and has room when not. */
typedef struct one {
    uint32_t arrival, output, redo, blocks;
    bool asks;
    char
        is; /* 'f': fixed, 's': stopped, 'p': prefills, 'z': frees nothing, 'x': fixed and stopped */
} one;

typedef struct outcome {
    int victims[MANY]; /* in order, ended by NOBODY */
    int runs[MANY];    /* likewise, in order of the snapshot */
    bool is_short, ends;
} outcome;

static const struct {
    const char *name;
    fg_sched_victim victim;
    uint32_t available, elsewhere;
    bool may_not_preempt;
    one seqs[MANY];
    uint32_t count;
    outcome want;
} cases[] = {
    { "all fit",
      FG_VICTIM_FEWEST_OUTPUT,
      2,
      0,
      false,
      { { 0, 5, 9, 2, true, 0 }, { 1, 4, 9, 2, true, 0 } },
      2,
      { { NOBODY }, { 0, 1, NOBODY }, false, false } },
    { "the fewest output goes",
      FG_VICTIM_FEWEST_OUTPUT,
      1,
      0,
      false,
      { { 0, 5, 9, 2, true, 0 }, { 1, 3, 9, 2, true, 0 }, { 2, 4, 9, 2, true, 0 } },
      3,
      { { 1, NOBODY }, { 0, 2, NOBODY }, false, false } },
    { "ties go to the later arrival, wherever it runs",
      FG_VICTIM_FEWEST_OUTPUT,
      0,
      0,
      false,
      { { 7, 3, 9, 2, true, 0 }, { 1, 3, 9, 2, true, 0 } },
      2,
      { { 0, NOBODY }, { 1, NOBODY }, false, false } },
    { "the last admitted goes",
      FG_VICTIM_LAST_ADMITTED,
      0,
      0,
      false,
      { { 7, 1, 1, 2, true, 0 }, { 1, 9, 9, 2, true, 0 } },
      2,
      { { 1, NOBODY }, { 0, NOBODY }, false, false } },
    { "the last admitted is spared when only it asks",
      FG_VICTIM_LAST_ADMITTED,
      0,
      0,
      false,
      { { 0, 1, 1, 2, false, 0 }, { 1, 5, 5, 2, false, 0 }, { 2, 9, 9, 2, true, 0 } },
      3,
      { { 1, NOBODY }, { 0, 2, NOBODY }, false, false } },
    { "the cheapest goes",
      FG_VICTIM_CHEAPEST,
      0,
      0,
      false,
      { { 0, 5, 2, 2, true, 0 }, { 1, 1, 9, 2, true, 0 } },
      2,
      { { 0, NOBODY }, { 1, NOBODY }, false, false } },
    { "a victim's blocks serve several",
      FG_VICTIM_FEWEST_OUTPUT,
      0,
      0,
      false,
      { { 0, 5, 9, 2, true, 0 }, { 1, 4, 9, 2, true, 0 }, { 2, 1, 9, 2, false, 0 } },
      3,
      { { 2, NOBODY }, { 0, 1, NOBODY }, false, false } },
    { "as many victims as it takes",
      FG_VICTIM_FEWEST_OUTPUT,
      0,
      0,
      false,
      { { 0, 5, 9, 1, true, 0 },
        { 1, 4, 9, 1, true, 0 },
        { 2, 1, 9, 1, false, 0 },
        { 3, 1, 9, 1, false, 0 },
        { 4, 9, 9, 1, true, 0 } },
      5,
      { { 3, 2, 1, NOBODY }, { 0, 4, NOBODY }, false, false } },
    { "a prefilling one is a victim as any other",
      FG_VICTIM_FEWEST_OUTPUT,
      0,
      0,
      false,
      { { 0, 5, 9, 2, true, 0 }, { 1, 0, 9, 2, false, 'p' } },
      2,
      { { 1, NOBODY }, { 0, NOBODY }, false, false } },
    { "a fixed one is spared",
      FG_VICTIM_FEWEST_OUTPUT,
      0,
      0,
      false,
      { { 0, 5, 9, 2, true, 0 }, { 1, 1, 9, 2, false, 'f' }, { 2, 4, 9, 2, false, 0 } },
      3,
      { { 2, NOBODY }, { 0, 1, NOBODY }, false, false } },
    { "a stopped one may go",
      FG_VICTIM_FEWEST_OUTPUT,
      0,
      0,
      false,
      { { 0, 5, 9, 2, true, 0 }, { 1, 1, 9, 2, false, 's' } },
      2,
      { { 1, NOBODY }, { 0, NOBODY }, false, false } },
    { "a stopped one asks for nothing",
      FG_VICTIM_FEWEST_OUTPUT,
      0,
      0,
      false,
      { { 0, 5, 9, 2, true, 's' }, { 1, 1, 9, 2, false, 0 } },
      2,
      { { NOBODY }, { 1, NOBODY }, false, false } },
    { "nobody goes for nothing",
      FG_VICTIM_FEWEST_OUTPUT,
      0,
      0,
      false,
      { { 0, 5, 9, 2, true, 0 }, { 1, 1, 9, 2, false, 'z' }, { 2, 2, 9, 2, false, 0 } },
      3,
      { { 2, NOBODY }, { 0, 1, NOBODY }, false, false } },
    { "the last one left ends at capacity",
      FG_VICTIM_FEWEST_OUTPUT,
      0,
      0,
      false,
      { { 0, 5, 9, 6, true, 0 } },
      1,
      { { NOBODY }, { NOBODY }, true, true } },
    { "likewise, last admitted",
      FG_VICTIM_LAST_ADMITTED,
      0,
      0,
      false,
      { { 0, 5, 9, 6, true, 0 } },
      1,
      { { NOBODY }, { NOBODY }, true, true } },
    { "it stands still while blocks are elsewhere",
      FG_VICTIM_FEWEST_OUTPUT,
      0,
      1,
      false,
      { { 0, 5, 9, 6, true, 0 } },
      1,
      { { NOBODY }, { NOBODY }, true, false } },
    { "it stands still while its ticket is open",
      FG_VICTIM_FEWEST_OUTPUT,
      0,
      0,
      false,
      { { 0, 5, 9, 6, true, 'f' } },
      1,
      { { NOBODY }, { NOBODY }, true, false } },
    { "it stands still beside a fixed one",
      FG_VICTIM_FEWEST_OUTPUT,
      0,
      0,
      false,
      { { 0, 5, 9, 6, true, 0 }, { 1, 1, 9, 2, false, 'x' } },
      2,
      { { NOBODY }, { NOBODY }, true, false } },
    { "it waits a step when its victims gave nothing back",
      FG_VICTIM_FEWEST_OUTPUT,
      0,
      0,
      false,
      { { 0, 5, 9, 6, true, 0 }, { 1, 1, 9, 6, true, 'z' } },
      2,
      { { 1, NOBODY }, { NOBODY }, true, false } },
    { "fixed ones share what there is by arrival",
      FG_VICTIM_FEWEST_OUTPUT,
      2,
      0,
      false,
      { { 9, 5, 9, 2, true, 'f' }, { 3, 1, 9, 2, true, 'f' }, { 5, 1, 9, 2, true, 'f' } },
      3,
      { { NOBODY }, { 1, 2, NOBODY }, true, false } },
    { "while a step is under way nobody goes",
      FG_VICTIM_FEWEST_OUTPUT,
      1,
      0,
      true,
      { { 2, 5, 9, 2, true, 0 }, { 1, 1, 9, 2, true, 0 }, { 3, 1, 9, 2, false, 0 } },
      3,
      { { NOBODY }, { 1, 2, NOBODY }, true, false } },
    { "nor does anybody end",
      FG_VICTIM_FEWEST_OUTPUT,
      0,
      0,
      true,
      { { 0, 5, 9, 6, true, 0 } },
      1,
      { { NOBODY }, { NOBODY }, true, false } },
};

static fg_sched_seq seq_of(const one *o)
{
    return (fg_sched_seq){ .arrival = o->arrival,
                           .tokens_left = 1,
                           .decoding = o->is != 'p',
                           .fixed = o->is == 'f' || o->is == 'x',
                           .stopped = o->is == 's' || o->is == 'x',
                           .slots_used = 4 * o->blocks - (o->asks ? 0 : 3),
                           .blocks = o->blocks,
                           .frees = o->is == 'z' ? 0 : o->blocks,
                           .output_tokens = o->output,
                           .redo_tokens = o->redo };
}

static const fg_sched_limits base = {
    .step_tokens_max = 64, .chunk_tokens_max = 64, .seqs_max = MANY, .block_size = 4
};

Test(sched_room, blocks_are_found_before_the_step)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *name = cases[i].name;
        const outcome *want = &cases[i].want;
        fg_plan_item items[MANY];
        fg_plan_victim victims[MANY];
        uint32_t admits[MANY], victim_count = 0, item_count = 0;
        fg_sched_seq seqs[MANY];
        fg_sched_limits limits = base;
        fg_sched_wait wait = { .tokens_left = 1 }; /* would fit into nothing */
        limits.victim = cases[i].victim;
        for (uint32_t s = 0; s < cases[i].count; s++) {
            seqs[s] = seq_of(&cases[i].seqs[s]);
        }
        fg_sched_input in = { .limits = &limits,
                              .seqs = seqs,
                              .seq_count = cases[i].count,
                              .waits = &wait,
                              .wait_count = 1,
                              .available = cases[i].available,
                              .elsewhere = cases[i].elsewhere,
                              .may_preempt = !cases[i].may_not_preempt };
        fg_sched_plan plan = { .items = items, .victims = victims, .admits = admits };
        fg_sched_plan_step(&in, &plan);
        const char *wrong = check_plan(&in, &plan);
        cr_assert(wrong == NULL, "%s: %s", name, wrong);
        bool calm = want->victims[0] == NOBODY && !want->is_short;
        cr_assert_eq(plan.admit_count, calm ? 1u : 0u, "%s: %u admitted", name, plan.admit_count);
        for (; want->victims[victim_count] != NOBODY; victim_count++) {
            cr_assert(victim_count < plan.victim_count &&
                          victims[victim_count].seq == (uint32_t)want->victims[victim_count],
                      "%s: victim %u", name, victim_count);
        }
        cr_assert_eq(plan.victim_count, victim_count, "%s: %u victims", name, plan.victim_count);
        for (; want->runs[item_count] != NOBODY; item_count++) {
            bool found = false;
            for (uint32_t k = 0; k < plan.item_count; k++) {
                found = found || items[k].seq == (uint32_t)want->runs[item_count];
            }
            cr_assert(found, "%s: %d does not run", name, want->runs[item_count]);
        }
        cr_assert_eq(plan.item_count, item_count + (calm ? 1u : 0u), "%s: %u run", name,
                     plan.item_count);
        cr_assert_eq(plan.short_of_blocks, want->is_short, "%s: short", name);
        cr_assert_eq(plan.at_capacity, want->ends ? 0u : UINT32_MAX, "%s: capacity", name);
    }
}

/* T15: of 16 slots, 15 tokens need no block. */
Test(sched_room, a_block_is_asked_for_only_when_the_last_one_is_full)
{
    fg_plan_item items[2];
    fg_plan_victim victims[2];
    uint32_t admits[2];
    fg_sched_limits limits = base;
    limits.block_size = 16;
    for (uint32_t used = 1; used <= 33; used++) {
        for (uint32_t promised = 0; promised < 2; promised++) {
            fg_sched_seq seqs[2];
            for (uint32_t s = 0; s < 2; s++) {
                seqs[s] = (fg_sched_seq){ .arrival = s,
                                          .tokens_left = 1,
                                          .decoding = true,
                                          .slots_used = used,
                                          .blocks = (used + 15) / 16,
                                          .promised = promised,
                                          .frees = 2 };
            }
            fg_sched_input in = {
                .limits = &limits, .seqs = seqs, .seq_count = 2, .may_preempt = true
            };
            fg_sched_plan plan = { .items = items, .victims = victims, .admits = admits };
            fg_sched_plan_step(&in, &plan);
            bool full = used % 16 == 0 && promised == 0;
            cr_assert_eq(plan.victim_count, full ? 1u : 0u, "%u slots, %u promised", used,
                         promised);
        }
    }
}

static const struct {
    const char *name;
    fg_sched_preemption preemption;
    uint32_t tier;
    bool cost;
    uint32_t redo;
    bool want[2]; /* of the two victims, each of 3 blocks */
} swap_cases[] = {
    { "recompute", FG_PREEMPT_RECOMPUTE, 9, true, 1000, { false, false } },
    { "swap", FG_PREEMPT_SWAP, 9, false, 1, { true, true } },
    { "swap, exactly room", FG_PREEMPT_SWAP, 6, false, 1, { true, true } },
    { "swap, room for one", FG_PREEMPT_SWAP, 5, false, 1, { true, false } },
    { "swap, no tier", FG_PREEMPT_SWAP, 0, false, 1, { false, false } },
    { "auto, dear to compute", FG_PREEMPT_AUTO, 9, true, 1000, { true, true } },
    { "auto, cheap to compute", FG_PREEMPT_AUTO, 9, true, 1, { false, false } },
    { "auto, room for one", FG_PREEMPT_AUTO, 3, true, 1000, { true, false } },
    { "auto, no cost model", FG_PREEMPT_AUTO, 9, false, 1000, { false, false } },
};

Test(sched_room, victims_go_to_the_tier_while_it_has_room)
{
    fg_cost cost;
    fg_cost_init(&cost, 1 << 20);
    cost.weights[1] = 1e5;        /* 100 us a token */
    cost.copy_bytes_per_ns = 2.0; /* 3 MiB out and in: 3 ms */
    for (size_t i = 0; i < sizeof swap_cases / sizeof *swap_cases; i++) {
        fg_plan_item items[MANY];
        fg_plan_victim victims[MANY];
        uint32_t admits[MANY];
        fg_sched_seq seqs[5];
        fg_sched_limits limits = base;
        limits.preemption = swap_cases[i].preemption;
        for (uint32_t s = 0; s < 5; s++) {
            one o = { .arrival = s, .output = 9 - s, .redo = swap_cases[i].redo };
            o.blocks = s < 3 ? 9 : 3;
            o.asks = s < 3;
            seqs[s] = seq_of(&o);
            seqs[s].frees = s < 3 ? 9 : 1;
        }
        seqs[2].frees = 5;
        seqs[2].fixed = true;
        fg_sched_input in = { .limits = &limits,
                              .cost = swap_cases[i].cost ? &cost : NULL,
                              .seqs = seqs,
                              .seq_count = 5,
                              .available = 1,
                              .tier_available = swap_cases[i].tier,
                              .may_preempt = true };
        fg_sched_plan plan = { .items = items, .victims = victims, .admits = admits };
        fg_sched_plan_step(&in, &plan);
        const char *wrong = check_plan(&in, &plan);
        cr_assert(wrong == NULL, "%s: %s", swap_cases[i].name, wrong);
        cr_assert(plan.victim_count == 2 && victims[0].seq == 4 && victims[1].seq == 3, "%s",
                  swap_cases[i].name);
        for (int k = 0; k < 2; k++) {
            cr_assert_eq(victims[k].swap, swap_cases[i].want[k], "%s: victim %d",
                         swap_cases[i].name, k);
        }
    }
}
