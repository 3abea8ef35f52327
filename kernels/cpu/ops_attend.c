/*
 * Attention on the CPU: the work is cut into (row, KV head), whose query heads read the same K and V, and
 * the team's members take these as they become free. Who takes what never shows in a result.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/ops.h"

/* Below this many touched elements the caller works alone: a fork costs more than it saves. */
enum { ALONE_ELEMENTS = 8192 };

typedef struct attend_job {
    const fg_cpu_kernels *kernels;
    const fg_paged_kv *kv;
    const fg_attend *attend;
    fg_team_queue queue;
} attend_job;

static void attend_unit(const attend_job *job, uint32_t unit)
{
    const fg_paged_kv *kv = job->kv;
    const fg_attend *attend = job->attend;
    uint32_t group = attend->head_count / kv->kv_head_count;
    uint32_t row = unit / kv->kv_head_count;
    uint32_t kv_head = unit % kv->kv_head_count;
    size_t at = ((size_t)row * attend->head_count + (size_t)kv_head * group) * kv->head_dim;
    fg_cpu_attend part = { .kv = kv,
                           .block_ids = attend->kv_rows[row].block_ids,
                           .slot_count = attend->kv_rows[row].position + 1,
                           .kv_head = kv_head,
                           .head_count = group,
                           .q = attend->q + at,
                           .scale = attend->scale,
                           .out = attend->out + at };
    job->kernels->attend(&part);
}

static void attend_member(void *ctx, uint32_t member, uint32_t member_count)
{
    attend_job *job = ctx;
    uint32_t unit;
    while ((unit = fg_team_take(&job->queue)) != UINT32_MAX) {
        attend_unit(job, unit);
    }
}

void fg_op_attend(fg_device_stream *stream, const fg_paged_kv *kv, const fg_attend *args,
                  uint32_t rows)
{
    fg_team *team = stream->device->team;
    attend_job job = { .kernels = stream->device->kernels, .kv = kv, .attend = args };
    job.queue.count = rows * kv->kv_head_count;
    size_t elements = 0;
    for (uint32_t row = 0; row < rows; row++) {
        elements += (size_t)(args->kv_rows[row].position + 1) * kv->kv_head_count * kv->head_dim;
    }
    stream->sequence++;
    if (fg_team_size(team) == 1 || job.queue.count < 2 || elements < ALONE_ELEMENTS) {
        attend_member(&job, 0, 1);
    } else {
        fg_team_run(team, attend_member, &job);
    }
}
