#include "router/queue_heap.h"

#include "common/base/status.h"

/* One tree of two: the later root becomes the first child of the earlier one. Either may be NULL. */
static fg_queue_node *meld(fg_queue_before before, fg_queue_node *a, fg_queue_node *b)
{
    if (a == NULL || b == NULL) {
        return a != NULL ? a : b;
    }
    if (before(b, a)) {
        fg_queue_node *swap = a;
        a = b;
        b = swap;
    }
    b->previous = a;
    b->next = a->child;
    if (b->next != NULL) {
        b->next->previous = b;
    }
    a->child = b;
    return a;
}

/* One tree of a list of siblings: in pairs from the front, then the pairs together from the back. The
 * first pass threads the pairs through `previous`, so that no stack is needed. */
static fg_queue_node *meld_siblings(fg_queue_before before, fg_queue_node *first)
{
    fg_queue_node *pairs = NULL;
    while (first != NULL) {
        fg_queue_node *second = first->next;
        fg_queue_node *rest = second != NULL ? second->next : NULL;
        first->next = NULL;
        if (second != NULL) {
            second->next = NULL;
        }
        fg_queue_node *pair = meld(before, first, second);
        pair->previous = pairs;
        pairs = pair;
        first = rest;
    }
    fg_queue_node *all = NULL;
    while (pairs != NULL) {
        fg_queue_node *earlier = pairs->previous;
        pairs->previous = NULL;
        all = meld(before, all, pairs);
        pairs = earlier;
    }
    return all;
}

void fg_queue_heap_add(fg_queue_heap *heap, fg_queue_node *node)
{
    *node = (fg_queue_node){ 0 };
    heap->root = meld(heap->before, heap->root, node);
}

void fg_queue_heap_remove(fg_queue_heap *heap, fg_queue_node *node)
{
    fg_queue_node *below = meld_siblings(heap->before, node->child);
    if (heap->root == node) {
        heap->root = below;
    } else {
        bool is_first = node->previous->child == node;
        *(is_first ? &node->previous->child : &node->previous->next) = node->next;
        if (node->next != NULL) {
            node->next->previous = node->previous;
        }
        heap->root = meld(heap->before, heap->root, below);
    }
    *node = (fg_queue_node){ 0 };
}

fg_queue_node *fg_queue_heap_next(const fg_queue_heap *heap, const fg_queue_node *node)
{
    if (node == NULL) {
        return heap->root;
    }
    if (node->child != NULL) {
        return node->child;
    }
    while (node != NULL && node->next == NULL) {
        while (node->previous != NULL && node->previous->child != node) {
            node = node->previous; /* back to the first sibling, and from there up */
        }
        node = node->previous;
    }
    return node != NULL ? node->next : NULL;
}

size_t fg_queue_heap_check(const fg_queue_heap *heap)
{
    size_t count = 0;
    for (fg_queue_node *node = fg_queue_heap_next(heap, NULL); node != NULL;
         node = fg_queue_heap_next(heap, node)) {
        FG_ASSERT(node->next == NULL || node->next->previous == node);
        FG_ASSERT(node->child == NULL || node->child->previous == node);
        for (fg_queue_node *child = node->child; child != NULL; child = child->next) {
            FG_ASSERT(heap->before(node, child) && !heap->before(child, node));
        }
        count++;
    }
    return count;
}
