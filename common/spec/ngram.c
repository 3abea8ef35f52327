#include "common/spec/ngram.h"

#include <stddef.h>

#include "common/base/status.h"

/* The search of Knuth, Morris and Pratt, backwards: the pattern is the end of the sequence, read from its
 * last token down, and so is the text, from the token before it. */
typedef struct pattern {
    const uint32_t *last; /* token i of the pattern is last[-i] */
    uint32_t count;
    /* For the first i + 1 tokens: the longest of their own beginnings, shorter than they, that they end
     * with. */
    uint32_t fallback[FG_NGRAM_MAX];
} pattern;

/* How much of the pattern is matched when `length` of it were and `token` comes next. */
static uint32_t advance(const pattern *p, uint32_t length, uint32_t token)
{
    while (length > 0 && *(p->last - length) != token) {
        length = p->fallback[length - 1];
    }
    return length + (*(p->last - length) == token);
}

/* The number of leading tokens up to and with the last of them that is `token`; 0: none is. By sixteens, which compilers
 * compare at once: most tokens of a text are others. */
static uint32_t skip_others(const uint32_t *tokens, uint32_t count, uint32_t token)
{
    enum { TOGETHER = 16 };
    for (; count >= TOGETHER; count -= TOGETHER) {
        const uint32_t *part = tokens + count - TOGETHER;
        uint32_t equal = 0;
        for (uint32_t i = 0; i < TOGETHER; i++) {
            equal |= part[i] == token;
        }
        if (equal != 0) {
            break;
        }
    }
    while (count > 0 && tokens[count - 1] != token) {
        count--;
    }
    return count;
}

/* The end (in tokens from the start) of the latest of the longest earlier runs; 0 when there is none. */
static uint32_t find_run(const uint32_t *tokens, uint32_t token_count, fg_ngram_runs runs,
                         uint32_t *length_out)
{
    pattern p = { .last = tokens + token_count - 1,
                  .count = runs.max < token_count - 1 ? runs.max : token_count - 1 };
    for (uint32_t i = 1; i < p.count; i++) {
        p.fallback[i] = advance(&p, p.fallback[i - 1], *(p.last - i));
    }
    uint32_t length = 0, longest = 0, end = 0;
    /* A run as long as the pattern ends the search, so `length` stays below p.count inside. */
    for (uint32_t at = token_count - 1; at > 0 && longest < p.count; at--) {
        if (length == 0) {
            at = skip_others(tokens, at, *p.last);
            if (at == 0) {
                break;
            }
        }
        length = advance(&p, length, tokens[at - 1]);
        if (length > longest) {
            longest = length;
            end = at - 1 + length;
        }
    }
    *length_out = longest >= runs.min ? longest : 0;
    return *length_out > 0 ? end : 0;
}

uint32_t fg_ngram_draft(const uint32_t *tokens, uint32_t token_count, fg_ngram_runs runs,
                        uint32_t draft_max, uint32_t *draft_out, uint32_t *run_out)
{
    uint32_t length = 0, end = 0;
    FG_ASSERT(runs.max <= FG_NGRAM_MAX && runs.min > 0, "runs of %u to %u tokens", runs.min,
              runs.max);
    if (token_count >= 2 && runs.max > 0) {
        end = find_run(tokens, token_count, runs, &length);
    }
    if (run_out != NULL) {
        *run_out = length;
    }
    if (end == 0) {
        return 0;
    }
    for (uint32_t i = 0; i < draft_max; i++) {
        uint32_t left = token_count - end; /* tokens that followed */
        draft_out[i] = i < left ? tokens[end + i] : draft_out[i - left];
    }
    return draft_max;
}
