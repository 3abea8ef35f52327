/*
 * Matrix products with AVX2, FMA and F16C. One tile is R rows by C outputs; the weights of an output
 * are unpacked once per group and used for all rows. A tile's arithmetic per (row, output) is that of
 * plain.c, so the choice of tiles never shows.
 *
 * The sums of a tile are named variables, not arrays: compilers keep an array that is handed to an
 * inlined function in memory, which halves the speed.
 */
#include "kernels/cpu/avx2.h"
#include "kernels/cpu/avx2_math.h"
#include "kernels/cpu/plain.h"
#include "kernels/cpu/unpack.h"

enum { ROWS_MAX = 8 };

/* What a tile reads; its first row is a multiple of 4. */
typedef struct tile {
    const uint8_t *weights; /* of the tile's first output */
    size_t weight_bytes;    /* from one output to the next */
    const int8_t *quants;   /* of the tile's first row */
    const float *scales;    /* of the tile's first four rows */
    size_t scales_quad;     /* from there to the next four rows' */
    const float *values;    /* of the tile's first row */
    uint32_t columns;
    bool accumulate;
    float *out; /* of (first row, first output) */
    size_t out_stride;
} tile;

/* The part of a K super-block that its eight groups share, spread out once. */
typedef struct super_block {
    float minima[8];
    int16_t scales[16]; /* Q4_K, Q5_K: [0..7]; Q6_K: two per group */
} super_block;

FG_AVX2_INLINE __m256i unpack_nibbles(const uint8_t *bytes)
{
    __m128i raw = _mm_loadu_si128((const __m128i *)bytes);
    __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(raw), _mm_srli_epi16(raw, 4), 1);
    return _mm256_and_si256(both, _mm256_set1_epi8(15));
}

/* 16 in every byte whose bit of the 32-bit word is set. */
FG_AVX2_INLINE __m256i unpack_fifth_bits(const uint8_t *bytes)
{
    uint32_t word;
    memcpy(&word, bytes, sizeof word);
    const __m256i byte_of =
        _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0);
    const __m256i bit_of = _mm256_set1_epi64x((long long)0x8040201008040201u);
    __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32((int32_t)word), byte_of);
    __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit_of), bit_of);
    return _mm256_and_si256(set, _mm256_set1_epi8(16));
}

FG_AVX2_INLINE __m256i load32(const void *bytes)
{
    return _mm256_loadu_si256((const __m256i *)bytes);
}

FG_AVX2_INLINE __m256i unpack_q6_k(const uint8_t *block, uint32_t g)
{
    uint32_t k = g % 4;
    __m256i low = load32(block + 64 * (g / 4) + 32 * (k % 2));
    __m256i high = load32(block + 128 + 32 * (g / 4));
    low = k < 2 ? low : _mm256_srli_epi16(low, 4);
    high = _mm256_srl_epi16(high, _mm_cvtsi32_si128((int)(2 * k)));
    low = _mm256_and_si256(low, _mm256_set1_epi8(15));
    high = _mm256_slli_epi16(_mm256_and_si256(high, _mm256_set1_epi8(3)), 4);
    return _mm256_sub_epi8(_mm256_or_si256(low, high), _mm256_set1_epi8(32));
}

FG_AVX2_INLINE __m256i unpack_k(uint32_t type, const uint8_t *block, uint32_t g)
{
    __m256i raw = load32(block + (type == FG_Q5_K ? 48 : 16) + 32 * (g / 2));
    raw = g % 2 == 0 ? raw : _mm256_srli_epi16(raw, 4);
    __m256i q = _mm256_and_si256(raw, _mm256_set1_epi8(15));
    if (type == FG_Q5_K) {
        __m256i high = _mm256_srl_epi16(load32(block + 16), _mm_cvtsi32_si128((int)g));
        high = _mm256_slli_epi16(_mm256_and_si256(high, _mm256_set1_epi8(1)), 4);
        q = _mm256_or_si256(q, high);
    }
    return q;
}

/* The 32 integers of group g (of a super-block, for K types). */
FG_AVX2_INLINE __m256i unpack_group(uint32_t type, const uint8_t *block, uint32_t g)
{
    switch (type) {
    case FG_Q4_0:
        return unpack_nibbles(block + 2);
    case FG_Q4_1:
        return unpack_nibbles(block + 4);
    case FG_Q5_0:
        return _mm256_or_si256(unpack_nibbles(block + 6), unpack_fifth_bits(block + 2));
    case FG_Q5_1:
        return _mm256_or_si256(unpack_nibbles(block + 8), unpack_fifth_bits(block + 4));
    case FG_Q8_0:
        return load32(block + 2);
    case FG_Q6_K:
        return unpack_q6_k(block, g);
    default:
        return unpack_k(type, block, g);
    }
}

FG_AVX2_INLINE __m128i halves_at(const uint8_t *bytes)
{
    int16_t half;
    memcpy(&half, bytes, sizeof half);
    return _mm_set1_epi16(half);
}

FG_AVX2_INLINE float half_at(const uint8_t *bytes)
{
    return _mm_cvtss_f32(_mm_cvtph_ps(halves_at(bytes)));
}

FG_AVX2_INLINE void open_super_block(uint32_t type, const uint8_t *block, super_block *out)
{
    if (type == FG_Q6_K) {
        __m128i scales = _mm_loadu_si128((const __m128i *)(block + 192));
        _mm256_storeu_si256((__m256i *)out->scales, _mm256_cvtepi8_epi16(scales));
        return;
    }
    float dmin = half_at(block + 2);
    for (uint32_t g = 0; g < 8; g++) {
        uint32_t scale;
        uint32_t minimum;
        fg_cpu_k_scale(block + 4, g, &scale, &minimum);
        out->scales[g] = (int16_t)scale;
        out->minima[g] = dmin * (float)minimum;
    }
}

/* Group g's integer scales for each pair sum: lanes 0..3 of the result belong to elements 0..15. */
FG_AVX2_INLINE __m256i group_scales(uint32_t type, const super_block *super, uint32_t g)
{
    if (type == FG_Q6_K) {
        return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_set1_epi16(super->scales[2 * g])),
                                       _mm_set1_epi16(super->scales[2 * g + 1]), 1);
    }
    return _mm256_set1_epi16(super->scales[g]);
}

FG_AVX2_INLINE bool is_signed(uint32_t type)
{
    return type == FG_Q8_0 || type == FG_Q6_K;
}

FG_AVX2_INLINE bool is_k(uint32_t type)
{
    return type == FG_Q4_K || type == FG_Q5_K || type == FG_Q6_K;
}

/* Eight exact sums of four products each. Signed weights give their sign to the activations, so that
 * the first factor is unsigned; 128 * 127 * 2 still fits the 16-bit pair sums. */
FG_AVX2_INLINE __m256i dot(uint32_t type, __m256i w, __m256i magnitude, const int8_t *x,
                           __m256i pair_scales)
{
    __m256i activations = load32(x);
    if (is_signed(type)) {
        activations = _mm256_sign_epi8(activations, w);
    }
    return _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude, activations), pair_scales);
}

/* The sums of one output for up to eight rows, and those of its minima. */
typedef struct sums {
    __m256 r0, r1, r2, r3, r4, r5, r6, r7;
    __m128 low, high;
} sums;

FG_AVX2_INLINE sums no_sums(void)
{
    __m256 zero = _mm256_setzero_ps();
    __m128 none = _mm_setzero_ps();
    return (sums){ zero, zero, zero, zero, zero, zero, zero, zero, none, none };
}

/* One row's part of a group; `lane` says where its scale is among those of four rows. */
#define ADD_ROW(row, lane, scale, sum)                                                             \
    _mm256_fmadd_ps(                                                                               \
        _mm256_permute_ps(scale, (lane)*0x55),                                                     \
        _mm256_cvtepi32_ps(dot(type, w, magnitude, x + (row) * (size_t)t->columns, pair_scales)),  \
        sum)

/* One group of one output against R rows: w its integers, d its scale. */
FG_AVX2_INLINE sums add_group(uint32_t type, int R, const tile *t, size_t g, __m256i w,
                              __m256i pair_scales, __m256 d, sums s)
{
    const float *scales = t->scales + 8 * g;
    __m256i magnitude = is_signed(type) ? _mm256_abs_epi8(w) : w;
    const int8_t *x = t->quants + g * FG_QUANT_GROUP;
    __m256 low = _mm256_mul_ps(d, _mm256_broadcast_ps((const __m128 *)(const void *)scales));
    s.r0 = ADD_ROW(0, 0, low, s.r0);
    if (R > 1) {
        s.r1 = ADD_ROW(1, 1, low, s.r1);
    }
    if (R > 2) {
        s.r2 = ADD_ROW(2, 2, low, s.r2);
    }
    if (R > 3) {
        s.r3 = ADD_ROW(3, 3, low, s.r3);
    }
    if (R == 8) {
        scales += t->scales_quad;
        __m256 high = _mm256_mul_ps(d, _mm256_broadcast_ps((const __m128 *)(const void *)scales));
        s.r4 = ADD_ROW(4, 0, high, s.r4);
        s.r5 = ADD_ROW(5, 1, high, s.r5);
        s.r6 = ADD_ROW(6, 2, high, s.r6);
        s.r7 = ADD_ROW(7, 3, high, s.r7);
    }
    return s;
}

FG_AVX2_INLINE sums add_minimum(int R, const tile *t, size_t g, __m128 minimum, sums s)
{
    const float *group_sums = t->scales + 8 * g + 4;
    s.low = _mm_fmadd_ps(minimum, _mm_loadu_ps(group_sums), s.low);
    if (R == 8) {
        s.high = _mm_fmadd_ps(minimum, _mm_loadu_ps(group_sums + t->scales_quad), s.high);
    }
    return s;
}

FG_AVX2_INLINE void finish_row(const tile *t, int output, int row, float factor, __m256 lanes,
                               const float *minima)
{
    float sum = fg_avx2_fold(lanes);
    sum = factor != 0.0f ? sum + factor * minima[row] : sum;
    float *out = t->out + (size_t)row * t->out_stride + output;
    *out = t->accumulate ? *out + sum : sum;
}

FG_AVX2_INLINE void finish_output(int R, const tile *t, int output, float factor, sums s)
{
    float minima[ROWS_MAX];
    _mm_storeu_ps(minima, s.low);
    _mm_storeu_ps(minima + 4, s.high);
    finish_row(t, output, 0, factor, s.r0, minima);
    if (R > 1) {
        finish_row(t, output, 1, factor, s.r1, minima);
    }
    if (R > 2) {
        finish_row(t, output, 2, factor, s.r2, minima);
    }
    if (R > 3) {
        finish_row(t, output, 3, factor, s.r3, minima);
    }
    if (R == 8) {
        finish_row(t, output, 4, factor, s.r4, minima);
        finish_row(t, output, 5, factor, s.r5, minima);
        finish_row(t, output, 6, factor, s.r6, minima);
        finish_row(t, output, 7, factor, s.r7, minima);
    }
}

/* A group of a type with one scale per 32 elements. */
FG_AVX2_INLINE sums simple_group(uint32_t type, int R, const tile *t, int output, size_t g, sums s)
{
    const uint8_t *block =
        t->weights + (size_t)output * t->weight_bytes + g * fg_dtype_block_bytes(type);
    __m256i w = unpack_group(type, block, 0);
    __m256 d = _mm256_cvtph_ps(halves_at(block));
    s = add_group(type, R, t, g, w, _mm256_set1_epi16(1), d, s);
    if (type == FG_Q4_1 || type == FG_Q5_1) {
        s = add_minimum(R, t, g, _mm_cvtph_ps(halves_at(block + 2)), s);
    } else if (type != FG_Q8_0) {
        s = add_minimum(R, t, g, _mm256_castps256_ps128(d), s);
    }
    return s;
}

/* A super-block of 256 elements with integer scales per group. */
FG_AVX2_INLINE sums super_group(uint32_t type, int R, const tile *t, int output, size_t b, sums s)
{
    const uint8_t *block =
        t->weights + (size_t)output * t->weight_bytes + b * fg_dtype_block_bytes(type);
    super_block super;
    open_super_block(type, block, &super);
    __m256 d = _mm256_cvtph_ps(halves_at(block + (type == FG_Q6_K ? 208 : 0)));
    for (uint32_t g = 0; g < 8; g++) {
        __m256i w = unpack_group(type, block, g);
        s = add_group(type, R, t, 8 * b + g, w, group_scales(type, &super, g), d, s);
        if (type != FG_Q6_K) {
            s = add_minimum(R, t, 8 * b + g, _mm_set1_ps(super.minima[g]), s);
        }
    }
    return s;
}

/* Eight weights as floats; `count` < 8 at the end of a row, the rest zeros. */
FG_AVX2_INLINE __m256 load_floats(uint32_t type, const uint8_t *row, size_t k, size_t count)
{
    uint8_t bytes[32] = { 0 };
    const uint8_t *source = row + k * (type == FG_F32 ? 4 : 2);
    if (count < 8) {
        memcpy(bytes, source, count * (type == FG_F32 ? 4 : 2));
        source = bytes;
    }
    if (type == FG_F32) {
        return _mm256_loadu_ps((const float *)(const void *)source);
    }
    __m128i halves = _mm_loadu_si128((const __m128i *)source);
    if (type == FG_F16) {
        return _mm256_cvtph_ps(halves);
    }
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

#define ADD_FLOATS(row, sum)                                                                       \
    _mm256_fmadd_ps(                                                                               \
        w,                                                                                         \
        load_floats(FG_F32, (const uint8_t *)(t->values + (row) * (size_t)t->columns), k, count),  \
        sum)

/* Columns k .. k + count - 1 of one output, count up to 8. */
FG_AVX2_INLINE sums float_group(uint32_t type, int R, const tile *t, int output, size_t k,
                                size_t count, sums s)
{
    __m256 w = load_floats(type, t->weights + (size_t)output * t->weight_bytes, k, count);
    s.r0 = ADD_FLOATS(0, s.r0);
    if (R > 1) {
        s.r1 = ADD_FLOATS(1, s.r1);
    }
    if (R > 2) {
        s.r2 = ADD_FLOATS(2, s.r2);
    }
    if (R > 3) {
        s.r3 = ADD_FLOATS(3, s.r3);
    }
    if (R == 8) {
        s.r4 = ADD_FLOATS(4, s.r4);
        s.r5 = ADD_FLOATS(5, s.r5);
        s.r6 = ADD_FLOATS(6, s.r6);
        s.r7 = ADD_FLOATS(7, s.r7);
    }
    return s;
}

FG_AVX2_INLINE bool is_float(uint32_t type)
{
    return type == FG_F32 || type == FG_F16 || type == FG_BF16;
}

/* One step of the walk over K: eight columns, a group or a super-block. */
FG_AVX2_INLINE sums step(uint32_t type, int R, const tile *t, int output, size_t at, sums s)
{
    if (is_float(type)) {
        return float_group(type, R, t, output, 8 * at, 8, s);
    }
    if (is_k(type)) {
        return super_group(type, R, t, output, at, s);
    }
    return simple_group(type, R, t, output, at, s);
}

FG_AVX2_INLINE void run_tile(uint32_t type, int R, int C, const tile *t)
{
    sums s0 = no_sums();
    sums s1 = no_sums();
    size_t step_count = t->columns / (is_float(type) ? 8 : fg_dtype_block_count(type));
    for (size_t at = 0; at < step_count; at++) {
        s0 = step(type, R, t, 0, at, s0);
        if (C > 1) {
            s1 = step(type, R, t, 1, at, s1);
        }
    }
    size_t done = 8 * step_count;
    if (is_float(type) && done < t->columns) {
        s0 = float_group(type, R, t, 0, done, t->columns - done, s0);
        if (C > 1) {
            s1 = float_group(type, R, t, 1, done, t->columns - done, s1);
        }
    }
    finish_output(R, t, 0, fg_cpu_minimum_factor(type), s0);
    if (C > 1) {
        finish_output(R, t, 1, fg_cpu_minimum_factor(type), s1);
    }
}

/* The tiles of one type. A single row takes two outputs at a time, because one chain of sums would
 * wait for itself. */
#define DEFINE_TILES(name, type)                                                                   \
    static void name##_tile(int rows, int outputs, const tile *t)                                  \
    {                                                                                              \
        switch (rows) {                                                                            \
        case 1:                                                                                    \
            if (outputs == 2) {                                                                    \
                run_tile(type, 1, 2, t);                                                           \
            } else {                                                                               \
                run_tile(type, 1, 1, t);                                                           \
            }                                                                                      \
            break;                                                                                 \
        case 2:                                                                                    \
            run_tile(type, 2, 1, t);                                                               \
            break;                                                                                 \
        case 3:                                                                                    \
            run_tile(type, 3, 1, t);                                                               \
            break;                                                                                 \
        case 4:                                                                                    \
            run_tile(type, 4, 1, t);                                                               \
            break;                                                                                 \
        default:                                                                                   \
            run_tile(type, 8, 1, t);                                                               \
            break;                                                                                 \
        }                                                                                          \
    }

DEFINE_TILES(f32, FG_F32)
DEFINE_TILES(f16, FG_F16)
DEFINE_TILES(bf16, FG_BF16)
DEFINE_TILES(q4_0, FG_Q4_0)
DEFINE_TILES(q4_1, FG_Q4_1)
DEFINE_TILES(q5_0, FG_Q5_0)
DEFINE_TILES(q5_1, FG_Q5_1)
DEFINE_TILES(q8_0, FG_Q8_0)
DEFINE_TILES(q4_k, FG_Q4_K)
DEFINE_TILES(q5_k, FG_Q5_K)
DEFINE_TILES(q6_k, FG_Q6_K)

typedef void (*tile_fn)(int rows, int outputs, const tile *t);

static const struct {
    uint32_t type;
    tile_fn run;
} tile_table[] = {
    { FG_F32, f32_tile },   { FG_F16, f16_tile },   { FG_BF16, bf16_tile }, { FG_Q4_0, q4_0_tile },
    { FG_Q4_1, q4_1_tile }, { FG_Q5_0, q5_0_tile }, { FG_Q5_1, q5_1_tile }, { FG_Q8_0, q8_0_tile },
    { FG_Q4_K, q4_k_tile }, { FG_Q5_K, q5_k_tile }, { FG_Q6_K, q6_k_tile },
};

static tile_fn find_tile(uint32_t type)
{
    size_t index = 0;
    while (tile_table[index].type != type) {
        index++;
    }
    return tile_table[index].run;
}

/* Weights of this many bytes stay in the first-level cache while all rows pass over them. */
enum { PANEL_BYTES = 12 * 1024, PANEL_MIN = 4 };

void fg_cpu_avx2_linear(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                        uint32_t first, uint32_t count)
{
    const fg_matrix *w = &linear->weight;
    tile_fn run = find_tile(w->type);
    size_t quad = (size_t)(w->columns / FG_QUANT_GROUP) * 8;
    tile t = { .columns = w->columns,
               .accumulate = linear->accumulate,
               .out_stride = linear->out_stride,
               .scales_quad = quad,
               .weight_bytes = (size_t)(w->columns / fg_dtype_block_count(w->type)) *
                               fg_dtype_block_bytes(w->type) };
    uint32_t panel = (uint32_t)(PANEL_BYTES / t.weight_bytes);
    panel = panel < PANEL_MIN ? PANEL_MIN : panel;
    for (uint32_t base = 0; base < count; base += panel) {
        uint32_t end = count - base < panel ? count : base + panel;
        for (uint32_t row = 0; row < rows;) {
            uint32_t left = rows - row;
            uint32_t tile_rows = left >= 8 ? 8 : left < 4 ? left : 4;
            t.quants = in->quants + (size_t)row * w->columns;
            t.values = in->values + (size_t)row * w->columns;
            t.scales = in->scales + row / FG_QUANT_ROWS * quad;
            for (uint32_t o = base; o < end;) {
                uint32_t outputs = tile_rows == 1 && end - o >= 2 ? 2 : 1;
                t.weights = (const uint8_t *)w->data + (size_t)(first + o) * t.weight_bytes;
                t.out = linear->out + (size_t)row * linear->out_stride + first + o;
                run((int)tile_rows, (int)outputs, &t);
                o += outputs;
            }
            row += tile_rows;
        }
    }
}
