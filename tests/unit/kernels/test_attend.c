#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/dtype.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/kv/layout.h"
#include "kernels/ops.h"
#include "tests/support/test.h"
#include "tests/unit/kernels/attend_data.h"

enum { DIMS_MAX = 264 };

/* K or V of one slot and head, as `dtype` keeps it. */
static void as_stored(uint32_t dtype, const float *x, uint32_t count, double *out)
{
    float peak = 0.0f;
    for (uint32_t d = 0; d < count; d++) {
        peak = fabsf(x[d]) > peak ? fabsf(x[d]) : peak;
    }
    for (uint32_t d = 0; d < count; d++) {
        switch (dtype) {
        case FG_F16:
            out[d] = fg_f16_to_f32(fg_f16_from_f32(x[d]));
            break;
        case FG_BF16:
            out[d] = fg_bf16_to_f32(fg_bf16_from_f32(x[d]));
            break;
        case FG_I8:
            out[d] = (double)(peak / 127.0f) * nearbyint((double)(x[d] * (127.0f / peak)));
            break;
        default:
            out[d] = x[d];
            break;
        }
    }
}

/* K and V of all slots, as `dtype` keeps them. */
typedef struct stored_kv {
    double *k;
    double *v;
} stored_kv;

static stored_kv store_exactly(const world *w, const attend_case *c, uint32_t dtype)
{
    size_t heads = (size_t)c->slot_count * c->kv_head_count;
    stored_kv kv = { .k = fg_mem_array(heads * c->head_dim, sizeof(double)),
                     .v = fg_mem_array(heads * c->head_dim, sizeof(double)) };
    for (size_t at = 0; at < heads * c->head_dim; at += c->head_dim) {
        as_stored(dtype, w->k + at, c->head_dim, kv.k + at);
        as_stored(dtype, w->v + at, c->head_dim, kv.v + at);
    }
    return kv;
}

/* Plain softmax attention of one head in double. */
static void reference(const world *w, const attend_case *c, const stored_kv *kv, uint32_t row,
                      uint32_t head, double *out)
{
    uint32_t kv_head = head / (c->head_count / c->kv_head_count);
    const float *q = w->q + ((size_t)row * c->head_count + head) * c->head_dim;
    double sum = 0.0;
    memset(out, 0, c->head_dim * sizeof *out);
    uint32_t first = c->window == 0 || row < c->window ? 0 : row + 1 - c->window;
    for (uint32_t s = first; s <= row; s++) {
        size_t at = ((size_t)s * c->kv_head_count + kv_head) * c->head_dim;
        double score = 0.0;
        for (uint32_t d = 0; d < c->head_dim; d++) {
            score += q[d] * kv->k[at + d];
        }
        double weight = exp(score / sqrt(c->head_dim));
        sum += weight;
        for (uint32_t d = 0; d < c->head_dim; d++) {
            out[d] += weight * kv->v[at + d];
        }
    }
    for (uint32_t d = 0; d < c->head_dim; d++) {
        out[d] /= sum;
    }
}

/* The largest distance of `out` from attention over K and V as `dtype` keeps them. */
static double distance(const world *w, const attend_case *c, uint32_t dtype, const float *out)
{
    stored_kv kv = store_exactly(w, c, dtype);
    double want[DIMS_MAX];
    double largest = 0.0;
    for (uint32_t row = c->slot_count - c->row_count; row < c->slot_count; row++) {
        for (uint32_t head = 0; head < c->head_count; head++) {
            reference(w, c, &kv, row, head, want);
            const float *got = out + ((size_t)row * c->head_count + head) * c->head_dim;
            for (uint32_t d = 0; d < c->head_dim; d++) {
                double error = fabs(got[d] - want[d]);
                largest = error <= largest ? largest : error; /* NaN stays */
            }
        }
    }
    fg_mem_free(kv.k);
    fg_mem_free(kv.v);
    return largest;
}

/* All rows of a case at once, in steps of five, and one by one. Sanitizers look for other things than bits, and are slow:
 * there each device takes one of these. */
static void check_steps(const test_device *device, const world *w, const attend_case *c,
                        size_t turn, const float *want, float *out, size_t out_bytes)
{
    const uint32_t steps[] = { c->row_count, 5, 1 };
    enum { WAYS = sizeof steps / sizeof steps[0] };
#ifdef FORGE_SANITIZED
    size_t first = turn % WAYS, step = WAYS;
#else
    size_t first = 0, step = 1;
    (void)turn;
#endif
    for (size_t i = first; i < WAYS; i += step) {
        memset(out, 0, out_bytes);
        for (uint32_t row = c->slot_count - c->row_count; row < c->slot_count; row += steps[i]) {
            uint32_t left = c->slot_count - row;
            attend_rows(device, w, c, row, left < steps[i] ? left : steps[i], out);
        }
        cr_assert(memcmp(out, want, out_bytes) == 0, "%s in steps of %u, isa %s, %u threads",
                  c->name, steps[i], fg_device_isa(device->device),
                  fg_device_thread_count(device->device));
    }
}

Test(attend, agrees_with_double_and_is_exact_everywhere)
{
    for (size_t i = 0; i < ATTEND_CASES; i++) {
        const attend_case *c = &attend_cases[i];
        world w = make_world(c, 31 + i);
        size_t out_bytes = (size_t)c->slot_count * c->head_count * c->head_dim * sizeof(float);
        float *want = fg_mem_alloc(out_bytes);
        float *out = fg_mem_alloc(out_bytes);
        test_device plain;
        cr_assert(open_test_device("plain", 1, &plain));
        store_world(&plain, &w, c);
        attend_rows(&plain, &w, c, c->slot_count - c->row_count, c->row_count, want);
        /* bf16 and int8 round q and the weights, too. */
        double bound = c->dtype == FG_BF16 || c->dtype == FG_I8 ? 1.5e-2 : 2e-6;
        double seen = distance(&w, c, c->dtype, want);
        cr_assert_leq(seen, bound, "%s: %g", c->name, seen);
        for (uint32_t variant = 0; variant < 2 * TEST_ISAS; variant++) {
            test_device device;
            /* Each alone, and with two or three threads in turns. */
            uint32_t threads = variant % 2 == 0 ? 1 : 2 + (variant / 2 + (uint32_t)i) % 2;
            if (!open_test_device(test_isas[variant / 2], threads, &device)) {
                continue;
            }
            check_steps(&device, &w, c, variant + i, want, out, out_bytes);
            close_test_device(&device);
        }
        close_test_device(&plain);
        fg_mem_free(want);
        fg_mem_free(out);
        free_world(&w);
    }
}

/* The cache may begin and end where a mapping does: nine rows at once and one by one, groups of one to eight, as plain
 * has them. */
Test(attend, nothing_outside_the_cache_is_read)
{
    static const uint32_t dtypes[] = { FG_F32, FG_F16, FG_BF16, FG_I8 };
    enum { SLOTS = 288, BYTES_MAX = 1 << 18 };
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *map = mmap(NULL, BYTES_MAX + 2 * page, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert(map != MAP_FAILED);
    cr_assert(mprotect(map, page, PROT_NONE) == 0);
    cr_assert(mprotect(map + page + BYTES_MAX, page, PROT_NONE) == 0);
    for (uint32_t i = 0; i < sizeof dtypes / sizeof dtypes[0] * 8; i++) {
        const uint32_t group = 1 + i % 8;
        const attend_case c = { "guarded", group, 1, 64, 16, dtypes[i / 8], SLOTS, 9, 0 };
        world w = make_world(&c, 77 + i);
        const size_t arena_bytes = (fg_kv_blocks_for(SLOTS, 16) | 1) * w.kv.block_bytes;
        cr_assert(arena_bytes <= BYTES_MAX);
        float *outs[2] = { fg_mem_array(SLOTS * group, 64 * sizeof(float)),
                           fg_mem_array(SLOTS * group, 64 * sizeof(float)) };
        for (size_t isa = 0; isa < TEST_ISAS; isa++) {
            test_device device;
            if (!open_test_device(test_isas[isa], 1, &device)) {
                continue;
            }
            store_world(&device, &w, &c);
            if (isa == 0) {
                attend_rows(&device, &w, &c, SLOTS - 9, 9, outs[0]);
            }
            for (uint32_t at = 0; at < 4; at++) {
                memset(outs[1], 0, SLOTS * group * 64 * sizeof(float));
                world guarded = w;
                guarded.kv.arena = map + page + (at < 2 ? 0 : BYTES_MAX - arena_bytes);
                memcpy(guarded.kv.arena, w.kv.arena, arena_bytes);
                for (uint32_t row = SLOTS - 9; row < SLOTS; row += at % 2 == 0 ? 9 : 1) {
                    attend_rows(&device, &guarded, &c, row, at % 2 == 0 ? 9 : 1, outs[1]);
                }
                cr_assert(memcmp(outs[0], outs[1], SLOTS * group * 64 * sizeof(float)) == 0,
                          "%s, isa %s, a group of %u", fg_dtype_name(dtypes[i / 8]), test_isas[isa],
                          group);
            }
            close_test_device(&device);
        }
        fg_mem_free(outs[0]);
        fg_mem_free(outs[1]);
        free_world(&w);
    }
    munmap(map, BYTES_MAX + 2 * page);
    cr_assert_str_eq(test_isas[0], "plain");
}

/* Later slots hold what nobody may multiply by, even by 0: the rows of a tile end at every place of a pair. */
Test(attend, what_lies_behind_a_row_changes_nothing)
{
    static const uint32_t dtypes[] = { FG_F32, FG_F16, FG_BF16, FG_I8 };
    enum { BAD = 37, SLOTS = 45, WIDTH = 4 * 64 };
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0] * TEST_ISAS; i++) {
        const attend_case c = { "nan", 4, 1, 64, 16, dtypes[i / TEST_ISAS], SLOTS, SLOTS, 0 };
        float outs[2][SLOTS * WIDTH];
        test_device device;
        if (!open_test_device(test_isas[i % TEST_ISAS], 1, &device)) {
            continue;
        }
        for (int bad = 0; bad < 2; bad++) {
            world w = make_world(&c, 905);
            for (uint32_t d = 0; d < 64 && bad == 1; d++) {
                w.k[BAD * 64 + d] = NAN;
                w.v[BAD * 64 + d] = NAN;
            }
            store_world(&device, &w, &c);
            attend_rows(&device, &w, &c, 0, SLOTS, outs[bad]);
            free_world(&w);
        }
        cr_assert(memcmp(outs[0], outs[1], sizeof(float[BAD * WIDTH])) == 0, "%s, isa %s",
                  fg_dtype_name(dtypes[i / TEST_ISAS]), test_isas[i % TEST_ISAS]);
        close_test_device(&device);
    }
}

/* Whatever the others are: the highest score, the sum and the records of chunks pass it on. */
Test(attend, a_nan_that_a_row_sees_is_in_all_its_outputs)
{
    static const uint32_t dtypes[] = { FG_F32, FG_F16, FG_BF16 };
    enum { SLOTS = 600, FIRST = 560, WIDTH = 4 * 64 };
    static const uint32_t bad[] = { 0, 17, 255, 256, 300, 511, 543 };
    static float out[SLOTS * WIDTH];
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0] * TEST_ISAS; i++) {
        const attend_case c = { "seen", 4, 1, 64, 16, dtypes[i / TEST_ISAS], SLOTS, SLOTS, 0 };
        test_device device;
        if (!open_test_device(test_isas[i % TEST_ISAS], 1, &device)) {
            continue;
        }
        for (size_t b = 0; b < sizeof bad / sizeof bad[0]; b++) {
            world w = make_world(&c, 907);
            w.k[bad[b] * 64 + 5] = NAN;
            store_world(&device, &w, &c);
            attend_rows(&device, &w, &c, FIRST, SLOTS - FIRST, out);
            for (size_t at = FIRST * WIDTH; at < SLOTS * WIDTH; at++) {
                cr_assert(isnan(out[at]), "%s, isa %s, slot %u: %g",
                          fg_dtype_name(dtypes[i / TEST_ISAS]), test_isas[i % TEST_ISAS], bad[b],
                          (double)out[at]);
            }
            free_world(&w);
        }
        close_test_device(&device);
    }
}

/* Weights from 1 to none at all: sums of them round, which those of nearly equal bf16 weights do not. */
Test(attend, scores_far_apart_are_exact_everywhere)
{
    static const uint32_t dtypes[] = { FG_F32, FG_F16, FG_BF16, FG_I8 };
    enum { SLOTS = 300, FIRST = 240, WIDTH = 4 * 64 };
    const size_t out_bytes = (size_t)SLOTS * WIDTH * sizeof(float);
    float *outs[2] = { fg_mem_alloc(out_bytes), fg_mem_alloc(out_bytes) };
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0] * TEST_ISAS; i++) {
        const attend_case c = { "far", 4, 1, 64, 16, dtypes[i / TEST_ISAS], SLOTS, SLOTS, 0 };
        test_device device;
        if (!open_test_device(test_isas[i % TEST_ISAS], 1, &device)) {
            continue;
        }
        world w = make_world(&c, 906);
        for (uint32_t at = 0; at < SLOTS * WIDTH; at++) {
            w.q[at] *= 6.0f;
        }
        float *out = outs[i % TEST_ISAS != 0];
        memset(out, 0, out_bytes);
        store_world(&device, &w, &c);
        attend_rows(&device, &w, &c, FIRST, SLOTS - FIRST, out);
        cr_assert(memcmp(outs[0], out, out_bytes) == 0, "%s, isa %s",
                  fg_dtype_name(dtypes[i / TEST_ISAS]), test_isas[i % TEST_ISAS]);
        free_world(&w);
        close_test_device(&device);
    }
    fg_mem_free(outs[0]);
    fg_mem_free(outs[1]);
}

/* Where bf16 lies (ops.h), half to even, and no number below 2^-50. */
Test(rope_store, bf16_keeps_pairs)
{
    static const uint32_t block_sizes[] = { 1, 4, 32 };
    test_device device;
    cr_assert(open_test_device("auto", 1, &device));
    for (size_t i = 0; i < 3; i++) {
        const uint32_t size = block_sizes[i];
        const attend_case c = { "pairs", 1, 1, 8, size, FG_BF16, 40, 40, 0 };
        world w = make_world(&c, 79);
        w.v[0] = 0x1p-51f;
        w.v[1] = -0x1.01p-50f; /* a tie, to even */
        w.v[2] = -0x1.ffp-51f;
        store_world(&device, &w, &c);
        for (uint32_t at = 0; at < 40 * 8; at++) {
            uint32_t slot = at / 8;
            uint32_t d = at % 8;
            uint32_t in_block = slot % size;
            uint32_t piece = size < 16 ? size : 16;
            const uint8_t *block =
                (const uint8_t *)w.kv.arena + w.block_ids[slot / size] * w.kv.block_bytes;
            size_t key = ((in_block / piece * 4 + d / 2) * piece + in_block % piece) * 2;
            size_t value = size == 1 ? d : (in_block / 2 * 8 + d) * 2 + (in_block % 2 == 0);
            uint16_t stored[2];
            memcpy(&stored[0], block + (key + (d % 2 == 0)) * 2, 2);
            memcpy(&stored[1], block + w.kv.value_offset + value * 2, 2);
            cr_assert_eq(stored[0], fg_bf16_from_f32(w.k[at]), "key %u of blocks of %u", at, size);
            cr_assert_eq(stored[1], at == 0 ? 0 : fg_bf16_from_f32(w.v[at]), "value %u", at);
        }
        free_world(&w);
    }
    close_test_device(&device);
}

/* Where int8 lies (ops.h), and its scales. */
Test(rope_store, int8_keeps_fours)
{
    static const uint32_t block_sizes[] = { 1, 2, 4, 32 };
    test_device device;
    cr_assert(open_test_device("auto", 1, &device));
    for (size_t i = 0; i < 4; i++) {
        const uint32_t size = block_sizes[i];
        const attend_case c = { "fours", 1, 1, 8, size, FG_I8, 40, 40, 0 };
        world w = make_world(&c, 80);
        memset(w.v, 0, 8 * sizeof *w.v); /* nothing: a scale of 0 */
        store_world(&device, &w, &c);
        for (uint32_t at = 0; at < 40 * 8; at++) {
            uint32_t slot = at / 8;
            uint32_t d = at % 8;
            uint32_t in_block = slot % size;
            uint32_t piece = size < 16 ? size : 16;
            const uint8_t *block =
                (const uint8_t *)w.kv.arena + w.block_ids[slot / size] * w.kv.block_bytes;
            size_t key = (in_block / piece * 2 + d / 4) * piece * 4 + in_block % piece * 4 + d % 4;
            size_t value = size < 4 ? in_block * 8 + d : in_block / 4 * 32 + d * 4 + in_block % 4;
            float scales[2];
            memcpy(&scales[0], block + w.kv.scale_offset + in_block * 4, 4);
            memcpy(&scales[1], block + w.kv.value_offset + w.kv.scale_offset + in_block * 4, 4);
            double wanted[8];
            as_stored(FG_I8, w.k + slot * 8, 8, wanted);
            cr_assert_eq((double)scales[0] * (int8_t)block[key], wanted[d],
                         "key %u of blocks of %u", at, size);
            as_stored(FG_I8, w.v + slot * 8, 8, wanted);
            cr_assert_eq((double)scales[1] * (int8_t)block[w.kv.value_offset + value],
                         slot == 0 ? 0.0 : wanted[d], "value %u of blocks of %u", at, size);
        }
        free_world(&w);
    }
    close_test_device(&device);
}

/* Zeros, an infinity, and no numbers of every kind, where rows see them. */
Test(attend, strange_numbers_over_int8_are_the_same_everywhere)
{
    static const uint32_t nans[] = { 0x7FC00001, 0xFFFFFFFF, 0x7FC00000 };
    enum { SLOTS = 300, FIRST = 250, WIDTH = 4 * 64, FLOATS = SLOTS * WIDTH };
    const attend_case c = { "strange", 4, 1, 64, 16, FG_I8, SLOTS, SLOTS, 0 };
    uint32_t *outs[2] = { fg_mem_array(FLOATS, 4), fg_mem_array(FLOATS, 4) };
    for (size_t i = 0; i < TEST_ISAS; i++) {
        test_device device;
        if (!open_test_device(test_isas[i], 1, &device)) {
            continue;
        }
        world w = make_world(&c, 908);
        memset(w.k + 20 * 64, 0, 64 * sizeof *w.k);
        memset(w.v + 21 * 64, 0, 64 * sizeof *w.v);
        w.v[270 * 64 + 5] = INFINITY; /* rows before it stay finite */
        memset(w.q + 255 * WIDTH, 0, WIDTH * sizeof *w.q);
        for (uint32_t n = 0; n < 3; n++) {
            memcpy(&w.q[(256 + n) * WIDTH + 70], &nans[n], 4);
        }
        w.q[260 * WIDTH] = -INFINITY;
        uint32_t *out = outs[i != 0];
        store_world(&device, &w, &c);
        attend_rows(&device, &w, &c, FIRST, SLOTS - FIRST, (float *)(void *)out);
        for (uint32_t at = FIRST * WIDTH; at < FLOATS; at++) {
            bool none = (outs[0][at] & INT32_MAX) > 0x7F800000;
            cr_assert(none ? (out[at] & INT32_MAX) > 0x7F800000 : out[at] == outs[0][at],
                      "row %u, column %u, isa %s", at / WIDTH, at % WIDTH, test_isas[i]);
            cr_assert(!none || at / WIDTH == 260 || at / WIDTH >= 270, "row %u", at / WIDTH);
        }
        free_world(&w);
        close_test_device(&device);
    }
    fg_mem_free(outs[0]);
    fg_mem_free(outs[1]);
}

/* What a KV type gives is part of the numerics class: other bits here are a new kernel revision (engine_model.c). */
Test(attend, bits_are_those_of_this_kernel_revision)
{
    static const struct {
        uint32_t dtype;
        uint64_t want;
    } revisions[] = { { FG_F16, 0x9bab6649c34874fd },
                      { FG_BF16, 0xf0ec495a06def7dd },
                      { FG_I8, 0x8abefc412a19653b },
                      { FG_F32, 0x732a149197147468 } };
    enum { SLOTS = 300, FIRST = 290, WIDTH = 4 * 64 };
    test_device device;
    cr_assert(open_test_device("auto", 1, &device));
    for (size_t i = 0; i < sizeof revisions / sizeof revisions[0]; i++) {
        const attend_case c = { "bits", 4, 2, 64, 16, revisions[i].dtype, SLOTS, SLOTS, 0 };
        world w = make_world(&c, 909);
        float *out = fg_mem_array(SLOTS * WIDTH, sizeof *out);
        store_world(&device, &w, &c);
        attend_rows(&device, &w, &c, FIRST, SLOTS - FIRST, out);
        uint64_t seen = fg_hash64(out + FIRST * WIDTH, (SLOTS - FIRST) * WIDTH * sizeof *out, 0);
        cr_assert_eq(seen, revisions[i].want, "%s: %#llx", fg_dtype_name(revisions[i].dtype),
                     (unsigned long long)seen);
        fg_mem_free(out);
        free_world(&w);
    }
    close_test_device(&device);
}

/* One slot outweighs each of the others 600 times, all others together twice: as bytes, rounded to nearest, they
 * would all be gone. */
Test(attend, many_small_weights_of_int8_are_not_lost)
{
    enum { SLOTS = 256, DIMS = 64 };
    const attend_case c = { "tail", 1, 1, DIMS, 16, FG_I8, SLOTS, SLOTS, 0 };
    test_device device;
    cr_assert(open_test_device("auto", 1, &device));
    world w = make_world(&c, 907);
    float out[SLOTS * DIMS];
    for (uint32_t at = 0; at < SLOTS * DIMS; at++) {
        w.q[at] = 1.0f;
        w.k[at] = at / DIMS == 7 ? logf(600.0f) / 8.0f : 0.0f; /* times 64 / sqrt(64) */
        w.v[at] = at / DIMS == 7 ? -1.0f : 1.0f;
    }
    store_world(&device, &w, &c);
    attend_rows(&device, &w, &c, 0, SLOTS, out);
    double want = (255.0 / 600.0 - 1.0) / (255.0 / 600.0 + 1.0);
    double last = out[(SLOTS - 1) * DIMS];
    cr_assert_leq(fabs(last - want), 0.02, "%g instead of %g", last, want);
    free_world(&w);
    close_test_device(&device);
}

/* What a KV type costs, against attention over the very K and V: uniform numbers of spans 1.5 and 1. */
Test(attend, kv_types_stay_within_their_error)
{
    static const struct {
        uint32_t dtype;
        double bound;
    } bounds[] = { { FG_F32, 2e-6 }, { FG_F16, 4e-4 }, { FG_BF16, 3e-3 }, { FG_I8, 1e-2 } };
    test_device device;
    cr_assert(open_test_device("auto", 1, &device));
    for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++) {
        const attend_case c = { "error", 4, 2, 64, 16, bounds[i].dtype, 300, 290, 0 };
        world w = make_world(&c, 900);
        float *out = fg_mem_alloc((size_t)300 * 4 * 64 * sizeof(float));
        store_world(&device, &w, &c);
        attend_rows(&device, &w, &c, 0, 300, out);
        double error = distance(&w, &c, FG_F32, out);
        cr_log_info("%s: %.2g", fg_dtype_name(bounds[i].dtype), error);
        cr_assert_leq(error, bounds[i].bound, "%s: %g", fg_dtype_name(bounds[i].dtype), error);
        fg_mem_free(out);
        free_world(&w);
    }
    close_test_device(&device);
}

Test(attend, block_size_does_not_show)
{
    static const uint32_t sizes[] = { 16, 1, 2, 4, 8, 32, 64, 512 };
    static const uint32_t dtypes[] = { FG_F16, FG_I8, FG_BF16 };
    test_device device;
    cr_assert(open_test_device("auto", 2, &device));
    for (size_t t = 0; t < sizeof dtypes / sizeof dtypes[0]; t++) {
        float *outs[2];
        size_t out_bytes = (size_t)300 * 3 * 64 * sizeof(float);
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            const attend_case c = { "sizes", 3, 1, 64, sizes[i], dtypes[t], 300, 300, 0 };
            world w = make_world(&c, 901);
            float *out = fg_mem_alloc(out_bytes);
            store_world(&device, &w, &c);
            attend_rows(&device, &w, &c, 0, 300, out);
            outs[i > 0] = out;
            free_world(&w);
            if (i > 0) {
                cr_assert(memcmp(outs[0], outs[1], out_bytes) == 0, "blocks of %u", sizes[i]);
                fg_mem_free(outs[1]);
            }
        }
        fg_mem_free(outs[0]);
    }
    close_test_device(&device);
}

/* Rows of several sequences in any order, with and without neighbours that make a tile. */
Test(attend, a_ragged_batch_changes_no_row)
{
    static const struct {
        uint32_t table, position;
    } rows[] = { { 0, 5 },    { 0, 6 },   { 0, 7 },   { 1, 7 },   { 0, 8 },  { 1, 1100 },
                 { 1, 1101 }, { 0, 255 }, { 0, 256 }, { 0, 257 }, { 0, 0 },  { 1, 600 },
                 { 1, 600 },  { 0, 300 }, { 0, 299 }, { 1, 10 },  { 1, 11 }, { 1, 12 },
                 { 1, 13 },   { 1, 14 },  { 1, 15 },  { 1, 16 },  { 1, 17 }, { 1, 18 },
                 { 1, 19 },   { 0, 1101 } };
    enum { ROWS = sizeof rows / sizeof rows[0], COLUMNS = 9 * 64 };
    const attend_case c = { "ragged", 9, 3, 64, 16, FG_F16, 1102, 0, 0 };
    world w = make_world(&c, 902);
    test_device devices[2];
    cr_assert(open_test_device("auto", 1, &devices[0]));
    cr_assert(open_test_device("auto", 2, &devices[1]));
    store_world(&devices[0], &w, &c);
    uint32_t *again = fg_mem_dup(w.block_ids, fg_kv_blocks_for(1102, 16) * sizeof(uint32_t));
    float together[ROWS][COLUMNS];
    float alone[ROWS][COLUMNS];
    for (uint32_t row = 0; row < ROWS; row++) {
        w.kv_rows[row] = (fg_kv_row){ .block_ids = rows[row].table == 0 ? w.block_ids : again,
                                      .position = rows[row].position };
        attend_rows(&devices[0], &w, &c, row, 1, &alone[0][0]);
    }
    for (int i = 0; i < 2; i++) {
        attend_rows(&devices[i], &w, &c, 0, ROWS, &together[0][0]);
        cr_assert(memcmp(together, alone, sizeof alone) == 0, "%d threads", i + 1);
    }
    close_test_device(&devices[0]);
    close_test_device(&devices[1]);
    fg_mem_free(again);
    free_world(&w);
}

/* A prompt's end is work enough for its last units to be split; the rows are those of tiles of one row. */
Test(attend, units_that_are_split_change_no_row)
{
    enum { FIRST = 500, ROWS = 150, HEADS = 16, COLUMNS = HEADS * 64, SLOTS = FIRST + ROWS };
    static const struct {
        uint32_t dtype, window;
    } kinds[] = { { FG_BF16, 0 }, { FG_BF16, 300 }, { FG_F16, 0 }, { FG_I8, 0 } };
    static float together[SLOTS][COLUMNS], alone[SLOTS][COLUMNS]; /* by position */
    for (uint32_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        const attend_case c = {
            "split", HEADS, 8, 64, 16, kinds[k].dtype, SLOTS, 0, kinds[k].window
        };
        for (uint32_t i = 0; i <= TEST_ISAS; i++) {
            test_device device;
            const char *isa = i == 0 ? "auto" : test_isas[i - 1];
            if (!open_test_device(isa, i == 0 ? 1 : 2, &device)) {
                continue;
            }
            world w = make_world(&c, 905);
            store_world(&device, &w, &c);
            for (uint32_t row = 0; row < ROWS && i == 0; row++) {
                attend_rows(&device, &w, &c, FIRST + row, 1, &alone[0][0]);
            }
            memset(together, 0, sizeof together);
            attend_rows(&device, &w, &c, FIRST, ROWS, &together[0][0]);
            cr_assert(memcmp(together, alone, sizeof alone) == 0, "%s, case %u, kind %u", isa, i,
                      k);
            close_test_device(&device);
            free_world(&w);
        }
    }
}

/* More sequences than one round of tiles takes, and more chunks than can be shared out. */
Test(attend, large_batches_and_contexts_go_in_rounds)
{
    enum { ROWS = 300, COLUMNS = 2 * 8 };
    const attend_case c = { "rounds", 2, 1, 8, 16, FG_F32, 600, 0, 0 };
    world w = make_world(&c, 903);
    test_device devices[2];
    cr_assert(open_test_device("auto", 1, &devices[0]));
    cr_assert(open_test_device("auto", 2, &devices[1]));
    store_world(&devices[0], &w, &c);
    static float together[ROWS][COLUMNS];
    static float alone[ROWS][COLUMNS];
    for (uint32_t row = 0; row < ROWS; row++) {
        w.kv_rows[row].position = (row * 7) % 600; /* no two follow each other */
        attend_rows(&devices[0], &w, &c, row, 1, &alone[0][0]);
    }
    for (int i = 0; i < 2; i++) {
        attend_rows(&devices[i], &w, &c, 0, ROWS, &together[0][0]);
        cr_assert(memcmp(together, alone, sizeof alone) == 0, "%d threads", i + 1);
    }
    close_test_device(&devices[0]);
    close_test_device(&devices[1]);
    free_world(&w);
}

Test(attend, large_scores_stay_finite)
{
    const attend_case c = { "large", 1, 1, 8, 16, FG_F32, 40, 40, 0 };
    world w = make_world(&c, 77);
    for (uint32_t i = 0; i < c.slot_count * 8; i++) {
        w.q[i] = 100.0f;
        w.k[i] = i / 8 == 20 ? 100.0f : -100.0f;
    }
    test_device device;
    cr_assert(open_test_device("auto", 1, &device));
    store_world(&device, &w, &c);
    float out[40 * 8];
    attend_rows(&device, &w, &c, 0, 40, out);
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
        const attend_case c = { "rope", 1, 1, 8, 4, FG_F16, 6, 6, 0 };
        world w = make_world(&c, 78);
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
                memcpy(&stored[0], block + (d * 4 + row % 4) * 2, 2);
                memcpy(&stored[1], block + w.kv.value_offset + ((row % 4) * 8 + d) * 2, 2);
                cr_assert_eq(w.q[row * 8 + d], want_q);
                cr_assert_eq(stored[0], fg_f16_from_f32(want_k),
                             "keys of a piece lie by dimension");
                cr_assert_eq(stored[1], fg_f16_from_f32(w.v[row * 8 + d]));
            }
        }
        fg_mem_free(q);
        fg_mem_free(k);
        free_world(&w);
    }
    close_test_device(&device);
}

/* Where rounding to halves changes its way: ties, the smallest normal and denormal ones, what overflows, no number. */
static const float rounding_edges[] = {
    0x1.002p0f, 0x1.006p0f,       0x1p-14f,          0x1.ffcp-15f,      0x1p-24f, 0x1.8p-24f,
    0x1p-25f,   0x1p-26f,         65504.0f,          65519.0f,          65520.0f, 1e30f,
    -0.0f,      __builtin_inff(), -__builtin_inff(), __builtin_nanf("")
};

typedef struct turn_case {
    uint32_t dtype, pair_count;
    bool interleaved;
    bool apart; /* rows of sequences of their own, else of one */
} turn_case;

enum { TURN_BLOCKS = 3 };

/* One world, turned and stored by one instruction set. With `twins` (of TURN_BLOCKS blocks), odd rows are written there
 * too. */
static world turned_world(const char *isa, uint32_t threads, const turn_case *t, uint8_t *twins)
{
    const attend_case c = { "turn", 3, 2, 64, 16, t->dtype, 19, 19, 0 };
    test_device device;
    cr_assert(open_test_device(isa, threads, &device));
    world w = make_world(&c, 79);
    size_t columns = (size_t)c.kv_head_count * c.head_dim;
    for (uint32_t i = 0; i < c.slot_count * t->pair_count; i++) {
        w.table[2 * i] = cosf((float)i);
        w.table[2 * i + 1] = sinf((float)i);
    }
    for (uint32_t row = 0; row < c.slot_count && t->apart; row++) {
        w.kv_rows[row] = (fg_kv_row){ .block_ids = w.block_ids + row % 3, .position = row / 3 };
    }
    for (uint32_t row = 1; row < c.slot_count && twins != NULL; row += 2) {
        fg_kv_row *at = &w.kv_rows[row];
        uint32_t block = at->block_ids[at->position / c.block_size];
        at->twin = twins + block * w.kv.block_bytes;
    }
    memcpy(w.v + columns, rounding_edges, sizeof rounding_edges);
    fg_rope_store args = { .q = w.q,
                           .k = w.k,
                           .v = w.v,
                           .kv_rows = w.kv_rows,
                           .table = w.table,
                           .pair_count = t->pair_count,
                           .head_count = c.head_count,
                           .interleaved = t->interleaved };
    fg_op_rope_store(device.stream, &w.kv, &args, c.slot_count);
    close_test_device(&device);
    return w;
}

static void expect_same_turns(const char *isa, uint32_t threads, const turn_case *t)
{
    enum { Q_BYTES = 19 * 3 * 64 * sizeof(float) };
    world want = turned_world("plain", 1, t, NULL);
    world got = turned_world(isa, threads, t, NULL);
    cr_assert(memcmp(got.q, want.q, Q_BYTES) == 0, "%s, %u threads, %u pairs, interleaved %d", isa,
              threads, t->pair_count, t->interleaved);
    cr_assert(memcmp(got.kv.arena, want.kv.arena, TURN_BLOCKS * want.kv.block_bytes) == 0,
              "%s, %u threads, %u pairs, interleaved %d, apart %d: what is stored as %s", isa,
              threads, t->pair_count, t->interleaved, t->apart, fg_dtype_name(t->dtype));
    free_world(&want);
    free_world(&got);
}

Test(rope_store, turns_and_rounds_with_the_same_bits_everywhere)
{
    static const uint32_t pair_counts[] = { 32, 24, 8, 20, 5 };
    static const uint32_t dtypes[] = { FG_F16, FG_BF16, FG_F32, FG_I8 };
    for (uint32_t i = 0; i < TEST_ISAS * 3; i++) {
        test_device device;
        uint32_t threads = 1 + i / TEST_ISAS;
        if (!open_test_device(test_isas[i % TEST_ISAS], threads, &device)) {
            continue;
        }
        close_test_device(&device);
        for (uint32_t k = 0; k < 5 * 4 * 4; k++) {
            turn_case t = { dtypes[k % 4], pair_counts[k / 4 % 5], k / 20 % 2 == 1, k / 40 == 1 };
            expect_same_turns(test_isas[i % TEST_ISAS], threads, &t);
        }
    }
}

/* What is computed for another worker lies there as it lies here; other slots stay as they were. */
Test(rope_store, writes_twins_where_there_are_some)
{
    static const uint32_t dtypes[] = { FG_F16, FG_BF16, FG_F32, FG_I8 };
    for (uint32_t i = 0; i < TEST_ISAS * 4 * 2; i++) {
        const char *isa = test_isas[i % TEST_ISAS];
        turn_case t = { dtypes[i / TEST_ISAS % 4], 32, false, i / TEST_ISAS / 4 == 1 };
        test_device device;
        if (!open_test_device(isa, 2, &device)) {
            continue;
        }
        close_test_device(&device);
        world alone = turned_world(isa, 2, &t, NULL);
        size_t bytes = TURN_BLOCKS * alone.kv.block_bytes;
        uint8_t *twins = malloc(bytes), *marked = malloc(bytes);
        memset(twins, 0xEE, bytes);
        world w = turned_world(isa, 2, &t, twins);
        cr_assert(memcmp(w.kv.arena, alone.kv.arena, bytes) == 0, "%s: a twin changed this side",
                  isa);
        /* The same slots, found by storing over another ground. */
        memset(marked, 0x11, bytes);
        world other = turned_world(isa, 2, &t, marked);
        size_t written = 0;
        for (size_t at = 0; at < bytes; at++) {
            bool stays = twins[at] == 0xEE && marked[at] == 0x11;
            written += !stays;
            cr_assert(stays || twins[at] == ((const uint8_t *)w.kv.arena)[at], "%s, %s: byte %zu",
                      isa, fg_dtype_name(t.dtype), at);
        }
        size_t slot = 2 * 2 * 64 * fg_dtype_kv_bytes(t.dtype) +
                      (t.dtype == FG_I8 ? 2 * 2 * sizeof(float) : 0);
        cr_assert_eq(written, 9 * slot, "%s, %s: %zu bytes", isa, fg_dtype_name(t.dtype), written);
        free(twins);
        free(marked);
        free_world(&alone);
        free_world(&w);
        free_world(&other);
    }
}
