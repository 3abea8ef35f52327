/*
 * The operations of ops.h on the CPU: each divides its work into pieces and lets the team's members
 * take them. Pieces are whole outputs, rows or heads, so the division never shows in a result.
 */
#include <string.h>

#include "common/base/dtype.h"
#include "common/base/highest.h"
#include "kernels/cpu/cpu.h"
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
    rows_job job = { .stream = stream,
                     .run = run,
                     .args = args,
                     .rows = rows,
                     .rows_per_piece = per_piece == 0 ? 1 : per_piece };
    fg_team_for(team, (rows + job.rows_per_piece - 1) / job.rows_per_piece, rows_piece, &job);
}

static void prepare_row(const fg_cpu_kernels *kernels, const fg_activations *a, uint32_t forms,
                        uint32_t row)
{
    fg_cpu_prepare(kernels, a, forms, row, 0, a->values + (size_t)row * a->columns, a->columns);
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

void fg_cpu_op_prepare(fg_device_stream *stream, const fg_activations *activations, uint32_t forms,
                       uint32_t rows)
{
    uint64_t began_ns = fg_op_clock_begin();
    forms = fg_cpu_forms(stream->device->kernels, forms, rows);
    prepare_args args = { .activations = activations, .forms = forms };
    over_rows(stream, rows, activations->columns, prepare_rows, &args);
    fg_op_clock_end(FG_OP_KIND_QUANTIZE, began_ns);
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
    if (fg_cpu_op_linear_form(table->type) != FG_FORM_QUANTS) {
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

void fg_cpu_op_embed(fg_device_stream *stream, const fg_matrix *table, const uint32_t *tokens,
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

void fg_cpu_op_rmsnorm(fg_device_stream *stream, const fg_rmsnorm *args, uint32_t rows)
{
    uint64_t began_ns = fg_op_clock_begin();
    fg_rmsnorm norm = *args;
    norm.forms = fg_cpu_forms(stream->device->kernels, args->forms, rows);
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
