#include <math.h>
#include <string.h>

#include "kernels/cpu/attend.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/plain.h"
#include "kernels/cpu/unpack.h"

enum { LANES = 8, BYTE_LANES = 16, CHAIN = FG_CPU_CHAIN_COLUMNS };

static float weight_of(bool brain, float x)
{
    return brain ? fg_bf16_to_f32(fg_cpu_brain_exp2(x)) : fg_cpu_exp2(x);
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* One chain over dimensions first .. end - 1. */
static float score_chain(const fg_cpu_attend *args, const float *q, uint32_t slot, uint32_t first,
                         uint32_t end)
{
    const fg_paged_kv *kv = args->kv;
    uint8_t *keys = fg_cpu_kv_region(kv, args->block_ids, kv->key_offset, args->kv_head, slot);
    float chain = 0.0f;
    for (uint32_t d = first; d < end; d++) {
        chain = fmaf(q[d], fg_cpu_float_at(kv->dtype, keys, fg_cpu_key_at(kv, slot, d)), chain);
    }
    return chain;
}

static float score_of(const fg_cpu_attend *args, const float *q, uint32_t slot)
{
    uint32_t head_dim = args->kv->head_dim;
    if (args->kv->dtype != FG_BF16) {
        return score_chain(args, q, slot, 0, head_dim);
    }
    float score = 0.0f;
    for (uint32_t d = 0; d < head_dim; d += 2 * CHAIN) {
        uint32_t middle = least(d + CHAIN, head_dim);
        score += score_chain(args, q, slot, d, middle) +
                 score_chain(args, q, slot, middle, least(d + 2 * CHAIN, head_dim));
    }
    return score;
}

static void add_value(const fg_cpu_attend *args, uint32_t slot, float weight, float *out)
{
    const fg_paged_kv *kv = args->kv;
    uint8_t *values = fg_cpu_kv_region(kv, args->block_ids, kv->value_offset, args->kv_head, slot);
    for (uint32_t d = 0; d < kv->head_dim; d++) {
        float value = fg_cpu_float_at(kv->dtype, values, fg_cpu_value_at(kv, slot, d));
        out[d] = fmaf(weight, value, out[d]);
    }
}

/* bf16: the slots of a block of 32, in two chains, whose weights are in scores. */
static void add_block(const fg_cpu_attend *args, uint32_t base, fg_cpu_slots slots, float *out)
{
    float chains[2][FG_ATTEND_DIMS];
    memset(chains, 0, sizeof chains);
    for (uint32_t s = slots.begin; s < slots.end; s++) {
        add_value(args, base + s, args->scratch->scores[s], chains[s / CHAIN % 2]);
    }
    for (uint32_t d = 0; d < args->kv->head_dim; d++) {
        out[d] += chains[0][d] + chains[1][d];
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
    float lanes[2 * LANES] = { 0 };
    for (uint32_t s = slots.begin; s < slots.end; s++) {
        scores[s] = score_of(args, q, base + s);
        maximum = scores[s] > maximum ? scores[s] : maximum;
    }
    memset(record, 0, fg_cpu_record_floats(args->kv->head_dim) * sizeof *record);
    for (uint32_t s = slots.begin; s < slots.end; s++) {
        float weight = weight_of(brain, scores[s] - maximum);
        lanes[brain ? s / 2 % (2 * LANES) : s % LANES] += weight;
        scores[s] = weight;
        if (!brain) {
            add_value(args, base + s, weight, record + FG_ATTEND_HEAD);
        }
    }
    for (uint32_t s = slots.begin; s < slots.end && brain; s = (s / (2 * CHAIN) + 1) * 2 * CHAIN) {
        fg_cpu_slots block = { .begin = s,
                               .end = least((s / (2 * CHAIN) + 1) * 2 * CHAIN, slots.end) };
        add_block(args, base, block, record + FG_ATTEND_HEAD);
    }
    for (uint32_t i = 0; i < LANES && brain; i++) {
        lanes[i] += lanes[i + LANES];
    }
    record[0] = maximum;
    record[FG_ATTEND_SUM] = fg_cpu_fold(lanes);
}

/* ---- int8 ---- */

/* One (row, head)'s q. */
typedef struct byte_q {
    int8_t quants[FG_ATTEND_DIMS];
    float factor; /* of a sum of products with them */
} byte_q;

static float byte_score_of(const fg_cpu_attend *args, const byte_q *q, uint32_t slot)
{
    const fg_paged_kv *kv = args->kv;
    uint8_t *keys = fg_cpu_kv_region(kv, args->block_ids, kv->key_offset, args->kv_head, slot);
    int32_t sum = 0;
    for (uint32_t d = 0; d < kv->head_dim; d++) {
        sum += q->quants[d] * (int8_t)keys[fg_cpu_key_at(kv, slot, d)];
    }
    return (float)sum * *fg_cpu_kv_scale(kv, keys, slot) * q->factor;
}

static void add_byte_value(const fg_cpu_attend *args, uint32_t slot, uint8_t weight, int32_t *sums)
{
    const fg_paged_kv *kv = args->kv;
    uint8_t *values = fg_cpu_kv_region(kv, args->block_ids, kv->value_offset, args->kv_head, slot);
    for (uint32_t d = 0; d < kv->head_dim; d++) {
        sums[d] += weight * (int8_t)values[fg_cpu_value_at(kv, slot, d)];
    }
}

static void byte_record(const fg_cpu_attend *args, uint32_t chunk, fg_cpu_slots slots,
                        const byte_q *q, float *record)
{
    const fg_paged_kv *kv = args->kv;
    uint32_t base = chunk * FG_ATTEND_CHUNK;
    float *scores = args->scratch->scores;
    float maximum = -INFINITY;
    float peak = 0.0f;
    float lanes[BYTE_LANES] = { 0 };
    int32_t sums[FG_ATTEND_DIMS] = { 0 };
    for (uint32_t s = slots.begin; s < slots.end; s++) {
        scores[s] = byte_score_of(args, q, base + s);
        maximum = scores[s] > maximum ? scores[s] : maximum;
    }
    for (uint32_t s = slots.begin; s < slots.end; s++) {
        float weight = fg_cpu_brain_power(scores[s] - maximum);
        lanes[s % BYTE_LANES] += weight;
        uint8_t *values =
            fg_cpu_kv_region(kv, args->block_ids, kv->value_offset, args->kv_head, base + s);
        scores[s] = weight * *fg_cpu_kv_scale(kv, values, base + s);
        peak = scores[s] > peak ? scores[s] : peak;
    }
    fg_cpu_byte_weights with = fg_cpu_byte_weights_of(peak);
    for (uint32_t s = slots.begin; s < slots.end; s++) {
        add_byte_value(args, base + s, fg_cpu_byte_weight(with, scores[s], s), sums);
    }
    for (uint32_t i = 0; i < LANES; i++) {
        lanes[i] += lanes[i + LANES];
    }
    memset(record, 0, fg_cpu_record_floats(kv->head_dim) * sizeof *record);
    record[0] = maximum;
    record[FG_ATTEND_SUM] = fg_cpu_fold(lanes);
    for (uint32_t d = 0; d < kv->head_dim; d++) {
        record[FG_ATTEND_HEAD + d] = (float)sums[d] * with.factor;
    }
}

/* ---- a row ---- */

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
    bool bytes = args->kv->dtype == FG_I8;
    byte_q quantised;
    float *scaled = args->scratch->q;
    const float *q = fg_cpu_attend_q(args, index);
    if (bytes) {
        quantised.factor = fg_cpu_quantize_head(q, head_dim, quantised.quants);
        quantised.factor *= fg_cpu_attend_factor(args);
    }
    for (uint32_t d = 0; d < head_dim && !bytes; d++) {
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
            if (bytes) {
                byte_record(args, chunk, slots, &quantised, args->scratch->part);
            } else {
                chunk_record(args, chunk, slots, scaled, args->scratch->part);
            }
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

static void attend_head(const fg_cpu_attend *args)
{
    for (uint32_t index = 0; index < args->row_count * args->head_count; index++) {
        row_chunks(args, index);
        if (args->finish) {
            finish_row(args, index);
        }
    }
}

void fg_cpu_plain_attend(const fg_cpu_attend *args)
{
    for (uint32_t i = 0; i < args->kv_head_count; i++) {
        attend_head(&args[i]);
    }
}
