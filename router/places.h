/*
 * places - who has the places of one worker's batch, by the tokens that each still has to come: it tells
 * after how many steps the next places come free. A value; owned by whoever keeps the worker's record.
 * Pure; a token costs the same few operations however many there are.
 *
 * Holders are counted by powers of two, with the sum of each class. So what is told is exact where those of
 * a class are equal, and their mean otherwise.
 */
#ifndef FORGE_ROUTER_PLACES_H
#define FORGE_ROUTER_PLACES_H

#include <stdint.h>

enum { FG_PLACES_CLASSES = 21 }; /* up to FG_LIMIT_CONTEXT_TOKENS */

typedef struct fg_places {
    uint64_t tokens[FG_PLACES_CLASSES];
    uint32_t count[FG_PLACES_CLASSES];
    uint32_t holders;
} fg_places;

/* A holder comes with `left` tokens, 1 to FG_LIMIT_CONTEXT_TOKENS; it goes with what it has by then. */
void fg_places_take(fg_places *places, uint32_t left);
void fg_places_give(fg_places *places, uint32_t left);
/* The `left` tokens of one have become others: one fewer, or as many as are expected now. Asked for each token: mostly
 * they stay in their class. */
static inline void fg_places_move(fg_places *places, uint32_t left, uint32_t now_left)
{
    uint32_t class = 31u - (uint32_t)__builtin_clz(left);
    if (class == 31u - (uint32_t)__builtin_clz(now_left)) {
        places->tokens[class] += (uint64_t)now_left - left;
    } else {
        fg_places_give(places, left);
        fg_places_take(places, now_left);
    }
}

/* Steps until `ends` holders have ended. Where there are fewer, those who follow on their places take `answer`
 * steps each. 0 for 0 ends, and where there are no holders. */
double fg_places_steps(const fg_places *places, uint64_t ends, uint32_t answer);

#endif
