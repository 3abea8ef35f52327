#include "router/api.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/json.h"
#include "common/base/limits.h"
#include "common/base/mem.h"

/* Below this temperature the answer is greedy: dividing logits by less only overflows. */
#define TEMPERATURE_LEAST 1e-5f

/* What a chat template may add: its default system message, and its frame around each message. */
enum { TEMPLATE_BYTES = 16 * 1024, TEMPLATE_MESSAGE_BYTES = 128 };

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
    IS_TEXT_TYPE = 128, /* {"type":"text"} */
    IS_TEXT_ONLY = 256, /* ["text"] */
};

enum { FOR_CHAT = 1, FOR_COMPLETION = 2, FOR_BOTH = 3 };

typedef enum param_id {
    P_MODEL,
    P_MESSAGES,
    P_PROMPT,
    P_MAX_TOKENS,
    P_MAX_COMPLETION_TOKENS,
    P_TEMPERATURE,
    P_TOP_P,
    P_TOP_K,
    P_MIN_P,
    P_SEED,
    P_STOP,
    P_IGNORE_EOS,
    P_STREAM,
    P_STREAM_OPTIONS,
    P_USER,
    P_LOGITS_DIGEST,
    P_RETURN_TOKEN_IDS,
    P_VALUE_COUNT, /* those below have no value of their own */
} param_id;

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
    [P_MODEL] = { "model", FOR_BOTH, .rule = TEXT },
    [P_MESSAGES] = { "messages", FOR_CHAT, .rule = OWN },
    [P_PROMPT] = { "prompt", FOR_COMPLETION, .rule = OWN },
    [P_MAX_TOKENS] = { "max_tokens", FOR_BOTH, INTEGER, .least = 1, .most = INT32_MAX },
    [P_MAX_COMPLETION_TOKENS] = { "max_completion_tokens", FOR_BOTH, INTEGER, .least = 1,
                                  .most = INT32_MAX },
    [P_TEMPERATURE] = { "temperature", FOR_BOTH, NUMBER, .least = 0, .most = 2, .fallback = 1 },
    [P_TOP_P] = { "top_p", FOR_BOTH, NUMBER_ABOVE, .least = 0, .most = 1, .fallback = 1 },
    [P_TOP_K] = { "top_k", FOR_BOTH, INTEGER, .least = -1, .most = INT32_MAX },
    [P_MIN_P] = { "min_p", FOR_BOTH, NUMBER, .least = 0, .most = 1 },
    [P_SEED] = { "seed", FOR_BOTH, INTEGER, .least = -0x1p63, .most = 0x1p63 },
    [P_STOP] = { "stop", FOR_BOTH, .rule = OWN },
    [P_IGNORE_EOS] = { "ignore_eos", FOR_BOTH, .rule = FLAG },
    [P_STREAM] = { "stream", FOR_BOTH, .rule = FLAG },
    [P_STREAM_OPTIONS] = { "stream_options", FOR_BOTH, .rule = OWN },
    [P_USER] = { "user", FOR_BOTH, .rule = TEXT },
    [P_LOGITS_DIGEST] = { "logits_digest", FOR_BOTH, .rule = FLAG },
    [P_RETURN_TOKEN_IDS] = { "return_token_ids", FOR_BOTH, .rule = FLAG },

    { "n", FOR_BOTH, NEUTRAL, .neutral = IS_ONE },
    { "best_of", FOR_BOTH, NEUTRAL, .neutral = IS_ONE },
    { "logprobs", FOR_BOTH, NEUTRAL, .neutral = IS_FALSE },
    { "top_logprobs", FOR_BOTH, NEUTRAL, .neutral = IS_ZERO },
    { "prompt_logprobs", FOR_BOTH, NEUTRAL, .neutral = ONLY_NULL },
    { "logprob_token_ids", FOR_BOTH, NEUTRAL, .neutral = IS_EMPTY },
    { "return_tokens_as_token_ids", FOR_BOTH, NEUTRAL, .neutral = IS_FALSE },
    { "echo", FOR_BOTH, NEUTRAL, .neutral = IS_FALSE },
    { "suffix", FOR_BOTH, NEUTRAL, .neutral = IS_EMPTY },
    { "presence_penalty", FOR_BOTH, NEUTRAL, .neutral = IS_ZERO },
    { "frequency_penalty", FOR_BOTH, NEUTRAL, .neutral = IS_ZERO },
    { "repetition_penalty", FOR_BOTH, NEUTRAL, .neutral = IS_ONE },
    { "length_penalty", FOR_BOTH, NEUTRAL, .neutral = IS_ONE },
    { "use_beam_search", FOR_BOTH, NEUTRAL, .neutral = IS_FALSE },
    { "logit_bias", FOR_BOTH, NEUTRAL, .neutral = IS_EMPTY },
    { "allowed_token_ids", FOR_BOTH, NEUTRAL, .neutral = ONLY_NULL },
    { "bad_words", FOR_BOTH, NEUTRAL, .neutral = IS_EMPTY },
    { "min_tokens", FOR_BOTH, NEUTRAL, .neutral = IS_ZERO },
    { "stop_token_ids", FOR_BOTH, NEUTRAL, .neutral = IS_EMPTY },
    { "stop_regex", FOR_BOTH, NEUTRAL, .neutral = IS_EMPTY },
    { "include_stop_str_in_output", FOR_BOTH, NEUTRAL, .neutral = IS_FALSE },
    { "skip_special_tokens", FOR_BOTH, NEUTRAL, .neutral = IS_TRUE },
    { "add_special_tokens", FOR_BOTH, NEUTRAL, .neutral = ONLY_NULL },
    { "truncate_prompt_tokens", FOR_BOTH, NEUTRAL, .neutral = ONLY_NULL },
    { "prompt_embeds", FOR_BOTH, NEUTRAL, .neutral = ONLY_NULL },
    { "tools", FOR_CHAT, NEUTRAL, .neutral = IS_EMPTY },
    { "tool_choice", FOR_CHAT, NEUTRAL, .neutral = IS_NONE | IS_AUTO },
    { "functions", FOR_CHAT, NEUTRAL, .neutral = IS_EMPTY },
    { "function_call", FOR_CHAT, NEUTRAL, .neutral = IS_NONE | IS_AUTO },
    { "response_format", FOR_BOTH, NEUTRAL, .neutral = IS_TEXT_TYPE },
    { "structured_outputs", FOR_BOTH, NEUTRAL, .neutral = ONLY_NULL },
    { "guided_json", FOR_BOTH, NEUTRAL, .neutral = ONLY_NULL },
    { "guided_regex", FOR_BOTH, NEUTRAL, .neutral = ONLY_NULL },
    { "guided_choice", FOR_BOTH, NEUTRAL, .neutral = ONLY_NULL },
    { "guided_grammar", FOR_BOTH, NEUTRAL, .neutral = ONLY_NULL },
    { "guided_decoding_backend", FOR_BOTH, NEUTRAL, .neutral = ONLY_NULL },
    { "guided_whitespace_pattern", FOR_BOTH, NEUTRAL, .neutral = ONLY_NULL },
    { "grammar", FOR_BOTH, NEUTRAL, .neutral = ONLY_NULL },
    { "json_schema", FOR_BOTH, NEUTRAL, .neutral = ONLY_NULL },
    { "regex", FOR_BOTH, NEUTRAL, .neutral = ONLY_NULL },
    { "ebnf", FOR_BOTH, NEUTRAL, .neutral = ONLY_NULL },
    { "priority", FOR_BOTH, NEUTRAL, .neutral = IS_ZERO },
    { "prefix_cache", FOR_BOTH, NEUTRAL, .neutral = IS_AUTO },
    { "modalities", FOR_CHAT, NEUTRAL, .neutral = IS_TEXT_ONLY },
    { "audio", FOR_CHAT, NEUTRAL, .neutral = ONLY_NULL },
    { "prediction", FOR_CHAT, NEUTRAL, .neutral = ONLY_NULL },
    { "web_search_options", FOR_CHAT, NEUTRAL, .neutral = ONLY_NULL },
    { "add_generation_prompt", FOR_CHAT, NEUTRAL, .neutral = IS_TRUE },
    { "continue_final_message", FOR_CHAT, NEUTRAL, .neutral = IS_FALSE },
    { "chat_template", FOR_CHAT, NEUTRAL, .neutral = ONLY_NULL },
    { "chat_template_kwargs", FOR_CHAT, NEUTRAL, .neutral = IS_EMPTY },
    { "documents", FOR_CHAT, NEUTRAL, .neutral = IS_EMPTY },
};

enum { PARAM_COUNT = sizeof params / sizeof params[0] };

/* One parse: what is read so far. */
typedef struct parse {
    const fg_api_server *server;
    fg_api_kind kind;
    fg_arena *arena;
    const fg_json_node *root;
    fg_request *request;
    fg_api_error *error;
    bool given[P_VALUE_COUNT];
    float number[P_VALUE_COUNT];
    int64_t integer[P_VALUE_COUNT];
    bool flag[P_VALUE_COUNT];
} parse;

static fg_status no_memory(parse *p)
{
    return fg_api_refuse(p->error, FG_AGAIN, 503, NULL, NULL, "out of memory for the request");
}

static fg_status wrong_type(parse *p, const char *name, const char *want, const fg_json_node *node)
{
    return fg_api_refuse(p->error, FG_BAD_INPUT, 400, name, "invalid_type",
                         "'%s' must be %s, not %s", name, want,
                         fg_json_type_name(fg_json_type_of(node)));
}

static fg_status wrong_value(parse *p, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static fg_status wrong_value(parse *p, const char *name, const char *format, ...)
{
    char text[FG_ERROR_TEXT_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return fg_api_refuse(p->error, FG_BAD_INPUT, 400, name, "invalid_value", "%s", text);
}

static fg_status out_of_range(parse *p, const param *row)
{
    return fg_api_refuse(p->error, FG_BAD_INPUT, 400, row->name, "invalid_value",
                         row->rule == NUMBER_ABOVE ? "'%s' must be above %.0f and at most %.0f"
                                                   : "'%s' must be between %.0f and %.0f",
                         row->name, row->least, row->most);
}

/* An integer, or a real number that is one: some clients send 1.0 for 1. */
static bool read_integer(const fg_json_node *node, int64_t *value_out)
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

static bool string_is(const fg_json_node *node, const char *text)
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
        return ((neutral & IS_NONE) != 0 && string_is(node, "none")) ||
               ((neutral & IS_AUTO) != 0 && string_is(node, "auto")) ||
               ((neutral & IS_EMPTY) != 0 && fg_json_string(node, &length) && length == 0);
    case FG_JSON_ARRAY:
        return ((neutral & IS_EMPTY) != 0 && fg_json_size(node) == 0) ||
               ((neutral & IS_TEXT_ONLY) != 0 && fg_json_size(node) == 1 &&
                string_is(fg_json_at(node, 0), "text"));
    case FG_JSON_OBJECT:
        return ((neutral & IS_EMPTY) != 0 && fg_json_size(node) == 0) ||
               ((neutral & IS_TEXT_TYPE) != 0 && string_is(fg_json_get(node, "type"), "text"));
    default:
        return true;
    }
}

static fg_status read_value(parse *p, size_t id, const fg_json_node *node)
{
    const param *row = &params[id];
    double number;
    switch (row->rule) {
    case NUMBER:
    case NUMBER_ABOVE:
        if (!fg_json_number(node, &number)) {
            return wrong_type(p, row->name, "a number", node);
        }
        /* Judged as the float that the sampler will see: 1e-60 is 0 there. */
        p->number[id] = (float)number;
        if (!(p->number[id] >= row->least && p->number[id] <= row->most) ||
            (row->rule == NUMBER_ABOVE && p->number[id] <= row->least)) {
            return out_of_range(p, row);
        }
        return FG_OK;
    case INTEGER:
        if (!read_integer(node, &p->integer[id])) {
            return wrong_type(p, row->name, "an integer", node);
        }
        if ((double)p->integer[id] < row->least || (double)p->integer[id] > row->most) {
            return out_of_range(p, row);
        }
        return FG_OK;
    case FLAG:
        return fg_json_bool(node, &p->flag[id]) ? FG_OK
                                                : wrong_type(p, row->name, "a boolean", node);
    case TEXT:
        return fg_json_is(node, FG_JSON_STRING) ? FG_OK
                                                : wrong_type(p, row->name, "a string", node);
    case NEUTRAL:
        return is_neutral(node, row->neutral)
                   ? FG_OK
                   : fg_api_refuse(p->error, FG_BAD_INPUT, 400, row->name, "unsupported_parameter",
                                   "'%s' is not supported by this server yet", row->name);
    case OWN:
        return FG_OK;
    }
    return FG_OK;
}

/* Every row of the table against the body; null means absent. */
static fg_status read_params(parse *p)
{
    uint8_t format = p->kind == FG_API_CHAT ? FOR_CHAT : FOR_COMPLETION;
    for (size_t i = 0; i < PARAM_COUNT; i++) {
        const param *row = &params[i];
        const fg_json_node *node = fg_json_get(p->root, row->name);
        bool given =
            (row->formats & format) != 0 && node != NULL && !fg_json_is(node, FG_JSON_NULL);
        if (i < P_VALUE_COUNT) {
            p->given[i] = given;
            p->number[i] = (float)row->fallback;
            p->integer[i] = (int64_t)row->fallback;
        }
        if (!given) {
            continue;
        }
        fg_status status = read_value(p, i, node);
        if (status != FG_OK) {
            return status;
        }
    }
    return FG_OK;
}

static const fg_json_node *value_of(const parse *p, param_id id)
{
    return p->given[id] ? fg_json_get(p->root, params[id].name) : NULL;
}

static fg_status read_model(parse *p)
{
    const char *name = p->server->model_name;
    if (p->given[P_MODEL]) {
        name = fg_json_string(value_of(p, P_MODEL), NULL);
        if (strcmp(name, p->server->model_name) != 0) {
            return fg_api_refuse(p->error, FG_BAD_INPUT, 404, "model", "model_not_found",
                                 "the model '%.128s' does not exist", name);
        }
    }
    p->request->model = fg_arena_strndup(p->arena, name, strlen(name));
    return p->request->model == NULL ? no_memory(p) : FG_OK;
}

/* `stop`: a string, or a list of up to FG_LIMIT_STOP_STRINGS. */
static fg_status read_stop(parse *p)
{
    const fg_json_node *node = value_of(p, P_STOP);
    bool single = fg_json_is(node, FG_JSON_STRING);
    if (node == NULL) {
        return FG_OK;
    }
    if (!single && !fg_json_is(node, FG_JSON_ARRAY)) {
        return wrong_type(p, "stop", "a string or an array of strings", node);
    }
    size_t count = single ? 1 : fg_json_size(node);
    if (count > FG_LIMIT_STOP_STRINGS) {
        return wrong_value(p, "stop", "'stop' has %zu strings; at most %u are allowed", count,
                           FG_LIMIT_STOP_STRINGS);
    }
    const char **strings = fg_arena_array(p->arena, count, sizeof *strings);
    size_t *lengths = fg_arena_array(p->arena, count, sizeof *lengths);
    for (size_t i = 0; i < count; i++) {
        const fg_json_node *item = single ? node : fg_json_at(node, i);
        size_t length;
        const char *text = fg_json_string(item, &length);
        if (text == NULL) {
            return wrong_type(p, "stop", "a string or an array of strings", item);
        }
        if (length == 0 || length > FG_LIMIT_STOP_BYTES) {
            return wrong_value(p, "stop", "a stop string must have 1 to %u bytes",
                               FG_LIMIT_STOP_BYTES);
        }
        char *copy = fg_arena_strndup(p->arena, text, length);
        if (strings == NULL || lengths == NULL || copy == NULL) {
            return no_memory(p);
        }
        strings[i] = copy;
        lengths[i] = length;
    }
    p->request->stops = strings;
    p->request->stop_lengths = lengths;
    p->request->stop_count = count;
    return FG_OK;
}

static fg_status read_stream_options(parse *p)
{
    const fg_json_node *node = value_of(p, P_STREAM_OPTIONS);
    if (node == NULL) {
        return FG_OK;
    }
    if (!fg_json_is(node, FG_JSON_OBJECT)) {
        return wrong_type(p, "stream_options", "an object", node);
    }
    if (!p->request->stream) {
        return wrong_value(p, "stream_options", "'stream_options' needs 'stream': true");
    }
    static const char *const names[] = { "include_usage", "continuous_usage_stats" };
    for (size_t i = 0; i < 2; i++) {
        const fg_json_node *option = fg_json_get(node, names[i]);
        bool value = false;
        char full[64];
        snprintf(full, sizeof full, "stream_options.%s", names[i]);
        if (option != NULL && !fg_json_is(option, FG_JSON_NULL) && !fg_json_bool(option, &value)) {
            return wrong_type(p, full, "a boolean", option);
        }
        if (i == 0) {
            p->request->include_usage = value;
        } else if (value) {
            return fg_api_refuse(p->error, FG_BAD_INPUT, 400, full, "unsupported_parameter",
                                 "'%s' is not supported by this server yet", full);
        }
    }
    return FG_OK;
}

/* The text of a message: a string, or an array of text parts, which are joined by line ends. */
static fg_status read_content(parse *p, const fg_json_node *node, const char *name,
                              fg_chat_message *message)
{
    if (fg_json_is(node, FG_JSON_STRING)) {
        message->content = fg_json_string(node, &message->content_length);
        return FG_OK;
    }
    if (!fg_json_is(node, FG_JSON_ARRAY)) {
        return wrong_type(p, name, "a string or an array of text parts", node);
    }
    size_t count = fg_json_size(node);
    size_t total = 0;
    for (size_t i = 0; i < count; i++) {
        const fg_json_node *part = fg_json_at(node, i);
        size_t length = 0;
        if (!fg_json_is(part, FG_JSON_OBJECT)) {
            return wrong_type(p, name, "an array of text parts", part);
        }
        if (!string_is(fg_json_get(part, "type"), "text")) {
            return wrong_value(p, name, "only content parts of type 'text' are supported");
        }
        if (fg_json_string(fg_json_get(part, "text"), &length) == NULL) {
            return wrong_type(p, name, "text parts with a string 'text'",
                              fg_json_get(part, "text"));
        }
        total += length + 1; /* both bounded by the body */
    }
    char *joined = fg_arena_alloc(p->arena, total + 1);
    if (joined == NULL) {
        return no_memory(p);
    }
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        size_t length;
        const char *text = fg_json_string(fg_json_get(fg_json_at(node, i), "text"), &length);
        if (i > 0) {
            joined[at++] = '\n';
        }
        memcpy(joined + at, text, length);
        at += length;
    }
    message->content = joined;
    message->content_length = at;
    return FG_OK;
}

static fg_status read_message(parse *p, const fg_json_node *node, size_t index,
                              fg_chat_message *message)
{
    static const char *const roles[][2] = { { "system", "system" },
                                            { "developer", "system" },
                                            { "user", "user" },
                                            { "assistant", "assistant" } };
    char name[48];
    snprintf(name, sizeof name, "messages[%zu]", index);
    if (!fg_json_is(node, FG_JSON_OBJECT)) {
        return wrong_type(p, name, "an object", node);
    }
    snprintf(name, sizeof name, "messages[%zu].role", index);
    const fg_json_node *role = fg_json_get(node, "role");
    if (!fg_json_is(role, FG_JSON_STRING)) {
        return wrong_type(p, name, "a string", role);
    }
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
        if (string_is(role, roles[i][0])) {
            message->role = roles[i][1];
            message->role_length = strlen(roles[i][1]);
        }
    }
    if (message->role == NULL) {
        return wrong_value(p, name,
                           "'%.32s' is not a role: use system, developer, user or assistant",
                           fg_json_string(role, NULL));
    }
    static const char *const calls[] = { "tool_calls", "function_call" };
    for (size_t i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "messages[%zu].%s", index, calls[i]);
        if (!is_neutral(fg_json_get(node, calls[i]), IS_EMPTY)) {
            return fg_api_refuse(p->error, FG_BAD_INPUT, 400, name, "unsupported_parameter",
                                 "'%s' is not supported by this server yet", name);
        }
    }
    snprintf(name, sizeof name, "messages[%zu].content", index);
    return read_content(p, fg_json_get(node, "content"), name, message);
}

static fg_status too_long(parse *p, const char *name, const char *about, size_t count)
{
    return fg_api_refuse(p->error, FG_BAD_INPUT, 400, name, "context_length_exceeded",
                         "this server's context is %" PRIu32 " tokens and the prompt has %s%zu; "
                         "shorten it",
                         p->server->context_max, about, count);
}

/* Room for the ids of a client's `length` bytes and a template's `extra` ones: every token but BOS and
 * a space in front stands for at least one byte. A text that cannot fit even in the longest tokens is
 * refused before it is encoded. */
static fg_status take_ids(parse *p, const char *name, size_t length, size_t extra,
                          uint32_t **ids_out, size_t *capacity_out)
{
    size_t piece_max = fg_tokenizer_piece_max(p->server->tokenizer);
    size_t least = piece_max == 0 ? length : length / piece_max;
    if (least > p->server->context_max) {
        return too_long(p, name, "at least ", least);
    }
    *capacity_out = length + extra + 16;
    *ids_out = fg_mem_array(*capacity_out, sizeof(uint32_t));
    return *ids_out == NULL ? no_memory(p) : FG_OK;
}

/* Moves `ids`, which it frees, into the request. */
static fg_status give_ids(parse *p, const char *name, uint32_t *ids, size_t count)
{
    fg_status status = FG_OK;
    uint32_t *kept = NULL;
    if (count == 0) {
        status = wrong_value(p, name, "the prompt is empty, and this model has no BOS token");
    } else if (count >= p->server->context_max) {
        status = too_long(p, name, "", count);
    } else if ((kept = fg_arena_array(p->arena, count, sizeof *kept)) == NULL) {
        status = no_memory(p);
    } else {
        memcpy(kept, ids, count * sizeof *kept);
        p->request->tokens = kept;
        p->request->token_count = (uint32_t)count;
    }
    fg_mem_free(ids);
    return status;
}

/* What the tokenizer or the chat template answered, once `ids` are filled or not. */
static fg_status take_encoded(parse *p, const char *name, fg_status status, const fg_error *err,
                              uint32_t *ids, size_t count)
{
    if (status == FG_OK) {
        return give_ids(p, name, ids, count);
    }
    fg_mem_free(ids);
    return status == FG_BAD_INPUT ? wrong_value(p, name, "%s", err->text) : no_memory(p);
}

static fg_status encode_prompt(parse *p, const char *text, size_t length)
{
    fg_error err = { 0 };
    uint32_t *ids = NULL;
    size_t capacity = 0;
    size_t count = 0;
    fg_encode_options options = { .add_bos = true };
    fg_status status = take_ids(p, "prompt", length, 0, &ids, &capacity);
    if (status != FG_OK) {
        return status;
    }
    status = fg_tokenizer_encode(p->server->tokenizer, text, length, options, ids, capacity, &count,
                                 &err);
    return take_encoded(p, "prompt", status, &err, ids, count);
}

static fg_status encode_chat(parse *p, const fg_chat_message *messages, size_t count)
{
    fg_error err = { 0 };
    uint32_t *ids = NULL;
    size_t capacity = 0;
    size_t id_count = 0;
    size_t length = 0;
    for (size_t i = 0; i < count; i++) {
        length += messages[i].content_length; /* together bounded by the body */
    }
    fg_status status = take_ids(p, "messages", length,
                                TEMPLATE_BYTES + count * TEMPLATE_MESSAGE_BYTES, &ids, &capacity);
    if (status != FG_OK) {
        return status;
    }
    status = fg_chat_encode(p->server->chat, p->server->tokenizer, messages, count, true, ids,
                            capacity, &id_count, &err);
    return take_encoded(p, "messages", status, &err, ids, id_count);
}

static fg_status read_messages(parse *p)
{
    const fg_json_node *node = value_of(p, P_MESSAGES);
    if (node == NULL) {
        return fg_api_refuse(p->error, FG_BAD_INPUT, 400, "messages", "missing_required_parameter",
                             "'messages' is required");
    }
    if (!fg_json_is(node, FG_JSON_ARRAY)) {
        return wrong_type(p, "messages", "an array", node);
    }
    size_t count = fg_json_size(node);
    if (count == 0 || count > FG_LIMIT_MESSAGES) {
        return wrong_value(p, "messages", "'messages' must have 1 to %u messages",
                           FG_LIMIT_MESSAGES);
    }
    fg_chat_message *messages = fg_arena_array(p->arena, count, sizeof *messages);
    if (messages == NULL) {
        return no_memory(p);
    }
    for (size_t i = 0; i < count; i++) {
        fg_status status = read_message(p, fg_json_at(node, i), i, &messages[i]);
        if (status != FG_OK) {
            return status;
        }
    }
    return encode_chat(p, messages, count);
}

static fg_status read_token_ids(parse *p, const fg_json_node *node)
{
    size_t count = fg_json_size(node);
    uint32_t vocab_size = fg_tokenizer_vocab_size(p->server->tokenizer);
    if (count >= p->server->context_max) {
        return too_long(p, "prompt", "", count);
    }
    uint32_t *ids = fg_mem_array(count, sizeof *ids);
    if (ids == NULL) {
        return no_memory(p);
    }
    for (size_t i = 0; i < count; i++) {
        int64_t id = -1;
        if (!fg_json_integer(fg_json_at(node, i), &id) || id < 0 || id >= vocab_size) {
            fg_mem_free(ids);
            return wrong_value(p, "prompt", "prompt[%zu] is not a token id below %" PRIu32, i,
                               vocab_size);
        }
        ids[i] = (uint32_t)id;
    }
    return give_ids(p, "prompt", ids, count);
}

/* A string, a list of token ids, or a list of one of either. */
static fg_status read_prompt(parse *p)
{
    const fg_json_node *node = value_of(p, P_PROMPT);
    if (node == NULL) {
        return fg_api_refuse(p->error, FG_BAD_INPUT, 400, "prompt", "missing_required_parameter",
                             "'prompt' is required");
    }
    if (fg_json_is(node, FG_JSON_ARRAY)) {
        const fg_json_node *first = fg_json_at(node, 0);
        fg_json_type type = fg_json_type_of(first);
        if (type == FG_JSON_INTEGER) {
            return read_token_ids(p, node);
        }
        if (type == FG_JSON_ABSENT) {
            return wrong_value(p, "prompt", "'prompt' is an empty array");
        }
        if ((type == FG_JSON_STRING || type == FG_JSON_ARRAY) && fg_json_size(node) > 1) {
            return fg_api_refuse(p->error, FG_BAD_INPUT, 400, "prompt", "unsupported_parameter",
                                 "several prompts in one request are not supported yet");
        }
        if (type == FG_JSON_ARRAY) {
            return fg_json_size(first) == 0 ? wrong_value(p, "prompt", "'prompt' is an empty array")
                                            : read_token_ids(p, first);
        }
        node = first;
    }
    size_t length;
    const char *text = fg_json_string(node, &length);
    if (text == NULL) {
        return wrong_type(p, "prompt", "a string or an array of token ids", node);
    }
    return encode_prompt(p, text, length);
}

/* max_tokens: what the client asks for must fit; without a wish, what is left, up to the default. */
static fg_status resolve_max_tokens(parse *p)
{
    fg_request *request = p->request;
    uint32_t room = p->server->context_max - request->token_count;
    param_id id = p->given[P_MAX_COMPLETION_TOKENS] ? P_MAX_COMPLETION_TOKENS : P_MAX_TOKENS;
    if (!p->given[id]) {
        uint32_t wish = p->server->max_tokens_default;
        request->params.max_tokens = wish < room ? wish : room;
        return FG_OK;
    }
    if (p->integer[id] > room) {
        return fg_api_refuse(
            p->error, FG_BAD_INPUT, 400, params[id].name, "context_length_exceeded",
            "this server's context is %" PRIu32 " tokens; the prompt has %" PRIu32
            " and '%s' asks for %" PRId64 " more: at most %" PRIu32 " are left",
            p->server->context_max, request->token_count, params[id].name, p->integer[id], room);
    }
    request->params.max_tokens = (uint32_t)p->integer[id];
    return FG_OK;
}

static void fill_sampling(parse *p, uint64_t drawn_seed)
{
    fg_request *request = p->request;
    float temperature = p->number[P_TEMPERATURE];
    request->params.temperature = temperature < TEMPERATURE_LEAST ? 0 : temperature;
    request->params.top_p = p->number[P_TOP_P];
    request->params.min_p = p->number[P_MIN_P];
    request->params.top_k = p->integer[P_TOP_K] < 0 ? 0 : (uint32_t)p->integer[P_TOP_K];
    request->params.seed = p->given[P_SEED] ? (uint64_t)p->integer[P_SEED] : drawn_seed;
    request->params.ignore_eos = p->flag[P_IGNORE_EOS];
    request->params.want_digests = p->flag[P_LOGITS_DIGEST];
    request->logits_digest = p->flag[P_LOGITS_DIGEST];
    request->return_token_ids = p->flag[P_RETURN_TOKEN_IDS];
    request->stream = p->flag[P_STREAM];
}

static fg_status read_request(parse *p, const fg_api_call *call)
{
    fg_request *request = p->request;
    if (!fg_json_is(p->root, FG_JSON_OBJECT)) {
        return fg_api_refuse(p->error, FG_BAD_INPUT, 400, NULL, "invalid_type",
                             "the body must be a JSON object");
    }
    fg_status status = read_params(p);
    if (status != FG_OK) {
        return status;
    }
    fill_sampling(p, call->seed);
    request->created_s = call->created_s;
    request->fingerprint = p->server->fingerprint;
    request->id = fg_arena_strndup(p->arena, call->id, strlen(call->id));
    if (request->id == NULL) {
        return no_memory(p);
    }
    fg_status (*const steps[])(parse *) = {
        read_model,          read_stop,
        read_stream_options, p->kind == FG_API_CHAT ? read_messages : read_prompt,
        resolve_max_tokens,
    };
    for (size_t i = 0; i < sizeof steps / sizeof steps[0] && status == FG_OK; i++) {
        status = steps[i](p);
    }
    return status;
}

fg_status fg_api_parse(const fg_api_server *server, fg_api_kind kind, const char *body,
                       size_t body_bytes, const fg_api_call *call, fg_arena *arena,
                       fg_request *request_out, fg_api_error *error_out)
{
    fg_json *json;
    fg_error err = { 0 };
    fg_status status = fg_json_parse(body, body_bytes, &json, &err);
    if (status != FG_OK) {
        return status == FG_BAD_INPUT
                   ? fg_api_refuse(error_out, status, 400, NULL, "invalid_json",
                                   "the body is not valid JSON: %.240s", err.text)
                   : fg_api_refuse(error_out, FG_AGAIN, 503, NULL, NULL,
                                   "out of memory for the request");
    }
    fg_request request = { .kind = kind, .arena = arena };
    parse p = {
        .server = server,
        .kind = kind,
        .arena = arena,
        .root = fg_json_root(json),
        .request = &request,
        .error = error_out,
    };
    status = read_request(&p, call);
    fg_json_destroy(json);
    if (status == FG_OK) {
        *request_out = request;
    }
    return status;
}
