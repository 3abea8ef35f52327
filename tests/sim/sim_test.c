/*
 * sim_test [--seeds N] [--first SEED] [--verbose]: worlds from N seeds in a row, every second one with
 * faults, in this process, so that sanitizers see all of it. A failure aborts, with the seed. `forge sim`
 * does the same and goes on, prints what happened and shrinks what failed.
 */
#include <inttypes.h>
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

static void print_report(const fg_sim_report *sum)
{
    printf("worlds=%" PRIu64 " simulated_s=%.0f events=%" PRIu64 " tokens=%" PRIu64 "\n",
           sum->worlds, (double)sum->simulated_ns / 1e9, sum->events, sum->tokens);
    printf("requests=%" PRIu64 " finished=%" PRIu64 " failed=%" PRIu64 " cancelled=%" PRIu64
           " refused=%" PRIu64 " retried=%" PRIu64 "\n",
           sum->requests, sum->finished, sum->failed, sum->cancelled, sum->refused, sum->retried);
    for (uint32_t kind = 0; kind < FG_SIM_FAULT_COUNT; kind++) {
        printf("%s=%" PRIu64 " ", fg_sim_fault_name((fg_sim_fault)kind), sum->faults[kind]);
    }
    printf("push_retries=%" PRIu64 " stale_dropped=%" PRIu64 "\n", sum->push_retries,
           sum->stale_dropped);
    printf("hit_tokens=%" PRIu64 " preemptions=%" PRIu64 " swapped_blocks=%" PRIu64
           " forks=%" PRIu64 " remapped_blocks=%" PRIu64 " direct_blocks=%" PRIu64 " pulls=%" PRIu64
           " pulled_blocks=%" PRIu64 " drafted_tokens=%" PRIu64 " accepted_tokens=%" PRIu64 "\n",
           sum->hit_tokens, sum->preemptions, sum->swapped, sum->forks, sum->remapped, sum->direct,
           sum->pulls, sum->pulled, sum->drafted, sum->accepted);
    printf("flight_records: routers=%" PRIu64 " from_rest=%" PRIu64 " workers=%" PRIu64
           " from_rest=%" PRIu64 " calls=%" PRIu64 "\n",
           sum->replayed, sum->replayed_rest, sum->replayed_workers, sum->replayed_workers_rest,
           sum->replayed_calls);
    printf("%" PRIu64 " passed, 0 failed\n", sum->worlds);
}

int main(int argc, char **argv)
{
    unsigned long long seeds = 200, first = 1, flight_kb = 0;
    bool verbose = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seeds") == 0 && i + 1 < argc) {
            seeds = strtoull(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--first") == 0 && i + 1 < argc) {
            first = strtoull(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--verbose") == 0) {
            verbose = true;
        } else if (strcmp(argv[i], "--flights") == 0 && i + 1 < argc) {
            flight_kb = strtoull(argv[++i], NULL, 10);
        } else {
            fprintf(stderr, "usage: sim_test [--seeds N] [--first SEED] [--verbose] "
                            "[--flights KIB]\n");
            return 2;
        }
    }
    signal(SIGABRT, on_abort);
    fg_log_set_level(verbose ? FG_LOG_DEBUG : FG_LOG_OFF);
    fg_sim_report sum = { 0 };
    for (unsigned long long seed = first; seed < first + seeds; seed++) {
        snprintf(last_words, sizeof last_words,
                 "seed %llu failed: replay with `forge sim --seed %llu`, or `sim_test --first %llu "
                 "--seeds 1 --verbose`\n",
                 seed, seed, seed);
        fg_sim_report report;
        fg_sim_options options = fg_sim_options_default(seed);
        options.history = verbose ? stderr : NULL;
        options.flight_bytes = (size_t)flight_kb << 10;
        if (flight_kb > 0) {
            options.faults &= ~(1u << FG_SIM_ALLOC); /* whether memory was had is not recorded */
        }
        fg_sim_run(&options, &report);
        fg_sim_report_add(&sum, &report);
    }
    print_report(&sum);
    return 0;
}
