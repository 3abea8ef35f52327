/*
 * isa_check - compares kernels with the plain ones bit for bit, without a test library, so that it can
 * run wherever a compiler and the C library are: tests/support/check-arm64 runs it under qemu.
 *
 *   isa_check NAME...   compares these instruction sets; fails when one cannot run here
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/dtype.h"
#include "common/base/mem.h"
#include "kernels/cpu/cpu.h"
#include "tests/unit/kernels/attend_data.h"

static const uint32_t types[] = { FG_F32,  FG_F16,  FG_BF16, FG_Q4_0, FG_Q4_1, FG_Q5_0,
                                  FG_Q5_1, FG_Q8_0, FG_Q4_K, FG_Q5_K, FG_Q6_K };
static const struct {
    uint32_t outputs, columns; /* columns of K types and of plain floats are adapted */
} shapes[] = { { 1, 32 }, { 7, 64 }, { 16, 256 }, { 75, 96 }, { 37, 1024 }, { 40, 640 } };
static const uint32_t kv_types[] = { FG_F32, FG_F16, FG_BF16, FG_I8 };
/* Attention over each type: what becomes (row, head)s in strips of every size, read from the arena or from
 * copies, whole chunks and parts of them. */
static const attend_case attend_shapes[] = {
    { "one head", 1, 1, 32, 16, 0, 77, 1, 0 },
    { "two heads", 2, 1, 64, 32, 0, 300, 1, 0 },
    { "three heads", 3, 1, 96, 16, 0, 270, 1, 0 },
    { "four heads", 4, 1, 80, 32, 0, 263, 1, 0 },
    { "five heads", 5, 1, 128, 16, 0, 530, 1, 0 },
    { "six heads", 6, 1, 256, 16, 0, 290, 1, 0 },
    { "seven heads", 7, 1, 64, 16, 0, 290, 1, 100 },
    { "seventeen heads", 17, 1, 128, 32, 0, 270, 1, 0 },
    { "twenty-one heads", 21, 1, 80, 16, 0, 270, 1, 0 },
    { "twenty-two heads", 22, 1, 96, 16, 0, 259, 1, 0 },
    { "twenty-six heads", 26, 1, 32, 32, 0, 300, 1, 0 },
    { "thirty-one heads", 31, 1, 64, 16, 0, 515, 1, 0 },
    { "two rows across a chunk", 4, 2, 64, 16, 0, 257, 2, 0 },
    { "two rows, one head", 1, 1, 96, 64, 0, 300, 2, 33 },
    { "five rows, a window", 3, 1, 128, 16, 0, 300, 5, 37 },
    { "five rows, a window of one", 2, 2, 40, 16, 0, 90, 5, 1 },
    { "seventeen rows", 8, 4, 64, 16, 0, 290, 17, 0 },
    { "seventeen rows, a window inside a piece", 2, 1, 80, 32, 0, 275, 17, 7 },
    { "seventeen rows, head of 256", 3, 1, 256, 32, 0, 280, 17, 150 },
    { "rows from the first slot", 4, 2, 64, 16, 0, 64, 64, 0 },
    { "rows across a chunk", 4, 2, 64, 16, 0, 300, 64, 0 },
    { "a short strip behind tall ones", 7, 1, 64, 16, 0, 600, 9, 0 },
    { "rows across a chunk, a window across chunks", 2, 1, 96, 32, 0, 560, 64, 270 },
    { "heads side by side", 15, 5, 64, 16, 0, 530, 1, 0 },
    { "groups of eight side by side, a window", 32, 4, 32, 16, 0, 560, 1, 301 },
    { "groups of sixteen side by side", 32, 2, 64, 64, 0, 300, 1, 0 },
    { "small blocks", 4, 2, 64, 8, 0, 70, 17, 21 },
    { "heads of no whole register", 3, 1, 20, 16, 0, 40, 17, 0 },
    { "heads above the largest that strips take", 2, 1, 320, 16, 0, 40, 2, 0 },
};
/* Super-groups: what each group's random numbers are multiplied by, and what its second one is then,
 * where that is not 0. */
static const struct {
    const char *name;
    float factors[FG_QUANT_SUPER_GROUPS];
    float plants[FG_QUANT_SUPER_GROUPS];
} super_cases[] = {
    { "alike", { 1, 1, 1, 1, 1, 1, 1, 1 }, { 0 } },
    { "of all shifts", { 1, 0.5f, 0.3f, 0.2f, 0.07f, 1e-3f, 1e-20f, 1e-38f }, { 0 } },
    { "rising", { 1e-30f, 1e-10f, 1e-4f, 0.01f, 0.1f, 1, 10, 1e30f }, { 0 } },
    { "at the edges of shifts",
      { 1, 1, 1, 1, 1, 1, 1, 1 },
      { 127, -254, 508, 1016, 127.00001f, 254.00002f, -508.00003f, 126.99999f } },
    { "with zeros", { 0, 1, 0, 0, 0.1f, 1, 1, 0 }, { 0 } },
    { "of zeros", { 0 }, { 0 } },
    { "next to nothing", { 1e-31f, 1e-32f, 1e-33f, 1e-40f, 0, 0, 1e-38f, 1e-32f }, { 0 } },
    { "hardly more than nothing", { 1e-30f, 1e-30f, 1e-31f, 1e-40f, 0, 0, 0, 0 }, { 0 } },
    { "with a NaN", { 1, 1, 1, 1, 1, 1, 1, 1 }, { [5] = NAN } },
    { "with an infinity", { 1, 1, 1, 1, 1, 1, 1, 0 }, { [7] = -INFINITY } },
    { "of the largest numbers", { 1, 1, 1, 1, 1, 1, 1, 1 }, { 3.4e38f, 1e37f } },
};
enum {
    SUPER_CASE_COUNT = sizeof super_cases / sizeof super_cases[0],
    KV_TYPE_COUNT = sizeof kv_types / sizeof kv_types[0],
    ATTEND_SHAPE_COUNT = sizeof attend_shapes / sizeof attend_shapes[0],
    ATTEND_STEP = 3, /* rows, for every case that has been computed at once too */
    TYPE_COUNT = sizeof types / sizeof types[0],
    SHAPE_COUNT = sizeof shapes / sizeof shapes[0],
    ROWS_FEW = 17,  /* every number of rows up to this, */
    ROWS_MANY = 24, /* and from this, of which some are many for every kernel, */
    ROWS_MAX = 50,  /* to this */
    ROW_COLUMNS = 300,
    SUPER_ROW = 3 * FG_QUANT_SUPER,
};

typedef struct check {
    const test_device *plain;
    const test_device *other;
    const char *name;
    unsigned comparisons;
    unsigned failures;
} check;

static void compare(check *c, const char *what, uint32_t rows, const void *got, const void *want,
                    size_t size_bytes)
{
    c->comparisons++;
    if (memcmp(got, want, size_bytes) != 0) {
        c->failures++;
        printf("not ok - %s: %s of %u rows differs from plain\n", c->name, what, rows);
    }
}

static uint32_t columns_for(uint32_t type, uint32_t columns)
{
    uint32_t block = fg_dtype_block_count(type);
    return block == 1 ? columns + 3 : (columns + block - 1) / block * block;
}

static void product(const test_device *device, const fg_panels *weight, const fg_activations *in,
                    uint32_t rows, bool accumulate, float *out)
{
    fg_linear linear = {
        .weight = *weight, .out = out, .out_stride = weight->outputs, .accumulate = accumulate
    };
    for (size_t i = 0; i < (size_t)ROWS_MAX * weight->outputs; i++) {
        out[i] = 0.25f;
    }
    fg_op_prepare(device->stream, in, fg_op_linear_form(device->stream, weight->type), rows);
    fg_op_linear(device->stream, &linear, 1, in, rows);
}

static void check_product(check *c, fg_rng *rng, uint32_t type, uint32_t outputs, uint32_t columns)
{
    fg_matrix matrix;
    columns = columns_for(type, columns);
    void *data = random_matrix(rng, type, outputs, columns, &matrix);
    fg_panels weight = pack_panels(&matrix);
    fg_activations in = make_activations(ROWS_MAX, columns);
    size_t count = (size_t)ROWS_MAX * outputs;
    float *want = fg_mem_array(count, sizeof(float));
    float *got = fg_mem_array(count, sizeof(float));
    float span = 3.0f;
    for (size_t i = 0; i < (size_t)ROWS_MAX * columns; i++) {
        if (i % FG_QUANT_GROUP == 0) {
            span = 3.0f / (float)(1 << fg_rng_below(rng, 5)); /* for shifts of all kinds */
        }
        in.values[i] = random_float(rng, span);
    }
    for (uint32_t rows = 1; rows <= ROWS_MAX; rows = rows == ROWS_FEW ? ROWS_MANY : rows + 1) {
        product(c->plain, &weight, &in, rows, rows % 2 == 0, want);
        product(c->other, &weight, &in, rows, rows % 2 == 0, got);
        compare(c, fg_dtype_name(type), rows, got, want, count * sizeof(float));
    }
    fg_mem_free(want);
    fg_mem_free(got);
    free_activations(&in);
    free_panels(&weight);
    fg_mem_free(data);
}

/* Quantisation, norm and gates of one row. */
static void check_rows(check *c, fg_rng *rng, uint32_t columns)
{
    const fg_cpu_kernels *tables[2] = { c->plain->device->kernels, c->other->device->kernels };
    float *in = random_floats(rng, columns, 9.0f);
    float *weight = random_floats(rng, columns, 2.0f);
    float out[2][3][ROW_COLUMNS];
    int8_t quants[2][ROW_COLUMNS];
    fg_quant_group groups[2][ROW_COLUMNS / FG_QUANT_GROUP];
    uint32_t pairs[2][ROW_COLUMNS / 2 + 16];
    uint16_t brains[2][ROW_COLUMNS];
    memset(quants, 0, sizeof quants);
    memset(groups, 0, sizeof groups);
    for (int i = 0; i < 2; i++) {
        tables[i]->quantize_row(in, columns, quants[i], groups[i]);
        bool apart = tables[i]->product_pairs != tables[i]->pair_row;
        tables[i]->product_pairs(in, columns, pairs[i]);
        for (uint32_t k = 0; k < columns; k++) {
            brains[i][k] = paired_column(pairs[i], apart, k);
        }
        tables[i]->pair_row(in, columns, pairs[i]);
        tables[i]->rmsnorm_row(in, weight, columns, 1e-5f, out[i][0]);
        tables[i]->swiglu(in, weight, columns, out[i][1]);
        tables[i]->geglu(in, weight, columns, out[i][2]);
    }
    compare(c, "quants", 1, quants[1], quants[0], sizeof quants[0]);
    compare(c, "groups", 1, groups[1], groups[0], sizeof groups[0]);
    compare(c, "pairs", 1, pairs[1], pairs[0], fg_panel_pairs(columns) * sizeof(uint32_t));
    compare(c, "product pairs", 1, brains[1], brains[0], columns * sizeof brains[0][0]);
    compare(c, "rmsnorm", 1, out[1][0], out[0][0], columns * sizeof(float));
    compare(c, "swiglu", 1, out[1][1], out[0][1], columns * sizeof(float));
    compare(c, "geglu", 1, out[1][2], out[0][2], columns * sizeof(float));
    fg_mem_free(in);
    fg_mem_free(weight);
}

/* A row of three super-groups: the case's is between two that are random. */
static void fill_super_row(fg_rng *rng, size_t at, float row[SUPER_ROW])
{
    for (size_t k = 0; k < SUPER_ROW; k++) {
        row[k] = random_float(rng, 9.0f);
    }
    for (size_t k = 0; k < FG_QUANT_SUPER; k++) {
        row[FG_QUANT_SUPER + k] *= super_cases[at].factors[k / FG_QUANT_GROUP];
    }
    for (size_t g = 0; g < FG_QUANT_SUPER_GROUPS; g++) {
        float plant = super_cases[at].plants[g];
        if (plant != 0.0f) {
            row[FG_QUANT_SUPER + g * FG_QUANT_GROUP + 1] = plant;
        }
    }
}

static void check_supers(check *c)
{
    enum { SUPERS = SUPER_ROW / FG_QUANT_SUPER, ALL_SHIFTS = (2 << FG_QUANT_SHIFT_MAX) - 1 };
    const fg_cpu_kernels *tables[2] = { c->plain->device->kernels, c->other->device->kernels };
    fg_rng rng = { .state = 32 };
    int shifts = 0, all_shifts = ALL_SHIFTS;
    for (size_t at = 0; at < SUPER_CASE_COUNT; at++) {
        float row[SUPER_ROW];
        int8_t quants[2][SUPER_ROW];
        fg_quant_super supers[2][SUPERS];
        char what[100];
        fill_super_row(&rng, at, row);
        memset(supers, 0, sizeof supers); /* what is unused stays as it is */
        for (int i = 0; i < 2; i++) {
            tables[i]->quantize_supers(row, SUPER_ROW, quants[i], supers[i]);
        }
        for (size_t g = 0; g < SUPER_ROW / FG_QUANT_GROUP; g++) {
            shifts |= 1 << supers[0][g / FG_QUANT_SUPER_GROUPS].shifts[g % FG_QUANT_SUPER_GROUPS];
        }
        snprintf(what, sizeof what, "super-groups' quants, %s,", super_cases[at].name);
        compare(c, what, 1, quants[1], quants[0], sizeof quants[0]);
        snprintf(what, sizeof what, "super-groups, %s,", super_cases[at].name);
        compare(c, what, 1, supers[1], supers[0], sizeof supers[0]);
    }
    compare(c, "set of shifts", SUPER_CASE_COUNT, &shifts, &all_shifts, sizeof shifts);
}

/* The rows of a case at once or some at a time, over the KV that this device stored. */
static void attend_in_steps(const test_device *device, const world *w, const attend_case *c,
                            uint32_t step, float *out)
{
    store_world(device, w, c);
    for (uint32_t row = c->slot_count - c->row_count; row < c->slot_count; row += step) {
        uint32_t left = c->slot_count - row;
        attend_rows(device, w, c, row, left < step ? left : step, out);
    }
}

static void check_attention(check *c, const attend_case *shape, uint32_t dtype, float spread)
{
    attend_case one = *shape;
    one.dtype = dtype;
    world w = make_world(&one, 57 + dtype);
    size_t columns = (size_t)one.head_count * one.head_dim;
    size_t out_bytes = one.slot_count * columns * sizeof(float);
    float *want = fg_mem_alloc(out_bytes);
    float *got = fg_mem_alloc(out_bytes);
    char what[100];
    snprintf(what, sizeof what, "attention over %s, %s,", fg_dtype_name(dtype), one.name);
    for (size_t i = 0; i < one.slot_count * columns; i++) {
        w.q[i] *= spread;
    }
    attend_in_steps(c->plain, &w, &one, one.row_count, want);
    attend_in_steps(c->other, &w, &one, one.row_count, got);
    compare(c, what, one.row_count, got, want, out_bytes);
    memset(got, 0, out_bytes);
    attend_in_steps(c->other, &w, &one, ATTEND_STEP, got);
    compare(c, what, ATTEND_STEP, got, want, out_bytes);
    fg_mem_free(want);
    fg_mem_free(got);
    free_world(&w);
}

/* Infinities, no numbers and denormals where rows see them: any NaN is as good as another. */
static void check_strange_attention(check *c, uint32_t dtype)
{
    enum { SLOTS = 300, FIRST = 236, DIM = 64, WIDTH = 2 * DIM };
    static const struct {
        char which;
        uint32_t at;
        float value;
    } plants[] = { { 'k', 3 * DIM + 1, 1e-40f },     { 'k', 4 * DIM + 2, 3e-6f },
                   { 'v', 5 * DIM + 3, 1e-40f },     { 'v', 6 * DIM + 4, -3e-6f },
                   { 'q', 240 * WIDTH + 5, 1e-42f }, { 'q', 241 * WIDTH + 6, INFINITY },
                   { 'q', 242 * WIDTH + 7, NAN },    { 'q', 243 * WIDTH + 70, -INFINITY },
                   { 'k', 255 * DIM + 8, INFINITY }, { 'v', 262 * DIM + 9, INFINITY },
                   { 'k', 270 * DIM + 10, NAN },     { 'v', 280 * DIM + 11, NAN } };
    const attend_case one = { "strange numbers", 2, 1, DIM, 16, dtype, SLOTS, SLOTS - FIRST, 40 };
    float *outs[2];
    for (int i = 0; i < 2; i++) {
        world w = make_world(&one, 58); /* a second turn of infinities would make them NaN */
        for (size_t k = 0; k < sizeof plants / sizeof plants[0]; k++) {
            float *x = plants[k].which == 'q' ? w.q : plants[k].which == 'k' ? w.k : w.v;
            x[plants[k].at] = plants[k].value;
        }
        outs[i] = fg_mem_array(SLOTS * WIDTH, sizeof(float));
        attend_in_steps(i == 0 ? c->plain : c->other, &w, &one, one.row_count, outs[i]);
        for (size_t at = 0; at < SLOTS * WIDTH; at++) {
            outs[i][at] = isnan(outs[i][at]) ? NAN : outs[i][at];
        }
        free_world(&w);
    }
    char what[100];
    snprintf(what, sizeof what, "attention over strange %s", fg_dtype_name(dtype));
    compare(c, what, one.row_count, outs[1], outs[0], SLOTS * WIDTH * sizeof(float));
    fg_mem_free(outs[0]);
    fg_mem_free(outs[1]);
}

static void check_all_attention(check *c)
{
    for (size_t t = 0; t < KV_TYPE_COUNT; t++) {
        for (size_t s = 0; s < ATTEND_SHAPE_COUNT; s++) {
            /* Weights that hardly differ, or go down to none. */
            check_attention(c, &attend_shapes[s], kv_types[t], s % 3 == 0 ? 1.0f : 8.0f);
        }
        check_strange_attention(c, kv_types[t]);
    }
}

static bool check_table(const char *name, const test_device *plain)
{
    test_device other;
    if (!open_test_device(name, 1, &other)) {
        printf("not ok - %s: cannot run here\n", name);
        return false;
    }
    check c = { .plain = plain, .other = &other, .name = name };
    fg_rng rng = { .state = 31 };
    for (uint32_t columns = 1; columns <= ROW_COLUMNS; columns += columns < 40 ? 1 : 13) {
        check_rows(&c, &rng, columns);
    }
    check_supers(&c);
    for (size_t t = 0; t < TYPE_COUNT; t++) {
        for (size_t s = 0; s < SHAPE_COUNT; s++) {
            check_product(&c, &rng, types[t], shapes[s].outputs, shapes[s].columns);
        }
    }
    check_all_attention(&c);
    if (c.failures == 0) {
        printf("ok - %s (%s): %u results equal plain's bits\n", name, other.device->kernels->name,
               c.comparisons);
    }
    close_test_device(&other);
    return c.failures == 0;
}

int main(int argc, char **argv)
{
    test_device plain;
    bool equal = open_test_device("plain", 1, &plain);
    for (int i = 1; i < argc; i++) {
        equal &= check_table(argv[i], &plain);
    }
    close_test_device(&plain);
    return equal ? 0 : 1;
}
