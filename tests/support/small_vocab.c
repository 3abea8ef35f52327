#include "tests/support/small_vocab.h"

#include <stdio.h>
#include <string.h>

enum { TYPE_U32 = 4, TYPE_I32 = 5, TYPE_F32 = 6, TYPE_BOOL = 7, TYPE_STRING = 8, TYPE_ARRAY = 9 };
enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER_DEFINED = 4, BYTE = 6 };

/* Where the number of keys stands in the file's head. */
enum { KEY_COUNT_AT = 16 };

static void put_u32(small_gguf *file, uint32_t value)
{
    fg_buf_append(file->out, &value, sizeof(value));
}

static void put_u64(small_gguf *file, uint64_t value)
{
    fg_buf_append(file->out, &value, sizeof(value));
}

static void put_string(small_gguf *file, const char *text)
{
    put_u64(file, strlen(text));
    fg_buf_puts(file->out, text);
}

static void put_key(small_gguf *file, const char *key, uint32_t type)
{
    put_string(file, key);
    put_u32(file, type);
    file->key_count++;
}

void small_gguf_start(small_gguf *file, fg_buf *out)
{
    *file = (small_gguf){ .out = out };
    fg_buf_puts(out, "GGUF");
    put_u32(file, 3);
    put_u64(file, 0);
    put_u64(file, 0);
    small_gguf_string(file, "general.architecture", "llama");
}

void small_gguf_finish(small_gguf *file)
{
    memcpy(file->out->data + KEY_COUNT_AT, &file->key_count, sizeof(file->key_count));
}

void small_gguf_string(small_gguf *file, const char *key, const char *value)
{
    put_key(file, key, TYPE_STRING);
    put_string(file, value);
}

void small_gguf_u32(small_gguf *file, const char *key, uint32_t value)
{
    put_key(file, key, TYPE_U32);
    put_u32(file, value);
}

void small_gguf_bool(small_gguf *file, const char *key, bool value)
{
    put_key(file, key, TYPE_BOOL);
    fg_buf_putc(file->out, value ? 1 : 0);
}

static void put_array(small_gguf *file, const char *key, uint32_t type, uint64_t count)
{
    put_key(file, key, TYPE_ARRAY);
    put_u32(file, type);
    put_u64(file, count);
}

void small_gguf_strings(small_gguf *file, const char *key, const char *const *values,
                        uint64_t count)
{
    put_array(file, key, TYPE_STRING, count);
    for (uint64_t i = 0; i < count; i++) {
        put_string(file, values[i]);
    }
}

void small_gguf_i32s(small_gguf *file, const char *key, const int32_t *values, uint64_t count)
{
    put_array(file, key, TYPE_I32, count);
    fg_buf_append(file->out, values, count * sizeof(values[0]));
}

void small_gguf_f32s(small_gguf *file, const char *key, const float *values, uint64_t count)
{
    put_array(file, key, TYPE_F32, count);
    fg_buf_append(file->out, values, count * sizeof(values[0]));
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
    static const char *const more[] = { "he",          "ll", "hell", "hello", "\xC4\xA0w",
                                        "aa",          "aaaa", "lo", "<|endoftext|>",
                                        "<|im_start|>", "<|im_end|>", "<|im", "<tool>" };
    static const char *const merges[] = { "h e",    "l l", "he ll",     "hell o", "\xC4\xA0 w",
                                          "aa aa",  "a a", "not there", "l o" };
    char bytes[256][4];
    const char *tokens[SMALL_BPE_COUNT];
    int32_t kinds[SMALL_BPE_COUNT];
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
    small_gguf file;
    small_gguf_start(&file, out);
    small_gguf_string(&file, "tokenizer.ggml.model", "gpt2");
    small_gguf_string(&file, "tokenizer.ggml.pre", pre);
    small_gguf_strings(&file, "tokenizer.ggml.tokens", tokens, SMALL_BPE_COUNT);
    small_gguf_i32s(&file, "tokenizer.ggml.token_type", kinds, SMALL_BPE_COUNT);
    small_gguf_strings(&file, "tokenizer.ggml.merges", merges, sizeof(merges) / sizeof(merges[0]));
    small_gguf_u32(&file, "tokenizer.ggml.bos_token_id", SMALL_BPE_END_OF_TEXT);
    small_gguf_u32(&file, "tokenizer.ggml.eos_token_id", SMALL_BPE_END_OF_TEXT);
    if (chat_template != NULL) {
        small_gguf_string(&file, "tokenizer.chat_template", chat_template);
    }
    small_gguf_finish(&file);
}

void small_spm(fg_buf *out, bool add_space_prefix)
{
#define SPACE "\xE2\x96\x81"
    static const struct {
        const char *text;
        float score;
    } pieces[] = {
        { SPACE, -20 },  { "a", -21 }, { "b", -22 }, { "ab", -3 }, { SPACE "a", -2 },
        { SPACE "ab", -4 }, { "ba", -1 }, { "<", -23 }, { "/s>", -5 }, { "/", -24 },
        { "s", -25 },    { ">", -26 }, { "s>", -6 }, { "\xC3\xA9", -27 },
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
    small_gguf file;
    small_gguf_start(&file, out);
    small_gguf_string(&file, "tokenizer.ggml.model", "llama");
    small_gguf_strings(&file, "tokenizer.ggml.tokens", tokens, SMALL_SPM_COUNT);
    small_gguf_i32s(&file, "tokenizer.ggml.token_type", kinds, SMALL_SPM_COUNT);
    small_gguf_f32s(&file, "tokenizer.ggml.scores", scores, SMALL_SPM_COUNT);
    if (!add_space_prefix) {
        small_gguf_bool(&file, "tokenizer.ggml.add_space_prefix", false);
    }
    small_gguf_finish(&file);
}
