/*
 * lexicon_internal - the tree, for automata to walk.
 */
#ifndef FORGE_COMMON_GRAMMAR_LEXICON_INTERNAL_H
#define FORGE_COMMON_GRAMMAR_LEXICON_INTERNAL_H

#include "common/grammar/lexicon.h"

/* A set of bytes below 0x80; bit 0 stands for byte 0 and all from 0x80. */
typedef struct fg_ascii_set {
    uint64_t bits[2];
} fg_ascii_set;

static inline unsigned fg_ascii_bit(unsigned byte)
{
    return byte < 0x80 ? byte : 0;
}

struct fg_lexicon {
    uint32_t count;
    uint32_t end_count;
    uint32_t *ends;
    uint64_t *is_end;  /* bitmap */
    uint32_t *text_at; /* count + 1: where in `texts` */
    char *texts;
    /* Nodes but for the root, which would be before the first. */
    uint32_t node_count;
    uint8_t *byte;
    uint32_t *behind; /* the first node that is not below this one */
    uint32_t *tokens; /* node_count + 1: the first of its tokens in `ids`; those below it follow */
    uint16_t *height; /* bytes of the longest way down from here, this byte included */
    fg_ascii_set *used; /* bytes here and below */
    uint32_t *ids;
    uint16_t longest; /* token */
};

#endif
