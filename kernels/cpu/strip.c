#include "kernels/cpu/strip.h"

#include <string.h>

#include "kernels/cpu/plain.h"

enum {
    PIECE = FG_KV_PIECE,
    BLOCK = 2 * PIECE, /* slots of two chains of bf16 */
    AHEAD_MAX = 8,     /* pieces that an instruction set may fetch ahead */
    CACHED_PIECES = 4, /* that all strips take before the next ones */
    COPY_AHEAD = 2,    /* pieces fetched ahead of the one being copied */
    FETCH_SHARES =
        4, /* parts of a strip's scores, between which a part of the next chunk is fetched */
    MOVED_BYTES_MAX = 512 << 10,
};

_Static_assert(FG_STRIP_DIRECT *FG_STRIP_MAX <= FG_ATTEND_UNDER_WAY, "no room for strips");
_Static_assert(2 * FG_STRIP_MAX <= FG_ATTEND_UNDER_WAY, "no room for a strip beside another");

/* One unit of attention: a tile and its chunks, for one KV head or several side by side. */
typedef struct walk {
    const fg_strip_kernels *kernels;
    const fg_cpu_attend *args; /* of the first KV head */
    const fg_strip_products *products;
    uint32_t tile_count; /* (row, head)s of a KV head */
    uint32_t strip_count;
    uint32_t strip_size; /* (row, head)s of all strips but the last */
    size_t piece_bytes;
    const fg_strip_products *copy_products; /* the same for copies of K and V */
    size_t copy_bytes;                      /* of a piece */
} walk;

/* Whether the instruction set widens bf16 where K and V are copied. */
static bool widens(const fg_strip_kernels *kernels, uint32_t dtype)
{
    return dtype == FG_BF16 && kernels->widened != NULL;
}

/* Many strips would widen the same f16 again and again: a copy has floats. bf16 and int8 are mostly multiplied as they
 * are, or are quick to widen. */
static uint32_t copy_dtype(const fg_strip_kernels *kernels, uint32_t dtype)
{
    return dtype == FG_F16 || widens(kernels, dtype) ? FG_F32 : dtype;
}

static walk walk_of(const fg_strip_kernels *kernels, const fg_cpu_attend *args)
{
    uint32_t tile_count = args->row_count * args->head_count;
    uint32_t strip_count = (tile_count + kernels->strip_max - 1) / kernels->strip_max;
    const fg_paged_kv *kv = args->kv;
    uint32_t copied = copy_dtype(kernels, kv->dtype);
    size_t piece_count = (size_t)PIECE * kv->head_dim;
    return (walk){ .kernels = kernels,
                   .args = args,
                   .products = kernels->products(kv->dtype),
                   .tile_count = tile_count,
                   .strip_count = strip_count,
                   .strip_size = (tile_count + strip_count - 1) / strip_count,
                   .piece_bytes = piece_count * fg_dtype_kv_bytes(kv->dtype),
                   .copy_products =
                       widens(kernels, kv->dtype) ? kernels->widened : kernels->products(copied),
                   .copy_bytes = piece_count * fg_dtype_kv_bytes(copied) };
}

/* Whether so many strips read K and V that copying them first pays. */
static bool copies_kv(const walk *w)
{
    return w->strip_count > FG_STRIP_DIRECT;
}

/* The pieces of a chunk that the tile sees, `most` of them, for the first KV head. */
static void find_pieces(const walk *w, uint32_t chunk, uint32_t most, fg_strip_pieces *pieces)
{
    const fg_cpu_attend *args = w->args;
    const fg_paged_kv *kv = args->kv;
    fg_cpu_slots first = fg_cpu_row_slots(args, chunk, 0);
    fg_cpu_slots last = fg_cpu_row_slots(args, chunk, args->row_count - 1);
    pieces->whole = last.begin == 0 && first.begin == 0 && first.end == FG_ATTEND_CHUNK;
    pieces->begin = first.begin / PIECE;
    pieces->end = (last.end + PIECE - 1) / PIECE;
    pieces->end = pieces->end - pieces->begin < most ? pieces->end : pieces->begin + most;
    for (uint32_t i = pieces->begin; i < pieces->end + 3; i++) {
        uint32_t in_chunk = i < pieces->end ? i : pieces->end - 1;
        uint32_t slot = chunk * FG_ATTEND_CHUNK + in_chunk * PIECE;
        uint8_t *keys = fg_cpu_kv_region(kv, args->block_ids, kv->key_offset, args->kv_head, slot);
        uint8_t *values = keys + kv->value_offset - kv->key_offset;
        size_t at = slot % kv->block_size / PIECE * w->piece_bytes;
        pieces->keys[i] = keys + at;
        pieces->values[i] = values + at;
        pieces->key_scales[i] = fg_cpu_kv_scale(kv, keys, slot);
        pieces->value_scales[i] = fg_cpu_kv_scale(kv, values, slot);
    }
    pieces->run = PIECE;
}

/* What is read `ahead` pieces later: keys, then values, then the next chunk's keys. */
static void find_after(fg_strip_pieces *now, const fg_strip_pieces *next, uint32_t ahead)
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

static void find_uneven_slots(fg_strip *s)
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
    if (s->args->kv->dtype == FG_BF16) {
        s->all.begin = (s->all.begin + BLOCK - 1) / BLOCK * BLOCK;
        s->all.end = s->all.end / BLOCK * BLOCK;
    }
}

/* Later rows begin and end no earlier, so the first and the last one tell about all. */
static void find_slots(fg_strip *s)
{
    const fg_cpu_attend *args = s->args;
    if (s->pieces->whole) {
        s->even = true;
        s->any = s->all = (fg_cpu_slots){ .begin = 0, .end = FG_ATTEND_CHUNK };
        for (uint32_t m = 0; m < s->count; m++) {
            s->slots[m] = s->all;
        }
        return;
    }
    uint32_t first_row = s->first / args->head_count;
    uint32_t last_row = (s->first + s->count - 1) / args->head_count;
    fg_cpu_slots first = fg_cpu_row_slots(args, s->chunk, first_row);
    fg_cpu_slots last = fg_cpu_row_slots(args, s->chunk, last_row);
    uint32_t block = args->kv->dtype == FG_BF16 ? BLOCK : PIECE;
    s->even = first.begin == last.begin && first.end == last.end && first.begin < first.end &&
              first.begin % block == 0 && first.end % block == 0;
    s->any = first;
    s->all = first;
    for (uint32_t m = 0; m < s->count && s->even; m++) {
        s->slots[m] = first;
    }
    if (!s->even) {
        find_uneven_slots(s);
    }
}

/* Points the strip of a KV head that begins at `first` to its part of the scratch, from the `share`th row on, and to
 * what it writes in this chunk. */
static void begin_strip(const walk *w, const fg_cpu_attend *args, const fg_strip_pieces *pieces,
                        uint32_t chunk, uint32_t first, uint32_t share, fg_strip *s)
{
    size_t record_floats = fg_cpu_record_floats(args->kv->head_dim);
    uint32_t left = w->tile_count - first;
    s->args = args;
    s->pieces = pieces;
    s->offset = (args->kv_head - w->args->kv_head) * args->kv->head_bytes;
    s->chunk = chunk;
    s->first = first;
    s->count = left < w->strip_size ? left : w->strip_size;
    s->q = args->scratch->q + (size_t)(args->scratch_first + first) * FG_STRIP_Q;
    s->scores = args->scratch->scores + (size_t)share * FG_ATTEND_SCORES;
    s->fresh = args->record_count > 1 || chunk == args->chunk_first;
    find_slots(s);
    float *targets =
        s->fresh ? fg_cpu_record(args, chunk, first) : args->scratch->part + share * record_floats;
    for (uint32_t m = 0; m < s->count; m++) {
        s->targets[m] = targets + m * record_floats; /* side by side */
    }
    s->begins = w->kernels->begins && s->even && copies_kv(w);
    if (!s->begins) {
        memset(targets, 0, s->count * record_floats * sizeof *targets);
    }
    s->joins = NULL;
}

/* Slots that a row does not see, in the pieces where `any` begins and ends, weigh nothing. */
static void hide_unseen(float *scores, fg_cpu_slots seen, uint32_t begin, uint32_t end)
{
    for (uint32_t j = begin; j < seen.begin; j++) {
        scores[j] = -__builtin_inff();
    }
    for (uint32_t j = seen.end; j < end; j++) {
        scores[j] = -__builtin_inff();
    }
}

/* Where the scales of a strip's KV head lie, of the pieces begin .. end - 1. */
typedef struct strip_scales {
    const float *keys[FG_STRIP_PIECES];
    const float *values[FG_STRIP_PIECES];
} strip_scales;

static void find_scales(const fg_strip *s, uint32_t begin, uint32_t end, strip_scales *scales)
{
    size_t offset = s->offset / sizeof(float);
    for (uint32_t i = begin; i < end; i++) {
        scales->keys[i] = s->pieces->key_scales[i] + offset;
        scales->values[i] = s->pieces->value_scales[i] + offset;
    }
}

/* The rows whose scores of the slots begin .. end - 1 become weights; scales: of int8. */
static void find_rows(const walk *w, const fg_strip *s, uint32_t begin, uint32_t end,
                      strip_scales *scales, fg_strip_rows *rows)
{
    uint32_t dtype = s->args->kv->dtype;
    rows->count = 0;
    rows->value_scales = scales->values;
    if (dtype == FG_I8) {
        find_scales(s, begin / PIECE, end / PIECE, scales);
    }
    for (uint32_t m = 0; m < s->count; m++) {
        float *scores = s->scores + (size_t)m * FG_ATTEND_SCORES;
        if (s->slots[m].begin >= s->slots[m].end) {
            continue; /* its record has a sum of 0, whatever is added to it */
        }
        if (dtype == FG_I8) {
            w->kernels->settle_scores(scores, scales->keys,
                                      s->q[m * FG_STRIP_Q + FG_STRIP_Q_FACTOR], begin, end);
        }
        if (!s->even) {
            hide_unseen(scores, s->slots[m], begin, end);
        }
        rows->scores[rows->count] = scores;
        rows->records[rows->count++] = s->targets[m];
    }
}

static void weigh_strip(const walk *w, const fg_strip *s)
{
    uint32_t begin = s->any.begin / PIECE * PIECE;
    uint32_t end = (s->any.end + PIECE - 1) / PIECE * PIECE;
    fg_strip_rows rows;
    strip_scales scales;
    find_rows(w, s, begin, end, &scales, &rows);
    w->kernels->weigh(s->args->kv->dtype, &rows, begin, end);
}

/* What merges some records with what came before, a record with a sum of 0 having seen no slot. Maxima and sums of both
 * are there, outputs may still be to come. */
static void find_merge(const walk *w, uint32_t count, float *const *states, float *const *records,
                       fg_strip_merge *m)
{
    m->count = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (records[i][FG_ATTEND_SUM] != 0.0f) {
            m->states[m->count] = states[i];
            m->records[m->count++] = records[i];
        }
    }
    if (m->count > 0) {
        w->kernels->find_factors(m);
    }
}

/* States that saw nothing have a factor of no meaning, and are written over. */
static void merge(const walk *w, const fg_strip_merge *m)
{
    uint32_t head_dim = w->args->kv->head_dim;
    bool begun[FG_STRIP_MAX];
    for (uint32_t i = 0; i < m->count; i++) {
        begun[i] = m->states[i][FG_ATTEND_SUM] != 0.0f;
    }
    if (m->count > 0) {
        w->kernels->merge(m, head_dim);
    }
    for (uint32_t i = 0; i < m->count; i++) {
        if (!begun[i]) {
            memcpy(m->states[i], m->records[i], fg_cpu_record_floats(head_dim) * sizeof(float));
        }
    }
}

/* Before the product of a strip's weights with the values, which hides how long it takes. */
static void find_strip_merge(const walk *w, const fg_strip *s, fg_strip_merge *m)
{
    float *states[FG_STRIP_MAX];
    for (uint32_t i = 0; i < s->count && !s->fresh; i++) {
        states[i] = fg_cpu_record(s->args, s->chunk, s->first + i);
    }
    find_merge(w, s->fresh ? 0 : s->count, states, s->targets, m);
}

/* After that product. */
static void end_strip(const walk *w, const fg_strip *s, const fg_strip_merge *m)
{
    for (uint32_t i = 0; i < s->count && s->args->kv->dtype == FG_I8; i++) {
        float *target = s->targets[i];
        w->kernels->settle_values(target + FG_ATTEND_HEAD, target[FG_ATTEND_FACTOR],
                                  s->args->kv->head_dim);
    }
    merge(w, m);
}

/* A strip's share of what is fetched while its KV head has CACHED_PIECES from `begin` on, where the products do not
 * fetch as they go. */
static void fetch_share(const walk *w, const fg_strip *s, const uint8_t *const *after,
                        uint32_t begin)
{
    const fg_strip_pieces *pieces = s->pieces;
    uint32_t end = begin + CACHED_PIECES < pieces->end ? begin + CACHED_PIECES : pieces->end;
    for (uint32_t piece = begin + s->first / w->strip_size; piece < end && w->strip_count > 1;
         piece += w->strip_count) {
        for (size_t at = 0; at < w->piece_bytes; at += 64) {
            __builtin_prefetch(after[piece] + s->offset + at);
        }
    }
}

/* Strips of one KV head share what the first-level cache holds; those of several heads read a few pieces each, so that
 * memory is read where it was read just before. One strip alone reads a piece's values column by column: of a whole
 * chunk, what is fetched a few pieces ahead would come too late. */
static uint32_t pieces_together(const walk *w, bool over_values)
{
    uint32_t few = w->kernels->together > 0 ? w->kernels->together : CACHED_PIECES;
    if (w->args->kv_head_count > 1) {
        return few;
    }
    return w->strip_count > 1                        ? CACHED_PIECES
           : over_values && w->kernels->together > 0 ? few
                                                     : FG_STRIP_PIECES;
}

/* The first or the last pass of all strips over a chunk, some pieces at a time. */
static void pass(const walk *w, const fg_strip_pieces *pieces, const fg_strip *strips,
                 uint32_t strip_count, bool over_values)
{
    uint32_t count = pieces_together(w, over_values);
    uint32_t end;
    for (uint32_t at = pieces->begin; at < pieces->end; at = end) {
        end = (at / count + 1) * count; /* whole blocks of bf16 */
        for (uint32_t i = 0; i < strip_count; i++) {
            const fg_strip *s = &strips[i];
            const fg_strip_products *products = &w->products[s->count - 1];
            fetch_share(w, s, over_values ? pieces->after_values : pieces->after_keys, at);
            if (over_values) {
                products->values(s, at * PIECE, end * PIECE);
            } else {
                products->scores(s, at, end);
            }
        }
    }
}

static void run_chunk(const walk *w, const fg_strip_pieces *pieces, uint32_t chunk)
{
    fg_strip strips[FG_ATTEND_UNDER_WAY];
    fg_strip_merge merges[FG_ATTEND_UNDER_WAY];
    uint32_t count = w->args->kv_head_count * w->strip_count;
    FG_ASSERT(count > 0 && count <= FG_ATTEND_UNDER_WAY, "no room for strips");
    for (uint32_t i = 0; i < count; i++) {
        const fg_cpu_attend *args = &w->args[i / w->strip_count];
        uint32_t first = i % w->strip_count * w->strip_size;
        begin_strip(w, args, pieces, chunk, first, i / w->strip_count * w->tile_count + first,
                    &strips[i]);
    }
    pass(w, pieces, strips, count, false);
    for (uint32_t i = 0; i < count; i++) {
        weigh_strip(w, &strips[i]);
        find_strip_merge(w, &strips[i], &merges[i]);
    }
    pass(w, pieces, strips, count, true);
    for (uint32_t i = 0; i < count; i++) {
        end_strip(w, &strips[i], &merges[i]);
    }
}

/* The pieces that follow a chunk's, in this unit or at the beginning of the next one; false: nobody knows. */
static bool find_following(const walk *w, uint32_t chunk, fg_strip_pieces *pieces)
{
    const fg_cpu_attend *next = w->args->next;
    if (chunk + 1 < w->args->chunk_end) {
        find_pieces(w, chunk + 1, FG_STRIP_PIECES, pieces);
        return true;
    }
    if (next == NULL || next->chunk_first == next->chunk_end) {
        return false;
    }
    walk following = walk_of(w->kernels, next);
    if (copies_kv(&following)) {
        return false;
    }
    find_pieces(&following, next->chunk_first, AHEAD_MAX, pieces);
    return true;
}

/* One or two strips of a KV head, as in decode: straight from the arena, fetching ahead. */
static void run_direct_chunks(const walk *w)
{
    const fg_cpu_attend *args = w->args;
    bool alone = args->kv_head_count * w->strip_count == 1;
    fg_strip_pieces pieces[2];
    find_pieces(w, args->chunk_first, FG_STRIP_PIECES, &pieces[args->chunk_first % 2]);
    for (uint32_t chunk = args->chunk_first; chunk < args->chunk_end; chunk++) {
        fg_strip_pieces *next = &pieces[(chunk + 1) % 2];
        bool known = find_following(w, chunk, next);
        find_after(&pieces[chunk % 2], known ? next : NULL,
                   alone ? w->kernels->ahead : CACHED_PIECES);
        run_chunk(w, &pieces[chunk % 2], chunk);
    }
}

/* K and V of one chunk on their way to where their pieces follow each other, keys before values. Pieces of
 * one head lie far apart in the arena, often by a power of two: read again and again, they would drive
 * each other out of the caches. */
typedef struct moving {
    fg_strip_pieces from;
    fg_strip_pieces to; /* valid once all have moved */
    uint32_t count;     /* pieces of K and of V */
    uint32_t moved;
} moving;

/* Whether two chunks' copies leave room in a second-level cache of 1 MiB. */
static bool moves_ahead(const walk *w)
{
    return w->copy_bytes * FG_STRIP_PIECES * 4 <= MOVED_BYTES_MAX;
}

static void begin_move(const walk *w, uint32_t chunk, moving *m)
{
    uint32_t buffer = moves_ahead(w) ? chunk % 2 : 0;
    find_pieces(w, chunk, FG_STRIP_PIECES, &m->from);
    m->to = m->from;
    m->to.run = FG_ATTEND_CHUNK;
    m->count = 2 * (m->from.end - m->from.begin);
    m->moved = 0;
    for (uint32_t i = m->from.begin; i < m->from.end + 3; i++) {
        size_t at = (i < m->from.end ? i : m->from.end - 1) * w->copy_bytes;
        m->to.keys[i] = w->args->scratch->copies[buffer][0] + at;
        m->to.values[i] = w->args->scratch->copies[buffer][1] + at;
        m->to.after_keys[i] = m->to.keys[i];
        m->to.after_values[i] = m->to.values[i];
    }
}

static const uint8_t *piece_of(const fg_strip_pieces *pieces, uint32_t index)
{
    uint32_t count = pieces->end - pieces->begin;
    return index < count ? pieces->keys[pieces->begin + index]
                         : pieces->values[pieces->begin + index - count];
}

static void copy_piece(const walk *w, const moving *m, uint32_t index)
{
    const fg_paged_kv *kv = w->args->kv;
    uint32_t count = m->from.end - m->from.begin;
    uint8_t *to = (uint8_t *)(uintptr_t)piece_of(&m->to, index);
    const uint8_t *from = piece_of(&m->from, index);
    if (w->kernels->lay_out != NULL) {
        w->kernels->lay_out(index >= count, m->from.begin + index % count, index % count == 0, to,
                            from, kv->head_dim);
    } else {
        w->kernels->copy(kv->dtype, to, from, (size_t)PIECE * kv->head_dim);
    }
}

static void move(const walk *w, moving *m, uint32_t end)
{
    for (; m->moved < end; m->moved++) {
        uint32_t later = m->moved + COPY_AHEAD;
        for (size_t at = 0; at < w->piece_bytes && later < end; at += 64) {
            __builtin_prefetch(piece_of(&m->from, later) + at);
        }
        copy_piece(w, m, m->moved);
    }
}

/* Fetches the `share`th of FETCH_SHARES of the pieces moved .. end - 1. */
static void fetch_moves(const walk *w, const moving *m, uint32_t end, uint32_t share)
{
    size_t size_bytes = w->piece_bytes / 64 / FETCH_SHARES * 64;
    size_t first = share * size_bytes;
    size_t last = share + 1 == FETCH_SHARES ? w->piece_bytes : first + size_bytes;
    for (uint32_t i = m->moved; i < end; i++) {
        for (size_t at = first; at < last; at += 64) {
            __builtin_prefetch(piece_of(&m->from, i) + at);
        }
    }
}

/* Whether a strip's weights can be made beside another one's scores, and the other way round. */
static bool goes_beside(const walk *w, const fg_strip *s)
{
    return w->kernels->scores_beside != NULL && s->args->kv->dtype == w->kernels->beside_dtype &&
           s->count == w->kernels->strip_max && s->even &&
           s->any.end - s->any.begin == FG_ATTEND_CHUNK;
}

/* A strip's scores of a copied chunk and, beside them, the weights of `other` unless that is NULL, while pieces of the
 * next chunk up to `end` are fetched: a few at a time, because a processor waits when too many are on their way. */
static void score_copied_strip(const walk *w, const fg_strip *s, const fg_strip *other,
                               const moving *next, uint32_t end)
{
    const fg_strip_pieces *pieces = s->pieces;
    fg_strip_rows rows;
    strip_scales scales;
    if (other != NULL) {
        find_rows(w, other, 0, FG_ATTEND_CHUNK, &scales, &rows);
    }
    for (uint32_t share = 0; share < FETCH_SHARES; share++) {
        uint32_t first = share * FG_STRIP_PIECES / FETCH_SHARES;
        uint32_t last = (share + 1) * FG_STRIP_PIECES / FETCH_SHARES;
        fetch_moves(w, next, end, share);
        if (other != NULL) {
            w->kernels->scores_beside(s, first, last, &rows);
            continue;
        }
        w->copy_products[s->count - 1].scores(s, first > pieces->begin ? first : pieces->begin,
                                              last < pieces->end ? last : pieces->end);
    }
}

/* Whether the strip's values can be merged with what came before as they are made; they are then. */
static bool join_strip(const walk *w, const fg_strip *s, fg_strip_merge *m)
{
    const fg_strip_kernels *kernels = w->kernels;
    if (kernels->join == NULL || !s->begins || s->fresh || s->count != kernels->strip_max ||
        s->args->kv->dtype == FG_I8) {
        return false;
    }
    size_t record_floats = fg_cpu_record_floats(s->args->kv->head_dim);
    float *states = fg_cpu_record(s->args, s->chunk, s->first);
    m->count = s->count;
    for (uint32_t i = 0; i < s->count; i++) {
        m->states[i] = states + i * record_floats;
        m->records[i] = s->targets[i];
    }
    return kernels->join(m);
}

/* What is left of a strip that has weights. */
static void end_copied_strip(const walk *w, fg_strip *s)
{
    const fg_strip_pieces *pieces = s->pieces;
    fg_strip_merge m;
    bool joined = join_strip(w, s, &m);
    if (joined) {
        s->joins = &m;
    } else {
        find_strip_merge(w, s, &m);
    }
    w->copy_products[s->count - 1].values(s, pieces->begin * PIECE, pieces->end * PIECE);
    if (!joined) {
        end_strip(w, s, &m);
    }
}

static void set_rows(const walk *w, uint32_t count, uint32_t *rows)
{
    if (w->kernels->set_rows != NULL && count != *rows) {
        w->kernels->set_rows(count);
    }
    *rows = count;
}

/* Many strips, one after the other through copies of K and V that stay in the second-level cache, with pieces of the
 * next chunk moved there in between. A strip's weights wait for the next one's scores, where they can be made beside. */
static void run_copied_chunk(const walk *w, uint32_t chunk, const moving *now, moving *next,
                             uint32_t *rows)
{
    fg_strip strips[2];
    fg_strip *waits = NULL;
    for (uint32_t i = 0; i < w->strip_count; i++) {
        fg_strip *s = &strips[i % 2];
        uint32_t end = moves_ahead(w) ? next->count * (i + 1) / w->strip_count : 0;
        begin_strip(w, w->args, &now->to, chunk, i * w->strip_size, i % 2 * w->strip_size, s);
        bool beside = goes_beside(w, s);
        if (waits != NULL && !beside) { /* before rows are set that it may not have */
            weigh_strip(w, waits);
            end_copied_strip(w, waits);
            waits = NULL;
        }
        set_rows(w, s->count, rows);
        score_copied_strip(w, s, waits, next, end);
        if (waits != NULL) {
            end_copied_strip(w, waits);
        }
        waits = s;
        if (!beside || i + 1 == w->strip_count) {
            weigh_strip(w, s);
            end_copied_strip(w, s);
            waits = NULL;
        }
        move(w, next, end);
    }
}

static void run_copied_chunks(const walk *w)
{
    moving moves[2];
    uint32_t end = w->args->chunk_end;
    uint32_t rows = 0;
    begin_move(w, w->args->chunk_first, &moves[w->args->chunk_first % 2]);
    for (uint32_t chunk = w->args->chunk_first; chunk < end; chunk++) {
        moving *now = &moves[chunk % 2];
        moving *next = &moves[(chunk + 1) % 2];
        move(w, now, now->count);
        next->count = next->moved = 0;
        if (chunk + 1 < end) {
            begin_move(w, chunk + 1, next);
        }
        run_copied_chunk(w, chunk, now, next, &rows);
    }
    set_rows(w, 0, &rows);
}

static void pack_q(const walk *w, const fg_cpu_attend *args)
{
    for (uint32_t index = 0; index < w->tile_count; index++) {
        w->kernels->pack_q(args->kv->dtype, fg_cpu_attend_q(args, index),
                           fg_cpu_attend_factor(args), args->kv->head_dim,
                           args->scratch->q + (size_t)(args->scratch_first + index) * FG_STRIP_Q);
    }
}

static void finish(const walk *w, const fg_cpu_attend *args, uint32_t index)
{
    float *state = fg_cpu_record(args, args->record_first, index);
    for (uint32_t i = 1; i < args->record_count; i++) {
        float *record = fg_cpu_record(args, args->record_first + i, index);
        fg_strip_merge m;
        find_merge(w, 1, &state, &record, &m);
        merge(w, &m);
    }
    w->kernels->multiply(state + FG_ATTEND_HEAD, 1.0f / state[FG_ATTEND_SUM], args->kv->head_dim,
                         fg_cpu_attend_out(args, index));
}

/* Several KV heads that read copies take turns. */
static void run_copied_heads(const walk *w)
{
    walk alone = *w;
    for (uint32_t i = 0; i < w->args->kv_head_count; i++) {
        alone.args = &w->args[i];
        pack_q(&alone, alone.args);
        run_copied_chunks(&alone);
    }
}

static void run_direct_heads(const walk *w)
{
    for (uint32_t i = 0; i < w->args->kv_head_count; i++) {
        pack_q(w, &w->args[i]);
    }
    run_direct_chunks(w);
}

void fg_strip_attend(const fg_strip_kernels *kernels, const fg_cpu_attend *args)
{
    const fg_paged_kv *kv = args->kv;
    if (kv->head_dim % kernels->dim_step != 0 || kv->head_dim > FG_ATTEND_COPY_DIMS ||
        kv->block_size < PIECE) {
        fg_cpu_plain_attend(args);
        return;
    }
    walk w = walk_of(kernels, args);
    if (args->chunk_first < args->chunk_end) {
        if (copies_kv(&w)) {
            run_copied_heads(&w);
        } else {
            run_direct_heads(&w);
        }
    }
    for (uint32_t i = 0; i < args->kv_head_count * w.tile_count && args->finish; i++) {
        finish(&w, &args[i / w.tile_count], i % w.tile_count);
    }
}
