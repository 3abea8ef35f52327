/*
 * avx512_pairs - matrix products with BF16 weights in 512-bit registers, for the two files that know how a
 * pair of columns is added: with vdpbf16ps, or with two fmas (add_pair, which they define). Both give the
 * chains of ops.h: the first column of a pair, in the upper halves, comes first.
 *
 * A tile is R rows by P panels, whose chains are in registers: 12 where there are rows enough, because a vdpbf16ps
 * takes six cycles and one begins in each; with 16 a Zen 4 loses a tenth where chains end, with more a sixth. Where two
 * begin in each, 16 (12 leave a tenth of that unused).
 * Their sums are in memory that never leaves the first-level cache, and so are the first 16 columns' chains while
 * the next 16 pass. A block of rows passes two panels tile after tile, so that their weights come from memory once
 * and then from the second-level cache; of long rows a slice of the columns at a time, the sums being kept in
 * memory meanwhile, which is exact. Of rows so long that a block of them is not in that cache, some panels pass a slice
 * before the next one. While it runs, a tile asks for its share of what follows the slice: into the
 * second level, as the first has no room for it.
 */
#ifndef FORGE_KERNELS_CPU_AVX512_PAIRS_H
#define FORGE_KERNELS_CPU_AVX512_PAIRS_H

#if defined(__AVX512F__) || defined(FG_AVX512_SMALL)
#include <string.h>

#include "kernels/cpu/avx512.h"

/* Four panels are taken by tiles of so few rows that two would leave registers empty. All rows are one tile that is
 * alone, or they are several, of four to six, or to eight where two products begin in a cycle. */
enum {
    ALONE_ROWS = 8,
    TILE_ROWS = 6,
    TILE_ROWS_MOST = 8,
    TILE_PANELS = 4,
    FEW_ROWS = 4,
    TILE_SUMS = 16
};
enum { CHAIN = FG_CPU_CHAIN_PAIRS };
enum {
    SLICE_PAIRS = FG_AVX512_PAIR_COLUMNS / 2, /* two panels' are 128 KiB */
    BLOCK_ROWS = 128,                         /* whose sums are kept at a time, */
    TOGETHER = 8,                             /* of so many panels where rows are long */
    PAIR_BYTES = FG_PANEL_OUTPUTS * 4,
    BLOCK_BYTES = 2 * FG_CPU_CHAIN_PAIRS * PAIR_BYTES, /* of a panel */
    /* Bytes that a single tile asks ahead of its walk: what arrives meanwhile from memory. One row is what the
     * processor foresees better by itself. */
    AHEAD = 4096,
};

/* Some rows against a slice of some panels. */
typedef struct tile {
    const uint8_t *panel; /* the first of P */
    size_t panel_bytes;
    const uint32_t *pairs; /* of the tile's first row */
    size_t stride;         /* from one row's pairs to the next */
    size_t count;          /* pairs of the slice */
    float *sums;           /* [panel][row][output] */
    const uint8_t *ask;    /* what will be read later */
    size_t ask_step;       /* how much of it for two chains, unless alone: as much as is read */
} tile;

FG_AVX512_INLINE __m512 add_pair(__m512 sum, __m512i weights, __m512i pair);

/* Three rows share a pointer, or addresses would not fit the registers; the compiler may not undo it. */
FG_AVX512_INLINE __m512i row_pair(const uint32_t *const thirds[], size_t stride, int r)
{
    return _mm512_set1_epi32((int32_t)thirds[r / 3][(size_t)(r % 3) * stride]);
}

/* Where a tile is on its way. */
typedef struct walk {
    const uint8_t *at;
    const uint8_t *ask;
    const uint32_t *thirds[(ALONE_ROWS + 2) / 3];
} walk;

FG_AVX512_INLINE void ask(int P, const tile *t, const uint8_t *at)
{
#pragma GCC unroll 4
    for (int p = 0; p < P; p++) {
        _mm_prefetch((const char *)at + (size_t)p * t->panel_bytes, _MM_HINT_T1);
    }
}

/* The next pair of every chain. */
FG_AVX512_INLINE void run_pair(int R, int P, bool alone, const tile *t, walk *way,
                               __m512 chains[TILE_SUMS])
{
    __m512i w[TILE_PANELS];
#pragma GCC unroll 4
    for (int p = 0; p < P; p++) {
        w[p] = _mm512_loadu_si512(way->at + (size_t)p * t->panel_bytes);
        FG_AVX512_HOLD(w[p]);
    }
    if (alone && R > 1) {
        ask(P, t, way->at + AHEAD);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        __m512i pair = row_pair(way->thirds, t->stride, r);
        FG_AVX512_HOLD(pair);
#pragma GCC unroll 4
        for (int p = 0; p < P; p++) {
            chains[p * R + r] = add_pair(chains[p * R + r], w[p], pair);
            FG_AVX512_HOLD(chains[p * R + r]);
        }
    }
    way->at += PAIR_BYTES;
    __asm__("" : "+r"(way->at)); /* else offsets become registers of their own */
#pragma GCC unroll 4
    for (int i = 0; i < (R + 2) / 3; i++) {
        way->thirds[i]++;
        __asm__("" : "+r"(way->thirds[i]));
    }
}

/* One chain of each sum. */
FG_AVX512_INLINE void run_chain(int R, int P, bool alone, const tile *t, size_t count, walk *way,
                                __m512 chains[TILE_SUMS])
{
#pragma GCC unroll 16
    for (int i = 0; i < R * P; i++) {
        chains[i] = _mm512_setzero_ps();
    }
    if (count == CHAIN) {
#pragma GCC unroll 8
        for (int i = 0; i < CHAIN; i++) {
            run_pair(R, P, alone, t, way, chains);
        }
        return;
    }
#pragma GCC unroll 1
    for (size_t i = 0; i < count; i++) {
        run_pair(R, P, alone, t, way, chains);
    }
}

/* Two chains, of CHAIN pairs and of `count`, are added to the sums. */
FG_AVX512_INLINE void run_chains(int R, int P, bool alone, const tile *t, size_t count, walk *way)
{
    float firsts[TILE_SUMS * FG_PANEL_OUTPUTS] __attribute__((aligned(64)));
    __m512 chains[TILE_SUMS];
    run_chain(R, P, alone, t, CHAIN, way, chains);
#pragma GCC unroll 16
    for (int i = 0; i < R * P; i++) {
        _mm512_store_ps(firsts + i * FG_PANEL_OUTPUTS, chains[i]);
    }
    __asm__ volatile(""
                     :
                     :
                     : "memory"); /* compilers would keep some in registers, and spill others */
    run_chain(R, P, alone, t, count, way, chains);
#pragma GCC unroll 16
    for (int i = 0; i < R * P; i++) {
        float *sum = t->sums + i * FG_PANEL_OUTPUTS;
        __m512 both = _mm512_add_ps(_mm512_load_ps(firsts + i * FG_PANEL_OUTPUTS), chains[i]);
        _mm512_store_ps(sum, _mm512_add_ps(_mm512_load_ps(sum), both));
    }
}

FG_AVX512_INLINE walk walk_from(int R, const tile *t, size_t pair)
{
    walk way = { .at = t->panel + pair * PAIR_BYTES, .ask = t->ask };
#pragma GCC unroll 4
    for (int i = 0; i < (R + 2) / 3; i++) {
        way.thirds[i] = t->pairs + (size_t)i * 3 * t->stride + pair;
    }
    return way;
}

/* The pairs behind the last two whole chains of a row: one chain, the second one being nothing, or two. */
FG_AVX512_INLINE void run_rest(int R, int P, const tile *t)
{
    size_t count = t->count % (2 * CHAIN);
    walk way = walk_from(R, t, t->count - count);
    if (count >= CHAIN) {
        run_chains(R, P, false, t, count - CHAIN, &way);
        return;
    }
    __m512 chains[TILE_SUMS];
    run_chain(R, P, false, t, count, &way, chains);
#pragma GCC unroll 16
    for (int i = 0; i < R * P; i++) {
        float *sum = t->sums + i * FG_PANEL_OUTPUTS;
        __m512 both = _mm512_add_ps(chains[i], _mm512_setzero_ps());
        _mm512_store_ps(sum, _mm512_add_ps(_mm512_load_ps(sum), both));
    }
}

FG_AVX512_INLINE void run_whole(int R, int P, bool alone, const tile *t)
{
    walk way = walk_from(R, t, 0);
    for (size_t left = t->count; left >= 2 * CHAIN; left -= 2 * CHAIN) {
        for (const uint8_t *end = way.ask + t->ask_step; !alone && way.ask < end; way.ask += 64) {
            ask(P, t, way.ask);
        }
        run_chains(R, P, alone, t, CHAIN, &way);
    }
}

/* X(name, alone, R, P) of every tile. */
#define EACH_TILE_OF(P, X)                                                                         \
    X(tile, false, 4, P)                                                                           \
    X(tile, false, 5, P) X(tile, false, 6, P) X(tile, false, 7, P) X(tile, false, 8, P)
#define EACH_LOW_ALONE_OF(P, X)                                                                    \
    X(alone, true, 1, P) X(alone, true, 2, P) X(alone, true, 3, P) X(alone, true, 4, P)
#define EACH_HIGH_ALONE_OF(P, X)                                                                   \
    X(alone, true, 5, P) X(alone, true, 6, P) X(alone, true, 7, P) X(alone, true, 8, P)
#define EACH_ALONE(X)                                                                              \
    EACH_LOW_ALONE_OF(1, X)                                                                        \
    EACH_LOW_ALONE_OF(2, X)                                                                        \
    EACH_LOW_ALONE_OF(4, X)                                                                        \
    EACH_HIGH_ALONE_OF(1, X)                                                                       \
    EACH_HIGH_ALONE_OF(2, X)
#define EACH_TILE(X)                                                                               \
    EACH_ALONE(X)                                                                                  \
    EACH_TILE_OF(1, X)                                                                             \
    EACH_TILE_OF(2, X)

#define DEFINE_REST(name, alone, R, P)                                                             \
    static __attribute__((noinline)) void rest_##R##_##P(const tile *t)                            \
    {                                                                                              \
        run_rest(R, P, t);                                                                         \
    }
EACH_ALONE(DEFINE_REST)

#define DEFINE_TILE(name, alone, R, P)                                                             \
    static __attribute__((noinline)) void name##_##R##_##P(const tile *t)                          \
    {                                                                                              \
        run_whole(R, P, alone, t);                                                                 \
        if (t->count % (2 * CHAIN) != 0) {                                                         \
            rest_##R##_##P(t);                                                                     \
        }                                                                                          \
    }
EACH_TILE(DEFINE_TILE)

#define TILE_ENTRY(name, alone, R, P) [alone][R][P] = name##_##R##_##P,
static void (*const tiles[2][ALONE_ROWS + 1][TILE_PANELS + 1])(const tile *t) = {
    EACH_TILE(TILE_ENTRY)
};

static uint32_t tile_panels(uint32_t rows, uint32_t left)
{
    uint32_t want = rows <= FEW_ROWS ? TILE_PANELS : 2;
    return left >= want ? want : left >= 2 ? 2 : 1;
}

/* At most BLOCK_ROWS rows against a set of panels that pass together; their tiles are as equal as they can be. */
typedef struct block {
    const fg_linear *linear;
    const uint32_t *pairs; /* of the first row */
    size_t stride;
    size_t row_pairs;
    uint32_t first_row;
    uint32_t rows;
    uint32_t tiles;
    uint32_t panel;
    uint32_t panels;
    float *sums; /* tile by tile */
} block;

/* A slice of the columns. */
typedef struct slice {
    size_t pair;
    size_t count;
    bool last;
    const uint8_t *next; /* what is read after it */
} slice;

/* The first row of tile `index`. */
static uint32_t tile_row(const block *b, uint32_t index)
{
    return b->rows * index / b->tiles;
}

static const uint8_t *panel_at(const block *b, uint32_t panel, size_t pair)
{
    const fg_panels *w = &b->linear->weight;
    return (const uint8_t *)w->data + panel * fg_panel_bytes(w->type, w->columns) +
           pair * PAIR_BYTES;
}

static void put_tile(const block *b, uint32_t index)
{
    uint32_t row = tile_row(b, index);
    uint32_t rows = tile_row(b, index + 1) - row;
    const float *sums = b->sums + (size_t)row * b->panels * FG_PANEL_OUTPUTS;
    for (uint32_t i = 0; i < rows * b->panels; i++) {
        fg_avx512_put_panel(b->linear, b->first_row + row + i % rows,
                            (b->panel + i / rows) * FG_PANEL_OUTPUTS,
                            _mm512_load_ps(sums + (size_t)i * FG_PANEL_OUTPUTS));
    }
}

/* A tile asks for its share of what follows. */
static void run_slice(const block *b, const slice *s)
{
    tile t = { .panel = panel_at(b, b->panel, s->pair),
               .panel_bytes = fg_panel_bytes(b->linear->weight.type, b->linear->weight.columns),
               .stride = b->stride,
               .count = s->count,
               .ask = s->next,
               .ask_step = (BLOCK_BYTES / b->tiles + 63) / 64 * 64 };
    for (uint32_t index = 0; index < b->tiles; index++) {
        uint32_t row = tile_row(b, index);
        t.pairs = b->pairs + row * b->stride + s->pair;
        t.sums = b->sums + (size_t)row * b->panels * FG_PANEL_OUTPUTS;
        uint32_t end = tile_row(b, index + 1);
        if (s->last) {
            fg_avx512_ask_outputs(b->linear, b->first_row + row, end - row,
                                  b->panel * FG_PANEL_OUTPUTS, b->panels);
        }
        tiles[b->tiles == 1][end - row][b->panels](&t);
        t.ask += t.count / (2 * CHAIN) * t.ask_step;
        if (s->last) { /* outputs come from memory as well: the next tile covers their way */
            put_tile(b, index);
        }
    }
}

/* Panels first .. end - 1: all of them pass a slice before the next one. */
static void run_block(block *b, uint32_t rows, uint32_t first, uint32_t end, float *sums)
{
    size_t pairs = b->tiles == 1 ? b->row_pairs : SLICE_PAIRS;
    memset(sums, 0, (size_t)(end - first) * b->rows * FG_PANEL_OUTPUTS * sizeof *sums);
    slice s = { .last = false };
    for (; !s.last; s.pair += pairs) {
        size_t left = b->row_pairs - s.pair;
        s.last = left <= pairs;
        s.count = s.last ? left : pairs;
        for (b->panel = first; b->panel < end; b->panel += b->panels) {
            uint32_t next = b->panel + tile_panels(rows, end - b->panel);
            b->panels = next - b->panel;
            b->sums = sums + (size_t)(b->panel - first) * b->rows * FG_PANEL_OUTPUTS;
            s.next = next < end ? panel_at(b, next, s.pair)
                     : s.last   ? panel_at(b, next, 0)
                                : panel_at(b, first, s.pair + pairs);
            run_slice(b, &s);
        }
    }
}

/* Panels first .. first + count - 1 of a product with BF16 weights, for all rows. */
static void multiply_pairs(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                           uint32_t first, uint32_t count)
{
    float sums[TOGETHER * BLOCK_ROWS * FG_PANEL_OUTPUTS] __attribute__((aligned(64)));
    uint32_t columns = linear->weight.columns;
    block b = { .linear = linear,
                .stride = fg_pair_stride(columns),
                .row_pairs = fg_panel_pairs(columns) };
    uint32_t tile_rows = fg_avx512_begins_two() ? TILE_ROWS_MOST : TILE_ROWS;
    bool several = rows > ALONE_ROWS && b.row_pairs > 2 * SLICE_PAIRS;
    for (uint32_t end, panel = first; panel < first + count; panel = end) {
        uint32_t left = first + count - panel;
        end = panel + (!several ? tile_panels(rows, left) : left < TOGETHER ? left : TOGETHER);
        for (b.first_row = 0; b.first_row < rows; b.first_row += b.rows) {
            uint32_t rows_left = rows - b.first_row;
            b.pairs = in->pairs + b.first_row * b.stride;
            b.rows = rows_left < BLOCK_ROWS ? rows_left : BLOCK_ROWS;
            b.tiles = b.rows <= ALONE_ROWS ? 1 : (b.rows + tile_rows - 1) / tile_rows;
            run_block(&b, rows, panel, end, sums);
        }
    }
}

#endif
#endif
