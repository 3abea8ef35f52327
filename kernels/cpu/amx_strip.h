/*
 * amx_strip - attention's products as tiles, for strips of up to sixteen (row, head)s that read copies and heads of
 * a multiple of 64: what caches of int8 and of bf16 have in common. A tile holds sixteen words of each row, which are
 * 64 dimensions or slots of int8 and 32 of bf16, so both walk through K and V alike.
 */
#ifndef FORGE_KERNELS_CPU_AMX_STRIP_H
#define FORGE_KERNELS_CPU_AMX_STRIP_H

#include "kernels/cpu/amx.h"
#include "kernels/cpu/avx512.h"
#include "kernels/cpu/strip.h"

/* Tiles 0 to 3 hold sums, 4 q or weights, 5 and 6 K or V. */
enum { FG_AMX_SUMS = 4, FG_AMX_WORDS = 16, FG_AMX_TILE_BYTES = FG_AMX_ROWS * FG_AMX_ROW_BYTES };

/* What is multiplied: q and K in int8, weights from 0 to 255 and V in int8, or all in bf16. */
typedef enum fg_amx_product { FG_AMX_KEYS_I8, FG_AMX_VALUES_I8, FG_AMX_BF16 } fg_amx_product;

/* For strips of so many rows. 0: no more tiles. */
static inline void fg_amx_set_strip_rows(uint32_t rows)
{
    if (rows == 0) {
        _tile_release();
        return;
    }
    fg_amx_config config = { .palette = 1 };
    for (int tile = 0; tile < FG_AMX_TILES; tile++) {
        config.row_bytes[tile] = FG_AMX_ROW_BYTES;
        config.rows[tile] = (uint8_t)(tile <= FG_AMX_SUMS ? rows : FG_AMX_ROWS);
    }
    fg_amx_see_memory(&config);
    _tile_loadconfig(&config);
}

/* Tile 4 with what lies at `at`, added to a tile of sums. K and V come once for each strip: they are to leave its
 * scores in the first-level cache. */
#define FG_AMX_MULTIPLY(product, sums, tile, at, stride)                                           \
    do {                                                                                           \
        _tile_stream_loadd(tile, at, stride);                                                      \
        if ((product) == FG_AMX_KEYS_I8) {                                                         \
            _tile_dpbssd(sums, 4, tile);                                                           \
        } else if ((product) == FG_AMX_VALUES_I8) {                                                \
            _tile_dpbusd(sums, 4, tile);                                                           \
        } else {                                                                                   \
            _tile_dpbf16ps(sums, 4, tile);                                                         \
        }                                                                                          \
    } while (0)

/* Sums, side by side. */
FG_AVX512_INLINE void fg_amx_store_sums(float *out, size_t stride)
{
    _tile_stored(0, out, stride);
    _tile_stored(1, out + 1 * FG_AMX_ROWS, stride);
    _tile_stored(2, out + 2 * FG_AMX_ROWS, stride);
    _tile_stored(3, out + 3 * FG_AMX_ROWS, stride);
}

/* Of four pieces from `piece` on, over so many tiles of dimensions; those beyond the chunk's end repeat its last one. */
FG_AVX512_INLINE void fg_amx_score_pieces(fg_amx_product product, const fg_strip *s, uint32_t piece,
                                          size_t tiles)
{
    const uint8_t *const *keys = s->pieces->keys + piece;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (size_t t = 0; t < tiles; t++) {
        size_t at = t * FG_AMX_TILE_BYTES;
        _tile_loadd(4, s->q + t * FG_AMX_WORDS, FG_STRIP_Q * sizeof(float));
        FG_AMX_MULTIPLY(product, 0, 5, keys[0] + at, FG_AMX_ROW_BYTES);
        FG_AMX_MULTIPLY(product, 1, 6, keys[1] + at, FG_AMX_ROW_BYTES);
        FG_AMX_MULTIPLY(product, 2, 5, keys[2] + at, FG_AMX_ROW_BYTES);
        FG_AMX_MULTIPLY(product, 3, 6, keys[3] + at, FG_AMX_ROW_BYTES);
    }
    fg_amx_store_sums(s->scores + (size_t)piece * FG_KV_PIECE, FG_ATTEND_SCORES * sizeof(float));
}

/* Scores, or int8's sums, of the pieces begin .. end - 1 that the strip sees. */
FG_AVX512_INLINE void fg_amx_scores(fg_amx_product product, const fg_strip *s, uint32_t begin,
                                    uint32_t end, size_t tiles)
{
    fg_cpu_slots seen = fg_strip_seen(s, begin, end);
    if (seen.begin >= seen.end) {
        return;
    }
    fg_amx_see_memory(s->q);
    for (uint32_t piece = seen.begin; piece < seen.end; piece += FG_AMX_SUMS) {
        fg_amx_score_pieces(product, s, piece, tiles);
    }
    fg_amx_see_memory(s->scores);
}

/* Weights times values of 64 dimensions from `column` on, added to the targets: so many tiles of slots, whose weights
 * and values begin there. */
FG_AVX512_INLINE void fg_amx_add_columns(fg_amx_product product, const fg_strip *s,
                                         const float *weights, const uint8_t *values, size_t tiles,
                                         uint32_t column)
{
    size_t row_bytes = (size_t)s->args->kv->head_dim * 4;
    size_t stride = fg_cpu_record_floats(s->args->kv->head_dim) * sizeof(float);
    float *out = s->targets[0] + FG_ATTEND_HEAD + column;
    values += (size_t)column * 4;
    _tile_loadd(0, out, stride);
    _tile_loadd(1, out + 1 * FG_AMX_ROWS, stride);
    _tile_loadd(2, out + 2 * FG_AMX_ROWS, stride);
    _tile_loadd(3, out + 3 * FG_AMX_ROWS, stride);
    for (size_t t = 0; t < tiles; t++, values += FG_AMX_WORDS * row_bytes) {
        _tile_loadd(4, weights + t * FG_AMX_WORDS, FG_ATTEND_SCORES * sizeof(float));
        FG_AMX_MULTIPLY(product, 0, 5, values, row_bytes);
        FG_AMX_MULTIPLY(product, 1, 6, values + 1 * FG_AMX_ROW_BYTES, row_bytes);
        FG_AMX_MULTIPLY(product, 2, 5, values + 2 * FG_AMX_ROW_BYTES, row_bytes);
        FG_AMX_MULTIPLY(product, 3, 6, values + 3 * FG_AMX_ROW_BYTES, row_bytes);
    }
    fg_amx_store_sums(out, stride);
}

/* The same for all dimensions. */
FG_AVX512_INLINE void fg_amx_add_values(fg_amx_product product, const fg_strip *s,
                                        const float *weights, const uint8_t *values, size_t tiles)
{
    fg_amx_see_memory(s->scores);
    for (uint32_t column = 0; column < s->args->kv->head_dim; column += FG_AMX_SUMS * FG_AMX_ROWS) {
        fg_amx_add_columns(product, s, weights, values, tiles, column);
    }
    fg_amx_see_memory(s->targets[0]);
}

/* A strip's attention takes the same functions for any number of rows. */
#define FG_AMX_PRODUCTS(scores, values)                                                            \
    {                                                                                              \
        { scores, values }, { scores, values }, { scores, values }, { scores, values },            \
            { scores, values }, { scores, values }, { scores, values }, { scores, values },        \
            { scores, values }, { scores, values }, { scores, values }, { scores, values },        \
            { scores, values }, { scores, values }, { scores, values }, { scores, values },        \
    }

#endif
