/*
 * attend_data - cases of attention for the kernel tests, and what one needs: a layer's paged KV, filled through
 * fg_op_rope_store.
 */
#ifndef FORGE_TESTS_UNIT_KERNELS_ATTEND_DATA_H
#define FORGE_TESTS_UNIT_KERNELS_ATTEND_DATA_H

#include "kernels/ops.h"
#include "tests/unit/kernels/kernel_data.h"

typedef struct attend_case {
    const char *name;
    uint32_t head_count, kv_head_count, head_dim, block_size, dtype, slot_count;
    uint32_t row_count; /* computed, the last ones */
    uint32_t window;
} attend_case;

enum { ATTEND_CASES = 81 };
extern const attend_case attend_cases[ATTEND_CASES];

/* One sequence: row r is at position r; slots that nobody stored to hold NaN. */
typedef struct world {
    fg_paged_kv kv;
    uint32_t *block_ids;
    fg_kv_row *kv_rows;
    float *q;
    float *k;
    float *v;
    float *table; /* turns nothing */
} world;

world make_world(const attend_case *c, uint64_t seed);
void free_world(world *w);

/* Writes all slots. */
void store_world(const test_device *device, const world *w, const attend_case *c);

/* Rows first .. first + rows - 1, to their places in `out`. */
void attend_rows(const test_device *device, const world *w, const attend_case *c, uint32_t first,
                 uint32_t rows, float *out);

#endif
