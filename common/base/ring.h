/*
 * ring - a bounded queue of fixed-size items from one thread to one other, without locks.
 *
 * Exactly one thread pushes and exactly one pops. What the pusher wrote before a push (to the item
 * or to memory that the item points to) is seen by the popper after the matching pop. Waking a
 * sleeping popper is the caller's business.
 */
#ifndef FORGE_COMMON_BASE_RING_H
#define FORGE_COMMON_BASE_RING_H

#include <stdbool.h>
#include <stddef.h>

typedef struct fg_ring fg_ring;

/* Room for at least `item_count` items (rounded up to a power of two) of `item_bytes` each, both
 * above zero. NULL when out of memory or when the sizes overflow. */
fg_ring *fg_ring_create(size_t item_count, size_t item_bytes);
void fg_ring_destroy(fg_ring *ring);

/* Copies *item in; false when full. Only the pushing thread. */
bool fg_ring_push(fg_ring *ring, const void *item);
/* Copies the oldest item out; false when empty. Only the popping thread. */
bool fg_ring_pop(fg_ring *ring, void *item_out);
/* Items inside at some moment of the call; exact when neither side is active. */
size_t fg_ring_count(const fg_ring *ring);

#endif
