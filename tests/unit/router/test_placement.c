#include "router/placement.h"

#include "proto/wire.h"
#include "tests/support/test.h"

enum { P = FG_ROLE_PREFILL, D = FG_ROLE_DECODE, B = FG_ROLE_PREFILL | FG_ROLE_DECODE };

/* roles, blocks, block size, context, max seqs, prefills, decodes, prefill tokens, placed, blocks used, full */
#define W(roles, used, decodes, tokens)                                                            \
    {                                                                                              \
        roles, 100, 16, 1024, 4, 0, decodes, tokens, 0, used, false                                \
    }

static const struct {
    const char *name;
    fg_place_worker workers[4];
    uint32_t count;
    fg_place_request request;
    fg_place_verdict want;
    fg_place_choice choice;
} cases[] = {
    { "nobody at all", { W(0, 0, 0, 0) }, 0, { 10, 20 }, FG_PLACE_NOBODY, { 0, 0 } },
    { "no decode worker", { W(P, 0, 0, 0) }, 1, { 10, 20 }, FG_PLACE_NOBODY, { 0, 0 } },
    { "no prefill worker", { W(D, 0, 0, 0) }, 1, { 10, 20 }, FG_PLACE_NOBODY, { 0, 0 } },
    { "a draining worker does not count",
      { W(P, 0, 0, 0), W(0, 0, 0, 0) },
      2,
      { 10, 20 },
      FG_PLACE_NOBODY,
      { 0, 0 } },
    { "one pair", { W(P, 0, 0, 0), W(D, 0, 0, 0) }, 2, { 10, 20 }, FG_PLACE_OK, { 0, 1 } },
    { "fewest prompt tokens ahead, fewest live sequences",
      { W(P, 0, 0, 50), W(P, 0, 0, 40), W(D, 0, 2, 0), W(D, 0, 1, 0) },
      4,
      { 10, 20 },
      FG_PLACE_OK,
      { 1, 3 } },
    { "the decode worker with room, though it is busier",
      { W(P, 0, 0, 0), W(D, 99, 0, 0), W(D, 10, 3, 0) },
      3,
      { 10, 40 },
      FG_PLACE_OK,
      { 0, 2 } },
    { "no room now", { W(P, 0, 0, 0), W(D, 99, 0, 0) }, 2, { 10, 40 }, FG_PLACE_WAIT, { 0, 0 } },
    { "exactly the last blocks",
      { W(P, 0, 0, 0), W(D, 98, 0, 0) },
      2,
      { 10, 32 },
      FG_PLACE_OK,
      { 0, 1 } },
    { "blocks of the answer are not counted beyond its first",
      { W(P, 0, 0, 0), W(D, 98, 0, 0) },
      2,
      { 10, 1000 },
      FG_PLACE_OK,
      { 0, 1 } },
    { "an answer that ends in the prompt's last block needs no further one",
      { W(P, 0, 0, 0), W(D, 99, 0, 0) },
      2,
      { 10, 16 },
      FG_PLACE_OK,
      { 0, 1 } },
    { "a prompt that fills an empty worker",
      { W(P, 0, 0, 0), { D, 64, 16, 1024, 4, 0, 0, 0, 0, 0, false } },
      2,
      { 1020, 1024 },
      FG_PLACE_OK,
      { 0, 1 } },
    { "more blocks than there are, though the context would do",
      { W(P, 0, 0, 0), { D, 63, 16, 1024, 4, 0, 0, 0, 0, 0, false } },
      2,
      { 10, 1024 },
      FG_PLACE_NEVER,
      { 0, 0 } },
    { "more in quarantine than there is",
      { W(P, 0, 0, 0), W(D, 101, 0, 0) },
      2,
      { 10, 20 },
      FG_PLACE_WAIT,
      { 0, 0 } },
    { "slots are full", { W(P, 0, 0, 0), W(D, 0, 4, 0) }, 2, { 10, 20 }, FG_PLACE_WAIT, { 0, 0 } },
    { "longer than any context",
      { W(P, 0, 0, 0), W(D, 0, 0, 0) },
      2,
      { 10, 1025 },
      FG_PLACE_NEVER,
      { 0, 0 } },
    { "one worker for both", { W(B, 0, 0, 0) }, 1, { 10, 20 }, FG_PLACE_OK, { 0, 0 } },
    { "its blocks are its own affair", { W(B, 100, 3, 0) }, 1, { 10, 20 }, FG_PLACE_OK, { 0, 0 } },
    { "its line has a place", { W(B, 0, 7, 0) }, 1, { 10, 20 }, FG_PLACE_OK, { 0, 0 } },
    { "its line is full", { W(B, 0, 8, 0) }, 1, { 10, 20 }, FG_PLACE_WAIT, { 0, 0 } },
    { "its line is full of prompts",
      { { B, 100, 16, 1024, 4, 8, 0, 0, 0, 0, false } },
      1,
      { 10, 20 },
      FG_PLACE_WAIT,
      { 0, 0 } },
    { "a pure prefill worker has no line",
      { { P, 100, 16, 1024, 4, 4, 0, 0, 0, 0, false }, W(D, 0, 0, 0) },
      2,
      { 10, 20 },
      FG_PLACE_WAIT,
      { 0, 0 } },
    { "a hand-over to one for both needs room like any other",
      { W(P, 0, 0, 0), W(B, 99, 0, 10) },
      2,
      { 10, 40 },
      FG_PLACE_WAIT,
      { 0, 0 } },
    { "a hand-over from one for both needs room too",
      { W(B, 0, 8, 0), W(D, 99, 0, 0) },
      2,
      { 10, 40 },
      FG_PLACE_WAIT,
      { 0, 0 } },
    { "two for both: the one with fewer sequences does all",
      { W(B, 0, 3, 0), W(B, 0, 1, 500) },
      2,
      { 10, 20 },
      FG_PLACE_OK,
      { 1, 1 } },
    { "a pure prefill worker beside one for both",
      { W(P, 0, 0, 0), W(B, 0, 0, 10) },
      2,
      { 10, 20 },
      FG_PLACE_OK,
      { 0, 1 } },
};

Test(placement, picks_by_the_table)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fg_place_choice choice = { 99, 99 };
        fg_place_verdict got =
            fg_place_pick(cases[i].workers, cases[i].count, &cases[i].request, &choice);
        cr_assert_eq(got, cases[i].want, "%s: verdict %d", cases[i].name, (int)got);
        if (got == FG_PLACE_OK) {
            cr_assert(choice.prefill == cases[i].choice.prefill &&
                          choice.decode == cases[i].choice.decode,
                      "%s: %u, %u", cases[i].name, choice.prefill, choice.decode);
        }
    }
}

Test(placement, a_worker_that_answered_busy_is_left_alone)
{
    fg_place_worker workers[] = { W(P, 0, 0, 0), W(D, 0, 0, 0) };
    fg_place_request request = { 10, 20 };
    fg_place_choice choice;
    workers[1].full = true;
    cr_assert_eq(fg_place_pick(workers, 2, &request, &choice), FG_PLACE_WAIT);
}

Test(placement, that_holds_for_one_for_both_as_well)
{
    fg_place_worker workers[] = { W(B, 0, 0, 0) };
    fg_place_request request = { 10, 20 };
    fg_place_choice choice;
    workers[0].full = true;
    cr_assert_eq(fg_place_pick(workers, 1, &request, &choice), FG_PLACE_WAIT);
}

Test(placement, equals_take_turns)
{
    fg_place_worker workers[] = { W(P, 0, 0, 0), W(P, 0, 0, 0), W(D, 0, 0, 0), W(D, 0, 0, 0) };
    fg_place_request request = { 10, 20 };
    fg_place_choice choice;
    workers[0].placed = 3;
    workers[1].placed = 2;
    workers[2].placed = 5;
    workers[3].placed = 6;
    cr_assert_eq(fg_place_pick(workers, 4, &request, &choice), FG_PLACE_OK);
    cr_assert(choice.prefill == 1 && choice.decode == 2);
}
