#include "common/base/ring.h"

#include <sched.h>
#include <stdint.h>

#include "common/base/fault.h"
#include "common/base/thread.h"
#include "tests/support/test.h"

Test(ring, gives_back_in_order_and_says_full_and_empty)
{
    fg_ring *ring = fg_ring_create(5, sizeof(int)); /* rounded up to 8 */
    int out = -1;
    cr_assert(!fg_ring_pop(ring, &out));
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < 8; i++) {
            int item = round * 100 + i;
            cr_assert(fg_ring_push(ring, &item));
            cr_assert_eq(fg_ring_count(ring), (size_t)i + 1);
        }
        int extra = 999;
        cr_assert(!fg_ring_push(ring, &extra));
        for (int i = 0; i < 8; i++) {
            cr_assert(fg_ring_pop(ring, &out));
            cr_assert_eq(out, round * 100 + i);
        }
        cr_assert(!fg_ring_pop(ring, &out));
        cr_assert_eq(fg_ring_count(ring), 0);
    }
    fg_ring_destroy(ring);
    fg_ring_destroy(NULL);
}

Test(ring, one_place_is_enough)
{
    fg_ring *ring = fg_ring_create(1, 3);
    char out[3];
    cr_assert(fg_ring_push(ring, "ab"));
    cr_assert(!fg_ring_push(ring, "cd"));
    cr_assert(fg_ring_pop(ring, out));
    cr_assert_str_eq(out, "ab");
    fg_ring_destroy(ring);
}

Test(ring, refuses_sizes_that_overflow)
{
    cr_assert_null(fg_ring_create(SIZE_MAX, 8));
    cr_assert_null(fg_ring_create((size_t)1 << 62, 8));
}

enum { ITEMS = 200000 };

typedef struct item {
    uint64_t number;
    uint64_t *cell; /* memory that travels with the item */
} item;

typedef struct pair {
    fg_ring *there, *back;
    uint64_t wrong;
} pair;

static void *echo(void *ctx)
{
    pair *rings = ctx;
    for (uint64_t n = 0; n < ITEMS;) {
        item got;
        if (!fg_ring_pop(rings->there, &got)) {
            sched_yield();
            continue;
        }
        rings->wrong += got.number != n || *got.cell != n * 3 ? 1 : 0;
        *got.cell = n * 5;
        while (!fg_ring_push(rings->back, &got)) {
            sched_yield();
        }
        n++;
    }
    return NULL;
}

/* Two threads, two rings: what was written before a push is seen after the pop, in both directions.
 * */
Test(ring, two_threads_lose_and_reorder_nothing)
{
    enum { CELLS = 256 };
    static uint64_t cells[CELLS];
    pair rings = { .there = fg_ring_create(64, sizeof(item)),
                   .back = fg_ring_create(64, sizeof(item)) };
    pthread_t thread;
    uint64_t sent = 0, wrong = 0;
    cr_assert(fg_thread_start(&thread, echo, &rings));
    for (uint64_t received = 0; received < ITEMS;) {
        item got;
        bool idle = true;
        /* A cell is written again only after its item has come back. */
        if (sent < ITEMS && sent - received < CELLS) {
            item fresh = { .number = sent, .cell = &cells[sent % CELLS] };
            *fresh.cell = sent * 3;
            if (fg_ring_push(rings.there, &fresh)) {
                sent++;
                idle = false;
            }
        }
        if (fg_ring_pop(rings.back, &got)) {
            wrong += got.number != received || *got.cell != received * 5 ? 1 : 0;
            received++;
            idle = false;
        }
        if (idle) {
            sched_yield();
        }
    }
    fg_thread_join(thread);
    cr_assert_eq(wrong + rings.wrong, 0);
    fg_ring_destroy(rings.there);
    fg_ring_destroy(rings.back);
}

static bool make(void *ctx)
{
    fg_ring *ring = fg_ring_create(16, 16);
    bool fine = ring != NULL;
    fg_ring_destroy(ring);
    return fine;
}

Test(ring, survives_every_failed_allocation)
{
    cr_assert_eq(fg_fault_each(make, NULL), 2);
}
