/*
 * Matrix products with AMX and quantised weights, over panels of sixteen outputs (kernels/panel.h).
 *
 * One instruction multiplies up to sixteen rows with a group of a panel, 32 columns of sixteen outputs. Codes and
 * activations are integers that bf16 holds, and sums of their products integers that float holds, so tdpbf16ps sums
 * them exactly and in any order. A group's sums leave their tile through the first-level cache and are scaled and
 * added as ever, a register a row.
 *
 * While tile instructions are about, and some 300 cycles longer, the processor starts one operation of 512 bits on
 * floats in a cycle instead of two: what a group's sums take afterwards is what takes the time. Sums of bytes
 * (tdpbssd) would have to be converted as well, three operations a row instead of two.
 *
 * A slice of some panels is unpacked once for all rows of a batch, which pass in strips of sixteen: as tiles they are
 * made (fg_quant_tile). The rows' sums wait in memory between slices. A product is stored while the next one is
 * multiplied, and scaled three products later, beside the first ones of the next strip or panel.
 *
 * Q6_K has two integer scales in a group, which the sum contains: its codes are multiplied with them first and split
 * into what bf16 holds of them and the rest.
 */
#include "kernels/cpu/amx.h"
#include "kernels/cpu/avx512_unpack.h"
#include "kernels/cpu/panel_group.h"

enum { STRIP_ROWS = FG_TILE_ROWS, BATCH_ROWS = 512, BATCH_STRIPS = BATCH_ROWS / STRIP_ROWS };
/* What is unpacked at a time: it stays in the first-level cache while the rows pass. */
enum { SLICE_PANELS = 2, SLICE_GROUPS = 8, SPLIT_GROUPS = 4, GROUP_PAIRS = FG_QUANT_GROUP / 2 };
/* Products on their way: each has a tile of sums, and a place in memory. */
enum { RING = 4, BEHIND = 3 };

_Static_assert(SLICE_GROUPS % RING == 0 && SPLIT_GROUPS % RING == 0,
               "a whole slice is whole rounds");

/* What a product of a group consists of. */
typedef enum amx_kind {
    AMX_PLAIN,
    AMX_MINIMUM, /* the scaled sum and a minimum */
    AMX_SPLIT,   /* of two products */
    AMX_KINDS
} amx_kind;

/* Codes of a group as a tile reads them: the pairs of an fg_quant_tile, each of sixteen outputs. */
typedef uint32_t group_codes[GROUP_PAIRS][FG_PANEL_OUTPUTS];

/* A panel's groups as the tiles read them. */
typedef struct amx_slice {
    _Alignas(VECTOR)
        group_codes codes[2 * SLICE_GROUPS]; /* the second half: AMX_SPLIT's upper parts */
    float d[SLICE_GROUPS][FG_PANEL_OUTPUTS];
    float minimum[SLICE_GROUPS][FG_PANEL_OUTPUTS];
} amx_slice;

typedef __m512 strip_totals[STRIP_ROWS];

/* A strip of rows against a slice of a panel. */
typedef struct amx_unit {
    const fg_quant_tile *rows; /* from the slice's first group on */
    const amx_slice *slice;
    __m512 *totals;
} amx_unit;

/* ---- tiles ---- */

/* Tiles 0 to 3 hold sums, 4 and 5 rows of activations, 6 and 7 codes. */
static void configure(void)
{
    fg_amx_config config = { .palette = 1 };
    for (int tile = 0; tile < FG_AMX_TILES; tile++) {
        config.row_bytes[tile] = FG_AMX_ROW_BYTES;
        config.rows[tile] = FG_AMX_ROWS;
    }
    fg_amx_see_memory(&config);
    _tile_loadconfig(&config);
}

/* A group of a unit: what is multiplied, and what its sums are scaled with. */
typedef struct amx_place {
    const fg_quant_tile *rows;
    const group_codes *codes;
    const float *d;
} amx_place;

FG_AVX512_INLINE amx_place place_of(const amx_unit *unit)
{
    return (amx_place){ .rows = unit->rows, .codes = unit->slice->codes, .d = unit->slice->d[0] };
}

enum { MINIMUM = (offsetof(amx_slice, minimum) - offsetof(amx_slice, d)) / sizeof(float) };

/* Group g from a place on, into a tile of sums. */
#define MULTIPLY(kind, at, g, sums_tile, rows_tile, codes_tile)                                    \
    do {                                                                                           \
        _tile_loadd(rows_tile, (at).rows[g].pairs, VECTOR);                                        \
        _tile_loadd(codes_tile, (at).codes[g], VECTOR);                                            \
        _tile_zero(sums_tile);                                                                     \
        if ((kind) == AMX_SPLIT) {                                                                 \
            _tile_dpbf16ps(sums_tile, rows_tile, codes_tile);                                      \
            _tile_loadd(codes_tile, (at).codes[(g) + SLICE_GROUPS], VECTOR);                       \
        }                                                                                          \
        _tile_dpbf16ps(sums_tile, rows_tile, codes_tile);                                          \
    } while (0)

#define STORE(sums, tile) _tile_stored(tile, (sums) + (tile)*STRIP_ROWS * FG_PANEL_OUTPUTS, VECTOR)

/* ---- a strip of rows ---- */

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
        totals[r] = _mm512_fmadd_ps(scale, _mm512_load_ps(sums + r * FG_PANEL_OUTPUTS), totals[r]);
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

#define ADD(at, g) add_sums(kind, R, at, g, sums + ((g) % RING) * SUMS, totals)

/* The units' totals grow by so many rounds. */
FG_AVX512_INLINE void run_rounds(amx_kind kind, int R, size_t rounds, const amx_unit *unit,
                                 size_t unit_count)
{
    enum { SUMS = STRIP_ROWS * FG_PANEL_OUTPUTS };
    _Alignas(VECTOR) float ring[RING * SUMS];
    float *sums = ring;
    FG_AVX512_HOLD_POINTER(sums);
    strip_totals totals;
    size_t round = 0;
    amx_place now = place_of(unit);
    MULTIPLY(kind, now, 0, 0, 4, 6);
    MULTIPLY(kind, now, 1, 1, 5, 7);
    STORE(sums, 0);
    MULTIPLY(kind, now, 2, 2, 4, 6);
    STORE(sums, 1);
    MULTIPLY(kind, now, 3, 3, 5, 7);
    STORE(sums, 2);
    load_totals(R, unit->totals, totals);
    ADD(&now, 0);
    for (size_t left = unit_count * rounds - 1; left > 0; left--) {
        amx_place before = now;
        round++;
        if (round < rounds) {
            now.rows += RING;
            now.codes += RING;
            now.d += RING * FG_PANEL_OUTPUTS;
        } else {
            now = place_of(unit + 1);
        }
        MULTIPLY(kind, now, 0, 0, 4, 6);
        STORE(sums, 3);
        ADD(&before, 1);
        MULTIPLY(kind, now, 1, 1, 5, 7);
        STORE(sums, 0);
        ADD(&before, 2);
        MULTIPLY(kind, now, 2, 2, 4, 6);
        STORE(sums, 1);
        ADD(&before, 3);
        if (round == rounds) {
            store_totals(R, totals, unit->totals);
            unit++;
            load_totals(R, unit->totals, totals);
            round = 0;
        }
        MULTIPLY(kind, now, 3, 3, 5, 7);
        STORE(sums, 2);
        ADD(&now, 0);
    }
    STORE(sums, 3);
    ADD(&now, 1);
    ADD(&now, 2);
    ADD(&now, 3);
    store_totals(R, totals, unit->totals);
}

/* The same where no whole rounds are left of a row. */
FG_AVX512_INLINE void run_rest(amx_kind kind, int R, size_t count, const amx_unit *unit,
                               size_t unit_count)
{
    _Alignas(VECTOR) float sums[STRIP_ROWS * FG_PANEL_OUTPUTS];
    strip_totals totals;
    for (size_t u = 0; u < unit_count; u++, unit++) {
        amx_place now = place_of(unit);
        load_totals(R, unit->totals, totals);
        for (size_t g = 0; g < count; g++) {
            MULTIPLY(kind, now, g, 0, 4, 6);
            STORE(sums, 0);
            add_sums(kind, R, &now, g, sums, totals);
        }
        store_totals(R, totals, unit->totals);
    }
}

FG_AVX512_INLINE void run_units(amx_kind kind, int R, size_t count, const amx_unit *units,
                                size_t unit_count)
{
    if (count % RING == 0) {
        run_rounds(kind, R, count / RING, units, unit_count);
    } else {
        run_rest(kind, R, count, units, unit_count);
    }
}

/* So many rows of a strip that are there: multiplied are all sixteen, scaled and added are these and up to three more. */
FG_AVX512_INLINE void choose_rows(amx_kind kind, uint32_t rows, size_t count, const amx_unit *units,
                                  size_t unit_count)
{
    if (rows > 12) {
        run_units(kind, 16, count, units, unit_count);
    } else if (rows > 8) {
        run_units(kind, 12, count, units, unit_count);
    } else if (rows > 4) {
        run_units(kind, 8, count, units, unit_count);
    } else {
        run_units(kind, 4, count, units, unit_count);
    }
}

typedef void (*units_fn)(uint32_t rows, size_t count, const amx_unit *units, size_t unit_count);

#define DEFINE_UNITS(name, kind)                                                                   \
    static void name##_units(uint32_t rows, size_t count, const amx_unit *units,                   \
                             size_t unit_count)                                                    \
    {                                                                                              \
        choose_rows(kind, rows, count, units, unit_count);                                         \
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

/* Codes of up to five bits as bf16: 0 .. 31 less what is taken off. */
FG_AVX512_INLINE __m512i table_of(uint32_t type)
{
    int offset = type == FG_Q4_0 ? 8 : type == FG_Q5_0 ? 16 : 0;
    __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i low = _mm512_slli_epi32(lanes, 1);
    __m512i high = _mm512_or_si512(low, _mm512_set1_epi32(1));
    return fg_avx512_pair_floats(fg_avx512_less_bias(low, offset),
                                 fg_avx512_less_bias(high, offset));
}

/* Codes of columns 4j .. 4j + 3 as two rows of pairs: columns 4j and 4j + 2, and the two others. */
FG_AVX512_INLINE void pair_codes(uint32_t type, const uint8_t *at, int j, __m512i table,
                                 group_codes codes)
{
    __m512i even;
    __m512i odd;
    if (type == FG_Q8_0) {
        fg_avx512_pair_bytes(load64(at + (size_t)j * VECTOR), &even, &odd);
    } else { /* what is above a code's five bits is not looked at */
        __m512i four = unpack(type, at, j);
        even = _mm512_permutexvar_epi16(four, table);
        odd = _mm512_permutexvar_epi16(_mm512_srli_epi16(four, 8), table);
    }
    _mm512_store_si512(codes[j], even);
    _mm512_store_si512(codes[j + VECTORS], odd);
}

/* Numbers of 13 bits: the upper eight bits of each, as bf16 has them, and what is left. */
FG_AVX512_INLINE void store_split(__m512i numbers, uint32_t *rest, uint32_t *upper)
{
    __m512i biased = _mm512_xor_si512(numbers, _mm512_set1_epi32((int32_t)0x80008000));
    __m512 low = fg_avx512_less_bias(fg_avx512_to_lower(biased, 0, true), 0x8000);
    __m512 high = fg_avx512_less_bias(fg_avx512_to_lower(biased, 2, true), 0x8000);
    __m512 upper_low = _mm512_castsi512_ps(fg_avx512_upper(_mm512_castps_si512(low)));
    __m512 upper_high = _mm512_castsi512_ps(fg_avx512_upper(_mm512_castps_si512(high)));
    _mm512_store_si512(upper, fg_avx512_pair_floats(upper_low, upper_high));
    _mm512_store_si512(rest, fg_avx512_pair_floats(_mm512_sub_ps(low, upper_low),
                                                   _mm512_sub_ps(high, upper_high)));
}

/* Q6_K's codes, multiplied with the scales of their lanes. */
FG_AVX512_INLINE void split_codes(const uint8_t *at, int j, __m512i scales, group_codes rest,
                                  group_codes upper)
{
    __m512i codes = _mm512_sub_epi8(unpack(FG_Q6_K, at, j), _mm512_set1_epi8(32));
    __m512i twice = _mm512_or_si512(_mm512_slli_epi32(scales, 16),
                                    _mm512_and_si512(scales, _mm512_set1_epi32(0xFFFF)));
    __m512i even = _mm512_srai_epi16(_mm512_slli_epi16(codes, 8), 8);
    __m512i odd = _mm512_srai_epi16(codes, 8);
    store_split(_mm512_mullo_epi16(even, twice), rest[j], upper[j]);
    store_split(_mm512_mullo_epi16(odd, twice), rest[j + VECTORS], upper[j + VECTORS]);
}

/* Some groups of a panel. */
typedef struct amx_groups {
    const uint8_t *panel;
    size_t first;
} amx_groups;

/* `count` groups; as many are asked for. */
FG_AVX512_INLINE void unpack_slice(uint32_t type, const amx_groups *from, size_t count,
                                   const amx_groups *ask, amx_slice *slice)
{
    const fg_panel_shape shape = fg_panel_shape_of(type, 256);
    __m512i table = table_of(type);
    for (size_t g = 0; g < count; g++) {
        size_t in_unit = (from->first + g) % shape.unit_groups;
        const uint8_t *scales = from->panel + fg_panel_unit_offset(&shape, from->first + g);
        const uint8_t *codes = from->panel + fg_panel_codes_offset(&shape, from->first + g);
        factors f = scales_of(type, scales, in_unit);
        _mm512_store_ps(slice->d[g], f.d);
        if (fg_cpu_has_minimum(type)) {
            _mm512_store_ps(slice->minimum[g], f.minimum);
        }
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; j++) {
            if (type == FG_Q6_K) {
                split_codes(codes, j, j < VECTORS / 2 ? f.first : f.second, slice->codes[g],
                            slice->codes[g + SLICE_GROUPS]);
            } else {
                pair_codes(type, codes, j, table, slice->codes[g]);
            }
        }
        const uint8_t *next = ask->panel + fg_panel_codes_offset(&shape, ask->first + g);
        for (size_t i = 0; i < shape.group_bytes; i += VECTOR) {
            _mm_prefetch((const char *)next + i, _MM_HINT_T1);
        }
        if ((ask->first + g) % shape.unit_groups == 0) {
            for (size_t i = 0; i < shape.scale_bytes; i += VECTOR) {
                _mm_prefetch((const char *)next - shape.scale_bytes + i, _MM_HINT_T1);
            }
        }
    }
}

typedef void (*unpack_fn)(const amx_groups *from, size_t count, const amx_groups *ask,
                          amx_slice *slice);

#define DEFINE_UNPACK(name, type)                                                                  \
    static void name##_unpack(const amx_groups *from, size_t count, const amx_groups *ask,         \
                              amx_slice *slice)                                                    \
    {                                                                                              \
        unpack_slice(type, from, count, ask, slice);                                               \
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
    return type == FG_Q8_0 ? 48 : type == FG_Q6_K ? 32 : 24;
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

/* Strips of sixteen rows, then the one that has fewer. */
static void run_slice(uint32_t type, const fg_activations *in, size_t group, size_t count, batch *b)
{
    size_t group_count = in->columns / FG_QUANT_GROUP;
    const fg_quant_tile *rows = in->quant_tiles + b->first / STRIP_ROWS * group_count + group;
    amx_unit units[SLICE_PANELS * BATCH_STRIPS];
    size_t unit_count = 0;
    for (uint32_t index = 0; index < b->strip_count; index++, rows += group_count) {
        for (uint32_t i = 0; i < b->panels; i++) {
            units[unit_count++] =
                (amx_unit){ .rows = rows, .slice = &b->slices[i], .totals = b->totals[i][index] };
        }
    }
    units_fn run = kinds[kind_of(type)];
    uint32_t last_rows = rows_of_strip(b, b->strip_count - 1);
    size_t short_units = last_rows < STRIP_ROWS ? b->panels : 0;
    size_t whole_units = unit_count - short_units;
    if (whole_units > 0) {
        run(STRIP_ROWS, count, units, whole_units);
    }
    if (short_units > 0) {
        run(last_rows, count, units + whole_units, short_units);
    }
}

static void run_batch(const fg_panels *w, const fg_activations *in, uint32_t panel, batch *b)
{
    const fg_panel_shape shape = fg_panel_shape_of(w->type, w->columns);
    unpack_fn unpack_groups = unpack_of(w->type);
    size_t group_count = w->columns / FG_QUANT_GROUP;
    size_t slice_groups = kind_of(w->type) == AMX_SPLIT ? SPLIT_GROUPS : SLICE_GROUPS;
    const uint8_t *panels = (const uint8_t *)w->data + panel * shape.panel_bytes;
    for (uint32_t i = 0; i < b->panels; i++) {
        memset(b->totals[i], 0, b->strip_count * sizeof b->totals[i][0]);
    }
    for (size_t group = 0; group < group_count; group += slice_groups) {
        size_t left = group_count - group;
        size_t count = left < slice_groups ? left : slice_groups;
        for (uint32_t i = 0; i < b->panels; i++) {
            amx_groups from = { .panel = panels + i * shape.panel_bytes, .first = group };
            /* Behind the last slice come the next panels. */
            amx_groups ask =
                left > slice_groups
                    ? (amx_groups){ .panel = from.panel, .first = group + count }
                    : (amx_groups){ .panel = from.panel + b->panels * shape.panel_bytes };
            unpack_groups(&from, count, &ask, &b->slices[i]);
        }
        fg_amx_see_memory(b->slices);
        run_slice(w->type, in, group, count, b);
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
    if (unpack_of(w->type) == NULL || rows < rows_least(w->type)) {
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
