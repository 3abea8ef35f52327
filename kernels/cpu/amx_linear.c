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
 * made (fg_quant_tile). The rows' totals wait in memory between slices, and go to the outputs behind the last one. A
 * product is stored while the next one is multiplied, and scaled some products later, beside the first ones of the next
 * strip or panel.
 *
 * Types with super-groups are elsewhere (amx_super.c).
 */
#include "kernels/cpu/amx.h"
#include "kernels/cpu/avx512_unpack.h"
#include "kernels/cpu/panel_group.h"

enum { STRIP_ROWS = FG_TILE_ROWS, BATCH_ROWS = 512, BATCH_STRIPS = BATCH_ROWS / STRIP_ROWS };
/* What is unpacked at a time: it stays in the first-level cache while the rows pass. */
enum { SLICE_PANELS = 2, SLICE_GROUPS = 20, SLICE_USUAL = 16 };
/* A round has two products, of two groups. Their sums have a tile each. */
enum { ROUND = 2, SUMS = STRIP_ROWS * FG_PANEL_OUTPUTS };

/* What a product of a group consists of. */
typedef enum amx_kind {
    AMX_PLAIN,
    AMX_MINIMUM, /* the scaled sum and a minimum */
    AMX_KINDS
} amx_kind;

/* A group of a panel: codes as a tile reads them, rows of four columns of sixteen outputs, and what their sums are
 * scaled with. */
typedef struct amx_group {
    _Alignas(VECTOR) int8_t codes[VECTORS][VECTOR];
    float d[FG_PANEL_OUTPUTS];
    float minimum[FG_PANEL_OUTPUTS];
} amx_group;

/* Of a panel. */
typedef amx_group amx_slice[SLICE_GROUPS];

typedef __m512 strip_totals[STRIP_ROWS];

/* Where a strip of rows meets a slice of a panel. */
typedef struct amx_place {
    const fg_quant_tile *rows;
    const amx_group *groups;
} amx_place;

typedef struct amx_unit {
    amx_place place; /* the first groups of both */
    __m512 *totals;  /* between slices */
    float *out;
    __mmask16 outputs;       /* that are there */
    const uint8_t *ask;      /* its share of the weights that come next */
    const uint8_t *ask_rows; /* and of the next strip's rows */
} amx_unit;

/* What the units of a slice have in common. */
typedef struct amx_run {
    uint32_t rows;    /* of a strip */
    size_t count;     /* groups of the slice */
    size_t ask_lines; /* of weights, by a unit for every round */
    /* The same of rows, which are not there before the first panels have met them. */
    size_t row_lines;
    bool begins; /* the slice is the row's first */
    bool ends;   /* and its last */
    bool asks_outputs;
    bool accumulate;
    size_t out_stride;
} amx_run;

/* ---- tiles ---- */

/* Tiles 0 and 1 hold sums, 4 and 5 rows of activations, 6 and 7 codes. */
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

#define MULTIPLY(at, slot, rows_tile, codes_tile)                                                  \
    do {                                                                                           \
        _tile_loadd(codes_tile, (at).groups[slot].codes, VECTOR);                                  \
        _tile_zero(slot);                                                                          \
        _tile_loadd(rows_tile, (at).rows[slot].quants, FG_QUANT_GROUP);                            \
        _tile_dpbssd(slot, rows_tile, codes_tile);                                                 \
    } while (0)

#define STORE(sums, slot) _tile_stored(slot, (sums) + slot * SUMS, VECTOR)

/* ---- a strip of rows ---- */

/* Integers, added to the bits of a float so large that its last bit counts as much as they do. */
FG_AVX512_INLINE __m512 added_to(__m512 large, const float *sums)
{
    return _mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_castps_si512(large), _mm512_load_si512(sums)));
}

/* A row's sums of a group, as floats. */
FG_AVX512_INLINE __m512 sums_of(const float *sums)
{
    const __m512 ones = _mm512_set1_ps(0x1.8p23f);
    return _mm512_sub_ps(added_to(ones, sums), ones);
}

/* Sums of group g from a place on, scaled, to the totals of rows first .. end - 1. */
FG_AVX512_INLINE void add_sums(amx_kind kind, int first, int end, const amx_place *at, size_t g,
                               const float *sums, strip_totals totals)
{
    const fg_quant_tile *rows = at->rows + g;
    __m512 d = _mm512_load_ps(at->groups[g].d);
    __m512 minimum = d;
    if (kind == AMX_MINIMUM) {
        minimum = _mm512_load_ps(at->groups[g].minimum);
    }
#pragma GCC unroll 16
    for (int r = first; r < end; r++) {
        if (kind == AMX_MINIMUM) {
            totals[r] = _mm512_fmadd_ps(
                minimum, _mm512_set1_ps(rows->halves[r / FG_TILE_HALF].offsets[r % FG_TILE_HALF]),
                totals[r]);
        }
        __m512 scale = _mm512_mul_ps(
            d, _mm512_set1_ps(rows->halves[r / FG_TILE_HALF].scales[r % FG_TILE_HALF]));
        __m512 sum = sums_of(sums + r * FG_PANEL_OUTPUTS);
        totals[r] = _mm512_fmadd_ps(scale, sum, totals[r]);
        FG_AVX512_HOLD(totals[r]);
    }
}

/* Totals of the slices before. */
FG_AVX512_INLINE void begin_unit(int R, const amx_run *run, const amx_unit *unit,
                                 strip_totals totals)
{
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
        totals[r] = run->begins ? _mm512_setzero_ps() : unit->totals[r];
    }
}

/* Totals wait for the next slice. Behind the last one they are outputs, of rows that are there. */
FG_AVX512_INLINE void end_unit(int R, const amx_run *run, const amx_unit *unit,
                               const strip_totals totals)
{
    if (!run->ends) {
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            unit->totals[r] = totals[r];
        }
        return;
    }
    float *out = unit->out;
#pragma GCC unroll 16
    for (int r = 0; r < R; r++, out += run->out_stride) {
        if (r >= R - 3 && (uint32_t)r >= run->rows) {
            break;
        }
        __m512 sums = totals[r];
        if (run->accumulate) {
            sums = _mm512_add_ps(_mm512_maskz_loadu_ps(unit->outputs, out), sums);
        }
        _mm512_mask_storeu_ps(out, unit->outputs, sums);
    }
}

/* Rows first .. end - 1 of a product that is stored. */
FG_AVX512_INLINE void add_rows(amx_kind kind, int first, int end, const amx_place *at, size_t slot,
                               const float *sums, strip_totals totals)
{
    add_sums(kind, first, end, at, slot, sums + slot * SUMS, totals);
}

FG_AVX512_INLINE void add_product(amx_kind kind, int R, const amx_place *at, size_t slot,
                                  const float *sums, strip_totals totals)
{
    add_rows(kind, 0, R, at, slot, sums, totals);
}

/* A walk through the units of a slice, round by round. */
typedef struct amx_walk {
    const amx_run *run;
    const amx_unit *multiplied; /* the next round is of */
    size_t group;               /* of it */
    const amx_unit *added;
    size_t added_group;
    const uint8_t *ask;
    const uint8_t *ask_rows;
} amx_walk;

/* Outputs lie where another thread may have written or read last: they are asked for, to be written, while the unit
 * before is added. */
FG_AVX512_INLINE void ask_outputs(int R, const amx_run *run, const amx_unit *unit)
{
    if (!run->asks_outputs) {
        return;
    }
    const float *out = unit->out;
#pragma GCC unroll 16
    for (int r = 0; r < R; r++, out += run->out_stride) {
        if (r >= R - 3 && (uint32_t)r >= run->rows) {
            break;
        }
        __builtin_prefetch(out, 1);
    }
}

/* The next round may be of the next unit. Weights are asked for all the time, not when they are unpacked: too many at
 * once would have to be waited for. */
FG_AVX512_INLINE void next_round(amx_kind kind, amx_walk *w, amx_place *place)
{
    for (size_t i = 0; i < w->run->ask_lines; i++, w->ask += VECTOR) {
        _mm_prefetch((const char *)w->ask, _MM_HINT_T1);
    }
    for (size_t i = 0; i < w->run->row_lines; i++, w->ask_rows += VECTOR) {
        _mm_prefetch((const char *)w->ask_rows, _MM_HINT_T1);
    }
    w->group += ROUND;
    if (w->group == w->run->count) {
        w->multiplied++;
        w->group = 0;
        w->ask = w->multiplied->ask;
        w->ask_rows = w->multiplied->ask_rows;
        *place = w->multiplied->place;
        return;
    }
    place->rows += ROUND;
    place->groups += ROUND;
}

/* The totals of the next unit, when one is complete. */
FG_AVX512_INLINE void end_round(amx_kind kind, int R, amx_walk *w, strip_totals totals)
{
    w->added_group += ROUND;
    if (w->added_group == w->run->count) {
        end_unit(R, w->run, w->added, totals);
        w->added++;
        w->added_group = 0;
        begin_unit(R, w->run, w->added, totals);
        ask_outputs(R, w->run, w->added);
    }
}

/* The units' totals grow by whole rounds, two at least. While the third product before it is added, a quarter of its
 * rows ahead, a product is multiplied; then the one before it is stored. */
FG_AVX512_INLINE void run_rounds(amx_kind kind, int R, const amx_run *run, const amx_unit *units,
                                 size_t unit_count)
{
    _Alignas(VECTOR) float ring[2][ROUND * SUMS];
    float *sums = ring[0], *later = ring[1];
    strip_totals totals;
    amx_walk w = { .run = run,
                   .multiplied = units,
                   .added = units,
                   .ask = units->ask,
                   .ask_rows = units->ask_rows };
    amx_place before = units->place, now = before;
    MULTIPLY(now, 0, 4, 6);
    MULTIPLY(now, 1, 5, 7);
    STORE(sums, 0);
    next_round(kind, &w, &now);
    MULTIPLY(now, 0, 4, 6);
    STORE(sums, 1);
    begin_unit(R, run, units, totals);
    for (size_t left = unit_count * run->count / ROUND - 2; left > 0; left--) {
        add_rows(kind, 0, R / 4, &before, 0, sums, totals);
        MULTIPLY(now, 1, 5, 7);
        add_rows(kind, R / 4, R, &before, 0, sums, totals);
        STORE(later, 0);
        amx_place between = now;
        next_round(kind, &w, &now);
        add_rows(kind, 0, R / 4, &before, 1, sums, totals);
        MULTIPLY(now, 0, 4, 6);
        add_rows(kind, R / 4, R, &before, 1, sums, totals);
        STORE(later, 1);
        end_round(kind, R, &w, totals);
        before = between;
        float *free = sums;
        sums = later;
        later = free;
    }
    MULTIPLY(now, 1, 5, 7);
    STORE(later, 0);
    add_product(kind, R, &before, 0, sums, totals);
    STORE(later, 1);
    add_product(kind, R, &before, 1, sums, totals);
    end_round(kind, R, &w, totals);
    add_product(kind, R, &now, 0, later, totals);
    add_product(kind, R, &now, 1, later, totals);
    end_unit(R, run, w.added, totals);
}

/* A round or less of each unit: one is multiplied before the sums of the one before it are added. */
FG_AVX512_INLINE void run_rest(amx_kind kind, int R, const amx_run *run, const amx_unit *units,
                               size_t unit_count)
{
    _Alignas(VECTOR) float ring[2][ROUND * SUMS];
    strip_totals totals;
    bool second = run->count > 1;
    for (size_t u = 0; u <= unit_count; u++) {
        if (u < unit_count) {
            float *sums = ring[u % 2];
            MULTIPLY(units[u].place, 0, 4, 6);
            if (second) {
                MULTIPLY(units[u].place, 1, 5, 7);
            }
            STORE(sums, 0);
            STORE(sums, 1);
        }
        if (u > 0) {
            const amx_unit *before = &units[u - 1];
            const float *sums = ring[(u - 1) % 2];
            begin_unit(R, run, before, totals);
            add_product(kind, R, &before->place, 0, sums, totals);
            if (second) {
                add_product(kind, R, &before->place, 1, sums, totals);
            }
            end_unit(R, run, before, totals);
        }
    }
}

FG_AVX512_INLINE void run_units(amx_kind kind, int R, const amx_run *run, const amx_unit *units,
                                size_t unit_count)
{
    if (run->count > ROUND) {
        run_rounds(kind, R, run, units, unit_count);
    } else {
        run_rest(kind, R, run, units, unit_count);
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

static const units_fn kinds[AMX_KINDS] = { plain_units, minimum_units };

static amx_kind kind_of(uint32_t type)
{
    return fg_cpu_has_minimum(type) ? AMX_MINIMUM : AMX_PLAIN;
}

/* ---- slices ---- */

/* Columns 4j .. 4j + 3 of a group as signed bytes. */
FG_AVX512_INLINE __m512i signed_codes(uint32_t type, const uint8_t *at, int j)
{
    if (type == FG_Q8_0) {
        return load64(at + (size_t)j * VECTOR);
    }
    char offset = type == FG_Q4_0 ? 8 : type == FG_Q5_0 ? 16 : 0;
    __m512i codes = unpack(type, at, j);
    return offset == 0 ? codes : _mm512_sub_epi8(codes, _mm512_set1_epi8(offset));
}

/* `count` groups of a panel, from the `first` on. */
FG_AVX512_INLINE void unpack_slice(uint32_t type, const uint8_t *panel, size_t first, size_t count,
                                   amx_group *groups)
{
    const fg_panel_shape shape = fg_panel_shape_of(type, 256);
    for (size_t g = 0; g < count; g++) {
        size_t in_unit = (first + g) % shape.unit_groups;
        const uint8_t *scales = panel + fg_panel_unit_offset(&shape, first + g);
        const uint8_t *codes = panel + fg_panel_codes_offset(&shape, first + g);
        factors f = scales_of(type, scales, in_unit);
        _mm512_store_ps(groups[g].d, f.d);
        if (fg_cpu_has_minimum(type)) {
            _mm512_store_ps(groups[g].minimum, f.minimum);
        }
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; j++) {
            _mm512_store_si512(groups[g].codes[j], signed_codes(type, codes, j));
        }
    }
}

typedef void (*unpack_fn)(const uint8_t *panel, size_t first, size_t count, amx_group *groups);

#define DEFINE_UNPACK(name, type)                                                                  \
    static void name##_unpack(const uint8_t *panel, size_t first, size_t count, amx_group *groups) \
    {                                                                                              \
        unpack_slice(type, panel, first, count, groups);                                           \
    }

FG_CPU_EACH_GROUPED(DEFINE_UNPACK)

#define UNPACK_CASE(name, type)                                                                    \
    case type:                                                                                     \
        return name##_unpack;

/* NULL: not a type of groups. */
static unpack_fn unpack_of(uint32_t type)
{
    switch (type) {
        FG_CPU_EACH_GROUPED(UNPACK_CASE)
    default:
        return NULL;
    }
}

/* Fewer rows take vpdpbusd. More than one strip (amx_few.c) must be many for unpacking a slice to be worth its time. */
static uint32_t rows_least(uint32_t type, uint32_t rows)
{
    if (rows <= STRIP_ROWS) {
        return type == FG_Q8_0 ? 13 : FG_AMX_TILE_ROWS_LEAST;
    }
    return type == FG_Q8_0 ? 28 : type == FG_Q6_K ? 24 : 20;
}

/* The most of all types. */
bool fg_cpu_amx_tiles_alone(uint32_t rows)
{
    return rows >= rows_least(FG_Q8_0, rows);
}

/* ---- products ---- */

/* Some rows of a product, BATCH_ROWS at most, against some panels. */
typedef struct batch {
    uint32_t first;
    uint32_t count;
    uint32_t panel; /* the first */
    uint32_t panels;
    uint32_t strip_count;
    bool meets_rows;
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
    bool meets_rows;   /* the first panels do */
} part;

/* Strips of rows against the slices of all panels, each with its share of what is asked for. */
static size_t make_units(const fg_linear *linear, const fg_activations *in, const part *of,
                         batch *b, size_t ask_bytes, size_t row_bytes, amx_unit *units)
{
    size_t group_count = in->columns / FG_QUANT_GROUP;
    size_t strip = b->first / STRIP_ROWS;
    size_t count = 0;
    for (uint32_t index = 0; index < b->strip_count; index++) {
        size_t row = b->first + (size_t)index * STRIP_ROWS;
        for (uint32_t i = 0; i < b->panels; i++) {
            uint32_t output = (b->panel + i) * FG_PANEL_OUTPUTS;
            uint32_t left = linear->weight.outputs - output;
            units[count++] = (amx_unit){
                .place = { in->quant_tiles + (strip + index) * group_count + of->first,
                           b->slices[i] },
                .totals = b->totals[i][index],
                .out = linear->out + row * linear->out_stride + output,
                .outputs = (__mmask16)(left >= FG_PANEL_OUTPUTS ? 0xFFFF : (1u << left) - 1),
                .ask = of->ask + i * of->ask_stride + index * ask_bytes,
                .ask_rows = (const uint8_t *)(in->quant_tiles + (strip + index + 1) * group_count +
                                              of->first) +
                            i * row_bytes
            };
        }
    }
    return count;
}

/* Strips of sixteen rows, then the one that has fewer. */
static void run_slice(const fg_linear *linear, const fg_activations *in, const part *of, batch *b)
{
    amx_kind kind = kind_of(linear->weight.type);
    size_t rounds = of->count / ROUND;
    amx_run run = { .rows = STRIP_ROWS,
                    .count = of->count,
                    .begins = of->first == 0,
                    .ends = of->first + of->count == in->columns / FG_QUANT_GROUP,
                    .accumulate = linear->accumulate,
                    .out_stride = linear->out_stride };
    run.asks_outputs = run.ends && !linear->out_is_near;
    if (rounds > 0) {
        size_t asking = b->strip_count * rounds;
        run.ask_lines = (of->ask_lines + asking - 1) / asking;
    }
    if (rounds > 0 && of->meets_rows) {
        size_t lines = of->count * sizeof(fg_quant_tile) / VECTOR, asking = b->panels * rounds;
        run.row_lines = (lines + asking - 1) / asking;
    }
    amx_unit units[SLICE_PANELS * BATCH_STRIPS];
    size_t unit_count = make_units(linear, in, of, b, rounds * run.ask_lines * VECTOR,
                                   rounds * run.row_lines * VECTOR, units);
    uint32_t last_rows = rows_of_strip(b, b->strip_count - 1);
    size_t short_units = last_rows < STRIP_ROWS ? b->panels : 0;
    size_t whole_units = unit_count - short_units;
    if (whole_units > 0) {
        kinds[kind](&run, units, whole_units);
    }
    if (short_units > 0) {
        run.rows = last_rows;
        kinds[kind](&run, units + whole_units, short_units);
    }
}

/* All groups of a row, if they are not too many. */
static size_t groups_of_slice(size_t group_count)
{
    return group_count <= SLICE_GROUPS ? SLICE_GROUPS : SLICE_USUAL;
}

static void run_batch(const fg_linear *linear, const fg_activations *in, batch *b)
{
    const fg_panels *w = &linear->weight;
    const fg_panel_shape shape = fg_panel_shape_of(w->type, w->columns);
    unpack_fn unpack_groups = unpack_of(w->type);
    size_t group_count = w->columns / FG_QUANT_GROUP;
    size_t slice_groups = groups_of_slice(group_count);
    size_t slice_bytes = fg_panel_unit_offset(&shape, slice_groups);
    const uint8_t *panels = (const uint8_t *)w->data + b->panel * shape.panel_bytes;
    for (size_t group = 0, count; group < group_count; group += count) {
        size_t left = group_count - group;
        size_t whole = left / ROUND * ROUND;
        count = left > slice_groups ? slice_groups : whole > 0 ? whole : left;
        size_t ask = left > slice_groups ? fg_panel_unit_offset(&shape, group + slice_groups)
                                         : b->panels * shape.panel_bytes;
        part now = { .first = group,
                     .count = count,
                     .ask = panels + ask,
                     .ask_stride = shape.panel_bytes,
                     .ask_lines = (slice_bytes + VECTOR - 1) / VECTOR,
                     .meets_rows = b->meets_rows };
        for (uint32_t i = 0; i < b->panels; i++) {
            unpack_groups(panels + i * shape.panel_bytes, group, count, b->slices[i]);
        }
        fg_amx_see_memory(b->slices);
        run_slice(linear, in, &now, b);
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
    bool few = rows < rows_least(w->type, rows) && in->quants != NULL;
    bool super = fg_cpu_is_super(w->type);
    if ((unpack_of(w->type) == NULL && !super) || few || in->quant_tiles == NULL) {
        fg_cpu_avx512_linear(linear, in, rows, first, count);
        return;
    }
    if (super) {
        (rows <= STRIP_ROWS ? fg_cpu_amx_super_few : fg_cpu_amx_super)(linear, in, rows, first,
                                                                       count);
        return;
    }
    if (rows <= STRIP_ROWS) {
        fg_cpu_amx_few(linear, in, rows, first, count);
        return;
    }
    configure();
    batch b;
    for (b.first = 0; b.first < rows; b.first += b.count) {
        b.count = rows - b.first < BATCH_ROWS ? rows - b.first : BATCH_ROWS;
        b.strip_count = (b.count + STRIP_ROWS - 1) / STRIP_ROWS;
        for (b.panel = first; b.panel < first + count; b.panel += b.panels) {
            uint32_t left = first + count - b.panel;
            b.panels = left < SLICE_PANELS ? left : SLICE_PANELS;
            b.meets_rows = b.panel == first && !linear->out_is_near;
            run_batch(linear, in, &b);
        }
    }
    _tile_release();
}
