#include "common/grammar/automaton.h"

#include <string.h>

#include "common/base/mem.h"
#include "common/grammar/automaton_internal.h"

/* One bucket of the hash table for so many words of the region. */
enum { WORDS_PER_BUCKET = 32 };

fg_status fg_automaton_create(const fg_grammar *grammar, const fg_lexicon *lexicon,
                              size_t memory_max_bytes, fg_automaton **automaton_out, fg_error *err)
{
    size_t bytes = memory_max_bytes < FG_AUTOMATON_BYTES_MIN   ? FG_AUTOMATON_BYTES_MIN
                   : memory_max_bytes > FG_AUTOMATON_BYTES_MAX ? FG_AUTOMATON_BYTES_MAX
                                                               : memory_max_bytes;
    fg_automaton *a = (fg_automaton *)fg_mem_alloc(sizeof *a);
    if (a == NULL) {
        return fg_fail(err, FG_AGAIN, "no memory for an automaton");
    }
    size_t places = (size_t)lexicon->longest + 1;
    a->grammar = grammar;
    a->lexicon = lexicon;
    a->mapped_bytes = bytes;
    a->word_count = (uint32_t)(bytes / sizeof *a->words);
    a->bucket_count = 1024;
    while (a->bucket_count < a->word_count / WORDS_PER_BUCKET) {
        a->bucket_count *= 2;
    }
    a->words = (uint64_t *)fg_mem_map(bytes);
    a->buckets = (uint32_t *)fg_mem_array(a->bucket_count, sizeof *a->buckets);
    a->marks = (fg_mark *)fg_mem_array(grammar->count, sizeof *a->marks);
    a->queue = (uint32_t *)fg_mem_array(grammar->count, sizeof *a->queue);
    a->listed = (uint32_t *)fg_mem_array(grammar->count, sizeof *a->listed);
    a->scratch = (fg_place *)fg_mem_array(FG_SCRATCH_PLACES, sizeof *a->scratch);
    a->joins = (fg_join *)fg_mem_array(FG_JOINS, sizeof *a->joins);
    a->path = (uint32_t *)fg_mem_array(places, sizeof *a->path);
    a->path_nodes = (uint32_t *)fg_mem_array(places, sizeof *a->path_nodes);
    a->mask = (uint64_t *)fg_mem_array(fg_lexicon_words(lexicon), sizeof *a->mask);
    a->copy = (uint64_t *)fg_mem_array(FG_COPY_WORDS, sizeof *a->copy);
    if (a->words == NULL || a->buckets == NULL || a->marks == NULL || a->queue == NULL ||
        a->listed == NULL || a->scratch == NULL || a->joins == NULL || a->path == NULL ||
        a->path_nodes == NULL || a->mask == NULL || a->copy == NULL) {
        fg_automaton_destroy(a);
        return fg_fail(err, FG_AGAIN, "no memory for an automaton");
    }
    uint32_t nothing = 0;
    fg_automaton_forget(a, &nothing); /* generation 1 */
    *automaton_out = a;
    return FG_OK;
}

void fg_automaton_destroy(fg_automaton *a)
{
    if (a != NULL) {
        if (a->words != NULL) {
            fg_mem_unmap(a->words, a->mapped_bytes);
        }
        fg_mem_free(a->buckets);
        fg_mem_free(a->marks);
        fg_mem_free(a->queue);
        fg_mem_free(a->listed);
        fg_mem_free(a->scratch);
        fg_mem_free(a->joins);
        fg_mem_free(a->path);
        fg_mem_free(a->path_nodes);
        fg_mem_free(a->mask);
        fg_mem_free(a->copy);
        fg_mem_free(a);
    }
}

static const char *no_text(void *ctx, uint32_t id, size_t *length_out)
{
    *length_out = 0;
    return "";
}

static bool is_end(void *ctx, uint32_t id)
{
    return true;
}

fg_status fg_automaton_check(const fg_grammar *grammar, fg_error *err)
{
    fg_lexicon *lexicon = NULL;
    fg_automaton *automaton = NULL;
    fg_status status = fg_lexicon_create(1, no_text, is_end, NULL, &lexicon, err);
    if (status == FG_OK) {
        status = fg_automaton_create(grammar, lexicon, 0, &automaton, err);
    }
    if (status == FG_OK && fg_automaton_start(automaton) == FG_STATE_DEAD) {
        status = fg_fail(err, FG_BAD_INPUT, "more than %d ways to begin", FG_STATE_PLACES_MAX);
    }
    fg_automaton_destroy(automaton);
    fg_lexicon_destroy(lexicon);
    return status;
}

const fg_lexicon *fg_automaton_lexicon(const fg_automaton *automaton)
{
    return automaton->lexicon;
}

uint64_t fg_automaton_generation(const fg_automaton *a)
{
    return a->generation;
}

size_t fg_automaton_used_bytes(const fg_automaton *a)
{
    return (size_t)a->word_used * sizeof *a->words;
}

/* --- forgetting -------------------------------------------------------------------------------------- */

/* A set that was copied has the number of its copy in place of its depth. */
#define COPIED ((uint32_t)1 << 31)

/* Copies a set behind those that it names: count, then places that name copies. False: does not fit. */
static bool copy_out(fg_automaton *a, uint32_t at)
{
    fg_place_set *set = fg_set_at(a, at);
    for (uint32_t i = 0; i < set->count; i++) {
        uint32_t below = set->places[i].below;
        if (below != 0 && (fg_set_at(a, below)->depth & COPIED) == 0 && !copy_out(a, below)) {
            return false;
        }
    }
    if (FG_COPY_WORDS - a->copy_used < set->count + 1) {
        return false;
    }
    a->copy[a->copy_used++] = set->count;
    for (uint32_t i = 0; i < set->count; i++) {
        fg_place place = set->places[i];
        place.below = place.below == 0 ? 0 : (fg_set_at(a, place.below)->depth & ~COPIED) + 1;
        memcpy(&a->copy[a->copy_used++], &place, sizeof place);
    }
    set->depth = COPIED | a->copy_count++;
    return true;
}

/* The copies become sets again; returns the last. A copy's count makes way for its new place. */
static uint32_t copy_in(fg_automaton *a)
{
    uint32_t at = 0;
    uint32_t *places_of = (uint32_t *)(void *)a->scratch; /* of each copy; no step is under way */
    bool fits = true;
    for (uint32_t i = 0, word = 0; fits && i < a->copy_count; i++) {
        uint32_t count = (uint32_t)a->copy[word++];
        fg_place *places = (fg_place *)(void *)&a->copy[word];
        for (uint32_t j = 0; j < count; j++) {
            places[j].below = places[j].below == 0 ? 0 : places_of[places[j].below - 1];
        }
        at = fg_set_intern(a, places, count);
        fits = at != 0;
        places_of[i] = at;
        word += count;
    }
    return fits ? at : 0;
}

void fg_automaton_forget(fg_automaton *a, uint32_t *state)
{
    a->copy_used = a->copy_count = 0;
    bool copied = *state != 0 && copy_out(a, *state);
    memset(a->buckets, 0, a->bucket_count * sizeof *a->buckets);
    a->base += a->word_used;
    a->word_used = 1; /* 0 is no place */
    a->generation++;
    a->kept = FG_STATE_DEAD;
    a->full = false;
    a->start = fg_set_start(a);
    *state = copied ? copy_in(a) : 0;
    a->full = false;
}

/* --- states as callers know them ---------------------------------------------------------------------- */

static uint32_t place_of(const fg_automaton *a, fg_state state)
{
    if (state == FG_STATE_DEAD) {
        return 0;
    }
    if (state == a->kept) {
        return a->kept_at;
    }
    return state > a->base && state - a->base < a->word_used ? (uint32_t)(state - a->base) : 0;
}

static fg_state number_of(const fg_automaton *a, uint32_t at)
{
    return at == 0 ? FG_STATE_DEAD : a->base + at;
}

fg_state fg_automaton_start(fg_automaton *a)
{
    return number_of(a, a->start);
}

fg_state fg_automaton_feed(fg_automaton *a, fg_state state, const char *bytes, size_t length)
{
    uint32_t at = place_of(a, state);
    uint32_t work = 0;
    for (size_t i = 0; i < length && at != 0; i++) {
        uint32_t to = fg_set_step(a, at, (uint8_t)bytes[i], &work);
        if (a->full) {
            fg_automaton_forget(a, &at);
            to = at == 0 ? 0 : fg_set_step(a, at, (uint8_t)bytes[i], &work);
            a->full = false;
        }
        at = to;
    }
    return number_of(a, at);
}

fg_state fg_automaton_take(fg_automaton *a, fg_state state, uint32_t token)
{
    size_t length;
    const char *text = fg_lexicon_text(a->lexicon, token, &length);
    return length == 0 ? FG_STATE_DEAD : fg_automaton_feed(a, state, text, length);
}

bool fg_automaton_may_end(const fg_automaton *a, fg_state state)
{
    uint32_t at = place_of(a, state);
    return at != 0 && fg_set_at(a, at)->places[0].position == FG_AT_ACCEPT;
}

bool fg_automaton_must_end(const fg_automaton *a, fg_state state)
{
    return fg_automaton_may_end(a, state) && fg_set_at(a, place_of(a, state))->count == 1;
}

const uint64_t *fg_automaton_mask(fg_automaton *a, fg_state state)
{
    uint32_t at = place_of(a, state);
    size_t words = fg_lexicon_words(a->lexicon);
    if (at == 0) {
        return NULL;
    }
    if (fg_set_at(a, at)->mask != 0) {
        return a->words + fg_set_at(a, at)->mask;
    }
    uint64_t generation = a->generation;
    if (a->word_count - a->word_used < words) {
        fg_automaton_forget(a, &at);
    }
    if (at != 0) {
        fg_mask_compute(a, &at);
    }
    if (a->generation != generation) {
        a->kept = at == 0 ? FG_STATE_DEAD : state;
        a->kept_at = at;
    }
    uint32_t kept = at == 0 ? 0 : fg_region_take(a, words);
    a->full = false;
    if (kept == 0) {
        return a->mask; /* no room to keep it: computed again when asked again */
    }
    fg_set_at(a, at)->mask = kept;
    memcpy(a->words + kept, a->mask, words * sizeof *a->mask);
    return a->words + kept;
}

bool fg_automaton_only(fg_automaton *a, fg_state state, uint32_t *id_out)
{
    const uint64_t *mask = fg_automaton_mask(a, state);
    size_t words = fg_lexicon_words(a->lexicon);
    uint32_t found = 0;
    for (size_t i = 0; mask != NULL && i < words; i++) {
        if (mask[i] != 0) {
            found += (mask[i] & (mask[i] - 1)) == 0 ? 1 : 2;
            if (found > 1) {
                return false;
            }
            *id_out = (uint32_t)(i * 64) + (uint32_t)__builtin_ctzll(mask[i]);
        }
    }
    return found == 1;
}

/* --- trackers ------------------------------------------------------------------------------------------ */

static void remember(fg_tracker *t, fg_state state)
{
    t->states[t->count % (FG_TRACKER_BACK + 1)] = state;
}

/* Goes back to before the first token that is another one now. */
static void compare(fg_tracker *t, const uint32_t *tokens, size_t count)
{
    size_t from = t->count - t->kept;
    size_t to = t->count < count ? t->count : count;
    for (size_t i = from; i < to; i++) {
        if (t->tokens[i % FG_TRACKER_BACK] != tokens[i]) {
            to = i;
        }
    }
    if (to < from) {
        *t = (fg_tracker){ 0 };
        return;
    }
    t->kept -= t->count - to;
    t->count = to;
}

fg_state fg_tracker_state(fg_tracker *t, fg_automaton *a, const uint32_t *tokens, size_t count)
{
    if (t->generation == a->generation) {
        compare(t, tokens, count);
    }
    if (t->generation != a->generation) {
        *t = (fg_tracker){ .generation = a->generation };
        remember(t, fg_automaton_start(a));
    }
    fg_state state = t->states[t->count % (FG_TRACKER_BACK + 1)];
    while (t->count < count) {
        state = fg_automaton_take(a, state, tokens[t->count]);
        if (t->generation != a->generation) { /* states before this one are gone */
            t->generation = a->generation;
            t->kept = 0;
        } else {
            t->kept += t->kept < FG_TRACKER_BACK;
        }
        t->tokens[t->count % FG_TRACKER_BACK] = tokens[t->count];
        t->count++;
        remember(t, state);
    }
    return state;
}
