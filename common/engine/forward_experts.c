#include "common/base/dtype.h"
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
    if (h->ffn_length % FG_PANEL_OUTPUTS != 0 || h->embedding_length % FG_PANEL_OUTPUTS != 0) {
        return fg_fail(err, FG_BAD_INPUT,
                       "experts of %u and %u outputs are not supported (multiples of %d)",
                       h->ffn_length, h->embedding_length, FG_PANEL_OUTPUTS);
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
    size_t quants = (forms & FG_FORM_QUANTS) != 0 ? slots : 0;
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
        { (void **)&e->room.groups, quants, columns / FG_QUANT_GROUP * sizeof(fg_quant_group) },
        { (void **)&e->room.pairs, pairs, fg_pair_stride(h->embedding_length) * sizeof(uint32_t) },
        { NULL, 0, 0 },
    };
    for (uint32_t i = 0; i < ROOM_PARTS; i++) {
        parts_out[i] = parts[i];
    }
    e->slots.expert_count = h->expert_count;
    e->slots.used_count = h->expert_used_count;
    e->room.columns = h->embedding_length;
}

/* Where a part begins when it begins at `at`: whole cache lines. SIZE_MAX: it does not end. */
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

/* Normalised rows in `in`, and which experts they go to. */
static void choose(fg_forward *forward, const layer_weights *layer, const float *residual,
                   const fg_activations *in, uint32_t rows)
{
    const fg_hparams *h = &forward->hparams;
    const fg_rmsnorm norm = { .in = residual,
                              .weight = layer->ffn_norm,
                              .epsilon = h->norm_epsilon,
                              .forms = fg_op_linear_form(forward->stream, layer->gate.type) |
                                       fg_op_linear_form(forward->stream, layer->up.type),
                              .out = *in };
    fg_op_rmsnorm(forward->stream, &norm, rows);
    const fg_linear router = { .weight = layer->router,
                               .out = forward->experts.logits,
                               .out_stride = h->expert_count };
    fg_op_linear(forward->stream, &router, 1, in, rows);
    const fg_choose_experts choose = { .logits = forward->experts.logits,
                                       .normalised = h->expert_weights_normalised,
                                       .scale = h->expert_weights_scale,
                                       .slots = forward->experts.slots };
    fg_op_choose_experts(forward->stream, &choose, rows);
}

void fg_forward_mix(fg_forward *forward, uint32_t index, float *residual, uint32_t rows)
{
    const fg_hparams *h = &forward->hparams;
    const layer_weights *layer = &forward->layers[index];
    const fg_expert_slots *slots = &forward->experts.slots;
    const rank_parts *parts = &forward->parts;
    bool alone = forward->tp == NULL;
    fg_activations in = forward->normed;
    in.quant_tiles = NULL;
    choose(forward, layer, residual, &in, rows);
    uint32_t forms = fg_op_linear_form(forward->stream, layer->down.type);
    const fg_gated_experts gated = { .slots = slots,
                                     .gate = part_of(&layer->gate, h->ffn_length, parts->ffn),
                                     .up = part_of(&layer->up, h->ffn_length, parts->ffn),
                                     .forms = alone ? forms : 0,
                                     .room = forward->experts.room,
                                     .out = alone ? forward->hidden : forward->own_hidden };
    fg_op_gated_experts(forward->stream, &gated, &in, rows);
    uint32_t slot_count = rows * slots->used_count;
    fg_forward_gather(forward, &forward->hidden, fg_forward_common_hidden(forward), parts->ffn,
                      FG_TP_PANEL, forward->own_hidden.values, slot_count);
    if (!alone && forms != 0) {
        fg_op_prepare(forward->stream, &forward->hidden, forms, slot_count);
    }
    const fg_linear down = fg_forward_add_to(forward, &layer->down, residual);
    const fg_add_experts add = { .slots = slots,
                                 .down =
                                     part_of(&layer->down, h->embedding_length, parts->embedding),
                                 .out = down.out,
                                 .out_stride = down.out_stride };
    fg_op_add_experts(forward->stream, &add, &forward->hidden, rows);
    fg_forward_gather_residual(forward, residual, rows);
}
