/* `logprobs` of a choice, in the two shapes that OpenAI's clients know: chat's list of tokens, and the parallel lists of
 * completions. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/utf8.h"
#include "router/api.h"

/* What a client can read for minus infinity, and for what is no number. */
#define LEAST_LOGPROB (-9999.0f)

typedef struct token_text {
    const char *bytes;
    size_t length;
    size_t characters; /* 0: it is no UTF-8 */
} token_text;

static token_text text_of(const fg_tokenizer *tokenizer, uint32_t id)
{
    token_text text = { 0 };
    text.bytes = fg_tokenizer_piece(tokenizer, id, true, &text.length);
    for (size_t at = 0; at < text.length;) {
        size_t step = fg_utf8_length(text.bytes + at, text.length - at);
        if (step == 0) {
            text.characters = 0;
            break;
        }
        at += step;
        text.characters++;
    }
    return text;
}

/* A token by its text; a piece of a character by its bytes, so that no two tokens look the same. */
static void put_token(fg_buf *out, const token_text *text)
{
    fg_buf_putc(out, '"');
    if (text->characters > 0 || text->length == 0) {
        fg_buf_json_escape(out, text->bytes, text->length);
    } else {
        fg_buf_puts(out, "bytes:");
        for (size_t i = 0; i < text->length; i++) {
            fg_buf_printf(out, "\\\\x%02x", (unsigned char)text->bytes[i]);
        }
    }
    fg_buf_putc(out, '"');
}

static void put_number(fg_buf *out, float logprob)
{
    fg_buf_printf(out, "%.9g", (double)(logprob > LEAST_LOGPROB ? logprob : LEAST_LOGPROB));
}

/* {"token","logprob","bytes": without the last brace. */
static void put_entry(fg_buf *out, const fg_tokenizer *tokenizer, uint32_t id, float logprob)
{
    token_text text = text_of(tokenizer, id);
    fg_buf_puts(out, "{\"token\":");
    put_token(out, &text);
    fg_buf_puts(out, ",\"logprob\":");
    put_number(out, logprob);
    fg_buf_puts(out, ",\"bytes\":[");
    for (size_t i = 0; i < text.length; i++) {
        fg_buf_printf(out, i == 0 ? "%u" : ",%u", (unsigned char)text.bytes[i]);
    }
    fg_buf_putc(out, ']');
}

static void put_for_chat(fg_buf *out, const fg_tokenizer *tokenizer, const fg_api_piece *piece)
{
    fg_buf_puts(out, "{\"content\":[");
    for (size_t i = 0; i < piece->token_count; i++) {
        const fg_logprobs *row = &piece->logprobs[i];
        fg_buf_puts(out, i == 0 ? "" : ",");
        put_entry(out, tokenizer, piece->ids[i], row->chosen);
        fg_buf_puts(out, ",\"top_logprobs\":[");
        for (uint32_t k = 0; k < row->count; k++) {
            fg_buf_puts(out, k == 0 ? "" : ",");
            put_entry(out, tokenizer, row->likely[k].id, row->likely[k].logprob);
            fg_buf_putc(out, '}');
        }
        fg_buf_puts(out, "]}");
    }
    fg_buf_puts(out, "],\"refusal\":null}");
}

/* Whether a likelier token of the row has the same text: an object has a name once. */
static bool is_named(const fg_tokenizer *tokenizer, const fg_logprobs *row, uint32_t k)
{
    token_text text = text_of(tokenizer, row->likely[k].id);
    for (uint32_t i = 0; i < k; i++) {
        token_text other = text_of(tokenizer, row->likely[i].id);
        if (other.length == text.length && memcmp(other.bytes, text.bytes, text.length) == 0) {
            return true;
        }
    }
    return false;
}

static void put_likely(fg_buf *out, const fg_tokenizer *tokenizer, const fg_logprobs *row)
{
    bool first = true;
    fg_buf_putc(out, '{');
    for (uint32_t k = 0; k < row->count; k++) {
        if (is_named(tokenizer, row, k)) {
            continue;
        }
        token_text text = text_of(tokenizer, row->likely[k].id);
        fg_buf_puts(out, first ? "" : ",");
        put_token(out, &text);
        fg_buf_putc(out, ':');
        put_number(out, row->likely[k].logprob);
        first = false;
    }
    fg_buf_putc(out, '}');
}

static void put_for_completion(fg_buf *out, const fg_tokenizer *tokenizer,
                               const fg_api_piece *piece, bool with_likely)
{
    size_t offset = piece->text_offset;
    fg_buf_puts(out, "{\"text_offset\":[");
    for (size_t i = 0; i < piece->token_count; i++) {
        fg_buf_printf(out, i == 0 ? "%zu" : ",%zu", offset);
        offset += text_of(tokenizer, piece->ids[i]).characters;
    }
    fg_buf_puts(out, "],\"token_logprobs\":[");
    for (size_t i = 0; i < piece->token_count; i++) {
        fg_buf_puts(out, i == 0 ? "" : ",");
        put_number(out, piece->logprobs[i].chosen);
    }
    fg_buf_puts(out, "],\"tokens\":[");
    for (size_t i = 0; i < piece->token_count; i++) {
        token_text text = text_of(tokenizer, piece->ids[i]);
        fg_buf_puts(out, i == 0 ? "" : ",");
        put_token(out, &text);
    }
    fg_buf_puts(out, "],\"top_logprobs\":");
    fg_buf_puts(out, with_likely ? "[" : "null");
    for (size_t i = 0; i < piece->token_count && with_likely; i++) {
        fg_buf_puts(out, i == 0 ? "" : ",");
        put_likely(out, tokenizer, &piece->logprobs[i]);
    }
    fg_buf_puts(out, with_likely ? "]}" : "}");
}

void fg_api_put_logprobs(fg_buf *out, const fg_request *request, const fg_api_piece *piece)
{
    if (request->params.want_logprobs == 0 || (request->stream && piece->token_count == 0)) {
        fg_buf_puts(out, ",\"logprobs\":null");
        return;
    }
    fg_buf_puts(out, ",\"logprobs\":");
    if (request->kind == FG_API_CHAT) {
        put_for_chat(out, piece->tokenizer, piece);
    } else {
        put_for_completion(out, piece->tokenizer, piece, request->params.want_logprobs > 1);
    }
}

size_t fg_api_characters_of(const fg_tokenizer *tokenizer, uint32_t id)
{
    return text_of(tokenizer, id).characters;
}
