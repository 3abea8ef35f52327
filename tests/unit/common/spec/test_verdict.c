#include "common/spec/verdict.h"

#include "tests/support/test.h"

enum { END = 9, DRAFTS = 4 };

static bool is_end(void *ctx, uint32_t token)
{
    return token == END;
}

static const struct {
    const char *name;
    uint32_t draft[DRAFTS], draft_count;
    uint32_t choices[DRAFTS + 1];
    fg_verdict want;
} cases[] = {
    { "no draft", { 0 }, 0, { 5 }, { .accepted = 0, .emitted = 1 } },
    { "no draft, end", { 0 }, 0, { END }, { .emitted = 1, .ended = true } },
    { "all right, bonus", { 1, 2, 3, 4 }, 4, { 1, 2, 3, 4, 5 }, { .accepted = 4, .emitted = 5 } },
    { "first wrong", { 1, 2, 3 }, 3, { 7, 2, 3, 4 }, { .emitted = 1, .rejected = true } },
    { "second wrong, third right again",
      { 1, 2, 3 },
      3,
      { 1, 7, 3, 4 },
      { .accepted = 1, .emitted = 2, .rejected = true } },
    { "last wrong",
      { 1, 2, 3 },
      3,
      { 1, 2, 7, 4 },
      { .accepted = 2, .emitted = 3, .rejected = true } },
    { "end inside the accepted run",
      { 1, END, 3, 4 },
      4,
      { 1, END, 3, 4, 5 },
      { .accepted = 2, .emitted = 2, .ended = true } },
    { "end as the last accepted one, no bonus",
      { 1, END },
      2,
      { 1, END, 3 },
      { .accepted = 2, .emitted = 2, .ended = true } },
    { "end as the first",
      { END, END },
      2,
      { END, END, END },
      { .accepted = 1, .emitted = 1, .ended = true } },
    { "end as bonus", { 1, 2 }, 2, { 1, 2, END }, { .accepted = 2, .emitted = 3, .ended = true } },
    { "end as correction",
      { 1, 2 },
      2,
      { 1, END, 3 },
      { .accepted = 1, .emitted = 2, .rejected = true, .ended = true } },
    { "end drafted, not chosen",
      { 1, END },
      2,
      { 1, 2, 3 },
      { .accepted = 1, .emitted = 2, .rejected = true } },
    { "end behind a rejection",
      { 1, 2, END },
      3,
      { 7, 2, END, 4 },
      { .emitted = 1, .rejected = true } },
};

static bool same(fg_verdict a, fg_verdict b)
{
    return a.accepted == b.accepted && a.emitted == b.emitted && a.rejected == b.rejected &&
           a.ended == b.ended;
}

Test(verdict, keeps_the_longest_equal_beginning_and_one_token_more)
{
    const fg_ends ends = { .is_end = is_end };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fg_verdict got =
            fg_verdict_exact(cases[i].draft, cases[i].draft_count, cases[i].choices, &ends);
        cr_assert(same(got, cases[i].want), "%s: %u accepted, %u emitted, rejected %d, ended %d",
                  cases[i].name, got.accepted, got.emitted, got.rejected, got.ended);
    }
}

Test(verdict, nothing_ends_without_end_tokens)
{
    const uint32_t draft[] = { END, END }, choices[] = { END, END, END };
    fg_verdict got = fg_verdict_exact(draft, 2, choices, &(fg_ends){ 0 });
    cr_assert(same(got, (fg_verdict){ .accepted = 2, .emitted = 3 }));
}
