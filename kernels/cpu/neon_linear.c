/*
 * Matrix products with NEON and its dot products, over panels of sixteen outputs (kernels/panel.h).
 *
 * A register holds four columns of four outputs; sdot multiplies signed bytes and adds in 32 bits, exactly,
 * so codes are unpacked with their offset taken off. Sixteen columns of a row are one register, of which an
 * instruction takes four. The codes of a group pass up to TILE_ROWS rows, whose integer sums stay in
 * registers; the float sums wait in memory that never leaves the first-level cache.
 */
#include <string.h>

#include "kernels/cpu/plain.h"
#include "kernels/cpu/neon.h"
#include "kernels/cpu/panel_group.h"

enum { TILE_ROWS = 4, VECTOR = 64, QUARTERS = FG_NEON_PANEL_QUARTERS };

/* Some rows against one panel. */
typedef struct tile {
    const uint8_t *panel;
    const int8_t *quants;         /* of the tile's first row */
    const fg_quant_group *groups; /* of the tile's first row */
    size_t columns;
    size_t group_count;
    float32x4_t totals[TILE_ROWS][QUARTERS];
} tile;

/* What the products of a group are scaled with, for four outputs. */
typedef struct factors {
    float32x4_t d;
    float32x4_t minimum;
    int32x4_t first;  /* Q6_K: integer scale of columns 0..15 */
    int32x4_t second; /* and of 16..31 */
} factors;

/* A group as the walk through a panel meets it. */
typedef struct place {
    const uint8_t *scales; /* of its unit */
    const uint8_t *codes;
    size_t in_unit;
    size_t group; /* in the row */
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

/* Scales of group g of a unit for outputs 4 * quarter .. 4 * quarter + 3. */
FG_NEON_INLINE factors scales_of(uint32_t type, const uint8_t *scales, size_t g, size_t quarter)
{
    size_t half_at = quarter * 8;
    factors f = { .d = halves(scales + half_at) };
    switch (type) {
    case FG_Q4_1:
    case FG_Q5_1:
        f.minimum = halves(scales + 32 + half_at);
        break;
    case FG_Q4_K:
    case FG_Q5_K: {
        const uint8_t *bytes = scales + 64 + g * 32 + quarter * 4;
        /* The products of halves and six bits are exact. */
        f.d = vmulq_f32(f.d, vcvtq_f32_s32(four_bytes(bytes, false)));
        f.minimum = vnegq_f32(
            vmulq_f32(halves(scales + 32 + half_at), vcvtq_f32_s32(four_bytes(bytes + 16, false))));
        break;
    }
    case FG_Q6_K: {
        const uint8_t *bytes = scales + 32 + g * 32 + quarter * 4;
        f.first = four_bytes(bytes, true);
        f.second = four_bytes(bytes + 16, true);
        break;
    }
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
                             int32x4_t sums[TILE_ROWS][QUARTERS])
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

FG_NEON_INLINE void add_group(uint32_t type, int R, tile *t, const place *p)
{
    factors f[QUARTERS];
    int32x4_t sums[TILE_ROWS][QUARTERS];
#pragma GCC unroll 4
    for (int i = 0; i < QUARTERS; i++) {
        f[i] = scales_of(type, p->scales, p->in_unit, (size_t)i);
    }
#pragma GCC unroll 16
    for (int i = 0; i < R * QUARTERS; i++) {
        sums[i / QUARTERS][i % QUARTERS] = vdupq_n_s32(0);
    }
    int32x4_t firsts[TILE_ROWS][QUARTERS];
    multiply(type, R, t, p, 0, sums);
    if (type == FG_Q6_K) {
#pragma GCC unroll 16
        for (int i = 0; i < R * QUARTERS; i++) {
            int32x4_t *sum = &sums[i / QUARTERS][i % QUARTERS];
            firsts[i / QUARTERS][i % QUARTERS] = vmulq_s32(*sum, f[i % QUARTERS].first);
            *sum = vdupq_n_s32(0);
        }
    }
    multiply(type, R, t, p, 1, sums);
#pragma GCC unroll 16
    for (int i = 0; i < R * QUARTERS; i++) {
        int r = i / QUARTERS;
        int quarter = i % QUARTERS;
        int32x4_t sum = sums[r][quarter];
        if (type == FG_Q6_K) {
            sum = vmlaq_s32(firsts[r][quarter], sum, f[quarter].second);
        }
        t->totals[r][quarter] =
            add_scaled(type, sum, &t->groups[p->group + (size_t)r * t->group_count], &f[quarter],
                       t->totals[r][quarter]);
    }
}

/* R rows against a panel. */
FG_NEON_INLINE void run_tile(uint32_t type, int R, tile *t)
{
    const fg_panel_shape shape = fg_panel_shape_of(type, 256);
    place p = { .scales = t->panel };
    memset(t->totals, 0, sizeof t->totals);
    while (p.group < t->group_count) {
        p.codes = p.scales + shape.scale_bytes;
        size_t left = t->group_count - p.group;
        size_t count = left < shape.unit_groups ? left : shape.unit_groups;
        for (p.in_unit = 0; p.in_unit < count; p.in_unit++) {
            add_group(type, R, t, &p);
            p.codes += shape.group_bytes;
            p.group++;
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
    if (fg_cpu_is_super(linear->weight.type)) {
        fg_cpu_plain_linear(linear, in, rows, first, count);
        return;
    }
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
            t.groups = in->groups + row * t.group_count;
            run(taken, &t);
            for (uint32_t i = 0; i < taken; i++) {
                fg_neon_put_panel(linear, row + i, panel * FG_PANEL_OUTPUTS, t.totals[i]);
            }
        }
    }
}
