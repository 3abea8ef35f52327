#include "common/model/tokenizer.h"

#include <string.h>

#include "common/base/buf.h"
#include "common/base/rng.h"
#include "common/base/utf8.h"
#include "tests/support/seed.h"
#include "tests/support/small_vocab.h"
#include "tests/support/test.h"

static fg_tokenizer *open_small(bool spm)
{
    fg_buf file;
    fg_buf_init(&file, 0);
    if (spm) {
        small_spm(&file, true);
    } else {
        small_bpe(&file, "gpt-2", NULL);
    }
    fg_weights *weights = NULL;
    fg_tokenizer *tokenizer = NULL;
    fg_error err = { 0 };
    cr_assert_eq(fg_weights_open_memory(file.data, file.size, &weights, &err), FG_OK, "%s",
                 err.text);
    cr_assert_eq(fg_tokenizer_open(weights, &tokenizer, &err), FG_OK, "%s", err.text);
    fg_weights_close(weights);
    fg_buf_deinit(&file);
    return tokenizer;
}

/* Decodes `count` ids one by one; every step's output must be whole characters. */
static void decode(const fg_tokenizer *tokenizer, const uint32_t *ids, size_t count, bool strip,
                   fg_buf *out)
{
    fg_detok detok;
    fg_detok_init(&detok, strip);
    char step[256];
    size_t room = fg_tokenizer_piece_max(tokenizer) + 8;
    cr_assert(room <= sizeof(step));
    for (size_t i = 0; i <= count; i++) {
        size_t size = i < count ? fg_detok_push(&detok, tokenizer, ids[i], step, room)
                                : fg_detok_finish(&detok, step, 16);
        for (size_t at = 0; at < size;) {
            size_t wide = fg_utf8_length(step + at, size - at);
            cr_assert(wide > 0, "half a character came out at step %zu", i);
            at += wide;
        }
        fg_buf_append(out, step, size);
    }
}

#define LOST "\xEF\xBF\xBD"

Test(detok, shows_whole_characters_and_marks_what_is_broken)
{
    static const struct {
        const char *name, *bytes, *want;
    } cases[] = {
        { "ascii", "abc", "abc" },
        { "two bytes", "\xC3\xA9", "\xC3\xA9" },
        { "four bytes", "x\xF0\x9F\xA6\x99y", "x\xF0\x9F\xA6\x99y" },
        { "a lone continuation", "a\xA9z", "a" LOST "z" },
        { "never valid", "\xFF\xC0\xAF", LOST LOST LOST },
        { "cut off by a letter", "\xE2\x96z", LOST "z" },
        { "cut off by another beginning", "\xE2\x96\xC3\xA9", LOST "\xC3\xA9" },
        { "cut off by the end", "a\xF0\x9F\xA6", "a" LOST },
        { "surrogate", "\xED\xA0\x80", LOST LOST LOST },
        { "overlong", "\xE0\x80\x80", LOST LOST LOST },
        { "too high", "\xF4\x90\x80\x80", LOST LOST LOST LOST },
        { "four beginnings", "\xF0\xF0\xF0\x9F\xA6\x99", LOST LOST "\xF0\x9F\xA6\x99" },
    };
    fg_tokenizer *tokenizer = open_small(false);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t ids[16];
        size_t count = strlen(cases[i].bytes);
        for (size_t k = 0; k < count; k++) {
            ids[k] = (unsigned char)cases[i].bytes[k];
        }
        fg_buf out;
        fg_buf_init(&out, 0);
        decode(tokenizer, ids, count, false, &out);
        cr_assert_str_eq(out.data, cases[i].want, "%s", cases[i].name);
        fg_buf_deinit(&out);
    }
    fg_tokenizer_close(tokenizer);
}

Test(detok, control_tokens_and_strange_ids_are_silent)
{
    fg_tokenizer *tokenizer = open_small(false);
    const uint32_t ids[] = { SMALL_BPE_HE,    SMALL_BPE_IM_END, 0xC3,
                             SMALL_BPE_COUNT, FG_TOKEN_NONE,    0xA9,
                             SMALL_BPE_TOOL,  SMALL_BPE_SPACE_W };
    fg_buf out;
    fg_buf_init(&out, 0);
    decode(tokenizer, ids, sizeof(ids) / sizeof(ids[0]), false, &out);
    cr_assert_str_eq(out.data, "he\xC3\xA9<tool> w");
    fg_buf_deinit(&out);
    fg_tokenizer_close(tokenizer);
}

Test(detok, the_first_space_of_spm_is_dropped_when_asked)
{
    static const struct {
        const char *name;
        bool strip;
        uint32_t ids[4];
        size_t count;
        const char *want;
    } cases[] = {
        { "a text of its own", true, { SMALL_SPM_SPACE_A, SMALL_SPM_SPACE_A }, 2, "a a" },
        { "a continuation", false, { SMALL_SPM_SPACE_A, SMALL_SPM_SPACE_A }, 2, " a a" },
        { "after a silent token", true, { 1, SMALL_SPM_SPACE, SMALL_SPM_A }, 3, "a" },
        { "only one space", true, { SMALL_SPM_SPACE, SMALL_SPM_SPACE_A }, 2, " a" },
        { "no space there", true, { SMALL_SPM_A, SMALL_SPM_SPACE_A }, 2, "a a" },
        { "bytes", false, { 3 + 0xC3, 3 + 0xA9, 3 + 0x0A }, 3, "\xC3\xA9\n" },
    };
    fg_tokenizer *tokenizer = open_small(true);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        fg_buf out;
        fg_buf_init(&out, 0);
        decode(tokenizer, cases[i].ids, cases[i].count, cases[i].strip, &out);
        cr_assert_str_eq(out.data, cases[i].want, "%s", cases[i].name);
        fg_buf_deinit(&out);
    }
    fg_tokenizer_close(tokenizer);
}

Test(detok, decoding_gives_back_any_valid_text)
{
    uint64_t seed = test_seed(__func__);
    fg_rng rng = { seed };
    static const char *const parts[] = { " ",          "a",    "ab",   "hello", " w",
                                         "\xC3\xA9",   "日本", "🦙", "\n",    "<tool>",
                                         "<|im_end|>", "0",    "</s>" };
    for (int spm = 0; spm < 2; spm++) {
        fg_tokenizer *tokenizer = open_small(spm);
        for (int round = 0; round < 2000; round++) {
            char text[256] = "";
            for (size_t i = fg_rng_below(&rng, 20); i > 0; i--) {
                strcat(text, parts[fg_rng_below(&rng, sizeof(parts) / sizeof(parts[0]))]);
            }
            uint32_t ids[300];
            size_t count;
            fg_error err;
            cr_assert_eq(fg_tokenizer_encode(tokenizer, text, strlen(text),
                                             (fg_encode_options){ 0 }, ids, 300, &count, &err),
                         FG_OK);
            fg_buf out;
            fg_buf_init(&out, 0);
            fg_buf_puts(&out, "");
            decode(tokenizer, ids, count, true, &out);
            cr_assert_str_eq(out.data, text, "seed %llu", (unsigned long long)seed);
            fg_buf_deinit(&out);
        }
        fg_tokenizer_close(tokenizer);
    }
}
