#include "router/placement.h"

#include <math.h>
#include <string.h>

#include "common/base/rng.h"
#include "proto/wire.h"
#include "tests/support/test.h"

enum { P = FG_ROLE_PREFILL, D = FG_ROLE_DECODE, B = FG_ROLE_PREFILL | FG_ROLE_DECODE };
enum { NO_LINK = 1, NO_WHOLE = 2 };
enum { WORKERS_MAX = 256, CASE_WORKERS = 5 };

/* One worker of a case, in the few things that matter to it; what is left out is idle, able to do
 * everything, and has 1000 blocks of 16 and a batch of 8. */
typedef struct spec {
    uint32_t roles, lacks;
    uint32_t decodes, prefills, ahead; /* ahead: prompt tokens */
    uint32_t used, hit, tier;          /* blocks; tier: beyond the device's */
    uint32_t placed, blocks, context;
    double slower; /* than a token in 0.1 ms, a row in 0.5 ms, a block in 0.2 ms; 0: as fast */
    bool full, unproven;
    uint32_t no_room; /* 1: a batch of 0 */
} spec;

typedef struct fleet {
    fg_place_worker workers[WORKERS_MAX];
    fg_speed speeds[WORKERS_MAX];
    fg_place_hit hits[WORKERS_MAX];
    uint32_t count;
} fleet;

static void add(fleet *f, const spec *s)
{
    uint32_t i = f->count++;
    double slower = s->slower > 0 ? s->slower : 1;
    fg_speed_claim claim = { 5e6 * slower,  1e5 * slower, 5 * slower,
                             10e6 * slower, 5e5 * slower, 2e5 };
    fg_speed_init(&f->speeds[i], &claim);
    f->speeds[i].prefills = s->unproven ? 0 : 100;
    f->workers[i] = (fg_place_worker){
        .roles = s->roles,
        .can = (s->lacks & NO_LINK ? 0 : FG_PLACE_CAN_LINK) |
               (s->lacks & NO_WHOLE ? 0 : FG_PLACE_CAN_WHOLE),
        .block_count = s->blocks > 0 ? s->blocks : 1000,
        .block_size = 16,
        .context_max = s->context > 0 ? s->context : 16000,
        .max_seqs = s->no_room ? 0 : 8,
        .prefills = s->prefills > 0 ? s->prefills : s->ahead > 0,
        .decodes = s->decodes,
        .prefill_tokens = s->ahead,
        .placed = s->placed,
        .blocks_used = s->used,
        .full = s->full,
        .speed = &f->speeds[i],
    };
    f->hits[i] = (fg_place_hit){ s->hit, s->hit + s->tier };
}

static void set_up(fleet *f, const spec *specs, uint32_t count)
{
    memset(f, 0, sizeof *f);
    for (uint32_t i = 0; i < count && specs[i].roles + specs[i].placed > 0; i++) {
        add(f, &specs[i]);
    }
}

static fg_place_request ask(const fleet *f, uint32_t prompt, uint32_t answer)
{
    return (fg_place_request){ .prompt_tokens = prompt,
                               .total_tokens = prompt + answer,
                               .answer_tokens = answer,
                               .hits = f->hits };
}

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

static const fg_place_policy policies[] = { FG_PLACE_COST, FG_PLACE_CACHE_ONLY,
                                            FG_PLACE_LEAST_LOADED, FG_PLACE_ROUND_ROBIN,
                                            FG_PLACE_TWO_CHOICES };
enum { POLICIES = sizeof policies / sizeof *policies };

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

/* ---- properties, from seeds ---- */

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
    set_up(&f, (spec[]){ { P }, { D, .decodes = 3 } }, 2);
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
