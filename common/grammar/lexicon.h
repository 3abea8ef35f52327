/*
 * lexicon - the texts of a vocabulary's tokens as a tree of bytes, for automata to walk.
 *
 * Nodes lie in the order of a walk (a node, then what is below it), so that leaving out what lies below is one jump, and
 * the tokens below a node are one run of an array. Immutable after creation; any thread may read it.
 */
#ifndef FORGE_COMMON_GRAMMAR_LEXICON_H
#define FORGE_COMMON_GRAMMAR_LEXICON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

typedef struct fg_lexicon fg_lexicon;

/* The bytes of token `id`, which need to stay only until the next call; *length_out 0: never allowed (a control
 * token). */
typedef const char *fg_lexicon_text_fn(void *ctx, uint32_t id, size_t *length_out);
/* Whether token `id` ends an answer. Its text does not matter then. */
typedef bool fg_lexicon_end_fn(void *ctx, uint32_t id);

enum { FG_LEXICON_TOKENS_MAX = 1 << 22, FG_LEXICON_TOKEN_BYTES_MAX = 1024 };

/* Longer tokens than FG_LEXICON_TOKEN_BYTES_MAX are never allowed. FG_AGAIN: out of memory. FG_BAD_INPUT: too many
 * tokens, or none. */
fg_status fg_lexicon_create(uint32_t count, fg_lexicon_text_fn *text, fg_lexicon_end_fn *end,
                            void *ctx, fg_lexicon **lexicon_out, fg_error *err);
void fg_lexicon_destroy(fg_lexicon *lexicon);

uint32_t fg_lexicon_count(const fg_lexicon *lexicon);
/* 64-bit words of a mask. */
size_t fg_lexicon_words(const fg_lexicon *lexicon);
bool fg_lexicon_is_end(const fg_lexicon *lexicon, uint32_t id);
/* The bytes of a token; *length_out is 0 where it has none, or ends an answer. */
const char *fg_lexicon_text(const fg_lexicon *lexicon, uint32_t id, size_t *length_out);
size_t fg_lexicon_bytes(const fg_lexicon *lexicon);

#endif
