/*
 * Matrix products with AVX-512 and VNNI of many rows with Q4_K, Q5_K or Q6_K weights, over panels of sixteen outputs
 * (kernels/panel.h). What ops.h says of super-groups, bit for bit as avx512_linear.c does it for few rows.
 *
 * Some super-groups of two panels are made ready first: codes become bytes, integer scales words. They stay in the
 * first-level cache while all rows pass in tiles of six, whose integer sums of both panels are in registers: a row's
 * columns are broadcast once for both, and beside the products there is nothing left that takes a product's place but
 * the multiplication with a group's scale. The rows' float totals wait in memory.
 */
#include "kernels/cpu/avx512_unpack.h"
#include "kernels/cpu/panel_group.h"

enum { TILE_ROWS = 6, TILE_PANELS = 2, TILE_THIRDS = TILE_ROWS / 3 };
/* Rows whose totals wait, and super-groups that are ready at a time: of Q6_K 23 KB. */
enum { BATCH_ROWS = 128, SLICE_SUPERS = 2 };
/* A batch of so many columns in all is not in the second-level cache: a few pairs of panels pass a slice of it before the
 * next one. */
enum { LARGE_BATCH = 512 << 10, TOGETHER = 4 };
/* Fewer rows are quicker with codes that each tile unpacks, which is dearest where they have six bits. (ops_linear.c has
 * SUPER_ROWS, which is not less.) */
enum { LEAST_ROWS = 24, LEAST_ROWS_SIX = 16 };
enum { GROUPS = FG_QUANT_SUPER_GROUPS, HALVES = 2, OFFSET_BITS = 5 };

/* A super-group of two panels. Of Q4_K and Q5_K, scales and begins are of whole groups. */
typedef struct ready {
    __m512i codes[GROUPS][VECTORS][TILE_PANELS];
    __m512i scales[GROUPS][HALVES][TILE_PANELS];
    __m512i minima[GROUPS / 2][TILE_PANELS]; /* of two groups: 16 bits for each output */
    __m512 d[TILE_PANELS];
    __m512 minimum[TILE_PANELS]; /* what minima are multiplied with */
} ready;

/* Some rows against some super-groups. */
typedef struct tile {
    const ready *weights;
    uint32_t supers;
    /* Of the first row. From one row's supers to the next; of quants it is twice that. */
    const int8_t *quants;
    const fg_quant_super *rows;
    size_t row_bytes;
    const uint8_t *ask; /* lines of both panels for each super-group, which are read later */
    size_t ask_lines;
    size_t ask_apart;
} tile;
_Static_assert(2 * sizeof(fg_quant_super) == FG_QUANT_SUPER, "rows of supers and of quants");

typedef __m512 float_sums[TILE_ROWS][TILE_PANELS];
typedef __m512i int_sums[TILE_ROWS][TILE_PANELS];

/* What a tile's rows have of a super-group, next to each other: one register finds all of it. */
typedef struct row_parts {
    int32_t shifts[TILE_ROWS][GROUPS];
    int32_t begins[TILE_ROWS][GROUPS][HALVES]; /* of Q6_K, whose codes are 32 too large */
} row_parts;

static void make_panel(uint32_t type, const uint8_t *scales, int i, ready *out)
{
    const fg_panel_shape shape = fg_panel_shape_of(type, 256);
    const uint8_t *codes = scales + shape.scale_bytes;
    out->d[i] = halves(scales);
    for (size_t g = 0; g < GROUPS; g++, codes += shape.group_bytes) {
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; j++) {
            out->codes[g][j][i] = unpack(type, codes, j);
        }
        out->scales[g][0][i] = integer_scale(type, scales, g, false);
        if (type == FG_Q6_K) {
            out->scales[g][1][i] = integer_scale(type, scales, g, true);
        }
    }
    if (fg_cpu_has_minimum(type)) {
        out->minimum[i] = super_minimum(scales);
        for (size_t g = 0; g < GROUPS; g += 2) {
            out->minima[g / 2][i] = minima_of_two(scales, g);
        }
    }
}

#define MAKE_CASE(name, type)                                                                      \
    case type:                                                                                     \
        make_panel(type, scales, i, out);                                                          \
        break;

static void make_ready(uint32_t type, const uint8_t *scales, int i, ready *out)
{
    switch (type) {
        FG_CPU_EACH_SUPER(MAKE_CASE)
    default:
        break;
    }
}

FG_AVX512_INLINE const fg_quant_super *super_of(const tile *t, uint32_t super, int r)
{
    const char *first = (const char *)(t->rows + super);
    return (const fg_quant_super *)(const void *)(first + (size_t)r * t->row_bytes);
}

FG_AVX512_INLINE void bring_rows(bool six, int R, const tile *t, uint32_t super, row_parts *out)
{
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
        const fg_quant_super *row = super_of(t, super, r);
        __m256i shifts = _mm256_loadu_si256((const __m256i *)(const void *)row->shifts);
        _mm256_storeu_si256((__m256i *)(void *)out->shifts[r], shifts);
        for (int i = 0; six && i < 2; i++) { /* four groups at a time */
            const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
            __m256i places = _mm256_add_epi32(twice, _mm256_set1_epi32(4 * i));
            __m256i by = _mm256_permutevar8x32_epi32(shifts, places);
            __m256i sums = _mm256_cvtepi16_epi32(
                _mm_loadu_si128((const __m128i *)(const void *)row->halves[4 * i]));
            sums = _mm256_slli_epi32(_mm256_srav_epi32(sums, by), OFFSET_BITS);
            _mm256_storeu_si256((__m256i *)(void *)out->begins[r][4 * i],
                                _mm256_sub_epi32(_mm256_setzero_si256(), sums));
        }
    }
}

/* Vectors first .. end - 1 of a group, times their integer scale, which the rows' shifts go into. */
FG_AVX512_INLINE void add_columns(bool six, int R, const ready *w, const row_parts *rows, size_t g,
                                  const int8_t *const thirds[TILE_THIRDS], size_t row_bytes,
                                  int first, int end, int_sums totals)
{
    int half = first != 0;
    int_sums sums;
    __asm__ volatile("" : : : "memory"); /* gcc would begin sums before there is room for them */
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
        __m512i begin = six ? broadcast4(&rows->begins[r][g][half]) : _mm512_setzero_si512();
        sums[r][0] = begin;
        sums[r][1] = begin;
    }
#pragma GCC unroll 8
    for (int j = first; j < end; j++) {
        __m512i codes[TILE_PANELS] = { w->codes[g][j][0], w->codes[g][j][1] };
#pragma GCC unroll 6
        for (int r = 0; r < R; r++) {
            __m512i columns = broadcast_row(thirds[r / 3], row_bytes, r % 3, 4 * j);
#pragma GCC unroll 2
            for (int i = 0; i < TILE_PANELS; i++) {
                sums[r][i] = _mm512_dpbusd_epi32(sums[r][i], codes[i], columns);
            }
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
        __m512i shift = broadcast4(&rows->shifts[r][g]);
        FG_AVX512_HOLD(shift);
#pragma GCC unroll 2
        for (int i = 0; i < TILE_PANELS; i++) {
            __m512i scale = _mm512_sllv_epi32(w->scales[g][half][i], shift);
            totals[r][i] = _mm512_add_epi32(totals[r][i], _mm512_mullo_epi32(sums[r][i], scale));
            FG_AVX512_HOLD(totals[r][i]);
        }
    }
}

/* What the integer minima of a row come to against both panels. */
FG_AVX512_INLINE void add_minima(const fg_quant_super *row, const ready *w,
                                 __m512i sums[TILE_PANELS])
{
    sums[0] = _mm512_setzero_si512();
    sums[1] = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int g = 0; g < GROUPS; g += 2) {
        __m512i pair = broadcast4(row->sums + g);
#pragma GCC unroll 2
        for (int i = 0; i < TILE_PANELS; i++) {
            sums[i] = _mm512_dpwssd_epi32(sums[i], w->minima[g / 2][i], pair);
        }
    }
}

/* Integers become floats: first what minima come to, then the rest. */
FG_AVX512_INLINE void end_super(bool six, int R, const tile *t, uint32_t super, int_sums sums,
                                float_sums totals)
{
    const ready *w = t->weights + super;
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
        const fg_quant_super *row = super_of(t, super, r);
        __m512 scale = _mm512_set1_ps(row->scale);
        __m512i minima[TILE_PANELS];
        if (!six) {
            add_minima(row, w, minima);
        }
#pragma GCC unroll 2
        for (int i = 0; i < TILE_PANELS; i++) {
            __m512 total = totals[r][i];
            if (!six) {
                total = _mm512_fmadd_ps(_mm512_mul_ps(w->minimum[i], scale),
                                        _mm512_cvtepi32_ps(minima[i]), total);
            }
            totals[r][i] = _mm512_fmadd_ps(_mm512_mul_ps(w->d[i], scale),
                                           _mm512_cvtepi32_ps(sums[r][i]), total);
        }
    }
}

/* R rows. `six`: codes have six bits, halves of groups scales of their own, and there are no minima. */
FG_AVX512_INLINE void run_tile(bool six, int R, const tile *t, float_sums totals)
{
    const int8_t *thirds[TILE_THIRDS];
    const uint8_t *ask = t->ask;
#pragma GCC unroll 2
    for (int i = 0; i < (R + 2) / 3; i++) {
        thirds[i] = t->quants + (size_t)i * 6 * t->row_bytes;
    }
    for (uint32_t super = 0; super < t->supers; super++) {
        row_parts rows;
        int_sums sums;
        for (size_t i = 0; i < t->ask_lines; i++, ask += VECTOR) {
            _mm_prefetch((const char *)ask, _MM_HINT_T1);
            _mm_prefetch((const char *)ask + t->ask_apart, _MM_HINT_T1);
        }
        bring_rows(six, R, t, super, &rows);
#pragma GCC unroll 6
        for (int r = 0; r < R; r++) {
            sums[r][0] = _mm512_setzero_si512();
            sums[r][1] = _mm512_setzero_si512();
        }
#pragma GCC unroll 1
        for (size_t g = 0; g < GROUPS; g++) {
            const ready *w = t->weights + super;
            if (six) {
                add_columns(six, R, w, &rows, g, thirds, t->row_bytes, 0, VECTORS / 2, sums);
                add_columns(six, R, w, &rows, g, thirds, t->row_bytes, VECTORS / 2, VECTORS, sums);
            } else {
                add_columns(six, R, w, &rows, g, thirds, t->row_bytes, 0, VECTORS, sums);
            }
#pragma GCC unroll 2
            for (int i = 0; i < (R + 2) / 3; i++) {
                thirds[i] += FG_QUANT_GROUP;
                __asm__("" : "+r"(thirds[i])); /* else they become one pointer again */
            }
        }
        end_super(six, R, t, super, sums, totals);
    }
}

#define DEFINE_TILE(six, R)                                                                        \
    static __attribute__((noinline)) void tile_##six##_##R(const tile *t, float_sums totals)       \
    {                                                                                              \
        run_tile(six, R, t, totals);                                                               \
    }
#define EACH_TILE(X, six) X(six, 1) X(six, 2) X(six, 3) X(six, 4) X(six, 5) X(six, 6)
EACH_TILE(DEFINE_TILE, 0)
EACH_TILE(DEFINE_TILE, 1)

#define TILE_ENTRY(six, R) tile_##six##_##R,
static void (*const tiles[2][TILE_ROWS])(const tile *t,
                                         float_sums totals) = { { EACH_TILE(TILE_ENTRY, 0) },
                                                                { EACH_TILE(TILE_ENTRY, 1) } };

typedef __m512 pair_totals[BATCH_ROWS][TILE_PANELS];

/* Some rows against some panels: all of them pass a slice before the next one. */
typedef struct batch {
    const fg_linear *linear;
    const fg_activations *in;
    fg_panel_shape shape;
    uint32_t supers; /* of a row */
    uint32_t first_panel;
    uint32_t end_panel;
    uint32_t first_row;
    uint32_t rows;
    uint32_t tiles; /* as equal as they can be */
    ready weights[SLICE_SUPERS];
    pair_totals totals[TOGETHER];
} batch;

/* Super-groups of all rows against a pair of panels, or the last panel alone, which is then both. */
typedef struct slice {
    uint32_t panel;
    uint32_t panels;
    uint32_t first;
    uint32_t supers;
    bool last;
} slice;

static uint32_t tile_row(const batch *b, uint32_t index)
{
    return b->rows * index / b->tiles;
}

static const uint8_t *unit_at(const batch *b, uint32_t panel, uint32_t super)
{
    return (const uint8_t *)b->linear->weight.data + panel * b->shape.panel_bytes +
           super * b->shape.unit_bytes;
}

static void put_tile(const batch *b, const slice *s, uint32_t row, uint32_t end, float_sums totals)
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
    return next < b->end_panel ? unit_at(b, next, s->first)
           : s->last           ? unit_at(b, next, 0)
                               : unit_at(b, b->first_panel, s->first + s->supers);
}

static void make_slice(batch *b, const slice *s)
{
    for (uint32_t super = 0; super < s->supers; super++) {
        for (uint32_t i = 0; i < TILE_PANELS; i++) {
            make_ready(b->linear->weight.type,
                       unit_at(b, s->panel + (i < s->panels ? i : 0), s->first + super), (int)i,
                       &b->weights[super]);
        }
    }
}

/* Each tile asks for its share of what follows. */
static void run_slice(batch *b, const slice *s)
{
    size_t lines = s->supers * b->shape.unit_bytes / VECTOR;
    size_t turns = (size_t)b->tiles * s->supers;
    tile t = { .weights = b->weights,
               .supers = s->supers,
               .row_bytes = b->supers * sizeof(fg_quant_super),
               .ask = after_slice(b, s),
               .ask_lines = (lines + turns - 1) / turns,
               .ask_apart = ask_apart(b->shape.panel_bytes) };
    __m512(*totals)[TILE_PANELS] = b->totals[(s->panel - b->first_panel) / TILE_PANELS];
    make_slice(b, s);
    for (uint32_t index = 0; index < b->tiles; index++) {
        uint32_t row = tile_row(b, index);
        uint32_t end = tile_row(b, index + 1);
        size_t super = (size_t)(b->first_row + row) * b->supers + s->first;
        t.rows = b->in->supers + super;
        t.quants = b->in->quants + super * FG_QUANT_SUPER;
        if (s->last) {
            fg_avx512_ask_outputs(b->linear, b->first_row + row, end - row,
                                  s->panel * FG_PANEL_OUTPUTS, s->panels);
        }
        tiles[b->linear->weight.type == FG_Q6_K][end - row - 1](&t, totals + row);
        t.ask += t.ask_lines * s->supers * VECTOR;
        if (s->last) { /* outputs come from memory: the next tile covers their way */
            put_tile(b, s, row, end, totals + row);
        }
    }
}

static void run_batch(batch *b)
{
    uint32_t pairs = (b->end_panel - b->first_panel + 1) / TILE_PANELS;
    for (uint32_t i = 0; i < pairs; i++) {
        memset(b->totals[i], 0, b->rows * sizeof b->totals[i][0]);
    }
    for (slice s = { .first = 0 }; s.first < b->supers; s.first += s.supers) {
        uint32_t left = b->supers - s.first;
        s.supers = left < SLICE_SUPERS ? left : SLICE_SUPERS;
        s.last = s.supers == left;
        for (s.panel = b->first_panel; s.panel < b->end_panel; s.panel += s.panels) {
            s.panels = b->end_panel - s.panel > 1 ? TILE_PANELS : 1;
            run_slice(b, &s);
        }
    }
}

bool fg_cpu_avx512_makes_ready(uint32_t type, uint32_t rows)
{
    return fg_cpu_is_super(type) && rows >= (type == FG_Q6_K ? LEAST_ROWS_SIX : LEAST_ROWS);
}

void fg_cpu_avx512_linear_super(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                                uint32_t first, uint32_t count)
{
    const fg_panels *w = &linear->weight;
    size_t batch_rows = rows < BATCH_ROWS ? rows : BATCH_ROWS;
    uint32_t most = TILE_PANELS * (batch_rows * w->columns > LARGE_BATCH ? TOGETHER : 1);
    batch b; /* 90 KB that need no zeros */
    b.linear = linear;
    b.in = in;
    b.shape = fg_panel_shape_of(w->type, w->columns);
    b.supers = w->columns / FG_QUANT_SUPER;
    for (b.first_panel = first; b.first_panel < first + count; b.first_panel = b.end_panel) {
        uint32_t left = first + count - b.first_panel;
        b.end_panel = b.first_panel + (left < most ? left : most);
        for (b.first_row = 0; b.first_row < rows; b.first_row += b.rows) {
            uint32_t rows_left = rows - b.first_row;
            b.rows = rows_left < BATCH_ROWS ? rows_left : BATCH_ROWS;
            b.tiles = (b.rows + TILE_ROWS - 1) / TILE_ROWS;
            run_batch(&b);
        }
    }
}
