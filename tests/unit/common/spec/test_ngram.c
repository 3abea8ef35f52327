#include "common/spec/ngram.h"

#include <string.h>

#include "common/base/rng.h"
#include "tests/support/test.h"

enum { TOKENS = 64, DRAFTS = 8 };

static const struct {
    const char *name;
    uint32_t tokens[16], count;
    fg_ngram_runs runs;
    uint32_t draft_max;
    uint32_t want[DRAFTS], want_count;
} cases[] = {
    { "empty", { 0 }, 0, { 1, 3 }, 4, { 0 }, 0 },
    { "one token", { 1 }, 1, { 1, 3 }, 4, { 0 }, 0 },
    { "nothing repeats", { 1, 2, 3, 4 }, 4, { 1, 3 }, 4, { 0 }, 0 },
    { "what followed", { 1, 2, 3, 4, 5, 1, 2 }, 7, { 1, 3 }, 3, { 3, 4, 5 }, 3 },
    { "the longest, not the latest", { 1, 2, 3, 9, 2, 8, 1, 2 }, 8, { 1, 3 }, 2, { 3, 9 }, 2 },
    { "no longer than asked: the latest", { 1, 2, 3, 9, 2, 8, 1, 2 }, 8, { 1, 1 }, 2, { 8, 1 }, 2 },
    { "the latest of equals", { 1, 2, 3, 1, 2, 4, 1, 2 }, 8, { 1, 2 }, 1, { 4 }, 1 },
    { "a run at the very beginning", { 7, 1, 2, 3, 7 }, 5, { 1, 3 }, 3, { 1, 2, 3 }, 3 },
    { "one token said twice", { 4, 4 }, 2, { 1, 3 }, 3, { 4, 4, 4 }, 3 },
    { "a repetition goes on",
      { 1, 2, 3, 1, 2, 3, 1 },
      7,
      { 1, 3 },
      8,
      { 2, 3, 1, 2, 3, 1, 2, 3 },
      8 },
    { "a run that is long enough", { 1, 2, 3, 9, 1, 2 }, 6, { 2, 3 }, 2, { 3, 9 }, 2 },
    { "a run that is too short", { 1, 2, 3, 9, 4, 2 }, 6, { 2, 3 }, 2, { 0 }, 0 },
    { "the longest is too short", { 1, 2, 3, 9, 1, 2 }, 6, { 3, 3 }, 2, { 0 }, 0 },
    { "no room", { 1, 2, 1 }, 3, { 1, 3 }, 0, { 0 }, 0 },
    { "switched off", { 1, 2, 1 }, 3, { 1, 0 }, 4, { 0 }, 0 },
};

Test(ngram, drafts_what_followed_the_longest_run)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t draft[DRAFTS + 1];
        memset(draft, 0xEE, sizeof draft);
        uint32_t got = fg_ngram_draft(cases[i].tokens, cases[i].count, cases[i].runs,
                                      cases[i].draft_max, draft, NULL);
        cr_assert_eq(got, cases[i].want_count, "%s: %u", cases[i].name, got);
        cr_assert(memcmp(draft, cases[i].want, got * sizeof draft[0]) == 0, "%s", cases[i].name);
        cr_assert_eq(draft[got], 0xEEEEEEEE, "%s: nothing behind", cases[i].name);
    }
}

/* Token by token, for every end. */
static uint32_t plain_search(const uint32_t *tokens, uint32_t count, uint32_t ngram_max,
                             uint32_t *length_out)
{
    uint32_t longest = 0, found = 0;
    for (uint32_t end = count - 1; end > 0; end--) {
        uint32_t length = 0;
        while (length < ngram_max && length < end &&
               tokens[end - 1 - length] == tokens[count - 1 - length]) {
            length++;
        }
        if (length > longest) {
            longest = length;
            found = end;
        }
    }
    *length_out = longest;
    return found;
}

Test(ngram, finds_what_a_plain_search_finds)
{
    fg_rng rng = { .state = 4 };
    uint32_t found = 0;
    for (uint32_t round = 0; round < 20000; round++) {
        uint32_t tokens[TOKENS], draft[DRAFTS], run = 99;
        uint32_t count = 2 + (uint32_t)fg_rng_below(&rng, TOKENS - 1);
        uint32_t vocab = 1 + (uint32_t)fg_rng_below(&rng, round % 2 == 0 ? 3 : 12);
        uint32_t ngram_max = 1 + (uint32_t)fg_rng_below(&rng, FG_NGRAM_MAX);
        for (uint32_t i = 0; i < count; i++) {
            tokens[i] = (uint32_t)fg_rng_below(&rng, vocab);
        }
        uint32_t ngram_min = 1 + (uint32_t)fg_rng_below(&rng, ngram_max);
        uint32_t length = 0;
        uint32_t end = plain_search(tokens, count, ngram_max, &length);
        end = length < ngram_min ? 0 : end;
        fg_ngram_runs runs = { .min = ngram_min, .max = ngram_max };
        uint32_t got = fg_ngram_draft(tokens, count, runs, DRAFTS, draft, &run);
        cr_assert_eq(got, end == 0 ? 0 : DRAFTS, "round %u", round);
        cr_assert_eq(run, end == 0 ? 0 : length, "round %u: a run of %u", round, run);
        for (uint32_t i = 0; i < got; i++) {
            uint32_t want = end + i < count ? tokens[end + i] : draft[end + i - count];
            cr_assert_eq(draft[i], want, "round %u: token %u", round, i);
        }
        found += got > 0;
    }
    cr_assert(found > 5000 && found < 15000, "both are drawn: %u", found);
}
