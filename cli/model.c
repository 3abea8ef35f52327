#include "cli/model.h"

fg_status fg_loaded_model_open(fg_loaded_model *model, const char *path, uint32_t kv_dtype,
                               uint32_t block_size, fg_start *start, fg_error *err)
{
    *model = (fg_loaded_model){ 0 };
    fg_status status = fg_weights_open(path, &model->weights, err);
    if (status == FG_OK) {
        status = fg_hparams_read(model->weights, &model->hparams, err);
    }
    fg_start_lap(start, FG_START_MODEL);
    if (status == FG_OK) {
        status = fg_tokenizer_open(model->weights, &model->tokenizer, err);
    }
    if (status == FG_OK && fg_tokenizer_vocab_size(model->tokenizer) > model->hparams.vocab_size) {
        status =
            fg_fail(err, FG_BAD_INPUT, "%s: the tokenizer has %u tokens, the embedding %u rows",
                    path, fg_tokenizer_vocab_size(model->tokenizer), model->hparams.vocab_size);
    }
    if (status == FG_OK) {
        status = fg_chat_open(model->weights, &model->chat, err);
    }
    fg_start_lap(start, FG_START_TOKENIZER);
    if (status == FG_OK) {
        const fg_hparams *h = &model->hparams;
        status = fg_kv_layout_init(&model->layout, h->layer_count, h->kv_head_count, h->head_dim,
                                   block_size, kv_dtype, err);
    }
    if (status != FG_OK) {
        fg_loaded_model_close(model);
        return status;
    }
    model->fingerprint = fg_weights_fingerprint(model->weights);
    fg_start_lap(start, FG_START_FINGERPRINT);
    return FG_OK;
}

void fg_loaded_model_close(fg_loaded_model *model)
{
    fg_chat_close(model->chat);
    fg_tokenizer_close(model->tokenizer);
    fg_weights_close(model->weights);
    *model = (fg_loaded_model){ 0 };
}
