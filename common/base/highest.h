/*
 * highest - the highest of many floats and where it is, and whether they are numbers at all; four at once on any
 * processor. NaN never compares as greater or equal.
 */
#ifndef FORGE_COMMON_BASE_HIGHEST_H
#define FORGE_COMMON_BASE_HIGHEST_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Spelled out because gcc does not see a maximum in a loop of comparisons that NaN may enter. */
typedef float fg_float_lanes __attribute__((vector_size(16)));
typedef int32_t fg_mask_lanes __attribute__((vector_size(16)));

enum {
    FG_HIGHEST_LANES = 4,
    FG_HIGHEST_GROUP = 4,
    FG_HIGHEST_STRIDE = FG_HIGHEST_LANES * FG_HIGHEST_GROUP
};

static inline fg_float_lanes fg_highest_load(const float *values)
{
    fg_float_lanes lanes;
    memcpy(&lanes, values, sizeof lanes);
    return lanes;
}

/* The highest value; -inf when there is none. */
static inline float fg_highest(const float *values, uint32_t count)
{
    fg_float_lanes best[FG_HIGHEST_GROUP];
    float top = -__builtin_inff(), lane_best[FG_HIGHEST_STRIDE];
    uint32_t i = 0;
    for (uint32_t g = 0; g < FG_HIGHEST_GROUP; g++) {
        best[g] = (fg_float_lanes){ top, top, top, top };
    }
    for (; i + FG_HIGHEST_STRIDE <= count; i += FG_HIGHEST_STRIDE) {
        for (uint32_t g = 0; g < FG_HIGHEST_GROUP; g++) {
            fg_float_lanes next = fg_highest_load(values + i + g * FG_HIGHEST_LANES);
            fg_mask_lanes above = next > best[g];
            best[g] =
                (fg_float_lanes)((above & (fg_mask_lanes)next) | (~above & (fg_mask_lanes)best[g]));
        }
    }
    memcpy(lane_best, best, sizeof lane_best);
    for (uint32_t lane = 0; lane < FG_HIGHEST_STRIDE; lane++) {
        top = lane_best[lane] > top ? lane_best[lane] : top;
    }
    for (; i < count; i++) {
        top = values[i] > top ? values[i] : top;
    }
    return top;
}

/* The first index that holds `wanted`; 0 when none does. */
static inline uint32_t fg_first_equal(const float *values, uint32_t count, float wanted)
{
    const fg_float_lanes all_wanted = { wanted, wanted, wanted, wanted };
    uint32_t i = 0;
    for (; i + FG_HIGHEST_STRIDE <= count; i += FG_HIGHEST_STRIDE) {
        fg_mask_lanes equal = { 0, 0, 0, 0 };
        for (uint32_t g = 0; g < FG_HIGHEST_GROUP; g++) {
            equal |= fg_highest_load(values + i + g * FG_HIGHEST_LANES) == all_wanted;
        }
        if ((equal[0] | equal[1] | equal[2] | equal[3]) != 0) {
            break;
        }
    }
    for (; i < count; i++) {
        if (values[i] == wanted) {
            return i;
        }
    }
    return 0;
}

/* None of them is NaN or infinite: what is leaves NaN when it is taken from itself. */
static inline bool fg_all_finite(const float *values, uint32_t count)
{
    const fg_float_lanes zeros = { 0, 0, 0, 0 };
    fg_mask_lanes odd = { 0, 0, 0, 0 };
    uint32_t i = 0;
    for (; i + FG_HIGHEST_LANES <= count; i += FG_HIGHEST_LANES) {
        fg_float_lanes next = fg_highest_load(values + i);
        odd |= next - next != zeros;
    }
    bool finite = (odd[0] | odd[1] | odd[2] | odd[3]) == 0;
    for (; i < count; i++) {
        finite = finite && values[i] - values[i] == 0.0f;
    }
    return finite;
}

#endif
