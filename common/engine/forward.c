#include <stdlib.h>
#include <string.h>

#include "common/base/dtype.h"
#include "common/base/limits.h"
#include "common/base/mem.h"
#include "common/engine/engine_internal.h"
#include "common/engine/forward_internal.h"

/* Steps that come again and again are replayed. */
static bool replays(const fg_forward *forward)
{
    return !forward->is_host && (forward->tp == NULL || forward->ranks_replay);
}

/* Whether a step may begin on the device while the one before it runs. */
static bool may_go_ahead(const fg_forward *forward)
{
    const char *ahead = getenv("FORGE_CUDA_AHEAD");
    return replays(forward) && forward->tp == NULL && (ahead == NULL || strcmp(ahead, "off") != 0);
}

static fg_status check_options(const fg_engine_options *options, fg_error *err)
{
    const fg_hparams *h = options->hparams;
    const fg_kv_layout *layout = &options->layout;
    const fg_engine_limits *limits = &options->limits;
    if (layout->layer_count != h->layer_count || layout->kv_head_count != h->kv_head_count ||
        layout->head_dim != h->head_dim) {
        return fg_fail(err, FG_BAD_INPUT, "the KV layout is not this model's");
    }
    if (h->layer_count == 0 || h->kv_head_count == 0 || h->head_count % h->kv_head_count != 0 ||
        h->rope_dims > h->head_dim || h->rope_dims % 2 != 0) {
        return fg_fail(err, FG_BAD_INPUT, "the model's head counts or rope dimensions do not fit");
    }
    if (limits->step_tokens_max == 0 || limits->step_seqs_max == 0 || limits->context_max == 0 ||
        limits->context_max > FG_LIMIT_CONTEXT_TOKENS) {
        return fg_fail(err, FG_BAD_INPUT, "the engine's step limits are out of range");
    }
    return fg_engine_check_kv(options->device, layout->dtype, layout->block_size, err);
}

static fg_tp_part times(fg_tp_part part, uint32_t factor)
{
    return (fg_tp_part){ .first = part.first * factor, .count = part.count * factor };
}

static rank_parts parts_of(const fg_hparams *h, const fg_tp *tp)
{
    rank_parts parts = { .kv_heads = fg_tp_part_of(tp, h->kv_head_count, 1),
                         .embedding = fg_tp_part_of(tp, h->embedding_length, FG_TP_PANEL),
                         .ffn = fg_tp_part_of(tp, h->ffn_length, FG_TP_PANEL),
                         .vocab = fg_tp_part_of(tp, h->vocab_size, FG_TP_PANEL) };
    parts.q_unit = h->head_count / h->kv_head_count * h->head_dim;
    parts.heads = times(parts.kv_heads, h->head_count / h->kv_head_count);
    parts.q = times(parts.heads, h->head_dim);
    parts.kv = times(parts.kv_heads, h->head_dim);
    return parts;
}

static fg_status open_device(fg_forward *forward, const fg_engine_options *options, fg_error *err)
{
    fg_device_options device = { .kind = options->device,
                                 .isa = options->cpu_isa,
                                 .thread_count = options->thread_count,
                                 .places = options->places,
                                 .share = options->share,
                                 .step_rows_max = fg_forward_step_rows(&options->limits),
                                 .step_seqs_max = options->limits.step_seqs_max,
                                 .context_max = options->limits.context_max,
                                 .head_count = forward->parts.heads.count,
                                 .kv_head_count = forward->parts.kv_heads.count,
                                 .head_dim = options->hparams->head_dim,
                                 .block_size = options->layout.block_size };
    fg_status status = fg_device_open(&device, &forward->device, err);
    if (status != FG_OK) {
        return status;
    }
    forward->is_host = fg_device_is_host(forward->device);
    const fg_hparams *h = options->hparams;
    if (!forward->is_host &&
        (h->gelu || h->post_norms || h->window > 0 || h->unturned_period > 0)) {
        return fg_fail(err, FG_BAD_INPUT,
                       "models of architecture %s%s run on CPUs only so far: --device cpu",
                       h->architecture, h->window > 0 ? " with a window" : "");
    }
    return fg_device_stream_open(forward->device, &forward->stream, err);
}

static void set_turns(fg_forward *forward)
{
    uint32_t pair_count = forward->hparams.rope_dims / 2;
    const fg_hparams *h = &forward->hparams;
    const fg_rope_scaling *scaling = &h->rope_scaling;
    fg_rope_shape shape = { .theta = h->rope_theta,
                            .pair_count = pair_count,
                            .divisors = h->rope_freqs,
                            .factor = scaling->factor,
                            .yarn = scaling->yarn,
                            .beta_fast = scaling->beta_fast,
                            .beta_slow = scaling->beta_slow,
                            .original_context = scaling->original_context };
    fg_rope_frequencies(&shape, forward->frequencies);
    float spread = scaling->yarn ? fg_rope_yarn_magnitude(scaling->factor) : 1.0f;
    forward->turns[TURNS_ALL] =
        (fg_rope_turns){ .frequencies = forward->frequencies,
                         .pair_count = pair_count,
                         .magnitude = (double)scaling->magnitude * (double)spread };
    if (fg_hparams_has_window_turns(h)) {
        shape =
            (fg_rope_shape){ .theta = h->window_theta, .pair_count = pair_count, .factor = 1.0f };
        fg_rope_frequencies(&shape, forward->frequencies + pair_count);
        forward->turns[TURNS_WINDOW] =
            (fg_rope_turns){ .frequencies = forward->frequencies + pair_count,
                             .pair_count = pair_count,
                             .magnitude = 1.0 };
    }
}

fg_status fg_forward_create(const fg_engine_options *options, fg_tp *tp, fg_forward **forward_out,
                            fg_error *err)
{
    const fg_hparams *h = options->hparams;
    fg_status status = check_options(options, err);
    if (status != FG_OK) {
        return status;
    }
    fg_forward *forward = fg_mem_alloc(sizeof *forward);
    if (forward == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for the forward pass");
    }
    forward->hparams = *h;
    forward->layout = options->layout;
    forward->limits = options->limits;
    forward->tp = tp;
    forward->place = &forward->places[0];
    forward->parts = parts_of(h, tp);
    status = open_device(forward, options, err);
    if (status == FG_OK) {
        status = fg_forward_experts_check(forward, err);
    }
    if (status != FG_OK) {
        goto destroy;
    }
    forward->goes_ahead = may_go_ahead(forward);
    forward->layers = fg_mem_array(h->layer_count, sizeof(layer_weights));
    forward->frequencies = fg_mem_array(h->rope_dims / 2, TURN_KINDS * sizeof(double));
    if (forward->layers == NULL || forward->frequencies == NULL) {
        status = fg_fail(err, FG_AGAIN, "out of memory for the forward pass");
        goto destroy;
    }
    status = fg_head_open(&forward->place->head, forward->device, forward->stream, tp,
                          h->vocab_size, fg_forward_step_rows(&options->limits), err);
    if (status != FG_OK) {
        goto destroy;
    }
    status = fg_forward_load(forward, options, err);
    if (status != FG_OK) {
        goto destroy;
    }
    status = fg_forward_take_scratch(forward, err);
    if (status == FG_OK) {
        status = fg_forward_experts_open(forward, err);
    }
    if (status != FG_OK) {
        goto destroy;
    }
    status = fg_kv_memory_open(options, forward->device, forward->stream, tp,
                               forward->parts.kv_heads, &forward->kv, err);
    if (status == FG_OK && tp != NULL && !forward->is_host) {
        /* Without it copies are only slower. */
        const fg_shared *shared = fg_tp_shared(tp);
        forward->has_pinned =
            fg_device_pin(forward->device, shared->memory, shared->size_bytes, NULL) == FG_OK;
    }
    forward->kv_first = forward->is_host ? forward->parts.kv_heads.first : 0;
    if (status != FG_OK) {
        goto destroy;
    }
    set_turns(forward);
    *forward_out = forward;
    return FG_OK;

destroy:
    fg_forward_destroy(forward);
    return status;
}

void fg_forward_destroy(fg_forward *forward)
{
    if (forward == NULL) {
        return;
    }
    if (forward->has_pinned) {
        fg_device_unpin(forward->device, fg_tp_shared(forward->tp)->memory);
    }
    if (forward->tp != NULL) {
        fg_tp_close_comm(forward->tp);
    }
    fg_kv_memory_close(&forward->kv);
    fg_forward_experts_close(forward);
    fg_forward_give_scratch(forward);
    fg_weight_store_close(forward->store);
    fg_head_close(&forward->places[0].head);
    fg_mem_free(forward->frequencies);
    fg_mem_free(forward->scaled_norm);
    fg_mem_free(forward->layers);
    fg_device_stream_close(forward->stream);
    fg_device_close(forward->device);
    fg_mem_free(forward);
}

const fg_weight_report *fg_forward_weights(const fg_forward *forward)
{
    return forward->is_host ? fg_weight_store_report(forward->store) : &forward->device_report;
}

const fg_device *fg_forward_device(const fg_forward *forward)
{
    return forward->device;
}

/* What the products read beside floats. */
static uint32_t forms_of(const fg_forward *forward, const fg_linear *list, uint32_t count)
{
    uint32_t forms = 0;
    for (uint32_t i = 0; i < count; i++) {
        forms |= fg_op_linear_form(forward->stream, list[i].weight.type);
    }
    return forms;
}

/* Rows in `normed`. */
static void norm_rows(fg_forward *forward, const float *in, const uint32_t *row_ids,
                      const float *weight, uint32_t forms, uint32_t rows)
{
    fg_rmsnorm args = { .in = in,
                        .row_ids = row_ids,
                        .weight = weight,
                        .epsilon = forward->hparams.norm_epsilon,
                        .forms = forms,
                        .out = forward->normed };
    fg_op_rmsnorm(forward->stream, &args, rows);
}

/* A product that is added to the residual, or that end_half() adds to it: this rank's columns of it. */
fg_linear fg_forward_add_to(const fg_forward *forward, const fg_panels *weight, float *residual)
{
    fg_tp_part part = forward->parts.embedding;
    if (forward->hparams.post_norms) {
        return (fg_linear){ .weight = *weight,
                            .out = forward->added.values + part.first,
                            .out_stride = forward->hparams.embedding_length };
    }
    float *own = fg_forward_own_residual(forward, residual);
    return (fg_linear){ .weight = *weight,
                        .out = own != NULL ? own : residual + part.first,
                        .out_stride = own != NULL ? part.count : forward->hparams.embedding_length,
                        .accumulate = true };
}

/* What this half of a layer makes is in the residual, or on its way there through a norm; then all ranks have all of it. */
static void end_half(fg_forward *forward, const float *post_norm, float *residual, uint32_t rows)
{
    fg_tp_part part = forward->parts.embedding;
    if (post_norm != NULL) {
        fg_forward_gather(forward, &forward->added, fg_forward_common_added(forward), part,
                          FG_TP_PANEL, NULL, rows);
        fg_rmsnorm args = { .in = forward->added.values,
                            .weight = post_norm,
                            .epsilon = forward->hparams.norm_epsilon,
                            .out = forward->normed,
                            .sum = residual,
                            .sum_first = part.first,
                            .sum_count = part.count };
        fg_op_rmsnorm(forward->stream, &args, rows);
    }
    fg_forward_gather_residual(forward, residual, rows);
}

static fg_paged_kv layer_kv(const fg_forward *forward, uint32_t index)
{
    const fg_kv_layout *layout = &forward->kv.own;
    return (fg_paged_kv){ .arena = forward->kv.arena,
                          .block_bytes = layout->block_bytes,
                          .key_offset = fg_kv_layout_offset(layout, index, 0, forward->kv_first),
                          .value_offset = fg_kv_layout_offset(layout, index, 1, forward->kv_first),
                          .head_bytes = layout->head_bytes,
                          .scale_offset = layout->scale_offset,
                          .block_size = layout->block_size,
                          .dtype = layout->dtype,
                          .kv_head_count = forward->parts.kv_heads.count,
                          .head_dim = forward->hparams.head_dim };
}

/* What rows' attention reads, from products of theirs on: q, or K and V, or all. */
static void turn_and_store(fg_forward *forward, uint32_t index, uint32_t first, uint32_t rows,
                           float *q, bool stores)
{
    const fg_hparams *h = &forward->hparams;
    const layer_weights *layer = &forward->layers[index];
    fg_paged_kv kv = layer_kv(forward, index);
    bool own_turns = fg_hparams_window(h, index) > 0 && fg_hparams_has_window_turns(h);
    const float *table = forward->rope_tables[own_turns ? TURNS_WINDOW : TURNS_ALL];
    fg_rope_store store = { .q = q,
                            .k = stores ? forward->k : NULL,
                            .v = stores ? forward->v : NULL,
                            .q_bias = layer->q_bias,
                            .k_bias = layer->k_bias,
                            .v_bias = layer->v_bias,
                            .q_norm = layer->q_norm,
                            .k_norm = layer->k_norm,
                            .norm_epsilon = h->norm_epsilon,
                            .kv_rows = forward->place->kv_rows + first,
                            .table = table + (size_t)first * h->rope_dims,
                            .pair_count = fg_hparams_is_turned(h, index) ? h->rope_dims / 2 : 0,
                            .head_count = q != NULL ? forward->parts.heads.count : 0,
                            .interleaved = h->rope_interleaved };
    fg_op_rope_store(forward->stream, &kv, &store, rows);
}

/* Which products of a layer's rows attention begins with. */
typedef enum attention_parts {
    PART_Q = 1,
    PART_KV = 2,
    PARTS_ALL = PART_Q | PART_KV,
} attention_parts;

/* The first half of a tile's attention; its q goes to row `at` of all. */
static void begin_attention(fg_forward *forward, uint32_t index, uint32_t first, uint32_t rows,
                            uint32_t at, attention_parts parts)
{
    const layer_weights *layer = &forward->layers[index];
    float *q = forward->q + (size_t)at * layer->q.outputs;
    const fg_linear qkv[] = {
        { .weight = layer->q, .out = q, .out_stride = layer->q.outputs },
        { .weight = layer->k, .out = forward->k, .out_stride = layer->k.outputs },
        { .weight = layer->v, .out = forward->v, .out_stride = layer->v.outputs },
    };
    uint32_t from = (parts & PART_Q) != 0 ? 0 : 1;
    uint32_t end = (parts & PART_KV) != 0 ? 3 : 1;
    const float *in = forward->residual + (size_t)first * forward->hparams.embedding_length;
    /* Rows are read as all three products together read them, whichever of them follow: groups beside super-groups are
     * other groups. Both together are in no tiles. */
    uint32_t forms = forms_of(forward, qkv, 3);
    fg_activations normed = forward->normed;
    if ((forms & FG_FORM_SUPERS) != 0 && (forms & FG_FORM_QUANTS) != 0) {
        normed.quant_tiles = NULL;
    }
    norm_rows(forward, in, NULL, layer->attn_norm, forms, rows);
    fg_op_linear(forward->stream, qkv + from, end - from, &normed, rows);
    turn_and_store(forward, index, first, rows, from == 0 ? q : NULL, end == 3);
}

/* Whether a device's attention makes the pairs that the output's product reads, so that nothing else prepares them. */
static bool attends_pairs(const fg_forward *forward, uint32_t index)
{
    const fg_linear output = { .weight = forward->layers[index].output };
    return forms_of(forward, &output, 1) == FG_FORM_PAIRS && !forward->is_host &&
           forward->tp == NULL;
}

/* Of rows whose q lies in all from row 0 on. */
static void attend(fg_forward *forward, uint32_t index, uint32_t first, uint32_t rows)
{
    const fg_hparams *h = &forward->hparams;
    fg_paged_kv kv = layer_kv(forward, index);
    float *own = forward->own_attended.values;
    bool pairs = attends_pairs(forward, index);
    fg_attend attend = { .q = forward->q,
                         .kv_rows = forward->place->kv_rows + first,
                         .head_count = forward->parts.heads.count,
                         .window = fg_hparams_window(h, index),
                         .scale = h->attention_scale,
                         .out = pairs         ? NULL
                                : own != NULL ? own
                                              : forward->attended.values,
                         .pairs = pairs ? forward->attended.pairs : NULL };
    fg_op_attend(forward->stream, &kv, &attend, rows);
}

/* The second half, of a tile whose rows were attended from row `at` of all on. */
static void end_attention(fg_forward *forward, uint32_t index, uint32_t first, uint32_t rows,
                          uint32_t at)
{
    const layer_weights *layer = &forward->layers[index];
    const rank_parts *parts = &forward->parts;
    float *residual = forward->residual + (size_t)first * forward->hparams.embedding_length;
    fg_linear output = fg_forward_add_to(forward, &layer->output, residual);
    uint32_t forms = forms_of(forward, &output, 1);
    fg_activations attended = forward->attended;
    attended.values += (size_t)at * attended.columns;
    fg_forward_gather(forward, &attended, fg_forward_common_attended(forward), parts->q,
                      parts->q_unit, forward->own_attended.values, rows);
    if (forms != 0 && !attends_pairs(forward, index)) {
        fg_op_prepare(forward->stream, &attended, forms, rows);
    }
    fg_op_linear(forward->stream, &output, 1, &attended, rows);
    end_half(forward, layer->attn_post_norm, residual, rows);
}

static void feed_forward(fg_forward *forward, uint32_t index, uint32_t first, uint32_t rows)
{
    const fg_hparams *h = &forward->hparams;
    const layer_weights *layer = &forward->layers[index];
    float *residual = forward->residual + (size_t)first * h->embedding_length;
    if (h->expert_count > 0) {
        fg_forward_mix(forward, index, residual, rows);
        return;
    }
    uint32_t forms = fg_op_linear_form(forward->stream, layer->gate.type) |
                     fg_op_linear_form(forward->stream, layer->up.type);
    norm_rows(forward, residual, NULL, layer->ffn_norm, forms, rows);
    fg_linear down = fg_forward_add_to(forward, &layer->down, residual);
    uint32_t down_forms = forms_of(forward, &down, 1);
    bool alone = forward->tp == NULL;
    fg_gated gated = { .gate = layer->gate,
                       .up = layer->up,
                       .kind = h->gelu ? FG_GATE_GELU : FG_GATE_SILU,
                       .forms = alone ? down_forms : 0,
                       .out = alone ? forward->hidden : forward->own_hidden };
    fg_op_gated(forward->stream, &gated, &forward->normed, rows);
    fg_forward_gather(forward, &forward->hidden, fg_forward_common_hidden(forward),
                      forward->parts.ffn, FG_TP_PANEL, forward->own_hidden.values, rows);
    if (!alone && down_forms != 0) {
        fg_op_prepare(forward->stream, &forward->hidden, down_forms, rows);
    }
    fg_op_linear(forward->stream, &down, 1, &forward->hidden, rows);
    end_half(forward, layer->ffn_post_norm, residual, rows);
}

/* A token that the step in flight chooses: the device has it first. */
static uint32_t token_of_row(const fg_step *before, const fg_step_seq *seq, uint32_t index)
{
    return before == NULL || seq->follows == NULL
               ? fg_step_seq_token(seq, index)
               : FG_TOKEN_CHOSEN | (uint32_t)(seq->follows - before->seqs);
}

/* Flattens the step's sequences to rows; returns their number and that of the wanted logits rows. `before`: NULL, or the
 * step that is in flight, with one row for each item. */
static uint32_t lay_out_rows(fg_forward *forward, fg_step *step, const fg_step *before,
                             uint32_t *head_count_out)
{
    fg_step_place *place = forward->place;
    uint32_t rows = 0;
    uint32_t head_count = 0;
    for (uint32_t s = 0; s < step->seq_count; s++) {
        fg_step_seq *seq = &step->seqs[s];
        seq->broken_out = false;
        for (uint32_t i = 0; i < seq->token_count; i++) {
            place->tokens[rows] = token_of_row(before, seq, i);
            place->positions[rows] = seq->first_position + i;
            place->kv_rows[rows] = (fg_kv_row){ .block_ids = seq->block_ids,
                                                .position = seq->first_position + i,
                                                .twin = fg_step_seq_twin(seq, &forward->layout,
                                                                         seq->first_position + i) };
            rows++;
        }
        for (uint32_t left = seq->token_count; left > 0; left--) {
            if (left <= fg_step_seq_head_rows(seq) ||
                fg_step_seq_is_scored(seq, seq->first_position + seq->token_count - left)) {
                place->head.seqs[head_count] = s;
                place->head.row_ids[head_count] = rows - left;
                head_count++;
            }
        }
    }
    *head_count_out = head_count;
    return rows;
}

/* The operations of `rows` rows of the head. */
static void run_head(fg_forward *forward, uint32_t first, uint32_t rows, fg_head_kind kind)
{
    const fg_linear linear = { .weight = forward->head_weight };
    norm_rows(forward, forward->residual, forward->place->head.row_ids + first,
              forward->output_norm, forms_of(forward, &linear, 1), rows);
    fg_head_run(&forward->place->head, &forward->head_weight, &forward->normed, rows, kind);
}

static void wait_for_all(const fg_forward *forward)
{
    fg_tp_wait_device(forward->tp, forward->stream, fg_device_event_record(forward->stream));
}

/* So many rows pass in tiles about as tall as each other and as a tile should be, in whole strips of the back end. */
static uint32_t even_tile_rows(const fg_forward *forward, uint32_t row_count)
{
    uint32_t tiles = row_count / forward->tile_rows +
                     (row_count % forward->tile_rows >= (forward->tile_rows + 1) / 2);
    uint32_t rows = tiles < 2 ? row_count : row_count / tiles + (row_count % tiles != 0);
    rows += -rows % FG_TILE_ROWS;
    return rows < forward->tile_rows_max ? rows : forward->tile_rows_max;
}

/* Rows `first` .. `end` - 1 through a layer, in tiles; their attention in one go, so that few of its units are the last
 * ones. A tile reads the K and V of the tiles before it, which this layer has already stored. */
static void run_tiles(fg_forward *forward, uint32_t index, uint32_t first, uint32_t end,
                      uint32_t tile_rows, attention_parts parts)
{
    for (uint32_t at = first; at < end; at += tile_rows) {
        uint32_t rows = end - at < tile_rows ? end - at : tile_rows;
        begin_attention(forward, index, at, rows, at - first, parts);
    }
    if ((parts & PART_Q) == 0) {
        return;
    }
    attend(forward, index, first, end - first);
    for (uint32_t at = first; at < end; at += tile_rows) {
        uint32_t rows = end - at < tile_rows ? end - at : tile_rows;
        end_attention(forward, index, at, rows, at - first);
        feed_forward(forward, index, at, rows);
    }
}

static void run_layer(fg_forward *forward, uint32_t index, uint32_t row_count,
                      attention_parts parts)
{
    if (row_count == 0) {
        return;
    }
    uint32_t tile_rows = even_tile_rows(forward, row_count);
    uint32_t tiles = fg_forward_is_alone(forward) ? forward->attend_rows_max / tile_rows : 1;
    uint32_t most = (tiles > 0 ? tiles : 1) * tile_rows;
    for (uint32_t first = 0; first < row_count; first += most) {
        uint32_t left = row_count - first;
        run_tiles(forward, index, first, first + (left < most ? left : most), tile_rows, parts);
    }
}

static void make_rope_tables(fg_forward *forward, uint32_t row_count)
{
    uint32_t kinds = fg_hparams_has_window_turns(&forward->hparams) ? TURN_KINDS : 1;
    for (uint32_t kind = 0; kind < kinds; kind++) {
        fg_op_rope_table(forward->stream, forward->place->positions, row_count,
                         &forward->turns[kind], forward->rope_tables[kind]);
    }
}

/* The rows that the head wants become the first ones, and the only ones. */
static void keep_head_rows(fg_forward *forward, uint32_t head_count)
{
    fg_step_place *place = forward->place;
    uint32_t columns = forward->hparams.embedding_length;
    for (uint32_t i = 0; i < head_count; i++) {
        uint32_t row = place->head.row_ids[i]; /* they rise, so none is written before it is read */
        memmove(forward->residual + (size_t)i * columns, forward->residual + (size_t)row * columns,
                columns * sizeof(float));
        place->positions[i] = place->positions[row];
        place->kv_rows[i] = place->kv_rows[row];
        place->head.row_ids[i] = i;
    }
    make_rope_tables(forward, head_count);
}

/* The operations of `row_count` rows through all layers. Of a prompt's rows the last layer has to give K and V alone,
 * but for those that the head wants. */
static void run_layers(fg_forward *forward, uint32_t row_count, uint32_t head_count)
{
    const fg_hparams *h = &forward->hparams;
    bool ends_early = fg_forward_is_alone(forward) && head_count <= row_count / 2;
    uint32_t whole = ends_early ? h->layer_count - 1 : h->layer_count;
    fg_op_embed(forward->stream, &forward->embedding, forward->place->tokens, row_count,
                h->embedding_scale, forward->residual);
    if (fg_tp_has_comm(forward->tp)) {
        fg_forward_take_own_residual(forward, row_count);
    }
    make_rope_tables(forward, row_count);
    for (uint32_t index = 0; index < whole; index++) {
        run_layer(forward, index, row_count, PARTS_ALL);
    }
    if (ends_early) {
        run_layer(forward, whole, row_count, PART_KV);
        keep_head_rows(forward, head_count);
        run_layer(forward, whole, head_count, PART_Q);
    }
}

/* The same of rows that come again and again. */
static void replay_layers(fg_forward *forward, uint32_t rows)
{
    if (!fg_device_replay_begin(forward->stream, rows)) {
        run_layers(forward, rows, rows);
        fg_device_replay_end(forward->stream);
    }
}

static void stage(const fg_forward *forward, uint32_t rows, uint32_t head_count)
{
    fg_step_rows step_rows = { .tokens = forward->place->tokens,
                               .positions = forward->place->positions,
                               .kv_rows = forward->place->kv_rows,
                               .row_ids = forward->place->head.row_ids,
                               .rows = rows,
                               .row_id_count = head_count };
    fg_op_stage(forward->stream, &step_rows);
}

/* A step of many sequences' next tokens: such steps come again and again. */
static bool can_replay(const fg_forward *forward, const fg_step *step)
{
    if (!replays(forward) || step->seq_count > forward->replay_rows) {
        return false;
    }
    uint32_t head_count = 0;
    for (uint32_t s = 0; s < step->seq_count; s++) {
        if (step->seqs[s].token_count != 1) {
            return false;
        }
        head_count += fg_step_seq_head_rows(&step->seqs[s]) + step->seqs[s].scores_out.count;
    }
    return head_count == step->seq_count || head_count == 0;
}

static fg_step_run run_of(fg_forward *forward, fg_step *step, uint32_t head_count)
{
    fg_step_place *place = forward->place;
    return (fg_step_run){ .step = step,
                          .place = place,
                          .rows = step->seq_count,
                          .head_count = head_count,
                          .part = fg_head_part_from(&place->head, step, place->positions, 0,
                                                    head_count) };
}

/* The step has as many rows as one of few shapes then; what comes of the others is not looked at. */
static uint32_t pad_rows(fg_forward *forward, uint32_t rows)
{
    uint32_t padded = fg_forward_replay_size(rows);
    fg_step_place *place = forward->place;
    for (uint32_t row = rows; row < padded; row++) {
        place->tokens[row] = 0;
        place->positions[row] = 0;
        place->kv_rows[row] = (fg_kv_row){ .block_ids = NULL };
        place->head.row_ids[row] = row;
    }
    return padded;
}

/* Gives the device a step that is laid out in its place. */
static void start_run(fg_forward *forward, fg_step_run *run)
{
    uint32_t padded = pad_rows(forward, run->rows);
    uint32_t padded_head = run->head_count > 0 ? padded : 0;
    uint64_t place = (uint64_t)(run->place - forward->places);
    uint64_t key = (uint64_t)padded << 32 | place << 16 | padded_head << 2 | run->part.kind;
    stage(forward, padded, padded_head);
    if (!fg_device_replay_begin(forward->stream, key)) {
        run_layers(forward, padded, padded);
        if (padded_head > 0) {
            run_head(forward, 0, padded_head, run->part.kind);
        }
        fg_device_replay_end(forward->stream);
    }
    run->end =
        run->head_count > 0 ? fg_head_bring(&run->part) : fg_device_event_record(forward->stream);
}

/* Rows of the head that are looked at together, from `first` on. */
static uint32_t head_part_rows(const fg_forward *forward, uint32_t first, uint32_t head_count)
{
    uint32_t left = head_count - first;
    return left < forward->place->head.rows_max ? left : forward->place->head.rows_max;
}

/* The operations of a step with ranks, or of a step that is given one operation after the other: up to the head. */
static void run_staged(fg_forward *forward, uint32_t rows, uint32_t padded, uint32_t head_count)
{
    stage(forward, padded != 0 ? padded : rows, head_count);
    if (padded != 0) {
        replay_layers(forward, padded);
    } else {
        run_layers(forward, rows, head_count);
    }
}

static void follow_rows(fg_forward *forward, fg_tp_step step)
{
    const fg_tp_memory *common = fg_tp_memory_of(forward->tp);
    for (uint32_t row = 0; row < step.rows; row++) {
        forward->place->kv_rows[row] =
            (fg_kv_row){ .block_ids = common->block_ids + common->tables[row],
                         .position = common->positions[row] };
    }
    for (uint32_t row = step.rows; row < step.padded; row++) {
        forward->place->kv_rows[row] = (fg_kv_row){ .block_ids = NULL };
    }
    run_staged(forward, step.rows, step.padded, step.head_rows);
    uint32_t part = 0;
    for (uint32_t first = 0; first < step.head_rows; first += forward->place->head.rows_max) {
        if (first > 0) {
            fg_tp_meet(forward->tp);
        }
        run_head(forward, first, head_part_rows(forward, first, step.head_rows),
                 (fg_head_kind)common->kinds[part++]);
    }
}

/* A step's rows that are laid out, to their end. */
static void run_rows(fg_forward *forward, fg_step *step, uint32_t rows, uint32_t padded,
                     uint32_t head_count)
{
    fg_head *head = &forward->place->head;
    run_staged(forward, rows, padded, head_count);
    for (uint32_t first = 0; first < head_count; first += head->rows_max) {
        fg_head_part part =
            fg_head_part_from(head, step, forward->place->positions, first, head_count);
        if (first > 0) {
            fg_tp_meet(forward->tp); /* the others may write logits again */
        }
        run_head(forward, first, part.rows, part.kind);
        (void)fg_head_take(&part, fg_head_bring(&part));
    }
    if (head_count == 0) {
        wait_for_all(forward); /* else the head has waited */
    }
}

void fg_forward_begin(fg_forward *forward, fg_step *step)
{
    FG_ASSERT(forward->run.step == NULL, "a step is in flight");
    if (step->seq_count == 0) {
        return;
    }
    uint32_t head_count;
    forward->place = &forward->places[0];
    uint32_t rows = lay_out_rows(forward, step, NULL, &head_count);
    bool again = can_replay(forward, step);
    if (forward->tp != NULL || !again) {
        uint32_t padded = again ? pad_rows(forward, rows) : 0;
        if (forward->tp != NULL) {
            fg_forward_begin_ranks(forward, step, rows, padded, head_count);
        }
        run_rows(forward, step, rows, padded, head_count);
        return;
    }
    forward->run = run_of(forward, step, head_count);
    start_run(forward, &forward->run);
}

bool fg_forward_goes_ahead(const fg_forward *forward)
{
    return forward->goes_ahead;
}

bool fg_forward_begin_next(fg_forward *forward, fg_step *next)
{
    const fg_step_run *run = &forward->run;
    /* What is digested may have come for the next one; and its logits take the place of those that the host reads. */
    bool may = fg_forward_goes_ahead(forward) && run->step != NULL && forward->next.step == NULL &&
               run->step->digest_count == 0 && fg_head_is_chosen_there(&run->part);
    if (!may || next->copy_count > 0 || next->seq_count == 0 || !can_replay(forward, next)) {
        return false;
    }
    uint32_t head_count;
    forward->place = &forward->places[run->place == &forward->places[0]];
    lay_out_rows(forward, next, run->step, &head_count);
    forward->next = run_of(forward, next, head_count);
    start_run(forward, &forward->next);
    forward->ahead.begun++;
    return true;
}

bool fg_forward_is_running(const fg_forward *forward)
{
    return forward->run.step != NULL && forward->next.step == NULL &&
           !fg_device_event_ended(forward->stream, forward->run.end);
}

bool fg_forward_is_begun(const fg_forward *forward)
{
    return forward->run.step != NULL;
}

/* The step behind the one that has ended is in flight. `again`: with other tokens than the device has taken. */
static void move_up(fg_forward *forward, bool again)
{
    fg_step_run *run = &forward->run;
    *run = forward->next;
    forward->next = (fg_step_run){ .step = NULL };
    if (run->step == NULL || !again) {
        return;
    }
    forward->place = run->place;
    for (uint32_t row = 0; row < run->rows; row++) {
        run->place->tokens[row] = fg_step_seq_token(&run->step->seqs[row], 0);
    }
    start_run(forward, run);
    forward->ahead.again++;
}

void fg_forward_end(fg_forward *forward, fg_step *step)
{
    fg_step_run *run = &forward->run;
    if (run->step != NULL) {
        bool left = false;
        FG_ASSERT(run->step == step, "another step is in flight");
        if (run->head_count > 0) {
            left = fg_head_take(&run->part, run->end);
        } else {
            fg_device_event_wait(forward->stream, run->end);
        }
        move_up(forward, left);
    }
    fg_forward_digest(forward, step);
}

fg_forward_ahead fg_forward_went_ahead(const fg_forward *forward)
{
    return forward->ahead;
}

void fg_forward_follow(fg_forward *forward, fg_tp_step step)
{
    const fg_tp_memory *common = fg_tp_memory_of(forward->tp);
    if (step.rows > 0) {
        follow_rows(forward, step);
        return;
    }
    if (step.opens_comm) {
        (void)fg_forward_open_comm(forward, FG_TP_WAY_AUTO, NULL);
        return;
    }
    if (step.copies > 0) {
        fg_kv_memory_copy(&forward->kv, common->copies, step.copies);
    } else {
        fg_kv_memory_digest(&forward->kv, common->digests, step.digests);
    }
    fg_tp_meet(forward->tp);
}
