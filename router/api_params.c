/* The one table of request parameters, and how a body is measured against it. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/limits.h"
#include "router/api_internal.h"
#include "router/service.h"

/* How a parameter is checked. */
typedef enum rule {
    NUMBER,       /* least <= value <= most, as a float */
    NUMBER_ABOVE, /* least < value <= most */
    INTEGER,      /* least <= value <= most */
    FLAG,
    TEXT,    /* a string; its meaning is the reader's */
    NEUTRAL, /* not there yet: only values that change nothing are accepted */
    OWN,     /* a function below reads it */
} rule;

/* Values of a NEUTRAL parameter that change nothing. null always does. */
enum {
    ONLY_NULL = 0,
    IS_FALSE = 1,
    IS_TRUE = 2,
    IS_ZERO = 4,
    IS_ONE = 8,
    IS_EMPTY = 16, /* "", [] or {} */
    IS_NONE = 32,
    IS_AUTO = 64,
    IS_TEXT_ONLY = 128, /* ["text"] */
};

enum { FOR_CHAT = 1, FOR_COMPLETION = 2, FOR_BOTH = 3, FOR_EMBEDDING = 4, FOR_ALL = 7 };

typedef struct param {
    const char *name;
    uint8_t formats;
    rule rule;
    double least, most;
    double fallback; /* of an absent number or integer */
    unsigned neutral;
} param;

/* The one table of limits. The first rows are those with a value, in the order of param_id. */
static const param params[] = {
    [FG_PARAM_MODEL] = { "model", FOR_ALL, .rule = TEXT },
    [FG_PARAM_MESSAGES] = { "messages", FOR_CHAT, .rule = OWN },
    [FG_PARAM_PROMPT] = { "prompt", FOR_COMPLETION, .rule = OWN },
    [FG_PARAM_MAX_TOKENS] = { "max_tokens", FOR_BOTH, INTEGER, .least = 0, .most = INT32_MAX },
    [FG_PARAM_MAX_COMPLETION_TOKENS] = { "max_completion_tokens", FOR_BOTH, INTEGER, .least = 0,
                                         .most = INT32_MAX },
    [FG_PARAM_TEMPERATURE] = { "temperature", FOR_BOTH, NUMBER, .least = 0, .most = 2,
                               .fallback = 1 },
    [FG_PARAM_TOP_P] = { "top_p", FOR_BOTH, NUMBER_ABOVE, .least = 0, .most = 1, .fallback = 1 },
    [FG_PARAM_TOP_K] = { "top_k", FOR_BOTH, INTEGER, .least = -1, .most = INT32_MAX },
    [FG_PARAM_MIN_P] = { "min_p", FOR_BOTH, NUMBER, .least = 0, .most = 1 },
    [FG_PARAM_SEED] = { "seed", FOR_BOTH, INTEGER, .least = -0x1p63, .most = 0x1p63 },
    [FG_PARAM_N] = { "n", FOR_BOTH, INTEGER, .least = 1, .most = FG_LIMIT_CHOICES, .fallback = 1 },
    [FG_PARAM_STOP] = { "stop", FOR_BOTH, .rule = OWN },
    [FG_PARAM_STOP_TOKEN_IDS] = { "stop_token_ids", FOR_BOTH, .rule = OWN },
    [FG_PARAM_INCLUDE_STOP] = { "include_stop_str_in_output", FOR_BOTH, .rule = FLAG },
    [FG_PARAM_IGNORE_EOS] = { "ignore_eos", FOR_BOTH, .rule = FLAG },
    [FG_PARAM_STREAM] = { "stream", FOR_BOTH, .rule = FLAG },
    [FG_PARAM_STREAM_OPTIONS] = { "stream_options", FOR_BOTH, .rule = OWN },
    [FG_PARAM_USER] = { "user", FOR_ALL, .rule = TEXT },
    [FG_PARAM_PRIORITY] = { "priority", FOR_ALL, .rule = OWN },
    [FG_PARAM_PREFIX_CACHE] = { "prefix_cache", FOR_ALL, .rule = TEXT },
    [FG_PARAM_CACHE_SALT] = { "cache_salt", FOR_ALL, .rule = TEXT },
    [FG_PARAM_LOGITS_DIGEST] = { "logits_digest", FOR_BOTH, .rule = FLAG },
    [FG_PARAM_RETURN_TOKEN_IDS] = { "return_token_ids", FOR_BOTH, .rule = FLAG },
    [FG_PARAM_RETURN_TIMINGS] = { "return_timings", FOR_BOTH, .rule = FLAG },
    [FG_PARAM_SLO] = { "slo", FOR_ALL, .rule = TEXT },
    [FG_PARAM_DEADLINE] = { "deadline_ms", FOR_ALL, INTEGER, .least = 1,
                            .most = FG_SERVICE_MS_MAX },
    [FG_PARAM_CACHE_TTL] = { "cache_ttl_s", FOR_ALL, INTEGER, .least = 0,
                             .most = FG_LIMIT_PIN_MS / 1000 },
    [FG_PARAM_TEMPLATE_KWARGS] = { "chat_template_kwargs", FOR_CHAT, .rule = OWN },
    [FG_PARAM_REPETITION] = { "repetition_penalty", FOR_BOTH, NUMBER_ABOVE, .least = 0, .most = 10,
                              .fallback = 1 },
    [FG_PARAM_FREQUENCY] = { "frequency_penalty", FOR_BOTH, NUMBER, .least = -2, .most = 2 },
    [FG_PARAM_PRESENCE] = { "presence_penalty", FOR_BOTH, NUMBER, .least = -2, .most = 2 },
    [FG_PARAM_MIN_TOKENS] = { "min_tokens", FOR_BOTH, INTEGER, .least = 0, .most = INT32_MAX },
    [FG_PARAM_LOGIT_BIAS] = { "logit_bias", FOR_BOTH, .rule = OWN },
    [FG_PARAM_LOGPROBS] = { "logprobs", FOR_BOTH, .rule = OWN },
    [FG_PARAM_TOP_LOGPROBS] = { "top_logprobs", FOR_CHAT, INTEGER, .least = 0,
                                .most = FG_LOGPROBS_MAX },
    [FG_PARAM_RESPONSE_FORMAT] = { "response_format", FOR_BOTH, .rule = OWN },
    [FG_PARAM_STRUCTURED] = { "structured_outputs", FOR_BOTH, .rule = OWN },
    [FG_PARAM_GUIDED_JSON] = { "guided_json", FOR_BOTH, .rule = OWN },
    [FG_PARAM_GUIDED_REGEX] = { "guided_regex", FOR_BOTH, .rule = OWN },
    [FG_PARAM_GUIDED_CHOICE] = { "guided_choice", FOR_BOTH, .rule = OWN },
    [FG_PARAM_GUIDED_GRAMMAR] = { "guided_grammar", FOR_BOTH, .rule = OWN },
    [FG_PARAM_JSON_SCHEMA] = { "json_schema", FOR_BOTH, .rule = OWN },
    [FG_PARAM_REGEX] = { "regex", FOR_BOTH, .rule = OWN },
    [FG_PARAM_GRAMMAR] = { "grammar", FOR_BOTH, .rule = OWN },
    [FG_PARAM_EBNF] = { "ebnf", FOR_BOTH, .rule = OWN },
    [FG_PARAM_TOOLS] = { "tools", FOR_CHAT, .rule = OWN },
    [FG_PARAM_TOOL_CHOICE] = { "tool_choice", FOR_CHAT, .rule = OWN },
    [FG_PARAM_PARALLEL_TOOL_CALLS] = { "parallel_tool_calls", FOR_CHAT, .rule = FLAG },
    [FG_PARAM_REASONING_FORMAT] = { "reasoning_format", FOR_CHAT, .rule = TEXT },
    [FG_PARAM_INCLUDE_REASONING] = { "include_reasoning", FOR_CHAT, .rule = FLAG },
    [FG_PARAM_ECHO] = { "echo", FOR_COMPLETION, .rule = FLAG },
    [FG_PARAM_PROMPT_LOGPROBS] = { "prompt_logprobs", FOR_BOTH, INTEGER, .least = 0,
                                   .most = FG_LOGPROBS_MAX },
    [FG_PARAM_INPUT] = { "input", FOR_EMBEDDING, .rule = OWN },
    [FG_PARAM_ENCODING_FORMAT] = { "encoding_format", FOR_EMBEDDING, .rule = TEXT },
    [FG_PARAM_DIMENSIONS] = { "dimensions", FOR_EMBEDDING, .rule = OWN },

    { "best_of", FOR_BOTH, NEUTRAL, .neutral = IS_ONE },
    { "top_logprobs", FOR_COMPLETION, NEUTRAL, .neutral = IS_ZERO },
    { "logprob_token_ids", FOR_BOTH, NEUTRAL, .neutral = IS_EMPTY },
    { "return_tokens_as_token_ids", FOR_BOTH, NEUTRAL, .neutral = IS_FALSE },
    { "echo", FOR_CHAT, NEUTRAL, .neutral = IS_FALSE },
    { "suffix", FOR_BOTH, NEUTRAL, .neutral = IS_EMPTY },
    { "length_penalty", FOR_BOTH, NEUTRAL, .neutral = IS_ONE },
    { "use_beam_search", FOR_BOTH, NEUTRAL, .neutral = IS_FALSE },
    { "allowed_token_ids", FOR_BOTH, NEUTRAL, .neutral = ONLY_NULL },
    { "bad_words", FOR_BOTH, NEUTRAL, .neutral = IS_EMPTY },
    { "stop_regex", FOR_BOTH, NEUTRAL, .neutral = IS_EMPTY },
    { "skip_special_tokens", FOR_BOTH, NEUTRAL, .neutral = IS_TRUE },
    { "add_special_tokens", FOR_ALL, NEUTRAL, .neutral = ONLY_NULL },
    { "truncate_prompt_tokens", FOR_ALL, NEUTRAL, .neutral = ONLY_NULL },
    { "prompt_embeds", FOR_BOTH, NEUTRAL, .neutral = ONLY_NULL },
    { "functions", FOR_CHAT, NEUTRAL, .neutral = IS_EMPTY },
    { "function_call", FOR_CHAT, NEUTRAL, .neutral = IS_NONE | IS_AUTO },
    { "guided_decoding_backend", FOR_BOTH, NEUTRAL, .neutral = ONLY_NULL },
    { "guided_whitespace_pattern", FOR_BOTH, NEUTRAL, .neutral = ONLY_NULL },
    { "modalities", FOR_CHAT, NEUTRAL, .neutral = IS_TEXT_ONLY },
    { "audio", FOR_CHAT, NEUTRAL, .neutral = ONLY_NULL },
    { "prediction", FOR_CHAT, NEUTRAL, .neutral = ONLY_NULL },
    { "web_search_options", FOR_CHAT, NEUTRAL, .neutral = ONLY_NULL },
    { "add_generation_prompt", FOR_CHAT, NEUTRAL, .neutral = IS_TRUE },
    { "continue_final_message", FOR_CHAT, NEUTRAL, .neutral = IS_FALSE },
    { "chat_template", FOR_CHAT, NEUTRAL, .neutral = ONLY_NULL },
    { "documents", FOR_CHAT, NEUTRAL, .neutral = IS_EMPTY },
    { "messages", FOR_EMBEDDING, NEUTRAL, .neutral = ONLY_NULL },
    { "normalize", FOR_EMBEDDING, NEUTRAL, .neutral = IS_TRUE },
    { "use_activation", FOR_EMBEDDING, NEUTRAL, .neutral = IS_TRUE },
};

enum { ROW_COUNT = sizeof params / sizeof params[0] };

fg_status fg_api_no_memory(fg_api_reading *r)
{
    return fg_api_refuse(r->error, FG_AGAIN, 503, NULL, NULL, "out of memory for the request");
}

fg_status fg_api_unsupported(fg_api_reading *r, const char *name)
{
    return fg_api_refuse(r->error, FG_BAD_INPUT, 400, name, "unsupported_parameter",
                         "'%s' is not supported by this server yet", name);
}

fg_status fg_api_wrong_type(fg_api_reading *r, const char *name, const char *want,
                            const fg_json_node *node)
{
    return fg_api_refuse(r->error, FG_BAD_INPUT, 400, name, "invalid_type",
                         "'%s' must be %s, not %s", name, want,
                         fg_json_type_name(fg_json_type_of(node)));
}

fg_status fg_api_wrong_value(fg_api_reading *r, const char *name, const char *format, ...)
{
    char text[FG_ERROR_TEXT_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return fg_api_refuse(r->error, FG_BAD_INPUT, 400, name, "invalid_value", "%s", text);
}

static fg_status out_of_range(fg_api_reading *r, const param *row)
{
    return fg_api_refuse(r->error, FG_BAD_INPUT, 400, row->name, "invalid_value",
                         row->rule == NUMBER_ABOVE ? "'%s' must be above %.0f and at most %.0f"
                                                   : "'%s' must be between %.0f and %.0f",
                         row->name, row->least, row->most);
}

/* An integer, or a real number that is one: some clients send 1.0 for 1. */
bool fg_api_read_integer(const fg_json_node *node, int64_t *value_out)
{
    double number;
    if (fg_json_integer(node, value_out)) {
        return true;
    }
    if (!fg_json_number(node, &number) || number != floor(number) || fabs(number) > 0x1p53) {
        return false;
    }
    *value_out = (int64_t)number;
    return true;
}

bool fg_api_string_is(const fg_json_node *node, const char *text)
{
    const char *value = fg_json_string(node, NULL);
    return value != NULL && strcmp(value, text) == 0;
}

static bool is_neutral(const fg_json_node *node, unsigned neutral)
{
    bool flag;
    double number;
    size_t length;
    switch (fg_json_type_of(node)) {
    case FG_JSON_BOOL:
        return fg_json_bool(node, &flag) && (neutral & (flag ? IS_TRUE : IS_FALSE)) != 0;
    case FG_JSON_INTEGER:
    case FG_JSON_REAL:
        return fg_json_number(node, &number) && (((neutral & IS_ZERO) != 0 && number == 0) ||
                                                 ((neutral & IS_ONE) != 0 && number == 1));
    case FG_JSON_STRING:
        return ((neutral & IS_NONE) != 0 && fg_api_string_is(node, "none")) ||
               ((neutral & IS_AUTO) != 0 && fg_api_string_is(node, "auto")) ||
               ((neutral & IS_EMPTY) != 0 && fg_json_string(node, &length) && length == 0);
    case FG_JSON_ARRAY:
        return ((neutral & IS_EMPTY) != 0 && fg_json_size(node) == 0) ||
               ((neutral & IS_TEXT_ONLY) != 0 && fg_json_size(node) == 1 &&
                fg_api_string_is(fg_json_at(node, 0), "text"));
    case FG_JSON_OBJECT:
        return (neutral & IS_EMPTY) != 0 && fg_json_size(node) == 0;
    default:
        return true;
    }
}

bool fg_api_is_empty(const fg_json_node *node)
{
    return is_neutral(node, IS_EMPTY);
}

static fg_status read_value(fg_api_reading *r, size_t id, const fg_json_node *node)
{
    const param *row = &params[id];
    double number;
    switch (row->rule) {
    case NUMBER:
    case NUMBER_ABOVE:
        if (!fg_json_number(node, &number)) {
            return fg_api_wrong_type(r, row->name, "a number", node);
        }
        /* Judged as the float that the sampler will see: 1e-60 is 0 there. */
        r->number[id] = (float)number;
        if (!(r->number[id] >= row->least && r->number[id] <= row->most) ||
            (row->rule == NUMBER_ABOVE && r->number[id] <= row->least)) {
            return out_of_range(r, row);
        }
        return FG_OK;
    case INTEGER:
        if (!fg_api_read_integer(node, &r->integer[id])) {
            return fg_api_wrong_type(r, row->name, "an integer", node);
        }
        if ((double)r->integer[id] < row->least || (double)r->integer[id] > row->most) {
            return out_of_range(r, row);
        }
        return FG_OK;
    case FLAG:
        return fg_json_bool(node, &r->flag[id])
                   ? FG_OK
                   : fg_api_wrong_type(r, row->name, "a boolean", node);
    case TEXT:
        return fg_json_is(node, FG_JSON_STRING) ? FG_OK
                                                : fg_api_wrong_type(r, row->name, "a string", node);
    case NEUTRAL:
        return is_neutral(node, row->neutral) ? FG_OK : fg_api_unsupported(r, row->name);
    case OWN:
        return FG_OK;
    }
    return FG_OK;
}

/* Every row of the table against the body; null means absent. */
fg_status fg_api_read_params(fg_api_reading *r)
{
    static const uint8_t formats[] = { [FG_API_CHAT] = FOR_CHAT,
                                       [FG_API_COMPLETION] = FOR_COMPLETION,
                                       [FG_API_EMBEDDING] = FOR_EMBEDDING };
    uint8_t format = formats[r->kind];
    for (size_t i = 0; i < ROW_COUNT; i++) {
        const param *row = &params[i];
        const fg_json_node *node = fg_json_get(r->root, row->name);
        bool given =
            (row->formats & format) != 0 && node != NULL && !fg_json_is(node, FG_JSON_NULL);
        if (i < FG_PARAM_COUNT) {
            r->given[i] = given;
            r->number[i] = (float)row->fallback;
            r->integer[i] = (int64_t)row->fallback;
        }
        if (!given) {
            continue;
        }
        fg_status status = read_value(r, i, node);
        if (status != FG_OK) {
            return status;
        }
    }
    return FG_OK;
}

const char *fg_api_param_name(fg_api_param id)
{
    return params[id].name;
}

const fg_json_node *fg_api_value(const fg_api_reading *r, fg_api_param id)
{
    return r->given[id] ? fg_json_get(r->root, params[id].name) : NULL;
}
