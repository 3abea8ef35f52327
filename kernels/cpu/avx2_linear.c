/*
 * Matrix products with AVX2, FMA and F16C. One tile is R rows by C outputs; the weights of an output
 * are unpacked once per group and used for all rows. A tile's arithmetic per (row, output) is that of
 * plain.c, so the choice of tiles never shows.
 */
#include "kernels/cpu/avx2.h"
#include "kernels/cpu/avx2_math.h"
#include "kernels/cpu/plain.h"
#include "kernels/cpu/unpack.h"

enum { ROWS_MAX = 4, OUTPUTS_MAX = 4 };

/* What a tile reads; row r of the tile is row first_row + r, first_row a multiple of 4. */
typedef struct tile {
    const uint8_t *weights; /* of the tile's first output */
    size_t weight_bytes;    /* from one output to the next */
    const int8_t *quants;   /* of the tile's first row */
    const float *scales;    /* of the tile's four rows */
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

FG_AVX2_INLINE float half_at(const uint8_t *bytes)
{
    uint16_t half;
    memcpy(&half, bytes, sizeof half);
    return _cvtsh_ss(half);
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
        return _mm256_inserti128_si256(
            _mm256_castsi128_si256(_mm_set1_epi16(super->scales[2 * g])),
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

/* One group of one output against R rows. `dx` has the four rows' scales in both halves. */
FG_AVX2_INLINE void add_group(uint32_t type, int R, const tile *t, size_t g, __m256i w,
                              __m256i pair_scales, __m256 d, __m256 lanes[])
{
    __m256 dx = _mm256_broadcast_ps((const __m128 *)(t->scales + 8 * g));
    __m256 scale = _mm256_mul_ps(d, dx);
    __m256i magnitude = is_signed(type) ? _mm256_abs_epi8(w) : w;
    const int8_t *x = t->quants + g * FG_QUANT_GROUP;
    if (R > 0) {
        __m256i sum = dot(type, w, magnitude, x, pair_scales);
        lanes[0] = _mm256_fmadd_ps(_mm256_permute_ps(scale, 0x00), _mm256_cvtepi32_ps(sum), lanes[0]);
    }
    if (R > 1) {
        __m256i sum = dot(type, w, magnitude, x + t->columns, pair_scales);
        lanes[1] = _mm256_fmadd_ps(_mm256_permute_ps(scale, 0x55), _mm256_cvtepi32_ps(sum), lanes[1]);
    }
    if (R > 2) {
        __m256i sum = dot(type, w, magnitude, x + 2 * (size_t)t->columns, pair_scales);
        lanes[2] = _mm256_fmadd_ps(_mm256_permute_ps(scale, 0xAA), _mm256_cvtepi32_ps(sum), lanes[2]);
    }
    if (R > 3) {
        __m256i sum = dot(type, w, magnitude, x + 3 * (size_t)t->columns, pair_scales);
        lanes[3] = _mm256_fmadd_ps(_mm256_permute_ps(scale, 0xFF), _mm256_cvtepi32_ps(sum), lanes[3]);
    }
}

FG_AVX2_INLINE void finish_tile(int R, int C, const tile *t, float factor, const __m256 lanes[][4],
                                const __m128 minima[])
{
    for (int c = 0; c < C; c++) {
        float minimum[4];
        _mm_storeu_ps(minimum, minima[c]);
        for (int r = 0; r < R; r++) {
            float sum = fg_avx2_fold(lanes[c][r]);
            sum = factor != 0.0f ? sum + factor * minimum[r] : sum;
            float *out = t->out + (size_t)r * t->out_stride + c;
            *out = t->accumulate ? *out + sum : sum;
        }
    }
}

/* The tile for types with one scale per 32 elements. */
FG_AVX2_INLINE void tile_simple(uint32_t type, int R, int C, const tile *t)
{
    const __m256i ones = _mm256_set1_epi16(1);
    const size_t block_bytes = fg_dtype_block_bytes(type);
    __m256 lanes[OUTPUTS_MAX][ROWS_MAX];
    __m128 minima[OUTPUTS_MAX];
    for (int c = 0; c < C; c++) {
        minima[c] = _mm_setzero_ps();
        for (int r = 0; r < R; r++) {
            lanes[c][r] = _mm256_setzero_ps();
        }
    }
    size_t group_count = t->columns / FG_QUANT_GROUP;
    for (size_t g = 0; g < group_count; g++) {
        __m128 sums = _mm_loadu_ps(t->scales + 8 * g + 4);
        for (int c = 0; c < C; c++) {
            const uint8_t *block = t->weights + (size_t)c * t->weight_bytes + g * block_bytes;
            __m256i w = unpack_group(type, block, 0);
            float d = half_at(block);
            add_group(type, R, t, g, w, ones, _mm256_set1_ps(d), lanes[c]);
            if (type == FG_Q4_1 || type == FG_Q5_1) {
                minima[c] = _mm_fmadd_ps(_mm_set1_ps(half_at(block + 2)), sums, minima[c]);
            } else if (type != FG_Q8_0) {
                minima[c] = _mm_fmadd_ps(_mm_set1_ps(d), sums, minima[c]);
            }
        }
    }
    finish_tile(R, C, t, fg_cpu_minimum_factor(type), lanes, minima);
}

/* The tile for super-blocks of 256 elements with integer scales per group. */
FG_AVX2_INLINE void tile_super(uint32_t type, int R, int C, const tile *t)
{
    const size_t block_bytes = fg_dtype_block_bytes(type);
    __m256 lanes[OUTPUTS_MAX][ROWS_MAX];
    __m128 minima[OUTPUTS_MAX];
    for (int c = 0; c < C; c++) {
        minima[c] = _mm_setzero_ps();
        for (int r = 0; r < R; r++) {
            lanes[c][r] = _mm256_setzero_ps();
        }
    }
    for (size_t b = 0; b < t->columns / 256; b++) {
        for (int c = 0; c < C; c++) {
            const uint8_t *block = t->weights + (size_t)c * t->weight_bytes + b * block_bytes;
            super_block super;
            open_super_block(type, block, &super);
            __m256 d = _mm256_set1_ps(half_at(block + (type == FG_Q6_K ? 208 : 0)));
            for (uint32_t g = 0; g < 8; g++) {
                __m256i w = unpack_group(type, block, g);
                add_group(type, R, t, 8 * b + g, w, group_scales(type, &super, g), d, lanes[c]);
                if (type != FG_Q6_K) {
                    __m128 sums = _mm_loadu_ps(t->scales + 8 * (8 * b + g) + 4);
                    minima[c] = _mm_fmadd_ps(_mm_set1_ps(super.minima[g]), sums, minima[c]);
                }
            }
        }
    }
    finish_tile(R, C, t, fg_cpu_minimum_factor(type), lanes, minima);
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

FG_AVX2_INLINE void float_step(uint32_t type, int R, int C, const tile *t, size_t k, size_t count,
                               __m256 lanes[][4])
{
    __m256 x[ROWS_MAX];
    for (int r = 0; r < R; r++) {
        x[r] = load_floats(FG_F32, (const uint8_t *)(t->values + (size_t)r * t->columns), k, count);
    }
    for (int c = 0; c < C; c++) {
        __m256 w = load_floats(type, t->weights + (size_t)c * t->weight_bytes, k, count);
        for (int r = 0; r < R; r++) {
            lanes[c][r] = _mm256_fmadd_ps(w, x[r], lanes[c][r]);
        }
    }
}

FG_AVX2_INLINE void tile_float(uint32_t type, int R, int C, const tile *t)
{
    __m256 lanes[OUTPUTS_MAX][ROWS_MAX];
    __m128 minima[OUTPUTS_MAX];
    for (int c = 0; c < C; c++) {
        minima[c] = _mm_setzero_ps();
        for (int r = 0; r < R; r++) {
            lanes[c][r] = _mm256_setzero_ps();
        }
    }
    size_t k = 0;
    for (; k + 8 <= t->columns; k += 8) {
        float_step(type, R, C, t, k, 8, lanes);
    }
    if (k < t->columns) {
        float_step(type, R, C, t, k, t->columns - k, lanes);
    }
    finish_tile(R, C, t, 0.0f, lanes, minima);
}

FG_AVX2_INLINE void tile_any(uint32_t type, int R, int C, const tile *t)
{
    if (type == FG_F32 || type == FG_F16 || type == FG_BF16) {
        tile_float(type, R, C, t);
    } else if (is_k(type)) {
        tile_super(type, R, C, t);
    } else {
        tile_simple(type, R, C, t);
    }
}

/* One function per type and number of rows, each in a version for several outputs and for one. */
#define DEFINE_TILES(name, type)                                                                   \
    static void name##_many(int rows, const tile *t)                                               \
    {                                                                                              \
        switch (rows) {                                                                            \
        case 1:                                                                                    \
            tile_any(type, 1, 4, t);                                                               \
            break;                                                                                 \
        case 2:                                                                                    \
            tile_any(type, 2, 2, t);                                                               \
            break;                                                                                 \
        case 3:                                                                                    \
            tile_any(type, 3, 2, t);                                                               \
            break;                                                                                 \
        default:                                                                                   \
            tile_any(type, 4, 2, t);                                                               \
            break;                                                                                 \
        }                                                                                          \
    }                                                                                              \
    static void name##_one(int rows, const tile *t)                                                \
    {                                                                                              \
        switch (rows) {                                                                            \
        case 1:                                                                                    \
            tile_any(type, 1, 1, t);                                                               \
            break;                                                                                 \
        case 2:                                                                                    \
            tile_any(type, 2, 1, t);                                                               \
            break;                                                                                 \
        case 3:                                                                                    \
            tile_any(type, 3, 1, t);                                                               \
            break;                                                                                 \
        default:                                                                                   \
            tile_any(type, 4, 1, t);                                                               \
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

typedef void (*tile_fn)(int rows, const tile *t);

static const struct {
    uint32_t type;
    tile_fn many;
    tile_fn one;
} tile_table[] = {
    { FG_F32, f32_many, f32_one },    { FG_F16, f16_many, f16_one },
    { FG_BF16, bf16_many, bf16_one }, { FG_Q4_0, q4_0_many, q4_0_one },
    { FG_Q4_1, q4_1_many, q4_1_one }, { FG_Q5_0, q5_0_many, q5_0_one },
    { FG_Q5_1, q5_1_many, q5_1_one }, { FG_Q8_0, q8_0_many, q8_0_one },
    { FG_Q4_K, q4_k_many, q4_k_one }, { FG_Q5_K, q5_k_many, q5_k_one },
    { FG_Q6_K, q6_k_many, q6_k_one },
};

/* Weights of this many bytes stay in the first-level cache while all rows pass over them. */
enum { PANEL_BYTES = 12 * 1024 };

void fg_cpu_avx2_linear(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                        uint32_t first, uint32_t count)
{
    const fg_matrix *w = &linear->weight;
    size_t index = 0;
    while (tile_table[index].type != w->type) {
        index++;
    }
    size_t group_floats = (size_t)(w->columns / FG_QUANT_GROUP) * 8;
    tile t = { .columns = w->columns,
               .accumulate = linear->accumulate,
               .out_stride = linear->out_stride,
               .weight_bytes = (size_t)(w->columns / fg_dtype_block_count(w->type)) *
                               fg_dtype_block_bytes(w->type) };
    uint32_t panel = (uint32_t)(PANEL_BYTES / t.weight_bytes) / OUTPUTS_MAX * OUTPUTS_MAX;
    panel = panel < OUTPUTS_MAX ? OUTPUTS_MAX : panel;
    for (uint32_t base = 0; base < count; base += panel) {
        uint32_t end = count - base < panel ? count : base + panel;
        for (uint32_t row = 0; row < rows; row += ROWS_MAX) {
            uint32_t left = rows - row;
            int tile_rows = left < ROWS_MAX ? (int)left : ROWS_MAX;
            uint32_t many = tile_rows == 1 ? 4 : 2;
            t.quants = in->quants + (size_t)row * w->columns;
            t.values = in->values + (size_t)row * w->columns;
            t.scales = in->scales + row / ROWS_MAX * group_floats;
            for (uint32_t o = base; o < end;) {
                bool wide = end - o >= many;
                t.weights = (const uint8_t *)w->data + (size_t)(first + o) * t.weight_bytes;
                t.out = linear->out + (size_t)row * linear->out_stride + first + o;
                (wide ? tile_table[index].many : tile_table[index].one)(tile_rows, &t);
                o += wide ? many : 1;
            }
        }
    }
}
