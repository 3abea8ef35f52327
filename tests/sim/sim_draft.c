#include "tests/sim/sim_draft.h"

#include <stdlib.h>

#include "common/base/hash.h"
#include "common/base/rng.h"

struct fg_sim_draft {
    fg_engine *engine;
    fg_drafter *drafter;
    void *arena;
    fg_drafter_options options;
    uint32_t vocab_size;
    uint32_t wrong_of_eight;
    uint64_t seed;
};

static uint64_t run(void *ctx, fg_step *step)
{
    fg_sim_draft *draft = ctx;
    fg_error err;
    fg_status status = fg_engine_begin(draft->engine, step, &err);
    FG_ASSERT(status == FG_OK, "draft model: %s", err.text);
    FG_ASSERT(fg_engine_poll(draft->engine) == step);
    for (uint32_t i = 0; i < step->seq_count; i++) {
        fg_step_seq *item = &step->seqs[i];
        uint64_t drawn = fg_hash_mix(draft->seed ^ item->first_position ^ item->token_out << 16);
        if (drawn % 8 < draft->wrong_of_eight) {
            item->token_out = (uint32_t)((item->token_out + drawn / 8) % draft->vocab_size);
        }
    }
    return 0;
}

fg_sim_draft *fg_sim_draft_open(const fg_engine_sim_options *target, uint64_t seed)
{
    fg_error err;
    fg_rng rng = { .state = fg_hash_mix(seed) };
    fg_sim_draft *draft = calloc(1, sizeof *draft);
    FG_ASSERT(draft != NULL);
    uint32_t context = target->limits.context_max;
    bool short_context = fg_rng_below(&rng, 4) == 0, few_blocks = fg_rng_below(&rng, 4) == 0;
    context = short_context ? 2 + (uint32_t)fg_rng_below(&rng, context) : context;
    uint32_t blocks = few_blocks ? 1 + (uint32_t)fg_rng_below(&rng, 20) : target->block_count;
    draft->vocab_size = target->vocab_size;
    draft->seed = fg_rng_next(&rng);
    draft->wrong_of_eight = (uint32_t)fg_rng_below(&rng, 9);
    draft->arena = calloc(blocks, target->layout.block_bytes);
    FG_ASSERT(draft->arena != NULL);
    fg_engine_sim_options engine = { .layout = target->layout,
                                     .arena = draft->arena,
                                     .block_count = blocks,
                                     .limits = { .step_seqs_max = target->limits.step_seqs_max,
                                                 .context_max = context },
                                     .vocab_size = target->vocab_size,
                                     .eos_token = target->eos_token,
                                     .quick = target->quick };
    engine.limits.step_tokens_max =
        FG_DRAFTER_CHUNK + FG_DRAFTER_NEAR * engine.limits.step_seqs_max;
    draft->options = (fg_drafter_options){ .place_count = target->limits.step_seqs_max,
                                           .context_max = context,
                                           .block_size = target->layout.block_size,
                                           .block_count = blocks,
                                           .vocab_size = target->vocab_size,
                                           .run = run,
                                           .ctx = draft };
    fg_status status = fg_engine_open_sim(&engine, &draft->engine, &err);
    status = status != FG_OK ? status : fg_drafter_create(&draft->options, &draft->drafter, &err);
    FG_ASSERT(status == FG_OK, "%s", err.text);
    return draft;
}

void fg_sim_draft_close(fg_sim_draft *draft)
{
    fg_pool_stats stats;
    if (draft == NULL) {
        return;
    }
    fg_drafter_check(draft->drafter, &stats);
    FG_ASSERT(fg_engine_sim_bad_slots(draft->engine) == 0, "the draft model read a torn slot");
    fg_drafter_destroy(draft->drafter);
    fg_engine_close(draft->engine);
    free(draft->arena);
    free(draft);
}

fg_drafter *fg_sim_draft_drafter(fg_sim_draft *draft)
{
    return draft != NULL ? draft->drafter : NULL;
}

uint32_t fg_sim_draft_context(const fg_sim_draft *draft)
{
    return draft != NULL ? draft->options.context_max : 0;
}
