/*
 * Matrix products with AVX-VNNI, over panels of sixteen outputs (kernels/panel.h): for processors that
 * multiply bytes in one instruction but have no AVX-512, such as Intel's desktops and laptops since 2021.
 *
 * What avx512_linear.c does, in halves of eight outputs: codes go in without their offset, a row's sum begins
 * at minus offset times the sum of its quants, four columns of a row are broadcast once for all outputs of
 * the tile. Sixteen registers hold the integer sums of TILE_ROWS rows and the two vectors of codes that they
 * meet; the rows' float sums lie in memory that never leaves the first-level cache.
 *
 * Q4_K, Q5_K and Q6_K: a group's sums, or those of its halves, are multiplied with their integer scales, 2^shift times,
 * and added up in memory as well.
 */
#include "kernels/cpu/avx2_super.h"

/* A function for every type and number of rows takes compilers long with sanitizers. */
#if defined(FORGE_SANITIZED)
#define FOR_EACH_SIZE static __attribute__((noinline))
#else
#define FOR_EACH_SIZE FG_AVX2_INLINE
#endif

enum { TILE_ROWS = 6, VECTORS = 8 };
/* Bytes ahead of a walk through a panel: what arrives from memory meanwhile, in the second-level cache, which waits for
 * more lines at once than the first, and comes on into that one when it is near. */
enum { AHEAD = 3072, AHEAD_NEAR = 512, AHEAD_MANY = 2304 };

/* Of each row of a tile with outputs 0..7 and 8..15. */
typedef __m256i int_sums[TILE_ROWS][HALVES];
typedef __m256 float_sums[TILE_ROWS][HALVES];

/* Some rows against one panel. */
typedef struct tile {
    const uint8_t *panel;
    const int8_t *quants;         /* of the tile's first row */
    const fg_quant_group *groups; /* of the tile's first row */
    const fg_quant_super *supers; /* the same */
    size_t columns;
    size_t group_count;
    float_sums sums;
    int_sums products; /* of a super-group */
    int_sums firsts;   /* of columns 0..15 of a group */
} tile;

/* By how much each row's groups of a super-group are shifted. */
typedef int32_t row_shifts[TILE_ROWS][GROUPS];

/* What the codes of a type are too large by, as a power of two; 0: nothing. */
FG_AVX2_INLINE int offset_bits(uint32_t type)
{
    return type == FG_Q4_0 ? 3 : type == FG_Q5_0 ? 4 : type == FG_Q8_0 ? 7 : 0;
}

/* Row r's part of the group. */
FG_AVX2_INLINE const fg_quant_group *group_of(const tile *t, const place *p, int r)
{
    return t->groups + p->group + (size_t)r * t->group_count;
}

/* Where a row's sum begins: what the codes' offset adds too much. */
FG_AVX2_INLINE __m256i begin_whole(uint32_t type, const fg_quant_group *group)
{
    if (offset_bits(type) == 0) {
        return _mm256_setzero_si256();
    }
    return _mm256_slli_epi32(_mm256_set1_epi32(group->negated), offset_bits(type));
}

/* Columns 4 * j .. 4 * j + 3 of half h as unsigned bytes. */
FG_AVX2_INLINE __m256i codes_of(uint32_t type, const uint8_t *codes, int h, int j)
{
    codes += (size_t)h * HALF;
    if (type == FG_Q8_0) {
        return _mm256_xor_si256(load32(codes + (size_t)j * VECTOR), _mm256_set1_epi8((char)0x80));
    }
    return unpack(type, codes, j / 4, j % 4);
}

/* Columns 4 * first .. 4 * end - 1 of the group. */
FOR_EACH_SIZE void multiply(uint32_t type, int R, const tile *t, const place *p, int first, int end,
                            int_sums sums)
{
    const int8_t *x = t->quants + p->group * FG_QUANT_GROUP;
#pragma GCC unroll 8
    for (int j = first; j < end; j++) {
        __m256i w[HALVES] = { codes_of(type, p->codes, 0, j), codes_of(type, p->codes, 1, j) };
#pragma GCC unroll 6
        for (int r = 0; r < R; r++) {
            __m256i columns = broadcast4(x + (size_t)r * t->columns + 4 * j);
            sums[r][0] = _mm256_dpbusd_avx_epi32(sums[r][0], w[0], columns);
            sums[r][1] = _mm256_dpbusd_avx_epi32(sums[r][1], w[1], columns);
        }
    }
}

FOR_EACH_SIZE void add_group(uint32_t type, int R, const tile *t, const place *p, float_sums totals)
{
    int_sums sums;
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
        sums[r][0] = sums[r][1] = begin_whole(type, group_of(t, p, r));
    }
    multiply(type, R, t, p, 0, VECTORS, sums);
#pragma GCC unroll 2
    for (int h = 0; h < HALVES; h++) {
        factors f = factors_of(type, p->scales, p->in_unit, (size_t)h);
#pragma GCC unroll 6
        for (int r = 0; r < R; r++) {
            __m256 sum = _mm256_cvtepi32_ps(sums[r][h]);
            totals[r][h] = add_scaled(type, sum, group_of(t, p, r), &f, totals[r][h]);
        }
    }
}

/* ---- super-groups ---- */

/* A group's integer scales; of Q6_K those of columns 0..15, or of 16..31. */
FG_AVX2_INLINE __m256i integers_of(uint32_t type, const uint8_t *scales, size_t g, int h,
                                   bool second)
{
    if (type == FG_Q6_K) {
        return _mm256_cvtepi8_epi32(load8(scales + 32 + g * 32 + (second ? 16 : 0) + h * 8));
    }
    return _mm256_cvtepu8_epi32(load8(scales + 64 + g * 32 + h * 8));
}

/* To where one register finds those of all rows; and sums begin at nothing. */
FG_AVX2_INLINE void begin_super(int R, tile *t, const fg_quant_super *supers, row_shifts shifts)
{
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
        __m256i of_row = load32(supers[(size_t)r * (t->group_count / GROUPS)].shifts);
        _mm256_storeu_si256((__m256i *)(void *)shifts[r], of_row);
        t->products[r][0] = t->products[r][1] = _mm256_setzero_si256();
    }
}

/* Columns 4 * first .. 4 * end - 1 of a group, times their integer scales. With its last ones the group is shifted and
 * added to the super-group. */
FOR_EACH_SIZE void add_integers(uint32_t type, int R, tile *t, const place *p,
                                const row_shifts shifts, int first, int end)
{
    int_sums sums;
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
        sums[r][0] = sums[r][1] = _mm256_setzero_si256();
    }
    multiply(type, R, t, p, first, end, sums);
    __asm__("" : "+m"(t->products), "+m"(t->firsts)); /* or compilers would keep copies elsewhere */
#pragma GCC unroll 2
    for (int h = 0; h < HALVES; h++) {
        __m256i scale = integers_of(type, p->scales, p->in_unit, h, first != 0);
#pragma GCC unroll 6
        for (int r = 0; r < R; r++) {
            __m256i sum = _mm256_mullo_epi32(sums[r][h], scale);
            if (end < VECTORS) {
                t->firsts[r][h] = sum;
                continue;
            }
            sum = first == 0 ? sum : _mm256_add_epi32(sum, t->firsts[r][h]);
            sum = _mm256_sllv_epi32(sum, broadcast4(&shifts[r][p->in_unit]));
            t->products[r][h] = _mm256_add_epi32(t->products[r][h], sum);
        }
    }
}

/* Whole tiles, of many rows, multiply longer than memory takes, and tile after tile walks through the same panel. */
FG_AVX2_INLINE void ask_ahead(int R, const uint8_t *at, size_t size_bytes)
{
    if (R == TILE_ROWS) {
        ask_for(at + AHEAD_MANY, size_bytes);
        return;
    }
    for (size_t i = 0; i < size_bytes; i += VECTOR) {
        _mm_prefetch((const char *)at + AHEAD + i, _MM_HINT_T1);
        _mm_prefetch((const char *)at + AHEAD_NEAR + i, _MM_HINT_T0);
    }
}

/* R rows against the panel: totals grow. */
FOR_EACH_SIZE void walk_groups(uint32_t type, int R, const tile *t, float_sums totals)
{
    const fg_panel_shape shape = fg_panel_shape_of(type, 256);
    place p = { .scales = t->panel };
    while (p.group < t->group_count) {
        p.codes = p.scales + shape.scale_bytes;
        ask_ahead(R, p.scales, shape.scale_bytes);
        size_t left = t->group_count - p.group;
        size_t count = left < shape.unit_groups ? left : shape.unit_groups;
        for (p.in_unit = 0; p.in_unit < count; p.in_unit++) {
            ask_ahead(R, p.codes, shape.group_bytes);
            add_group(type, R, t, &p, totals);
            p.codes += shape.group_bytes;
            p.group++;
        }
        p.scales += shape.unit_bytes;
    }
}

/* The same in super-groups. */
FOR_EACH_SIZE void walk_supers(uint32_t type, int R, tile *t)
{
    const fg_panel_shape shape = fg_panel_shape_of(type, 256);
    place p = { .scales = t->panel };
    super_rows rows = { .supers = t->supers,
                        .stride = t->group_count / GROUPS,
                        .sums = t->products,
                        .totals = t->sums };
    while (p.group < t->group_count) {
        row_shifts shifts;
        p.codes = p.scales + shape.scale_bytes;
        ask_ahead(R, p.scales, shape.scale_bytes);
        begin_super(R, t, rows.supers, shifts);
#pragma GCC unroll 1
        for (p.in_unit = 0; p.in_unit < GROUPS; p.in_unit++) {
            ask_ahead(R, p.codes, shape.group_bytes);
            if (type == FG_Q6_K) {
                add_integers(type, R, t, &p, shifts, 0, VECTORS / 2);
                add_integers(type, R, t, &p, shifts, VECTORS / 2, VECTORS);
            } else {
                add_integers(type, R, t, &p, shifts, 0, VECTORS);
            }
            p.codes += shape.group_bytes;
            p.group++;
        }
        end_super(type, R, false, &rows, p.scales);
        rows.supers++;
        p.scales += shape.unit_bytes;
    }
}

FOR_EACH_SIZE void walk(uint32_t type, int R, tile *t)
{
    if (fg_cpu_is_super(type)) {
        walk_supers(type, R, t);
    } else {
        walk_groups(type, R, t, t->sums);
    }
}

/* The sums of one row never leave the registers. */
FG_AVX2_INLINE void run_row(uint32_t type, tile *t)
{
    if (fg_cpu_is_super(type)) {
        walk_supers(type, 1, t);
        return;
    }
    float_sums totals = { { _mm256_setzero_ps(), _mm256_setzero_ps() } };
    walk_groups(type, 1, t, totals);
    memcpy(t->sums[0], totals[0], sizeof t->sums[0]);
}

#define RUN(R)                                                                                     \
    case R:                                                                                        \
        walk(type, R, t);                                                                          \
        break;

FG_AVX2_INLINE void run_tile(uint32_t type, uint32_t rows, tile *t)
{
    switch (rows) {
    case 1:
        run_row(type, t);
        break;
        RUN(2)
        RUN(3)
        RUN(4)
        RUN(5)
        RUN(6)
    default:
        break;
    }
}

/* TILE_ROWS rows at a time; tiles are about as large as each other. */
FG_AVX2_INLINE void run_panels(uint32_t type, const fg_linear *linear, const fg_activations *in,
                               uint32_t rows, uint32_t first, uint32_t count)
{
    const fg_panels *w = &linear->weight;
    const size_t panel_bytes = fg_panel_bytes(type, w->columns);
    tile t = { .columns = w->columns, .group_count = w->columns / FG_QUANT_GROUP };
    uint32_t tile_count = (rows + TILE_ROWS - 1) / TILE_ROWS;
    uint32_t tile_rows = (rows + tile_count - 1) / tile_count;
    for (uint32_t panel = first; panel < first + count; panel++) {
        t.panel = (const uint8_t *)w->data + panel * panel_bytes;
        for (uint32_t row = 0; row < rows; row += tile_rows) {
            uint32_t here = rows - row < tile_rows ? rows - row : tile_rows;
            t.quants = in->quants + row * t.columns;
            if (fg_cpu_is_super(type)) {
                t.supers = in->supers + row * (t.group_count / GROUPS);
            } else {
                t.groups = in->groups + row * t.group_count;
            }
            memset(t.sums, 0, sizeof t.sums);
            run_tile(type, here, &t);
            for (uint32_t i = 0; i < here; i++) {
                fg_cpu_avx2_put_panel(linear, row + i, panel * FG_PANEL_OUTPUTS, t.sums[i]);
            }
        }
    }
}

FG_CPU_EACH_QUANTIZED(FG_AVX2_DEFINE_PANELS)

void fg_cpu_avx_vnni_linear(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                            uint32_t first, uint32_t count)
{
    switch (linear->weight.type) {
        FG_CPU_EACH_QUANTIZED(FG_AVX2_PANELS_CASE)
    default:
        fg_cpu_avx2_linear(linear, in, rows, first, count);
        break;
    }
}
