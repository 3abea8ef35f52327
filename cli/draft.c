#include "cli/draft.h"

#include <stdio.h>

#include "common/base/log.h"
#include "common/model/vocab_pair.h"

fg_status fg_draft_check(const fg_serve_config *config, fg_error *err)
{
    bool decodes = config->mode == FG_MODE_STANDALONE || config->mode == FG_MODE_DECODE ||
                   (config->mode == FG_MODE_PREFILL && (config->roles & FG_USE_DECODE) != 0);
    if (config->speculative_model == NULL) {
        return config->speculate != FG_SPECULATE_MODEL
                   ? FG_OK
                   : fg_fail(err, FG_BAD_INPUT,
                             "--speculate model needs --speculative-model FILE: the model that "
                             "guesses");
    }
    if (config->speculative_model[0] == '\0') {
        return fg_fail(err, FG_BAD_INPUT, "--speculative-model needs a file");
    }
    if (!decodes) {
        return fg_fail(err, FG_BAD_INPUT,
                       "--speculative-model is for workers that decode: give it to --mode decode "
                       "or standalone");
    }
    if (config->speculate == FG_SPECULATE_OFF || config->speculate == FG_SPECULATE_NGRAM) {
        return fg_fail(
            err, FG_BAD_INPUT,
            "--speculative-model %s guesses nothing with --speculate %s: leave that out, "
            "or say auto or model",
            config->speculative_model, config->speculate == FG_SPECULATE_OFF ? "off" : "ngram");
    }
    return FG_OK;
}

/* As many slots as the model has, which no sequence can need more of. */
static fg_status size(fg_loaded_draft *draft, const fg_serve_config *config,
                      const fg_loaded_model *model, uint32_t block_count, uint32_t context_max,
                      fg_error *err)
{
    const fg_hparams *h = &draft->hparams;
    fg_engine_draft *engine = &draft->engine;
    uint32_t context = h->context_length < context_max ? h->context_length : context_max;
    uint32_t kv_dtype = fg_engine_kv_dtype(config->device, FG_DTYPE_AUTO, h);
    uint32_t blocks =
        config->speculative_kv_blocks != 0 ? config->speculative_kv_blocks : block_count;
    *engine = (fg_engine_draft){ .weights = draft->weights,
                                 .hparams = h,
                                 .block_count = blocks,
                                 .context_max = context,
                                 .fingerprint = &draft->fingerprint };
    return fg_kv_layout_init(&engine->layout, h->layer_count, h->kv_head_count, h->head_dim,
                             model->layout.block_size, kv_dtype, err);
}

fg_status fg_loaded_draft_open(fg_loaded_draft *draft, const fg_serve_config *config,
                               const fg_loaded_model *model, uint32_t block_count,
                               uint32_t context_max, fg_error *err)
{
    const char *path = config->speculative_model;
    fg_error why = { .status = FG_OK };
    *draft = (fg_loaded_draft){ .weights = NULL };
    if (path == NULL) {
        return FG_OK;
    }
    fg_status status = fg_weights_open(path, &draft->weights, err);
    status = status != FG_OK ? status : fg_hparams_read(draft->weights, &draft->hparams, err);
    if (status == FG_OK && fg_vocab_pair_check(model->weights, draft->weights, &why) != FG_OK) {
        status = fg_fail(err, why.status, "--speculative-model %s can't guess for %s: %s", path,
                         model->path, why.text);
    }
    if (status == FG_OK) {
        draft->fingerprint = fg_weights_fingerprint(draft->weights);
        status = size(draft, config, model, block_count, context_max, err);
    }
    if (status != FG_OK) {
        fg_loaded_draft_close(draft);
        return status;
    }
    const fg_engine_draft *engine = &draft->engine;
    fg_info("worker",
            "event=draft_model model=\"%s\" layers=%u file_mib=%llu kv_blocks=%u kv_mib=%llu "
            "context=%u",
            draft->hparams.name, draft->hparams.layer_count,
            (unsigned long long)(fg_weights_size_bytes(draft->weights) >> 20), engine->block_count,
            (unsigned long long)((engine->block_count * engine->layout.block_bytes) >> 20),
            engine->context_max);
    return FG_OK;
}

void fg_loaded_draft_close(fg_loaded_draft *draft)
{
    fg_weights_close(draft->weights);
    *draft = (fg_loaded_draft){ .weights = NULL };
}
