/*
 * fuzz_api - any bytes as the body of a chat, a completion or an embedding request, of /tokenize and /detokenize. Whatever
 * is accepted must keep the promises that dispatch and the workers rely on, and must render as JSON again.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "common/base/json.h"
#include "common/base/limits.h"
#include "router/api.h"
#include "tests/unit/router/tiny_model.h"

enum { CONTEXT_MAX = 512, EMBEDDING = 5 };

/* Shows all that a request may say of tools. */
static const char with_tools[] =
    "{# arguments #}{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|user|>{{ "
    "m.role }}{{ m.name }}"
    "{{ m.tool_call_id }}{{ m.content }}{% for c in m.tool_calls %}<tool_call>"
    "{{ c.function.arguments | tojson }}{{ c.id }}{% endfor %}{% endfor %}";

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes);

/* Tokens of an echo stand one behind the other, the last of them at the end of its text. */
static void check_prompts(const fg_request *request)
{
    for (uint32_t i = 0; i < fg_request_prompts(request); i++) {
        fg_prompt prompt = fg_request_prompt(request, i);
        FG_ASSERT(prompt.token_count >= 1 && prompt.token_count < CONTEXT_MAX, "a prompt's tokens");
        FG_ASSERT(!request->echo || prompt.text != NULL, "an echo of nothing");
        FG_ASSERT((prompt.offsets != NULL) == (request->echo && request->params.want_logprobs > 0),
                  "offsets");
        for (uint32_t k = 0; prompt.offsets != NULL && k < prompt.token_count; k++) {
            FG_ASSERT(prompt.offsets[k] <= prompt.offsets[k + 1] &&
                          prompt.offsets[k + 1] <= prompt.text_length,
                      "an offset");
        }
    }
}

static void check_request(const fg_request *request, uint32_t vocab_size)
{
    const fg_wire_params *params = &request->params;
    FG_ASSERT(request->token_count >= 1 && request->token_count < CONTEXT_MAX, "token count");
    for (uint32_t i = 0; i < request->token_count; i++) {
        FG_ASSERT(request->tokens[i] < vocab_size, "token id");
    }
    FG_ASSERT(params->max_tokens >= 1 && params->max_tokens <= CONTEXT_MAX - request->token_count,
              "max_tokens");
    FG_ASSERT(params->temperature >= 0 && params->temperature <= 2, "temperature");
    FG_ASSERT(params->top_p > 0 && params->top_p <= 1, "top_p");
    FG_ASSERT(params->min_p >= 0 && params->min_p <= 1, "min_p");
    uint32_t most =
        request->kind == FG_API_EMBEDDING ? FG_LIMIT_EMBEDDINGS : (uint32_t)FG_LIMIT_CHOICES;
    FG_ASSERT(request->choice_count >= 1 && request->choice_count <= most, "n");
    uint32_t prompts = fg_request_prompts(request);
    FG_ASSERT(prompts >= 1 && request->choice_count % prompts == 0, "prompts");
    FG_ASSERT((params->family != 0) == (request->choice_count > prompts), "family");
    check_prompts(request);
    FG_ASSERT(params->priority >= FG_PRIORITY_HIGH && params->priority <= FG_PRIORITY_LOW,
              "priority");
    FG_ASSERT(params->cache_mode <= FG_CACHE_DISABLE, "cache mode");
    FG_ASSERT(request->stop_count <= FG_LIMIT_STOP_STRINGS, "stop count");
    for (size_t i = 0; i < request->stop_count; i++) {
        FG_ASSERT(request->stop_lengths[i] >= 1 && request->stop_lengths[i] <= FG_LIMIT_STOP_BYTES,
                  "stop length");
    }
}

/* `out` must be one JSON value. */
static void check_json(const fg_buf *out)
{
    fg_json *json;
    fg_error err = { 0 };
    fg_status status = fg_json_parse(out->data, out->size, &json, &err);
    FG_ASSERT(status == FG_OK, "%s in %s", err.text, out->data);
    fg_json_destroy(json);
}

/* Control tokens are the template's: one for each message. */
static void check_marks(const fg_request *request, const fg_json_node *messages)
{
    size_t marks = 0;
    for (uint32_t i = 0; i < request->token_count; i++) {
        marks += request->tokens[i] == SMALL_BPE_USER;
    }
    FG_ASSERT(marks == fg_json_size(messages), "a client wrote a control token");
}

static void check_tools(const fg_request *request, const char *body, size_t size_bytes)
{
    const fg_request_tools *tools = &request->tools;
    fg_json *json = NULL;
    FG_ASSERT(tools->count <= FG_LIMIT_TOOLS && tools->choice <= FG_TOOL_CHOICE_AUTO, "tools");
    FG_ASSERT((tools->dialect != FG_TOOLS_NONE) == (tools->choice == FG_TOOL_CHOICE_AUTO),
              "dialect");
    FG_ASSERT(tools->choice == FG_TOOL_CHOICE_NONE || tools->count > 0, "a choice of nothing");
    for (uint32_t i = 0; i < tools->count; i++) {
        FG_ASSERT(tools->names[i].length >= 1 && tools->names[i].length <= FG_LIMIT_NAME_BYTES,
                  "name");
    }
    FG_ASSERT(fg_json_parse(body, size_bytes, &json, NULL) == FG_OK);
    check_marks(request, fg_json_get(fg_json_root(json), "messages"));
    fg_json_destroy(json);
}

/* What a model thinks is looked for in chats that are held to no format. */
static void check_thoughts(const fg_request *request)
{
    const fg_request_thoughts *thoughts = &request->thoughts;
    bool may = request->kind == FG_API_CHAT && request->params.grammar == NULL;
    FG_ASSERT(may || !thoughts->split, "thoughts of a text");
    FG_ASSERT(thoughts->split || (!thoughts->opened && !thoughts->hidden), "no thoughts");
}

static void check_rendering(const fg_request *request, const fg_tokenizer *tokenizer,
                            const char *text, size_t length)
{
    fg_buf out;
    fg_dispatch_report report = { 0 };
    fg_api_choice choices[FG_LIMIT_CHOICES];
    fg_api_usage usage = { .completion_tokens = 1, .reasoning_tokens = 1 };
    size_t thought = request->thoughts.split ? length / 2 : 0;
    while (thought > 0 && ((unsigned char)text[thought] & 0xC0) == 0x80) {
        thought--;
    }
    static float chosen[CONTEXT_MAX];
    static uint32_t ranks[CONTEXT_MAX];
    static fg_likely likely[CONTEXT_MAX * FG_LOGPROBS_MAX];
    uint32_t wanted = request->params.want_scores;
    const fg_scores scores = { .chosen = chosen,
                               .ranks = ranks,
                               .likely = likely,
                               .likely_count = wanted > 0 ? wanted - 1 : 0 };
    for (uint32_t i = 0; i < request->choice_count; i++) {
        uint32_t each = request->choice_count / fg_request_prompts(request);
        fg_prompt prompt = fg_request_prompt(request, i / each);
        bool told = request->echo && request->params.want_logprobs > 0;
        choices[i] = (fg_api_choice){ .index = i,
                                      .piece = { .thought = text,
                                                 .thought_length = thought,
                                                 .text = text + thought,
                                                 .text_length = length - thought,
                                                 .tokenizer = tokenizer,
                                                 .echo = request->echo ? prompt.text : "",
                                                 .echo_length = prompt.text_length,
                                                 .echo_count = told ? prompt.token_count : 0,
                                                 .prompt = prompt,
                                                 .scores = wanted > 0 ? &scores : NULL },
                                      .finish = FG_FINISH_STOP,
                                      .report = request->return_timings ? &report : NULL };
    }
    fg_buf_init(&out, 0);
    fg_api_render_answer(&out, request, choices, &usage);
    check_json(&out);
    fg_buf_clear(&out);
    choices[0].finish = FG_FINISH_NONE;
    fg_api_event_choice(&out, request, &choices[0]);
    fg_buf_consume(&out, strlen("data: "));
    check_json(&out);
    fg_buf_deinit(&out);
}

static void check_embeddings(const fg_request *request)
{
    static const float state[EMBEDDING] = { 3, -4, 1e-20f, 1e20f, 0 };
    fg_buf out, text;
    fg_api_usage usage = { .cached_tokens = 1 };
    FG_ASSERT(request->params.want_embedding && request->params.max_tokens == 1 &&
                  request->dimensions >= 1 && request->dimensions <= EMBEDDING,
              "an embedding");
    fg_buf_init(&out, 0);
    fg_buf_init(&text, fg_api_embedding_bytes(request));
    fg_api_put_embedding(&text, request, state);
    fg_api_begin_embeddings(&out, request);
    for (uint32_t i = 0; i < request->choice_count; i++) {
        fg_api_add_embedding(&out, i, text.data, text.size);
    }
    fg_api_end_embeddings(&out, request, &usage);
    FG_ASSERT(!text.failed, "an embedding's room");
    check_json(&out);
    fg_buf_deinit(&out);
    fg_buf_deinit(&text);
}

/* Ids may name the NUL byte: JSON has it, only no request may. */
static void allow_nul(fg_buf *out)
{
    static const char nul[] = "\\u0000";
    char *at = out->data, *end = out->data + out->size;
    while (at != NULL && (at = memmem(at, (size_t)(end - at), nul, sizeof nul - 1)) != NULL) {
        at[sizeof nul - 2] = '1';
    }
}

/* The same bytes as the body of /tokenize and /detokenize: what comes out is JSON, or a refusal. */
static void check_text(const fg_api_server *server, const char *body, size_t size_bytes)
{
    for (fg_api_text_kind kind = FG_API_TOKENIZE; kind <= FG_API_DETOKENIZE; kind++) {
        fg_buf out;
        fg_api_error error = { 0 };
        fg_buf_init(&out, 0);
        if (fg_api_answer_text(server, kind, body, size_bytes, 5, &out, &error) == FG_OK) {
            allow_nul(&out);
            check_json(&out);
        } else {
            FG_ASSERT(error.http_status >= 400 && error.http_status < 500 && error.text[0] != '\0',
                      "an unexplained refusal");
        }
        fg_buf_deinit(&out);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    static tiny_model models[2];
    if (models[0].tokenizer == NULL) {
        tiny_model_open(&models[0]);
        tiny_model_open_as(&models[1], with_tools, NULL, 0);
    }
    if (size_bytes == 0) {
        return 0;
    }
    bool tools = (bytes[0] & 2) != 0;
    const tiny_model *model = &models[tools];
    fg_api_server server = {
        .tokenizer = model->tokenizer,
        .chat = model->chat,
        .model_name = "tiny",
        .context_max = CONTEXT_MAX,
        .max_tokens_default = 64,
        .embedding_length = EMBEDDING,
    };
    fg_api_call call = { .id = "id", .seed = 1 };
    fg_api_kind kind = bytes[0] & 1   ? FG_API_CHAT
                       : bytes[0] & 4 ? FG_API_EMBEDDING
                                      : FG_API_COMPLETION;
    const char *body = (const char *)bytes + 1;
    check_text(&server, body, size_bytes - 1);
    fg_arena *arena = fg_arena_create(FG_API_ARENA_BYTES);
    FG_ASSERT(arena != NULL, "out of memory");
    fg_request request;
    fg_api_error error = { 0 };
    fg_status status =
        fg_api_parse(&server, kind, body, size_bytes - 1, &call, arena, &request, &error);
    if (status == FG_OK) {
        check_request(&request, fg_tokenizer_vocab_size(model->tokenizer));
        if (tools && kind == FG_API_CHAT) {
            check_tools(&request, body, size_bytes - 1);
        }
        check_thoughts(&request);
        if (kind == FG_API_EMBEDDING) {
            check_embeddings(&request);
            fg_arena_destroy(arena);
            return 0;
        }
        check_rendering(&request, model->tokenizer, body, size_bytes - 1);
    } else {
        fg_buf out;
        FG_ASSERT(status == FG_BAD_INPUT && error.http_status >= 400 && error.http_status < 500 &&
                      error.text[0] != '\0',
                  "an unexplained refusal");
        fg_buf_init(&out, 0);
        fg_api_render_error(&out, &error);
        check_json(&out);
        fg_buf_deinit(&out);
    }
    fg_arena_destroy(arena);
    return 0;
}
