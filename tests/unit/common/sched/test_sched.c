/* What one plan holds: refusals, items, chunks, admission. Victims are in test_room.c. */
#include "common/sched/sched.h"

#include <string.h>

#include "tests/support/test.h"
#include "tests/unit/common/sched/plan_check.h"

enum { MANY = 8 };

typedef struct room {
    fg_plan_item items[64];
    fg_plan_victim victims[64];
    uint32_t admits[64];
    fg_sched_plan plan;
} room;

/* Plans, and checks what holds of every plan. */
static const fg_sched_plan *plan_of(room *r, const fg_sched_input *in, const char *name)
{
    memset(r, 0xAB, sizeof *r);
    r->plan.items = r->items;
    r->plan.victims = r->victims;
    r->plan.admits = r->admits;
    fg_sched_plan_step(in, &r->plan);
    const char *wrong = check_plan(in, &r->plan);
    cr_assert(wrong == NULL, "%s: %s", name, wrong);
    return &r->plan;
}

static const fg_sched_limits fine = {
    .step_tokens_max = 16, .chunk_tokens_max = 8, .seqs_max = 8, .block_size = 16
};

#define SIZES(step_, chunk_, seqs_, block_)                                                        \
    .step_tokens_max = (step_), .chunk_tokens_max = (chunk_), .seqs_max = (seqs_),                 \
    .block_size = (block_)

static const struct {
    const char *name, *says; /* NULL: accepted */
    fg_sched_limits limits;
} check_cases[] = {
    { "good", NULL, { SIZES(4096, 512, 64, 16) } },
    { "smallest", NULL, { SIZES(1, 1, 1, 1) } },
    { "chunk beyond the budget", NULL, { SIZES(8, 512, 8, 16) } },
    { "budget smaller than a block", NULL, { SIZES(8, 8, 8, 256) } },
    { "last order", NULL, { SIZES(16, 8, 8, 16), .order = FG_PREFILL_FIRST } },
    { "last victim", NULL, { SIZES(16, 8, 8, 16), .victim = FG_VICTIM_CHEAPEST } },
    { "last preemption", NULL, { SIZES(16, 8, 8, 16), .preemption = FG_PREEMPT_AUTO } },
    { "last admission", NULL, { SIZES(16, 8, 8, 16), .admission = FG_ADMIT_NO_EVICT } },
    { "no budget", "--max-batch-tokens", { SIZES(0, 8, 8, 16) } },
    { "no chunk", "--prefill-chunk-size", { SIZES(16, 0, 8, 16) } },
    { "no sequences", "--max-seqs", { SIZES(16, 8, 0, 16) } },
    { "no block", "--block-size", { SIZES(16, 8, 8, 0) } },
    { "block of 3", "--block-size", { SIZES(16, 8, 8, 3) } },
    { "block of 24", "--block-size", { SIZES(16, 8, 8, 24) } },
    { "fewer tokens than sequences", "--max-batch-tokens", { SIZES(7, 8, 8, 16) } },
    { "order 2", "--schedule", { SIZES(16, 8, 8, 16), .order = (fg_sched_order)2 } },
    { "order -1", "--schedule", { SIZES(16, 8, 8, 16), .order = (fg_sched_order)-1 } },
    { "victim 3", "--victim", { SIZES(16, 8, 8, 16), .victim = (fg_sched_victim)3 } },
    { "preemption 3",
      "--preemption",
      { SIZES(16, 8, 8, 16), .preemption = (fg_sched_preemption)3 } },
    { "last way to end", NULL, { SIZES(16, 8, 8, 16), .last_chunk = FG_LAST_CHUNK_WHOLE } },
    { "way to end 3",
      "--last-chunk",
      { SIZES(16, 8, 8, 16), .last_chunk = (fg_sched_last_chunk)3 } },
    { "last draft", NULL, { SIZES(16, 8, 8, 16), .draft = FG_DRAFT_FIXED, .draft_max = 8 } },
    { "draft 3", "--draft-length", { SIZES(16, 8, 8, 16), .draft = (fg_sched_draft)3 } },
    { "nine guesses", "--draft-max", { SIZES(16, 8, 8, 16), .draft_max = 9 } },
    { "admission 2", "--admission", { SIZES(16, 8, 8, 16), .admission = (fg_sched_admission)2 } },
};

Test(sched, limits_that_contradict_themselves_are_refused_by_name)
{
    for (size_t i = 0; i < sizeof check_cases / sizeof *check_cases; i++) {
        fg_error err = { 0 };
        fg_status status = fg_sched_check(&check_cases[i].limits, &err);
        cr_assert_eq(status, check_cases[i].says == NULL ? FG_OK : FG_BAD_INPUT, "%s: %s",
                     check_cases[i].name, err.text);
        cr_assert(check_cases[i].says == NULL || strstr(err.text, check_cases[i].says) != NULL,
                  "%s: %s", check_cases[i].name, err.text);
        fg_sched_check(&check_cases[i].limits, NULL);
    }
}

/* left > 0: that much of a prompt is missing; 0: it decodes. Everybody has blocks enough. */
static const struct {
    const char *name;
    uint32_t step_tokens, chunk_tokens;
    fg_sched_order order;
    uint32_t left[MANY], count;
    fg_plan_item want[MANY];
    uint32_t want_count;
} item_cases[] = {
    { "nothing to do", 16, 8, FG_DECODE_FIRST, { 0 }, 0, { { 0 } }, 0 },
    { "one decodes", 16, 8, FG_DECODE_FIRST, { 0 }, 1, { { 0, 1, true, 0 } }, 1 },
    { "a short prompt in one chunk", 16, 8, FG_DECODE_FIRST, { 5 }, 1, { { 0, 5, true, 0 } }, 1 },
    { "a prompt of one chunk", 16, 8, FG_DECODE_FIRST, { 8 }, 1, { { 0, 8, true, 0 } }, 1 },
    { "a long prompt chooses no token",
      16,
      8,
      FG_DECODE_FIRST,
      { 9 },
      1,
      { { 0, 8, false, 0 } },
      1 },
    { "decoding ones first, chunks share the rest",
      10,
      8,
      FG_DECODE_FIRST,
      { 20, 0, 20, 0 },
      4,
      { { 1, 1, true, 0 }, { 3, 1, true, 0 }, { 0, 8, false, 0 } },
      3 },
    { "the last chunk is cut to the budget",
      10,
      8,
      FG_DECODE_FIRST,
      { 20, 20 },
      2,
      { { 0, 8, false, 0 }, { 1, 2, false, 0 } },
      2 },
    { "a cut chunk that ends its prompt chooses a token",
      10,
      8,
      FG_DECODE_FIRST,
      { 20, 2 },
      2,
      { { 0, 8, false, 0 }, { 1, 2, true, 0 } },
      2 },
    { "prefill first: chunks take the budget",
      10,
      8,
      FG_PREFILL_FIRST,
      { 0, 20, 0, 20 },
      4,
      { { 1, 8, false, 0 }, { 3, 2, false, 0 } },
      2 },
    { "prefill first: decoding ones take what is left",
      12,
      8,
      FG_PREFILL_FIRST,
      { 0, 3, 0, 7 },
      4,
      { { 1, 3, true, 0 }, { 3, 7, true, 0 }, { 0, 1, true, 0 }, { 2, 1, true, 0 } },
      4 },
    { "prefill first: the first in order decode when it is not enough for all",
      11,
      8,
      FG_PREFILL_FIRST,
      { 0, 3, 0, 7 },
      4,
      { { 1, 3, true, 0 }, { 3, 7, true, 0 }, { 0, 1, true, 0 } },
      3 },
};

static fg_sched_seq seq_with(uint32_t arrival, uint32_t left)
{
    return (fg_sched_seq){ .arrival = arrival,
                           .tokens_left = left > 0 ? left : 1,
                           .decoding = left == 0,
                           .slots_used = 5,
                           .blocks = 1,
                           .promised = 10,
                           .frees = 11 };
}

static void same_items(const fg_sched_plan *plan, const fg_plan_item *want, uint32_t count,
                       const char *name)
{
    cr_assert_eq(plan->item_count, count, "%s: %u items", name, plan->item_count);
    for (uint32_t k = 0; k < count; k++) {
        const fg_plan_item *got = &plan->items[k];
        cr_assert(got->seq == want[k].seq && got->token_count == want[k].token_count &&
                      got->sample == want[k].sample,
                  "%s: item %u is %u tokens of %u", name, k, got->token_count, got->seq);
    }
}

Test(sched, the_token_budget_is_given_out_by_order)
{
    for (size_t i = 0; i < sizeof item_cases / sizeof *item_cases; i++) {
        room r;
        fg_sched_seq seqs[MANY];
        fg_sched_limits limits = fine;
        limits.step_tokens_max = item_cases[i].step_tokens;
        limits.chunk_tokens_max = item_cases[i].chunk_tokens;
        limits.order = item_cases[i].order;
        for (uint32_t s = 0; s < item_cases[i].count; s++) {
            seqs[s] = seq_with(s, item_cases[i].left[s]);
        }
        fg_sched_input in = { .limits = &limits, .seqs = seqs, .seq_count = item_cases[i].count };
        same_items(plan_of(&r, &in, item_cases[i].name), item_cases[i].want,
                   item_cases[i].want_count, item_cases[i].name);
    }
}

Test(sched, idle_when_no_work)
{
    room r;
    fg_sched_input in = { .limits = &fine, .available = 8, .may_preempt = true };
    const fg_sched_plan *plan = plan_of(&r, &in, "idle");
    cr_assert(plan->item_count == 0 && plan->victim_count == 0 && plan->admit_count == 0 &&
              plan->at_capacity == UINT32_MAX && !plan->short_of_blocks);
}

Test(sched, who_cannot_run_is_left_out)
{
    room r;
    fg_sched_seq seqs[4] = { seq_with(0, 0), seq_with(1, 4), seq_with(2, 0), seq_with(3, 4) };
    seqs[0].stopped = true;
    seqs[1].stopped = true;
    seqs[2].tokens_left = 0; /* its token is still being chosen by the step under way */
    fg_sched_input in = { .limits = &fine, .seqs = seqs, .seq_count = 4 };
    same_items(plan_of(&r, &in, "stopped"), &(fg_plan_item){ 3, 4, true, 0 }, 1, "stopped");
}

Test(sched, a_chunk_never_goes_beyond_the_blocks_of_its_sequence)
{
    room r;
    fg_sched_seq seqs[2] = { seq_with(0, 30), seq_with(1, 30) };
    seqs[0].promised = 0;
    seqs[0].slots_used = 13; /* of 16 */
    seqs[1].promised = 0;
    seqs[1].slots_used = 16;
    fg_sched_input in = { .limits = &fine, .seqs = seqs, .seq_count = 2, .available = 4 };
    const fg_sched_plan *plan = plan_of(&r, &in, "capped");
    same_items(plan, &(fg_plan_item){ 0, 3, false, 0 }, 1, "capped");
    cr_assert(plan->short_of_blocks, "the second cannot get on");
}

/* --- admission --- */

#define PROMPT(need_)                                                                              \
    {                                                                                              \
        .tokens_left = 4, .need = (need_), .need_all = (need_) + 2                                 \
    }
#define RESUMED(need_)                                                                             \
    {                                                                                              \
        .tokens_left = 1, .need = (need_), .need_all = (need_), .decoding = true                   \
    }
#define RESTORE(need_)                                                                             \
    {                                                                                              \
        .tokens_left = 1, .need = (need_), .need_all = (need_), .restores = true                   \
    }
#define DEFERRED                                                                                   \
    {                                                                                              \
        .tokens_left = 4, .need = 1, .need_all = 1, .deferred = true                               \
    }

static const struct {
    const char *name;
    fg_sched_limits
        limits; /* beside those of `fine`: admission, watermark, skip_max, step tokens */
    uint32_t running, reserved, available, elsewhere;
    bool slack_gone; /* the running ones fill the last slot of their blocks now */
    fg_sched_wait waits[MANY];
    uint32_t wait_count;
    uint32_t want[MANY], want_count;
} admit_cases[] = {
    { "all fit", { 0 }, 0, 0, 9, 0, false, { PROMPT(2), PROMPT(3), PROMPT(4) }, 3, { 0, 1, 2 }, 3 },
    { "the first that does not fit stops the line",
      { 0 },
      0,
      0,
      6,
      0,
      false,
      { PROMPT(2), PROMPT(5), PROMPT(1) },
      3,
      { 0 },
      1 },
    { "none", { 0 }, 0, 0, 1, 0, false, { PROMPT(2), PROMPT(1) }, 2, { 0 }, 0 },
    { "one may pass",
      { .skip_max = 1 },
      0,
      0,
      6,
      0,
      false,
      { PROMPT(2), PROMPT(5), PROMPT(1), PROMPT(1) },
      4,
      { 0, 2 },
      2 },
    { "two may pass, over two that do not fit",
      { .skip_max = 2 },
      0,
      0,
      6,
      0,
      false,
      { PROMPT(7), PROMPT(1), PROMPT(9), PROMPT(1), PROMPT(1) },
      5,
      { 1, 3 },
      2 },
    { "places are full", { 0 }, 8, 0, 9, 0, false, { PROMPT(1) }, 1, { 0 }, 0 },
    { "one place left", { 0 }, 7, 0, 9, 0, false, { PROMPT(1), PROMPT(1) }, 2, { 0 }, 1 },
    { "hand-overs hold places", { 0 }, 4, 4, 9, 0, false, { PROMPT(1) }, 1, { 0 }, 0 },
    { "more places held than there are", { 0 }, 4, 9, 9, 0, false, { PROMPT(1) }, 1, { 0 }, 0 },
    { "watermark beside others",
      { .watermark_blocks = 2 },
      1,
      0,
      5,
      0,
      false,
      { PROMPT(2), PROMPT(2) },
      2,
      { 0 },
      1 },
    { "no watermark for one alone",
      { .watermark_blocks = 2 },
      0,
      0,
      5,
      0,
      false,
      { PROMPT(5) },
      1,
      { 0 },
      1 },
    { "watermark for the second of two",
      { .watermark_blocks = 2 },
      0,
      0,
      5,
      0,
      false,
      { PROMPT(2), PROMPT(2) },
      2,
      { 0 },
      1 },
    { "watermark while blocks are elsewhere",
      { .watermark_blocks = 2 },
      0,
      0,
      5,
      1,
      false,
      { PROMPT(5) },
      1,
      { 0 },
      0 },
    { "a slot for each running one is kept",
      { 0 },
      2,
      0,
      4,
      0,
      true,
      { PROMPT(2), PROMPT(1) },
      2,
      { 0 },
      1 },
    { "none is kept for one with slack",
      { 0 },
      2,
      0,
      3,
      0,
      false,
      { PROMPT(2), PROMPT(1) },
      2,
      { 0, 1 },
      2 },
    { "deferred ones are passed over and stop nobody",
      { 0 },
      0,
      0,
      9,
      0,
      false,
      { DEFERRED, PROMPT(2), DEFERRED, PROMPT(2) },
      4,
      { 1, 3 },
      2 },
    { "a deferred one does not use up what may pass",
      { .skip_max = 1 },
      0,
      0,
      4,
      0,
      false,
      { PROMPT(5), DEFERRED, PROMPT(1), PROMPT(1) },
      4,
      { 2 },
      1 },
    { "no-evict counts all that may come",
      { .admission = FG_ADMIT_NO_EVICT },
      0,
      0,
      8,
      0,
      false,
      { PROMPT(2), PROMPT(2), PROMPT(1) },
      3,
      { 0, 1 },
      2 },
    { "no-evict keeps no watermark",
      { .admission = FG_ADMIT_NO_EVICT, .watermark_blocks = 50 },
      2,
      0,
      4,
      0,
      true,
      { PROMPT(2) },
      1,
      { 0 },
      1 },
    { "who would get no token stays outside",
      { .step_tokens_max = 8 },
      0,
      0,
      9,
      0,
      false,
      { PROMPT(1), PROMPT(1), PROMPT(1) },
      3,
      { 0, 1 },
      2 },
    { "resumed ones need a token too",
      { .step_tokens_max = 8 },
      0,
      0,
      9,
      0,
      false,
      { PROMPT(1), PROMPT(1), RESUMED(1), RESTORE(1) },
      4,
      { 0, 1 },
      2 },
    { "restored ones need none",
      { .step_tokens_max = 8 },
      0,
      0,
      9,
      0,
      false,
      { PROMPT(1), PROMPT(1), RESTORE(1), PROMPT(1) },
      4,
      { 0, 1, 2 },
      3 },
};

Test(sched, admission_takes_the_line_in_order)
{
    for (size_t i = 0; i < sizeof admit_cases / sizeof *admit_cases; i++) {
        room r;
        fg_sched_seq seqs[MANY];
        fg_sched_limits limits = admit_cases[i].limits;
        limits.step_tokens_max += limits.step_tokens_max == 0 ? 64 : 0;
        limits.chunk_tokens_max = 8;
        limits.seqs_max = 8;
        limits.block_size = 16;
        for (uint32_t s = 0; s < admit_cases[i].running; s++) {
            seqs[s] = seq_with(s, 0);
            seqs[s].promised = 0;
            seqs[s].slots_used = admit_cases[i].slack_gone ? 15 : 5;
        }
        fg_sched_input in = { .limits = &limits,
                              .seqs = seqs,
                              .seq_count = admit_cases[i].running,
                              .waits = admit_cases[i].waits,
                              .wait_count = admit_cases[i].wait_count,
                              .slots_reserved = admit_cases[i].reserved,
                              .available = admit_cases[i].available,
                              .elsewhere = admit_cases[i].elsewhere,
                              .may_preempt = true };
        const char *name = admit_cases[i].name;
        const fg_sched_plan *plan = plan_of(&r, &in, name);
        cr_assert_eq(plan->admit_count, admit_cases[i].want_count, "%s: %u admitted", name,
                     plan->admit_count);
        for (uint32_t k = 0; k < plan->admit_count; k++) {
            cr_assert_eq(plan->admits[k], admit_cases[i].want[k], "%s: the %uth is %u", name, k,
                         plan->admits[k]);
        }
    }
}

Test(sched, admitted_ones_run_at_once_behind_half_prefilled_ones)
{
    room r;
    fg_sched_seq seqs[2] = { seq_with(0, 0), seq_with(1, 6) };
    fg_sched_wait waits[4] = { RESTORE(1), RESUMED(1), PROMPT(1), PROMPT(1) };
    fg_sched_input in = { .limits = &fine,
                          .seqs = seqs,
                          .seq_count = 2,
                          .waits = waits,
                          .wait_count = 4,
                          .available = 9 };
    static const fg_plan_item decode_first[] = { { 0, 1, true, 0 },
                                                 { 3, 1, true, 0 },
                                                 { 1, 6, true, 0 },
                                                 { 4, 4, true, 0 },
                                                 { 5, 4, true, 0 } };
    same_items(plan_of(&r, &in, "decode first"), decode_first, 5, "decode first");
    fg_sched_limits limits = fine;
    limits.order = FG_PREFILL_FIRST;
    in.limits = &limits;
    static const fg_plan_item prefill_first[] = { { 1, 6, true, 0 },
                                                  { 3, 1, true, 0 },
                                                  { 4, 4, true, 0 },
                                                  { 5, 4, true, 0 },
                                                  { 0, 1, true, 0 } };
    same_items(plan_of(&r, &in, "prefill first"), prefill_first, 5, "prefill first");
}

/* --- the step target --- */

/* 1 ms, 100 us a prompt token, 200 us a row, 10 ns a slot. */
static fg_cost known_cost(void)
{
    fg_cost cost;
    fg_cost_init(&cost, 1 << 20);
    cost.weights[0] = 1e6;
    cost.weights[1] = 1e5;
    cost.weights[2] = 2e5;
    cost.weights[3] = 10;
    return cost;
}

static const struct {
    const char *name;
    uint64_t target_ns;
    fg_sched_order order;
    uint32_t slots_used; /* of the two that prefill */
    uint32_t left[4], count;
    uint32_t want[4]; /* tokens of each */
} target_cases[] = {
    /* 1 ms + 200 us, so 18 tokens in 3 ms, the slots making it 17. */
    { "cut to the target", 3000000, FG_DECODE_FIRST, 0, { 0, 400 }, 2, { 1, 17 } },
    { "what the first leaves goes to the second",
      3000000,
      FG_DECODE_FIRST,
      0,
      { 0, 10, 400 },
      3,
      { 1, 10, 7 } },
    { "nothing for the second", 3000000, FG_DECODE_FIRST, 0, { 0, 400, 400 }, 3, { 1, 17, 0 } },
    { "deep in a prompt a chunk is shorter",
      3000000,
      FG_DECODE_FIRST,
      10000,
      { 0, 400 },
      2,
      { 1, 8 } },
    { "one token at least", 1000, FG_DECODE_FIRST, 0, { 0, 400, 400 }, 3, { 1, 1, 0 } },
    { "a quarter, where answers alone take longer",
      1000000,
      FG_DECODE_FIRST,
      0,
      { 0, 400 },
      2,
      { 1, 2 } },
    { "no target", 0, FG_DECODE_FIRST, 0, { 0, 400 }, 2, { 1, 64 } },
    { "nobody decodes", 3000000, FG_DECODE_FIRST, 0, { 400, 400 }, 2, { 64, 64 } },
    { "prefill first knows no target", 3000000, FG_PREFILL_FIRST, 0, { 0, 400 }, 2, { 1, 64 } },
};

Test(sched, chunks_beside_decoding_ones_are_cut_to_the_step_target)
{
    fg_cost cost = known_cost();
    for (size_t i = 0; i < sizeof target_cases / sizeof *target_cases; i++) {
        room r;
        fg_sched_seq seqs[4];
        fg_sched_limits limits = fine;
        uint32_t got[4] = { 0 };
        limits.step_tokens_max = 512;
        limits.chunk_tokens_max = 64;
        limits.order = target_cases[i].order;
        limits.step_target_ns = target_cases[i].target_ns;
        for (uint32_t s = 0; s < target_cases[i].count; s++) {
            seqs[s] = seq_with(s, target_cases[i].left[s]);
            seqs[s].slots_used = target_cases[i].left[s] > 0 ? target_cases[i].slots_used : 5;
            seqs[s].promised = 1000;
        }
        fg_sched_input in = {
            .limits = &limits, .cost = &cost, .seqs = seqs, .seq_count = target_cases[i].count
        };
        const fg_sched_plan *plan = plan_of(&r, &in, target_cases[i].name);
        for (uint32_t k = 0; k < plan->item_count; k++) {
            got[plan->items[k].seq] = plan->items[k].token_count;
        }
        for (uint32_t s = 0; s < target_cases[i].count; s++) {
            cr_assert_eq(got[s], target_cases[i].want[s], "%s: %u gets %u", target_cases[i].name, s,
                         got[s]);
        }
        in.cost = NULL;
        plan = plan_of(&r, &in, "no cost model");
        cr_assert_eq(plan->items[plan->item_count - 1].token_count,
                     target_cases[i].order == FG_PREFILL_FIRST ? 1u : 64u, "no cost model");
    }
}

/* --- aging (R68) --- */

Test(sched, a_class_is_worth_a_bounded_wait)
{
    enum { HIGH = -1, NORMAL, LOW };
    uint64_t second = 1000000000;
    cr_assert(fg_sched_rank(5, HIGH) < fg_sched_rank(0, NORMAL), "better classes go first");
    cr_assert(fg_sched_rank(5, NORMAL) < fg_sched_rank(0, LOW));
    cr_assert(fg_sched_rank(0, NORMAL) < fg_sched_rank(1, NORMAL), "in a class, who came first");
    cr_assert(fg_sched_rank(0, LOW) < fg_sched_rank(21 * second, HIGH), "but not for ever");
    cr_assert(fg_sched_rank(19 * second, HIGH) < fg_sched_rank(0, LOW));
}

/* Blocks of 16 tokens. */
static const struct {
    const char *name;
    bool leaves;
    fg_sched_last_chunk way;
    double base_ns, block_ns;    /* of a step, and of a block handed over; 0: no cost model */
    uint32_t used, left, budget; /* tokens */
    uint32_t want;               /* tokens of the chunk */
} last_cases[] = {
    { "stays: whole", false, FG_LAST_CHUNK_SHORT, 0, 0, 0, 200, 999, 200 },
    { "whole when told so", true, FG_LAST_CHUNK_WHOLE, 1, 9e9, 0, 200, 999, 200 },
    { "all but two blocks, the last one in part", true, FG_LAST_CHUNK_SHORT, 0, 0, 0, 200, 999,
      176 },
    { "all but two full blocks", true, FG_LAST_CHUNK_SHORT, 0, 0, 0, 192, 999, 160 },
    { "one token in the last block", true, FG_LAST_CHUNK_SHORT, 0, 0, 0, 193, 999, 176 },
    { "behind a cached prefix", true, FG_LAST_CHUNK_SHORT, 0, 0, 64, 136, 999, 112 },
    { "from the middle of a block", true, FG_LAST_CHUNK_SHORT, 0, 0, 70, 130, 999, 106 },
    { "short already", true, FG_LAST_CHUNK_SHORT, 0, 0, 0, 32, 999, 32 },
    { "three blocks", true, FG_LAST_CHUNK_SHORT, 0, 0, 0, 33, 999, 16 },
    { "short in the middle of its blocks", true, FG_LAST_CHUNK_SHORT, 0, 0, 170, 30, 999, 6 },
    { "does not end yet", true, FG_LAST_CHUNK_SHORT, 0, 0, 0, 200, 100, 100 },
    { "nothing known: whole", true, FG_LAST_CHUNK_AUTO, 0, 0, 0, 200, 999, 200 },
    { "11 blocks travel longer than a step", true, FG_LAST_CHUNK_AUTO, 10e6, 1e6, 0, 200, 999,
      176 },
    { "11 blocks travel faster than a step", true, FG_LAST_CHUNK_AUTO, 12e6, 1e6, 0, 200, 999,
      200 },
};

static fg_cost cost_with(double base_ns, double block_ns)
{
    fg_cost cost;
    fg_cost_init(&cost, (uint64_t)(2 * block_ns)); /* guessed: 2 bytes a nanosecond */
    cost.weights[0] = base_ns;
    return cost;
}

Test(sched, a_prompt_that_leaves_ends_with_a_short_chunk_where_that_pays)
{
    for (size_t i = 0; i < sizeof last_cases / sizeof *last_cases; i++) {
        room r;
        fg_sched_limits limits = { SIZES(last_cases[i].budget, 999, 8, 16),
                                   .last_chunk = last_cases[i].way };
        fg_cost cost = cost_with(last_cases[i].base_ns, last_cases[i].block_ns);
        fg_sched_seq seq = { .tokens_left = last_cases[i].left,
                             .slots_used = last_cases[i].used,
                             .promised = 20,
                             .leaves = last_cases[i].leaves };
        fg_sched_input in = { .limits = &limits,
                              .cost = last_cases[i].block_ns > 0 ? &cost : NULL,
                              .seqs = &seq,
                              .seq_count = 1 };
        const fg_sched_plan *plan = plan_of(&r, &in, last_cases[i].name);
        fg_plan_item want = { 0, last_cases[i].want, last_cases[i].want == last_cases[i].left, 0 };
        same_items(plan, &want, 1, last_cases[i].name);
        if (last_cases[i].used % 16 != 0) {
            continue; /* whoever waits has whole blocks from the cache */
        }
        fg_sched_wait wait = { .tokens_left = last_cases[i].left,
                               .need = 1,
                               .need_all = 1,
                               .leaves = last_cases[i].leaves };
        in = (fg_sched_input){
            .limits = &limits, .cost = in.cost, .waits = &wait, .wait_count = 1, .available = 20
        };
        same_items(plan_of(&r, &in, last_cases[i].name), &want, 1, last_cases[i].name);
    }
}

/* However long, it comes to its end, and the end is short. */
Test(sched, a_prompt_cut_at_its_end_is_computed_all_the_same)
{
    for (uint32_t prompt = 1; prompt < 400; prompt++) {
        fg_sched_limits limits = { SIZES(100, 64, 8, 16), .last_chunk = FG_LAST_CHUNK_SHORT };
        uint32_t done = 0, steps = 0, last = 0;
        while (done < prompt) {
            room r;
            fg_sched_seq seq = {
                .tokens_left = prompt - done, .slots_used = done, .promised = 30, .leaves = true
            };
            fg_sched_input in = { .limits = &limits, .seqs = &seq, .seq_count = 1 };
            last = plan_of(&r, &in, "to its end")->items[0].token_count;
            done += last;
            steps++;
        }
        cr_assert_eq(done, prompt);
        cr_assert_leq(last, 32, "%u tokens end with %u", prompt, last);
        cr_assert_leq(steps, (prompt + 63) / 64 + 1, "%u tokens in %u steps", prompt, steps);
    }
}

/* Steps take 20 ms and 5 more for each row; who decodes has as many guesses, with these odds. */
static const struct {
    const char *name;
    fg_sched_draft draft;
    uint32_t rows, drafts, unsaid; /* the first `unsaid` of the rows */
    uint16_t odds[FG_LOOKAHEAD_MAX];
    uint32_t want[MANY]; /* guesses of each */
    bool waits;
} draft_cases[] = {
    { "alone, sure",
      FG_DRAFT_PAYS,
      1,
      8,
      0,
      { 1000, 990, 980, 970, 960, 950, 940, 930 },
      { 7 },
      false }, /* the chunk holds eight */
    /* A token costs 25 ms, with one guess 15.8, with two 13, with three 12.4, with four 12.8. */
    { "alone, less and less sure",
      FG_DRAFT_PAYS,
      1,
      5,
      0,
      { 921, 819, 512, 307, 150 },
      { 3 },
      false },
    { "alone, all of them", FG_DRAFT_FIXED, 1, 5, 0, { 921, 819, 512, 307, 150 }, { 5 }, false },
    { "alone, unlikely", FG_DRAFT_PAYS, 1, 3, 0, { 200, 100, 50 }, { 0 }, false },
    /* A token costs 7.5 ms among eight. */
    { "among others, sure",
      FG_DRAFT_PAYS,
      8,
      2,
      0,
      { 1000, 990 },
      { 2, 2, 2, 2, 2, 2, 2, 2 },
      false },
    { "among others, not sure", FG_DRAFT_PAYS, 8, 2, 0, { 600, 400 }, { 0 }, false },
    { "not said yet", FG_DRAFT_PAYS, 1, 3, 1, { 1000, 990, 980 }, { 0 }, true },
    { "not said yet, unlikely", FG_DRAFT_PAYS, 1, 3, 1, { 100, 50, 20 }, { 0 }, false },
    { "one said, one not", FG_DRAFT_FIXED, 2, 3, 1, { 1000, 990, 980 }, { 0, 3 }, true },
    { "no guesses", FG_DRAFT_FIXED, 2, 0, 0, { 0 }, { 0 }, false },
};

Test(sched, as_many_guesses_as_make_a_token_cheaper)
{
    fg_cost cost;
    fg_cost_init(&cost, 1 << 16);
    memset(cost.covariance, 0, sizeof cost.covariance); /* it is sure */
    memcpy(cost.weights, (double[FG_COST_TERMS]){ 20e6, 5e6, 5e6, 0 }, sizeof cost.weights);
    for (size_t i = 0; i < sizeof draft_cases / sizeof *draft_cases; i++) {
        static room r;
        fg_sched_seq seqs[MANY];
        fg_sched_limits limits = fine;
        limits.step_tokens_max = 64;
        limits.draft = draft_cases[i].draft;
        limits.draft_max = 8;
        for (uint32_t k = 0; k < draft_cases[i].rows; k++) {
            seqs[k] = (fg_sched_seq){ .arrival = k,
                                      .tokens_left = 1,
                                      .decoding = true,
                                      .unsaid = k < draft_cases[i].unsaid,
                                      .drafts = draft_cases[i].drafts,
                                      .slots_used = 30,
                                      .blocks = 2 };
            memcpy(seqs[k].odds, draft_cases[i].odds, sizeof seqs[k].odds);
        }
        fg_sched_input in = { .limits = &limits,
                              .cost = &cost,
                              .seqs = seqs,
                              .seq_count = draft_cases[i].rows,
                              .available = 20 };
        const fg_sched_plan *plan = plan_of(&r, &in, draft_cases[i].name);
        cr_assert_eq(plan->drafts_wait, draft_cases[i].waits, "%s", draft_cases[i].name);
        cr_assert_eq(plan->item_count, draft_cases[i].rows, "%s", draft_cases[i].name);
        for (uint32_t k = 0; k < plan->item_count; k++) {
            cr_assert(plan->items[k].draft_count == draft_cases[i].want[k] &&
                          plan->items[k].token_count == 1 + draft_cases[i].want[k],
                      "%s: %u guesses", draft_cases[i].name, plan->items[k].draft_count);
        }
        in.available = 0; /* the block they have holds two more */
        plan = plan_of(&r, &in, draft_cases[i].name);
        for (uint32_t k = 0; k < plan->item_count; k++) {
            uint32_t want = draft_cases[i].want[k] < 1 ? 0 : 1;
            cr_assert_eq(plan->items[k].draft_count, want, "%s: %u guesses without blocks",
                         draft_cases[i].name, plan->items[k].draft_count);
        }
    }
}
