#include "common/engine/staging.h"

#include <string.h>

#include "common/base/mem.h"
#include "common/base/status.h"

struct fg_staging {
    uint32_t area_count;
    uint32_t count_max; /* numbers per area */
    uint32_t present;
    uint32_t used; /* of the present area */
    uint32_t *numbers;
};

fg_staging *fg_staging_create(uint32_t areas, uint32_t count_max)
{
    FG_ASSERT(areas > 0, "a staging ring of no areas");
    fg_staging *staging = fg_mem_alloc(sizeof *staging);
    if (staging == NULL) {
        return NULL;
    }
    staging->area_count = areas;
    staging->count_max = count_max;
    staging->numbers = fg_mem_array((size_t)areas * count_max, sizeof(uint32_t));
    if (staging->numbers == NULL) {
        fg_mem_free(staging);
        return NULL;
    }
    return staging;
}

void fg_staging_destroy(fg_staging *staging)
{
    if (staging != NULL) {
        fg_mem_free(staging->numbers);
        fg_mem_free(staging);
    }
}

void fg_staging_turn(fg_staging *staging)
{
    staging->present = (staging->present + 1) % staging->area_count;
    staging->used = 0;
}

uint32_t fg_staging_room(const fg_staging *staging)
{
    return staging->count_max - staging->used;
}

const uint32_t *fg_staging_copy(fg_staging *staging, const uint32_t *numbers, uint32_t count)
{
    if (count > fg_staging_room(staging)) {
        return NULL;
    }
    uint32_t *copy =
        staging->numbers + (size_t)staging->present * staging->count_max + staging->used;
    if (count > 0) {
        memcpy(copy, numbers, count * sizeof *copy);
    }
    staging->used += count;
    return copy;
}

uint32_t fg_staging_positions(uint32_t width, const fg_table_range *ranges, uint32_t range_count,
                              uint32_t *positions_out, uint32_t max)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < range_count; i++) {
        const fg_table_range *range = &ranges[i];
        FG_ASSERT_SLOW(range->begin <= range->end && range->end <= width);
        for (uint32_t column = range->begin; column < range->end; column++) {
            if (count < max) {
                positions_out[count] = range->row * width + column;
            }
            count++;
        }
    }
    return count;
}
