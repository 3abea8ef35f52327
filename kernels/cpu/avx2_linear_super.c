/*
 * Matrix products of Q4_K, Q5_K and Q6_K with AVX2, over panels of sixteen outputs (kernels/panel.h).
 *
 * A lane is an output, so no sum is ever folded, and one row runs through the same instructions as many. A tile is R
 * rows: each vector of codes meets four columns of every row, broadcast once for all outputs. Sums of pairs stay in
 * registers, in 16 bits as long as they are exact, and the instruction that widens them multiplies with the integer
 * scale. Where the rows are too many for that, half a group's codes stay in registers while row after row passes. A
 * group's sum is shifted and added to the super-group's, which lies in memory that never leaves the first-level cache,
 * as do the float totals, which are touched once for a super-group.
 *
 * Many rows first have a super-group made ready: its codes as bytes, its scales with every shift. That stays in the
 * first-level cache while all of them pass.
 *
 * How long 16-bit sums are exact: avx2_linear.c. Codes go in without their offset; Q6_K's 32 is taken off with the sums
 * of halves. No sum of 32 bits overflows: 256 * 127 * 2^3 times a code of 5 bits and a scale of 6, or of 6 bits
 * and 8, is less than 2^31.
 */
#include "kernels/cpu/avx2_super.h"

/* Rows of a tile, at most; of super-groups made ready; and of those of Q6_K, whose 32-bit sums take registers too. */
enum { ROWS_MOST = SUPER_ROWS_MOST, READY_TILE_ROWS = 6, WIDE_ROWS = 4 };
/* Rows whose totals wait, at most. */
enum { BATCH_ROWS = 48 };
enum { VECTORS = 8 };
/* Bytes ahead of a walk through a panel: what arrives from memory meanwhile, in the second-level cache, which waits for
 * more lines at once than the first. */
enum { AHEAD = 8192 };

/* A super-group's weights as many rows read them. Two vectors belong to outputs 0..7 and 8..15. */
typedef struct ready_super {
    uint8_t codes[GROUPS][VECTORS][HALVES][HALF];
    /* Twice in 32 bits, of each group with each shift; of Q6_K those of columns 0..15 and of 16..31. */
    int16_t scales[GROUPS * (FG_QUANT_SHIFT_MAX + 1) * 2][HALVES][16];
    /* What sums of quants are multiplied with (pair_of). */
    int16_t pairs[GROUPS][HALVES][16];
} ready_super;

/* Some rows against one panel. */
typedef struct tile {
    const uint8_t *scales;        /* of the panel, or of the super-group made ready */
    const int8_t *quants;         /* of the tile's first row */
    const fg_quant_super *supers; /* of the tile's first row */
    size_t columns;
    size_t super_count;
    /* The super-group made ready. */
    size_t first;
    const ready_super *ready;
    __m256 (*totals)[HALVES];
    __m256i sums[ROWS_MOST][HALVES];   /* of a super-group */
    __m256i firsts[ROWS_MOST][HALVES]; /* of columns 0..15 of a group */
} tile;

/* Of each row with outputs 0..7 and 8..15. */
typedef __m256i row_sums[ROWS_MOST][HALVES];
/* By how much each row's groups are shifted, or where their scales are in ready_super. */
typedef int32_t row_shifts[ROWS_MOST][GROUPS];

/* A group as the walk meets it. */
typedef struct group_place {
    const uint8_t *scales; /* of its unit */
    const uint8_t *codes;
    const int8_t *quants; /* of the tile's first row */
    size_t in_unit;
} group_place;

/* Rows up to which their sums of pairs have registers while the codes pass; with more rows it is the codes that have. */
FG_AVX2_INLINE int whole_rows(uint32_t type)
{
    return type == FG_Q4_K ? 6 : type == FG_Q5_K ? 5 : 2;
}

/* From so many rows on making super-groups ready pays. */
FG_AVX2_INLINE uint32_t ready_rows(uint32_t type)
{
    return type == FG_Q4_K ? 24 : type == FG_Q5_K ? 10 : 15;
}

/* Rows of a tile, at most. */
FG_AVX2_INLINE uint32_t tile_rows(uint32_t type, bool ready)
{
    if (ready) {
        return type == FG_Q6_K ? WIDE_ROWS : READY_TILE_ROWS;
    }
    return type == FG_Q4_K ? (uint32_t)whole_rows(type) : ROWS_MOST;
}

FG_AVX2_INLINE __m256i codes_of(uint32_t type, bool ready, const uint8_t *codes, int h, int j)
{
    codes += (size_t)h * HALF;
    return ready ? load32(codes + (size_t)j * VECTOR) : unpack(type, codes, j / 4, j % 4);
}

/* Row r's part of a super-group. */
FG_AVX2_INLINE const fg_quant_super *super_of(const tile *t, size_t index, int r)
{
    return t->supers + (size_t)r * t->super_count + index;
}

/* ---- scales and minima ---- */

/* From one shift's scales in ready_super to the next. */
FG_AVX2_INLINE int shift_bytes(uint32_t type)
{
    return type == FG_Q6_K ? 2 * VECTOR : VECTOR;
}

/* A group's integer scales for eight outputs, each twice, in the upper bytes of 16 bits. `second`: of Q6_K, those of
 * columns 16..31. */
FG_AVX2_INLINE __m256i high_scales(uint32_t type, const uint8_t *scales, size_t g, int second,
                                   int h)
{
    const __m256i places =
        h == 0 ? _mm256_setr_epi8(-1, 0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3, /**/
                                  -1, 4, -1, 4, -1, 5, -1, 5, -1, 6, -1, 6, -1, 7, -1, 7)
               : _mm256_setr_epi8(-1, 8, -1, 8, -1, 9, -1, 9, -1, 10, -1, 10, -1, 11, -1, 11, /**/
                                  -1, 12, -1, 12, -1, 13, -1, 13, -1, 14, -1, 14, -1, 15, -1, 15);
    const uint8_t *at = scales + (type == FG_Q6_K ? 32 + 16 * second : 64) + g * 32;
    __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)at);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes), places);
}

/* To where one register finds those of all rows. */
FG_AVX2_INLINE void bring_shifts(uint32_t type, int R, bool ready, const tile *t, size_t index,
                                 row_shifts out)
{
    const int32_t group = shift_bytes(type) * (FG_QUANT_SHIFT_MAX + 1);
    const __m256i groups = _mm256_setr_epi32(0, group, 2 * group, 3 * group, 4 * group, 5 * group,
                                             6 * group, 7 * group);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        __m256i shifts = load32(super_of(t, index, r)->shifts);
        if (ready) {
            shifts = _mm256_slli_epi32(shifts, type == FG_Q6_K ? 7 : 6);
            shifts = _mm256_add_epi32(shifts, groups);
        }
        _mm256_storeu_si256((__m256i *)(void *)out[r], shifts);
    }
}

FG_AVX2_INLINE void ask_ahead(const uint8_t *at, size_t size_bytes)
{
    for (size_t i = 0; i < size_bytes; i += VECTOR) {
        _mm_prefetch((const char *)at + AHEAD + i, _MM_HINT_T1);
    }
}

FG_AVX2_INLINE void make_ready(uint32_t type, const uint8_t *scales, ready_super *out)
{
    const fg_panel_shape shape = fg_panel_shape_of(type, 256);
    const uint8_t *codes = scales + shape.scale_bytes;
    const int scale_vectors = type == FG_Q6_K ? 4 : 2;
    uint8_t *at = (uint8_t *)out->scales;
    ask_ahead(scales, shape.scale_bytes);
#pragma GCC unroll 1
    for (size_t g = 0; g < GROUPS; g++) {
        ask_ahead(codes, shape.group_bytes);
#pragma GCC unroll 16
        for (int i = 0; i < VECTORS * HALVES; i++) {
            _mm256_storeu_si256((__m256i *)(void *)out->codes[g][i / 2][i % 2],
                                codes_of(type, false, codes, i % 2, i / 2));
        }
#pragma GCC unroll 4
        for (int i = 0; i < scale_vectors; i++) {
            __m256i high = high_scales(type, scales, g, i / 2, i % 2);
#pragma GCC unroll 4
            for (int shift = 0; shift <= FG_QUANT_SHIFT_MAX; shift++) {
                _mm256_storeu_si256((__m256i *)(void *)(at + shift * shift_bytes(type) + i * HALF),
                                    _mm256_srai_epi16(high, 8 - shift));
            }
        }
        if (type == FG_Q6_K || g < GROUPS / 2) {
            for (int h = 0; h < HALVES; h++) {
                _mm256_storeu_si256((__m256i *)(void *)out->pairs[g][h],
                                    pair_of(type, scales, g, h));
            }
        }
        codes += shape.group_bytes;
        at += shift_bytes(type) * (FG_QUANT_SHIFT_MAX + 1);
    }
}

/* ---- a group ---- */

/* Sums of pairs of columns 4 * first .. 4 * end - 1, of H halves of the panel from half h on. */
FG_AVX2_INLINE void multiply(uint32_t type, int R, int H, bool ready, const group_place *p,
                             size_t row, int h, int first, int end, row_sums pairs)
{
#pragma GCC unroll 8
    for (int j = first; j < end; j++) {
        __m256i w[HALVES];
#pragma GCC unroll 2
        for (int i = 0; i < H; i++) {
            w[i] = codes_of(type, ready, p->codes, h + i, j);
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            __m256i x = broadcast4(p->quants + (size_t)r * row + 4 * j);
#pragma GCC unroll 2
            for (int i = 0; i < H; i++) {
                __m256i pair = _mm256_maddubs_epi16(w[i], x);
                pairs[r][i] = j == first ? pair : _mm256_add_epi16(pairs[r][i], pair);
                finish_first(&pairs[r][i]);
            }
        }
    }
}

/* Of a group made ready, added to the super-group's sums: times the scale, 2^shift times. */
FG_AVX2_INLINE void add_ready(uint32_t type, int R, tile *t, const group_place *p,
                              const row_shifts shifts, int first, int end)
{
    row_sums pairs;
    multiply(type, R, HALVES, true, p, t->columns, 0, first, end, pairs);
    __asm__("" : "+m"(t->sums)); /* or compilers would keep copies elsewhere */
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        const uint8_t *scales = (const uint8_t *)t->ready->scales + shifts[r][p->in_unit];
#pragma GCC unroll 2
        for (int h = 0; h < HALVES; h++) {
            __m256i sum = _mm256_madd_epi16(pairs[r][h], load32(scales + h * HALF));
            t->sums[r][h] = _mm256_add_epi32(t->sums[r][h], sum);
        }
    }
}

/* The same of Q6_K, whose pairs of vectors are as much as 16 bits hold, so that 32-bit sums had better be registers. */
FG_AVX2_INLINE void add_ready_wide(int R, const tile *t, const group_place *p,
                                   const row_shifts shifts, row_sums sums)
{
    const size_t row = t->columns;
    const uint8_t *scales[ROWS_MOST];
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
        scales[r] = (const uint8_t *)t->ready->scales + shifts[r][p->in_unit];
    }
#pragma GCC unroll 4
    for (int j = 0; j < VECTORS; j += 2) {
        __m256i w[2][HALVES];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            w[i / 2][i % 2] = codes_of(FG_Q6_K, true, p->codes, i % 2, j + i / 2);
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            const int8_t *at = p->quants + (size_t)r * row + 4 * j;
            __m256i first = broadcast4(at), second = broadcast4(at + 4);
#pragma GCC unroll 2
            for (int h = 0; h < HALVES; h++) {
                __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16(w[0][h], first),
                                                 _mm256_maddubs_epi16(w[1][h], second));
                const uint8_t *scale = scales[r] + j / 4 * VECTOR + h * HALF;
                sums[r][h] = _mm256_add_epi32(sums[r][h], _mm256_madd_epi16(pairs, load32(scale)));
                finish_first(&sums[r][h]);
            }
        }
        /* Scales had better be read again than take registers. */
        __asm__ volatile("" : : : "memory");
    }
}

/* Columns 4 * first .. 4 * end - 1 of a group, times their scale. */
FG_AVX2_INLINE void add_scaled_pairs(uint32_t type, int R, int H, const tile *t,
                                     const group_place *p, int h, int first, int end, row_sums sums)
{
    row_sums pairs;
    multiply(type, R, H, false, p, t->columns, h, first, end, pairs);
#pragma GCC unroll 2
    for (int i = 0; i < H; i++) {
        __m256i scale =
            _mm256_srai_epi16(high_scales(type, p->scales, p->in_unit, first / 4, h + i), 8);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            __m256i sum = _mm256_madd_epi16(pairs[r][i], scale);
            sums[r][i] = first == 0 ? sum : _mm256_add_epi32(sums[r][i], sum);
            finish_first(&sums[r][i]);
        }
    }
}

/* A group of H halves of the panel from half h on, added to the super-group's sums. */
FG_AVX2_INLINE void add_group(uint32_t type, int R, int H, tile *t, const group_place *p, int h,
                              const row_shifts shifts)
{
    const int step = type == FG_Q4_K ? VECTORS : type == FG_Q5_K ? VECTORS / 2 : VECTORS / 4;
    row_sums sums;
#pragma GCC unroll 4
    for (int first = 0; first < VECTORS; first += step) {
        add_scaled_pairs(type, R, H, t, p, h, first, first + step, sums);
    }
    __asm__("" : "+m"(t->sums)); /* or compilers would keep copies elsewhere */
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        __m128i shift = _mm_cvtsi32_si128(shifts[r][p->in_unit]);
#pragma GCC unroll 2
        for (int i = 0; i < H; i++) {
            __m256i sum = _mm256_sll_epi32(sums[r][i], shift);
            t->sums[r][h + i] = _mm256_add_epi32(t->sums[r][h + i], sum);
        }
    }
}

/* Sums of columns 0..15 or 16..31 of a row, whose codes are all in registers, times their scales. */
FG_AVX2_INLINE void multiply_row(uint32_t type, const __m256i w[VECTORS / 2][HALVES],
                                 const __m256i scales[HALVES], const int8_t *x,
                                 __m256i sums[HALVES])
{
#pragma GCC unroll 2
    for (int j = 0; j < VECTORS / 2; j += 2) {
        __m256i first = broadcast4(x + 4 * j), second = broadcast4(x + 4 * j + 4);
#pragma GCC unroll 2
        for (int h = 0; h < HALVES; h++) {
            __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16(w[j][h], first),
                                             _mm256_maddubs_epi16(w[j + 1][h], second));
            if (type == FG_Q6_K) {
                pairs = _mm256_madd_epi16(pairs, scales[h]);
                sums[h] = j == 0 ? pairs : _mm256_add_epi32(sums[h], pairs);
            } else {
                sums[h] = j == 0 ? pairs : _mm256_add_epi16(sums[h], pairs);
            }
            finish_first(&sums[h]);
        }
    }
#pragma GCC unroll 2
    for (int h = 0; type != FG_Q6_K && h < HALVES; h++) {
        sums[h] = _mm256_madd_epi16(sums[h], scales[h]);
    }
}

/* The same as add_group where there are not registers enough for the sums of all rows. */
FG_AVX2_INLINE void add_group_by_rows(uint32_t type, int R, tile *t, const group_place *p,
                                      const row_shifts shifts)
{
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        const int8_t *x = p->quants + 16 * half;
        __m256i w[VECTORS / 2][HALVES], scales[HALVES];
#pragma GCC unroll 8
        for (int i = 0; i < VECTORS; i++) {
            w[i / 2][i % 2] = codes_of(type, false, p->codes, i % 2, 4 * half + i / 2);
        }
#pragma GCC unroll 2
        for (int h = 0; h < HALVES; h++) {
            scales[h] = _mm256_srai_epi16(high_scales(type, p->scales, p->in_unit, half, h), 8);
        }
#pragma GCC unroll 1
        for (int r = 0; r < R; r++) {
            __m256i sums[HALVES];
            multiply_row(type, w, scales, x, sums);
            __m128i shift = _mm_cvtsi32_si128(shifts[r][p->in_unit]);
#pragma GCC unroll 2
            for (int h = 0; h < HALVES; h++) {
                if (half == 0) {
                    t->firsts[r][h] = sums[h];
                } else {
                    sums[h] = _mm256_add_epi32(sums[h], t->firsts[r][h]);
                    sums[h] = _mm256_sll_epi32(sums[h], shift);
                    t->sums[r][h] = _mm256_add_epi32(t->sums[r][h], sums[h]);
                }
            }
            x += t->columns;
        }
    }
}

/* ---- walks ---- */

/* Sums begin at nothing. */
FG_AVX2_INLINE void begin_super(int R, tile *t)
{
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        t->sums[r][0] = t->sums[r][1] = _mm256_setzero_si256();
    }
}

/* R rows against a super-group made ready: totals grow. */
FG_AVX2_INLINE void run_ready(uint32_t type, int R, tile *t)
{
    group_place p = { .codes = t->ready->codes[0][0][0],
                      .quants = t->quants + t->first * FG_QUANT_SUPER };
    row_shifts shifts;
    row_sums wide;
    begin_super(R, t);
    bring_shifts(type, R, true, t, t->first, shifts);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        wide[r][0] = wide[r][1] = _mm256_setzero_si256();
    }
#pragma GCC unroll 1
    for (p.in_unit = 0; p.in_unit < GROUPS; p.in_unit++) {
        if (type == FG_Q6_K) {
            add_ready_wide(R, t, &p, shifts, wide);
        } else if (type == FG_Q5_K) {
            add_ready(type, R, t, &p, shifts, 0, VECTORS / 2);
            add_ready(type, R, t, &p, shifts, VECTORS / 2, VECTORS);
        } else {
            add_ready(type, R, t, &p, shifts, 0, VECTORS);
        }
        p.codes += sizeof t->ready->codes[0];
        p.quants += FG_QUANT_GROUP;
    }
#pragma GCC unroll 8
    for (int r = 0; type == FG_Q6_K && r < R; r++) {
        t->sums[r][0] = wide[r][0];
        t->sums[r][1] = wide[r][1];
    }
    const super_rows rows = { super_of(t, t->first, 0), t->super_count, t->sums, t->totals,
                              t->ready->pairs };
    end_super(type, R, true, &rows, t->scales);
}

/* R rows against the panel. */
FG_AVX2_INLINE void run_rows(uint32_t type, int R, tile *t)
{
    const fg_panel_shape shape = fg_panel_shape_of(type, 256);
    group_place p = { .scales = t->scales, .quants = t->quants };
    for (size_t index = 0; index < t->super_count; index++) {
        row_shifts shifts;
        ask_ahead(p.scales, shape.scale_bytes);
        p.codes = p.scales + shape.scale_bytes;
        begin_super(R, t);
        bring_shifts(type, R, false, t, index, shifts);
#pragma GCC unroll 1
        for (p.in_unit = 0; p.in_unit < GROUPS; p.in_unit++) {
            ask_ahead(p.codes, shape.group_bytes);
            if (R <= whole_rows(type)) {
                add_group(type, R, HALVES, t, &p, 0, shifts);
            } else {
                add_group_by_rows(type, R, t, &p, shifts);
            }
            p.codes += shape.group_bytes;
            p.quants += FG_QUANT_GROUP;
        }
        const super_rows rows = { super_of(t, index, 0), t->super_count, t->sums, t->totals, NULL };
        end_super(type, R, false, &rows, p.scales);
        p.scales += shape.unit_bytes;
    }
}

#define RUN_READY(R)                                                                               \
    case R:                                                                                        \
        if ((R) <= tile_rows(type, true)) {                                                        \
            run_ready(type, R, t);                                                                 \
        }                                                                                          \
        break;

#define RUN_ROWS(R)                                                                                \
    case R:                                                                                        \
        if ((R) <= tile_rows(type, false)) {                                                       \
            run_rows(type, R, t);                                                                  \
        }                                                                                          \
        break;

FG_AVX2_INLINE void run_tile(uint32_t type, bool ready, uint32_t rows, tile *t)
{
    if (ready) {
        switch (rows) {
            RUN_READY(1)
            RUN_READY(2)
            RUN_READY(3)
            RUN_READY(4)
            RUN_READY(5)
            RUN_READY(6)
        }
        return;
    }
    switch (rows) {
        RUN_ROWS(1)
        RUN_ROWS(2)
        RUN_ROWS(3)
        RUN_ROWS(4)
        RUN_ROWS(5)
        RUN_ROWS(6)
        RUN_ROWS(7)
        RUN_ROWS(8)
    }
}

/* One function per type: the type is a constant in each. */
#define DEFINE_TILES(name, type)                                                                   \
    static void name##_tile(uint32_t rows, tile *t)                                                \
    {                                                                                              \
        run_tile(type, false, rows, t);                                                            \
    }                                                                                              \
    static void name##_ready_tile(uint32_t rows, tile *t)                                          \
    {                                                                                              \
        run_tile(type, true, rows, t);                                                             \
    }                                                                                              \
    static void name##_make_ready(const uint8_t *scales, ready_super *out)                         \
    {                                                                                              \
        make_ready(type, scales, out);                                                             \
    }

FG_CPU_EACH_SUPER(DEFINE_TILES)

typedef struct tile_fns {
    void (*run)(uint32_t rows, tile *t);
    void (*run_ready)(uint32_t rows, tile *t);
    void (*make_ready)(const uint8_t *scales, ready_super *out);
} tile_fns;

#define FNS_CASE(name, type)                                                                       \
    case type:                                                                                     \
        return (tile_fns){ name##_tile, name##_ready_tile, name##_make_ready };

static tile_fns fns_of(uint32_t type)
{
    switch (type) {
        FG_CPU_EACH_SUPER(FNS_CASE)
    default:
        return (tile_fns){ 0 };
    }
}

/* Some rows of a product. */
typedef struct batch {
    uint32_t first;
    uint32_t count;
    uint32_t tile_rows; /* tiles are about as large as each other */
    _Alignas(32) __m256 totals[BATCH_ROWS][HALVES];
    _Alignas(64) ready_super ready;
} batch;

/* The tile's super-groups against all rows. */
static void run_tiles(void (*run)(uint32_t rows, tile *t), tile *t, const fg_activations *in,
                      batch *b)
{
    for (uint32_t row = 0; row < b->count; row += b->tile_rows) {
        uint32_t left = b->count - row;
        t->quants = in->quants + (b->first + row) * t->columns;
        t->supers = in->supers + (b->first + row) * t->super_count;
        t->totals = b->totals + row;
        run(left < b->tile_rows ? left : b->tile_rows, t);
    }
}

static void run_batch(uint32_t type, tile *t, const uint8_t *panel, const fg_activations *in,
                      batch *b)
{
    const tile_fns fns = fns_of(type);
    size_t unit_bytes = fg_panel_shape_of(type, 256).unit_bytes;
    bool ready = b->count >= ready_rows(type);
    uint32_t most = tile_rows(type, ready);
    uint32_t tiles = (b->count + most - 1) / most;
    b->tile_rows = (b->count + tiles - 1) / tiles;
    memset(b->totals, 0, b->count * sizeof b->totals[0]);
    t->scales = panel;
    if (!ready) {
        run_tiles(fns.run, t, in, b);
        return;
    }
    t->ready = &b->ready;
    for (t->first = 0; t->first < t->super_count; t->first++) {
        fns.make_ready(t->scales, &b->ready);
        run_tiles(fns.run_ready, t, in, b);
        t->scales += unit_bytes;
    }
}

void fg_cpu_avx2_linear_super(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                              uint32_t first, uint32_t count)
{
    const fg_panels *w = &linear->weight;
    const size_t panel_bytes = fg_panel_bytes(w->type, w->columns);
    tile t = { .columns = w->columns, .super_count = w->columns / FG_QUANT_SUPER };
    batch b;
    for (uint32_t panel = first; panel < first + count; panel++) {
        for (b.first = 0; b.first < rows; b.first += b.count) {
            b.count = rows - b.first < BATCH_ROWS ? rows - b.first : BATCH_ROWS;
            run_batch(w->type, &t, (const uint8_t *)w->data + panel * panel_bytes, in, &b);
            for (uint32_t row = 0; row < b.count; row++) {
                fg_cpu_avx2_put_panel(linear, b.first + row, panel * FG_PANEL_OUTPUTS,
                                      b.totals[row]);
            }
        }
    }
}
