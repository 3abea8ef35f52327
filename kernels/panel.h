/*
 * panel - weight matrices in the order in which products read them. Sixteen outputs lie interleaved in
 * one panel, so that a register of any width holds one column group of neighbouring outputs and their
 * sums need no folding; a panel is read front to back once. The order is the same for every instruction
 * set: a packed file serves any machine.
 *
 * A panel is a row of units: the scales of a few groups of 32 columns, then their codes.
 *   Q4_0, Q5_0, Q8_0   two groups: 2 x 16 halves (the last unit may have one group, its scales' place stays)
 *   Q4_1, Q5_1         one group: 16 halves d, 16 halves minimum
 *   Q4_K, Q5_K         eight groups: 16 halves d, 16 halves dmin, per group 16 scales and 16 minima of a byte
 *   Q6_K               eight groups: 16 halves d, per group 16 signed scales of columns 0..15 and 16 of
 *                      columns 16..31, 32 bytes of nothing
 * Codes of a group, in vectors of 64 bytes whose byte 4 * r + i belongs to output r:
 *   4 bits   4 vectors; vector j: column 4j + i in the low half, 16 + 4j + i in the high half
 *   5 bits   one more vector: bit j is the fifth bit of column 4j + i
 *   6 bits   two more vectors; vector h: bits 2j and 2j + 1 are the upper bits of column 16h + 4j + i
 *   8 bits   8 vectors; vector j: column 4j + i, signed
 * F32, F16: [column][16 outputs]. BF16: [pair of columns][16 outputs][2], of each pair a 32-bit word with the
 * first column in its upper half and the second, or 0, in its lower; magnitudes below 2^-50 become 0.
 */
#ifndef FORGE_KERNELS_PANEL_H
#define FORGE_KERNELS_PANEL_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The format changes whenever a byte of a packed panel does. */
enum { FG_PANEL_OUTPUTS = 16, FG_PANEL_FORMAT = 3, FG_PANEL_ALIGNMENT = 64 };

/* A weight matrix as model files hold it: `outputs` rows of `columns` elements of `type` (fg_dtype),
 * each row a whole number of the type's blocks, rows adjacent. */
typedef struct fg_matrix {
    const void *data;
    uint32_t type;
    uint32_t outputs;
    uint32_t columns;
} fg_matrix;

/* The same matrix in panels; data is aligned to FG_PANEL_ALIGNMENT. */
typedef struct fg_panels {
    const void *data;
    uint32_t type;
    uint32_t outputs;
    uint32_t columns;
} fg_panels;

/* Where a panel's parts are; of floats, a column (BF16: a pair) counts as a group and there are no scales. */
typedef struct fg_panel_shape {
    uint32_t unit_groups;
    uint32_t scale_bytes; /* of a unit, a multiple of 64 */
    uint32_t group_bytes; /* codes of a group */
    size_t unit_bytes;
    size_t panel_bytes; /* a multiple of FG_PANEL_ALIGNMENT */
} fg_panel_shape;

/* Bytes of codes per group of 32 columns; of floats, per column, of BF16 per pair. */
static inline uint32_t fg_panel_group_bytes(uint32_t type)
{
    switch (type) {
    case FG_Q4_0:
    case FG_Q4_1:
    case FG_Q4_K:
        return 4 * 64;
    case FG_Q5_0:
    case FG_Q5_1:
    case FG_Q5_K:
        return 5 * 64;
    case FG_Q6_K:
        return 6 * 64;
    case FG_Q8_0:
        return 8 * 64;
    case FG_BF16:
        return 64;
    default:
        return FG_PANEL_OUTPUTS * fg_dtype_block_bytes(type);
    }
}

/* Of BF16, whose columns lie in pairs. */
static inline uint32_t fg_panel_pairs(uint32_t columns)
{
    return columns / 2 + columns % 2;
}

/* Inline: kernels know the type when they are compiled. */
static inline fg_panel_shape fg_panel_shape_of(uint32_t type, uint32_t columns)
{
    uint32_t block = fg_dtype_block_count(type);
    fg_panel_shape shape = { .unit_groups = block == 256 ? 8u : 1u,
                             .scale_bytes = block == 256  ? 320u
                                            : block == 32 ? 64u
                                                          : 0u,
                             .group_bytes = fg_panel_group_bytes(type) };
    if (type == FG_Q4_0 || type == FG_Q5_0 || type == FG_Q8_0) {
        shape.unit_groups = 2;
    }
    shape.unit_bytes = shape.scale_bytes + (size_t)shape.unit_groups * shape.group_bytes;
    size_t groups = type == FG_BF16 ? fg_panel_pairs(columns) : block == 1 ? columns : columns / 32;
    size_t bytes = groups / shape.unit_groups * shape.unit_bytes;
    if (groups % shape.unit_groups != 0) {
        bytes += shape.scale_bytes + groups % shape.unit_groups * shape.group_bytes;
    }
    shape.panel_bytes = (bytes + FG_PANEL_ALIGNMENT - 1) / FG_PANEL_ALIGNMENT * FG_PANEL_ALIGNMENT;
    return shape;
}

static inline size_t fg_panel_unit_offset(const fg_panel_shape *shape, size_t group)
{
    return group / shape->unit_groups * shape->unit_bytes;
}

static inline size_t fg_panel_codes_offset(const fg_panel_shape *shape, size_t group)
{
    return fg_panel_unit_offset(shape, group) + shape->scale_bytes +
           group % shape->unit_groups * shape->group_bytes;
}

static inline uint32_t fg_panel_count(uint32_t outputs)
{
    return outputs / FG_PANEL_OUTPUTS + (outputs % FG_PANEL_OUTPUTS != 0);
}

static inline size_t fg_panel_bytes(uint32_t type, uint32_t columns)
{
    return fg_panel_shape_of(type, columns).panel_bytes;
}

/* Packs panels first .. first + count - 1; outputs that the matrix lacks become zeros. */
void fg_panel_pack(const fg_matrix *matrix, uint32_t first, uint32_t count, void *out);

#ifdef __cplusplus
}
#endif
#endif
