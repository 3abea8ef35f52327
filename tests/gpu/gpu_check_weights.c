/*
 * Weights, one by one: rows that are 1 in one column and 0 in the others give each weight as it was multiplied, which
 * must be the float that the CPU reads, rounded to bf16. Of F32 and F16 also what was packed, bit by bit.
 */
#include <math.h>
#include <string.h>

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
    uint32_t block = fg_dtype_block_count(type);
    uint32_t columns = type == FG_Q8_0 ? 256 : type == FG_F16 ? ROWS : block;
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

/* ---- F32 and F16 as they are packed ---- */

/* The last step is not whole. */
enum { PACKED_COLUMNS = 60, PACKED_STEPS = 4 };

/* The nearest bf16 of a float's bits, half to even; any NaN is one. */
static uint16_t nearest(uint32_t bits)
{
    uint32_t below = bits >> 16, rest = bits & 0xFFFF;
    if ((bits & 0x7FFFFFFF) > 0x7F800000) {
        return 0x7FFF;
    }
    return (uint16_t)(below + (rest > 0x8000 || (rest == 0x8000 && below % 2 != 0)));
}

/* `bits` of a type, `count` of them, through a matrix and back as they lie there (cuda.h). */
static uint16_t *packed(check *c, uint32_t type, const uint32_t *bits, uint32_t count)
{
    uint32_t outputs = (count + PACKED_COLUMNS - 1) / PACKED_COLUMNS, size = type == FG_F32 ? 4 : 2;
    uint32_t strips = (outputs + 15) / 16, words = strips * PACKED_STEPS * 128;
    uint8_t *rows = fg_mem_array((size_t)outputs * PACKED_COLUMNS, size);
    for (uint32_t i = 0; i < count; i++) {
        memcpy(rows + (size_t)i * size, &bits[i], size);
    }
    const fg_matrix matrix = {
        .data = rows, .type = type, .outputs = outputs, .columns = PACKED_COLUMNS
    };
    fg_panels panels;
    FG_ASSERT(fg_device_pack(c->device, &matrix, &panels, NULL) == FG_OK);
    uint32_t *got = fg_mem_array(words, sizeof *got);
    get(c, got, panels.data, (size_t)words * sizeof *got);
    uint16_t *out = fg_mem_array((size_t)strips * 16 * PACKED_COLUMNS, sizeof *out);
    bool ends = true;
    for (uint32_t i = 0; i < words; i++) {
        uint32_t word = i % 4, lane = i / 4 % 32, step = i / 128 % PACKED_STEPS;
        uint32_t output = i / 128 / PACKED_STEPS * 16 + lane / 4 + word % 2 * 8;
        uint32_t k = step * 16 + lane % 4 * 2 + word / 2 * 8;
        if (k < PACKED_COLUMNS) {
            out[output * PACKED_COLUMNS + k] = (uint16_t)got[i];
            out[output * PACKED_COLUMNS + k + 1] = (uint16_t)(got[i] >> 16);
        } else {
            ends = ends && got[i] == 0;
        }
    }
    tell(c, panels.type == FG_BF16 && ends, "pack %s: panels of %s, %s behind the columns",
         fg_dtype_name(type), fg_dtype_name(panels.type), ends ? "0" : "something");
    fg_mem_free(got);
    fg_mem_free(rows);
    return out;
}

static bool is_same(uint16_t got, uint16_t want)
{
    return want == 0x7FFF ? (got & 0x7FFF) > 0x7F80 : got == want;
}

static const struct {
    const char *name;
    uint32_t type, bits;
    uint16_t want; /* 0x7FFF: some NaN */
} roundings[] = {
    { "half-way, down to even", FG_F32, 0x3F808000, 0x3F80 },
    { "half-way, up to even", FG_F32, 0x3F818000, 0x3F82 },
    { "just above half-way", FG_F32, 0x3F808001, 0x3F81 },
    { "just below half-way", FG_F32, 0xBF817FFF, 0xBF81 },
    { "to the next exponent", FG_F32, 0x3FFFFFFF, 0x4000 },
    { "half-way to the next exponent", FG_F32, 0xBFFF8000, 0xC000 },
    { "the last below infinity", FG_F32, 0x7F7F7FFF, 0x7F7F },
    { "half-way to infinity", FG_F32, 0x7F7F8000, 0x7F80 },
    { "FLT_MAX", FG_F32, 0x7F7FFFFF, 0x7F80 },
    { "-FLT_MAX", FG_F32, 0xFF7FFFFF, 0xFF80 },
    { "infinity", FG_F32, 0x7F800000, 0x7F80 },
    { "-infinity", FG_F32, 0xFF800000, 0xFF80 },
    { "NaN whose bits are low", FG_F32, 0x7F800001, 0x7FFF },
    { "NaN with all bits", FG_F32, 0xFFFFFFFF, 0x7FFF },
    { "-0", FG_F32, 0x80000000, 0x8000 },
    { "the smallest", FG_F32, 0x80000001, 0x8000 },
    { "half-way to the smallest bf16", FG_F32, 0x00008000, 0x0000 },
    { "above half-way to it", FG_F32, 0x00008001, 0x0001 },
    { "between two subnormals", FG_F32, 0x00018000, 0x0002 },
    { "subnormal that becomes normal", FG_F32, 0x007F8000, 0x0080 },
    { "half-way, down to even", FG_F16, 0x3C04, 0x3F80 },
    { "half-way, up to even", FG_F16, 0xBC0C, 0xBF82 },
    { "above half-way", FG_F16, 0x3C05, 0x3F81 },
    { "to the next exponent", FG_F16, 0x3FFC, 0x4000 },
    { "the largest", FG_F16, 0x7BFF, 0x4780 },
    { "infinity", FG_F16, 0x7C00, 0x7F80 },
    { "-infinity", FG_F16, 0xFC00, 0xFF80 },
    { "NaN whose bits are low", FG_F16, 0x7C01, 0x7FFF },
    { "-0", FG_F16, 0x8000, 0x8000 },
    { "the smallest", FG_F16, 0x0001, 0x3380 },
    { "half-way between subnormals", FG_F16, 0x0101, 0x3780 },
    { "the largest subnormal", FG_F16, 0x03FF, 0x3880 },
};

static void check_roundings(check *c)
{
    for (size_t i = 0; i < sizeof roundings / sizeof *roundings; i++) {
        uint16_t *got = packed(c, roundings[i].type, &roundings[i].bits, 1);
        tell(c, is_same(got[0], roundings[i].want), "pack %s 0x%x, %s: 0x%04x, not 0x%04x",
             fg_dtype_name(roundings[i].type), roundings[i].bits, roundings[i].name, got[0],
             roundings[i].want);
        fg_mem_free(got);
    }
}

static void check_packed(check *c, uint32_t type, const uint32_t *bits, uint32_t count)
{
    uint16_t *got = packed(c, type, bits, count);
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < count; i++) {
        float value = type == FG_F32 ? 0.0f : fg_f16_to_f32((uint16_t)bits[i]);
        uint32_t full = bits[i];
        if (type == FG_F16) {
            memcpy(&full, &value, sizeof full);
        }
        wrong += !is_same(got[i], nearest(full));
    }
    tell(c, wrong == 0, "pack %s: %u of %u are not the nearest bf16", fg_dtype_name(type), wrong,
         count);
    fg_mem_free(got);
}

/* Every half; floats with all upper halves and the lower ones around the middle, and any. */
static void check_all_packed(check *c)
{
    static const uint32_t rests[] = { 0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF };
    enum { HALVES = 65536, RESTS = sizeof rests / sizeof *rests };
    uint32_t drawn = c->quick ? HALVES : 1 << 22;
    uint32_t *bits = fg_mem_array((size_t)RESTS * HALVES + drawn, sizeof *bits);
    for (uint32_t i = 0; i < HALVES; i++) {
        bits[i] = i;
    }
    check_packed(c, FG_F16, bits, HALVES);
    uint32_t count = 0;
    for (uint32_t high = 0; high < HALVES; high++) {
        for (uint32_t i = 0; i < RESTS; i++) {
            bits[count++] = high << 16 | rests[i];
        }
    }
    for (uint32_t i = 0; i < drawn; i++) {
        bits[count++] = (uint32_t)fg_rng_next(&c->rng);
    }
    check_packed(c, FG_F32, bits, count);
    fg_mem_free(bits);
}

void check_weights(check *c)
{
    open_device(c, 4, 2, 64, BLOCK);
    check_roundings(c);
    check_all_packed(c);
    close_device(c);
    for (uint32_t i = 0; i < TYPES; i++) {
        if (fg_dtype_block_count(types[i]) > 1 || types[i] == FG_F16) {
            check_type(c, types[i]);
        }
    }
}
