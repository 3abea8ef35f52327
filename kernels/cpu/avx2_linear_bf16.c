/*
 * Matrix products with BF16 weights, over panels of sixteen outputs: both columns of a pair are widened and
 * added by an fma each, to the chains of ops.h. A tile is R rows by one panel, or one row by four; what is widened of a
 * row serves both halves of a panel. Many rows go in the blocks of avx2_block.h.
 */
#include "kernels/cpu/avx2.h"
#include "kernels/cpu/avx2_block.h"
#include "kernels/cpu/avx2_math.h"

enum { ROWS_MAX = 4, PANELS_MAX = 4, PAIR_BYTES = FG_PANEL_OUTPUTS * 4 };
enum { CHAIN = FG_CPU_CHAIN_PAIRS };

typedef struct tile {
    const uint8_t *panel; /* the first of P */
    size_t panel_bytes;
    const uint32_t *pairs; /* of the tile's first row */
    size_t stride;         /* from one row's pairs to the next */
    size_t count;          /* of pairs */
} tile;

FG_AVX2_INLINE __m256 first_of(__m256i pair)
{
    return _mm256_castsi256_ps(_mm256_and_si256(pair, _mm256_set1_epi32((int32_t)0xFFFF0000)));
}

FG_AVX2_INLINE __m256 second_of(__m256i pair)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16));
}

FG_AVX2_INLINE __m256 add_pair(__m256 sum, __m256i weights, __m256i pair)
{
    sum = _mm256_fmadd_ps(first_of(weights), first_of(pair), sum);
    return _mm256_fmadd_ps(second_of(weights), second_of(pair), sum);
}

/* The chains of pairs first .. first + count - 1: [panel * R + row][half]. */
FG_AVX2_INLINE void run_chains(int R, int P, const tile *t, size_t first, size_t count,
                               __m256 chains[ROWS_MAX][2])
{
#pragma GCC unroll 4
    for (int i = 0; i < R * P; i++) {
        chains[i][0] = _mm256_setzero_ps();
        chains[i][1] = _mm256_setzero_ps();
    }
    for (size_t j = first; j < first + count; j++) {
#pragma GCC unroll 4
        for (int p = 0; p < P; p++) {
            const uint8_t *at = t->panel + (size_t)p * t->panel_bytes + j * PAIR_BYTES;
            __m256i low = _mm256_loadu_si256((const __m256i *)at);
            __m256i high = _mm256_loadu_si256((const __m256i *)(at + 32));
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                __m256i pair = _mm256_set1_epi32((int32_t)t->pairs[(size_t)r * t->stride + j]);
                chains[p * R + r][0] = add_pair(chains[p * R + r][0], low, pair);
                chains[p * R + r][1] = add_pair(chains[p * R + r][1], high, pair);
            }
        }
    }
}

/* sums[panel * R + row][half] of the tile's rows and panels; like the first chain of a block they wait in memory. */
FG_AVX2_INLINE void run_tile(int R, int P, const tile *t, __m256 sums[ROWS_MAX][2])
{
    __m256 firsts[ROWS_MAX][2];
    __m256 chains[ROWS_MAX][2];
#pragma GCC unroll 4
    for (int i = 0; i < R * P; i++) {
        sums[i][0] = _mm256_setzero_ps();
        sums[i][1] = _mm256_setzero_ps();
    }
    for (size_t j = 0; j < t->count; j += 2 * CHAIN) {
        size_t left = t->count - j;
        size_t count = left < CHAIN ? left : CHAIN;
        run_chains(R, P, t, j, count, firsts);
        __asm__ volatile("" : : "r"(firsts) : "memory");
        left -= count;
        run_chains(R, P, t, j + count, left < CHAIN ? left : CHAIN, chains);
#pragma GCC unroll 4
        for (int i = 0; i < R * P; i++) {
            sums[i][0] = _mm256_add_ps(sums[i][0], _mm256_add_ps(firsts[i][0], chains[i][0]));
            sums[i][1] = _mm256_add_ps(sums[i][1], _mm256_add_ps(firsts[i][1], chains[i][1]));
        }
        __asm__ volatile("" : : "r"(sums) : "memory");
    }
}

static void choose_tile(uint32_t rows, uint32_t panels, const tile *t, __m256 out[ROWS_MAX][2])
{
    switch (panels == PANELS_MAX ? 0 : rows) {
    case 0:
        run_tile(1, PANELS_MAX, t, out);
        break;
    case 1:
        run_tile(1, 1, t, out);
        break;
    case 2:
        run_tile(2, 1, t, out);
        break;
    case 3:
        run_tile(3, 1, t, out);
        break;
    default:
        run_tile(ROWS_MAX, 1, t, out);
        break;
    }
}

/* Three rows and more: some panels at a time, of which all rows pass some columns before the next ones, with their own
 * columns as floats. Sums of all rows wait in memory. */
enum {
    PANELS_TOGETHER = 4,
    ROWS_TOGETHER = 144, /* whole tiles */
    SLICE = 256,         /* columns, whole blocks */
    FLOATS_STRIDE = SLICE + 16,
    SLICE_BYTES = SLICE / 2 * PAIR_BYTES
};

/* Columns of a tile's rows, those in upper halves of pairs, then the others. */
typedef struct slice {
    _Alignas(64) float x[FG_AVX2_BLOCK_ROWS][FLOATS_STRIDE];
    size_t pairs; /* whole blocks of them */
} slice;

static void widen(const uint32_t *pairs, size_t count, float *out)
{
    for (size_t i = 0; i < count; i += 8) {
        __m256i eight = _mm256_loadu_si256((const __m256i *)(const void *)(pairs + i));
        _mm256_store_ps(out + i, first_of(eight));
        _mm256_store_ps(out + SLICE / 2 + i, second_of(eight));
    }
}

/* A slice of a panel, from its pair `first` on; meanwhile what follows is asked for, so many lines with each block. */
static void multiply_slice(const slice *s, const uint8_t *panel, size_t first, const uint8_t *ahead,
                           size_t lines, float *const *outs)
{
    enum { PAIRS = FG_AVX2_BLOCK / 2, HALF_BYTES = PAIRS / 2 * PAIR_BYTES };
    for (size_t at = 0; at < s->pairs; at += PAIRS) {
        const uint8_t *block = panel + (first + at) * PAIR_BYTES;
        for (size_t i = 0; i < lines; i++) {
            _mm_prefetch((const char *)ahead, _MM_HINT_T0);
            ahead += PAIR_BYTES;
        }
        fg_avx2_rows x = { .x = &s->x[0][at], .row = FLOATS_STRIDE, .pair = 1, .lower = SLICE / 2 };
        fg_avx2_columns columns = { .firsts = block,
                                    .seconds = block + HALF_BYTES,
                                    .pair_bytes = PAIR_BYTES };
        if (first + at == 0) {
            fg_avx2_add_block(FG_AVX2_BLOCK_ROWS, true, true, &x, &columns, outs);
        } else {
            fg_avx2_add_block(FG_AVX2_BLOCK_ROWS, true, false, &x, &columns, outs);
        }
    }
}

/* At most ROWS_TOGETHER rows, the first one's pairs at t->pairs, against some panels. */
static void run_slices(const tile *t, uint32_t rows, uint32_t panels,
                       __m256 sums[PANELS_TOGETHER][ROWS_TOGETHER][2])
{
    enum { ROWS = FG_AVX2_BLOCK_ROWS };
    const uint32_t tiles = (rows + ROWS - 1) / ROWS;
    const size_t blocks = (size_t)tiles * (SLICE / FG_AVX2_BLOCK);
    const size_t lines = (SLICE / 2 + blocks - 1) / blocks;
    slice s;
    for (uint32_t p = 0; p < panels; p++) {
        memset(sums[p], 0, tiles * ROWS * sizeof sums[p][0]);
    }
    for (size_t first = 0; first < t->count; first += SLICE / 2) {
        s.pairs = t->count - first < SLICE / 2 ? t->count - first : SLICE / 2;
        for (uint32_t i = 0; i < tiles; i++) {
            for (uint32_t m = 0; m < ROWS; m++) {
                /* What is missing in the last tile is its last row again, whose sums nobody reads. */
                uint32_t row = i * ROWS + m < rows ? i * ROWS + m : rows - 1;
                widen(t->pairs + row * t->stride + first, s.pairs, s.x[m]);
            }
            size_t asked = i * (blocks / tiles) * lines;
            for (uint32_t p = 0; p < panels; p++) {
                const uint8_t *panel = t->panel + p * t->panel_bytes;
                const uint8_t *next = panel + first * PAIR_BYTES + SLICE_BYTES;
                float *outs[ROWS];
                for (uint32_t m = 0; m < ROWS; m++) {
                    outs[m] = (float *)sums[p][i * ROWS + m];
                }
                multiply_slice(&s, panel, first, next + asked * PAIR_BYTES,
                               asked < SLICE / 2 ? lines : 0, outs);
            }
        }
    }
}

static void run_many_rows(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                          uint32_t first, uint32_t count, tile *t)
{
    __m256 sums[PANELS_TOGETHER][ROWS_TOGETHER][2];
    uint32_t panels;
    for (uint32_t panel = first; panel < first + count; panel += panels) {
        uint32_t left = first + count - panel;
        panels = left < PANELS_TOGETHER ? left : PANELS_TOGETHER;
        t->panel = (const uint8_t *)linear->weight.data + panel * t->panel_bytes;
        for (uint32_t row = 0; row < rows; row += ROWS_TOGETHER) {
            uint32_t taken = rows - row < ROWS_TOGETHER ? rows - row : ROWS_TOGETHER;
            t->pairs = in->pairs + row * t->stride;
            run_slices(t, taken, panels, sums);
            for (uint32_t i = 0; i < taken * panels; i++) {
                fg_cpu_avx2_put_panel(linear, row + i % taken,
                                      (panel + i / taken) * FG_PANEL_OUTPUTS,
                                      sums[i / taken][i % taken]);
            }
        }
    }
}

void fg_cpu_avx2_linear_bf16(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                             uint32_t first, uint32_t count)
{
    const fg_panels *w = &linear->weight;
    tile t = { .panel_bytes = fg_panel_bytes(w->type, w->columns),
               .stride = fg_pair_stride(w->columns),
               .count = fg_panel_pairs(w->columns) };
    /* Four rows would take two tiles, a third of them for nothing; in one of their own they are quicker. */
    if (rows >= FG_AVX2_BLOCK_ROWS && rows != ROWS_MAX && t.count % (FG_AVX2_BLOCK / 2) == 0) {
        run_many_rows(linear, in, rows, first, count, &t);
        return;
    }
    uint32_t panels;
    for (uint32_t panel = first; panel < first + count; panel += panels) {
        panels = rows == 1 && first + count - panel >= PANELS_MAX ? PANELS_MAX : 1;
        t.panel = (const uint8_t *)w->data + panel * t.panel_bytes;
        for (uint32_t row = 0; row < rows; row += ROWS_MAX) {
            uint32_t taken = rows - row < ROWS_MAX ? rows - row : ROWS_MAX;
            __m256 sums[ROWS_MAX][2];
            t.pairs = in->pairs + row * t.stride;
            choose_tile(taken, panels, &t, sums);
            for (uint32_t i = 0; i < taken * panels; i++) {
                fg_cpu_avx2_put_panel(linear, row + i % taken,
                                      (panel + i / taken) * FG_PANEL_OUTPUTS, sums[i]);
            }
        }
    }
}
