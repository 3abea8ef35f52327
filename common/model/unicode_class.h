/*
 * unicode_class - the general category of a character, as far as pre-tokenizers ask. Pure.
 */
#ifndef FORGE_COMMON_MODEL_UNICODE_CLASS_H
#define FORGE_COMMON_MODEL_UNICODE_CLASS_H

#include <stdint.h>

typedef enum fg_unicode_class {
    FG_UNICODE_OTHER,
    FG_UNICODE_LETTER,      /* \p{L} */
    FG_UNICODE_NUMBER,      /* \p{N} */
    FG_UNICODE_WHITE,       /* the White_Space property, \s */
    FG_UNICODE_MARK,        /* \p{M} */
    FG_UNICODE_PUNCTUATION, /* \p{P} */
    FG_UNICODE_SYMBOL,      /* \p{S} */
} fg_unicode_class;

/* Letters, numbers and white space; marks, punctuation and symbols are FG_UNICODE_OTHER here. */
fg_unicode_class fg_unicode_classify(uint32_t code);
/* All classes; a second look-up for what is none of the former three. */
fg_unicode_class fg_unicode_classify_fully(uint32_t code);

#endif
