/*
 * Random snapshots, and what must hold of every plan for them (plan_check.h): no item of nobody, nobody
 * twice, budgets kept, blocks given out only once, the victims that a slow second opinion chooses, nobody
 * admitted beside a preemption, the line in order, chunks within the step target, a step that does
 * nothing only when nothing can be done; equal snapshots give equal plans.
 *
 * Planted one at a time, each was found here, by the table or story named for it too where there is one:
 *  1 reserved blocks not subtracted before admission        2 a block asked for one block too late
 *  3 a promise not counted as room                          4 a fixed sequence preempted
 *  5 ties to the earlier arrival                            6 the victim with the most output
 *  7 a victim that asked keeps its need                     8 a victim's blocks not counted
 *  9 the last one evicts itself                            10 last-admitted evicts the only one that asks
 * 11 a victim still gets its token                         12 admission beside a preemption
 * 13 heap order broken: children not compared, or not      14 the latest arrivals get the last blocks
 *    restored after a pop
 * 15 one block too many shared out                         16 at capacity though blocks are elsewhere
 * 17 at capacity, or a preemption, in a step under way     18 never at capacity
 * 19 tier room not used up by victims                      20 admitted blocks not subtracted
 * 21 watermark waived for all, or kept for one alone       22 nothing kept for those that ask next
 * 23 no-evict counts what is needed now                    24 a misfit stops nobody
 * 25 passes not counted down                               26 a deferred one stops the line
 * 27 places of hand-overs forgotten                        28 admitted without a token
 * 29 fresh chunks before half-prefilled ones               30 the budget not counted down
 * 31 a token chosen in the middle of a prompt              32 a chunk beyond its blocks
 * 33 each chunk gets the whole step target                 34 the depth of a chunk forgotten
 * 35 the step target kept in prefill-first too             36 stopped ones run
 * 37 guesses of tokens that are not said                   38 guesses beside a preemption
 * 39 a guess's block taken from the admitted               40 guesses beyond the chunk
 * 41 guesses whatever they cost                            42 nobody waits for guesses
 */
#include "common/sched/sched.h"

#include <string.h>

#include "common/base/rng.h"
#include "tests/support/seed.h"
#include "tests/support/test.h"
#include "tests/unit/common/sched/plan_check.h"

enum { SEQS = 24, WAITS = 24 };

typedef struct snapshot {
    fg_sched_limits limits;
    fg_cost cost;
    fg_sched_seq seqs[SEQS];
    fg_sched_wait waits[WAITS];
    fg_sched_input in;
} snapshot;

static uint32_t draw(fg_rng *rng, uint32_t bound)
{
    return (uint32_t)fg_rng_below(rng, bound);
}

static bool one_in(fg_rng *rng, uint32_t n)
{
    return draw(rng, n) == 0;
}

static void draw_limits(fg_rng *rng, fg_sched_limits *limits)
{
    *limits = (fg_sched_limits){ .seqs_max = 1 + draw(rng, SEQS),
                                 .chunk_tokens_max = 1 + draw(rng, one_in(rng, 2) ? 8 : 600),
                                 .block_size = 1u << draw(rng, 6),
                                 .order = (fg_sched_order)draw(rng, 2),
                                 .victim = (fg_sched_victim)draw(rng, 3),
                                 .preemption = (fg_sched_preemption)draw(rng, 3),
                                 .admission = (fg_sched_admission)one_in(rng, 4),
                                 .last_chunk = (fg_sched_last_chunk)draw(rng, 3),
                                 .watermark_blocks = draw(rng, 4),
                                 .draft = (fg_sched_draft)draw(rng, 3),
                                 .draft_max = one_in(rng, 3) ? 0 : 1 + draw(rng, FG_LOOKAHEAD_MAX),
                                 .skip_max = draw(rng, 3) };
    limits->step_tokens_max = limits->seqs_max + draw(rng, one_in(rng, 2) ? 4 : 1000);
    limits->step_target_ns = one_in(rng, 3) ? 1 + draw(rng, 20000000) : 0;
}

static void draw_seq(fg_rng *rng, const fg_sched_limits *limits, fg_sched_seq *seq,
                     uint32_t arrival)
{
    *seq = (fg_sched_seq){ .arrival = arrival,
                           .tokens_left = 1,
                           .decoding = !one_in(rng, 3),
                           .fixed = one_in(rng, 4),
                           .stopped = one_in(rng, 6),
                           .leaves = one_in(rng, 3),
                           .blocks = 1 + draw(rng, 6),
                           .promised = one_in(rng, 3) ? draw(rng, 3) : 0,
                           .output_tokens = draw(rng, 5),
                           .redo_tokens = draw(rng, 50) };
    seq->slots_used = seq->blocks * limits->block_size;
    if (one_in(rng, 2)) {
        seq->slots_used -= draw(rng, limits->block_size);
    }
    if (!seq->decoding) {
        seq->tokens_left = 1 + draw(rng, 300);
        uint32_t missing = seq->tokens_left / limits->block_size + 1;
        seq->promised = one_in(rng, 8) ? seq->promised : missing;
    } else if (one_in(rng, 10)) {
        seq->tokens_left = 0;
    }
    uint32_t odds = FG_ODDS_ONE;
    seq->unsaid = seq->decoding && one_in(rng, 4);
    seq->drafts = seq->decoding && limits->draft_max > 0 ? draw(rng, limits->draft_max + 1) : 0;
    for (uint32_t i = 0; i < seq->drafts; i++) {
        odds = odds * (300 + draw(rng, 724)) / FG_ODDS_ONE;
        seq->odds[i] = (uint16_t)odds;
    }
    seq->frees = one_in(rng, 8) ? 0 : draw(rng, seq->blocks + seq->promised + 1);
}

static void draw_snapshot(fg_rng *rng, snapshot *s)
{
    draw_limits(rng, &s->limits);
    fg_cost_init(&s->cost, 1 << 16);
    for (int i = 0; i < FG_COST_TERMS; i++) {
        s->cost.weights[i] = draw(rng, i == 3 ? 1000 : 1000000);
    }
    s->cost.steps = 100;
    memset(s->cost.covariance, 0, one_in(rng, 2) ? sizeof s->cost.covariance : 0);
    for (uint32_t i = 0; i < FG_COST_ROWS && one_in(rng, 2); i++) {
        s->cost.rows_step[i] = one_in(rng, 2) ? 50 : 0;
        s->cost.rows_ratio[i] = 0.5f + (float)draw(rng, 100) / 100;
    }
    s->in = (fg_sched_input){ .limits = &s->limits,
                              .cost = one_in(rng, 5) ? NULL : &s->cost,
                              .seqs = s->seqs,
                              .seq_count = draw(rng, one_in(rng, 4) ? 2 : s->limits.seqs_max + 1),
                              .waits = s->waits,
                              .wait_count = draw(rng, WAITS + 1),
                              .slots_reserved = one_in(rng, 4) ? draw(rng, 3) : 0,
                              .available = draw(rng, one_in(rng, 2) ? 4 : 60),
                              .tier_available = draw(rng, 12),
                              .elsewhere = one_in(rng, 2) ? draw(rng, 4) : 0,
                              .may_preempt = !one_in(rng, 4) };
    uint32_t first = draw(rng, 100);
    for (uint32_t i = 0; i < s->in.seq_count; i++) {
        /* Arrivals in no order, each once. */
        draw_seq(rng, &s->limits, &s->seqs[i], first + i);
        uint32_t other = draw(rng, i + 1);
        uint64_t arrival = s->seqs[i].arrival;
        s->seqs[i].arrival = s->seqs[other].arrival;
        s->seqs[other].arrival = arrival;
    }
    for (uint32_t i = 0; i < s->in.wait_count; i++) {
        fg_sched_wait *wait = &s->waits[i];
        *wait = (fg_sched_wait){ .tokens_left = 1 + draw(rng, one_in(rng, 2) ? 8 : 600),
                                 .need = draw(rng, one_in(rng, 3) ? 60 : 6),
                                 .leaves = one_in(rng, 3),
                                 .deferred = one_in(rng, 6) };
        wait->need_all = wait->need + draw(rng, 5);
        if (one_in(rng, 4)) {
            wait->tokens_left = 1;
            wait->decoding = one_in(rng, 2);
            wait->restores = !wait->decoding;
        }
    }
}

static void run_seed(uint64_t seed, uint32_t rounds)
{
    static snapshot s;
    fg_rng rng = { seed };
    for (uint32_t i = 0; i < rounds; i++) {
        fg_plan_item items[2][SEQS];
        fg_plan_victim victims[2][SEQS];
        uint32_t admits[2][SEQS];
        fg_sched_plan plans[2];
        draw_snapshot(&rng, &s);
        for (int k = 0; k < 2; k++) {
            memset(&plans[k], 0xAB, sizeof plans[k]);
            memset(victims[k], k, sizeof victims[k]);
            plans[k].items = items[k];
            plans[k].victims = victims[k];
            plans[k].admits = admits[k];
            fg_sched_plan_step(&s.in, &plans[k]);
        }
        const char *wrong = check_plan(&s.in, &plans[0]);
        cr_assert(wrong == NULL, "seed %llu, round %u: %s", (unsigned long long)seed, i, wrong);
        bool equal = plans[0].item_count == plans[1].item_count &&
                     plans[0].victim_count == plans[1].victim_count &&
                     plans[0].admit_count == plans[1].admit_count &&
                     plans[0].at_capacity == plans[1].at_capacity &&
                     plans[0].short_of_blocks == plans[1].short_of_blocks &&
                     plans[0].kept_out == plans[1].kept_out &&
                     plans[0].drafts_wait == plans[1].drafts_wait;
        for (uint32_t k = 0; equal && k < plans[0].item_count; k++) {
            equal = items[0][k].seq == items[1][k].seq &&
                    items[0][k].token_count == items[1][k].token_count &&
                    items[0][k].draft_count == items[1][k].draft_count;
        }
        for (uint32_t k = 0; equal && k < plans[0].victim_count; k++) {
            equal =
                victims[0][k].seq == victims[1][k].seq && victims[0][k].swap == victims[1][k].swap;
        }
        cr_assert(equal, "seed %llu, round %u: two plans", (unsigned long long)seed, i);
    }
}

Test(sched_property, every_plan_keeps_the_rules)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        run_seed(seed, 10000);
    }
    uint64_t drawn = test_seed(__func__);
    run_seed(drawn, 100000);
}
