#include "tests/unit/router/tiny_model.h"

#include "common/base/status.h"

/* ChatML without a default system message; `mark` and `refuse` are for clients' variables. */
static const char chat_template[] =
    "{% if refuse is defined %}{{ raise_exception('refused on request') }}{% endif %}{{ mark }}"
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

void tiny_model_open(tiny_model *model)
{
    tiny_model_open_as(model, chat_template, NULL, 0);
}

void tiny_model_open_as(tiny_model *model, const char *template, const char *const *controls,
                        size_t control_count)
{
    fg_error err = { 0 };
    *model = (tiny_model){ 0 };
    small_bpe_with(&model->file, "gpt-2", template, controls, control_count);
    FG_ASSERT(fg_weights_open_memory(model->file.data, model->file.size, &model->weights, &err) ==
                      FG_OK &&
                  fg_tokenizer_open(model->weights, &model->tokenizer, &err) == FG_OK &&
                  fg_chat_open(model->weights, &model->chat, &err) == FG_OK,
              "%s", err.text);
}

void tiny_model_close(tiny_model *model)
{
    fg_chat_close(model->chat);
    fg_tokenizer_close(model->tokenizer);
    fg_weights_close(model->weights);
    fg_buf_deinit(&model->file);
}
