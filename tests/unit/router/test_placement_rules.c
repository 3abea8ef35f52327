/* What holds for placement whatever the fleet: seeded, and compared with the rules written out again. */
#include "router/placement.h"

#include <math.h>
#include <string.h>

#include "common/base/rng.h"
#include "tests/support/test.h"
#include "tests/unit/router/placement_fleet.h"

enum { SEEDS = 400, FEW = 10 };

static void draw_fleet(fleet *f, fg_rng *rng, uint32_t count)
{
    memset(f, 0, sizeof *f);
    for (uint32_t i = 0; i < count; i++) {
        spec s = { .roles = (uint32_t)fg_rng_below(rng, 4),
                   .lacks = fg_rng_below(rng, 4) == 0 ? (uint32_t)fg_rng_below(rng, 4) : 0,
                   .decodes = (uint32_t)fg_rng_below(rng, 10),
                   .prefills = (uint32_t)fg_rng_below(rng, 10),
                   .ahead = (uint32_t)fg_rng_below(rng, 6000),
                   .used = (uint32_t)fg_rng_below(rng, 1010),
                   .hit = (uint32_t)fg_rng_below(rng, 60),
                   .tier = (uint32_t)fg_rng_below(rng, 60),
                   .placed = (uint32_t)fg_rng_below(rng, 4),
                   .blocks = fg_rng_below(rng, 5) == 0 ? 100 : 0,
                   .slower = 0.5 + (double)fg_rng_below(rng, 400) / 100,
                   .full = fg_rng_below(rng, 10) == 0,
                   .unproven = fg_rng_below(rng, 5) == 0 };
        add(f, &s);
    }
}

static fg_place_request draw_request(const fleet *f, fg_rng *rng)
{
    fg_place_request r =
        ask(f, 1 + (uint32_t)fg_rng_below(rng, 3000), 1 + (uint32_t)fg_rng_below(rng, 300));
    r.session = (uint32_t)fg_rng_below(rng, f->count + 1);
    r.heat = (double)fg_rng_below(rng, 3);
    r.turn = fg_rng_next(rng);
    r.dice = fg_rng_next(rng);
    return r;
}

/* The rules again, written out for one way: what placement.c must agree with. */
static bool holds(const fg_place_worker *w, const fg_place_request *r)
{
    return r->total_tokens <= w->context_max && (r->total_tokens + 15) / 16 <= w->block_count;
}

static bool fits(const fg_place_worker *w, const fg_place_request *r)
{
    uint32_t prompt = (r->prompt_tokens + 15) / 16 + 1, all = (r->total_tokens + 15) / 16;
    return !w->full && w->decodes < w->max_seqs &&
           w->blocks_used + (prompt < all ? prompt : all) <= w->block_count;
}

static bool pair_is_legal(const fleet *f, const fg_place_options *o, const fg_place_request *r,
                          uint32_t prefill, uint32_t decode)
{
    const fg_place_worker *p = &f->workers[prefill], *d = &f->workers[decode];
    uint32_t line = p->roles == B ? 2 * p->max_seqs : p->max_seqs;
    return prefill != decode && o->split != FG_PLACE_UNSPLIT && (p->roles & P) && (d->roles & D) &&
           (p->can & FG_PLACE_CAN_LINK) && (d->can & FG_PLACE_CAN_LINK) &&
           !(o->split == FG_PLACE_ALWAYS && p->roles == B && d->roles == B) && holds(p, r) &&
           holds(d, r) && p->prefills < line && fits(d, r);
}

static bool whole_is_legal(const fleet *f, const fg_place_options *o, const fg_place_request *r,
                           uint32_t worker)
{
    const fg_place_worker *w = &f->workers[worker];
    bool somebody_decodes = false;
    for (uint32_t i = 0; i < f->count; i++) {
        somebody_decodes = somebody_decodes || (f->workers[i].roles & D);
    }
    bool meant = o->split == FG_PLACE_ALWAYS ? w->roles == B
                 : o->split == FG_PLACE_AUTO ? w->roles != 0 && somebody_decodes
                                             : w->roles != 0;
    bool line = w->roles == B || o->split == FG_PLACE_UNSPLIT;
    return meant && (w->can & FG_PLACE_CAN_WHOLE) && holds(w, r) && !w->full &&
           (line ? w->decodes < 2 * w->max_seqs && w->prefills < 2 * w->max_seqs
                 : w->prefills < w->max_seqs && fits(w, r));
}

static bool way_is_legal(const fleet *f, const fg_place_options *o, const fg_place_request *r,
                         uint32_t prefill, uint32_t decode)
{
    return prefill == decode ? whole_is_legal(f, o, r, prefill)
                             : pair_is_legal(f, o, r, prefill, decode);
}

static double cost_of(const fleet *f, const fg_place_options *o, const fg_place_request *r,
                      uint32_t prefill, uint32_t decode)
{
    fg_place_choice way = { .prefill = prefill,
                            .decode = decode,
                            .kind = prefill == decode ? FG_PLACE_WHOLE : FG_PLACE_SPLIT };
    fg_place_predict(o, f->workers, f->count, r, &way);
    return way.why.cost;
}

Test(placement, only_legal_ways_are_chosen_and_some_is_when_there_is_one)
{
    static fleet f;
    uint32_t oks = 0, waits = 0;
    for (uint64_t seed = 1; seed <= SEEDS * POLICIES * 3; seed++) {
        fg_rng rng = { seed };
        draw_fleet(&f, &rng, 1 + (uint32_t)fg_rng_below(&rng, FEW));
        fg_place_request request = draw_request(&f, &rng);
        fg_place_options options = fg_place_defaults();
        options.policy = policies[seed % POLICIES];
        options.split = (fg_place_split)(seed / POLICIES % 3);
        bool any = false;
        for (uint32_t i = 0; i < f.count * f.count; i++) {
            any = any || way_is_legal(&f, &options, &request, i / f.count, i % f.count);
        }
        fg_place_choice choice = { .prefill = 0 };
        fg_place_verdict got = fg_place_pick(&options, f.workers, f.count, &request, &choice);
        cr_assert_eq(got == FG_PLACE_OK, any, "seed %llu, %s: verdict %d", (unsigned long long)seed,
                     fg_place_policy_name(options.policy), (int)got);
        cr_assert(!any || way_is_legal(&f, &options, &request, choice.prefill, choice.decode),
                  "seed %llu, %s: %u, %u", (unsigned long long)seed,
                  fg_place_policy_name(options.policy), choice.prefill, choice.decode);
        oks += any;
        waits += got == FG_PLACE_WAIT;
    }
    cr_assert(oks > 1000 && waits > 200, "%u placed, %u wait: the seeds show nothing", oks, waits);
}

/* Pairs are formed from a few prefill sides only; what that may lose is a share of the hand-over. */
Test(placement, nothing_that_was_allowed_is_predicted_to_be_better)
{
    static fleet f;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        fg_rng rng = { seed };
        draw_fleet(&f, &rng, 1 + (uint32_t)fg_rng_below(&rng, 40));
        fg_place_request request = draw_request(&f, &rng);
        fg_place_options options = fg_place_defaults();
        options.split = (fg_place_split)(seed % 3);
        fg_place_choice choice;
        if (fg_place_pick(&options, f.workers, f.count, &request, &choice) != FG_PLACE_OK) {
            continue;
        }
        double best = INFINITY;
        for (uint32_t i = 0; i < f.count * f.count; i++) {
            if (way_is_legal(&f, &options, &request, i / f.count, i % f.count)) {
                best = fmin(best, cost_of(&f, &options, &request, i / f.count, i % f.count));
            }
        }
        cr_assert(choice.why.cost <= best + 1e-6 * fabs(best) + 5e6, "seed %llu: %g, best %g",
                  (unsigned long long)seed, choice.why.cost, best);
    }
}

/* Neither a longer line, nor more sequences, nor a busier pool brings a worker a request. */
Test(placement, more_work_never_attracts)
{
    static fleet f;
    for (uint64_t seed = 1; seed <= SEEDS * 3; seed++) {
        fg_rng rng = { seed };
        draw_fleet(&f, &rng, 2 + (uint32_t)fg_rng_below(&rng, FEW));
        fg_place_request request = draw_request(&f, &rng);
        fg_place_options options = fg_place_defaults();
        options.split = (fg_place_split)(seed % 3);
        fg_place_choice before = { .prefill = 999, .decode = 999 }, after = before;
        if (fg_place_pick(&options, f.workers, f.count, &request, &before) != FG_PLACE_OK) {
            continue;
        }
        uint32_t other = (uint32_t)fg_rng_below(&rng, f.count);
        if (other == before.prefill || other == before.decode) {
            continue;
        }
        fg_place_worker *w = &f.workers[other];
        w->prefill_tokens += fg_rng_below(&rng, 5000);
        w->prefills += (uint32_t)fg_rng_below(&rng, 3);
        w->decodes += (uint32_t)fg_rng_below(&rng, 3);
        w->blocks_used += (uint32_t)fg_rng_below(&rng, 100);
        w->kv_tokens += fg_rng_below(&rng, 10000);
        cr_assert_eq(fg_place_pick(&options, f.workers, f.count, &request, &after), FG_PLACE_OK);
        cr_assert(after.prefill != other && after.decode != other, "seed %llu: %u gets it",
                  (unsigned long long)seed, other);
    }
}

Test(placement, a_line_costs_its_own_worker)
{
    static fleet f;
    set_up(&f, (spec[]){ W(P), W(D, .decodes = 3) }, 2);
    fg_place_options options = fg_place_defaults();
    fg_place_request request = ask(&f, 1000, 64);
    double last = 0;
    for (uint32_t i = 0; i < 7; i++) {
        f.workers[0].prefills = i;
        f.workers[0].prefill_tokens = 1000ull * i;
        double cost = cost_of(&f, &options, &request, 0, 1);
        cr_assert(cost > last, "%u prompts ahead", i);
        last = cost;
    }
    /* Each that waits adds to it, whatever they take together. */
    f.workers[0].queue_ns = 1e6;
    for (uint32_t i = 0; i < 7; i++) {
        f.workers[0].prefills = i;
        double cost = cost_of(&f, &options, &request, 0, 1);
        cr_assert(i == 0 || cost > last, "%u prompts in line", i);
        last = cost;
    }
}

Test(placement, a_second_copy_of_a_shared_prefix_costs_its_room)
{
    static fleet f;
    set_up(&f, (spec[]){ W(P, .hit = 120), W(D), W(D, .hit = 120) }, 3);
    fg_place_options options = fg_place_defaults();
    fg_place_request request = ask(&f, 2000, 64);
    double there = cost_of(&f, &options, &request, 0, 1);
    double here = cost_of(&f, &options, &request, 0, 2);
    cr_assert(there - here > 120 * 16 * 1e5 * options.affinity, "%g, %g", there, here);
    request.heat = 9;
    cr_assert(cost_of(&f, &options, &request, 0, 1) < there - 120 * 16 * 1e5 * 0.8);
}

/* The same workers in another order: the same two, or two that cost the same. */
Test(placement, order_does_not_matter)
{
    static fleet f, g;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        fg_rng rng = { seed };
        draw_fleet(&f, &rng, 2 + (uint32_t)fg_rng_below(&rng, FEW));
        fg_place_request request = draw_request(&f, &rng);
        fg_place_options options = fg_place_defaults();
        options.split = (fg_place_split)(seed % 3);
        request.session = 0;
        g.count = f.count;
        for (uint32_t i = 0; i < f.count; i++) {
            g.workers[i] = f.workers[f.count - 1 - i];
            g.hits[i] = f.hits[f.count - 1 - i];
        }
        fg_place_choice a, again, b;
        fg_place_verdict first = fg_place_pick(&options, f.workers, f.count, &request, &a);
        cr_assert_eq(fg_place_pick(&options, f.workers, f.count, &request, &again), first);
        request.hits = g.hits;
        cr_assert_eq(fg_place_pick(&options, g.workers, g.count, &request, &b), first);
        if (first == FG_PLACE_OK) {
            cr_assert(a.prefill == again.prefill && a.decode == again.decode);
            cr_assert(fabs(a.why.cost - b.why.cost) <= 1e-6 * fabs(a.why.cost) + 5e6,
                      "seed %llu: %g, %g", (unsigned long long)seed, a.why.cost, b.why.cost);
        }
    }
}

Test(placement, the_many_are_placed_as_the_few)
{
    static fleet f;
    fg_rng rng = { 17 };
    draw_fleet(&f, &rng, WORKERS_MAX);
    uint32_t kinds[2] = { 0, 0 };
    for (int i = 0; i < 200; i++) {
        fg_place_request request = draw_request(&f, &rng);
        fg_place_options options = fg_place_defaults();
        fg_place_choice choice;
        cr_assert_eq(fg_place_pick(&options, f.workers, f.count, &request, &choice), FG_PLACE_OK);
        cr_assert(way_is_legal(&f, &options, &request, choice.prefill, choice.decode));
        kinds[choice.kind]++;
    }
    cr_assert(kinds[0] + kinds[1] == 200);
}

/* Those who wait in the router wait for a prefill worker that is busy; nobody waits for a free one. */
Test(placement_rules, who_waits_in_the_router_counts_where_there_is_a_line)
{
    static const struct {
        const char *name;
        double queue_ns;
        uint32_t waiting;
        fg_place_kind want;
    } cases[] = { { "a short line", 50e6, 0, FG_PLACE_SPLIT },
                  { "a short line, and a long one behind it", 50e6, 200, FG_PLACE_WHOLE },
                  { "no line", 0, 200, FG_PLACE_SPLIT } };
    fg_speed_claim claim = { .prefill_ns_base = 3e6,
                             .prefill_ns_per_token = 40000,
                             .prefill_ns_per_kv = 1.7,
                             .step_ns_base = 6.7e6,
                             .step_ns_per_row = 20000,
                             .push_ns_per_block = 1e5 };
    fg_speed speed;
    fg_speed_init(&speed, &claim);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fg_place_worker p = { .roles = FG_ROLE_PREFILL,
                              .can = FG_PLACE_CAN_WHOLE | FG_PLACE_CAN_LINK,
                              .block_count = 10000,
                              .block_size = 16,
                              .context_max = 100000,
                              .max_seqs = 64,
                              .prefills = cases[i].queue_ns > 0,
                              .queue_ns = cases[i].queue_ns,
                              .speed = &speed };
        fg_place_worker d = p;
        d.roles = FG_ROLE_DECODE;
        d.prefills = 0;
        d.queue_ns = 0;
        d.decodes = 40;
        fg_place_worker workers[2] = { p, d };
        fg_place_request request = { .prompt_tokens = 512,
                                     .total_tokens = 768,
                                     .answer_tokens = 256,
                                     .waiting = cases[i].waiting };
        fg_place_options options = fg_place_defaults();
        fg_place_choice choice;
        cr_assert_eq(fg_place_pick(&options, workers, 2, &request, &choice), FG_PLACE_OK);
        cr_assert_eq(choice.kind, cases[i].want, "%s", cases[i].name);
    }
}

/* ---- from worker to worker ---- */

/* Of a pair, worker 0 computes. A block is 16 tokens: 1.6 ms to compute, 0.2 ms to send. */
static const struct {
    const char *name;
    spec specs[CASE_WORKERS];
    uint32_t prompt;
    double margin;
    uint32_t from, blocks;
} pulls[] = {
    { "the decode worker has the answer", { W(P, .hit = 10), W(D, .hit = 30) }, 1000, 1.5, 1, 30 },
    { "off", { W(P, .hit = 10), W(D, .hit = 30) }, 1000, 0, 0, 0 },
    { "nobody has more", { W(P, .hit = 30), W(D, .hit = 30) }, 1000, 1.5, 0, 0 },
    { "nobody has anything", { W(P), W(D) }, 1000, 1.5, 0, 0 },
    { "the one with the most",
      { W(P), W(D, .hit = 20), W(P, .hit = 25), W(D, .hit = 3) },
      1000,
      1.5,
      2,
      25 },
    { "one block is computed sooner", { W(P, .hit = 29), W(D, .hit = 30) }, 1000, 1.5, 0, 0 },
    { "not as much quicker as it should be",
      { W(P, .hit = 10), W(D, .hit = 30) },
      1000,
      100,
      0,
      0 },
    { "a sender whose steps are slow",
      { W(P, .hit = 10), W(D, .hit = 30, .decodes = 8, .slower = 20) },
      1000,
      1.5,
      0,
      0 },
    { "its own tier is enough", { W(P, .hit = 10, .tier = 20), W(D, .hit = 30) }, 1000, 1.5, 0, 0 },
    { "a sender without a link", { W(P), W(D, .hit = 30, .lacks = NO_LINK) }, 1000, 1.5, 0, 0 },
    { "a receiver without a link", { W(P, .lacks = NO_LINK), W(D, .hit = 30) }, 1000, 1.5, 0, 0 },
    { "a sender that drains", { W(P), { .placed = 1, .hit = 30 } }, 1000, 1.5, 0, 0 },
    { "the last token is computed", { W(P), W(D, .hit = 30) }, 480, 1.5, 1, 29 },
};

Test(placement_rules, missing_blocks_come_from_who_has_them_where_that_is_quicker)
{
    for (size_t i = 0; i < sizeof pulls / sizeof *pulls; i++) {
        fleet f;
        set_up(&f, pulls[i].specs, CASE_WORKERS);
        fg_place_options options = fg_place_defaults();
        options.pull = pulls[i].margin;
        fg_place_request request = ask(&f, pulls[i].prompt, 10);
        fg_place_choice choice = { .prefill = 0, .decode = 1, .pull_blocks = 77 };
        fg_place_pull(&options, f.workers, f.count, &request, &choice);
        cr_assert_eq(choice.pull_blocks, pulls[i].blocks, "%s: %u blocks", pulls[i].name,
                     choice.pull_blocks);
        cr_assert_eq(choice.pull_from, pulls[i].from, "%s: from %u", pulls[i].name,
                     choice.pull_from);
        cr_assert_eq(choice.pull_ns > 0, pulls[i].blocks > 0);
    }
}
