/*
 * pretokenize - cuts text into the words inside which byte-level BPE merges. Pure.
 *
 * Each family is a regular expression in its model's tokenizer; here it is a hand-written scanner
 * that takes any bytes, looks ahead only over the word (and the white space) it is cutting, and so
 * stays linear on hostile text. A byte that is not valid UTF-8 is a word character of no class.
 */
#ifndef FORGE_COMMON_MODEL_PRETOKENIZE_H
#define FORGE_COMMON_MODEL_PRETOKENIZE_H

#include <stdbool.h>
#include <stddef.h>

typedef enum fg_pretokenizer {
    FG_PRE_GPT2,   /* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
    FG_PRE_SMOLLM, /* every \p{N} alone first, then GPT-2's expression on what lies between */
    FG_PRE_LLAMA3, /* (?i:'s|...)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|
                    * \s*[\r\n]+|\s+(?!\S)|\s+ */
    FG_PRE_QWEN2,  /* as LLAMA3 with single digits */
} fg_pretokenizer;

/* Knows the names of `tokenizer.ggml.pre`; false for an unknown one. */
bool fg_pretokenizer_parse(const char *name, size_t length, fg_pretokenizer *pre_out);

/* Length in bytes of the first word of `text` (length above zero); at least 1. */
size_t fg_pretokenize_next(fg_pretokenizer pre, const char *text, size_t length);

#endif
