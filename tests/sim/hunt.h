/*
 * hunt - runs worlds where a broken rule ends only the world: in child processes. Finds out what broke,
 * goes on with the next seed, and makes a failing world smaller. For one thread, before any other is
 * started (it forks).
 */
#ifndef FORGE_TESTS_SIM_HUNT_H
#define FORGE_TESTS_SIM_HUNT_H

#include "common/base/status.h"
#include "tests/sim/world.h"

enum { FG_SIM_REASON_MAX = 400, FG_SIM_COMMAND_MAX = 600 };

typedef struct fg_sim_failure {
    fg_sim_options options;         /* that show it */
    fg_sim_report report;           /* as far as it came */
    char reason[FG_SIM_REASON_MAX]; /* one line: where in the code, and what */
    char place[128];                /* its beginning: what makes two failures the same */
} fg_sim_failure;

typedef struct fg_sim_hunt_options {
    fg_sim_options world; /* its seed is the first */
    uint64_t count;
    uint32_t failures_max; /* then it stops */
    /* After each batch of worlds. */
    void (*on_progress)(void *ctx, const fg_sim_report *sum, uint64_t failed);
    void (*on_failure)(void *ctx, const fg_sim_failure *failure);
    void *ctx;
} fg_sim_hunt_options;

/* FG_AGAIN: no memory or no process to be had. *sum_out covers the worlds that passed. */
fg_status fg_sim_hunt(const fg_sim_hunt_options *options, fg_sim_report *sum_out,
                      uint64_t *failed_out, fg_error *err);

/* One world. *failed_out: it broke a rule, and *failure_out says which; else *report_out is filled. What it
 * writes to standard error goes to `log` (NULL: nowhere). */
fg_status fg_sim_try(const fg_sim_options *options, FILE *log, fg_sim_report *report_out,
                     bool *failed_out, fg_sim_failure *failure_out, fg_error *err);

/* Leaves out of a failing world what it does not need to fail in the same place: kinds of faults, requests,
 * workers, time, tokens. Stops after `limit_ms` of real time. Returns how many worlds it tried. */
uint32_t fg_sim_shrink(fg_sim_failure *failure, uint32_t limit_ms);

/* The command that runs this world. */
void fg_sim_command(const fg_sim_options *options, char out[FG_SIM_COMMAND_MAX]);

#endif
