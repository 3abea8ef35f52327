/*
 * trace - `forge trace`: what the processes of a cluster did lately, in one picture.
 */
#ifndef FORGE_CLI_TRACE_H
#define FORGE_CLI_TRACE_H

#include "common/conf/conf.h"

extern const fg_conf_spec fg_trace_spec;

/* argv: what follows the word `trace`. Returns the exit code: 0 all are in the picture, 1 some are
 * not, 2 bad flags. */
int fg_trace_main(int argc, const char *const *argv, const char *const *environment);

#endif
