#include <math.h>
#include <string.h>

#include "common/base/dtype.h"
#include "common/base/mem.h"
#include "common/model/weights.h"
#include "kernels/cpu/cpu.h"
#include "kernels/ops.h"
#include "tests/support/test.h"
#include "tests/unit/kernels/kernel_data.h"

enum { DEVICES_MAX = 9 };

/* The oracle first, then what this machine adds or can emulate. */
static size_t open_devices(test_device devices[DEVICES_MAX])
{
    size_t count = 0;
    count += open_test_device("plain", 1, &devices[count]);
    count += open_test_device("plain", 2, &devices[count]);
    count += open_test_device("avx2", 1, &devices[count]);
    count += open_test_device("avx2", 2, &devices[count]);
    count += open_test_device("avx_vnni", 1, &devices[count]);
    count += open_test_device("avx512", 1, &devices[count]);
    count += open_test_device("avx512_bf16", 1, &devices[count]);
    count += open_test_device("amx", 1, &devices[count]);
    count += open_test_device("neon", 1, &devices[count]);
    return count;
}

static void close_devices(test_device devices[DEVICES_MAX], size_t count)
{
    for (size_t i = 0; i < count; i++) {
        close_test_device(&devices[i]);
    }
}

static const uint32_t widths[] = { 8, 32, 64, 100, 288, 576 };
enum { WIDTH_COUNT = sizeof widths / sizeof widths[0], ROWS = 37 };

Test(rows, rmsnorm_is_exact_everywhere_and_close_to_double)
{
    test_device devices[DEVICES_MAX];
    size_t device_count = open_devices(devices);
    fg_rng rng = { .state = 21 };
    for (size_t w = 0; w < WIDTH_COUNT; w++) {
        uint32_t columns = widths[w];
        size_t count = (size_t)ROWS * columns;
        float *in = random_floats(&rng, count, 2.0f);
        float *weight = random_floats(&rng, columns, 1.0f);
        float *out = fg_mem_array(count, sizeof(float));
        float *first = fg_mem_array(count, sizeof(float));
        for (size_t d = 0; d < device_count; d++) {
            fg_rmsnorm args = {
                .in = in,
                .weight = weight,
                .epsilon = 1e-5f,
                .out = { .values = d == 0 ? first : out, .columns = columns },
            };
            fg_op_rmsnorm(devices[d].stream, &args, ROWS);
            cr_assert(d == 0 || memcmp(out, first, count * sizeof(float)) == 0,
                      "%u columns, isa %s", columns, fg_device_isa(devices[d].device));
        }
        for (uint32_t row = 0; row < ROWS; row++) {
            double sum = 0.0;
            for (uint32_t i = 0; i < columns; i++) {
                sum += (double)in[row * columns + i] * in[row * columns + i];
            }
            double factor = 1.0 / sqrt(sum / columns + 1e-5);
            for (uint32_t i = 0; i < columns; i++) {
                double want = in[row * columns + i] * factor * weight[i];
                cr_assert(fabs(first[row * columns + i] - want) <= 1e-6 * (1.0 + fabs(want)));
            }
        }
        fg_mem_free(in);
        fg_mem_free(weight);
        fg_mem_free(out);
        fg_mem_free(first);
    }
    close_devices(devices, device_count);
}

Test(rows, rmsnorm_takes_the_rows_it_is_told)
{
    test_device device;
    cr_assert(open_test_device("auto", 1, &device));
    const float in[3][8] = { { 1, 1, 1, 1, 1, 1, 1, 1 }, { 9 }, { 2, 2, 2, 2, 2, 2, 2, 2 } };
    const float weight[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
    const uint32_t ids[2] = { 2, 0 };
    float out[2][8];
    fg_rmsnorm args = {
        .in = in[0], .row_ids = ids, .weight = weight, .out = { .values = out[0], .columns = 8 }
    };
    fg_op_rmsnorm(device.stream, &args, 2);
    for (int i = 0; i < 8; i++) {
        cr_assert_eq(out[0][i], weight[i]);
        cr_assert_eq(out[1][i], weight[i]);
    }
    close_test_device(&device);
}

/* Columns of a rank's alone, as the others add theirs. */
Test(rows, rmsnorm_adds_to_the_columns_it_is_told)
{
    test_device devices[DEVICES_MAX];
    size_t device_count = open_devices(devices);
    fg_rng rng = { .state = 29 };
    enum { COLUMNS = 96, FIRST = 16, COUNT = 48 };
    float *in = random_floats(&rng, (size_t)ROWS * COLUMNS, 2.0f);
    float *weight = random_floats(&rng, COLUMNS, 1.0f);
    float *before = random_floats(&rng, (size_t)ROWS * COLUMNS, 3.0f);
    for (size_t d = 0; d < device_count; d++) {
        float *out = fg_mem_array((size_t)ROWS * COLUMNS, sizeof(float));
        float *sum = fg_mem_dup(before, (size_t)ROWS * COLUMNS * sizeof(float));
        fg_rmsnorm args = { .in = in,
                            .weight = weight,
                            .epsilon = 1e-5f,
                            .out = { .values = out, .columns = COLUMNS },
                            .sum = sum,
                            .sum_first = FIRST,
                            .sum_count = COUNT };
        fg_op_rmsnorm(devices[d].stream, &args, ROWS);
        for (uint32_t i = 0; i < ROWS * COLUMNS; i++) {
            bool added = i % COLUMNS >= FIRST && i % COLUMNS < FIRST + COUNT;
            cr_assert_eq(sum[i], added ? before[i] + out[i] : before[i], "isa %s, %u",
                         fg_device_isa(devices[d].device), i);
        }
        fg_mem_free(out);
        fg_mem_free(sum);
    }
    fg_mem_free(in);
    fg_mem_free(weight);
    fg_mem_free(before);
    close_devices(devices, device_count);
}

Test(rows, quantize_is_exact_everywhere_and_within_half_a_step)
{
    test_device devices[DEVICES_MAX];
    size_t device_count = open_devices(devices);
    fg_rng rng = { .state = 22 };
    fg_activations a = make_activations(ROWS, 288);
    for (size_t i = 0; i < (size_t)ROWS * 288; i++) {
        a.values[i] = random_float(&rng, i % 96 < 32 ? 1e-3f : 40.0f);
    }
    memset(a.values, 0, 64 * sizeof(float)); /* groups of zeros */
    a.values[70] = 3e-39f;                   /* a subnormal among larger ones */
    for (int i = 96; i < 128; i++) {
        a.values[i] = 1e-36f; /* too small to divide by */
    }
    size_t group_bytes = (size_t)ROWS * 9 * sizeof(fg_quant_group);
    int8_t *quants = NULL;
    fg_quant_group *groups = NULL;
    for (size_t d = 0; d < device_count; d++) {
        memset(a.quants, 0x55, (size_t)ROWS * 288);
        fg_op_prepare(devices[d].stream, &a, FG_FORM_QUANTS, ROWS);
        find_quants(&devices[d], &a, ROWS);
        if (d == 0) {
            quants = fg_mem_dup(a.quants, (size_t)ROWS * 288);
            groups = fg_mem_dup(a.groups, group_bytes);
        }
        cr_assert(memcmp(quants, a.quants, (size_t)ROWS * 288) == 0);
        cr_assert(memcmp(groups, a.groups, group_bytes) == 0);
    }
    for (uint32_t row = 0; row < ROWS; row++) {
        for (uint32_t k = 0; k < 288; k++) {
            float scale = a.groups[row * 9 + k / 32].scale;
            float error = fabsf(a.values[row * 288 + k] - (float)a.quants[row * 288 + k] * scale);
            cr_assert(a.quants[row * 288 + k] >= -127, "row %u column %u", row, k);
            cr_assert(error <= 0.5001f * scale + 1e-30f, "row %u column %u", row, k);
        }
    }
    for (uint32_t g = 0; g < ROWS * 9; g++) {
        int sums[2] = { 0, 0 };
        for (uint32_t k = 0; k < 32; k++) {
            sums[k / 16] += a.quants[g * 32 + k];
        }
        cr_assert_eq(a.groups[g].sums[0], sums[0], "group %u", g);
        cr_assert_eq(a.groups[g].sums[1], sums[1], "group %u", g);
        cr_assert_eq(a.groups[g].offset, a.groups[g].scale * (float)(sums[0] + sums[1]));
    }
    fg_mem_free(quants);
    fg_mem_free(groups);
    free_activations(&a);
    close_devices(devices, device_count);
}

/* Wherever in a group it is, and whatever comes after it; in whichever of several rows. */
Test(rows, a_group_with_no_number_is_none_everywhere)
{
    static const float odd[] = { NAN, -NAN, INFINITY, -INFINITY };
    static const uint32_t rows[] = { 1, 5, 16, 33 };
    test_device devices[DEVICES_MAX];
    size_t device_count = open_devices(devices);
    fg_rng rng = { .state = 27 };
    fg_activations a = make_activations(33, 96);
    for (uint32_t i = 0; i < 4 * FG_QUANT_GROUP; i++) {
        uint32_t count = rows[i % 4];
        uint32_t row = i / 4 % count;
        for (uint32_t k = 0; k < count * 96; k++) {
            a.values[k] = random_float(&rng, k % 96 < 64 ? 40.0f : 1e-36f);
        }
        a.values[row * 96 + 32 + i / 4] = odd[i / 16 % 4];
        for (size_t d = 0; d < device_count; d++) {
            const char *isa = fg_device_isa(devices[d].device);
            memset(a.quants, 0x55, (size_t)count * 96);
            fg_op_prepare(devices[d].stream, &a, FG_FORM_QUANTS, count);
            find_quants(&devices[d], &a, count);
            const fg_quant_group *groups = a.groups + (size_t)row * 3;
            cr_assert(isnan(groups[1].scale) && isnan(groups[1].offset), "isa %s, %u", isa, i);
            for (uint32_t k = 32; k < 64; k++) {
                cr_assert_eq(a.quants[row * 96 + k], 0, "isa %s, %u", isa, i);
            }
            for (uint32_t g = 0; g < count * 3; g++) {
                cr_assert(g == row * 3 + 1 || (a.groups[g].scale > 0.0f) == (g % 3 < 2),
                          "isa %s, %u: group %u, not beside it", isa, i, g);
            }
        }
    }
    free_activations(&a);
    close_devices(devices, device_count);
}

static void check_same_forms(const fg_activations *a, const fg_activations *b, uint32_t rows,
                             const char *what)
{
    size_t count = (size_t)rows * a->columns;
    cr_assert(memcmp(a->quants, b->quants, count) == 0, "%s", what);
    cr_assert(memcmp(a->groups, b->groups, count / FG_QUANT_GROUP * sizeof *a->groups) == 0, "%s",
              what);
    cr_assert(memcmp(a->pairs, b->pairs,
                     (size_t)rows * fg_pair_stride(a->columns) * sizeof(uint32_t)) == 0,
              "%s", what);
}

enum { TILE_ROWS = 35, TILE_GROUPS = 7 };

/* Some columns of some rows by two functions, and nothing else: what is around them stays. */
static void check_part(const fg_cpu_kernels *kernels, const fg_activations *want,
                       const fg_activations *got, const fg_cpu_part *part)
{
    uint32_t row_groups = want->columns / FG_QUANT_GROUP;
    size_t tiles = fg_quant_tile_count(TILE_ROWS, want->columns);
    memset(got->quants, 0x55, (size_t)TILE_ROWS * want->columns);
    memset(got->groups, 0x55, (size_t)TILE_ROWS * row_groups * sizeof *got->groups);
    memset(got->quant_tiles, 0x55, tiles * sizeof *got->quant_tiles);
    fg_activations tiled = make_activations(TILE_ROWS, want->columns);
    memcpy(tiled.quant_tiles, got->quant_tiles, tiles * sizeof *got->quant_tiles);
    fg_cpu_prepare(kernels, got, FG_FORM_QUANTS, part);
    if (kernels->quantize_tiles != NULL) {
        fg_cpu_prepare(kernels, &tiled, FG_CPU_FORM_TILES, part);
        quants_from_tiles(&tiled, TILE_ROWS);
    }
    for (uint32_t i = 0; i < TILE_ROWS * row_groups; i++) {
        uint32_t row = i / row_groups, column = i % row_groups * FG_QUANT_GROUP;
        bool in = row >= part->row && row - part->row < part->rows && column >= part->column &&
                  column - part->column < part->columns;
        const int8_t *quants = got->quants + (size_t)i * FG_QUANT_GROUP;
        const int8_t *of_tile = tiled.quants + (size_t)i * FG_QUANT_GROUP;
        const int8_t *wanted = want->quants + (size_t)i * FG_QUANT_GROUP;
        for (uint32_t k = 0; k < FG_QUANT_GROUP; k++) {
            int8_t byte = in ? wanted[k] : 0x55;
            cr_assert_eq(quants[k], byte, "row %u, group %u", row, i % row_groups);
            cr_assert(kernels->quantize_tiles == NULL || of_tile[k] == byte, "a tile's row %u",
                      row);
        }
        cr_assert(in || kernels->quantize_tiles == NULL ||
                      (fg_f32_bits(tiled.groups[i].scale) == 0x55555555 &&
                       fg_f32_bits(tiled.groups[i].offset) == 0x55555555),
                  "a tile's row %u, beside what was meant", row);
        size_t bytes = sizeof *want->groups;
        cr_assert(!in || memcmp(&got->groups[i], &want->groups[i], bytes) == 0, "row %u", row);
        cr_assert(!in || kernels->quantize_tiles == NULL ||
                      memcmp(&tiled.groups[i], &want->groups[i], bytes) == 0,
                  "a tile's row %u", row);
    }
    free_activations(&tiled);
}

Test(rows, parts_of_rows_are_quantised_as_whole_rows_are)
{
    test_device devices[DEVICES_MAX];
    size_t device_count = open_devices(devices);
    fg_rng rng = { .state = 28 };
    fg_activations want = make_activations(TILE_ROWS, TILE_GROUPS * FG_QUANT_GROUP);
    fg_activations got = make_activations(TILE_ROWS, TILE_GROUPS * FG_QUANT_GROUP);
    for (uint32_t i = 0; i < TILE_ROWS * want.columns; i++) {
        want.values[i] = random_float(&rng, i % 64 < 32 ? 1e-3f : 40.0f);
    }
    fg_op_prepare(devices[0].stream, &want, FG_FORM_QUANTS, TILE_ROWS);
    for (uint32_t i = 0; i < 400; i++) {
        uint32_t row = (uint32_t)fg_rng_below(&rng, TILE_ROWS);
        uint32_t rows = 1 + (uint32_t)fg_rng_below(&rng, TILE_ROWS - row);
        uint32_t group = (uint32_t)fg_rng_below(&rng, TILE_GROUPS);
        uint32_t groups = 1 + (uint32_t)fg_rng_below(&rng, TILE_GROUPS - group);
        fg_cpu_part part = { .values = want.values + row * want.columns + group * FG_QUANT_GROUP,
                             .stride = want.columns,
                             .row = row,
                             .rows = rows,
                             .column = group * FG_QUANT_GROUP,
                             .columns = groups * FG_QUANT_GROUP };
        check_part(devices[i % device_count].device->kernels, &want, &got, &part);
    }
    free_activations(&want);
    free_activations(&got);
    close_devices(devices, device_count);
}

/* However many rows there are, with quants beside them or alone. */
Test(rows, tiles_hold_what_plain_quants_do)
{
    test_device devices[DEVICES_MAX];
    size_t device_count = open_devices(devices);
    fg_rng rng = { .state = 29 };
    for (size_t d = 0; d < device_count; d++) {
        const fg_cpu_kernels *kernels = devices[d].device->kernels;
        for (uint32_t rows = 1; kernels->tile_rows_least > 0 && rows <= TILE_ROWS; rows++) {
            fg_activations a = make_activations(rows, 96);
            fg_activations tiled = make_activations(rows, 96);
            for (uint32_t i = 0; i < rows * 96; i++) {
                tiled.values[i] = a.values[i] = random_float(&rng, 40.0f);
            }
            fg_op_prepare(devices[0].stream, &a, FG_FORM_QUANTS, rows);
            fg_op_prepare(devices[d].stream, &tiled, FG_FORM_QUANTS, rows);
            if (rows >= kernels->tile_rows_least) {
                quants_from_tiles(&tiled, rows);
            }
            check_same_forms(&a, &tiled, rows, "tiles");
            free_activations(&a);
            free_activations(&tiled);
        }
    }
    close_devices(devices, device_count);
}

/* Groups that are as large as others of their super-group, or smaller by a factor of up to 2^5, or
 * zero. */
static void fill_super_groups(fg_rng *rng, float *values, size_t count)
{
    for (size_t i = 0; i < count; i += FG_QUANT_GROUP) {
        uint32_t dice = (uint32_t)fg_rng_below(rng, 7);
        float span = dice == 6 ? 0.0f : ldexpf(3.0f, -(int)dice);
        for (uint32_t k = 0; k < FG_QUANT_GROUP; k++) {
            values[i + k] = random_float(rng, span);
        }
    }
}

enum { SUPER_COLUMNS = 3 * FG_QUANT_SUPER };

static void check_super_part(const fg_cpu_kernels *kernels, const fg_activations *want,
                             const fg_cpu_part *part)
{
    fg_activations got = make_activations(TILE_ROWS, SUPER_COLUMNS);
    size_t tiles = fg_quant_tile_count(TILE_ROWS, SUPER_COLUMNS);
    uint32_t row_groups = SUPER_COLUMNS / FG_QUANT_GROUP;
    bool tiled = kernels->tile_rows_least > 0;
    memset(got.quants, 0x55, (size_t)TILE_ROWS * SUPER_COLUMNS);
    memset(got.quant_tiles, 0x55, tiles * sizeof *got.quant_tiles);
    fg_cpu_prepare(kernels, &got, FG_FORM_SUPERS | (tiled ? (uint32_t)FG_CPU_FORM_TILES : 0), part);
    for (uint32_t i = 0; i < TILE_ROWS * row_groups; i++) {
        uint32_t row = i / row_groups, column = i % row_groups * FG_QUANT_GROUP;
        bool in = row >= part->row && row - part->row < part->rows && column >= part->column &&
                  column - part->column < part->columns;
        size_t at = (size_t)i * FG_QUANT_GROUP;
        const int8_t *of_tile = tile_of_group(&got, i)->quants[row % FG_TILE_ROWS];
        for (uint32_t k = 0; k < FG_QUANT_GROUP; k++) {
            int8_t byte = in ? want->quants[at + k] : 0x55;
            cr_assert_eq(got.quants[at + k], byte, "row %u, column %u", row, column + k);
            cr_assert_eq(of_tile[k], in && tiled ? byte : 0x55, "a tile's row %u, column %u", row,
                         column + k);
        }
        size_t super = at / FG_QUANT_SUPER;
        cr_assert(!in || memcmp(&got.supers[super], &want->supers[super],
                                offsetof(fg_quant_super, unused)) == 0,
                  "row %u, column %u", row, column);
    }
    free_activations(&got);
}

Test(rows, tiles_of_super_groups_hold_the_quants_of_their_rows)
{
    test_device devices[DEVICES_MAX];
    size_t device_count = open_devices(devices);
    fg_rng rng = { .state = 30 };
    fg_activations want = make_activations(TILE_ROWS, SUPER_COLUMNS);
    fill_super_groups(&rng, want.values, (size_t)TILE_ROWS * SUPER_COLUMNS);
    fg_op_prepare(devices[0].stream, &want, FG_FORM_SUPERS, TILE_ROWS);
    for (uint32_t i = 0; i < 200; i++) {
        uint32_t row = (uint32_t)fg_rng_below(&rng, TILE_ROWS);
        uint32_t super = (uint32_t)fg_rng_below(&rng, 3);
        fg_cpu_part part = { .values = want.values + row * SUPER_COLUMNS + super * FG_QUANT_SUPER,
                             .stride = SUPER_COLUMNS,
                             .row = row,
                             .rows = 1 + (uint32_t)fg_rng_below(&rng, TILE_ROWS - row),
                             .column = super * FG_QUANT_SUPER,
                             .columns =
                                 (1 + (uint32_t)fg_rng_below(&rng, 3 - super)) * FG_QUANT_SUPER };
        check_super_part(devices[i % device_count].device->kernels, &want, &part);
    }
    free_activations(&want);
    close_devices(devices, device_count);
}

/* Few rows have no tiles, nor have products that read other groups too. */
Test(rows, super_groups_have_tiles_where_their_products_read_them)
{
    test_device devices[DEVICES_MAX];
    size_t device_count = open_devices(devices);
    fg_rng rng = { .state = 31 };
    fg_activations a = make_activations(TILE_ROWS, FG_QUANT_SUPER);
    fill_super_groups(&rng, a.values, (size_t)TILE_ROWS * FG_QUANT_SUPER);
    size_t tile_bytes = fg_quant_tile_count(TILE_ROWS, FG_QUANT_SUPER) * sizeof *a.quant_tiles;
    for (size_t d = 0; d < device_count; d++) {
        uint32_t least = devices[d].device->kernels->tile_rows_least;
        for (uint32_t i = 0; i < 2 * TILE_ROWS; i++) {
            uint32_t rows = i / 2 + 1;
            uint32_t forms = i % 2 == 0 ? FG_FORM_SUPERS : FG_FORM_SUPERS | FG_FORM_QUANTS;
            bool tiled = forms == FG_FORM_SUPERS && least > 0 && rows >= least;
            memset(a.quant_tiles, 0x55, tile_bytes);
            fg_op_prepare(devices[d].stream, &a, forms, rows);
            for (uint32_t g = 0; g < rows * FG_QUANT_SUPER_GROUPS; g++) {
                const int8_t *quants = a.quants + (size_t)g * FG_QUANT_GROUP;
                uint32_t place = g / FG_QUANT_SUPER_GROUPS % FG_TILE_ROWS;
                const int8_t *of_tile = tile_of_group(&a, g)->quants[place];
                for (uint32_t k = 0; k < FG_QUANT_GROUP; k++) {
                    cr_assert_eq(of_tile[k], tiled ? quants[k] : 0x55, "isa %s, %u rows, group %u",
                                 fg_device_isa(devices[d].device), rows, g);
                }
            }
        }
    }
    free_activations(&a);
    close_devices(devices, device_count);
}

/* All bits of a matrix but those of its floats, a byte 0 or 255: codes and scales as large as they
 * get. */
static void fill_with_extremes(fg_rng *rng, const fg_matrix *matrix)
{
    uint32_t block_bytes = fg_dtype_block_bytes(matrix->type);
    size_t blocks = (size_t)matrix->outputs * (matrix->columns / FG_QUANT_SUPER);
    uint8_t *data = (uint8_t *)(uintptr_t)matrix->data;
    bool is_q6 = matrix->type == FG_Q6_K;
    for (size_t i = 0; i < blocks; i++) {
        uint8_t *block = data + i * block_bytes;
        uint8_t byte = fg_rng_below(rng, 2) == 0 ? 0 : 255;
        /* Q6_K: codes, 192 bytes, 16 scales, d; else d, dmin, 12 bytes of scales, codes. */
        memset(block + (is_q6 ? 0 : 16), byte, is_q6 ? 192 : block_bytes - 16);
        memset(block + (is_q6 ? 192 : 4), is_q6 ? 0x80 : 255, is_q6 ? 16 : 12);
    }
}

/* Quants of 127 or -127, the same throughout a row's super-group, with the largest shift. */
static void fill_with_peaks(fg_rng *rng, float *values, size_t count)
{
    for (size_t i = 0; i < count; i += FG_QUANT_SUPER) {
        float peak = fg_rng_below(rng, 2) == 0 ? 2.5f : -2.5f;
        for (uint32_t k = 0; k < FG_QUANT_SUPER; k++) {
            values[i + k] = peak;
        }
    }
}

/* Sums of any sign, as large as they get or of groups with every shift. */
Test(rows, products_of_super_groups_are_the_same_with_every_shift_and_at_the_extremes)
{
    static const uint32_t types[] = { FG_Q4_K, FG_Q5_K, FG_Q6_K };
    static const uint32_t row_counts[] = { 1, 9, 12, 16, 20, 25, 32, TILE_ROWS };
    enum { OUTPUTS = 100 };
    test_device devices[DEVICES_MAX];
    size_t device_count = open_devices(devices);
    fg_rng rng = { .state = 32 };
    fg_activations in = make_activations(TILE_ROWS, SUPER_COLUMNS);
    for (uint32_t i = 0; i < 6; i++) {
        fg_matrix matrix;
        void *data = random_matrix(&rng, types[i % 3], OUTPUTS, SUPER_COLUMNS, &matrix);
        if (i < 3) {
            fill_super_groups(&rng, in.values, (size_t)TILE_ROWS * SUPER_COLUMNS);
        } else {
            fill_with_extremes(&rng, &matrix);
            fill_with_peaks(&rng, in.values, (size_t)TILE_ROWS * SUPER_COLUMNS);
        }
        fg_panels panels = pack_panels(&matrix);
        float want[TILE_ROWS * OUTPUTS], got[TILE_ROWS * OUTPUTS];
        fg_linear linear = { .weight = panels, .out = want, .out_stride = OUTPUTS };
        fg_op_prepare(devices[0].stream, &in, FG_FORM_SUPERS, TILE_ROWS);
        fg_op_linear(devices[0].stream, &linear, 1, &in, TILE_ROWS);
        linear.out = got;
        for (size_t d = 0; d < device_count; d++) {
            for (size_t r = 0; r < sizeof row_counts / sizeof row_counts[0]; r++) {
                fg_op_prepare(devices[d].stream, &in, FG_FORM_SUPERS, row_counts[r]);
                fg_op_linear(devices[d].stream, &linear, 1, &in, row_counts[r]);
                cr_assert(memcmp(want, got, row_counts[r] * OUTPUTS * sizeof(float)) == 0,
                          "%s, %s, %u rows, isa %s", fg_dtype_name(types[i % 3]),
                          i < 3 ? "shifts" : "extremes", row_counts[r],
                          fg_device_isa(devices[d].device));
            }
        }
        free_panels(&panels);
        fg_mem_free(data);
    }
    free_activations(&in);
    close_devices(devices, device_count);
}

/* Every exponent, ties, and values that round up to 2^-50 or stay below it. */
static void fill_for_rounding(fg_rng *rng, float *values, uint32_t count)
{
    static const uint32_t chosen[] = { 0x26800000, 0x267FFFFF, 0x267F8000, 0x267F7FFF, 0x00000001,
                                       0x80000000, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7F800001,
                                       0xFFFFFFFF, 0x3F808000, 0x3F818000, 0x3F808001, 0xA6800000 };
    for (uint32_t i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)fg_rng_next(rng);
        if (fg_rng_below(rng, 4) == 0) {
            bits = chosen[fg_rng_below(rng, sizeof chosen / sizeof chosen[0])];
        }
        values[i] = fg_f32_from_bits(bits);
    }
}

/* NaN lies behind a row, where nobody may look. */
Test(rows, pairs_are_the_nearest_bf16_everywhere_and_never_tiny)
{
    test_device devices[DEVICES_MAX];
    size_t device_count = open_devices(devices);
    fg_rng rng = { .state = 26 };
    for (uint32_t columns = 1; columns <= 80; columns++) {
        fg_activations a = make_activations(1, columns + 1);
        a.columns = columns;
        fill_for_rounding(&rng, a.values, columns);
        a.values[columns] = NAN;
        for (size_t d = 0; d < device_count; d++) {
            fg_op_prepare(devices[d].stream, &a, FG_FORM_PAIRS, 1);
            for (uint32_t k = 0; k < (columns + 1) / 2 * 2; k++) {
                bool apart = pairs_apart(&devices[d]);
                uint16_t got = paired_column(a.pairs, apart, k);
                uint16_t want = k < columns ? fg_bf16_from_f32(a.values[k]) : 0;
                want = fabsf(fg_bf16_to_f32(want)) < 0x1p-50f ? 0 : want;
                cr_assert_eq(got, want, "isa %s, column %u of %u: %04x, want %04x",
                             fg_device_isa(devices[d].device), k, columns, got, want);
            }
        }
        free_activations(&a);
    }
    close_devices(devices, device_count);
}

/* How far gates open, in double: g / (1 + e^-t). */
static double opened(fg_gate_kind kind, double g)
{
    double t = kind == FG_GATE_GELU ? g * 1.5957691216057308 * (1.0 + 0.044715 * g * g) : g;
    return g / (1.0 + exp(-t));
}

Test(rows, gates_are_exact_everywhere_and_close_to_double)
{
    static const char *const names[] = { [FG_GATE_SILU] = "silu", [FG_GATE_GELU] = "gelu" };
    test_device devices[DEVICES_MAX];
    size_t device_count = open_devices(devices);
    fg_rng rng = { .state = 23 };
    size_t count = (size_t)ROWS * 300;
    float *gate = random_floats(&rng, count, 12.0f);
    float *up = random_floats(&rng, count, 2.0f);
    float *first = fg_mem_array(count, sizeof(float));
    float *out = fg_mem_array(count, sizeof(float));
    gate[0] = 120.0f;
    gate[1] = -120.0f;
    gate[2] = 0.0f;
    gate[3] = 1e30f; /* its square is infinite */
    gate[4] = -1e30f;
    for (uint32_t i = 5; i < count; i += 5) { /* where e^-t is very large, very small or neither */
        gate[i] = random_float(&rng, 130.0f);
    }
    for (uint32_t kind = FG_GATE_SILU; kind <= FG_GATE_GELU; kind++) {
        for (size_t d = 0; d < device_count; d++) {
            const fg_cpu_kernels *kernels = devices[d].device->kernels;
            (kind == FG_GATE_GELU ? kernels->geglu : kernels->swiglu)(gate, up, count,
                                                                      d == 0 ? first : out);
            cr_assert(d == 0 || memcmp(out, first, count * sizeof(float)) == 0, "%s, isa %s",
                      names[kind], fg_device_isa(devices[d].device));
        }
        for (size_t i = 0; i < count; i++) {
            /* An error of t is as many of e^-t: of GELU's t, larger ones. */
            double want = opened(kind, gate[i]) * up[i];
            double most = kind == FG_GATE_GELU ? 2e-5 : 1e-6;
            cr_assert(fabs(first[i] - want) <= most * fabs(want) + 1e-30, "%s(%g): %g, want %g",
                      names[kind], (double)gate[i], (double)first[i], want);
        }
    }
    fg_mem_free(gate);
    fg_mem_free(up);
    fg_mem_free(first);
    fg_mem_free(out);
    close_devices(devices, device_count);
}

Test(rows, norm_quantises_as_the_operation_does)
{
    test_device device;
    cr_assert(open_test_device("auto", 2, &device));
    fg_rng rng = { .state = 25 };
    float *in = random_floats(&rng, (size_t)ROWS * 96, 2.0f);
    float *weight = random_floats(&rng, 96, 2.0f);
    fg_activations fused = make_activations(ROWS, 96);
    fg_activations apart = make_activations(ROWS, 96);
    const uint32_t forms = FG_FORM_QUANTS | FG_FORM_PAIRS;
    fg_op_rmsnorm(device.stream,
                  &(fg_rmsnorm){ .in = in, .weight = weight, .forms = forms, .out = fused }, ROWS);
    memcpy(apart.values, fused.values, (size_t)ROWS * 96 * sizeof(float));
    fg_op_prepare(device.stream, &apart, forms, ROWS);
    find_quants(&device, &fused, ROWS);
    find_quants(&device, &apart, ROWS);
    check_same_forms(&fused, &apart, ROWS, "norm");
    free_activations(&fused);
    free_activations(&apart);
    fg_mem_free(in);
    fg_mem_free(weight);
    close_test_device(&device);
}

Test(rows, embed_is_the_reference_dequantiser_bit_for_bit)
{
    static const uint32_t types[] = { FG_F32,  FG_F16,  FG_BF16, FG_Q4_0, FG_Q4_1, FG_Q5_0,
                                      FG_Q5_1, FG_Q8_0, FG_Q4_K, FG_Q5_K, FG_Q6_K };
    const uint32_t tokens[] = { 6, 0, 6, 3 };
    test_device device;
    cr_assert(open_test_device("auto", 2, &device));
    fg_rng rng = { .state = 24 };
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        fg_matrix table;
        void *data = random_matrix(&rng, types[t], 7, 512, &table);
        float *want = fg_mem_array((size_t)7 * 512, sizeof(float));
        float *out = fg_mem_array((size_t)4 * 512, sizeof(float));
        fg_dequant(types[t], data, want, (uint64_t)7 * 512);
        fg_op_embed(device.stream, &table, tokens, 4, 1.0f, out);
        for (int row = 0; row < 4; row++) {
            cr_assert(memcmp(out + row * 512, want + tokens[row] * 512, 512 * sizeof(float)) == 0,
                      "%s row %d", fg_dtype_name(types[t]), row);
        }
        fg_op_embed(device.stream, &table, tokens, 4, 0.7f, out);
        for (uint32_t i = 0; i < 4 * 512; i++) {
            float scaled = want[tokens[i / 512] * 512 + i % 512] * 0.7f;
            cr_assert(out[i] == scaled, "%s scaled, %u: %g, not %g", fg_dtype_name(types[t]), i,
                      (double)out[i], (double)scaled);
        }
        fg_mem_free(want);
        fg_mem_free(out);
        fg_mem_free(data);
    }
    close_test_device(&device);
}

/* Which part of a pair's own speed is left, as YaRN's authors have it. */
static double kept_of_speed(const fg_rope_shape *shape, uint32_t pair)
{
    if (!shape->yarn) {
        return 1.0 / shape->factor;
    }
    double dims = 2.0 * shape->pair_count, two_pi = 6.283185307179586;
    double first = floor(dims * log(shape->original_context / (shape->beta_fast * two_pi)) /
                         (2 * log(shape->theta)));
    double last = ceil(dims * log(shape->original_context / (shape->beta_slow * two_pi)) /
                       (2 * log(shape->theta)));
    first = fmax(first, 0);
    last = fmin(last, dims - 1);
    double ramp = fmin(fmax((pair - first) / fmax(last - first, 0.001), 0), 1);
    return (1.0 - ramp) + ramp / shape->factor;
}

Test(rows, rope_frequencies_and_angles_agree_with_libm)
{
    enum { POSITIONS = 6 };
    static const struct {
        fg_rope_shape shape;
        double magnitude;
    } cases[] = {
        { { .theta = 10000.0f, .pair_count = 4, .factor = 1 }, 1.0 },
        { { .theta = 100000.0f, .pair_count = 32, .factor = 1 }, 1.0 },
        { { .theta = 500000.0f, .pair_count = 64, .factor = 1 }, 1.1902380714238083 },
        { { .theta = 1e6f, .pair_count = 128, .factor = 2.5f }, 1.0 },
        { { .theta = 10000.0f,
            .pair_count = 64,
            .factor = 4,
            .yarn = true,
            .beta_fast = 32,
            .beta_slow = 1,
            .original_context = 4096 },
          1.0 },
        { { .theta = 1e6f,
            .pair_count = 64,
            .factor = 8,
            .yarn = true,
            .beta_fast = 16,
            .beta_slow = 2,
            .original_context = 32768 },
          0.5 },
        /* No pair turns that often, and all turn that seldom: the ramp has no length. */
        { { .theta = 10000.0f,
            .pair_count = 16,
            .factor = 4,
            .yarn = true,
            .beta_fast = 32,
            .beta_slow = 1,
            .original_context = 4 },
          1.0 },
    };
    test_device device;
    cr_assert(open_test_device("auto", 1, &device));
    const uint32_t positions[POSITIONS] = { 0, 1, 17, 8191, 131071, 1048575 };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        double frequencies[128];
        float table[POSITIONS * 128 * 2];
        float divisors[128];
        fg_rope_shape shape = cases[c].shape;
        shape.divisors = divisors;
        for (uint32_t i = 0; i < shape.pair_count; i++) {
            divisors[i] = i % 2 == 0 ? 1.0f : 8.0f;
        }
        fg_rope_frequencies(&shape, frequencies);
        fg_rope_turns turns = { .frequencies = frequencies,
                                .pair_count = shape.pair_count,
                                .magnitude = cases[c].magnitude };
        fg_op_rope_table(device.stream, positions, POSITIONS, &turns, table);
        for (uint32_t i = 0; i < shape.pair_count; i++) {
            double want = pow(shape.theta, -2.0 * i / (2.0 * shape.pair_count)) /
                          (double)divisors[i] * kept_of_speed(&shape, i);
            cr_assert(fabs(frequencies[i] - want) <= 1e-14 * want,
                      "%zu, pair %u: %.17g, want %.17g", c, i, frequencies[i], want);
            for (uint32_t p = 0; p < POSITIONS; p++) {
                const float *turn = &table[(p * shape.pair_count + i) * 2];
                cr_assert(fabs(turn[0] - cases[c].magnitude * cos(positions[p] * want)) < 2e-7);
                cr_assert(fabs(turn[1] - cases[c].magnitude * sin(positions[p] * want)) < 2e-7);
            }
        }
    }
    cr_assert(fabsf(fg_rope_yarn_magnitude(4.0f) - (float)(1.0 + 0.1 * log(4.0))) < 1e-7f);
    close_test_device(&device);
}
