/*
 * batch_child - a `forge serve` of our own, on a free port, for as long as this process lives: it is
 * told to end when we die, however we die. Owned by the main thread, which must be the one that
 * starts it.
 */
#ifndef FORGE_CLI_BATCH_CHILD_H
#define FORGE_CLI_BATCH_CHILD_H

#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>

#include "common/base/status.h"

enum { FG_CHILD_URL_MAX = 300 };

typedef struct fg_child {
    pid_t pid; /* 0: there is none */
    int out;   /* its standard output; -1: none */
    char url[FG_CHILD_URL_MAX];
} fg_child;

typedef struct fg_child_options {
    const char *program; /* NULL: this one */
    const char *model;
    const char *const *flags; /* more flags for `serve` */
    int flag_count;
    const char *const *environment;    /* ends with NULL */
    const volatile sig_atomic_t *stop; /* gives up waiting when it is no longer 0 */
} fg_child_options;

/* Returns when the server says where it listens. FG_BAD_INPUT: it refused its flags or the model and
 * has said why; FG_CANCELLED: asked to stop; FG_TIMEOUT, FG_BROKEN: it does not get there. */
fg_status fg_child_start(const fg_child_options *options, fg_child *child_out, fg_error *err);
/* False once it has ended. */
bool fg_child_runs(const fg_child *child);
/* SIGTERM, and SIGKILL to one that does not listen. Accepts what was never started. */
void fg_child_stop(fg_child *child);

#endif
