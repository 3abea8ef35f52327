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

/* How far a character in UTF-8 has come. */
typedef enum fg_utf8_state {
    FG_UTF8_START, /* none is under way */
    FG_UTF8_ONE,   /* so many bytes are to come, from 0x80 to 0xBF */
    FG_UTF8_TWO,
    FG_UTF8_THREE,
    FG_UTF8_E0, /* behind a first byte that bounds the second one */
    FG_UTF8_ED,
    FG_UTF8_F0,
    FG_UTF8_F4,
    FG_UTF8_STATES,
} fg_utf8_state;

/* FG_UTF8_STATES: not valid. Byte 0 counts as not valid. */
static inline fg_utf8_state fg_utf8_next(fg_utf8_state state, uint8_t byte)
{
    static const struct {
        uint8_t first, last, then;
    } next[] = {
        [FG_UTF8_ONE] = { 0x80, 0xBF, FG_UTF8_START }, [FG_UTF8_TWO] = { 0x80, 0xBF, FG_UTF8_ONE },
        [FG_UTF8_THREE] = { 0x80, 0xBF, FG_UTF8_TWO }, [FG_UTF8_E0] = { 0xA0, 0xBF, FG_UTF8_ONE },
        [FG_UTF8_ED] = { 0x80, 0x9F, FG_UTF8_ONE },    [FG_UTF8_F0] = { 0x90, 0xBF, FG_UTF8_TWO },
        [FG_UTF8_F4] = { 0x80, 0x8F, FG_UTF8_TWO }
    };
    if (state != FG_UTF8_START) {
        return byte >= next[state].first && byte <= next[state].last
                   ? (fg_utf8_state)next[state].then
                   : FG_UTF8_STATES;
    }
    if (byte < 0x80) {
        return byte == 0 ? FG_UTF8_STATES : FG_UTF8_START;
    }
    if (byte < 0xC2 || byte > 0xF4) {
        return FG_UTF8_STATES;
    }
    return byte < 0xE0    ? FG_UTF8_ONE
           : byte == 0xE0 ? FG_UTF8_E0
           : byte == 0xED ? FG_UTF8_ED
           : byte < 0xF0  ? FG_UTF8_TWO
           : byte == 0xF0 ? FG_UTF8_F0
           : byte == 0xF4 ? FG_UTF8_F4
                          : FG_UTF8_THREE;
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
    uint8_t *
        utf8; /* bit for each fg_utf8_state from which all here and below is valid, or its beginning */
    uint32_t *ids;
    uint16_t longest; /* token */
};

#endif
