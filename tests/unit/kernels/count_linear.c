/*
 * count_linear - a fixed amount of work for tests/integration/instruction_sets.py, which counts its
 * instructions. Only what fg_op_linear does is to be counted; --toggle-collect names it.
 *
 *   count_linear TYPE ROWS    one product of 256 outputs x 1024 columns, with AVX2
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/dtype.h"
#include "common/base/mem.h"
#include "tests/unit/kernels/kernel_data.h"

enum { OUTPUTS = 256, COLUMNS = 1024, ROWS_MAX = 64 };

int main(int argc, char **argv)
{
    static const uint32_t types[] = { FG_Q4_1, FG_Q4_K };
    uint32_t rows = argc == 3 ? (uint32_t)atoi(argv[2]) : 0;
    uint32_t type = UINT32_MAX;
    for (int i = 0; argc == 3 && i < 2; i++) {
        type = strcmp(argv[1], fg_dtype_name(types[i])) == 0 ? types[i] : type;
    }
    test_device device;
    if (rows < 1 || rows > ROWS_MAX || type == UINT32_MAX ||
        !open_test_device("avx2", 1, &device)) {
        fprintf(stderr, "usage: count_linear q4_1|q4_k ROWS, on a processor with AVX2\n");
        return 77;
    }
    printf("%s\n", __VERSION__); /* counts belong to a compiler */
    fg_rng rng = { .state = 41 };
    fg_matrix matrix;
    void *data = random_matrix(&rng, type, OUTPUTS, COLUMNS, &matrix);
    fg_panels weight = pack_panels(&matrix);
    fg_activations in = make_activations(rows, COLUMNS);
    float *out = fg_mem_array((size_t)rows * OUTPUTS, sizeof(float));
    for (size_t i = 0; i < (size_t)rows * COLUMNS; i++) {
        in.values[i] = random_float(&rng, 3.0f);
    }
    fg_linear linear = { .weight = weight, .out = out, .out_stride = OUTPUTS };
    fg_op_prepare(device.stream, &in, FG_FORM_QUANTS, rows);
    fg_op_linear(device.stream, &linear, 1, &in, rows);
    fg_mem_free(out);
    free_activations(&in);
    free_panels(&weight);
    fg_mem_free(data);
    close_test_device(&device);
    return 0;
}
