/*
 * Attention over a bf16 cache with AMX, for heads of a multiple of 64: the products of strip.c as tiles, whose
 * chains are those of ops.h. A tile adds the lower and the upper halves of words apart, so pairs are dimensions
 * or slots 16 apart: K and V are copied so, q and weights are packed so.
 *
 *   K, per piece: [block of 32 dimensions][16][slot of the piece], the first 16 dimensions in upper halves
 *   V, per block of 32 slots: [16][dimension], the first 16 slots in upper halves
 */
#include "kernels/cpu/amx_strip.h"
#include "kernels/cpu/avx512_brain.h"

enum {
    BLOCK = 2 * FG_STRIP_CHAIN,
    WORDS = FG_STRIP_CHAIN, /* of a block */
};

_Static_assert((int)WORDS == (int)FG_AMX_WORDS, "a block of 32 fills a tile's row");

/* ---- copies ---- */

static void copy_keys(uint8_t *to, const uint8_t *from, uint32_t head_dim)
{
    for (uint32_t d = 0; d < head_dim; d += BLOCK, from += FG_AMX_TILE_BYTES) {
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
            __m512i even = fg_avx512_upper(words);
            __m512i odd = fg_avx512_lower(words);
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

static void weigh(uint32_t dtype, const fg_strip_rows *rows, uint32_t begin, uint32_t end)
{
    (void)dtype;
    fg_avx512_weigh_brains(FG_AVX512_APART, rows, begin, end);
}

/* ---- products ---- */

static void tile_scores(const fg_strip *s, uint32_t begin, uint32_t end)
{
    fg_amx_scores(FG_AMX_BF16, s, begin, end, s->args->kv->head_dim / BLOCK);
}

/* Weights of some rows of another strip, made two pieces at a time between products. */
typedef struct beside {
    float *const *scores;
    float *const *records;
    __m512 maxima[FG_AVX512_TOGETHER];
    __m512 sums[FG_AVX512_TOGETHER];
    uint32_t at; /* of the next two pieces */
} beside;

FG_AVX512_INLINE void begin_beside(const fg_strip_rows *rows, uint32_t first, beside *b)
{
    b->scores = &rows->scores[first];
    b->records = &rows->records[first];
    b->at = 0;
    fg_avx512_begin_weights(FG_AVX512_TOGETHER, b->scores, 0, FG_ATTEND_CHUNK, b->records,
                            b->maxima);
#pragma GCC unroll 4
    for (int r = 0; r < FG_AVX512_TOGETHER; r++) {
        b->sums[r] = _mm512_setzero_ps();
    }
}

FG_AVX512_INLINE void weigh_next(beside *b)
{
    if (b->at == FG_ATTEND_CHUNK) {
        return;
    }
#pragma GCC unroll 4
    for (int r = 0; r < FG_AVX512_TOGETHER; r++) {
        const float *scores = b->scores[r] + b->at;
        __m512i weights =
            fg_avx512_weigh(_mm512_load_ps(scores), _mm512_load_ps(scores + FG_AVX512_LANES),
                            b->maxima[r], &fg_avx512_brains);
        b->sums[r] = fg_avx512_add_weights(b->sums[r], weights);
        fg_avx512_put_weights(FG_AVX512_APART, weights, b->scores[r], b->at);
    }
    b->at += FG_AVX512_WEIGHED;
    fg_amx_see_memory(b->scores); /* here, not all at once */
}

FG_AVX512_INLINE void end_beside(beside *b)
{
    while (b->at < FG_ATTEND_CHUNK) {
        weigh_next(b);
    }
#pragma GCC unroll 4
    for (int r = 0; r < FG_AVX512_TOGETHER; r++) {
        b->records[r][FG_ATTEND_SUM] = fg_avx512_fold_weights(b->sums[r]);
    }
}

/* As fg_amx_score_pieces. */
FG_AVX512_INLINE void score_pieces_beside(const fg_strip *s, uint32_t piece, beside *b)
{
    const uint8_t *const *keys = s->pieces->keys + piece;
    size_t tiles = s->args->kv->head_dim / BLOCK;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (size_t t = 0; t < tiles; t++) {
        size_t at = t * FG_AMX_TILE_BYTES;
        _tile_loadd(4, s->q + t * FG_AMX_WORDS, FG_STRIP_Q * sizeof(float));
        FG_AMX_MULTIPLY(FG_AMX_BF16, 0, 5, keys[0] + at, FG_AMX_ROW_BYTES);
        weigh_next(b);
        FG_AMX_MULTIPLY(FG_AMX_BF16, 1, 6, keys[1] + at, FG_AMX_ROW_BYTES);
        weigh_next(b);
        FG_AMX_MULTIPLY(FG_AMX_BF16, 2, 5, keys[2] + at, FG_AMX_ROW_BYTES);
        weigh_next(b);
        FG_AMX_MULTIPLY(FG_AMX_BF16, 3, 6, keys[3] + at, FG_AMX_ROW_BYTES);
        weigh_next(b);
    }
    fg_amx_store_sums(s->scores + (size_t)piece * FG_KV_PIECE, FG_ATTEND_SCORES * sizeof(float));
}

/* Of sixteen pieces and sixteen rows: the weights of four rows are made beside the scores of four pieces. */
static void scores_beside(const fg_strip *s, uint32_t begin, uint32_t end,
                          const fg_strip_rows *rows)
{
    fg_amx_see_memory(s->q);
    for (uint32_t piece = begin; piece < end; piece += FG_AMX_SUMS) {
        beside b;
        begin_beside(rows, piece, &b);
        score_pieces_beside(s, piece, &b);
        end_beside(&b);
    }
    fg_amx_see_memory(s->scores);
}

/* The chain of some slots of a block, the first or (second) the others, on 64 dimensions. */
FG_AVX512_INLINE void add_chain(const uint32_t *weights, const uint8_t *values, size_t row_bytes,
                                fg_cpu_slots slots, bool second, __m512 chain[FG_AMX_SUMS])
{
    for (uint32_t i = slots.begin; i < slots.end; i++) {
        uint32_t word = weights[i];
        __m512i bits = _mm512_set1_epi32((int32_t)(second ? word << 16 : word & 0xFFFF0000));
#pragma GCC unroll 4
        for (int n = 0; n < FG_AMX_SUMS; n++) {
            __m512i pair = _mm512_load_si512(values + i * row_bytes + n * FG_AMX_ROW_BYTES);
            __m512i value = second ? fg_avx512_lower(pair) : fg_avx512_upper(pair);
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
        const uint8_t *values = fg_strip_values(s, piece) - piece % 2 * piece_bytes;
        const uint32_t *weights = (const uint32_t *)(const void *)(words + block / 2);
        for (uint32_t column = 0; column < head_dim; column += FG_AMX_SUMS * WORDS) {
            __m512 firsts[FG_AMX_SUMS];
            __m512 seconds[FG_AMX_SUMS];
#pragma GCC unroll 4
            for (int n = 0; n < FG_AMX_SUMS; n++) {
                firsts[n] = seconds[n] = _mm512_setzero_ps();
            }
            const uint8_t *at = values + (size_t)column * 4;
            add_chain(weights, at, row_bytes, within(slots, block), false, firsts);
            add_chain(weights, at, row_bytes, within(slots, block + WORDS), true, seconds);
#pragma GCC unroll 4
            for (int n = 0; n < FG_AMX_SUMS; n++) {
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
        fg_amx_add_values(FG_AMX_BF16, s, s->scores + all.begin / 2,
                          fg_strip_values(s, all.begin / FG_KV_PIECE),
                          (all.end - all.begin) / BLOCK);
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
    static const fg_strip_products products[] = FG_AMX_PRODUCTS(tile_scores, tile_values);
    return products;
}

void fg_cpu_amx_attend_bf16(const fg_cpu_attend *args)
{
    fg_strip_kernels kernels = fg_cpu_avx512_strip;
    kernels.strip_max = FG_STRIP_MAX;
    kernels.begins = false;
    kernels.set_rows = fg_amx_set_strip_rows;
    kernels.products = products_of;
    kernels.pack_q = pack_q;
    kernels.weigh = weigh;
    kernels.beside_dtype = FG_BF16;
    kernels.scores_beside = scores_beside;
    kernels.lay_out = lay_out;
    fg_strip_attend(&kernels, args);
}
