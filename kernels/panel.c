#include "kernels/panel.h"

#include <string.h>

#include "common/base/dtype.h"
#include "kernels/cpu/unpack.h"

enum { GROUP = 32, VECTOR = 64, HALVES = 2 * FG_PANEL_OUTPUTS };

/* The integers of one group of a panel: [output][column]. */
typedef int8_t group_codes[FG_PANEL_OUTPUTS][GROUP];

/* Four columns of one output, one a byte; no byte of a word reaches into the next below. */
static uint32_t four(const int8_t *q)
{
    uint32_t word;
    memcpy(&word, q, sizeof word);
    return word;
}

static void put_four(uint8_t *vector, uint32_t r, uint32_t word)
{
    memcpy(vector + 4 * r, &word, sizeof word);
}

static void put_bytes(group_codes q, uint8_t *codes)
{
    for (uint32_t j = 0; j < 8; j++) {
        for (uint32_t r = 0; r < FG_PANEL_OUTPUTS; r++) {
            put_four(codes + j * VECTOR, r, four(&q[r][4 * j]));
        }
    }
}

static void put_nibbles(group_codes q, uint8_t *codes)
{
    for (uint32_t j = 0; j < 4; j++) {
        for (uint32_t r = 0; r < FG_PANEL_OUTPUTS; r++) {
            uint32_t low = four(&q[r][4 * j]) & 0x0F0F0F0Fu;
            uint32_t high = four(&q[r][16 + 4 * j]) & 0x0F0F0F0Fu;
            put_four(codes + j * VECTOR, r, low | high << 4);
        }
    }
}

static void put_fifth_bits(group_codes q, uint8_t *codes)
{
    for (uint32_t r = 0; r < FG_PANEL_OUTPUTS; r++) {
        uint32_t bits = 0;
        for (uint32_t j = 0; j < 8; j++) {
            bits |= (four(&q[r][4 * j]) >> 4 & 0x01010101u) << j;
        }
        put_four(codes, r, bits);
    }
}

static void put_upper_bits(group_codes q, uint8_t *codes)
{
    for (uint32_t h = 0; h < 2; h++) {
        for (uint32_t r = 0; r < FG_PANEL_OUTPUTS; r++) {
            uint32_t bits = 0;
            for (uint32_t j = 0; j < 4; j++) {
                bits |= (four(&q[r][16 * h + 4 * j]) >> 4 & 0x03030303u) << 2 * j;
            }
            put_four(codes + h * VECTOR, r, bits);
        }
    }
}

static void put_codes(uint32_t type, group_codes q, uint8_t *codes)
{
    if (type == FG_Q8_0) {
        put_bytes(q, codes);
        return;
    }
    put_nibbles(q, codes);
    if (type == FG_Q5_0 || type == FG_Q5_1 || type == FG_Q5_K) {
        put_fifth_bits(q, codes + 4 * VECTOR);
    } else if (type == FG_Q6_K) {
        put_upper_bits(q, codes + 4 * VECTOR);
    }
}

static void put_k_scales(uint32_t type, const uint8_t *block, uint32_t r, uint8_t *scales)
{
    if (type == FG_Q6_K) {
        memcpy(scales + 2 * r, block + 208, 2);
        for (uint32_t i = 0; i < 16; i++) {
            scales[HALVES + i * FG_PANEL_OUTPUTS + r] = block[192 + i];
        }
        return;
    }
    memcpy(scales + 2 * r, block, 2);
    memcpy(scales + HALVES + 2 * r, block + 2, 2);
    for (uint32_t g = 0; g < 8; g++) {
        uint32_t scale;
        uint32_t minimum;
        fg_cpu_k_scale(block + 4, g, &scale, &minimum);
        uint8_t *group = scales + 2 * HALVES + (size_t)g * 2 * FG_PANEL_OUTPUTS;
        group[r] = (uint8_t)scale;
        group[FG_PANEL_OUTPUTS + r] = (uint8_t)minimum;
    }
}

/* The scales of one block of output r: a group's, or a super-block's. */
static void put_scales(uint32_t type, const uint8_t *block, uint32_t r, uint8_t *scales)
{
    if (fg_dtype_block_count(type) == 256) {
        put_k_scales(type, block, r, scales);
        return;
    }
    memcpy(scales + 2 * r, block, 2);
    if (type == FG_Q4_1 || type == FG_Q5_1) {
        memcpy(scales + HALVES + 2 * r, block + 2, 2);
    }
}

/* Rows row .. row + count - 1 (at most 16) of the matrix. */
static void pack_quantized(const fg_matrix *matrix, const uint8_t *rows, size_t row_bytes,
                           uint32_t count, const fg_panel_shape *shape, uint8_t *panel)
{
    uint32_t type = matrix->type;
    uint32_t block_groups = fg_dtype_block_count(type) / GROUP;
    group_codes codes = { { 0 } };
    for (uint32_t g = 0; g < matrix->columns / GROUP; g++) {
        for (uint32_t r = 0; r < count; r++) {
            const uint8_t *row = rows + r * row_bytes;
            fg_cpu_group group;
            fg_cpu_unpack(type, row, g, &group);
            for (uint32_t k = 0; k < GROUP; k++) {
                codes[r][k] = (int8_t)(type == FG_Q6_K ? group.q[k] + 32 : group.q[k]);
            }
            if (g % block_groups == 0) {
                uint8_t *scales = panel + fg_panel_unit_offset(shape, g);
                put_scales(type, row + (size_t)(g / block_groups) * fg_dtype_block_bytes(type), r,
                           scales + (block_groups == 1 ? g % shape->unit_groups * HALVES : 0));
            }
        }
        put_codes(type, codes, panel + fg_panel_codes_offset(shape, g));
    }
}

static void pack_halves(const uint16_t *rows, uint32_t columns, uint32_t count, uint16_t *panel)
{
    for (size_t k = 0; k < columns; k++) {
        for (uint32_t r = 0; r < count; r++) {
            panel[k * FG_PANEL_OUTPUTS + r] = rows[(size_t)r * columns + k];
        }
    }
}

/* A pair's columns as one word (panel.h); no denormals, and none that products could lead to. */
static uint32_t pair_of(const uint16_t *row, uint32_t columns, size_t column)
{
    uint16_t first = fg_cpu_bf16_normal(row[column]);
    uint16_t second = column + 1 < columns ? fg_cpu_bf16_normal(row[column + 1]) : 0;
    return (uint32_t)first << 16 | second;
}

static void pack_pairs(const uint16_t *rows, uint32_t columns, uint32_t count, uint32_t *panel)
{
    for (size_t k = 0; k < columns; k += 2) {
        for (uint32_t r = 0; r < count; r++) {
            panel[k / 2 * FG_PANEL_OUTPUTS + r] = pair_of(rows + (size_t)r * columns, columns, k);
        }
    }
}

static void pack_words(const uint32_t *rows, uint32_t columns, uint32_t count, uint32_t *panel)
{
    for (size_t k = 0; k < columns; k++) {
        for (uint32_t r = 0; r < count; r++) {
            panel[k * FG_PANEL_OUTPUTS + r] = rows[(size_t)r * columns + k];
        }
    }
}

void fg_panel_pack(const fg_matrix *matrix, uint32_t first, uint32_t count, void *out)
{
    fg_panel_shape shape = fg_panel_shape_of(matrix->type, matrix->columns);
    uint32_t block = fg_dtype_block_count(matrix->type);
    size_t row_bytes = (size_t)(matrix->columns / block) * fg_dtype_block_bytes(matrix->type);
    memset(out, 0, count * shape.panel_bytes);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t output = (first + i) * FG_PANEL_OUTPUTS;
        uint32_t left = matrix->outputs - output;
        left = left < FG_PANEL_OUTPUTS ? left : FG_PANEL_OUTPUTS;
        const uint8_t *rows = (const uint8_t *)matrix->data + output * row_bytes;
        uint8_t *panel = (uint8_t *)out + i * shape.panel_bytes;
        if (block > 1) {
            pack_quantized(matrix, rows, row_bytes, left, &shape, panel);
        } else if (matrix->type == FG_F32) {
            pack_words((const void *)rows, matrix->columns, left, (void *)panel);
        } else if (matrix->type == FG_BF16) {
            pack_pairs((const void *)rows, matrix->columns, left, (void *)panel);
        } else {
            pack_halves((const void *)rows, matrix->columns, left, (void *)panel);
        }
    }
}
