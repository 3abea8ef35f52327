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

/* FG_BAD_INPUT when fg_tokenizer_open would not know this kind of tokenizer. Takes no time. */
fg_status fg_tokenizer_check(const fg_weights *weights, fg_error *err);
/* `weights` may be closed afterwards: everything needed is copied. */
fg_status fg_tokenizer_open(const fg_weights *weights, fg_tokenizer **tokenizer_out, fg_error *err);
void fg_tokenizer_close(fg_tokenizer *tokenizer);

/* A range of a text, in bytes. */
typedef struct fg_text_span {
    size_t start;
    size_t length;
} fg_text_span;

typedef struct fg_encode_options {
    bool add_bos;       /* put BOS in front where the model asks for one and the text has none */
    bool parse_special; /* "<|im_start|>" in the text becomes the special token (templates only) */
    /* Ranges (ascending, apart, inside the text; borrowed) where parse_special does not hold: what
     * a user wrote. They are encoded jointly with the ordinary text around them. */
    const fg_text_span *plain;
    size_t plain_count;
    /* A text that surely has so many ids is of no use: it is refused without being encoded, where that shows. 0: it
     * is only `capacity` that counts. */
    size_t refuse_at;
} fg_encode_options;

/* Encodes `text` (any bytes; a byte that is not valid UTF-8 becomes its byte token or the model's
 * unknown token, and is left out only where there is neither; never refused). User-defined tokens
 * are found in any text. Writes at most `capacity` ids; FG_BAD_INPUT, and that many counted, when more are
 * needed, or as many as it has at least, when that is refused; FG_AGAIN when out of memory. An empty text with add_bos gives BOS where the model has one, even if its
 * add_bos flag is off. */
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
/* What the model wants behind a text that is not to be continued, mostly EOS; FG_TOKEN_NONE: nothing. */
uint32_t fg_tokenizer_behind(const fg_tokenizer *tokenizer);
/* True for every token that ends generation (EOS, EOT, <|im_end|>, ...). */
bool fg_tokenizer_is_end(const fg_tokenizer *tokenizer, uint32_t id);
/* Finds a token by the exact bytes that it stands for (" hello", "<|im_end|>"); FG_TOKEN_NONE when
 * absent. */
uint32_t fg_tokenizer_find(const fg_tokenizer *tokenizer, const char *text, size_t length);

/* True where encoding puts a space in front of a text (most SPM models). */
bool fg_tokenizer_adds_space(const fg_tokenizer *tokenizer);

/* Incremental decoding of one choice: holds back bytes of an unfinished character. Embeddable. */
typedef struct fg_detok {
    char pending[8];
    uint8_t pending_count;
    bool started; /* something came out, or the first space is to be kept */
} fg_detok;

/* `strip_leading_space`: the output is a text of its own, not a continuation: where encoding adds a
 * space in front, decoding takes it away. No effect with other models, so it need not be asked. */
void fg_detok_init(fg_detok *detok, bool strip_leading_space);
/* Writes to out only whole characters; each invalid byte or cut-off character comes out as U+FFFD.
 * `capacity` of fg_tokenizer_piece_max() + 8 bytes is always enough, a smaller buffer is a bug of the
 * caller. Ids outside of the vocabulary give nothing. Returns bytes written. */
size_t fg_detok_push(fg_detok *detok, const fg_tokenizer *tokenizer, uint32_t id, char *out,
                     size_t capacity);
/* What is still pending at the end, as U+FFFD (at most 16 bytes). */
size_t fg_detok_finish(fg_detok *detok, char *out, size_t capacity);
/* The most bytes that one token can come out as (three times its longest text, because of U+FFFD),
 * for sizing buffers. */
size_t fg_tokenizer_piece_max(const fg_tokenizer *tokenizer);

#endif
