#include "tests/sim/hunt.h"

#include <string.h>

#include "common/base/log.h"
#include "tests/support/test.h"

static void on_failure(void *ctx, const fg_sim_failure *failure)
{
    fg_sim_failure *first = ctx;
    if (first->reason[0] == '\0') {
        *first = *failure;
    }
}

static void on_progress(void *ctx, const fg_sim_report *sum, uint64_t failed)
{
}

static uint64_t hunt(uint64_t seed, uint64_t count, uint32_t failures_max, fg_sim_report *sum,
                     fg_sim_failure *first)
{
    uint64_t failed = 0;
    fg_error err = { 0 };
    fg_log_set_level(FG_LOG_OFF);
    fg_sim_hunt_options options = { .world = fg_sim_options_default(seed),
                                    .count = count,
                                    .failures_max = failures_max,
                                    .on_progress = on_progress,
                                    .on_failure = on_failure,
                                    .ctx = first };
    *first = (fg_sim_failure){ 0 };
    cr_assert(fg_sim_hunt(&options, sum, &failed, &err) == FG_OK, "%s", err.text);
    return failed;
}

Test(hunt, worlds_pass_and_are_counted)
{
    fg_sim_report sum;
    fg_sim_failure first;
    cr_assert(hunt(1, 20, 1, &sum, &first) == 0, "%s", first.reason);
    cr_assert(sum.worlds == 20 && sum.requests > 20 && sum.simulated_ns > 0);
    cr_assert(sum.finished + sum.failed + sum.cancelled + sum.refused == sum.requests);
}

/* fg_sim_planted: see world.h. */
Test(hunt, a_broken_rule_ends_its_world_only_and_is_made_smaller)
{
    fg_sim_report sum;
    fg_sim_failure first;
    fg_sim_planted = true;
    uint64_t failed = hunt(1, 40, 100, &sum, &first);
    cr_assert(failed > 2 && failed + sum.worlds == 40, "%d failed", (int)failed);
    cr_assert(strstr(first.reason, "planted, request") != NULL, "%s", first.reason);
    uint64_t events = first.report.events;
    cr_assert(fg_sim_shrink(&first, 60000) > 5);
    fg_sim_planted = false;
    cr_assert(__builtin_popcountll(first.options.requests) == 1, "%llx",
              (unsigned long long)first.options.requests);
    cr_assert(first.options.faults == 1u << FG_SIM_CUT, "%x", first.options.faults);
    cr_assert(first.options.workers_max == 1 && first.options.routers_max == 1 &&
              first.report.events < events);
    cr_assert(first.options.answer_max == 1 && first.options.prompt_max <= 8);
}

Test(hunt, stops_at_the_given_number_of_failures)
{
    fg_sim_report sum;
    fg_sim_failure first;
    fg_sim_planted = true;
    uint64_t failed = hunt(1, 1000, 2, &sum, &first);
    fg_sim_planted = false;
    cr_assert(failed == 2 && sum.worlds < 900);
}

static const struct {
    const char *name, *want;
    fg_sim_options change;
    bool forced;
} commands[] = {
    { "nothing left out", "forge sim --seed 7", { .faults = FG_SIM_FAULTS_ALL }, false },
    { "no faults", "forge sim --seed 7 --no-fault all", { .faults = 0 }, false },
    { "one kind of fault",
      "forge sim --seed 7 --fault cut",
      { .faults = 1u << FG_SIM_CUT, .forced = true },
      true },
    { "requests",
      "forge sim --seed 7 --requests 0,3,7-9",
      { .faults = FG_SIM_FAULTS_ALL, .requests = 0x389 },
      false },
};

Test(hunt, commands_say_what_is_left_out)
{
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        char text[FG_SIM_COMMAND_MAX];
        fg_sim_options options = fg_sim_options_default(7);
        options.faults = commands[i].change.faults;
        options.forced = commands[i].forced;
        if (commands[i].change.requests != 0) {
            options.requests = commands[i].change.requests;
        }
        fg_sim_command(&options, text);
        cr_assert(strcmp(text, commands[i].want) == 0, "%s: %s", commands[i].name, text);
    }
}
