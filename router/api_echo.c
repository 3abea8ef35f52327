/* `echo` and `prompt_logprobs`: what a client wants back of its own prompts. */
#include <inttypes.h>
#include <string.h>

#include "common/base/limits.h"
#include "common/base/utf8.h"
#include "router/api_internal.h"

/* A prompt's text while it is put together from its tokens. */
typedef struct spelling {
    const fg_tokenizer *tokenizer;
    char *text;
    size_t length;
    size_t counted; /* bytes of it that are whole characters */
    uint32_t characters;
    bool begun; /* its first token with a text of the client's is in it */
} spelling;

/* Whether more bytes may make a character of these. */
static bool may_become_one(const char *text, size_t length)
{
    const unsigned char *bytes = (const unsigned char *)text;
    size_t need = bytes[0] >= 0xF0 ? 4 : bytes[0] >= 0xE0 ? 3 : 2;
    bool may = bytes[0] >= 0xC2 && bytes[0] <= 0xF4 && length < need;
    for (size_t i = 1; may && i < length; i++) {
        may = (bytes[i] & 0xC0) == 0x80;
    }
    return may;
}

/* Counts what is whole. The beginning of a character waits for the rest, what is none counts a character a byte. */
static void count_characters(spelling *s)
{
    while (s->counted < s->length) {
        size_t left = s->length - s->counted;
        size_t step = fg_utf8_length(s->text + s->counted, left);
        if (step == 0 && may_become_one(s->text + s->counted, left)) {
            return;
        }
        s->counted += step == 0 ? 1 : step;
        s->characters++;
    }
}

/* Encoding puts a space in front of some texts, and a BOS that the client did not write. */
static void spell(spelling *s, uint32_t id, bool is_text, bool writes_bos)
{
    size_t length;
    const char *piece = fg_tokenizer_piece(s->tokenizer, id, true, &length);
    bool is_bos = id == fg_tokenizer_bos(s->tokenizer);
    if (!s->begun && is_bos && is_text && !writes_bos) {
        return;
    }
    if (!s->begun && !is_bos) {
        s->begun = true;
        size_t skip = length > 0 && piece[0] == ' ' && fg_tokenizer_adds_space(s->tokenizer);
        piece += skip;
        length -= skip;
    }
    memcpy(s->text + s->length, piece, length);
    s->length += length;
    count_characters(s);
}

static size_t spelled_bytes(const fg_tokenizer *tokenizer, const fg_prompt *prompt)
{
    size_t total = 0;
    for (uint32_t i = 0; i < prompt->token_count; i++) {
        size_t length;
        fg_tokenizer_piece(tokenizer, prompt->tokens[i], true, &length);
        total += length;
    }
    return total;
}

static bool begins_with_piece(const fg_tokenizer *tokenizer, const fg_prompt *prompt, uint32_t id)
{
    size_t length = 0;
    const char *piece = id == UINT32_MAX ? "" : fg_tokenizer_piece(tokenizer, id, true, &length);
    return length > 0 && prompt->text_length >= length && memcmp(prompt->text, piece, length) == 0;
}

/* The text of a prompt that came as ids; of any prompt, if logprobs are asked for, where its tokens stand in it. */
static fg_status spell_prompt(fg_api_reading *r, fg_prompt *prompt)
{
    const fg_tokenizer *tokenizer = r->server->tokenizer;
    bool is_text = prompt->text != NULL;
    bool with_offsets = r->request->params.want_logprobs > 0;
    if (is_text && !with_offsets) {
        return FG_OK;
    }
    bool writes_bos = is_text && begins_with_piece(tokenizer, prompt, fg_tokenizer_bos(tokenizer));
    spelling s = { .tokenizer = tokenizer };
    s.text = fg_arena_alloc(r->arena, spelled_bytes(tokenizer, prompt) + 1);
    uint32_t *offsets = fg_arena_array(r->arena, (size_t)prompt->token_count + 1, sizeof *offsets);
    if (s.text == NULL || offsets == NULL) {
        return fg_api_no_memory(r);
    }
    for (uint32_t i = 0; i < prompt->token_count; i++) {
        offsets[i] = s.characters;
        spell(&s, prompt->tokens[i], is_text, writes_bos);
    }
    offsets[prompt->token_count] = s.characters + (uint32_t)(s.length - s.counted);
    prompt->offsets = with_offsets ? offsets : NULL;
    if (!is_text) {
        prompt->text = s.text;
        prompt->text_length = s.length;
    }
    return FG_OK;
}

/* All of an answer's are held at once. */
static fg_status check_scores(fg_api_reading *r, const char *name)
{
    const fg_request *request = r->request;
    uint64_t each = request->choice_count / fg_request_prompts(request);
    uint64_t all = fg_request_prompt_tokens(request) * each * request->params.want_scores;
    if (all <= FG_LIMIT_LOGPROBS) {
        return FG_OK;
    }
    return fg_api_wrong_value(r, name,
                              "'n' times the prompt's tokens times the tokens asked about is "
                              "%" PRIu64 "; an answer tells at most %u: ask for less",
                              all, FG_LIMIT_LOGPROBS);
}

static fg_status read_prompt_logprobs(fg_api_reading *r)
{
    if (!r->given[FG_PARAM_PROMPT_LOGPROBS]) {
        return FG_OK;
    }
    if (r->request->stream) {
        return fg_api_wrong_value(r, "prompt_logprobs",
                                  "'prompt_logprobs' does not go with 'stream': true");
    }
    r->request->prompt_logprobs = (uint32_t)r->integer[FG_PARAM_PROMPT_LOGPROBS] + 1;
    return FG_OK;
}

fg_status fg_api_read_echo(fg_api_reading *r)
{
    fg_request *request = r->request;
    fg_status status = read_prompt_logprobs(r);
    if (status != FG_OK) {
        return status;
    }
    uint32_t echoed = request->echo ? request->params.want_logprobs : 0;
    uint32_t asked = request->prompt_logprobs;
    const char *name = asked >= echoed ? "prompt_logprobs" : "logprobs";
    request->params.want_scores = asked > echoed ? asked : echoed;
    if (request->params.want_scores > 0 && request->params.cache_mode == FG_CACHE_FORCE) {
        return fg_api_wrong_value(r, "prefix_cache",
                                  "'prefix_cache': 'force' does not go with '%s' of a prompt: all "
                                  "of it is computed",
                                  name);
    }
    status = check_scores(r, name);
    for (uint32_t i = 0; request->echo && i < request->prompt_count && status == FG_OK; i++) {
        status = spell_prompt(r, &r->prompts[i]);
    }
    return status;
}
