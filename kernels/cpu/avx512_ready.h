/*
 * avx512_ready - matrix products of many rows whose weights are made ready: the walk of the files that know how
 * (struct ready, make_ready, run_rows, which they define).
 *
 * A slice of two panels is made ready first: codes become bytes, scales what they are multiplied as. It stays in the
 * first-level cache while all rows pass in tiles of six, whose integer sums of both panels are in registers: a row's
 * columns serve both. The rows' float totals wait in memory.
 */
#ifndef FORGE_KERNELS_CPU_AVX512_READY_H
#define FORGE_KERNELS_CPU_AVX512_READY_H

#include "kernels/cpu/avx512_unpack.h"
#include "kernels/cpu/panel_group.h"

#if defined(__AVX512F__) || defined(FG_AVX512_SMALL) /* 512-bit results need it, unless emulated */

enum { TILE_ROWS = 6, TILE_PANELS = 2 };
/* Groups that are ready at a time, of Q6_K 23 KB, and how many where that leaves no small slice behind it; and for how
 * many a tile asks at once: whole units of every type. */
enum { SLICE_USUAL = 16, SLICE_GROUPS = 20, ASK_GROUPS = 8 };
/* Rows whose totals wait. */
enum { BATCH_ROWS = 128 };
/* A batch of so many columns in all is not in the second-level cache: a few pairs of panels pass a slice of it before the
 * next one. */
enum { LARGE_BATCH = 512 << 10, TOGETHER = 4 };

typedef __m512 float_sums[TILE_ROWS][TILE_PANELS];
typedef __m512i int_sums[TILE_ROWS][TILE_PANELS];

typedef struct ready ready;

/* Some rows against a slice. */
typedef struct tile {
    const ready *weights;
    bool begins; /* totals, from zero */
    size_t groups;
    /* Of the first row: its quants, and its fg_quant_group or fg_quant_super. From one row's to the next; of quants it is
     * twice that. */
    const int8_t *quants;
    const char *known;
    size_t row_bytes;
    const uint8_t *ask; /* so many lines of both panels for each ASK_GROUPS, which are read later */
    size_t ask_lines;
    size_t ask_apart;
} tile;
_Static_assert(2 * sizeof(fg_quant_group) == FG_QUANT_GROUP, "rows of groups and of quants");
_Static_assert(2 * sizeof(fg_quant_super) == FG_QUANT_SUPER, "rows of supers and of quants");

/* `groups` groups of a panel, at the first one's scales, as panel i of `out`. */
static void make_ready(uint32_t type, const uint8_t *scales, size_t groups, uint32_t i, ready *out);
static void run_rows(uint32_t type, uint32_t rows, const tile *t, float_sums totals);

typedef __m512 pair_totals[BATCH_ROWS][TILE_PANELS];

/* Some rows against some panels: all of them pass a slice before the next one. */
typedef struct batch {
    const fg_linear *linear;
    const fg_activations *in;
    fg_panel_shape shape;
    size_t groups; /* of a row */
    uint32_t first_panel;
    uint32_t end_panel;
    uint32_t first_row;
    uint32_t rows;
    uint32_t tiles; /* as equal as they can be */
    ready *weights;
    pair_totals totals[TOGETHER];
} batch;

/* Groups of all rows against a pair of panels, or the last panel alone, which is then both. */
typedef struct slice {
    uint32_t panel;
    uint32_t panels;
    size_t first;
    size_t groups;
    bool last;
} slice;

static uint32_t tile_row(const batch *b, uint32_t index)
{
    return b->rows * index / b->tiles;
}

static const uint8_t *unit_at(const batch *b, uint32_t panel, size_t group)
{
    return (const uint8_t *)b->linear->weight.data + panel * b->shape.panel_bytes +
           fg_panel_unit_offset(&b->shape, group);
}

static void put_tile(const batch *b, const slice *s, uint32_t row, uint32_t end, float_sums totals)
{
    const fg_linear *linear = b->linear;
    bool whole = (s->panel + s->panels) * FG_PANEL_OUTPUTS <= linear->weight.outputs;
    if (whole && !linear->accumulate) {
        float *out = linear->out + (size_t)(b->first_row + row) * linear->out_stride +
                     (size_t)s->panel * FG_PANEL_OUTPUTS;
        for (uint32_t r = 0; r < end - row; r++, out += linear->out_stride) {
            for (uint32_t i = 0; i < s->panels; i++) {
                _mm512_storeu_ps(out + (size_t)i * FG_PANEL_OUTPUTS, totals[r][i]);
            }
        }
        return;
    }
    for (uint32_t i = 0; i < s->panels; i++) {
        for (uint32_t r = 0; r < end - row; r++) {
            fg_avx512_put_panel(linear, b->first_row + row + r, (s->panel + i) * FG_PANEL_OUTPUTS,
                                totals[r][i]);
        }
    }
}

static size_t groups_from(const batch *b, size_t first)
{
    size_t left = b->groups - first;
    return left <= SLICE_GROUPS ? left : SLICE_USUAL;
}

/* What is read after a slice, in lines of a panel. */
static const uint8_t *after_slice(const batch *b, const slice *s, size_t *lines_out)
{
    uint32_t next = s->panel + s->panels;
    bool same = next < b->end_panel;
    size_t first = same ? s->first : s->last ? 0 : s->first + s->groups;
    size_t size_bytes = groups_from(b, first) * b->shape.panel_bytes / b->groups;
    *lines_out = (size_bytes + VECTOR - 1) / VECTOR;
    return unit_at(b, same || s->last ? next : b->first_panel, first);
}

/* The rows' part of a slice, from `row` of the batch on. */
static void begin_tile(const batch *b, const slice *s, uint32_t row, tile *t)
{
    const char *known = fg_cpu_is_super(b->linear->weight.type) ? (const char *)b->in->supers
                                                                : (const char *)b->in->groups;
    size_t column =
        (size_t)(b->first_row + row) * b->groups * FG_QUANT_GROUP + s->first * FG_QUANT_GROUP;
    t->quants = b->in->quants + column;
    t->known = known + column / 2;
}

/* Each tile asks for its share of what follows. */
static void run_slice(batch *b, const slice *s)
{
    size_t lines;
    const uint8_t *ask = after_slice(b, s, &lines);
    size_t turns = b->tiles * ((s->groups + ASK_GROUPS - 1) / ASK_GROUPS);
    tile t = { .weights = b->weights,
               .begins = s->first == 0,
               .groups = s->groups,
               .row_bytes = b->groups * sizeof(fg_quant_group),
               .ask = ask,
               .ask_lines = (lines + turns - 1) / turns,
               .ask_apart = ask_apart(b->shape.panel_bytes) };
    uint32_t type = b->linear->weight.type;
    __m512(*totals)[TILE_PANELS] = b->totals[(s->panel - b->first_panel) / TILE_PANELS];
    for (uint32_t i = 0; i < TILE_PANELS; i++) {
        const uint8_t *at = unit_at(b, s->panel + (i < s->panels ? i : 0), s->first);
        make_ready(type, at, s->groups, i, b->weights);
    }
    for (uint32_t index = 0; index < b->tiles; index++) {
        uint32_t row = tile_row(b, index);
        uint32_t end = tile_row(b, index + 1);
        begin_tile(b, s, row, &t);
        if (s->last) {
            fg_avx512_ask_outputs(b->linear, b->first_row + row, end - row,
                                  s->panel * FG_PANEL_OUTPUTS, s->panels);
        }
        if (t.begins && fg_cpu_is_super(type)) { /* whose totals stay in memory */
            memset(totals + row, 0, (end - row) * sizeof *totals);
        }
        run_rows(type, end - row, &t, totals + row);
        t.ask += turns / b->tiles * t.ask_lines * VECTOR;
        if (s->last) { /* outputs come from memory: the next tile covers their way */
            put_tile(b, s, row, end, totals + row);
        }
    }
}

static void run_batch(batch *b)
{
    for (slice s = { .first = 0 }; s.first < b->groups; s.first += s.groups) {
        s.groups = groups_from(b, s.first);
        s.last = s.first + s.groups == b->groups;
        for (s.panel = b->first_panel; s.panel < b->end_panel; s.panel += s.panels) {
            s.panels = b->end_panel - s.panel > 1 ? TILE_PANELS : 1;
            run_slice(b, &s);
        }
    }
}

/* Panels first .. first + count - 1 of a product, for all rows, by way of `weights`. */
static void multiply_ready(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                           uint32_t first, uint32_t count, ready *weights)
{
    const fg_panels *w = &linear->weight;
    uint32_t batches = (rows + BATCH_ROWS - 1) / BATCH_ROWS; /* as equal as they can be */
    size_t batch_rows = rows < BATCH_ROWS ? rows : BATCH_ROWS;
    uint32_t most = TILE_PANELS * (batch_rows * w->columns > LARGE_BATCH ? TOGETHER : 1);
    batch b; /* 64 KB that need no zeros */
    b.linear = linear;
    b.in = in;
    b.weights = weights;
    b.shape = fg_panel_shape_of(w->type, w->columns);
    b.groups = w->columns / FG_QUANT_GROUP;
    for (b.first_panel = first; b.first_panel < first + count; b.first_panel = b.end_panel) {
        uint32_t left = first + count - b.first_panel;
        b.end_panel = b.first_panel + (left < most ? left : most);
        for (uint32_t i = 0; i < batches; i++) {
            b.first_row = rows * i / batches;
            b.rows = rows * (i + 1) / batches - b.first_row;
            b.tiles = (b.rows + TILE_ROWS - 1) / TILE_ROWS;
            run_batch(&b);
        }
    }
}

/* sum += codes * the four columns at `at`, which are the product's memory operand: where everything takes a product's place
 * a load does not, and an instruction less leaves processors room to look ahead. */
FG_AVX512_INLINE void add_product(__m512i *sum, __m512i codes, const int8_t *at)
{
#if defined(FG_AVX512_SMALL)
    *sum = _mm512_dpbusd_epi32(*sum, codes, broadcast4(at));
#else
    typedef int32_t word __attribute__((may_alias, aligned(1)));
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(*sum) : "v"(codes), "m"(*(const word *)at));
#endif
}

/* A group's columns of R rows against both panels. */
FG_AVX512_INLINE void add_products(int R, const __m512i codes[VECTORS][TILE_PANELS],
                                   const int8_t *const rows[TILE_ROWS], int_sums sums)
{
#pragma GCC unroll 8
    for (int j = 0; j < VECTORS; j++) {
        __m512i near = codes[j][0];
        __m512i far = codes[j][1];
        FG_AVX512_HOLD(near);
        FG_AVX512_HOLD(far);
#pragma GCC unroll 6
        for (int r = 0; r < R; r++) {
            add_product(&sums[r][0], near, rows[r] + 4 * j);
            add_product(&sums[r][1], far, rows[r] + 4 * j);
        }
    }
}

/* Asks for what a tile has to for the next ASK_GROUPS. */
FG_AVX512_INLINE const uint8_t *ask_lines(const tile *t, const uint8_t *ask)
{
    for (size_t i = 0; i < t->ask_lines; i++, ask += VECTOR) {
        _mm_prefetch((const char *)ask, _MM_HINT_T1);
        _mm_prefetch((const char *)ask + t->ask_apart, _MM_HINT_T1);
    }
    return ask;
}

/* ---- super-groups ---- */

FG_AVX512_INLINE const fg_quant_super *super_of(const tile *t, size_t super, int r)
{
    const char *row = t->known + (size_t)r * t->row_bytes;
    return (const fg_quant_super *)(const void *)row + super;
}

/* Sums of quants times 16 bits of two groups each, of both panels. */
FG_AVX512_INLINE void multiply_sums(const fg_quant_super *row, const __m512i pairs[][TILE_PANELS],
                                    __m512i sums[TILE_PANELS])
{
    sums[0] = _mm512_setzero_si512();
    sums[1] = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int g = 0; g < FG_QUANT_SUPER_GROUPS; g += 2) {
        __m512i two = broadcast4(row->sums + g);
#pragma GCC unroll 2
        for (int i = 0; i < TILE_PANELS; i++) {
            sums[i] = _mm512_dpwssd_epi32(sums[i], pairs[g / 2][i], two);
        }
    }
}

#endif
#endif
