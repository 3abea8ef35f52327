#include <stdlib.h>
#include <string.h>

#include "common/engine/engine_internal.h"
#include "common/engine/forward_internal.h"

fg_status fg_forward_open_comm(fg_forward *forward, fg_tp_way way, fg_error *err)
{
    const fg_hparams *h = &forward->hparams;
    fg_tp *tp = forward->tp;
    size_t attended = fg_tp_widest(tp, h->head_count * h->head_dim, forward->parts.q_unit);
    size_t hidden = fg_tp_widest(tp, h->ffn_length, FG_TP_PANEL);
    size_t residual = fg_tp_widest(tp, h->embedding_length, FG_TP_PANEL);
    size_t widest = attended > hidden ? attended : hidden;
    widest = widest > residual ? widest : residual;
    fg_status status =
        fg_tp_open_comm(tp, way, forward->stream, forward->device, widest * fg_tp_size(tp), err);
    const char *graphs = getenv("FORGE_NCCL_GRAPHS");
    forward->ranks_replay = fg_tp_has_comm(tp) && (graphs == NULL || strcmp(graphs, "off") != 0);
    return status;
}

/* --- rows --- */

float *fg_forward_common_attended(const fg_forward *forward)
{
    return forward->tp == NULL ? NULL : fg_tp_memory_of(forward->tp)->attended;
}

float *fg_forward_common_added(const fg_forward *forward)
{
    return forward->tp == NULL ? NULL : fg_tp_memory_of(forward->tp)->added;
}

float *fg_forward_common_hidden(const fg_forward *forward)
{
    return forward->tp == NULL ? NULL : fg_tp_memory_of(forward->tp)->hidden;
}

/* This rank's columns of the residual where they lie apart, ready to be sent; NULL: they lie in it. */
float *fg_forward_own_residual(const fg_forward *forward, const float *residual)
{
    size_t row = (size_t)(residual - forward->residual) / forward->hparams.embedding_length;
    return fg_tp_has_comm(forward->tp)
               ? forward->own_residual + row * forward->parts.embedding.count
               : NULL;
}

/* Those that embedding has made. */
void fg_forward_take_own_residual(const fg_forward *forward, uint32_t rows)
{
    fg_tp_part part = forward->parts.embedding;
    const fg_copy_rows copy = { .target = forward->own_residual,
                                .target_stride = part.count * sizeof(float),
                                .source = forward->residual + part.first,
                                .source_stride = forward->hparams.embedding_length * sizeof(float),
                                .row_bytes = part.count * sizeof(float),
                                .rows = rows };
    fg_device_copy_rows(forward->stream, &copy);
}

/* Everybody's columns of rows, where there are other ranks: on a CPU operations use them where they meet. */
void fg_forward_gather(fg_forward *forward, const fg_activations *all, float *common,
                       fg_tp_part part, uint32_t unit, const float *own, uint32_t rows)
{
    fg_tp_columns columns = { .common = common,
                              .all = forward->is_host ? NULL : all->values,
                              .columns = all->columns,
                              .unit = unit,
                              .part = part,
                              .own = own };
    fg_tp_gather(forward->tp, forward->stream, &columns, rows);
}

void fg_forward_gather_residual(fg_forward *forward, float *residual, uint32_t rows)
{
    if (forward->tp == NULL) {
        return;
    }
    float *common = fg_tp_memory_of(forward->tp)->residual + (residual - forward->residual);
    fg_tp_columns columns = { .common = common,
                              .all = forward->is_host ? NULL : residual,
                              .columns = forward->hparams.embedding_length,
                              .unit = FG_TP_PANEL,
                              .part = forward->parts.embedding,
                              .own = fg_forward_own_residual(forward, residual) };
    fg_tp_gather(forward->tp, forward->stream, &columns, rows);
}

/* --- steps --- */

/* Tells the other ranks what their rows are, and has them begin. */
void fg_forward_begin_ranks(fg_forward *forward, fg_step *step, uint32_t rows, uint32_t padded,
                            uint32_t head_count)
{
    const fg_tp_memory *common = fg_tp_memory_of(forward->tp);
    uint32_t row = 0, tables = 0, part = 0;
    for (uint32_t s = 0; s < step->seq_count; s++) {
        const fg_step_seq *seq = &step->seqs[s];
        uint32_t blocks =
            fg_kv_blocks_for(seq->first_position + seq->token_count, forward->layout.block_size);
        memcpy(common->block_ids + tables, seq->block_ids, blocks * sizeof *seq->block_ids);
        for (uint32_t i = 0; i < seq->token_count; i++) {
            common->tables[row++] = tables;
        }
        tables += blocks;
    }
    for (uint32_t first = 0; first < head_count; first += forward->place->head.rows_max) {
        common->kinds[part++] = fg_head_part_from(&forward->place->head, step,
                                                  forward->place->positions, first, head_count)
                                    .kind;
    }
    fg_tp_begin(forward->tp,
                (fg_tp_step){ .rows = rows, .padded = padded, .head_rows = head_count });
}

/* Ranks with KV blocks of their own. */
static bool has_own_blocks(const fg_forward *forward)
{
    return forward->tp != NULL && !forward->is_host;
}

static uint32_t list_part(uint32_t first, uint32_t count)
{
    return count - first < FG_TP_LIST_MAX ? count - first : FG_TP_LIST_MAX;
}

void fg_forward_copy(fg_forward *forward, fg_step *step)
{
    if (!has_own_blocks(forward)) {
        fg_kv_memory_copy(&forward->kv, step->copies, step->copy_count);
        return;
    }
    for (uint32_t first = 0; first < step->copy_count; first += FG_TP_LIST_MAX) {
        uint32_t count = list_part(first, step->copy_count);
        memcpy(fg_tp_memory_of(forward->tp)->copies, step->copies + first,
               count * sizeof *step->copies);
        fg_tp_begin(forward->tp, (fg_tp_step){ .copies = count });
        fg_kv_memory_copy(&forward->kv, step->copies + first, count);
        fg_tp_meet(forward->tp); /* the list may be written again */
    }
}

void fg_forward_digest(fg_forward *forward, fg_step *step)
{
    if (!has_own_blocks(forward)) {
        fg_kv_memory_digest(&forward->kv, step->digests, step->digest_count);
        return;
    }
    for (uint32_t first = 0; first < step->digest_count; first += FG_TP_LIST_MAX) {
        uint32_t count = list_part(first, step->digest_count);
        memcpy(fg_tp_memory_of(forward->tp)->digests, step->digests + first,
               count * sizeof *step->digests);
        fg_tp_begin(forward->tp, (fg_tp_step){ .digests = count });
        fg_kv_memory_digest(&forward->kv, step->digests + first, count);
        fg_tp_meet(forward->tp);
    }
}
