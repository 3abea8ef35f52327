/* Messages and prompts: their texts become the token ids of a request. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/limits.h"
#include "common/base/mem.h"
#include "router/api_internal.h"

/* What a chat template may add: its default system message, and its frame around each message. */
enum { TEMPLATE_BYTES = 16 * 1024, TEMPLATE_MESSAGE_BYTES = 128 };
/* Tools and calls are written as JSON with whatever indents a template likes: more than any limit of ids. */
enum { TEMPLATE_TOOL_BYTES = 1 << 30 };

/* Who asks for a raw completion writes the template himself, its control tokens included. */
fg_api_text fg_api_text_defaults(uint32_t ids_end)
{
    return (fg_api_text){
        .add_bos = true, .parse_special = true, .add_generation_prompt = true, .ids_end = ids_end
    };
}

/* The text of a message: a string, or an array of text parts, which are joined by line ends. */
static fg_status read_content(fg_api_reading *r, const fg_json_node *node, const char *name,
                              fg_chat_message *message)
{
    if (fg_json_is(node, FG_JSON_STRING)) {
        message->content = fg_json_string(node, &message->content_length);
        return FG_OK;
    }
    if (!fg_json_is(node, FG_JSON_ARRAY)) {
        return fg_api_wrong_type(r, name, "a string or an array of text parts", node);
    }
    size_t count = fg_json_size(node);
    size_t total = 0;
    for (size_t i = 0; i < count; i++) {
        const fg_json_node *part = fg_json_at(node, i);
        size_t length = 0;
        if (!fg_json_is(part, FG_JSON_OBJECT)) {
            return fg_api_wrong_type(r, name, "an array of text parts", part);
        }
        if (!fg_api_string_is(fg_json_get(part, "type"), "text")) {
            return fg_api_wrong_value(r, name, "only content parts of type 'text' are supported");
        }
        if (fg_json_string(fg_json_get(part, "text"), &length) == NULL) {
            return fg_api_wrong_type(r, name, "text parts with a string 'text'",
                                     fg_json_get(part, "text"));
        }
        total += length + 1; /* both bounded by the body */
    }
    char *joined = fg_arena_alloc(r->arena, total + 1);
    if (joined == NULL) {
        return fg_api_no_memory(r);
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

static fg_status read_message(fg_api_reading *r, const fg_json_node *node, size_t index,
                              fg_chat_message *message)
{
    static const char *const roles[][2] = { { "system", "system" },
                                            { "developer", "system" },
                                            { "user", "user" },
                                            { "assistant", "assistant" },
                                            { "tool", "tool" } };
    char name[48];
    snprintf(name, sizeof name, "messages[%zu]", index);
    if (!fg_json_is(node, FG_JSON_OBJECT)) {
        return fg_api_wrong_type(r, name, "an object", node);
    }
    snprintf(name, sizeof name, "messages[%zu].role", index);
    const fg_json_node *role = fg_json_get(node, "role");
    if (!fg_json_is(role, FG_JSON_STRING)) {
        return fg_api_wrong_type(r, name, "a string", role);
    }
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
        if (fg_api_string_is(role, roles[i][0])) {
            message->role = roles[i][1];
            message->role_length = strlen(roles[i][1]);
        }
    }
    if (message->role == NULL) {
        bool old = fg_api_string_is(role, "function");
        return fg_api_wrong_value(
            r, name, "'%.32s' is not a role: use %s", fg_json_string(role, NULL),
            old ? "tool, with 'tool_call_id'" : "system, developer, user, assistant or tool");
    }
    fg_status status = fg_api_read_message_tools(r, node, index, message);
    if (status != FG_OK) {
        return status;
    }
    const fg_json_node *content = fg_json_get(node, "content");
    if (message->call_count > 0 && fg_api_is_empty(content)) {
        message->content = ""; /* templates add texts to it: null would be refused by some */
        return FG_OK;
    }
    snprintf(name, sizeof name, "messages[%zu].content", index);
    return read_content(r, content, name, message);
}

fg_status fg_api_too_long(fg_api_reading *r, const char *name, const char *about, size_t count)
{
    /* Where nothing is generated, more is taken than fits. */
    if (r->text.ids_end > r->server->context_max) {
        return fg_api_refuse(r->error, FG_BAD_INPUT, 400, name, "context_length_exceeded",
                             "this server's context is %" PRIu32 " tokens and '%s' has %s%zu; up "
                             "to %" PRIu32 " are counted: shorten it",
                             r->server->context_max, name, about, count, r->text.ids_end - 1);
    }
    return fg_api_refuse(r->error, FG_BAD_INPUT, 400, name, "context_length_exceeded",
                         "this server's context is %" PRIu32 " tokens and %s has %s%zu; "
                         "shorten it",
                         r->server->context_max,
                         r->kind == FG_API_EMBEDDING ? "a text of 'input'" : "the prompt", about,
                         count);
}

/* Room for the ids of a client's `length` bytes and a template's `extra` ones: every token but BOS and
 * a space in front stands for at least one byte. A text that cannot fit even in the longest tokens is
 * refused before it is encoded, and no more than FG_API_COUNTED_MORE beyond two contexts is counted: the loop has others
 * to serve. */
static fg_status take_ids(fg_api_reading *r, const char *name, size_t length, size_t extra,
                          uint32_t **ids_out, size_t *capacity_out)
{
    size_t piece_max = fg_tokenizer_piece_max(r->server->tokenizer);
    size_t least = piece_max == 0 ? length : length / piece_max;
    if (least > r->text.ids_end) {
        return fg_api_too_long(r, name, "at least ", least);
    }
    size_t most = 2 * (size_t)r->server->context_max + FG_API_COUNTED_MORE;
    *capacity_out = length + extra + 16 < most ? length + extra + 16 : most;
    *ids_out = fg_mem_array(*capacity_out, sizeof(uint32_t));
    return *ids_out == NULL ? fg_api_no_memory(r) : FG_OK;
}

/* Moves `ids`, which it frees, into the request. */
static fg_status give_ids(fg_api_reading *r, const char *name, uint32_t *ids, size_t count)
{
    fg_status status = FG_OK;
    uint32_t behind = r->text.is_whole ? fg_tokenizer_behind(r->server->tokenizer) : FG_TOKEN_NONE;
    bool ends = behind != FG_TOKEN_NONE;
    uint32_t *kept = NULL;
    count += ends;
    if (count == 0 && !r->text.may_be_empty) {
        status =
            fg_api_wrong_value(r, name, "the prompt is empty, and this model has no BOS token");
    } else if (count >= r->text.ids_end) {
        status = fg_api_too_long(r, name, "", count);
    } else if ((kept = fg_arena_array(r->arena, count, sizeof *kept)) == NULL) {
        status = fg_api_no_memory(r);
    } else {
        memcpy(kept, ids, (count - ends) * sizeof *kept);
        if (ends) {
            kept[count - 1] = behind;
        }
        r->request->tokens = kept;
        r->request->token_count = (uint32_t)count;
    }
    fg_mem_free(ids);
    return status;
}

/* What the tokenizer or the chat template answered, once `ids` are filled or not. */
static fg_status take_encoded(fg_api_reading *r, const char *name, fg_status status,
                              const fg_error *err, uint32_t *ids, size_t capacity, size_t count)
{
    if (status == FG_OK) {
        return give_ids(r, name, ids, count);
    }
    fg_mem_free(ids);
    if (status == FG_BAD_INPUT && count >= r->text.ids_end) {
        return fg_api_too_long(r, name, count == capacity ? "more than " : "at least ", count);
    }
    return status == FG_BAD_INPUT ? fg_api_wrong_value(r, name, "%s", err->text)
                                  : fg_api_no_memory(r);
}

fg_status fg_api_encode_text(fg_api_reading *r, const char *name, const char *text, size_t length)
{
    fg_error err = { 0 };
    uint32_t *ids = NULL;
    size_t capacity = 0;
    size_t count = 0;
    fg_encode_options options = { .add_bos = r->text.add_bos,
                                  .parse_special = r->text.parse_special,
                                  .refuse_at = r->text.ids_end };
    fg_status status = take_ids(r, name, length, 0, &ids, &capacity);
    if (status != FG_OK) {
        return status;
    }
    status = fg_tokenizer_encode(r->server->tokenizer, text, length, options, ids, capacity, &count,
                                 &err);
    return take_encoded(r, name, status, &err, ids, capacity, count);
}

/* An object for the template's eyes: `enable_thinking`, say. What Forge itself says cannot be said there. */
static fg_status read_variables(fg_api_reading *r, const fg_json_node **variables_out)
{
    static const char *const taken[] = { "messages",  "add_generation_prompt",
                                         "tools",     "documents",
                                         "bos_token", "eos_token" };
    static const char name[] = "chat_template_kwargs";
    const fg_json_node *node = fg_api_value(r, FG_PARAM_TEMPLATE_KWARGS);
    if (node != NULL && !fg_json_is(node, FG_JSON_OBJECT)) {
        return fg_api_wrong_type(r, name, "an object", node);
    }
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++) {
        if (fg_json_get(node, taken[i]) != NULL) {
            return fg_api_wrong_value(r, name, "'%s' cannot have a member '%s'", name, taken[i]);
        }
    }
    *variables_out = node;
    return FG_OK;
}

static fg_status encode_chat(fg_api_reading *r, const fg_chat_message *messages, size_t count)
{
    fg_error err = { 0 };
    uint32_t *ids = NULL;
    size_t capacity = 0;
    size_t id_count = 0;
    size_t length = 0;
    size_t extra = TEMPLATE_BYTES + count * TEMPLATE_MESSAGE_BYTES;
    for (size_t i = 0; i < count; i++) {
        length += messages[i].content_length; /* together bounded by the body */
        extra += messages[i].name.length + messages[i].reasoning.length;
        extra += messages[i].call_count > 0 ? TEMPLATE_TOOL_BYTES : 0;
    }
    extra += r->tools != NULL ? TEMPLATE_TOOL_BYTES : 0;
    fg_chat_options options = { .add_generation_prompt = r->text.add_generation_prompt,
                                .now_s = r->now_s,
                                .tools = r->tools,
                                .opened_out = &r->thought_opened };
    fg_status status = read_variables(r, &options.variables);
    if (status == FG_OK) {
        status = take_ids(r, "messages", length, extra, &ids, &capacity);
    }
    if (status != FG_OK) {
        return status;
    }
    status = fg_chat_encode(r->server->chat, r->server->tokenizer, messages, count, &options, ids,
                            capacity, r->text.ids_end, &id_count, &err);
    return take_encoded(r, "messages", status, &err, ids, capacity, id_count);
}

fg_status fg_api_read_messages(fg_api_reading *r)
{
    const fg_json_node *node = fg_api_value(r, FG_PARAM_MESSAGES);
    if (node == NULL) {
        return fg_api_refuse(r->error, FG_BAD_INPUT, 400, "messages", "missing_required_parameter",
                             "'messages' is required");
    }
    if (!fg_json_is(node, FG_JSON_ARRAY)) {
        return fg_api_wrong_type(r, "messages", "an array", node);
    }
    size_t count = fg_json_size(node);
    if (count == 0 || count > FG_LIMIT_MESSAGES) {
        return fg_api_wrong_value(r, "messages", "'messages' must have 1 to %u messages",
                                  FG_LIMIT_MESSAGES);
    }
    fg_chat_message *messages = fg_arena_array(r->arena, count, sizeof *messages);
    if (messages == NULL) {
        return fg_api_no_memory(r);
    }
    fg_status status = fg_api_read_tools(r);
    for (size_t i = 0; i < count && status == FG_OK; i++) {
        status = read_message(r, fg_json_at(node, i), i, &messages[i]);
    }
    if (status == FG_OK) {
        status = encode_chat(r, messages, count);
    }
    fg_api_forget_parsed(r);
    return status;
}

/* What a client calls them. */
static const char *prompt_name(const fg_api_reading *r)
{
    return fg_api_param_name(r->kind == FG_API_EMBEDDING ? FG_PARAM_INPUT : FG_PARAM_PROMPT);
}

static fg_status read_token_ids(fg_api_reading *r, const fg_json_node *node)
{
    const char *name = prompt_name(r);
    size_t count = fg_json_size(node);
    uint32_t vocab_size = fg_tokenizer_vocab_size(r->server->tokenizer);
    if (count >= r->server->context_max) {
        return fg_api_too_long(r, name, "", count);
    }
    uint32_t *ids = fg_mem_array(count, sizeof *ids);
    if (ids == NULL) {
        return fg_api_no_memory(r);
    }
    for (size_t i = 0; i < count; i++) {
        int64_t id = -1;
        if (!fg_json_integer(fg_json_at(node, i), &id) || id < 0 || id >= vocab_size) {
            fg_mem_free(ids);
            return fg_api_wrong_value(r, name, "%s[%zu] is not a token id below %" PRIu32, name, i,
                                      vocab_size);
        }
        ids[i] = (uint32_t)id;
    }
    r->text.is_whole = false; /* who sends ids has ended them */
    return give_ids(r, name, ids, count);
}

/* One prompt: a string, or a list of token ids. */
static fg_status read_one_prompt(fg_api_reading *r, const fg_json_node *node, fg_prompt *prompt)
{
    const char *name = prompt_name(r);
    size_t length = 0;
    const char *text = fg_json_string(node, &length);
    fg_status status;
    if (text != NULL && length == 0 && r->kind == FG_API_EMBEDDING) {
        status = fg_api_wrong_value(r, name, "'%s' has a text that is empty", name);
    } else if (text != NULL) {
        r->text.is_whole = r->kind == FG_API_EMBEDDING;
        status = fg_api_encode_text(r, name, text, length);
    } else if (!fg_json_is(node, FG_JSON_ARRAY)) {
        status = fg_api_wrong_type(r, name, "a string or an array of token ids", node);
    } else if (fg_json_size(node) == 0) {
        status = fg_api_wrong_value(r, name, "'%s' is an empty array", name);
    } else {
        status = read_token_ids(r, node);
    }
    if (status != FG_OK) {
        return status;
    }
    prompt->tokens = r->request->tokens;
    prompt->token_count = r->request->token_count;
    if (text != NULL && r->request->echo) {
        prompt->text = fg_arena_strndup(r->arena, text, length);
        prompt->text_length = length;
        status = prompt->text == NULL ? fg_api_no_memory(r) : FG_OK;
    }
    return status;
}

/* A string, a list of token ids, or a list of either. */
fg_status fg_api_read_prompt(fg_api_reading *r)
{
    bool embeds = r->kind == FG_API_EMBEDDING;
    const char *name = prompt_name(r);
    const fg_json_node *node = fg_api_value(r, embeds ? FG_PARAM_INPUT : FG_PARAM_PROMPT);
    if (node == NULL) {
        return fg_api_refuse(r->error, FG_BAD_INPUT, 400, name, "missing_required_parameter",
                             "'%s' is required", name);
    }
    fg_json_type type = fg_json_type_of(fg_json_at(node, 0));
    bool several =
        fg_json_is(node, FG_JSON_ARRAY) && (type == FG_JSON_STRING || type == FG_JSON_ARRAY);
    size_t count = several ? fg_json_size(node) : 1;
    fg_request *request = r->request;
    if (embeds && count > FG_LIMIT_EMBEDDINGS) {
        return fg_api_wrong_value(r, name, "'%s' has %zu texts: at most %u go into one request",
                                  name, count, FG_LIMIT_EMBEDDINGS);
    }
    if (!embeds && count * request->choice_count > FG_LIMIT_CHOICES) {
        return fg_api_wrong_value(r, "prompt",
                                  "'prompt' has %zu prompts with %" PRIu32
                                  " answers each: at most %u answers are given to one request",
                                  count, request->choice_count, FG_LIMIT_CHOICES);
    }
    r->prompts = fg_arena_array(r->arena, count, sizeof *r->prompts);
    fg_status status = r->prompts == NULL ? fg_api_no_memory(r) : FG_OK;
    for (size_t i = 0; i < count && status == FG_OK; i++) {
        status = read_one_prompt(r, several ? fg_json_at(node, i) : node, &r->prompts[i]);
    }
    if (status != FG_OK) {
        return status;
    }
    request->prompts = r->prompts;
    request->prompt_count = (uint32_t)count;
    request->choice_count *= request->prompt_count;
    request->tokens = r->prompts[0].tokens;
    request->token_count = r->prompts[0].token_count;
    return FG_OK;
}
