/* Parameters that change logits before a choice, and those that ask about them. */
#include <inttypes.h>
#include <string.h>

#include "common/base/limits.h"
#include "router/api_internal.h"

/* A token id as a member's name: decimal digits alone. */
static bool read_id(const char *text, uint32_t end, uint32_t *id_out)
{
    uint64_t id = 0;
    size_t length = strlen(text);
    if (length == 0 || length > 10 || strspn(text, "0123456789") != length) {
        return false;
    }
    for (size_t i = 0; i < length; i++) {
        id = id * 10 + (uint64_t)(text[i] - '0');
    }
    *id_out = (uint32_t)id;
    return id < end;
}

/* OpenAI's object of token ids. */
static fg_status read_biases(fg_api_reading *r)
{
    static const char name[] = "logit_bias";
    const fg_json_node *node = fg_api_value(r, FG_PARAM_LOGIT_BIAS);
    uint32_t vocab_size = fg_tokenizer_vocab_size(r->server->tokenizer);
    if (node == NULL) {
        return FG_OK;
    }
    if (!fg_json_is(node, FG_JSON_OBJECT)) {
        return fg_api_wrong_type(r, name, "an object of token ids", node);
    }
    size_t count = fg_json_size(node);
    if (count > FG_LIMIT_BIASES) {
        return fg_api_wrong_value(r, name, "'%s' can have up to %u tokens", name, FG_LIMIT_BIASES);
    }
    fg_bias *biases = fg_arena_array(r->arena, count, sizeof *biases);
    if (biases == NULL) {
        return fg_api_no_memory(r);
    }
    void *cursor = NULL;
    const char *key;
    const fg_json_node *value;
    uint32_t at = 0;
    while ((value = fg_json_next(node, &cursor, &key)) != NULL) {
        double bias;
        if (!read_id(key, vocab_size, &biases[at].id)) {
            return fg_api_wrong_value(r, name, "'%.32s' is not a token id below %" PRIu32, key,
                                      vocab_size);
        }
        if (!fg_json_number(value, &bias)) {
            return fg_api_wrong_type(r, name, "an object of numbers", value);
        }
        if (!(bias >= -100 && bias <= 100)) {
            return fg_api_wrong_value(r, name, "the bias of token %s must be between -100 and 100",
                                      key);
        }
        biases[at++].bias = (float)bias;
    }
    r->request->params.biases = biases;
    r->request->params.bias_count = at;
    return FG_OK;
}

/* Chat: a boolean, and how many more in `top_logprobs`. Completions: how many. */
static fg_status read_logprobs(fg_api_reading *r)
{
    static const char name[] = "logprobs";
    const fg_json_node *node = fg_api_value(r, FG_PARAM_LOGPROBS);
    uint32_t *wanted = &r->request->params.want_logprobs;
    if (r->kind == FG_API_CHAT) {
        bool flag = false;
        if (node != NULL && !fg_json_bool(node, &flag)) {
            return fg_api_wrong_type(r, name, "a boolean", node);
        }
        uint32_t likely = (uint32_t)r->integer[FG_PARAM_TOP_LOGPROBS];
        if (likely > 0 && !flag) {
            return fg_api_wrong_value(r, "top_logprobs", "'top_logprobs' needs 'logprobs': true");
        }
        *wanted = flag ? likely + 1 : 0;
        return FG_OK;
    }
    int64_t likely = 0;
    bool flag = true;
    if (node == NULL || (fg_json_bool(node, &flag) && !flag)) {
        return FG_OK;
    }
    if (fg_json_is(node, FG_JSON_BOOL) || !fg_api_read_integer(node, &likely)) {
        return fg_api_wrong_type(r, name, "an integer", node);
    }
    if (likely < 0 || likely > FG_LOGPROBS_MAX) {
        return fg_api_wrong_value(r, name, "'%s' must be between 0 and %d", name, FG_LOGPROBS_MAX);
    }
    *wanted = (uint32_t)likely + 1;
    return FG_OK;
}

/* All of a whole answer's are held at once. */
static fg_status check_logprobs(fg_api_reading *r)
{
    const fg_request *request = r->request;
    uint64_t all = (uint64_t)request->choice_count * request->params.max_tokens *
                   request->params.want_logprobs;
    if (request->stream || all <= FG_LIMIT_LOGPROBS) {
        return FG_OK;
    }
    return fg_api_wrong_value(r, "logprobs",
                              "'n' times 'max_tokens' times the tokens asked about is %" PRIu64
                              "; a whole answer tells at most %u: stream it, or ask for less",
                              all, FG_LIMIT_LOGPROBS);
}

fg_status fg_api_read_shape(fg_api_reading *r)
{
    fg_wire_params *params = &r->request->params;
    params->repetition_penalty = r->number[FG_PARAM_REPETITION];
    params->frequency_penalty = r->number[FG_PARAM_FREQUENCY];
    params->presence_penalty = r->number[FG_PARAM_PRESENCE];
    uint32_t most = r->request->no_answer ? 0 : params->max_tokens;
    if (r->integer[FG_PARAM_MIN_TOKENS] > most) {
        return fg_api_wrong_value(r, "min_tokens",
                                  "'min_tokens' is more than the answer can have: %" PRIu32, most);
    }
    params->min_tokens = (uint32_t)r->integer[FG_PARAM_MIN_TOKENS];
    fg_status (*const steps[])(fg_api_reading *) = { read_biases, read_logprobs, check_logprobs };
    fg_status status = FG_OK;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0] && status == FG_OK; i++) {
        status = steps[i](r);
    }
    return status;
}
