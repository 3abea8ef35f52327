/*
 * Matrix products with AVX-512 of many rows with BF16 weights, where a vdpbf16ps takes more of the
 * pipes than the two fmas that it stands for, and widening takes an fma's place
 * (fg_avx512_shares_pipes). Bit for bit what avx512_pairs.h does for few rows.
 *
 * A slice of the columns becomes floats first: of all rows, once for all panels, and of one pair of
 * panels after another, which stays in the first-level cache while the rows pass in tiles of four.
 * A tile's registers hold both chains of a block of columns and the sums of the slice: beside the
 * products, only the two additions where chains end take a product's place. Between slices sums
 * wait in memory. What a block lacks of its columns are zeros, which change no chain.
 */
#include "kernels/cpu/avx512.h"

#if defined(__AVX512F__) || defined(FG_AVX512_SMALL)
#include <string.h>

enum { TILE_ROWS = 4, TILE_ROWS_LEAST = 3, TILE_PANELS = 2 };
enum { CHAIN = FG_CPU_CHAIN_PAIRS, CHAINS = 2 };
/* Pairs whose chains are added together; a register holds those of a row. */
enum { BLOCK_PAIRS = CHAINS * CHAIN, PAIR_BYTES = FG_PANEL_OUTPUTS * 4 };
/* Columns of a slice: floats of two panels leave room in the first-level cache. With 256, 16 rows
 * lose a seventh. */
enum { SLICE_BLOCKS = 4, SLICE_PAIRS = SLICE_BLOCKS * BLOCK_PAIRS };
/* Rows whose floats and sums are kept at a time, and panels that pass a slice before the next one:
 * rows are widened again for the ones behind them. */
enum { BATCH_ROWS = 128, TOGETHER = 16 };
/* Fewer rows wait for memory. As many are tiles of three rows or four. */
enum { LEAST_ROWS = 7 };

/* Columns of a block in the order in which chains take them. */
typedef __m512 ready[2 * CHAIN][CHAINS][TILE_PANELS];
/* A block of a row: the first columns of its pairs, and the second ones. */
typedef float ready_row[2][BLOCK_PAIRS];
typedef __m512 float_sums[TILE_PANELS];

/* Some rows against a slice of two panels. */
typedef struct tile {
    const ready *weights;
    uint32_t blocks;
    const uint8_t *ask; /* lines of both panels for each block, which are read later */
    size_t ask_lines;
    size_t ask_apart;
} tile;

/* Left to the compiler, many products first move what they would overwrite. */
#if defined(FG_AVX512_SMALL)
#define ADD_PRODUCT(sum, a, b) (sum) = _mm512_fmadd_ps(a, b, sum)
#else
#define ADD_PRODUCT(sum, a, b) __asm__("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b))
#endif

/* The next column of every chain. `rows`: a block of R rows. */
FG_AVX512_INLINE void add_column(int R, const ready *w, const ready_row *rows, int column,
                                 __m512 chains[CHAINS][TILE_ROWS][TILE_PANELS])
{
#pragma GCC unroll 2
    for (int c = 0; c < CHAINS; c++) {
        __m512 near = (*w)[column][c][0];
        __m512 far = (*w)[column][c][1];
        FG_AVX512_HOLD(near);
        FG_AVX512_HOLD(far);
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            __m512 x = _mm512_set1_ps(rows[r][column % 2][c * CHAIN + column / 2]);
            FG_AVX512_HOLD(x);
            ADD_PRODUCT(chains[c][r][0], near, x);
            ADD_PRODUCT(chains[c][r][1], far, x);
        }
    }
}

FG_AVX512_INLINE void add_block(int R, const ready *w, const ready_row *rows, float_sums *sums)
{
    __m512 chains[CHAINS][TILE_ROWS][TILE_PANELS];
#pragma GCC unroll 16
    for (int i = 0; i < CHAINS * R * TILE_PANELS; i++) {
        chains[i % CHAINS][i / CHAINS / TILE_PANELS][i / CHAINS % TILE_PANELS] =
            _mm512_setzero_ps();
    }
#pragma GCC unroll 16
    for (int column = 0; column < 2 * CHAIN; column++) {
        add_column(R, w, rows, column, chains);
    }
#pragma GCC unroll 8
    for (int i = 0; i < R * TILE_PANELS; i++) {
        int r = i / TILE_PANELS;
        int p = i % TILE_PANELS;
        sums[r][p] = _mm512_add_ps(sums[r][p], _mm512_add_ps(chains[0][r][p], chains[1][r][p]));
        FG_AVX512_HOLD(sums[r][p]);
    }
}

FG_AVX512_INLINE void run_tile(int R, const tile *t, const ready_row *rows, float_sums *totals)
{
    float_sums sums[TILE_ROWS];
    const uint8_t *ask = t->ask;
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
        sums[r][0] = totals[r][0];
        sums[r][1] = totals[r][1];
    }
#pragma GCC unroll 1
    for (uint32_t block = 0; block < t->blocks; block++) {
        for (size_t i = 0; i < t->ask_lines; i++, ask += PAIR_BYTES) {
            _mm_prefetch((const char *)ask, _MM_HINT_T1);
            _mm_prefetch((const char *)ask + t->ask_apart, _MM_HINT_T1);
        }
        add_block(R, t->weights + block, rows + (size_t)block * (size_t)R, sums);
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
        totals[r][0] = sums[r][0];
        totals[r][1] = sums[r][1];
    }
}

#define DEFINE_TILE(R)                                                                             \
    static __attribute__((noinline)) void tile_##R(const tile *t, const ready_row *rows,           \
                                                   float_sums *totals)                             \
    {                                                                                              \
        run_tile(R, t, rows, totals);                                                              \
    }
DEFINE_TILE(3)
DEFINE_TILE(4)

static void (*const tiles[])(const tile *t, const ready_row *rows, float_sums *totals) = { tile_3,
                                                                                           tile_4 };

/* Some rows against some panels. */
typedef struct batch {
    const fg_linear *linear;
    const uint32_t *pairs; /* of the first row */
    size_t stride;
    size_t row_pairs;
    size_t panel_bytes;
    uint32_t first_panel;
    uint32_t end_panel;
    uint32_t first_row;
    uint32_t rows;
    uint32_t tiles; /* as equal as they can be */
    ready weights[SLICE_BLOCKS];
    ready_row row_blocks[BATCH_ROWS * SLICE_BLOCKS]; /* [tile][block][row] */
    float_sums totals[TOGETHER / TILE_PANELS][BATCH_ROWS];
} batch;

/* Some columns of two panels, or the last panel alone, which is then both. */
typedef struct slice {
    uint32_t panel;
    uint32_t panels;
    size_t pair;
    size_t pairs;
    uint32_t blocks; /* the last one may not be whole */
    bool last;
} slice;

static uint32_t tile_row(const batch *b, uint32_t index)
{
    return b->rows * index / b->tiles;
}

static const uint8_t *panel_at(const batch *b, uint32_t panel, size_t pair)
{
    return (const uint8_t *)b->linear->weight.data + panel * b->panel_bytes + pair * PAIR_BYTES;
}

FG_AVX512_INLINE void widen_row_block(__m512i words, ready_row *out)
{
    _mm512_store_si512((*out)[0], fg_avx512_upper(words));
    _mm512_store_si512((*out)[1], fg_avx512_lower(words));
}

static void widen_row(const uint32_t *pairs, size_t count, ready_row *out, size_t step)
{
    for (; count >= BLOCK_PAIRS; count -= BLOCK_PAIRS, pairs += BLOCK_PAIRS, out += step) {
        widen_row_block(_mm512_loadu_si512(pairs), out);
    }
    if (count > 0) {
        __mmask16 mask = (__mmask16)((1u << count) - 1);
        widen_row_block(_mm512_castps_si512(_mm512_maskz_loadu_ps(mask, (const void *)pairs)), out);
    }
}

static void widen_rows(batch *b, const slice *s, uint32_t row, uint32_t end)
{
    ready_row *out = b->row_blocks + (size_t)row * s->blocks;
    for (uint32_t r = row; r < end; r++) {
        widen_row(b->pairs + r * b->stride + s->pair, s->pairs, out++, end - row);
    }
}

/* A block of one panel that has so many pairs. */
FG_AVX512_INLINE void widen_block(const uint8_t *words, size_t pairs, int panel, ready *out)
{
#pragma GCC unroll 16
    for (size_t pair = 0; pair < BLOCK_PAIRS; pair++) {
        __m512i word =
            pair < pairs ? _mm512_load_si512(words + pair * PAIR_BYTES) : _mm512_setzero_si512();
        size_t column = pair % CHAIN * 2;
        (*out)[column][pair / CHAIN][panel] = _mm512_castsi512_ps(fg_avx512_upper(word));
        (*out)[column + 1][pair / CHAIN][panel] = _mm512_castsi512_ps(fg_avx512_lower(word));
    }
}

static void widen_panel(const uint8_t *words, size_t pairs, int panel, ready *out)
{
    for (; pairs >= BLOCK_PAIRS; pairs -= BLOCK_PAIRS, words += BLOCK_PAIRS * PAIR_BYTES, out++) {
        widen_block(words, BLOCK_PAIRS, panel, out);
    }
    if (pairs > 0) {
        widen_block(words, pairs, panel, out);
    }
}

static void widen_panels(batch *b, const slice *s)
{
    for (uint32_t i = 0; i < TILE_PANELS; i++) {
        uint32_t panel = s->panel + (i < s->panels ? i : 0);
        widen_panel(panel_at(b, panel, s->pair), s->pairs, (int)i, b->weights);
    }
}

static void put_tile(const batch *b, const slice *s, uint32_t row, uint32_t end,
                     const float_sums *totals)
{
    for (uint32_t i = 0; i < s->panels; i++) {
        for (uint32_t r = 0; r < end - row; r++) {
            fg_avx512_put_panel(b->linear, b->first_row + row + r,
                                (s->panel + i) * FG_PANEL_OUTPUTS, totals[r][i]);
        }
    }
}

/* What is read after a slice. */
static const uint8_t *after_slice(const batch *b, const slice *s)
{
    uint32_t next = s->panel + s->panels;
    return next < b->end_panel ? panel_at(b, next, s->pair)
           : s->last           ? panel_at(b, next, 0)
                               : panel_at(b, b->first_panel, s->pair + s->pairs);
}

/* Each tile asks for its share of what follows. */
static void run_slice(batch *b, const slice *s)
{
    size_t turns = (size_t)b->tiles * s->blocks;
    tile t = { .weights = (const ready *)b->weights,
               .blocks = s->blocks,
               .ask = after_slice(b, s),
               .ask_lines = (s->pairs + turns - 1) / turns,
               .ask_apart = b->panel_bytes };
    float_sums *totals = b->totals[(s->panel - b->first_panel) / TILE_PANELS];
    widen_panels(b, s);
    for (uint32_t index = 0; index < b->tiles; index++) {
        uint32_t row = tile_row(b, index);
        uint32_t end = tile_row(b, index + 1);
        if (s->last) {
            fg_avx512_ask_outputs(b->linear, b->first_row + row, end - row,
                                  s->panel * FG_PANEL_OUTPUTS, s->panels);
        }
        if (s->panel == b->first_panel) { /* here products cover the way of what is stored */
            widen_rows(b, s, row, end);
        }
        tiles[end - row - TILE_ROWS_LEAST](
            &t, (const ready_row *)b->row_blocks + (size_t)row * s->blocks, totals + row);
        t.ask += t.ask_lines * s->blocks * PAIR_BYTES;
        if (s->last) { /* outputs come from memory: the next tile covers their way */
            put_tile(b, s, row, end, (const float_sums *)(totals + row));
        }
    }
}

static void run_batch(batch *b)
{
    uint32_t twos = (b->end_panel - b->first_panel + 1) / TILE_PANELS;
    for (uint32_t i = 0; i < twos; i++) {
        memset(b->totals[i], 0, b->rows * sizeof b->totals[i][0]);
    }
    for (slice s = { .pair = 0 }; s.pair < b->row_pairs; s.pair += s.pairs) {
        size_t left = b->row_pairs - s.pair;
        s.last = left <= SLICE_PAIRS;
        s.pairs = s.last ? left : SLICE_PAIRS;
        s.blocks = (uint32_t)((s.pairs + BLOCK_PAIRS - 1) / BLOCK_PAIRS);
        for (s.panel = b->first_panel; s.panel < b->end_panel; s.panel += s.panels) {
            s.panels = b->end_panel - s.panel > 1 ? TILE_PANELS : 1;
            run_slice(b, &s);
        }
    }
}

void fg_cpu_avx512_linear_wide(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                               uint32_t first, uint32_t count)
{
    const fg_panels *w = &linear->weight;
    batch b; /* 210 KB that need no zeros */
    b.linear = linear;
    b.stride = fg_pair_stride(w->columns);
    b.row_pairs = fg_panel_pairs(w->columns);
    b.panel_bytes = fg_panel_bytes(w->type, w->columns);
    uint32_t batches = (rows + BATCH_ROWS - 1) / BATCH_ROWS;
    for (b.first_panel = first; b.first_panel < first + count; b.first_panel = b.end_panel) {
        uint32_t left = first + count - b.first_panel;
        b.end_panel = b.first_panel + (left < TOGETHER ? left : TOGETHER);
        for (uint32_t i = 0; i < batches; i++) {
            b.first_row = rows * i / batches;
            b.rows = rows * (i + 1) / batches - b.first_row;
            b.pairs = in->pairs + b.first_row * b.stride;
            b.tiles = (b.rows + TILE_ROWS - 1) / TILE_ROWS;
            run_batch(&b);
        }
    }
}

bool fg_cpu_avx512_is_wide(uint32_t rows)
{
    return fg_avx512_shares_pipes() && rows >= LEAST_ROWS;
}
#endif
