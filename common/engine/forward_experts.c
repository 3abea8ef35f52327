#include <string.h>

#include "common/engine/forward_internal.h"

_Static_assert((int)FG_HPARAMS_EXPERTS_MAX == (int)FG_EXPERTS_MAX &&
                   (int)FG_HPARAMS_EXPERTS_USED_MAX == (int)FG_EXPERTS_USED_MAX,
               "what files may have is what operations take");

fg_status fg_forward_experts_check(const fg_forward *forward, fg_error *err)
{
    const fg_hparams *h = &forward->hparams;
    if (h->expert_count == 0) {
        return FG_OK;
    }
    if (!fg_device_mixes_experts(forward->device)) {
        return fg_fail(err, FG_BAD_INPUT,
                       "the model mixes %u experts, which only the CPU computes: use --device cpu",
                       h->expert_count);
    }
    /* Each expert's outputs begin with a panel. */
    if (h->ffn_length % FG_PANEL_OUTPUTS != 0 || h->embedding_length % FG_PANEL_OUTPUTS != 0 ||
        h->shared_ffn_length % FG_PANEL_OUTPUTS != 0) {
        return fg_fail(err, FG_BAD_INPUT,
                       "experts of %u (for all rows: %u) and rows of %u values are not supported "
                       "(multiples of %d)",
                       h->ffn_length, h->shared_ffn_length, h->embedding_length, FG_PANEL_OUTPUTS);
    }
    return FG_OK;
}

/* ---- scratch ---- */

/* One named part of it, in the forms that some product reads. */
typedef struct room_part {
    void **target;
    size_t rows, row_bytes; /* 0: not wanted */
} room_part;

enum { ROOM_PARTS = 11 };

/* What products with gate and up read, of all layers together; values beside, where one reads floats. */
static uint32_t room_forms(const fg_forward *forward, bool *values_out)
{
    uint32_t forms = 0;
    *values_out = false;
    for (uint32_t i = 0; i < forward->hparams.layer_count; i++) {
        uint32_t gate = fg_op_linear_form(forward->stream, forward->layers[i].gate.type);
        uint32_t up = fg_op_linear_form(forward->stream, forward->layers[i].up.type);
        forms |= gate | up;
        *values_out |= gate == 0 || up == 0;
        if (forward->hparams.shared_ffn_length > 0) {
            gate = fg_op_linear_form(forward->stream, forward->layers[i].shared_gate.type);
            up = fg_op_linear_form(forward->stream, forward->layers[i].shared_up.type);
            forms |= gate | up;
            *values_out |= gate == 0 || up == 0;
        }
    }
    return forms;
}

static void list_room(fg_forward *forward, room_part parts_out[ROOM_PARTS])
{
    const fg_hparams *h = &forward->hparams;
    fg_forward_experts *e = &forward->experts;
    size_t rows = forward->tile_rows_max, slots = rows * h->expert_used_count;
    size_t columns = h->embedding_length;
    bool values;
    uint32_t forms = room_forms(forward, &values);
    size_t groups = (forms & FG_FORM_QUANTS) != 0 ? slots : 0;
    size_t supers = (forms & FG_FORM_SUPERS) != 0 ? slots : 0;
    size_t quants = groups > supers ? groups : supers;
    size_t pairs = (forms & FG_FORM_PAIRS) != 0 ? slots : 0;
    const room_part parts[ROOM_PARTS] = {
        { (void **)&e->logits, rows, h->expert_count * sizeof(float) },
        { (void **)&e->slots.experts, slots, sizeof(uint32_t) },
        { (void **)&e->slots.weights, slots, sizeof(float) },
        { (void **)&e->slots.firsts, 1, (h->expert_count + 1) * sizeof(uint32_t) },
        { (void **)&e->slots.slot_rows, slots, sizeof(uint32_t) },
        { (void **)&e->slots.slot_weights, slots, sizeof(float) },
        { (void **)&e->room.values, values ? slots : 0, columns * sizeof(float) },
        { (void **)&e->room.quants, quants, columns },
        { (void **)&e->room.groups, groups, columns / FG_QUANT_GROUP * sizeof(fg_quant_group) },
        { (void **)&e->room.supers, supers, columns / FG_QUANT_SUPER * sizeof(fg_quant_super) },
        { (void **)&e->room.pairs, pairs, fg_pair_stride(h->embedding_length) * sizeof(uint32_t) },
    };
    for (uint32_t i = 0; i < ROOM_PARTS; i++) {
        parts_out[i] = parts[i];
    }
    e->slots.expert_count = h->expert_count;
    e->slots.used_count = h->expert_used_count;
    e->room.columns = h->embedding_length;
}

/* Where a part ends that begins at `at`: whole cache lines. SIZE_MAX: nowhere. */
static size_t end_of(const room_part *part, size_t at)
{
    size_t size_bytes, end;
    bool overflow = __builtin_mul_overflow(part->rows, part->row_bytes, &size_bytes) ||
                    __builtin_add_overflow(size_bytes, 63, &size_bytes) ||
                    __builtin_add_overflow(at, size_bytes & ~(size_t)63, &end);
    return overflow ? SIZE_MAX : end;
}

fg_status fg_forward_experts_open(fg_forward *forward, fg_error *err)
{
    fg_forward_experts *e = &forward->experts;
    room_part parts[ROOM_PARTS];
    size_t size_bytes = 0;
    if (forward->hparams.expert_count == 0) {
        return FG_OK;
    }
    list_room(forward, parts);
    for (uint32_t i = 0; i < ROOM_PARTS && size_bytes != SIZE_MAX; i++) {
        size_bytes = end_of(&parts[i], size_bytes);
    }
    if (size_bytes == SIZE_MAX) {
        return fg_fail(err, FG_BAD_INPUT, "the step limits and the model's sizes overflow");
    }
    e->memory = fg_device_alloc(forward->device, FG_MEMORY_SHARED, size_bytes);
    if (e->memory == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for %zu bytes of experts' scratch",
                       size_bytes);
    }
    e->memory_bytes = size_bytes;
    size_t at = 0;
    for (uint32_t i = 0; i < ROOM_PARTS; i++) {
        if (parts[i].rows > 0) {
            *parts[i].target = (uint8_t *)e->memory + at;
        }
        at = end_of(&parts[i], at);
    }
    forward->hidden.quant_tiles = NULL; /* an expert's slots begin within a tile */
    return FG_OK;
}

void fg_forward_experts_close(fg_forward *forward)
{
    fg_forward_experts *e = &forward->experts;
    if (e->memory != NULL) {
        fg_device_free(forward->device, FG_MEMORY_SHARED, e->memory, e->memory_bytes);
    }
}

/* ---- a layer ---- */

/* This rank's outputs of a matrix that each expert has, `outputs` of each one behind the other. */
static fg_expert_panels part_of(const fg_panels *all, uint32_t outputs, fg_tp_part part)
{
    size_t panel_bytes = fg_panel_bytes(all->type, all->columns);
    fg_expert_panels own = { .first = *all,
                             .stride_bytes = outputs / FG_PANEL_OUTPUTS * panel_bytes };
    own.first.data = (const uint8_t *)all->data + part.first / FG_PANEL_OUTPUTS * panel_bytes;
    own.first.outputs = part.count;
    return own;
}

/* Some experts that rows choose from, or the one for all rows. */
typedef struct mixture {
    const fg_panels *router; /* NULL: nobody has to be asked */
    const fg_panels *gate, *up, *down;
    uint32_t ffn_length;
    fg_choose_experts choose;
} mixture;

static mixture experts_of(const fg_forward *forward, const layer_weights *layer)
{
    const fg_hparams *h = &forward->hparams;
    return (mixture){ .router = &layer->router,
                      .gate = &layer->gate,
                      .up = &layer->up,
                      .down = &layer->down,
                      .ffn_length = h->ffn_length,
                      .choose = { .logits = forward->experts.logits,
                                  .weighing = h->expert_weights_normalised ? FG_EXPERTS_BY_CHOSEN
                                                                           : FG_EXPERTS_BY_ALL,
                                  .scale = h->expert_weights_scale,
                                  .slots = forward->experts.slots } };
}

/* Chosen from one: without a gate it weighs 1, whatever its logit is. */
static mixture shared_of(const fg_forward *forward, const layer_weights *layer)
{
    const fg_hparams *h = &forward->hparams;
    mixture shared = { .router = h->shared_gate ? &layer->shared_router : NULL,
                       .gate = &layer->shared_gate,
                       .up = &layer->shared_up,
                       .down = &layer->shared_down,
                       .ffn_length = h->shared_ffn_length,
                       .choose = { .logits = forward->experts.logits,
                                   .weighing =
                                       h->shared_gate ? FG_EXPERTS_ALONE : FG_EXPERTS_BY_CHOSEN,
                                   .scale = 1.0f,
                                   .slots = forward->experts.slots } };
    shared.choose.slots.expert_count = shared.choose.slots.used_count = 1;
    return shared;
}

static uint32_t forms_of_both(const fg_forward *forward, const fg_panels *a, const fg_panels *b)
{
    return fg_op_linear_form(forward->stream, a->type) |
           fg_op_linear_form(forward->stream, b->type);
}

/* Normalised rows, in the forms that experts read. */
static void norm(fg_forward *forward, const layer_weights *layer, const float *residual,
                 const fg_activations *in, uint32_t rows)
{
    const fg_hparams *h = &forward->hparams;
    uint32_t forms = forms_of_both(forward, &layer->gate, &layer->up);
    if (h->shared_ffn_length > 0) {
        forms |= forms_of_both(forward, &layer->shared_gate, &layer->shared_up);
    }
    const fg_rmsnorm args = { .in = residual,
                              .weight = layer->ffn_norm,
                              .epsilon = h->norm_epsilon,
                              .forms = forms,
                              .out = *in };
    fg_op_rmsnorm(forward->stream, &args, rows);
}

static void choose(fg_forward *forward, const mixture *m, const fg_activations *in, uint32_t rows)
{
    uint32_t count = m->choose.slots.expert_count;
    if (m->router == NULL) {
        memset(forward->experts.logits, 0, (size_t)rows * count * sizeof(float));
    } else {
        const fg_linear router = { .weight = *m->router,
                                   .out = forward->experts.logits,
                                   .out_stride = count };
        fg_op_linear(forward->stream, &router, 1, in, rows);
    }
    fg_op_choose_experts(forward->stream, &m->choose, rows);
}

/* Adds to the residual what a mixture makes of rows. */
static void mix(fg_forward *forward, const mixture *m, const fg_activations *in, float *residual,
                uint32_t rows)
{
    const fg_expert_slots *slots = &m->choose.slots;
    fg_tp_part ffn = fg_tp_part_of(forward->tp, m->ffn_length, FG_TP_PANEL);
    bool alone = forward->tp == NULL;
    fg_activations hidden = forward->hidden, own = forward->own_hidden;
    hidden.columns = m->ffn_length;
    own.columns = ffn.count;
    choose(forward, m, in, rows);
    uint32_t forms = fg_op_linear_form(forward->stream, m->down->type);
    const fg_gated_experts gated = { .slots = slots,
                                     .gate = part_of(m->gate, m->ffn_length, ffn),
                                     .up = part_of(m->up, m->ffn_length, ffn),
                                     .forms = alone ? forms : 0,
                                     .room = forward->experts.room,
                                     .out = alone ? hidden : own };
    fg_op_gated_experts(forward->stream, &gated, in, rows);
    uint32_t slot_count = rows * slots->used_count;
    fg_forward_gather(forward, &hidden, fg_forward_common_hidden(forward), ffn, FG_TP_PANEL,
                      own.values, slot_count);
    if (!alone && forms != 0) {
        fg_op_prepare(forward->stream, &hidden, forms, slot_count);
    }
    const fg_linear down = fg_forward_add_to(forward, m->down, residual);
    const fg_add_experts add = { .slots = slots,
                                 .down = part_of(m->down, forward->hparams.embedding_length,
                                                 forward->parts.embedding),
                                 .out = down.out,
                                 .out_stride = down.out_stride };
    fg_op_add_experts(forward->stream, &add, &hidden, rows);
}

void fg_forward_mix(fg_forward *forward, uint32_t index, float *residual, uint32_t rows)
{
    const layer_weights *layer = &forward->layers[index];
    const mixture experts = experts_of(forward, layer);
    fg_activations in = forward->normed;
    in.quant_tiles = NULL;
    norm(forward, layer, residual, &in, rows);
    mix(forward, &experts, &in, residual, rows);
    if (forward->hparams.shared_ffn_length > 0) {
        const mixture shared = shared_of(forward, layer);
        fg_tp_meet(forward->tp); /* others may still read the hidden rows that these replace */
        mix(forward, &shared, &in, residual, rows);
    }
    fg_forward_gather_residual(forward, residual, rows);
}
