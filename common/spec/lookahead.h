/*
 * lookahead - how many tokens to draft for one sequence. Adaptive: ceil(1 / (1 - a)), between 1 and
 * FG_LOOKAHEAD_MAX, where a is the share of accepted tokens among those that were looked at in the last
 * FG_LOOKAHEAD_WINDOW. What lay behind a rejected token was not looked at and does not count: accepted /
 * drafted would call a good draft bad. Counts and whole numbers only: in floating point a = 0.8 gives 6.
 * Embedded by value in its sequence; all zero is a new, adaptive one. Pure.
 */
#ifndef FORGE_COMMON_SPEC_LOOKAHEAD_H
#define FORGE_COMMON_SPEC_LOOKAHEAD_H

#include <stdint.h>

#include "common/spec/verdict.h"

enum {
    FG_LOOKAHEAD_MAX = 8,
    FG_LOOKAHEAD_DEFAULT = 4, /* nothing known yet */
    FG_LOOKAHEAD_WINDOW = 64, /* bits of `accepted` */
};

typedef struct fg_lookahead {
    uint32_t fixed;    /* 1 .. FG_LOOKAHEAD_MAX: always that many; 0: adaptive */
    uint32_t count;    /* bits that mean something */
    uint64_t accepted; /* one bit per token looked at, the newest lowest */
} fg_lookahead;

/* The formula alone. Nothing known (0, 0): FG_LOOKAHEAD_DEFAULT. */
uint32_t fg_lookahead_for(uint32_t accepted, uint32_t rejected);

/* For the next round of a sequence that may still emit `tokens_left` tokens, one of which is always the
 * target's own: 0 when that is the only one. */
uint32_t fg_lookahead_next(const fg_lookahead *lookahead, uint32_t tokens_left);
void fg_lookahead_note(fg_lookahead *lookahead, const fg_verdict *verdict);
/* A drafted token was not computed on, only compared with what plain decoding chose. */
void fg_lookahead_note_seen(fg_lookahead *lookahead, bool right);

#endif
