/*
 * forward - the one forward pass for all models, configured by hparams: takes a step's ragged batch
 * through embedding, layers, head and sampler on a device. Owned by the engine thread after create.
 *
 * All scratch is taken at create, sized by the engine's limits; rows pass through a layer in tiles, so
 * that scratch does not grow with the step. Tiles never show in a result. On a device with memory of its
 * own all rows of a step are one tile, and steps of one token a sequence are padded to one of few shapes,
 * so that the device can start their operations again as a whole.
 */
#ifndef FORGE_COMMON_ENGINE_FORWARD_H
#define FORGE_COMMON_ENGINE_FORWARD_H

#include "common/engine/engine.h"
#include "common/engine/tp.h"
#include "kernels/device.h"

typedef struct fg_forward fg_forward;

/* FG_BAD_INPUT when weights, hparams and layout do not fit each other or the instruction set is not
 * to be had; FG_AGAIN when out of memory. `tp`: of which rank it is, borrowed until destroy; NULL: of the only one. */
fg_status fg_forward_create(const fg_engine_options *options, fg_tp *tp, fg_forward **forward_out,
                            fg_error *err);
void fg_forward_destroy(fg_forward *forward);

/* What became of the weights, and what the operations run on; valid until destroy. */
const struct fg_weight_report *fg_forward_weights(const fg_forward *forward);
const fg_device *fg_forward_device(const fg_forward *forward);

/* The copies of a step that fg_engine_check_step has accepted, in order, with their digests. */
void fg_forward_copy(fg_forward *forward, fg_step *step);
/* Runs its sequences, then its digests; fills their *_out fields. Only rank 0 is given steps: */
void fg_forward_run(fg_forward *forward, fg_step *step);
/* the others compute their parts of one that rank 0 has begun. */
void fg_forward_follow(fg_forward *forward, fg_tp_step step);

#endif
