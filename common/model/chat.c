#include "common/model/chat.h"

#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/jinja/jinja.h"
#include "common/model/think_parse.h"

/* What a rendering may take: far more than templates do that were seen, and bounded by what a client sent. */
enum { RUN_BYTES = 8 << 20, RUN_BYTES_PER_MESSAGE = 16 << 10, RUN_BYTES_PER_BYTE = 16 };
enum { RUN_STEPS = 1 << 20, RUN_STEPS_PER_MESSAGE = 2000 };
/* And never more than so much, whatever was sent: renderings take the router's loop. */
enum { RUN_BYTES_MAX = 256 << 20, RUN_STEPS_MAX = 24 << 20 };
/* What a value among variables, tools or arguments weighs, in bytes of a message, and what all of one may: a mapping of
 * many keys takes long. */
enum { VALUE_BYTES = 64, VARIABLES_BYTES_MAX = 1 << 20 };

static const char TEMPLATE_KEY[] = "tokenizer.chat_template";
static const char TOOL_TEMPLATE_KEY[] = "tokenizer.chat_template.tool_use";
static const char TOKENS_KEY[] = "tokenizer.ggml.tokens";
static const char START[] = "<|im_start|>";
static const char CHATML[] =
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + "
    "'<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif "
    "%}";

struct fg_chat {
    fg_jinja *template;      /* NULL: there is none that can be used */
    fg_jinja *tool_template; /* for what has tools; NULL: the other one */
    fg_tool_dialect tools;
    bool thinks;
    size_t call_id_length;
    char refusal[FG_ERROR_TEXT_MAX];
    char *bos,
        *eos; /* what the template sees as bos_token and eos_token; NULL: the model has none */
    size_t bos_length, eos_length;
};

static bool vocabulary_has(const fg_weights *weights, const char *wanted)
{
    fg_meta_type type;
    uint64_t count;
    if (!fg_weights_get_array(weights, TOKENS_KEY, &type, &count) || type != FG_META_STRING) {
        return false;
    }
    for (uint64_t i = 0; i < count; i++) {
        const char *text;
        size_t length;
        if (fg_weights_array_string(weights, TOKENS_KEY, i, &text, &length) &&
            length == strlen(wanted) && memcmp(text, wanted, length) == 0) {
            return true;
        }
    }
    return false;
}

/* The name of the token that the model file calls so; false: no memory. */
static bool read_token(const fg_weights *weights, const char *key, char **text_out,
                       size_t *length_out)
{
    uint32_t id;
    const char *text;
    size_t length;
    fg_meta_type type;
    uint64_t count;
    if (!fg_weights_get_u32(weights, key, &id) ||
        !fg_weights_get_array(weights, TOKENS_KEY, &type, &count) || type != FG_META_STRING ||
        id >= count || !fg_weights_array_string(weights, TOKENS_KEY, id, &text, &length)) {
        return true;
    }
    *text_out = fg_mem_alloc(length + 1);
    if (*text_out == NULL) {
        return false;
    }
    memcpy(*text_out, text, length);
    *length_out = length;
    return true;
}

/* What a template makes of tools and thoughts. */
static void read_words(fg_chat *chat, const fg_jinja *template, const char *source, size_t length)
{
    static const char short_ids[] = "length != 9"; /* Mistral's */
    chat->tools =
        fg_jinja_reads(template, "tools") ? fg_tool_dialect_of(source, length) : FG_TOOLS_NONE;
    chat->thinks = chat->thinks || fg_think_known(source, length);
    chat->call_id_length = memmem(source, length, short_ids, sizeof short_ids - 1) != NULL ? 9 : 0;
}

/* The template for what has tools, where it is another one. One that cannot be used is as good as none. */
static fg_status read_tool_template(fg_chat *chat, const fg_weights *weights, fg_error *err)
{
    const char *source;
    size_t length;
    if (chat->template == NULL ||
        !fg_weights_get_string(weights, TOOL_TEMPLATE_KEY, &source, &length)) {
        return FG_OK;
    }
    fg_status status = fg_jinja_compile(source, length, &chat->tool_template, NULL);
    if (status == FG_AGAIN) {
        return fg_fail(err, FG_AGAIN, "chat: out of memory");
    }
    if (status == FG_OK) {
        read_words(chat, chat->tool_template, source, length);
    }
    return FG_OK;
}

/* Compiles the template, or keeps why it cannot be used. */
static fg_status read_template(fg_chat *chat, const fg_weights *weights, fg_error *err)
{
    const char *source;
    size_t length;
    fg_error found = { 0 };
    if (!fg_weights_get_string(weights, TEMPLATE_KEY, &source, &length)) {
        if (!vocabulary_has(weights, START)) {
            snprintf(chat->refusal, sizeof chat->refusal,
                     "this model has no chat template, use /v1/completions");
            return FG_OK;
        }
        source = CHATML;
        length = sizeof CHATML - 1;
    }
    fg_status status = fg_jinja_compile(source, length, &chat->template, &found);
    if (status == FG_AGAIN) {
        return fg_fail(err, FG_AGAIN, "chat: out of memory");
    }
    if (status != FG_OK) {
        snprintf(chat->refusal, sizeof chat->refusal,
                 "the chat template of this model cannot be used, %.200s; use /v1/completions",
                 found.text);
        return FG_OK;
    }
    read_words(chat, chat->template, source, length);
    return read_tool_template(chat, weights, err);
}

fg_status fg_chat_open(const fg_weights *weights, fg_chat **chat_out, fg_error *err)
{
    fg_chat *chat = fg_mem_alloc(sizeof(*chat));
    if (chat == NULL) {
        return fg_fail(err, FG_AGAIN, "chat: out of memory");
    }
    fg_status status =
        read_token(weights, "tokenizer.ggml.bos_token_id", &chat->bos, &chat->bos_length) &&
                read_token(weights, "tokenizer.ggml.eos_token_id", &chat->eos, &chat->eos_length)
            ? read_template(chat, weights, err)
            : fg_fail(err, FG_AGAIN, "chat: out of memory");
    if (status != FG_OK) {
        fg_chat_close(chat);
        return status;
    }
    *chat_out = chat;
    return FG_OK;
}

void fg_chat_close(fg_chat *chat)
{
    if (chat == NULL) {
        return;
    }
    fg_jinja_destroy(chat->template);
    fg_jinja_destroy(chat->tool_template);
    fg_mem_free(chat->bos);
    fg_mem_free(chat->eos);
    fg_mem_free(chat);
}

const char *fg_chat_refusal(const fg_chat *chat)
{
    return chat->template == NULL ? chat->refusal : NULL;
}

fg_tool_dialect fg_chat_tools(const fg_chat *chat)
{
    return chat->tools;
}

bool fg_chat_thinks(const fg_chat *chat)
{
    return chat->thinks;
}

size_t fg_chat_call_id_length(const fg_chat *chat)
{
    return chat->call_id_length;
}

static void put_text(fg_jinja_run *run, fg_jinja_value *map, const char *key, const char *text,
                     size_t length, bool of_client)
{
    fg_jinja_map_put(run, map, key, fg_jinja_text(run, text, length, of_client));
}

/* Roles that every template knows may become a part of a control token's name: '<|' + message.role + '|>'. */
static bool is_common_role(const fg_chat_message *message)
{
    static const char *const roles[] = { "system", "user", "assistant", "tool", "developer" };
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
        if (message->role_length == strlen(roles[i]) &&
            memcmp(message->role, roles[i], message->role_length) == 0) {
            return true;
        }
    }
    return false;
}

/* Bytes of a value's texts and keys, and some for each value. JSON is not deeper than FG_LIMIT_JSON_DEPTH. */
static size_t weight_of(const fg_json_node *node)
{
    size_t bytes = VALUE_BYTES;
    size_t length = 0;
    void *cursor = NULL;
    const char *key;
    switch (fg_json_type_of(node)) {
    case FG_JSON_STRING:
        (void)fg_json_string(node, &length);
        return bytes + length;
    case FG_JSON_ARRAY:
        for (size_t i = 0; i < fg_json_size(node); i++) {
            bytes += weight_of(fg_json_at(node, i));
        }
        return bytes;
    case FG_JSON_OBJECT:
        for (const fg_json_node *member; (member = fg_json_next(node, &cursor, &key)) != NULL;) {
            bytes += strlen(key) + weight_of(member);
        }
        return bytes;
    default:
        return bytes;
    }
}

/* Of a client, and only where it is there. */
static void put_client(fg_jinja_run *run, fg_jinja_value *map, const char *key, fg_chat_text text)
{
    if (text.text != NULL) {
        put_text(run, map, key, text.text, text.length, true);
    }
}

/* Calls as OpenAI's format has them, but for the arguments: a mapping, not JSON in a string. */
static fg_jinja_value *calls_of(fg_jinja_run *run, const fg_chat_message *message)
{
    fg_jinja_value *list = fg_jinja_list(run);
    for (size_t i = 0; i < message->call_count; i++) {
        const fg_chat_call *call = &message->calls[i];
        fg_jinja_value *function = fg_jinja_map(run);
        put_client(run, function, "name", call->name);
        fg_jinja_map_put(run, function, "arguments", fg_jinja_json(run, call->arguments));
        fg_jinja_value *item = fg_jinja_map(run);
        put_client(run, item, "id", call->id);
        put_text(run, item, "type", "function", 8, false);
        fg_jinja_map_put(run, item, "function", function);
        fg_jinja_list_add(run, list, item);
    }
    return list;
}

static fg_jinja_value *message_of(fg_jinja_run *run, const fg_chat_message *message)
{
    fg_jinja_value *map = fg_jinja_map(run);
    put_text(run, map, "role", message->role, message->role_length, !is_common_role(message));
    put_text(run, map, "content", message->content, message->content_length, true);
    put_client(run, map, "name", message->name);
    put_client(run, map, "tool_call_id", message->tool_call_id);
    /* Templates know one name or the other. */
    put_client(run, map, "reasoning_content", message->reasoning);
    put_client(run, map, "reasoning", message->reasoning);
    if (message->call_count > 0) {
        fg_jinja_map_put(run, map, "tool_calls", calls_of(run, message));
    }
    return map;
}

/* The variables of a template, as those who made it pass them. A failure shows when the run is rendered. */
static fg_jinja_value *variables_of(const fg_chat *chat, fg_jinja_run *run,
                                    const fg_chat_message *messages, size_t count,
                                    const fg_chat_options *options)
{
    fg_jinja_value *globals =
        options->variables != NULL ? fg_jinja_json(run, options->variables) : fg_jinja_map(run);
    fg_jinja_value *list = fg_jinja_list(run);
    for (size_t i = 0; i < count; i++) {
        fg_jinja_list_add(run, list, message_of(run, &messages[i]));
    }
    fg_jinja_map_put(run, globals, "messages", list);
    fg_jinja_map_put(run, globals, "add_generation_prompt",
                     fg_jinja_bool(run, options->add_generation_prompt));
    fg_jinja_map_put(run, globals, "tools",
                     options->tools != NULL ? fg_jinja_json(run, options->tools)
                                            : fg_jinja_none_value(run));
    fg_jinja_map_put(run, globals, "documents", fg_jinja_none_value(run));
    if (chat->bos != NULL) {
        put_text(run, globals, "bos_token", chat->bos, chat->bos_length, false);
    }
    if (chat->eos != NULL) {
        put_text(run, globals, "eos_token", chat->eos, chat->eos_length, false);
    }
    return globals;
}

/* Adds what `node` weighs; `what` is refused where that is too much. */
static fg_status add_weight(const fg_json_node *node, const char *what, size_t *bytes,
                            fg_error *err)
{
    size_t weight = node == NULL ? 0 : weight_of(node);
    *bytes += weight;
    return weight <= VARIABLES_BYTES_MAX
               ? FG_OK
               : fg_fail(err, FG_BAD_INPUT,
                         "%s are too large (%d KiB are taken, with %d bytes for each value)", what,
                         VARIABLES_BYTES_MAX >> 10, VALUE_BYTES);
}

/* What a client sent of all of it, for the budget. */
static fg_status weigh(const fg_chat_message *messages, size_t count,
                       const fg_chat_options *options, size_t *bytes_out, fg_error *err)
{
    size_t bytes = 0;
    fg_status status = add_weight(options->variables, "the chat template's variables", &bytes, err);
    if (status == FG_OK) {
        status = add_weight(options->tools, "the tools", &bytes, err);
    }
    for (size_t i = 0; i < count && status == FG_OK; i++) {
        const fg_chat_message *m = &messages[i];
        bytes += m->role_length + m->content_length + m->name.length + m->tool_call_id.length +
                 m->reasoning.length;
        for (size_t j = 0; j < m->call_count && status == FG_OK; j++) {
            bytes += 4 * VALUE_BYTES + m->calls[j].id.length + m->calls[j].name.length;
            status = add_weight(m->calls[j].arguments, "the arguments of a call", &bytes, err);
        }
    }
    *bytes_out = bytes;
    return status;
}

/* A run with the rendered pieces, which it owns; the caller owns the run. */
static fg_status render(const fg_chat *chat, const fg_chat_message *messages, size_t count,
                        const fg_chat_options *options, fg_jinja_run **run_out,
                        const fg_jinja_piece **pieces_out, size_t *piece_count_out, fg_error *err)
{
    if (chat->template == NULL) {
        return fg_fail(err, FG_BAD_INPUT, "%s", chat->refusal);
    }
    size_t bytes;
    fg_status status = weigh(messages, count, options, &bytes, err);
    if (status != FG_OK) {
        return status;
    }
    size_t bytes_max = RUN_BYTES + count * RUN_BYTES_PER_MESSAGE + bytes * RUN_BYTES_PER_BYTE;
    uint64_t steps_max = RUN_STEPS + (uint64_t)count * RUN_STEPS_PER_MESSAGE + bytes;
    fg_jinja_run *run =
        fg_jinja_run_create(bytes_max < RUN_BYTES_MAX ? bytes_max : RUN_BYTES_MAX,
                            steps_max < RUN_STEPS_MAX ? steps_max : RUN_STEPS_MAX, options->now_s);
    if (run == NULL) {
        return fg_fail(err, FG_AGAIN, "chat: out of memory");
    }
    const fg_jinja *template = options->tools != NULL && chat->tool_template != NULL
                                   ? chat->tool_template
                                   : chat->template;
    status = fg_jinja_render(template, run, variables_of(chat, run, messages, count, options),
                             pieces_out, piece_count_out, err);
    if (status != FG_OK) {
        fg_jinja_run_destroy(run);
        return status;
    }
    *run_out = run;
    return FG_OK;
}

fg_status fg_chat_render(const fg_chat *chat, const fg_chat_message *messages, size_t count,
                         const fg_chat_options *options, fg_buf *out, fg_error *err)
{
    fg_jinja_run *run;
    const fg_jinja_piece *pieces;
    size_t piece_count;
    fg_status status = render(chat, messages, count, options, &run, &pieces, &piece_count, err);
    if (status != FG_OK) {
        return status;
    }
    for (size_t i = 0; i < piece_count; i++) {
        fg_buf_append(out, pieces[i].text, pieces[i].length);
    }
    fg_jinja_run_destroy(run);
    return out->failed ? fg_fail(err, FG_AGAIN, "chat: no room for the prompt's text") : FG_OK;
}

/* The pieces side by side, and where clients' words lie in them; their number. Two that touch are one. */
static size_t lay_out(const fg_jinja_piece *pieces, size_t count, fg_buf *text, fg_text_span *spans)
{
    size_t span_count = 0;
    for (size_t i = 0; i < count; i++) {
        if (pieces[i].of_client) {
            fg_text_span *last = span_count == 0 ? NULL : &spans[span_count - 1];
            if (last != NULL && last->start + last->length == text->size) {
                last->length += pieces[i].length;
            } else {
                spans[span_count++] =
                    (fg_text_span){ .start = text->size, .length = pieces[i].length };
            }
        }
        fg_buf_append(text, pieces[i].text, pieces[i].length);
    }
    return span_count;
}

/* Whether the prompt ends with the mark of a thought that no client wrote. */
static bool opens_thought(const fg_buf *text, const fg_text_span *spans, size_t span_count)
{
    size_t mark_at = 0;
    const fg_text_span *last = span_count == 0 ? NULL : &spans[span_count - 1];
    return fg_think_opened(text->data, text->size, &mark_at) &&
           (last == NULL || last->start + last->length <= mark_at);
}

fg_status fg_chat_encode(const fg_chat *chat, const fg_tokenizer *tokenizer,
                         const fg_chat_message *messages, size_t count,
                         const fg_chat_options *options, uint32_t *ids_out, size_t capacity,
                         size_t refuse_at, size_t *count_out, fg_error *err)
{
    fg_jinja_run *run;
    const fg_jinja_piece *pieces;
    size_t piece_count;
    *count_out = 0;
    fg_status status = render(chat, messages, count, options, &run, &pieces, &piece_count, err);
    if (status != FG_OK) {
        return status;
    }
    fg_buf text;
    fg_buf_init(&text, 0);
    fg_text_span *spans = fg_mem_array(piece_count + 1, sizeof *spans);
    size_t span_count = spans == NULL ? 0 : lay_out(pieces, piece_count, &text, spans);
    if (spans == NULL || text.failed) {
        status = fg_fail(err, FG_AGAIN, "chat: out of memory");
    } else {
        fg_encode_options encode = { .add_bos = true,
                                     .parse_special = true,
                                     .plain = spans,
                                     .plain_count = span_count,
                                     .refuse_at = refuse_at };
        if (options->opened_out != NULL) {
            *options->opened_out = opens_thought(&text, spans, span_count);
        }
        status = fg_tokenizer_encode(tokenizer, text.size == 0 ? "" : text.data, text.size, encode,
                                     ids_out, capacity, count_out, err);
    }
    fg_mem_free(spans);
    fg_buf_deinit(&text);
    fg_jinja_run_destroy(run);
    return status;
}
