/*
 * Matrix products with AMX, quantised weights and up to sixteen rows: too few for weights to be unpacked slice by slice
 * (amx_linear.c), as each group meets one tile of activations.
 *
 * A walk goes through the panels once. A turn scales the sums of a group that were stored two turns ago, and for groups
 * further on stores sums, multiplies and unpacks: all four are of different groups, so that none waits for another.
 * Storing a tile takes both pipes of 512 bits as long as 32 operations, however few its rows are, and a product one pipe
 * a cycle for each row; what remains are four operations for each row (five with minima), so about eight rows is where
 * vpdpbusd, with twelve for each row, falls behind.
 *
 * Sums become floats as in amx_linear.c. Nibbles of Q4_0 stay in the upper halves of their bytes, which spares their
 * offset's subtraction: sums sixteen times as large are added to a float whose last bit counts a sixteenth.
 */
#include "kernels/cpu/amx.h"
#include "kernels/cpu/avx512_unpack.h"
#include "kernels/cpu/panel_group.h"

/* Groups ahead of the one that is scaled. */
enum { STORED = 2, MULTIPLIED = 3, UNPACKED = 5 };
enum { CODES_RING = 8, SUMS_RING = 4, SUMS = FG_TILE_ROWS * FG_PANEL_OUTPUTS };
_Static_assert((int)UNPACKED < (int)CODES_RING && (int)STORED < (int)SUMS_RING, "rings");
/* Bytes ahead of what is unpacked: arrive meanwhile in the second-level cache. */
enum { AHEAD = 4096 };

/* A group of a panel: codes as a tile reads them, and what their sums are scaled with. */
typedef struct few_group {
    _Alignas(VECTOR) uint8_t codes[VECTORS][VECTOR];
    float d[FG_PANEL_OUTPUTS];
    float minimum[FG_PANEL_OUTPUTS];
} few_group;

typedef struct few_walk {
    const fg_quant_tile *rows;
    size_t group_count; /* of a row */
    size_t multiplied;  /* the next one, of a row */
    /* What is unpacked next: a unit of a panel, a group of it, and how many of the panel are left. */
    const uint8_t *unit;
    size_t in_unit;
    size_t left;
} few_walk;

/* ---- tiles ---- */

/* Tile 0 holds sums, 4 rows of activations, 6 codes. There are more than these names: each product gets its own. */
static void configure(uint32_t rows)
{
    fg_amx_config config = { .palette = 1 };
    for (int tile = 0; tile < FG_AMX_TILES; tile++) {
        config.row_bytes[tile] = (uint16_t)(tile == 4 ? FG_QUANT_GROUP : VECTOR);
        config.rows[tile] = (uint8_t)(tile == 6 ? VECTORS : rows);
    }
    fg_amx_see_memory(&config);
    _tile_loadconfig(&config);
}

FG_AVX512_INLINE void multiply(few_walk *w, const few_group *group)
{
    const fg_quant_tile *rows = w->rows + w->multiplied;
    w->multiplied = w->multiplied + 1 == w->group_count ? 0 : w->multiplied + 1;
    _tile_loadd(6, group->codes, VECTOR);
    _tile_loadd(4, rows->quants, FG_QUANT_GROUP);
    _tile_zero(0);
    _tile_dpbssd(0, 4, 6);
}

FG_AVX512_INLINE void store(float sums[SUMS])
{
    _tile_stored(0, sums, VECTOR);
}

/* ---- codes ---- */

/* Columns 4j .. 4j + 3 of a group as signed bytes, of Q4_0 sixteen times as large. */
FG_AVX512_INLINE __m512i signed_codes(uint32_t type, const uint8_t *at, int j)
{
    if (type == FG_Q8_0) {
        return load64(at + (size_t)j * VECTOR);
    }
    if (type == FG_Q4_0) {
        enum { FLIP_AND_MASK = 0x28 }; /* (a ^ b) & c */
        __m512i raw = load64(at + (size_t)(j % 4) * VECTOR);
        raw = j < 4 ? _mm512_slli_epi16(raw, 4) : raw;
        return _mm512_ternarylogic_epi32(raw, _mm512_set1_epi8((char)0x80),
                                         _mm512_set1_epi8((char)0xF0), FLIP_AND_MASK);
    }
    char offset = type == FG_Q5_0 ? 16 : 0;
    __m512i codes = unpack(type, at, j);
    return offset == 0 ? codes : _mm512_sub_epi8(codes, _mm512_set1_epi8(offset));
}

FG_AVX512_INLINE void ask_for(const uint8_t *at)
{
    _mm_prefetch((const char *)at + AHEAD, _MM_HINT_T1);
}

/* The next group. */
FG_AVX512_INLINE void unpack_group(uint32_t type, few_walk *w, few_group *out)
{
    const fg_panel_shape shape = fg_panel_shape_of(type, 256);
    const uint8_t *codes = w->unit + shape.scale_bytes + w->in_unit * shape.group_bytes;
    factors f = scales_of(type, w->unit, w->in_unit);
    _mm512_store_ps(out->d, f.d);
    if (fg_cpu_has_minimum(type)) {
        _mm512_store_ps(out->minimum, f.minimum);
    }
    int lines = (int)shape.group_bytes / VECTOR;
#pragma GCC unroll 8
    for (int j = 0; j < VECTORS; j++) {
        int line = j * lines / VECTORS;
        if (j == 0 || line != (j - 1) * lines / VECTORS) {
            ask_for(codes + line * VECTOR);
        }
        _mm512_store_si512(out->codes[j], signed_codes(type, codes, j));
        __asm__ volatile("" : : : "memory"); /* the compiler would gather what is asked for */
    }
    if (w->in_unit == 0) {
#pragma GCC unroll 8
        for (size_t i = 0; i < shape.scale_bytes; i += VECTOR) {
            ask_for(w->unit + i);
        }
    }
    w->in_unit++;
    w->left--;
    if (w->left == 0 || w->in_unit == shape.unit_groups) {
        w->unit = codes + shape.group_bytes;
        w->in_unit = 0;
        w->left = w->left == 0 ? w->group_count : w->left;
    }
}

/* ---- sums ---- */

FG_AVX512_INLINE __m512 float_of(uint32_t type, const float *sums)
{
    __m512 large = _mm512_set1_ps(type == FG_Q4_0 ? 0x1.8p19f : 0x1.8p23f);
    __m512i sum = _mm512_add_epi32(_mm512_castps_si512(large), _mm512_load_si512(sums));
    return _mm512_sub_ps(_mm512_castsi512_ps(sum), large);
}

/* A group's sums, scaled, to the totals of rows first .. end - 1. */
FG_AVX512_INLINE void add_rows(uint32_t type, int first, int end, const fg_quant_tile *rows,
                               const few_group *group, const float *sums, __m512 *totals)
{
    __m512 d = _mm512_load_ps(group->d);
#pragma GCC unroll 16
    for (int r = first; r < end; r++) {
        if (fg_cpu_has_minimum(type)) {
            totals[r] = _mm512_fmadd_ps(
                _mm512_load_ps(group->minimum),
                _mm512_set1_ps(rows->halves[r / FG_TILE_HALF].offsets[r % FG_TILE_HALF]),
                totals[r]);
        }
        __m512 scale = _mm512_mul_ps(
            d, _mm512_set1_ps(rows->halves[r / FG_TILE_HALF].scales[r % FG_TILE_HALF]));
        totals[r] = _mm512_fmadd_ps(scale, float_of(type, sums + r * FG_PANEL_OUTPUTS), totals[r]);
        FG_AVX512_HOLD(totals[r]);
    }
}

/* ---- products ---- */

typedef struct few_product {
    const fg_linear *linear;
    uint32_t rows;
    uint32_t panel; /* the first */
    uint32_t panels;
} few_product;

/* R rows, of which some may not be there. */
FG_AVX512_INLINE void run(uint32_t type, int R, const few_product *p, few_walk w)
{
    few_group codes[CODES_RING];
    _Alignas(VECTOR) float sums[SUMS_RING][SUMS];
    size_t count = p->panels * w.group_count;
    fg_amx_see_memory(codes);
    fg_amx_see_memory(sums);
    for (size_t i = 0; i < UNPACKED && i < count; i++) {
        unpack_group(type, &w, &codes[i]);
    }
    for (size_t i = 0; i < MULTIPLIED && i < count; i++) {
        multiply(&w, &codes[i]);
        if (i < STORED) {
            store(sums[i]);
        }
    }
    size_t i = 0;
    for (uint32_t panel = p->panel; panel < p->panel + p->panels; panel++) {
        __m512 totals[FG_TILE_ROWS];
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            totals[r] = _mm512_setzero_ps();
        }
        for (const fg_quant_tile *rows = w.rows; rows < w.rows + w.group_count; rows++, i++) {
            const few_group *group = &codes[i % CODES_RING];
            const float *stored = sums[i % SUMS_RING];
            if (i + UNPACKED < count) {
                unpack_group(type, &w, &codes[(i + UNPACKED) % CODES_RING]);
            }
            add_rows(type, 0, R / 2, rows, group, stored, totals);
            if (i + STORED < count) {
                store(sums[(i + STORED) % SUMS_RING]);
            }
            if (i + MULTIPLIED < count) {
                multiply(&w, &codes[(i + MULTIPLIED) % CODES_RING]);
            }
            add_rows(type, R / 2, R, rows, group, stored, totals);
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            if ((uint32_t)r < p->rows) {
                fg_avx512_put_panel(p->linear, (uint32_t)r, panel * FG_PANEL_OUTPUTS, totals[r]);
            }
        }
    }
}

#define DEFINE_RUN(name, type)                                                                     \
    static void name##_run(const few_product *p, const few_walk *w)                                \
    {                                                                                              \
        if (p->rows > 13) {                                                                        \
            run(type, 16, p, *w);                                                                  \
        } else if (p->rows > 10) {                                                                 \
            run(type, 13, p, *w);                                                                  \
        } else {                                                                                   \
            run(type, 10, p, *w);                                                                  \
        }                                                                                          \
    }

FG_CPU_EACH_GROUPED(DEFINE_RUN)

#define RUN_CASE(name, type)                                                                       \
    case type:                                                                                     \
        name##_run(&product, &walk);                                                               \
        break;

void fg_cpu_amx_few(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                    uint32_t first, uint32_t count)
{
    const fg_panels *weight = &linear->weight;
    few_product product = { .linear = linear, .rows = rows, .panel = first, .panels = count };
    size_t panel_bytes = fg_panel_bytes(weight->type, weight->columns);
    few_walk walk = { .rows = in->quant_tiles,
                      .group_count = weight->columns / FG_QUANT_GROUP,
                      .left = weight->columns / FG_QUANT_GROUP,
                      .unit = (const uint8_t *)weight->data + first * panel_bytes };
    configure(rows);
    switch (weight->type) {
        FG_CPU_EACH_GROUPED(RUN_CASE)
    default:
        break;
    }
    _tile_release();
}
