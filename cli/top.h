/*
 * top - `forge top`: what a cluster does now, in a terminal or as text.
 */
#ifndef FORGE_CLI_TOP_H
#define FORGE_CLI_TOP_H

#include "common/conf/conf.h"

extern const fg_conf_spec fg_top_spec;

/* argv: what follows the word `top`. Returns the exit code: 0, 1 the server did not answer (--once), 2 bad
 * flags. */
int fg_top_main(int argc, const char *const *argv, const char *const *environment);

#endif
