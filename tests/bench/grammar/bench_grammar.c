/*
 * bench_grammar - what structured output costs over a vocabulary of 128,000 made-up tokens: words with and without a space
 * before them, numbers, marks, runs of spaces, pieces of other scripts.
 *
 *   bench_grammar
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/rng.h"
#include "common/grammar/automaton.h"

enum { TOKENS = 128000, END = TOKENS - 1, TEXT_MAX = 40, MEMORY = 64 << 20 };

static char texts[TOKENS][TEXT_MAX];
static size_t lengths[TOKENS];

static const char *token_text(void *ctx, uint32_t id, size_t *length_out)
{
    (void)ctx;
    *length_out = lengths[id];
    return texts[id];
}

static bool token_ends(void *ctx, uint32_t id)
{
    (void)ctx;
    return id == END;
}

static void make_word(fg_rng *rng, char *text, size_t *length)
{
    static const char often[] = "eeeetttaaaooiinnsshhrrdlcumwfgypbvk";
    static const char marks[] = "\"',.:;()[]{}<>=+-*/\\_#$%&|!?@\n\t ";
    size_t count = 1 + fg_rng_below(rng, 9);
    uint64_t kind = fg_rng_below(rng, 20);
    *length = 0;
    if (kind < 9) {
        text[(*length)++] = ' ';
    }
    for (size_t i = 0; i < count; i++) {
        if (kind < 14) {
            text[(*length)++] = often[fg_rng_below(rng, sizeof often - 1)];
        } else if (kind == 14) {
            text[(*length)++] = marks[fg_rng_below(rng, sizeof marks - 1)];
        } else if (kind == 15) {
            text[(*length)++] = i < count / 2 ? often[fg_rng_below(rng, 33)]
                                              : marks[fg_rng_below(rng, sizeof marks - 1)];
        } else { /* two or three bytes each */
            uint32_t code = kind < 18 ? 0x400 + (uint32_t)fg_rng_below(rng, 80)
                                      : 0x4E00 + (uint32_t)fg_rng_below(rng, 3000);
            if (code >= 0x800) {
                text[(*length)++] = (char)(0xE0 | code >> 12);
                text[(*length)++] = (char)(0x80 | (code >> 6 & 0x3F));
            } else {
                text[(*length)++] = (char)(0xC0 | code >> 6);
            }
            text[(*length)++] = (char)(0x80 | (code & 0x3F));
        }
    }
}

static void make_vocabulary(void)
{
    fg_rng rng = { 1 };
    for (uint32_t id = 0; id < TOKENS; id++) {
        if (id < 256) {
            texts[id][0] = (char)id;
            lengths[id] = 1;
        } else if (id < 256 + 1110) { /* numbers of up to three digits */
            uint32_t number = id - 256;
            lengths[id] =
                (size_t)(number < 10    ? snprintf(texts[id], TEXT_MAX, "%u", number)
                         : number < 110 ? snprintf(texts[id], TEXT_MAX, "%02u", number - 10)
                                        : snprintf(texts[id], TEXT_MAX, "%03u", number - 110));
        } else if (id < 256 + 1110 + 32) {
            lengths[id] = id - 256 - 1110 + 2;
            memset(texts[id], ' ', lengths[id]);
        } else {
            make_word(&rng, texts[id], &lengths[id]);
        }
    }
}

static uint64_t now_ns(void)
{
    fg_clock clock = fg_clock_real();
    return fg_clock_now_ns(&clock);
}

static double since_us(uint64_t from_ns)
{
    return (double)(now_ns() - from_ns) / 1e3;
}

static unsigned count_bits(const uint64_t *mask, size_t words)
{
    unsigned count = 0;
    for (size_t i = 0; i < words; i++) {
        count += (unsigned)__builtin_popcountll(mask[i]);
    }
    return count;
}

/* Masks along a text: all of them new, then all of them known; and steps alone. */
static void measure(const fg_lexicon *lexicon, fg_grammar_kind kind, const char *grammar_text,
                    const char *about, const char *prefix, const char *text)
{
    fg_grammar *grammar = NULL;
    fg_automaton *a = NULL;
    fg_error err = { 0 };
    uint64_t begun = now_ns();
    if (fg_grammar_compile(kind, grammar_text, strlen(grammar_text), &grammar, &err) != FG_OK ||
        fg_automaton_create(grammar, lexicon, MEMORY, &a, &err) != FG_OK) {
        fprintf(stderr, "%s: %s\n", about, err.text);
        exit(1);
    }
    double compile_us = since_us(begun);
    fg_state state = fg_automaton_feed(a, fg_automaton_start(a), prefix, strlen(prefix));
    begun = now_ns();
    unsigned allowed = count_bits(fg_automaton_mask(a, state), fg_lexicon_words(lexicon));
    double first_us = since_us(begun);
    double worst_us = 0;
    size_t length = strlen(text);
    fg_state walk = state;
    begun = now_ns();
    for (size_t i = 0; i < length; i++) {
        uint64_t one = now_ns();
        walk = fg_automaton_feed(a, walk, text + i, 1);
        fg_automaton_mask(a, walk);
        worst_us = since_us(one) > worst_us ? since_us(one) : worst_us;
    }
    double new_us = since_us(begun) / (double)length;
    enum { ROUNDS = 2000 };
    begun = now_ns();
    for (int round = 0; round < ROUNDS; round++) {
        walk = state;
        for (size_t i = 0; i < length; i++) {
            walk = fg_automaton_feed(a, walk, text + i, 1);
            fg_automaton_mask(a, walk);
        }
    }
    double known_us = since_us(begun) / (double)length / ROUNDS;
    printf("%-28s compile %7.0f us, first mask %6.0f us (%6u tokens), new %6.1f us (worst %6.0f), "
           "known "
           "%5.3f us, %5.1f MB\n",
           about, compile_us, first_us, allowed, new_us, worst_us, known_us,
           (double)fg_automaton_used_bytes(a) / 1e6);
    if (walk == FG_STATE_DEAD) {
        printf("  (the text is not allowed)\n");
    }
    fg_automaton_destroy(a);
    fg_grammar_destroy(grammar);
}

int main(void)
{
    static const char person[] = "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":"
                                 "\"string\"},\"age\":{\"type\":\"integer\","
                                 "\"minimum\":0,\"maximum\":150},\"notes\":{\"type\":\"array\","
                                 "\"items\":{\"type\":\"string\","
                                 "\"maxLength\":200}}},\"required\":[\"name\",\"age\",\"notes\"],"
                                 "\"additionalProperties\":false}";
    static const char answer[] =
        "{\"name\": \"Ada Lovelace\", \"age\": 36, \"notes\": [\"first of all\", \"counts\"]}";
    fg_lexicon *lexicon = NULL;
    make_vocabulary();
    uint64_t begun = now_ns();
    if (fg_lexicon_create(TOKENS, token_text, token_ends, NULL, &lexicon, NULL) != FG_OK) {
        return 1;
    }
    printf("lexicon of %d tokens: %.0f ms, %.1f MB\n", TOKENS, since_us(begun) / 1e3,
           (double)fg_lexicon_bytes(lexicon) / 1e6);
    measure(lexicon, FG_GRAMMAR_JSON, "", "any object, in a string", "{\"key\": \"",
            "some more words");
    measure(lexicon, FG_GRAMMAR_JSON, "", "any object, all of it", "", answer);
    measure(lexicon, FG_GRAMMAR_SCHEMA, person, "schema, all of it", "", answer);
    measure(lexicon, FG_GRAMMAR_SCHEMA, person, "schema, string of 200",
            "{\"name\":\"\",\"age\":1,\"notes\":[\"", "some more words");
    measure(lexicon, FG_GRAMMAR_REGEX, "[a-z]+@[a-z]+\\.(com|org)", "regex, mail", "",
            "somebody@example.org");
    measure(lexicon, FG_GRAMMAR_REGEX, ".*", "regex, anything", "", "some more words");
    measure(lexicon, FG_GRAMMAR_CHOICE, "[\"yes\",\"no\",\"maybe\"]", "choice", "", "maybe");
    fg_lexicon_destroy(lexicon);
    return 0;
}
