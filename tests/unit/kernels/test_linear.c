#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/dtype.h"
#include "common/base/mem.h"
#include "common/model/weights.h"
#include "kernels/cpu/cpu.h"
#include "kernels/ops.h"
#include "tests/support/test.h"
#include "tests/unit/kernels/kernel_data.h"

static const uint32_t types[] = { FG_F32,  FG_F16,  FG_BF16, FG_Q4_0, FG_Q4_1, FG_Q5_0,
                                  FG_Q5_1, FG_Q8_0, FG_Q4_K, FG_Q5_K, FG_Q6_K };
enum { TYPE_COUNT = sizeof types / sizeof types[0] };

static const struct {
    const char *name;
    uint32_t outputs, columns; /* columns of K types and of plain floats are adapted */
} shapes[] = {
    { "one output", 1, 32 },    { "odd outputs", 7, 64 },  { "a full tile", 16, 256 },
    { "many pieces", 150, 96 }, { "long rows", 37, 1536 }, { "blocks of rows", 20, 8192 },
    { "19 groups", 40, 608 },   { "20 groups", 33, 640 },
};

static const uint32_t row_counts[] = { 1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12,
                                       13, 14, 15, 16, 17, 24, 25, 28, 29, 31, 32, 33 };
enum { ROWS_MAX = 33 };

static uint32_t columns_for(uint32_t type, uint32_t columns)
{
    uint32_t block = fg_dtype_block_count(type);
    if (block == 1) {
        return columns + 3; /* not a multiple of the eight lanes */
    }
    return (columns + block - 1) / block * block;
}

typedef struct problem {
    fg_matrix rows; /* as a model file has them */
    void *data;
    fg_panels weight;
    fg_activations in;
    float *out;
} problem;

static problem make_problem(fg_rng *rng, uint32_t type, uint32_t outputs, uint32_t columns)
{
    problem p;
    columns = columns_for(type, columns);
    p.data = random_matrix(rng, type, outputs, columns, &p.rows);
    p.weight = pack_panels(&p.rows);
    p.in = make_activations(ROWS_MAX, columns);
    for (size_t i = 0; i < (size_t)ROWS_MAX * columns; i++) {
        p.in.values[i] = random_float(rng, 3.0f);
    }
    p.out = fg_mem_array((size_t)ROWS_MAX * outputs, sizeof(float));
    return p;
}

static void free_problem(problem *p)
{
    fg_mem_free(p->data);
    free_panels(&p->weight);
    free_activations(&p->in);
    fg_mem_free(p->out);
}

static void run(const test_device *device, problem *p, uint32_t rows)
{
    fg_linear linear = { .weight = p->weight, .out = p->out, .out_stride = p->weight.outputs };
    memset(p->out, 0xFF, (size_t)ROWS_MAX * p->weight.outputs * sizeof(float));
    fg_op_prepare(device->stream, &p->in, fg_op_linear_form(device->stream, p->weight.type), rows);
    fg_op_linear(device->stream, &linear, 1, &p->in, rows);
}

/* Every instruction set, number of rows and of threads must give these bits. */
static void check_all_equal(const test_device *devices, size_t device_count, problem *p,
                            const float *want, const char *shape)
{
    for (size_t d = 0; d < device_count; d++) {
        for (size_t r = 0; r < sizeof row_counts / sizeof row_counts[0]; r++) {
            run(&devices[d], p, row_counts[r]);
            size_t bytes = (size_t)row_counts[r] * p->weight.outputs * sizeof(float);
            cr_assert(memcmp(p->out, want, bytes) == 0, "%s, %s, %u rows, isa %s, %u threads",
                      shape, fg_dtype_name(p->weight.type), row_counts[r],
                      fg_device_isa(devices[d].device), fg_device_thread_count(devices[d].device));
        }
    }
}

Test(linear, bits_do_not_depend_on_rows_threads_or_instruction_set)
{
    static const struct {
        const char *isa;
        uint32_t threads;
    } variants[] = { { "plain", 1 },  { "plain", 3 },       { "avx2", 1 },        { "avx2", 2 },
                     { "avx2", 4 },   { "avx_vnni", 1 },    { "avx_vnni", 2 },    { "avx512", 1 },
                     { "avx512", 2 }, { "avx512_bf16", 1 }, { "avx512_bf16", 2 }, { "amx", 1 },
                     { "amx", 2 },    { "neon", 1 } };
    enum { VARIANT_COUNT = sizeof variants / sizeof variants[0] };
    test_device devices[VARIANT_COUNT];
    size_t device_count = 0;
    for (size_t i = 0; i < VARIANT_COUNT; i++) {
        device_count +=
            open_test_device(variants[i].isa, variants[i].threads, &devices[device_count]);
    }
    fg_rng rng = { .state = 11 };
    for (size_t t = 0; t < TYPE_COUNT; t++) {
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
            problem p = make_problem(&rng, types[t], shapes[s].outputs, shapes[s].columns);
            run(&devices[0], &p, ROWS_MAX);
            size_t bytes = (size_t)ROWS_MAX * p.weight.outputs * sizeof(float);
            float *want = fg_mem_dup(p.out, bytes);
            check_all_equal(devices, device_count, &p, want, shapes[s].name);
            fg_mem_free(want);
            free_problem(&p);
        }
    }
    for (size_t i = 0; i < device_count; i++) {
        close_test_device(&devices[i]);
    }
}

/* 33 rows of 8192 columns are several blocks, and of 10 panels not all pass a slice of columns together; two products, one
 * added to what is there. */
static void later_blocks_are_alike(uint32_t thread_count)
{
    enum { OUTPUTS = 150, COLUMNS = 8192 };
    static const uint32_t block_types[] = { FG_Q4_0, FG_Q6_K, FG_F16, FG_BF16 };
    test_device device;
    cr_assert(open_test_device("auto", thread_count, &device));
    fg_rng rng = { .state = 14 };
    for (size_t t = 0; t < sizeof block_types / sizeof block_types[0]; t++) {
        problem p = make_problem(&rng, block_types[t], OUTPUTS, COLUMNS);
        float *second = fg_mem_array(ROWS_MAX * OUTPUTS, sizeof(float));
        fg_linear linears[] = {
            { .weight = p.weight, .out = p.out, .out_stride = OUTPUTS },
            { .weight = p.weight, .out = second, .out_stride = OUTPUTS, .accumulate = true },
        };
        for (size_t i = 0; i < ROWS_MAX * OUTPUTS; i++) {
            second[i] = 1.0f;
        }
        fg_op_prepare(device.stream, &p.in, fg_op_linear_form(device.stream, block_types[t]),
                      ROWS_MAX);
        fg_op_linear(device.stream, linears, 2, &p.in, ROWS_MAX);
        float *want = fg_mem_dup(p.out, ROWS_MAX * OUTPUTS * sizeof(float));
        for (uint32_t row = 0; row < ROWS_MAX; row++) {
            size_t columns = p.in.columns;
            memmove(p.in.values, p.in.values + row * columns, columns * sizeof(float));
            run(&device, &p, 1);
            cr_assert(memcmp(p.out, want + row * OUTPUTS, OUTPUTS * sizeof(float)) == 0,
                      "%s, row %u", fg_dtype_name(block_types[t]), row);
            for (uint32_t o = 0; o < OUTPUTS; o++) {
                cr_assert(second[row * OUTPUTS + o] == 1.0f + p.out[o], "%s, row %u, output %u",
                          fg_dtype_name(block_types[t]), row, o);
            }
        }
        fg_mem_free(want);
        fg_mem_free(second);
        free_problem(&p);
    }
    close_test_device(&device);
}

Test(linear, a_row_of_a_later_block_becomes_what_it_becomes_alone)
{
    later_blocks_are_alike(1);
    later_blocks_are_alike(2);
}

/* Whatever was prepared before is gone. */
static void forget_forms(const problem *p)
{
    size_t groups = (size_t)ROWS_MAX * (p->in.columns / FG_QUANT_GROUP);
    memset(p->in.quants, 0x55, (size_t)ROWS_MAX * p->in.columns);
    memset(p->in.groups, 0x55, groups * sizeof *p->in.groups);
    memset(p->in.supers, 0x55,
           (size_t)ROWS_MAX * (p->in.columns / FG_QUANT_SUPER) * sizeof *p->in.supers);
    memset(p->in.pairs, 0x55, ROWS_MAX * fg_pair_stride(p->in.columns) * sizeof *p->in.pairs);
    memset(p->in.quant_tiles, 0x55,
           fg_quant_tile_count(ROWS_MAX, p->in.columns) * sizeof *p->in.quant_tiles);
}

/* Blocks of rows are cut by what fits a cache: a last one of a single row reads the forms that were made for all. */
Test(linear, a_last_block_of_few_rows_reads_what_was_prepared_for_all)
{
    fg_rng rng = { .state = 31 };
    for (size_t t = 0; t < TYPE_COUNT; t++) {
        problem p = make_problem(&rng, types[t], 37, 256);
        float *want = NULL;
        size_t bytes = (size_t)ROWS_MAX * p.weight.outputs * sizeof(float);
        for (size_t i = 0; i < TEST_ISAS * 2; i++) {
            test_device device;
            if (!open_test_device(test_isas[i / 2], 1 + i % 2, &device)) {
                continue;
            }
            forget_forms(&p);
            device.device->block_bytes = 1; /* as few rows as a block may have */
            run(&device, &p, ROWS_MAX);
            want = want == NULL ? fg_mem_dup(p.out, bytes) : want;
            cr_assert(memcmp(p.out, want, bytes) == 0, "%s, isa %s", fg_dtype_name(types[t]),
                      test_isas[i / 2]);
            close_test_device(&device);
        }
        fg_mem_free(want);
        free_problem(&p);
    }
}

/* The activation that the product saw, in double. */
static double seen_activation(const problem *p, uint32_t row, uint32_t k)
{
    size_t at = (size_t)row * p->in.columns + k;
    uint32_t form = fg_cpu_op_linear_form(p->weight.type);
    if (form == 0) {
        return p->in.values[at];
    }
    if (form == FG_FORM_PAIRS) {
        return fg_bf16_to_f32(fg_bf16_from_f32(p->in.values[at]));
    }
    if (form == FG_FORM_SUPERS) {
        const fg_quant_super *super = &p->in.supers[at / FG_QUANT_SUPER];
        int32_t shift = super->shifts[at % FG_QUANT_SUPER / FG_QUANT_GROUP];
        return (double)p->in.quants[at] * super->scale * (1 << shift);
    }
    return (double)p->in.quants[at] * p->in.groups[at / FG_QUANT_GROUP].scale;
}

Test(linear, agrees_with_a_sum_in_double_over_the_reference_dequantiser)
{
    test_device device;
    cr_assert(open_test_device("auto", 1, &device));
    fg_rng rng = { .state = 12 };
    for (size_t t = 0; t < TYPE_COUNT; t++) {
        problem p = make_problem(&rng, types[t], 9, 512);
        uint32_t columns = p.weight.columns;
        float *weights = fg_mem_array((size_t)9 * columns, sizeof(float));
        fg_dequant(types[t], p.data, weights, (uint64_t)9 * columns);
        run(&device, &p, 5);
        for (uint32_t row = 0; row < 5; row++) {
            for (uint32_t o = 0; o < 9; o++) {
                double want = 0.0;
                double size = 0.0;
                for (uint32_t k = 0; k < columns; k++) {
                    double term = weights[(size_t)o * columns + k] * seen_activation(&p, row, k);
                    want += term;
                    size += fabs(term);
                }
                double got = p.out[(size_t)row * 9 + o];
                cr_assert(fabs(got - want) <= 2e-6 * size, "%s row %u output %u: %g, want %g",
                          fg_dtype_name(types[t]), row, o, got, want);
            }
        }
        fg_mem_free(weights);
        free_problem(&p);
    }
    close_test_device(&device);
}

/* Roughly normal, with now and then a value ten times as large, as activations have them. */
static float activation_like(fg_rng *rng)
{
    float sum = 0.0f;
    for (int i = 0; i < 6; i++) {
        sum += random_float(rng, 1.0f);
    }
    return fg_rng_below(rng, 200) == 0 ? 10.0f * sum : sum;
}

/* Relative root mean square distance of a product from the one in double over the dequantised weights and
 * the unrounded activations. For quantised types that is the rounding of activations to int8 and nothing
 * else: a group's largest value / 127 / sqrt(12) per element, some 0.5 to 1 % of a row. For BF16 it is that to
 * eight bits: at most 2^-8 of an element, evenly spread, so at most 2^-8 / sqrt(3) = 0.0023 of a row. */
static double distance_from_double(const test_device *device, fg_rng *rng, uint32_t type)
{
    enum { OUTPUTS = 48, COLUMNS = 1024, ROWS = 8 };
    problem p = make_problem(rng, type, OUTPUTS, COLUMNS);
    uint32_t columns = p.weight.columns;
    float *weights = fg_mem_array((size_t)OUTPUTS * columns, sizeof(float));
    fg_dequant(type, p.data, weights, (uint64_t)OUTPUTS * columns);
    for (size_t i = 0; i < (size_t)ROWS * columns; i++) {
        p.in.values[i] = activation_like(rng);
    }
    run(device, &p, ROWS);
    double error = 0.0;
    double size = 0.0;
    for (uint32_t i = 0; i < ROWS * OUTPUTS; i++) {
        double want = 0.0;
        for (uint32_t k = 0; k < columns; k++) {
            want += (double)weights[(size_t)(i % OUTPUTS) * columns + k] *
                    p.in.values[(size_t)(i / OUTPUTS) * columns + k];
        }
        error += (p.out[i] - want) * (p.out[i] - want);
        size += want * want;
    }
    fg_mem_free(weights);
    free_problem(&p);
    return sqrt(error / size);
}

Test(linear, the_rounding_of_activations_costs_what_it_may)
{
    test_device device;
    cr_assert(open_test_device("auto", 1, &device));
    fg_rng rng = { .state = 14 };
    for (size_t t = 0; t < TYPE_COUNT; t++) {
        double distance = distance_from_double(&device, &rng, types[t]);
        uint32_t form = fg_op_linear_form(device.stream, types[t]);
        double bound = form == FG_FORM_QUANTS   ? 0.012
                       : form == FG_FORM_SUPERS ? 0.015
                       : form == FG_FORM_PAIRS  ? 0.0023
                                                : 2e-6;
        cr_log_info("%s: %.2e", fg_dtype_name(types[t]), distance);
        cr_assert(distance <= bound, "%s: relative rms %.3g, bound %g", fg_dtype_name(types[t]),
                  distance, bound);
    }
    close_test_device(&device);
}

/* Of magnitude 2^low to 2^high; now and then an infinity or NaN, where they may be. */
static float wide_float(fg_rng *rng, int low, int high, bool special)
{
    uint64_t dice = fg_rng_below(rng, 400);
    if (special && dice < 2) {
        return dice == 0 ? NAN : -INFINITY;
    }
    int exponent = low + (int)fg_rng_below(rng, (uint32_t)(high - low + 1));
    return ldexpf(random_float(rng, 1.0f), exponent);
}

/* NaN have no bits of their own: instruction sets differ in which one they make. */
static bool same_numbers(const float *a, const float *b, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (isnan(a[i]) != isnan(b[i]) || (!isnan(a[i]) && memcmp(&a[i], &b[i], sizeof *a) != 0)) {
            return false;
        }
    }
    return true;
}

/* What the product makes of a value before it multiplies. */
static double seen_bf16(float value)
{
    double rounded = fg_bf16_to_f32(fg_bf16_from_f32(value));
    return fabs(rounded) < 0x1p-50 ? 0.0 : rounded;
}

/* Row by row of one matrix in double; `size`: of the terms. */
static double sum_in_double(const fg_matrix *weights, const float *row, uint32_t output,
                            double *size)
{
    const uint16_t *w = (const uint16_t *)weights->data + (size_t)output * weights->columns;
    double sum = 0.0;
    *size = 0.0;
    for (uint32_t k = 0; k < weights->columns; k++) {
        double term = seen_bf16(fg_bf16_to_f32(w[k])) * seen_bf16(row[k]);
        sum += term;
        *size += fabs(term);
    }
    return sum;
}

/* vdpbf16ps takes denormals for zeros, so none may come about: factors on both sides of 2^-50. */
Test(linear, bf16_products_of_any_magnitude_are_the_same_everywhere)
{
    enum { OUTPUTS = 37, COLUMNS = 67, ROWS = 30, SUMS = OUTPUTS * ROWS };
    static const struct {
        const char *name;
        int low, high;
        bool special, finite;
    } cases[] = {
        { "tiny", -75, -45, false, true },
        { "subnormal", -149, -100, false, true },
        { "any", -149, 60, false, true },
        { "overflowing", 40, 127, false, false },
        { "with infinities and NaN", -20, 20, true, false },
    };
    fg_rng rng = { .state = 15 };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        fg_matrix matrix;
        uint16_t *data = random_matrix(&rng, FG_BF16, OUTPUTS, COLUMNS, &matrix);
        fg_activations in = make_activations(ROWS, COLUMNS);
        for (int i = 0; i < OUTPUTS * COLUMNS; i++) {
            data[i] =
                fg_bf16_from_f32(wide_float(&rng, cases[c].low, cases[c].high, cases[c].special));
        }
        for (int i = 0; i < ROWS * COLUMNS; i++) {
            in.values[i] = wide_float(&rng, cases[c].low, cases[c].high, cases[c].special);
        }
        fg_panels panels = pack_panels(&matrix);
        float want[SUMS];
        float got[SUMS];
        for (size_t i = 0; i < TEST_ISAS; i++) {
            test_device device;
            if (!open_test_device(test_isas[i], 1, &device)) {
                continue;
            }
            fg_linear linear = { .weight = panels, .out = got, .out_stride = OUTPUTS };
            fg_op_prepare(device.stream, &in, FG_FORM_PAIRS, ROWS);
            fg_op_linear(device.stream, &linear, 1, &in, ROWS);
            memcpy(i == 0 ? want : got, got, sizeof got);
            cr_assert(same_numbers(got, want, SUMS), "%s, isa %s", cases[c].name, test_isas[i]);
            close_test_device(&device);
        }
        for (uint32_t i = 0; i < SUMS && cases[c].finite; i++) {
            double size;
            double sum = sum_in_double(&matrix, in.values + (size_t)(i / OUTPUTS) * COLUMNS,
                                       i % OUTPUTS, &size);
            /* An fma rounds by at most 2^-24 of a sum that is no larger than the terms together. */
            cr_assert(fabs(want[i] - sum) <= COLUMNS * 0x1p-24 * size, "%s: %g, want %g",
                      cases[c].name, (double)want[i], sum);
        }
        free_panels(&panels);
        free_activations(&in);
        fg_mem_free(data);
    }
}

/* More rows than a kernel keeps sums of at a time, and columns of several slices. */
Test(linear, many_rows_become_what_plain_makes_of_them)
{
    static const struct {
        uint32_t type, rows, outputs, columns;
    } cases[] = {
        { FG_BF16, 300, 150, 67 },  { FG_BF16, 129, 17, 2 },    { FG_BF16, 141, 33, 1 },
        { FG_BF16, 60, 35, 4500 },  { FG_BF16, 70, 614, 2150 }, { FG_BF16, 520, 550, 1500 },
        { FG_BF16, 40, 700, 1090 }, { FG_Q4_0, 530, 35, 96 },   { FG_Q4_1, 513, 16, 64 },
        { FG_Q5_0, 130, 33, 1056 }, { FG_Q8_0, 267, 35, 544 },  { FG_Q4_K, 515, 17, 256 },
        { FG_Q5_K, 97, 50, 1280 },  { FG_Q6_K, 600, 40, 768 },  { FG_Q8_0, 49, 35, 576 },
        { FG_Q6_K, 37, 20, 512 },   { FG_Q4_0, 29, 40, 8192 },  { FG_Q4_K, 140, 33, 8192 },
        { FG_Q6_K, 70, 150, 8192 }, { FG_Q5_K, 28, 33, 1280 },  { FG_Q6_K, 16, 16, 768 }
    };
    fg_rng rng = { .state = 16 };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        fg_matrix matrix;
        void *data =
            random_matrix(&rng, cases[c].type, cases[c].outputs, cases[c].columns, &matrix);
        fg_panels panels = pack_panels(&matrix);
        fg_activations in = make_activations(cases[c].rows, cases[c].columns);
        size_t count = (size_t)cases[c].rows * cases[c].outputs;
        float *before = random_floats(&rng, count, 10.0f);
        float *sums[2] = { fg_mem_array(count, sizeof(float)), fg_mem_array(count, sizeof(float)) };
        for (size_t i = 0; i < (size_t)cases[c].rows * cases[c].columns; i++) {
            in.values[i] = random_float(&rng, 3.0f);
        }
        for (size_t i = 0; i < TEST_ISAS; i++) {
            test_device device;
            /* One thread takes all panels in one piece. */
            if (!open_test_device(test_isas[i], c % 3 == 0 ? 1 : 2, &device)) {
                continue;
            }
            /* A row that a kernel meets twice is added once. */
            memcpy(sums[i > 0], before, count * sizeof(float));
            fg_linear linear = { .weight = panels,
                                 .out = sums[i > 0],
                                 .out_stride = cases[c].outputs,
                                 .accumulate = c % 2 == 0 };
            fg_op_prepare(device.stream, &in, fg_op_linear_form(device.stream, cases[c].type),
                          cases[c].rows);
            fg_op_linear(device.stream, &linear, 1, &in, cases[c].rows);
            cr_assert(memcmp(sums[i > 0], sums[0], count * sizeof(float)) == 0,
                      "%s, %u rows, isa %s", fg_dtype_name(cases[c].type), cases[c].rows,
                      test_isas[i]);
            close_test_device(&device);
        }
        fg_mem_free(sums[0]);
        fg_mem_free(sums[1]);
        fg_mem_free(before);
        free_activations(&in);
        free_panels(&panels);
        fg_mem_free(data);
    }
}

/* Products, gates and forms one after the other, with plain C. */
static void gate_apart(const fg_gated *gated, const fg_activations *in, uint32_t rows,
                       const fg_activations *out)
{
    test_device plain;
    cr_assert(open_test_device("plain", 1, &plain));
    size_t count = (size_t)rows * out->columns;
    float *up = fg_mem_array(count, sizeof(float));
    const fg_linear both[] = {
        { .weight = gated->gate, .out = out->values, .out_stride = out->columns },
        { .weight = gated->up, .out = up, .out_stride = out->columns },
    };
    fg_op_linear(plain.stream, both, 2, in, rows);
    const fg_cpu_kernels *kernels = plain.device->kernels;
    (gated->kind == FG_GATE_GELU ? kernels->geglu : kernels->swiglu)(out->values, up, count,
                                                                     out->values);
    fg_op_prepare(plain.stream, out, gated->forms, rows);
    fg_mem_free(up);
    close_test_device(&plain);
}

/* `want` is plain's, whose pairs are neighbours. */
static bool same_pairs(const fg_gated *got, bool apart, const fg_activations *want, uint32_t rows)
{
    size_t stride = fg_pair_stride(want->columns);
    for (uint32_t i = 0; i < rows * want->columns && (got->forms & FG_FORM_PAIRS) != 0; i++) {
        size_t row = i / want->columns * stride;
        uint32_t k = i % want->columns;
        if (paired_column(got->out.pairs + row, apart, k) !=
            paired_column(want->pairs + row, false, k)) {
            return false;
        }
    }
    return true;
}

static bool same_gated(const fg_gated *got, bool apart, const fg_activations *want, uint32_t rows)
{
    size_t count = (size_t)rows * want->columns;
    return memcmp(got->out.quants, want->quants, count) == 0 &&
           memcmp(got->out.supers, want->supers,
                  rows * (want->columns / FG_QUANT_SUPER) * sizeof *want->supers) == 0 &&
           memcmp(got->out.groups, want->groups,
                  rows * (want->columns / FG_QUANT_GROUP) * sizeof *want->groups) == 0 &&
           same_pairs(got, apart, want, rows) &&
           (got->forms != 0 || memcmp(got->out.values, want->values, count * sizeof(float)) == 0);
}

Test(linear, gate_and_up_become_what_their_parts_make_one_after_the_other)
{
    enum { QUANTS = FG_FORM_QUANTS, BOTH = FG_FORM_QUANTS | FG_FORM_PAIRS };
    static const struct {
        uint32_t gate, up, rows, outputs, columns, forms;
    } cases[] = {
        { FG_Q4_0, FG_Q4_0, 1, 32, 64, QUANTS },
        { FG_Q4_0, FG_Q8_0, 7, 160, 96, BOTH },
        { FG_Q4_K, FG_Q6_K, 40, 96, 256, QUANTS },
        { FG_BF16, FG_BF16, 3, 70, 40, FG_FORM_PAIRS },
        { FG_F32, FG_F32, 5, 37, 20, 0 },
        { FG_Q8_0, FG_BF16, 30, 64, 64, QUANTS },
        { FG_Q4_1, FG_Q4_1, 1100, 64, 32, QUANTS },
        { FG_F16, FG_F32, 600, 33, 9, 0 },
        { FG_Q5_1, FG_Q5_0, 100, 1056, 32, QUANTS },
        { FG_BF16, FG_BF16, 513, 97, 6, FG_FORM_PAIRS },
        { FG_Q4_K, FG_Q4_K, 3, 512, 256, FG_FORM_SUPERS },
        { FG_Q8_0, FG_Q6_K, 130, 768, 256, FG_FORM_SUPERS | FG_FORM_QUANTS },
        { FG_Q5_K, FG_Q5_K, 1, 2304, 256, FG_FORM_SUPERS | FG_FORM_PAIRS },
    };
    fg_rng rng = { .state = 17 };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        uint32_t rows = cases[c].rows, outputs = cases[c].outputs;
        fg_matrix gate, up;
        void *gate_data = random_matrix(&rng, cases[c].gate, outputs, cases[c].columns, &gate);
        void *up_data = random_matrix(&rng, cases[c].up, outputs, cases[c].columns, &up);
        fg_activations in = make_activations(rows, cases[c].columns);
        for (size_t i = 0; i < (size_t)rows * cases[c].columns; i++) {
            in.values[i] = random_float(&rng, 0.3f);
        }
        fg_gated gated = { .gate = pack_panels(&gate),
                           .up = pack_panels(&up),
                           .kind = c % 3 == 1 ? FG_GATE_GELU : FG_GATE_SILU,
                           .forms = cases[c].forms };
        fg_activations want = make_activations(rows, outputs);
        for (size_t i = 0; i < TEST_ISAS * 3; i++) {
            test_device device;
            if (!open_test_device(test_isas[i / 3], 1 + i % 3, &device)) {
                continue;
            }
            fg_op_prepare(device.stream, &in,
                          fg_op_linear_form(device.stream, gate.type) |
                              fg_op_linear_form(device.stream, up.type),
                          rows);
            if (i == 0) {
                gate_apart(&gated, &in, rows, &want);
            }
            gated.out = make_activations(rows, outputs);
            fg_op_gated(device.stream, &gated, &in, rows);
            if ((gated.forms & FG_FORM_SUPERS) == 0 && (gated.forms & FG_FORM_QUANTS) != 0) {
                find_quants(&device, &gated.out, rows);
            }
            bool same = same_gated(&gated, pairs_apart(&device), &want, rows);
            cr_assert(same, "case %zu, isa %s, %zu threads", c, test_isas[i / 3], 1 + i % 3);
            free_activations(&gated.out);
            close_test_device(&device);
        }
        free_panels(&gated.gate);
        free_panels(&gated.up);
        free_activations(&want);
        free_activations(&in);
        fg_mem_free(gate_data);
        fg_mem_free(up_data);
    }
}

/* The first of equal outputs, by comparing each; 0 when none is above -inf. */
static uint32_t first_highest(const float *values, uint32_t count)
{
    uint32_t best = 0;
    float highest = -INFINITY;
    for (uint32_t i = 0; i < count; i++) {
        if (values[i] > highest) {
            highest = values[i];
            best = i;
        }
    }
    return best;
}

Test(linear, the_highest_output_is_the_first_of_the_highest)
{
    static const struct {
        uint32_t type, rows, outputs, columns;
    } cases[] = {
        { FG_Q4_0, 1, 5000, 64 }, { FG_Q8_0, 16, 4099, 96 }, { FG_Q6_K, 5, 700, 256 },
        { FG_BF16, 3, 1, 40 },    { FG_F32, 64, 1003, 20 },  { FG_Q4_1, 2, 33, 32 },
        { FG_F16, 1, 40000, 8 },
    };
    fg_rng rng = { .state = 18 };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        uint32_t rows = cases[c].rows, outputs = cases[c].outputs;
        fg_matrix matrix;
        uint8_t *data = random_matrix(&rng, cases[c].type, outputs, cases[c].columns, &matrix);
        /* The second half repeats the first: every highest output but a middle one is there twice. */
        size_t row_bytes = cases[c].columns / fg_dtype_block_count(cases[c].type) *
                           (size_t)fg_dtype_block_bytes(cases[c].type);
        memcpy(data + (outputs - outputs / 2) * row_bytes, data, outputs / 2 * row_bytes);
        fg_activations in = make_activations(rows, cases[c].columns);
        for (size_t i = 0; i < (size_t)rows * cases[c].columns; i++) {
            in.values[i] = random_float(&rng, 0.3f);
        }
        if (cases[c].type == FG_F32) {
            in.values[0] = NAN; /* all of its first row */
            memset(in.values + cases[c].columns, 0, cases[c].columns * sizeof(float));
        }
        fg_panels weight = pack_panels(&matrix);
        float *out = fg_mem_array((size_t)rows * outputs, sizeof *out);
        const fg_linear linear = { .weight = weight, .out = out, .out_stride = outputs };
        for (size_t i = 0; i < TEST_ISAS * 3; i++) {
            test_device device;
            uint32_t choices[FG_HIGHEST_ROWS];
            float tops[FG_HIGHEST_ROWS];
            if (!open_test_device(test_isas[i / 3], 1 + i % 3, &device)) {
                continue;
            }
            fg_op_prepare(device.stream, &in, fg_op_linear_form(device.stream, cases[c].type),
                          rows);
            if (i == 0) {
                fg_op_linear(device.stream, &linear, 1, &in, rows);
            }
            fg_op_highest(device.stream, &weight, &in, rows, choices, tops);
            for (uint32_t row = 0; row < rows; row++) {
                const float *outputs_of = out + (size_t)row * outputs;
                uint32_t best = first_highest(outputs_of, outputs);
                float top = isnan(outputs_of[best]) ? -INFINITY : outputs_of[best];
                cr_assert(choices[row] == best && tops[row] == top,
                          "case %zu, row %u, isa %s, %zu threads", c, row, test_isas[i / 3],
                          1 + i % 3);
            }
            close_test_device(&device);
        }
        free_panels(&weight);
        free_activations(&in);
        fg_mem_free(out);
        fg_mem_free(data);
    }
}

/* Of quantised weights, which see activations as bytes; the rows beside it are not disturbed. */
Test(linear, a_row_with_no_number_gives_none_everywhere)
{
    static const uint32_t quantised[] = { FG_Q4_0, FG_Q4_1, FG_Q5_0, FG_Q5_1,
                                          FG_Q8_0, FG_Q4_K, FG_Q5_K, FG_Q6_K };
    enum { OUTPUTS = 70, COLUMNS = 512, ALL = 26 }; /* rows: tiles of every kernel, and more */
    fg_rng rng = { .state = 28 };
    for (size_t t = 0; t < 2 * sizeof quantised / sizeof quantised[0]; t++) {
        problem p = make_problem(&rng, quantised[t / 2], OUTPUTS, COLUMNS);
        uint32_t odd = ALL / 2;
        float *want = fg_mem_array((size_t)ALL * OUTPUTS, sizeof *want);
        for (size_t i = 0; i < TEST_ISAS; i++) {
            test_device device;
            if (!open_test_device(test_isas[i], 1, &device)) {
                continue;
            }
            p.in.values[odd * COLUMNS + 40] = 0.25f;
            run(&device, &p, ALL);
            memcpy(want, p.out, (size_t)ALL * OUTPUTS * sizeof *want);
            p.in.values[odd * COLUMNS + 40] = t % 2 == 0 ? NAN : -INFINITY;
            run(&device, &p, ALL);
            for (uint32_t o = 0; o < ALL * OUTPUTS; o++) {
                bool is_odd = o / OUTPUTS == odd;
                cr_assert(is_odd ? isnan(p.out[o]) : p.out[o] == want[o],
                          "type %u, isa %s, output %u of row %u", quantised[t / 2], test_isas[i],
                          o % OUTPUTS, o / OUTPUTS);
            }
            close_test_device(&device);
        }
        fg_mem_free(want);
        free_problem(&p);
    }
}

Test(linear, several_products_and_accumulation_equal_single_ones)
{
    test_device device;
    cr_assert(open_test_device("auto", 2, &device));
    fg_rng rng = { .state = 13 };
    problem a = make_problem(&rng, FG_Q4_1, 70, 256);
    problem b = make_problem(&rng, FG_Q6_K, 33, 256);
    run(&device, &a, 5);
    float *want_b = fg_mem_array(33 * 5, sizeof(float));
    fg_linear single = { .weight = b.weight, .out = want_b, .out_stride = 33 };
    fg_op_linear(device.stream, &single, 1, &a.in, 5);
    float *sums = random_floats(&rng, 70 * 5, 1.0f);
    float *before = fg_mem_dup(sums, 70 * 5 * sizeof(float));
    fg_linear both[] = {
        { .weight = a.weight, .out = sums, .out_stride = 70, .accumulate = true },
        { .weight = b.weight, .out = b.out, .out_stride = 33 },
    };
    fg_op_linear(device.stream, both, 2, &a.in, 5);
    for (int i = 0; i < 70 * 5; i++) {
        cr_assert_eq(sums[i], before[i] + a.out[i], "accumulated output %d", i);
    }
    cr_assert(memcmp(b.out, want_b, 33 * 5 * sizeof(float)) == 0);
    fg_mem_free(want_b);
    fg_mem_free(sums);
    fg_mem_free(before);
    free_problem(&a);
    free_problem(&b);
    close_test_device(&device);
}

/* Blocks of rows are cut for the first product's form; the other one's rows may be read as tiles. */
Test(linear, products_of_two_forms_share_their_blocks)
{
    enum { ROWS = 600, OUTPUTS = 40, COLUMNS = 2080 };
    static const uint32_t pair[2] = { FG_BF16, FG_Q4_0 };
    fg_rng rng = { .state = 19 };
    fg_matrix matrices[2];
    void *data[2];
    fg_panels panels[2];
    for (int i = 0; i < 2; i++) {
        data[i] = random_matrix(&rng, pair[i], OUTPUTS, COLUMNS, &matrices[i]);
        panels[i] = pack_panels(&matrices[i]);
    }
    fg_activations in = make_activations(ROWS, COLUMNS);
    for (size_t i = 0; i < (size_t)ROWS * COLUMNS; i++) {
        in.values[i] = random_float(&rng, 3.0f);
    }
    size_t bytes = (size_t)ROWS * OUTPUTS * sizeof(float);
    float *sums[2] = { fg_mem_alloc(2 * bytes), fg_mem_alloc(2 * bytes) };
    for (size_t i = 0; i < TEST_ISAS; i++) {
        test_device device;
        if (!open_test_device(test_isas[i], 2, &device)) {
            continue;
        }
        float *out = sums[i > 0];
        fg_linear linears[2] = {
            { .weight = panels[0], .out = out, .out_stride = OUTPUTS },
            { .weight = panels[1], .out = out + (size_t)ROWS * OUTPUTS, .out_stride = OUTPUTS },
        };
        fg_op_prepare(device.stream, &in, FG_FORM_QUANTS | FG_FORM_PAIRS, ROWS);
        fg_op_linear(device.stream, linears, 2, &in, ROWS);
        cr_assert(memcmp(sums[i > 0], sums[0], 2 * bytes) == 0, "isa %s", test_isas[i]);
        close_test_device(&device);
    }
    for (int i = 0; i < 2; i++) {
        fg_mem_free(sums[i]);
        free_panels(&panels[i]);
        fg_mem_free(data[i]);
    }
    free_activations(&in);
}

Test(linear, extreme_quants_do_not_saturate)
{
    enum { ROWS = 50 }; /* the last one is what one row becomes */
    /* The largest magnitudes that Q8_0, Q6_K and Q4_K can hold against activations at +-127. */
    uint8_t bytes[34] = { 0x00, 0x3C }, lowest[34] = { 0x00, 0x3C };
    memset(lowest + 2, 0x80, 32);
    struct {
        uint8_t low[128], high[64];
        int8_t scales[16];
        uint16_t d;
    } sixes = { .d = 0x3C00 };
    memset(sixes.scales, -128, sizeof sixes.scales); /* and all codes are -32 */
    struct {
        uint16_t d, minimum;
        uint8_t scales[12], codes[128];
    } fours = { .d = 0x3C00 };
    memset(fours.scales, 0xFF, 4); /* 63 each; no minima */
    memset(fours.scales + 8, 0x0F, 4);
    memset(fours.codes, 0xF0, sizeof fours.codes); /* groups of 0 and of 15 in turns */
    fg_activations ins[4] = { make_activations(ROWS, 32), make_activations(ROWS, 256),
                              make_activations(ROWS, 32), make_activations(ROWS, 256) };
    for (int row = 0; row < ROWS; row++) {
        for (int i = 0; i < 32; i++) {
            bytes[2 + i] = i % 2 == 0 ? 0x80 : 0x7F;
            ins[0].values[row * 32 + i] = i % 2 == 0 ? -127.0f : 127.0f;
            ins[2].values[row * 32 + i] = 127.0f;
        }
        for (int i = 0; i < 256; i++) {
            ins[1].values[row * 256 + i] = 127.0f;
            ins[3].values[row * 256 + i] = 127.0f;
        }
    }
    const fg_matrix matrices[4] = {
        { .data = bytes, .type = FG_Q8_0, .outputs = 1, .columns = 32 },
        { .data = &sixes, .type = FG_Q6_K, .outputs = 1, .columns = 256 },
        { .data = lowest, .type = FG_Q8_0, .outputs = 1, .columns = 32 },
        { .data = &fours, .type = FG_Q4_K, .outputs = 1, .columns = 256 },
    };
    static const float want[4] = { 16.0f * (128 * 127 + 127 * 127), 256.0f * 32 * 128 * 127,
                                   -32.0f * 128 * 127, 4 * 32 * 15.0f * 63 * 127 };
    for (int m = 0; m < 4; m++) {
        fg_panels panels = pack_panels(&matrices[m]);
        for (size_t i = 0; i < TEST_ISAS; i++) {
            test_device device;
            if (!open_test_device(test_isas[i], 1, &device)) {
                continue;
            }
            for (uint32_t rows = 1; rows <= ROWS; rows++) {
                float out[ROWS] = { 0.0f };
                fg_linear linear = { .weight = panels, .out = out, .out_stride = 1 };
                fg_op_prepare(device.stream, &ins[m], fg_op_linear_form(device.stream, panels.type),
                              rows);
                fg_op_linear(device.stream, &linear, 1, &ins[m], rows);
                cr_assert_eq(out[rows - 1], want[m], "%s, isa %s, %u rows: %f",
                             fg_dtype_name(matrices[m].type), test_isas[i], rows,
                             (double)out[rows - 1]);
            }
            close_test_device(&device);
        }
        free_panels(&panels);
        free_activations(&ins[m]);
    }
}

enum { GUARDED_ROWS = 16, GUARDED_OUTPUTS = 20, GUARDED_COLUMNS = 256 };

/* The same products from panels and from a copy that lies where it may be read, and nothing beside it. */
static void check_guarded(const fg_panels *panels, const fg_panels *guarded,
                          const fg_activations *in)
{
    for (size_t i = 0; i < TEST_ISAS; i++) {
        test_device device;
        if (!open_test_device(test_isas[i], 1, &device)) {
            continue;
        }
        for (uint32_t rows = 1; rows <= GUARDED_ROWS; rows++) {
            float out[2][GUARDED_ROWS * GUARDED_OUTPUTS];
            fg_linear linear = { .weight = *panels, .out = out[0], .out_stride = panels->outputs };
            fg_linear other = { .weight = *guarded, .out = out[1], .out_stride = panels->outputs };
            fg_op_prepare(device.stream, in, fg_op_linear_form(device.stream, panels->type), rows);
            fg_op_linear(device.stream, &linear, 1, in, rows);
            fg_op_linear(device.stream, &other, 1, in, rows);
            cr_assert(memcmp(out[0], out[1], rows * panels->outputs * sizeof(float)) == 0,
                      "%s, isa %s, %u rows of %u", fg_dtype_name(panels->type), test_isas[i], rows,
                      panels->columns);
        }
        close_test_device(&device);
    }
}

/* Weights may begin where a file's mapping does, and end where it does. */
Test(linear, nothing_before_or_behind_the_weights_is_read)
{
    static const struct {
        uint32_t outputs, columns;
    } guarded_shapes[] = { { GUARDED_OUTPUTS, GUARDED_COLUMNS }, { 1, 32 }, { 17, 64 } };
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    enum { PAGES = 16 };
    uint8_t *map =
        mmap(NULL, (PAGES + 2) * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert(map != MAP_FAILED && mprotect(map, page, PROT_NONE) == 0 &&
              mprotect(map + (PAGES + 1) * page, page, PROT_NONE) == 0);
    fg_rng rng = { .state = 23 };
    for (size_t t = 0; t < TYPE_COUNT; t++) {
        for (size_t s = 0; s < sizeof guarded_shapes / sizeof guarded_shapes[0]; s++) {
            uint32_t outputs = guarded_shapes[s].outputs;
            uint32_t block = fg_dtype_block_count(types[t]);
            uint32_t columns = (guarded_shapes[s].columns + block - 1) / block * block;
            fg_matrix matrix;
            void *data = random_matrix(&rng, types[t], outputs, columns, &matrix);
            fg_panels panels = pack_panels(&matrix);
            fg_activations in = make_activations(GUARDED_ROWS, columns);
            for (uint32_t i = 0; i < GUARDED_ROWS * columns; i++) {
                in.values[i] = random_float(&rng, 3.0f);
            }
            size_t bytes = fg_panel_count(outputs) * fg_panel_bytes(types[t], columns);
            cr_assert(bytes <= PAGES * page);
            fg_panels guarded = panels;
            guarded.data = memcpy(map + page, panels.data, bytes);
            check_guarded(&panels, &guarded, &in);
            guarded.data = memcpy(map + (PAGES + 1) * page - bytes, panels.data, bytes);
            check_guarded(&panels, &guarded, &in);
            free_panels(&panels);
            free_activations(&in);
            fg_mem_free(data);
        }
    }
    munmap(map, (PAGES + 2) * page);
}
