/* Prompts that come back: their texts, where their tokens stand in them, and what is told of these. */
#include "router/api.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/fault.h"
#include "tests/support/small_vocab.h"
#include "tests/support/test.h"
#include "tests/unit/router/tiny_model.h"

typedef struct world {
    tiny_model model;
    fg_api_server server;
    fg_arena *arena;
    fg_request request;
    fg_api_error error;
    fg_buf file; /* of the SPM model, if it is that one */
    fg_weights *weights;
    fg_tokenizer *spm;
} world;

static void open_world(world *w)
{
    *w = (world){ 0 };
    tiny_model_open(&w->model);
    w->server = (fg_api_server){ .tokenizer = w->model.tokenizer,
                                 .chat = w->model.chat,
                                 .model_name = "tiny",
                                 .context_max = 1000,
                                 .max_tokens_default = 40 };
    w->arena = fg_arena_create(FG_API_ARENA_BYTES);
    cr_assert_not_null(w->arena);
}

/* A model that puts BOS and a space in front of texts. */
static void open_spm(world *w)
{
    open_world(w);
    small_spm(&w->file, true);
    cr_assert_eq(fg_weights_open_memory(w->file.data, w->file.size, &w->weights, NULL), FG_OK);
    cr_assert_eq(fg_tokenizer_open(w->weights, &w->spm, NULL), FG_OK);
    w->server.tokenizer = w->spm;
}

static void close_world(world *w)
{
    fg_tokenizer_close(w->spm);
    fg_weights_close(w->weights);
    fg_buf_deinit(&w->file);
    fg_arena_destroy(w->arena);
    tiny_model_close(&w->model);
}

static fg_status parse(world *w, fg_api_kind kind, const char *body)
{
    fg_api_call call = { .id = "id-1", .created_s = 5, .seed = 77 };
    fg_arena_reset(w->arena);
    return fg_api_parse(&w->server, kind, body, strlen(body), &call, w->arena, &w->request,
                        &w->error);
}

static const struct wish {
    const char *body;
    uint32_t want_scores, prompt_logprobs, max_tokens;
    bool echo, no_answer;
} wishes[] = {
    { "{\"prompt\":\"hi\"}", 0, 0, 40, false, false },
    { "{\"prompt\":\"hi\",\"echo\":true}", 0, 0, 40, true, false },
    { "{\"prompt\":\"hi\",\"logprobs\":3}", 0, 0, 40, false, false },
    { "{\"prompt\":\"hi\",\"echo\":true,\"logprobs\":3}", 4, 0, 40, true, false },
    { "{\"prompt\":\"hi\",\"echo\":true,\"logprobs\":0,\"max_tokens\":0}", 1, 0, 1, true, true },
    { "{\"prompt\":\"hi\",\"echo\":true,\"max_completion_tokens\":0}", 0, 0, 1, true, true },
    { "{\"prompt\":\"hi\",\"echo\":true,\"logprobs\":null}", 0, 0, 40, true, false },
    { "{\"prompt\":\"hi\",\"prompt_logprobs\":0}", 1, 1, 40, false, false },
    { "{\"prompt\":\"hi\",\"prompt_logprobs\":20}", 21, 21, 40, false, false },
    { "{\"prompt\":\"hi\",\"prompt_logprobs\":2,\"echo\":true,\"logprobs\":5}", 6, 3, 40, true,
      false },
    { "{\"prompt\":\"hi\",\"prompt_logprobs\":5,\"echo\":true,\"logprobs\":2,\"max_tokens\":9}", 6,
      6, 9, true, false },
    { "{\"prompt\":\"hi\",\"echo\":true,\"logprobs\":1,\"stream\":true}", 2, 0, 40, true, false },
};

Test(api_echo, wishes_arrive)
{
    world w;
    open_world(&w);
    for (size_t i = 0; i < sizeof wishes / sizeof wishes[0]; i++) {
        const struct wish *it = &wishes[i];
        cr_assert_eq(parse(&w, FG_API_COMPLETION, it->body), FG_OK, "%s: %s", it->body,
                     w.error.text);
        cr_assert(w.request.params.want_scores == it->want_scores &&
                      w.request.prompt_logprobs == it->prompt_logprobs &&
                      w.request.params.max_tokens == it->max_tokens && w.request.echo == it->echo &&
                      w.request.no_answer == it->no_answer,
                  "%s", it->body);
    }
    cr_assert_eq(parse(&w, FG_API_CHAT,
                       "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],"
                       "\"prompt_logprobs\":2,\"echo\":false}"),
                 FG_OK);
    cr_assert(w.request.params.want_scores == 3 && !w.request.echo);
    close_world(&w);
}

/* The text that is echoed, and for each token how many of its characters come before; at last, how many it has. */
static const struct spelled {
    const char *prompt;
    bool spm;
    const char *text;
    uint32_t offsets[8], count;
} spelled[] = {
    { "\"hello w\"", false, "hello w", { 0, 5, 7 }, 2 },
    { "[104,105]", false, "hi", { 0, 1, 2 }, 2 },
    { "[[104,105]]", false, "hi", { 0, 1, 2 }, 2 },
    /* U+00E9, then U+1F600, in tokens of one byte. */
    { "\"\\u00e9\\ud83d\\ude00x\"",
      false,
      "\xC3\xA9\xF0\x9F\x98\x80x",
      { 0, 0, 1, 1, 1, 1, 2, 3 },
      7 },
    /* No characters: one a byte, once it is clear. */
    { "[195,120,121]", false, "\xC3xy", { 0, 0, 2, 3 }, 3 },
    { "[120,195]", false, "x\xC3", { 0, 1, 2 }, 2 },
    { "\"<|im_start|>x\"", false, "<|im_start|>x", { 0, 12, 13 }, 2 },
    /* BOS and the space in front are not the client's, unless it wrote them. */
    { "\"ab\"", true, "ab", { 0, 0, 2 }, 2 },
    { "\" ab\"", true, " ab", { 0, 0, 0, 3 }, 3 },
    { "[1,264,260]", true, "<s>aba", { 0, 3, 5, 6 }, 3 },
    { "[264,260]", true, "aba", { 0, 2, 3 }, 2 },
};

Test(api_echo, tokens_stand_where_their_text_does)
{
    world w;
    for (size_t i = 0; i < sizeof spelled / sizeof spelled[0]; i++) {
        const struct spelled *it = &spelled[i];
        char body[256];
        (it->spm ? open_spm : open_world)(&w);
        snprintf(body, sizeof body, "{\"prompt\":%s,\"echo\":true,\"logprobs\":0}", it->prompt);
        cr_assert_eq(parse(&w, FG_API_COMPLETION, body), FG_OK, "%s: %s", body, w.error.text);
        const fg_prompt *prompt = &w.request.prompts[0];
        cr_assert_eq(prompt->token_count, it->count, "%s: %u tokens", body, prompt->token_count);
        cr_assert(prompt->text_length == strlen(it->text) &&
                      memcmp(prompt->text, it->text, prompt->text_length) == 0,
                  "%s: %.*s", body, (int)prompt->text_length, prompt->text);
        for (uint32_t k = 0; k <= it->count; k++) {
            cr_assert_eq(prompt->offsets[k], it->offsets[k], "%s: token %u at %u", body, k,
                         prompt->offsets[k]);
        }
        close_world(&w);
    }
}

Test(api_echo, a_list_of_prompts_is_a_list_of_answers)
{
    world w;
    open_world(&w);
    cr_assert_eq(
        parse(&w, FG_API_COMPLETION, "{\"prompt\":[\"hello\",[104,105],\"x\"],\"n\":2,\"seed\":5}"),
        FG_OK, "%s", w.error.text);
    const fg_request *r = &w.request;
    cr_assert(r->choice_count == 6 && fg_request_prompts(r) == 3);
    cr_assert(r->prompts[0].token_count == 1 && r->prompts[0].tokens[0] == SMALL_BPE_HELLO);
    cr_assert(r->prompts[1].token_count == 2 && r->prompts[1].tokens[1] == 105);
    cr_assert(r->prompts[2].token_count == 1 && r->prompts[2].tokens[0] == 'x');
    cr_assert(fg_request_prompt_tokens(r) == 4 && r->params.family != 0);
    close_world(&w);
}

/* All of them are held until the last one has come. */
Test(api_echo, a_prompt_has_so_many_logprobs)
{
    static const struct {
        const char *more;
        const char *param; /* NULL: it is fine */
    } cases[] = {
        { "\"prompt_logprobs\":15", NULL }, /* 2^16 tokens: 2^20 */
        { "\"prompt_logprobs\":16", "prompt_logprobs" },
        { "\"prompt_logprobs\":8,\"n\":2", "prompt_logprobs" },
        { "\"echo\":true,\"logprobs\":16,\"max_tokens\":1", "logprobs" },
        { "\"echo\":true,\"logprobs\":16,\"max_tokens\":1,\"stream\":true", "logprobs" },
        { "\"echo\":true,\"max_tokens\":1,\"n\":64", NULL },
    };
    enum { TOKENS = 1 << 16 };
    world w;
    fg_buf body;
    open_world(&w);
    fg_buf_init(&body, 0);
    w.server.context_max = 2 * TOKENS;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fg_buf_clear(&body);
        fg_buf_puts(&body, "{\"prompt\":[104");
        for (int k = 1; k < TOKENS; k++) {
            fg_buf_puts(&body, ",104");
        }
        fg_buf_printf(&body, "],%s}", cases[i].more);
        fg_status status = parse(&w, FG_API_COMPLETION, body.data);
        cr_assert_eq(status, cases[i].param == NULL ? FG_OK : FG_BAD_INPUT, "%s", cases[i].more);
        cr_assert(cases[i].param == NULL || strcmp(w.error.param, cases[i].param) == 0, "%s: %s",
                  cases[i].more, w.error.param);
    }
    fg_buf_deinit(&body);
    close_world(&w);
}

/* Three tokens of the prompt, whose last one is the first byte of a character, and one of the answer. */
static fg_api_piece scored_piece(const world *w)
{
    static const uint32_t tokens[] = { 'h', '"', 0xC3 }, offsets[] = { 0, 1, 2, 3 };
    static const uint32_t ids[] = { 'i' };
    static const fg_logprobs logprobs[] = {
        { .chosen = -4, .count = 1, .likely = { { 'j', -1 } } }
    };
    static float chosen[] = { -0.5f, -(float)INFINITY };
    static uint32_t ranks[] = { 1, 7 };
    static fg_likely likely[] = { { '"', -0.5f }, { 'a', -1 }, { 'b', -2 }, { FG_LIKELY_NONE, 0 } };
    static const fg_scores scores = {
        .chosen = chosen, .ranks = ranks, .likely = likely, .count = 2, .likely_count = 2
    };
    return (fg_api_piece){ .text = "i",
                           .text_length = 1,
                           .ids = ids,
                           .logprobs = logprobs,
                           .token_count = 1,
                           .text_offset = 3,
                           .tokenizer = w->server.tokenizer,
                           .echo = "h\"\xC3",
                           .echo_length = 3,
                           .echo_count = 3,
                           .prompt = { .tokens = tokens, .token_count = 3, .offsets = offsets },
                           .scores = &scores };
}

Test(api_echo, an_echo_stands_in_front_of_the_answer)
{
    world w;
    fg_buf out;
    open_world(&w);
    fg_buf_init(&out, 0);
    fg_request request = { .kind = FG_API_COMPLETION,
                           .echo = true,
                           .params = { .want_logprobs = 2, .want_scores = 3 } };
    fg_api_piece piece = scored_piece(&w);
    fg_api_put_logprobs(&out, &request, &piece);
    cr_assert_str_eq(
        out.data, ",\"logprobs\":{\"text_offset\":[0,1,2,3],\"token_logprobs\":[null,-0.5,-9999,"
                  "-4],\"tokens\":[\"h\",\"\\\"\",\"bytes:\\\\xc3\",\"i\"],\"top_logprobs\":[null,"
                  "{\"\\\"\":-0.5},{\"b\":-2},{\"j\":-1}]}");
    /* A part of a stream: two of the prompt's tokens, none of the answer's. */
    request.stream = true;
    request.params.want_logprobs = 1;
    piece.echo_first = 1;
    piece.echo_count = 2;
    piece.token_count = 0;
    fg_buf_clear(&out);
    fg_api_put_logprobs(&out, &request, &piece);
    cr_assert_str_eq(out.data,
                     ",\"logprobs\":{\"text_offset\":[1,2],\"token_logprobs\":[-0.5,-9999],"
                     "\"tokens\":[\"\\\"\",\"bytes:\\\\xc3\"],\"top_logprobs\":null}");
    piece.echo_count = 0;
    fg_buf_clear(&out);
    fg_api_put_logprobs(&out, &request, &piece);
    cr_assert_str_eq(out.data, ",\"logprobs\":null");
    fg_buf_deinit(&out);
    close_world(&w);
}

Test(api_echo, prompt_logprobs_have_the_shape_of_vllm)
{
    static const char want[] =
        ",\"prompt_logprobs\":[null,{\"34\":{\"logprob\":-0.5,\"rank\":1,\"decoded_token\":"
        "\"\\\"\"},"
        "\"97\":{\"logprob\":-1,\"rank\":2,\"decoded_token\":\"a\"}},{\"195\":{\"logprob\":-9999,"
        "\"rank\":7,\"decoded_token\":\"bytes:\\\\xc3\"},\"98\":{\"logprob\":-2,\"rank\":1,"
        "\"decoded_token\":\"b\"}}]";
    static const char ids[] = ",\"prompt_token_ids\":[104,34,195]";
    world w;
    fg_buf out;
    open_world(&w);
    fg_buf_init(&out, 0);
    fg_request request = { .kind = FG_API_COMPLETION, .choice_count = 1, .prompt_logprobs = 3 };
    fg_api_piece piece = scored_piece(&w);
    fg_api_put_prompt(&out, &request, &piece);
    cr_assert_str_eq(out.data, want);
    request.return_token_ids = true;
    request.prompt_logprobs = 1;
    fg_buf_clear(&out);
    fg_api_put_prompt(&out, &request, &piece);
    cr_assert_not_null(strstr(out.data, "[null,{\"34\":{\"logprob\":-0.5,\"rank\":1,"
                                        "\"decoded_token\":\"\\\"\"}},{\"195\""));
    cr_assert_not_null(strstr(out.data, ids));
    /* Of a completion it stands in the choice, of a chat beside the choices. */
    fg_api_choice choice = { .piece = piece, .finish = FG_FINISH_STOP };
    fg_api_usage usage = { 0 };
    for (int chat = 0; chat <= 1; chat++) {
        request.kind = chat ? FG_API_CHAT : FG_API_COMPLETION;
        fg_buf_clear(&out);
        fg_api_render_answer(&out, &request, &choice, &usage);
        const char *told = strstr(out.data, "\"prompt_logprobs\""),
                   *cost = strstr(out.data, "\"usage\"");
        cr_assert(told != NULL && cost != NULL && (told > cost) == (chat == 1), "%s", out.data);
    }
    fg_buf_deinit(&out);
    close_world(&w);
}

static bool parse_under_faults(void *ctx)
{
    world *w = ctx;
    fg_arena *kept = w->arena;
    bool ok = false;
    w->arena = fg_arena_create(FG_API_ARENA_BYTES);
    if (w->arena != NULL) {
        ok = parse(w, FG_API_COMPLETION,
                   "{\"prompt\":[\"hello\",[104,195]],\"echo\":true,\"logprobs\":2,"
                   "\"prompt_logprobs\":1}") == FG_OK;
        /* jansson takes a key without memory for a missing one: then it is a 400. */
        cr_assert(ok || w->error.http_status == 503 || strcmp(w->error.code, "invalid_json") == 0,
                  "%d %s", w->error.http_status, w->error.text);
    }
    fg_arena_destroy(w->arena);
    w->arena = kept;
    return ok;
}

Test(api_echo, every_failed_allocation_is_refused)
{
    world w;
    open_world(&w);
    cr_assert(fg_fault_each(parse_under_faults, &w) > 0);
    close_world(&w);
}
