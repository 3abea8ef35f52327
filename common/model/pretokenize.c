#include "common/model/pretokenize.h"

#include <stdint.h>
#include <string.h>

#include "common/base/utf8.h"
#include "common/model/unicode_class.h"

typedef struct scanner {
    const char *text;
    size_t length;
    bool numbers_end; /* a number ends the text being looked at (smollm cuts them out first) */
} scanner;

enum { KIND_END = -1 };

/* The class of the character at `at` and its length; KIND_END past the text. */
static int kind_at(const scanner *s, size_t at, size_t *step_out)
{
    *step_out = 0;
    if (at >= s->length) {
        return KIND_END;
    }
    uint32_t code;
    size_t step = fg_utf8_decode(s->text + at, s->length - at, &code);
    if (step == 0) {
        *step_out = 1;
        return FG_UNICODE_OTHER;
    }
    fg_unicode_class kind = fg_unicode_classify(code);
    if (kind == FG_UNICODE_NUMBER && s->numbers_end) {
        return KIND_END;
    }
    *step_out = step;
    return (int)kind;
}

/* End of the run of `kind` characters from `at`, at most `count_max` of them. */
static size_t run_end(const scanner *s, size_t at, int kind, size_t count_max)
{
    size_t step;
    for (size_t count = 0; count < count_max && kind_at(s, at, &step) == kind; count++) {
        at += step;
    }
    return at;
}

/* Length of an English contraction ('s, 'll, ...) at the start of the text, or 0. */
static size_t contraction(const scanner *s, bool any_case)
{
    static const char *const endings[] = { "s", "t", "re", "ve", "m", "ll", "d" };
    if (s->text[0] != '\'') {
        return 0;
    }
    for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++) {
        size_t size = strlen(endings[i]);
        bool same = s->length > size;
        for (size_t k = 0; same && k < size; k++) {
            char c = s->text[1 + k];
            if (any_case && c >= 'A' && c <= 'Z') {
                c = (char)(c + ('a' - 'A'));
            }
            same = c == endings[i][k];
        }
        if (same) {
            return 1 + size;
        }
    }
    return 0;
}

/* \s+(?!\S)|\s+ : white space keeps back its last character for the word that follows. */
static size_t white_run(const scanner *s)
{
    size_t at = 0;
    size_t last = 0;
    size_t step;
    while (kind_at(s, at, &step) == FG_UNICODE_WHITE) {
        last = at;
        at += step;
    }
    bool at_end = kind_at(s, at, &step) == KIND_END;
    return at_end || last == 0 ? at : last;
}

static size_t next_gpt2(const scanner *s)
{
    size_t end = contraction(s, false);
    if (end > 0) {
        return end;
    }
    size_t first;
    int kind = kind_at(s, 0, &first);
    if (s->text[0] == ' ') {
        size_t second;
        int next = kind_at(s, first, &second);
        if (next != KIND_END && next != FG_UNICODE_WHITE) {
            return run_end(s, first, next, SIZE_MAX);
        }
    }
    return kind == FG_UNICODE_WHITE ? white_run(s) : run_end(s, 0, kind, SIZE_MAX);
}

static size_t next_smollm(const char *text, size_t length)
{
    scanner plain = { .text = text, .length = length };
    size_t step;
    if (kind_at(&plain, 0, &step) == FG_UNICODE_NUMBER) {
        return step;
    }
    scanner s = { .text = text, .length = length, .numbers_end = true };
    return next_gpt2(&s);
}

static bool is_newline(const scanner *s, size_t at)
{
    return at < s->length && (s->text[at] == '\r' || s->text[at] == '\n');
}

/* \s*[\r\n]+ : up to the last line end of the white space, or 0 when it has none. */
static size_t white_to_newline(const scanner *s)
{
    size_t end = 0;
    size_t step;
    for (size_t at = 0; kind_at(s, at, &step) == FG_UNICODE_WHITE; at += step) {
        if (is_newline(s, at)) {
            end = at + 1;
        }
    }
    return end;
}

static size_t next_llama3(const scanner *s, size_t digits_max)
{
    size_t end = contraction(s, true);
    if (end > 0) {
        return end;
    }
    size_t first;
    int kind = kind_at(s, 0, &first);
    if (kind == FG_UNICODE_LETTER) {
        return run_end(s, 0, kind, SIZE_MAX);
    }
    if (kind == FG_UNICODE_NUMBER) {
        return run_end(s, 0, kind, digits_max);
    }
    size_t second;
    int next = kind_at(s, first, &second);
    if (next == FG_UNICODE_LETTER && !is_newline(s, 0)) {
        return run_end(s, first, FG_UNICODE_LETTER, SIZE_MAX);
    }
    bool space_then_other = s->text[0] == ' ' && next == FG_UNICODE_OTHER;
    if (kind == FG_UNICODE_OTHER || space_then_other) {
        end = run_end(s, kind == FG_UNICODE_OTHER ? 0 : first, FG_UNICODE_OTHER, SIZE_MAX);
        while (is_newline(s, end)) {
            end++;
        }
        return end;
    }
    end = white_to_newline(s);
    return end > 0 ? end : white_run(s);
}

bool fg_pretokenizer_parse(const char *name, size_t length, fg_pretokenizer *pre_out)
{
    static const struct {
        const char *name;
        fg_pretokenizer pre;
    } known[] = {
        /* Files from before the key existed say "default"; their words are cut as GPT-2's. */
        { "default", FG_PRE_GPT2 },     { "gpt-2", FG_PRE_GPT2 },      { "smollm", FG_PRE_SMOLLM },
        { "llama-bpe", FG_PRE_LLAMA3 }, { "llama-v3", FG_PRE_LLAMA3 }, { "llama3", FG_PRE_LLAMA3 },
        { "qwen2", FG_PRE_QWEN2 },
    };
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (strlen(known[i].name) == length && memcmp(known[i].name, name, length) == 0) {
            *pre_out = known[i].pre;
            return true;
        }
    }
    return false;
}

size_t fg_pretokenize_next(fg_pretokenizer pre, const char *text, size_t length)
{
    scanner s = { .text = text, .length = length };
    switch (pre) {
    case FG_PRE_SMOLLM:
        return next_smollm(text, length);
    case FG_PRE_LLAMA3:
        return next_llama3(&s, 3);
    case FG_PRE_QWEN2:
        return next_llama3(&s, 1);
    case FG_PRE_GPT2:
        break;
    }
    return next_gpt2(&s);
}
