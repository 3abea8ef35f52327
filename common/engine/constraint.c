#include "common/engine/constraint.h"

#include <string.h>

#include "common/engine/engine_internal.h"

/* The state after the answer's tokens up to the one at `position`: those before the item by what is known of them, the
 * item's own one by one, as guesses may be gone with the next. */
static fg_state state_at(fg_constraint *constraint, const fg_step_seq *seq, uint32_t position)
{
    uint32_t first = seq->first_position;
    size_t known = first > seq->prompt_count ? first - seq->prompt_count : 0;
    fg_state state = fg_tracker_state(&constraint->tracker, constraint->automaton,
                                      seq->history + seq->prompt_count, known);
    for (uint32_t at = first; at <= position; at++) {
        if (at >= seq->prompt_count) {
            state =
                fg_automaton_take(constraint->automaton, state, fg_step_seq_token(seq, at - first));
        }
    }
    return state;
}

static void allow_ends(const fg_lexicon *lexicon, uint64_t *allowed)
{
    for (uint32_t id = 0; id < fg_lexicon_count(lexicon); id++) {
        if (fg_lexicon_is_end(lexicon, id)) {
            allowed[id / 64] |= (uint64_t)1 << id % 64;
        }
    }
}

void fg_constraint_mask(fg_constraint *constraint, const fg_step_seq *seq, uint32_t position,
                        uint64_t *allowed)
{
    const fg_lexicon *lexicon = fg_automaton_lexicon(constraint->automaton);
    fg_state state = state_at(constraint, seq, position);
    const uint64_t *mask = fg_automaton_mask(constraint->automaton, state);
    uint64_t any = 0;
    for (size_t i = 0; i < fg_lexicon_words(lexicon); i++) {
        allowed[i] = mask != NULL ? mask[i] : 0;
        any |= allowed[i];
    }
    if (any == 0) {
        allow_ends(lexicon, allowed);
    }
}
