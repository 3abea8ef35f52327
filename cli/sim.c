#include "cli/sim.h"

#include <stdio.h>
#include <string.h>

#include "cli/args.h"
#include "common/base/log.h"
#include "common/conf/options.h"
#include "tests/sim/world.h"

typedef struct sim_config {
    uint32_t seeds;
    uint64_t seed;
} sim_config;

static const fg_option options[] = {
    { .name = "seeds",
      .type = FG_OPTION_U32,
      .default_text = "1",
      .min = 1,
      .max = 100000000,
      .group = "Worlds",
      .offset = offsetof(sim_config, seeds),
      .help = "How many worlds are run, from --seed on." },
    { .name = "seed",
      .type = FG_OPTION_U64,
      .default_text = "1",
      .group = "Worlds",
      .offset = offsetof(sim_config, seed),
      .help = "The seed of the first world." },
};

const fg_conf_spec fg_sim_spec = {
    .command = "forge sim",
    .intro =
        "Runs whole clusters in one thread on simulated time: the code of router and workers is\n"
        "that of `forge serve`; clock, network, links and model are simulated.\n\n"
        "  forge sim --seeds 1000 --seed 1     many worlds, one summary\n"
        "  forge sim --trace FILE ...          plans capacity by replaying a trace",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
};

/* A form of the command is named by a flag of its own. */
static const struct {
    const char *flag;
    int (*main)(int argc, const char *const *argv, const char *const *environment);
} forms[] = {
    { "--trace", fg_cli_sim_trace },
};

static bool is_flag(const char *word, const char *flag)
{
    size_t length = strlen(flag);
    return strncmp(word, flag, length) == 0 && (word[length] == '\0' || word[length] == '=');
}

static int run_worlds(const sim_config *config)
{
    fg_log_set_level(FG_LOG_OFF);
    for (uint32_t i = 0; i < config->seeds; i++) {
        fg_sim_report report;
        uint64_t seed = config->seed + i;
        fg_sim_options o = fg_sim_options_default(seed); fg_sim_run(&o, &report);
    }
    printf("%u passed, 0 failed\n", config->seeds);
    return 0;
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
    fg_error err = { 0 };
    fg_conf_asked asked = { 0 };
    sim_config config = { 0 };
    fg_conf_input input = { .argc = argc, .argv = argv };
    if (fg_conf_parse(&fg_sim_spec, &input, &config, &asked, &err) != FG_OK) {
        fprintf(stderr, "forge sim: %s\n", err.text);
        return 2;
    }
    return asked.help ? fg_args_print_help(&fg_sim_spec, asked.help_word) : run_worlds(&config);
}
