/*
 * tokenizer - text to token ids and back, from a model file's vocabulary. Read-only after open; any
 * thread may use it (each fg_detok has one owner).
 */
#ifndef FORGE_COMMON_MODEL_TOKENIZER_H
#define FORGE_COMMON_MODEL_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/model/weights.h"

typedef struct fg_tokenizer fg_tokenizer;

/* `weights` may be closed afterwards: everything needed is copied. */
fg_status fg_tokenizer_open(const fg_weights *weights, fg_tokenizer **tokenizer_out, fg_error *err);
void fg_tokenizer_close(fg_tokenizer *tokenizer);

typedef struct fg_encode_options {
    bool add_bos;       /* put BOS in front where the model asks for one */
    bool parse_special; /* "<|im_start|>" in the text becomes the special token (templates only) */
} fg_encode_options;

/* Encodes `text` (any bytes; invalid UTF-8 is encoded byte by byte or as the model's unknown token,
 * never refused). Appends at most `capacity` ids; FG_BAD_INPUT when more are needed.
 * An empty text with add_bos gives BOS where the model has one, even if its add_bos flag is off. */
fg_status fg_tokenizer_encode(const fg_tokenizer *tokenizer, const char *text, size_t length,
                              fg_encode_options options, uint32_t *ids_out, size_t capacity,
                              size_t *count_out, fg_error *err);

/* The bytes that one token stands for (may be half a character). Control tokens give "" unless
 * `special`. Valid until close. */
const char *fg_tokenizer_piece(const fg_tokenizer *tokenizer, uint32_t id, bool special,
                               size_t *length_out);

uint32_t fg_tokenizer_vocab_size(const fg_tokenizer *tokenizer);
/* FG_TOKEN_NONE where the model has none. */
#define FG_TOKEN_NONE UINT32_MAX
uint32_t fg_tokenizer_bos(const fg_tokenizer *tokenizer);
uint32_t fg_tokenizer_eos(const fg_tokenizer *tokenizer);
/* True for every token that ends generation (EOS, EOT, <|im_end|>, ...). */
bool fg_tokenizer_is_end(const fg_tokenizer *tokenizer, uint32_t id);
/* Finds a token by its exact text; FG_TOKEN_NONE when absent. */
uint32_t fg_tokenizer_find(const fg_tokenizer *tokenizer, const char *text, size_t length);

/* Incremental decoding of one choice: holds back bytes of an unfinished character. Embeddable. */
typedef struct fg_detok {
    char pending[8];
    uint8_t pending_count;
    bool started; /* SPM strips the first space of a text that began at position 0 */
} fg_detok;

/* `strip_leading_space`: SPM models, when the output is a text of its own (not a continuation). */
void fg_detok_init(fg_detok *detok, bool strip_leading_space);
/* Appends to out (capacity bytes, at least piece length + 8) only whole characters; invalid bytes
 * come out as U+FFFD. Returns bytes written. */
size_t fg_detok_push(fg_detok *detok, const fg_tokenizer *tokenizer, uint32_t id, char *out,
                     size_t capacity);
/* What is still pending at the end, as U+FFFD (at most 16 bytes). */
size_t fg_detok_finish(fg_detok *detok, char *out, size_t capacity);
/* Longest piece in bytes, for sizing buffers. */
size_t fg_tokenizer_piece_max(const fg_tokenizer *tokenizer);

#endif
