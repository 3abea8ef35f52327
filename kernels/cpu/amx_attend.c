/*
 * Attention over an int8 cache with AMX, for heads of a multiple of 64: the products of strip.c as tiles, exact
 * as ever. K lies in the cache as a tile wants it, a piece of 64 dimensions is one; so does V, 64 slots of 16
 * dimensions. Everything else, and tiles of few (row, head)s, are AVX-512's.
 */
#include <string.h>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/avx512_attend.h"
#include "kernels/cpu/strip.h"

enum {
    STRIP_ROWS = FG_STRIP_MAX,
    SUM_TILES = 4,                      /* 0 to 3; tile 4 holds q or weights, 5 and 6 K or V */
    FEW = FG_STRIP_DIRECT * STRIP_ROWS, /* (row, head)s that read no copy */
};

/* ---- scores ---- */

#define ADD_SCORES(sums, keys_tile, n)                                                             \
    do {                                                                                           \
        _tile_loadd(keys_tile, s->pieces->keys[piece + (n)] + at, FG_AMX_ROW_BYTES);               \
        _tile_dpbssd(sums, 4, keys_tile);                                                          \
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
    for (uint32_t d = 0; d < head_dim; d += FG_AMX_ROW_BYTES) {
        size_t at = (size_t)d * FG_KV_PIECE;
        _tile_loadd(4, s->q + d / 4, FG_STRIP_Q * sizeof(float));
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

static void amx_scores(const fg_strip *s, uint32_t begin, uint32_t end)
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
        _tile_dpbusd(sums, 4, values_tile);                                                        \
    } while (0)

/* Weights times values of 64 dimensions from `column` on. */
static void add_columns(const fg_strip *s, fg_cpu_slots slots, uint32_t column)
{
    uint32_t head_dim = s->args->kv->head_dim;
    size_t stride = fg_cpu_record_floats(head_dim) * sizeof(float);
    float *out = s->targets[0] + FG_ATTEND_HEAD + column;
    const uint8_t *weights = (const uint8_t *)s->scores;
    const uint8_t *values = s->pieces->values[slots.begin / FG_KV_PIECE] + (size_t)column * 4;
    _tile_loadd(0, out, stride);
    _tile_loadd(1, out + 1 * FG_AMX_ROWS, stride);
    _tile_loadd(2, out + 2 * FG_AMX_ROWS, stride);
    _tile_loadd(3, out + 3 * FG_AMX_ROWS, stride);
    for (uint32_t slot = slots.begin; slot < slots.end; slot += FG_AMX_ROW_BYTES) {
        _tile_loadd(4, weights + slot, FG_ATTEND_SCORES * sizeof(float));
        ADD_VALUES(0, 5, 0);
        ADD_VALUES(1, 6, 1);
        ADD_VALUES(2, 5, 2);
        ADD_VALUES(3, 6, 3);
        values += (size_t)FG_AMX_ROW_BYTES * head_dim;
    }
    _tile_stored(0, out, stride);
    _tile_stored(1, out + 1 * FG_AMX_ROWS, stride);
    _tile_stored(2, out + 2 * FG_AMX_ROWS, stride);
    _tile_stored(3, out + 3 * FG_AMX_ROWS, stride);
}

enum { BEYOND_MAX = FG_AMX_ROW_BYTES - FG_KV_PIECE };
_Static_assert((FG_ATTEND_CHUNK + BEYOND_MAX) * FG_ATTEND_COPY_DIMS <= FG_ATTEND_COPY,
               "tiles read beyond a copy's values");
_Static_assert(FG_ATTEND_CHUNK + BEYOND_MAX <= FG_ATTEND_SCORES * 4, "weights go beyond a row's");

/* The last 64 slots may go beyond those that have weights, into what lies behind a copy: it weighs nothing. */
static void end_weights(const fg_strip *s, fg_cpu_slots slots)
{
    uint32_t beyond = -(slots.end - slots.begin) % FG_AMX_ROW_BYTES;
    for (uint32_t m = 0; m < s->count; m++) {
        memset((uint8_t *)(s->scores + (size_t)m * FG_ATTEND_SCORES) + slots.end, 0, beyond);
    }
}

static void amx_values(const fg_strip *s, uint32_t begin, uint32_t end)
{
    fg_cpu_slots slots = fg_strip_seen_slots(s, begin, end);
    if (slots.begin >= slots.end) {
        return;
    }
    end_weights(s, slots);
    fg_amx_see_memory(s->scores);
    for (uint32_t column = 0; column < s->args->kv->head_dim; column += SUM_TILES * FG_AMX_ROWS) {
        add_columns(s, slots, column);
    }
    fg_amx_see_memory(s->targets[0]);
}

static const fg_strip_products *products_of(uint32_t dtype)
{
    (void)dtype;
#define BOTH                                                                                       \
    {                                                                                              \
        amx_scores, amx_values                                                                     \
    }
    static const fg_strip_products products[STRIP_ROWS] = {
        BOTH, BOTH, BOTH, BOTH, BOTH, BOTH, BOTH, BOTH,
        BOTH, BOTH, BOTH, BOTH, BOTH, BOTH, BOTH, BOTH,
    };
#undef BOTH
    return products;
}

void fg_cpu_amx_attend(const fg_cpu_attend *args)
{
    const fg_paged_kv *kv = args->kv;
    bool tiles = kv->head_dim % FG_AMX_ROW_BYTES == 0 && args->row_count * args->head_count > FEW;
    if (tiles && kv->dtype == FG_BF16) {
        fg_cpu_amx_attend_bf16(args);
        return;
    }
    if (!tiles || kv->dtype != FG_I8) {
        /* The processors that have tiles widen bf16 quicker than they multiply it. */
        fg_cpu_avx512_attend(args);
        return;
    }
    fg_strip_kernels kernels = fg_cpu_avx512_strip;
    kernels.strip_max = STRIP_ROWS;
    kernels.set_rows = fg_amx_set_strip_rows;
    kernels.products = products_of;
    fg_strip_attend(&kernels, args);
}
