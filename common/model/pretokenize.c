#include "common/model/pretokenize.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "common/model/pretokenize_internal.h"

/* The order of choices is the same in all expressions that come from LLAMA3's. */
typedef struct expression {
    fg_pre_view view;
    bool contractions;      /* before anything else */
    bool contractions_last; /* behind letters */
    bool cased;             /* letters are cut before capitals */
    size_t digits_max;
    const char *tail; /* what punctuation takes from behind it */
} expression;

/* [\p{P}$+<=>^~|`] */
static bool is_falcon_sign(uint32_t code)
{
    fg_unicode_class kind = fg_unicode_classify_fully(code);
    return kind == FG_UNICODE_PUNCTUATION || (kind == FG_UNICODE_SYMBOL && code < 0x80);
}

static int sign_kind(uint32_t code, bool in_cjk)
{
    if (fg_pre_is_cjk(code) != in_cjk) {
        return FG_PRE_END;
    }
    switch (fg_unicode_classify_fully(code)) {
    case FG_UNICODE_NUMBER:
        return FG_PRE_END;
    case FG_UNICODE_LETTER:
    case FG_UNICODE_MARK:
        return FG_UNICODE_LETTER;
    case FG_UNICODE_PUNCTUATION:
    case FG_UNICODE_SYMBOL:
        return FG_UNICODE_PUNCTUATION;
    case FG_UNICODE_WHITE:
        return FG_UNICODE_WHITE;
    case FG_UNICODE_OTHER:
        break;
    }
    return FG_UNICODE_OTHER;
}

int fg_pre_kind(fg_pre_view view, uint32_t code)
{
    if (view == FG_PRE_SEES_SIGNS || view == FG_PRE_SEES_SIGNS_IN_CJK) {
        return sign_kind(code, view == FG_PRE_SEES_SIGNS_IN_CJK);
    }
    fg_unicode_class kind = fg_unicode_classify(code);
    if (kind != FG_UNICODE_OTHER) {
        return (int)kind;
    }
    if (view == FG_PRE_SEES_NO_SIGNS) {
        return is_falcon_sign(code) ? FG_PRE_END : FG_UNICODE_OTHER;
    }
    bool mark = fg_unicode_classify_fully(code) == FG_UNICODE_MARK; /* FG_PRE_SEES_MARKS */
    return mark ? FG_UNICODE_LETTER : FG_UNICODE_OTHER;
}

static bool is_space(const fg_pre_scanner *s)
{
    return s->text[0] == ' ';
}

/* Length of an English contraction ('s, 'll, ...) at `at`, or 0. */
static size_t contraction(const fg_pre_scanner *s, size_t at, bool any_case)
{
    static const char *const endings[] = { "s", "t", "re", "ve", "m", "ll", "d" };
    if (at >= s->length || s->text[at] != '\'') {
        return 0;
    }
    const char *text = s->text + at + 1;
    for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++) {
        size_t size = strlen(endings[i]);
        bool same = s->length - at > size;
        for (size_t k = 0; same && k < size; k++) {
            char c = text[k];
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

static size_t next_gpt2(const fg_pre_scanner *s)
{
    size_t end = contraction(s, 0, false);
    if (end > 0) {
        return end;
    }
    size_t first;
    int kind = fg_pre_kind_at(s, 0, &first);
    if (is_space(s)) {
        size_t second;
        int next = fg_pre_kind_at(s, first, &second);
        if (next != FG_PRE_END && next != FG_UNICODE_WHITE) {
            return fg_pre_run_end(s, first, next, SIZE_MAX);
        }
    }
    return kind == FG_UNICODE_WHITE ? fg_pre_white_run(s) : fg_pre_run_end(s, 0, kind, SIZE_MAX);
}

static size_t next_smollm(const char *text, size_t length)
{
    fg_pre_scanner plain = { .text = text, .length = length };
    size_t step;
    if (fg_pre_kind_at(&plain, 0, &step) == FG_UNICODE_NUMBER) {
        return step;
    }
    fg_pre_scanner s = { .text = text, .length = length, .view = FG_PRE_SEES_NO_NUMBERS };
    return next_gpt2(&s);
}

/* A number at `at`, 0 or behind a space: up to its first three ASCII digits, or these. */
static size_t falcon_number(const fg_pre_scanner *s, size_t at)
{
    size_t step;
    for (size_t digits = 0; fg_pre_kind_at(s, at, &step) == FG_UNICODE_NUMBER;) {
        digits = step == 1 ? digits + 1 : 0;
        at += step;
        if (digits == 3) {
            return at > digits ? at - digits : at;
        }
    }
    return at;
}

static size_t next_falcon(const char *text, size_t length)
{
    size_t end = 0;
    while (end < length) {
        uint32_t code;
        size_t step = fg_pre_decode(text, length, end, &code);
        if (!is_falcon_sign(code)) {
            break;
        }
        end += step;
    }
    if (end > 0) {
        return end;
    }
    fg_pre_scanner s = { .text = text, .length = length, .view = FG_PRE_SEES_NO_SIGNS };
    size_t at = is_space(&s) ? 1 : 0;
    size_t step;
    bool number = fg_pre_kind_at(&s, at, &step) == FG_UNICODE_NUMBER;
    return number ? falcon_number(&s, at) : next_gpt2(&s);
}

/* Is the character in [^(\s|.,!?...)], the letters of BLOOM's words? */
static bool is_bloom_letter(uint32_t code)
{
    static const uint32_t others[] = { '(',    ')',    '|',    '.',    ',',    '!',    '?',
                                       0x2026, 0x3002, 0xFF0C, 0x3001, 0x0964, 0x06D4, 0x060C };
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        if (code == others[i]) {
            return false;
        }
    }
    return fg_unicode_classify(code) != FG_UNICODE_WHITE;
}

/* Two kinds, letters and not; with `numbers` a number ends what is before. */
static int bloom_kind_at(const fg_pre_scanner *s, size_t at, bool numbers, size_t *step_out)
{
    *step_out = 0;
    if (at >= s->length) {
        return FG_PRE_END;
    }
    uint32_t code;
    *step_out = fg_pre_decode(s->text, s->length, at, &code);
    if (numbers && fg_unicode_classify(code) == FG_UNICODE_NUMBER) {
        return FG_UNICODE_NUMBER;
    }
    return is_bloom_letter(code) ? FG_UNICODE_LETTER : FG_UNICODE_OTHER;
}

static size_t next_bloom(const fg_pre_scanner *s, bool numbers)
{
    size_t step;
    size_t at;
    int kind = bloom_kind_at(s, 0, numbers, &at);
    if (kind == FG_UNICODE_NUMBER) {
        return at;
    }
    int next = bloom_kind_at(s, at, numbers, &step);
    if (is_space(s) && next == FG_UNICODE_LETTER) {
        kind = next;
    }
    while (next == kind) {
        /* A space before a word, or before a number's, is that word's. */
        if (s->text[at] == ' ') {
            int behind = bloom_kind_at(s, at + 1, numbers, &step);
            if (behind == FG_UNICODE_LETTER || behind == FG_UNICODE_NUMBER) {
                break;
            }
            step = 1;
        }
        at += step;
        next = bloom_kind_at(s, at, numbers, &step);
    }
    return at;
}

/* End of [^a-z]*[^A-Z]+ or else [^a-z]+[^A-Z]* in the letters at `at`. The former comes first, and its
 * first part gives back what the second needs: a letter beyond ASCII, which is good for both. */
static size_t cased_end(const fg_pre_scanner *s, size_t at)
{
    size_t step;
    size_t after_both = 0;
    int kind;
    while ((kind = fg_pre_kind_at(s, at, &step)) == FG_UNICODE_LETTER &&
           !(s->text[at] >= 'a' && s->text[at] <= 'z')) {
        at += step;
        after_both = step > 1 ? at : after_both;
    }
    if (kind != FG_UNICODE_LETTER) {
        return after_both > 0 ? after_both : at;
    }
    while (fg_pre_kind_at(s, at, &step) == FG_UNICODE_LETTER &&
           !(s->text[at] >= 'A' && s->text[at] <= 'Z')) {
        at += step;
    }
    return at;
}

static size_t letters_end(const fg_pre_scanner *s, const expression *rules, size_t at)
{
    size_t end =
        rules->cased ? cased_end(s, at) : fg_pre_run_end(s, at, FG_UNICODE_LETTER, SIZE_MAX);
    return rules->contractions_last ? end + contraction(s, end, true) : end;
}

static size_t next_llama3(const expression *rules, const char *text, size_t length)
{
    fg_pre_scanner scanner = { .text = text, .length = length, .view = rules->view };
    const fg_pre_scanner *s = &scanner;
    size_t end = rules->contractions ? contraction(s, 0, true) : 0;
    if (end > 0) {
        return end;
    }
    size_t first;
    int kind = fg_pre_kind_at(s, 0, &first);
    if (kind == FG_UNICODE_LETTER) {
        return letters_end(s, rules, 0);
    }
    if (kind == FG_UNICODE_NUMBER) {
        return fg_pre_run_end(s, 0, kind, rules->digits_max);
    }
    size_t second;
    int next = fg_pre_kind_at(s, first, &second);
    if (next == FG_UNICODE_LETTER && !fg_pre_is_newline(s, 0)) {
        return letters_end(s, rules, first);
    }
    if (kind == FG_UNICODE_OTHER || (is_space(s) && next == FG_UNICODE_OTHER)) {
        size_t start = kind == FG_UNICODE_OTHER ? 0 : first;
        end = fg_pre_run_end(s, start, FG_UNICODE_OTHER, SIZE_MAX);
        while (end < length && text[end] != '\0' && strchr(rules->tail, text[end]) != NULL) {
            end++;
        }
        return end;
    }
    return fg_pre_white_or_newlines(s);
}

/* llama.cpp's names. Each family's best known name comes first, for fg_pretokenizer_list. */
static const fg_pretokenizer_name names[] = {
    { .name = "gpt-2", .pre = FG_PRE_GPT2 },
    /* Files from before the key existed say "default"; their words are cut as GPT-2's. */
    { .name = "default", .pre = FG_PRE_GPT2 },
    { .name = "phi-2", .pre = FG_PRE_GPT2 },
    { .name = "mpt", .pre = FG_PRE_GPT2 },
    { .name = "olmo", .pre = FG_PRE_GPT2 },
    { .name = "jais", .pre = FG_PRE_GPT2 },
    { .name = "exaone4", .pre = FG_PRE_GPT2 },
    { .name = "trillion", .pre = FG_PRE_GPT2 },
    { .name = "granite-docling", .pre = FG_PRE_GPT2 },
    { .name = "gigachat", .pre = FG_PRE_GPT2 },
    { .name = "a.x-4.0", .pre = FG_PRE_GPT2 },
    { .name = "mellum", .pre = FG_PRE_GPT2 },
    { .name = "smollm", .pre = FG_PRE_SMOLLM },
    { .name = "starcoder", .pre = FG_PRE_SMOLLM },
    { .name = "refact", .pre = FG_PRE_SMOLLM },
    { .name = "command-r", .pre = FG_PRE_SMOLLM },
    { .name = "codeshell", .pre = FG_PRE_SMOLLM },
    { .name = "exaone", .pre = FG_PRE_SMOLLM },
    { .name = "minerva-7b", .pre = FG_PRE_SMOLLM },
    { .name = "mellum2", .pre = FG_PRE_SMOLLM },
    { .name = "llama-bpe", .pre = FG_PRE_LLAMA3, .ignore_merges = true, .add_bos = true },
    { .name = "llama-v3", .pre = FG_PRE_LLAMA3, .ignore_merges = true, .add_bos = true },
    { .name = "llama3", .pre = FG_PRE_LLAMA3, .ignore_merges = true, .add_bos = true },
    { .name = "falcon3", .pre = FG_PRE_LLAMA3, .ignore_merges = true, .add_bos = true },
    { .name = "falcon-h1", .pre = FG_PRE_LLAMA3, .ignore_merges = true, .add_bos = true },
    { .name = "pixtral", .pre = FG_PRE_LLAMA3, .ignore_merges = true, .add_bos = true },
    { .name = "midm-2.0", .pre = FG_PRE_LLAMA3, .ignore_merges = true, .add_bos = true },
    { .name = "lfm2", .pre = FG_PRE_LLAMA3, .ignore_merges = true, .add_bos = true },
    { .name = "dbrx", .pre = FG_PRE_LLAMA3 },
    { .name = "smaug-bpe", .pre = FG_PRE_LLAMA3 },
    { .name = "glm4", .pre = FG_PRE_LLAMA3, .ignore_merges = true },
    { .name = "chatglm-bpe", .pre = FG_PRE_LLAMA3 },
    { .name = "qwen2", .pre = FG_PRE_QWEN2 },
    { .name = "deepseek-r1-qwen", .pre = FG_PRE_QWEN2 },
    { .name = "stablelm2", .pre = FG_PRE_QWEN2 },
    { .name = "megrez", .pre = FG_PRE_QWEN2 },
    { .name = "hunyuan", .pre = FG_PRE_QWEN2 },
    { .name = "solar-open", .pre = FG_PRE_QWEN2 },
    { .name = "grok-2", .pre = FG_PRE_QWEN2 },
    { .name = "kormo", .pre = FG_PRE_QWEN2 },
    { .name = "bailingmoe", .pre = FG_PRE_QWEN2 },
    { .name = "bailingmoe2", .pre = FG_PRE_QWEN2 },
    { .name = "llada-moe", .pre = FG_PRE_QWEN2 },
    { .name = "qwen35", .pre = FG_PRE_QWEN35 },
    { .name = "seed-coder", .pre = FG_PRE_SEED_CODER },
    { .name = "tekken", .pre = FG_PRE_TEKKEN, .ignore_merges = true, .add_bos = true },
    { .name = "gpt-4o", .pre = FG_PRE_GPT4O },
    { .name = "llama4", .pre = FG_PRE_GPT4O },
    { .name = "kanana2", .pre = FG_PRE_GPT4O },
    { .name = "minimax-m2", .pre = FG_PRE_GPT4O },
    { .name = "deepseek-llm", .pre = FG_PRE_DEEPSEEK_LLM },
    { .name = "deepseek-coder", .pre = FG_PRE_DEEPSEEK_CODER },
    { .name = "deepseek-v3", .pre = FG_PRE_DEEPSEEK_V3 },
    { .name = "hunyuan-dense", .pre = FG_PRE_DEEPSEEK_V3 },
    { .name = "joyai-llm", .pre = FG_PRE_DEEPSEEK_V3 },
    { .name = "falcon", .pre = FG_PRE_FALCON },
    { .name = "bloom", .pre = FG_PRE_BLOOM },
    { .name = "poro-chat", .pre = FG_PRE_BLOOM },
    { .name = "gpt3-finnish", .pre = FG_PRE_BLOOM },
    { .name = "viking", .pre = FG_PRE_VIKING },
};

enum { NAME_COUNT = sizeof(names) / sizeof(names[0]) };

const fg_pretokenizer_name *fg_pretokenizer_find(const char *name, size_t length)
{
    for (size_t i = 0; i < NAME_COUNT; i++) {
        if (strlen(names[i].name) == length && memcmp(names[i].name, name, length) == 0) {
            return &names[i];
        }
    }
    return NULL;
}

void fg_pretokenizer_list(char *out, size_t size)
{
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < NAME_COUNT; i++) {
        bool first_of_family = i == 0 || names[i].pre != names[i - 1].pre;
        if (first_of_family && used < size) {
            int wrote =
                snprintf(out + used, size - used, "%s%s", i == 0 ? "" : ", ", names[i].name);
            used += wrote > 0 ? (size_t)wrote : 0;
        }
    }
}

size_t fg_pretokenize_next(fg_pretokenizer pre, const char *text, size_t length)
{
    static const expression families[FG_PRE_COUNT] = {
        [FG_PRE_LLAMA3] = { .contractions = true, .digits_max = 3, .tail = "\r\n" },
        [FG_PRE_QWEN2] = { .contractions = true, .digits_max = 1, .tail = "\r\n" },
        [FG_PRE_QWEN35] = { .view = FG_PRE_SEES_MARKS,
                            .contractions = true,
                            .digits_max = 1,
                            .tail = "\r\n" },
        [FG_PRE_SEED_CODER] = { .contractions = true, .digits_max = 1, .tail = "" },
        [FG_PRE_TEKKEN] = { .cased = true, .digits_max = 1, .tail = "\r\n/" },
        [FG_PRE_GPT4O] = { .cased = true,
                           .contractions_last = true,
                           .digits_max = 3,
                           .tail = "\r\n/" },
    };
    fg_pre_scanner s = { .text = text, .length = length };
    switch (pre) {
    case FG_PRE_SMOLLM:
        return next_smollm(text, length);
    case FG_PRE_LLAMA3:
    case FG_PRE_QWEN2:
    case FG_PRE_QWEN35:
    case FG_PRE_SEED_CODER:
    case FG_PRE_TEKKEN:
    case FG_PRE_GPT4O:
        return next_llama3(&families[pre], text, length);
    case FG_PRE_DEEPSEEK_LLM:
        return fg_pretokenize_deepseek_llm(text, length);
    case FG_PRE_DEEPSEEK_CODER:
        return fg_pretokenize_deepseek_coder(text, length);
    case FG_PRE_DEEPSEEK_V3:
        return fg_pretokenize_deepseek_v3(text, length);
    case FG_PRE_FALCON:
        return next_falcon(text, length);
    case FG_PRE_BLOOM:
    case FG_PRE_VIKING:
        return next_bloom(&s, pre == FG_PRE_VIKING);
    case FG_PRE_GPT2:
    case FG_PRE_COUNT:
        break;
    }
    return next_gpt2(&s);
}
