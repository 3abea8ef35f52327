/*
 * Attention, and K and V on their way to where it reads them.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "tests/gpu/gpu_check.h"

/* ---- attention ---- */

typedef struct heads_case {
    uint32_t heads, kv_heads, dim, slots;
    uint32_t block; /* slots of one; 0: BLOCK */
} heads_case;

static uint32_t block_of(const heads_case *h)
{
    return h->block != 0 ? h->block : BLOCK;
}

/* One sequence: its q, k and v, and the memory that holds them. */
typedef struct sequence {
    const heads_case *c;
    float *q, *k, *v; /* [slot][head][dim], rotated by nothing */
    uint32_t *blocks;
    uint32_t block_count;
} sequence;

typedef struct kv_world {
    fg_paged_kv kv;
    size_t arena_bytes;
    float *table; /* turns nothing */
    double *frequencies;
} kv_world;

static sequence make_sequence(check *c, const heads_case *h, uint32_t *next_block)
{
    size_t q = (size_t)h->slots * h->heads * h->dim, k = (size_t)h->slots * h->kv_heads * h->dim;
    sequence s = { .c = h,
                   .q = random_floats(&c->rng, q, 2.0f),
                   .k = random_floats(&c->rng, k, 1.0f),
                   .v = random_floats(&c->rng, k, 1.0f) };
    s.block_count = (h->slots + block_of(h) - 1) / block_of(h);
    s.blocks = fg_mem_array(s.block_count, sizeof *s.blocks);
    for (uint32_t i = 0; i < s.block_count; i++) {
        s.blocks[i] = *next_block + (s.block_count - 1 - i);
    }
    *next_block += s.block_count;
    return s;
}

static void free_sequence(sequence *s)
{
    fg_mem_free(s->q);
    fg_mem_free(s->k);
    fg_mem_free(s->v);
    fg_mem_free(s->blocks);
}

static kv_world make_kv(check *c, const heads_case *h, uint32_t blocks)
{
    size_t head = (size_t)block_of(h) * h->dim * 2;
    kv_world w = { .arena_bytes = blocks * head * 2 * h->kv_heads };
    uint8_t *bytes = fg_mem_alloc(w.arena_bytes);
    memset(bytes, 0xFF, w.arena_bytes); /* what nobody stored is no number */
    w.kv = (fg_paged_kv){ .arena = put(c, bytes, w.arena_bytes),
                          .block_bytes = head * 2 * h->kv_heads,
                          .key_offset = 0,
                          .value_offset = head * h->kv_heads,
                          .head_bytes = head,
                          .block_size = block_of(h),
                          .dtype = FG_BF16,
                          .kv_head_count = h->kv_heads,
                          .head_dim = h->dim };
    fg_mem_free(bytes);
    return w;
}

/* Parts of sequences that make a step. */
typedef struct piece {
    const sequence *s;
    uint32_t first, count;
} piece;

/* Attends, once with pairs beside the values, once with pairs alone. */
static void attend_pairs(check *c, const fg_paged_kv *kv, fg_attend *attend, uint32_t rows,
                         uint32_t q_width)
{
    size_t words = pair_words(rows, q_width);
    uint32_t *pairs = fg_mem_array(words, sizeof *pairs);
    uint32_t *alone = fg_mem_array(words, sizeof *alone);
    float *values = fg_mem_array((size_t)rows * q_width, sizeof *values), *out = attend->out;
    attend->pairs = put(c, NULL, words * sizeof(uint32_t));
    fg_op_attend(c->stream, kv, attend, rows);
    get(c, pairs, attend->pairs, words * sizeof(uint32_t));
    get(c, values, out, (size_t)rows * q_width * 4);
    poison(c, (float *)attend->pairs, (size_t)rows * q_width / 2);
    attend->out = NULL;
    fg_op_attend(c->stream, kv, attend, rows);
    get(c, alone, attend->pairs, words * sizeof(uint32_t));
    bool paired = true, same = true;
    for (uint32_t row = 0; row < rows; row++) {
        for (uint32_t column = 0; column < q_width; column++) {
            float pair = pair_value(pairs, row, column, q_width);
            paired = paired && pair == brain(values[(size_t)row * q_width + column]);
            same = same && pair_value(alone, row, column, q_width) == pair;
        }
    }
    tell(c, paired, "attend: pairs are not its values");
    tell(c, same, "attend: other pairs where nothing else is wanted");
    drop(c, attend->pairs);
    attend->out = out;
    attend->pairs = NULL;
    fg_mem_free(pairs);
    fg_mem_free(alone);
    fg_mem_free(values);
}

/* Runs a step: stores k and v of all pieces, then attends; `outs[i]` gets piece i's rows at their places. */
static void run_step(check *c, kv_world *w, const heads_case *h, const piece *pieces,
                     uint32_t piece_count, float **outs)
{
    static uint32_t tokens[STEP_ROWS], positions[STEP_ROWS];
    static fg_kv_row kv_rows[STEP_ROWS];
    uint32_t rows = 0, q_width = h->heads * h->dim, kv_width = h->kv_heads * h->dim;
    for (uint32_t i = 0; i < piece_count; i++) {
        for (uint32_t j = 0; j < pieces[i].count; j++) {
            tokens[rows] = 0;
            positions[rows] = pieces[i].first + j;
            kv_rows[rows] =
                (fg_kv_row){ .block_ids = pieces[i].s->blocks, .position = pieces[i].first + j };
            rows++;
        }
    }
    float *q = put(c, NULL, (size_t)rows * q_width * 4),
          *out = put(c, NULL, (size_t)rows * q_width * 4);
    float *k = put(c, NULL, (size_t)rows * kv_width * 4),
          *v = put(c, NULL, (size_t)rows * kv_width * 4);
    uint32_t at = 0;
    for (uint32_t i = 0; i < piece_count; i++) {
        const piece *p = &pieces[i];
        size_t bytes = (size_t)p->count * kv_width * 4;
        fg_device_copy(c->stream, q + (size_t)at * q_width, p->s->q + (size_t)p->first * q_width,
                       (size_t)p->count * q_width * 4);
        fg_device_copy(c->stream, k + (size_t)at * kv_width, p->s->k + (size_t)p->first * kv_width,
                       bytes);
        fg_device_copy(c->stream, v + (size_t)at * kv_width, p->s->v + (size_t)p->first * kv_width,
                       bytes);
        at += p->count;
    }
    poison(c, out, (size_t)rows * q_width);
    fg_step_rows staged = { .tokens = tokens,
                            .positions = positions,
                            .kv_rows = kv_rows,
                            .row_ids = tokens,
                            .rows = rows,
                            .row_id_count = 0 };
    fg_op_stage(c->stream, &staged);
    fg_rope_store store = {
        .q = q, .k = k, .v = v, .kv_rows = kv_rows, .table = w->table, .head_count = h->heads
    };
    fg_op_rope_store(c->stream, &w->kv, &store, rows);
    fg_attend attend = { .q = q,
                         .kv_rows = kv_rows,
                         .head_count = h->heads,
                         .scale = 1.0f / sqrtf((float)h->dim),
                         .out = out };
    attend_pairs(c, &w->kv, &attend, rows, q_width);
    at = 0;
    for (uint32_t i = 0; i < piece_count; i++) {
        get(c, outs[i] + (size_t)pieces[i].first * q_width, out + (size_t)at * q_width,
            (size_t)pieces[i].count * q_width * 4);
        at += pieces[i].count;
    }
    drop(c, q);
    drop(c, k);
    drop(c, v);
    drop(c, out);
}

/* The worst error of a sequence's outputs against double arithmetic on the numbers as stored. */
static double attend_error(const sequence *s, const float *out)
{
    const heads_case *h = s->c;
    uint32_t group = h->heads / h->kv_heads;
    double worst = 0.0, *weights = fg_mem_array(h->slots, sizeof *weights);
    float scale = 1.0f / sqrtf((float)h->dim) * 1.44269504f;
    for (uint32_t row = 0; row < h->slots; row += row < 8 ? 1 : 13) {
        for (uint32_t head = 0; head < h->heads; head++) {
            const float *q = s->q + ((size_t)row * h->heads + head) * h->dim;
            double top = -INFINITY, sum = 0.0;
            for (uint32_t slot = 0; slot <= row; slot++) {
                const float *k = s->k + ((size_t)slot * h->kv_heads + head / group) * h->dim;
                double score = 0.0;
                for (uint32_t d = 0; d < h->dim; d++) {
                    score += (double)brain(q[d] * scale) * brain(k[d]);
                }
                weights[slot] = score;
                top = score > top ? score : top;
            }
            for (uint32_t slot = 0; slot <= row; slot++) {
                weights[slot] = exp2(weights[slot] - top);
                sum += weights[slot];
            }
            for (uint32_t d = 0; d < h->dim; d++) {
                double want = 0.0;
                for (uint32_t slot = 0; slot <= row; slot++) {
                    want += weights[slot] / sum *
                            brain(s->v[((size_t)slot * h->kv_heads + head / group) * h->dim + d]);
                }
                double error = fabs(out[((size_t)row * h->heads + head) * h->dim + d] - want);
                worst = error > worst || isnan(error) ? error : worst;
            }
        }
    }
    fg_mem_free(weights);
    return worst;
}

/* A sequence in steps of `chunk` rows (drawn ones for 0) beside another that is at another place. */
static void attend_in_steps(check *c, kv_world *w, const heads_case *h, const sequence *s,
                            const sequence *other, uint32_t chunk, float *out)
{
    float *rest = fg_mem_array((size_t)h->slots * h->heads * h->dim, sizeof *rest);
    uint32_t there = 0;
    for (uint32_t first = 0; first < h->slots;) {
        uint32_t size = chunk != 0 ? chunk : 1 + fg_rng_below(&c->rng, 60);
        size = h->slots - first < size ? h->slots - first : size;
        uint32_t beside = other != NULL && there < h->slots ? 1 + fg_rng_below(&c->rng, 40) : 0;
        beside = h->slots - there < beside ? h->slots - there : beside;
        piece pieces[2] = { { s, first, size }, { other, there, beside } };
        float *outs[2] = { out, rest };
        if (beside > 0 && fg_rng_below(&c->rng, 2) == 0) {
            piece swapped[2] = { pieces[1], pieces[0] };
            float *swapped_outs[2] = { rest, out };
            run_step(c, w, h, swapped, 2, swapped_outs);
        } else {
            run_step(c, w, h, pieces, beside > 0 ? 2 : 1, outs);
        }
        first += size;
        there += beside;
    }
    fg_mem_free(rest);
}

static void check_heads(check *c, const heads_case *h)
{
    open_device(c, h->heads, h->kv_heads, h->dim, block_of(h));
    uint32_t next = 3;
    sequence s = make_sequence(c, h, &next), other = make_sequence(c, h, &next);
    size_t count = (size_t)h->slots * h->heads * h->dim;
    float *all = fg_mem_array(count, sizeof *all), *some = fg_mem_array(count, sizeof *some);
    char name[64];
    snprintf(name, sizeof name, "attend %u/%u x %u, %u slots", h->heads, h->kv_heads, h->dim,
             h->slots);
    const uint32_t chunks[] = { STEP_ROWS, 1, 3, 5, 0, 37, 100 };
    for (uint32_t i = 0; i < (c->quick ? 5u : 7u); i++) {
        if (chunks[i] == 1 && h->slots > 600 && c->quick) {
            continue;
        }
        kv_world w = make_kv(c, h, next);
        w.table = put(c, NULL, 64);
        attend_in_steps(c, &w, h, &s, i > 1 ? &other : NULL, chunks[i], i == 0 ? all : some);
        if (i == 0) {
            double worst = attend_error(&s, all);
            tell(c, worst < 0.012, "%s: worst error %.3g", name, worst);
        } else {
            size_t differing = 0, first = count;
            for (size_t j = 0; j < count; j++) {
                if (memcmp(&all[j], &some[j], 4) != 0) {
                    first = differing++ == 0 ? j : first;
                }
            }
            tell(c, differing == 0,
                 "%s: in steps of %u other bits: %zu of %zu, first at slot %zu head %zu dim %zu: "
                 "%g %g",
                 name, chunks[i], differing, count, first / (h->heads * h->dim),
                 first / h->dim % h->heads, first % h->dim,
                 first < count ? (double)all[first] : 0.0,
                 first < count ? (double)some[first] : 0.0);
        }
        drop(c, w.table);
        drop(c, w.kv.arena);
    }
    free_sequence(&s);
    free_sequence(&other);
    fg_mem_free(all);
    fg_mem_free(some);
    close_device(c);
}

void check_attention(check *c)
{
    /* Those of the first ones are enough for a quick look. */
    enum { QUICK = 8 };
    const heads_case cases[] = {
        { 9, 3, 64, 300, 0 },     { 4, 4, 64, 129, 32 },   { 8, 2, 128, 260, 0 },
        { 9, 3, 8, 200, 0 },      { 14, 2, 64, 150, 0 },   { 20, 1, 32, 140, 0 },
        { 4, 2, 96, 140, 0 },     { 4, 1, 128, 270, 256 }, { 2, 1, 256, 140, 0 },
        { 6, 6, 16, 130, 0 },     { 32, 8, 64, 1000, 0 },  { 16, 1, 128, 700, 0 },
        { 8, 8, 128, 523, 64 },   { 12, 2, 96, 410, 32 },  { 5, 1, 80, 300, 0 },
        { 28, 4, 128, 900, 128 },
    };
    uint32_t count = c->quick ? QUICK : sizeof cases / sizeof *cases;
    for (uint32_t i = 0; i < count; i++) {
        check_heads(c, &cases[i]);
    }
}

/* ---- K and V in their slots, the numbers that the CPU puts there ---- */

/* The CPU's blocks in the order of a GPU's: [slot / 8][dim / 8][slot % 8][dim % 8] of each head. */
static void turn_blocks(const fg_paged_kv *kv, size_t arena_bytes, uint8_t *arena)
{
    uint8_t *block = fg_mem_alloc(kv->block_bytes);
    for (uint8_t *at = arena; at < arena + arena_bytes; at += kv->block_bytes) {
        memcpy(block, at, kv->block_bytes);
        for (uint32_t head = 0; head < 2 * kv->kv_head_count; head++) {
            uint16_t *to = (uint16_t *)(at + head * kv->head_bytes);
            const uint16_t *from = (const uint16_t *)(block + head * kv->head_bytes);
            bool is_key = head < kv->kv_head_count;
            for (uint32_t slot = 0; slot < kv->block_size; slot++) {
                for (uint32_t d = 0; d < kv->head_dim; d++) {
                    uint32_t key =
                        (slot / 16 * kv->head_dim / 2 + d / 2) * 32 + slot % 16 * 2 + 1 - d % 2;
                    uint32_t value = (slot / 2 * kv->head_dim + d) * 2 + 1 - slot % 2;
                    to[slot / 8 * kv->head_dim * 8 + d / 8 * 64 + slot % 8 * 8 + d % 8] =
                        from[is_key ? key : value];
                }
            }
        }
    }
    fg_mem_free(block);
}

static void check_store(check *c, bool interleaved, bool biased)
{
    const heads_case h = { 6, 2, 64, 40, 0 };
    enum { PAIRS = 32, DIM = 64 };
    open_device(c, h.heads, h.kv_heads, h.dim, BLOCK);
    test_device cpu;
    FG_ASSERT(open_test_device("plain", 1, &cpu));
    uint32_t next = 1;
    sequence s = make_sequence(c, &h, &next);
    kv_world w = make_kv(c, &h, next);
    double frequencies[PAIRS];
    fg_rope_frequencies(&(fg_rope_shape){ .theta = 10000.0f, .pair_count = PAIRS, .factor = 1.0f },
                        frequencies);
    fg_rope_turns turns = { .frequencies = frequencies, .pair_count = PAIRS, .magnitude = 1.0 };
    uint32_t positions[40];
    fg_kv_row kv_rows[40];
    for (uint32_t i = 0; i < h.slots; i++) {
        positions[i] = i;
        kv_rows[i] = (fg_kv_row){ .block_ids = s.blocks, .position = i };
    }
    float *table = fg_mem_array(h.slots * DIM, sizeof *table),
          *biases = random_floats(&c->rng, 6 * DIM, 1.0f);
    float *norms = random_floats(&c->rng, DIM, 1.0f);
    fg_op_rope_table(cpu.stream, positions, h.slots, &turns, table);
    size_t q_count = (size_t)h.slots * h.heads * DIM, k_count = (size_t)h.slots * h.kv_heads * DIM;
    float *there_bias = put(c, biases, 6 * DIM * 4), *there_norm = put(c, norms, DIM * 4);
    float *there_q = put(c, s.q, q_count * 4), *there_k = put(c, s.k, k_count * 4),
          *there_v = put(c, s.v, k_count * 4);
    float *there_table = put(c, table, h.slots * DIM * 4);
    fg_step_rows staged = { .tokens = positions,
                            .positions = positions,
                            .kv_rows = kv_rows,
                            .row_ids = positions,
                            .rows = h.slots };
    fg_op_stage(c->stream, &staged);
    fg_rope_store args = { .q = there_q,
                           .k = there_k,
                           .v = there_v,
                           .q_bias = biased ? there_bias : NULL,
                           .k_bias = biased ? there_bias : NULL,
                           .v_bias = biased ? there_bias : NULL,
                           .q_norm = biased ? there_norm : NULL,
                           .k_norm = biased ? there_norm : NULL,
                           .norm_epsilon = 1e-6f,
                           .kv_rows = kv_rows,
                           .table = there_table,
                           .pair_count = PAIRS,
                           .head_count = h.heads,
                           .interleaved = interleaved };
    fg_op_rope_store(c->stream, &w.kv, &args, h.slots);
    uint8_t *got = fg_mem_alloc(w.arena_bytes), *want = fg_mem_map(w.arena_bytes);
    float *got_q = fg_mem_array(q_count, sizeof *got_q);
    get(c, got, w.kv.arena, w.arena_bytes);
    get(c, got_q, there_q, q_count * 4);
    memset(want, 0xFF, w.arena_bytes);
    fg_paged_kv host = w.kv;
    host.arena = want;
    fg_rope_store same = args;
    same.q = s.q;
    same.k = s.k;
    same.v = s.v;
    same.table = table;
    same.q_bias = same.k_bias = same.v_bias = biased ? biases : NULL;
    same.q_norm = same.k_norm = biased ? norms : NULL;
    fg_op_rope_store(cpu.stream, &host, &same, h.slots);
    turn_blocks(&host, w.arena_bytes, want);
    double worst = 0.0;
    for (size_t i = 0; i < q_count; i++) {
        double error = fabs((double)got_q[i] - s.q[i]);
        worst = error > worst || isnan(error) ? error : worst;
    }
    tell(c, worst < 2e-6, "store%s%s: q differs by %.3g", interleaved ? " interleaved" : "",
         biased ? " biased" : "", worst);
    size_t odd = 0;
    for (size_t i = 0; i < w.arena_bytes / 2; i++) {
        uint16_t a, b;
        memcpy(&a, got + 2 * i, 2);
        memcpy(&b, want + 2 * i, 2);
        /* The last place of a bf16 where a rotation's rounding is on the edge. */
        odd += a != b && !(abs((int)a - (int)b) == 1);
    }
    tell(c, odd == 0, "store%s%s: %zu of %zu halves of the cache are not the CPU's",
         interleaved ? " interleaved" : "", biased ? " biased" : "", odd, w.arena_bytes / 2);
    drop(c, w.kv.arena);
    drop(c, there_bias);
    drop(c, there_norm);
    drop(c, there_q);
    drop(c, there_k);
    drop(c, there_v);
    drop(c, there_table);
    fg_mem_free(got);
    fg_mem_unmap(want, w.arena_bytes);
    fg_mem_free(got_q);
    fg_mem_free(table);
    fg_mem_free(biases);
    fg_mem_free(norms);
    free_sequence(&s);
    close_test_device(&cpu);
    close_device(c);
}

void check_stores(check *c)
{
    check_store(c, false, false);
    check_store(c, true, false);
    check_store(c, false, true);
}
