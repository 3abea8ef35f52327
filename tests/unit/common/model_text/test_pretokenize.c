#include "common/model/pretokenize.h"

#include <stdint.h>
#include <string.h>

#include "common/base/rng.h"
#include "common/model/unicode_class.h"
#include "tests/support/seed.h"
#include "tests/support/test.h"

/* Words are shown parted by '|'. */
static const struct {
    const char *name;
    fg_pretokenizer pre;
    const char *words;
} cases[] = {
    { "words carry one space", FG_PRE_GPT2, "Hello| world" },
    { "spaces before a word", FG_PRE_GPT2, "a|  | b" },
    { "spaces at the end", FG_PRE_GPT2, "a|   " },
    { "tab before a word", FG_PRE_GPT2, "a|\t|b" },
    { "line ends are white space", FG_PRE_GPT2, "a|\n\n|\n|b" },
    { "contractions", FG_PRE_GPT2, "I|'m| we|'ll| don|'t" },
    { "contractions are lower case", FG_PRE_GPT2, "I|'|M" },
    { "digits together", FG_PRE_GPT2, "a|12345| 678" },
    { "letters and digits part", FG_PRE_GPT2, "abc|123|def" },
    { "punctuation", FG_PRE_GPT2, "a|...| ?!|b" },
    { "letters of any script", FG_PRE_GPT2, "Ä|'|ж| 日本" },
    { "numbers of any script", FG_PRE_GPT2, "½|x| ٣" },
    { "no-break space does not join", FG_PRE_GPT2, "a|\xC2\xA0|b" },
    { "a broken byte is punctuation", FG_PRE_GPT2, "a| \xFF\xC3|b" },
    { "one letter", FG_PRE_GPT2, "a" },
    { "single digits", FG_PRE_SMOLLM, "1|2|3" },
    { "a digit ends what is before", FG_PRE_SMOLLM, "a|  |1|2| b" },
    { "one space before a digit", FG_PRE_SMOLLM, "a| |1" },
    { "a space after a digit leads a word", FG_PRE_SMOLLM, " |½| x" },
    { "three digits", FG_PRE_LLAMA3, "123|456|7" },
    { "space before digits", FG_PRE_LLAMA3, "a| |123" },
    { "contractions of any case", FG_PRE_LLAMA3, "I|'M| We|'Ll" },
    { "any mark may lead letters", FG_PRE_LLAMA3, "a|.b|\tc|'x" },
    { "line ends do not lead letters", FG_PRE_LLAMA3, "a|\n|b" },
    { "punctuation takes line ends", FG_PRE_LLAMA3, "a| ?\r\n\n|b" },
    { "white space up to the last line end", FG_PRE_LLAMA3, "a|  \n \n|  | b" },
    { "white space at the end", FG_PRE_LLAMA3, "a|   " },
    { "single digits of qwen2", FG_PRE_QWEN2, "1|2|a|3" },
};

static void check_case(size_t i)
{
    char text[128];
    size_t length = 0;
    for (const char *c = cases[i].words; *c != '\0'; c++) {
        if (*c != '|') {
            text[length++] = *c;
        }
    }
    const char *words = cases[i].words;
    for (size_t at = 0; at < length;) {
        size_t want = strcspn(words, "|");
        size_t have = fg_pretokenize_next(cases[i].pre, text + at, length - at);
        cr_assert_eq(have, want, "%s: %zu bytes at %zu, not %zu", cases[i].name, have, at, want);
        words += want + (words[want] == '|');
        at += have;
    }
}

Test(pretokenize, cuts_as_the_expressions_do)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        check_case(i);
    }
}

Test(pretokenize, always_moves_on_and_stays_inside)
{
    uint64_t seed = test_seed(__func__);
    fg_rng rng = { seed };
    static const char *const parts[] = {
        " ",    "\n",           "\r", "a", "1", "'",    "s",  "LL",  "\xC3",
        "\xA9", "\xE2\x80\x83", "日", "½", ".", "\xFF", "\t", "🦙"
    };
    for (int round = 0; round < 5000; round++) {
        char text[128];
        size_t length = 0;
        for (size_t i = fg_rng_below(&rng, 24) + 1; i > 0; i--) {
            const char *part = parts[fg_rng_below(&rng, sizeof(parts) / sizeof(parts[0]))];
            memcpy(text + length, part, strlen(part));
            length += strlen(part);
        }
        for (int pre = FG_PRE_GPT2; pre <= FG_PRE_QWEN2; pre++) {
            for (size_t at = 0; at < length;) {
                size_t size = fg_pretokenize_next((fg_pretokenizer)pre, text + at, length - at);
                cr_assert(size > 0 && size <= length - at, "seed %llu", (unsigned long long)seed);
                at += size;
            }
        }
    }
}

Test(pretokenize, knows_its_names_and_no_others)
{
    static const struct {
        const char *name;
        bool known;
        fg_pretokenizer pre;
    } names[] = {
        { "gpt-2", true, FG_PRE_GPT2 },       { "smollm", true, FG_PRE_SMOLLM },
        { "llama-bpe", true, FG_PRE_LLAMA3 }, { "qwen2", true, FG_PRE_QWEN2 },
        { "default", true, FG_PRE_GPT2 },     { "", false, FG_PRE_GPT2 },
        { "qwen", false, FG_PRE_GPT2 },       { "qwen22", false, FG_PRE_GPT2 },
        { "tekken", false, FG_PRE_GPT2 },
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        fg_pretokenizer pre = FG_PRE_GPT2;
        bool known = fg_pretokenizer_parse(names[i].name, strlen(names[i].name), &pre);
        cr_assert_eq(known, names[i].known, "%s", names[i].name);
        cr_assert_eq(pre, names[i].pre, "%s", names[i].name);
    }
}

Test(unicode_class, names_the_class_of_a_character)
{
    static const struct {
        uint32_t code;
        fg_unicode_class want;
    } codes[] = {
        { 'a', FG_UNICODE_LETTER },     { 'Z', FG_UNICODE_LETTER },
        { '_', FG_UNICODE_OTHER },      { '0', FG_UNICODE_NUMBER },
        { ' ', FG_UNICODE_WHITE },      { '\r', FG_UNICODE_WHITE },
        { 0x1F, FG_UNICODE_OTHER },     { 0x85, FG_UNICODE_WHITE },
        { 0xA0, FG_UNICODE_WHITE },     { 0xB2, FG_UNICODE_NUMBER },
        { 0xE9, FG_UNICODE_LETTER },    { 0x301, FG_UNICODE_OTHER },
        { 0x2003, FG_UNICODE_WHITE },   { 0x200B, FG_UNICODE_OTHER },
        { 0x3000, FG_UNICODE_WHITE },   { 0x4E00, FG_UNICODE_LETTER },
        { 0x2167, FG_UNICODE_NUMBER },  { 0x1F999, FG_UNICODE_OTHER },
        { 0x20000, FG_UNICODE_LETTER }, { 0x10FFFF, FG_UNICODE_OTHER },
        { 0xFFFD, FG_UNICODE_OTHER },
    };
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
        cr_assert_eq(fg_unicode_classify(codes[i].code), codes[i].want, "U+%04X", codes[i].code);
    }
}
