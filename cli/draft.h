/*
 * draft - the small model that guesses for a worker's model (--speculative-model): its file, checked against the other one,
 * and the sizes that it gets.
 */
#ifndef FORGE_CLI_DRAFT_H
#define FORGE_CLI_DRAFT_H

#include "cli/model.h"
#include "common/conf/options.h"
#include "common/engine/engine.h"

typedef struct fg_loaded_draft {
    fg_weights *weights; /* NULL: there is none */
    fg_hparams hparams;
    fg_digest128 fingerprint;
    fg_engine_draft engine; /* what the engine is given; it points into this struct */
} fg_loaded_draft;

/* FG_BAD_INPUT where the flags around it contradict each other. */
fg_status fg_draft_check(const fg_serve_config *config, fg_error *err);
/* Nothing, where no such model was asked for. `block_count`: of `model`, whose sequences have `context_max` tokens at most.
 * FG_BAD_INPUT, naming the file, when it can't guess for that model. */
fg_status fg_loaded_draft_open(fg_loaded_draft *draft, const fg_serve_config *config,
                               const fg_loaded_model *model, uint32_t block_count,
                               uint32_t context_max, fg_error *err);
/* After the engine. */
void fg_loaded_draft_close(fg_loaded_draft *draft);

#endif
