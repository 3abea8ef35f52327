/*
 * avx512_attend - the register tiles of attention with AVX-512, for strips of up to eight (row, head)s and
 * 32 or 64 columns: a piece of 16 slots is one register. int8 is multiplied in fours by VNNI: K as bytes
 * from 0 to 255 with q, and weights with V. Only for files compiled with AVX-512; each says for which kinds
 * of K and V it wants them.
 */
#ifndef FORGE_KERNELS_CPU_AVX512_ATTEND_H
#define FORGE_KERNELS_CPU_AVX512_ATTEND_H

#include "kernels/cpu/avx512.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/strip.h"

enum {
    FG_AVX512_STRIP = 8, /* 12 leave compilers too few registers: they move chains about */
    FG_AVX512_LANES = 16,
    FG_AVX512_VECTORS = 4, /* of a register tile, at most */
    /* Rows of a register tile of chains, two vectors wide: sums, first chains and those that run all stay in
     * registers, as a store of 512 bits takes the place of a product on a Zen 4, while an addition takes none. */
    FG_AVX512_CHAIN_ROWS = 4,
    /* Steps at a time; even, and divides a quarter of every head size that comes here. */
    FG_AVX512_UNROLL = 4,
    /* The same of bf16: all of a chain of pairs, or compilers move its sums about at the loop's end. */
    FG_AVX512_TURN = 8,
    FG_AVX512_TOGETHER =
        4, /* rows weighed at a time: one alone waits for its own maximum and sum */
    /* Beside the types: bf16 that is multiplied in pairs, with q and weights packed in pairs; copies of bf16 as floats,
     * whose values lie vector by vector, so that a register tile's follow each other; int8 as K. */
    FG_AVX512_PAIRS = 0x100,
    FG_AVX512_WIDE,
    FG_AVX512_KEYS,
    FG_AVX512_WIDE_VECTOR = FG_ATTEND_CHUNK * 64, /* bytes of a vector of a chunk's values */
};

/* Whether both chains of a block are added to at a time: files say so that know what processor they are for. */
#if !defined(FG_AVX512_BOTH_CHAINS)
#define FG_AVX512_BOTH_CHAINS false
#endif

/* What fg_cpu_avx512_attend brings. */
extern const fg_strip_kernels fg_cpu_avx512_strip;

#if defined(__AVX512F__) || defined(FG_AVX512_SMALL) /* 512-bit results need it, unless emulated */

typedef __m512 fg_avx512_sums[FG_AVX512_STRIP][FG_AVX512_VECTORS];

/* Bytes of sixteen elements, pairs or fours that one step reads. */
FG_AVX512_INLINE uint32_t fg_avx512_line(uint32_t kind)
{
    return kind == FG_F16 ? 32 : 64; /* F32; and all elements of bf16 pairs, or of int8's fours */
}

/* Where the step of an index begins, in steps of that many bytes: both of a pair begin together. */
FG_AVX512_INLINE size_t fg_avx512_place(uint32_t kind, uint32_t index, size_t step_bytes)
{
    return (kind == FG_BF16 ? index / 2 : index) * step_bytes;
}

/* Sixteen elements as floats; of bf16 pairs the first or (odd) the second ones, or both as they are; int8 in
 * fours, K of which are 128 more. */
FG_AVX512_INLINE __m512 fg_avx512_load(uint32_t kind, bool odd, const uint8_t *at)
{
    switch (kind) {
    case FG_F16:
        return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)at));
    case FG_BF16: {
        __m512i pairs = _mm512_loadu_si512(at);
        return _mm512_castsi512_ps(odd ? fg_avx512_lower(pairs) : fg_avx512_upper(pairs));
    }
    case FG_AVX512_KEYS:
        return _mm512_castsi512_ps(
            _mm512_xor_si512(_mm512_loadu_si512(at), _mm512_set1_epi8((char)0x80)));
    default:
        return _mm512_loadu_ps(at);
    }
}

FG_AVX512_INLINE __m512 fg_avx512_multiply_add(uint32_t kind, __m512 x, __m512 b, __m512 sum)
{
#if defined(FG_AVX512_DOT)
    if (kind == FG_AVX512_PAIRS) {
        return FG_AVX512_DOT(sum, x, b);
    }
#endif
    __m512i words = _mm512_castps_si512(sum);
    switch (kind) {
    case FG_AVX512_KEYS:
        words = _mm512_dpbusd_epi32(words, _mm512_castps_si512(b), _mm512_castps_si512(x));
        return _mm512_castsi512_ps(words);
    case FG_I8:
        words = _mm512_dpbusd_epi32(words, _mm512_castps_si512(x), _mm512_castps_si512(b));
        return _mm512_castsi512_ps(words);
    default:
        return _mm512_fmadd_ps(x, b, sum);
    }
}

/* One step of a product: sums[m][n] += a[m * a_step] * b[n], b[n] at bs[n]. What is fewer, a or b, is held
 * in registers, and the other passes through one. */
FG_AVX512_INLINE void fg_avx512_step(uint32_t kind, bool odd, int M, int N, const float *a,
                                     size_t a_step, const uint8_t *const bs[FG_AVX512_VECTORS],
                                     fg_avx512_sums sums)
{
    if (M < N) { /* so M < FG_AVX512_VECTORS, which compilers see too late */
        __m512 x[FG_AVX512_VECTORS];
#pragma GCC unroll 4
        for (int m = 0; m < M && m < FG_AVX512_VECTORS; m++) {
            x[m] = _mm512_set1_ps(a[(size_t)m * a_step]);
        }
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) {
            __m512 b = fg_avx512_load(kind, odd, bs[n]);
#pragma GCC unroll 4
            for (int m = 0; m < M && m < FG_AVX512_VECTORS; m++) {
                sums[m][n] = fg_avx512_multiply_add(kind, x[m], b, sums[m][n]);
            }
        }
        return;
    }
    __m512 b[FG_AVX512_VECTORS];
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) {
        b[n] = fg_avx512_load(kind, odd, bs[n]);
        FG_AVX512_HOLD(b[n]);
    }
#if defined(FG_AVX512_DOT_WORD)
    if (kind == FG_AVX512_PAIRS) { /* a's words need no register */
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
#pragma GCC unroll 4
            for (int n = 0; n < N; n++) {
                FG_AVX512_DOT_WORD(sums[m][n], a[(size_t)m * a_step], b[n]);
            }
        }
        return;
    }
#endif
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
        __m512 x = _mm512_set1_ps(a[(size_t)m * a_step]);
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) {
            sums[m][n] = fg_avx512_multiply_add(kind, x, b[n], sums[m][n]);
            FG_AVX512_HOLD(sums[m][n]);
        }
    }
}

FG_AVX512_INLINE void fg_avx512_clear(int M, int N, fg_avx512_sums sums)
{
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) {
            sums[m][n] = _mm512_setzero_ps();
        }
    }
}

/* Where the vectors of a register tile's two chains are, and from one step to the next. */
typedef struct fg_avx512_chains_at {
    const uint8_t *firsts[FG_AVX512_VECTORS];
    const uint8_t *seconds[FG_AVX512_VECTORS];
    size_t step_bytes;
} fg_avx512_chains_at;

/* Dimensions or slots that one step multiplies. */
FG_AVX512_INLINE uint32_t fg_avx512_together(uint32_t kind)
{
    return kind == FG_AVX512_PAIRS ? 2 : kind == FG_I8 ? 4 : 1;
}

/* Both chains of a block from 0, at once; of M rows, whose words are a_step apart. A word serves N products. */
FG_AVX512_INLINE void fg_avx512_add_both(uint32_t kind, int M, int N, const float *a, size_t a_step,
                                         const fg_avx512_chains_at *at, fg_avx512_sums firsts,
                                         fg_avx512_sums seconds)
{
    const int steps = FG_STRIP_CHAIN / (int)fg_avx512_together(kind);
    size_t offset = 0;
    fg_avx512_clear(M, N, firsts);
    fg_avx512_clear(M, N, seconds);
#pragma GCC unroll 16
    for (int u = 0; u < steps; u++) {
        __m512 b[FG_AVX512_VECTORS];
        __m512 c[FG_AVX512_VECTORS];
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) {
            b[n] = fg_avx512_load(kind, false, at->firsts[n] + offset);
            FG_AVX512_HOLD(b[n]);
            c[n] = fg_avx512_load(kind, false, at->seconds[n] + offset);
            FG_AVX512_HOLD(c[n]);
        }
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
            __m512 x = _mm512_set1_ps(a[(size_t)m * a_step + (size_t)u]);
            FG_AVX512_HOLD(x);
            __m512 y = _mm512_set1_ps(a[(size_t)m * a_step + (size_t)(steps + u)]);
            FG_AVX512_HOLD(y);
#pragma GCC unroll 4
            for (int n = 0; n < N; n++) {
                firsts[m][n] = fg_avx512_multiply_add(kind, x, b[n], firsts[m][n]);
                FG_AVX512_HOLD(firsts[m][n]);
                seconds[m][n] = fg_avx512_multiply_add(kind, y, c[n], seconds[m][n]);
                FG_AVX512_HOLD(seconds[m][n]);
            }
        }
        offset += at->step_bytes;
        __asm__("" : "+r"(offset)); /* else each step's place is a register of its own */
    }
}

/* Strips that read the arena wait for memory: they fetch what comes later as they go, into the second-level cache, which
 * waits for more lines at once than the first. Whole strips mostly read copies, which are there already. */
FG_AVX512_INLINE bool fg_avx512_fetches(uint32_t kind, int M, const fg_strip *s)
{
    return kind != FG_AVX512_WIDE && (M < FG_AVX512_STRIP || s->pieces->run == FG_KV_PIECE);
}

FG_AVX512_INLINE void fg_avx512_fetch(const uint8_t *at)
{
    _mm_prefetch((const char *)at, _MM_HINT_T1);
}

/* bf16 is added in chains of FG_STRIP_CHAIN dimensions or slots, two of which are a block. */
FG_AVX512_INLINE bool fg_avx512_chains(uint32_t kind)
{
    return kind == FG_BF16 || kind == FG_AVX512_PAIRS || kind == FG_AVX512_WIDE;
}

/* Vectors of a register tile with M rows: enough chains to hide a multiply-add's latency. */
FG_AVX512_INLINE int fg_avx512_vectors(uint32_t kind, int M)
{
    return M < (fg_avx512_chains(kind) ? 3 : 4) ? 4 : 2;
}

/* Rows of the first of the register tiles that share out M rows: all, or the first half. */
FG_AVX512_INLINE int fg_avx512_rows(uint32_t kind, int M)
{
    return fg_avx512_chains(kind) && M > FG_AVX512_CHAIN_ROWS ? (M + 1) / 2 : M;
}

/* totals += firsts + sums, a block's two chains. */
FG_AVX512_INLINE void fg_avx512_add_block(int M, int N, fg_avx512_sums firsts, fg_avx512_sums sums,
                                          fg_avx512_sums totals)
{
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) {
            totals[m][n] = _mm512_add_ps(totals[m][n], _mm512_add_ps(firsts[m][n], sums[m][n]));
            FG_AVX512_HOLD(totals[m][n]);
        }
    }
}

/* What a row's scores begin with: -128 times the sum of its q, as K are 128 more than they should be; else 0. */
FG_AVX512_INLINE __m512 fg_avx512_first_sum(uint32_t kind, const float *q)
{
    return kind == FG_I8 ? _mm512_set1_ps(q[FG_STRIP_Q_NEGATED]) : _mm512_setzero_ps();
}

/* K of the pieces of a register tile. */
typedef struct fg_avx512_keys {
    const uint8_t *at[FG_AVX512_VECTORS];
    const uint8_t *after[FG_AVX512_VECTORS]; /* what is fetched meanwhile */
} fg_avx512_keys;

/* Adds `count` steps from `first` on to the sums of N pieces, `turn` at a time. */
FG_AVX512_INLINE void fg_avx512_score_steps(uint32_t kind, bool fetches, int M, int N,
                                            uint32_t turn, const float *q,
                                            const fg_avx512_keys *keys, uint32_t first,
                                            uint32_t count, fg_avx512_sums sums)
{
    uint32_t line = fg_avx512_line(kind);
    size_t begin = fg_avx512_place(kind, first, line);
    for (uint32_t d = 0; d < count; d += turn) {
#pragma GCC unroll 8
        for (uint32_t u = 0; u < turn; u++) {
            const uint8_t *bs[FG_AVX512_VECTORS];
            size_t at = begin + fg_avx512_place(kind, d, line) + fg_avx512_place(kind, u, line);
#pragma GCC unroll 4
            for (int n = 0; n < N; n++) {
                bs[n] = keys->at[n] + at;
                if (fetches && fg_avx512_place(kind, u, line) % 64 == 0) {
                    fg_avx512_fetch(keys->after[n] + at);
                }
            }
            fg_avx512_step(kind == FG_I8 ? FG_AVX512_KEYS : kind, u % 2 == 1, M, N,
                           q + first + d + u, FG_STRIP_Q, bs, sums);
        }
    }
}

FG_AVX512_INLINE void fg_avx512_begin_totals(int M, int N, fg_avx512_sums totals)
{
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) {
            totals[m][n] = _mm512_set1_ps(-0.0f); /* added to anything it changes nothing */
        }
    }
}

FG_AVX512_INLINE void fg_avx512_put_scores(int M, int N, float *scores, fg_avx512_sums sums)
{
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) {
            _mm512_store_ps(scores + m * FG_ATTEND_SCORES + n * FG_AVX512_LANES, sums[m][n]);
        }
    }
}

/* A block's two chains of scores. */
FG_AVX512_INLINE void fg_avx512_score_both(uint32_t kind, int M, int N, const float *q,
                                           const fg_avx512_keys *keys, uint32_t first,
                                           fg_avx512_sums firsts, fg_avx512_sums sums)
{
    size_t line = fg_avx512_line(kind);
    size_t chain = (size_t)FG_STRIP_CHAIN / fg_avx512_together(kind);
    fg_avx512_chains_at at = { .step_bytes = line };
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) {
        at.firsts[n] = keys->at[n] + first * line;
        at.seconds[n] = at.firsts[n] + chain * line;
    }
    fg_avx512_add_both(kind, M, N, q + first, FG_STRIP_Q, &at, firsts, sums);
}

/* Whether rows that fill register tiles, and wait for no memory, are added to both chains at a time. */
FG_AVX512_INLINE bool fg_avx512_adds_both(uint32_t kind, bool fetches, int M)
{
    return FG_AVX512_BOTH_CHAINS && kind != FG_BF16 && !fetches && M > 2;
}

/* Scores of N pieces, of bf16: block by block, each two chains from 0. */
FG_AVX512_INLINE void fg_avx512_score_blocks(uint32_t kind, bool fetches, int M, int N,
                                             const float *q, const fg_avx512_keys *keys,
                                             uint32_t steps, fg_avx512_sums totals)
{
    uint32_t chain = (uint32_t)FG_STRIP_CHAIN / fg_avx512_together(kind);
    fg_avx512_begin_totals(M, N, totals);
    for (uint32_t first = 0; first < steps; first += 2 * chain) {
        uint32_t second = first + chain;
        fg_avx512_sums firsts;
        fg_avx512_sums sums;
        if (fg_avx512_adds_both(kind, fetches, M) && second < steps) {
            fg_avx512_score_both(kind, M, N, q, keys, first, firsts, sums);
            fg_avx512_add_block(M, N, firsts, sums, totals);
            continue;
        }
        fg_avx512_clear(M, N, firsts);
        fg_avx512_score_steps(kind, fetches, M, N, FG_AVX512_TURN, q, keys, first, chain, firsts);
        fg_avx512_clear(M, N, sums);
        if (second < steps) {
            fg_avx512_score_steps(kind, fetches, M, N, FG_AVX512_TURN, q, keys, second, chain,
                                  sums);
        }
        fg_avx512_add_block(M, N, firsts, sums, totals);
    }
}

/* Scores of M rows from `row` on, for N pieces from `piece` on. */
FG_AVX512_INLINE void fg_avx512_score_pieces(uint32_t kind, bool fetches, int row, int M, int N,
                                             const fg_strip *s, uint32_t piece)
{
    const float *q = s->q + (size_t)row * FG_STRIP_Q;
    float *scores = s->scores + (size_t)row * FG_ATTEND_SCORES + piece * FG_KV_PIECE;
    uint32_t steps = s->args->kv->head_dim / fg_avx512_together(kind);
    fg_avx512_keys keys;
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) {
        keys.at[n] = fg_strip_keys(s, piece + (uint32_t)n);
        keys.after[n] = fg_strip_after_keys(s, piece + (uint32_t)n);
    }
    fg_avx512_sums sums;
    if (fg_avx512_chains(kind)) {
        fg_avx512_score_blocks(kind, fetches, M, N, q, &keys, steps, sums);
    } else {
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
#pragma GCC unroll 4
            for (int n = 0; n < N; n++) {
                sums[m][n] = fg_avx512_first_sum(kind, q + (size_t)m * FG_STRIP_Q);
            }
        }
        fg_avx512_score_steps(kind, fetches, M, N, FG_AVX512_UNROLL, q, &keys, 0, steps, sums);
    }
    fg_avx512_put_scores(M, N, scores, sums);
}

FG_AVX512_INLINE void fg_avx512_score_all(uint32_t kind, bool fetches, int M, const fg_strip *s,
                                          uint32_t begin, uint32_t end)
{
    fg_cpu_slots seen = fg_strip_seen(s, begin, end);
    int rows = fg_avx512_rows(kind, M);
    int vectors = fg_avx512_vectors(kind, rows);
    for (uint32_t at = seen.begin; at < seen.end; at += (uint32_t)vectors) {
        fg_avx512_score_pieces(kind, fetches, 0, rows, vectors, s, at);
        if (rows < M) {
            fg_avx512_score_pieces(kind, false, rows, M - rows, vectors, s, at);
        }
    }
}

FG_AVX512_INLINE void fg_avx512_scores(uint32_t kind, int M, const fg_strip *s, uint32_t begin,
                                       uint32_t end)
{
    if (fg_avx512_fetches(kind, M, s)) {
        fg_avx512_score_all(kind, true, M, s, begin, end);
    } else {
        fg_avx512_score_all(kind, false, M, s, begin, end);
    }
}

/* What a product with the values goes through: weights and values of one run of slots. */
typedef struct fg_avx512_run {
    const float *weights; /* of the first row, a word per step */
    const uint8_t *values;
    ptrdiff_t after; /* from values to what is fetched */
    size_t step_bytes;
    size_t vector_bytes; /* from one vector to the next */
    bool fetches;
} fg_avx512_run;

FG_AVX512_INLINE void fg_avx512_value_step_at(uint32_t kind, int M, int N, const fg_avx512_run *run,
                                              const uint8_t *value, uint32_t step,
                                              fg_avx512_sums sums)
{
    const uint8_t *bs[FG_AVX512_VECTORS];
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) {
        bs[n] = value + (size_t)n * run->vector_bytes;
        if (run->fetches && (size_t)n * fg_avx512_line(kind) % 64 == 0) {
            fg_avx512_fetch(bs[n] + run->after);
        }
    }
    fg_avx512_step(kind, step % 2 == 1, M, N, run->weights + step, FG_ATTEND_SCORES, bs, sums);
}

FG_AVX512_INLINE void fg_avx512_value_step(uint32_t kind, int M, int N, const fg_avx512_run *run,
                                           uint32_t step, fg_avx512_sums sums)
{
    const uint8_t *value = run->values + fg_avx512_place(kind, step, run->step_bytes);
    fg_avx512_value_step_at(kind, M, N, run, value, step, sums);
}

/* One slot of a pair whose other slot is not to be read: its place is taken by 0. */
FG_AVX512_INLINE void fg_avx512_half_step(int M, int N, const fg_avx512_run *run, uint32_t slot,
                                          fg_avx512_sums sums)
{
    const uint8_t *value = run->values + slot / 2 * run->step_bytes;
    __m512i mask = _mm512_set1_epi32((int32_t)(slot % 2 == 0 ? 0xFFFF0000 : 0xFFFF));
    for (int n = 0; n < N; n++) {
        __m512i pairs = _mm512_loadu_si512(value + (size_t)n * 64);
        __m512 b = _mm512_castsi512_ps(_mm512_and_si512(pairs, mask));
        for (int m = 0; m < M; m++) {
            __m512 x = _mm512_set1_ps(run->weights[(size_t)m * FG_ATTEND_SCORES + slot / 2]);
            sums[m][n] = fg_avx512_multiply_add(FG_AVX512_PAIRS, x, b, sums[m][n]);
        }
    }
}

/* The slots begin .. end - 1 of a run, which begins at slot 0. */
FG_AVX512_INLINE void fg_avx512_run_values(uint32_t kind, int M, int N, const fg_avx512_run *run,
                                           uint32_t begin, uint32_t end, fg_avx512_sums sums)
{
    bool pairs = kind == FG_AVX512_PAIRS;
    if (pairs && begin % 2 == 1) {
        fg_avx512_half_step(M, N, run, begin++, sums);
    } else if (kind == FG_BF16 && begin % 2 == 1) {
        fg_avx512_value_step(kind, M, N, run, begin++, sums);
    }
    uint32_t step = begin / fg_avx512_together(kind);
    uint32_t steps = end / fg_avx512_together(kind);
    for (; step + FG_AVX512_UNROLL <= steps; step += FG_AVX512_UNROLL) {
#pragma GCC unroll 4
        for (uint32_t u = 0; u < FG_AVX512_UNROLL; u++) {
            fg_avx512_value_step(kind, M, N, run, step + u, sums);
        }
    }
    for (; step < steps; step++) {
        fg_avx512_value_step(kind, M, N, run, step, sums);
    }
    if (pairs && begin < end && end % 2 == 1) {
        fg_avx512_half_step(M, N, run, end - 1, sums);
    }
}

FG_AVX512_INLINE void fg_avx512_get_columns(int M, int N, float *const *outs, uint32_t column,
                                            fg_avx512_sums sums)
{
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) {
            sums[m][n] = _mm512_load_ps(outs[m] + column + n * FG_AVX512_LANES);
        }
    }
}

FG_AVX512_INLINE void fg_avx512_put_columns(int M, int N, float *const *outs, uint32_t column,
                                            fg_avx512_sums sums)
{
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) {
            _mm512_store_ps(outs[m] + column + n * FG_AVX512_LANES, sums[m][n]);
        }
    }
}

/* What fg_strip_kernels.merge does, of one tile's columns while they are in registers. */
FG_AVX512_INLINE void fg_avx512_join_columns(int M, int N, const fg_strip_merge *m, int row,
                                             uint32_t column, fg_avx512_sums sums)
{
#pragma GCC unroll 8
    for (int i = 0; i < M; i++) {
        float *at = m->states[row + i] + FG_ATTEND_HEAD + column;
        __m512 before = _mm512_set1_ps(m->before[row + i]);
        __m512 now = _mm512_set1_ps(m->now[row + i]);
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) {
            __m512 old = _mm512_mul_ps(_mm512_load_ps(at + n * FG_AVX512_LANES), before);
            _mm512_store_ps(at + n * FG_AVX512_LANES, _mm512_fmadd_ps(sums[i][n], now, old));
        }
    }
}

/* Where the slots of a piece have their weights and values. */
FG_AVX512_INLINE fg_avx512_run fg_avx512_run_of(uint32_t kind, bool fetches, const fg_strip *s,
                                                const float *weights, uint32_t piece,
                                                uint32_t column)
{
    size_t step_bytes = s->args->kv->head_dim / FG_AVX512_LANES * fg_avx512_line(kind);
    size_t vector_bytes = fg_avx512_line(kind);
    const uint8_t *values = fg_strip_values(s, piece);
    if (kind == FG_AVX512_WIDE) {
        values -= piece * FG_KV_PIECE * (step_bytes - vector_bytes);
        step_bytes = vector_bytes;
        vector_bytes = FG_AVX512_WIDE_VECTOR;
    }
    return (fg_avx512_run){
        .weights = weights + piece * FG_KV_PIECE / fg_avx512_together(kind),
        .values = values + column / FG_AVX512_LANES * vector_bytes,
        .after = fg_strip_after_values(s, piece) - values,
        .step_bytes = step_bytes,
        .vector_bytes = vector_bytes,
        .fetches = fetches,
    };
}

/* One chain of bf16 from 0: the slots of a piece from `first` on. One row may see some of them, several all (strip.h). */
FG_AVX512_INLINE void fg_avx512_value_chain(uint32_t kind, bool fetches, int M, int N,
                                            const fg_strip *s, const float *weights,
                                            fg_cpu_slots slots, uint32_t column, uint32_t first,
                                            fg_avx512_sums sums)
{
    fg_cpu_slots seen = fg_strip_clip(slots, first, first + FG_STRIP_CHAIN);
    fg_avx512_clear(M, N, sums);
    if (M == 1 && seen.begin >= seen.end) {
        return; /* there may be no such piece */
    }
    fg_avx512_run run = fg_avx512_run_of(kind, fetches, s, weights, first / FG_KV_PIECE, column);
    if (M == 1 && seen.end - seen.begin < FG_STRIP_CHAIN) {
        fg_avx512_run_values(kind, M, N, &run, seen.begin - first, seen.end - first, sums);
        return;
    }
    const uint8_t *value = run.values;
    uint32_t steps = (uint32_t)FG_STRIP_CHAIN / fg_avx512_together(kind);
    for (uint32_t step = 0; step < steps; step += FG_AVX512_TURN) {
        FG_AVX512_HOLD_POINTER(run.weights);
#pragma GCC unroll 8
        for (uint32_t u = 0; u < FG_AVX512_TURN; u++) {
            fg_avx512_value_step_at(kind, M, N, &run, value, u, sums);
            if (fg_avx512_place(kind, u + 1, 1) > fg_avx512_place(kind, u, 1)) {
                value += run.step_bytes;
                FG_AVX512_HOLD_POINTER(value); /* else each step's place is a register of its own */
            }
        }
        run.weights += FG_AVX512_TURN;
    }
}

/* A block's two chains of values: of two pieces that all rows see. */
FG_AVX512_INLINE void fg_avx512_value_both(uint32_t kind, int M, int N, const fg_strip *s,
                                           const float *weights, uint32_t column, uint32_t slot,
                                           fg_avx512_sums firsts, fg_avx512_sums sums)
{
    uint32_t piece = slot / FG_KV_PIECE;
    fg_avx512_run one = fg_avx512_run_of(kind, false, s, weights, piece, column);
    fg_avx512_run two = fg_avx512_run_of(kind, false, s, weights, piece + 1, column);
    fg_avx512_chains_at at = { .step_bytes = one.step_bytes };
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) {
        at.firsts[n] = one.values + (size_t)n * one.vector_bytes;
        at.seconds[n] = two.values + (size_t)n * one.vector_bytes;
    }
    fg_avx512_add_both(kind, M, N, one.weights, FG_ATTEND_SCORES, &at, firsts, sums);
}

/* Adds weights times values to N * 16 columns of M outputs, from the strip's `row` on: of bf16 block by block, each two
 * chains from 0. */
FG_AVX512_INLINE void fg_avx512_add_columns(uint32_t kind, bool fetches, int row, int M, int N,
                                            const fg_strip *s, const float *weights,
                                            float *const *outs, fg_cpu_slots slots, uint32_t column)
{
    enum { CHAIN = FG_STRIP_CHAIN, BLOCK = 2 * CHAIN };
    fg_avx512_sums totals;
    if (s->begins) {
        fg_avx512_clear(M, N, totals);
    } else {
        fg_avx512_get_columns(M, N, outs, column, totals);
    }
    uint32_t slot = fg_avx512_chains(kind) ? slots.begin / BLOCK * BLOCK : slots.begin;
    for (uint32_t next; slot < slots.end; slot = next) {
        if (fg_avx512_chains(kind)) {
            fg_avx512_sums firsts;
            fg_avx512_sums sums;
            next = slot + BLOCK;
            if (fg_avx512_adds_both(kind, fetches, M)) {
                fg_avx512_value_both(kind, M, N, s, weights, column, slot, firsts, sums);
                fg_avx512_add_block(M, N, firsts, sums, totals);
                continue;
            }
            fg_avx512_value_chain(kind, fetches, M, N, s, weights, slots, column, slot, firsts);
            fg_avx512_value_chain(kind, fetches, M, N, s, weights, slots, column, slot + CHAIN,
                                  sums);
            fg_avx512_add_block(M, N, firsts, sums, totals);
            continue;
        }
        uint32_t piece = slot / FG_KV_PIECE;
        uint32_t first = piece * FG_KV_PIECE;
        uint32_t run_end = (slot / s->pieces->run + 1) * s->pieces->run;
        next = run_end < slots.end ? run_end : slots.end;
        fg_avx512_run run = fg_avx512_run_of(kind, fetches, s, weights, piece, column);
        fg_avx512_run_values(kind, M, N, &run, slot - first, next - first, totals);
    }
    if (kind != FG_I8 && s->joins != NULL) {
        fg_avx512_join_columns(M, N, s->joins, row, column, totals);
    } else {
        fg_avx512_put_columns(M, N, outs, column, totals);
    }
}

FG_AVX512_INLINE void fg_avx512_add_all(uint32_t kind, bool fetches, int M, const fg_strip *s,
                                        const float *weights, float *const *outs,
                                        fg_cpu_slots slots)
{
    uint32_t head_dim = s->args->kv->head_dim;
    uint32_t column = 0;
    int rows = fg_avx512_rows(kind, M);
    int vectors = fg_avx512_vectors(kind, rows);
    const float *rest_weights = weights + (size_t)rows * FG_ATTEND_SCORES;
    if (slots.begin >= slots.end) {
        return;
    }
    for (; column + (uint32_t)vectors * FG_AVX512_LANES <= head_dim;
         column += (uint32_t)vectors * FG_AVX512_LANES) {
        fg_avx512_add_columns(kind, fetches, 0, rows, vectors, s, weights, outs, slots, column);
        if (rows < M) {
            fg_avx512_add_columns(kind, false, rows, M - rows, vectors, s, rest_weights,
                                  outs + rows, slots, column);
        }
    }
    for (; column < head_dim; column += FG_AVX512_LANES) {
        fg_avx512_add_columns(kind, fetches, 0, rows, 1, s, weights, outs, slots, column);
        if (rows < M) {
            fg_avx512_add_columns(kind, false, rows, M - rows, 1, s, rest_weights, outs + rows,
                                  slots, column);
        }
    }
}

FG_AVX512_INLINE void fg_avx512_add_values(uint32_t kind, int M, const fg_strip *s,
                                           const float *weights, float *const *outs,
                                           fg_cpu_slots slots)
{
    if (fg_avx512_fetches(kind, M, s)) {
        fg_avx512_add_all(kind, true, M, s, weights, outs, slots);
    } else {
        fg_avx512_add_all(kind, false, M, s, weights, outs, slots);
    }
}

/* One row, where the others do not see what it sees. */
FG_AVX512_INLINE void fg_avx512_row_values(uint32_t kind, const fg_strip *s, int m, uint32_t begin,
                                           uint32_t end)
{
    float *out = s->targets[m] + FG_ATTEND_HEAD;
    fg_avx512_add_values(kind, 1, s, s->scores + m * FG_ATTEND_SCORES, &out,
                         fg_strip_clip(s->slots[m], begin, end));
}

typedef void fg_avx512_row(const fg_strip *s, int m, uint32_t begin, uint32_t end);

/* Values of slots begin .. end - 1: what all rows see in one product, the rest row by row. */
FG_AVX512_INLINE void fg_avx512_values(uint32_t kind, int M, const fg_strip *s, uint32_t begin,
                                       uint32_t end, fg_avx512_row *row)
{
    float *outs[FG_AVX512_STRIP];
    for (int m = 0; m < M; m++) {
        outs[m] = s->targets[m] + FG_ATTEND_HEAD;
    }
    if (kind == FG_I8) { /* what a row does not see weighs nothing */
        fg_avx512_add_values(kind, M, s, s->scores, outs, fg_strip_seen_slots(s, begin, end));
        return;
    }
    fg_cpu_slots all = fg_strip_clip(s->all, begin, end);
    if (s->even) {
        fg_avx512_add_values(kind, M, s, s->scores, outs, all);
        return;
    }
    for (int m = 0; m < M; m++) {
        fg_cpu_slots before = fg_strip_before(s, (uint32_t)m, begin, end);
        if (before.begin < before.end) {
            row(s, m, before.begin, before.end);
        }
    }
    fg_avx512_add_values(kind, M, s, s->scores, outs, all);
    for (int m = 0; m < M; m++) {
        fg_cpu_slots after = fg_strip_after(s, (uint32_t)m, begin, end);
        if (after.begin < after.end) {
            row(s, m, after.begin, after.end);
        }
    }
}

FG_AVX512_INLINE float fg_avx512_fold(__m256 sum)
{
    float lanes[8];
    _mm256_storeu_ps(lanes, sum);
    return fg_cpu_fold(lanes);
}

FG_AVX512_INLINE float fg_avx512_maximum(const float *x, uint32_t begin, uint32_t end)
{
    __m512 high = _mm512_set1_ps(-__builtin_inff());
    __m512 other = high;
    uint32_t j = begin;
    for (; j + 2 * FG_AVX512_LANES <= end; j += 2 * FG_AVX512_LANES) {
        high = _mm512_max_ps(high, _mm512_load_ps(x + j));
        other = _mm512_max_ps(other, _mm512_load_ps(x + j + FG_AVX512_LANES));
    }
    if (j < end) {
        high = _mm512_max_ps(high, _mm512_load_ps(x + j));
    }
    return _mm512_reduce_max_ps(_mm512_max_ps(high, other));
}

/* The maxima of some rows' scores, which their records hold as well. */
FG_AVX512_INLINE void fg_avx512_begin_weights(int R, float *const *scores, uint32_t begin,
                                              uint32_t end, float *const *records,
                                              __m512 maxima[FG_AVX512_TOGETHER])
{
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
        records[r][0] = fg_avx512_maximum(scores[r], begin, end);
        maxima[r] = _mm512_set1_ps(records[r][0]);
    }
}

/* fg_cpu_brain_power of sixteen, and which of them are not 0. */
FG_AVX512_INLINE __m512 fg_avx512_brain_power(__m512 x, __mmask16 *there_out)
{
    const __m512 magic = _mm512_set1_ps(0x1.8p23f);
    __m512 shifted = _mm512_add_ps(x, magic);
    __m512 f = _mm512_sub_ps(x, _mm512_sub_ps(shifted, magic));
    __m512 p = _mm512_set1_ps(FG_CPU_BRAIN_3);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(FG_CPU_BRAIN_2));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(FG_CPU_BRAIN_1));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    *there_out = _mm512_cmp_ps_mask(x, _mm512_set1_ps(FG_CPU_BRAIN_LEAST), _CMP_NLT_UQ);
    __m512i power = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
    return _mm512_castsi512_ps(_mm512_maskz_add_epi32(*there_out, power, _mm512_castps_si512(p)));
}

/* The products of a kind, for strips of 1 to 8 (row, head)s. */
#define FG_AVX512_PRODUCT(kind, M)                                                                 \
    static void scores_##kind##_##M(const fg_strip *s, uint32_t begin, uint32_t end)               \
    {                                                                                              \
        fg_avx512_scores(kind, M, s, begin, end);                                                  \
    }                                                                                              \
    static void values_##kind##_##M(const fg_strip *s, uint32_t begin, uint32_t end)               \
    {                                                                                              \
        fg_avx512_values(kind, M, s, begin, end, row_##kind);                                      \
    }
#define FG_AVX512_EACH(X, kind)                                                                    \
    X(kind, 1)                                                                                     \
    X(kind, 2)                                                                                     \
    X(kind, 3)                                                                                     \
    X(kind, 4)                                                                                     \
    X(kind, 5)                                                                                     \
    X(kind, 6)                                                                                     \
    X(kind, 7)                                                                                     \
    X(kind, 8)
#define FG_AVX512_ENTRY(kind, M) { scores_##kind##_##M, values_##kind##_##M },
#define FG_AVX512_DEFINE(kind)                                                                     \
    static __attribute__((noinline)) void row_##kind(const fg_strip *s, int m, uint32_t begin,     \
                                                     uint32_t end)                                 \
    {                                                                                              \
        fg_avx512_row_values(kind, s, m, begin, end);                                              \
    }                                                                                              \
    FG_AVX512_EACH(FG_AVX512_PRODUCT, kind)
#define FG_AVX512_TABLE(kind)                                                                      \
    {                                                                                              \
        FG_AVX512_EACH(FG_AVX512_ENTRY, kind)                                                      \
    }

#endif
#endif
