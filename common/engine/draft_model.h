/*
 * draft_model - the small model that an engine guesses with: weights, a KV arena, a forward pass, and the drafter that
 * drives it. Opened by whoever opens the engine, run by the engine's thread, on its device and with as many threads.
 */
#ifndef FORGE_COMMON_ENGINE_DRAFT_MODEL_H
#define FORGE_COMMON_ENGINE_DRAFT_MODEL_H

#include "common/engine/engine.h"

typedef struct fg_draft_model fg_draft_model;

/* For an engine that is opened with these options, whose `draft` says what is opened here. FG_BAD_INPUT when that does not
 * fit them, FG_AGAIN when out of memory. */
fg_status fg_draft_model_open(const fg_engine_options *options, fg_draft_model **model_out,
                              fg_error *err);
void fg_draft_model_close(fg_draft_model *model);
/* Answers the asks of a step that has run. */
void fg_draft_model_round(fg_draft_model *model, fg_step *step);
/* Valid until close. */
const struct fg_weight_report *fg_draft_model_weights(const fg_draft_model *model);

#endif
