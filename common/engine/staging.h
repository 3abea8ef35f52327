/*
 * staging - where a plan's numbers lie while the engine reads them: a ring of equal areas, one per step
 * that may still be read, filled by the loop thread, so that block tables may change while a step that
 * was launched with their earlier state runs. Owned by the loop thread; no allocation after create.
 */
#ifndef FORGE_COMMON_ENGINE_STAGING_H
#define FORGE_COMMON_ENGINE_STAGING_H

#include <stdint.h>

typedef struct fg_staging fg_staging;

/* `areas` areas of `count_max` numbers each. NULL: out of memory. */
fg_staging *fg_staging_create(uint32_t areas, uint32_t count_max);
void fg_staging_destroy(fg_staging *staging);
/* The next area of the ring, now empty; the caller knows that nobody reads it any more. */
void fg_staging_turn(fg_staging *staging);
/* A copy of `count` numbers in the present area, stable until that area's turn comes again; NULL when
 * the area is full. */
const uint32_t *fg_staging_copy(fg_staging *staging, const uint32_t *numbers, uint32_t count);
/* Numbers that the present area still takes. */
uint32_t fg_staging_room(const fg_staging *staging);

/* The entries begin .. end - 1 of row `row` of a table that is `width` wide. */
typedef struct fg_table_range {
    uint32_t row, begin, end;
} fg_table_range;

/* The flat positions of some ranges of a table, one after the other: which entries a step loads or
 * writes. Returns their number; at most `max` are written. */
uint32_t fg_staging_positions(uint32_t width, const fg_table_range *ranges, uint32_t range_count,
                              uint32_t *positions_out, uint32_t max);

#endif
