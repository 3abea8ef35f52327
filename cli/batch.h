/*
 * batch - `forge batch`: the requests of a file, as fast as a server answers them, into another file.
 */
#ifndef FORGE_CLI_BATCH_H
#define FORGE_CLI_BATCH_H

#include "common/conf/conf.h"

extern const fg_conf_spec fg_batch_spec;

/* argv: what follows the word `batch`. Returns the exit code: 0 every request has an answer, 1 some
 * have not, 2 bad input. */
int fg_batch_main(int argc, const char *const *argv, const char *const *environment);

#endif
