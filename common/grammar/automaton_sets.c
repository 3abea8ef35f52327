/* Sets of places: interning, joining, stepping. */
#include <string.h>

#include "common/base/hash.h"
#include "common/grammar/automaton_internal.h"

enum { HEAD_WORDS = sizeof(fg_place_set) / sizeof(uint64_t) };

uint32_t fg_region_take(fg_automaton *automaton, size_t words)
{
    if (words > automaton->word_count - automaton->word_used) {
        automaton->full = true;
        return 0;
    }
    uint32_t at = automaton->word_used;
    automaton->word_used += (uint32_t)words;
    memset(automaton->words + at, 0, words * sizeof *automaton->words);
    return at;
}

uint32_t fg_set_intern(fg_automaton *automaton, const fg_place *places, uint32_t count)
{
    if (count == 0) {
        return 0;
    }
    size_t bytes = count * sizeof *places;
    uint32_t *bucket =
        &automaton->buckets[fg_hash64(places, bytes, 0) & (automaton->bucket_count - 1)];
    for (uint32_t at = *bucket; at != 0; at = fg_set_at(automaton, at)->next) {
        const fg_place_set *set = fg_set_at(automaton, at);
        if (set->count == count && memcmp(set->places, places, bytes) == 0) {
            return at;
        }
    }
    uint32_t at = fg_region_take(automaton, HEAD_WORDS + count);
    if (at == 0) {
        return 0;
    }
    fg_place_set *set = fg_set_at(automaton, at);
    set->count = count;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t below = places[i].below == 0 ? 0 : fg_set_at(automaton, places[i].below)->depth;
        set->depth = below + 1 > set->depth ? below + 1 : set->depth;
    }
    memcpy(set->places, places, bytes);
    set->next = *bucket;
    *bucket = at;
    return at;
}

/* One piece of work; false: the step has taken too many. */
static bool work(fg_automaton *automaton)
{
    if (automaton->work >= FG_STEP_WORK_MAX) {
        automaton->overdone = true;
    } else {
        automaton->work++;
    }
    return !automaton->overdone && !automaton->full;
}

/* --- joining ----------------------------------------------------------------------------------------- */

/* The slot of this pair: its own or a free one; NULL: too many pairs in one step. Which pairs there are depends on the
 * step alone, so that being full does not depend on what happened before. */
static fg_join *join_slot(fg_automaton *automaton, uint32_t a, uint32_t b)
{
    uint64_t slot = fg_hash_mix((uint64_t)a << 32 | b);
    for (;; slot++) {
        fg_join *join = &automaton->joins[slot % FG_JOINS];
        if (join->stamp == automaton->stamp && join->a == a && join->b == b) {
            return join;
        }
        if (join->stamp != automaton->stamp) {
            if (automaton->joins_used >= FG_JOINS / 2) {
                automaton->overdone = true;
                return NULL;
            }
            return join;
        }
    }
}

static uint32_t join(fg_automaton *automaton, uint32_t a, uint32_t b);

static uint32_t join_lists(fg_automaton *automaton, uint32_t a, uint32_t b)
{
    uint32_t i = 0, j = 0, count = 0;
    uint32_t most = fg_set_at(automaton, a)->count + fg_set_at(automaton, b)->count;
    if (FG_SCRATCH_PLACES - automaton->scratch_used < most) {
        automaton->overdone = true;
        return a;
    }
    fg_place *places = automaton->scratch + automaton->scratch_used;
    automaton->scratch_used += most;
    while (work(automaton)) {
        const fg_place_set *left = fg_set_at(automaton, a);
        const fg_place_set *right = fg_set_at(automaton, b);
        if (i == left->count && j == right->count) {
            break;
        }
        if (j == right->count ||
            (i < left->count && left->places[i].position < right->places[j].position)) {
            places[count++] = left->places[i++];
        } else if (i == left->count || right->places[j].position < left->places[i].position) {
            places[count++] = right->places[j++];
        } else {
            fg_place place = left->places[i++];
            place.below = join(automaton, place.below, right->places[j++].below);
            places[count++] = place;
        }
    }
    automaton->scratch_used -= most;
    bool good = !automaton->overdone && !automaton->full;
    return good ? fg_set_intern(automaton, places, count) : a;
}

/* Both sets' stacks. What it returns after a step was overdone, or the region full, nobody uses. Recursion ends where
 * stacks do. */
static uint32_t join(fg_automaton *automaton, uint32_t a, uint32_t b)
{
    if (a == b || b == 0) {
        return a;
    }
    if (a == 0) {
        return b;
    }
    if (a > b) {
        uint32_t other = a;
        a = b;
        b = other;
    }
    fg_join *slot = join_slot(automaton, a, b);
    if (slot == NULL || !work(automaton)) {
        return a;
    }
    if (slot->stamp == automaton->stamp) {
        return slot->result;
    }
    uint32_t result = join_lists(automaton, a, b);
    slot = join_slot(automaton, a, b); /* others came meanwhile */
    if (slot != NULL) {
        *slot = (fg_join){ automaton->stamp, a, b, result };
        automaton->joins_used++;
    }
    return result;
}

/* --- making a set ------------------------------------------------------------------------------------ */

static void begin(fg_automaton *automaton)
{
    automaton->stamp++;
    if (automaton->stamp == 0) { /* all stamps have been used: none of the old may look new */
        memset(automaton->marks, 0, automaton->grammar->count * sizeof *automaton->marks);
        memset(automaton->joins, 0, FG_JOINS * sizeof *automaton->joins);
        automaton->stamp = 1;
    }
    automaton->work = 1;
    automaton->overdone = false;
    automaton->joins_used = 0;
    automaton->scratch_used = 0;
    automaton->queue_first = automaton->queue_count = 0;
    automaton->listed_count = 0;
}

/* Reaches a position with these stacks below it. Returns do so at once: what is below them is where they go on. */
static void reach(fg_automaton *automaton, uint32_t position, uint32_t below)
{
    const fg_grammar *grammar = automaton->grammar;
    uint32_t op = grammar->positions[position].op;
    if (op == FG_OP_DEAD || !work(automaton)) {
        return;
    }
    if (op == FG_OP_RETURN) {
        for (uint32_t i = 0; i < fg_set_at(automaton, below)->count; i++) {
            fg_place place = fg_set_at(automaton, below)->places[i];
            reach(automaton, place.position, place.below);
        }
        return;
    }
    fg_mark *mark = &automaton->marks[position];
    if (mark->stamp == automaton->stamp) {
        uint32_t both = join(automaton, mark->below, below);
        if (both == mark->below) {
            return;
        }
        mark->below = both;
    } else {
        *mark = (fg_mark){ automaton->stamp, below, false };
        if (op == FG_OP_SET || op == FG_OP_ACCEPT) {
            automaton->listed[automaton->listed_count++] = position;
        }
    }
    if (op != FG_OP_SET && op != FG_OP_ACCEPT && !mark->waiting) {
        mark->waiting = true;
        uint32_t last = (automaton->queue_first + automaton->queue_count++) % grammar->count;
        automaton->queue[last] = position;
    }
}

static void follow(fg_automaton *automaton)
{
    const fg_grammar *grammar = automaton->grammar;
    while (automaton->queue_count > 0 && work(automaton)) {
        uint32_t at = automaton->queue[automaton->queue_first];
        automaton->queue_first = (automaton->queue_first + 1) % grammar->count;
        automaton->queue_count--;
        automaton->marks[at].waiting = false;
        uint32_t below = automaton->marks[at].below;
        const fg_position *position = &grammar->positions[at];
        if (position->op == FG_OP_SPLIT) {
            reach(automaton, position->a, below);
            reach(automaton, position->b, below);
        } else if (position->op == FG_OP_TAIL) {
            reach(automaton, position->a, below);
        } else if (position->op == FG_OP_CALL && grammar->positions[position->b].op != FG_OP_DEAD) {
            fg_place place = { position->b, below };
            uint32_t frame = fg_set_intern(automaton, &place, 1);
            if (frame != 0 && fg_set_at(automaton, frame)->depth <= FG_GRAMMAR_STACK_MAX) {
                reach(automaton, position->a, frame);
            }
        }
    }
}

/* Sorts numbers of which there are few. */
static void sort_listed(uint32_t *listed, uint32_t count)
{
    for (uint32_t gap = count / 2; gap > 0; gap /= 2) {
        for (uint32_t i = gap; i < count; i++) {
            uint32_t value = listed[i];
            uint32_t at = i;
            for (; at >= gap && listed[at - gap] > value; at -= gap) {
                listed[at] = listed[at - gap];
            }
            listed[at] = value;
        }
    }
}

/* The set of what was reached. */
static uint32_t finish(fg_automaton *automaton)
{
    uint32_t count = automaton->listed_count;
    if (automaton->overdone || automaton->full || count > FG_STATE_PLACES_MAX) {
        return 0;
    }
    sort_listed(automaton->listed, count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t position = automaton->listed[i];
        automaton->scratch[i] = (fg_place){ position, automaton->marks[position].below };
    }
    return fg_set_intern(automaton, automaton->scratch, count);
}

uint32_t fg_set_start(fg_automaton *automaton)
{
    fg_place end = { FG_AT_ACCEPT, 0 };
    begin(automaton);
    uint32_t below = fg_set_intern(automaton, &end, 1);
    if (below != 0) {
        reach(automaton, automaton->grammar->start, below);
        follow(automaton);
    }
    return finish(automaton);
}

static uint32_t make_step(fg_automaton *automaton, uint32_t at, uint8_t byte)
{
    const fg_grammar *grammar = automaton->grammar;
    begin(automaton);
    for (uint32_t i = 0; i < fg_set_at(automaton, at)->count; i++) {
        fg_place place = fg_set_at(automaton, at)->places[i];
        const fg_position *position = &grammar->positions[place.position];
        if (position->op == FG_OP_SET && fg_byte_set_has(&grammar->sets[position->a], byte)) {
            reach(automaton, position->b, place.below);
        }
        automaton->work += automaton->work < FG_STEP_WORK_MAX;
    }
    follow(automaton);
    return finish(automaton);
}

uint32_t fg_set_step(fg_automaton *automaton, uint32_t at, uint8_t byte, uint32_t *work_out)
{
    uint32_t steps = fg_set_at(automaton, at)->steps;
    if (steps == 0) {
        steps = fg_region_take(automaton, automaton->grammar->class_count);
        if (steps == 0) {
            return 0;
        }
        fg_set_at(automaton, at)->steps = steps;
    }
    fg_step *step =
        (fg_step *)(void *)(automaton->words + steps) + automaton->grammar->class_of[byte];
    if (step->work == 0) {
        uint32_t to = make_step(automaton, at, byte);
        if (automaton->full) {
            return 0;
        }
        *step = (fg_step){ to, automaton->work };
    }
    *work_out += step->work;
    return step->to;
}
