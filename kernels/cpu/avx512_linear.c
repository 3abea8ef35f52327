/*
 * Matrix products with AVX-512 and VNNI, over panels of sixteen outputs (kernels/panel.h).
 *
 * A register holds four columns of all sixteen outputs of a panel, and a lane of its sums is an output: no
 * sum is ever folded, and one row runs through the same instructions as many. A tile is R rows against
 * one panel; the integer sums of a group and the float sums of the rows stay in registers, each vector of
 * codes is unpacked once and meets every row of the tile, four of whose columns are broadcast.
 *
 * vpdpbusd multiplies unsigned with signed bytes and adds in 32 bits, exactly: codes go in without their
 * offset (8-bit ones with their top bit turned, which adds 128), and a row's sum begins at minus offset
 * times the sum of its quants. Integer scales of K types are multiplied in as floats: the largest product
 * is 2 * 16 * 32 * 127 * 128 < 2^24 (Q6_K), so every one of them is exact.
 */
#include "kernels/cpu/avx512.h"
#include "kernels/cpu/panel_group.h"

enum { TILE_ROWS = 8, VECTOR = 64, VECTORS = 8 };
/* Bytes ahead of a walk through panels: what arrives meanwhile from memory. */
enum { AHEAD = 3072 };

/* Some rows against one panel. */
typedef struct tile {
    const uint8_t *panel;
    const int8_t *quants;         /* of the tile's first row */
    const fg_quant_group *groups; /* of the tile's first row */
    size_t columns;
    size_t group_count;
} tile;

/* What the products of a group are scaled with. */
typedef struct factors {
    __m512 d;
    __m512 minimum;
    __m512 first;  /* integer scale: of all columns, or of 0..15 */
    __m512 second; /* Q6_K: of columns 16..31 */
} factors;

/* A group as the walk through a panel meets it. */
typedef struct place {
    const uint8_t *scales; /* of its unit */
    const uint8_t *codes;
    size_t in_unit;
    size_t group; /* in the row */
} place;

FG_AVX512_INLINE __m512i load64(const void *bytes)
{
    return _mm512_loadu_si512(bytes);
}

FG_AVX512_INLINE __m512i broadcast4(const void *bytes)
{
    int32_t word;
    memcpy(&word, bytes, sizeof word);
    return _mm512_set1_epi32(word);
}

/* Columns 4 * j .. 4 * j + 3 of a group as unsigned bytes. */
FG_AVX512_INLINE __m512i unpack(uint32_t type, const uint8_t *at, int j)
{
    if (type == FG_Q8_0) {
        return _mm512_xor_si512(load64(at + (size_t)j * VECTOR), _mm512_set1_epi8((char)0x80));
    }
    __m512i raw = load64(at + (size_t)(j % 4) * VECTOR);
    raw = j < 4 ? raw : _mm512_srli_epi16(raw, 4);
    __m512i w = _mm512_and_si512(raw, _mm512_set1_epi8(15));
    if (type == FG_Q5_0 || type == FG_Q5_1 || type == FG_Q5_K) {
        __m512i high = load64(at + 4 * VECTOR);
        high = j < 4 ? _mm512_slli_epi16(high, (unsigned)(4 - j))
                     : _mm512_srli_epi16(high, (unsigned)(j - 4));
        w = _mm512_or_si512(w, _mm512_and_si512(high, _mm512_set1_epi8(16)));
    } else if (type == FG_Q6_K) {
        int shift = 4 - j % 4 * 2;
        __m512i high = load64(at + (size_t)(4 + j / 4) * VECTOR);
        high = shift >= 0 ? _mm512_slli_epi16(high, (unsigned)shift)
                          : _mm512_srli_epi16(high, (unsigned)-shift);
        w = _mm512_or_si512(w, _mm512_and_si512(high, _mm512_set1_epi8(48)));
    }
    return w;
}

FG_AVX512_INLINE __m512 halves(const uint8_t *at)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)at));
}

FG_AVX512_INLINE __m512 unsigned_bytes(const uint8_t *at)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)at)));
}

FG_AVX512_INLINE __m512 signed_bytes(const uint8_t *at)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)at)));
}

/* Scales of group g of a unit. */
FG_AVX512_INLINE factors scales_of(uint32_t type, const uint8_t *scales, size_t g)
{
    factors f = { .d = _mm512_setzero_ps() };
    switch (type) {
    case FG_Q4_1:
    case FG_Q5_1:
        f.d = halves(scales);
        f.minimum = halves(scales + 32);
        break;
    case FG_Q4_K:
    case FG_Q5_K: {
        const uint8_t *bytes = scales + 64 + g * 32;
        f.d = halves(scales);
        f.first = unsigned_bytes(bytes);
        /* The product of halves and six bits is exact. */
        __m512 minimum = _mm512_mul_ps(halves(scales + 32), unsigned_bytes(bytes + 16));
        f.minimum = _mm512_castsi512_ps(
            _mm512_xor_si512(_mm512_castps_si512(minimum), _mm512_set1_epi32(INT32_MIN)));
        break;
    }
    case FG_Q6_K:
        f.d = halves(scales);
        f.first = signed_bytes(scales + 32 + g * 32);
        f.second = signed_bytes(scales + 48 + g * 32);
        break;
    default:
        f.d = halves(scales + g * 32);
        break;
    }
    return f;
}

/* Where a row's sum begins: what the codes' offset adds too much, over the whole group or, of Q6_K, over
 * its half `half`. */
FG_AVX512_INLINE __m512i begin_sum(uint32_t type, const int16_t *sums, int half)
{
    int32_t words = 0;
    switch (type) {
    case FG_Q4_0:
        words = (int32_t)0xFFF8FFF8;
        break;
    case FG_Q5_0:
        words = (int32_t)0xFFF0FFF0;
        break;
    case FG_Q8_0:
        words = (int32_t)0xFF80FF80;
        break;
    case FG_Q6_K:
        words = half == 0 ? 0x0000FFE0 : (int32_t)0xFFE00000;
        break;
    default:
        return _mm512_setzero_si512();
    }
    return _mm512_madd_epi16(broadcast4(sums), _mm512_set1_epi32(words));
}

/* Columns 4 * first .. 4 * end - 1 of the group against R rows. */
FG_AVX512_INLINE void multiply(uint32_t type, int R, const tile *t, const place *p, int first,
                               int end, __m512i sums[TILE_ROWS])
{
    const int8_t *x = t->quants + p->group * FG_QUANT_GROUP;
#pragma GCC unroll 8
    for (int j = first; j < end; j++) {
        __m512i w = unpack(type, p->codes, j);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            const int8_t *at = x + (size_t)r * t->columns + 4 * j;
            sums[r] = _mm512_dpbusd_epi32(sums[r], w, broadcast4(at));
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

FG_AVX512_INLINE void add_group(uint32_t type, int R, const tile *t, const place *p,
                                __m512 totals[TILE_ROWS])
{
    const fg_quant_group *groups = t->groups + p->group;
    factors f = scales_of(type, p->scales, p->in_unit);
    __m512i sums[TILE_ROWS];
    __m512 firsts[TILE_ROWS];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        sums[r] = begin_sum(type, groups[(size_t)r * t->group_count].sums, 0);
    }
    multiply(type, R, t, p, 0, VECTORS / 2, sums);
    if (type == FG_Q6_K) {
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            firsts[r] = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[r]), f.first);
            sums[r] = begin_sum(type, groups[(size_t)r * t->group_count].sums, 1);
        }
    }
    multiply(type, R, t, p, VECTORS / 2, VECTORS, sums);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        __m512 sum = _mm512_cvtepi32_ps(sums[r]);
        if (type == FG_Q6_K) {
            sum = _mm512_fmadd_ps(sum, f.second, firsts[r]);
        } else if (type == FG_Q4_K || type == FG_Q5_K) {
            sum = _mm512_mul_ps(sum, f.first);
        }
        totals[r] = add_scaled(type, sum, &groups[(size_t)r * t->group_count], &f, totals[r]);
    }
}

/* A panel is passed too quickly for the processor to foresee what will be read. */
FG_AVX512_INLINE void ask_ahead(const uint8_t *at, size_t size_bytes)
{
    for (size_t i = 0; i < size_bytes; i += VECTOR) {
        _mm_prefetch((const char *)at + AHEAD + i, _MM_HINT_T0);
    }
}

/* R rows against a panel. */
FG_AVX512_INLINE void run_tile(uint32_t type, int R, const tile *t, __m512 out[TILE_ROWS])
{
    const fg_panel_shape shape = fg_panel_shape_of(type, 256);
    place p = { .scales = t->panel };
    __m512 totals[TILE_ROWS];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        totals[r] = _mm512_setzero_ps();
    }
    while (p.group < t->group_count) {
        if (R == 1) {
            ask_ahead(p.scales, shape.scale_bytes);
        }
        p.codes = p.scales + shape.scale_bytes;
        size_t left = t->group_count - p.group;
        size_t count = left < shape.unit_groups ? left : shape.unit_groups;
        for (p.in_unit = 0; p.in_unit < count; p.in_unit++) {
            ask_ahead(p.codes, shape.group_bytes);
            add_group(type, R, t, &p, totals);
            p.codes += shape.group_bytes;
            p.group++;
        }
        p.scales += shape.unit_bytes;
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        out[r] = totals[r];
    }
}

FG_AVX512_INLINE void choose_tile(uint32_t type, uint32_t rows, const tile *t,
                                  __m512 out[TILE_ROWS])
{
    switch (rows) {
    case 1:
        run_tile(type, 1, t, out);
        break;
    case 2:
        run_tile(type, 2, t, out);
        break;
    case 3:
        run_tile(type, 3, t, out);
        break;
    case 4:
        run_tile(type, 4, t, out);
        break;
    case 5:
        run_tile(type, 5, t, out);
        break;
    case 6:
        run_tile(type, 6, t, out);
        break;
    case 7:
        run_tile(type, 7, t, out);
        break;
    default:
        run_tile(type, TILE_ROWS, t, out);
        break;
    }
}

/* One function per type: the type is a constant in each. */
#define DEFINE_TILE(name, type)                                                                    \
    static void name##_tile(uint32_t rows, const tile *t, __m512 out[TILE_ROWS])                   \
    {                                                                                              \
        choose_tile(type, rows, t, out);                                                           \
    }

FG_CPU_EACH_QUANTIZED(DEFINE_TILE)

typedef void (*tile_fn)(uint32_t rows, const tile *t, __m512 out[TILE_ROWS]);

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

void fg_cpu_avx512_linear(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                          uint32_t first, uint32_t count)
{
    const fg_panels *w = &linear->weight;
    tile_fn run = tile_of(w->type);
    if (run == NULL) {
        fg_cpu_avx512_linear_float(linear, in, rows, first, count);
        return;
    }
    size_t panel_bytes = fg_panel_bytes(w->type, w->columns);
    tile t = { .columns = w->columns, .group_count = w->columns / FG_QUANT_GROUP };
    for (uint32_t panel = first; panel < first + count; panel++) {
        t.panel = (const uint8_t *)w->data + panel * panel_bytes;
        for (uint32_t row = 0; row < rows; row += TILE_ROWS) {
            uint32_t taken = rows - row < TILE_ROWS ? rows - row : TILE_ROWS;
            __m512 sums[TILE_ROWS];
            t.quants = in->quants + row * t.columns;
            t.groups = in->groups + row * t.group_count;
            run(taken, &t, sums);
            for (uint32_t i = 0; i < taken; i++) {
                fg_avx512_put_panel(linear, row + i, panel * FG_PANEL_OUTPUTS, sums[i]);
            }
        }
    }
}
