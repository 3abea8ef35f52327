/* What answers look like. */
#include <math.h>
#include <string.h>

#include "router/api.h"
#include "tests/support/test.h"
#include "tests/unit/router/tiny_model.h"

static const uint32_t some_ids[] = { 7, 8 };
static const uint64_t some_digests[] = { 1, 0xABCDEF0123456789u };

static fg_api_piece some_piece(void)
{
    return (fg_api_piece){
        .text = "say \"hi\"\n",
        .text_length = 9,
        .ids = some_ids,
        .digests = some_digests,
        .token_count = 2,
        .rolling_digest = 255,
    };
}

Test(api_render, answers_have_openais_shape)
{
    fg_request request = { .kind = FG_API_CHAT,
                           .token_count = 3,
                           .choice_count = 1,
                           .model = "m\"x",
                           .id = "chatcmpl-1",
                           .fingerprint = "fp",
                           .created_s = 9 };
    fg_api_choice choice = { .piece = some_piece(), .finish = FG_FINISH_LENGTH };
    fg_api_usage usage = { .completion_tokens = 2, .cached_tokens = 1 };
    fg_buf out;
    fg_buf_init(&out, 0);
    fg_api_render_answer(&out, &request, &choice, &usage);
    cr_assert_str_eq(
        out.data,
        "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"created\":9,\"model\":\"m\\\"x\","
        "\"system_fingerprint\":\"fp\",\"choices\":[{\"index\":0,\"message\":{\"role\":"
        "\"assistant\",\"content\":\"say \\\"hi\\\"\\n\",\"refusal\":null},\"logprobs\":null,"
        "\"finish_reason\":\"length\"}],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,"
        "\"total_tokens\":5,\"prompt_tokens_details\":{\"cached_tokens\":1}}}");
    fg_buf_clear(&out);
    request.kind = FG_API_COMPLETION;
    request.fingerprint = NULL;
    request.return_token_ids = true;
    request.logits_digest = true;
    choice.finish = FG_FINISH_STOP;
    usage.cached_tokens = 0;
    fg_api_render_answer(&out, &request, &choice, &usage);
    cr_assert_str_eq(
        out.data,
        "{\"id\":\"chatcmpl-1\",\"object\":\"text_completion\",\"created\":9,\"model\":\"m\\\"x\","
        "\"system_fingerprint\":null,\"choices\":[{\"index\":0,\"text\":\"say \\\"hi\\\"\\n\","
        "\"logprobs\":null,\"finish_reason\":\"stop\",\"token_ids\":[7,8],\"forge\":{"
        "\"token_ids\":[7,8],\"digests\":[\"0000000000000001\",\"abcdef0123456789\"],"
        "\"rolling\":\"00000000000000ff\"}}],\"usage\":{\"prompt_tokens\":3,"
        "\"completion_tokens\":2,\"total_tokens\":5,\"prompt_tokens_details\":{"
        "\"cached_tokens\":0}}}");
    fg_buf_deinit(&out);
}

/* Tokens of the tiny model: a letter, a quote, the first byte of a character. */
static fg_api_piece likely_piece(const fg_tokenizer *tokenizer)
{
    static const uint32_t ids[] = { 'h', '"', 0xC3 };
    static const fg_logprobs logprobs[] = {
        { .chosen = -0.5f, .count = 2, .likely = { { 'h', -0.5f }, { 'i', -1.0f } } },
        { .chosen = -3.0f, .count = 2, .likely = { { 'a', -0.25f }, { 0xC3, -2.0f } } },
        { .chosen = -(float)INFINITY, .count = 0 },
    };
    return (fg_api_piece){ .text = "h\"",
                           .text_length = 2,
                           .ids = ids,
                           .logprobs = logprobs,
                           .token_count = 3,
                           .text_offset = 4,
                           .tokenizer = tokenizer };
}

Test(api_render, logprobs_have_the_shapes_of_openai)
{
    tiny_model model;
    fg_buf out;
    fg_request request = { .kind = FG_API_CHAT, .params.want_logprobs = 3 };
    tiny_model_open(&model);
    fg_buf_init(&out, 0);
    fg_api_piece piece = likely_piece(model.tokenizer);
    fg_api_put_logprobs(&out, &request, &piece);
    cr_assert_str_eq(
        out.data,
        ",\"logprobs\":{\"content\":[{\"token\":\"h\",\"logprob\":-0.5,\"bytes\":[104],"
        "\"top_logprobs\":[{\"token\":\"h\",\"logprob\":-0.5,\"bytes\":[104]},{\"token\":\"i\","
        "\"logprob\":-1,\"bytes\":[105]}]},{\"token\":\"\\\"\",\"logprob\":-3,\"bytes\":[34],"
        "\"top_logprobs\":[{\"token\":\"a\",\"logprob\":-0.25,\"bytes\":[97]},{\"token\":"
        "\"bytes:\\\\xc3\",\"logprob\":-2,\"bytes\":[195]}]},{\"token\":\"bytes:\\\\xc3\","
        "\"logprob\":-9999,\"bytes\":[195],\"top_logprobs\":[]}],\"refusal\":null}");
    request.kind = FG_API_COMPLETION;
    fg_buf_clear(&out);
    fg_api_put_logprobs(&out, &request, &piece);
    cr_assert_str_eq(out.data,
                     ",\"logprobs\":{\"text_offset\":[4,5,6],\"token_logprobs\":[-0.5,-3,-9999],"
                     "\"tokens\":[\"h\",\"\\\"\",\"bytes:\\\\xc3\"],\"top_logprobs\":[{\"h\":-0.5,"
                     "\"i\":-1},{\"a\":-0.25,\"bytes:\\\\xc3\":-2},{}]}");
    request.params.want_logprobs = 1; /* of the chosen ones alone */
    piece.token_count = 1;
    fg_buf_clear(&out);
    fg_api_put_logprobs(&out, &request, &piece);
    cr_assert_str_eq(out.data, ",\"logprobs\":{\"text_offset\":[4],\"token_logprobs\":[-0.5],"
                               "\"tokens\":[\"h\"],\"top_logprobs\":null}");
    request.params.want_logprobs = 0;
    fg_buf_clear(&out);
    fg_api_put_logprobs(&out, &request, &piece);
    cr_assert_str_eq(out.data, ",\"logprobs\":null");
    fg_buf_deinit(&out);
    tiny_model_close(&model);
}

Test(api_render, errors_have_all_four_keys)
{
    fg_api_error error;
    fg_buf out;
    fg_buf_init(&out, 0);
    fg_api_refuse(&error, FG_BAD_INPUT, 404, "model", "model_not_found", "no '%s'", "x");
    fg_api_render_error(&out, &error);
    cr_assert_str_eq(out.data, "{\"error\":{\"message\":\"no 'x'\",\"type\":\"not_found_error\","
                               "\"param\":\"model\",\"code\":\"model_not_found\"}}");
    fg_buf_clear(&out);
    fg_api_refuse(&error, FG_PEER_LOST, 503, NULL, NULL, "gone");
    fg_api_render_error(&out, &error);
    cr_assert_str_eq(out.data, "{\"error\":{\"message\":\"gone\",\"type\":\"server_error\","
                               "\"param\":null,\"code\":null}}");
    fg_buf_deinit(&out);
}

Test(api_render, the_rolling_digest_depends_on_every_row_and_their_order)
{
    uint64_t ab = fg_api_roll_digest(fg_api_roll_digest(0, 1), 2);
    uint64_t ba = fg_api_roll_digest(fg_api_roll_digest(0, 2), 1);
    cr_assert_neq(ab, ba);
    cr_assert_eq(ab, fg_api_roll_digest(fg_api_roll_digest(0, 1), 2));
}
