/*
 * recorder - the flight records of a process's parts (common/obs/flight), as its flags want them.
 */
#ifndef FORGE_CLI_RECORDER_H
#define FORGE_CLI_RECORDER_H

#include "common/conf/options.h"
#include "common/obs/flight.h"

/* One that is written after a crash, from now on. NULL with --flight-recorder-mb 0. `process` names its file. FG_BAD_INPUT:
 * --flight-dir takes no files. */
fg_status fg_recorder_open(const fg_serve_config *config, const char *process, uint64_t shape,
                           const void *preface, size_t preface_bytes, fg_flight **flight_out,
                           fg_error *err);
void fg_recorder_close(fg_flight *flight);
/* SIGUSR2. `who` is for the log. */
void fg_recorder_write(const fg_flight *flight, const char *who);

#endif
