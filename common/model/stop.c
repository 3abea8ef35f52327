#include "common/model/stop.h"

#include <stdint.h>
#include <string.h>

#include "common/base/limits.h"
#include "common/base/mem.h"

/* One stop string with its Knuth-Morris-Pratt automaton. */
typedef struct pattern {
    char *text;
    uint32_t *fallback; /* fallback[n]: longest proper prefix of the first n bytes that ends them */
    uint32_t length;
    uint32_t matched; /* the text seen ends with this many first bytes */
} pattern;

struct fg_stop {
    pattern *patterns;
    uint32_t count;
    int found; /* index of the string that ended the text, -1 before */
};

static fg_status pattern_init(pattern *p, const char *text, size_t length, fg_error *err)
{
    if (length == 0) {
        return fg_fail(err, FG_BAD_INPUT, "a stop string is empty");
    }
    if (length > FG_LIMIT_STOP_BYTES) {
        return fg_fail(err, FG_BAD_INPUT, "a stop string is longer than %u bytes",
                       FG_LIMIT_STOP_BYTES);
    }
    p->length = (uint32_t)length;
    p->text = fg_mem_dup(text, length);
    p->fallback = fg_mem_array(length + 1, sizeof(p->fallback[0]));
    if (p->text == NULL || p->fallback == NULL) {
        return fg_fail(err, FG_AGAIN, "stop strings: out of memory");
    }
    uint32_t matched = 0;
    for (uint32_t i = 1; i < p->length; i++) {
        while (matched > 0 && text[i] != text[matched]) {
            matched = p->fallback[matched];
        }
        matched += text[i] == text[matched];
        p->fallback[i + 1] = matched;
    }
    return FG_OK;
}

fg_status fg_stop_create(const char *const *strings, const size_t *lengths, size_t count,
                         fg_stop **stop_out, fg_error *err)
{
    if (count > FG_LIMIT_STOP_STRINGS) {
        return fg_fail(err, FG_BAD_INPUT, "more than %u stop strings", FG_LIMIT_STOP_STRINGS);
    }
    fg_stop *stop = fg_mem_alloc(sizeof(*stop));
    if (stop == NULL) {
        return fg_fail(err, FG_AGAIN, "stop strings: out of memory");
    }
    stop->found = -1;
    stop->patterns = fg_mem_array(count + 1, sizeof(stop->patterns[0]));
    fg_status status = FG_OK;
    if (stop->patterns == NULL) {
        status = fg_fail(err, FG_AGAIN, "stop strings: out of memory");
    }
    for (size_t i = 0; status == FG_OK && i < count; i++) {
        stop->count++;
        status = pattern_init(&stop->patterns[i], strings[i], lengths[i], err);
    }
    if (status != FG_OK) {
        fg_stop_destroy(stop);
        return status;
    }
    *stop_out = stop;
    return FG_OK;
}

void fg_stop_destroy(fg_stop *stop)
{
    if (stop == NULL) {
        return;
    }
    for (uint32_t i = 0; i < stop->count; i++) {
        fg_mem_free(stop->patterns[i].text);
        fg_mem_free(stop->patterns[i].fallback);
    }
    fg_mem_free(stop->patterns);
    fg_mem_free(stop);
}

/* The pattern that has come furthest, or NULL. All text held back is its first `matched` bytes. */
static const pattern *furthest(const fg_stop *stop)
{
    const pattern *best = NULL;
    for (uint32_t i = 0; i < stop->count; i++) {
        const pattern *p = &stop->patterns[i];
        if (p->matched > 0 && (best == NULL || p->matched > best->matched)) {
            best = p;
        }
    }
    return best;
}

/* Moves every pattern over one byte; returns the longest that it completes, or -1. */
static int step(fg_stop *stop, char byte)
{
    int found = -1;
    for (uint32_t i = 0; i < stop->count; i++) {
        pattern *p = &stop->patterns[i];
        while (p->matched > 0 && p->text[p->matched] != byte) {
            p->matched = p->fallback[p->matched];
        }
        p->matched += p->text[p->matched] == byte;
        bool longer = found < 0 || p->length > stop->patterns[found].length;
        if (p->matched == p->length && longer) {
            found = (int)i;
        }
    }
    return found;
}

bool fg_stop_push(fg_stop *stop, const char *text, size_t length, fg_buf *out)
{
    if (stop->found >= 0) {
        return true;
    }
    const pattern *held = furthest(stop);
    size_t held_length = held == NULL ? 0 : held->matched;
    size_t read = 0;
    while (stop->found < 0 && read < length) {
        stop->found = step(stop, text[read++]);
    }
    /* All of held text + text read is certain, except for what is held back from now on. */
    size_t keep = 0;
    if (stop->found >= 0) {
        keep = stop->patterns[stop->found].length;
    } else {
        const pattern *now = furthest(stop);
        keep = now == NULL ? 0 : now->matched;
    }
    size_t certain = held_length + read - keep;
    size_t from_held = certain < held_length ? certain : held_length;
    if (from_held > 0) {
        fg_buf_append(out, held->text, from_held);
    }
    fg_buf_append(out, text, certain - from_held);
    return stop->found >= 0;
}

void fg_stop_finish(fg_stop *stop, fg_buf *out)
{
    const pattern *held = stop->found >= 0 ? NULL : furthest(stop);
    if (held != NULL) {
        fg_buf_append(out, held->text, held->matched);
    }
    for (uint32_t i = 0; i < stop->count; i++) {
        stop->patterns[i].matched = 0;
    }
}

int fg_stop_matched(const fg_stop *stop)
{
    return stop->found;
}
