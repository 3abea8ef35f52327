#include "common/sched/sched.h"

#include <string.h>

#include "common/base/rng.h"
#include "tests/support/test.h"

enum { SEQS = 6 };

static const struct {
    const char *name;
    fg_sched_limits limits; /* step tokens, chunk, seqs */
    uint32_t prompt_left[SEQS];
    uint32_t seq_count;
    fg_plan_item want[SEQS];
    uint32_t want_count;
} plan_cases[] = {
    { "nothing to do", { 16, 8, 4 }, { 0 }, 0, { { 0 } }, 0 },
    { "one decodes", { 16, 8, 4 }, { 0 }, 1, { { 0, 1, true } }, 1 },
    { "a short prompt in one chunk", { 16, 8, 4 }, { 5 }, 1, { { 0, 5, true } }, 1 },
    { "a prompt of exactly one chunk", { 16, 8, 4 }, { 8 }, 1, { { 0, 8, true } }, 1 },
    { "a long prompt gets one chunk, no token", { 16, 8, 4 }, { 9 }, 1, { { 0, 8, false } }, 1 },
    { "decodes come first, chunks share the rest",
      { 10, 8, 4 },
      { 20, 0, 20, 0 },
      4,
      { { 1, 1, true }, { 3, 1, true }, { 0, 8, false } },
      3 },
    { "the last chunk is cut to the budget",
      { 10, 8, 4 },
      { 20, 20 },
      2,
      { { 0, 8, false }, { 1, 2, false } },
      2 },
    { "a cut chunk that ends its prompt samples",
      { 10, 8, 4 },
      { 20, 2 },
      2,
      { { 0, 8, false }, { 1, 2, true } },
      2 },
    { "budget of one", { 1, 8, 1 }, { 3 }, 1, { { 0, 1, false } }, 1 },
};

Test(sched, plans_decodes_first_then_chunks)
{
    for (size_t i = 0; i < sizeof plan_cases / sizeof *plan_cases; i++) {
        fg_sched_seq seqs[SEQS];
        fg_plan_item items[SEQS];
        for (uint32_t s = 0; s < plan_cases[i].seq_count; s++) {
            seqs[s].prompt_left = plan_cases[i].prompt_left[s];
        }
        uint32_t count = fg_sched_plan(&plan_cases[i].limits, seqs, plan_cases[i].seq_count, items);
        cr_assert_eq(count, plan_cases[i].want_count, "%s: %u items", plan_cases[i].name, count);
        for (uint32_t k = 0; k < count; k++) {
            cr_assert(items[k].seq == plan_cases[i].want[k].seq &&
                          items[k].token_count == plan_cases[i].want[k].token_count &&
                          items[k].sample == plan_cases[i].want[k].sample,
                      "%s: item %u", plan_cases[i].name, k);
        }
    }
}

static const struct {
    const char *name;
    uint32_t running, free_blocks, needs[4], waiting, want;
} admit_cases[] = {
    { "all fit", 0, 10, { 2, 3, 4 }, 3, 3 },
    { "exactly", 0, 9, { 2, 3, 4 }, 3, 3 },
    { "the first that does not fit stops the line", 0, 6, { 2, 5, 1 }, 3, 1 },
    { "none", 0, 1, { 2, 1 }, 2, 0 },
    { "slots are full", 4, 10, { 1 }, 1, 0 },
    { "one slot left", 3, 10, { 1, 1 }, 2, 1 },
    { "nobody waits", 0, 10, { 0 }, 0, 0 },
};

Test(sched, admission_blocks_when_prompt_does_not_fit)
{
    fg_sched_limits limits = { .step_tokens_max = 16, .chunk_tokens_max = 8, .seqs_max = 4 };
    for (size_t i = 0; i < sizeof admit_cases / sizeof *admit_cases; i++) {
        uint32_t got = fg_sched_admit(&limits, admit_cases[i].running, admit_cases[i].free_blocks,
                                      admit_cases[i].needs, admit_cases[i].waiting);
        cr_assert_eq(got, admit_cases[i].want, "%s: %u", admit_cases[i].name, got);
    }
}

/* Whatever the mix: within budget, no sequence twice, decodes never wait for prompts, and a long prompt
 * ends after the number of steps that its length and the budget say. */
Test(sched, every_prompt_ends_and_no_budget_is_broken)
{
    fg_rng rng = { .state = 7 };
    for (int round = 0; round < 200; round++) {
        fg_sched_limits limits = { .step_tokens_max = 4 + (uint32_t)fg_rng_below(&rng, 60),
                                   .chunk_tokens_max = 1 + (uint32_t)fg_rng_below(&rng, 32),
                                   .seqs_max = 4 };
        fg_sched_seq seqs[4];
        for (int s = 0; s < 4; s++) {
            seqs[s].prompt_left = (uint32_t)fg_rng_below(&rng, 100);
        }
        for (int step = 0; step < 500; step++) {
            fg_plan_item items[4];
            bool seen[4] = { false };
            uint32_t total = 0;
            uint32_t count = fg_sched_plan(&limits, seqs, 4, items);
            for (uint32_t k = 0; k < count; k++) {
                cr_assert(!seen[items[k].seq]);
                seen[items[k].seq] = true;
                total += items[k].token_count;
                uint32_t *left = &seqs[items[k].seq].prompt_left;
                cr_assert(items[k].token_count >= 1 &&
                          (*left == 0 || items[k].token_count <= *left));
                cr_assert_eq(items[k].sample, *left == 0 || items[k].token_count == *left);
                *left -= *left == 0 ? 0 : items[k].token_count;
            }
            cr_assert(total <= limits.step_tokens_max);
        }
        for (int s = 0; s < 4; s++) {
            cr_assert_eq(seqs[s].prompt_left, 0u);
        }
    }
}
