/*
 * strip - attention for vector kernels, the arithmetic of plain_attend.c. A strip, some (row, head)s of a
 * tile, goes through a chunk in three passes: scores as a product of q with the keys, whose layout puts 16
 * slots side by side; weights; their product with the values. Both products are register tiles that each
 * instruction set has its own of; the way through a tile is the same for all and in strip.c. Where a tile
 * has many strips, the chunk's K and V are copied first, to where they follow each other; else the strips
 * take a few pieces before the next ones are read, so that these come from the first-level cache.
 */
#ifndef FORGE_KERNELS_CPU_STRIP_H
#define FORGE_KERNELS_CPU_STRIP_H

#include "kernels/cpu/attend.h"
#include "kernels/cpu/math.h"

enum {
    FG_STRIP_MAX = 16,
    FG_STRIP_DIRECT = 2, /* strips of a KV head at most that read the arena; more read a copy */
    FG_STRIP_PIECES = FG_ATTEND_CHUNK / FG_KV_PIECE,
    FG_STRIP_CHAIN = FG_CPU_CHAIN_COLUMNS, /* bf16: dimensions or slots of a chain (ops.h) */
    FG_STRIP_PIECES_PADDED = FG_STRIP_PIECES + 4,
    FG_STRIP_Q = FG_ATTEND_Q,
    /* int8: the words of q that hold the factor of its sums of products, and -128 times the sum of its bytes. */
    FG_STRIP_Q_FACTOR = FG_ATTEND_COPY_DIMS,
    FG_STRIP_Q_NEGATED = FG_ATTEND_COPY_DIMS + 1,
};

/* Where one chunk's K and V of a unit's first KV head lie, a pointer per piece of 16 slots, and what is fetched
 * meanwhile. Up to three pieces beyond the last repeat it, for register tiles of several pieces. */
typedef struct fg_strip_pieces {
    const uint8_t *keys[FG_STRIP_PIECES_PADDED];
    const uint8_t *values[FG_STRIP_PIECES_PADDED];
    const float *key_scales[FG_STRIP_PIECES_PADDED];
    const float *value_scales[FG_STRIP_PIECES_PADDED];
    const uint8_t *after_keys[FG_STRIP_PIECES_PADDED];
    const uint8_t *after_values[FG_STRIP_PIECES_PADDED];
    uint32_t begin;
    uint32_t end;
    uint32_t run; /* slots whose values follow each other: a piece, in a copy all */
    bool whole;   /* every row of the tile sees every slot of the chunk */
} fg_strip_pieces;

/* Pairs of records that saw slots, each to become one, as ops.h says. */
typedef struct fg_strip_merge {
    uint32_t count;
    float *states[FG_STRIP_MAX];
    const float *records[FG_STRIP_MAX];
    _Alignas(64) float before
        [FG_STRIP_MAX]; /* the states' factors, the records', and the larger maxima */
    _Alignas(64) float now[FG_STRIP_MAX];
    _Alignas(64) float maxima[FG_STRIP_MAX];
} fg_strip_merge;

/* One strip on its way through one chunk. */
typedef struct fg_strip {
    const fg_cpu_attend *args;
    const fg_strip_pieces *pieces;
    size_t offset; /* bytes from there to where its KV head's lie */
    uint32_t chunk;
    uint32_t first; /* (row, head) of the tile */
    uint32_t count;
    const float *q; /* [(row, head)][FG_STRIP_Q], as pack_q writes it */
    float *scores;  /* [(row, head)][FG_ATTEND_SCORES]; of int8 first sums; then weights */
    bool fresh;     /* targets are records, else records are still to be merged with them */
    float *targets[FG_STRIP_MAX];
    fg_cpu_slots slots[FG_STRIP_MAX];
    fg_cpu_slots any; /* slots that some row sees */
    fg_cpu_slots all; /* slots that every row sees, of bf16 whole blocks; may be empty */
    bool even;        /* all rows see these and no others, whole pieces */
    bool begins; /* nothing has been written to the targets' outputs: all values come in one call */
    /* Instead of being written, the outputs of `begins` are merged with these states; else NULL. */
    const fg_strip_merge *joins;
} fg_strip;

/* The two products of strips of one number of (row, head)s. */
typedef struct fg_strip_products {
    /* Scores of the pieces begin .. end - 1; of int8 the exact sums of products. */
    void (*scores)(const fg_strip *s, uint32_t begin, uint32_t end);
    /* Adds to the targets' outputs what the slots begin .. end - 1 give, of which each row has its own: whole
     * blocks of bf16, unless the chunk's pieces begin or end within one; `all` has whole blocks always. Of int8
     * these are exact sums again, and what a row does not see weighs nothing there, in whole pieces. */
    void (*values)(const fg_strip *s, uint32_t begin, uint32_t end);
} fg_strip_products;

/* Rows of a strip that see something of a chunk. */
typedef struct fg_strip_rows {
    uint32_t count;
    float *scores[FG_STRIP_MAX];
    float *records[FG_STRIP_MAX];
    const float *const *value_scales; /* int8's, by piece */
} fg_strip_rows;

/* For instruction sets that do it one by one. */
static inline void fg_strip_find_factors(fg_strip_merge *m)
{
    for (uint32_t i = 0; i < m->count; i++) {
        m->maxima[i] =
            fg_cpu_merge_factors(m->states[i][0], m->records[i][0], &m->before[i], &m->now[i]);
    }
}

/* What an instruction set brings. Slots begin and end at pieces, outputs are whole vectors. */
typedef struct fg_strip_kernels {
    uint32_t strip_max; /* (row, head)s, FG_STRIP_MAX at most */
    uint32_t dim_step;  /* divides the head size, else attention is plain's */
    uint32_t ahead;     /* pieces that a tile of one strip fetches ahead, eight at most */
    uint32_t together;  /* pieces whose values it multiplies together, whole blocks; 0: a chunk's */
    bool begins;        /* values write outputs, instead of adding to them, where a strip says so */
    /* Before strips of so many (row, head)s that read a copy, and with 0 after the last; NULL: no need. */
    void (*set_rows)(uint32_t count);
    const fg_strip_products *(*products)(uint32_t dtype); /* [count - 1] */
    void (*pack_q)(uint32_t dtype, const float *q, float factor, uint32_t head_dim, float *packed);
    /* Scores of begin .. end - 1 of some rows to weights in place; writes their maxima and sums, and int8's
     * factors. */
    void (*weigh)(uint32_t dtype, const fg_strip_rows *rows, uint32_t begin, uint32_t end);
    /* With a cache of this type: scores of the pieces begin .. end - 1 of a strip and, beside them, that share of
     * another strip's weights. Both have strip_max rows, which see the whole chunk. NULL: apart. */
    uint32_t beside_dtype;
    void (*scores_beside)(const fg_strip *s, uint32_t begin, uint32_t end,
                          const fg_strip_rows *rows);
    /* int8: sums of products to scores, and sums of weighted values to floats. */
    void (*settle_scores)(float *x, const float *const *scales, float factor, uint32_t begin,
                          uint32_t end);
    void (*settle_values)(float *x, float factor, uint32_t count);
    /* What pairs of records are multiplied by (fg_cpu_merge_factors), apart from merging them, so that it is known by
     * then. */
    void (*find_factors)(fg_strip_merge *m);
    void (*merge)(const fg_strip_merge *m, uint32_t head_dim);
    /* Where values can be merged as they are made: the factors of strip_max pairs, whose maxima and sums are merged
     * here; false, having done nothing, where one of them saw no slot. Not of int8. NULL: merged afterwards. */
    bool (*join)(fg_strip_merge *m);
    void (*multiply)(const float *x, float factor, uint32_t count, float *out);
    /* A number of elements, a multiple of 64, to where many strips read them: f16 as floats, the others as
     * they are. */
    void (*copy)(uint32_t dtype, uint8_t *to, const uint8_t *from, size_t count);
    /* Instead of that: a piece of K, or of V, to where this instruction set wants it; fresh: the piece of V before it
     * was not copied. NULL: as `copy` does. */
    void (*lay_out)(bool values, uint32_t piece, bool fresh, uint8_t *to, const uint8_t *from,
                    uint32_t head_dim);
    /* Products over copies of bf16, [count - 1], that `lay_out` writes as floats; NULL: it leaves them as they are. */
    const fg_strip_products *widened;
} fg_strip_kernels;

/* For strips of up to six: products_KIND, of functions that do scores(kind, M, s, begin, end) and values(...). */
#define FG_STRIP_PRODUCT(kind, M, scores, values)                                                  \
    static void scores_##kind##_##M(const fg_strip *s, uint32_t begin, uint32_t end)               \
    {                                                                                              \
        scores(kind, M, s, begin, end);                                                            \
    }                                                                                              \
    static void values_##kind##_##M(const fg_strip *s, uint32_t begin, uint32_t end)               \
    {                                                                                              \
        values(kind, M, s, begin, end);                                                            \
    }
#define FG_STRIP_SIX(kind, scores, values)                                                         \
    FG_STRIP_PRODUCT(kind, 1, scores, values)                                                      \
    FG_STRIP_PRODUCT(kind, 2, scores, values)                                                      \
    FG_STRIP_PRODUCT(kind, 3, scores, values)                                                      \
    FG_STRIP_PRODUCT(kind, 4, scores, values)                                                      \
    FG_STRIP_PRODUCT(kind, 5, scores, values)                                                      \
    FG_STRIP_PRODUCT(kind, 6, scores, values)                                                      \
    static const fg_strip_products products_##kind[] = {                                           \
        { scores_##kind##_1, values_##kind##_1 }, { scores_##kind##_2, values_##kind##_2 },        \
        { scores_##kind##_3, values_##kind##_3 }, { scores_##kind##_4, values_##kind##_4 },        \
        { scores_##kind##_5, values_##kind##_5 }, { scores_##kind##_6, values_##kind##_6 },        \
    };

static inline const fg_strip_products *fg_strip_choose(uint32_t dtype, const fg_strip_products *f32,
                                                       const fg_strip_products *f16,
                                                       const fg_strip_products *bf16,
                                                       const fg_strip_products *int8)
{
    switch (dtype) {
    case FG_F32:
        return f32;
    case FG_F16:
        return f16;
    case FG_BF16:
        return bf16;
    default:
        return int8;
    }
}

void fg_strip_attend(const fg_strip_kernels *kernels, const fg_cpu_attend *args);

/* Where a piece of its KV head lies, and what is fetched meanwhile. */
static inline const uint8_t *fg_strip_keys(const fg_strip *s, uint32_t piece)
{
    return s->pieces->keys[piece] + s->offset;
}

static inline const uint8_t *fg_strip_values(const fg_strip *s, uint32_t piece)
{
    return s->pieces->values[piece] + s->offset;
}

static inline const uint8_t *fg_strip_after_keys(const fg_strip *s, uint32_t piece)
{
    return s->pieces->after_keys[piece] + s->offset;
}

static inline const uint8_t *fg_strip_after_values(const fg_strip *s, uint32_t piece)
{
    return s->pieces->after_values[piece] + s->offset;
}

/* What both lie in: slots of `slots` that are in begin .. end - 1. */
static inline fg_cpu_slots fg_strip_clip(fg_cpu_slots slots, uint32_t begin, uint32_t end)
{
    begin = slots.begin > begin ? slots.begin : begin;
    end = slots.end < end ? slots.end : end;
    return (fg_cpu_slots){ .begin = begin, .end = end > begin ? end : begin };
}

/* Pieces of begin .. end - 1 that some row of the strip sees. */
static inline fg_cpu_slots fg_strip_seen(const fg_strip *s, uint32_t begin, uint32_t end)
{
    uint32_t last = (s->any.end + FG_KV_PIECE - 1) / FG_KV_PIECE;
    return fg_strip_clip((fg_cpu_slots){ .begin = s->any.begin / FG_KV_PIECE, .end = last }, begin,
                         end);
}

/* The slots of these pieces, for begin and end at pieces. */
static inline fg_cpu_slots fg_strip_seen_slots(const fg_strip *s, uint32_t begin, uint32_t end)
{
    fg_cpu_slots seen = fg_strip_seen(s, begin / FG_KV_PIECE, end / FG_KV_PIECE);
    return (fg_cpu_slots){ .begin = seen.begin * FG_KV_PIECE, .end = seen.end * FG_KV_PIECE };
}

/* Slots of begin .. end - 1 that row m sees before those that all rows see, and after them; where there are none
 * that all see, those before are all that it sees. */
static inline fg_cpu_slots fg_strip_before(const fg_strip *s, uint32_t m, uint32_t begin,
                                           uint32_t end)
{
    bool shared = s->all.begin < s->all.end && s->all.begin < end;
    return fg_strip_clip(s->slots[m], begin, shared ? s->all.begin : end);
}

static inline fg_cpu_slots fg_strip_after(const fg_strip *s, uint32_t m, uint32_t begin,
                                          uint32_t end)
{
    bool shared = s->all.begin < s->all.end;
    uint32_t from = shared && s->all.end > begin ? s->all.end : shared ? begin : end;
    return fg_strip_clip(s->slots[m], from, end);
}

#endif
