#include "common/base/utf8.h"

#include <stdbool.h>
#include <string.h>

#include "tests/support/test.h"

static const struct {
    const char *name, *text;
    size_t length, want;
    uint32_t code;
} cases[] = {
    { "empty", "", 0, 0, 0 },
    { "NUL", "\0", 1, 1, 0 },
    { "ascii", "az", 2, 1, 'a' },
    { "highest ascii", "\x7F", 1, 1, 0x7F },
    { "lowest two", "\xC2\x80", 2, 2, 0x80 },
    { "highest two", "\xDF\xBF", 2, 2, 0x7FF },
    { "lowest three", "\xE0\xA0\x80", 3, 3, 0x800 },
    { "below the surrogates", "\xED\x9F\xBF", 3, 3, 0xD7FF },
    { "above the surrogates", "\xEE\x80\x80", 3, 3, 0xE000 },
    { "highest three", "\xEF\xBF\xBF", 3, 3, 0xFFFF },
    { "lowest four", "\xF0\x90\x80\x80", 4, 4, 0x10000 },
    { "highest of all", "\xF4\x8F\xBF\xBF", 4, 4, 0x10FFFF },
    { "continuation first", "\x80", 1, 0, 0 },
    { "overlong two", "\xC1\xBF", 2, 0, 0 },
    { "overlong three", "\xE0\x9F\xBF", 3, 0, 0 },
    { "overlong four", "\xF0\x8F\xBF\xBF", 4, 0, 0 },
    { "first surrogate", "\xED\xA0\x80", 3, 0, 0 },
    { "last surrogate", "\xED\xBF\xBF", 3, 0, 0 },
    { "above all", "\xF4\x90\x80\x80", 4, 0, 0 },
    { "lead F5", "\xF5\x80\x80\x80", 4, 0, 0 },
    { "lead FF", "\xFF\xBF\xBF\xBF", 4, 0, 0 },
    { "cut off two", "\xC2", 1, 0, 0 },
    { "cut off three", "\xE2\x82", 2, 0, 0 },
    { "cut off four", "\xF0\x9F\x98", 3, 0, 0 },
    { "no continuation", "\xE2\x82\x28", 3, 0, 0 },
};

Test(utf8, decodes_and_refuses)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t code = 0;
        cr_assert_eq(fg_utf8_decode(cases[i].text, cases[i].length, &code), cases[i].want, "%s",
                     cases[i].name);
        cr_assert_eq(code, cases[i].code, "%s", cases[i].name);
    }
}

static size_t encode(uint32_t code, char *out)
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    size_t length = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const unsigned lead[] = { 0, 0, 0xC0, 0xE0, 0xF0 };
    for (size_t i = length - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (code & 0x3F));
        code >>= 6;
    }
    out[0] = (char)(lead[length] | code);
    return length;
}

Test(utf8, knows_every_character_and_every_beginning_of_one)
{
    for (uint32_t code = 0; code <= 0x10FFFF; code++) {
        char text[4];
        size_t length = encode(code, text);
        uint32_t back = 0;
        bool valid = code < 0xD800 || code > 0xDFFF;
        cr_assert_eq(fg_utf8_decode(text, length, &back), valid ? length : 0, "U+%04X", code);
        for (size_t cut = 1; valid && cut < length; cut++) {
            cr_assert(fg_utf8_is_prefix(text, cut), "U+%04X cut at %zu", code, cut);
        }
        cr_assert(!fg_utf8_is_prefix(text, length) || !valid, "U+%04X is whole", code);
    }
}

Test(utf8, refuses_beginnings_that_lead_nowhere)
{
    static const char *const texts[] = { "a",        "\x80",     "\xC1",         "\xE0\x9F",
                                         "\xED\xA0", "\xF0\x8F", "\xF4\x90",     "\xF5",
                                         "\xE2\x28", "",         "\xF0\x9F\x28", "\xC2\x80" };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        cr_assert(!fg_utf8_is_prefix(texts[i], strlen(texts[i])), "text %zu", i);
    }
}
