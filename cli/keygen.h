/*
 * keygen - `forge keygen`: makes the keys of a cluster, a directory for each of its processes, and API keys.
 */
#ifndef FORGE_CLI_KEYGEN_H
#define FORGE_CLI_KEYGEN_H

#include <stdbool.h>
#include <stdio.h>

#include "common/base/status.h"
#include "common/conf/conf.h"

extern const fg_conf_spec fg_keygen_spec;

typedef struct fg_keygen_options {
    const char *directory;
    const fg_conf_names *names; /* workers whose keys are bound to their names */
    uint32_t unbound_count;     /* further ones, worker-0 ..., for any name */
    bool force;                 /* replaces what an earlier keygen made */
} fg_keygen_options;

/* All or nothing: the directory appears, or is replaced, in one step. FG_BAD_INPUT: it is in use. */
fg_status fg_keygen_make(const fg_keygen_options *options, fg_error *err);

typedef struct fg_keygen_api_options {
    const char *file;           /* gets a line for each key, and is made if it is not there */
    const fg_conf_names *names; /* whose the keys are */
    const char *scopes;
    const char *until; /* NULL: no end */
    FILE *out;         /* gets the keys */
} fg_keygen_api_options;

/* FG_BAD_INPUT: no names, unknown scopes or day, or a file that a server would not read. */
fg_status fg_keygen_api(const fg_keygen_api_options *options, fg_error *err);

/* argv: what follows the word `keygen`. Returns the exit code. */
int fg_keygen_main(int argc, const char *const *argv, const char *const *environment);

#endif
