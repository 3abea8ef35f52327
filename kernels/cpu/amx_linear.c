/*
 * Matrix products with AMX and quantised weights, over panels of sixteen outputs (kernels/panel.h).
 *
 * One instruction multiplies up to sixteen rows with a group of a panel, 32 columns of sixteen outputs, and sums
 * in 32 bits, exactly: eight times what vpdpbusd does in the same time. A group's sums leave their tile through
 * the first-level cache and are scaled and added as ever, a register a row: three products of 512 bits for each,
 * which now are what takes the time.
 *
 * A slice of some panels is unpacked to signed bytes and floats once for all rows of a batch. The rows pass in
 * strips that are as tall as each other, the last of which may begin within the one before it: rows that two strips
 * compute come out alike, and are put once. The rows' sums wait in memory between slices.
 *
 * Q6_K has two integer scales in a group, which the sum contains: its codes are multiplied with them first
 * and split into 64 * upper + lower.
 */
#include "kernels/cpu/amx.h"
#include "kernels/cpu/avx512_unpack.h"
#include "kernels/cpu/panel_group.h"

enum { STRIP_ROWS = 16, BATCH_ROWS = 512, BATCH_STRIPS = BATCH_ROWS / STRIP_ROWS };
/* What is unpacked at a time: it stays in the first-level cache while the rows pass. */
enum { SLICE_PANELS = 2, SLICE_GROUPS = 8, GROUP_CODES = VECTOR * VECTORS };
/* With fewer rows unpacking is not worth its time. Strips then have 11 rows (of 33) or more. */
enum { ROWS_LEAST = 24, STRIP_ROWS_LEAST = 11 };

/* What a product of a group consists of. */
typedef enum amx_kind {
    AMX_PLAIN,
    AMX_MINIMUM, /* the scaled sum and a minimum */
    AMX_SPLIT,   /* 64 times one sum, and another */
    AMX_KINDS
} amx_kind;

/* A panel's groups as the tiles read them. */
typedef struct amx_slice {
    _Alignas(VECTOR) int8_t codes[SLICE_GROUPS][GROUP_CODES];
    int8_t uppers[SLICE_GROUPS][GROUP_CODES]; /* AMX_SPLIT */
    float d[SLICE_GROUPS][FG_PANEL_OUTPUTS];
    float minimum[SLICE_GROUPS][FG_PANEL_OUTPUTS];
} amx_slice;

/* The rows of a strip, from the slice's first group on. */
typedef struct amx_strip {
    const int8_t *quants;
    const fg_quant_group *groups;
    size_t columns;
    size_t group_count; /* of a row */
    size_t count;       /* of the slice */
} amx_strip;

/* Of two groups, sixteen outputs of each row; upper ones are AMX_SPLIT's. */
typedef struct amx_sums {
    _Alignas(VECTOR) int32_t sums[STRIP_ROWS][FG_PANEL_OUTPUTS];
    int32_t uppers[STRIP_ROWS][FG_PANEL_OUTPUTS];
} amx_sums;

typedef __m512 strip_totals[STRIP_ROWS];

/* ---- tiles ---- */

/* Tiles 0 to 3 hold sums, 4 and 5 rows of activations, 6 and 7 codes. */
static void configure(uint32_t strip_rows)
{
    fg_amx_config config = { .palette = 1 };
    for (int tile = 0; tile < FG_AMX_TILES; tile++) {
        config.row_bytes[tile] = tile == 4 || tile == 5 ? FG_QUANT_GROUP : VECTOR;
        config.rows[tile] = (uint8_t)(tile < 6 ? strip_rows : VECTORS);
    }
    fg_amx_see_memory(&config);
    _tile_loadconfig(&config);
}

/* The sums of group g to `to`, in tiles of its own, so that two groups are on their way. */
#define MULTIPLY(kind, strip, slice, g, to, sums_tile, uppers_tile, rows_tile, codes_tile)         \
    do {                                                                                           \
        _tile_loadd(rows_tile, (strip)->quants + (g)*FG_QUANT_GROUP, (strip)->columns);            \
        _tile_loadd(codes_tile, (slice)->codes[g], VECTOR);                                        \
        _tile_zero(sums_tile);                                                                     \
        _tile_dpbssd(sums_tile, rows_tile, codes_tile);                                            \
        _tile_stored(sums_tile, (to)->sums, VECTOR);                                               \
        if ((kind) == AMX_SPLIT) {                                                                 \
            _tile_loadd(codes_tile, (slice)->uppers[g], VECTOR);                                   \
            _tile_zero(uppers_tile);                                                               \
            _tile_dpbssd(uppers_tile, rows_tile, codes_tile);                                      \
            _tile_stored(uppers_tile, (to)->uppers, VECTOR);                                       \
        }                                                                                          \
    } while (0)

/* ---- a strip of rows ---- */

FG_AVX512_INLINE void add_sums(amx_kind kind, int R, const amx_strip *strip, const amx_slice *slice,
                               size_t g, const amx_sums *from, strip_totals totals)
{
    const fg_quant_group *group = strip->groups + g;
    __m512 d = _mm512_loadu_ps(slice->d[g]);
    __m512 minimum = kind == AMX_MINIMUM ? _mm512_loadu_ps(slice->minimum[g]) : d;
#pragma GCC unroll 16
    for (int r = 0; r < R; r++, group += strip->group_count) {
        __m512i sum = _mm512_loadu_si512(from->sums[r]);
        if (kind == AMX_SPLIT) {
            __m512i upper = _mm512_loadu_si512(from->uppers[r]);
            sum = _mm512_add_epi32(sum, _mm512_slli_epi32(upper, 6));
        }
        if (kind == AMX_MINIMUM) {
            totals[r] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(group->offset), totals[r]);
        }
        __m512 scale = _mm512_mul_ps(d, _mm512_set1_ps(group->scale));
        totals[r] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(sum), totals[r]);
    }
}

/* R rows against a slice: totals grow. */
FG_AVX512_INLINE void run_strip(amx_kind kind, int R, const amx_strip *strip,
                                const amx_slice *slice, strip_totals totals_io)
{
    amx_sums sums[2];
    strip_totals totals;
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
        totals[r] = totals_io[r];
    }
    MULTIPLY(kind, strip, slice, 0, &sums[0], 0, 2, 4, 6);
    for (size_t g = 0; g < strip->count; g += 2) {
        if (g + 1 < strip->count) {
            MULTIPLY(kind, strip, slice, g + 1, &sums[1], 1, 3, 5, 7);
        }
        add_sums(kind, R, strip, slice, g, &sums[0], totals);
        if (g + 2 < strip->count) {
            MULTIPLY(kind, strip, slice, g + 2, &sums[0], 0, 2, 4, 6);
        }
        if (g + 1 < strip->count) {
            add_sums(kind, R, strip, slice, g + 1, &sums[1], totals);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
        totals_io[r] = totals[r];
    }
}

#define RUN(R)                                                                                     \
    case R:                                                                                        \
        run_strip(kind, R, strip, slice, totals);                                                  \
        break;

FG_AVX512_INLINE void choose_rows(amx_kind kind, uint32_t rows, const amx_strip *strip,
                                  const amx_slice *slice, strip_totals totals)
{
    switch (rows) {
        RUN(11)
        RUN(12)
        RUN(13)
        RUN(14)
        RUN(15)
        RUN(16)
    default:
        break;
    }
}

typedef void (*strip_fn)(uint32_t rows, const amx_strip *strip, const amx_slice *slice,
                         strip_totals totals);

#define DEFINE_STRIP(name, kind)                                                                   \
    static void name##_strip(uint32_t rows, const amx_strip *strip, const amx_slice *slice,        \
                             strip_totals totals)                                                  \
    {                                                                                              \
        choose_rows(kind, rows, strip, slice, totals);                                             \
    }

DEFINE_STRIP(plain, AMX_PLAIN)
DEFINE_STRIP(minimum, AMX_MINIMUM)
DEFINE_STRIP(split, AMX_SPLIT)

static const strip_fn strips[AMX_KINDS] = { plain_strip, minimum_strip, split_strip };

static amx_kind kind_of(uint32_t type)
{
    return type == FG_Q6_K ? AMX_SPLIT : fg_cpu_has_minimum(type) ? AMX_MINIMUM : AMX_PLAIN;
}

/* ---- slices ---- */

/* Columns 4 * j .. 4 * j + 3 of a group as signed bytes. */
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
    even = _mm512_sub_epi16(even, _mm512_slli_epi16(upper_even, 6));
    odd = _mm512_sub_epi16(odd, _mm512_slli_epi16(upper_odd, 6));
    _mm512_storeu_si512(lower,
                        _mm512_or_si512(_mm512_and_si512(even, low), _mm512_slli_epi16(odd, 8)));
    _mm512_storeu_si512(
        upper, _mm512_or_si512(_mm512_and_si512(upper_even, low), _mm512_slli_epi16(upper_odd, 8)));
}

/* `count` groups of a panel, the first of which begins a unit; as many bytes are asked for at `ask`. */
FG_AVX512_INLINE void unpack_slice(uint32_t type, const uint8_t *scales, size_t count,
                                   const uint8_t *ask, amx_slice *slice)
{
    const fg_panel_shape shape = fg_panel_shape_of(type, 256);
    for (size_t g = 0; g < count; g++) {
        size_t in_unit = g % shape.unit_groups;
        const uint8_t *codes = scales + shape.scale_bytes + in_unit * shape.group_bytes;
        factors f = scales_of(type, scales, in_unit);
        _mm512_storeu_ps(slice->d[g], f.d);
        if (fg_cpu_has_minimum(type)) {
            _mm512_storeu_ps(slice->minimum[g], f.minimum);
        }
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; j++) {
            __m512i vector = signed_codes(type, codes, j);
            if (type == FG_Q6_K) {
                split_codes(vector, j < VECTORS / 2 ? f.first : f.second,
                            slice->codes[g] + j * VECTOR, slice->uppers[g] + j * VECTOR);
            } else {
                _mm512_storeu_si512(slice->codes[g] + j * VECTOR, vector);
            }
        }
        for (size_t i = 0; i < shape.group_bytes; i += VECTOR) {
            _mm_prefetch((const char *)ask + (codes - scales) + i, _MM_HINT_T1);
        }
        if (in_unit + 1 == shape.unit_groups) {
            for (size_t i = 0; i < shape.scale_bytes; i += VECTOR) {
                _mm_prefetch((const char *)ask + i, _MM_HINT_T1);
            }
            scales += shape.unit_bytes;
            ask += shape.unit_bytes;
        }
    }
}

typedef void (*unpack_fn)(const uint8_t *scales, size_t count, const uint8_t *ask,
                          amx_slice *slice);

#define DEFINE_UNPACK(name, type)                                                                  \
    static void name##_unpack(const uint8_t *scales, size_t count, const uint8_t *ask,             \
                              amx_slice *slice)                                                    \
    {                                                                                              \
        unpack_slice(type, scales, count, ask, slice);                                             \
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

/* ---- products ---- */

/* Some rows of a product, BATCH_ROWS at most, against some panels. */
typedef struct batch {
    uint32_t first;
    uint32_t count;
    uint32_t panels;
    uint32_t strip_count;
    uint32_t strip_rows;
    amx_slice slices[SLICE_PANELS];
    strip_totals totals[SLICE_PANELS][BATCH_STRIPS];
} batch;

/* The first row of a strip in its batch. */
static uint32_t strip_begin(const batch *b, uint32_t index)
{
    return fg_amx_strip_begin(index, b->strip_rows, b->count);
}

static void run_slice(uint32_t type, const fg_activations *in, size_t group, size_t count, batch *b)
{
    size_t group_count = in->columns / FG_QUANT_GROUP;
    strip_fn run = strips[kind_of(type)];
    amx_strip strip = { .columns = in->columns, .group_count = group_count, .count = count };
    for (uint32_t index = 0; index < b->strip_count; index++) {
        size_t row = b->first + strip_begin(b, index);
        strip.quants = in->quants + row * in->columns + group * FG_QUANT_GROUP;
        strip.groups = in->groups + row * group_count + group;
        for (uint32_t i = 0; i < b->panels; i++) {
            run(b->strip_rows, &strip, &b->slices[i], b->totals[i][index]);
        }
    }
}

static void run_batch(const fg_panels *w, const fg_activations *in, uint32_t panel, batch *b)
{
    const fg_panel_shape shape = fg_panel_shape_of(w->type, w->columns);
    unpack_fn unpack_groups = unpack_of(w->type);
    size_t group_count = w->columns / FG_QUANT_GROUP;
    const uint8_t *panels = (const uint8_t *)w->data + panel * shape.panel_bytes;
    size_t slice_bytes = fg_panel_unit_offset(&shape, SLICE_GROUPS);
    for (uint32_t i = 0; i < b->panels; i++) {
        memset(b->totals[i], 0, b->strip_count * sizeof b->totals[i][0]);
    }
    for (size_t group = 0; group < group_count; group += SLICE_GROUPS) {
        size_t left = group_count - group;
        size_t count = left < SLICE_GROUPS ? left : SLICE_GROUPS;
        for (uint32_t i = 0; i < b->panels; i++) {
            const uint8_t *at =
                panels + i * shape.panel_bytes + fg_panel_unit_offset(&shape, group);
            /* Behind the last slice come the next panels. */
            const uint8_t *ask = left > SLICE_GROUPS ? at + slice_bytes
                                                     : panels + (b->panels + i) * shape.panel_bytes;
            unpack_groups(at, count, ask, &b->slices[i]);
        }
        fg_amx_see_memory(b->slices);
        run_slice(w->type, in, group, count, b);
    }
}

static void put_batch(const fg_linear *linear, const batch *b, uint32_t panel)
{
    for (uint32_t index = 0; index < b->strip_count; index++) {
        uint32_t begin = strip_begin(b, index);
        for (uint32_t r = index * b->strip_rows - begin; r < b->strip_rows; r++) {
            for (uint32_t i = 0; i < b->panels; i++) {
                fg_avx512_put_panel(linear, b->first + begin + r, (panel + i) * FG_PANEL_OUTPUTS,
                                    b->totals[i][index][r]);
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
    if (unpack_of(w->type) == NULL || rows < ROWS_LEAST) {
        fg_cpu_avx512_linear(linear, in, rows, first, count);
        return;
    }
    batch b;
    uint32_t batch_count = (rows + BATCH_ROWS - 1) / BATCH_ROWS;
    uint32_t batch_rows = (rows + batch_count - 1) / batch_count;
    uint32_t configured = 0;
    for (b.first = 0; b.first < rows; b.first += b.count) {
        b.count = rows - b.first < batch_rows ? rows - b.first : batch_rows;
        b.strip_count = (b.count + STRIP_ROWS - 1) / STRIP_ROWS;
        b.strip_rows = (b.count + b.strip_count - 1) / b.strip_count;
        FG_ASSERT(b.strip_rows >= STRIP_ROWS_LEAST && b.strip_rows <= STRIP_ROWS, "%u rows",
                  b.strip_rows);
        if (configured != b.strip_rows) {
            configure(b.strip_rows);
            configured = b.strip_rows;
        }
        for (uint32_t panel = first; panel < first + count; panel += b.panels) {
            uint32_t left = first + count - panel;
            b.panels = left < SLICE_PANELS ? left : SLICE_PANELS;
            run_batch(w, in, panel, &b);
            put_batch(linear, &b, panel);
        }
    }
    _tile_release();
}
