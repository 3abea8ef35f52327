/*
 * Matrix products with AMX and BF16 weights. A tile instruction multiplies up to sixteen rows with 32 columns of
 * sixteen outputs as ops.h has it: a chain of the lower halves, one of the upper, and the sum of both added to the
 * output. So pairs are columns 16 apart here, of activations from the start (product_pairs) and of weights in a slice
 * of some panels, which all rows of a batch pass.
 *
 * Two strips of rows by two panels are four tiles of sums, for which each load serves two products; a single strip
 * meets four panels, as memory gives more when several are read at once. Where a batch is no more than
 * that, its sums stay in their tiles from the first slice to the last. Of long rows so many columns at a time pass
 * several panels as stay in the second-level cache (FG_AMX_PAIR_COLUMNS). While one slice is multiplied, the next
 * one is asked for.
 *
 * Few rows wait for memory, which gives more when weights are read in one go: they take fmas.
 */
#include "kernels/cpu/amx.h"
#include "kernels/cpu/avx512.h"

enum { STRIP_ROWS = FG_AMX_ROWS, TOGETHER = 2, SUM_TILES = 4, BATCH_STRIPS = 32, BATCH_SUMS = 128 };
/* Pairs of a block of 32 columns; what is laid out at a time, which stays in the first-level cache. */
enum { BLOCK = 2 * FG_CPU_CHAIN_PAIRS, SLICE_BLOCKS = 16 /* of all panels */ };
enum { PAIR_BYTES = FG_PANEL_OUTPUTS * 4, BLOCK_BYTES = BLOCK * PAIR_BYTES };

_Static_assert((int)BLOCK == (int)FG_AMX_ROWS && (int)PAIR_BYTES == (int)FG_AMX_ROW_BYTES,
               "a block fills a tile");

typedef float strip_sums[STRIP_ROWS][FG_PANEL_OUTPUTS];

/* Some rows of a product against some panels. */
typedef struct batch {
    const fg_linear *linear;
    const uint32_t *pairs; /* of the first row */
    size_t stride;
    uint32_t first;
    uint32_t count;
    uint32_t strip_count;
    uint32_t strip_rows; /* the last strip may begin within the one before it */
    const uint8_t *data; /* of the first panel */
    size_t panel_bytes;
    uint32_t panel;  /* the first */
    uint32_t panels; /* of a set, which are multiplied together: 1, 2 or, for one strip, 4 */
    uint32_t sets;
    size_t part;           /* pairs of a row that pass all sets before the next do */
    uint32_t slice_blocks; /* of a panel */
    _Alignas(FG_AMX_ROW_BYTES) uint8_t blocks[SLICE_BLOCKS][BLOCK_BYTES]; /* panel by panel */
    strip_sums sums[BATCH_SUMS]; /* set by set, strip by strip */
} batch;

/* Columns of a set's panels, as pairs. */
typedef struct slice {
    uint32_t set;
    size_t pair;
    size_t end;
} slice;

/* Tiles 0 to 3 hold sums, 4 and 5 rows of activations, 6 and 7 weights. A single strip has one of activations. */
static void configure(uint32_t strip_rows)
{
    fg_amx_config config = { .palette = 1 };
    for (int tile = 0; tile < FG_AMX_TILES; tile++) {
        config.row_bytes[tile] = FG_AMX_ROW_BYTES;
        config.rows[tile] = (uint8_t)(tile < 6 ? strip_rows : BLOCK);
    }
    fg_amx_see_memory(&config);
    _tile_loadconfig(&config);
}

/* ---- slices ---- */

FG_AVX512_INLINE __m512i pair_or_zero(const uint8_t *at, size_t index, size_t count)
{
    return index < count ? _mm512_loadu_si512(at + index * PAIR_BYTES) : _mm512_setzero_si512();
}

/* Where a slice's weights are, in the first panel of its set. */
static const uint8_t *weights_of(const batch *b, const slice *at)
{
    return b->data + (size_t)at->set * b->panels * b->panel_bytes + at->pair * PAIR_BYTES;
}

/* As whole blocks: panel by panel, so that several are on their way from memory. */
static void lay_out(batch *b, const slice *of)
{
    const uint8_t *panels = weights_of(b, of);
    size_t count = of->end - of->pair;
    for (size_t first = 0; first < count; first += BLOCK, panels += BLOCK_BYTES) {
        for (uint32_t p = 0; p < b->panels; p++) {
            const uint8_t *at = panels + p * b->panel_bytes;
            uint8_t *rows = b->blocks[p * b->slice_blocks + first / BLOCK];
#pragma GCC unroll 8
            for (size_t i = 0; i < BLOCK / 2; i++) {
                /* Columns 2i, 2i + 1 and 16 + 2i, 17 + 2i. */
                fg_avx512_set_apart(pair_or_zero(at, i, count - first),
                                    pair_or_zero(at, i + BLOCK / 2, count - first),
                                    rows + 2 * i * PAIR_BYTES, rows + (2 * i + 1) * PAIR_BYTES);
            }
        }
    }
    fg_amx_see_memory(b->blocks);
}

/* ---- products ---- */

/* The strips of one turn and what they read of a slice. */
typedef struct turn {
    const uint32_t *rows[TOGETHER];
    size_t stride_bytes;
    size_t blocks;
    const uint8_t *weights;
    size_t panel_bytes; /* from one panel's blocks to the next */
    /* What is asked for meanwhile, in each panel: so many lines for every block. */
    const uint8_t *ask;
    size_t ask_lines;
    size_t ask_bytes; /* from one panel to the next */
} turn;

/* S strips by P panels; their tiles of sums hold what came before. */
FG_AVX512_INLINE void multiply(int S, int P, const turn *t)
{
    const uint8_t *weights = t->weights;
    const uint8_t *ask = t->ask;
    for (size_t b = 0; b < t->blocks; b++, weights += BLOCK_BYTES) {
        _tile_loadd(4, t->rows[0] + b * BLOCK, t->stride_bytes);
        _tile_loadd(6, weights, PAIR_BYTES);
        _tile_dpbf16ps(0, 4, 6);
        if (P > 1) {
            _tile_loadd(7, weights + t->panel_bytes, PAIR_BYTES);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (P > 2) {
            _tile_loadd(6, weights + 2 * t->panel_bytes, PAIR_BYTES);
            _tile_dpbf16ps(2, 4, 6);
            _tile_loadd(7, weights + 3 * t->panel_bytes, PAIR_BYTES);
            _tile_dpbf16ps(3, 4, 7);
        }
        if (S > 1) {
            _tile_loadd(5, t->rows[1] + b * BLOCK, t->stride_bytes);
            _tile_dpbf16ps(2, 5, 6);
        }
        if (S > 1 && P > 1) {
            _tile_dpbf16ps(3, 5, 7);
        }
        for (size_t i = 0; i < t->ask_lines; i++, ask += FG_AMX_ROW_BYTES) {
#pragma GCC unroll 4
            for (int p = 0; p < P; p++) {
                _mm_prefetch((const char *)ask + (size_t)p * t->ask_bytes, _MM_HINT_T1);
            }
        }
    }
}

static void multiply_turn(uint32_t strips, uint32_t panels, const turn *t)
{
    if (strips > 1 && panels > 1) {
        multiply(2, 2, t);
    } else if (strips > 1) {
        multiply(2, 1, t);
    } else if (panels > 2) {
        multiply(1, 4, t);
    } else if (panels > 1) {
        multiply(1, 2, t);
    } else {
        multiply(1, 1, t);
    }
}

static void begin_sums(void)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

/* Where the tiles' sums are kept: those of the first strip, then those of the second from tile 2 on. */
typedef strip_sums *kept_sums[SUM_TILES];

static void load_sums(const kept_sums kept)
{
    _tile_loadd(0, kept[0], FG_AMX_ROW_BYTES);
    _tile_loadd(1, kept[1], FG_AMX_ROW_BYTES);
    _tile_loadd(2, kept[2], FG_AMX_ROW_BYTES);
    _tile_loadd(3, kept[3], FG_AMX_ROW_BYTES);
}

static void store_sums(const kept_sums kept, uint32_t tiles)
{
    _tile_stored(0, kept[0], FG_AMX_ROW_BYTES);
    if ((tiles & 2) != 0) {
        _tile_stored(1, kept[1], FG_AMX_ROW_BYTES);
    }
    if ((tiles & 4) != 0) {
        _tile_stored(2, kept[2], FG_AMX_ROW_BYTES);
    }
    if ((tiles & 8) != 0) {
        _tile_stored(3, kept[3], FG_AMX_ROW_BYTES);
    }
}

/* A bit for each tile of sums that is used. */
static uint32_t tiles_of(uint32_t strips, uint32_t panels)
{
    uint32_t of_one = panels > 2 ? 15 : panels > 1 ? 3 : 1;
    return strips > 1 ? of_one | of_one << 2 : of_one;
}

/* The first row of a strip in its batch. */
static uint32_t strip_begin(const batch *b, uint32_t index)
{
    return fg_amx_strip_begin(index, b->strip_rows, b->count);
}

static strip_sums *sums_of(batch *b, uint32_t set, uint32_t strip)
{
    return &b->sums[((size_t)set * b->strip_count + strip) * b->panels];
}

/* A strip's sums. Rows that the strip before it has computed as well are put once. */
static void put_strip(batch *b, uint32_t set, uint32_t index)
{
    uint32_t begin = strip_begin(b, index);
    const strip_sums *sums = (const strip_sums *)sums_of(b, set, index);
    for (uint32_t r = index * b->strip_rows - begin; r < b->strip_rows; r++) {
        for (uint32_t i = 0; i < b->panels; i++) {
            uint32_t panel = b->panel + set * b->panels + i;
            fg_avx512_put_panel(b->linear, b->first + begin + r, panel * FG_PANEL_OUTPUTS,
                                _mm512_load_ps(sums[i][r]));
        }
    }
}

/* All rows against a slice, while `ask` is on its way. Outputs come from memory as well: the next strips cover
 * their way. */
static void run_slice(batch *b, const slice *of, const uint8_t *ask)
{
    bool alone = b->strip_count <= TOGETHER;
    bool is_first = of->pair == 0;
    bool is_last = of->end == fg_panel_pairs(b->linear->weight.columns);
    uint32_t turns = (b->strip_count + TOGETHER - 1) / TOGETHER;
    turn t = { .stride_bytes = b->stride * sizeof *b->pairs,
               .blocks = (of->end - of->pair + BLOCK - 1) / BLOCK,
               .weights = b->blocks[0],
               .panel_bytes = (size_t)b->slice_blocks * BLOCK_BYTES,
               .ask = ask,
               .ask_lines = (BLOCK_BYTES / FG_AMX_ROW_BYTES + turns - 1) / turns,
               .ask_bytes = b->panel_bytes };
    for (uint32_t index = 0; index < b->strip_count; index += TOGETHER) {
        uint32_t strips = b->strip_count - index > 1 ? 2 : 1;
        uint32_t tiles = tiles_of(strips, b->panels);
        strip_sums *sums = sums_of(b, of->set, index);
        kept_sums kept = { sums, sums, sums, sums };
        for (uint32_t i = 0; i < strips; i++) {
            t.rows[i] = b->pairs + strip_begin(b, index + i) * b->stride + of->pair;
        }
        for (uint32_t tile = 1; tile < SUM_TILES; tile++) {
            bool of_second = strips > 1 && tile >= 2;
            kept[tile] += of_second ? b->panels + tile - 2 : tile;
        }
        if (is_first) {
            begin_sums();
        } else if (!alone) {
            load_sums(kept);
        }
        multiply_turn(strips, b->panels, &t);
        t.ask += t.blocks * t.ask_lines * FG_AMX_ROW_BYTES;
        if (is_last || !alone) {
            store_sums(kept, tiles);
        }
        if (is_last) {
            fg_amx_see_memory(b->sums);
            for (uint32_t i = 0; i < strips; i++) {
                put_strip(b, of->set, index + i);
            }
        }
    }
}

/* Where the part of the columns ends that `pair` is in. */
static size_t part_end(const batch *b, size_t pair)
{
    size_t count = fg_panel_pairs(b->linear->weight.columns);
    size_t end = (pair / b->part + 1) * b->part;
    return end < count ? end : count;
}

static slice slice_at(const batch *b, uint32_t set, size_t pair)
{
    size_t end = pair + (size_t)b->slice_blocks * BLOCK;
    size_t last = part_end(b, pair);
    return (slice){ .set = set, .pair = pair, .end = end < last ? end : last };
}

/* Of the same panels, then of the next set's, then of the next part of the columns. Behind the last one comes the next
 * batch's first. */
static slice slice_after(const batch *b, const slice *now)
{
    size_t last = part_end(b, now->pair);
    bool whole_row = last == fg_panel_pairs(b->linear->weight.columns);
    if (now->end < last) {
        return slice_at(b, now->set, now->end);
    }
    if (now->set + 1 < b->sets) {
        return slice_at(b, now->set + 1, now->pair / b->part * b->part);
    }
    return whole_row ? slice_at(b, b->sets, 0) : slice_at(b, 0, last);
}

static void run_batch(batch *b)
{
    slice now = slice_at(b, 0, 0);
    while (now.set < b->sets) {
        slice next = slice_after(b, &now);
        lay_out(b, &now);
        run_slice(b, &now, weights_of(b, &next));
        now = next;
    }
}

/* How many panels a batch of so many rows takes, of those that are left. */
static void choose_panels(batch *b, uint32_t left)
{
    b->panels = b->strip_count == 1 && left >= 4 ? 4 : left >= 2 ? 2 : 1;
    uint32_t most = BATCH_SUMS / b->strip_count / b->panels;
    bool whole = b->linear->weight.columns <= FG_AMX_PAIR_COLUMNS || b->strip_count <= TOGETHER;
    b->sets = left / b->panels < most ? left / b->panels : most;
    b->sets = whole ? 1 : b->sets;
    b->part = b->sets > 1 ? FG_AMX_PAIR_COLUMNS / 2 : fg_panel_pairs(b->linear->weight.columns);
    b->slice_blocks = SLICE_BLOCKS / b->panels;
    b->slice_blocks = b->slice_blocks < SLICE_BLOCKS / 2 ? b->slice_blocks : SLICE_BLOCKS / 2;
}

/* ---- few rows ---- */

enum { FEW_ROWS = 4, FEW_PANELS = 4, FEW_SUMS = 8, FEW_AHEAD = 4096 };

FG_AVX512_INLINE __m512 upper_of(__m512i pairs)
{
    return _mm512_castsi512_ps(fg_avx512_upper(pairs));
}

FG_AVX512_INLINE __m512 lower_of(__m512i pairs)
{
    return _mm512_castsi512_ps(fg_avx512_lower(pairs));
}

/* Two columns of a panel, which are neighbours, with the halves of a row's pairs that hold them. */
FG_AVX512_INLINE __m512 add_two(__m512 chain, __m512i weights, __m512 first, __m512 second)
{
    chain = _mm512_fmadd_ps(upper_of(weights), first, chain);
    return _mm512_fmadd_ps(lower_of(weights), second, chain);
}

/* R rows against a block of P panels, of which `left` pairs are there. */
FG_AVX512_INLINE void add_block(int R, int P, const uint8_t *at, size_t panel_bytes, size_t left,
                                const uint32_t *pairs, size_t stride, __m512 sums[FEW_SUMS])
{
    __m512 nears[FEW_SUMS];
    __m512 fars[FEW_SUMS];
#pragma GCC unroll 8
    for (int i = 0; i < R * P; i++) {
        nears[i] = fars[i] = _mm512_setzero_ps();
    }
    for (size_t i = 0; i < BLOCK / 2 && i < left; i++) {
        __m512i near[FEW_PANELS];
        __m512i far[FEW_PANELS];
#pragma GCC unroll 4
        for (int p = 0; p < P; p++) {
            const uint8_t *panel = at + (size_t)p * panel_bytes;
            near[p] = _mm512_loadu_si512(panel + i * PAIR_BYTES);
            far[p] = pair_or_zero(panel, i + BLOCK / 2, left);
            _mm_prefetch((const char *)panel + FEW_AHEAD + 2 * i * PAIR_BYTES, _MM_HINT_T1);
            _mm_prefetch((const char *)panel + FEW_AHEAD + (2 * i + 1) * PAIR_BYTES, _MM_HINT_T1);
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            __m512i even = _mm512_set1_epi32((int32_t)pairs[(size_t)r * stride + 2 * i]);
            __m512i odd = _mm512_set1_epi32((int32_t)pairs[(size_t)r * stride + 2 * i + 1]);
#pragma GCC unroll 4
            for (int p = 0; p < P; p++) {
                int sum = p * R + r;
                nears[sum] = add_two(nears[sum], near[p], upper_of(even), upper_of(odd));
                fars[sum] = add_two(fars[sum], far[p], lower_of(even), lower_of(odd));
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < R * P; i++) {
        sums[i] = _mm512_add_ps(sums[i], _mm512_add_ps(nears[i], fars[i]));
    }
}

FG_AVX512_INLINE void multiply_few(int R, int P, const fg_linear *linear, const fg_activations *in,
                                   uint32_t panel)
{
    const fg_panels *w = &linear->weight;
    size_t panel_bytes = fg_panel_bytes(w->type, w->columns);
    size_t stride = fg_pair_stride(w->columns);
    size_t count = fg_panel_pairs(w->columns);
    const uint8_t *at = (const uint8_t *)w->data + panel * panel_bytes;
    __m512 sums[FEW_SUMS];
#pragma GCC unroll 8
    for (int i = 0; i < R * P; i++) {
        sums[i] = _mm512_setzero_ps();
    }
    for (size_t pair = 0; pair < count; pair += BLOCK) {
        add_block(R, P, at + pair * PAIR_BYTES, panel_bytes, count - pair, in->pairs + pair, stride,
                  sums);
    }
#pragma GCC unroll 8
    for (int i = 0; i < R * P; i++) {
        fg_avx512_put_panel(linear, (uint32_t)(i % R),
                            (panel + (uint32_t)(i / R)) * FG_PANEL_OUTPUTS, sums[i]);
    }
}

#define FEW_CASE(R, P)                                                                             \
    case (R)*8 + (P):                                                                              \
        multiply_few(R, P, linear, in, panel);                                                     \
        break;

static void run_few(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                    uint32_t panel, uint32_t panels)
{
    switch (rows * 8 + panels) {
        FEW_CASE(1, 1)
        FEW_CASE(1, 2)
        FEW_CASE(1, 4)
        FEW_CASE(2, 1)
        FEW_CASE(2, 2)
        FEW_CASE(2, 4)
        FEW_CASE(3, 1)
        FEW_CASE(3, 2)
        FEW_CASE(4, 1)
        FEW_CASE(4, 2)
    default:
        break;
    }
}

static void linear_of_few(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                          uint32_t first, uint32_t count)
{
    uint32_t most = rows <= 2 ? FEW_PANELS : 2;
    uint32_t panels;
    for (uint32_t panel = first; panel < first + count; panel += panels) {
        uint32_t left = first + count - panel;
        panels = left >= most ? most : left >= 2 ? 2 : 1;
        run_few(linear, in, rows, panel, panels);
    }
}

void fg_cpu_amx_linear_bf16(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                            uint32_t first, uint32_t count)
{
    if (rows <= FEW_ROWS) {
        linear_of_few(linear, in, rows, first, count);
        return;
    }
    batch b;
    b.linear = linear;
    b.stride = fg_pair_stride(linear->weight.columns);
    b.panel_bytes = fg_panel_bytes(linear->weight.type, linear->weight.columns);
    uint32_t batch_count = (rows + BATCH_STRIPS * STRIP_ROWS - 1) / (BATCH_STRIPS * STRIP_ROWS);
    uint32_t batch_rows = (rows + batch_count - 1) / batch_count;
    uint32_t configured = 0;
    for (b.first = 0; b.first < rows; b.first += b.count) {
        b.count = rows - b.first < batch_rows ? rows - b.first : batch_rows;
        b.pairs = in->pairs + b.first * b.stride;
        b.strip_count = (b.count + STRIP_ROWS - 1) / STRIP_ROWS;
        b.strip_rows = (b.count + b.strip_count - 1) / b.strip_count;
        if (configured != b.strip_rows) {
            configure(b.strip_rows);
            configured = b.strip_rows;
        }
        for (b.panel = first; b.panel < first + count; b.panel += b.sets * b.panels) {
            choose_panels(&b, first + count - b.panel);
            b.data = (const uint8_t *)linear->weight.data + b.panel * b.panel_bytes;
            run_batch(&b);
        }
    }
    _tile_release();
}
