/*
 * Matrix products, alone and with what follows them: cut into pieces of whole outputs, which the team's members
 * take. A kernel sees a piece's rows and panels and nothing else.
 */
#include <string.h>

#include "common/base/highest.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/op_clock.h"
#include "kernels/cpu/ops_linear.h"

uint32_t fg_cpu_op_linear_form(uint32_t type)
{
    switch (fg_dtype_block_count(type)) {
    case 1:
        return type == FG_BF16 ? FG_FORM_PAIRS : 0;
    case FG_QUANT_SUPER:
        return FG_FORM_SUPERS;
    default:
        return FG_FORM_QUANTS;
    }
}

enum { LINEARS_MAX = 8 };

/* A piece is some panels of one product for a block of rows. */
typedef struct linear_job {
    const fg_cpu_kernels *kernels;
    const fg_linear *linears;
    uint32_t linear_count;
    fg_activations in;
    uint32_t rows;
    uint32_t rows_per_block;
    uint32_t pieces_per_block;
    uint32_t panels_per_piece;
    uint32_t first_piece[LINEARS_MAX]; /* of each product, in a block */
} linear_job;

/* What a product of so many rows reads in these forms, of what fg_cpu_forms has made: no tiles
 * where there are none, and no quants where tiles alone were made of them. */
static fg_activations read_forms(const fg_device *device, const fg_activations *in, uint32_t forms,
                                 uint32_t rows)
{
    fg_activations a = *in;
    if (!fg_cpu_has_tiles(device->kernels, in, forms, rows)) {
        a.quant_tiles = NULL;
    } else if ((forms & FG_FORM_QUANTS) != 0 && fg_cpu_tiles_alone(device->kernels, in, rows)) {
        a.quants = NULL;
        a.groups = NULL;
    }
    return a;
}

fg_activations fg_cpu_activations_from(const fg_activations *a, uint32_t row)
{
    size_t at = (size_t)row * a->columns;
    size_t pair = (size_t)row * fg_pair_stride(a->columns);
    size_t tile = fg_quant_tile_count(row, a->columns);
    bool has_tiles = a->quant_tiles != NULL && row % FG_TILE_ROWS == 0;
    FG_ASSERT(has_tiles || a->quant_tiles == NULL || a->quants != NULL, "row %u lies within a tile",
              row);
    return (fg_activations){ .values = a->values == NULL ? NULL : a->values + at,
                             .quants = a->quants == NULL ? NULL : a->quants + at,
                             .groups = a->groups == NULL ? NULL : a->groups + at / FG_QUANT_GROUP,
                             .supers = a->supers == NULL ? NULL : a->supers + at / FG_QUANT_SUPER,
                             .pairs = a->pairs == NULL ? NULL : a->pairs + pair,
                             .quant_tiles = has_tiles ? a->quant_tiles + tile : NULL,
                             .columns = a->columns };
}

static void linear_piece(void *ctx, uint32_t piece, uint32_t member)
{
    const linear_job *job = ctx;
    uint32_t row = piece / job->pieces_per_block * job->rows_per_block;
    uint32_t rows = job->rows - row < job->rows_per_block ? job->rows - row : job->rows_per_block;
    piece %= job->pieces_per_block;
    uint32_t index = job->linear_count - 1;
    while (job->first_piece[index] > piece) {
        index--;
    }
    fg_linear linear = job->linears[index];
    linear.out += (size_t)row * linear.out_stride;
    fg_activations in = fg_cpu_activations_from(&job->in, row);
    uint32_t first = (piece - job->first_piece[index]) * job->panels_per_piece;
    uint32_t left = fg_panel_count(linear.weight.outputs) - first;
    job->kernels->linear(&linear, &in, rows, first,
                         left < job->panels_per_piece ? left : job->panels_per_piece);
}

static bool reads_tiles(const fg_device *device, uint32_t form)
{
    return (form == FG_FORM_QUANTS || form == FG_FORM_SUPERS) &&
           device->kernels->tile_rows_least > 0;
}

static size_t row_bytes(const fg_device *device, uint32_t form, uint32_t columns)
{
    size_t groups = columns / FG_QUANT_GROUP;
    switch (form) {
    case FG_FORM_QUANTS:
        return reads_tiles(device, form) ? groups * (sizeof(fg_quant_tile) / FG_TILE_ROWS)
                                         : columns + groups * sizeof(fg_quant_group);
    case FG_FORM_SUPERS: /* tiles or rows, as many bytes are read */
        return columns + columns / FG_QUANT_SUPER * sizeof(fg_quant_super);
    case FG_FORM_PAIRS:
        return fg_pair_stride(columns) * sizeof(uint32_t);
    default:
        return columns * sizeof(float);
    }
}

enum { TILE = 8, TILES = 24, PANELS_TOGETHER = 8 };

/* Blocks are about as tall as each other; tall ones are whole tiles of every kernel, which have 4, 6 or 8 rows, or 16
 * (fg_quant_tile). Pairs and tiles are walked in slices, which leave less room to others. BF16 weights are large: read
 * again for every block, they want tall ones. */
uint32_t fg_cpu_rows_per_block(const fg_device *device, uint32_t form, uint32_t columns,
                               uint32_t rows, uint32_t most)
{
    bool tiles = reads_tiles(device, form);
    size_t quarters = tiles ? 7 : form == FG_FORM_PAIRS ? 6 : 4;
    size_t bytes = device->block_bytes / 4 * quarters;
    size_t least = form == FG_FORM_PAIRS ? 2 * TILES : tiles ? FG_TILE_ROWS : TILE;
    size_t fit = bytes / row_bytes(device, form, columns);
    fit = fit < least ? least : fit < most ? fit : most;
    size_t blocks = (rows + fit - 1) / fit;
    size_t even = (rows + blocks - 1) / blocks;
    size_t tile = device->kernels->tile_rows_least > 0 ? FG_TILE_ROWS
                  : even >= TILES                      ? TILES
                                                       : TILE;
    return blocks == 1 ? rows : (uint32_t)((even + tile - 1) / tile * tile);
}

/* Whether kernels make floats of the rows' pairs first, once for all panels of a piece. */
static bool widens(const fg_device *device, uint32_t form, uint32_t rows)
{
    const fg_cpu_kernels *kernels = device->kernels;
    return form == FG_FORM_PAIRS && kernels->widens_pairs != NULL && kernels->widens_pairs(rows);
}

/* Panels that a piece should have where there are pieces enough. */
static uint32_t panels_together(const fg_device *device, uint32_t form, uint32_t rows, bool sliced)
{
    return sliced || widens(device, form, rows) ? PANELS_TOGETHER : 1;
}

/* Columns of a row that stay in the second-level cache while panels pass: all, or of very long rows those that several
 * panels pass before the next. */
static uint32_t cached_columns(const fg_device *device, uint32_t type, uint32_t columns,
                               uint32_t rows)
{
    const fg_cpu_kernels *kernels = device->kernels;
    uint32_t part = kernels->sliced_columns != NULL ? kernels->sliced_columns(type, rows) : 0;
    return part > 0 && columns > 2 * part ? part : columns;
}

/* How finely a block's products are cut: a member that is slow or joins late should cost little, and so
 * should a claim. Much arithmetic is cut into pieces of some 60 us; few rows, which are bound by memory,
 * into four pieces per member, or fewer when those would be too small to be read in one go. Kernels take
 * two panels at a time, or of floats and few rows four; `together` is what a piece should have beyond that. */
static uint32_t panels_per_piece(const fg_linear *linears, const fg_activations *in, uint32_t rows,
                                 uint32_t panels, uint32_t together, uint32_t members)
{
    size_t panel_bytes = fg_panel_bytes(linears[0].weight.type, in->columns);
    uint64_t most = 4 * (uint64_t)members;
    uint64_t pieces = panels * panel_bytes / FG_CPU_PIECE_BYTES;
    pieces = pieces > most ? most : pieces < members ? members : pieces;
    uint64_t by_macs = (uint64_t)panels * FG_PANEL_OUTPUTS * in->columns * rows / FG_CPU_PIECE_MACS;
    if (by_macs > most && by_macs > panels / together) {
        by_macs = panels / together > most ? panels / together : most;
    }
    pieces = by_macs > pieces ? by_macs : pieces;
    uint32_t per_piece = (uint32_t)((panels + pieces - 1) / pieces);
    uint32_t step = fg_dtype_block_count(linears[0].weight.type) > 1 || rows >= 8 ? 2 : 4;
    return members == 1 ? panels : (per_piece + step - 1) / step * step;
}

void fg_cpu_share(fg_device_stream *stream, uint64_t macs, uint32_t pieces, fg_team_piece_fn fn,
                  void *job)
{
    stream->sequence++;
    if (macs >= FG_CPU_ALONE_ELEMENTS) {
        fg_team_for(stream->device->team, pieces, fn, job);
        return;
    }
    for (uint32_t piece = 0; piece < pieces; piece++) {
        fn(job, piece, 0);
    }
}

void fg_cpu_op_linear(fg_device_stream *stream, const fg_linear *linears, uint32_t linear_count,
                      const fg_activations *in, uint32_t rows)
{
    uint64_t began_ns = fg_op_clock_begin();
    FG_ASSERT(linear_count <= LINEARS_MAX, "too many products in one call");
    FG_ASSERT(rows > 0, "a product of no rows");
    fg_team *team = stream->device->team;
    uint32_t panels = 0;
    uint32_t forms = 0;
    for (uint32_t i = 0; i < linear_count; i++) {
        panels += fg_panel_count(linears[i].weight.outputs);
        forms |= fg_cpu_op_linear_form(linears[i].weight.type);
    }
    linear_job job = { .kernels = stream->device->kernels,
                       .linears = linears,
                       .linear_count = linear_count,
                       .in = read_forms(stream->device, in, forms, rows),
                       .rows = rows };
    uint32_t form = fg_cpu_op_linear_form(linears[0].weight.type);
    uint32_t cached = cached_columns(stream->device, linears[0].weight.type, in->columns, rows);
    job.rows_per_block = fg_cpu_rows_per_block(stream->device, form, cached, rows, rows);
    job.panels_per_piece = panels_per_piece(
        linears, in, job.rows_per_block, panels,
        panels_together(stream->device, form, rows, cached < in->columns), fg_team_size(team));
    for (uint32_t i = 0; i < linear_count; i++) {
        job.first_piece[i] = job.pieces_per_block;
        uint32_t count = fg_panel_count(linears[i].weight.outputs);
        job.pieces_per_block += (count + job.panels_per_piece - 1) / job.panels_per_piece;
    }
    uint32_t pieces = (rows + job.rows_per_block - 1) / job.rows_per_block * job.pieces_per_block;
    fg_cpu_share(stream, (uint64_t)panels * FG_PANEL_OUTPUTS * in->columns * rows, pieces,
                 linear_piece, &job);
    fg_op_clock_end(FG_OP_KIND_LINEAR, began_ns);
}

/* ---- gate and up ---- */

/* A piece is some panels of both products for a block of rows. */
typedef struct gated_job {
    const fg_device *device;
    const fg_gated *gated;
    fg_activations in;
    uint32_t rows;
    uint32_t rows_per_block;
    uint32_t pieces_per_block;
    uint32_t panels_per_piece;
} gated_job;

fg_panels fg_cpu_panels_from(const fg_panels *weight, uint32_t first, uint32_t count)
{
    uint32_t panel = first / FG_PANEL_OUTPUTS;
    fg_panels part = *weight;
    part.data =
        (const uint8_t *)weight->data + panel * fg_panel_bytes(weight->type, weight->columns);
    part.outputs = count;
    return part;
}

void fg_cpu_multiply_part(const fg_cpu_kernels *kernels, const fg_panels *weight,
                          const fg_activations *in, uint32_t rows, uint32_t first, uint32_t count,
                          float *out)
{
    fg_linear linear = { .weight = fg_cpu_panels_from(weight, first, count),
                         .out = out,
                         .out_stride = count,
                         .out_is_near = true };
    kernels->linear(&linear, in, rows, 0, fg_panel_count(count));
}

/* Rows whose ends stay in the first-level cache. */
enum { ROWS_AT_ONCE = FG_TILE_ROWS };

/* What follows both products of some rows, which `gate` holds. */
static void end_gated(const fg_cpu_gated_rows *rows_of, const float *up, float *gate,
                      const fg_cpu_part *part)
{
    const fg_gated *gated = rows_of->gated;
    const fg_cpu_kernels *kernels = rows_of->device->kernels;
    size_t count = (size_t)part->rows * part->columns;
    if (gated->kind == FG_GATE_GELU) {
        kernels->geglu(gate, up, count, gate);
    } else {
        kernels->swiglu(gate, up, count, gate);
    }
    for (uint32_t i = 0; i < part->rows && rows_of->weights != NULL; i++) {
        float weight = rows_of->weights[part->row - rows_of->row + i];
        for (uint32_t c = 0; c < part->columns; c++) {
            gate[i * part->stride + c] *= weight;
        }
    }
    if (gated->forms != 0) {
        fg_cpu_prepare(kernels, &gated->out, gated->forms, part);
        return;
    }
    for (uint32_t row = part->row; row < part->row + part->rows; row++, gate += part->stride) {
        memcpy(gated->out.values + (size_t)row * gated->out.columns + part->column, gate,
               part->columns * sizeof *gate);
    }
}

/* Columns `first` and on, by way of the member's scratch. */
static void gated_part(const fg_cpu_gated_rows *rows_of, uint32_t first, uint32_t count,
                       float *scratch)
{
    const fg_gated *gated = rows_of->gated;
    const fg_cpu_kernels *kernels = rows_of->device->kernels;
    uint32_t rows = rows_of->rows;
    float *gate = scratch;
    float *up = scratch + (size_t)rows * count;
    fg_cpu_multiply_part(kernels, &gated->gate, &rows_of->in, rows, first, count, gate);
    fg_cpu_multiply_part(kernels, &gated->up, &rows_of->in, rows, first, count, up);
    for (uint32_t done = 0; done < rows; done += ROWS_AT_ONCE) {
        fg_cpu_part part = { .values = gate + (size_t)done * count,
                             .stride = count,
                             .row = rows_of->row + done,
                             .rows = rows - done < ROWS_AT_ONCE ? rows - done : ROWS_AT_ONCE,
                             .column = first,
                             .columns = count };
        end_gated(rows_of, up + (size_t)done * count, gate + (size_t)done * count, &part);
    }
}

void fg_cpu_gated_columns(const fg_cpu_gated_rows *rows_of, uint32_t first, uint32_t end,
                          uint32_t member)
{
    uint32_t unit = fg_cpu_gated_unit(rows_of->gated->forms);
    uint32_t most = (uint32_t)rows_of->device->scratch_floats / (2 * rows_of->rows) / unit * unit;
    float *scratch = fg_cpu_scratch(rows_of->device, member);
    for (; first < end; first += most) {
        gated_part(rows_of, first, end - first < most ? end - first : most, scratch);
    }
}

static void gated_piece(void *ctx, uint32_t piece, uint32_t member)
{
    const gated_job *job = ctx;
    uint32_t row = piece / job->pieces_per_block * job->rows_per_block;
    uint32_t rows = job->rows - row < job->rows_per_block ? job->rows - row : job->rows_per_block;
    uint32_t columns = job->gated->out.columns;
    uint32_t per_piece = job->panels_per_piece * FG_PANEL_OUTPUTS;
    uint32_t first = piece % job->pieces_per_block * per_piece;
    fg_cpu_gated_rows rows_of = { .device = job->device,
                                  .gated = job->gated,
                                  .in = fg_cpu_activations_from(&job->in, row),
                                  .row = row,
                                  .rows = rows };
    fg_cpu_gated_columns(&rows_of, first, columns - first < per_piece ? columns : first + per_piece,
                         member);
}

/* Whether few units would leave members without work. */
static bool gated_apart(const fg_device_stream *stream, const fg_gated *gated, uint32_t rows)
{
    uint32_t members = fg_team_size(stream->device->team);
    uint32_t units = gated->out.columns / fg_cpu_gated_unit(gated->forms);
    uint32_t blocks = 1 + (rows - 1) / fg_cpu_gated_rows_most(stream->device, gated->forms);
    return (gated->forms & FG_FORM_SUPERS) != 0 && members > 1 && units * blocks < 4 * members;
}

static void multiply_gated(fg_device_stream *stream, const fg_gated *gated,
                           const fg_activations *in, uint32_t rows)
{
    fg_team *team = stream->device->team;
    uint32_t panels = fg_panel_count(gated->gate.outputs);
    const fg_linear both[2] = { { .weight = gated->gate }, { .weight = gated->up } };
    uint32_t form = fg_cpu_op_linear_form(gated->gate.type);
    uint32_t forms = form | fg_cpu_op_linear_form(gated->up.type);
    gated_job job = { .device = stream->device,
                      .gated = gated,
                      .in = read_forms(stream->device, in, forms, rows),
                      .rows = rows };
    job.rows_per_block =
        fg_cpu_rows_per_block(stream->device, form, in->columns, rows,
                              fg_cpu_gated_rows_most(stream->device, gated->forms));
    uint32_t of_both = panels_per_piece(
        both, in, job.rows_per_block, 2 * panels,
        2 * panels_together(stream->device, form, job.rows_per_block, false), fg_team_size(team));
    job.panels_per_piece = fg_cpu_gated_panels(gated->forms, of_both / 2);
    job.pieces_per_block = (panels + job.panels_per_piece - 1) / job.panels_per_piece;
    uint32_t pieces = (rows + job.rows_per_block - 1) / job.rows_per_block * job.pieces_per_block;
    fg_cpu_share(stream, 2ull * panels * FG_PANEL_OUTPUTS * in->columns * rows, pieces, gated_piece,
                 &job);
}

void fg_cpu_op_gated(fg_device_stream *stream, const fg_gated *args, const fg_activations *in,
                     uint32_t rows)
{
    uint64_t began_ns = fg_op_clock_begin();
    FG_ASSERT(rows > 0, "a product of no rows");
    fg_gated gated = *args;
    if (gated_apart(stream, args, rows)) {
        gated.forms = 0;
        multiply_gated(stream, &gated, in, rows);
        fg_cpu_prepare_all(stream, &args->out, args->forms, rows);
    } else {
        gated.forms = fg_cpu_forms(stream->device->kernels, &args->out, args->forms, rows);
        multiply_gated(stream, &gated, in, rows);
    }
    fg_op_clock_end(FG_OP_KIND_GATED, began_ns);
}

/* ---- the highest output ---- */

/* A piece is some panels, for all rows. */
typedef struct highest_job {
    const fg_device *device;
    const fg_panels *weight;
    fg_activations in;
    uint32_t rows;
    uint32_t panels_per_piece;
} highest_job;

/* What a member has seen of each row; it begins the member's scratch. */
typedef struct highest_seen {
    float values[FG_HIGHEST_ROWS];
    uint32_t indexes[FG_HIGHEST_ROWS];
} highest_seen;

static highest_seen *seen_of(const fg_device *device, uint32_t member)
{
    return (highest_seen *)(void *)fg_cpu_scratch(device, member);
}

static void see(highest_seen *seen, uint32_t row, float value, uint32_t index)
{
    if (value > seen->values[row] || (value == seen->values[row] && index < seen->indexes[row])) {
        seen->values[row] = value;
        seen->indexes[row] = index;
    }
}

static void highest_piece(void *ctx, uint32_t piece, uint32_t member)
{
    const highest_job *job = ctx;
    highest_seen *seen = seen_of(job->device, member);
    float *products = (float *)(void *)(seen + 1);
    uint32_t per_piece = job->panels_per_piece * FG_PANEL_OUTPUTS;
    size_t floats = job->device->scratch_floats - sizeof *seen / sizeof(float);
    uint32_t most = (uint32_t)floats / job->rows / FG_PANEL_OUTPUTS * FG_PANEL_OUTPUTS;
    uint32_t first = piece * per_piece;
    uint32_t left = job->weight->outputs - first;
    uint32_t end = first + (left < per_piece ? left : per_piece);
    for (; first < end; first += most) {
        uint32_t count = end - first < most ? end - first : most;
        fg_cpu_multiply_part(job->device->kernels, job->weight, &job->in, job->rows, first, count,
                             products);
        for (uint32_t row = 0; row < job->rows; row++) {
            const float *outputs = products + (size_t)row * count;
            float value = fg_highest(outputs, count);
            if (value >= seen->values[row]) {
                see(seen, row, value, first + fg_first_equal(outputs, count, value));
            }
        }
    }
}

void fg_cpu_op_highest(fg_device_stream *stream, const fg_panels *weight, const fg_activations *in,
                       uint32_t rows, uint32_t *choices, float *tops)
{
    uint64_t began_ns = fg_op_clock_begin();
    FG_ASSERT(rows > 0 && rows <= FG_HIGHEST_ROWS, "%u rows", rows);
    fg_team *team = stream->device->team;
    uint32_t members = fg_team_size(team);
    uint32_t panels = fg_panel_count(weight->outputs);
    const fg_linear product = { .weight = *weight };
    highest_job job = {
        .device = stream->device,
        .weight = weight,
        .in = read_forms(stream->device, in, fg_cpu_op_linear_form(weight->type), rows),
        .rows = rows,
        .panels_per_piece = panels_per_piece(&product, in, rows, panels, 1, members)
    };
    for (uint32_t member = 0; member < members; member++) {
        highest_seen *seen = seen_of(stream->device, member);
        for (uint32_t row = 0; row < rows; row++) {
            seen->values[row] = -__builtin_inff();
            seen->indexes[row] = 0;
        }
    }
    uint32_t pieces = (panels + job.panels_per_piece - 1) / job.panels_per_piece;
    fg_cpu_share(stream, (uint64_t)panels * FG_PANEL_OUTPUTS * in->columns * rows, pieces,
                 highest_piece, &job);
    highest_seen *all = seen_of(stream->device, 0);
    for (uint32_t row = 0; row < rows; row++) {
        for (uint32_t member = 1; member < members; member++) {
            const highest_seen *seen = seen_of(stream->device, member);
            see(all, row, seen->values[row], seen->indexes[row]);
        }
        choices[row] = all->indexes[row];
        tops[row] = all->values[row];
    }
    fg_op_clock_end(FG_OP_KIND_LINEAR, began_ns);
}
