#include "kernels/panel.h"

#include <string.h>

#include "common/base/dtype.h"
#include "kernels/cpu/unpack.h"

enum { GROUP = 32, VECTOR = 64, HALVES = 2 * FG_PANEL_OUTPUTS };

/* Four columns' codes, one a byte. */
static uint32_t four(const int8_t *q)
{
    uint32_t codes;
    memcpy(&codes, q, sizeof codes);
    return codes;
}

static void put_four(uint8_t *codes, uint32_t vector, uint32_t r, uint32_t value)
{
    memcpy(codes + vector * VECTOR + 4 * r, &value, sizeof value);
}

/* The codes of one group of output r: q as unpack.h gives them. Four at a time: no byte of a word reaches
 * into the next, so their order in memory does not matter. */
static void put_codes(uint32_t type, const int8_t *q, uint32_t r, uint8_t *codes)
{
    if (type == FG_Q8_0) {
        for (uint32_t j = 0; j < 8; j++) {
            put_four(codes, j, r, four(q + 4 * j));
        }
        return;
    }
    int8_t u[GROUP];
    for (uint32_t k = 0; k < GROUP; k++) {
        u[k] = (int8_t)(type == FG_Q6_K ? q[k] + 32 : q[k]);
    }
    uint32_t fifth = 0;
    uint32_t upper[2] = { 0, 0 };
    for (uint32_t j = 0; j < 4; j++) {
        uint32_t low = four(u + 4 * j);
        uint32_t high = four(u + 16 + 4 * j);
        put_four(codes, j, r, (low & 0x0F0F0F0Fu) | (high & 0x0F0F0F0Fu) << 4);
        fifth |= (low >> 4 & 0x01010101u) << j | (high >> 4 & 0x01010101u) << (4 + j);
        upper[0] |= (low >> 4 & 0x03030303u) << (2 * j);
        upper[1] |= (high >> 4 & 0x03030303u) << (2 * j);
    }
    if (type == FG_Q6_K) {
        put_four(codes, 4, r, upper[0]);
        put_four(codes, 5, r, upper[1]);
    } else if (type == FG_Q5_0 || type == FG_Q5_1 || type == FG_Q5_K) {
        put_four(codes, 4, r, fifth);
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

static void pack_quantized_row(uint32_t type, uint32_t columns, const uint8_t *row, uint32_t r,
                               const fg_panel_shape *shape, uint8_t *panel)
{
    uint32_t block_groups = fg_dtype_block_count(type) / GROUP;
    for (uint32_t g = 0; g < columns / GROUP; g++) {
        fg_cpu_group group;
        fg_cpu_unpack(type, row, g, &group);
        put_codes(type, group.q, r, panel + fg_panel_codes_offset(shape, g));
        if (g % block_groups == 0) {
            uint8_t *scales = panel + fg_panel_unit_offset(shape, g);
            put_scales(type, row + (size_t)(g / block_groups) * fg_dtype_block_bytes(type), r,
                       scales + (block_groups == 1 ? g % shape->unit_groups * HALVES : 0));
        }
    }
}

static void pack_float_row(uint32_t columns, const uint8_t *row, uint32_t r, uint32_t element_bytes,
                           uint8_t *panel)
{
    for (uint32_t k = 0; k < columns; k++) {
        memcpy(panel + ((size_t)k * FG_PANEL_OUTPUTS + r) * element_bytes,
               row + (size_t)k * element_bytes, element_bytes);
    }
}

void fg_panel_pack(const fg_matrix *matrix, uint32_t first, uint32_t count, void *out)
{
    fg_panel_shape shape = fg_panel_shape_of(matrix->type, matrix->columns);
    uint32_t block_bytes = fg_dtype_block_bytes(matrix->type);
    uint32_t block = fg_dtype_block_count(matrix->type);
    size_t row_bytes = (size_t)(matrix->columns / block) * block_bytes;
    memset(out, 0, count * shape.panel_bytes);
    for (uint32_t i = 0; i < count * FG_PANEL_OUTPUTS; i++) {
        uint32_t output = first * FG_PANEL_OUTPUTS + i;
        if (output >= matrix->outputs) {
            break;
        }
        const uint8_t *row = (const uint8_t *)matrix->data + output * row_bytes;
        uint8_t *panel = (uint8_t *)out + i / FG_PANEL_OUTPUTS * shape.panel_bytes;
        if (block == 1) {
            pack_float_row(matrix->columns, row, i % FG_PANEL_OUTPUTS, block_bytes, panel);
        } else {
            pack_quantized_row(matrix->type, matrix->columns, row, i % FG_PANEL_OUTPUTS, &shape,
                               panel);
        }
    }
}
