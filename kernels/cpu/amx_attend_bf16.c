/*
 * Attention over a bf16 cache with AMX, for heads of a multiple of 64: the products of strip.c as tiles, whose
 * chains are those of ops.h. A tile adds the lower and the upper halves of words apart, so pairs are dimensions
 * or slots 16 apart: K and V are copied so, q and weights are packed so.
 *
 *   K, per piece: [block of 32 dimensions][16][slot of the piece], the first 16 dimensions in upper halves
 *   V, per block of 32 slots: [16][dimension], the first 16 slots in upper halves
 */
#include "kernels/cpu/amx.h"
#include "kernels/cpu/avx512_attend.h"
#include "kernels/cpu/strip.h"

enum {
    SUM_TILES = 4, /* 0 to 3; tile 4 holds q or weights, 5 and 6 K or V */
    BLOCK = 2 * FG_STRIP_CHAIN,
    WORDS = FG_STRIP_CHAIN, /* of a block */
    TILE_BYTES = FG_AMX_ROWS * FG_AMX_ROW_BYTES,
};

FG_AVX512_INLINE __m512i upper_halves(__m512i words)
{
    return _mm512_and_si512(words, _mm512_set1_epi32((int32_t)0xFFFF0000));
}

/* ---- copies ---- */

static void copy_keys(uint8_t *to, const uint8_t *from, uint32_t head_dim)
{
    for (uint32_t d = 0; d < head_dim; d += BLOCK, from += TILE_BYTES) {
        for (uint32_t i = 0; i < WORDS / 2; i++, to += 2 * FG_AMX_ROW_BYTES) {
            fg_avx512_set_apart(_mm512_loadu_si512(from + i * FG_AMX_ROW_BYTES),
                                _mm512_loadu_si512(from + (i + WORDS / 2) * FG_AMX_ROW_BYTES), to,
                                to + FG_AMX_ROW_BYTES);
        }
    }
}

/* The first 16 slots of a block, to upper halves, or the others, to lower ones. */
static void copy_values(uint8_t *to, const uint8_t *from, uint32_t head_dim, bool second,
                        bool fresh)
{
    size_t row_bytes = (size_t)head_dim * 4;
    const __m512i lower = _mm512_set1_epi32(0xFFFF);
    for (uint32_t i = 0; i < WORDS / 2; i++, to += 2 * row_bytes, from += row_bytes) {
        for (size_t at = 0; at < row_bytes; at += FG_AMX_ROW_BYTES) {
            __m512i words = _mm512_loadu_si512(from + at);
            __m512i even = upper_halves(words);
            __m512i odd = _mm512_slli_epi32(words, 16);
            if (second) {
                even = _mm512_srli_epi32(words, 16);
                odd = _mm512_and_si512(words, lower);
            }
            if (!fresh) {
                even = _mm512_or_si512(even, _mm512_load_si512(to + at));
                odd = _mm512_or_si512(odd, _mm512_load_si512(to + row_bytes + at));
            }
            _mm512_store_si512(to + at, even);
            _mm512_store_si512(to + row_bytes + at, odd);
        }
    }
}

static void lay_out(bool values, uint32_t piece, bool fresh, uint8_t *to, const uint8_t *from,
                    uint32_t head_dim)
{
    bool second = piece % 2 == 1;
    if (values) {
        copy_values(second ? to - (size_t)FG_KV_PIECE * head_dim * 2 : to, from, head_dim, second,
                    fresh || !second);
    } else {
        copy_keys(to, from, head_dim);
    }
}

/* ---- q and weights ---- */

static void pack_q(uint32_t dtype, const float *q, float factor, uint32_t head_dim, float *packed)
{
    (void)dtype;
    __m512 factors = _mm512_set1_ps(factor);
    for (uint32_t d = 0; d < head_dim; d += BLOCK) {
        __m512i first = fg_avx512_brain(_mm512_mul_ps(_mm512_loadu_ps(q + d), factors));
        __m512i second = fg_avx512_brain(_mm512_mul_ps(_mm512_loadu_ps(q + d + WORDS), factors));
        _mm512_store_si512(packed + d / 2, _mm512_or_si512(first, _mm512_srli_epi32(second, 16)));
    }
}

/* bf16 in 16 lower halves. */
FG_AVX512_INLINE __m512i widened(__m256i brains)
{
    return _mm512_cvtepu16_epi32(brains);
}

/* Some rows: the words of 32 weights are written where the first half of earlier ones was read. */
FG_AVX512_INLINE void weigh_rows(int R, float *const *scores, uint32_t begin, uint32_t end,
                                 float *const *records)
{
    const __m256i upper = _mm256_set1_epi32((int32_t)0xFFFF0000);
    __m512 maxima[FG_AVX512_TOGETHER];
    __m256 sums[FG_AVX512_TOGETHER];
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
        records[r][0] = fg_avx512_maximum(scores[r], begin, end);
        maxima[r] = _mm512_set1_ps(records[r][0]);
        sums[r] = _mm256_setzero_ps();
    }
    for (uint32_t block = begin / BLOCK * BLOCK; block < end; block += BLOCK) {
        __m256i weights[FG_AVX512_TOGETHER][2];
#pragma GCC unroll 2
        for (uint32_t half = 0; half < 2; half++) {
            uint32_t j = block + half * WORDS;
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                weights[r][half] = _mm256_setzero_si256();
                if (j >= begin && j < end) {
                    __m512 x = _mm512_sub_ps(_mm512_load_ps(scores[r] + j), maxima[r]);
                    __m256i brains = (__m256i)_mm512_cvtneps_pbh(fg_avx512_brain_exp2(x));
                    __m256 first = _mm256_castsi256_ps(_mm256_slli_epi32(brains, 16));
                    __m256 second = _mm256_castsi256_ps(_mm256_and_si256(brains, upper));
                    sums[r] = _mm256_add_ps(_mm256_add_ps(sums[r], first), second);
                    weights[r][half] = brains;
                }
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            __m512i first = _mm512_slli_epi32(widened(weights[r][0]), 16);
            _mm512_store_si512(scores[r] + block / 2,
                               _mm512_or_si512(first, widened(weights[r][1])));
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
        records[r][FG_ATTEND_SUM] = fg_avx512_fold(sums[r]);
    }
}

static void weigh(uint32_t dtype, const fg_strip_rows *rows, uint32_t begin, uint32_t end)
{
    (void)dtype;
    uint32_t i = 0;
    for (; i + FG_AVX512_TOGETHER <= rows->count; i += FG_AVX512_TOGETHER) {
        weigh_rows(FG_AVX512_TOGETHER, &rows->scores[i], begin, end, &rows->records[i]);
    }
    for (; i < rows->count; i++) {
        weigh_rows(1, &rows->scores[i], begin, end, &rows->records[i]);
    }
}

/* ---- scores ---- */

#define ADD_SCORES(sums, keys_tile, n)                                                             \
    do {                                                                                           \
        _tile_loadd(keys_tile, s->pieces->keys[piece + (n)] + at, FG_AMX_ROW_BYTES);               \
        _tile_dpbf16ps(sums, 4, keys_tile);                                                        \
    } while (0)

/* Of SUM_TILES pieces from `piece` on; those beyond the chunk's end repeat its last one. */
static void score_pieces(const fg_strip *s, uint32_t piece)
{
    uint32_t head_dim = s->args->kv->head_dim;
    size_t stride = FG_ATTEND_SCORES * sizeof(float);
    float *scores = s->scores + (size_t)piece * FG_KV_PIECE;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (uint32_t d = 0; d < head_dim; d += BLOCK) {
        size_t at = (size_t)d / BLOCK * TILE_BYTES;
        _tile_loadd(4, s->q + d / 2, FG_STRIP_Q * sizeof(float));
        ADD_SCORES(0, 5, 0);
        ADD_SCORES(1, 6, 1);
        ADD_SCORES(2, 5, 2);
        ADD_SCORES(3, 6, 3);
    }
    _tile_stored(0, scores, stride);
    _tile_stored(1, scores + 1 * FG_KV_PIECE, stride);
    _tile_stored(2, scores + 2 * FG_KV_PIECE, stride);
    _tile_stored(3, scores + 3 * FG_KV_PIECE, stride);
}

static void tile_scores(const fg_strip *s, uint32_t begin, uint32_t end)
{
    fg_cpu_slots seen = fg_strip_seen(s, begin, end);
    if (seen.begin >= seen.end) {
        return;
    }
    fg_amx_see_memory(s->q);
    for (uint32_t piece = seen.begin; piece < seen.end; piece += SUM_TILES) {
        score_pieces(s, piece);
    }
    fg_amx_see_memory(s->scores);
}

/* ---- values ---- */

#define ADD_VALUES(sums, values_tile, n)                                                           \
    do {                                                                                           \
        _tile_loadd(values_tile, values + (n)*FG_AMX_ROW_BYTES, (size_t)head_dim * 4);             \
        _tile_dpbf16ps(sums, 4, values_tile);                                                      \
    } while (0)

/* Weights times values of 64 dimensions from `column` on, over whole blocks. */
static void add_columns(const fg_strip *s, fg_cpu_slots slots, uint32_t column)
{
    uint32_t head_dim = s->args->kv->head_dim;
    size_t stride = fg_cpu_record_floats(head_dim) * sizeof(float);
    float *out = s->targets[0] + FG_ATTEND_HEAD + column;
    _tile_loadd(0, out, stride);
    _tile_loadd(1, out + 1 * FG_AMX_ROWS, stride);
    _tile_loadd(2, out + 2 * FG_AMX_ROWS, stride);
    _tile_loadd(3, out + 3 * FG_AMX_ROWS, stride);
    for (uint32_t slot = slots.begin; slot < slots.end; slot += BLOCK) {
        const uint8_t *values = s->pieces->values[slot / FG_KV_PIECE] + (size_t)column * 4;
        _tile_loadd(4, s->scores + slot / 2, FG_ATTEND_SCORES * sizeof(float));
        ADD_VALUES(0, 5, 0);
        ADD_VALUES(1, 6, 1);
        ADD_VALUES(2, 5, 2);
        ADD_VALUES(3, 6, 3);
    }
    _tile_stored(0, out, stride);
    _tile_stored(1, out + 1 * FG_AMX_ROWS, stride);
    _tile_stored(2, out + 2 * FG_AMX_ROWS, stride);
    _tile_stored(3, out + 3 * FG_AMX_ROWS, stride);
}

/* The chain of some slots of a block, the first or (second) the others, on 64 dimensions. */
FG_AVX512_INLINE void add_chain(const uint32_t *weights, const uint8_t *values, size_t row_bytes,
                                fg_cpu_slots slots, bool second, __m512 chain[SUM_TILES])
{
    for (uint32_t i = slots.begin; i < slots.end; i++) {
        uint32_t word = weights[i];
        __m512i bits = _mm512_set1_epi32((int32_t)(second ? word << 16 : word & 0xFFFF0000));
#pragma GCC unroll 4
        for (int n = 0; n < SUM_TILES; n++) {
            __m512i pair = _mm512_load_si512(values + i * row_bytes + n * FG_AMX_ROW_BYTES);
            __m512i value = second ? _mm512_slli_epi32(pair, 16) : upper_halves(pair);
            chain[n] =
                _mm512_fmadd_ps(_mm512_castsi512_ps(bits), _mm512_castsi512_ps(value), chain[n]);
        }
    }
}

/* What of begin .. end - 1 lies in the half of a block that begins at `first`, counted from there. */
static fg_cpu_slots within(fg_cpu_slots slots, uint32_t first)
{
    fg_cpu_slots in = fg_strip_clip(slots, first, first + WORDS);
    bool none = in.begin >= in.end;
    return (fg_cpu_slots){ .begin = none ? 0 : in.begin - first, .end = none ? 0 : in.end - first };
}

/* One row, where the others do not see what it sees. */
static void row_values(const fg_strip *s, uint32_t m, fg_cpu_slots slots)
{
    uint32_t head_dim = s->args->kv->head_dim;
    size_t row_bytes = (size_t)head_dim * 4;
    size_t piece_bytes = FG_KV_PIECE * row_bytes / 2;
    const float *words = s->scores + (size_t)m * FG_ATTEND_SCORES;
    float *out = s->targets[m] + FG_ATTEND_HEAD;
    for (uint32_t block = slots.begin / BLOCK * BLOCK; block < slots.end; block += BLOCK) {
        /* A copy may begin with the second half of a block. */
        uint32_t piece = (slots.begin > block ? slots.begin : block) / FG_KV_PIECE;
        const uint8_t *values = s->pieces->values[piece] - piece % 2 * piece_bytes;
        const uint32_t *weights = (const uint32_t *)(const void *)(words + block / 2);
        for (uint32_t column = 0; column < head_dim; column += SUM_TILES * WORDS) {
            __m512 firsts[SUM_TILES];
            __m512 seconds[SUM_TILES];
#pragma GCC unroll 4
            for (int n = 0; n < SUM_TILES; n++) {
                firsts[n] = seconds[n] = _mm512_setzero_ps();
            }
            const uint8_t *at = values + (size_t)column * 4;
            add_chain(weights, at, row_bytes, within(slots, block), false, firsts);
            add_chain(weights, at, row_bytes, within(slots, block + WORDS), true, seconds);
#pragma GCC unroll 4
            for (int n = 0; n < SUM_TILES; n++) {
                float *sum = out + column + n * WORDS;
                __m512 both = _mm512_add_ps(firsts[n], seconds[n]);
                _mm512_store_ps(sum, _mm512_add_ps(_mm512_load_ps(sum), both));
            }
        }
    }
}

/* Values of slots begin .. end - 1: what all rows see in one product, the rest row by row. */
static void tile_values(const fg_strip *s, uint32_t begin, uint32_t end)
{
    fg_cpu_slots all = fg_strip_clip(s->all, begin, end);
    for (uint32_t m = 0; m < s->count; m++) {
        fg_cpu_slots before = fg_strip_before(s, m, begin, end);
        if (before.begin < before.end) {
            row_values(s, m, before);
        }
    }
    if (all.begin < all.end) {
        fg_amx_see_memory(s->scores);
        for (uint32_t column = 0; column < s->args->kv->head_dim;
             column += SUM_TILES * FG_AMX_ROWS) {
            add_columns(s, all, column);
        }
        fg_amx_see_memory(s->targets[0]);
    }
    for (uint32_t m = 0; m < s->count; m++) {
        fg_cpu_slots after = fg_strip_after(s, m, begin, end);
        if (after.begin < after.end) {
            row_values(s, m, after);
        }
    }
}

static const fg_strip_products *products_of(uint32_t dtype)
{
    (void)dtype;
#define BOTH                                                                                       \
    {                                                                                              \
        tile_scores, tile_values                                                                   \
    }
    static const fg_strip_products products[FG_STRIP_MAX] = {
        BOTH, BOTH, BOTH, BOTH, BOTH, BOTH, BOTH, BOTH,
        BOTH, BOTH, BOTH, BOTH, BOTH, BOTH, BOTH, BOTH,
    };
#undef BOTH
    return products;
}

void fg_cpu_amx_attend_bf16(const fg_cpu_attend *args)
{
    fg_strip_kernels kernels = fg_cpu_avx512_strip;
    kernels.strip_max = FG_STRIP_MAX;
    kernels.set_rows = fg_amx_set_strip_rows;
    kernels.products = products_of;
    kernels.pack_q = pack_q;
    kernels.weigh = weigh;
    kernels.lay_out = lay_out;
    fg_strip_attend(&kernels, args);
}
