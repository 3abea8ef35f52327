/*
 * DeepSeek's expressions.
 *
 * deepseek-llm     [\r\n]; then \s?LETTERS+ (a list of cased letters); then \s?SIGNS+; then \s+$; then
 *                  CJK+; then \p{N}+
 * deepseek-coder   [\r\n]; then \s?\p{L}+; then \s?\p{P}+; then CJK+; then each \p{N}
 * deepseek-v3      \p{N}{1,3}; then CJK+ (another one); then ASCII punctuation [A-Za-z]+|
 *                  [^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|
 *                  \s+(?!\S)|\s+
 *
 * Each expression cuts what the former ones left, their matches too. For the first two a word is thus
 * a run of characters that are in the same sets, with one white space before it where the second or
 * the third expression takes that; white space and what is in no set make up the words between.
 */
#include <string.h>

#include "common/model/pretokenize.h"
#include "common/model/pretokenize_internal.h"

typedef struct range {
    uint32_t first, last;
} range;

/* Sets that a character may be in; with none it is white space, a line end or something else. */
enum {
    IN_WORDS = 1, /* what the second expression takes */
    IN_SIGNS = 2, /* what the third takes */
    IN_CJK = 4,
    IN_NUMBERS = 8,
    IS_WHITE = 16,
    IS_NEWLINE = 32,
    IS_OTHER = 64,
    AT_END = 128,
};

static bool in_ranges(const range *ranges, size_t count, uint32_t code)
{
    size_t low = 0;
    size_t high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (code > ranges[middle].last) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < count && code >= ranges[low].first;
}

static bool is_llm_letter(uint32_t code)
{
    static const range letters[] = {
        { 0x41, 0x5a },       { 0x61, 0x7a },       { 0xb5, 0xb5 },       { 0xc0, 0xd6 },
        { 0xd8, 0xf6 },       { 0xf8, 0x1ba },      { 0x1bc, 0x1bf },     { 0x1c4, 0x293 },
        { 0x295, 0x2af },     { 0x370, 0x373 },     { 0x376, 0x377 },     { 0x37b, 0x37d },
        { 0x37f, 0x37f },     { 0x386, 0x386 },     { 0x388, 0x38a },     { 0x38c, 0x38c },
        { 0x38e, 0x3a1 },     { 0x3a3, 0x3f5 },     { 0x3f7, 0x481 },     { 0x48a, 0x52f },
        { 0x531, 0x556 },     { 0x10a0, 0x10c5 },   { 0x13a0, 0x13f5 },   { 0x13f8, 0x13fd },
        { 0x1c90, 0x1cba },   { 0x1cbd, 0x1cbf },   { 0x1d00, 0x1d2b },   { 0x1d6b, 0x1d77 },
        { 0x1d79, 0x1d9a },   { 0x1e00, 0x1f15 },   { 0x1f18, 0x1f1d },   { 0x1f20, 0x1f45 },
        { 0x1f48, 0x1f4d },   { 0x1f50, 0x1f57 },   { 0x1f59, 0x1f59 },   { 0x1f5b, 0x1f5b },
        { 0x1f5d, 0x1f5d },   { 0x1f5f, 0x1f7d },   { 0x1f80, 0x1fb4 },   { 0x1fb6, 0x1fbc },
        { 0x1fbe, 0x1fbe },   { 0x1fc2, 0x1fc4 },   { 0x1fc6, 0x1fcc },   { 0x1fd0, 0x1fd3 },
        { 0x1fd6, 0x1fdb },   { 0x1fe0, 0x1fec },   { 0x1ff2, 0x1ff4 },   { 0x1ff6, 0x1ffc },
        { 0x2102, 0x2102 },   { 0x2107, 0x2107 },   { 0x210a, 0x2113 },   { 0x2115, 0x2115 },
        { 0x2119, 0x211d },   { 0x2124, 0x2124 },   { 0x2126, 0x2126 },   { 0x2128, 0x2128 },
        { 0x212a, 0x212d },   { 0x212f, 0x2134 },   { 0x2139, 0x2139 },   { 0x213c, 0x213f },
        { 0x2145, 0x2149 },   { 0x214e, 0x214e },   { 0x2183, 0x2184 },   { 0x2c00, 0x2c7b },
        { 0x2c7e, 0x2ce4 },   { 0x2ceb, 0x2cee },   { 0x2cf2, 0x2cf3 },   { 0xa640, 0xa66d },
        { 0xa680, 0xa69b },   { 0xa722, 0xa76f },   { 0xa771, 0xa787 },   { 0xa78b, 0xa78e },
        { 0xab70, 0xabbf },   { 0xfb00, 0xfb06 },   { 0xfb13, 0xfb17 },   { 0xff21, 0xff3a },
        { 0xff41, 0xff5a },   { 0x10400, 0x1044f }, { 0x104b0, 0x104d3 }, { 0x104d8, 0x104fb },
        { 0x10c80, 0x10cb2 }, { 0x10cc0, 0x10cf2 }, { 0x118a0, 0x118df }, { 0x1e900, 0x1e943 },
    };
    return in_ranges(letters, sizeof(letters) / sizeof(letters[0]), code);
}

/* [!-/:-~...]: ASCII letters are among them, so accents part words. */
static bool is_llm_sign(uint32_t code)
{
    static const range signs[] = {
        { '!', '/' },       { ':', '~' },       { 0x2018, 0x201F },
        { 0x3000, 0x3002 }, { 0xFF01, 0xFF0F }, { 0xFF1A, 0xFF5E },
    };
    return in_ranges(signs, sizeof(signs) / sizeof(signs[0]), code);
}

static unsigned sets_at(const char *text, size_t length, size_t at, bool llm, size_t *step_out)
{
    *step_out = 0;
    if (at >= length) {
        return AT_END;
    }
    uint32_t code;
    *step_out = fg_pre_decode(text, length, at, &code);
    if (code == '\r' || code == '\n') {
        return IS_NEWLINE;
    }
    fg_unicode_class kind = fg_unicode_classify_fully(code);
    if (kind == FG_UNICODE_WHITE) {
        return IS_WHITE;
    }
    bool word = llm ? is_llm_letter(code) : kind == FG_UNICODE_LETTER;
    bool sign = llm ? is_llm_sign(code) : kind == FG_UNICODE_PUNCTUATION;
    bool cjk = (code >= 0x800 && code <= 0x9FA5) || (code >= 0xAC00 && code <= 0xD7FF);
    unsigned sets = (word ? IN_WORDS : 0) | (sign ? IN_SIGNS : 0) | (cjk ? IN_CJK : 0) |
                    (kind == FG_UNICODE_NUMBER ? IN_NUMBERS : 0);
    return sets != 0 ? sets : IS_OTHER;
}

/* White space at `at` and what follows it. */
typedef struct white_run {
    size_t last, end;
    unsigned next;
} white_run;

static white_run look_over_white(const char *text, size_t length, size_t at, bool llm)
{
    white_run run = { .last = at, .end = at };
    size_t step;
    while ((run.next = sets_at(text, length, run.end, llm, &step)) == IS_WHITE) {
        run.last = run.end;
        run.end += step;
    }
    return run;
}

/* A word of white space and what is in no set, from the start of the text. */
static size_t next_between(const char *text, size_t length, bool llm)
{
    size_t at = 0;
    size_t step;
    unsigned sets;
    while ((sets = sets_at(text, length, at, llm, &step)) == IS_OTHER || sets == IS_WHITE) {
        if (sets == IS_OTHER) {
            at += step;
            continue;
        }
        white_run run = look_over_white(text, length, at, llm);
        bool taken = (run.next & (IN_WORDS | IN_SIGNS)) != 0; /* its last one, by what follows */
        bool ends = taken || run.next == IS_NEWLINE || run.next == AT_END;
        if (ends && llm && at > 0) {
            return at; /* \s+$ */
        }
        at = taken ? run.last : run.end;
        if (ends) {
            return at;
        }
    }
    return at;
}

static size_t next_word(const char *text, size_t length, bool llm)
{
    size_t first;
    unsigned sets = sets_at(text, length, 0, llm, &first);
    if (sets == IS_NEWLINE) {
        return first;
    }
    size_t at = 0;
    size_t step = first;
    if (sets == IS_WHITE) {
        unsigned next = sets_at(text, length, first, llm, &step);
        if ((next & (IN_WORDS | IN_SIGNS)) == 0) {
            return next_between(text, length, llm);
        }
        if ((next & IN_CJK) != 0) {
            return first; /* taken, and cut off again by CJK */
        }
        sets = next;
        at = first;
    } else if (sets == IS_OTHER) {
        return next_between(text, length, llm);
    }
    if ((sets & IN_NUMBERS) != 0 && !llm) {
        return at + step;
    }
    while (sets_at(text, length, at, llm, &step) == sets) {
        at += step;
    }
    return at;
}

size_t fg_pretokenize_deepseek_llm(const char *text, size_t length)
{
    return next_word(text, length, true);
}

size_t fg_pretokenize_deepseek_coder(const char *text, size_t length)
{
    return next_word(text, length, false);
}

static bool is_ascii_letter(const fg_pre_scanner *s, size_t at)
{
    return at < s->length && ((s->text[at] >= 'a' && s->text[at] <= 'z') ||
                              (s->text[at] >= 'A' && s->text[at] <= 'Z'));
}

/* What no choice matches, up to where one does: the last of it may lead letters. */
static size_t unmatched_end(const fg_pre_scanner *s)
{
    size_t at = 0;
    size_t step;
    size_t next_step;
    while (fg_pre_kind_at(s, at, &step) == FG_UNICODE_OTHER) {
        if (at > 0 && fg_pre_kind_at(s, at + step, &next_step) == FG_UNICODE_LETTER) {
            return at;
        }
        at += step;
    }
    return at;
}

size_t fg_pretokenize_deepseek_v3(const char *text, size_t length)
{
    fg_pre_scanner plain = { .text = text, .length = length };
    size_t first;
    if (fg_pre_kind_at(&plain, 0, &first) == FG_UNICODE_NUMBER) {
        return fg_pre_run_end(&plain, 0, FG_UNICODE_NUMBER, 3);
    }
    uint32_t code;
    fg_pre_decode(text, length, 0, &code);
    fg_pre_scanner scanner = plain;
    scanner.view = fg_pre_is_cjk(code) ? FG_PRE_SEES_SIGNS_IN_CJK : FG_PRE_SEES_SIGNS;
    const fg_pre_scanner *s = &scanner;
    bool ascii_sign = code > ' ' && code < 0x7F && !is_ascii_letter(s, 0);
    if (ascii_sign && is_ascii_letter(s, 1)) {
        size_t at = 2;
        while (is_ascii_letter(s, at)) {
            at++;
        }
        return at;
    }
    int kind = fg_pre_kind_at(s, 0, &first);
    if (kind == FG_UNICODE_LETTER) {
        return fg_pre_run_end(s, 0, kind, SIZE_MAX);
    }
    size_t second;
    int next = fg_pre_kind_at(s, first, &second);
    if (kind != FG_UNICODE_PUNCTUATION && next == FG_UNICODE_LETTER && !fg_pre_is_newline(s, 0)) {
        return fg_pre_run_end(s, first, next, SIZE_MAX);
    }
    bool space_then_sign = text[0] == ' ' && next == FG_UNICODE_PUNCTUATION;
    if (kind == FG_UNICODE_PUNCTUATION || space_then_sign) {
        size_t end =
            fg_pre_run_end(s, space_then_sign ? first : 0, FG_UNICODE_PUNCTUATION, SIZE_MAX);
        while (scanner.view == FG_PRE_SEES_SIGNS && fg_pre_is_newline(s, end)) {
            end++;
        }
        return end;
    }
    return kind == FG_UNICODE_WHITE ? fg_pre_white_or_newlines(s) : unmatched_end(s);
}
