#include "router/placement.h"

#include <math.h>

#include "common/base/rng.h"
#include "tests/support/test.h"
#include "tests/unit/router/placement_fleet.h"

/* ---- capacity and roles: the same for every policy ---- */

enum { AUTO = FG_PLACE_AUTO, ALWAYS = FG_PLACE_ALWAYS, UNSPLIT = FG_PLACE_UNSPLIT };

/* A worker of role 0 in the middle of a case has `placed` set, so that it is not taken for the end. */
static const struct {
    const char *name;
    fg_place_split split;
    spec specs[CASE_WORKERS];
    uint32_t prompt, answer;
    fg_place_verdict want;
} verdicts[] = {
    { "nobody at all", AUTO, { { 0 } }, 10, 10, FG_PLACE_NOBODY },
    { "no decode worker, split", ALWAYS, { { P } }, 10, 10, FG_PLACE_NOBODY },
    { "no decode worker, auto: roles are policy", AUTO, { { P } }, 10, 10, FG_PLACE_NOBODY },
    { "no decode worker, never: anybody does", UNSPLIT, { { P } }, 10, 10, FG_PLACE_OK },
    { "no prefill worker, split", ALWAYS, { { D } }, 10, 10, FG_PLACE_NOBODY },
    { "no prefill worker, auto: it does both", AUTO, { { D } }, 10, 10, FG_PLACE_OK },
    { "no prefill worker, and it cannot", AUTO, { { D, NO_WHOLE } }, 10, 10, FG_PLACE_NOBODY },
    { "a draining worker does not count",
      AUTO,
      { { P }, { 0, .placed = 1 } },
      10,
      10,
      FG_PLACE_NOBODY },
    { "nobody but draining ones", UNSPLIT, { { 0, .placed = 1 } }, 10, 10, FG_PLACE_NOBODY },
    { "one pair", ALWAYS, { { P }, { D } }, 10, 10, FG_PLACE_OK },
    { "a pair without a link", ALWAYS, { { P, NO_LINK }, { D } }, 10, 10, FG_PLACE_NOBODY },
    { "a pair without a link at the other end",
      ALWAYS,
      { { P }, { D, NO_LINK } },
      10,
      10,
      FG_PLACE_NOBODY },
    { "no link, but one can do both", AUTO, { { P, NO_LINK }, { D } }, 10, 10, FG_PLACE_OK },
    { "neither link nor both",
      UNSPLIT,
      { { P, NO_WHOLE }, { D, NO_WHOLE } },
      10,
      10,
      FG_PLACE_NOBODY },
    { "two for both, by role, that cannot do both",
      ALWAYS,
      { { B, NO_WHOLE }, { B, NO_WHOLE } },
      10,
      10,
      FG_PLACE_NOBODY },
    { "two for both that cannot do both may pair in auto",
      AUTO,
      { { B, NO_WHOLE }, { B, NO_WHOLE } },
      10,
      10,
      FG_PLACE_OK },
    { "one for both without a link", ALWAYS, { { B, NO_LINK } }, 10, 10, FG_PLACE_OK },
    { "one cannot pair with itself", AUTO, { { B, NO_WHOLE } }, 10, 10, FG_PLACE_NOBODY },
    { "longer than any context", AUTO, { { P }, { D } }, 10, 16000, FG_PLACE_NEVER },
    { "more blocks than there are",
      ALWAYS,
      { { P }, { D, .blocks = 63 } },
      10,
      1014,
      FG_PLACE_NEVER },
    { "the prefill worker is too small",
      ALWAYS,
      { { P, .blocks = 63 }, { D } },
      10,
      1014,
      FG_PLACE_NEVER },
    { "a prompt that fills an empty worker",
      ALWAYS,
      { { P }, { D, .blocks = 64 } },
      1020,
      4,
      FG_PLACE_OK },
    { "no room now", ALWAYS, { { P }, { D, .used = 999 } }, 10, 30, FG_PLACE_WAIT },
    { "exactly the last blocks", ALWAYS, { { P }, { D, .used = 998 } }, 10, 22, FG_PLACE_OK },
    { "blocks of the answer are not counted beyond its first",
      ALWAYS,
      { { P }, { D, .used = 998 } },
      10,
      990,
      FG_PLACE_OK },
    { "an answer that ends in the prompt's last block needs no further one",
      ALWAYS,
      { { P }, { D, .used = 999 } },
      10,
      6,
      FG_PLACE_OK },
    { "more in quarantine than there is",
      ALWAYS,
      { { P }, { D, .used = 1001 } },
      10,
      10,
      FG_PLACE_WAIT },
    { "slots are full", ALWAYS, { { P }, { D, .decodes = 8 } }, 10, 10, FG_PLACE_WAIT },
    { "it answered busy", ALWAYS, { { P }, { D, .full = true } }, 10, 10, FG_PLACE_WAIT },
    { "one for both answered busy", AUTO, { { B, .full = true } }, 10, 10, FG_PLACE_WAIT },
    { "its blocks are its own affair", AUTO, { { B, .used = 1000 } }, 10, 10, FG_PLACE_OK },
    { "its line has a place", AUTO, { { B, .decodes = 15 } }, 10, 10, FG_PLACE_OK },
    { "its line is full", AUTO, { { B, .decodes = 16 } }, 10, 10, FG_PLACE_WAIT },
    { "its line is full of prompts", AUTO, { { B, .prefills = 16 } }, 10, 10, FG_PLACE_WAIT },
    { "one meant for prompts has no line",
      ALWAYS,
      { { P, .prefills = 8 }, { D } },
      10,
      10,
      FG_PLACE_WAIT },
    { "one meant for answers keeps none in auto",
      AUTO,
      { { D, .decodes = 8 } },
      10,
      10,
      FG_PLACE_WAIT },
    { "but does when all do all", UNSPLIT, { { D, .decodes = 15 } }, 10, 10, FG_PLACE_OK },
    { "a full decode worker, and one for both with a line",
      ALWAYS,
      { { P }, { B, .used = 999 } },
      10,
      30,
      FG_PLACE_OK },
    { "a hand-over from one for both needs room too",
      ALWAYS,
      { { B, .decodes = 16 }, { D, .used = 999 } },
      10,
      30,
      FG_PLACE_WAIT },
    { "no place for anybody",
      AUTO,
      { { P, .no_room = 1 }, { D, .no_room = 1 } },
      10,
      10,
      FG_PLACE_WAIT },
    { "an empty prompt", AUTO, { { P }, { D } }, 0, 1, FG_PLACE_OK },
};

Test(placement, the_verdict_is_the_same_for_every_policy)
{
    static fleet f;
    for (size_t i = 0; i < sizeof verdicts / sizeof *verdicts; i++) {
        set_up(&f, verdicts[i].specs, CASE_WORKERS);
        for (int k = 0; k < POLICIES; k++) {
            fg_place_options options = fg_place_defaults();
            options.policy = policies[k];
            options.split = verdicts[i].split;
            fg_place_request request = ask(&f, verdicts[i].prompt, verdicts[i].answer);
            fg_place_choice choice = { .prefill = 99, .decode = 99 };
            fg_place_verdict got = fg_place_pick(&options, f.workers, f.count, &request, &choice);
            cr_assert_eq(got, verdicts[i].want, "%s, %s: verdict %d", verdicts[i].name,
                         fg_place_policy_name(policies[k]), (int)got);
            cr_assert_eq(got == FG_PLACE_OK, choice.prefill != 99, "%s", verdicts[i].name);
        }
    }
}

/* ---- what predicted time chooses ---- */

static const struct {
    const char *name;
    fg_place_split split;
    spec specs[CASE_WORKERS];
    uint32_t prompt, answer, session;
    double heat;
    uint32_t prefill, decode; /* equal: one for both */
} chosen[] = {
    { "a long prompt stays off busy streams",
      AUTO,
      { { P }, { D, .decodes = 7 } },
      8000,
      64,
      0,
      0,
      0,
      1 },
    { "an idle decode worker needs no hand-over", AUTO, { { P }, { D } }, 200, 64, 0, 0, 1, 1 },
    { "a short tail goes where the prefix is",
      AUTO,
      { { P }, { D, .decodes = 3, .hit = 120 } },
      2000,
      64,
      0,
      0,
      1,
      1 },
    { "though not when the prefill worker has it as well and streams are many",
      ALWAYS,
      { { P, .hit = 120 }, { D, .decodes = 3, .hit = 120 } },
      2000,
      64,
      0,
      0,
      0,
      1 },
    { "the longer prefix",
      ALWAYS,
      { { P, .hit = 10 }, { P, .hit = 90 }, { D } },
      2000,
      64,
      0,
      0,
      1,
      2 },
    { "the prefix, behind a short line",
      ALWAYS,
      { { P }, { P, .hit = 120, .ahead = 500 }, { D } },
      2000,
      64,
      0,
      0,
      1,
      2 },
    { "an idle one, when the line at the prefix is too long",
      ALWAYS,
      { { P }, { P, .hit = 120, .ahead = 8000 }, { D } },
      2000,
      64,
      0,
      0,
      0,
      2 },
    { "a prefix keeps its holder by a margin",
      ALWAYS,
      { { P }, { P, .hit = 120, .ahead = 2200 }, { D } },
      2000,
      64,
      0,
      0,
      1,
      2 },
    { "a hot one does not: it gets a second copy",
      ALWAYS,
      { { P }, { P, .hit = 120, .ahead = 2200 }, { D } },
      2000,
      64,
      0,
      20,
      0,
      2 },
    { "a hot one stays while its holder is idle",
      ALWAYS,
      { { P }, { P, .hit = 120 }, { D } },
      2000,
      64,
      0,
      20,
      1,
      2 },
    { "the host tier counts", ALWAYS, { { P }, { P, .tier = 120 }, { D } }, 2000, 64, 0, 0, 1, 2 },
    { "less than the device",
      ALWAYS,
      { { P, .hit = 120 }, { P, .tier = 120 }, { D } },
      2000,
      64,
      0,
      0,
      0,
      2 },
    { "more than a shorter prefix on the device",
      ALWAYS,
      { { P, .hit = 20 }, { P, .tier = 120 }, { D } },
      2000,
      64,
      0,
      0,
      1,
      2 },
    { "the faster of two", ALWAYS, { { P, .slower = 3 }, { P }, { D } }, 2000, 64, 0, 0, 1, 2 },
    { "the slower of two, when the faster is busy",
      ALWAYS,
      { { P, .slower = 2 }, { P, .ahead = 8000 }, { D } },
      2000,
      64,
      0,
      0,
      0,
      2 },
    { "the faster decoder, though it has more to do",
      ALWAYS,
      { { P }, { D, .slower = 4 }, { D, .decodes = 3 } },
      200,
      400,
      0,
      0,
      0,
      2 },
    { "fewest prompt tokens ahead",
      ALWAYS,
      { { P, .ahead = 50 }, { P, .ahead = 40 }, { D } },
      10,
      10,
      0,
      0,
      1,
      2 },
    { "fewest live sequences",
      ALWAYS,
      { { P }, { D, .decodes = 2 }, { D, .decodes = 1 } },
      10,
      10,
      0,
      0,
      0,
      2 },
    { "the decode worker with room, though it is busier",
      ALWAYS,
      { { P }, { D, .used = 999 }, { D, .used = 10, .decodes = 3 } },
      10,
      30,
      0,
      0,
      0,
      2 },
    { "the decode worker that has the blocks already",
      ALWAYS,
      { { P, .hit = 120 }, { D }, { D, .hit = 120 } },
      2000,
      64,
      0,
      0,
      0,
      2 },
    { "no link: the prompt goes where it can be answered",
      AUTO,
      { { P, NO_LINK, .full = true }, { D, .decodes = 7 } },
      8000,
      64,
      0,
      0,
      1,
      1 },
    { "no link: the answer stays where the prompt is",
      AUTO,
      { { P, NO_LINK }, { D, .decodes = 7 } },
      8000,
      64,
      0,
      0,
      0,
      0 },
    { "a full decode worker: the answer stays where the prompt is",
      AUTO,
      { { P }, { D, .decodes = 8 } },
      8000,
      16,
      0,
      0,
      0,
      0 },
    { "a long line of prompts: a decode worker does all",
      AUTO,
      { { P, .ahead = 40000, .prefills = 7 }, { D, .decodes = 2 } },
      1000,
      64,
      0,
      0,
      1,
      1 },
    { "never: the idle one does all, whatever its role",
      UNSPLIT,
      { { P }, { D, .decodes = 7 } },
      8000,
      64,
      0,
      0,
      0,
      0 },
    { "always: streams or not, by role", ALWAYS, { { P }, { D } }, 20, 64, 0, 0, 0, 1 },
    { "always: one for both beside a busy one for prompts",
      ALWAYS,
      { { P, .ahead = 9000 }, { B } },
      200,
      64,
      0,
      0,
      1,
      1 },
    { "two for both: the one with fewer sequences does all",
      ALWAYS,
      { { B, .decodes = 3 }, { B, .decodes = 1 } },
      10,
      10,
      0,
      0,
      1,
      1 },
    { "prompts that wait at a decode worker stand in its streams' way",
      ALWAYS,
      { { P }, { D, .ahead = 3000 }, { D, .decodes = 1 } },
      200,
      64,
      0,
      0,
      0,
      2 },
    { "one worker", AUTO, { { B } }, 5000, 64, 0, 0, 0, 0 },
    { "one worker, with streams", AUTO, { { B, .decodes = 7 } }, 5000, 64, 0, 0, 0, 0 },
    { "one for both with a place in its batch, not one with a place in line",
      UNSPLIT,
      { { B, .decodes = 8, .hit = 20 }, { B, .decodes = 7 } },
      400,
      64,
      0,
      0,
      1,
      1 },
    { "a session's last worker, all else equal",
      AUTO,
      { { B }, { B, .placed = 9 } },
      500,
      64,
      2,
      0,
      1,
      1 },
    { "not when it is busy",
      AUTO,
      { { B }, { B, .placed = 9, .ahead = 9000 } },
      500,
      64,
      2,
      0,
      0,
      0 },
    { "a claim is no proof",
      ALWAYS,
      { { P, .placed = 1 }, { P, .slower = 0.0001, .unproven = true, .ahead = 300 }, { D } },
      2000,
      64,
      0,
      0,
      0,
      2 },
    { "a claim to be slow is believed",
      ALWAYS,
      { { P, .placed = 9 }, { P, .slower = 3, .unproven = true }, { D } },
      2000,
      64,
      0,
      0,
      0,
      2 },
    { "draining workers keep their caches to themselves",
      ALWAYS,
      { { 0, .placed = 1, .hit = 125 }, { P }, { D } },
      2000,
      64,
      0,
      0,
      1,
      2 },
};

Test(placement, predicted_time_chooses_by_the_table)
{
    static fleet f;
    for (size_t i = 0; i < sizeof chosen / sizeof *chosen; i++) {
        set_up(&f, chosen[i].specs, CASE_WORKERS);
        fg_place_options options = fg_place_defaults();
        options.split = chosen[i].split;
        fg_place_request request = ask(&f, chosen[i].prompt, chosen[i].answer);
        request.session = chosen[i].session;
        request.heat = chosen[i].heat;
        fg_place_choice choice = { .prefill = 99, .decode = 99 };
        fg_place_verdict got = fg_place_pick(&options, f.workers, f.count, &request, &choice);
        cr_assert_eq(got, FG_PLACE_OK, "%s: verdict %d", chosen[i].name, (int)got);
        cr_assert(choice.prefill == chosen[i].prefill && choice.decode == chosen[i].decode,
                  "%s: %u, %u", chosen[i].name, choice.prefill, choice.decode);
        cr_assert_eq(choice.kind == FG_PLACE_WHOLE, choice.prefill == choice.decode, "%s",
                     chosen[i].name);
    }
}

/* ---- policies, ties, lies, size ---- */

Test(placement, equals_take_turns)
{
    static fleet f;
    for (int k = 0; k < 3; k++) { /* cost, cache only, least loaded */
        set_up(&f, (spec[]){ { P }, { P }, { P }, { D }, { D } }, 5);
        fg_place_options options = fg_place_defaults();
        options.policy = policies[k];
        options.split = FG_PLACE_ALWAYS;
        fg_place_request request = ask(&f, 100, 10);
        uint32_t got[5] = { 0 };
        for (int i = 0; i < 30; i++) {
            fg_place_choice choice;
            cr_assert_eq(fg_place_pick(&options, f.workers, f.count, &request, &choice),
                         FG_PLACE_OK);
            f.workers[choice.prefill].placed++;
            f.workers[choice.decode].placed++;
            got[choice.prefill]++;
            got[choice.decode]++;
        }
        cr_assert(got[0] == 10 && got[1] == 10 && got[2] == 10 && got[3] == 15 && got[4] == 15,
                  "%s: %u %u %u, %u %u", fg_place_policy_name(policies[k]), got[0], got[1], got[2],
                  got[3], got[4]);
    }
}

Test(placement, policies_do_what_they_are_named_for)
{
    static fleet f;
    static const spec specs[] = { { P, .ahead = 9000, .hit = 60 },
                                  { P, .ahead = 10 },
                                  { P, .ahead = 300, .hit = 40, .tier = 90 },
                                  { D, .decodes = 6, .hit = 9 },
                                  { D, .decodes = 1 } };
    set_up(&f, specs, 5);
    fg_place_options options = fg_place_defaults();
    options.split = FG_PLACE_ALWAYS;
    fg_place_request request = ask(&f, 2000, 64);
    fg_place_choice choice;
    options.policy = FG_PLACE_CACHE_ONLY;
    cr_assert_eq(fg_place_pick(&options, f.workers, 5, &request, &choice), FG_PLACE_OK);
    cr_assert(choice.prefill == 0 && choice.decode == 3);
    cr_assert(choice.hit_prefill == 60 && choice.hit_decode == 9);
    options.policy = FG_PLACE_LEAST_LOADED;
    cr_assert_eq(fg_place_pick(&options, f.workers, 5, &request, &choice), FG_PLACE_OK);
    cr_assert(choice.prefill == 1 && choice.decode == 4);
    options.policy = FG_PLACE_COST;
    cr_assert_eq(fg_place_pick(&options, f.workers, 5, &request, &choice), FG_PLACE_OK);
    cr_assert(choice.prefill == 2 && choice.decode == 4);
    options.policy = FG_PLACE_ROUND_ROBIN;
    for (uint32_t i = 0; i < 12; i++) {
        request.turn = i;
        cr_assert_eq(fg_place_pick(&options, f.workers, 5, &request, &choice), FG_PLACE_OK);
        cr_assert(choice.prefill == i % 3 && choice.decode == 3 + i % 2);
    }
    options.policy = FG_PLACE_TWO_CHOICES;
    fg_rng rng = { 3 };
    uint32_t got[5] = { 0 };
    for (uint32_t i = 0; i < 300; i++) {
        request.dice = fg_rng_next(&rng);
        cr_assert_eq(fg_place_pick(&options, f.workers, 5, &request, &choice), FG_PLACE_OK);
        got[choice.prefill]++;
        got[choice.decode]++;
    }
    /* Of three, the busiest loses to either other one, the idlest wins two draws of three. */
    cr_assert(got[0] == 0 && got[1] > 150 && got[2] > 60 && got[3] == 0 && got[4] == 300,
              "%u %u %u, %u %u", got[0], got[1], got[2], got[3], got[4]);
}

/* One claims to be a thousand times faster than it is, and reports as if it were: its share falls to
 * what its real speed is worth. */
Test(placement, a_lying_worker_does_not_attract_for_ever)
{
    static fleet f;
    set_up(&f, (spec[]){ { P }, { P, .slower = 0.001, .unproven = true }, { P }, { D } }, 4);
    fg_place_options options = fg_place_defaults();
    options.split = FG_PLACE_ALWAYS;
    fg_place_request request = ask(&f, 1000, 32);
    fg_speed honest = f.speeds[0];
    uint32_t late = 0;
    for (int i = 0; i < 600; i++) {
        fg_place_choice choice;
        cr_assert_eq(fg_place_pick(&options, f.workers, f.count, &request, &choice), FG_PLACE_OK);
        fg_place_worker *w = &f.workers[choice.prefill];
        bool lies = choice.prefill == 1;
        w->placed++;
        uint64_t real = (uint64_t)fg_speed_prefill_ns(&honest, 0, 1000) * (lies ? 5 : 1);
        fg_speed_first first = { .tokens = 1000,
                                 .compute_ns = lies ? real / 1000 : real,
                                 .seen_ns = real,
                                 .predicted_ns = choice.ttft_ns };
        fg_speed_learn_first(&f.speeds[choice.prefill], &first);
        late += lies && i >= 100;
    }
    cr_assert(late < 25, "%u of 500 go to the liar", late);
}

Test(placement, tells_what_it_expects)
{
    static fleet f;
    set_up(&f, (spec[]){ { P, .hit = 50, .ahead = 1000 }, { D, .decodes = 3, .hit = 20 } }, 2);
    fg_place_options options = fg_place_defaults();
    options.split = FG_PLACE_ALWAYS;
    fg_place_request request = ask(&f, 1600, 100);
    fg_place_choice c;
    cr_assert_eq(fg_place_pick(&options, f.workers, 2, &request, &c), FG_PLACE_OK);
    cr_assert(c.kind == FG_PLACE_SPLIT && c.hit_prefill == 50 && c.hit_decode == 20);
    double prefill = fg_speed_prefill_ns(&f.speeds[0], 800, 800);
    cr_assert(fabs(c.why.queue - 1e8) < 1 && fabs(c.why.prefill - prefill) < 1);
    cr_assert(c.why.restore == 0 && c.why.wait == 0 && c.why.exposed > 0 && c.why.others > 0);
    cr_assert(fabs((double)c.ttft_ns - 1e8 - prefill) < 10);
    double step = fg_speed_step_ns(&f.speeds[1], 4, 1600);
    cr_assert(fabs((double)c.itl_ns - step) < 10, "%g %g", (double)c.itl_ns, step);
    f.workers[0].queue_ns = 5e7; /* predicted by the caller: better than a count of tokens */
    cr_assert_eq(fg_place_pick(&options, f.workers, 2, &request, &c), FG_PLACE_OK);
    cr_assert(fabs(c.why.queue - 5e7) < 1);
}

Test(placement, corrects_by_what_was_seen_before)
{
    static fleet f;
    set_up(&f, (spec[]){ { P }, { P, .placed = 9 }, { D } }, 3);
    fg_place_options options = fg_place_defaults();
    options.split = FG_PLACE_ALWAYS;
    fg_place_request request = ask(&f, 2000, 64);
    fg_place_choice before, after;
    cr_assert_eq(fg_place_pick(&options, f.workers, 3, &request, &before), FG_PLACE_OK);
    f.speeds[0].correction = 2;
    cr_assert_eq(fg_place_pick(&options, f.workers, 3, &request, &after), FG_PLACE_OK);
    cr_assert(before.prefill == 0 && after.prefill == 1);
    cr_assert_eq(before.ttft_ns, after.ttft_ns);
    fg_place_predict(&options, f.workers, 3, &request, &before);
    cr_assert(fabs((double)before.ttft_ns - 2 * (double)after.ttft_ns) < 10);
}

Test(placement, the_host_tier_costs_its_copies)
{
    static fleet f;
    set_up(&f, (spec[]){ { B, .hit = 10, .tier = 90 } }, 1);
    fg_place_options options = fg_place_defaults();
    fg_place_request request = ask(&f, 2000, 64);
    fg_place_choice c;
    cr_assert_eq(fg_place_pick(&options, f.workers, 1, &request, &c), FG_PLACE_OK);
    cr_assert(fabs(c.why.restore - 90 * f.speeds[0].restore_ns_per_block) < 1);
    cr_assert(fabs(c.why.prefill - fg_speed_prefill_ns(&f.speeds[0], 1600, 400)) < 1);
    cr_assert_eq(c.hit_prefill, 10u);
    f.speeds[0].restore_ns_per_block = 1e9; /* then computing is quicker */
    cr_assert_eq(fg_place_pick(&options, f.workers, 1, &request, &c), FG_PLACE_OK);
    cr_assert(c.why.restore == 0);
    cr_assert(fabs(c.why.prefill - fg_speed_prefill_ns(&f.speeds[0], 160, 1840)) < 1);
}

Test(placement, an_answer_shares_a_prefill_worker_with_the_prompts_that_will_come)
{
    static const struct {
        const char *name;
        uint32_t roles;
        double share, stretch;
    } cases[] = { { "not known", P, 0, 2 },          { "hardly any", P, 0.2, 1.25 },
                  { "nothing else", P, 1, 10 },      { "more than all", P, 7, 10 },
                  { "nonsense", P, -3, 2 },          { "meant for both", B, 0.5, 1 },
                  { "meant for answers", D, 0.5, 1 } };
    static fleet f;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        set_up(&f, (spec[]){ { cases[i].roles } }, 1);
        f.workers[0].prompt_share = cases[i].share;
        fg_place_options options = fg_place_defaults();
        options.split = FG_PLACE_UNSPLIT;
        fg_place_request request = ask(&f, 100, 50);
        fg_place_choice c;
        cr_assert_eq(fg_place_pick(&options, f.workers, 1, &request, &c), FG_PLACE_OK);
        double want = cases[i].stretch * 50 * fg_speed_step_ns(&f.speeds[0], 1, 100);
        cr_assert(fabs(c.why.answer - want) < 1e-6 * want, "%s: %g", cases[i].name, c.why.answer);
    }
}

Test(placement, does_without_hits_and_speeds)
{
    static fleet f;
    set_up(&f, (spec[]){ { P }, { D }, { B } }, 3);
    for (int i = 0; i < 3; i++) {
        f.workers[i].speed = NULL;
    }
    for (int k = 0; k < POLICIES; k++) {
        fg_place_options options = fg_place_defaults();
        options.policy = policies[k];
        fg_place_request request = { .prompt_tokens = 100, .total_tokens = 120 };
        fg_place_choice choice;
        cr_assert_eq(fg_place_pick(&options, f.workers, 3, &request, &choice), FG_PLACE_OK);
        cr_assert(choice.ttft_ns > 0 && choice.itl_ns > 0 && choice.hit_prefill == 0);
    }
}
