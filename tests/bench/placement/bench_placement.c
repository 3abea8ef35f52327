/*
 * bench_placement [SEED] - what a decision costs, by number of workers; then, in a queueing model of a
 * cluster, what the decisions are worth: policies against each other where prefixes are shared (goal:
 * cost at 2.3 times the throughput of round robin), and split mode auto against the better of always and
 * never over a grid of loads (goal: 0.98 of it). The model is no measurement of Forge.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/rng.h"
#include "proto/wire.h"
#include "tests/bench/placement/model.h"

enum { DECISIONS = 20000, WORKERS_MAX = 256 };

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void draw_fleet(fg_rng *rng, fg_place_worker *workers, fg_speed *speeds, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        fg_speed_claim claim = { .prefill_ns_per_token = 5e4 + (double)fg_rng_below(rng, 50000) };
        fg_speed_init(&speeds[i], &claim);
        speeds[i].prefills = 100;
        workers[i] = (fg_place_worker){ .roles = 1 + (uint32_t)fg_rng_below(rng, 3),
                                        .can = FG_PLACE_CAN_WHOLE | FG_PLACE_CAN_LINK,
                                        .block_count = 100000,
                                        .block_size = 16,
                                        .context_max = 65536,
                                        .max_seqs = 64,
                                        .prefills = (uint32_t)fg_rng_below(rng, 10),
                                        .decodes = (uint32_t)fg_rng_below(rng, 60),
                                        .prefill_tokens = fg_rng_below(rng, 20000),
                                        .placed = fg_rng_below(rng, 1000),
                                        .blocks_used = (uint32_t)fg_rng_below(rng, 50000),
                                        .speed = &speeds[i] };
    }
}

static void time_decisions(uint32_t count, uint64_t seed)
{
    static fg_place_worker workers[WORKERS_MAX];
    static fg_speed speeds[WORKERS_MAX];
    static fg_place_hit hits[WORKERS_MAX];
    static uint64_t took[DECISIONS];
    fg_rng rng = { seed };
    fg_clock clock = fg_clock_real();
    fg_place_options options = fg_place_defaults();
    draw_fleet(&rng, workers, speeds, count);
    uint64_t sink = 0;
    for (uint32_t i = 0; i < DECISIONS; i++) {
        for (uint32_t w = 0; w < count; w++) {
            hits[w].device_blocks = (uint32_t)fg_rng_below(&rng, 100);
            hits[w].tier_blocks = hits[w].device_blocks + (uint32_t)fg_rng_below(&rng, 100);
        }
        workers[fg_rng_below(&rng, count)].prefill_tokens = fg_rng_below(&rng, 20000);
        fg_place_request request = { .prompt_tokens = 100 + (uint32_t)fg_rng_below(&rng, 8000),
                                     .hits = hits };
        request.total_tokens = request.prompt_tokens + 256;
        fg_place_choice choice = { 0 };
        uint64_t begun = fg_clock_now_ns(&clock);
        fg_place_pick(&options, workers, count, &request, &choice);
        took[i] = fg_clock_now_ns(&clock) - begun;
        sink += choice.prefill;
    }
    qsort(took, DECISIONS, sizeof *took, by_value);
    printf("%8u %10.2f %10.2f   (%llu)\n", count, (double)took[DECISIONS / 2] / 1e3,
           (double)took[DECISIONS * 99 / 100] / 1e3, (unsigned long long)sink % 10);
}

static void compare_policies(const char *title, const model_load *load, fg_place_split split)
{
    static const fg_place_policy policies[] = { FG_PLACE_ROUND_ROBIN, FG_PLACE_TWO_CHOICES,
                                                FG_PLACE_LEAST_LOADED, FG_PLACE_CACHE_ONLY,
                                                FG_PLACE_COST };
    printf("\n%s\n%-13s %8s %7s %9s %9s %8s %6s %6s\n", title, "policy", "req/s", "x rr", "ttft ms",
           "p99 ms", "itl ms", "hit %", "whole %");
    double base = 0;
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        fg_place_options options = fg_place_defaults();
        options.policy = policies[i];
        options.split = split;
        model_result r = model_run(load, &options);
        base = i == 0 ? r.requests_per_s : base;
        printf("%-13s %8.2f %7.2f %9.1f %9.1f %8.2f %6.1f %6.1f\n",
               fg_place_policy_name(policies[i]), r.requests_per_s, r.requests_per_s / base,
               r.ttft_mean * 1e3, r.ttft_p99 * 1e3, r.itl_mean * 1e3, r.hit_share * 100,
               r.whole_share * 100);
    }
}

static void share_prefixes(uint64_t seed)
{
    model_load load = { .workers = 8,
                        .mixed = true,
                        .requests = 3000,
                        .concurrency = 96,
                        .groups = 64,
                        .prefix_tokens = 4000,
                        .tail_tokens = 100,
                        .answer_tokens = 48,
                        .cache_groups = 12,
                        .seed = seed };
    compare_policies("shared prefixes, 8 mixed workers, closed loop of 96, unsplit", &load,
                     FG_PLACE_UNSPLIT);
    compare_policies("the same, auto", &load, FG_PLACE_AUTO);
    load.hot_percent = 60;
    compare_policies("the same, 60 % of requests for one of the prefixes", &load, FG_PLACE_AUTO);
    load.hot_percent = 0;
    load.slow_last = 3;
    compare_policies("the same, one worker three times slower than it claims", &load,
                     FG_PLACE_AUTO);
    load.slow_last = 0;
    load.mixed = false;
    load.prefill_workers = 4;
    compare_policies("shared prefixes, 4 + 4, always split", &load, FG_PLACE_ALWAYS);
    load.concurrency = 0;
    load.mixed = true;
    load.rate = 14;
    compare_policies("shared prefixes, 8 mixed workers, open loop of 14 a second", &load,
                     FG_PLACE_AUTO);
}

typedef struct tally {
    double good_least, good_sum, late_least, late_sum;
    uint32_t count;
} tally;

/* Each static mode by the better of two policies, figure by figure: constants that were chosen for auto
 * shall not win by making the others worse. */
static model_result run_mode(const model_load *load, fg_place_split split)
{
    fg_place_options options = fg_place_defaults();
    options.split = split;
    model_result best = model_run(load, &options);
    if (split != FG_PLACE_AUTO) {
        options.policy = FG_PLACE_LEAST_LOADED;
        model_result other = model_run(load, &options);
        best.good_per_s = fmax(best.good_per_s, other.good_per_s);
        best.latency_mean = fmin(best.latency_mean, other.latency_mean);
    }
    return best;
}

static void compare_modes(const model_load *load, double share, tally *sum)
{
    model_result r[3];
    for (int split = 0; split < 3; split++) {
        r[split] = run_mode(load, (fg_place_split)split);
    }
    double good = fmax(r[FG_PLACE_ALWAYS].good_per_s, r[FG_PLACE_UNSPLIT].good_per_s);
    double late = fmin(r[FG_PLACE_ALWAYS].latency_mean, r[FG_PLACE_UNSPLIT].latency_mean);
    double good_ratio = good > 0 ? r[FG_PLACE_AUTO].good_per_s / good : 1;
    double late_ratio = late / r[FG_PLACE_AUTO].latency_mean;
    printf("%u+%u %6u %6u %5.2f | %6.2f %6.2f %6.2f %5.2f | %7.0f %7.0f %7.0f %5.2f | %5.0f\n",
           load->prefill_workers, load->workers - load->prefill_workers, load->tail_tokens,
           load->answer_tokens, share, r[0].good_per_s, r[1].good_per_s, r[2].good_per_s,
           good_ratio, r[0].latency_mean * 1e3, r[1].latency_mean * 1e3, r[2].latency_mean * 1e3,
           late_ratio, r[0].whole_share * 100);
    sum->good_least = fmin(sum->good_least, good_ratio);
    sum->late_least = fmin(sum->late_least, late_ratio);
    sum->good_sum += good_ratio;
    sum->late_sum += late_ratio;
    sum->count++;
}

static void walk_grid(uint64_t seed)
{
    static const uint32_t prompts[] = { 256, 2048, 8192 }, answers[] = { 32, 256 };
    static const double shares[] = { 0.2, 0.5, 0.8 };
    static const uint32_t prefills[] = { 1, 2, 4 }, all[] = { 4, 4, 8 };
    printf("\nsplit modes: good requests a second (auto, always, never, auto / better), mean "
           "latency in\n"
           "ms (likewise), whole %% of auto\n");
    tally sum = { .good_least = 9, .late_least = 9 };
    for (int fleet = 0; fleet < 3; fleet++) {
        for (int i = 0; i < 18; i++) {
            model_load load = { .workers = all[fleet],
                                .prefill_workers = prefills[fleet],
                                .requests = 600,
                                .tail_tokens = prompts[i / 6],
                                .answer_tokens = answers[i / 3 % 2],
                                .seed = seed + (uint64_t)i };
            load.rate = shares[i % 3] * model_capacity(&load);
            compare_modes(&load, shares[i % 3], &sum);
        }
    }
    printf("auto / better: good mean %.3f least %.3f, latency mean %.3f least %.3f\n",
           sum.good_sum / sum.count, sum.good_least, sum.late_sum / sum.count, sum.late_least);
}

int main(int argc, char **argv)
{
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    printf("seed %llu\n%8s %10s %10s\n", (unsigned long long)seed, "workers", "p50 us", "p99 us");
    static const uint32_t counts[] = { 8, 32, 128, 256 };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        time_decisions(counts[i], seed);
    }
    share_prefixes(seed);
    walk_grid(seed);
    return 0;
}
