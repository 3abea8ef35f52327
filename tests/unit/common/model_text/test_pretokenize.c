#include "common/model/pretokenize.h"

#include <stdint.h>
#include <stdlib.h>
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
    { "marks part words of qwen2", FG_PRE_QWEN2, "e|\u0301cole" },
    { "marks are letters of qwen35", FG_PRE_QWEN35, "e\u0301cole| ?|\u0301a" },
    { "a broken byte is no mark", FG_PRE_QWEN35, "a|\xFF|1" },
    { "punctuation leaves line ends", FG_PRE_SEED_CODER, "a| ?!|\n|b" },
    { "capitals begin words", FG_PRE_TEKKEN, "camel|Case| HTTPServers" },
    { "all capitals", FG_PRE_TEKKEN, "HTTP| ABC|1" },
    { "other letters are capitals and not", FG_PRE_TEKKEN, "ÉcoleÉ|COLEab\u01C5|A| É|COLE" },
    { "marks are no letters", FG_PRE_TEKKEN, "e|\u0301cole|.\u0301|1" },
    { "punctuation takes slashes", FG_PRE_TEKKEN, "path|/to| //\n/\n| | .|a| ./" },
    { "no contractions", FG_PRE_TEKKEN, "I|'m|1|2" },
    { "letters take a contraction", FG_PRE_GPT4O, "don't| HTTP'S|x|'y" },
    { "no contraction without letters", FG_PRE_GPT4O, "1|'s| ''|ll" },
    { "a contraction behind a word cut short", FG_PRE_GPT4O, "É'll|É|CO're|é|S" },
    { "three digits of gpt-4o", FG_PRE_GPT4O, "123|4| |567" },
    { "line ends stand alone", FG_PRE_DEEPSEEK_LLM, "a|\r|\n|\n| b" },
    { "accents part words", FG_PRE_DEEPSEEK_LLM, "n|é|e| É|cole" },
    { "signs", FG_PRE_DEEPSEEK_LLM, " ?!|a|.| |\u201C|x" },
    { "letters that CJK takes again", FG_PRE_DEEPSEEK_LLM, "Ti|ế|ng| |ế" },
    { "white space at an end", FG_PRE_DEEPSEEK_LLM, "🦙 🦙|  | a|🦙|  |\n|  " },
    { "white space before CJK and numbers", FG_PRE_DEEPSEEK_LLM, "🦙  |日|  |12| 🦙|1|日" },
    { "numbers inside CJK", FG_PRE_DEEPSEEK_LLM, "1|①②|一" },
    { "any letter is one", FG_PRE_DEEPSEEK_CODER, "née| École| |日本가" },
    { "single digits of deepseek-coder", FG_PRE_DEEPSEEK_CODER, "a|1|2| |①|②" },
    { "white space stays with what no set has", FG_PRE_DEEPSEEK_CODER, "🦙 | a|🦙  |\n|  " },
    { "symbols are no punctuation", FG_PRE_DEEPSEEK_CODER, "a|$=|..| !" },
    { "punctuation leads ASCII letters", FG_PRE_DEEPSEEK_V3, ".hello|é|!!|hello| .|x|.|é" },
    { "one that is no punctuation leads any", FG_PRE_DEEPSEEK_V3,
      " é|\té|\x01|\x01"
      "e|\x01| a" },
    { "marks are letters of deepseek-v3", FG_PRE_DEEPSEEK_V3, "e\u0301cole| \u0301" },
    { "CJK with its signs", FG_PRE_DEEPSEEK_V3, "日|・|本|abc|か\u3099|・|\n| |日" },
    { "three digits of deepseek-v3", FG_PRE_DEEPSEEK_V3, "123|4|a|  |56" },
    { "signs take line ends", FG_PRE_DEEPSEEK_V3, " €!\n\n|b|  \n| | c" },
    { "punctuation alone", FG_PRE_FALCON, "a|$!'|s| |...|x" },
    { "threes from the left", FG_PRE_FALCON, " 12|a| |123|45| |678" },
    { "threes of ASCII", FG_PRE_FALCON, "½12½|345|½٣٤" },
    { "other symbols join", FG_PRE_FALCON, " €\u0301|a" },
    { "words to the next mark of a sentence", FG_PRE_BLOOM, "a1-b|, .| c|\u00A0(|d" },
    { "single digits of viking", FG_PRE_VIKING, "a|1|2| b| |3|, | c" },
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
        " ",  "\n", "\r", "a", "1",    "'",  "s",    "LL",     "\xC3",   "\xA9", "\xE2\x80\x83",
        "日", "½",  ".",  "/", "\xFF", "\t", "🦙", "\u0301", "\u3001", "É",    "\x01",
    };
    for (int round = 0; round < 5000; round++) {
        char text[128];
        size_t length = 0;
        for (size_t i = fg_rng_below(&rng, 24) + 1; i > 0; i--) {
            const char *part = parts[fg_rng_below(&rng, sizeof(parts) / sizeof(parts[0]))];
            memcpy(text + length, part, strlen(part));
            length += strlen(part);
        }
        for (int pre = 0; pre < FG_PRE_COUNT; pre++) {
            for (size_t at = 0; at < length;) {
                size_t size = fg_pretokenize_next((fg_pretokenizer)pre, text + at, length - at);
                cr_assert(size > 0 && size <= length - at, "seed %llu", (unsigned long long)seed);
                at += size;
            }
        }
    }
}

/* Work for a word is bounded by the word: were it by the text, this would take many minutes. */
Test(pretokenize, is_linear_on_hostile_texts)
{
    static const char *const parts[] = { "1", "A",   "É",  "ÉA", " ", "日1", "🦙 ", "\x01",
                                         "/", "née", "a1", "~",  ",", "①",   "ế",     " \u0301" };
    enum { LENGTH = 1 << 17 };
    char *text = malloc(LENGTH);
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        size_t size = strlen(parts[i]);
        size_t length = LENGTH / size * size;
        for (size_t at = 0; at < length; at += size) {
            memcpy(text + at, parts[i], size);
        }
        for (int pre = 0; pre < FG_PRE_COUNT; pre++) {
            for (size_t at = 0; at < length;) {
                at += fg_pretokenize_next((fg_pretokenizer)pre, text + at, length - at);
            }
        }
    }
    free(text);
}

Test(pretokenize, knows_its_names_and_no_others)
{
    static const struct {
        const char *name;
        bool known;
        fg_pretokenizer pre;
        bool ignore_merges, add_bos;
    } names[] = {
        { "gpt-2", true, FG_PRE_GPT2, false, false },
        { "smollm", true, FG_PRE_SMOLLM, false, false },
        { "llama-bpe", true, FG_PRE_LLAMA3, true, true },
        { "falcon3", true, FG_PRE_LLAMA3, true, true },
        { "dbrx", true, FG_PRE_LLAMA3, false, false },
        { "glm4", true, FG_PRE_LLAMA3, true, false },
        { "qwen2", true, FG_PRE_QWEN2, false, false },
        { "deepseek-r1-qwen", true, FG_PRE_QWEN2, false, false },
        { "tekken", true, FG_PRE_TEKKEN, true, true },
        { "gpt-4o", true, FG_PRE_GPT4O, false, false },
        { "deepseek-v3", true, FG_PRE_DEEPSEEK_V3, false, false },
        { "default", true, FG_PRE_GPT2, false, false },
        { .name = "" },
        { .name = "qwen" },
        { .name = "qwen22" },
        { .name = "kimi-k2" },
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const fg_pretokenizer_name *have =
            fg_pretokenizer_find(names[i].name, strlen(names[i].name));
        cr_assert_eq(have != NULL, names[i].known, "%s", names[i].name);
        if (have != NULL) {
            cr_assert_eq(have->pre, names[i].pre, "%s", names[i].name);
            cr_assert_eq(have->ignore_merges, names[i].ignore_merges, "%s", names[i].name);
            cr_assert_eq(have->add_bos, names[i].add_bos, "%s", names[i].name);
        }
    }
}

Test(pretokenize, lists_one_name_of_each_family)
{
    char list[256];
    fg_pretokenizer_list(list, sizeof(list));
    cr_assert_str_eq(list, "gpt-2, smollm, llama-bpe, qwen2, qwen35, seed-coder, tekken, gpt-4o, "
                           "deepseek-llm, deepseek-coder, deepseek-v3, falcon, bloom, viking");
    memset(list, 'x', sizeof(list));
    fg_pretokenizer_list(list, 9);
    cr_assert_str_eq(list, "gpt-2, s");
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

Test(unicode_class, names_marks_punctuation_and_symbols_when_asked)
{
    static const struct {
        uint32_t code;
        fg_unicode_class want;
    } codes[] = {
        { 'a', FG_UNICODE_LETTER },       { '7', FG_UNICODE_NUMBER },
        { '\n', FG_UNICODE_WHITE },       { 0x3000, FG_UNICODE_WHITE },
        { '!', FG_UNICODE_PUNCTUATION },  { '#', FG_UNICODE_PUNCTUATION },
        { '$', FG_UNICODE_SYMBOL },       { '%', FG_UNICODE_PUNCTUATION },
        { '+', FG_UNICODE_SYMBOL },       { ';', FG_UNICODE_PUNCTUATION },
        { '<', FG_UNICODE_SYMBOL },       { '>', FG_UNICODE_SYMBOL },
        { '?', FG_UNICODE_PUNCTUATION },  { '^', FG_UNICODE_SYMBOL },
        { '_', FG_UNICODE_PUNCTUATION },  { '`', FG_UNICODE_SYMBOL },
        { '{', FG_UNICODE_PUNCTUATION },  { '|', FG_UNICODE_SYMBOL },
        { '~', FG_UNICODE_SYMBOL },       { 0, FG_UNICODE_OTHER },
        { 0x1F, FG_UNICODE_OTHER },       { 0x7F, FG_UNICODE_OTHER },
        { 0xA1, FG_UNICODE_PUNCTUATION }, { 0xAD, FG_UNICODE_OTHER },
        { 0x300, FG_UNICODE_MARK },       { 0x20E3, FG_UNICODE_MARK },
        { 0x20AC, FG_UNICODE_SYMBOL },    { 0x200B, FG_UNICODE_OTHER },
        { 0x1F999, FG_UNICODE_SYMBOL },   { 0x1F9FF, FG_UNICODE_SYMBOL },
        { 0xE0100, FG_UNICODE_MARK },     { 0xFFFD, FG_UNICODE_SYMBOL },
        { 0x10FFFF, FG_UNICODE_OTHER },
    };
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
        cr_assert_eq(fg_unicode_classify_fully(codes[i].code), codes[i].want, "U+%04X",
                     codes[i].code);
    }
}
