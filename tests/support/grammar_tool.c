/*
 * grammar_tool - compiles grammars, checks texts against them and makes texts of them, for test programs in other
 * languages.
 *
 * Standard input, again and again: kind ("json", "schema", "regex", "choice", "gbnf"), grammar, how many texts to make,
 * seed, how many texts to check, and those. Standard output, for each: "ok" or "refused", what is wrong, the texts made,
 * each behind "+" (complete) or "-" (cut off, or nothing can follow), then "1" or "0" for each text checked. A text is
 * a 32-bit little-endian length and its bytes, on both sides. The vocabulary is all bytes and an end token.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/rng.h"
#include "common/grammar/automaton.h"
#include "tests/support/text_pipe.h"

enum { END = 256, TOKENS = 257, BYTES_MAX = 6000, LONG = 200, MEMORY = 64 << 20 };

__attribute__((noreturn)) static void die(const char *what)
{
    fg_pipe_die("grammar_tool", what);
}

static const char *token_text(void *ctx, uint32_t id, size_t *length_out)
{
    (void)ctx;
    static char byte;
    byte = (char)id;
    *length_out = 1;
    return &byte;
}

static bool token_ends(void *ctx, uint32_t id)
{
    (void)ctx;
    return id == END;
}

static bool allowed(const uint64_t *mask, uint32_t id)
{
    return mask[id / 64] >> (id % 64) & 1;
}

/* Ends soon, and uses letters more often than anything else. */
static uint32_t choose(fg_rng *rng, const uint64_t *mask, size_t length)
{
    static const char closing[] = "\"]}";
    if (allowed(mask, END) && (length > LONG || fg_rng_below(rng, 3) == 0)) {
        return END;
    }
    for (size_t i = 0; i < 3; i++) {
        if (allowed(mask, (unsigned char)closing[i]) &&
            fg_rng_below(rng, length > LONG ? 2 : 10) == 0) {
            return (unsigned char)closing[i];
        }
    }
    for (int attempt = 0; attempt < 20; attempt++) {
        uint32_t id = fg_rng_below(rng, 4) > 0 ? 0x20 + (uint32_t)fg_rng_below(rng, 0x5F)
                                               : (uint32_t)fg_rng_below(rng, 256);
        if (allowed(mask, id)) {
            return id;
        }
    }
    uint32_t seen = 0, chosen = TOKENS;
    for (uint32_t id = 0; id < TOKENS; id++) {
        if (allowed(mask, id) && fg_rng_below(rng, ++seen) == 0) {
            chosen = id;
        }
    }
    return chosen;
}

static void make_text(fg_automaton *automaton, fg_rng *rng)
{
    fg_buf text;
    fg_buf_init(&text, 0);
    fg_buf_putc(&text, '-');
    fg_state state = fg_automaton_start(automaton);
    while (text.size < BYTES_MAX) {
        const uint64_t *mask = fg_automaton_mask(automaton, state);
        uint32_t token = mask == NULL ? TOKENS : choose(rng, mask, text.size);
        if (token >= END) {
            text.data[0] = token == END ? '+' : '-';
            break;
        }
        state = fg_automaton_take(automaton, state, token);
        fg_buf_putc(&text, (char)token);
    }
    fg_pipe_write(text.data, text.size);
    fg_buf_deinit(&text);
}

static fg_grammar_kind kind_of(const char *name)
{
    static const char *const names[] = { "none", "json", "schema", "regex", "choice", "gbnf" };
    for (int i = 0; i < 6; i++) {
        if (strcmp(names[i], name) == 0) {
            return (fg_grammar_kind)i;
        }
    }
    die("no such kind");
}

static char *must_read(size_t *length_out)
{
    char *text = fg_pipe_read("grammar_tool", length_out);
    if (text == NULL) {
        die("cut-off input");
    }
    return text;
}

static uint64_t read_number(void)
{
    size_t length;
    char *text = must_read(&length);
    uint64_t number = strtoull(text, NULL, 10);
    fg_mem_free(text);
    return number;
}

static void answer(const fg_grammar *grammar, const fg_lexicon *lexicon, uint64_t samples,
                   uint64_t seed, uint64_t count)
{
    fg_automaton *automaton = NULL;
    fg_rng rng = { seed };
    if (grammar != NULL &&
        fg_automaton_create(grammar, lexicon, MEMORY, &automaton, NULL) != FG_OK) {
        die("out of memory");
    }
    for (uint64_t i = 0; i < samples && grammar != NULL; i++) {
        make_text(automaton, &rng);
    }
    for (uint64_t i = 0; i < count; i++) {
        size_t length;
        char *text = must_read(&length);
        if (grammar != NULL) {
            fg_state state =
                fg_automaton_feed(automaton, fg_automaton_start(automaton), text, length);
            fg_pipe_write(fg_automaton_may_end(automaton, state) ? "1" : "0", 1);
        }
        fg_mem_free(text);
    }
    fg_automaton_destroy(automaton);
}

int main(void)
{
    fg_lexicon *lexicon = NULL;
    if (fg_lexicon_create(TOKENS, token_text, token_ends, NULL, &lexicon, NULL) != FG_OK) {
        die("out of memory");
    }
    size_t length;
    for (char *kind; (kind = fg_pipe_read("grammar_tool", &length)) != NULL; fg_mem_free(kind)) {
        char *text = must_read(&length);
        uint64_t samples = read_number();
        uint64_t seed = read_number();
        uint64_t count = read_number();
        fg_grammar *grammar = NULL;
        fg_error err = { 0 };
        const char *state = fg_grammar_compile(kind_of(kind), text, length, &grammar, &err) == FG_OK
                                ? "ok"
                                : "refused";
        fg_pipe_write(state, strlen(state));
        fg_pipe_write(err.text, strlen(err.text));
        answer(grammar, lexicon, samples, seed, count);
        fg_grammar_destroy(grammar);
        fg_mem_free(text);
    }
    fg_lexicon_destroy(lexicon);
    return 0;
}
