#include <math.h>

#include "kernels/cpu/math.h"
#include "kernels/cpu/plain.h"
#include "kernels/cpu/unpack.h"

enum { LANES = 8, PIECE = FG_ATTEND_PIECE };

/* Scores of one piece's valid slots; the others are -inf, so that they weigh nothing. */
static void piece_scores(const fg_cpu_attend *args, const float *q, uint32_t first, uint32_t count,
                         float scores[PIECE])
{
    const fg_paged_kv *kv = args->kv;
    size_t offset = kv->key_offset + args->kv_head * kv->head_bytes;
    uint32_t padded = (kv->head_dim + LANES - 1) / LANES * LANES;
    for (uint32_t j = 0; j < PIECE; j++) {
        if (j >= count) {
            scores[j] = -INFINITY;
            continue;
        }
        const uint8_t *key = fg_cpu_slot(kv, args->block_ids, offset, first + j);
        float lanes[LANES] = { 0 };
        for (uint32_t d = 0; d < padded; d++) {
            float a = d < kv->head_dim ? q[d] : 0.0f;
            float b = d < kv->head_dim ? fg_cpu_float_at(kv->dtype, key, d) : 0.0f;
            lanes[d % LANES] = fmaf(a, b, lanes[d % LANES]);
        }
        scores[j] = fg_cpu_fold(lanes) * args->scale;
    }
}

/* The running softmax of one query head. */
typedef struct softmax {
    float maximum;
    float sum;
} softmax;

/* Turns scores into weights under the new maximum; returns the factor for what came before. */
static float piece_weights(softmax *state, float scores[PIECE])
{
    float maximum = state->maximum;
    for (int j = 0; j < PIECE; j++) {
        maximum = scores[j] > maximum ? scores[j] : maximum;
    }
    float factor = fg_expf(state->maximum - maximum);
    float lanes[LANES];
    fg_cpu_exp_piece(scores, maximum);
    for (int lane = 0; lane < LANES; lane++) {
        lanes[lane] = scores[lane] + scores[lane + LANES];
    }
    state->sum = state->sum * factor + fg_cpu_fold(lanes);
    state->maximum = maximum;
    return factor;
}

static void attend_head(const fg_cpu_attend *args, const float *q, float *out)
{
    const fg_paged_kv *kv = args->kv;
    size_t offset = kv->value_offset + args->kv_head * kv->head_bytes;
    softmax state = { .maximum = -INFINITY };
    for (uint32_t d = 0; d < kv->head_dim; d++) {
        out[d] = 0.0f;
    }
    for (uint32_t first = 0; first < args->slot_count; first += PIECE) {
        uint32_t left = args->slot_count - first;
        uint32_t count = left < PIECE ? left : PIECE;
        float weights[PIECE];
        piece_scores(args, q, first, count, weights);
        float factor = piece_weights(&state, weights);
        for (uint32_t d = 0; d < kv->head_dim; d++) {
            out[d] *= factor;
        }
        for (uint32_t j = 0; j < count; j++) {
            const uint8_t *value = fg_cpu_slot(kv, args->block_ids, offset, first + j);
            for (uint32_t d = 0; d < kv->head_dim; d++) {
                out[d] = fmaf(weights[j], fg_cpu_float_at(kv->dtype, value, d), out[d]);
            }
        }
    }
    float inverse = 1.0f / state.sum;
    for (uint32_t d = 0; d < kv->head_dim; d++) {
        out[d] *= inverse;
    }
}

void fg_cpu_plain_attend(const fg_cpu_attend *args)
{
    for (uint32_t head = 0; head < args->head_count; head++) {
        size_t at = (size_t)head * args->kv->head_dim;
        attend_head(args, args->q + at, args->out + at);
    }
}
