/*
 * replay_bench - flight records as bytes, for the tests of `forge sim --replay`: run, searched, changed.
 */
#ifndef FORGE_TESTS_UNIT_CLI_REPLAY_BENCH_H
#define FORGE_TESTS_UNIT_CLI_REPLAY_BENCH_H

#include "common/base/buf.h"
#include "tests/sim/replay.h"

/* The file that this flight would be written as. */
fg_buf replay_kept(const fg_flight *flight);
fg_flight_file replay_parsed(const fg_buf *bytes);
/* The exit code of `forge sim --replay` for these bytes. */
int replay_code(const fg_buf *bytes);
/* How far they run in this process. */
fg_replay_progress replay_run(const fg_buf *bytes);
/* Runs each beginning of a record that lies in one chunk: a crash may come after any of its parts. */
void replay_each_prefix(fg_buf *bytes);
/* The first record of this kind in what would be run. */
void *replay_find(fg_buf *bytes, uint32_t kind);
/* Makes the hashes right after a change. */
void replay_seal(fg_buf *bytes);
bool replay_contains(const fg_buf *bytes, const void *what, size_t size_bytes);
/* As if the process had ended by SIGABRT during the last call. */
void replay_end_inside(fg_buf *bytes);

/* A change, and what the command then says of the record. */
typedef struct replay_case {
    const char *name;
    void (*change)(fg_buf *bytes);
    int code;
} replay_case;
void replay_check_cases(const fg_flight *flight, const replay_case *cases, size_t count);

#endif
