/*
 * Who may wait, what Retry-After says, when a waiting one is hopeless and when a pair is asked.
 *
 * Bugs planted one at a time and seen red here: a Retry-After rounded down; the first reason's time instead
 * of the last one's; a tenant's drain not cut to its share; the line ahead left out of the predicted first
 * token; a prompt longer than its target told to wait; an unknown prediction taken for zero; prefill held
 * for a full decode worker; a hold without its bound.
 */
#include "router/admit.h"

#include <stdio.h>
#include <string.h>

#include "common/base/rng.h"
#include "tests/support/seed.h"
#include "tests/support/test.h"

#define MS 1000000ull
#define S  1000000000ull

static const fg_admit_limits limits = { .queued_max = 4,
                                        .queued_tokens_max = 1000,
                                        .live_max = 8,
                                        .tenant_queued_max = 3,
                                        .tenant_queued_tokens_max = 500 };

/* A request of 100 tokens that an empty cluster would start at once: 0.2 s to its first token, then 99
 * steps of 10 ms. */
#define EASY .prompt_tokens = 100, .output_tokens = 100, .prefill_ns = 200 * MS, .itl_ns = 10 * MS

static const struct {
    const char *name;
    fg_admit_request request;
    fg_admit_load load;
    fg_admit_reason reason;
    uint32_t retry_s;
    uint64_t ttft_ns;
} cases[] = {
    { "an empty cluster", { EASY }, { 0 }, FG_ADMIT_OK, 0, 200 * MS },
    { "the last place",
      { EASY },
      { .queued = 3,
        .queued_tokens = 900,
        .live = 7,
        .tenant_queued = 2,
        .tenant_queued_tokens = 400 },
      FG_ADMIT_OK,
      0,
      200 * MS },
    { "queue full, rate unknown", { EASY }, { .queued = 4 }, FG_ADMIT_QUEUE_FULL, 1, 200 * MS },
    { "queue full: one must end, at 0.5 a second",
      { EASY },
      { .queued = 4, .ended_per_second = 0.5 },
      FG_ADMIT_QUEUE_FULL,
      2,
      200 * MS },
    { "queue full: rounded up",
      { EASY },
      { .queued = 4, .ended_per_second = 0.3 },
      FG_ADMIT_QUEUE_FULL,
      4,
      200 * MS },
    { "beyond full, as those that came back are let in",
      { EASY },
      { .queued = 7, .ended_per_second = 1 },
      FG_ADMIT_QUEUE_FULL,
      4,
      200 * MS },
    { "nearly standing still",
      { EASY },
      { .queued = 4, .ended_per_second = 1e-9 },
      FG_ADMIT_QUEUE_FULL,
      60,
      200 * MS },
    { "too many live",
      { EASY },
      { .live = 8, .ended_per_second = 0.1 },
      FG_ADMIT_QUEUE_FULL,
      10,
      200 * MS },
    { "tokens full: 60 too many, at 20 a second",
      { EASY },
      { .queued = 1, .queued_tokens = 960, .prompt_tokens_per_second = 20 },
      FG_ADMIT_QUEUE_FULL,
      3,
      200 * MS },
    { "more tokens than the line ever takes: waiting does not help",
      { .prompt_tokens = 1001, .output_tokens = 1 },
      { .prompt_tokens_per_second = 1000 },
      FG_ADMIT_QUEUE_FULL,
      60,
      0 },
    { "its tenant has three in line, and a quarter of 1 a second",
      { EASY },
      { .queued = 3, .tenant_queued = 3, .ended_per_second = 1, .tenant_share = 0.25 },
      FG_ADMIT_TENANT_CAP,
      4,
      200 * MS },
    { "its tenant's tokens: 50 too many, at half of 10 a second",
      { EASY },
      { .tenant_queued_tokens = 450,
        .prompt_tokens_per_second = 10,
        .tenant_share = 0.5,
        .queued_tokens = 450 },
      FG_ADMIT_TENANT_CAP,
      10,
      200 * MS },
    { "a share that is nonsense counts as all of it",
      { EASY },
      { .tenant_queued = 3, .ended_per_second = 1, .tenant_share = 7 },
      FG_ADMIT_TENANT_CAP,
      1,
      200 * MS },
    { "two reasons: the first is named, the longer wait told",
      { EASY },
      { .queued = 4, .tenant_queued = 3, .ended_per_second = 1, .tenant_share = 0.1 },
      FG_ADMIT_QUEUE_FULL,
      10,
      200 * MS },
    { "first token just in time",
      { EASY, .start_ns = 800 * MS, .slo = { S, 0 } },
      { 0 },
      FG_ADMIT_OK,
      0,
      S },
    { "the workers are busy 2.5 s too long",
      { EASY, .start_ns = 3300 * MS, .slo = { S, 0 } },
      { 0 },
      FG_ADMIT_TTFT,
      3,
      3500 * MS },
    { "the line ahead takes 3 s, 2.2 too long",
      { EASY, .slo = { S, 0 } },
      { .tokens_ahead = 300, .prompt_tokens_per_second = 100 },
      FG_ADMIT_TTFT,
      3,
      3200 * MS },
    { "a line whose speed is not known refuses nobody",
      { EASY, .slo = { S, 0 } },
      { .tokens_ahead = 100000 },
      FG_ADMIT_OK,
      0,
      200 * MS },
    { "its own prefill is longer than the target: waiting does not help",
      { .prompt_tokens = 1, .output_tokens = 1, .prefill_ns = 2 * S, .slo = { S, 0 } },
      { 0 },
      FG_ADMIT_TTFT,
      60,
      2 * S },
    { "no prediction refuses nobody",
      { .prompt_tokens = 1,
        .output_tokens = 1000,
        .start_ns = FG_ADMIT_UNKNOWN,
        .prefill_ns = 9 * S,
        .itl_ns = FG_ADMIT_UNKNOWN,
        .slo = { 1, 1 },
        .deadline_ns = 1 },
      { 0 },
      FG_ADMIT_OK,
      0,
      FG_ADMIT_UNKNOWN },
    { "nor does a prefill time that is not known",
      { .prompt_tokens = 1, .prefill_ns = FG_ADMIT_UNKNOWN, .slo = { 1, 0 } },
      { 0 },
      FG_ADMIT_OK,
      0,
      FG_ADMIT_UNKNOWN },
    { "tokens come fast enough",
      { EASY, .slo = { 0, 10 * MS } },
      { .live = 7 },
      FG_ADMIT_OK,
      0,
      200 * MS },
    { "twice too slow: half of 6 must end, at 1 a second",
      { EASY, .slo = { 0, 5 * MS } },
      { .live = 6, .ended_per_second = 1 },
      FG_ADMIT_ITL,
      3,
      200 * MS },
    { "too slow with nobody there: waiting does not help",
      { EASY, .slo = { 0, 5 * MS } },
      { .ended_per_second = 1 },
      FG_ADMIT_ITL,
      60,
      200 * MS },
    { "done just in time",
      { EASY, .deadline_ns = 1190 * MS + 1 },
      { 0 },
      FG_ADMIT_OK,
      0,
      200 * MS },
    { "done 1.5 s late, behind others",
      { EASY, .start_ns = 2 * S, .deadline_ns = 1690 * MS },
      { 0 },
      FG_ADMIT_DEADLINE,
      2,
      2200 * MS },
    { "its answer alone takes longer than it has",
      { EASY, .deadline_ns = S },
      { 0 },
      FG_ADMIT_DEADLINE,
      60,
      200 * MS },
    { "one token needs no step",
      { .prompt_tokens = 1, .output_tokens = 1, .prefill_ns = S, .itl_ns = S, .deadline_ns = S },
      { 0 },
      FG_ADMIT_OK,
      0,
      S },
};

Test(admit, verdicts_are_as_written)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fg_admit_verdict got;
        fg_admit_judge(&cases[i].request, &cases[i].load, &limits, &got);
        cr_assert(got.reason == cases[i].reason && got.retry_after_s == cases[i].retry_s,
                  "%s: reason %d, %u s", cases[i].name, (int)got.reason, got.retry_after_s);
        cr_assert(got.ttft_ns == cases[i].ttft_ns ||
                      (got.ttft_ns != FG_ADMIT_UNKNOWN && cases[i].ttft_ns != FG_ADMIT_UNKNOWN &&
                       got.ttft_ns + 2 > cases[i].ttft_ns && got.ttft_ns < cases[i].ttft_ns + 2),
                  "%s: first token in %llu ns", cases[i].name, (unsigned long long)got.ttft_ns);
        cr_assert((fg_admit_reason_text(got.reason)[0] == '\0') == (got.reason == FG_ADMIT_OK));
    }
}

static fg_admit_request draw_request(fg_rng *rng)
{
    fg_admit_request r = { .prompt_tokens = (uint32_t)fg_rng_below(rng, 1000),
                           .output_tokens = 1 + (uint32_t)fg_rng_below(rng, 100),
                           .start_ns = fg_rng_below(rng, 30 * S),
                           .prefill_ns = fg_rng_below(rng, 5 * S),
                           .itl_ns = fg_rng_below(rng, 50 * MS),
                           .slo = { fg_rng_below(rng, 2) * 10 * S, 0 },
                           .deadline_ns = fg_rng_below(rng, 2) * 20 * S };
    return r;
}

/* A refused request that comes again after Retry-After, to a cluster that did nothing but go on at the rates
 * it had, is let in; a second and a half earlier it is not. */
static void run_truth(uint64_t seed)
{
    fg_rng rng = { seed };
    uint32_t refused = 0;
    for (uint32_t i = 0; i < 5000; i++) {
        fg_admit_request request = draw_request(&rng);
        fg_admit_load load = { .queued = (uint32_t)fg_rng_below(&rng, 9),
                               .queued_tokens = fg_rng_below(&rng, 1400),
                               .live = (uint32_t)fg_rng_below(&rng, 12),
                               .ended_per_second = 0.25 + (double)fg_rng_below(&rng, 4),
                               .prompt_tokens_per_second = 20 + (double)fg_rng_below(&rng, 200),
                               .tokens_ahead = fg_rng_below(&rng, 1000) };
        fg_admit_verdict first, early, then;
        fg_admit_judge(&request, &load, &limits, &first);
        if (first.reason == FG_ADMIT_OK || first.retry_after_s == FG_ADMIT_RETRY_MAX_S) {
            continue;
        }
        refused++;
        const double waits[] = { (double)first.retry_after_s, (double)first.retry_after_s - 1.5 };
        fg_admit_verdict *const verdicts[] = { &then, &early };
        for (uint32_t k = 0; k < 2; k++) {
            fg_admit_request later_request = request;
            fg_admit_load later = load;
            double s = waits[k] > 0 ? waits[k] : 0, ended = s * load.ended_per_second;
            double tokens = s * load.prompt_tokens_per_second;
            /* Whole requests end: at 4.0 the fourth has. */
            uint32_t gone = (uint32_t)(ended + 1e-6);
            later.queued -= gone < later.queued ? gone : later.queued;
            later.live -= gone < later.live ? gone : later.live;
            double ahead = (double)load.tokens_ahead - tokens;
            double queued = (double)load.queued_tokens - tokens;
            later.queued_tokens = queued > 0 ? (uint64_t)queued : 0;
            /* What the workers have goes first, then the line: a second takes a second off the sum. */
            double start = (double)request.start_ns;
            later.tokens_ahead = ahead > 0 ? (uint64_t)ahead : 0;
            start -= ahead > 0 ? 0 : -ahead / load.prompt_tokens_per_second * 1e9;
            later_request.start_ns = start > 0 ? (uint64_t)start : 0;
            fg_admit_judge(&later_request, &later, &limits, verdicts[k]);
        }
        cr_assert_eq(then.reason, FG_ADMIT_OK, "seed %llu, %u: %s after %u s, then %s",
                     (unsigned long long)seed, i, fg_admit_reason_text(first.reason),
                     first.retry_after_s, fg_admit_reason_text(then.reason));
        cr_assert(waits[1] <= 0 || early.reason != FG_ADMIT_OK, "seed %llu, %u: %u s is too long",
                  (unsigned long long)seed, i, first.retry_after_s);
    }
    cr_assert(refused > 500);
}

Test(admit, retry_after_is_the_truth)
{
    for (uint64_t seed = 1; seed <= 10; seed++) {
        run_truth(seed);
    }
    uint64_t drawn = test_seed(__func__);
    run_truth(drawn);
}

Test(admit, without_caps_of_its_own_a_tenant_has_the_lines)
{
    fg_admit_limits none = { .queued_max = 4, .queued_tokens_max = 1000, .live_max = 8 };
    fg_admit_request request = { EASY };
    fg_admit_load load = { .queued = 3, .tenant_queued = 3, .tenant_queued_tokens = 900 };
    fg_admit_verdict got;
    fg_admit_judge(&request, &load, &none, &got);
    cr_assert_eq(got.reason, FG_ADMIT_OK);
}

/* ---- classes, and hopeless ones ---- */

Test(admit, classes_are_found_by_name)
{
    static const fg_admit_class classes[] = { { "chat", { S, 50 * MS } },
                                              { "bulk", { 60 * S, 0 } } };
    cr_assert_eq(fg_admit_find_class(classes, 2, "chat")->itl_ns, 50 * MS);
    cr_assert_eq(fg_admit_find_class(classes, 2, "bulk")->ttft_ns, 60 * S);
    static const char *const plain[] = { NULL, "", "none" };
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(fg_admit_find_class(classes, 2, plain[i])->ttft_ns, 0u);
    }
    cr_assert_null(fg_admit_find_class(classes, 2, "cha"));
    cr_assert_null(fg_admit_find_class(classes, 2, "Chat"));
    cr_assert_null(fg_admit_find_class(NULL, 0, "chat"));
}

static const struct {
    const char *name;
    fg_admit_request request;
    uint64_t arrived_ns, want_ns;
} hopeless[] = {
    { "without promises it waits for ever", { EASY }, 5 * S, 0 },
    { "the target less its prefill", { EASY, .slo = { S, 0 } }, 5 * S, 5800 * MS },
    { "the whole target where its prefill is not known",
      { .prefill_ns = FG_ADMIT_UNKNOWN, .slo = { S, 0 } },
      5 * S,
      6 * S },
    { "the deadline less all of it", { EASY, .deadline_ns = 2 * S }, 5 * S, 5810 * MS },
    { "the earlier of both",
      { EASY, .slo = { 700 * MS, 0 }, .deadline_ns = 2 * S },
      5 * S,
      5500 * MS },
    { "never possible: at once", { EASY, .slo = { 100 * MS, 0 } }, 5 * S, 5 * S },
    { "at once at the beginning of time", { EASY, .slo = { 100 * MS, 0 } }, 0, 1 },
    { "all the time there is",
      { .prefill_ns = FG_ADMIT_UNKNOWN, .itl_ns = FG_ADMIT_UNKNOWN, .deadline_ns = UINT64_MAX },
      5 * S,
      UINT64_MAX },
    { "beyond the end of time", { EASY, .slo = { S, 0 } }, UINT64_MAX - 5, UINT64_MAX },
};

Test(admit, a_waiting_request_becomes_hopeless)
{
    for (size_t i = 0; i < sizeof hopeless / sizeof *hopeless; i++) {
        uint64_t got = fg_admit_give_up_ns(&hopeless[i].request, hopeless[i].arrived_ns);
        cr_assert_eq(got, hopeless[i].want_ns, "%s: %llu", hopeless[i].name,
                     (unsigned long long)got);
    }
}

/* ---- late reservation ---- */

static const struct {
    const char *name;
    fg_admit_times times;
    fg_admit_move want;
    uint64_t again_ns;
} holds[] = {
    /* unsplit, prefill free, decode free, lead, held, held at most, ample */
    { "both are free", { false, 0, 0, 5, 0, 100, false }, FG_ADMIT_PLACE, 0 },
    { "decode is full", { false, 0, 30, 5, 0, 100, false }, FG_ADMIT_HOLD_DECODE, 30 },
    { "decode is full and nobody knows for how long",
      { false, 0, FG_ADMIT_UNKNOWN, 5, 0, 100, false },
      FG_ADMIT_HOLD_DECODE,
      0 },
    { "decode is full, however long it was held",
      { false, 0, 30, 5, 100, 100, false },
      FG_ADMIT_HOLD_DECODE,
      30 },
    { "decode is full for one that does all",
      { true, 0, 30, 5, 0, 100, false },
      FG_ADMIT_HOLD_DECODE,
      30 },
    { "prefill comes to it later", { false, 50, 0, 5, 0, 100, false }, FG_ADMIT_HOLD_PREFILL, 45 },
    { "prefill comes to it when the messages have gone round",
      { false, 5, 0, 5, 0, 100, false },
      FG_ADMIT_PLACE,
      0 },
    { "a little before that", { false, 6, 0, 5, 0, 100, false }, FG_ADMIT_HOLD_PREFILL, 1 },
    { "nobody knows when prefill is free",
      { false, FG_ADMIT_UNKNOWN, 0, 5, 0, 100, false },
      FG_ADMIT_PLACE,
      0 },
    { "both later: decode first", { false, 50, 30, 5, 0, 100, false }, FG_ADMIT_HOLD_DECODE, 30 },
    { "held long enough", { false, 50, 0, 5, 100, 100, false }, FG_ADMIT_PLACE, 0 },
    { "nearly long enough", { false, 50, 0, 5, 90, 100, false }, FG_ADMIT_HOLD_PREFILL, 10 },
    { "never held", { false, 50, 0, 5, 0, 0, false }, FG_ADMIT_PLACE, 0 },
    { "decode has ample room", { false, 50, 0, 5, 0, 100, true }, FG_ADMIT_PLACE, 0 },
    { "ample room that is not there yet",
      { false, 50, 30, 5, 0, 100, true },
      FG_ADMIT_HOLD_DECODE,
      30 },
    { "one worker does all: its line holds nothing",
      { true, 50, 0, 5, 0, 100, false },
      FG_ADMIT_PLACE,
      0 },
};

Test(admit, a_pair_is_asked_as_late_as_possible)
{
    for (size_t i = 0; i < sizeof holds / sizeof *holds; i++) {
        uint64_t again = 77;
        cr_assert_eq(fg_admit_hold(&holds[i].times, &again), holds[i].want, "%s", holds[i].name);
        cr_assert_eq(again, holds[i].again_ns, "%s: %llu", holds[i].name,
                     (unsigned long long)again);
    }
}

/* Nothing is held for prefill's sake longer than it may be, whatever is predicted meanwhile. */
Test(admit, a_wrong_prediction_costs_its_bound_and_no_more)
{
    for (uint64_t seed = 1; seed <= 1000; seed++) {
        fg_rng rng = { seed };
        fg_admit_times times = { .lead_ns = 3, .held_max_ns = fg_rng_below(&rng, 500) };
        uint64_t again;
        for (uint32_t rounds = 0;; rounds++) {
            times.prefill_free_ns = fg_rng_below(&rng, 1000);
            if (fg_admit_hold(&times, &again) == FG_ADMIT_PLACE) {
                break;
            }
            cr_assert(again > 0 && rounds < 1000);
            times.held_ns += again;
        }
        cr_assert(times.held_ns <= times.held_max_ns, "seed %llu", (unsigned long long)seed);
    }
}
