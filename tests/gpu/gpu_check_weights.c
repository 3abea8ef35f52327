/*
 * Quantised weights, one by one: rows that are 1 in one column and 0 in the others give each weight as it was
 * multiplied, which must be the float that the CPU reads, rounded to bf16.
 */
#include <math.h>

#include "common/base/mem.h"
#include "tests/gpu/gpu_check.h"

enum { ROWS = 64 }; /* more of them are computed from weights that were expanded */

/* A type's first block of an output: of d every half in turn, and every code where there are fewer than columns. */
static void fill_block(uint32_t type, uint8_t *block, uint32_t in_row, uint16_t d)
{
    uint8_t *half = block + (type == FG_Q6_K ? 208 : 0);
    half[0] = (uint8_t)d;
    half[1] = (uint8_t)(d >> 8);
    if (type == FG_Q4_0 || type == FG_Q5_0) {
        uint8_t *codes = block + (type == FG_Q4_0 ? 2 : 6);
        for (uint32_t i = 0; i < 16; i++) {
            codes[i] = (uint8_t)(i << 4 | i);
        }
        for (uint32_t i = 0; type == FG_Q5_0 && i < 4; i++) {
            block[2 + i] = i < 2 ? 0 : 0xFF;
        }
    } else if (type == FG_Q8_0) {
        for (uint32_t i = 0; i < 32; i++) {
            block[2 + i] = (uint8_t)(in_row * 32 + i);
        }
    }
}

/* Columns `first` and on of all outputs, a row each. */
static uint32_t wrong_weights(check *c, const fg_panels *panels, const float *weights,
                              const uint16_t *halves, uint32_t first, uint32_t rows)
{
    uint32_t columns = panels->columns, outputs = panels->outputs;
    rows_in in = make_rows(c, rows, columns);
    for (uint32_t i = 0; i < rows * columns; i++) {
        in.host[i] = i % columns == first + i / columns ? 1.0f : 0.0f;
    }
    fg_device_copy(c->stream, in.a.values, in.host, (size_t)rows * columns * sizeof(float));
    fg_op_prepare(c->stream, &in.a, FG_FORM_PAIRS, rows);
    size_t count = (size_t)rows * outputs;
    float *out = put(c, NULL, count * sizeof(float)), *got = fg_mem_array(count, sizeof *got);
    poison(c, out, count);
    fg_linear linear = { .weight = *panels, .out = out, .out_stride = outputs };
    fg_op_linear(c->stream, &linear, 1, &in.a, rows);
    get(c, got, out, count * sizeof(float));
    uint32_t wrong = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t output = (uint32_t)(i % outputs);
        float want = brain(weights[(size_t)output * columns + first + i / outputs]);
        bool is_number = (halves[output] & 0x7C00) != 0x7C00;
        wrong += is_number ? got[i] != want : isfinite(got[i]);
    }
    drop(c, out);
    drop_rows(c, &in);
    fg_mem_free(got);
    return wrong;
}

static void check_type(check *c, uint32_t type)
{
    uint32_t block = fg_dtype_block_count(type), columns = type == FG_Q8_0 ? 256 : block;
    uint32_t stride = c->quick ? 64 : 1, outputs = 65536 / stride;
    open_device(c, 4, 2, 64, BLOCK);
    fg_matrix matrix;
    uint8_t *data = random_matrix(&c->rng, type, outputs, columns, &matrix);
    uint16_t *halves = fg_mem_array(outputs, sizeof *halves);
    uint32_t in_row = columns / block;
    for (uint32_t i = 0; i < outputs; i++) {
        halves[i] = (uint16_t)(i * stride + fg_rng_below(&c->rng, stride));
        for (uint32_t j = 0; j < in_row; j++) {
            fill_block(type, data + (size_t)(i * in_row + j) * fg_dtype_block_bytes(type), j,
                       halves[i]);
        }
    }
    float *weights = unpacked(&matrix);
    fg_panels panels;
    FG_ASSERT(fg_device_pack(c->device, &matrix, &panels, NULL) == FG_OK);
    const uint32_t at_once[] = { 1, 8, 16, 32, ROWS };
    for (uint32_t i = 0; i < sizeof at_once / sizeof *at_once; i++) {
        /* All columns with the last one. */
        bool all = at_once[i] == ROWS;
        uint32_t wrong = 0;
        for (uint32_t first = 0; first < (all ? columns : 1); first += at_once[i]) {
            uint32_t rows = columns - first < at_once[i] ? columns - first : at_once[i];
            wrong += wrong_weights(c, &panels, weights, halves, first, rows);
        }
        tell(c, wrong == 0, "weights %s: %u are not what the CPU reads, %u rows",
             fg_dtype_name(type), wrong, at_once[i]);
    }
    fg_mem_free(weights);
    fg_mem_free(halves);
    fg_mem_free(data);
    close_device(c);
}

void check_weights(check *c)
{
    for (uint32_t i = 0; i < TYPES; i++) {
        if (fg_dtype_block_count(types[i]) > 1) {
            check_type(c, types[i]);
        }
    }
}
