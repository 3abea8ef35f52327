/*
 * room_test [--seeds N] [--first SEED] [--verbose]: engine rooms from N seeds in a row, and then one with
 * ten thousand requests. A broken rule aborts, naming the seed. With enough seeds every mechanism must
 * have been at work, or the test fails: a room in which nothing is shared proves nothing about sharing.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"
#include "tests/sim/room.h"

enum {
    SEEDS_FOR_ALL = 100, /* so many seeds exercise everything */
    MANY_REQUESTS = 10000,
};

static char last_words[200];

static void on_abort(int number)
{
    ssize_t ignored = write(STDERR_FILENO, last_words, strlen(last_words));
    (void)ignored;
}

static const struct {
    const char *name;
    size_t offset;
} counts[] = {
#define COUNT(field)                                                                               \
    {                                                                                              \
#field, offsetof(room_report, field)                                                       \
    }
    COUNT(events),
    COUNT(steps),
    COUNT(steps_ahead),
    COUNT(tokens),
    COUNT(requests),
    COUNT(finished),
    COUNT(at_capacity),
    COUNT(refused),
    COUNT(cancelled),
    COUNT(lost),
    COUNT(aborted),
    COUNT(clears),
    COUNT(losses),
    COUNT(flips),
    COUNT(orders_checked),
    COUNT(recounts),
    COUNT(cancelled_waiting),
    COUNT(cancelled_running),
    COUNT(hit_tokens),
    COUNT(tier_hit_tokens),
    COUNT(forks),
    COUNT(copied),
    COUNT(remapped),
    COUNT(deferrals),
    COUNT(evictions),
    COUNT(preemptions),
    COUNT(swapped),
    COUNT(restored),
    COUNT(damaged),
    COUNT(discarded),
    COUNT(drafted),
    COUNT(accepted),
    COUNT(model_drafted),
    COUNT(model_accepted),
    COUNT(news_blocks),
    COUNT(news_checked),
#undef COUNT
};

static uint64_t count_of(const room_report *report, size_t i)
{
    uint64_t value;
    memcpy(&value, (const char *)report + counts[i].offset, sizeof value);
    return value;
}

static void print(const char *what, const room_report *report)
{
    printf("%s:", what);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        printf(" %s=%llu", counts[i].name, (unsigned long long)count_of(report, i));
    }
    printf("\n");
}

/* Names what never happened. */
static int idle_mechanisms(const room_report *report)
{
    int idle = 0;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        if (count_of(report, i) == 0) {
            fprintf(stderr, "never exercised: %s\n", counts[i].name);
            idle++;
        }
    }
    return idle;
}

static void many_requests_all_complete_under_pressure(unsigned long long seed, bool verbose)
{
    room_report report;
    snprintf(last_words, sizeof last_words,
             "many_requests_all_complete_under_pressure failed: replay with `room_test --seeds 0 "
             "--first %llu --verbose`\n",
             seed);
    room_run(
        &(room_options){
            .seed = seed, .requests = MANY_REQUESTS, .pressure = true, .verbose = verbose },
        &report);
    print("many_requests_all_complete_under_pressure", &report);
    if (report.finished != MANY_REQUESTS || report.preemptions < 100) {
        fprintf(stderr, "not all of them completed, or there was no pressure\n");
        exit(1);
    }
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
            fprintf(stderr, "usage: room_test [--seeds N] [--first SEED] [--verbose]\n");
            return 2;
        }
    }
    signal(SIGABRT, on_abort);
    fg_log_set_level(verbose ? FG_LOG_DEBUG : FG_LOG_OFF);
    room_report total = { 0 };
    for (unsigned long long seed = first; seed < first + seeds; seed++) {
        snprintf(last_words, sizeof last_words,
                 "seed %llu failed: replay with `room_test --first %llu --seeds 1 --verbose`\n",
                 seed, seed);
        room_report report;
        room_run(&(room_options){ .seed = seed, .verbose = verbose }, &report);
        room_add(&total, &report);
    }
    print("all", &total);
    if (seeds >= SEEDS_FOR_ALL && idle_mechanisms(&total) > 0) {
        return 1;
    }
    if (seeds != 1) {
        many_requests_all_complete_under_pressure(1, verbose); /* a seed that is known to press */
    }
    printf("%llu passed, 0 failed\n", seeds);
    return 0;
}
