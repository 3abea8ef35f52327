/*
 * Matrix products with AMX, super-groups and up to sixteen rows, as amx_few.c has it: a walk goes
 * once through the panels. A turn adds the sums of a group that were stored two turns ago, and for
 * groups further on stores sums, multiplies and unpacks: all four are of different groups, so that
 * none waits for another.
 */
#include "kernels/cpu/amx_super.h"

/* Groups ahead of the one that is added. */
enum { STORED = 2, MULTIPLIED = 3, UNPACKED = 5 };
enum { SUPERS_RING = 2, SUMS_RING = 4 };
_Static_assert((int)UNPACKED <= (int)FG_QUANT_SUPER_GROUPS && (int)STORED < (int)SUMS_RING,
               "rings");
/* Bytes ahead of what is unpacked: arrive meanwhile in the second-level cache. */
enum { AHEAD = 4096 };

typedef int32_t few_sums[FG_AMX_PARTS][FG_AMX_SUMS];

typedef struct few_walk {
    const fg_activations *in;
    size_t group_count;  /* of a row */
    size_t multiplied;   /* the next one, of a row */
    const uint8_t *unit; /* of a panel, unpacked next; panels follow each other */
    fg_amx_super supers[SUPERS_RING];
    few_sums sums[SUMS_RING];
} few_walk;

/* Of the `index`-th group of the walk. */
FG_AVX512_INLINE fg_amx_super *super_of(few_walk *w, size_t index)
{
    return &w->supers[index / FG_QUANT_SUPER_GROUPS % SUPERS_RING];
}

/* ---- tiles ---- */

/* Tiles 0 and 1 hold sums, 4 rows of activations, 6 and 7 codes. */
static void configure(uint32_t rows)
{
    fg_amx_config config = { .palette = 1 };
    for (int tile = 0; tile < FG_AMX_TILES; tile++) {
        config.row_bytes[tile] = (uint16_t)(tile == 4 ? FG_QUANT_GROUP : VECTOR);
        config.rows[tile] = (uint8_t)(tile >= 6 ? VECTORS : rows);
    }
    fg_amx_see_memory(&config);
    _tile_loadconfig(&config);
}

FG_AVX512_INLINE void multiply(uint32_t type, few_walk *w, size_t index)
{
    const fg_amx_super *super = super_of(w, index);
    size_t g = index % FG_QUANT_SUPER_GROUPS;
    _tile_loadd(6, super->codes[0][g], VECTOR);
    _tile_loadd(4, w->in->quant_tiles[w->multiplied].quants, FG_QUANT_GROUP);
    _tile_zero(0);
    _tile_dpbssd(0, 4, 6);
    if (fg_amx_is_split(type)) {
        _tile_loadd(7, super->codes[1][g], VECTOR);
        _tile_zero(1);
        _tile_dpbssd(1, 4, 7);
    }
    w->multiplied = w->multiplied + 1 == w->group_count ? 0 : w->multiplied + 1;
}

FG_AVX512_INLINE void store(uint32_t type, few_walk *w, size_t index)
{
    int32_t(*sums)[FG_AMX_SUMS] = w->sums[index % SUMS_RING];
    _tile_stored(0, sums[0], VECTOR);
    if (fg_amx_is_split(type)) {
        _tile_stored(1, sums[1], VECTOR);
    }
}

/* ---- codes ---- */

FG_AVX512_INLINE void ask_for(const uint8_t *at)
{
    _mm_prefetch((const char *)at + AHEAD, _MM_HINT_T1);
}

FG_AVX512_INLINE void unpack_group(uint32_t type, few_walk *w, size_t index)
{
    const fg_panel_shape shape = fg_panel_shape_of(type, FG_QUANT_SUPER);
    size_t g = index % FG_QUANT_SUPER_GROUPS;
    const uint8_t *codes = w->unit + shape.scale_bytes + g * shape.group_bytes;
    fg_amx_super *out = super_of(w, index);
    if (g == 0) {
        fg_amx_unpack_scales(type, w->unit, out);
#pragma GCC unroll 8
        for (size_t i = 0; i < shape.scale_bytes; i += VECTOR) {
            ask_for(w->unit + i);
        }
    }
    int lines = (int)shape.group_bytes / VECTOR;
#pragma GCC unroll 8
    for (int j = 0; j < VECTORS; j++) {
        int line = j * lines / VECTORS;
        if (j == 0 || line != (j - 1) * lines / VECTORS) {
            ask_for(codes + line * VECTOR);
        }
        fg_amx_unpack_vector(type, w->unit, codes, g, j, out);
        __asm__ volatile("" : : : "memory"); /* the compiler would gather what is asked for */
    }
    w->unit += g + 1 == FG_QUANT_SUPER_GROUPS ? shape.unit_bytes : 0;
}

/* ---- products ---- */

typedef struct few_product {
    const fg_linear *linear;
    uint32_t rows;
    uint32_t panel; /* the first */
    uint32_t panels;
} few_product;

/* Of `count` groups of the walk the `index`-th is added, and others go on; R rows. */
FG_AVX512_INLINE void turn(uint32_t type, int R, few_walk *w, const fg_amx_strip *strip,
                           size_t index, size_t count, __m512i *sums)
{
    const fg_amx_super *super = super_of(w, index);
    const int32_t *stored = w->sums[index % SUMS_RING][0];
    size_t g = index % FG_QUANT_SUPER_GROUPS;
    if (index + UNPACKED < count) {
        unpack_group(type, w, index + UNPACKED);
    }
    fg_amx_add_group(type, 0, R / 2, super, strip, g, stored, sums);
    if (index + STORED < count) {
        store(type, w, index + STORED);
    }
    if (index + MULTIPLIED < count) {
        multiply(type, w, index + MULTIPLIED);
    }
    fg_amx_add_group(type, R / 2, R, super, strip, g, stored, sums);
}

/* A panel, whose first group is the `index`-th of the walk, of R rows, of which some may not be
 * there. */
FG_AVX512_INLINE void run_panel(uint32_t type, int R, uint32_t rows, few_walk *w, size_t index,
                                size_t count, __m512 totals[FG_TILE_ROWS])
{
    size_t super_count = w->group_count / FG_QUANT_SUPER_GROUPS;
    for (int r = 0; r < R; r++) {
        totals[r] = _mm512_setzero_ps();
    }
    for (size_t s = 0; s < super_count; s++) {
        fg_amx_strip strip;
        __m512i sums[FG_TILE_ROWS];
        fg_amx_bring_strip(type, R, w->in->supers + s, super_count, rows, &strip);
        fg_amx_begin_sums(R, sums);
        for (size_t g = 0; g < FG_QUANT_SUPER_GROUPS; g++, index++) {
            turn(type, R, w, &strip, index, count, sums);
        }
        const fg_amx_super *super = super_of(w, index - 1);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            totals[r] = fg_amx_end_super(type, r, super, &strip, sums[r], totals[r]);
        }
    }
}

FG_AVX512_INLINE void run(uint32_t type, int R, const few_product *p, few_walk *w)
{
    size_t count = p->panels * w->group_count;
    fg_amx_see_memory(w);
    for (size_t i = 0; i < UNPACKED; i++) {
        unpack_group(type, w, i);
    }
    for (size_t i = 0; i < MULTIPLIED; i++) {
        multiply(type, w, i);
        if (i < STORED) {
            store(type, w, i);
        }
    }
    for (uint32_t i = 0; i < p->panels; i++) {
        __m512 totals[FG_TILE_ROWS];
        run_panel(type, R, p->rows, w, i * w->group_count, count, totals);
        for (uint32_t r = 0; r < p->rows; r++) {
            fg_avx512_put_panel(p->linear, r, (p->panel + i) * FG_PANEL_OUTPUTS, totals[r]);
        }
    }
}

#define DEFINE_RUN(name, type)                                                                     \
    static void name##_run(const few_product *p, few_walk *w)                                      \
    {                                                                                              \
        if (p->rows > 13) {                                                                        \
            run(type, 16, p, w);                                                                   \
        } else if (p->rows > 10) {                                                                 \
            run(type, 13, p, w);                                                                   \
        } else {                                                                                   \
            run(type, 10, p, w);                                                                   \
        }                                                                                          \
    }

FG_CPU_EACH_SUPER(DEFINE_RUN)

#define RUN_CASE(name, type)                                                                       \
    case type:                                                                                     \
        name##_run(&product, &walk);                                                               \
        break;

void fg_cpu_amx_super_few(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                          uint32_t first, uint32_t count)
{
    const fg_panels *weight = &linear->weight;
    few_product product = { .linear = linear, .rows = rows, .panel = first, .panels = count };
    size_t panel_bytes = fg_panel_bytes(weight->type, weight->columns);
    few_walk walk; /* 30 KiB that need no zeros */
    walk.in = in;
    walk.group_count = weight->columns / FG_QUANT_GROUP;
    walk.multiplied = 0;
    walk.unit = (const uint8_t *)weight->data + first * panel_bytes;
    configure(rows);
    switch (weight->type) {
        FG_CPU_EACH_SUPER(RUN_CASE)
    default:
        break;
    }
    _tile_release();
}
