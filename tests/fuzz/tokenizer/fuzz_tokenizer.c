/*
 * Any bytes as text: encoding stays in its bounds, decoding gives the bytes back, streaming shows only
 * whole characters, and no user text becomes a control token.
 *
 * Byte 0 chooses the vocabulary (bits 0 to 2, 5 to 7) and the options (3, 4), byte 1 and 2 a plain
 * span; the rest is the text.
 */
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/utf8.h"
#include "common/model/tokenizer.h"
#include "tests/support/small_vocab.h"

enum { HEAD = 3, TEXT_MAX = 4096 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Byte-level BPE with a pre-tokenizer of each family; the seeds rely on the first six. */
static const char *const vocabs[] = {
    "gpt-2",      "smollm", "llama-bpe",    "qwen2",          "spm with a space",
    "spm",        "tekken", "gpt-4o",       "qwen35",         "falcon",
    "bloom",      "viking", "deepseek-llm", "deepseek-coder", "deepseek-v3",
    "seed-coder",
};

enum { VOCABS = sizeof(vocabs) / sizeof(vocabs[0]) };

static bool is_spm(unsigned which)
{
    return strncmp(vocabs[which], "spm", 3) == 0;
}

static fg_tokenizer *open_vocab(unsigned which)
{
    fg_buf file;
    fg_buf_init(&file, 0);
    if (is_spm(which)) {
        small_spm(&file, strcmp(vocabs[which], "spm") != 0);
    } else {
        small_bpe(&file, vocabs[which], NULL);
    }
    fg_weights *weights = NULL;
    fg_tokenizer *tokenizer = NULL;
    FG_ASSERT(fg_weights_open_memory(file.data, file.size, &weights, NULL) == FG_OK);
    FG_ASSERT(fg_tokenizer_open(weights, &tokenizer, NULL) == FG_OK);
    fg_weights_close(weights);
    fg_buf_deinit(&file);
    return tokenizer;
}

/* The bytes of all tokens, one after the other. */
static void join(const fg_tokenizer *tokenizer, const uint32_t *ids, size_t count, fg_buf *out)
{
    for (size_t i = 0; i < count; i++) {
        size_t length;
        const char *piece = fg_tokenizer_piece(tokenizer, ids[i], true, &length);
        fg_buf_append(out, piece, length);
    }
}

/* SPM cannot tell U+2581 from a space. */
static void append_spm_text(fg_buf *out, const char *text, size_t length)
{
    for (size_t at = 0; at < length;) {
        bool space = length - at >= 3 && memcmp(text + at, "\xE2\x96\x81", 3) == 0;
        fg_buf_append(out, space ? " " : text + at, 1);
        at += space ? 3 : 1;
    }
}

static void check_stream(const fg_tokenizer *tokenizer, const uint32_t *ids, size_t count)
{
    char step[256];
    size_t room = fg_tokenizer_piece_max(tokenizer) + 8;
    FG_ASSERT(room <= sizeof(step));
    fg_detok detok;
    fg_detok_init(&detok, true);
    for (size_t i = 0; i <= count; i++) {
        size_t size = i < count ? fg_detok_push(&detok, tokenizer, ids[i], step, room)
                                : fg_detok_finish(&detok, step, 16);
        for (size_t at = 0; at < size;) {
            size_t wide = fg_utf8_length(step + at, size - at);
            FG_ASSERT(wide > 0, "half a character");
            at += wide;
        }
    }
}

static void check_text(const fg_tokenizer *tokenizer, bool spm, const char *text, size_t length,
                       fg_encode_options options)
{
    static uint32_t ids[TEXT_MAX + 8];
    size_t count;
    fg_error err;
    FG_ASSERT(fg_tokenizer_encode(tokenizer, text, length, options, ids, TEXT_MAX + 8, &count,
                                  &err) == FG_OK);
    fg_buf have;
    fg_buf want;
    fg_buf_init(&have, 0);
    fg_buf_init(&want, 0);
    join(tokenizer, ids, count, &have);
    if (!spm) {
        fg_buf_append(&want, text, length);
    } else {
        if (length > 0 && fg_tokenizer_adds_space(tokenizer)) {
            fg_buf_putc(&want, ' ');
        }
        append_spm_text(&want, text, length);
    }
    /* With special tokens SPM puts a space after each; then only the bounds are checked. */
    if (!spm || !options.parse_special) {
        FG_ASSERT(have.size == want.size);
        FG_ASSERT(have.size == 0 || memcmp(have.data, want.data, have.size) == 0);
    }
    for (size_t i = 0; i < count; i++) {
        FG_ASSERT(ids[i] < fg_tokenizer_vocab_size(tokenizer));
        FG_ASSERT(options.parse_special || !fg_tokenizer_is_end(tokenizer, ids[i]));
    }
    check_stream(tokenizer, ids, count);
    uint32_t *exact = malloc((count + 1) * sizeof(*exact)); /* the sanitizer sees one id too many */
    size_t again;
    FG_ASSERT(fg_tokenizer_encode(tokenizer, text, length, options, exact, count, &again, &err) ==
              FG_OK);
    FG_ASSERT(again == count && memcmp(exact, ids, count * sizeof(ids[0])) == 0);
    FG_ASSERT(count == 0 || fg_tokenizer_encode(tokenizer, text, length, options, exact, count - 1,
                                                &again, &err) == FG_BAD_INPUT);
    /* What it has at least is never more than what it has. */
    options.refuse_at = count + 1;
    FG_ASSERT(fg_tokenizer_encode(tokenizer, text, length, options, ids, TEXT_MAX + 8, &again,
                                  &err) == FG_OK);
    FG_ASSERT(again == count);
    free(exact);
    fg_buf_deinit(&have);
    fg_buf_deinit(&want);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static fg_tokenizer *tokenizers[VOCABS];
    if (size < HEAD || size > TEXT_MAX) {
        return 0;
    }
    unsigned which = (data[0] % 8u + data[0] / 32u * 8u) % VOCABS;
    size_t length = size - HEAD;
    char *text = malloc(length + 1); /* its own block, so that an over-read is seen */
    FG_ASSERT(text != NULL);
    memcpy(text, data + HEAD, length);
    if (tokenizers[which] == NULL) {
        tokenizers[which] = open_vocab(which);
    }
    fg_text_span plain = { .start = data[1] <= length ? data[1] : length };
    plain.length = data[2] <= length - plain.start ? data[2] : length - plain.start;
    fg_encode_options options = { .parse_special = (data[0] & 8) != 0,
                                  .plain = &plain,
                                  .plain_count = (data[0] & 16) != 0 };
    check_text(tokenizers[which], is_spm(which), text, length, options);
    free(text);
    return 0;
}
