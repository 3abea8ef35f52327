/*
 * Attention with AVX2, FMA and F16C, the arithmetic of plain_attend.c. Up to four query heads that
 * share a KV head go together, so that K and V are widened once for all of them.
 */
#include "kernels/cpu/avx2.h"
#include "kernels/cpu/avx2_math.h"
#include "kernels/cpu/plain.h"

enum { HEADS_MAX = 4, PIECE = FG_ATTEND_PIECE };

/* The running softmax of the tile's heads. */
typedef struct softmax {
    float maximum[HEADS_MAX];
    float sum[HEADS_MAX];
    float factor[HEADS_MAX]; /* for what came before the current piece */
    float weights[HEADS_MAX][PIECE];
} softmax;

FG_AVX2_INLINE __m256 load_kv(bool half, const uint8_t *slot, uint32_t d)
{
    if (half) {
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(slot + 2 * (size_t)d)));
    }
    return _mm256_loadu_ps((const float *)(const void *)(slot + 4 * (size_t)d));
}

FG_AVX2_INLINE void piece_scores(bool half, int H, const fg_cpu_attend *args,
                                 const uint8_t *const keys[PIECE], uint32_t count, softmax *state)
{
    uint32_t head_dim = args->kv->head_dim;
    for (uint32_t j = 0; j < PIECE; j++) {
        if (j >= count) {
            for (int h = 0; h < H; h++) {
                state->weights[h][j] = -__builtin_inff();
            }
            continue;
        }
        __m256 lanes[HEADS_MAX];
        for (int h = 0; h < H; h++) {
            lanes[h] = _mm256_setzero_ps();
        }
        for (uint32_t d = 0; d < head_dim; d += 8) {
            __m256 k = load_kv(half, keys[j], d);
            for (int h = 0; h < H; h++) {
                const float *q = args->q + (size_t)h * head_dim + d;
                lanes[h] = _mm256_fmadd_ps(_mm256_loadu_ps(q), k, lanes[h]);
            }
        }
        for (int h = 0; h < H; h++) {
            state->weights[h][j] = fg_avx2_fold(lanes[h]) * args->scale;
        }
    }
}

/* Turns one head's scores into weights under the new maximum. */
FG_AVX2_INLINE void piece_weights(softmax *state, int h)
{
    float *scores = state->weights[h];
    float maximum = state->maximum[h];
    for (int j = 0; j < PIECE; j++) {
        maximum = scores[j] > maximum ? scores[j] : maximum;
    }
    fg_cpu_exp_piece(scores, maximum);
    __m256 low = _mm256_loadu_ps(scores);
    __m256 high = _mm256_loadu_ps(scores + 8);
    float factor = fg_expf(state->maximum[h] - maximum);
    state->sum[h] = state->sum[h] * factor + fg_avx2_fold(_mm256_add_ps(low, high));
    state->maximum[h] = maximum;
    state->factor[h] = factor;
}

FG_AVX2_INLINE void piece_values(bool half, int H, const fg_cpu_attend *args,
                                 const uint8_t *const values[PIECE], uint32_t count,
                                 const softmax *state)
{
    uint32_t head_dim = args->kv->head_dim;
    for (uint32_t d = 0; d < head_dim; d += 8) {
        __m256 out[HEADS_MAX];
        for (int h = 0; h < H; h++) {
            __m256 before = _mm256_loadu_ps(args->out + (size_t)h * head_dim + d);
            out[h] = _mm256_mul_ps(before, _mm256_set1_ps(state->factor[h]));
        }
        for (uint32_t j = 0; j < count; j++) {
            __m256 v = load_kv(half, values[j], d);
            for (int h = 0; h < H; h++) {
                out[h] = _mm256_fmadd_ps(_mm256_set1_ps(state->weights[h][j]), v, out[h]);
            }
        }
        for (int h = 0; h < H; h++) {
            _mm256_storeu_ps(args->out + (size_t)h * head_dim + d, out[h]);
        }
    }
}

FG_AVX2_INLINE void attend_tile(bool half, int H, const fg_cpu_attend *args)
{
    const fg_paged_kv *kv = args->kv;
    size_t head_offset = args->kv_head * kv->head_bytes;
    softmax state;
    for (int h = 0; h < H; h++) {
        state.maximum[h] = -__builtin_inff();
        state.sum[h] = 0.0f;
    }
    for (size_t i = 0; i < (size_t)H * kv->head_dim; i++) {
        args->out[i] = 0.0f;
    }
    for (uint32_t first = 0; first < args->slot_count; first += PIECE) {
        uint32_t left = args->slot_count - first;
        uint32_t count = left < PIECE ? left : PIECE;
        const uint8_t *keys[PIECE] = { 0 };
        const uint8_t *values[PIECE] = { 0 };
        for (uint32_t j = 0; j < count; j++) {
            keys[j] = fg_cpu_slot(kv, args->block_ids, kv->key_offset + head_offset, first + j);
            values[j] = keys[j] + kv->value_offset - kv->key_offset;
        }
        piece_scores(half, H, args, keys, count, &state);
        for (int h = 0; h < H; h++) {
            piece_weights(&state, h);
        }
        piece_values(half, H, args, values, count, &state);
    }
    for (int h = 0; h < H; h++) {
        float inverse = 1.0f / state.sum[h];
        for (uint32_t d = 0; d < kv->head_dim; d++) {
            args->out[(size_t)h * kv->head_dim + d] *= inverse;
        }
    }
}

FG_AVX2_INLINE void attend_heads(bool half, const fg_cpu_attend *args)
{
    switch (args->head_count) {
    case 1:
        attend_tile(half, 1, args);
        break;
    case 2:
        attend_tile(half, 2, args);
        break;
    case 3:
        attend_tile(half, 3, args);
        break;
    default:
        attend_tile(half, 4, args);
        break;
    }
}

void fg_cpu_avx2_attend(const fg_cpu_attend *args)
{
    if (args->kv->head_dim % 8 != 0) {
        fg_cpu_plain_attend(args);
        return;
    }
    fg_cpu_attend part = *args;
    for (uint32_t head = 0; head < args->head_count; head += HEADS_MAX) {
        uint32_t left = args->head_count - head;
        part.head_count = left < HEADS_MAX ? left : HEADS_MAX;
        part.q = args->q + (size_t)head * args->kv->head_dim;
        part.out = args->out + (size_t)head * args->kv->head_dim;
        if (args->kv->dtype == FG_F16) {
            attend_heads(true, &part);
        } else {
            attend_heads(false, &part);
        }
    }
}
