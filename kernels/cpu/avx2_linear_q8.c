/*
 * Matrix products of 8-bit codes with AVX2 for many rows, over panels of sixteen outputs.
 *
 * `vpmaddubsw` wants one factor without a sign: the codes' magnitudes; the activations take the codes' signs. What
 * `vpsignb` does for that is done by `vpxor`, which more ports can do: x ^ -1 is -x - 1, so a sum lacks the magnitudes
 * of all negative codes of its group, which do not depend on the row. Magnitudes, signs and what sums lack are made
 * ready for some groups of a panel at a time, and all rows pass them, four at a time.
 */
#include "kernels/cpu/avx2_unpack.h"

enum { ROWS_MAX = 4, STEPS = FG_QUANT_GROUP / 4 };
/* Groups made ready at a time: they stay in the first-level cache. So do the sums of so many rows. */
enum { BLOCK_GROUPS = 8, BLOCK_ROWS = 128 };
/* Groups ahead of what is made ready: what arrives from memory meanwhile, asked for little by little. */
enum { GROUPS_AHEAD = 12 };

/* A group of a panel; [half] is outputs 0 .. 7 and 8 .. 15. */
typedef struct ready_group {
    __m256i signs[STEPS][2]; /* of four columns: -1 where a code is negative */
    __m256i magnitudes[STEPS][2];
    __m256i lacking[2];
    factors scales[2];
} ready_group;

/* Some rows and the groups that are ready. */
typedef struct tile {
    const ready_group *ready;
    uint32_t count;       /* of these */
    const int8_t *quants; /* of the first row and group */
    const fg_quant_group *groups;
    size_t columns; /* from one row's to the next */
    size_t group_count;
    __m256 (*sums)[2];    /* [row][half] */
    const uint8_t *ahead; /* asked for, so much by each group */
    size_t share_bytes;
} tile;

/* In this order and no other: a Zen 3 gives each operation a port as it comes, whether others wait for it or not. Pairs
 * of products in step take 1.13 cycles each, the same one after the other 1.6. */
#define IN_TURN(x) __asm__ volatile("" : "+x"(x))

static void make_ready(const uint8_t *codes, const uint8_t *scales, ready_group *out)
{
    for (size_t half = 0; half < 2; half++) {
        __m256i lacking = _mm256_setzero_si256();
        for (size_t j = 0; j < STEPS; j++) {
            __m256i w = load32(codes + j * VECTOR + half * HALF);
            __m256i signs = _mm256_cmpgt_epi8(_mm256_setzero_si256(), w);
            __m256i magnitudes = _mm256_abs_epi8(w);
            /* Of 16 columns at most 16 * 128 are added up. */
            lacking = _mm256_sub_epi16(lacking, _mm256_maddubs_epi16(magnitudes, signs));
            out->signs[j][half] = signs;
            out->magnitudes[j][half] = magnitudes;
        }
        out->lacking[half] = _mm256_madd_epi16(lacking, _mm256_set1_epi16(1));
        out->scales[half] = factors_of(FG_Q8_0, scales, 0, half);
    }
}

/* Named sums, because compilers keep arrays in memory. */
/* clang-format off */
#define EACH_ROW(X) X(0) X(1) X(2) X(3)
/* clang-format on */
#define BEGIN_ROW(r)                                                                               \
    __m256i a##r = g->lacking[0];                                                                  \
    __m256i b##r = g->lacking[1];
#define ADD_ROW(r)                                                                                 \
    if (R > (r)) {                                                                                 \
        __m256i xa = broadcast4(x + (r)*t->columns + 4 * j);                                       \
        __m256i xb = _mm256_xor_si256(xa, b_signs);                                                \
        IN_TURN(xb);                                                                               \
        xa = _mm256_xor_si256(xa, a_signs);                                                        \
        IN_TURN(xa);                                                                               \
        xb = _mm256_maddubs_epi16(b_magnitudes, xb);                                               \
        IN_TURN(xb);                                                                               \
        xa = _mm256_maddubs_epi16(a_magnitudes, xa);                                               \
        IN_TURN(xa);                                                                               \
        xb = _mm256_madd_epi16(xb, ones);                                                          \
        IN_TURN(xb);                                                                               \
        xa = _mm256_madd_epi16(xa, ones);                                                          \
        IN_TURN(xa);                                                                               \
        b##r = _mm256_add_epi32(b##r, xb);                                                         \
        IN_TURN(b##r);                                                                             \
        a##r = _mm256_add_epi32(a##r, xa);                                                         \
        IN_TURN(a##r);                                                                             \
    }
#define FINISH_ROW(r)                                                                              \
    if (R > (r)) {                                                                                 \
        const fg_quant_group *group = &t->groups[(r)*t->group_count + i];                          \
        t->sums[r][0] =                                                                            \
            add_scaled(FG_Q8_0, _mm256_cvtepi32_ps(a##r), group, &g->scales[0], t->sums[r][0]);    \
        t->sums[r][1] =                                                                            \
            add_scaled(FG_Q8_0, _mm256_cvtepi32_ps(b##r), group, &g->scales[1], t->sums[r][1]);    \
    }

FG_AVX2_INLINE void run_rows(uint32_t R, const tile *t)
{
    __m256i ones = _mm256_set1_epi16(1);
    for (uint32_t i = 0; i < t->count; i++) {
        const ready_group *g = &t->ready[i];
        const int8_t *x = t->quants + (size_t)i * FG_QUANT_GROUP;
        ask_for(t->ahead + i * t->share_bytes, t->share_bytes);
        IN_TURN(ones); /* stays in its register */
        EACH_ROW(BEGIN_ROW)
#pragma GCC unroll 8
        for (size_t j = 0; j < STEPS; j++) {
            __m256i a_signs = g->signs[j][0];
            __m256i b_signs = g->signs[j][1];
            __m256i a_magnitudes = g->magnitudes[j][0];
            __m256i b_magnitudes = g->magnitudes[j][1];
            IN_TURN(a_signs);
            IN_TURN(b_signs);
            IN_TURN(a_magnitudes);
            IN_TURN(b_magnitudes);
            EACH_ROW(ADD_ROW)
        }
        EACH_ROW(FINISH_ROW)
        __asm__ volatile("" : : "r"(t->sums) : "memory"); /* sums stay there */
    }
}

#define ROWS_CASE(r)                                                                               \
    case (r) + 1:                                                                                  \
        run_rows((r) + 1, t);                                                                      \
        break;

static void run_tile(uint32_t rows, const tile *t)
{
    switch (rows) {
        EACH_ROW(ROWS_CASE)
    }
}

/* At most BLOCK_ROWS rows against one panel. */
static void run_panel(const uint8_t *panel, const int8_t *quants, const fg_quant_group *groups,
                      size_t columns, uint32_t rows, __m256 sums[BLOCK_ROWS][2])
{
    const fg_panel_shape shape = fg_panel_shape_of(FG_Q8_0, 256);
    const size_t group_count = columns / FG_QUANT_GROUP;
    const size_t block_bytes =
        fg_panel_codes_offset(&shape, BLOCK_GROUPS) - fg_panel_codes_offset(&shape, 0);
    const size_t ahead_bytes = (size_t)GROUPS_AHEAD * shape.group_bytes;
    const uint32_t tiles = (rows + ROWS_MAX - 1) / ROWS_MAX;
    const size_t share_bytes =
        (block_bytes / (tiles * BLOCK_GROUPS) + VECTOR - 1) / VECTOR * VECTOR;
    ready_group ready[BLOCK_GROUPS];
    memset(sums, 0, rows * sizeof sums[0]);
    for (size_t first = 0; first < group_count; first += BLOCK_GROUPS) {
        size_t left = group_count - first;
        uint32_t count = (uint32_t)(left < BLOCK_GROUPS ? left : BLOCK_GROUPS);
        for (uint32_t i = 0; i < count; i++) {
            const uint8_t *codes = panel + fg_panel_codes_offset(&shape, first + i);
            const uint8_t *scales = panel + fg_panel_unit_offset(&shape, first + i);
            make_ready(codes, scales + (first + i) % shape.unit_groups * 32, &ready[i]);
        }
        const uint8_t *ahead = panel + fg_panel_codes_offset(&shape, first) + ahead_bytes;
        const uint8_t *end = ahead + block_bytes;
        for (uint32_t row = 0; row < rows; row += ROWS_MAX) {
            tile t = { .ready = ready,
                       .count = count,
                       .quants = quants + row * columns + first * FG_QUANT_GROUP,
                       .groups = groups + row * group_count + first,
                       .columns = columns,
                       .group_count = group_count,
                       .sums = sums + row,
                       .ahead = ahead,
                       .share_bytes = ahead < end ? share_bytes : 0 };
            ahead += count * t.share_bytes;
            run_tile(rows - row < ROWS_MAX ? rows - row : ROWS_MAX, &t);
        }
    }
}

void fg_cpu_avx2_linear_q8(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                           uint32_t first, uint32_t count)
{
    const fg_panels *w = &linear->weight;
    const size_t panel_bytes = fg_panel_bytes(FG_Q8_0, w->columns);
    __m256 sums[BLOCK_ROWS][2];
    for (uint32_t panel = first; panel < first + count; panel++) {
        const uint8_t *data = (const uint8_t *)w->data + panel * panel_bytes;
        for (uint32_t row = 0; row < rows; row += BLOCK_ROWS) {
            uint32_t taken = rows - row < BLOCK_ROWS ? rows - row : BLOCK_ROWS;
            run_panel(data, in->quants + row * (size_t)w->columns,
                      in->groups + row * (size_t)(w->columns / FG_QUANT_GROUP), w->columns, taken,
                      sums);
            for (uint32_t i = 0; i < taken; i++) {
                fg_cpu_avx2_put_panel(linear, row + i, panel * FG_PANEL_OUTPUTS, sums[i]);
            }
        }
    }
}
