/*
 * The operations of ops.h on the CPU: each divides its work into pieces and lets the team's members
 * take them. Pieces are whole outputs, rows or heads, so the division never shows in a result.
 */
#include <string.h>

#include "common/base/dtype.h"
#include "common/base/highest.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/op_clock.h"
#include "kernels/cpu/unpack.h"

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

/* Rows of a tile are quantised so many at a time. */
enum { ROWS_TOGETHER = 4 };

/* Runs `run` over all rows; `row_elements` says how heavy a row is. */
static void over_rows(fg_device_stream *stream, uint32_t rows, size_t row_elements, rows_fn run,
                      const void *args)
{
    fg_team *team = stream->device->team;
    uint32_t members = fg_team_size(team);
    stream->sequence++;
    if (members == 1 || rows < 2 || rows * row_elements < FG_CPU_ALONE_ELEMENTS) {
        run(stream, args, 0, rows);
        return;
    }
    uint32_t per_piece = rows / (members * 4);
    if (rows >= ROWS_TOGETHER * members) {
        per_piece = (per_piece + ROWS_TOGETHER - 1) / ROWS_TOGETHER * ROWS_TOGETHER;
    }
    rows_job job = { .stream = stream,
                     .run = run,
                     .args = args,
                     .rows = rows,
                     .rows_per_piece = per_piece == 0 ? 1 : per_piece };
    fg_team_for(team, (rows + job.rows_per_piece - 1) / job.rows_per_piece, rows_piece, &job);
}

/* To as many tiles as the rows lie in. */
static void prepare_tiles(const fg_cpu_kernels *kernels, const fg_activations *a,
                          const fg_cpu_part *part)
{
    uint32_t of_row = a->columns / FG_QUANT_GROUP;
    for (uint32_t done = 0, rows; done < part->rows; done += rows) {
        uint32_t row = part->row + done;
        uint32_t place = row % FG_TILE_ROWS;
        uint32_t left = part->rows - done;
        rows = left < FG_TILE_ROWS - place ? left : FG_TILE_ROWS - place;
        kernels->quantize_tiles(part->values + done * part->stride, part->stride, rows,
                                part->columns / FG_QUANT_GROUP, place,
                                a->quant_tiles + (size_t)(row / FG_TILE_ROWS) * of_row +
                                    part->column / FG_QUANT_GROUP);
    }
}

static void prepare_quants(const fg_cpu_kernels *kernels, const fg_activations *a,
                           const fg_cpu_part *part)
{
    size_t at = (size_t)part->row * a->columns + part->column;
    int8_t *quants = a->quants + at;
    fg_quant_group *groups = a->groups + at / FG_QUANT_GROUP;
    if (kernels->quantize_rows != NULL) {
        kernels->quantize_rows(part->values, part->stride, part->rows, part->columns, quants,
                               groups, a->columns);
        return;
    }
    for (uint32_t row = 0; row < part->rows; row++) {
        kernels->quantize_row(part->values + row * part->stride, part->columns,
                              quants + (size_t)row * a->columns,
                              groups + (size_t)row * (a->columns / FG_QUANT_GROUP));
    }
}

/* As groups of their own would be described, for products that read those beside others that read super-groups. */
static void groups_of_super(const fg_quant_super *super, fg_quant_group *groups)
{
    for (int g = 0; g < FG_QUANT_SUPER_GROUPS; g++) {
        int32_t shift = super->shifts[g];
        groups[g] = fg_cpu_quant_group(super->scale * fg_cpu_power(shift),
                                       super->halves[g][0] >> shift, super->halves[g][1] >> shift);
    }
}

/* Whole groups of a row, to tiles. */
static void tile_quants(const fg_activations *a, const int8_t *quants, uint32_t row,
                        uint32_t column, uint32_t columns)
{
    size_t of_row = a->columns / FG_QUANT_GROUP;
    fg_quant_tile *tiles = a->quant_tiles + row / FG_TILE_ROWS * of_row + column / FG_QUANT_GROUP;
    for (uint32_t g = 0; g < columns / FG_QUANT_GROUP; g++) {
        memcpy(tiles[g].quants[row % FG_TILE_ROWS], quants + (size_t)g * FG_QUANT_GROUP,
               FG_QUANT_GROUP);
    }
}

/* Groups of them too, or tiles, or neither. */
static void prepare_supers(const fg_cpu_kernels *kernels, const fg_activations *a, uint32_t forms,
                           const fg_cpu_part *part)
{
    bool with_groups = (forms & FG_FORM_QUANTS) != 0;
    FG_ASSERT(part->column % FG_QUANT_SUPER == 0 && part->columns % FG_QUANT_SUPER == 0 &&
                  a->columns % FG_QUANT_SUPER == 0,
              "columns %u and on, %u, of %u are no super-groups", part->column, part->columns,
              a->columns);
    for (uint32_t row = 0; row < part->rows; row++) {
        size_t at = (size_t)(part->row + row) * a->columns + part->column;
        fg_quant_super *supers = a->supers + at / FG_QUANT_SUPER;
        kernels->quantize_supers(part->values + row * part->stride, part->columns, a->quants + at,
                                 supers);
        for (uint32_t s = 0; with_groups && s < part->columns / FG_QUANT_SUPER; s++) {
            groups_of_super(&supers[s],
                            a->groups + at / FG_QUANT_GROUP + (size_t)s * FG_QUANT_SUPER_GROUPS);
        }
        if ((forms & FG_CPU_FORM_TILES) != 0) {
            tile_quants(a, a->quants + at, part->row + row, part->column, part->columns);
        }
    }
}

void fg_cpu_prepare(const fg_cpu_kernels *kernels, const fg_activations *a, uint32_t forms,
                    const fg_cpu_part *part)
{
    if ((forms & FG_FORM_SUPERS) != 0) {
        prepare_supers(kernels, a, forms, part);
    } else {
        if ((forms & FG_CPU_FORM_TILES) != 0) {
            prepare_tiles(kernels, a, part);
        }
        if ((forms & FG_FORM_QUANTS) != 0) {
            prepare_quants(kernels, a, part);
        }
    }
    if ((forms & FG_FORM_PAIRS) != 0) {
        size_t stride = fg_pair_stride(a->columns);
        uint32_t *pairs = a->pairs + part->row * stride + part->column / 2;
        for (uint32_t row = 0; row < part->rows; row++) {
            kernels->product_pairs(part->values + row * part->stride, part->columns,
                                   pairs + row * stride);
        }
    }
}

/* Whole rows. */
static void prepare_rows_of(const fg_cpu_kernels *kernels, const fg_activations *a, uint32_t forms,
                            uint32_t first, uint32_t count)
{
    fg_cpu_part part = { .values = a->values + (size_t)first * a->columns,
                         .stride = a->columns,
                         .row = first,
                         .rows = count,
                         .columns = a->columns };
    fg_cpu_prepare(kernels, a, forms, &part);
}

typedef struct prepare_args {
    const fg_activations *activations;
    uint32_t forms;
} prepare_args;

static void prepare_rows(fg_device_stream *stream, const void *args, uint32_t first, uint32_t count)
{
    const prepare_args *prepare = args;
    prepare_rows_of(stream->device->kernels, prepare->activations, prepare->forms, first, count);
}

void fg_cpu_prepare_all(fg_device_stream *stream, const fg_activations *activations, uint32_t forms,
                        uint32_t rows)
{
    forms = fg_cpu_forms(stream->device->kernels, activations, forms, rows);
    prepare_args args = { .activations = activations, .forms = forms };
    over_rows(stream, rows, activations->columns, prepare_rows, &args);
}

void fg_cpu_op_prepare(fg_device_stream *stream, const fg_activations *activations, uint32_t forms,
                       uint32_t rows)
{
    uint64_t began_ns = fg_op_clock_begin();
    fg_cpu_prepare_all(stream, activations, forms, rows);
    fg_op_clock_end(FG_OP_KIND_QUANTIZE, began_ns);
}

typedef struct embed_args {
    const fg_matrix *table;
    const uint32_t *tokens;
    float scale;
    float *out;
} embed_args;

static void embed_row(const fg_matrix *table, uint32_t token, float scale, float *out)
{
    size_t row_bytes = (size_t)(table->columns / fg_dtype_block_count(table->type)) *
                       fg_dtype_block_bytes(table->type);
    const uint8_t *row = (const uint8_t *)table->data + token * row_bytes;
    if (fg_dtype_block_count(table->type) == 1) {
        for (uint32_t i = 0; i < table->columns; i++) {
            out[i] = fg_cpu_float_at(table->type, row, i) * scale;
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
            value = factor != 0.0f ? value + factor * group.minimum : value;
            out[g * FG_QUANT_GROUP + i] = value * scale;
        }
    }
}

static void embed_rows(fg_device_stream *stream, const void *args, uint32_t first, uint32_t count)
{
    const embed_args *embed = args;
    for (uint32_t row = first; row < first + count; row++) {
        embed_row(embed->table, embed->tokens[row], embed->scale,
                  embed->out + (size_t)row * embed->table->columns);
    }
}

void fg_cpu_op_embed(fg_device_stream *stream, const fg_matrix *table, const uint32_t *tokens,
                     uint32_t rows, float scale, float *out)
{
    uint64_t began_ns = fg_op_clock_begin();
    embed_args args = { .table = table, .tokens = tokens, .scale = scale, .out = out };
    over_rows(stream, rows, table->columns, embed_rows, &args);
    fg_op_clock_end(FG_OP_KIND_EMBED, began_ns);
}

static const float *normed_from(const fg_rmsnorm *norm, uint32_t row)
{
    size_t source = norm->row_ids == NULL ? row : norm->row_ids[row];
    return norm->in + source * norm->out.columns;
}

/* Rows `row` and on, FG_CPU_NORM_ROWS of them at most. */
static void norm_together(const fg_cpu_kernels *kernels, const fg_rmsnorm *norm, uint32_t row,
                          uint32_t count)
{
    uint32_t columns = norm->out.columns;
    float *out = norm->out.values + (size_t)row * columns;
    const float *in[FG_CPU_NORM_ROWS];
    for (uint32_t i = 0; i < count; i++) {
        in[i] = normed_from(norm, row + i);
    }
    if (count == FG_CPU_NORM_ROWS && kernels->rmsnorm_rows != NULL) {
        kernels->rmsnorm_rows(in, norm->weight, columns, norm->epsilon, out, columns);
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        kernels->rmsnorm_row(in[i], norm->weight, columns, norm->epsilon,
                             out + (size_t)i * columns);
    }
}

static void add_normed(const fg_rmsnorm *norm, uint32_t row)
{
    size_t at = (size_t)row * norm->out.columns + norm->sum_first;
    for (uint32_t i = 0; i < norm->sum_count; i++) {
        norm->sum[at + i] += norm->out.values[at + i];
    }
}

static void rmsnorm_rows(fg_device_stream *stream, const void *args, uint32_t first, uint32_t count)
{
    const fg_rmsnorm *norm = args;
    const fg_cpu_kernels *kernels = stream->device->kernels;
    for (uint32_t row = first, end = first + count, rows; row < end; row += rows) {
        rows = end - row < FG_CPU_NORM_ROWS ? end - row : FG_CPU_NORM_ROWS;
        norm_together(kernels, norm, row, rows);
        for (uint32_t i = 0; norm->sum != NULL && i < rows; i++) {
            add_normed(norm, row + i);
        }
        prepare_rows_of(kernels, &norm->out, norm->forms, row, rows);
    }
}

void fg_cpu_op_rmsnorm(fg_device_stream *stream, const fg_rmsnorm *args, uint32_t rows)
{
    uint64_t began_ns = fg_op_clock_begin();
    fg_rmsnorm norm = *args;
    norm.forms = fg_cpu_forms(stream->device->kernels, &args->out, args->forms, rows);
    over_rows(stream, rows, args->out.columns, rmsnorm_rows, &norm);
    fg_op_clock_end(FG_OP_KIND_NORM, began_ns);
}

void fg_cpu_op_finite(fg_device_stream *stream, const float *values, uint32_t columns,
                      uint32_t rows, uint32_t *finite)
{
    for (uint32_t row = 0; row < rows; row++) {
        finite[row] = fg_all_finite(values + (size_t)row * columns, columns);
    }
    stream->sequence++;
}

/* Operations read the caller's arrays. */
void fg_cpu_op_stage(fg_device_stream *stream, const fg_step_rows *rows)
{
}
