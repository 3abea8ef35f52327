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

/* What the model says of token `index` of the prompt, 1 at least, with at most so many likely ones. */
static fg_logprobs score_of(const fg_api_piece *piece, uint32_t index, uint32_t likely_max)
{
    const fg_scores *scores = piece->scores;
    const fg_likely *likely = scores->likely + (size_t)(index - 1) * scores->likely_count;
    uint32_t count = scores->likely_count < likely_max ? scores->likely_count : likely_max;
    fg_logprobs row = { .chosen = scores->chosen[index - 1] };
    while (row.count < count && likely[row.count].id < fg_tokenizer_vocab_size(piece->tokenizer)) {
        row.likely[row.count] = likely[row.count];
        row.count++;
    }
    return row;
}

/* The prompt's first token follows nothing: of it nothing is said. */
static void put_scores(fg_buf *out, const fg_api_piece *piece, uint32_t index, bool likely,
                       uint32_t likely_max)
{
    if (index == 0) {
        fg_buf_puts(out, "null");
        return;
    }
    fg_logprobs row = score_of(piece, index, likely_max);
    if (likely) {
        put_likely(out, piece->tokenizer, &row);
    } else {
        put_number(out, row.chosen);
    }
}

/* Between the entries of a list: the echoed tokens first, then those of the answer. */
static void put_comma(fg_buf *out, size_t at)
{
    fg_buf_puts(out, at == 0 ? "" : ",");
}

static void put_offsets(fg_buf *out, const fg_api_piece *piece)
{
    size_t offset = piece->text_offset;
    for (uint32_t i = 0; i < piece->echo_count; i++) {
        put_comma(out, i);
        fg_buf_printf(out, "%" PRIu32, piece->prompt.offsets[piece->echo_first + i]);
    }
    for (size_t i = 0; i < piece->token_count; i++) {
        put_comma(out, piece->echo_count + i);
        fg_buf_printf(out, "%zu", offset);
        offset += text_of(piece->tokenizer, piece->ids[i]).characters;
    }
}

static void put_names(fg_buf *out, const fg_api_piece *piece)
{
    for (size_t i = 0; i < piece->echo_count + piece->token_count; i++) {
        uint32_t id = i < piece->echo_count ? piece->prompt.tokens[piece->echo_first + i]
                                            : piece->ids[i - piece->echo_count];
        token_text text = text_of(piece->tokenizer, id);
        put_comma(out, i);
        put_token(out, &text);
    }
}

/* Logprobs of the tokens, or of those that were likely there. */
static void put_list(fg_buf *out, const fg_api_piece *piece, bool likely, uint32_t likely_max)
{
    for (uint32_t i = 0; i < piece->echo_count; i++) {
        put_comma(out, i);
        put_scores(out, piece, piece->echo_first + i, likely, likely_max);
    }
    for (size_t i = 0; i < piece->token_count; i++) {
        put_comma(out, piece->echo_count + i);
        if (likely) {
            put_likely(out, piece->tokenizer, &piece->logprobs[i]);
        } else {
            put_number(out, piece->logprobs[i].chosen);
        }
    }
}

static void put_for_completion(fg_buf *out, const fg_api_piece *piece, uint32_t likely_max)
{
    fg_buf_puts(out, "{\"text_offset\":[");
    put_offsets(out, piece);
    fg_buf_puts(out, "],\"token_logprobs\":[");
    put_list(out, piece, false, likely_max);
    fg_buf_puts(out, "],\"tokens\":[");
    put_names(out, piece);
    fg_buf_puts(out, "],\"top_logprobs\":");
    if (likely_max == 0) {
        fg_buf_puts(out, "null}");
        return;
    }
    fg_buf_putc(out, '[');
    put_list(out, piece, true, likely_max);
    fg_buf_puts(out, "]}");
}

void fg_api_put_logprobs(fg_buf *out, const fg_request *request, const fg_api_piece *piece)
{
    if (request->params.want_logprobs == 0 ||
        (request->stream && piece->token_count + piece->echo_count == 0)) {
        fg_buf_puts(out, ",\"logprobs\":null");
        return;
    }
    fg_buf_puts(out, ",\"logprobs\":");
    if (request->kind == FG_API_CHAT) {
        put_for_chat(out, piece->tokenizer, piece);
    } else {
        put_for_completion(out, piece, request->params.want_logprobs - 1);
    }
}

size_t fg_api_characters_of(const fg_tokenizer *tokenizer, uint32_t id)
{
    return text_of(tokenizer, id).characters;
}

/* vLLM's: an object of ids for each token, its own first, then the likely ones by rank. */
static void put_ranked(fg_buf *out, const fg_api_piece *piece, uint32_t index, uint32_t likely_max)
{
    fg_logprobs row = score_of(piece, index, likely_max);
    fg_likely own = { .id = piece->prompt.tokens[index], .logprob = row.chosen };
    for (uint32_t k = 0; k <= row.count; k++) {
        const fg_likely *entry = k == 0 ? &own : &row.likely[k - 1];
        if (k > 0 && entry->id == own.id) {
            continue;
        }
        token_text text = text_of(piece->tokenizer, entry->id);
        fg_buf_printf(out,
                      k == 0 ? "{\"%" PRIu32 "\":{\"logprob\":" : ",\"%" PRIu32 "\":{\"logprob\":",
                      entry->id);
        put_number(out, entry->logprob);
        fg_buf_printf(out, ",\"rank\":%" PRIu32 ",\"decoded_token\":",
                      k == 0 ? piece->scores->ranks[index - 1] : k);
        put_token(out, &text);
        fg_buf_putc(out, '}');
    }
    fg_buf_putc(out, '}');
}

void fg_api_put_prompt(fg_buf *out, const fg_request *request, const fg_api_piece *piece)
{
    if (request->prompt_logprobs > 0) {
        fg_buf_puts(out, ",\"prompt_logprobs\":[null");
        for (uint32_t i = 1; i < piece->prompt.token_count; i++) {
            fg_buf_putc(out, ',');
            put_ranked(out, piece, i, request->prompt_logprobs - 1);
        }
        fg_buf_putc(out, ']');
    }
    if (request->return_token_ids && (request->prompt_logprobs > 0 || request->echo) &&
        piece->echo_first == 0 && (!request->stream || piece->echo_length > 0)) {
        fg_buf_puts(out, ",\"prompt_token_ids\":[");
        for (uint32_t i = 0; i < piece->prompt.token_count; i++) {
            fg_buf_printf(out, i == 0 ? "%" PRIu32 : ",%" PRIu32, piece->prompt.tokens[i]);
        }
        fg_buf_putc(out, ']');
    }
}
