/*
 * rig - vocabularies and grammars for the tests of this room.
 */
#ifndef FORGE_TESTS_UNIT_COMMON_GRAMMAR_RIG_H
#define FORGE_TESTS_UNIT_COMMON_GRAMMAR_RIG_H

#include <string.h>

#include "common/grammar/automaton.h"
#include "tests/support/test.h"

/* Tokens by their texts; NULL ends an answer, "" is a control token. */
typedef struct vocabulary {
    const char *const *texts;
    const size_t *lengths; /* NULL: as strlen says */
    uint32_t count;
} vocabulary;

static const char *vocabulary_text(void *ctx, uint32_t id, size_t *length_out)
{
    const vocabulary *v = (const vocabulary *)ctx;
    *length_out = v->lengths != NULL ? v->lengths[id] : strlen(v->texts[id]);
    return v->texts[id];
}

static bool vocabulary_end(void *ctx, uint32_t id)
{
    return ((const vocabulary *)ctx)->texts[id] == NULL;
}

enum { BYTE_TOKENS = 257, BYTE_END = 256 };

static const char *byte_text(void *ctx, uint32_t id, size_t *length_out)
{
    static char byte;
    (void)ctx;
    byte = (char)id;
    *length_out = 1;
    return &byte;
}

static bool byte_end(void *ctx, uint32_t id)
{
    (void)ctx;
    return id == BYTE_END;
}

static inline fg_lexicon *lexicon_of(const vocabulary *v)
{
    fg_lexicon *lexicon = NULL;
    fg_status status =
        v == NULL ? fg_lexicon_create(BYTE_TOKENS, byte_text, byte_end, NULL, &lexicon, NULL)
                  : fg_lexicon_create(v->count, vocabulary_text, vocabulary_end, (void *)v,
                                      &lexicon, NULL);
    cr_assert_eq(status, FG_OK);
    return lexicon;
}

static inline fg_grammar *grammar_of(fg_grammar_kind kind, const char *text)
{
    fg_grammar *grammar = NULL;
    fg_error err = { 0 };
    fg_status status = fg_grammar_compile(kind, text, strlen(text), &grammar, &err);
    cr_assert_eq(status, FG_OK, "%s: %s", text, err.text);
    return grammar;
}

static inline fg_automaton *automaton_of(const fg_grammar *grammar, const fg_lexicon *lexicon)
{
    fg_automaton *automaton = NULL;
    cr_assert_eq(fg_automaton_create(grammar, lexicon, 0, &automaton, NULL), FG_OK);
    return automaton;
}

#endif
