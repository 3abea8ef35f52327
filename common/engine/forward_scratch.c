/* What a forward pass writes between its operations: how large each part is, and where it lies. */
#include <string.h>

#include "common/base/dtype.h"
#include "common/engine/engine_internal.h"
#include "common/engine/forward_internal.h"

/* Rows that pass through a layer together, about: enough to use unpacked weights many times; products cut them into
 * blocks that stay in the second-level cache. Weights of a byte and more want more rows: each tile reads them from
 * memory again. */
enum { TILE_ROWS = 128, TALL_TILE_ROWS = 256 };
/* Rows of tiles whose attention is one operation: the more, the less its members wait for the last one. */
enum { ATTEND_ROWS = 512 };
enum { SCRATCH_PARTS_MAX = 64 };
/* Steps of one row for each sequence are replayed where a device can: they get rows that pad them to one of few sizes. */
static const uint32_t replay_sizes[] = {
    1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, FG_CHOSEN_ROWS
};
enum { REPLAY_SIZES = sizeof replay_sizes / sizeof *replay_sizes };
/* Rows that buffers of a device with memory of its own are rounded up to. */
enum { DEVICE_ROWS = 64 };

/* One named part of the scratch. */
typedef struct scratch_part {
    void **target;
    uint32_t kind;
    size_t size_bytes;
} scratch_part;

typedef struct part_list {
    scratch_part parts[SCRATCH_PARTS_MAX];
    uint32_t count;
    uint32_t kind; /* of what is added next */
    size_t total_bytes[SCRATCH_KINDS];
    bool overflow;
} part_list;

static void add_part(part_list *list, void **target, size_t rows, size_t columns, size_t item_bytes)
{
    size_t size_bytes = 0;
    size_t padded = 0;
    size_t *total_bytes = &list->total_bytes[list->kind];
    list->overflow |= __builtin_mul_overflow(rows, columns, &size_bytes) ||
                      __builtin_mul_overflow(size_bytes, item_bytes, &size_bytes) ||
                      __builtin_add_overflow(size_bytes, 63, &padded) ||
                      __builtin_add_overflow(*total_bytes, padded & ~(size_t)63, total_bytes);
    FG_ASSERT(list->count < SCRATCH_PARTS_MAX, "too many scratch parts");
    list->parts[list->count++] = (scratch_part){ target, list->kind, padded & ~(size_t)63 };
}

/* `values` NULL: of the scratch too, for so many rows. */
static void add_activations(part_list *list, fg_activations *activations, size_t rows,
                            size_t value_rows, uint32_t columns, float *values)
{
    activations->columns = columns;
    if (values != NULL) {
        activations->values = values;
    } else {
        add_part(list, (void **)&activations->values, value_rows, columns, sizeof(float));
    }
    add_part(list, (void **)&activations->quants, rows, columns, 1);
    add_part(list, (void **)&activations->groups, rows, columns / FG_QUANT_GROUP,
             sizeof(fg_quant_group));
    add_part(list, (void **)&activations->supers, rows, columns / FG_QUANT_SUPER,
             sizeof(fg_quant_super));
    add_part(list, (void **)&activations->pairs, rows, fg_pair_stride(columns), sizeof(uint32_t));
    if (list->kind != SCRATCH_DEVICE) {
        add_part(list, (void **)&activations->quant_tiles, fg_quant_tile_count(rows, columns), 1,
                 sizeof(fg_quant_tile));
    }
}

uint32_t fg_forward_step_rows(const fg_engine_limits *limits)
{
    uint32_t most = UINT32_MAX / DEVICE_ROWS * DEVICE_ROWS;
    return limits->step_tokens_max > most
               ? most
               : (limits->step_tokens_max + DEVICE_ROWS - 1) / DEVICE_ROWS * DEVICE_ROWS;
}

/* How many rows should pass a layer together: all of them on a device with memory of its own. */
static uint32_t tile_rows_of(const fg_forward *forward)
{
    if (!forward->is_host) {
        return fg_forward_step_rows(&forward->limits);
    }
    uint32_t step_rows = forward->limits.step_tokens_max;
    uint32_t type = forward->layers[0].gate.type;
    bool large = fg_dtype_block_bytes(type) >= fg_dtype_block_count(type) ||
                 forward->hparams.expert_count > 0; /* each expert has few of the rows */
    uint32_t most = large ? TALL_TILE_ROWS : TILE_ROWS;
    return step_rows < most ? step_rows : most;
}

/* A few rows more than a tile's would read all weights again: they join it. */
static uint32_t tallest_tile_of(const fg_forward *forward)
{
    if (!forward->is_host) {
        return forward->tile_rows;
    }
    uint32_t step_rows = forward->limits.step_tokens_max;
    uint32_t most = forward->tile_rows + forward->tile_rows / 2;
    return step_rows < most ? step_rows : most;
}

static uint32_t attend_rows_of(const fg_forward *forward)
{
    uint32_t step_rows = forward->limits.step_tokens_max;
    uint32_t most = step_rows < ATTEND_ROWS ? step_rows : ATTEND_ROWS;
    return fg_forward_is_alone(forward) && most > forward->tile_rows_max ? most
                                                                         : forward->tile_rows_max;
}

/* What all ranks see is of their region. */
static void take_common(fg_forward *forward)
{
    const fg_tp_memory *common = fg_tp_memory_of(forward->tp);
    FG_ASSERT(!forward->is_host || forward->tile_rows_max <= FG_TP_TILE_ROWS);
    FG_ASSERT(forward->place->head.rows_max <= FG_TP_HEAD_ROWS);
    forward->place->tokens = common->tokens;
    forward->place->positions = common->positions;
    forward->place->head.row_ids = common->row_ids;
    forward->place->head.logits_host = common->logits;
}

static void add_common_parts(fg_forward *forward, size_t step_rows, part_list *list)
{
    fg_head *head = &forward->place->head;
    add_part(list, (void **)&forward->place->tokens, step_rows, 1, sizeof(uint32_t));
    add_part(list, (void **)&forward->place->positions, step_rows, 1, sizeof(uint32_t));
    add_part(list, (void **)&head->row_ids, step_rows, 1, sizeof(uint32_t));
}

/* What the host reads or writes of a step in this place. */
static void add_place_parts(fg_forward *forward, fg_step_place *place, size_t step_rows,
                            part_list *list)
{
    fg_head *head = &place->head;
    forward->place = place;
    add_part(list, (void **)&place->kv_rows, step_rows, 1, sizeof(fg_kv_row));
    add_part(list, (void **)&head->seqs, step_rows, 1, sizeof(uint32_t));
    add_part(list, (void **)&head->wanted, head->rows_max, 1, sizeof(fg_choice_row));
    add_part(list, (void **)&head->choices, head->rows_max, 1, sizeof(uint32_t));
    add_part(list, (void **)&head->tops, head->rows_max, 1, sizeof(float));
    add_part(list, (void **)&head->finite, head->rows_max, 1, sizeof(uint32_t));
    if (forward->tp != NULL) {
        take_common(forward);
    } else {
        add_common_parts(forward, step_rows, list);
    }
    forward->place = &forward->places[0];
}

/* The size of the largest steps that are replayed: that of all sequences together, or what buffers have room for. */
static uint32_t replay_rows_of(const fg_forward *forward)
{
    uint32_t rows = 0, room = fg_forward_step_rows(&forward->limits);
    uint32_t head_rows = forward->places[0].head.rows_max;
    if (forward->tp == NULL && head_rows < room) {
        room = head_rows; /* of ranks only the layers are replayed */
    }
    for (uint32_t i = 0; !forward->is_host && i < REPLAY_SIZES && replay_sizes[i] <= room &&
                         rows < forward->limits.step_seqs_max;
         i++) {
        rows = replay_sizes[i];
    }
    return rows;
}

uint32_t fg_forward_replay_size(uint32_t rows)
{
    const uint32_t *size = replay_sizes;
    while (*size < rows) {
        size++;
    }
    return *size;
}

static void add_shared_parts(fg_forward *forward, size_t step_rows, part_list *list)
{
    fg_head *head = &forward->places[0].head;
    add_place_parts(forward, &forward->places[0], step_rows, list);
    if (forward->tp == NULL) {
        add_part(list, (void **)&head->logits_host, head->rows_max, head->vocab_size,
                 sizeof(float));
    }
    head->state_length = forward->hparams.embedding_length;
    if (!forward->is_host) {
        add_part(list, (void **)&head->states_host, head->rows_max, head->state_length,
                 sizeof(float));
    }
    if (forward->goes_ahead) {
        fg_step_place *second = &forward->places[1];
        second->head = *head;
        second->head.rows_max = forward->replay_rows;
        add_place_parts(forward, second, forward->replay_rows, list);
    }
}

static void add_own_parts(fg_forward *forward, size_t step_rows, part_list *list)
{
    const fg_hparams *h = &forward->hparams;
    const fg_tp *tp = forward->tp;
    size_t rows = forward->tile_rows_max;
    add_part(list, (void **)&forward->own_attended.values, rows,
             fg_tp_widest(tp, h->head_count * h->head_dim, forward->parts.q_unit), sizeof(float));
    add_part(list, (void **)&forward->own_hidden.values, rows * fg_hparams_hidden_rows(h),
             fg_tp_widest(tp, h->ffn_length, FG_TP_PANEL), sizeof(float));
    forward->own_hidden.columns = forward->parts.ffn.count;
    if (!forward->is_host) {
        add_part(list, (void **)&forward->own_residual, step_rows,
                 fg_tp_widest(tp, h->embedding_length, FG_TP_PANEL), sizeof(float));
    }
}

/* What only operations do. */
static void add_device_parts(fg_forward *forward, size_t step_rows, part_list *list)
{
    const fg_hparams *h = &forward->hparams;
    size_t rows = forward->tile_rows_max;
    /* The head's rows borrow `normed`. */
    size_t normed_rows =
        rows < forward->place->head.rows_max ? forward->place->head.rows_max : rows;
    const rank_parts *parts = &forward->parts;
    bool in_common = forward->tp != NULL && forward->is_host;
    float *attended = in_common ? fg_forward_common_attended(forward) : NULL;
    float *hidden = in_common ? fg_forward_common_hidden(forward) : NULL;
    if (in_common) {
        forward->residual = fg_tp_memory_of(forward->tp)->residual;
    } else {
        add_part(list, (void **)&forward->residual, step_rows, h->embedding_length, sizeof(float));
    }
    if (forward->tp != NULL) {
        add_own_parts(forward, step_rows, list);
    }
    for (uint32_t kind = 0; kind < (fg_hparams_has_window_turns(h) ? TURN_KINDS : 1); kind++) {
        add_part(list, (void **)&forward->rope_tables[kind], step_rows, h->rope_dims,
                 sizeof(float));
    }
    if (h->post_norms) {
        forward->added.columns = h->embedding_length;
        forward->added.values = fg_forward_common_added(forward);
        if (forward->added.values == NULL) {
            add_part(list, (void **)&forward->added.values, rows, h->embedding_length,
                     sizeof(float));
        }
    }
    size_t attend_rows = forward->attend_rows_max;
    size_t hidden_rows = rows * fg_hparams_hidden_rows(h);
    add_activations(list, &forward->normed, normed_rows, normed_rows, h->embedding_length, NULL);
    add_activations(list, &forward->attended, rows, attend_rows, h->head_count * h->head_dim,
                    attended);
    add_activations(list, &forward->hidden, hidden_rows, hidden_rows, h->ffn_length, hidden);
    add_part(list, (void **)&forward->q, attend_rows, parts->q.count, sizeof(float));
    add_part(list, (void **)&forward->k, rows, parts->kv.count, sizeof(float));
    add_part(list, (void **)&forward->v, rows, parts->kv.count, sizeof(float));
    if (!forward->is_host) {
        const fg_head *head = &forward->place->head;
        /* The second place's are behind the first one's. */
        uint32_t both = forward->goes_ahead ? 2 * forward->replay_rows : 0;
        add_part(list, (void **)&forward->place->head.logits,
                 both > head->rows_max ? both : head->rows_max, h->vocab_size, sizeof(float));
    }
}

static const fg_memory_kind scratch_kinds[SCRATCH_KINDS] = { FG_MEMORY_SHARED, FG_MEMORY_DEVICE };

fg_status fg_forward_take_scratch(fg_forward *forward, fg_error *err)
{
    uint32_t step_rows =
        forward->is_host ? forward->limits.step_tokens_max : fg_forward_step_rows(&forward->limits);
    forward->tile_rows = tile_rows_of(forward);
    forward->tile_rows_max = tallest_tile_of(forward);
    forward->attend_rows_max = attend_rows_of(forward);
    forward->replay_rows = replay_rows_of(forward);
    part_list list = { .kind = SCRATCH_SHARED };
    add_shared_parts(forward, step_rows, &list);
    list.kind = forward->is_host ? SCRATCH_SHARED : SCRATCH_DEVICE;
    add_device_parts(forward, step_rows, &list);
    if (list.overflow) {
        return fg_fail(err, FG_BAD_INPUT, "the step limits and the model's sizes overflow");
    }
    uint8_t *at[SCRATCH_KINDS] = { NULL };
    for (uint32_t kind = 0; kind < SCRATCH_KINDS; kind++) {
        size_t size_bytes = list.total_bytes[kind];
        if (size_bytes > 0) {
            forward->scratch[kind] =
                fg_device_alloc(forward->device, scratch_kinds[kind], size_bytes);
            if (forward->scratch[kind] == NULL) {
                return fg_fail(err, FG_AGAIN, "out of memory for %zu bytes of step scratch",
                               size_bytes);
            }
            forward->scratch_bytes[kind] = size_bytes;
            at[kind] = forward->scratch[kind];
        }
    }
    for (uint32_t i = 0; i < list.count; i++) {
        const scratch_part *p = &list.parts[i];
        *p->target = at[p->kind];
        at[p->kind] += p->size_bytes;
    }
    fg_head *head = &forward->places[0].head, *second = &forward->places[1].head;
    if (forward->is_host) {
        head->logits = head->logits_host;
    }
    head->states = forward->normed.values;
    if (forward->goes_ahead) {
        second->logits = head->logits + (size_t)forward->replay_rows * head->vocab_size;
        second->logits_host = head->logits_host;
        second->states = head->states;
        second->states_host = head->states_host;
    }
    return FG_OK;
}

void fg_forward_give_scratch(fg_forward *forward)
{
    for (uint32_t kind = 0; kind < SCRATCH_KINDS; kind++) {
        if (forward->scratch[kind] != NULL) {
            fg_device_free(forward->device, scratch_kinds[kind], forward->scratch[kind],
                           forward->scratch_bytes[kind]);
        }
    }
}
