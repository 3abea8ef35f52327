/*
 * Matrix products with AMX and quantised weights, over panels of sixteen outputs (kernels/panel.h).
 *
 * One instruction multiplies sixteen rows with a group of a panel, 32 columns of sixteen outputs, and sums in 32 bits,
 * exactly. A group's sums leave their tile through the first-level cache and are scaled and added as ever, a register
 * a row.
 *
 * That takes most of the time: while tile instructions are about, and some 300 cycles longer, the processor starts
 * one operation of 512 bits on floats in a cycle instead of two, but for additions; integers are as quick as ever. So
 * nothing is converted: added to the bits of a large float an integer makes the float that is larger by as much, and
 * taking that large float off leaves the integer, exactly.
 *
 * A slice of some panels is unpacked once for all rows of a batch, which pass in strips of sixteen: as tiles they are
 * made (fg_quant_tile). The rows' sums wait in memory between slices. A product is stored while the next one is
 * multiplied, and scaled some products later, beside the first ones of the next strip or panel.
 *
 * Q6_K has two integer scales in a group, which the sum contains: its codes are multiplied with them first and split
 * into 64 * upper + lower. The upper parts' sums are added to a float 64 times as large, whose last bit counts 64.
 */
#include "kernels/cpu/amx.h"
#include "kernels/cpu/avx512_unpack.h"
#include "kernels/cpu/panel_group.h"

enum { STRIP_ROWS = FG_TILE_ROWS, BATCH_ROWS = 512, BATCH_STRIPS = BATCH_ROWS / STRIP_ROWS };
/* What is unpacked at a time: it stays in the first-level cache while the rows pass. */
enum { SLICE_PANELS = 2, SLICE_GROUPS = 16, SPLIT_GROUPS = SLICE_GROUPS / 2 };
/* Products on their way: each has a tile of sums, and a place in memory. AMX_SPLIT has two for each group. */
enum { RING = 4, SPLIT_RING = RING / 2, SUMS = STRIP_ROWS * FG_PANEL_OUTPUTS };

/* What a product of a group consists of. */
typedef enum amx_kind {
    AMX_PLAIN,
    AMX_MINIMUM, /* the scaled sum and a minimum */
    AMX_SPLIT,   /* 64 times one sum, and another */
    AMX_KINDS
} amx_kind;

/* Codes of a group as a tile reads them: rows of four columns of sixteen outputs. */
typedef int8_t group_codes[VECTORS][VECTOR];

/* A panel's groups as the tiles read them. */
typedef struct amx_slice {
    _Alignas(VECTOR) group_codes codes[SLICE_GROUPS]; /* the second half: AMX_SPLIT's upper parts */
    float d[SLICE_GROUPS][FG_PANEL_OUTPUTS];
    float minimum[SLICE_GROUPS][FG_PANEL_OUTPUTS];
} amx_slice;

typedef __m512 strip_totals[STRIP_ROWS];

/* A strip of rows against a slice of a panel. */
typedef struct amx_unit {
    const fg_quant_tile *rows; /* from the slice's first group on */
    const amx_slice *slice;
    __m512 *totals;
    const uint8_t *ask; /* its share of the weights that come next */
} amx_unit;

/* What the units of a slice have in common. */
typedef struct amx_run {
    uint32_t rows;    /* of a strip */
    size_t count;     /* groups of the slice */
    size_t ask_lines; /* by a unit for every round */
} amx_run;

/* ---- tiles ---- */

/* Tiles 0 to 3 hold sums, 4 and 5 rows of activations, 6 and 7 codes. */
static void configure(void)
{
    fg_amx_config config = { .palette = 1 };
    for (int tile = 0; tile < FG_AMX_TILES; tile++) {
        config.row_bytes[tile] = tile == 4 || tile == 5 ? FG_QUANT_GROUP : VECTOR;
        config.rows[tile] = tile < 6 ? STRIP_ROWS : VECTORS;
    }
    fg_amx_see_memory(&config);
    _tile_loadconfig(&config);
}

/* A group of a unit: what is multiplied, and what its sums are scaled with. */
typedef struct amx_place {
    const fg_quant_tile *rows;
    const group_codes *codes;
    const float *d;
    const uint8_t *ask;
} amx_place;

FG_AVX512_INLINE amx_place place_of(const amx_unit *unit)
{
    return (amx_place){
        .rows = unit->rows, .codes = unit->slice->codes, .d = unit->slice->d[0], .ask = unit->ask
    };
}

enum { MINIMUM = (offsetof(amx_slice, minimum) - offsetof(amx_slice, d)) / sizeof(float) };

/* A place of the ring, and tile of sums, is a group's, or (AMX_SPLIT) that of the lower or upper parts of its codes. */
FG_AVX512_INLINE size_t group_of(amx_kind kind, size_t slot)
{
    return kind == AMX_SPLIT ? slot / 2 : slot;
}

FG_AVX512_INLINE size_t codes_of(amx_kind kind, size_t slot)
{
    return kind == AMX_SPLIT ? slot / 2 + slot % 2 * SPLIT_GROUPS : slot;
}

/* What belongs to a slot, from a place on. */
#define MULTIPLY(at, slot, rows_tile, codes_tile)                                                  \
    do {                                                                                           \
        _tile_loadd(rows_tile, (at).rows[group_of(kind, slot)].quants, FG_QUANT_GROUP);            \
        _tile_loadd(codes_tile, (at).codes[codes_of(kind, slot)], VECTOR);                         \
        _tile_zero(slot);                                                                          \
        _tile_dpbssd(slot, rows_tile, codes_tile);                                                 \
    } while (0)

#define STORE(sums, tile) _tile_stored(tile, (sums) + (tile)*SUMS, VECTOR)

/* ---- a strip of rows ---- */

/* Integers, added to the bits of a float so large that its last bit counts as much as they do. */
FG_AVX512_INLINE __m512 added_to(__m512 large, const float *sums)
{
    return _mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_castps_si512(large), _mm512_load_si512(sums)));
}

/* A row's sums of a group, as floats. */
FG_AVX512_INLINE __m512 sums_of(amx_kind kind, const float *sums)
{
    const __m512 ones = _mm512_set1_ps(0x1.8p23f);
    const __m512 of_64 = _mm512_set1_ps(0x1.8p29f);
    __m512 lower = added_to(ones, sums);
    if (kind != AMX_SPLIT) {
        return _mm512_sub_ps(lower, ones);
    }
    /* All of this is exact: 64 * upper - ones, then the sum of both, which is below 2^24. */
    __m512 upper =
        _mm512_sub_ps(added_to(of_64, sums + SUMS), _mm512_set1_ps(0x1.8p29f + 0x1.8p23f));
    return _mm512_add_ps(upper, lower);
}

/* Sums of group g from a place on, scaled, to the totals of R rows. */
FG_AVX512_INLINE void add_sums(amx_kind kind, int R, const amx_place *at, size_t g,
                               const float *sums, strip_totals totals)
{
    const fg_quant_tile *rows = at->rows + g;
    __m512 d = _mm512_load_ps(at->d + g * FG_PANEL_OUTPUTS);
    __m512 minimum = d;
    if (kind == AMX_MINIMUM) {
        minimum = _mm512_load_ps(at->d + MINIMUM + g * FG_PANEL_OUTPUTS);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
        if (kind == AMX_MINIMUM) {
            totals[r] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(rows->offsets[r]), totals[r]);
        }
        __m512 scale = _mm512_mul_ps(d, _mm512_set1_ps(rows->scales[r]));
        __m512 sum = sums_of(kind, sums + r * FG_PANEL_OUTPUTS);
        totals[r] = _mm512_fmadd_ps(scale, sum, totals[r]);
        FG_AVX512_HOLD(totals[r]);
    }
}

FG_AVX512_INLINE void load_totals(int R, const __m512 *from, strip_totals totals)
{
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
        totals[r] = from[r];
    }
}

FG_AVX512_INLINE void store_totals(int R, const strip_totals totals, __m512 *to)
{
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
        to[r] = totals[r];
    }
}

/* Groups of a round. */
FG_AVX512_INLINE size_t ring_of(amx_kind kind)
{
    return kind == AMX_SPLIT ? SPLIT_RING : RING;
}

/* From one round of groups to the next, which may be of the next unit. Weights are asked for all the time, not when they
 * are unpacked: too many at once would have to be waited for. */
FG_AVX512_INLINE void next_round(size_t groups, const amx_run *run, const amx_unit *unit,
                                 size_t *group, amx_place *place)
{
    for (size_t i = 0; i < run->ask_lines; i++, place->ask += VECTOR) {
        _mm_prefetch((const char *)place->ask, _MM_HINT_T1);
    }
    *group += groups;
    if (*group == run->count) {
        *place = place_of(unit + 1);
        return;
    }
    place->rows += groups;
    place->codes += groups;
    place->d += groups * FG_PANEL_OUTPUTS;
}

/* The group whose last slot it is. */
#define ADD(at, slot)                                                                              \
    add_sums(kind, R, at, group_of(kind, slot), sums + ((slot) - (kind == AMX_SPLIT)) * SUMS,      \
             totals)

/* The units' totals grow by whole rounds of four groups, or (AMX_SPLIT) of two. */
FG_AVX512_INLINE void run_rounds(amx_kind kind, int R, const amx_run *run, const amx_unit *unit,
                                 size_t unit_count)
{
    _Alignas(VECTOR) float ring[RING * SUMS];
    float *sums = ring;
    FG_AVX512_HOLD_POINTER(sums);
    strip_totals totals;
    bool split = kind == AMX_SPLIT;
    size_t groups = ring_of(kind);
    size_t group = 0;
    amx_place now = place_of(unit);
    MULTIPLY(now, 0, 4, 6);
    MULTIPLY(now, 1, 5, 7);
    STORE(sums, 0);
    MULTIPLY(now, 2, 4, 6);
    STORE(sums, 1);
    MULTIPLY(now, 3, 5, 7);
    STORE(sums, 2);
    load_totals(R, unit->totals, totals);
    ADD(&now, split ? 1 : 0);
    for (size_t left = unit_count * run->count / groups - 1; left > 0; left--) {
        amx_place before = now;
        next_round(groups, run, unit, &group, &now);
        MULTIPLY(now, 0, 4, 6);
        STORE(sums, 3);
        if (!split) {
            ADD(&before, 1);
        }
        MULTIPLY(now, 1, 5, 7);
        STORE(sums, 0);
        if (!split) {
            ADD(&before, 2);
        }
        MULTIPLY(now, 2, 4, 6);
        STORE(sums, 1);
        ADD(&before, 3);
        if (group == run->count) {
            store_totals(R, totals, unit->totals);
            unit++;
            load_totals(R, unit->totals, totals);
            group = 0;
        }
        MULTIPLY(now, 3, 5, 7);
        STORE(sums, 2);
        ADD(&now, split ? 1 : 0);
    }
    STORE(sums, 3);
    if (!split) {
        ADD(&now, 1);
        ADD(&now, 2);
    }
    ADD(&now, 3);
    store_totals(R, totals, unit->totals);
}

/* What is left of a row, less than a round: a unit's groups are multiplied before those of the unit before it are
 * added. */
FG_AVX512_INLINE void run_rest(amx_kind kind, int R, size_t count, const amx_unit *unit,
                               size_t unit_count)
{
    enum { OF_UNIT = RING * SUMS };
    _Alignas(VECTOR) float ring[2 * OF_UNIT];
    strip_totals totals;
    for (size_t u = 0; u <= unit_count; u++) {
        float *sums = ring + u % 2 * OF_UNIT;
        if (u < unit_count) {
            amx_place now = place_of(unit + u);
            MULTIPLY(now, 0, 4, 6);
            if (kind == AMX_SPLIT || count > 1) {
                MULTIPLY(now, 1, 5, 7);
            }
            STORE(sums, 0);
            if (kind != AMX_SPLIT && count > 2) {
                MULTIPLY(now, 2, 4, 6);
            }
            STORE(sums, 1);
            STORE(sums, 2);
        }
        if (u > 0) {
            amx_place before = place_of(unit + u - 1);
            sums = ring + (u - 1) % 2 * OF_UNIT;
            load_totals(R, unit[u - 1].totals, totals);
            for (size_t g = 0; g < count; g++) {
                add_sums(kind, R, &before, g, sums + g * SUMS, totals);
            }
            store_totals(R, totals, unit[u - 1].totals);
        }
    }
}

FG_AVX512_INLINE void run_units(amx_kind kind, int R, const amx_run *run, const amx_unit *units,
                                size_t unit_count)
{
    if (run->count % ring_of(kind) != 0) {
        run_rest(kind, R, run->count, units, unit_count);
    } else {
        run_rounds(kind, R, run, units, unit_count);
    }
}

/* Multiplied are all sixteen rows of a strip, scaled and added are those that are there and up to three more. */
FG_AVX512_INLINE void choose_rows(amx_kind kind, const amx_run *run, const amx_unit *units,
                                  size_t unit_count)
{
    if (run->rows > 12) {
        run_units(kind, 16, run, units, unit_count);
    } else if (run->rows > 8) {
        run_units(kind, 12, run, units, unit_count);
    } else if (run->rows > 4) {
        run_units(kind, 8, run, units, unit_count);
    } else {
        run_units(kind, 4, run, units, unit_count);
    }
}

typedef void (*units_fn)(const amx_run *run, const amx_unit *units, size_t unit_count);

#define DEFINE_UNITS(name, kind)                                                                   \
    static void name##_units(const amx_run *run, const amx_unit *units, size_t unit_count)         \
    {                                                                                              \
        choose_rows(kind, run, units, unit_count);                                                 \
    }

DEFINE_UNITS(plain, AMX_PLAIN)
DEFINE_UNITS(minimum, AMX_MINIMUM)
DEFINE_UNITS(split, AMX_SPLIT)

static const units_fn kinds[AMX_KINDS] = { plain_units, minimum_units, split_units };

static amx_kind kind_of(uint32_t type)
{
    return type == FG_Q6_K ? AMX_SPLIT : fg_cpu_has_minimum(type) ? AMX_MINIMUM : AMX_PLAIN;
}

/* ---- slices ---- */

/* Columns 4j .. 4j + 3 of a group as signed bytes. */
FG_AVX512_INLINE __m512i signed_codes(uint32_t type, const uint8_t *at, int j)
{
    if (type == FG_Q8_0) {
        return load64(at + (size_t)j * VECTOR);
    }
    char offset = type == FG_Q4_0 ? 8 : type == FG_Q5_0 ? 16 : type == FG_Q6_K ? 32 : 0;
    __m512i codes = unpack(type, at, j);
    return offset == 0 ? codes : _mm512_sub_epi8(codes, _mm512_set1_epi8(offset));
}

/* Q6_K: signed codes times the scales of their lanes, 64 * upper + lower, both within a byte. */
FG_AVX512_INLINE void split_codes(__m512i codes, __m512i scales, int8_t *lower, int8_t *upper)
{
    __m512i twice = _mm512_or_si512(_mm512_slli_epi32(scales, 16),
                                    _mm512_and_si512(scales, _mm512_set1_epi32(0xFFFF)));
    __m512i even = _mm512_srai_epi16(_mm512_slli_epi16(codes, 8), 8);
    __m512i odd = _mm512_srai_epi16(codes, 8);
    even = _mm512_mullo_epi16(even, twice);
    odd = _mm512_mullo_epi16(odd, twice);
    const __m512i low = _mm512_set1_epi16(255);
    __m512i upper_even = _mm512_srai_epi16(even, 6);
    __m512i upper_odd = _mm512_srai_epi16(odd, 6);
    even = _mm512_and_si512(even, _mm512_set1_epi16(63));
    odd = _mm512_and_si512(odd, _mm512_set1_epi16(63));
    _mm512_store_si512(lower, _mm512_or_si512(even, _mm512_slli_epi16(odd, 8)));
    _mm512_store_si512(
        upper, _mm512_or_si512(_mm512_and_si512(upper_even, low), _mm512_slli_epi16(upper_odd, 8)));
}

/* `count` groups of a panel, from the `first` on. */
FG_AVX512_INLINE void unpack_slice(uint32_t type, const uint8_t *panel, size_t first, size_t count,
                                   amx_slice *slice)
{
    const fg_panel_shape shape = fg_panel_shape_of(type, 256);
    for (size_t g = 0; g < count; g++) {
        size_t in_unit = (first + g) % shape.unit_groups;
        const uint8_t *scales = panel + fg_panel_unit_offset(&shape, first + g);
        const uint8_t *codes = panel + fg_panel_codes_offset(&shape, first + g);
        factors f = scales_of(type, scales, in_unit);
        _mm512_store_ps(slice->d[g], f.d);
        if (fg_cpu_has_minimum(type)) {
            _mm512_store_ps(slice->minimum[g], f.minimum);
        }
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; j++) {
            __m512i vector = signed_codes(type, codes, j);
            if (type == FG_Q6_K) {
                split_codes(vector, j < VECTORS / 2 ? f.first : f.second, slice->codes[g][j],
                            slice->codes[g + SPLIT_GROUPS][j]);
            } else {
                _mm512_store_si512(slice->codes[g][j], vector);
            }
        }
    }
}

typedef void (*unpack_fn)(const uint8_t *panel, size_t first, size_t count, amx_slice *slice);

#define DEFINE_UNPACK(name, type)                                                                  \
    static void name##_unpack(const uint8_t *panel, size_t first, size_t count, amx_slice *slice)  \
    {                                                                                              \
        unpack_slice(type, panel, first, count, slice);                                            \
    }

FG_CPU_EACH_QUANTIZED(DEFINE_UNPACK)

#define UNPACK_CASE(name, type)                                                                    \
    case type:                                                                                     \
        return name##_unpack;

/* NULL: not a quantised type. */
static unpack_fn unpack_of(uint32_t type)
{
    switch (type) {
        FG_CPU_EACH_QUANTIZED(UNPACK_CASE)
    default:
        return NULL;
    }
}

/* With fewer rows unpacking is not worth its time. */
static uint32_t rows_least(uint32_t type)
{
    return type == FG_Q8_0 ? 28 : type == FG_Q6_K ? 24 : FG_AMX_TILE_ROWS_LEAST;
}

/* ---- products ---- */

/* Some rows of a product, BATCH_ROWS at most, against some panels. */
typedef struct batch {
    uint32_t first;
    uint32_t count;
    uint32_t panels;
    uint32_t strip_count;
    amx_slice slices[SLICE_PANELS];
    strip_totals totals[SLICE_PANELS][BATCH_STRIPS];
} batch;

static uint32_t rows_of_strip(const batch *b, uint32_t index)
{
    uint32_t left = b->count - index * STRIP_ROWS;
    return left < STRIP_ROWS ? left : STRIP_ROWS;
}

/* Groups of some panels, and what comes next: the first panel's next groups, or what lies behind the last panel. */
typedef struct part {
    size_t first;
    size_t count;
    const uint8_t *ask;
    size_t ask_stride; /* from panel to panel */
    size_t ask_lines;  /* of a panel */
} part;

/* Strips of sixteen rows, then the one that has fewer. */
static void run_slice(uint32_t type, const fg_activations *in, const part *of, batch *b)
{
    size_t group_count = in->columns / FG_QUANT_GROUP;
    size_t rounds = of->count / ring_of(kind_of(type));
    amx_run run = { .rows = STRIP_ROWS, .count = of->count };
    if (rounds > 0) {
        size_t asking = b->strip_count * rounds;
        run.ask_lines = (of->ask_lines + asking - 1) / asking;
    }
    const fg_quant_tile *rows = in->quant_tiles + b->first / STRIP_ROWS * group_count + of->first;
    amx_unit units[SLICE_PANELS * BATCH_STRIPS];
    size_t unit_count = 0;
    for (uint32_t index = 0; index < b->strip_count; index++, rows += group_count) {
        size_t asked = index * rounds * run.ask_lines * VECTOR;
        for (uint32_t i = 0; i < b->panels; i++) {
            units[unit_count++] = (amx_unit){ .rows = rows,
                                              .slice = &b->slices[i],
                                              .totals = b->totals[i][index],
                                              .ask = of->ask + i * of->ask_stride + asked };
        }
    }
    units_fn run_all = kinds[kind_of(type)];
    uint32_t last_rows = rows_of_strip(b, b->strip_count - 1);
    size_t short_units = last_rows < STRIP_ROWS ? b->panels : 0;
    size_t whole_units = unit_count - short_units;
    if (whole_units > 0) {
        run_all(&run, units, whole_units);
    }
    if (short_units > 0) {
        run.rows = last_rows;
        run_all(&run, units + whole_units, short_units);
    }
}

static void run_batch(const fg_panels *w, const fg_activations *in, uint32_t panel, batch *b)
{
    const fg_panel_shape shape = fg_panel_shape_of(w->type, w->columns);
    unpack_fn unpack_groups = unpack_of(w->type);
    size_t group_count = w->columns / FG_QUANT_GROUP;
    size_t slice_groups = kind_of(w->type) == AMX_SPLIT ? SPLIT_GROUPS : SLICE_GROUPS;
    size_t ring = ring_of(kind_of(w->type));
    size_t slice_bytes = fg_panel_unit_offset(&shape, slice_groups);
    const uint8_t *panels = (const uint8_t *)w->data + panel * shape.panel_bytes;
    for (uint32_t i = 0; i < b->panels; i++) {
        memset(b->totals[i], 0, b->strip_count * sizeof b->totals[i][0]);
    }
    for (size_t group = 0, count; group < group_count; group += count) {
        size_t left = group_count - group;
        size_t whole = left / ring * ring;
        count = left > slice_groups ? slice_groups : whole > 0 ? whole : left;
        size_t ask = left > slice_groups ? fg_panel_unit_offset(&shape, group + slice_groups)
                                         : b->panels * shape.panel_bytes;
        part now = { .first = group,
                     .count = count,
                     .ask = panels + ask,
                     .ask_stride = shape.panel_bytes,
                     .ask_lines = (slice_bytes + VECTOR - 1) / VECTOR };
        for (uint32_t i = 0; i < b->panels; i++) {
            unpack_groups(panels + i * shape.panel_bytes, group, count, &b->slices[i]);
        }
        fg_amx_see_memory(b->slices);
        run_slice(w->type, in, &now, b);
    }
}

static void put_batch(const fg_linear *linear, const batch *b, uint32_t panel)
{
    for (uint32_t index = 0; index < b->strip_count; index++) {
        for (uint32_t r = 0; r < rows_of_strip(b, index); r++) {
            for (uint32_t i = 0; i < b->panels; i++) {
                fg_avx512_put_panel(linear, b->first + index * STRIP_ROWS + r,
                                    (panel + i) * FG_PANEL_OUTPUTS, b->totals[i][index][r]);
            }
        }
    }
}

void fg_cpu_amx_linear(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                       uint32_t first, uint32_t count)
{
    const fg_panels *w = &linear->weight;
    if (w->type == FG_BF16) {
        fg_cpu_amx_linear_bf16(linear, in, rows, first, count);
        return;
    }
    if (unpack_of(w->type) == NULL || rows < rows_least(w->type) || in->quant_tiles == NULL) {
        fg_cpu_avx512_linear(linear, in, rows, first, count);
        return;
    }
    configure();
    batch b;
    for (b.first = 0; b.first < rows; b.first += b.count) {
        b.count = rows - b.first < BATCH_ROWS ? rows - b.first : BATCH_ROWS;
        b.strip_count = (b.count + STRIP_ROWS - 1) / STRIP_ROWS;
        for (uint32_t panel = first; panel < first + count; panel += b.panels) {
            uint32_t left = first + count - panel;
            b.panels = left < SLICE_PANELS ? left : SLICE_PANELS;
            run_batch(w, in, panel, &b);
            put_batch(linear, &b, panel);
        }
    }
    _tile_release();
}
