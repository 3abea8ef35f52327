/* Texts to token ids and back, for clients that count: in the words of vLLM's and of llama.cpp's server. */
#include <inttypes.h>
#include <string.h>

#include "common/base/limits.h"
#include "router/api_internal.h"

enum { NO_INPUT = -1 };

/* A value that is there and not null. */
static const fg_json_node *value_of(const fg_api_reading *r, const char *name)
{
    const fg_json_node *node = fg_json_get(r->root, name);
    return fg_json_is(node, FG_JSON_NULL) ? NULL : node;
}

static fg_status read_flag(fg_api_reading *r, const char *name, bool *flag)
{
    const fg_json_node *node = value_of(r, name);
    return node == NULL || fg_json_bool(node, flag) ? FG_OK
                                                    : fg_api_wrong_type(r, name, "a boolean", node);
}

static fg_status read_model_name(fg_api_reading *r)
{
    const fg_json_node *node = value_of(r, "model");
    if (node != NULL && !fg_json_is(node, FG_JSON_STRING)) {
        return fg_api_wrong_type(r, "model", "a string", node);
    }
    r->given[FG_PARAM_MODEL] = node != NULL;
    return fg_api_read_model(r);
}

/* ---- /tokenize ---- */

/* How the ids are told. */
typedef struct form {
    bool pieces;  /* llama.cpp: ids with their texts */
    bool strings; /* vLLM: the texts in a list of their own */
} form;

static const char *const inputs[] = { "prompt", "content", "messages" };
enum { PROMPT, CONTENT, MESSAGES, INPUT_COUNT };

static fg_status choose_input(fg_api_reading *r, int *input_out)
{
    *input_out = NO_INPUT;
    for (int i = 0; i < INPUT_COUNT; i++) {
        if (value_of(r, inputs[i]) == NULL) {
            continue;
        }
        if (*input_out != NO_INPUT) {
            return fg_api_wrong_value(r, inputs[i], "'%s' and '%s' are two texts: give one",
                                      inputs[*input_out], inputs[i]);
        }
        *input_out = i;
    }
    return *input_out == NO_INPUT
               ? fg_api_refuse(r->error, FG_BAD_INPUT, 400, "prompt", "missing_required_parameter",
                               "'prompt', 'content' or 'messages' is required")
               : FG_OK;
}

/* What would change the rendered messages, and is not there. */
static fg_status check_template(fg_api_reading *r)
{
    if (!fg_api_is_empty(value_of(r, "chat_template"))) {
        return fg_api_unsupported(r, "chat_template");
    }
    bool go_on = false;
    fg_status status = read_flag(r, "continue_final_message", &go_on);
    return status == FG_OK && go_on ? fg_api_unsupported(r, "continue_final_message") : status;
}

static fg_status read_flags(fg_api_reading *r, int input, form *out)
{
    /* vLLM adds what the model asks for unless told; llama.cpp only when told. */
    r->text.add_bos = input != CONTENT;
    const struct {
        const char *name;
        bool *flag;
    } flags[] = {
        { "add_special_tokens", &r->text.add_bos },
        { "add_special", &r->text.add_bos },
        { "parse_special", &r->text.parse_special },
        { "add_generation_prompt", &r->text.add_generation_prompt },
        { "with_pieces", &out->pieces },
        { "return_token_strs", &out->strings },
    };
    fg_status status = FG_OK;
    for (size_t i = 0; i < sizeof flags / sizeof flags[0] && status == FG_OK; i++) {
        status = read_flag(r, flags[i].name, flags[i].flag);
    }
    return status;
}

static fg_status read_text(fg_api_reading *r, form *form_out)
{
    int input;
    fg_status status = read_model_name(r);
    if (status == FG_OK) {
        status = choose_input(r, &input);
    }
    if (status == FG_OK) {
        status = read_flags(r, input, form_out);
    }
    if (status != FG_OK) {
        return status;
    }
    if (input == MESSAGES) {
        r->given[FG_PARAM_MESSAGES] = true;
        r->given[FG_PARAM_TEMPLATE_KWARGS] = value_of(r, "chat_template_kwargs") != NULL;
        r->given[FG_PARAM_TOOLS] = value_of(r, "tools") != NULL;
        status = check_template(r);
        return status == FG_OK ? fg_api_read_messages(r) : status;
    }
    const fg_json_node *node = value_of(r, inputs[input]);
    size_t length;
    const char *text = fg_json_string(node, &length);
    return text == NULL ? fg_api_wrong_type(r, inputs[input], "a string", node)
                        : fg_api_encode_text(r, inputs[input], text, length);
}

static void put_piece(fg_buf *out, const fg_tokenizer *tokenizer, uint32_t id)
{
    size_t length;
    const char *piece = fg_tokenizer_piece(tokenizer, id, true, &length);
    fg_buf_putc(out, '"');
    fg_buf_json_escape(out, piece, length);
    fg_buf_putc(out, '"');
}

static void render_tokens(const fg_api_reading *r, const form *how, fg_buf *out)
{
    const fg_tokenizer *tokenizer = r->server->tokenizer;
    const fg_request *request = r->request;
    fg_buf_printf(out, "{\"count\":%" PRIu32 ",\"max_model_len\":%" PRIu32 ",\"tokens\":[",
                  request->token_count, r->server->context_max);
    for (uint32_t i = 0; i < request->token_count; i++) {
        fg_buf_puts(out, i > 0 ? "," : "");
        if (how->pieces) {
            fg_buf_printf(out, "{\"id\":%" PRIu32 ",\"piece\":", request->tokens[i]);
            put_piece(out, tokenizer, request->tokens[i]);
            fg_buf_putc(out, '}');
        } else {
            fg_buf_printf(out, "%" PRIu32, request->tokens[i]);
        }
    }
    fg_buf_puts(out, "],\"token_strs\":");
    for (uint32_t i = 0; how->strings && i < request->token_count; i++) {
        fg_buf_putc(out, i > 0 ? ',' : '[');
        put_piece(out, tokenizer, request->tokens[i]);
    }
    fg_buf_puts(out, !how->strings ? "null}" : request->token_count > 0 ? "]}" : "[]}");
}

/* ---- /detokenize ---- */

/* The text of all ids; where encoding puts a space in front, the first one is not the client's. */
static fg_status render_text(fg_api_reading *r, const fg_json_node *tokens, fg_buf *out)
{
    const fg_tokenizer *tokenizer = r->server->tokenizer;
    uint32_t vocab_size = fg_tokenizer_vocab_size(tokenizer);
    fg_buf text;
    fg_buf_init(&text, 0);
    for (size_t i = 0; i < fg_json_size(tokens); i++) {
        int64_t id = -1;
        if (!fg_json_integer(fg_json_at(tokens, i), &id) || id < 0 || id >= vocab_size) {
            fg_buf_deinit(&text);
            return fg_api_wrong_value(r, "tokens", "tokens[%zu] is not a token id below %" PRIu32,
                                      i, vocab_size);
        }
        size_t length;
        const char *piece = fg_tokenizer_piece(tokenizer, (uint32_t)id, true, &length);
        size_t skip = i == 0 && length > 0 && piece[0] == ' ' && fg_tokenizer_adds_space(tokenizer);
        fg_buf_append(&text, piece + skip, length - skip);
    }
    static const char *const names[] = { "{\"prompt\":\"", "\",\"content\":\"" };
    for (int i = 0; i < 2; i++) {
        fg_buf_puts(out, names[i]);
        fg_buf_json_escape(out, text.data, text.size);
    }
    fg_buf_puts(out, "\"}");
    out->failed = out->failed || text.failed;
    fg_buf_deinit(&text);
    return FG_OK;
}

static fg_status read_tokens(fg_api_reading *r, fg_buf *out)
{
    fg_status status = read_model_name(r);
    if (status != FG_OK) {
        return status;
    }
    const fg_json_node *tokens = value_of(r, "tokens");
    if (tokens == NULL) {
        return fg_api_refuse(r->error, FG_BAD_INPUT, 400, "tokens", "missing_required_parameter",
                             "'tokens' is required");
    }
    if (!fg_json_is(tokens, FG_JSON_ARRAY)) {
        return fg_api_wrong_type(r, "tokens", "an array of token ids", tokens);
    }
    if (fg_json_size(tokens) >= r->text.ids_end) {
        return fg_api_too_long(r, "tokens", "", fg_json_size(tokens));
    }
    return render_text(r, tokens, out);
}

/* ---- both ---- */

static fg_status answer(fg_api_reading *r, fg_api_text_kind kind, fg_buf *out)
{
    if (!fg_json_is(r->root, FG_JSON_OBJECT)) {
        return fg_api_refuse(r->error, FG_BAD_INPUT, 400, NULL, "invalid_type",
                             "the body must be a JSON object");
    }
    if (kind == FG_API_DETOKENIZE) {
        return read_tokens(r, out);
    }
    form how = { 0 };
    fg_status status = read_text(r, &how);
    if (status == FG_OK) {
        render_tokens(r, &how, out);
    }
    return status;
}

fg_status fg_api_answer_text(const fg_api_server *server, fg_api_text_kind kind, const char *body,
                             size_t body_bytes, int64_t now_s, fg_buf *out, fg_api_error *error_out)
{
    fg_request request = { 0 };
    fg_api_reading r = {
        .server = server, .request = &request, .error = error_out, .now_s = now_s
    };
    /* Whoever counts may have more than fits: as much as is counted of a prompt. */
    r.text = fg_api_text_defaults(2 * server->context_max + FG_API_COUNTED_MORE);
    r.text.may_be_empty = true;
    size_t values_max = 2 * (size_t)server->context_max + FG_API_OTHER_VALUES;
    fg_json *json = NULL;
    r.arena = fg_arena_create(FG_API_ARENA_BYTES);
    fg_status status = r.arena == NULL
                           ? fg_api_no_memory(&r)
                           : fg_api_parse_json(body, body_bytes, values_max, &json, error_out);
    size_t listed = 0;
    if (status == FG_BAD_INPUT && kind == FG_API_DETOKENIZE) {
        listed = fg_json_count_list(body, body_bytes, "tokens");
    }
    if (listed > values_max) {
        status = fg_api_too_long(&r, "tokens", "", listed);
    }
    if (status == FG_OK) {
        r.root = fg_json_root(json);
        status = answer(&r, kind, out);
        fg_json_destroy(json);
    }
    fg_arena_destroy(r.arena);
    return status;
}
