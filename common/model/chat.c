#include "common/model/chat.h"

#include <string.h>

#include "common/base/mem.h"
#include "common/model/chat_template.h"

enum { TEMPLATE_BYTES_MAX = 1 << 20 };

static const char TEMPLATE_KEY[] = "tokenizer.chat_template";
static const char START[] = "<|im_start|>";
static const char END[] = "<|im_end|>\n";

struct fg_chat {
    const char *refusal; /* why this model's conversations cannot be rendered, or NULL */
    char *system;        /* put before a conversation without a system message; NULL: none */
    size_t system_length;
};

/* Where a rendering goes: text and, when asked for, where the callers' own texts lie in it. */
typedef struct renderer {
    fg_buf *out;
    fg_text_span *spans; /* may be NULL */
    size_t span_count;
} renderer;

static bool vocabulary_has(const fg_weights *weights, const char *wanted)
{
    static const char key[] = "tokenizer.ggml.tokens";
    fg_meta_type type;
    uint64_t count;
    if (!fg_weights_get_array(weights, key, &type, &count) || type != FG_META_STRING) {
        return false;
    }
    for (uint64_t i = 0; i < count; i++) {
        const char *text;
        size_t length;
        if (fg_weights_array_string(weights, key, i, &text, &length) && length == strlen(wanted) &&
            memcmp(text, wanted, length) == 0) {
            return true;
        }
    }
    return false;
}

static fg_status read_template(fg_chat *chat, const char *source, size_t length, fg_error *err)
{
    fg_buf plain;
    fg_buf_init(&plain, TEMPLATE_BYTES_MAX);
    const char *system = NULL;
    bool known = length < TEMPLATE_BYTES_MAX / 4 &&
                 fg_chat_template_plain(source, length, &plain) && plain.size > 0 &&
                 fg_chat_template_is_chatml(plain.data, plain.size, &system, &chat->system_length);
    bool no_memory = plain.failed;
    if (known && system != NULL) {
        chat->system = fg_mem_dup(system, chat->system_length + 1);
        no_memory = chat->system == NULL;
    }
    fg_buf_deinit(&plain);
    if (no_memory) {
        return fg_fail(err, FG_AGAIN, "chat: out of memory");
    }
    if (!known) {
        chat->refusal = "the chat template of this model is not supported yet (only ChatML is)";
    }
    return FG_OK;
}

fg_status fg_chat_open(const fg_weights *weights, fg_chat **chat_out, fg_error *err)
{
    fg_chat *chat = fg_mem_alloc(sizeof(*chat));
    if (chat == NULL) {
        return fg_fail(err, FG_AGAIN, "chat: out of memory");
    }
    const char *source;
    size_t length;
    if (fg_weights_get_string(weights, TEMPLATE_KEY, &source, &length)) {
        fg_status status = read_template(chat, source, length, err);
        if (status != FG_OK) {
            fg_chat_close(chat);
            return status;
        }
    } else if (!vocabulary_has(weights, START)) {
        chat->refusal = "this model has no chat template, use /v1/completions";
    }
    *chat_out = chat;
    return FG_OK;
}

void fg_chat_close(fg_chat *chat)
{
    if (chat == NULL) {
        return;
    }
    fg_mem_free(chat->system);
    fg_mem_free(chat);
}

static void put_plain(renderer *r, const char *text, size_t length)
{
    if (r->spans != NULL) {
        r->spans[r->span_count++] = (fg_text_span){ .start = r->out->size, .length = length };
    }
    fg_buf_append(r->out, text, length);
}

static fg_status render(const fg_chat *chat, const fg_chat_message *messages, size_t count,
                        bool add_generation_prompt, renderer *r, fg_error *err)
{
    if (chat->refusal != NULL) {
        return fg_fail(err, FG_BAD_INPUT, "%s", chat->refusal);
    }
    bool has_system =
        count > 0 && messages[0].role_length == 6 && memcmp(messages[0].role, "system", 6) == 0;
    if (count > 0 && !has_system && chat->system != NULL) {
        fg_buf_puts(r->out, START);
        fg_buf_puts(r->out, "system\n");
        fg_buf_append(r->out, chat->system, chat->system_length);
        fg_buf_puts(r->out, END);
    }
    for (size_t i = 0; i < count; i++) {
        fg_buf_puts(r->out, START);
        put_plain(r, messages[i].role, messages[i].role_length);
        fg_buf_putc(r->out, '\n');
        put_plain(r, messages[i].content, messages[i].content_length);
        fg_buf_puts(r->out, END);
    }
    if (add_generation_prompt) {
        fg_buf_puts(r->out, START);
        fg_buf_puts(r->out, "assistant\n");
    }
    return r->out->failed ? fg_fail(err, FG_AGAIN, "chat: no room for the prompt's text") : FG_OK;
}

fg_status fg_chat_render(const fg_chat *chat, const fg_chat_message *messages, size_t count,
                         bool add_generation_prompt, fg_buf *out, fg_error *err)
{
    renderer r = { .out = out };
    return render(chat, messages, count, add_generation_prompt, &r, err);
}

fg_status fg_chat_encode(const fg_chat *chat, const fg_tokenizer *tokenizer,
                         const fg_chat_message *messages, size_t count, bool add_generation_prompt,
                         uint32_t *ids_out, size_t capacity, size_t refuse_at, size_t *count_out,
                         fg_error *err)
{
    fg_buf text;
    fg_buf_init(&text, 0);
    renderer r = { .out = &text, .spans = fg_mem_array(count + 1, 2 * sizeof(r.spans[0])) };
    fg_status status = r.spans == NULL ? fg_fail(err, FG_AGAIN, "chat: out of memory") : FG_OK;
    if (status == FG_OK) {
        status = render(chat, messages, count, add_generation_prompt, &r, err);
    }
    if (status == FG_OK) {
        fg_encode_options options = { .add_bos = true,
                                      .parse_special = true,
                                      .plain = r.spans,
                                      .plain_count = r.span_count,
                                      .refuse_at = refuse_at };
        status = fg_tokenizer_encode(tokenizer, text.size == 0 ? "" : text.data, text.size, options,
                                     ids_out, capacity, count_out, err);
    }
    fg_mem_free(r.spans);
    fg_buf_deinit(&text);
    return status;
}
