#include "common/model/vocab_pair.h"

#include <stdio.h>
#include <string.h>

#define TOKENS "tokenizer.ggml.tokens"
#define TYPES  "tokenizer.ggml.token_type"

/* As much of a token's text as a line can have. */
enum { SHOWN_BYTES = 40 };

static fg_status kinds_match(const fg_weights *model, const fg_weights *draft, fg_error *err)
{
    const char *a = "", *b = "";
    size_t a_length = 0, b_length = 0;
    (void)fg_weights_get_string(model, "tokenizer.ggml.model", &a, &a_length);
    (void)fg_weights_get_string(draft, "tokenizer.ggml.model", &b, &b_length);
    if (a_length != b_length || memcmp(a, b, a_length) != 0) {
        return fg_fail(err, FG_BAD_INPUT,
                       "its tokenizer is of another kind: \"%.*s\", the model's \"%.*s\"",
                       (int)(b_length < SHOWN_BYTES ? b_length : SHOWN_BYTES), b,
                       (int)(a_length < SHOWN_BYTES ? a_length : SHOWN_BYTES), a);
    }
    return FG_OK;
}

/* A file's bytes in a line of a log. */
static void show(const char *text, size_t length, char *out)
{
    size_t count = length < SHOWN_BYTES ? length : SHOWN_BYTES;
    for (size_t i = 0; i < count; i++) {
        unsigned char c = (unsigned char)text[i];
        out[i] = c < ' ' || c == 127 || c == '"' ? '.' : text[i];
    }
    out[count] = '\0';
}

static fg_status texts_match(const fg_weights *model, const fg_weights *draft, uint64_t count,
                             fg_error *err)
{
    char shown_a[SHOWN_BYTES + 1], shown_b[SHOWN_BYTES + 1];
    for (uint64_t i = 0; i < count; i++) {
        const char *a = "", *b = "";
        size_t a_length = 0, b_length = 0;
        int64_t a_type = 0, b_type = 0;
        (void)fg_weights_array_string(model, TOKENS, i, &a, &a_length);
        (void)fg_weights_array_string(draft, TOKENS, i, &b, &b_length);
        if (a_length != b_length || memcmp(a, b, a_length) != 0) {
            show(a, a_length, shown_a);
            show(b, b_length, shown_b);
            return fg_fail(err, FG_BAD_INPUT, "its token %llu is \"%s\", the model's \"%s\"",
                           (unsigned long long)i, shown_b, shown_a);
        }
        (void)fg_weights_array_i64(model, TYPES, i, &a_type);
        (void)fg_weights_array_i64(draft, TYPES, i, &b_type);
        if (a_type != b_type) {
            return fg_fail(err, FG_BAD_INPUT, "its token %llu is of type %lld, the model's of %lld",
                           (unsigned long long)i, (long long)b_type, (long long)a_type);
        }
    }
    return FG_OK;
}

/* What one of them has more is there for its size alone. */
static fg_status rest_pads(const fg_weights *longer, uint64_t first, uint64_t count)
{
    enum { UNUSED = 5 }; /* GGUF's number */
    for (uint64_t i = first; i < count; i++) {
        int64_t type = 0;
        if (!fg_weights_array_i64(longer, TYPES, i, &type) || type != UNUSED) {
            return FG_BAD_INPUT;
        }
    }
    return FG_OK;
}

static fg_status ends_match(const fg_weights *model, const fg_weights *draft, fg_error *err)
{
    static const char *const names[] = { "eos", "eot", "eom" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char key[48];
        uint32_t a = UINT32_MAX, b = UINT32_MAX;
        snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", names[i]);
        (void)fg_weights_get_u32(model, key, &a);
        (void)fg_weights_get_u32(draft, key, &b);
        if (a != b) {
            return fg_fail(err, FG_BAD_INPUT, "its %s token is %d, the model's %d (-1: none)",
                           names[i], (int)b, (int)a);
        }
    }
    return FG_OK;
}

fg_status fg_vocab_pair_check(const fg_weights *model, const fg_weights *draft, fg_error *err)
{
    fg_meta_type a_type, b_type;
    uint64_t a_count = 0, b_count = 0;
    if (!fg_weights_get_array(model, TOKENS, &a_type, &a_count) ||
        !fg_weights_get_array(draft, TOKENS, &b_type, &b_count) || a_type != FG_META_STRING ||
        b_type != FG_META_STRING) {
        return fg_fail(err, FG_BAD_INPUT, "it, or the model, has no vocabulary");
    }
    fg_status status = kinds_match(model, draft, err);
    bool is_longer = b_count > a_count;
    uint64_t both = is_longer ? a_count : b_count;
    if (status == FG_OK &&
        rest_pads(is_longer ? draft : model, both, is_longer ? b_count : a_count) != FG_OK) {
        status = fg_fail(err, FG_BAD_INPUT,
                         "it has %llu tokens, the model %llu, and those beyond are in use",
                         (unsigned long long)b_count, (unsigned long long)a_count);
    }
    status = status != FG_OK ? status : texts_match(model, draft, both, err);
    return status != FG_OK ? status : ends_match(model, draft, err);
}
