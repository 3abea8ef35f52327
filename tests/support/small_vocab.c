#include "tests/support/small_vocab.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/support/gguf_builder.h"

enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER_DEFINED = 4, BYTE = 6 };

/* Ends the file and appends it to `out`. */
static void finish(fg_gguf_builder *file, fg_buf *out)
{
    size_t size_bytes;
    void *bytes = fg_gguf_finish(file, &size_bytes);
    fg_buf_append(out, bytes, size_bytes);
    free(bytes);
    fg_gguf_builder_destroy(file);
}

static fg_gguf_builder *start(const char *model, const char *const *tokens, const int32_t *kinds,
                              size_t count)
{
    fg_gguf_builder *file = fg_gguf_builder_create();
    fg_gguf_add_string(file, "general.architecture", "llama");
    fg_gguf_add_string(file, "tokenizer.ggml.model", model);
    fg_gguf_add_strings(file, "tokenizer.ggml.tokens", tokens, count);
    fg_gguf_add_array(file, "tokenizer.ggml.token_type", FG_META_I32, kinds, count);
    return file;
}

/* A byte in the alphabet of byte-level BPE, as UTF-8. Counts the bytes that are not printable,
 * independently of the tokenizer's own arithmetic. */
static void alphabet(unsigned byte, char *out)
{
    unsigned moved = 0;
    for (unsigned b = 0; b <= byte; b++) {
        bool printable = (b > 0x20 && b < 0x7F) || (b > 0xA0 && b != 0xAD);
        if (b == byte) {
            unsigned code = printable ? b : 0x100 + moved;
            snprintf(out, 4, code < 0x80 ? "%c" : "%c%c", code < 0x80 ? code : 0xC0 | code >> 6,
                     0x80 | (code & 0x3F));
        }
        moved += !printable;
    }
}

void small_bpe(fg_buf *out, const char *pre, const char *chat_template)
{
    small_bpe_with(out, pre, chat_template, NULL, 0);
}

void small_bpe_with(fg_buf *out, const char *pre, const char *chat_template,
                    const char *const *controls, size_t control_count)
{
    static const char *const more[] = { "he",           "ll",         "hell",
                                        "hello",        "\xC4\xA0w",  "aa",
                                        "aaaa",         "lo",         "<|endoftext|>",
                                        "<|im_start|>", "<|im_end|>", "<|im",
                                        "<tool>",       "<|user|>" };
    static const char *const merges[] = { "h e",   "l l", "he ll",     "hell o", "\xC4\xA0 w",
                                          "aa aa", "a a", "not there", "l o" };
    char bytes[256][4];
    const char *tokens[SMALL_BPE_COUNT + SMALL_BPE_MORE_MAX];
    int32_t kinds[SMALL_BPE_COUNT + SMALL_BPE_MORE_MAX];
    for (unsigned i = 0; i < SMALL_BPE_COUNT; i++) {
        if (i < 256) {
            alphabet(i, bytes[i]);
        }
        tokens[i] = i < 256 ? bytes[i] : more[i - 256];
        kinds[i] = NORMAL;
    }
    kinds[SMALL_BPE_END_OF_TEXT] = CONTROL;
    kinds[SMALL_BPE_IM_START] = CONTROL;
    kinds[SMALL_BPE_IM] = CONTROL;
    kinds[SMALL_BPE_TOOL] = USER_DEFINED;
    kinds[SMALL_BPE_USER] = CONTROL;
    for (size_t i = 0; i < control_count; i++) {
        tokens[SMALL_BPE_COUNT + i] = controls[i];
        kinds[SMALL_BPE_COUNT + i] = CONTROL;
    }
    fg_gguf_builder *file = start("gpt2", tokens, kinds, SMALL_BPE_COUNT + control_count);
    fg_gguf_add_string(file, "tokenizer.ggml.pre", pre);
    fg_gguf_add_strings(file, "tokenizer.ggml.merges", merges, sizeof(merges) / sizeof(merges[0]));
    fg_gguf_add_u32(file, "tokenizer.ggml.bos_token_id", SMALL_BPE_END_OF_TEXT);
    fg_gguf_add_u32(file, "tokenizer.ggml.eos_token_id", SMALL_BPE_END_OF_TEXT);
    if (chat_template != NULL) {
        fg_gguf_add_string(file, "tokenizer.chat_template", chat_template);
    }
    finish(file, out);
}

void small_spm(fg_buf *out, bool add_space_prefix)
{
#define SPACE "\xE2\x96\x81"
    static const struct {
        const char *text;
        float score;
    } pieces[] = {
        { SPACE, -20 },     { "a", -21 }, { "b", -22 }, { "ab", -3 },        { SPACE "a", -2 },
        { SPACE "ab", -4 }, { "ba", -1 }, { "<", -23 }, { "/s>", -5 },       { "/", -24 },
        { "s", -25 },       { ">", -26 }, { "s>", -6 }, { "\xC3\xA9", -27 },
    };
#undef SPACE
    static const char *const first[] = { "<unk>", "<s>", "</s>" };
    char bytes[256][7];
    const char *tokens[SMALL_SPM_COUNT];
    int32_t kinds[SMALL_SPM_COUNT] = { UNKNOWN, CONTROL, CONTROL };
    float scores[SMALL_SPM_COUNT] = { 0 };
    for (unsigned i = 0; i < SMALL_SPM_COUNT; i++) {
        if (i < 3) {
            tokens[i] = first[i];
        } else if (i < SMALL_SPM_SPACE) {
            snprintf(bytes[i - 3], sizeof(bytes[0]), "<0x%02X>", (i - 3) & 0xFFu);
            tokens[i] = bytes[i - 3];
            kinds[i] = BYTE;
        } else {
            tokens[i] = pieces[i - SMALL_SPM_SPACE].text;
            scores[i] = pieces[i - SMALL_SPM_SPACE].score;
            kinds[i] = NORMAL;
        }
    }
    fg_gguf_builder *file = start("llama", tokens, kinds, SMALL_SPM_COUNT);
    fg_gguf_add_array(file, "tokenizer.ggml.scores", FG_META_F32, scores, SMALL_SPM_COUNT);
    if (!add_space_prefix) {
        fg_gguf_add_bool(file, "tokenizer.ggml.add_space_prefix", false);
    }
    finish(file, out);
}
