/*
 * replay_show - flight records in words, and whether they are whole.
 */
#ifndef FORGE_TESTS_SIM_REPLAY_SHOW_H
#define FORGE_TESTS_SIM_REPLAY_SHOW_H

#include "tests/sim/replay_internal.h"

bool fg_replay_router_is_sound(const fg_flight_record *record);
void fg_replay_router_describe(uint32_t kind, const void *bytes, uint32_t size, char *text,
                               size_t capacity);
bool fg_replay_worker_is_sound(const fg_flight_record *record);
void fg_replay_worker_describe(uint32_t kind, const void *bytes, uint32_t size, char *text,
                               size_t capacity);

#endif
