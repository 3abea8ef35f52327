/* Biases and norms of heads in fg_op_rope_store; what else it does is in test_attend.c. */
#include <math.h>
#include <string.h>

#include "common/base/dtype.h"
#include "common/base/mem.h"
#include "kernels/ops.h"
#include "tests/support/test.h"
#include "tests/unit/kernels/attend_data.h"

enum { ROWS = 19, BLOCK = 16, BLOCKS = 3, DIMS_MAX = 256 };

typedef struct head_case {
    const char *name;
    uint32_t head_count, kv_head_count, head_dim, pair_count;
    bool interleaved, bias, norm;
} head_case;

static const head_case head_cases[] = {
    { "neither", 3, 1, 64, 32, false, false, false },
    { "biases, as qwen2", 14, 2, 64, 32, false, true, false },
    { "norms, as qwen3", 4, 2, 128, 64, false, false, true },
    { "both", 6, 3, 64, 32, false, true, true },
    { "both, neighbours", 4, 2, 80, 40, true, true, true },
    { "both, the last dimensions not turned", 2, 1, 48, 16, false, true, true },
    { "both, heads of no whole register", 4, 2, 12, 6, false, true, true },
    { "both, one pair", 1, 1, 4, 2, false, true, true },
    { "both, wide heads", 2, 1, 256, 128, false, true, true },
};
enum { HEAD_CASES = sizeof head_cases / sizeof head_cases[0] };

typedef struct heads {
    attend_case attend;
    world w;
    float *q_bias, *k_bias, *v_bias, *q_norm, *k_norm;
} heads;

static heads make_heads(const head_case *c, uint32_t dtype)
{
    heads h = { .attend = { c->name, c->head_count, c->kv_head_count, c->head_dim, BLOCK, dtype,
                            ROWS, ROWS, 0 } };
    fg_rng rng = { .state = 83 };
    h.w = make_world(&h.attend, 82);
    h.q_bias = random_floats(&rng, (size_t)c->head_count * c->head_dim, 2.0f);
    h.k_bias = random_floats(&rng, (size_t)c->kv_head_count * c->head_dim, 9.0f);
    h.v_bias = random_floats(&rng, (size_t)c->kv_head_count * c->head_dim, 0.5f);
    h.q_norm = random_floats(&rng, c->head_dim, 3.0f);
    h.k_norm = random_floats(&rng, c->head_dim, 3.0f);
    return h;
}

static void free_heads(heads *h)
{
    free_world(&h->w);
    fg_mem_free(h->q_bias);
    fg_mem_free(h->k_bias);
    fg_mem_free(h->v_bias);
    fg_mem_free(h->q_norm);
    fg_mem_free(h->k_norm);
}

static void turn(heads *h, const head_case *c)
{
    for (uint32_t i = 0; i < ROWS * c->pair_count; i++) {
        h->w.table[2 * i] = cosf((float)i);
        h->w.table[2 * i + 1] = sinf((float)i);
    }
}

/* What the CPU does on its own of q, and of K and V. */
static void store_parts(const test_device *device, const heads *h, const head_case *c, bool q,
                        bool keys)
{
    fg_rope_store args = { .q = q ? h->w.q : NULL,
                           .k = keys ? h->w.k : NULL,
                           .v = keys ? h->w.v : NULL,
                           .q_bias = c->bias ? h->q_bias : NULL,
                           .k_bias = c->bias ? h->k_bias : NULL,
                           .v_bias = c->bias ? h->v_bias : NULL,
                           .q_norm = c->norm ? h->q_norm : NULL,
                           .k_norm = c->norm ? h->k_norm : NULL,
                           .norm_epsilon = 1e-5f,
                           .kv_rows = h->w.kv_rows,
                           .table = h->w.table,
                           .pair_count = c->pair_count,
                           .head_count = q ? c->head_count : 0,
                           .interleaved = c->interleaved };
    fg_op_rope_store(device->stream, &h->w.kv, &args, ROWS);
}

static void store(const test_device *device, const heads *h, const head_case *c)
{
    store_parts(device, h, c, true, true);
}

/* What an F32 cache holds of a slot: of keys [head][dim][slot], of values [head][slot][dim]. */
static float stored(const world *w, uint32_t row, uint32_t head, uint32_t d, bool is_key)
{
    const char *block = (const char *)w->kv.arena + w->block_ids[row / BLOCK] * w->kv.block_bytes;
    const char *region =
        block + (is_key ? w->kv.key_offset : w->kv.value_offset) + head * w->kv.head_bytes;
    uint32_t slot = row % BLOCK;
    float value;
    memcpy(&value, region + (is_key ? d * BLOCK + slot : slot * w->kv.head_dim + d) * sizeof(float),
           sizeof value);
    return value;
}

/* One head, from its product on, in double. */
static void expect_head(const head_case *c, const float *in, const float *bias, const float *norm,
                        const float *turns, double *out)
{
    double squares = 0.0;
    for (uint32_t d = 0; d < c->head_dim; d++) {
        out[d] = (double)in[d] + (c->bias ? (double)bias[d] : 0.0);
        squares += out[d] * out[d];
    }
    for (uint32_t d = 0; d < c->head_dim && c->norm; d++) {
        out[d] *= (double)norm[d] / sqrt(squares / c->head_dim + 1e-5);
    }
    for (uint32_t pair = 0; pair < c->pair_count; pair++) {
        double *a = &out[c->interleaved ? 2 * pair : pair];
        double *b = a + (c->interleaved ? 1 : c->pair_count);
        double cosine = turns[2 * pair], sine = turns[2 * pair + 1], first = *a;
        *a = first * cosine - *b * sine;
        *b = first * sine + *b * cosine;
    }
}

Test(rope_store, biases_and_norms_agree_with_double)
{
    for (size_t i = 0; i < TEST_ISAS * (size_t)HEAD_CASES; i++) {
        const head_case *c = &head_cases[i % HEAD_CASES];
        const char *isa = test_isas[i / HEAD_CASES];
        test_device device;
        if (!open_test_device(isa, 1, &device)) {
            continue;
        }
        heads h = make_heads(c, FG_F32);
        turn(&h, c);
        heads was = make_heads(c, FG_F32);
        store(&device, &h, c);
        double want[DIMS_MAX];
        for (uint32_t row = 0; row < ROWS; row++) {
            const float *turns = h.w.table + (size_t)row * c->pair_count * 2;
            for (uint32_t head = 0; head < c->head_count; head++) {
                size_t at = ((size_t)row * c->head_count + head) * c->head_dim;
                expect_head(c, was.w.q + at, h.q_bias + head * c->head_dim, h.q_norm, turns, want);
                for (uint32_t d = 0; d < c->head_dim; d++) {
                    cr_assert(fabs((double)h.w.q[at + d] - want[d]) < 2e-6 * (1 + fabs(want[d])),
                              "%s, %s: q", c->name, isa);
                }
            }
            for (uint32_t head = 0; head < c->kv_head_count; head++) {
                size_t at = ((size_t)row * c->kv_head_count + head) * c->head_dim;
                expect_head(c, was.w.k + at, h.k_bias + head * c->head_dim, h.k_norm, turns, want);
                for (uint32_t d = 0; d < c->head_dim; d++) {
                    float value = was.w.v[at + d];
                    value += c->bias ? h.v_bias[head * c->head_dim + d] : 0.0f;
                    cr_assert(fabs((double)stored(&h.w, row, head, d, true) - want[d]) <
                                  5e-6 * (1 + fabs(want[d])),
                              "%s, %s: k", c->name, isa);
                    cr_assert_eq(stored(&h.w, row, head, d, false), value, "%s, %s: v", c->name,
                                 isa);
                }
            }
        }
        free_heads(&was);
        free_heads(&h);
        close_test_device(&device);
    }
}

/* To the bit, where nothing is turned: one addition, then fg_op_rmsnorm. */
Test(rope_store, a_head_is_normalised_as_a_row_is)
{
    for (size_t i = 0; i < TEST_ISAS * (size_t)HEAD_CASES; i++) {
        const head_case *c = &head_cases[i % HEAD_CASES];
        test_device device;
        if (!open_test_device(test_isas[i / HEAD_CASES], 1, &device)) {
            continue;
        }
        heads h = make_heads(c, FG_F32);
        heads was = make_heads(c, FG_F32);
        size_t q_columns = (size_t)c->head_count * c->head_dim;
        for (size_t at = 0; at < ROWS * q_columns && c->bias; at++) {
            was.w.q[at] += h.q_bias[at % q_columns];
        }
        if (c->norm) {
            fg_activations out = make_activations(ROWS * c->head_count, c->head_dim);
            fg_rmsnorm args = { .in = was.w.q, .weight = h.q_norm, .epsilon = 1e-5f, .out = out };
            fg_op_rmsnorm(device.stream, &args, ROWS * c->head_count);
            memcpy(was.w.q, out.values, ROWS * q_columns * sizeof(float));
            free_activations(&out);
        }
        store(&device, &h, c);
        for (size_t at = 0; at < ROWS * q_columns; at++) {
            cr_assert_eq(h.w.q[at], was.w.q[at], "%s, %s: %zu", c->name, test_isas[i / HEAD_CASES],
                         at);
        }
        free_heads(&was);
        free_heads(&h);
        close_test_device(&device);
    }
}

Test(rope_store, biases_and_norms_have_the_same_bits_everywhere)
{
    static const uint32_t dtypes[] = { FG_F16, FG_BF16, FG_F32, FG_I8 };
    for (size_t i = 0; i < 4 * (size_t)HEAD_CASES; i++) {
        const head_case *c = &head_cases[i % HEAD_CASES];
        uint32_t dtype = dtypes[i / HEAD_CASES];
        heads want = make_heads(c, dtype);
        turn(&want, c);
        test_device plain;
        cr_assert(open_test_device("plain", 1, &plain));
        store(&plain, &want, c);
        close_test_device(&plain);
        for (uint32_t k = 0; k < TEST_ISAS * 3; k++) {
            const char *isa = test_isas[k % TEST_ISAS];
            test_device device;
            if (!open_test_device(isa, 1 + k / TEST_ISAS, &device)) {
                continue;
            }
            heads h = make_heads(c, dtype);
            turn(&h, c);
            store(&device, &h, c);
            size_t q_bytes = (size_t)ROWS * c->head_count * c->head_dim * sizeof(float);
            cr_assert(memcmp(h.w.q, want.w.q, q_bytes) == 0, "%s, %s, %u threads: q", c->name, isa,
                      1 + k / TEST_ISAS);
            cr_assert(memcmp(h.w.kv.arena, want.w.kv.arena, BLOCKS * h.w.kv.block_bytes) == 0,
                      "%s, %s, %u threads: what is stored as %s", c->name, isa, 1 + k / TEST_ISAS,
                      fg_dtype_name(dtype));
            free_heads(&h);
            close_test_device(&device);
        }
        free_heads(&want);
    }
}

/* Of a prompt's last layer: K and V of all rows, then q of few. */
Test(rope_store, q_alone_and_keys_alone_are_as_together)
{
    for (uint32_t i = 0; i < HEAD_CASES * 4 * 2; i++) {
        static const uint32_t dtypes[] = { FG_F16, FG_BF16, FG_F32, FG_I8 };
        const head_case *c = &head_cases[i % HEAD_CASES];
        uint32_t dtype = dtypes[i / HEAD_CASES % 4];
        test_device device;
        cr_assert(open_test_device("auto", 1 + i / HEAD_CASES / 4, &device));
        heads want = make_heads(c, dtype), got = make_heads(c, dtype);
        size_t q_bytes = (size_t)ROWS * c->head_count * c->head_dim * sizeof(float);
        size_t kv_bytes = BLOCKS * got.w.kv.block_bytes;
        float *q = fg_mem_dup(got.w.q, q_bytes);
        turn(&want, c);
        turn(&got, c);
        store(&device, &want, c);
        store_parts(&device, &got, c, false, true);
        cr_assert(memcmp(got.w.q, q, q_bytes) == 0, "%s: keys alone changed q", c->name);
        cr_assert(memcmp(got.w.kv.arena, want.w.kv.arena, kv_bytes) == 0, "%s: keys alone",
                  c->name);
        memset(got.w.kv.arena, 0xEE, kv_bytes);
        store_parts(&device, &got, c, true, false);
        cr_assert(memcmp(got.w.q, want.w.q, q_bytes) == 0, "%s: q alone", c->name);
        for (size_t at = 0; at < kv_bytes; at++) {
            cr_assert(((uint8_t *)got.w.kv.arena)[at] == 0xEE, "%s: q alone stored", c->name);
        }
        close_test_device(&device);
        fg_mem_free(q);
        free_heads(&want);
        free_heads(&got);
    }
}
