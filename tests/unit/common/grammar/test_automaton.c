#include "common/grammar/automaton.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/fault.h"
#include "common/base/json.h"
#include "common/base/rng.h"
#include "tests/unit/common/grammar/rig.h"

/* Tokens that cross the places where JSON and characters change, some twice, some never allowed. */
static const char *const words[] = {
    "{",
    "}",
    "[",
    "]",
    "\"",
    ":",
    ",",
    "{\"",
    "\":",
    "\",",
    "\",\"",
    "\"}",
    "\"}}",
    "\"]",
    "true",
    "tr",
    "ue",
    "false",
    "null",
    "nu",
    "ll",
    "0",
    "1",
    "12",
    "123",
    "-",
    "-1",
    ".",
    ".5",
    "1.5",
    "e",
    "E+",
    " ",
    "  ",
    "\n",
    "\n  ",
    "\t",
    "a",
    "b",
    "ab",
    "abc",
    "abcd",
    "name",
    "na",
    "me",
    "name\"",
    "\"name",
    "x",
    "hello",
    "he",
    "llo",
    "wor",
    "ld",
    "hello world",
    "\\",
    "\\n",
    "\\u",
    "00",
    "e9",
    "\\\"",
    "d8",
    "dc",
    "\xc3",
    "\xa9",
    "\xc3\xa9",
    "\xe2\x82",
    "\xac",
    "\xe2",
    "\xf0\x9f",
    "\x98\x80",
    "\xff",
    "a\xc3",
    "",
    NULL,
    "a",
    "yes",
    "no",
    "aaaaaaaa",
    "aaaaaaaaaaaaaaaa",
    "\r",
    "/",
    "*",
    "+",
    "=",
    "(",
    ")",
    "()",
    "((",
    "))",
    "c",
    "d",
    "bb",
    "bbb",
    "bcbc",
    "3",
    "4",
    "5",
    "6",
    "7",
    "8",
    "9",
    "2026-",
    "@x",
    ".com",
    NULL,
    "{}",
    "[]",
    "[[",
    "]]",
    "}}",
};
static const vocabulary mixed = { words, NULL, sizeof words / sizeof words[0] };

/* The same and all bytes, so that every text can be written. */
enum { FULL = sizeof words / sizeof words[0] + 256 };

static fg_lexicon *full_lexicon(void)
{
    static char bytes[256];
    static const char *texts[FULL];
    static size_t lengths[FULL];
    vocabulary full = { texts, lengths, FULL };
    for (uint32_t i = 0; i < FULL; i++) {
        uint32_t byte = i - mixed.count;
        texts[i] = i < mixed.count ? words[i] : &bytes[byte];
        lengths[i] = i >= mixed.count ? 1 : words[i] == NULL ? 0 : strlen(words[i]);
        bytes[i < mixed.count ? 0 : byte] = (char)byte;
    }
    return lexicon_of(&full);
}

static const struct {
    fg_grammar_kind kind;
    const char *text;
} grammars[] = {
    { FG_GRAMMAR_JSON, "" },
    { FG_GRAMMAR_SCHEMA, "{}" },
    { FG_GRAMMAR_SCHEMA,
      "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":9},"
      "\"na\":{\"type\":\"integer\",\"minimum\":-5,\"maximum\":123},\"x\":{\"type\":\"array\","
      "\"items\":{\"enum\":[\"a\",\"ab\",12]},\"maxItems\":3}},\"required\":[\"name\"],"
      "\"additionalProperties\":{\"type\":\"number\",\"minimum\":0}}" },
    { FG_GRAMMAR_SCHEMA,
      "{\"anyOf\":[{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}},{\"type\":\"null\"}]}" },
    { FG_GRAMMAR_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^(a|b)*c|[^a-z]\"}" },
    { FG_GRAMMAR_REGEX, "(a|b)*a(a|b){7}" },
    { FG_GRAMMAR_REGEX, ".*x.{3}" },
    { FG_GRAMMAR_REGEX, "[^\\n]{0,40}" },
    { FG_GRAMMAR_REGEX, "" },
    { FG_GRAMMAR_CHOICE, "[\"yes\",\"no\",\"name\",\"\\u20ac\"]" },
    { FG_GRAMMAR_GBNF, "root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"\"" },
    { FG_GRAMMAR_GBNF, "root ::= (\"(\" root \")\")*" },
    { FG_GRAMMAR_GBNF, "root ::= e\ne ::= t ([-+*/] t)*\nt ::= [0-9]+ | \"(\" e \")\"" },
};
enum { GRAMMARS = sizeof grammars / sizeof grammars[0] };

static bool has(const uint64_t *mask, uint32_t id)
{
    return mask[id / 64] >> (id % 64) & 1;
}

/* A mask is what taking each token says. */
static void check_mask(fg_automaton *a, const fg_lexicon *lexicon, fg_state state,
                       const char *about)
{
    uint64_t mask[8];
    size_t count = 0;
    uint32_t last = 0, only = 0;
    const uint64_t *computed = fg_automaton_mask(a, state);
    cr_assert(fg_lexicon_words(lexicon) <= 8 && computed != NULL);
    memcpy(mask, computed, fg_lexicon_words(lexicon) * sizeof *mask);
    for (uint32_t id = 0; id < fg_lexicon_words(lexicon) * 64; id++) {
        bool wanted = fg_lexicon_is_end(lexicon, id)
                          ? fg_automaton_may_end(a, state)
                          : fg_automaton_take(a, state, id) != FG_STATE_DEAD;
        cr_assert_eq(has(mask, id), wanted, "%s: token %u", about, id);
        count += wanted;
        last = wanted ? id : last;
    }
    cr_assert_eq(fg_automaton_only(a, state, &only), count == 1);
    cr_assert(count != 1 || only == last);
    cr_assert_eq(fg_automaton_must_end(a, state),
                 fg_automaton_may_end(a, state) && (count == 2 || count == 0));
}

static uint32_t any_token(fg_rng *rng, const fg_lexicon *lexicon, const uint64_t *mask)
{
    uint32_t seen = 0, chosen = UINT32_MAX;
    for (uint32_t id = 0; id < fg_lexicon_count(lexicon); id++) {
        if (has(mask, id) && fg_rng_below(rng, ++seen) == 0) {
            chosen = id;
        }
    }
    return chosen;
}

Test(automaton, masks_are_what_taking_each_token_says)
{
    fg_rng rng = { 7 };
    fg_lexicon *lexicon = lexicon_of(&mixed);
    for (int g = 0; g < GRAMMARS; g++) {
        fg_grammar *grammar = grammar_of(grammars[g].kind, grammars[g].text);
        fg_automaton *a = automaton_of(grammar, lexicon);
        for (int run = 0; run < 30; run++) {
            fg_state state = fg_automaton_start(a);
            for (int step = 0; step < 25; step++) {
                check_mask(a, lexicon, state, grammars[g].text);
                uint32_t token = any_token(&rng, lexicon, fg_automaton_mask(a, state));
                if (token == UINT32_MAX || fg_lexicon_is_end(lexicon, token)) {
                    break;
                }
                state = fg_automaton_take(a, state, token);
            }
        }
        cr_assert_eq(fg_automaton_generation(a), 1);
        fg_automaton_destroy(a);
        fg_grammar_destroy(grammar);
    }
    fg_lexicon_destroy(lexicon);
}

/* Walks that follow masks end, and what they wrote is JSON. */
Test(automaton, what_masks_allow_is_json)
{
    fg_rng rng = { 11 };
    fg_lexicon *lexicon = full_lexicon();
    unsigned ended = 0;
    for (int g = 0; g < 4; g++) {
        fg_grammar *grammar = grammar_of(grammars[g].kind, grammars[g].text);
        fg_automaton *a = automaton_of(grammar, lexicon);
        for (int run = 0; run < 100; run++) {
            char text[8192];
            size_t length = 0;
            fg_state state = fg_automaton_start(a);
            for (;;) {
                const uint64_t *mask = fg_automaton_mask(a, state);
                uint32_t token = any_token(&rng, lexicon, mask);
                cr_assert(token != UINT32_MAX, "nothing may follow %.*s", (int)length, text);
                if (fg_lexicon_is_end(lexicon, token) || length > sizeof text - 32) {
                    break;
                }
                size_t more;
                const char *bytes = fg_lexicon_text(lexicon, token, &more);
                memcpy(text + length, bytes, more);
                length += more;
                state = fg_automaton_take(a, state, token);
            }
            fg_json *json = NULL;
            fg_error err = { 0 };
            if (fg_automaton_may_end(a, state)) {
                cr_assert_eq(fg_json_parse(text, length, &json, &err) == FG_OK ||
                                 strstr(err.text, "duplicate") != NULL,
                             1, "%.*s: %s", (int)length, text, err.text);
                ended++;
            }
            fg_json_destroy(json);
        }
        fg_automaton_destroy(a);
        fg_grammar_destroy(grammar);
    }
    cr_assert_gt(ended, 250);
    fg_lexicon_destroy(lexicon);
}

/* Grammars that never come to an end of new states: memory is used up, forgotten, and nothing changes. */
Test(automaton, forgetting_changes_no_mask)
{
    static const char text[] = ".*[a-m0-9].{30}";
    fg_rng rng = { 3 };
    fg_lexicon *lexicon = full_lexicon();
    fg_grammar *grammar = grammar_of(FG_GRAMMAR_REGEX, text);
    fg_automaton *small = automaton_of(grammar, lexicon);
    fg_automaton *large = NULL;
    cr_assert_eq(fg_automaton_create(grammar, lexicon, (size_t)1 << 30, &large, NULL), FG_OK);
    enum { LISTS = 8, TOKENS = 600 };
    fg_tracker few[LISTS] = { { 0 } }, many[LISTS] = { { 0 } };
    static uint32_t lists[LISTS][TOKENS];
    for (size_t i = 0; i < (size_t)LISTS * TOKENS; i++) {
        size_t list = i % LISTS, count = i / LISTS;
        uint32_t *tokens = lists[list];
        uint64_t mask[8];
        fg_state state = fg_tracker_state(&few[list], small, tokens, count);
        fg_state other = fg_tracker_state(&many[list], large, tokens, count);
        memcpy(mask, fg_automaton_mask(small, state), fg_lexicon_words(lexicon) * sizeof *mask);
        cr_assert(memcmp(mask, fg_automaton_mask(large, other),
                         fg_lexicon_words(lexicon) * sizeof *mask) == 0,
                  "after %zu tokens", count);
        cr_assert_eq(fg_automaton_may_end(small, state), fg_automaton_may_end(large, other));
        do {
            tokens[count] = any_token(&rng, lexicon, mask);
        } while (fg_lexicon_is_end(lexicon, tokens[count]));
    }
    cr_assert_gt(fg_automaton_generation(small), 2);
    cr_assert_eq(fg_automaton_generation(large), 1);
    fg_automaton_destroy(small);
    fg_automaton_destroy(large);
    fg_grammar_destroy(grammar);
    fg_lexicon_destroy(lexicon);
}

/* Drafted tokens come, are refused, and others take their places. */
Test(automaton, trackers_follow_lists_that_change_at_their_end)
{
    fg_rng rng = { 5 };
    fg_lexicon *lexicon = lexicon_of(&mixed);
    fg_grammar *grammar = grammar_of(FG_GRAMMAR_JSON, "");
    fg_automaton *a = automaton_of(grammar, lexicon);
    fg_tracker tracker = { 0 };
    uint32_t tokens[600];
    size_t known = 0;
    for (int round = 0; round < 3000 && known < 500; round++) {
        size_t count = known < FG_TRACKER_BACK ? fg_rng_below(&rng, known + 1)
                                               : known - fg_rng_below(&rng, FG_TRACKER_BACK);
        size_t ahead = count + fg_rng_below(&rng, 9);
        if (fg_rng_below(&rng, 50) == 0) {
            count = ahead = fg_rng_below(&rng, known + 1); /* far back */
        }
        for (; count < ahead; count++) {
            fg_tracker fresh = { 0 };
            const uint64_t *mask = fg_automaton_mask(a, fg_tracker_state(&fresh, a, tokens, count));
            tokens[count] = mask == NULL || fg_rng_below(&rng, 30) == 0
                                ? (uint32_t)fg_rng_below(&rng, fg_lexicon_count(lexicon))
                                : any_token(&rng, lexicon, mask);
        }
        fg_tracker fresh = { 0 };
        fg_state wanted = fg_tracker_state(&fresh, a, tokens, ahead);
        cr_assert_eq(fg_tracker_state(&tracker, a, tokens, ahead), wanted);
        known = ahead;
    }
    fg_automaton_destroy(a);
    fg_grammar_destroy(grammar);
    fg_lexicon_destroy(lexicon);
}

Test(automaton, what_is_dead_stays_dead)
{
    fg_lexicon *lexicon = lexicon_of(&mixed);
    fg_grammar *grammar = grammar_of(FG_GRAMMAR_REGEX, "ab");
    fg_automaton *a = automaton_of(grammar, lexicon);
    uint32_t id;
    fg_state states[] = { FG_STATE_DEAD, 99999999,
                          fg_automaton_feed(a, fg_automaton_start(a), "x", 1),
                          fg_automaton_take(a, fg_automaton_start(a), fg_lexicon_count(lexicon)) };
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++) {
        cr_assert_null(fg_automaton_mask(a, states[i]));
        cr_assert_eq(fg_automaton_feed(a, states[i], "a", 1), FG_STATE_DEAD);
        cr_assert(!fg_automaton_may_end(a, states[i]) && !fg_automaton_must_end(a, states[i]));
        cr_assert(!fg_automaton_only(a, states[i], &id));
    }
    fg_automaton_destroy(a);
    fg_grammar_destroy(grammar);
    fg_lexicon_destroy(lexicon);
}

/* Small texts whose automata would be huge, or whose steps would be slow. */
Test(automaton, hostile_grammars_are_bounded)
{
    static const struct {
        fg_grammar_kind kind;
        const char *text;
    } hostile[] = {
        { FG_GRAMMAR_REGEX, "(.?){3000}" },
        { FG_GRAMMAR_REGEX, "((a*)*)*" },
        { FG_GRAMMAR_REGEX, "(.*.*.*.*.*.*.*.*)*x" },
        { FG_GRAMMAR_REGEX, "(a|b)*a(a|b){60}" },
        { FG_GRAMMAR_GBNF, "root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"a\" root | x\n"
                           "x ::= \"a\" x \"d\" | \"a\" x | \"\"" },
        { FG_GRAMMAR_GBNF,
          "root ::= a a a a a a a a\na ::= b b b b b b b b\nb ::= c c c c c c\nc ::= [a-z]?" },
    };
    fg_lexicon *lexicon = lexicon_of(&mixed);
    for (size_t i = 0; i < sizeof hostile / sizeof hostile[0]; i++) {
        fg_grammar *grammar = grammar_of(hostile[i].kind, hostile[i].text);
        fg_automaton *a = automaton_of(grammar, lexicon);
        fg_state state = fg_automaton_start(a);
        for (int step = 0; step < 60; step++) {
            fg_automaton_mask(a, state);
            state = fg_automaton_feed(a, state, step % 3 == 0 ? "b" : "a", 1);
        }
        fg_automaton_destroy(a);
        fg_grammar_destroy(grammar);
    }
    fg_lexicon_destroy(lexicon);
}

static bool attempt_all(void *ctx)
{
    int g = *(const int *)ctx;
    fg_grammar *grammar = NULL;
    fg_lexicon *lexicon = NULL;
    fg_automaton *a = NULL;
    fg_error err = { 0 };
    fg_status status = fg_grammar_compile(grammars[g].kind, grammars[g].text,
                                          strlen(grammars[g].text), &grammar, &err);
    if (status == FG_OK) {
        status = fg_lexicon_create(mixed.count, vocabulary_text, vocabulary_end, (void *)&mixed,
                                   &lexicon, &err);
    }
    if (status == FG_OK) {
        status = fg_automaton_create(grammar, lexicon, 0, &a, &err);
    }
    cr_assert(status == FG_OK || status == FG_AGAIN, "%s", err.text);
    if (status == FG_OK) { /* nothing below takes memory */
        fg_automaton_mask(a, fg_automaton_start(a));
    }
    fg_automaton_destroy(a);
    fg_lexicon_destroy(lexicon);
    fg_grammar_destroy(grammar);
    return status == FG_OK;
}

Test(automaton, survives_every_failed_allocation)
{
    for (int g = 0; g < GRAMMARS; g++) {
        cr_assert_gt(fg_fault_each(attempt_all, &g), 10, "%s", grammars[g].text);
    }
}

Test(lexicon, knows_texts_and_ends)
{
    fg_lexicon *lexicon = lexicon_of(&mixed);
    size_t length;
    cr_assert_eq(fg_lexicon_count(lexicon), mixed.count);
    for (uint32_t id = 0; id < mixed.count; id++) {
        const char *text = fg_lexicon_text(lexicon, id, &length);
        cr_assert_eq(fg_lexicon_is_end(lexicon, id), words[id] == NULL);
        cr_assert(words[id] == NULL
                      ? length == 0
                      : length == strlen(words[id]) && memcmp(text, words[id], length) == 0);
    }
    fg_lexicon_text(lexicon, mixed.count, &length);
    cr_assert_eq(length, 0);
    cr_assert(!fg_lexicon_is_end(lexicon, mixed.count));
    fg_lexicon_destroy(lexicon);
    cr_assert_eq(fg_lexicon_create(0, vocabulary_text, vocabulary_end, NULL, &lexicon, NULL),
                 FG_BAD_INPUT);
}
