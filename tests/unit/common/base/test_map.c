#include "common/base/map.h"

#include "common/base/fault.h"
#include "common/base/hash.h"
#include "common/base/rng.h"
#include "tests/support/test.h"

static int marks[4096];

Test(map, puts_gets_replaces_and_removes)
{
    fg_map *map = fg_map_create(10);
    cr_assert_null(fg_map_get(map, 5));
    cr_assert_null(fg_map_remove(map, 5));
    cr_assert_eq(fg_map_put(map, 5, &marks[1]), FG_OK);
    cr_assert_eq(fg_map_put(map, 0, &marks[2]), FG_OK);
    cr_assert_eq(fg_map_put(map, 5, &marks[3]), FG_OK);
    cr_assert_eq(fg_map_count(map), 2);
    cr_assert_eq(fg_map_get(map, 5), &marks[3]);
    cr_assert_eq(fg_map_get(map, 0), &marks[2]);
    cr_assert_eq(fg_map_remove(map, 5), &marks[3]);
    cr_assert_null(fg_map_get(map, 5));
    cr_assert_eq(fg_map_count(map), 1);
    fg_map_destroy(map);
    fg_map_destroy(NULL);
}

Test(map, full_is_again_and_changes_nothing)
{
    fg_map *map = fg_map_create(100);
    for (uint64_t key = 0; key < 100; key++) {
        cr_assert_eq(fg_map_put(map, key << 32, &marks[key]), FG_OK);
    }
    cr_assert_eq(fg_map_put(map, 1, &marks[0]), FG_AGAIN);
    cr_assert_eq(fg_map_put(map, 0, &marks[7]), FG_OK); /* replacing needs no room */
    cr_assert_null(fg_map_get(map, 1));
    cr_assert_eq(fg_map_count(map), 100);
    cr_assert_eq(fg_map_remove(map, (uint64_t)99 << 32), &marks[99]);
    cr_assert_eq(fg_map_put(map, 1, &marks[0]), FG_OK);
    fg_map_destroy(map);
}

/* Against a plain array of the same contents. The keys are drawn from few, so that probes collide
 * and removals close holes inside runs. */
Test(map, equals_a_plain_array_after_every_random_step)
{
    enum { KEYS = 600, STEPS = 30000 };
    uint64_t seed = 20261121;
    cr_log_info("seed %llu", (unsigned long long)seed);
    fg_rng rng = { seed };
    void *plain[KEYS] = { 0 };
    size_t count = 0;
    fg_map *map = fg_map_create(KEYS);
    for (int step = 0; step < STEPS; step++) {
        uint64_t key = fg_rng_below(&rng, KEYS);
        if (fg_rng_below(&rng, 5) < 3) {
            void *value = &marks[fg_rng_below(&rng, 4096)];
            count += plain[key] == NULL ? 1 : 0;
            plain[key] = value;
            cr_assert_eq(fg_map_put(map, key, value), FG_OK);
        } else {
            count -= plain[key] == NULL ? 0 : 1;
            cr_assert_eq(fg_map_remove(map, key), plain[key], "step %d", step);
            plain[key] = NULL;
        }
        cr_assert_eq(fg_map_count(map), count);
        if (step % 100 == 0) {
            for (uint64_t k = 0; k < KEYS; k++) {
                cr_assert_eq(fg_map_get(map, k), plain[k], "step %d key %d", step, (int)k);
            }
        }
    }
    size_t cursor = 0, walked = 0;
    uint64_t key;
    for (void *value; (value = fg_map_next(map, &cursor, &key)) != NULL; walked++) {
        cr_assert_eq(plain[key], value);
        plain[key] = NULL;
    }
    cr_assert_eq(walked, count);
    fg_map_destroy(map);
}

static bool fill(void *ctx)
{
    fg_map *map = fg_map_create(1000);
    bool fine = map != NULL;
    for (uint64_t key = 0; fine && key < 200; key++) {
        fine = fg_map_put(map, key, &marks[key]) == FG_OK;
        if (!fine) {
            /* A put that failed left the rest as it was. */
            for (uint64_t k = 0; k < 200; k++) {
                cr_assert_eq(fg_map_get(map, k), k < key ? &marks[k] : NULL);
            }
        }
    }
    fg_map_destroy(map);
    return fine;
}

Test(map, survives_every_failed_allocation)
{
    cr_assert(fg_fault_each(fill, NULL) >= 4);
}
