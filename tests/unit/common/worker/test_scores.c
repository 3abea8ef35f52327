/* What the model says of prompts: the rig compares it with that of each prompt alone, and wants all of it once, in order and
 * before the first token. So a test says what was in the way. */
#include <string.h>

#include "tests/support/test.h"
#include "tests/unit/common/worker/rig.h"

enum { BS = 4, LIKELY = 3 };

static rig_request *send(rig *r, uint64_t id, uint32_t first, uint32_t count, uint32_t max_tokens,
                         uint32_t want_scores)
{
    uint32_t prompt[RIG_TOKENS_MAX];
    for (uint32_t i = 0; i < count; i++) {
        prompt[i] = (first + i) % RIG_VOCAB;
    }
    fg_wire_params params = rig_greedy(max_tokens);
    params.want_scores = want_scores;
    return rig_send(r, id, prompt, count, &params);
}

static const struct {
    const char *name;
    rig_options options;
    uint32_t preempted; /* at least */
} ways[] = {
    { "a step each", { .blocks = 200, .block_size = BS }, 0 },
    { "small chunks", { .blocks = 200, .block_size = BS, .chunk = 3 }, 0 },
    { "chunks of one", { .blocks = 200, .block_size = BS, .chunk = 1 }, 0 },
    { "steps ahead", { .blocks = 200, .block_size = BS, .chunk = 5, .overlap = true }, 0 },
    { "small steps, ahead",
      { .blocks = 200, .block_size = BS, .step_tokens = 7, .chunk = 5, .overlap = true },
      0 },
    { "no cache", { .blocks = 200, .block_size = BS, .chunk = 9, .no_cache = true }, 0 },
    { "a pool that is too small", { .blocks = 20, .block_size = BS, .chunk = 3 }, 1 },
    { "too small, ahead", { .blocks = 20, .block_size = BS, .chunk = 3, .overlap = true }, 1 },
    { "too small, without a cache",
      { .blocks = 20, .block_size = BS, .chunk = 3, .no_cache = true },
      1 },
    { "too small, swapping",
      { .blocks = 20,
        .block_size = BS,
        .chunk = 3,
        .slots = 60,
        .policies = { .preemption = FG_PREEMPT_SWAP } },
      1 },
    { "guesses",
      { .blocks = 200,
        .block_size = BS,
        .overlap = true,
        .policies = { .draft = FG_DRAFT_FIXED, .draft_max = 4 } },
      0 },
};

Test(worker_scores, are_the_same_however_prompts_are_scheduled)
{
    for (size_t way = 0; way < sizeof ways / sizeof ways[0]; way++) {
        static rig r;
        uint32_t preempted = 0;
        rig_open(&r, &ways[way].options);
        for (uint32_t id = 1; id <= 8; id++) {
            send(&r, id, id * 3, 5 + 4 * id % 30, 3 + 3 * id, id % 4 == 3 ? 0 : id % 4 + 1);
        }
        rig_run(&r);
        for (uint32_t id = 1; id <= 8; id++) {
            cr_assert(r.requests[id].finish == FG_FINISH_LENGTH, "%s: %u", ways[way].name, id);
            preempted += r.requests[id].preemptions;
        }
        cr_assert(preempted >= ways[way].preempted, "%s: %u", ways[way].name, preempted);
        rig_close(&r);
    }
}

Test(worker_scores, rows_that_speak_are_computed_and_leave_their_blocks_to_others)
{
    static rig r;
    rig_open(&r, &(rig_options){ .blocks = 40, .block_size = BS });
    const rig_request *one = send(&r, 1, 0, 22, 2, 0);
    rig_run(&r);
    const rig_request *two = send(&r, 2, 0, 22, 2, LIKELY + 1);
    rig_run(&r);
    cr_assert(one->cached_tokens == 0 && two->cached_tokens == 0 && two->scored == 21);
    const rig_request *three = send(&r, 3, 0, 22, 2, 0);
    rig_run(&r);
    cr_assert_eq(three->cached_tokens, 20u);
    rig_clear(&r);
    send(&r, 4, 9, 22, 2, 1);
    rig_run(&r);
    const rig_request *five = send(&r, 5, 9, 22, 2, 0);
    rig_run(&r);
    cr_assert_eq(five->cached_tokens, 20u, "what a speaking one has computed is there for others");
    rig_close(&r);
}

/* Choices of one request: the one that asks does not wait for its siblings, who find its prompt. */
Test(worker_scores, siblings_share_what_one_of_them_says)
{
    static rig r;
    uint32_t prompt[22];
    rig_open(&r, &(rig_options){ .blocks = 60, .block_size = BS, .chunk = 6 });
    fg_wire_params params = rig_greedy(5);
    params.family = 9;
    for (uint32_t i = 0; i < 22; i++) {
        prompt[i] = i;
    }
    for (uint32_t id = 1; id <= 3; id++) {
        params.seed = id;
        params.want_scores = id == 2 ? 2 : 0;
        rig_send(&r, id, prompt, 22, &params);
    }
    rig_run(&r);
    cr_assert(r.requests[2].cached_tokens == 0 && r.requests[3].cached_tokens > 0);
    rig_close(&r);
}

Test(worker_scores, a_prompt_of_one_token_says_nothing)
{
    static rig r;
    rig_open(&r, &(rig_options){ .blocks = 20, .block_size = BS });
    const rig_request *one = send(&r, 1, 3, 1, 2, 5);
    const rig_request *two = send(&r, 2, 3, 2, 1, 5);
    rig_run(&r);
    cr_assert(one->done && one->scored == 0 && two->done && two->scored == 1);
    rig_close(&r);
}

Test(worker_scores, who_is_cancelled_says_no_more)
{
    static rig r;
    rig_open(&r, &(rig_options){ .blocks = 60, .block_size = BS, .chunk = 4, .overlap = true });
    send(&r, 1, 0, 40, 2, 3);
    send(&r, 2, 5, 40, 2, 3);
    for (int i = 0; i < 3; i++) {
        rig_step(&r);
    }
    cr_assert(r.requests[1].scored > 0 && r.requests[1].scored < 39);
    rig_cancel(&r, 1);
    rig_run(&r);
    cr_assert(r.requests[2].done);
    rig_close(&r);
}
