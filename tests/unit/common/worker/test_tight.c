/* Plans that hoped for more than an admission found: nobody who runs may lose his block for it. Each case
 * sweeps the pool's size, because the fault needs the last block. */
#include <string.h>

#include "tests/support/test.h"
#include "tests/unit/common/worker/rig.h"

static void finish(rig *r, uint64_t request)
{
    for (int steps = 0; !r->requests[request].done; steps++) {
        cr_assert(steps < 2000, "request %u does not end", (unsigned)request);
        rig_step(r);
    }
}

/* X holds a long prefix; W shares it and does not fit; X ends, and what was borrowed lies idle. */
static void prefix_goes_idle(uint32_t blocks, uint32_t decoders, uint32_t watermark,
                             uint32_t answer)
{
    rig r;
    uint32_t prompt[310];
    rig_options options = { .blocks = blocks,
                            .block_size = 2,
                            .seqs = 16,
                            .step_tokens = 512,
                            .chunk = 512,
                            .policies = { .watermark_blocks = watermark } };
    rig_open(&r, &options);
    for (uint32_t i = 0; i < 310; i++) {
        prompt[i] = (i * i * 7 + i / 50 + 3) % RIG_VOCAB;
    }
    fg_wire_params few = rig_greedy(answer), many = rig_greedy(60);
    rig_send(&r, 1, prompt, 300, &few);
    rig_run_until_started(&r, 1);
    for (uint32_t i = 0; i < decoders; i++) {
        rig_ask(&r, 10 + i, i * 5, 4, 60);
    }
    rig_step(&r);
    prompt[301] = (prompt[301] + 1) % RIG_VOCAB;
    rig_send(&r, 2, prompt, 310, &many);
    finish(&r, 2);
    rig_run(&r);
    rig_close(&r);
}

Test(worker_tight, a_prefix_that_goes_idle_costs_no_runner_his_block)
{
    for (uint32_t blocks = 160; blocks < 190; blocks++) {
        for (uint32_t decoders = 1; decoders < 9; decoders++) {
            for (uint32_t answer = 2; answer < 8; answer++) {
                prefix_goes_idle(blocks, decoders, answer % 3, answer);
            }
        }
    }
}

/* A chain whose first block is gone and comes anew under another owner: the admission before evicts what
 * the next one counted on. */
typedef struct chain_case {
    uint32_t blocks, long_prompt, newer, steps, wait;
} chain_case;

static void chain_breaks(const chain_case *it)
{
    rig r;
    uint32_t tokens[RIG_TOKENS_MAX], again[5];
    rig_options options = { .blocks = it->blocks,
                            .block_size = 4,
                            .slots = 64,
                            .seqs = 8,
                            .step_tokens = 256,
                            .chunk = 256,
                            .policies = { .watermark_blocks = 1 } };
    rig_open(&r, &options);
    fg_wire_params one = rig_greedy(1), off = rig_greedy(1);
    off.cache_mode = FG_CACHE_DISABLE;
    rig_request *x = rig_ask(&r, 1, 0, 5, 200);
    rig_run_until_started(&r, 1);
    rig_clear(&r);
    for (uint32_t i = 0; i < it->steps; i++) {
        rig_step(&r);
    }
    rig_ask(&r, 2, 20, 13, 1);
    finish(&r, 2);
    for (uint32_t i = 0; i < RIG_TOKENS_MAX; i++) {
        tokens[i] = (i * 7 + 3) % RIG_VOCAB;
    }
    rig_send(&r, 3, tokens, it->long_prompt, &off); /* evicts 2's blocks into the tier */
    finish(&r, 3);
    memcpy(again, x->tokens, 4 * sizeof *again);
    again[4] = (x->tokens[4] + 1) % RIG_VOCAB;
    rig_send(&r, 4, again, 5, &one); /* publishes the first block anew */
    finish(&r, 4);
    for (uint32_t i = 0; i < RIG_TOKENS_MAX; i++) {
        tokens[i] = (i * 11 + 5) % RIG_VOCAB;
    }
    rig_send(&r, 5, tokens, it->newer, &one);
    finish(&r, 5);
    for (uint32_t i = 0; i < it->wait; i++) {
        rig_step(&r);
    }
    rig_ask(&r, 6, 20, 13, 1); /* from the tier; and what 1 has said so far */
    rig_send(&r, 7, x->tokens, x->count - 1, &one);
    for (int i = 0; i < 10; i++) {
        rig_step(&r);
    }
    if (!x->done) {
        rig_cancel(&r, 1);
    }
    rig_run(&r);
    rig_close(&r);
}

Test(worker_tight, an_admission_that_finds_less_than_planned_is_put_off)
{
    chain_case it;
    for (it.blocks = 18; it.blocks < 30; it.blocks++) {
        for (uint32_t room = 7; room < 11; room++) {
            it.long_prompt = (it.blocks - room) * 4;
            for (it.newer = 13; it.newer < 70; it.newer += 4) {
                for (it.steps = 16; it.steps < 20; it.steps++) {
                    it.wait = (it.newer / 4 + it.steps) % 4;
                    if (it.newer + 20 < it.blocks * 4) {
                        chain_breaks(&it);
                    }
                }
            }
        }
    }
}
