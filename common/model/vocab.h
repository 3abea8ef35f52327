/*
 * vocab - the tables of a tokenizer: token texts, kinds, look-up by text, merge ranks, the special
 * tokens in order. Part of tokenizer (its files only). Filled once by fg_vocab_load, then read-only.
 *
 * Texts are kept as the bytes that a token stands for: byte-level BPE's alphabet is undone, SPM's
 * U+2581 is a space and <0x0A> is one byte. Control and unknown tokens keep their names.
 */
#ifndef FORGE_COMMON_MODEL_VOCAB_H
#define FORGE_COMMON_MODEL_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/model/pretokenize.h"
#include "common/model/tokenizer.h"
#include "common/model/weights.h"

typedef enum fg_token_kind { /* GGUF's numbers of tokenizer.ggml.token_type */
                             FG_TOKEN_NORMAL = 1,
                             FG_TOKEN_UNKNOWN = 2,
                             FG_TOKEN_CONTROL = 3,
                             FG_TOKEN_USER_DEFINED = 4,
                             FG_TOKEN_UNUSED = 5,
                             FG_TOKEN_BYTE = 6,
} fg_token_kind;

/* One merge of byte-level BPE: `left` then `right` become `merged`; lower ranks merge first. */
typedef struct fg_merge_slot {
    uint32_t left, right; /* left FG_TOKEN_NONE: empty slot */
    uint32_t rank;
    uint32_t merged;
} fg_merge_slot;

/* Tokens found by their text inside running text, sorted by bytes. */
typedef struct fg_special_set {
    uint32_t *ids;
    uint32_t count;
    bool first[256]; /* some member starts with this byte */
} fg_special_set;

typedef struct fg_vocab {
    bool spm;
    fg_pretokenizer pre;
    bool add_bos;
    bool add_space_prefix;
    bool space_first_only; /* not behind special tokens, nor before a space */
    bool ignore_merges;    /* a word that is a token is taken as it is */
    bool splits_at_spaces; /* SPM: no token continues over the start of a run of spaces */
    uint32_t size;
    uint32_t bos, eos, unknown;
    uint32_t behind; /* put behind a text that is not to be continued; FG_TOKEN_NONE: nothing */
    uint32_t byte_ids[256];
    size_t piece_max; /* longest text, in bytes */
    uint32_t
        *reach; /* of two bytes: how long the longest token is that begins with them (least.h) */

    char *bytes;
    uint32_t *offsets; /* size + 1: token i is bytes[offsets[i] .. offsets[i + 1]) */
    uint8_t *kinds;    /* fg_token_kind */
    bool *ends;        /* ends generation */
    uint8_t
        *strips;   /* FG_STRIP_*, white space that a special token takes with it; NULL: none does */
    float *scores; /* SPM only */

    uint32_t *text_slots; /* open addressing, FG_TOKEN_NONE: empty */
    uint32_t text_mask;
    fg_merge_slot *merge_slots;
    uint32_t merge_mask;
    fg_special_set controls; /* control, unknown */
    fg_special_set defined;  /* user-defined */
} fg_vocab;

/* Keys that llama.cpp's files lack, for what tokenizers of other formats say: whether a word that is a token is taken as it is,
 * without merges (else the pre-tokenizer's name decides); the ids of all tokens that end an answer; space_first_only; and the
 * ids of tokens that take white space before or behind them with them; the id of the token that is put behind a text. */
#define FG_VOCAB_WHOLE_KEY       "tokenizer.forge.ignore_merges"
#define FG_VOCAB_ENDS_KEY        "tokenizer.forge.end_token_ids"
#define FG_VOCAB_BEHIND_KEY      "tokenizer.forge.behind_token_id"
#define FG_VOCAB_FIRST_KEY       "tokenizer.forge.space_first_only"
#define FG_VOCAB_STRIP_LEFT_KEY  "tokenizer.forge.strip_left_ids"
#define FG_VOCAB_STRIP_RIGHT_KEY "tokenizer.forge.strip_right_ids"

enum { FG_STRIP_LEFT = 1, FG_STRIP_RIGHT = 2 };

/* The first of what fg_vocab_load checks: the family, from a few strings. */
fg_status fg_vocab_check(const fg_weights *weights, fg_error *err);
fg_status fg_vocab_load(fg_vocab *vocab, const fg_weights *weights, fg_error *err);
void fg_vocab_deinit(fg_vocab *vocab);

static inline const char *fg_vocab_text(const fg_vocab *vocab, uint32_t id, size_t *length_out)
{
    *length_out = vocab->offsets[id + 1] - vocab->offsets[id];
    return vocab->bytes + vocab->offsets[id];
}

/* The ordinary (normal or user-defined) token with exactly this text, or FG_TOKEN_NONE. */
uint32_t fg_vocab_find(const fg_vocab *vocab, const char *text, size_t length);
/* The merge of two tokens, or NULL. */
const fg_merge_slot *fg_vocab_merge(const fg_vocab *vocab, uint32_t left, uint32_t right);
/* The longest member of `set` that `text` starts with, or FG_TOKEN_NONE. */
uint32_t fg_vocab_match(const fg_vocab *vocab, const fg_special_set *set, const char *text,
                        size_t length, size_t *length_out);

/* Building parts, each in its own file. */
bool fg_vocab_is_end_name(const char *text, size_t length);
fg_status fg_vocab_build_text_table(fg_vocab *vocab, fg_error *err);
fg_status fg_vocab_build_merges(fg_vocab *vocab, const fg_weights *weights, fg_error *err);
fg_status fg_vocab_build_specials(fg_vocab *vocab, fg_error *err);
/* Undoes byte-level BPE's alphabet into `out` (as long as `text`); SIZE_MAX when `text` has a
 * character outside of it. */
size_t fg_byte_level_decode(const char *text, size_t length, char *out);

#endif
