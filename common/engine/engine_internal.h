/*
 * engine_internal - what the engine's back ends share.
 */
#ifndef FORGE_COMMON_ENGINE_ENGINE_INTERNAL_H
#define FORGE_COMMON_ENGINE_ENGINE_INTERNAL_H

#include "common/engine/engine.h"

/* What a step is checked against. */
typedef struct fg_engine_bounds {
    fg_engine_limits limits;
    uint32_t vocab_size;
    uint32_t block_size;
    uint32_t block_count;
} fg_engine_bounds;

/* FG_BAD_INPUT, naming what is wrong, when a step breaks the limits or names a token or block that
 * does not exist. */
fg_status fg_engine_check_step(const fg_engine_bounds *bounds, const fg_step *step, fg_error *err);

#endif
