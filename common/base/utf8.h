/*
 * utf8 - how many bytes the next character takes. Pure.
 */
#ifndef FORGE_COMMON_BASE_UTF8_H
#define FORGE_COMMON_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Decodes one character at `text`. Returns its length (1..4) and the code point, or 0 when the bytes
 * are not valid UTF-8 (overlong, surrogate, above U+10FFFF, or cut off). */
static inline size_t fg_utf8_decode(const char *text, size_t length, uint32_t *code_out)
{
    const unsigned char *s = (const unsigned char *)text;
    if (length == 0) {
        return 0;
    }
    if (s[0] < 0x80) {
        *code_out = s[0];
        return 1;
    }
    size_t need = s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : 2;
    if (s[0] < 0xC2 || s[0] > 0xF4 || length < need) {
        return 0;
    }
    uint32_t code = s[0] & (0x7Fu >> need);
    for (size_t i = 1; i < need; i++) {
        if ((s[i] & 0xC0) != 0x80) {
            return 0;
        }
        code = code << 6 | (s[i] & 0x3F);
    }
    static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    if (code < least[need] || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) {
        return 0;
    }
    *code_out = code;
    return need;
}

static inline size_t fg_utf8_length(const char *text, size_t length)
{
    uint32_t code;
    return fg_utf8_decode(text, length, &code);
}

/* True when `text` (1..3 bytes) could be the beginning of a longer valid character. */
static inline int fg_utf8_is_prefix(const char *text, size_t length)
{
    const unsigned char *s = (const unsigned char *)text;
    if (length == 0 || length > 3 || s[0] < 0xC2 || s[0] > 0xF4) {
        return 0;
    }
    size_t need = s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : 2;
    if (length >= need) {
        return 0;
    }
    for (size_t i = 1; i < length; i++) {
        if ((s[i] & 0xC0) != 0x80) {
            return 0;
        }
    }
    if (length >= 2 && ((s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xED && s[1] > 0x9F) ||
                        (s[0] == 0xF0 && s[1] < 0x90) || (s[0] == 0xF4 && s[1] > 0x8F))) {
        return 0;
    }
    return 1;
}

#endif
