/*
 * attend - one unit of attention, which one thread computes: a tile of rows that follow each other in one
 * sequence, with query heads that share a KV head, over some of the chunks of ops.h. What a chunk gives
 * a (row, head) is a record: its maximum, its sum, its output. Records are merged in rising order of
 * chunks, at once or, where several units share the chunks of a tile, by the unit that ends last. Of small
 * tiles a unit has several KV heads side by side, whose K and V lie together in memory.
 */
#ifndef FORGE_KERNELS_CPU_ATTEND_H
#define FORGE_KERNELS_CPU_ATTEND_H

#include <stdbool.h>

#include "kernels/cpu/cpu.h"

enum {
    FG_ATTEND_TILE = 512,       /* (row, head)s of a tile at most */
    FG_ATTEND_TALL_TILE = 1024, /* of small heads, where the second-level cache has room for it */
    FG_ATTEND_TALL_DIMS = 64,
    FG_ATTEND_DIMS = 1024,     /* largest head, see common/kv/layout.c */
    FG_ATTEND_COPY_DIMS = 256, /* largest head that vector kernels copy */
    FG_ATTEND_COPY = FG_ATTEND_CHUNK * FG_ATTEND_COPY_DIMS * 4, /* bytes of a chunk's K or V */
    FG_ATTEND_HEAD = 16, /* floats of a record before its output; the first is the maximum */
    FG_ATTEND_SUM = 1,
    FG_ATTEND_FACTOR =
        2, /* int8: what the exact sums of its output are still to be multiplied by */
    /* The same for heads beyond COPY_DIMS, whose records fit into the same memory. */
    FG_ATTEND_WIDE_TILE = FG_ATTEND_TILE * FG_ATTEND_COPY_DIMS / FG_ATTEND_DIMS,
    FG_ATTEND_UNDER_WAY =
        32, /* (row, head)s that vector kernels hold scores and records of a chunk for */
    /* Scores of one (row, head): vector kernels write up to three pieces beyond the chunk. */
    FG_ATTEND_SCORES = FG_ATTEND_CHUNK + 4 * FG_KV_PIECE,
    FG_ATTEND_RECORD = FG_ATTEND_COPY_DIMS + FG_ATTEND_HEAD,
    /* Words from one (row, head)'s q to the next; 17 cache lines use all sets. */
    FG_ATTEND_Q = FG_ATTEND_COPY_DIMS + 16,
};

/* One thread's working memory. */
typedef struct fg_cpu_attend_scratch {
    _Alignas(64) float q[FG_ATTEND_TALL_TILE * FG_ATTEND_Q]; /* scaled; as the kernel likes it */
    _Alignas(64) float scores[FG_ATTEND_UNDER_WAY * FG_ATTEND_SCORES];
    _Alignas(64) float part[FG_ATTEND_UNDER_WAY * FG_ATTEND_RECORD];
    _Alignas(64) float records[FG_ATTEND_TILE * FG_ATTEND_RECORD];
    _Alignas(64) uint8_t copies[2][2][FG_ATTEND_COPY]; /* K and V of two chunks */
} fg_cpu_attend_scratch;
_Static_assert(FG_ATTEND_WIDE_TILE *(FG_ATTEND_DIMS + FG_ATTEND_HEAD) <=
                   FG_ATTEND_TILE * FG_ATTEND_RECORD,
               "records of wide heads");
_Static_assert(FG_ATTEND_TALL_TILE *(FG_ATTEND_TALL_DIMS + FG_ATTEND_HEAD) <=
                   FG_ATTEND_TILE * FG_ATTEND_RECORD,
               "records of tall tiles");

struct fg_cpu_attend {
    const fg_paged_kv *kv;
    const uint32_t *block_ids;
    const float *q;      /* of the first row's first head; its head_count heads are adjacent */
    float *out;          /* likewise */
    size_t row_stride;   /* floats from one row to the next, in q and out */
    uint32_t position;   /* of the first row; the others follow */
    uint32_t row_count;  /* row_count * head_count <= fg_cpu_attend_tile(...) */
    uint32_t head_count; /* query heads, all of kv_head */
    uint32_t kv_head;
    /* Of the first of several KV heads side by side: how many. The others' arguments follow it, and differ in what
     * belongs to a head. Together they have FG_ATTEND_UNDER_WAY (row, head)s at most, else there is one. */
    uint32_t kv_head_count;
    uint32_t scratch_first; /* (row, head)s of the scratch that are those of the heads before it */
    uint32_t window;
    float scale;
    uint32_t chunk_first; /* to compute: chunk_first .. chunk_end - 1 */
    uint32_t chunk_end;
    float *records;            /* [record][row][head] */
    uint32_t record_first;     /* the chunk of record 0 */
    uint32_t record_count;     /* 1: each chunk is merged at once */
    bool finish;               /* merge all records, then write out */
    const fg_cpu_attend *next; /* computed by this thread afterwards; NULL: not known */
    fg_cpu_attend_scratch *scratch;
};

/* (row, head)s of a tile at most. */
static inline uint32_t fg_cpu_attend_tile(const fg_cpu_kernels *kernels, uint32_t head_dim)
{
    return kernels->tall_tiles && head_dim <= FG_ATTEND_TALL_DIMS ? FG_ATTEND_TALL_TILE
           : head_dim <= FG_ATTEND_COPY_DIMS                      ? FG_ATTEND_TILE
                                                                  : FG_ATTEND_WIDE_TILE;
}

/* What a stream keeps for attention, so that no call takes memory; NULL when there is none. */
fg_cpu_attend_plan *fg_cpu_attend_plan_create(uint32_t member_count);
void fg_cpu_attend_plan_destroy(fg_cpu_attend_plan *plan);

/* Floats of a record, whole cache lines. */
static inline size_t fg_cpu_record_floats(uint32_t head_dim)
{
    return FG_ATTEND_HEAD + (head_dim + 15) / 16 * (size_t)16;
}

/* The record that `chunk` of the tile's `index`th (row, head) belongs to. */
static inline float *fg_cpu_record(const fg_cpu_attend *args, uint32_t chunk, uint32_t index)
{
    uint32_t record = args->record_count == 1 ? 0 : chunk - args->record_first;
    size_t tile = (size_t)args->row_count * args->head_count;
    return args->records + (record * tile + index) * fg_cpu_record_floats(args->kv->head_dim);
}

/* The slots of one chunk that a row sees, counted from the chunk's first; none: begin == end. */
typedef struct fg_cpu_slots {
    uint32_t begin;
    uint32_t end;
} fg_cpu_slots;

static inline fg_cpu_slots fg_cpu_row_slots(const fg_cpu_attend *args, uint32_t chunk, uint32_t row)
{
    uint32_t base = chunk * FG_ATTEND_CHUNK;
    uint32_t end = args->position + row + 1;
    uint32_t begin = args->window == 0 || end < args->window ? 0 : end - args->window;
    end = end < base ? 0 : end - base;
    end = end < FG_ATTEND_CHUNK ? end : FG_ATTEND_CHUNK;
    begin = begin < base ? 0 : begin - base;
    return (fg_cpu_slots){ .begin = begin < end ? begin : end, .end = end };
}

static inline const float *fg_cpu_attend_q(const fg_cpu_attend *args, uint32_t index)
{
    return args->q + index / args->head_count * args->row_stride +
           (size_t)(index % args->head_count) * args->kv->head_dim;
}

static inline float *fg_cpu_attend_out(const fg_cpu_attend *args, uint32_t index)
{
    return args->out + index / args->head_count * args->row_stride +
           (size_t)(index % args->head_count) * args->kv->head_dim;
}

/* What q is multiplied by. */
static inline float fg_cpu_attend_factor(const fg_cpu_attend *args)
{
    return args->scale * 0x1.715476p+0f;
}

/* A KV head's region of the block that holds `slot`; `offset` is kv's key_offset or value_offset. */
static inline uint8_t *fg_cpu_kv_region(const fg_paged_kv *kv, const uint32_t *block_ids,
                                        size_t offset, uint32_t kv_head, uint32_t slot)
{
    return (uint8_t *)kv->arena + block_ids[slot / kv->block_size] * kv->block_bytes + offset +
           kv_head * kv->head_bytes;
}

static inline uint32_t fg_cpu_kv_piece(const fg_paged_kv *kv)
{
    return kv->block_size < FG_KV_PIECE ? kv->block_size : FG_KV_PIECE;
}

/* Rows of K or V that are interleaved: pairs of bf16, the later one first, and int8 in fours. */
static inline uint32_t fg_cpu_kv_interleaved(uint32_t dtype)
{
    return dtype == FG_BF16 ? 2 : dtype == FG_I8 ? 4 : 1;
}

/* [index][inner] of a matrix with so many columns, in elements; some rows are interleaved. */
static inline size_t fg_cpu_element_at(uint32_t interleaved, uint32_t index, uint32_t inner,
                                       uint32_t columns)
{
    uint32_t within = index % interleaved;
    return (size_t)(index - within) * columns + (size_t)inner * interleaved +
           (interleaved == 2 ? 1 - within : within);
}

/* Where in a region element `d` of a slot's key or value lies, in elements (ops.h). */
static inline size_t fg_cpu_key_at(const fg_paged_kv *kv, uint32_t slot, uint32_t d)
{
    uint32_t piece = fg_cpu_kv_piece(kv);
    uint32_t in_block = slot % kv->block_size;
    return (size_t)(in_block / piece) * kv->head_dim * piece +
           fg_cpu_element_at(fg_cpu_kv_interleaved(kv->dtype), d, in_block % piece, piece);
}

static inline size_t fg_cpu_value_at(const fg_paged_kv *kv, uint32_t slot, uint32_t d)
{
    uint32_t interleaved = fg_cpu_kv_interleaved(kv->dtype);
    return fg_cpu_element_at(kv->block_size < interleaved ? 1 : interleaved, slot % kv->block_size,
                             d, kv->head_dim);
}

/* A slot's scale in its region; int8 only. */
static inline float *fg_cpu_kv_scale(const fg_paged_kv *kv, uint8_t *region, uint32_t slot)
{
    return (float *)(void *)(region + kv->scale_offset) + slot % kv->block_size;
}

#endif
