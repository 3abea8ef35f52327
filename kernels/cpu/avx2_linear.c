/*
 * Matrix products with AVX2, FMA and F16C, over panels of sixteen outputs (kernels/panel.h).
 *
 * A lane is an output, so no sum is ever folded, and one row runs through the same instructions as many.
 * Codes of 4 and 5 bits: those of half a group, 16 outputs x 16 columns, are unpacked into eight registers
 * and stay there while up to TILE_ROWS rows pass; four columns of a row are broadcast once for all
 * outputs. The sums of the first half wait in memory for the second. Codes of 8 bits need their sign as
 * well as their magnitude: there the sums of up to eight rows stay in registers while the codes pass, and
 * many rows go elsewhere (avx2_linear_q8.c), as do types with super-groups (avx2_linear_super.c).
 *
 * How long 16-bit sums are exact: a product pair is at most 2 * 127 * u for codes up to u; 4 bits allow
 * eight pairs (30480), 5 bits four (31496), 6 bits two (32004), 8 bits one (32512).
 */
#include "kernels/cpu/avx2_unpack.h"

/* Rows that share one unpacking of codes. Their activations are a row apart, and with rows of a power of
 * two more of them would fall into the same few sets of the first-level cache. */
enum { TILE_ROWS = 8 };
/* From so many rows on making 8-bit codes ready pays (avx2_linear_q8.c). */
enum { SIGNED_ROWS_MANY = 9 };
/* Bytes ahead of one row's walk through panels, groups ahead of that of more rows: what arrives from memory
 * meanwhile. */
enum { BYTES_AHEAD = 2304, GROUPS_AHEAD = 12 };

/* Some rows against one panel; its sums lie in memory that never leaves the first-level cache. */
typedef struct tile {
    const uint8_t *panel;
    const int8_t *quants;         /* of the tile's first row */
    const fg_quant_group *groups; /* of the tile's first row */
    size_t columns;
    size_t group_count;
    uint32_t rows;
    __m256i halves[TILE_ROWS][2]; /* products of columns 0..15 of the group at hand */
    __m256 sums[TILE_ROWS][2];    /* of outputs 0..7 and 8..15 */
} tile;

/* Codes of 16 columns, without their offset: vector j of outputs 0..7 and of 8..15. */
typedef struct codes {
    __m256i a0, a1, a2, a3;
    __m256i b0, b1, b2, b3;
} codes;

/* Eight 32-bit or sixteen 16-bit sums of each half of the panel. */
typedef struct products {
    __m256i a, b;
} products;

FG_AVX2_INLINE codes unpack_half(uint32_t type, const uint8_t *at, int half)
{
    return (codes){ unpack(type, at, half, 0),        unpack(type, at, half, 1),
                    unpack(type, at, half, 2),        unpack(type, at, half, 3),
                    unpack(type, at + HALF, half, 0), unpack(type, at + HALF, half, 1),
                    unpack(type, at + HALF, half, 2), unpack(type, at + HALF, half, 3) };
}

/* Compilers take what comes before it first. Free to interleave a row's 16 columns, they run out of
 * registers and keep codes in memory: up to a sixth of the time. */
FG_AVX2_INLINE void finish_first(products *p)
{
    __asm__("" : "+x"(p->a), "+x"(p->b));
}

/* Pair sums of eight columns of one row. */
FG_AVX2_INLINE products pairs8(__m256i a0, __m256i b0, __m256i a1, __m256i b1, const int8_t *x)
{
    __m256i x0 = broadcast4(x);
    products p = { _mm256_maddubs_epi16(a0, x0), _mm256_maddubs_epi16(b0, x0) };
    __m256i x1 = broadcast4(x + 4);
    p.a = _mm256_add_epi16(p.a, _mm256_maddubs_epi16(a1, x1));
    p.b = _mm256_add_epi16(p.b, _mm256_maddubs_epi16(b1, x1));
    return p;
}

/* Sixteen pair sums as eight. */
FG_AVX2_INLINE __m256i widen(__m256i pairs)
{
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

/* Sums of 16 columns of one row: 16-bit pair sums of 4-bit codes, else 32 bits. */
FG_AVX2_INLINE products half_products(uint32_t type, codes w, const int8_t *x)
{
    products low = pairs8(w.a0, w.b0, w.a1, w.b1, x);
    finish_first(&low);
    products high = pairs8(w.a2, w.b2, w.a3, w.b3, x + 8);
    products sum = { _mm256_add_epi16(low.a, high.a), _mm256_add_epi16(low.b, high.b) };
    if (type == FG_Q4_0 || type == FG_Q4_1) {
        return sum;
    }
    return (products){ widen(sum.a), widen(sum.b) };
}

/* The exact sum of one row's group for eight outputs, from those of its halves. */
FG_AVX2_INLINE __m256i whole_sum(uint32_t type, __m256i first, __m256i second,
                                 const fg_quant_group *group)
{
    switch (type) {
    case FG_Q4_0: {
        __m256i offset = _mm256_slli_epi32(_mm256_set1_epi32(group->negated), 3);
        return _mm256_add_epi32(widen(_mm256_add_epi16(first, second)), offset);
    }
    case FG_Q5_0: {
        __m256i offset = _mm256_slli_epi32(_mm256_set1_epi32(group->negated), 4);
        return _mm256_add_epi32(_mm256_add_epi32(first, second), offset);
    }
    case FG_Q5_1:
        return _mm256_add_epi32(first, second);
    default:
        return widen(_mm256_add_epi16(first, second));
    }
}

FG_AVX2_INLINE __m256 add_sum(uint32_t type, __m256i sum, const fg_quant_group *group,
                              const factors *f, __m256 total)
{
    return add_scaled(type, _mm256_cvtepi32_ps(sum), group, f, total);
}

FG_AVX2_INLINE void add_group(uint32_t type, tile *t, const place *p)
{
    const int8_t *x = t->quants + p->group * FG_QUANT_GROUP;
    factors a = factors_of(type, p->scales, p->in_unit, 0);
    factors b = factors_of(type, p->scales, p->in_unit, 1);
    codes w = unpack_half(type, p->codes, 0);
    for (uint32_t row = 0; row < t->rows; row++) {
        products half = half_products(type, w, x + row * t->columns);
        t->halves[row][0] = half.a;
        t->halves[row][1] = half.b;
    }
    w = unpack_half(type, p->codes, 1);
    const fg_quant_group *group = t->groups + p->group;
    for (uint32_t row = 0; row < t->rows; row++) {
        products half = half_products(type, w, x + row * t->columns + 16);
        finish_first(&half);
        __m256i first = whole_sum(type, t->halves[row][0], half.a, group);
        __m256i second = whole_sum(type, t->halves[row][1], half.b, group);
        t->sums[row][0] = add_sum(type, first, group, &a, t->sums[row][0]);
        t->sums[row][1] = add_sum(type, second, group, &b, t->sums[row][1]);
        group += t->group_count;
    }
}

/* The same for one row, whose sums never leave the registers. */
FG_AVX2_INLINE void add_group_to_row(uint32_t type, const tile *t, const place *p, __m256 sums[2])
{
    const int8_t *x = t->quants + p->group * FG_QUANT_GROUP;
    const fg_quant_group *group = t->groups + p->group;
    factors a = factors_of(type, p->scales, p->in_unit, 0);
    factors b = factors_of(type, p->scales, p->in_unit, 1);
    products low = half_products(type, unpack_half(type, p->codes, 0), x);
    products high = half_products(type, unpack_half(type, p->codes, 1), x + 16);
    __m256i first = whole_sum(type, low.a, high.a, group);
    __m256i second = whole_sum(type, low.b, high.b, group);
    sums[0] = add_sum(type, first, group, &a, sums[0]);
    sums[1] = add_sum(type, second, group, &b, sums[1]);
}

/* Four products of 8-bit codes for each of eight outputs. The activations take the weights' signs, so
 * that the first factor is unsigned. The empty asm keeps compilers from adding up the group as a tree,
 * for which there are not registers enough. */
FG_AVX2_INLINE __m256i signed_dot4(__m256i magnitude, __m256i w, __m256i x, __m256i sum)
{
    __m256i pairs = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(x, w));
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    __asm__("" : "+x"(sum));
    return sum;
}

/* Named sums, because compilers keep arrays in memory. */
/* clang-format off */
#define EACH_SIGNED_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define EACH_WHOLE_ROW(X) X(0) X(1) X(2)
/* clang-format on */
#define BEGIN_SIGNED_ROW(r) __m256i sum##r = _mm256_setzero_si256();
#define ADD_SIGNED_ROW(r)                                                                          \
    if (R > (r)) {                                                                                 \
        sum##r = signed_dot4(magnitude, w, broadcast4(x + (r)*t->columns + 4 * j), sum##r);        \
    }
#define FINISH_SIGNED_ROW(r)                                                                       \
    if (R > (r)) {                                                                                 \
        t->sums[r][half] =                                                                         \
            add_sum(FG_Q8_0, sum##r, group + (r)*t->group_count, &f, t->sums[r][half]);            \
    }

/* Eight outputs' group of 8-bit codes against R rows. */
FG_AVX2_INLINE void add_signed_half(uint32_t R, tile *t, const place *p, size_t half)
{
    EACH_SIGNED_ROW(BEGIN_SIGNED_ROW)
    const int8_t *x = t->quants + p->group * FG_QUANT_GROUP;
    __asm__("" : "+r"(x) : "r"(half)); /* what is broadcast should not be kept for the other half */
#pragma GCC unroll 8
    for (size_t j = 0; j < 8; j++) {
        __m256i w = load32(p->codes + j * VECTOR + half * HALF);
        __m256i magnitude = _mm256_abs_epi8(w);
        EACH_SIGNED_ROW(ADD_SIGNED_ROW)
    }
    factors f = factors_of(FG_Q8_0, p->scales, p->in_unit, half);
    const fg_quant_group *group = t->groups + p->group;
    EACH_SIGNED_ROW(FINISH_SIGNED_ROW)
}

/* Many rows: half a panel after the other, so that a half's sums stay in registers. */
FG_AVX2_INLINE void add_signed_halves(uint32_t R, tile *t, const place *p)
{
#pragma GCC unroll 1
    for (size_t half = 0; half < 2; half++) {
        add_signed_half(R, t, p, half);
    }
}

#define BEGIN_WHOLE_ROW(r)                                                                         \
    __m256i a##r = _mm256_setzero_si256();                                                         \
    __m256i b##r = _mm256_setzero_si256();
#define ADD_WHOLE_ROW(r)                                                                           \
    if (R > (r)) {                                                                                 \
        __m256i x##r = broadcast4(x + (r)*t->columns + 4 * j);                                     \
        a##r = signed_dot4(a_magnitude, a, x##r, a##r);                                            \
        b##r = signed_dot4(b_magnitude, b, x##r, b##r);                                            \
    }
#define FINISH_WHOLE_ROW(r)                                                                        \
    if (R > (r)) {                                                                                 \
        const fg_quant_group *group = t->groups + p->group + (r)*t->group_count;                   \
        t->sums[r][0] = add_sum(FG_Q8_0, a##r, group, &a_factors, t->sums[r][0]);                  \
        t->sums[r][1] = add_sum(FG_Q8_0, b##r, group, &b_factors, t->sums[r][1]);                  \
    }

/* Few rows: all sixteen outputs at once, as their codes come from memory. */
FG_AVX2_INLINE void add_signed_whole(uint32_t R, tile *t, const place *p)
{
    const int8_t *x = t->quants + p->group * FG_QUANT_GROUP;
    EACH_WHOLE_ROW(BEGIN_WHOLE_ROW)
#pragma GCC unroll 8
    for (size_t j = 0; j < 8; j++) {
        __m256i a = load32(p->codes + j * VECTOR);
        __m256i b = load32(p->codes + j * VECTOR + HALF);
        __m256i a_magnitude = _mm256_abs_epi8(a);
        __m256i b_magnitude = _mm256_abs_epi8(b);
        EACH_WHOLE_ROW(ADD_WHOLE_ROW)
    }
    factors a_factors = factors_of(FG_Q8_0, p->scales, p->in_unit, 0);
    factors b_factors = factors_of(FG_Q8_0, p->scales, p->in_unit, 1);
    EACH_WHOLE_ROW(FINISH_WHOLE_ROW)
}

FG_AVX2_INLINE void add_signed_group(uint32_t R, tile *t, const place *p)
{
    if (R <= 3) {
        add_signed_whole(R, t, p);
    } else {
        add_signed_halves(R, t, p);
    }
}

/* The same for one row, whose sums never leave the registers. */
FG_AVX2_INLINE void add_signed_to_row(const tile *t, const place *p, __m256 sums[2])
{
    const int8_t *x = t->quants + p->group * FG_QUANT_GROUP;
    const fg_quant_group *group = t->groups + p->group;
    __m256i a_sum = _mm256_setzero_si256();
    __m256i b_sum = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (size_t j = 0; j < 8; j++) {
        __m256i a = load32(p->codes + j * VECTOR);
        __m256i b = load32(p->codes + j * VECTOR + HALF);
        __m256i x_j = broadcast4(x + 4 * j);
        a_sum = signed_dot4(_mm256_abs_epi8(a), a, x_j, a_sum);
        b_sum = signed_dot4(_mm256_abs_epi8(b), b, x_j, b_sum);
    }
    factors a = factors_of(FG_Q8_0, p->scales, p->in_unit, 0);
    factors b = factors_of(FG_Q8_0, p->scales, p->in_unit, 1);
    sums[0] = add_sum(FG_Q8_0, a_sum, group, &a, sums[0]);
    sums[1] = add_sum(FG_Q8_0, b_sum, group, &b, sums[1]);
}

/* One row against one panel, or against two in turns. */
FG_AVX2_INLINE void run_row(uint32_t type, size_t panels, size_t panel_bytes, tile *t)
{
    const fg_panel_shape shape = fg_panel_shape_of(type, 256);
    __m256 sums[2][2] = { { _mm256_setzero_ps(), _mm256_setzero_ps() },
                          { _mm256_setzero_ps(), _mm256_setzero_ps() } };
    place p = { .scales = t->panel };
    while (p.group < t->group_count) {
        p.codes = p.scales + shape.scale_bytes;
        for (size_t i = 0; i < panels; i++) {
            ask_for(p.scales + i * panel_bytes + BYTES_AHEAD, shape.scale_bytes);
        }
        size_t left = t->group_count - p.group;
        size_t count = left < shape.unit_groups ? left : shape.unit_groups;
        for (p.in_unit = 0; p.in_unit < count; p.in_unit++) {
            for (size_t i = 0; i < panels; i++) {
                place at = p;
                at.scales += i * panel_bytes;
                at.codes += i * panel_bytes;
                ask_for(at.codes + BYTES_AHEAD, shape.group_bytes);
                if (type == FG_Q8_0) {
                    add_signed_to_row(t, &at, sums[i]);
                } else {
                    add_group_to_row(type, t, &at, sums[i]);
                }
            }
            p.codes += shape.group_bytes;
            p.group++;
        }
        p.scales += shape.unit_bytes;
    }
    memcpy(t->sums, sums, panels * sizeof sums[0]);
}

/* The tile's rows against a panel; of 8-bit codes their number is a constant. */
FG_AVX2_INLINE void run_rows(uint32_t type, uint32_t rows, tile *t)
{
    const fg_panel_shape shape = fg_panel_shape_of(type, 256);
    place p = { .scales = t->panel };
    while (p.group < t->group_count) {
        p.codes = p.scales + shape.scale_bytes;
        size_t left = t->group_count - p.group;
        size_t count = left < shape.unit_groups ? left : shape.unit_groups;
        for (p.in_unit = 0; p.in_unit < count; p.in_unit++) {
            ask_for(p.codes + (size_t)GROUPS_AHEAD * shape.group_bytes, shape.group_bytes);
            if (type == FG_Q8_0) {
                add_signed_group(rows, t, &p);
            } else {
                add_group(type, t, &p);
            }
            p.codes += shape.group_bytes;
            p.group++;
        }
        p.scales += shape.unit_bytes;
    }
}

#define SIGNED_ROWS_CASE(r)                                                                        \
    case (r) + 1:                                                                                  \
        run_rows(FG_Q8_0, (r) + 1, t);                                                             \
        break;

FG_AVX2_INLINE void run_tile(uint32_t type, tile *t)
{
    if (type == FG_Q8_0) {
        switch (t->rows) {
            EACH_SIGNED_ROW(SIGNED_ROWS_CASE)
        }
    } else if (t->rows == 1) {
        run_row(type, 1, 0, t);
    } else {
        run_rows(type, 0, t);
    }
}

/* Eight sums to out[0 .. count - 1]. */
static void put_sums(__m256 sums, bool accumulate, uint32_t count, float *out)
{
    if (count >= 8) {
        _mm256_storeu_ps(out, accumulate ? _mm256_add_ps(_mm256_loadu_ps(out), sums) : sums);
        return;
    }
    float values[8];
    _mm256_storeu_ps(values, sums);
    for (uint32_t i = 0; i < count; i++) {
        out[i] = accumulate ? out[i] + values[i] : values[i];
    }
}

void fg_cpu_avx2_put_panel(const fg_linear *linear, uint32_t row, uint32_t output,
                           const __m256 sums[2])
{
    uint32_t left = linear->weight.outputs - output;
    float *out = linear->out + (size_t)row * linear->out_stride + output;
    put_sums(sums[0], linear->accumulate, left, out);
    if (left > 8) {
        put_sums(sums[1], linear->accumulate, left - 8, out + 8);
    }
}

FG_AVX2_INLINE void run_panels(uint32_t type, const fg_linear *linear, const fg_activations *in,
                               uint32_t rows, uint32_t first, uint32_t count)
{
    const fg_panels *w = &linear->weight;
    const size_t panel_bytes = fg_panel_bytes(type, w->columns);
    tile t = { .quants = in->quants,
               .groups = in->groups,
               .columns = w->columns,
               .group_count = w->columns / FG_QUANT_GROUP };
    for (uint32_t panel = first; panel < first + count; panel++) {
        t.panel = (const uint8_t *)w->data + panel * panel_bytes;
        /* Two streams of 8-bit codes come quicker from memory than one; of smaller codes they do not. */
        if (type == FG_Q8_0 && rows == 1 && panel + 1 < first + count) {
            run_row(type, 2, panel_bytes, &t);
            fg_cpu_avx2_put_panel(linear, 0, panel * FG_PANEL_OUTPUTS, t.sums[0]);
            panel++;
            fg_cpu_avx2_put_panel(linear, 0, panel * FG_PANEL_OUTPUTS, t.sums[1]);
            continue;
        }
        for (uint32_t row = 0; row < rows; row += TILE_ROWS) {
            t.rows = rows - row < TILE_ROWS ? rows - row : TILE_ROWS;
            t.quants = in->quants + row * t.columns;
            t.groups = in->groups + row * t.group_count;
            memset(t.sums, 0, sizeof t.sums);
            run_tile(type, &t);
            for (uint32_t i = 0; i < t.rows; i++) {
                fg_cpu_avx2_put_panel(linear, row + i, panel * FG_PANEL_OUTPUTS, t.sums[i]);
            }
        }
    }
}

FG_CPU_EACH_GROUPED(FG_AVX2_DEFINE_PANELS)

void fg_cpu_avx2_linear(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                        uint32_t first, uint32_t count)
{
    if (linear->weight.type == FG_Q8_0 && rows >= SIGNED_ROWS_MANY) {
        fg_cpu_avx2_linear_q8(linear, in, rows, first, count);
        return;
    }
    switch (linear->weight.type) {
        FG_CPU_EACH_GROUPED(FG_AVX2_PANELS_CASE)
    case FG_Q4_K:
    case FG_Q5_K:
    case FG_Q6_K:
        fg_cpu_avx2_linear_super(linear, in, rows, first, count);
        break;
    case FG_BF16:
        fg_cpu_avx2_linear_bf16(linear, in, rows, first, count);
        break;
    default:
        fg_cpu_avx2_linear_float(linear, in, rows, first, count);
        break;
    }
}
