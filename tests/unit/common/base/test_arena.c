#include "common/base/arena.h"

#include <stdint.h>
#include <string.h>

#include "common/base/fault.h"
#include "common/base/rng.h"
#include "tests/support/test.h"

Test(arena, gives_zeroed_aligned_pieces_that_do_not_overlap)
{
    enum { PIECES = 400 };
    unsigned char *pieces[PIECES];
    size_t sizes[PIECES];
    fg_rng rng = { 7 };
    fg_arena *arena = fg_arena_create(1 << 20);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < PIECES; i++) {
            sizes[i] = fg_rng_below(&rng, 1500);
            pieces[i] = fg_arena_alloc(arena, sizes[i]);
            cr_assert_not_null(pieces[i]);
            cr_assert_eq((uintptr_t)pieces[i] % 16, 0);
            for (size_t k = 0; k < sizes[i]; k++) {
                cr_assert_eq(pieces[i][k], 0, "round %d piece %d byte %zu", round, i, k);
            }
            memset(pieces[i], i % 255 + 1, sizes[i]);
        }
        for (int i = 0; i < PIECES; i++) {
            for (size_t k = 0; k < sizes[i]; k++) {
                cr_assert_eq(pieces[i][k], i % 255 + 1, "piece %d was written over", i);
            }
        }
        fg_arena_reset(arena);
        cr_assert_eq(fg_arena_used(arena), 0);
    }
    fg_arena_destroy(arena);
    fg_arena_destroy(NULL);
}

Test(arena, holds_no_more_than_its_limit)
{
    fg_arena *arena = fg_arena_create(1000);
    cr_assert_null(fg_arena_alloc(arena, 1001));
    cr_assert_not_null(fg_arena_alloc(arena, 500));
    cr_assert_not_null(fg_arena_alloc(arena, 480));
    cr_assert_null(fg_arena_alloc(arena, 100));
    fg_arena_reset(arena);
    cr_assert_not_null(fg_arena_alloc(arena, 900));
    fg_arena_destroy(arena);
}

Test(arena, refuses_sizes_that_overflow)
{
    fg_arena *arena = fg_arena_create(1 << 20);
    static const size_t sizes[] = { SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - 15, SIZE_MAX - 16,
                                    SIZE_MAX - 64 };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        cr_assert_null(fg_arena_alloc(arena, sizes[i]), "size %zu", sizes[i]);
    }
    cr_assert_null(fg_arena_array(arena, SIZE_MAX / 4, 8));
    cr_assert_null(fg_arena_strndup(arena, "x", SIZE_MAX));
    cr_assert_not_null(fg_arena_array(arena, 4, 8));
    fg_arena_destroy(arena);
}

Test(arena, copies_text)
{
    fg_arena *arena = fg_arena_create(4096);
    cr_assert_str_eq(fg_arena_strndup(arena, "prefill", 3), "pre");
    cr_assert_str_eq(fg_arena_strndup(arena, "", 0), "");
    fg_arena_destroy(arena);
}

static bool fill(void *ctx)
{
    fg_arena *arena = fg_arena_create(1 << 20);
    bool fine =
        arena != NULL && fg_arena_alloc(arena, 10) != NULL && fg_arena_alloc(arena, 100000) != NULL;
    fg_arena_destroy(arena);
    return fine;
}

Test(arena, survives_every_failed_allocation)
{
    cr_assert_eq(fg_fault_each(fill, NULL), 3);
}
