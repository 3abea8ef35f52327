/*
 * pretokenize_internal - what the scanners of pretokenize share: characters as an expression sees them.
 */
#ifndef FORGE_COMMON_MODEL_PRETOKENIZE_INTERNAL_H
#define FORGE_COMMON_MODEL_PRETOKENIZE_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/utf8.h"
#include "common/model/unicode_class.h"

enum { FG_PRE_END = -1 }; /* the kind past the text being looked at */

/* What an expression tells apart; where an earlier one has cut, the text being looked at ends. */
typedef enum fg_pre_view {
    FG_PRE_SEES_WORDS,        /* letters, numbers, white space, other */
    FG_PRE_SEES_NO_NUMBERS,   /* the same; numbers were cut out */
    FG_PRE_SEES_NO_SIGNS,     /* the same; falcon's punctuation was cut out */
    FG_PRE_SEES_MARKS,        /* the same; marks are letters */
    FG_PRE_SEES_SIGNS,        /* letters with marks, punctuation with symbols, white space, other;
                                * numbers and CJK were cut out */
    FG_PRE_SEES_SIGNS_IN_CJK, /* the same inside such CJK */
} fg_pre_view;

typedef struct fg_pre_scanner {
    const char *text;
    size_t length;
    fg_pre_view view;
} fg_pre_scanner;

/* The three of pretokenize_deepseek.c. */
size_t fg_pretokenize_deepseek_llm(const char *text, size_t length);
size_t fg_pretokenize_deepseek_coder(const char *text, size_t length);
size_t fg_pretokenize_deepseek_v3(const char *text, size_t length);

/* The character at `at`, inside the text; returns its length. */
static inline size_t fg_pre_decode(const char *text, size_t length, size_t at, uint32_t *code_out)
{
    size_t step = fg_utf8_decode(text + at, length - at, code_out);
    if (step == 0) {
        *code_out = 0xFFFD;
        step = 1;
    }
    return step;
}

/* deepseek-v3's ideographs, hiragana and katakana. */
static inline bool fg_pre_is_cjk(uint32_t code)
{
    return (code >= 0x4E00 && code <= 0x9FA5) || (code >= 0x3040 && code <= 0x30FF);
}

/* The kind of a character in the views that look further than fg_unicode_classify. */
int fg_pre_kind(fg_pre_view view, uint32_t code);

/* The kind of the character at `at` and its length; FG_PRE_END and 0 past the text. */
static inline int fg_pre_kind_at(const fg_pre_scanner *s, size_t at, size_t *step_out)
{
    *step_out = 0;
    if (at >= s->length) {
        return FG_PRE_END;
    }
    uint32_t code;
    size_t step = fg_pre_decode(s->text, s->length, at, &code);
    int kind;
    if (s->view <= FG_PRE_SEES_NO_NUMBERS) {
        kind = (int)fg_unicode_classify(code);
        if (kind == FG_UNICODE_NUMBER && s->view == FG_PRE_SEES_NO_NUMBERS) {
            return FG_PRE_END;
        }
    } else {
        kind = fg_pre_kind(s->view, code);
        if (kind == FG_PRE_END) {
            return kind;
        }
    }
    *step_out = step;
    return kind;
}

/* End of the run of `kind` characters from `at`, at most `count_max` of them. */
static inline size_t fg_pre_run_end(const fg_pre_scanner *s, size_t at, int kind, size_t count_max)
{
    size_t step;
    for (size_t count = 0; count < count_max && fg_pre_kind_at(s, at, &step) == kind; count++) {
        at += step;
    }
    return at;
}

static inline bool fg_pre_is_newline(const fg_pre_scanner *s, size_t at)
{
    return at < s->length && (s->text[at] == '\r' || s->text[at] == '\n');
}

/* \s+(?!\S)|\s+ : white space keeps back its last character for the word that follows. */
static inline size_t fg_pre_white_run(const fg_pre_scanner *s)
{
    size_t at = 0;
    size_t last = 0;
    size_t step;
    while (fg_pre_kind_at(s, at, &step) == FG_UNICODE_WHITE) {
        last = at;
        at += step;
    }
    bool at_end = fg_pre_kind_at(s, at, &step) == FG_PRE_END;
    return at_end || last == 0 ? at : last;
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ : up to the last line end of the white space, when it has one. */
static inline size_t fg_pre_white_or_newlines(const fg_pre_scanner *s)
{
    size_t end = 0;
    size_t step;
    for (size_t at = 0; fg_pre_kind_at(s, at, &step) == FG_UNICODE_WHITE; at += step) {
        if (fg_pre_is_newline(s, at)) {
            end = at + 1;
        }
    }
    return end > 0 ? end : fg_pre_white_run(s);
}

#endif
