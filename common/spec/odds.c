#include "common/spec/odds.h"

#include "common/base/status.h"

/* What a new text is taken to be, as so many guesses seen and right: from 28 answers of SmolLM2-135M, chat, code and
 * copies, greedy and sampled (docs/decisions/0036-guesses-that-pay.md). */
static const struct {
    uint32_t run; /* the longest of the class */
    uint32_t seen, right;
} classes[FG_ODDS_CLASSES] = {
    { 1, 8, 2 }, { 2, 6, 3 }, { 4, 5, 3 }, { 8, 5, 4 }, { 15, 8, 7 }, { UINT32_MAX, 16, 15 },
};

static uint32_t class_of(uint32_t run)
{
    uint32_t at = 0;
    FG_ASSERT(run > 0, "odds of a guess behind nothing");
    while (run > classes[at].run) {
        at++;
    }
    return at;
}

uint32_t fg_odds_of(const fg_odds *odds, uint32_t run)
{
    uint32_t at = class_of(run);
    uint32_t seen = odds->seen[at] + classes[at].seen;
    return FG_ODDS_ONE * (odds->right[at] + classes[at].right) / seen;
}

void fg_odds_note(fg_odds *odds, uint32_t run, bool right)
{
    uint32_t at = class_of(run);
    if (odds->seen[at] == FG_ODDS_SEEN_MAX) {
        odds->seen[at] /= 2;
        odds->right[at] /= 2;
    }
    odds->seen[at]++;
    odds->right[at] = (uint8_t)(odds->right[at] + right);
}
