/*
 * panel - weight matrices in the order in which products read them. Sixteen outputs lie interleaved in
 * one panel, so that a register of any width holds one column group of neighbouring outputs and their
 * sums need no folding; all codes of a panel come first, then all its scales, and both are read front
 * to back once. The order is the same for every instruction set: a packed file serves any machine.
 *
 * Codes, per group of 32 columns, in vectors of 64 bytes whose byte 4 * r + i belongs to output r:
 *   4 bits   4 vectors; vector j: column 4j + i in the low half, 16 + 4j + i in the high half
 *   5 bits   one more vector: bit j is the fifth bit of column 4j + i
 *   6 bits   two more vectors; vector h: bits 2j and 2j + 1 are the upper bits of column 16h + 4j + i
 *   8 bits   8 vectors; vector j: column 4j + i, signed
 * Scales: 16 halves per group (and 16 minima, Q4_1 and Q5_1); K types per super-block of eight groups
 *   16 halves d, (Q4_K, Q5_K: 16 halves dmin,) then per group 16 bytes of scales and 16 of minima
 *   (Q6_K: 16 signed scales of columns 0..15, 16 of columns 16..31).
 * Floats: [column][16 outputs].
 */
#ifndef FORGE_KERNELS_PANEL_H
#define FORGE_KERNELS_PANEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The format changes whenever a byte of a packed panel does. */
enum { FG_PANEL_OUTPUTS = 16, FG_PANEL_FORMAT = 1, FG_PANEL_ALIGNMENT = 64 };

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

/* Where a panel's parts are. */
typedef struct fg_panel_shape {
    uint32_t group_bytes; /* codes of one group; floats: of one column */
    uint32_t scale_bytes; /* scales of one block: a group or a super-block; floats: 0 */
    size_t scales_offset;
    size_t panel_bytes; /* a multiple of FG_PANEL_ALIGNMENT */
} fg_panel_shape;

fg_panel_shape fg_panel_shape_of(uint32_t type, uint32_t columns);

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
