/* Tools: what a request says of them, and what its messages say of calls and their results. */
#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/limits.h"
#include "router/api_internal.h"

/* JSON that stood inside a text. */
typedef struct fg_api_parsed {
    fg_json *json;
    struct fg_api_parsed *next;
} fg_api_parsed;

enum { PATH_BYTES = 96, CALL_ID_MAX = 16 };

/* A value that is there and not null. */
static const fg_json_node *member_of(const fg_json_node *object, const char *name)
{
    const fg_json_node *node = fg_json_get(object, name);
    return fg_json_is(node, FG_JSON_NULL) ? NULL : node;
}

/* ---- tools ---- */

static bool is_name(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        bool letter = (text[i] >= 'a' && text[i] <= 'z') || (text[i] >= 'A' && text[i] <= 'Z');
        bool digit = text[i] >= '0' && text[i] <= '9';
        if (!letter && !digit && strchr("_.-", text[i]) == NULL) {
            return false;
        }
    }
    return length >= 1 && length <= FG_LIMIT_NAME_BYTES;
}

/* Index of the tool of this name; `count`: there is none. */
static uint32_t find_tool(const fg_tool_name *names, uint32_t count, const char *name,
                          size_t length)
{
    uint32_t i = 0;
    while (i < count && (names[i].length != length || memcmp(names[i].text, name, length) != 0)) {
        i++;
    }
    return i;
}

/* A member of tools[i].function that may be absent or null. */
static fg_status check_member(fg_api_reading *r, const fg_json_node *function, size_t index,
                              const char *member, fg_json_type type, const char *want)
{
    char path[PATH_BYTES];
    const fg_json_node *node = member_of(function, member);
    snprintf(path, sizeof path, "tools[%zu].function.%s", index, member);
    return node == NULL || fg_json_is(node, type) ? FG_OK : fg_api_wrong_type(r, path, want, node);
}

static fg_status read_tool(fg_api_reading *r, const fg_json_node *tool, uint32_t index,
                           fg_tool_name *names)
{
    char path[PATH_BYTES];
    const fg_json_node *function = fg_json_get(tool, "function");
    const fg_json_node *name = fg_json_get(function, "name");
    size_t length = 0;
    const char *text = fg_json_string(name, &length);
    snprintf(path, sizeof path, "tools[%u]", index);
    if (!fg_json_is(tool, FG_JSON_OBJECT)) {
        return fg_api_wrong_type(r, path, "an object", tool);
    }
    snprintf(path, sizeof path, "tools[%u].type", index);
    if (!fg_api_string_is(fg_json_get(tool, "type"), "function")) {
        return fg_api_wrong_value(r, path, "only tools of type 'function' are supported");
    }
    snprintf(path, sizeof path, "tools[%u].function", index);
    if (!fg_json_is(function, FG_JSON_OBJECT)) {
        return fg_api_wrong_type(r, path, "an object", function);
    }
    snprintf(path, sizeof path, "tools[%u].function.name", index);
    if (text == NULL) {
        return fg_api_wrong_type(r, path, "a string", name);
    }
    if (!is_name(text, length)) {
        return fg_api_wrong_value(r, path,
                                  "a tool's name has 1 to %u letters, digits, '_', '.' and '-'",
                                  FG_LIMIT_NAME_BYTES);
    }
    if (find_tool(names, index, text, length) < index) {
        return fg_api_wrong_value(r, path, "two tools have the name '%s'", text);
    }
    fg_status status = check_member(r, function, index, "description", FG_JSON_STRING, "a string");
    if (status == FG_OK) {
        status = check_member(r, function, index, "parameters", FG_JSON_OBJECT, "an object");
    }
    if (status == FG_OK) {
        status = check_member(r, function, index, "strict", FG_JSON_BOOL, "a boolean");
    }
    names[index].text = fg_arena_strndup(r->arena, text, length);
    names[index].length = length;
    return status == FG_OK && names[index].text == NULL ? fg_api_no_memory(r) : status;
}

/* {"type":"function","function":{"name":...}} */
static fg_status read_named_choice(fg_api_reading *r, const fg_json_node *node)
{
    fg_request_tools *tools = &r->request->tools;
    size_t length = 0;
    const fg_json_node *name = fg_json_get(fg_json_get(node, "function"), "name");
    const char *text = fg_json_string(name, &length);
    if (!fg_api_string_is(fg_json_get(node, "type"), "function")) {
        return fg_api_wrong_value(r, "tool_choice",
                                  "only a 'tool_choice' of type 'function' is "
                                  "supported");
    }
    if (text == NULL) {
        return fg_api_wrong_type(r, "tool_choice.function.name", "a string", name);
    }
    tools->choice = FG_TOOL_CHOICE_NAMED;
    tools->named = find_tool(tools->names, tools->count, text, length);
    return tools->named < tools->count ? FG_OK
                                       : fg_api_wrong_value(r, "tool_choice.function.name",
                                                            "'%.64s' is none of the 'tools'", text);
}

static fg_status read_choice(fg_api_reading *r)
{
    static const struct {
        const char *word;
        fg_tool_choice choice;
    } words[] = { { "none", FG_TOOL_CHOICE_NONE },
                  { "auto", FG_TOOL_CHOICE_AUTO },
                  { "required", FG_TOOL_CHOICE_REQUIRED } };
    const fg_json_node *node = fg_api_value(r, FG_PARAM_TOOL_CHOICE);
    fg_request_tools *tools = &r->request->tools;
    tools->choice = tools->count > 0 ? FG_TOOL_CHOICE_AUTO : FG_TOOL_CHOICE_NONE;
    if (node == NULL) {
        return FG_OK;
    }
    if (fg_json_is(node, FG_JSON_OBJECT)) {
        return read_named_choice(r, node);
    }
    if (!fg_json_is(node, FG_JSON_STRING)) {
        return fg_api_wrong_type(r, "tool_choice", "'none', 'auto', 'required' or an object", node);
    }
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (!fg_api_string_is(node, words[i].word)) {
            continue;
        }
        if (tools->count == 0 && words[i].choice == FG_TOOL_CHOICE_REQUIRED) {
            return fg_api_wrong_value(r, "tool_choice",
                                      "a 'tool_choice' of 'required' needs "
                                      "'tools'");
        }
        tools->choice = tools->count == 0 ? FG_TOOL_CHOICE_NONE : words[i].choice;
        return FG_OK;
    }
    return fg_api_wrong_value(
        r, "tool_choice", "'%.32s' is not a tool choice: use 'none', 'auto', 'required' or a tool",
        fg_json_string(node, NULL));
}

/* Whether this model can be shown tools, and what it will answer. */
static fg_status check_model(fg_api_reading *r)
{
    fg_request_tools *tools = &r->request->tools;
    if (tools->choice == FG_TOOL_CHOICE_NONE || fg_chat_refusal(r->server->chat) != NULL) {
        return FG_OK; /* what cannot be rendered is refused with the messages */
    }
    tools->dialect = fg_chat_tools(r->server->chat);
    if (tools->dialect > FG_TOOLS_UNKNOWN) {
        return FG_OK;
    }
    return fg_api_refuse(r->error, FG_BAD_INPUT, 400, "tools", "unsupported_parameter",
                         tools->dialect == FG_TOOLS_NONE
                             ? "the chat template of this model has no tools"
                             : "how this model writes calls of tools is not known here");
}

fg_status fg_api_read_tools(fg_api_reading *r)
{
    const fg_json_node *node = fg_api_value(r, FG_PARAM_TOOLS);
    fg_request_tools *tools = &r->request->tools;
    if (node != NULL && !fg_json_is(node, FG_JSON_ARRAY)) {
        return fg_api_wrong_type(r, "tools", "an array", node);
    }
    size_t count = fg_json_size(node);
    if (count > FG_LIMIT_TOOLS) {
        return fg_api_wrong_value(r, "tools", "'tools' has %zu tools; at most %u are allowed",
                                  count, FG_LIMIT_TOOLS);
    }
    fg_tool_name *names = fg_arena_array(r->arena, count + 1, sizeof *names);
    fg_status status = names == NULL ? fg_api_no_memory(r) : FG_OK;
    for (uint32_t i = 0; i < count && status == FG_OK; i++) {
        status = read_tool(r, fg_json_at(node, i), i, names);
    }
    if (status != FG_OK) {
        return status;
    }
    tools->names = names;
    tools->count = (uint32_t)count;
    tools->single =
        r->given[FG_PARAM_PARALLEL_TOOL_CALLS] && !r->flag[FG_PARAM_PARALLEL_TOOL_CALLS];
    fg_status (*const steps[])(fg_api_reading *) = { read_choice, check_model };
    for (size_t i = 0; i < sizeof steps / sizeof steps[0] && status == FG_OK; i++) {
        status = steps[i](r);
    }
    r->tools = tools->choice == FG_TOOL_CHOICE_NONE ? NULL : node;
    return status;
}

/* ---- calls that have to be made ---- */

/* The schema of a tool's arguments: any object where it has none, or one that nothing can be held to, unless it is strict. */
static fg_status put_schema(fg_api_reading *r, uint32_t index, fg_buf *out)
{
    static const char any[] = "{\"type\":\"object\"}";
    const fg_json_node *function = fg_json_get(fg_json_at(r->tools, index), "function");
    const fg_json_node *parameters = member_of(function, "parameters");
    bool strict = false;
    char path[PATH_BYTES];
    size_t at = out->size;
    fg_error err = { 0 };
    fg_grammar *grammar = NULL;
    if (fg_json_size(parameters) == 0) {
        return fg_buf_puts(out, any) ? FG_OK : fg_api_no_memory(r);
    }
    if (!fg_json_write(parameters, out)) {
        return fg_api_no_memory(r);
    }
    fg_status status =
        fg_grammar_compile(FG_GRAMMAR_SCHEMA, out->data + at, out->size - at, &grammar, &err);
    fg_grammar_destroy(grammar);
    (void)fg_json_bool(fg_json_get(function, "strict"), &strict);
    if (status == FG_BAD_INPUT && strict) {
        snprintf(path, sizeof path, "tools[%u].function.parameters", index);
        return fg_api_wrong_value(r, path, "%s", err.text);
    }
    if (status == FG_BAD_INPUT) {
        out->size = at;
        status = fg_buf_puts(out, any) ? FG_OK : FG_AGAIN;
    }
    return status == FG_OK ? FG_OK : fg_api_no_memory(r);
}

static void put_member(fg_buf *out, const char *name, const char *text, const char *more,
                       const char *rest)
{
    fg_buf_printf(out, "\"%s\":\"", name);
    const char *const parts[] = { text, more, rest };
    for (size_t i = 0; i < 3; i++) {
        fg_buf_json_escape(out, parts[i], strlen(parts[i]));
    }
    fg_buf_puts(out, "\",");
}

/* As the text of an FG_GRAMMAR_CALLS. */
static fg_status put_grammar(fg_api_reading *r, const fg_tool_writing *writing, fg_buf *out)
{
    const fg_request_tools *tools = &r->request->tools;
    bool named = tools->choice == FG_TOOL_CHOICE_NAMED;
    fg_status status = FG_OK;
    fg_buf_putc(out, '{');
    put_member(out, "open", writing->open, "", "");
    put_member(out, "between", writing->between, "", "");
    put_member(out, "close", writing->close, "", "");
    fg_buf_printf(out, "\"many\":%s,\"calls\":[", named || tools->single ? "false" : "true");
    for (uint32_t i = 0; i < tools->count && status == FG_OK; i++) {
        if (named && i != tools->named) {
            continue;
        }
        fg_buf_puts(out, named || i == 0 ? "{" : ",{");
        put_member(out, "before", writing->name, tools->names[i].text, writing->arguments);
        put_member(out, "after", writing->end, "", "");
        fg_buf_puts(out, "\"schema\":");
        status = put_schema(r, i, out);
        fg_buf_putc(out, '}');
    }
    fg_buf_puts(out, "]}");
    return status == FG_OK && out->failed ? fg_api_no_memory(r) : status;
}

/* Whether a grammar can have the marker written: a control token has no text. */
static bool is_text(const fg_tokenizer *tokenizer, const char *marker)
{
    size_t length = 0;
    uint32_t id = fg_tokenizer_find(tokenizer, marker, strlen(marker));
    if (id == FG_TOKEN_NONE) {
        return true;
    }
    (void)fg_tokenizer_piece(tokenizer, id, false, &length);
    return length > 0;
}

fg_status fg_api_force_calls(fg_api_reading *r)
{
    fg_request_tools *tools = &r->request->tools;
    fg_buf out;
    fg_tool_writing writing = fg_tool_writing_of(
        tools->dialect, is_text(r->server->tokenizer, fg_tool_marker(tools->dialect)));
    fg_buf_init(&out, 2 * FG_LIMIT_HTTP_BODY_BYTES); /* what is too long is refused below */
    fg_status status = put_grammar(r, &writing, &out);
    char *text = status == FG_OK ? fg_arena_strndup(r->arena, out.data, out.size) : NULL;
    size_t length = out.size;
    fg_buf_deinit(&out);
    if (status == FG_OK && text == NULL) {
        status = fg_api_no_memory(r);
    }
    tools->unmarked = writing.unmarked;
    return status == FG_OK ? fg_api_hold_to(r, "tool_choice", FG_GRAMMAR_CALLS, text, length)
                           : status;
}

/* ---- messages ---- */

static fg_chat_text text_of(const fg_json_node *node)
{
    fg_chat_text text = { 0 };
    text.text = fg_json_string(node, &text.length);
    return text;
}

/* An id as the template wants it: another one is told by letters and digits that its hash gives. */
static fg_status read_id(fg_api_reading *r, const char *path, const fg_json_node *node,
                         fg_chat_text *id)
{
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    size_t wanted = fg_chat_call_id_length(r->server->chat);
    *id = text_of(node);
    if (id->text == NULL) {
        return fg_api_wrong_type(r, path, "a string", node);
    }
    if (wanted == 0 || (id->length == wanted && strspn(id->text, digits) == wanted)) {
        return FG_OK;
    }
    char text[CALL_ID_MAX];
    uint64_t hash = fg_hash64(id->text, id->length, 0);
    wanted = wanted < sizeof text ? wanted : sizeof text;
    for (size_t i = 0; i < wanted; i++, hash /= sizeof digits - 1) {
        text[i] = digits[hash % (sizeof digits - 1)];
    }
    id->text = fg_arena_strndup(r->arena, text, wanted);
    id->length = wanted;
    return id->text == NULL ? fg_api_no_memory(r) : FG_OK;
}

/* JSON that stays until fg_api_forget_parsed. */
static fg_status parse_text(fg_api_reading *r, const char *path, const char *text, size_t length,
                            const fg_json_node **node_out)
{
    fg_error err = { 0 };
    fg_api_parsed *parsed = fg_arena_alloc(r->arena, sizeof *parsed);
    fg_status status = parsed == NULL ? FG_AGAIN : fg_json_parse(text, length, &parsed->json, &err);
    if (status != FG_OK) {
        return status == FG_AGAIN
                   ? fg_api_no_memory(r)
                   : fg_api_wrong_value(r, path, "'%s' is not valid JSON: %.240s", path, err.text);
    }
    parsed->next = r->parsed;
    r->parsed = parsed;
    *node_out = fg_json_root(parsed->json);
    return FG_OK;
}

/* `arguments`: the text of a JSON object, as OpenAI has it, or the object. None are {}. */
static fg_status read_arguments(fg_api_reading *r, const char *path, const fg_json_node *node,
                                const fg_json_node **object_out)
{
    size_t length = 0;
    const char *text = fg_json_string(node, &length);
    *object_out = node;
    if (text != NULL || node == NULL) {
        bool none = length == 0;
        fg_status status = parse_text(r, path, none ? "{}" : text, none ? 2 : length, object_out);
        if (status != FG_OK) {
            return status;
        }
    }
    return fg_json_is(*object_out, FG_JSON_OBJECT)
               ? FG_OK
               : fg_api_wrong_type(r, path, "a JSON object", *object_out);
}

static fg_status read_call(fg_api_reading *r, const fg_json_node *node, size_t message,
                           size_t index, fg_chat_call *call)
{
    char path[PATH_BYTES];
    const fg_json_node *function = fg_json_get(node, "function");
    const fg_json_node *type = member_of(node, "type");
    snprintf(path, sizeof path, "messages[%zu].tool_calls[%zu]", message, index);
    if (!fg_json_is(node, FG_JSON_OBJECT)) {
        return fg_api_wrong_type(r, path, "an object", node);
    }
    snprintf(path, sizeof path, "messages[%zu].tool_calls[%zu].type", message, index);
    if (type != NULL && !fg_api_string_is(type, "function")) {
        return fg_api_wrong_value(r, path, "only calls of type 'function' are supported");
    }
    snprintf(path, sizeof path, "messages[%zu].tool_calls[%zu].id", message, index);
    fg_status status = read_id(r, path, fg_json_get(node, "id"), &call->id);
    if (status != FG_OK) {
        return status;
    }
    snprintf(path, sizeof path, "messages[%zu].tool_calls[%zu].function", message, index);
    if (!fg_json_is(function, FG_JSON_OBJECT)) {
        return fg_api_wrong_type(r, path, "an object", function);
    }
    snprintf(path, sizeof path, "messages[%zu].tool_calls[%zu].function.name", message, index);
    call->name = text_of(fg_json_get(function, "name"));
    if (call->name.text == NULL) {
        return fg_api_wrong_type(r, path, "a string", fg_json_get(function, "name"));
    }
    snprintf(path, sizeof path, "messages[%zu].tool_calls[%zu].function.arguments", message, index);
    return read_arguments(r, path, member_of(function, "arguments"), &call->arguments);
}

static fg_status read_calls(fg_api_reading *r, const fg_json_node *node, size_t index,
                            fg_chat_message *message)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "messages[%zu].tool_calls", index);
    if (!fg_json_is(node, FG_JSON_ARRAY)) {
        return fg_api_wrong_type(r, path, "an array", node);
    }
    if (strcmp(message->role, "assistant") != 0) {
        return fg_api_wrong_value(r, path, "only the assistant makes calls");
    }
    size_t count = fg_json_size(node);
    fg_chat_call *calls = fg_arena_array(r->arena, count, sizeof *calls);
    fg_status status = calls == NULL ? fg_api_no_memory(r) : FG_OK;
    for (size_t i = 0; i < count && status == FG_OK; i++) {
        status = read_call(r, fg_json_at(node, i), index, i, &calls[i]);
    }
    message->calls = calls;
    message->call_count = count;
    return status;
}

fg_status fg_api_read_message_tools(fg_api_reading *r, const fg_json_node *node, size_t index,
                                    fg_chat_message *message)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "messages[%zu].function_call", index);
    if (!fg_api_is_empty(fg_json_get(node, "function_call"))) {
        return fg_api_refuse(r->error, FG_BAD_INPUT, 400, path, "unsupported_parameter",
                             "'function_call' is the old form of calls: use 'tool_calls'");
    }
    message->name = text_of(fg_json_get(node, "name"));
    message->reasoning = text_of(fg_json_get(node, "reasoning_content"));
    if (message->reasoning.text == NULL) {
        message->reasoning = text_of(fg_json_get(node, "reasoning"));
    }
    fg_status status = FG_OK;
    if (strcmp(message->role, "tool") == 0) {
        snprintf(path, sizeof path, "messages[%zu].tool_call_id", index);
        status = read_id(r, path, fg_json_get(node, "tool_call_id"), &message->tool_call_id);
    }
    const fg_json_node *calls = fg_json_get(node, "tool_calls");
    return status != FG_OK || fg_api_is_empty(calls) ? status
                                                     : read_calls(r, calls, index, message);
}

void fg_api_forget_parsed(fg_api_reading *r)
{
    for (; r->parsed != NULL; r->parsed = r->parsed->next) {
        fg_json_destroy(r->parsed->json);
    }
}
