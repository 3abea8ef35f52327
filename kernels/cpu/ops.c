/*
 * The operations of ops.h on the CPU: each divides its work into pieces and lets the team's members
 * take them. Pieces are whole outputs, rows or heads, so the division never shows in a result.
 */
#include "kernels/ops.h"

#include <string.h>

#include "common/base/dtype.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/op_clock.h"
#include "kernels/cpu/unpack.h"

/* Below this many touched elements the caller works alone: a fork costs more than it saves. */
enum { ALONE_ELEMENTS = 8192 };

/* Rows first .. first + count - 1 of an operation. */
typedef void (*rows_fn)(fg_device_stream *stream, const void *args, uint32_t first, uint32_t count);

typedef struct rows_job {
    fg_device_stream *stream;
    rows_fn run;
    const void *args;
    uint32_t rows;
    uint32_t rows_per_piece;
} rows_job;

static void rows_piece(void *ctx, uint32_t piece, uint32_t member)
{
    const rows_job *job = ctx;
    uint32_t first = piece * job->rows_per_piece;
    uint32_t left = job->rows - first;
    job->run(job->stream, job->args, first,
             left < job->rows_per_piece ? left : job->rows_per_piece);
}

/* Runs `run` over all rows; `row_elements` says how heavy a row is. */
static void over_rows(fg_device_stream *stream, uint32_t rows, size_t row_elements, rows_fn run,
                      const void *args)
{
    fg_team *team = stream->device->team;
    uint32_t members = fg_team_size(team);
    stream->sequence++;
    if (members == 1 || rows < 2 || rows * row_elements < ALONE_ELEMENTS) {
        run(stream, args, 0, rows);
        return;
    }
    uint32_t per_piece = rows / (members * 4);
    rows_job job = { .stream = stream,
                     .run = run,
                     .args = args,
                     .rows = rows,
                     .rows_per_piece = per_piece == 0 ? 1 : per_piece };
    fg_team_for(team, (rows + job.rows_per_piece - 1) / job.rows_per_piece, rows_piece, &job);
}

uint32_t fg_op_linear_form(uint32_t type)
{
    return fg_dtype_block_count(type) > 1 ? FG_FORM_QUANTS : type == FG_BF16 ? FG_FORM_PAIRS : 0;
}

static void prepare_row(const fg_cpu_kernels *kernels, const fg_activations *a, uint32_t forms,
                        uint32_t row)
{
    size_t at = (size_t)row * a->columns;
    if ((forms & FG_FORM_QUANTS) != 0) {
        kernels->quantize_row(a->values + at, a->columns, a->quants + at,
                              a->groups + (size_t)row * (a->columns / FG_QUANT_GROUP));
    }
    if ((forms & FG_FORM_PAIRS) != 0) {
        kernels->pair_row(a->values + at, a->columns,
                          a->pairs + (size_t)row * fg_pair_stride(a->columns));
    }
}

typedef struct prepare_args {
    const fg_activations *activations;
    uint32_t forms;
} prepare_args;

static void prepare_rows(fg_device_stream *stream, const void *args, uint32_t first, uint32_t count)
{
    const prepare_args *prepare = args;
    for (uint32_t row = first; row < first + count; row++) {
        prepare_row(stream->device->kernels, prepare->activations, prepare->forms, row);
    }
}

void fg_op_prepare(fg_device_stream *stream, const fg_activations *activations, uint32_t forms,
                   uint32_t rows)
{
    uint64_t began_ns = fg_op_clock_begin();
    prepare_args args = { .activations = activations, .forms = forms };
    over_rows(stream, rows, activations->columns, prepare_rows, &args);
    fg_op_clock_end(FG_OP_KIND_QUANTIZE, began_ns);
}

enum { LINEARS_MAX = 8 };

/* A piece is some panels of one product for a block of rows. */
typedef struct linear_job {
    const fg_cpu_kernels *kernels;
    const fg_linear *linears;
    uint32_t linear_count;
    const fg_activations *in;
    uint32_t rows;
    uint32_t rows_per_block;
    uint32_t pieces_per_block;
    uint32_t panels_per_piece;
    uint32_t first_piece[LINEARS_MAX]; /* of each product, in a block */
} linear_job;

static fg_activations activations_from(const fg_activations *a, uint32_t row)
{
    size_t at = (size_t)row * a->columns;
    size_t pair = (size_t)row * fg_pair_stride(a->columns);
    return (fg_activations){ .values = a->values == NULL ? NULL : a->values + at,
                             .quants = a->quants == NULL ? NULL : a->quants + at,
                             .groups = a->groups == NULL ? NULL : a->groups + at / FG_QUANT_GROUP,
                             .pairs = a->pairs == NULL ? NULL : a->pairs + pair,
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
    fg_activations in = activations_from(job->in, row);
    uint32_t first = (piece - job->first_piece[index]) * job->panels_per_piece;
    uint32_t left = fg_panel_count(linear.weight.outputs) - first;
    job->kernels->linear(&linear, &in, rows, first,
                         left < job->panels_per_piece ? left : job->panels_per_piece);
}

static size_t row_bytes(uint32_t form, uint32_t columns)
{
    switch (form) {
    case FG_FORM_QUANTS:
        return columns + columns / FG_QUANT_GROUP * sizeof(fg_quant_group);
    case FG_FORM_PAIRS:
        return fg_pair_stride(columns) * sizeof(uint32_t);
    default:
        return columns * sizeof(float);
    }
}

/* As many rows as stay in a core's second-level cache while panel after panel passes them, in blocks that are
 * about as tall as each other; tall ones are whole tiles of every kernel, which have 4, 6, 8 or 12 rows. Pairs
 * are walked in slices, and BF16 weights are large: read again for every block, they want tall ones. */
static uint32_t rows_per_block(const fg_device *device, uint32_t form, uint32_t columns,
                               uint32_t rows)
{
    enum { TILE = 8, TILES = 24 };
    size_t bytes = form == FG_FORM_PAIRS ? device->block_bytes / 2 * 3 : device->block_bytes;
    size_t least = form == FG_FORM_PAIRS ? 2 * TILES : TILE;
    size_t fit = bytes / row_bytes(form, columns);
    fit = fit < least ? least : fit;
    size_t blocks = (rows + fit - 1) / fit;
    size_t even = (rows + blocks - 1) / blocks;
    size_t tile = even >= TILES ? TILES : TILE;
    return blocks == 1 ? rows : (uint32_t)((even + tile - 1) / tile * tile);
}

/* How finely a block's products are cut: a member that is slow or joins late should cost little, and so
 * should a claim. Much arithmetic is cut into pieces of some 60 us; few rows, which are bound by memory,
 * into four pieces per member, or fewer when those would be too small to be read in one go. Kernels take
 * two panels at a time, or of floats and few rows four. */
static uint32_t panels_per_piece(const fg_linear *linears, const fg_activations *in, uint32_t rows,
                                 uint32_t panels, uint32_t members)
{
    enum { PIECE_BYTES = 48 * 1024, PIECE_MACS = 6 * 1000 * 1000 };
    size_t panel_bytes = fg_panel_bytes(linears[0].weight.type, in->columns);
    uint64_t most = 4 * (uint64_t)members;
    uint64_t pieces = panels * panel_bytes / PIECE_BYTES;
    pieces = pieces > most ? most : pieces < members ? members : pieces;
    uint64_t by_macs = (uint64_t)panels * FG_PANEL_OUTPUTS * in->columns * rows / PIECE_MACS;
    pieces = by_macs > pieces ? by_macs : pieces;
    uint32_t per_piece = (uint32_t)((panels + pieces - 1) / pieces);
    uint32_t step =
        fg_op_linear_form(linears[0].weight.type) == FG_FORM_QUANTS || rows >= 8 ? 2 : 4;
    return members == 1 ? panels : (per_piece + step - 1) / step * step;
}

void fg_op_linear(fg_device_stream *stream, const fg_linear *linears, uint32_t linear_count,
                  const fg_activations *in, uint32_t rows)
{
    uint64_t began_ns = fg_op_clock_begin();
    FG_ASSERT(linear_count <= LINEARS_MAX, "too many products in one call");
    FG_ASSERT(rows > 0, "a product of no rows");
    fg_team *team = stream->device->team;
    uint32_t panels = 0;
    for (uint32_t i = 0; i < linear_count; i++) {
        panels += fg_panel_count(linears[i].weight.outputs);
    }
    linear_job job = { .kernels = stream->device->kernels,
                       .linears = linears,
                       .linear_count = linear_count,
                       .in = in,
                       .rows = rows };
    uint32_t form = fg_op_linear_form(linears[0].weight.type);
    job.rows_per_block = rows_per_block(stream->device, form, in->columns, rows);
    job.panels_per_piece =
        panels_per_piece(linears, in, job.rows_per_block, panels, fg_team_size(team));
    for (uint32_t i = 0; i < linear_count; i++) {
        job.first_piece[i] = job.pieces_per_block;
        uint32_t count = fg_panel_count(linears[i].weight.outputs);
        job.pieces_per_block += (count + job.panels_per_piece - 1) / job.panels_per_piece;
    }
    uint32_t pieces = (rows + job.rows_per_block - 1) / job.rows_per_block * job.pieces_per_block;
    stream->sequence++;
    if ((uint64_t)panels * FG_PANEL_OUTPUTS * in->columns * rows < ALONE_ELEMENTS) {
        for (uint32_t piece = 0; piece < pieces; piece++) {
            linear_piece(&job, piece, 0);
        }
    } else {
        fg_team_for(team, pieces, linear_piece, &job);
    }
    fg_op_clock_end(FG_OP_KIND_LINEAR, began_ns);
}

typedef struct embed_args {
    const fg_matrix *table;
    const uint32_t *tokens;
    float *out;
} embed_args;

static void embed_row(const fg_matrix *table, uint32_t token, float *out)
{
    size_t row_bytes = (size_t)(table->columns / fg_dtype_block_count(table->type)) *
                       fg_dtype_block_bytes(table->type);
    const uint8_t *row = (const uint8_t *)table->data + token * row_bytes;
    if (fg_op_linear_form(table->type) != FG_FORM_QUANTS) {
        for (uint32_t i = 0; i < table->columns; i++) {
            out[i] = fg_cpu_float_at(table->type, row, i);
        }
        return;
    }
    float factor = fg_cpu_minimum_factor(table->type);
    for (uint32_t g = 0; g < table->columns / FG_QUANT_GROUP; g++) {
        fg_cpu_group group;
        fg_cpu_unpack(table->type, row, g, &group);
        for (uint32_t i = 0; i < FG_QUANT_GROUP; i++) {
            float d = group.d * (float)group.scale[i / 16];
            float value = d * (float)group.q[i];
            out[g * FG_QUANT_GROUP + i] = factor != 0.0f ? value + factor * group.minimum : value;
        }
    }
}

static void embed_rows(fg_device_stream *stream, const void *args, uint32_t first, uint32_t count)
{
    const embed_args *embed = args;
    for (uint32_t row = first; row < first + count; row++) {
        embed_row(embed->table, embed->tokens[row],
                  embed->out + (size_t)row * embed->table->columns);
    }
}

void fg_op_embed(fg_device_stream *stream, const fg_matrix *table, const uint32_t *tokens,
                 uint32_t rows, float *out)
{
    uint64_t began_ns = fg_op_clock_begin();
    embed_args args = { .table = table, .tokens = tokens, .out = out };
    over_rows(stream, rows, table->columns, embed_rows, &args);
    fg_op_clock_end(FG_OP_KIND_EMBED, began_ns);
}

static void rmsnorm_rows(fg_device_stream *stream, const void *args, uint32_t first, uint32_t count)
{
    const fg_rmsnorm *norm = args;
    const fg_cpu_kernels *kernels = stream->device->kernels;
    uint32_t columns = norm->out.columns;
    for (uint32_t row = first; row < first + count; row++) {
        size_t source = norm->row_ids == NULL ? row : norm->row_ids[row];
        kernels->rmsnorm_row(norm->in + source * columns, norm->weight, columns, norm->epsilon,
                             norm->out.values + (size_t)row * columns);
        prepare_row(kernels, &norm->out, norm->forms, row);
    }
}

void fg_op_rmsnorm(fg_device_stream *stream, const fg_rmsnorm *args, uint32_t rows)
{
    uint64_t began_ns = fg_op_clock_begin();
    over_rows(stream, rows, args->out.columns, rmsnorm_rows, args);
    fg_op_clock_end(FG_OP_KIND_NORM, began_ns);
}

static void swiglu_rows(fg_device_stream *stream, const void *args, uint32_t first, uint32_t count)
{
    const fg_swiglu *swiglu = args;
    const fg_cpu_kernels *kernels = stream->device->kernels;
    uint32_t columns = swiglu->out.columns;
    for (uint32_t row = first; row < first + count; row++) {
        size_t at = (size_t)row * columns;
        kernels->swiglu(swiglu->gate + at, swiglu->up + at, columns, swiglu->out.values + at);
        prepare_row(kernels, &swiglu->out, swiglu->forms, row);
    }
}

void fg_op_swiglu(fg_device_stream *stream, const fg_swiglu *args, uint32_t rows)
{
    uint64_t began_ns = fg_op_clock_begin();
    over_rows(stream, rows, args->out.columns, swiglu_rows, args);
    fg_op_clock_end(FG_OP_KIND_ACTIVATION, began_ns);
}
