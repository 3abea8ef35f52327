#include "common/model/least.h"

#include "common/base/mem.h"

enum { PAIRS = 1 << 16 };

static size_t pair_at(const char *text)
{
    return (size_t)(unsigned char)text[0] << 8 | (unsigned char)text[1];
}

fg_status fg_least_build(fg_vocab *vocab, fg_error *err)
{
    vocab->reach = fg_mem_array(PAIRS, sizeof(vocab->reach[0]));
    if (vocab->reach == NULL) {
        return fg_fail(err, FG_AGAIN, "tokenizer: out of memory");
    }
    for (size_t pair = 0; pair < PAIRS; pair++) {
        vocab->reach[pair] = 1; /* a byte's own id, or the unknown token */
    }
    for (uint32_t id = 0; id < vocab->size; id++) {
        size_t length;
        const char *text = fg_vocab_text(vocab, id, &length);
        if (length >= 2 && vocab->reach[pair_at(text)] < length) {
            vocab->reach[pair_at(text)] = (uint32_t)length;
        }
    }
    return FG_OK;
}

/* Where it is no part of a token it is left out, and no id is needed for it. */
static bool is_free(const fg_vocab *vocab, char byte)
{
    return vocab->unknown == FG_TOKEN_NONE && vocab->byte_ids[(unsigned char)byte] == FG_TOKEN_NONE;
}

size_t fg_least_ids(const fg_vocab *vocab, const char *text, size_t length)
{
    size_t count = 0, covered = 0, furthest = 0, at = 0;
    for (;;) {
        while (covered < length && is_free(vocab, text[covered])) {
            covered++;
        }
        if (covered >= length) {
            return count;
        }
        for (; at <= covered; at++) {
            size_t end = at + (at + 1 < length ? vocab->reach[pair_at(text + at)] : 1);
            furthest = end > furthest ? end : furthest;
        }
        covered = furthest;
        count++;
    }
}
