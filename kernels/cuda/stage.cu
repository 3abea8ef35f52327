/*
 * The rows of a step on their way to the device: one piece of page-locked memory and its copy on the device, laid out
 * alike, and one copy between them. Steps of not too many rows have layouts of their own, whose addresses a graph may keep.
 *
 * Here is decided who computes which part of attention: rows of one sequence that are few are a group, of which every
 * tile of slots is a piece of work for whoever is free; many rows are a prompt, and walk through their tiles in order.
 * Either way each row meets the same sums.
 */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/cuda.h"

static size_t whole(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* Places for `rows` rows from `base` on; returns where the tables begin. */
static size_t lay_out(uint8_t *base, size_t rows, fg_gpu_staged *at)
{
    size_t used = 0;
    at->counts = (fg_gpu_counts *)(base + used);
    used += whole(sizeof(fg_gpu_counts));
    at->tokens = (uint32_t *)(base + used);
    used += whole(rows * sizeof(uint32_t));
    at->positions = (uint32_t *)(base + used);
    used += whole(rows * sizeof(uint32_t));
    at->row_ids = (uint32_t *)(base + used);
    used += whole(rows * sizeof(uint32_t));
    at->rows = (fg_gpu_row *)(base + used);
    used += whole(rows * sizeof(fg_gpu_row));
    at->groups = (fg_gpu_span *)(base + used);
    used += whole(rows * sizeof(fg_gpu_span));
    at->ends = (uint32_t *)(base + used);
    used += whole(rows * sizeof(uint32_t));
    at->prompts = (fg_gpu_span *)(base + used);
    used += whole(rows * sizeof(fg_gpu_span));
    at->tables = (uint32_t *)(base + used);
    return used;
}

fg_status fg_cuda_stage_open(fg_device_stream *stream, fg_error *err)
{
    const fg_device_options *limits = &stream->device->limits;
    if (limits->step_rows_max == 0) {
        return FG_OK;
    }
    fg_gpu_staged unused;
    size_t rows =
        limits->step_rows_max < FG_GPU_SMALL_ROWS ? FG_GPU_SMALL_ROWS : limits->step_rows_max;
    /* Addresses are all that is wanted here. */
    size_t fixed = lay_out((uint8_t *)4096, rows, &unused);
    size_t blocks = (limits->context_max + limits->block_size - 1) / limits->block_size + 1;
    size_t tables = (size_t)limits->step_seqs_max * blocks;
    stream->stage_bytes = fixed + whole(tables * sizeof(uint32_t));
    if (cudaHostAlloc(&stream->host_stage, stream->stage_bytes, cudaHostAllocDefault) !=
            cudaSuccess ||
        cudaMalloc(&stream->device_stage, stream->stage_bytes) != cudaSuccess) {
        (void)cudaGetLastError();
        if (err != nullptr) {
            err->status = FG_AGAIN;
            snprintf(err->text, sizeof err->text, "cuda:%d: no memory for %zu KiB of a step's rows",
                     stream->device->index, stream->stage_bytes >> 10);
        }
        return FG_AGAIN;
    }
    return FG_OK;
}

void fg_cuda_stage_close(fg_device_stream *stream)
{
    (void)cudaFreeHost(stream->host_stage);
    (void)cudaFree(stream->device_stage);
}

typedef struct stage_job {
    fg_device_stream *stream;
    const fg_step_rows *rows;
    fg_gpu_staged host;
    size_t table_used, table_max;
} stage_job;

static uint32_t tiles_of(uint32_t position)
{
    return position / FG_GPU_TILE + 1;
}

/* Rows `first` .. `end - 1` of one sequence. */
static void add_sequence(stage_job *job, uint32_t first, uint32_t end)
{
    const fg_device *device = job->stream->device;
    const fg_kv_row *rows = job->rows->kv_rows;
    fg_gpu_counts *counts = job->host.counts;
    uint32_t blocks = rows[end - 1].position / device->limits.block_size + 1;
    uint32_t table = (uint32_t)job->table_used;
    if (job->table_used + blocks > job->table_max) {
        fprintf(stderr,
                "forge: cuda: a step's block tables exceed the limits it was opened with\n");
        abort();
    }
    for (uint32_t i = 0; i < blocks; i++) {
        job->host.tables[job->table_used + i] = rows[first].block_ids[i];
    }
    job->table_used += blocks;
    for (uint32_t row = first; row < end; row++) {
        job->host.rows[row] = fg_gpu_row{ table, rows[row].position };
    }
    bool prompt = end - first >= FG_GPU_PROMPT_ROWS;
    uint32_t most = device->row_tokens * (prompt ? FG_GPU_WARPS : 1);
    for (uint32_t at = first; at < end; at += most) {
        uint32_t count = end - at < most ? end - at : most;
        if (prompt) {
            job->host.prompts[counts->prompts++] = fg_gpu_span{ at, count };
            continue;
        }
        counts->tiles += tiles_of(rows[at + count - 1].position);
        job->host.ends[counts->groups] = counts->tiles;
        job->host.groups[counts->groups++] = fg_gpu_span{ at, count };
        uint32_t record_rows = count * device->unit_heads;
        counts->record_rows = record_rows > counts->record_rows ? record_rows : counts->record_rows;
    }
}

void fg_cuda_stage(fg_device_stream *stream, const fg_step_rows *rows)
{
    const fg_device_options *limits = &stream->device->limits;
    if (rows->rows > limits->step_rows_max || rows->row_id_count > limits->step_rows_max) {
        fprintf(stderr, "forge: cuda: a step of %u rows, %u were announced\n", rows->rows,
                limits->step_rows_max);
        abort();
    }
    fg_gpu_use(stream->device);
    /* The copy before may still be under way. */
    fg_gpu_check(cudaEventSynchronize(stream->staged), "waiting for the device");
    stream->small = rows->rows <= FG_GPU_SMALL_ROWS && rows->row_id_count <= FG_GPU_SMALL_ROWS;
    bool few = rows->rows <= FG_GPU_FEW_STAGED && rows->row_id_count <= FG_GPU_FEW_STAGED;
    size_t places = few             ? FG_GPU_FEW_STAGED
                    : stream->small ? FG_GPU_SMALL_ROWS
                                    : limits->step_rows_max;
    stage_job job = {};
    job.stream = stream;
    job.rows = rows;
    size_t fixed = lay_out((uint8_t *)stream->host_stage, places, &job.host);
    lay_out((uint8_t *)stream->device_stage, places, &stream->at);
    job.table_max = (stream->stage_bytes - fixed) / sizeof(uint32_t);
    *job.host.counts = fg_gpu_counts{};
    for (uint32_t row = 0; row < rows->rows; row++) {
        job.host.tokens[row] = rows->tokens[row];
        job.host.positions[row] = rows->positions[row];
    }
    for (uint32_t i = 0; i < rows->row_id_count; i++) {
        job.host.row_ids[i] = rows->row_ids[i];
    }
    for (uint32_t row = 0; row < rows->rows;) {
        const fg_kv_row *first = &rows->kv_rows[row];
        uint32_t end = row + 1;
        if (first->block_ids == nullptr) {
            job.host.rows[row++] = fg_gpu_row{ UINT32_MAX, 0 };
            continue;
        }
        while (end < rows->rows && rows->kv_rows[end].block_ids == first->block_ids &&
               rows->kv_rows[end].position == rows->kv_rows[end - 1].position + 1) {
            end++;
        }
        add_sequence(&job, row, end);
        row = end;
    }
    stream->rows = *rows;
    stream->host_at = job.host;
    stream->counts = *job.host.counts;
    size_t records = (size_t)stream->counts.tiles * limits->kv_head_count * stream->device->units *
                     stream->counts.record_rows * (limits->head_dim + 2);
    stream->passes = records > stream->record_floats;
    size_t bytes = fixed + job.table_used * sizeof(uint32_t);
    fg_gpu_check(cudaMemcpyAsync(stream->device_stage, stream->host_stage, bytes,
                                 cudaMemcpyHostToDevice, stream->stream),
                 "staging a step");
    fg_gpu_check(cudaEventRecord(stream->staged, stream->stream), "staging a step");
}
