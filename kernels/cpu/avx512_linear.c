/*
 * Matrix products with AVX-512 and VNNI, over panels of sixteen outputs (kernels/panel.h).
 *
 * A register holds four columns of all sixteen outputs of a panel, and a lane of its sums is an output: no
 * sum is ever folded, and one row runs through the same instructions as many. A tile is R rows against P
 * panels; the integer sums of a group and the float sums of the rows stay in registers, each vector of
 * codes is unpacked once and meets every row of the tile, four of whose columns are broadcast.
 *
 * vpdpbusd multiplies unsigned with signed bytes and adds in 32 bits, exactly: codes go in without their
 * offset (8-bit ones with their top bit turned, which adds 128), and a row's sum begins at minus offset
 * times the sum of its quants.
 *
 * A super-group has integer sums alone: a group's sum is multiplied with its integer scale, which the row's shift has gone
 * into, and added to the super-group's. What its offset adds too much, and minima, are products of scales with sums of
 * quants, two at once. The largest sum is 8 * 128 * 32 * 127 * 256, less than 2^31. Rows' totals lie in memory meanwhile, and
 * a tile has one panel. Many rows are in avx512_linear_super.c.
 *
 * One product of 512 bits starts in a cycle, be it of bytes or of floats, and one load of 512 bits, be it a
 * broadcast. So what is left beside the eight vpdpbusd of a row's group decides: a row's columns are
 * broadcast once for two panels, sums begin with a shift, and what depends on the weights alone is
 * multiplied once for all rows. Pairs of panels, and single ones (not of super-groups) that several tiles pass, are taken
 * slice by slice, which stay in the first-level cache while all rows pass; the rows' sums wait in memory.
 */
#include "kernels/cpu/avx512_unpack.h"
#include "kernels/cpu/panel_group.h"

enum { TILE_ROWS = 8, TILE_PANELS = 2, TILE_THIRDS = (TILE_ROWS + 2) / 3 };
/* Slices of all panels of a tile, and what they are a multiple of: whole units of every type. */
enum { SLICE_BYTES = 18 << 10, UNIT_GROUPS = 8 };
/* Rows whose sums wait, and the most tiles they make. */
enum { BATCH_ROWS = 96, BATCH_TILES = BATCH_ROWS / 6 };
/* Bytes ahead of a walk through panels: what arrives meanwhile from memory, in the second-level cache, which
 * waits for more lines at once than the first. One row passes quickly enough for AMD's processors to foresee the
 * walk; asked for every line as well, they read a quarter slower. They are told the next page, a line a group. Intel's
 * want to be asked for every line, one after another, and not so far ahead. */
enum {
    AHEAD = 6144,
    AHEAD_FORESEEN = 4096,
    INTEL_AHEAD = 4096,
    INTEL_AHEAD_ONE = 3072,
    AHEAD_NEAR = 256
};

/* Some rows against some panels. */
typedef struct tile {
    const uint8_t *panel; /* the first */
    size_t panel_bytes;
    const int8_t *quants;         /* of the tile's first row */
    const fg_quant_group *groups; /* of the tile's first row */
    const fg_quant_super *supers; /* the same */
    size_t columns;
    size_t group_count;
    /* From one row's groups, or supers, to the next; of quants it is twice that, so that one register holds both. */
    size_t row_bytes;
    size_t group_first; /* the groups to add */
    size_t group_end;
    /* What is asked for meanwhile, in each panel: so many lines for every group. */
    const uint8_t *ask;
    size_t ask_lines;  /* 0: what lies `ahead` */
    size_t ask_apart;  /* from what is asked for in the first panel to that in the second */
    size_t ahead;      /* bytes */
    bool foresees;     /* the processor does, where it has the time */
    bool asks_between; /* vectors, instead of groups */
    /* Where the sums go behind the last group. */
    const fg_linear *linear;
    uint32_t row;
    uint32_t output;
} tile;
_Static_assert(2 * sizeof(fg_quant_group) == FG_QUANT_GROUP, "rows of groups and of quants");
_Static_assert(2 * sizeof(fg_quant_super) == FG_QUANT_SUPER, "rows of supers and of quants");

/* A group as the walk through the panels meets it. */
typedef struct place {
    const uint8_t *scales; /* of its unit, in the first panel */
    const uint8_t *codes;
    size_t in_unit;
    size_t group; /* in the row */
    /* Its quants and what is known of them in rows 0, 3 and 6: three rows share a pointer, or addresses would not
     * fit the registers. */
    const int8_t *quants[TILE_THIRDS];
    const fg_quant_group *groups[TILE_THIRDS];
} place;

/* Of each row of a tile against each panel. */
typedef __m512i int_sums[TILE_PANELS][TILE_ROWS];
typedef __m512 float_sums[TILE_PANELS][TILE_ROWS];

/* Where a row's sum begins: what the codes' offset adds too much. */
FG_AVX512_INLINE __m512i begin_sum(uint32_t type, const fg_quant_group *group)
{
    if (offset_bits(type) == 0) {
        return _mm512_setzero_si512();
    }
    return _mm512_slli_epi32(_mm512_set1_epi32(group->negated), offset_bits(type));
}

/* Row r's part of the group. */
FG_AVX512_INLINE const fg_quant_group *group_of(const tile *t, const place *p, int r)
{
    const char *first = (const char *)p->groups[r / 3];
    return (const fg_quant_group *)(const void *)(first + (size_t)(r % 3) * t->row_bytes);
}

/* A group's lines are asked for between its vectors: in one go they meet a queue that is full, and that empties while
 * the group is multiplied. What is near comes on into the first-level cache. */
FG_AVX512_INLINE void ask_between(uint32_t type, const tile *t, const place *p, int j)
{
    int lines = (int)fg_panel_group_bytes(type) / VECTOR;
    int line = j * lines / VECTORS;
    if (j == 0 || line != (j - 1) * lines / VECTORS) {
        const char *at = (const char *)p->codes + line * VECTOR;
        _mm_prefetch(at + t->ahead, _MM_HINT_T1);
        _mm_prefetch(at + AHEAD_NEAR, _MM_HINT_T0);
    }
    __asm__ volatile("" : : : "memory"); /* the compiler would gather them again */
}

/* (Q6_K's codes leave vectors too few for what broadcast_row is about.) */
FG_AVX512_INLINE __m512i row_columns(uint32_t type, const int8_t *at, size_t row_bytes, int rows,
                                     int column)
{
    return type == FG_Q6_K ? broadcast4(at + (size_t)rows * 2 * row_bytes + column)
                           : broadcast_row(at, row_bytes, rows, column);
}

/* Columns 4 * first .. 4 * end - 1 of the group. */
FG_AVX512_INLINE void multiply(uint32_t type, int R, int P, bool asks, const tile *t,
                               const place *p, int first, int end, int_sums sums)
{
#pragma GCC unroll 8
    for (int j = first; j < end; j++) {
        if (asks) {
            ask_between(type, t, p, j);
        }
        __m512i w[TILE_PANELS];
#pragma GCC unroll 2
        for (int i = 0; i < P; i++) {
            w[i] = unpack(type, p->codes + (size_t)i * t->panel_bytes, j);
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            __m512i columns = row_columns(type, p->quants[r / 3], t->row_bytes, r % 3, 4 * j);
#pragma GCC unroll 2
            for (int i = 0; i < P; i++) {
                sums[i][r] = _mm512_dpbusd_epi32(sums[i][r], w[i], columns);
            }
        }
    }
}

FG_AVX512_INLINE __m512 add_scaled(uint32_t type, __m512 sum, const fg_quant_group *group,
                                   const factors *f, __m512 total)
{
    if (fg_cpu_has_minimum(type)) {
        total = _mm512_fmadd_ps(f->minimum, _mm512_set1_ps(group->offset), total);
    }
    __m512 scale = _mm512_mul_ps(f->d, _mm512_set1_ps(group->scale));
    return _mm512_fmadd_ps(scale, sum, total);
}

FG_AVX512_INLINE void add_group(uint32_t type, int R, int P, bool asks, const tile *t,
                                const place *p, float_sums totals)
{
    factors f[TILE_PANELS];
    int_sums sums;
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        __m512i begin = begin_sum(type, group_of(t, p, r));
#pragma GCC unroll 2
        for (int i = 0; i < P; i++) {
            sums[i][r] = begin;
        }
    }
#pragma GCC unroll 2
    for (int i = 0; i < P; i++) {
        f[i] = scales_of(type, p->scales + (size_t)i * t->panel_bytes, p->in_unit);
    }
    multiply(type, R, P, asks, t, p, 0, VECTORS, sums);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        const fg_quant_group *group = group_of(t, p, r);
#pragma GCC unroll 2
        for (int i = 0; i < P; i++) {
            totals[i][r] =
                add_scaled(type, _mm512_cvtepi32_ps(sums[i][r]), group, &f[i], totals[i][r]);
        }
    }
}

/* ---- super-groups, of one panel ---- */

typedef __m512i super_sums[TILE_ROWS];
typedef int32_t super_shifts[TILE_ROWS][FG_QUANT_SUPER_GROUPS];

/* Row r's part of the super-group. */
FG_AVX512_INLINE const fg_quant_super *super_of(const tile *t, const place *p, int r)
{
    const char *first = (const char *)(t->supers + p->group / FG_QUANT_SUPER_GROUPS);
    return (const fg_quant_super *)(const void *)(first + (size_t)r * t->row_bytes);
}

/* What the integer minima of a super-group come to, scaled. */
FG_AVX512_INLINE void add_minima(int R, const tile *t, const place *p, __m512 *totals)
{
    __m512i minima[FG_QUANT_SUPER_GROUPS / 2];
#pragma GCC unroll 4
    for (size_t g = 0; g < FG_QUANT_SUPER_GROUPS; g += 2) {
        minima[g / 2] = minima_of_two(p->scales, g);
    }
    __m512 d = super_minimum(p->scales);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        const fg_quant_super *super = super_of(t, p, r);
        __m512i sum = _mm512_setzero_si512();
#pragma GCC unroll 4
        for (int g = 0; g < FG_QUANT_SUPER_GROUPS; g += 2) {
            sum = _mm512_dpwssd_epi32(sum, minima[g / 2], broadcast4(super->sums + g));
        }
        totals[r] = _mm512_fmadd_ps(_mm512_mul_ps(d, _mm512_set1_ps(super->scale)),
                                    _mm512_cvtepi32_ps(sum), totals[r]);
    }
}

/* Where the sums of a super-group begin: what the codes' offset, times their scales, adds too much. */
FG_AVX512_INLINE void begin_super(uint32_t type, int R, const tile *t, const place *p,
                                  super_sums sums)
{
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        sums[r] = _mm512_setzero_si512();
    }
    if (type != FG_Q6_K) {
        return;
    }
#pragma GCC unroll 8
    for (size_t g = 0; g < FG_QUANT_SUPER_GROUPS; g++) {
        __m512i pairs = scales_of_halves(p->scales, g);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            sums[r] = _mm512_dpwssd_epi32(sums[r], pairs, broadcast4(super_of(t, p, r)->halves[g]));
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        sums[r] = _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(sums[r], 5));
    }
}

/* To where one register finds those of all rows. */
FG_AVX512_INLINE void bring_shifts(int R, const tile *t, const place *p, super_shifts out)
{
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        const __m256i *at = (const __m256i *)(const void *)super_of(t, p, r)->shifts;
        _mm256_storeu_si256((__m256i *)(void *)out[r], _mm256_loadu_si256(at));
    }
}

/* Columns 4 * first .. 4 * end - 1 of a group, times their integer scale, which the shifts of rows go into. */
FG_AVX512_INLINE void add_integers(uint32_t type, int R, bool asks, const tile *t, const place *p,
                                   const super_shifts shifts, int first, int end, super_sums totals)
{
    int_sums sums;
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        sums[0][r] = _mm512_setzero_si512();
    }
    multiply(type, R, 1, asks, t, p, first, end, sums);
    __m512i scale = integer_scale(type, p->scales, p->in_unit, first != 0);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        __m512i shifted = _mm512_sllv_epi32(scale, broadcast4(&shifts[r][p->in_unit]));
        totals[r] = _mm512_add_epi32(totals[r], _mm512_mullo_epi32(sums[0][r], shifted));
    }
}

FG_AVX512_INLINE void end_super(int R, const tile *t, const place *p, const super_sums sums,
                                __m512 *totals)
{
    __m512 d = halves(p->scales);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        __m512 scale = _mm512_mul_ps(d, _mm512_set1_ps(super_of(t, p, r)->scale));
        totals[r] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(sums[r]), totals[r]);
    }
}

/* ---- walks ---- */

/* Whether processors that do foresee by themselves what R rows will read. Codes that take long to unpack leave no room
 * to look ahead; nor do super-groups on a Zen 5, which reads them in bursts. */
FG_AVX512_INLINE bool is_foreseen(uint32_t type, int R)
{
    return R == 1 && type != FG_Q5_K && type != FG_Q6_K;
}

FG_AVX512_INLINE void ask_ahead(uint32_t type, int R, const tile *t, const uint8_t *at,
                                size_t size_bytes)
{
    if (is_foreseen(type, R) && t->foresees) {
        _mm_prefetch((const char *)at + AHEAD_FORESEEN, _MM_HINT_T1);
        return;
    }
    for (size_t i = 0; i < size_bytes; i += VECTOR) {
        _mm_prefetch((const char *)at + t->ahead + i, _MM_HINT_T1);
    }
}

FG_AVX512_INLINE void begin_rows(int R, const tile *t, place *p)
{
#pragma GCC unroll 3
    for (int i = 0; i < (R + 2) / 3; i++) {
        p->quants[i] = t->quants + 3 * (size_t)i * t->columns + p->group * FG_QUANT_GROUP;
        p->groups[i] = t->groups + 3 * (size_t)i * t->group_count + p->group;
    }
}

/* The next group's quants. The compiler may not make one pointer of them again. */
FG_AVX512_INLINE void go_on(int R, place *p)
{
#pragma GCC unroll 3
    for (int i = 0; i < (R + 2) / 3; i++) {
        p->quants[i] += FG_QUANT_GROUP;
        __asm__("" : "+r"(p->quants[i]));
    }
}

/* And what is known of them. */
FG_AVX512_INLINE void go_on_with_groups(int R, place *p)
{
    p->group++;
#pragma GCC unroll 3
    for (int i = 0; i < (R + 2) / 3; i++) {
        p->groups[i]++;
        __asm__("" : "+r"(p->groups[i]));
    }
}

/* Totals of the slices before, or nothing. */
FG_AVX512_INLINE void begin_totals(int R, int P, const tile *t, float_sums totals_in,
                                   float_sums totals)
{
    bool fresh = t->group_first == 0;
#pragma GCC unroll 12
    for (int i = 0; i < R * P; i++) {
        totals[i / R][i % R] = fresh ? _mm512_setzero_ps() : totals_in[i / R][i % R];
    }
}

/* Totals to where they wait for the next slice. Behind the last one they are the outputs, which come from memory and
 * are put tile by tile, so that the next tile covers their way. */
FG_AVX512_INLINE void end_totals(int R, int P, const tile *t, float_sums totals,
                                 float_sums totals_out)
{
    bool last = t->group_end == t->group_count;
#pragma GCC unroll 2
    for (int i = 0; i < P; i++) {
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            if (last) {
                fg_avx512_put_panel(t->linear, t->row + (uint32_t)r,
                                    t->output + (uint32_t)i * FG_PANEL_OUTPUTS, totals[i][r]);
            } else {
                totals_out[i][r] = totals[i][r];
            }
        }
    }
}

/* A tile's part in asking for what follows the slice; returns what is asked for next. */
FG_AVX512_INLINE const uint8_t *ask_behind(int P, const tile *t, const uint8_t *next)
{
    for (size_t i = 0; i < t->ask_lines; i++, next += VECTOR) {
        _mm_prefetch((const char *)next, _MM_HINT_T1);
        if (P > 1) {
            _mm_prefetch((const char *)next + t->ask_apart, _MM_HINT_T1);
        }
    }
    return next;
}

/* R rows against the groups of P panels: totals grow. `asks`: between vectors. */
FG_AVX512_INLINE void walk_groups(uint32_t type, int R, int P, bool asks, const tile *t,
                                  float_sums totals_io)
{
    const fg_panel_shape shape = fg_panel_shape_of(type, 256);
    place p = { .scales = t->panel + fg_panel_unit_offset(&shape, t->group_first),
                .group = t->group_first };
    const uint8_t *next = t->ask;
    float_sums totals;
    begin_rows(R, t, &p);
    begin_totals(R, P, t, totals_io, totals);
    while (p.group < t->group_end) {
        if (t->ask_lines == 0) {
            ask_ahead(type, R, t, p.scales, shape.scale_bytes);
        }
        p.codes = p.scales + shape.scale_bytes;
        size_t left = t->group_end - p.group;
        size_t count = left < shape.unit_groups ? left : shape.unit_groups;
        for (p.in_unit = 0; p.in_unit < count; p.in_unit++) {
            if (t->ask_lines == 0 && !asks) {
                ask_ahead(type, R, t, p.codes, shape.group_bytes);
            }
            next = ask_behind(P, t, next);
            add_group(type, R, P, asks, t, &p, totals);
            p.codes += shape.group_bytes;
            go_on(R, &p);
            go_on_with_groups(R, &p);
        }
        p.scales += shape.unit_bytes;
    }
    end_totals(R, P, t, totals, totals_io);
}

/* The same in super-groups of one panel, whose integer sums take the registers: totals are in memory. */
FG_AVX512_INLINE void walk_supers(uint32_t type, int R, bool asks, const tile *t, float_sums totals)
{
    const fg_panel_shape shape = fg_panel_shape_of(type, 256);
    place p = { .scales = t->panel };
    const uint8_t *next = t->ask;
    begin_rows(R, t, &p);
    begin_totals(R, 1, t, totals, totals);
    for (; p.group < t->group_end; p.group += FG_QUANT_SUPER_GROUPS) {
        super_sums sums;
        super_shifts shifts;
        if (t->ask_lines == 0) {
            ask_ahead(type, R, t, p.scales, shape.scale_bytes);
        }
        p.codes = p.scales + shape.scale_bytes;
        if (fg_cpu_has_minimum(type)) {
            add_minima(R, t, &p, totals[0]);
        }
        begin_super(type, R, t, &p, sums);
        bring_shifts(R, t, &p, shifts);
#pragma GCC unroll 1
        for (p.in_unit = 0; p.in_unit < FG_QUANT_SUPER_GROUPS; p.in_unit++) {
            if (t->ask_lines == 0 && !asks) {
                ask_ahead(type, R, t, p.codes, shape.group_bytes);
            }
            next = ask_behind(1, t, next);
            if (type == FG_Q6_K) {
                add_integers(type, R, asks, t, &p, shifts, 0, VECTORS / 2, sums);
                add_integers(type, R, asks, t, &p, shifts, VECTORS / 2, VECTORS, sums);
            } else {
                add_integers(type, R, asks, t, &p, shifts, 0, VECTORS, sums);
            }
            p.codes += shape.group_bytes;
            go_on(R, &p);
        }
        end_super(R, t, &p, sums, totals[0]);
        p.scales += shape.unit_bytes;
    }
    end_totals(R, 1, t, totals, totals);
}

FG_AVX512_INLINE void run_tile(uint32_t type, int R, int P, const tile *t, float_sums totals)
{
    bool asks = t->asks_between && t->ask_lines == 0;
    if (fg_cpu_is_super(type) && asks) {
        walk_supers(type, R, true, t, totals);
    } else if (fg_cpu_is_super(type)) {
        walk_supers(type, R, false, t, totals);
    } else if (P == 1 && asks) {
        walk_groups(type, R, P, true, t, totals);
    } else {
        walk_groups(type, R, P, false, t, totals);
    }
}

/* Types whose codes and scales leave registers for two panels. */
FG_AVX512_INLINE bool pairs_panels(uint32_t type)
{
    return !fg_cpu_is_super(type);
}

/* Rows up to which a tile has one panel: few rows wait for memory, which gives more when it is read in one go, and
 * what takes long to unpack, or leaves few registers, needs many rows for fewer broadcasts to pay. Where two products begin
 * in a cycle, as many as loads do, broadcasts are what products wait for sooner. */
static uint32_t few_rows(uint32_t type)
{
    switch (type) {
    case FG_Q5_0:
        return fg_avx512_begins_two() ? TILE_ROWS : 2 * TILE_ROWS;
    case FG_Q4_1:
    case FG_Q5_1:
        return 2 * TILE_ROWS;
    default:
        return TILE_ROWS;
    }
}

static uint32_t tile_panels(uint32_t type, uint32_t rows, uint32_t left)
{
    return pairs_panels(type) && left > 1 && rows > few_rows(type) ? TILE_PANELS : 1;
}

/* Rows of a tile against so many panels, as registers allow. */
static uint32_t most_rows(uint32_t panels)
{
    return panels == 1 ? TILE_ROWS : 6;
}

#define RUN(R, P)                                                                                  \
    case (R)*4 + (P):                                                                              \
        if ((P) == 1 || pairs_panels(type)) {                                                      \
            run_tile(type, R, P, t, totals);                                                       \
        }                                                                                          \
        break;

FG_AVX512_INLINE void choose_tile(uint32_t type, uint32_t rows, uint32_t panels, const tile *t,
                                  float_sums totals)
{
    switch (rows * 4 + panels) {
        RUN(1, 1)
        RUN(1, 2)
        RUN(2, 1)
        RUN(2, 2)
        RUN(3, 1)
        RUN(3, 2)
        RUN(4, 1)
        RUN(4, 2)
        RUN(5, 1)
        RUN(5, 2)
        RUN(6, 1)
        RUN(6, 2)
        RUN(7, 1)
        RUN(8, 1)
    default:
        break;
    }
}

/* One function per type: the type is a constant in each. */
#define DEFINE_TILE(name, type)                                                                    \
    static void name##_tile(uint32_t rows, uint32_t panels, const tile *t, float_sums totals)      \
    {                                                                                              \
        choose_tile(type, rows, panels, t, totals);                                                \
    }

FG_CPU_EACH_QUANTIZED(DEFINE_TILE)

typedef void (*tile_fn)(uint32_t rows, uint32_t panels, const tile *t, float_sums totals);

#define TILE_CASE(name, type)                                                                      \
    case type:                                                                                     \
        return name##_tile;

/* NULL: not a quantised type. */
static tile_fn tile_of(uint32_t type)
{
    switch (type) {
        FG_CPU_EACH_QUANTIZED(TILE_CASE)
    default:
        return NULL;
    }
}

/* Some rows of a product, BATCH_ROWS at most, against the tile's panels. */
typedef struct batch {
    fg_panel_shape shape;
    size_t group_count;
    uint32_t first;
    uint32_t count;
    uint32_t panels;
    uint32_t tile_count;
    uint32_t tile_rows; /* tiles are about as large as each other */
    size_t slice_groups;
    float_sums totals[BATCH_TILES];
} batch;

static void begin_batch(uint32_t type, batch *b)
{
    uint32_t most = most_rows(b->panels);
    b->tile_count = (b->count + most - 1) / most;
    b->tile_rows = (b->count + b->tile_count - 1) / b->tile_count;
    size_t groups = SLICE_BYTES / b->panels / b->shape.group_bytes / UNIT_GROUPS * UNIT_GROUPS;
    groups = groups == 0 ? UNIT_GROUPS : groups;
    b->slice_groups = b->tile_count == 1 || fg_cpu_is_super(type) ? b->group_count : groups;
}

/* Rather a slice that is a quarter larger than a small one behind it. */
static size_t slice_end(const batch *b, size_t first)
{
    size_t left = b->group_count - first;
    return left <= b->slice_groups + b->slice_groups / 4 ? b->group_count : first + b->slice_groups;
}

/* One tile a panel asks for what lies ahead of it. Of several each has its part in asking for the next slice: behind
 * the last one come the next panels. */
static void begin_slice(const batch *b, tile *t, size_t first)
{
    t->group_first = first;
    t->group_end = slice_end(b, first);
    if (b->panels == 1 && b->tile_count == 1) {
        t->ask = t->panel;
        t->ask_lines = 0;
        return;
    }
    bool is_last = t->group_end == b->group_count;
    size_t next = is_last ? 0 : t->group_end;
    size_t begin = fg_panel_unit_offset(&b->shape, next);
    size_t lines = (fg_panel_unit_offset(&b->shape, slice_end(b, next)) - begin) / VECTOR;
    size_t turns = b->tile_count * (t->group_end - first);
    t->ask = t->panel + (is_last ? b->panels * t->panel_bytes : 0) + begin;
    t->ask_lines = (lines + turns - 1) / turns;
}

/* Of the tile that begins with `row`. */
static uint32_t rows_of_tile(const batch *b, uint32_t row)
{
    uint32_t left = b->count - row;
    return left < b->tile_rows ? left : b->tile_rows;
}

/* A slice against all rows, each tile of which has its part in asking for the next slice. */
static void run_slice(tile_fn run, tile *t, const fg_activations *in, batch *b)
{
    uint32_t row = 0;
    for (uint32_t index = 0; index < b->tile_count; index++) {
        uint32_t rows = rows_of_tile(b, row);
        t->quants = in->quants + (b->first + row) * t->columns;
        if (b->panels > 1 && t->group_end == t->group_count) {
            fg_avx512_ask_outputs(t->linear, b->first + row, rows, t->output, b->panels);
        }
        if (fg_cpu_is_super(t->linear->weight.type)) {
            t->supers = in->supers + (b->first + row) * (t->group_count / FG_QUANT_SUPER_GROUPS);
        } else {
            t->groups = in->groups + (b->first + row) * t->group_count;
        }
        t->row = b->first + row;
        run(rows, b->panels, t, b->totals[index]);
        t->ask += t->ask_lines * (t->group_end - t->group_first) * VECTOR;
        row += rows;
    }
}

static void run_batch(tile_fn run, tile *t, const fg_activations *in, batch *b)
{
    for (size_t group = 0; group < b->group_count; group = slice_end(b, group)) {
        begin_slice(b, t, group);
        run_slice(run, t, in, b);
    }
}

/* What AMD's processors read quicker so: groups of many lines, unless they are foreseen. */
static bool asks_between(uint32_t type, uint32_t rows)
{
    return type == FG_Q6_K || (type == FG_Q8_0 && rows > 1);
}

uint32_t fg_cpu_avx512_sliced_columns(uint32_t type, uint32_t rows)
{
    if (type == FG_BF16) {
        return FG_AVX512_PAIR_COLUMNS;
    }
    bool ready = fg_cpu_avx512_makes_words_ready(type, rows) ||
                 fg_cpu_avx512_makes_ready(type, rows) ||
                 fg_cpu_avx512_makes_groups_ready(type, rows);
    return ready ? FG_AVX512_SUPER_COLUMNS : 0;
}

void fg_cpu_avx512_linear(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                          uint32_t first, uint32_t count)
{
    const fg_panels *w = &linear->weight;
    tile_fn run = tile_of(w->type);
    if (w->type == FG_BF16) {
        fg_cpu_avx512_linear_bf16(linear, in, rows, first, count);
        return;
    }
    if (run == NULL) {
        fg_cpu_avx512_linear_float(linear, in, rows, first, count);
        return;
    }
    if (fg_cpu_avx512_makes_words_ready(w->type, rows)) {
        fg_cpu_avx512_linear_words(linear, in, rows, first, count);
        return;
    }
    if (fg_cpu_avx512_makes_ready(w->type, rows)) {
        fg_cpu_avx512_linear_super(linear, in, rows, first, count);
        return;
    }
    if (fg_cpu_avx512_makes_groups_ready(w->type, rows)) {
        fg_cpu_avx512_linear_groups(linear, in, rows, first, count);
        return;
    }
    fg_cpu_maker maker = fg_cpu_maker_here();
    bool intel = maker == FG_CPU_MAKER_INTEL;
    tile t = { .panel_bytes = fg_panel_bytes(w->type, w->columns),
               .ahead = !intel      ? AHEAD
                        : rows == 1 ? INTEL_AHEAD_ONE
                                    : INTEL_AHEAD,
               .foresees = !intel && !(maker == FG_CPU_MAKER_ZEN_5 && fg_cpu_is_super(w->type)),
               .asks_between = intel || asks_between(w->type, rows),
               .columns = w->columns,
               .group_count = w->columns / FG_QUANT_GROUP,
               .row_bytes = w->columns / FG_QUANT_GROUP * sizeof(fg_quant_group),
               .linear = linear };
    batch b; /* 16 KiB that need no zeros */
    b.shape = fg_panel_shape_of(w->type, w->columns);
    b.group_count = t.group_count;
    for (uint32_t panel = first; panel < first + count; panel += b.panels) {
        b.panels = tile_panels(w->type, rows, first + count - panel);
        t.panel = (const uint8_t *)w->data + panel * t.panel_bytes;
        t.output = panel * FG_PANEL_OUTPUTS;
        t.ask_apart = b.panels == 1 ? 0 : ask_apart(t.panel_bytes);
        for (b.first = 0; b.first < rows; b.first += b.count) {
            b.count = rows - b.first < BATCH_ROWS ? rows - b.first : BATCH_ROWS;
            begin_batch(w->type, &b);
            run_batch(run, &t, in, &b);
        }
    }
}
