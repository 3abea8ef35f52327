#include "common/base/ring.h"

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/status.h"

enum { CACHE_LINE = 64 };

/* `head` and `tail` count pushes and pops for ever; their difference is the number of items. Each
 * side writes its own cache line and keeps its last view of the other, which saves most of the
 * traffic. */
struct fg_ring {
    size_t mask;
    size_t item_bytes;
    unsigned char *items;
    char pad_constants[CACHE_LINE - 3 * sizeof(size_t)];

    _Atomic size_t head; /* written by the pusher */
    size_t tail_seen;    /* the pusher's copy of tail */
    char pad_pusher[CACHE_LINE - 2 * sizeof(size_t)];

    _Atomic size_t tail; /* written by the popper */
    size_t head_seen;    /* the popper's copy of head */
    char pad_popper[CACHE_LINE - 2 * sizeof(size_t)];
};

fg_ring *fg_ring_create(size_t item_count, size_t item_bytes)
{
    FG_ASSERT(item_count > 0 && item_bytes > 0, "an empty ring");
    size_t slot_count = 1;
    while (slot_count < item_count) {
        if (slot_count > SIZE_MAX / 2) {
            return NULL;
        }
        slot_count *= 2;
    }
    fg_ring *ring = fg_mem_alloc(sizeof *ring);
    if (ring == NULL) {
        return NULL;
    }
    ring->items = fg_mem_array(slot_count, item_bytes);
    if (ring->items == NULL) {
        fg_mem_free(ring);
        return NULL;
    }
    ring->mask = slot_count - 1;
    ring->item_bytes = item_bytes;
    return ring;
}

void fg_ring_destroy(fg_ring *ring)
{
    if (ring != NULL) {
        fg_mem_free(ring->items);
        fg_mem_free(ring);
    }
}

bool fg_ring_push(fg_ring *ring, const void *item)
{
    size_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    if (head - ring->tail_seen > ring->mask) {
        ring->tail_seen = atomic_load_explicit(&ring->tail, memory_order_acquire);
        if (head - ring->tail_seen > ring->mask) {
            return false;
        }
    }
    memcpy(ring->items + (head & ring->mask) * ring->item_bytes, item, ring->item_bytes);
    atomic_store_explicit(&ring->head, head + 1, memory_order_release);
    return true;
}

bool fg_ring_pop(fg_ring *ring, void *item_out)
{
    size_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    if (tail == ring->head_seen) {
        ring->head_seen = atomic_load_explicit(&ring->head, memory_order_acquire);
        if (tail == ring->head_seen) {
            return false;
        }
    }
    memcpy(item_out, ring->items + (tail & ring->mask) * ring->item_bytes, ring->item_bytes);
    atomic_store_explicit(&ring->tail, tail + 1, memory_order_release);
    return true;
}

size_t fg_ring_count(const fg_ring *ring)
{
    /* Tail first: it never passes a head that is read later, so the difference is not negative. */
    size_t tail = atomic_load_explicit(&ring->tail, memory_order_acquire);
    size_t count = atomic_load_explicit(&ring->head, memory_order_acquire) - tail;
    return count > ring->mask + 1 ? ring->mask + 1 : count;
}
