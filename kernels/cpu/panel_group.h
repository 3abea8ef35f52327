/*
 * panel_group - one output's group of 32 columns out of a panel, in plain C: what the oracle of matrix
 * products reads.
 */
#ifndef FORGE_KERNELS_CPU_PANEL_GROUP_H
#define FORGE_KERNELS_CPU_PANEL_GROUP_H

#include <stdbool.h>

#include "kernels/cpu/unpack.h"
#include "kernels/panel.h"

/* Types whose groups have integer scales, under a float of a super-group. */
static inline bool fg_cpu_is_super(uint32_t type)
{
    return type == FG_Q4_K || type == FG_Q5_K || type == FG_Q6_K;
}

/* True for types with a minimum per group; others have a fixed integer offset or none. */
static inline bool fg_cpu_has_minimum(uint32_t type)
{
    return type == FG_Q4_1 || type == FG_Q5_1 || type == FG_Q4_K || type == FG_Q5_K;
}

/* Code of column k of the group, offset taken off. */
static inline int8_t fg_cpu_panel_code(uint32_t type, const uint8_t *codes, uint32_t lane,
                                       uint32_t k)
{
    uint32_t at = 4 * lane + k % 4;
    if (type == FG_Q8_0) {
        return (int8_t)codes[k / 4 * 64 + at];
    }
    int u = codes[k % 16 / 4 * 64 + at] >> (k < 16 ? 0 : 4) & 15;
    switch (type) {
    case FG_Q4_0:
        return (int8_t)(u - 8);
    case FG_Q5_0:
        return (int8_t)((u | (codes[256 + at] >> (k / 4) & 1) << 4) - 16);
    case FG_Q5_1:
    case FG_Q5_K:
        return (int8_t)(u | (codes[256 + at] >> (k / 4) & 1) << 4);
    case FG_Q6_K:
        return (int8_t)((u | (codes[(4 + k / 16) * 64 + at] >> (k % 16 / 4 * 2) & 3) << 4) - 32);
    default:
        return (int8_t)u;
    }
}

/* Group g of output `lane`. `minimum` is what the activations' offset is multiplied with; of types with super-groups it is
 * of one, as d is, and the group's part comes from below. */
static inline void fg_cpu_panel_group(uint32_t type, const fg_panel_shape *shape,
                                      const uint8_t *panel, uint32_t g, uint32_t lane,
                                      fg_cpu_group *out)
{
    for (uint32_t k = 0; k < 32; k++) {
        out->q[k] = fg_cpu_panel_code(type, panel + fg_panel_codes_offset(shape, g), lane, k);
    }
    const uint8_t *scales = panel + fg_panel_unit_offset(shape, g);
    scales += shape->unit_groups == 2 ? g % 2 * 32 : 0;
    out->d = fg_cpu_half(scales + 2 * lane);
    out->scale[0] = 1;
    out->scale[1] = 1;
    out->minimum = 0.0f;
    if (type == FG_Q4_1 || type == FG_Q5_1) {
        out->minimum = fg_cpu_half(scales + 32 + 2 * lane);
    } else if (type == FG_Q6_K) {
        const uint8_t *pair = scales + 32 + g % 8 * 32 + lane;
        out->scale[0] = (int8_t)pair[0];
        out->scale[1] = (int8_t)pair[16];
    } else if (fg_cpu_is_super(type)) {
        out->scale[0] = out->scale[1] = scales[64 + g % 8 * 32 + lane];
        out->minimum = -fg_cpu_half(scales + 32 + 2 * lane);
    }
}

/* The integer minimum of a group, of types that have some. */
static inline int32_t fg_cpu_panel_minimum(const fg_panel_shape *shape, const uint8_t *panel,
                                           uint32_t g, uint32_t lane)
{
    return panel[fg_panel_unit_offset(shape, g) + 64 + g % 8 * 32 + 16 + lane];
}

#endif
