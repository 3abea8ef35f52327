/*
 * pretokenize - cuts text into the words inside which byte-level BPE merges. Pure.
 *
 * Each family is an expression, or several one after the other (each cuts further what the former
 * left), as llama.cpp has them; here it is a hand-written scanner that takes any bytes, looks ahead
 * only over the word (and the white space) it is cutting, and so stays linear on hostile text. A
 * byte that is not valid UTF-8 is taken for U+FFFD.
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
    FG_PRE_QWEN35, /* as QWEN2; \p{M} are letters */
    FG_PRE_SEED_CODER,   /* as QWEN2; punctuation takes no line ends */
    FG_PRE_TEKKEN,       /* as QWEN2 without contractions; letters are cut before capitals (below);
                            * punctuation takes [\r\n/]* */
    FG_PRE_GPT4O,        /* as TEKKEN with \p{N}{1,3}; letters take a contraction of any case */
    FG_PRE_DEEPSEEK_LLM, /* these three: pretokenize_deepseek.c */
    FG_PRE_DEEPSEEK_CODER,
    FG_PRE_DEEPSEEK_V3,
    FG_PRE_FALCON, /* [\p{P}$+<=>^~|`]+ first, then GPT-2's expression, then [0-9]{3} */
    FG_PRE_BLOOM,  /* " ?[^(\s|.,!?...)]+" and what lies between */
    FG_PRE_VIKING, /* as BLOOM, then every \p{N} alone */
    FG_PRE_COUNT,
} fg_pretokenizer;

/* TEKKEN and GPT4O: of letters [^a-z]*[^A-Z]+ or else [^a-z]+[^A-Z]*. The models' own expressions ask
 * for \p{Lu}, \p{Ll} and so on; llama.cpp's, with which files are used, does it for ASCII alone and
 * takes every other letter for both. Marks are no letters in it either. */

/* What a value of `tokenizer.ggml.pre` means. */
typedef struct fg_pretokenizer_name {
    const char *name;
    fg_pretokenizer pre;
    bool ignore_merges; /* a word that is a token is taken as it is */
    bool add_bos;       /* unless the file says otherwise */
} fg_pretokenizer_name;

/* NULL for an unknown name. */
const fg_pretokenizer_name *fg_pretokenizer_find(const char *name, size_t length);

/* Writes one name of each family, parted by ", ", as far as there is room. */
void fg_pretokenizer_list(char *out, size_t size);

/* Length in bytes of the first word of `text` (length above zero); at least 1. */
size_t fg_pretokenize_next(fg_pretokenizer pre, const char *text, size_t length);

#endif
