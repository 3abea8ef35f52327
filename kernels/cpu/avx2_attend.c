/*
 * Attention with AVX2, FMA and F16C: the register tiles of strip.c, for up to six (row, head)s and 16 to 64
 * columns, that widen K and V as they load them. int8 is widened to 16 bits and multiplied in pairs: of four
 * that lie together the first and third, then the second and fourth. So its steps lie as bf16's elements do.
 */
#include <stddef.h>

#include "kernels/cpu/avx2.h"
#include "kernels/cpu/avx2_block.h"
#include "kernels/cpu/avx2_fours.h"
#include "kernels/cpu/avx2_math.h"
#include "kernels/cpu/strip.h"

enum {
    STRIP = 6,
    SCORES = FG_ATTEND_SCORES,
    PIECE = FG_KV_PIECE,
    UNROLL = 4, /* divides half of every head size that comes here */
};

/* Of one element that a step multiplies; a pair of int8. */
FG_AVX2_INLINE uint32_t element_bytes(uint32_t kind)
{
    return kind == FG_F32 ? 4 : 2;
}

/* Dimensions or slots that one step multiplies. */
FG_AVX2_INLINE uint32_t together(uint32_t kind)
{
    return kind == FG_I8 ? 2 : 1;
}

/* Step [index][inner] of K or V (fg_cpu_element_at), in bytes; the same for two steps of bf16 and int8. */
FG_AVX2_INLINE size_t place(uint32_t kind, uint32_t index, uint32_t inner, uint32_t columns)
{
    if (kind == FG_BF16 || kind == FG_I8) {
        return ((size_t)(index & ~1u) * columns + (size_t)inner * 2) * 2;
    }
    return ((size_t)index * columns + inner) * element_bytes(kind);
}

/* Eight elements as floats; of bf16 pairs the first or (odd) the second ones, of int8 the first or second pairs. */
FG_AVX2_INLINE __m256 load_kv(uint32_t kind, bool odd, const uint8_t *at)
{
    switch (kind) {
    case FG_F32:
        return _mm256_loadu_ps((const float *)(const void *)at);
    case FG_F16:
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)at));
    case FG_BF16: {
        __m256i pairs = _mm256_loadu_si256((const __m256i *)(const void *)at);
        __m256i upper = _mm256_set1_epi32((int32_t)0xFFFF0000);
        return _mm256_castsi256_ps(odd ? _mm256_slli_epi32(pairs, 16)
                                       : _mm256_and_si256(pairs, upper));
    }
    default: {
        __m256i fours = _mm256_loadu_si256((const __m256i *)(const void *)at);
        __m256i upper = odd ? fours : _mm256_slli_epi16(fours, 8);
        return _mm256_castsi256_ps(_mm256_srai_epi16(upper, 8));
    }
    }
}

FG_AVX2_INLINE __m256 multiply_add(uint32_t kind, __m256 x, __m256 b, __m256 sum)
{
    if (kind == FG_I8) {
        __m256i products = _mm256_madd_epi16(_mm256_castps_si256(x), _mm256_castps_si256(b));
        return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(sum), products));
    }
    return _mm256_fmadd_ps(x, b, sum);
}

/* Makes the compiler keep a value in a register here; without it, it moves sums about and spills some. */
#define HOLD(x) __asm__("" : "+x"(x))

/* One step of a product: acc[m][n] += a[m * a_step] * b[n], b[n] at bs[n]. What is fewer, a or b, is
 * held in registers, and the other passes through one: 16 must do for all. */
FG_AVX2_INLINE void step(uint32_t kind, bool odd, int M, int N, const float *a, size_t a_step,
                         const uint8_t *const bs[8], __m256 acc[STRIP][8])
{
    if (M < N) {
        __m256 x[STRIP];
        for (int m = 0; m < M; m++) {
            x[m] = _mm256_broadcast_ss(a + m * a_step);
        }
        for (int n = 0; n < N; n++) {
            __m256 b = load_kv(kind, odd, bs[n]);
            for (int m = 0; m < M; m++) {
                acc[m][n] = multiply_add(kind, x[m], b, acc[m][n]);
            }
        }
        return;
    }
    __m256 b[8];
    for (int n = 0; n < N; n++) {
        b[n] = load_kv(kind, odd, bs[n]);
        HOLD(b[n]);
    }
    for (int m = 0; m < M; m++) {
        __m256 x = _mm256_broadcast_ss(a + m * a_step);
        for (int n = 0; n < N; n++) {
            acc[m][n] = multiply_add(kind, x, b[n], acc[m][n]);
            HOLD(acc[m][n]);
        }
    }
}

/* Small tiles wait for memory: they fetch what comes later as they go, into the second-level cache, which waits
 * for more lines at once than the first. */
FG_AVX2_INLINE bool fetches(int M)
{
    return M < 5;
}

FG_AVX2_INLINE void fetch(const uint8_t *at)
{
    _mm_prefetch((const char *)at, _MM_HINT_T1);
}

/* 16 elements of a piece; not again where they share a cache line with the ones before. */
FG_AVX2_INLINE void fetch_line(uint32_t kind, const uint8_t *at, uint32_t index)
{
    if (index % (64 / (PIECE * element_bytes(kind))) == 0) {
        fetch(at);
    }
}

/* bf16 is added in chains of FG_STRIP_CHAIN dimensions or slots, two of which are a block. */
FG_AVX2_INLINE bool in_chains(uint32_t kind)
{
    return kind == FG_BF16;
}

FG_AVX2_INLINE void clear(int M, int N, __m256 acc[STRIP][8])
{
    for (int m = 0; m < M; m++) {
        for (int n = 0; n < N; n++) {
            acc[m][n] = _mm256_setzero_ps();
        }
    }
}

/* The first chains of a block wait in memory for the second ones. */
FG_AVX2_INLINE void park(int M, int N, __m256 acc[STRIP][8], __m256 firsts[STRIP][8])
{
    for (int m = 0; m < M; m++) {
        for (int n = 0; n < N; n++) {
            _mm256_store_ps((float *)&firsts[m][n], acc[m][n]);
        }
    }
}

/* To where they are kept: sums or, of a block's chains, both added to what is there, or to nothing. */
FG_AVX2_INLINE void put(bool chains, bool adds, __m256 sum, __m256 first, float *at)
{
    sum = chains ? _mm256_add_ps(first, sum) : sum;
    _mm256_store_ps(at, adds ? _mm256_add_ps(_mm256_load_ps(at), sum) : sum);
}

/* Sums over the steps of dimensions first .. end - 1. */
FG_AVX2_INLINE void score_steps(uint32_t kind, int M, int N, const fg_strip *s, uint32_t piece,
                                uint32_t first, uint32_t end, __m256 acc[STRIP][8])
{
    const float *q = s->q + first;
    const uint8_t *keys[4];
    const uint8_t *after[4];
    for (int n = 0; n < N; n++) {
        keys[n / 2] = fg_strip_keys(s, piece + n / 2);
        after[n / 2] = fg_strip_after_keys(s, piece + n / 2);
    }
    size_t line = (size_t)PIECE * element_bytes(kind);
    for (size_t at = first * line; at < end * line; at += UNROLL * line) {
        for (size_t u = 0; u < UNROLL; u++) {
            const uint8_t *bs[8];
            for (int n = 0; n < N; n++) {
                bs[n] = keys[n / 2] + at + place(kind, (uint32_t)u, (uint32_t)n % 2 * 8, PIECE);
            }
            for (int n = 0; n < N && fetches(M); n += 2) {
                fetch_line(kind, after[n / 2] + at + u * line, (uint32_t)u);
            }
            step(kind, u % 2 == 1, M, N, q++, FG_STRIP_Q, bs, acc);
        }
    }
}

/* Scores of N / 2 pieces from `piece` on. */
FG_AVX2_INLINE void score_pieces(uint32_t kind, int M, int N, const fg_strip *s, uint32_t piece)
{
    bool chains = in_chains(kind);
    uint32_t steps = s->args->kv->head_dim / together(kind);
    uint32_t most = chains ? (uint32_t)FG_STRIP_CHAIN : steps;
    __m256 acc[STRIP][8];
    __m256 firsts[STRIP][8];
    clear(M, N, firsts);
    for (uint32_t first = 0; first < steps; first += most) {
        uint32_t end = steps - first < most ? steps : first + most;
        clear(M, N, acc);
        score_steps(kind, M, N, s, piece, first, end, acc);
        if (first / most % 2 == 0 && end < steps) {
            park(M, N, acc, firsts);
            continue;
        }
        for (int m = 0; m < M; m++) {
            for (int n = 0; n < N; n++) {
                put(chains, first >= 2 * most, acc[m][n], firsts[m][n],
                    s->scores + m * SCORES + piece * PIECE + n * 8);
            }
        }
        if (end < steps && steps - end <= most) { /* the last chain is alone */
            clear(M, N, firsts);
        }
    }
}

FG_AVX2_INLINE void value_step(uint32_t kind, bool odd, int M, int N, const float *weights,
                               const uint8_t *value, __m256 acc[STRIP][8])
{
    const uint8_t *bs[8];
    for (int n = 0; n < N; n++) {
        bs[n] = value + place(kind, 0, (uint32_t)n * 8, 0);
    }
    step(kind, odd, M, N, weights, SCORES, bs, acc);
}

/* int8: so many slots, whole pieces. */
FG_AVX2_INLINE void add_fours(int M, int N, const float *weights, const uint8_t *value,
                              uint32_t slots, uint32_t head_dim, __m256 acc[STRIP][8])
{
    for (uint32_t step = 0; step < slots / 2; step += UNROLL) {
        for (uint32_t u = 0; u < UNROLL; u++) {
            value_step(FG_I8, u % 2 == 1, M, N, weights + step + u,
                       value + place(FG_I8, u, 0, head_dim), acc);
        }
        value += place(FG_I8, UNROLL, 0, head_dim);
    }
}

/* What is fetched while a piece's values are read in N * 8 columns, a line for each slot: a piece's lines in the order
 * in which they lie, as memory likes best. NULL: nothing, as for whole strips, which mostly read copies. */
FG_AVX2_INLINE const uint8_t *after_slots(uint32_t kind, int M, int N, const fg_strip *s,
                                          uint32_t piece, uint32_t column)
{
    uint32_t share = column / ((uint32_t)N * 8);
    bool some = M < STRIP && s->pieces->run == PIECE &&
                share * 64 < s->args->kv->head_dim * element_bytes(kind);
    return some ? fg_strip_after_values(s, piece) + (size_t)share * PIECE * 64 : NULL;
}

/* Weights times values of slots slot .. end - 1 of a piece, or of several that follow each other. */
FG_AVX2_INLINE void add_slots(uint32_t kind, int M, int N, const fg_strip *s, const float *weights,
                              uint32_t slot, uint32_t end, uint32_t column, __m256 acc[STRIP][8])
{
    uint32_t head_dim = s->args->kv->head_dim;
    const uint8_t *values = fg_strip_values(s, slot / PIECE);
    uint32_t first = slot / PIECE * PIECE;
    if (kind == FG_I8) {
        add_fours(M, N, weights + slot / 2,
                  values + place(kind, (slot - first) / 2, column, head_dim), end - slot, head_dim,
                  acc);
        return;
    }
    if (kind == FG_BF16 && slot % 2 == 1) {
        const uint8_t *value = values + place(kind, slot - first, column, head_dim);
        value_step(kind, true, M, N, weights + slot, value, acc);
        slot++;
    }
    const uint8_t *after = after_slots(kind, M, N, s, slot / PIECE, column);
    const uint8_t *value = values + place(kind, slot - first, column, head_dim);
    for (; slot + UNROLL <= end; slot += UNROLL) {
        for (uint32_t u = 0; u < UNROLL; u++) {
            if (after != NULL) {
                fetch(after + (size_t)(slot + u - first) * 64);
            }
            value_step(kind, u % 2 == 1, M, N, weights + slot + u,
                       value + place(kind, u, 0, head_dim), acc);
        }
        value += place(kind, UNROLL, 0, head_dim);
    }
    for (; slot < end; slot++) {
        value = values + place(kind, slot - first, column, head_dim);
        value_step(kind, slot % 2 == 1, M, N, weights + slot, value, acc);
    }
}

/* Adds weights times values to N * 8 columns of M outputs. */
FG_AVX2_INLINE void add_columns(uint32_t kind, int M, int N, const fg_strip *s,
                                const float *weights, float *const *outs, fg_cpu_slots slots,
                                uint32_t column)
{
    bool chains = in_chains(kind);
    uint32_t most = chains ? (uint32_t)FG_STRIP_CHAIN : s->pieces->run;
    __m256 acc[STRIP][8];
    __m256 firsts[STRIP][8];
    clear(M, N, firsts);
    clear(M, N, acc);
    for (int m = 0; m < M && !chains; m++) {
        for (int n = 0; n < N; n++) {
            acc[m][n] = _mm256_load_ps(outs[m] + column + n * 8);
        }
    }
    uint32_t end;
    for (uint32_t slot = slots.begin; slot < slots.end; slot = end) {
        end = (slot / most + 1) * most;
        end = end < slots.end ? end : slots.end;
        add_slots(kind, M, N, s, weights, slot, end, column, acc);
        if (chains && slot / most % 2 == 0 && end < slots.end) {
            park(M, N, acc, firsts);
            clear(M, N, acc);
        } else if (chains || end == slots.end) {
            for (int m = 0; m < M; m++) {
                for (int n = 0; n < N; n++) {
                    put(chains, chains, acc[m][n], firsts[m][n], outs[m] + column + n * 8);
                }
            }
            clear(M, N, firsts);
            clear(M, N, acc);
        }
    }
}

/* Vectors of a register tile with M rows: enough chains to hide a multiply-add's latency; int8's additions have none. */
FG_AVX2_INLINE int tile_vectors(uint32_t kind, int M)
{
    if (kind == FG_I8) {
        return M == 1 ? 4 : 2;
    }
    return M == 1 ? 8 : M < 4 ? 4 : 2;
}

FG_AVX2_INLINE void add_values(uint32_t kind, int M, const fg_strip *s, const float *weights,
                               float *const *outs, fg_cpu_slots slots)
{
    uint32_t head_dim = s->args->kv->head_dim;
    uint32_t column = 0;
    uint32_t wide = (uint32_t)tile_vectors(kind, M) * 8;
    if (slots.begin >= slots.end) {
        return;
    }
    for (; column + wide <= head_dim; column += wide) {
        add_columns(kind, M, tile_vectors(kind, M), s, weights, outs, slots, column);
    }
    for (; column + 16 <= head_dim; column += 16) {
        add_columns(kind, M, 2, s, weights, outs, slots, column);
    }
    for (; column < head_dim; column += 8) {
        add_columns(kind, M, 1, s, weights, outs, slots, column);
    }
}

/* fg_cpu_exp2 of eight. What is below the least comes out as nonsense, and is masked. */
FG_AVX2_INLINE __m256 exp2_of(__m256 x)
{
    const __m256 magic = _mm256_set1_ps(0x1.8p23f);
    __m256 shifted = _mm256_add_ps(x, magic);
    __m256 f = _mm256_sub_ps(x, _mm256_sub_ps(shifted, magic));
    __m256 p = _mm256_set1_ps(FG_CPU_EXP2_5);
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(FG_CPU_EXP2_4));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(FG_CPU_EXP2_3));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(FG_CPU_EXP2_2));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(FG_CPU_EXP2_1));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    __m256i power = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
    power = _mm256_add_epi32(power, _mm256_castps_si256(p));
    __m256 gone = _mm256_cmp_ps(x, _mm256_set1_ps(FG_CPU_EXP2_LEAST), _CMP_LT_OQ);
    return _mm256_andnot_ps(gone, _mm256_castsi256_ps(power));
}

FG_AVX2_INLINE float largest(__m256 v)
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

static void settle_scores(float *x, const float *const *scales, float factor, uint32_t begin,
                          uint32_t end)
{
    for (uint32_t j = begin; j < end; j += 8) {
        __m256 sums = _mm256_cvtepi32_ps(_mm256_load_si256((const __m256i *)(const void *)(x + j)));
        __m256 scaled = _mm256_mul_ps(sums, _mm256_loadu_ps(scales[j / PIECE] + j % PIECE));
        _mm256_store_ps(x + j, _mm256_mul_ps(scaled, _mm256_set1_ps(factor)));
    }
}

static void settle_values(float *x, float factor, uint32_t count)
{
    for (uint32_t d = 0; d < count; d += 8) {
        __m256 sums = _mm256_cvtepi32_ps(_mm256_load_si256((const __m256i *)(const void *)(x + d)));
        _mm256_store_ps(x + d, _mm256_mul_ps(sums, _mm256_set1_ps(factor)));
    }
}

/* fg_cpu_brain_power of eight. */
FG_AVX2_INLINE __m256 brain_power_of(__m256 x)
{
    const __m256 magic = _mm256_set1_ps(0x1.8p23f);
    __m256 shifted = _mm256_add_ps(x, magic);
    __m256 f = _mm256_sub_ps(x, _mm256_sub_ps(shifted, magic));
    __m256 p = _mm256_set1_ps(FG_CPU_BRAIN_3);
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(FG_CPU_BRAIN_2));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(FG_CPU_BRAIN_1));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    __m256i power = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
    power = _mm256_add_epi32(power, _mm256_castps_si256(p));
    __m256 gone = _mm256_cmp_ps(x, _mm256_set1_ps(FG_CPU_BRAIN_LEAST), _CMP_LT_OQ);
    return _mm256_andnot_ps(gone, _mm256_castsi256_ps(power));
}

/* The mantissa of fg_cpu_brain_exp2 by 1 + j / 128: (MANTISSA_3 * x + MANTISSA_2) * x ... + MANTISSA_0 is 2^(j / 128), and
 * no nearer to a tie than a hundredth of a step, so that with this added its last bits are those of bf16's mantissa. */
#define MANTISSA_0    0.4375f
#define MANTISSA_1    0.50978583f
#define MANTISSA_2    -0.03024364f
#define MANTISSA_3    0.08298476f
#define MANTISSA_LAST (FG_CPU_BRAIN_STEPS - 1.0f)

/* fg_cpu_brain_exp2 of eight, as floats. */
FG_AVX2_INLINE __m256 brain_exp2_of(__m256 x)
{
    /* In steps of 1/128, less what becomes NaN's exponent where NaN, whose lower word is 0, has it added. */
    const __m256 steps = _mm256_set1_ps(FG_CPU_BRAIN_STEPS + (0x3F80 - 0x7FC0) / 128.0f);
    __m256i bits = _mm256_castps_si256(_mm256_add_ps(x, steps));
    bits = _mm256_add_epi32(_mm256_slli_epi32(bits, 16), _mm256_set1_epi32(0x7FC00000));
    __m256i fraction = _mm256_and_si256(bits, _mm256_set1_epi32(0x007F0000));
    __m256 one = _mm256_castsi256_ps(_mm256_or_si256(fraction, _mm256_set1_epi32(0x3F800000)));
    __m256 p = _mm256_set1_ps(MANTISSA_3);
    p = _mm256_fmadd_ps(p, one, _mm256_set1_ps(MANTISSA_2));
    p = _mm256_fmadd_ps(p, one, _mm256_set1_ps(MANTISSA_1));
    p = _mm256_fmadd_ps(p, one, _mm256_set1_ps(MANTISSA_0 + MANTISSA_LAST));
    __m256i exponent = _mm256_and_si256(bits, _mm256_set1_epi32((int32_t)0xFF800000));
    __m256i power = _mm256_or_si256(exponent, _mm256_slli_epi32(_mm256_castps_si256(p), 16));
    /* What half a step less would not be rounded to. */
    __m256 gone = _mm256_cmp_ps(x, _mm256_set1_ps(FG_CPU_BRAIN_LEAST - 1.0f / 256.0f), _CMP_LT_OQ);
    return _mm256_andnot_ps(gone, _mm256_castsi256_ps(power));
}

FG_AVX2_INLINE float maximum_of(const float *x, uint32_t begin, uint32_t end)
{
    __m256 high = _mm256_set1_ps(-__builtin_inff());
    for (uint32_t j = begin; j < end; j += 8) {
        high = _mm256_max_ps(high, _mm256_load_ps(x + j));
    }
    return largest(high);
}

/* The sum's lanes are pairs of slots, of two pieces. */
static void weigh_brain(float *x, uint32_t begin, uint32_t end, float *record)
{
    record[0] = maximum_of(x, begin, end);
    __m256 maximum = _mm256_set1_ps(record[0]);
    __m256 sum = _mm256_setzero_ps();
    __m256 other = sum; /* of every second piece: which ones does not matter where both are added */
    for (uint32_t j = begin; j < end; j += PIECE) {
        __m256 now = other;
        __m256 low = brain_exp2_of(_mm256_sub_ps(_mm256_load_ps(x + j), maximum));
        __m256 high = brain_exp2_of(_mm256_sub_ps(_mm256_load_ps(x + j + 8), maximum));
        /* Pairs 0 1 4 5 2 3 6 7: their first slots, then their second ones. */
        now = _mm256_add_ps(now, _mm256_shuffle_ps(low, high, _MM_SHUFFLE(2, 0, 2, 0)));
        now = _mm256_add_ps(now, _mm256_shuffle_ps(low, high, _MM_SHUFFLE(3, 1, 3, 1)));
        other = sum;
        sum = now;
        _mm256_store_ps(x + j, low);
        _mm256_store_ps(x + j + 8, high);
    }
    __m256d pairs =
        _mm256_permute4x64_pd(_mm256_castps_pd(_mm256_add_ps(sum, other)), _MM_SHUFFLE(3, 1, 2, 0));
    record[FG_ATTEND_SUM] = fg_avx2_fold(_mm256_castpd_ps(pairs));
}

static void weigh_floats(float *x, uint32_t begin, uint32_t end, float *record)
{
    record[0] = maximum_of(x, begin, end);
    __m256 maximum = _mm256_set1_ps(record[0]);
    __m256 sum = _mm256_setzero_ps();
    for (uint32_t j = begin; j < end; j += 8) {
        __m256 weight = exp2_of(_mm256_sub_ps(_mm256_load_ps(x + j), maximum));
        sum = _mm256_add_ps(sum, weight);
        _mm256_store_ps(x + j, weight);
    }
    record[FG_ATTEND_SUM] = fg_avx2_fold(sum);
}

/* Eight weights times V's scales, and what has no weight may have any scale, even none. */
FG_AVX2_INLINE __m256 weigh_eight(float *x, const float *scales, __m256 maximum, __m256 *sum,
                                  __m256 peaks)
{
    __m256 weight = brain_power_of(_mm256_sub_ps(_mm256_load_ps(x), maximum));
    __m256 there = _mm256_cmp_ps(weight, _mm256_setzero_ps(), _CMP_NEQ_UQ);
    __m256 scaled = _mm256_and_ps(there, _mm256_mul_ps(weight, _mm256_loadu_ps(scales)));
    *sum = _mm256_add_ps(*sum, weight);
    _mm256_store_ps(x, scaled);
    return _mm256_max_ps(peaks, scaled);
}

/* int8: weights become bytes, and lie as 16 bits each in the order of load_kv's pairs. */
static void weigh_bytes(float *x, const float *const *scales, uint32_t begin, uint32_t end,
                        float *record)
{
    record[0] = maximum_of(x, begin, end);
    __m256 maximum = _mm256_set1_ps(record[0]);
    __m256 sums[2] = { _mm256_setzero_ps(), _mm256_setzero_ps() };
    __m256 peaks = _mm256_setzero_ps();
    for (uint32_t j = begin; j < end; j += PIECE) {
        peaks = weigh_eight(x + j, scales[j / PIECE], maximum, &sums[0], peaks);
        peaks = weigh_eight(x + j + 8, scales[j / PIECE] + 8, maximum, &sums[1], peaks);
    }
    fg_cpu_byte_weights with = fg_cpu_byte_weights_of(largest(peaks));
    record[FG_ATTEND_SUM] = fg_avx2_fold(_mm256_add_ps(sums[0], sums[1]));
    record[FG_ATTEND_FACTOR] = with.factor;
    const __m256i in_pairs = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15,
                                              0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
    __m256 inverse = _mm256_set1_ps(with.inverse);
    __m256 rounders[2] = { _mm256_loadu_ps(fg_cpu_rounders), _mm256_loadu_ps(fg_cpu_rounders + 8) };
    for (uint32_t j = begin; j < end; j += PIECE) {
        __m256i low =
            _mm256_cvttps_epi32(_mm256_fmadd_ps(_mm256_load_ps(x + j), inverse, rounders[0]));
        __m256i high =
            _mm256_cvttps_epi32(_mm256_fmadd_ps(_mm256_load_ps(x + j + 8), inverse, rounders[1]));
        /* Slots 0..3, 8..11, 4..7, 12..15, then in order. */
        __m256i words =
            _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), _MM_SHUFFLE(3, 1, 2, 0));
        _mm256_store_si256((__m256i *)(void *)(x + j / 2), _mm256_shuffle_epi8(words, in_pairs));
    }
}

static void weigh(uint32_t dtype, const fg_strip_rows *rows, uint32_t begin, uint32_t end)
{
    for (uint32_t i = 0; i < rows->count; i++) {
        if (dtype == FG_I8) {
            weigh_bytes(rows->scores[i], rows->value_scales, begin, end, rows->records[i]);
        } else if (dtype == FG_BF16) {
            weigh_brain(rows->scores[i], begin, end, rows->records[i]);
        } else {
            weigh_floats(rows->scores[i], begin, end, rows->records[i]);
        }
    }
}

static void merge(const fg_strip_merge *m, uint32_t head_dim)
{
    for (uint32_t i = 0; i < m->count; i++) {
        float *state = m->states[i];
        const float *record = m->records[i];
        __m256 before = _mm256_set1_ps(m->before[i]);
        __m256 now = _mm256_set1_ps(m->now[i]);
        /* The sum with the vector that it lies in, whose other elements mean nothing. */
        for (uint32_t d = 0; d < FG_ATTEND_HEAD + head_dim; d += 8) {
            __m256 old = _mm256_mul_ps(_mm256_load_ps(state + d), before);
            _mm256_store_ps(state + d, _mm256_fmadd_ps(_mm256_load_ps(record + d), now, old));
        }
        state[0] = m->maxima[i];
    }
}

static void multiply(const float *x, float factor, uint32_t count, float *out)
{
    for (uint32_t d = 0; d < count; d += 8) {
        __m256 product = _mm256_mul_ps(_mm256_load_ps(x + d), _mm256_set1_ps(factor));
        _mm256_storeu_ps(out + d, product);
    }
}

/* int8: as 16 bits each, in the order of load_kv's pairs. */
static void pack_bytes(const float *q, float factor, uint32_t head_dim, float *packed)
{
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(INT32_MAX));
    const __m256i in_pairs =
        _mm256_setr_epi8(0, 1, 8, 9, 4, 5, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1, 0, 1, 8, 9, 4, 5,
                         12, 13, -1, -1, -1, -1, -1, -1, -1, -1);
    __m256 peaks = _mm256_setzero_ps();
    for (uint32_t d = 0; d < head_dim; d += 8) {
        peaks = _mm256_max_ps(_mm256_and_ps(_mm256_loadu_ps(q + d), magnitude), peaks);
    }
    fg_cpu_byte_scale scale = fg_cpu_byte_scale_of(largest(peaks));
    for (uint32_t d = 0; d < head_dim; d += 8) {
        __m256 x = _mm256_mul_ps(_mm256_loadu_ps(q + d), _mm256_set1_ps(scale.inverse));
        __m256i numbers = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_EQ_OQ));
        __m256i words = _mm256_and_si256(_mm256_cvtps_epi32(x), numbers);
        __m256i pairs = _mm256_shuffle_epi8(words, in_pairs);
        pairs = _mm256_permute4x64_epi64(pairs, _MM_SHUFFLE(3, 1, 2, 0));
        _mm_store_si128((__m128i *)(void *)(packed + d / 2), _mm256_castsi256_si128(pairs));
    }
    packed[FG_STRIP_Q_FACTOR] = scale.scale * factor;
}

static void pack_q(uint32_t dtype, const float *q, float factor, uint32_t head_dim, float *packed)
{
    if (dtype == FG_I8) {
        pack_bytes(q, factor, head_dim, packed);
        return;
    }
    for (uint32_t d = 0; d < head_dim; d += 8) {
        __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(q + d), _mm256_set1_ps(factor));
        _mm256_store_ps(packed + d,
                        dtype == FG_BF16 ? _mm256_castsi256_ps(fg_avx2_brain(scaled)) : scaled);
    }
}

static void copy(uint32_t dtype, uint8_t *to, const uint8_t *from, size_t count)
{
    if (dtype == FG_F16) {
        for (size_t i = 0; i < count; i += 8) {
            _mm256_store_ps((float *)(void *)to + i, load_kv(FG_F16, false, from + i * 2));
        }
        return;
    }
    for (size_t at = 0; at < count * fg_dtype_kv_bytes(dtype); at += 32) {
        __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(from + at));
        _mm256_store_si256((__m256i *)(void *)(to + at), x);
    }
}

/* Whole blocks of bf16, for some of a strip's rows after the others. Before a copy there is something to read. */
enum { BLOCK = FG_AVX2_BLOCK };
_Static_assert(offsetof(fg_cpu_attend_scratch, copies) > 0, "something before the copies");

/* Rows that go together: four, or as many as a block takes, in even parts. */
FG_AVX2_INLINE int block_rows(int M)
{
    int parts = (M + FG_AVX2_BLOCK_ROWS - 1) / FG_AVX2_BLOCK_ROWS;
    return M == FG_AVX2_TALL_ROWS ? M : (M + parts - 1) / parts;
}

/* `direct`: K and V lie in the arena, whose first bytes these may be. */
FG_AVX2_INLINE void add_block(int M, bool direct, bool adds, const fg_avx2_rows *rows,
                              const fg_avx2_columns *columns, float *const *outs)
{
    if (M == FG_AVX2_TALL_ROWS) {
        fg_avx2_add_tall(adds, rows, columns, outs);
    } else {
        fg_avx2_add_block(M, adds, direct, rows, columns, outs);
    }
}

/* Of q or weights, so many floats apart; pairs are neighbours. */
FG_AVX2_INLINE fg_avx2_rows rows_of(const float *x, size_t row)
{
    return (fg_avx2_rows){ .x = x, .row = row, .pair = 2, .lower = 1 };
}

/* M rows of scores of a piece, whose bytes `after` are asked for unless that is NULL. */
FG_AVX2_INLINE void score_rows(int M, bool direct, const float *q, const uint8_t *keys,
                               const uint8_t *after, uint32_t head_dim, float *scores)
{
    enum { PAIR_BYTES = PIECE * 4, CHAIN_BYTES = FG_STRIP_CHAIN / 2 * PAIR_BYTES };
    float *outs[FG_AVX2_TALL_ROWS];
    for (int m = 0; m < M; m++) {
        outs[m] = scores + m * SCORES;
    }
    for (uint32_t d = 0; d < head_dim; d += BLOCK) {
        size_t at = d / BLOCK * 2 * (size_t)CHAIN_BYTES;
        fg_avx2_rows rows = rows_of(q + d, FG_STRIP_Q);
        fg_avx2_columns columns = { .firsts = keys + at,
                                    .seconds = keys + at + CHAIN_BYTES,
                                    .pair_bytes = PAIR_BYTES };
        if (after != NULL) {
            columns.after_firsts = after + at;
            columns.after_seconds = after + at + CHAIN_BYTES;
        }
        if (d == 0) {
            add_block(M, direct, false, &rows, &columns, outs);
        } else {
            add_block(M, direct, true, &rows, &columns, outs);
        }
    }
}

/* Scores of the pieces begin .. end - 1. */
FG_AVX2_INLINE void score_blocks(int M, bool direct, const fg_strip *s, uint32_t begin,
                                 uint32_t end)
{
    uint32_t head_dim = s->args->kv->head_dim;
    int part = block_rows(M);
    for (uint32_t piece = begin; piece < end; piece++) {
        const uint8_t *keys = fg_strip_keys(s, piece);
        const uint8_t *after = direct ? fg_strip_after_keys(s, piece) : NULL;
        float *scores = s->scores + piece * PIECE;
        score_rows(part, direct, s->q, keys, after, head_dim, scores);
        if (part < M) {
            score_rows(M - part, direct, s->q + part * FG_STRIP_Q, keys, NULL, head_dim,
                       scores + part * SCORES);
        }
    }
}

/* Rows first .. first + M - 1 of weights times the values of a block of slots, in sixteen columns. */
FG_AVX2_INLINE void value_rows(int M, bool direct, const fg_strip *s, int first, uint32_t slot,
                               uint32_t column)
{
    uint32_t piece = slot / PIECE;
    size_t at = (size_t)column * 4;
    fg_avx2_rows rows = rows_of(s->scores + first * SCORES + slot, SCORES);
    fg_avx2_columns columns = { .firsts = fg_strip_values(s, piece) + at,
                                .seconds = fg_strip_values(s, piece + 1) + at,
                                .pair_bytes = (size_t)s->args->kv->head_dim * 4 };
    if (direct && first == 0) {
        size_t share = at * (PIECE / 2); /* lines in the order in which they lie */
        columns.after_firsts = fg_strip_after_values(s, piece) + share;
        columns.after_seconds = fg_strip_after_values(s, piece + 1) + share;
    }
    float *outs[FG_AVX2_TALL_ROWS];
    for (int m = 0; m < M; m++) {
        outs[m] = s->targets[first + m] + FG_ATTEND_HEAD + column;
    }
    add_block(M, direct, true, &rows, &columns, outs);
}

/* Weights times values of slots that all rows of a strip see. */
FG_AVX2_INLINE void value_blocks(int M, bool direct, const fg_strip *s, fg_cpu_slots slots)
{
    int part = block_rows(M);
    for (uint32_t slot = slots.begin; slot < slots.end; slot += BLOCK) {
        for (uint32_t column = 0; column < s->args->kv->head_dim; column += 16) {
            value_rows(part, direct, s, 0, slot, column);
            if (part < M) {
                value_rows(M - part, direct, s, part, slot, column);
            }
        }
    }
}

FG_AVX2_INLINE void clear_fours(int M, __m256i sums[FG_AVX2_FOURS_ROWS][2])
{
    for (int m = 0; m < M; m++) {
        sums[m][0] = _mm256_setzero_si256();
        sums[m][1] = _mm256_setzero_si256();
    }
}

/* Int8 straight from the arena. Rows first .. first + M - 1 of sums of products with a piece's keys. */
FG_AVX2_INLINE void score_four_rows(int M, const fg_strip *s, int first, uint32_t piece)
{
    const uint8_t *after = first == 0 ? fg_strip_after_keys(s, piece) : NULL;
    __m256i sums[FG_AVX2_FOURS_ROWS][2];
    clear_fours(M, sums);
    fg_avx2_add_fours(M, s->q + first * FG_STRIP_Q, FG_STRIP_Q, fg_strip_keys(s, piece), PIECE * 4,
                      s->args->kv->head_dim / 4, after, sums);
    for (int m = 0; m < M; m++) {
        __m256i *out = (__m256i *)(void *)(s->scores + (first + m) * SCORES + piece * PIECE);
        _mm256_store_si256(out, sums[m][0]);
        _mm256_store_si256(out + 1, sums[m][1]);
    }
}

FG_AVX2_INLINE void score_fours(int M, const fg_strip *s, uint32_t begin, uint32_t end)
{
    int part = block_rows(M);
    for (uint32_t piece = begin; piece < end; piece++) {
        score_four_rows(part, s, 0, piece);
        if (part < M) {
            score_four_rows(M - part, s, part, piece);
        }
    }
}

/* Rows first .. first + M - 1 of weights times the values of some pieces, in sixteen columns. */
FG_AVX2_INLINE void value_four_rows(int M, const fg_strip *s, int first, uint32_t begin,
                                    uint32_t end, uint32_t column)
{
    size_t at = (size_t)column * 4;
    __m256i sums[FG_AVX2_FOURS_ROWS][2];
    clear_fours(M, sums);
    for (uint32_t piece = begin; piece < end; piece++) {
        const uint8_t *after =
            first == 0 ? fg_strip_after_values(s, piece) + at * (PIECE / 4) : NULL;
        fg_avx2_add_fours(M, s->scores + first * SCORES + piece * PIECE / 2, SCORES,
                          fg_strip_values(s, piece) + at, (size_t)s->args->kv->head_dim * 4,
                          PIECE / 4, after, sums);
    }
    for (int m = 0; m < M; m++) {
        float *target = s->targets[first + m] + FG_ATTEND_HEAD + column;
        __m256i *out = (__m256i *)(void *)target;
        _mm256_store_si256(out, _mm256_add_epi32(_mm256_load_si256(out), sums[m][0]));
        _mm256_store_si256(out + 1, _mm256_add_epi32(_mm256_load_si256(out + 1), sums[m][1]));
    }
}

FG_AVX2_INLINE void value_fours(int M, const fg_strip *s, uint32_t begin, uint32_t end)
{
    int part = block_rows(M);
    for (uint32_t column = 0; column < s->args->kv->head_dim && begin < end; column += 16) {
        value_four_rows(part, s, 0, begin, end, column);
        if (part < M) {
            value_four_rows(M - part, s, part, begin, end, column);
        }
    }
}

/* Whether a product of a strip goes block by block: slots or dimensions first .. end - 1, so many columns. */
FG_AVX2_INLINE bool in_blocks(uint32_t kind, uint32_t first, uint32_t end, uint32_t columns)
{
    return kind == FG_BF16 && first % BLOCK == 0 && end % BLOCK == 0 && columns % 16 == 0;
}

/* One row; a function of its own, as all strips need it. */
static __attribute__((noinline)) void add_row(uint32_t kind, const fg_strip *s,
                                              const float *weights, float *out, fg_cpu_slots slots)
{
    switch (kind) {
    case FG_F32:
        add_values(FG_F32, 1, s, weights, &out, slots);
        break;
    case FG_F16:
        add_values(FG_F16, 1, s, weights, &out, slots);
        break;
    default:
        add_values(FG_BF16, 1, s, weights, &out, slots);
    }
}

/* Values of slots begin .. end - 1: what all rows see in one product, the rest row by row. */
FG_AVX2_INLINE void strip_values(uint32_t kind, int M, const fg_strip *s, uint32_t begin,
                                 uint32_t end)
{
    float *outs[STRIP];
    for (int m = 0; m < M; m++) {
        outs[m] = s->targets[m] + FG_ATTEND_HEAD;
    }
    if (kind == FG_I8) {
        fg_cpu_slots pieces = fg_strip_seen(s, begin / PIECE, end / PIECE);
        if (s->pieces->run == PIECE && s->args->kv->head_dim % 16 == 0) {
            value_fours(M, s, pieces.begin, pieces.end);
        } else {
            add_values(kind, M, s, s->scores, outs, fg_strip_seen_slots(s, begin, end));
        }
        return;
    }
    for (int m = 0; m < M && !s->even; m++) {
        fg_cpu_slots before = fg_strip_before(s, (uint32_t)m, begin, end);
        add_row(kind, s, s->scores + m * SCORES, outs[m], before);
    }
    fg_cpu_slots all = fg_strip_clip(s->all, begin, end);
    if (in_blocks(kind, all.begin, all.end, s->args->kv->head_dim)) {
        if (s->pieces->run == PIECE) {
            value_blocks(M, true, s, all);
        } else {
            value_blocks(M, false, s, all);
        }
    } else {
        add_values(kind, M, s, s->scores, outs, all);
    }
    for (int m = 0; m < M && !s->even; m++) {
        fg_cpu_slots after = fg_strip_after(s, (uint32_t)m, begin, end);
        add_row(kind, s, s->scores + m * SCORES, outs[m], after);
    }
}

/* Scores of the pieces begin .. end - 1 that the strip sees. */
FG_AVX2_INLINE void strip_scores(uint32_t kind, int M, const fg_strip *s, uint32_t begin,
                                 uint32_t end)
{
    fg_cpu_slots seen = fg_strip_seen(s, begin, end);
    if (kind == FG_I8 && s->pieces->run == PIECE) {
        score_fours(M, s, seen.begin, seen.end);
        return;
    }
    if (in_blocks(kind, 0, s->args->kv->head_dim, PIECE)) {
        if (s->pieces->run == PIECE) {
            score_blocks(M, true, s, seen.begin, seen.end);
        } else {
            score_blocks(M, false, s, seen.begin, seen.end);
        }
        return;
    }
    for (uint32_t at = seen.begin; at < seen.end; at += (uint32_t)tile_vectors(kind, M) / 2) {
        score_pieces(kind, M, tile_vectors(kind, M), s, at);
    }
}

FG_STRIP_SIX(FG_F32, strip_scores, strip_values)
FG_STRIP_SIX(FG_F16, strip_scores, strip_values)
FG_STRIP_SIX(FG_BF16, strip_scores, strip_values)
FG_STRIP_SIX(FG_I8, strip_scores, strip_values)

static const fg_strip_products *products_of(uint32_t dtype)
{
    return fg_strip_choose(dtype, products_FG_F32, products_FG_F16, products_FG_BF16,
                           products_FG_I8);
}

void fg_cpu_avx2_attend(const fg_cpu_attend *args)
{
    static const fg_strip_kernels kernels = {
        .strip_max = STRIP,
        .dim_step = 8,
        .ahead = 4, /* more drive each other out of caches where blocks are a power of two long */
        .together = 2,
        .products = products_of,
        .pack_q = pack_q,
        .weigh = weigh,
        .settle_scores = settle_scores,
        .settle_values = settle_values,
        .find_factors = fg_strip_find_factors,
        .merge = merge,
        .multiply = multiply,
        .copy = copy,
    };
    fg_strip_attend(&kernels, args);
}
