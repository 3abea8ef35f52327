/*
 * sim_test [--seeds N] [--first SEED] [--verbose]: worlds from N seeds in a row, every second one with
 * faults. Prints a line for each failure (by aborting, with the seed) and a summary.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"
#include "tests/sim/world.h"

static char last_words[160];

static void on_abort(int number)
{
    ssize_t ignored = write(STDERR_FILENO, last_words, strlen(last_words));
    (void)ignored;
}

int main(int argc, char **argv)
{
    unsigned long long seeds = 200, first = 1;
    bool verbose = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seeds") == 0 && i + 1 < argc) {
            seeds = strtoull(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--first") == 0 && i + 1 < argc) {
            first = strtoull(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--verbose") == 0) {
            verbose = true;
        } else {
            fprintf(stderr, "usage: sim_test [--seeds N] [--first SEED] [--verbose]\n");
            return 2;
        }
    }
    signal(SIGABRT, on_abort);
    fg_log_set_level(verbose ? FG_LOG_DEBUG : FG_LOG_OFF);
    sim_report total = { 0 };
    for (unsigned long long seed = first; seed < first + seeds; seed++) {
        snprintf(last_words, sizeof last_words,
                 "seed %llu failed: replay with `sim_test --first %llu --seeds 1 --verbose`\n",
                 seed, seed);
        sim_report report;
        sim_run(&(sim_options){ .seed = seed, .faults = seed % 2 == 0, .verbose = verbose },
                &report);
        total.events += report.events;
        total.tokens += report.tokens;
        total.requests += report.requests;
        total.finished += report.finished;
        total.failed += report.failed;
        total.cancelled += report.cancelled;
        total.refused += report.refused;
        total.crashes += report.crashes;
        total.freezes += report.freezes;
        total.cuts += report.cuts;
        total.flips += report.flips;
        total.doubled += report.doubled;
        total.push_retries += report.push_retries;
        total.stale_dropped += report.stale_dropped;
        total.retried += report.retried;
        total.hit_tokens += report.hit_tokens;
        total.preemptions += report.preemptions;
        total.swapped += report.swapped;
        total.forks += report.forks;
        total.remapped += report.remapped;
        total.simulated_s += report.simulated_s;
    }
    printf("worlds=%llu simulated_s=%.0f events=%llu tokens=%llu\n", seeds, total.simulated_s,
           (unsigned long long)total.events, (unsigned long long)total.tokens);
    printf("requests=%u finished=%u failed=%u cancelled=%u refused=%u retried=%llu\n",
           total.requests, total.finished, total.failed, total.cancelled, total.refused,
           (unsigned long long)total.retried);
    printf(
        "crashes=%u freezes=%u cuts=%u flips=%u doubled=%u push_retries=%llu stale_dropped=%llu\n",
        total.crashes, total.freezes, total.cuts, total.flips, total.doubled,
        (unsigned long long)total.push_retries, (unsigned long long)total.stale_dropped);
    printf("hit_tokens=%llu preemptions=%llu swapped_blocks=%llu forks=%llu remapped_blocks=%llu\n",
           (unsigned long long)total.hit_tokens, (unsigned long long)total.preemptions,
           (unsigned long long)total.swapped, (unsigned long long)total.forks,
           (unsigned long long)total.remapped);
    printf("%llu passed, 0 failed\n", seeds);
    return 0;
}
