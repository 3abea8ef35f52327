#include "cli/sim.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/args.h"
#include "cli/sim_list.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/conf/options.h"
#include "tests/sim/hunt.h"

typedef struct sim_config {
    uint32_t seeds; /* 0: one, with its history */
    uint64_t seed;
    const char *requests, *fault, *no_fault;
    uint32_t workers, routers, prompt_max, answer_max, faults_until_ms;
    uint64_t until;
    uint32_t shrink_seconds, failures_max;
} sim_config;

static const fg_option options[] = {
    { .name = "seeds",
      .type = FG_OPTION_U32,
      .default_text = "0",
      .max = 100000000,
      .group = "Worlds",
      .offset = offsetof(sim_config, seeds),
      .help =
          "How many worlds are run, from --seed on; a summary is printed. 0: one, and its history "
          "is printed." },
    { .name = "seed",
      .type = FG_OPTION_U64,
      .default_text = "1",
      .group = "Worlds",
      .offset = offsetof(sim_config, seed),
      .help = "The first world. Odd seeds have no faults, unless --fault names some." },
    { .name = "shrink-seconds",
      .type = FG_OPTION_U32,
      .default_text = "20",
      .max = 3600,
      .group = "Worlds",
      .offset = offsetof(sim_config, shrink_seconds),
      .help = "With --seeds: so long the first world that breaks a rule is made smaller. 0: not at "
              "all." },
    { .name = "failures-max",
      .type = FG_OPTION_U32,
      .default_text = "10",
      .min = 1,
      .max = 100000000,
      .group = "Worlds",
      .value_name = "N",
      .offset = offsetof(sim_config, failures_max),
      .help = "Stops after so many broken rules." },
    { .name = "fault",
      .type = FG_OPTION_STRING,
      .group = "Left out of a world",
      .value_name = "LIST",
      .offset = offsetof(sim_config, fault),
      .help =
          "These kinds of faults happen and no others, whatever the seed draws: crash, restart, "
          "freeze, cut, flip, double, spike, full, slow, tight, router, jump, alloc, drain; or "
          "all." },
    { .name = "no-fault",
      .type = FG_OPTION_STRING,
      .group = "Left out of a world",
      .value_name = "LIST",
      .offset = offsetof(sim_config, no_fault),
      .help = "These kinds of faults do not happen." },
    { .name = "faults-until",
      .type = FG_OPTION_U32,
      .default_text = "1500",
      .min = 1,
      .max = 20000,
      .group = "Left out of a world",
      .value_name = "MS",
      .offset = offsetof(sim_config, faults_until_ms),
      .help = "Simulated milliseconds after which no fault happens any more." },
    { .name = "requests",
      .type = FG_OPTION_STRING,
      .group = "Left out of a world",
      .value_name = "LIST",
      .offset = offsetof(sim_config, requests),
      .help =
          "Only these of the requests that the seed draws, as in 0,3,7-9. The others are drawn and "
          "not sent, so that these stay what they are." },
    { .name = "workers",
      .type = FG_OPTION_U32,
      .default_text = "5",
      .min = 1,
      .max = FG_SIM_WORKERS_MAX,
      .group = "Left out of a world",
      .offset = offsetof(sim_config, workers),
      .help = "At most so many of the workers that the seed draws." },
    { .name = "routers",
      .type = FG_OPTION_U32,
      .default_text = "2",
      .min = 1,
      .max = FG_SIM_ROUTERS_MAX,
      .group = "Left out of a world",
      .offset = offsetof(sim_config, routers),
      .help = "At most so many of the routers that the seed draws." },
    { .name = "prompt-max",
      .type = FG_OPTION_U32,
      .default_text = "4294967295",
      .min = 1,
      .max = UINT32_MAX,
      .group = "Left out of a world",
      .offset = offsetof(sim_config, prompt_max),
      .help = "Tokens of a prompt; the rest is cut off." },
    { .name = "answer-max",
      .type = FG_OPTION_U32,
      .default_text = "4294967295",
      .min = 1,
      .max = UINT32_MAX,
      .group = "Left out of a world",
      .offset = offsetof(sim_config, answer_max),
      .help = "Tokens of an answer." },
    { .name = "until",
      .type = FG_OPTION_U64,
      .default_text = "0",
      .group = "Left out of a world",
      .value_name = "EVENT",
      .offset = offsetof(sim_config, until),
      .help = "Stops after so many events, without asking whether all is at rest. 0: at the end." },
};

const fg_conf_spec fg_sim_spec = {
    .command = "forge sim",
    .intro =
        "Runs whole clusters in one thread on simulated time. Router and workers are those of\n"
        "`forge serve`; clock, network, links and model are simulated. After every event the\n"
        "books are recounted, and every token must be the one that its request alone would get.\n\n"
        "  forge sim --seeds 2000            worlds from seeds 1, 2, ..., and a summary\n"
        "  forge sim --seed 46               one world, the same each time, and its history\n"
        "  forge sim --trace FILE ...        plans capacity by replaying a trace; see\n"
        "                                    forge sim --trace --help\n"
        "  forge sim --replay FILE           runs again what the flight recorder of a router or\n"
        "                                    worker kept; see forge sim --replay --help\n\n"
        "Exit code 0: every rule held; 1: one was broken, and the command that shows it is\n"
        "printed; 2: bad flags. docs/SIMULATOR.md says what can happen in a world.",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
};

/* A form of the command is named by a flag of its own. */
static const struct {
    const char *flag;
    int (*main)(int argc, const char *const *argv, const char *const *environment);
} forms[] = {
    { "--trace", fg_cli_sim_trace },
    { "--synthetic", fg_cli_sim_trace },
    { "--replay", fg_cli_sim_replay },
};

static bool is_flag(const char *word, const char *flag)
{
    size_t length = strlen(flag);
    return strncmp(word, flag, length) == 0 && (word[length] == '\0' || word[length] == '=');
}

static fg_status make_options(const sim_config *config, fg_sim_options *world_out, fg_error *err)
{
    fg_sim_options world = fg_sim_options_default(config->seed);
    uint32_t without = 0;
    fg_status status = FG_OK;
    if (config->fault != NULL && config->no_fault != NULL) {
        return fg_fail(
            err, FG_BAD_INPUT,
            "--fault and --no-fault exclude each other: the first says all that happens");
    }
    if (config->requests != NULL) {
        status = fg_sim_list_requests(config->requests, &world.requests, err);
    }
    if (status == FG_OK && config->fault != NULL) {
        world.forced = true;
        status = fg_sim_list_faults("--fault", config->fault, &world.faults, err);
    }
    if (status == FG_OK && config->no_fault != NULL) {
        status = fg_sim_list_faults("--no-fault", config->no_fault, &without, err);
        world.faults &= ~without;
    }
    world.workers_max = config->workers;
    world.routers_max = config->routers;
    world.prompt_max = config->prompt_max;
    world.answer_max = config->answer_max;
    world.faults_until_ms = config->faults_until_ms;
    world.until = config->until;
    *world_out = world;
    return status;
}

/* ---- one world ---- */

static void print_failure(const fg_sim_failure *failure)
{
    char command[FG_SIM_COMMAND_MAX];
    fg_sim_command(&failure->options, command);
    fprintf(stderr, "forge sim: seed %" PRIu64 ", event %" PRIu64 ": %s\n", failure->options.seed,
            failure->report.events, failure->reason);
    fprintf(stderr, "forge sim: again: %s\n", command);
}

static int replay(const fg_sim_options *world)
{
    fg_sim_options options_with = *world;
    fg_sim_report report;
    fg_sim_failure failure = { 0 };
    fg_error err = { 0 };
    bool failed = false;
    options_with.history = stdout;
    if (fg_sim_try(&options_with, stderr, &report, &failed, &failure, &err) != FG_OK) {
        fprintf(stderr, "forge sim: %s\n", err.text);
        return 2;
    }
    if (failed) {
        print_failure(&failure);
        return 1;
    }
    printf("seed %" PRIu64 ": %" PRIu64 " events in %.3f simulated seconds, %" PRIu64
           " requests, every rule held\n",
           world->seed, report.events, (double)report.simulated_ns / 1e9, report.requests);
    return 0;
}

/* ---- many ---- */

typedef struct hunt_state {
    const sim_config *config;
    fg_clock clock;
    uint64_t begun_ns, shown_ns;
    fg_sim_failure first;
    bool any;
} hunt_state;

static void on_progress(void *ctx, const fg_sim_report *sum, uint64_t failed)
{
    hunt_state *h = ctx;
    uint64_t now = fg_clock_now_ns(&h->clock);
    if (now - h->shown_ns < 2000000000u) {
        return;
    }
    h->shown_ns = now;
    fprintf(stderr, "forge sim: %" PRIu64 " of %u worlds, %" PRIu64 " broke a rule, %.0f:1\n",
            sum->worlds + failed, h->config->seeds, failed,
            (double)sum->simulated_ns / (double)(now - h->begun_ns));
}

static void on_failure(void *ctx, const fg_sim_failure *failure)
{
    hunt_state *h = ctx;
    print_failure(failure);
    if (!h->any) {
        h->any = true;
        h->first = *failure;
    }
}

static void shrink(hunt_state *h)
{
    if (!h->any || h->config->shrink_seconds == 0) {
        return;
    }
    fprintf(stderr, "forge sim: making seed %" PRIu64 " smaller, for at most %u s\n",
            h->first.options.seed, h->config->shrink_seconds);
    uint32_t tried = fg_sim_shrink(&h->first, h->config->shrink_seconds * 1000);
    char command[FG_SIM_COMMAND_MAX];
    fg_sim_command(&h->first.options, command);
    fprintf(stderr, "forge sim: %u worlds later: %" PRIu64 " events: %s\n", tried,
            h->first.report.events, h->first.reason);
    printf("smallest: %s\n", command);
}

static void print_summary(const fg_sim_report *sum, uint64_t failed, double real_s)
{
    double simulated_s = (double)sum->simulated_ns / 1e9;
    printf("worlds=%" PRIu64 " two_routers=%" PRIu64 " events=%" PRIu64 " tokens=%" PRIu64
           " simulated_s=%.1f real_s=%.1f ratio=%.0f:1\n",
           sum->worlds, sum->two_routers, sum->events, sum->tokens, simulated_s, real_s,
           real_s > 0 ? simulated_s / real_s : 0);
    printf("requests=%" PRIu64 " finished=%" PRIu64 " failed=%" PRIu64 " cancelled=%" PRIu64
           " refused=%" PRIu64 " placed_again=%" PRIu64 " came_again=%" PRIu64 "\n",
           sum->requests, sum->finished, sum->failed, sum->cancelled, sum->refused, sum->retried,
           sum->again);
    printf("faults:");
    for (uint32_t kind = 0; kind < FG_SIM_FAULT_COUNT; kind++) {
        printf(" %s=%" PRIu64, fg_sim_fault_name((fg_sim_fault)kind), sum->faults[kind]);
    }
    printf("\npush_retries=%" PRIu64 " stale_dropped=%" PRIu64 " hit_tokens=%" PRIu64
           " preemptions=%" PRIu64 " swapped_blocks=%" PRIu64 " forks=%" PRIu64
           " remapped_blocks=%" PRIu64 " direct_blocks=%" PRIu64 " pulls=%" PRIu64
           " pulled_blocks=%" PRIu64 "\n",
           sum->push_retries, sum->stale_dropped, sum->hit_tokens, sum->preemptions, sum->swapped,
           sum->forks, sum->remapped, sum->direct, sum->pulls, sum->pulled);
    printf("split=%" PRIu64 " role_changes=%" PRIu64 " circles_avoided=%" PRIu64 " held=%" PRIu64
           " resyncs=%" PRIu64 "\n",
           sum->split, sum->role_changes, sum->circles_avoided, sum->held, sum->resyncs);
    printf("%" PRIu64 " passed, %" PRIu64 " failed\n", sum->worlds, failed);
}

static int hunt(const sim_config *config, const fg_sim_options *world)
{
    hunt_state h = { .config = config, .clock = fg_clock_real() };
    h.begun_ns = fg_clock_now_ns(&h.clock);
    h.shown_ns = h.begun_ns;
    fg_sim_hunt_options hunt_options = { .world = *world,
                                         .count = config->seeds,
                                         .failures_max = config->failures_max,
                                         .on_progress = on_progress,
                                         .on_failure = on_failure,
                                         .ctx = &h };
    fg_sim_report sum;
    uint64_t failed = 0;
    fg_error err = { 0 };
    fg_status status = fg_sim_hunt(&hunt_options, &sum, &failed, &err);
    double real_s = (double)(fg_clock_now_ns(&h.clock) - h.begun_ns) / 1e9;
    if (status != FG_OK) {
        fprintf(stderr, "forge sim: %s\n", err.text);
        return 2;
    }
    print_summary(&sum, failed, real_s);
    shrink(&h);
    return failed == 0 ? 0 : 1;
}

int fg_cli_sim(int argc, const char *const *argv, const char *const *environment)
{
    for (int i = 0; i < argc; i++) {
        for (size_t f = 0; f < sizeof forms / sizeof forms[0]; f++) {
            if (is_flag(argv[i], forms[f].flag)) {
                return forms[f].main(argc, argv, environment);
            }
        }
    }
    fg_args args = { 0 };
    fg_error err = { 0 };
    fg_conf_asked asked = { 0 };
    sim_config config = { 0 };
    fg_sim_options world;
    int code = 2;
    fg_status status =
        fg_args_split(&fg_sim_spec, &fg_serve_spec, argc, argv, environment, &args, &err);
    if (status == FG_OK && args.word_count > 0) {
        status = fg_fail(&err, FG_BAD_INPUT, "\"%s\" means nothing here: worlds come from --seed N",
                         args.words[0]);
    }
    if (status == FG_OK) {
        fg_conf_input input = { .argc = args.flag_count,
                                .argv = args.flags,
                                .environment = args.environment };
        status = fg_conf_parse(&fg_sim_spec, &input, &config, &asked, &err);
    }
    if (status == FG_OK && !asked.help) {
        status = make_options(&config, &world, &err);
    }
    if (status != FG_OK) {
        fprintf(stderr, "forge sim: %s\n", err.text);
    } else if (asked.help) {
        code = fg_args_print_help(&fg_sim_spec, asked.help_word);
    } else {
        fg_log_set_level(FG_LOG_OFF); /* its lines bear real times */
        code = config.seeds == 0 ? replay(&world) : hunt(&config, &world);
    }
    fg_args_free(&args);
    return code;
}
