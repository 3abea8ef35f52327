/*
 * Matrix products with AMX, super-groups and more than sixteen rows: amx_super.h says how.
 *
 * A slice of some panels is unpacked once for all rows of a batch, which pass in strips of sixteen:
 * as tiles and supers they are made (fg_quant_tile, fg_quant_super). The sums of a super-group are
 * in registers, a register a row; at its end they go to the rows' totals, which wait in memory, and
 * behind the last one those go to the outputs. A product is stored while the next one is
 * multiplied, and added some products later, beside the first ones of the next strip or panel.
 */
#include "kernels/cpu/amx_super.h"

enum { STRIP_ROWS = FG_TILE_ROWS, BATCH_ROWS = 512, BATCH_STRIPS = BATCH_ROWS / STRIP_ROWS };
/* What is unpacked at a time, so many super-groups of one panel or of several, stays in the
 * first-level cache while the rows pass: 27 KiB, or with codes of two parts 16. */
enum { SLICE_SUPERS = 4, SPLIT_SUPERS = 2, BATCH_UNITS = SLICE_SUPERS * BATCH_STRIPS };
/* A round has two products: groups, or lower and upper parts of one. Their sums have a
 * tile each. */
enum { ROUND = 2, SUMS = FG_AMX_SUMS };
/* Rows of a tile are asked for half by half, and with each half one super of the sixteen. */
enum { HALF_TILES = 2 * FG_QUANT_SUPER_GROUPS };
_Static_assert((int)HALF_TILES == (int)STRIP_ROWS, "a super for each half of a tile");

typedef __m512 strip_totals[STRIP_ROWS];

/* A strip of rows and a super-group of a panel. */
typedef struct amx_unit {
    const fg_quant_tile *rows;    /* their first group */
    const fg_quant_super *supers; /* of the first row */
    const fg_amx_super *weights;
    __m512 *totals;
    float *out;
    __mmask16 outputs;  /* that are there */
    bool begins;        /* the row's first super-group */
    bool ends;          /* and its last */
    const uint8_t *ask; /* its share of the weights that come next */
    /* The rows that come next, and its share of their halves of tiles. */
    const fg_quant_tile *ask_rows;
    const fg_quant_super *ask_supers;
    uint32_t ask_half;
} amx_unit;

/* What the units of a slice have in common. */
typedef struct amx_run {
    uint32_t rows;       /* of a strip */
    size_t row_supers;   /* from one row's supers to the next one's */
    size_t ask_lines;    /* of weights, by a unit for every round */
    uint32_t ask_halves; /* of rows; none after the first panels have met them */
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

/* The next round's. Upper parts multiply the same rows again. */
#define MULTIPLY(walk, slot, rows_tile, codes_tile)                                                \
    do {                                                                                           \
        const fg_amx_super *super = (walk).multiplied->weights;                                    \
        size_t part = fg_amx_is_split(type) ? (slot) : 0;                                          \
        size_t group = (walk).group + (fg_amx_is_split(type) ? 0 : (slot));                        \
        _tile_loadd(codes_tile, super->codes[part][group], VECTOR);                                \
        _tile_zero(slot);                                                                          \
        if (fg_amx_is_split(type) && (slot) == 1) {                                                \
            _tile_dpbssd(slot, 4, codes_tile);                                                     \
        } else {                                                                                   \
            _tile_loadd(rows_tile, (walk).multiplied->rows[group].quants, FG_QUANT_GROUP);         \
            _tile_dpbssd(slot, rows_tile, codes_tile);                                             \
        }                                                                                          \
    } while (0)

#define STORE(sums, slot) _tile_stored(slot, (sums) + (slot)*SUMS, VECTOR)

/* ---- a walk through the units of a slice, round by round ---- */

typedef struct amx_walk {
    const amx_run *run;
    const amx_unit *multiplied; /* the next round is of */
    size_t group;               /* of it */
    const amx_unit *added;
    size_t added_group;
    const uint8_t *ask;
    uint32_t ask_half;
    fg_amx_strip strip; /* of the unit that is added */
} amx_walk;

FG_AVX512_INLINE size_t round_groups(uint32_t type)
{
    return fg_amx_is_split(type) ? 1 : ROUND;
}

FG_AVX512_INLINE void ask_half(const amx_run *run, const amx_unit *unit, uint32_t half)
{
    const fg_quant_tile *tile = unit->ask_rows + half / 2;
    const char *quants = (const char *)tile->quants[half % 2 * FG_TILE_HALF];
    const char *super = (const char *)(unit->ask_supers + half * run->row_supers);
#pragma GCC unroll 4
    for (int i = 0; i < FG_TILE_HALF * FG_QUANT_GROUP; i += VECTOR) {
        _mm_prefetch(quants + i, _MM_HINT_T1);
    }
    _mm_prefetch(super, _MM_HINT_T1);
    _mm_prefetch(super + VECTOR, _MM_HINT_T1);
}
_Static_assert(sizeof(fg_quant_super) == 2 * VECTOR, "lines of a super");

/* The next round may be of the next unit. Weights are asked for all the time, not when they are
 * unpacked: too many at once would have to be waited for. */
FG_AVX512_INLINE void next_round(uint32_t type, amx_walk *w)
{
    for (size_t i = 0; i < w->run->ask_lines; i++, w->ask += VECTOR) {
        _mm_prefetch((const char *)w->ask, _MM_HINT_T1);
    }
    for (uint32_t i = 0; i < w->run->ask_halves && w->ask_half < HALF_TILES; i++, w->ask_half++) {
        ask_half(w->run, w->multiplied, w->ask_half);
    }
    w->group += round_groups(type);
    if (w->group == FG_QUANT_SUPER_GROUPS) {
        w->multiplied++;
        w->group = 0;
        w->ask = w->multiplied->ask;
        w->ask_half = w->multiplied->ask_half;
    }
}

/* Rows that are not there among the last ones. */
FG_AVX512_INLINE bool is_missing(int R, const amx_run *run, int r)
{
    return r >= R - 3 && (uint32_t)r >= run->rows;
}

/* Outputs lie where another thread may have written or read last: they are asked for, to be
 * written, while the unit before is added. */
FG_AVX512_INLINE void ask_outputs(int R, const amx_run *run, const amx_unit *unit)
{
    if (!run->asks_outputs || !unit->ends) {
        return;
    }
    const float *out = unit->out;
#pragma GCC unroll 16
    for (int r = 0; r < R; r++, out += run->out_stride) {
        if (is_missing(R, run, r)) {
            break;
        }
        __builtin_prefetch(out, 1);
    }
}

/* Totals wait for the next super-group. Behind the last one they are outputs. */
FG_AVX512_INLINE void put_total(const amx_run *run, const amx_unit *unit, int r, __m512 total)
{
    if (!unit->ends) {
        unit->totals[r] = total;
        return;
    }
    float *out = unit->out + (size_t)r * run->out_stride;
    if (run->accumulate) {
        total = _mm512_add_ps(_mm512_maskz_loadu_ps(unit->outputs, out), total);
    }
    _mm512_mask_storeu_ps(out, unit->outputs, total);
}

FG_AVX512_INLINE void end_unit(uint32_t type, int R, const amx_walk *w, __m512i *sums)
{
    const amx_unit *unit = w->added;
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
        if (is_missing(R, w->run, r)) {
            break;
        }
        __m512 total = unit->begins ? _mm512_setzero_ps() : unit->totals[r];
        total = fg_amx_end_super(type, r, unit->weights, &w->strip, sums[r], total);
        put_total(w->run, unit, r, total);
    }
    fg_amx_begin_sums(R, sums);
}

FG_AVX512_INLINE void bring_strip(uint32_t type, int R, amx_walk *w)
{
    fg_amx_bring_strip(type, R, w->added->supers, w->run->row_supers, w->run->rows, &w->strip);
}

/* The sums of the next unit, when one is complete. */
FG_AVX512_INLINE void end_round(uint32_t type, int R, amx_walk *w, __m512i *sums)
{
    w->added_group += round_groups(type);
    if (w->added_group == FG_QUANT_SUPER_GROUPS) {
        end_unit(type, R, w, sums);
        w->added++;
        w->added_group = 0;
        if (w->added->supers != w->added[-1].supers) {
            bring_strip(type, R, w);
        }
        ask_outputs(R, w->run, w->added);
    }
}

/* The first or the second half of a round that is stored, and of that a quarter ahead, or the
 * rest. */
FG_AVX512_INLINE void add_half(uint32_t type, int R, int half, bool rest, const amx_walk *w,
                               const int32_t *stored, __m512i *sums)
{
    bool split = fg_amx_is_split(type);
    int first = split ? half * R / 2 : 0;
    int end = split ? first + R / 2 : R;
    int middle = first + (end - first) / 4;
    fg_amx_add_group(type, rest ? middle : first, rest ? end : middle, w->added->weights, &w->strip,
                     w->added_group + (size_t)(split ? 0 : half),
                     stored + (split ? 0 : half * SUMS), sums);
}

FG_AVX512_INLINE void add_round(uint32_t type, int R, const amx_walk *w, const int32_t *stored,
                                __m512i *sums)
{
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        add_half(type, R, half, false, w, stored, sums);
        add_half(type, R, half, true, w, stored, sums);
    }
}

/* While the third product before it is added, a quarter of its rows ahead, a product is multiplied;
 * then the one before it is stored. A unit has at least four rounds. */
FG_AVX512_INLINE void run_units(uint32_t type, int R, const amx_run *run, const amx_unit *units,
                                size_t unit_count)
{
    _Alignas(VECTOR) int32_t ring[2][ROUND * SUMS];
    int32_t *stored = ring[0], *later = ring[1];
    __m512i sums[STRIP_ROWS];
    amx_walk w = { .run = run,
                   .multiplied = units,
                   .added = units,
                   .ask = units->ask,
                   .ask_half = units->ask_half };
    MULTIPLY(w, 0, 4, 6);
    MULTIPLY(w, 1, 5, 7);
    STORE(stored, 0);
    next_round(type, &w);
    MULTIPLY(w, 0, 4, 6);
    STORE(stored, 1);
    bring_strip(type, R, &w);
    fg_amx_begin_sums(R, sums);
    size_t rounds = unit_count * FG_QUANT_SUPER_GROUPS / round_groups(type);
    for (size_t left = rounds - 2; left > 0; left--) {
        add_half(type, R, 0, false, &w, stored, sums);
        MULTIPLY(w, 1, 5, 7);
        add_half(type, R, 0, true, &w, stored, sums);
        STORE(later, 0);
        next_round(type, &w);
        add_half(type, R, 1, false, &w, stored, sums);
        MULTIPLY(w, 0, 4, 6);
        add_half(type, R, 1, true, &w, stored, sums);
        STORE(later, 1);
        end_round(type, R, &w, sums);
        int32_t *free = stored;
        stored = later;
        later = free;
    }
    MULTIPLY(w, 1, 5, 7);
    STORE(later, 0);
    add_round(type, R, &w, stored, sums);
    STORE(later, 1);
    end_round(type, R, &w, sums);
    add_round(type, R, &w, later, sums);
    end_unit(type, R, &w, sums);
}

/* Multiplied are all sixteen rows of a strip, added are those that are there and up to three
 * more. */
FG_AVX512_INLINE void choose_rows(uint32_t type, const amx_run *run, const amx_unit *units,
                                  size_t unit_count)
{
    if (run->rows > 12) {
        run_units(type, 16, run, units, unit_count);
    } else if (run->rows > 8) {
        run_units(type, 12, run, units, unit_count);
    } else if (run->rows > 4) {
        run_units(type, 8, run, units, unit_count);
    } else {
        run_units(type, 4, run, units, unit_count);
    }
}

/* ---- slices ---- */

/* A super-group of a panel. */
FG_AVX512_INLINE void unpack_super(uint32_t type, const uint8_t *at, fg_amx_super *out)
{
    const fg_panel_shape shape = fg_panel_shape_of(type, FG_QUANT_SUPER);
    const uint8_t *codes = at + shape.scale_bytes;
    fg_amx_unpack_scales(type, at, out);
    for (size_t g = 0; g < FG_QUANT_SUPER_GROUPS; g++, codes += shape.group_bytes) {
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; j++) {
            fg_amx_unpack_vector(type, at, codes, g, j, out);
        }
    }
}

typedef struct amx_kernels {
    void (*unpack)(const uint8_t *at, fg_amx_super *out);
    void (*run)(const amx_run *run, const amx_unit *units, size_t unit_count);
} amx_kernels;

#define DEFINE_KERNELS(name, type)                                                                 \
    static void name##_unpack(const uint8_t *at, fg_amx_super *out)                                \
    {                                                                                              \
        unpack_super(type, at, out);                                                               \
    }                                                                                              \
    static void name##_run(const amx_run *run, const amx_unit *units, size_t unit_count)           \
    {                                                                                              \
        choose_rows(type, run, units, unit_count);                                                 \
    }

FG_CPU_EACH_SUPER(DEFINE_KERNELS)

#define KERNELS_CASE(name, type)                                                                   \
    case type:                                                                                     \
        return (amx_kernels){ name##_unpack, name##_run };

static amx_kernels kernels_of(uint32_t type)
{
    switch (type) {
        FG_CPU_EACH_SUPER(KERNELS_CASE)
    default:
        return (amx_kernels){ NULL, NULL };
    }
}

/* ---- products ---- */

/* Some rows of a product, BATCH_ROWS at most, against some panels. */
typedef struct batch {
    const fg_linear *linear;
    const fg_activations *in;
    amx_kernels kernels;
    uint32_t first;
    uint32_t count;
    uint32_t panel; /* the first */
    uint32_t panels;
    uint32_t strip_count;
    bool meets_rows;                    /* the first panels do */
    fg_amx_super weights[SLICE_SUPERS]; /* panel by panel of each super-group */
    strip_totals totals[SLICE_SUPERS][BATCH_STRIPS];
} batch;

static uint32_t rows_of_strip(const batch *b, uint32_t index)
{
    uint32_t left = b->count - index * STRIP_ROWS;
    return left < STRIP_ROWS ? left : STRIP_ROWS;
}

/* Super-groups of some panels, and what comes next: the first panel's next ones, or what lies
 * behind the last panel. */
typedef struct slice {
    size_t super;
    size_t count;
    const uint8_t *ask;
    size_t ask_stride; /* from panel to panel */
    size_t ask_bytes;  /* of a unit */
    uint32_t ask_halves;
} slice;

/* A strip of rows against a super-group of all panels, each with its share of what is asked for.
 * Behind the last strip come the first one's next super-groups. */
static void make_units(batch *b, const slice *of, uint32_t index, size_t s, amx_unit *units)
{
    const fg_linear *linear = b->linear;
    size_t super_count = b->in->columns / FG_QUANT_SUPER;
    bool is_last = index + 1 == b->strip_count;
    size_t strip = b->first / STRIP_ROWS + index;
    size_t next_strip = is_last ? b->first / STRIP_ROWS : strip + 1;
    size_t super = of->super + s;
    size_t next_super = is_last ? super + of->count : super;
    size_t row = strip * STRIP_ROWS;
    for (uint32_t i = 0; i < b->panels; i++) {
        uint32_t output = (b->panel + i) * FG_PANEL_OUTPUTS;
        uint32_t left = linear->weight.outputs - output;
        units[i] = (amx_unit){
            .rows = b->in->quant_tiles + (strip * super_count + super) * FG_QUANT_SUPER_GROUPS,
            .supers = b->in->supers + row * super_count + super,
            .weights = &b->weights[s * b->panels + i],
            .totals = b->totals[i][index],
            .out = linear->out + row * linear->out_stride + output,
            .outputs = (__mmask16)(left >= FG_PANEL_OUTPUTS ? 0xFFFF : (1u << left) - 1),
            .begins = super == 0,
            .ends = super + 1 == super_count,
            .ask = of->ask + i * of->ask_stride + (index * of->count + s) * of->ask_bytes,
            .ask_rows = b->in->quant_tiles +
                        (next_strip * super_count + next_super) * FG_QUANT_SUPER_GROUPS,
            .ask_supers = b->in->supers + next_strip * STRIP_ROWS * super_count + next_super,
            .ask_half = i * of->ask_halves
        };
    }
}

/* Strips of sixteen rows, then the one that has fewer. */
static void run_units_of(batch *b, const slice *of, amx_run *run)
{
    amx_unit units[BATCH_UNITS];
    size_t of_strip = of->count * b->panels;
    for (uint32_t index = 0; index < b->strip_count; index++) {
        for (size_t s = 0; s < of->count; s++) {
            make_units(b, of, index, s, units + index * of_strip + s * b->panels);
        }
    }
    uint32_t last_rows = rows_of_strip(b, b->strip_count - 1);
    uint32_t whole = last_rows < STRIP_ROWS ? b->strip_count - 1 : b->strip_count;
    run->rows = STRIP_ROWS;
    if (whole > 0) {
        b->kernels.run(run, units, whole * of_strip);
    }
    if (last_rows < STRIP_ROWS) {
        run->rows = last_rows;
        b->kernels.run(run, units + whole * of_strip, of_strip);
    }
}

/* Super-groups `super` and on, `ask` the first panel's part of what comes next. */
static void run_slice(batch *b, size_t super, size_t count, const uint8_t *ask,
                      const fg_panel_shape *shape)
{
    size_t rounds = FG_QUANT_SUPER_GROUPS / round_groups(b->linear->weight.type);
    size_t lines = shape->unit_bytes / VECTOR, asking = b->strip_count * rounds;
    amx_run run = { .row_supers = b->in->columns / FG_QUANT_SUPER,
                    .ask_lines = (lines + asking - 1) / asking,
                    .asks_outputs = !b->linear->out_is_near,
                    .accumulate = b->linear->accumulate,
                    .out_stride = b->linear->out_stride };
    if (b->meets_rows) {
        uint32_t sharing = b->panels * (uint32_t)rounds;
        run.ask_halves = (HALF_TILES + sharing - 1) / sharing;
    }
    slice now = { .super = super,
                  .count = count,
                  .ask = ask,
                  .ask_stride = shape->panel_bytes,
                  .ask_bytes = rounds * run.ask_lines * VECTOR,
                  .ask_halves = (uint32_t)rounds * run.ask_halves };
    run_units_of(b, &now, &run);
}

static void run_batch(batch *b, size_t slice_supers)
{
    const fg_panels *w = &b->linear->weight;
    const fg_panel_shape shape = fg_panel_shape_of(w->type, w->columns);
    size_t super_count = w->columns / FG_QUANT_SUPER;
    const uint8_t *panels = (const uint8_t *)w->data + b->panel * shape.panel_bytes;
    for (size_t super = 0, count; super < super_count; super += count) {
        size_t left = super_count - super;
        count = left < slice_supers ? left : slice_supers;
        const uint8_t *at = panels + super * shape.unit_bytes;
        for (uint32_t i = 0; i < b->panels; i++) {
            for (size_t s = 0; s < count; s++) {
                b->kernels.unpack(at + i * shape.panel_bytes + s * shape.unit_bytes,
                                  &b->weights[s * b->panels + i]);
            }
        }
        fg_amx_see_memory(b->weights);
        const uint8_t *ask =
            left > count ? at + count * shape.unit_bytes : panels + b->panels * shape.panel_bytes;
        run_slice(b, super, count, ask, &shape);
    }
}

void fg_cpu_amx_super(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                      uint32_t first, uint32_t count)
{
    uint32_t most = fg_amx_is_split(linear->weight.type) ? SPLIT_SUPERS : SLICE_SUPERS;
    configure();
    batch b; /* 170 KiB that need no zeros */
    b.linear = linear;
    b.in = in;
    b.kernels = kernels_of(linear->weight.type);
    for (b.first = 0; b.first < rows; b.first += b.count) {
        b.count = rows - b.first < BATCH_ROWS ? rows - b.first : BATCH_ROWS;
        b.strip_count = (b.count + STRIP_ROWS - 1) / STRIP_ROWS;
        for (b.panel = first; b.panel < first + count; b.panel += b.panels) {
            uint32_t left = first + count - b.panel;
            b.panels = left < most ? left : most;
            b.meets_rows = b.panel == first && !linear->out_is_near;
            run_batch(&b, most / b.panels);
        }
    }
    _tile_release();
}
