/*
 * sim - `forge sim`: whole clusters in one thread and on simulated time.
 *
 * The command has several forms, each with flags of its own; the flag that names a form (--trace) hands
 * everything to that form. Without one, worlds are run from seeds.
 */
#ifndef FORGE_CLI_SIM_H
#define FORGE_CLI_SIM_H

#include "common/conf/conf.h"

extern const fg_conf_spec fg_sim_spec;

/* argv: what follows the word `sim`. Returns the exit code: 0 fine, 1 a rule was broken, 2 bad flags. */
int fg_cli_sim(int argc, const char *const *argv, const char *const *environment);

/* `forge sim --trace FILE`: sim_trace.c. The same arguments and exit codes; --help is answered by
 * fg_cli_sim, unless --trace is given with it. */
int fg_cli_sim_trace(int argc, const char *const *argv, const char *const *environment);
/* `forge sim --replay FILE`: sim_replay.c. Likewise; 1: what happens now differs, or ends in a crash. */
int fg_cli_sim_replay(int argc, const char *const *argv, const char *const *environment);

#endif
