/*
 * vdpbf16ps gives fma(a0, b0, fma(a1, b1, sum)) in each lane, 1 being the upper half, but takes denormals for
 * zeros: with no denormals (ops.h) and a pair's first element in the upper half, that is one fma chain in
 * rising order, and the bits are those of kernels that widen.
 */
#include "kernels/cpu/avx512_attend_bf16.h"

#define FG_AVX512_DOT(sum, x, b) _mm512_dpbf16_ps(sum, (__m512bh)(x), (__m512bh)(b))

#if !defined(FG_AVX512_SMALL)
/* With a word from memory for all lanes; compilers would broadcast it once for several products. */
#define FG_AVX512_DOT_WORD(sum, word, b)                                                           \
    __asm__("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(b), "m"(word))
#endif

#include "kernels/cpu/avx512_attend.h"

FG_AVX512_DEFINE(FG_AVX512_PAIRS)

const fg_strip_products fg_cpu_avx512_attend_pairs[] = FG_AVX512_TABLE(FG_AVX512_PAIRS);

/* What turns scores into weights, read from memory each time: products beside need the registers. */
typedef struct brain_constants {
    float least;
    float third, second, first, one;
    _Alignas(32) uint8_t swap[32]; /* both halves of each word */
} brain_constants;

static const brain_constants brain = {
    .least = FG_CPU_BRAIN_LEAST,
    .third = FG_CPU_BRAIN_3,
    .second = FG_CPU_BRAIN_2,
    .first = FG_CPU_BRAIN_1,
    .one = 1.0f,
    .swap = { 2,  3,  0,  1,  6,  7,  4,  5,  10, 11, 8,  9,  14, 15, 12, 13,
              18, 19, 16, 17, 22, 23, 20, 21, 26, 27, 24, 25, 30, 31, 28, 29 },
};

/* fg_cpu_brain_exp2 of sixteen scores less the maximum, in pairs, the first slot in the upper half. Of the operations
 * only the three fmas and the comparison take the place of a product on a Zen 4; a rotation would as well. */
FG_AVX512_INLINE __m256i weigh_piece(const float *scores, const float *maximum,
                                     const brain_constants *c)
{
    __m512 x = _mm512_sub_ps(_mm512_load_ps(scores), _mm512_set1_ps(*maximum));
    __m512 power = _mm512_roundscale_ps(x, 0);
    __m512 f = _mm512_sub_ps(x, power);
    __m512 p = _mm512_set1_ps(c->third);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(c->second));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(c->first));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(c->one));
    __mmask16 there = _mm512_cmp_ps_mask(x, _mm512_set1_ps(c->least), _CMP_NLT_UQ);
    __m512 exact = _mm512_maskz_scalef_ps(there, p, power);
    __m256i swap = _mm256_load_si256((const __m256i *)(const void *)c->swap);
    return _mm256_shuffle_epi8((__m256i)_mm512_cvtneps_pbh(exact), swap);
}

/* Adds a piece's weights to their row's sum, the first slot of a pair first. */
FG_AVX512_INLINE __m256 add_weights(__m256 sum, __m256i weights)
{
    return _mm256_dpbf16_ps(sum, (__m256bh)weights, (__m256bh)_mm256_set1_epi32(0x3F803F80));
}

/* In place: the pairs of sixteen scores are written where the first eight of earlier ones were read. */
FG_AVX512_INLINE void weigh_rows(int R, float *const *scores, uint32_t begin, uint32_t end,
                                 float *const *records)
{
    __m256 sums[FG_AVX512_TOGETHER];
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
        records[r][0] = fg_avx512_maximum(scores[r], begin, end);
        sums[r] = _mm256_setzero_ps();
    }
    for (uint32_t j = begin; j < end; j += FG_AVX512_LANES) {
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            float *x = scores[r];
            __m256i weights = weigh_piece(x + j, records[r], &brain);
            sums[r] = add_weights(sums[r], weights);
            _mm256_store_si256((__m256i *)(void *)(x + j / 2), weights);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
        records[r][FG_ATTEND_SUM] = fg_avx512_fold(sums[r]);
    }
}

void fg_cpu_avx512_weigh_pairs(const fg_strip_rows *rows, uint32_t begin, uint32_t end)
{
    uint32_t i = 0;
    for (; i + FG_AVX512_TOGETHER <= rows->count; i += FG_AVX512_TOGETHER) {
        weigh_rows(FG_AVX512_TOGETHER, &rows->scores[i], begin, end, &rows->records[i]);
    }
    for (; i < rows->count; i++) {
        weigh_rows(1, &rows->scores[i], begin, end, &rows->records[i]);
    }
}

/* The weights of one row of another strip, made piece by piece between products. */
typedef struct beside {
    const float *scores; /* of the next piece */
    float *weights;      /* where its weights go: in place, as weigh_rows does */
    float *record;
    __m256 sum;
} beside;

FG_AVX512_INLINE void weigh_next(beside *b)
{
    const brain_constants *c = &brain;
    FG_AVX512_HOLD_POINTER(c); /* else constants are kept in registers, and chains are not */
    __m256i weights = weigh_piece(b->scores, b->record, c);
    b->sum = add_weights(b->sum, weights);
    _mm256_store_si256((__m256i *)(void *)b->weights, weights);
    b->scores += FG_AVX512_LANES;
    b->weights += FG_AVX512_LANES / 2;
    FG_AVX512_HOLD_POINTER(b->scores);
    FG_AVX512_HOLD_POINTER(b->weights);
}

enum {
    BESIDE_ROWS = FG_AVX512_CHAIN_ROWS,
    BESIDE_PIECES = 2,
    BESIDE_TURN = FG_AVX512_TURN / 2, /* pairs of dimensions between two pieces of weights */
};

/* One chain of a register tile, from pair `first` on, and pieces of weights until `end` is reached. */
FG_AVX512_INLINE void score_chain_beside(const float *q, const fg_avx512_keys *keys, uint32_t first,
                                         bool often, beside *b, const float *end,
                                         fg_avx512_sums sums)
{
    fg_avx512_clear(BESIDE_ROWS, BESIDE_PIECES, sums);
#pragma GCC unroll 2
    for (uint32_t half = 0; half < 2; half++) {
        fg_avx512_score_steps(FG_AVX512_PAIRS, false, BESIDE_ROWS, BESIDE_PIECES, BESIDE_TURN, q,
                              keys, first + half * BESIDE_TURN, BESIDE_TURN, sums);
        if ((often || half == 1) && b->scores < end) {
            weigh_next(b);
        }
    }
}

/* Scores of four rows from `row` on for two pieces, and the weights of pieces up to `end`. */
FG_AVX512_INLINE void score_tile_beside(const fg_strip *s, uint32_t row, uint32_t piece, bool often,
                                        beside *b, const float *end)
{
    const float *q = s->q + (size_t)row * FG_STRIP_Q;
    float *scores = s->scores + (size_t)row * FG_ATTEND_SCORES + piece * FG_KV_PIECE;
    uint32_t steps = s->args->kv->head_dim / 2;
    fg_avx512_keys keys = { .at = { s->pieces->keys[piece], s->pieces->keys[piece + 1] } };
    fg_avx512_sums totals;
    fg_avx512_begin_totals(BESIDE_ROWS, BESIDE_PIECES, totals);
    for (uint32_t first = 0; first < steps; first += 2 * FG_AVX512_TURN) {
        fg_avx512_sums firsts;
        fg_avx512_sums sums;
        score_chain_beside(q, &keys, first, often, b, end, firsts);
        if (first + FG_AVX512_TURN < steps) {
            score_chain_beside(q, &keys, first + FG_AVX512_TURN, often, b, end, sums);
        } else {
            fg_avx512_clear(BESIDE_ROWS, BESIDE_PIECES, sums);
        }
        fg_avx512_add_block(BESIDE_ROWS, BESIDE_PIECES, firsts, sums, totals);
    }
    fg_avx512_put_scores(BESIDE_ROWS, BESIDE_PIECES, scores, totals);
    while (b->scores < end) {
        weigh_next(b);
    }
}

static inline void find_maximum(const fg_strip_rows *rows, uint32_t row)
{
    rows->records[row][0] = fg_avx512_maximum(rows->scores[row], 0, FG_ATTEND_CHUNK);
}

/* Eight pairs of pieces and eight rows: a row's weights are made beside a pair's scores. The next row's maximum is
 * found meanwhile, as weights that wait for their own would keep products waiting. */
FG_AVX512_INLINE void scores_beside(const fg_strip *s, uint32_t begin, uint32_t end, bool often,
                                    const fg_strip_rows *rows)
{
    if (begin == 0) {
        find_maximum(rows, 0);
    }
    for (uint32_t at = begin; at < end; at += BESIDE_PIECES) {
        uint32_t row = at / BESIDE_PIECES;
        float *scores = rows->scores[row];
        beside b = { .scores = scores,
                     .weights = scores,
                     .record = rows->records[row],
                     .sum = _mm256_setzero_ps() };
        score_tile_beside(s, 0, at, often, &b, scores + FG_ATTEND_CHUNK / 2);
        if (row + 1 < rows->count) {
            find_maximum(rows, row + 1);
        }
        score_tile_beside(s, BESIDE_ROWS, at, often, &b, scores + FG_ATTEND_CHUNK);
        b.record[FG_ATTEND_SUM] = fg_avx512_fold(b.sum);
    }
}

void fg_cpu_avx512_scores_beside(const fg_strip *s, uint32_t begin, uint32_t end,
                                 const fg_strip_rows *rows)
{
    if (s->args->kv->head_dim <= 64) {
        scores_beside(s, begin, end, true, rows);
    } else {
        scores_beside(s, begin, end, false, rows);
    }
}
