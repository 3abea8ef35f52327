/*
 * calibrate - how fast an engine is, measured at start: a few small steps before there is any work. What
 * is written into the KV arena is garbage, as all of it is before the first request.
 */
#ifndef FORGE_COMMON_ENGINE_CALIBRATE_H
#define FORGE_COMMON_ENGINE_CALIBRATE_H

#include "common/engine/engine.h"

typedef struct fg_calibrate_options {
    fg_engine *engine; /* idle, and nobody polls it meanwhile */
    fg_kv_layout layout;
    void *arena; /* NULL: the blocks are in the device's memory alone */
    uint32_t block_count;
    fg_engine_limits limits;
    uint32_t vocab_size; /* steps are over tokens from all of it: experts are chosen by token */
    /* After the warm-up, no further step begins after so much; what is not known then is 0. */
    uint64_t budget_ns;
    /* Nobody chooses between workers by it: a large model runs the warm-up alone, and what a prompt's token
     * costs is guessed from that. */
    bool is_alone;
} fg_calibrate_options;

/* Times of steps, ns; 0: not measured. */
typedef struct fg_calibration {
    uint64_t prefill_ns_base, prefill_ns_per_token;
    uint64_t prefill_ps_per_kv; /* picoseconds for each pair of a token and an earlier one */
    uint64_t step_ns_base, step_ns_per_row;
    uint64_t copy_ns_per_block;
} fg_calibration;

/* FG_BROKEN: a step could not run. */
fg_status fg_engine_calibrate(const fg_calibrate_options *options, fg_calibration *out,
                              fg_error *err);

#endif
