#include <math.h>
#include <string.h>

#include "common/base/dtype.h"
#include "common/base/mem.h"
#include "kernels/ops.h"
#include "tests/support/test.h"
#include "tests/unit/kernels/kernel_data.h"

static const struct attend_case {
    const char *name;
    uint32_t head_count, kv_head_count, head_dim, block_size, dtype, slot_count;
} cases[] = {
    { "one slot", 2, 1, 8, 16, FG_F16, 1 },
    { "smollm2 heads", 9, 3, 64, 16, FG_F16, 83 },
    { "f32 kv", 4, 2, 32, 16, FG_F32, 40 },
    { "a group of eight", 8, 1, 16, 16, FG_F16, 33 },
    { "heads of no whole register", 4, 2, 12, 16, FG_F16, 21 },
    { "small blocks", 4, 4, 16, 4, FG_F16, 37 },
    { "large blocks", 2, 2, 24, 64, FG_F16, 100 },
};
enum { CASE_COUNT = sizeof cases / sizeof cases[0], BLOCKS = 32 };

/* One layer's paged KV, filled through fg_op_rope_store. */
typedef struct world {
    fg_paged_kv kv;
    size_t arena_bytes;
    uint32_t block_ids[BLOCKS];
    fg_kv_row *kv_rows;
    float *q;
    float *k;
    float *v;
    float *table;
} world;

static world make_world(const struct attend_case *c, uint64_t seed)
{
    fg_rng rng = { .state = seed };
    size_t head_bytes = (size_t)c->block_size * c->head_dim * fg_dtype_block_bytes(c->dtype);
    world w = { .kv = { .block_bytes = 2 * c->kv_head_count * head_bytes,
                        .value_offset = c->kv_head_count * head_bytes,
                        .head_bytes = head_bytes,
                        .block_size = c->block_size,
                        .dtype = c->dtype,
                        .kv_head_count = c->kv_head_count,
                        .head_dim = c->head_dim } };
    w.arena_bytes = BLOCKS * w.kv.block_bytes;
    w.kv.arena = fg_mem_alloc(w.arena_bytes);
    /* NaN everywhere: a slot that must not be read shows. */
    memset(w.kv.arena, 0xFF, w.arena_bytes);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        w.block_ids[i] = (i * 13 + 5) % BLOCKS;
    }
    size_t rows = c->slot_count;
    w.q = random_floats(&rng, rows * c->head_count * c->head_dim, 1.5f);
    w.k = random_floats(&rng, rows * c->kv_head_count * c->head_dim, 1.5f);
    w.v = random_floats(&rng, rows * c->kv_head_count * c->head_dim, 1.0f);
    w.table = fg_mem_array(rows * c->head_dim, sizeof(float));
    w.kv_rows = fg_mem_array(rows, sizeof(fg_kv_row));
    for (uint32_t row = 0; row < rows; row++) {
        w.kv_rows[row] = (fg_kv_row){ .block_ids = w.block_ids, .position = row };
        for (uint32_t pair = 0; pair < c->head_dim / 2; pair++) {
            w.table[row * c->head_dim + 2 * pair] = 1.0f; /* no turn */
        }
    }
    return w;
}

/* A world's block table lives in the struct, which has moved. */
static void settle(world *w, uint32_t rows)
{
    for (uint32_t row = 0; row < rows; row++) {
        w->kv_rows[row].block_ids = w->block_ids;
    }
}

static void free_world(world *w)
{
    fg_mem_free(w->kv.arena);
    fg_mem_free(w->q);
    fg_mem_free(w->k);
    fg_mem_free(w->v);
    fg_mem_free(w->table);
    fg_mem_free(w->kv_rows);
}

static void store(const test_device *device, const world *w, const struct attend_case *c)
{
    fg_rope_store args = { .q = w->q,
                           .k = w->k,
                           .v = w->v,
                           .kv_rows = w->kv_rows,
                           .table = w->table,
                           .pair_count = c->head_dim / 2,
                           .head_count = c->head_count };
    fg_op_rope_store(device->stream, &w->kv, &args, c->slot_count);
}

static void attend(const test_device *device, const world *w, const struct attend_case *c,
                   uint32_t first, uint32_t rows, float *out)
{
    size_t columns = (size_t)c->head_count * c->head_dim;
    fg_attend args = { .q = w->q + first * columns,
                       .kv_rows = w->kv_rows + first,
                       .head_count = c->head_count,
                       .scale = 1.0f / sqrtf((float)c->head_dim),
                       .out = out + first * columns };
    fg_op_attend(device->stream, &w->kv, &args, rows);
}

static double rounded(const struct attend_case *c, float x)
{
    return c->dtype == FG_F16 ? fg_f16_to_f32(fg_f16_from_f32(x)) : x;
}

/* Plain softmax attention of one head in double. */
static void reference(const world *w, const struct attend_case *c, uint32_t row, uint32_t head,
                      double *out)
{
    uint32_t kv_head = head / (c->head_count / c->kv_head_count);
    const float *q = w->q + ((size_t)row * c->head_count + head) * c->head_dim;
    double sum = 0.0;
    memset(out, 0, c->head_dim * sizeof *out);
    for (uint32_t s = 0; s <= row; s++) {
        const float *k = w->k + ((size_t)s * c->kv_head_count + kv_head) * c->head_dim;
        const float *v = w->v + ((size_t)s * c->kv_head_count + kv_head) * c->head_dim;
        double score = 0.0;
        for (uint32_t d = 0; d < c->head_dim; d++) {
            score += q[d] * rounded(c, k[d]);
        }
        double weight = exp(score / sqrt(c->head_dim));
        sum += weight;
        for (uint32_t d = 0; d < c->head_dim; d++) {
            out[d] += weight * rounded(c, v[d]);
        }
    }
    for (uint32_t d = 0; d < c->head_dim; d++) {
        out[d] /= sum;
    }
}

static void check_reference(const world *w, const struct attend_case *c, const float *out)
{
    double want[64];
    for (uint32_t row = 0; row < c->slot_count; row++) {
        for (uint32_t head = 0; head < c->head_count; head++) {
            reference(w, c, row, head, want);
            const float *got = out + ((size_t)row * c->head_count + head) * c->head_dim;
            for (uint32_t d = 0; d < c->head_dim; d++) {
                cr_assert(fabs(got[d] - want[d]) <= 3e-6, "%s row %u head %u dim %u: %g, want %g",
                          c->name, row, head, d, (double)got[d], want[d]);
            }
        }
    }
}

Test(attend, agrees_with_double_and_is_exact_everywhere)
{
    for (size_t i = 0; i < CASE_COUNT; i++) {
        const struct attend_case *c = &cases[i];
        world w = make_world(c, 31 + i);
        settle(&w, c->slot_count);
        size_t out_bytes = (size_t)c->slot_count * c->head_count * c->head_dim * sizeof(float);
        float *want = fg_mem_alloc(out_bytes);
        float *out = fg_mem_alloc(out_bytes);
        test_device plain;
        cr_assert(open_test_device("plain", 1, &plain));
        store(&plain, &w, c);
        attend(&plain, &w, c, 0, c->slot_count, want);
        check_reference(&w, c, want);
        static const char *const isas[] = { "plain", "avx2" };
        for (int variant = 0; variant < 4; variant++) {
            test_device device;
            if (!open_test_device(isas[variant / 2], 1 + variant % 2, &device)) {
                continue;
            }
            memset(out, 0, out_bytes);
            attend(&device, &w, c, 0, c->slot_count, out);
            cr_assert(memcmp(out, want, out_bytes) == 0, "%s isa %s", c->name,
                      fg_device_isa(device.device));
            memset(out, 0, out_bytes);
            for (uint32_t row = 0; row < c->slot_count; row++) {
                attend(&device, &w, c, row, 1, out);
            }
            cr_assert(memcmp(out, want, out_bytes) == 0, "%s row by row, isa %s", c->name,
                      fg_device_isa(device.device));
            close_test_device(&device);
        }
        close_test_device(&plain);
        fg_mem_free(want);
        fg_mem_free(out);
        free_world(&w);
    }
}

Test(attend, large_scores_stay_finite)
{
    const struct attend_case c = { "large", 1, 1, 8, 16, FG_F32, 40 };
    world w = make_world(&c, 77);
    settle(&w, c.slot_count);
    for (uint32_t i = 0; i < c.slot_count * 8; i++) {
        w.q[i] = 100.0f;
        w.k[i] = i / 8 == 20 ? 100.0f : -100.0f;
    }
    test_device device;
    cr_assert(open_test_device("auto", 1, &device));
    store(&device, &w, &c);
    float out[40 * 8];
    attend(&device, &w, &c, 0, 40, out);
    for (uint32_t d = 0; d < 8; d++) {
        cr_assert_eq(out[39 * 8 + d], w.v[20 * 8 + d], "all weight is on slot 20");
    }
    close_test_device(&device);
    free_world(&w);
}

Test(rope_store, rotates_both_pairings_and_writes_rounded_slots)
{
    test_device device;
    cr_assert(open_test_device("auto", 1, &device));
    for (int interleaved = 0; interleaved < 2; interleaved++) {
        const struct attend_case c = { "rope", 1, 1, 8, 4, FG_F16, 6 };
        world w = make_world(&c, 78);
        settle(&w, c.slot_count);
        for (uint32_t row = 0; row < 6; row++) {
            for (uint32_t pair = 0; pair < 3; pair++) { /* the last two dims are not rotated */
                w.table[(row * 3 + pair) * 2] = cosf((float)(row + pair));
                w.table[(row * 3 + pair) * 2 + 1] = sinf((float)(row + pair));
            }
        }
        float *q = fg_mem_dup(w.q, 6 * 8 * sizeof(float));
        float *k = fg_mem_dup(w.k, 6 * 8 * sizeof(float));
        fg_rope_store args = { .q = w.q,
                               .k = w.k,
                               .v = w.v,
                               .kv_rows = w.kv_rows,
                               .table = w.table,
                               .pair_count = 3,
                               .head_count = 1,
                               .interleaved = interleaved != 0 };
        fg_op_rope_store(device.stream, &w.kv, &args, 6);
        for (uint32_t row = 0; row < 6; row++) {
            const uint8_t *block =
                (const uint8_t *)w.kv.arena + w.block_ids[row / 4] * w.kv.block_bytes;
            for (uint32_t d = 0; d < 8; d++) {
                uint32_t pair = interleaved ? d / 2 : d % 3;
                bool second = interleaved ? d % 2 == 1 : d >= 3;
                uint32_t a = interleaved ? 2 * pair : pair;
                uint32_t b = interleaved ? a + 1 : pair + 3;
                float cosine = w.table[(row * 3 + pair) * 2];
                float sine = w.table[(row * 3 + pair) * 2 + 1];
                const float *x = q + row * 8;
                const float *y = k + row * 8;
                float want_q = d >= 6   ? x[d]
                               : second ? x[a] * sine + x[b] * cosine
                                        : x[a] * cosine - x[b] * sine;
                float want_k = d >= 6   ? y[d]
                               : second ? y[a] * sine + y[b] * cosine
                                        : y[a] * cosine - y[b] * sine;
                uint16_t stored[2];
                memcpy(&stored[0], block + ((row % 4) * 8 + d) * 2, 2);
                memcpy(&stored[1], block + w.kv.value_offset + ((row % 4) * 8 + d) * 2, 2);
                cr_assert_eq(w.q[row * 8 + d], want_q);
                cr_assert_eq(stored[0], fg_f16_from_f32(want_k));
                cr_assert_eq(stored[1], fg_f16_from_f32(w.v[row * 8 + d]));
            }
        }
        fg_mem_free(q);
        fg_mem_free(k);
        free_world(&w);
    }
    close_test_device(&device);
}
