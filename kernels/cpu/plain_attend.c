#include <math.h>
#include <string.h>

#include "kernels/cpu/attend.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/plain.h"
#include "kernels/cpu/unpack.h"

enum { LANES = 8 };

static float element(const fg_paged_kv *kv, const uint8_t *region, size_t at)
{
    if (kv->dtype == FG_I8) {
        return (float)(int8_t)region[at];
    }
    return fg_cpu_float_at(kv->dtype, region, at);
}

static float weight_of(bool brain, float x)
{
    return brain ? fg_bf16_to_f32(fg_cpu_brain_exp2(x)) : fg_cpu_exp2(x);
}

static float score_of(const fg_cpu_attend *args, const float *q, uint32_t slot)
{
    const fg_paged_kv *kv = args->kv;
    uint8_t *keys = fg_cpu_kv_region(kv, args->block_ids, kv->key_offset, args->kv_head, slot);
    float score = 0.0f;
    for (uint32_t d = 0; d < kv->head_dim; d++) {
        score = fmaf(q[d], element(kv, keys, fg_cpu_key_at(kv, slot, d)), score);
    }
    return kv->dtype == FG_I8 ? score * *fg_cpu_kv_scale(kv, keys, slot) : score;
}

static void add_value(const fg_cpu_attend *args, uint32_t slot, float weight, float *out)
{
    const fg_paged_kv *kv = args->kv;
    uint8_t *values = fg_cpu_kv_region(kv, args->block_ids, kv->value_offset, args->kv_head, slot);
    if (kv->dtype == FG_I8) {
        weight *= *fg_cpu_kv_scale(kv, values, slot);
    }
    for (uint32_t d = 0; d < kv->head_dim; d++) {
        out[d] = fmaf(weight, element(kv, values, fg_cpu_value_at(kv, slot, d)), out[d]);
    }
}

/* One chunk's record of one (row, head), whose q is scaled. */
static void chunk_record(const fg_cpu_attend *args, uint32_t chunk, fg_cpu_slots slots,
                         const float *q, float *record)
{
    uint32_t base = chunk * FG_ATTEND_CHUNK;
    float *scores = args->scratch->scores;
    bool brain = args->kv->dtype == FG_BF16;
    float maximum = -INFINITY;
    float lanes[LANES] = { 0 };
    for (uint32_t s = slots.begin; s < slots.end; s++) {
        scores[s] = score_of(args, q, base + s);
        maximum = scores[s] > maximum ? scores[s] : maximum;
    }
    memset(record, 0, fg_cpu_record_floats(args->kv->head_dim) * sizeof *record);
    for (uint32_t s = slots.begin; s < slots.end; s++) {
        float weight = weight_of(brain, scores[s] - maximum);
        lanes[(brain ? s / 2 : s) % LANES] += weight;
        add_value(args, base + s, weight, record + FG_ATTEND_HEAD);
    }
    record[0] = maximum;
    record[FG_ATTEND_SUM] = fg_cpu_fold(lanes);
}

/* `state` is what came before; a record with a sum of 0 saw no slot. */
static void merge(float *state, const float *record, uint32_t head_dim)
{
    if (record[FG_ATTEND_SUM] == 0.0f) {
        return;
    }
    if (state[FG_ATTEND_SUM] == 0.0f) {
        memcpy(state, record, fg_cpu_record_floats(head_dim) * sizeof *state);
        return;
    }
    float maximum = record[0] > state[0] ? record[0] : state[0];
    float before = fg_cpu_exp2(state[0] - maximum);
    float now = fg_cpu_exp2(record[0] - maximum);
    state[0] = maximum;
    state[FG_ATTEND_SUM] = fmaf(record[FG_ATTEND_SUM], now, state[FG_ATTEND_SUM] * before);
    for (uint32_t d = FG_ATTEND_HEAD; d < FG_ATTEND_HEAD + head_dim; d++) {
        state[d] = fmaf(record[d], now, state[d] * before);
    }
}

static void row_chunks(const fg_cpu_attend *args, uint32_t index)
{
    uint32_t head_dim = args->kv->head_dim;
    float *scaled = args->scratch->q;
    const float *q = fg_cpu_attend_q(args, index);
    for (uint32_t d = 0; d < head_dim; d++) {
        scaled[d] = q[d] * fg_cpu_attend_factor(args);
        if (args->kv->dtype == FG_BF16) {
            scaled[d] = fg_bf16_to_f32(fg_cpu_brain(scaled[d]));
        }
    }
    for (uint32_t chunk = args->chunk_first; chunk < args->chunk_end; chunk++) {
        float *state = fg_cpu_record(args, chunk, index);
        if (args->record_count > 1 || chunk == args->chunk_first) {
            state[FG_ATTEND_SUM] = 0.0f;
        }
        fg_cpu_slots slots = fg_cpu_row_slots(args, chunk, index / args->head_count);
        if (slots.begin < slots.end) {
            chunk_record(args, chunk, slots, scaled, args->scratch->part);
            merge(state, args->scratch->part, head_dim);
        }
    }
}

static void finish_row(const fg_cpu_attend *args, uint32_t index)
{
    uint32_t head_dim = args->kv->head_dim;
    float *state = fg_cpu_record(args, args->record_first, index);
    for (uint32_t i = 1; i < args->record_count; i++) {
        merge(state, fg_cpu_record(args, args->record_first + i, index), head_dim);
    }
    float inverse = 1.0f / state[FG_ATTEND_SUM];
    float *out = fg_cpu_attend_out(args, index);
    for (uint32_t d = 0; d < head_dim; d++) {
        out[d] = state[FG_ATTEND_HEAD + d] * inverse;
    }
}

void fg_cpu_plain_attend(const fg_cpu_attend *args)
{
    for (uint32_t index = 0; index < args->row_count * args->head_count; index++) {
        row_chunks(args, index);
        if (args->finish) {
            finish_row(args, index);
        }
    }
}
