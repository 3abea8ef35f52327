#include "router/api.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/limits.h"
#include "router/api_internal.h"

/* Below this temperature the answer is greedy: dividing logits by less only overflows. */
#define TEMPERATURE_LEAST 1e-5f

/* Each token of an answer is compared with all of them. */
enum { STOP_IDS_MAX = 128 };

fg_status fg_api_read_model(fg_api_reading *r)
{
    const char *name = r->server->model_name;
    if (r->given[FG_PARAM_MODEL]) {
        name = fg_json_string(fg_api_value(r, FG_PARAM_MODEL), NULL);
        if (strcmp(name, r->server->model_name) != 0) {
            return fg_api_refuse(r->error, FG_BAD_INPUT, 404, "model", "model_not_found",
                                 "the model '%.128s' does not exist", name);
        }
    }
    r->request->model = fg_arena_strndup(r->arena, name, strlen(name));
    return r->request->model == NULL ? fg_api_no_memory(r) : FG_OK;
}

/* `stop`: a string, or a list of up to FG_LIMIT_STOP_STRINGS. */
static fg_status read_stop(fg_api_reading *r)
{
    const fg_json_node *node = fg_api_value(r, FG_PARAM_STOP);
    bool single = fg_json_is(node, FG_JSON_STRING);
    if (node == NULL) {
        return FG_OK;
    }
    if (!single && !fg_json_is(node, FG_JSON_ARRAY)) {
        return fg_api_wrong_type(r, "stop", "a string or an array of strings", node);
    }
    size_t count = single ? 1 : fg_json_size(node);
    if (count > FG_LIMIT_STOP_STRINGS) {
        return fg_api_wrong_value(r, "stop", "'stop' has %zu strings; at most %u are allowed",
                                  count, FG_LIMIT_STOP_STRINGS);
    }
    const char **strings = fg_arena_array(r->arena, count, sizeof *strings);
    size_t *lengths = fg_arena_array(r->arena, count, sizeof *lengths);
    for (size_t i = 0; i < count; i++) {
        const fg_json_node *item = single ? node : fg_json_at(node, i);
        size_t length;
        const char *text = fg_json_string(item, &length);
        if (text == NULL) {
            return fg_api_wrong_type(r, "stop", "a string or an array of strings", item);
        }
        if (length == 0 || length > FG_LIMIT_STOP_BYTES) {
            return fg_api_wrong_value(r, "stop", "a stop string must have 1 to %u bytes",
                                      FG_LIMIT_STOP_BYTES);
        }
        char *copy = fg_arena_strndup(r->arena, text, length);
        if (strings == NULL || lengths == NULL || copy == NULL) {
            return fg_api_no_memory(r);
        }
        strings[i] = copy;
        lengths[i] = length;
    }
    r->request->stops = strings;
    r->request->stop_lengths = lengths;
    r->request->stop_count = count;
    return FG_OK;
}

/* `stop_token_ids`. */
static fg_status read_stop_ids(fg_api_reading *r)
{
    static const char name[] = "stop_token_ids";
    const fg_json_node *node = fg_api_value(r, FG_PARAM_STOP_TOKEN_IDS);
    uint32_t vocab_size = fg_tokenizer_vocab_size(r->server->tokenizer);
    if (node == NULL) {
        return FG_OK;
    }
    if (!fg_json_is(node, FG_JSON_ARRAY)) {
        return fg_api_wrong_type(r, name, "an array of token ids", node);
    }
    size_t count = fg_json_size(node);
    if (count > STOP_IDS_MAX) {
        return fg_api_wrong_value(r, name, "'%s' can have up to %d tokens", name, STOP_IDS_MAX);
    }
    uint32_t *ids = fg_arena_array(r->arena, count + 1, sizeof *ids);
    if (ids == NULL) {
        return fg_api_no_memory(r);
    }
    for (size_t i = 0; i < count; i++) {
        int64_t id = -1;
        if (!fg_api_read_integer(fg_json_at(node, i), &id) || id < 0 || id >= vocab_size) {
            return fg_api_wrong_value(r, name, "%s[%zu] is not a token id below %" PRIu32, name, i,
                                      vocab_size);
        }
        ids[i] = (uint32_t)id;
    }
    r->request->stop_ids = ids;
    r->request->stop_id_count = count;
    return FG_OK;
}

/* `priority`: a class as a number, the lower the earlier, or as a word. */
static fg_status read_priority(fg_api_reading *r)
{
    static const struct {
        const char *name;
        int32_t value;
    } classes[] = { { "high", FG_PRIORITY_HIGH },
                    { "normal", FG_PRIORITY_NORMAL },
                    { "low", FG_PRIORITY_LOW } };
    const fg_json_node *node = fg_api_value(r, FG_PARAM_PRIORITY);
    int64_t value;
    if (node == NULL) {
        return FG_OK;
    }
    if (fg_api_read_integer(node, &value)) {
        if (value < FG_PRIORITY_HIGH || value > FG_PRIORITY_LOW) {
            return fg_api_wrong_value(
                r, "priority", "'priority' must be -1 (goes first), 0 or 1, not %" PRId64, value);
        }
        r->request->params.priority = (int32_t)value;
        return FG_OK;
    }
    if (!fg_json_is(node, FG_JSON_STRING)) {
        return fg_api_wrong_type(r, "priority", "-1, 0, 1, 'high', 'normal' or 'low'", node);
    }
    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++) {
        if (fg_api_string_is(node, classes[i].name)) {
            r->request->params.priority = classes[i].value;
            return FG_OK;
        }
    }
    return fg_api_wrong_value(r, "priority",
                              "'%.32s' is not a priority: use -1, 0, 1, 'high', 'normal' or 'low'",
                              fg_json_string(node, NULL));
}

/* `prefix_cache` and `cache_salt`. */
static fg_status read_cache(fg_api_reading *r)
{
    static const struct {
        const char *name;
        fg_cache_mode mode;
    } modes[] = { { "auto", FG_CACHE_AUTO },
                  { "force", FG_CACHE_FORCE },
                  { "disable", FG_CACHE_DISABLE } };
    const fg_json_node *mode = fg_api_value(r, FG_PARAM_PREFIX_CACHE);
    const fg_json_node *salt = fg_api_value(r, FG_PARAM_CACHE_SALT);
    fg_wire_params *params = &r->request->params;
    bool known = mode == NULL;
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        if (fg_api_string_is(mode, modes[i].name)) {
            params->cache_mode = modes[i].mode;
            known = true;
        }
    }
    if (!known) {
        return fg_api_wrong_value(r, "prefix_cache",
                                  "'%.32s' is not a cache mode: use 'auto', 'force' or 'disable'",
                                  fg_json_string(mode, NULL));
    }
    params->pin_ms = (uint32_t)r->integer[FG_PARAM_CACHE_TTL] * 1000;
    if (salt != NULL) {
        size_t length;
        const char *text = fg_json_string(salt, &length);
        if (length == 0 || length > FG_LIMIT_CACHE_SALT_BYTES) {
            return fg_api_wrong_value(r, "cache_salt", "'cache_salt' must have 1 to %u bytes",
                                      FG_LIMIT_CACHE_SALT_BYTES);
        }
        fg_digest128 digest = fg_hash128(text, length, 0);
        params->salt_high = digest.high;
        /* 0, 0 means that there is no salt. */
        params->salt_low = digest.low == 0 && digest.high == 0 ? 1 : digest.low;
    }
    return FG_OK;
}

/* Whose it is: who has a key of its own cannot pass for somebody else, or for many. */
static void read_tenant(fg_api_reading *r)
{
    const fg_service *service = r->server->service;
    const fg_json_node *user = fg_api_value(r, FG_PARAM_USER);
    bool keyed = r->caller != NULL && r->caller[0] != '\0';
    if (service == NULL || (user == NULL && !keyed)) {
        return;
    }
    size_t length = keyed ? strlen(r->caller) : 0;
    const char *name = keyed ? r->caller : fg_json_string(user, &length);
    r->request->tenant = fg_service_tenant(service, name, length);
}

/* What it was promised. */
static fg_status read_service(fg_api_reading *r)
{
    const fg_service *service = r->server->service;
    const fg_json_node *class = fg_api_value(r, FG_PARAM_SLO);
    read_tenant(r);
    const char *wanted = class == NULL ? NULL : fg_json_string(class, NULL);
    const fg_admit_slo *slo =
        service == NULL ? fg_admit_find_class(NULL, 0, wanted)
                        : fg_admit_find_class(service->classes, service->class_count, wanted);
    if (slo == NULL) {
        return fg_api_wrong_value(r, "slo", "'%.64s' is not a class of service here (--slo)",
                                  wanted);
    }
    r->request->slo = *slo;
    if (r->given[FG_PARAM_DEADLINE]) {
        r->request->deadline_ns = (uint64_t)r->integer[FG_PARAM_DEADLINE] * 1000000u;
    }
    return FG_OK;
}

static fg_status read_stream_options(fg_api_reading *r)
{
    const fg_json_node *node = fg_api_value(r, FG_PARAM_STREAM_OPTIONS);
    if (node == NULL) {
        return FG_OK;
    }
    if (!fg_json_is(node, FG_JSON_OBJECT)) {
        return fg_api_wrong_type(r, "stream_options", "an object", node);
    }
    if (!r->request->stream) {
        return fg_api_wrong_value(r, "stream_options", "'stream_options' needs 'stream': true");
    }
    static const char *const names[] = { "include_usage", "continuous_usage_stats" };
    for (size_t i = 0; i < 2; i++) {
        const fg_json_node *option = fg_json_get(node, names[i]);
        bool value = false;
        char full[64];
        snprintf(full, sizeof full, "stream_options.%s", names[i]);
        if (option != NULL && !fg_json_is(option, FG_JSON_NULL) && !fg_json_bool(option, &value)) {
            return fg_api_wrong_type(r, full, "a boolean", option);
        }
        if (i == 0) {
            r->request->include_usage = value;
        } else if (value) {
            return fg_api_unsupported(r, full);
        }
    }
    return FG_OK;
}

/* max_tokens: what the client asks for must fit; without a wish, what is left, up to the default. */
static fg_status resolve_max_tokens(fg_api_reading *r)
{
    fg_request *request = r->request;
    uint32_t longest = 0; /* of the prompts */
    for (uint32_t i = 0; i < fg_request_prompts(request); i++) {
        uint32_t count = fg_request_prompt(request, i).token_count;
        longest = count > longest ? count : longest;
    }
    uint32_t room = r->server->context_max - longest;
    fg_api_param id = r->given[FG_PARAM_MAX_COMPLETION_TOKENS] ? FG_PARAM_MAX_COMPLETION_TOKENS
                                                               : FG_PARAM_MAX_TOKENS;
    const char *name = fg_api_param_name(id);
    if (!r->given[id]) {
        uint32_t wish = r->server->max_tokens_default;
        request->params.max_tokens = wish < room ? wish : room;
        return FG_OK;
    }
    if (r->integer[id] > room) {
        return fg_api_refuse(r->error, FG_BAD_INPUT, 400, name, "context_length_exceeded",
                             "this server's context is %" PRIu32 " tokens; the prompt has %" PRIu32
                             " and '%s' asks for %" PRId64 " more: at most %" PRIu32 " are left",
                             r->server->context_max, longest, name, r->integer[id], room);
    }
    if (r->integer[id] == 0 && !request->echo) {
        return fg_api_wrong_value(r, name,
                                  r->kind == FG_API_CHAT
                                      ? "'%s' must be between 1 and 2147483647"
                                      : "'%s' must be between 1 and 2147483647; 0 needs 'echo': "
                                        "true",
                                  name);
    }
    /* Nobody works for no token: one is chosen, and not shown. */
    request->no_answer = r->integer[id] == 0;
    request->params.max_tokens = request->no_answer ? 1 : (uint32_t)r->integer[id];
    return FG_OK;
}

static void fill_sampling(fg_api_reading *r, uint64_t drawn_seed)
{
    fg_request *request = r->request;
    float temperature = r->number[FG_PARAM_TEMPERATURE];
    request->params.temperature = temperature < TEMPERATURE_LEAST ? 0 : temperature;
    request->params.top_p = r->number[FG_PARAM_TOP_P];
    request->params.min_p = r->number[FG_PARAM_MIN_P];
    request->params.top_k =
        r->integer[FG_PARAM_TOP_K] < 0 ? 0 : (uint32_t)r->integer[FG_PARAM_TOP_K];
    request->params.seed =
        r->given[FG_PARAM_SEED] ? (uint64_t)r->integer[FG_PARAM_SEED] : drawn_seed;
    request->params.ignore_eos = r->flag[FG_PARAM_IGNORE_EOS];
    request->params.want_digests = r->flag[FG_PARAM_LOGITS_DIGEST];
    request->logits_digest = r->flag[FG_PARAM_LOGITS_DIGEST];
    request->show_stop = r->flag[FG_PARAM_INCLUDE_STOP];
    request->return_token_ids = r->flag[FG_PARAM_RETURN_TOKEN_IDS];
    request->return_timings = r->flag[FG_PARAM_RETURN_TIMINGS];
    request->stream = r->flag[FG_PARAM_STREAM];
    request->echo = r->flag[FG_PARAM_ECHO];
    request->choice_count = (uint32_t)r->integer[FG_PARAM_N];
}

/* The choices of one request find one another by their family; nobody else may have the same. */
static void name_family(fg_api_reading *r)
{
    fg_request *request = r->request;
    if (request->choice_count > 1) {
        uint64_t family = fg_hash64(request->id, strlen(request->id), request->params.seed);
        request->params.family = family == 0 ? 1 : family;
    }
}

/* What is read after the single values, in turn. */
static fg_status run_steps(fg_api_reading *r)
{
    typedef fg_status (*step)(fg_api_reading *);
    const step first[] = { fg_api_read_model, read_priority, read_cache, read_service };
    const step answer[] = {
        read_stop,           read_stop_ids,
        read_stream_options, r->kind == FG_API_CHAT ? fg_api_read_messages : fg_api_read_prompt,
        resolve_max_tokens,  fg_api_read_shape,
        fg_api_read_grammar, fg_api_read_reasoning,
        fg_api_read_echo,
    };
    fg_status status = FG_OK;
    for (size_t i = 0; i < sizeof first / sizeof first[0] && status == FG_OK; i++) {
        status = first[i](r);
    }
    if (r->kind == FG_API_EMBEDDING) {
        return status == FG_OK ? fg_api_read_input(r) : status;
    }
    for (size_t i = 0; i < sizeof answer / sizeof answer[0] && status == FG_OK; i++) {
        status = answer[i](r);
    }
    return status;
}

static fg_status read_request(fg_api_reading *r, const fg_api_call *call)
{
    fg_request *request = r->request;
    if (!fg_json_is(r->root, FG_JSON_OBJECT)) {
        return fg_api_refuse(r->error, FG_BAD_INPUT, 400, NULL, "invalid_type",
                             "the body must be a JSON object");
    }
    fg_status status = fg_api_read_params(r);
    if (status != FG_OK) {
        return status;
    }
    fill_sampling(r, call->seed);
    request->created_s = call->created_s;
    request->fingerprint = r->server->fingerprint;
    request->id = fg_arena_strndup(r->arena, call->id, strlen(call->id));
    if (request->id == NULL) {
        return fg_api_no_memory(r);
    }
    name_family(r);
    r->caller = call->caller;
    return run_steps(r);
}

fg_status fg_api_parse_json(const char *body, size_t body_bytes, size_t values_max,
                            fg_json **json_out, fg_api_error *error_out)
{
    fg_error err = { 0 };
    fg_status status = fg_json_parse_up_to(body, body_bytes, values_max, json_out, &err);
    if (status == FG_BAD_INPUT) {
        return fg_api_refuse(error_out, status, 400, NULL, "invalid_json",
                             "the body is not valid JSON: %.240s", err.text);
    }
    return status == FG_OK ? FG_OK
                           : fg_api_refuse(error_out, FG_AGAIN, 503, NULL, NULL,
                                           "out of memory for the request");
}

fg_status fg_api_read(const fg_api_server *server, fg_api_kind kind, const fg_json_node *root,
                      const fg_api_call *call, fg_arena *arena, fg_request *request_out,
                      fg_api_error *error_out)
{
    fg_request request = { .kind = kind, .arena = arena };
    fg_api_reading reading = {
        .server = server,
        .kind = kind,
        .arena = arena,
        .root = root,
        .request = &request,
        .error = error_out,
        .text = fg_api_text_defaults(server->context_max),
        .now_s = call->created_s,
    };
    fg_status status = read_request(&reading, call);
    if (status == FG_OK) {
        *request_out = request;
    }
    return status;
}

fg_status fg_api_parse(const fg_api_server *server, fg_api_kind kind, const char *body,
                       size_t body_bytes, const fg_api_call *call, fg_arena *arena,
                       fg_request *request_out, fg_api_error *error_out)
{
    /* A prompt's tokens, twice over so that who is near hears of the context, and what else a request has. */
    size_t values_max = kind == FG_API_EMBEDDING
                            ? FG_LIMIT_JSON_VALUES
                            : 2 * (size_t)server->context_max + FG_API_OTHER_VALUES;
    fg_json *json;
    fg_status status = fg_api_parse_json(body, body_bytes, values_max, &json, error_out);
    size_t ids = 0;
    if (status == FG_BAD_INPUT && kind == FG_API_COMPLETION) {
        ids = fg_json_count_list(body, body_bytes, "prompt");
    }
    if (ids > values_max) {
        /* That many values are not looked at, but this is what is wrong with them. */
        fg_api_reading reading = { .server = server, .error = error_out };
        return fg_api_too_long(&reading, "prompt", "", ids);
    }
    if (status == FG_OK) {
        status = fg_api_read(server, kind, fg_json_root(json), call, arena, request_out, error_out);
        fg_json_destroy(json);
    }
    return status;
}
