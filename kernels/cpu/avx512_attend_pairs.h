/*
 * avx512_attend_pairs - the products of attention over a bf16 cache with vdpbf16ps, for the two files that say how many
 * chains of sums a register tile adds to at a time (FG_AVX512_BOTH_CHAINS) and what the results are called.
 *
 * vdpbf16ps gives fma(a0, b0, fma(a1, b1, sum)) in each lane, 1 being the upper half, but takes denormals for
 * zeros: with no denormals (ops.h) and a pair's first element in the upper half, that is one fma chain in
 * rising order, and the bits are those of kernels that widen.
 */
#ifndef FORGE_KERNELS_CPU_AVX512_ATTEND_PAIRS_H
#define FORGE_KERNELS_CPU_AVX512_ATTEND_PAIRS_H

#include "kernels/cpu/avx512_attend_bf16.h"

#define FG_AVX512_DOT(sum, x, b) _mm512_dpbf16_ps(sum, (__m512bh)(x), (__m512bh)(b))

#if !defined(FG_AVX512_SMALL)
/* With a word from memory for all lanes; compilers would broadcast it once for several products. */
#define FG_AVX512_DOT_WORD(sum, word, b)                                                           \
    __asm__("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(b), "m"(word))
#endif

#include "kernels/cpu/avx512_brain.h"

#if defined(__AVX512F__) || defined(FG_AVX512_SMALL)
FG_AVX512_DEFINE(FG_AVX512_PAIRS)

/* The weights of one row of another strip, made two pieces at a time between products. */
typedef struct beside {
    const float *scores; /* of the next two pieces */
    float *weights;      /* where their weights go, in place */
    float *record;
    __m512 sum;
} beside;

FG_AVX512_INLINE void weigh_next(beside *b)
{
    const fg_avx512_brain_constants *c = &fg_avx512_brains;
    FG_AVX512_HOLD_POINTER(c); /* else constants are kept in registers, and chains are not */
    __m512i weights =
        fg_avx512_weigh(_mm512_load_ps(b->scores), _mm512_load_ps(b->scores + FG_AVX512_LANES),
                        _mm512_set1_ps(*b->record), c);
    b->sum = fg_avx512_add_weights(b->sum, weights);
    _mm512_store_si512(b->weights, weights);
    b->scores += FG_AVX512_WEIGHED;
    b->weights += FG_AVX512_WEIGHED / 2;
    FG_AVX512_HOLD_POINTER(b->scores);
    FG_AVX512_HOLD_POINTER(b->weights);
}

enum { BESIDE_ROWS = FG_AVX512_CHAIN_ROWS, BESIDE_PIECES = 2 };

FG_AVX512_INLINE void weigh_next_until(beside *b, const float *end)
{
    if (b->scores < end) {
        weigh_next(b);
    }
}

/* One chain of a register tile, from pair `first` on, then some weights until `end` is reached. */
FG_AVX512_INLINE void score_chain_beside(const float *q, const fg_avx512_keys *keys, uint32_t first,
                                         beside *b, const float *end, fg_avx512_sums sums)
{
    fg_avx512_clear(BESIDE_ROWS, BESIDE_PIECES, sums);
    fg_avx512_score_steps(FG_AVX512_PAIRS, false, BESIDE_ROWS, BESIDE_PIECES, FG_AVX512_TURN, q,
                          keys, first, FG_AVX512_TURN, sums);
    weigh_next_until(b, end);
}

/* Scores of four rows from `row` on for two pieces, and the weights of pieces up to `end`. */
FG_AVX512_INLINE void score_tile_beside(const fg_strip *s, uint32_t row, uint32_t piece, beside *b,
                                        const float *end)
{
    const float *q = s->q + (size_t)row * FG_STRIP_Q;
    float *scores = s->scores + (size_t)row * FG_ATTEND_SCORES + piece * FG_KV_PIECE;
    uint32_t steps = s->args->kv->head_dim / 2;
    fg_avx512_keys keys = { .at = { fg_strip_keys(s, piece), fg_strip_keys(s, piece + 1) } };
    fg_avx512_sums totals;
    fg_avx512_begin_totals(BESIDE_ROWS, BESIDE_PIECES, totals);
    for (uint32_t first = 0; first < steps; first += 2 * FG_AVX512_TURN) {
        fg_avx512_sums firsts;
        fg_avx512_sums sums;
        if (FG_AVX512_BOTH_CHAINS && first + FG_AVX512_TURN < steps) {
            fg_avx512_score_both(FG_AVX512_PAIRS, BESIDE_ROWS, BESIDE_PIECES, q, &keys, first,
                                 firsts, sums);
            weigh_next_until(b, end);
            weigh_next_until(b, end);
            fg_avx512_add_block(BESIDE_ROWS, BESIDE_PIECES, firsts, sums, totals);
            continue;
        }
        score_chain_beside(q, &keys, first, b, end, firsts);
        if (first + FG_AVX512_TURN < steps) {
            score_chain_beside(q, &keys, first + FG_AVX512_TURN, b, end, sums);
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
FG_AVX512_INLINE void score_pairs_beside(const fg_strip *s, uint32_t begin, uint32_t end,
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
                     .sum = _mm512_setzero_ps() };
        score_tile_beside(s, 0, at, &b, scores + FG_ATTEND_CHUNK / 2);
        if (row + 1 < rows->count) {
            find_maximum(rows, row + 1);
        }
        score_tile_beside(s, BESIDE_ROWS, at, &b, scores + FG_ATTEND_CHUNK);
        b.record[FG_ATTEND_SUM] = fg_avx512_fold_weights(b.sum);
    }
}

#endif
#endif
