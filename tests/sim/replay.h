/*
 * replay - runs a flight record again: the calls that a router's dispatcher or a worker got then, at the times of then,
 * on those of this build. What they note of them must be what was noted then.
 *
 * What always holds: equal files give equal histories. Where this build does something else, the first such
 * place is told and nothing after it is run. A broken assertion aborts, as it did then: the caller runs this in a child
 * process and finds in `progress` how far it came.
 */
#ifndef FORGE_TESTS_SIM_REPLAY_H
#define FORGE_TESTS_SIM_REPLAY_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "common/base/status.h"
#include "common/obs/flight.h"

/* How far it came; the caller may share it with another process. */
typedef struct fg_replay_progress {
    uint64_t calls;            /* begun */
    uint64_t records;          /* of fg_flight_file.records that were found as they were */
    uint64_t began_ns, now_ns; /* times of the first call and of the last */
    uint64_t starts, sent;     /* requests that came, frames that went */
    uint32_t kind;             /* of the last call that was begun */
    bool last;                 /* the call that runs is the last one of the record */
    bool differs;
    bool ended;     /* all of it was run */
    char text[320]; /* differs: what came instead */
} fg_replay_progress;

typedef struct fg_replay_options {
    FILE *history; /* gets a line for each call and for what came of it; NULL: nobody reads it */
    fg_replay_progress *progress;
} fg_replay_options;

/* fg_flight_parse for a record of either kind. */
fg_status fg_replay_parse(const void *bytes, size_t size_bytes, fg_flight_file *file_out,
                          fg_error *err);
bool fg_replay_is_worker(const fg_flight_file *file);
const char *fg_replay_name(const fg_flight_file *file, uint32_t kind);
/* FG_BAD_INPUT: the file holds nonsense. FG_OK: look at the progress. */
fg_status fg_replay_run(const fg_flight_file *file, const fg_replay_options *options,
                        fg_error *err);

#endif
