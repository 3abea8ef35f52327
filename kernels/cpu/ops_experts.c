/*
 * Mixtures of experts. Rows choose their experts one by one; products are then cut as ops_linear.c does it, each for the rows
 * of one expert: gate and up into panels of blocks of an expert's rows, down into panels for all experts, because their
 * products are added to the same rows one after the other.
 */
#include <math.h>
#include <string.h>

#include "common/base/fmath.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/op_clock.h"
#include "kernels/cpu/ops_linear.h"

/* ---- choosing ---- */

/* The `used` highest of them, the first of equal ones, in falling order; returns the highest. */
static float pick(const float *logits, uint32_t count, uint32_t used, uint32_t *experts)
{
    float values[FG_EXPERTS_USED_MAX];
    uint32_t have = 0;
    for (uint32_t i = 0; i < count; i++) {
        float value = logits[i] > -INFINITY ? logits[i] : -INFINITY;
        if (have == used && !(value > values[used - 1])) {
            continue;
        }
        uint32_t at = have < used ? have++ : used - 1;
        for (; at > 0 && value > values[at - 1]; at--) {
            values[at] = values[at - 1];
            experts[at] = experts[at - 1];
        }
        values[at] = value;
        experts[at] = i;
    }
    return values[0];
}

static void sort_rising(uint32_t *experts, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++) {
        uint32_t expert = experts[i], at = i;
        for (; at > 0 && experts[at - 1] > expert; at--) {
            experts[at] = experts[at - 1];
        }
        experts[at] = expert;
    }
}

/* NaN's is that of -inf. */
static float power_of(float logit, float top)
{
    return fg_expf((logit > -INFINITY ? logit : -INFINITY) - top);
}

static float sum_of_all(const float *logits, uint32_t count, float top)
{
    float lanes[8] = { 0 };
    for (uint32_t i = 0; i < count; i++) {
        lanes[i % 8] += power_of(logits[i], top);
    }
    return fg_cpu_fold(lanes);
}

/* What the weights of a row are, before they are scaled; `top` is the highest logit. */
static void weigh(const fg_choose_experts *args, const float *logits, float top,
                  const uint32_t *experts, float *weights)
{
    const fg_expert_slots *slots = &args->slots;
    bool all = args->weighing == FG_EXPERTS_BY_ALL;
    float sum = all ? sum_of_all(logits, slots->expert_count, top) : 0.0f;
    for (uint32_t i = 0; i < slots->used_count; i++) {
        float logit = logits[experts[i]];
        if (args->weighing == FG_EXPERTS_ALONE) {
            weights[i] = 1.0f / (1.0f + fg_expf(-logit));
            continue;
        }
        weights[i] = power_of(logit, top);
        sum = all ? sum : sum + weights[i];
    }
    for (uint32_t i = 0; i < slots->used_count && args->weighing != FG_EXPERTS_ALONE; i++) {
        weights[i] /= sum;
    }
}

static void choose_row(const fg_choose_experts *args, uint32_t row)
{
    const fg_expert_slots *slots = &args->slots;
    uint32_t used = slots->used_count;
    const float *logits = args->logits + (size_t)row * slots->expert_count;
    uint32_t *experts = slots->experts + (size_t)row * used;
    float *weights = slots->weights + (size_t)row * used;
    float top = pick(logits, slots->expert_count, used, experts);
    sort_rising(experts, used);
    weigh(args, logits, top, experts, weights);
    for (uint32_t i = 0; i < used; i++) {
        weights[i] *= args->scale;
    }
}

enum { ROWS_PER_CHOICE = 8 };

typedef struct choose_job {
    const fg_choose_experts *args;
    uint32_t rows;
} choose_job;

static void choose_piece(void *ctx, uint32_t piece, uint32_t member)
{
    const choose_job *job = ctx;
    uint32_t first = piece * ROWS_PER_CHOICE;
    for (uint32_t row = first; row < job->rows && row < first + ROWS_PER_CHOICE; row++) {
        choose_row(job->args, row);
    }
}

/* Expert by expert, and of one expert in the rows' order. */
static void lay_out_slots(const fg_expert_slots *slots, uint32_t rows)
{
    uint32_t count = rows * slots->used_count;
    memset(slots->firsts, 0, (slots->expert_count + 1) * sizeof *slots->firsts);
    for (uint32_t i = 0; i < count; i++) {
        slots->firsts[slots->experts[i] + 1]++;
    }
    for (uint32_t e = 0; e < slots->expert_count; e++) {
        slots->firsts[e + 1] += slots->firsts[e];
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t slot = slots->firsts[slots->experts[i]]++;
        slots->slot_rows[slot] = i / slots->used_count;
        slots->slot_weights[slot] = slots->weights[i];
    }
    /* Each has come to where the next one begins. */
    memmove(slots->firsts + 1, slots->firsts, slots->expert_count * sizeof *slots->firsts);
    slots->firsts[0] = 0;
}

void fg_cpu_op_choose_experts(fg_device_stream *stream, const fg_choose_experts *args,
                              uint32_t rows)
{
    enum { ELEMENT_STEPS = 8 }; /* a logit costs about as much as so many elements of a product */
    uint64_t began_ns = fg_op_clock_begin();
    choose_job job = { .args = args, .rows = rows };
    fg_cpu_share(stream, (uint64_t)rows * args->slots.expert_count * ELEMENT_STEPS,
                 (rows + ROWS_PER_CHOICE - 1) / ROWS_PER_CHOICE, choose_piece, &job);
    lay_out_slots(&args->slots, rows);
    fg_op_clock_end(FG_OP_KIND_CHOOSE, began_ns);
}

/* ---- what both products share ---- */

static fg_panels panels_of(const fg_expert_panels *experts, uint32_t expert)
{
    fg_panels panels = experts->first;
    panels.data = (const uint8_t *)panels.data + expert * experts->stride_bytes;
    return panels;
}

static uint32_t rows_of_expert(const fg_expert_slots *slots, uint32_t expert)
{
    return slots->firsts[expert + 1] - slots->firsts[expert];
}

static uint32_t most_rows(const fg_expert_slots *slots)
{
    uint32_t most = 0;
    for (uint32_t e = 0; e < slots->expert_count; e++) {
        uint32_t rows = rows_of_expert(slots, e);
        most = rows > most ? rows : most;
    }
    return most;
}

static uint32_t active_experts(const fg_expert_slots *slots)
{
    uint32_t count = 0;
    for (uint32_t e = 0; e < slots->expert_count; e++) {
        count += rows_of_expert(slots, e) > 0;
    }
    return count;
}

/* Pieces that so much work should be cut into: as panels_per_piece of ops_linear.c has it. */
static uint64_t pieces_wanted(const fg_device *device, uint64_t weight_bytes, uint64_t macs)
{
    uint64_t members = fg_team_size(device->team);
    uint64_t most = 4 * members;
    uint64_t pieces = weight_bytes / FG_CPU_PIECE_BYTES;
    pieces = pieces > most ? most : pieces < members ? members : pieces;
    uint64_t by_macs = macs / FG_CPU_PIECE_MACS;
    return by_macs > pieces ? by_macs : pieces;
}

/* ---- gate and up ---- */

/* A piece is some panels of both products for a block of an expert's rows. */
typedef struct gated_job {
    const fg_device *device;
    const fg_gated_experts *args;
    const fg_activations *in;
    uint32_t rows;
    uint32_t read_forms; /* of the products */
    bool reads_values;
    uint32_t rows_per_block;
    uint32_t pieces_per_block;
    uint32_t panels_per_piece;
    uint32_t first_blocks[FG_EXPERTS_MAX + 1];
} gated_job;

enum { SLOTS_PER_COPY = 16 };

/* What products read of a slot's row, beside that of the expert's other ones. */
static void bring_slot(const gated_job *job, uint32_t slot)
{
    const fg_activations *in = job->in, *room = &job->args->room;
    size_t columns = in->columns, row = job->args->slots->slot_rows[slot];
    if (job->reads_values) {
        memcpy(room->values + slot * columns, in->values + row * columns, columns * sizeof(float));
    }
    if ((job->read_forms & (FG_FORM_QUANTS | FG_FORM_SUPERS)) != 0) {
        memcpy(room->quants + slot * columns, in->quants + row * columns, columns);
    }
    if ((job->read_forms & FG_FORM_SUPERS) != 0) {
        size_t supers = columns / FG_QUANT_SUPER;
        memcpy(room->supers + slot * supers, in->supers + row * supers,
               supers * sizeof(fg_quant_super));
    }
    if ((job->read_forms & FG_FORM_QUANTS) != 0) {
        size_t groups = columns / FG_QUANT_GROUP;
        memcpy(room->groups + slot * groups, in->groups + row * groups,
               groups * sizeof(fg_quant_group));
    }
    if ((job->read_forms & FG_FORM_PAIRS) != 0) {
        size_t stride = fg_pair_stride(in->columns);
        memcpy(room->pairs + slot * stride, in->pairs + row * stride, stride * sizeof(uint32_t));
    }
}

static void bring_piece(void *ctx, uint32_t piece, uint32_t member)
{
    const gated_job *job = ctx;
    uint32_t count = job->rows * job->args->slots->used_count;
    uint32_t first = piece * SLOTS_PER_COPY;
    for (uint32_t slot = first; slot < count && slot < first + SLOTS_PER_COPY; slot++) {
        bring_slot(job, slot);
    }
}

/* The last expert whose blocks begin there or before: the others that do have none. */
static uint32_t expert_of_block(const gated_job *job, uint32_t block)
{
    uint32_t low = 0, high = job->args->slots->expert_count;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (job->first_blocks[middle] <= block) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

static void gated_piece(void *ctx, uint32_t piece, uint32_t member)
{
    const gated_job *job = ctx;
    const fg_expert_slots *slots = job->args->slots;
    uint32_t block = piece / job->pieces_per_block;
    uint32_t expert = expert_of_block(job, block);
    uint32_t slot =
        slots->firsts[expert] + (block - job->first_blocks[expert]) * job->rows_per_block;
    uint32_t left = slots->firsts[expert + 1] - slot;
    const fg_gated gated = { .gate = panels_of(&job->args->gate, expert),
                             .up = panels_of(&job->args->up, expert),
                             .forms = job->args->forms,
                             .out = job->args->out };
    fg_cpu_gated_rows rows_of = { .device = job->device,
                                  .gated = &gated,
                                  .in = job->rows == 1
                                            ? *job->in
                                            : fg_cpu_activations_from(&job->args->room, slot),
                                  .row = slot,
                                  .rows = left < job->rows_per_block ? left : job->rows_per_block,
                                  .weights = slots->slot_weights + slot };
    uint32_t columns = job->args->out.columns;
    uint32_t per_piece = job->panels_per_piece * FG_PANEL_OUTPUTS;
    uint32_t first = piece % job->pieces_per_block * per_piece;
    fg_cpu_gated_columns(&rows_of, first, columns - first < per_piece ? columns : first + per_piece,
                         member);
}

/* Where each expert's blocks begin; returns how many there are. */
static uint32_t lay_out_blocks(gated_job *job)
{
    const fg_expert_slots *slots = job->args->slots;
    uint32_t blocks = 0;
    for (uint32_t e = 0; e < slots->expert_count; e++) {
        job->first_blocks[e] = blocks;
        blocks += (rows_of_expert(slots, e) + job->rows_per_block - 1) / job->rows_per_block;
    }
    job->first_blocks[slots->expert_count] = blocks;
    return blocks;
}

void fg_cpu_op_gated_experts(fg_device_stream *stream, const fg_gated_experts *args,
                             const fg_activations *in, uint32_t rows)
{
    uint64_t began_ns = fg_op_clock_begin();
    const fg_panels *gate = &args->gate.first, *up = &args->up.first;
    uint32_t gate_form = fg_cpu_op_linear_form(gate->type);
    uint32_t up_form = fg_cpu_op_linear_form(up->type);
    FG_ASSERT(in->quant_tiles == NULL && args->out.quant_tiles == NULL && rows > 0);
    gated_job job = { .device = stream->device,
                      .args = args,
                      .in = in,
                      .rows = rows,
                      .read_forms = gate_form | up_form,
                      .reads_values = gate_form == 0 || up_form == 0 };
    uint32_t slots = rows * args->slots->used_count;
    if (rows > 1) {
        fg_cpu_share(stream, (uint64_t)slots * in->columns,
                     (slots + SLOTS_PER_COPY - 1) / SLOTS_PER_COPY, bring_piece, &job);
    }
    job.rows_per_block =
        fg_cpu_rows_per_block(stream->device, gate_form, in->columns, most_rows(args->slots),
                              fg_cpu_gated_rows_most(stream->device, args->forms));
    uint32_t blocks = lay_out_blocks(&job);
    uint32_t panels = fg_panel_count(args->out.columns);
    uint64_t macs = 2ull * slots * panels * FG_PANEL_OUTPUTS * in->columns;
    uint64_t bytes = 2ull * blocks * panels * fg_panel_bytes(gate->type, in->columns);
    uint64_t per_block = (pieces_wanted(stream->device, bytes, macs) + blocks - 1) / blocks;
    uint32_t together = (uint32_t)((panels + per_block - 1) / per_block);
    job.panels_per_piece = fg_cpu_gated_panels(args->forms, together);
    job.pieces_per_block = (panels + job.panels_per_piece - 1) / job.panels_per_piece;
    fg_cpu_share(stream, macs, blocks * job.pieces_per_block, gated_piece, &job);
    fg_op_clock_end(FG_OP_KIND_GATED, began_ns);
}

/* ---- down ---- */

/* A piece is some panels, for all experts. */
typedef struct add_job {
    const fg_device *device;
    const fg_add_experts *args;
    const fg_activations *in;
    uint32_t rows_per_block;
    uint32_t panels_per_piece;
} add_job;

/* Some outputs of one row, straight to where they are added. */
static void add_row(const add_job *job, const fg_panels *down, uint32_t slot, uint32_t first,
                    uint32_t count)
{
    const fg_add_experts *args = job->args;
    fg_activations in = fg_cpu_activations_from(job->in, slot);
    fg_linear linear = { .weight = fg_cpu_panels_from(down, first, count),
                         .out = args->out +
                                (size_t)args->slots->slot_rows[slot] * args->out_stride + first,
                         .out_stride = args->out_stride,
                         .accumulate = true };
    job->device->kernels->linear(&linear, &in, 1, 0, fg_panel_count(count));
}

/* Some outputs of a block of an expert's rows, by way of the member's scratch. */
static void add_rows(const add_job *job, const fg_panels *down, uint32_t slot, uint32_t rows,
                     uint32_t first, uint32_t count, float *sums)
{
    const fg_add_experts *args = job->args;
    fg_activations in = fg_cpu_activations_from(job->in, slot);
    fg_cpu_multiply_part(job->device->kernels, down, &in, rows, first, count, sums);
    for (uint32_t i = 0; i < rows; i++, sums += count) {
        float *out =
            args->out + (size_t)args->slots->slot_rows[slot + i] * args->out_stride + first;
        for (uint32_t o = 0; o < count; o++) {
            out[o] += sums[o];
        }
    }
}

/* Outputs first .. end - 1 of a block of an expert's rows. */
static void add_block(const add_job *job, const fg_panels *down, uint32_t slot, uint32_t rows,
                      uint32_t first, uint32_t end, uint32_t member)
{
    if (rows == 1) {
        add_row(job, down, slot, first, end - first);
        return;
    }
    float *sums = fg_cpu_scratch(job->device, member);
    uint32_t most =
        (uint32_t)job->device->scratch_floats / rows / FG_PANEL_OUTPUTS * FG_PANEL_OUTPUTS;
    for (; first < end; first += most) {
        add_rows(job, down, slot, rows, first, end - first < most ? end - first : most, sums);
    }
}

static void add_piece(void *ctx, uint32_t piece, uint32_t member)
{
    const add_job *job = ctx;
    const fg_expert_slots *slots = job->args->slots;
    uint32_t outputs = job->args->down.first.outputs;
    uint32_t per_piece = job->panels_per_piece * FG_PANEL_OUTPUTS;
    uint32_t first = piece * per_piece;
    uint32_t end = outputs - first < per_piece ? outputs : first + per_piece;
    for (uint32_t e = 0; e < slots->expert_count; e++) {
        const fg_panels down = panels_of(&job->args->down, e);
        for (uint32_t slot = slots->firsts[e], rows; slot < slots->firsts[e + 1]; slot += rows) {
            uint32_t left = slots->firsts[e + 1] - slot;
            rows = left < job->rows_per_block ? left : job->rows_per_block;
            add_block(job, &down, slot, rows, first, end, member);
        }
    }
}

void fg_cpu_op_add_experts(fg_device_stream *stream, const fg_add_experts *args,
                           const fg_activations *in, uint32_t rows)
{
    uint64_t began_ns = fg_op_clock_begin();
    const fg_panels *down = &args->down.first;
    uint32_t form = fg_cpu_op_linear_form(down->type);
    FG_ASSERT(in->quant_tiles == NULL && rows > 0);
    add_job job = { .device = stream->device, .args = args, .in = in };
    job.rows_per_block =
        fg_cpu_rows_per_block(stream->device, form, in->columns, most_rows(args->slots),
                              fg_cpu_gated_rows_most(stream->device, 0));
    uint32_t panels = fg_panel_count(down->outputs);
    uint64_t macs =
        (uint64_t)rows * args->slots->used_count * panels * FG_PANEL_OUTPUTS * in->columns;
    uint64_t bytes =
        (uint64_t)active_experts(args->slots) * panels * fg_panel_bytes(down->type, in->columns);
    uint64_t wanted = pieces_wanted(stream->device, bytes, macs);
    /* Kernels take two panels at a time, or of floats and few rows four. */
    uint32_t step = fg_dtype_block_count(down->type) > 1 ? 2 : 4;
    uint32_t together = (uint32_t)((panels + wanted - 1) / wanted);
    job.panels_per_piece = (together + step - 1) / step * step;
    fg_cpu_share(stream, macs, (panels + job.panels_per_piece - 1) / job.panels_per_piece,
                 add_piece, &job);
    fg_op_clock_end(FG_OP_KIND_ADD, began_ns);
}
