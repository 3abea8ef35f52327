/*
 * Matrix products with AVX2, FMA and F16C, over panels of sixteen outputs (kernels/panel.h).
 *
 * Quantised types: the codes of half a panel's group, 8 outputs x 32 columns, are unpacked into eight
 * registers and stay there while up to TILE_ROWS rows pass: four columns of a row are broadcast to all
 * outputs, multiplied, and summed in 16 bits for as long as that is exact. A lane is an output, so no
 * sum is ever folded, and one row runs through the same instructions as many.
 *
 * How long 16 bits are exact: a product pair is at most 2 * 127 * u for codes up to u; 4 bits allow eight
 * pairs (30480), 5 bits four (31496), 6 bits two (32004), 8 bits one (32512).
 */
#include "kernels/cpu/avx2.h"
#include "kernels/cpu/avx2_math.h"
#include "kernels/cpu/panel_group.h"

/* Rows that share one unpacking of codes. Their activations are a row apart, and with rows of a power of
 * two more of them would fall into the same few sets of the first-level cache. */
enum { TILE_ROWS = 8 };
enum { VECTOR = 64, HALF = 32 };

/* Some rows against one panel; its sums lie in memory that never leaves the first-level cache. */
typedef struct tile {
    const uint8_t *panel;
    const fg_panel_shape *shape;
    const int8_t *quants;         /* of the tile's first row */
    const fg_quant_group *groups; /* of the tile's first row */
    size_t columns;
    size_t group_count;
    uint32_t rows;
    __m256 sums[TILE_ROWS][2];
} tile;

/* Half a panel's codes of one group, without their offset. */
typedef struct codes {
    __m256i v0, v1, v2, v3, v4, v5, v6, v7;
} codes;

/* What the products of half a group are scaled with. */
typedef struct factors {
    __m256 d;
    __m256 minimum;
    __m256i first;  /* integer scale per pair sum: of all columns, or of 0..15 */
    __m256i second; /* Q6_K: of columns 16..31 */
    __m256i both;   /* Q6_K: the two of an output side by side */
} factors;

FG_AVX2_INLINE __m256i load32(const void *bytes)
{
    return _mm256_loadu_si256((const __m256i *)bytes);
}

/* Bits of the fifth-bit vector that belong to vector j, at 16. */
#define FIFTH(high, j)                                                                             \
    _mm256_and_si256((j) < 4 ? _mm256_slli_epi16(high, 4 - (j)) : _mm256_srli_epi16(high, (j)-4),  \
                     _mm256_set1_epi8(16))
/* Two upper bits of vector j (0..3 of its half), at 16 and 32. */
#define UPPER(high, j)                                                                             \
    _mm256_and_si256((j) < 2 ? _mm256_slli_epi16(high, 4 - 2 * (j))                                \
                             : _mm256_srli_epi16(high, 2 * (j)-4),                                 \
                     _mm256_set1_epi8(48))

FG_AVX2_INLINE codes unpack_nibbles(const uint8_t *at)
{
    const __m256i low = _mm256_set1_epi8(15);
    __m256i a = load32(at);
    __m256i b = load32(at + VECTOR);
    __m256i c = load32(at + 2 * VECTOR);
    __m256i d = load32(at + 3 * VECTOR);
    return (codes){ _mm256_and_si256(a, low),
                    _mm256_and_si256(b, low),
                    _mm256_and_si256(c, low),
                    _mm256_and_si256(d, low),
                    _mm256_and_si256(_mm256_srli_epi16(a, 4), low),
                    _mm256_and_si256(_mm256_srli_epi16(b, 4), low),
                    _mm256_and_si256(_mm256_srli_epi16(c, 4), low),
                    _mm256_and_si256(_mm256_srli_epi16(d, 4), low) };
}

/* Unsigned codes of half a group; of Q8_0 the magnitudes. */
FG_AVX2_INLINE codes unpack(uint32_t type, const uint8_t *at)
{
    if (type == FG_Q8_0) {
        return (codes){
            _mm256_abs_epi8(load32(at)),
            _mm256_abs_epi8(load32(at + VECTOR)),
            _mm256_abs_epi8(load32(at + 2 * VECTOR)),
            _mm256_abs_epi8(load32(at + 3 * VECTOR)),
            _mm256_abs_epi8(load32(at + 4 * VECTOR)),
            _mm256_abs_epi8(load32(at + 5 * VECTOR)),
            _mm256_abs_epi8(load32(at + 6 * VECTOR)),
            _mm256_abs_epi8(load32(at + 7 * VECTOR)),
        };
    }
    codes w = unpack_nibbles(at);
    if (type == FG_Q5_0 || type == FG_Q5_1 || type == FG_Q5_K) {
        __m256i high = load32(at + 4 * VECTOR);
        w.v0 = _mm256_or_si256(w.v0, FIFTH(high, 0));
        w.v1 = _mm256_or_si256(w.v1, FIFTH(high, 1));
        w.v2 = _mm256_or_si256(w.v2, FIFTH(high, 2));
        w.v3 = _mm256_or_si256(w.v3, FIFTH(high, 3));
        w.v4 = _mm256_or_si256(w.v4, FIFTH(high, 4));
        w.v5 = _mm256_or_si256(w.v5, FIFTH(high, 5));
        w.v6 = _mm256_or_si256(w.v6, FIFTH(high, 6));
        w.v7 = _mm256_or_si256(w.v7, FIFTH(high, 7));
    } else if (type == FG_Q6_K) {
        __m256i first = load32(at + 4 * VECTOR);
        __m256i second = load32(at + 5 * VECTOR);
        w.v0 = _mm256_or_si256(w.v0, UPPER(first, 0));
        w.v1 = _mm256_or_si256(w.v1, UPPER(first, 1));
        w.v2 = _mm256_or_si256(w.v2, UPPER(first, 2));
        w.v3 = _mm256_or_si256(w.v3, UPPER(first, 3));
        w.v4 = _mm256_or_si256(w.v4, UPPER(second, 0));
        w.v5 = _mm256_or_si256(w.v5, UPPER(second, 1));
        w.v6 = _mm256_or_si256(w.v6, UPPER(second, 2));
        w.v7 = _mm256_or_si256(w.v7, UPPER(second, 3));
    }
    return w;
}

FG_AVX2_INLINE __m256 halves(const uint8_t *at)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)at));
}

FG_AVX2_INLINE __m128i load8(const uint8_t *at)
{
    return _mm_loadl_epi64((const __m128i *)at);
}

/* Each 32-bit value's low half in both halves. */
FG_AVX2_INLINE __m256i twice(__m256i value)
{
    return _mm256_blend_epi16(value, _mm256_slli_epi32(value, 16), 0xAA);
}

/* Scales of group g for outputs 8 * half .. 8 * half + 7. */
FG_AVX2_INLINE factors scales_of(uint32_t type, const tile *t, size_t g, size_t half)
{
    const uint8_t *scales = t->panel + t->shape->scales_offset;
    factors f = { .first = _mm256_set1_epi16(1) };
    switch (type) {
    case FG_Q4_1:
    case FG_Q5_1:
        scales += g * 64 + half * 16;
        f.d = halves(scales);
        f.minimum = halves(scales + 32);
        break;
    case FG_Q4_K:
    case FG_Q5_K: {
        scales += g / 8 * 320;
        const uint8_t *bytes = scales + 64 + g % 8 * 32 + half * 8;
        f.d = halves(scales + half * 16);
        f.first = twice(_mm256_cvtepu8_epi32(load8(bytes)));
        /* The product of halves and six bits is exact. */
        __m256 minima = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load8(bytes + 16)));
        f.minimum = _mm256_xor_ps(_mm256_mul_ps(halves(scales + 32 + half * 16), minima),
                                  _mm256_set1_ps(-0.0f));
        break;
    }
    case FG_Q6_K: {
        scales += g / 8 * 288;
        const uint8_t *bytes = scales + 32 + g % 8 * 32 + half * 8;
        f.d = halves(scales + half * 16);
        __m256i first = _mm256_cvtepi8_epi32(load8(bytes));
        __m256i second = _mm256_cvtepi8_epi32(load8(bytes + 16));
        f.first = twice(first);
        f.second = twice(second);
        f.both = _mm256_blend_epi16(first, _mm256_slli_epi32(second, 16), 0xAA);
        break;
    }
    default:
        f.d = halves(scales + g * 32 + half * 16);
        break;
    }
    return f;
}

FG_AVX2_INLINE __m256i broadcast4(const void *bytes)
{
    int32_t word;
    memcpy(&word, bytes, sizeof word);
    return _mm256_set1_epi32(word);
}

/* Two sums of two products for each of eight outputs: columns 4j .. 4j + 3. */
#define PAIRS(w, x, j) _mm256_maddubs_epi16((w).v##j, broadcast4((x) + 4 * (j)))
#define ADD16(a, b)    _mm256_add_epi16(a, b)
#define ADD32(a, b)    _mm256_add_epi32(a, b)

FG_AVX2_INLINE __m256i dot4(codes w, const int8_t *x, __m256i scales)
{
    __m256i a = ADD16(PAIRS(w, x, 0), PAIRS(w, x, 1));
    __m256i b = ADD16(PAIRS(w, x, 2), PAIRS(w, x, 3));
    __m256i c = ADD16(PAIRS(w, x, 4), PAIRS(w, x, 5));
    __m256i d = ADD16(PAIRS(w, x, 6), PAIRS(w, x, 7));
    return _mm256_madd_epi16(ADD16(ADD16(a, b), ADD16(c, d)), scales);
}

FG_AVX2_INLINE __m256i dot5(codes w, const int8_t *x, __m256i scales)
{
    __m256i a = ADD16(PAIRS(w, x, 0), PAIRS(w, x, 1));
    __m256i b = ADD16(PAIRS(w, x, 2), PAIRS(w, x, 3));
    __m256i c = ADD16(PAIRS(w, x, 4), PAIRS(w, x, 5));
    __m256i d = ADD16(PAIRS(w, x, 6), PAIRS(w, x, 7));
    return ADD32(_mm256_madd_epi16(ADD16(a, b), scales), _mm256_madd_epi16(ADD16(c, d), scales));
}

FG_AVX2_INLINE __m256i dot6(codes w, const int8_t *x, const factors *f)
{
    __m256i a = _mm256_madd_epi16(ADD16(PAIRS(w, x, 0), PAIRS(w, x, 1)), f->first);
    __m256i b = _mm256_madd_epi16(ADD16(PAIRS(w, x, 2), PAIRS(w, x, 3)), f->first);
    __m256i c = _mm256_madd_epi16(ADD16(PAIRS(w, x, 4), PAIRS(w, x, 5)), f->second);
    __m256i d = _mm256_madd_epi16(ADD16(PAIRS(w, x, 6), PAIRS(w, x, 7)), f->second);
    return ADD32(ADD32(a, b), ADD32(c, d));
}

/* The activations take the weights' signs, so that the first factor is unsigned. */
#define SIGNED_PAIRS(w, x, at, j)                                                                  \
    _mm256_madd_epi16(                                                                             \
        _mm256_maddubs_epi16((w).v##j, _mm256_sign_epi8(broadcast4((x) + 4 * (j)),                 \
                                                        load32((at) + (j) * (size_t)VECTOR))),     \
        _mm256_set1_epi16(1))

FG_AVX2_INLINE __m256i dot8(codes w, const int8_t *x, const uint8_t *at)
{
    __m256i a = ADD32(SIGNED_PAIRS(w, x, at, 0), SIGNED_PAIRS(w, x, at, 1));
    __m256i b = ADD32(SIGNED_PAIRS(w, x, at, 2), SIGNED_PAIRS(w, x, at, 3));
    __m256i c = ADD32(SIGNED_PAIRS(w, x, at, 4), SIGNED_PAIRS(w, x, at, 5));
    __m256i d = ADD32(SIGNED_PAIRS(w, x, at, 6), SIGNED_PAIRS(w, x, at, 7));
    return ADD32(ADD32(a, b), ADD32(c, d));
}

/* The exact sum of one row's group for eight outputs. */
FG_AVX2_INLINE __m256i dot(uint32_t type, codes w, const uint8_t *at, const int8_t *x,
                           const int16_t *sums, const factors *f)
{
    switch (type) {
    case FG_Q4_0:
        return ADD32(dot4(w, x, f->first),
                     _mm256_madd_epi16(broadcast4(sums), _mm256_set1_epi16(-8)));
    case FG_Q5_0:
        return ADD32(dot5(w, x, f->first),
                     _mm256_madd_epi16(broadcast4(sums), _mm256_set1_epi16(-16)));
    case FG_Q5_1:
    case FG_Q5_K:
        return dot5(w, x, f->first);
    case FG_Q6_K: {
        __m256i offset = _mm256_slli_epi32(_mm256_madd_epi16(broadcast4(sums), f->both), 5);
        return _mm256_sub_epi32(dot6(w, x, f), offset);
    }
    case FG_Q8_0:
        return dot8(w, x, at);
    default:
        return dot4(w, x, f->first);
    }
}

FG_AVX2_INLINE void add_half_group(uint32_t type, tile *t, size_t g, size_t half)
{
    const uint8_t *at = t->panel + g * t->shape->group_bytes + half * HALF;
    codes w = unpack(type, at);
    factors f = scales_of(type, t, g, half);
    const int8_t *x = t->quants + g * FG_QUANT_GROUP;
    const fg_quant_group *group = t->groups + g;
    for (uint32_t row = 0; row < t->rows; row++) {
        __m256 sum = t->sums[row][half];
        if (fg_cpu_has_minimum(type)) {
            sum = _mm256_fmadd_ps(f.minimum, _mm256_set1_ps(group->offset), sum);
        }
        __m256 scale = _mm256_mul_ps(f.d, _mm256_set1_ps(group->scale));
        __m256i products = dot(type, w, at, x, group->sums, &f);
        t->sums[row][half] = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(products), sum);
        x += t->columns;
        group += t->group_count;
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
    fg_panel_shape shape = fg_panel_shape_of(type, w->columns);
    tile t = { .shape = &shape, .columns = w->columns, .group_count = w->columns / FG_QUANT_GROUP };
    for (uint32_t panel = first; panel < first + count; panel++) {
        t.panel = (const uint8_t *)w->data + panel * shape.panel_bytes;
        for (uint32_t row = 0; row < rows; row += TILE_ROWS) {
            t.rows = rows - row < TILE_ROWS ? rows - row : TILE_ROWS;
            t.quants = in->quants + row * t.columns;
            t.groups = in->groups + row * t.group_count;
            memset(t.sums, 0, sizeof t.sums);
            for (size_t g = 0; g < t.group_count; g++) {
                add_half_group(type, &t, g, 0);
                add_half_group(type, &t, g, 1);
            }
            for (uint32_t i = 0; i < t.rows; i++) {
                fg_cpu_avx2_put_panel(linear, row + i, panel * FG_PANEL_OUTPUTS, t.sums[i]);
            }
        }
    }
}

/* One function per type: the type is a constant in each. */
#define DEFINE_PANELS(name, type)                                                                  \
    static void name##_panels(const fg_linear *linear, const fg_activations *in, uint32_t rows,    \
                              uint32_t first, uint32_t count)                                      \
    {                                                                                              \
        run_panels(type, linear, in, rows, first, count);                                          \
    }

DEFINE_PANELS(q4_0, FG_Q4_0)
DEFINE_PANELS(q4_1, FG_Q4_1)
DEFINE_PANELS(q5_0, FG_Q5_0)
DEFINE_PANELS(q5_1, FG_Q5_1)
DEFINE_PANELS(q8_0, FG_Q8_0)
DEFINE_PANELS(q4_k, FG_Q4_K)
DEFINE_PANELS(q5_k, FG_Q5_K)
DEFINE_PANELS(q6_k, FG_Q6_K)

void fg_cpu_avx2_linear(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                        uint32_t first, uint32_t count)
{
    switch (linear->weight.type) {
    case FG_Q4_0:
        q4_0_panels(linear, in, rows, first, count);
        break;
    case FG_Q4_1:
        q4_1_panels(linear, in, rows, first, count);
        break;
    case FG_Q5_0:
        q5_0_panels(linear, in, rows, first, count);
        break;
    case FG_Q5_1:
        q5_1_panels(linear, in, rows, first, count);
        break;
    case FG_Q8_0:
        q8_0_panels(linear, in, rows, first, count);
        break;
    case FG_Q4_K:
        q4_k_panels(linear, in, rows, first, count);
        break;
    case FG_Q5_K:
        q5_k_panels(linear, in, rows, first, count);
        break;
    case FG_Q6_K:
        q6_k_panels(linear, in, rows, first, count);
        break;
    default:
        fg_cpu_avx2_linear_float(linear, in, rows, first, count);
        break;
    }
}
