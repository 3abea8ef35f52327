/*
 * queue_line - a waiting line with items and a clock of its own, for the tests of router/queue.
 */
#ifndef FORGE_TESTS_UNIT_ROUTER_QUEUE_LINE_H
#define FORGE_TESTS_UNIT_ROUTER_QUEUE_LINE_H

#include "router/queue.h"

enum { ITEMS_MAX = 512 };
#define S 1000000000ull

typedef struct line {
    fg_queue *queue;
    fg_queue_item items[ITEMS_MAX];
    uint32_t count; /* items ever made */
    uint64_t now_ns;
    uint64_t seed;
} line;

/* No bound but that of the items; 4 may be set aside, each is passed 3 times at most. */
fg_queue_options line_options(void);
/* It is 100 s past the clock's beginning. */
void line_open(line *l, const fg_queue_options *options);
/* Checks the books first. */
void line_close(line *l);
/* A new item, of as many tokens as its cost; add pushes it too. */
fg_queue_item *line_make(line *l, uint64_t tenant, int32_t priority, uint32_t cost);
fg_queue_item *line_add(line *l, uint64_t tenant, int32_t priority, uint32_t cost);
/* The next one goes; its id, or 0. */
uint64_t line_serve(line *l);
/* One that may be used anew, or NULL. */
fg_queue_item *line_free_item(line *l);

#endif
