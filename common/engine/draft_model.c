#include "common/engine/draft_model.h"

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/engine/drafter.h"
#include "common/engine/forward.h"

struct fg_draft_model {
    fg_forward *forward;
    fg_drafter *drafter;
    void *arena;
    size_t arena_bytes;
};

static uint64_t run(void *ctx, fg_step *step)
{
    fg_draft_model *model = ctx;
    fg_clock clock = fg_clock_real();
    uint64_t began_ns = fg_clock_now_ns(&clock);
    fg_forward_begin(model->forward, step);
    fg_forward_end(model->forward, step);
    return fg_clock_now_ns(&clock) - began_ns;
}

static uint32_t step_tokens_of(uint32_t places)
{
    uint64_t near = (uint64_t)places * FG_DRAFTER_NEAR;
    return near > FG_DRAFTER_CHUNK ? (uint32_t)near : FG_DRAFTER_CHUNK;
}

static fg_status open_forward(fg_draft_model *model, const fg_engine_options *options,
                              fg_error *err)
{
    const fg_engine_draft *draft = options->draft;
    uint32_t places = options->limits.step_seqs_max;
    fg_engine_options own = { .weights = draft->weights,
                              .hparams = draft->hparams,
                              .layout = draft->layout,
                              .arena = model->arena,
                              .block_count = draft->block_count,
                              .limits = { .step_tokens_max = step_tokens_of(places),
                                          .step_seqs_max = places,
                                          .context_max = draft->context_max },
                              .device = options->device,
                              .thread_count = options->thread_count,
                              .places = options->places,
                              .share = options->share,
                              .cpu_isa = options->cpu_isa,
                              .fingerprint = draft->fingerprint,
                              .weights_cache = options->weights_cache };
    return fg_forward_create(&own, NULL, &model->forward, err);
}

fg_status fg_draft_model_open(const fg_engine_options *options, fg_draft_model **model_out,
                              fg_error *err)
{
    const fg_engine_draft *draft = options->draft;
    uint32_t vocab_size = options->hparams->vocab_size;
    if (draft->hparams->vocab_size < vocab_size) {
        vocab_size = draft->hparams->vocab_size;
    }
    fg_draft_model *model = fg_mem_alloc(sizeof *model);
    if (model == NULL || __builtin_mul_overflow((size_t)draft->block_count,
                                                draft->layout.block_bytes, &model->arena_bytes)) {
        fg_mem_free(model);
        return fg_fail(err, FG_AGAIN, "out of memory for the draft model");
    }
    fg_drafter_options drafter = { .place_count = options->limits.step_seqs_max,
                                   .context_max = draft->context_max,
                                   .block_size = draft->layout.block_size,
                                   .block_count = draft->block_count,
                                   .vocab_size = vocab_size,
                                   .run = run,
                                   .ctx = model };
    model->arena = fg_mem_map(model->arena_bytes);
    fg_status status = model->arena != NULL
                           ? FG_OK
                           : fg_fail(err, FG_AGAIN,
                                     "no memory for %u KV blocks of the draft model "
                                     "(%zu MiB): lower --speculative-kv-blocks",
                                     draft->block_count, model->arena_bytes >> 20);
    status = status != FG_OK ? status : fg_drafter_create(&drafter, &model->drafter, err);
    status = status != FG_OK ? status : open_forward(model, options, err);
    if (status != FG_OK) {
        fg_draft_model_close(model);
        return status;
    }
    *model_out = model;
    return FG_OK;
}

void fg_draft_model_close(fg_draft_model *model)
{
    if (model == NULL) {
        return;
    }
    fg_forward_destroy(model->forward);
    fg_drafter_destroy(model->drafter);
    if (model->arena != NULL) {
        fg_mem_unmap(model->arena, model->arena_bytes);
    }
    fg_mem_free(model);
}

void fg_draft_model_round(fg_draft_model *model, fg_step *step)
{
    fg_drafter_round(model->drafter, step);
}

const struct fg_weight_report *fg_draft_model_weights(const fg_draft_model *model)
{
    return fg_forward_weights(model->forward);
}
