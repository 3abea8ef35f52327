#include "common/model/vocab.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/base/utf8.h"

enum { MERGES_MAX = 1 << 24 };

/* Power of two with room for `count` entries at most half full. */
static uint32_t table_size(uint32_t count)
{
    uint32_t size = 16;
    while (size / 2 < count) {
        size *= 2;
    }
    return size;
}

/* The byte that a character of the alphabet stands for. Printable Latin-1 bytes stand for
 * themselves, the other 68 are numbered from U+0100 on in order. -1: not of the alphabet. */
static int byte_of_code(uint32_t code)
{
    if ((code >= 0x21 && code <= 0x7E) || (code >= 0xA1 && code <= 0xFF && code != 0xAD)) {
        return (int)code;
    }
    if (code < 0x100 || code > 0x143) {
        return -1;
    }
    uint32_t nth = code - 0x100;
    if (nth <= 0x20) {
        return (int)nth;
    }
    return nth <= 0x42 ? (int)(nth - 0x21 + 0x7F) : 0xAD;
}

size_t fg_byte_level_decode(const char *text, size_t length, char *out)
{
    size_t written = 0;
    for (size_t at = 0; at < length;) {
        uint32_t code;
        size_t step = fg_utf8_decode(text + at, length - at, &code);
        int byte = step == 0 ? -1 : byte_of_code(code);
        if (byte < 0) {
            return SIZE_MAX;
        }
        out[written++] = (char)byte;
        at += step;
    }
    return written;
}

static bool is_ordinary(const fg_vocab *vocab, uint32_t id)
{
    return vocab->kinds[id] == FG_TOKEN_NORMAL || vocab->kinds[id] == FG_TOKEN_USER_DEFINED;
}

/* The slot that holds `text`, or the empty one where it belongs. */
static uint32_t *text_slot(const fg_vocab *vocab, const char *text, size_t length)
{
    uint32_t at = (uint32_t)fg_hash64(text, length, 0) & vocab->text_mask;
    for (;; at = (at + 1) & vocab->text_mask) {
        uint32_t *slot = &vocab->text_slots[at];
        if (*slot == FG_TOKEN_NONE) {
            return slot;
        }
        size_t held_length;
        const char *held = fg_vocab_text(vocab, *slot, &held_length);
        if (held_length == length && memcmp(held, text, length) == 0) {
            return slot;
        }
    }
}

fg_status fg_vocab_build_text_table(fg_vocab *vocab, fg_error *err)
{
    uint32_t size = table_size(vocab->size);
    vocab->text_slots = fg_mem_array(size, sizeof(vocab->text_slots[0]));
    if (vocab->text_slots == NULL) {
        return fg_fail(err, FG_AGAIN, "tokenizer: out of memory");
    }
    vocab->text_mask = size - 1;
    memset(vocab->text_slots, 0xFF, (size_t)size * sizeof(vocab->text_slots[0]));
    for (uint32_t id = 0; id < vocab->size; id++) {
        size_t length;
        const char *text = fg_vocab_text(vocab, id, &length);
        /* Of two tokens with one text the later one is used, as llama.cpp does. */
        if (is_ordinary(vocab, id) && length > 0) {
            *text_slot(vocab, text, length) = id;
        }
    }
    return FG_OK;
}

uint32_t fg_vocab_find(const fg_vocab *vocab, const char *text, size_t length)
{
    if (length == 0 || length > vocab->piece_max) {
        return FG_TOKEN_NONE;
    }
    return *text_slot(vocab, text, length);
}

static fg_merge_slot *merge_slot(const fg_vocab *vocab, uint32_t left, uint32_t right)
{
    uint32_t at = (uint32_t)fg_hash_mix((uint64_t)left << 32 | right) & vocab->merge_mask;
    for (;; at = (at + 1) & vocab->merge_mask) {
        fg_merge_slot *slot = &vocab->merge_slots[at];
        if (slot->left == FG_TOKEN_NONE || (slot->left == left && slot->right == right)) {
            return slot;
        }
    }
}

const fg_merge_slot *fg_vocab_merge(const fg_vocab *vocab, uint32_t left, uint32_t right)
{
    if (left == FG_TOKEN_NONE || right == FG_TOKEN_NONE) {
        return NULL;
    }
    const fg_merge_slot *slot = merge_slot(vocab, left, right);
    return slot->left == FG_TOKEN_NONE ? NULL : slot;
}

/* Enters "left right" (written in the byte-level alphabet) with its rank. A merge of texts that are
 * no tokens could never show in the output and is left out. `scratch` is as long as the text. */
static void add_merge(fg_vocab *vocab, const char *text, size_t length, uint32_t rank,
                      char *scratch)
{
    const char *space = length < 2 ? NULL : memchr(text + 1, ' ', length - 1);
    if (space == NULL) {
        return;
    }
    size_t left_raw = (size_t)(space - text);
    size_t left_length = fg_byte_level_decode(text, left_raw, scratch);
    if (left_length == SIZE_MAX) {
        return;
    }
    char *right_text = scratch + left_length;
    size_t right_length = fg_byte_level_decode(space + 1, length - left_raw - 1, right_text);
    if (right_length == SIZE_MAX) {
        return;
    }
    uint32_t left = fg_vocab_find(vocab, scratch, left_length);
    uint32_t right = fg_vocab_find(vocab, right_text, right_length);
    uint32_t merged = fg_vocab_find(vocab, scratch, left_length + right_length);
    if (left == FG_TOKEN_NONE || right == FG_TOKEN_NONE || merged == FG_TOKEN_NONE) {
        return;
    }
    fg_merge_slot *slot = merge_slot(vocab, left, right);
    if (slot->left == FG_TOKEN_NONE) {
        *slot = (fg_merge_slot){ .left = left, .right = right, .rank = rank, .merged = merged };
    }
}

fg_status fg_vocab_build_merges(fg_vocab *vocab, const fg_weights *weights, fg_error *err)
{
    static const char key[] = "tokenizer.ggml.merges";
    fg_meta_type type;
    uint64_t count;
    if (!fg_weights_get_array(weights, key, &type, &count) || type != FG_META_STRING ||
        count > MERGES_MAX) {
        return fg_fail(err, FG_BAD_INPUT, "%s: not a list of at most %d strings", key, MERGES_MAX);
    }
    size_t scratch_size = 2 * vocab->piece_max * 2 + 1; /* a byte is at most two in the alphabet */
    char *scratch = fg_mem_alloc(scratch_size);
    uint32_t size = table_size((uint32_t)count);
    vocab->merge_slots = fg_mem_array(size, sizeof(vocab->merge_slots[0]));
    if (scratch == NULL || vocab->merge_slots == NULL) {
        fg_mem_free(scratch);
        return fg_fail(err, FG_AGAIN, "tokenizer: out of memory");
    }
    vocab->merge_mask = size - 1;
    memset(vocab->merge_slots, 0xFF, (size_t)size * sizeof(vocab->merge_slots[0]));
    for (uint32_t rank = 0; rank < count; rank++) {
        const char *text;
        size_t length;
        if (fg_weights_array_string(weights, key, rank, &text, &length) && length <= scratch_size) {
            add_merge(vocab, text, length, rank, scratch);
        }
    }
    fg_mem_free(scratch);
    return FG_OK;
}

static int compare_texts(const void *a, const void *b, void *ctx)
{
    const fg_vocab *vocab = ctx;
    size_t length_a;
    size_t length_b;
    const char *text_a = fg_vocab_text(vocab, *(const uint32_t *)a, &length_a);
    const char *text_b = fg_vocab_text(vocab, *(const uint32_t *)b, &length_b);
    int order = memcmp(text_a, text_b, length_a < length_b ? length_a : length_b);
    if (order != 0 || length_a == length_b) {
        return order;
    }
    return length_a < length_b ? -1 : 1;
}

static fg_status build_set(fg_vocab *vocab, fg_special_set *set, fg_token_kind kind,
                           fg_token_kind other_kind, fg_error *err)
{
    uint32_t count = 0;
    for (uint32_t id = 0; id < vocab->size; id++) {
        count += vocab->kinds[id] == kind || vocab->kinds[id] == other_kind;
    }
    set->ids = fg_mem_array(count + 1u, sizeof(set->ids[0]));
    if (set->ids == NULL) {
        return fg_fail(err, FG_AGAIN, "tokenizer: out of memory");
    }
    for (uint32_t id = 0; id < vocab->size; id++) {
        size_t length;
        const char *text = fg_vocab_text(vocab, id, &length);
        if (length > 0 && (vocab->kinds[id] == kind || vocab->kinds[id] == other_kind)) {
            set->ids[set->count++] = id;
            set->first[(unsigned char)text[0]] = true;
        }
    }
    qsort_r(set->ids, set->count, sizeof(set->ids[0]), compare_texts, vocab);
    return FG_OK;
}

fg_status fg_vocab_build_specials(fg_vocab *vocab, fg_error *err)
{
    fg_status status = build_set(vocab, &vocab->controls, FG_TOKEN_CONTROL, FG_TOKEN_UNKNOWN, err);
    if (status != FG_OK) {
        return status;
    }
    return build_set(vocab, &vocab->defined, FG_TOKEN_USER_DEFINED, FG_TOKEN_USER_DEFINED, err);
}

/* First member in [low, high) whose byte at `depth` is not below `byte`; all are longer than depth. */
static uint32_t lower_bound(const fg_vocab *vocab, const fg_special_set *set, uint32_t low,
                            uint32_t high, size_t depth, unsigned byte)
{
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        size_t length;
        const char *text = fg_vocab_text(vocab, set->ids[middle], &length);
        if ((unsigned char)text[depth] < byte) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

uint32_t fg_vocab_match(const fg_vocab *vocab, const fg_special_set *set, const char *text,
                        size_t length, size_t *length_out)
{
    uint32_t best = FG_TOKEN_NONE;
    uint32_t low = 0;
    uint32_t high = set->count;
    for (size_t depth = 0; low < high; depth++) {
        /* The members in [low, high) share the text's first `depth` bytes; shorter ones come first. */
        size_t member_length;
        fg_vocab_text(vocab, set->ids[low], &member_length);
        while (low < high && member_length == depth) {
            best = set->ids[low];
            *length_out = depth;
            low++;
            if (low < high) {
                fg_vocab_text(vocab, set->ids[low], &member_length);
            }
        }
        if (depth == length) {
            break;
        }
        unsigned byte = (unsigned char)text[depth];
        low = lower_bound(vocab, set, low, high, depth, byte);
        high = lower_bound(vocab, set, low, high, depth, byte + 1);
    }
    return best;
}
