/*
 * wire_samples - random valid messages of every kind, and a comparison. For the tests of
 * proto/wire.
 */
#ifndef FORGE_TESTS_UNIT_PROTO_WIRE_SAMPLES_H
#define FORGE_TESTS_UNIT_PROTO_WIRE_SAMPLES_H

#include "common/base/arena.h"
#include "common/base/rng.h"
#include "proto/wire.h"

/* A valid message whose arrays and texts live in `arena`. `size_max` bounds its arrays. */
fg_msg wire_sample(fg_msg_kind kind, fg_rng *rng, fg_arena *arena, uint32_t size_max);
/* NULL when both say the same, else the field that differs. */
const char *wire_difference(const fg_msg *a, const fg_msg *b);

#endif
