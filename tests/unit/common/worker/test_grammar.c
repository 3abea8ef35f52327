/* Answers that are held to grammars: the rig walks a grammar of its own from the first token for every token that comes,
 * so guesses, preemption and steps ahead cannot show. */
#include <stdio.h>
#include <string.h>

#include "common/grammar/grammar.h"
#include "tests/support/test.h"
#include "tests/unit/common/worker/rig.h"

#define EXPRESSION "(ab?|c{2,4})+d"

static fg_wire_params held_to(fg_grammar_kind kind, const char *text, uint32_t max_tokens)
{
    fg_wire_params params = rig_greedy(max_tokens);
    params.grammar_kind = (uint32_t)kind;
    params.grammar = text;
    params.grammar_bytes = strlen(text);
    return params;
}

static const struct {
    const char *name;
    rig_options options;
} ways[] = {
    { "alone in a step", { .blocks = 200, .block_size = 4, .seqs = 1 } },
    { "together, steps ahead", { .blocks = 200, .block_size = 4, .overlap = true } },
    { "guesses",
      { .blocks = 200,
        .block_size = 4,
        .overlap = true,
        .policies = { .draft = FG_DRAFT_FIXED, .draft_max = 8 } } },
    { "a pool that is too small",
      { .blocks = 14,
        .block_size = 4,
        .overlap = true,
        .policies = { .draft = FG_DRAFT_FIXED, .draft_max = 3 } } },
    { "too small, swapping",
      { .blocks = 14,
        .block_size = 4,
        .slots = 40,
        .policies = { .draft = FG_DRAFT_FIXED, .draft_max = 8, .preemption = FG_PREEMPT_SWAP } } },
};

Test(worker_grammar, answers_are_of_their_grammars_however_they_are_scheduled)
{
    static const char *const grammars[] = { EXPRESSION, "[a-d]*", "abcd(abcd)+", "a{30}" };
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        static rig r;
        rig_options options = ways[i].options;
        options.vocab = 5; /* a to e, the last one ends */
        options.eos = 4;
        rig_open(&r, &options);
        for (uint32_t id = 1; id <= 8; id++) {
            uint32_t prompt[9];
            for (uint32_t j = 0; j < 9; j++) {
                prompt[j] = (id + j * j) % 4;
            }
            fg_wire_params params = held_to(FG_GRAMMAR_REGEX, grammars[id % 4], 20 + id);
            params.temperature = id % 2 == 0 ? 0.7f : 0.0f;
            params.seed = id;
            params.presence_penalty = id % 3 == 0 ? 0.5f : 0;
            rig_send(&r, id, prompt, 2 + id % 7, &params);
        }
        rig_run(&r);
        uint32_t preempted = 0;
        for (uint32_t id = 1; id <= 8; id++) {
            const rig_request *q = &r.requests[id];
            cr_assert(q->done, "%s: request %u", ways[i].name, id);
            cr_assert(id % 4 != 3 || strspn(rig_text(q), "a") >= 20, "%s", rig_text(q));
            preempted += q->preemptions;
        }
        cr_assert_eq(preempted > 0, options.blocks == 14, "%s: %u", ways[i].name, preempted);
        rig_close(&r);
    }
}

Test(worker_grammar, an_answer_ends_where_its_grammar_does)
{
    static rig r;
    rig_open(&r, &(rig_options){ .blocks = 60, .block_size = 4, .vocab = 6, .eos = 5 });
    uint32_t prompt[] = { 0, 1 };
    fg_wire_params choice = held_to(FG_GRAMMAR_CHOICE, "[\"abba\"]", 50);
    const rig_request *q = rig_send(&r, 1, prompt, 2, &choice);
    rig_run(&r);
    cr_assert_str_eq(rig_text(q), "abbaf");
    cr_assert_eq(q->finish, FG_FINISH_STOP);
    rig_close(&r);
}

/* As many as there may be at a time, then one more; when one has ended, there is room again. */
Test(worker_grammar, one_too_many_is_refused_and_idle_ones_make_room)
{
    static rig r;
    static char texts[RIG_REQUESTS_MAX + 9][16];
    rig_open(&r, &(rig_options){ .blocks = 400, .block_size = 4, .vocab = 5, .eos = 4 });
    uint32_t prompt[] = { 0, 1 };
    uint32_t refused = 0;
    for (uint32_t round = 0; round < 3; round++) {
        for (uint32_t id = 1; id < RIG_REQUESTS_MAX; id++) {
            snprintf(texts[id], sizeof texts[id], "a{%u}", 2 + id + 70 * round);
            fg_wire_params params = held_to(FG_GRAMMAR_REGEX, texts[id], 6);
            rig_send(&r, id, prompt, 2, &params);
        }
        rig_run(&r);
        for (uint32_t id = 1; id < RIG_REQUESTS_MAX; id++) {
            cr_assert(r.requests[id].done);
            refused += r.requests[id].finish == FG_FINISH_ERROR;
        }
    }
    cr_assert_eq(refused, 0u, "63 at a time have room, and so have the next");
    rig_close(&r);
}

Test(worker_grammar, what_is_no_grammar_ends_its_request_alone)
{
    static rig r;
    rig_open(&r, &(rig_options){ .blocks = 60, .block_size = 4 });
    uint32_t prompt[] = { 0, 1 };
    fg_msg msg = { .kind = FG_MSG_PREFILL, .request = 1, .attempt = 1 };
    msg.prefill.tokens = prompt;
    msg.prefill.token_count = 2;
    msg.prefill.sampling = held_to(FG_GRAMMAR_REGEX, "(", 5);
    r.requests[1] = (rig_request){ .sent = true };
    rig_give(&r, &msg);
    cr_assert(r.requests[1].done && r.requests[1].finish == FG_FINISH_ERROR);
    rig_ask(&r, 2, 0, 3, 5);
    rig_run(&r);
    cr_assert(r.requests[2].done && r.requests[2].finish == FG_FINISH_LENGTH);
    rig_close(&r);
}
