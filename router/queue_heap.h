/*
 * queue_heap - an ordered set whose nodes lie in what it orders: a pairing heap. Owned by whoever owns
 * the queue; takes no memory, so nothing here can fail.
 *
 * A node is in at most one heap at a time. Insertion takes constant time, removal of any node amortised
 * O(log n).
 */
#ifndef FORGE_ROUTER_QUEUE_HEAP_H
#define FORGE_ROUTER_QUEUE_HEAP_H

#include <stdbool.h>
#include <stddef.h>

typedef struct fg_queue_node {
    struct fg_queue_node *child;    /* the first one */
    struct fg_queue_node *next;     /* its next sibling */
    struct fg_queue_node *previous; /* its previous sibling; of a first child, the parent */
} fg_queue_node;

/* A strict total order of what the nodes lie in. It must not change while both are in a heap. */
typedef bool (*fg_queue_before)(const fg_queue_node *a, const fg_queue_node *b);

typedef struct fg_queue_heap {
    fg_queue_node *root; /* the first in order; NULL: empty */
    fg_queue_before before;
} fg_queue_heap;

void fg_queue_heap_add(fg_queue_heap *heap, fg_queue_node *node);
/* `node` is in this heap. */
void fg_queue_heap_remove(fg_queue_heap *heap, fg_queue_node *node);
/* Walks all nodes in no particular order, parents before children: NULL begins, NULL ends. */
fg_queue_node *fg_queue_heap_next(const fg_queue_heap *heap, const fg_queue_node *node);
/* Aborts when a link is wrong or a child comes before its parent. Returns the number of nodes. */
size_t fg_queue_heap_check(const fg_queue_heap *heap);

#endif
