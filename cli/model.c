#include "cli/model.h"

#include "common/base/log.h"
#include "common/engine/engine.h"

static fg_status open_text(fg_loaded_model *model, fg_error *err)
{
    fg_status status = fg_tokenizer_open(model->weights, &model->tokenizer, err);
    if (status == FG_OK && fg_tokenizer_vocab_size(model->tokenizer) > model->hparams.vocab_size) {
        status = fg_fail(err, FG_BAD_INPUT,
                         "%s: the tokenizer has %u tokens, the embedding %u rows", model->path,
                         fg_tokenizer_vocab_size(model->tokenizer), model->hparams.vocab_size);
    }
    return status != FG_OK ? status : fg_chat_open(model->weights, &model->chat, err);
}

static void *reader_main(void *ctx)
{
    fg_loaded_model *model = ctx;
    model->text_status = open_text(model, &model->text_error);
    return NULL;
}

static fg_status open_layout(fg_loaded_model *model, const fg_loaded_model_options *options,
                             fg_error *err)
{
    const fg_hparams *h = &model->hparams;
    uint32_t kv_dtype = fg_engine_kv_dtype(options->device, options->kv_dtype, h);
    fg_status status = fg_engine_check_kv(options->device, kv_dtype, options->block_size, err);
    return status != FG_OK ? status
                           : fg_kv_layout_init(&model->layout, h->layer_count, h->kv_head_count,
                                               h->head_dim, options->block_size, kv_dtype, err);
}

fg_status fg_loaded_model_open(fg_loaded_model *model, const fg_loaded_model_options *options,
                               fg_start *start, fg_error *err)
{
    *model = (fg_loaded_model){ .path = options->path };
    fg_status status = fg_weights_open(options->path, &model->weights, err);
    if (status == FG_OK) {
        status = fg_hparams_read(model->weights, &model->hparams, err);
    }
    if (status == FG_OK) {
        status = open_layout(model, options, err);
    }
    if (status == FG_OK) {
        /* At once, not after the weights have been packed for it. */
        status = fg_tokenizer_check(model->weights, err);
    }
    fg_start_lap(start, FG_START_MODEL);
    if (status != FG_OK) {
        fg_loaded_model_close(model);
        return status;
    }
    model->is_reading = fg_thread_start(&model->reader, reader_main, model);
    if (!model->is_reading) {
        reader_main(model);
    }
    fg_start_lap(start, FG_START_TOKENIZER);
    model->fingerprint = fg_weights_fingerprint(model->weights);
    fg_start_lap(start, FG_START_FINGERPRINT);
    return FG_OK;
}

fg_status fg_loaded_model_finish(fg_loaded_model *model, fg_start *start, fg_error *err)
{
    if (model->is_reading) {
        fg_thread_join(model->reader);
        model->is_reading = false;
    }
    fg_start_lap(start, FG_START_TOKENIZER);
    if (model->text_status != FG_OK) {
        *err = model->text_error;
    } else if (fg_chat_refusal(model->chat) != NULL) {
        fg_warn("model", "chat=refused reason=\"%s\"", fg_chat_refusal(model->chat));
    }
    return model->text_status;
}

void fg_loaded_model_close(fg_loaded_model *model)
{
    if (model->is_reading) {
        fg_thread_join(model->reader);
    }
    fg_chat_close(model->chat);
    fg_tokenizer_close(model->tokenizer);
    fg_weights_close(model->weights);
    *model = (fg_loaded_model){ 0 };
}
