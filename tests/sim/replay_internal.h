/*
 * replay_internal - what replay.c (making the calls) and replay_show.c (telling of them) share.
 */
#ifndef FORGE_TESTS_SIM_REPLAY_INTERNAL_H
#define FORGE_TESTS_SIM_REPLAY_INTERNAL_H

#include "router/flight_records.h"
#include "tests/sim/replay.h"

/* Whether a record has the size that its kind asks for, and texts that end. */
bool fg_replay_is_sound(const fg_flight_record *record);
/* A line for it; `began_ns` is the time that counts as 0. */
void fg_replay_show(FILE *out, const fg_flight_record *record, uint64_t began_ns);
/* In a few words. */
void fg_replay_describe(uint32_t kind, const void *bytes, uint32_t size, char *text,
                        size_t capacity);

#endif
