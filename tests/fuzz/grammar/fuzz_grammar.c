/*
 * A kind, a grammar, a line of 0xFF and bytes to match: the grammar is compiled, or refused with a reason; masks agree with
 * the bytes that are taken, and are the same after everything was forgotten.
 */
#include <stdlib.h>
#include <string.h>

#include "common/grammar/automaton.h"

enum { TOKENS = 257, END = 256, FED_MAX = 64 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes);

static const char *token_text(void *ctx, uint32_t id, size_t *length_out)
{
    static char byte;
    (void)ctx;
    byte = (char)id;
    *length_out = 1;
    return &byte;
}

static bool token_ends(void *ctx, uint32_t id)
{
    (void)ctx;
    return id == END;
}

static bool has(const uint64_t *mask, uint32_t id)
{
    return mask[id / 64] >> (id % 64) & 1;
}

/* Takes the bytes as long as they are allowed. */
static void feed(const fg_grammar *grammar, const fg_lexicon *lexicon, const uint8_t *bytes,
                 size_t count)
{
    fg_automaton *a = NULL;
    fg_tracker tracker = { 0 };
    uint32_t tokens[FED_MAX];
    FG_ASSERT(fg_automaton_create(grammar, lexicon, 0, &a, NULL) == FG_OK);
    fg_state state = fg_automaton_start(a);
    for (size_t i = 0; i < count && i < FED_MAX && state != FG_STATE_DEAD; i++) {
        const uint64_t *mask = fg_automaton_mask(a, state);
        FG_ASSERT(mask != NULL && has(mask, END) == fg_automaton_may_end(a, state));
        bool allowed = has(mask, bytes[i]);
        tokens[i] = bytes[i];
        state = fg_automaton_take(a, state, bytes[i]);
        FG_ASSERT(allowed == (state != FG_STATE_DEAD));
        FG_ASSERT(fg_tracker_state(&tracker, a, tokens, i + 1) == state);
    }
    fg_automaton_destroy(a);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    if (size_bytes == 0) {
        return 0;
    }
    fg_grammar_kind kind = (fg_grammar_kind)(bytes[0] % 6);
    const uint8_t *end = (const uint8_t *)memchr(bytes + 1, 0xFF, size_bytes - 1);
    size_t length = end == NULL ? size_bytes - 1 : (size_t)(end - bytes) - 1;
    size_t behind = end == NULL ? 0 : size_bytes - length - 2;
    /* A copy of the exact size, so that a sanitizer sees every byte too far. */
    char *text = (char *)malloc(length == 0 ? 1 : length);
    fg_grammar *grammar = NULL;
    fg_lexicon *lexicon = NULL;
    fg_error err = { 0 };
    FG_ASSERT(text != NULL);
    FG_ASSERT(fg_lexicon_create(TOKENS, token_text, token_ends, NULL, &lexicon, NULL) == FG_OK);
    memcpy(text, bytes + 1, length);
    if (fg_grammar_compile(kind, text, length, &grammar, &err) == FG_OK) {
        feed(grammar, lexicon, end == NULL ? bytes : end + 1, behind);
    } else {
        FG_ASSERT(grammar == NULL && err.text[0] != '\0');
    }
    free(text);
    fg_grammar_destroy(grammar);
    fg_lexicon_destroy(lexicon);
    return 0;
}
