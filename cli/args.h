/*
 * args - what the flag parser of common/conf leaves to a command: words that are no flags, and what
 * follows "--". Pure; used at start.
 */
#ifndef FORGE_CLI_ARGS_H
#define FORGE_CLI_ARGS_H

#include "common/conf/conf.h"

typedef struct fg_args {
    const char **flags; /* for fg_conf_input */
    int flag_count;
    const char **words; /* the rest, in order; "-" is a word */
    int word_count;
    const char *const *passed; /* behind "--"; inside argv */
    int passed_count;
    const char **environment; /* ends with NULL */
} fg_args;

/* Sorts argv, with the types of `spec` to know which flags take the next word. The environment is
 * copied without the variables of `other` (may be NULL) that mean nothing to `spec`: they are for
 * somebody else and no mistake. The strings are borrowed. FG_AGAIN: out of memory. */
fg_status fg_args_split(const fg_conf_spec *spec, const fg_conf_spec *other, int argc,
                        const char *const *argv, const char *const *environment, fg_args *args_out,
                        fg_error *err);
void fg_args_free(fg_args *args);

/* Is `entry` ("FORGE_KV_BLOCKS=5" or the name alone) the environment twin of an option of `spec`? */
bool fg_args_is_twin(const fg_conf_spec *spec, const char *entry);

/* Prints the help (about `word`, NULL for all). Returns the exit code. */
int fg_args_print_help(const fg_conf_spec *spec, const char *word);

#endif
