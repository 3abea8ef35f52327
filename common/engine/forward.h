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

/* Has the ranks' devices hand each other their columns, as fg_tp_open_comm says: rank 0, when all ranks are ready. */
fg_status fg_forward_open_comm(fg_forward *forward, fg_tp_way way, fg_error *err);

/* What became of the weights, and what the operations run on; valid until destroy. */
const struct fg_weight_report *fg_forward_weights(const fg_forward *forward);
const fg_device *fg_forward_device(const fg_forward *forward);

/* The copies of a step that fg_engine_check_step has accepted, in order, with their digests. */
void fg_forward_copy(fg_forward *forward, fg_step *step);

/*
 * A step's sequences are begun, then the step is ended: its digests are computed, its *_out fields are filled. Only rank 0
 * is given steps. Begin returns when all has run; but steps that a device with memory of its own starts again as a whole
 * are in flight then, and the step after such a one may be begun behind it before it has ended:
 *
 *   free ---begin---> in flight ---end---> free
 *                     in flight ---begin_next---> in flight, next behind it ---end---> in flight (the next one)
 *
 * Tokens that the next one follows go to it on the device. If it turns out, when the first is ended, that the host had to
 * choose one of them, the next one is run again with it, in the same slots, and nothing of its first run is seen.
 */
void fg_forward_begin(fg_forward *forward, fg_step *step);
/* False: it can't be begun now (copies, a prompt, or the step in flight has digests or rows that the host looks at);
 * nothing has happened. */
bool fg_forward_begin_next(fg_forward *forward, fg_step *next);
/* Whether it ever can. */
bool fg_forward_goes_ahead(const fg_forward *forward);
/* Whether the step that was begun is in flight, nothing is begun behind it, and the device has not come to its end. */
bool fg_forward_is_running(const fg_forward *forward);
/* Whether a step is in flight. */
bool fg_forward_is_begun(const fg_forward *forward);
void fg_forward_end(fg_forward *forward, fg_step *step);

/* Steps that were begun behind another, and how many of them were run again. For tests, while no step is in flight. */
typedef struct fg_forward_ahead {
    uint64_t begun, again;
} fg_forward_ahead;
fg_forward_ahead fg_forward_went_ahead(const fg_forward *forward);
/* The same of an engine that fg_engine_open_model has opened. */
fg_forward_ahead fg_engine_model_went_ahead(const fg_engine *engine);

/* The other ranks compute their parts of a step that rank 0 has begun. */
void fg_forward_follow(fg_forward *forward, fg_tp_step step);

#endif
