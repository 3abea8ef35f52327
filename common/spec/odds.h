/*
 * odds - how likely a guessed token is to be right, told from the length of the run that it was found
 * behind (ngram.h): what follows one equal token mostly is another one, behind sixteen it nearly never is.
 * Where each text stands is learned from its own guesses, whether they were computed along or only
 * compared with what plain decoding chose, and forgotten again, as a text soon begins to copy and ends to.
 * Embedded by value in its sequence; all zero is a new one. Counts and whole numbers only. Pure.
 */
#ifndef FORGE_COMMON_SPEC_ODDS_H
#define FORGE_COMMON_SPEC_ODDS_H

#include <stdbool.h>
#include <stdint.h>

enum {
    FG_ODDS_ONE = 1024, /* certainty, which no odds reach */
    FG_ODDS_CLASSES = 6,
    FG_ODDS_SEEN_MAX = 16, /* counts are halved then */
};

typedef struct fg_odds {
    uint8_t seen[FG_ODDS_CLASSES], right[FG_ODDS_CLASSES];
} fg_odds;

/* Of FG_ODDS_ONE, that the token behind a run of `run` (1 or more) tokens is the one that followed there. A guess that was
 * right makes the run longer by one for the next. */
uint32_t fg_odds_of(const fg_odds *odds, uint32_t run);
void fg_odds_note(fg_odds *odds, uint32_t run, bool right);

#endif
