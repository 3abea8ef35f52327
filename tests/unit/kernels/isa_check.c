/*
 * isa_check - compares kernels with the plain ones bit for bit, without a test library, so that it can
 * run wherever a compiler and the C library are: tests/support/check-arm64 runs it under qemu.
 *
 *   isa_check NAME...   compares these instruction sets; fails when one cannot run here
 */
#include <stdio.h>
#include <string.h>

#include "common/base/dtype.h"
#include "common/base/mem.h"
#include "kernels/cpu/cpu.h"
#include "tests/unit/kernels/kernel_data.h"

static const uint32_t types[] = { FG_F32,  FG_F16,  FG_BF16, FG_Q4_0, FG_Q4_1, FG_Q5_0,
                                  FG_Q5_1, FG_Q8_0, FG_Q4_K, FG_Q5_K, FG_Q6_K };
static const struct {
    uint32_t outputs, columns; /* columns of K types and of plain floats are adapted */
} shapes[] = { { 1, 32 }, { 7, 64 }, { 16, 256 }, { 75, 96 }, { 37, 1024 } };
enum {
    TYPE_COUNT = sizeof types / sizeof types[0],
    SHAPE_COUNT = sizeof shapes / sizeof shapes[0],
    ROWS_FEW = 17,  /* every number of rows up to this, */
    ROWS_MANY = 24, /* and from this, which is many for every kernel, */
    ROWS_MAX = 33,  /* to this */
    ROW_COLUMNS = 300,
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
    fg_op_prepare(device->stream, in, fg_op_linear_form(weight->type), rows);
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
    for (size_t i = 0; i < (size_t)ROWS_MAX * columns; i++) {
        in.values[i] = random_float(rng, 3.0f);
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

/* Quantisation, norm and SwiGLU of one row. */
static void check_rows(check *c, fg_rng *rng, uint32_t columns)
{
    const fg_cpu_kernels *tables[2] = { c->plain->device->kernels, c->other->device->kernels };
    float *in = random_floats(rng, columns, 9.0f);
    float *weight = random_floats(rng, columns, 2.0f);
    float out[2][2][ROW_COLUMNS];
    int8_t quants[2][ROW_COLUMNS];
    fg_quant_group groups[2][ROW_COLUMNS / FG_QUANT_GROUP];
    uint32_t pairs[2][ROW_COLUMNS / 2];
    memset(quants, 0, sizeof quants);
    memset(groups, 0, sizeof groups);
    for (int i = 0; i < 2; i++) {
        tables[i]->quantize_row(in, columns, quants[i], groups[i]);
        tables[i]->pair_row(in, columns, pairs[i]);
        tables[i]->rmsnorm_row(in, weight, columns, 1e-5f, out[i][0]);
        tables[i]->swiglu(in, weight, columns, out[i][1]);
    }
    compare(c, "quants", 1, quants[1], quants[0], sizeof quants[0]);
    compare(c, "groups", 1, groups[1], groups[0], sizeof groups[0]);
    compare(c, "pairs", 1, pairs[1], pairs[0], fg_panel_pairs(columns) * sizeof(uint32_t));
    compare(c, "rmsnorm", 1, out[1][0], out[0][0], columns * sizeof(float));
    compare(c, "swiglu", 1, out[1][1], out[0][1], columns * sizeof(float));
    fg_mem_free(in);
    fg_mem_free(weight);
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
    for (size_t t = 0; t < TYPE_COUNT; t++) {
        for (size_t s = 0; s < SHAPE_COUNT; s++) {
            check_product(&c, &rng, types[t], shapes[s].outputs, shapes[s].columns);
        }
    }
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
