/* Masks: a walk over the vocabulary's tree with the grammar's steps. */
#include <string.h>

#include "common/grammar/automaton_internal.h"

/* Whether all below a node is allowed is asked where so many nodes are there, not deeper than so, and given up where
 * finding out takes so much work. */
enum { RUN_NODES_MIN = 4, RUN_HEIGHT_MAX = 32, RUN_WORK_MAX = 16384 };

static void allow(fg_automaton *automaton, uint32_t first, uint32_t behind)
{
    for (uint32_t i = first; i < behind; i++) {
        uint32_t id = automaton->lexicon->ids[i];
        automaton->mask[id / 64] |= (uint64_t)1 << (id % 64);
    }
}

/* Whether every character of more than one byte leads from a state to `to`: all ways that UTF-8 allows are walked, with
 * those that have come to the same state and are equally far walked once. What is not seen to be so is not. */
static bool all_lead_to(fg_automaton *automaton, uint32_t at, uint32_t to, uint32_t *work)
{
    enum { WAYS_MAX = 64 };
    struct {
        uint32_t at;
        fg_utf8_state utf8;
    } ways[WAYS_MAX] = { { at, FG_UTF8_START } };
    unsigned count = 1;
    const uint8_t *class_of = automaton->grammar->class_of;
    for (unsigned i = 0; i < count; i++) {
        fg_utf8_state before = FG_UTF8_STATES;
        for (unsigned byte = 0x80; byte <= 0xF4; byte++) {
            fg_utf8_state next = fg_utf8_next(ways[i].utf8, (uint8_t)byte);
            bool seen = next == before && class_of[byte] == class_of[byte - 1];
            before = next;
            if (next == FG_UTF8_STATES || seen) {
                continue;
            }
            uint32_t then = fg_set_step(automaton, ways[i].at, (uint8_t)byte, work);
            unsigned known = 0;
            if (then == 0 || automaton->full || *work > RUN_WORK_MAX ||
                (next == FG_UTF8_START && then != to)) {
                return false;
            }
            while (known < count && (ways[known].at != then || ways[known].utf8 != next)) {
                known++;
            }
            if (next == FG_UTF8_START || known < count) {
                continue;
            }
            if (count == WAYS_MAX) {
                return false;
            }
            ways[count].at = then;
            ways[count++].utf8 = next;
        }
    }
    return true;
}

/* The state that more bytes below 0x80 lead to than to all others, and those bytes. False: full. */
static bool find_run(fg_automaton *automaton, uint32_t at, fg_run *run)
{
    uint32_t targets[128];
    uint32_t work = 0;
    uint32_t votes = 0;
    for (unsigned byte = 1; byte < 128; byte++) {
        targets[byte] = fg_set_step(automaton, at, (uint8_t)byte, &work);
        if (automaton->full) {
            return false;
        }
        if (work > RUN_WORK_MAX) {
            return true;
        }
        if (targets[byte] == 0) {
            continue;
        }
        if (votes == 0) {
            run->to = targets[byte];
        }
        votes = targets[byte] == run->to ? votes + 1 : votes - 1;
    }
    for (unsigned byte = 1; byte < 128 && run->to != 0; byte++) {
        if (targets[byte] == run->to) {
            run->same.bits[byte / 64] |= (uint64_t)1 << (byte % 64);
        }
    }
    if (run->to != 0) {
        work = 0;
        run->whole = all_lead_to(automaton, at, run->to, &work);
    }
    return !automaton->full;
}

/* NULL: full. */
static const fg_run *run_of(fg_automaton *automaton, uint32_t at)
{
    if (fg_set_at(automaton, at)->run == 0) {
        fg_run run = { 0 };
        if (!find_run(automaton, at, &run)) {
            return NULL;
        }
        uint32_t place = fg_region_take(automaton, sizeof run / sizeof(uint64_t));
        if (place == 0) {
            return NULL;
        }
        memcpy(automaton->words + place, &run, sizeof run);
        fg_set_at(automaton, at)->run = place;
    }
    return (const fg_run *)(const void *)(automaton->words + fg_set_at(automaton, at)->run);
}

/* Whether everything at and below `node` may follow: each of its bytes leads on, whatever came before it. */
static bool all_follow(fg_automaton *automaton, uint32_t at, uint32_t node)
{
    const fg_lexicon *lexicon = automaton->lexicon;
    const fg_ascii_set *used = &lexicon->used[node];
    unsigned height = lexicon->height[node];
    bool whole = (used->bits[0] & 1) != 0; /* more than ASCII */
    if (lexicon->behind[node] - node < RUN_NODES_MIN || height > RUN_HEIGHT_MAX ||
        (whole && (lexicon->utf8[node] >> FG_UTF8_START & 1) == 0)) {
        return false;
    }
    for (unsigned i = 0; i < height; i++) {
        const fg_run *run = run_of(automaton, at);
        if (run == NULL || (whole && !run->whole) ||
            (used->bits[0] & ~run->same.bits[0] & ~(uint64_t)1) != 0 ||
            (used->bits[1] & ~run->same.bits[1]) != 0) {
            return false;
        }
        if (run->to == at) {
            return true;
        }
        at = run->to;
    }
    return true;
}

/* The region was full: forgets, and walks again to where the walk was. */
static bool start_over(fg_automaton *automaton, uint32_t depth)
{
    fg_automaton_forget(automaton, &automaton->path[0]);
    for (uint32_t i = 0; i < depth && automaton->path[i] != 0; i++) {
        uint32_t work = 0;
        uint8_t byte = automaton->lexicon->byte[automaton->path_nodes[i]];
        automaton->path[i + 1] = fg_set_step(automaton, automaton->path[i], byte, &work);
    }
    return automaton->path[depth] != 0 && !automaton->full;
}

static void walk(fg_automaton *automaton)
{
    const fg_lexicon *lexicon = automaton->lexicon;
    uint32_t depth = 0;
    uint32_t work = 0;
    bool tried = false;
    for (uint32_t node = 0; node < lexicon->node_count && work < FG_MASK_WORK_MAX;) {
        while (depth > 0 && node >= lexicon->behind[automaton->path_nodes[depth - 1]]) {
            depth--;
        }
        uint32_t from = automaton->path[depth];
        uint32_t behind = lexicon->behind[node];
        bool all = all_follow(automaton, from, node);
        uint32_t to = all ? 0 : fg_set_step(automaton, from, lexicon->byte[node], &work);
        if (automaton->full) {
            if (tried || !start_over(automaton, depth)) {
                return; /* not even one step fits */
            }
            tried = true;
            continue;
        }
        tried = false;
        if (all) {
            allow(automaton, lexicon->tokens[node], lexicon->tokens[behind]);
            node = behind;
        } else if (to == 0) {
            node = behind;
        } else {
            allow(automaton, lexicon->tokens[node], lexicon->tokens[node + 1]);
            if (behind > node + 1) {
                automaton->path_nodes[depth] = node;
                automaton->path[++depth] = to;
            }
            node++;
        }
    }
}

void fg_mask_compute(fg_automaton *automaton, uint32_t *state)
{
    const fg_lexicon *lexicon = automaton->lexicon;
    memset(automaton->mask, 0, fg_lexicon_words(lexicon) * sizeof *automaton->mask);
    const fg_place_set *set = fg_set_at(automaton, *state);
    if (set->places[0].position ==
        FG_AT_ACCEPT) { /* the lowest of all positions that a state has */
        for (uint32_t i = 0; i < lexicon->end_count; i++) {
            automaton->mask[lexicon->ends[i] / 64] |= (uint64_t)1 << (lexicon->ends[i] % 64);
        }
    }
    automaton->path[0] = *state;
    if (set->count > 1 || set->places[0].position != FG_AT_ACCEPT) {
        walk(automaton);
    }
    *state = automaton->path[0];
    automaton->full = false;
}
