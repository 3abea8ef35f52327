/* Placement beyond the tables: what policies are named for, ties, lies, what it tells of a choice. */
#include "router/placement.h"

#include <math.h>

#include "common/base/rng.h"
#include "tests/support/test.h"
#include "tests/unit/router/placement_fleet.h"

Test(placement, equals_take_turns)
{
    static fleet f;
    for (int k = 0; k < 3; k++) { /* cost, cache only, least loaded */
        set_up(&f, (spec[]){ W(P), W(P), W(P), W(D), W(D) }, 5);
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
    static const spec specs[] = { W(P, .ahead = 9000, .hit = 60), W(P, .ahead = 10),
                                  W(P, .ahead = 300, .hit = 40, .tier = 90),
                                  W(D, .decodes = 6, .hit = 9), W(D, .decodes = 1) };
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
    set_up(&f, (spec[]){ W(P), W(P, .slower = 0.001, .unproven = true), W(P), W(D) }, 4);
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
    set_up(&f, (spec[]){ W(P, .hit = 50, .ahead = 1000), W(D, .decodes = 3, .hit = 20) }, 2);
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

/* All places of a worker that does both are taken, for 500 steps more: a short one waits no less for that. */
Test(placement, a_place_comes_free_when_its_holder_ends)
{
    static const struct {
        const char *name;
        uint32_t decodes, left, answer;
        double steps;
    } cases[] = {
        { "a place is free", 7, 500, 10, 0 },
        { "a short one", 8, 500, 10, 500 },
        { "a long one", 8, 500, 2000, 500 },
        { "holders that end soon", 8, 5, 2000, 5 },
        { "others in line before it", 12, 500, 10, 500 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static fleet f;
        fg_places places = { 0 };
        set_up(&f, (spec[]){ W(B, .decodes = cases[i].decodes) }, 1);
        for (uint32_t held = 0; held < cases[i].decodes; held++) {
            fg_places_take(&places, cases[i].left);
        }
        f.workers[0].places = &places;
        fg_place_options options = fg_place_defaults();
        fg_place_request request = ask(&f, 100, cases[i].answer);
        fg_place_choice c;
        cr_assert_eq(fg_place_pick(&options, f.workers, 1, &request, &c), FG_PLACE_OK);
        double wait = cases[i].steps * fg_speed_step_ns(&f.speeds[0], 8, 0);
        cr_assert(fabs(c.why.wait - wait) < 1, "%s: %g, not %g", cases[i].name, c.why.wait, wait);
    }
}

Test(placement, foretells_when_there_will_be_room)
{
    static const struct {
        const char *name;
        spec decode;
        uint32_t left, prompt, ahead;
        bool known;
        double steps;
    } cases[] = {
        { "no place is free", W(D, .decodes = 8), 300, 100, 0, true, 300 },
        { "three are before it", W(D, .decodes = 8), 300, 100, 3, true, 300 },
        { "a batch is before it", W(D, .decodes = 8), 300, 100, 8, true, 310 },
        { "no blocks are free", W(D, .decodes = 2, .used = 1000), 70, 100, 0, true, 70 },
        { "nobody has the blocks", W(D, .used = 1000), 0, 100, 0, false, 0 },
        { "it says that it is full", W(D, .decodes = 2, .full = true), 70, 100, 0, false, 0 },
        { "it has no places", W(D, .no_room = 1), 0, 100, 0, false, 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static fleet f;
        fg_places places = { 0 };
        set_up(&f, (spec[]){ W(P), cases[i].decode }, 2);
        for (uint32_t held = 0; held < cases[i].decode.decodes; held++) {
            fg_places_take(&places, cases[i].left);
        }
        f.workers[1].places = &places;
        fg_place_options options = fg_place_defaults();
        options.split = FG_PLACE_ALWAYS;
        fg_place_request request = ask(&f, cases[i].prompt, 10);
        fg_place_choice c;
        cr_assert_eq(fg_place_pick(&options, f.workers, 2, &request, &c), FG_PLACE_WAIT, "%s",
                     cases[i].name);
        cr_assert_eq(fg_place_foretell(&options, f.workers, 2, &request, cases[i].ahead, &c),
                     cases[i].known, "%s", cases[i].name);
        double wait = cases[i].steps * fg_speed_step_ns(&f.speeds[1], 8, 0);
        cr_assert(!cases[i].known || fabs(c.why.wait - wait) < 1, "%s: %g, not %g", cases[i].name,
                  c.why.wait, wait);
    }
}

Test(placement, corrects_by_what_was_seen_before)
{
    static fleet f;
    set_up(&f, (spec[]){ W(P), W(P, .placed = 9), W(D) }, 3);
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
    set_up(&f, (spec[]){ W(B, .hit = 10, .tier = 90) }, 1);
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
        set_up(&f, (spec[]){ W(cases[i].roles) }, 1);
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
    set_up(&f, (spec[]){ W(P), W(D), W(B) }, 3);
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
