/*
 * head - the end of a forward pass: rows of logits, and the tokens that are chosen from them. Part of a forward, and
 * owned by the engine thread like it.
 *
 * Rows are taken in parts, because logits are large. What is wanted of a part's rows decides where they are chosen
 * from, never what:
 *   HIGHEST   the highest logit of each row: product and choice are one operation, and no logits are kept
 *   CHOOSE    on a device with memory of its own: rows that want a token alone are chosen from there; of the others the
 *             logits come to the host
 *   LOGITS    all are looked at by the host
 */
#ifndef FORGE_COMMON_ENGINE_HEAD_H
#define FORGE_COMMON_ENGINE_HEAD_H

#include "common/engine/engine.h"
#include "common/engine/tp.h"
#include "kernels/ops.h"

typedef enum fg_head_kind { FG_HEAD_LOGITS, FG_HEAD_HIGHEST, FG_HEAD_CHOOSE } fg_head_kind;

typedef struct fg_head {
    fg_device *device;
    fg_device_stream *stream;
    bool is_host;    /* operations use the host's memory */
    fg_tp *tp;       /* NULL: the only rank */
    fg_tp_part part; /* this rank's tokens */
    uint32_t vocab_size;
    uint32_t rows_max;     /* of a part */
    fg_sampler **samplers; /* one for each of the device's threads */
    fg_shaper **shapers;   /* likewise */
    /* Per row of a part: the tokens that may be chosen, and whether that is to be looked at. */
    uint64_t *allowed;
    size_t allowed_words;
    bool *is_held;
    /* Scratch, which the forward takes. Per row of a step that needs logits: */
    uint32_t *seqs; /* index of its item */
    uint32_t *row_ids;
    /* Per row of a part. Shared with the device but for `logits`. */
    float *logits;
    float *logits_host; /* the same on a device with the host's memory */
    /* The states that logits come from, and where the host sees them. */
    const float *states;
    float *states_host;
    uint32_t state_length;
    fg_choice_row *wanted;
    uint32_t *choices;
    float *tops; /* logits of the choices: not finite where the highest is not */
    uint32_t *finite;
} fg_head;

/* Some rows of a step, from the one `first` of those that need logits. */
typedef struct fg_head_part {
    fg_head *head;
    fg_step *step;
    const uint32_t *positions; /* per row of the step */
    uint32_t first;
    uint32_t rows;
    fg_head_kind kind;
} fg_head_part;

/* FG_AGAIN when out of memory. Close may follow in any case, before the device's. */
fg_status fg_head_open(fg_head *head, fg_device *device, fg_device_stream *stream, fg_tp *tp,
                       uint32_t vocab_size, uint32_t step_rows_max, fg_error *err);
void fg_head_close(fg_head *head);

/* The next part of `head_count` rows; what its operations are to choose is written down. */
fg_head_part fg_head_part_from(fg_head *head, fg_step *step, const uint32_t *positions,
                               uint32_t first, uint32_t head_count);
/* The operations of a part, of as many rows or of some that pad it too; every rank's. */
void fg_head_run(const fg_head *head, const fg_panels *weight, const fg_activations *normed,
                 uint32_t rows, fg_head_kind kind);
/* Whether the device chooses all rows, as far as it can: nothing of them is looked at by the host. */
bool fg_head_is_chosen_there(const fg_head_part *part);
/* Behind the operations of a part: has the device bring the host what it is to look at. The end of all that. */
fg_device_event fg_head_bring(const fg_head_part *part);
/* Waits for that end, and hands the step's items what came of the part. True: the device has left rows to the host, and
 * what was chosen after those the device does not know. */
bool fg_head_take(fg_head_part *part, fg_device_event end);

#endif
