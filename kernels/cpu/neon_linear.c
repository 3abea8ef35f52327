/*
 * Matrix products with NEON and its dot products, over panels of sixteen outputs (kernels/panel.h).
 *
 * A register holds four columns of four outputs; sdot multiplies signed bytes and adds in 32 bits, exactly,
 * so codes are unpacked with their offset taken off. Sixteen columns of a row are one register, of which an
 * instruction takes four. The codes of a group pass up to TILE_ROWS rows, whose integer sums stay in
 * registers; the float sums, and of super-groups the integer ones, wait in memory that never leaves the
 * first-level cache.
 */
#include <string.h>

#include "kernels/cpu/neon.h"
#include "kernels/cpu/panel_group.h"

enum { TILE_ROWS = 4, VECTOR = 64, QUARTERS = FG_NEON_PANEL_QUARTERS };

/* Some rows against one panel. */
typedef struct tile {
    const uint8_t *panel;
    const int8_t *quants;         /* of the tile's first row */
    const fg_quant_group *groups; /* of the tile's first row */
    const fg_quant_super *supers; /* the same */
    size_t columns;
    size_t group_count;
    float32x4_t totals[TILE_ROWS][QUARTERS];
} tile;

/* What the products of a group are scaled with, for four outputs. */
typedef struct factors {
    float32x4_t d;
    float32x4_t minimum;
} factors;

/* Integer sums of each row of a tile. */
typedef int32x4_t int_sums[TILE_ROWS][QUARTERS];

/* A group as the walk through a panel meets it. */
typedef struct place {
    const uint8_t *scales; /* of its unit */
    const uint8_t *codes;
    size_t in_unit;
    size_t group;                /* in the row */
    const fg_quant_super *super; /* in the tile's first row */
} place;

/* The bits of `keep` out of bytes shifted left, or right when `left` is negative. */
FG_NEON_INLINE uint8x16_t moved(uint8x16_t bytes, int left, uint8_t keep)
{
    return vandq_u8(vshlq_u8(bytes, vdupq_n_s8((int8_t)left)), vdupq_n_u8(keep));
}

FG_NEON_INLINE int8_t offset_of(uint32_t type)
{
    return type == FG_Q4_0 ? 8 : type == FG_Q5_0 ? 16 : type == FG_Q6_K ? 32 : 0;
}

/* Columns 4 * j .. 4 * j + 3 of a group for outputs 4 * quarter .. 4 * quarter + 3. */
FG_NEON_INLINE int8x16_t unpack(uint32_t type, const uint8_t *at, int j, int quarter)
{
    at += (size_t)quarter * 16;
    if (type == FG_Q8_0) {
        return vreinterpretq_s8_u8(vld1q_u8(at + (size_t)j * VECTOR));
    }
    uint8x16_t w = moved(vld1q_u8(at + (size_t)(j % 4) * VECTOR), j < 4 ? 0 : -4, 15);
    if (type == FG_Q5_0 || type == FG_Q5_1 || type == FG_Q5_K) {
        w = vorrq_u8(w, moved(vld1q_u8(at + 4 * VECTOR), 4 - j, 16));
    } else if (type == FG_Q6_K) {
        w = vorrq_u8(w, moved(vld1q_u8(at + (size_t)(4 + j / 4) * VECTOR), 4 - j % 4 * 2, 48));
    }
    return vsubq_s8(vreinterpretq_s8_u8(w), vdupq_n_s8(offset_of(type)));
}

FG_NEON_INLINE float32x4_t halves(const uint8_t *at)
{
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(at)));
}

/* Of group g of a unit for outputs 4 * quarter .. 4 * quarter + 3. */
FG_NEON_INLINE factors scales_of(uint32_t type, const uint8_t *scales, size_t g, size_t quarter)
{
    size_t half_at = quarter * 8;
    factors f = { .d = halves(scales + half_at) };
    switch (type) {
    case FG_Q4_1:
    case FG_Q5_1:
        f.minimum = halves(scales + 32 + half_at);
        break;
    default:
        f.d = halves(scales + g * 32 + half_at);
        break;
    }
    return f;
}

/* The lane of an instruction must be a constant, which a loop does not give it without optimisation. */
FG_NEON_INLINE int32x4_t dot4(int32x4_t sum, int8x16_t w, int8x16_t x, int lane)
{
    switch (lane) {
    case 0:
        return vdotq_laneq_s32(sum, w, x, 0);
    case 1:
        return vdotq_laneq_s32(sum, w, x, 1);
    case 2:
        return vdotq_laneq_s32(sum, w, x, 2);
    default:
        return vdotq_laneq_s32(sum, w, x, 3);
    }
}

/* Products of columns 16 * half .. 16 * half + 15 of a group with R rows, added to their sums. */
FG_NEON_INLINE void multiply(uint32_t type, int R, const tile *t, const place *p, int half,
                             int_sums sums)
{
    const int8_t *x = t->quants + p->group * FG_QUANT_GROUP + (size_t)half * 16;
    int8x16_t rows[TILE_ROWS];
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
        rows[r] = vld1q_s8(x + (size_t)r * t->columns);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
#pragma GCC unroll 4
        for (int quarter = 0; quarter < QUARTERS; quarter++) {
            int8x16_t w = unpack(type, p->codes, 4 * half + j, quarter);
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                sums[r][quarter] = dot4(sums[r][quarter], w, rows[r], j);
            }
        }
    }
}

FG_NEON_INLINE float32x4_t add_scaled(uint32_t type, int32x4_t sum, const fg_quant_group *group,
                                      const factors *f, float32x4_t total)
{
    if (fg_cpu_has_minimum(type)) {
        total = vfmaq_f32(total, f->minimum, vdupq_n_f32(group->offset));
    }
    return vfmaq_f32(total, vmulq_f32(f->d, vdupq_n_f32(group->scale)), vcvtq_f32_s32(sum));
}

FG_NEON_INLINE void clear(int R, int_sums sums)
{
#pragma GCC unroll 16
    for (int i = 0; i < R * QUARTERS; i++) {
        sums[i / QUARTERS][i % QUARTERS] = vdupq_n_s32(0);
    }
}

FG_NEON_INLINE void add_group(uint32_t type, int R, tile *t, const place *p)
{
    factors f[QUARTERS];
    int_sums sums;
#pragma GCC unroll 4
    for (int i = 0; i < QUARTERS; i++) {
        f[i] = scales_of(type, p->scales, p->in_unit, (size_t)i);
    }
    clear(R, sums);
    multiply(type, R, t, p, 0, sums);
    multiply(type, R, t, p, 1, sums);
#pragma GCC unroll 16
    for (int i = 0; i < R * QUARTERS; i++) {
        int r = i / QUARTERS;
        int quarter = i % QUARTERS;
        t->totals[r][quarter] =
            add_scaled(type, sums[r][quarter], &t->groups[p->group + (size_t)r * t->group_count],
                       &f[quarter], t->totals[r][quarter]);
    }
}

/* ---- super-groups ---- */

/* Row r's part of the super-group. */
FG_NEON_INLINE const fg_quant_super *super_of(const tile *t, const place *p, int r)
{
    return p->super + (size_t)r * (t->group_count / FG_QUANT_SUPER_GROUPS);
}

/* Four bytes of scales, signed or not, as 32 bits. */
FG_NEON_INLINE int32x4_t four_bytes(const uint8_t *at, bool has_sign)
{
    uint32_t word;
    memcpy(&word, at, sizeof word);
    uint8x8_t bytes = vreinterpret_u8_u32(vdup_n_u32(word));
    if (has_sign) {
        return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(bytes))));
    }
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(bytes))));
}

/* Integer scale of a half of a group, for outputs 4 * quarter .. 4 * quarter + 3. */
FG_NEON_INLINE int32x4_t integer_scale(uint32_t type, const place *p, int half, int quarter)
{
    if (type == FG_Q6_K) {
        return four_bytes(p->scales + 32 + p->in_unit * 32 + half * 16 + quarter * 4, true);
    }
    return four_bytes(p->scales + 64 + p->in_unit * 32 + quarter * 4, false);
}

/* Totals grow by integer sums, times a factor of each output and a scale of each row. */
FG_NEON_INLINE void add_super_sums(int R, tile *t, const place *p, const float32x4_t d[QUARTERS],
                                   int_sums sums)
{
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
        float scale = super_of(t, p, r)->scale;
#pragma GCC unroll 4
        for (int i = 0; i < QUARTERS; i++) {
            t->totals[r][i] =
                vfmaq_f32(t->totals[r][i], vmulq_n_f32(d[i], scale), vcvtq_f32_s32(sums[r][i]));
        }
    }
}

/* What the minima of a super-group come to. */
FG_NEON_INLINE void add_minima(int R, tile *t, const place *p)
{
    int_sums sums;
    clear(R, sums);
    for (size_t g = 0; g < FG_QUANT_SUPER_GROUPS; g++) {
        uint8x16_t bytes = vld1q_u8(p->scales + 64 + g * 32 + 16);
        int16x8_t low = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(bytes)));
        int16x8_t high = vreinterpretq_s16_u16(vmovl_high_u8(bytes));
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            int16_t sum = super_of(t, p, r)->sums[g];
            sums[r][0] = vmlal_n_s16(sums[r][0], vget_low_s16(low), sum);
            sums[r][1] = vmlal_high_n_s16(sums[r][1], low, sum);
            sums[r][2] = vmlal_n_s16(sums[r][2], vget_low_s16(high), sum);
            sums[r][3] = vmlal_high_n_s16(sums[r][3], high, sum);
        }
    }
    float32x4_t d[QUARTERS];
#pragma GCC unroll 4
    for (int i = 0; i < QUARTERS; i++) {
        d[i] = vnegq_f32(halves(p->scales + 32 + i * 8));
    }
    add_super_sums(R, t, p, d, sums);
}

/* Where the sums of a super-group begin. */
FG_NEON_INLINE void begin_super(uint32_t type, int R, tile *t, const place *p, int_sums sums)
{
    if (fg_cpu_has_minimum(type)) {
        add_minima(R, t, p);
    }
    clear(R, sums);
}

/* Products of a group, or of a half of one, times their integer scales and 2^shift. */
FG_NEON_INLINE void add_integers(uint32_t type, int R, const tile *t, const place *p, int half,
                                 int_sums products, int_sums sums)
{
    int32x4_t scales[QUARTERS];
#pragma GCC unroll 4
    for (int i = 0; i < QUARTERS; i++) {
        scales[i] = integer_scale(type, p, half, i);
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
        int32x4_t shift = vdupq_n_s32(super_of(t, p, r)->shifts[p->in_unit]);
#pragma GCC unroll 4
        for (int i = 0; i < QUARTERS; i++) {
            sums[r][i] = vmlaq_s32(sums[r][i], products[r][i], vshlq_s32(scales[i], shift));
        }
    }
}

FG_NEON_INLINE void add_super_group(uint32_t type, int R, const tile *t, const place *p,
                                    int_sums sums)
{
    int_sums products;
    clear(R, products);
    multiply(type, R, t, p, 0, products);
    if (type == FG_Q6_K) {
        add_integers(type, R, t, p, 0, products, sums);
        clear(R, products);
    }
    multiply(type, R, t, p, 1, products);
    add_integers(type, R, t, p, 1, products, sums);
}

FG_NEON_INLINE void end_super(int R, tile *t, place *p, int_sums sums)
{
    float32x4_t d[QUARTERS];
#pragma GCC unroll 4
    for (int i = 0; i < QUARTERS; i++) {
        d[i] = halves(p->scales + (size_t)i * 8);
    }
    add_super_sums(R, t, p, d, sums);
    p->super++;
}

/* ---- walks ---- */

/* R rows against a panel. */
FG_NEON_INLINE void run_tile(uint32_t type, int R, tile *t)
{
    const fg_panel_shape shape = fg_panel_shape_of(type, 256);
    place p = { .scales = t->panel, .super = t->supers };
    int_sums sums; /* of a super-group, which is a unit */
    memset(t->totals, 0, sizeof t->totals);
    while (p.group < t->group_count) {
        p.codes = p.scales + shape.scale_bytes;
        if (fg_cpu_is_super(type)) {
            begin_super(type, R, t, &p, sums);
        }
        size_t left = t->group_count - p.group;
        size_t count = left < shape.unit_groups ? left : shape.unit_groups;
        for (p.in_unit = 0; p.in_unit < count; p.in_unit++) {
            if (fg_cpu_is_super(type)) {
                add_super_group(type, R, t, &p, sums);
            } else {
                add_group(type, R, t, &p);
            }
            p.codes += shape.group_bytes;
            p.group++;
        }
        if (fg_cpu_is_super(type)) {
            end_super(R, t, &p, sums);
        }
        p.scales += shape.unit_bytes;
    }
}

/* One function per type: the type is a constant in each. */
#define DEFINE_TILE(name, type)                                                                    \
    static void name##_tile(uint32_t rows, tile *t)                                                \
    {                                                                                              \
        switch (rows) {                                                                            \
        case 1:                                                                                    \
            run_tile(type, 1, t);                                                                  \
            break;                                                                                 \
        case 2:                                                                                    \
            run_tile(type, 2, t);                                                                  \
            break;                                                                                 \
        case 3:                                                                                    \
            run_tile(type, 3, t);                                                                  \
            break;                                                                                 \
        default:                                                                                   \
            run_tile(type, TILE_ROWS, t);                                                          \
            break;                                                                                 \
        }                                                                                          \
    }

FG_CPU_EACH_QUANTIZED(DEFINE_TILE)

typedef void (*tile_fn)(uint32_t rows, tile *t);

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

void fg_cpu_neon_linear(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                        uint32_t first, uint32_t count)
{
    const fg_panels *w = &linear->weight;
    tile_fn run = tile_of(w->type);
    if (w->type == FG_BF16) {
        fg_cpu_neon_linear_bf16(linear, in, rows, first, count);
        return;
    }
    if (run == NULL) {
        fg_cpu_neon_linear_float(linear, in, rows, first, count);
        return;
    }
    size_t panel_bytes = fg_panel_bytes(w->type, w->columns);
    tile t = { .columns = w->columns, .group_count = w->columns / FG_QUANT_GROUP };
    for (uint32_t panel = first; panel < first + count; panel++) {
        t.panel = (const uint8_t *)w->data + panel * panel_bytes;
        for (uint32_t row = 0; row < rows; row += TILE_ROWS) {
            uint32_t taken = rows - row < TILE_ROWS ? rows - row : TILE_ROWS;
            t.quants = in->quants + row * t.columns;
            if (fg_cpu_is_super(w->type)) {
                t.supers = in->supers + row * (t.group_count / FG_QUANT_SUPER_GROUPS);
            } else {
                t.groups = in->groups + row * t.group_count;
            }
            run(taken, &t);
            for (uint32_t i = 0; i < taken; i++) {
                fg_neon_put_panel(linear, row + i, panel * FG_PANEL_OUTPUTS, t.totals[i]);
            }
        }
    }
}
