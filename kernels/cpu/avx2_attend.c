/*
 * Attention with AVX2, FMA and F16C, the arithmetic of plain_attend.c. A strip of up to six (row, head)s of
 * the tile goes through a chunk in three passes: scores as a product of q with the keys, whose layout puts
 * 16 slots side by side; weights; their product with the values. Both products are register tiles, for the
 * strip and 16 to 64 columns, that widen K and V as they load them. Where a tile has many strips, the
 * chunk's K and V are copied first, to where they follow each other; else the strips take a few pieces
 * before the next ones are read, so that these come from the first-level cache.
 */
#include <string.h>

#include "kernels/cpu/attend.h"
#include "kernels/cpu/avx2.h"
#include "kernels/cpu/avx2_math.h"
#include "kernels/cpu/plain.h"

enum {
    STRIP = FG_ATTEND_STRIP,
    SCORES = FG_ATTEND_SCORES,
    PIECE = FG_KV_PIECE,
    PIECES = FG_ATTEND_CHUNK / PIECE,
    PIECES_PADDED = PIECES + 4,
    AHEAD = 8,                  /* pieces that a tile of one strip fetches ahead */
    DIMS = FG_ATTEND_COPY_DIMS, /* larger heads go to plain */
    Q_STRIDE = DIMS + 16, /* floats from one (row, head) to the next; 17 cache lines use all sets */
    UNROLL = 4,           /* divides every head size that comes here */
    CACHED_PIECES = 4,    /* that both strips take before the next ones */
    DIRECT_STRIPS = 2,    /* more than these read a copy of K and V */
    COPY_AHEAD = 2,       /* pieces fetched ahead of the one being copied */
};

/* Where one chunk's K and V lie, a pointer per piece of 16 slots, and what is fetched meanwhile. */
typedef struct chunk_pieces {
    const uint8_t *keys[PIECES_PADDED];
    const uint8_t *values[PIECES_PADDED];
    const float *key_scales[PIECES_PADDED];
    const float *value_scales[PIECES_PADDED];
    const uint8_t *after_keys[PIECES_PADDED];
    const uint8_t *after_values[PIECES_PADDED];
    uint32_t begin;
    uint32_t end;
    uint32_t run; /* slots whose values follow each other: a piece, in a copy all */
} chunk_pieces;

/* One strip on its way through one chunk. */
typedef struct strip {
    const fg_cpu_attend *args;
    const chunk_pieces *pieces;
    uint32_t chunk;
    uint32_t first; /* (row, head) of the tile */
    uint32_t count;
    const float *q; /* [(row, head)][Q_STRIDE] */
    float *scores;  /* [(row, head)][SCORES] */
    bool fresh;     /* targets are records, else records are still to be merged with them */
    float *targets[STRIP];
    fg_cpu_slots slots[STRIP];
    fg_cpu_slots any; /* slots that some row sees */
    fg_cpu_slots all; /* slots that every row sees; may be empty */
} strip;

FG_AVX2_INLINE uint32_t element_bytes(uint32_t kind)
{
    return kind == FG_F32 ? 4 : kind == FG_I8 ? 1 : 2;
}

/* Eight elements as floats; int8 without its scale. */
FG_AVX2_INLINE __m256 load_kv(uint32_t kind, const uint8_t *at)
{
    switch (kind) {
    case FG_F32:
        return _mm256_loadu_ps((const float *)(const void *)at);
    case FG_F16:
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)at));
    case FG_BF16: {
        __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)at));
        return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
    }
    default:
        return _mm256_cvtepi32_ps(
            _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)at)));
    }
}

/* Makes the compiler keep a value in a register here; without it, it moves sums about and spills some. */
#define HOLD(x) __asm__("" : "+x"(x))

/* One step of a product: acc[m][n] += a[m * a_step] * b[n], b[n] at bs[n]. What is fewer, a or b, is
 * held in registers, and the other passes through one: 16 must do for all. */
FG_AVX2_INLINE void step(uint32_t kind, int M, int N, const float *a, size_t a_step,
                         const uint8_t *const bs[8], __m256 acc[STRIP][8])
{
    if (M < N) {
        __m256 x[STRIP];
        for (int m = 0; m < M; m++) {
            x[m] = _mm256_broadcast_ss(a + m * a_step);
        }
        for (int n = 0; n < N; n++) {
            __m256 b = load_kv(kind, bs[n]);
            for (int m = 0; m < M; m++) {
                acc[m][n] = _mm256_fmadd_ps(x[m], b, acc[m][n]);
            }
        }
        return;
    }
    __m256 b[8];
    for (int n = 0; n < N; n++) {
        b[n] = load_kv(kind, bs[n]);
        HOLD(b[n]);
    }
    for (int m = 0; m < M; m++) {
        __m256 x = _mm256_broadcast_ss(a + m * a_step);
        for (int n = 0; n < N; n++) {
            acc[m][n] = _mm256_fmadd_ps(x, b[n], acc[m][n]);
            HOLD(acc[m][n]);
        }
    }
}

/* Small tiles wait for memory: they fetch what comes later as they go. */
FG_AVX2_INLINE bool fetches(int M)
{
    return M < 5;
}

FG_AVX2_INLINE void fetch(const uint8_t *at)
{
    _mm_prefetch((const char *)at, _MM_HINT_T0);
}

/* 16 elements of a piece; not again where they share a cache line with the ones before. */
FG_AVX2_INLINE void fetch_line(uint32_t kind, const uint8_t *at, uint32_t index)
{
    if (index % (64 / (PIECE * element_bytes(kind))) == 0) {
        fetch(at);
    }
}

/* Scores of N / 2 pieces from `piece` on. */
FG_AVX2_INLINE void score_pieces(uint32_t kind, int M, int N, const strip *s, uint32_t piece)
{
    uint32_t head_dim = s->args->kv->head_dim;
    const float *q = s->q;
    const uint8_t *keys[4];
    const uint8_t *after[4];
    __m256 acc[STRIP][8];
    for (int n = 0; n < N; n++) {
        keys[n / 2] = s->pieces->keys[piece + n / 2];
        after[n / 2] = s->pieces->after_keys[piece + n / 2];
        for (int m = 0; m < M; m++) {
            acc[m][n] = _mm256_setzero_ps();
        }
    }
    size_t line = (size_t)PIECE * element_bytes(kind);
    for (size_t at = 0; at < head_dim * line; at += UNROLL * line) {
        for (size_t u = 0; u < UNROLL; u++) {
            const uint8_t *bs[8];
            for (int n = 0; n < N; n++) {
                bs[n] = keys[n / 2] + at + u * line + (size_t)(n % 2) * 8 * element_bytes(kind);
            }
            for (int n = 0; n < N && fetches(M); n += 2) {
                fetch_line(kind, after[n / 2] + at + u * line, (uint32_t)u);
            }
            step(kind, M, N, q++, Q_STRIDE, bs, acc);
        }
    }
    for (int m = 0; m < M; m++) {
        for (int n = 0; n < N; n++) {
            _mm256_store_ps(s->scores + m * SCORES + piece * PIECE + n * 8, acc[m][n]);
        }
    }
}

FG_AVX2_INLINE void value_step(uint32_t kind, int M, int N, const float *weights,
                               const uint8_t *value, ptrdiff_t after, __m256 acc[STRIP][8])
{
    const uint8_t *bs[8];
    for (int n = 0; n < N; n++) {
        bs[n] = value + (size_t)n * 8 * element_bytes(kind);
    }
    if (fetches(M)) {
        fetch(value + after);
    }
    step(kind, M, N, weights, SCORES, bs, acc);
}

/* Adds weights times values to N * 8 columns of M outputs. */
FG_AVX2_INLINE void add_columns(uint32_t kind, int M, int N, const strip *s, const float *weights,
                                float *const *outs, fg_cpu_slots slots, uint32_t column)
{
    size_t slot_bytes = (size_t)s->args->kv->head_dim * element_bytes(kind);
    __m256 acc[STRIP][8];
    for (int m = 0; m < M; m++) {
        for (int n = 0; n < N; n++) {
            acc[m][n] = _mm256_load_ps(outs[m] + column + n * 8);
        }
    }
    for (uint32_t slot = slots.begin; slot < slots.end;) {
        const uint8_t *value = s->pieces->values[slot / PIECE] + slot % PIECE * slot_bytes +
                               (size_t)column * element_bytes(kind);
        uint32_t run_end = (slot / s->pieces->run + 1) * s->pieces->run;
        uint32_t end = run_end < slots.end ? run_end : slots.end;
        ptrdiff_t after = s->pieces->after_values[slot / PIECE] - s->pieces->values[slot / PIECE];
        for (; slot + UNROLL <= end; slot += UNROLL) {
            for (uint32_t u = 0; u < UNROLL; u++) {
                value_step(kind, M, N, weights + slot + u, value + u * slot_bytes, after, acc);
            }
            value += UNROLL * slot_bytes;
        }
        for (; slot < end; slot++) {
            value_step(kind, M, N, weights + slot, value, after, acc);
            value += slot_bytes;
        }
    }
    for (int m = 0; m < M; m++) {
        for (int n = 0; n < N; n++) {
            _mm256_store_ps(outs[m] + column + n * 8, acc[m][n]);
        }
    }
}

/* Vectors of a register tile with M rows: enough chains to hide a multiply-add's latency. */
FG_AVX2_INLINE int tile_vectors(int M)
{
    return M == 1 ? 8 : M < 4 ? 4 : 2;
}

FG_AVX2_INLINE void add_values(uint32_t kind, int M, const strip *s, const float *weights,
                               float *const *outs, fg_cpu_slots slots)
{
    uint32_t head_dim = s->args->kv->head_dim;
    uint32_t column = 0;
    uint32_t wide = (uint32_t)tile_vectors(M) * 8;
    if (slots.begin >= slots.end) {
        return;
    }
    for (; column + wide <= head_dim; column += wide) {
        add_columns(kind, M, tile_vectors(M), s, weights, outs, slots, column);
    }
    for (; column + 16 <= head_dim; column += 16) {
        add_columns(kind, M, 2, s, weights, outs, slots, column);
    }
    for (; column < head_dim; column += 8) {
        add_columns(kind, M, 1, s, weights, outs, slots, column);
    }
}

/* fg_cpu_exp2 of eight. What is below the least comes out as nonsense, and is masked. */
FG_AVX2_INLINE __m256 exp2_of(__m256 x)
{
    const __m256 magic = _mm256_set1_ps(0x1.8p23f);
    __m256 shifted = _mm256_add_ps(x, magic);
    __m256 f = _mm256_sub_ps(x, _mm256_sub_ps(shifted, magic));
    __m256 p = _mm256_set1_ps(FG_CPU_EXP2_5);
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(FG_CPU_EXP2_4));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(FG_CPU_EXP2_3));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(FG_CPU_EXP2_2));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(FG_CPU_EXP2_1));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    __m256i power = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
    power = _mm256_add_epi32(power, _mm256_castps_si256(p));
    __m256 gone = _mm256_cmp_ps(x, _mm256_set1_ps(FG_CPU_EXP2_LEAST), _CMP_LT_OQ);
    return _mm256_andnot_ps(gone, _mm256_castsi256_ps(power));
}

FG_AVX2_INLINE float largest(__m256 v)
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

static void scale_by(float *x, const float *const *scales, uint32_t begin, uint32_t end)
{
    for (uint32_t j = begin; j < end; j += 8) {
        __m256 scale = _mm256_loadu_ps(scales[j / PIECE] + j % PIECE);
        _mm256_store_ps(x + j, _mm256_mul_ps(_mm256_load_ps(x + j), scale));
    }
}

/* Turns the scores of one row into weights; writes their maximum and sum. Slots that the row does not
 * see, in the pieces where `any` begins and ends, weigh nothing. */
static void weigh(const strip *s, uint32_t m, float *x, float *record)
{
    uint32_t begin = s->any.begin / PIECE * PIECE;
    uint32_t end = (s->any.end + PIECE - 1) / PIECE * PIECE;
    bool scaled = s->args->kv->dtype == FG_I8;
    if (scaled) {
        scale_by(x, s->pieces->key_scales, begin, end);
    }
    for (uint32_t j = begin; j < s->slots[m].begin; j++) {
        x[j] = -__builtin_inff();
    }
    for (uint32_t j = s->slots[m].end; j < end; j++) {
        x[j] = -__builtin_inff();
    }
    __m256 high = _mm256_set1_ps(-__builtin_inff());
    for (uint32_t j = begin; j < end; j += 8) {
        high = _mm256_max_ps(high, _mm256_load_ps(x + j));
    }
    record[0] = largest(high);
    __m256 maximum = _mm256_set1_ps(record[0]);
    __m256 sum = _mm256_setzero_ps();
    for (uint32_t j = begin; j < end; j += 8) {
        __m256 weight = exp2_of(_mm256_sub_ps(_mm256_load_ps(x + j), maximum));
        sum = _mm256_add_ps(sum, weight);
        _mm256_store_ps(x + j, weight);
    }
    record[FG_ATTEND_SUM] = fg_avx2_fold(sum);
    if (scaled) {
        scale_by(x, s->pieces->value_scales, begin, end);
    }
}

static void clear(float *record, uint32_t head_dim)
{
    memset(record, 0, fg_cpu_record_floats(head_dim) * sizeof *record);
}

/* `state` is what came before; a record with a sum of 0 saw no slot. */
static void merge(float *state, const float *record, uint32_t head_dim)
{
    if (record[FG_ATTEND_SUM] == 0.0f) {
        return;
    }
    if (state[FG_ATTEND_SUM] == 0.0f) {
        memcpy(state, record, fg_cpu_record_floats(head_dim) * sizeof *state);
        return;
    }
    float maximum = record[0] > state[0] ? record[0] : state[0];
    float before = fg_cpu_exp2(state[0] - maximum);
    float now = fg_cpu_exp2(record[0] - maximum);
    state[0] = maximum;
    state[FG_ATTEND_SUM] =
        __builtin_fmaf(record[FG_ATTEND_SUM], now, state[FG_ATTEND_SUM] * before);
    for (uint32_t d = FG_ATTEND_HEAD; d < FG_ATTEND_HEAD + head_dim; d += 8) {
        __m256 old = _mm256_mul_ps(_mm256_load_ps(state + d), _mm256_set1_ps(before));
        _mm256_store_ps(state + d,
                        _mm256_fmadd_ps(_mm256_load_ps(record + d), _mm256_set1_ps(now), old));
    }
}

static fg_cpu_slots clip(fg_cpu_slots slots, uint32_t begin, uint32_t end)
{
    begin = slots.begin > begin ? slots.begin : begin;
    end = slots.end < end ? slots.end : end;
    return (fg_cpu_slots){ .begin = begin, .end = end > begin ? end : begin };
}

/* Values of slots begin .. end - 1: what all rows see in one product, the rest row by row. */
FG_AVX2_INLINE void strip_values(uint32_t kind, int M, const strip *s, uint32_t begin, uint32_t end)
{
    float *outs[STRIP];
    uint32_t all_begin = s->all.begin < s->all.end ? s->all.begin : end;
    uint32_t all_end = s->all.begin < s->all.end ? s->all.end : end;
    for (int m = 0; m < M; m++) {
        outs[m] = s->targets[m] + FG_ATTEND_HEAD;
        fg_cpu_slots before = clip(s->slots[m], begin, all_begin < end ? all_begin : end);
        add_values(kind, 1, s, s->scores + m * SCORES, &outs[m], before);
    }
    add_values(kind, M, s, s->scores, outs, clip(s->all, begin, end));
    for (int m = 0; m < M; m++) {
        fg_cpu_slots after = clip(s->slots[m], all_end > begin ? all_end : begin, end);
        add_values(kind, 1, s, s->scores + m * SCORES, &outs[m], after);
    }
}

/* Scores of the pieces begin .. end - 1 that the strip sees. */
FG_AVX2_INLINE void strip_scores(uint32_t kind, int M, const strip *s, uint32_t begin, uint32_t end)
{
    uint32_t first = s->any.begin / PIECE;
    uint32_t last = (s->any.end + PIECE - 1) / PIECE;
    first = first > begin ? first : begin;
    last = last < end ? last : end;
    for (; first < last; first += (uint32_t)tile_vectors(M) / 2) {
        score_pieces(kind, M, tile_vectors(M), s, first);
    }
}

typedef struct strip_functions {
    void (*scores)(const strip *s, uint32_t piece_begin, uint32_t piece_end);
    void (*values)(const strip *s, uint32_t slot_begin, uint32_t slot_end);
} strip_functions;

#define STRIP_FUNCTION(kind, M)                                                                    \
    static void scores_##kind##_##M(const strip *s, uint32_t begin, uint32_t end)                  \
    {                                                                                              \
        strip_scores(kind, M, s, begin, end);                                                      \
    }                                                                                              \
    static void values_##kind##_##M(const strip *s, uint32_t begin, uint32_t end)                  \
    {                                                                                              \
        strip_values(kind, M, s, begin, end);                                                      \
    }
#define STRIP_FUNCTIONS(kind)                                                                      \
    STRIP_FUNCTION(kind, 1)                                                                        \
    STRIP_FUNCTION(kind, 2)                                                                        \
    STRIP_FUNCTION(kind, 3)                                                                        \
    STRIP_FUNCTION(kind, 4)                                                                        \
    STRIP_FUNCTION(kind, 5)                                                                        \
    STRIP_FUNCTION(kind, 6)                                                                        \
    static const strip_functions functions_##kind[STRIP] = {                                       \
        { scores_##kind##_1, values_##kind##_1 }, { scores_##kind##_2, values_##kind##_2 },        \
        { scores_##kind##_3, values_##kind##_3 }, { scores_##kind##_4, values_##kind##_4 },        \
        { scores_##kind##_5, values_##kind##_5 }, { scores_##kind##_6, values_##kind##_6 },        \
    };

STRIP_FUNCTIONS(FG_F32)
STRIP_FUNCTIONS(FG_F16)
STRIP_FUNCTIONS(FG_BF16)
STRIP_FUNCTIONS(FG_I8)

static const strip_functions *functions_of(uint32_t dtype)
{
    switch (dtype) {
    case FG_F32:
        return functions_FG_F32;
    case FG_F16:
        return functions_FG_F16;
    case FG_BF16:
        return functions_FG_BF16;
    default:
        return functions_FG_I8;
    }
}

static size_t piece_bytes_of(const fg_paged_kv *kv)
{
    return (size_t)PIECE * kv->head_dim * fg_dtype_kv_bytes(kv->dtype);
}

static uint32_t strip_count_of(const fg_cpu_attend *args)
{
    return (args->row_count * args->head_count + STRIP - 1) / STRIP;
}

/* Whether so many strips read K and V that copying them first pays. */
static bool copies_kv(const fg_cpu_attend *args)
{
    return strip_count_of(args) > DIRECT_STRIPS;
}

/* The pieces of a chunk that the tile sees; those beyond repeat the last, for register tiles of several
 * pieces. */
static void find_pieces(const fg_cpu_attend *args, uint32_t chunk, chunk_pieces *pieces)
{
    const fg_paged_kv *kv = args->kv;
    size_t piece_bytes = piece_bytes_of(kv);
    pieces->begin = fg_cpu_row_slots(args, chunk, 0).begin / PIECE;
    pieces->end = (fg_cpu_row_slots(args, chunk, args->row_count - 1).end + PIECE - 1) / PIECE;
    for (uint32_t i = pieces->begin; i < pieces->end + 3; i++) {
        uint32_t in_chunk = i < pieces->end ? i : pieces->end - 1;
        uint32_t slot = chunk * FG_ATTEND_CHUNK + in_chunk * PIECE;
        uint8_t *keys = fg_cpu_kv_region(kv, args->block_ids, kv->key_offset, args->kv_head, slot);
        uint8_t *values = keys + kv->value_offset - kv->key_offset;
        size_t at = slot % kv->block_size / PIECE * piece_bytes;
        pieces->keys[i] = keys + at;
        pieces->values[i] = values + at;
        pieces->key_scales[i] = fg_cpu_kv_scale(kv, keys, slot);
        pieces->value_scales[i] = fg_cpu_kv_scale(kv, values, slot);
    }
    pieces->run = PIECE;
}

/* What is read `ahead` pieces later: keys, then values, then the next chunk's keys. */
static void find_after(chunk_pieces *now, const chunk_pieces *next, uint32_t ahead)
{
    uint32_t count = now->end - now->begin;
    uint32_t next_count = next == NULL ? 0 : next->end - next->begin;
    for (uint32_t i = 0; i < count + 3; i++) {
        uint32_t later = i + ahead;
        now->after_keys[now->begin + i] = later < count ? now->keys[now->begin + later]
                                          : later < 2 * count
                                              ? now->values[now->begin + later - count]
                                              : now->values[now->end - 1];
        now->after_values[now->begin + i] = later < count ? now->values[now->begin + later]
                                            : later - count < next_count
                                                ? next->keys[next->begin + later - count]
                                                : now->values[now->end - 1];
    }
}

static void find_slots(strip *s)
{
    s->any = (fg_cpu_slots){ .begin = FG_ATTEND_CHUNK, .end = 0 };
    s->all = (fg_cpu_slots){ .begin = 0, .end = FG_ATTEND_CHUNK };
    for (uint32_t m = 0; m < s->count; m++) {
        fg_cpu_slots slots =
            fg_cpu_row_slots(s->args, s->chunk, (s->first + m) / s->args->head_count);
        s->slots[m] = slots;
        s->all.begin = slots.begin > s->all.begin ? slots.begin : s->all.begin;
        s->all.end = slots.end < s->all.end ? slots.end : s->all.end;
        if (slots.begin < slots.end) {
            s->any.begin = slots.begin < s->any.begin ? slots.begin : s->any.begin;
            s->any.end = slots.end > s->any.end ? slots.end : s->any.end;
        }
    }
}

/* Points a strip at its part of the scratch and at what it writes in this chunk. */
static void begin_strip(const fg_cpu_attend *args, const chunk_pieces *pieces, uint32_t chunk,
                        uint32_t first, uint32_t count, strip *s)
{
    size_t record_floats = fg_cpu_record_floats(args->kv->head_dim);
    s->args = args;
    s->pieces = pieces;
    s->chunk = chunk;
    s->first = first;
    s->count = count;
    s->q = args->scratch->q + (size_t)first * Q_STRIDE;
    uint32_t share = copies_kv(args) ? 0 : first;
    s->scores = args->scratch->scores + (size_t)share * SCORES;
    s->fresh = args->record_count > 1 || chunk == args->chunk_first;
    find_slots(s);
    for (uint32_t m = 0; m < count; m++) {
        s->targets[m] = s->fresh ? fg_cpu_record(args, chunk, first + m)
                                 : args->scratch->part + (share + m) * record_floats;
        clear(s->targets[m], args->kv->head_dim);
    }
}

static void weigh_strip(const strip *s)
{
    for (uint32_t m = 0; m < s->count; m++) {
        if (s->slots[m].begin < s->slots[m].end) {
            weigh(s, m, s->scores + (size_t)m * SCORES, s->targets[m]);
        }
    }
}

static void end_strip(const strip *s)
{
    for (uint32_t m = 0; m < s->count && !s->fresh; m++) {
        merge(fg_cpu_record(s->args, s->chunk, s->first + m), s->targets[m], s->args->kv->head_dim);
    }
}

/* One tile on its way through one chunk. */
typedef struct tile_chunk {
    const strip_functions *functions;
    const chunk_pieces *pieces;
    uint32_t strip_count;
    size_t piece_bytes;
    strip strips[DIRECT_STRIPS];
} tile_chunk;

/* A strip's share of what the tile fetches while it has CACHED_PIECES from `begin` on, where the
 * products do not fetch as they go. */
static void fetch_share(const tile_chunk *t, const uint8_t *const *after, uint32_t begin,
                        uint32_t share)
{
    uint32_t end = begin + CACHED_PIECES < t->pieces->end ? begin + CACHED_PIECES : t->pieces->end;
    for (uint32_t piece = begin + share; piece < end && t->strip_count > 1;
         piece += t->strip_count) {
        for (size_t at = 0; at < t->piece_bytes; at += 64) {
            fetch(after[piece] + at);
        }
    }
}

/* The first or the last pass over a chunk, some pieces at a time. */
static void pass(const tile_chunk *t, bool over_values)
{
    const chunk_pieces *pieces = t->pieces;
    uint32_t count = t->strip_count == 1 ? PIECES : CACHED_PIECES;
    for (uint32_t at = pieces->begin; at < pieces->end; at += count) {
        for (uint32_t i = 0; i < t->strip_count; i++) {
            const strip *s = &t->strips[i];
            const strip_functions *functions = &t->functions[s->count - 1];
            fetch_share(t, over_values ? pieces->after_values : pieces->after_keys, at, i);
            if (over_values) {
                functions->values(s, at * PIECE, (at + count) * PIECE);
            } else {
                functions->scores(s, at, at + count);
            }
        }
    }
}

static void run_chunk(const fg_cpu_attend *args, const chunk_pieces *pieces, uint32_t chunk)
{
    uint32_t tile_count = args->row_count * args->head_count;
    tile_chunk t = { .functions = functions_of(args->kv->dtype),
                     .pieces = pieces,
                     .strip_count = strip_count_of(args),
                     .piece_bytes = piece_bytes_of(args->kv) };
    uint32_t size = (tile_count + t.strip_count - 1) / t.strip_count;
    for (uint32_t i = 0; i < t.strip_count; i++) {
        uint32_t left = tile_count - i * size;
        begin_strip(args, pieces, chunk, i * size, left < size ? left : size, &t.strips[i]);
    }
    pass(&t, false);
    for (uint32_t i = 0; i < t.strip_count; i++) {
        weigh_strip(&t.strips[i]);
    }
    pass(&t, true);
    for (uint32_t i = 0; i < t.strip_count; i++) {
        end_strip(&t.strips[i]);
    }
}

/* Copies pieces to where they follow each other and points `at` there. */
static void copy_side(const chunk_pieces *pieces, size_t piece_bytes, const uint8_t **at,
                      uint8_t *to)
{
    for (uint32_t i = pieces->begin; i < pieces->end; i++) {
        uint32_t later = i + COPY_AHEAD < pieces->end ? i + COPY_AHEAD : pieces->end - 1;
        for (size_t byte = 0; byte < piece_bytes; byte += 64) {
            fetch(at[later] + byte);
            for (size_t half = byte; half < byte + 64; half += 32) {
                __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(at[i] + half));
                _mm256_store_si256((__m256i *)(void *)(to + i * piece_bytes + half), x);
            }
        }
        at[i] = to + i * piece_bytes;
    }
    for (uint32_t i = pieces->end; i < pieces->end + 3; i++) {
        at[i] = at[pieces->end - 1];
    }
}

/* Pieces of one head lie far apart in the arena, often by a power of two: read again and again, they
 * would drive each other out of the caches. */
static void copy_pieces(const fg_cpu_attend *args, chunk_pieces *pieces)
{
    size_t piece_bytes = piece_bytes_of(args->kv);
    copy_side(pieces, piece_bytes, pieces->keys, args->scratch->copies[0]);
    copy_side(pieces, piece_bytes, pieces->values, args->scratch->copies[1]);
    for (uint32_t i = pieces->begin; i < pieces->end + 3; i++) {
        pieces->after_keys[i] = pieces->keys[i];
        pieces->after_values[i] = pieces->values[i];
    }
    pieces->run = FG_ATTEND_CHUNK;
}

/* Many strips: each on its own through copies of K and V that stay in the second-level cache. */
static void run_copied_chunks(const fg_cpu_attend *args)
{
    const strip_functions *functions = functions_of(args->kv->dtype);
    uint32_t tile_count = args->row_count * args->head_count;
    uint32_t strip_count = strip_count_of(args);
    uint32_t size = (tile_count + strip_count - 1) / strip_count;
    for (uint32_t chunk = args->chunk_first; chunk < args->chunk_end; chunk++) {
        chunk_pieces pieces;
        find_pieces(args, chunk, &pieces);
        copy_pieces(args, &pieces);
        for (uint32_t first = 0; first < tile_count; first += size) {
            strip s;
            uint32_t left = tile_count - first;
            begin_strip(args, &pieces, chunk, first, left < size ? left : size, &s);
            functions[s.count - 1].scores(&s, pieces.begin, pieces.end);
            weigh_strip(&s);
            functions[s.count - 1].values(&s, pieces.begin * PIECE, pieces.end * PIECE);
            end_strip(&s);
        }
    }
}

static void scale_q(const fg_cpu_attend *args, uint32_t tile_count)
{
    __m256 factor = _mm256_set1_ps(fg_cpu_attend_factor(args));
    for (uint32_t index = 0; index < tile_count; index++) {
        const float *q = fg_cpu_attend_q(args, index);
        float *scaled = args->scratch->q + (size_t)index * Q_STRIDE;
        for (uint32_t d = 0; d < args->kv->head_dim; d += 8) {
            _mm256_store_ps(scaled + d, _mm256_mul_ps(_mm256_loadu_ps(q + d), factor));
        }
    }
}

/* One or two strips, as in decode: straight from the arena, fetching ahead. */
static void run_direct_chunks(const fg_cpu_attend *args)
{
    chunk_pieces pieces[2];
    if (args->chunk_first < args->chunk_end) {
        find_pieces(args, args->chunk_first, &pieces[args->chunk_first % 2]);
    }
    for (uint32_t chunk = args->chunk_first; chunk < args->chunk_end; chunk++) {
        chunk_pieces *next = chunk + 1 < args->chunk_end ? &pieces[(chunk + 1) % 2] : NULL;
        if (next != NULL) {
            find_pieces(args, chunk + 1, next);
        }
        find_after(&pieces[chunk % 2], next, strip_count_of(args) == 1 ? AHEAD : CACHED_PIECES);
        run_chunk(args, &pieces[chunk % 2], chunk);
    }
}

static void finish(const fg_cpu_attend *args, uint32_t index)
{
    uint32_t head_dim = args->kv->head_dim;
    float *state = fg_cpu_record(args, args->record_first, index);
    for (uint32_t i = 1; i < args->record_count; i++) {
        merge(state, fg_cpu_record(args, args->record_first + i, index), head_dim);
    }
    __m256 inverse = _mm256_set1_ps(1.0f / state[FG_ATTEND_SUM]);
    float *out = fg_cpu_attend_out(args, index);
    for (uint32_t d = 0; d < head_dim; d += 8) {
        __m256 o = _mm256_load_ps(state + FG_ATTEND_HEAD + d);
        _mm256_storeu_ps(out + d, _mm256_mul_ps(o, inverse));
    }
}

void fg_cpu_avx2_attend(const fg_cpu_attend *args)
{
    if (args->kv->head_dim % 8 != 0 || args->kv->head_dim > DIMS || args->kv->block_size < PIECE) {
        fg_cpu_plain_attend(args);
        return;
    }
    uint32_t tile_count = args->row_count * args->head_count;
    scale_q(args, args->chunk_first < args->chunk_end ? tile_count : 0);
    if (copies_kv(args)) {
        run_copied_chunks(args);
    } else {
        run_direct_chunks(args);
    }
    for (uint32_t index = 0; index < tile_count && args->finish; index++) {
        finish(args, index);
    }
}
