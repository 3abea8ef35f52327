/*
 * unicode_class - the general category of a character, as far as pre-tokenizers ask. Pure.
 */
#ifndef FORGE_COMMON_MODEL_UNICODE_CLASS_H
#define FORGE_COMMON_MODEL_UNICODE_CLASS_H

#include <stdint.h>

typedef enum fg_unicode_class {
    FG_UNICODE_OTHER,
    FG_UNICODE_LETTER, /* \p{L} */
    FG_UNICODE_NUMBER, /* \p{N} */
    FG_UNICODE_WHITE,  /* the White_Space property, \s */
} fg_unicode_class;

fg_unicode_class fg_unicode_classify(uint32_t code);

#endif
