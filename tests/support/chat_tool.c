/*
 * chat_tool - what a model is shown of chat requests, for test programs in other languages.
 *
 * Standard input: a chat template and the body of a request, again and again. Standard output, for each: "ok", with
 * " thinks" where thoughts are looked for and " inside" where the prompt has begun one, and the prompt's text, control
 * tokens by their names; or "refused" and the parameter, a space and the reason. A text is a
 * 32-bit little-endian length and its bytes, on both sides. The model has a byte-level vocabulary; BOS and EOS are
 * <|endoftext|>; it is 1 January 2026.
 */
#include <string.h>

#include "router/api.h"
#include "tests/support/text_pipe.h"
#include "tests/unit/router/tiny_model.h"

enum { CONTEXT_MAX = 1 << 18, NOW_S = 1767268800 };

static void answer(const tiny_model *model, const char *body, size_t length, fg_buf *out)
{
    fg_api_server server = { .tokenizer = model->tokenizer,
                             .chat = model->chat,
                             .model_name = "tiny",
                             .context_max = CONTEXT_MAX,
                             .max_tokens_default = 1 };
    fg_api_call call = { .id = "id", .created_s = NOW_S, .seed = 1 };
    fg_api_error error;
    fg_request request;
    fg_arena *arena = fg_arena_create(FG_API_ARENA_BYTES);
    fg_buf_clear(out);
    if (arena == NULL) {
        fg_pipe_die("chat_tool", "out of memory");
    }
    if (fg_api_parse(&server, FG_API_CHAT, body, length, &call, arena, &request, &error) == FG_OK) {
        for (uint32_t i = 0; i < request.token_count; i++) {
            size_t size;
            const char *piece =
                fg_tokenizer_piece(model->tokenizer, request.tokens[i], true, &size);
            fg_buf_append(out, piece, size);
        }
        const fg_request_thoughts *thoughts = &request.thoughts;
        const char *kind = thoughts->opened  ? "ok thinks inside"
                           : thoughts->split ? "ok thinks"
                                             : "ok";
        fg_pipe_write(kind, strlen(kind));
    } else {
        fg_buf_printf(out, "%s %s", error.param, error.text);
        fg_pipe_write("refused", 7);
    }
    fg_pipe_write(out->size == 0 ? "" : out->data, out->size);
    fg_arena_destroy(arena);
}

int main(void)
{
    size_t source_length;
    size_t body_length;
    fg_buf out;
    fg_buf_init(&out, 0);
    for (char *source; (source = fg_pipe_read("chat_tool", &source_length)) != NULL;
         fg_mem_free(source)) {
        char *body = fg_pipe_read("chat_tool", &body_length);
        if (body == NULL) {
            fg_pipe_die("chat_tool", "no body");
        }
        tiny_model model;
        source[source_length] = '\0';
        tiny_model_open_as(&model, source, NULL, 0);
        answer(&model, body, body_length, &out);
        tiny_model_close(&model);
        fg_mem_free(body);
    }
    fg_buf_deinit(&out);
    return 0;
}
